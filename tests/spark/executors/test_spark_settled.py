# SPDX-License-Identifier: Apache-2.0
"""Workers that Spark uses again do not look through all their modules after every task."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from compactlib.raftlog import LogOptions, SegmentLimits, SegmentLog
from compactlib.spark import register
from compactlib.spark.settled import _set_aside_once, settled
from compactlib.spark.stores.many_stores import map_items


@pytest.fixture
def unfrozen() -> Iterator[None]:
    """This process as a worker that has just begun, and as before in the end."""
    gc.unfreeze()
    _set_aside_once.cache_clear()
    yield
    gc.unfreeze()
    _set_aside_once.cache_clear()


@pytest.mark.usefixtures("unfrozen")
def test_a_worker_sets_aside_what_its_first_task_leaves() -> None:
    assert list(settled(iter([1, 2]), on_worker=True)) == [1, 2]
    frozen = gc.get_freeze_count()
    assert frozen > 10_000
    later = [[number] for number in range(1_000)]
    assert list(settled(iter(later), on_worker=True)) == later
    assert gc.get_freeze_count() <= frozen


@pytest.mark.usefixtures("unfrozen")
def test_garbage_of_a_process_that_is_no_worker_is_collected_as_ever() -> None:
    assert list(settled(iter([1]))) == [1]
    assert gc.get_freeze_count() == 0


@pytest.mark.spark
def test_workers_that_have_read_a_log_are_settled(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "log"
    with SegmentLog(folder, LogOptions(limits=SegmentLimits(max_entries=5))) as log:
        log.extend((index, 1, b"entry") for index in range(1, 41))
    register(spark)
    read = spark.read.format("compactlib.raftlog").option("partition_bytes", 1).load(str(folder))
    assert read.count() == 40

    def frozen(_: int) -> int:
        import gc

        return gc.get_freeze_count()

    assert max(each.value or 0 for each in map_items(spark, range(4), frozen, parts=4)) > 10_000
