# SPDX-License-Identifier: Apache-2.0
"""Commits: seal the staging token, build the metarange, move HEAD by compare-and-set.

1. Seal the staging token, unless it is empty. Every write acknowledged so far is in a sealed token now, or in what a
   compaction made of it.
2. Apply the sealed tokens to the base: the compacted metarange if there is one, else that of HEAD. Store the commit.
3. Compare-and-set the branch: HEAD is the commit, the applied tokens and the compacted metarange are gone.

If the branch changed before 3: tokens that were only sealed in front stay sealed, and 3 is tried again as it is. A
compaction or another commit means building anew. Whether there is anything to commit is judged against the content of
HEAD, not against the base, and not by what is sealed. A commit without changes lets go of what it sealed, so that
nothing piles up. A crash at any step leaves at most a sealed token, a metarange and a commit without a reference.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import attrs

from compactlib.outcome import Done
from compactlib.runtime.budget import Budget
from compactlib.staging.branches import BranchUpdate
from compactlib.staging.compaction.metrics import report_commit
from compactlib.staging.context import StagingContext
from compactlib.staging.errors import MetaRangeNotFound
from compactlib.staging.layers import changes_of
from compactlib.staging.names import CommitId
from compactlib.staging.record import BranchRecord
from compactlib.staging.results import AlreadyCommitted, CommitStats, Counts, NoChanges
from compactlib.staging.values import Applied, MetaRangeId

CommitOutcome: TypeAlias = Done[CommitStats] | NoChanges | AlreadyCommitted
"""What a commit ends in."""


@attrs.frozen(kw_only=True)
class CommitRequest:
    """What a commit shall say.

    Attributes:
        message: for people.
        metadata: texts for programs.
        allow_empty: make a commit even if nothing changed.
        budget: limits the bytes of the ranges written.
    """

    message: str
    metadata: Mapping[str, str] = attrs.field(factory=dict)
    allow_empty: bool = False
    budget: Budget | None = None


@attrs.frozen(kw_only=True)
class _Built:
    """A metarange made of a branch record.

    `commit_id` is `None` if there is nothing to commit.
    """

    source: BranchRecord
    applied: Applied
    counts: Counts
    commit_id: CommitId | None


def seal(context: StagingContext, branch: str, *, operation: str) -> BranchUpdate:
    """Give the branch a new staging token, if anything is in the old one, which becomes the newest sealed one.

    An empty one stays: whatever was acknowledged before is in the sealed ones then. Otherwise each commit that fails
    would leave one more token for every read to look into.

    Raises:
        BranchNotFound, TooManyTries, OutcomeUnknown: see `BranchStore.update`.
    """
    def change(record: BranchRecord) -> BranchRecord | None:
        if context.tokens.is_empty(record.staging_token):
            return None
        return record.sealed_with(context.tokens.issue(branch))

    return context.branches.update(branch, change, operation=operation)


def commit(context: StagingContext, branch: str, request: CommitRequest) -> CommitOutcome:
    """Commit everything that was acknowledged before the call (G2).

    Raises:
        BranchNotFound, TooManyTries, OutcomeUnknown: see `BranchStore.update`.
        BudgetSpent: the budget ran out; HEAD stays, and the next commit has everything.
    """
    began = context.clock.monotonic()
    name = "error"
    try:
        outcome = _commit(context, branch, request)
        name = {Done: "committed", NoChanges: "no_changes", AlreadyCommitted: "already_committed"}[type(outcome)]
    finally:
        report_commit(context.observer, context.repository, name, context.clock.monotonic() - began)
    return outcome


def _commit(context: StagingContext, branch: str, request: CommitRequest) -> CommitOutcome:
    before = context.branches.read(branch).record
    if (not request.allow_empty and before.is_bare and context.tokens.is_empty(before.staging_token)
            # A token may look empty because a compaction took its entries away, and a cleanup came after it.
            and context.branches.read(branch).record == before):
        return NoChanges("nothing was written since HEAD", before.commit_id)
    sealed = seal(context, branch, operation="commit").after
    switch = _Switch(context, branch, request, sealed)
    update = context.branches.update(branch, switch.change, operation="commit")
    return switch.outcome(update)


class _Switch:
    """Steps 2 and 3 against others: builds when it must, and knows its own commits again.

    Args:
        context: the stores.
        branch: the branch's name.
        request: what the commit shall say.
        sealed: the record after the seal.
    """

    def __init__(self, context: StagingContext, branch: str, request: CommitRequest, sealed: BranchRecord) -> None:
        self._context = context
        self._branch = branch
        self._request = request
        self._sealed = sealed
        self._built: _Built | None = None
        self._builds: list[_Built] = []

    def change(self, record: BranchRecord) -> BranchRecord | None:
        """The record with this commit as HEAD; `None` if the branch is as it should be."""
        if self._made_of(record) is not None:
            return None  # A write without an answer had happened, and others went on from there.
        built = self._built
        newer = None if built is None else record.seals_since(built.source, len(built.source.sealed_tokens))
        if built is None or newer is None or not self._is_kept(built):
            built = self._build(record)
            newer = 0
        if built.commit_id is None and record.is_bare:
            return None
        head = record.commit_id if built.commit_id is None else built.commit_id
        return attrs.evolve(record, commit_id=head, sealed_tokens=record.sealed_tokens[:newer],
                            compacted_metarange_id=None)

    def _is_kept(self, built: _Built) -> bool:
        """Whether the files that were made before the record was read again were not collected meanwhile."""
        try:
            self._context.committed.claim(built.applied.metarange_id)
        except MetaRangeNotFound:
            return False
        return True

    def outcome(self, update: BranchUpdate) -> CommitOutcome:
        """What came of it; marks the dropped tokens."""
        context = self._context
        made = self._made_of(update.after)
        if update.after.version != update.before.version:
            context.drop_tokens(self._branch, update.before, update.after)
            context.events.committed(self._branch, update.after)
        if made is not None and made.commit_id is not None:
            return Done(CommitStats(commit_id=made.commit_id, **attrs.asdict(made.counts),
                                    ranges_written=made.applied.ranges_written,
                                    ranges_reused=made.applied.ranges_reused, rebuilds=len(self._builds) - 1))
        before, head = self._sealed.commit_id, update.after.commit_id
        if head == before:
            return NoChanges("the content is that of HEAD", head)
        if before is not None and not context.commits.is_ancestor(before, head):
            return NoChanges("HEAD was reset meanwhile, which threw away what was uncommitted", head)
        return AlreadyCommitted("another commit took in everything meanwhile, unless a reset threw it away", head)

    def _build(self, record: BranchRecord) -> _Built:
        context, request = self._context, self._request
        head = context.commits.metarange_of(record.commit_id)
        base = record.base(head)
        applied = context.committed.apply(base, changes_of(context.tokens, record.sealed_tokens), budget=request.budget)
        # Its tokens go, once it is in force.
        context.committed.check(applied.metarange_id, base)
        counts = counts_against(context, head, applied, base)
        commit_id = None
        if counts.total or request.allow_empty:
            metarange_id = applied.metarange_id if counts.total or head is None else head
            parents = () if record.commit_id is None else (record.commit_id,)
            commit_id = context.commits.store(context.commits.make(
                metarange_id, parents, message=request.message, metadata=request.metadata,
                created_at=context.clock.now()))
        self._built = _Built(source=record, applied=applied, counts=counts, commit_id=commit_id)
        self._builds.append(self._built)
        return self._built

    def _made_of(self, record: BranchRecord) -> _Built | None:
        """The build whose commit is HEAD, or one of its ancestors since the seal."""
        if record.commit_id is None or record.commit_id == self._sealed.commit_id:
            return None
        for built in reversed(self._builds):
            if built.commit_id is not None and self._context.commits.is_ancestor(built.commit_id, record.commit_id):
                return built
        return None


def counts_against(context: StagingContext, head: MetaRangeId | None, applied: Applied, base: MetaRangeId | None,
                   ) -> Counts:
    """How the result of an apply differs from HEAD: as the apply counted it if HEAD was its base, else by a diff."""
    if base == head:
        return Counts(added=applied.added, changed=applied.changed, removed=applied.removed)
    return Counts.of(context.committed.diff(head, applied.metarange_id))
