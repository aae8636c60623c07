"""A `BlobStore` with its policy, as the manager sees it."""

from __future__ import annotations

from compactlib.blobstore.compaction_report import BlobCompactionOutcome
from compactlib.blobstore.policy import Policy
from compactlib.blobstore.store import BlobStore
from compactlib.budget import Budget
from compactlib.outcome import Done, Failed, Skipped
from compactlib.rewrite import Executor


class ManagedBlobStore:
    """Asks the policy and carries out its plans. One thread at a time, which the manager sees to.

    Args:
        store: the store.
        policy: who decides; default the store's own.
        executor: who copies; default the thread that runs.
    """

    def __init__(self, store: BlobStore, *, policy: Policy | None = None, executor: Executor | None = None) -> None:
        self._store = store
        self._policy = policy
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

    def new_budget(self) -> Budget:
        """The configured rate."""
        return self._store.new_budget()

    def resume(self, budget: Budget) -> BlobCompactionOutcome:
        """See `ManagedStore.resume`."""
        return self._store.resume(executor=self._executor, budget=budget)

    def check(self, budget: Budget) -> BlobCompactionOutcome:
        """See `ManagedStore.check`; then reclaims: the hard delete, if the store is configured so."""
        outcome = self._store.compact(policy=self._policy, executor=self._executor, budget=budget)
        if isinstance(outcome, Failed) or (isinstance(outcome, Skipped) and outcome.is_busy):
            return outcome
        reclaimed = self._store.reclaim(budget=budget)
        match outcome, reclaimed:
            case _, Failed():
                return reclaimed
            case Skipped(reason), Done(stats) if stats.erased is not None:
                return Skipped(f"{reason}; overwrote the content of {stats.erased.records} deleted blobs")
        return outcome
