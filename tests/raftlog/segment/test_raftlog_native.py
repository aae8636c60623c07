# SPDX-License-Identifier: Apache-2.0
"""The native segment format to the byte: header, seal and index records (`docs/formats/raftlog-segment.md`)."""

from __future__ import annotations

import struct
import zlib

import attrs
import pytest
from hypothesis import given, strategies as st

from compactlib.errors import CorruptData, Unsupported
from compactlib.raftlog import SegmentLimits
from compactlib.raftlog.segment import format as native
from tests.raftlog.reading import flipped, native_record

HEADER = native.Header(7, SegmentLimits(max_entries=3, max_bytes=1000))
SEAL = native.Seal(2, 195, 0x1234ABCD, sealed=True)
MASKS = (0x01, 0x80, 0xFF)

u64 = st.integers(0, (1 << 64) - 1)
u32 = st.integers(0, (1 << 32) - 1)


def test_a_header_matches_its_page() -> None:
    body = b"CLRAFSEG" + struct.pack("<HHIQQI", 1, 40, 3, 1000, 7, 0)
    assert native.encode_header(HEADER) == body + struct.pack("<I", zlib.crc32(body))
    assert HEADER.data_start == 104 + 40 * 3


def test_every_flipped_byte_of_a_header_is_found() -> None:
    data = native.encode_header(HEADER)
    for place in range(len(data)):
        for mask in MASKS:
            with pytest.raises(CorruptData) as raised:
                native.decode_header(flipped(data, place, mask), "somewhere")
            assert raised.value.path == "somewhere"


def with_field(offset: int, form: str, value: int) -> bytes:
    data = bytearray(native.encode_header(HEADER))
    struct.pack_into(form, data, offset, value)
    struct.pack_into("<I", data, 36, zlib.crc32(data[:36]))
    return bytes(data)


def test_a_later_version_is_unsupported_not_damaged() -> None:
    with pytest.raises(Unsupported, match=r"x: segment format version 3; this release reads 1: upgrade"):
        native.decode_header(with_field(8, "<H", 3), "x")


@pytest.mark.parametrize(("sealed", "state"), [(False, 5), (True, 6)])
def test_a_seal_matches_its_page(sealed: bool, state: int) -> None:
    seal = native.Seal(2, 195, 0x1234ABCD, sealed, 7)
    body = struct.pack("<IIQIQ", 2, state, 195, 0x1234ABCD, 7)
    assert native.encode_seal(seal) == body + struct.pack("<I", zlib.crc32(body))
    assert native.decode_seal(native.encode_start(HEADER, seal)) == seal


def test_seals_alternate_and_the_newer_whole_one_counts() -> None:
    older, newer = attrs.evolve(SEAL, entries=1, sequence=8), attrs.evolve(SEAL, sequence=9)
    assert (older.place, newer.place) == (72, 40)
    start = native.encode_start(HEADER, older, newer)
    assert native.decode_seal(start) == newer
    for place in range(40, 72):
        assert all(native.decode_seal(flipped(start, place, mask)) == older for mask in MASKS)
    for place in range(72, 104):
        assert all(native.decode_seal(flipped(start, place, mask)) == newer for mask in MASKS)
    assert native.decode_seal(flipped(flipped(start, 40, 1), 103, 1)) is None
    assert all(native.decode_seal(start[:size]) is None for size in range(40, 72))


def test_a_record_matches_its_page() -> None:
    head = native.head_crc(5, 3, 5)
    record = native.encode_record(5, 3, 5, head, 184, zlib.crc32(b"hello", head))
    assert record == native_record(5, 3, b"hello", 184)
    assert len(record) == native.RECORD_BYTES == 40


@given(st.lists(st.tuples(u64, u64, u32, u32, u64, u32), max_size=6))
def test_columns_and_records_are_the_same(rows: list[tuple[int, int, int, int, int, int]]) -> None:
    region = b"".join(native.encode_record(*row) for row in rows)
    found = native.decode_records(region)
    order = (found.indexes, found.terms, found.lengths, found.heads, found.offsets, found.crcs)
    assert list(zip(*order, strict=True)) == rows
    assert len(found) == len(rows)
    assert native.encode_records(found) == region
    assert list(native.indexes_of(region)) == [row[0] for row in rows]
