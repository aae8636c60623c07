# SPDX-License-Identifier: Apache-2.0
"""A function over pieces of work as one DataFrame job, whose answers come as its Spark tasks end.

Each part of the pieces is a partition of a range. The pieces travel with the function, all of them to each Spark task,
which costs less than a join; where they are too many for that, a broadcast join brings each partition its own. Answers
come early in the way that the session has for it:

* A classic session sends the updates of an accumulator with the end of a task. Spark promises each at least once, so
  these are news; the rows that the job returns when it has ended are what counts, and repeat them.
* Spark Connect has no accumulators, but streams the rows of one job in the order of its partitions.

`mapInArrow` binds columns by position and ignores names, so every batch is built here.
"""

from __future__ import annotations

import contextlib
import pickle
import queue
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs

from compactlib.executors.tasks import new_attempt_id

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import SparkContext
    from pyspark.accumulators import Accumulator
    from pyspark.sql import DataFrame, SparkSession

Piece: TypeAlias = tuple[int, bytes]
"""The number of a piece of work, and what the function takes for it or answered."""

_ANSWER_DDL = "number bigint, answer binary"
_LOOK_SECONDS = 0.2

# PySpark makes a broadcast of a function of more than so many bytes, whose file stays until the session ends.
BROADCAST_FROM = "spark.broadcast.UDFCompressionThreshold"
_BROADCAST_FROM_BYTES = 1 << 20
_MOST_FUNCTION_BYTES = 4 << 20

MOST_JOB_BYTES = 32 << 20
"""More pieces than these should be another job."""


def classic_context(spark: SparkSession) -> SparkContext | None:
    """The context of a classic session; `None` over Spark Connect, which has none, and for a session that is gone."""
    try:
        return spark.sparkContext
    except Exception:
        # Each says so in an error of its own.
        return None


class SparkJobs:
    """Runs jobs on one session, any number at once. Spark keeps a few hundred bytes for each object that ran one.

    Args:
        spark: a classic or a Spark Connect session.
    """

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
            stop: asked before each answer, and five times a second; once true, the job is ended, and the iterator when
                it has yielded what came until then.
        """
        from pyspark import inheritable_thread_target

        name = f"compactlib-{new_attempt_id()}"
        context = classic_context(self._spark)
        came: queue.SimpleQueue[Piece | _Ended] = queue.SimpleQueue()

        def work() -> None:
            try:
                with contextlib.suppress(Exception):
                    # Where a session cannot be tagged (it is gone, or the server is old), its jobs run to their end.
                    if context is None:
                        self._spark.addTag(name)
                    else:
                        # A classic session's own tags reach SQL queries, but not what Python collects (4.3.0).
                        context.addJobTag(name)
                        context.setInterruptOnCancel(True)
                rows = self._frame(apply, [pickle.dumps(pieces) for pieces in parts], name,
                                   self._listen(name, context, came.put))
                for row in rows.toLocalIterator() if context is None else rows.collect():
                    came.put((row["number"], bytes(row["answer"])))
            except BaseException as error:
                came.put(_Ended(error))
            else:
                came.put(_Ended())

        target: Callable[[], None] = work
        with contextlib.suppress(Exception):
            # Where the session is gone, the job's own error will say so.
            target = inheritable_thread_target(self._spark)(work)
        thread = threading.Thread(target=target, name=name, daemon=True)
        thread.start()
        ended = None
        try:
            while ended is None and not stop():
                with contextlib.suppress(queue.Empty):
                    got = came.get(timeout=_LOOK_SECONDS)
                    if isinstance(got, _Ended):
                        ended = got
                    else:
                        yield got
        finally:
            while ended is None and thread.is_alive():
                with contextlib.suppress(Exception):
                    # Again and again: the job may be about to begin. A session that is gone has no jobs either.
                    if context is None:
                        self._spark.interruptTag(name)
                    else:
                        context.cancelJobsWithTag(name)
                thread.join(_LOOK_SECONDS)
            self._listening.pop(name, None)
        while not came.empty():
            if not isinstance(got := came.get(), _Ended):
                yield got
        if ended is not None and ended.error is not None:
            raise ended.error

    def _listen(self, name: str, context: SparkContext | None,
                hear: Callable[[Piece], None]) -> Accumulator[Any] | None:
        if context is None:
            return None
        if self._news is None:
            # One for all jobs: Spark never lets go of an accumulator.
            self._news = context.accumulator([], _News(self._listening))  # type: ignore[arg-type]
        self._listening[name] = hear
        return self._news

    def _frame(self, apply: Callable[[bytes], bytes], parts: Sequence[bytes], name: str,
               news: Accumulator[Any] | None) -> DataFrame:
        import pyarrow as pa
        from pyspark.sql import functions

        frame = self._spark.range(0, len(parts), 1, len(parts))
        carried = sum(map(len, parts)) <= self._most_function_bytes()
        if not carried:
            table = pa.table({"id": pa.array(range(len(parts)), pa.int64()), "pieces": pa.array(parts, pa.binary())})
            frame = frame.join(functions.broadcast(self._spark.createDataFrame(table)), "id")
        return frame.mapInArrow(_Applied(apply, tuple(parts) if carried else None, name, news), _ANSWER_DDL)

    def _most_function_bytes(self) -> int:
        context = classic_context(self._spark)
        told = context.getConf().get(BROADCAST_FROM) if context is not None else None
        threshold = int(told) if told is not None and told.isdecimal() else _BROADCAST_FROM_BYTES
        return min(threshold * 3 // 4, _MOST_FUNCTION_BYTES)


@attrs.frozen
class _Ended:
    error: BaseException | None = None


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
