# SPDX-License-Identifier: Apache-2.0
"""Conditional writes: a key is written if it is in the expected state, seen through all layers of the branch.

On a store that can (`limits.max_transact` of 3 and more) the write is one `transact`: the branch record is unchanged,
the cell in the staging token is unchanged, the value is put. Then nothing can come in between, and exactly one of
several writers wins.

On other stores the record is read again, the cell compared and set, and the record read once more, as for every put.
If the staging token was replaced meanwhile, the write must be made again in the new one, and then it meets itself:
without more, it would find its own value and report that the condition does not hold. So each call draws a write
id and puts it into the entry; an entry with that id is its own. What such a store cannot give:

* A commit or compaction that took the entry in keeps no write ids. There the identity decides, so that of two callers
  who put the very same data under one key may both get a success.
* A write whose token was replaced, and which then met another writer's record, may have been visible for a while (G4).
* A merge or another move of HEAD between the last look and the write counts as if it had come after the write.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from compactlib.kv import Condition, OutcomeUnknown, PredicateFailed, Put, SlowDown
from compactlib.kv.store import Exists
from compactlib.runtime.look import look_until_seen
from compactlib.staging.branches import FoundBranch
from compactlib.staging.context import StagingContext
from compactlib.staging.errors import MetaRangeNotFound, PreconditionFailed, RangeNotFound
from compactlib.staging.names import StagingToken, token_partition
from compactlib.staging.staged import Staged, encode_staged
from compactlib.staging.values import Change, Record, are_same, check_key
from compactlib.staging.view import BranchView, Found
from compactlib.staging.writes import Attempts, record_of

Expected: TypeAlias = Record | Exists | None
"""The state that a conditional write demands: this record (by identity), any record (`EXISTS`), or none (`None`)."""

Decision: TypeAlias = Callable[[Record | None], Staged | None]
"""Given the record of a key, what to write; `None` to leave it. What it raises ends the call; may be called again."""


_CELLS = 3  # of one conditional write: two conditions, one put


def write_if(context: StagingContext, branch: str, key: bytes, change: Change, expected: Expected) -> None:
    """Write a record or a tombstone if the key is in the expected state.

    Raises:
        PreconditionFailed: it is not; nothing was written.
        TooManyTries: others changed the branch or the key under every try.
        OutcomeUnknown: the store gave no answer, and whether the write happened cannot be seen any more.
    """
    staged = Staged(change, context.tokens.draw_write_id())

    def decide(record: Record | None) -> Staged | None:
        if not _holds(record, expected):
            raise PreconditionFailed(branch=branch, key=key)
        return staged

    last = _run(context, branch, key, decide, staged.write_id, "delete_if" if change is None else "put_if")
    if change is None:
        context.events.tombstones_written(branch, last.record, 1)


def update(context: StagingContext, branch: str, key: bytes, change: Callable[[Record | None], bytes | None]) -> None:
    """Read a key, let `change` make its new data, and write, as one step against others who write conditionally.

    Args:
        context: the stores.
        branch: the branch's name.
        key: which key.
        change: given the record, or `None` if there is none, gives the new data, or `None` to leave the key as it is.
            May be called several times. What it raises goes through, and nothing is written.

    Raises:
        TooManyTries, OutcomeUnknown: as `write_if`.
    """
    write_id = context.tokens.draw_write_id()

    def decide(record: Record | None) -> Staged | None:
        data = change(record)
        return None if data is None else Staged(record_of(data), write_id)

    _run(context, branch, key, decide, write_id, "update")


def _run(context: StagingContext, branch: str, key: bytes, decide: Decision, write_id: bytes, operation: str,
         ) -> FoundBranch:
    check_key(key)
    attempts = Attempts(context, branch, operation)
    _ConditionalWrite(context, branch, key, decide, write_id).run(attempts)
    return attempts.found


def _holds(record: Record | None, expected: Expected) -> bool:
    return record is not None if isinstance(expected, Exists) else are_same(record, expected)


class _ConditionalWrite:
    """One call, and what it knows of its earlier tries."""

    def __init__(self, context: StagingContext, branch: str, key: bytes, decide: Decision, write_id: bytes) -> None:
        self._context = context
        self._branch = branch
        self._key = key
        self._decide = decide
        self._write_id = write_id
        self._is_atomic = context.store.limits.max_transact >= _CELLS
        self._maybe_written: Staged | None = None
        self._written_over: tuple[StagingToken, Found] | None = None
        self._unknown: OutcomeUnknown | None = None

    def run(self, attempts: Attempts) -> None:
        """Try until it is done. Whatever fails after a write without an answer leaves the outcome unknown."""
        try:
            with attempts.kept_unknown():
                self._run(attempts)
        except Exception as error:
            if self._unknown is None or error is self._unknown:
                raise
            raise self._unknown from error

    def _run(self, attempts: Attempts) -> None:
        while True:
            found = attempts.found
            now: FoundBranch | None = None
            refused: Exception | None = None
            try:
                now = self._try(found, attempts)
                if now is None:
                    return
            except OutcomeUnknown as error:
                self._unknown = error
                now = self._look(attempts, error)
            except SlowDown as error:
                refused = error
            except PredicateFailed:
                pass
            except (MetaRangeNotFound, RangeNotFound) as error:
                now = attempts.read_again()
                if now.record.extends(found.record):
                    raise
                refused = error
            attempts.again(now, refused=self._unknown or refused)

    def _look(self, attempts: Attempts, unknown: OutcomeUnknown) -> FoundBranch:
        """The branch, once it and the key could be read again."""
        def look() -> FoundBranch:
            now = attempts.read_again()
            BranchView.of(self._context, self._branch, now.record).find(self._key)
            return now

        return look_until_seen(look, unknown, clock=self._context.clock, rng=self._context.rng)

    def _try(self, found: FoundBranch, attempts: Attempts) -> FoundBranch | None:
        """`None` if it is done, else the branch as it has become."""
        place = BranchView.of(self._context, self._branch, found.record).find(self._key)
        written = self._maybe_written
        if written is not None and place.staged is not None and place.staged.write_id == self._write_id:
            if self._is_atomic:
                return None
            if place.in_staging_token:
                return self._unless_token_held(found, attempts)
            return self._write(found, place, written, attempts)
        if written is not None and place.staged is None and are_same(place.record, written.record):
            if self._is_atomic:
                # This call's, or the same by another writer, taken in by a commit: they cannot be distinguished any
                # more.
                raise self._unknown or PreconditionFailed(branch=self._branch, key=self._key)
            return _unless_extended(found, attempts)
        try:
            staged = self._decide(place.record)
        except Exception:
            now = None if place.in_staging_token else _unless_extended(found, attempts)
            if now is not None:
                return now
            raise
        if staged is None:
            return None if place.in_staging_token else _unless_extended(found, attempts)
        if not self._may_write_again(found, place):
            # Others have written over what an earlier try has perhaps made: it may not be made twice.
            raise self._unknown or attempts.unknown("what was written was taken, and others have written over it")
        return self._write(found, place, staged, attempts)

    def _write(self, found: FoundBranch, place: Found, staged: Staged, attempts: Attempts) -> FoundBranch | None:
        token = found.record.staging_token
        context = self._context
        if not self._is_atomic and not place.in_staging_token:
            # What was found below the staging token, or not found, may have been read while it was cleaned up. If it
            # was not, no write can change the key from here on without changing the cell.
            now = _unless_extended(found, attempts)
            if now is not None:
                return now
        before = self._maybe_written, self._written_over
        self._maybe_written, self._written_over = staged, (token, place)
        try:
            if self._is_atomic:
                cell = token_partition(token), self._key
                context.store.transact(
                    [context.branches.unchanged(found), Condition(*cell, place.predicate)],
                    puts=[Put(*cell, encode_staged(staged))])
                return None
            context.tokens.set_if(token, self._key, staged, place.predicate)
        except (PredicateFailed, SlowDown):
            self._maybe_written, self._written_over = before
            raise
        return self._unless_token_held(found, attempts)

    def _may_write_again(self, found: FoundBranch, place: Found) -> bool:
        """Whether the cell that the last try was to write is as it was: then that one came to nothing, and never will.

        Where the cell is gone, on a store that can only compare and set, the record must be what it was.
        """
        if self._written_over is None:
            return True
        token, before = self._written_over
        if token not in found.record.tokens:
            return not self._is_atomic and are_same(place.record, before.record)
        cell = self._context.tokens.get(token, self._key)
        return (None if cell is None else cell.predicate) == before.predicate

    def _unless_token_held(self, found: FoundBranch, attempts: Attempts) -> FoundBranch | None:
        now = attempts.confirm()
        return None if now.record.staging_token == found.record.staging_token else now


def _unless_extended(found: FoundBranch, attempts: Attempts) -> FoundBranch | None:
    """`None` if what was read through the record holds, else the branch as it has become."""
    now = attempts.read_again()
    return None if now.record.extends(found.record) else now
