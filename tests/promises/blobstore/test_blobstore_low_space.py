# SPDX-License-Identifier: Apache-2.0
"""A blob store with little room left is compacted by its manager, whichever triggers were chosen."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest

from compactlib.blobstore import BlobStore, BlobStoreConfig, CompactAll, StatsBased, StoreFull
from compactlib.clock import ManualClock
from compactlib.errors import InvalidInput
from compactlib.manager import CompactionManager, LowSpace, OnRequest, Periodic

CONFIG = BlobStoreConfig(capacity_bytes=16 << 12, segment_bytes=1 << 12, deleted_retention_seconds=0.0,
                         compaction_bytes_per_second=None, journal_max_entries=0, max_blob_bytes=600,
                         durability="interval")
YEAR = 365 * 86_400.0


def opened(folder: Path, clock: ManualClock, **settings: Any) -> BlobStore:
    return BlobStore(folder, attrs.evolve(CONFIG, **settings), clock=clock)


def fill(store: BlobStore) -> None:
    """Put and delete blobs until one is refused."""
    for number in range(200):
        store.put(f"{number}", b"x" * 900, replace=True)
        store.delete(f"{number}")
    raise AssertionError("nothing was refused")


@pytest.mark.parametrize("triggers", [
    [Periodic(), OnRequest(), LowSpace()], [Periodic(YEAR)], [OnRequest()], [LowSpace(fraction=0.5)], []])
def test_low_space_compacts_under_any_triggers(triggers: Sequence[Periodic | OnRequest | LowSpace],
                                               scratch: Path) -> None:
    clock = ManualClock(1_000_000.0)
    manager = CompactionManager(triggers, clock=clock)
    with opened(scratch / "store", clock) as store:
        manager.add("store", store)
        manager.run_pending()
        with pytest.raises(StoreFull):
            fill(store)
        clock.advance(0.001)
        assert manager.run_pending() >= 1
        assert store.status().free_segments > 8
        store.put("one more", b"x" * 900)


def test_low_space_compacts_before_the_log_is_full(scratch: Path) -> None:
    clock = ManualClock(1_000_000.0)
    manager = CompactionManager([OnRequest()], clock=clock)
    with opened(scratch / "store", clock) as store:
        manager.add("store", store)
        manager.run_pending()
        for number in range(400):
            store.put(f"{number}", b"x" * 900)
            store.delete(f"{number}")
            clock.advance(0.001)
            manager.run_pending()
            assert store.status().free_segments > 0


def test_a_store_that_is_low_when_added_is_compacted(scratch: Path) -> None:
    clock = ManualClock(1_000_000.0)
    manager = CompactionManager([OnRequest()], clock=clock)
    with opened(scratch / "store", clock) as store:
        with pytest.raises(StoreFull):
            fill(store)
        clock.advance(0.001)
        manager.add("store", store)
        assert manager.run_pending() >= 1
        assert store.status().free_segments > 8


def test_low_space_of_nothing_compacts_nothing(scratch: Path) -> None:
    clock = ManualClock(1_000_000.0)
    manager = CompactionManager([OnRequest(), LowSpace(fraction=0)], clock=clock)
    with opened(scratch / "store", clock) as store:
        manager.add("store", store)
        manager.run_pending()
        with pytest.raises(StoreFull):
            fill(store)
        assert manager.run_pending() == 0


@pytest.mark.parametrize("fraction", [-0.1, 1.1, float("nan")])
def test_low_space_refuses_a_number_that_is_no_fraction(fraction: float) -> None:
    with pytest.raises(InvalidInput, match="0 to 1"):
        LowSpace(fraction)


def test_a_full_store_names_both_ways_to_compact_it(scratch: Path) -> None:
    with opened(scratch / "store", ManualClock(1_000_000.0)) as store:
        with pytest.raises(StoreFull) as full:
            fill(store)
        for message in (str(pickle.loads(pickle.dumps(full.value))), str(store.status())):
            assert "store.compact()" in message
            assert "CompactionManager" in message
            assert "add(store.name, store)" in message
        store.compact()
        assert "CompactionManager" not in str(store.status())


def test_last_sealed_segment_that_is_nearly_dead_is_compacted_by_the_policy_of_the_plan(scratch: Path) -> None:
    clock = ManualClock(1_000_000.0)
    with opened(scratch / "store", clock) as store:
        for number in range(3):
            store.put(f"{number}", b"x" * 900)
            if number:
                store.delete(f"{number}")
        store.close_active_segment()
        clock.advance(0.001)
        plan = store.plan(StatsBased(min_used_fraction=0.0))
        assert plan.is_empty
        assert "CompactAll(min_used_fraction=0.0)" in plan.why
        assert store.compact(policy=CompactAll(min_used_fraction=0.0)).bytes_freed > 1_500


@pytest.mark.parametrize("max_blob_bytes", [3_000, 0])
def test_an_empty_plan_names_its_gate(max_blob_bytes: int, scratch: Path) -> None:
    """Each segment has some dead bytes: with room for a large blob kept free in each output, none is freed."""
    clock = ManualClock(1_000_000.0)
    with opened(scratch / "store", clock, max_blob_bytes=max_blob_bytes) as store:
        for number in range(52):
            store.put(f"{number}", b"x" * 900)
            if number % 4 == 0:
                store.delete(f"{number}")
        clock.advance(0.001)
        plan = store.plan()
        assert plan.is_empty == (max_blob_bytes > 0)
        if plan.is_empty:
            assert "lower the store's max_blob_bytes=3000, which each output keeps free" in plan.why
