# SPDX-License-Identifier: Apache-2.0
"""How the steps of a compaction and of writes grow with the number of segments: counted, not timed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from compactlib.blobstore import BlobStore, BlobStoreConfig, CompactAll, RecordKind
from compactlib.blobstore.index import index_directory
from compactlib.blobstore.index.index_segment import IndexSegment
from compactlib.clock import Clock, ManualClock
from compactlib.outcome import Done
from tests.harness.steps import calls_of


def store_of(folder: Path, segments: int, *, clock: Clock | None = None, **settings: Any) -> BlobStore:
    return BlobStore(folder / str(segments), BlobStoreConfig(
        capacity_bytes=2048 * (2 * segments + 16), segment_bytes=2048, journal_max_entries=0, max_blob_bytes=0,
        durability="interval", **settings), clock=clock)


def fill(store: BlobStore, segments: int) -> None:
    for number in range(7 * segments):
        store.put(b"%d" % number, b"x" * 200)


def test_a_compaction_of_four_times_the_segments_takes_four_times_the_steps(scratch: Path) -> None:
    def steps(segments: int) -> Counter[str]:
        with store_of(scratch, segments) as store:
            fill(store, segments)
            for number in range(0, 7 * segments, 2):
                store.delete(b"%d" % number)
            outcomes: list[object] = []
            counted = calls_of(lambda: outcomes.append(store.compact(policy=CompactAll(min_used_fraction=0.0))))
            assert isinstance(outcomes[0], Done), outcomes
            return counted

    few, many = steps(20), steps(80)
    assert sum(many.values()) <= 4.4 * sum(few.values())
    # The folder is listed so many times a compaction, not a cycle.
    assert many["listdir"] == few["listdir"] < 12


def test_a_hard_delete_in_four_times_the_segments_takes_four_times_the_steps(scratch: Path) -> None:
    def steps(segments: int) -> int:
        clock = ManualClock(1000.0)
        with store_of(scratch, segments, clock=clock, deleted_retention_seconds=0) as store:
            fill(store, segments)
            for number in range(0, 7 * segments, 2):
                store.delete(b"%d" % number)
            clock.advance(10.0)
            return calls_of(lambda: store.hard_delete()).total()

    assert steps(120) <= 4.5 * steps(30)


def test_a_hard_delete_behind_a_delete_that_is_long_not_in_effect_takes_as_many_steps(scratch: Path) -> None:
    def steps(segments: int) -> list[int]:
        clock = ManualClock(1000.0)
        with store_of(scratch, segments, clock=clock, deleted_retention_seconds=0, hard_delete=True) as store:
            store.put(b"wild", b"")
            store.append_replicated(RecordKind.DELETE, b"wild", op_time=1e9)
            fill(store, segments)
            for number in range(0, 7 * segments, 2):
                store.delete(b"%d" % number)
            clock.advance(10.0)
            first = calls_of(lambda: store.hard_delete()).total()
            return [first, calls_of(lambda: store.hard_delete()).total()]

    for few, many in zip(steps(30), steps(120), strict=True):
        assert many <= 4.5 * few


def test_an_index_entry_is_merged_a_few_times_however_many_segments_follow(
        scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    merged = 0
    before = index_directory.HashRun.of

    def counted(owners: Sequence[IndexSegment]) -> index_directory.HashRun:
        nonlocal merged
        run = before(owners)
        merged += run.entries
        return run

    monkeypatch.setattr(index_directory.HashRun, "of", counted)
    with store_of(scratch, 600) as store:
        fill(store, 600)
        store.audit()
    assert merged <= 8 * 7 * 600
