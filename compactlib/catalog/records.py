# SPDX-License-Identifier: Apache-2.0
"""Records of the catalog as bytes: magic, format version, type, payload, and a CRC that covers the key too.

`docs/formats/catalog-log.md` describes every byte. A record that was moved to another key, cut, or changed in any bit
raises `CorruptData`; a record of a later release raises `Unsupported`. Values that are replaced by compare-and-set are
in a `Cell` instead, which has its own frame.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import attrs

from compactlib.catalog.keys import piece_key
from compactlib.catalog.schema import Catalog, CatalogTable, Index, Schema, Zone
from compactlib.catalog.timestamp import Timestamp
from compactlib.codec import JsonCodec
from compactlib.errors import CorruptData
from compactlib.files.checksum import crc32
from compactlib.files.record_frame import RecordFrame

T = TypeVar("T")
_FRAME = RecordFrame("catalog record", b"CLCT", 1, "<HHI")
"""Type and length of the payload, then the payload; the CRC starts from that of the key."""
UPDATE, SNAPSHOT, PIECE = 1, 2, 3
"""Types of the records under the keys of versions and of pieces; a piece has bytes as payload, the others JSON."""


def seal(key: bytes, kind: int, payload: bytes) -> bytes:
    """Return the record of a payload; it is valid under this key alone."""
    return _FRAME.encode(kind, len(payload), body=payload, salt=crc32(key))


def unseal(key: bytes, record: bytes, *kinds: int) -> tuple[int, bytes]:
    """Return the type and payload of a record, which must have one of the types `kinds`.

    Raises:
        CorruptData: the record differs from the record that `seal` made for this key.
        Unsupported: a later release wrote the record.
    """
    name = key.decode("ascii", "backslashreplace")
    found, length, payload = _FRAME.decode(record, name, salt=crc32(key))
    if found not in kinds or length != len(payload):
        raise CorruptData(path=name, offset=6, found=f"type {found}, length {length}",
                          expected=f"type {' or '.join(map(str, kinds))}, length {len(payload)}")
    return found, payload


class Record(Generic[T]):
    """A type of records, each with an attrs value of the class `of`."""

    def __init__(self, kind: int, of: type[T]) -> None:
        self._kind = kind
        self._codec = JsonCodec[T](of)

    def seal(self, key: bytes, value: T) -> bytes:
        return seal(key, self._kind, self._codec.encode(value))

    def unseal(self, key: bytes, record: bytes) -> T:
        """Return the value of a record; raises as the function `unseal`."""
        return self._codec.decode(unseal(key, record, self._kind)[1], key.decode("ascii", "backslashreplace"))


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
    """The names and checksum of the pieces of a snapshot.

    Attributes:
        writer: the id of the writer in the keys.
        count: number of pieces.
        size: bytes of all pieces.
        crc: CRC-32 of all pieces, joined.
    """

    writer: str
    count: int
    size: int
    crc: int

    def keys(self, version: int) -> list[bytes]:
        """Return the keys of the pieces."""
        return [piece_key(version, self.writer, number) for number in range(self.count)]


@attrs.frozen(kw_only=True)
class Snapshot:
    """A whole catalog.

    Attributes:
        version, commit, activation, next_id: as in `Catalog`; the times are of the version, not of the snapshot.
        objects: all objects, each after the objects that it refers to.
    """

    version: int
    commit: Timestamp
    activation: Timestamp
    next_id: int
    objects: tuple[Schema | Zone | CatalogTable | Index, ...]


LEASES = Record[Lease](4, Lease)
TIMES = Record[Kept](5, Kept)
TERMS = Record[int](6, int)
SNAPSHOTS = Record[Pieces](SNAPSHOT, Pieces)
_CATALOGS = JsonCodec[Snapshot](Snapshot)


def encode_catalog(catalog: Catalog) -> bytes:
    """Return the bytes of a snapshot."""
    return _CATALOGS.encode(Snapshot(version=catalog.version, commit=catalog.commit, activation=catalog.activation,
                                     next_id=catalog.next_id, objects=tuple(catalog.objects())))


def decode_catalog(data: bytes, place: str) -> Catalog:
    """Return the catalog of a snapshot.

    Raises:
        CorruptData: the bytes are not a catalog.
    """
    found: Any = _CATALOGS.decode(data, place)
    made = Catalog(version=found.version, commit=found.commit, activation=found.activation, next_id=found.next_id)
    for item in found.objects:
        made.put(item)
    return made
