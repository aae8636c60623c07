# SPDX-License-Identifier: Apache-2.0
"""A worker: polls the scheduler, runs its jobs in threads, renews their leases, and cleans up.

The decisions are those of `WorkerCore`, the threads those of `compactlib.runtime`; here they are joined.
"""

from __future__ import annotations

import math
import random
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import attrs

from compactlib.clock import Clock, SystemClock
from compactlib.errors import AuditFailed, BudgetSpent, Busy, Closed, InvalidInput, TaskFailed
from compactlib.fences import FencedOff
from compactlib.outcome import Done, Failed, Outcome, Skipped
from compactlib.runtime.budget import Budget
from compactlib.runtime.observe import Observer
from compactlib.runtime.owned_lock import Changes
from compactlib.runtime.ownership import Run
from compactlib.runtime.services.daemon_threads import DaemonThreads
from compactlib.runtime.services.service_face import ServiceFace
from compactlib.runtime.services.work_service import Job, WorkService, ended_in, waiting_time
from compactlib.scheduler.errors import JobLost, ReleaseJob
from compactlib.scheduler.model.poll import PollResponse
from compactlib.scheduler.model.values import CompactedBlocks, Tombstone
from compactlib.scheduler.persistence.plain import misfit
from compactlib.scheduler.workers.running_job import Cleanup, Execute, RunningJob
from compactlib.scheduler.workers.transport import Transport
from compactlib.scheduler.workers.worker_core import (
    Clean,
    Crashed,
    Effect,
    Finished,
    GivenBack,
    Renewed,
    RunOutcome,
    Settled,
    Start,
    Stop,
    WorkerCore,
)

WORKER_FAILED = "scheduler_worker_failed"
"""Something unexpected in the polling thread, which goes on: `error`, `message`, `failures`, `retry_in_seconds`."""
_LOOK_AGAIN_SECONDS = 0.1
"""The longest pause between two looks of a caller that waits for the end."""
_POLLS = "polls"
_LEASE_PARTS = 3
"""A lease is renewed when a third of it is over, so that one lost poll does not cost it."""
_LEAST_SECONDS = 0.1
"""Between two polls, however soon a lease ends, unless the worker polls more often anyway."""
_BACKLOG = 64
"""Tombstones that wait for a thread, for each one: what is not taken comes back only when its own lease has ended."""


@attrs.frozen(kw_only=True)
class WorkerOptions:
    """How a worker works.

    Attributes:
        capacity: jobs at a time, >= 1.
        cleanup_capacity: tombstones at a time, if the worker has a cleanup, >= 1; up to 64 times as many wait in line.
        poll_seconds: time between polls, > 0; shorter while a lease is short, and when a job has ended.
        max_poll_seconds: how far the time between polls grows while there is no answer.
        jitter: the share, 0 .. 1, by which this time varies, so that workers do not poll all at once.
        patience_seconds: how long after the end of a lease, without an answer, a job is stopped.

    Raises:
        InvalidInput: a number is out of its range.
    """

    capacity: int = 1
    cleanup_capacity: int = 4
    poll_seconds: float = 5.0
    max_poll_seconds: float = 60.0
    jitter: float = 0.1
    patience_seconds: float = 300.0

    def __attrs_post_init__(self) -> None:
        has_room = self.capacity >= 1 and self.cleanup_capacity >= 1
        has_times = 0 < self.poll_seconds <= self.max_poll_seconds < math.inf and 0 <= self.jitter <= 1
        is_patient = self.patience_seconds >= 0
        if not has_room or not is_patient:
            raise InvalidInput(f"capacity {self.capacity}, cleanup_capacity {self.cleanup_capacity}, patience_seconds "
                               f"{self.patience_seconds}; give at least 1, 1 and 0")
        if not has_times:
            raise InvalidInput(f"poll_seconds {self.poll_seconds}, max_poll_seconds {self.max_poll_seconds}, jitter "
                               f"{self.jitter}; give 0 < poll_seconds <= max_poll_seconds and a jitter from 0 to 1")


