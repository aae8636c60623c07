# SPDX-License-Identifier: Apache-2.0
"""`Compactor`: replaces the tokens of a branch by a metarange that says the same, with two compare-and-sets.

1. *Seal.* The staging token becomes the newest sealed one, a fresh token takes the writes, the start time is noted.
2. *Rewrite.* All sealed tokens are applied to the base: the compacted metarange if there is one, else HEAD's.
3. *Swap.* If HEAD, the compacted metarange and the sealed tokens are still those of step 1, the record names the result
   instead, and the tokens are marked as dropped, in one step. If the result equals HEAD, the record names none.
4. *Reclaim.* `Repository.reclaim` removes the entries of dropped tokens after a grace period.

Readers see the same before and after each step (G3). A write is acknowledged only if the token it went into was still
the staging token afterwards; so whatever is acknowledged was in a sealed token before step 2 began, or went into a
newer one. A crash after step 1 costs one sealed token more, after step 2 a metarange without a reference. The
compaction yields to every other change: a commit, a reset, a move of HEAD or another compaction in between makes it
lose (`LostRace`); it costs other writers at most one more try.

Comparing the sealed tokens alone in step 3 is not enough, although the published design asks for no more: a hard reset
may move HEAD and leave them as they were.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_left
from collections import Counter
from itertools import islice

import attrs

from compactlib.budget import Budget
from compactlib.contract import CommitFence
from compactlib.errors import BudgetSpent, CompactionFailed, CompactlibError, InvalidInput
from compactlib.executors.tasks import LocalExecutor, answers_of, own_error
from compactlib.guard import Guard, Run
from compactlib.kv import OutcomeUnknown, PredicateFailed
from compactlib.observer import Observer, Observers
from compactlib.report import PolicyRecord
from compactlib.rewrite import Executor, RewriteFailure
from compactlib.staging.activity import report_compaction
from compactlib.staging.branches import BranchUpdate, FoundBranch
from compactlib.staging.compaction.rewrite import CompactedTokens, CompactTokens, OpenStores, RewriteStores
from compactlib.staging.context import StagingContext
from compactlib.staging.errors import (
    BeingCollected,
    BranchNotFound,
    LostRace,
    MetaRangeNotFound,
    OutdatedPlan,
    RangeNotFound,
)
from compactlib.staging.names import StagingToken
from compactlib.staging.plan import StagingChoice, StagingPlan, StagingView, plan_for
from compactlib.staging.plan_policies import AlwaysPolicy, StagingPolicy
from compactlib.staging.ranges.cursor import RangeScan
from compactlib.staging.ranges.split import record_bytes
from compactlib.staging.record import MAX_SEALED_TOKENS, BranchRecord
from compactlib.staging.results import StagingCompactionReport
from compactlib.staging.tokens import MergedTokens
from compactlib.staging.values import Applied, MetaRangeId

COMPACTS = "compaction of branch "
"""The kind of a run, with the branch's name."""
_ENTRIES_BETWEEN_CHECKS = 1000
_QUICK_ENTRIES = 1000
"""Staged entries that are read before a compaction that is wanted whatever they are, into a store of any room."""
_NO_ROOM_SECONDS = 60.0
"""When to ask for room again."""


