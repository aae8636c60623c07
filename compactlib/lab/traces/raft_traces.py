# SPDX-License-Identifier: Apache-2.0
"""Logs of other Raft systems as workloads of the Raft log: what was appended, entry by entry.

| class | reads | keys |
|---|---|---|
| `RaTrace` | segment files of RabbitMQ Ra, versions 1 and 2 | what `key_of` says; a command is any Erlang term |
| `EtcdTrace` | the write-ahead log of etcd 3, `<sequence>-<index>.wal` | those that its puts and deletes name |

Entries have no times: `per_second` of them are taken to come in a second. What a later leader wrote over is left out,
since no machine has seen it. An entry of which nothing stays, such as a change of members, is a delete of a key of its
own: a replay counts `RaftLogSettings.delete_bytes` for it.

A record of etcd's log is a length of 8 bytes, little-endian (the lower 56 bits; with the highest bit the lowest three
of the last byte are padding), a protobuf message of type, CRC-32C and data, and the padding to 8 bytes. The CRC
continues over the data of all records; one of type 4 begins each file with the CRC so far.
"""

from __future__ import annotations

import os
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import ClassVar, TypeAlias

import attrs

from compactlib.errors import CorruptData, InvalidInput
from compactlib.lab.traces.operations import DELETE, FOREVER, PUT, Operations, OperationsBuilder
from compactlib.lab.traces.traces import path_text
from compactlib.lab.traces.workloads import PIECE
from compactlib.raftlog.model.values import DamagedEntry
from compactlib.raftlog.segment.reader import SegmentReader

_Entry: TypeAlias = tuple[int, bytes]
_Command: TypeAlias = tuple[int, str, int]
_LENGTH = struct.Struct("<Q")
_WAL_ENTRY, _WAL_CRC = 2, 4
_BROKEN = (ValueError, IndexError, TypeError)


@attrs.frozen
class _LogTrace(ABC):
    path: str = attrs.field(converter=path_text)
    per_second: float = attrs.field(default=1_000.0, kw_only=True)

    name: ClassVar[str]
    operations: ClassVar[int] = 0
    _suffix: ClassVar[str]

    def __attrs_post_init__(self) -> None:
        if not 0 < self.per_second < float("inf"):
            raise InvalidInput(f"per_second is {self.per_second}; give how many entries come in a second")

    def pieces(self, seed: int) -> Iterator[Operations]:
        """See `Workload.pieces`; the seed changes nothing. Memory: the log.

        Raises:
            CorruptData: there is no such log, or a file of it is damaged.
        """
        paths = [os.path.join(self.path, name) for name in sorted(os.listdir(self.path)) if name.endswith(self._suffix)]
        if not paths:
            raise CorruptData(path=self.path, offset=0, expected=f"files *{self._suffix}", found="no such file")
        entries: list[_Entry] = []
        for entry in self._entries(paths):
            while entries and entries[-1][0] >= entry[0]:
                entries.pop()
            entries.append(entry)
        builder = OperationsBuilder()
        for number, commands in enumerate(self._commands(entries)):
            for kind, key, size in commands:
                builder.add(kind, key, size, FOREVER, int(number * 1000 / self.per_second))
            if len(builder) >= PIECE:
                yield builder.take()
        yield from builder.rest()

    @abstractmethod
    def _entries(self, paths: list[str]) -> Iterator[_Entry]:
        """Index and content of each entry, in the order in which they were written."""

    @abstractmethod
    def _commands(self, entries: Iterable[_Entry]) -> Iterator[list[_Command]]:
        """What each entry asks."""

    def __str__(self) -> str:
        return f"{self.name}({self.path})"


def _nothing_stays(index: int) -> _Command:
    return DELETE, f"\0{index}", 0


@attrs.frozen
class RaTrace(_LogTrace):
    """The segments of a server of RabbitMQ Ra, in a folder of its own.

    Attributes:
        path: the folder, with files `*.segment`.
        key_of: the key that a command writes, of its bytes; `None` of one that keeps nothing. Default each entry has a
            key of its own, and nothing dies. A function of a module, if the trace is to be replayed elsewhere.
        per_second: how many entries come in a second.

    Raises:
        InvalidInput: `per_second` is no such number.
    """

    key_of: Callable[[bytes], str | None] | None = None

    name: ClassVar[str] = "ra"
    _suffix: ClassVar[str] = ".segment"

    def _entries(self, paths: list[str]) -> Iterator[_Entry]:
        for path in paths:
            with SegmentReader(path) as segment:
                if segment.format == "native":
                    raise CorruptData(path=path, offset=0, expected="a segment of Ra", found="one of this library")
                for answer in segment.scan():
                    if isinstance(answer, DamagedEntry):
                        raise answer.error
                    yield answer.index, answer.payload

    def _commands(self, entries: Iterable[_Entry]) -> Iterator[list[_Command]]:
        for index, data in entries:
            key = f"\0{index}" if self.key_of is None else self.key_of(data)
            yield [_nothing_stays(index) if key is None else (PUT, key, max(len(data), 1))]


