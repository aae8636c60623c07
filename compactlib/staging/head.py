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

**Resets.** A hard reset with `discard`, and a reset of the branch, is one compare-and-set that drops every layer. A
reset of a prefix has the steps of a commit, and replaces the sealed tokens by a metarange as a compaction does: it
applies the entries outside of the prefix, and the state in HEAD of each key with the prefix.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeAlias

import attrs

from compactlib.budget import Budget
from compactlib.staging.branches import BranchUpdate
from compactlib.staging.context import StagingContext
from compactlib.staging.errors import BeingCollected, CommitNotFound, DirtyBranch, MetaRangeNotFound
from compactlib.staging.listing import upper_bound
from compactlib.staging.names import CommitId
from compactlib.staging.ranges.merge import MergeBase, metaranges_of
from compactlib.staging.record import BranchRecord
from compactlib.staging.results import CommitReport, ResetReport
from compactlib.staging.tokens import MergedTokens
from compactlib.staging.values import Applied, Change, Changes, MergeStrategy, MetaRangeId
from compactlib.staging.view import BranchView

NextHead: TypeAlias = Callable[[CommitId | None], tuple[CommitId | None, Applied | None]]
"""Returns the target commit for the present HEAD, and the apply behind it. Called again after each conflict."""


def _counts(context: StagingContext, before: MetaRangeId | None, after: MetaRangeId | None) -> Counter[str]:
    return Counter(difference.kind for difference in context.committed.diff(before, after))


def _report(target: CommitId | None, counts: Mapping[str, int], applied: Applied | None, rebuilds: int = 0,
            ) -> CommitReport:
    return CommitReport(commit_id=target, rebuilds=rebuilds, added=counts["added"], changed=counts["changed"],
                        removed=counts["removed"], ranges_written=0 if applied is None else applied.ranges_written,
                        ranges_reused=0 if applied is None else applied.ranges_reused)


def _is_clear(context: StagingContext, record: BranchRecord) -> bool:
    """Return whether no layer above HEAD holds entries; valid if the record is unchanged afterwards."""
    return record.is_bare and context.tokens.is_empty(record.staging_token)


def _require_clean(context: StagingContext, branch: str, record: BranchRecord, *, include_staging: bool) -> None:
    difference = BranchView.of(context, branch, record).first_uncommitted(include_staging=include_staging)
    if difference is not None:
        raise DirtyBranch(branch=branch, key=difference.key)


def _sealed(context: StagingContext, record: BranchRecord) -> BranchRecord | None:
    """Return the record with a new staging token; `None` if the old token is empty.

    Sealing an empty token would cost every read a token for each commit that fails.
    """
    return None if context.tokens.is_empty(record.staging_token) else record.sealed_with(context.tokens.draw())


def _apply(context: StagingContext, base: MetaRangeId | None, changes: Changes, budget: Budget | None = None,
           ) -> Applied:
    """Apply entries of sealed tokens, and read the result back: once the record names it, the tokens are dropped."""
    applied = context.committed.apply(base, changes, budget=budget)
    context.committed.check(applied.metarange_id, base)
    return applied


# ------------------------------------------------------------------------------------------------------------ commit


def commit(context: StagingContext, branch: str, message: str, metadata: Mapping[str, str] | None, *,
           allow_empty: bool, budget: Budget | None) -> CommitReport:
    """Commit all writes acknowledged before the call (G2); see `Branch.commit`."""
    began, outcome = context.clock.monotonic(), "error"
    try:
        report = _commit(context, branch, message, metadata, allow_empty, budget)
        outcome = report.outcome
        return report
    finally:
        context.activity.committed(outcome, context.clock.monotonic() - began)


@attrs.frozen
class _Built:
    """The result of step 2 of a commit.

    Attributes:
        source: the record that it was built of.
        metarange_id: the content.
        target: the stored commit; `None` if there are no changes.
    """

    source: BranchRecord
    metarange_id: MetaRangeId
    target: CommitId | None


def _commit(context: StagingContext, branch: str, message: str, metadata: Mapping[str, str] | None,
            allow_empty: bool, budget: Budget | None) -> CommitReport:
    branches, commits = context.branches, context.commits
    before = branches.read(branch)
    # A token may be empty because a compaction replaced it, and a cleanup removed its entries.
    if not allow_empty and _is_clear(context, before) and branches.read(branch) == before:
        return CommitReport.no_changes("nothing was written since HEAD", before.commit_id)
    sealed = branches.update(branch, lambda record: _sealed(context, record), operation="commit",
                             idempotent=True).after
    built: _Built | None = None
    made: list[CommitReport] = []  # of each build

    def build(record: BranchRecord) -> _Built:
        head = commits.metarange_of(record.commit_id)
        base, target = record.base(head), None
        applied = _apply(context, base, MergedTokens(context.tokens, record.sealed_tokens), budget)
        counts = ({"added": applied.added, "changed": applied.changed, "removed": applied.removed} if base == head
                  else _counts(context, head, applied.metarange_id))
        has_changes = any(counts.values())
        if has_changes or allow_empty:
            target = _store(context, applied.metarange_id if has_changes or head is None else head,
                            [record.commit_id], message, metadata)
        made.append(_report(target, counts, applied, rebuilds=len(made)))
        return _Built(record, applied.metarange_id, target)

    def switch(record: BranchRecord) -> BranchRecord | None:
        nonlocal built
        newer = None if built is None else record.seals_since(built.source)
        if built is None or newer is None or not _is_kept(context, built.metarange_id):
            built, newer = None, 0
            built = build(record)
        if built.target is None and record.is_bare:
            return None
        head = record.commit_id if built.target is None else built.target
        return attrs.evolve(record.compacted(None, newer=newer), commit_id=head)

    head = branches.update(branch, switch, operation="commit").after.commit_id
    if head == sealed.commit_id:
        return CommitReport.no_changes("the content is that of HEAD", head)
    for report in made:
        if report.commit_id == head:
            return report
    if sealed.commit_id is not None and not commits.is_ancestor(sealed.commit_id, head):
        return CommitReport.no_changes("another caller reset HEAD, which dropped the uncommitted changes", head)
    return CommitReport(outcome="already_committed", commit_id=head,
                        why="another commit holds all changes, unless a reset dropped them")


