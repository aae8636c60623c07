# SPDX-License-Identifier: Apache-2.0
"""`SegmentLog` as its host sees it: cases with known answers end to end, and what each call promises."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from compactlib.errors import InvalidInput, Stale, StorageError, Unsorted
from compactlib.files import LocalFiles, OutFile
from compactlib.files.disk import LocalOutFile, StrPath
from compactlib.indexset import IndexSet
from compactlib.raftlog import (
    DeadEntry,
    Entry,
    LogOptions,
    LogReader,
    MissingEntry,
    SegmentLimits,
    SegmentLog,
)
from compactlib.raftlog.compaction.report import LogCompactionReport
from compactlib.raftlog.errors import LiveAboveSnapshot, LiveIndexMissing
from compactlib.raftlog.names import segment_name
from compactlib.raftlog.values import MAX_INDEX
from tests.harness.plain_log import PlainLog, log_answers
from tests.harness.recording import RecordingObserver
from tests.raftlog.reading import copy_folder, write_segment

if TYPE_CHECKING:
    from typing_extensions import Buffer


def payload(index: int) -> bytes:
    return b"payload of %d" % index


def options(max_entries: int = 128, max_bytes: int = 64_000_000, **changes: Any) -> LogOptions:
    return LogOptions(limits=SegmentLimits(max_entries=max_entries, max_bytes=max_bytes), **changes)


def append(log: SegmentLog, model: PlainLog, indexes: Iterable[int], term: int = 1) -> None:
    rows = [(index, term, payload(index)) for index in indexes]
    log.append(rows)
    for row in rows:
        model.append(*row)


def record(log: SegmentLog, model: PlainLog, index: int, live: Iterable[int] = ()) -> None:
    kept = sorted(live)
    log.snapshot(index, kept)
    model.record_snapshot(index, kept)


def report(found: LogCompactionReport) -> LogCompactionReport:
    assert not found.is_empty
    return found


def segment_files(folder: Path) -> list[str]:
    return sorted(name for name in os.listdir(folder) if name.endswith(".segment"))


# -- known answers


# -- opening and closing


def test_a_torn_tail_is_reported(tmp_path: Path) -> None:
    with SegmentLog(tmp_path) as log:
        log.append((index, 1, b"payload") for index in (1, 2))
        log.sync()
        log.append((index, 1, b"payload") for index in (3, 4))
        log.sync()
        copied = copy_folder(tmp_path, tmp_path.parent / (tmp_path.name + "-copy"))
    os.truncate(copied / segment_name(1), os.path.getsize(copied / segment_name(1)) - 9)
    # The newer seal is damaged, so that only whole entries count; 3 and 4 are no longer known to be durable.
    data = bytearray((copied / segment_name(1)).read_bytes())
    data[72] ^= 1
    (copied / segment_name(1)).write_bytes(data)
    told = RecordingObserver()
    with SegmentLog(copied, LogOptions(observer=told)) as log:
        assert log.torn_entries == 2
        assert [entry.index for entry in log.entries()] == [1, 2]
        assert log.last_index == 2


def test_an_extend_that_is_refused_adds_nothing(tmp_path: Path) -> None:
    with SegmentLog(tmp_path, options(2)) as log:
        with pytest.raises(InvalidInput):
            log.append([(1, 1, b"one"), (2, 1, b"two"), (3, -1, b"refused"), (4, 1, b"four")])
        PlainLog.of([]).check(log)
        log.append([(3, 1, b"three")])
        PlainLog.of([(3, 1, b"three")]).check(log)


def test_the_largest_index(tmp_path: Path) -> None:
    with SegmentLog(tmp_path, options(1)) as log:
        log.append([(MAX_INDEX - 1, MAX_INDEX, b"one before")])
        log.append([(MAX_INDEX, MAX_INDEX, b"last")])
        with pytest.raises(InvalidInput):
            log.append([(MAX_INDEX + 1, 1, b"")])
        log.snapshot(MAX_INDEX, [MAX_INDEX])
        assert log.read(MAX_INDEX) == Entry(MAX_INDEX, MAX_INDEX, b"last")
        assert log.read(MAX_INDEX - 1) == DeadEntry(MAX_INDEX - 1, MAX_INDEX)
        assert [entry.index for entry in log.entries()] == [MAX_INDEX]
        report(log.compact())
    with SegmentLog(tmp_path) as log:
        assert log.read(MAX_INDEX) == Entry(MAX_INDEX, MAX_INDEX, b"last")


# -- outdated published state


def test_an_overwrite_after_reopening_a_sealed_segment(tmp_path: Path) -> None:
    """The newest segment is sealed when a process ended while rolling over."""
    write_segment(tmp_path, 1, [(index, 1, payload(index)) for index in range(1, 4)])
    write_segment(tmp_path, 2, [(index, 1, payload(index)) for index in range(4, 7)])
    model = PlainLog.of([(index, 1, payload(index)) for index in range(1, 7)])
    with SegmentLog(tmp_path) as log:
        model.check(log)
        append(log, model, [2], term=2)
        assert log.read(6) == MissingEntry(6)
        model.check(log)
        log.sync()
        # Segment 2 holds nothing that counts any more.
        assert segment_files(tmp_path) == [segment_name(1), segment_name(3)]
    with SegmentLog(tmp_path) as log:
        model.check(log)


def test_dead_missing_and_live_are_three_answers(tmp_path: Path) -> None:
    with SegmentLog(tmp_path) as log:
        log.append((index, 1, payload(index)) for index in (1, 2, 3, 5))
        log.snapshot(3, [2])
        for opened in (log, LogReader(tmp_path)):
            assert log_answers(opened, range(7)) == {
                0: DeadEntry(0, 3), 1: DeadEntry(1, 3), 2: Entry(2, 1, payload(2)), 3: DeadEntry(3, 3),
                4: MissingEntry(4), 5: Entry(5, 1, payload(5)), 6: MissingEntry(6)}


def test_a_snapshot_that_cannot_be_leaves_the_one_before_in_force(tmp_path: Path) -> None:
    model = PlainLog()
    with SegmentLog(tmp_path, options(4)) as log:
        append(log, model, [*range(1, 11), 12, 13])
        record(log, model, 5, [2, 4])
        before = (tmp_path / "SNAPSHOT").read_bytes()
        acts: list[tuple[type[Exception], Callable[[], None]]] = [
            (LiveAboveSnapshot, lambda: log.snapshot(8, [4, 9])),
            (Unsorted, lambda: log.snapshot(8, [4, 2])),
            (Unsorted, lambda: log.snapshot(8, [2, 2])),
            (InvalidInput, lambda: log.snapshot(8, [-1])),
            (InvalidInput, lambda: log.snapshot(-1, ())),
            (InvalidInput, lambda: log.snapshot(MAX_INDEX + 1, ())),
            # In no segment: below the first, in a gap, above the last, dead already.
            (LiveIndexMissing, lambda: log.snapshot(13, [0])),
            (LiveIndexMissing, lambda: log.snapshot(13, [2, 11])),
            (LiveIndexMissing, lambda: log.snapshot(20, [14])),
            (LiveIndexMissing, lambda: log.snapshot(13, [3, 7])),
            (LiveIndexMissing, lambda: log.snapshot(13, IndexSet.range(4, 12))),
            (Stale, lambda: log.snapshot(4, [2])),
        ]
        for error, act in acts:
            with pytest.raises(error):
                act()
            assert (tmp_path / "SNAPSHOT").read_bytes() == before
            model.check(log)
        with pytest.raises(LiveIndexMissing, match="1 of 5 live indexes are in no segment or died before") as raised:
            log.snapshot(13, [2, 4, 7, 11, 13])
    assert (raised.value.missing, raised.value.first) == (1, 11)
    with SegmentLog(tmp_path) as log:
        model.check(log)


# -- a disk that refuses


class SwitchedFiles(LocalFiles):
    """A disk that can be broken and repaired."""

    broken = False

    def create(self, path: StrPath) -> OutFile:
        self.check(path)
        return SwitchedOutFile(path, os.O_CREAT | os.O_EXCL, self)

    def open(self, path: StrPath) -> OutFile:
        self.check(path)
        return SwitchedOutFile(path, 0, self)

    def check(self, path: StrPath) -> None:
        if self.broken:
            raise StorageError(operation="write", path=path, errno=errno.EIO)


class SwitchedOutFile(LocalOutFile):
    def __init__(self, path: StrPath, flags: int, files: SwitchedFiles) -> None:
        super().__init__(path, flags)
        self.files = files

    def write_at(self, offset: int, pieces: Sequence[Buffer]) -> int:
        self.files.check(self.path)
        return super().write_at(offset, pieces)

    def sync(self) -> None:
        self.files.check(self.path)
        super().sync()