@attrs.frozen
class Polled:
    """What a poll came to.

    Attributes:
        started: jobs that the worker was given.
        reported: jobs whose end the scheduler has taken note of.
        deletions: tombstones that the worker was given.
    """

    started: tuple[str, ...]
    reported: tuple[str, ...]
    deletions: int


class Worker(ServiceFace):
    """Runs jobs until it is stopped: a `contract.Service`. Use it in a `with`, or call `start` and `stop`.

    One thread polls; each job that runs has a thread, and so has each deletion, begun when they are needed. They are
    daemons: a process that ends without `stop`, or with a job that does not listen, does not wait for them; the
    scheduler finds out when the leases end. A host without threads calls `run_pending` in a loop of its own.

    Args:
        transport: how polls reach the scheduler.
        execute: does a job; several run at once, in threads. What it raises fails the job, is logged with its
            traceback, kept in `last_error` and counted in `failures`.
        cleanup: deletes objects; without it, the worker leaves tombstones to others.
        options: how it works.
        clock: where time comes from.
        observer: notified of `scheduler_job_started`, `scheduler_job_stopped`, `scheduler_job_reported`,
            `scheduler_poll_failed`, `scheduler_cleanup_failed` and `scheduler_worker_failed` (an unexpected exception
            in the polling thread, which goes on). What it raises is kept and logged.
        budget: what all jobs together may write.
        rng: for the jitter.

    Raises:
        InvalidInput: an argument is of another type than it should be.
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
        # What its observer does is its own doing, on whatever thread.
        self._mark = Run(self._budget)
        self._observer = self._mark.observer(observer)
        self._rng = random.Random() if rng is None else rng
        self._service = WorkService("the worker", event=WORKER_FAILED, clock=self._clock, budget=self._budget,
                                    retry_seconds=min(0.1, options.poll_seconds),
                                    max_retry_seconds=options.max_poll_seconds, observer=self._observer)
        self._core = WorkerCore(options.capacity, patience_seconds=options.patience_seconds,
                                cleanup_capacity=0 if cleanup is None else _BACKLOG * options.cleanup_capacity)
        self._running: dict[int, RunningJob] = {}
        self._job_threads, self._cleanup_threads = self._threads()
        # What the core knows changes under it, and callers that wait for that are woken.
        self._changed = Changes()
        self._polling = threading.Lock()
        self._unanswered = 0
        self._next_poll_at = 0.0
        # What the polls of a thread's `run_pending` have brought.
        self._by_hand = threading.local()
        self._end_at: float | None = None
        self._service.add(_POLLS, self._poll_turn, lane=_POLLS, every_seconds=options.poll_seconds,
                          retries=lambda error: False)

    @property
    def jobs(self) -> tuple[str, ...]:
        """The names of the jobs it has: running, or ended and not reported yet."""
        with self._changed:
            return self._core.jobs

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs and nothing is left to be said."""
        with self._changed:
            return self._core.is_idle

    @property
    def is_mine(self) -> bool:
        """See `ServiceFace.is_mine`."""
        return self._mark.is_mine or self._service.is_mine

    # ------------------------------------------------------------------------------------------ begin, and end

    def _threads(self) -> tuple[DaemonThreads, DaemonThreads]:
        options = self._options
        return (DaemonThreads(options.capacity, "compactlib-job"),
                DaemonThreads(options.cleanup_capacity, "compactlib-cleanup"))

    def start(self) -> None:
        """Poll from now on, in a thread of its own; starting again does nothing, and after `stop` it begins anew."""
        with self._changed:
            if self._service.is_stopped:
                self._job_threads, self._cleanup_threads = self._threads()
            self._end_at = None
            self._core.take_again()
        self._service.start()

    def run_pending(self) -> Sequence[Outcome[Any]]:
        """Poll, do in the caller's thread what that brings, and report it; the outcome of each, in order.

        A lease is renewed by polls, and here by the job's own `RunningJob.check`: there is no other poll meanwhile.

        Raises:
            Closed: it was stopped.
            Busy: called by a job, a cleanup or the observer of a `run_pending` in this thread.
        """
        if hasattr(self._by_hand, "calls"):
            raise Busy("run_pending() was called from within the work of another one; call it when that has returned")
        calls = self._by_hand.calls = deque[Callable[..., Outcome[Any]]]()
        self._by_hand.takes_jobs = True
        try:
            self._service.request(_POLLS)
            outcomes = [*self._service.run_pending()]
            while calls:
                # Listed until it has ended, which ending it again does not change.
                outcomes.append(calls[0]())
                calls.popleft()
                if not calls:
                    self._by_hand.takes_jobs = False
                    self._service.request(_POLLS)
                    outcomes += self._service.run_pending()
            return outcomes
        finally:
            for call in calls:
                call(interrupted=True)
            self._by_hand.__dict__.clear()

    def stop(self, *, wait_seconds: float = 30.0, grace_seconds: float = 0.0) -> Done[Any] | Failed:
        """Take no more jobs, cancel those that run, give them back, report, and wait for the end of all that.

        Leases are renewed to the end. A job that does not look at `check` or at its budget, a cleanup or a transport
        that hangs goes on in its daemon thread, and keeps no process from ending; the scheduler finds out when the
        leases end. Stopping again waits again.

        Args:
            wait_seconds: for the end.
            grace_seconds: before that, how long jobs may come to an end of their own, and are not cancelled.

        Returns:
            `Done`; or `Failed(Busy)` if something still runs, or could not be reported, when the time is over.

        Raises:
            Busy: called from a job, a cleanup or the observer of this worker; it ends all the same.
            InvalidInput: a time is negative, or no number.
        """
        grace, given = waiting_time(grace_seconds), waiting_time(wait_seconds)()
        with self._changed:
            self._core.drain()
        if self.is_mine:
            self._give_back()
            self._end_at = self._clock.monotonic() + given
            raise Busy("a worker cannot wait for its own end: it was stopped from within its own work, and takes no "
                       "more jobs; stop it in another thread to wait")
        if not self.is_idle:
            self._go_on()
            self._wait_until_idle(grace)
        left = waiting_time(wait_seconds)
        while True:
            if not self.is_idle:
                self._go_on()
                self._give_back()
                self._wait_until_idle(left)
            outcome = self._service.stop(wait_seconds=left())
            if self.is_idle:
                self._job_threads.close()
                self._cleanup_threads.close()
                return outcome
            # The answer to the very last poll has brought a job, perhaps, which is to be given back.
            if left() == 0:
                what = ", ".join(self.jobs) or "a deletion"
                return Failed(Busy(f"the worker has not ended in {wait_seconds:g} seconds: {what} still runs, or could "
                                   f"not be reported; the scheduler finds out when the leases end, or stop again to "
                                   f"wait longer"))

    def _go_on(self) -> None:
        """A thread has to report what is left: the polling thread, or a new one if it has ended or never was."""
        self._service.start()
        self._service.request(_POLLS)

    def _give_back(self) -> None:
        with self._changed:
            stops = self._core.give_back("the worker shuts down")
            self._carry_out(stops)
        self._tell(stops)
        self._service.request(_POLLS)

    def _wait_until_idle(self, left: Callable[[], float]) -> None:
        """Return when nothing is left to do or to report, or no thread could report it, or the time is over."""
        with self._changed:
            while not self._core.is_idle and left() > 0:
                self._changed.wait(min(left(), _LOOK_AGAIN_SECONDS))
                try:
                    self._service.require_threads()
                except AuditFailed:
                    return

    # ------------------------------------------------------------------------------------------------ polling

    def _poll_turn(self, job: Job) -> Outcome[Polled]:
        try:
            return self._poll(job.note, takes_jobs=getattr(self._by_hand, "takes_jobs", True))
        finally:
            job.due_in(max(self._next_poll_at - self._clock.monotonic(), 0.0))
            end_at = self._end_at
            if end_at is not None and (self.is_idle or self._clock.monotonic() >= end_at):
                # It was stopped from within its own work, and has come to its end.
                with suppress(Busy):
                    self._service.stop()

    def _poll(self, note: Callable[[Exception], object], *, takes_jobs: bool) -> Outcome[Polled]:
        with self._polling:
            try:
                return self._ask(note, takes_jobs)
            finally:
                self._next_poll_at = self._clock.monotonic() + self._next_wait()

    def _ask(self, note: Callable[[Exception], object], takes_jobs: bool) -> Outcome[Polled]:
        with self._changed:
            now = self._clock.monotonic()
            effects: Sequence[Effect] = self._core.give_up_overdue(now)
            self._carry_out(effects)
            request = self._core.poll(now, takes_jobs=takes_jobs)
        self._tell(effects)
        if request is None:
            return Skipped(f"there is nothing to say, and no room for a job: capacity={self._options.capacity}")
        try:
            response: object = self._transport.poll(request)
            # All of it before any: a job that only the half of an answer has begun would never run.
            problem = misfit(response, PollResponse)
            if problem is not None or not isinstance(response, PollResponse):
                raise InvalidInput(f"the transport must answer a PollResponse: {problem}")
        except Exception as error:
            self._unanswered += 1
            note(error)
            self._observer.event("scheduler_poll_failed", {"error": repr(error), "in_a_row": self._unanswered})
            return Failed(ended_in(_POLLS, error), changed="unknown")
        self._unanswered = 0
        with self._changed:
            try:
                effects = self._core.answered(request, response)
                self._carry_out(effects)
            except BaseException:
                # Interrupted in between: what has not begun never will, and somebody else should do it.
                for run in set(self._core.runs) - self._running.keys():
                    self._core.ended(run, GivenBack("the thread that was to begin it was interrupted"))
                for tombstone in response.tombstones:
                    self._core.cleaned(tombstone.name, deleted=False)
                raise
            self._changed.notify_all()
        self._tell(effects)
        polled = Polled(tuple(effect.plan.name for effect in effects if isinstance(effect, Start)),
                        tuple(effect.name for effect in effects if isinstance(effect, Settled)),
                        sum(isinstance(effect, Clean) for effect in effects))
        if request.status_updates or polled.started or polled.deletions:
            return Done(polled)
        return Skipped(response.why or "the scheduler had nothing for this worker")

    def _next_wait(self) -> float:
        """Seconds until the next poll."""
        options = self._options
        pause: float = min(options.poll_seconds * 2.0 ** min(self._unanswered, 30), options.max_poll_seconds)
        pause *= 1 + options.jitter * (2 * self._rng.random() - 1)
        with self._changed:
            deadline = self._core.earliest_deadline()
        if deadline is not None:
            # More often while a lease is running out; no more so once that has not helped.
            left = deadline - self._clock.monotonic()
            if left > 0:
                pause = min(pause, max(left / _LEASE_PARTS, min(options.poll_seconds / 10, _LEAST_SECONDS)))
        return pause

    def _keep_leases(self) -> None:
        """In a job that runs inside `run_pending`: poll if it is time to."""
        if self._clock.monotonic() >= self._next_poll_at:
            try:
                self._poll(self._service.note, takes_jobs=False)
            except Exception as error:
                self._service.note(error)

    def _carry_out(self, effects: Sequence[Effect]) -> None:
        """Act on what the core decided; called under the lock."""
        for effect in effects:
            match effect:
                case Start():
                    keep = self._keep_leases if hasattr(self._by_hand, "calls") else None
                    self._running[effect.run] = job = RunningJob(effect, self._budget.child(), self._clock, keep)
                    self._begin(effect.run, job)
                case Renewed():
                    self._running[effect.run].renew(effect)
                case Stop():
                    self._running[effect.run].stop(effect)
                case Clean():
                    try:
                        self._submit(self._cleanup_threads, partial(self._clean, effect.tombstone))
                    except (RuntimeError, Closed) as error:
                        self._service.note(error)
                        self._core.cleaned(effect.tombstone.name, deleted=False)

    def _begin(self, run: int, job: RunningJob) -> None:
        try:
            self._submit(self._job_threads, partial(self._run, run, job))
        except (RuntimeError, Closed) as error:
            # No thread can be started: another worker should do it.
            self._service.note(error)
            del self._running[run]
            self._core.ended(run, GivenBack(f"the worker has no thread for it: {error}"))

    def _submit(self, threads: DaemonThreads, call: Callable[..., Outcome[Any]]) -> None:
        calls = getattr(self._by_hand, "calls", None)
        if calls is None:
            threads.submit(call)
        else:
            calls.append(call)

    def _tell(self, effects: Sequence[Effect]) -> None:
        """Notify the observer of what was decided."""
        for effect in effects:
            match effect:
                case Start():
                    self._observer.event("scheduler_job_started", {"job": effect.plan.name, "token": effect.token})
                case Stop():
                    self._observer.event("scheduler_job_stopped", {"job": effect.name, "lost": effect.lost,
                                                                   "reason": effect.reason})
                case Settled():
                    verdict = None if effect.verdict is None else effect.verdict.name
                    self._observer.event("scheduler_job_reported", {"job": effect.name, "status": effect.status.name,
                                                                    "verdict": verdict, "detail": effect.detail})

    # ------------------------------------------------------------------------------------ jobs, and deletions

    def _run(self, run: int, job: RunningJob, *, interrupted: bool = False) -> Outcome[Any]:
        """Do a job, whatever its outcome."""
        outcome: RunOutcome = GivenBack("the thread that was to do it was interrupted")
        try:
            if not interrupted:
                with self._mark.inside():
                    job.check()
                    results = self._execute(job)
                # What cannot be said would keep every poll of this worker from being answered.
                problem = misfit(results, CompactedBlocks)
                if problem is None:
                    outcome = Finished(results)
                else:
                    wrong = InvalidInput(f"the execute must return CompactedBlocks, of Python's own numbers, texts and "
                                         f"tuples: {problem}")
                    outcome = Crashed(str(wrong))
                    self._service.note(wrong)
        except (ReleaseJob, JobLost, FencedOff) as released:
            # What a fence refuses went to another worker, which is no failure of the job; if the scheduler does not
            # know of another worker, one should try again.
            outcome = GivenBack(str(released))
        except BaseException as error:
            outcome = Crashed(f"{type(error).__name__}: {error}")
            if not (job.is_stopped and isinstance(error, BudgetSpent)):
                self._service.note(error)
            self._let_through(error)
        finally:
            with self._changed:
                self._core.ended(run, outcome)
                self._running.pop(run, None)
                self._changed.notify_all()
            self._service.request(_POLLS)
        return _told(job.plan.name, outcome)

    def _clean(self, tombstone: Tombstone, *, interrupted: bool = False) -> Outcome[Any]:
        """Delete what a tombstone names."""
        told: Outcome[Any] = Skipped("the thread that was to delete it was interrupted")
        try:
            if self._cleanup is not None and not interrupted:
                with self._mark.inside():
                    self._cleanup(tombstone)
                told = Done(tombstone.name)
        except BaseException as error:
            told = Failed(ended_in(tombstone.name, error), changed="unknown")
            self._service.note(error)
            self._observer.event("scheduler_cleanup_failed", {"tombstone": tombstone.name, "error": repr(error)})
            self._let_through(error)
        finally:
            with self._changed:
                self._core.cleaned(tombstone.name, deleted=isinstance(told, Done))
                self._changed.notify_all()
        return told

    def _let_through(self, error: BaseException) -> None:
        """In the caller's thread interrupts are the caller's; in a thread of its own the worker lives on."""
        if not isinstance(error, Exception) and hasattr(self._by_hand, "calls"):
            raise error

    def __repr__(self) -> str:
        return f"Worker({self._core!r}{', stopped' if self._service.is_stopped else ''})"


def _told(job: str, outcome: RunOutcome) -> Outcome[Any]:
    match outcome:
        case Finished(compacted_blocks):
            return Done(compacted_blocks)
        case Crashed(reason):
            return Failed(TaskFailed(f"job {job!r}: {reason}", task=job, kind=reason.partition(":")[0], detail=reason),
                          changed="unknown")
        case GivenBack(reason):
            return Skipped(reason)
