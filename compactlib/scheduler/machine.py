# SPDX-License-Identifier: Apache-2.0
"""`SchedulerMachine`: a scheduler as a state machine: commands in, results out. It asks for no time and does no I/O.

`Scheduler` drives one over a log. A simulation drives one by itself, with `poll` and `carry_out`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from compactlib.codec import FieldError
from compactlib.commandlog.protocol import Command
from compactlib.errors import InvalidInput
from compactlib.report import Table
from compactlib.scheduler.apply import Event, apply
from compactlib.scheduler.config import SchedulerConfig
from compactlib.scheduler.job_queue import Job
from compactlib.scheduler.policy import AssignmentPolicy
from compactlib.scheduler.prepare import prepare
from compactlib.scheduler.state import SchedulerState
from compactlib.scheduler.update import OPERATIONS, ApplyResult, Operation, PlanUpdate
from compactlib.scheduler.values import JobPhase, PollRequest, PollResponse, QuarantinedJob


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

    def prepare(self, command: Command, request: PollRequest) -> tuple[PlanUpdate, PollResponse]:
        """Return what a poll is to change, and its answer if that is nothing; changes nothing.

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
        result = self.carry_out(command, self.prepare(command, request)[0])
        assert isinstance(result, PollResponse), f"command {command.index} is not above {self.applied_index}"
        return result

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

    def apply(self, command: Command, payload: bytes) -> tuple[ApplyResult, Sequence[Event]]:
        """See `CommandMachine.apply`; returns the result, and what happened."""
        encoded, self._encoded = self._encoded, None
        operation = (encoded[1] if encoded is not None and encoded[0] is payload
                     else OPERATIONS.decode(payload, f"command {command.index}"))
        return self.carry_out(command, operation), self.events

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

    def jobs(self, now: float) -> Iterator[tuple[JobPhase, Job]]:
        """Return all queued jobs by priority, each with its phase at a time. O(n log n)."""
        queue = self.state.jobs
        return ((queue.phase(job, now), job) for job in queue.in_order())

    def quarantine(self) -> tuple[QuarantinedJob, ...]:
        """Return the jobs that were given up, the oldest first; the operation `Requeue` tries them again."""
        return tuple(self.state.quarantine.values())

    def table(self, now: float) -> Table:
        """Return the queued jobs by priority, for people."""
        rows = [{"job": job.name, "level": job.plan.compaction_level, "phase": phase.value, "failures": job.failures,
                 "token": job.token, "age": now - job.added_at,
                 "lease ends in": job.lease_expires_at - now if job.lease_expires_at else None,
                 "last failure": job.last_failure} for phase, job in self.jobs(now)]
        return Table.from_dicts(rows, title=f"{len(rows):,} jobs")

    def stats(self, now: float) -> list[dict[str, int]]:
        """Return one row a level: blocks that wait, and jobs by phase. O(jobs)."""
        jobs, levels = self.state.jobs, self.state.blocks.levels
        found = Counter((job.plan.compaction_level, jobs.phase(job, now)) for job in jobs)
        numbers = sorted({*range(len(levels)), *(number for number, _ in found)})
        return [{"level": number, "waiting blocks": levels[number].blocks if number < len(levels) else 0,
                 **{phase.value: found[number, phase] for phase in JobPhase}} for number in numbers]

    def audit(self) -> None:
        """Check the whole state. O(everything).

        Raises:
            AuditFailed: something is wrong; the message has the numbers.
        """
        self.state.audit()

    def __repr__(self) -> str:
        return f"SchedulerMachine({self.state!r})"
