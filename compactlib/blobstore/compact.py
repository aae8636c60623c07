# SPDX-License-Identifier: Apache-2.0
"""The compaction of a store: sense, plan, rewrite, commit, reclaim. `Compactor.steps` is the algorithm.

A step replaces some segments by the fewest new segments that hold their survivors, in one swap:

1. the log is synced, so that only durable records justify a drop, and survivors are chosen from a frozen snapshot;
2. tasks copy the survivors into private files, and every file is read back and checked;
3. the files get their names and an index, and the folder is synced. The files do not count until the list names them;
4. under the lock: no dropped record was revived in the meantime, and **the list of segments is written**. This is the
   commit; it is one write;
5. the files of the sources are removed.

After a crash before 4, files that the list does not name are removed, and the next compaction makes a new plan. After
a crash after 4, opening checks the outputs again and does 5 (`opening`). A step writes at most eight outputs, fewer if
the disk has less room. The part-filled last output of a step is the first source of the next step, so that outputs are
packed tightly, and each record is in one segment only. A step has at least one source that no earlier step had, so a
compaction ends.

A tombstone may be purged in a later step than the PUT that it deletes: only `seen_by_all_peers` keeps tombstones for
peers.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Collection, Generator, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, TypeAlias

import attrs

from compactlib._store_numbers import notify_compaction, notify_levels, outcome_of
from compactlib.blobstore.contents import LogSegment, records_after
from compactlib.blobstore.errors import PlanDoesNotFit
from compactlib.blobstore.hard_delete import finish_erasures
from compactlib.blobstore.index import IndexPart, write_part
from compactlib.blobstore.log import Log, remove_names, remove_segments
from compactlib.blobstore.names import SegmentName, segment_of_log_file
from compactlib.blobstore.plan import BlobPlan, plan_for
from compactlib.blobstore.records import milliseconds
from compactlib.blobstore.report import BlobCompactionReport
from compactlib.blobstore.scan import check_segment
from compactlib.blobstore.segment import SEGMENT_HEADER_BYTES
from compactlib.blobstore.segment_list import MAX_OUTPUTS, MAX_SOURCES, Output, Step
from compactlib.blobstore.statistics import view_of
from compactlib.blobstore.survivors import CopyRecords, Place, Survivors, choose_survivors
from compactlib.blobstore.validity import Purge, Rules, Verdict
from compactlib.blobstore.view import BlobPolicy, BlobView
from compactlib.budget import Budget
from compactlib.clock import Clock
from compactlib.errors import (
    BudgetSpent,
    Closed,
    CompactionFailed,
    CompactlibError,
    Conflict,
    CorruptData,
    InvalidInput,
    StorageError,
    TaskFailed,
)
from compactlib.executors.tasks import LocalExecutor, answers_of, own_error
from compactlib.guard import Run
from compactlib.observer import Observer, Observers
from compactlib.rewrite import Executor, RewriteFailure, RewriteOutcome

if TYPE_CHECKING:
    from compactlib.contract import CommitFence

MAX_RESTARTS = 3
"""How often a step is chosen again because a record that it drops was revived."""


@attrs.frozen
class Copying:
    """The next run of an executor: the tasks, the budget of the run, and the observer to notify."""

    tasks: Sequence[CopyRecords]
    budget: Budget
    observer: Observer


Outcomes: TypeAlias = Mapping[str, RewriteOutcome]
Steps: TypeAlias = Generator[Copying, Outcomes, BlobCompactionReport]
"""A compaction: yields tasks to run, is sent the outcome of each task, and returns its report."""


@attrs.define
class _Running:
    """A compaction under way."""

    plan: BlobPlan
    budget: Budget
    observer: Observer
    fence: CommitFence | None
    waiting: list[SegmentName]  # the part-filled last output, if any, and the victims that no step has copied yet
    valid: dict[SegmentName, int]  # bytes to copy of each victim and output
    report: BlobCompactionReport  # the steps so far
    carried: int = 0  # 1 if the part-filled last output, which the next step copies again, waits; else 0
    restarts: int = 0  # how often the current step was chosen again
    failures: dict[str, CompactlibError] = attrs.field(factory=dict)  # the errors of steps
    spent: BudgetSpent | None = None

    def drop(self, names: Collection[SegmentName]) -> None:
        """Take segments out of the work that is left."""
        self.carried -= any(name in names for name in self.waiting[:self.carried])
        self.waiting = [name for name in self.waiting if name not in names]

    def result(self, seconds: float) -> BlobCompactionReport:
        """Return the report, or raise if a step failed or nothing could be done."""
        report = attrs.evolve(self.report, seconds=seconds, is_partial=bool(self.report.why and self.report.steps))
        if self.failures and (report.steps or len(self.failures) > 1):
            raise CompactionFailed(report=report, failures=self.failures)
        if not report.steps:
            # The first of these is why nothing was committed.
            for error in (*self.failures.values(), *filter(None, [self.spent]), *report.damage):
                raise error
        return report


@attrs.define(eq=False)
class Compactor:
    """Plans and carries out the compactions of one log. One runs at a time, concurrently with reads and writes."""

    _log: Log
    _name: str
    purge: Purge
    _place: Place | None  # returns the class of a survivor; survivors of one class share outputs
    _observer: Observer
    # segments in which a compaction found damage: they are left out until the store is opened again
    damaged: dict[SegmentName, str] = attrs.field(factory=dict, init=False)
    # the last unexpected exception of an executor, a task or a callback of the host
    last_error: CompactlibError | None = attrs.field(default=None, init=False)
    failures: int = attrs.field(default=0, init=False)
    begun: int = attrs.field(default=0, init=False)  # how many compactions have begun

    def view(self, policy: BlobPolicy, budget: Budget) -> BlobView:
        """Return the store as a policy sees it. Reads the whole index once."""
        log = self._log
        found = view_of(log.snapshot(), log.lists.known, log.config, policy, name=self._name, now=log.clock.now(),
                        eligible=frozenset(log.eligible()), purge=self.purge, budget=budget, damaged=self.damaged)
        log.guard.require_open()
        return found

    # -- the five steps

    def steps(self, given: BlobPlan | None, policy: BlobPolicy, budget: Budget | None, observer: Observer | None,
              fence: CommitFence | None) -> Steps:
        """Compact; the caller runs the tasks that are yielded, and sends their outcomes. See `BlobStore.compact`."""
        log, observers = self._log, Observers(self._observer, observer)
        began, plan = log.clock.monotonic(), given
        run = Run(log.guard, limited(budget, log.config.compaction_bytes_per_second, log))
        try:
            with run.held:
                run.begin("compaction")
                self.begun += 1
                run.budget.check()
                log.remove_leftovers()
                finish_erasures(log)
                if plan is None:
                    view = self.view(policy, run.budget)                           # sense
                    plan = plan_for(view, policy, log.clock.now(), bytes_available=self._room())  # plan
                done = _Running(plan, run.budget, observers, fence, list(plan.names),
                                {victim.name: victim.valid_bytes for victim in plan.victims},
                                BlobCompactionReport(store=self._name, victims=plan.names, why=plan.why
                                                     if plan.is_empty else self._lack_of_room(plan.bytes_needed)))
                self._require_eligible(plan)
                while len(done.waiting) > done.carried and not done.report.why:
                    yield from self._step(done)                                    # rewrite, commit, reclaim
                report = done.result(log.clock.monotonic() - began)
        except Exception as error:
            self._notify(observers, plan, error, log.clock.monotonic() - began)
            raise
        self._notify(observers, plan, report, report.seconds)
        return report

    def _room(self) -> int | None:
        return self._log.files.available_bytes(self._log.folder)

    def _lack_of_room(self, needed: int) -> str:
        """Return a message if the disk has no room for `needed` bytes; empty if it has."""
        room = self._room()
        if room is None or needed <= room:
            return ""
        return (f"the compaction of store {self._name} needs {needed:,} bytes of room on the disk before it frees any, "
                f"and {room:,} are available in {self._log.folder}; free some")

    def _require_eligible(self, plan: BlobPlan) -> None:
        for name in sorted(set(plan.names).difference(self._log.eligible())):
            why = "is active or in the journal" if self._log.contents.has(name) else "is not in the log"
            raise PlanDoesNotFit(f"segment {name} of the plan for store {self._name} {why}; make a new plan")

    def _step(self, done: _Running) -> Generator[Copying, Outcomes, None]:
        """Carry out one step. Damage in a victim, or a failed task, does not stop the other steps."""
        first = done.waiting[done.carried]
        try:
            done.budget.check()
            survivors = self._choose(done)
            if why := self._lack_of_room(sum(output.end for output in survivors.outputs)):
                done.report = attrs.evolve(done.report, why=why)
                return
            tasks = survivors.outputs
            outcomes = (yield Copying(tasks, done.budget, done.observer)) if tasks else {}
            files = self._checked(done, survivors, [outcomes[task.name] for task in tasks])
            if files is not None:
                self._replace(done, survivors, files)
        except BudgetSpent as error:
            done.spent = self._named(error, done.valid[first], done.budget)
            done.report = attrs.evolve(done.report, why=str(error))
        except Closed:
            raise
        except CompactlibError as error:
            done.failures[f"the step of segments {first} and others"] = error
            done.waiting = []

    def _named(self, error: BudgetSpent, least: int, budget: Budget) -> BudgetSpent:
        """Return the error; if the total is smaller than one step, with the bytes that a step needs."""
        if error.reason != "bytes" or budget.remaining.total_bytes is None:
            return error
        return BudgetSpent(f"{error}; a step of the compaction of store {self._name} is committed all at once: give at "
                           f"least {error.spent_bytes + least}",
                           reason="bytes", spent_bytes=error.spent_bytes, needed_bytes=error.spent_bytes + least)

    def _choose(self, done: _Running) -> Survivors:
        """Choose the next step: sources for as many outputs as the disk has room for, at least one new source."""
        log, room, most = self._log, self._room(), MAX_OUTPUTS
        if room is not None:
            most = max(1, min(most, room // log.descriptor.segment_bytes))
        sequence, snapshot = log.next_sequence - 1, log.snapshot()
        log.sync()
        limit = most * (log.descriptor.segment_bytes - SEGMENT_HEADER_BYTES)
        total = done.budget.remaining.total_bytes
        if total is not None:
            limit = min(limit, total)
        sizes = accumulate(done.valid[name] for name in done.waiting[:MAX_SOURCES])
        count = max(sum(size <= limit for size in sizes), done.carried + 1)
        now = log.clock.now()
        # The plan's time, unless the store was opened with a longer retention after that.
        latest = max(now - log.config.deleted_retention_seconds, 0.0)
        evicted = now if done.plan.expires_before is None else max(now, done.plan.expires_before)
        rules = Rules(reference_ms=milliseconds(min(done.plan.reference_time, latest)), now_ms=milliseconds(evicted),
                      purge=self.purge)
        while True:
            found = choose_survivors(snapshot, sequence, done.waiting[:count], rules, folder=log.folder,
                                     store=log.descriptor, files=log.files, place=self._place, budget=done.budget,
                                     retention_ms=milliseconds(log.config.deleted_retention_seconds))
            if len(found.outputs) <= most:
                return found
            if count > done.carried + 1:
                count = max(done.carried + 1, min(count - 1, count * most // len(found.outputs)))
            else:
                # The part-filled output is no source of this step, and stays.
                done.drop(done.waiting[:1])
                count = 1

    def _checked(self, done: _Running, survivors: Survivors, outcomes: Sequence[RewriteOutcome]) -> list[str] | None:
        """Read back the files that the tasks wrote, perhaps in another process; return the file of each output.

        If one is bad, return `None`: its sources stay. A damaged source alone is left out, with all its records.
        """
        log = self._log
        files = [outcome.files[0].path for outcome in outcomes if not isinstance(outcome, RewriteFailure)]
        try:
            for output, outcome in zip(survivors.outputs, outcomes, strict=True):
                if isinstance(outcome, RewriteFailure):
                    raise outcome.error
                check_segment(outcome.files[0].path, output.header, output.end, output.records, output.sequences,
                              done.budget)
            return files
        except CompactlibError as error:
            failure = error.with_traceback(None)
        remove_names(log.files, log.folder, map(os.path.basename, files))
        segment = segment_of_log_file(os.path.basename(failure.path)) if isinstance(failure, CorruptData) else None
        if isinstance(failure, CorruptData) and segment is not None and segment in survivors.sources:
            self.damaged[segment] = f"left out for damage until the store is opened again: {failure}"
            done.report = attrs.evolve(done.report, left_out=(*done.report.left_out, segment),
                                       damage=(*done.report.damage, failure))
            done.drop({segment})
            done.observer.event("blobstore_damage_found", store=self._name, segment=str(segment), error=str(failure))
            return None
        self._note(failure)
        if isinstance(failure, BudgetSpent | StorageError):
            raise failure
        done.failures[f"the step of segments {', '.join(map(str, sorted(survivors.sources)))}"] = failure
        done.drop({*survivors.sources, *done.waiting[:done.carried]})
        return None

    def _replace(self, done: _Running, survivors: Survivors, files: Sequence[str]) -> None:
        """Publish, commit, and remove the sources; nothing if a dropped record was revived in the meantime."""
        log, published = self._log, list[LogSegment]()
        try:
            published = self._publish(survivors, files, done.budget)
            is_committed = self._commit(done, survivors, published)
        except Exception:
            # A fence may raise after the commit, which counts all the same.
            if log.guard.is_open and not any(map(log.contents.has, survivors.sources)):
                self._reclaim(done, survivors, published)
            raise
        finally:
            # In a closed store opening decides.
            if log.guard.is_open:
                with contextlib.suppress(StorageError):
                    remove_segments(log.files, log.folder, (each.header.name for each in survivors.outputs
                                                            if not log.contents.has(each.header.name)))
        if is_committed:
            self._reclaim(done, survivors, published)
            return
        done.restarts += 1
        if done.restarts > MAX_RESTARTS:
            raise Conflict(f"blobs of {self._name} were revived while they were being dropped, {done.restarts} times "
                           f"in a row; compact again later")

    def _publish(self, survivors: Survivors, files: Sequence[str], budget: Budget) -> list[LogSegment]:
        """Rename the outputs, durably, and write their indexes, not durably; the list does not name them yet."""
        log = self._log
        contents, published = log.contents, list[LogSegment]()
        for output, file in zip(survivors.outputs, files, strict=True):
            taken = ((part, rows) for picked in output.picked if (source := contents.segment(picked.segment))
                     for part in source.parts if (rows := part.rows_at(picked.offsets)))
            index = IndexPart.moved(output.header.name, taken, contents.key, budget)
            assert index.end == output.end, "the index has each record that the output gets"
            remove_names(log.files, log.folder, [output.header.name.index_file])
            write_part(log.files, log.folder, index, log.descriptor.incarnation)
            log.files.rename(file, os.path.join(log.folder, output.header.name.log_file))
            published.append(LogSegment(output.header.name, (index,)))
        # Without outputs, too: the removal of the last step's sources is durable before the list names this step.
        log.files.sync_folder(log.folder)
        log.lists.make_ready()
        return published

    def _commit(self, done: _Running, survivors: Survivors, published: Sequence[LogSegment]) -> bool:
        """Replace the sources by the outputs; return `False` if a dropped record was revived in the meantime."""
        log = self._log
        step = Step(survivors.sources, tuple(Output(output.header.name, output.end, output.records)
                                             for output in survivors.outputs))
        # Most of the new records are read here, before writers have to wait.
        sequence, before = log.next_sequence - 1, log.snapshot()
        if survivors.are_hit_by(records_after(before, survivors.sequence), before):
            return False
        is_last = done.plan.kind == "full" and len(done.waiting) == len(survivors.sources)
        last_full_ms = milliseconds(log.clock.now()) if is_last else None
        with contextlib.nullcontext() if done.fence is None else done.fence.guard(), log.guard.lock:
            now = log.snapshot()
            if survivors.are_hit_by(records_after(now, sequence), now):
                return False
            log.switch(step, published, last_full_ms)
            return True

    def _reclaim(self, done: _Running, survivors: Survivors, published: Sequence[LogSegment]) -> None:
        """Remove the sources, count the step and notify the observer. Readers with an open source keep its bytes."""
        log, report, verdicts = self._log, done.report, survivors.verdicts
        written = sum(segment.end + sum(part.file_bytes for part in segment.parts) for segment in published)
        names = [segment.name for segment in published]
        done.drop(survivors.sources)
        done.restarts = 0
        for last in survivors.outputs[-1:]:
            if last.end < log.descriptor.segment_bytes:
                done.carried, done.waiting = 1, [last.header.name, *done.waiting]
                done.valid[last.header.name] = last.end - SEGMENT_HEADER_BYTES
        done.report = report = attrs.evolve(
            report, steps=report.steps + 1, copied_bytes=report.copied_bytes + survivors.copied_bytes,
            copied_records=report.copied_records + sum(output.records for output in survivors.outputs),
            bytes_written=report.bytes_written + written, bytes_freed=report.bytes_freed - written,
            sources=(*report.sources, *(name for name in survivors.sources if name not in report.targets)),
            targets=(*(name for name in report.targets if name not in survivors.sources), *names),
            verdicts=Counter(report.verdicts) + verdicts)
        done.observer.event("blobstore_positions_moved", store=self._name, removed=list(map(str, survivors.sources)),
                            copied_bytes=survivors.copied_bytes, added=list(map(str, names)))
        for verdict, event in ((Verdict.EXPIRED, "blobstore_expired_gone"), (Verdict.DELETED, "blobstore_deleted_gone"),
                               (Verdict.PURGED, "blobstore_tombstones_gone")):
            if verdicts[verdict]:
                done.observer.event(event, store=self._name, records=verdicts[verdict])
        freed = remove_segments(log.files, log.folder, survivors.sources)
        done.report = attrs.evolve(report, bytes_freed=report.bytes_freed + freed)

    # -- the end

    def _note(self, error: CompactlibError) -> None:
        if isinstance(error, TaskFailed):
            self.last_error = error
            self.failures += 1

    def _notify(self, observers: Observer, plan: BlobPlan | None, found: BlobCompactionReport | Exception,
                seconds: float) -> None:
        """Notify the observers of the end of a compaction, and of the bytes that the plan has counted."""
        log, report = self._log, found.report if isinstance(found, CompactionFailed) else found
        outcome, reason = outcome_of(found, plan.policy.name if plan is not None else "")
        if isinstance(found, BlobCompactionReport):
            if not found.is_empty:
                observers.event("blobstore_compaction_done", store=self._name, victims=list(map(str, found.victims)),
                                freed_segments=found.freed_segments, copied_bytes=found.copied_bytes)
        elif outcome == "failed":
            known = own_error(f"compact {self._name}", found)
            if known is not found:
                self._note(known)
            observers.event("blobstore_compaction_failed", store=self._name, error=str(known))
        moved = {"read": report.copied_bytes, "copied": report.bytes_written, "freed": report.bytes_freed} \
            if isinstance(report, BlobCompactionReport) else {}
        notify_compaction(observers, "blobstore", self._name, outcome, reason, seconds, **moved)
        if plan is None or reason == "busy" or not log.guard.is_open:
            return
        contents, store, seen = log.contents, log.descriptor, [*plan.victims, *plan.left]
        dead = [each for each in seen if each.dead_bytes and contents.has(each.name)]
        notify_levels(
            observers, "blobstore", self._name, live_bytes=sum(each.valid_bytes for each in seen),
            dead_bytes=sum(each.dead_bytes for each in dead), capacity_bytes=store.capacity_bytes,
            free_bytes=store.capacity_bytes - contents.used_bytes(store.segment_bytes),
            oldest_unreclaimed_seconds=min((each.last_modified for each in dead), default=None))


def run_many(every: Mapping[str, Steps], executor: Executor | None, clock: Clock, budget: Budget | None,
             ) -> dict[str, BlobCompactionReport | Exception]:
    """Carry out compactions, the next step of all in one run of an executor; each compaction commits its own step.

    `budget` limits them together; without it, the budget of a single compaction counts.

    Returns:
        The report or the error of each, in the order in which they ended.
    """
    runner: Executor = LocalExecutor(clock=clock) if executor is None else executor
    ended: dict[str, BlobCompactionReport | Exception] = {}
    with contextlib.ExitStack() as stack:
        for steps in every.values():
            stack.callback(steps.close)
        active: dict[str, Copying | None] = dict.fromkeys(every)
        outcomes: dict[str, RewriteOutcome] = {}
        while active:
            for name, copying in list(active.items()):
                try:
                    active[name] = next(every[name]) if copying is None else every[name].send(
                        {task.name: outcomes[task.name] for task in copying.tasks})
                except StopIteration as end:
                    ended[name] = end.value
                    del active[name]
                except Exception as error:  # of the host's policy or fence, too
                    ended[name] = error
                    del active[name]
            wanted = [copying for copying in active.values() if copying is not None]
            if wanted:
                is_alone = budget is None and len(every) == 1
                shared = wanted[0].budget if is_alone else (Budget() if budget is None else budget).child()
                outcomes = _outcomes_of(runner, [task for copying in wanted for task in copying.tasks], shared,
                                        wanted[0].observer)
    return ended


def _outcomes_of(executor: Executor, tasks: Sequence[CopyRecords], budget: Budget, observer: Observer,
                 ) -> dict[str, RewriteOutcome]:
    """Run tasks; return an outcome for each, even if the executor raises."""
    found: dict[str, RewriteOutcome] = {}
    try:
        with contextlib.closing(answers_of(executor, tasks, budget=budget, observer=observer)) as outcomes:
            found.update((outcome.task, outcome) for outcome in outcomes)
    except Exception as error:
        # An executor of the host may raise any exception.
        failed = own_error("run the copying", error)
        return {task.name: found.get(task.name, RewriteFailure(task.name, failed)) for task in tasks}
    return found


def require_own(plan: BlobPlan, name: str, log: Log) -> None:
    """Raise `InvalidInput` if a plan is of another store, or drops blobs that can be undeleted."""
    if plan.store != name or plan.incarnation not in (b"", log.descriptor.incarnation):
        another = "" if plan.store != name else ", but another one of this name"
        raise InvalidInput(f"the plan is for store {plan.store!r}, and this is {name!r}{another}")
    latest = log.clock.now() - log.config.deleted_retention_seconds
    if plan.reference_time > max(latest, 0.0):
        raise InvalidInput(f"the plan's reference time {plan.reference_time} is later than {latest}: deletes after "
                           f"that can still be undone; plan with an earlier one, or configure a shorter retention")


def limited(budget: Budget | None, rate: float | None, log: Log) -> Budget:
    """Return the budget, with the configured rate unless it has a rate."""
    given = Budget(clock=log.clock) if budget is None else budget
    if rate is None or given.remaining.bytes_per_second is not None:
        return given
    return given.child(bytes_per_second=rate)
