# SPDX-License-Identifier: Apache-2.0
"""A `LogReader` of a log of a store: it answers as the `RaftLog`, although the newest entries are in the WAL."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from compactlib.errors import CorruptData, Unsupported
from compactlib.indexset import IndexSet
from compactlib.raftlog import (
    Entry,
    LogOptions,
    LogReader,
    RaftLog,
    RaftLogStore,
    SegmentLimits,
    SegmentLog,
    StoreOptions,
    open_log,
)
from compactlib.raftlog.names import WAL_FOLDER
from compactlib.raftlog.segment.listing import FolderContents, read_folder
from compactlib.raftlog.snapshot_meta import SnapshotMeta
from compactlib.raftlog.wal.frames import Frame
from tests.raftlog.wrapped_files import UnsyncedFiles

OPTIONS = StoreOptions(background=False, log=LogOptions(limits=SegmentLimits(max_entries=8), files=UnsyncedFiles()))


def entries(first: int, last: int, term: int = 1) -> Iterator[Entry]:
    return (Entry(index, term, b"%d in %d" % (index, term)) for index in range(first, last + 1))


def require_same(log: RaftLog, folder: Path, top: int = 120) -> None:
    """Check that each answer of the reader is the log's."""
    with LogReader(folder) as reader:
        indexes = range(top)
        expected = [log.read(index) for index in indexes]
        assert [reader.read(index) for index in indexes] == expected
        assert list(reader.read_many(indexes)) == expected
        assert list(reader.entries()) == list(log.entries())
        assert list(reader.entries(20, 60)) == list(log.entries(20, 60))
        assert reader.verify().is_sound
        reader.plan()
        if list(log.entries()):
            assert reader.last_index == log.last_index or log.last_index == log.state.index


def test_live_entries_in_the_wal_are_no_damage(tmp_path: Path) -> None:
    with open_log(tmp_path / "store", OPTIONS) as log:
        log.append(entries(1, 50))
        log.snapshot(50, [7, 8])
        require_same(log, tmp_path / "store/logs/log")
    with LogReader(tmp_path / "store/logs/log") as reader:
        assert reader.verify().is_sound
        assert reader.read(7) == Entry(7, 1, b"7 in 1")
        assert set(IndexSet.from_sorted([7, 8])) <= set(reader.unflushed)


def test_entries_flushed_during_a_read_are_read_from_the_segments(tmp_path: Path) -> None:
    with open_log(tmp_path / "store", OPTIONS) as log, LogReader(tmp_path / "store/logs/log") as reader:
        log.append(entries(1, 50))
        log.sync()
        frames = reader._frames  # noqa: SLF001

        def flushed_first() -> tuple[Frame, ...]:
            if log.unflushed:
                log.flush()
            return frames()

        reader._frames = flushed_first  # type: ignore[method-assign]  # noqa: SLF001
        reader.refresh()
        assert list(reader.entries()) == list(log.entries())


@pytest.mark.parametrize("last", [43, 70])
@pytest.mark.parametrize("is_flushed", [False, True])
def test_a_truncation_whose_wal_file_goes_during_a_read_is_seen(is_flushed: bool, last: int, tmp_path: Path,
                                                                monkeypatch: pytest.MonkeyPatch) -> None:
    """The frames were read before it, and the segments behind it: they have a hole, or new entries below old ones."""
    calls: list[str] = []

    def overtaken(folder: str, row: SnapshotMeta | None) -> FolderContents:
        calls.append(folder)
        if len(calls) == 1:
            log.reset(40)
            log.append(entries(41, last, term=2))
            log.sync()
            if is_flushed:
                log.flush()
        return read_folder(folder, row)

    with open_log(tmp_path / "store", OPTIONS) as log:
        log.append(entries(1, 50))
        log.flush()
        log.append(entries(51, 60))
        log.sync()
        monkeypatch.setattr("compactlib.raftlog.log.log_reader.read_folder", overtaken)
        with LogReader(tmp_path / "store/logs/log") as reader:
            assert list(reader.entries()) == list(log.entries())
        assert len(calls) == 2


