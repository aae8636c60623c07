"""What a plan says of bytes on the disk, compared with the files of a real store after it was carried out."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactlib.blobstore.config import BlobStoreConfig
from compactlib.blobstore.names import place_of_index_file, segment_of_log_file
from compactlib.blobstore.plan import CompactionPlan
from compactlib.blobstore.policies import CompactAll, ExpiryForecast, Greedy
from compactlib.blobstore.policy import Policy
from compactlib.blobstore.store import BlobStore
from compactlib.clock import ManualClock
from compactlib.errors import CompactlibError
from compactlib.outcome import Done

RETENTION = 100.0


def disk_bytes(folder: Path) -> dict[str, int]:
    """The files of segments and their indexes."""
    return {path.name: path.stat().st_size for path in folder.iterdir()
            if segment_of_log_file(path.name) is not None or place_of_index_file(path.name) is not None}


def carried_out(store: BlobStore, policy: Policy) -> tuple[CompactionPlan, int, int]:
    """A plan, and what its compaction wrote and freed."""
    plan = store.plan(policy)
    before = disk_bytes(Path(store.folder))
    assert isinstance(store.compact(plan), Done) or plan.is_empty
    after = disk_bytes(Path(store.folder))
    written = sum(size for name, size in after.items() if name not in before)
    return plan, written, sum(before.values()) - sum(after.values())


def a_store(folder: str | Path, clock: ManualClock, **config: object) -> BlobStore:
    return BlobStore(Path(folder) / "store", BlobStoreConfig(**{  # type: ignore[arg-type]
        "capacity_bytes": 40 << 10, "segment_bytes": 1 << 10, "index_max_entries": 4, "journal_max_entries": 0,
        "deleted_retention_seconds": RETENTION, "max_blob_bytes": 0, "pace": None, **config}), clock=clock)


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
       st.sampled_from([CompactAll(min_used_fraction=0), Greedy(min_used_fraction=0)]))
def test_an_exact_plan_holds_to_the_byte(history: list[tuple[str, int, int]], swaps: int, purge: bool,
                                         policy: Policy) -> None:
    clock = ManualClock(1_000_000.0)
    with tempfile.TemporaryDirectory() as folder, a_store(
            folder, clock, swap_segments=swaps, purge_tombstones=purge, ttl_update_buffer_seconds=0.0) as store:
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
        assert plan.bytes_needed <= written


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
def test_an_empty_plan_writes_and_frees_nothing(tmp_path: Path, policy: Policy) -> None:
    with a_store(tmp_path, ManualClock(1_000.0)) as store:
        assert carried_out(store, policy)[1:] == (0, 0)
        assert store.plan(policy).is_exact