@attrs.frozen
class EtcdTrace(_LogTrace):
    """The write-ahead log of a member of etcd 3: the puts, deletes and transactions of its clients.

    Of a transaction its first put or delete counts, of those for which its comparisons hold: the log does not say
    whether they did. A delete of a range is one of each key in it. A torn record at the very end is left out. The CRC
    is checked at some megabytes a second.

    Attributes:
        path: the folder `member/wal`.
        per_second: how many entries come in a second.

    Raises:
        InvalidInput: `per_second` is no such number.
    """

    name: ClassVar[str] = "etcd"
    _suffix: ClassVar[str] = ".wal"

    def _entries(self, paths: list[str]) -> Iterator[_Entry]:
        crc = None
        for path in paths:
            for offset, kind, found, data in _records(path, may_be_torn=path == paths[-1]):
                if kind == _WAL_CRC and crc is None:
                    # The log before may be gone: its checksum begins this one's.
                    crc = found
                crc = crc32c(data, crc or 0)
                if found != crc:
                    raise CorruptData(path=path, offset=offset, expected=f"CRC-32C {crc}", found=f"CRC-32C {found}")
                if kind == _WAL_ENTRY:
                    try:
                        fields = dict(_fields(data))
                        index, content = fields[3], fields.get(4, b"")
                        if not isinstance(index, int) or not isinstance(content, bytes):
                            raise ValueError("another type")
                    except (KeyError, *_BROKEN) as error:
                        raise CorruptData(path=path, offset=offset, expected="an entry of Raft",
                                          found=str(error)) from error
                    yield index, b"" if fields.get(1) else content

    def _commands(self, entries: Iterable[_Entry]) -> Iterator[list[_Command]]:
        live: set[str] = set()
        for index, data in entries:
            put, delete = _request(data)
            if put is not None:
                live.add(put)
                yield [(PUT, put, len(data))]
            elif delete is not None:
                first, behind = delete
                gone = sorted(key for key in live if first <= key and (behind == "\0" or key < behind)
                              ) if behind else [first]
                live.difference_update(gone)
                yield [(DELETE, key, 0) for key in gone] or [_nothing_stays(index)]
            else:
                yield [_nothing_stays(index)]


def _records(path: str, *, may_be_torn: bool) -> Iterator[tuple[int, int, int, bytes]]:
    """Offset, type, CRC and data of each record of a file of etcd's log."""
    content = Path(path).read_bytes()
    offset = 0
    while offset + _LENGTH.size <= len(content):
        [word] = _LENGTH.unpack_from(content, offset)
        if not word:
            return
        length, padding = word & ((1 << 56) - 1), (word >> 56) & 7 if word >> 63 else 0
        start = offset + _LENGTH.size
        end = start + length + padding
        if end > len(content):
            if may_be_torn:
                return
            raise CorruptData(path=path, offset=offset, expected=f"a record of {length} bytes",
                              found="the end of the file")
        try:
            fields = dict(_fields(content[start:start + length]))
            kind, crc, data = fields[1], fields[2], fields.get(3, b"")
            if not (isinstance(kind, int) and isinstance(crc, int) and isinstance(data, bytes)):
                raise ValueError("another type")
            if any(content[start + length:end]):
                raise ValueError("padding that is not zero")
        except (KeyError, *_BROKEN) as error:
            raise CorruptData(path=path, offset=offset, expected="a record of type, CRC-32C and data",
                              found=str(error)) from error
        yield offset, kind, crc, data
        offset = end


def _request(data: bytes) -> tuple[str | None, tuple[str, str] | None]:
    """The key that a request puts, or the keys that it deletes: the first, and the one behind the last."""
    try:
        put, delete, operations = 4, 5, list(_fields(data))
        for number, value in operations:
            if number == 6 and isinstance(value, bytes):
                # A transaction: operations where its comparisons hold are its field 2.
                put, delete = 2, 3
                operations = [operation for branch, each in _fields(value) if branch == 2 and isinstance(each, bytes)
                              for operation in _fields(each)]
                break
        for number, value in operations:
            if number in (put, delete) and isinstance(value, bytes):
                fields = {name: each.decode("latin-1") for name, each in _fields(value) if isinstance(each, bytes)}
                key = fields.get(1, "")
                return (key, None) if number == put else (None, (key, fields.get(2, "")))
    except _BROKEN:
        # Its checksum is right: it is a command of another kind.
        pass
    return None, None


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a protobuf message."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        kind = tag & 7
        if kind == 0:
            value, at = _varint(data, at)
            yield tag >> 3, value
            continue
        if kind not in (1, 2, 5):
            raise ValueError(f"a field of wire type {kind}")
        length, at = _varint(data, at) if kind == 2 else (8 if kind == 1 else 4, at)
        if at + length > len(data):
            raise ValueError(f"a field of {length} bytes where {len(data) - at} are left")
        yield tag >> 3, data[at:at + length]
        at += length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def _castagnoli(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
    return byte


_TABLE = [_castagnoli(byte) for byte in range(256)]


def crc32c(data: bytes, value: int = 0) -> int:
    """CRC-32C (Castagnoli) of `data`, continued from `value`. Some megabytes a second."""
    value ^= 0xFFFFFFFF
    for byte in data:
        value = _TABLE[(value ^ byte) & 255] ^ value >> 8
    return value ^ 0xFFFFFFFF
