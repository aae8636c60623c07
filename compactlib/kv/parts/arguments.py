# SPDX-License-Identifier: Apache-2.0
"""The checks that every store makes of its arguments, in the order that the conformance kit demands."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

import attrs

from compactlib._arguments import require_whole
from compactlib.errors import InvalidInput
from compactlib.kv.errors import BatchSizeTooBig, MissingKey, MissingPartitionKey, MissingValue, TooLarge
from compactlib.kv.store import Condition, Delete, KVLimits, Predicate, Put

if TYPE_CHECKING:
    from typing_extensions import Buffer

PartT = TypeVar("PartT")
_MOST_ENTRIES = 1_000_000


def checked_partition(partition: bytes, limits: KVLimits) -> bytes:
    """The partition as bytes of its own.

    Raises:
        MissingPartitionKey: it is empty or `None`.
        InvalidInput: it is not bytes.
        TooLarge: it is longer than the store takes.
    """
    _require(partition, MissingPartitionKey, "a partition was not named; give at least one byte")
    return _checked("partition", partition, limits.max_partition_bytes)


def checked_cell(partition: bytes, key: bytes, limits: KVLimits) -> tuple[bytes, bytes]:
    """Partition and key as bytes of their own.

    Raises:
        MissingPartitionKey, MissingKey, InvalidInput, TooLarge: see `KVStore`.
    """
    _require(partition, MissingPartitionKey, "a partition was not named; give at least one byte")
    _require(key, MissingKey, "a key was not named; give at least one byte")
    return (_checked("partition", partition, limits.max_partition_bytes),
            _checked("key", key, limits.max_key_bytes))


def checked_cells(cells: Iterable[tuple[bytes, bytes]], limits: KVLimits) -> list[tuple[bytes, bytes]]:
    """The arguments of `get_many`.

    Raises:
        MissingPartitionKey, MissingKey, InvalidInput, TooLarge, BatchSizeTooBig: see `MultiGet.get_many`.
    """
    checked: list[tuple[bytes, bytes]] = []
    for cell in _each(cells, "(partition, key)"):
        if not _is_pair(cell):
            raise InvalidInput(f"{cell!r:.100} was given among the cells to read; give (partition, key)")
        checked.append(checked_cell(*cell, limits))
    if len(checked) > limits.max_get_many:
        raise BatchSizeTooBig(size=len(checked), limit=limits.max_get_many)
    if len(set(checked)) < len(checked):
        raise InvalidInput("a cell is to be read twice in one request; name it once")
    return checked


def checked_put(partition: bytes, key: bytes, value: Buffer, limits: KVLimits) -> tuple[bytes, bytes, bytes]:
    """Partition, key and value as bytes of their own.

    Raises:
        MissingPartitionKey, MissingKey, MissingValue, InvalidInput, TooLarge: see `KVStore`.
    """
    _require(partition, MissingPartitionKey, "a partition was not named; give at least one byte")
    _require(key, MissingKey, "a key was not named; give at least one byte")
    if value is None:
        raise MissingValue('the value is None; an empty value is b"", and a key is removed by delete()')
    return (_checked("partition", partition, limits.max_partition_bytes),
            _checked("key", key, limits.max_key_bytes),
            _checked("value", value, limits.max_value_bytes))


def checked_present(predicate: Predicate | None) -> Predicate:
    """The predicate of a conditional delete.

    Raises:
        InvalidInput: it is `None`.
    """
    if predicate is None:
        raise InvalidInput("a delete was given the predicate None (the key must not exist), so there is nothing to "
                           "delete; give EXISTS, or the predicate that get() found")
    return predicate


def checked_largest_page(page_size: int) -> int:
    """The most entries of a page, as a store's constructor takes it; no page has more than a million.

    Raises:
        InvalidInput: it is no whole number, or less than 1.
    """
    require_whole("page_size", page_size, 1)
    return min(page_size, _MOST_ENTRIES)


def checked_page_size(page_size: int | None, largest: int) -> int:
    """The size of a scan's first page.

    Raises:
        InvalidInput: it is less than 1.
    """
    if page_size is None:
        return largest
    if type(page_size) is not int or page_size < 1:
        raise InvalidInput(f"a page of {page_size!r} entries was asked for; give at least 1")
    return min(page_size, largest)


def checked_bytes(what: str, value: Buffer) -> bytes:
    """`value` as bytes of its own; may be empty.

    Raises:
        InvalidInput: it is not bytes.
    """
    if isinstance(value, bytes):
        return value
    if isinstance(value, bytearray | memoryview):
        try:
            return bytes(value)
        except ValueError as error:
            raise InvalidInput(f"a {what} was given as {value!r}: {error}") from error
    raise InvalidInput(f"a {what} of type {type(value).__name__} was given; keys and values are bytes, encode it first")


@attrs.frozen
class Transaction:
    """A `transact` whose arguments were checked.

    Attributes:
        conditions: (partition, key, predicate).
        changes: (partition, key, value), the value `None` for a delete; no key twice.
    """

    conditions: Sequence[tuple[bytes, bytes, Predicate | None]]
    changes: Sequence[tuple[bytes, bytes, bytes | None]]


def checked_transaction(conditions: Iterable[Condition], puts: Iterable[Put], deletes: Iterable[Delete],
                        limits: KVLimits) -> Transaction:
    """The arguments of `transact`.

    Raises:
        MissingPartitionKey, MissingKey, MissingValue, InvalidInput, TooLarge, BatchSizeTooBig: see `KVStore.transact`.
    """
    demanded = [(*checked_cell(one.partition, one.key, limits), one.predicate)
                for one in all_of(Condition, conditions)]
    changes: list[tuple[bytes, bytes, bytes | None]] = []
    changes += (checked_put(put.partition, put.key, put.value, limits) for put in all_of(Put, puts))
    changes += ((*checked_cell(one.partition, one.key, limits), None) for one in all_of(Delete, deletes))
    size = len(demanded) + len(changes)
    if size > limits.max_transact:
        raise BatchSizeTooBig(size=size, limit=limits.max_transact)
    seen: set[tuple[bytes, bytes]] = set()
    for partition, key, _ in changes:
        if (partition, key) in seen:
            raise InvalidInput(f"key {key!r} in partition {partition!r} is to be put or deleted twice in one "
                               f"transaction; name it once")
        seen.add((partition, key))
    return Transaction(demanded, changes)


def all_of(kind: type[PartT], parts: Iterable[PartT]) -> Iterator[PartT]:
    """The parts of a transaction that are of one kind.

    Raises:
        InvalidInput: one is something else, or there is no list of them.
    """
    for part in _each(parts, kind.__name__):
        if not isinstance(part, kind):
            raise InvalidInput(f"{part!r} was given among the parts of a transaction; give a {kind.__name__}")
        yield part


def _each(items: Iterable[PartT], wanted: str) -> Iterator[PartT]:
    try:
        return iter(items)
    except (TypeError, ValueError):  # a view that was released
        raise InvalidInput(f"{items!r:.100} was given; give a list of {wanted}") from None


def _is_pair(cell: object) -> bool:
    return isinstance(cell, tuple | list) and len(cell) == 2


def _require(name: object, missing: type[InvalidInput], message: str) -> None:
    # What is of a wrong type is said after all that is missing.
    if name is None or (isinstance(name, bytes | bytearray | str) and not name) or (
            isinstance(name, memoryview) and _is_empty(name)):
        raise missing(message)


def _is_empty(view: memoryview) -> bool:
    try:
        return not view.nbytes
    except ValueError:  # it was released
        return False


def _checked(what: str, value: Buffer, limit_bytes: int) -> bytes:
    data = checked_bytes(what, value)
    if len(data) > limit_bytes:
        raise TooLarge(what=what, size_bytes=len(data), limit_bytes=limit_bytes)
    return data
