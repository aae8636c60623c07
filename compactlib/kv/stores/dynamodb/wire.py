# SPDX-License-Identifier: Apache-2.0
"""How a store lies in a DynamoDB table, and its conditions as DynamoDB's expressions.

An item is a cell: `p` the partition (hash key), `k` the key (range key), `v` the value, `n` the 16 bytes that
distinguish this write from all others; all binary. Two parts of a key of their own cannot run together.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs

from compactlib.files.checksum import crc32
from compactlib.kv.store import EXISTS, KVEntry, Predicate, Transaction, Versioned

KEY_SCHEMA = [{"AttributeName": "p", "KeyType": "HASH"}, {"AttributeName": "k", "KeyType": "RANGE"}]
ATTRIBUTES = [{"AttributeName": "p", "AttributeType": "B"}, {"AttributeName": "k", "AttributeType": "B"}]
VERSION_BYTES = 16
MAX_KEY_BYTES = 1024

_NO_VERSION = b"\0"
"""Shorter than any version, so no item has it."""


class ForeignItem(ValueError):
    """An item that no store of this library has written."""


def is_whole(headers: Mapping[str, str], body: bytes) -> bool:
    """Whether an answer came as it was sent: by its checksum, or as JSON if a server of other make gives none."""
    stated = headers.get("x-amz-crc32")
    if stated is not None:
        return stated == str(crc32(body))
    try:
        return isinstance(json.loads(body), dict)
    except (ValueError, RecursionError):
        return False


def key_of(partition: bytes, key: bytes) -> dict[str, Any]:
    """The primary key of a cell's item."""
    return {"p": {"B": partition}, "k": {"B": key}}


def item_of(partition: bytes, key: bytes, value: bytes, version: bytes) -> dict[str, Any]:
    """A cell's item."""
    return {**key_of(partition, key), "v": {"B": value}, "n": {"B": version}}


def cell_in(item: Mapping[str, Any]) -> Versioned:
    """The value and the predicate of an item.

    Raises:
        ForeignItem: it has none.
    """
    try:
        value, version = bytes(item["v"]["B"]), bytes(item["n"]["B"])
    except (LookupError, TypeError) as error:
        raise ForeignItem(f"the item {item['k']['B']!r} has not the attributes 'v' and 'n' of bytes") from error
    if len(version) != VERSION_BYTES:
        raise ForeignItem(f"the item {item['k']['B']!r} has a version of {len(version)} bytes, not {VERSION_BYTES}")
    return Versioned(value, version)


def entry_in(item: Mapping[str, Any]) -> KVEntry:
    """The entry of a scan.

    Raises:
        ForeignItem: see `cell_in`.
    """
    cell = cell_in(item)
    return KVEntry(bytes(item["k"]["B"]), cell.value, cell.predicate)


def name_in(item: Mapping[str, Any]) -> KVEntry:
    """The entry of a scan that did not ask for the value.

    Raises:
        ForeignItem: see `cell_in`.
    """
    return entry_in({**item, "v": {"B": b""}})


def from_position(partition: bytes, position: bytes) -> dict[str, Any]:
    """The part of a query that names the keys of a partition from `position` on, which may be longer than any key."""
    values = {":p": {"B": partition}}
    if not position:
        return {"KeyConditionExpression": "p = :p", "ExpressionAttributeValues": values}
    # What no key is long enough to be lies right behind its own beginning.
    compared = ">=" if len(position) <= MAX_KEY_BYTES else ">"
    return {"KeyConditionExpression": f"p = :p AND k {compared} :k",
            "ExpressionAttributeValues": {**values, ":k": {"B": position[:MAX_KEY_BYTES]}}}


def demand(predicates: Sequence[Predicate | None]) -> dict[str, Any]:
    """The part of a write that demands all these states of its item; with none of them, nothing."""
    texts: list[str] = []
    values: dict[str, Any] = {}
    for number, predicate in enumerate(predicates):
        if predicate is None:
            texts.append("attribute_not_exists(p)")
        elif predicate is EXISTS:
            texts.append("attribute_exists(p)")
        else:
            texts.append(f"n = :n{number}")
            values[f":n{number}"] = {"B": predicate if _is_version(predicate) else _NO_VERSION}
    if not texts:
        return {}
    demanded: dict[str, Any] = {"ConditionExpression": " AND ".join(texts),
                                "ReturnValuesOnConditionCheckFailure": "ALL_OLD"}
    return {**demanded, "ExpressionAttributeValues": values} if values else demanded


def holds(predicate: Predicate | None, version: bytes | None) -> bool:
    """Whether a condition holds for a version; `None` is that of a key that is not there."""
    if version is None:
        return predicate is None
    return predicate is EXISTS or (_is_version(predicate) and predicate == version)


def _is_version(predicate: Predicate | None) -> bool:
    return isinstance(predicate, bytes) and len(predicate) == VERSION_BYTES


@attrs.define
class _Cell:
    """All that one transaction has to do with one cell, which DynamoDB lets it name only once."""

    predicates: list[Predicate | None] = attrs.Factory(list)
    changes: bool = False
    value: bytes | None = None


@attrs.frozen
class Request:
    """A transaction as DynamoDB takes it.

    Attributes:
        items: one for each cell.
        cells: their partitions and keys.
    """

    items: list[dict[str, Any]]
    cells: list[tuple[bytes, bytes]]

    @classmethod
    def of(cls, transaction: Transaction, table: str, versions: Iterable[bytes]) -> Request:
        """The request for a transaction; takes a version for each put."""
        cells: dict[tuple[bytes, bytes], _Cell] = {}
        for partition, key, predicate in transaction.conditions:
            cells.setdefault((partition, key), _Cell()).predicates.append(predicate)
        for partition, key, value in transaction.changes:
            cell = cells.setdefault((partition, key), _Cell())
            cell.changes, cell.value = True, value
        unused = iter(versions)
        items: list[dict[str, Any]] = []
        for name, cell in cells.items():
            demanded = {"TableName": table, **demand(cell.predicates)}
            if not cell.changes:
                items.append({"ConditionCheck": {"Key": key_of(*name), **demanded}})
            elif cell.value is None:
                items.append({"Delete": {"Key": key_of(*name), **demanded}})
            else:
                items.append({"Put": {"Item": item_of(*name, cell.value, next(unused)), **demanded}})
        return cls(items, list(cells))

    def first_failed(self, transaction: Transaction,
                     reasons: Sequence[Mapping[str, Any]]) -> tuple[bytes, bytes] | None:
        """The cell of the first condition that did not hold, by the reasons that DynamoDB gives, one for each item;
        `None` if it was none of the conditions."""
        failed = {cell: _version_in(reason.get("Item")) for cell, reason in zip(self.cells, reasons, strict=True)
                  if reason.get("Code") == "ConditionalCheckFailed"}
        for partition, key, predicate in transaction.conditions:
            if (partition, key) in failed and not holds(predicate, failed[partition, key]):
                return partition, key
        return next(iter(failed), None)


def _version_in(item: Mapping[str, Any] | None) -> bytes | None:
    return None if item is None else bytes(item.get("n", {}).get("B", b""))
