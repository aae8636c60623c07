# SPDX-License-Identifier: Apache-2.0
"""The errors of the scheduler; leaves of the library's exception tree."""

from __future__ import annotations

from compactlib.errors import CompactlibError, Conflict, InvalidInput, NotFound, Stale


class BadConfig(InvalidInput):
    """A setting of `SchedulerConfig` is out of its range. Correct it."""


class JobNotFound(NotFound):
    """There is no such job in the queue or in quarantine.

    Attributes:
        name: the job.
    """

    def __init__(self, *, name: str) -> None:
        super().__init__(f"there is no job {name!r}; list what there is with jobs() and quarantine()")
        self.name = name


class JournalConflict(Conflict):
    """Another process wrote this journal entry: only one may run a scheduler on one store. Load it anew.

    Attributes:
        index: the log index of the entry.
    """

    def __init__(self, *, index: int) -> None:
        super().__init__(f"journal entry {index} was written by another process; load the scheduler again to go on")
        self.index = index


class CommandOutOfOrder(InvalidInput):
    """A command's index is not above the last one that the journal holds. Give each command the next index.

    Attributes:
        index: the index given.
        applied: the last one.
    """

    def __init__(self, *, index: int, applied: int) -> None:
        super().__init__(f"command {index} comes after {applied}; indexes must grow with every command")
        self.index = index
        self.applied = applied


class JobLost(Stale):
    """Raised in a worker's job, by its own checks: the work has to end. Let it through; its outcome is thrown away.

    Attributes:
        name: the job.
        reason: why: it went to another worker, or the worker shuts down.
    """

    def __init__(self, *, name: str, reason: str) -> None:
        super().__init__(f"stop working on {name!r}: {reason}")
        self.name = name
        self.reason = reason


class ReleaseJob(CompactlibError):
    """Raise it in a worker's job to give the job back: another worker should do it, and it counts as no failure."""
