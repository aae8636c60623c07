"""The frame of small stored records: its bytes, and that no changed or missing byte passes."""

from __future__ import annotations

import pytest

from compactlib.errors import CorruptData
from compactlib.files.checksum import crc32
from compactlib.files.record_frame import BODY_OFFSET, Frame, framed, unframed

MAGIC = b"CLTESTS\0"
RECORD = framed(MAGIC, 3, 7, b"body")


def test_the_bytes_are_the_documented_ones() -> None:
    head = MAGIC + b"\x03\0" + b"\x07\0" + b"\x04\0\0\0"
    assert len(head) == BODY_OFFSET
    assert head + b"body" + crc32(head + b"body").to_bytes(4, "little") == RECORD


def test_a_record_gives_its_parts() -> None:
    assert unframed(RECORD, MAGIC, "here") == Frame(version=3, tag=7, stated_bytes=4, body=b"body")


@pytest.mark.parametrize("place", range(len(RECORD)))
def test_a_changed_byte_is_damage(place: int) -> None:
    changed = RECORD[:place] + bytes([RECORD[place] ^ 1]) + RECORD[place + 1:]
    with pytest.raises(CorruptData, match="here"):
        unframed(changed, MAGIC, "here")


@pytest.mark.parametrize("length", range(len(RECORD)))
def test_a_cut_record_is_damage(length: int) -> None:
    with pytest.raises(CorruptData, match="here"):
        unframed(RECORD[:length], MAGIC, "here")
