# SPDX-License-Identifier: Apache-2.0
"""`SchedulerMachine`: a scheduler as a state machine, without a clock and without I/O.

`Scheduler` runs it over a log. A simulation calls `poll` and `carry_out` directly.
"""

from __future__ import annotations

from collections.abc import Sequence

from compactlib.codec import FieldError
from compactlib.commandlog.protocol import Command
from compactlib.errors import InvalidInput
from compactlib.scheduler.apply import Event, apply
from compactlib.scheduler.config import SchedulerConfig
from compactlib.scheduler.policy import AssignmentPolicy
from compactlib.scheduler.prepare import prepare
from compactlib.scheduler.state import SchedulerState
from compactlib.scheduler.update import OPERATIONS, ApplyResult, Operation, PlanUpdate
from compactlib.scheduler.values import PollRequest, PollResponse


class SchedulerMachine(SchedulerState):
    """The scheduler's state and its commands. A `CommandMachine`; for one thread at a time.

    Args:
        config: the settings of a new scheduler; the same on every replica.
        policy: orders the jobs of a poll. Only the leader calls it, so it may differ between replicas, and change.
            Default `ByPriority`.

    Attributes:
        policy: the policy, as given.
        events: the events of the last command, name and fields.
    """

    def __init__(self, config: SchedulerConfig | None = None, *, policy: AssignmentPolicy | None = None) -> None:
        super().__init__(SchedulerConfig() if config is None else config)
        self.policy: AssignmentPolicy | None = policy
        self.events: Sequence[Event] = ()
        self._encoded: tuple[bytes, Operation] | None = None

    def prepare(self, command: Command, request: PollRequest) -> tuple[PlanUpdate, PollResponse]:
        """Return the update of a poll, and the answer to a poll without changes; changes nothing.

        Raises:
            InvalidInput: the request or the policy's choice is out of range.
        """
        return prepare(self, command, request, self.policy)

    def carry_out(self, command: Command, operation: Operation) -> ApplyResult:
        """Carry out an operation, which is the only way to change the state.

        The result depends on state, command and operation alone. An update of another term changes nothing.
        """
        result, self.events = apply(self, command, operation)
        return result

    def poll(self, command: Command, request: PollRequest) -> PollResponse:
        """Prepare a poll and carry it out as one command."""
        result = self.carry_out(command, self.prepare(command, request)[0])
        assert isinstance(result, PollResponse), "it was prepared in this term"
        return result

    def encode(self, operation: Operation) -> bytes:
        """Return the operation as the bytes of a command. `apply` does not decode the last encoded command.

        Raises:
            InvalidInput: a value cannot be stored, so that the log could not be read again.
        """
        try:
            payload = OPERATIONS.encode(operation)
        except (FieldError, OverflowError, ValueError) as error:
            what = "this is no request" if isinstance(operation, PlanUpdate) else "this is no operation"
            raise InvalidInput(f"{what}: {error}; nothing was changed") from error
        self._encoded = payload, operation
        return payload

    def apply(self, command: Command, payload: bytes) -> tuple[ApplyResult, Sequence[Event]]:
        """See `CommandMachine.apply`; returns the result and the events."""
        encoded, self._encoded = self._encoded, None
        operation = (encoded[1] if encoded is not None and encoded[0] is payload
                     else OPERATIONS.decode(payload, f"command {command.index}"))
        return self.carry_out(command, operation), self.events
