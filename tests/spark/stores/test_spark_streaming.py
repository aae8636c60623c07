# SPDX-License-Identifier: Apache-2.0
"""Compaction as a stream: logs that cross a threshold, batches that are repeated, failures, and starting again."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from compactlib.executors import LocalExecutor
from compactlib.raftlog import SeedPolicy, SegmentLog
from compactlib.spark import compact_on_workers, register
from tests.spark.store_jobs import LIMITS, build_logs, contents, open_refusing

pytestmark = pytest.mark.spark


class Stream:
    """A stream over logs of 2, 3, 4, 5 and 6 full segments, of which four make one worth a compaction."""

    def __init__(self, spark: SparkSession, base: Path) -> None:
        self.spark = spark
        self.base = base
        self.folders = build_logs(base / "logs", 5)
        self.batches: list[list[tuple[str, str]]] = []
        self.refused: set[str] = set()
        register(spark)

    def handle(self, batch: DataFrame, number: int, *, raising: bool) -> None:
        """Compact the logs that a batch names, and note how they ended."""
        weights = Counter[str]()
        for row in batch.collect():
            weights[row.folder] += row.bytes
        opener = partial(open_refusing, refused=frozenset(self.refused))
        rows = compact_on_workers(batch.sparkSession, weights, opener, policy=SeedPolicy()).collect()
        self.batches.append(sorted((Path(row.store).name, row.outcome) for row in rows))
        for row in rows:
            if raising and row.error is not None:
                raise RuntimeError(f"{row.error}: {row.reason}")

    def writer(self, *, raising: bool = False, **options: str) -> DataStreamWriter:
        """What there is to handle."""
        stream = (self.spark.readStream.format("compactlib.raftlog.covered")
                  .options(folders=json.dumps(self.folders), **options).load())
        return (stream.writeStream.foreachBatch(partial(self.handle, raising=raising))
                .option("checkpointLocation", str(self.base / "checkpoint")))

    def run(self, *, raising: bool = False) -> list[list[tuple[str, str]]]:
        """Handle what there is; the batches, each with the logs' names and how they ended."""
        self.batches.clear()
        query = self.writer(raising=raising, min_segments="4").trigger(availableNow=True).start()
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
        for folder in theirs[2:]:
            with SegmentLog(folder, LIMITS) as log:
                log.compact(policy=log.policy, executor=LocalExecutor())
        assert [contents(folder) for folder in self.folders] == [contents(folder) for folder in theirs]


@pytest.fixture
def stream(spark: SparkSession, tmp_path: Path) -> Iterator[Stream]:
    yield Stream(spark, tmp_path)
    for query in spark.streams.active:
        query.stop()


ALL = [[("log-2", "done"), ("log-3", "done"), ("log-4", "done")]]


def test_what_crosses_the_threshold_is_compacted_and_a_stream_started_again_goes_on(stream: Stream,
                                                                                   tmp_path: Path) -> None:
    assert stream.run() == ALL
    stream.same_as_here(tmp_path / "theirs")
    assert stream.run() == []
    # Two more segments make four that were not told of, of a log that was not compacted; one more makes too few.
    stream.grow(0, 2)
    stream.grow(4, 1)
    assert stream.run() == [[("log-0", "done")]]
    assert stream.run() == []


def test_a_batch_that_is_repeated_after_a_crash_finds_nothing_to_do(stream: Stream, tmp_path: Path) -> None:
    assert stream.run() == ALL
    # Spark died after the batch was handled, and before it had noted that.
    for path in (tmp_path / "checkpoint" / "commits").glob("*0*"):
        path.unlink()
    stream.grow(0, 2)
    repeated, new = stream.run()
    assert repeated == [(name, "skipped") for name, _ in ALL[0]]
    assert new == [("log-0", "done")]


def test_a_failure_stops_no_other_log_and_if_it_is_raised_the_batch_is_tried_again(stream: Stream,
                                                                                  tmp_path: Path) -> None:
    stream.refused.add(stream.folders[3])
    with pytest.raises(StreamingQueryException, match="DiskFull"):
        stream.run(raising=True)
    stream.refused.clear()
    assert stream.run() == [[("log-2", "skipped"), ("log-3", "done"), ("log-4", "skipped")]]
    stream.same_as_here(tmp_path / "theirs")


def test_it_goes_on_until_it_is_stopped(stream: Stream, tmp_path: Path) -> None:
    query = stream.writer(min_segments="2", min_bytes="1").trigger(processingTime="100 milliseconds").start()
    query.processAllAvailable()
    assert [len(batch) for batch in stream.batches] == [5]
    assert {outcome for _, outcome in stream.batches[0]} <= {"done", "skipped"}
    stream.grow(1, 2)
    query.processAllAvailable()
    assert [name for name, _ in stream.batches[1]] == ["log-1"]
    query.stop()


@pytest.mark.parametrize(("options", "told"), [
    ({"folders": "[]"}, "at least one folder"),
    ({"folders": '["/a"]', "min_segments": "0"}, "a threshold of at least 1"),
])
def test_bad_options_are_refused_at_once(spark: SparkSession, options: dict[str, str], told: str) -> None:
    register(spark)
    with pytest.raises(AnalysisException, match=told):
        spark.readStream.format("compactlib.raftlog.covered").options(**options).load()
    assert spark.streams.active == []
