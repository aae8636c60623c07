# SPDX-License-Identifier: Apache-2.0
"""`StagingEvents`: callbacks for what happens on branches, above all for the sensor of compactions."""

from __future__ import annotations

import logging
from collections.abc import Callable

from compactlib.staging.record import BranchRecord

_LOGGER = logging.getLogger("compactlib.observers")


class StagingEvents:
    """Called for what happens on branches; every method does nothing until it is overridden.

    Methods are called from the threads that read and write, after the fact, and outside of locks. They must not block.
    What one raises is kept and logged (logger `compactlib.observers`), and breaks no read and no write.
    """

    def record_seen(self, branch: str, record: BranchRecord) -> None:
        """A read or a write came across this state of the branch."""

    def record_written(self, branch: str, record: BranchRecord) -> None:
        """This process wrote this state of the branch: a seal, say, on the way to another state."""

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

    def compacted(self, branch: str, record: BranchRecord) -> None:
        """A compaction of this process left this state."""

    def branch_deleted(self, branch: str) -> None:
        """The branch is gone: it was deleted, or was not found."""


class TellingEvents(StagingEvents):
    """Passes everything on, and keeps what that raises; logs the first failure, the second, the fourth, and so on.

    Attributes:
        failures: how often it raised.
        last_error: what it raised last.
    """

    def __init__(self, events: StagingEvents) -> None:
        self._events = events
        self.failures: int = 0
        self.last_error: Exception | None = None

    def record_seen(self, branch: str, record: BranchRecord) -> None:
        """Passed on."""
        try:
            self._events.record_seen(branch, record)  # Called with every read.
        except Exception as error:
            self._note(error)

    def record_written(self, branch: str, record: BranchRecord) -> None:
        """Passed on."""
        self._tell(self._events.record_written, branch, record)

    def tombstones_written(self, branch: str, record: BranchRecord, count: int) -> None:
        """Passed on."""
        self._tell(self._events.tombstones_written, branch, record, count)

    def tombstones_listed(self, branch: str, record: BranchRecord, count: int) -> None:
        """Passed on."""
        self._tell(self._events.tombstones_listed, branch, record, count)

    def write_retried(self, branch: str, operation: str) -> None:
        """Passed on."""
        self._tell(self._events.write_retried, branch, operation)

    def committed(self, branch: str, record: BranchRecord) -> None:
        """Passed on."""
        self._tell(self._events.committed, branch, record)

    def reset(self, branch: str, record: BranchRecord) -> None:
        """Passed on."""
        self._tell(self._events.reset, branch, record)

    def compacted(self, branch: str, record: BranchRecord) -> None:
        """Passed on."""
        self._tell(self._events.compacted, branch, record)

    def branch_deleted(self, branch: str) -> None:
        """Passed on."""
        self._tell(self._events.branch_deleted, branch)

    def _tell(self, method: Callable[..., object], *arguments: object) -> None:
        try:
            method(*arguments)
        except Exception as error:
            self._note(error)

    def _note(self, error: Exception) -> None:
        self.failures += 1
        self.last_error = error
        if self.failures & (self.failures - 1) == 0:
            _LOGGER.warning("%r raised %r (failure %d); reads and writes go on", self._events, error, self.failures,
                            exc_info=error)


def telling_events(events: StagingEvents) -> StagingEvents:
    """`events` as the library calls them, whatever they raise."""
    return events if type(events) is StagingEvents or isinstance(events, TellingEvents) else TellingEvents(events)
