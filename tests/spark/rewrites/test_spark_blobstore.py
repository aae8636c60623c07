# SPDX-License-Identifier: Apache-2.0
"""Many blob stores compacted in one Spark job are, byte for byte, the stores compacted here; each commits its own."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings, strategies as st
from pyspark.sql import SparkSession

from compactlib.blobstore import BlobCompactionReport, BlobStore, compact_many
from compactlib.budget import Budget
from compactlib.clock import ManualClock
from compactlib.errors import BudgetSpent, CompactlibError
from compactlib.executors import Executor, LocalExecutor
from compactlib.spark import SparkExecutor
from tests.harness.blob_stores import START, answers, flip, garbage_store, open_store, plan_of, snapshot_of, strays

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


def test_a_damaged_store_does_not_stop_the_others(spark: SparkSession, tmp_path: Path) -> None:
    stores = built(tmp_path / "spark", 3)
    damaged = snapshot_of(stores[1])
    entry = next(entry for entry in damaged.entries_of(damaged.segments[0].name) if entry.id == b"b0")
    flip(Path(stores[1].folder) / entry.segment.log_file, entry.end - 5)
    found = compact_many([(store, plan_of(store)) for store in stores], executor=SparkExecutor(spark),
                         budget=Budget())
    left_out = [report.left_out for report in map(found.__getitem__, [store.folder for store in stores])
                if isinstance(report, BlobCompactionReport)]
    assert left_out == [(), (entry.segment,), ()]
    for store in stores:
        store.close()


def test_what_spark_could_not_finish_is_finished_here(spark: SparkSession, tmp_path: Path) -> None:
    """A budget that ends on the cluster leaves each store usable, and nothing that an attempt there could still touch
    is used again."""
    (store,) = built(tmp_path / "spark", 1)
    plain = answers(store, 30)
    with pytest.raises(BudgetSpent):
        store.compact(plan_of(store), executor=SparkExecutor(spark), budget=Budget(total_bytes=100))
    assert answers(store, 30) == plain
    folder = Path(store.folder)
    store.close()
    with open_store(folder, ManualClock(START + 50)) as again:
        assert not again.compact(plan_of(again)).is_partial
        assert answers(again, 30) == plain
    assert strays(folder) == []


Step = tuple[str, int, int]
"""What is done, to which blob, and how large it is."""
STEPS = st.tuples(st.sampled_from(["put", "put", "put", "delete", "undelete", "ttl_update"]), st.integers(0, 40),
                  st.integers(0, 400))
BLOBS = 41
# Blobs up to b5 expire before their store is compacted.
HUGE: list[Step] = [*(("put", number, 30_000) for number in range(30, 38)), *(("delete", n, 0) for n in (31, 32, 35))]
TINY: list[Step] = [*(("put", number, 1) for number in range(41)), *(("delete", number, 0) for number in range(40))]
ALL_DEAD: list[Step] = [(what, number, 200) for what in ("put", "delete") for number in range(20)]
ALL_LIVE: list[Step] = [("put", number, 200) for number in range(20)]
_folders = itertools.count()


def told(store: BlobStore, clock: ManualClock, steps: Sequence[Step]) -> None:
    """Do what can be done of these steps, and let deletes come into effect."""
    for what, number, size in steps:
        try:
            if what == "put":
                store.put(f"b{number}", bytes([number]) * size, ttl_seconds=500.0 + 100 * number)
            else:
                getattr(store, what)(f"b{number}")
        except CompactlibError:
            continue
    clock.advance(1000.0)


def outcome_of(outcome: Any) -> Any:
    """What a report says, without times."""
    return (outcome.copied_bytes, outcome.left_out) if isinstance(outcome, BlobCompactionReport) else outcome


@settings(max_examples=2, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(stores=st.lists(st.lists(STEPS, min_size=10, max_size=80), min_size=2, max_size=5), together=st.integers(1, 8))
@example(stores=[HUGE, TINY, TINY, TINY, ALL_DEAD, ALL_LIVE], together=4)
def test_any_stores_in_common_jobs_of_shared_tasks_come_out_the_same(
        spark: SparkSession, tmp_path: Path, stores: list[list[Step]], together: int) -> None:
    """One huge rewrite beside tiny ones, stores of which all or nothing is dead, and what Hypothesis finds."""
    base = tmp_path / str(next(_folders))
    found: list[list[BlobStore]] = []
    outcomes = []
    for place, executor in (("local", LocalExecutor()),
                            ("spark", SparkExecutor(spark, tasks_per_partition=together))):
        (base / place).mkdir(parents=True)
        opened = []
        for number, steps in enumerate(stores):
            segment = 2048 if max(size for _, _, size in steps) < 1000 else 1 << 16
            clock = ManualClock(START)
            store = open_store(base / place / str(number), clock, segment_bytes=segment,
                               capacity_bytes=40 * segment)
            told(store, clock, steps)
            opened.append(store)
        planned = [(store, plan_of(store)) for store in opened if store.view().eligible]
        done = compact_many(planned, executor=executor, budget=Budget())
        outcomes.append([outcome_of(done.get(store.folder)) for store in opened])
        found.append(opened)
    assert outcomes[0] == outcomes[1]
    for here, there in zip(*found, strict=True):
        assert contents(here) == contents(there)
        assert answers(here, BLOBS) == answers(there, BLOBS)
        assert strays(Path(there.folder)) == []
        here.close()
        there.close()
