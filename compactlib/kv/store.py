# SPDX-License-Identifier: Apache-2.0
"""`KVStore`: what the library needs of a key-value store, so that hosts can bring their own.

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
from typing import TYPE_CHECKING, Final, Protocol, Self, TypeAlias

import attrs

from compactlib.errors import InvalidInput

if TYPE_CHECKING:
    from typing_extensions import Buffer

Predicate: TypeAlias = object
"""The state of one key, as `KVStore.get` found it: opaque, compared by the store alone, good for one store only."""

Cell: TypeAlias = tuple[bytes, bytes]
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
class KVEntry:
    """One key of a scan.

    Attributes:
        key: the key.
        value: its value.
        predicate: as that of `Versioned`.
    """

    key: bytes
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
        max_transact: conditions, puts and deletes of one `transact` together; 0 if the store has none.
        max_get_many: cells of one `get_many`; 0 if the store is no `MultiGet`.

    Raises:
        InvalidInput: one is no whole number, or negative.
    """

    max_partition_bytes: int
    max_key_bytes: int
    max_value_bytes: int
    max_transact: int
    max_get_many: int = 0

    def __attrs_post_init__(self) -> None:
        for name, value in attrs.asdict(self).items():
            if value < 0:
                raise InvalidInput(f"{name} is {value}; give 0 or more")


class Entries(Protocol):
    """The entries of one partition, ascending by key byte by byte; for one thread at a time.

    Each page is one consistent read. Keys written or deleted while the scan goes on may be in it or not; all others
    are, once each. Close it, or use it in a `with`.
    """

    @property
    def page_loads(self) -> int:
        """How many times the store was asked so far. Making the scan asks nothing."""

    def __iter__(self) -> Self:
        """Itself."""

    def __next__(self) -> KVEntry:
        """The next entry. After `StopIteration` a `seek` starts anew.

        Raises:
            ClosedEntries: the scan was closed.
            CompactlibError: as `KVStore.get`; the same call may be made again and goes on where the last one ended.
        """

    def seek(self, key: bytes) -> None:
        """Go on with the first key >= `key` (within the prefix), forwards or backwards.

        No page is loaded here, and none later if the place lies inside the page at hand.

        Raises:
            ClosedEntries: the scan was closed.
        """

    def close(self) -> None:
        """Give up what the scan holds; closing again does nothing."""

    def __enter__(self) -> Self:
        """Itself."""

    def __exit__(self, *_: object) -> None:
        """Close."""


class KVStore(Protocol):
    """A key-value store with ordered scans and compare-and-set. Any thread may call any method.

    Arguments are checked in this order: `MissingPartitionKey`, `MissingKey`, `MissingValue` for what is `None` or empty
    (an empty value is a value), `InvalidInput` for what is not bytes, `TooLarge`. Every method may raise `Closed` after
    `close`, `SlowDown`, `StoreFailed` and `ConnectFailed`, and each one that writes `OutcomeUnknown`; whatever else a
    backend says is turned into one of them, never into "not found" or "predicate failed".
    """

    @property
    def limits(self) -> KVLimits:
        """How much this store takes."""

    def get(self, partition: bytes, key: bytes) -> Versioned:
        """The value of a key.

        Raises:
            KeyNotFound: the partition has no such key, or there is no such partition.
        """

    def set(self, partition: bytes, key: bytes, value: Buffer) -> None:
        """Write a value, whatever was there. A buffer is copied before the call returns."""

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

    def delete(self, partition: bytes, key: bytes) -> None:
        """Remove a key; one that is not there is no error."""

    def delete_if(self, partition: bytes, key: bytes, predicate: Predicate) -> None:
        """Remove a key if it is in the expected state, in one step.

        Raises:
            PredicateFailed: it is not; nothing was removed.
            InvalidInput: the predicate is `None`.
        """

    def scan(self, partition: bytes, start: bytes = b"", *, prefix: bytes = b"", after: bytes | None = None,
             page_size: int | None = None, keys_only: bool = False) -> Entries:
        """The entries of a partition in the order of their keys.

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

    def transact(self, conditions: Iterable[Condition] = (), puts: Iterable[Put] = (),
                 deletes: Iterable[Delete] = ()) -> None:
        """Carry out all puts and deletes, in any partitions, if all conditions hold; or nothing. In one step.

        No reader ever sees one part without the others, after a crash neither. Conditions are held against the state
        before. A key may be named by several conditions, but by one put or delete only.

        Raises:
            PredicateFailed: a condition does not hold; nothing was written.
            InvalidInput: a key is to be put or deleted twice.
            BatchSizeTooBig: there are more than `limits.max_transact`.
            Unsupported: this store cannot change several keys in one step.
        """

    def close(self) -> None:
        """Give up what the store holds; closing again does nothing. Scans that are still open end with `Closed`."""

    def audit(self) -> None:
        """Check the store's own invariants. May read everything.

        Raises:
            AuditFailed: the store is wrong; the message has the numbers.
            CorruptData: what is stored is damaged.
        """


class MultiGet(Protocol):
    """What a `KVStore` with `limits.max_get_many` above 0 offers besides."""

    def get_many(self, cells: Sequence[Cell]) -> Sequence[Versioned | None]:
        """What `KVStore.get` finds for each cell, `None` for one that is not there; each as it is at some moment of the
        call, not all at the same one.

        Args:
            cells: partitions and keys, each pair once.

        Raises:
            BatchSizeTooBig: there are more than `limits.max_get_many`.
            InvalidInput: a cell is named twice.
        """


class Placed(Protocol):
    """What a `KVStore` may offer besides: where it is, so that a copy of it is told from itself."""

    def place(self) -> str | None:
        """Words for the place of what is stored: the same from every process, after every restart, as long as it lives;
        others for a copy. `None` if the store cannot tell.

        Raises:
            CompactlibError: as `KVStore.get`.
        """


def place_of(store: KVStore) -> str | None:
    """The place of a store; `None` if it does not say.

    Raises:
        InvalidInput: it says what is no text.
        CompactlibError: as `KVStore.get`.
    """
    # Also of a store that hands on by `__getattr__` what it does not have.
    say = getattr(store, "place", None)
    return None if say is None else say()
