# SPDX-License-Identifier: Apache-2.0
"""View, plan, compact: what a repository does about the compactions of its branches; the steps are in `compactor`."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator

import attrs

from compactlib.contract import CommitFence
from compactlib.errors import BudgetSpent, Closed, CompactlibError, InvalidInput
from compactlib.outcome import Failed, Skipped
from compactlib.report import PolicyRecord
from compactlib.rewrite import Executor
from compactlib.runtime.budget import Budget, spent_at_once
from compactlib.runtime.observe import Observer, Observers, TellingObserver
from compactlib.runtime.ownership import Ownership, Run
from compactlib.staging.branches import FoundBranch
from compactlib.staging.compaction.compactor import Compactor
from compactlib.staging.compaction.look import look
from compactlib.staging.compaction.metrics import report_compaction
from compactlib.staging.compaction.outcome import CompactionOutcome, PutOff, outcome_name
from compactlib.staging.compaction.plan import StagingChoice, StagingPlan, StagingView, plan_for
from compactlib.staging.compaction.policies import AlwaysPolicy, StagingPolicy
from compactlib.staging.compaction.rewrite import RewriteStores
from compactlib.staging.context import StagingContext
from compactlib.staging.errors import BranchNotFound, OutdatedPlan
from compactlib.staging.events import TellingEvents
from compactlib.staging.status import RepositoryStatus

_NO_ROOM_SECONDS = 60.0
"""When to look for room again."""


class Compactions:
    """The compactions of one repository's branches, at most one of a branch at a time in this process.

    Between processes the compare-and-sets of the branch's record decide; this only saves work that would be lost.

    Args:
        context: the repository's stores.
        policy: decides, unless another one is given.
        stores: how a rewrite in another process comes by its stores.
    """

    def __init__(self, context: StagingContext, *, policy: StagingPolicy | None = None,
                 stores: RewriteStores | None = None) -> None:
        self._context = context
        self._policy: StagingPolicy = AlwaysPolicy() if policy is None else policy
        self.owner: Ownership = Ownership(f"the repository {context.repository!r}")
        self._compactor = Compactor(context, stores)
        self._outcomes: Counter[str] = Counter()
        self._last_error: BaseException | None = None
        self._failures = 0

    def require_open(self) -> None:
        """Return if the repository was not closed.

        Raises:
            Closed: it was.
        """
        if self.owner.is_closed or self.owner.is_ending:
            raise self._closed()

    def _closed(self) -> Closed:
        return Closed(f"the repository {self._context.repository!r} was closed; make a new one over the same stores")

    @contextlib.contextmanager
    def reading(self, budget: Budget | None) -> Iterator[Budget]:
        """A long read inside the `with`, of which there may be any number; yields its budget, lent from `budget`.

        Raises:
            Closed: the repository was closed, before or meanwhile.
        """
        with self.owner.begin(budget, None) as run:
            if run is None:
                raise self._closed()
            try:
                yield run.budget
            except BudgetSpent:
                self.require_open()
                raise

    def view(self, branch: str, *, budget: Budget | None = None) -> StagingView:
        """See `Repository.view`."""
        return look(self._context, branch, budget)[1]

    def plan(self, policy: StagingPolicy | None, view: StagingView) -> StagingPlan:
        """See `Repository.plan`, which has checked the arguments. No request."""
        if view.repository != self._context.repository:
            raise InvalidInput(f"the view is one of repository {view.repository!r}, and this one is "
                               f"{self._context.repository!r}; take one with view()")
        chosen = self._policy if policy is None else policy
        choice = chosen.choose(view, self._context.clock.now())
        if not isinstance(choice, StagingChoice):
            raise InvalidInput(f"the policy {chosen.name!r} answered {choice!r}; choose() answers a StagingChoice, "
                               f"also to say that nothing is to be done")
        return plan_for(view, choice, PolicyRecord.of(chosen))

    def compact(self, branch: str, plan: StagingPlan | None = None, *, policy: StagingPolicy | None = None,
                executor: Executor | None = None, budget: Budget | None = None, observer: Observer | None = None,
                fence: CommitFence | None = None) -> CompactionOutcome:
        """See `Repository.compact`."""
        if plan is not None:
            self._require_mine(plan, branch, policy)
        with self.owner.begin(budget, branch) as run:
            if run is None:
                self.require_open()
                return Skipped(f"a compaction of branch {branch!r} is under way in this process; wait for its end",
                               is_busy=True)
            told = run.observer(self._context.observer if observer is None
                                else Observers(self._context.observer, observer))
            clock = self._context.clock
            began = clock.monotonic()
            try:
                outcome = self._outcome(branch, plan, policy, run, executor, told, fence)
            except (BranchNotFound, InvalidInput):
                raise
            except BaseException as error:  # a host's policy or fence
                self._last_error = error
                self._failures += 1
                raise
            self._outcomes[outcome_name(outcome)] += 1
            by = plan.policy.name if plan is not None else (self._policy if policy is None else policy).name
            report_compaction(told, self._context.repository, branch, outcome, clock.monotonic() - began, by)
            return outcome

    def status(self, reclaim: str) -> RepositoryStatus:
        """See `Repository.status`; `reclaim` is the name of a reclaim among what is under way."""
        under_way = self.owner.works
        watching = [each for each in (self._context.events, self._context.observer)
                    if isinstance(each, TellingEvents | TellingObserver)]
        last = next((error for error in (self._last_error, *(each.last_error for each in watching))
                     if error is not None), None)
        return RepositoryStatus(
            repository=self._context.repository, compacting=tuple(name for name in under_way if name != reclaim),
            is_reclaiming=reclaim in under_way, outcomes=tuple(sorted(self._outcomes.items())),
            last_error="" if last is None else f"{type(last).__name__}: {last}",
            failures=self._failures + sum(each.failures for each in watching),
            ranges_refused=self._context.owner.refused)

    def _outcome(self, branch: str, plan: StagingPlan | None, policy: StagingPolicy | None, run: Run,
                 executor: Executor | None, told: Observer, fence: CommitFence | None) -> CompactionOutcome:
        try:
            if plan is None:
                chosen = self._policy if policy is None else policy
                # What a policy wants whatever it is, is not counted first.
                found, view = look(self._context, branch, run.budget, is_quick=type(chosen) is AlwaysPolicy)
            else:
                found = self._current(plan, branch)
        except (BranchNotFound, InvalidInput):
            raise
        except CompactlibError as error:
            if plan is not None and plan.is_empty and isinstance(error, OutdatedPlan):
                return _held_back(plan)
            return Failed(error)
        if plan is None:
            # What a policy raises, whatever it is, comes through.
            plan = self.plan(chosen, view)
        try:
            refusal = self._refusal(plan)
            if refusal is not None:
                return refusal
            run.budget.check()
        except CompactlibError as error:
            return Failed(error)
        left = run.budget.remaining.total_bytes
        outcome = self._compactor.run(found, budget=run.budget, observer=told, executor=executor, fence=fence)
        if isinstance(outcome, Failed):
            return attrs.evolve(outcome, error=spent_at_once(outcome.error, f"branch {branch!r}", left=left,
                                                             needed=plan.bytes_to_copy))
        return outcome

    def _refusal(self, plan: StagingPlan) -> Skipped | None:
        if plan.is_empty:
            return _held_back(plan)
        view, available = plan.view, self._context.committed.available_bytes()
        needed = view.bytes_touched + view.staged_bytes
        if available is not None and needed > available:
            about = "about" if view.all_seen else "more than"
            return PutOff(f"{about} {needed:,} bytes of ranges would be written, and there is room for {available:,}; "
                          f"make room, or have reclaim() collect ranges that are not needed",
                          self._context.clock.now() + _NO_ROOM_SECONDS)
        return None

    def _require_mine(self, plan: StagingPlan, branch: str, policy: StagingPolicy | None) -> None:
        if policy is not None:
            raise InvalidInput("a plan and a policy were given; give one of them: the plan has been chosen already")
        view = plan.view
        if (view.repository, view.branch) != (self._context.repository, branch):
            raise InvalidInput(f"the plan is for branch {view.branch!r} of repository {view.repository!r}, and not for "
                               f"{branch!r} of {self._context.repository!r}; make one with plan()")

    def _current(self, plan: StagingPlan, branch: str) -> FoundBranch:
        """The branch, if it has the layers of the plan.

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


def _held_back(plan: StagingPlan) -> Skipped:
    """What comes of an empty plan."""
    return Skipped(plan.why) if plan.again_at is None else PutOff(plan.why, plan.again_at)
