"""A `BlobStore` with its policy, as the manager sees it."""

from __future__ import annotations

from random import Random

from compactlib.blobstore.compaction_report import BlobCompactionOutcome
from compactlib.blobstore.compaction_work import Questions
from compactlib.blobstore.compactor import BlobCompactor
from compactlib.blobstore.hard_delete import HardDeleter
from compactlib.blobstore.lifetimes import PurgeRules
from compactlib.blobstore.policies import CompactAll, Hybrid, policy_of
from compactlib.blobstore.policy import CompactionPolicy, StoreView, why_no_plan
from compactlib.blobstore.sense import Sensor
from compactlib.blobstore.store_compactions import StoreBusy
from compactlib.blobstore.swap import CompactableStore
from compactlib.blobstore.validity import nobody
from compactlib.budget import Budget, BudgetLimits
from compactlib.errors import BudgetSpent
from compactlib.outcome import Done, Failed, Skipped
from compactlib.rewrite import Executor


class ManagedBlobStore:
    """Asks the policy and carries out its plans. One thread at a time, which the manager sees to.

    What it does to the store is the store's own work: another compaction of the store, through whichever object, is
    waited for (`StoreBusy`), and closing the store ends it.

    Args:
        store: the store.
        compactor: what compacts it; default one of its own.
        policy: who decides; default what the store's configuration names.
        questions: what a compaction asks its host, for a compactor of its own and for the statistics.
        executor: who copies; default the thread that runs.
        random: what the policy `d_choices` draws from.

    Raises:
        UnknownPolicy: the configuration names none.
        CorruptData, StorageError: the compaction log cannot be read.
    """

    def __init__(self, store: CompactableStore, *, compactor: BlobCompactor | None = None,
                 policy: CompactionPolicy | None = None, questions: Questions | None = None,
                 executor: Executor | None = None, random: Random | None = None) -> None:
        asked = Questions() if questions is None else questions
        self._store = store
        self._policy = policy_of(store.config, random=random) if policy is None else policy
        self._compactor = BlobCompactor(store, asked) if compactor is None else compactor
        # What the compaction will not drop, the statistics must not call dead: plans would free nothing, for ever.
        is_container_gone = asked.is_container_gone if store.config.drop_dead_containers else nobody
        self._sensor = Sensor(store, PurgeRules(purge_tombstones=store.config.purge_tombstones,
                                                seen_by_all_peers=asked.seen_by_all_peers,
                                                is_container_gone=is_container_gone))
        self._eraser = HardDeleter(store, self._compactor) if store.config.hard_delete else None
        self._executor = executor

    @property
    def name(self) -> str:
        """The store's name."""
        return self._store.name

    @property
    def folder(self) -> str:
        """The store's folder."""
        return self._store.folder

    @property
    def is_open(self) -> bool:
        """Whether the store is open; a manager does not work on one that is closed."""
        return not self._store.compactions.ownership.is_closed

    @property
    def compactor(self) -> BlobCompactor:
        """What compacts the store."""
        return self._compactor

    def new_budget(self) -> Budget:
        """The configured rate."""
        return Budget(bytes_per_second=self._store.config.compaction_bytes_per_second, clock=self._store.clock)

    def resume(self, budget: Budget) -> BlobCompactionOutcome:
        """See `ManagedStore.resume`; `StoreBusy` if somebody else is compacting the store.

        Raises:
            Closed: the store is closed.
        """
        log = self._compactor.log
        outcome = self._compactor.resume(executor=self._executor, budget=budget)
        if isinstance(outcome, Done) and log is not None and log.is_full:
            self._sensor.full_carried_out(self._store.clock.now())
        return outcome

    def check(self, budget: Budget) -> BlobCompactionOutcome:
        """See `ManagedStore.check`; then overwrites the content of deleted blobs, if the store is configured so.

        Counting, deciding and copying ask `budget`. The hard delete has the configured rate of its own, and ends when
        `budget` is cancelled. Its error is the outcome; what it did is told to the observer, and in the reason if
        nothing was compacted. `StoreBusy` if somebody else is compacting the store.

        Raises:
            Closed: the store is closed.
            CompactionInProgress: somebody else's compaction waits to be resumed or dropped.
            PlanDoesNotFit: the store changed between plan and compaction; the next check plans again.
            StorageError: the disk refused.
        """
        try:
            outcome = self._compact(budget)
        except BudgetSpent as error:
            return Failed(error)
        if self._eraser is None or isinstance(outcome, Failed | StoreBusy):
            return outcome
        rate = self._store.config.hard_delete_bytes_per_second
        erased = self._eraser.run(budget=budget.beside(BudgetLimits(bytes_per_second=rate)))
        match outcome, erased:
            case _, Failed():
                return erased
            case Skipped(reason), Done(stats) if stats.records:
                return Skipped(f"{reason}; overwrote the content of {stats.records} deleted blobs")
        return outcome

    def _compact(self, budget: Budget) -> BlobCompactionOutcome:
        now = self._store.clock.now()
        # Counting takes long, and changes nothing: others may compact meanwhile.
        view = self._sensor.view(now, budget=budget)
        with self._compactor.running(budget) as run:
            if run is None:
                return self._compactor.busy()
            if self._store.config.close_active_segment and self._is_full_round(view, now):
                self._store.close_active_segment()
                view = self._sensor.view(now, budget=run.budget)
            plan = self._policy.plan(view, now)
            if plan is None:
                return Skipped(why_no_plan(self._policy, view, now))
            run.budget.check()
        outcome = self._compactor.compact(plan, executor=self._executor, budget=budget)
        if isinstance(outcome, Done):
            self._sensor.carried_out(plan, self._store.clock.now())
        return outcome

    def _is_full_round(self, view: StoreView, now: float) -> bool:
        """Whether this round takes everything, so that the segment that is written to should be a part of it."""
        free = view.capacity_bytes // view.segment_bytes - len(view.segments)
        policy = self._policy
        if free < 1 or view.used_fraction < self._store.config.min_used_fraction:
            return False
        return isinstance(policy, CompactAll) or (isinstance(policy, Hybrid) and now >= policy.due_at(view))
