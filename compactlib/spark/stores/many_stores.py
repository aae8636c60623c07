# SPDX-License-Identifier: Apache-2.0
"""Many items in one Spark job (`map_items`), and few large stores, compacted here (`compact_stores`).

A run can be stopped at any time and started again: what was committed stays, and a store with nothing to do is done.
"""

from __future__ import annotations

import contextlib
import pickle
import queue
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

import attrs

from compactlib._arguments import require_names
from compactlib.errors import CompactlibError, InvalidInput
from compactlib.executors.tasks import own_error
from compactlib.outcome import Failed
from compactlib.report import Printed, Table
from compactlib.rewrite import Executor, RewriteOutcome, RewriteTask
from compactlib.runtime.budget import Budget
from compactlib.runtime.observe import Observer, Observers, Progress, TellingObserver, telling
from compactlib.spark.dependencies import require_spark
from compactlib.spark.executors.executor import default_parallelism
from compactlib.spark.executors.jobs import SparkJobs
from compactlib.spark.executors.outcomes import job_failure
from compactlib.spark.executors.packing import packed
from compactlib.spark.executors.worker import pickled

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ItemT = TypeVar("_ItemT")
_ValueT = TypeVar("_ValueT")

Compact: TypeAlias = Callable[[Executor, Budget], object]
"""Opens a store, compacts it on this executor under this budget, commits, closes it; returns its own outcome."""

DEFAULT_STORES_AT_ONCE = 8
"""Each is open in this process meanwhile, in a thread of its own that mostly waits."""

MOST_ITEMS_IN_A_PART = 64
"""However few cores there are now: a cluster that grows on demand grows by the tasks that wait."""


@attrs.frozen
class MappedItem(Generic[_ItemT, _ValueT]):
    """What came of one item.

    Attributes:
        item: the item.
        value: what the function gave; `None` if it raised.
        error: what it raised, as an error of the library's own.
    """

    item: _ItemT
    value: _ValueT | None
    error: CompactlibError | None = None


@attrs.frozen
class StoreJob:
    """One store's compaction.

    Attributes:
        name: the store's, unlike all others of the run.
        compact: does it; called in a thread of this process.
        weight: how much there is to do, in any unit: the heaviest begin first.
    """

    name: str
    compact: Compact
    weight: float = 0.0


@attrs.frozen
class StoreOutcome(Printed):
    """How one store's compaction ended.

    Attributes:
        name: the store's.
        outcome: what `compact` returned; `Failed` if it raised.
    """

    name: str
    outcome: Any

    def to_dicts(self) -> list[dict[str, Any]]:
        """The outcome's rows, with the store's name in front."""
        rows = self.outcome.to_dicts() if hasattr(self.outcome, "to_dicts") else [{"outcome": repr(self.outcome)}]
        return [{"store": self.name, **row} for row in rows]


def outcome_table(outcomes: Iterable[StoreOutcome]) -> Table:
    """All outcomes of a run as one table, which notebooks render; stores that failed come first."""
    listed = sorted(outcomes, key=lambda each: (not isinstance(each.outcome, Failed), each.name))
    failed = sum(isinstance(each.outcome, Failed) for each in listed)
    rows = [row for each in listed for row in each.to_dicts()]
    return Table.from_dicts(rows, title=f"{len(listed)} stores, {failed} failed")


@attrs.frozen
class _Mapper(Generic[_ItemT, _ValueT]):
    """What a worker does with a part of the items."""

    function: Callable[[_ItemT], _ValueT]
    at_once: int

    def __call__(self, data: bytes) -> bytes:
        with ThreadPoolExecutor(self.at_once) as pool:
            return pickle.dumps(list(pool.map(self._applied, pickle.loads(data))))

    def _applied(self, item: _ItemT) -> bytes:
        try:
            return pickled((self.function(item), None))
        except Exception as error:  # foreign code may raise anything
            return pickled((None, own_error(repr(item)[:200], error)))


