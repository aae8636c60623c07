# SPDX-License-Identifier: Apache-2.0
"""`CommandLog`: a durable order of commands for one state machine.

The log gives each command an index, a term and a time, and applies it to the state machine, in order and exactly once,
on every node with the log. A state machine that was restored from a snapshot gets the commands after it.
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
    """The header of a command: the only clock and the only identity for a state machine.

    Attributes:
        index: the position in the log, >= 1; ascends, so that it serves as a fencing token.
        term: the leader's term, or the number of times that the log was opened.
        appended_at: the leader's wall clock when it appended the entry, seconds. May go back.
    """

    index: int
    term: int
    appended_at: float


class CommandMachine(Protocol):
    """The state machine of a log, called from one thread at a time."""

    @property
    def applied_index(self) -> int:
        """The index of the last command applied; 0 for none."""

    def apply(self, command: Command, payload: bytes) -> Any:
        """Carry out a command: a function of the state, `command` and `payload` alone, equal on every node.

        Must neither raise nor call the log. If it raises, the log closes itself.
        """


class CommandLog(Protocol):
    """A durable log of commands. Threads may share it after `start`."""

    def start(self, machine: CommandMachine) -> None:
        """Apply the commands after `machine.applied_index` to the machine, and from now on every new command.

        Raises:
            OutOfStep: the log does not have the next commands.
            InvalidInput: the log was started before.
        """

    def decide(self, make: Callable[[Command], bytes | None]) -> Any:
        """Append the command that `make` returns for the state of the machine at the next index.

        A log of one node carries out the command at that index. In a group of nodes its index may be higher, after
        commands of other nodes, so a command includes the state that it is based on.

        Args:
            make: reads the machine and returns the payload, or `None` for no command; called once, in the log's order.

        Returns:
            The result of the machine's `apply` after the command is durable, or `None` without a command. All that
            `make` has read is durable.

        Raises:
            NotLeader: this node takes no commands.
            NoAnswer: the command may or may not be carried out.
            Closed: the log was closed, or closed itself; if it did so in this call, the command may be durable.
            InvalidInput: the payload is too long.
        """

    def compact(self, index: int) -> None:
        """Delete the commands up to `index`, after the machine's state at `index` is durable elsewhere.

        After an error the log is longer than needed, and still correct.

        Raises:
            InvalidInput: `index` is beyond the last durable command.
        """

    @property
    def last_index(self) -> int:
        """The index of the last command; `first_index - 1` in an empty log."""

    @property
    def term(self) -> int:
        """The present term; 0 before `start`."""

    def close(self) -> None:
        """Close the log; closing again does nothing.

        Raises:
            Busy: called from within a command, by the state machine or by `make` of `decide`.
        """


def require_outside_commands(guard: Guard) -> None:
    """Check that the calling thread carries out no command, which it does with the guard's lock held.

    Raises:
        Busy: it carries out a command.
    """
    if is_mine(guard.lock):
        raise Busy(f"{guard.name} is in the middle of a command, and was called from within it by the state machine or "
                   f"by what decides on a command; call it when that has returned")
