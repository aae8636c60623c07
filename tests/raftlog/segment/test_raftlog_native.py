# SPDX-License-Identifier: Apache-2.0
"""The native segment format to the byte: header, seal and index records (`docs/formats/raftlog-segment.md`)."""

from __future__ import annotations

import struct
import zlib
from array import array

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


def test_a_header_is_as_its_page_says() -> None:
    body = b"CLRAFSEG" + struct.pack("<HHIQQI", 2, 40, 3, 1000, 7, 0)
    assert native.encode_header(HEADER) == body + struct.pack("<I", zlib.crc32(body))
    assert HEADER.data_start == 104 + 40 * 3


@given(number=u64, max_entries=st.integers(1, (1 << 32) - 1), max_bytes=st.integers(1, (1 << 63) - 1))
def test_a_header_reads_back(number: int, max_entries: int, max_bytes: int) -> None:
    header = native.Header(number, SegmentLimits(max_entries=max_entries, max_bytes=max_bytes))
    assert native.decode_header(native.encode_header(header), "x") == header


def test_every_flipped_byte_of_a_header_is_found() -> None:
    data = native.encode_header(HEADER)
    for place in range(len(data)):
        for mask in MASKS:
            with pytest.raises(CorruptData) as raised:
                native.decode_header(flipped(data, place, mask), "somewhere")
            assert raised.value.path == "somewhere"


@pytest.mark.parametrize("size", [0, 1, 7, 8, 39])
def test_a_header_cut_short_is_found(size: int) -> None:
    with pytest.raises(CorruptData, match=rf"expected at least 40 bytes, found {size} bytes"):
        native.decode_header(native.encode_header(HEADER)[:size], "x")


def test_wrong_magic_is_told_first() -> None:
    with pytest.raises(CorruptData, match=r"at offset 0: expected magic b'CLRAFSEG', found b'somebody'"):
        native.decode_header(b"somebody else's file, long enough for a header", "x")


def with_field(offset: int, form: str, value: int) -> bytes:
    data = bytearray(native.encode_header(HEADER))
    struct.pack_into(form, data, offset, value)
    struct.pack_into("<I", data, 36, zlib.crc32(data[:36]))
    return bytes(data)


def test_a_later_version_is_unsupported_not_damaged() -> None:
    with pytest.raises(Unsupported, match=r"x: segment format version 3; this release reads 2: upgrade"):
        native.decode_header(with_field(8, "<H", 3), "x")


def test_an_earlier_version_is_unsupported_and_named() -> None:
    with pytest.raises(Unsupported, match=r"x: segment format version 1; this release reads 2: use the"):
        native.decode_header(with_field(8, "<H", 1), "x")


@pytest.mark.parametrize(("offset", "form", "value"), [
    (8, "<H", 0), (10, "<H", 41), (12, "<I", 0), (16, "<Q", 0), (16, "<Q", 1 << 63), (32, "<I", 1)])
def test_impossible_fields_are_damage_even_if_the_crc_holds(offset: int, form: str, value: int) -> None:
    with pytest.raises(CorruptData, match=r"at offset (8: expected version 2 and zeros|10: expected fields in range)"):
        native.decode_header(with_field(offset, form, value), "x")


@pytest.mark.parametrize(("sealed", "state"), [(False, 5), (True, 6)])
def test_a_seal_is_as_its_page_says(sealed: bool, state: int) -> None:
    seal = native.Seal(2, 195, 0x1234ABCD, sealed, 7)
    body = struct.pack("<IIQIQ", 2, state, 195, 0x1234ABCD, 7)
    assert native.encode_seal(seal) == body + struct.pack("<I", zlib.crc32(body))
    assert native.decode_seal(native.encode_start(HEADER, seal)) == seal


def test_seals_are_written_in_turn_and_the_newer_one_counts_while_it_is_whole() -> None:
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


def test_a_seal_at_the_place_of_the_other_is_none() -> None:
    start = native.encode_start(HEADER, attrs.evolve(SEAL, sequence=9))
    assert native.decode_seal(start[:40] + bytes(32) + start[40:72]) is None


@pytest.mark.parametrize("state", [0, 3, 4, 7, 8])
def test_an_unknown_state_of_a_seal_is_none(state: int) -> None:
    body = struct.pack("<IIQIQ", 2, state, 195, 0, 1)
    assert native.decode_seal(bytes(40) + body + struct.pack("<I", zlib.crc32(body))) is None


def test_a_record_is_as_its_page_says() -> None:
    head = native.head_crc(5, 3, 5)
    record = native.encode_record(5, 3, 5, head, 184, zlib.crc32(b"hello", head))
    assert record == native_record(5, 3, b"hello", 184)
    assert len(record) == native.RECORD_BYTES == 40


def test_the_crc_of_an_entry_covers_index_term_length_and_payload() -> None:
    def crc(index: int, term: int, payload: bytes) -> int:
        return zlib.crc32(payload, native.head_crc(index, term, len(payload)))

    assert crc(5, 3, b"hello") == zlib.crc32(struct.pack("<QQI", 5, 3, 5) + b"hello")
    # A payload of zeros is told from a longer one, which a plain CRC of a torn file might not.
    others = [crc(6, 3, b"hello"), crc(5, 4, b"hello"), crc(5, 3, b"hell"), crc(5, 3, b"hello\0"), crc(5, 3, b"hellp")]
    assert crc(5, 3, b"hello") not in others


@given(st.lists(st.tuples(u64, u64, u32, u32, u64, u32), max_size=6))
def test_columns_and_records_are_the_same(rows: list[tuple[int, int, int, int, int, int]]) -> None:
    region = b"".join(native.encode_record(*row) for row in rows)
    found = native.decode_records(region)
    order = (found.indexes, found.terms, found.lengths, found.heads, found.offsets, found.crcs)
    assert list(zip(*order, strict=True)) == rows
    assert len(found) == len(rows)
    assert native.encode_records(found) == region
    assert list(native.indexes_of(region)) == [row[0] for row in rows]
    moved = native.decode_records(native.moved(region, range(len(rows))))
    assert moved == attrs.evolve(found, offsets=array("Q", range(len(rows))))


def test_no_record_is_all_zeros() -> None:
    """A record of zeros ends the index, so the smallest entry there can be must not look like one."""
    assert any(native.encode_record(0, 0, 0, native.head_crc(0, 0, 0), 0, native.head_crc(0, 0, 0)))


def test_the_first_record_with_a_bad_head_is_named() -> None:
    region = b"".join(native_record(index, 1, b"", 0) for index in (4, 5, 6))
    assert native.first_bad_head(native.decode_records(region)) == -1
    for place in range(24):
        assert native.first_bad_head(native.decode_records(flipped(region, 40 + place, 0x10))) == 1
