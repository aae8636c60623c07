# SPDX-License-Identifier: Apache-2.0
"""`compact_stores`: few large stores, opened and committed here, with one executor for the rewrites of all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any, TypeAlias

import attrs

from compactlib._arguments import require_names, require_whole
from compactlib.errors import InvalidInput
from compactlib.executors import own_error
from compactlib.outcome import Failed
from compactlib.report import Printed
from compactlib.rewrite import Executor, RewriteOutcome, RewriteTask
from compactlib.runtime import Budget, Observer, Observers, Progress, telling

Compact: TypeAlias = Callable[[Executor, Budget], object]
"""Opens a store, compacts it on this executor under this budget, commits, closes it; returns its own outcome."""

DEFAULT_STORES_AT_ONCE = 8
"""Each is open in this process meanwhile, in a thread of its own that mostly waits."""


@attrs.frozen
class StoreJob:
    """One store's compaction, called in a thread of this process. No two of a run have the same name; the heaviest, in
    any unit, begin first."""

    name: str
    compact: Compact
    weight: float = 0.0


@attrs.frozen
class StoreOutcome(Printed):
    """How one store's compaction ended: what `compact` returned; `Failed` if it raised."""

    name: str
    outcome: Any

    def to_dicts(self) -> list[dict[str, Any]]:
        """The outcome's rows, with the store's name in front."""
        rows = self.outcome.to_dicts() if hasattr(self.outcome, "to_dicts") else [{"outcome": repr(self.outcome)}]
        return [{"store": self.name, **row} for row in rows]


def listed_once(names: Iterable[str]) -> list[str]:
    """The names of stores as a list; `InvalidInput` if one is listed twice, or there is one alone and no list."""
    require_names("stores", names)
    listed = list(names)
    twice = next((name for name, times in Counter(listed).items() if times > 1), None)
    if twice is not None:
        raise InvalidInput(f"store {twice!r} is listed twice; give each store once")
    return listed


def compact_stores(jobs: Iterable[StoreJob], executor: Executor, *, stores_at_once: int = DEFAULT_STORES_AT_ONCE,
                   budget: Budget | None = None, observer: Observer | None = None
                   ) -> Generator[StoreOutcome, None, None]:
    """Compact stores here, with one executor for the rewrites of all; yields each store's outcome as it ends.

    For few large stores: the rewrites of one fill a cluster, and while it commits, those of the others run. One store's
    failure does not stop the others. Leaving the iterator early, or a budget that is cancelled, ends each store's
    compaction where it stands: what is committed stays, and the same call later goes on with the rest.

    Args:
        executor: its `run` is called in several threads at once.
        stores_at_once: how many stores are open at the same time, >= 1.
        budget: what the copying of all stores may use up.
        observer: notified of finished stores (`stores`), and of what the executor reports.
    """
    listed = sorted(jobs, key=lambda job: -job.weight)
    listed_once(job.name for job in listed)
    require_whole("stores_at_once", stores_at_once, 1)
    return _compact_stores(listed, executor, stores_at_once, (Budget() if budget is None else budget).lend(),
                           telling(observer))


def _compact_stores(jobs: Sequence[StoreJob], executor: Executor, stores_at_once: int, budget: Budget,
                    observer: Observer) -> Generator[StoreOutcome, None, None]:
    pool = ThreadPoolExecutor(stores_at_once, thread_name_prefix="compactlib-stores")
    watched = _Watched(executor, observer)

    def run_one(job: StoreJob) -> StoreOutcome:
        try:
            refusal = budget.refusal
            return StoreOutcome(job.name, job.compact(watched, budget) if refusal is None else Failed(refusal))
        except Exception as error:  # a host's own code may raise anything; the other stores go on
            return StoreOutcome(job.name, Failed(own_error(job.name, error)))

    try:
        running = [pool.submit(run_one, job) for job in jobs]
        for done, ended in enumerate(as_completed(running), 1):
            observer.progress(Progress("stores", done, len(jobs), "stores"))
            yield ended.result()
    finally:
        budget.cancel()
        pool.shutdown(wait=True, cancel_futures=True)


@attrs.frozen
class _Watched:
    """The executor as the stores are given it: the observer of the run hears what it reports to any of them."""

    executor: Executor
    observer: Observer

    def run(self, tasks: Iterable[RewriteTask], *, budget: Budget | None = None,
            observer: Observer | None = None) -> Iterator[RewriteOutcome]:
        both = self.observer if observer is None else Observers(self.observer, observer)
        return self.executor.run(tasks, budget=budget, observer=both)
