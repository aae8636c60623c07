# SPDX-License-Identifier: Apache-2.0
"""Many blob stores compacted in one Spark job are, byte for byte, the stores compacted here; each commits its own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from compactlib.blobstore import BlobCompactionReport, BlobStore, compact_many
from compactlib.budget import Budget
from compactlib.clock import ManualClock
from compactlib.executors import Executor, LocalExecutor
from compactlib.spark import SparkExecutor
from tests.harness.blob_stores import START, answers, flip, garbage_store, plan_of, snapshot_of, strays

pytestmark = pytest.mark.spark


def built(base: Path, count: int) -> list[BlobStore]:
    base.mkdir()
    return [garbage_store(base / f"store{seed}", ManualClock(START), seed=seed, count=30)
            for seed in range(count)]


def compacted(stores: list[BlobStore], executor: Executor) -> None:
    found = compact_many([(store, plan_of(store)) for store in stores], executor=executor,
                         budget=Budget())
    assert all(isinstance(report, BlobCompactionReport) for report in found.values()), found


def contents(store: BlobStore) -> dict[str, bytes]:
    return {name: (Path(store.folder) / name).read_bytes() for name in os.listdir(store.folder)
            if name.endswith((".log", ".index"))}


def test_the_same_bytes_for_many_stores_in_one_job(spark: SparkSession, tmp_path: Path) -> None:
    ours, theirs = built(tmp_path / "spark", 3), built(tmp_path / "local", 3)
    plain = [answers(store, 30) for store in ours]
    compacted(ours, SparkExecutor(spark))
    compacted(theirs, LocalExecutor())
    for here, there, before in zip(ours, theirs, plain, strict=True):
        assert contents(here) == contents(there)
        assert answers(here, 30) == before
        assert here.verify().findings == ()
        assert strays(Path(here.folder)) == []
        here.close()
        there.close()


def test_a_damaged_store_stops_no_other_store(spark: SparkSession, tmp_path: Path) -> None:
    stores = built(tmp_path / "spark", 3)
    damaged = snapshot_of(stores[1])
    entry = next(entry for entry in damaged.segments[0].entries() if entry.id == b"b0")
    flip(Path(stores[1].folder) / entry.segment.log_file, entry.end - 5)
    found = compact_many([(store, plan_of(store)) for store in stores], executor=SparkExecutor(spark),
                         budget=Budget())
    left_out = [report.left_out for report in map(found.__getitem__, [store.folder for store in stores])
                if isinstance(report, BlobCompactionReport)]
    assert left_out == [(), (entry.segment,), ()]
    for store in stores:
        store.close()
