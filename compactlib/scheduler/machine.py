# SPDX-License-Identifier: Apache-2.0
"""`SchedulerMachine`: a scheduler as a state machine: commands in, results out. It asks for no time and does no I/O.

`Scheduler` drives one over a log. A simulation drives one by itself, with `poll` and `carry_out`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs

from compactlib.codec import FieldError
from compactlib.commandlog.protocol import Command
from compactlib.errors import InvalidInput
from compactlib.report import Table
from compactlib.scheduler.apply import Event, apply
from compactlib.scheduler.config import SchedulerConfig
from compactlib.scheduler.errors import JobNotFound
from compactlib.scheduler.policy import AssignmentPolicy
from compactlib.scheduler.prepare import prepare
from compactlib.scheduler.state import SchedulerState
from compactlib.scheduler.update import OPERATIONS, Applied, ApplyResult, Operation, PlanUpdate
from compactlib.scheduler.values import JobPhase, JobPlan, JobState, PollRequest, PollResponse, QuarantinedJob


class SchedulerMachine:
    """The scheduler's state, and what a command makes of it. A `CommandMachine`; one thread at a time.

    Args:
        config: of a scheduler that begins; the same on every replica.
        policy: which job a poll gives out first; asked where polls are prepared, and may differ between replicas and
            from one time to the next. Default `ByPriority`.

    Attributes:
        state: for reading.
        policy: as given.
        events: what the last command made happen, name and fields.
    """

    def __init__(self, config: SchedulerConfig | None = None, *, policy: AssignmentPolicy | None = None) -> None:
        self.state: SchedulerState = SchedulerState(SchedulerConfig() if config is None else config)
        self.policy: AssignmentPolicy | None = policy
        self.events: Sequence[Event] = ()
        self._encoded: tuple[bytes, Operation] | None = None

    @property
    def config(self) -> SchedulerConfig:
        """The settings in force."""
        return self.state.config

    @property
    def applied_index(self) -> int:
        return self.state.applied_index

    # --------------------------------------------------------------------------------------------------- changes

    def prepare(self, command: Command, request: PollRequest) -> PlanUpdate:
        """Return what a poll is to change; changes nothing. See `compactlib.scheduler.prepare`.

        Raises:
            InvalidInput: the request or the policy's choice is out of range.
        """
        return prepare(self.state, command, request, self.policy)

    def carry_out(self, command: Command, operation: Operation) -> ApplyResult:
        """Carry out an operation: the only way to change the state.

        The result depends on state, command and operation alone. A command that was applied already changes nothing,
        and neither does an update that was prepared in another term.
        """
        self.state, result, self.events = apply(self.state, command, operation)
        return result

    def poll(self, command: Command, request: PollRequest) -> PollResponse:
        """Prepare a poll and carry it out as one command."""
        result = self.carry_out(command, self.prepare(command, request))
        assert isinstance(result, Applied), f"command {command.index} is not above {self.applied_index}"
        return result.response

    def encode(self, operation: Operation) -> bytes:
        """Return the operation as the bytes of a command. `apply` need not decode the last one that was encoded.

        Raises:
            InvalidInput: it holds what cannot be stored; a log that had it could not be read again.
        """
        try:
            payload = OPERATIONS.encode(operation)
        except (FieldError, OverflowError, ValueError) as error:
            what = "this is no request" if isinstance(operation, PlanUpdate) else "this is no operation"
            raise InvalidInput(f"{what}: {error}; nothing was changed") from error
        self._encoded = payload, operation
        return payload

    def apply(self, command: Command, payload: bytes) -> ApplyResult:
        encoded, self._encoded = self._encoded, None
        if encoded is not None and encoded[0] is payload:
            return self.carry_out(command, encoded[1])
        return self.carry_out(command, OPERATIONS.decode(payload, f"command {command.index}"))

    # ----------------------------------------------------------------------------------------------- stored form

    def dump(self) -> bytes:
        """Return the whole state and its settings. O(state)."""
        return self.state.encode()

    def load(self, data: bytes) -> None:
        """Become the state that gave these bytes, under its settings. O(state).

        Raises:
            CorruptData, Unsupported: they are not what `dump` gave, or another release did.
        """
        self.state = SchedulerState.decode(data, "a scheduler's snapshot")

    # ----------------------------------------------------------------------------------------------------- views

    def jobs(self, now: float) -> Iterator[tuple[JobPhase, JobState]]:
        """Return all queued jobs by priority, each with its phase at a time. O(n log n)."""
        queue = self.state.jobs
        return ((queue.phase(state, now), state) for state in queue.in_order())

    def job(self, name: str) -> tuple[JobState, JobPlan]:
        """Return one queued job.

        Raises:
            JobNotFound: there is none of this name.
        """
        job = self.state.jobs.get(name)
        if job is None:
            raise JobNotFound(name=name)
        return job.state, job.plan

    def quarantine(self) -> tuple[QuarantinedJob, ...]:
        """Return the jobs that were given up, the oldest first; the operation `Requeue` tries them again."""
        return tuple(self.state.quarantine.values())

    def table(self, now: float) -> Table:
        """Return the queued jobs by priority, for people."""
        rows = [{"job": state.name, "level": state.compaction_level, "phase": phase.value, "failures": state.failures,
                 "token": state.token, "age": now - state.added_at,
                 "lease ends in": state.lease_expires_at - now if state.lease_expires_at else None,
                 "last failure": state.last_failure} for phase, state in self.jobs(now)]
        return Table.from_dicts(rows, title=f"{len(rows):,} jobs")

    def stats(self, now: float) -> list[dict[str, int]]:
        """Return one row a level: blocks that wait, jobs by phase, and what happened since the start.

        O(levels + expired and failed jobs).
        """
        state = self.state
        waiting = {number: level.blocks for number, level in enumerate(state.blocks.levels)}
        phases = state.jobs.phases(now)
        rows = []
        for number in sorted({*waiting, *phases}):
            level = state.jobs.levels.get(number)
            rows.append({"level": number, "waiting blocks": waiting.get(number, 0),
                         **{phase.value: phases[number][phase] if level else 0 for phase in JobPhase},
                         **(attrs.asdict(level.counts) if level else {})})
        return rows

    def audit(self) -> None:
        """Check the whole state. O(everything).

        Raises:
            AuditFailed: something is wrong; the message has the numbers.
        """
        self.state.audit()

    def __repr__(self) -> str:
        return f"SchedulerMachine({self.state!r})"
