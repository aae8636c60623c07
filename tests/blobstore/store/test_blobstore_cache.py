# SPDX-License-Identifier: Apache-2.0
"""A cache that is full gives up what expires next; the presets are stores that work."""

from __future__ import annotations

import errno
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given, strategies as st

from compactlib.blobstore import Blob, BlobStore, BlobStoreConfig, BlobView, Deleted, Missing, RecordKind, StoreFull
from compactlib.blobstore.compaction.plan.eviction import choose_eviction
from compactlib.blobstore.compaction.plan.last_plans import LastPlans
from compactlib.blobstore.compaction.plan.policy import SegmentView
from compactlib.blobstore.model.names import SegmentName
from compactlib.blobstore.validity.verdicts import FOREVER
from compactlib.clock import ManualClock
from compactlib.errors import BudgetSpent, InvalidInput, StorageError
from compactlib.outcome import Done, Failed
from compactlib.runtime import Budget
from tests.tools.faults.plan import FailingFiles

CONFIG = BlobStoreConfig.cache(1 << 16, stats_entries_per_second=None, max_blob_bytes=600)
START = 1_000_000.0


def opened(folder: Path, clock: ManualClock | None = None, **changes: Any) -> BlobStore:
    return BlobStore(folder / "store", attrs.evolve(CONFIG, **changes), name="store",
                     clock=ManualClock(START) if clock is None else clock)


def held(store: BlobStore, keys: int) -> set[int]:
    return {key for key in range(keys) if isinstance(store.get(b"%d" % key), Blob)}


def put_all(store: BlobStore, keys: range, ttl_seconds: float | None = None) -> None:
    for key in keys:
        store.put(b"%d" % key, b"x" * 500, ttl_seconds=ttl_seconds)


def test_a_full_cache_takes_everything_and_gives_up_what_expires_next(scratch: Path) -> None:
    clock = ManualClock(START)
    rng = random.Random(1)
    with opened(scratch, clock) as store:
        expires = {key: rng.randrange(1_000, 10_000) for key in range(300)}
        for key, seconds in expires.items():
            store.put(b"%d" % key, b"x" * rng.randrange(300, 600), ttl_seconds=seconds)
            found = store.get(b"%d" % key)
            assert isinstance(found, Blob) or seconds < 9_000, "what was put last may be the next to expire"
        kept = held(store, 300)
        assert 50 < len(kept) < 140
        gone = [expires[key] for key in expires.keys() - kept]
        assert sum(gone) / len(gone) < sum(expires[key] for key in kept) / len(kept) - 2_000
        assert all(store.get(b"%d" % key) == Missing(b"%d" % key) for key in expires.keys() - kept)
        assert store.verify().is_sound
        store.audit()


@pytest.mark.parametrize("size", [450, 700, 850])
def test_a_cache_whose_blobs_need_more_room_than_is_reckoned_with_is_full_after_a_few_tries(
        size: int, scratch: Path) -> None:
    """Once, a put copied the whole store again and again, for ever: each try was to free a segment, and freed none."""
    files = FailingFiles(fail_at=3_000, errno=errno.EIO, sticky=True)
    config = attrs.evolve(CONFIG, capacity_bytes=12 << 10, segment_bytes=1 << 10, max_blob_bytes=0)
    with BlobStore(scratch / "store", config, clock=ManualClock(START), files=files) as store:
        def put_both() -> None:
            for key in range(60):
                store.put(b"%d" % key, b"x" * size)
                store.put(b"small %d" % key, b"y" * 100, ttl_seconds=100.0 + key)

        with pytest.raises(StoreFull):
            put_both()
        assert len([key for key in range(60) if isinstance(store.get(b"%d" % key), Blob)]) >= 9
        store.audit()
    assert files.count < 3_000


class SetBack(ManualClock):
    """Goes back by five seconds, once, some readings later."""

    left = 0

    def now(self) -> float:
        """See `Clock.now`."""
        self.left -= 1
        if self.left == 0:
            self.set_now(super().now() - 5.0)
        return super().now()


@pytest.mark.parametrize("readings", range(1, 16))
def test_a_clock_that_is_set_back_while_room_is_made_fails_no_put(readings: int, scratch: Path) -> None:
    """Once, the put was told that the plan's reference time is too late, which it knows nothing of."""
    clock = SetBack(START)
    with opened(scratch, clock, deleted_retention_seconds=0.0) as store:
        clock.advance(100.0)
        put_all(store, range(300), ttl_seconds=1_000.0)
        for key in range(300, 320):
            clock.left = readings
            store.put(b"%d" % key, b"x" * 500, ttl_seconds=1_000.0)
        store.audit()


def test_blobs_without_an_expiry_stay_and_a_cache_of_these_alone_is_full(scratch: Path) -> None:
    with opened(scratch) as store:
        for key in range(20):
            store.put(b"%d" % key, b"x" * 500)
        for key in range(20, 200):
            store.put(b"%d" % key, b"x" * 500, ttl_seconds=1000.0 + key)
        assert held(store, 20) == set(range(20))
        with pytest.raises(StoreFull, match="evicts=True"):
            put_all(store, range(200, 400))
        assert held(store, 20) == set(range(20))
        assert len(held(store, 400)) > 90
        store.audit()


@pytest.mark.parametrize("write", ["delete", "permanent", "replicated"])
def test_every_write_finds_room_in_a_cache(write: str, scratch: Path) -> None:
    with opened(scratch) as store:
        # Eight records of 502 bytes in each of 16 segments, to the last byte.
        for number in range(128):
            store.put(b"%04d" % number, b"x" * 438, ttl_seconds=500_000.0 if number < 16 else 100.0)
        assert store.status().used_bytes == store.capacity_bytes
        match write:
            case "delete":
                store.delete(b"0000")
                assert isinstance(store.get(b"0000"), Deleted)
            case "permanent":
                store.ttl_update(b"0000")
                found = store.get(b"0000")
                assert isinstance(found, Blob)
                assert found.info.expires_at is None
            case _:
                store.append_replicated(RecordKind.PUT, b"new", b"x" * 100, op_time=START)
                assert isinstance(store.get(b"new"), Blob)
        assert store.status().free_segments > 0
        store.audit()


