# SPDX-License-Identifier: Apache-2.0
"""Records of the catalog as bytes: magic, format version, type, payload, and a CRC that covers the key too.

`docs/formats/catalog-log.md` describes every byte. A record that was moved to another key, cut, or changed in any bit
raises `CorruptData`; a record of a later release raises `Unsupported`. Values that are replaced by compare-and-set are
in a `Cell` instead, which has its own frame.
"""

from __future__ import annotations

from typing import Generic, TypeVar

import attrs

from compactlib.catalog.keys import piece_key
from compactlib.catalog.schema import Update
from compactlib.catalog.timestamp import Timestamp
from compactlib.codec import JsonCodec
from compactlib.errors import CorruptData
from compactlib.files.checksum import crc32
from compactlib.files.record_frame import RecordFrame

T = TypeVar("T")
_FRAME = RecordFrame("catalog record", b"CLCT", 1, "<HHI")
"""Type and length of the payload, then the payload; the CRC starts from that of the key."""
PIECE = 3
"""The type of a piece of a snapshot, with bytes as payload; the other types have JSON."""


def seal(key: bytes, kind: int, payload: bytes) -> bytes:
    """Return the record of a payload; it is valid under this key alone."""
    return _FRAME.encode(kind, len(payload), body=payload, salt=crc32(key))


def unseal(key: bytes, record: bytes, kind: int) -> bytes:
    """Return the payload of a record, which must have this type.

    Raises:
        CorruptData: the record differs from the record that `seal` made for this key.
        Unsupported: a later release wrote the record.
    """
    name = key.decode("ascii", "backslashreplace")
    payload: bytes
    found, length, payload = _FRAME.decode(record, name, salt=crc32(key))
    if found != kind or length != len(payload):
        raise CorruptData(path=name, offset=6, found=f"type {found}, length {length}",
                          expected=f"type {kind}, length {len(payload)}")
    return payload


class Record(Generic[T]):
    """A type of records, each with an attrs value of the class `of`."""

    def __init__(self, kind: int, of: type[T]) -> None:
        self._kind = kind
        self.codec: JsonCodec[T] = JsonCodec(of)

    def seal(self, key: bytes, value: T) -> bytes:
        return seal(key, self._kind, self.codec.encode(value))

    def unseal(self, key: bytes, record: bytes) -> T:
        """Return the value of a record; raises as the function `unseal`."""
        return self.codec.decode(unseal(key, record, self._kind), key.decode("ascii", "backslashreplace"))


@attrs.frozen
class Lease:
    """The lease of the coordinator.

    Attributes:
        term: the term that the takeover began.
        node: the holder's name.
        life: the id of the holder's `LeaseElection` object.
        beat: number of writes by that object.
    """

    term: int
    node: str
    life: str
    beat: int


@attrs.frozen(order=True)
class Kept:
    """The published time of a partition on a node; ordered by incarnation, then by time."""

    incarnation: int
    time: Timestamp


@attrs.frozen
class Pieces:
    """The names of the pieces of a snapshot, which are the JSON of an update, the whole catalog.

    Attributes:
        writer: the id of the writer in the keys.
        count: number of pieces.
    """

    writer: str
    count: int

    def keys(self, version: int) -> list[bytes]:
        """Return the keys of the pieces."""
        return [piece_key(version, self.writer, number) for number in range(self.count)]


UPDATES = Record[Update](1, Update)
SNAPSHOTS = Record[Pieces](2, Pieces)
LEASES = Record[Lease](4, Lease)
TIMES = Record[Kept](5, Kept)
TERMS = Record[int](6, int)
