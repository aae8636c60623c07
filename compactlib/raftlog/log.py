"""`SegmentLog`: the one writer of a Raft log in a folder of segments, and the compactions that keep it small."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias

import attrs

from compactlib.budget import Budget
from compactlib.errors import (
    Busy,
    Closed,
    CompactlibError,
    InvalidInput,
    Stale,
    StorageError,
)
from compactlib.files import StrPath
from compactlib.folder_lock import FolderLock
from compactlib.indexset import IndexSet
from compactlib.outcome import Done, Failed, Skipped
from compactlib.raftlog.compaction import Compactor
from compactlib.raftlog.feasible import without_damaged
from compactlib.raftlog.folder import discard_headless_newest, read_folder, require_log
from compactlib.raftlog.known import KnownSegment
from compactlib.raftlog.live_check import require_live
from compactlib.raftlog.log_reader import LogReader
from compactlib.raftlog.model import MAX_INDEX, Dead, Entry, Missing, SegmentRef
from compactlib.raftlog.names import LOCK_NAME
from compactlib.raftlog.newest import NewestSegment
from compactlib.raftlog.options import LogOptions
from compactlib.raftlog.plan import CompactionPlan, CompactionView, plan_major, plan_minor
from compactlib.raftlog.policy import CompactionPolicy
from compactlib.raftlog.recover import RecoveryReport, recover_folder
from compactlib.raftlog.result import CompactionReport, GroupFailed, outcome_of
from compactlib.raftlog.segment_set import Lease, SegmentSet
from compactlib.raftlog.snapshot_state import SnapshotState, read_snapshot_state, write_snapshot_state
from compactlib.raftlog.trigger import CompactionState
from compactlib.rewrite import Executor, LocalExecutor

if TYPE_CHECKING:
    from typing_extensions import Buffer

CompactionKind: TypeAlias = Literal["auto", "minor", "major"]
"""What `SegmentLog.compact` is asked for; `"auto"` leaves it to the log's trigger."""

_BEYOND = MAX_INDEX + 1


