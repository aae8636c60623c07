"""Compactions of one store or of many, their copying in one executor; each store commits its own.

Each round copies one cycle of every store that is not done yet, all in one run of the executor, so that a Spark job
serves hundreds of stores. What a store's tasks end in is noted as it comes.

Each store is run by this compaction alone, until its own part is over. A store that is closed meanwhile ends the round
for all, since an executor has one budget; the others go on in the next round, with what they had copied.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import attrs

from compactlib.blobstore.compaction_log import Phase
from compactlib.blobstore.compaction_report import BlobCompactionOutcome
from compactlib.blobstore.compaction_work import CompactionWork
from compactlib.blobstore.events import StoreEvents
from compactlib.blobstore.plan import CompactionPlan
from compactlib.blobstore.rewrite import CopyRecords
from compactlib.budget import Budget
from compactlib.errors import BudgetSpent, CompactlibError, InvalidInput
from compactlib.outcome import Done, Failed, Skipped
from compactlib.rewrite import Executor, LocalExecutor, RewriteFailure, RewriteOutcome, foreign_error
from compactlib.runtime.ownership import Run

if TYPE_CHECKING:
    from compactlib.blobstore.compactor import BlobCompactor

_T = TypeVar("_T")

StoreWork: TypeAlias = "tuple[BlobCompactor, CompactionPlan | None]"
"""A compactor and its plan, or `None` to resume what is in progress."""


CommitGuard: TypeAlias = "Callable[[], contextlib.AbstractContextManager[object]]"
"""Makes what is entered around a commit."""


def compact_many(work: Sequence[StoreWork], *, executor: Executor | None = None, budget: Budget | None = None,
                 commit_guard: CommitGuard | None = None) -> Mapping[str, BlobCompactionOutcome]:
    """Carry out plans for many stores at once. One store's failure does not stop the others.

    Args:
        work: each store's compactor and plan.
        executor: who copies; this thread if not given.
        budget: what the copying may use up, all stores together; the first store's configured rate if not given. The
            rate of one that is given counts, above the configured ones as well; on a disk that answers too slowly,
            each store's configured pace holds for either.
        commit_guard: entered around each commit; what it raises fails that store, with nothing committed. A fence goes
            here: `lambda: fence.guard(resource, token)`.

    Returns:
        The outcome of each store, by its folder: `Skipped` for one that is busy. A store whose outcome is `Failed` has
        its compaction in progress, unless the error is that it could not begin. What an executor, a question or a
        commit guard raises that is none of the library's errors is told as `TaskFailed`.

    Raises:
        CompactlibError: with a single store, why it could not begin (see `BlobCompactor.compact`).
        InvalidInput: two of the compactors are for one folder.
    """
    if len({compactor.store.folder for compactor, _ in work}) != len(work):
        raise InvalidInput("two plans are for one store; carry out one after the other")
    if not work:
        return {}
    first = work[0][0].store
    chosen: Executor = LocalExecutor(clock=first.clock) if executor is None else executor
    limit = Budget(bytes_per_second=first.config.compaction_bytes_per_second,
                   clock=first.clock) if budget is None else budget
    with contextlib.ExitStack() as stack:
        rounds = _Rounds(chosen, limit, contextlib.nullcontext if commit_guard is None else commit_guard,
                         rate_is_given=budget is not None)
        stack.callback(rounds.end)
        for compactor, plan in work:
            try:
                rounds.add(compactor, plan, stack)
            except CompactlibError as error:
                if len(work) == 1:
                    raise
                rounds.outcomes[compactor.store.folder] = Failed(error)
        while rounds.active:
            rounds.run_one()
    return rounds.outcomes


@attrs.define(eq=False)
class _Active:
    """A store whose compaction is not done."""

    compactor: BlobCompactor
    run: Run
    began: float
    interrupted: bool = False

    @property
    def work(self) -> CompactionWork:
        work = self.compactor.work()
        assert work is not None, "only a store with a compaction in progress is active"
        return work

    @property
    def folder(self) -> str:
        return self.compactor.store.folder

    @property
    def elapsed(self) -> float:
        return self.compactor.store.clock.monotonic() - self.began


class _Rounds:
    """Cycle by cycle through all stores."""

    def __init__(self, executor: Executor, budget: Budget, commit_guard: CommitGuard, *, rate_is_given: bool) -> None:
        self.executor = executor
        self.budget = budget
        self.commit_guard = commit_guard
        self.rate_is_given = rate_is_given
        self.active: list[_Active] = []
        self.outcomes: dict[str, BlobCompactionOutcome] = {}
        self._running: dict[str, tuple[BlobCompactor, Run]] = {}

    def add(self, compactor: BlobCompactor, plan: CompactionPlan | None, stack: contextlib.ExitStack) -> None:
        """Begin, or resume; what follows is marked as done by the store's run, until the stack ends."""
        store = compactor.store
        began = store.clock.monotonic()
        run = compactor.take(self.budget)
        if run is None:
            self.outcomes[store.folder] = compactor.busy()
            return
        self._running[store.folder] = compactor, run
        # One in the other, so that the last one's mark is that of all.
        stack.enter_context(run.inside())
        try:
            if plan is not None:
                compactor.begin(plan)
            if compactor.work() is not None:
                self.active.append(_Active(compactor, run, began))
                return
            self.outcomes[store.folder] = Skipped(f"no compaction of store {store.name} is in progress")
        except BaseException:
            self._release(store.folder)
            raise
        self._release(store.folder)

    def end(self) -> None:
        """Whatever has happened: nobody is kept from the stores any more."""
        for folder in list(self._running):
            self._release(folder)

    def _release(self, folder: str) -> None:
        compactor, run = self._running.pop(folder)
        compactor.store.compactions.ownership.release(run)

    def run_one(self) -> None:
        """One cycle of every store."""
        tasks: list[CopyRecords] = []
        owners: dict[str, _Active] = {}
        kept = isinstance(self.executor, LocalExecutor)
        for store in list(self.active):
            asked = self._guarded(store, lambda store=store: store.work.next_tasks(  # type: ignore[misc]
                kept=kept, rate_is_given=self.rate_is_given, budget=store.run.budget)) or []
            tasks += asked
            owners.update((task.name, store) for task in asked)
        if tasks:
            self._copy(tasks, owners)
        for store in list(self.active):
            if store.interrupted:
                store.interrupted = False
            else:
                self._guarded(store, partial(self._finish, store))

    def _copy(self, tasks: list[CopyRecords], owners: Mapping[str, _Active]) -> None:
        """Let the executor copy, and note what comes back."""
        last = self.active[-1]
        observer = last.run.observer(owners[tasks[0].name].compactor.store.observer)
        shared = self.budget.lend()
        with contextlib.ExitStack() as stack:
            for store in self.active:
                stack.enter_context(store.compactor.store.compactions.ownership.cancels(shared))
            try:
                outcomes = self.executor.run(tasks, budget=shared, observer=observer)
                # Nothing that it runs here goes on when this is left.
                if isinstance(outcomes, Generator):
                    stack.callback(outcomes.close)
                for outcome in outcomes:
                    store = owners[outcome.task]
                    if store not in self.active:
                        continue
                    if _is_for_another(outcome, shared, store):
                        store.interrupted = True
                    else:
                        self._guarded(store, partial(store.work.take, outcome, budget=store.run.budget))
            except Exception as error:
                # An executor of the host's own may raise anything; what it has copied so far is noted.
                for store in {id(each): each for each in owners.values()}.values():
                    if store in self.active:
                        self._fail(store, error)

    def _finish(self, store: _Active) -> None:
        if store.work.log.phase is not Phase.DONE:
            # A resumed compaction may have had nothing left to do but to close its log.
            with self.commit_guard():
                store.work.finish_cycle(budget=store.run.budget)
        if store.work.log.phase is Phase.DONE:
            report = store.compactor.close(store.work, store.elapsed)
            damaged = report.damage[:1] if not report.sources else ()
            self._over(store, Failed(damaged[0]) if damaged else Done(report))

    def _guarded(self, store: _Active, step: Callable[[], _T]) -> _T | None:
        """Do a step of one store; its failure ends this store's part, and no other's."""
        try:
            return step()
        except Exception as error:
            self._fail(store, error)
            return None

    def _fail(self, store: _Active, error: Exception) -> None:
        told = store.compactor.store
        known = error if isinstance(error, CompactlibError) else foreign_error(f"compact {told.name}", error)
        StoreEvents(told.name, told.observer).failed(store.work.log.phase.value, known)
        self._over(store, Failed(known))

    def _over(self, store: _Active, outcome: BlobCompactionOutcome) -> None:
        self.outcomes[store.folder] = outcome
        self.active.remove(store)
        self._release(store.folder)


def _is_for_another(outcome: RewriteOutcome, shared: Budget, store: _Active) -> bool:
    """Whether a task was ended only because another store of the round is being closed."""
    return (isinstance(outcome, RewriteFailure) and isinstance(outcome.error, BudgetSpent) and shared.cancelled
            and store.run.budget.refusal is None)
