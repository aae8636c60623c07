# SPDX-License-Identifier: Apache-2.0
"""Records of the update log as bytes: magic, format version, type, payload, and a CRC that covers the key too.

`docs/formats/catalog-log.md` describes them to the byte. A record that was moved to another key, cut, or changed in any
bit is `RecordDamaged`; one that a later release wrote is `RecordTooNew`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from enum import IntEnum
from functools import lru_cache
from typing import Any, TypeVar

import attrs

from compactlib.catalog.errors import ObjectNotFound, RecordDamaged, RecordTooNew
from compactlib.catalog.model.timestamp import Timestamp
from compactlib.catalog.schema.catalog import (
    KINDS,
    Catalog,
    Change,
    DropObject,
    GrowingCatalog,
    PutObject,
    SetDefaultZone,
)
from compactlib.catalog.schema.descriptors import Column, Descriptor, Index, Schema, Table, Zone
from compactlib.errors import InvalidInput
from compactlib.files.checksum import crc32
from compactlib.files.record_frame import RecordFrame

_TYPES: dict[str, type[Any]] = {name: kind for kind, name in KINDS.items()}
_FIELDS = {kind: tuple(field.name for field in attrs.fields(kind)) for kind in (*KINDS, Column)}
_LISTS: dict[type[Any], tuple[str, ...]] = {Schema: (), Zone: ("storage_profiles",), Table: ("primary_key",),
                                           Index: ("columns",)}
_JSON = json.JSONDecoder()

CatalogT = TypeVar("CatalogT", Catalog, GrowingCatalog)
"""What updates are applied to."""


class RecordType(IntEnum):
    """What a record is; the number is stored."""

    FORMAT = 1
    LATEST = 2
    EARLIEST = 3
    UPDATE = 4
    SNAPSHOT = 5
    CHUNKED_SNAPSHOT = 6
    CHUNK = 7
    TERM = 8
    LOW_WATERMARK = 9
    PUBLISHED = 10
    PIN = 11


_RECORD_TYPES = {int(kind): kind for kind in RecordType}


@attrs.frozen(kw_only=True)
class Update:
    """One record of the log: what turns one version into the next.

    Attributes:
        version: the version that it makes.
        commit: when it was appended.
        delay_ms: how long after that it becomes active.
        activation: from when on it is in force: `commit` plus the delay, or later if the one before it is later.
        next_id: the id generator's state after it.
        changes: what it changes, in order.
        writer: a token that no other append has, by which a writer knows its own record.
    """

    version: int
    commit: Timestamp
    delay_ms: int
    activation: Timestamp
    next_id: int
    changes: tuple[Change, ...]
    writer: str = ""

    def applied_to(self, catalog: CatalogT) -> CatalogT:
        """The catalog of this update's version, made from the one before it.

        Raises:
            ObjectNotFound: the update drops what is not there.
        """
        return catalog.apply(self.changes, version=self.version, commit=self.commit, activation=self.activation,
                             next_id=self.next_id)


_UPDATE = frozenset(field.name for field in attrs.fields(Update))


# --- frames -------------------------------------------------------------------------------------------------------


def _damaged(*, path: str, offset: int, expected: str, found: str) -> RecordDamaged:
    return RecordDamaged(key=path, offset=offset, expected=expected, found=found)


def _refused(key: str, name: str, found: int, known: int) -> RecordTooNew:
    return RecordTooNew(key=key, found=found, supported=known)


MAGIC = b"CLCT"
"""What every record begins with."""
_FRAME = RecordFrame("catalog record", MAGIC, 1, "<HHI", damaged=_damaged, refused=_refused)
"""Type and length of the payload, then the payload; the CRC starts from that of the key."""


def seal(key: bytes, kind: RecordType, payload: bytes) -> bytes:
    """The record of this payload, for this key and no other."""
    return _FRAME.encode(kind, len(payload), body=payload, salt=crc32(key))


def unseal(key: bytes, record: bytes, *kinds: RecordType) -> tuple[RecordType, bytes]:
    """The type and payload of a record, which must be of one of these types.

    Raises:
        RecordDamaged: not what `seal` wrote for this key.
        RecordTooNew: a later release wrote it.
    """
    name = key.decode("ascii", "backslashreplace")
    number, length, payload = _FRAME.decode(record, name, salt=crc32(key))
    found = _RECORD_TYPES.get(number)
    if found is None or found not in kinds or length != len(payload):
        raise RecordDamaged(key=name, offset=6, found=f"type {number}, length {length}",
                            expected=f"{' or '.join(kind.name for kind in kinds)}, length {len(payload)}")
    return found, payload


def seal_fields(key: bytes, kind: RecordType, fields: dict[str, Any]) -> bytes:
    """The record of these fields, as JSON in its shortest form with sorted names."""
    return seal(key, kind, to_json(fields))


def unseal_fields(key: bytes, record: bytes, kind: RecordType, *names: str) -> list[Any]:
    """The fields of these names; see `unseal`."""
    return fields_of(key, unseal(key, record, kind)[1], *names)


def to_json(fields: dict[str, Any]) -> bytes:
    """JSON in its shortest form, names sorted, UTF-8: equal fields give equal bytes.

    Raises:
        InvalidInput: a text is not valid Unicode, or JSON has no such value.
    """
    try:
        text = json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"this cannot be stored: {error}; give numbers, texts, and lists of them") from error
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(f"{text[max(error.start - 40, 0):error.end + 1]!r} is not valid Unicode at its end; give "
                           f"text without lone surrogates") from None


def fields_of(key: bytes, payload: bytes, *names: str) -> list[Any]:
    """The fields of these names, which must be all there are.

    Raises:
        RecordDamaged: the payload is something else.
    """
    fields = _parsed(key, payload)
    if not isinstance(fields, dict) or fields.keys() != set(names):
        raise _other_fields(key, names, fields)
    return [fields[name] for name in names]


def _parsed(key: bytes, payload: bytes) -> Any:
    try:
        text = payload.decode()
        fields, end = _JSON.raw_decode(text)
        if end != len(text):
            raise ValueError(f"{len(text) - end} characters too many")
    except (ValueError, RecursionError) as error:
        raise _malformed(key, "JSON", str(error)) from None
    return fields


def _other_fields(key: bytes, names: Iterable[str], found: object) -> RecordDamaged:
    return _malformed(key, f"the fields {', '.join(sorted(names))}",
                      str(sorted(found)) if isinstance(found, dict) else type(found).__name__)


def _malformed(key: bytes, expected: str, found: str) -> RecordDamaged:
    return RecordDamaged(key=key.decode("ascii", "backslashreplace"), offset=_FRAME.header_bytes, expected=expected,
                         found=found[:200])


# --- updates and snapshots ----------------------------------------------------------------------------------------


def encode_update(key: bytes, update: Update) -> bytes:
    """The record of an update."""
    fields = {"version": update.version, "commit": update.commit, "delay_ms": update.delay_ms,
              "activation": update.activation, "next_id": update.next_id, "writer": update.writer,
              "changes": [_change_fields(change) for change in update.changes]}
    return seal_fields(key, RecordType.UPDATE, fields)


def decode_update(key: bytes, payload: bytes) -> Update:
    """The update of a payload.

    Raises:
        RecordDamaged: it is none.
    """
    fields = _parsed(key, payload)
    if not isinstance(fields, dict) or fields.keys() != _UPDATE:
        raise _other_fields(key, _UPDATE, fields)
    try:
        fields["changes"] = tuple(map(_change_of, fields["changes"]))
        return Update(**fields)
    except (TypeError, ValueError, KeyError) as error:
        raise _malformed(key, "changes of a catalog", str(error)) from None


def encode_catalog(catalog: Catalog, writer: str) -> bytes:
    """The payload of a snapshot."""
    return to_json({"version": catalog.version, "commit": catalog.commit, "activation": catalog.activation,
                    "next_id": catalog.next_id, "default_zone": catalog.default_zone, "writer": writer,
                    "objects": [_descriptor_fields(one) for one in catalog.descriptors()]})


def decode_catalog(key: bytes, payload: bytes) -> tuple[Catalog, str]:
    """The catalog of a snapshot, and its writer's token.

    Raises:
        RecordDamaged: the payload is none.
    """
    names = ("version", "commit", "activation", "next_id", "default_zone", "writer", "objects")
    version, commit, activation, next_id, default_zone, writer, objects = fields_of(key, payload, *names)
    try:
        return Catalog.of(map(_descriptor_of, objects), version=version, commit=commit, activation=activation,
                          next_id=next_id, default_zone=default_zone), writer
    except (TypeError, ValueError, KeyError, ObjectNotFound) as error:
        raise _malformed(key, "the objects of a catalog", str(error)) from None


def _change_fields(change: Change) -> dict[str, Any]:
    match change:
        case PutObject(descriptor):
            return {"put": _descriptor_fields(descriptor)}
        case DropObject(kind, object_id):
            return {"drop": kind, "id": object_id}
        case SetDefaultZone(zone_id):
            return {"default_zone": zone_id}


def _change_of(fields: dict[str, Any]) -> Change:
    if "put" in fields:
        return PutObject(_descriptor_of(fields["put"]))
    if "drop" in fields:
        return DropObject(fields["drop"], fields["id"])
    return SetDefaultZone(fields["default_zone"])


def _descriptor_fields(descriptor: Descriptor) -> dict[str, Any]:
    fields = _plain(descriptor)
    if isinstance(descriptor, Table):
        fields["columns"] = list(map(_plain, descriptor.columns))
    return {"kind": KINDS[type(descriptor)], **fields}


def _plain(one: Descriptor | Column) -> dict[str, Any]:
    return {name: getattr(one, name) for name in _FIELDS[type(one)]}


def _descriptor_of(fields: dict[str, Any]) -> Descriptor:
    """The descriptor with these fields, which are not kept."""
    kind = _TYPES[fields.pop("kind")]
    for name in _LISTS[kind]:
        fields[name] = tuple(fields[name])
    if kind is Table:
        fields["columns"] = tuple([_column(**column) for column in fields["columns"]])
    made: Descriptor = kind(**fields)
    return made


@lru_cache(4096, typed=True)
def _column(**fields: Any) -> Column:
    # A long history has the same few columns again and again.
    return Column(**fields)
