# SPDX-License-Identifier: Apache-2.0
"""Small blob stores to compact: a clock moved by hand, segments of a few records, plans for any segments."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

import attrs

from compactlib.blobstore import BlobChoice, BlobPlan, BlobStore, BlobStoreConfig, BlobView, CompactAll
from compactlib.clock import ManualClock
from compactlib.files import Files
from compactlib.runtime import Observer

RETENTION = 10.0
START = 1_000_000.0


def config(**changes: Any) -> BlobStoreConfig:
    """Forty segments of 2 KiB, a journal of one record."""
    settings: dict[str, Any] = {
        "capacity_bytes": 40 * 2048, "segment_bytes": 2048, "deleted_retention_seconds": RETENTION,
        "journal_max_entries": 1, "compaction_bytes_per_second": None,
        "ttl_update_buffer_seconds": 0.0, "durability": "interval"}
    return BlobStoreConfig(**{**settings, **changes})


def open_store(folder: Path, clock: ManualClock, *, files: Files | None = None, observer: Observer | None = None,
               **changes: Any) -> BlobStore:
    """The store in this folder; its policy takes everything that may be taken."""
    return BlobStore(folder, config(**changes), policy=CompactAll(min_used_fraction=0.0, skip_valid="all"), clock=clock,
                     files=files, observer=observer, name="store", new_incarnation=lambda: b"an incarnation..")


@attrs.frozen
class Named:
    """Takes the segments that a test names, in its order; without names all that may be taken."""

    segments: tuple[str, ...]
    name: ClassVar[str] = "named"

    def choose(self, view: BlobView, now: float) -> BlobChoice:
        """See `BlobPolicy`."""
        there = {str(segment.name): segment.name for segment in view.segments if segment.eligible}
        taken = [there[name] for name in self.segments] if self.segments else [*there.values()]
        return BlobChoice(tuple(taken), why="the test says so")


def plan_of(store: BlobStore, names: Iterable[str] | None = None) -> BlobPlan:
    """A plan for these segments, all eligible ones if not given; deletes older than the retention are in effect."""
    return store.plan(Named(tuple(names or ())))


def flip(path: Path, offset: int) -> None:
    """Damage one byte."""
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x55
    path.write_bytes(bytes(data))
