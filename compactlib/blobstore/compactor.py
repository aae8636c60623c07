"""The compactor of one store: begins, resumes and drops compactions.

What it does between two durable steps is in `compaction_work`; what a crash leaves is settled by `recover` before the
store is opened. One that stopped with an error stays in progress: it is resumed, or dropped, and nothing is lost.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from compactlib.blobstore.commit import remove_names
from compactlib.blobstore.compact_many import CommitGuard, compact_many
from compactlib.blobstore.compaction_file import CompactionFile, close_log, next_number, prune_history, read_log
from compactlib.blobstore.compaction_log import CompactionLog, Phase
from compactlib.blobstore.compaction_report import BlobCompactionOutcome, BlobCompactionReport
from compactlib.blobstore.compaction_work import CompactionWork, Questions
from compactlib.blobstore.errors import CompactionInProgress, PlanDoesNotFit
from compactlib.blobstore.events import StoreEvents
from compactlib.blobstore.model import milliseconds
from compactlib.blobstore.plan import CompactionPlan
from compactlib.blobstore.recover import leftovers
from compactlib.blobstore.store_compactions import StoreBusy
from compactlib.blobstore.swap import CompactableStore
from compactlib.budget import Budget
from compactlib.errors import AuditFailed, InvalidInput
from compactlib.outcome import Done, Skipped
from compactlib.rewrite import Executor
from compactlib.runtime.ownership import Run


class BlobCompactor:
    """Compacts one store. Any thread may ask.

    The store owns its compaction: one run at a time, through whichever compactor, and closing the store cancels it and
    waits. Several compactors of one store see the same compaction in progress.

    Args:
        store: the store.
        questions: what the compaction asks its host.
    """

    def __init__(self, store: CompactableStore, questions: Questions | None = None) -> None:
        self._store = store
        self._questions = Questions() if questions is None else questions
        self._events = StoreEvents(store.name, store.observer)
        self._shared = store.compactions

    @property
    def store(self) -> CompactableStore:
        """The store."""
        return self._store

    @property
    def events(self) -> StoreEvents:
        """Through which the store's observer is told."""
        return self._events

    @property
    def log(self) -> CompactionLog | None:
        """The compaction in progress, as far as it has come, or `None`."""
        return self._shared.log

    def compact(self, plan: CompactionPlan, *, executor: Executor | None = None, budget: Budget | None = None,
                commit_guard: CommitGuard | None = None) -> BlobCompactionOutcome:
        """Carry out a plan. Memory: 24 bytes a copied record of one cycle, and a few MiB.

        `Skipped` if the store is busy: another compaction or a hard delete of it is running, or it is being closed.
        Whatever an executor, a question or a commit guard raises is the outcome: `Failed`, with `TaskFailed` for what
        is none of the library's errors; the compaction waits to be resumed. An observer breaks nothing.

        Args:
            plan: made for this store; checked against it.
            executor: who copies; this thread if not given.
            budget: what the copying may use up; the configured rate if not given. The rate of one that is given
                counts, but for a disk that answers too slowly: then the configured pace holds.
            commit_guard: entered around each commit, see `compact_many`.

        Raises:
            CompactionInProgress: an earlier one waits to be resumed or dropped.
            Closed: the store is closed.
            PlanDoesNotFit: the store has changed since; nothing was done.
            InvalidInput: the plan is for another store, or would drop what can still be undeleted.
            StorageError: the disk refused the first step; nothing was begun.
        """
        return compact_many([(self, plan)], executor=executor, budget=budget,
                            commit_guard=commit_guard)[self._store.folder]

    def resume(self, *, executor: Executor | None = None, budget: Budget | None = None,
               commit_guard: CommitGuard | None = None) -> BlobCompactionOutcome:
        """Go on with the compaction in progress; `Skipped` if there is none, or if the store is busy.

        The arguments are those of `compact`, and so is what is done about errors.

        Raises:
            Closed: the store is closed.
        """
        return compact_many([(self, None)], executor=executor, budget=budget,
                            commit_guard=commit_guard)[self._store.folder]

    def drop(self) -> BlobCompactionOutcome:
        """Give up the compaction in progress; what its earlier cycles did stays, and nothing is lost.

        `Skipped` if there is none, or if the store is busy.

        Raises:
            Closed: the store is closed.
            CompactionOutOfOrder: a commit is under way, which can only be resumed.
            StorageError: the disk refused; call again.
        """
        with self.running() as run:
            if run is None:
                return self.busy()
            work = self.work()
            if work is None:
                return Skipped(f"no compaction of store {self._store.name} is in progress")
            if not work.log.dropped:
                dropped = work.log.drop()
                work.file.write(dropped)
                work.log = dropped
            return Done(self.close(work, 0.0))

    def audit(self) -> None:
        """Check that what is in memory is what is on the disk; nothing is checked while the store is busy.

        Raises:
            AuditFailed: the log in memory is another one, or does not hold together.
            Closed: the store is closed.
        """
        with self.running() as run:
            if run is None:
                return
            log, stored = self.log, read_log(self._store.folder)
            if log is not None:
                log.audit()
            # A log that has come to its end may have its other name already, if only the sync after that was refused.
            if (log is None) != (stored is None) and (log is None or log.phase is not Phase.DONE):
                raise AuditFailed(f"the compaction in memory is {log}, on the disk {stored}")

    # -- the steps that `compact_many` takes for one store or for many, and a hard delete

    @contextlib.contextmanager
    def running(self, budget: Budget | None = None) -> Iterator[Run | None]:
        """A run of the store inside the `with`; `None` if the store is `busy`.

        Raises:
            Closed: the store is closed.
        """
        self._store.require_mine()
        with self._shared.ownership.begin(budget) as run:
            yield run

    def take(self, budget: Budget) -> Run | None:
        """As `running`, for several stores whose runs do not end in the order in which they began."""
        self._store.require_mine()
        return self._shared.ownership.take(budget)

    def busy(self) -> StoreBusy:
        """The answer to who comes second."""
        why = ("it is being closed" if self._shared.ownership.is_ending
               else "another compaction or a hard delete of it is running")
        return StoreBusy(f"store {self._store.name} is busy: {why}")

    def require_none(self) -> None:
        """Return if no compaction waits to be resumed or dropped; for those who change segments in place.

        Raises:
            CompactionInProgress: one does.
        """
        log = self.log
        if log is not None:
            raise CompactionInProgress(f"a compaction of store {self._store.name} is in progress ({log.phase.value}); "
                                       f"resume it or drop it first", phase=log.phase.value)

    def work(self) -> CompactionWork | None:
        """The compaction in progress; the caller runs the store."""
        log, store = self.log, self._store
        if self._shared.work is None and log is not None:
            file = CompactionFile(store.files, store.folder)
            self._shared.work = CompactionWork(store, file, log, self._questions, resumed=True)
        elif self._shared.work is not None:
            self._shared.work.questions = self._questions
        return self._shared.work

    def begin(self, plan: CompactionPlan) -> None:
        """PREPARE: check the plan against the store and note it, durably. The caller runs the store; see `compact`."""
        self.require_none()
        store = self._store
        now = store.clock.now()
        self._check(plan, now)
        prune_history(store.files, store.folder, milliseconds(now - store.config.compaction_history_seconds))
        log = CompactionLog(
            number=next_number(store.folder), started_ms=milliseconds(now), is_full=plan.is_full, victims=plan.names,
            reference_ms=milliseconds(plan.reference_time), swap_segments=store.config.swap_segments)
        file = CompactionFile(store.files, store.folder)
        file.write(log)
        self._shared.work = CompactionWork(store, file, log, self._questions, resumed=False)

    def _check(self, plan: CompactionPlan, now: float) -> None:
        store = self._store
        if plan.store != store.name:
            raise InvalidInput(f"the plan is for store {plan.store!r}, and this is {store.name!r}")
        latest = now - store.config.deleted_retention_seconds
        if plan.reference_time > latest:
            raise InvalidInput(f"the plan's reference time {plan.reference_time} is later than {latest}: deletes after "
                               f"that can still be undone; plan with an earlier one, or configure a shorter retention")
        known = {info.name for info in store.snapshot().segments}
        eligible = frozenset(store.snapshot().eligible())
        for name in plan.names:
            if name not in eligible:
                why = "is active, or the journal reaches it" if name in known else "is not in the log"
                raise PlanDoesNotFit(f"segment {name} of the plan for store {store.name} {why}; make a new plan")

    def close(self, work: CompactionWork, seconds: float) -> BlobCompactionReport:
        """DONE: the log goes to the history, and what attempts have left goes.

        Raises:
            StorageError: the disk refused; call again.
        """
        store, log = self._store, work.log
        store.require_mine()
        close_log(store.files, store.folder, log)
        remove_names(store.files, store.folder, tuple(leftovers(store.folder, None)))
        self._shared.ended()
        report = BlobCompactionReport(
            store=store.name, number=log.number, victims=log.victims,
            sources=tuple(name for cycle in log.committed for name in cycle.sources),
            targets=tuple(target.name for cycle in log.committed for target in cycle.targets),
            cycles=len(log.committed), copied_records=work.copied_records, copied_bytes=log.copied_bytes,
            verdicts=work.verdicts, left_out=log.left_out, damage=tuple(work.damage), resumed=work.resumed,
            seconds=seconds)
        self._events.done(log.number, [str(name) for name in log.victims], report.freed_segments, log.copied_bytes)
        return report
