# SPDX-License-Identifier: Apache-2.0
"""What the committed layer needs of a file format for ranges, so that there can be more than one.

`Rows` is a sorted run of records in the format's own memory layout, and does the work that is done once per record:
merging, cutting, hashing, encoding. Everything else is written once, over these protocols.
"""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, Protocol, Self

import attrs

from compactlib.errors import InvalidInput
from compactlib.files.checksum import crc32
from compactlib.staging.errors import NilValue, UnsortedKeys
from compactlib.staging.values import MAX_KEY_BYTES, Change, RangeId, Record, check_key

DIGEST_BYTES: Final = 20
"""Length of an id in bytes; as text it has twice as many hexadecimal digits."""
_RANGE_PURPOSE: Final = b"compactlib.range"


@attrs.frozen
class ChangeBatch:
    """Some changes in a row, their order and their types checked; as columns, because most of the work is on columns.

    Attributes:
        keys: strictly ascending.
        identities: of each key's new record; `None` for a tombstone.
        datas: likewise.
    """

    keys: list[bytes]
    identities: list[bytes | None]
    datas: list[bytes | None]

    @classmethod
    def of(cls, changes: Iterable[tuple[bytes, Change]], *, after: bytes = b"",
           most_bytes: int | None = None) -> Self:
        """Check these changes, which come after those up to the key `after`; none is read on top of so many bytes.

        Raises:
            UnsortedKeys: a key does not lie above the one before.
            NilValue: identity or data of a record are not `bytes`.
            InvalidInput: a key is none.
        """
        keys: list[bytes] = []
        identities: list[bytes | None] = []
        datas: list[bytes | None] = []
        size = 0
        for key, record in changes:
            identity = data = None
            if record is not None:
                identity, data = record.identity, record.data
                if not (type(identity) is type(data) is bytes):
                    raise NilValue(key=key, found=f"{record!r:.100}")
                size += len(identity) + len(data)
            keys.append(key)
            identities.append(identity)
            datas.append(data)
            size += len(key)
            if most_bytes is not None and size >= most_bytes:
                break
        _check_keys(keys, after)
        return cls(keys, identities, datas)

    def part(self, start: int, stop: int) -> Self:
        """The changes from `start` to before `stop`."""
        return type(self)(self.keys[start:stop], self.identities[start:stop], self.datas[start:stop])

    def cut_keys(self, raggedness: int) -> list[bytes]:
        """The keys of its records (not of its tombstones) whose CRC-32 is a multiple of `raggedness`."""
        places = [place for place, value in enumerate(map(crc32, self.keys)) if not value % raggedness]
        return [self.keys[place] for place in places if self.identities[place] is not None]

    def __len__(self) -> int:
        return len(self.keys)


def _check_keys(keys: list[bytes], after: bytes) -> None:
    if not all(keys) or not all(type(key) is bytes for key in keys) or max(map(len, keys), default=0) > MAX_KEY_BYTES:
        for key in keys:
            check_key(key)
    if not all(map(operator.lt, [after, *keys], keys)):
        for previous, found in zip([after, *keys], keys, strict=False):
            if found <= previous:
                raise UnsortedKeys(previous=previous, found=found)


@attrs.frozen
class Merged:
    """Rows with changes made to them.

    Attributes:
        rows: the result.
        added: keys that are new.
        changed: keys with another identity.
        removed: keys that are gone.
    """

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
        """The key of the record at a position."""

    def record(self, index: int) -> Record:
        """The record at a position."""

    def pairs(self, start: int) -> Iterator[tuple[bytes, Record]]:
        """All keys and records from a position on."""

    def find(self, key: bytes) -> int:
        """The position of the first key >= `key`. O(log records)."""

    def ends(self) -> Sequence[int]:
        """For each record, the logical bytes of all records up to it, itself included."""

    def part(self, start: int, stop: int) -> Self:
        """The records from `start` to before `stop`."""

    def followed_by(self, other: Self) -> Self:
        """These records and then the others, whose keys all lie above."""

    def merged(self, changes: ChangeBatch) -> Merged:
        """These records with changes made to them. A record of the same identity stays as it is, data included."""

    def cut_keys(self, raggedness: int) -> list[bytes]:
        """The keys whose CRC-32 is a multiple of `raggedness`."""

    def content_id(self) -> RangeId:
        """The id of these records as one range: see `content_hash`."""


class RangeFormat(Protocol):
    """A file format for ranges. Stateless; threads may share it."""

    @property
    def name(self) -> str:
        """What to call it."""

    @property
    def empty(self) -> Rows:
        """No records."""

    def rows(self, pairs: Iterable[tuple[bytes, Record]]) -> Rows:
        """Records that are known to be sorted."""

    def encode(self, rows: Rows, range_id: RangeId) -> bytes:
        """The file of these rows; those of another format are converted."""

    def recognizes(self, data: bytes) -> bool:
        """Whether this may be a file of this format, by its first bytes."""

    def decode(self, data: bytes, range_id: RangeId, path: str) -> Rows:
        """The rows of a file.

        Raises:
            DamagedRange: the bytes are not those that were written, or those of another range.
            NewerFormat: a newer release wrote them.
        """


def content_hash(count: int, columns: Iterable[tuple[Any, Iterable[Any]]]) -> RangeId:
    """The id of a range: BLAKE2b of 160 bits over a layout that no file format or library version has a say in.

    The layout: the number of records as u64; then for the keys, the identities and the data, in this order: the length
    of each as u32, and after all the lengths the bytes themselves, one after the other. Numbers are little-endian.

    Args:
        count: how many records.
        columns: for each of the three columns: its lengths, and its bytes in any number of pieces.
    """
    digest = hashlib.blake2b(count.to_bytes(8, "little"), digest_size=DIGEST_BYTES, person=_RANGE_PURPOSE)
    for lengths, pieces in columns:
        digest.update(lengths)
        for piece in pieces:
            digest.update(piece)
    return RangeId(digest.hexdigest())


def check_id(text: str) -> bytes:
    """The 20 bytes of an id.

    Raises:
        InvalidInput: it is none.
    """
    try:
        value = bytes.fromhex(text)
    except (ValueError, TypeError):
        value = b""
    if len(value) != DIGEST_BYTES or value.hex() != text:
        raise InvalidInput(f"{text!r} is no id of {2 * DIGEST_BYTES} hexadecimal digits")
    return value
