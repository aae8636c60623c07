# SPDX-License-Identifier: Apache-2.0
"""`BranchStore`: branch records in the key-value store, changed by compare-and-set only.

Every change is a `swap` of the record's cell: read, decide, write if the record is unchanged. A change that removes
tokens from a record writes their drop mark in the same step: see `tokens`. A change may also read tokens and ranges.
After a concurrent change of the record these may be half removed. So "no change needed" and errors count only if the
record is unchanged afterwards.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeVar

import attrs

from compactlib.clock import Clock
from compactlib.errors import Busy, StorageError
from compactlib.kv import KVStore, PredicateFailed, Retries, SlowDown
from compactlib.kv.cell import Found, Judge, Swap, swap
from compactlib.kv.store import Address
from compactlib.staging.activity import Activity
from compactlib.staging.errors import BeingCollected, BranchExists, BranchNotFound, TooManyTries
from compactlib.staging.names import BRANCHES, branch_key
from compactlib.staging.record import BranchRecord, decode_branch_record, encode_branch_record
from compactlib.staging.tokens import StagingTokens

T = TypeVar("T")

_MAX_DECODED: Final = 1000


@attrs.frozen
class BranchUpdate:
    """The result of a change of a branch record.

    Attributes:
        before: the record before.
        after: the record afterwards; equal to `before` if nothing was written.
    """

    before: BranchRecord
    after: BranchRecord

    @property
    def is_written(self) -> bool:
        """Whether the record was written."""
        return self.after.version != self.before.version


Change = Callable[[BranchRecord], BranchRecord | None]
"""Returns the next record, or `None` to write nothing. May be called several times; its exceptions end the update.
It need not count the version."""


class BranchStore:
    """The branch records of one repository. Threads may share it.

    Every method raises the errors of the key-value store, `CorruptData` for a damaged record and `Unsupported` for a
    record of a newer release. A change raises `BranchNotFound`; `TooManyTries` if every try lost to others;
    `OutcomeUnknown` if a try got no answer, and its outcome cannot be read. It notifies `activity`.
    """

    def __init__(self, store: KVStore, partition: bytes, tokens: StagingTokens, retries: Retries, clock: Clock,
                 random: random.Random, activity: Activity) -> None:
        self._store = store
        self._partition = partition
        self._tokens = tokens
        self._retries = retries
        self._clock = clock
        self._random = random
        self._activity = activity
        self._decoded: dict[bytes, tuple[bytes, BranchRecord]] = {}

    def tries(self) -> Iterator[int]:
        """Yield the number of each try of a call, after a wait from the second on."""
        return self._retries.paced(self._clock, self._random)

    def read(self, branch: str) -> BranchRecord:
        """Return the present record of a branch, or raise `BranchNotFound`. One read."""
        return self.record_in(self._store.get_many([self.cell(branch)]), branch)

    def cell(self, branch: str) -> Address:
        """Return the address of a branch's record."""
        return self._partition, branch_key(branch)

    # --- changes

    def create(self, branch: str, record: BranchRecord) -> None:
        """Write the first record of a branch, or raise `BranchExists`. A read and a write."""
        cell = self.cell(branch)

        def decide(cells: Found) -> Swap[None]:
            if cell in cells:
                raise BranchExists(branch=branch)
            return Swap(None, {cell: encode_branch_record(record)})

        self._swap([cell], decide, f"create of branch {branch!r}")
        self._activity.wrote(branch, None, record)

    def update(self, branch: str, change: Change, *, operation: str, idempotent: bool = False) -> BranchUpdate:
        """Change the record of a branch by compare-and-set, and mark the dropped tokens in the same step.

        Args:
            branch: the branch's name.
            change: returns the next record.
            operation: for errors.
            idempotent: whether `change` may be applied twice. Then it is retried if the outcome of an unanswered write
                cannot be read.
        """
        def decide(before: BranchRecord, _: Found) -> Swap[BranchUpdate]:
            record = change(before)
            if record is None:
                return Swap(BranchUpdate(before, before))
            after = attrs.evolve(record, version=before.version + 1)
            return self._replaced(branch, before, after, BranchUpdate(before, after))

        done = self.swap(branch, decide, operation=operation, may_repeat=idempotent)
        if done.is_written:
            self._activity.wrote(branch, done.before, done.after)
        return done

    def delete(self, branch: str, expected: Callable[[BranchRecord], object] = lambda _: None) -> None:
        """Delete the record of a branch, and mark its tokens, in one step.

        `expected` is called with the record, and may raise to end the call. If the branch has another record after an
        unanswered try, another caller may have created it again: it is not deleted.
        """
        def decide(before: BranchRecord, _: Found) -> Swap[None]:
            expected(before)
            return self._replaced(branch, before, None, None)

        self.swap(branch, decide, operation="delete")
        self._activity.deleted(branch)

    def swap(self, branch: str, decide: Callable[[BranchRecord, Found], Swap[T]], *, operation: str,
             may_repeat: bool = False, also_read: Sequence[Address] = (), judge: Judge[T] | None = None) -> T:
        """Read a branch and other keys, call `decide`, and write its result if all of them are unchanged.

        See `compactlib.kv.cell.swap`.
        """
        def guarded(cells: Found) -> Swap[T]:
            record = self.record_in(cells, branch)
            try:
                wanted = decide(record, cells)
            except (StorageError, SlowDown, BeingCollected):
                raise
            except Exception:
                self._require_unchanged(branch, record)
                raise
            if not wanted.changes:
                self._require_unchanged(branch, record)
            return wanted

        try:
            return self._swap([self.cell(branch), *also_read], guarded, f"{operation} of branch {branch!r}",
                              may_repeat=may_repeat, judge=judge)
        except Busy as error:
            if type(error) is not Busy:
                raise
            raise TooManyTries(operation=operation, branch=branch, tries=self._retries.tries) from error

    def fence(self, branch: str, listed: BranchRecord) -> BranchRecord | None:
        """Invalidate updates in flight: rewrite a record, so that compare-and-sets begun earlier fail. Two requests.

        A record that another writer changed since the listing needs no write. Returns the present record; `None` of a
        deleted branch.
        """
        try:
            return self.update(branch, lambda record: record if record == listed else None, operation="fence",
                               idempotent=True).after
        except BranchNotFound:
            return None

    def _swap(self, cells: Sequence[Address], decide: Callable[[Found], Swap[T]], operation: str, *,
              may_repeat: bool = False, judge: Judge[T] | None = None) -> T:
        return swap(self._store, cells, decide, operation=operation, may_repeat=may_repeat, judge=judge,
                    retries=self._retries, clock=self._clock, rng=self._random)

    def _replaced(self, branch: str, before: BranchRecord, after: BranchRecord | None, result: T) -> Swap[T]:
        kept = set[str]() if after is None else set(after.tokens)
        dropped = [token for token in before.tokens if token not in kept]
        return Swap(result, {self.cell(branch): None if after is None else encode_branch_record(after),
                             **(self._tokens.mark(branch, dropped) if dropped else {})})

    def _require_unchanged(self, branch: str, record: BranchRecord) -> None:
        if self.read(branch) != record:
            partition, key = self.cell(branch)
            raise PredicateFailed(partition=partition, key=key)

    def record_in(self, cells: Found, branch: str) -> BranchRecord:
        """Return the record of a branch from read cells, or raise `BranchNotFound`. No request."""
        cell = self.cell(branch)
        if cell not in cells:
            self._activity.missed(branch)
            raise BranchNotFound(branch=branch)
        return self._decode(cell[1], cells[cell].value)

    def _decode(self, key: bytes, value: bytes) -> BranchRecord:
        """Decode a record, or return the last one of equal bytes: most operations read a record twice."""
        kept = self._decoded.get(key)
        if kept is not None and kept[0] == value:
            return kept[1]
        record = decode_branch_record(value, self._place(key))
        if len(self._decoded) >= _MAX_DECODED:
            self._decoded.clear()
        self._decoded[key] = value, record
        return record

    def _place(self, key: bytes) -> str:
        return f"key {key!r} of partition {self._partition!r}"

    def list(self) -> Iterator[tuple[str, BranchRecord]]:
        """Yield every branch and its record at that moment, in order of the names' bytes."""
        with self._store.scan(self._partition, prefix=BRANCHES) as entries:
            for entry in entries:
                yield (entry.key[len(BRANCHES):].decode("utf-8", "replace"),
                       decode_branch_record(entry.value, self._place(entry.key)))
