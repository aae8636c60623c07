# SPDX-License-Identifier: Apache-2.0
"""Small stores to compact: a clock moved by hand, segments of a few records, plans for any segments."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from compactlib.blobstore import (
    Blob,
    BlobPlan,
    BlobPolicy,
    BlobStore,
    BlobStoreConfig,
    CompactAll,
    GetOptions,
    Questions,
    RecordKind,
)
from compactlib.blobstore.compaction.plan.plan import PlannedSegment
from compactlib.blobstore.compaction.run.report import BlobCompactionOutcome, BlobCompactionReport
from compactlib.blobstore.model.names import SegmentName
from compactlib.blobstore.model.values import milliseconds
from compactlib.blobstore.store.operations import draft_of
from compactlib.clock import ManualClock
from compactlib.files import Files
from compactlib.outcome import Done
from compactlib.report import PolicyRecord
from compactlib.runtime import Observer
from tests.blobstore.store_pictures import StorePicture, compare

RETENTION = 10.0
START = 1_000_000.0
EVERYTHING = GetOptions(include_deleted=True, include_expired=True)


def config(**changes: Any) -> BlobStoreConfig:
    """Forty segments of 2 KiB, a journal of one record."""
    settings: dict[str, Any] = {
        "capacity_bytes": 40 * 2048, "segment_bytes": 2048, "deleted_retention_seconds": RETENTION,
        "journal_max_entries": 1, "index_max_entries": 7, "pace": None,
        "ttl_update_buffer_seconds": 0.0, "durability": "interval"}
    return BlobStoreConfig(**{**settings, **changes})


def open_store(folder: Path, clock: ManualClock, *, files: Files | None = None, observer: Observer | None = None,
               policy: BlobPolicy | None = None, questions: Questions | None = None, **changes: Any) -> BlobStore:
    """The store in this folder; its policy takes everything that may be taken."""
    chosen = CompactAll(min_used_fraction=0.0, skip_valid="all") if policy is None else policy
    return BlobStore(folder, config(**changes), policy=chosen, questions=questions, clock=clock, files=files,
                     observer=observer, name="store",
                     new_incarnation=lambda: b"an incarnation..")


def plan_of(store: BlobStore, names: Iterable[SegmentName] | None = None, *, reference: float | None = None,
            ) -> BlobPlan:
    """A plan for these segments, all eligible ones if not given; deletes older than the retention are in effect."""
    now = store.clock.now()
    victims = store.snapshot().eligible() if names is None else tuple(names)
    return BlobPlan(store=store.name, victims=tuple(PlannedSegment(name, 0, 0) for name in victims),
                          reference_time=now - RETENTION if reference is None else reference, planned_at=now,
                          policy=PolicyRecord("test", ()), why="the test says so")


def done(outcome: BlobCompactionOutcome) -> BlobCompactionReport:
    """The report of a compaction that came to its end."""
    assert isinstance(outcome, Done), outcome
    return outcome.stats


def compact_all(store: BlobStore) -> BlobCompactionReport:
    """Compact every eligible segment."""
    return done(store.compact(plan_of(store)))


def fill(store: BlobStore, count: int, rng: random.Random, *, largest: int = 300, first: int = 0) -> None:
    """Put blobs `b0`, `b1`, ... of random sizes."""
    for number in range(first, first + count):
        store.put(f"b{number}", rng.randbytes(rng.randrange(largest)))


def delete_some(store: BlobStore, numbers: Iterable[int], clock: ManualClock) -> None:
    """Delete blobs, and let the deletes come into effect."""
    for number in numbers:
        store.delete(f"b{number}")
    clock.advance(RETENTION + 1)


def answers(store: BlobStore, count: int, options: GetOptions | None = None) -> list[Any]:
    """What the store says of each blob: its content, or the kind of answer."""
    found = [store.get(f"b{number}", options or GetOptions()) for number in range(count)]
    return [answer.content if isinstance(answer, Blob) else type(answer).__name__ for answer in found]


def segment_names(store: BlobStore) -> list[str]:
    """The names of the log's segments."""
    return [str(info.name) for info in store.snapshot().segments]


def strays(folder: Path) -> list[str]:
    """Files that no store without a compaction in progress has."""
    return [name for name in sorted(os.listdir(folder)) if name == "COMPACTION" or name.endswith((".temp", ".tmp"))]


def garbage_store(folder: Path, clock: ManualClock, *, count: int = 60, seed: int = 0, files: Files | None = None,
                  dead: Callable[[int], bool] = lambda number: number % 3 != 0, **changes: Any) -> BlobStore:
    """A store of which most is dead, with its deletes in effect."""
    store = open_store(folder, clock, files=files, **changes)
    fill(store, count, random.Random(seed))
    delete_some(store, [number for number in range(count) if dead(number)], clock)
    return store


def flip(path: Path, offset: int) -> None:
    """Damage one byte."""
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x55
    path.write_bytes(bytes(data))


def names(*texts: str) -> list[SegmentName]:
    """Segment names from text."""
    return [SegmentName.parse(text) for text in texts]


def as_text(values: Sequence[Any]) -> list[str]:
    """Each value as text."""
    return [str(value) for value in values]


def check_against(store: BlobStore, before: StorePicture, *, now: float | None = None) -> None:
    """Nothing is different that a compaction must not change, and everything can be read."""
    at = store.clock.now() if now is None else now
    report = compare(before, StorePicture.of(store), at - RETENTION, at)
    assert not report.findings, str(report)
    sound = store.verify()
    assert not sound.findings, str(sound)
    store.audit()


def put_twice(store: BlobStore, blob_id: bytes) -> None:
    """A second PUT of an id, as a damaged index may show one; no operation of a store writes it."""
    draft = draft_of(blob_id, RecordKind.PUT, content_bytes=5, op_time_ms=milliseconds(store.clock.now()))
    store._change(lambda log: log.append(draft, b"again"))  # noqa: SLF001
