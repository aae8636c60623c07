"""Many blob stores compacted in one Spark job are, byte for byte, the stores compacted here; each commits its own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from compactlib.blobstore import BlobCompactor, BlobStore, compact_many, verify
from compactlib.budget import Budget
from compactlib.clock import ManualClock
from compactlib.outcome import Done, Failed
from compactlib.rewrite import Executor, LocalExecutor
from compactlib.spark import SparkExecutor
from tests.blobstore.compaction_stores import START, answers, flip, garbage_store, open_store, plan_of, strays

pytestmark = pytest.mark.spark


def built(base: Path, count: int) -> list[BlobStore]:
    base.mkdir()
    return [garbage_store(base / f"store{seed}", ManualClock(START), seed=seed, count=30, swap_segments=8)
            for seed in range(count)]


def compacted(stores: list[BlobStore], executor: Executor) -> None:
    found = compact_many([(BlobCompactor(store), plan_of(store)) for store in stores], executor=executor,
                         budget=Budget())
    assert all(isinstance(outcome, Done) for outcome in found.values()), found


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
        assert verify(here).findings == ()
        assert strays(Path(here.folder)) == []
        here.close()
        there.close()


def test_a_damaged_store_does_not_stop_the_others(spark: SparkSession, tmp_path: Path) -> None:
    stores = built(tmp_path / "spark", 3)
    damaged = stores[1].snapshot()
    entry = next(entry for entry in damaged.entries_of(damaged.segments[0].name) if entry.id == b"b0")
    flip(Path(stores[1].folder) / entry.segment.log_file, entry.end - 5)
    found = compact_many([(BlobCompactor(store), plan_of(store)) for store in stores], executor=SparkExecutor(spark),
                         budget=Budget())
    outcome = found[stores[1].folder]
    assert not isinstance(outcome, Failed), outcome
    assert isinstance(outcome, Done)
    assert [str(name) for name in outcome.stats.left_out] == [str(entry.segment)]
    assert not any(isinstance(found[store.folder], Failed) for store in stores)
    for store in stores:
        store.close()


def test_what_spark_could_not_finish_is_finished_here(spark: SparkSession, tmp_path: Path) -> None:
    """A budget that ends on the cluster leaves each store usable, and nothing that an attempt there could still touch
    is used again."""
    (store,) = built(tmp_path / "spark", 1)
    plain = answers(store, 30)
    outcome = BlobCompactor(store).compact(plan_of(store), executor=SparkExecutor(spark),
                                           budget=Budget(total_bytes=100))
    assert isinstance(outcome, Failed)
    assert answers(store, 30) == plain
    folder = Path(store.folder)
    store.close()
    with open_store(folder, ManualClock(START + 50), swap_segments=8) as again:
        assert isinstance(BlobCompactor(again).resume(budget=Budget()), Done)
        assert answers(again, 30) == plain
    assert strays(folder) == []
