"""The compactor of one store: begins, resumes and drops compactions.

What it does between two durable steps is in `compaction_work`; what a crash leaves is settled by `recover` before the
store is opened. One that stopped with an error stays in progress: it is resumed, or dropped, and nothing is lost.
"""

from __future__ import annotations

import contextlib
import threading
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
from compactlib.blobstore.swap import CompactableStore
from compactlib.budget import Budget
from compactlib.errors import CompactlibError, InvalidInput
from compactlib.outcome import Done, Skipped
from compactlib.rewrite import Executor


class BlobCompactor:
    """Compacts one store. One run at a time; any thread may ask.

    Args:
        store: the store, recovered before (`recover_compaction`).
        questions: what the compaction asks its host.

    Raises:
        CorruptData: the compaction log is damaged.
        StorageError: it cannot be read.
    """

    def __init__(self, store: CompactableStore, questions: Questions | None = None) -> None:
        self._store = store
        self._questions = Questions() if questions is None else questions
        self._events = StoreEvents(store.name, store.observer)
        log = read_log(store.folder)
        self._work: CompactionWork | None = None
        if log is not None:
            file = CompactionFile(store.files, store.folder)
            self._work = CompactionWork(store, file, log, self._questions, resumed=True)
        self._running = threading.Lock()

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
        work = self._work
        return None if work is None else work.log

    def compact(self, plan: CompactionPlan, *, executor: Executor | None = None, budget: Budget | None = None,
                commit_guard: CommitGuard | None = None) -> BlobCompactionOutcome:
        """Carry out a plan. Memory: 24 bytes a copied record of one cycle, and a few MiB.

        Args:
            plan: made for this store; checked against it.
            executor: who copies; this thread if not given.
            budget: what the copying may use up; the configured rate if not given.
            commit_guard: entered around each commit, see `compact_many`.

        Raises:
            CompactionInProgress: another one is running, or waits to be resumed or dropped.
            PlanDoesNotFit: the store has changed since; nothing was done.
            InvalidInput: the plan is for another store, or would drop what can still be undeleted.
            StorageError: the disk refused the first step; nothing was begun.
        """
        return compact_many([(self, plan)], executor=executor, budget=budget,
                            commit_guard=commit_guard)[self._store.folder]

    def resume(self, *, executor: Executor | None = None, budget: Budget | None = None,
               commit_guard: CommitGuard | None = None) -> BlobCompactionOutcome:
        """Go on with the compaction in progress; `Skipped` if there is none. The arguments are those of `compact`.

        Raises:
            CompactionInProgress: it is running.
        """
        if self._work is None:
            return Skipped(f"no compaction of store {self._store.name} is in progress")
        return compact_many([(self, None)], executor=executor, budget=budget,
                            commit_guard=commit_guard)[self._store.folder]

    def drop(self) -> BlobCompactionOutcome:
        """Give up the compaction in progress; what its earlier cycles did stays, and nothing is lost.

        Raises:
            CompactionInProgress: it is running.
            CompactionOutOfOrder: a commit is under way, which can only be resumed.
            StorageError: the disk refused; call again.
        """
        with self.alone():
            work = self._work
            if work is None:
                return Skipped(f"no compaction of store {self._store.name} is in progress")
            if not work.log.dropped:
                dropped = work.log.drop()
                work.file.write(dropped)
                work.log = dropped
            return Done(self.close(work, 0.0))

    @contextlib.contextmanager
    def idle(self) -> Iterator[None]:
        """Keep compactions away for a moment; for those who change segments in place.

        Raises:
            CompactionInProgress: one is running, or waits to be resumed or dropped.
        """
        with self.alone():
            if self._work is not None:
                raise self._in_progress(self._work.log.phase.value)
            yield

    def audit(self) -> None:
        """Check that what is in memory is what is on the disk.

        Raises:
            CompactlibError: the log in memory is another one, or does not hold together.
        """
        with self.alone():
            log, stored = self.log, read_log(self._store.folder)
            if log is not None:
                log.audit()
            # A log that has come to its end may have its other name already, if only the sync after that was refused.
            if (log is None) != (stored is None) and (log is None or log.phase is not Phase.DONE):
                raise CompactlibError(f"the compaction in memory is {log}, on the disk {stored}")

    # -- the steps that `compact_many` takes for one store or for many

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Keep every other thread from running this compactor.

        Raises:
            CompactionInProgress: one does.
        """
        if not self._running.acquire(blocking=False):
            raise self._in_progress("running")
        try:
            yield
        finally:
            self._running.release()

    @property
    def work(self) -> CompactionWork | None:
        """The compaction in progress."""
        return self._work

    def begin(self, plan: CompactionPlan) -> None:
        """PREPARE: check the plan against the store and note it, durably. The caller is `alone`; see `compact`."""
        if self._work is not None:
            raise self._in_progress(self._work.log.phase.value)
        store = self._store
        now = store.clock.now()
        self._check(plan, now)
        prune_history(store.files, store.folder, milliseconds(now - store.config.compaction_history_seconds))
        log = CompactionLog(
            number=next_number(store.folder), started_ms=milliseconds(now), is_full=plan.is_full, victims=plan.names,
            reference_ms=milliseconds(plan.reference_time), swap_segments=store.config.swap_segments)
        file = CompactionFile(store.files, store.folder)
        file.write(log)
        self._work = CompactionWork(store, file, log, self._questions, resumed=False)

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
        close_log(store.files, store.folder, log)
        remove_names(store.files, store.folder, tuple(leftovers(store.folder, None)))
        self._work = None
        report = BlobCompactionReport(
            store=store.name, number=log.number, victims=log.victims,
            sources=tuple(name for cycle in log.committed for name in cycle.sources),
            targets=tuple(target.name for cycle in log.committed for target in cycle.targets),
            cycles=len(log.committed), copied_records=work.copied_records, copied_bytes=log.copied_bytes,
            verdicts=work.verdicts, left_out=log.left_out, damage=tuple(work.damage), resumed=work.resumed,
            seconds=seconds)
        self._events.done(log.number, [str(name) for name in log.victims], report.freed_segments, log.copied_bytes)
        return report

    def _in_progress(self, phase: str) -> CompactionInProgress:
        return CompactionInProgress(f"a compaction of store {self._store.name} is in progress ({phase}); resume it or "
                                    f"drop it first", phase=phase)
