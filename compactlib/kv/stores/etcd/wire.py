# SPDX-License-Identifier: Apache-2.0
"""How a store lies in etcd's one flat space of keys, and the requests for it as etcd's JSON gateway takes them.

The cell (partition, key) is the etcd key `root + length of partition (2 bytes, big-endian) + partition + key`: no pair
is another pair, and the keys of a partition lie together in their own order. The empty partition, which no user can
name, holds the schema's version. Numbers of 64 bits travel as text, bytes as base64.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from compactlib.kv.store import EXISTS, KVEntry, Predicate

_LENGTH = struct.Struct(">H")


@attrs.frozen
class Revision:
    """The predicate of a key in etcd: the revision of the whole store at which the key was last written.

    Revisions only grow, deletes included, so a key never has the same one again.

    Attributes:
        mod_revision: etcd's number, 1 or more.
    """

    mod_revision: int


@attrs.frozen
class KeySpace:
    """The part of etcd's keys that one store has.

    Attributes:
        root: what all its keys begin with; not empty.
    """

    root: bytes

    @property
    def schema(self) -> bytes:
        """Where the schema's version is."""
        return self.of_partition(b"") + b"schema"

    def of_partition(self, partition: bytes) -> bytes:
        """What the keys of a partition begin with."""
        return self.root + _LENGTH.pack(len(partition)) + partition

    def cell_of(self, name: bytes) -> tuple[bytes, bytes]:
        """The inverse of `of_partition(partition) + key`.

        Raises:
            ValueError: this is no key of the store.
        """
        inside = name.removeprefix(self.root)
        if len(inside) < _LENGTH.size or len(inside) == len(name):
            raise ValueError(f"{name!r} does not begin as a key of this store")
        length, = _LENGTH.unpack_from(inside)
        partition, key = inside[_LENGTH.size:_LENGTH.size + length], inside[_LENGTH.size + length:]
        if len(partition) < length or not key:
            raise ValueError(f"{name!r} ends within its partition")
        return partition, key


def end_of(prefix: bytes) -> bytes:
    """The first name behind all that begin with `prefix`; if there is none a zero byte, etcd's word for the end."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else b"\0"


def read(name: bytes, end: bytes | None = None, *, limit: int = 0, keys_only: bool = False) -> dict[str, Any]:
    """A range request: one key, or all from `name` to below `end`, ascending."""
    request: dict[str, Any] = {"key": _text(name)}
    if end is not None:
        request |= {"range_end": _text(end), "limit": limit}
    if keys_only:
        request["keys_only"] = True
    return request


def put(name: bytes, value: bytes) -> dict[str, Any]:
    """A put request."""
    return {"key": _text(name), "value": _text(value)}


def delete(name: bytes) -> dict[str, Any]:
    """A delete request; for a key that is not there too."""
    return {"key": _text(name)}


def change(name: bytes, value: bytes | None) -> dict[str, Any]:
    """One change of a transaction: a put, or a delete if the value is `None`."""
    return {"request_delete_range": delete(name)} if value is None else {"request_put": put(name, value)}


def compare(name: bytes, predicate: Predicate | None) -> dict[str, Any]:
    """One condition of a transaction. A predicate that etcd did not give out never holds."""
    if predicate is None or predicate is EXISTS:
        return {"key": _text(name), "target": "CREATE", "create_revision": "0",
                "result": "EQUAL" if predicate is None else "GREATER"}
    # A key that is not there counts as one of revision 0, and none is below that.
    revision = predicate.mod_revision if type(predicate) is Revision and predicate.mod_revision > 0 else -1
    return {"key": _text(name), "target": "MOD", "mod_revision": str(revision), "result": "EQUAL"}


def holds(predicate: Predicate | None, found: Mapping[str, Any] | None) -> bool:
    """Whether a condition holds for what was found under its key."""
    if found is None:
        return predicate is None
    return predicate is EXISTS or predicate == revision_of(found)


def entries_of(reply: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """What a range request found; protobuf leaves an empty list out."""
    found: Sequence[Mapping[str, Any]] = reply.get("kvs", ())
    return found


def name_of(found: Mapping[str, Any]) -> bytes:
    """The key of what was found."""
    return base64.b64decode(found["key"])


def value_of(found: Mapping[str, Any]) -> bytes:
    """The value of what was found; protobuf leaves an empty one out."""
    return base64.b64decode(found.get("value", ""))


def revision_of(found: Mapping[str, Any]) -> Revision:
    """The predicate of what was found."""
    return Revision(int(found["mod_revision"]))


def entry_of(found: Mapping[str, Any], skip: int) -> KVEntry:
    """One entry of a scan, its key without the first `skip` bytes."""
    return KVEntry(name_of(found)[skip:], value_of(found), revision_of(found))


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
