# SPDX-License-Identifier: Apache-2.0
"""A map whose versions share structure, so that a hundred thousand catalogs cost what changed between them.

A hash trie with 16 branches a node: changing one entry of a map of n copies about log16(n) small tuples, and both maps
stay whole. The order of iteration depends on the keys alone, not on how the map came about.

>>> one = PersistentMap.of({1: "a", 2: "b"})
>>> two = one.with_entry(3, "c").without(1)
>>> sorted(one.items()), sorted(two.items()), len(two)
([(1, 'a'), (2, 'b')], [(2, 'b'), (3, 'c')], 2)
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any, Final, Generic, TypeVar, final

KeyT = TypeVar("KeyT", int, str)
ValueT = TypeVar("ValueT")

_BITS: Final = 4
_BRANCHES: Final = 1 << _BITS
_BRANCH_MASK: Final = _BRANCHES - 1
_EMPTY_NODE: Final[tuple[Any, ...]] = (None,) * _BRANCHES


class _Leaf:
    """All entries with one hash; nearly always one."""

    __slots__ = ("entries", "hashed")

    def __init__(self, hashed: int, entries: tuple[tuple[Any, Any], ...]) -> None:
        self.hashed = hashed
        self.entries = entries


@final
class PersistentMap(Generic[KeyT, ValueT]):
    """An immutable map from integers (>= 0) or strings; `PersistentMap()` is empty. Maps compare by their entries."""

    __slots__ = ("_count", "_root")

    def __init__(self) -> None:
        self._root: Any = None
        self._count = 0

    @classmethod
    def of(cls, entries: Mapping[KeyT, ValueT]) -> PersistentMap[KeyT, ValueT]:
        """A map of these entries."""
        made: PersistentMap[KeyT, ValueT] = cls()
        for key, value in entries.items():
            made = made.with_entry(key, value)
        return made

    def get(self, key: KeyT) -> ValueT | None:
        """The key's value, or `None`. O(log n)."""
        hashed = _hash(key)
        slot = self._root
        while type(slot) is tuple:
            slot = slot[hashed & _BRANCH_MASK]
            hashed >>= _BITS
        if slot is None:
            return None
        for known, value in slot.entries:
            if known == key:
                return value  # type: ignore[no-any-return]
        return None

    def with_entry(self, key: KeyT, value: ValueT) -> PersistentMap[KeyT, ValueT]:
        """A map with this entry, new or replaced. O(log n)."""
        root, added = _put(self._root, 0, _hash(key), key, value)
        return self._made(root, self._count + added)

    def without(self, key: KeyT) -> PersistentMap[KeyT, ValueT]:
        """A map without this key; this one if the key is absent. O(log n)."""
        if key not in self:
            return self
        return self._made(_cut(self._root, 0, _hash(key), key), self._count - 1)

    def _made(self, root: Any, count: int) -> PersistentMap[KeyT, ValueT]:
        made: PersistentMap[KeyT, ValueT] = PersistentMap.__new__(PersistentMap)
        made._root = root
        made._count = count
        return made

    def items(self) -> Iterator[tuple[KeyT, ValueT]]:
        """All entries."""
        return _entries(self._root)

    def values(self) -> Iterator[ValueT]:
        """All values, in the order of `items`."""
        return (value for _, value in _entries(self._root))

    def __iter__(self) -> Iterator[KeyT]:
        return (key for key, _ in _entries(self._root))

    def __contains__(self, key: KeyT) -> bool:
        return self.get(key) is not None

    def __len__(self) -> int:
        return self._count

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PersistentMap):
            return NotImplemented
        return self._root is other._root or (self._count == other._count and dict(self.items()) == dict(other.items()))

    def __hash__(self) -> int:
        return hash(frozenset(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return PersistentMap.of, (dict(self.items()),)

    def __repr__(self) -> str:
        return f"PersistentMap({self._count} entries)"


def _hash(key: int | str) -> int:
    # Not hash(): that of strings differs from process to process, and with it the order of iteration.
    return key if isinstance(key, int) else zlib.crc32(key.encode())


def _put(slot: Any, shift: int, hashed: int, key: Any, value: Any) -> tuple[Any, bool]:
    """The slot with this entry, and whether the key is new."""
    if slot is None:
        return _Leaf(hashed, ((key, value),)), True
    if type(slot) is _Leaf:
        if slot.hashed == hashed:
            others = tuple([entry for entry in slot.entries if entry[0] != key])
            return _Leaf(hashed, (*others, (key, value))), len(others) == len(slot.entries)
        slot = _replaced(_EMPTY_NODE, (slot.hashed >> shift) & _BRANCH_MASK, slot)
    at = (hashed >> shift) & _BRANCH_MASK
    child, added = _put(slot[at], shift + _BITS, hashed, key, value)
    return _replaced(slot, at, child), added


def _cut(slot: Any, shift: int, hashed: int, key: Any) -> Any:
    if type(slot) is _Leaf:
        others = tuple([entry for entry in slot.entries if entry[0] != key])
        return _Leaf(hashed, others) if others else None
    at = (hashed >> shift) & _BRANCH_MASK
    left = _replaced(slot, at, _cut(slot[at], shift + _BITS, hashed, key))
    if left.count(None) < _BRANCHES - 1:
        return left
    # One leaf alone moves up, so that a map's shape follows from its entries.
    (alone,) = [child for child in left if child is not None]
    return left if type(alone) is tuple else alone


def _replaced(node: tuple[Any, ...], at: int, child: Any) -> tuple[Any, ...]:
    changed = list(node)
    changed[at] = child
    return tuple(changed)


def _entries(slot: Any) -> Iterator[tuple[Any, Any]]:
    if slot is None:
        return iter(())
    if type(slot) is _Leaf:
        return iter(slot.entries)
    return chain.from_iterable(map(_entries, slot))
