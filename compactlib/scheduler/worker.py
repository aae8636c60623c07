# SPDX-License-Identifier: Apache-2.0
"""A worker: polls the scheduler, runs its jobs in threads, renews their leases, and cleans up.

One poll is under way at a time. Each reports on the jobs that the worker has: in progress, done (with what was
written), failed, or given back. A report without an answer is sent again. A job that the scheduler does not confirm is
lost: its run is stopped, and its outcome means nothing.

A run keeps the token that it began with. An assignment of the same job with a larger token begins another run, also
where it comes in the answer that says that the first run has lost the job: another worker may have had the job in
between, and what the first run has read may be out of date.

A lease is a length of time on the worker's own steady clock, counted from when the poll was sent: the scheduler's clock
and the worker's are never compared. A lease that has run out by this count is not lost yet, since the scheduler accepts
a late renewal as long as no other worker was given the job; after `patience_seconds` more without an answer the run is
stopped, so that two workers do not do it for hours.

One lock guards the jobs, and is held for no call of the host. Jobs and deletions run in daemon threads: a process that
ends without `stop`, or with a job that hangs, does not wait for them, and the scheduler finds out when the leases end.
"""

from __future__ import annotations

import logging
import math
import random
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Self, TypeAlias

import attrs

from compactlib.budget import Budget
from compactlib.clock import Clock, SystemClock
from compactlib.codec import JsonCodec
from compactlib.errors import BudgetSpent, Busy, InvalidInput
from compactlib.fences import FencedOff
from compactlib.observer import Observer, Observers
from compactlib.scheduler.errors import JobLost, ReleaseJob
from compactlib.scheduler.running_job import Cleanup, Execute, RunningJob, Transport
from compactlib.scheduler.values import (
    MAX_REASON_CHARS,
    Assignment,
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
from compactlib.service import PeriodicService

Work: TypeAlias = Callable[..., None]
"""A job or a deletion for the caller's thread; called with `begins=False`, it is given back."""
_RESULTS: JsonCodec[CompactedBlocks] = JsonCodec(CompactedBlocks)
_LOGGER = logging.getLogger("compactlib.services")
_LEASE_PARTS = 3
"""A lease is renewed when a third of it is over, so that one lost poll does not cost it."""
_LEAST_SECONDS = 0.1
"""Between two polls, however soon a lease ends, unless the worker polls more often anyway."""
_BACKLOG = 64
"""Tombstones that wait for a thread, for each one: what is not taken comes back only when its own lease has ended."""
_MAX_CONFIRMED = 1000
"""How many deletions one poll confirms; the rest comes with the next."""
_LOOK_SECONDS = 0.02
"""Between two checks of `stop` whether the work has ended."""
_NOTHING_CHANGED = frozenset({Verdict.DUPLICATE, Verdict.BAD_STATUS})


def _above_zero(_: object, field: attrs.Attribute[Any], value: float) -> None:
    if not 0 < value < math.inf:
        raise InvalidInput(f"{field.name} is {value!r:.100}; give a finite number above 0")


@attrs.frozen(kw_only=True)
class WorkerOptions:
    """How a worker works.

    Raises:
        InvalidInput: a number is out of its range.
    """

    capacity: int = attrs.field(default=1, validator=_above_zero)
    """Jobs at a time."""
    cleanup_capacity: int = attrs.field(default=4, validator=_above_zero)
    """Tombstones at a time, if the worker has a cleanup; up to 64 times as many wait in line."""
    poll_seconds: float = attrs.field(default=5.0, validator=_above_zero)
    """Time between polls; shorter while a lease is short, and when a job has ended."""
    max_poll_seconds: float = attrs.field(default=60.0, validator=_above_zero)
    """How far the time between polls grows while there is no answer."""
    jitter: float = 0.1
    """The share, 0 .. 1, by which this time varies, so that workers do not poll all at once."""
    patience_seconds: float = 300.0
    """How long after the end of a lease, without an answer, a job is stopped."""

    def __attrs_post_init__(self) -> None:
        if not (0 <= self.jitter <= 1 and self.patience_seconds >= 0 and self.poll_seconds <= self.max_poll_seconds):
            raise InvalidInput(f"jitter {self.jitter}, patience_seconds {self.patience_seconds}, poll_seconds "
                               f"{self.poll_seconds}, max_poll_seconds {self.max_poll_seconds}; give a jitter from "
                               f"0 to 1, patience >= 0, and poll_seconds <= max_poll_seconds")


@attrs.define(eq=False)
class _Held:
    """A job that the worker has, until the scheduler has taken note of its end.

    Attributes:
        job: the run.
        report: what the next poll says of it.
    """

    job: RunningJob
    report: StatusUpdate

    @property
    def has_ended(self) -> bool:
        return self.report.status != JobStatus.IN_PROGRESS

    def end(self, status: JobStatus, reason: str = "", results: CompactedBlocks | None = None) -> None:
        if status is JobStatus.FAILED and self.job.is_stopped:
            status = JobStatus.RELEASED  # it was asked to stop, which is no failure of the job
        self.report = StatusUpdate(self.job.plan.name, self.job.token, status, results, reason[:MAX_REASON_CHARS])


class Worker:
    """Runs jobs until it is stopped. Use it in a `with`, or call `start` and `stop`; any thread may call any method.

    A host without threads calls `run_pending` in a loop of its own.

    Args:
        transport: how polls reach the scheduler: a `Scheduler` of this process, a `SchedulerClient`, or your own.
        execute: does a job; several run at once, in threads. What it raises fails the job, is logged with its
            traceback, kept in `last_error` and counted in `failures`.
        cleanup: deletes objects; without it, the worker leaves tombstones to others.
        options: how it works.
        clock: where time comes from.
        observer: notified of `scheduler_job_started`, `scheduler_job_stopped`, `scheduler_job_reported`,
            `scheduler_poll_failed`, `scheduler_job_failed` and `scheduler_cleanup_failed`.
        budget: what all jobs together may write.
        rng: for the jitter.

    Attributes:
        last_error: what a job, a cleanup, the transport or the polling thread raised last.
        failures: how often one raised.
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
        self._lost: set[_Held] = set()  # runs that have lost their job, and have not ended
        self._cleaning: set[str] = set()
        self._deleted: dict[str, None] = {}
        self._to_clean: deque[Tombstone] = deque()
        self._cleaners = 0
        self._events: list[tuple[str, dict[str, Any]]] = []  # for the observer, once the lock is free
        self._takes_jobs = True
        self._is_ending = False
        self._unanswered = 0
        self._next_poll_at = 0.0
        self._mine = threading.local()  # `depth`: the thread is in a call of this worker's host
        self._polling = threading.RLock()
        self._service = PeriodicService(lambda budget: self._poll(), name="a worker's polls", clock=self._clock,
                                        every_seconds=options.poll_seconds, retry_seconds=options.poll_seconds,
                                        max_retry_seconds=options.max_poll_seconds)

    @property
    def jobs(self) -> tuple[str, ...]:
        """The names of the jobs it has: running, or ended and not reported yet."""
        with self._lock:
            return tuple(self._held)

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs and nothing is left to be reported."""
        with self._lock:
            return not (self._held or self._lost or self._cleaning or self._deleted)

    # ------------------------------------------------------------------------------------------------ begin and end

    def start(self) -> None:
        """Poll from now on, in a thread of its own; starting again does nothing, and after `stop` it begins anew."""
        with self._lock:
            self._takes_jobs, self._is_ending = True, False
        self._service.start()

    def run_pending(self) -> int:
        """Poll, do in the caller's thread what that brings, and report it.

        A lease is renewed by polls, and here by the job's own `RunningJob.check`: there is no other poll meanwhile.

        Returns:
            How many jobs and deletions it has done, well or not.

        Raises:
            Busy: called by a job, a cleanup or the transport of this worker.
        """
        self._require_outside("run_pending")
        work: list[Work] = []
        self._poll(inline=work)
        done = 0
        try:
            for each in work:
                each()
                done += 1
        finally:
            for each in work[done:]:
                each(begins=False)
        if work:
            self._poll(takes_jobs=False)
        return done

    def stop(self, *, wait_seconds: float = 30.0, grace_seconds: float = 0.0) -> None:
        """Take no more jobs, cancel those that run, give them back, report, and wait for the end of all that.

        Leases are renewed to the end. A job that does not call `check` or its budget, a cleanup or a transport that
        hangs goes on in its daemon thread, and keeps no process from ending; the scheduler finds out when the leases
        end. Stopping again waits again.

        Args:
            wait_seconds: for the end.
            grace_seconds: before that, how long jobs may come to an end of their own, and are not cancelled.

        Raises:
            Busy: something still runs, or could not be reported, when the time is over; or called from a job, a cleanup
                or the transport of this worker. It takes no more jobs all the same.
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
            # The answer to the very last poll has brought a job, which is to be given back.
        self._service.cancel()
        what = ", ".join(self.jobs) or "a deletion"
        raise Busy(f"the worker has not ended in {wait_seconds:g} seconds: {what} still runs, or could not be "
                   f"reported; the scheduler finds out when the leases end, or stop again to wait longer")

    def _wait_until_idle(self, seconds: float) -> bool:
        """Wait until nothing is left to do or to report; a thread has to report it."""
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
        return getattr(self._mine, "depth", 0) > 0

    def _require_outside(self, what: str) -> None:
        if self._is_inside:
            raise Busy(f"{what}() was called from within the worker's own work, by a job, a cleanup or the transport; "
                       f"call it in another thread, or when that has returned")

    def _of_host(self, call: Callable[[], object]) -> object:
        """Call the host, and know meanwhile that this thread is in the worker's work."""
        self._mine.depth = getattr(self._mine, "depth", 0) + 1
        try:
            return call()
        finally:
            self._mine.depth -= 1

    # ---------------------------------------------------------------------------------------------------- polling

    def _poll(self, *, takes_jobs: bool = True, inline: list[Work] | None = None) -> float:
        """Poll once; return in how many seconds to poll again. What begins is listed in `inline`, or gets threads."""
        with self._polling:
            try:
                self._ask(takes_jobs, inline)
            finally:
                pause = self._next_pause()
                self._next_poll_at = self._clock.monotonic() + pause
        if self._is_ending and self.is_idle:
            self._service.cancel()
        return pause

    def _ask(self, takes_jobs: bool, inline: list[Work] | None) -> None:
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
            if not isinstance(response, PollResponse):
                raise InvalidInput(f"the transport returned {response!r:.100}; it must return a PollResponse")
        except BaseException as error:
            self._unanswered += 1
            self._note(error, "a poll", "scheduler_poll_failed", in_a_row=self._unanswered)
            if not isinstance(error, Exception) and inline is not None:
                raise
            return
        self._unanswered = 0
        with self._lock:
            self._take(request, response, now, inline)
        self._notify()

    @property
    def _free_slots(self) -> int:
        """How many jobs could begin now. One that was asked to stop keeps its slot until it has."""
        busy = sum(not held.has_ended for held in self._held.values())
        return max(self._options.capacity - busy - len(self._lost), 0)

    def _next_pause(self) -> float:
        options = self._options
        pause: float = min(options.poll_seconds * 2.0 ** min(self._unanswered, 30), options.max_poll_seconds)
        pause *= 1 + options.jitter * (2 * self._rng.random() - 1)
        with self._lock:
            left = min((held.job.lease_seconds_left for held in self._held.values()), default=0.0)
        if left > 0:
            # More often while a lease is running out; no more so once that has not helped.
            pause = min(pause, max(left / _LEASE_PARTS, min(options.poll_seconds / 10, _LEAST_SECONDS)))
        return pause

    def _keep_leases(self, inline: list[Work]) -> None:
        """In a job that runs inside `run_pending`: poll if it is time to. What that brings is done after the job."""
        if self._clock.monotonic() >= self._next_poll_at:
            self._poll(takes_jobs=False, inline=inline)

    # ------------------------------------------------------------------------------------- an answer, under the lock

    def _take(self, request: PollRequest, response: PollResponse, sent_at: float, inline: list[Work] | None) -> None:
        for name in request.deleted_tombstones:
            self._deleted.pop(name, None)
        assigned = {assignment.name: assignment for assignment in response.assignments}
        # The scheduler's clock says how long a lease is, the worker's when it began.
        ends = {assignment.name: sent_at + max(assignment.lease_expires_at - response.now, 0.0)
                for assignment in response.assignments}
        answers = {said.name: answer for said, answer in zip(request.status_updates, response.answers, strict=False)}
        for said in request.status_updates:
            self._take_answer(self._held[said.name], said, answers.get(said.name), ends.get(said.name))
        for plan in response.compaction_jobs:
            assignment = assigned.get(plan.name)
            if assignment is not None:  # without a token it is no assignment
                self._take_job(plan, assignment, ends[plan.name], inline)
        for tombstone in response.tombstones:
            self._take_tombstone(tombstone, inline)

    def _take_answer(self, held: _Held, said: StatusUpdate, answer: StatusAnswer | None,
                     deadline: float | None) -> None:
        verdict, detail = (None, "") if answer is None else (answer.verdict, answer.detail)
        if deadline is not None and said.status == JobStatus.IN_PROGRESS:
            held.job.renew(deadline)  # also where the job comes back with a later token: then it is lost below
        elif verdict in _NOTHING_CHANGED:
            pass
        elif said.status != JobStatus.IN_PROGRESS:
            # Reported for good: the job is not the worker's any more.
            self._settle(held, verdict, detail)
        else:
            reason = "the scheduler did not renew the lease" if verdict is None else verdict.value
            self._lose(held, verdict, detail, f"{reason}: {detail}" if detail else reason)

    def _take_job(self, plan: JobPlan, assignment: Assignment, deadline: float, inline: list[Work] | None) -> None:
        held, token = self._held.get(plan.name), assignment.token
        if held is not None and token <= held.job.token:
            held.job.renew(deadline)
            return
        if held is not None:
            detail = f"assigned again with token {token}, above the run's {held.job.token}"
            self._lose(held, None, detail, detail)
        has_room = self._takes_jobs and self._free_slots > 0
        job = RunningJob(plan, token, deadline, assignment.blocks, budget=self._budget.child(), clock=self._clock,
                         keep=None if inline is None else partial(self._keep_leases, inline))
        held = self._held[plan.name] = _Held(job, StatusUpdate(plan.name, token, JobStatus.IN_PROGRESS))
        if not has_room:
            held.end(JobStatus.RELEASED, "the worker has no room for it")
            return
        self._events.append(("scheduler_job_started", {"job": plan.name, "token": token}))
        if inline is not None:
            inline.append(partial(self._run, held, is_inline=True))
        elif (error := self._in_thread(partial(self._run, held))) is not None:
            held.end(JobStatus.RELEASED, f"the worker has no thread for it: {error}")

    def _take_tombstone(self, tombstone: Tombstone, inline: list[Work] | None) -> None:
        name, room = tombstone.name, 0 if self._cleanup is None else _BACKLOG * self._options.cleanup_capacity
        if name in self._cleaning or name in self._deleted or len(self._cleaning) >= room:
            return
        self._cleaning.add(name)
        if inline is not None:
            inline.append(partial(self._clean, tombstone, is_inline=True))
            return
        self._to_clean.append(tombstone)
        if self._cleaners < self._options.cleanup_capacity:
            if self._in_thread(self._clean_all) is None:
                self._cleaners += 1
            else:
                self._cleaning.discard(self._to_clean.pop().name)

    def _in_thread(self, work: Callable[[], None]) -> RuntimeError | None:
        try:
            threading.Thread(target=work, name="compactlib-job", daemon=True).start()
        except RuntimeError as error:  # no thread can be started: another worker should do it
            self.last_error = error
            self.failures += 1
            return error
        return None

    def _stop(self, held: _Held, reason: str) -> None:
        """Ask a run that is still the worker's to end; it is given back, unless it ends well all the same."""
        if not held.has_ended and not held.job.is_stopped:
            held.job.stop(reason)
            self._events.append(("scheduler_job_stopped", {"job": held.job.plan.name, "lost": False, "reason": reason}))

    def _lose(self, held: _Held, verdict: Verdict | None, detail: str, reason: str) -> None:
        """The run has lost its job: it is stopped, and its outcome means nothing."""
        if held.has_ended:  # while the poll was under way
            self._settle(held, verdict, detail)
            return
        del self._held[held.job.plan.name]
        self._lost.add(held)
        held.job.stop(reason)
        self._events.append(("scheduler_job_stopped", {"job": held.job.plan.name, "lost": True, "reason": reason}))

    def _settle(self, held: _Held, verdict: Verdict | None, detail: str) -> None:
        """The scheduler has taken note of how a job ended."""
        del self._held[held.job.plan.name]
        self._events.append(("scheduler_job_reported", {
            "job": held.job.plan.name, "status": JobStatus(held.report.status).name, "detail": detail,
            "verdict": None if verdict is None else verdict.name}))

    # ------------------------------------------------------------------------------------------- jobs and deletions

    def _run(self, held: _Held, *, is_inline: bool = False, begins: bool = True) -> None:
        """Do a job, and note how it ended; if it is not to begin, an interrupt came first, and it is given back."""
        job = held.job
        status, reason, results = JobStatus.RELEASED, "the thread that was to do it was interrupted", None
        try:
            if begins:
                job.check()
                done = self._of_host(partial(self._execute, job))
                if not isinstance(done, CompactedBlocks):
                    raise InvalidInput(f"the execute returned {done!r:.100}; it must return CompactedBlocks")
                # What cannot be stored would keep every later poll of this worker from being answered.
                _RESULTS.to_plain(done)
                status, reason, results = JobStatus.SUCCESS, "", done
        except (ReleaseJob, JobLost, FencedOff) as released:
            # What a fence refuses went to another worker, which is no failure of the job; if the scheduler does not
            # know of another worker, one should try again.
            reason = str(released)
        except BaseException as error:
            status, reason = JobStatus.FAILED, f"{type(error).__name__}: {error}"
            if not (job.is_stopped and isinstance(error, BudgetSpent)):
                self._note(error, f"job {job.plan.name}", "scheduler_job_failed", job=job.plan.name)
            if is_inline and not isinstance(error, Exception):
                raise
        finally:
            with self._lock:
                self._lost.discard(held)
                if not held.has_ended:
                    held.end(status, reason, results)
            self._service.wake()

    def _clean_all(self) -> None:
        while True:
            with self._lock:
                if not self._to_clean:
                    self._cleaners -= 1
                    return
                tombstone = self._to_clean.popleft()
            self._clean(tombstone)

    def _clean(self, tombstone: Tombstone, *, is_inline: bool = False, begins: bool = True) -> None:
        """Delete what a tombstone names; the next poll confirms it, else it comes again."""
        deleted = False
        try:
            if self._cleanup is not None and begins:
                self._of_host(partial(self._cleanup, tombstone))
                deleted = True
        except BaseException as error:
            self._note(error, f"the cleanup of {tombstone.name}", "scheduler_cleanup_failed", tombstone=tombstone.name)
            if is_inline and not isinstance(error, Exception):
                raise
        finally:
            with self._lock:
                self._cleaning.discard(tombstone.name)
                if deleted:
                    self._deleted[tombstone.name] = None
            self._service.wake()

    # ---------------------------------------------------------------------------------------------- errors and events

    def _note(self, error: BaseException, what: str, event: str, **fields: Any) -> None:
        self.last_error = error
        self.failures += 1
        _LOGGER.warning("%s of a worker failed: %r", what, error, exc_info=error)
        self._observer.event(event, error=repr(error), **fields)

    def _notify(self) -> None:
        with self._lock:
            events, self._events = self._events, []
        for name, fields in events:
            self._observer.event(name, **fields)

    def __repr__(self) -> str:
        return (f"Worker({len(self.jobs)} of {self._options.capacity} jobs"
                f"{'' if self._service.is_running else ', not running'})")
