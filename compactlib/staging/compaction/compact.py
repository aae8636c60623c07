# SPDX-License-Identifier: Apache-2.0
"""`Compactor`: replaces the tokens of a branch by an equivalent metarange, with two compare-and-sets.

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
from collections import Counter
from functools import partial
from itertools import islice
from typing import Final, cast

import attrs

from compactlib.budget import Budget
from compactlib.contract import CommitFence
from compactlib.errors import BudgetSpent, CompactionFailed, CompactlibError, InvalidInput
from compactlib.executors.tasks import LocalExecutor, answers_of, own_error
from compactlib.guard import Guard, Run
from compactlib.observer import Observer, Observers
from compactlib.report import PolicyRecord
from compactlib.rewrite import Executor, RewriteFailure
from compactlib.staging.compaction.rewrite import CompactedTokens, CompactTokens, OpenStores
from compactlib.staging.context import StagingContext
from compactlib.staging.errors import (
    BeingCollected,
    BranchNotFound,
    LostRace,
    MetaRangeNotFound,
    OutdatedPlan,
    RangeNotFound,
)
from compactlib.staging.plan import StagingChoice, StagingPlan, StagingView, plan_for
from compactlib.staging.policies import AlwaysPolicy, StagingPolicy
from compactlib.staging.ranges.split import record_bytes
from compactlib.staging.record import MAX_SEALED_TOKENS, BranchRecord
from compactlib.staging.results import StagingCompactionReport
from compactlib.staging.tokens import MergedTokens
from compactlib.staging.values import Applied, MetaRangeId
from compactlib.staging.view import BranchView, consistently

COMPACTS: Final = "compaction of branch "
"""Prefix of the kind of a run; the branch's name follows."""
_ENTRIES_BETWEEN_CHECKS: Final = 1000
_NO_ROOM_SECONDS: Final = 60.0
"""Delay of a retry after the object store had no room."""


