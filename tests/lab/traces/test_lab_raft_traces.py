# SPDX-License-Identifier: Apache-2.0
"""Logs of RabbitMQ Ra and of etcd as workloads: files of the documented layouts, and what is not one is refused."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from random import Random

import google_crc32c
import pytest

from compactlib.errors import CorruptData
from compactlib.lab import Operations, RaftLogSettings, replay_raftlog
from compactlib.lab.traces.etcd_trace import EtcdTrace
from compactlib.lab.traces.operations import DELETE, PUT
from compactlib.lab.traces.raft_traces import RaTrace
from compactlib.raftlog import SeedPolicy

REAL_RA = Path(__file__).parents[3].parent / "shared" / "data" / "ra-segments"


def ra_segment(entries: list[tuple[int, int, bytes]], max_count: int = 8) -> bytes:
    """A segment of Ra, version 2: header, index records, payloads."""
    offset = 8 + max_count * 32
    records, payloads = b"", b""
    for index, term, payload in entries:
        records += struct.pack(">QQQII", index, term, offset + len(payloads), len(payload), zlib.crc32(payload))
        payloads += payload
    return struct.pack(">4sHH", b"RASG", 2, max_count) + records.ljust(max_count * 32, b"\0") + payloads


def varint(value: int) -> bytes:
    return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + varint(value >> 7)


def field(number: int, value: int | bytes) -> bytes:
    """A field of a protobuf message."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def wal(records: list[tuple[int, bytes]], crc: int = 0) -> bytes:
    """A file of etcd's WAL: a record of the CRC so far, then these, each behind its length and padded to 8 bytes."""
    written = b""
    for kind, data in [(4, b""), *records]:
        crc = google_crc32c.extend(crc, data)
        record = field(1, kind) + field(2, crc) + (field(3, data) if data else b"")
        padding = -len(record) % 8
        written += struct.pack("<Q", len(record) | ((0x80 | padding) << 56 if padding else 0)) + record + bytes(padding)
    return written


def entry(index: int, data: bytes, term: int = 1, kind: int = 0) -> tuple[int, bytes]:
    return 2, field(1, kind) + field(2, term) + field(3, index) + field(4, data)


def put(key: bytes, value: bytes) -> bytes:
    return field(4, field(1, key) + field(2, value))


def made(trace: RaTrace | EtcdTrace) -> Operations:
    [piece] = trace.pieces(0)
    return piece


def kinds_and_keys(trace: RaTrace | EtcdTrace) -> list[tuple[int, int]]:
    return [(kind, key) for kind, key, *_ in made(trace).rows()]


def first_word(payload: bytes) -> str | None:
    return payload.split()[0].decode() or None if payload.strip() else None


def test_the_entries_of_ra_are_put_in_their_order(tmp_path: Path) -> None:
    (tmp_path / "00000002.segment").write_bytes(ra_segment([(4, 1, b"x 4")]))
    (tmp_path / "00000001.segment").write_bytes(ra_segment([(1, 1, b"x 1"), (2, 1, b"yy 22"), (3, 1, b" ")]))
    plain = made(RaTrace(tmp_path))
    assert [(kind, key, size) for kind, key, size, *_ in plain.rows()] == [
        (PUT, 0, 3), (PUT, 1, 5), (PUT, 2, 1), (PUT, 3, 3)]
    assert list(plain.times_ms) == [0, 1, 2, 3]
    assert kinds_and_keys(RaTrace(tmp_path, key_of=first_word)) == [(PUT, 0), (PUT, 1), (DELETE, 2), (PUT, 0)]


def test_what_a_later_leader_wrote_over_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "1.segment").write_bytes(ra_segment([(1, 1, b"a"), (2, 1, b"b"), (3, 1, b"c"), (2, 2, b"longer")]))
    assert list(made(RaTrace(tmp_path)).rows()) == [(PUT, 0, 1, -1, 0), (PUT, 1, 6, -1, 1)]
    (tmp_path / "0-0.wal").write_bytes(wal([entry(1, put(b"a", b"1")), entry(2, put(b"lost", b"1")),
                                            entry(2, put(b"b", b"22"), term=2)]))
    assert kinds_and_keys(EtcdTrace(tmp_path)) == [(PUT, 0), (PUT, 1)]


