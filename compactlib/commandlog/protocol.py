# SPDX-License-Identifier: Apache-2.0
"""`CommandLog`: a durable order of commands for one state machine.

The log gives each command its place, its term and its time, and hands it to the state machine, in order and exactly
once, on every node that has the log. A state machine that is restored from a snapshot gets what came after it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import attrs

from compactlib.errors import Busy
from compactlib.guard import Guard, is_mine

MAX_PAYLOAD_BYTES = 64 << 20
"""The longest command."""


@attrs.frozen
class Command:
    """One entry of a log: the only clock and the only identity that a state machine knows.

    Attributes:
        index: its place in the log, >= 1; grows with every command, so that it serves as a fencing token.
        term: the leader's term, or how often the log was opened.
        appended_at: the leader's wall clock when it appended the entry, seconds. May go back.
    """

    index: int
    term: int
    appended_at: float


class CommandMachine(Protocol):
    """What a log drives. The log calls it from one thread at a time."""

    @property
    def applied_index(self) -> int:
        """The index of the last command that changed it; 0 if none did."""

    def apply(self, command: Command, payload: bytes) -> Any:
        """Carry out a command: a function of the state, `command` and `payload` alone, the same on every node.

        Must not raise, nor call the log. If it raises, the log closes itself.
        """


class CommandLog(Protocol):
    """A durable order of commands. Any thread may call any method, once it is started."""

    def start(self, machine: CommandMachine) -> None:
        """Hand the machine what the log holds beyond `machine.applied_index`, and whatever is proposed from now on.

        Raises:
            OutOfStep: the log does not hold the commands that come next.
            InvalidInput: it was started before.
        """

    def propose(self, payload: bytes) -> Any:
        """Have a command carried out; returns what the machine's `apply` returned, once the command is durable.

        Raises:
            NotLeader: this node takes no commands.
            NoAnswer: whether it will be carried out is not known.
            Closed: the log was closed, or closed itself; in that call, whether the command is durable is not known.
            InvalidInput: the payload is too long.
        """

    def decide(self, make: Callable[[Command], bytes | None]) -> Any:
        """Propose what `make` returns: it sees the machine as it is at a place in the log, which it is given.

        A log of one node carries out the command at that very place. In a group of nodes its place comes later and
        commands of others may lie between, which is why a command says what it is based on.

        Args:
            make: reads the machine and returns the payload, or `None` for no command; called once, in the log's order.

        Returns:
            What `propose` would, or `None` if there was no command. Either way, everything that `make` saw is durable.
        """

    def compact(self, index: int) -> None:
        """Forget the commands up to `index`: the machine's state after it is durable elsewhere.

        What it raises leaves the log longer, and nothing else.

        Raises:
            InvalidInput: `index` lies beyond what is durable in the log.
        """

    @property
    def last_index(self) -> int:
        """The index of the last command; below the first one if there was none."""

    @property
    def term(self) -> int:
        """The present term; 0 before `start`."""

    def close(self) -> None:
        """Let the log go; closing again does nothing.

        Raises:
            Busy: called from within a command: by the state machine, or by what decides.
        """


def require_outside_commands(guard: Guard) -> None:
    """Return unless the calling thread carries out a command, which a log does with its guard's lock held.

    Raises:
        Busy: it does.
    """
    if is_mine(guard.lock):
        raise Busy(f"{guard.name} is in the middle of a command, and was called from within it by the state machine or "
                   f"by what decides on a command; call it when that has returned")
