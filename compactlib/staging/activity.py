# SPDX-License-Identifier: Apache-2.0
"""`Activity`: notifies the sensor and the observer of operations on a repository's branches.

| name | labels | counts |
|---|---|---|
| `staging_commits` | `repository`, `outcome` | commits: `committed`, `no_changes`, `already_committed`, `error` |
| `staging_commit_seconds` | `repository`, `outcome` | time they took |
| `staging_tombstones_written`, `staging_tombstones_listed` | `repository` | tombstones |
| `staging_write_retries` | `repository`, `operation` | writes retried because a branch changed under them |
| `staging_tokens_cleaned`, `staging_entries_cleaned` | `repository` | cleanup |

Compactions, seconds and bytes have the names of every store: `compactlib._store_numbers`.

Levels are events with a `value`, emitted on each change: `staging_sealed_tokens` (of a branch; `None` when it is
deleted) and `staging_cleanup_backlog` (dropped tokens that wait). A compaction emits `staging_compaction` with the
counts of its report, and a garbage collection `staging_garbage` with those of `Collected`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from compactlib._store_numbers import notify_compaction
from compactlib.errors import CompactlibError
from compactlib.observer import Observer
from compactlib.staging.errors import LostRace
from compactlib.staging.record import BranchRecord
from compactlib.staging.results import StagingCompactionReport
from compactlib.staging.values import Applied, MetaRangeId

if TYPE_CHECKING:
    from compactlib.staging.sensor import CompactionSensor


class Activity:
    """Emits the numbers of operations. Called after them, outside of locks; never blocks.

    Args:
        repository: its name, the label.
        observer: receives the events.
        sensor: counts the pressure on branches; `None` without a worker.
    """

    def __init__(self, repository: str, observer: Observer, sensor: CompactionSensor | None) -> None:
        self._repository = repository
        self._observer = observer
        self._sensor = sensor

    def _count(self, name: str, number: int, **labels: str) -> None:
        self._observer.event(name, add=number, repository=self._repository, **labels)

    def read(self, branch: str, record: BranchRecord) -> None:
        """Note that an operation read this record of the branch."""
        if self._sensor is not None:
            self._sensor.saw(self._repository, branch, record)

    def wrote(self, branch: str, before: BranchRecord | None, record: BranchRecord) -> None:
        """Note that this process replaced the record of the branch."""
        self.read(branch, record)
        if len(record.sealed_tokens) != (0 if before is None else len(before.sealed_tokens)):
            self._observer.event("staging_sealed_tokens", repository=self._repository, branch=branch,
                                 value=len(record.sealed_tokens))

    def deleted(self, branch: str) -> None:
        """Note that this process deleted the branch."""
        self.missed(branch)
        self._observer.event("staging_sealed_tokens", repository=self._repository, branch=branch, value=None)

    def missed(self, branch: str) -> None:
        """Note that the branch does not exist."""
        if self._sensor is not None:
            self._sensor.forget(self._repository, branch)

    def wrote_tombstones(self, branch: str, record: BranchRecord, count: int) -> None:
        """Note acknowledged tombstones of deletes or resets in `record.staging_token`."""
        self._count("staging_tombstones_written", count)
        if self._sensor is not None:
            self._sensor.wrote_tombstones(self._repository, branch, record, count)

    def listed_tombstones(self, branch: str, record: BranchRecord, count: int) -> None:
        """Note that a page of a listing skipped tombstones."""
        self._count("staging_tombstones_listed", count)
        if self._sensor is not None:
            self._sensor.listed_tombstones(self._repository, branch, record, count)

    def retried(self, operation: str) -> None:
        """Note the retry of a write, because the branch changed during it."""
        self._count("staging_write_retries", 1, operation=operation)

    def committed(self, outcome: str, seconds: float) -> None:
        """Note the end of a commit."""
        self._count("staging_commits", 1, outcome=outcome)
        self._observer.event("staging_commit_seconds", sample=seconds, repository=self._repository, outcome=outcome)

    def compacted(self, observer: Observer, branch: str, ended: StagingCompactionReport | CompactlibError,
                  seconds: float, policy: str) -> str:
        """Note the end of a compaction, and return its outcome. A collection counts the freed bytes later."""
        applied, fields = Applied(metarange_id=MetaRangeId("")), dict[str, object]()
        if isinstance(ended, CompactlibError):
            fields["reason"] = str(ended)
            name, outcome, reason = (("lost_race", "skipped", "busy") if isinstance(ended, LostRace)
                                     else ("error", "failed", type(ended).__name__))
        elif ended.applied is None:
            fields["reason"] = ended.why
            name, outcome, reason = "skipped", "skipped", "nothing"
        else:
            name, outcome, reason, applied = "compacted", "done", policy, ended.applied
            fields = {"sealed_before": ended.sealed_before, **attrs.asdict(applied)}
        notify_compaction(observer, "staging", self._repository, outcome, reason, seconds, read=applied.bytes_read,
                          copied=applied.bytes_written)
        observer.event("staging_compaction", repository=self._repository, branch=branch, seconds=seconds, outcome=name,
                       **fields)
        return name
