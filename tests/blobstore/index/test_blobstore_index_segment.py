# SPDX-License-Identifier: Apache-2.0
"""Sealed index segments: searched, stored, read back, and refused when damaged."""

from __future__ import annotations

import gc
import os
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from compactlib.blobstore import RecordKind
from compactlib.blobstore.index import mapped
from compactlib.blobstore.index.entry_columns import EntryColumns, hash_id
from compactlib.blobstore.index.index_file import decode_index, encode_index, map_index, read_index, write_index
from compactlib.blobstore.index.index_segment import IndexSegment
from compactlib.blobstore.model.names import SegmentName
from compactlib.blobstore.model.values import IndexEntry
from compactlib.blobstore.segment.reader import SEGMENT_HEADER_BYTES
from compactlib.errors import CorruptData, InvalidInput, StorageError
from compactlib.files import LocalFiles
from tests.harness.open_files import open_files

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


def test_a_mapped_index_says_the_same_from_its_file_even_when_that_is_gone(tmp_path: Path) -> None:
    ids = [b"%d" % (number % 700) for number in range(1000)]
    index, plain = index_of(ids), index_of(ids)
    map_index(index, path := write_index(LocalFiles(), tmp_path, index, KEY))
    os.unlink(path)
    assert not open_files(tmp_path)
    assert index.memory_bytes() == 0 < plain.memory_bytes()
    index.audit()
    assert list(index.entries()) == list(plain.entries())
    hashed = [hash_id(key, KEY) for key in ids]
    assert list(map(index.rows_of, ids, hashed)) == list(map(plain.rows_of, ids, hashed))
    assert encode_index(index, KEY) == encode_index(plain, KEY)


def test_no_more_is_mapped_than_leaves_the_process_room_for_threads(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gc.collect()
    monkeypatch.setattr(mapped, "MAX_MAPPED_FILES", len(mapped.MAPPED_ADDRESSES) + 2)
    indexes = [index_of([b"%d" % number]) for number in range(4)]
    for index in indexes[:3]:
        map_index(index, write_index(LocalFiles(), tmp_path, index, KEY))
    assert [index.memory_bytes() == 0 for index in indexes] == [True, True, False, False]
    del indexes[0]
    map_index(indexes[1], tmp_path / NAME.index_file(indexes[1].start))
    assert [index.memory_bytes() == 0 for index in indexes] == [True, True, False]


def test_mapped_files_of_different_sizes_take_a_kilobyte_each_and_none_when_they_are_let_go(tmp_path: Path) -> None:
    (tmp_path / "a file").write_bytes(bytes(1 << 15))
    with (tmp_path / "a file").open("rb") as file:
        gc.collect()
        gc.disable()
        tracemalloc.start()
        try:
            views = [mapped.map_file(file.fileno(), 20_000 + number) for number in range(500)]
            held = tracemalloc.get_traced_memory()[0]
            assert list(map(len, views)) == list(range(20_000, 20_500))
            views.clear()
            left = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
            gc.enable()
    assert held < 500 << 10
    assert left < 500 << 8


@pytest.mark.parametrize("left", [None, b"", b"another file"])
def test_an_index_whose_file_cannot_be_mapped_stays_in_memory(left: bytes | None, tmp_path: Path) -> None:
    index, path = index_of([b"a", b"b"]), tmp_path / "an.index"
    if left is not None:
        path.write_bytes(left)
    map_index(index, path)
    assert index.memory_bytes() == index_of([b"a", b"b"]).memory_bytes()
    assert list(index.entries()) == entries_of([b"a", b"b"])


@pytest.mark.parametrize("change", [{"offset": 10}, {"size": 1000}, {"offset": 300}])
def test_entries_that_overlap_or_lie_outside_are_refused(change: dict[str, int]) -> None:
    entries = entries_of([b"a", b"b"])
    entries[0] = entries[0]._replace(**change)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput):
        IndexSegment.of_entries(NAME, entries, SEGMENT_HEADER_BYTES, SEGMENT_HEADER_BYTES + 200, KEY)
