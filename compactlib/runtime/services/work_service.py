# SPDX-License-Identifier: Apache-2.0
"""Background work on threads, one for each lane; a lane runs its pieces of work one at a time.

`Agenda` decides which work is next; this class reports to it what happens, carries out the turns that it hands out, and
waits. What is particular to a service is the work that it is given:

>>> from compactlib.outcome import Done
>>> service = WorkService("the shop", event="shop_failed")
>>> service.add("sweep", lambda job: Done(f"swept, {job.turn.cause}"), every_seconds=3600.0)
>>> service.add("deliver", lambda job: Done(f"delivered, {job.turn.cause}"))
>>> service.request("deliver")
Accepted(name='deliver', state='queued')
>>> [outcome.stats for outcome in service.run_pending()]
['delivered, asked', 'swept, periodic']

With `start`, or in a `with`, the same is done in daemon threads: a process that ends without `stop` does not wait for
them. Whatever work raises ends one turn at most; it is kept, logged, reported, and tried again after a growing delay.
`KeyboardInterrupt` and `SystemExit` let everything go as well, and end the thread, which `wait_idle` says.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Self, TypeAlias

import attrs

from compactlib.clock import Clock, SystemClock
from compactlib.errors import AuditFailed, BudgetSpent, Busy, Closed, CompactlibError, InvalidInput, TaskFailed
from compactlib.outcome import Done, Failed, Outcome, Skipped
from compactlib.runtime.budget import Budget
from compactlib.runtime.observe import Observer, telling
from compactlib.runtime.owned_lock import Changes
from compactlib.runtime.ownership import Run
from compactlib.runtime.services.agenda import Accepted, Agenda, Ending, Refused, Removed, Turn
from compactlib.runtime.services.turns import Turns
from compactlib.runtime.services.work_report import WorkReport

_LOGGER = logging.getLogger("compactlib.services")
_LONGEST_SLEEP_SECONDS = 60.0
"""How long a thread sleeps at most: looking again costs nothing, and repairs an unforeseen stand-still."""


@attrs.frozen
class Stopped:
    """A service has come to its end.

    Attributes:
        turns: how many it took in all.
        failures: how often an unexpected exception was raised.
    """

    turns: int
    failures: int


class Job:
    """A turn while it is carried out, as the work that does it sees it.

    Attributes:
        turn: what is to be done, and why.
        run: marks what the work does, on whichever thread, as the service's own doing.
    """

    def __init__(self, turn: Turn, run: Run) -> None:
        self.turn: Turn = turn
        self.run: Run = run
        self.is_stopped: bool = False
        self.is_put_off: bool = False
        self.has_closed: bool = False
        self.was_opened: bool = False
        self.next_in: float | None = None
        self.surprises: list[Exception] = []
        self._lent: list[Budget] = [run.budget]

    @property
    def budget(self) -> Budget:
        """What the turn may use up; cancelled when it is to end."""
        return self.run.budget

    def lend(self, budget: Budget) -> Budget:
        """One that draws on a budget of the work's own, and is cancelled when the turn is to end."""
        lent = budget.child()
        self._lent.append(lent)
        if self.is_stopped:
            lent.cancel()
        return lent

    def due_in(self, seconds: float) -> None:
        """The next periodic turn of this work comes so long after this one's end, whatever its `every_seconds`."""
        self.next_in = seconds

    def put_off(self) -> None:
        """What it could not do, since its store was busy, it does after `retry_seconds`; that is no failure."""
        self.is_put_off = True

    def rest(self) -> None:
        """What it works on is closed, which is no failure: it is left alone until `set_open` says otherwise, or done
        again if that was said while the turn ran.
        """
        self.has_closed = True

    def note(self, error: Exception) -> None:
        """An unexpected exception that the work has dealt with: kept, and reported when the turn ends."""
        self.surprises.append(error)

    def stop(self) -> None:
        """Have the turn end soon, which is then no failure."""
        self.is_stopped = True
        for budget in self._lent:
            budget.cancel()


Work: TypeAlias = Callable[[Job], Outcome[Any]]
"""Does a turn, in a thread of the service or of the caller of `run_pending`, and asks `job.budget` at every step.

What it raises is kept in `last_error`, and so is a `TaskFailed` that it returns: foreign code has raised. Any other
`Failed` is expected, and tried again as well.
"""


