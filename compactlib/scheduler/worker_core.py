# SPDX-License-Identifier: Apache-2.0
"""What a worker decides, without threads, clocks or sockets: what to say in a poll, and what to do about the answer.

One poll is under way at a time. Each reports on the jobs that the worker has: "in progress", "done, here
is what I wrote", "failed", "I give it back". What is not answered is said again. A job that the scheduler does not
confirm any more is lost: its work is stopped, and its outcome means nothing.

A run keeps the token that it began with for its whole life. An assignment of the same job with a larger token is a new
one, also when it comes in the answer that says that the run has lost the job: another worker may have had the job in
between, and what the run has seen may be out of date. So the run is stopped, and the assignment begins another one.

A lease is a length of time on the worker's own steady clock, counted from when the poll was sent: the scheduler's
clock and the worker's are never compared. A lease that has run out by this count is not lost yet, since the scheduler
accepts a late renewal as long as no other worker was given the job; but after `patience_seconds` more without an answer
the work is stopped, lest two workers do it for hours.

See `docs/design/scheduler.md` for how Pyroscope does it, and for the differences.
"""

from __future__ import annotations

import enum
from typing import TypeAlias

import attrs

from compactlib.errors import InvalidInput
from compactlib.scheduler.values import (
    MAX_REASON_CHARS,
    Assignment,
    BlockMeta,
    CompactedBlocks,
    JobPlan,
    JobStatus,
    PollRequest,
    PollResponse,
    StatusAnswer,
    StatusUpdate,
    Tombstone,
    Verdict,
)

MAX_CONFIRMED = 1000
"""How many deletions one poll confirms; the rest comes with the next."""


# ------------------------------------------------------------------------------------------- effects of an answer


@attrs.frozen
class Start:
    """Begin with a job.

    Attributes:
        run: a number of its own for this run; the same job may come again.
        plan: the job.
        token: the fencing token of this run, from its first step to its last.
        deadline: end of the lease, seconds on the worker's steady clock.
        blocks: what the scheduler knows of the plan's sources, in its order.
    """

    run: int
    plan: JobPlan
    token: int
    deadline: float
    blocks: tuple[BlockMeta, ...] = ()


@attrs.frozen
class Renewed:
    """The job is still the worker's, under the token that the run began with; its lease ends at `deadline` now."""

    run: int
    deadline: float


@attrs.frozen
class Stop:
    """End the work as soon as possible, and say so with `ended`.

    Attributes:
        run: which.
        name: the job.
        lost: whether the job has another holder now, or none; its outcome is thrown away.
        reason: for people.
    """

    run: int
    name: str
    lost: bool
    reason: str


@attrs.frozen
class Clean:
    """Delete what the tombstone names, and say so with `cleaned`."""

    tombstone: Tombstone


@attrs.frozen
class Settled:
    """The scheduler has taken note of how a job ended.

    Attributes:
        name: the job.
        status: what was reported.
        verdict: what it was answered; `None` if nothing was said about it.
        detail: for people.
    """

    name: str
    status: JobStatus
    verdict: Verdict | None
    detail: str


Effect: TypeAlias = Start | Renewed | Stop | Clean | Settled
"""What an answer makes the worker do."""


# ------------------------------------------------------------------------------------------------ ends of a run


@attrs.frozen
class Finished:
    """The job was done."""

    compacted_blocks: CompactedBlocks


@attrs.frozen
class Crashed:
    """The job could not be done; counts as a failure."""

    reason: str


@attrs.frozen
class GivenBack:
    """The job was not done, through no fault of its own."""

    reason: str


RunOutcome: TypeAlias = Finished | Crashed | GivenBack
"""How a run ended."""


class _Stage(enum.Enum):
    RUNNING = "running"
    STOPPING = "stopping"
    """Asked to stop, and still the worker's: will be released."""
    ENDED = "ended"


@attrs.define
class _Held:
    """A job that the worker has, until the scheduler has taken note of its end."""

    plan: JobPlan
    token: int
    deadline: float
    run: int
    stage: _Stage = _Stage.RUNNING
    outcome: RunOutcome | None = None

    def update(self) -> StatusUpdate:
        name, token = self.plan.name, self.token
        match self.outcome:
            case Finished(compacted_blocks):
                return StatusUpdate(name, token, JobStatus.SUCCESS, compacted_blocks)
            case Crashed(reason):
                return StatusUpdate(name, token, JobStatus.FAILED, reason=reason[:MAX_REASON_CHARS])
            case GivenBack(reason):
                return StatusUpdate(name, token, JobStatus.RELEASED, reason=reason[:MAX_REASON_CHARS])
            case None:
                return StatusUpdate(name, token, JobStatus.IN_PROGRESS)


