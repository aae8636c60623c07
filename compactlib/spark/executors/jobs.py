# SPDX-License-Identifier: Apache-2.0
"""A function over pieces of work as one DataFrame job, whose answers come as its Spark tasks end.

Each part of the pieces is a partition of a range. The pieces travel with the function, all of them to each Spark task,
which costs less than a join; where they are too many for that, a broadcast join brings each partition its own. Answers
come early in the way that the session has for it:

* A classic session sends the updates of an accumulator with the end of a task. Spark promises each at least once, so
  these are news; the rows that the job returns when it has ended are what counts, and repeat them.
* Spark Connect has no accumulators, but streams the rows of one job in the order of its partitions.
"""

from __future__ import annotations

import contextlib
import heapq
import importlib
import math
import pickle
import queue
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs

from compactlib.errors import InvalidInput, MissingDependency
from compactlib.executors import new_attempt_id

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import SparkContext
    from pyspark.accumulators import Accumulator
    from pyspark.sql import DataFrame, SparkSession

Piece: TypeAlias = tuple[int, bytes]
"""The number of a piece of work, and what the function takes for it or answered."""

_ANSWER_DDL = "number bigint, answer binary"
_LOOK_SECONDS = 0.2
_PROBE_ROWS = 4096

# PySpark makes a broadcast of a function of more bytes than that, whose file stays until the session ends.
BROADCAST_FROM = "spark.broadcast.UDFCompressionThreshold"
_BROADCAST_FROM_BYTES = 1 << 20
_MOST_FUNCTION_BYTES = 4 << 20


def require_spark(purpose: str) -> None:
    """Pass where PySpark, PyArrow and pandas (which PySpark asks for in `mapInArrow`) can be imported, or raise
    `MissingDependency`, whose message the purpose opens."""
    for package in ("pyspark", "pyarrow", "pandas"):
        try:
            importlib.import_module(package)
        except ImportError:
            raise MissingDependency(package=package, extra="spark", purpose=purpose) from None


def classic_context(spark: SparkSession) -> SparkContext | None:
    """The context of a classic session; `None` over Spark Connect, which has none, and for a session that is gone."""
    try:
        return spark.sparkContext
    except Exception:
        # Each says so in an error of its own.
        return None


def default_parallelism(spark: SparkSession) -> int:
    """How many tasks the session runs at once, as it is now; over Spark Connect a small job finds out."""
    context = classic_context(spark)
    if context is not None:
        return context.defaultParallelism
    from pyspark.sql import functions

    # Collected as they are: an aggregate would cost a second stage.
    parts = spark.range(0, _PROBE_ROWS).select(functions.spark_partition_id()).collect()
    return 1 + max(int(row[0]) for row in parts)


def pickled(value: object) -> bytes:
    """`value` as bytes for `pickle.loads`: classes of notebooks and scripts travel along, those of modules by name."""
    from pyspark import cloudpickle

    return bytes(cloudpickle.dumps(value))  # type: ignore[no-untyped-call]


def packed(weights: Sequence[float], parts: int) -> list[list[int]]:
    """At most `parts` groups of the places in `weights`: each goes, the heaviest first, to the lightest group.

    The heaviest group, which comes first, is at most 4/3 of the best there is (Graham's bound). O(n log n).

    Raises:
        InvalidInput: `parts` is less than 1, or a weight is negative or not a number.
    """
    if parts < 1:
        raise InvalidInput(f"work cannot be divided among {parts}; give at least 1")
    if not all(weight >= 0 for weight in weights):
        raise InvalidInput("a weight is negative or not a number")
    groups: list[list[int]] = [[] for _ in range(min(parts, len(weights)))]
    loads = [(0.0, 0, number) for number in range(len(groups))]
    for place in sorted(range(len(weights)), key=lambda place: (-weights[place], place)):
        load, pieces, number = heapq.heappop(loads)
        groups[number].append(place)
        heapq.heappush(loads, (load + weights[place], pieces + 1, number))
    return sorted(groups, key=lambda group: (-sum(weights[place] for place in group), group))


def weight_of(task: object) -> float:
    """The number `weight` of a task, if it has one that can be packed by; else 1."""
    weight = getattr(task, "weight", None)
    return float(weight) if isinstance(weight, int | float) and 0 <= weight < math.inf else 1.0


