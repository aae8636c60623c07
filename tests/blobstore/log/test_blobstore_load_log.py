# SPDX-License-Identifier: Apache-2.0
"""Opening a store whose index files, descriptor or headers are missing, damaged or of a later release."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import attrs
import pytest

from compactlib.blobstore import Blob, BlobStore, BlobStoreConfig
from compactlib.blobstore.model.names import SegmentName
from compactlib.clock import ManualClock
from compactlib.errors import CorruptData, Unsupported

CONFIG = BlobStoreConfig(capacity_bytes=1 << 14, segment_bytes=1 << 12, index_max_entries=4)
IDS = [b"%02d" % number for number in range(50)]


def filled(folder: Path) -> Path:
    """Segment 0 with several index files, and an active one."""
    with BlobStore(folder / "store", CONFIG, clock=ManualClock(1000.0)) as store:
        for blob_id in IDS:
            store.put(blob_id, blob_id * 20)
        assert len(store.snapshot().segments) == 2
    return folder / "store"


def check(folder: Path) -> BlobStore:
    """Everything is there; the store, closed."""
    with BlobStore(folder, CONFIG, clock=ManualClock(1000.0)) as store:
        store.audit()
        for blob_id in IDS:
            found = store.get(blob_id)
            assert isinstance(found, Blob)
            assert found.content == blob_id * 20
        return store


def index_files(folder: Path, segment: str) -> list[Path]:
    return sorted(folder.glob(f"{segment}.*.index"), key=lambda path: int(path.name.split(".")[1]))


@pytest.mark.parametrize("which", [0, 3, -1])
@pytest.mark.parametrize("how", ["missing", "damaged", "empty", "of another place"])
@pytest.mark.parametrize("segment", ["0_0", "1_0"])
def test_an_index_file_is_made_again_from_the_log(which: int, how: str, segment: str, scratch: Path) -> None:
    folder = filled(scratch)
    files = index_files(folder, segment)
    before = {path.name: path.read_bytes() for path in index_files(folder, "0_0")}
    assert len(files) > 4 or segment == "1_0"
    victim = files[which if abs(which) < len(files) else 0]
    if how == "missing":
        victim.unlink()
    elif how == "of another place":
        victim.write_bytes(files[1].read_bytes() if victim != files[1] else files[0].read_bytes())
    else:
        data = bytearray(victim.read_bytes())
        data[len(data) // 2] ^= 1
        victim.write_bytes(b"" if how == "empty" else data)
    store = check(folder)
    assert bool(store.recovery.damage) == (how != "missing")
    if segment == "0_0":
        assert store.recovery.rebuilt == (SegmentName(0, 0),)
        assert {path.name: path.read_bytes() for path in index_files(folder, "0_0")} == before
    assert check(folder).recovery.to_dicts() == [], "it was put in order once and for all"


def test_damaged_index_files_that_are_merged_into_one_are_removed(scratch: Path) -> None:
    """The configuration allows larger index segments by now: what two damaged files held goes into one."""
    folder = filled(scratch)
    files = index_files(folder, "0_0")
    for path in files[1:3]:
        path.write_bytes(b"damaged")
    with BlobStore(folder, attrs.evolve(CONFIG, index_max_entries=100)) as store:
        assert len(store.recovery.damage) == 2
        store.audit()
    assert index_files(folder, "0_0") == [files[0], files[1], *files[3:]]
    assert check(folder).recovery.to_dicts() == []


def test_without_any_index_file_a_store_is_as_before(scratch: Path) -> None:
    folder = filled(scratch)
    for path in folder.glob("*.index"):
        path.unlink()
    assert check(folder).recovery.rebuilt == (SegmentName(0, 0),)
    assert check(folder).recovery.to_dicts() == []


def test_an_index_file_that_reaches_behind_the_log_is_believed_and_the_loss_is_told(scratch: Path) -> None:
    """The log was cut by somebody: what the index names and the log has lost is damage, not absence."""
    folder = filled(scratch)
    path = folder / "0_0.log"
    path.write_bytes(path.read_bytes()[:2000])
    with BlobStore(folder, CONFIG) as store:
        assert [error.offset for error in store.recovery.damage] == [2000]
        assert isinstance(store.get(IDS[0]), Blob)
        lost = [entry for entry in store.snapshot().entries_of(SegmentName(0, 0)) if entry.end > 2000]
        assert lost
        for entry in lost:
            with pytest.raises(CorruptData):
                store.get(entry.id)
        assert isinstance(store.get(IDS[-1]), Blob)


def with_version(data: bytes, header_bytes: int) -> bytes:
    """A header of version 9 with a CRC that holds."""
    head = data[:8] + struct.pack("<H", 9) + data[10:header_bytes - 4]
    return head + struct.pack("<I", zlib.crc32(head)) + data[header_bytes:]


@pytest.mark.parametrize(("file_name", "header_bytes"), [("STORE", 64), ("0_0.log", 80), ("1_0.log", 80)])
def test_a_later_format_is_refused_and_nothing_is_changed(file_name: str, header_bytes: int, scratch: Path) -> None:
    folder = filled(scratch)
    path = folder / file_name
    path.write_bytes(with_version(path.read_bytes(), header_bytes))
    before = {each.name: each.read_bytes() for each in folder.iterdir()}
    with pytest.raises(Unsupported, match="version 9"):
        BlobStore(folder, CONFIG)
    assert {each.name: each.read_bytes() for each in folder.iterdir()} == before


def test_an_index_of_a_later_format_is_made_again(scratch: Path) -> None:
    folder = filled(scratch)
    victim = index_files(folder, "0_0")[1]
    data = victim.read_bytes()
    body = data[:8] + struct.pack("<H", 9) + data[10:-4]
    victim.write_bytes(body + struct.pack("<I", zlib.crc32(body)))
    recovery = check(folder).recovery
    assert (recovery.damage, recovery.rebuilt) == ((), (SegmentName(0, 0),))
    assert victim.read_bytes() == data


@pytest.mark.parametrize("file_name", ["0_0.log", "1_0.log"])
def test_a_segment_whose_header_is_damaged_stays_readable(file_name: str, scratch: Path) -> None:
    folder = filled(scratch)
    data = bytearray((folder / file_name).read_bytes())
    data[20] ^= 1
    (folder / file_name).write_bytes(data)
    (error,) = check(folder).recovery.damage
    assert (error.path.rpartition("/")[2], error.offset) == (file_name, 76)


def test_a_store_without_descriptor_and_without_a_whole_header_cannot_be_known(scratch: Path) -> None:
    folder = filled(scratch)
    (folder / "STORE").write_bytes(b"")
    for path in folder.glob("*.log"):
        path.write_bytes(bytes(80) + path.read_bytes()[80:])
    with pytest.raises(CorruptData):
        BlobStore(folder, CONFIG)


def test_leftovers_of_durable_writes_are_removed(scratch: Path) -> None:
    folder = filled(scratch)
    (folder / "0_0.80.index.tmp").write_bytes(b"half")
    (folder / "STORE.tmp").write_bytes(b"half")
    check(folder)
    assert not list(folder.glob("*.tmp"))
