# SPDX-License-Identifier: Apache-2.0
"""`SchedulerService`: the two phases of a poll, and everything else a host asks a scheduler to do.

A host with a replicated log lets its leader `prepare` a poll, replicates the update that comes out, and lets every
replica `apply` it; the leader's answer goes to the worker. A host with a single node calls `poll`. Either way the
service never asks for the time: a command's index and time are all it uses. Workers are trusted.

Not safe for several threads at once: a log has one order, and so does what is applied.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import attrs

from compactlib.report import Table
from compactlib.runtime.observe import Observer, telling
from compactlib.scheduler.apply.apply import carry_out, carry_out_at_once
from compactlib.scheduler.apply.effects import Effects
from compactlib.scheduler.config import Limits, SchedulerConfig
from compactlib.scheduler.errors import JobNotFound
from compactlib.scheduler.model.poll import PollRequest, PollResponse
from compactlib.scheduler.model.update import AlreadyApplied, Applied, ApplyResult, Operation, PlanUpdate, TermChanged
from compactlib.scheduler.model.values import Command, JobPhase, JobPlan, JobState, check_command
from compactlib.scheduler.persistence.codec import check_operation
from compactlib.scheduler.plan.policies.by_priority import ByPriority
from compactlib.scheduler.plan.policy import AssignmentPolicy
from compactlib.scheduler.plan.prepare import decide, prepare
from compactlib.scheduler.queue.metadata_index import MetadataIndex
from compactlib.scheduler.queue.state import QuarantinedJob, SchedulerState
from compactlib.scheduler.service.numbers import Event, tell_events


class SchedulerService:
    """Hands compaction jobs to workers, fenced by the log's index.

    Args:
        config: the same on every replica.
        index: the metadata index; a new one by default. `None` if the host keeps track of its blocks itself.
        policy: which job a poll gives out first; asked where polls are prepared, and may differ between replicas and
            from one time to the next.
        observer: notified of what happens as operations are applied.
        state: a state that was loaded; `config` and `index` are then its own.

    Raises:
        InvalidInput: the policy is none.

    Attributes:
        state: the replicated state; for reading.
        policy: as given.
    """

    def __init__(self, config: SchedulerConfig | None = None, *,
                 index: MetadataIndex | Literal["default"] | None = "default",
                 policy: AssignmentPolicy | None = None, observer: Observer | None = None,
                 state: SchedulerState | None = None) -> None:
        if state is None:
            state = SchedulerState(config or SchedulerConfig(), MetadataIndex() if index == "default" else index)
        self.state: SchedulerState = state
        self.policy: AssignmentPolicy = ByPriority() if policy is None else policy
        self._observer = telling(observer)
        self._is_deaf = type(self._observer) is Observer
        self._events: Sequence[Event] = ()
        self._effects: Effects | None = None

    @property
    def events(self) -> Sequence[Event]:
        """What the last command made happen, name and fields."""
        if self._effects is not None:
            self._events, self._effects = self._effects.told(), None
        return self._events

    def forget_events(self) -> None:
        """A command begins that makes nothing happen."""
        self._events, self._effects = (), None

    @property
    def config(self) -> SchedulerConfig:
        """The settings."""
        return self.state.config

    # --------------------------------------------------------------------------------------------------- changes

    def prepare(self, command: Command, request: PollRequest) -> PlanUpdate:
        """What a poll is to change; changes nothing. The command's index is the token of what it assigns.

        O(updates + log n for each assignment and new job), whatever the length of the queues.

        Raises:
            InvalidInput: the capacity is negative, or there are too many updates.
            CommandOutOfOrder: the command's index is not above that of the last one applied.
        """
        return prepare(self.state, command, request, self.policy)

    def apply(self, command: Command, operation: Operation) -> ApplyResult:
        """Carry out an operation: the only way to change the state. Never raises for well-formed input.

        The result depends on state, command and operation alone. A command that was applied already changes nothing,
        and neither does an update that was prepared in another term.

        Raises:
            InvalidInput: command or operation hold what they cannot; nothing was changed.
        """
        check_command(command)
        check_operation(operation)
        return self._apply(command, operation)

    def _apply(self, command: Command, operation: Operation) -> ApplyResult:
        state = self.state
        self.forget_events()
        if command.index <= state.applied_index:
            return AlreadyApplied(command.index, state.applied_index)
        limits = None
        if isinstance(operation, PlanUpdate):
            if operation.term != command.term:
                state.applied = command
                return TermChanged(operation.term, command.term)
            limits = operation.limits
        effects = self._begin(command, limits or state.limits)
        result = carry_out(effects, operation)
        self._end(effects)
        return result

    def _begin(self, command: Command, limits: Limits) -> Effects:
        state = self.state
        state.applied = command
        effects = Effects(state, state.numbered(command) if state.tokens_above else command, limits)
        effects.take_time(command.appended_at)
        return effects

    def _end(self, effects: Effects) -> None:
        effects.tell_excluded()
        self.state = effects.state
        self._effects = effects
        if not self._is_deaf:
            tell_events(self._observer, self.events)

    def poll(self, command: Command, request: PollRequest) -> PollResponse:
        """Both phases in one, for a host with a single node.

        Raises:
            InvalidInput: the capacity is negative, or there are too many updates.
            CommandOutOfOrder: the command's index is not above that of the last one applied.
        """
        decision = decide(self.state, command, request, self.policy)
        if not decision.is_usual():
            # Nearly no poll, so that what else it may change is carried out in one place, as on a replica.
            result = self._apply(command, decision.update())
            assert isinstance(result, Applied)
            return result.response
        effects = self._begin(command, self.state.limits)
        response = carry_out_at_once(effects, decision.completed, decision.renewed, decision.assigned, decision.token,
                                     decision.lease_expires_at, decision.answers, decision.now, decision.choice.why)
        self._end(effects)
        return response

    # ----------------------------------------------------------------------------------------------------- views

    def jobs(self, now: float) -> Iterator[tuple[JobPhase, JobState]]:
        """All queued jobs by priority, each with its phase at a time. O(n log n)."""
        queue = self.state.jobs
        return ((queue.phase(state, now), state) for state in queue.in_order(now))

    def table(self, now: float) -> Table:
        """The queued jobs by priority, for people."""
        rows = [{"job": state.name, "level": state.compaction_level, "phase": phase.value, "failures": state.failures,
                 "token": state.token, "age": now - state.added_at,
                 "lease ends in": state.lease_expires_at - now if state.lease_expires_at else None,
                 "last failure": state.last_failure} for phase, state in self.jobs(now)]
        return Table.from_dicts(rows, title=f"{len(rows):,} jobs")

    def quarantine(self) -> tuple[QuarantinedJob, ...]:
        """The jobs that were given up, the oldest first; re-queue them with the operation `Requeue`."""
        return tuple(self.state.quarantine.values())

    def job(self, name: str) -> tuple[JobState, JobPlan]:
        """One queued job.

        Raises:
            JobNotFound: there is none of this name.
        """
        job = self.state.jobs.get(name)
        if job is None:
            raise JobNotFound(name=name)
        return job.state, job.plan()

    def stats(self, now: float) -> list[dict[str, int]]:
        """One row a level: how many jobs are in which phase, and what happened since the start.

        O(levels + jobs whose lease has run out + jobs that failed too often).
        """
        phases = self.state.jobs.phases(now)
        return [{"level": number, **{phase.value: phases[number][phase] for phase in JobPhase},
                 **attrs.asdict(level.counts)} for number, level in self.state.jobs.levels.items()]

    def audit(self) -> None:
        """Check the whole state. O(everything).

        Raises:
            AuditFailed: something is wrong; the message has the numbers.
        """
        self.state.audit()

    def __repr__(self) -> str:
        return f"SchedulerService({self.state!r})"
