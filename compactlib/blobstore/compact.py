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
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

import attrs

from compactlib._store_numbers import notify_compaction, notify_levels
from compactlib.blobstore.contents import LogContents, LogSegment
from compactlib.blobstore.copying_task import CopyRecords, check_output
from compactlib.blobstore.errors import PlanDoesNotFit, StoreFull
from compactlib.blobstore.hard_delete import finish_erasures
from compactlib.blobstore.index import IndexPart
from compactlib.blobstore.index_file import part_bytes, write_part
from compactlib.blobstore.log import Log, remove_names, remove_segments
from compactlib.blobstore.names import SegmentName, segment_of_log_file
from compactlib.blobstore.plan import BlobPlan, plan_for
from compactlib.blobstore.records import IndexEntry, milliseconds
from compactlib.blobstore.report import BlobCompactionReport
from compactlib.blobstore.segment import SEGMENT_HEADER_BYTES
from compactlib.blobstore.segment_list import MAX_OUTPUTS, MAX_SOURCES, Output, Step
from compactlib.blobstore.statistics import view_of
from compactlib.blobstore.survivors import Place, Survivors, choose_survivors
from compactlib.blobstore.validity import PurgeRules, Rules, Verdict
from compactlib.blobstore.view import BlobPolicy, BlobView
from compactlib.budget import Budget
from compactlib.errors import (
    BudgetSpent,
    Busy,
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
class _Progress:
    """The progress of one compaction."""

    plan: BlobPlan
    budget: Budget
    observer: Observer
    fence: CommitFence | None
    valid: dict[SegmentName, int]  # bytes to copy of each victim and output
    steps: int = 0
    added: dict[SegmentName, int] = attrs.field(factory=dict)  # outputs, and their bytes on disk
    removed: list[SegmentName] = attrs.field(factory=list)
    records: int = 0
    copied_bytes: int = 0
    written: int = 0
    freed: int = 0
    verdicts: Counter[Verdict] = attrs.field(factory=Counter)
    classes: Counter[int] = attrs.field(factory=Counter)
    left_out: list[SegmentName] = attrs.field(factory=list)
    damage: list[CorruptData] = attrs.field(factory=list)
    failures: dict[str, CompactlibError] = attrs.field(factory=dict)
    why: str = ""
    spent: BudgetSpent | None = None


@attrs.define(eq=False)
class Compactor:
    """Plans and carries out the compactions of one log. One runs at a time, concurrently with reads and writes.

    Attributes:
        log: the log.
        name: the store's name, for messages and events.
        policy: chooses the segments to compact, unless a call gives another policy.
        purge: the rules by which tombstones are removed.
        place: returns the class of a survivor; survivors of one class share outputs.
        observer: the store's observer.
        damaged: segments in which a compaction found damage: they are left out until the store is opened again.
        last_error: the last unexpected exception of an executor, a task or a callback of the host.
        failures: the number of such exceptions.
    """

    _log: Log
    _name: str
    policy: BlobPolicy
    purge: PurgeRules
    _place: Place | None
    _observer: Observer
    damaged: dict[SegmentName, str] = attrs.field(factory=dict, init=False)
    last_error: CompactlibError | None = attrs.field(default=None, init=False)
    failures: int = attrs.field(default=0, init=False)

    def view(self, policy: BlobPolicy | None = None, budget: Budget | None = None) -> BlobView:
        """Return the store as a policy sees it. Reads the whole index once."""
        log = self._log
        found = view_of(log.snapshot(), name=self._name, descriptor=log.descriptor, config=log.config,
                        policy=self.policy if policy is None else policy, now=log.clock.now(),
                        eligible=frozenset(log.eligible()), rules=self.purge, damaged=self.damaged,
                        last_full_ms=log.lists.known.last_full_ms, check=(budget or Budget()).check)
        log.guard.require_open()
        return found

    def plan(self, view: BlobView, policy: BlobPolicy | None = None) -> BlobPlan:
        """Return the plan that a policy chooses of a view; an exception of the policy is raised."""
        return plan_for(view, self.policy if policy is None else policy, self._log.clock.now(),
                        bytes_available=self._room())

    def _room(self) -> int | None:
        return self._log.files.available_bytes(self._log.folder)

    # -- the five steps

    def steps(self, given: BlobPlan | None, policy: BlobPolicy | None, budget: Budget | None, observer: Observer | None,
              fence: CommitFence | None) -> Steps:
        """Compact; the caller runs the tasks that are yielded, and sends their outcomes.

        Args:
            given: the plan to carry out; `None`: the policy's choice.
            policy: replaces the store's policy.
            budget: limits the work.
            observer: notified, in addition to the store's observer.
            fence: entered around each commit.
        """
        log, observers = self._log, Observers(self._observer, observer)
        began, plan = log.clock.monotonic(), given
        run = Run(log.guard, limited(budget, log.config.compaction_bytes_per_second, log))
        try:
            with run.held:
                run.begin("compaction")
                run.budget.check()
                log.remove_leftovers()
                finish_erasures(log)
                while True:
                    if given is None:
                        plan = self._planned(policy, run.budget)                       # sense, plan
                    assert plan is not None
                    done = _Progress(plan, run.budget, observers, fence,
                                     {victim.name: victim.valid_bytes for victim in plan.victims})
                    yield from self._carry_out(done)                                   # rewrite, commit, reclaim
                    in_vain = done.left_out and len(done.removed) <= len(done.added) and plan.benefit_segments > 0
                    if given is not None or not in_vain:
                        break
                    # Without the damaged segments the choice frees nothing: the policy chooses again, without them.
                report = self._report(done, log.clock.monotonic() - began)
        except Exception as error:
            self._report_failure(observers, plan, error, log.clock.monotonic() - began)
            raise
        self._report_end(observers, done, report)
        return report

    def _planned(self, policy: BlobPolicy | None, budget: Budget) -> BlobPlan:
        """Return the policy's plan; for a full round the active segment may be closed first."""
        plan = self.plan(self.view(policy, budget), policy)
        log = self._log
        if plan.kind == "full" and log.config.close_active_segment and log.free_segments:
            with log.guard.lock, contextlib.suppress(StoreFull):
                if log.contents.active.records:
                    log.roll()
            plan = self.plan(self.view(policy, budget), policy)
        return plan

    def _carry_out(self, done: _Progress) -> Generator[Copying, Outcomes, None]:
        """Carry out a plan step by step; a failed step, or damage in a victim, does not stop the other steps."""
        log, plan = self._log, done.plan
        eligible = frozenset(log.eligible())
        for name in plan.names:
            if name not in eligible:
                why = "is active or in the journal" if log.contents.has(name) else "is not in the log"
                raise PlanDoesNotFit(f"segment {name} of the plan for store {self._name} {why}; make a new plan")
        done.why = plan.why if plan.is_empty else self._lack_of_room(plan.bytes_needed)
        waiting, carried, restarts = list(plan.names), None, 0
        while waiting and not done.why:
            try:
                survivors = yield from self._step(done, waiting, carried)
            except _Damaged as damaged:
                self._leave_out(damaged, done)
                waiting = [name for name in waiting if name != damaged.segment]
                carried = None if carried == damaged.segment else carried
            except _StepFailed as failed:
                done.failures[f"the step of segments {', '.join(map(str, sorted(failed.sources)))}"] = failed.error
                waiting, carried = [name for name in waiting if name not in failed.sources], None
            except BudgetSpent as error:
                done.spent, done.why = self._named(error, done.valid.get(waiting[0], 0), done.budget), str(error)
            except Closed:
                raise
            except CompactlibError as error:
                done.failures[f"the step of segments {waiting[0]} and others"] = error
                break
            else:
                if survivors is None:
                    restarts += 1
                    if restarts > MAX_RESTARTS:
                        done.failures[self._name] = Conflict(
                            f"blobs of {self._name} were revived while they were being dropped, {restarts} times in a "
                            f"row; compact again later")
                        break
                    continue
                restarts, carried = 0, None
                waiting = [name for name in waiting if name not in survivors.sources]
                last = survivors.outputs[-1] if survivors.outputs else None
                if last is not None and last.end < log.descriptor.segment_bytes:
                    carried = last.name
                    done.valid[carried] = last.end - SEGMENT_HEADER_BYTES

    def _step(self, done: _Progress, waiting: Sequence[SegmentName], carried: SegmentName | None,
              ) -> Generator[Copying, Outcomes, Survivors | None]:
        """Carry out one step; return `None` if it was not committed: a drop was revived, or the disk lacks room."""
        log, budget = self._log, done.budget
        budget.check()
        survivors = self._choose(done, waiting, carried)
        done.why = self._lack_of_room(sum(output.end for output in survivors.outputs))
        if done.why:
            return None
        tasks = [CopyRecords(name=f"{log.folder} {output.name}", folder=log.folder, picked=output.picked,
                             header=log.descriptor.header(output.name), files=log.files)
                 for output in survivors.outputs]
        outcomes = (yield Copying(tasks, budget, done.observer)) if tasks else {}
        files = self._checked(survivors, [outcomes[task.name] for task in tasks], budget)
        try:
            published = self._publish(survivors, files, budget)
            is_committed = self._commit(survivors, published, done, is_last=set(waiting).issubset(survivors.sources))
        except BaseException:
            self._withdraw(survivors)
            raise
        if not is_committed:
            self._withdraw(survivors)
            return None
        self._reclaim(survivors, published, done)
        return survivors

    def _lack_of_room(self, needed: int) -> str:
        """Return a message if the disk has no room for `needed` bytes; empty if it has."""
        room = self._room()
        if room is None or needed <= room:
            return ""
        return (f"the compaction of store {self._name} needs {needed:,} bytes of room on the disk before it frees any, "
                f"and {room:,} are available in {self._log.folder}; free some")

    def _named(self, error: BudgetSpent, least: int, budget: Budget) -> BudgetSpent:
        """Return the error; if the total is smaller than one step, with the bytes that a step needs."""
        if error.reason != "bytes" or budget.remaining.total_bytes is None:
            return error
        return BudgetSpent(f"{error}; a step of the compaction of store {self._name} is committed all at once: give at "
                           f"least {error.spent_bytes + least}",
                           reason="bytes", spent_bytes=error.spent_bytes, needed_bytes=error.spent_bytes + least)

    def _choose(self, done: _Progress, waiting: Sequence[SegmentName], carried: SegmentName | None) -> Survivors:
        """Choose the next step: sources for as many outputs as the disk has room for, at least one new source."""
        log, room, most = self._log, self._room(), MAX_OUTPUTS
        if room is not None:
            most = max(1, min(most, room // log.descriptor.segment_bytes))
        snapshot = log.snapshot()
        log.sync()
        limit = most * (log.descriptor.segment_bytes - SEGMENT_HEADER_BYTES)
        total = done.budget.remaining.total_bytes
        if total is not None:
            limit = min(limit, total)
        count, size = 0, 0 if carried is None else done.valid[carried]
        for name in waiting[:MAX_SOURCES - 1]:
            size += done.valid[name]
            if count and size > limit:
                break
            count += 1
        while True:
            found = choose_survivors(snapshot, [*([] if carried is None else [carried]), *waiting[:count]],
                                     self._rules(done.plan), segment_bytes=log.descriptor.segment_bytes,
                                     place=self._place, check=done.budget.check,
                                     retention_ms=milliseconds(log.config.deleted_retention_seconds))
            if len(found.outputs) <= most:
                return found
            if count > 1:
                count = max(1, min(count - 1, count * most // len(found.outputs)))
            else:
                # The part-filled output is no source of this step, and stays.
                carried = None

    def _rules(self, plan: BlobPlan) -> Rules:
        now = self._log.clock.now()
        # The plan's time, unless the store was opened with a longer retention after that.
        latest = max(now - self._log.config.deleted_retention_seconds, 0.0)
        return Rules(reference_ms=milliseconds(min(plan.reference_time, latest)), purge=self.purge,
                     now_ms=milliseconds(now if plan.expires_before is None else max(now, plan.expires_before)))

    # -- checking and publishing the outputs

    def _checked(self, survivors: Survivors, outcomes: Sequence[RewriteOutcome], budget: Budget) -> list[str]:
        """Check the files that the tasks wrote, perhaps in another process; return the file of each output."""
        log, failures, files = self._log, list[CompactlibError](), list[str]()
        for output, outcome in zip(survivors.outputs, outcomes, strict=True):
            try:
                if isinstance(outcome, RewriteFailure):
                    raise outcome.error
                files.append(outcome.files[0].path)
                check_output(files[-1], log.descriptor.header(output.name), output.written, budget.check)
            except CompactlibError as error:
                failures.append(error)
        if not failures:
            return files
        remove_names(log.files, log.folder, map(os.path.basename, files))
        for failure in failures:
            if isinstance(failure, CorruptData):
                segment = segment_of_log_file(os.path.basename(failure.path))
                if segment is not None and segment in survivors.sources:
                    raise _Damaged(segment, failure)
        for failure in failures:
            self._note(failure)
            if isinstance(failure, BudgetSpent | StorageError):
                raise failure
        raise _StepFailed(failures[0], survivors.sources)

    def _publish(self, survivors: Survivors, files: Sequence[str], budget: Budget) -> list[LogSegment]:
        """Rename the outputs, durably, and write their indexes, not durably; the list does not name them yet."""
        log = self._log
        contents, published = log.contents, list[LogSegment]()
        for output, file in zip(survivors.outputs, files, strict=True):
            taken = ((part, rows) for picked in output.picked if (source := contents.segment(picked.segment))
                     for part in source.parts if (rows := part.rows_at(picked.offsets)))
            index = IndexPart.moved(output.name, taken, budget.check)
            assert index.end == output.end, "the index has each record that the output gets"
            remove_names(log.files, log.folder, [output.name.index_file])
            write_part(log.files, log.folder, index, log.descriptor.incarnation)
            log.files.rename(file, os.path.join(log.folder, output.name.log_file))
            published.append(LogSegment(output.name, (index,)))
        if published:
            log.files.sync_folder(log.folder)
        log.lists.make_ready()
        return published

    def _withdraw(self, survivors: Survivors) -> None:
        """Remove outputs that were not committed; if the store has closed itself, opening decides about them."""
        if self._log.guard.is_open:
            with contextlib.suppress(StorageError):
                remove_segments(self._log.files, self._log.folder, [output.name for output in survivors.outputs])

    # -- the commit, and what follows

    def _commit(self, survivors: Survivors, published: Sequence[LogSegment], done: _Progress, *, is_last: bool) -> bool:
        """Replace the sources by the outputs; return `False` if a dropped record was revived in the meantime."""
        log = self._log
        step = Step(survivors.sources, tuple(Output(output.name, output.end, output.records)
                                             for output in survivors.outputs))
        # Most of the new records are read here, before writers have to wait.
        before = log.snapshot()
        if survivors.are_hit_by(_newer(before, survivors.last_sequence), before):
            return False
        last_full_ms = milliseconds(log.clock.now()) if is_last and done.plan.kind == "full" else None
        with contextlib.nullcontext() if done.fence is None else done.fence.guard(), log.guard.lock:
            now = log.snapshot()
            if survivors.are_hit_by(_newer(now, before.last_sequence), now):
                return False
            log.switch(step, published, last_full_ms)
            return True

    def _reclaim(self, survivors: Survivors, published: Sequence[LogSegment], done: _Progress) -> None:
        """Remove the sources, count the step and notify the observer. Readers with an open source keep its bytes."""
        log = self._log
        disk = {segment.name: segment.end + sum(map(part_bytes, segment.parts)) for segment in published}
        done.steps += 1
        done.copied_bytes += survivors.copied_bytes
        done.records += sum(output.records for output in survivors.outputs)
        done.written += sum(disk.values())
        done.verdicts += survivors.verdicts
        done.classes.update(survivors.classes)
        for name in survivors.sources:
            if done.added.pop(name, None) is None:
                done.removed.append(name)
        done.added.update(disk)
        done.freed -= sum(disk.values())
        fields = {"store": self._name}
        done.observer.event("blobstore_positions_moved", **fields, removed=[str(name) for name in survivors.sources],
                            copied_bytes=survivors.copied_bytes,
                            added=[str(output.name) for output in survivors.outputs])
        for verdict, event in ((Verdict.EXPIRED, "blobstore_expired_gone"), (Verdict.DELETED, "blobstore_deleted_gone"),
                               (Verdict.PURGED, "blobstore_tombstones_gone")):
            if survivors.verdicts[verdict]:
                done.observer.event(event, **fields, records=survivors.verdicts[verdict])
        done.freed += remove_segments(log.files, log.folder, survivors.sources)

    def _leave_out(self, damaged: _Damaged, done: _Progress) -> None:
        """Leave out a segment with a damaged record: it stays unchanged, with all its records."""
        error = damaged.error.with_traceback(None)
        self.damaged[damaged.segment] = f"left out for damage until the store is opened again: {error}"
        done.left_out.append(damaged.segment)
        done.damage.append(error)
        done.observer.event("blobstore_damage_found", store=self._name, segment=str(damaged.segment), error=str(error))

    # -- the end

    def _report(self, done: _Progress, seconds: float) -> BlobCompactionReport:
        """Return the report, or raise if a step failed or nothing could be done."""
        report = BlobCompactionReport(
            store=self._name, victims=done.plan.names, sources=tuple(done.removed), targets=tuple(done.added),
            steps=done.steps, copied_records=done.records, copied_bytes=done.copied_bytes, bytes_written=done.written,
            bytes_freed=done.freed, verdicts=done.verdicts, classes=done.classes, left_out=tuple(done.left_out),
            damage=tuple(done.damage), seconds=seconds, why=done.why, is_partial=bool(done.why and done.steps))
        if done.failures:
            if not done.steps and len(done.failures) == 1:
                raise next(iter(done.failures.values()))
            raise CompactionFailed(report=report, failures=done.failures)
        if not done.steps and done.spent is not None:
            raise done.spent
        if not done.steps and done.damage:
            # Damage is the only reason that nothing was committed.
            raise done.damage[0]
        return report

    def _note(self, error: CompactlibError) -> None:
        if isinstance(error, TaskFailed):
            self.last_error = error
            self.failures += 1

    def _report_end(self, observers: Observer, done: _Progress, report: BlobCompactionReport) -> None:
        if not report.is_empty:
            observers.event("blobstore_compaction_done", store=self._name, victims=list(map(str, report.victims)),
                            freed_segments=report.freed_segments, copied_bytes=report.copied_bytes)
        outcome, reason = ("skipped", "nothing") if report.is_empty else ("done", done.plan.policy.name)
        notify_compaction(observers, "blobstore", self._name, outcome, reason, report.seconds, **_moved(report))
        self._report_levels(observers, done.plan)

    def _report_failure(self, observers: Observer, plan: BlobPlan | None, error: Exception, seconds: float) -> None:
        if isinstance(error, Busy) and not isinstance(error, BudgetSpent):
            notify_compaction(observers, "blobstore", self._name, "skipped", "busy", seconds)
            return
        known = own_error(f"compact {self._name}", error)
        if not isinstance(error, CompactlibError):
            self._note(known)
        observers.event("blobstore_compaction_failed", store=self._name, error=str(known))
        report = error.report if isinstance(error, CompactionFailed) else None
        notify_compaction(observers, "blobstore", self._name, "failed", type(error).__name__, seconds,
                          **{} if report is None else _moved(report))
        if plan is not None and self._log.guard.is_open:
            self._report_levels(observers, plan)

    def _report_levels(self, observers: Observer, plan: BlobPlan) -> None:
        """Report the live and dead bytes that the plan has counted."""
        log = self._log
        there = {segment.name: segment for segment in log.contents.segments}
        seen = [*plan.victims, *plan.left]
        dead = {each.name: each.dead_bytes for each in seen if each.name in there}
        notify_levels(
            observers, "blobstore", self._name,
            live_bytes=sum(each.valid_bytes for each in seen), dead_bytes=sum(dead.values()),
            free_bytes=log.descriptor.capacity_bytes - log.used_bytes,
            capacity_bytes=log.descriptor.capacity_bytes,
            oldest_unreclaimed_seconds=min((there[name].last_modified_ms / 1000 for name, size in dead.items() if size),
                                           default=None))


def run_many(every: Mapping[str, Steps], executor: Executor, budget: Budget | None,
             ) -> dict[str, BlobCompactionReport | CompactlibError]:
    """Carry out compactions, the next step of all in one run of an executor; each compaction commits its own step.

    Args:
        every: the compactions, by name.
        executor: runs the copying.
        budget: limits them together; `None`: the budget of a single compaction counts.

    Returns:
        The report or the error of each, in the order in which they ended.
    """
    ended: dict[str, BlobCompactionReport | CompactlibError] = {}
    with contextlib.ExitStack() as stack:
        for steps in every.values():
            stack.callback(steps.close)
        active: dict[str, Copying | None] = dict.fromkeys(every)
        outcomes: dict[str, RewriteOutcome] = {}
        while active:
            for name in list(active):
                copying = active[name]
                try:
                    active[name] = next(every[name]) if copying is None else every[name].send(
                        {task.name: outcomes[task.name] for task in copying.tasks})
                except StopIteration as end:
                    ended[name] = end.value
                    del active[name]
                except CompactlibError as error:
                    ended[name] = error
                    del active[name]
            wanted = [copying for copying in active.values() if copying is not None]
            if wanted:
                is_alone = budget is None and len(every) == 1
                shared = wanted[0].budget if is_alone else (Budget() if budget is None else budget).child()
                outcomes = outcomes_of(executor, [task for copying in wanted for task in copying.tasks], shared,
                                       wanted[0].observer)
    return ended


def outcomes_of(executor: Executor, tasks: Sequence[CopyRecords], budget: Budget, observer: Observer,
                ) -> dict[str, RewriteOutcome]:
    """Run tasks; return an outcome for each, even if the executor raises."""
    found: dict[str, RewriteOutcome] = {}
    try:
        with contextlib.closing(answers_of(executor, tasks, budget=budget, observer=observer)) as outcomes:
            for outcome in outcomes:
                found[outcome.task] = outcome
    except Exception as error:
        # An executor of the host may raise any exception.
        failed = own_error("run the copying", error)
        return {task.name: found.get(task.name, RewriteFailure(task.name, failed)) for task in tasks}
    return found


def local_executor(log: Log) -> Executor:
    """Return the executor that runs the copying in this thread."""
    return LocalExecutor(clock=log.clock)


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


class _Damaged(Exception):
    """A record of a source is damaged."""

    def __init__(self, segment: SegmentName, error: CorruptData) -> None:
        super().__init__(str(error))
        self.segment = segment
        self.error = error


class _StepFailed(Exception):
    """A task of a step failed; the other steps are carried out."""

    def __init__(self, error: CompactlibError, sources: Sequence[SegmentName]) -> None:
        super().__init__(str(error))
        self.error = error
        self.sources = sources


def _newer(snapshot: LogContents, sequence: int) -> Iterator[IndexEntry]:
    """Yield the entries newer than a record: the last segments, since only this compaction moves records."""
    for segment in reversed(snapshot.segments):
        if segment.records and segment.last_sequence <= sequence:
            break
        yield from (entry for entry in segment.entries() if entry.sequence > sequence)


def _moved(report: BlobCompactionReport) -> dict[str, int]:
    return {"read": report.copied_bytes, "copied": report.bytes_written, "freed": report.bytes_freed}

