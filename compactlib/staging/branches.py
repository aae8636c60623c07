# SPDX-License-Identifier: Apache-2.0
"""`BranchStore`: branch records in the key-value store, changed by compare-and-set only."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

import attrs

from compactlib.clock import Clock
from compactlib.errors import Busy, CompactlibError, StorageError
from compactlib.kv import Condition, KVStore, OutcomeUnknown, PredicateFailed, Put, SlowDown
from compactlib.kv.batches import get_many
from compactlib.kv.cell import Found, Retries, Swap, swap
from compactlib.kv.errors import TooLarge
from compactlib.kv.store import Address, Predicate
from compactlib.runtime.look import look_until_seen
from compactlib.staging.errors import (
    BeingCollected,
    BranchExists,
    BranchNotFound,
    MetaRangeNotFound,
    RangeNotFound,
    TooManyTries,
)
from compactlib.staging.events import StagingEvents
from compactlib.staging.names import BRANCHES, branch_key
from compactlib.staging.options import StagingOptions
from compactlib.staging.record import BranchRecord, decode_branch_record, encode_branch_record

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
        tries: how many compare-and-sets it took.
    """

    before: BranchRecord
    after: BranchRecord
    tries: int


_MAX_DECODED = 1000
_BATCH = 1000

Change = Callable[[BranchRecord], BranchRecord | None]
"""Makes the next record of the present one, `None` for "leave it". May be called several times; what it raises ends the
update. It need not count the version."""


class Backoff:
    """Waits between the tries of one call: longer each time, drawn at random, on the caller's clock."""

    def __init__(self, options: StagingOptions, clock: Clock, random: random.Random) -> None:
        self._next = options.first_backoff_seconds
        self._longest = options.max_backoff_seconds
        self._clock = clock
        self._random = random

    def wait(self) -> None:
        """Wait once."""
        longest = min(self._next, self._longest)
        if longest > 0:
            self._clock.sleep(longest * (0.5 + 0.5 * self._random.random()))
        self._next *= 2


