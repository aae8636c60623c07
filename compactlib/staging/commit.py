# SPDX-License-Identifier: Apache-2.0
"""Commits: seal the staging token, build the metarange, move HEAD by compare-and-set.

1. Seal the staging token, unless it is empty. Every write acknowledged so far is in a sealed token now, or in what a
   compaction made of it.
2. Apply the sealed tokens to the base: the compacted metarange if there is one, else that of HEAD. Store the commit.
3. Compare-and-set the branch: HEAD is the commit, the applied tokens and the compacted metarange are gone.

If the branch changed before 3: tokens that were only sealed in front stay sealed, and 3 is tried again as it is. A
compaction or another commit means building anew. Whether there is anything to commit is judged against the content of
HEAD, not against the base, and not by what is sealed. A commit without changes drops what it sealed, so that nothing
piles up. A crash at any step leaves at most a sealed token, a metarange and a commit without a reference.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from compactlib.budget import Budget
from compactlib.staging.activity import report_commit
from compactlib.staging.context import StagingContext
from compactlib.staging.errors import MetaRangeNotFound
from compactlib.staging.head import is_clear
from compactlib.staging.names import CommitId
from compactlib.staging.record import BranchRecord
from compactlib.staging.results import CommitReport, Counts
from compactlib.staging.tokens import changes_of
from compactlib.staging.values import Applied


def seal(context: StagingContext, branch: str, *, operation: str) -> BranchRecord:
    """Give the branch a new staging token, if anything is in the old one, which becomes the newest sealed one.

    An empty one stays: whatever was acknowledged before is in the sealed ones then. Otherwise each commit that fails
    would leave one more token for every read.

    Raises:
        BranchNotFound, TooManyTries, OutcomeUnknown: see `BranchStore.update`.
    """
    def change(record: BranchRecord) -> BranchRecord | None:
        return None if context.tokens.is_empty(record.staging_token) else record.sealed_with(context.tokens.draw())

    return context.branches.update(branch, change, operation=operation).after


def commit(context: StagingContext, branch: str, message: str, *, metadata: Mapping[str, str] | None = None,
           allow_empty: bool = False, budget: Budget | None = None) -> CommitReport:
    """Commit everything that was acknowledged before the call (G2); see `Branch.commit`.

    Raises:
        BranchNotFound, TooManyTries, OutcomeUnknown: see `BranchStore.update`.
        BudgetSpent: the budget ran out; HEAD stays, and the next commit has everything.
    """
    began = context.clock.monotonic()
    name: str = "error"
    try:
        report = _CommitAttempt(context, branch, message, metadata or {}, allow_empty, budget).run()
        name = report.outcome
    finally:
        report_commit(context.observer, context.repository, name, context.clock.monotonic() - began)
    return report


@attrs.frozen(kw_only=True)
class _Built:
    """A metarange made of a branch record. `commit_id` is `None` if there is nothing to commit."""

    source: BranchRecord
    applied: Applied
    counts: Counts
    commit_id: CommitId | None


@attrs.define
class _CommitAttempt:
    """One commit against others: builds when it must, and recognizes its own commits."""

    context: StagingContext
    branch: str
    message: str
    metadata: Mapping[str, str]
    allow_empty: bool
    budget: Budget | None
    builds: list[_Built] = attrs.field(factory=list)

    def run(self) -> CommitReport:
        context = self.context
        before = context.branches.read(self.branch).record
        # A token may look empty because a compaction took its entries away, and a cleanup came after it.
        if (not self.allow_empty and is_clear(context, before)
                and context.branches.read(self.branch).record == before):
            return CommitReport.no_changes("nothing was written since HEAD", before.commit_id)
        sealed = seal(context, self.branch, operation="commit")
        update = context.branches.update(self.branch, lambda record: self._switched(record, sealed), operation="commit")
        head, made = update.after.commit_id, self._made_of(update.after, sealed)
        if made is not None and made.commit_id is not None:
            return CommitReport(commit_id=made.commit_id, **attrs.asdict(made.counts),
                                ranges_written=made.applied.ranges_written,
                                ranges_reused=made.applied.ranges_reused, rebuilds=len(self.builds) - 1)
        if head == sealed.commit_id:
            return CommitReport.no_changes("the content is that of HEAD", head)
        if sealed.commit_id is not None and not context.commits.is_ancestor(sealed.commit_id, head):
            return CommitReport.no_changes("HEAD was reset meanwhile, which threw away what was uncommitted", head)
        return CommitReport(outcome="already_committed", commit_id=head,
                            why="another commit took in everything meanwhile, unless a reset threw it away")

    def _switched(self, record: BranchRecord, sealed: BranchRecord) -> BranchRecord | None:
        """Return the record with this commit as HEAD; `None` if the branch is as it should be."""
        if self._made_of(record, sealed) is not None:
            return None  # A write without an answer had happened, and others went on from there.
        built = self.builds[-1] if self.builds else None
        newer = None if built is None else record.seals_since(built.source, len(built.source.sealed_tokens))
        if built is None or newer is None or not self._is_kept(built):
            built, newer = self._build(record), 0
        if built.commit_id is None and record.is_bare:
            return None
        head = record.commit_id if built.commit_id is None else built.commit_id
        return attrs.evolve(record, commit_id=head, sealed_tokens=record.sealed_tokens[:newer],
                            compacted_metarange_id=None)

    def _is_kept(self, built: _Built) -> bool:
        """Whether the files that were made before the record was read again were not collected meanwhile."""
        try:
            self.context.committed.claim(built.applied.metarange_id)
        except MetaRangeNotFound:
            return False
        return True

    def _build(self, record: BranchRecord) -> _Built:
        context = self.context
        head = context.commits.metarange_of(record.commit_id)
        base = record.base(head)
        applied = context.committed.apply(base, changes_of(context.tokens, record.sealed_tokens), budget=self.budget)
        # Its tokens go, once it is in force.
        context.committed.check(applied.metarange_id, base)
        counts = (Counts(added=applied.added, changed=applied.changed, removed=applied.removed) if base == head
                  else Counts.of(context.committed.diff(head, applied.metarange_id)))
        commit_id = None
        if counts.total or self.allow_empty:
            metarange_id = applied.metarange_id if counts.total or head is None else head
            parents = () if record.commit_id is None else (record.commit_id,)
            commit_id = context.commits.store(context.commits.make(
                metarange_id, parents, message=self.message, metadata=self.metadata, created_at=context.clock.now()))
        self.builds.append(_Built(source=record, applied=applied, counts=counts, commit_id=commit_id))
        return self.builds[-1]

    def _made_of(self, record: BranchRecord, sealed: BranchRecord) -> _Built | None:
        """Return the build whose commit is HEAD, or one of its ancestors since the seal."""
        if record.commit_id is None or record.commit_id == sealed.commit_id:
            return None
        for built in reversed(self.builds):
            if built.commit_id is not None and self.context.commits.is_ancestor(built.commit_id, record.commit_id):
                return built
        return None
