# SPDX-License-Identifier: Apache-2.0
"""`LogElection`: the leader of a replicated log becomes the coordinator of the catalog.

A Raft library's term is hard to come by, and belongs to one node for sure only inside of it. So the leader claims in
the log itself that it coordinates: the claim's index is the term, the same on every node, one node's alone, ascending.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Protocol

from compactlib.catalog.log.replicated import Claim, decode_command, encode_command, is_command
from compactlib.catalog.model.timestamp import milliseconds
from compactlib.catalog.service.lease_election import ElectionListener
from compactlib.clock import Clock
from compactlib.commandlog import Command
from compactlib.errors import Closed, CompactlibError, InvalidInput
from compactlib.outcome import Done, Failed, Outcome, Skipped
from compactlib.runtime.observe import Observer
from compactlib.runtime.services.service_face import ServiceFace
from compactlib.runtime.services.work_service import Job, WorkService

_LOOK = "look"


class LeaderLog(Protocol):
    """What is asked of the log."""

    @property
    def is_leader(self) -> bool:
        """Whether this node takes commands, as far as it knows."""

    def propose(self, payload: bytes) -> object:
        """Have a command carried out; see `CommandLog.propose`."""


class LogElection(ServiceFace):
    """A `Service` that claims the coordination in a log that this node leads, and tells its listener of the last claim.

    The log's state machine hands each command to `applied`, on every node, keeps `elected` in its snapshots, and gives
    it back to `restored` when it becomes one.

    Args:
        log: of the group whose leader is to coordinate.
        node: this node's name.
        listener: told of each claim that is applied, and again after each look: `CompactionService.elected`, whether it
            was started yet or is stopped by then.
        every_seconds: how often to look whether this node leads, > 0.
        observer: notified of claims that fail (`catalog_election_failed`); they are tried again.
        clock: for when a look is due.

    Raises:
        InvalidInput: the time is not above 0, or the name is empty.
    """

    def __init__(self, log: LeaderLog, node: str, listener: ElectionListener, *, every_seconds: float = 1.0,
                 observer: Observer | None = None, clock: Clock | None = None) -> None:
        if not milliseconds(every_seconds, name="every_seconds"):
            raise InvalidInput(f"every_seconds is {every_seconds}; give more than 0")
        self._claim = encode_command(Claim(node))
        self._log = log
        self._node = node
        self._listener = listener
        self._elected: tuple[int, str] | None = None
        self._has_claimed = False
        self._service = WorkService(f"the election on {node}", event="catalog_election_failed", clock=clock,
                                    observer=observer, retry_seconds=every_seconds, max_retry_seconds=every_seconds)
        self._service.add(_LOOK, self._look, every_seconds=every_seconds)

    @property
    def elected(self) -> tuple[int, str] | None:
        """The term and the name of the last claim; `None` before the first."""
        return self._elected

    def nudge(self) -> None:
        """Look now, because the leader has changed, for instance."""
        self._service.request(_LOOK)

    def applied(self, command: Command, payload: bytes) -> bool:
        """A command of the log was applied here: whether it was a claim. Never raises; for state machines.

        A claim that is damaged or of a later release elects no node.
        """
        if not is_command(payload):
            return False
        try:
            claim = decode_command(payload)
        except CompactlibError as error:
            self._service.note(error)
            return False
        if not isinstance(claim, Claim):
            return False
        self.restored((command.index, claim.node))
        return True

    def restored(self, elected: tuple[int, str] | None) -> None:
        """The log's state machine has become a snapshot, in which `elected` was this. Never raises."""
        self._elected = elected
        self._tell()

    def _tell(self) -> None:
        elected = self._elected
        if elected is not None:
            try:
                with suppress(Closed):
                    self._listener(*elected)
            except Exception as error:
                self._service.note(error)

    def _look(self, job: Job) -> Outcome[tuple[int, str] | None]:
        self._tell()
        if not self._log.is_leader:
            return Skipped("another node leads the log, or none")
        if self._has_claimed and self._elected is not None and self._elected[1] == self._node:
            return Skipped(f"{self._node} coordinates, in term {self._elected[0]}")
        try:
            self._log.propose(self._claim)
        except CompactlibError as error:
            return Failed(error)
        self._has_claimed = True
        return Done(self._elected)

    def __repr__(self) -> str:
        return f"LogElection({self._node!r}, {self._elected}, {self._service!r})"
