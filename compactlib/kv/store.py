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
from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

import attrs

from compactlib._arguments import is_whole, own_bytes, require_whole
from compactlib._forks import OpenState
from compactlib.errors import InvalidInput
from compactlib.kv.errors import KeyNotFound, TooLarge
from compactlib.kv.scan import Entries, KVEntry

_MOST_ENTRIES = 1_000_000
_PART_BYTES = 64
"""The bytes that a database adds to a condition, a put or a delete, with a margin."""

Predicate: TypeAlias = object
"""The state of a key at a `get`: opaque, compared by the store, valid for that store only."""

Address: TypeAlias = tuple[bytes, bytes]
"""A partition and a key."""


class Exists(enum.Enum):
    """The type of `EXISTS`."""

    EXISTS = "exists"

    def __repr__(self) -> str:
        return "EXISTS"


EXISTS: Final = Exists.EXISTS
"""The predicate of a key with any value. Its opposite is `None`: the key must not exist."""


@attrs.frozen
class Versioned:
    """A value and the state of its key.

    Attributes:
        value: the bytes.
        predicate: for `set_if` and `Condition`: it fails after any write or delete of the key. In a store that compares
            values, it holds again when the same bytes are written again (ABA).
    """

    value: bytes
    predicate: Predicate


@attrs.frozen
class Condition:
    """A condition of `transact`: the key is in this state: `None` for "does not exist", `EXISTS`, or a predicate of a
    `get` or a scan.
    """

    partition: bytes
    key: bytes
    predicate: Predicate | None


@attrs.frozen
class Put:
    """A write of `transact`."""

    partition: bytes
    key: bytes
    value: bytes


@attrs.frozen
class Delete:
    """A delete of `transact`, also for an absent key."""

    partition: bytes
    key: bytes


@attrs.frozen
class KVLimits:
    """The limits of a store; each at least 1.

    Attributes:
        max_partition_bytes: the longest partition.
        max_key_bytes: the longest key.
        max_value_bytes: the longest value.
        max_transact: conditions, puts and deletes of one `transact` together. A put or a delete on one condition of its
            own key has no such limit.
        max_get_many: cells of one `get_many`.
        max_transact_bytes: the bytes of one `transact`: its values, and for each condition, put and delete its name and
            64 bytes; enough for any single write. `None`: no limit.
    """

    max_partition_bytes: int = attrs.field(validator=is_whole(1))
    max_key_bytes: int = attrs.field(validator=is_whole(1))
    max_value_bytes: int = attrs.field(validator=is_whole(1))
    max_transact: int = attrs.field(validator=is_whole(1))
    max_get_many: int = attrs.field(validator=is_whole(1))
    max_transact_bytes: int | None = attrs.field(default=None, validator=is_whole(1, or_none=True))


@attrs.frozen
class Transaction:
    """The checked arguments of a `transact`, for a back-end.

    Attributes:
        conditions: partition, key and predicate of each.
        changes: partition, key and new value of each, `None` for a delete; no key twice.
    """

    conditions: Sequence[tuple[bytes, bytes, Predicate | None]]
    changes: Sequence[tuple[bytes, bytes, bytes | None]]

    @property
    def is_write_of_one_key(self) -> bool:
        """Whether it is a put or a delete on one condition of its own key, as `set_if` makes it."""
        return (len(self.conditions) == len(self.changes) == 1
                and self.conditions[0][:2] == self.changes[0][:2])

    @property
    def size_bytes(self) -> int:
        """The bytes that count for `KVLimits.max_transact_bytes`."""
        return (sum(part_bytes(partition, key, None) for partition, key, _ in self.conditions)
                + sum(part_bytes(*change) for change in self.changes))


def part_bytes(partition: bytes, key: bytes, value: bytes | None) -> int:
    """Return the bytes of one condition, put or delete; see `KVLimits.max_transact_bytes`."""
    return len(partition) + len(key) + len(value or b"") + _PART_BYTES


