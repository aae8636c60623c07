# SPDX-License-Identifier: Apache-2.0
"""`Worker`: polls the scheduler, runs its jobs in threads, renews their leases, and deletes objects.

A worker sends one poll at a time. A poll reports on the jobs of the worker: in progress, done (with the new blocks),
failed, or released. A report without an answer is repeated. A job that the scheduler does not confirm is lost: its run
is stopped, and its outcome is dropped.

A run keeps its first token. An assignment of the same job with a larger token begins another run, also if it is in the
answer that ends the first run: another worker may have had the job in between, and the first run may have read old
blocks.

A lease is a duration on the worker's monotonic clock, from the time at which the poll was sent: the clocks of the
scheduler and the worker are never compared. A run continues after the end of its lease, since the scheduler accepts a
late renewal unless it has assigned the job to another worker. After `patience_seconds` without an answer the run is
stopped, so that two workers do not run the job for hours.

One lock guards the jobs; it is not held during calls of the host. Jobs and deletions run in daemon threads: a process
that ends without `stop`, or with a job that hangs, does not wait for them, and the scheduler reassigns the jobs when
their leases end.
"""

from __future__ import annotations

import hashlib
import logging
import random
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from math import inf
from typing import Any, Protocol, Self, TypeAlias, TypeVar

import attrs

from compactlib._arguments import is_above, is_fraction, is_seconds, is_whole
from compactlib.budget import Budget
from compactlib.clock import Clock, SystemClock
from compactlib.codec import JsonCodec
from compactlib.errors import BudgetSpent, Busy, InvalidInput
from compactlib.fences import FencedOff
from compactlib.guard import is_mine
from compactlib.observer import Observer, Observers
from compactlib.scheduler.errors import JobLost, ReleaseJob
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
    ulid_seconds,
)
from compactlib.service import PeriodicService

ResultT = TypeVar("ResultT")
_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PURPOSE = b"compactlib scheduler output 1"
_RANDOM_BITS = 80
_RESULTS: JsonCodec[CompactedBlocks] = JsonCodec(CompactedBlocks)
_LOGGER = logging.getLogger("compactlib.services")
_LEASE_PARTS = 3
"""A lease is renewed after a third of its time, so that a lost poll does not end it."""
_LEAST_SECONDS = 0.1
"""The shortest time between two polls for a lease that ends soon."""
_BACKLOG = 64
"""The most waiting tombstones for each thread of `cleanup_capacity`; the scheduler sends the others again later."""
_MAX_CONFIRMED = 1000
"""The most deletions that a poll confirms; the next poll confirms more."""
_LOOK_SECONDS = 0.02
"""How often `stop` checks whether the work has ended."""
_NOTHING_CHANGED = frozenset({Verdict.DUPLICATE, Verdict.BAD_STATUS})


# ------------------------------------------------------------------------------------------ the host's side of a worker


class Transport(Protocol):
    """Sends a poll to the scheduler. Several threads may call it; a worker sends one poll at a time."""

    def poll(self, request: PollRequest) -> PollResponse:
        """Send the request, and wait for the answer, for a limited time.

        Raises:
            Exception: there is no answer. The request may be carried out, now, later, never or several times; the next
                poll of the worker repeats its reports.
        """


