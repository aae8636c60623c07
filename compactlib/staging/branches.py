# SPDX-License-Identifier: Apache-2.0
"""`BranchStore`: branch records in the key-value store, changed by compare-and-set only; and the drop marks of tokens.

Every change is a `swap` of the record's cell: read, decide, write if the record is unchanged. A change may also read
tokens and ranges. After a concurrent change of the record these may be half removed. So "no change needed" and errors
count only if the record is unchanged afterwards.

The step that removes tokens from a record writes a *drop mark* with their names, so that a token is always in a record
or in a mark. The cleanup removes the entries after a grace period, and then the mark.

1. A token that a record names has no mark.
2. A token that no record names has a mark, or is empty. A late write to a dropped token marks it again (`mark_late`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

import attrs

from compactlib.errors import Busy, CompactlibError, Conflict, CorruptData, StorageError, Unsupported
from compactlib.files.durable_record import JsonRecord
from compactlib.kv import PredicateFailed, SlowDown
from compactlib.kv.batches import change_many
from compactlib.kv.cell import Found, Judge, Swap
from compactlib.kv.store import Address
from compactlib.observer import Observer
from compactlib.staging.errors import BeingCollected, BranchNotFound, PreconditionFailed
from compactlib.staging.record import BranchRecord, Cells, decode_branch_record, encode_branch_record
from compactlib.staging.values import BRANCHES, DROPPED, StagingToken, branch_key, token_partition

if TYPE_CHECKING:
    from compactlib.staging.sensor import CompactionSensor


T = TypeVar("T")


@attrs.frozen(kw_only=True)
class DropMark:
    """Tokens that no branch record names, since `at_ms` by the writer's clock; `branch` is for people."""

    branch: str
    tokens: tuple[StagingToken, ...]
    at_ms: int


MARKS: Final = JsonRecord("drop mark", b"CLDROPPD", 1, DropMark)

Change: TypeAlias = Callable[[BranchRecord], BranchRecord | None]
"""Returns the next record, or `None` to write nothing. May be called several times; its exceptions end the update.
It need not count the version."""