class Compactor:
    """Views, plans and compacts the branches of one repository, at most one compaction of a branch at a time.

    The compare-and-sets of the branch's record decide between processes; the guard only saves work that would be lost.

    Attributes:
        outcomes: number of compactions by outcome: `compacted`, `skipped`, `lost_race`, `error`.
        last_error: the last exception of a host's policy or fence.
        failures: number of these exceptions.
    """

    def __init__(self, context: StagingContext, guard: Guard, policy: StagingPolicy | None = None,
                 stores: OpenStores | None = None) -> None:
        self._context = context
        self._guard = guard
        self._policy: StagingPolicy = AlwaysPolicy() if policy is None else policy
        own = cast("OpenStores", partial(contextlib.nullcontext, (context.tokens, context.committed)))
        self._stores: OpenStores = own if stores is None else stores
        self.outcomes: Counter[str] = Counter()
        self.last_error: BaseException | None = None
        self.failures: int = 0

    # --- sense and plan

    def view(self, branch: str, budget: Budget) -> StagingView:
        """Return the view of a branch at one moment; see `Repository.view`."""
        return consistently(self._context, branch, lambda view: self._seen(branch, view, budget))

    def _seen(self, branch: str, view: BranchView, budget: Budget) -> StagingView:
        context, committed, limit = self._context, self._context.committed, self._context.options.max_scanned
        ranges = committed.ranges_of(view.base)
        last_keys = [entry.max_key for entry in ranges]
        touched: set[int] = set()
        puts = tombstones = staged_bytes = run = longest_run = 0
        for number, (key, record) in enumerate(islice(MergedTokens(context.tokens, view.record.tokens), limit)):
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
            bytes_available=committed.available_bytes())

    def plan(self, policy: StagingPolicy | None, view: StagingView) -> StagingPlan:
        """Return the policy's plan for a view. No request."""
        if view.repository != self._context.repository:
            raise InvalidInput(f"the view is of repository {view.repository!r}, expected {self._context.repository!r}; "
                               f"make one with view()")
        chosen = self._policy if policy is None else policy
        choice = chosen.choose(view, self._context.clock.now())
        if not isinstance(choice, StagingChoice):
            raise InvalidInput(f"the policy {chosen.name!r} returned {choice!r}; choose() returns a StagingChoice, "
                               f"an empty one to do nothing")
        return plan_for(view, choice, PolicyRecord.of(chosen))

    # --- compact

    def compact(self, branch: str, plan: StagingPlan | None, *, policy: StagingPolicy | None,
                executor: Executor | None, budget: Budget | None, observer: Observer | None,
                fence: CommitFence | None) -> StagingCompactionReport:
        """Compact a branch; see `Repository.compact`."""
        if plan is not None:
            self._require_mine(plan, branch, policy)
        context = self._context
        began, run = context.clock.monotonic(), Run(self._guard, budget)
        notified = Observers(context.observer, observer)
        by = plan.policy.name if plan is not None else (self._policy if policy is None else policy).name
        ended: StagingCompactionReport | CompactlibError
        with run.held:
            run.begin(COMPACTS + branch)
            try:
                ended = self._compact(branch, plan, policy, executor, run.budget, notified, fence)
            except (BranchNotFound, InvalidInput):
                raise
            except CompactlibError as error:
                ended = error
            except BaseException as error:  # a host's policy or fence
                self.last_error = error
                self.failures += 1
                raise
            seconds = context.clock.monotonic() - began
            self.outcomes[context.activity.compacted(notified, branch, ended, seconds, by)] += 1
            if isinstance(ended, CompactlibError):
                raise ended
            return attrs.evolve(ended, seconds=seconds)

    def _compact(self, branch: str, plan: StagingPlan | None, policy: StagingPolicy | None, executor: Executor | None,
                 budget: Budget, observer: Observer, fence: CommitFence | None) -> StagingCompactionReport:
        """The steps: sense, plan, seal, rewrite, swap."""
        was_given = plan is not None
        if plan is None:
            plan = self.plan(policy, self.view(branch, budget))
        if plan.is_empty:
            return StagingCompactionReport(branch=branch, why=plan.why, again_at=plan.again_at)
        no_room = self._without_room(plan.view)
        if no_room is not None:
            return no_room
        budget.check()
        left = budget.remaining.total_bytes
        try:
            sealed = self._seal(plan.view, was_given=was_given)
            head = self._context.commits.metarange_of(sealed.commit_id)
            task = CompactTokens(f"compact {self._context.repository}/{branch}", self._stores, sealed.base(head),
                                 sealed.sealed_tokens)
            applied = self._rewrite(task, branch, sealed, executor, budget, observer)
            report = StagingCompactionReport(
                branch=branch, metarange_id=self._context.committed.unless_head(applied.metarange_id, head),
                sealed_before=len(sealed.sealed_tokens), applied=applied)
            self._commit(report, sealed, fence)
            return report
        except BranchNotFound:
            raise _lost(branch, "another caller deleted the branch") from None
        except BudgetSpent as error:
            if error.reason != "bytes" or left is None:
                raise
            needed = max(plan.bytes_to_copy or 0, left + 1)
            raise BudgetSpent(f"branch {branch!r} is compacted as a whole, from the start each time: the budget had "
                              f"{left} bytes left ({error.spent_bytes} bytes spent in all); give at least {needed}",
                              reason=error.reason, spent_bytes=error.spent_bytes, needed_bytes=needed) from error

    def _seal(self, view: StagingView, *, was_given: bool) -> BranchRecord:
        """Step 1, if the branch has the layers of the view. Returns the record after the seal."""
        context, changed = self._context, list[str]()

        def change(record: BranchRecord) -> BranchRecord | None:
            changed[:] = record.changed_layers(view.record)
            if changed:
                return None
            if len(record.sealed_tokens) < MAX_SEALED_TOKENS and not context.tokens.is_empty(record.staging_token):
                record = record.sealed_with(context.tokens.draw())
            # Else the record has no room for another token, until this compaction; or the staging token is empty, and
            # a seal would make every writer retry for nothing.
            return attrs.evolve(record, compaction_started_at=context.clock.now())

        try:
            sealed = context.branches.update(view.branch, change, operation="compact", idempotent=True).after
        except BranchNotFound:
            changed[:] = ["branch"]  # deleted
        if not changed:
            return sealed
        if was_given:
            raise OutdatedPlan(branch=view.branch, detail=f"{', '.join(changed)} changed since")
        raise _lost(view.branch, "another writer changed the branch before its token was sealed", step="seal")

    def _rewrite(self, task: CompactTokens, branch: str, sealed: BranchRecord, executor: Executor | None,
                 budget: Budget, observer: Observer) -> Applied:
        """Step 2. Returns the result after reading it back."""
        runs: Executor = LocalExecutor(clock=self._context.clock) if executor is None else executor
        try:
            try:
                [outcome] = answers_of(runs, [task], budget=budget, observer=observer)
            except Exception as error:  # of a host's executor
                raise own_error(task.name, error) from error
            if isinstance(outcome, RewriteFailure):
                raise outcome.error
            if not isinstance(outcome, CompactedTokens) or (outcome.base, outcome.newest_first) != (
                    task.base, task.newest_first):
                raise InvalidInput(f"the executor gave {outcome!r:.200} for a compaction; expected CompactedTokens of "
                                   f"its own base and tokens")
            self._context.committed.check(outcome.applied.metarange_id, task.base)
        except (MetaRangeNotFound, RangeNotFound):
            # If it was collected because the branch no longer names it, another writer has won.
            if self._context.branches.read(branch).seals_since(sealed) is None:
                raise _lost(branch, "another writer replaced the base of the compaction") from None
            raise
        return outcome.applied

    def _commit(self, report: StagingCompactionReport, sealed: BranchRecord, fence: CommitFence | None) -> None:
        """Swap inside the fence. If the fence refuses after the swap, raise `CompactionFailed` with the report."""
        is_swapped = False
        try:
            with contextlib.nullcontext() if fence is None else fence.guard():
                self._swap(report.branch, sealed, report.metarange_id)
                is_swapped = True
        except CompactlibError as error:
            if is_swapped:
                raise CompactionFailed(report=report, failures={report.branch: error}) from error
            raise

    def _swap(self, branch: str, sealed: BranchRecord, result: MetaRangeId | None) -> None:
        """Step 3."""
        def change(record: BranchRecord) -> BranchRecord | None:
            if record.seals_since(sealed) != 0:
                return None
            if result is not None:
                # The record was read after the files were written: they may have been collected in between.
                try:
                    self._context.committed.claim(result)
                except MetaRangeNotFound as error:
                    raise BeingCollected(id=result) from error
            return record.compacted(result)

        update = self._context.branches.update(branch, change, operation="compact", idempotent=True)
        if not update.is_written:
            raise _lost(branch, "a commit, reset, move of HEAD or other compaction changed the branch")

    # --- checks

    def _without_room(self, view: StagingView) -> StagingCompactionReport | None:
        available = self._context.committed.available_bytes()
        needed = view.bytes_touched + view.staged_bytes
        if available is None or needed <= available:
            return None
        about = "about" if view.all_seen else "more than"
        return StagingCompactionReport(
            branch=view.branch, again_at=self._context.clock.now() + _NO_ROOM_SECONDS,
            why=f"{about} {needed:,} bytes of ranges would be written, with room for {available:,}; make room, "
                f"or have reclaim() collect ranges that are not needed")

    def _require_mine(self, plan: StagingPlan, branch: str, policy: StagingPolicy | None) -> None:
        if policy is not None:
            raise InvalidInput("a plan and a policy were given; give one of them: a policy has chosen the plan already")
        view = plan.view
        if (view.repository, view.branch) != (self._context.repository, branch):
            raise InvalidInput(f"the plan is for branch {view.branch!r} of repository {view.repository!r}, and not for "
                               f"{branch!r} of {self._context.repository!r}; make one with plan()")


def _lost(branch: str, why: str, *, step: str = "swap") -> LostRace:
    return LostRace(why=why, branch=branch, step=step)