class KVStore:
    """A key-value store with ordered scans and compare-and-set. Threads may share it.

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
        require_whole("page_size", page_size, 1)
        self._limits = limits
        self._page_size = min(page_size, _MOST_ENTRIES)
        self._state = OpenState(name)

    # ---- for a back-end to implement

    def _get_many(self, cells: Sequence[Address]) -> Sequence[Versioned | None]:
        """Read cells; at least one, none twice.

        Returns:
            The value of each cell, in the order of the argument; `None` for an absent key.
        """
        raise NotImplementedError("a key-value store reads many cells")

    def _page(self, partition: bytes, start: bytes, limit: int, keys_only: bool) -> tuple[Sequence[KVEntry], bool]:
        """Read one page of a scan, in one consistent read.

        Args:
            partition: the keys' partition.
            start: the page begins at the first key >= `start`.
            limit: the most entries. A page of large values may have fewer, but at least one if there are any.
            keys_only: the values may be `b""`.

        Returns:
            The entries, and whether they are the last of the partition.
        """
        raise NotImplementedError("a key-value store reads pages of a partition")

    def _transact(self, transaction: Transaction) -> None:
        """Carry out all changes in one step if all conditions hold, or none. There is at least one change or condition.

        Raises:
            PredicateFailed: a condition does not hold; the error names the first of them.
        """
        raise NotImplementedError("a key-value store changes cells under conditions")

    def _close(self) -> None:
        """Release the store's resources; called once, in the process that opened it."""

    def place(self) -> str | None:
        """Return the identity of the stored data, which differs for a copy of it.

        It is the same in all processes and after all restarts. `None` if the store has no such identity.

        Raises:
            CompactlibError: as `get`.
        """
        return None

    def audit(self) -> None:
        """Check the invariants that the database does not check. May read everything.

        Raises:
            AuditFailed: an invariant does not hold; the message has the numbers.
            DamagedStore: the stored data is damaged.
        """
        self._state.require()

    # ---- one key

    @property
    def limits(self) -> KVLimits:
        """The limits of this store."""
        return self._limits

    def get(self, partition: bytes, key: bytes) -> Versioned:
        """Return the value of a key.

        Raises:
            KeyNotFound: the partition has no such key, or there is no such partition.
        """
        found, = self.get_many(((partition, key),))
        if found is None:
            raise KeyNotFound(partition=partition, key=key)
        return found

    def set(self, partition: bytes, key: bytes, value: bytes) -> None:
        """Write a value unconditionally."""
        self.transact((), (Put(partition, key, value),))

    def set_if(self, partition: bytes, key: bytes, value: bytes, predicate: Predicate | None) -> None:
        """Write a value if the key is in the expected state, in one step.

        Args:
            partition: the key's partition.
            key: the key.
            value: the new value.
            predicate: `None`: the key must not exist. `EXISTS`: it must. Otherwise a predicate of a `get` or a scan.

        Raises:
            PredicateFailed: the key is in another state; nothing was written. An absent key fails all predicates but
                `None`.
        """
        self.transact((Condition(partition, key, predicate),), (Put(partition, key, value),))

    def delete(self, partition: bytes, key: bytes) -> None:
        """Remove a key; an absent key is no error."""
        self.transact((), (), (Delete(partition, key),))

    def delete_if(self, partition: bytes, key: bytes, predicate: Predicate) -> None:
        """Remove a key if it is in the expected state, in one step.

        Raises:
            PredicateFailed: the key is in another state; nothing was removed.
            InvalidInput: the predicate is `None`.
        """
        if predicate is None:
            raise InvalidInput("a delete was given the predicate None (the key must not exist), so there is nothing to "
                               "delete; give EXISTS, or the predicate that get() found")
        self.transact((Condition(partition, key, predicate),), (), (Delete(partition, key),))

    # ---- many keys

    def get_many(self, cells: Iterable[Address]) -> Sequence[Versioned | None]:
        """Return the value of each cell, in the order of the argument; `None` for an absent key. One request.

        Each cell is read at some moment of the call; different cells at different moments.

        Raises:
            TooLarge: there are more than `limits.max_get_many` cells.
            InvalidInput: a cell occurs twice.
        """
        checked = [self._cell(partition, key) for partition, key in cells]
        if len(checked) > self._limits.max_get_many:
            raise TooLarge(what="request", size=len(checked), limit=self._limits.max_get_many)
        if len(set(checked)) < len(checked):
            raise InvalidInput("a cell is to be read twice in one request; name it once")
        self._state.require()
        return self._get_many(checked) if checked else ()

    def scan(self, partition: bytes, start: bytes = b"", *, prefix: bytes = b"", after: bytes | None = None,
             page_size: int | None = None, keys_only: bool = False) -> Entries:
        """Return the entries of a partition in the order of their keys.

        Args:
            partition: the partition; an absent partition has no entries.
            start: begin at the first key >= `start`, which need not exist.
            prefix: return only keys with this prefix.
            after: begin at the first key > `after`; of `start`, `prefix` and `after` the highest counts.
            page_size: a hint for the size of the first page in entries; later pages double up to the store's own page
                size, which is the default.
            keys_only: a hint that values are not needed: the store may return `b""`.

        Raises:
            InvalidInput: the partition is empty, or `page_size` is less than 1.
        """
        name = _checked_name("partition", partition, self._limits.max_partition_bytes)
        self._state.require()

        def load(position: bytes, limit: int) -> tuple[Sequence[KVEntry], bool]:
            self._state.require()
            return self._page(name, position, limit, keys_only)

        return Entries(load, start, prefix=prefix, after=after, page_size=page_size, largest_page=self._page_size)

    def transact(self, conditions: Iterable[Condition] = (), puts: Iterable[Put] = (),
                 deletes: Iterable[Delete] = ()) -> None:
        """Carry out all puts and deletes, in any partitions, in one step if all conditions hold; or none.

        No reader sees a part of them, also after a crash. Conditions are checked against the state before. A key may be
        in several conditions, but only in one put or delete.

        Raises:
            PredicateFailed: a condition does not hold; nothing was written.
            InvalidInput: a key is put or deleted twice.
            TooLarge: there are more than `limits.max_transact`, or more bytes than the store accepts in one step.
        """
        transaction = self.checked(conditions, puts, deletes)
        count, most = len(transaction.conditions) + len(transaction.changes), self._limits.max_transact
        if count > most and not transaction.is_write_of_one_key:
            raise TooLarge(what="request", size=count, limit=most)
        most_bytes = self._limits.max_transact_bytes
        if most_bytes is not None and (size := transaction.size_bytes) > most_bytes:
            raise TooLarge(what="transaction", size=size, limit=most_bytes)
        # Before any lock, which a thread of the parent may hold in a forked child.
        self._state.require()
        if transaction.conditions or transaction.changes:
            self._transact(transaction)

    # ---- the handle

    def close(self) -> None:
        """Release the store's resources; closing again does nothing. Open scans end with `Closed`.

        In a forked child it does nothing: connections and files belong to the parent.
        """
        if not self._state.is_closed and not self._state.is_inherited:
            self._state.close()
            self._close()

    # ---- arguments

    def checked(self, conditions: Iterable[Condition] = (), puts: Iterable[Put] = (),
                deletes: Iterable[Delete] = ()) -> Transaction:
        """Check the arguments of a `transact`, but not their number.

        Raises:
            InvalidInput, TooLarge: as `transact`.
        """
        held = [(*self._cell(one.partition, one.key), one.predicate) for one in conditions]
        changes: list[tuple[bytes, bytes, bytes | None]] = [
            (*self._cell(put.partition, put.key), _within("value", put.value, self._limits.max_value_bytes))
            for put in puts]
        changes += ((*self._cell(one.partition, one.key), None) for one in deletes)
        if len({change[:2] for change in changes}) < len(changes):
            raise InvalidInput("a key is to be put or deleted twice in one transaction; name it once")
        return Transaction(held, changes)

    def _cell(self, partition: bytes, key: bytes) -> Address:
        return (_checked_name("partition", partition, self._limits.max_partition_bytes),
                _checked_name("key", key, self._limits.max_key_bytes))


def _checked_name(what: str, name: bytes, limit: int) -> bytes:
    if not name:
        raise InvalidInput(f"a {what} is empty; give at least one byte")
    return _within(what, name, limit)


def _within(what: str, value: bytes, limit: int) -> bytes:
    data = own_bytes(value)
    if len(data) > limit:
        raise TooLarge(what=what, size=len(data), limit=limit)
    return data


def holds(predicate: Predicate | None, version: Predicate | None) -> bool:
    """Return whether a predicate holds for a key of this version; the version of an absent key is `None`.

    For back-ends that compare versions themselves. Types are compared too: `True` and `1.0` equal 1, and are no
    versions.
    """
    if version is None or predicate is None:
        return version is predicate
    return predicate is EXISTS or (type(predicate) is type(version) and predicate == version)
