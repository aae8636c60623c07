# SPDX-License-Identifier: Apache-2.0
"""Prepare, the first phase of a poll: from the state and a request to a `PlanUpdate`. Reads only.

Updates come first, so that a slot that a worker has lost can be given away in the same poll; then assignments; then
new jobs, which are assigned from the next poll on; then cleanup for workers that have room left.

See `docs/design/scheduler.md` for how Pyroscope does it, and for the differences.
"""

from __future__ import annotations

from collections.abc import Iterator

from compactlib.errors import InvalidInput
from compactlib.scheduler.apply.complete import sources_gone
from compactlib.scheduler.errors import CommandOutOfOrder
from compactlib.scheduler.model.frozen import maker
from compactlib.scheduler.model.poll import PollRequest, StatusAnswer, StatusUpdate, Verdict
from compactlib.scheduler.model.update import (
    CompletedJob,
    EvictedJob,
    NewJob,
    PlanUpdate,
    RefusedOutputs,
    ReturnedJob,
    TombstoneLease,
)
from compactlib.scheduler.model.values import (
    Command,
    CompactedBlocks,
    JobStatus,
    Tombstone,
    check_command,
    made,
)
from compactlib.scheduler.persistence.plain import misfit
from compactlib.scheduler.plan.planner import PlanCursor
from compactlib.scheduler.plan.policies.by_priority import ByPriority
from compactlib.scheduler.plan.policy import AssignmentPolicy, JobChoice
from compactlib.scheduler.plan.schedule import Schedule
from compactlib.scheduler.queue.job import Job
from compactlib.scheduler.queue.results import are_recordable, result_problem
from compactlib.scheduler.queue.state import SchedulerState

_USUAL = ByPriority()
_NO_ROOM = JobChoice((), "the worker has no room: job_capacity=0, and it has lost no job in this poll")
MAX_UPDATES = 10_000
"""Status updates and confirmations that one request may have, each."""

# A worker that had the job before may have written something that has to be deleted.
_LOST_THE_JOB = (Verdict.NOT_FOUND, Verdict.STALE_TOKEN)
_IN_PROGRESS = JobStatus.IN_PROGRESS
_SUCCESS = JobStatus.SUCCESS
_ACCEPTED = Verdict.ACCEPTED
_make_answer = maker(StatusAnswer)
_STATUSES = (JobStatus, int)
_NO_REASON = ""
_OVER = frozenset({JobStatus.SUCCESS, JobStatus.FAILED, JobStatus.RELEASED})


def prepare(state: SchedulerState, command: Command, request: PollRequest,
            policy: AssignmentPolicy = _USUAL) -> PlanUpdate:
    """What the poll is to change. Changes nothing itself.

    O(updates + log n for each assignment and new job), whatever the length of the queues, and what the policy costs.

    Args:
        state: of the scheduler.
        command: whose poll it is.
        request: what the worker says, and how much room it has.
        policy: which of the jobs that may be assigned go first.

    Raises:
        InvalidInput: the policy chose what cannot be assigned, the capacity is negative, the request has more than
            `MAX_UPDATES` updates or confirmations, or a value is of another type than it should be.
        CommandOutOfOrder: the command's index is not above that of the last one applied.
    """
    return decide(state, command, request, policy).update()


def decide(state: SchedulerState, command: Command, request: PollRequest, policy: AssignmentPolicy) -> Decision:
    """What the poll is to change, as `prepare` gives it, before it is written down. Holds as long as the state does."""
    check_command(command)
    try:
        return _decide(state, command, request, policy)
    except (TypeError, AttributeError, KeyError) as error:
        problem = misfit(request, PollRequest)
        if problem is None:
            raise
        raise InvalidInput(f"this is no request: {problem}") from error


def _decide(state: SchedulerState, command: Command, request: PollRequest, policy: AssignmentPolicy) -> Decision:
    room: object = request.job_capacity
    if not isinstance(room, int) or room < 0:
        raise InvalidInput(f"job_capacity is {request.job_capacity}; a worker has room for 0 jobs or more")
    if len(request.status_updates) > MAX_UPDATES or len(request.deleted_tombstones) > MAX_UPDATES:
        raise InvalidInput(f"{len(request.status_updates)} updates, {len(request.deleted_tombstones)} confirmations; a "
                           f"request has at most {MAX_UPDATES} of each")
    if state.applied is not None and command.index <= state.applied.index:
        raise CommandOutOfOrder(index=command.index, applied=state.applied_index)
    decision = Decision(state, state.numbered(command) if state.tokens_above else command, request)
    decision.make(policy)
    return decision


