# SPDX-License-Identifier: Apache-2.0
"""Changes of HEAD (commit, merge, revert, cherry-pick, a commit of a given metarange, hard reset), and resets.

**A commit** seals the staging token, builds a metarange, and moves HEAD by compare-and-set.

1. Seal the staging token, unless it is empty. Every acknowledged write is now in a sealed token, or in the metarange of
   a compaction.
2. Apply the sealed tokens to the base: the compacted metarange if there is one, else that of HEAD. Store the commit.
3. Compare-and-set the branch: HEAD is the commit; the record drops the applied tokens and the compacted metarange.

If the branch changed before 3: tokens that were only sealed in front stay sealed, and 3 is retried. After a compaction
or another commit, 2 is repeated. Whether a commit has changes is decided against the content of HEAD, not against the
base or by the sealed tokens. A commit without changes drops the tokens that it sealed, so that they do not pile up. A
crash at any step leaves at most a sealed token, a metarange and a commit without a reference.

**Other moves of HEAD** need a branch without uncommitted changes: a tombstone that hides nothing today would hide a key
of the new HEAD. Changes that a compaction has moved into a metarange count as uncommitted. So a move takes two
compare-and-sets: the branch is clean, so seal (later writes stay above the new HEAD); the sealed and compacted layers
are still clean, so move HEAD and drop these layers.

**Resets.** A hard reset with `discard`, and a reset of the branch, is one compare-and-set that drops every layer.
Sealed tokens are never edited, because a commit or a compaction may be reading them. A reset of a prefix writes the
state in HEAD of each uncommitted key into a new token, which then becomes the staging token; `tokens` describes the
mark that the token has until then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Final, TypeAlias

import attrs

from compactlib.budget import Budget
from compactlib.errors import Busy
from compactlib.kv import Condition, Delete, Put
from compactlib.kv.errors import PredicateFailed
from compactlib.staging.branches import BranchUpdate
from compactlib.staging.context import StagingContext
from compactlib.staging.errors import CommitNotFound, DirtyBranch, MetaRangeNotFound, TooManyTries
from compactlib.staging.names import CommitId
from compactlib.staging.options import MAX_BATCH_KEYS
from compactlib.staging.ranges.merge import MergeBase, metaranges_of
from compactlib.staging.record import BranchRecord
from compactlib.staging.results import CommitReport, ResetReport
from compactlib.staging.tokens import DropMark, MergedTokens, Staged
from compactlib.staging.values import Applied, MergeStrategy, MetaRangeId
from compactlib.staging.view import BranchView

_MAX_BATCH_BYTES: Final = 8 << 20


@attrs.frozen(kw_only=True)
class _Move:
    """A move of HEAD that was built.

    Attributes:
        source: the record that it was built of.
        target: the stored commit; the present HEAD or `None` if there are no changes.
        counts: number of differing keys, by kind.
        applied: the apply or merge that made its metarange; `None` for an existing commit.
    """

    source: BranchRecord
    target: CommitId | None
    counts: Mapping[str, int]
    applied: Applied | None

    def report(self, *, rebuilds: int = 0) -> CommitReport:
        applied = self.applied
        counts = self.counts
        return CommitReport(commit_id=self.target, added=counts["added"], changed=counts["changed"],
                            removed=counts["removed"], rebuilds=rebuilds,
                            ranges_written=0 if applied is None else applied.ranges_written,
                            ranges_reused=0 if applied is None else applied.ranges_reused)


NextHead: TypeAlias = Callable[[CommitId | None], tuple[CommitId | None, Applied | None]]
"""Returns the target commit for the present HEAD, and the apply behind it. Called again after each conflict."""


def _counts(context: StagingContext, before: MetaRangeId | None, after: MetaRangeId | None) -> Mapping[str, int]:
    counts = {"added": 0, "changed": 0, "removed": 0}
    for difference in context.committed.diff(before, after):
        counts[difference.kind] += 1
    return counts


def _own(context: StagingContext, made: Sequence[_Move], head: CommitId | None) -> _Move | None:
    """Return the move whose commit is a HEAD or an ancestor of it."""
    return next((move for move in reversed(made) if move.target is not None
                 and context.commits.is_ancestor(move.target, head)), None)


def _is_clear(context: StagingContext, record: BranchRecord) -> bool:
    """Return whether no layer above HEAD holds entries; valid if the record is unchanged afterwards."""
    return record.is_bare and context.tokens.is_empty(record.staging_token)


def _require_clean(context: StagingContext, branch: str, record: BranchRecord, *, include_staging: bool) -> None:
    difference = BranchView.of(context, branch, record).first_uncommitted(include_staging=include_staging)
    if difference is not None:
        raise DirtyBranch(branch=branch, key=difference.key)


# ------------------------------------------------------------------------------------------------------------ commit


def commit(context: StagingContext, branch: str, message: str, metadata: Mapping[str, str] | None, *,
           allow_empty: bool, budget: Budget | None) -> CommitReport:
    """Commit all writes acknowledged before the call (G2); see `Branch.commit`."""
    began, outcome = context.clock.monotonic(), "error"
    try:
        report = _Commit(context, branch, message, metadata or {}, allow_empty, budget).run()
        outcome = report.outcome
        return report
    finally:
        context.activity.committed(outcome, context.clock.monotonic() - began)


@attrs.define
class _Commit:
    """One commit among concurrent ones: rebuilds after a conflict, and recognizes its own commits."""

    context: StagingContext
    branch: str
    message: str
    metadata: Mapping[str, str]
    allow_empty: bool
    budget: Budget | None
    made: list[_Move] = attrs.field(factory=list)

    def run(self) -> CommitReport:
        branches, commits = self.context.branches, self.context.commits
        before = branches.read(self.branch)
        # A token may be empty because a compaction replaced it, and a cleanup removed its entries.
        if not self.allow_empty and _is_clear(self.context, before) and branches.read(self.branch) == before:
            return CommitReport.no_changes("nothing was written since HEAD", before.commit_id)
        sealed = branches.update(self.branch, self._sealed, operation="commit").after
        head = branches.update(self.branch, lambda record: self._switched(record, sealed),
                               operation="commit").after.commit_id
        if head == sealed.commit_id:
            return CommitReport.no_changes("the content is that of HEAD", head)
        own = _own(self.context, self.made, head)
        if own is not None:
            return own.report(rebuilds=len(self.made) - 1)
        if sealed.commit_id is not None and not commits.is_ancestor(sealed.commit_id, head):
            return CommitReport.no_changes("another caller reset HEAD, which dropped the uncommitted changes", head)
        return CommitReport(outcome="already_committed", commit_id=head,
                            why="another commit holds all changes, unless a reset dropped them")

    def _sealed(self, record: BranchRecord) -> BranchRecord | None:
        """Return the record with a new staging token; `None` if the old token is empty.

        Sealing an empty token would cost every read a token for each commit that fails.
        """
        tokens = self.context.tokens
        return None if tokens.is_empty(record.staging_token) else record.sealed_with(tokens.draw())

    def _switched(self, record: BranchRecord, sealed: BranchRecord) -> BranchRecord | None:
        """Return the record with this commit as HEAD; `None` if the record needs no change."""
        if record.commit_id != sealed.commit_id and _own(self.context, self.made, record.commit_id) is not None:
            return None  # An unanswered write took effect, and others have built on it.
        built = self.made[-1] if self.made else None
        newer = None if built is None else record.seals_since(built.source)
        if built is None or newer is None or not self._is_kept(built):
            built, newer = self._build(record), 0
        if built.target is None and record.is_bare:
            return None
        head = record.commit_id if built.target is None else built.target
        return attrs.evolve(record, commit_id=head, sealed_tokens=record.sealed_tokens[:newer],
                            compacted_metarange_id=None)

    def _is_kept(self, built: _Move) -> bool:
        """Return whether the files survived until the record was re-read; protects them from collections."""
        assert built.applied is not None
        try:
            self.context.committed.claim(built.applied.metarange_id)
        except MetaRangeNotFound:
            return False
        return True

    def _build(self, record: BranchRecord) -> _Move:
        committed, commits = self.context.committed, self.context.commits
        head = commits.metarange_of(record.commit_id)
        base = record.base(head)
        applied = committed.apply(base, MergedTokens(self.context.tokens, record.sealed_tokens), budget=self.budget)
        # Once the record names it, its tokens are dropped.
        committed.check(applied.metarange_id, base)
        counts = ({"added": applied.added, "changed": applied.changed, "removed": applied.removed} if base == head
                  else _counts(self.context, head, applied.metarange_id))
        target, has_changes = None, any(counts.values())
        if has_changes or self.allow_empty:
            target = _store(self.context, applied.metarange_id if has_changes or head is None else head,
                            [record.commit_id], self.message, self.metadata)
        self.made.append(_Move(source=record, target=target, counts=counts, applied=applied))
        return self.made[-1]


def _store(context: StagingContext, metarange_id: MetaRangeId, parents: Iterable[CommitId | None], message: str,
           metadata: Mapping[str, str] | None) -> CommitId:
    """Store a commit and return its id."""
    return context.commits.add(metarange_id, tuple(parent for parent in parents if parent is not None),
                               message=message, metadata=metadata, created_at=context.clock.now())


# ------------------------------------------------------------------------------------------------------- other moves


def merge(context: StagingContext, branch: str, ref: str, message: str, metadata: Mapping[str, str] | None,
          strategy: MergeStrategy) -> CommitReport:
    """Move HEAD to its merge with a commit; see `Branch.merge`."""
    source, commits = context.resolve(ref), context.commits

    def next_head(head: CommitId | None) -> tuple[CommitId | None, Applied | None]:
        if source is None or commits.is_ancestor(source, head):
            return head, None
        base = commits.merge_base([source], [] if head is None else [head])
        applied = _merged(context, base, commits.metarange_of(source), head, strategy)
        return _store(context, applied.metarange_id, (head, source), message, metadata), applied

    return _move(context, branch, next_head, operation="merge")


def replay(context: StagingContext, branch: str, ref: str, message: str, metadata: Mapping[str, str] | None,
           strategy: MergeStrategy, *, backwards: bool) -> CommitReport:
    """Apply or undo the changes of a commit against its first parent; see `Branch.cherry_pick` and `revert`."""
    commit_id = context.resolve(ref)
    if commit_id is None:
        raise CommitNotFound(commit_id=ref)
    replayed = context.commits.get(commit_id)
    parent = context.commits.metarange_of(replayed.parents[0] if replayed.parents else None)
    base, source = (replayed.metarange_id, parent) if backwards else (parent, replayed.metarange_id)

    def next_head(head: CommitId | None) -> tuple[CommitId | None, Applied | None]:
        applied = _merged(context, base, source, head, strategy)
        if not applied.changes:
            return head, None
        return _store(context, applied.metarange_id, (head,), message, metadata), applied

    return _move(context, branch, next_head, operation="revert" if backwards else "cherry_pick")


def _merged(context: StagingContext, base: MergeBase, source: MetaRangeId | None, head: CommitId | None,
            strategy: MergeStrategy) -> Applied:
    """Merge the changes from the base to the source into HEAD. The commits may be unreachable."""
    present = context.commits.metarange_of(head)
    for metarange_id in sorted((metaranges_of(base) | metaranges_of(source)) - metaranges_of(present)):
        context.committed.claim(metarange_id)  # also if it is cached
    return context.committed.merge(base, source, present, strategy)


def commit_metarange(context: StagingContext, branch: str, metarange_id: MetaRangeId, message: str,
                     metadata: Mapping[str, str] | None) -> CommitReport:
    """Move HEAD to a new commit of a metarange; see `Branch.commit_metarange`."""
    def next_head(head: CommitId | None) -> tuple[CommitId | None, Applied | None]:
        committed, present = context.committed, context.commits.metarange_of(head)
        if head is not None and present == metarange_id:
            return head, None
        committed.claim(metarange_id)  # it must exist before a commit names it, and stay
        # Its ranges too: drop the cached ones, so that each is read from the store.
        known = {each.range_id for each in committed.ranges_of(present)}
        ranges = {each.range_id for each in committed.ranges_of(metarange_id)}
        for range_id in ranges - known:
            committed.files.forget(range_id)
        applied = Applied(metarange_id=metarange_id, ranges_reused=len(ranges & known),
                          ranges_written=len(ranges - known))
        return _store(context, metarange_id, (head,), message, metadata), applied

    return _move(context, branch, next_head, operation="commit_metarange")


def hard_reset(context: StagingContext, branch: str, ref: str, *, discard: bool) -> CommitReport:
    """Move HEAD to an existing commit; see `Branch.hard_reset`."""
    def next_head(_: CommitId | None) -> tuple[CommitId | None, Applied | None]:
        return context.resolve_present(ref), None

    if not discard:
        return _move(context, branch, next_head, operation="hard_reset", makes_commits=False)
    made: list[_Move] = []

    def change(record: BranchRecord) -> BranchRecord | None:
        target, _ = next_head(record.commit_id)
        if target == record.commit_id and _is_clear(context, record):
            return None
        made.append(_move_to(context, record, target, None))
        return record.emptied(context.tokens.draw(), target)

    update = context.branches.update(branch, change, operation="hard_reset", idempotent=False)
    return _moved(update, made, discards=True)


def _move(context: StagingContext, branch: str, next_head: NextHead, *, operation: str, makes_commits: bool = True,
          ) -> CommitReport:
    """Move the HEAD of a branch that has no uncommitted changes.

    Args:
        context: the stores.
        branch: the branch's name.
        next_head: returns the target.
        operation: for errors.
        makes_commits: whether `next_head` makes new commits, which only this call can give to the branch.
    """
    made: list[_Move] = []
    own: _Move | None = None  # of an unanswered write that took effect, and others have built on

    def prepare(record: BranchRecord) -> BranchRecord | None:
        _require_clean(context, branch, record, include_staging=True)
        if record.sealed_tokens and context.tokens.is_empty(record.staging_token):
            return None  # an earlier move sealed it and failed
        return record.sealed_with(context.tokens.draw())

    def switch(record: BranchRecord) -> BranchRecord | None:
        nonlocal own
        own = _own(context, made, record.commit_id) if makes_commits else None
        if own is not None:
            return None
        _require_clean(context, branch, record, include_staging=False)
        target, applied = next_head(record.commit_id)
        if target == record.commit_id and record.is_bare:
            return None
        made.append(_move_to(context, record, target, applied))
        return record.emptied(record.staging_token, target)

    context.branches.update(branch, prepare, operation=operation)
    update = context.branches.update(branch, switch, operation=operation, idempotent=makes_commits)
    return _moved(update, made, own)


def _move_to(context: StagingContext, record: BranchRecord, target: CommitId | None, applied: Applied | None) -> _Move:
    counts = _counts(context, context.commits.metarange_of(record.commit_id), context.commits.metarange_of(target))
    return _Move(source=record, target=target, counts=counts, applied=applied)


def _moved(update: BranchUpdate, made: Sequence[_Move], own: _Move | None = None, *, discards: bool = False,
           ) -> CommitReport:
    """Return the report of a move. No request, because a failure here would hide a completed move.

    The update names the move that was written: a try without an answer may have happened before the last one was made.
    A move with `discards` that wrote the record is not empty even if HEAD is unchanged: it dropped uncommitted changes.
    """
    if update.is_written:
        own = next(move for move in reversed(made)
                   if (move.source, move.target) == (update.before, update.after.commit_id))
    if own is None or (own.source.commit_id == own.target and (own.target is None or not discards)):
        return CommitReport.no_changes("HEAD is unchanged", update.after.commit_id)
    if own.target is None:
        return CommitReport.no_changes("the branch has no commit now, as its source has none", None)
    return own.report()


# ------------------------------------------------------------------------------------------------------------ resets


def reset(context: StagingContext, branch: str) -> ResetReport:
    """Drop all uncommitted changes; see `Branch.reset`."""
    def change(record: BranchRecord) -> BranchRecord | None:
        return None if _is_clear(context, record) else record.emptied(context.tokens.draw(), record.commit_id)

    update = context.branches.update(branch, change, operation="reset", idempotent=False)
    if not update.is_written:
        return ResetReport(why="nothing was uncommitted")
    return ResetReport(tokens_dropped=len(update.before.tokens))


def reset_prefix(context: StagingContext, branch: str, prefix: bytes) -> ResetReport:
    """Restore all keys with `prefix` to their state in HEAD, in one step."""
    if not prefix:
        return reset(context, branch)
    prepared: dict[str, tuple[DropMark, ResetReport]] = {}

    def change(record: BranchRecord) -> BranchRecord | None:
        view = BranchView.of(context, branch, record)
        batches = _batches((key, Staged(difference.left)) for key, difference in view.uncommitted(prefix=prefix)
                           if difference is not None)
        first = next(batches, None)
        if first is None:
            return None
        # The mark precedes the first entry. The token of a lost try stays marked.
        token = context.tokens.draw()
        mark = context.tokens.mark_prepared(branch, token)
        if mark is None:
            raise Busy("a cleanup with a fast clock claimed the new token at once; call again")
        restored = tombstones = 0
        for batch in chain([first], batches):
            # No record names the token yet, so a failure here changes nothing.
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
        _, report = prepared[update.after.staging_token]
        if report.tombstones:
            context.activity.wrote_tombstones(branch, update.after, report.tombstones)
        return report
    raise TooManyTries(operation="reset_prefix", branch=branch, tries=context.options.retries.tries)


def _batches(changes: Iterable[tuple[bytes, Staged]]) -> Iterator[dict[bytes, Staged]]:
    """Yield the changes in batches of bounded count and bytes."""
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
