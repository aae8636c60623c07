# SPDX-License-Identifier: Apache-2.0
"""The range format without dependencies: a header, and the bytes whose hash is the id.

Its rows are lists of bytes. docs/formats/staging-range.md describes the file.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Final, Self

from compactlib.errors import CorruptData
from compactlib.files.checksum import crc32
from compactlib.staging.ranges.metarange import LENGTHS_BYTES
from compactlib.staging.ranges.rows import ChangeBatch, Merged, Rows, content_hash, header_of
from compactlib.staging.values import RangeId, Record

MAGIC: Final = b"CLRANG"
VERSION: Final = 1
_COUNT: Final = struct.Struct("<Q")


_HEADER: Final = header_of(MAGIC, VERSION)


class PlainRows:
    """Rows as three lists. A merge bisects once for each change, and copies the rows between two changes as slices."""

    __slots__ = ("_datas", "_ends", "_identities", "_keys")

    def __init__(self, keys: list[bytes], identities: list[bytes], datas: list[bytes]) -> None:
        self._keys: list[bytes] = keys
        self._identities: list[bytes] = identities
        self._datas: list[bytes] = datas
        self._ends: array[int] | None = None

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def size_bytes(self) -> int:
        ends = self.ends()
        return ends[-1] if ends else 0

    def key(self, index: int) -> bytes:
        return self._keys[index]

    def record(self, index: int) -> Record:
        return Record(self._identities[index], self._datas[index])

    def pairs(self, start: int) -> Iterator[tuple[bytes, Record]]:
        for index in range(start, len(self._keys)):
            yield self._keys[index], Record(self._identities[index], self._datas[index])

    def find(self, key: bytes) -> int:
        return bisect_left(self._keys, key)

    def ends(self) -> array[int]:
        if self._ends is None:
            self._ends = array("Q", accumulate(
                LENGTHS_BYTES + len(key) + len(identity) + len(data)
                for key, identity, data in zip(self._keys, self._identities, self._datas, strict=True)))
        return self._ends

    def part(self, start: int, stop: int) -> Self:
        return type(self)(self._keys[start:stop], self._identities[start:stop], self._datas[start:stop])

    def followed_by(self, other: Self) -> Self:
        made = type(self)(self._keys + other._keys, self._identities + other._identities, self._datas + other._datas)
        # The ends are added to, not computed anew, so that repeated appends take linear time.
        made._ends = self.ends() + array("Q", map(self.size_bytes.__add__, other.ends()))
        return made

    def merged(self, changes: ChangeBatch) -> Merged:
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
        return [key for key, value in zip(self._keys, map(crc32, self._keys), strict=True) if value % raggedness == 0]

    def content_id(self) -> RangeId:
        return content_hash(len(self), ((_lengths(column), column) for column in self.columns()))

    def columns(self) -> tuple[list[bytes], list[bytes], list[bytes]]:
        """Keys, identities and data."""
        return self._keys, self._identities, self._datas


def _lengths(column: Sequence[bytes]) -> bytes:
    return struct.pack(f"<{len(column)}I", *map(len, column))


class PlainFormat:
    """Ranges in compactlib's own format, which needs only the standard library.

    For small ranges, for tests, and for hosts without pyarrow. Other tools can read `ParquetFormat`, which also merges
    large ranges many times as fast.
    """

    name: str = "plain"

    def rows(self, pairs: Iterable[tuple[bytes, Record]]) -> PlainRows:
        keys: list[bytes] = []
        identities: list[bytes] = []
        datas: list[bytes] = []
        for key, record in pairs:
            keys.append(key)
            identities.append(record.identity)
            datas.append(record.data)
        return PlainRows(keys, identities, datas)

    def encode(self, rows: Rows, range_id: RangeId) -> bytes:
        own = rows if isinstance(rows, PlainRows) else self.rows(rows.pairs(0))
        pieces = [_HEADER.encode(), _COUNT.pack(len(rows))]
        for column in own.columns():
            pieces.append(_lengths(column))
            pieces += column
        return b"".join(pieces)

    def recognizes(self, data: bytes) -> bool:
        return data[:len(MAGIC)] == MAGIC

    def decode(self, data: bytes, range_id: RangeId, path: str) -> Rows:
        _HEADER.decode_header(data, path)
        found = content_hash(0, ()) if len(data) < _HEADER.size + _COUNT.size else _hash_of_body(data)
        if found != range_id:
            raise CorruptData(path=path, offset=_HEADER.size, expected=f"the content of range {range_id}",
                              found=f"that of {found}")
        count, = _COUNT.unpack_from(data, _HEADER.size)
        at = _HEADER.size + _COUNT.size
        columns: list[list[bytes]] = []
        for _ in range(3):
            places = list(accumulate(struct.unpack_from(f"<{count}I", data, at), initial=at + 4 * count))
            columns.append([data[start:stop] for start, stop in pairwise(places)])
            at = places[-1]
        return PlainRows(*columns)


def _hash_of_body(data: bytes) -> RangeId:
    count, = _COUNT.unpack_from(data, _HEADER.size)
    return content_hash(count, [(memoryview(data)[_HEADER.size + _COUNT.size:], ())])
