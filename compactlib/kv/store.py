# SPDX-License-Identifier: Apache-2.0
"""`KVStore`: the base class of a key-value store, for the library's stores and a host's.

Partitions, keys and values are `bytes`, which compare byte by byte and are stored unchanged; text has encodings, normal
forms and collations. A partition is the first half of a key, and is not created.

Every store is read-after-write consistent: all later calls of all threads and processes see an acknowledged write. It
orders keys byte by byte, and compares and sets several keys in one step. `compactlib.testing.kv` has tests of all this,
for any implementation to inherit. `MemoryStore` is the shortest complete store.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import attrs

from compactlib._arguments import is_whole, own_bytes, require_whole
from compactlib._forks import Handle
from compactlib.errors import InvalidInput
from compactlib.kv.errors import KeyNotFound, TooLarge
from compactlib.kv.scan import Entries, KVEntry

_MOST_ENTRIES = 1_000_000
_PART_BYTES = 64
"""The bytes that a database adds to a condition or a change, with a margin."""

Predicate: TypeAlias = object
"""The state of a key at a `get`: opaque, compared by the store, valid for that store only."""

Address: TypeAlias = tuple[bytes, bytes]
"""A partition and a key."""


class Exists(enum.Enum):
    """The type of `EXISTS`."""

    EXISTS = "exists"


EXISTS: Final = Exists.EXISTS
"""The predicate of a key with any value. Its opposite is `None`: the key must not exist."""


Conditions: TypeAlias = Mapping[Address, Predicate | None]
"""The state that each key must be in: `None` (absent), `EXISTS`, or a predicate of a `get` or a scan."""

Changes: TypeAlias = Mapping[Address, bytes | None]
"""The new value of each key; `None` deletes it, also if it is absent."""

NOTHING: Final[Mapping[Address, Any]] = MappingProxyType({})


@attrs.frozen
class KVLimits:
    """The limits of a store; each at least 1.

    Attributes:
        max_transact: keys of one `transact`, in conditions, changes, or both; also of one request of `get_many`.
        max_transact_bytes: the bytes of one `transact`: its values, and for each condition and change its name and 64
            bytes; enough for any single write. `None`: no limit.
    """

    max_partition_bytes: int = attrs.field(validator=is_whole(1))
    max_key_bytes: int = attrs.field(validator=is_whole(1))
    max_value_bytes: int = attrs.field(validator=is_whole(1))
    max_transact: int = attrs.field(validator=is_whole(1))
    max_transact_bytes: int | None = attrs.field(default=None, validator=is_whole(1, or_none=True))


def part_bytes(address: Address, value: bytes | None = None) -> int:
    """Return the bytes of one condition or change; see `KVLimits.max_transact_bytes`."""
    return len(address[0]) + len(address[1]) + len(value or b"") + _PART_BYTES


class KVStore(Handle):
    """A key-value store with ordered scans and compare-and-set. Threads may share it. Closing it ends open scans.

    A back-end implements `_get_many`, `_page`, `_transact` and `_close`, and may override `place`. They get checked
    arguments, and are not called after `close` or in a forked child, where every call raises `Closed`.

    An empty partition or key is `InvalidInput`; an empty value is valid. Every method may raise `Closed`, `TooLarge`,
    `SlowDown`, `StoreFailed` and `ConnectFailed`, and methods that write also `OutcomeUnknown`. A back-end converts all
    other errors of its database into one of these, never into "not found" or "predicate failed".

    Args:
        name: the store's name, for errors: `"the store in /data"`.
        limits: the store's limits.
        page_size: the most entries of a page of a scan, at most a million.
    """

    def __init__(self, name: str, limits: KVLimits, *, page_size: int = 1000) -> None:
        self.limits = limits
        self._page_size: int = min(require_whole("page_size", page_size, 1), _MOST_ENTRIES)
        super().__init__(name)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self._handle_name}>"

    # ---- for a back-end to implement

    def _get_many(self, cells: Sequence[Address]) -> Sequence[KVEntry | None]:
        """Read cells; at least one, none twice, at most `limits.max_transact`.

        Returns:
            The entry of each cell, in the order of the argument; `None` for an absent key.
        """
        raise NotImplementedError("a key-value store reads many cells")

    def _page(self, partition: bytes, start: bytes, limit: int) -> tuple[Sequence[KVEntry], bool]:
        """Read one page of a scan, in one consistent read.

        Args:
            partition: the keys' partition.
            start: the page begins at the first key >= `start`.
            limit: the most entries. A page of large values may have fewer, but at least one if there are any.

        Returns:
            The entries, and whether they are the last of the partition.
        """
        raise NotImplementedError("a key-value store reads pages of a partition")

    def _transact(self, conditions: Conditions, changes: Changes) -> None:
        """Carry out all changes in one step if all conditions hold, or none. There is at least one change or condition.

        Raises:
            PredicateFailed: a condition does not hold; the error names the first of them.
        """
        raise NotImplementedError("a key-value store changes cells under conditions")

    def place(self) -> str | None:
        """Return the identity of the stored data, which differs for a copy of it.

        It is the same in all processes and after all restarts. `None` if the store has no such identity.

        Raises:
            CompactlibError: as `get`.
        """
        return None

    # ---- one key

    def get(self, partition: bytes, key: bytes) -> KVEntry:
        """Return the entry of a key.

        Raises:
            KeyNotFound: the partition has no such key, or there is no such partition.
            CorruptData: the value is damaged.
        """
        cell = self._cell((partition, key))
        self._require_open()
        found, = self._get_many((cell,))
        if found is None:
            raise KeyNotFound(partition=partition, key=key)
        if found.damage is not None:
            raise found.damage
        return found

    def set(self, partition: bytes, key: bytes, value: bytes) -> None:
        """Write a value unconditionally."""
        self.transact(NOTHING, {(partition, key): value})

    def set_if(self, partition: bytes, key: bytes, value: bytes, predicate: Predicate | None) -> None:
        """Write a value if the key is in the expected state, in one step; see `Conditions`.

        Raises:
            PredicateFailed: the key is in another state; nothing was written. An absent key fails all predicates but
                `None`.
        """
        self.transact({(partition, key): predicate}, {(partition, key): value})

    def delete(self, partition: bytes, key: bytes) -> None:
        """Remove a key; an absent key is no error."""
        self.transact(NOTHING, {(partition, key): None})

    def delete_if(self, partition: bytes, key: bytes, predicate: Predicate) -> None:
        """Remove a key if it is in the expected state, in one step.

        Raises:
            PredicateFailed: the key is in another state; nothing was removed.
        """
        self.transact({(partition, key): predicate}, {(partition, key): None})

    # ---- many keys

    def get_many(self, cells: Iterable[Address]) -> dict[Address, KVEntry]:
        """Return the entries of the cells that exist. One request for each `limits.max_transact` cells.

        Each cell is read at some moment of the call; different cells at different moments.

        Raises:
            CorruptData: a value is damaged.
        """
        wanted = [*dict.fromkeys(self._cell(cell) for cell in cells)]
        self._require_open()
        found: dict[Address, KVEntry] = {}
        for at in range(0, len(wanted), self.limits.max_transact):
            part = wanted[at:at + self.limits.max_transact]
            entries = zip(part, self._get_many(part), strict=True)
            found |= {cell: entry for cell, entry in entries if entry is not None}
        for entry in found.values():
            if entry.damage is not None:
                raise entry.damage
        return found

    def scan(self, partition: bytes, start: bytes = b"", *, prefix: bytes = b"",
             page_size: int | None = None, keys_only: bool = False) -> Entries:
        """Return the entries of a partition in the order of their keys.

        Args:
            partition: the partition; an absent partition has no entries.
            start: begin at the first key >= `start`, which need not exist.
            prefix: return only keys with this prefix.
            page_size: a hint for the size of the first page in entries; later pages double up to the store's own page
                size, which is the default.
            keys_only: values are not needed, so a damaged value is no error; see `KVEntry.damage`.

        Raises:
            InvalidInput: the partition is empty, or `page_size` is less than 1.
        """
        name = _checked_name("partition", partition, self.limits.max_partition_bytes)
        self._require_open()
        return Entries(partial(self._load, name), start, prefix=prefix, page_size=page_size,
                       largest_page=self._page_size, keys_only=keys_only)

    def _load(self, partition: bytes, start: bytes, limit: int) -> tuple[Sequence[KVEntry], bool]:
        self._require_open()
        return self._page(partition, start, limit)

    def transact(self, conditions: Conditions = NOTHING, changes: Changes = NOTHING) -> None:
        """Carry out all changes, in any partitions, in one step if all conditions hold; or none.

        No reader sees a part of them, also after a crash. Conditions are checked against the state before.

        Raises:
            PredicateFailed: a condition does not hold; nothing was written.
            TooLarge: there are more keys or bytes than the store accepts in one step.
        """
        held = {self._cell(cell): predicate for cell, predicate in conditions.items()}
        changed = self.checked(changes)
        count, most = len(held.keys() | changed.keys()), self.limits.max_transact
        if count > most:
            raise TooLarge(f"a transaction of {count} keys", limit=most)
        most_bytes = self.limits.max_transact_bytes
        if most_bytes is not None:
            size = sum(map(part_bytes, held)) + sum(part_bytes(*change) for change in changed.items())
            if size > most_bytes:
                raise TooLarge(f"a transaction of {size} bytes", limit=most_bytes)
        # Before any lock, which a thread of the parent may hold in a forked child.
        self._require_open()
        if count:
            self._transact(held, changed)

    # ---- arguments

    def checked(self, changes: Changes) -> dict[Address, bytes | None]:
        """Check the names and values of changes, but not their number; return them as `bytes`.

        Raises:
            InvalidInput, TooLarge: a name is empty, or a name or a value is too long.
        """
        return {self._cell(cell): None if value is None else _within("value", value, self.limits.max_value_bytes)
                for cell, value in changes.items()}

    def _cell(self, cell: Address) -> Address:
        partition, key = cell
        return (_checked_name("partition", partition, self.limits.max_partition_bytes),
                _checked_name("key", key, self.limits.max_key_bytes))


def _checked_name(what: str, name: bytes, limit: int) -> bytes:
    if not name:
        raise InvalidInput(f"a {what} is empty; give at least one byte")
    return _within(what, name, limit)


def _within(what: str, value: bytes, limit: int) -> bytes:
    data = own_bytes(value)
    if len(data) > limit:
        raise TooLarge(f"a {what} of {len(data)} bytes", limit=limit)
    return data


def holds(predicate: Predicate | None, version: Predicate | None) -> bool:
    """Return whether a predicate holds for a key of this version; the version of an absent key is `None`.

    For back-ends that compare versions themselves. Types are compared too: `True` and `1.0` equal 1, and are no
    versions.
    """
    if version is None or predicate is None:
        return version is predicate
    return predicate is EXISTS or (type(predicate) is type(version) and predicate == version)
