# SPDX-License-Identifier: Apache-2.0
"""`BranchStore`: branch records in the key-value store, changed by compare-and-set only.

A change that takes tokens out of a record writes their drop mark in the same step: see `tokens`.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

import attrs

from compactlib.clock import Clock
from compactlib.errors import Busy, CompactlibError, StorageError
from compactlib.kv import Condition, Delete, KVStore, OutcomeUnknown, PredicateFailed, Put, SlowDown
from compactlib.kv.batches import get_many
from compactlib.kv.cell import Attempt, Fate, Found, Swap, look_until_seen, swap
from compactlib.kv.errors import TooLarge
from compactlib.kv.store import Address, Predicate
from compactlib.staging.activity import Activity
from compactlib.staging.errors import (
    BeingCollected,
    BranchExists,
    BranchNotFound,
    MetaRangeNotFound,
    RangeNotFound,
    TooManyTries,
)
from compactlib.staging.names import BRANCHES, branch_key
from compactlib.staging.options import StagingOptions
from compactlib.staging.record import BranchRecord, decode_branch_record, encode_branch_record
from compactlib.staging.tokens import StagingTokens

T = TypeVar("T")


@attrs.frozen
class FoundBranch:
    """A branch record and the state of its cell.

    Attributes:
        branch: the branch's name.
        record: the record.
        predicate: of its cell in the key-value store.
    """

    branch: str
    record: BranchRecord
    predicate: Predicate


@attrs.frozen
class BranchUpdate:
    """A change of a branch record that happened, or was not needed.

    Attributes:
        before: the record that was changed.
        after: what it was changed to; the same as `before` if nothing was written.
    """

    before: BranchRecord
    after: BranchRecord

    @property
    def is_written(self) -> bool:
        """Whether the record was written."""
        return self.after.version != self.before.version


_MAX_DECODED = 1000
_BATCH = 1000

Change = Callable[[BranchRecord], BranchRecord | None]
"""Makes the next record of the present one, `None` to leave it. May be called several times; what it raises ends the
update. It need not count the version."""
Also = Callable[[BranchRecord], Iterable[Condition | Put | Delete]]
"""Given the next record: what is done in the same step."""


class BranchStore:
    """The branch records of one repository. Threads may share it.

    Every method raises what the key-value store raises, `CorruptData` for a damaged record and `Unsupported` for one of
    a newer release.

    Args:
        store: where.
        partition: the repository's.
        tokens: writes the marks of dropped tokens.
        options: how often to try, and how long to wait in between.
        clock: waits.
        random: draws the waits.
        activity: notes each record that is written, and branches that are not there.
    """

    def __init__(self, store: KVStore, partition: bytes, tokens: StagingTokens, options: StagingOptions, clock: Clock,
                 random: random.Random, activity: Activity) -> None:
        self._store = store
        self._partition = partition
        self._tokens = tokens
        self._options = options
        self._clock = clock
        self._random = random
        self._activity = activity
        self._decoded: dict[bytes, tuple[bytes, BranchRecord]] = {}

    def tries(self) -> Iterator[int]:
        """Yield the number of each try of one call; waits before all but the first."""
        return self._options.retries.paced(self._clock, self._random)

    def read(self, branch: str) -> FoundBranch:
        """Return the record of a branch, as it is now. One read.

        Raises:
            BranchNotFound: there is no such branch.
            InvalidInput: it is no name of a branch.
        """
        return self._found_in(branch, get_many(self._store, [self.cell(branch)]))

    def cell(self, branch: str) -> Address:
        """Return where the record of a branch is."""
        return self._partition, branch_key(branch)

    def _found_in(self, branch: str, found: Found) -> FoundBranch:
        cell = self.cell(branch)
        if cell not in found:
            self._activity.missed(branch)
            raise BranchNotFound(branch=branch)
        return FoundBranch(branch, self._decode(cell[1], found[cell].value), found[cell].predicate)

    def consistently(self, branch: str, read: Callable[[FoundBranch], tuple[T, bool]], *, operation: str,
                     ) -> tuple[T, FoundBranch, FoundBranch]:
        """Read through states of a branch until one held.

        Args:
            branch: the branch's name.
            read: reads through a state; returns the result, and whether it holds without a second look. What it raises
                goes through, but not the absence of a file that the branch meanwhile names no longer.
            operation: for errors.

        Returns:
            The result, the state that it was read through, and the newest one that was seen.

        Raises:
            BranchNotFound: there is no such branch.
            TooManyTries: the layers were replaced under every try.
        """
        found = self.read(branch)
        for _ in self.tries():
            missing: MetaRangeNotFound | RangeNotFound | None = None
            try:
                result, holds = read(found)
                if holds:
                    return result, found, found
            except (MetaRangeNotFound, RangeNotFound) as error:
                missing = error
            now = self.read(branch)
            if now.record.extends(found.record):
                if missing is not None:
                    raise missing
                return result, found, now
            found = now
        raise TooManyTries(operation=operation, branch=branch, tries=self._options.retries.tries)

    def create(self, branch: str, record: BranchRecord) -> None:
        """Write the first record of a branch. One write.

        Raises:
            BranchExists: there is a branch of this name.
            OutcomeUnknown: no answer came, and the outcome of the write cannot be seen.
        """
        try:
            self._store.set_if(*self.cell(branch), encode_branch_record(record), None)
        except PredicateFailed:
            raise BranchExists(branch=branch) from None
        except OutcomeUnknown as error:
            seen = self.seen_after(branch, error)
            if seen is None or seen.record.version > record.version:
                raise
            if seen.record != record:
                raise BranchExists(branch=branch) from error
        self._activity.wrote(branch, None, record)

    def try_update(self, found: FoundBranch, record: BranchRecord) -> BranchRecord:
        """Write the next record, which drops no token, if the branch is as it was found; returns it. One write.

        Raises:
            PredicateFailed: another writer changed or deleted the branch; nothing was written.
            OutcomeUnknown: no answer came; `seen_after` finds out.
        """
        record = attrs.evolve(record, version=found.record.version + 1)
        self._store.set_if(*self.cell(found.branch), encode_branch_record(record), found.predicate)
        self._activity.wrote(found.branch, found.record, record)
        return record

    def seen_after(self, branch: str, unknown: OutcomeUnknown) -> FoundBranch | None:
        """Read a branch after a write that got no answer, again and again; `None`: no branch.

        Raises:
            OutcomeUnknown: `unknown`: it could not be read.
        """
        def look() -> FoundBranch | None:
            try:
                return self.read(branch)
            except BranchNotFound:
                return None

        return look_until_seen(look, unknown, clock=self._clock, rng=self._random)

    def unchanged(self, found: FoundBranch) -> Condition:
        """Return the condition of a `transact` that the branch is as it was found."""
        return Condition(*self.cell(found.branch), found.predicate)

    def update(self, branch: str, change: Change, *, operation: str = "update", idempotent: bool = True,
               also: Also | None = None) -> BranchUpdate:
        """Change the record of a branch against others who do the same, and mark the tokens that it drops, in one step.

        Args:
            branch: the branch's name.
            change: makes the next record.
            operation: for errors.
            idempotent: whether `change` may be made twice, or recognizes what it has made of a record (a token, a
                commit): then it is retried where the outcome of an unanswered write cannot be known.
            also: what is done in the same step.

        Raises:
            BranchNotFound: there is no such branch, or no longer.
            PredicateFailed: a condition of `also` does not hold.
            TooManyTries: others were faster too many times.
            OutcomeUnknown: a try got no answer, and its outcome could not be seen.
        """
        def decide(cells: Found) -> Swap[BranchUpdate]:
            found = self._found_in(branch, cells)
            record = self._asked(change, found)
            if record is None:
                # "Nothing to do" was perhaps read from tokens that were emptied meanwhile, and holds only if the branch
                # still names them: no compare-and-set says so here.
                self._require_unchanged(found)
                return Swap(BranchUpdate(found.record, found.record))
            after = attrs.evolve(record, version=found.record.version + 1)
            return self._swap_to(found, after, BranchUpdate(found.record, after), () if also is None else also(after))

        done = self._swap(branch, decide, operation, idempotent=idempotent)
        if done.is_written:
            self._activity.wrote(branch, done.before, done.after)
        return done

    def delete(self, branch: str, expected: Callable[[BranchRecord], object] = lambda _: None) -> None:
        """Delete the record of a branch, and mark its tokens, in one step.

        Args:
            branch: which branch.
            expected: is asked about the record that will be deleted; what it raises ends the call.

        Raises:
            BranchNotFound: there is no such branch.
            TooManyTries: others were faster too many times.
            OutcomeUnknown: a try got no answer, and its outcome could not be seen. If the branch has another
                record then, it may have been made anew, and is left alone.
        """
        def decide(cells: Found) -> Swap[None]:
            found = self._found_in(branch, cells)
            expected(found.record)
            return self._swap_to(found, None, None, ())

        self._swap(branch, decide, "delete", idempotent=False)
        self._activity.deleted(branch)

    def _swap_to(self, found: FoundBranch, after: BranchRecord | None, result: T,
                 also: Iterable[Condition | Put | Delete]) -> Swap[T]:
        kept = set[str]() if after is None else set(after.tokens)
        dropped = [token for token in found.record.tokens if token not in kept]
        writes: dict[Address, bytes | None] = {
            self.cell(found.branch): None if after is None else encode_branch_record(after)}
        conditions = []
        for part in (*also, *([self._tokens.mark(found.branch, dropped)] if dropped else ())):
            if isinstance(part, Condition):
                conditions.append(part)
            else:
                writes[part.partition, part.key] = part.value if isinstance(part, Put) else None
        return Swap(result, writes, conditions)

    def _swap(self, branch: str, decide: Callable[[Found], Swap[T]], operation: str, *, idempotent: bool) -> T:
        retries = self._options.retries
        try:
            return swap(self._store, [self.cell(branch)], decide, operation=f"{operation} of branch {branch!r}",
                        may_repeat=idempotent, judge=_by_record, retries=retries, clock=self._clock, rng=self._random)
        except Busy as error:
            if type(error) is not Busy:
                raise
            raise TooManyTries(operation=operation, branch=branch, tries=retries.tries) from error

    def _asked(self, change: Change, found: FoundBranch) -> BranchRecord | None:
        """Return what `change` makes of the record; `None` to leave it.

        Raises:
            PredicateFailed: it refused, but the record is another one by now: what it read may have been half cleaned
                up.
        """
        try:
            record = change(found.record)
        except (StorageError, SlowDown, BeingCollected):
            raise
        except CompactlibError:
            self._require_unchanged(found)
            raise
        return None if record == found.record else record

    def _require_unchanged(self, found: FoundBranch) -> None:
        if self.read(found.branch).record != found.record:
            partition, key = self.cell(found.branch)
            raise PredicateFailed(partition=partition, key=key)

    def fence(self, found: Iterable[FoundBranch]) -> Iterator[FoundBranch]:
        """Invalidate updates in flight: rewrite each record, so that compare-and-sets begun earlier fail.

        One write for many, where the store takes them and none is changed at that moment; else one each. A branch that
        another writer changed or deleted meanwhile needs no write.

        Returns:
            The branches as they are then; those that are gone are left out.

        Raises:
            OutcomeUnknown: no answer came, and the outcome of a write cannot be seen.
        """
        waiting = iter(found)
        while part := list(islice(waiting, min(_BATCH, max(1, self._store.limits.max_transact // 2)))):
            if len(part) > 1:
                with contextlib.suppress(PredicateFailed, OutcomeUnknown, TooLarge):
                    yield from self._fence_together(part)
                    continue
            # What a write without an answer does later, it does to records that none of these has written yet.
            yield from (each for each in map(self._fence, part) if each is not None)

    def _fence_together(self, part: Sequence[FoundBranch]) -> list[FoundBranch]:
        fenced = [attrs.evolve(one, record=attrs.evolve(one.record, version=one.record.version + 1)) for one in part]
        self._store.transact([self.unchanged(one) for one in part],
                             [Put(*self.cell(one.branch), encode_branch_record(one.record)) for one in fenced])
        return fenced

    def _fence(self, found: FoundBranch) -> FoundBranch | None:
        try:
            return FoundBranch(found.branch, self.try_update(found, found.record), found.predicate)
        except PredicateFailed:
            try:
                return self.read(found.branch)
            except BranchNotFound:
                return None
        except OutcomeUnknown as error:
            seen = self.seen_after(found.branch, error)
            if seen is not None and seen.record == found.record:
                raise
            return seen

    def list(self, prefix: str = "") -> Iterator[FoundBranch]:
        """Return every branch, in order of the names' bytes; not one state of all, but each as it is in its turn."""
        # What is not valid Unicode begins no name.
        with self._store.scan(self._partition, prefix=BRANCHES + prefix.encode("utf-8", "surrogatepass")) as entries:
            for entry in entries:
                yield FoundBranch(entry.key[len(BRANCHES):].decode("utf-8", "replace"),
                                  decode_branch_record(entry.value, self._place(entry.key)), entry.predicate)

    def _decode(self, key: bytes, value: bytes) -> BranchRecord:
        """Decode a record, unless its bytes are those of the last time: most operations read one record twice."""
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


def _by_record(attempt: Attempt[T], found: Found) -> Fate:
    """Judge an unanswered write by the record alone: the cleanup may have removed the drop mark already."""
    cell, = attempt.cells
    now = found[cell].value if cell in found else None
    if now == attempt.swap.writes[cell]:
        return Fate.HAPPENED
    is_as_before = cell in found and found[cell].predicate == attempt.found[cell].predicate
    return Fate.PENDING if is_as_before else Fate.UNKNOWN
