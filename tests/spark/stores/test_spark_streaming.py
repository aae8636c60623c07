# SPDX-License-Identifier: Apache-2.0
"""Compaction as a stream whose source is but a clock: what there is to do the stores know."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from compactlib.executors import LocalExecutor
from compactlib.raftlog import SeedPolicy, SegmentLog
from compactlib.spark import compact_on_workers, plan_stores
from tests.spark.store_jobs import LIMITS, PLAN_LOG, build_logs, contents, open_refusing

pytestmark = pytest.mark.spark


class Stream:
    """A stream over logs of 2 to 6 full segments."""

    def __init__(self, spark: SparkSession, base: Path) -> None:
        self.spark = spark
        self.base = base
        self.folders = build_logs(base / "logs", 5)
        self.batches: list[list[tuple[str, str]]] = []
        self.refused: set[str] = set()

    def handle(self, batch: DataFrame, number: int) -> None:
        """Compact the logs that have work, and note how they ended."""
        opener = partial(open_refusing, refused=frozenset(self.refused))
        work = plan_stores(batch.sparkSession, self.folders, PLAN_LOG).work
        rows = compact_on_workers(batch.sparkSession, work, opener, policy=SeedPolicy()).collect()
        self.batches.append(sorted((Path(row.store).name, row.outcome) for row in rows))
        for row in rows:
            if row.error is not None:
                raise RuntimeError(f"{row.error}: {row.reason}")

    def writer(self) -> DataStreamWriter:
        """What there is to handle."""
        clock = self.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
        return clock.writeStream.foreachBatch(self.handle)

    def run(self) -> list[list[tuple[str, str]]]:
        """Handle what there is; the batches, each with the logs' names and how they ended."""
        self.batches.clear()
        query = self.writer().trigger(availableNow=True).start()
        assert query.awaitTermination(120)
        return self.batches

    def grow(self, number: int, segments: int) -> None:
        with SegmentLog(self.folders[number], LIMITS) as log:
            last = log.last_index
            assert last is not None
            log.extend((index, 2, b"more %d" % index) for index in range(last + 1, last + 10 * segments + 1))
            log.record_snapshot(last + 10 * segments - 1, live=[1])

    def same_as_here(self, base: Path) -> None:
        """What was compacted has, byte for byte, what compacting it here gives."""
        theirs = build_logs(base, 5)
        for folder in theirs:
            with SegmentLog(folder, LIMITS) as log:
                log.compact(policy=log.policy, executor=LocalExecutor())
        assert [contents(folder) for folder in self.folders] == [contents(folder) for folder in theirs]


@pytest.fixture
def stream(spark: SparkSession, tmp_path: Path) -> Iterator[Stream]:
    yield Stream(spark, tmp_path)
    for query in spark.streams.active:
        query.stop()


ALL = [[(f"log-{number}", "done") for number in range(5)]]


def test_what_has_work_is_compacted_and_a_stream_started_again_goes_on(stream: Stream, tmp_path: Path) -> None:
    assert stream.run() == ALL
    stream.same_as_here(tmp_path / "theirs")
    assert stream.run() == [[]]
    stream.grow(0, 2)
    assert stream.run() == [[("log-0", "done")]]


def test_a_failure_stops_no_other_log_and_the_next_run_tries_again(stream: Stream, tmp_path: Path) -> None:
    stream.refused.add(stream.folders[3])
    with pytest.raises(StreamingQueryException, match="DiskFull"):
        stream.run()
    stream.refused.clear()
    assert stream.run() == [[("log-3", "done")]]
    stream.same_as_here(tmp_path / "theirs")


def test_it_goes_on_until_it_is_stopped(stream: Stream) -> None:
    query = stream.writer().trigger(processingTime="100 milliseconds").start()
    while len(stream.batches) < 2:
        assert query.exception() is None
        query.awaitTermination(1)
    query.stop()
    assert stream.batches[:2] == [*ALL, []]
