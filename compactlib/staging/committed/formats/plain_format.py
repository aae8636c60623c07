"""The range format that needs no other package: the very bytes that the id is the hash of, behind a header.

Its rows are lists of bytes. The file is described in docs/formats/staging-range.md.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Final, Self

from compactlib.files.checksum import crc32
from compactlib.staging.committed.formats.rows import ChangeBatch, Merged, Rows, content_hash
from compactlib.staging.committed.formats.split import LENGTHS_BYTES
from compactlib.staging.errors import DamagedRange, NewerFormat
from compactlib.staging.model.values import RangeId, Record

MAGIC: Final = b"CLRANG"
VERSION: Final = 1
HEADER: Final = struct.Struct("<6sHII")
"""Magic, version, zero, CRC-32 of the twelve bytes before."""
_COUNT: Final = struct.Struct("<Q")


def encode_header(magic: bytes, version: int) -> bytes:
    """The 16 bytes that open a file of ours."""
    head = HEADER.pack(magic, version, 0, 0)[:-4]
    return head + crc32(head).to_bytes(4, "little")


def check_header(data: bytes, *, magic: bytes, newest: int, path: str) -> None:
    """Pass the header of a file.

    Raises:
        DamagedRange: it is none of this kind, or its checksum fails.
        NewerFormat: its version is above `newest`.
    """
    if len(data) < HEADER.size:
        raise DamagedRange(path=path, offset=0, expected=f"a header of {HEADER.size} bytes", found=f"{len(data)} bytes")
    found, version, zero, checksum = HEADER.unpack_from(data)
    if found != magic:
        raise DamagedRange(path=path, offset=0, expected=f"a file that begins with {magic!r}", found=repr(found))
    computed = crc32(data[:HEADER.size - 4])
    if computed != checksum:
        raise DamagedRange(path=path, offset=HEADER.size - 4, expected=f"the header's CRC-32 {computed:#010x}",
                           found=f"{checksum:#010x}")
    if version > newest:
        raise NewerFormat(path=path, version=version, newest=newest)
    if version < 1 or zero:
        raise DamagedRange(path=path, offset=6, expected="version 1 and no flags", found=f"{version} and {zero:#x}")


class PlainRows:
    """Rows as three lists. Merging costs a bisection a change, and copies the rest in blocks."""

    __slots__ = ("_datas", "_ends", "_identities", "_keys")

    def __init__(self, keys: list[bytes], identities: list[bytes], datas: list[bytes]) -> None:
        self._keys: list[bytes] = keys
        self._identities: list[bytes] = identities
        self._datas: list[bytes] = datas
        self._ends: list[int] | None = None

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def size_bytes(self) -> int:
        """See `Rows.size_bytes`."""
        ends = self.ends()
        return ends[-1] if ends else 0

    def key(self, index: int) -> bytes:
        """See `Rows.key`."""
        return self._keys[index]

    def record(self, index: int) -> Record:
        """See `Rows.record`."""
        return Record(self._identities[index], self._datas[index])

    def pairs(self, start: int) -> Iterator[tuple[bytes, Record]]:
        """See `Rows.pairs`."""
        for index in range(start, len(self._keys)):
            yield self._keys[index], Record(self._identities[index], self._datas[index])

    def find(self, key: bytes) -> int:
        """See `Rows.find`."""
        return bisect_left(self._keys, key)

    def ends(self) -> list[int]:
        """See `Rows.ends`."""
        if self._ends is None:
            self._ends = list(accumulate(
                LENGTHS_BYTES + len(key) + len(identity) + len(data)
                for key, identity, data in zip(self._keys, self._identities, self._datas, strict=True)))
        return self._ends

    def part(self, start: int, stop: int) -> Self:
        """See `Rows.part`."""
        return type(self)(self._keys[start:stop], self._identities[start:stop], self._datas[start:stop])

    def followed_by(self, other: Self) -> Self:
        """See `Rows.followed_by`."""
        return type(self)(self._keys + other._keys, self._identities + other._identities, self._datas + other._datas)

    def merged(self, changes: ChangeBatch) -> Merged:
        """See `Rows.merged`."""
        keys: list[bytes] = []
        identities: list[bytes] = []
        datas: list[bytes] = []
        added = changed = removed = 0
        at = 0
        for key, identity, data in zip(changes.keys, changes.identities, changes.datas, strict=True):
            place = bisect_left(self._keys, key, at)
            there = place < len(self._keys) and self._keys[place] == key
            same = there and self._identities[place] == identity
            copied = place + same
            keys += self._keys[at:copied]
            identities += self._identities[at:copied]
            datas += self._datas[at:copied]
            at = place + there
            if identity is None or data is None:
                removed += there
            elif not same:
                keys.append(key)
                identities.append(identity)
                datas.append(data)
                changed += there
                added += not there
        keys += self._keys[at:]
        identities += self._identities[at:]
        datas += self._datas[at:]
        return Merged(PlainRows(keys, identities, datas), added, changed, removed)

    def cut_keys(self, raggedness: int) -> list[bytes]:
        """See `Rows.cut_keys`."""
        return [key for key, value in zip(self._keys, map(crc32, self._keys), strict=True) if value % raggedness == 0]

    def content_id(self) -> RangeId:
        """See `Rows.content_id`."""
        return content_hash(len(self), ((_lengths(column), column) for column in self.columns()))

    def columns(self) -> tuple[list[bytes], list[bytes], list[bytes]]:
        """Keys, identities and data."""
        return self._keys, self._identities, self._datas

    def __repr__(self) -> str:
        return f"<PlainRows: {len(self):,} records>"


def _lengths(column: Sequence[bytes]) -> bytes:
    return struct.pack(f"<{len(column)}I", *map(len, column))


class PlainFormat:
    """Ranges in our own format, with nothing but the standard library.

    For small ranges, for tests, and for hosts without pyarrow;
    `compactlib.staging.committed.formats.parquet.ParquetFormat` is the one
    that other tools can read, and merges large ranges many times as fast.
    """

    name: str = "plain"
    empty: Rows = PlainRows([], [], [])

    def rows(self, pairs: Iterable[tuple[bytes, Record]]) -> PlainRows:
        """See `RangeFormat.rows`."""
        keys: list[bytes] = []
        identities: list[bytes] = []
        datas: list[bytes] = []
        for key, record in pairs:
            keys.append(key)
            identities.append(record.identity)
            datas.append(record.data)
        return PlainRows(keys, identities, datas)

    def encode(self, rows: Rows, range_id: RangeId) -> bytes:
        """See `RangeFormat.encode`."""
        own = rows if isinstance(rows, PlainRows) else self.rows(rows.pairs(0))
        pieces = [encode_header(MAGIC, VERSION), _COUNT.pack(len(rows))]
        for column in own.columns():
            pieces.append(_lengths(column))
            pieces += column
        return b"".join(pieces)

    def recognizes(self, data: bytes) -> bool:
        """See `RangeFormat.recognizes`."""
        return data[:len(MAGIC)] == MAGIC

    def decode(self, data: bytes, range_id: RangeId, path: str) -> Rows:
        """See `RangeFormat.decode`. The whole content is hashed and compared with the id."""
        check_header(data, magic=MAGIC, newest=VERSION, path=path)
        found = content_hash(0, ()) if len(data) < HEADER.size + _COUNT.size else _hash_of_body(data)
        if found != range_id:
            raise DamagedRange(path=path, offset=HEADER.size, expected=f"the content of range {range_id}",
                               found=f"that of {found}")
        count, = _COUNT.unpack_from(data, HEADER.size)
        at = HEADER.size + _COUNT.size
        columns: list[list[bytes]] = []
        for _ in range(3):
            places = list(accumulate(struct.unpack_from(f"<{count}I", data, at), initial=at + 4 * count))
            columns.append([data[start:stop] for start, stop in pairwise(places)])
            at = places[-1]
        return PlainRows(*columns)


def _hash_of_body(data: bytes) -> RangeId:
    count, = _COUNT.unpack_from(data, HEADER.size)
    return content_hash(count, [(memoryview(data)[HEADER.size + _COUNT.size:], ())])
