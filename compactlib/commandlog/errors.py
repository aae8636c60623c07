# SPDX-License-Identifier: Apache-2.0
"""The errors of command logs; leaves of the library's exception tree."""

from __future__ import annotations

from compactlib.errors import Busy, CompactlibError, InvalidInput, Stale


class OutOfStep(Stale):
    """A state machine and a log do not fit together: the log does not hold the commands that follow.

    Attributes:
        applied_index: where the state machine stands.
        first_index: the first command that the log still holds.
        last_index: the last one.
    """

    def __init__(self, *, applied_index: int, first_index: int, last_index: int) -> None:
        super().__init__(f"the state machine stands at command {applied_index}, the log holds {first_index} to "
                         f"{last_index}; restore a snapshot that the log continues, or open the log it belongs to")
        self.applied_index = applied_index
        self.first_index = first_index
        self.last_index = last_index


class NotStarted(InvalidInput):
    """A command was given to a log that has no state machine yet. Call `start` first, once."""


class TakenOver(Stale):
    """Another process, or another object in this one, has opened the log since; this one carries nothing out any more.

    Attributes:
        place: where the log is.
        term: of the owner that was replaced.
        first_index: where the log of the present owner begins.
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
    """This node does not lead the group, so it takes no commands. Ask the leader, or wait until there is one.

    Attributes:
        leader: the leader's address; `""` if none is known.
    """

    def __init__(self, *, leader: str) -> None:
        super().__init__(f"this node is not the leader; ask {leader}" if leader else
                         "this node is not the leader, and none is known; wait and try again")
        self.leader = leader


class NoAnswer(CompactlibError):
    """A command got no answer in time: it may be carried out, now or later, or never. Find out before trying again.

    Attributes:
        waited_seconds: how long the caller waited.
        reason: what the other side, or the Raft library, said.
    """

    def __init__(self, *, waited_seconds: float, reason: str) -> None:
        super().__init__(f"no answer within {waited_seconds} s: {reason}; the command may be carried out or not, find "
                         f"out before trying again")
        self.waited_seconds = waited_seconds
        self.reason = reason
