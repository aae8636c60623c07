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
from collections.abc import Callable, Iterator, Mapping
from typing import Literal, TypeAlias

import attrs

from compactlib.budget import Budget
from compactlib.staging.context import StagingContext
from compactlib.staging.errors import BeingCollected, CommitNotFound, DirtyBranch, MetaRangeNotFound
from compactlib.staging.ranges.committed import MergeBase, metaranges_of
from compactlib.staging.record import BranchRecord
from compactlib.staging.results import CommitReport, ResetReport
from compactlib.staging.tokens import MergedTokens
from compactlib.staging.values import Applied, Change, Changes, CommitId, MergeStrategy, MetaRangeId, branch_key
from compactlib.staging.view import BranchView, upper_bound

NextHead: TypeAlias = Callable[[CommitId | None], tuple[CommitId | None, Applied | None]]
"""Returns the target commit for the present HEAD, and the apply behind it. Called again after each conflict."""


@attrs.frozen
class _Built:
    """The result of step 2: the record that it was built of, the content, and the report if step 3 succeeds."""

    source: BranchRecord
    metarange_id: MetaRangeId
    report: CommitReport


class BranchHead:
    """The commits, moves of HEAD and resets of a `Branch`."""

    def __init__(self, context: StagingContext, name: str) -> None:
        branch_key(name)
        self._context = context
        self._name = name

    # --- commit

    def commit(self, message: str, *, metadata: Mapping[str, str] | None = None, allow_empty: bool = False,
               budget: Budget | None = None) -> CommitReport:
        """Commit all acknowledged changes as the new HEAD; the report is empty if there were no changes.

        Raises:
            Busy: others changed the branch during every try; nothing is lost, commit again.
            BudgetSpent: the budget ran out; HEAD is unchanged.
        """
        context, branches, commits = self._context, self._context.branches, self._context.commits
        before, sealed = branches.update(self._name, context.sealed, operation="commit", idempotent=True)
        if sealed is before and sealed.is_bare and not allow_empty:
            return CommitReport(why="nothing was written since HEAD", commit_id=sealed.commit_id)
        builds: list[_Built] = []

        def build(record: BranchRecord) -> _Built:
            head = commits.metarange_of(record.commit_id)
            base, target = record.base(head), None
            applied = self._apply(base, MergedTokens(context.store, record.sealed_tokens), budget)
            counts = ({"added": applied.added, "changed": applied.changed, "removed": applied.removed} if base == head
                      else self._counts(head, applied.metarange_id))
            has_changes = any(counts.values())
            if has_changes or allow_empty:
                target = commits.add(applied.metarange_id if has_changes or head is None else head,
                                     [record.commit_id], message, metadata)
            return _Built(record, applied.metarange_id, _report(target, counts, applied, rebuilds=len(builds)))

        def switch(record: BranchRecord) -> BranchRecord | None:
            if not builds or not record.extends(builds[-1].source) or not self._is_kept(builds[-1].metarange_id):
                builds.append(build(record))
            source, target = builds[-1].source, builds[-1].report.commit_id
            if target is None and record.is_bare:
                return None
            newer = len(record.sealed_tokens) - len(source.sealed_tokens)  # sealed in front, meanwhile
            return attrs.evolve(record.compacted(None, newer=newer), commit_id=target or record.commit_id)

        head = branches.update(self._name, switch, operation="commit")[1].commit_id
        if head == sealed.commit_id:
            return CommitReport(why="the content is that of HEAD", commit_id=head)
        for built in builds:
            if head is not None and built.report.commit_id == head:
                return built.report
        if sealed.commit_id is not None and not commits.is_ancestor(sealed.commit_id, head):
            return CommitReport(why="another caller reset HEAD, which dropped the uncommitted changes", commit_id=head)
        return CommitReport(why="another commit holds all changes, unless a reset dropped them", commit_id=head)

    def _is_kept(self, metarange_id: MetaRangeId) -> bool:
        """Return whether the files survived until the record was re-read; protects them from collections."""
        try:
            self._context.committed.claim(metarange_id)
        except (BeingCollected, MetaRangeNotFound):
            return False
        return True

    # --- other moves

    def merge(self, source: str, message: str = "", *, metadata: Mapping[str, str] | None = None,
              strategy: MergeStrategy = "fail") -> CommitReport:
        """Merge the changes of another branch's HEAD, or of a commit, since the common ancestor.

        Raises:
            DirtyBranch: this branch has uncommitted changes; those of the source are ignored.
            MergeConflict: both sides changed a key in different ways, and the strategy is `"fail"`.
            CommitNotFound: there is no such commit.
            MetaRangeNotFound: a commit was unreachable for the grace period, and its records were collected.
            BeingCollected: a collection deletes them now.
        """
        theirs, commits = self._context.resolve(source), self._context.commits

        def next_head(head: CommitId | None) -> tuple[CommitId | None, Applied | None]:
            if theirs is None or commits.is_ancestor(theirs, head):
                return head, None
            base = commits.merge_base([theirs], [] if head is None else [head])
            applied = self._merged(base, commits.metarange_of(theirs), head, strategy)
            return commits.add(applied.metarange_id, [head, theirs], message or f"merge {source} into {self._name}",
                               metadata), applied

        return self._move(next_head, operation="merge")

    def revert(self, commit: str, message: str = "", *, metadata: Mapping[str, str] | None = None,
               strategy: MergeStrategy = "fail") -> CommitReport:
        """Undo the changes of a commit against its first parent, in a new commit; errors as for `merge`."""
        return self._replay(commit, message or f"revert {commit}", metadata, strategy, operation="revert")

    def cherry_pick(self, commit: str, message: str = "", *, metadata: Mapping[str, str] | None = None,
                    strategy: MergeStrategy = "fail") -> CommitReport:
        """Apply the changes of a commit against its first parent, in a new commit; errors as for `merge`."""
        return self._replay(commit, message or f"cherry-pick {commit}", metadata, strategy, operation="cherry_pick")

    def _replay(self, ref: str, message: str, metadata: Mapping[str, str] | None, strategy: MergeStrategy, *,
                operation: Literal["revert", "cherry_pick"]) -> CommitReport:
        """Apply the changes of a commit against its first parent to HEAD, or take them back."""
        commits, commit_id = self._context.commits, self._context.resolve(ref)
        if commit_id is None:
            raise CommitNotFound(commit_id=ref)
        commit = commits.get(commit_id)
        sides = commits.metarange_of(commit.parents[0] if commit.parents else None), commit.metarange_id
        base, source = sides if operation == "cherry_pick" else sides[::-1]

        def next_head(head: CommitId | None) -> tuple[CommitId | None, Applied | None]:
            applied = self._merged(base, source, head, strategy)
            if not applied.changes:
                return head, None
            return commits.add(applied.metarange_id, [head], message, metadata), applied

        return self._move(next_head, operation=operation)

    def commit_metarange(self, metarange_id: MetaRangeId, message: str, *,
                         metadata: Mapping[str, str] | None = None) -> CommitReport:
        """Commit a given metarange as the new HEAD: an import, or the result of a job.

        Raises:
            DirtyBranch: the branch has uncommitted changes.
            MetaRangeNotFound: there is no such metarange.
            RangeNotFound: one of its ranges is missing: it was collected, or was not copied.
        """
        committed = self._context.committed

        def next_head(head: CommitId | None) -> tuple[CommitId | None, Applied | None]:
            present = self._context.commits.metarange_of(head)
            if head is not None and present == metarange_id:
                return head, None
            committed.claim(metarange_id)  # it must exist before a commit names it, and stay
            # Its ranges too: drop the cached ones, so that each is read from the store.
            known, ranges = committed.read_metarange(present).ids, committed.read_metarange(metarange_id).ids
            for range_id in ranges - known:
                committed.forget(range_id)
            applied = Applied(metarange_id=metarange_id, ranges_reused=len(ranges & known),
                              ranges_written=len(ranges - known))
            return self._context.commits.add(metarange_id, [head], message, metadata), applied

        return self._move(next_head, operation="commit_metarange")

    def hard_reset(self, ref: str, *, discard: bool = False) -> CommitReport:
        """Move HEAD to a commit, or to the HEAD of a branch; `discard` drops uncommitted changes. Errors: see `merge`.
        """
        return self._move(lambda _: (self._context.resolve_present(ref), None), operation="hard_reset", discard=discard)

    def _move(self, next_head: NextHead, *, operation: str, discard: bool = False) -> CommitReport:
        """Move the HEAD of a branch that has no uncommitted changes, or drop them."""
        context, branches = self._context, self._context.branches
        made: dict[tuple[CommitId | None, CommitId | None], CommitReport] = {}  # by the old and the new HEAD

        def prepare(record: BranchRecord) -> BranchRecord | None:
            self._require_clean(record, include_staging=True)
            if record.sealed_tokens and context.is_empty(record.staging_token):
                return None  # an earlier move sealed it and failed
            return record.sealed_with(context.new_token())

        def switch(record: BranchRecord) -> BranchRecord | None:
            if not discard:
                self._require_clean(record, include_staging=False)
            head = record.commit_id
            target, applied = next_head(head)
            if target == head and (self._is_clear(record) if discard else record.is_bare):
                return None
            # Reported before the write: a failure afterwards would hide a completed move.
            counts = self._counts(context.commits.metarange_of(head), context.commits.metarange_of(target))
            made[head, target] = _report(target, counts, applied)
            return record.emptied(context.new_token() if discard else record.staging_token, target)

        if not discard:
            branches.update(self._name, prepare, operation=operation, idempotent=True)
        before, after = branches.update(self._name, switch, operation=operation)
        old, new = before.commit_id, after.commit_id
        # A move that drops uncommitted changes is not empty, also if HEAD is unchanged.
        if after is before or (new == old and (new is None or not discard)):
            return CommitReport(why="HEAD is unchanged", commit_id=new)
        if new is None:
            return CommitReport(why="the branch has no commit now, as its source has none", commit_id=None)
        return made[old, new]

    # --- resets

    def reset(self) -> ResetReport:
        """Drop all uncommitted changes, in one step."""
        def change(record: BranchRecord) -> BranchRecord | None:
            return None if self._is_clear(record) else record.emptied(self._context.new_token(), record.commit_id)

        before, after = self._context.branches.update(self._name, change, operation="reset")
        if after is before:
            return ResetReport(why="nothing was uncommitted")
        return ResetReport(tokens_dropped=len(before.tokens))

    def reset_prefix(self, prefix: bytes) -> ResetReport:
        """Restore all keys with a prefix to their state in HEAD, in one step; `b""` is `reset`.

        A write during the call may stay. Costs a rewrite of what is staged, like a compaction.
        """
        if not prefix:
            return self.reset()
        context, branches = self._context, self._context.branches
        is_needed, counts = False, Counter[str]()

        def seal(record: BranchRecord) -> BranchRecord | None:
            nonlocal is_needed
            changes = BranchView.of(context, record).uncommitted(prefix=prefix)
            is_needed = any(difference is not None for _, difference in changes)
            return context.sealed(record) if is_needed else None

        def switch(record: BranchRecord) -> BranchRecord | None:
            view = BranchView.of(context, record)
            counts.clear()
            applied = self._apply(view.base, _reset_changes(view, prefix, counts))
            if not counts:
                return None  # another caller has dropped the changes
            return record.compacted(context.committed.unless_head(applied.metarange_id, view.head))

        branches.update(self._name, seal, operation="reset_prefix", idempotent=True)
        if is_needed:
            branches.update(self._name, switch, operation="reset_prefix")
        return ResetReport(why="" if counts else "nothing was uncommitted under the prefix",
                           records_restored=counts["restored"], tombstones=counts["removed"])

    # --- parts of several of them

    def _is_clear(self, record: BranchRecord) -> bool:
        """Return whether no layer above HEAD holds entries; valid if the record is unchanged afterwards."""
        return record.is_bare and self._context.is_empty(record.staging_token)

    def _require_clean(self, record: BranchRecord, *, include_staging: bool) -> None:
        view = BranchView.of(self._context, record)
        difference = view.first_uncommitted(include_staging=include_staging)
        if difference is not None:
            raise DirtyBranch(branch=self._name, key=difference.key)

    def _apply(self, base: MetaRangeId | None, changes: Changes, budget: Budget | None = None) -> Applied:
        """Apply entries of sealed tokens, and read the result back: then the tokens may be dropped."""
        applied = self._context.committed.apply(base, changes, budget=budget)
        self._context.committed.check(applied.metarange_id, base)
        return applied

    def _merged(self, base: MergeBase, source: MetaRangeId | None, head: CommitId | None, strategy: MergeStrategy,
                ) -> Applied:
        """Merge the changes from the base to the source into HEAD. The commits may be unreachable."""
        committed, present = self._context.committed, self._context.commits.metarange_of(head)
        for metarange_id in sorted((metaranges_of(base) | metaranges_of(source)) - metaranges_of(present)):
            committed.claim(metarange_id)  # also if it is cached
        return committed.merge(base, source, present, strategy)

    def _counts(self, before: MetaRangeId | None, after: MetaRangeId | None) -> Counter[str]:
        return Counter(difference.kind for difference in self._context.committed.diff(before, after))


def _report(target: CommitId | None, counts: Mapping[str, int], applied: Applied | None, rebuilds: int = 0,
            ) -> CommitReport:
    return CommitReport(commit_id=target, rebuilds=rebuilds, added=counts["added"], changed=counts["changed"],
                        removed=counts["removed"], ranges_written=0 if applied is None else applied.ranges_written,
                        ranges_reused=0 if applied is None else applied.ranges_reused)


def _reset_changes(view: BranchView, prefix: bytes, counts: Counter[str]) -> Iterator[tuple[bytes, Change]]:
    """Yield the entries of the sealed tokens, and for each changed key with the prefix its state in HEAD."""
    store, sealed, end = view.context.store, view.record.sealed_tokens, upper_bound(prefix)
    for key, record in MergedTokens(store, sealed):
        if key >= prefix:
            break
        yield key, record
    for key, difference in view.uncommitted(prefix=prefix, include_staging=False):
        before = view.context.committed.get(view.head, key)
        if difference is not None:
            counts["removed" if before is None else "restored"] += 1
        yield key, before
    if end is not None:
        yield from MergedTokens(store, sealed, end)
