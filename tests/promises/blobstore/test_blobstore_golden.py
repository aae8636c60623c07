# SPDX-License-Identifier: Apache-2.0
"""The formats are promises: a store written by an earlier release is read as it was meant, and still written alike.

`python -m tests.promises.blobstore.test_blobstore_golden` writes the golden files; a change in one of them
is a new format version, or a mistake.
"""

from __future__ import annotations

import shutil
import struct
import sys
import zlib
from hashlib import blake2b
from pathlib import Path

from compactlib.blobstore import (
    Blob,
    BlobReader,
    BlobStore,
    BlobStoreConfig,
    Deleted,
    Expired,
    GetOptions,
    RecordKind,
    ReplicationToken,
)
from compactlib.clock import ManualClock

GOLDEN = Path(__file__).parents[1] / "golden" / "blobstore" / "store-v1"
INCARNATION = bytes(range(16))
CONFIG = BlobStoreConfig(capacity_bytes=1 << 14, segment_bytes=1 << 11, ttl_update_buffer_seconds=1)


def opened(folder: Path, now: float) -> BlobStore:
    return BlobStore(folder, CONFIG, clock=ManualClock(now), new_incarnation=lambda: INCARNATION)


def write_store(folder: Path) -> None:
    """Records of every kind in two segments, the first with its index file."""
    clock = ManualClock(1_000_000.25)
    with BlobStore(folder, CONFIG, clock=clock, new_incarnation=lambda: INCARNATION) as store:
        store.put("plain", b"content", account=1, container=2)
        store.put("expiring", b"\x00\xff" * 20, ttl_seconds=60.125)
        clock.advance(1.001)
        store.ttl_update("expiring")
        store.put("gone", b"x" * 500)
        store.delete("gone")
        store.put("ümlaut", b"", ttl_seconds=0)
        store.delete("plain")
        clock.advance(2)
        store.undelete("plain")
        store.put(b"big \x00", bytes(range(256)) * 7)
        store.append_replicated(RecordKind.DELETE, "tombstone", op_time=5.5, life_version=3, expires_at=9.75)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != "LOCK")


def test_the_golden_store_is_read(scratch: Path) -> None:
    shutil.copytree(GOLDEN, scratch / "store")
    with opened(scratch / "store", 1_000_010.0) as store:
        assert (store.recovery.damage, store.recovery.cut_bytes) == ((), 0)
        store.audit()
        plain = store.get("plain")
        assert isinstance(plain, Blob)
        assert (plain.content, plain.info.life_version) == (b"content", 1)
        assert (plain.info.account, plain.info.container) == (1, 2)
        assert (plain.info.put_at, plain.info.changed_at) == (1_000_000.25, 1_000_003.251)
        expiring = store.get("expiring")
        assert isinstance(expiring, Blob)
        assert (expiring.content, expiring.info.expires_at) == (b"\x00\xff" * 20, None)
        assert store.get("gone") == Deleted(b"gone", 1_000_001.251, 0)
        kept = store.get("gone", GetOptions(include_deleted=True))
        assert isinstance(kept, Blob)
        assert kept.content == b"x" * 500
        assert store.get("ümlaut") == Expired("ümlaut".encode(), 1_000_001.251)
        big = store.get(b"big \x00")
        assert isinstance(big, Blob)
        assert big.content == bytes(range(256)) * 7
        assert store.get("tombstone") == Deleted(b"tombstone", 5.5, 3, content_gone=True)
    with BlobReader(scratch / "store") as reader:
        assert [segment.records for segment in reader.snapshot().segments] == [8, 2]


def test_the_golden_store_is_read_without_its_index_files(scratch: Path) -> None:
    shutil.copytree(GOLDEN, scratch / "store")
    for path in (scratch / "store").glob("*.index"):
        path.unlink()
    with opened(scratch / "store", 1_000_010.0) as store:
        assert not store.recovery.damage
    with BlobReader(scratch / "store") as reader, BlobReader(GOLDEN) as golden:
        found, expected = reader.snapshot(), golden.snapshot()
        for one, other in zip(found.segments, expected.segments, strict=True):
            assert list(one.entries()) == list(other.entries())


