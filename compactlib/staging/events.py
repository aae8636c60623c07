"""`StagingEvents`: what the branch protocol tells whoever counts, above all the sensor of compactions."""

from __future__ import annotations

from compactlib.staging.record import BranchRecord


class StagingEvents:
    """Is told what happens on branches; every method does nothing until it is overridden.

    Methods are called from the threads that read and write, after the fact. They must not block and not raise.
    """

    def record_seen(self, branch: str, record: BranchRecord) -> None:
        """A read or a write came across this state of the branch."""

    def tombstones_written(self, branch: str, record: BranchRecord, count: int) -> None:
        """Deletes or resets wrote tombstones into `record.staging_token`, and were acknowledged."""

    def tombstones_listed(self, branch: str, record: BranchRecord, count: int) -> None:
        """A page of a listing had to pass over so many tombstones."""

    def write_retried(self, branch: str, operation: str) -> None:
        """A write had to be done anew, because the branch changed under it."""

    def committed(self, branch: str, record: BranchRecord) -> None:
        """A commit or a move of HEAD left this state."""

    def reset(self, branch: str, record: BranchRecord) -> None:
        """A reset of the whole branch left this state."""

    def branch_deleted(self, branch: str) -> None:
        """The branch is gone."""
