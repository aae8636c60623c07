# SPDX-License-Identifier: Apache-2.0
"""`KVStore`: the base class of a key-value store, so that hosts can bring their own.

Partitions, keys and values are `bytes`: text would bring encodings, normal forms and collations into what must compare
byte by byte and come back unchanged. A partition needs no making; it is the first half of a key.

Every store is read-after-write consistent: what a call acknowledged, every later call sees, from any thread and
process. It orders keys byte by byte, and compares and sets several keys in one step. `compactlib.testing.kv` says all
this as tests, and any implementation can inherit them. `MemoryStore` is the shortest complete one.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

import attrs

from compactlib._arguments import is_whole, require_whole
from compactlib._forks import OpenState
from compactlib.errors import InvalidInput
from compactlib.kv.errors import KeyNotFound, TooLarge
from compactlib.kv.scan import Entries, KVEntry

_MOST_ENTRIES = 1_000_000

Predicate: TypeAlias = object
"""The state of one key, as `KVStore.get` found it: opaque, compared by the store alone, good for one store only."""

Address: TypeAlias = tuple[bytes, bytes]
"""A partition and a key."""


class Exists(enum.Enum):
    """The type of `EXISTS`."""

    EXISTS = "exists"

    def __repr__(self) -> str:
        return "EXISTS"


EXISTS: Final = Exists.EXISTS
"""The predicate that holds for a key with any value. Its opposite is `None`: the key must not exist."""


@attrs.frozen
class Versioned:
    """A value and the state it was found in.

    Attributes:
        value: the bytes.
        predicate: for `set_if` and `Condition`: it fails once the key was written or deleted. Only a store that
            compares values lets it hold again when the very same bytes came back (ABA).
    """

    value: bytes
    predicate: Predicate


@attrs.frozen
class Condition:
    """Of a `transact`: the key must be in the state of the predicate: `None` for "must not exist", `EXISTS`, or one
    from a `get` or a scan.
    """

    partition: bytes
    key: bytes
    predicate: Predicate | None


@attrs.frozen
class Put:
    """Of a `transact`: write this value."""

    partition: bytes
    key: bytes
    value: bytes


@attrs.frozen
class Delete:
    """Of a `transact`: remove this key, if it is there."""

    partition: bytes
    key: bytes


@attrs.frozen
class KVLimits:
    """How much a store takes; each at least 1.

    Attributes:
        max_partition_bytes: the longest partition.
        max_key_bytes: the longest key.
        max_value_bytes: the longest value.
        max_transact: conditions, puts and deletes of one `transact` together.
        max_get_many: cells of one `get_many`.
    """

    max_partition_bytes: int = attrs.field(validator=is_whole(1))
    max_key_bytes: int = attrs.field(validator=is_whole(1))
    max_value_bytes: int = attrs.field(validator=is_whole(1))
    max_transact: int = attrs.field(validator=is_whole(1))
    max_get_many: int = attrs.field(validator=is_whole(1))


@attrs.frozen
class Transaction:
    """A `transact` with checked arguments, as a back-end gets it.

    Attributes:
        conditions: partition, key and predicate of each.
        changes: partition, key and new value of each, `None` for a delete; no key twice.
    """

    conditions: Sequence[tuple[bytes, bytes, Predicate | None]]
    changes: Sequence[tuple[bytes, bytes, bytes | None]]


class KVStore:
    """A key-value store with ordered scans and compare-and-set. Any thread may call any method.

    A back-end writes `_get_many`, `_page`, `_transact` and `_close`, and may say `place`. They get checked arguments,
    never after `close` and never in a child process of the one that opened the store: there every call is `Closed`.

    A partition or a key that is empty is `InvalidInput`; an empty value is a value. Every method may raise `Closed`,
    `TooLarge`, `SlowDown`, `StoreFailed` and `ConnectFailed`, and each one that writes `OutcomeUnknown`; whatever else
    the database says is turned into one of them, never into "not found" or "predicate failed".

    Args:
        name: what it is, for errors: `"the store in /data"`.
        limits: how much it takes.
        page_size: how many entries one page of a scan holds, at most; a million is the most.
    """

    def __init__(self, name: str, limits: KVLimits, *, page_size: int = 1000) -> None:
        require_whole("page_size", page_size, 1)
        self._limits = limits
        self._page_size = min(page_size, _MOST_ENTRIES)
        self._state = OpenState(name)

    # ---- what a back-end writes

    def _get_many(self, cells: Sequence[Address]) -> Sequence[Versioned | None]:
        """Read cells; at least one, none twice.

        Returns:
            What is there of each, in the order asked for; `None` for what is absent.
        """
        raise NotImplementedError("a key-value store reads many cells")

    def _page(self, partition: bytes, start: bytes, limit: int, keys_only: bool) -> tuple[Sequence[KVEntry], bool]:
        """Read one page of a scan, in one consistent read.

        Args:
            partition: whose keys.
            start: the first key >= this one begins the page.
            limit: at most so many entries; fewer so that large values do not fill the memory, but one if there is one.
            keys_only: values may be left unread, and `b""` given.

        Returns:
            The entries, and whether they are the partition's last.
        """
        raise NotImplementedError("a key-value store reads pages of a partition")

    def _transact(self, transaction: Transaction) -> None:
        """Carry out all changes if all conditions hold, in one step, or nothing; at least one of them is there.

        Raises:
            PredicateFailed: a condition does not hold; it names the first in the order given.
        """
        raise NotImplementedError("a key-value store changes cells under conditions")

    def _close(self) -> None:
        """Give up what the store holds; called once, in the process that opened it."""

    def place(self) -> str | None:
        """Return words for the place of what is stored, by which a copy of it is distinguished from the original.

        They are the same from every process, after every restart, as long as it lives; others for a copy. `None` if the
        store cannot tell.

        Raises:
            CompactlibError: as `get`.
        """
        return None

    def audit(self) -> None:
        """Check what a database does not check by itself. May read everything.

        Raises:
            AuditFailed: the store is wrong; the message has the numbers.
            DamagedStore: what is stored is damaged.
        """
        self._state.require()

    # ---- one key

    @property
    def limits(self) -> KVLimits:
        """How much this store takes."""
        return self._limits

    def get(self, partition: bytes, key: bytes) -> Versioned:
        """Return the value of a key.

        Raises:
            KeyNotFound: the partition has no such key, or there is no such partition.
        """
        cell = _cell(partition, key, self.limits)
        self._state.require()
        found, = self._get_many((cell,))
        if found is None:
            raise KeyNotFound(partition=partition, key=key)
        return found

    def set(self, partition: bytes, key: bytes, value: bytes) -> None:
        """Write a value, whatever was there."""
        self._perform(Transaction((), (_put(partition, key, value, self.limits),)))

    def set_if(self, partition: bytes, key: bytes, value: bytes, predicate: Predicate | None) -> None:
        """Write a value if the key is in the expected state, in one step.

        Args:
            partition: the key's partition.
            key: the key.
            value: the new value.
            predicate: `None`: the key must not exist. `EXISTS`: it must. Otherwise one that came from `get` or a scan.

        Raises:
            PredicateFailed: it is not; nothing was written. A key that is gone fails every predicate but `None`.
        """
        put = _put(partition, key, value, self.limits)
        self._perform(Transaction(((put[0], put[1], predicate),), (put,)))

    def delete(self, partition: bytes, key: bytes) -> None:
        """Remove a key; one that is not there is no error."""
        self._perform(Transaction((), ((*_cell(partition, key, self.limits), None),)))

    def delete_if(self, partition: bytes, key: bytes, predicate: Predicate) -> None:
        """Remove a key if it is in the expected state, in one step.

        Raises:
            PredicateFailed: it is not; nothing was removed.
            InvalidInput: the predicate is `None`.
        """
        if predicate is None:
            raise InvalidInput("a delete was given the predicate None (the key must not exist), so there is nothing to "
                               "delete; give EXISTS, or the predicate that get() found")
        cell = _cell(partition, key, self.limits)
        self._perform(Transaction(((*cell, predicate),), ((*cell, None),)))

    # ---- many keys

    def get_many(self, cells: Iterable[Address]) -> Sequence[Versioned | None]:
        """Return what each cell holds, in the order asked for; `None` for those that are absent. One request.

        Each cell is read at some moment of the call, not all at the same one.

        Raises:
            TooLarge: there are more than `limits.max_get_many`.
            InvalidInput: a cell is named twice.
        """
        limits = self.limits
        checked = [_cell(partition, key, limits) for partition, key in cells]
        if len(checked) > limits.max_get_many:
            raise TooLarge(what="request", size=len(checked), limit=limits.max_get_many)
        if len(set(checked)) < len(checked):
            raise InvalidInput("a cell is to be read twice in one request; name it once")
        self._state.require()
        return self._get_many(checked) if checked else ()

    def scan(self, partition: bytes, start: bytes = b"", *, prefix: bytes = b"", after: bytes | None = None,
             page_size: int | None = None, keys_only: bool = False) -> Entries:
        """Return the entries of a partition in the order of their keys.

        Args:
            partition: the partition; one that does not exist has no entries.
            start: begin at the first key >= `start`, which need not exist.
            prefix: only keys that begin so.
            after: begin at the first key > `after`; of `start`, `prefix` and `after` the furthest counts.
            page_size: how many entries the first page holds, a hint; pages double from there up to the store's own
                size, which is also that of the first if none is given.
            keys_only: the values are not needed, a hint: the store may leave them unread and give `b""`.

        Raises:
            InvalidInput: the partition is empty, or `page_size` is less than 1.
        """
        name = _checked_name("partition", partition, self.limits.max_partition_bytes)
        self._state.require()

        def load(position: bytes, limit: int) -> tuple[Sequence[KVEntry], bool]:
            self._state.require()
            return self._page(name, position, limit, keys_only)

        return Entries(load, start, prefix=prefix, after=after, page_size=page_size, largest_page=self._page_size)

    def transact(self, conditions: Iterable[Condition] = (), puts: Iterable[Put] = (),
                 deletes: Iterable[Delete] = ()) -> None:
        """Carry out all puts and deletes, in any partitions, if all conditions hold; or nothing. In one step.

        No reader ever sees one part without the others, after a crash neither. Conditions are held against the state
        before. A key may be named by several conditions, but by one put or delete only.

        Raises:
            PredicateFailed: a condition does not hold; nothing was written.
            InvalidInput: a key is to be put or deleted twice.
            TooLarge: there are more than `limits.max_transact`, or all of it together is more than the store takes in
                one step.
        """
        transaction = self.checked(conditions, puts, deletes)
        size = len(transaction.conditions) + len(transaction.changes)
        if size > self.limits.max_transact:
            raise TooLarge(what="request", size=size, limit=self.limits.max_transact)
        self._perform(transaction)

    def _perform(self, transaction: Transaction) -> None:
        # Before any lock: in a forked child a thread that is not there may hold it.
        self._state.require()
        if transaction.conditions or transaction.changes:
            self._transact(transaction)

    # ---- the handle

    def close(self) -> None:
        """Give up what the store holds; closing again does nothing. Scans that are still open end with `Closed`.

        In a child process it does nothing: what is open belongs to the parent.
        """
        if not self._state.is_closed and not self._state.is_inherited:
            self._state.close()
            self._close()

    # ---- arguments

    def checked(self, conditions: Iterable[Condition] = (), puts: Iterable[Put] = (),
                deletes: Iterable[Delete] = ()) -> Transaction:
        """Return the arguments of a `transact`, each of them checked; how many they are is not.

        Raises:
            InvalidInput, TooLarge: as `transact`.
        """
        limits = self.limits
        held = [(*_cell(one.partition, one.key, limits), one.predicate) for one in conditions]
        changes: list[tuple[bytes, bytes, bytes | None]] = [
            _put(put.partition, put.key, put.value, limits) for put in puts]
        changes += ((*_cell(one.partition, one.key, limits), None) for one in deletes)
        if len({change[:2] for change in changes}) < len(changes):
            raise InvalidInput("a key is to be put or deleted twice in one transaction; name it once")
        return Transaction(held, changes)


def _cell(partition: bytes, key: bytes, limits: KVLimits) -> Address:
    return (_checked_name("partition", partition, limits.max_partition_bytes),
            _checked_name("key", key, limits.max_key_bytes))


def _put(partition: bytes, key: bytes, value: bytes, limits: KVLimits) -> tuple[bytes, bytes, bytes]:
    return (*_cell(partition, key, limits), _within("value", value, limits.max_value_bytes))


def _checked_name(what: str, name: bytes, limit: int) -> bytes:
    if not name:
        raise InvalidInput(f"a {what} was not named; give at least one byte")
    return _within(what, name, limit)


def _within(what: str, value: bytes, limit: int) -> bytes:
    # The same object, unless the caller could change it later. `bytes` would make zeros of a number.
    data = b"".join((value,))
    if len(data) > limit:
        raise TooLarge(what=what, size=len(data), limit=limit)
    return data


def holds(predicate: Predicate | None, version: Predicate | None) -> bool:
    """Whether a condition holds for a key of this version; a version of `None` is that of an absent key.

    For back-ends that compare versions themselves. By type too: `True` and `1.0` equal the version 1, and are no
    predicates.
    """
    if version is None or predicate is None:
        return version is predicate
    return predicate is EXISTS or (type(predicate) is type(version) and predicate == version)