def _is_kept(context: StagingContext, metarange_id: MetaRangeId) -> bool:
    """Return whether the files survived until the record was re-read; protects them from collections."""
    try:
        context.committed.claim(metarange_id)
    except (BeingCollected, MetaRangeNotFound):
        return False
    return True


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
    return _move(context, branch, lambda _: (context.resolve_present(ref), None), operation="hard_reset",
                 discard=discard)


_Reports: TypeAlias = dict[tuple[CommitId | None, CommitId | None], CommitReport]
"""The report of each move that was tried, by the old and the new HEAD."""


def _move(context: StagingContext, branch: str, next_head: NextHead, *, operation: str, discard: bool = False,
          ) -> CommitReport:
    """Move the HEAD of a branch that has no uncommitted changes, or drop them."""
    made: _Reports = {}

    def prepare(record: BranchRecord) -> BranchRecord | None:
        _require_clean(context, branch, record, include_staging=True)
        if record.sealed_tokens and context.tokens.is_empty(record.staging_token):
            return None  # an earlier move sealed it and failed
        return record.sealed_with(context.tokens.draw())

    def switch(record: BranchRecord) -> BranchRecord | None:
        if not discard:
            _require_clean(context, branch, record, include_staging=False)
        target, applied = next_head(record.commit_id)
        if target == record.commit_id and (_is_clear(context, record) if discard else record.is_bare):
            return None
        _note(context, made, record, target, applied)
        return record.emptied(context.tokens.draw() if discard else record.staging_token, target)

    if not discard:
        context.branches.update(branch, prepare, operation=operation, idempotent=True)
    # A move that drops uncommitted changes is not empty, also if HEAD is unchanged.
    return _moved(context.branches.update(branch, switch, operation=operation), made, discards=discard)


def _note(context: StagingContext, made: _Reports, record: BranchRecord, target: CommitId | None,
          applied: Applied | None) -> None:
    """Note the report of a move before it is written: a failure afterwards would hide a completed move."""
    counts = _counts(context, context.commits.metarange_of(record.commit_id), context.commits.metarange_of(target))
    made[record.commit_id, target] = _report(target, counts, applied)


def _moved(update: BranchUpdate, made: _Reports, *, discards: bool = False) -> CommitReport:
    head = update.after.commit_id
    if not update.is_written or (head == update.before.commit_id and (head is None or not discards)):
        return CommitReport.no_changes("HEAD is unchanged", head)
    if head is None:
        return CommitReport.no_changes("the branch has no commit now, as its source has none", None)
    return made[update.before.commit_id, head]


# ------------------------------------------------------------------------------------------------------------ resets


def reset(context: StagingContext, branch: str) -> ResetReport:
    """Drop all uncommitted changes; see `Branch.reset`."""
    def change(record: BranchRecord) -> BranchRecord | None:
        return None if _is_clear(context, record) else record.emptied(context.tokens.draw(), record.commit_id)

    update = context.branches.update(branch, change, operation="reset")
    if not update.is_written:
        return ResetReport(why="nothing was uncommitted")
    return ResetReport(tokens_dropped=len(update.before.tokens))


def reset_prefix(context: StagingContext, branch: str, prefix: bytes) -> ResetReport:
    """Restore all keys with `prefix` to their state in HEAD, in one step."""
    if not prefix:
        return reset(context, branch)
    is_needed, counts = False, Counter[str]()

    def seal(record: BranchRecord) -> BranchRecord | None:
        nonlocal is_needed
        changes = BranchView.of(context, branch, record).uncommitted(prefix=prefix)
        is_needed = any(difference is not None for _, difference in changes)
        return _sealed(context, record) if is_needed else None

    def switch(record: BranchRecord) -> BranchRecord | None:
        view = BranchView.of(context, branch, record)
        counts.clear()
        applied = _apply(context, view.base, _reset_changes(view, prefix, counts))
        if not counts:
            return None  # another caller has dropped the changes
        return record.compacted(context.committed.unless_head(applied.metarange_id, view.head))

    context.branches.update(branch, seal, operation="reset_prefix", idempotent=True)
    if is_needed:
        context.branches.update(branch, switch, operation="reset_prefix")
    return ResetReport(why="" if counts else "nothing was uncommitted under the prefix",
                       records_restored=counts["restored"], tombstones=counts["removed"])


def _reset_changes(view: BranchView, prefix: bytes, counts: Counter[str]) -> Iterator[tuple[bytes, Change]]:
    """Yield the entries of the sealed tokens, and for each changed key with the prefix its state in HEAD."""
    tokens, sealed, end = view.context.tokens, view.record.sealed_tokens, upper_bound(prefix)
    for key, record in MergedTokens(tokens, sealed):
        if key >= prefix:
            break
        yield key, record
    for key, difference in view.uncommitted(prefix=prefix, include_staging=False):
        before = view.context.committed.get(view.head, key)
        if difference is not None:
            counts["removed" if before is None else "restored"] += 1
        yield key, before
    if end is not None:
        yield from MergedTokens(tokens, sealed, end)
