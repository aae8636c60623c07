# SPDX-License-Identifier: Apache-2.0
"""Compactions of one store or of many, their copying in one executor; each store commits its own.

Each round copies one cycle of every store that is not done yet, all in one run of the executor, so that a Spark job
serves hundreds of stores. What a store's tasks end in is noted as it comes.

Each store is run by this compaction alone, until its own part is over: what was interrupted is finished, then the plan
is carried out, or one is made. A store that is closed meanwhile ends the round for all, since an executor has one
budget; the others go on in the next round, with what they had copied.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeVar, cast

import attrs

from compactlib.blobstore.compaction.plan.last_plans import PlanKind
from compactlib.blobstore.compaction.plan.plan import BlobPlan, LeftSegment, PlannedSegment
from compactlib.blobstore.compaction.plan.policy import BlobPolicy, BlobView
from compactlib.blobstore.compaction.progress.compaction_log import Phase
from compactlib.blobstore.compaction.rewrite.task import CopyRecords
from compactlib.blobstore.compaction.run.events import COMPACTION_FAILED, PLAN_HISTORY_NOT_KEPT, StoreEvents
from compactlib.blobstore.compaction.run.report import BlobCompactionOutcome, BlobCompactionReport
from compactlib.blobstore.compaction.run.store_compactions import OwnedStore, StoreCompactions
from compactlib.blobstore.compaction.run.work import CompactionWork
from compactlib.blobstore.errors import StoreFull
from compactlib.errors import BudgetSpent, CompactlibError, InvalidInput, TaskFailed
from compactlib.executors.tasks import LocalExecutor, answers_of, own_error
from compactlib.outcome import Done, Failed, Skipped
from compactlib.rewrite import Executor, RewriteFailure, RewriteOutcome
from compactlib.runtime.budget import Budget
from compactlib.runtime.observe import Observer, Observers, telling
from compactlib.runtime.ownership import Run
from compactlib.runtime.store_numbers import Moved, StoreLevels, StoreNumbers

if TYPE_CHECKING:
    from compactlib.contract import CommitFence

_T = TypeVar("_T")

StoreWork: TypeAlias = "tuple[OwnedStore, BlobPlan | None]"
"""A store and its plan, or `None` for the plan that its own policy makes now."""


def compact_many(work: Sequence[StoreWork], *, executor: Executor | None = None, budget: Budget | None = None,
                 observer: Observer | None = None, fence: CommitFence | None = None,
                 ) -> Mapping[str, BlobCompactionOutcome]:
    """Compact many stores at once; each as `BlobStore.compact` does it. One store's failure does not stop the others.

    Args:
        work: each store and its plan.
        executor: runs the copying; this thread if not given.
        budget: what the work may use up, all stores together; the first store's configured rate if not given. The
            rate of one that is given counts, above the configured ones as well; on a disk that answers too slowly,
            each store's configured pace holds for either.
        observer: notified, besides the stores' own.
        fence: entered around each commit, `compactlib.fences.TokenFence` for example. One of the library's errors
            that it raises fails the store whose commit it was.

    Returns:
        The outcome of each store, by its folder. A store whose outcome is `Failed` has its compaction in progress,
        unless it could not begin.

    Raises:
        InvalidInput: two plans are for one store, or one is for another store than it is given with.
        Exception: what a policy or a fence has raised that is none of the library's errors; what was under way goes
            on with the next compaction.
    """
    tasks = [_checked(item) for item in work]
    return run_many(tasks, executor=executor, budget=budget, observer=observer, fence=fence)


def _checked(item: object) -> StoreTask:
    match item:
        case (store, plan) if hasattr(store, "compactions") and isinstance(plan, BlobPlan | None):
            return StoreTask(cast("OwnedStore", store), plan)
    raise InvalidInput(f"{item!r:.200} is no pair of a store and its plan; give (store, plan), or (store, None) for "
                       f"what the store's own policy chooses")


@attrs.frozen
class StoreTask:
    """What to do with one store.

    Attributes:
        store: the store.
        plan: what to carry out; `None`: what the policy chooses.
        policy: instead of the store's own.
        only_resume: finish what is in progress, and no more.
    """

    store: OwnedStore
    plan: BlobPlan | None = None
    policy: BlobPolicy | None = None
    only_resume: bool = False


def run_many(tasks: Sequence[StoreTask], *, executor: Executor | None = None, budget: Budget | None = None,
             observer: Observer | None = None, fence: CommitFence | None = None) -> Mapping[str, BlobCompactionOutcome]:
    """See `compact_many`."""
    if len({task.store.folder for task in tasks}) != len(tasks):
        raise InvalidInput("two plans are for one store; carry out one after the other")
    for task in tasks:
        if task.plan is not None:
            task.store.compactions.check(task.plan)
    if not tasks:
        return {}
    first = tasks[0].store
    chosen: Executor = LocalExecutor(clock=first.clock) if executor is None else executor
    limit = first.compactions.new_budget() if budget is None else budget
    with contextlib.ExitStack() as stack:
        rounds = _Rounds(chosen, limit, observer, fence, rate_is_given=budget is not None)
        # Twice: an interrupt at the beginning of the first leaves the second to do it.
        stack.callback(rounds.end)
        stack.callback(rounds.end)
        for task in tasks:
            rounds.add(task, stack)
        while rounds.active:
            rounds.run_one()
    return rounds.outcomes


@attrs.define(eq=False)
class _Active:
    """A store whose part is not over.

    Attributes:
        task: what is to be done.
        run: by which this one runs the store.
        events: notified of each event.
        began: when, by the store's monotonic clock.
        plan: what is carried out; `None` while an earlier compaction is finished.
        seen: the last plan, carried out or not: how the store stood.
        finished: the report of that one, or of one that freed nothing because of damage.
        has_changed: whether a compaction that is over has changed the store.
        committed: how many cycles of the compaction in progress were committed before this run.
        interrupted: whether its tasks were ended because of another store.
    """

    task: StoreTask
    run: Run
    events: StoreEvents
    began: float
    plan: BlobPlan | None = None
    seen: BlobPlan | None = None
    finished: BlobCompactionReport | None = None
    has_changed: bool = False
    committed: int = 0
    interrupted: bool = False

    @property
    def store(self) -> OwnedStore:
        return self.task.store

    @property
    def work(self) -> CompactionWork:
        work = self.store.compactions.work(self.events)
        assert work is not None, "only a store with a compaction in progress is active"
        return work

    @property
    def folder(self) -> str:
        return self.store.folder

    @property
    def elapsed(self) -> float:
        return self.store.clock.monotonic() - self.began

    @property
    def changed(self) -> Literal["no", "partly", "unknown"]:
        """What has changed since it began, if it fails now."""
        compactions = self.store.compactions
        if compactions.is_unsure:
            return "unknown"
        log = compactions.log
        committed = 0 if log is None else len(log.committed) - self.committed
        if log is not None and log.phase is Phase.COMMIT:
            # It counts from the next opening on, at the latest; here it may not be in force yet.
            committed -= 1
            if committed <= 0 and not self.has_changed:
                return "unknown"
        return "partly" if committed > 0 or self.has_changed else "no"


class _Rounds:
    """Cycle by cycle through all stores."""

    def __init__(self, executor: Executor, budget: Budget, observer: Observer | None, fence: CommitFence | None, *,
                 rate_is_given: bool) -> None:
        self.executor = executor
        self.budget = budget
        self.observer = observer
        self.fence = fence
        self.rate_is_given = rate_is_given
        self.active: list[_Active] = []
        self.outcomes: dict[str, BlobCompactionOutcome] = {}
        self._running: dict[Run, StoreCompactions] = {}

    # -- one store's part: beginning, and its end

    def add(self, task: StoreTask, stack: contextlib.ExitStack) -> None:
        """Begin, or resume; what follows is marked as done by the store's run, until the stack ends."""
        store, compactions, run = task.store, task.store.compactions, Run(self.budget)
        # Before it begins, so that no interrupt comes between.
        self._running[run] = compactions
        try:
            is_taken = compactions.take(run)
        except CompactlibError as error:
            self._running.pop(run)
            self.outcomes[store.folder] = Failed(error)
            return
        if not is_taken:
            self._running.pop(run)
            self.outcomes[store.folder] = busy = compactions.busy()
            if not compactions.ownership.is_mine:
                _numbers(store).compacted(telling(self._told(store)), busy, 0.0)
            return
        # One in the other, so that the last one's mark is that of all.
        stack.enter_context(run.inside())
        active = _Active(task, run, StoreEvents(store.name, self._told(store)), store.clock.monotonic())
        self.active.append(active)
        active.committed = 0 if compactions.log is None else len(compactions.log.committed)
        spent = run.budget.refusal
        if spent is not None:
            self._fail(active, spent)
        elif compactions.log is None:
            self._next(active)

    def _told(self, store: OwnedStore) -> Observer:
        return store.observer if self.observer is None else Observers(store.observer, self.observer)

    def _next(self, active: _Active) -> None:
        """Nothing is in progress (any more): plan, and begin, if there is something to do."""
        store, task = active.store, active.task
        if task.only_resume:
            self._over(active, Skipped(f"no compaction of store {store.name} is in progress"))
            return
        plan = self._planned(active) if task.plan is None else task.plan
        if plan is None:
            return
        active.seen = plan
        refused = plan.why if plan.is_empty else self._guarded(active, partial(_no_room, store, plan))
        if refused and active.finished is not None and task.plan is None:
            self._end(active, active.finished)
        elif refused:
            self._over(active, Skipped(refused))
        elif active in self.active:
            active.committed = 0
            self._guarded(active, partial(store.compactions.begin, plan, active.events))
            active.plan = plan

    def _planned(self, active: _Active) -> BlobPlan | None:
        """What the policy chooses now; `None` if the store could not be looked at. What the policy raises is raised."""
        store, policy, plan = active.store, active.task.policy, None
        compactions, budget = store.compactions, active.run.budget
        room = self._guarded(active, compactions.available_bytes)
        view = self._guarded(active, partial(compactions.view, policy, budget)) if active in self.active else None
        if view is not None:
            plan = compactions.plan(view, policy, room)
            if plan.kind == "full" and store.config.close_active_segment and _has_free_segment(view):
                # A full round: what is written to should be a part of it.
                self._guarded(active, partial(_close_active_segment, store))
                if active not in self.active:
                    return None
                view = self._guarded(active, partial(compactions.view, policy, budget))
                plan = None if view is None else compactions.plan(view, policy, room)
        return plan

    def end(self) -> None:
        """Whatever has happened: release the stores."""
        try:
            while self._running:
                self._release(next(iter(self._running)))
        finally:
            if self._running:
                self.end()

    def _release(self, run: Run) -> None:
        self._running[run].ownership.release(run)
        self._running.pop(run, None)

    def _guarded(self, active: _Active, step: Callable[[], _T]) -> _T | None:
        """Do a step of one store; its failure ends this store's part, and no other's."""
        try:
            return step()
        except Exception as error:
            self._fail(active, error)
            return None

    def _fail(self, active: _Active, error: Exception) -> None:
        compactions, name = active.store.compactions, active.store.name
        known = own_error(f"compact {name}", error)
        if isinstance(known, TaskFailed):
            compactions.note(known)
        if compactions.log is not None:
            active.events.tell(COMPACTION_FAILED, phase=compactions.log.phase.value, error=str(known))
        self._over(active, Failed(known, active.changed))

    def _over(self, active: _Active, outcome: BlobCompactionOutcome) -> None:
        self.outcomes[active.folder] = outcome
        self.active.remove(active)
        _tell_numbers(active, active.run.observer(self._told(active.store)), outcome)
        self._release(active.run)

    # -- the rounds

    def run_one(self) -> None:
        """One cycle of every store."""
        tasks: list[CopyRecords] = []
        owners: dict[str, _Active] = {}
        kept = isinstance(self.executor, LocalExecutor)
        for active in list(self.active):
            asked = self._guarded(active, lambda active=active: active.work.next_tasks(  # type: ignore[misc]
                kept=kept, rate_is_given=self.rate_is_given, budget=active.run.budget)) or []
            tasks += asked
            owners.update((task.name, active) for task in asked)
        if tasks:
            self._copy(tasks, owners)
        for active in list(self.active):
            if active.interrupted:
                active.interrupted = False
            else:
                self._finish(active)

    def _copy(self, tasks: list[CopyRecords], owners: Mapping[str, _Active]) -> None:
        """Let the executor copy, and note what comes back."""
        last = self.active[-1]
        observer = last.run.observer(self._told(owners[tasks[0].name].store))
        shared = self.budget.child()
        with contextlib.ExitStack() as stack:
            for active in self.active:
                stack.enter_context(active.store.compactions.ownership.cancels(shared))
            try:
                outcomes = answers_of(self.executor, tasks, budget=shared, observer=observer)
                # Nothing that it runs here goes on when this is left.
                stack.callback(outcomes.close)
                for outcome in outcomes:
                    active = owners[outcome.task]
                    if active not in self.active:
                        continue
                    if _is_for_another(outcome, shared, active):
                        active.interrupted = True
                    else:
                        self._guarded(active, partial(active.work.take, outcome, budget=active.run.budget))
            except Exception as error:
                # An executor of the host's own may raise anything; what it has copied so far is noted.
                for active in {id(each): each for each in owners.values()}.values():
                    if active in self.active:
                        self._fail(active, error)

    def _finish(self, active: _Active) -> None:
        """Commit the cycle, and end the compaction if it was the last one."""
        work = active.work
        # A resumed compaction may have had nothing left to do but to close its log.
        if work.log.phase is not Phase.DONE:
            may_commit = self._guarded(active, partial(work.may_commit, budget=active.run.budget))
            if not may_commit or not self._commit(active, work):
                return
        if work.log.phase is Phase.DONE:
            kind = active.plan.kind if active.plan is not None else "full" if work.log.is_full else "normal"
            is_carried_out = not work.log.dropped
            report = self._guarded(active, lambda: active.store.compactions.close(work, active.elapsed))
            if report is not None:
                if is_carried_out:
                    self._remember(active, kind, report)
                self._done(active, report)

    def _commit(self, active: _Active, work: CompactionWork) -> bool:
        """Whether it went well. What entering or leaving the fence raises that is none of the library's is raised."""
        failed: list[Exception] = []
        try:
            with contextlib.nullcontext() if self.fence is None else self.fence.guard():
                try:
                    work.finish_cycle()
                except Exception as error:
                    failed.append(error)
                    raise
        except Exception as error:
            if error not in failed and not isinstance(error, CompactlibError):
                raise
            self._fail(active, error)
            return False
        if failed:
            # A guard that lets nothing through.
            self._fail(active, failed[0])
        return not failed

    def _remember(self, active: _Active, kind: PlanKind, report: BlobCompactionReport) -> None:
        """That a plan was carried out, so that schedules count from now, and what it left out.

        If that is lost, one comes due too early, and what is damaged is tried again too early.
        """
        store = active.store
        found = {os.path.basename(error.path): str(error) for error in report.damage}
        left_out = {name: found.get(name.log_file, "damage was found in it") for name in report.left_out}
        try:
            store.compactions.sensor.carried_out(kind, store.clock.now(), left_out)
        except CompactlibError as error:
            active.events.tell(PLAN_HISTORY_NOT_KEPT, error=str(error))

    def _done(self, active: _Active, report: BlobCompactionReport) -> None:
        task, plan = active.task, active.plan
        active.has_changed |= bool(report.sources) or plan is None
        report = attrs.evolve(report, finished=active.finished)
        # What the policy chose for the sake of a damaged segment brought nothing: without that, it chooses another.
        in_vain = (plan is not None and task.plan is None and bool(report.left_out)
                   and report.freed_segments < 1 <= plan.benefit_segments)
        if (plan is None or in_vain) and not task.only_resume:
            active.finished, active.plan = report, None
            self._next(active)
        else:
            self._end(active, report)

    def _end(self, active: _Active, report: BlobCompactionReport) -> None:
        """It was damage alone that kept it from changing anything: then it has failed."""
        damaged = report.damage[:1] if not report.sources else ()
        self._over(active, Failed(damaged[0], active.changed) if damaged else Done(report))


