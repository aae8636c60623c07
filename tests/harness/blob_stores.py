# SPDX-License-Identifier: Apache-2.0
"""Small blob stores to compact: a manual clock, segments of a few records, plans for any segments."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, ClassVar

import attrs

from compactlib.blobstore import (
    Blob,
    BlobChoice,
    BlobPlan,
    BlobStore,
    BlobStoreConfig,
    BlobView,
    CompactAll,
    GetOptions,
)
from compactlib.clock import ManualClock
from compactlib.files import Files
from compactlib.observer import Observer

EVERYTHING = GetOptions(include_deleted=True, include_expired=True)
RETENTION = 10.0
START = 1_000_000.0


def config(**changes: Any) -> BlobStoreConfig:
    """Return settings of forty segments of 2 KiB, with a journal of one record."""
    settings: dict[str, Any] = {
        "capacity_bytes": 40 * 2048, "segment_bytes": 2048, "deleted_retention_seconds": RETENTION,
        "journal_max_entries": 1, "compaction_bytes_per_second": None,
        "ttl_update_buffer_seconds": 0.0, "durability": "interval"}
    return BlobStoreConfig(**{**settings, **changes})


def open_store(folder: Path, clock: ManualClock, *, files: Files | None = None, observer: Observer | None = None,
               **changes: Any) -> BlobStore:
    """Open the store in a folder, with a policy that takes all eligible segments."""
    return BlobStore(folder, config(**changes), policy=CompactAll(min_used_fraction=0.0, skip_valid=True), clock=clock,
                     files=files, observer=observer, name="store", new_incarnation=lambda: b"an incarnation..")


@attrs.frozen
class Named:
    """Takes named segments, in this order; without names all eligible segments."""

    segments: tuple[str, ...]
    name: ClassVar[str] = "named"

    def choose(self, view: BlobView, now: float) -> BlobChoice:
        """See `BlobPolicy`."""
        there = {str(segment.name): segment.name for segment in view.segments if segment.eligible}
        taken = [there[name] for name in self.segments] if self.segments else [*there.values()]
        return BlobChoice(tuple(taken), why="the test says so")


def plan_of(store: BlobStore, names: Iterable[str] | None = None) -> BlobPlan:
    """Plan these segments, all eligible ones if not given; deletes older than the retention are in effect."""
    return store.plan(Named(tuple(names or ())))


def fill(store: BlobStore, count: int, rng: random.Random, *, largest: int = 300, first: int = 0) -> None:
    """Put blobs `b0`, `b1`, ... of random sizes."""
    for number in range(first, first + count):
        store.put(f"b{number}", rng.randbytes(rng.randrange(largest)))


def delete_some(store: BlobStore, numbers: Iterable[int], clock: ManualClock) -> None:
    """Delete blobs, and let the retention pass."""
    for number in numbers:
        store.delete(f"b{number}")
    clock.advance(RETENTION + 1)


def garbage_store(folder: Path, clock: ManualClock, *, count: int = 60, seed: int = 0, files: Files | None = None,
                  dead: Callable[[int], bool] = lambda number: number % 3 != 0, **changes: Any) -> BlobStore:
    """Make a mostly dead store, with its deletes in effect."""
    store = open_store(folder, clock, files=files, **changes)
    fill(store, count, random.Random(seed))
    delete_some(store, [number for number in range(count) if dead(number)], clock)
    return store


def answers(store: BlobStore, count: int, options: GetOptions | None = None) -> list[Any]:
    """Return the result of a get of each blob: its content, or the kind of error."""
    found = [store.get(f"b{number}", options or GetOptions()) for number in range(count)]
    return [answer.content if isinstance(answer, Blob) else type(answer).__name__ for answer in found]


def segment_names(store: BlobStore) -> list[str]:
    """Return the names of the log's segments."""
    return [str(segment.name) for segment in store.view().segments]


def snapshot_of(store: BlobStore) -> Any:
    """Return every record of a store's log with its place."""
    return vars(store)["_log"].snapshot()


def strays(folder: Path) -> list[str]:
    """Return files that a store has only during a compaction."""
    return [name for name in sorted(os.listdir(folder)) if name.endswith((".temp", ".tmp"))]


def flip(path: Path, offset: int) -> None:
    """Damage one byte."""
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x55
    path.write_bytes(bytes(data))
