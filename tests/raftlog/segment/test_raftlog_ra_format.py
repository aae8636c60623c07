# SPDX-License-Identifier: Apache-2.0
"""Segments of RabbitMQ Ra, byte by byte; whole files are in `test_raftlog_ra_files.py`."""

from __future__ import annotations

import struct

import pytest

from compactlib.errors import CorruptData, Unsupported
from compactlib.raftlog.segment import ra_format


def header(version: int = 2, max_count: int = 4, magic: bytes = b"RASG") -> bytes:
    return struct.pack(">4sHH", magic, version, max_count)


def record(index: int, offset: int, length: int, version: int = 2) -> bytes:
    return struct.pack(">QQIII" if version == 1 else ">QQQII", index, 9, offset, length, 77)


def test_the_header_that_ra_writes() -> None:
    data = bytes.fromhex("5241534700021000")
    assert ra_format.decode_header(data, "x") == (2, 4096)
    assert ra_format.data_start(2, 4096) == 131_080
    assert ra_format.data_start(1, 4096) == 8 + 4096 * 28


def test_65536_entries_do_not_fit_into_the_field_and_are_written_as_0() -> None:
    assert ra_format.decode_header(header(max_count=0), "x") == (2, 65_536)


@pytest.mark.parametrize("version", [0, 3, 0xFFFF])
def test_other_versions_are_unsupported(version: int) -> None:
    with pytest.raises(Unsupported, match=rf"x: Ra segment version {version}; this release reads versions 1 and 2"):
        ra_format.decode_header(header(version), "x")


def test_a_short_or_foreign_header_is_damage() -> None:
    with pytest.raises(CorruptData, match="expected a header of 8 bytes, found 7 bytes"):
        ra_format.decode_header(header()[:7], "x")
    with pytest.raises(CorruptData, match="expected magic b'RASG', found b'RASH'"):
        ra_format.decode_header(header(magic=b"RASH"), "x")


@pytest.mark.parametrize("version", [1, 2])
def test_records_up_to_the_first_of_zeros(version: int) -> None:
    start = ra_format.data_start(version, 4)
    region = record(5, start, 3, version) + record(2, start + 3, 0, version)
    padded = region.ljust(start - 8, b"\0")
    columns = ra_format.decode_records(padded, version, "x", start)
    assert list(columns.indexes) == [5, 2]
    assert list(columns.terms) == [9, 9]
    assert list(columns.offsets) == [start, start + 3]
    assert list(columns.lengths) == [3, 0]
    assert list(columns.crcs) == [77, 77]
    assert list(columns.heads) == [0, 0]
    assert list(ra_format.decode_records(region, version, "x", start).indexes) == [5, 2]
    assert len(ra_format.decode_records(b"", version, "x", start)) == 0


@pytest.mark.parametrize(("offsets", "bad"), [
    ((135, 140), 0),
    ((136, 140), 1),
    ((141, 136), 1),
    ((1 << 63, 136), 1),
])
def test_payloads_that_overlap_or_lie_in_the_header_are_damage(offsets: tuple[int, int], bad: int) -> None:
    region = b"".join(record(index, offset, 5) for index, offset in zip((5, 6), offsets, strict=True))
    with pytest.raises(CorruptData, match="expected a payload offset from") as raised:
        ra_format.decode_records(region, 2, "x", 136)
    assert (raised.value.offset, raised.value.index) == (8 + 32 * bad, 5 + bad)


def test_a_record_that_is_cut_off_is_damage() -> None:
    with pytest.raises(CorruptData, match="at offset 39: expected whole index records of 32 bytes"):
        ra_format.decode_records(record(5, 136, 5)[:31], 2, "x", 136)