class Decision:
    """What one poll is to change.

    Attributes:
        now: the time of its command, as the state machine takes it, seconds.
        token: of what the worker is given.
        lease_expires_at: when the leases end that it gives and renews, seconds.
        renewed: jobs whose leases go on.
        completed: jobs that are done, each with its results.
        assigned: jobs that the worker is given.
        answers: to the status updates, in their order.
        choice: which jobs the worker is given, and why.
    """

    _created: tuple[NewJob, ...] = ()
    _evicted: tuple[EvictedJob, ...] = ()
    _leased: tuple[TombstoneLease, ...] = ()
    _deleted: tuple[str, ...] = ()
    _policy: AssignmentPolicy | None = None
    _revoked = 0
    _is_repeated = False

    def __init__(self, state: SchedulerState, command: Command, request: PollRequest) -> None:
        self._state = state
        self._request = request
        timeline, expiry = state.timeline, command.appended_at
        is_news, given = timeline.has_late_stamps, command.expiry
        if not timeline.goes_on(expiry):
            moment = timeline.at(expiry)
            expiry, is_news = moment.expiry, moment.is_news_after(timeline)
            if moment.stamp != command.appended_at:
                command = Command(command.index, command.term, moment.stamp)
        self._command = command
        self.now: float = command.appended_at
        # Up to when leases, delays and back-offs are over.
        self._expiry: float = expiry if given is None else min(given, expiry)
        self._notes_time = (is_news or state.has_stamps_of_another(command)
                            or state.jobs.has_newly_excluded(self._expiry) or state.blocks.has_old(self.now))
        self._schedule = Schedule(state.jobs, state.config, command, state.shared, self._expiry)
        self.token: int = command.index
        self.lease_expires_at: float = self._schedule.lease_expires_at
        self.renewed: list[Job] = []
        self.completed: list[tuple[Job, CompactedBlocks | None]] = []
        self.assigned: list[Job] = []
        self.answers: list[StatusAnswer] = []
        self.choice: JobChoice = _NO_ROOM
        self._returned: list[ReturnedJob] = []
        self._refused: list[RefusedOutputs] = []

    def make(self, policy: AssignmentPolicy) -> None:
        """Decide; `policy` chooses what the worker is given."""
        self._take_all()
        config, request = self._state.config, self._request
        capacity = min(request.job_capacity + self._revoked, config.max_jobs_per_poll)
        if capacity:
            self._policy = policy
            self.assigned, self.choice = self._schedule.choose(policy, capacity)
            if self._state.blocks.has_flushed():
                self._create(capacity)
            if capacity > len(self.assigned):
                self._cleanup(capacity - len(self.assigned))
        if request.deleted_tombstones:
            tombstones = self._state.tombstones
            self._deleted = tuple(name for name in request.deleted_tombstones if name in tombstones)

    def is_usual(self) -> bool:
        """Whether jobs are renewed, completed and assigned, each of them once, and nothing else is to be done."""
        return not (self._notes_time or self._returned or self._refused or self._created or self._evicted
                    or self._leased or self._deleted or self.choice.shared or self.choice.turns or self._is_repeated)

    def update(self) -> PlanUpdate:
        """The decision as a value that can be replicated."""
        command, choice = self._command, self.choice
        return made(PlanUpdate, {
            "index": command.index, "term": command.term, "now": self.now, "new_jobs": self._created,
            "assigned_jobs": tuple(map(self._schedule.assignment, self.assigned)),
            "updated_jobs": tuple(map(self._schedule.renewal, self.renewed)),
            "returned_jobs": tuple(self._returned),
            "completed_jobs": tuple([CompletedJob(job.state, results) for job, results in self.completed]),
            "evicted_jobs": self._evicted, "refused_outputs": tuple(self._refused), "leased_tombstones": self._leased,
            "deleted_tombstones": self._deleted, "shared": choice.shared, "turns": choice.turns,
            "answers": tuple(self.answers), "limits": self._state.limits,
            "policy": "" if self._policy is None else self._policy.name, "why": choice.why,
            "notes_time": self._notes_time})

    # ------------------------------------------------------------------------------------------ what workers say

    def _take_all(self) -> None:
        """What nearly all say, who hold their jobs, and are still at work or done, is seen here; the rest by `_take`.

        A renewal needs no more than this, and no call: it is what a worker says most.
        """
        get, newest, schedule = self._state.jobs.get, self._command.index, self._schedule
        touched, lease = schedule.touched, self.lease_expires_at
        renewed, answers = self.renewed, self.answers
        for said in self._request.status_updates:
            name, status, results = said.name, said.status, said.compacted_blocks
            job = get(name)
            if (job is None or job.status is not _IN_PROGRESS or said.token != job.token or job.token > newest
                    or name in touched or type(name) is not str or said.reason is not _NO_REASON):
                self._take(said)
            elif status is _IN_PROGRESS and results is None:
                touched.add(name)
                renewed.append(job)
                answers.append(_make_answer(name, _ACCEPTED, lease))
            elif status is _SUCCESS and (results is None or are_recordable(said, results)):
                self._complete(said, job)
            else:
                self._take(said)

    def _take(self, said: StatusUpdate) -> None:
        name, status, results = said.name, said.status, said.compacted_blocks
        self._is_repeated |= name in self._schedule.touched
        if (type(name) is not str or type(said.reason) is not str
                or (results is not None and not (type(status) in _STATUSES and are_recordable(said, results)))):
            # This is recorded, and must be read again.
            problem = misfit(said, StatusUpdate)
            if problem is not None:
                raise InvalidInput(f"this is no request: {problem}")
        job = self._schedule.check(name, said.token, status)
        if type(job) is not Job:
            assert isinstance(job, Verdict)
            self._refuse(said, job)
        elif status == _SUCCESS:
            self._complete(said, job)
        else:
            state = self._schedule.updated(job.state, status, said.reason)
            if status == _IN_PROGRESS:
                if state.status is _IN_PROGRESS:
                    self.renewed.append(job)
                self.answers.append(StatusAnswer(name, _ACCEPTED, state.lease_expires_at))
            else:
                self._returned.append(ReturnedJob(state, job.token))
                self.answers.append(StatusAnswer(name, _ACCEPTED))

    def _refuse(self, said: StatusUpdate, verdict: Verdict) -> None:
        job = self._state.jobs.get(said.name)
        # A job that is over does not occupy the worker any more: that slot is part of its capacity already.
        if said.status not in _OVER:
            self._revoked += verdict is not Verdict.DUPLICATE
        deadline = None
        if job is not None and job.status is JobStatus.IN_PROGRESS:
            deadline = job.lease_expires_at
        self.answers.append(StatusAnswer(said.name, verdict, deadline, _detail(said, verdict, job, self._command)))
        if verdict in _LOST_THE_JOB and said.status == JobStatus.SUCCESS:
            self._refuse_outputs(said.name, said.compacted_blocks)

    def _refuse_outputs(self, name: str, results: CompactedBlocks | None) -> None:
        if results is not None and results.new_blocks:
            self._refused.append(RefusedOutputs(name, results.new_blocks))

    def _complete(self, said: StatusUpdate, job: Job) -> None:
        state, results = self._state, said.compacted_blocks
        problem = result_problem(job, results)
        if problem is not None:
            failed = self._schedule.updated(job.state, JobStatus.FAILED, f"bad result: {problem}")
            self._returned.append(ReturnedJob(failed, job.token))
            self.answers.append(StatusAnswer(said.name, Verdict.BAD_RESULT, None, problem))
            self._refuse_outputs(said.name, results)
            return
        assert results is not None
        doomed = state.tombstones._first_covered(results.new_blocks)
        if doomed is not None and not sources_gone(state, job, results):
            # The same outputs were thrown away before and wait for deletion: try again once they are gone.
            detail = f"new block {doomed.id!r} waits for deletion; the job is tried again later"
            waiting = self._schedule.released(job.state, state.config.max_backoff_seconds, detail,
                                              releases=job.releases)
            self._returned.append(ReturnedJob(waiting, job.token))
            self.answers.append(StatusAnswer(said.name, Verdict.BAD_RESULT, None, detail))
            return
        self._schedule.completed(job.name)
        self.completed.append((job, results))
        self.answers.append(_make_answer(said.name, _ACCEPTED))

    # ---------------------------------------------------------------------------------- what the worker is given

    def _create(self, capacity: int) -> None:
        state, schedule = self._state, self._schedule
        cursor = PlanCursor(state.blocks, state.config, self.now, self._riding(capacity))
        created: list[NewJob] = []
        evicted: list[EvictedJob] = []
        while len(created) < capacity and (plan := cursor.next_job()) is not None:
            if state.jobs.get(plan.name) is not None:
                continue  # its blocks were pushed a second time; they wait until the job is done
            while (gone := schedule.evict_job()) is not None:
                evicted.append(gone)
            new = schedule.add_job(plan)
            if new is None:
                break
            created.append(new)
        self._created, self._evicted = tuple(created), tuple(evicted)

    def _riding(self, capacity: int) -> Iterator[Tombstone]:
        """The tombstones that are due; looked up when the first job that may carry some is made."""
        config = self._state.config
        yield from self._state.tombstones.due(self._expiry, capacity * config.cleanup_batch_size)

    def _cleanup(self, room: int) -> None:
        config = self._state.config
        riding = {tombstone.name for job in self._created for tombstone in job.plan.tombstones}
        due = self._state.tombstones.due(self._expiry, room * config.cleanup_batch_size, riding)
        until = self.now + config.cleanup_lease_seconds
        self._leased = tuple(TombstoneLease(tombstone, until) for tombstone in due)


def _detail(said: StatusUpdate, verdict: Verdict, job: Job | None, command: Command) -> str:
    """The numbers behind a refusal."""
    if verdict is Verdict.STALE_TOKEN and job is not None:
        return f"token {said.token} is below the job's {job.token}"
    if verdict is Verdict.FUTURE_TOKEN:
        return f"token {said.token} is above the log's index {command.index}"
    if verdict is Verdict.BAD_STATUS:
        return f"status {int(said.status)} is none that a worker may send"
    if verdict is Verdict.WRONG_STATE:
        return "the job is not assigned"
    return ""
