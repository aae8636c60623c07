# SPDX-License-Identifier: Apache-2.0
"""A log of RabbitMQ Ra is copied into one of ours, entry by entry and checked; its own files are only read."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

import pytest

from compactlib.errors import CorruptData, InvalidInput, StorageError, Unsupported
from compactlib.raftlog import Entry, LogReader, SegmentLog, import_ra, is_log

RECORDS = {1: struct.Struct(">QQIII"), 2: struct.Struct(">QQQII")}
MOST = 8
WRITTEN_BY_RA = Path(__file__).parents[3].parent / "shared" / "data" / "ra-segments"


def write_segment(folder: Path, number: int, entries: Sequence[Entry], *, version: int = 2,
                  unchecked: bool = False) -> Path:
    """Return the bytes of a file of Ra; a CRC is 0 if Ra is configured without CRCs."""
    folder.mkdir(exist_ok=True)
    record = RECORDS[version]
    start = 8 + MOST * record.size
    records = payloads = b""
    for index, term, payload in entries:
        crc = 0 if unchecked else zlib.crc32(payload)
        records += record.pack(index, term, start + len(payloads), len(payload), crc)
        payloads += payload
    path = folder / f"{number:016d}.segment"
    path.write_bytes(struct.pack(">4sHH", b"RASG", version, MOST) + records.ljust(MOST * record.size, b"\0") + payloads)
    return path


def some(first: int, last: int, term: int = 1) -> list[Entry]:
    return [Entry(index, term, b"entry %04d" % index) for index in range(first, last + 1)]


def imported(folder: Path, log_folder: Path) -> list[Entry]:
    with SegmentLog(log_folder) as log:
        import_ra(folder, log)
        log.sync()
    with LogReader(log_folder) as reader:
        return list(reader.entries())


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("unchecked", [False, True])
def test_every_entry_is_copied(tmp_path: Path, version: int, unchecked: bool) -> None:
    entries = [*some(1, 9), Entry(10, 2, b""), *some(11, 14, term=2)]
    write_segment(tmp_path / "ra", 1, entries[:8], version=version, unchecked=unchecked)
    write_segment(tmp_path / "ra", 2, entries[8:], version=version, unchecked=unchecked)
    write_segment(tmp_path / "ra", 3, [], version=version)
    before = {path.name: path.read_bytes() for path in (tmp_path / "ra").iterdir()}
    assert imported(tmp_path / "ra", tmp_path / "log") == entries
    assert {path.name: path.read_bytes() for path in (tmp_path / "ra").iterdir()} == before


def test_an_entry_that_was_taken_back_is_not_copied(tmp_path: Path) -> None:
    write_segment(tmp_path / "ra", 1, [*some(1, 5), *some(4, 6, term=2)])
    write_segment(tmp_path / "ra", 2, some(6, 8, term=3))
    assert imported(tmp_path / "ra", tmp_path / "log") == [*some(1, 3), *some(4, 5, term=2), *some(6, 8, term=3)]


def test_a_damaged_payload_is_named_and_earlier_entries_stay(tmp_path: Path) -> None:
    path = write_segment(tmp_path / "ra", 1, some(1, 6))
    place = 8 + MOST * 32 + 10 * 3
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)
    with SegmentLog(tmp_path / "log") as log:
        with pytest.raises(CorruptData) as raised:
            import_ra(tmp_path / "ra", log)
        assert (raised.value.path, raised.value.offset, raised.value.index) == (str(path), place, 4)
        assert list(log.entries()) == some(1, 3)


def test_a_file_that_was_cut_off_is_damaged(tmp_path: Path) -> None:
    path = write_segment(tmp_path / "ra", 1, some(1, 6), unchecked=True)
    path.write_bytes(path.read_bytes()[:-1])
    with SegmentLog(tmp_path / "log") as log, pytest.raises(CorruptData, match="index 6"):
        import_ra(tmp_path / "ra", log)


@pytest.mark.parametrize(("first", "count", "words"), [
    (0, 4, "40 bytes of payloads"), (0, 1, "zeros to the end"), (2, 1, "zeros to the end")])
def test_a_lost_index_is_not_taken_for_an_empty_one(tmp_path: Path, first: int, count: int, words: str) -> None:
    """As a disk does that gives back zeros."""
    path = write_segment(tmp_path / "ra", 1, some(1, 4))
    data = bytearray(path.read_bytes())
    data[8 + 32 * first:8 + 32 * (first + count)] = bytes(32 * count)
    path.write_bytes(data)
    with SegmentLog(tmp_path / "log") as log, pytest.raises(CorruptData, match=words):
        import_ra(tmp_path / "ra", log)


def test_an_invalid_source_of_an_import_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    write_segment(tmp_path / "ra", 1, some(1, 2))
    (later := write_segment(tmp_path / "later", 1, [])).write_bytes(struct.pack(">4sHH", b"RASG", 3, 8))
    (short := write_segment(tmp_path / "short", 1, [])).write_bytes(b"RAS")
    with SegmentLog(tmp_path / "log") as log:
        with pytest.raises(InvalidInput, match="holds no"):
            import_ra(tmp_path / "empty", log)
        with pytest.raises(StorageError):
            import_ra(tmp_path / "none", log)
        with pytest.raises(Unsupported, match=f"{later}: Ra segment version 3"):
            import_ra(tmp_path / "later", log)
        with pytest.raises(CorruptData, match=str(short)):
            import_ra(tmp_path / "short", log)
        assert import_ra(tmp_path / "ra", log) == 2
        with pytest.raises(InvalidInput, match="not empty"):
            import_ra(tmp_path / "ra", log)


def test_ras_own_folder_is_not_opened_as_a_log(tmp_path: Path) -> None:
    path = write_segment(tmp_path / "ra", 1, some(1, 2))
    before = path.read_bytes()
    for opened in (SegmentLog, LogReader):
        with pytest.raises(Unsupported, match="import_ra"):
            opened(tmp_path / "ra")
    assert path.read_bytes() == before


@pytest.mark.skipif(not WRITTEN_BY_RA.is_dir(), reason="segments that Ra itself wrote are not on this machine")
def test_files_that_ra_wrote(tmp_path: Path) -> None:
    assert is_log(WRITTEN_BY_RA)
    found = imported(WRITTEN_BY_RA, tmp_path / "log")
    assert [entry.index for entry in found] == [*range(1, 55), *range(60, 201, 7), *range(201, 211)]
    assert found[30].payload.startswith(b"entry-31-term-2-")