_NOTHING_CHANGED = frozenset({Verdict.SUPERSEDED, Verdict.DUPLICATE, Verdict.BAD_STATUS})


class WorkerCore:
    """The state machine of one worker. Not for several threads at once. All methods cost O(jobs it has).

    Args:
        capacity: jobs at a time, >= 1.
        cleanup_capacity: tombstones that it takes at a time; 0: it deletes nothing, and leaves that to others.
        patience_seconds: how long after the end of a lease, without an answer, the work is stopped.

    Raises:
        InvalidInput: a number is out of its range.
    """

    def __init__(self, capacity: int, *, cleanup_capacity: int = 0, patience_seconds: float = 300.0) -> None:
        if capacity < 1 or cleanup_capacity < 0 or not patience_seconds >= 0:
            raise InvalidInput(f"a worker with capacity {capacity}, cleanup_capacity {cleanup_capacity} and "
                               f"patience_seconds {patience_seconds}; give at least 1, 0 and 0")
        self._capacity = capacity
        self._cleanup_capacity = cleanup_capacity
        self._patience = patience_seconds
        self._jobs: dict[str, _Held] = {}
        self._lost_runs: set[int] = set()
        self._cleaning: set[str] = set()
        self._deleted: dict[str, None] = {}
        self._asked: PollRequest | None = None
        self._asked_at = 0.0
        self._last_run = 0
        self._draining = False

    @property
    def free_slots(self) -> int:
        """How many jobs could begin now. One that was asked to stop keeps its slot until it has."""
        busy = sum(held.stage is not _Stage.ENDED for held in self._jobs.values())
        return max(self._capacity - busy - len(self._lost_runs), 0)

    @property
    def jobs(self) -> tuple[str, ...]:
        """The jobs it has: running, or ended and not reported yet."""
        return tuple(self._jobs)

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs and nothing is left to be reported."""
        return not (self._jobs or self._lost_runs or self._cleaning or self._deleted)

    def earliest_deadline(self) -> float | None:
        """When the first lease ends, on the worker's steady clock."""
        return min((held.deadline for held in self._jobs.values()), default=None)

    def poll(self, now: float, *, takes_jobs: bool = True) -> PollRequest | None:
        """What to send now; `None` if there is nothing to say and no room for a job. An earlier poll is given up.

        Args:
            now: seconds on the worker's steady clock.
            takes_jobs: whether to ask for jobs.
        """
        updates = tuple(held.update() for held in self._jobs.values())
        capacity = self.free_slots if takes_jobs and not self._draining else 0
        confirmed = tuple(self._deleted)[:MAX_CONFIRMED]
        self._asked_at = now
        # Equal requests are still different polls: the answer is matched by the very object.
        self._asked = PollRequest(updates, capacity, confirmed) if updates or capacity or confirmed else None
        return self._asked

    def answered(self, request: PollRequest, response: PollResponse) -> tuple[Effect, ...]:
        """Take the answer to the poll that is under way; one to an earlier poll changes nothing.

        Returns what is to be done, in order.
        """
        if request is not self._asked:
            return ()
        self._asked = None
        for name in request.deleted_tombstones:
            self._deleted.pop(name, None)
        assigned = {assignment.name: assignment for assignment in response.assignments}
        answers = dict(zip((update.name for update in request.status_updates), response.answers, strict=False))
        effects: list[Effect] = []
        for update in request.status_updates:
            effects += self._take_answer(update, answers.get(update.name), assigned.get(update.name), response.now)
        for plan in response.compaction_jobs:
            # A response without the token is not an assignment.
            if plan.name in assigned:
                effects += self._take_job(plan, assigned[plan.name], response.now)
        for tombstone in response.tombstones:
            effects += self._take_tombstone(tombstone)
        return tuple(effects)

    def ended(self, run: int, outcome: RunOutcome) -> None:
        """A run has ended. Unless its job was lost, the next poll says how."""
        if run in self._lost_runs:
            self._lost_runs.remove(run)
            return
        for held in self._jobs.values():
            if held.run == run and held.stage is not _Stage.ENDED:
                if held.stage is _Stage.STOPPING and isinstance(outcome, Crashed):
                    # It was asked to stop, which is no failure of the job.
                    outcome = GivenBack(outcome.reason)
                held.stage, held.outcome = _Stage.ENDED, outcome

    def cleaned(self, name: str, *, deleted: bool) -> None:
        """The work on a tombstone has ended; if all is deleted, the next poll confirms it, else it will come again."""
        self._cleaning.discard(name)
        if deleted:
            self._deleted[name] = None

    def drain(self) -> None:
        """Take no more jobs. What runs goes on, and is renewed and reported."""
        self._draining = True

    def take_again(self) -> None:
        """Take jobs again, after `drain`."""
        self._draining = False

    def give_back(self, reason: str) -> tuple[Stop, ...]:
        """Take no more jobs, and stop those that run; they are given back, unless they end well all the same."""
        self.drain()
        return tuple(self._stop(held, reason) for held in self._jobs.values() if held.stage is _Stage.RUNNING)

    def give_up_overdue(self, now: float) -> tuple[Stop, ...]:
        """Stop what the scheduler has not confirmed for too long; it is given back once there is an answer again.

        Args:
            now: seconds on the worker's steady clock.
        """
        return tuple(self._stop(held, f"no answer from the scheduler until {self._patience} seconds after the lease")
                     for held in self._jobs.values()
                     if held.stage is _Stage.RUNNING and now > held.deadline + self._patience)

    def _stop(self, held: _Held, reason: str) -> Stop:
        held.stage = _Stage.STOPPING
        return Stop(held.run, held.plan.name, False, reason)

    def _take_answer(self, update: StatusUpdate, answer: StatusAnswer | None, assignment: Assignment | None,
                     now: float) -> list[Effect]:
        held = self._jobs.get(update.name)
        if held is None:
            return []
        is_later = assignment is not None and assignment.token > held.token
        if assignment is not None and not is_later and update.status == JobStatus.IN_PROGRESS:
            return self._renew(held, assignment, now)
        if answer is not None and answer.verdict in _NOTHING_CHANGED and not is_later:
            return []
        verdict, detail = (None, "") if answer is None else (answer.verdict, answer.detail)
        if update.status != JobStatus.IN_PROGRESS:
            # Reported for good: the job is not the worker's any more.
            del self._jobs[update.name]
            return [Settled(update.name, JobStatus(update.status), verdict, detail)]
        reason = "the scheduler did not renew the lease" if verdict is None else verdict.value
        return self._lose(held, verdict, detail, f"{reason}: {detail}" if detail else reason)

    def _lose(self, held: _Held, verdict: Verdict | None, detail: str, reason: str) -> list[Effect]:
        """The run has lost its job: it is stopped, and what it ends in means nothing."""
        name = held.plan.name
        del self._jobs[name]
        if held.stage is _Stage.ENDED:
            # It ended while the poll was under way, and the job was lost before it could be reported.
            return [Settled(name, held.update().status, verdict, detail)]  # type: ignore[arg-type]
        self._lost_runs.add(held.run)
        return [Stop(held.run, name, True, reason)]

    def _renew(self, held: _Held, assignment: Assignment, now: float) -> list[Effect]:
        held.deadline = self._deadline(assignment, now)
        return [] if held.stage is _Stage.ENDED else [Renewed(held.run, held.deadline)]

    def _take_job(self, plan: JobPlan, assignment: Assignment, now: float) -> list[Effect]:
        held = self._jobs.get(plan.name)
        if held is not None and assignment.token <= held.token:
            return self._renew(held, assignment, now)
        lost: list[Effect] = []
        if held is not None:
            detail = f"assigned again with token {assignment.token}, above the run's {held.token}"
            lost = self._lose(held, None, detail, detail)
        return lost + self._begin(plan, assignment, now)

    def _begin(self, plan: JobPlan, assignment: Assignment, now: float) -> list[Effect]:
        self._last_run += 1
        deadline = self._deadline(assignment, now)
        has_room = self.free_slots > 0 and not self._draining
        self._jobs[plan.name] = held = _Held(plan, assignment.token, deadline, self._last_run)
        if not has_room:
            held.stage, held.outcome = _Stage.ENDED, GivenBack("the worker has no room for it")
            return []
        effects: list[Effect] = [Start(held.run, plan, held.token, deadline, assignment.blocks)]
        for tombstone in plan.tombstones:
            effects += self._take_tombstone(tombstone)
        return effects

    def _deadline(self, assignment: Assignment, now: float) -> float:
        return self._asked_at + max(assignment.lease_expires_at - now, 0.0)

    def _take_tombstone(self, tombstone: Tombstone) -> list[Effect]:
        name = tombstone.name
        if name in self._cleaning or name in self._deleted or len(self._cleaning) >= self._cleanup_capacity:
            return []
        self._cleaning.add(name)
        return [Clean(tombstone)]

    def __repr__(self) -> str:
        return f"WorkerCore({len(self._jobs)} jobs, {self.free_slots} of {self._capacity} slots free)"
