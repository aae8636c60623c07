# SPDX-License-Identifier: Apache-2.0
"""`SegmentLog`: the one writer of a Raft log in a folder of segments, and the compactions that keep it small.

One class for all that an owner calls, and much of it says what a call does and raises: it appends through `tail.py`,
reads through `read_path.py`, and carries out plans through `compaction/run.py`. What is left here is opening and
closing, snapshots, and when a compaction does what.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

import attrs

from compactlib._closing import Closing
from compactlib.contract import CommitFence
from compactlib.errors import (
    Closed,
    CompactlibError,
    CorruptData,
    InvalidInput,
    NotFound,
    Stale,
    StorageError,
    Unsupported,
)
from compactlib.executors.tasks import LocalExecutor
from compactlib.files.disk import StrPath, list_folder, local_path, make_missing_folder, sync_names
from compactlib.files.folder_lock import FolderLock
from compactlib.indexset.index_set import IndexSet
from compactlib.outcome import Done, Failed, Skipped
from compactlib.raftlog.arguments import index_set, whole
from compactlib.raftlog.compaction.plan.feasible import require_fitting
from compactlib.raftlog.compaction.plan.plan import LogPlan, plan_for
from compactlib.raftlog.compaction.plan.policies.drop import DropDead
from compactlib.raftlog.compaction.plan.policy import LogPolicy
from compactlib.raftlog.compaction.plan.view import LogView
from compactlib.raftlog.compaction.recover import LogRecoveryReport, leftovers, recover_folder
from compactlib.raftlog.compaction.report import LogCompactionReport, LogReclaimReport, outcome_of, report_of
from compactlib.raftlog.compaction.run import Compactor
from compactlib.raftlog.compaction.sense.cadence import CadenceFile, MajorCadence
from compactlib.raftlog.log.folder import (
    Examination,
    discard_headless_newest,
    read_folder,
    require_log,
    room_in,
    wal_of,
)
from compactlib.raftlog.log.newest import NewestSegment
from compactlib.raftlog.log.read_path import SegmentReadPath
from compactlib.raftlog.log.read_plan import ReadPlan
from compactlib.raftlog.log.tail import LogTail
from compactlib.raftlog.model.names import LOGS_FOLDER, segment_number
from compactlib.raftlog.model.refs import asked_refs
from compactlib.raftlog.model.snapshot_meta import NO_SNAPSHOT, SnapshotMeta, read_snapshot_meta, write_snapshot_meta
from compactlib.raftlog.model.status import LogStatus
from compactlib.raftlog.model.values import (
    MAX_INDEX,
    Answer,
    DamagedEntry,
    DeadEntry,
    Entry,
    MissingEntry,
    SegmentRef,
    SegmentStats,
)
from compactlib.raftlog.options import LogOptions
from compactlib.raftlog.segment.known import KnownSegment
from compactlib.raftlog.segment.liveness import require_live
from compactlib.raftlog.segment.segment_set import Lease, SegmentSet
from compactlib.report import VerifyReport
from compactlib.rewrite import Executor
from compactlib.runtime.budget import Budget
from compactlib.runtime.observe import Observer, Observers, telling
from compactlib.runtime.owned_lock import OwnedLock
from compactlib.runtime.ownership import Ownership, Run
from compactlib.runtime.store_numbers import Moved, StoreLevels, StoreNumbers

if TYPE_CHECKING:
    from typing_extensions import Buffer

_ReportT = TypeVar("_ReportT")
_FEW = 10
"""So many entries cost less one by one."""


@attrs.define
class Beside:
    """What a store keeps of a log beside its segments.

    Attributes:
        held: gives the indexes of the entries that are in memory.
        pinned: gives those that must stay although they are dead.
        row_is_lost: whether the log's row is damaged and is not to be read: the store puts another in force.
    """

    held: Callable[[], IndexSet] = IndexSet
    pinned: Callable[[], IndexSet] = IndexSet
    row_is_lost: bool = False


@attrs.frozen
class _Sensed:
    """What a plan is made from: a snapshot state, the segments as a compaction may rely on them, and their view."""

    state: SnapshotMeta | None
    known: tuple[KnownSegment, ...]
    view: LogView


class SegmentLog(Closing):
    """A log open for writing: append, sync, record snapshots, compact. One process at a time holds it.

    Threads may share one: appends and reads exclude each other only on the newest segment, and a compaction runs
    beside both. Opening finishes or undoes what a crash interrupted and cuts a torn tail; `recovery` and `torn_entries`
    say what was found.

    Args:
        folder: the log's folder; made, with a first segment, if there is none.
        options: how the log is kept.
        create: whether it may be made. If not, a folder without a log is `NotALog`, and stays as it is.
        beside: given by a `RaftLogStore` alone, whose logs have entries in other places too.

    Raises:
        Busy: another process, or another object in this one, has it open for writing.
        NotALog: the folder holds other things; or no log, and `create` is not set.
        CorruptData: a segment's index or the snapshot state is damaged; nothing was changed.
        Unsupported: a file was written by a later release, or the folder is that of a log of a `RaftLogStore`.
        StorageError: the disk refused; `ReadOnly` where this process may not write (a `LogReader` can read it).
    """

    def __init__(self, folder: StrPath, options: LogOptions | None = None, *, create: bool = True,
                 beside: Beside | None = None) -> None:
        self._folder = local_path(folder)
        if beside is None and wal_of(self._folder) is not None:
            raise Unsupported(f"{os.fspath(folder)} is the folder of a log of a store, whose newest entries are in the "
                              f"store's write-ahead log; open the store (RaftLogStore), or read it with a LogReader")
        # Else its store has the entries too, and writes them again.
        self._is_alone = beside is None
        self._beside = Beside() if beside is None else beside
        self._options = LogOptions() if options is None else options
        self._files = self._options.files
        self._observer = telling(self._options.observer)
        self._switch = OwnedLock(f"the log in {self._folder}")
        self._owner = Ownership(f"the log in {self._folder}")
        self._opened = contextlib.ExitStack()
        try:
            self._open(self._opened, create=create)
        except BaseException:
            self._opened.close()
            raise

    def _open(self, stack: contextlib.ExitStack, *, create: bool) -> None:
        folder, files, options = self._folder, self._files, self._options
        if not require_log(folder, may_create=create) and make_missing_folder(files, folder):
            # If another process made it a moment ago, the lock says whose log it is.
            files.sync_folder(os.path.dirname(os.path.abspath(folder)))
        self._lock = stack.enter_context(FolderLock(folder, meanwhile="read it with a LogReader"))
        # An earlier writer may have been killed before it synced what is found here, and on which all will rest.
        sync_names(files, folder)
        state = None if self._beside.row_is_lost else read_snapshot_meta(folder)
        self._recovery = recover_folder(files, folder)
        discard_headless_newest(files, folder)
        contents = read_folder(folder, keep_open=options.max_open_segments)
        self._segments = SegmentSet(folder, contents.known, max_open=options.max_open_segments)
        for place, reader in contents.readers[:-1]:
            self._segments.keep_open(place, reader)
        self._reads = SegmentReadPath(self._segments, state, read=self.read, follow=lambda: self._tail.publish(),
                                     held=lambda: self._beside.held(), require_mine=self._lock.require_mine)
        number, found = contents.newest or (0, None)
        newest = NewestSegment(files, folder, options.limits, number=number, found=found)
        stack.callback(newest.close)
        if not number:
            newest.begin_next()
        self._compactor = Compactor(folder, self._segments, self._switch, files=files, clock=options.clock,
                                    keep_links_seconds=options.keep_links_seconds, run_id=options.run_id,
                                    switched=lambda covered: self._tail.note(covered))
        self._tail = LogTail(files, self._segments, newest, self._lock, self._switch, self._compactor,
                             self._reads.require_open)
        empty = [segment for segment in contents.empty if segment != newest.number]
        self._compactor.discard([*self._segments.covered, *empty])
        self._compactor.reclaim()
        self._tail.note()
        self._cadence = MajorCadence(options.trigger, options.clock, CadenceFile(files, folder, self._observer))
        self._tell_recovery()

    def _tell_recovery(self) -> None:
        if self._recovery:
            self._observer.event("raftlog_recovered", attrs.asdict(self._recovery))
        if self.torn_entries:
            self._observer.event("raftlog_torn_tail_cut", {"records": self.torn_entries,
                                                           "segment": self._tail.newest.number})

    @property
    def folder(self) -> str:
        """The log's folder, as an absolute path."""
        return self._folder

    @property
    def recovery(self) -> LogRecoveryReport:
        """What opening the log had to finish, undo or remove."""
        return self._recovery

    @property
    def torn_entries(self) -> int:
        """Entries that opening the log cut off at its end; none of them was ever confirmed by a `sync`."""
        return self._tail.newest.torn_entries

    @property
    def tail(self) -> LogTail:
        """The store's: the end of the log, for what is flushed to it."""
        return self._tail

    @property
    def policy(self) -> LogPolicy:
        """The log's own policy: what is rewritten when the trigger asks for it."""
        return self._options.policy

    @property
    def is_compacting(self) -> bool:
        """Whether a compaction or a reclaim is under way."""
        return self._owner.is_running

    @property
    def is_inside_compaction(self) -> bool:
        """Whether the caller is a part of the compaction that runs, on whichever thread: an observer or a task, say."""
        return self._owner.is_mine

    def refresh(self) -> None:
        """Nothing: a writer always knows its log."""

    # -- writing

    def append(self, index: int, term: int, payload: Buffer) -> None:
        """Add one entry. Durable after `sync`; visible to reads at once.

        An index that the log already holds takes back everything from there on, whatever its term: what a follower of a
        Raft group is sent belongs into `RaftLog.append_entries`. Gaps are allowed. About 3 microseconds.

        Raises:
            InvalidInput: the index lies at or below the snapshot, or is no 64-bit number, or the payload is too large.
            StorageError: the disk refused. Entries that were not synced are lost, as they are when an interrupt comes
                in the middle, and the log goes on from what is there: look at `last_index` before appending again.
                So too if it refused another call meanwhile, a read or a compaction say, or another thread's append or
                sync, and some of them were this thread's: nothing was appended then. Until whoever appended them knows,
                one other thread is told as well, which may wait for them.
            Closed: the log was closed.
        """
        with self._switch:
            if self._tail.untold:
                self._tail.require_kept()
            self._append(index, term, payload)

    def extend(self, entries: Iterable[Entry | tuple[int, int, Buffer]]) -> None:
        """Add entries, `Entry` values or (index, term, payload) tuples; as `append`, in order, with one locking."""
        with self._switch:
            self._tail.require_kept()
            run = _run_of(entries)
            if run is not None:
                self._require_above_snapshot(run[0])
                self._tail.put_run(*run)
                return
            for entry in entries:
                try:
                    index, term, payload = entry
                except (TypeError, ValueError):
                    raise InvalidInput(f"an entry is {entry!r:.100}; give an Entry, or index, term, payload") from None
                self._append(index, term, payload)

    def _append(self, index: int, term: int, payload: Buffer) -> None:
        self._require_above_snapshot(index)
        self._tail.put(index, term, payload)

    def _require_above_snapshot(self, index: int) -> None:
        if self._reads.is_closed:
            self._reads.require_open()
        state = self._reads.state
        if state is not None and (index if type(index) is int else whole("the index", index)) <= state.index:
            raise InvalidInput(f"index {index} lies at or below the snapshot {state.index}; what a snapshot covers is "
                               f"committed and cannot be written again, append from {state.index + 1}")

    def sync(self) -> None:
        """Make every entry appended so far durable: one fsync, none if there is nothing new.

        Let the thread that appends sync too: that one is told for certain what has become of its entries.

        Raises:
            StorageError: as `append`.
            Closed: the log was closed.
        """
        with self._switch:
            self._tail.require_kept()
            self._tail.sync()

    def record_snapshot(self, index: int, live: IndexSet | Iterable[int] = ()) -> None:
        """Note durably that a snapshot covers everything up to `index`, except the entries of `live`.

        Everything else at or below `index` is dead from here on. Syncs the log first.

        Args:
            index: the snapshot's index, not below the one before.
            live: indexes <= `index` that the log must keep; a set, or strictly ascending numbers.

        Raises:
            Stale: a later snapshot was recorded already.
            LiveAboveSnapshot: a live index lies above `index`.
            Unsorted: the live indexes do not ascend.
            LiveIndexMissing: a live index is in no segment, or was dead before.
            StorageError: the disk refused. In each case the snapshot before stays in force; only when the sync of the
                folder was refused may the new one be found when the log is opened again.
        """
        state = SnapshotMeta(whole("the snapshot index", index), live=index_set("the live indexes", live))
        if state.index < 0:
            raise InvalidInput(f"snapshot index {state.index}; it must be between 0 and {MAX_INDEX}")
        with self._switch:
            self._tail.sync(untold=True)
            self._require_no_older(state)
            self.require_held(state)
            self._put_in_force(state)

    def require_held(self, state: SnapshotMeta) -> None:
        """The store's: check that every live index of a snapshot is in a segment or in memory, and was not dead before.

        Raises:
            LiveIndexMissing: some are not; says how many, and the first.
        """
        # Before the segments are listed: what leaves the memtable is in segments by then.
        held = self._beside.held()
        with self._switch:
            # A flush meanwhile may take back what is listed, and remove it.
            require_live(state.live, self._reads.state, self.refs, self._held_by, held)

    def _held_by(self, ref: SegmentRef) -> IndexSet:
        known = self._segments.known_of(ref.number)
        if known is not None and known.is_dense:
            return IndexSet.range(ref.first, ref.last)
        return self._segments.reader(ref.number).index.index_set()

    def record_state(self, state: SnapshotMeta) -> None:
        """The store's: put the row of a snapshot in force durably.

        `require_held` comes first; everything live must be durable.

        Raises:
            Stale: a later one is in force.
            StorageError: the disk refused; the one before stays in force.
        """
        with self._switch:
            self._reads.require_open()
            self._require_no_older(state)
            self._put_in_force(state)

    def _require_no_older(self, state: SnapshotMeta) -> None:
        recorded = self._reads.state
        if recorded is not None and state.index < recorded.index:
            raise Stale(f"snapshot {state.index} is older than {recorded.index}, which is recorded; snapshots only "
                        f"move forward")

    def _put_in_force(self, state: SnapshotMeta) -> None:
        write_snapshot_meta(self._files, self._folder, state)
        self._reads.state = state

    # -- reading

    @property
    def snapshot(self) -> SnapshotMeta | None:
        """The last snapshot recorded, `None` before the first."""
        return self._reads.state

    @property
    def refs(self) -> tuple[SegmentRef, ...]:
        """The segments, oldest first, with the range of indexes each answers for."""
        return self._reads.refs

    @property
    def unflushed(self) -> IndexSet:
        """What a store holds of the log in memory; see `LogReader.unflushed`."""
        return self._beside.held()

    @property
    def first_index(self) -> int | None:
        """The lowest index in the log, `None` if it is empty."""
        return self._reads.first_index

    @property
    def last_index(self) -> int | None:
        """The highest index in the log, `None` if it is empty. O(1)."""
        with self._switch:
            newest = self._tail.settled()
        return self._reads.last_index if newest is None else newest.ref.last

    def read(self, index: int) -> Entry | DeadEntry | MissingEntry:
        """See `LogReader.read`."""
        if type(index) is not int:
            index = whole("the index", index)
        if index < self._tail.newest_first:
            return self._reads.read(index)
        state = self._reads.state
        if state is not None and state.is_dead(index):
            return self._reads.read(index)
        with self._switch:
            self._reads.require_open()
            self._tail.settled()
            if index < self._tail.newest_first:
                # It moved on while this thread waited.
                return self._reads.read(index)
            entry = self._tail.read(index)
        # What an older segment holds from here on was taken back.
        return self._reads.absent(index) if entry is None else entry

    def read_many(self, indexes: Sequence[int]) -> Iterator[Answer]:
        """See `LogReader.read_many`."""
        with self.plan_read(indexes) as plan:
            yield from plan.answers()

    def plan_read(self, indexes: Sequence[int]) -> ReadPlan:
        """See `LogReader.plan_read`."""
        return self._reads.plan_read(indexes)

    def entries(self, first: int = 0, last: int = MAX_INDEX) -> Iterator[Entry]:
        """See `LogReader.entries`."""
        return self._reads.entries(first, last)

    def scan(self, first: int = 0, last: int = MAX_INDEX) -> Iterator[Entry | DamagedEntry]:
        """See `LogReader.scan`."""
        return self._reads.scan(first, last)

    def lease(self) -> Lease:
        """See `LogReader.lease`."""
        lease = self._reads.lease()
        lease.since = self._options.clock.now()
        return lease

    def verify(self, *, budget: Budget | None = None) -> VerifyReport:
        """See `LogReader.verify`."""
        return self._reads.verify(budget, self._leftovers)

    def examine(self, seen: Examination, *, budget: Budget | None = None) -> None:
        """See `LogReader.examine`."""
        self._reads.examine(seen, budget, self._leftovers)

    def _leftovers(self) -> Sequence[str]:
        # Files that a running compaction is making are not leftovers.
        return () if self._owner.is_running else leftovers(self._folder)

    # -- compacting

    def stats(self) -> tuple[SegmentStats, ...]:
        """What a policy may know of each segment, oldest to newest: `view().segments`."""
        return self.view().segments

    def view(self, *, budget: Budget | None = None) -> LogView:
        """The log as a policy sees it now; see `LogReader.view`. What is pinned counts as alive."""
        return self._reads.view(self._look, self._options.limits, budget, self._options.clock)

    def plan(self, policy: LogPolicy | None = None, *, view: LogView | None = None) -> LogPlan:
        """What `compact` would do now, and why it would leave the rest: a dry run that changes nothing.

        Without a policy the log's trigger decides: the log's own policy is asked if the trigger wants that and there is
        room for what it would rewrite; else `DropDead` is, and the plan says what held the other one back.

        Args:
            policy: decides what is rewritten.
            view: to plan for instead of the log as it is now.

        Raises:
            InvalidInput: the policy is none, or its choice breaks a rule; or the view is of another log.
            Closed: the log was closed.
            Exception: whatever the policy or the trigger raised.
        """
        self._reads.require_open()
        return self._planned(self.view() if view is None else self._reads.require_own(view), policy)

    def _planned(self, view: LogView, policy: LogPolicy | None) -> LogPlan:
        now, room = self._options.clock.now(), room_in(self._files, self._folder)

        def planned(chosen: LogPolicy, why: str) -> LogPlan:
            return self._compactor.feasible(plan_for(view, chosen, now, why=why, bytes_available=room))

        if policy is not None:
            return planned(policy, "")
        due = self._cadence.reason_for_major(view)
        if not due:
            return planned(DropDead(), f"nothing is rewritten yet: {self._cadence.why_not(view)}")
        if not view.candidates:
            # With nothing alive a rewrite would only do what a drop does.
            return planned(DropDead(), "")
        # Why a rewrite is due holds nothing back; of a policy that rewrites nothing, that it does not is what does.
        plan = planned(self._options.policy, "" if isinstance(self._options.policy, DropDead) else due)
        if room is None or plan.bytes_needed <= room:
            return plan
        return planned(DropDead(), f"nothing is rewritten for want of room: {_without_room(plan.bytes_needed, room)}")

    def compact(self, plan: LogPlan | None = None, *, policy: LogPolicy | None = None,
                executor: Executor | None = None, budget: Budget | None = None, observer: Observer | None = None,
                fence: CommitFence | None = None) -> Done[LogCompactionReport] | Skipped | Failed:
        """Free what the last snapshot left dead. Appends and reads go on meanwhile.

        What an earlier compaction was interrupted in is finished first.

        Args:
            plan: of this log; default what `plan(policy)` says now.
            policy: decides what is rewritten, instead of the log's own rule. Not together with a plan.
            executor: runs the copying; default this thread.
            budget: what the copying may use up.
            observer: notified, besides the log's own.
            fence: entered around the drops, and around each group's commit.

        Returns:
            `Done` with the report if everything was carried out; `Skipped` if there was nothing to do, a compaction is
            running, or there is no room for what would be written; `Failed` if something could not be done,
            `CompactionFailed` with the report if other things may have been.

        Raises:
            InvalidInput: a plan of another log, a plan and a policy, or an argument of another kind.
            Closed: the log was closed.
            Exception: whatever the policy, the trigger or the fence raised that is none of the library's errors; what
                was committed before stays.
        """
        self._reads.require_open()
        if plan is not None:
            self._require_own(plan, policy)

        views: list[LogView] = []
        began = self._options.clock.monotonic()

        def made(sensed: _Sensed) -> LogPlan:
            views.append(sensed.view)
            return self._planned(sensed.view, policy) if plan is None else plan

        def carried_out(chosen: LogPlan, sensed: _Sensed, run: Run) -> Done[LogCompactionReport] | Skipped | Failed:
            if plan is not None:
                require_fitting(plan, sensed.view, self._compactor.hiding(plan))
            return self._compact(chosen, sensed, executor, run, observer, fence)

        def ended(outcome: Done[LogCompactionReport] | Skipped | Failed, run: Run | None) -> None:
            if self._owner.is_mine and run is None:
                return  # asked for by an observer, say, which must not be told of that by asking
            told = self._observer if observer is None else Observers(self._observer, observer)
            if not told.is_deaf:  # else nobody would look at the numbers, for which new segments are read
                self._tell_numbers(telling(told) if run is None else run.observer(told), outcome,
                                   self._options.clock.monotonic() - began, views)

        return self._work(budget, made, carried_out, ended)

    def _tell_numbers(self, observer: Observer, outcome: Done[LogCompactionReport] | Skipped | Failed, seconds: float,
                      views: Sequence[LogView]) -> None:
        above, name = os.path.split(self._folder)
        if os.path.basename(above) == LOGS_FOLDER:
            # Of a store with many: ids are often the same in each.
            name = f"{os.path.basename(os.path.dirname(above))}/{name}"
        numbers, report = StoreNumbers("raftlog", name), report_of(outcome)
        numbers.compacted(observer, outcome, seconds, policy="" if report is None else report.policy.name,
                          moved=None if report is None else Moved(read=report.bytes_read, copied=report.bytes_written,
                                                                  freed=report.bytes_freed))
        with contextlib.suppress(CompactlibError):
            if views:
                numbers.levels(observer, self._levels(views[-1] if report is None else self.view()))

    def _levels(self, view: LogView) -> StoreLevels:
        room = room_in(self._files, self._folder)
        return StoreLevels(
            live_bytes=sum(each.live_bytes for each in view.segments),
            dead_bytes=sum(each.dead_bytes for each in view.segments), free_bytes=room,
            capacity_bytes=None if room is None else sum(each.file_bytes for each in view.segments) + room,
            oldest_lease_seconds=self._segments.oldest_lease(),
            oldest_unreclaimed_seconds=self._compactor.oldest_doomed())

    def _require_own(self, plan: LogPlan, policy: LogPolicy | None) -> None:
        if not isinstance(plan, LogPlan):
            raise InvalidInput(f"the plan is {plan!r:.100}; give one that plan() made, or policy= for a policy")
        if policy is not None:
            raise InvalidInput("a plan and a policy were given; a plan says already what its policy chose")
        if not plan.folder or os.path.realpath(plan.folder) != os.path.realpath(self._folder):
            whose = f"the log in {plan.folder}" if plan.folder else "no log, but of a view made by hand"
            raise InvalidInput(f"the plan is of {whose}, and this is the one in {self._folder}; plan with this log")

    def _work(self, budget: Budget | None, made: Callable[[_Sensed], LogPlan],
              carried_out: Callable[[LogPlan, _Sensed, Run], Done[_ReportT] | Skipped | Failed],
              ended: Callable[[Done[_ReportT] | Skipped | Failed, Run | None], None] = lambda outcome, run: None,
              ) -> Done[_ReportT] | Skipped | Failed:
        """Own the log, finish what was interrupted, look, plan, and carry the plan out."""
        self._reads.require_open()
        with self._owner.begin(budget) as run:
            outcome = self._busy() if run is None else self._worked(run, made, carried_out)
            ended(outcome, run)
            return outcome

    def _worked(self, run: Run, made: Callable[[_Sensed], LogPlan],
                carried_out: Callable[[LogPlan, _Sensed, Run], Done[_ReportT] | Skipped | Failed]
                ) -> Done[_ReportT] | Skipped | Failed:
        try:
            run.budget.check()
            self._compactor.settle()
            sensed = self._sense(run.budget)
        except CompactlibError as error:
            return self._failed(error)
        # Not as the failures of the work: a policy's answer is used, and what it raises is for the caller to see.
        plan = made(sensed)
        try:
            run.budget.check()
            return carried_out(plan, sensed, run)
        except CompactlibError as error:
            return self._failed(error)

    def _busy(self) -> Skipped:
        if self._owner.is_closed:
            raise Closed(f"the log in {self._folder} is closed; open it again")
        return Skipped("a compaction is running; ask again when it has ended", is_busy=True)

    def _failed(self, error: CompactlibError) -> Failed:
        if self._reads.is_closed and isinstance(error, Closed):
            raise error
        return Failed(error)

    def _sense(self, budget: Budget) -> _Sensed:
        """What a plan is made from, as a compaction may rely on it."""
        looks: list[tuple[SnapshotMeta | None, tuple[KnownSegment, ...]]] = []

        def look() -> tuple[SnapshotMeta | None, tuple[KnownSegment, ...]]:
            self._reads.require_open()
            known = self._tail.durable_list()
            # Of this state, whatever is recorded meanwhile: what is copied must be what was counted.
            looks.append((self._compacted_state(known), known))
            return looks[-1]

        view = self._reads.view(look, self._options.limits, budget, self._options.clock)
        return _Sensed(*looks[-1], view)

    def _look(self) -> tuple[SnapshotMeta | None, tuple[KnownSegment, ...]]:
        self._tail.publish()
        known = self._segments.known()
        return self._compacted_state(known), known

    def _compacted_state(self, known: Sequence[KnownSegment]) -> SnapshotMeta | None:
        """What a compaction of the segments `known` has to keep. They are listed first: what is added later is safe.

        That is the snapshot's live set and what is pinned, without what no segment holds (it is in memory, or held by
        its pin).
        """
        state = self._reads.state
        if state is None:
            return None
        pinned = self._beside.pinned().at_most(state.index)
        live = state.live | pinned
        suspects = live & (self._beside.held() | pinned)
        if not suspects:
            return state
        found = []
        for ref, here in asked_refs([segment.ref for segment in known], suspects):
            try:
                found.append(here & self._segments.reader(ref.number).index.index_set())
            except NotFound:
                # A flush has taken it back meanwhile: it holds nothing any more.
                continue
            except (CorruptData, Unsupported, StorageError):
                # What judges it says so, and it stays as it is.
                found.append(here)
        live = live - (suspects - IndexSet().union(*found))
        return SnapshotMeta(state.index, state.term, live)

    def _compact(self, plan: LogPlan, sensed: _Sensed, executor: Executor | None, run: Run,
                 observer: Observer | None, fence: CommitFence | None) -> Done[LogCompactionReport] | Skipped | Failed:
        if plan.groups:
            # Others than this thread may copy all groups before the first is committed.
            needed = plan.bytes_needed if executor is None else plan.bytes_to_copy
            room = room_in(self._files, self._folder)
            if room is not None and needed > room:
                return Skipped(_without_room(needed, room))
        self._cadence.planned(plan, sensed.view)
        if plan.is_empty or sensed.state is None:
            self._compactor.reclaim()
            self._cadence.ended(plan, ())
            return Skipped(plan.why)
        told = self._observer if observer is None else Observers(self._observer, observer)
        report = self._compactor.run(plan, sensed.state, limits=self._options.limits,
                                     executor=executor or LocalExecutor(), run=run, observer=told, fence=fence)
        self._cadence.ended(plan, [*report.failed, *report.waiting])
        if report.waiting and not (report.dropped or report.groups):
            return Skipped(str(report.waiting[0].error), is_busy=True)
        return outcome_of(report)

    def reclaim(self, *, budget: Budget | None = None) -> Done[LogReclaimReport] | Skipped | Failed:
        """Remove what leases or `keep_links_seconds` held back, and what an interrupted compaction has left.

        Every compaction does this as well.

        Args:
            budget: asked before it begins.

        Returns:
            `Done` with what is gone; `Skipped` if there was nothing, or a compaction is running; `Failed` if the disk
            refused, and what is left is tried again the next time.

        Raises:
            InvalidInput: an argument of another kind.
            Closed: the log was closed.
        """
        self._reads.require_open()
        with self._owner.begin(budget) as run:
            if run is None:
                return self._busy()
            try:
                run.budget.check()
                self._reads.require_open()
                settled = self._compactor.settle()
                report = attrs.evolve(self._compactor.reclaim(), leftovers=settled.names)
            except CompactlibError as error:
                return self._failed(error)
        if report:
            return Done(report)
        if report.waiting:
            return Skipped(f"{report.waiting} dropped segments wait for the end of a lease; release it")
        links = sum(os.path.islink(os.path.join(self._folder, name)) for name in list_folder(self._folder)
                    if segment_number(name) is not None)
        if links:
            return Skipped(f"{links} old names of merged segments are kept for keep_links_seconds="
                           f"{self._options.keep_links_seconds:g}, for readers in other processes; wait, or lower it")
        return Skipped("nothing waits to be removed")

    def status(self) -> LogStatus:
        """What the log says of itself, at once."""
        self._reads.require_open()
        with self._switch:
            newest, refs, row = self._tail.newest.known(), self._segments.refs, self._reads.state or NO_SNAPSHOT
            unsynced, last_term = self._tail.newest.unsynced_entries, self._tail.newest.last_term
            durable = self._tail.durable_index
        listed = {ref.number for ref in refs} if newest is None else {newest.ref.number, *(ref.number for ref in refs)}
        last = newest.ref.last if newest is not None else refs[-1].last if refs else -1
        first = refs[0].first if refs else newest.ref.first if newest is not None else None
        return LogStatus(
            log_id=os.path.basename(self._folder), first_index=first, last_index=max(row.index, last),
            last_term=last_term, durable_index=durable, unconfirmed=unsynced,
            snapshot_index=row.index, snapshot_term=row.term,
            smallest_live_index=row.smallest_live_index, live=len(row.live), memtable_entries=0, segments=len(listed),
            pinned=0, pins=0, stopped=None, is_busy=self._owner.is_running)

    def audit(self) -> None:
        """See `LogReader.audit`; also checks what the writer remembers of its newest segment."""
        self._tail.audit()

    def close(self) -> None:
        """Sync, and let the log go; closing again does nothing. A compaction that runs is cancelled and waited for.

        In a fork of the process that opened it, it only lets the fork's files go.

        Raises:
            Busy: called from within a compaction, by an observer for example; nothing was done.
            StorageError: the disk refused the last sync; the log is closed all the same.
        """
        # The folder must not be given to another process while groups are still committed in it.
        if self._lock.is_mine:
            self._owner.close()
        elif self._tail.abandon():
            # Without the locks: a thread that held one when the process was forked does not exist here to release it.
            self._reads.is_closed = True
            self._opened.close()
            return
        with self._switch:
            self._tail.is_closed = True
            self._reads.close()
            self._opened.close()
            if self._is_alone:
                self._tail.require_kept()

    def __repr__(self) -> str:
        return self._reads.described(type(self).__name__)


def _without_room(needed: int, room: int) -> str:
    return (f"{needed:,} bytes are needed and {room:,} are available; make room, or drop what is wholly dead: "
            f"compact(policy=DropDead()) needs none")


def _run_of(entries: object) -> tuple[int, int, Sequence[bytes]] | None:
    """First index, term and payloads, if these are many entries of consecutive indexes and one term, with bytes."""
    if not isinstance(entries, list | tuple) or len(entries) < _FEW:
        return None
    try:
        indexes, terms, payloads = zip(*entries, strict=True)
    except (TypeError, ValueError):
        return None
    if {*map(type, indexes), *map(type, terms)} != {int} or set(map(type, payloads)) != {bytes}:
        return None
    first, term, count = indexes[0], terms[0], len(indexes)
    fits = (0 <= first <= MAX_INDEX - count and 0 <= term <= MAX_INDEX and terms.count(term) == count
            and indexes == tuple(range(first, first + count)))
    return (first, term, payloads) if fits else None
