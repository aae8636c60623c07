# SPDX-License-Identifier: Apache-2.0
"""Contents of many records, taken out of their file by the system call itself."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from compactlib.blobstore import BlobStore, RecordKind
from compactlib.blobstore.index.entry_columns import EntryColumns
from compactlib.blobstore.model.values import IndexEntry
from compactlib.blobstore.segment.reader import SegmentFile
from compactlib.blobstore.segment.records import content_range
from compactlib.clock import ManualClock
from compactlib.errors import CorruptData
from compactlib.spark.sources.blobstore import read_contents
from tests.blobstore.compaction_stores import START, flip, open_store


@pytest.fixture
def store(tmp_path: Path) -> BlobStore:
    """Many records, of which every tenth is a delete."""
    store = open_store(tmp_path / "store", ManualClock(START), capacity_bytes=4 << 20, segment_bytes=1 << 20)
    rng = random.Random(3)
    for number in range(900):
        store.put(f"b{number}", rng.randbytes(rng.randrange(200)))
        if number % 10 == 0:
            store.delete(f"b{number}")
    store.flush()
    return store


def read(store: BlobStore, entries: Sequence[IndexEntry]) -> tuple[list[bytes | None], dict[int, CorruptData]]:
    file = SegmentFile(Path(store.folder) / entries[0].segment.log_file)
    contents, damage = read_contents(file, EntryColumns.of(entries[0].segment, entries), range(len(entries)))
    return contents.to_pylist(), damage


def entries_of(store: BlobStore) -> list[IndexEntry]:
    return list(store.snapshot().entries_of(store.snapshot().segments[0].name))


def stored(store: BlobStore, entry: IndexEntry) -> bytes | None:
    """The content of a put, as the file has it."""
    if entry.kind != RecordKind.PUT:
        return None
    data = (Path(store.folder) / entry.segment.log_file).read_bytes()
    start, length = content_range(entry)
    return data[start:start + length]


@pytest.mark.parametrize("step", [1, 2, 7])
def test_neighbours_and_records_with_gaps_between_them(store: BlobStore, step: int) -> None:
    entries = entries_of(store)[::step]
    assert read(store, entries) == ([stored(store, entry) for entry in entries], {})


@pytest.mark.parametrize("where", ["header", "id", "content", "checksum"])
def test_one_damaged_record_among_many(store: BlobStore, where: str) -> None:
    entries = entries_of(store)
    row = next(row for row in range(400, 900) if entries[row].size > 100)
    entry = entries[row]
    wanted = [stored(store, each) if each != entry else None for each in entries]
    flip(Path(store.folder) / entry.segment.log_file,
         entry.offset + {"header": 20, "id": 57, "content": 70, "checksum": entry.size - 1}[where])
    contents, damage = read(store, entries)
    assert list(damage) == [row]
    assert damage[row].offset == entry.offset
    assert "CRC" in damage[row].found
    assert contents == wanted


@pytest.mark.parametrize("row", [100, 400, 700])
def test_a_file_that_ends_too_early(store: BlobStore, row: int) -> None:
    entries = entries_of(store)
    wanted = [stored(store, entry) for entry in entries]
    path = Path(store.folder) / entries[0].segment.log_file
    path.write_bytes(path.read_bytes()[:entries[row].offset + 30])
    contents, damage = read(store, entries)
    assert sorted(damage) == list(range(row, len(entries)))
    assert damage[row].found == "30 bytes of it"
    assert damage[row + 1].found == "0 bytes of it"
    assert contents == [*wanted[:row], *[None] * (len(entries) - row)]
