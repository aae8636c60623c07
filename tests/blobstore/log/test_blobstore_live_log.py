# SPDX-License-Identifier: Apache-2.0
"""A store and its log: segments and what they count, switches under readers, opening and closing."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compactlib.blobstore import Blob, BlobStore, BlobStoreConfig, Missing
from compactlib.blobstore.errors import (
    NotAStore,
    PlanDoesNotFit,
    StoreFull,
)
from compactlib.blobstore.model.names import FIRST_SEGMENT, SegmentName
from compactlib.blobstore.segment.reader import SEGMENT_HEADER_BYTES, SegmentFile
from compactlib.blobstore.segment.records import record_size
from compactlib.clock import ManualClock
from compactlib.errors import Busy, Closed, CompactlibError, InvalidInput, StorageError
from compactlib.outcome import Done
from tests.harness.open_files import open_files

START = 1_000_000.0


def small(**changes: Any) -> BlobStoreConfig:
    return BlobStoreConfig(**{"capacity_bytes": 1 << 14, "segment_bytes": 1 << 12, **changes})


def store_in(folder: Path, clock: ManualClock | None = None, **changes: Any) -> BlobStore:
    return BlobStore(folder / "store", small(**changes), clock=clock or ManualClock(START))


# ------------------------------------------------------------------------------------------- segments and accounting

def test_records_never_cross_a_segment_and_the_wasted_tail_counts_as_used(scratch: Path) -> None:
    with store_in(scratch) as store:
        store.put("a", b"x" * 3000)
        store.put("b", b"x" * 3000)
        store.put("c", b"x" * 10)
        segments = store.snapshot().segments
        assert [segment.name for segment in segments] == [FIRST_SEGMENT, SegmentName(1, 0)]
        assert segments[0].end == SEGMENT_HEADER_BYTES + record_size(1, 3000)
        status = store.status()
        assert status.used_bytes == (1 << 12) + segments[1].end
        assert (status.free_segments, status.records) == (2, 3)


def test_the_capacity_has_to_be_a_multiple_only_when_a_store_is_created(scratch: Path) -> None:
    with pytest.raises(InvalidInput, match="multiple"):
        store_in(scratch, segment_bytes=1 << 12, capacity_bytes=10_000)
    assert not (scratch / "store").exists()
    store_in(scratch).close()
    with store_in(scratch, segment_bytes=5000, capacity_bytes=12_000) as store:
        assert (store.segment_bytes, store.capacity_bytes) == (1 << 12, 1 << 14)


def test_a_segment_is_no_larger_than_the_log(scratch: Path) -> None:
    with store_in(scratch, segment_bytes=1 << 30) as store:
        assert store.segment_bytes == store.capacity_bytes == 1 << 14
        assert store.snapshot().eligible() == ()


def test_closing_the_active_segment_makes_it_eligible(scratch: Path) -> None:
    with store_in(scratch, journal_max_entries=1) as store:
        store.close_active_segment()
        assert store.status().segments == 1, "an empty one is not closed"
        store.put("a", b"1")
        assert store.snapshot().eligible() == ()
        store.close_active_segment()
        assert store.snapshot().eligible() == (), "the journal still reaches it"
        store.put("b", b"1")
        assert store.snapshot().eligible() == (FIRST_SEGMENT,)


def test_the_journal_keeps_the_segments_that_it_reaches(scratch: Path) -> None:
    with store_in(scratch, journal_max_entries=3, capacity_bytes=1 << 16) as store:
        for number in range(3):
            store.put(f"{number}", b"x" * 3800)
        assert store.snapshot().eligible() == ()
        store.delete("0")
        assert [str(name) for name in store.snapshot().eligible()] == ["0_0"]
    # After a restart only the records of the last segment are in the journal.
    with store_in(scratch, journal_max_entries=3) as store:
        assert [str(name) for name in store.snapshot().eligible()] == ["0_0", "1_0"]


def test_the_journal_never_keeps_every_segment(scratch: Path) -> None:
    """A default store, filled until it was full, could not be compacted before it was opened again."""
    with store_in(scratch, capacity_bytes=1 << 16, deleted_retention_seconds=0.0, pace=None) as store:
        for number in range(16):
            store.put(f"{number}", b"x" * 3800, ttl_seconds=1)
        with pytest.raises(StoreFull, match=r"12 of 16 segments may be compacted, 3 are kept by the journal"):
            store.put("more", b"x" * 3800, ttl_seconds=1)
        assert store.status().free_segments == 0
        store.clock.sleep(2.0)
        assert isinstance(store.compact(), Done)
        assert store.status().free_segments == 12
        store.put("again", b"x" * 3800)


def test_a_switch_that_does_not_fit_is_refused(scratch: Path) -> None:
    with store_in(scratch, journal_max_entries=1) as store:
        for number in range(3):
            store.put(f"{number}", b"x" * 3800)
        for remove in ([], [SegmentName(2, 0)], [SegmentName(0, 1)], [SegmentName(7, 0)]):
            with pytest.raises(PlanDoesNotFit):
                store.swap_segments(remove, [])
        with pytest.raises(CompactlibError):
            store.swap_segments([FIRST_SEGMENT], [SegmentName(0, 1)])
        with pytest.raises(PlanDoesNotFit):
            store.swap_segments([FIRST_SEGMENT], [SegmentName(1, 0)])
        with pytest.raises(PlanDoesNotFit):
            store.reload_index(SegmentName(2, 0))
        assert isinstance(store.get("0"), Blob)
        store.audit()


def test_a_segment_that_is_switched_away_is_answered_no_more_and_its_file_is_let_go(scratch: Path) -> None:
    with store_in(scratch, journal_max_entries=1) as store:
        for number in range(3):
            store.put(f"{number}", b"x" * 3800)
        before = store.snapshot()
        assert isinstance(store.get("0"), Blob)
        # A name that is given twice takes no other segment with it.
        store.swap_segments([FIRST_SEGMENT, FIRST_SEGMENT], [])
        assert not [path for path in open_files(scratch) if path.endswith("0_0.log")]
        assert store.get("0") == Missing(b"0")
        assert isinstance(store.get("1"), Blob)
        assert [str(segment.name) for segment in store.snapshot().segments] == ["1_0", "2_0"]
        assert len(before.history(b"0")) == 1, "a snapshot does not change"
        assert store.status().free_segments == 2


def test_a_reader_that_finds_the_file_gone_looks_again(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The switch comes between looking up the record and opening its file."""
    with store_in(scratch, journal_max_entries=1) as store:
        for number in range(3):
            store.put(f"{number}", b"x" * 3800)
        segments = store._log.segments  # noqa: SLF001

        def late(name: SegmentName, is_listed: Callable[[SegmentName], bool]) -> SegmentFile:
            monkeypatch.undo()
            store.swap_segments([FIRST_SEGMENT], [])
            (scratch / "store" / "0_0.log").unlink()
            return segments.get(name, is_listed)

        monkeypatch.setattr(segments, "get", late)
        assert store.get("0") == Missing(b"0")
        (scratch / "store" / "1_0.log").unlink()
        with pytest.raises(StorageError):
            store.get("1")


