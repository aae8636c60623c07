# SPDX-License-Identifier: Apache-2.0
"""`Repository`: branches over a key-value store and the committed layer, and the compaction of each."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from itertools import islice
from random import Random, SystemRandom
from typing import TYPE_CHECKING

from compactlib._closing import Closing
from compactlib.budget import Budget
from compactlib.clock import Clock, SystemClock
from compactlib.contract import CommitFence
from compactlib.errors import CompactlibError, InvalidInput, NotFound
from compactlib.guard import Guard, Run
from compactlib.kv import KVStore
from compactlib.observer import Observer, Observers
from compactlib.report import VerifyReport
from compactlib.rewrite import Executor
from compactlib.staging.branch import Branch
from compactlib.staging.commits import Commit, copied
from compactlib.staging.compaction.compact import COMPACTS, Compactor
from compactlib.staging.compaction.rewrite import OpenStores
from compactlib.staging.context import StagingContext
from compactlib.staging.errors import BeingCollected, MetaRangeNotFound, PreconditionFailed
from compactlib.staging.names import CommitId, StagingToken, branch_key, repository_in
from compactlib.staging.options import StagingOptions
from compactlib.staging.plan import StagingPlan, StagingView
from compactlib.staging.policies import StagingPolicy
from compactlib.staging.ranges.committed import CommittedRanges
from compactlib.staging.ranges.rows import RangeFormat
from compactlib.staging.ranges.split import SplitRule
from compactlib.staging.reclaim import StagingReclaimReport, reclaim
from compactlib.staging.record import BranchRecord
from compactlib.staging.results import RepositoryStatus, RepositorySurvey, StagingCompactionReport
from compactlib.staging.tokens import MergedTokens
from compactlib.staging.verify import audit, verify
from compactlib.staging.view import CommittedView

if TYPE_CHECKING:
    from compactlib.staging.sensor import CompactionSensor

_RECLAIM = "reclaim"
_ENTRIES_BETWEEN_CHECKS = 1000


class Repository(Closing):
    """The branches of one repository, and their compaction. Threads share one.

    It offers `contract.Compaction`, one branch at a time. The stores are shared: any number of these objects may be
    open over them, in any processes, and any number may try to compact one branch: one commits, the others raise
    `LostRace`. It keeps caches, and what it does at the moment; `close` ends that, and the stores stay open.

    With `owns_ranges` it asks at its beginning whose the ranges are, in a few requests, and makes them its own if there
    are none yet; see `adopt_ranges`.

    Args:
        store: where branches, commits and staged entries are.
        committed: where committed records are.
        name: distinguishes the repositories on one store.
        policy: decides what a compaction is worth; default `AlwaysPolicy()`.
        options: limits, numbers of tries, times of grace.
        stores: how a rewrite comes by its stores, for executors that run it in another process.
        clock: dates commits and tokens, and waits between tries.
        rng: draws tokens, nonces, write ids and waits. Two objects must never draw the same: the default asks the
            operating system; give a seeded one in tests only.
        sensor: counts what makes a branch worth compacting, for a worker.
        observer: notified of what an operator may want to know.
        create: whether it may be a new one. If not, one without a branch is `NotFound`.

    Raises:
        NotFound: the store knows no branch of it, and `create` is not set.
        InvalidInput: it is no name of a repository, or an argument is not what it should be.
    """

    def __init__(self, store: KVStore, committed: CommittedRanges, *, name: str = "main",
                 policy: StagingPolicy | None = None, options: StagingOptions | None = None,
                 stores: OpenStores | None = None, clock: Clock | None = None, rng: Random | None = None,
                 sensor: CompactionSensor | None = None, observer: Observer | None = None, create: bool = True) -> None:
        self._context = StagingContext.over(
            store, committed, name, options=options or StagingOptions(), clock=clock or SystemClock(),
            rng=rng or SystemRandom(), sensor=sensor, observer=Observers(observer))
        if not create and next(iter(self._context.branches.list()), None) is None:
            raise NotFound(f"there is no repository {name!r} in {store!r}: it has no branch; {_known(store)}check "
                           f"which store and name are meant, or open it with create=True to begin one")
        self._guard = Guard(f"the repository {name!r}")
        self._compactor = Compactor(self._context, self._guard, policy, stores)
        if self._context.options.owns_ranges:
            # While there are no ranges yet, they become this repository's; whoever is refused can see it in the status.
            # A store that is away for now is asked again by each collection.
            with contextlib.suppress(CompactlibError):
                self._context.owner.require()

    @property
    def name(self) -> str:
        """Its name."""
        return self._context.repository

    @property
    def context(self) -> StagingContext:
        """The stores and tools that the parts of the machine work with."""
        return self._context

    # --- compaction

    def view(self, *, branch: str | Branch = "main", budget: Budget | None = None) -> StagingView:
        """Return a branch as a policy sees it now. Reads staged entries up to `max_scanned`, and ranges they touch.

        Raises:
            BranchNotFound: there is no such branch.
            TooManyTries: its layers were replaced under every try.
            BudgetSpent: the budget ran out.
            Closed: it was closed.
        """
        with self._guard.use():
            self._guard.require_open()
            return self._compactor.view(self._name_of(branch), budget or Budget())

    def tombstones(self, *, branch: str | Branch = "main", budget: Budget | None = None,
                   ) -> tuple[BranchRecord, dict[StagingToken, int]]:
        """Return the branch's record, and how many tombstones each of its tokens holds. Reads up to `max_scanned`
        staged entries, and no range: for `CompactionSensor.seed`.

        Raises:
            BranchNotFound: there is no such branch.
            BudgetSpent: the budget ran out.
            Closed: it was closed.
        """
        with self._guard.use():
            self._guard.require_open()
            context, given = self._context, budget or Budget()
            record = context.branches.read(self._name_of(branch))
            counts = dict.fromkeys(record.tokens, 0)
            staged = ((token, entry) for token in record.tokens for _, entry in MergedTokens(context.tokens, [token]))
            for number, (token, entry) in enumerate(islice(staged, context.options.max_scanned)):
                if number % _ENTRIES_BETWEEN_CHECKS == 0:
                    given.check()
                counts[token] += entry is None
            return record, counts

    def plan(self, policy: StagingPolicy | None = None, *, branch: str | Branch | None = None,
             view: StagingView | None = None) -> StagingPlan:
        """Return what `compact` would do and gain: a dry run, pure if it is given a view.

        Args:
            policy: default the repository's own.
            branch: default that of the view, or `main`.
            view: default one of now.

        Raises:
            InvalidInput: the view is of another branch or repository.
            BranchNotFound, TooManyTries, Closed: as for `view`.
        """
        self._guard.require_open()
        if view is None:
            view = self.view(branch="main" if branch is None else branch)
        elif branch is not None and self._name_of(branch) != view.branch:
            raise InvalidInput(f"the view is of branch {view.branch!r}, and the branch given is "
                               f"{self._name_of(branch)!r}; give one of them")
        return self._compactor.plan(policy, view)

    def compact(self, plan: StagingPlan | None = None, *, branch: str | Branch | None = None,
                policy: StagingPolicy | None = None, executor: Executor | None = None,
                budget: Budget | None = None, observer: Observer | None = None,
                fence: CommitFence | None = None) -> StagingCompactionReport:
        """Compact a branch: what is staged becomes ranges, and reads the same. O(staged entries + ranges they touch).

        Args:
            plan: of this branch; default the one that `plan(policy)` makes now. Not together with `policy`.
            branch: default that of the plan, or `main`.
            policy: instead of the repository's own.
            executor: who rewrites; default this thread.
            budget: what the work may use up; cancel it to stop.
            observer: notified, besides the repository's own.
            fence: entered around the commit, which is one compare-and-set.

        Returns:
            The numbers; an empty report says why nothing was done: the plan is empty, or there is no room for it.

        Raises:
            Busy: this object compacts the branch already.
            LostRace: another writer changed the branch, and the compaction yielded to it; a `Busy`.
            OutdatedPlan: the branch has other layers than the plan says; a `Stale`.
            InvalidInput: the plan is of another branch or repository, or came with a policy.
            BranchNotFound: there is no such branch.
            BudgetSpent: the budget ran out; the next call begins anew.
            CompactionFailed: the fence refused after the commit, which stands.
            Closed: it was closed.
            CompactlibError: a store, the fence or the rewrite refused; everything reads as before.
        """
        if branch is None:
            branch = "main" if plan is None else plan.view.branch
        return self._compactor.compact(self._name_of(branch), plan, policy=policy, executor=executor, budget=budget,
                                       observer=observer, fence=fence)

    def reclaim(self, *, budget: Budget | None = None) -> StagingReclaimReport:
        """Free what can no longer be read: entries of tokens that were dropped, and ranges.

        A compaction only marks the tokens it has replaced: reads that began before may still scan them, so their
        entries go once they were dropped `grace_seconds` ago. Ranges that are not needed are collected if the options
        say `owns_ranges`, and they are this repository's (`adopt_ranges`); if not, the report says so. May be run
        again, at once, by several processes, and may be killed anywhere.

        Args:
            budget: asked before every 1,000 entries and every 1,000 files.

        Returns:
            What was freed, what was left, and why; a partial report if the budget ended it after something was freed.

        Raises:
            Busy: a reclaim of this object is under way.
            BudgetSpent: the budget ran out before anything was freed.
            Closed: it was closed.
            CompactlibError: a store refused; what was freed before stays so.
        """
        run = Run(self._guard, budget)
        with run.held:
            run.begin(_RECLAIM)
            return reclaim(self._context, run.budget)

    def adopt_ranges(self) -> None:
        """Make the ranges of this object store or prefix this repository's, for `reclaim` to collect. For operators.

        Needed once where `reclaim` says so: the ranges are older than their owner's entry, or another's, the catalogue
        was copied or restored, or its store does not say its place. Call it only where no other catalogue needs these
        ranges any more: what this one does not name is deleted. Collections of the earlier owner are refused from now
        on; one that is under way may still delete one batch of files.

        Raises:
            Stale: another repository did the same at the same moment.
            Closed: it was closed.
        """
        self._guard.require_open()
        self._context.owner.adopt()

    def verify(self, *, budget: Budget | None = None) -> VerifyReport:
        """Read every record, staged entry and range, and list what is damaged or missing. O(everything).

        Raises:
            BudgetSpent: the budget ran out.
            Closed: it was closed.
        """
        with self._guard.use():
            self._guard.require_open()
            return verify(self._context, budget or Budget())

    def status(self) -> RepositoryStatus:
        """Return what this object is at, from memory; `survey` reads about all branches.

        Raises:
            Closed: it was closed.
        """
        self._guard.require_open()
        running, compactor, last = self._guard.running, self._compactor, self._compactor.last_error
        return RepositoryStatus(
            repository=self.name, is_reclaiming=_RECLAIM in running, outcomes=tuple(sorted(compactor.outcomes.items())),
            compacting=tuple(kind.removeprefix(COMPACTS) for kind in running if kind.startswith(COMPACTS)),
            last_error="" if last is None else f"{type(last).__name__}: {last}",
            failures=compactor.failures, ranges_refused=self._context.owner.refused)

    def audit(self) -> None:
        """Check what the repository's records promise each other. Reads all records and commits, not the entries.

        Raises:
            AuditFailed: they contradict each other; the message has the numbers.
            CorruptData: a record is damaged.
            Closed: it was closed.
        """
        self._guard.require_open()
        audit(self._context)

    def close(self) -> None:
        """Cancel this object's compactions and its reclaim, and wait for their end and that of views; may be called
        again.

        It owns nothing else: the stores stay open, and so do branches, for reads and writes.

        Raises:
            Busy: called from within its own work (by a policy, a fence, an executor, a task or an observer), or
                something has not ended in 30 seconds.
        """
        self._guard.require_outside()
        self._guard.release()

    # --- branches

    def branch(self, name: str) -> Branch:
        """A branch by its name. No request: whether it exists is found out by its methods.

        Raises:
            InvalidInput: it is no name of a branch.
        """
        return Branch(self._context, name)

    def create_branch(self, name: str, source: str | None = None) -> Branch:
        """Make a branch at the HEAD of another one, or at a commit; without a source it is empty.

        What is uncommitted on the source stays there. Costs two reads, a write, and six requests to the object store,
        whatever the size.

        Raises:
            BranchExists: there is a branch of this name.
            BranchNotFound, CommitNotFound: there is no such source.
            MetaRangeNotFound: no branch has reached the commit for long, and its records were collected.
            BeingCollected: they are being collected at this moment.
            InvalidInput: it is no name of a branch.
        """
        branch, context = self.branch(name), self._context
        commit_id = None if source is None else context.resolve_present(source)
        record = BranchRecord(commit_id=commit_id, staging_token=context.tokens.draw())
        context.branches.create(name, record)
        metarange_id = context.commits.metarange_of(commit_id)
        if metarange_id is not None:
            # The call may have stood still for longer than any grace period before the branch named the commit.
            try:
                context.committed.claim(metarange_id)
            except (MetaRangeNotFound, BeingCollected):
                context.branches.delete(name, _expecting(name, record))
                raise
        return branch

    def delete_branch(self, name: str, *, expected: BranchRecord | None = None) -> None:
        """Delete a branch and everything uncommitted on it. Its commits stay.

        Args:
            name: which branch.
            expected: the record that the branch must have.

        Raises:
            BranchNotFound: there is no such branch.
            PreconditionFailed: the branch has another record; nothing was deleted.
            TooManyTries: others changed the branch under every try.
        """
        self._context.branches.delete(name, _expecting(name, expected))

    def branches(self, prefix: str = "") -> Iterator[Branch]:
        """Every branch whose name begins so, in order of the names' bytes."""
        for name, _ in self._context.branches.list(prefix):
            yield self.branch(name)

    def at(self, ref: str) -> CommittedView:
        """The records of a commit, or of a branch's HEAD as it is now.

        Raises:
            BranchNotFound, CommitNotFound: there is no such thing.
        """
        return CommittedView.of(self._context, ref)

    def commit(self, commit_id: CommitId) -> Commit:
        """A commit by its id.

        Raises:
            CommitNotFound: there is none.
        """
        return copied(self._context.commits.get(commit_id))

    def form_of_ranges(self) -> tuple[SplitRule, RangeFormat | None]:
        """Return the rule that cut the ranges of one branch, and the format of its first range.

        Without a commit they are the default rule and `None`. A repository that is opened with another rule rewrites
        its ranges. Reads one metarange and one range.

        Raises:
            MetaRangeNotFound, RangeNotFound, DamagedRange, NewerFormat: one of the two cannot be read.
        """
        context, files = self._context, self._context.committed.files
        for _, record in context.branches.list():
            base = record.base(context.commits.metarange_of(record.commit_id))
            if base is not None:
                metarange = files.read_metarange(base, SplitRule())
                return metarange.rule, files.format_of(metarange.entries[0]) if metarange.entries else None
        return SplitRule(), None

    def survey(self) -> RepositorySurvey:
        """All branches and the staging tokens in numbers. Reads every branch record and every mark of a token."""
        context = self._context
        return RepositorySurvey(
            repository=context.repository,
            branches=tuple(context.status_of(name, record) for name, record in context.branches.list()),
            dropped_tokens=sum(len(mark.tokens) for mark in context.tokens.marks()))

    def _name_of(self, branch: str | Branch) -> str:
        """The name of a branch that was given by name or by handle."""
        if isinstance(branch, Branch):
            if branch.repository != self.name:
                raise InvalidInput(f"{branch!r} is no branch of the repository {self.name!r}; give one of its own")
            return branch.name
        branch_key(branch)
        return branch

    def __repr__(self) -> str:
        return f"Repository({self._context.repository!r} over {self._context.store!r})"


def _expecting(name: str, expected: BranchRecord | None) -> Callable[[BranchRecord], None]:
    def check(record: BranchRecord) -> None:
        if expected is not None and record != expected:
            raise PreconditionFailed(branch=name, key=b"")

    return check


def _known(store: KVStore) -> str:
    """Say which repositories a store has, if it can list its partitions."""
    partitions = getattr(store, "partitions", None)
    if partitions is None:
        return ""
    names = [name for name in map(repository_in, partitions()) if name is not None]
    return f"there are {', '.join(map(repr, names))}; " if names else "there are none; "
