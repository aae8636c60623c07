# SPDX-License-Identifier: Apache-2.0
"""The errors of hosting; leaves of the library's exception tree."""

from __future__ import annotations

from compactlib.errors import Busy, Closed, CompactlibError, InvalidInput, Stale


class LogBroken(Closed):
    """The log lost its disk, or the state machine raised, so that the two may differ: neither takes commands any more.

    A command that ended in this error may be in the log or not. Close the log, open it again, and start a state machine
    that was restored anew: it is brought to what is durable.

    Attributes:
        index: the last command that was carried out.
        durable_index: the last command that is surely in the log.
        cause: what happened.
    """

    _may_have_happened = True

    def __init__(self, *, index: int, durable_index: int, cause: str) -> None:
        super().__init__(f"commands up to {index} were carried out, those up to {durable_index} are durable: {cause}; "
                         f"open the log again and start a restored state machine")
        self.index = index
        self.durable_index = durable_index
        self.cause = cause


class OutOfStep(Stale):
    """A state machine and a log do not fit together: the log does not hold the commands that follow. Find the right
    pair.

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
    """A command got no answer in time: it may be carried out, now or later, or never. Look before trying again.

    Attributes:
        waited_seconds: how long was waited.
        reason: what the Raft library said.
    """

    _may_have_happened = True

    def __init__(self, *, waited_seconds: float, reason: str) -> None:
        super().__init__(f"no answer within {waited_seconds} s: {reason}; the command may be carried out or not, look "
                         f"before trying again")
        self.waited_seconds = waited_seconds
        self.reason = reason


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
