# SPDX-License-Identifier: Apache-2.0
"""A segment with a damaged record: it is left out, and the rest of its store is compacted as if it were not there."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import attrs
import pytest

from compactlib.blobstore import (
    BlobChoice,
    BlobPolicy,
    BlobReader,
    BlobStore,
    BlobStoreConfig,
    BlobView,
    CompactAll,
    CopyBudget,
    CostBenefit,
    DChoices,
    ExpiryForecast,
    Greedy,
    Hybrid,
    StatsBased,
)
from compactlib.blobstore.compaction.plan.last_plans import DamagedSegment, LastPlans, read_last_plans, write_last_plans
from compactlib.blobstore.model.values import IndexEntry
from compactlib.clock import ManualClock
from compactlib.errors import CorruptData, InvalidInput
from compactlib.files import LocalFiles
from compactlib.outcome import Done, Failed, Skipped
from compactlib.runtime import CompactionManager, Periodic, RecordingObserver
from tests.blobstore.compaction_stores import flip

DAY = 86_400.0
CONFIG = BlobStoreConfig(capacity_bytes=1 << 16, segment_bytes=1 << 12, max_blob_bytes=600, journal_max_entries=0,
                         deleted_retention_seconds=60.0, pace=None, stats_entries_per_second=None)
POLICIES: list[BlobPolicy] = [
    *(make(min_used_fraction=0.0) for make in (CompactAll, CopyBudget, CostBenefit, DChoices, ExpiryForecast, Greedy,
                                               StatsBased)),
    Hybrid(usual=StatsBased(min_used_fraction=0.0), thorough=CompactAll(min_used_fraction=0.0), every_seconds=7_200.0)]


def opened(folder: Path, clock: ManualClock, policy: BlobPolicy | None = None, **changed: Any) -> BlobStore:
    return BlobStore(folder, attrs.evolve(CONFIG, **changed), clock=clock, name="store",
                     policy=StatsBased(min_used_fraction=0.0) if policy is None else policy)


def damaged_store(folder: Path, clock: ManualClock, policy: BlobPolicy | None = None, **changed: Any,
                  ) -> tuple[BlobStore, IndexEntry]:
    """Seven blobs in each of ten segments. Of the first two one blob lives, of the others every other one; the one in
    the second segment is damaged."""
    store = opened(folder, clock, policy, **changed)
    for number in range(64):
        store.put(f"blob {number}", bytes([number]) * 500)
    snapshot = store.snapshot()
    damaged: list[IndexEntry] = []
    for place, info in enumerate(snapshot.segments[:-1]):
        entries = list(snapshot.entries_of(info.name))
        lives = entries[-1:] if place < 2 else entries[1::2]
        damaged += lives if place == 1 else []
        for entry in entries:
            if entry not in lives:
                store.delete(entry.id)
    store.close_active_segment()
    clock.advance(61.0)
    flip(folder / damaged[0].segment.log_file, damaged[0].offset + 100)
    return store, damaged[0]


def dead_bytes(store: BlobStore) -> dict[str, int]:
    return {str(each.name): each.used_bytes - each.valid_bytes for each in store.view().segments[:-1]}


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
def test_every_policy_compacts_the_other_segments(tmp_path: Path, policy: BlobPolicy) -> None:
    clock = ManualClock(1_000_000.0)
    store, entry = damaged_store(tmp_path / "store", clock, policy)
    sound, other = damaged_store(tmp_path / "sound", clock, policy)
    flip(tmp_path / "sound" / other.segment.log_file, other.offset + 100)
    manager = CompactionManager((Periodic(3_600.0),), clock=clock)
    with store, sound:
        manager.add("store", store)
        manager.add("sound", sound)
        for _ in range(20):
            manager.run_pending()
            clock.advance(3_601.0)
        assert str(entry.segment) in dead_bytes(store)
        assert sum(dead_bytes(store).values()) - dead_bytes(store)[str(entry.segment)] <= sum(
            dead_bytes(sound).values()) + CONFIG.segment_bytes
        assert len(store.snapshot().segments) <= len(sound.snapshot().segments) + 2
        assert store.status().damaged_segments == 1
        assert sound.status().damaged_segments == 0
        with pytest.raises(CorruptData):
            store.get(entry.id)


def test_one_call_chooses_again_if_what_it_chose_was_damaged(tmp_path: Path) -> None:
    """So that a store goes on which is opened, compacted and closed once a day."""
    store, entry = damaged_store(tmp_path / "store", ManualClock(1_000_000.0))
    with store:
        before = len(store.snapshot().segments)
        outcome = store.compact()
        assert isinstance(outcome, Done)
        assert outcome.stats.finished is not None
        assert outcome.stats.finished.left_out == (entry.segment,)
        assert outcome.stats.freed_segments > 0
        assert len(store.snapshot().segments) < before
        assert f"LEFT OUT {entry.segment} for damage" in repr(outcome.stats)


def test_what_was_left_out_is_known_after_a_restart_and_to_a_reader(tmp_path: Path) -> None:
    clock, observer = ManualClock(1_000_000.0), RecordingObserver()
    store, entry = damaged_store(tmp_path / "store", clock)
    with store:
        store.compact()
    with opened(tmp_path / "store", clock) as store:
        assert store.status().damaged_segments == 1
        assert "1 damaged" in repr(store.status())
        segment = next(each for each in store.view().segments if each.name == entry.segment)
        assert not segment.eligible
        assert "offset" in segment.damage
        plan = store.plan()
        left = next(each for each in plan.left if each.name == entry.segment)
        assert left.why.startswith("left out for damage until 1")
        assert "1 segment is left out for damage" in plan.why
        with BlobReader(tmp_path / "store", CONFIG, clock=clock) as reader:
            assert not next(each for each in reader.view().segments if each.name == entry.segment).eligible
        while isinstance(store.compact(observer=observer), Done):
            pass
        skipped = store.compact()
        assert isinstance(skipped, Skipped)
        assert "1 segment is left out for damage" in skipped.reason
        assert not [name for name, _ in observer.events if name == "blobstore_damage_found"]


def test_it_is_tried_again_with_growing_waits(tmp_path: Path) -> None:
    clock = ManualClock(1_000_000.0)
    store, entry = damaged_store(tmp_path / "store", clock, CompactAll(min_used_fraction=0.0, skip_valid="all"))
    observer = RecordingObserver()
    with store:
        found: list[float] = []
        for _ in range(80):
            before = len(observer.events)
            store.compact(observer=observer)
            if "blobstore_damage_found" in [name for name, _ in observer.events[before:]]:
                found.append(clock.now())
            clock.advance(DAY / 2)
        waits = [round((later - earlier) / DAY, 1) for earlier, later in pairwise(found)]
        assert waits == [1.0, 2.0, 4.0, 8.0, 16.0]
        assert str(entry.segment) in dead_bytes(store)


def test_a_clock_that_was_far_ahead_holds_nothing_back_for_ever(tmp_path: Path) -> None:
    clock = ManualClock(1_000_000.0)
    store, entry = damaged_store(tmp_path / "store", clock)
    with store:
        store.compact()
        last = read_last_plans(store.folder)
        assert last is not None
        write_last_plans(LocalFiles(), store.folder, attrs.evolve(last, damaged=tuple(
            attrs.evolve(each, retry_at=clock.now() + 400 * DAY) for each in last.damaged)))
        assert entry.segment in {each.name for each in store.view().eligible}


def test_once_its_file_has_changed_it_is_taken_at_once(tmp_path: Path) -> None:
    clock = ManualClock(1_000_000.0)
    store, entry = damaged_store(tmp_path / "store", clock)
    with store:
        store.compact()
        path = tmp_path / "store" / entry.segment.log_file
        flip(path, entry.offset + 100)
        os.utime(path, ns=(1, 1))
        assert entry.segment in {each.name for each in store.view().eligible}
        assert store.status().damaged_segments == 0
        while isinstance(store.compact(), Done):
            pass
        assert sum(dead_bytes(store).values()) == 0
        last = read_last_plans(store.folder)
        assert last is not None
        assert last.damaged == ()


def test_where_nothing_else_frees_anything_it_fails_once_and_then_says_why(tmp_path: Path) -> None:
    clock = ManualClock(1_000_000.0)
    with opened(tmp_path / "store", clock) as store:
        store.put("a", bytes(500))
        store.put("b", bytes(500))
        store.delete("b")
        store.close_active_segment()
        store.put("c", bytes(500))
        store.delete("c")
        store.close_active_segment()
        clock.advance(61.0)
        for info in store.snapshot().segments[:-1]:
            for entry in store.snapshot().entries_of(info.name):
                flip(tmp_path / "store" / info.name.log_file, entry.end - 5)
        failed = store.compact()
        assert isinstance(failed, Failed)
        assert isinstance(failed.error, CorruptData)
        assert failed.changed == "no"
        skipped = store.compact()
        assert isinstance(skipped, Skipped)
        assert "left out for damage" in skipped.reason


def test_a_plan_that_names_it_tries_it_at_once(tmp_path: Path) -> None:
    clock = ManualClock(1_000_000.0)
    store, entry = damaged_store(tmp_path / "store", clock)
    with store:
        plan = store.plan()
        assert entry.segment in plan.names
        store.compact(plan)
        assert store.status().damaged_segments == 1
        flip(tmp_path / "store" / entry.segment.log_file, entry.offset + 100)
        remaining = attrs.evolve(plan, victims=tuple(each for each in plan.victims if each.name == entry.segment))
        assert isinstance(store.compact(remaining), Done)
        assert store.status().damaged_segments == 0


def test_a_policy_that_takes_it_all_the_same_is_told_so(tmp_path: Path) -> None:
    @attrs.frozen
    class TakesAny:
        name = "takes any"

        def choose(self, view: BlobView, now: float) -> BlobChoice:
            return BlobChoice(view.segments[:-1], why="all")

    store, _ = damaged_store(tmp_path / "store", ManualClock(1_000_000.0))
    with store:
        store.compact()
        with pytest.raises(InvalidInput, match="left out for damage"):
            store.plan(TakesAny())


def test_what_is_kept_of_it_comes_back_from_the_folder(tmp_path: Path) -> None:
    last = LastPlans(since=1.5, damaged=(DamagedSegment(segment="1_0", found="a content", stamp="9 8", tries=2,
                                                        retry_at=7.0),))
    write_last_plans(LocalFiles(), tmp_path, last)
    assert (tmp_path / "plan_history.json").read_bytes() == (
        b'{"damaged": [{"found": "a content", "retry_at": 7.0, "segment": "1_0", "stamp": "9 8", "tries": 2}], '
        b'"format": 1, "last_full_at": null, "last_middle_range_at": null, "since": 1.5}')
    assert read_last_plans(tmp_path) == last


@pytest.mark.parametrize("damaged", ['7', '[7]', '[{}]', '[{"segment": "1_0"}]', '[{"segment": 1, "found": "", '
                                     '"stamp": "", "tries": 1, "retry_at": 1.0}]', '[{"segment": "x", "found": "", '
                                     '"stamp": "", "tries": 1, "retry_at": 1.0}]'])
def test_a_list_of_damage_that_is_damaged_is_refused(tmp_path: Path, damaged: str) -> None:
    (tmp_path / "plan_history.json").write_text(f'{{"format": 1, "since": 1.5, "damaged": {damaged}}}')
    with pytest.raises(CorruptData):
        read_last_plans(tmp_path)
