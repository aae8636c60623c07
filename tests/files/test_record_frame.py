# SPDX-License-Identifier: Apache-2.0
"""The frame of stored records: its bytes, and that no changed or missing byte passes."""

from __future__ import annotations

import struct

import pytest

from compactlib.errors import CorruptData, Unsupported
from compactlib.files.checksum import crc32
from compactlib.files.record_frame import RecordFrame

MAGIC = b"CLTESTS\0"
FRAME = RecordFrame("test record", MAGIC, 3, "<H2xI")
RECORD = FRAME.encode(7, body=b"body", salt=5)
HEADER = FRAME.encode(7)


def test_the_bytes_are_the_documented_ones() -> None:
    head = MAGIC + b"\x03\0" + b"\0\0" + b"\x07\0\0\0"
    assert (len(head), len(head) + 4) == (FRAME.header_bytes, FRAME.size)
    assert head + b"body" + crc32(head + b"body", 5).to_bytes(4, "little") == RECORD
    assert head + crc32(head).to_bytes(4, "little") == HEADER


def test_the_byte_order_is_that_of_the_layout() -> None:
    data = b"\0\x01\0\x02"
    assert RecordFrame("test record", b"", 1, ">HH").encode(2) == data + crc32(data).to_bytes(4, "big")


def test_a_record_gives_its_parts() -> None:
    assert FRAME.decode(RECORD, "here", salt=5) == (7, b"body")
    assert FRAME.decode(memoryview(RECORD), "here", salt=5) == (7, b"body")
    assert FRAME.decode_header(HEADER + b"what follows", "here") == (7,)


@pytest.mark.parametrize("place", range(len(RECORD)))
def test_a_changed_byte_is_damage(place: int) -> None:
    changed = RECORD[:place] + bytes([RECORD[place] ^ 1]) + RECORD[place + 1:]
    with pytest.raises(CorruptData, match="here") as raised:
        FRAME.decode(changed, "here", salt=5, offset=100)
    assert raised.value.offset == (100 if place < len(MAGIC) else 100 + len(RECORD) - 4)


@pytest.mark.parametrize("length", range(len(RECORD)))
def test_a_cut_record_is_damage(length: int) -> None:
    with pytest.raises(CorruptData, match="here"):
        FRAME.decode(RECORD[:length], "here", salt=5)


@pytest.mark.parametrize("length", range(len(HEADER)))
def test_a_cut_header_is_damage(length: int) -> None:
    with pytest.raises(CorruptData, match=f"expected at least 20 bytes, found {length} bytes"):
        FRAME.decode_header(HEADER[:length], "here")


def test_another_salt_is_damage() -> None:
    with pytest.raises(CorruptData, match="expected CRC"):
        FRAME.decode(RECORD, "here", salt=6)


def sealed(version: int, rest: bytes) -> bytes:
    data = MAGIC + struct.pack("<H", version) + rest
    return data + crc32(data).to_bytes(4, "little")


@pytest.mark.parametrize(("version", "advice"), [(1, "use the release that wrote it"), (4, "upgrade")])
@pytest.mark.parametrize("rest", [b"", b"a header of another layout, and a body"])
def test_another_version_is_refused_by_name(version: int, advice: str, rest: bytes) -> None:
    with pytest.raises(Unsupported, match=f"here: test record version {version}; this release reads 3: {advice}"):
        FRAME.decode(sealed(version, rest), "here")


@pytest.mark.parametrize("data", [
    sealed(0, bytes(6)), sealed(3, b"\0\1" + bytes(4)), sealed(3, b"\x80\0" + bytes(4)), sealed(3, bytes(5))])
def test_a_record_no_release_writes_is_damage_with_a_good_crc(data: bytes) -> None:
    with pytest.raises(CorruptData, match="here"):
        FRAME.decode(data, "here")