def test_a_reader_that_holds_a_file_of_a_removed_segment_reads_on(scratch: Path) -> None:
    with store_in(scratch, journal_max_entries=1) as store:
        for number in range(3):
            store.put(f"{number}", b"x" * 3800)
        held = store._log.segments.get(FIRST_SEGMENT, store._log.has)  # noqa: SLF001
        store.swap_segments([FIRST_SEGMENT], [])
        (scratch / "store" / "0_0.log").unlink()
        assert held.read(SEGMENT_HEADER_BYTES, 4) == b"CLBR"
        del held
        gc.collect()
        assert not [path for path in open_files(scratch) if "0_0.log" in path]


# ---------------------------------------------------------------------------------------------- folders and closing

def test_a_store_is_open_once(scratch: Path) -> None:
    with store_in(scratch) as store:
        with pytest.raises(Busy):
            store_in(scratch)
        store.put("x", b"")
    store_in(scratch).close()


def test_a_folder_with_something_else_in_it_is_refused(scratch: Path) -> None:
    (scratch / "store").mkdir()
    (scratch / "store" / "thesis.tex").write_text("")
    with pytest.raises(NotAStore, match=r"thesis\.tex"):
        store_in(scratch)


def test_a_closed_store_refuses_everything(scratch: Path) -> None:
    store = store_in(scratch)
    store.put("x", b"")
    store.close()
    store.close()
    for call in (lambda: store.get("x"), lambda: store.put("y", b""), lambda: store.delete("x"), store.flush,
                 store.status, store.audit, store.snapshot, store.entries_since, store.close_active_segment):
        with pytest.raises(Closed):
            call()
    assert "closed" in repr(store)


def test_no_file_handle_is_leaked(scratch: Path) -> None:
    with store_in(scratch, max_open_segments=1) as store:
        for number in range(4):
            store.put(f"{number}", b"x" * 3800)
        for number in range(4):
            assert isinstance(store.get(f"{number}"), Blob)
        assert 0 < len(open_files(scratch)) <= 4
    assert open_files(scratch) == []


def test_a_status_prints_itself(scratch: Path) -> None:
    with store_in(scratch) as store:
        store.put("x", b"")
        status = store.status()
        assert status.to_dicts()[0]["records"] == 1
        assert "<table>" in status._repr_html_()


def test_the_histories_of_a_segment_are_those_of_its_ids(scratch: Path) -> None:
    rng, live = random.Random(3), list[bytes]()
    config = BlobStoreConfig(capacity_bytes=1 << 20, segment_bytes=1 << 11, index_max_entries=3, durability="interval")
    with BlobStore(scratch / "store", config) as store:
        for number in range(301):
            store.put(b"%d" % number, b"content")
            live.append(b"%d" % number)
            if rng.random() < 0.5:
                store.delete(live.pop(rng.randrange(len(live))))
        snapshot = store.snapshot()
        assert snapshot.open_rows
        store.delete(live[0])
        for info in snapshot.segments[:-1]:
            every = list(snapshot.histories_of(info.name))
            assert [entry for entry, _ in every] == list(snapshot.entries_of(info.name))
            assert all(history == snapshot.history(entry.id) for entry, history in every)
            assert list(snapshot.histories_of(info.name, start=every[2][0].offset)) == every[2:]
