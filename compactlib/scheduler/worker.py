# SPDX-License-Identifier: Apache-2.0
"""A worker: polls the scheduler, runs its jobs in threads, renews their leases, and cleans up.

`WorkerCore` decides; a `PeriodicService` polls; here they are joined. One lock guards the core, and is held for no call
of the host. Jobs and deletions run in daemon threads, begun when they are needed: a process that ends without `stop`,
or with a job that does not listen, does not wait for them, and the scheduler finds out when the leases end.
"""

from __future__ import annotations

import logging
import math
import random
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Self

import attrs

from compactlib.budget import Budget
from compactlib.clock import Clock, SystemClock
from compactlib.codec import JsonCodec
from compactlib.errors import BudgetSpent, Busy, InvalidInput
from compactlib.fences import FencedOff
from compactlib.observer import Observer, Observers
from compactlib.scheduler.errors import JobLost, ReleaseJob
from compactlib.scheduler.running_job import Cleanup, Execute, RunningJob, Transport
from compactlib.scheduler.values import CompactedBlocks, PollResponse, Tombstone
from compactlib.scheduler.worker_core import (
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
from compactlib.service import PeriodicService

_RESULTS: JsonCodec[CompactedBlocks] = JsonCodec(CompactedBlocks)
_LOGGER = logging.getLogger("compactlib.services")
_LEASE_PARTS = 3
"""A lease is renewed when a third of it is over, so that one lost poll does not cost it."""
_LEAST_SECONDS = 0.1
"""Between two polls, however soon a lease ends, unless the worker polls more often anyway."""
_BACKLOG = 64
"""Tombstones that wait for a thread, for each one: what is not taken comes back only when its own lease has ended."""
_LOOK_SECONDS = 0.02
"""Between two looks of `stop` whether the work has ended."""


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
        self._core = WorkerCore(options.capacity, patience_seconds=options.patience_seconds,
                                cleanup_capacity=0 if cleanup is None else _BACKLOG * options.cleanup_capacity)
        self._running: dict[int, RunningJob] = {}
        self._to_clean: deque[Tombstone] = deque()
        self._cleaners = 0
        self._unanswered = 0
        self._next_poll_at = 0.0
        self._is_ending = False
        self._mine = threading.local()  # `depth`: the thread is in a call of this worker's host
        self._polling = threading.RLock()
        self._service = PeriodicService(lambda budget: self._poll(), name="a worker's polls", clock=self._clock,
                                        every_seconds=options.poll_seconds, retry_seconds=options.poll_seconds,
                                        max_retry_seconds=options.max_poll_seconds)

    @property
    def jobs(self) -> tuple[str, ...]:
        """The names of the jobs it has: running, or ended and not reported yet."""
        with self._lock:
            return self._core.jobs

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs and nothing is left to be reported."""
        with self._lock:
            return self._core.is_idle

    # ------------------------------------------------------------------------------------------------ begin and end

    def start(self) -> None:
        """Poll from now on, in a thread of its own; starting again does nothing, and after `stop` it begins anew."""
        with self._lock:
            self._core.take_again()
            self._is_ending = False
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
        work: list[Callable[[], None]] = []
        self._poll(inline=work)
        done = 0
        try:
            while done < len(work):
                done += 1
                work[done - 1]()
        finally:
            for call in work[done:]:
                call.keywords["is_left"] = True  # type: ignore[attr-defined]  # a `partial`
                call()
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
            self._core.drain()
            self._is_ending = True
        if grace_seconds > 0 and not self._is_inside:
            self._wait_until_idle(grace_seconds)
        with self._lock:
            stops = self._core.give_back("the worker shuts down")
            self._carry_out(stops, None)
        self._notify(stops)
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

    # ---------------------------------------------------------------------------------------------------- polling

    def _poll(self, *, takes_jobs: bool = True, inline: list[Callable[[], None]] | None = None) -> float:
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

    def _ask(self, takes_jobs: bool, inline: list[Callable[[], None]] | None) -> None:
        with self._lock:
            now = self._clock.monotonic()
            effects: Sequence[Effect] = self._core.give_up_overdue(now)
            self._carry_out(effects, inline)
            request = self._core.poll(now, takes_jobs=takes_jobs)
        self._notify(effects)
        if request is None:
            return
        try:
            response: object = self._of_host(partial(self._transport.poll, request))
            if not isinstance(response, PollResponse):
                raise InvalidInput(f"the transport returned {response!r:.100}; it must return a PollResponse")
        except BaseException as error:
            self._unanswered += 1
            self._note(error, "a poll")
            self._observer.event("scheduler_poll_failed", error=repr(error), in_a_row=self._unanswered)
            if not isinstance(error, Exception) and inline is not None:
                raise
            return
        self._unanswered = 0
        with self._lock:
            effects = self._core.answered(request, response)
            self._carry_out(effects, inline)
        self._notify(effects)

    def _of_host(self, call: Callable[[], object]) -> object:
        """Call the host, and know meanwhile that this thread is in the worker's work."""
        self._mine.depth = getattr(self._mine, "depth", 0) + 1
        try:
            return call()
        finally:
            self._mine.depth -= 1

    def _next_pause(self) -> float:
        options = self._options
        pause: float = min(options.poll_seconds * 2.0 ** min(self._unanswered, 30), options.max_poll_seconds)
        pause *= 1 + options.jitter * (2 * self._rng.random() - 1)
        with self._lock:
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
            self._poll(takes_jobs=False)

    def _carry_out(self, effects: Sequence[Effect], inline: list[Callable[[], None]] | None) -> None:
        """Act on what the core decided, with the lock held."""
        for effect in effects:
            match effect:
                case Start():
                    job = RunningJob(effect, self._budget.child(), self._clock,
                                     None if inline is None else self._keep_leases)
                    self._running[effect.run] = job
                    self._begin(partial(self._run, effect.run, job, is_inline=inline is not None), inline)
                case Renewed():
                    self._running[effect.run].renew(effect.deadline)
                case Stop() if effect.run in self._running:
                    self._running[effect.run].stop(effect)
                case Clean() if inline is not None:
                    inline.append(partial(self._clean, effect.tombstone, is_inline=True))
                case Clean():
                    self._to_clean.append(effect.tombstone)
                    if self._cleaners < self._options.cleanup_capacity:
                        self._cleaners += 1
                        self._begin(self._clean_all, None)

    def _begin(self, work: Callable[[], None], inline: list[Callable[[], None]] | None) -> None:
        if inline is not None:
            inline.append(work)
            return
        try:
            threading.Thread(target=work, name="compactlib-job", daemon=True).start()
        except RuntimeError as error:
            # No thread can be started: another worker should do it.
            self._note(error, "a thread")
            if isinstance(work, partial):
                run = work.args[0]
                del self._running[run]
                self._core.ended(run, GivenBack(f"the worker has no thread for it: {error}"))
            else:
                self._cleaners -= 1
                self._core.cleaned(self._to_clean.pop().name, deleted=False)

    def _notify(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case Start():
                    self._observer.event("scheduler_job_started", job=effect.plan.name, token=effect.token)
                case Stop():
                    self._observer.event("scheduler_job_stopped", job=effect.name, lost=effect.lost,
                                         reason=effect.reason)
                case Settled():
                    self._observer.event("scheduler_job_reported", job=effect.name, status=effect.status.name,
                                         detail=effect.detail,
                                         verdict=None if effect.verdict is None else effect.verdict.name)

    def _note(self, error: BaseException, what: str) -> None:
        self.last_error = error
        self.failures += 1
        _LOGGER.warning("%s of a worker failed: %r", what, error, exc_info=error)

    # ------------------------------------------------------------------------------------------- jobs and deletions

    def _run(self, run: int, job: RunningJob, *, is_inline: bool, is_left: bool = False) -> None:
        """Do a job, and note how it ended; `is_left`: an interrupt came before it could begin."""
        outcome: RunOutcome = GivenBack("the thread that was to do it was interrupted")
        try:
            if not is_left:
                job.check()
                results = self._of_host(partial(self._execute, job))
                if not isinstance(results, CompactedBlocks):
                    raise InvalidInput(f"the execute returned {results!r:.100}; it must return CompactedBlocks")
                # What cannot be stored would keep every later poll of this worker from being answered.
                _RESULTS.to_plain(results)
                outcome = Finished(results)
        except (ReleaseJob, JobLost, FencedOff) as released:
            # What a fence refuses went to another worker, which is no failure of the job; if the scheduler does not
            # know of another worker, one should try again.
            outcome = GivenBack(str(released))
        except BaseException as error:
            outcome = Crashed(f"{type(error).__name__}: {error}")
            if not (job.is_stopped and isinstance(error, BudgetSpent)):
                self._note(error, f"job {job.plan.name}")
                self._observer.event("scheduler_job_failed", job=job.plan.name, error=repr(error))
            if is_inline and not isinstance(error, Exception):
                raise
        finally:
            with self._lock:
                self._core.ended(run, outcome)
                self._running.pop(run, None)
            self._service.wake()

    def _clean_all(self) -> None:
        while True:
            with self._lock:
                if not self._to_clean:
                    self._cleaners -= 1
                    return
                tombstone = self._to_clean.popleft()
            self._clean(tombstone, is_inline=False)

    def _clean(self, tombstone: Tombstone, *, is_inline: bool, is_left: bool = False) -> None:
        """Delete what a tombstone names."""
        deleted = False
        try:
            if self._cleanup is not None and not is_left:
                self._of_host(partial(self._cleanup, tombstone))
                deleted = True
        except BaseException as error:
            self._note(error, f"the cleanup of {tombstone.name}")
            self._observer.event("scheduler_cleanup_failed", tombstone=tombstone.name, error=repr(error))
            if is_inline and not isinstance(error, Exception):
                raise
        finally:
            with self._lock:
                self._core.cleaned(tombstone.name, deleted=deleted)
            self._service.wake()

    def __repr__(self) -> str:
        return f"Worker({self._core!r}{'' if self._service.is_running else ', not running'})"