@pytest.mark.skipif(not REAL_RA.exists(), reason=f"no segments of a real Ra in {REAL_RA}")
def test_segments_of_a_real_ra_are_read() -> None:
    indexes = [*range(1, 55), *range(60, 201, 7), *range(201, 211)]
    terms = [1] * 30 + [2] * 24 + [3] * 31
    assert list(made(RaTrace(REAL_RA)).rows()) == [
        (PUT, number, len(f"entry-{index}-term-{term}-") + index % 23, -1, number)
        for number, (index, term) in enumerate(zip(indexes, terms, strict=True))]


def etcd_files() -> Iterator[bytes]:
    first: list[tuple[int, bytes]] = [
        (1, b"metadata"), (5, field(1, 0)), entry(1, b"members", kind=1), entry(2, put(b"/a", b"1")), (3, b"state"),
        entry(3, put(b"/b", b"2" * 300)), entry(4, put(b"/a", b"11"))]
    yield wal(first)
    crc = 0
    for _, data in first:
        crc = google_crc32c.extend(crc, data)
    # A transaction that puts, a delete, one of a prefix, a range that is only read; then what was kept free.
    txn = field(6, field(1, b"compared") + field(2, field(2, field(1, b"/c") + field(2, b"3"))))
    yield wal([entry(5, txn), entry(6, field(5, field(1, b"/a"))), entry(7, field(5, field(1, b"/") + field(2, b"0"))),
               entry(8, field(3, field(1, b"/b")))], crc) + bytes(512)


def etcd_folder(folder: Path) -> Path:
    for number, content in enumerate(etcd_files()):
        (folder / f"{number:016x}-{number * 4:016x}.wal").write_bytes(content)
    return folder


def test_the_commands_of_etcd_are_read(tmp_path: Path) -> None:
    trace = EtcdTrace(etcd_folder(tmp_path))
    # 0 members, 1 /a, 2 /b, 3 /c; what keeps nothing has a key of its own.
    assert kinds_and_keys(trace) == [(DELETE, 0), (PUT, 1), (PUT, 2), (PUT, 1), (PUT, 3), (DELETE, 1), (DELETE, 2),
                                     (DELETE, 3), (DELETE, 4)]
    sizes = made(trace).sizes
    assert not isinstance(sizes, int)
    assert (sizes[1], sizes[2]) == (len(put(b"/a", b"1")), len(put(b"/b", b"2" * 300)))
    assert "etcd" in str(trace)


def test_the_log_of_a_real_etcd_is_read(tmp_path: Path) -> None:
    # Written by a real etcd 3 for 40 puts of ten keys, a transaction that puts, a delete, and a delete of the prefix.
    golden = Path(__file__).parents[2] / "promises" / "golden" / "lab"
    (tmp_path / "0-0.wal").write_bytes((golden / "etcd.wal").read_bytes())
    rows = kinds_and_keys(EtcdTrace(tmp_path))
    puts = [key for kind, key in rows if kind == PUT]
    assert puts == [*range(4, 14)] * 4 + [14]
    assert rows[-10:] == [(DELETE, 7), *((DELETE, key) for key in range(4, 14) if key != 7)]
    assert rows[:4] == [(DELETE, 0), (DELETE, 1), (DELETE, 2), (DELETE, 3)]


def test_what_is_no_entry_is_refused(tmp_path: Path) -> None:
    (tmp_path / "0-0.wal").write_bytes(wal([(2, b"no entry of Raft")]))
    with pytest.raises(CorruptData, match="entry of Raft"):
        list(EtcdTrace(tmp_path).pieces(0))


def test_they_are_replayed_against_a_policy(tmp_path: Path) -> None:
    report = replay_raftlog(EtcdTrace(etcd_folder(tmp_path)), SeedPolicy(), RaftLogSettings(snapshot_every=2))
    assert report.total.operations == 9
    assert report.total.user_bytes > 300


