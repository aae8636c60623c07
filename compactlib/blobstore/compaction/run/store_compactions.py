# SPDX-License-Identifier: Apache-2.0
"""Compactions of one store: at most one at a time, whichever thread starts it; how it begins, resumes and ends.

What it does between two durable steps is in `work`; what a crash leaves is completed or undone by `recover` before the
store is opened. One that stopped with an error stays in progress: it is resumed, or dropped, and nothing is lost.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

import attrs

from compactlib.blobstore.compaction.commit.publish import remove_names
from compactlib.blobstore.compaction.commit.recover import leftovers
from compactlib.blobstore.compaction.plan.eviction import choose_eviction
from compactlib.blobstore.compaction.plan.plan import BlobPlan, plan_for, plan_for_choice
from compactlib.blobstore.compaction.plan.policy import BlobPolicy, BlobView
from compactlib.blobstore.compaction.progress.compaction_file import (
    LOG_NAME,
    CompactionFile,
    close_log,
    read_log,
)
from compactlib.blobstore.compaction.progress.compaction_log import CompactionLog, Phase
from compactlib.blobstore.compaction.run.events import COMPACTION_DONE, StoreEvents
from compactlib.blobstore.compaction.run.report import BlobCompactionOutcome, BlobCompactionReport
from compactlib.blobstore.compaction.run.work import GIVES_UP, CompactionWork, Questions
from compactlib.blobstore.compaction.sense.look import Sensor
from compactlib.blobstore.compaction.sense.statistics import all_lifetimes
from compactlib.blobstore.compaction.swap import CompactableStore
from compactlib.blobstore.errors import PlanDoesNotFit
from compactlib.blobstore.model.names import SegmentName
from compactlib.blobstore.model.values import milliseconds
from compactlib.errors import AuditFailed, CompactlibError, InvalidInput, StorageError
from compactlib.files.disk import may_be_there
from compactlib.outcome import Done, Failed, Skipped
from compactlib.runtime.budget import Budget
from compactlib.runtime.ownership import Ownership, Run

if TYPE_CHECKING:
    from compactlib.blobstore.config import BlobStoreConfig


class StoreCompactions:
    """Belongs to a store: one run at a time, whichever thread asks; closing the store cancels it and waits.

    Args:
        store: the store.
        policy: decides what is worth compacting, unless a caller gives another one.
        questions: what a compaction asks its host.
        found: the compaction that opening the store has found in progress.

    Attributes:
        ownership: every compaction, resumption, drop and batch of a hard delete is a run of it.
        policy: see above.
        sensor: makes the views.
        last_error: the last unexpected exception: of an executor, a task or a question of the host's.
        failures: how often that was.
    """

    def __init__(self, store: CompactableStore, policy: BlobPolicy, questions: Questions,
                 found: CompactionLog | None = None) -> None:
        self._store = store
        self._found = found
        self._questions = questions
        self.policy: BlobPolicy = policy
        self.ownership: Ownership = Ownership(f"the blob store {store.name}")
        self.sensor: Sensor = Sensor(store, questions.purge_rules(store.config), self.ownership)
        self._work: CompactionWork | None = None
        self._next_number = 1
        self.last_error: CompactlibError | None = None
        self.failures: int = 0

    @property
    def log(self) -> CompactionLog | None:
        """The compaction in progress, as far as it has come."""
        work = self._work
        return self._found if work is None else work.log

    @property
    def is_unsure(self) -> bool:
        """Whether the disk refused the step that commits, so that it may have taken it all the same."""
        return self._work is not None and self._work.is_unsure

    @property
    def questions(self) -> Questions:
        """What the next run asks."""
        return self._questions

    @questions.setter
    def questions(self, questions: Questions) -> None:
        self._questions = questions
        self.sensor.use_rules(questions.purge_rules(self._store.config))

    def new_budget(self) -> Budget:
        """The configured rate."""
        pace = self._store.config.pace
        return Budget(bytes_per_second=None if pace is None else pace.limit, clock=self._store.clock)

    def view(self, policy: BlobPolicy | None = None, budget: Budget | None = None) -> BlobView:
        """The store as a policy, default its own, sees it now; see `Sensor.view`."""
        chosen = self.policy if policy is None else policy
        return self.sensor.view(self._store.clock.now(), forecast=needs_forecast(chosen), budget=budget)

    def plan(self, view: BlobView, policy: BlobPolicy | None, available: int | None) -> BlobPlan:
        """What a policy, default the store's own, chooses of a view now. What it raises is raised.

        Args:
            view: of the store.
            policy: see above.
            available: the room on the disk.
        """
        return plan_for(view, self.policy if policy is None else policy, self._store.clock.now(),
                        bytes_available=available)

    def plan_eviction(self, segments: int) -> BlobPlan | None:
        """What a full cache gives up to free so many segments, `None` if that would not. Reads the whole index twice.

        Raises:
            BudgetSpent, StorageError: as `view`.
        """
        store = self._store
        now = store.clock.now()
        view = self.sensor.view(now)
        reference_ms, lives = milliseconds(view.reference_time), dict[SegmentName, list[tuple[int, int]]]()
        for life in all_lifetimes(store.snapshot(), self._questions.purge_rules(store.config)):
            if reference_ms <= life.reference_until:
                lives.setdefault(life.segment, []).append((life.now_until, life.size))
        found = choose_eviction(view, lives, segments, milliseconds(now))
        if found is None:
            return None
        plan = plan_for_choice(found.view, found.choice, self.policy, now, bytes_available=self.available_bytes())
        return attrs.evolve(plan, expires_before=found.before_ms / 1000)

    def available_bytes(self) -> int | None:
        """The room on the disk, if it is known.

        Raises:
            StorageError: the disk refused to be asked.
        """
        return self._store.files.available_bytes(self._store.folder)

    @contextlib.contextmanager
    def running(self, budget: Budget | None = None, *, is_brief: bool = False) -> Iterator[Run | None]:
        """A run of the store inside the `with`; `None` if the store is `busy`.

        Args:
            budget: what it may use up.
            is_brief: whether a compaction that comes meanwhile waits for its end.

        Raises:
            Closed: the store is closed.
        """
        self._store.require_mine()
        with self.ownership.begin(budget, is_brief=is_brief) as run:
            yield run

    def take(self, run: Run) -> bool:
        """As `running`, for several stores whose runs do not end in the order in which they began; see `Ownership`.

        It waits for what is brief: a batch of a hard delete, or the removal of files by a reclaim.
        """
        self._store.require_mine()
        return self.ownership.take(run, waits=True)

    def busy(self) -> Skipped:
        """The answer to a second caller."""
        why = ("it is being closed" if self.ownership.is_ending
               else "another compaction, a reclaim or a hard delete of it is running")
        return Skipped(f"store {self._store.name} is busy: {why}", is_busy=True)

    def in_the_way(self) -> Skipped | None:
        """The answer to a change of segments in place while a compaction waits to be finished; else `None`."""
        log = self.log
        return None if log is None else Skipped(
            f"a compaction of store {self._store.name} waits to be finished ({log.phase.value}); the next compact() "
            f"does, resume() does nothing else")

    # -- the steps of the store's owner

    def work(self, events: StoreEvents | None = None) -> CompactionWork | None:
        """The compaction in progress, or `None`.

        Args:
            events: notified from now on; the store's own observer if not given.
        """
        log, store = self.log, self._store
        if log is None:
            return None
        told = StoreEvents(store.name, store.observer) if events is None else events
        if self._work is None:
            self._work = CompactionWork(store, CompactionFile(store.files, store.folder), log, self._questions, told,
                                        resumed=True)
        else:
            self._work.questions, self._work.events = self._questions, told
        return self._work

    def check(self, plan: BlobPlan) -> None:
        """Return if a plan is one of this store.

        Raises:
            InvalidInput: it is another store's, or would drop what can still be undeleted.
        """
        store = self._store
        if plan.store != store.name or plan.incarnation not in (b"", store.incarnation):
            another = "" if plan.store != store.name else ", but another one of this name"
            raise InvalidInput(f"the plan is for store {plan.store!r}, and this is {store.name!r}{another}")
        latest = store.clock.now() - store.config.deleted_retention_seconds
        if plan.reference_time > max(latest, 0.0):
            raise InvalidInput(f"the plan's reference time {plan.reference_time} is later than {latest}: deletes after "
                               f"that can still be undone; plan with an earlier one, or configure a shorter retention")

    def begin(self, plan: BlobPlan, events: StoreEvents) -> None:
        """PREPARE: check the plan against the store as it is now, and note it, durably.

        Raises:
            PlanDoesNotFit: the store has changed since; nothing was done.
            StorageError: the disk refused; nothing was begun.
        """
        store, snapshot = self._store, self._store.snapshot()
        known = {info.name for info in snapshot.segments}
        eligible = frozenset(snapshot.eligible())
        for name in plan.names:
            if name not in eligible:
                why = "is active, or the journal reaches it" if name in known else "is not in the log"
                raise PlanDoesNotFit(f"segment {name} of the plan for store {store.name} {why}; make a new plan")
        now = store.clock.now()
        log = CompactionLog(
            number=self._next_number, started_ms=milliseconds(now), is_full=plan.is_full, victims=plan.names,
            reference_ms=milliseconds(plan.reference_time), swap_segments=store.config.swap_segments)
        file = CompactionFile(store.files, store.folder)
        work = CompactionWork(store, file, log, self._questions, events, resumed=False)
        if plan.expires_before is not None:
            work.expires_before_ms = milliseconds(plan.expires_before)
        try:
            file.write(log)
        except StorageError:
            # The log may have its name all the same. It goes; if even that is refused, the compaction has begun.
            with contextlib.suppress(StorageError):
                remove_names(store.files, store.folder, (LOG_NAME,))
            if may_be_there(os.path.join(store.folder, LOG_NAME)):
                self._work = work
            raise
        self._work = work

    def close(self, work: CompactionWork, seconds: float) -> BlobCompactionReport:
        """DONE: the log goes, and what attempts have left.

        Raises:
            StorageError: the disk refused; call again.
        """
        store, log = self._store, work.log
        store.require_mine()
        close_log(store.files, store.folder, log)
        store.give_up(GIVES_UP, None)
        remove_names(store.files, store.folder, tuple(leftovers(store.folder, None)))
        self._found = self._work = None
        self._next_number = log.next_number
        report = BlobCompactionReport(
            store=store.name, number=log.number, victims=log.victims,
            sources=tuple(name for cycle in log.committed for name in cycle.sources),
            targets=tuple(target.name for cycle in log.committed for target in cycle.targets),
            cycles=len(log.committed), copied_records=work.copied_records, copied_bytes=log.copied_bytes,
            bytes_written=work.bytes_written, bytes_freed=work.bytes_freed,
            verdicts=work.verdicts, classes=work.classes, left_out=log.left_out, damage=tuple(work.damage),
            resumed=work.resumed, seconds=seconds)
        work.events.tell(COMPACTION_DONE, number=log.number, victims=[str(name) for name in log.victims],
                         freed_segments=report.freed_segments, copied_bytes=log.copied_bytes)
        return report

    def reclaimable(self) -> tuple[str, ...]:
        """What attempts have left: names in the folder.

        Raises:
            StorageError: the folder cannot be read.
        """
        return tuple(leftovers(self._store.folder, self.log))

    def note(self, error: CompactlibError) -> None:
        """An unexpected exception was raised."""
        self.last_error = error
        self.failures += 1

    # -- for the store's users

    def drop(self) -> BlobCompactionOutcome:
        """See `BlobStore.drop_compaction`."""
        with self.running() as run:
            if run is None:
                return self.busy()
            work = self.work()
            if work is None:
                return Skipped(f"no compaction of store {self._store.name} is in progress")
            try:
                if not work.log.dropped:
                    dropped = work.log.drop()
                    work.file.write(dropped)
                    work.log = dropped
                return Done(self.close(work, 0.0))
            except CompactlibError as error:
                return Failed(error, "partly" if work.log.dropped else "unknown")

    def audit(self) -> None:
        """Check that what is in memory is what is on the disk; nothing is checked while the store is busy.

        Raises:
            AuditFailed: the log in memory is another one, or does not hold together.
            Closed: the store is closed.
        """
        self._store.require_mine()
        # A view blocks no compaction from beginning; what may have changed meanwhile is looked at once more.
        if self.ownership.is_running or self._disagreement() is None:
            return
        with self.running() as run:
            found = None if run is None else self._disagreement()
        if found is not None:
            raise found

    def _disagreement(self) -> AuditFailed | None:
        log, stored = self.log, read_log(self._store.folder)
        try:
            if log is not None:
                log.audit()
        except AuditFailed as error:
            return error
        # A log that has come to its end may be removed already, if only the sync after that was refused.
        if (log is None) != (stored is None) and (log is None or log.phase is not Phase.DONE):
            return AuditFailed(f"the compaction in memory is {log}, on the disk {stored}")
        return None


class OwnedStore(CompactableStore, Protocol):
    """A store and its compactions (`BlobStore` is one): what runs, or waits for what runs, is given both."""

    @property
    def compactions(self) -> StoreCompactions:
        """Which run may compact it, and what is in progress: one for the store, whichever objects work on it."""

    def reload_index(self, segment: SegmentName) -> None:
        """Load the index files of a sealed segment again, after a hard delete has changed flags in them.

        Raises:
            PlanDoesNotFit: the segment is unknown or is the active one.
        """

    def close_active_segment(self) -> None:
        """Seal the active segment and begin the next one, so that the sealed one becomes eligible; does nothing to
        an empty one.

        Raises:
            StoreFull: no segment is left.
        """


def require_forecast(config: BlobStoreConfig, policy: BlobPolicy) -> None:
    """Return if the statistics say what a policy has to know.

    Raises:
        InvalidInput: it looks ahead, and the configuration forbids the buckets that know what will die when.
    """
    if config.stats_bucket_count == 0 and needs_forecast(policy):
        raise InvalidInput(f"the policy {policy.name} has to know what dies when, and stats_bucket_count is 0; leave "
                           f"that out, or give the number of buckets to look ahead")


def needs_forecast(policy: BlobPolicy) -> bool:
    """Whether a policy has to be shown what dies when."""
    return getattr(policy, "needs_forecast", False) is True
