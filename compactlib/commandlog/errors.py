# SPDX-License-Identifier: Apache-2.0
"""The errors of command logs; leaves of the library's exception tree."""

from __future__ import annotations

from compactlib.errors import Busy, CompactlibError, InvalidInput, Stale


class OutOfStep(Stale):
    """The log does not have the commands that follow the state of the machine."""

    def __init__(self, *, applied_index: int, first_index: int, last_index: int) -> None:
        super().__init__(f"the state machine stands at command {applied_index}, the log holds {first_index} to "
                         f"{last_index}; restore a snapshot that the log continues, or open the log it belongs to")


class NotStarted(InvalidInput):
    """The log has no state machine yet. Call `start` first, once."""


class TakenOver(Stale):
    """Another process, or another object of this process, has opened the log; this object carries out nothing more.

    Attributes:
        place: the place of the log.
        term: the term of the replaced owner.
        first_index: the first index of the present owner's log.
    """

    def __init__(self, *, place: str, term: int, first_index: int = 0) -> None:
        super().__init__(
            f"{place} was opened again since (this owner had term {term}); one object at a time may run on it. Keep it "
            f"open in one process, and let the others reach that one, workers over HTTP for example; or give each a "
            f"partition of its own. Do not open it here again while the other one runs: that only turns the two around")
        self.place = place
        self.term = term
        self.first_index = first_index


class NotLeader(Busy):
    """This node is not the leader, and takes no commands. Call the leader, or wait until there is one.

    Attributes:
        leader: the leader's address; `""` if unknown.
    """

    def __init__(self, *, leader: str) -> None:
        super().__init__(f"this node is not the leader; call {leader}" if leader else
                         "this node is not the leader, and no leader is known; wait and retry")
        self.leader = leader


class NoAnswer(CompactlibError):
    """A command got no answer in time: it may be carried out, now, later or never. Check the state before a retry."""

    def __init__(self, *, waited_seconds: float, reason: str) -> None:
        super().__init__(f"no answer within {waited_seconds} s: {reason}; the command may be carried out or not, find "
                         f"out before trying again")
