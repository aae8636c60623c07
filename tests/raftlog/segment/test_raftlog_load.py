# SPDX-License-Identifier: Apache-2.0
"""Opening a segment: what counts, what is a torn tail, and what is damage (`docs/formats/raftlog-segment.md`)."""

from __future__ import annotations

import contextlib
import errno
import os
import struct
import zlib
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import pytest

from compactlib.errors import CorruptData, StorageError, Unsupported
from compactlib.files import Files, LocalFiles, OutFile
from compactlib.raftlog import Entry, MissingEntry, SegmentLimits
from compactlib.raftlog.model.names import segment_name
from compactlib.raftlog.segment import format as native
from compactlib.raftlog.segment.load import LoadedSegment, TailRule, TornTail, load_segment
from compactlib.raftlog.segment.reader import SegmentReader
from compactlib.raftlog.segment.writer import SegmentWriter
from compactlib.testing import RecordingFiles, explore_crashes, record
from tests.raftlog.reading import flipped, native_record, segment_answers, write_segment
from tests.raftlog.wrapped_files import WatchedFiles

DATA_START = 104 + 40 * 8
ENTRIES = [(index, 1, b"payload %d" % index) for index in range(1, 6)]


def load(path: Path, tail: TailRule = "cut", number: int | None = None) -> LoadedSegment:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return load_segment(descriptor, str(path), tail=tail, number=number)
    finally:
        os.close(descriptor)


@pytest.fixture
def unsealed(tmp_path: Path) -> Path:
    """Entries 1 and 2 durable and named by the seal; 3, 4 and 5 written behind them, as before a crash."""
    writer = SegmentWriter.create(LocalFiles(), tmp_path, 1, SegmentLimits(max_entries=8))
    for position, entry in enumerate(ENTRIES):
        writer.append(*entry)
        if position == 1:
            writer.sync()
    writer.flush()
    writer.abandon()
    return Path(writer.path)


@pytest.fixture
def sealed(tmp_path: Path) -> Path:
    return write_segment(tmp_path, 1, ENTRIES, max_entries=8)


def change(path: Path, place: int, new: bytes) -> None:
    data = bytearray(path.read_bytes())
    data[place:place + len(new)] = new
    path.write_bytes(data)


def indexes(loaded: LoadedSegment) -> list[int]:
    return list(loaded.index.columns.indexes)


def test_whole_entries_behind_the_seal_count(unsealed: Path) -> None:
    loaded = load(unsealed)
    assert indexes(loaded) == [1, 2, 3, 4, 5]
    assert (loaded.durable_entries, loaded.sealed, loaded.torn_tail) == (2, False, None)
    assert loaded.data_end == os.path.getsize(unsealed)
    assert loaded.index_crc == zlib.crc32(unsealed.read_bytes()[104:104 + 5 * 40])


def test_a_sealed_segment_is_read_as_its_seal_says(sealed: Path) -> None:
    loaded = load(sealed, "refuse", 1)
    assert (indexes(loaded), loaded.sealed, loaded.durable_entries) == ([1, 2, 3, 4, 5], True, 5)


RECORD_4 = 104 + 3 * 40
PAYLOAD_4 = DATA_START + 3 * len(b"payload 1")
TEARS: dict[str, Callable[[bytes], bytes]] = {
    "a bit of the payload": lambda data: flipped(data, PAYLOAD_4 + 3, 1),
    "the payload lost": lambda data: data[:PAYLOAD_4] + bytes(9) + data[PAYLOAD_4 + 9:],
    "the file cut within the payload": lambda data: data[:PAYLOAD_4 + 8],
    "the file cut before the payload": lambda data: data[:PAYLOAD_4],
    "the record lost": lambda data: data[:RECORD_4] + bytes(40) + data[RECORD_4 + 40:],
    "half of the record lost": lambda data: data[:RECORD_4 + 20] + bytes(20) + data[RECORD_4 + 40:],
    "the record's index": lambda data: flipped(data, RECORD_4, 0x02),
    "the record's term": lambda data: flipped(data, RECORD_4 + 8, 0x02),
    "the record's length": lambda data: flipped(data, RECORD_4 + 16, 0x01),
    "the record's offset": lambda data: flipped(data, RECORD_4 + 24, 0x01),
    "the record's CRC": lambda data: flipped(data, RECORD_4 + 32, 0x01),
    "a record that checks out but points elsewhere": lambda data: (
        data[:RECORD_4] + native_record(4, 1, b"payload 3", PAYLOAD_4 - 9) + data[RECORD_4 + 40:]),
}


