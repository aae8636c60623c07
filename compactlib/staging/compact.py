# SPDX-License-Identifier: Apache-2.0
"""A compaction replaces the tokens of a branch by an equivalent metarange, with two compare-and-sets.

1. *Seal.* The staging token becomes the newest sealed token, a new token takes the writes, and the record notes the
   start time.
2. *Rewrite.* All sealed tokens are applied to the base: the compacted metarange if there is one, else HEAD's.
3. *Swap.* If HEAD, the compacted metarange and the sealed tokens are those of step 1, the record names the result
   instead, and the tokens are marked as dropped, in one step. If the result equals HEAD, the record names no compacted
   metarange.
4. *Reclaim.* `Repository.reclaim` removes the entries of dropped tokens after a grace period.

No step changes reads (G3). A write is acknowledged only if its token is still the staging token afterwards. So every
acknowledged write was in a sealed token before step 2 began, or is in a newer token. A crash after step 1 leaves one
more sealed token; a crash after step 2 leaves an unreachable metarange. The compaction yields to every other change: a
commit, a reset, a move of HEAD or another compaction makes it raise `LostRace`. Another writer retries at most once
because of it.

The published design compares the sealed tokens alone in step 3. That is not enough: a hard reset may move HEAD and keep
the sealed tokens.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_left
from itertools import islice
from typing import Final

import attrs

from compactlib._store_numbers import notify_compaction, outcome_of
from compactlib.budget import Budget
from compactlib.contract import CommitFence
from compactlib.errors import BudgetSpent, CompactionFailed, CompactlibError, InvalidInput, Stale
from compactlib.executors.tasks import answers_of, own_error
from compactlib.observer import Observer
from compactlib.rewrite import Executor, RewriteFailure
from compactlib.staging.context import StagingContext
from compactlib.staging.errors import BeingCollected, BranchNotFound, LostRace, MetaRangeNotFound, RangeNotFound
from compactlib.staging.policy import StagingPlan, StagingView
from compactlib.staging.ranges.metarange import record_bytes
from compactlib.staging.record import MAX_SEALED_TOKENS, BranchRecord
from compactlib.staging.results import StagingCompactionReport
from compactlib.staging.rewrite import CompactedTokens, CompactTokens, OpenStores
from compactlib.staging.tokens import MergedTokens
from compactlib.staging.values import Applied, MetaRangeId
from compactlib.staging.view import BranchView, consistently

_ENTRIES_BETWEEN_CHECKS: Final = 1000
ENTRIES_FOR_ALWAYS: Final = 10_000
"""Count of staged entries in a view whose policy compacts in any case: the rewrite reads them all."""


def notify_end(observer: Observer, repository: str, branch: str, ended: StagingCompactionReport | CompactlibError,
               seconds: float, plan: StagingPlan | None) -> None:
    """Notify of the end of a compaction. A collection counts the freed bytes later."""
    outcome, reason = outcome_of(ended, "" if plan is None else plan.policy.name)
    why, found = (str(ended), None) if isinstance(ended, CompactlibError) else (ended.why, ended.applied)
    applied = found or Applied(metarange_id=MetaRangeId(""))
    notify_compaction(observer, "staging", repository, outcome, reason, seconds,
                      read=applied.bytes_read, copied=applied.bytes_written)
    observer.event("staging_compaction", repository=repository, branch=branch, seconds=seconds, outcome=outcome,
                   reason=why, **attrs.asdict(applied))


def view_of(context: StagingContext, branch: str, budget: Budget, most: int) -> StagingView:
    """Return the view of a branch at one moment, with counts of at most `most` entries; see `Repository.view`."""
    committed, limit = context.committed, min(context.options.max_scanned, most)

    def read(view: BranchView) -> StagingView:
        ranges = committed.ranges_of(view.base)
        last_keys = [entry.max_key for entry in ranges]
        touched: set[int] = set()
        puts = tombstones = staged_bytes = run = longest_run = 0
        for number, (key, record) in enumerate(islice(MergedTokens(context.store, view.record.tokens), limit)):
            if number % _ENTRIES_BETWEEN_CHECKS == 0:
                budget.check()
            if ranges:
                touched.add(min(bisect_left(last_keys, key), len(ranges) - 1))
            if record is None:
                tombstones, run = tombstones + 1, run + 1
                longest_run = max(longest_run, run)
            else:
                puts, run = puts + 1, 0
                staged_bytes += record_bytes(key, record)
        return StagingView(
            repository=context.repository, branch=branch, record=view.record, puts=puts, tombstones=tombstones,
            longest_run=longest_run, staged_bytes=staged_bytes, all_seen=puts + tombstones < limit,
            ranges=len(ranges), ranges_touched=len(touched), bytes_touched=sum(ranges[at].size_bytes for at in touched),
            bytes_available=committed.objects.available_bytes())

    return consistently(context, branch, read)


@attrs.frozen(kw_only=True)
class Compactor:
    """One compaction of a branch; arguments as for `Repository.compact`."""

    context: StagingContext
    branch: str
    stores: OpenStores
    executor: Executor
    budget: Budget
    observer: Observer
    fence: CommitFence | None

    def run(self, plan: StagingPlan, *, is_given: bool) -> StagingCompactionReport:
        """Seal, rewrite, swap; `is_given` if the plan is the caller's, and may be outdated."""
        if plan.is_empty:
            return StagingCompactionReport(branch=self.branch, why=plan.why)
        no_room = self._without_room(plan.view)
        if no_room is not None:
            return no_room
        self.budget.check()
        left = self.budget.remaining.total_bytes
        try:
            sealed = self._seal(plan.view, is_given=is_given)
            report = self._rewrite(sealed)
            self._commit(report, sealed)
            return report
        except BranchNotFound:
            raise self._lost("another caller deleted the branch") from None
        except BudgetSpent as error:
            if error.reason != "bytes" or left is None:
                raise
            needed = max(plan.bytes_to_copy or 0, left + 1)
            raise BudgetSpent(f"branch {self.branch!r} is compacted as a whole, from the start each time: the budget "
                              f"had {left} bytes left ({error.spent_bytes} bytes spent in all); give at least {needed}",
                              reason=error.reason, spent_bytes=error.spent_bytes, needed_bytes=needed) from error

    def _without_room(self, view: StagingView) -> StagingCompactionReport | None:
        available = self.context.committed.objects.available_bytes()
        needed = view.bytes_touched + view.staged_bytes
        if available is None or needed <= available:
            return None
        about = "about" if view.all_seen else "more than"
        return StagingCompactionReport(
            branch=self.branch, why=f"{about} {needed:,} bytes of ranges would be written, with room for "
                                    f"{available:,}; make room, or have reclaim() collect ranges that are not needed")

    def _seal(self, view: StagingView, *, is_given: bool) -> BranchRecord:
        """Step 1, if the branch has the layers of the view. Returns the record after the seal."""
        context = self.context

        def change(record: BranchRecord) -> BranchRecord | None:
            if record.layers != view.record.layers:
                return None
            # A full record has no room for another token, until this compaction.
            sealed = context.branches.sealed(record) if len(record.sealed_tokens) < MAX_SEALED_TOKENS else None
            return attrs.evolve(sealed or record, compaction_started_at_ms=round(context.clock.now() * 1000))

        with contextlib.suppress(BranchNotFound):  # a plan of a deleted branch is outdated too
            before, sealed = context.branches.update(self.branch, change, operation="compact", idempotent=True)
            if sealed is not before:
                return sealed
        if is_given:
            raise Stale(f"the plan for branch {self.branch!r} is outdated: the branch names other layers, or was "
                        f"deleted; make a new one with plan()")
        raise self._lost("another writer changed the branch before its token was sealed")

    def _rewrite(self, sealed: BranchRecord) -> StagingCompactionReport:
        """Step 2. Returns the report of the result, after reading it back."""
        context = self.context
        head = context.commits.metarange_of(sealed.commit_id)
        # No other compaction has a task of this name, nor then a result.
        task = CompactTokens(f"compact {context.repository}/{self.branch} below {sealed.staging_token}", self.stores,
                             sealed.base(head), sealed.sealed_tokens)
        try:
            try:
                [outcome] = answers_of(self.executor, [task], budget=self.budget, observer=self.observer)
            except Exception as error:  # of a host's executor
                raise own_error(task.name, error) from error
            if isinstance(outcome, RewriteFailure):
                raise outcome.error
            if not isinstance(outcome, CompactedTokens):
                raise InvalidInput(f"the executor gave {outcome!r:.200} for a compaction; expected CompactedTokens")
            applied = outcome.applied
            context.committed.check(applied.metarange_id, task.base)
        except (MetaRangeNotFound, RangeNotFound):
            # If it was collected because the branch no longer names it, another writer has won.
            if not context.branches.read(self.branch).extends(sealed):
                raise self._lost("another writer replaced the base of the compaction") from None
            raise
        return StagingCompactionReport(
            branch=self.branch, metarange_id=context.committed.unless_head(applied.metarange_id, head),
            sealed_before=len(sealed.sealed_tokens), applied=applied)

    def _commit(self, report: StagingCompactionReport, sealed: BranchRecord) -> None:
        """Swap inside the fence. If the fence refuses after the swap, raise `CompactionFailed` with the report."""
        is_swapped = False
        try:
            with contextlib.nullcontext() if self.fence is None else self.fence.guard():
                self._swap(sealed, report.metarange_id)
                is_swapped = True
        except CompactlibError as error:
            if is_swapped:
                raise CompactionFailed(report=report, failures={report.branch: error}) from error
            raise

    def _swap(self, sealed: BranchRecord, result: MetaRangeId | None) -> None:
        """Step 3."""
        def change(record: BranchRecord) -> BranchRecord | None:
            if not record.extends(sealed) or record.tokens != sealed.tokens:
                return None
            if result is not None:
                # The record was read after the files were written: they may have been collected in between.
                try:
                    self.context.committed.claim(result)
                except MetaRangeNotFound as error:
                    raise BeingCollected(id=result) from error
            return record.compacted(result)

        before, after = self.context.branches.update(self.branch, change, operation="compact", idempotent=True)
        if after is before:
            raise self._lost("a commit, reset, move of HEAD or other compaction changed the branch")

    def _lost(self, why: str) -> LostRace:
        return LostRace(why=why, branch=self.branch)
