# SPDX-License-Identifier: Apache-2.0
"""All records of a segment, read many at once: contents, damage, a file that ends too early."""

from __future__ import annotations

import pickle
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from compactlib.blobstore import BlobReader, BlobStore, RecordKind, StoredRecord
from compactlib.clock import ManualClock
from compactlib.errors import CorruptData
from compactlib.testing.views import NOW
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


def read(store: BlobStore) -> list[StoredRecord]:
    """The records of the first segment, by a process that was handed them."""
    with BlobReader(store.folder) as reader:
        part = pickle.loads(pickle.dumps(reader.records(reference_time=NOW, now=NOW)[0]))
    return list(part.read())


def stored(store: BlobStore, record: StoredRecord) -> bytes | None:
    """The content of a put, as the file has it."""
    if record.kind != RecordKind.PUT.name.lower():
        return None
    data = (Path(store.folder) / f"{record.segment}.log").read_bytes()
    end = record.offset + record.size - 4
    return data[end - record.length:end]


def contents(records: Sequence[StoredRecord]) -> list[bytes | None]:
    return [record.payload for record in records]


def test_contents_are_those_of_the_file(store: BlobStore) -> None:
    records = read(store)
    assert len(records) > 900
    assert contents(records) == [stored(store, record) for record in records]
    assert not any(record.error for record in records)


@pytest.mark.parametrize("where", ["header", "id", "content", "checksum"])
def test_one_damaged_record_among_many(store: BlobStore, where: str) -> None:
    before = read(store)
    row = next(row for row in range(400, 900) if before[row].size > 100)
    bad = before[row]
    flip(Path(store.folder) / f"{bad.segment}.log",
         bad.offset + {"header": 20, "id": 57, "content": 70, "checksum": bad.size - 1}[where])
    found = read(store)
    assert [place for place, record in enumerate(found) if record.error is not None] == [row]
    error = found[row].error
    assert error is not None
    assert error.offset == bad.offset
    assert "CRC" in error.found
    assert contents(found) == [None if place == row else record.payload for place, record in enumerate(before)]


@pytest.mark.parametrize("row", [100, 400, 700])
def test_file_that_ends_too_early_damages_what_lies_behind(store: BlobStore, row: int) -> None:
    with BlobReader(store.folder) as reader:
        part = reader.records(reference_time=NOW, now=NOW)[0]
        before = list(part.read())
        path = Path(store.folder) / f"{part.name}.log"
        path.write_bytes(path.read_bytes()[:before[row].offset + 30])
        found: list[StoredRecord] = []
        with pytest.raises(CorruptData, match=f"{len(before)} records"):
            found.extend(part.read())
    assert [record.error is not None for record in found] == [place >= row for place in range(len(found))]
    assert contents(found)[:row] == contents(before)[:row]