class RunningJob:
    """A job for `Execute`: its plan, token and lease. Threads may share it.

    Args:
        deadline: end of the lease, seconds on the worker's monotonic clock.
        clock: the worker's.
        keep: renews due leases, in a worker without threads.

    Attributes:
        plan: the job.
        token: the fencing token of the assignment; pass it to a `Fence`, first and around the commit. It does not
            change during a run. If this worker loses the job and gets it again, that is another run with another token,
            so that a commit with a token depends only on reads with that token.
        blocks: the plan's sources in the scheduler's index at the assignment, in the plan's order, without unknown
            blocks. A block may be removed during the run.
        budget: call `spend` before each chunk that is written; it is cancelled to stop the run.
    """

    def __init__(self, plan: JobPlan, token: int, deadline: float, blocks: tuple[BlockMeta, ...] = (), *,
                 budget: Budget, clock: Clock, keep: Callable[[], object] | None = None) -> None:
        self.plan: JobPlan = plan
        self.token: int = token
        self.blocks: tuple[BlockMeta, ...] = blocks
        self.budget: Budget = budget
        self._deadline = deadline
        self._clock = clock
        self._keep = keep
        self._stopped: str | None = None

    @property
    def lease_seconds_left(self) -> float:
        """The rest of the lease by this worker's clock; negative if the lease may have ended."""
        return self._deadline - self._clock.monotonic()

    @property
    def is_stopped(self) -> bool:
        """Whether the run has to end: the job was lost, or the worker stops."""
        return self._stopped is not None

    def output_id(self, tenant: str | None = None, number: int = 0) -> str:
        """Return the id of an output block: a ULID with the time of the first source (0 without one).

        Its random part is a hash of the plan's sources, level and shard, the token, the output's tenant and its number.
        So a worker that repeats an assignment overwrites its own outputs instead of doubling the data. Two workers of
        the same job have different tokens, so that neither overwrites the other's outputs, and a late deletion of one
        job's outputs does not delete the other's.

        Args:
            tenant: the output's tenant; default the plan's. A job of several tenants writes a block for each.
            number: distinguishes outputs of one tenant.
        """
        plan, digest = self.plan, hashlib.sha256(_PURPOSE)
        for part in (plan.tenant if tenant is None else tenant, str(plan.shard), str(plan.compaction_level),
                     str(self.token), str(number), *plan.source_blocks):
            text = part.encode("utf-8", "surrogatepass")
            digest.update(len(text).to_bytes(8, "little") + text)
        seconds = ulid_seconds(plan.source_blocks[0]) if plan.source_blocks else 0.0
        value = round(max(seconds, 0.0) * 1000) << _RANDOM_BITS | int.from_bytes(digest.digest()[:10], "big")
        return "".join(_ALPHABET[value >> shift & 31] for shift in range(125, -1, -5))

    def check(self) -> None:
        """Check whether the run may continue; call it regularly.

        In a worker without threads (`run_pending`) this also renews the lease.

        Raises:
            JobLost: the job was lost, or the worker stops. Do not catch it.
        """
        if self._keep is not None:
            self._keep()
        if self._stopped is not None:
            raise JobLost(name=self.plan.name, reason=self._stopped)

    def renew(self, deadline: float) -> None:
        """Set a new end of the lease; for the worker."""
        self._deadline = deadline

    def stop(self, reason: str) -> None:
        """End the run; for the worker."""
        self._stopped = reason
        self.budget.cancel()

    def __repr__(self) -> str:
        return f"RunningJob({self.plan.name!r}, token {self.token}{', stopped' if self.is_stopped else ''})"


Execute: TypeAlias = Callable[[RunningJob], CompactedBlocks]
"""Runs a job: reads the sources of `job.plan`, writes the outputs under ids of `job.output_id`, and returns them.

May run twice for a job, also at the same time. `JobLost` and `FencedOff` end a run that has lost its job, `ReleaseJob`
releases it; any other error counts as a failure of the job.
"""

Cleanup: TypeAlias = Callable[[Tombstone], object]
"""Deletes the objects of a tombstone, of which some may be absent. After an error it is called again."""


# -------------------------------------------------------------------------------------------------------- the worker


@attrs.frozen(kw_only=True)
class WorkerOptions:
    """The settings of a worker.

    Raises:
        InvalidInput: a number is out of its range.
    """

    capacity: int = attrs.field(default=1, validator=is_whole(1))
    """The number of concurrent jobs."""
    cleanup_capacity: int = attrs.field(default=4, validator=is_whole(1))
    """The number of concurrent deletions, if the worker has a cleanup; up to 64 times as many are queued."""
    poll_seconds: float = attrs.field(default=5.0, validator=is_above(0))
    """The time between polls; shorter for short leases, and after a job has ended."""
    max_poll_seconds: float = attrs.field(default=60.0, validator=is_above(0))
    """The longest time between polls without an answer."""
    jitter: float = attrs.field(default=0.1, validator=is_fraction)
    """The random part of this time, 0 .. 1, so that workers do not poll at the same time."""
    patience_seconds: float = attrs.field(default=300.0, validator=is_seconds(most=inf))
    """The time from the end of a lease, without an answer, until the job is stopped."""

    def __attrs_post_init__(self) -> None:
        if self.poll_seconds > self.max_poll_seconds:
            raise InvalidInput(f"poll_seconds is {self.poll_seconds}, max_poll_seconds {self.max_poll_seconds}; give "
                               f"poll_seconds <= max_poll_seconds")


