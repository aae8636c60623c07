# SPDX-License-Identifier: Apache-2.0
"""`SchedulerMachine`: a scheduler as every host keeps it: restored from a snapshot, then brought on by commands.

A command carries an operation, or the settings of an opening, which hold from there on. So the settings are part of
what is ordered: what was carried out under old ones is never judged again by new ones.
"""

from __future__ import annotations

from collections.abc import Sequence

from compactlib.errors import CorruptData
from compactlib.kv.snapshots import SnapshotStore
from compactlib.scheduler.config import SchedulerConfig
from compactlib.scheduler.model.poll import PollRequest, PollResponse
from compactlib.scheduler.model.update import AlreadyApplied, ApplyResult, Opening, Operation, PlanUpdate
from compactlib.scheduler.model.values import Command
from compactlib.scheduler.persistence.codec import Change, check_operation, decode_message, encode_message
from compactlib.scheduler.persistence.state_rows import decode_state, encode_state, under
from compactlib.scheduler.plan.policy import AssignmentPolicy
from compactlib.scheduler.queue.metadata_index import MetadataIndex
from compactlib.scheduler.queue.state import SchedulerState
from compactlib.scheduler.service.numbers import Event
from compactlib.scheduler.service.service import SchedulerService

SNAPSHOT_FAILED = "scheduler_snapshot_failed"
"""A snapshot was not written, or not surely; it is tried again after an eighth of the commands: `error`."""
LEFTOVERS_STAY = "scheduler_leftovers_stay"
"""A snapshot is in force, and what it replaces could not be removed, from the store or from the log: `error`."""


class SchedulerMachine:
    """A scheduler as a `CommandMachine`: commands are encoded operations, or settings that hold from there on.

    A log calls it from one thread at a time.

    Args:
        config: holds until the log, or a state that is loaded, brings settings.
        with_index: whether a new scheduler has a metadata index, unless an opening says so; one that is loaded has
            what it had.
        policy: which job a poll gives out first, where polls are prepared.

    Attributes:
        service: the scheduler.
        has_settings: whether the settings in force came from the log or a loaded state.
    """

    def __init__(self, config: SchedulerConfig, *, with_index: bool = True,
                 policy: AssignmentPolicy | None = None) -> None:
        self._policy = policy
        self._encoded: tuple[bytes, Operation] | None = None
        self.has_settings: bool = False
        self.service: SchedulerService = self._serve(_new_state(config, with_index=with_index))

    @property
    def applied_index(self) -> int:
        """See `CommandMachine.applied_index`."""
        return self.service.state.applied_index

    @property
    def events(self) -> Sequence[Event]:
        """What the last command made happen, name and fields; for the caller that proposed it."""
        return self.service.events

    def prepare(self, command: Command, request: PollRequest) -> PlanUpdate | PollResponse:
        """What a poll is to change, or its answer if that is nothing; see `SchedulerService.prepare`."""
        update = self.service.prepare(command, request)
        if update.changes_nothing:
            return PollResponse(answers=update.answers, now=update.now, why=update.why)
        return update

    def encode(self, operation: Operation) -> bytes:
        """The operation as a command. The machine remembers the last one, so that `apply` need not read it again.

        Raises:
            InvalidInput: it is none that can be carried out; a log that held it could not be read again.
        """
        check_operation(operation)
        payload = encode_message(operation)
        self._encoded = payload, operation
        return payload

    def apply(self, command: Command, payload: bytes) -> ApplyResult | SchedulerConfig:
        """See `CommandMachine.apply`; for settings, these."""
        encoded = self._encoded
        if encoded is not None and encoded[0] is payload:
            return self.carry_out(command, encoded[1])
        change = decode_message(payload, f"command {command.index}")
        if not isinstance(change, Change):
            raise CorruptData(path=f"command {command.index}", offset=0, expected="an operation or settings",
                              found=type(change).__name__)
        return self.carry_out(command, change)

    def carry_out(self, command: Command, change: Change) -> ApplyResult | SchedulerConfig:
        """Carry out what a command carries. An operation: as `SchedulerService.apply`; settings: O(everything).

        Settings are an opening's. Those that it was opened with before change nothing; others hold from here on.
        """
        self.service.forget_events()
        if isinstance(change, Opening):
            if not self.has_settings:
                self.service = self._serve(_new_state(self.service.config, with_index=change.with_index))
            change = change.config
        if not isinstance(change, SchedulerConfig):
            return self.service.apply(command, change)
        if command.index <= self.applied_index:
            return AlreadyApplied(command.index, self.applied_index)
        state = self.service.state
        if not self.has_settings or change != state.opened_with:
            # The settings that it was opened with before leave alone what was changed by a `Configure` since.
            state = under(state, change)
            state.opened_with = change
            self.service = self._serve(state)
        state.applied = command
        self.has_settings = True
        return state.config

    def dump(self) -> bytes:
        """The whole state and its settings. O(state)."""
        return encode_state(self.service.state)

    def load(self, data: bytes) -> None:
        """Become the state that gave these bytes, under its settings. O(state).

        Raises:
            CorruptData, Unsupported: they are not what `dump` gave, or another release did.
        """
        self.service = self._serve(decode_state(data, "a scheduler's snapshot"))
        self.has_settings = True

    def restore(self, snapshots: SnapshotStore) -> None:
        """Become the state of the snapshot in force, if there is one. O(state).

        Raises:
            CorruptData, Unsupported: it is damaged, or another release wrote it.
            CompactlibError: what the store raises.
        """
        snapshot = snapshots.load()
        if snapshot is None:
            return
        self.load(snapshot.data)
        if self.applied_index != snapshot.index:
            raise CorruptData(path=repr(snapshots), offset=0, expected=f"a state after {snapshot.index}",
                              found=f"a state after {self.applied_index}")

    def _serve(self, state: SchedulerState) -> SchedulerService:
        return SchedulerService(state=state, policy=self._policy)


def _new_state(config: SchedulerConfig, *, with_index: bool) -> SchedulerState:
    return SchedulerState(config, MetadataIndex() if with_index else None)
