# SPDX-License-Identifier: Apache-2.0
"""Writes of keys: written to the staging token, acknowledged only if it still is the staging token afterwards.

A commit or a compaction seals the token before it reads it. So a write that finds its token still in place was made
before any seal, and is in whatever comes of it; one that does not may have come too late, and is made again in the new
token.

A delete of a key that no layer holds anything of writes nothing. But "nothing" must be true of the whole branch at one
moment, and a tombstone that this very delete left in a token that was sealed meanwhile proves nothing. Hence: once the
token has changed, the tombstone is written whatever is found; and an empty answer counts only if the record is the same
afterwards. A reset of a key is a put of what HEAD has, under the same rule.

A write under a condition is one `transact`: the branch record is unchanged, the cell in the staging token is unchanged,
the entry is put. Nothing can come in between, and of several writers one wins. An entry carries the id of its write, so
that a call whose `transact` got no answer finds its own entry.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeAlias

from compactlib.errors import CompactlibError, InvalidInput
from compactlib.kv import Condition, OutcomeUnknown, PredicateFailed, Put, SlowDown
from compactlib.kv.cell import look_until_seen
from compactlib.kv.store import Exists
from compactlib.staging.branches import FoundBranch
from compactlib.staging.context import StagingContext
from compactlib.staging.errors import (
    BranchNotFound,
    MetaRangeNotFound,
    PreconditionFailed,
    RangeNotFound,
    TooManyKeys,
    TooManyTries,
)
from compactlib.staging.names import token_partition
from compactlib.staging.options import MAX_BATCH_KEYS
from compactlib.staging.reads import checked_keys
from compactlib.staging.results import ResetReport
from compactlib.staging.staged import Staged, encode_staged
from compactlib.staging.values import MAX_PART_BYTES, Change, Record, are_same, check_key
from compactlib.staging.view import BranchView, Found

Expected: TypeAlias = Record | Exists | None
"""The state that a conditional write demands: this record (by identity), any record (`EXISTS`), or none (`None`)."""

Decide: TypeAlias = Callable[[Record | None], Staged | None]
"""Given the record of a key, what to write; `None` to leave it. What it raises ends the call; may be called again."""


class Attempts:
    """The tries of one write: counts them, waits between them, and reads the branch before and after each.

    Args:
        context: the stores.
        branch: the branch's name.
        operation: for errors and events.

    Attributes:
        found: the branch as it was read last.
    """

    def __init__(self, context: StagingContext, branch: str, operation: str) -> None:
        self._context = context
        self._branch = branch
        self._operation = operation
        self._was_taken = False
        self._tries = context.branches.tries()
        next(self._tries)
        self.found: FoundBranch = context.branches.read(branch)

    @property
    def view(self) -> BranchView:
        """The layers of the branch as it was read last."""
        return BranchView.of(self._context, self._branch, self.found.record)

    def reread(self) -> FoundBranch:
        """Return the branch as it is now, to be compared with `found`."""
        return self._context.branches.read(self._branch)

    def confirm(self) -> FoundBranch:
        """Return the branch as it is now, after something was written to its token; read again and again.

        Raises:
            OutcomeUnknown: it cannot be read; what was written may be visible, or become so.
            BranchNotFound: there is no such branch any more.
        """
        self._was_taken = True
        now = self._context.branches.seen_after(self._branch, self.unknown(
            "what was written was taken, and whether the branch still names the token that took it cannot be seen"))
        token = self.found.record.staging_token
        if now is None or token not in now.record.tokens:
            # The token may have been emptied before this was written.
            with contextlib.suppress(CompactlibError):
                self._context.tokens.mark_late(self._branch, token)
        if now is None:
            raise BranchNotFound(branch=self._branch)
        return now

    def unknown(self, detail: str) -> OutcomeUnknown:
        """Return the error of this write for an unknown outcome."""
        return OutcomeUnknown(operation=self._operation, path=f"branch {self._branch!r}", detail=detail)

    @contextlib.contextmanager
    def preserving_unknown(self) -> Iterator[None]:
        """Raise `OutcomeUnknown` for what ends the block once a token that was replaced has taken the write."""
        try:
            yield
        except (OutcomeUnknown, TooManyTries, PreconditionFailed, BranchNotFound):
            raise
        except CompactlibError as error:
            if self._was_taken:
                raise self.unknown(f"a token took what was written, was replaced, and the next try ended in {error}"
                                   ) from error
            raise

    def retry(self, now: FoundBranch | None = None, *, refused: Exception | None = None) -> None:
        """Wait for one more try.

        Args:
            now: the branch, if it was read just now.
            refused: what the store said, if it did not take the write; raised if this was the last try.

        Raises:
            TooManyTries: this was the last try.
        """
        if next(self._tries, None) is None:
            raise refused or TooManyTries(operation=self._operation, branch=self._branch,
                                          tries=self._context.options.retries.tries)
        self._context.activity.retried(self._operation)
        self.found = now or self.reread()

    def retry_after(self, error: CompactlibError) -> None:
        """Retry if the store throttled, or if a file is gone because the branch moved on; else re-raise."""
        if isinstance(error, MetaRangeNotFound | RangeNotFound):
            now = self.reread()
            if now.record.extends(self.found.record):
                raise error
            self.retry(now, refused=error)
        elif isinstance(error, SlowDown):
            self.retry(refused=error)
        elif isinstance(error.__cause__, SlowDown):
            self._was_taken = True  # some of it
            self.retry(refused=error)
        else:
            raise error


# ------------------------------------------------------------------------------------------------- puts and deletes


def put_many(context: StagingContext, branch: str, items: Mapping[bytes, bytes]) -> None:
    """Write records; see `Branch.put_many`."""
    if len(items) > MAX_BATCH_KEYS:
        raise TooManyKeys(count=len(items), limit=MAX_BATCH_KEYS)
    for key in items:
        check_key(key)
    entries = {key: Staged(record_of(data)) for key, data in items.items()}
    attempts = Attempts(context, branch, "put")
    with attempts.preserving_unknown():
        while entries:
            token = attempts.found.record.staging_token
            try:
                context.tokens.set_many(token, entries)
            except (SlowDown, OutcomeUnknown) as error:
                attempts.retry_after(error)
                continue
            now = attempts.confirm()
            if now.record.staging_token == token:
                context.activity.read(branch, now.record)
                return
            attempts.retry(now)


def record_of(data: bytes) -> Record:
    """Return the record of some data; a buffer is copied.

    Raises:
        InvalidInput: it is longer than `MAX_PART_BYTES`.
    """
    held = bytes(data)
    if len(held) > MAX_PART_BYTES:
        raise InvalidInput(f"a record of {len(held)} bytes was given, one holds at most {MAX_PART_BYTES}; split it, or "
                           f"keep the data elsewhere and a reference to it here")
    return Record.of(held)


def delete_many(context: StagingContext, branch: str, keys: Iterable[bytes]) -> None:
    """Delete keys; see `Branch.delete_many`."""
    wanted = checked_keys(keys)
    attempts = Attempts(context, branch, "delete")
    first_token = attempts.found.record.staging_token
    with attempts.preserving_unknown():
        while wanted:
            found = attempts.found
            token = found.record.staging_token
            try:
                hidden, fresh = list(wanted), len(wanted)
                if token == first_token:
                    places = attempts.view.find_many(wanted)
                    hidden = [key for key, place in places.items() if place.layer is not None]
                    fresh = len(hidden) - sum(place.in_staging_token and place.record is None
                                              for place in places.values())
                context.tokens.set_many(token, dict.fromkeys(hidden, Staged(None)))
            except (SlowDown, OutcomeUnknown, MetaRangeNotFound, RangeNotFound) as error:
                attempts.retry_after(error)
                continue
            now = attempts.confirm() if hidden else attempts.reread()
            if now.record == found.record or (now.record.staging_token == token and len(hidden) == len(wanted)):
                if fresh:
                    context.activity.wrote_tombstones(branch, now.record, fresh)
                return
            attempts.retry(now)


def reset_key(context: StagingContext, branch: str, key: bytes) -> ResetReport:
    """Make one key what it is in HEAD; see `Branch.reset_key`."""
    check_key(key)
    attempts = Attempts(context, branch, "reset_key")
    first = attempts.found.record
    with attempts.preserving_unknown():
        while True:
            record = attempts.found.record
            is_moved = (record.staging_token, record.commit_id) != (first.staging_token, first.commit_id)
            try:
                view = attempts.view
                place = view.find_staged((key,))[key]
                head = context.committed.get(view.head, key)
                must_write = is_moved or place.layer is not None or (
                    view.base != view.head and context.committed.get(view.base, key) != head)
                if must_write:
                    context.tokens.set_many(record.staging_token, {key: Staged(head)})
            except (SlowDown, OutcomeUnknown, MetaRangeNotFound, RangeNotFound) as error:
                attempts.retry_after(error)
                continue
            now = attempts.confirm() if must_write else attempts.reread()
            if not must_write and now.record == record:
                return ResetReport(why="the key is what it is in HEAD")
            if must_write and (now.record.staging_token, now.record.commit_id) == (
                    record.staging_token, record.commit_id):
                if head is None and not (place.in_staging_token and place.record is None):
                    context.activity.wrote_tombstones(branch, now.record, 1)
                return ResetReport(records_restored=int(head is not None), tombstones=int(head is None))
            attempts.retry(now)


# ------------------------------------------------------------------------------------------ writes under a condition


def write_if(context: StagingContext, branch: str, key: bytes, change: Change, expected: Expected) -> None:
    """Write a record or a tombstone if the key is in the expected state; see `Branch.put_if`."""
    staged = Staged(change, context.tokens.draw_write_id())

    def decide(record: Record | None) -> Staged | None:
        holds = record is not None if isinstance(expected, Exists) else are_same(record, expected)
        if not holds:
            raise PreconditionFailed(branch=branch, key=key)
        return staged

    last = _write_conditionally(context, branch, key, decide, staged.write_id,
                                "delete_if" if change is None else "put_if")
    if change is None:
        context.activity.wrote_tombstones(branch, last.record, 1)


def update(context: StagingContext, branch: str, key: bytes, change: Callable[[Record | None], bytes | None]) -> None:
    """Make the new data of a key of its record; see `Branch.update`."""
    write_id = context.tokens.draw_write_id()

    def decide(record: Record | None) -> Staged | None:
        data = change(record)
        return None if data is None else Staged(record_of(data), write_id)

    _write_conditionally(context, branch, key, decide, write_id, "update")


def _write_conditionally(context: StagingContext, branch: str, key: bytes, decide: Decide, write_id: bytes,
                         operation: str) -> FoundBranch:
    """Write in one step what `decide` makes of the record; returns the branch as it was found before.

    Whatever fails after a `transact` without an answer leaves the outcome unknown.
    """
    check_key(key)
    attempts = Attempts(context, branch, operation)
    unknown: OutcomeUnknown | None = None
    before: tuple[FoundBranch, Found] | None = None  # what the unanswered write was held against
    while True:
        found, now, refused = attempts.found, None, None
        try:
            place = attempts.view.find(key)
            if unknown is not None and before is not None:
                if place.staged is not None and place.staged.write_id == write_id:
                    return found
                if not _is_undone(context, key, before, found):
                    raise unknown
            try:
                staged = decide(place.record)
            except Exception:
                if place.in_staging_token or (now := attempts.reread()).record.extends(found.record):
                    raise
            else:
                if staged is None:
                    if place.in_staging_token or (now := attempts.reread()).record.extends(found.record):
                        return found
                else:
                    cell = token_partition(found.record.staging_token), key
                    context.store.transact([context.branches.unchanged(found), Condition(*cell, place.predicate)],
                                           puts=[Put(*cell, encode_staged(staged))])
                    return found
        except PredicateFailed:
            pass
        except OutcomeUnknown as error:
            if unknown is not None and error is unknown:
                raise
            unknown, before = error, (found, place)
            now = _reread_after(context, branch, key, attempts, error)
        except (SlowDown, MetaRangeNotFound, RangeNotFound) as error:
            refused = error
            if not isinstance(error, SlowDown):
                now = attempts.reread()
                if now.record.extends(found.record):
                    raise unknown or error from error
        except Exception as error:
            if unknown is not None:
                raise unknown from error
            raise
        try:
            attempts.retry(now, refused=unknown or refused)
        except Exception as error:
            if unknown is None or error is unknown:
                raise
            raise unknown from error


def _is_undone(context: StagingContext, key: bytes, before: tuple[FoundBranch, Found], now: FoundBranch) -> bool:
    """Whether an unanswered write came to nothing and cannot count any more, or only in place of the next one.

    So it is if the cell that it was to write is as it was: the next write holds against the same cell and record, or
    the record has moved on, and then its condition never holds again.
    """
    found, place = before
    token = found.record.staging_token
    if token not in now.record.tokens:
        return False
    cell = context.tokens.get(token, key)
    return (None if cell is None else cell.predicate) == place.predicate


def _reread_after(context: StagingContext, branch: str, key: bytes, attempts: Attempts,
                  unknown: OutcomeUnknown) -> FoundBranch:
    """Return the branch, once it and the key could be read again."""
    def look() -> FoundBranch:
        now = attempts.reread()
        BranchView.of(context, branch, now.record).find(key)
        return now

    return look_until_seen(look, unknown, clock=context.clock, rng=context.rng)
