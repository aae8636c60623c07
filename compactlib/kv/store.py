# SPDX-License-Identifier: Apache-2.0
"""`KVStore`: the base class of a key-value store, so that hosts can bring their own.

Partitions, keys and values are `bytes`. For keys and values that is what every store has in common. Partitions are
bytes too, not text: a partition is the first half of a key, and text would bring encodings, normal forms and collations
into what must compare byte by byte and come back unchanged; so one codec serves both, and nothing can collide.

Every store is read-after-write consistent: what a call acknowledged, every later call sees, from any thread and
process. It orders keys byte by byte, and compares and sets single keys in one step.
`compactlib.testing.kv` says all this as tests, and any implementation can inherit them.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

import attrs

from compactlib._arguments import require_whole
from compactlib._forks import OpenState
from compactlib.errors import InvalidInput
from compactlib.kv.errors import (
    BatchSizeTooBig,
    KeyNotFound,
    MissingKey,
    MissingPartitionKey,
    MissingValue,
    TooLarge,
)
from compactlib.kv.scan import Entries as Entries, KVEntry as KVEntry, PagedEntries, own_bytes

if TYPE_CHECKING:
    from typing_extensions import Buffer

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
        predicate: hold it against the key later with `set_if`: it fails once the key was written or deleted. Only a
            store that compares values lets it hold again when the very same bytes came back (ABA).
    """

    value: bytes
    predicate: Predicate


@attrs.frozen
class Condition:
    """Of a `transact`: the key must be in this state.

    Attributes:
        partition: the key's partition.
        key: the key.
        predicate: `None` for "must not exist", `EXISTS`, or one from a `get` or a scan.
    """

    partition: bytes
    key: bytes
    predicate: Predicate | None


@attrs.frozen
class Put:
    """Of a `transact`: write this value.

    Attributes:
        partition: the key's partition.
        key: the key.
        value: the value.
    """

    partition: bytes
    key: bytes
    value: bytes


@attrs.frozen
class Delete:
    """Of a `transact`: remove this key, if it is there.

    Attributes:
        partition: the key's partition.
        key: the key.
    """

    partition: bytes
    key: bytes


@attrs.frozen
class KVLimits:
    """How much a store takes.

    Attributes:
        max_partition_bytes: the longest partition.
        max_key_bytes: the longest key.
        max_value_bytes: the longest value.
        max_transact: conditions, puts and deletes of one `transact` together.
        max_get_many: cells of one `get_many`.

    Raises:
        InvalidInput: one is less than 1.
    """

    max_partition_bytes: int
    max_key_bytes: int
    max_value_bytes: int
    max_transact: int
    max_get_many: int

    def __attrs_post_init__(self) -> None:
        for name, value in attrs.asdict(self).items():
            if value < 1:
                raise InvalidInput(f"{name} is {value}; give 1 or more")


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
    What a back-end can do cheaper for one key, it overrides.

    Arguments are checked in this order: `MissingPartitionKey`, `MissingKey`, `MissingValue` for what is `None` or empty
    (an empty value is a value), then `TooLarge`. Every method may raise `Closed` after `close`, `SlowDown`,
    `StoreFailed` and `ConnectFailed`, and each one that writes `OutcomeUnknown`; whatever else a backend says is turned
    into one of them, never into "not found" or "predicate failed".

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
        """Return words for the place of what is stored, by which a copy of it is told from itself.

        They are the same from every process, after every restart, as long as it lives; others for a copy. `None` if the
        store cannot tell.

        Raises:
            CompactlibError: as `get`.
        """
        return None

    def audit(self) -> None:
        """Check the store's own invariants. May read everything.

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
        cell = checked_cell(partition, key, self._limits)
        self._state.require()
        found, = self._get_many((cell,))
        if found is None:
            raise KeyNotFound(partition=cell[0], key=cell[1])
        return found

    def set(self, partition: bytes, key: bytes, value: Buffer) -> None:
        """Write a value, whatever was there. A buffer is copied before the call returns."""
        self._perform(Transaction((), (checked_put(partition, key, value, self._limits),)))

    def set_if(self, partition: bytes, key: bytes, value: Buffer, predicate: Predicate | None) -> None:
        """Write a value if the key is in the expected state, in one step.

        Args:
            partition: the key's partition.
            key: the key.
            value: the new value.
            predicate: `None`: the key must not exist. `EXISTS`: it must. Otherwise one that came from `get` or a scan.

        Raises:
            PredicateFailed: it is not; nothing was written. A key that is gone fails every predicate but `None`.
        """
        put = checked_put(partition, key, value, self._limits)
        self._perform(Transaction(((put[0], put[1], predicate),), (put,)))

    def delete(self, partition: bytes, key: bytes) -> None:
        """Remove a key; one that is not there is no error."""
        self._perform(Transaction((), ((*checked_cell(partition, key, self._limits), None),)))

    def delete_if(self, partition: bytes, key: bytes, predicate: Predicate) -> None:
        """Remove a key if it is in the expected state, in one step.

        Raises:
            PredicateFailed: it is not; nothing was removed.
            InvalidInput: the predicate is `None`.
        """
        cell = checked_cell(partition, key, self._limits)
        if predicate is None:
            raise InvalidInput("a delete was given the predicate None (the key must not exist), so there is nothing to "
                               "delete; give EXISTS, or the predicate that get() found")
        self._perform(Transaction(((*cell, predicate),), ((*cell, None),)))

    # ---- many keys

    def get_many(self, cells: Iterable[Address]) -> Sequence[Versioned | None]:
        """Return what each cell holds, in the order asked for; `None` for those that are absent. One request.

        Each cell is read at some moment of the call, not all at the same one.

        Raises:
            BatchSizeTooBig: there are more than `limits.max_get_many`.
            InvalidInput: a cell is named twice.
        """
        limits = self._limits
        checked = [checked_cell(partition, key, limits) for partition, key in cells]
        if len(checked) > limits.max_get_many:
            raise BatchSizeTooBig(size=len(checked), limit=limits.max_get_many)
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
            keys_only: the values are not looked at, a hint: the store may leave them unread and give `b""`.

        Raises:
            MissingPartitionKey: the partition is empty.
            InvalidInput: `page_size` is less than 1.
        """
        name = checked_partition(partition, self._limits)
        self._state.require()

        def load(position: bytes, limit: int) -> tuple[Sequence[KVEntry], bool]:
            self._state.require()
            return self._page(name, position, limit, keys_only)

        return PagedEntries(load, start, prefix=prefix, after=after, page_size=page_size, largest_page=self._page_size)

    def transact(self, conditions: Iterable[Condition] = (), puts: Iterable[Put] = (),
                 deletes: Iterable[Delete] = ()) -> None:
        """Carry out all puts and deletes, in any partitions, if all conditions hold; or nothing. In one step.

        No reader ever sees one part without the others, after a crash neither. Conditions are held against the state
        before. A key may be named by several conditions, but by one put or delete only.

        Raises:
            PredicateFailed: a condition does not hold; nothing was written.
            InvalidInput: a key is to be put or deleted twice.
            BatchSizeTooBig: there are more than `limits.max_transact`.
            TooLarge: all of it together is more than the store takes in one step.
        """
        self._perform(checked_transaction(conditions, puts, deletes, self._limits))

    # ---- the handle

    def close(self) -> None:
        """Give up what the store holds; closing again does nothing. Scans that are still open end with `Closed`.

        In a child process it does nothing: what is open belongs to the parent.
        """
        if not self._state.is_closed and not self._state.is_inherited:
            self._state.close()
            self._close()

    def _perform(self, transaction: Transaction) -> None:
        # Before any lock: in a forked child a thread that is not there may hold it.
        self._state.require()
        if transaction.conditions or transaction.changes:
            self._transact(transaction)


