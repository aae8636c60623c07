# SPDX-License-Identifier: Apache-2.0
"""`map_items`: a function over many items in one Spark job; what it raises for one of them is that item's answer."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Generic, TypeVar

import attrs

from compactlib._arguments import require_whole
from compactlib.errors import CompactlibError, InvalidInput
from compactlib.executors import foreign_error, portable_error
from compactlib.spark.executors.jobs import SparkJobs, default_parallelism, packed, pickled, require_spark
from compactlib.spark.executors.reports import job_failure

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ItemT = TypeVar("ItemT")
ValueT = TypeVar("ValueT")

MOST_ITEMS_IN_A_PART = 64
"""However few cores there are now: a cluster that grows on demand grows by the tasks that wait."""


@attrs.frozen
class MappedItem(Generic[ItemT, ValueT]):
    """What came of one item: the function's value, or what it raised, as an error of the library's own."""

    item: ItemT
    value: ValueT | None
    error: CompactlibError | None = None


@attrs.frozen
class _Mapper(Generic[ItemT, ValueT]):
    """What a worker does with a part of the items."""

    function: Callable[[ItemT], ValueT]
    at_once: int

    def __call__(self, data: bytes) -> bytes:
        with ThreadPoolExecutor(self.at_once) as pool:
            return pickle.dumps(list(pool.map(self._applied, pickle.loads(data))))

    def _applied(self, item: ItemT) -> bytes:
        try:
            return pickled((self.function(item), None))
        except Exception as error:  # foreign code may raise anything
            return pickled((None, portable_error(repr(item)[:200], error, pickled)))


def map_items(spark: SparkSession, items: Sequence[ItemT], function: Callable[[ItemT], ValueT], *,
              weights: Sequence[float] | None = None, parts: int | None = None, at_once: int = 1
              ) -> list[MappedItem[ItemT, ValueT]]:
    """Apply a picklable function to every item in one Spark job.

    Where the job fails as a whole, that is the answer of each item that was not heard of; what cannot be unpickled here
    is one with an error. Parts weigh about the same, the heaviest first.

    Args:
        items: picklable; each is sent to one worker.
        function: runs on the workers; must bear to be called twice for one item.
        weights: how heavy each item is, in any unit; all are equal if not given.
        parts: how many partitions to make at most; default four for each core that is there now, and more where they
            would have more than `MOST_ITEMS_IN_A_PART` items.
        at_once: how many items of a part run at the same time, in threads of its worker, >= 1.

    Raises:
        InvalidInput: there are not as many weights as items, or `parts` or `at_once` is less than 1.
    """
    require_spark("map_items")
    if weights is not None and len(weights) != len(items):
        raise InvalidInput(f"{len(items)} items have {len(weights)} weights; give one for each")
    require_whole("parts", parts, 1, or_none=True)
    require_whole("at_once", at_once, 1)
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

    def answered(place: int, item: ItemT) -> MappedItem[ItemT, ValueT]:
        try:
            return MappedItem(item, *pickle.loads(found[place]))
        except Exception as error:  # unpickling runs foreign code, which may raise anything
            name = repr(item)[:200]
            return MappedItem(item, None, foreign_error(name, error) if failed is None or place in found
                              else job_failure(name, failed, len(groups)))
    return [answered(place, item) for place, item in enumerate(items)]
