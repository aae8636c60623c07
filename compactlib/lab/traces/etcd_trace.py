# SPDX-License-Identifier: Apache-2.0
"""The write-ahead log of etcd as a workload of the Raft log. Needs the extra `lab` (google-crc32c, protobuf).

A record is a length of 8 bytes, little-endian (the lower 56 bits; with the highest bit the lowest three of the last
byte are padding), a protobuf message of type, CRC-32C and data, and the padding to 8 bytes. The CRC continues over the
data of all records; one of type 4 begins each file with the CRC so far. A file is allocated in advance, so zeros follow
the last record, and a write that did not come to its end leaves sectors of zeros in it.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar

import attrs
from sortedcontainers import SortedSet

from compactlib.errors import CorruptData, MissingDependency
from compactlib.lab.traces.operations import DELETE, PUT
from compactlib.lab.traces.raft_traces import Command, Entry, LogTrace, nothing_stays

try:
    import google_crc32c
    from google.protobuf.empty_pb2 import Empty
    from google.protobuf.message import DecodeError
    from google.protobuf.unknown_fields import UnknownFieldSet
except ImportError:
    raise MissingDependency(package="google-crc32c, protobuf", extra="lab", purpose="reading a log of etcd") from None

_LENGTH = struct.Struct("<Q")
_ENTRY, _CRC = 2, 4
_SECTOR = 512
_BROKEN = (DecodeError, ValueError)


@attrs.frozen
class EtcdTrace(LogTrace):
    """The write-ahead log of a member of etcd 3: the puts, deletes and transactions of its clients.

    Of a transaction its first put or delete counts, of those for which its comparisons hold: the log does not say
    whether they did. A delete of a range is one of each key in it. A torn record at the very end is left out.

    Attributes:
        path: the folder `member/wal`.
        per_second: how many entries come in a second.

    Raises:
        InvalidInput: `per_second` is no such number.
    """

    name: ClassVar[str] = "etcd"
    _suffix: ClassVar[str] = ".wal"

    def _entries(self, paths: Sequence[str]) -> Iterator[Entry]:
        crc = None
        for path in paths:
            for offset, record in _frames(path, may_be_torn=path == paths[-1]):
                try:
                    fields = dict(_pairs(record))
                    kind, found, data = _number(fields, 1), _number(fields, 2), _bytes(fields, 3)
                    if kind == _CRC and crc is None:
                        # The log before may be gone: its checksum begins this one's.
                        crc = found
                    crc = google_crc32c.extend(crc or 0, data)
                    if found != crc:
                        raise ValueError(f"CRC-32C {found}, not {crc}")
                    if kind != _ENTRY:
                        continue
                    fields = dict(_pairs(data))
                    index, content = _number(fields, 3), _bytes(fields, 4)
                except _BROKEN as error:
                    if path == paths[-1] and _is_torn(offset, record):
                        return
                    raise CorruptData(path=path, offset=offset, expected="type, CRC-32C and an entry of Raft",
                                      found=str(error)) from error
                yield index, b"" if fields.get(1) else content

    def _commands(self, entries: Iterable[Entry]) -> Iterator[Command]:
        live: SortedSet[str] = SortedSet()
        for index, data in entries:
            put, delete = _request(data)
            if put is not None:
                live.add(put)
                yield PUT, (put,), len(data)
            elif delete is not None:
                first, behind = delete
                end = None if behind == "\0" else behind
                gone = list(live.irange(first, end, inclusive=(True, False))) if behind else [first]
                live.difference_update(gone)
                yield (DELETE, gone, 0) if gone else nothing_stays(index)
            else:
                yield nothing_stays(index)


def _frames(path: str, *, may_be_torn: bool) -> Iterator[tuple[int, bytes]]:
    """Each record of a file, and where it begins."""
    with open(path, "rb") as file:
        end = os.fstat(file.fileno()).st_size
        while len(head := file.read(_LENGTH.size)) == _LENGTH.size and any(head):
            [word], offset = _LENGTH.unpack(head), file.tell()
            length, padding = word & ((1 << 56) - 1), (word >> 56) & 7 if word >> 63 else 0
            if offset + length + padding > end:
                if may_be_torn:
                    return
                raise CorruptData(path=path, offset=offset, expected=f"a record of {length} bytes",
                                  found="the end of the file")
            yield offset, file.read(length)
            if any(file.read(padding)):
                raise CorruptData(path=path, offset=offset + length, expected="padding of zeros", found="other bytes")


def _is_torn(offset: int, record: bytes) -> bool:
    """Whether a sector of the record was never written."""
    starts = [0, *range(-offset % _SECTOR or _SECTOR, len(record), _SECTOR)]
    return any(not any(record[start:end]) for start, end in zip(starts, [*starts[1:], len(record)], strict=True))


def _request(data: bytes) -> tuple[str | None, tuple[str, str] | None]:
    """The key that a request puts, or the keys that it deletes: the first, and the one behind the last."""
    try:
        put, delete, asked = 4, 5, _pairs(data)
        for number, value in asked:
            if number == 6 and isinstance(value, bytes):
                # A transaction: operations where its comparisons hold are its field 2.
                put, delete = 2, 3
                asked = [each for branch, held in _pairs(value) if branch == 2 and isinstance(held, bytes)
                         for each in _pairs(held)]
                break
        for number, value in asked:
            if number in (put, delete) and isinstance(value, bytes):
                named = dict(_pairs(value))
                key, behind = (_bytes(named, each).decode("latin-1") for each in (1, 2))
                return (key, None) if number == put else (None, (key, behind))
    except _BROKEN:
        # Its checksum is right: it is a command of another kind.
        pass
    return None, None


def _pairs(data: bytes) -> list[tuple[int, object]]:
    """Numbers and values of the fields of a protobuf message, whatever its type."""
    message = Empty()
    message.ParseFromString(data)
    return [(field.field_number, field.data) for field in UnknownFieldSet(message)]


def _number(fields: dict[int, object], number: int) -> int:
    value = fields.get(number)
    if not isinstance(value, int):
        raise ValueError(f"field {number} is no number")
    return value


def _bytes(fields: dict[int, object], number: int) -> bytes:
    value = fields.get(number, b"")
    if not isinstance(value, bytes):
        raise ValueError(f"field {number} is no text")
    return value
