# SPDX-License-Identifier: Apache-2.0
"""A segment of RabbitMQ Ra goes because it was seen to be empty, not because its index begins with zeros."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from compactlib import CorruptData
from compactlib.raftlog import SegmentLog

RECORD = struct.Struct(">QQQII")
MOST = 8
DATA_START = 8 + MOST * RECORD.size


def write_segment(folder: Path, number: int, first: int, count: int) -> Path:
    """A segment of version 2 with entries of ten bytes, each of whose CRCs was not computed."""
    folder.mkdir(exist_ok=True)
    records = b"".join(RECORD.pack(first + place, 1, DATA_START + 10 * place, 10, 0) for place in range(count))
    payloads = b"".join(b"entry %04d" % (first + place) for place in range(count))
    path = folder / f"{number:016d}.segment"
    path.write_bytes(struct.pack(">4sHH", b"RASG", 2, MOST) + records.ljust(MOST * RECORD.size, b"\0") + payloads)
    return path


def zero(path: Path, first: int, count: int) -> bytes:
    """Lose some records of an index, as a disk does that gives back zeros; the file as it is then."""
    data = bytearray(path.read_bytes())
    start = 8 + first * RECORD.size
    data[start:start + count * RECORD.size] = bytes(count * RECORD.size)
    path.write_bytes(data)
    return bytes(data)


@pytest.mark.parametrize("number", [1, 2], ids=["older", "newest"])
def test_opening_keeps_a_segment_whose_index_was_lost(tmp_path: Path, number: int) -> None:
    paths = [write_segment(tmp_path / "log", each, 1 + 4 * (each - 1), 4) for each in (1, 2)]
    left = zero(paths[number - 1], 0, 4)
    with pytest.raises(CorruptData, match="40 bytes of payloads"):
        SegmentLog(tmp_path / "log")
    assert paths[number - 1].read_bytes() == left


@pytest.mark.parametrize("place", [0, 2])
def test_opening_names_a_hole_in_an_index(tmp_path: Path, place: int) -> None:
    path = write_segment(tmp_path / "log", 1, 1, 4)
    left = zero(path, place, 1)
    with pytest.raises(CorruptData, match="zeros to the end"):
        SegmentLog(tmp_path / "log")
    assert path.read_bytes() == left


def test_opening_takes_a_segment_without_entries(tmp_path: Path) -> None:
    write_segment(tmp_path / "log", 1, 1, 4)
    write_segment(tmp_path / "log", 2, 5, 0)
    with SegmentLog(tmp_path / "log") as log:
        assert (log.first_index, log.last_index) == (1, 4)
        assert [entry.payload for entry in log.entries()] == [b"entry %04d" % index for index in range(1, 5)]