class Compactor:
    """View, plan and compact the branches of one repository, at most one compaction of a branch at a time.

    Between processes the compare-and-sets of the branch's record decide; the guard only saves work that would be lost.

    Args:
        context: the repository's stores.
        guard: of the repository.
        policy: decides, unless another one is given.
        stores: how a rewrite in another process opens its stores.

    Attributes:
        outcomes: how often a compaction ended in what: `compacted`, `skipped`, `lost_race`, `error`.
        last_error: the last exception of a host's policy or fence.
        failures: how often that was.
    """

    def __init__(self, context: StagingContext, guard: Guard, policy: StagingPolicy | None = None,
                 stores: RewriteStores | None = None) -> None:
        self._context = context
        self._guard = guard
        self._policy: StagingPolicy = AlwaysPolicy() if policy is None else policy
        self._stores: RewriteStores = OpenStores(context.tokens, context.committed) if stores is None else stores
        self.outcomes: Counter[str] = Counter()
        self.last_error: BaseException | None = None
        self.failures: int = 0

    # --- sense and plan

    def tombstones(self, branch: str, budget: Budget) -> tuple[BranchRecord, dict[StagingToken, int]]:
        """Return a branch's record, and how many tombstones each of its tokens holds; see `Repository.tombstones`."""
        context = self._context
        record = context.branches.read(branch).record
        counts = dict.fromkeys(record.tokens, 0)
        staged = ((token, entry) for token in record.tokens for _, entry in context.tokens.scan(token))
        for number, (token, entry) in enumerate(islice(staged, context.options.max_scanned)):
            if number % _ENTRIES_BETWEEN_CHECKS == 0:
                budget.check()
            counts[token] += entry.is_tombstone
        return record, counts

    def view(self, branch: str, budget: Budget, *, with_runs: bool = True) -> tuple[FoundBranch, StagingView]:
        """Return a branch and its view, both of one moment: staged entries up to `max_scanned`, ranges they touch.

        Args:
            branch: the branch's name.
            budget: asked before every 1,000 entries.
            with_runs: whether to count tombstones in a row, for which the ranges that they lie in are opened. Without,
                only the first entries are read where the room is unknown.

        Raises:
            BranchNotFound: there is no such branch.
            TooManyTries: its layers were replaced under every try.
            BudgetSpent: the budget ran out.
        """
        view, found, now = self._context.branches.consistently(
            branch, lambda found: (self._seen(found, budget, with_runs=with_runs), False), operation="view")
        return now if now.record.has_layers_of(found.record) else found, view

    def _seen(self, found: FoundBranch, budget: Budget, *, with_runs: bool) -> StagingView:
        context, record = self._context, found.record
        committed, available = context.committed, context.committed.available_bytes()
        base = record.base(context.commits.metarange_of(record.commit_id))
        ranges = committed.ranges_of(base)
        last_keys = [entry.max_key for entry in ranges]
        touched: set[int] = set()
        limit = context.options.max_scanned
        if not with_runs and available is None:
            limit = min(limit, _QUICK_ENTRIES)
        runs = _Runs(committed.scan(base) if with_runs else None)
        puts = staged_bytes = 0
        for number, (key, staged) in enumerate(islice(MergedTokens(context.tokens, record.tokens), limit)):
            if number % _ENTRIES_BETWEEN_CHECKS == 0:
                budget.check()
            if staged.record is None:
                runs.tombstone(key)
            else:
                runs.end()
                puts += 1
                staged_bytes += record_bytes(key, staged.record)
            if ranges:
                touched.add(min(bisect_left(last_keys, key), len(ranges) - 1))
        return StagingView(
            repository=context.repository, branch=found.branch, record=record, puts=puts, tombstones=runs.tombstones,
            longest_run=runs.longest, staged_bytes=staged_bytes, all_seen=puts + runs.tombstones < limit,
            ranges=len(ranges), ranges_touched=len(touched), bytes_touched=sum(ranges[at].size_bytes for at in touched),
            bytes_available=available)

    def plan(self, policy: StagingPolicy | None, view: StagingView) -> StagingPlan:
        """Return what the policy makes of a view. No request.

        Raises:
            InvalidInput: the view is of another repository, or the policy gave no choice.
        """
        if view.repository != self._context.repository:
            raise InvalidInput(f"the view is one of repository {view.repository!r}, and this one is "
                               f"{self._context.repository!r}; take one with view()")
        chosen = self._policy if policy is None else policy
        choice = chosen.choose(view, self._context.clock.now())
        if not isinstance(choice, StagingChoice):
            raise InvalidInput(f"the policy {chosen.name!r} answered {choice!r}; choose() answers a StagingChoice, "
                               f"also to say that nothing is to be done")
        return plan_for(view, choice, PolicyRecord.of(chosen))

    # --- compact

    def compact(self, branch: str, plan: StagingPlan | None = None, *, policy: StagingPolicy | None = None,
                executor: Executor | None = None, budget: Budget | None = None, observer: Observer | None = None,
                fence: CommitFence | None = None) -> StagingCompactionReport:
        """Compact a branch; see `Repository.compact`."""
        if plan is not None:
            self._require_mine(plan, branch, policy)
        context = self._context
        clock, began = context.clock, context.clock.monotonic()
        run = Run(self._guard, budget)
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
                self._note(error)
                raise
            self.outcomes[report_compaction(notified, context.repository, branch, ended,
                                            clock.monotonic() - began, by)] += 1
            if isinstance(ended, CompactlibError):
                raise ended
            return attrs.evolve(ended, seconds=clock.monotonic() - began)

    def _compact(self, branch: str, plan: StagingPlan | None, policy: StagingPolicy | None, executor: Executor | None,
                 budget: Budget, observer: Observer, fence: CommitFence | None) -> StagingCompactionReport:
        """The steps: sense, plan, seal, rewrite, swap."""
        if plan is None:
            chosen = self._policy if policy is None else policy
            # Runs of tombstones are counted for policies that weigh them.
            found, view = self.view(branch, budget, with_runs=type(chosen) is not AlwaysPolicy)
            plan = self.plan(chosen, view)
        elif plan.is_empty:
            return StagingCompactionReport(branch=branch, why=plan.why, again_at=plan.again_at)
        else:
            found = self._current(plan, branch)
        if plan.is_empty:
            return StagingCompactionReport(branch=branch, why=plan.why, again_at=plan.again_at)
        no_room = self._without_room(plan.view)
        if no_room is not None:
            return no_room
        budget.check()
        left = budget.remaining.total_bytes
        try:
            sealed = self._seal(found)
            head = self._context.commits.metarange_of(sealed.commit_id)
            task = CompactTokens(f"compact {self._context.repository}/{branch}", self._stores, sealed.base(head),
                                 sealed.sealed_tokens)
            applied = self._rewrite(task, branch, sealed, executor, budget, observer)
            result = None if self._equals_head(applied, head) else applied.metarange_id
            report = StagingCompactionReport(branch=branch, metarange_id=result, applied=applied,
                                             sealed_before=len(sealed.sealed_tokens))
            return self._committed(report, sealed, fence)
        except BranchNotFound:
            raise LostRace("the branch was deleted meanwhile", branch=branch, step="swap") from None
        except CompactlibError as error:
            ended = _spent_at_once(error, f"branch {branch!r}", left=left, needed=plan.bytes_to_copy)
            if ended is error:
                raise
            raise ended from error

    def _seal(self, found: FoundBranch) -> BranchRecord:
        """Step 1; returns the record with what is to be compacted in its sealed tokens."""
        context, record = self._context, found.record
        if len(record.sealed_tokens) < MAX_SEALED_TOKENS and not context.tokens.is_empty(record.staging_token):
            record = record.sealed_with(context.tokens.draw())
        # Else there is no room for one more, which this compaction makes; or nothing in the staging token, so that
        # sealing it would make every writer try again for nothing.
        wanted = attrs.evolve(record, compaction_started_at=context.clock.now())
        try:
            return context.branches.try_update(found, wanted)
        except PredicateFailed:
            raise LostRace("another writer changed the branch before its token was sealed", branch=found.branch,
                           step="seal") from None
        except OutcomeUnknown as error:
            seen = context.branches.seen_after(found.branch, error)
            if seen is None or seen.record != attrs.evolve(wanted, version=found.record.version + 1):
                raise
            context.activity.wrote(found.branch, found.record, seen.record)
            return seen.record

    def _rewrite(self, task: CompactTokens, branch: str, sealed: BranchRecord, executor: Executor | None,
                 budget: Budget, observer: Observer) -> Applied:
        """Step 2; returns what was made, once it has been read."""
        runs: Executor = LocalExecutor(clock=self._context.clock) if executor is None else executor
        try:
            try:
                [outcome] = answers_of(runs, [task], budget=budget, observer=observer)
            except Exception as error:  # whatever a host's executor raises
                raise own_error(task.name, error) from error
            if isinstance(outcome, RewriteFailure):
                raise outcome.error
            if not isinstance(outcome, CompactedTokens) or (outcome.base, outcome.newest_first) != (
                    task.base, task.newest_first):
                raise InvalidInput(f"the executor gave {outcome!r:.200} for a compaction; expected CompactedTokens of "
                                   f"its own base and tokens")
            self._context.committed.check(outcome.applied.metarange_id, task.base)
        except (MetaRangeNotFound, RangeNotFound):
            # Collected because the branch no longer names it? Then another writer has won.
            now = self._context.branches.read(branch).record
            if now.seals_since(sealed, len(sealed.sealed_tokens)) is None:
                raise LostRace("the branch left the base of the compaction meanwhile", branch=branch,
                               step="swap") from None
            raise
        return outcome.applied

    def _equals_head(self, applied: Applied, head: MetaRangeId | None) -> bool:
        if head is not None:
            return applied.metarange_id == head
        try:
            return not self._context.committed.ranges_of(applied.metarange_id)
        except MetaRangeNotFound as error:
            # This one has just made it: a collection has taken it since.
            raise BeingCollected(id=applied.metarange_id) from error

    def _committed(self, report: StagingCompactionReport, sealed: BranchRecord, fence: CommitFence | None,
                   ) -> StagingCompactionReport:
        """Carry out the swap inside the fence. If the fence refuses after it, it stands, and the error says so."""
        is_swapped = False
        try:
            with contextlib.nullcontext() if fence is None else fence.guard():
                update = self._swap(report.branch, sealed, report.metarange_id)
                is_swapped = True
                report = attrs.evolve(report, sealed_after=len(update.after.sealed_tokens))
        except CompactlibError as error:
            if is_swapped:
                raise CompactionFailed(report=report, failures={report.branch: error}) from error
            raise
        return report

    def _swap(self, branch: str, sealed: BranchRecord, result: MetaRangeId | None) -> BranchUpdate:
        """Step 3. It yields at once to a collection: trying again within milliseconds would meet it again."""
        count = len(sealed.sealed_tokens)
        collected = False

        def change(record: BranchRecord) -> BranchRecord | None:
            nonlocal collected
            newer = record.seals_since(sealed, count)
            if newer is None or (newer and self._context.options.on_new_sealed == "abort"):
                return None
            if result is not None:
                # The record was read after the files were made: they may have been collected before.
                try:
                    self._context.committed.claim(result)
                except (BeingCollected, MetaRangeNotFound):
                    collected = True
                    return None
            return attrs.evolve(record.without_sealed(count), compacted_metarange_id=result)

        update = self._context.branches.update(branch, change, operation="compact")
        if update.is_written:
            return update
        if collected and result is not None:
            raise BeingCollected(id=result)
        raise LostRace("a commit, reset, move of HEAD or other compaction changed the branch meanwhile", branch=branch,
                       step="swap")

    # --- checks

    def _without_room(self, view: StagingView) -> StagingCompactionReport | None:
        available = self._context.committed.available_bytes()
        needed = view.bytes_touched + view.staged_bytes
        if available is None or needed <= available:
            return None
        about = "about" if view.all_seen else "more than"
        return StagingCompactionReport(
            branch=view.branch, again_at=self._context.clock.now() + _NO_ROOM_SECONDS,
            why=f"{about} {needed:,} bytes of ranges would be written, and there is room for {available:,}; make room, "
                f"or have reclaim() collect ranges that are not needed")

    def _require_mine(self, plan: StagingPlan, branch: str, policy: StagingPolicy | None) -> None:
        if policy is not None:
            raise InvalidInput("a plan and a policy were given; give one of them: the plan has been chosen already")
        view = plan.view
        if (view.repository, view.branch) != (self._context.repository, branch):
            raise InvalidInput(f"the plan is for branch {view.branch!r} of repository {view.repository!r}, and not for "
                               f"{branch!r} of {self._context.repository!r}; make one with plan()")

    def _current(self, plan: StagingPlan, branch: str) -> FoundBranch:
        """Return the branch, if it has the layers of the plan.

        Raises:
            OutdatedPlan: it has others.
        """
        planned = plan.view.record
        try:
            found = self._context.branches.read(branch)
        except BranchNotFound:
            raise OutdatedPlan(branch=branch, detail="the branch was deleted") from None
        record = found.record
        if record.has_layers_of(planned):
            return found
        changed = [what for what, before, now in (
            ("HEAD", planned.commit_id, record.commit_id),
            ("the compacted metarange", planned.compacted_metarange_id, record.compacted_metarange_id),
            ("the start of the last compaction", planned.compaction_started_at, record.compaction_started_at),
            ("its tokens", planned.tokens, record.tokens)) if before != now]
        raise OutdatedPlan(branch=branch, detail=f"{', '.join(changed)} changed meanwhile")

    def _note(self, error: BaseException) -> None:
        self.last_error = error
        self.failures += 1