class BranchStore:
    """The branch records of one repository. Threads may share it.

    Each record that is read or written by its name is shown to the sensor. `staging_sealed_tokens` is an event for each
    change of their number.

    A change raises `BranchNotFound`; `Busy` if every try lost to others; `OutcomeUnknown` if a try got no
    answer, and its outcome cannot be read.
    """

    def __init__(self, repository: str, cells: Cells, observer: Observer, sensor: CompactionSensor | None) -> None:
        self._repository = repository
        self._cells = cells
        self._observer = observer
        self._sensor = sensor

    def address(self, branch: str) -> Address:
        """Return the address of a branch's record."""
        return self._cells.address(branch_key(branch))

    def read(self, branch: str) -> BranchRecord:
        """Return the present record of a branch, or raise `BranchNotFound`. One read."""
        return self.record_in(self._cells.store.get_many([self.address(branch)]), branch)

    def record_in(self, found: Found, branch: str) -> BranchRecord:
        """Return the record of a branch from read cells, or raise `BranchNotFound`. No request."""
        address = self.address(branch)
        if address not in found:
            if self._sensor is not None:
                self._sensor.forget(self._repository, branch)
            raise BranchNotFound(branch=branch)
        record = decode_branch_record(found[address].value, self._cells.place(address[1]))
        if self._sensor is not None:
            self._sensor.saw(self._repository, branch, record)
        return record

    def list(self) -> Iterator[tuple[str, BranchRecord]]:
        """Yield every branch and its record at that moment, in order of the names' bytes."""
        for key, value in self._cells.scan(BRANCHES):
            yield key[len(BRANCHES):].decode("utf-8", "replace"), decode_branch_record(value, self._cells.place(key))

    def count_tombstones(self, branch: str, record: BranchRecord, *, written: int = 0, listed: int = 0) -> None:
        """Report acknowledged tombstones, or those that a page of a listing skipped, to the sensor, if there is one."""
        if self._sensor is not None and written:
            self._sensor.wrote_tombstones(self._repository, branch, record, written)
        if self._sensor is not None and listed:
            self._sensor.listed_tombstones(self._repository, branch, record, listed)

    def overtaken(self, operation: str, branch: str) -> Busy:
        """Return the error of a call that lost every try to other writers."""
        return Busy(f"{operation} of branch {branch!r}: other writers were first {self._cells.retries.tries} times in "
                    f"a row; wait and call again")

    # --- seals

    def new_token(self) -> StagingToken:
        """Draw a staging token. No request."""
        return StagingToken(f"stg-{self._cells.rng.getrandbits(128):032x}")

    def is_empty(self, token: StagingToken) -> bool:
        """Return whether a token has no entry. One read."""
        with self._cells.store.scan(token_partition(token), page_size=1, keys_only=True) as entries:
            return next(entries, None) is None

    def sealed(self, record: BranchRecord) -> BranchRecord | None:
        """Return a record after a seal; `None` if its staging token is empty, as a seal would only cost reads."""
        return None if self.is_empty(record.staging_token) else record.sealed_with(self.new_token())

    # --- changes

    def create(self, branch: str, record: BranchRecord) -> None:
        """Write the first record of a branch, or raise `Conflict` if there is one. A read and a write."""
        address = self.address(branch)

        def decide(found: Found) -> Swap[None]:
            if address in found:
                raise Conflict(f"there is a branch {branch!r} already; use it, or choose another name")
            return Swap(None, {address: encode_branch_record(record)})

        self._cells.swap([address], decide, operation=f"create of branch {branch!r}")
        self._notify(branch, None, record)

    def update(self, branch: str, change: Change, *, operation: str, idempotent: bool = False,
               ) -> tuple[BranchRecord, BranchRecord]:
        """Change the record of a branch by compare-and-set, and mark the dropped tokens in the same step.

        Returns the record before and afterwards; twice the same object if nothing was written. An idempotent `change`
        is retried if the outcome of an unanswered write cannot be read.
        """
        def decide(before: BranchRecord, _: Found) -> Swap[tuple[BranchRecord, BranchRecord]]:
            record = change(before)
            if record is None:
                return Swap((before, before))
            after = attrs.evolve(record, version=before.version + 1)
            return self._replaced(branch, before, after, (before, after))

        before, after = self.swap(branch, decide, operation=operation, may_repeat=idempotent)
        if after is not before:
            self._notify(branch, before, after)
        return before, after

    def delete(self, branch: str, expected: BranchRecord | None) -> None:
        """Delete the record of a branch, and mark its tokens, in one step. Raises `PreconditionFailed` for another one.

        If the branch has another record after an unanswered try, another caller may have created it: it is not deleted.
        """
        def decide(before: BranchRecord, _: Found) -> Swap[BranchRecord]:
            if expected is not None and before != expected:
                raise PreconditionFailed(branch=branch, key=b"")
            return self._replaced(branch, before, None, before)

        self._notify(branch, self.swap(branch, decide, operation="delete"), None)

    def fence(self, branch: str, listed: BranchRecord) -> BranchRecord | None:
        """Rewrite a record as listed, so that compare-and-sets begun earlier fail. Two requests.

        Returns the present record: a changed one needs no write; `None` of a deleted branch.
        """
        try:
            return self.update(branch, lambda record: record if record == listed else None, operation="fence",
                               idempotent=True)[1]
        except BranchNotFound:
            return None

    def swap(self, branch: str, decide: Callable[[BranchRecord, Found], Swap[T]], *, operation: str,
             may_repeat: bool = False, also_read: Sequence[Address] = (), judge: Judge[T] | None = None) -> T:
        """Read a branch and other cells, call `decide`, and write its result if all of them are unchanged."""
        def guarded(found: Found) -> Swap[T]:
            record = self.record_in(found, branch)
            try:
                wanted = decide(record, found)
            except (StorageError, SlowDown, BeingCollected):
                raise
            except Exception:
                self._require_unchanged(branch, record)
                raise
            if not wanted.changes:
                self._require_unchanged(branch, record)
            return wanted

        return self._cells.swap([self.address(branch), *also_read], guarded, may_repeat=may_repeat, judge=judge,
                                operation=f"{operation} of branch {branch!r}")

    def _replaced(self, branch: str, before: BranchRecord, after: BranchRecord | None, result: T) -> Swap[T]:
        kept = set[str]() if after is None else set(after.tokens)
        dropped = [token for token in before.tokens if token not in kept]
        return Swap(result, {self.address(branch): None if after is None else encode_branch_record(after),
                             **(self._mark(branch, dropped) if dropped else {})})

    def _notify(self, branch: str, before: BranchRecord | None, after: BranchRecord | None) -> None:
        if self._sensor is not None:
            if after is None:
                self._sensor.forget(self._repository, branch)
            else:
                self._sensor.saw(self._repository, branch, after)
        sealed = None if after is None else len(after.sealed_tokens)
        if sealed != (0 if before is None else len(before.sealed_tokens)):
            self._observer.event("staging_sealed_tokens", repository=self._repository, branch=branch, value=sealed)

    def _require_unchanged(self, branch: str, record: BranchRecord) -> None:
        if self.read(branch) != record:
            partition, key = self.address(branch)
            raise PredicateFailed(partition=partition, key=key)

    # --- drop marks

    def _mark(self, branch: str, tokens: Iterable[StagingToken]) -> dict[Address, bytes]:
        cells = self._cells
        return {cells.address(DROPPED + b"%016x" % cells.rng.getrandbits(64)): MARKS.encode(DropMark(
            branch=branch, tokens=tuple(tokens), at_ms=int(cells.clock.now() * 1000)))}

    def mark_late(self, branch: str, token: StagingToken) -> None:
        """Mark a dropped token after a late write to it, as the cleanup may have ended before. One write."""
        self._cells.store.transact(changes=self._mark(branch, [token]))

    def marks(self, damage: dict[bytes, CompactlibError] | None = None) -> Iterator[tuple[bytes, DropMark]]:
        """Yield the key and the value of every mark. Puts errors of unreadable marks into `damage`, else raises them.
        """
        for key, value in self._cells.scan(DROPPED, damage):
            try:
                mark = MARKS.decode(value, self._cells.place(key))
            except (CorruptData, Unsupported) as error:
                if damage is None:
                    raise
                damage[key] = error
            else:
                yield key, mark

    def forget(self, keys: Iterable[bytes]) -> None:
        """Remove marks of empty tokens by their keys. One write, where the store takes as many keys."""
        change_many(self._cells.store, self._cells.partition, dict.fromkeys(keys))
