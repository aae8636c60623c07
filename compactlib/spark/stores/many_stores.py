# SPDX-License-Identifier: Apache-2.0
"""Thousands of stores: planned in one DataFrame, rewritten together, each committed as soon as its own tasks are back.

Nothing here knows what a store is. `map_items` runs a function over many items in one Spark job, such as one that opens
a store and plans its compaction. `compact_stores` then runs the compactions, each a function of an executor: they all
share one, so that small stores fill large jobs, and each commits for itself. Those with the most to do begin first.

A run can be stopped at any time and started again: what was committed stays, and a store with nothing to do is done.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

import attrs

from compactlib.errors import CompactlibError, InvalidInput
from compactlib.executors.tasks import foreign_error
from compactlib.outcome import Failed
from compactlib.report import Printed, Table
from compactlib.rewrite import Executor
from compactlib.runtime.budget import Budget
from compactlib.runtime.observe import Observer, Progress, telling
from compactlib.spark.dependencies import require_spark
from compactlib.spark.executors.packing import packed
from compactlib.spark.executors.shared_executor import SharedExecutor, Weigh
from compactlib.spark.executors.worker import pickled

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

_ItemT = TypeVar("_ItemT")
_ValueT = TypeVar("_ValueT")

Compact: TypeAlias = Callable[[Executor, Budget], object]
"""Opens a store, compacts it on this executor under this budget, commits, closes it; returns its own outcome."""

DEFAULT_STORES_AT_ONCE = 64
"""Each is open in this process meanwhile, in a thread of its own that mostly waits."""


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
class _Mapper:
    """The function that Spark maps over parts of the items."""

    parts: tuple[bytes, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pickle

        import pyarrow as pa

        types: dict[str, pa.DataType] = {"number": pa.int64(), "result": pa.binary()}
        schema = pa.schema([pa.field(name, kind) for name, kind in types.items()])
        for batch in batches:
            parts: list[Any] = batch.column(0).to_pylist()
            for part in parts:
                function, numbered = pickle.loads(self.parts[part])
                numbers, results = [], []
                for number, item in numbered:
                    numbers.append(number)
                    results.append(_applied(function, item))
                yield pa.RecordBatch.from_arrays([pa.array(numbers, pa.int64()), pa.array(results, pa.binary())],
                                                 schema=schema)


def _applied(function: Callable[[Any], Any], item: Any) -> bytes:
    try:
        return pickled((function(item), None))
    except CompactlibError as error:
        return pickled((None, error))
    except Exception as error:  # foreign code may raise anything
        return pickled((None, foreign_error(repr(item)[:200], error)))


def map_items(spark: SparkSession, items: Sequence[_ItemT], function: Callable[[_ItemT], _ValueT], *,
              weights: Sequence[float] | None = None, parts: int | None = None
              ) -> list[MappedItem[_ItemT, _ValueT]]:
    """Apply a picklable function to every item in one Spark job; what it raises is that item's answer.

    Items are packed into parts of about equal weight, the heaviest first, so that no part is left for last.

    Args:
        spark: a classic or a Spark Connect session.
        items: picklable, 1 or more; each is sent to one worker.
        function: runs on the workers; must bear to be called twice for one item.
        weights: how heavy each item is, in any unit; all are equal if not given.
        parts: how many partitions to make at most; default four for each core, at most one for each item.

    Raises:
        InvalidInput: there are not as many weights as items, or `parts` is less than 1.
        MissingDependency: PySpark or one of its packages is not installed.
    """
    import pickle

    require_spark("map_items")
    from compactlib.spark.executors.executor import default_parallelism

    if weights is not None and len(weights) != len(items):
        raise InvalidInput(f"{len(items)} items have {len(weights)} weights; give one for each")
    if parts is not None and parts < 1:
        raise InvalidInput(f"{items!r} cannot be packed into {parts} parts; give at least 1")
    if not items:
        return []
    count = 4 * default_parallelism(spark) if parts is None else parts
    groups = packed([1.0] * len(items) if weights is None else weights, count)
    sent = tuple(pickled((function, [(number, items[number]) for number in group])) for group in groups)
    frame = spark.range(0, len(sent), 1, len(sent)).mapInArrow(_Mapper(sent), "number bigint, result binary")
    found = {row["number"]: pickle.loads(row["result"]) for row in frame.collect()}
    return [MappedItem(item, *found[number]) for number, item in enumerate(items)]


def compact_stores(jobs: Iterable[StoreJob], executor: Executor, *, stores_at_once: int = DEFAULT_STORES_AT_ONCE,
                   weigh: Weigh | None = None, budget: Budget | None = None,
                   observer: Observer | None = None) -> Generator[StoreOutcome, None, None]:
    """Compact many stores with one executor; yields each store's outcome as it ends.

    One store's failure does not stop the others. Leaving the iterator early, or a budget that is cancelled, ends each
    store's compaction where it stands: what is committed stays, and the same call later goes on with the rest.

    Args:
        jobs: what to do; the heaviest begin first.
        executor: who runs the tasks of all stores; for a `SparkExecutor` give it `jobs_at_once=1`, and
            `tasks_per_partition=None` where stores are small.
        stores_at_once: how many stores are open at the same time, >= 1.
        weigh: how heavy a task is, so that the heaviest of those that wait begin first; if not given, the weight of
            a job is divided among the tasks that it asks for at once.
        budget: what the copying of all stores may use up.
        observer: notified of finished stores (`stores`), and of what the executor reports.

    Raises:
        InvalidInput: two stores have one name, or `stores_at_once` is less than 1.
    """
    listed = sorted(jobs, key=_heaviest_first)
    if len({job.name for job in listed}) != len(listed):
        raise InvalidInput("two stores of one run have the same name; their outcomes could not be distinguished")
    if stores_at_once < 1:
        raise InvalidInput(f"stores_at_once is {stores_at_once}; at least one store has to be open")
    return _compact_stores(listed, executor, stores_at_once, weigh, (Budget() if budget is None else budget).lend(),
                           telling(observer))


def _compact_stores(jobs: Sequence[StoreJob], executor: Executor, stores_at_once: int, weigh: Weigh | None,
                    budget: Budget, observer: Observer) -> Generator[StoreOutcome, None, None]:
    ended: queue.SimpleQueue[StoreOutcome | BaseException] = queue.SimpleQueue()
    left = threading.Event()
    pool = ThreadPoolExecutor(stores_at_once, thread_name_prefix="compactlib-stores")
    shared = SharedExecutor(executor, weigh=weigh, budget=budget, observer=observer)

    def run_one(job: StoreJob) -> None:
        if left.is_set():
            return
        try:
            refusal = budget.refusal
            outcome = Failed(refusal) if refusal is not None else _outcome_of(job, shared, budget)
        except BaseException as error:
            # KeyboardInterrupt and the like belong to who asked for all this.
            ended.put(error)
        else:
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
        left.set()
        budget.cancel()
        shared.close()
        pool.shutdown(wait=True, cancel_futures=True)


def _outcome_of(job: StoreJob, shared: SharedExecutor, budget: Budget) -> object:
    try:
        return job.compact(shared.lane(job.name, job.weight), budget)
    except CompactlibError as error:
        return Failed(error)
    except Exception as error:  # a host's own code may raise anything; the other stores go on
        return Failed(foreign_error(job.name, error))


def _heaviest_first(job: StoreJob) -> float:
    return -job.weight