class BranchStore:
    """The branch records of one repository. Threads may share it.

    Every method raises what the key-value store raises, `CorruptData` for a damaged record and `Unsupported` for one of
    a newer release.

    Args:
        store: where.
        partition: the repository's.
        options: how often to try, and how long to wait in between.
        clock: waits.
        random: draws the waits.
        events: notified of each record that is written, and of branches that are not there.
    """

    def __init__(self, store: KVStore, partition: bytes, options: StagingOptions, clock: Clock, random: random.Random,
                 events: StagingEvents) -> None:
        self._store = store
        self._partition = partition
        self._options = options
        self._clock = clock
        self._random = random
        self._events = events
        self._decoded: dict[bytes, tuple[bytes, BranchRecord]] = {}

    def backoff(self) -> Backoff:
        """The waits of one call."""
        return Backoff(self._options, self._clock, self._random)

    def read(self, branch: str) -> FoundBranch:
        """The record of a branch, as it is now. One read.

        Raises:
            BranchNotFound: there is no such branch.
            InvalidInput: it is no name of a branch.
        """
        cell = self._cell(branch)
        return self._found_in(branch, get_many(self._store, [cell]))

    def _cell(self, branch: str) -> Address:
        return self._partition, branch_key(branch)

    def _found_in(self, branch: str, found: Found) -> FoundBranch:
        cell = self._cell(branch)
        if cell not in found:
            self._events.branch_deleted(branch)
            raise BranchNotFound(branch=branch)
        return FoundBranch(branch, self._decode(cell[1], found[cell].value), found[cell].predicate)

    def consistently(self, branch: str, read: Callable[[FoundBranch], tuple[T, bool]], *, operation: str,
                     ) -> tuple[T, FoundBranch, FoundBranch]:
        """Read through states of a branch until one held.

        Args:
            branch: the branch's name.
            read: reads through a state; gives the result, and whether it holds as it is, without a second look. What it
                raises goes through, but not the absence of a file that the branch meanwhile names no longer.
            operation: for errors.

        Returns:
            The result, the state that it was read through, and the newest one that was seen.

        Raises:
            BranchNotFound: there is no such branch, or no longer.
            TooManyTries: the layers were replaced under every try.
        """
        found = self.read(branch)
        backoff = self.backoff()
        tries = self._options.max_read_tries
        for _ in range(tries):
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
            backoff.wait()
        raise TooManyTries(operation=operation, branch=branch, tries=tries)

    def create(self, branch: str, record: BranchRecord, entry: Put | None = None) -> None:
        """Write the first record of a branch. One write, two on a store that changes fewer than three cells in one.

        Args:
            branch: the branch's name.
            record: the record.
            entry: enters the record's token in the register, in the same step or after it: a sweep that finds the token
                there finds it in the record, too. If it fails then, the next sweep enters it.

        Raises:
            BranchExists: there is a branch of this name.
            OutcomeUnknown: no answer came, and the outcome of the write cannot be seen.
        """
        key = branch_key(branch)
        value = encode_branch_record(record)
        try:
            if entry is None or not self.creates_in_one_step:
                self._store.set_if(self._partition, key, value, None)
            else:
                self._store.transact([Condition(self._partition, key, None)], [Put(self._partition, key, value), entry])
        except PredicateFailed:
            raise BranchExists(branch=branch) from None
        except OutcomeUnknown as error:
            seen = self.seen_after(branch, error)
            if seen is None or seen.record.version > record.version:
                raise
            if seen.record != record:
                raise BranchExists(branch=branch) from error
        if entry is not None and not self.creates_in_one_step:
            with contextlib.suppress(CompactlibError):
                self._store.set(entry.partition, entry.key, entry.value)
        self._events.record_written(branch, record)

    @property
    def creates_in_one_step(self) -> bool:
        """Whether the store takes a condition, a record, and its token's entry in the register together."""
        return self._store.limits.max_transact >= 3

    def try_update(self, found: FoundBranch, record: BranchRecord) -> BranchRecord:
        """Write the next record, if the branch is as it was found; gives it with its version. One write.

        Raises:
            PredicateFailed: another writer changed or deleted the branch; nothing was written.
            OutcomeUnknown: no answer came; `update` and `landed` find out.
        """
        record = attrs.evolve(record, version=found.record.version + 1)
        self._store.set_if(self._partition, branch_key(found.branch), encode_branch_record(record), found.predicate)
        self._events.record_written(found.branch, record)
        return record

    def seen_after(self, branch: str, unknown: OutcomeUnknown) -> FoundBranch | None:
        """The branch as it is after a write of its record that got no answer, read again and again; `None`: no branch.

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
        """The condition of a `transact` that the branch is as it was found."""
        return Condition(self._partition, branch_key(found.branch), found.predicate)

    def update(self, branch: str, change: Change, *, operation: str = "update", knows_own: bool = True,
               ) -> BranchUpdate:
        """Change the record of a branch against others who do the same, with waits in between.

        Args:
            branch: the branch's name.
            change: makes the next record.
            operation: for errors.
            knows_own: whether `change` recognizes what it has made of a record (a token, a commit), or may be made
                twice: then it is asked again where the outcome of an unanswered write cannot be known.

        Raises:
            BranchNotFound: there is no such branch, or no longer.
            TooManyTries: others were faster too many times.
            OutcomeUnknown: a try got no answer, and its outcome could not be seen.
        """
        tries = 0

        def decide(cells: Found) -> Swap[BranchUpdate]:
            nonlocal tries
            found = self._found_in(branch, cells)
            record = self._asked(change, found)
            if record is None:
                # "Nothing to do" was perhaps read from tokens that were emptied meanwhile, and holds only if the branch
                # still names them: no compare-and-set says so here.
                self._require_unchanged(found)
                return Swap(BranchUpdate(found.record, found.record, tries))
            tries += 1
            after = attrs.evolve(record, version=found.record.version + 1)
            return Swap(BranchUpdate(found.record, after, tries), {self._cell(branch): encode_branch_record(after)})

        done = self._swap(branch, decide, operation, may_repeat=knows_own)
        if done.after != done.before:
            self._events.record_written(branch, done.after)
        return done

    def _swap(self, branch: str, decide: Callable[[Found], Swap[T]], operation: str, *, may_repeat: bool) -> T:
        options = self._options
        retries = Retries(options.max_update_tries, options.first_backoff_seconds, options.max_backoff_seconds)
        try:
            return swap(self._store, [self._cell(branch)], decide, operation=f"{operation} of branch {branch!r}",
                        may_repeat=may_repeat, retries=retries, clock=self._clock, rng=self._random)
        except Busy as error:
            if type(error) is not Busy:
                raise
            raise TooManyTries(operation=operation, branch=branch, tries=options.max_update_tries) from error

    def _asked(self, change: Change, found: FoundBranch) -> BranchRecord | None:
        """What `change` makes of the record; `None` for "leave it".

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
            partition, key = self._cell(found.branch)
            raise PredicateFailed(partition=partition, key=key)

    def fence(self, found: Iterable[FoundBranch]) -> Iterator[FoundBranch]:
        """Make sure that no change of these branches can be made any more that was begun before they were read.

        A writer about to write a record has read it before; so it is written anew as it is, unless it was changed
        or deleted meanwhile, which does the same. One write for all, where that takes them and nobody changes one of
        them at that moment; else one each.

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
        self._store.transact(
            [Condition(self._partition, branch_key(one.branch), one.predicate) for one in part],
            [Put(self._partition, branch_key(one.branch), encode_branch_record(one.record)) for one in fenced])
        for one in fenced:
            self._events.record_written(one.branch, one.record)
        return fenced

    def _fence(self, found: FoundBranch) -> FoundBranch | None:
        """The branch as it is once it was written anew; `None`: it is gone."""
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

    def delete(self, branch: str, expected: Callable[[BranchRecord], object] = lambda _: None) -> BranchRecord:
        """Delete the record of a branch; returns the last one, whose tokens have no owner now.

        Args:
            branch: which branch.
            expected: is asked about the record that will be deleted; what it raises ends the call.

        Raises:
            BranchNotFound: there is no such branch.
            TooManyTries: others were faster too many times.
            OutcomeUnknown: a try got no answer, and its outcome could not be seen. If the branch has another
                record then, it may have been made anew, and is left alone.
        """
        def decide(cells: Found) -> Swap[BranchRecord]:
            found = self._found_in(branch, cells)
            expected(found.record)
            return Swap(found.record, {self._cell(branch): None})

        return self._swap(branch, decide, "delete", may_repeat=False)

    def list(self, prefix: str = "") -> Iterator[FoundBranch]:
        """Every branch, in order of the names' bytes; not one state of all, but each as it is when its turn comes."""
        # What is not valid Unicode begins no name.
        with self._store.scan(self._partition, prefix=BRANCHES + prefix.encode("utf-8", "surrogatepass")) as entries:
            for entry in entries:
                yield FoundBranch(entry.key[len(BRANCHES):].decode("utf-8", "replace"),
                                  decode_branch_record(entry.value, self._place(entry.key)), entry.predicate)

    def _decode(self, key: bytes, value: bytes) -> BranchRecord:
        """Decode a record, unless its bytes are those of the last time: most reads look twice at one record."""
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
