"""Compactions of one store or of many, their copying in one executor; each store commits its own.

Each round copies one cycle of every store that is not done yet, all in one run of the executor, so that a Spark job
serves hundreds of stores. What a store's tasks end in is noted as it comes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
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
from compactlib.errors import CompactlibError, InvalidInput
from compactlib.outcome import Done, Failed, Skipped
from compactlib.rewrite import Executor, LocalExecutor

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
        budget: what the copying may use up, all stores together; the first store's configured rate if not given.
        commit_guard: entered around each commit; what it raises fails that store, with nothing committed. A fence goes
            here: `lambda: fence.guard(resource, token)`.

    Returns:
        The outcome of each store, by its folder. A store whose outcome is `Failed` has its compaction in progress,
        unless the error is that it could not begin.

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
        rounds = _Rounds(chosen, limit, contextlib.nullcontext if commit_guard is None else commit_guard)
        for compactor, plan in work:
            try:
                stack.enter_context(compactor.alone())
                rounds.add(compactor, plan)
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
    work: CompactionWork
    began: float

    @property
    def folder(self) -> str:
        return self.compactor.store.folder

    @property
    def elapsed(self) -> float:
        return self.compactor.store.clock.monotonic() - self.began


class _Rounds:
    """Cycle by cycle through all stores."""

    def __init__(self, executor: Executor, budget: Budget, commit_guard: CommitGuard) -> None:
        self.executor = executor
        self.budget = budget
        self.commit_guard = commit_guard
        self.active: list[_Active] = []
        self.outcomes: dict[str, BlobCompactionOutcome] = {}

    def add(self, compactor: BlobCompactor, plan: CompactionPlan | None) -> None:
        """Begin, or resume."""
        store = compactor.store
        began = store.clock.monotonic()
        if plan is not None:
            compactor.begin(plan)
        work = compactor.work
        if work is None:
            self.outcomes[store.folder] = Skipped(f"no compaction of store {store.name} is in progress")
        else:
            self.active.append(_Active(compactor, work, began))

    def run_one(self) -> None:
        """One cycle of every store."""
        tasks: list[CopyRecords] = []
        owners: dict[str, _Active] = {}
        kept = isinstance(self.executor, LocalExecutor)
        for store in list(self.active):
            asked = self._guarded(store, partial(store.work.next_tasks, kept=kept)) or []
            tasks += asked
            owners.update((task.name, store) for task in asked)
        if tasks:
            observer = owners[tasks[0].name].compactor.store.observer
            for outcome in self.executor.run(tasks, budget=self.budget, observer=observer):
                store = owners[outcome.task]
                if store in self.active:
                    self._guarded(store, partial(store.work.take, outcome))
        for store in list(self.active):
            self._guarded(store, partial(self._finish, store))

    def _finish(self, store: _Active) -> None:
        if store.work.log.phase is not Phase.DONE:
            # A resumed compaction may have had nothing left to do but to close its log.
            with self.commit_guard():
                store.work.finish_cycle()
        if store.work.log.phase is Phase.DONE:
            report = store.compactor.close(store.work, store.elapsed)
            damaged = report.damage[:1] if not report.sources else ()
            self.outcomes[store.folder] = Failed(damaged[0]) if damaged else Done(report)
            self.active.remove(store)

    def _guarded(self, store: _Active, step: Callable[[], _T]) -> _T | None:
        """Do a step of one store; its failure ends this store's part, and no other's."""
        try:
            return step()
        except CompactlibError as error:
            told = store.compactor.store
            StoreEvents(told.name, told.observer).failed(store.work.log.phase.value, error)
            self.outcomes[store.folder] = Failed(error)
            self.active.remove(store)
            return None
