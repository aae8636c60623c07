"""A worker: polls the scheduler, runs its jobs in threads, renews their leases, and cleans up.

The decisions are those of `WorkerCore`; here are the threads: one that polls, a pool for jobs, a pool for deletions.
"""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Self, TypeAlias

import attrs

from compactlib.budget import Budget
from compactlib.clock import Clock, SystemClock
from compactlib.errors import Busy, Closed, InvalidInput
from compactlib.observe import Observer
from compactlib.runtime import DaemonThreads, Run, Turns
from compactlib.scheduler.errors import FencedOff, JobLost, ReleaseJob
from compactlib.scheduler.model import CompactedBlocks, JobPlan, Tombstone
from compactlib.scheduler.output_id import output_block_id
from compactlib.scheduler.poll import PollResponse
from compactlib.scheduler.transport import Transport
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

WORKER_FAILED = "scheduler_worker_failed"
"""Something unexpected in the polling thread, which goes on: `error`, `message`, `failures`, `retry_in_seconds`."""
_LOOK_AGAIN_SECONDS = 0.1
"""How long somebody waits at most before they look at the (injected) clock again."""
_LEASE_PARTS = 3
"""A lease is renewed when a third of it is over, so that one lost poll does not cost it."""
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
        try:
            has_room = self.capacity >= 1 and self.cleanup_capacity >= 1
            has_times = 0 < self.poll_seconds <= self.max_poll_seconds < math.inf and 0 <= self.jitter <= 1
            is_patient = self.patience_seconds >= 0
        except TypeError as error:
            raise InvalidInput(f"{self!r}: {error}; give numbers") from error
        if not has_room or not is_patient:
            raise InvalidInput(f"capacity {self.capacity}, cleanup_capacity {self.cleanup_capacity}, patience_seconds "
                               f"{self.patience_seconds}; give at least 1, 1 and 0")
        if not has_times:
            raise InvalidInput(f"poll_seconds {self.poll_seconds}, max_poll_seconds {self.max_poll_seconds}, jitter "
                               f"{self.jitter}; give 0 < poll_seconds <= max_poll_seconds and a jitter from 0 to 1")


class RunningJob:
    """What an execute gets: the plan, and a look at whether the job is still the worker's. Any thread may use it.

    Attributes:
        plan: the job.
        budget: ask it before each chunk that is written; it is cancelled when the work has to stop.
    """

    def __init__(self, start: Start, budget: Budget, clock: Clock) -> None:
        self.plan: JobPlan = start.plan
        self.budget: Budget = budget
        self._clock = clock
        self._token = start.token
        self._deadline = start.deadline
        self._stopped: Stop | None = None

    @property
    def token(self) -> int:
        """The fencing token that the job was assigned with; give it to a `Fence`, first and around the commit.

        It stays the same for as long as the job runs. A job that this worker loses and is given again is another run,
        with a token of its own, so that a commit under this token rests on what was seen under this token.
        """
        return self._token

    @property
    def lease_seconds_left(self) -> float:
        """How long the lease lasts by this worker's clock; negative if it may be over."""
        return self._deadline - self._clock.monotonic()

    @property
    def is_stopped(self) -> bool:
        """Whether the work has to end: the job was lost, or the worker shuts down."""
        return self._stopped is not None

    def output_id(self, tenant: str | None = None, number: int = 0) -> str:
        """The id of a block to be written; see `output_block_id`. Stays the same while the job runs."""
        return output_block_id(self.plan, self._token, tenant, number)

    def check(self) -> None:
        """Return if the work may go on; call it now and then.

        Raises:
            JobLost: the job was lost, or the worker shuts down. Let it through.
        """
        stopped = self._stopped
        if stopped is not None:
            raise JobLost(name=stopped.name, reason=stopped.reason)

    def renew(self, renewed: Renewed) -> None:
        """Called by the worker when the lease was renewed."""
        self._deadline = renewed.deadline

    def stop(self, stop: Stop) -> None:
        """Called by the worker when the work has to end."""
        self._stopped = stop
        self.budget.cancel()

    def __repr__(self) -> str:
        return f"RunningJob({self.plan.name!r}, token {self.token}{', stopped' if self.is_stopped else ''})"


Execute: TypeAlias = Callable[[RunningJob], CompactedBlocks]
"""Does a job: reads the sources of `job.plan`, writes the outputs under ids of `job.output_id`, says what they are.

May run twice for one job, also at the same time. `JobLost` and `FencedOff` end a run that has lost its job, and
`ReleaseJob` gives it back; any other error counts as a failure of the job.
"""

