# SPDX-License-Identifier: Apache-2.0
"""Resets: dropping the uncommitted changes of a branch, all of them, those of one key or of a prefix.

Sealed tokens are never edited: a commit or a compaction may be reading them. What is to be undone is written over, in
the staging token or in a new one, with what HEAD has; or all layers are dropped in one compare-and-set.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias

from compactlib.kv import SlowDown
from compactlib.kv.errors import PartlyWritten
from compactlib.outcome import Done, Skipped
from compactlib.staging.context import StagingContext
from compactlib.staging.diff_cache import DiffCache
from compactlib.staging.errors import MetaRangeNotFound, RangeNotFound
from compactlib.staging.names import StagingToken
from compactlib.staging.options import MAX_BATCH_KEYS
from compactlib.staging.record import BranchRecord
from compactlib.staging.results import ResetStats
from compactlib.staging.staged import Staged
from compactlib.staging.uncommitted import uncommitted_keys
from compactlib.staging.values import check_key
from compactlib.staging.view import BranchView
from compactlib.staging.writes import Attempts

ResetOutcome: TypeAlias = Done[ResetStats] | Skipped
"""What a reset ends in."""

_MAX_BATCH_BYTES = 8 << 20


def reset(context: StagingContext, branch: str) -> ResetOutcome:
    """Throw away everything uncommitted: the branch is HEAD again.

    Raises:
        BranchNotFound, TooManyTries, OutcomeUnknown: see `BranchStore.update`.
    """

    def change(record: BranchRecord) -> BranchRecord | None:
        if record.is_bare and context.tokens.is_empty(record.staging_token):
            return None
        return record.emptied(context.tokens.issue(branch), record.commit_id)

    update = context.branches.update(branch, change, operation="reset", knows_own=False)
    if update.after.version == update.before.version:
        return Skipped("nothing was uncommitted")
    dropped = context.drop_tokens(branch, update.before, update.after)
    context.events.reset(branch, update.after)
    return Done(ResetStats(tokens_dropped=len(dropped)))


def reset_key(context: StagingContext, branch: str, key: bytes) -> ResetOutcome:
    """Make one key what it is in HEAD.

    It is written like a put: what HEAD has, or a tombstone, into the staging token; and it is done once neither the
    staging token nor HEAD have changed meanwhile. As with deletes, once they have, it is written whatever is found.

    Raises:
        TooManyTries: the branch changed under every try. The key may be reset.
    """
    check_key(key)
    attempts = Attempts(context, branch, "reset_key")
    with attempts.kept_unknown():
        return _reset_key(context, branch, key, attempts)


def _reset_key(context: StagingContext, branch: str, key: bytes, attempts: Attempts) -> ResetOutcome:
    first = attempts.found.record
    while True:
        found = attempts.found
        record = found.record
        must_write = (record.staging_token, record.commit_id) != (first.staging_token, first.commit_id)
        try:
            staged, is_fresh = _restored(BranchView.of(context, branch, record), key, must_write=must_write)
            if staged is not None:
                context.tokens.set(record.staging_token, key, staged)
        except SlowDown as error:
            attempts.again(refused=error)
            continue
        except (MetaRangeNotFound, RangeNotFound) as error:
            now = attempts.read_again()
            if now.record.extends(record):
                raise
            attempts.again(now, refused=error)
            continue
        now = attempts.read_again() if staged is None else attempts.confirm()
        if staged is None and now.record == record:
            return Skipped("the key is what it is in HEAD")
        if staged is not None and (now.record.staging_token, now.record.commit_id) == (
                record.staging_token, record.commit_id):
            if staged.is_tombstone and is_fresh:
                context.events.tombstones_written(branch, now.record, 1)
            return Done(ResetStats(records_restored=int(not staged.is_tombstone),
                                   tombstones=int(staged.is_tombstone)))
        attempts.again(now)


def reset_prefix(context: StagingContext, branch: str, prefix: bytes, cache: DiffCache) -> ResetOutcome:
    """Make all keys that begin with `prefix` what they are in HEAD, in one step.

    What HEAD has is written over each uncommitted key in a new token, which then becomes the staging token; the old one
    is sealed. A reset that loses against another change drops the new token and begins again.

    Raises:
        BranchNotFound, TooManyTries, OutcomeUnknown: see `BranchStore.update`.
    """
    if not prefix:
        return reset(context, branch)
    prepared: dict[StagingToken, ResetStats] = {}

    def change(record: BranchRecord) -> BranchRecord | None:
        token = context.tokens.issue(branch)
        stats = _restore_prefix(BranchView.of(context, branch, record), token, prefix, cache)
        prepared[token] = stats
        return record.sealed_with(token) if stats.records_restored + stats.tombstones else None

    update = context.branches.update(branch, change, operation="reset_prefix", knows_own=False)
    # Tokens that lost have no owner; one that may have won without an answer is named by the record, or was.
    context.mark_dropped(branch, (token for token in prepared if token not in update.after.tokens))
    stats = prepared.get(update.after.staging_token)
    if stats is None or update.after.version == update.before.version:
        return Skipped("nothing was uncommitted under the prefix")
    if stats.tombstones:
        context.events.tombstones_written(branch, update.after, stats.tombstones)
    return Done(stats)


def _restored(view: BranchView, key: bytes, *, must_write: bool) -> tuple[Staged | None, bool]:
    """What makes the key as it is in HEAD; `None` if no layer above HEAD has anything of it that differs. And whether
    it is no tombstone in the staging token yet.
    """
    staged = view.find_staged(key)
    is_fresh = not (staged.in_staging_token and staged.record is None)
    head = view.context.committed.get(view.head, key)
    if not must_write and staged.layer is None:
        base = head if view.base == view.head else view.context.committed.get(view.base, key)
        if base == head:
            return None, is_fresh
    return Staged(head), is_fresh


def _restore_prefix(view: BranchView, token: StagingToken, prefix: bytes, cache: DiffCache) -> ResetStats:
    restored = tombstones = 0
    changes = ((key, Staged(difference.left)) for key, difference in uncommitted_keys(view, cache, prefix=prefix)
               if difference is not None)
    for batch in _batches(changes):
        try:
            view.context.tokens.set_many(token, batch)
        except PartlyWritten as error:
            # No record names the token yet, so nothing has changed.
            raise error.__cause__ or error from None
        hidden = sum(staged.is_tombstone for staged in batch.values())
        restored, tombstones = restored + len(batch) - hidden, tombstones + hidden
    return ResetStats(records_restored=restored, tombstones=tombstones)


def _batches(changes: Iterable[tuple[bytes, Staged]]) -> Iterator[dict[bytes, Staged]]:
    """The changes, so many at once, and none on top of so many bytes."""
    batch: dict[bytes, Staged] = {}
    size = 0
    for key, staged in changes:
        batch[key] = staged
        size += 0 if staged.record is None else len(staged.record.data) + len(staged.record.identity)
        if len(batch) == MAX_BATCH_KEYS or size >= _MAX_BATCH_BYTES:
            yield batch
            batch, size = {}, 0
    if batch:
        yield batch
