# SPDX-License-Identifier: Apache-2.0
"""The record format: encoded, decoded, and every damage noticed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from compactlib.blobstore import RecordKind
from compactlib.blobstore.model.names import FIRST_SEGMENT
from compactlib.blobstore.model.values import (
    MAX_ID_BYTES,
    MAX_LIFE_VERSION,
    MAX_TAG,
    MAX_TIME_MS,
    IndexEntry,
    RecordFlag,
)
from compactlib.blobstore.segment.records import (
    HEADER_BYTES,
    OVERHEAD_BYTES,
    RecordHeader,
    check_head,
    check_record,
    check_whole,
    content_range,
    decode_head,
    encode_record,
    record_size,
)
from compactlib.errors import InvalidInput

SALT = 0x1234


def an_entry(content: bytes = b"content", **changes: Any) -> IndexEntry:
    blob_id = changes.get("id", b"id")
    entry = IndexEntry(b"id", RecordKind.PUT, 0, 0, 1, 1000, -1, 2, 3, FIRST_SEGMENT, 64,
                       record_size(len(blob_id), len(content)))
    return entry._replace(**changes)


entries = st.builds(
    lambda blob_id, kind, flags, life, sequence, op, expires, account, container, content: (
        an_entry(content, id=blob_id, kind=kind, flags=flags, life_version=life, sequence=sequence, op_time_ms=op,
                 expires_ms=expires, account=account, container=container), content),
    st.binary(min_size=1, max_size=40), st.sampled_from(RecordKind), st.integers(0, 7),
    st.integers(0, MAX_LIFE_VERSION), st.integers(0, (1 << 63) - 1),
    st.integers(-MAX_TIME_MS, MAX_TIME_MS), st.integers(-1, (1 << 62)),
    st.integers(0, MAX_TAG), st.integers(0, MAX_TAG), st.binary(max_size=100))


@given(entries)
def test_a_record_is_read_back_as_it_was_written(given: tuple[IndexEntry, bytes]) -> None:
    entry, content = given
    record = encode_record(entry, content, SALT)
    assert len(record) == entry.size == OVERHEAD_BYTES + len(entry.id) + len(content)
    header = decode_head(b"before" + record, 6, SALT)
    assert isinstance(header, RecordHeader)
    assert header.entry(entry.segment, entry.offset) == entry
    assert check_record(entry, record, SALT) is None
    start, length = content_range(entry)
    assert record[start - entry.offset:][:length] == content


def test_every_flipped_bit_and_every_cut_is_noticed() -> None:
    entry = an_entry(b"some content")
    record = encode_record(entry, b"some content", SALT)
    for place in range(len(record)):
        for bit in range(8):
            damaged = bytearray(record)
            damaged[place] ^= 1 << bit
            assert check_record(entry, bytes(damaged), SALT) is not None
            assert check_whole(memoryview(damaged), SALT, entry.sequence) is not None
        assert check_record(entry, record[:place], SALT) is not None
        assert check_whole(memoryview(record)[:place], SALT, entry.sequence) is not None


@given(entries)
def test_size_and_number_are_enough_to_know_a_record(given: tuple[IndexEntry, bytes]) -> None:
    entry, content = given
    record = memoryview(encode_record(entry, content, SALT))
    start, length = content_range(entry)
    assert check_whole(record, SALT, entry.sequence) is None
    assert check_head(record[:HEADER_BYTES + len(entry.id)], entry.size, SALT, entry.sequence)[::2] == (
        start - entry.offset, None)
    assert length == len(content)
    assert check_whole(record, SALT + 1, entry.sequence) is not None
    assert f"record {entry.sequence} of" in str(check_whole(record, SALT, entry.sequence ^ 1))
    assert f"record {entry.sequence} of" in str(check_head(record, entry.size + 1, SALT, entry.sequence)[2])



def test_a_record_of_another_store_is_not_taken_for_one() -> None:
    assert "CRC" in str(decode_head(encode_record(an_entry(), b"content", SALT), 0, SALT + 1))


def test_a_content_that_was_overwritten_since_the_index_was_looked_at_is_not_taken_for_it() -> None:
    """What a hard delete writes is a whole record: only its mark tells it from what was there."""
    erased = an_entry(flags=int(RecordFlag.ERASED))
    record = encode_record(erased, bytes(content_range(erased)[1]), SALT)
    assert check_record(erased, record, SALT) is None
    assert check_record(an_entry(), record, SALT) == "a content that was overwritten"


def test_the_record_at_a_place_has_to_be_the_one_that_the_index_knows() -> None:
    record = encode_record(an_entry(), b"content", SALT)
    assert "instead of" in str(check_record(an_entry(sequence=2), record, SALT))
    assert "instead of" in str(check_record(an_entry(id=b"if"), record, SALT))


@pytest.mark.parametrize("changes", [
    {"life_version": MAX_LIFE_VERSION + 1}, {"account": MAX_TAG + 1}, {"container": -1}, {"sequence": -1},
    {"op_time_ms": -MAX_TIME_MS - 1}, {"expires_ms": -2}, {"expires_ms": 1 << 63},
    {"id": b""}, {"id": b"x" * (MAX_ID_BYTES + 1)}, {"size": 10},
])
def test_fields_out_of_range_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        encode_record(an_entry(**changes), b"content", SALT)
