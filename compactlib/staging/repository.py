# SPDX-License-Identifier: Apache-2.0
"""`Repository`: branches over a key-value store and the committed layer, and the compaction of each."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from random import Random, SystemRandom
from typing import TYPE_CHECKING, cast

import attrs

from compactlib._closing import Closing
from compactlib.budget import Budget
from compactlib.clock import Clock, SystemClock
from compactlib.contract import CommitFence
from compactlib.errors import CompactlibError, InvalidInput, NotFound
from compactlib.executors.tasks import LocalExecutor
from compactlib.guard import Guard, Run
from compactlib.kv import KVStore
from compactlib.observer import Observer, Observers
from compactlib.report import PolicyRecord, VerifyReport
from compactlib.rewrite import Executor
from compactlib.staging.branch import Branch
from compactlib.staging.commits import Commit, copied
from compactlib.staging.compact import ENTRIES_FOR_ALWAYS, Compactor, notify_end, view_of
from compactlib.staging.context import StagingContext, StagingOptions
from compactlib.staging.errors import BeingCollected, BranchNotFound, MetaRangeNotFound
from compactlib.staging.policies import AlwaysPolicy
from compactlib.staging.policy import StagingChoice, StagingPlan, StagingPolicy, StagingView, plan_for
from compactlib.staging.ranges.committed import CommittedRanges
from compactlib.staging.ranges.metarange import SplitRule
from compactlib.staging.ranges.rows import RangeFormat
from compactlib.staging.reclaim import StagingReclaimReport, reclaim
from compactlib.staging.record import BranchRecord
from compactlib.staging.results import RepositoryStatus, StagingCompactionReport
from compactlib.staging.rewrite import OpenStores
from compactlib.staging.values import CommitId, branch_key, repository_in
from compactlib.staging.verify import audit, verify
from compactlib.staging.view import CommittedView

if TYPE_CHECKING:
    from compactlib.staging.sensor import CompactionSensor

_RECLAIM = "reclaim"
_COMPACTS = "compaction of branch "


class Repository(Closing):
    """The branches of one repository, and their compaction. Threads share one.

    It offers `contract.Compaction` for each branch. Any number of `Repository` objects in any processes may share the
    stores, and may compact the same branch: one commits, the others raise `LostRace`. An object holds caches and its
    running operations; `close` ends these, and leaves the stores open. Then view, plan, compact, reclaim, verify, audit
    and status raise `Closed`.

    With `owns_ranges` the constructor checks in a few requests who owns the ranges, and takes ownership if there are no
    ranges yet; see `adopt_ranges`.

    Args:
        store: holds branches, commits and staged entries.
        committed: holds committed records.
        name: distinguishes the repositories on one store.
        policy: decides whether a branch is compacted; default `AlwaysPolicy()`.
        options: limits, retries and grace periods.
        stores: opens the stores of a rewrite that runs in another process.
        clock: dates commits and tokens, and waits between tries.
        rng: draws tokens, nonces, write ids and waits. Two objects must never draw the same value: the default is the
            operating system's; use a seeded one in tests only.
        sensor: counts the pressure on branches, for a worker.
        observer: notified of events for operators.
        create: whether a repository without a branch may be opened; otherwise it is `NotFound`.

    Raises:
        NotFound: the repository has no branch, and `create` is not set.
        InvalidInput: this is no name of a repository, or an argument is out of its range.
    """

    def __init__(self, store: KVStore, committed: CommittedRanges, *, name: str = "main",
                 policy: StagingPolicy | None = None, options: StagingOptions | None = None,
                 stores: OpenStores | None = None, clock: Clock | None = None, rng: Random | None = None,
                 sensor: CompactionSensor | None = None, observer: Observer | None = None, create: bool = True) -> None:
        self._context = StagingContext(
            store, committed, name, options=options or StagingOptions(), clock=clock or SystemClock(),
            rng=rng or SystemRandom(), sensor=sensor, observer=Observers(observer))
        if not create and next(iter(self._context.branches.list()), None) is None:
            raise NotFound(f"there is no repository {name!r} in {store!r}: it has no branch; {_known(store)}check "
                           f"the store and the name, or open it with create=True to make a new one")
        self._guard = Guard(f"the repository {name!r}")
        self._policy: StagingPolicy = AlwaysPolicy() if policy is None else policy
        own = cast("OpenStores", partial(contextlib.nullcontext, (store, committed)))
        self._stores: OpenStores = own if stores is None else stores
        if self._context.options.owns_ranges:
            # Takes ownership while there are no ranges. `status` shows a refusal; each collection checks again.
            with contextlib.suppress(CompactlibError):
                self._context.owner.require()

    @property
    def name(self) -> str:
        """The repository's name."""
        return self._context.repository

    @property
    def context(self) -> StagingContext:
        """The stores and tools that its operations share."""
        return self._context

    # --- compaction

    def view(self, *, branch: str | Branch = "main", budget: Budget | None = None) -> StagingView:
        """Return the policy's view of a branch. Reads staged entries up to `max_scanned`, and the ranges they touch.

        Raises:
            BranchNotFound: there is no such branch.
            Busy: its layers were replaced during every try.
            BudgetSpent: the budget ran out.
        """
        with self._guard.use():
            self._guard.require_open()
            return view_of(self._context, self._name_of(branch), budget or Budget(), self._context.options.max_scanned)

    def plan(self, policy: StagingPolicy | None = None, *, branch: str | Branch | None = None,
             view: StagingView | None = None) -> StagingPlan:
        """Return the plan of a compaction: a dry run, which reads nothing if a view is given.

        Args:
            policy: default: the repository's.
            branch: default: the view's, or `main`.
            view: default: a new view.

        Raises:
            InvalidInput: the view is of another branch or repository.
            BranchNotFound, Busy: as for `view`.
        """
        self._guard.require_open()
        name = self._name_of(branch, view)
        if view is None:
            view = self.view(branch=name)
        chosen = self._policy if policy is None else policy
        choice = chosen.choose(view, self._context.clock.now())
        if not isinstance(choice, StagingChoice):
            raise InvalidInput(f"the policy {chosen.name!r} returned {choice!r}; choose() returns a StagingChoice, "
                               f"an empty one to do nothing")
        return plan_for(view, choice, PolicyRecord.of(chosen))

    def compact(self, plan: StagingPlan | None = None, *, branch: str | Branch | None = None,
                policy: StagingPolicy | None = None, executor: Executor | None = None,
                budget: Budget | None = None, observer: Observer | None = None,
                fence: CommitFence | None = None) -> StagingCompactionReport:
        """Compact a branch: rewrite staged entries as ranges. Reads do not change.

        O(staged entries + ranges they touch).

        Args:
            plan: the plan of this branch; default: `plan(policy)`. Not together with `policy`.
            branch: default: the plan's, or `main`.
            policy: instead of the repository's.
            executor: runs the rewrite; default: this thread.
            budget: limits of the work; cancel it to stop.
            observer: notified in addition to the repository's.
            fence: entered around the commit, which is one compare-and-set.

        Returns:
            The report. An empty report gives the reason: an empty plan, or no room for new ranges.

        Raises:
            Busy: this object compacts the branch already.
            LostRace: another writer changed the branch, and the compaction yielded to it; a `Busy`.
            Stale: the branch's layers changed since the plan.
            InvalidInput: the plan is of another branch or repository, or came with a policy.
            BranchNotFound: there is no such branch.
            BudgetSpent: the budget ran out; the next call starts over.
            CompactionFailed: the fence refused after the commit, which remains in effect.
            CompactlibError: a store, the fence or the rewrite failed; reads do not change.
        """
        context, is_given = self._context, plan is not None
        name = self._name_of(branch, None if plan is None else plan.view)
        if plan is not None and policy is not None:
            raise InvalidInput("a plan and a policy were given; give one of them: a policy has chosen the plan already")
        notified = Observers(context.observer, observer)
        began, run = context.clock.monotonic(), Run(self._guard, budget)
        with run.held:
            run.begin(_COMPACTS + name)  # another compaction of the branch would only lose work
            compactor = Compactor(context=context, branch=name, stores=self._stores, budget=run.budget,
                                  executor=executor or LocalExecutor(clock=context.clock), observer=notified,
                                  fence=fence)
            ended: StagingCompactionReport | CompactlibError
            try:
                if plan is None:
                    chosen, most = self._policy if policy is None else policy, context.options.max_scanned
                    if type(chosen) is AlwaysPolicy and run.budget.remaining.total_bytes is None:
                        most = ENTRIES_FOR_ALWAYS
                    plan = self.plan(chosen, view=view_of(context, name, run.budget, most))
                ended = compactor.run(plan, is_given=is_given)
            except (BranchNotFound, InvalidInput):
                raise
            except CompactlibError as error:
                ended = error
            seconds = context.clock.monotonic() - began
            notify_end(notified, self.name, name, ended, seconds, plan)
            if isinstance(ended, CompactlibError):
                raise ended
            return attrs.evolve(ended, seconds=seconds)

    def reclaim(self, *, budget: Budget | None = None) -> StagingReclaimReport:
        """Free the entries of dropped tokens, and unreachable ranges.

        A compaction only marks the tokens that it replaces, because earlier reads may still scan them. A reclaim
        removes their entries `grace_seconds` later. It collects ranges if the options set `owns_ranges` and this
        repository owns them (`adopt_ranges`); otherwise the report gives the reason. Several processes may reclaim
        concurrently, and may be killed at any step.

        Args:
            budget: checked before every 1,000 entries and every 1,000 files. If it runs out after something was freed,
                the report is partial.

        Raises:
            Busy: a reclaim of this object is under way.
            BudgetSpent: the budget ran out before anything was freed.
            CompactionFailed: records are damaged, or a live commit or metarange is missing, and the rest was freed; it
                carries the report. If nothing was freed, the first `CorruptData`, `Unsupported` or `NotFound` is raised
                instead.
            CompactlibError: a store failed; earlier deletes remain in effect.
        """
        run = Run(self._guard, budget)
        with run.held:
            run.begin(_RECLAIM)
            return reclaim(self._context, run.budget)

    def adopt_ranges(self) -> None:
        """Make this repository the owner of the ranges, so that `reclaim` collects them. For operators.

        Call it once where `reclaim` reports that ranges are not owned: they have no owner's entry or another owner,
        the catalogue was copied or restored, or its store has no place. Call it only if no other catalogue needs these
        ranges: a collection deletes all that this catalogue does not name. Collections of the earlier owner are
        refused from now on; a running one may still delete one batch of files.

        Raises:
            Stale: another repository adopted them at the same moment.
        """
        self._guard.require_open()
        self._context.owner.adopt()

    def verify(self, *, budget: Budget | None = None) -> VerifyReport:
        """Read every record, staged entry and range, and list damaged and missing ones. O(repository)."""
        with self._guard.use():
            self._guard.require_open()
            return verify(self._context, budget or Budget())

    def status(self) -> RepositoryStatus:
        """Return the running operations of this object, from memory."""
        self._guard.require_open()
        running = self._guard.running
        return RepositoryStatus(
            repository=self.name, is_reclaiming=_RECLAIM in running,
            compacting=tuple(kind.removeprefix(_COMPACTS) for kind in running if kind.startswith(_COMPACTS)),
            ranges_refused=self._context.owner.refused)

    def audit(self) -> None:
        """Check the records of branches for contradictions. Reads them, their HEADs and metaranges, and all marks.

        Raises:
            AuditFailed: records contradict each other; the message names them.
            CorruptData: a record is damaged.
        """
        self._guard.require_open()
        audit(self._context)

    def close(self) -> None:
        """Cancel this object's compactions and reclaim, and wait for them and for views. Idempotent.

        The stores stay open, and branches stay usable.

        Raises:
            Busy: called by a policy, a fence, an executor, a task or an observer of this object, or an operation has
                not ended within 30 seconds.
        """
        self._guard.require_outside()
        self._guard.release()

    # --- branches

    def branch(self, name: str) -> Branch:
        """Return a branch by its name. No request: the branch's methods raise if it does not exist."""
        return Branch(self._context, name)

    def create_branch(self, name: str, source: str | None = None) -> Branch:
        """Create a branch at the HEAD of another branch, or at a commit; without a source it is empty.

        Uncommitted changes of the source are not included. Costs two reads, a write, and six requests to the object
        store, independent of its size.

        Raises:
            Conflict: there is a branch of this name.
            BranchNotFound, CommitNotFound: there is no such source.
            MetaRangeNotFound: the commit was unreachable for the grace period, and its records were collected.
            BeingCollected: a collection deletes them now.
        """
        branch, context = self.branch(name), self._context
        commit_id = None if source is None else context.resolve_present(source)
        record = BranchRecord.new(context.branches.new_token(), commit_id)
        context.branches.create(name, record)
        metarange_id = context.commits.metarange_of(commit_id)
        if metarange_id is not None:
            # The call may have been suspended for longer than the grace period before the branch named the commit.
            try:
                context.committed.claim(metarange_id)
            except (MetaRangeNotFound, BeingCollected):
                context.branches.delete(name, record)
                raise
        return branch

    def delete_branch(self, name: str) -> None:
        """Delete a branch with its uncommitted changes. Its commits stay.

        Raises:
            BranchNotFound: there is no such branch.
            Busy: others changed the branch during every try.
        """
        self._context.branches.delete(name, None)

    def branches(self) -> Iterator[Branch]:
        """Yield every branch, in order of the names' bytes."""
        for name, _ in self._context.branches.list():
            yield self.branch(name)

    def at(self, ref: str) -> CommittedView:
        """Return a view of a commit, or of a branch's present HEAD; `BranchNotFound` or `CommitNotFound`."""
        return CommittedView.of(self._context, ref)

    def commit(self, commit_id: CommitId) -> Commit:
        """Return a commit by its id, or raise `CommitNotFound`."""
        return copied(self._context.commits.get(commit_id))

    def form_of_ranges(self) -> tuple[SplitRule, RangeFormat | None]:
        """Return the rule that cut the ranges of one branch, and the format of its first range.

        Without a commit they are the default rule and `None`. A repository that is opened with another rule rewrites
        its ranges. Reads one metarange and one range.
        """
        context, files = self._context, self._context.committed
        for _, record in context.branches.list():
            base = record.base(context.commits.metarange_of(record.commit_id))
            if base is not None:
                metarange = files.read_metarange(base)
                return metarange.rule, files.format_of(metarange.entries[0]) if metarange.entries else None
        return SplitRule(), None

    def dropped_tokens(self) -> int:
        """Return the number of tokens that wait for a reclaim, by the marks that can be read. Reads every mark."""
        return sum(len(mark.tokens) for _, mark in self._context.branches.marks({}))

    def _name_of(self, branch: str | Branch | None, view: StagingView | None = None) -> str:
        """Return the name of a branch given by name, by handle or by a view; default `main`."""
        if isinstance(branch, Branch):
            if branch.repository != self.name:
                raise InvalidInput(f"{branch!r} is no branch of the repository {self.name!r}; give one of its own")
            branch = branch.name
        elif branch is None:
            branch = "main" if view is None else view.branch
        branch_key(branch)
        if view is not None and (view.repository, view.branch) != (self.name, branch):
            raise InvalidInput(f"the view or plan is of branch {view.branch!r} of repository {view.repository!r}, and "
                               f"not of {branch!r} of {self.name!r}; make one with view() or plan()")
        return branch

    def __repr__(self) -> str:
        return f"Repository({self._context.repository!r} over {self._context.store!r})"


def _known(store: KVStore) -> str:
    """Return which repositories a store has, for an error, if it can list its partitions."""
    partitions = getattr(store, "partitions", None)
    if partitions is None:
        return ""
    names = [name for name in map(repository_in, partitions()) if name is not None]
    return f"there are {', '.join(map(repr, names))}; " if names else "there are none; "