class _Runs:
    """Counts tombstones, and how many follow one another without a live key in between.

    Args:
        base: the records under the tokens; `None`: count no runs.
    """

    def __init__(self, base: RangeScan | None) -> None:
        self.tombstones = 0
        self.longest = 0
        self._base = base
        self._run = 0
        self._last = b""
        # The first key of the base behind the last tombstone; not read before a second one follows.
        self._following: bytes | None = None
        self._is_known = False

    def tombstone(self, key: bytes) -> None:
        self.tombstones += 1
        if self._base is None:
            return
        if self._run:
            if not self._is_known:
                self._base.seek(self._last + b"\0")
                self._advance(self._base)
            if self._following is not None and self._following < key:
                self._run = 0
                self._is_known = False
            elif self._following == key:
                self._advance(self._base)
        self._run += 1
        self._last = key
        self.longest = max(self.longest, self._run)

    def end(self) -> None:
        self._run = 0
        self._is_known = False

    def _advance(self, base: RangeScan) -> None:
        following = next(base, None)
        self._following = None if following is None else following[0]
        self._is_known = True


def _spent_at_once(error: CompactlibError, what: str, *, left: int | None, needed: int | None) -> CompactlibError:
    """Return `error`, and if the total did not suffice for one commit, another one that says how much would.

    Args:
        error: what ended the work.
        what: is committed all at once, and starts over each time: `"the branch 'main'"`.
        left: bytes that the budget had when it began; `None`: no total.
        needed: what it takes, as far as that is known before.
    """
    if not isinstance(error, BudgetSpent) or error.reason != "bytes" or left is None:
        return error
    least = max(needed or 0, left + 1)
    advice = f"give more than {left}, how many is unknown" if needed is None else f"give at least {least}"
    return BudgetSpent(f"{what} is committed all at once, and begins anew each time: the budget had {left} bytes left "
                       f"({error.spent_bytes} bytes spent in all); {advice}",
                       reason=error.reason, spent_bytes=error.spent_bytes, needed_bytes=least)