@attrs.define(eq=False)
class _Held:
    """A job of the worker, until the scheduler has confirmed its end.

    Attributes:
        job: the run.
        report: the report for the next poll.
    """

    job: RunningJob
    report: StatusUpdate

    @property
    def has_ended(self) -> bool:
        return self.report.status != JobStatus.IN_PROGRESS

    def end(self, status: JobStatus, reason: str = "", results: CompactedBlocks | None = None) -> None:
        if status is JobStatus.FAILED and self.job.is_stopped:
            status = JobStatus.RELEASED  # the worker has stopped it, which is no failure of the job
        self.report = StatusUpdate(self.job.plan.name, self.job.token, status, results, reason[:MAX_REASON_CHARS])


class _Mine(threading.local):
    """The work of a thread: the depth of calls of the host, whether it is in `run_pending`, and its begun jobs."""

    def __init__(self) -> None:
        self.depth = 0
        self.is_pending = False
        self.begun: list[_Held | Tombstone] = []


class Worker:
    """Runs jobs until it is stopped. Use it in a `with`, or call `start` and `stop`. Threads may share it.

    A host without threads calls `run_pending` in a loop.

    Args:
        transport: sends the polls: a `Scheduler` of this process, a `SchedulerClient`, or the host's own.
        execute: runs a job; called in several threads. An exception fails the job, is logged with its traceback, and
            sets `last_error` and `failures`.
        cleanup: deletes objects; without it, the worker takes no tombstones.
        options: the settings.
        clock: the clock for leases and waits.
        observer: receives `scheduler_job_started`, `scheduler_job_stopped`, `scheduler_job_reported`,
            `scheduler_poll_failed`, `scheduler_job_failed` and `scheduler_cleanup_failed`.
        budget: the budget of all jobs together.
        rng: the random generator for the jitter.

    Attributes:
        last_error: the last exception of a job, a cleanup or the transport.
        failures: the number of these exceptions.
    """

    def __init__(self, transport: Transport, execute: Execute, *, cleanup: Cleanup | None = None,
                 options: WorkerOptions | None = None, clock: Clock | None = None, observer: Observer | None = None,
                 budget: Budget | None = None, rng: random.Random | None = None) -> None:
        self._options = options = WorkerOptions() if options is None else options
        self._transport = transport
        self._execute = execute
        self._cleanup = cleanup
        self._clock: Clock = SystemClock() if clock is None else clock
        self._budget = Budget(clock=self._clock) if budget is None else budget
        self._observer = Observers(observer)
        self._rng = random.Random() if rng is None else rng
        self.last_error: BaseException | None = None
        self.failures: int = 0
        self._lock = threading.Lock()
        self._held: dict[str, _Held] = {}
        self._lost: set[_Held] = set()  # runs that have lost their job and have not ended
        self._cleaning: set[str] = set()  # deletions that have not ended, also those to begin
        self._deleted: dict[str, None] = {}
        self._waiting: deque[_Held | Tombstone] = deque()  # new jobs and deletions, for threads or `run_pending`
        self._events: list[tuple[str, dict[str, Any]]] = []  # for the observer, after the lock
        self._takes_jobs = True
        self._is_ending = False
        self._unanswered = 0
        self._next_poll_at = 0.0
        self._mine = _Mine()
        self._polling = threading.RLock()
        self._service = PeriodicService(self._poll_in_thread, name="a worker's polls", clock=self._clock,
                                        every_seconds=options.poll_seconds, retry_seconds=options.poll_seconds,
                                        max_retry_seconds=options.max_poll_seconds)

    @property
    def jobs(self) -> tuple[str, ...]:
        """The names of its jobs: running, or ended and not reported."""
        with self._lock:
            return tuple(self._held)

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs, and all ends are reported."""
        with self._lock:
            return not (self._held or self._lost or self._cleaning or self._deleted)

    # ------------------------------------------------------------------------------------------------ begin and end

    def start(self) -> None:
        """Start a thread that polls; starting again does nothing. Can be called after `stop`."""
        with self._lock:
            self._takes_jobs, self._is_ending = True, False
        self._service.start()

    def run_pending(self) -> int:
        """Poll, run the new jobs and deletions in the caller's thread, and report them.

        During a job, only its calls of `RunningJob.check` renew the lease. After an interrupt, the next call continues
        with the other jobs that the worker still has.

        Returns:
            The number of jobs and deletions, successful or not.

        Raises:
            Busy: called by a job, a cleanup, the transport or an observer of this worker.
        """
        self._require_outside("run_pending")
        done = 0
        self._mine.is_pending = True
        try:
            self._poll()
            while self._waiting:
                self._do(self._waiting[0])
                done += 1
            if done:
                self._poll(takes_jobs=False)
        finally:
            self._mine.is_pending = False
            with self._lock:
                for each in self._mine.begun:  # after an interrupt, some have not ended
                    if each not in self._waiting:  # else the next call begins it
                        self._end(each)
                self._mine.begun.clear()
        return done

    def stop(self, *, wait_seconds: float = 30.0, grace_seconds: float = 0.0) -> None:
        """Take no more jobs, cancel and release the running ones, report them, and wait for their end.

        Leases are renewed until the end. A job that does not call `check` or its budget, and a cleanup or a transport
        that hangs, continue in their threads. Stopping again waits again.

        Args:
            wait_seconds: the seconds to wait for the end.
            grace_seconds: how long jobs may run before they are cancelled.

        Raises:
            Busy: work still runs or is not reported after the time; or called from a job, a cleanup, the transport or
                an observer of this worker. The worker takes no more jobs.
        """
        with self._lock:
            self._takes_jobs, self._is_ending = False, True
        if grace_seconds > 0 and not self._is_inside:
            self._wait_until_idle(grace_seconds)
        with self._lock:
            for held in self._held.values():
                self._stop(held, "the worker shuts down")
        self._notify()
        self._require_outside("stop")
        while self._wait_until_idle(wait_seconds):
            self._service.stop(wait_seconds=max(wait_seconds, _LOOK_SECONDS))
            if self.is_idle:
                return
            # The answer to the last poll had a job, which is released.
        self._service.cancel()
        what = ", ".join(self.jobs) or "a deletion"
        raise Busy(f"the worker has not ended in {wait_seconds:g} seconds: {what} still runs, or could not be "
                   f"reported; the scheduler finds out when the leases end, or stop again to wait longer")

    def _wait_until_idle(self, seconds: float) -> bool:
        """Wait until all work has ended and the polling thread has reported it."""
        while not self.is_idle:
            if seconds <= 0:
                return False
            self._service.start()
            self._service.wake()
            threading.Event().wait(_LOOK_SECONDS)
            seconds -= _LOOK_SECONDS
        return True

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def _is_inside(self) -> bool:
        """Whether the host calls this from the worker's own work; an observer of a poll does too."""
        return self._mine.depth > 0 or is_mine(self._polling)

    def _require_outside(self, what: str) -> None:
        if self._is_inside:
            raise Busy(f"{what}() was called from within the worker's own work, by a job, a cleanup, the transport or "
                       f"an observer; call it in another thread, or when that has returned")

    def _of_host(self, call: Callable[[], ResultT]) -> ResultT:
        """Call the host, and mark this thread as working for the worker during the call."""
        depth = self._mine.depth
        try:
            self._mine.depth = depth + 1
            return call()
        finally:
            self._mine.depth = depth

    # ---------------------------------------------------------------------------------------------------- polling

    def _poll_in_thread(self, _: Budget) -> float:
        """Poll once, and start threads for new work; return the seconds until the next poll.

        Work for which no thread has begun is left for the next call.
        """
        pause = self._poll()
        with self._lock:
            jobs = [each for each in self._waiting if isinstance(each, _Held)]
            tombstones = [each for each in self._waiting if isinstance(each, Tombstone)]
            free = max(self._options.cleanup_capacity - len(self._cleaning) + len(tombstones), 0)
        for work in (*jobs, *tombstones[:free]):
            threading.Thread(target=self._do, args=(work,), name="compactlib-job", daemon=True).start()
        return pause

    def _poll(self, *, takes_jobs: bool = True) -> float:
        """Poll once; return the seconds until the next poll."""
        with self._polling:
            try:
                self._ask(takes_jobs)
            finally:
                pause = self._next_pause()
                self._next_poll_at = self._clock.monotonic() + pause
        if self._is_ending and self.is_idle:
            self._service.cancel()
        return pause

    def _ask(self, takes_jobs: bool) -> None:
        now = self._clock.monotonic()
        with self._lock:
            for held in self._held.values():
                if held.job.lease_seconds_left < -self._options.patience_seconds:
                    self._stop(held, f"no answer from the scheduler until {self._options.patience_seconds} seconds "
                                     f"after the lease")
            updates = tuple(held.report for held in self._held.values())
            capacity = self._free_slots if takes_jobs and self._takes_jobs else 0
            confirmed = tuple(self._deleted)[:_MAX_CONFIRMED]
        self._notify()
        if not (updates or capacity or confirmed):
            return
        request = PollRequest(updates, capacity, confirmed)
        try:
            response = self._of_host(partial(self._transport.poll, request))
        except BaseException as error:
            self._unanswered += 1
            self._note(error, "a poll", "scheduler_poll_failed", in_a_row=self._unanswered)
            return
        self._unanswered = 0
        with self._lock:
            self._take(request, response, now)
        self._notify()

    @property
    def _free_slots(self) -> int:
        """The number of jobs that can begin. A stopped job keeps its slot until it has ended."""
        busy = sum(not held.has_ended for held in self._held.values())
        return max(self._options.capacity - busy - len(self._lost), 0)

    def _next_pause(self) -> float:
        options = self._options
        pause: float = min(options.poll_seconds * 2.0 ** min(self._unanswered, 30), options.max_poll_seconds)
        pause *= 1 + options.jitter * (2 * self._rng.random() - 1)
        with self._lock:
            left = min((held.job.lease_seconds_left for held in self._held.values()), default=0.0)
        if left > 0:
            # More often before the end of a lease, but not after failures.
            pause = min(pause, max(left / _LEASE_PARTS, min(options.poll_seconds / 10, _LEAST_SECONDS)))
        return pause

    def _keep_leases(self) -> None:
        """Poll if it is due, in a job inside `run_pending`. New work is done after the job."""
        if self._mine.is_pending and self._clock.monotonic() >= self._next_poll_at:
            self._poll(takes_jobs=False)

    # ------------------------------------------------------------------------------------- an answer, under the lock

    def _take(self, request: PollRequest, response: PollResponse, sent_at: float) -> None:
        for name in request.deleted_tombstones:
            self._deleted.pop(name, None)
        assigned = {assignment.name: assignment for assignment in response.assignments}
        # A lease lasts as long as the scheduler's clock says, from the time of the poll on the worker's clock.
        ends = {assignment.name: sent_at + max(assignment.lease_expires_at - response.now, 0.0)
                for assignment in response.assignments}
        answers = {said.name: answer for said, answer in zip(request.status_updates, response.answers, strict=False)}
        for said in request.status_updates:
            self._take_answer(self._held[said.name], said, answers.get(said.name), ends.get(said.name))
        for plan in response.compaction_jobs:
            assignment = assigned.get(plan.name)
            if assignment is not None:  # a plan without an assignment has no token
                self._take_job(plan, assignment, ends[plan.name])
        for tombstone in response.tombstones:
            self._take_tombstone(tombstone)

    def _take_answer(self, held: _Held, said: StatusUpdate, answer: StatusAnswer | None,
                     deadline: float | None) -> None:
        verdict, detail = (None, "") if answer is None else (answer.verdict, answer.detail)
        if deadline is not None and said.status == JobStatus.IN_PROGRESS:
            held.job.renew(deadline)  # also of a job with a new assignment, whose old run `_take_job` ends
        elif verdict in _NOTHING_CHANGED:
            pass
        elif said.status != JobStatus.IN_PROGRESS:
            # The report is final: the job is no longer the worker's.
            self._settle(held, verdict, detail)
        else:
            reason = "the scheduler did not renew the lease" if verdict is None else verdict.value
            self._lose(held, verdict, detail, f"{reason}: {detail}" if detail else reason)

    def _take_job(self, plan: JobPlan, assignment: Assignment, deadline: float) -> None:
        held, token = self._held.get(plan.name), assignment.token
        if held is not None:
            detail = f"assigned again with token {token}, above the run's {held.job.token}"
            self._lose(held, None, detail, detail)
        has_room = self._takes_jobs and self._free_slots > 0
        job = RunningJob(plan, token, deadline, assignment.blocks, budget=self._budget.child(), clock=self._clock,
                         keep=self._keep_leases)
        held = _Held(job, StatusUpdate(plan.name, token, JobStatus.IN_PROGRESS))
        if has_room:
            # Queued before it is held: after an interrupt in between, no job is reported that never begins.
            self._waiting.append(held)
            self._events.append(("scheduler_job_started", {"job": plan.name, "token": token}))
        else:
            held.end(JobStatus.RELEASED, "the worker has no room for it")
        self._held[plan.name] = held

    def _take_tombstone(self, tombstone: Tombstone) -> None:
        name, room = tombstone.name, 0 if self._cleanup is None else _BACKLOG * self._options.cleanup_capacity
        if name not in self._cleaning and name not in self._deleted and len(self._cleaning) < room:
            self._waiting.append(tombstone)
            self._cleaning.add(name)

    def _stop(self, held: _Held, reason: str) -> None:
        """Stop a run that still has its job; the job is released, unless the run succeeds first."""
        if not held.has_ended and not held.job.is_stopped:
            held.job.stop(reason)
            self._events.append(("scheduler_job_stopped", {"job": held.job.plan.name, "lost": False, "reason": reason}))

    def _lose(self, held: _Held, verdict: Verdict | None, detail: str, reason: str) -> None:
        """Stop a run that has lost its job; its outcome is dropped."""
        if held.has_ended:  # during the poll
            self._settle(held, verdict, detail)
            return
        del self._held[held.job.plan.name]
        self._lost.add(held)
        held.job.stop(reason)
        self._events.append(("scheduler_job_stopped", {"job": held.job.plan.name, "lost": True, "reason": reason}))

    def _settle(self, held: _Held, verdict: Verdict | None, detail: str) -> None:
        """Remove a job after the scheduler has confirmed its end."""
        del self._held[held.job.plan.name]
        self._events.append(("scheduler_job_reported", {
            "job": held.job.plan.name, "status": JobStatus(held.report.status).name, "detail": detail,
            "verdict": None if verdict is None else verdict.name}))

    # ------------------------------------------------------------------------------------------- jobs and deletions

    def _do(self, work: _Held | Tombstone) -> None:
        """Do a job or a deletion, unless another thread has begun it."""
        with self._lock:
            if work not in self._waiting:
                return
            self._mine.begun.append(work)
            self._waiting.remove(work)
        try:
            if isinstance(work, _Held):
                self._run(work)
            else:
                self._clean(work)
        finally:
            with self._lock:
                self._end(work)
            self._service.wake()

    def _end(self, work: _Held | Tombstone) -> None:
        """Record that a job or a deletion has ended; a job without an outcome is released."""
        if isinstance(work, Tombstone):
            self._cleaning.discard(work.name)
            return
        self._lost.discard(work)
        if not work.has_ended:
            work.end(JobStatus.RELEASED, "its thread was interrupted")

    def _run(self, held: _Held) -> None:
        job = held.job
        try:
            job.check()
            done = self._of_host(partial(self._execute, job))
            if not isinstance(done, CompactedBlocks):
                raise InvalidInput(f"the execute returned {done!r:.100}; it must return CompactedBlocks")
            # A result that cannot be stored would make every later poll of this worker fail.
            _RESULTS.to_plain(done)
            held.end(JobStatus.SUCCESS, "", done)
        except (ReleaseJob, JobLost, FencedOff) as released:
            # A fence refuses after another worker has had the job, which is no failure of the job. Without another
            # worker the scheduler assigns it again.
            held.end(JobStatus.RELEASED, str(released))
        except BaseException as error:
            held.end(JobStatus.FAILED, f"{type(error).__name__}: {error}")
            if not (job.is_stopped and isinstance(error, BudgetSpent)):
                self._note(error, f"job {job.plan.name}", "scheduler_job_failed", job=job.plan.name)

    def _clean(self, tombstone: Tombstone) -> None:
        """Delete the objects of a tombstone. The next poll confirms it; else the scheduler sends it again."""
        try:
            if self._cleanup is not None:
                self._of_host(partial(self._cleanup, tombstone))
                self._deleted[tombstone.name] = None
        except BaseException as error:
            self._note(error, f"the cleanup of {tombstone.name}", "scheduler_cleanup_failed", tombstone=tombstone.name)

    # ---------------------------------------------------------------------------------------------- errors and events

    def _note(self, error: BaseException, what: str, event: str, **fields: Any) -> None:
        """Record an error of the host; in `run_pending`, raise an interrupt again."""
        self.last_error = error
        self.failures += 1
        _LOGGER.warning("%s of a worker failed: %r", what, error, exc_info=error)
        self._observer.event(event, error=repr(error), **fields)
        if self._mine.is_pending and not isinstance(error, Exception):
            raise error

    def _notify(self) -> None:
        with self._lock:
            events, self._events = self._events, []
        for name, fields in events:
            self._observer.event(name, **fields)

    def __repr__(self) -> str:
        return (f"Worker({len(self.jobs)} of {self._options.capacity} jobs"
                f"{'' if self._service.is_running else ', not running'})")