@pytest.mark.parametrize("tear", TEARS)
def test_a_torn_tail_is_cut_back_to_the_last_whole_entry(unsealed: Path, tear: str) -> None:
    unsealed.write_bytes(TEARS[tear](unsealed.read_bytes()))
    loaded = load(unsealed)
    assert indexes(loaded) == [1, 2, 3]
    # Record 5 stands behind the torn one, and may even be whole: it goes with it.
    assert loaded.torn_tail == TornTail(entries=3, records=2, data_end=PAYLOAD_4)
    with SegmentReader(unsealed) as reader:
        assert segment_answers(reader, [3, 4, 5]) == {
            3: Entry(3, 1, b"payload 3"), 4: MissingEntry(4), 5: MissingEntry(5)}


def test_bytes_behind_the_last_entry_are_a_torn_tail_too(unsealed: Path) -> None:
    whole = unsealed.read_bytes()
    unsealed.write_bytes(whole + b"payload without a record")
    assert load(unsealed).torn_tail == TornTail(entries=5, records=0, data_end=len(whole))


def test_without_a_seal_every_entry_is_checked(unsealed: Path) -> None:
    unsealed.write_bytes(flipped(unsealed.read_bytes(), 50, 0xFF))
    loaded = load(unsealed)
    assert (indexes(loaded), loaded.durable_entries, loaded.torn_tail) == ([1, 2, 3, 4, 5], 0, None)


def test_entries_without_payload_leave_the_file_short(tmp_path: Path) -> None:
    path = write_segment(tmp_path, 1, [(1, 1, b""), (2, 1, b"")], max_entries=100, sealed=False)
    assert os.path.getsize(path) == 104 + 2 * 40
    assert (indexes(load(path)), load(path).torn_tail) == ([1, 2], None)
    os.truncate(path, 104 + 2 * 40 - 1)
    with pytest.raises(CorruptData, match=r"expected 2 entries ending at 4104, found the end of the file at 183"):
        load(path)


@pytest.mark.parametrize("damage", [
    lambda data: flipped(data, 104, 0x01),
    lambda data: flipped(data, 104 + 79, 0x80),
    lambda data: data[:104 + 79],
])
def test_damage_to_what_the_seal_names_is_never_cut(unsealed: Path, damage: Callable[[bytes], bytes]) -> None:
    unsealed.write_bytes(damage(unsealed.read_bytes()))
    with pytest.raises(CorruptData) as raised:
        load(unsealed)
    assert raised.value.path == str(unsealed)


@pytest.mark.parametrize("kept", [slice(104, DATA_START), slice(DATA_START, None)], ids=["records", "payloads"])
def test_two_damaged_seals_before_either_records_or_payloads_are_damage(unsealed: Path, kept: slice) -> None:
    data = bytearray(len(unsealed.read_bytes()))
    data[kept] = unsealed.read_bytes()[kept]
    data[:40] = unsealed.read_bytes()[:40]
    data[40:104] = bytes([0xFF]) * 64
    unsealed.write_bytes(data[:max(DATA_START, kept.stop or len(data))])
    with pytest.raises(CorruptData, match="two damaged seals before entries"):
        load(unsealed)