class WorkService:
    """A `Service` over pieces of work, each on a lane; a lane runs one at a time, lanes run side by side. Threads may
    share it.

    Args:
        what: the service, as messages and threads name it, for example `"the worker of the log in /data/a"`.
        event: its name when failed work is reported: `work`, `lane`, `error`, `message`, `failures` in a row,
            `retry_in_seconds` (`None` if it is not tried again).
        recovered: its name when that works again: `work`, `lane`, `failures`.
        retry_seconds: wait after a first failure, and after its store was busy, > 0; doubles.
        max_retry_seconds: how far it grows.
        clock: where time comes from; its `monotonic()` decides when something is due.
        budget: what all turns together may use up; the service cancels no more than what it lends from it.
        observer: notified, never inside a lock.

    Raises:
        InvalidInput: a time is out of its range.
    """

    def __init__(self, what: str, *, event: str, recovered: str = "", retry_seconds: float = 0.1,
                 max_retry_seconds: float = 60.0, clock: Clock | None = None, budget: Budget | None = None,
                 observer: Observer | None = None) -> None:
        self._what = what
        self._event = event
        self._recovered = recovered
        self._clock: Clock = SystemClock() if clock is None else clock
        self._budget = Budget(clock=self._clock) if budget is None else budget
        # What its threads, its work and its observer do is its own doing, on whichever thread.
        self._mark = Run(self._budget)
        self._observer = self._mark.observer(telling(observer))
        self._agenda = Agenda(retry_seconds=retry_seconds, max_retry_seconds=max_retry_seconds)
        self._work: dict[str, tuple[Work, Callable[[CompactlibError], bool]]] = {}
        self._jobs: dict[str, Job] = {}
        self._changed = Changes()
        self._has_threads = False
        self._lanes: dict[str, Turns] = {}
        self._ending: list[Turns] = []
        # Lanes whose thread ends, or has ended, by an exit that work has raised.
        self._exits: set[str] = set()
        self.last_error: BaseException | None = None
        """See `Service.last_error`."""
        self.failures: int = 0
        """See `Service.failures`."""
        self._turns_taken = 0
        self._last_now = 0.0

    # ------------------------------------------------------------------------------------------------------- work

    def add(self, name: str, work: Work, *, lane: str = "", every_seconds: float | None = None, resumes: bool = False,
            enabled: bool = True, is_open: bool = True,
            retries: Callable[[CompactlibError], bool] = lambda _: True) -> None:
        """Take in a piece of work.

        Args:
            name: unique in the service.
            work: does it.
            lane: to which it belongs.
            every_seconds: how often it is done by itself, at first when the service starts; `None`: when asked for.
            resumes: whether it has something to resume when it is started or opened, by a turn of strength 0.
            enabled: whether it may be done.
            is_open: whether what it works on is open.
            retries: whether work that has returned `Failed` with this error is tried again.

        Raises:
            InvalidInput: there is one of this name, or a time is not above 0.
        """
        with self._changed:
            if name not in self._agenda:
                # Before it can be due, whatever interrupts this.
                self._work[name] = work, retries
            self._agenda.add(name, lane, self._now(), every_seconds=every_seconds, resumes=resumes,
                             enabled=enabled, is_open=is_open)
            self._wake(lane)

    def knows(self, name: str) -> bool:
        """Whether there is a piece of work of this name."""
        with self._changed:
            return name in self._agenda

    def remove(self, name: str, *others: str) -> Removed | Refused:
        """Forget pieces of work, all or none; see `Agenda.remove`.

        Raises:
            NotFound: there is none of this name.
        """
        with self._changed:
            answer = self._agenda.remove(name, *others)
            if isinstance(answer, Removed):
                for each in (name, *others):
                    self._work.pop(each, None)
            return answer

    def enable(self, name: str) -> None:
        """Let work be done; what is periodic is due at once.

        Raises:
            NotFound: there is none of this name.
        """
        with self._changed:
            self._agenda.set_enabled(name, True, self._now())
            self._wake(self._agenda[name].lane)

    def disable(self, name: str) -> None:
        """Do not do it any more; its turn under way is cancelled, and can be resumed.

        Raises:
            NotFound: there is none of this name.
        """
        with self._changed:
            if self._agenda.set_enabled(name, False, self._now()) and (job := self._jobs.get(name)):
                job.stop()

    def set_open(self, name: str, is_open: bool) -> None:
        """Report that what is worked on was opened or closed.

        Raises:
            NotFound: there is none of this name.
        """
        with self._changed:
            self._agenda.set_open(name, is_open, self._now())
            if is_open and (job := self._jobs.get(name)):
                job.was_opened = True
            self._wake(self._agenda[name].lane)

    def request(self, name: str, strength: int = 1, *, joins: bool = False) -> Accepted | Refused:
        """Ask for work to be done next; see `Agenda.request`."""
        with self._changed:
            answer = self._agenda.request(name, strength, joins=joins)
            if isinstance(answer, Accepted):
                self._wake(self._agenda[name].lane)
            return answer

    def note(self, error: BaseException) -> None:
        """Keep and log an unexpected exception, outside of a turn; within one see `Job.note`."""
        with self._changed:
            self.last_error, self.failures = error, self.failures + 1
            count = self.failures
        if count & (count - 1) == 0:
            _LOGGER.warning("%s: %r was raised (%d in all); it goes on", self._what, error, count, exc_info=error)

    def report(self) -> WorkReport:
        """All work as it stands now."""
        with self._changed:
            error = self.last_error
            return WorkReport.of(self._agenda, self._now(), what=self._what, failures=self.failures,
                                 last_error="" if error is None else f"{type(error).__name__}: {error}")

    # ---------------------------------------------------------------------------------------------------- running

    def start(self) -> None:
        """See `Service.start`. After `stop` it begins anew; a lane whose thread has ended is given another."""
        with self._changed:
            self._agenda.start(self._now())
            self._has_threads = True
            for lane, turns in list(self._lanes.items()):
                if lane in self._exits or not turns.is_running:
                    del self._lanes[lane]
            self._exits.clear()
            for lane in self._agenda.lanes:
                self._wake(lane)

    def run_pending(self) -> Sequence[Outcome[Any]]:
        """See `Service.run_pending`.

        Raises:
            Closed: it was stopped.
        """
        with self._changed:
            if self._agenda.is_stopped:
                raise Closed(f"{self._what} was stopped; start it, or make another one")
            self._agenda.start(self._now())
        outcomes = []
        with self._mark.inside():
            while (outcome := self._turn(None)) is not None:
                outcomes.append(outcome)
        return outcomes

    def stop(self, *, wait_seconds: float = 30.0) -> Done[Stopped] | Failed:
        """See `Service.stop`. What has not ended in time goes on in its daemon thread, and is followed by nothing.

        Raises:
            Busy: called from within its own work, on whichever thread; it ends all the same.
            InvalidInput: the time is negative, or no number.
        """
        left = waiting_time(wait_seconds)
        with self._changed:
            # What is begun after a later start is not waited for.
            jobs = [self._jobs[name] for name in self._agenda.stop() if name in self._jobs]
            for job in jobs:
                job.stop()
            self._has_threads = False
            self._ending += self._lanes.values()
            self._lanes.clear()
            for turns in self._ending:
                turns.end()
            ending = tuple(self._ending)
            self._changed.notify_all()
        if self._mark.is_mine:
            raise Busy(f"{self._what} cannot wait for its own end: it was stopped from within its own work; it begins "
                       f"nothing more, stop it in another thread to wait")
        for turns in ending:
            turns.stop(wait_seconds=left())
        with self._changed:
            self._changed.wait_for(lambda: not any(map(self._is_on, jobs)), left())
            self._ending = [turns for turns in self._ending if turns.is_running]
            running = [job.turn.name for job in jobs if self._is_on(job)]
            if running or any(turns.is_running for turns in ending):
                return Failed(Busy(f"{self._what} has not ended in {wait_seconds:g} seconds: "
                                   f"{', '.join(running) or 'a thread'} still runs; it was cancelled, and nothing "
                                   f"begins after it; stop again to wait longer"))
            return Done(Stopped(self._turns_taken, self.failures))

    def wait_until_idle(self, seconds: float = 60.0) -> None:
        """Return when nothing is done and nothing is due; what waits for its delay after a failure is not waited for.

        Raises:
            Busy: that has not come in `seconds`; or called from within its own work.
            AuditFailed: a thread has ended, as after `SystemExit`.
        """
        if self._mark.is_mine:
            raise Busy(f"{self._what} is never idle from within its own work; wait in another thread")
        left = waiting_time(seconds)
        with self._changed:
            # Looked at again now and then: the host's clock may move, and a thread end, without waking any other.
            while not self._agenda.is_at_rest(self._now()):
                if left() == 0:
                    self.require_threads()
                    raise Busy(f"{self._what} is not idle after {seconds:g} seconds: {self._told_jobs()}; wait again")
                if not self._changed.wait(min(left(), 0.05)):
                    self.require_threads()
            # All work is gone through only where a thread has ended.
            has_ended = bool(self._exits) or not all(turns.is_running for turns in self._lanes.values())
        if has_ended:
            self.require_threads()

    @property
    def is_mine(self) -> bool:
        """Whether the caller is a part of what the service does, on whichever thread."""
        return self._mark.is_mine

    @property
    def is_stopped(self) -> bool:
        """Whether it was stopped, and not started since."""
        return self._agenda.is_stopped

    def require_threads(self) -> None:
        """Return if every thread of the service runs.

        Raises:
            AuditFailed: one has ended, as after `SystemExit`.
        """
        with self._changed:
            for lane in self._agenda.lanes if self._has_threads else ():
                turns = self._lanes.get(lane)
                if turns is None or lane in self._exits or not turns.is_running:
                    raise AuditFailed(f"{self._what} has no thread {f'for {lane} ' if lane else ''}any more: "
                                      f"{self.last_error!r}; start it again")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<WorkService: {self.report()._summary()}>"

    # ------------------------------------------------------------------------------------------------------ inside

    def _now(self) -> float:
        """By the host's clock; while that raises, the time at which it did not."""
        try:
            self._last_now = self._clock.monotonic()
        except Exception as error:
            self.note(error)
        return self._last_now

    def _told_jobs(self) -> str:
        return f"{', '.join(self._jobs)} runs" if self._jobs else "what is due waits for `start` or `run_pending`"

    def _wake(self, lane: str) -> None:
        """Have a lane's thread look again; begins it if it is missing. Called under the lock."""
        self._changed.notify_all()
        if not self._has_threads:
            return
        turns = self._lanes.get(lane)
        if turns is None:
            turns = Turns(partial(self._lane_turn, lane), name=f"{self._what}{lane and ', '}{lane}", event=self._event,
                          clock=self._clock, observer=self._observer)
            try:
                turns.start()
            except RuntimeError as error:
                # No thread can be started; the next event tries again, and `require_threads` reports it.
                self.note(error)
                return
            self._lanes[lane] = turns
        turns.wake()

    def _lane_turn(self, lane: str) -> float:
        """What a lane's thread does each time; in how many seconds it is to look again."""
        with self._mark.inside():
            if self._turn(lane) is not None:
                return 0.0
            with self._changed:
                now = self._now()
                wake = self._agenda.next_wake(now, lane)
        return _LONGEST_SLEEP_SECONDS if wake is None else min(max(wake - now, 0.0), _LONGEST_SLEEP_SECONDS)

    def _turn(self, lane: str | None) -> Outcome[Any] | None:
        """Take a turn, and note how it ended, whatever that is; what is no `Exception` is raised after that.

        Args:
            lane: that of the thread, if it is the service's own; else the turn is one of any lane.

        Returns:
            The outcome; `None` if no turn is due.
        """
        begun: list[Job] = []
        try:
            self._take(lane, begun)
            return self._carry_out(begun[0]) if begun else None
        except BaseException as error:
            # Raised by the work, or an interrupt at any step on the way to it and back.
            if lane is not None and self._serves(lane) and not isinstance(error, Exception):
                self.last_error = error  # what `require_threads` names for the exit
                self._exits.add(lane)
            self.note(error)
            self._cut_short(begun, error)
            raise

    def _is_on(self, job: Job) -> bool:
        return self._jobs.get(job.turn.name) is job

    def _serves(self, lane: str) -> bool:
        """Whether the caller is the lane's present thread."""
        turns = self._lanes.get(lane)
        return turns is not None and turns.is_mine

    def _take(self, lane: str | None, begun: list[Job]) -> None:
        with self._changed:
            if lane is not None and not self._serves(lane):
                # The thread of a start that is over: `stop` waits for it, and not for what came after.
                return
            turn = self._agenda.take(self._now(), lane)
            if turn is not None:
                job = Job(turn, Run(self._budget))
                self._jobs[turn.name] = job
                begun.append(job)

    def _carry_out(self, job: Job) -> Outcome[Any]:
        work, retries = self._work[job.turn.name]
        try:
            with job.run.inside():
                try:
                    outcome = _checked(job.turn.name, work(job))
                    if isinstance(outcome, Failed) and isinstance(outcome.error, TaskFailed) and not job.surprises:
                        # What an executor or a task of the host's has raised.
                        job.note(outcome.error)
                finally:
                    for surprise in job.surprises:
                        self.note(surprise)
        except Exception as error:
            outcome = Failed(_ended(job.turn, error))
            self.note(error)
            retries = _always
        self._settle(job, _ending(job, outcome, retries), outcome)
        return outcome

    def _cut_short(self, begun: list[Job], error: BaseException) -> None:
        """Note the end of a turn that was left at whichever step."""
        for job in begun:
            if self._is_on(job):
                self._settle(job, "failed", Failed(_ended(job.turn, error)))
        with self._changed:
            for item in self._agenda.items:
                # Begun and noted under the lock: what is not noted now was left on the way.
                if item.running is not None and item.name not in self._jobs:
                    self._agenda.finished(item.name, "failed", Failed(_ended(item.running, error)), self._now())
            self._changed.notify_all()

    def _settle(self, job: Job, ending: Ending, outcome: Outcome[Any]) -> None:
        """A turn has ended."""
        name, lane = job.turn.name, job.turn.lane
        told: tuple[str, dict[str, Any]] | None = None
        with self._changed:
            item = self._agenda[name]
            before, now = item.failures, self._now()
            del self._jobs[name]
            self._turns_taken += 1
            if job.has_closed and not job.was_opened:
                self._agenda.set_open(name, False, now)
            if job.next_in is not None:
                self._agenda.set_due(name, now + job.next_in)
            self._agenda.finished(name, ending, outcome, now)
            met = outcome.error if ending == "failed" and isinstance(outcome, Failed) else \
                job.surprises[-1] if job.surprises else None
            if met is not None:
                told = self._event, {"work": name, "lane": lane, "error": type(met).__name__, "message": str(met),
                                     "failures": item.failures,
                                     "retry_in_seconds": item.retry_at - now if item.failures else None}
            elif self._recovered and before and not item.failures:
                told = self._recovered, {"work": name, "lane": lane, "failures": before}
            self._wake(lane)
        if told is not None:
            self._observer.event(*told)


