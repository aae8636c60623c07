# SPDX-License-Identifier: Apache-2.0
"""A map whose versions share structure, so that a hundred thousand catalogs cost what changed between them.

A hash trie with 16 branches a node: changing one entry of a map of n copies about log16(n) small lists, and both maps
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
from typing import Any, Final, Generic, TypeAlias, TypeVar, final

KeyT = TypeVar("KeyT", int, str)
ValueT = TypeVar("ValueT")

_BITS: Final = 4
_BRANCHES: Final = 1 << _BITS
_BRANCH_MASK: Final = _BRANCHES - 1
_Leaf: TypeAlias = tuple[int, Any, Any, tuple[tuple[Any, Any], ...]]
"""A hash, a key that has it, its value, and the other entries with that hash; there are nearly never any."""
_Node: TypeAlias = list[Any]
"""A slot a branch: a node, a leaf or `None`. Never changed once a map has it."""
_EMPTY_NODE: Final[_Node] = [None] * _BRANCHES


@final
class PersistentMap(Generic[KeyT, ValueT]):
    """An immutable map from integers (>= 0) or strings; `PersistentMap()` is empty. Maps compare by their entries."""

    __slots__ = ("_count", "_root")

    def __init__(self) -> None:
        self._root: Any = None
        self._count = 0

    @classmethod
    def of(cls, entries: Mapping[KeyT, ValueT]) -> PersistentMap[KeyT, ValueT]:
        """A map of these entries. O(n)."""
        made: PersistentMap[KeyT, ValueT] = cls()
        for key, value in entries.items():
            hashed = _hash(key)
            path, leaf = made._path(hashed)
            slot, _ = _put(leaf, len(path) * _BITS, hashed, key, value)
            if path:
                node, at = path[-1]
                node[at] = slot  # nobody else has these nodes yet
            else:
                made._root = slot
        made._count = len(entries)
        return made

    def get(self, key: KeyT) -> ValueT | None:
        """The key's value, or `None`. O(log n)."""
        hashed = _hash(key)
        slot = self._root
        while type(slot) is list:
            slot = slot[hashed & _BRANCH_MASK]
            hashed >>= _BITS
        return next((value for known, value in _in_leaf(slot) if known == key), None)

    def with_entry(self, key: KeyT, value: ValueT) -> PersistentMap[KeyT, ValueT]:
        """A map with this entry, new or replaced. O(log n)."""
        hashed = _hash(key)
        path, leaf = self._path(hashed)
        slot, added = _put(leaf, len(path) * _BITS, hashed, key, value)
        for node, at in reversed(path):
            slot = _replaced(node, at, slot)
        return self._made(slot, self._count + added)

    def without(self, key: KeyT) -> PersistentMap[KeyT, ValueT]:
        """A map without this key; this one if the key is absent. O(log n)."""
        path, leaf = self._path(_hash(key))
        entries = _in_leaf(leaf)
        others: list[tuple[Any, Any]] = [entry for entry in entries if entry[0] != key]
        if leaf is None or len(others) == len(entries):
            return self
        slot: Any = (leaf[0], *others[0], tuple(others[1:])) if others else None
        for node, at in reversed(path):
            is_node = type(slot) is list
            slot = _replaced(node, at, slot)
            if not is_node and slot.count(None) == _BRANCHES - 1:
                # One leaf alone moves up, so that a map's shape follows from its entries.
                (alone,) = [child for child in slot if child is not None]
                slot = slot if type(alone) is list else alone
        return self._made(slot, self._count - 1)

    def _path(self, hashed: int) -> tuple[list[tuple[_Node, int]], _Leaf | None]:
        """The nodes on the way to a hash, each with the branch taken; and the leaf there."""
        path: list[tuple[_Node, int]] = []
        slot = self._root
        while type(slot) is list:
            at = hashed & _BRANCH_MASK
            path.append((slot, at))
            slot = slot[at]
            hashed >>= _BITS
        return path, slot

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
        """Whether both have the same entries. O(n), but for what they share."""
        if not isinstance(other, PersistentMap):
            return NotImplemented
        return self._count == other._count and _is_same(self._root, other._root)

    def __hash__(self) -> int:
        return hash(frozenset(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return PersistentMap.of, (dict(self.items()),)

    def __repr__(self) -> str:
        return f"PersistentMap({self._count} entries)"


class GrowingMap(dict[KeyT, ValueT]):
    """A map with the same methods that changes in place: for who makes many changes, and wants what comes of all."""

    def with_entry(self, key: KeyT, value: ValueT) -> GrowingMap[KeyT, ValueT]:
        """This map, with this entry."""
        self[key] = value
        return self

    def without(self, key: KeyT) -> GrowingMap[KeyT, ValueT]:
        """This map, without this key."""
        self.pop(key, None)
        return self


def _hash(key: int | str) -> int:
    # Not hash(): that of strings differs from process to process, and with it the order of iteration.
    return key if isinstance(key, int) else zlib.crc32(key.encode("utf-8", "surrogatepass"))


def _put(leaf: _Leaf | None, shift: int, hashed: int, key: Any, value: Any) -> tuple[_Leaf | _Node, bool]:
    """The leaf with this entry, or the nodes that part the two; and whether the key is new."""
    if leaf is None:
        return (hashed, key, value, ()), True
    if leaf[0] == hashed:
        others = tuple([entry for entry in _in_leaf(leaf) if entry[0] != key])
        return (hashed, key, value, others), len(others) > len(leaf[3])
    mine, its = (hashed >> shift) & _BRANCH_MASK, (leaf[0] >> shift) & _BRANCH_MASK
    child, _ = _put(leaf if mine == its else None, shift + _BITS, hashed, key, value)
    return _replaced(_EMPTY_NODE if mine == its else _replaced(_EMPTY_NODE, its, leaf), mine, child), True


def _replaced(node: _Node, at: int, child: Any) -> _Node:
    changed = node.copy()
    changed[at] = child
    return changed


def _in_leaf(leaf: _Leaf | None) -> tuple[tuple[Any, Any], ...]:
    return () if leaf is None else ((leaf[1], leaf[2]), *leaf[3])


def _is_same(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if type(one) is list and type(other) is list:
        return all(map(_is_same, one, other))
    return bool(one == other) or dict(_entries(one)) == dict(_entries(other))


def _entries(slot: Any) -> Iterator[tuple[Any, Any]]:
    return chain.from_iterable(map(_entries, slot)) if type(slot) is list else iter(_in_leaf(slot))