def map_items(spark: SparkSession, items: Sequence[_ItemT], function: Callable[[_ItemT], _ValueT], *,
              weights: Sequence[float] | None = None, parts: int | None = None, at_once: int = 1
              ) -> list[MappedItem[_ItemT, _ValueT]]:
    """Apply a picklable function to every item in one Spark job; what it raises is that item's answer.

    Where the job fails as a whole, that is the answer of each item that was not heard of. Parts weigh about the same,
    the heaviest first.

    Args:
        spark: a classic or a Spark Connect session.
        items: picklable, 1 or more; each is sent to one worker.
        function: runs on the workers; must bear to be called twice for one item.
        weights: how heavy each item is, in any unit; all are equal if not given.
        parts: how many partitions to make at most; default four for each core that is there now, and more where they
            would have more than `MOST_ITEMS_IN_A_PART` items.
        at_once: how many items of a part run at the same time, in threads of its worker, >= 1.

    Raises:
        InvalidInput: there are not as many weights as items, or `parts` or `at_once` is less than 1.
        MissingDependency: PySpark or one of its packages is not installed.
    """
    require_spark("map_items")
    if weights is not None and len(weights) != len(items):
        raise InvalidInput(f"{len(items)} items have {len(weights)} weights; give one for each")
    if parts is not None and parts < 1:
        raise InvalidInput(f"{len(items)} items cannot be packed into {parts} parts; give at least 1")
    if at_once < 1:
        raise InvalidInput(f"{at_once} items of a part run at once; give at least 1")
    if not items:
        return []
    count = max(4 * default_parallelism(spark), -(-len(items) // MOST_ITEMS_IN_A_PART)) if parts is None else parts
    groups = packed([1.0] * len(items) if weights is None else weights, count)
    parts_of = [[(number, pickled([items[place] for place in group]))] for number, group in enumerate(groups)]
    found: dict[int, bytes] = {}
    failed: Exception | None = None
    with contextlib.closing(SparkJobs(spark).answers(_Mapper(function, at_once), parts_of)) as answers:
        try:
            for number, answer in answers:
                found.update(zip(groups[number], pickle.loads(answer), strict=True))
        except Exception as error:
            # PySpark fails in many ways: its own errors, py4j's, gRPC's.
            failed = error
    return [MappedItem(item, *pickle.loads(found[place])) if failed is None or place in found
            else MappedItem(item, None, job_failure(repr(item)[:200], failed, None, len(groups)))
            for place, item in enumerate(items)]


def listed_once(names: Iterable[str]) -> list[str]:
    """The names of stores as a list.

    Raises:
        InvalidInput: one is listed twice, or there is one alone and no list.
    """
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
        jobs: what to do; the heaviest begin first.
        executor: who runs the tasks of all stores; its `run` is called in several threads at once.
        stores_at_once: how many stores are open at the same time, >= 1.
        budget: what the copying of all stores may use up.
        observer: notified of finished stores (`stores`), and of what the executor reports.

    Raises:
        InvalidInput: two stores have one name, or `stores_at_once` is less than 1.
    """
    listed = sorted(jobs, key=lambda job: -job.weight)
    listed_once(job.name for job in listed)
    if stores_at_once < 1:
        raise InvalidInput(f"stores_at_once is {stores_at_once}; at least one store has to be open")
    return _compact_stores(listed, executor, stores_at_once, (Budget() if budget is None else budget).lend(),
                           telling(observer))


def _compact_stores(jobs: Sequence[StoreJob], executor: Executor, stores_at_once: int, budget: Budget,
                    observer: Observer) -> Generator[StoreOutcome, None, None]:
    ended: queue.SimpleQueue[StoreOutcome | BaseException] = queue.SimpleQueue()
    pool = ThreadPoolExecutor(stores_at_once, thread_name_prefix="compactlib-stores")
    watched = _Watched(executor, observer)

    def run_one(job: StoreJob) -> None:
        try:
            refusal = budget.refusal
            outcome = Failed(refusal) if refusal is not None else job.compact(watched, budget)
        except Exception as error:  # a host's own code may raise anything; the other stores go on
            outcome = Failed(own_error(job.name, error))
        except BaseException as error:
            # KeyboardInterrupt and the like belong to who asked for all this.
            ended.put(error)
            return
        ended.put(StoreOutcome(job.name, outcome))

    try:
        for job in jobs:
            pool.submit(run_one, job)
        for done in range(1, len(jobs) + 1):
            outcome = ended.get()
            if isinstance(outcome, BaseException):
                raise outcome
            observer.progress(Progress("stores", done, len(jobs), "stores"))
            yield outcome
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
        inside = observer.inside if isinstance(observer, TellingObserver) else contextlib.nullcontext
        both = TellingObserver(Observers(self.observer, telling(observer)), inside)
        return self.executor.run(tasks, budget=budget, observer=both)
