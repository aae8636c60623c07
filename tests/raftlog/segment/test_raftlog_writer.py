# SPDX-License-Identifier: Apache-2.0
"""Appending to a segment: limits, overwrites, syncing, reopening, and what a refusing disk leaves."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import strategies as st

from compactlib.errors import Busy, CorruptData
from compactlib.files import LocalFiles
from compactlib.raftlog import Entry, SegmentLimits
from compactlib.raftlog.segment import format as native
from compactlib.raftlog.segment.load import TornTail
from compactlib.raftlog.segment.reader import SegmentReader
from compactlib.raftlog.segment.writer import SegmentWriter
from tests.harness.failing_files import FailingFiles
from tests.harness.plain_log import PlainLog
from tests.raftlog.reading import flipped, native_record, write_segment

FILES = LocalFiles()


def limits(max_entries: int = 16, max_bytes: int = 64_000_000) -> SegmentLimits:
    return SegmentLimits(max_entries=max_entries, max_bytes=max_bytes)


def read_back(path: str | Path) -> list[Entry]:
    with SegmentReader(path) as reader:
        assert reader.damaged_entries() == []
        return [entry for entry in reader.scan() if isinstance(entry, Entry)]


def test_a_segment_keeps_its_limits_when_it_is_opened_again(tmp_path: Path) -> None:
    SegmentWriter.create(FILES, tmp_path, 1, limits(128, 5000)).close()
    with SegmentWriter.open(FILES, tmp_path, 1) as writer:
        assert writer.limits == limits(128, 5000)


def test_a_segment_overshoots_its_bytes_by_up_to_one_entry(tmp_path: Path) -> None:
    with SegmentWriter.create(FILES, tmp_path, 1, limits(4096, 1000)) as writer:
        taken = 0
        while not writer.is_full:
            writer.append(taken, 1, bytes(120))
            taken += 1
    assert taken == 9
    with SegmentWriter.create(FILES, tmp_path, 2, limits(4096, 1000)) as writer:
        writer.append(1, 1, bytes(1000))
        # Exactly the limit does not exceed it.
        assert not writer.is_full


def test_a_new_segment_is_104_bytes_and_durable_at_once(tmp_path: Path) -> None:
    writer = SegmentWriter.create(FILES, tmp_path, 7)
    data = (tmp_path / "0000000000000007.segment").read_bytes()
    assert data == native.encode_start(native.Header(7, SegmentLimits()),
                                        native.Seal(0, 104 + 40 * 4096, 0, False))
    assert (writer.number, writer.limits, len(writer.index)) == (7, SegmentLimits(), 0)
    with pytest.raises(Busy, match="exists already"):
        SegmentWriter.create(FILES, tmp_path, 7)
    writer.abandon()


def test_entries_are_seen_by_others_after_a_flush_and_durable_after_a_sync(tmp_path: Path) -> None:
    with SegmentWriter.create(FILES, tmp_path, 1, limits()) as writer:
        writer.append(1, 1, b"one")
        writer.append(2, 1, b"two")
        assert (read_back(writer.path), writer.unsynced_entries) == ([], 2)
        writer.flush()
        assert ([entry.index for entry in read_back(writer.path)], writer.unsynced_entries) == ([1, 2], 2)
        writer.sync()
        assert writer.unsynced_entries == 0
        with SegmentReader(writer.path) as reader:
            assert reader.loaded.durable_entries == 2


def test_a_sync_costs_one_fsync_and_none_if_there_is_nothing_new(tmp_path: Path) -> None:
    counting = FailingFiles()
    with SegmentWriter.create(counting, tmp_path, 1, limits()) as writer:
        before = counting.count
        writer.append(1, 1, b"one")
        writer.append(2, 1, b"two")
        writer.sync()
        # Payloads, records, fsync, seal.
        assert counting.count == before + 4
        writer.sync()
        writer.flush()
        assert counting.count == before + 4


def test_many_entries_are_flushed_on_the_way(tmp_path: Path) -> None:
    with SegmentWriter.create(FILES, tmp_path, 1, limits(4096)) as writer:
        for index in range(1023):
            writer.append(index, 1, b"x")
        assert os.path.getsize(writer.path) == 104
        writer.append(1023, 1, b"x")
        assert len(read_back(writer.path)) == 1024
        writer.append(1024, 1, bytes(1 << 20))
        assert len(read_back(writer.path)) == 1025


def test_zeros_ahead_are_gone_once_a_segment_is_left(tmp_path: Path) -> None:
    def appended(number: int) -> tuple[SegmentWriter, Path]:
        writer = SegmentWriter.create(FILES, tmp_path, number, limits(max_entries=1000))
        for index in range(200):
            writer.append(index, 1, b"payload" * 10)
            writer.sync()
        path = Path(writer.path)
        ahead = path.stat().st_size - (native.INDEX_START + 1000 * native.RECORD_BYTES + 200 * 70)
        assert 0 < ahead < 200 * 70
        assert not any(path.read_bytes()[-ahead:])
        assert len(read_back(path)) == 200
        return writer, path

    writer, path = appended(1)
    writer.seal()
    assert path.stat().st_size == native.INDEX_START + 1000 * native.RECORD_BYTES + 200 * 70
    writer.close()
    writer, path = appended(2)
    writer.close()
    assert path.stat().st_size == native.INDEX_START + 1000 * native.RECORD_BYTES + 200 * 70
    writer, path = appended(3)
    writer.abandon()
    with SegmentWriter.open(FILES, tmp_path, 3) as writer:
        assert writer.torn_tail == TornTail(200, 0, path.stat().st_size)
        writer.append(200, 1, b"after")
    assert [entry.index for entry in read_back(path)] == list(range(201))


def test_an_abandoned_writer_writes_nothing_more(tmp_path: Path) -> None:
    writer = SegmentWriter.create(FILES, tmp_path, 1, limits())
    writer.append(1, 1, b"one")
    writer.abandon()
    writer.close()
    assert os.path.getsize(writer.path) == 104


writes = st.lists(st.tuples(st.integers(0, 20), st.integers(1, 3), st.binary(max_size=20)), max_size=12)


def test_opening_cuts_a_torn_tail_for_good(tmp_path: Path) -> None:
    """Record 3 stands behind the torn record 2. Were it left there, the next entry of the same length would make it
    look whole again: its offset and its CRC, that of an empty payload, hold."""
    path = write_segment(tmp_path, 1, [(1, 1, b"one")], sealed=False)
    data_start = 104 + 40 * 16
    data = bytearray(path.read_bytes())
    torn, behind = native_record(2, 1, b"two", data_start + 3), native_record(3, 1, b"", data_start + 6)
    data[144:224] = flipped(torn, 0, 1) + behind
    path.write_bytes(data + b"two")
    with SegmentWriter.open(FILES, tmp_path, 1) as writer:
        assert writer.torn_tail == TornTail(entries=1, records=2, data_end=data_start + 3)
        writer.append(2, 2, b"new")
    assert read_back(path) == [Entry(1, 1, b"one"), Entry(2, 2, b"new")]
    with SegmentWriter.open(FILES, tmp_path, 1) as writer:
        assert writer.torn_tail is None


def test_opening_a_damaged_segment_changes_nothing(tmp_path: Path) -> None:
    path = write_segment(tmp_path, 1, [(1, 1, b"one")], sealed=False)
    path.write_bytes(flipped(path.read_bytes(), 110, 1))
    before = path.read_bytes()
    with pytest.raises(CorruptData):
        SegmentWriter.open(FILES, tmp_path, 1)
    assert path.read_bytes() == before


class Run:
    """A segment written in three syncs, with an overwrite; notes what was acknowledged."""

    def __init__(self) -> None:
        self.acknowledged = PlainLog()
        self.appended = PlainLog()
        self.writer: SegmentWriter | None = None

    def go(self, folder: Path, files: FailingFiles) -> None:
        self.writer = SegmentWriter.create(files, folder, 1, limits(8, 100))
        # Entries without payload, so that what was not synced may read back whole from its record alone.
        groups = ([(1, 1, b"one"), (2, 1, b"two")], [(3, 1, b""), (2, 2, b"two again")], [(3, 2, b""), (5, 2, b"five")])
        for group in groups:
            for row in group:
                self.appended.append(*row)
                self.writer.append(*row)
            self.writer.sync()
            self.acknowledged = PlainLog(dict(self.appended.entries))
        self.writer.seal()
