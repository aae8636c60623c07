# SPDX-License-Identifier: Apache-2.0
"""The errors of the scheduler; leaves of the library's exception tree."""

from __future__ import annotations

from compactlib.errors import CompactlibError, Rejected, Stale


class PollAgain(Stale):
    """The leader changed between the two phases of a poll, so nothing was changed. Poll again.

    Attributes:
        prepared: the term of the first phase.
        found: the term of the second phase.
    """

    def __init__(self, *, prepared: int, found: int) -> None:
        super().__init__(f"the poll was prepared in term {prepared}, and came to be carried out in term {found}; "
                         f"nothing was changed, poll again")
        self.prepared = prepared
        self.found = found


class TurnedAway(Rejected):
    """The scheduler does not know the client's token. Give the client a token of the application."""


class JobLost(Stale):
    """Raised by the checks in a worker's job: the run has to end, and its outcome is dropped. Do not catch it.

    Attributes:
        name: the job's name.
        reason: the job went to another worker, or the worker stops.
    """

    def __init__(self, *, name: str, reason: str) -> None:
        super().__init__(f"stop working on {name!r}: {reason}")
        self.name = name
        self.reason = reason


class ReleaseJob(CompactlibError):
    """Raise it in a worker's job to release the job to another worker, without a failure."""
