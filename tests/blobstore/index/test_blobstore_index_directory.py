# SPDX-License-Identifier: Apache-2.0
"""The directory of the sealed index segments, against asking each of them."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from compactlib.blobstore import Blob, BlobStore, BlobStoreConfig, Missing, RecordKind
from compactlib.blobstore.index import index_directory
from compactlib.blobstore.index.entry_columns import hash_id
from compactlib.blobstore.index.index_directory import MAX_SINGLES, IndexDirectory
from compactlib.blobstore.index.index_segment import IndexSegment
from compactlib.blobstore.model.names import SegmentName
from compactlib.blobstore.model.values import IndexEntry
from compactlib.blobstore.segment.reader import SEGMENT_HEADER_BYTES
from compactlib.errors import CompactlibError
from compactlib.runtime.breather import unhurried

KEY = b"incarnation 1234"
IDS = [b"%d" % number for number in range(40)]


def index_of(position: int, ids: list[bytes]) -> IndexSegment:
    name = SegmentName(position, 0)
    entries = [IndexEntry(blob_id, RecordKind.PUT, 0, 0, 100 * position + row, 0, -1, 0, 0, name,
                          SEGMENT_HEADER_BYTES + 100 * row, 100) for row, blob_id in enumerate(ids)]
    return IndexSegment.of_entries(name, entries, SEGMENT_HEADER_BYTES, SEGMENT_HEADER_BYTES + 100 * len(ids), KEY)


def check(directory: IndexDirectory, sealed: list[IndexSegment]) -> None:
    directory.audit(sealed)
    for blob_id in IDS:
        hashed = hash_id(blob_id, KEY)
        asked = {index.segment for index in sealed if index.rows_of(blob_id, hashed)}
        found = [index.segment for index in directory.owners(hashed)]
        assert set(found) == asked
        assert len(found) == len(asked)
    holders = {hash_id(blob_id, KEY): [index.segment for index in sealed for row in index.columns.ids if row == blob_id]
               for blob_id in IDS}
    for index in sealed:
        shared = {row: (hashed, {other.segment for other in owners})
                  for row, (hashed, owners) in directory.shared(index, unhurried).items()}
        assert shared == {row: (hashed, {*rest}) for row, hashed in enumerate(index.hash_of_rows())
                          if (rest := _without_one(holders[hashed], index.segment))}


def _without_one(segments: list[SegmentName], segment: SegmentName) -> list[SegmentName]:
    place = segments.index(segment)
    return segments[:place] + segments[place + 1:]


@given(st.integers(0, 1 << 32), st.sampled_from([1, 6, 1000]))
def test_an_id_is_found_in_the_segments_that_hold_it_while_they_come_and_go(seed: int, limit: int) -> None:
    rng = random.Random(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index_directory, "MAX_RUN_ENTRIES", limit)
        patch.setattr(index_directory, "MAX_SINGLES", 3)
        directory, sealed = IndexDirectory(), list[IndexSegment]()
        for position in range(30):
            sealed.append(index_of(position, rng.choices(IDS, k=rng.randrange(1, 5))))
            if rng.random() < 0.3:
                sealed = rng.sample(sealed, rng.randrange(1, len(sealed) + 1))
            directory = directory.updated(sealed)
            check(directory, sealed)


def test_few_are_asked_one_by_one_and_many_are_merged() -> None:
    sealed = [index_of(position, [IDS[position % 40]]) for position in range(MAX_SINGLES)]
    directory = IndexDirectory().updated(sealed)
    assert (len(directory.singles), len(directory.runs), directory.memory_bytes()) == (MAX_SINGLES, 0, 0)
    more = [*sealed, index_of(99, [b"x"])]
    merged = directory.updated(more)
    assert (len(merged.singles), len(merged.runs), merged.memory_bytes()) == (0, 1, 12 * (MAX_SINGLES + 1))
    assert merged.updated(more).runs == merged.runs, "nothing is built twice"
    with pytest.raises(CompactlibError):
        merged.audit(sealed)


def test_an_index_segment_that_is_removed_is_let_go() -> None:
    sealed = [index_of(position, [IDS[position]]) for position in range(2 * MAX_SINGLES)]
    directory = IndexDirectory().updated(sealed)
    assert directory.runs
    gone = sealed.pop(3)
    directory = directory.changed([gone], ())
    check(directory, sealed)
    assert sys.getrefcount(gone) <= 2, "this name, and the argument"


def test_a_store_of_many_segments_finds_everything(scratch: Path) -> None:
    config = BlobStoreConfig(capacity_bytes=1 << 20, segment_bytes=1 << 10, index_max_entries=2, durability="interval")
    ids = [b"blob %d" % number for number in range(200)]
    with BlobStore(scratch / "store", config) as store:
        for blob_id in ids:
            store.put(blob_id, blob_id * 20)
        assert store.status().index_segments > 90
    with BlobStore(scratch / "store", config) as store:
        store.audit()
        for blob_id in ids:
            found = store.get(blob_id)
            assert isinstance(found, Blob)
            assert found.content == blob_id * 20
        assert store.get(b"blob 200") == Missing(b"blob 200")