def test_damage_to_a_durable_record_names_its_place(unsealed: Path) -> None:
    unsealed.write_bytes(flipped(unsealed.read_bytes(), 104 + 40 + 8, 0x01))
    with pytest.raises(CorruptData, match="expected index CRC") as raised:
        load(unsealed)
    assert (raised.value.offset, raised.value.index) == (104 + 40, 2)
    # Where the index itself is damaged, none is better than a wrong one.
    unsealed.write_bytes(flipped(unsealed.read_bytes(), 104 + 40 + 8, 0x01))
    unsealed.write_bytes(flipped(unsealed.read_bytes(), 104 + 40, 0x40))
    with pytest.raises(CorruptData, match="expected index CRC") as raised:
        load(unsealed)
    assert (raised.value.offset, raised.value.index) == (104 + 40, None)


def test_a_durable_payload_that_is_cut_off_is_damage(unsealed: Path) -> None:
    os.truncate(unsealed, DATA_START + 17)
    with pytest.raises(CorruptData, match="expected 2 entries ending at"):
        load(unsealed)


@pytest.mark.parametrize("size", [40, 50, 103])
def test_a_file_that_ends_within_its_seal_is_damage_not_empty(sealed: Path, size: int) -> None:
    """Segments are created with both, durably; so no crash leaves one without."""
    os.truncate(sealed, size)
    with pytest.raises(CorruptData, match=f"at offset {size}: expected a header and seals"):
        load(sealed)


def test_a_segment_that_is_not_the_newest_must_be_sealed(tmp_path: Path, sealed: Path) -> None:
    with pytest.raises(CorruptData, match="expected a sealed segment, since newer ones exist, found one left open"):
        load(write_segment(tmp_path, 2, ENTRIES, sealed=False), "refuse")
    sealed.write_bytes(flipped(flipped(sealed.read_bytes(), 48, 0x01), 80, 0x01))
    with pytest.raises(CorruptData, match="since newer ones exist, found two damaged seals"):
        load(sealed, "refuse")
    with pytest.raises(CorruptData, match="found two damaged seals before entries"):
        load(sealed)


def test_the_number_in_the_header_must_be_the_one_in_the_name(sealed: Path) -> None:
    assert indexes(load(sealed, number=1)) == [1, 2, 3, 4, 5]
    with pytest.raises(CorruptData, match="expected segment number 2 as in the file name, found 1"):
        load(sealed, number=2)


def test_a_seal_that_cannot_be_true_is_damage(sealed: Path) -> None:
    for seal in (native.Seal(9, DATA_START, 0, True, 99), native.Seal(5, DATA_START - 1, 0, True, 99)):
        change(sealed, seal.place, native.encode_seal(seal))
        with pytest.raises(CorruptData, match="expected at most 8 entries"):
            load(sealed)


def test_a_later_version_is_unsupported(sealed: Path) -> None:
    data = bytearray(sealed.read_bytes())
    data[8] = 3
    struct.pack_into("<I", data, 36, zlib.crc32(data[:36]))
    sealed.write_bytes(data)
    with pytest.raises(Unsupported, match="version 3"):
        load(sealed)


def test_a_segment_for_four_billion_entries_opens_at_once(tmp_path: Path) -> None:
    """Its index region is a hole of 160 GiB, which must be neither read nor held in memory."""
    path = write_segment(tmp_path, 1, [(1, 1, b"x")], max_entries=(1 << 32) - 1, sealed=False)
    assert indexes(load(path)) == [1]
    with SegmentWriter.open(LocalFiles(), tmp_path, 1) as writer:
        writer.append(2, 1, b"y")
    assert indexes(load(path)) == [1, 2]
    path.unlink()