class SegmentLog(LogReader):
    """A log open for writing: append, sync, record snapshots, compact. One process at a time holds it.

    Threads may share one: appends and reads exclude each other only on the newest segment, and a compaction runs
    beside both. Opening finishes or undoes what a crash interrupted and cuts a torn tail; `recovery` and `torn_entries`
    say what was found.

    Args:
        folder: the log's folder; made, with a first segment, if there is none.
        options: how the log is kept.

    Raises:
        Busy: another process, or another object in this one, has it open for writing.
        NotALog: the folder holds other things.
        CorruptData: a segment's index or the snapshot state is damaged; nothing was changed.
        Unsupported: a file was written by a later release.
        StorageError: the disk refused; `ReadOnly` in a read-only folder (open a `LogReader` there).
    """

    def __init__(self, folder: StrPath, options: LogOptions | None = None) -> None:
        self._options = LogOptions() if options is None else options
        self._files = self._options.files
        self._switch = threading.RLock()
        self._compacting = threading.Lock()
        self._running: tuple[Budget, int] | None = None
        self._older_last = -1
        self._newest_first = _BEYOND
        self._minors_since_major = 0
        self._to_discard: list[int] = []
        self._overwrite_unsynced = False
        self._must_recover = False
        self._recovery = RecoveryReport()
        with contextlib.ExitStack() as stack:
            self._open_stack = stack
            super().__init__(folder, max_open_segments=self._options.max_open_segments)
            self._open_stack = stack.pop_all()
        self._last_major_at = self._options.clock.now()

    def _load(self) -> None:
        folder = self._folder
        if not require_log(folder, may_create=True) and not os.path.isdir(folder):
            self._files.make_folder(folder)
            self._files.sync_folder(os.path.dirname(os.path.abspath(folder)))
        self._open_stack.enter_context(FolderLock(folder, LOCK_NAME))
        self._limits = self._options.limits
        self._state = read_snapshot_state(folder)
        self._recovery = recover_folder(self._files, folder)
        discard_headless_newest(self._files, folder)
        contents = read_folder(folder, keep_open=self._max_open)
        self._segments = SegmentSet(folder, contents.known, max_open=self._max_open)
        for place, reader in contents.readers[:-1]:
            self._segments.keep_open(place, reader)
        number, newest = contents.newest or (0, None)
        self._newest = NewestSegment(self._files, folder, self._limits, number=number, found=newest)
        self._open_stack.callback(self._newest.close)
        if not number:
            self._newest.create_first()
        self._compactor = Compactor(folder, self._segments, self._switch, files=self._files, clock=self._options.clock,
                                    observer=self._options.observer,
                                    keep_links_seconds=self._options.keep_links_seconds,
                                    run_id=self._options.run_id, switched=self._note_newest)
        empty = [segment for segment in contents.empty if segment != self._newest.number]
        self._compactor.discard([*self._segments.covered, *empty])
        self._compactor.reclaim()
        self._note_newest()
        self._tell_recovery()

    def _tell_recovery(self) -> None:
        if self._recovery:
            self._options.observer.event("raftlog_recovered", attrs.asdict(self._recovery))
        if self.torn_entries:
            self._options.observer.event("raftlog_torn_tail_cut", {"records": self.torn_entries,
                                                                   "segment": self._newest.number})

    @property
    def recovery(self) -> RecoveryReport:
        """What opening the log had to finish, undo or remove."""
        return self._recovery

    @property
    def torn_entries(self) -> int:
        """Entries that opening the log cut off at its end; none of them was ever confirmed by a `sync`."""
        return self._newest.torn_entries

    def refresh(self) -> None:
        """Nothing: a writer always knows its log."""

    # -- writing

    def append(self, index: int, term: int, payload: Buffer) -> None:
        """Add one entry. Durable after `sync`; visible to reads at once.

        An index that the log already holds takes back everything from there on, as Raft does when a leader changes.
        Gaps are allowed. The payload must not be changed before the next `sync`. About 3 microseconds.

        Raises:
            InvalidInput: the index lies at or below the snapshot, or is no 64-bit number, or the payload is too large.
            StorageError: the disk refused. Entries that were not synced are lost, and the log goes on from what is
                there: look at `last_index` before appending again.
            Closed: the log was closed.
        """
        with self._switch:
            self._append(index, term, payload)

    def extend(self, entries: Iterable[Entry | tuple[int, int, bytes]]) -> None:
        """Add entries, `Entry` values or (index, term, payload) tuples; as `append`, in order, with one locking."""
        with self._switch:
            for entry in entries:
                if isinstance(entry, Entry):
                    self._append(entry.index, entry.term, entry.payload)
                else:
                    self._append(*entry)

    def _append(self, index: int, term: int, payload: Buffer) -> None:
        self._require_open()
        state = self._state
        if state is not None and index <= state.index:
            raise InvalidInput(f"index {index} lies at or below the snapshot {state.index}; what a snapshot covers is "
                               f"committed and cannot be written again, append from {state.index + 1}")
        if self._must_recover:
            self._recover_newest()
        try:
            ended = self._newest.make_room()
            if ended is not None:
                self._segments.put(ended)
                self._older_last, self._newest_first = ended.ref.last, _BEYOND
            self._newest.append(index, term, payload)
        except StorageError:
            self._lose_unsynced()
            raise
        if index <= self._older_last:
            self._overwrite_older()
        elif index < self._newest_first:
            self._newest_first = index

    def _overwrite_older(self) -> None:
        newest = self._newest.known()
        assert newest is not None, "an entry was just appended"
        # The files of covered segments may go only once the entries that cover them are durable.
        self._to_discard.extend(self._segments.put(newest))
        self._overwrite_unsynced = True
        self._note_newest()

    def sync(self) -> None:
        """Make every entry appended so far durable: one fsync, none if there is nothing new.

        Raises:
            StorageError: as `append`.
            Closed: the log was closed.
        """
        with self._switch:
            self._require_open()
            if self._must_recover:
                self._recover_newest()
            try:
                self._newest.sync()
            except StorageError:
                self._lose_unsynced()
                raise
            self._overwrite_unsynced = False
            if self._to_discard:
                self._compactor.discard(self._to_discard)
                self._to_discard = []
                # The entries are durable; what the disk refuses to remove is tried again by the next compaction.
                with contextlib.suppress(StorageError):
                    self._compactor.reclaim()

    def _lose_unsynced(self) -> None:
        """After a `StorageError`: go on from what is durable, now or (if that is refused too) with the next call."""
        self._must_recover = True
        with contextlib.suppress(CompactlibError):
            self._recover_newest()

    def _recover_newest(self) -> None:
        self._newest.recover()
        known = read_folder(self._folder).known
        self._segments.reset(segment for segment in known if segment.ref.number not in self._compactor.doomed)
        self._to_discard = list(self._segments.covered)
        self._must_recover = self._overwrite_unsynced = False
        self._note_newest()

    def _note_newest(self) -> None:
        """Follow a change of the list. While the newest segment is not recovered nothing is known of it."""
        if self._must_recover:
            return
        newest = self._newest.known()
        if newest is not None:
            self._segments.put(newest)
        self._older_last, self._newest_first = self._ends()

    def _ends(self) -> tuple[int, int]:
        """The last index of the older segments (-1 if none), and the first of the one that is written to."""
        newest, refs = self._newest.known(), self._segments.refs
        if newest is None:
            return (refs[-1].last if refs else -1), _BEYOND
        return (refs[-2].last if len(refs) > 1 else -1), newest.ref.first

    def _publish_newest(self) -> None:
        """Let the list of segments, and those who open the newest one, see what was appended last."""
        with self._switch:
            if self._must_recover:
                self._recover_newest()
            newest = self._newest.known()
            if newest is None or self._closed:
                return
            try:
                self._newest.flush()
            except StorageError:
                self._lose_unsynced()
                raise
            number = self._newest.number
            outdated = self._segments.open_entries(number) not in (-1, newest.entries)
            if outdated or self._segments.known_of(number) != newest:
                self._segments.put(newest)

    # -- reading

    @property
    def refs(self) -> tuple[SegmentRef, ...]:
        """The segments, oldest first, with the range of indexes each answers for."""
        self._publish_newest()
        return self._segments.refs

    @property
    def last_index(self) -> int | None:
        """The highest index in the log, `None` if it is empty. O(1)."""
        with self._switch:
            if self._must_recover:
                self._recover_newest()
            newest = self._newest.known()
        return super().last_index if newest is None else newest.ref.last

    def read(self, index: int) -> Entry | Dead | Missing:
        """See `LogReader.read`."""
        state = self._state
        if index < self._newest_first or (state is not None and state.is_dead(index)):
            return super().read(index)
        with self._switch:
            self._require_open()
            if self._must_recover:
                self._recover_newest()
            if index < self._newest_first:
                # It moved on while this thread waited.
                return super().read(index)
            try:
                entry = self._newest.read(index)
            except StorageError:
                self._lose_unsynced()
                raise
        # What an older segment holds from here on was taken back.
        return self._absent(index) if entry is None else entry

    def _is_behind(self) -> bool:
        return False

    # -- snapshots and compaction

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
        live_set = live if isinstance(live, IndexSet) else IndexSet.from_sorted(live)
        state = SnapshotState(index, live_set)
        with self._switch:
            self.sync()
            if self._state is not None and index < self._state.index:
                raise Stale(f"snapshot {index} is older than {self._state.index}, which is recorded; "
                            f"snapshots only move forward")
            require_live(live_set, self._state, self.refs,
                         lambda ref: self._segments.reader(ref.number).index.index_set())
            write_snapshot_state(self._files, self._folder, state)
            self._state = state

    def compact(self, kind: CompactionKind = "auto", *, policy: CompactionPolicy | None = None,
                executor: Executor | None = None, budget: Budget | None = None
                ) -> Done[CompactionReport] | Skipped | Failed:
        """Free what the last snapshot left dead. Appends and reads go on meanwhile.

        Args:
            kind: `"minor"` drops whole dead segments; `"major"` also rewrites what the policy chooses; `"auto"` asks
                the log's trigger which of the two.
            policy: instead of the log's own.
            executor: who copies; default this thread.
            budget: what the copying may use up.

        Returns:
            `Done` with the report, in which single groups may have failed; `Skipped` if there was nothing to do or a
            compaction is running; `Failed` if nothing could be done.

        Raises:
            InvalidInput: there is no such kind.
            Closed: the log was closed.
        """
        self._require_open()
        if kind not in ("auto", "minor", "major"):
            raise InvalidInput(f"compact() takes the kinds 'auto', 'minor' and 'major', found {kind!r}")
        if not self._compacting.acquire(blocking=False):
            return Skipped("a compaction is running; ask again when it has ended")
        try:
            lent = (budget or Budget()).lend()
            self._running = lent, threading.get_ident()
            # Again: `close` either sees what runs, or is seen here.
            self._require_open()
            return self._compact(kind, policy or self._options.policy, executor or LocalExecutor(), lent)
        except CompactlibError as error:
            if self._closed and isinstance(error, Closed):
                raise
            return Failed(error)
        finally:
            self._running = None
            self._compacting.release()

    def _compact(self, kind: CompactionKind, policy: CompactionPolicy, executor: Executor,
                 budget: Budget) -> Done[CompactionReport] | Skipped | Failed:
        state = self._state
        if state is None:
            return Skipped("no snapshot was recorded yet, so nothing is dead")
        self._compactor.settle()
        damaged: dict[int, CompactlibError] = {}
        # Of this state, whatever is recorded meanwhile: what is copied must be what was counted.
        view = self._view_of(state, self._durable_list(), damaged)
        why = "asked for" if kind != "auto" else self._reason_for_major(view)
        plan = self._plan(view, state, "major" if kind == "major" or (kind == "auto" and why) else "minor", policy)
        plan, set_aside = without_damaged(plan, damaged)
        plan = self._compactor.feasible(plan)
        if plan.kind == "minor" and view.compactable:
            self._minors_since_major += 1
        if plan.is_empty and not set_aside:
            purged = self._compactor.reclaim()
            self._count_major(plan, ())
            return Skipped(f"nothing to {'rewrite or drop' if plan.kind == 'major' else 'drop'} at snapshot "
                           f"{state.index}" + (f"; purged {len(purged)} old links" if purged else ""))
        report = self._compactor.run(plan, state, why=why or "after a snapshot", limits=self._limits,
                                     executor=executor, budget=budget, set_aside=set_aside)
        self._count_major(plan, report.failed)
        return outcome_of(report)

    def _count_major(self, plan: CompactionPlan, failed: Sequence[GroupFailed]) -> None:
        # One that the budget, a lease or the disk has cut short is to go on, not to wait for its turn again.
        if plan.kind == "major" and not any(isinstance(group.error, Busy | StorageError) for group in failed):
            self._minors_since_major, self._last_major_at = 0, self._options.clock.now()

    def _durable_list(self) -> tuple[KnownSegment, ...]:
        """The segments as a compaction may rely on them: no range was cut by entries that a crash may take back.

        What those cut off is needed then, although it lies outside of every range and above the snapshot.
        """
        with self._switch:
            if self._overwrite_unsynced:
                self.sync()
            # A disk too full to go on with the newest segment must not keep a compaction, which never touches that one,
            # from making room.
            with contextlib.suppress(StorageError):
                self._publish_newest()
            return self._segments.known()

    def _reason_for_major(self, view: CompactionView) -> str:
        state = CompactionState.of(view.compactable, minors_since_major=self._minors_since_major,
                                   last_major_at=self._last_major_at, now=self._options.clock.now())
        return self._options.trigger.wants_major(state) or ""

    @staticmethod
    def _plan(view: CompactionView, state: SnapshotState, kind: str, policy: CompactionPolicy) -> CompactionPlan:
        # With nothing alive a major compaction would only do what a minor one does.
        return plan_major(view, policy) if kind == "major" and state.live else plan_minor(view)

    def plan(self, kind: str = "major", policy: CompactionPolicy | None = None) -> CompactionPlan:
        """See `LogReader.plan`; the default policy is the log's own."""
        return super().plan(kind, self._options.policy if policy is None else policy)

    def reclaim(self) -> tuple[int, ...]:
        """Remove what leases or `keep_links_seconds` held back; returns merged segments whose old names are gone.

        Every compaction does this as well.

        Raises:
            StorageError: the disk refused; what is left is tried again the next time.
        """
        with self._switch:
            self._require_open()
            return self._compactor.reclaim()

    def lease(self) -> Lease:
        """See `LogReader.lease`."""
        self._publish_newest()
        return super().lease()

    def audit(self) -> None:
        """See `LogReader.audit`; also checks what the writer remembers of its newest segment."""
        with self._switch:
            self._publish_newest()
            super().audit()
            found, wanted = (self._older_last, self._newest_first), self._ends()
            if found != wanted:
                raise CompactlibError(f"(end of the older segments, start of the newest) is {found}, expected {wanted}")

    def close(self) -> None:
        """Sync, and let the log go; closing again does nothing. A compaction that runs is cancelled and waited for.

        Raises:
            Busy: called from within a compaction, by an observer for example; nothing was done.
            StorageError: the disk refused the last sync; the log is closed all the same.
        """
        if self._closed:
            return
        running = self._running
        if running is not None and running[1] == threading.get_ident():
            raise Busy(f"the log in {self._folder} cannot be closed from within its own compaction; cancel the budget, "
                       f"and close it when compact() has returned")
        self._closed = True
        running = self._running
        if running is not None:
            running[0].cancel()
        # The folder must not be given to another process while groups are still committed in it.
        with self._compacting, self._switch:
            super().close()
            self._open_stack.close()

    def __enter__(self) -> SegmentLog:
        return self
