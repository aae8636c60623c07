"""`CompactionWorker`: takes the sensor's triggers and compacts, one compaction per branch at a time; cleans up.

`run_pending` is all of it, without a thread: hosts that have their own scheduler call it. `start` makes a thread that
does nothing else.

Sources: the seed, Sensor and Compactor; `notes/staging.md` 1.13 [R], 2.2.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from types import TracebackType
from typing import Final, Self

import attrs

from compactlib.budget import Budget
from compactlib.clock import Clock, SystemClock
from compactlib.errors import Closed, CompactlibError, InvalidInput
from compactlib.observe import Observer
from compactlib.outcome import Failed
from compactlib.staging.cleanup import TokenCleaner
from compactlib.staging.compaction_outcome import CompactionOutcome, NothingToDo
from compactlib.staging.compactor import Compactor
from compactlib.staging.errors import BranchNotFound
from compactlib.staging.plan import PlanPolicy
from compactlib.staging.sensor import CompactionSensor, CompactionTrigger

_POLL_SECONDS: Final = 0.5
"""How long the thread waits for a trigger before it looks whether it is time to clean up, or to end."""
DEFAULT_CLEANUP_SECONDS = 600.0


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
        self._observer = Observer() if observer is None else observer
        self._next_cleanup: float | None = None
        self._thread: threading.Thread | None = None
        self._ending = threading.Event()

    def run_pending(self) -> list[WorkDone]:
        """Clean up if it is time, and carry out every trigger that waits; gives what came of each.

        Errors are outcomes, and are told to the observer; the next trigger goes on.
        """
        self._clean_if_due()
        done: list[WorkDone] = []
        while (trigger := self._sensor.take()) is not None:
            work = self._compact(trigger)
            if work is not None:
                done.append(work)
        return done

    def start(self) -> None:
        """Do the same in a thread of its own, until `close`.

        Raises:
            Closed: the worker was closed, or was started before.
        """
        if self._thread is not None or self._ending.is_set():
            raise Closed("this worker was started or closed before; make a new one")
        self._thread = threading.Thread(target=self._run, daemon=True, name="compactlib-staging")
        self._thread.start()

    def audit(self) -> None:
        """Check the worker's own invariants.

        Raises:
            AssertionError: its thread has died, or the next cleanup lies too far ahead.
        """
        assert self._thread is None or self._thread.is_alive() or self._ending.is_set(), "the worker's thread has died"
        left = 0.0 if self._next_cleanup is None else self._next_cleanup - self._clock.monotonic()
        assert left <= self._cleanup_seconds, f"the next cleanup is {left} seconds away, of {self._cleanup_seconds}"

    def close(self) -> None:
        """Finish the compaction under way and end the thread; closing again does nothing."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()

    def _run(self) -> None:
        while not self._ending.is_set():
            self._clean_if_due()
            trigger = self._sensor.take(_POLL_SECONDS)
            if trigger is not None:
                self._compact(trigger)

    def _clean_if_due(self) -> None:
        now = self._clock.monotonic()
        if self._next_cleanup is not None and now < self._next_cleanup:
            return
        self._next_cleanup = now + self._cleanup_seconds
        for cleaner in self._cleaners:
            for outcome in (cleaner.run(), cleaner.sweep()):
                if isinstance(outcome, Failed):
                    self._observer.event("staging_cleanup_failed", {"error": str(outcome.error)})

    def _compact(self, trigger: CompactionTrigger) -> WorkDone | None:
        repository, branch = trigger.repository, trigger.branch
        compactor = self._compactors.get(repository)
        if compactor is None:
            self._observer.event("staging_trigger_dropped", {"repository": repository, "branch": branch,
                                                             "reason": "no compactor for this repository"})
            return None
        if not self._at_work.enter(repository, branch):
            return None
        try:
            return WorkDone(trigger, self._planned(compactor, branch))
        except BranchNotFound:
            # Deleted since it was counted.
            return None
        finally:
            self._at_work.leave(repository, branch)

    def _planned(self, compactor: Compactor, branch: str) -> CompactionOutcome:
        if self._plan_policy is not None:
            try:
                plan = compactor.plan(branch)
            except BranchNotFound:
                raise
            except CompactlibError as error:
                return Failed(error)
            if plan.view.window_ends_at is None and self._plan_policy.choose(plan) is None:
                return NothingToDo(f"not worth its cost: {plan.why}")
        return compactor.compact(branch, budget=self._budget)