def test_a_store_is_still_written_alike(scratch: Path) -> None:
    write_store(scratch / "store")
    assert names(scratch / "store") == names(GOLDEN)
    for name in names(GOLDEN):
        assert (scratch / "store" / name).read_bytes() == (GOLDEN / name).read_bytes(), name


def test_the_golden_bytes_match_the_pages() -> None:
    """Decoded by hand, field by field, from `docs/formats/blobstore-log.md` and `blobstore-index.md`."""
    crc = zlib.crc32
    log = (GOLDEN / "0_0.log").read_bytes()
    assert struct.unpack("<8sHHIQQQQ16s12sI", log[:80]) == (
        b"CLBLOBSG", 1, 80, 8, 2048, 0, 0, 0, INCARNATION, bytes(12), crc(log[:76]))
    salt = crc(INCARNATION)
    record = log[80:80 + 60 + 5 + 7]
    head = crc(b"plain", crc(record[:52], salt))
    assert struct.unpack("<4sBBBBHHIIQqqQI5s7sI", record) == (
        b"CLBR", 1, 1, 4, 0, 5, 0, 1, 2, 1, 1_000_000_250, -1, 7, head, b"plain", b"content", crc(b"content", head))
    index = (GOLDEN / "0_0.index").read_bytes()
    count = 8
    ids = b"plainexpiringexpiringgonegone" + "ümlaut".encode() + b"plainplain"
    assert struct.unpack("<8sHHIQQQQQQ16s", index[:80]) == (
        b"CLBLOBIX", 1, 80, 0, 0, 0, 80, len(log), count, len(ids), INCARNATION)
    columns = struct.unpack_from("<8Q8Q8Q8q8q8I8I8H8B8B8I8Q8I", index, 80)
    offsets, sizes, sequences = columns[:8], columns[8:16], columns[16:24]
    assert offsets[0] == 80
    assert [offset + size for offset, size in zip(offsets, sizes, strict=True)] == [*offsets[1:], len(log)]
    assert sequences == tuple(range(1, 9))
    assert columns[64:72] == (1, 1, 3, 1, 2, 1, 2, 4), "kinds"
    hashes, rows, ends = columns[88:96], columns[96:104], columns[80:88]
    each = [ids[start:end] for start, end in zip((0, *ends[:-1]), ends, strict=True)]
    assert list(hashes) == sorted(hashes)
    assert [int.from_bytes(blake2b(each[row], digest_size=8, key=INCARNATION).digest(), "little") for row in rows] == (
        list(hashes))
    assert index[-4 - len(ids):-4] == ids
    assert index[-4:] == struct.pack("<I", crc(index[:-4]))


def test_a_golden_token() -> None:
    token = ReplicationToken(INCARNATION, 258, 0x01020304)
    assert token.to_bytes().hex() == "01000102030405060708090a0b0c0d0e0f020100000000000004030201" + struct.pack(
        "<I", zlib.crc32(token.to_bytes()[:29])).hex()


def test_the_golden_list_matches_the_page() -> None:
    """Two slots of one page each; the last write is in the first one: two segments, no step, no full round."""
    data = (GOLDEN / "SEGMENTS").read_bytes()
    half = len(data) // 2
    numbers = [struct.unpack_from("<Q", data, start + 48)[0] for start in (0, half)]
    assert sorted(numbers) == [numbers[0] - 1, numbers[0]] or sorted(numbers) == [numbers[1] - 1, numbers[1]]
    slot = data[:half] if numbers[0] > numbers[1] else data[half:]
    assert struct.unpack_from("<8sH2xIQq16sQqIII4x", slot) == (
        b"CLBLOBLS", 1, 8, 2048, 1_000_000_250, INCARNATION, max(numbers), -1, 2, 0, 0)
    assert struct.unpack_from("<4Q", slot, 80) == (0, 0, 1, 0)
    assert struct.unpack_from("<I", slot, 112)[0] == zlib.crc32(slot[:112])


if __name__ == "__main__":
    if GOLDEN.exists():
        shutil.rmtree(GOLDEN)
    write_store(GOLDEN)
    (GOLDEN / "LOCK").unlink()
    sys.stdout.write("written\n")
