# SPDX-License-Identifier: Apache-2.0
"""The common part of stores that write in transactions, each shared by the threads that write at once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from compactlib.kv.parts.arguments import (
    Transaction,
    checked_cell,
    checked_cells,
    checked_partition,
    checked_present,
    checked_put,
    checked_transaction,
)
from compactlib.kv.parts.entries import PagedEntries
from compactlib.kv.parts.group_commit import GroupCommit
from compactlib.kv.store import Cell, Condition, Delete, KVEntry, KVLimits, Predicate, Put, Versioned

if TYPE_CHECKING:
    from typing_extensions import Buffer


class TransactionalStore(ABC):
    """The writes and scans of a `KVStore` over a few methods of a database.

    Args:
        limits: how much the store takes.
        page_size: how many entries one page of a scan holds, at most.
    """

    def __init__(self, limits: KVLimits, page_size: int) -> None:
        self._limits = limits
        self._page_size = page_size
        self._writes: GroupCommit[Transaction, None] = GroupCommit(self._commit)

    @abstractmethod
    def _commit(self, batch: Sequence[Transaction]) -> list[Exception | None]:
        """Carry out a batch in one transaction of the database; each item may fail its own conditions."""

    @abstractmethod
    def _load_page(self, partition: bytes, position: bytes, limit: int, keys_only: bool) -> tuple[list[KVEntry], bool]:
        """One page of a scan; see `compactlib.kv.parts.entries.PageLoader`."""

    @abstractmethod
    def _find_many(self, cells: Sequence[Cell]) -> list[Versioned | None]:
        """What is there of each cell; see `MultiGet.get_many`."""

    @abstractmethod
    def _require_open(self) -> None:
        """Raise `Closed` after `close`, and in a child of the process that opened the store."""

    def _submit(self, transaction: Transaction) -> None:
        # Before any lock: in a forked child a thread that is not there may hold it.
        self._require_open()
        self._writes.submit(transaction)

    @property
    def limits(self) -> KVLimits:
        """See `KVStore.limits`."""
        return self._limits

    def get_many(self, cells: Sequence[Cell]) -> list[Versioned | None]:
        """See `MultiGet.get_many`."""
        checked = checked_cells(cells, self._limits)
        self._require_open()
        return self._find_many(checked) if checked else []

    def set(self, partition: bytes, key: bytes, value: Buffer) -> None:
        """See `KVStore.set`. One commit, shared by the threads that write meanwhile."""
        self._submit(Transaction((), [checked_put(partition, key, value, self._limits)]))

    def set_if(self, partition: bytes, key: bytes, value: Buffer, predicate: Predicate | None) -> None:
        """See `KVStore.set_if`."""
        put = checked_put(partition, key, value, self._limits)
        self._submit(Transaction([(*put[:2], predicate)], [put]))

    def delete(self, partition: bytes, key: bytes) -> None:
        """See `KVStore.delete`."""
        self._submit(Transaction((), [(*checked_cell(partition, key, self._limits), None)]))

    def delete_if(self, partition: bytes, key: bytes, predicate: Predicate) -> None:
        """See `KVStore.delete_if`."""
        cell = checked_cell(partition, key, self._limits)
        self._submit(Transaction([(*cell, checked_present(predicate))], [(*cell, None)]))

    def transact(self, conditions: Iterable[Condition] = (), puts: Iterable[Put] = (),
                 deletes: Iterable[Delete] = ()) -> None:
        """See `KVStore.transact`."""
        self._submit(checked_transaction(conditions, puts, deletes, self._limits))

    def scan(self, partition: bytes, start: bytes = b"", *, prefix: bytes = b"", after: bytes | None = None,
             page_size: int | None = None, keys_only: bool = False) -> PagedEntries:
        """See `KVStore.scan`."""
        partition = checked_partition(partition, self._limits)
        self._require_open()

        def load(position: bytes, limit: int) -> tuple[list[KVEntry], bool]:
            return self._load_page(partition, position, limit, keys_only)

        return PagedEntries(load, start, prefix=prefix, after=after, page_size=page_size, largest_page=self._page_size)
