# SPDX-License-Identifier: Apache-2.0
"""Compaction as a stream: logs of which a snapshot has come to cover enough are compacted in micro-batches, on Spark.

The stream says which logs have crossed a threshold; what is to be done to one is the caller's function, and what there
is to do is for the log's own policy to say. So a batch that Spark repeats after a crash finds logs that
were compacted, and skips them: nothing here has to happen exactly once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import attrs

from compactlib.outcome import Failed
from compactlib.rewrite import Executor
from compactlib.runtime.budget import Budget
from compactlib.spark.dependencies import require_spark
from compactlib.spark.sources.raftlog.covered_rows import DEFAULT_MIN_SEGMENTS, StreamOptions
from compactlib.spark.stores.many_stores import StoreJob, StoreOutcome, compact_stores

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

CompactLog: TypeAlias = Callable[[str, Executor, Budget], object]
"""Opens the log in a folder, compacts it on this executor under this budget, and closes it; returns its outcome."""

Tell: TypeAlias = Callable[[int, Sequence[StoreOutcome]], None]
"""Called after each batch, with its number, when all its logs are done. What it raises ends the query."""


def raise_failures(batch: int, outcomes: Sequence[StoreOutcome]) -> None:
    """Raise the first failure: the query ends, and started again it repeats the batch.

    Raises:
        CompactlibError: what one of the logs failed with.
    """
    for each in outcomes:
        if isinstance(each.outcome, Failed):
            raise each.outcome.error


@attrs.frozen
class CompactBatch:
    """Compacts the logs that a batch names; for `DataStreamWriter.foreachBatch`.

    Attributes:
        compact: what is done to each.
        tell: called with the outcomes.
        session: whose executors do the rewrites; the batch's own if `None`. Over Connect, batches are handled in a
            process of the server's, where there is no other.
    """

    compact: CompactLog
    tell: Tell = raise_failures
    session: SparkSession | None = None

    def __call__(self, batch: DataFrame, number: int) -> None:
        """Compact each log once; a failure of one does not stop the others."""
        from compactlib.spark.executors.executor import SparkExecutor

        weights: dict[str, int] = {}
        for row in batch.select("folder", "bytes").collect():
            weights[row.folder] = weights.get(row.folder, 0) + row.bytes
        if not weights:
            return
        jobs = [StoreJob(folder, partial(self.compact, folder), float(weight)) for folder, weight in weights.items()]
        executor = SparkExecutor(batch.sparkSession if self.session is None else self.session)
        self.tell(number, sorted(compact_stores(jobs, executor), key=lambda each: each.name))


def start_compaction_stream(spark: SparkSession, folders: Sequence[str], compact: CompactLog, *, checkpoint: str,
                            min_segments: int = DEFAULT_MIN_SEGMENTS, min_bytes: int | None = None,
                            every_seconds: float | None = 10.0, tell: Tell = raise_failures) -> StreamingQuery:
    """Start a streaming query that compacts Raft logs when enough of their segments are covered by a snapshot.

    A log is compacted once `min_segments` of its segments, or `min_bytes` of them, have come to be covered since it was
    last. What was counted is kept in the checkpoint, so the query can be stopped, killed, and started again with the
    same arguments. The log itself is opened by `compact` alone, which has to be where no other process holds it.

    Args:
        spark: a session; over Connect, `compact` and `tell` are pickled, and run in a process of the server's.
        folders: the logs, under paths that driver and workers share; those that do not exist yet are waited for.
        compact: what is done to a log, `lambda folder, executor, budget: ...`; may be called again for the same batch.
        checkpoint: a folder of this stream's own, for Spark's offsets.
        min_segments: how many segments make a log worth a compaction, >= 1.
        min_bytes: or how many bytes of segments; `None` if their number alone decides.
        every_seconds: how often the logs are looked at, at most; `None` handles what there is and ends, for a job that
            something else starts now and then.
        tell: called with each batch's outcomes; by default, the first failure ends the query.

    Raises:
        InvalidInput: no folder, or a threshold that is less than 1.
        MissingDependency: PySpark or one of its packages is not installed.
    """
    require_spark("a stream of compactions")
    from compactlib.spark.sources.raftlog.covered_source import NAME, CoveredSource

    told = StreamOptions(tuple(folders), min_segments, min_bytes).told()
    options = StreamOptions.parse(told).told()
    spark.dataSource.register(CoveredSource)
    stream = spark.readStream.format(NAME).options(**options).load().writeStream
    batches = CompactBatch(compact, tell, spark if _is_classic(spark) else None)
    stream = stream.foreachBatch(batches).option("checkpointLocation", checkpoint)
    if every_seconds is None:
        return stream.trigger(availableNow=True).start()
    return stream.trigger(processingTime=f"{round(every_seconds * 1000)} milliseconds").start()


def _is_classic(spark: SparkSession) -> bool:
    from pyspark.sql import SparkSession as Classic

    return type(spark) is Classic
