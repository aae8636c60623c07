# SPDX-License-Identifier: Apache-2.0
"""Clocks that jump: nothing expires, comes back or is stuck because of one wrong reading; an operator may accept it."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from compactlib.blobstore import (
    Blob,
    BlobStore,
    BlobStoreConfig,
    CompactAll,
    Deleted,
    Expired,
    GetOptions,
    Missing,
    RecordKind,
)
from compactlib.blobstore.compaction.sense.kept_statistics import KeptStatistics
from compactlib.clock import Clock, ManualClock
from compactlib.errors import CompactlibError
from compactlib.outcome import Failed
from compactlib.runtime import Budget, Observer
from compactlib.runtime.steady_clock import DEFAULT_CONFIRM_SECONDS
from tests.harness.effort import Effort
from tests.tools.faults.jumps import Jump, JumpingClock, explore_clock_jumps

NOW = 1_000_000.0
DAY = 86_400.0
RETENTION = 600.0
EVERYTHING = GetOptions(include_deleted=True, include_expired=True)


def opened(folder: Path, clock: Clock, **changes: Any) -> BlobStore:
    config = BlobStoreConfig(**{
        "capacity_bytes": 1 << 15, "segment_bytes": 1 << 11, "journal_max_entries": 0,
        "deleted_retention_seconds": RETENTION, "max_blob_bytes": 0, "pace": None,
        "ttl_update_buffer_seconds": 0.0, **changes})
    return BlobStore(folder / "store", config, clock=clock)


def compact(store: BlobStore) -> None:
    """As a manager does it: by the time of the store."""
    store.close_active_segment()
    outcome = store.compact(policy=CompactAll(min_used_fraction=0.0), budget=Budget())
    if isinstance(outcome, Failed):
        raise outcome.error


def seen(store: BlobStore) -> dict[str, str]:
    return {key: type(store.get(key)).__name__ for key in ("stays", "short", "long", "deleted")}


class Ahead(ManualClock):
    """A clock that is off by so much."""

    off = 0.0

    def now(self) -> float:
        return super().now() + self.off


def filled(folder: Path, clock: Clock) -> BlobStore:
    store = opened(folder, clock)
    store.put("stays", b"1" * 500)
    store.put("short", b"2" * 500, ttl_seconds=5)
    store.put("long", b"3" * 500, ttl_seconds=3600)
    store.put("deleted", b"4" * 500)
    store.delete("deleted")
    return store


RIGHT = {"stays": "Blob", "short": "Expired", "long": "Blob", "deleted": "Deleted"}


@pytest.mark.parametrize("off", [DAY, -DAY, 3650 * DAY])
def test_a_reading_that_is_off_changes_no_answer(off: float, scratch: Path) -> None:
    clock = Ahead(NOW)
    with filled(scratch, clock) as store:
        clock.advance(10)
        assert seen(store) == RIGHT
        clock.off = off
        assert seen(store) == RIGHT
        store.put("meanwhile", b"", ttl_seconds=30)
        info = store.info("meanwhile")
        assert not isinstance(info, Missing | Deleted | Expired)
        assert info.put_at == NOW + 10
        assert info.expires_at == NOW + 40
        store.undelete("deleted")
        store.delete("deleted")
        assert store.clock.now() <= NOW + 10
        compact(store)
        clock.off = 0.0
        clock.advance(1)
        compact(store)
        assert {**seen(store), "short": "Expired"} == RIGHT
        assert isinstance(store.get("deleted", EVERYTHING), Blob)
        assert isinstance(store.get("short", EVERYTHING), Missing)
        store.undelete("deleted")


def test_a_clock_that_stays_so_is_believed_and_an_operator_may_accept_it_at_once(scratch: Path) -> None:
    clock = Ahead(NOW)
    with filled(scratch, clock) as store:
        clock.off = DAY
        assert seen(store)["long"] == "Blob"
        clock.advance(DEFAULT_CONFIRM_SECONDS)
        assert seen(store)["long"] == "Expired"
        clock.off = 0.0
        assert seen(store)["long"] == "Expired"
        store.accept_clock()
        assert seen(store)["long"] == "Blob"


def test_jumps_are_told_outside_of_the_stores_lock(scratch: Path) -> None:
    told: list[str] = []

    class Curious(Observer):
        def event(self, name: str, fields: Mapping[str, Any]) -> None:
            told.append(name)
            thread = threading.Thread(target=lambda: store.put(f"by the observer {len(told)}", b""))
            thread.start()
            thread.join(10)
            assert not thread.is_alive()
            raise RuntimeError("an observer's own")

    clock = Ahead(NOW)
    with BlobStore(scratch / "store", clock=clock, observer=Curious()) as store:
        store.put("a", b"", ttl_seconds=60)
        clock.off = DAY
        store.put("b", b"")
        assert told == ["clock_jumped"]
        clock.off = -DAY
        assert isinstance(store.get("a"), Blob)
        assert told == ["clock_jumped"] * 2
        store.accept_clock()
        assert told[2:] == ["clock_accepted"]
        assert isinstance(store.get("by the observer 3"), Blob)


def test_a_step_at_opening_drops_nothing_before_it_is_confirmed(scratch: Path) -> None:
    """A store that was closed for a month and a clock that is a month ahead look the same."""
    filled(scratch, Ahead(NOW)).close()
    clock = Ahead(NOW)
    clock.off = 30 * DAY
    with opened(scratch, clock) as store:
        # Answers go by the new time at once ...
        assert seen(store) == {**RIGHT, "long": "Expired"}
        compact(store)
    # ... and what cannot be taken back waits.
    clock.off = 0.0
    with opened(scratch, clock) as store:
        assert seen(store) == {**RIGHT, "short": "Blob"}
        assert isinstance(store.get("deleted", EVERYTHING), Blob)
        store.undelete("deleted")
        store.delete("deleted")
    clock.off = 30 * DAY
    with opened(scratch, clock) as store:
        store.put("a long stop does not stop it", b"")
        clock.advance(DEFAULT_CONFIRM_SECONDS)
        compact(store)
        assert isinstance(store.get("long", EVERYTHING), Missing)
        assert isinstance(store.get("deleted", EVERYTHING), Deleted)
        assert isinstance(store.get("stays"), Blob)


def test_after_a_step_at_opening_an_operator_may_accept_the_clock(scratch: Path) -> None:
    filled(scratch, ManualClock(NOW)).close()
    with opened(scratch, ManualClock(NOW + 30 * DAY)) as store:
        compact(store)
        assert isinstance(store.get("long", EVERYTHING), Blob)
        store.accept_clock()
        compact(store)
        assert isinstance(store.get("long", EVERYTHING), Missing)


def test_what_has_expired_does_not_come_back_when_the_clock_is_behind_at_opening(scratch: Path) -> None:
    clock = Ahead(NOW)
    with filled(scratch, clock) as store:
        clock.advance(10)
        for number in range(9):
            store.put(f"more {number}", b"")
        assert seen(store) == RIGHT
    clock.off = -DAY
    with opened(scratch, clock) as store:
        assert seen(store) == RIGHT
        # Should the clock be right, and what was written was not, nothing is dropped for it.
        assert store.clock.now() == NOW + 10 - DAY
        clock.off = 0.0
        assert seen(store) == RIGHT


def test_one_record_with_a_wild_time_does_not_set_the_clock(scratch: Path) -> None:
    clock = ManualClock(NOW)
    with filled(scratch, clock) as store:
        store.append_replicated(RecordKind.DELETE, "from a peer", op_time=NOW * 1e6)
        store.append_replicated(RecordKind.DELETE, "from another", op_time=-NOW * 1e6)
    with opened(scratch, clock) as store:
        assert seen(store) == {**RIGHT, "short": "Blob"}
        assert store.clock.now() == NOW


def test_of_two_records_the_one_with_a_wild_time_does_not_set_the_clock(scratch: Path) -> None:
    clock = ManualClock(NOW)
    with opened(scratch, clock) as store:
        store.put("stays", b"1")
        store.append_replicated(RecordKind.DELETE, "from a peer", op_time=NOW * 1e3)
    with opened(scratch, clock) as store:
        assert store.put("short", b"2", ttl_seconds=40.0).expires_at == NOW + 40.0
        assert store.delete("stays").deleted_at == NOW


def test_a_jump_at_any_reading_loses_nothing_and_sticks_nothing(effort: Effort, scratch: Path) -> None:
    runs = iter(range(10_000))

    def work(clock: JumpingClock) -> BlobStore:
        folder = scratch / str(next(runs))
        folder.mkdir()
        with filled(folder, clock) as store:
            compact(store)
            store.undelete("deleted")
            store.delete("deleted")
            clock.advance(2)
            compact(store)
        return opened(folder, clock)

    def check(store: BlobStore | CompactlibError, jump: Jump) -> None:
        assert isinstance(store, BlobStore), store
        with store:
            store.audit()
            for key in ("stays", "deleted"):
                assert isinstance(store.get(key, EVERYTHING), Blob), key
            if jump.readings is not None:
                assert isinstance(store.get("long", EVERYTHING), Blob)
            # Once the clock is right for a while, everything is.
            assert isinstance(store.get("stays"), Blob)
            store.put("later", b"5")
            assert isinstance(store.get("later"), Blob)

    report = explore_clock_jumps(work, check, jumps=(DAY, -DAY, 3650 * DAY)[:effort(2, 3)])
    assert report.runs > 60


def test_statistics_kept_by_a_clock_that_was_ahead_are_counted_anew(scratch: Path) -> None:
    clock = ManualClock(NOW)
    with filled(scratch, clock) as store:
        store.close_active_segment()
        kept = KeptStatistics(retention_seconds=RETENTION, bucket_seconds=60.0, bucket_count=3000)
        right = kept.refresh(store.snapshot(), NOW).statistics(NOW).valid_bytes
        kept.refresh(store.snapshot(), NOW + DAY)
        assert kept.refresh(store.snapshot(), NOW).statistics(NOW).valid_bytes == right
