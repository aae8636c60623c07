# SPDX-License-Identifier: Apache-2.0
"""Compaction as a stream: logs that cross a threshold, batches that are repeated, failures, and starting again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from compactlib.errors import DiskFull, InvalidInput
from compactlib.executors import Executor, LocalExecutor
from compactlib.outcome import Done, Failed, Skipped
from compactlib.raftlog import SegmentLog
from compactlib.runtime.budget import Budget
from compactlib.spark import start_compaction_stream
from compactlib.spark.stores.many_stores import StoreOutcome
from compactlib.spark.stores.streaming import raise_failures
from tests.spark.store_jobs import LIMITS, build_logs, contents

pytestmark = pytest.mark.spark


class Stream:
    """A stream over logs of 2, 3, 4, 5 and 6 full segments, of which four make one worth a compaction."""

    def __init__(self, spark: SparkSession, base: Path) -> None:
        self.spark = spark
        self.base = base
        self.folders = build_logs(base / "logs", 5)
        self.batches: list[list[StoreOutcome]] = []
        self.refused: set[str] = set()

    def compact(self, folder: str, executor: Executor, budget: Budget) -> object:
        if folder in self.refused:
            return Failed(DiskFull(operation="write", path=folder, errno=28))
        with SegmentLog(folder, LIMITS) as log:
            return log.compact(policy=log.policy, executor=executor, budget=budget)

    def note(self, number: int, outcomes: Sequence[StoreOutcome]) -> None:
        self.batches.append(list(outcomes))

    def run(self, *, raising: bool = False) -> list[list[tuple[str, str]]]:
        """Handle what there is; the batches, each with the logs' names and how they ended."""
        self.batches.clear()
        query = start_compaction_stream(self.spark, self.folders, self.compact, min_segments=4, every_seconds=None,
                                        checkpoint=str(self.base / "checkpoint"),
                                        tell=raise_failures if raising else self.note)
        assert query.awaitTermination(120)
        return [[(Path(each.name).name, type(each.outcome).__name__) for each in batch] for batch in self.batches]

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


ALL = [[("log-2", "Done"), ("log-3", "Done"), ("log-4", "Done")]]


def test_what_crosses_the_threshold_is_compacted_and_a_stream_started_again_goes_on(stream: Stream,
                                                                                   tmp_path: Path) -> None:
    assert stream.run() == ALL
    stream.same_as_here(tmp_path / "theirs")
    assert stream.run() == []
    # Two more segments make four that were not told of, of a log that was not compacted; one more makes too few.
    stream.grow(0, 2)
    stream.grow(4, 1)
    assert stream.run() == [[("log-0", "Done")]]
    assert stream.run() == []


def test_a_batch_that_is_repeated_after_a_crash_finds_nothing_to_do(stream: Stream, tmp_path: Path) -> None:
    assert stream.run() == ALL
    # Spark died after the batch was handled, and before it had noted that.
    for path in (tmp_path / "checkpoint" / "commits").glob("*0*"):
        path.unlink()
    stream.grow(0, 2)
    repeated, new = stream.run()
    assert repeated == [(name, "Skipped") for name, _ in ALL[0]]
    assert new == [("log-0", "Done")]


def test_a_failure_stops_no_other_log_ends_the_query_and_is_tried_again(stream: Stream, tmp_path: Path) -> None:
    stream.refused.add(stream.folders[3])
    with pytest.raises(StreamingQueryException, match="DiskFull"):
        stream.run(raising=True)
    stream.refused.clear()
    assert stream.run() == [[("log-2", "Skipped"), ("log-3", "Done"), ("log-4", "Skipped")]]
    stream.same_as_here(tmp_path / "theirs")


def test_it_goes_on_until_it_is_stopped(stream: Stream, tmp_path: Path) -> None:
    query = start_compaction_stream(stream.spark, stream.folders, stream.compact, min_segments=2, min_bytes=1,
                                    every_seconds=0.1, checkpoint=str(tmp_path / "checkpoint"), tell=stream.note)
    query.processAllAvailable()
    assert [len(batch) for batch in stream.batches] == [5]
    assert all(isinstance(each.outcome, Done | Skipped) for each in stream.batches[0])
    stream.grow(1, 2)
    query.processAllAvailable()
    assert [Path(each.name).name for each in stream.batches[1]] == ["log-1"]
    query.stop()


def test_bad_arguments_are_refused_at_once(spark: SparkSession, tmp_path: Path) -> None:
    def nothing(folder: str, executor: Executor, budget: Budget) -> object:
        raise AssertionError("nothing is compacted")

    with pytest.raises(InvalidInput, match="at least one folder"):
        start_compaction_stream(spark, [], nothing, checkpoint=str(tmp_path))
    with pytest.raises(InvalidInput, match="thresholds of at least 1"):
        start_compaction_stream(spark, ["/a"], nothing, checkpoint=str(tmp_path), min_segments=0)
    assert spark.streams.active == []
