# SPDX-License-Identifier: Apache-2.0
"""Moves of HEAD: merge, revert, cherry-pick, a commit of a given metarange, hard reset.

HEAD may move only under a branch without uncommitted changes: a tombstone that hides nothing today would hide what the
new HEAD brings. "Without" means the whole difference from HEAD, what a compaction made included. So a move takes two
compare-and-sets:

1. Nothing is uncommitted: seal. Whatever is written from now on goes into a new token, and stays above the new HEAD.
2. Still nothing is uncommitted in what is sealed, or compacted: HEAD moves, the sealed tokens and the compacted
   metarange go, in one step.

A hard reset that discards is one compare-and-set: HEAD moves and every layer goes, whatever it held.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from compactlib.outcome import Done
from compactlib.staging.branches import BranchUpdate
from compactlib.staging.commits import Commit
from compactlib.staging.context import StagingContext
from compactlib.staging.diff_cache import DiffCache
from compactlib.staging.errors import DirtyBranch
from compactlib.staging.names import CommitId
from compactlib.staging.record import BranchRecord
from compactlib.staging.results import CommitStats, Counts, NoChanges
from compactlib.staging.uncommitted import first_uncommitted
from compactlib.staging.values import Applied, MergeStrategy, MetaRangeId
from compactlib.staging.view import BranchView

MoveOutcome: TypeAlias = Done[CommitStats] | NoChanges
"""What a move of HEAD ends in."""

_FromTo: TypeAlias = tuple[CommitId | None, CommitId | None]
"""Of a move: what HEAD was, and what it is to be."""

_CountsOfMoves: TypeAlias = dict[_FromTo, Counts]
"""How many keys the moves differ in that were tried. Counted before the move."""

NextHead: TypeAlias = Callable[[CommitId | None], CommitId | None]
"""Given HEAD, the commit it shall move to, already stored; the same one if there is nothing to do."""


def move_head(context: StagingContext, branch: str, cache: DiffCache, next_head: NextHead, *, operation: str,
              makes_commits: bool = True) -> MoveOutcome:
    """Move the HEAD of a branch that has no uncommitted changes.

    Args:
        context: the stores.
        branch: the branch's name.
        cache: gives the differences between HEAD and the compacted metarange.
        next_head: where to move it to; asked again after each conflict.
        operation: for errors.
        makes_commits: whether `next_head` gives new commits, which the branch can only have from this call.

    Raises:
        DirtyBranch: it has some; nothing was changed, except that a token may have been sealed.
        BranchNotFound, TooManyTries, OutcomeUnknown: see `BranchStore.update`; and what `next_head` raises.
    """
    move = _Move(context, branch, cache, next_head, makes_commits=makes_commits)
    context.branches.update(branch, move.prepare, operation=operation)
    update = context.branches.update(branch, move.switch, operation=operation, knows_own=makes_commits)
    return _outcome(context, branch, update, move.counts, move.own)


def discard_and_move(context: StagingContext, branch: str, next_head: NextHead) -> MoveOutcome:
    """Move the HEAD of a branch and throw away everything uncommitted, in one step.

    Raises:
        BranchNotFound, TooManyTries, OutcomeUnknown: see `BranchStore.update`; and what `next_head` raises.
    """
    counts: _CountsOfMoves = {}

    def change(record: BranchRecord) -> BranchRecord | None:
        target = next_head(record.commit_id)
        if (target == record.commit_id and record.is_bare and context.tokens.is_empty(record.staging_token)
                # A token may look empty because a compaction took its entries away, and a cleanup came after it.
                and context.branches.read(branch).record == record):
            return None
        counts[record.commit_id, target] = _counts(context, record.commit_id, target)
        return record.emptied(context.tokens.issue(branch), target)

    update = context.branches.update(branch, change, operation="hard_reset", knows_own=False)
    return _outcome(context, branch, update, counts, discards=True)


def require_clean(context: StagingContext, branch: str, record: BranchRecord, cache: DiffCache, *,
                  include_staging: bool = True) -> None:
    """Pass a record without uncommitted changes.

    Raises:
        DirtyBranch: it has some. An error while reading is raised as it is: it is never "no changes".
    """
    view = BranchView.of(context, branch, record)
    difference = first_uncommitted(view, cache, include_staging=include_staging)
    if difference is not None:
        raise DirtyBranch(branch=branch, key=difference.key)


class _Move:
    """The two changes of a branch record that move its HEAD; and where they led."""

    def __init__(self, context: StagingContext, branch: str, cache: DiffCache, next_head: NextHead, *,
                 makes_commits: bool) -> None:
        self._context = context
        self._branch = branch
        self._cache = cache
        self._next_head = next_head
        self._makes_commits = makes_commits
        self.counts: _CountsOfMoves = {}
        self.own: _FromTo | None = None
        """The move of this call that others have built upon before it was seen."""

    def prepare(self, record: BranchRecord) -> BranchRecord | None:
        """Sealed, if nothing is uncommitted; `None` if an earlier move that failed has left it so."""
        require_clean(self._context, self._branch, record, self._cache)
        if record.sealed_tokens and self._context.tokens.is_empty(record.staging_token):
            return None
        return record.sealed_with(self._context.tokens.issue(self._branch))

    def switch(self, record: BranchRecord) -> BranchRecord | None:
        """With the new HEAD and nothing sealed or compacted, if nothing that is sealed or compacted counts."""
        context = self._context
        if self._makes_commits:
            self.own = next((move for move in self.counts if move[1] is not None
                             and context.commits.is_ancestor(move[1], record.commit_id)), None)
            if self.own is not None:
                return None  # A write without an answer had happened, and others went on from there.
        require_clean(context, self._branch, record, self._cache, include_staging=False)
        target = self._next_head(record.commit_id)
        if target != record.commit_id:
            self.counts[record.commit_id, target] = _counts(context, record.commit_id, target)
        elif record.is_bare:
            return None
        return record.emptied(record.staging_token, target)


def _counts(context: StagingContext, before: CommitId | None, target: CommitId | None) -> Counts:
    return Counts.of(context.committed.diff(context.commits.metarange_of(before), context.commits.metarange_of(target)))


def _outcome(context: StagingContext, branch: str, update: BranchUpdate, counted: _CountsOfMoves,
             own: _FromTo | None = None, *, discards: bool = False) -> MoveOutcome:
    """What came of a move. Reads nothing: one that happened is not reported as failed.

    One that `discards` and wrote is `Done` also where HEAD stays: what was uncommitted is gone.
    """
    after = update.after
    if after.version != update.before.version:
        context.drop_tokens(branch, update.before, after)
        context.events.committed(branch, after)
        own = update.before.commit_id, after.commit_id
    if own is None or (own[0] == own[1] and (own[1] is None or not discards)):
        return NoChanges("HEAD stays where it is", after.commit_id)
    counts, commit_id = counted[own], own[1]
    if commit_id is None:
        return NoChanges("the branch has no commit now, as the one that it was reset to")
    return Done(CommitStats(commit_id=commit_id, added=counts.added, changed=counts.changed, removed=counts.removed))


class HeadBuilder:
    """Makes the commits that merges, reverts and cherry-picks move HEAD to.

    Args:
        context: the stores.
        message: of the commit.
        metadata: of the commit.
        strategy: what to do about keys that both sides changed differently.
    """

    def __init__(self, context: StagingContext, *, message: str, metadata: Mapping[str, str] | None,
                 strategy: MergeStrategy = "fail") -> None:
        self._context = context
        self._message = message
        self._metadata = metadata
        self._strategy: MergeStrategy = strategy

    def merge(self, source: CommitId | None) -> NextHead:
        """HEAD with what `source` has since they parted. If it has nothing new, HEAD stays."""

        def next_head(head: CommitId | None) -> CommitId | None:
            base = self._context.commits.merge_base(source, head)
            if source is None or source == base:
                return head
            metarange_of = self._context.commits.metarange_of
            merged = self._merged(metarange_of(base), metarange_of(source), metarange_of(head))
            return self._commit(head, (source,), merged.metarange_id)

        return next_head

    def revert(self, commit: Commit) -> NextHead:
        """HEAD without what a commit changed against its first parent."""
        return self._changed(commit.metarange_id, self._parent_of(commit))

    def cherry_pick(self, commit: Commit) -> NextHead:
        """HEAD with what a commit changed against its first parent."""
        return self._changed(self._parent_of(commit), commit.metarange_id)

    def _parent_of(self, commit: Commit) -> MetaRangeId | None:
        return self._context.commits.metarange_of(commit.parents[0] if commit.parents else None)

    def _changed(self, base: MetaRangeId | None, source: MetaRangeId | None) -> NextHead:
        """HEAD with what leads from one metarange to the other."""

        def next_head(head: CommitId | None) -> CommitId | None:
            merged = self._merged(base, source, self._context.commits.metarange_of(head))
            return head if not merged.changes else self._commit(head, (), merged.metarange_id)

        return next_head

    def metarange(self, metarange_id: MetaRangeId) -> NextHead:
        """The records of a metarange, whatever HEAD has."""

        def next_head(head: CommitId | None) -> CommitId | None:
            present, committed = self._context.commits.metarange_of(head), self._context.committed
            if head is not None and present == metarange_id:
                return head
            committed.claim(metarange_id)  # It must be there before anything names it, and stay.
            # So must its ranges, all of which are counted: of what it was made of, some may be in memory alone.
            for range_id in ({each.range_id for each in committed.ranges_of(metarange_id)}
                             - {each.range_id for each in committed.ranges_of(present)}):
                committed.files.forget(range_id)
            return self._commit(head, (), metarange_id)

        return next_head

    def _merged(self, base: MetaRangeId | None, source: MetaRangeId | None, present: MetaRangeId | None) -> Applied:
        """What HEAD has, with what leads from one metarange to the other: perhaps of commits that no branch reaches."""
        for metarange_id in base, source:
            if metarange_id is not None and metarange_id != present:
                self._context.committed.claim(metarange_id)  # Also where all of it is in memory.
        return self._context.committed.merge(base, source, present, self._strategy)

    def _commit(self, head: CommitId | None, others: tuple[CommitId, ...], metarange_id: MetaRangeId) -> CommitId:
        parents = (() if head is None else (head,)) + others
        return self._context.commits.store(self._context.commits.make(
            metarange_id, parents, message=self._message, metadata=self._metadata,
            created_at=self._context.clock.now()))