def _ended(turn: Turn, error: BaseException) -> CompactlibError:
    return ended_in(f"the work {turn.name}", error, task=turn.name)


def _always(_: CompactlibError) -> bool:
    return True


def _ending(job: Job, outcome: Outcome[Any], retries: Callable[[CompactlibError], bool]) -> Ending:
    match outcome:
        case Done():
            return "done"
        case Skipped():
            return "busy" if outcome.is_busy or job.is_put_off else "skipped"
        case Failed(error):
            if job.has_closed or (job.is_stopped and isinstance(error, BudgetSpent)):
                return "stopped"
            if job.is_put_off:
                return "busy"
            return "failed" if retries(error) else "given up"


def _checked(name: str, outcome: object) -> Outcome[Any]:
    """Work of a host's own may answer anything."""
    if not isinstance(outcome, Done | Skipped | Failed):
        raise InvalidInput(f"the work {name} has answered {outcome!r}; it has to return Done, Skipped or Failed")
    return outcome


def ended_in(what: str, error: BaseException, *, task: str = "") -> CompactlibError:
    """`error` as a failure's own: itself if it is one of the library's, else a `TaskFailed` that describes it.

    Args:
        what: what has ended, for the message.
        error: in what.
        task: its name; default `what`.
    """
    if isinstance(error, CompactlibError):
        return error
    kind = type(error).__name__
    return TaskFailed(f"{what} ended in {kind}: {error}", task=task or what, kind=kind, detail=repr(error))


def waiting_time(seconds: float) -> Callable[[], float]:
    """Says how much of `seconds` is left. By the system's time, whatever clock the work uses."""
    given: object = seconds
    if isinstance(given, bool) or not isinstance(given, int | float) or not given >= 0:
        raise InvalidInput(f"{given!r} is no time to wait; give seconds, 0 or more")
    clock = SystemClock()
    deadline = clock.monotonic() + min(seconds, threading.TIMEOUT_MAX / 2)
    return lambda: max(deadline - clock.monotonic(), 0.0)