# ---------------------------------------------------------------------- the checks, for back-ends that override


def checked_partition(partition: bytes, limits: KVLimits) -> bytes:
    """Return the partition as bytes of its own.

    Raises:
        MissingPartitionKey: it is empty or `None`.
        TooLarge: it is longer than the store takes.
    """
    if not partition:
        raise MissingPartitionKey("a partition was not named; give at least one byte")
    return _within("partition", partition, limits.max_partition_bytes)


def checked_cell(partition: bytes, key: bytes, limits: KVLimits) -> Address:
    """Return partition and key as bytes of their own.

    Raises:
        MissingPartitionKey, MissingKey, TooLarge: see `KVStore`.
    """
    if not partition:
        raise MissingPartitionKey("a partition was not named; give at least one byte")
    if not key:
        raise MissingKey("a key was not named; give at least one byte")
    return _within("partition", partition, limits.max_partition_bytes), _within("key", key, limits.max_key_bytes)


def checked_put(partition: bytes, key: bytes, value: Buffer, limits: KVLimits) -> tuple[bytes, bytes, bytes]:
    """Return partition, key and value as bytes of their own.

    Raises:
        MissingPartitionKey, MissingKey, MissingValue, TooLarge: see `KVStore`.
    """
    cell = checked_cell(partition, key, limits)
    if value is None:
        raise MissingValue('the value is None; an empty value is b"", and a key is removed by delete()')
    return (*cell, _within("value", value, limits.max_value_bytes))


def checked_transaction(conditions: Iterable[Condition], puts: Iterable[Put], deletes: Iterable[Delete],
                        limits: KVLimits) -> Transaction:
    """Return the arguments of a `transact`.

    Raises:
        MissingPartitionKey, MissingKey, MissingValue, InvalidInput, TooLarge, BatchSizeTooBig: see `KVStore.transact`.
    """
    demanded = [(*checked_cell(one.partition, one.key, limits), one.predicate) for one in conditions]
    changes: list[tuple[bytes, bytes, bytes | None]] = []
    changes += (checked_put(put.partition, put.key, put.value, limits) for put in puts)
    changes += ((*checked_cell(one.partition, one.key, limits), None) for one in deletes)
    size = len(demanded) + len(changes)
    if size > limits.max_transact:
        raise BatchSizeTooBig(size=size, limit=limits.max_transact)
    if len({change[:2] for change in changes}) < len(changes):
        raise InvalidInput("a key is to be put or deleted twice in one transaction; name it once")
    return Transaction(demanded, changes)


def holds(predicate: Predicate | None, version: Predicate | None) -> bool:
    """Whether a condition holds for a key of this version; a version of `None` is that of an absent key.

    For back-ends that compare versions themselves. By type too: `True` and `1.0` equal the version 1, and are no
    predicates.
    """
    if version is None or predicate is None:
        return version is predicate
    return predicate is EXISTS or (type(predicate) is type(version) and predicate == version)


def _within(what: str, value: Buffer, limit_bytes: int) -> bytes:
    data = own_bytes(value)
    if len(data) > limit_bytes:
        raise TooLarge(what=what, size_bytes=len(data), limit_bytes=limit_bytes)
    return data