class SparkJobs:
    """Runs jobs on one session, any number at once. Spark keeps a few hundred bytes for each object that ran one."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._news: Accumulator[Any] | None = None
        self._listening: dict[str, Callable[[Piece], None]] = {}

    def answers(self, apply: Callable[[bytes], bytes], parts: Sequence[Sequence[Piece]],
                stop: Callable[[], bool] = lambda: False) -> Generator[Piece, None, None]:
        """Run `apply` over each piece, in one job; yields the answers as they come, some of them twice.

        Closing the iterator has Spark end the job, and waits for that. The job sees the caller's local properties and
        tags, such as the scheduler pool. Whatever Spark raises when it fails is raised: its own errors, py4j's, gRPC's.

        Args:
            apply: picklable, called on the workers, and again for a piece whose worker died.
            parts: the pieces of each partition, at least one part; numbers differ.
            stop: asked five times a second; once true, the job ends, and the iterator after what came until then.
        """
        from pyspark import inheritable_thread_target

        name = f"compactlib-{new_attempt_id()}"
        context = classic_context(self._spark)
        # Answers, and behind them the job's end: what it failed with, or `None`.
        came: queue.SimpleQueue[Piece | BaseException | None] = queue.SimpleQueue()

        def work() -> None:
            with contextlib.suppress(Exception):
                # Where a session cannot be tagged (it is gone, or the server is old), its jobs run to their end.
                if context is None:
                    self._spark.addTag(name)
                else:
                    # A classic session's own tags reach SQL queries, but not what Python collects (4.3.0).
                    context.addJobTag(name)
                    context.setInterruptOnCancel(True)
            self._listening[name] = came.put
            if context is not None and self._news is None:
                # One for all jobs: Spark never lets go of an accumulator.
                self._news = context.accumulator([], _News(self._listening))  # type: ignore[arg-type]
            rows = self._frame(apply, [pickle.dumps(pieces) for pieces in parts], name)
            for row in rows.toLocalIterator() if context is None else rows.collect():
                came.put((row["number"], bytes(row["answer"])))
        target: Callable[[], None] = work
        with contextlib.suppress(Exception):
            # Where the session is gone, the job's own error will say so.
            target = inheritable_thread_target(self._spark)(work)

        def told() -> None:
            try:
                # Asks the session before it works: that may be gone by now.
                target()
            except BaseException as error:
                came.put(error)
            else:
                came.put(None)
        thread = threading.Thread(target=told, name=name, daemon=True)
        thread.start()
        ended, failed = False, None
        try:
            while not ended and not stop():
                with contextlib.suppress(queue.Empty):
                    got = came.get(timeout=_LOOK_SECONDS)
                    if isinstance(got, tuple):
                        yield got
                    else:
                        ended, failed = True, got
        finally:
            while not ended and thread.is_alive():
                with contextlib.suppress(Exception):
                    # Again and again: the job may be about to begin. A session that is gone has no jobs either.
                    if context is None:
                        self._spark.interruptTag(name)
                    else:
                        context.cancelJobsWithTag(name)
                thread.join(_LOOK_SECONDS)
            self._listening.pop(name, None)
        while not came.empty():
            if isinstance(got := came.get(), tuple):
                yield got
        if failed is not None:
            raise failed

    def _frame(self, apply: Callable[[bytes], bytes], parts: Sequence[bytes], name: str) -> DataFrame:
        import pyarrow as pa
        from pyspark.sql import functions

        frame = self._spark.range(0, len(parts), 1, len(parts))
        carried = sum(map(len, parts)) <= self._most_function_bytes()
        if not carried:
            table = pa.table({"id": pa.array(range(len(parts)), pa.int64()), "pieces": pa.array(parts, pa.binary())})
            frame = frame.join(functions.broadcast(self._spark.createDataFrame(table)), "id")
        return frame.mapInArrow(_Applied(apply, tuple(parts) if carried else None, name, self._news), _ANSWER_DDL)

    def _most_function_bytes(self) -> int:
        context = classic_context(self._spark)
        told = context.getConf().get(BROADCAST_FROM) if context is not None else None
        threshold = int(told) if told is not None and told.isdecimal() else _BROADCAST_FROM_BYTES
        return min(threshold * 3 // 4, _MOST_FUNCTION_BYTES)


class _News:
    """An `AccumulatorParam`: on a worker it collects answers, each with its job's name; in the driver it passes them on
    to who listens, in a thread of Spark's, one at a time, and keeps none."""

    def __init__(self, listening: Mapping[str, Callable[[Piece], None]] | None = None) -> None:
        self._listening = listening

    def zero(self, value: list[tuple[str, Piece]]) -> list[tuple[str, Piece]]:
        return []

    def addInPlace(self, value1: list[tuple[str, Piece]],  # noqa: N802 - PySpark's name
                   value2: list[tuple[str, Piece]]) -> list[tuple[str, Piece]]:
        if self._listening is None:
            value1 += value2
            return value1
        for job, answer in value2:
            hear = self._listening.get(job)
            if hear is not None:
                hear(answer)
        return value1

    def __reduce__(self) -> tuple[type[_News], tuple[()]]:
        return _News, ()


@attrs.frozen
class _Applied:
    """The function that Spark maps over the numbers of parts, or, where it does not carry them, these and the parts."""

    apply: Callable[[bytes], bytes]
    parts: tuple[bytes, ...] | None
    job: str
    news: Accumulator[Any] | None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            # Columns by their places, as Spark has them: the number, and what the join has brought.
            column: list[Any] = batch.column(batch.num_columns - 1).to_pylist()
            parts = column if self.parts is None else [self.parts[place] for place in column]
            for number, data in chain.from_iterable(map(pickle.loads, parts)):
                answer = self.apply(data)
                if self.news is not None:
                    self.news.add([(self.job, (number, answer))])
                yield pa.RecordBatch.from_arrays([pa.array([number], pa.int64()), pa.array([answer], pa.binary())],
                                                 names=["number", "answer"])