@pytest.mark.parametrize("place", [0, 3, 20, 60, 200])
def test_damage_is_found(tmp_path: Path, place: int) -> None:
    folder = etcd_folder(tmp_path)
    [path, _] = sorted(folder.iterdir())
    content = bytearray(path.read_bytes())
    content[place] ^= 16
    path.write_bytes(content)
    with pytest.raises(CorruptData):
        list(EtcdTrace(folder).pieces(0))
    segment = bytearray(ra_segment([(1, 1, b"payload")]))
    segment[-1] ^= 16
    (folder / "1.segment").write_bytes(segment)
    with pytest.raises(CorruptData, match="CRC"):
        list(RaTrace(folder).pieces(0))


def test_a_torn_end_is_the_end(tmp_path: Path) -> None:
    folder = etcd_folder(tmp_path)
    [_, last] = sorted(folder.iterdir())
    whole = last.read_bytes().rstrip(b"\0")
    last.write_bytes(whole[:-6])
    assert len(made(EtcdTrace(folder))) == 8
    [first, _] = sorted(folder.iterdir())
    first.write_bytes(first.read_bytes()[:-6])
    with pytest.raises(CorruptData, match="end of the file"):
        list(EtcdTrace(folder).pieces(0))


def test_a_torn_end_in_a_file_that_is_allocated_in_advance_is_the_end(tmp_path: Path) -> None:
    folder, crc = etcd_folder(tmp_path), 0
    [first, last] = sorted(folder.iterdir())
    before = [entry(1, put(b"/a", b"1" * 900))]
    first.write_bytes(wal(before))
    for _, data in before:
        crc = google_crc32c.extend(crc, data)
    content = wal([entry(2, put(b"/c", b"3")), entry(3, put(b"/d", bytes(range(1, 256)) * 8))], crc)
    last.write_bytes(content.ljust(4_096, b"\0"))
    whole = len(made(EtcdTrace(folder)))
    for sectors in range(1, -(-len(content) // 512)):
        last.write_bytes(content[:512 * sectors].ljust(4_096, b"\0"))
        assert len(made(EtcdTrace(folder))) == whole - 1
    # Sectors are written whole: what is wrong in one that is there is damage, and so is any hole before the last file.
    last.write_bytes(content[:700].ljust(1_000, b"x").ljust(4_096, b"\0"))
    assert len(made(EtcdTrace(folder))) == whole - 1
    last.write_bytes(content[:700] + b"x" + content[701:].ljust(4_096, b"\0"))
    with pytest.raises(CorruptData, match="CRC-32C"):
        made(EtcdTrace(folder))
    last.write_bytes(content.ljust(4_096, b"\0"))
    first.write_bytes(first.read_bytes()[:100].ljust(4_096, b"\0"))
    with pytest.raises(CorruptData):
        made(EtcdTrace(folder))


def test_what_leaders_wrote_over_is_left_out_however_often(tmp_path: Path) -> None:
    random = Random(3)
    indexes = [1]
    for _ in range(300):
        indexes.append(max(1, indexes[-1] + random.choice([1, 1, 1, 1, 0, -2, -7])))
    (tmp_path / "0-0.wal").write_bytes(wal([entry(index, put(b"%d" % number, b"")) for number, index in
                                            enumerate(indexes)]))
    last: list[int] = []
    for number, index in enumerate(indexes):
        last = [each for each in last if indexes[each] < index] + [number]
    keys = kinds_and_keys(EtcdTrace(tmp_path))
    assert len(keys) == len(last)
    sizes = made(EtcdTrace(tmp_path)).sizes
    assert list(sizes) == [len(put(b"%d" % number, b"")) for number in last]  # type: ignore[arg-type]


@pytest.mark.parametrize("trace", [RaTrace, EtcdTrace])
def test_a_folder_without_a_log_is_refused(tmp_path: Path, trace: type[RaTrace] | type[EtcdTrace]) -> None:
    with pytest.raises(CorruptData, match="no "):
        list(trace(tmp_path).pieces(0))
