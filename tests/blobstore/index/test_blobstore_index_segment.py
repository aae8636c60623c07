# SPDX-License-Identifier: Apache-2.0
"""Sealed index segments: searched, stored, read back, and refused when damaged."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from compactlib.blobstore import RecordKind
from compactlib.blobstore.index.entry_columns import EntryColumns, hash_id
from compactlib.blobstore.index.index_file import decode_index, encode_index, read_index, write_index
from compactlib.blobstore.index.index_segment import IndexSegment
from compactlib.blobstore.model.names import SegmentName
from compactlib.blobstore.model.values import IndexEntry
from compactlib.blobstore.segment.reader import SEGMENT_HEADER_BYTES
from compactlib.errors import CorruptData, InvalidInput, StorageError
from compactlib.files import LocalFiles

NAME = SegmentName(3, 1)
KEY = b"incarnation 1234"


def entries_of(ids: list[bytes]) -> list[IndexEntry]:
    return [IndexEntry(blob_id, RecordKind(1 + row % 4), row % 8, row % 5, 1000 + row, 5000 + row, row - 1, row,
                       row + 1, NAME, SEGMENT_HEADER_BYTES + 100 * row, 100) for row, blob_id in enumerate(ids)]


def index_of(ids: list[bytes]) -> IndexSegment:
    return IndexSegment.of_entries(NAME, entries_of(ids), SEGMENT_HEADER_BYTES,
                                   SEGMENT_HEADER_BYTES + 100 * len(ids), KEY)


id_lists = st.lists(st.sampled_from([b"a", b"b", b"bb", b"c", b"\x00", b"x" * 1024]), max_size=30)


@given(id_lists)
def test_every_entry_of_an_id_is_found_and_no_other(ids: list[bytes]) -> None:
    index = index_of(ids)
    index.audit()
    for blob_id in {*ids, b"never"}:
        rows = index.rows_of(blob_id, hash_id(blob_id, KEY))
        assert rows == [row for row, other in enumerate(ids) if other == blob_id]
    assert list(index.entries()) == entries_of(ids)
    assert list(index.entries(SEGMENT_HEADER_BYTES + 101)) == entries_of(ids)[2:]


@given(id_lists, st.data())
def test_rows_that_move_are_indexed_as_if_they_had_been_written_there(ids: list[bytes], data: st.DataObject) -> None:
    index, entries = index_of(ids), entries_of(ids)
    rows = [row for row in range(len(ids)) if data.draw(st.booleans())]
    assert index.rows_at([0, *(entries[row].offset for row in rows), 1 << 40]) == rows
    hashes = index.hash_of_rows()
    assert list(hashes) == [hash_id(blob_id, KEY) for blob_id in ids]
    moved = EntryColumns.empty(SegmentName(4, 0))
    end = moved.take(index.columns, rows, 500)
    assert end == 500 + 100 * len(rows)
    assert list(moved.entries()) == [entries[row]._replace(segment=SegmentName(4, 0), offset=500 + 100 * place)
                                     for place, row in enumerate(rows)]
    sealed = IndexSegment.of_hashed(moved, 500, end, [hashes[row] for row in rows])
    sealed.audit()
    assert encode_index(sealed, KEY) == encode_index(IndexSegment.of_columns(moved, 500, end, KEY), KEY)


@given(id_lists)
def test_an_index_is_read_back_as_it_was_written(ids: list[bytes]) -> None:
    index = index_of(ids)
    again = decode_index(encode_index(index, KEY), "x", KEY)
    assert (again.place, again.end) == (index.place, index.end)
    assert list(again.entries()) == entries_of(ids)
    assert again.first_sequence == (1000 if ids else 0)
    assert again.memory_bytes() == index.memory_bytes()


def test_an_entry_takes_less_than_a_hundred_bytes_beside_its_id() -> None:
    ids = [b"%032d" % number for number in range(1000)]
    assert index_of(ids).memory_bytes() < 1000 * (100 + 32)


def test_every_flipped_byte_and_every_cut_is_noticed() -> None:
    data = encode_index(index_of([b"a", b"b", b"a"]), KEY)
    for place in range(len(data)):
        for damaged in (data[:place] + bytes([data[place] ^ 0x10]) + data[place + 1:], data[:place]):
            with pytest.raises(CorruptData):
                decode_index(damaged, "x", KEY)


def test_the_index_of_another_store_is_refused() -> None:
    with pytest.raises(CorruptData, match="index of store"):
        decode_index(encode_index(index_of([b"a"]), KEY), "x", b"somebody else's.")


def test_a_file_is_written_under_its_name_and_read_back(tmp_path: Path) -> None:
    path = write_index(LocalFiles(), tmp_path, index_of([b"a"]), KEY)
    assert os.path.basename(path) == "3_1.80.index"
    assert list(read_index(path, KEY).entries()) == entries_of([b"a"])
    with pytest.raises(StorageError):
        read_index(tmp_path / "absent", KEY)


@pytest.mark.parametrize("change", [{"offset": 10}, {"size": 1000}, {"offset": 300}])
def test_entries_that_overlap_or_lie_outside_are_refused(change: dict[str, int]) -> None:
    entries = entries_of([b"a", b"b"])
    entries[0] = entries[0]._replace(**change)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput):
        IndexSegment.of_entries(NAME, entries, SEGMENT_HEADER_BYTES, SEGMENT_HEADER_BYTES + 200, KEY)
