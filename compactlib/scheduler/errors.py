# SPDX-License-Identifier: Apache-2.0
"""The errors of the scheduler; leaves of the library's exception tree."""

from __future__ import annotations

from compactlib.errors import CompactlibError, InvalidInput, Rejected, Stale


class BadConfig(InvalidInput):
    """A setting of `SchedulerConfig` is out of its range. Correct it."""


class PollAgain(Stale):
    """The group changed its leader while a poll was prepared, so nothing was changed. Poll again.

    Attributes:
        prepared: the term in which it was prepared.
        found: the term in which it was to be carried out.
    """

    def __init__(self, *, prepared: int, found: int) -> None:
        super().__init__(f"the poll was prepared in term {prepared}, and came to be carried out in term {found}; "
                         f"nothing was changed, poll again")
        self.prepared = prepared
        self.found = found


class TurnedAway(Rejected):
    """The scheduler does not know who asks. Give the client the token that the application has."""


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
