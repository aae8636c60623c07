# SPDX-License-Identifier: Apache-2.0
"""Moves of HEAD (merge, revert, cherry-pick, a commit of a given metarange, hard reset), and resets of what is staged.

HEAD may move only under a branch without uncommitted changes: a tombstone that hides nothing today would hide what the
new HEAD brings. "Without" means the whole difference from HEAD, what a compaction made included. So a move takes two
compare-and-sets:

1. Nothing is uncommitted: seal. Whatever is written from now on goes into a new token, and stays above the new HEAD.
2. Still nothing is uncommitted in what is sealed, or compacted: HEAD moves, the sealed tokens and the compacted
   metarange go, in one step.

A hard reset that discards, and a reset of all, is one compare-and-set: every layer goes, whatever it held. Sealed
tokens are never edited, because a commit or a compaction may be reading them: a reset of a prefix writes what HEAD has
over each uncommitted key in a new token, which then becomes the staging token; see `tokens` for the mark that it has
until then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import TypeAlias

import attrs

from compactlib.errors import Busy
from compactlib.kv import Condition, Delete, Put
from compactlib.kv.errors import PredicateFailed
from compactlib.staging.branches import BranchUpdate
from compactlib.staging.commits import Commit
from compactlib.staging.context import StagingContext
from compactlib.staging.errors import DirtyBranch, TooManyTries
from compactlib.staging.names import CommitId
from compactlib.staging.options import MAX_BATCH_KEYS
from compactlib.staging.ranges.merge import MergeBase, metaranges_of
from compactlib.staging.record import BranchRecord
from compactlib.staging.results import CommitReport, Counts, ResetReport
from compactlib.staging.staged import Staged
from compactlib.staging.tokens import DropMark
from compactlib.staging.uncommitted import first_uncommitted, uncommitted_keys
from compactlib.staging.values import Applied, MergeStrategy, MetaRangeId
from compactlib.staging.view import BranchView

_MAX_BATCH_BYTES = 8 << 20


@attrs.frozen
class Move:
    """Where HEAD shall move to.

    Attributes:
        target: the commit, already stored; the present HEAD if there is nothing to do.
        applied: what the commit was made by; `None` for one that was there before.
    """

    target: CommitId | None
    applied: Applied | None = None


NextHead: TypeAlias = Callable[[CommitId | None], Move]
"""Given HEAD, where it shall move to; asked again after each conflict."""


@attrs.frozen
class _Tried:
    """A move that was tried: from where to where, and how many keys differ."""

    before: CommitId | None
    move: Move
    counts: Counts


def move_head(context: StagingContext, branch: str, next_head: NextHead, *, operation: str,
              makes_commits: bool = True) -> CommitReport:
    """Move the HEAD of a branch that has no uncommitted changes.

    Args:
        context: the stores.
        branch: the branch's name.
        next_head: where to move it to.
        operation: for errors.
        makes_commits: whether `next_head` gives new commits, which the branch can only have from this call.

    Raises:
        DirtyBranch: it has some; nothing was changed, except that a token may have been sealed.
        BranchNotFound, TooManyTries, OutcomeUnknown: see `BranchStore.update`; and what `next_head` raises.
    """
    tried: list[_Tried] = []
    own: _Tried | None = None  # the move of this call that others have built upon before it was seen

    def prepare(record: BranchRecord) -> BranchRecord | None:
        require_clean(context, branch, record)
        if record.sealed_tokens and context.tokens.is_empty(record.staging_token):
            return None  # as an earlier move that failed has left it
        return record.sealed_with(context.tokens.draw())

    def switch(record: BranchRecord) -> BranchRecord | None:
        nonlocal own
        if makes_commits:
            own = next((each for each in tried if each.move.target is not None
                        and context.commits.is_ancestor(each.move.target, record.commit_id)), None)
            if own is not None:
                return None
        require_clean(context, branch, record, include_staging=False)
        move = next_head(record.commit_id)
        if move.target == record.commit_id and record.is_bare:
            return None
        tried.append(_Tried(record.commit_id, move, _counts(context, record.commit_id, move.target)))
        return record.emptied(record.staging_token, move.target)

    context.branches.update(branch, prepare, operation=operation)
    update = context.branches.update(branch, switch, operation=operation, idempotent=makes_commits)
    return _outcome(context, branch, update, tried, own)


def discard_and_move(context: StagingContext, branch: str, next_head: NextHead) -> CommitReport:
    """Move the HEAD of a branch and throw away everything uncommitted, in one step.

    Raises:
        BranchNotFound, TooManyTries, OutcomeUnknown: see `BranchStore.update`; and what `next_head` raises.
    """
    tried: list[_Tried] = []

    def change(record: BranchRecord) -> BranchRecord | None:
        move = next_head(record.commit_id)
        if move.target == record.commit_id and is_clear(context, record):
            return None
        tried.append(_Tried(record.commit_id, move, _counts(context, record.commit_id, move.target)))
        return record.emptied(context.tokens.draw(), move.target)

    update = context.branches.update(branch, change, operation="hard_reset", idempotent=False)
    return _outcome(context, branch, update, tried, discards=True)


def is_clear(context: StagingContext, record: BranchRecord) -> bool:
    """Whether nothing lies above HEAD; `BranchStore.update` checks afterwards that the record still holds."""
    return record.is_bare and context.tokens.is_empty(record.staging_token)


def require_clean(context: StagingContext, branch: str, record: BranchRecord, *, include_staging: bool = True) -> None:
    """Raise `DirtyBranch` if the branch has uncommitted changes. An error while reading is never "no changes"."""
    view = BranchView.of(context, branch, record)
    difference = first_uncommitted(view, include_staging=include_staging)
    if difference is not None:
        raise DirtyBranch(branch=branch, key=difference.key)


def _counts(context: StagingContext, before: CommitId | None, target: CommitId | None) -> Counts:
    return Counts.of(context.committed.diff(context.commits.metarange_of(before), context.commits.metarange_of(target)))


def _outcome(context: StagingContext, branch: str, update: BranchUpdate, tried: list[_Tried], own: _Tried | None = None,
             *, discards: bool = False) -> CommitReport:
    """Return what came of a move. Reads nothing: one that happened is not reported as failed.

    One that `discards` and wrote is not empty also where HEAD stays: what was uncommitted is gone.
    """
    after = update.after
    if update.is_written:
        own = next(each for each in reversed(tried)
                   if (each.before, each.move.target) == (update.before.commit_id, after.commit_id))
    if own is None or (own.before == own.move.target and (own.before is None or not discards)):
        return CommitReport.no_changes("HEAD stays where it is", after.commit_id)
    if own.move.target is None:
        return CommitReport.no_changes("the branch has no commit now, as the one that it was reset to", None)
    applied, counts = own.move.applied, own.counts
    return CommitReport(commit_id=own.move.target, **attrs.asdict(counts),
                        ranges_written=0 if applied is None else applied.ranges_written,
                        ranges_reused=0 if applied is None else applied.ranges_reused)


# ----------------------------------------------------------------------------------------------- commits to move to


@attrs.frozen(kw_only=True)
class HeadBuilder:
    """Makes the commits that merges, reverts and cherry-picks move HEAD to.

    Attributes:
        context: the stores.
        message: of the commit.
        metadata: of the commit.
        strategy: what to do about keys that both sides changed differently.
    """

    context: StagingContext
    message: str
    metadata: Mapping[str, str] | None = None
    strategy: MergeStrategy = "fail"

    def merge(self, source: CommitId | None) -> NextHead:
        """HEAD with what `source` has since they parted. If it has nothing new, HEAD stays."""
        def next_head(head: CommitId | None) -> Move:
            commits = self.context.commits
            if source is None or commits.is_ancestor(source, head):
                return Move(head)
            base = commits.merge_base([source], [] if head is None else [head])
            merged = self._merged(base, commits.metarange_of(source), commits.metarange_of(head))
            return self._commit(head, (source,), merged)

        return next_head

    def replay(self, commit: Commit, *, backwards: bool = False) -> NextHead:
        """HEAD with what a commit changed against its first parent; or without it."""
        parent = self.context.commits.metarange_of(commit.parents[0] if commit.parents else None)
        base, source = (commit.metarange_id, parent) if backwards else (parent, commit.metarange_id)

        def next_head(head: CommitId | None) -> Move:
            merged = self._merged(base, source, self.context.commits.metarange_of(head))
            return self._commit(head, (), merged) if merged.changes else Move(head)

        return next_head

    def metarange(self, metarange_id: MetaRangeId) -> NextHead:
        """The records of a metarange, whatever HEAD has."""
        def next_head(head: CommitId | None) -> Move:
            present, committed = self.context.commits.metarange_of(head), self.context.committed
            if head is not None and present == metarange_id:
                return Move(head)
            committed.claim(metarange_id)  # It must be there before anything names it, and stay.
            # So must its ranges, all of which are counted: of what it was made of, some may be in memory alone.
            known = {each.range_id for each in committed.ranges_of(present)}
            ranges = {each.range_id for each in committed.ranges_of(metarange_id)}
            for range_id in ranges - known:
                committed.files.forget(range_id)
            return self._commit(head, (), Applied(metarange_id=metarange_id, ranges_reused=len(ranges & known),
                                                  ranges_written=len(ranges - known)))

        return next_head

    def _merged(self, base: MergeBase, source: MetaRangeId | None, present: MetaRangeId | None) -> Applied:
        """What HEAD has, with what leads from the base to the source: perhaps of commits that no branch reaches."""
        for metarange_id in sorted((metaranges_of(base) | metaranges_of(source)) - metaranges_of(present)):
            self.context.committed.claim(metarange_id)  # Also where all of it is in memory.
        return self.context.committed.merge(base, source, present, self.strategy)

    def _commit(self, head: CommitId | None, others: tuple[CommitId, ...], applied: Applied) -> Move:
        parents = (() if head is None else (head,)) + others
        commit = self.context.commits.make(applied.metarange_id, parents, message=self.message, metadata=self.metadata,
                                           created_at=self.context.clock.now())
        return Move(self.context.commits.store(commit), applied)


# ------------------------------------------------------------------------------------------------------------ resets

def reset(context: StagingContext, branch: str) -> ResetReport:
    """Throw away everything uncommitted: the branch is HEAD again.

    Raises:
        BranchNotFound, TooManyTries, OutcomeUnknown: see `BranchStore.update`.
    """
    def change(record: BranchRecord) -> BranchRecord | None:
        return None if is_clear(context, record) else record.emptied(context.tokens.draw(), record.commit_id)

    update = context.branches.update(branch, change, operation="reset", idempotent=False)
    if not update.is_written:
        return ResetReport(why="nothing was uncommitted")
    return ResetReport(tokens_dropped=len(update.before.tokens))


def reset_prefix(context: StagingContext, branch: str, prefix: bytes) -> ResetReport:
    """Make all keys that begin with `prefix` what they are in HEAD, in one step.

    Raises:
        BranchNotFound, TooManyTries, OutcomeUnknown: see `BranchStore.update`.
    """
    if not prefix:
        return reset(context, branch)
    prepared: dict[str, tuple[DropMark, ResetReport]] = {}

    def change(record: BranchRecord) -> BranchRecord | None:
        view = BranchView.of(context, branch, record)
        batches = _batches((key, Staged(difference.left)) for key, difference in uncommitted_keys(view, prefix=prefix)
                           if difference is not None)
        first = next(batches, None)
        if first is None:
            return None
        # The mark comes before the first entry. A token that loses stays marked.
        token = context.tokens.draw()
        mark = context.tokens.mark_prepared(branch, token)
        if mark is None:
            raise Busy("a cleanup has claimed the new token at once, by a clock that is ahead; call again")
        restored = tombstones = 0
        for batch in chain([first], batches):
            # No record names the token yet, so what fails here has changed nothing.
            context.tokens.set_many(token, batch)
            hidden = sum(staged.is_tombstone for staged in batch.values())
            restored, tombstones = restored + len(batch) - hidden, tombstones + hidden
        prepared[token] = mark, ResetReport(records_restored=restored, tombstones=tombstones)
        return record.sealed_with(token)

    def unmarked(record: BranchRecord) -> Iterable[Condition | Put | Delete]:
        mark, _ = prepared[record.staging_token]
        cell = context.branches.cell(branch)[0], mark.key
        return Condition(*cell, mark.predicate), Delete(*cell)

    for _ in context.branches.tries():
        try:
            update = context.branches.update(branch, change, operation="reset_prefix", idempotent=False, also=unmarked)
        except PredicateFailed:
            continue  # the cleanup has claimed the new token
        if not update.is_written:
            return ResetReport(why="nothing was uncommitted under the prefix")
        _, stats = prepared[update.after.staging_token]
        if stats.tombstones:
            context.activity.wrote_tombstones(branch, update.after, stats.tombstones)
        return stats
    raise TooManyTries(operation="reset_prefix", branch=branch, tries=context.options.retries.tries)


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
