"""`CompactionWorker`: takes the sensor's triggers and compacts, one compaction per branch at a time; cleans up.

`run_pending` is all of it, without a thread: hosts that have their own scheduler call it. `start` makes a thread that
does nothing else. What a policy, an executor or a store of the host's raises, whatever it is, is kept in `last_error`,
counted and told; the trigger is tried again later, and the others go on.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Final, Self

import attrs

from compactlib.budget import Budget
from compactlib.clock import Clock, SystemClock
from compactlib.errors import AuditFailed, Closed, CompactlibError, InvalidInput, TaskFailed
from compactlib.observe import Observer, telling
from compactlib.outcome import Failed
from compactlib.runtime import Ownership, Run, Turns
from compactlib.staging.cleanup import TokenCleaner
from compactlib.staging.compaction_outcome import CompactionOutcome, NothingToDo
from compactlib.staging.compactor import Compactor
from compactlib.staging.errors import BranchNotFound
from compactlib.staging.plan import PlanPolicy
from compactlib.staging.sensor import CompactionSensor, CompactionTrigger

_POLL_SECONDS: Final = 0.5
"""How long the thread waits for a trigger before it looks whether it is time to clean up, or to end."""
_LONGEST_DELAY_SECONDS: Final = 30.0
"""How long the thread waits at most after turns in a row in which something was raised that was not expected."""
DEFAULT_CLEANUP_SECONDS = 600.0
WORKER_FAILED: Final = "staging_worker_failed"
"""The event of an error that was not expected: `error`, `message`, and `repository` and `branch` if it was at one."""


@attrs.frozen
class WorkDone:
    """One compaction that a worker tried.

    Attributes:
        trigger: why.
        outcome: what it ended in.
    """

    trigger: CompactionTrigger
    outcome: CompactionOutcome


class BranchesAtWork:
    """Which branches are being compacted: the single flight that several workers of one process share."""

    def __init__(self) -> None:
        self._branches: set[tuple[str, str]] = set()
        self._lock = threading.Lock()

    def enter(self, repository: str, branch: str) -> bool:
        """Whether the branch was free; now it is taken."""
        with self._lock:
            if (repository, branch) in self._branches:
                return False
            self._branches.add((repository, branch))
            return True

    def leave(self, repository: str, branch: str) -> None:
        """The branch is free again."""
        with self._lock:
            self._branches.remove((repository, branch))


class CompactionWorker:
    """Compacts the branches that a sensor names, and cleans up.

    Args:
        sensor: names the branches.
        compactors: one for each repository; triggers of other repositories are told to the observer and dropped.
        cleaners: what to clean up, at the start and on the timer.
        plan_policy: if given, a compaction is planned first, and carried out only if this policy says so.
        at_work: share one between the workers of a process, so that no branch is compacted twice at once.
        cleanup_seconds: how often to clean up.
        clock: for the timer.
        budget: what the compactions may use up together; cancel it to stop.
        observer: is told of errors.

    Raises:
        InvalidInput: two compactors are for one repository, or `cleanup_seconds` is not positive.
    """

    def __init__(self, sensor: CompactionSensor, compactors: Iterable[Compactor], *,
                 cleaners: Iterable[TokenCleaner] = (), plan_policy: PlanPolicy | None = None,
                 at_work: BranchesAtWork | None = None, cleanup_seconds: float = DEFAULT_CLEANUP_SECONDS,
                 clock: Clock | None = None, budget: Budget | None = None, observer: Observer | None = None) -> None:
        if not cleanup_seconds > 0:
            raise InvalidInput(f"cleanup_seconds is {cleanup_seconds}; give more than 0")
        self._sensor = sensor
        self._compactors: dict[str, Compactor] = {}
        for compactor in compactors:
            if self._compactors.setdefault(compactor.repository, compactor) is not compactor:
                raise InvalidInput(f"two compactors are for repository {compactor.repository!r}; give one of each")
        self._cleaners = tuple(cleaners)
        self._plan_policy = plan_policy
        self._at_work = BranchesAtWork() if at_work is None else at_work
        self._cleanup_seconds = cleanup_seconds
        self._clock: Clock = SystemClock() if clock is None else clock
        self._budget = budget
        self._observer = telling(observer)
        self._next_cleanup: float | None = None
        # Triggers that were taken and not carried out, to be tried again; one of each branch at most.
        self._again: deque[CompactionTrigger] = deque()
        self._last_error: BaseException | None = None
        self._failures = 0
        self._owner = Ownership("the staging worker")
        self._turns = Turns(self._turn, name="compactlib-staging", event="staging_worker_waits", clock=self._clock,
                            observer=self._observer, max_delay_seconds=_LONGEST_DELAY_SECONDS)

    @property
    def last_error(self) -> BaseException | None:
        """What was raised last that was not expected: by a policy, an executor, a store of the host's."""
        return self._last_error

    @property
    def failures(self) -> int:
        """How often something was raised that was not expected."""
        return self._failures

    def run_pending(self) -> list[WorkDone]:
        """Clean up if it is time, and carry out every trigger that waits, once; gives what came of each.

        Errors are outcomes, and are told to the observer; the next trigger goes on. One whose work raised something
        that was not expected waits for the next call. Gives nothing while the worker's thread, or another call, is at
        work.

        Raises:
            Closed: the worker was closed.
        """
        if self._owner.is_closed:
            raise Closed("this worker was closed; make a new one")
        done: list[WorkDone] = []
        with self._owner.begin(self._budget) as run:
            if run is None:
                return done
            self._clean_if_due(run)
            for _ in range(len(self._again)):
                self._carry_out(self._again.popleft(), run, done)
            while (trigger := self._sensor.take()) is not None:
                self._carry_out(trigger, run, done)
        return done

    def start(self) -> None:
        """Do the same in a thread of its own, until `close`; starting again does nothing.

        Raises:
            Closed: the worker was closed.
        """
        self._turns.start()

    def audit(self) -> None:
        """Check the worker's own invariants.

        Raises:
            AuditFailed: its thread has died, or the next cleanup lies too far ahead.
        """
        try:
            self._turns.audit()
        except AuditFailed:
            raise
        except CompactlibError as error:
            raise AuditFailed(str(error)) from error
        left = 0.0 if self._next_cleanup is None else self._next_cleanup - self._clock.monotonic()
        if left > self._cleanup_seconds:
            raise AuditFailed(f"the next cleanup is {left} seconds away, of {self._cleanup_seconds}")

    def close(self) -> None:
        """Cancel the compaction under way, wait for its end, and end the thread; closing again does nothing.

        What was cancelled has changed nothing that is read; the branch is compacted when it is triggered again.

        Raises:
            Busy: called from within the worker's own work: by a policy, an executor, a task or an observer.
        """
        self._owner.close()
        self._turns.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._owner.is_closed else "running" if self._turns.is_running else "not started"
        failed = f", {self._failures} failures, the last one {self._last_error!r}" if self._failures else ""
        return f"<CompactionWorker of {', '.join(map(repr, self._compactors)) or 'nothing'}: {state}{failed}>"

    def _turn(self) -> float:
        """One turn of the thread. An error is raised once everything else is done, so that the next turn waits."""
        if self._owner.is_closed:
            return _POLL_SECONDS
        waiting = len(self._again)
        # Those that failed are tried again after each delay, and do not keep fresh ones from being taken.
        trigger = self._sensor.take(0 if waiting else _POLL_SECONDS)
        done: list[WorkDone] = []
        failures, error = self._failures, None
        with self._owner.begin(self._budget) as run:
            if run is None:
                self._keep(trigger)
                return _POLL_SECONDS
            self._clean_if_due(run)
            for each in [*(self._again.popleft() for _ in range(waiting)), trigger]:
                if each is not None:
                    self._carry_out(each, run, done)
            error = self._last_error
        if self._failures > failures and error is not None:
            raise error
        return 0.0

    def _keep(self, trigger: CompactionTrigger | None) -> None:
        if trigger is not None and not any((each.repository, each.branch) == (trigger.repository, trigger.branch)
                                           for each in self._again):
            self._again.append(trigger)

    def _carry_out(self, trigger: CompactionTrigger, run: Run, done: list[WorkDone]) -> None:
        failed = self._attempt(lambda: self._compact(trigger, run, done), trigger)
        if failed is not None:
            self._keep(trigger)
            done.append(WorkDone(trigger, Failed(failed)))

    def _clean_if_due(self, run: Run) -> None:
        now = self._clock.monotonic()
        if self._next_cleanup is not None and now < self._next_cleanup:
            return
        self._next_cleanup = now + self._cleanup_seconds
        for cleaner in self._cleaners:
            self._attempt(lambda cleaner=cleaner: self._clean(cleaner, run))  # type: ignore[misc]

    def _clean(self, cleaner: TokenCleaner, run: Run) -> None:
        for outcome in (cleaner.run(budget=run.budget), cleaner.sweep(budget=run.budget)):
            if isinstance(outcome, Failed):
                self._observer.event("staging_cleanup_failed", {"error": str(outcome.error)})

    def _attempt(self, work: Callable[[], None], trigger: CompactionTrigger | None = None) -> CompactlibError | None:
        """Do it; gives what was raised, as an error of the library's, after it was kept and told."""
        try:
            work()
        except Exception as error:
            self._last_error = error
            self._failures += 1
            where = {} if trigger is None else {"repository": trigger.repository, "branch": trigger.branch}
            self._observer.event(WORKER_FAILED, {**where, "error": type(error).__name__, "message": str(error)})
            if isinstance(error, CompactlibError):
                return error
            what = "the cleanup" if trigger is None else f"the compaction of {trigger.repository}/{trigger.branch}"
            return TaskFailed(f"{what} met {error!r}; it is tried again", task=what, kind=type(error).__name__,
                              detail=repr(error))
        except BaseException as error:
            self._last_error = error
            self._failures += 1
            raise
        return None

    def _compact(self, trigger: CompactionTrigger, run: Run, done: list[WorkDone]) -> None:
        repository, branch = trigger.repository, trigger.branch
        compactor = self._compactors.get(repository)
        if compactor is None:
            self._observer.event("staging_trigger_dropped", {"repository": repository, "branch": branch,
                                                             "reason": "no compactor for this repository"})
            return
        if not self._at_work.enter(repository, branch):
            return
        try:
            done.append(WorkDone(trigger, self._planned(compactor, branch, run)))
        except BranchNotFound:
            # Deleted since it was counted.
            return
        finally:
            self._at_work.leave(repository, branch)

    def _planned(self, compactor: Compactor, branch: str, run: Run) -> CompactionOutcome:
        if self._plan_policy is not None:
            try:
                plan = compactor.plan(branch)
            except BranchNotFound:
                raise
            except CompactlibError as error:
                return Failed(error)
            if plan.view.window_ends_at is None and self._plan_policy.choose(plan) is None:
                return NothingToDo(f"not worth its cost: {plan.why}")
        return compactor.compact(branch, budget=run.budget, observer=run.observer(compactor.observer))
