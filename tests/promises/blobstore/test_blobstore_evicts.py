# SPDX-License-Identifier: Apache-2.0
"""A full cache takes each blob, and evicts the blobs that expire next, and no others."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from threading import Thread
from typing import Any

import attrs
import pytest

from compactlib.blobstore import Blob, BlobStore, BlobStoreConfig, BlobView, Missing, StoreFull
from compactlib.clock import ManualClock
from compactlib.errors import Busy, Closed

CONFIG = BlobStoreConfig.cache(1 << 16, max_blob_bytes=600)


def test_full_cache_evicts_the_blobs_that_expire_next(tmp_path: Path) -> None:
    clock, rng = ManualClock(1_000_000.0), Random(1)
    expires = {b"%d" % key: rng.randrange(1_000, 10_000) for key in range(300)}
    with BlobStore(tmp_path / "cache", CONFIG, clock=clock) as store:
        for number in range(20):
            store.put(b"for ever %d" % number, b"y" * 500)
        for key, seconds in expires.items():
            store.put(key, key * 100, ttl_seconds=seconds)
    with BlobStore(tmp_path / "cache", CONFIG, clock=clock) as store:
        assert all(isinstance(store.get(b"for ever %d" % number), Blob) for number in range(20))
        found = {key: store.get(key) for key in expires}
        kept = {key for key, answer in found.items() if isinstance(answer, Blob) and answer.content == key * 100}
        assert all(isinstance(found[key], Missing) for key in expires.keys() - kept)
        assert len(kept) > 50
        mean_kept = sum(expires[key] for key in kept) / len(kept)
        mean_gone = sum(expires[key] for key in expires.keys() - kept) / (len(expires) - len(kept))
        assert mean_kept > mean_gone + 1_000
        assert store.verify().is_sound


class PutsMore:
    """At the first eviction, wait for a thread that fills the cache again."""

    store: BlobStore
    is_done = False

    def event(self, name: str, /, **fields: Any) -> None:
        if name == "blobstore_evicted" and not self.is_done:
            self.is_done = True
            thread = Thread(target=put_many, args=(self.store, "more"), daemon=True)
            thread.start()
            thread.join(30.0)
            assert not thread.is_alive()


def put_many(store: BlobStore, name: str, *, stay: int = 100) -> None:
    """Put eighty blobs; of so many, one never expires."""
    for number in range(80):
        store.put(f"{name} {number}", bytes(900), ttl_seconds=1_000.0 + number if number % stay else None)


def test_observer_of_an_eviction_waits_for_a_writer_that_evicts_again(tmp_path: Path) -> None:
    observer = PutsMore()
    with BlobStore(tmp_path / "cache", CONFIG, clock=ManualClock(1_000_000.0), observer=observer) as store:
        observer.store = store
        put_many(store, "first")
        assert observer.is_done
        assert isinstance(store.get("more 79"), Blob)
        assert isinstance(store.get("first 79"), Blob)


class CountsViews(BlobStore):
    """Counts how many threads read the whole index at once, and takes its time."""

    now = most = 0

    def view(self, **more: Any) -> BlobView:
        self.now += 1
        self.most = max(self.most, self.now)
        time.sleep(0.02)
        found = super().view(**more)
        self.now -= 1
        return found


def test_of_many_writers_of_a_full_cache_one_plans_the_eviction(tmp_path: Path) -> None:
    with CountsViews(tmp_path / "cache", CONFIG, clock=ManualClock(1_000_000.0)) as store:
        threads = [Thread(target=put_many, args=(store, name), daemon=True) for name in "abcdef"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30.0)
            assert not thread.is_alive()
        assert store.most == 1
        assert all(isinstance(store.get(f"{name} 79"), Blob) for name in "abcdef")


def test_put_into_a_cache_that_cannot_place_its_survivors_is_refused(tmp_path: Path) -> None:
    clock = ManualClock(1_000_000.0)
    with BlobStore(tmp_path / "cache", CONFIG, clock=clock, place=lambda _: "odd") as store:  # type: ignore[arg-type,return-value]
        with pytest.raises(StoreFull):
            put_many(store, "some", stay=2)
        assert isinstance(store.get("some 0"), Blob)


class CallsAt(ManualClock):
    """A clock that makes a call at a reading of the time, counted from when it is armed."""

    def __init__(self) -> None:
        super().__init__(1_000_000.0)
        self.readings_left = 0
        self.call: Callable[[], object] = int

    def now(self) -> float:
        self.readings_left -= 1
        if self.readings_left == 0:
            self.call()
        return super().now()


def test_put_into_a_cache_that_is_closed_during_its_eviction_says_so(tmp_path: Path) -> None:
    """At each reading of the clock in turn; `close` refuses within the compaction of the eviction."""
    refused = 0
    for reading in range(1, 10):
        clock = CallsAt()
        with BlobStore(tmp_path / f"cache {reading}", CONFIG, clock=clock) as store:
            for number in range(64):
                store.put(b"%d" % number, bytes(900), ttl_seconds=1_000.0 + number)
            closed = list[bool]()

            def close(store: BlobStore = store, closed: list[bool] = closed) -> None:
                with contextlib.suppress(Busy):
                    store.close()
                    closed.append(True)

            clock.call, clock.readings_left = close, reading
            try:
                store.put(b"another", bytes(900))
            except Closed:
                refused += 1
            else:
                assert not closed
    assert refused > 1


@pytest.mark.parametrize("retention", [0.0, 10.0])
def test_put_into_a_full_cache_evicts_while_the_clock_is_set_back(tmp_path: Path, retention: float) -> None:
    """At each reading of the clock in turn."""
    for reading in range(1, 10):
        clock = CallsAt()
        with BlobStore(tmp_path / f"cache {reading}", attrs.evolve(CONFIG, deleted_retention_seconds=retention),
                       clock=clock) as store:
            for number in range(64):
                store.put(b"%d" % number, bytes(900), ttl_seconds=1_000.0 + number)
            clock.call, clock.readings_left = partial(clock.set_now, 999_999.0), reading
            store.put(b"another", bytes(900))
            assert isinstance(store.get(b"another"), Blob)
