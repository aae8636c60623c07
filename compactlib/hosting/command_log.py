# SPDX-License-Identifier: Apache-2.0
"""`CommandLog`: a durable order of commands for one state machine, so that hosts can bring their own Raft.

The log gives each command its place, its term and its time, and hands it to the state machine, in order and exactly
once, on every node that has the log. A state machine that is restored from a snapshot gets what came after it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from compactlib.outcome import Done, Failed, Skipped
from compactlib.scheduler.model.values import Command


class CommandMachine(Protocol):
    """What a log drives. The log calls it from one thread at a time."""

    @property
    def applied_index(self) -> int:
        """The index of the last command that changed it; 0 if none did."""

    def apply(self, command: Command, payload: bytes) -> Any:
        """Carry out a command: a function of the state, `command` and `payload` alone, the same on every node.

        Must not raise, nor call the log.
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
            LogBroken, NoAnswer: whether it will be carried out is not known.
            InvalidInput: the payload is too large.
        """

    def decide(self, make: Callable[[Command], bytes | None]) -> Any:
        """Propose what `make` finds right: it sees the machine as it is at a place in the log, which it is given.

        A log of one node carries out the command at that very place. In a group of nodes its place comes later and
        commands of others may lie between, which is why a command says what it is based on.

        Args:
            make: looks at the machine and gives the payload, or `None` for no command; called once, in the log's order.

        Returns:
            What `propose` would, or `None` if there was no command. Either way, everything that `make` saw is durable.

        Raises:
            ClockJumped: the clock is off by more than its bound; no command was proposed. With none it is not raised.
        """

    def compact(self, index: int) -> Done[Any] | Skipped | Failed:
        """The machine's state after command `index` is durable elsewhere: forget what led there.

        Returns:
            The outcome; where there was nothing to free, or it failed, the log is merely longer.

        Raises:
            InvalidInput: `index` lies beyond what is durable in the log.
        """

    @property
    def last_index(self) -> int:
        """The index of the last command; 0 if there was none."""

    def close(self) -> None:
        """Let the log go; closing again does nothing.

        Raises:
            Busy: called from within a command: by the state machine, or by what decides.
        """
