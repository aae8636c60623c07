# SPDX-License-Identifier: Apache-2.0
"""What a plan says of bytes on the disk, compared with the files of a real store after it was carried out."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from compactlib.blobstore import (
    BlobPlan,
    BlobPolicy,
    BlobStore,
    BlobStoreConfig,
    CompactAll,
    ExpiryForecast,
    Greedy,
    StatsBased,
)
from compactlib.blobstore.model.names import place_of_index_file, segment_of_log_file
from compactlib.blobstore.model.placement import ByAge, ByEnd, SurvivorPlacement
from compactlib.clock import ManualClock
from compactlib.errors import CompactlibError
from compactlib.files import Files
from compactlib.outcome import Done
from tests.tools.faults.plan import FailingFiles

RETENTION = 100.0


def disk_bytes(folder: Path) -> dict[str, int]:
    """The files of segments and their indexes."""
    return {path.name: path.stat().st_size for path in folder.iterdir()
            if segment_of_log_file(path.name) is not None or place_of_index_file(path.name) is not None}


def carried_out(store: BlobStore, policy: BlobPolicy) -> tuple[BlobPlan, int, int]:
    """A plan, and what its compaction wrote and freed."""
    plan = store.plan(policy)
    before = disk_bytes(Path(store.folder))
    assert isinstance(store.compact(plan), Done) or plan.is_empty
    after = disk_bytes(Path(store.folder))
    written = sum(size for name, size in after.items() if name not in before)
    return plan, written, sum(before.values()) - sum(after.values())


def a_store(folder: str | Path, clock: ManualClock, *, files: Files | None = None, **config: object) -> BlobStore:
    return BlobStore(Path(folder) / "store", BlobStoreConfig(**{  # type: ignore[arg-type]
        "capacity_bytes": 40 << 10, "segment_bytes": 1 << 10, "index_max_entries": 4, "journal_max_entries": 0,
        "deleted_retention_seconds": RETENTION, "max_blob_bytes": 0, "pace": None, **config}), clock=clock,
        files=files)


steps = st.lists(st.tuples(st.sampled_from(["put", "put", "put", "delete", "undelete", "keep", "wait"]),
                           st.integers(0, 11), st.sampled_from([1, 1, 90, 200, 400])), min_size=12, max_size=40)


def step(store: BlobStore, clock: ManualClock, number: int, what: str, blob: int, size: int) -> None:
    known = f"b{blob % max(number, 1)}"
    with contextlib.suppress(CompactlibError):
        match what:
            case "put":
                store.put(f"b{number}", bytes(size), ttl_seconds=None if blob % 3 else 3 * RETENTION)
            case "delete":
                store.delete(known)
            case "undelete":
                store.undelete(known)
            case "keep":
                store.ttl_update(known)
            case "wait":
                clock.advance(size)


@given(steps, st.integers(1, 3), st.booleans(),
       st.sampled_from([CompactAll(min_used_fraction=0), Greedy(min_used_fraction=0)]),
       st.sampled_from([None, ByAge(step=1.5)]))
def test_an_exact_plan_holds_to_the_byte(history: list[tuple[str, int, int]], swaps: int, purge: bool,
                                         policy: BlobPolicy, placement: SurvivorPlacement | None) -> None:
    clock = ManualClock(1_000_000.0)
    with tempfile.TemporaryDirectory() as folder, a_store(
            folder, clock, swap_segments=swaps, purge_tombstones=purge, ttl_update_buffer_seconds=0.0,
            placement=placement) as store:
        for number, (what, blob, size) in enumerate(history):
            step(store, clock, number, what, blob, size)
        store.close_active_segment()
        plan, written, freed = carried_out(store, policy)
        assert plan.bytes_available is not None
        if plan.is_exact:
            assert (plan.bytes_to_copy, plan.bytes_freed) == (written, freed)


def test_plans_over_one_output_and_over_records_of_one_size_are_exact(tmp_path: Path) -> None:
    with a_store(tmp_path, ManualClock(1_000.0), index_max_entries=100) as store:
        for number in range(30):
            store.put(f"{number:02}", bytes(200), ttl_seconds=None if number % 3 else 10.0)
        store.clock.sleep(60.0)
        store.close_active_segment()
        plan, written, freed = carried_out(store, CompactAll(min_used_fraction=0))
        assert plan.is_exact
        assert len(plan.victims) > 2
        assert (plan.bytes_to_copy, plan.bytes_freed) == (written, freed)
        assert plan.bytes_needed < written + 6_000


def test_a_plan_from_a_forecast_is_no_promise(tmp_path: Path) -> None:
    with a_store(tmp_path, ManualClock(1_000.0)) as store:
        for number in range(12):
            store.put(f"{number:02}", bytes(200), ttl_seconds=10.0)
        store.clock.sleep(8_000.0)
        store.close_active_segment()
        plan, written, freed = carried_out(store, ExpiryForecast(min_used_fraction=0))
        assert not plan.is_exact
        assert (written, freed) == (0, plan.bytes_freed)


@pytest.mark.parametrize("policy", [Greedy(), CompactAll()])
def test_an_empty_plan_writes_and_frees_nothing(tmp_path: Path, policy: BlobPolicy) -> None:
    with a_store(tmp_path, ManualClock(1_000.0)) as store:
        assert carried_out(store, policy)[1:] == (0, 0)
        assert store.plan(policy).is_exact


# --------------------------------------------------------------------------------------------------- room on the disk


class Peak:
    """How much more is in a folder at most than at first, looked at around every change of the disk."""

    def __init__(self) -> None:
        self.folder: Path | None = None
        self.before = self.bytes = 0
        self.files = FailingFiles(faults=self.look)

    def begin(self, folder: str) -> None:
        self.folder, self.bytes = Path(folder), 0
        self.before = self.total()

    def total(self) -> int:
        assert self.folder is not None
        return sum(path.stat().st_size for path in self.folder.iterdir())

    def look(self, change: int = 0) -> None:
        if self.folder is not None:
            self.bytes = max(self.bytes, self.total() - self.before)


def never_more_than_planned(store: BlobStore, peak: Peak, policy: BlobPolicy) -> tuple[BlobPlan, int]:
    """A plan, and the room that its compaction took."""
    plan = store.plan(policy)
    peak.begin(store.folder)
    assert isinstance(store.compact(plan), Done) or plan.is_empty
    peak.look()
    assert peak.bytes <= plan.bytes_needed
    return plan, peak.bytes


EAGER = (CompactAll(min_used_fraction=0), Greedy(min_used_fraction=0), StatsBased(min_used_fraction=0),
         ExpiryForecast(min_used_fraction=0))


@given(steps, st.sampled_from(EAGER), st.sampled_from([0, 200]), st.sampled_from([1, 2, 3, 100]),
       st.sampled_from([1, 2, 100]), st.sampled_from([1 << 10, 4 << 10]),
       st.sampled_from([None, ByAge(step=1.5), ByEnd(step=1.5)]))
def test_no_compaction_takes_more_room_than_its_plan_says_its_notes_included(
        history: list[tuple[str, int, int]], policy: BlobPolicy, buckets: int, swaps: int, entries: int,
        segment_bytes: int, placement: SurvivorPlacement | None) -> None:
    clock, peak = ManualClock(1_000_000.0), Peak()
    if isinstance(policy, ExpiryForecast):
        buckets = 200
    with tempfile.TemporaryDirectory() as folder, a_store(
            folder, clock, files=peak.files, swap_segments=swaps, index_max_entries=entries,
            segment_bytes=segment_bytes, stats_bucket_count=buckets, stats_bucket_seconds=60.0,
            placement=placement) as store:
        for number, (what, blob, size) in enumerate(history):
            step(store, clock, number, what, blob, size)
        store.close_active_segment()
        never_more_than_planned(store, peak, policy)


@pytest.mark.parametrize("buckets", [0, 200])
@pytest.mark.parametrize("swaps", [1, 2, 100])
@pytest.mark.parametrize("dead", [0, 3])
def test_nor_does_one_of_many_small_blobs(tmp_path: Path, dead: int, swaps: int, buckets: int) -> None:
    peak = Peak()
    with a_store(tmp_path, ManualClock(1_000_000.0), files=peak.files, capacity_bytes=1 << 20, segment_bytes=32 << 10,
                 index_max_entries=1_000, swap_segments=swaps, stats_bucket_count=buckets,
                 durability="interval") as store:
        for number in range(1_800):
            store.put(f"{number:04}", b"", ttl_seconds=10.0 if dead and number % dead else None)
        store.clock.sleep(8_000.0)
        store.close_active_segment()
        plan, took = never_more_than_planned(store, peak, CompactAll(min_used_fraction=0))
        assert plan.is_exact == (dead > 0 and not buckets)
        assert len(plan.victims) > 3
        # A bound that is far off would keep compactions from disks that have room for them.
        assert plan.bytes_needed < 2 * took + 2 * store.segment_bytes


@pytest.mark.parametrize("count", [1, 30])
def test_dropping_segments_needs_room_for_its_notes_alone(tmp_path: Path, count: int) -> None:
    peak = Peak()
    with a_store(tmp_path, ManualClock(1_000_000.0), files=peak.files) as store:
        for number in range(count):
            store.put(f"{number:02}", bytes(600), ttl_seconds=10.0)
        store.clock.sleep(60.0)
        store.close_active_segment()
        plan, took = never_more_than_planned(store, peak, CompactAll(min_used_fraction=0))
        assert (len(plan.victims), plan.bytes_to_copy) == (count, 0)
        assert 0 < took <= plan.bytes_needed < 500 + 100 * count