def test_a_listing_without_old_and_new_file_hides_no_wal(tmp_path: Path,
                                                                           monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder is listed while its only file is replaced: the system may show neither."""
    with open_log(tmp_path / "store", OPTIONS) as log:
        log.append(entries(1, 50))
        log.sync()
        listdir = os.listdir
        torn: list[object] = []

        def torn_once(path: str) -> list[str]:
            if os.path.basename(path) == WAL_FOLDER and not torn:
                torn.append(path)
                return []
            return listdir(path)

        monkeypatch.setattr(os, "listdir", torn_once)
        require_same(log, tmp_path / "store/logs/log")
        assert torn


def test_entries_truncated_in_the_wal_are_not_live(tmp_path: Path) -> None:
    """The segments had the entry of term 1, and the snapshot of term 2 was taken for theirs."""
    with open_log(tmp_path / "store", OPTIONS) as log:
        log.append(entries(1, 50))
        log.flush()
        log.append_entries(44, 1, entries(45, 80, term=2))
        require_same(log, tmp_path / "store/logs/log")
        log.snapshot(70, [3, 46])
        with LogReader(tmp_path / "store/logs/log") as reader:
            assert reader.read(46) == Entry(46, 2, b"46 in 2")
            assert reader.last_index == 80
        require_same(log, tmp_path / "store/logs/log")
        log.flush()
        require_same(log, tmp_path / "store/logs/log")
        with LogReader(tmp_path / "store/logs/log") as reader:
            assert not reader.unflushed


def test_a_damaged_wal_is_named(tmp_path: Path) -> None:
    with open_log(tmp_path / "store", OPTIONS) as log:
        log.append(entries(1, 50))
        log.sync()
        log.append(entries(51, 60))
        log.sync()
    (wal,) = (tmp_path / "store/wal").iterdir()
    data = bytearray(wal.read_bytes())
    data[100] ^= 1
    wal.write_bytes(data)
    with pytest.raises(CorruptData, match=r"\.wal"):
        LogReader(tmp_path / "store/logs/log")


def test_a_segment_log_is_not_opened_with_a_write_ahead_log(tmp_path: Path) -> None:
    """It knew nothing of the WAL's truncations, and a replay would have contradicted it."""
    with open_log(tmp_path / "store", OPTIONS) as log:
        log.append(entries(1, 50))
    with pytest.raises(Unsupported, match="RaftLogStore"):
        SegmentLog(tmp_path / "store/logs/log")
    with open_log(tmp_path / "store", OPTIONS) as log:
        assert log.read(50) == Entry(50, 1, b"50 in 1")


def histories(seeds: range, folder: Path) -> None:
    for seed in seeds:
        rng = random.Random(seed)
        with RaftLogStore(folder / str(seed), OPTIONS) as store:
            log, other = store.log("one"), store.log("other")
            top = 1
            for _ in range(12):
                row = log.state
                match rng.choice(["append", "append", "overwrite", "flush", "snapshot", "compact", "reset"]):
                    case "append":
                        first = max(log.last_index, 0) + 1
                        log.append(entries(first, first + rng.randrange(12), rng.randrange(top, top + 2)))
                        other.append(entries(max(other.last_index, 0) + 1, max(other.last_index, 0) + 3))
                    case "overwrite" if log.last_index > row.index + 1:
                        first = rng.randrange(max(row.index, 0) + 1, log.last_index + 1)
                        top += 1
                        log.append_entries(first - 1, log.term_of(first - 1) or 0,
                                           entries(first, first + rng.randrange(8), top + 1))
                    case "reset" if log.last_index > row.index + 1:
                        log.reset(rng.randrange(max(row.index, 0) + 1, log.last_index + 1))
                    case "flush":
                        store.flush()
                    case "snapshot" if log.last_index > row.index:
                        alive = [entry.index for entry in log.entries() if rng.random() < 0.3]
                        log.snapshot(log.last_index, alive)
                    case "compact":
                        log.compact(policy=log.policy)
                log.sync()
                require_same(log, folder / str(seed) / "logs/one")


def test_any_history_is_read_as_by_its_log(tmp_path: Path) -> None:
    histories(range(12), tmp_path)