def test_a_store_that_does_not_evict_is_full(scratch: Path) -> None:
    with opened(scratch, evicts=False) as store, pytest.raises(StoreFull, match="evicts=False"):
        put_all(store, range(200), ttl_seconds=1000.0)


def test_threads_fill_a_cache_together(scratch: Path) -> None:
    errors: list[BaseException] = []
    with BlobStore(scratch / "store", CONFIG) as store:

        def fill(number: int) -> None:
            try:
                for key in range(100):
                    store.put(b"%d" % (number * 100 + key), b"x" * 500, ttl_seconds=1000.0 + key)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=fill, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        assert store.verify().is_sound


def test_a_disk_that_refuses_an_eviction_is_told_and_the_next_put_goes_on(scratch: Path) -> None:
    refused = 0
    for step in range(12, 72, 6):
        with opened(scratch) as store:
            while store.status().free_segments:
                store.put(b"%d" % store.status().next_sequence, b"x" * 300, ttl_seconds=1000.0)
        files = FailingFiles(fail_at=step, errno=errno.EIO)
        with BlobStore(scratch / "store", CONFIG, clock=ManualClock(START), files=files) as store:
            try:
                for _ in range(30):
                    store.put(b"%d" % store.status().next_sequence, b"x" * 300, ttl_seconds=2000.0)
            except StorageError as error:
                refused += 1
                assert not isinstance(error, StoreFull)
            if store.status().stopped is None:
                store.put(b"%d at last" % step, b"x" * 300, ttl_seconds=3000.0)
                assert isinstance(store.get(b"%d at last" % step), Blob)
            store.audit()
    assert refused > 3
    with opened(scratch) as store:
        store.compact(budget=Budget())
        assert store.verify().is_sound


def test_an_interrupted_eviction_goes_on_as_a_compaction_and_keeps_what_has_not_expired(scratch: Path) -> None:
    with opened(scratch) as store:
        for key in range(20):
            store.put(b"%d" % key, b"x" * 500, ttl_seconds=None if key % 2 else 1000.0)
        store.close_active_segment()
        plan = store.compactions.plan_eviction(1)
        assert plan is not None
        assert plan.expires_before == START + 1000.001
        outcome = store.compact(plan, budget=Budget(total_bytes=0))
        assert isinstance(outcome, Failed)
        assert isinstance(outcome.error, BudgetSpent)
        assert held(store, 20) == set(range(20))
    with opened(scratch) as store:
        assert isinstance(store.resume(budget=Budget()), Done)
        assert held(store, 20) == set(range(20))


@given(st.lists(st.lists(st.tuples(st.one_of(st.integers(0, 50), st.just(FOREVER)), st.integers(1, 300)), max_size=3),
                min_size=1, max_size=6), st.integers(1, 4))
def test_the_earliest_time_that_frees_enough(lives: list[list[tuple[int, int]]], wanted: int) -> None:
    names = [SegmentName(number, 0) for number in range(len(lives) + 1)]
    view = BlobView(store="s", capacity_bytes=1 << 14, segment_bytes=1 << 10, header_bytes=80, max_blob_bytes=300,
                    used_bytes=0, reference_time=0.0, retention_seconds=0.0, history=LastPlans(since=0.0),
                    segments=tuple(SegmentView(name=name, used_bytes=900, valid_bytes=sum(size for _, size in each),
                                               eligible=name != names[-1])
                                   for name, each in zip(names, [*lives, []], strict=True)))
    found = choose_eviction(view, dict(zip(names, lives, strict=False)), wanted, 0)

    def frees(before: int) -> bool:
        kept = sorted(sum(size for until, size in each if until >= before) for each in lives)
        return any(view.benefit(count, sum(kept[:count])) >= wanted for count in range(1, len(kept) + 1))

    times = [0, *(until + 1 for each in lives for until, _ in each if until < FOREVER)]
    assert (None if found is None else found.before_ms) == min(filter(frees, times), default=None)
    if found is not None:
        assert set(found.choice.victims) <= set(names[:-1])
        kept = sum(segment.valid_bytes for segment in found.view.segments if segment.name in found.choice.victims)
        assert view.benefit(len(found.choice.victims), kept) >= wanted


@pytest.mark.parametrize("preset", [BlobStoreConfig.cache, BlobStoreConfig.archive, BlobStoreConfig.replicated])
def test_a_preset_is_a_store_that_works(preset: Callable[..., BlobStoreConfig], scratch: Path) -> None:
    config = preset(1 << 20)
    assert (config.capacity_bytes, config.segment_bytes) == (1 << 20, 1 << 16)
    with BlobStore(scratch / "store", config) as store:
        store.put(b"a", b"content", ttl_seconds=60)
        store.put(b"a", b"other content", ttl_seconds=60, replace=True)
        found = store.get(b"a")
        assert isinstance(found, Blob)
        assert found.content == b"other content"
    assert preset(1 << 20, durability="each").durability == "each"
    assert preset((1 << 40) + 5).segment_bytes <= 64 << 20
    assert 0 <= (1 << 40) + 5 - preset((1 << 40) + 5).capacity_bytes < 1 << 20
    for wrong in (0, 16 * 1024 - 1, True, "1 GiB", 1e9, None):
        with pytest.raises(InvalidInput, match="capacity_bytes"):
            preset(wrong)