def _numbers(store: OwnedStore) -> StoreNumbers:
    return StoreNumbers("blobstore", store.name)


def _tell_numbers(active: _Active, observer: Observer, outcome: BlobCompactionOutcome) -> None:
    read = copied = freed = 0
    report = outcome.stats if isinstance(outcome, Done) else None
    while report is not None:
        # Only what is valid is read.
        read, copied, freed = read + report.copied_bytes, copied + report.bytes_written, freed + report.bytes_freed
        report = report.finished
    store, plan = active.store, active.seen
    _numbers(store).compacted(observer, outcome, active.elapsed, policy="" if plan is None else plan.policy.name,
                              moved=Moved(read=read, copied=copied, freed=freed))
    if plan is not None:
        _numbers(store).levels(observer, _levels(store, plan))


def _levels(store: OwnedStore, plan: BlobPlan) -> StoreLevels:
    """As far as the plan has counted: what has died since then is live here, until the next one."""
    snapshot = store.snapshot()
    there = {info.name: info for info in snapshot.segments}
    seen: list[PlannedSegment | LeftSegment] = [*plan.victims, *plan.left]
    dead = {each.name: each.used_bytes - each.valid_bytes for each in seen if each.name in there}
    return StoreLevels(
        live_bytes=sum(each.valid_bytes for each in seen), dead_bytes=sum(dead.values()),
        free_bytes=store.capacity_bytes - snapshot.used_bytes, capacity_bytes=store.capacity_bytes,
        oldest_unreclaimed_seconds=min((there[name].last_modified_ms / 1000 for name, size in dead.items() if size),
                                       default=None))


def _has_free_segment(view: BlobView) -> bool:
    return len(view.segments) < view.capacity_bytes // view.segment_bytes


def _close_active_segment(store: OwnedStore) -> None:
    # A writer may have taken the last free segment meanwhile: then this round goes without the active one.
    with contextlib.suppress(StoreFull):
        store.close_active_segment()


def _no_room(store: OwnedStore, plan: BlobPlan) -> str | None:
    """Why a plan is not begun, if the disk has no room for what it writes before it gives any back."""
    if not plan.bytes_needed:
        return None
    available = store.files.available_bytes(store.folder)
    if available is None or available >= plan.bytes_needed:
        return None
    return (f"the compaction of store {store.name} needs {plan.bytes_needed:,} bytes of room on the disk before it "
            f"gives any back, and {available:,} are available in {store.folder}; free some, or compact fewer segments")


def _is_for_another(outcome: RewriteOutcome, shared: Budget, active: _Active) -> bool:
    """Whether a task was ended only because another store of the round is being closed."""
    return (isinstance(outcome, RewriteFailure) and isinstance(outcome.error, BudgetSpent) and shared.cancelled
            and active.run.budget.refusal is None)
