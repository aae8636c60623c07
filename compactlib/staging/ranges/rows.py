# SPDX-License-Identifier: Apache-2.0
"""The protocols of a file format for ranges.

`Rows` is a sorted run of records in the format's memory layout. It does the work for each record: merging, cutting,
hashing, encoding. The rest of the committed layer is independent of the format.
"""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, Protocol, Self

import attrs

from compactlib.errors import InvalidInput
from compactlib.files.checksum import crc32
from compactlib.files.record_frame import RecordFrame
from compactlib.staging.values import MAX_KEY_BYTES, Change, RangeId, Record, check_key

DIGEST_BYTES: Final = 20
"""Length of an id in bytes; as text it has twice as many hexadecimal digits."""
_RANGE_PURPOSE: Final = b"compactlib.range"


@attrs.frozen
class ChangeBatch:
    """A run of changes as columns, with checked order and types.

    Attributes:
        keys: strictly ascending.
        identities: the identities of each key's new record; `None` for a tombstone.
        datas: the data of each key's new record; `None` for a tombstone.
    """

    keys: list[bytes]
    identities: list[bytes | None]
    datas: list[bytes | None]

    @classmethod
    def of(cls, changes: Iterable[tuple[bytes, Change]], *, after: bytes = b"",
           most_bytes: int | None = None) -> Self:
        """Return a batch of changes with keys above `after`. Stops at `most_bytes`. Raises `InvalidInput`."""
        keys: list[bytes] = []
        identities: list[bytes | None] = []
        datas: list[bytes | None] = []
        size = 0
        add_key, add_identity, add_data = keys.append, identities.append, datas.append
        for key, record in changes:
            add_key(key)
            if record is None:
                add_identity(None)
                add_data(None)
                size += len(key)
            else:
                if type(record) is not Record or not type(record.identity) is type(record.data) is bytes:
                    raise InvalidInput(f"key {key[:100]!r} comes with {record!r:.100} where a record with an "
                                       f"identity was expected")
                identity, data = record.identity, record.data
                add_identity(identity)
                add_data(data)
                size += len(key) + len(identity) + len(data)
            if most_bytes is not None and size >= most_bytes:
                break
        _check_keys(keys, after)
        return cls(keys, identities, datas)

    def part(self, start: int, stop: int) -> Self:
        """Return the changes from `start` to before `stop`."""
        return type(self)(self.keys[start:stop], self.identities[start:stop], self.datas[start:stop])

    def cut_keys(self, raggedness: int) -> list[bytes]:
        """Return the keys of its records (not of its tombstones) whose CRC-32 is a multiple of `raggedness`."""
        places = [place for place, value in enumerate(map(crc32, self.keys)) if not value % raggedness]
        return [self.keys[place] for place in places if self.identities[place] is not None]

    def __len__(self) -> int:
        return len(self.keys)


def _check_keys(keys: list[bytes], after: bytes) -> None:
    if not all(keys) or not {*map(type, keys)} <= {bytes} or max(map(len, keys), default=0) > MAX_KEY_BYTES:
        for key in keys:
            check_key(key)
    if not all(map(operator.lt, [after, *keys], keys)):
        for previous, found in zip([after, *keys], keys, strict=False):
            if found <= previous:
                raise InvalidInput(f"key {found[:100]!r} follows {previous[:100]!r}; keys must ascend strictly; sort "
                                   f"them and drop duplicates")


@attrs.frozen
class Merged:
    """The rows of a merge, and the number of new keys, of keys with another identity, and of removed keys."""

    rows: Rows
    added: int
    changed: int
    removed: int


class Rows(Protocol):
    """A sorted, immutable run of records. Threads may share it."""

    def __len__(self) -> int: ...

    @property
    def size_bytes(self) -> int:
        """Logical size: the sum of `record_bytes`."""

    def key(self, index: int) -> bytes:
        """Return the key of the record at a position."""

    def record(self, index: int) -> Record:
        """Return the record at a position."""

    def pairs(self, start: int) -> Iterator[tuple[bytes, Record]]:
        """Yield all keys and records from a position."""

    def find(self, key: bytes) -> int:
        """Return the position of the first key >= `key`. O(log records)."""

    def ends(self) -> Sequence[int]:
        """Return for each record the logical bytes up to its end."""

    def part(self, start: int, stop: int) -> Self:
        """Return the records from `start` to before `stop`."""

    def followed_by(self, other: Self) -> Self:
        """Return these records followed by others with higher keys."""

    def merged(self, changes: ChangeBatch) -> Merged:
        """Apply changes. A change with the record's identity keeps the record and its data."""

    def cut_keys(self, raggedness: int) -> list[bytes]:
        """Return the keys whose CRC-32 is a multiple of `raggedness`."""

    def content_id(self) -> RangeId:
        """Return the id of these records as a range; see `content_hash`."""


class RangeFormat(Protocol):
    """A file format for ranges. Stateless; threads may share it."""

    @property
    def name(self) -> str:
        """Its name, for messages."""

    def rows(self, pairs: Iterable[tuple[bytes, Record]]) -> Rows:
        """Return the rows of sorted records."""

    def encode(self, rows: Rows, range_id: RangeId) -> bytes:
        """Return the file of rows; converts rows of another format."""

    def recognizes(self, data: bytes) -> bool:
        """Return whether the first bytes are those of a file of this format."""

    def decode(self, data: bytes, range_id: RangeId, path: str) -> Rows:
        """Return the rows of a file.

        Raises:
            CorruptData: the bytes are damaged, or of another range.
            Unsupported: a newer release wrote them.
        """


def header_of(magic: bytes, version: int) -> RecordFrame:
    """Return the frame of the 16 bytes of a file's header: magic, version, zeros, CRC-32."""
    return RecordFrame("file format", magic, version, "<H4x")


def content_hash(count: int, columns: Iterable[tuple[Any, Iterable[Any]]]) -> RangeId:
    """Return the id of a range: BLAKE2b of 160 bits over a layout that is independent of the file format.

    The layout: the number of records as u64; then for the keys, the identities and the data, in this order: the lengths
    as u32, then the concatenated bytes. Numbers are little-endian.

    Args:
        count: number of records.
        columns: for each of the three columns: its lengths, and its bytes in any number of pieces.
    """
    digest = hashlib.blake2b(count.to_bytes(8, "little"), digest_size=DIGEST_BYTES, person=_RANGE_PURPOSE)
    for lengths, pieces in columns:
        digest.update(lengths)
        for piece in pieces:
            digest.update(piece)
    return RangeId(digest.hexdigest())