def test_records_far_behind_a_hole_are_found_and_cleared(tmp_path: Path) -> None:
    """Of many unsynced writes, a late one may be all that is left; the index must not meet its records again later."""
    path = write_segment(tmp_path, 1, [(1, 1, b"one")], max_entries=200_000, sealed=False)
    place, data_start = 150_000, 104 + 40 * 200_000
    change(path, 104 + 40 * place, native_record(99, 1, b"", data_start + 3))
    loaded = load(path)
    assert loaded.torn_tail == TornTail(entries=1, records=place, data_end=data_start + 3)
    with SegmentWriter.open(LocalFiles(), tmp_path, 1) as writer:
        assert writer.torn_tail == loaded.torn_tail
    assert load(path).torn_tail is None
    assert not any(path.read_bytes()[104 + 40:data_start])


# ------------------------------------------------------------------------------------------- damage around the seals


def _synced(folder: Path, counts: Sequence[int], *, closed: bool) -> bytes:
    """The file of a segment with so many entries to a sync; as a killed process or a closed one leaves it."""
    with SegmentWriter.create(LocalFiles(), folder, 1, SegmentLimits(max_entries=200)) as writer:
        for count in counts:
            for _ in range(count):
                writer.append(writer.index.entries + 1, 1, b"acknowledged")
            writer.sync()
        if closed:
            writer.close()
        return Path(writer.path).read_bytes()


@pytest.mark.parametrize("counts", [[100], [3, 7], [1, 1, 8], [0]], ids=str)
@pytest.mark.parametrize("length", [1, 12, 32, 64, 100])
def test_damage_on_end_never_makes_synced_entries_vanish(tmp_path: Path, counts: list[int], length: int) -> None:
    """With one seal, 12 damaged bytes that hit it and the first record made 100 synced entries vanish silently."""
    sound = _synced(tmp_path, counts, closed=length % 2 == 0)
    path = tmp_path / segment_name(1)
    refused = 0
    for start in range(max(36 - length, 0), 104 + 48):
        damaged = bytearray(sound)
        damaged[start:start + length] = b"\xff" * len(damaged[start:start + length])
        path.write_bytes(damaged)
        try:
            with SegmentReader(path) as reader:
                assert len(reader.index) == sum(counts)
        except CorruptData:
            refused += 1
    assert refused


class _RefusesSome(WatchedFiles):
    """Refuses the syncs of files whose numbers, counted from 1, are given; a refused one promises nothing."""

    def __init__(self, files: Files, refused: Collection[int]) -> None:
        super().__init__(lambda operation, path: None, files)
        self._refused = refused
        self._syncs = 0

    def sync_file(self, out: OutFile) -> None:
        self._syncs += 1
        if self._syncs in self._refused:
            raise StorageError.from_os(OSError(errno.EIO, "refused"), "sync", out.path)
        out.sync()


@pytest.mark.parametrize("refused", [(), (3,), (4,), (5,), (3, 4), (4, 6), (5, 6, 7), (6, 9)], ids=str)
def test_a_crash_leaves_one_seal_to_go_by_also_behind_refused_syncs(tmp_path: Path, refused: tuple[int, ...]) -> None:
    """What is known to be durable is never written over; two torn seals would be taken for damage."""
    def work(folder: Path, recording: RecordingFiles) -> None:
        files = _RefusesSome(recording, refused)
        writer = SegmentWriter.create(files, folder, 1, SegmentLimits(max_entries=50))
        for number in range(8):
            try:
                writer.append(writer.index.entries + 1, 1, b"x" * number)
                writer.seal() if number == 7 else writer.sync()
                recording.acknowledge(writer.index.entries)
            except StorageError:
                while True:
                    with contextlib.suppress(StorageError):
                        writer.take_back()
                        break
        writer.close()

    def check(folder: Path, acknowledged: Sequence[int]) -> None:
        if (folder / segment_name(1)).exists():
            with SegmentReader(folder / segment_name(1)) as reader:
                assert len(reader.index) >= max(acknowledged, default=0)
                assert not reader.damaged_entries()
        else:
            assert not acknowledged

    checked = explore_crashes(record(tmp_path, work), check, limit_per_point=32)
    assert checked > 50