Cleanup: TypeAlias = Callable[[Tombstone], object]
"""Deletes the objects of a tombstone, of which some may be gone already. Any error: they are not all deleted yet."""


class Worker:
    """Runs jobs until it is stopped. Use it in a `with`, or call `start` and `stop`; or `poll_once` in a loop of yours.

    Its threads are daemons: a process that ends without `stop`, or with a job that does not listen, does not wait for
    them; the scheduler finds out when the leases end.

    Args:
        transport: how polls reach the scheduler.
        execute: does a job; several run at once, in threads.
        cleanup: deletes objects; without it, the worker leaves tombstones to others.
        options: how it works.
        clock: where time comes from.
        observer: told of `scheduler_job_started`, `scheduler_job_stopped`, `scheduler_job_reported`,
            `scheduler_poll_failed`, `scheduler_cleanup_failed` and `scheduler_worker_failed` (what nobody expected in
            the polling thread, which goes on). What it raises is kept and logged.
        budget: what all jobs together may write.
        rng: for the jitter.
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
        # What its jobs, its deletions and its observer do is its own doing, on whatever thread.
        self._work = Run(self._budget)
        self._observer = self._work.observer(observer)
        self._rng = random.Random() if rng is None else rng
        self._core = WorkerCore(options.capacity, patience_seconds=options.patience_seconds,
                                cleanup_capacity=0 if cleanup is None else _BACKLOG * options.cleanup_capacity)
        self._running: dict[int, RunningJob] = {}
        self._job_threads = DaemonThreads(options.capacity, "compactlib-job")
        self._cleanup_threads = DaemonThreads(options.cleanup_capacity, "compactlib-cleanup")
        self._polls = Turns(self._turn, name="compactlib-worker", event=WORKER_FAILED, clock=self._clock,
                            observer=self._observer, first_delay_seconds=min(0.1, options.poll_seconds),
                            max_delay_seconds=options.max_poll_seconds)
        # What the core knows changes under it, and whoever waits for that is woken.
        self._changed = threading.Condition()
        self._polling = threading.Lock()
        self._unanswered = 0
        self._last_error: BaseException | None = None
        self._closed = False

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
    def last_error(self) -> BaseException | None:
        """What went wrong last: in the polling thread, in the transport, or in a cleanup. Jobs report their own."""
        return self._last_error

    def poll_once(self) -> bool:
        """Poll, and act on the answer; whether there was one. An error of the transport is an event, not raised.

        Raises:
            Closed: the worker was closed.
        """
        if self._closed:
            raise Closed("the worker was closed; make a new one")
        with self._polling:
            return self._poll()

    def _poll(self) -> bool:
        with self._changed:
            now = self._clock.monotonic()
            effects: Sequence[Effect] = self._core.give_up_overdue(now)
            self._carry_out(effects)
            request = self._core.poll(now)
        self._tell(effects)
        if request is None:
            return True
        try:
            response: object = self._transport.poll(request)
            if not isinstance(response, PollResponse):
                raise InvalidInput(f"the transport answered a {type(response).__name__}; it must answer a PollResponse")
        except Exception as error:
            self._unanswered += 1
            self._last_error = error
            self._observer.event("scheduler_poll_failed", {"error": repr(error), "in_a_row": self._unanswered})
            return False
        self._unanswered = 0
        with self._changed:
            effects = self._core.answered(request, response)
            self._carry_out(effects)
            self._changed.notify_all()
        self._tell(effects)
        return True

    def _turn(self) -> float:
        """What the polling thread does each time; returns in how many seconds it is to do it again."""
        try:
            with self._polling:
                self._poll()
        except BaseException as error:
            self._last_error = error
            raise
        return self._next_wait()

    def start(self) -> None:
        """Poll in a thread of its own from now on. Starting again does nothing.

        Raises:
            Closed: the worker was closed.
        """
        if self._closed:
            raise Closed("the worker was closed; make a new one")
        self._polls.start()

    def stop(self, *, wait_seconds: float = 30.0, give_back: bool = False) -> bool:
        """Take no more jobs; wait for those that run, then give back the rest, report, and close.

        Leases are renewed to the end. Returns whether everything was reported; if not, the scheduler finds out when the
        leases end. A job that does not look at `check` or at its budget, a cleanup or a transport that hangs, goes on
        in its thread, for as long as the process lasts, and does not keep it from ending.

        Args:
            wait_seconds: for the jobs to end by themselves, and once more for those that were told to; a transport that
                gives no answer is waited for no longer.
            give_back: do not wait for the jobs to end by themselves.

        Raises:
            Busy: called from a job, a cleanup or the observer of this worker; nothing was done.
        """
        if self._work.is_mine or self._polls.is_mine:
            raise Busy("a worker cannot be stopped from within its own work; stop it in another thread")
        if self._closed:
            return self.is_idle
        with self._changed:
            self._core.drain()
        # Polls are the thread's, so that one that hangs holds nobody up. By hand, there is a thread from now on.
        self._polls.start()
        self._polls.wake()
        if give_back or not self._wait_until_idle(wait_seconds):
            with self._changed:
                stops = self._core.give_back("the worker shuts down")
                self._carry_out(stops)
            self._tell(stops)
            self._polls.wake()
            self._wait_until_idle(wait_seconds)
        self._closed = True
        # One that is under way is given a moment to come to its end.
        self._polls.stop(wait_seconds=_LOOK_AGAIN_SECONDS)
        self._job_threads.close()
        self._cleanup_threads.close()
        return self.is_idle

    def _wait_until_idle(self, seconds: float) -> bool:
        """Wait until nothing is left to do or to say; `False` if this takes longer than allowed."""
        deadline = self._clock.monotonic() + seconds
        with self._changed:
            while not self._core.is_idle:
                left = deadline - self._clock.monotonic()
                if left <= 0 or not self._polls.is_running:
                    break
                self._changed.wait(min(left, _LOOK_AGAIN_SECONDS))
            return self._core.is_idle

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
                pause = min(pause, max(left / _LEASE_PARTS, options.poll_seconds / 10))
        return pause

    def _carry_out(self, effects: Sequence[Effect]) -> None:
        """Act on what the core decided; called under the lock."""
        for effect in effects:
            match effect:
                case Start():
                    self._running[effect.run] = job = RunningJob(effect, self._budget.lend(), self._clock)
                    self._begin(effect.run, job)
                case Renewed():
                    self._running[effect.run].renew(effect)
                case Stop():
                    self._running[effect.run].stop(effect)
                case Clean():
                    try:
                        self._cleanup_threads.submit(partial(self._clean, effect.tombstone))
                    except (RuntimeError, Closed) as error:
                        self._last_error = error
                        self._core.cleaned(effect.tombstone.name, deleted=False)

    def _begin(self, run: int, job: RunningJob) -> None:
        try:
            self._job_threads.submit(partial(self._run, run, job))
        except (RuntimeError, Closed) as error:
            # No thread can be started: somebody else should do it.
            self._last_error = error
            del self._running[run]
            self._core.ended(run, GivenBack(f"the worker has no thread for it: {error}"))

    def _tell(self, effects: Sequence[Effect]) -> None:
        """Tell the observer what was decided."""
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

    def _run(self, run: int, job: RunningJob) -> None:
        """In a thread: do a job, whatever comes of it."""
        outcome: RunOutcome
        try:
            with self._work.inside():
                job.check()
                results: object = self._execute(job)
            outcome = (Finished(results) if isinstance(results, CompactedBlocks) else
                       Crashed(f"the execute returned a {type(results).__name__}; it must return CompactedBlocks"))
        except (ReleaseJob, JobLost, FencedOff) as released:
            # What a fence refuses went to somebody else, which is no failure of the job; if the scheduler does not
            # know of anybody else, somebody should try again.
            outcome = GivenBack(str(released))
        except BaseException as error:
            # A job may also end in SystemExit or the like; the worker lives on.
            outcome = Crashed(f"{type(error).__name__}: {error}")
        with self._changed:
            del self._running[run]
            self._core.ended(run, outcome)
            self._changed.notify_all()
        self._polls.wake()

    def _clean(self, tombstone: Tombstone) -> None:
        """In a thread: delete what a tombstone names."""
        deleted = False
        try:
            if self._cleanup is not None:
                with self._work.inside():
                    self._cleanup(tombstone)
                deleted = True
        except BaseException as error:
            self._last_error = error
            self._observer.event("scheduler_cleanup_failed", {"tombstone": tombstone.name, "error": repr(error)})
        with self._changed:
            self._core.cleaned(tombstone.name, deleted=deleted)
            self._changed.notify_all()

    def audit(self) -> None:
        """Check that the threads and the core agree.

        Raises:
            AuditFailed: they do not; the message has the numbers.
            CompactlibError: the polling thread has ended although nobody stopped it.
        """
        self._polls.audit()
        with self._changed:
            self._core.audit()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.stop(give_back=kind is not None)

    def __repr__(self) -> str:
        return f"Worker({self._core!r}{', closed' if self._closed else ''})"
