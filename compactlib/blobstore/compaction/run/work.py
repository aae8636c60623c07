# SPDX-License-Identifier: Apache-2.0
"""One compaction in progress: decides a cycle, hands out what is to be copied, and commits it.

A cycle that was interrupted while copying is decided anew, since deletes and expiry go on, and the retention may
have become longer; new segments that are whole are used again if they are what it would write now.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, takewhile
from typing import TypeAlias

import attrs

from compactlib.blobstore.compaction.commit.publish import (
    bytes_of,
    check_names_are_free,
    files_of,
    place_targets,
    private_name,
    remove_names,
    remove_sources,
)
from compactlib.blobstore.compaction.commit.recover import leftovers
from compactlib.blobstore.compaction.progress.compaction_file import CompactionFile
from compactlib.blobstore.compaction.progress.compaction_log import CompactionLog, Phase, Target
from compactlib.blobstore.compaction.rewrite.cycle_plan import CyclePlan, TargetPlan, plan_cycle
from compactlib.blobstore.compaction.rewrite.task import CopyRecords, SourceRecords
from compactlib.blobstore.compaction.run.events import DAMAGE_FOUND, StoreEvents
from compactlib.blobstore.compaction.swap import CompactableStore
from compactlib.blobstore.config import BlobStoreConfig
from compactlib.blobstore.errors import PlanDoesNotFit
from compactlib.blobstore.index.entry_columns import EntryColumns
from compactlib.blobstore.index.index_file import encode_index
from compactlib.blobstore.index.index_segment import IndexSegment
from compactlib.blobstore.model.names import LOG_SUFFIX, UNPUBLISHED_SUFFIX, SegmentName, segment_of_log_file
from compactlib.blobstore.model.pace import Pace
from compactlib.blobstore.model.placement import Survivor, class_of, needs_history
from compactlib.blobstore.model.values import IndexEntry, RecordKind, milliseconds
from compactlib.blobstore.segment.reader import SEGMENT_HEADER_BYTES
from compactlib.blobstore.validity.verdicts import FOREVER, BlobEnd, DroppedPuts, PurgeRules, Rules, Verdict, nobody
from compactlib.errors import CompactlibError, Conflict, CorruptData, InvalidInput, StorageError
from compactlib.files.disk import list_folder, look_at
from compactlib.rewrite import Attempt, RewriteFailure, RewriteOutcome, RewriteResult
from compactlib.runtime.breather import Breather
from compactlib.runtime.budget import Budget
from compactlib.runtime.observe import Observer

Question: TypeAlias = Callable[[IndexEntry], bool]

_MAX_RESTARTS = 3
_LARGEST_READ = 4 << 20
_LEAST_READ = 64 << 10
_PIECE_ROWS = 32
"""How many index entries are moved at a stretch."""
GIVES_UP = "compaction"
"""In whose name a compaction gives contents up."""
_KEPT_SUFFIX = ".kept" + UNPUBLISHED_SUFFIX


@attrs.frozen(kw_only=True)
class Questions:
    """What a compaction asks its host; see `PurgeRules`.

    Attributes:
        seen_by_all_peers: whether every peer that counts has read a tombstone.

    Raises:
        InvalidInput: one cannot be called.
    """

    seen_by_all_peers: Question = nobody

    def __attrs_post_init__(self) -> None:
        if not callable(self.seen_by_all_peers):
            raise InvalidInput(f"seen_by_all_peers is {self.seen_by_all_peers!r:.100}; give a function of a record's "
                               f"index entry")

    def purge_rules(self, config: BlobStoreConfig, *, had_put: Question = nobody) -> PurgeRules:
        """What compactions of a store with this configuration may purge besides what is deleted or has expired.

        The statistics are made by the same: if they called dead what a compaction keeps, its plans would free nothing.
        """
        return PurgeRules(purge_tombstones=config.purge_tombstones, seen_by_all_peers=self.seen_by_all_peers,
                          had_put=had_put)


class CompactionWork:
    """A compaction of one store from its first step to its last. Used by the store's owner.

    Args:
        store: the store.
        file: where each step is noted.
        log: how far it has come, as on the disk.
        questions: asked of the host.
        events: notified of each event.
        resumed: whether an earlier run had begun it.

    Attributes:
        is_unsure: whether the disk refused the step that commits, so that it may have taken it all the same.
        expires_before_ms: blobs that expire before it count as expired. It is not noted: whoever finishes the
            compaction after a crash drops what has expired by then, and keeps the rest.
    """

    def __init__(self, store: CompactableStore, file: CompactionFile, log: CompactionLog, questions: Questions,
                 events: StoreEvents, *, resumed: bool) -> None:
        self.log: CompactionLog = log
        self.file: CompactionFile = file
        self.resumed: bool = resumed
        self.verdicts: Counter[Verdict] = Counter()
        self.classes: Counter[int] = Counter()
        self.copied_records: int = 0
        self.bytes_written: int = 0
        self.bytes_freed: int = 0
        self.damage: list[CorruptData] = []
        self.questions: Questions = questions
        self.events: StoreEvents = events
        self.is_unsure: bool = False
        self._store = store
        self._files = store.files
        self._folder = store.folder
        self.expires_before_ms: int = 0
        self._dropped_puts = DroppedPuts(store.incarnation, complete=not resumed)
        self._plan: CyclePlan | None = None
        self._ready: dict[SegmentName, Target] = {}
        self._failures: list[CompactlibError] = []
        self._restarts = 0
        # Whether attempts may have left files: so it is until a cycle has come to its end. What unrelated programs
        # leave later goes when the compaction does.
        self._has_leftovers = True
        # The names of the victims' files, listed once: a folder of many segments is long.
        self._files_of_victims: dict[SegmentName, list[str]] | None = None

    def next_tasks(self, *, kept: bool, rate_is_given: bool = False,
                   budget: Budget | None = None) -> list[CopyRecords]:
        """What there is to copy for the cycle under way, which is decided first; nothing in COMMIT and CLEANUP.

        Args:
            kept: whether attempts die with this process, so that a later one may go on with their files.
            rate_is_given: whether the caller has a budget of its own: then the configured rate is that of a slow disk.
            budget: asked while the cycle is decided.

        A segment with a record that cannot be beside another one is left out, as one with a damaged record is.

        Raises:
            PlanDoesNotFit: victims are gone, because the log has lost steps; give the compaction up.
            BudgetSpent: the budget ended while the cycle was decided; call again.
            StorageError: the disk refused; call again.
        """
        self._store.require_mine()
        self._failures.clear()
        if self.is_unsure:
            # Before the contents are no longer given up: a crash must not find the commit afterwards.
            self._write_log()
            self.is_unsure = False
        plan = None
        while plan is None and self.log.phase in (Phase.PREPARE, Phase.COPY):
            try:
                plan = self._decided(budget)
            except CorruptData as error:
                self._leave_out(error)
        if plan is None:
            return []
        done = {target.name for target in self.log.cycles[-1].targets}
        halves = self._half_written() if kept and self._has_leftovers else {}
        self._has_leftovers = True
        # How much is read at once follows from the rate that limits it.
        pace = self._store.config.pace
        rate = None if pace is None else pace.limit
        if rate_is_given and budget is not None:
            rate = budget.remaining.bytes_per_second
        return [self._task(target, kept, halves.get(target.name), rate, self._pace(rate_is_given))
                for target in plan.targets if target.name not in done]

    def take(self, outcome: RewriteOutcome, *, budget: Budget | None = None) -> None:
        """Note what a task ended in; a new segment that is whole moves the safe point on.

        Args:
            outcome: the task's.
            budget: asked while the new segment's index is built.

        Raises:
            Conflict: the file is not what this compaction asked for.
            BudgetSpent: the budget ended; what was copied is used when it is resumed.
            StorageError: the disk refused; call `next_tasks` again.
        """
        if isinstance(outcome, RewriteFailure):
            self._failures.append(outcome.error)
        else:
            self._note(outcome, budget)

    def may_commit(self, *, budget: Budget | None = None) -> bool:
        """When all tasks have ended: whether the cycle may be committed now, or has to be decided anew.

        Each new segment is read back first. A record that turned out to be damaged in a source keeps its whole segment
        where it is; the cycle is decided anew without.

        Args:
            budget: asked while the new segments are read, and while it is looked for blobs that have come back.

        Raises:
            CorruptData: a new segment is not what was copied: it is written anew. Go on with `next_tasks`.
            CompactlibError: what a task failed with. Go on with `next_tasks`.
        """
        failures, self._failures = self._failures, []
        self._store.require_mine()
        if self.log.phase is not Phase.COPY:
            return True
        damaged = next((error for error in failures if isinstance(error, CorruptData)), None)
        if damaged is not None:
            self._leave_out(damaged)
            return False
        if failures:
            raise failures[0]
        self._require_all_copied()
        self._check_outputs(budget)
        plan = self._planned()
        sources = {*plan.sources, *(() if plan.partial is None else (plan.partial.segment,))}
        # What comes back from now on comes with its content.
        self._store.give_up(GIVES_UP, lambda put: put.segment in sources and not plan.copies(put))
        if self._has_come_back(self._breather(budget)):
            self._store.give_up(GIVES_UP, None)
            self._restart()
            return False
        return True

    def finish_cycle(self) -> None:
        """Commit, and clean up; asks no budget, since little is left to do.

        Raises:
            CompactlibError: what a step failed with. Go on with `next_tasks`.
        """
        if self.log.phase is Phase.COPY:
            self._start_commit()
        if self.log.phase is Phase.COMMIT:
            self._put_in_force()
        if self.log.phase is Phase.CLEANUP:
            self._clean_up()

    # -- deciding

    def _decided(self, budget: Budget | None) -> CyclePlan:
        """The plan of the cycle under way; the log is in COPY afterwards."""
        base = self.log.restart_copy() if self.log.phase is Phase.COPY else self.log
        self._store.give_up(GIVES_UP, None)
        now = self._store.clock.now()
        config = self._store.config
        snapshot = self._store.snapshot()
        # What a crash may take must not be why an older record goes.
        self._store.make_durable()
        if self._files_of_victims is None:
            # Once: nothing but this compaction removes segments.
            unknown = next((name for name in sorted(base.remaining) if not snapshot.has(name)), None)
            if unknown is not None:
                raise PlanDoesNotFit(f"segment {unknown} of compaction {base.number} of store {self._store.name} is "
                                     f"not in the log any more; give it up with drop_compaction(), and plan anew")
        plan = plan_cycle(
            snapshot, base.remaining, base.turns, base.copied_before, self._rules(now),
            swap_segments=base.swap_segments, segment_bytes=self._store.segment_bytes,
            header_bytes=SEGMENT_HEADER_BYTES,
            dropped_put=self._dropped_puts.note if config.purge_tombstones else None,
            classify=None if config.placement is None else self._class_of, breather=self._breather(budget))
        if self.log.phase is Phase.PREPARE or not _is_begun(self.log, plan):
            self.log = base.start_copy(plan.sources, plan.partial, tuple(each.name for each in plan.targets),
                                       milliseconds(now))
            self._write_log()
        if self._has_leftovers:
            # The indexes, too, of segments that were to hold something else.
            remove_names(self._files, self._folder, tuple(leftovers(self._folder, self.log)))
        self._ready.clear()
        self._plan = plan
        return plan

    def _class_of(self, entry: IndexEntry, history: Sequence[IndexEntry]) -> int:
        """As of the compaction's beginning, so that each of its cycles says the same."""
        placement, until, earlier = self._store.config.placement, FOREVER, list[int]()
        assert placement is not None, "only with a placement are records placed"
        if entry.kind == RecordKind.PUT:
            end = BlobEnd.of(history)
            until = min(end.expires_ms, end.deleted_ms + milliseconds(self._store.config.deleted_retention_seconds))
            if needs_history(placement):
                earlier = [each.op_time_ms for each in history
                           if each.kind == RecordKind.PUT and each.sequence < entry.sequence]
        record = Survivor(entry.op_time_ms, until, entry.size, entry.segment.generation, earlier)
        return class_of(placement, record, self.log.started_ms)

    def _rules(self, now: float) -> Rules:
        config = self._store.config
        purge = self.questions.purge_rules(config, had_put=self._dropped_puts.had_put)
        # The plan's, unless the store was opened with a longer retention since.
        latest_ms = milliseconds(max(now - config.deleted_retention_seconds, 0.0))
        return Rules(reference_ms=min(self.log.reference_ms, latest_ms),
                     now_ms=max(milliseconds(now), self.expires_before_ms), purge=purge)

    def _pace(self, rate_is_given: bool) -> Pace | None:
        pace = self._store.config.pace
        if pace is None or not pace.may_fall:
            return None
        return attrs.evolve(pace, only_if_slow=pace.only_if_slow or rate_is_given)

    def _task(self, target: TargetPlan, kept: bool, half_written: str | None, rate: float | None,
              pace: Pace | None) -> CopyRecords:
        size = min(self._store.config.compaction_buffer_bytes, _LARGEST_READ)
        if rate is not None:
            size = min(size, max(int(rate / 4), _LEAST_READ))
        return CopyRecords(
            name=self._task_name(target.name), folder=self._folder, header=self._store.segment_header(target.name),
            sources=tuple(map(SourceRecords.of, target.picked)), buffer_bytes=size, kept=kept,
            resume_from=half_written, pace=pace, files=self._files)

    def _task_name(self, target: SegmentName) -> str:
        return f"{self._folder} {target}"

    def _half_written(self) -> dict[SegmentName, str]:
        """For each new segment, the longest file that an attempt of this process, or of one before it, left."""
        longest: dict[SegmentName, tuple[int, str]] = {}
        for name in list_folder(self._folder):
            owner = segment_of_log_file(name.partition(".")[0] + LOG_SUFFIX) if name.endswith(_KEPT_SUFFIX) else None
            if owner is not None:
                path = os.path.join(self._folder, name)
                found = look_at(path)
                if found is not None:  # else its attempt has just ended
                    longest[owner] = max(longest.get(owner, (0, "")), (found.st_size, path))
        return {owner: path for owner, (_, path) in longest.items()}

    # -- taking what was copied

    def _note(self, result: RewriteResult, budget: Budget | None) -> None:
        self._store.require_mine()
        file = result.files[0]
        target = next((each for each in self._planned().targets if self._task_name(each.name) == result.task), None)
        if target is None or (file.size_bytes, file.entries) != (target.end, target.records):
            raise Conflict(f"{file.path} holds {file.entries} records up to {file.size_bytes}, which is not what this "
                           f"compaction asked for; compact again, which decides anew")
        # The index first: if the budget ends in between, what was copied is still there to go on with.
        starts = tuple(self._write_index_files(target, self._breather(budget)))
        self._files.rename(file.path, os.path.join(self._folder, private_name(target.name)))
        self.copied_records += target.records
        self._ready[target.name] = Target(target.name, target.end, target.records, target.fingerprint, starts)
        # Noted in the order of the plan, whatever the order in which they come.
        cycle = self.log.cycles[-1]
        for name in cycle.planned[len(cycle.targets):]:
            if name not in self._ready:
                break
            self.log = self.log.copied(self._ready.pop(name))
        if len(cycle.targets) < len(self.log.cycles[-1].targets) < len(cycle.planned):
            # The safe point. After the last one, the commit says the same.
            self._files.sync_folder(self._folder)
            self._write_log()

    def _write_index_files(self, target: TargetPlan, breather: Breather) -> Iterator[int]:
        snapshot = self._store.snapshot()
        most = self._store.config.index_max_entries
        moved = _Moved(target.name, SEGMENT_HEADER_BYTES)
        for part in target.picked:
            for index in snapshot.sealed_parts(part.segment):
                rows = index.rows_at(part.offsets)
                breather.breathe()
                hashes = index.hash_of_rows() if rows else ()
                while rows:
                    if len(moved.hashes) == most:
                        yield self._write_index(moved, breather)
                        moved = _Moved(target.name, moved.end)
                    piece = rows[:min(_PIECE_ROWS, most - len(moved.hashes))]
                    moved.take(index, piece, hashes)
                    rows = rows[len(piece):]
                    breather.breathe(len(piece))
        assert moved.end == target.end, "the index has each record that the segment gets"
        yield self._write_index(moved, breather)

    def _write_index(self, moved: _Moved, breather: Breather) -> int:
        """Durable with the next sync of the folder; it is not read before the commit."""
        index = moved.sealed()
        breather.breathe()
        index.audit()
        breather.breathe()
        data = encode_index(index, self._store.incarnation)
        path = os.path.join(self._folder, index.segment.index_file(index.start))
        if look_at(path) is not None:
            self._files.unlink(path)
        with contextlib.closing(self._files.create(path)) as out:
            out.write_at(0, [data])
            out.sync()
        return index.start

    def _leave_out(self, error: CorruptData) -> None:
        """Go on without the segment that holds a damaged record."""
        segment = segment_of_log_file(os.path.basename(error.path))
        base = self.log.restart_copy() if self.log.phase is Phase.COPY else self.log
        if segment is None or segment not in base.remaining:
            raise error
        self.damage.append(error.with_traceback(None))
        self.events.tell(DAMAGE_FOUND, segment=str(segment), error=str(error))
        self.log = base.leave_out(segment)
        self._write_log()

    def _require_all_copied(self) -> None:
        cycle = self.log.cycles[-1]
        missing = [str(name) for name in cycle.planned[len(cycle.targets):]]
        if missing:
            raise Conflict(f"nothing reported what became of copying segments {', '.join(missing)} of store "
                           f"{self._store.name}: an executor answers for each task; the next compaction goes on")

    def _check_outputs(self, budget: Budget | None) -> None:
        """Before the sources go: what is to take their place is read from the disk, and is what was asked for."""
        store = self._store
        attempt = Attempt("check", Budget(clock=store.clock) if budget is None else budget, Observer(), store.clock)
        for target in self._planned().targets:
            path = os.path.join(self._folder, private_name(target.name))
            try:
                self._task(target, False, None, None, None).check(path, attempt)
            except (CorruptData, StorageError) as error:
                # No later call uses it.
                self.log = self.log.restart_copy()
                self._write_log()
                if isinstance(error, StorageError):
                    raise
                raise CorruptData(path=path, offset=error.offset, expected=error.expected, found=f"{error.found} in a "
                                  f"new copy, which does not count: all sources stay as they are, compact again"
                                  ) from error

    def _restart(self) -> None:
        self._restarts += 1
        if self._restarts > _MAX_RESTARTS:
            raise Conflict(f"blobs of {self._store.name} came back to life while they were being dropped, "
                           f"{_MAX_RESTARTS} times in a row; compact again later")
        self.log = self.log.restart_copy()
        self._write_log()

    def _has_come_back(self, breather: Breather) -> bool:
        """Whether a blob that this cycle drops was undeleted or made permanent after the cycle was decided.

        The store refuses both for what is gone by its clock; a clock that was set back is what this is for.
        """
        plan = self._planned()
        snapshot = self._store.snapshot()
        sources = {*plan.sources, *(() if plan.partial is None else (plan.partial.segment,))}
        if snapshot.last_sequence == plan.last_sequence:
            return False
        # What is newer lies at the end of the log, for nothing else moves records meanwhile.
        newer = takewhile(lambda info: info.last_sequence > plan.last_sequence or not info.last_sequence,
                          reversed(snapshot.segments))
        for info in newer:
            for entry in snapshot.entries_of(info.name):
                breather.breathe()
                if (entry.sequence > plan.last_sequence and entry.kind in (RecordKind.UNDELETE, RecordKind.TTL_UPDATE)
                        and (put := BlobEnd.of(snapshot.history(entry.id)).put) is not None
                        and put.segment in sources and not plan.copies(put)):
                    return True
        return False

    # -- committing

    def _start_commit(self) -> None:
        plan = self._planned()
        self._store.require_mine()
        check_names_are_free(self._folder, (target.name for target in plan.targets))
        # The names of the new segments, which the log is about to rely on.
        self._files.sync_folder(self._folder)
        committed = self.log.start_commit(plan.copied_bytes, milliseconds(self._store.clock.now()))
        # If this is refused, the log on the disk may say either; nothing has its name yet, so that both are true.
        self.is_unsure = True
        self.file.write(committed)
        self.is_unsure = False
        self.log = committed
        self.verdicts += plan.verdicts
        self.classes.update(plan.classes)

    def _put_in_force(self) -> None:
        cycle = self.log.cycles[-1]
        place_targets(self._files, self._folder, cycle)
        index_starts = {target.name: target.index_starts for target in cycle.targets}
        has = self._store.snapshot().has
        if not all(map(has, index_starts)) or any(map(has, cycle.sources)):
            self._store.swap_segments(cycle.sources, tuple(index_starts), index_starts)
        self._store.give_up(GIVES_UP, None)
        # The names, before anything says that the sources are no longer needed.
        self._files.sync_folder(self._folder)
        self.log = self.log.start_cleanup(milliseconds(self._store.clock.now()))
        self._write_log()

    def _clean_up(self) -> None:
        cycle = self.log.cycles[-1]
        if self._files_of_victims is None:
            self._files_of_victims = files_of(self._folder, self.log.victims)
        gone = [self._files_of_victims.get(source, []) for source in cycle.sources]
        before = bytes_of(self._folder, chain.from_iterable(gone))
        written = bytes_of(self._folder, [name for target in cycle.targets for name in (
            target.name.log_file, *map(target.name.index_file, target.index_starts))])
        freed = before - written
        # Readers that still hold a source keep its bytes; only the names go.
        for names in gone:
            remove_names(self._files, self._folder, names)
        self.bytes_written += written
        self.bytes_freed += freed
        number = self.log.next_number - 1
        self.log = self.log.end_cycle(milliseconds(self._store.clock.now()))
        if self.log.phase is Phase.DONE:
            # An index that was damaged meanwhile may have got files of other names.
            remove_sources(self._files, self._folder, tuple(self.log.turns))
            self._write_log()
        # Else the log is written with the beginning of the next cycle; a crash before that cleans up once more.
        verdicts = {} if self._plan is None else self._plan.verdicts
        self.events.cycle_ended(number, cycle, verdicts)
        self._plan = None
        self._has_leftovers = False

    def _breather(self, budget: Budget | None) -> Breather:
        return Breather(self._store.clock, budget)

    def _write_log(self) -> None:
        self._store.require_mine()
        self.file.write(self.log)

    def _planned(self) -> CyclePlan:
        if self._plan is None:
            raise Conflict("no cycle is decided; ask for its tasks first")
        return self._plan


def _is_begun(log: CompactionLog, plan: CyclePlan) -> bool:
    """Whether the cycle in the log is this one, and what it has copied is what this one would write."""
    cycle = log.cycles[-1]
    return ((cycle.sources, cycle.partial, cycle.planned)
            == (plan.sources, plan.partial, tuple(each.name for each in plan.targets))
            and all((done.end, done.entries, done.crc32) == (target.end, target.records, target.fingerprint)
                    for done, target in zip(cycle.targets, plan.targets, strict=False)))


class _Moved:
    """The index entries of records at their new places in a new segment, from offset `start` on."""

    def __init__(self, segment: SegmentName, start: int) -> None:
        self.columns = EntryColumns.empty(segment)
        self.hashes: list[int] = []
        self.start = self.end = start

    def take(self, index: IndexSegment, rows: Sequence[int], hashes: Sequence[int]) -> None:
        """Rows of a sealed index segment whose ids have these hashes."""
        self.end = self.columns.take(index.columns, rows, self.end)
        self.hashes.extend(map(hashes.__getitem__, rows))

    def sealed(self) -> IndexSegment:
        """The index segment."""
        return IndexSegment.of_hashed(self.columns, self.start, self.end, self.hashes)
