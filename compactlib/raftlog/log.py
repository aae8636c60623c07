"""`SegmentLog`: the one writer of a Raft log in a folder of segments, and the compactions that keep it small."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Sequence
from typing import ClassVar, Literal, TypeAlias

import attrs

from compactlib.budget import Budget
from compactlib.errors import Closed, CompactlibError, InvalidInput, Stale, StorageError, Unsupported
from compactlib.files import StrPath
from compactlib.indexset import IndexSet
from compactlib.outcome import Done, Failed, Skipped
from compactlib.raftlog.arguments import folder_path, require_method, whole
from compactlib.raftlog.cadence import MajorCadence
from compactlib.raftlog.feasible import without_damaged
from compactlib.raftlog.folder import wal_of
from compactlib.raftlog.holes import DEFAULT_MIN_HOLE_BYTES, HoleReport, punch_holes
from compactlib.raftlog.known import KnownSegment
from compactlib.raftlog.live_check import require_live
from compactlib.raftlog.log_writer import LogWriter
from compactlib.raftlog.options import LogOptions
from compactlib.raftlog.plan import CompactionPlan, CompactionView, plan_major, plan_minor
from compactlib.raftlog.policy import CompactionPolicy
from compactlib.raftlog.result import CompactionReport, outcome_of
from compactlib.raftlog.snapshot_state import SnapshotState, write_snapshot_state
from compactlib.rewrite import Executor, LocalExecutor
from compactlib.runtime import Ownership, Run

CompactionKind: TypeAlias = Literal["auto", "minor", "major"]
"""What `SegmentLog.compact` is asked for; `"auto"` leaves it to the log's trigger."""


@attrs.frozen
class _Sensed:
    """What a plan is made from: a snapshot state, the segments as a compaction may rely on them, and their view.

    Attributes:
        damaged: segments that could not be judged.
    """

    state: SnapshotState
    known: tuple[KnownSegment, ...]
    view: CompactionView
    damaged: dict[int, CompactlibError]


class SegmentLog(LogWriter):
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
        Unsupported: a file was written by a later release, or the folder is that of a log of a `RaftLogStore`.
        StorageError: the disk refused; `ReadOnly` where this process may not write (a `LogReader` can read it).
    """

    _knows_wal: ClassVar[bool] = False

    def __init__(self, folder: StrPath, options: LogOptions | None = None) -> None:
        if not self._knows_wal and wal_of(folder_path(folder)) is not None:
            raise Unsupported(f"{os.fspath(folder)} is the folder of a log of a store, whose newest entries are in the "
                              f"store's write-ahead log; open the store (RaftLogStore), or read it with a LogReader")
        super().__init__(folder, options)
        self._owner = Ownership(f"the log in {self._folder}")
        self._cadence = MajorCadence(self._options.trigger, self._options.clock)

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
        state = SnapshotState(whole("the snapshot index", index), _set_of(live))
        with self._switch:
            self.sync()
            if self._state is not None and index < self._state.index:
                raise Stale(f"snapshot {index} is older than {self._state.index}, which is recorded; "
                            f"snapshots only move forward")
            require_live(state.live, self._state, self.refs,
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
            compaction is running; `Failed` if nothing could be done, `TaskFailed` in it for an executor's own error.

        Raises:
            InvalidInput: there is no such kind.
            Closed: the log was closed.
            Exception: whatever the policy or the trigger raised; nothing was changed.
        """
        self._require_open()
        if kind not in ("auto", "minor", "major"):
            raise InvalidInput(f"compact() takes the kinds 'auto', 'minor' and 'major', found {kind!r}")
        if policy is not None:
            require_method("the policy", policy, "choose")
        if executor is not None:
            require_method("the executor", executor, "run")
        if budget is not None:
            require_method("the budget", budget, "lend")
        with self._owner.begin(budget) as run:
            if run is None:
                return self._busy()
            try:
                sensed = self._sense()
            except CompactlibError as error:
                return self._failed(error)
            if sensed is None:
                return Skipped("no snapshot was recorded yet, so nothing is dead")
            # Not as the failures of the work: a policy's answer is used, and what it raises is for the caller to see.
            why = "asked for" if kind != "auto" else self._cadence.reason_for_major(sensed.view)
            chosen = "major" if kind == "major" or (kind == "auto" and why) else "minor"
            plan = self._plan(sensed.view, sensed.state, chosen, policy or self._options.policy)
            try:
                return self._compact(plan, sensed, why or "after a snapshot", executor or LocalExecutor(), run)
            except CompactlibError as error:
                return self._failed(error)

    def _busy(self) -> Skipped:
        if self._owner.is_closed:
            raise Closed(f"the log in {self._folder} is closed; open it again")
        return Skipped("a compaction is running; ask again when it has ended")

    def _failed(self, error: CompactlibError) -> Failed:
        if self._closed and isinstance(error, Closed):
            raise error
        return Failed(error)

    def _sense(self) -> _Sensed | None:
        """What a plan is made from; `None` before the first snapshot."""
        self._require_open()
        if self._state is None:
            return None
        self._compactor.settle()
        damaged: dict[int, CompactlibError] = {}
        known = self._durable_list()
        # Of this state, whatever is recorded meanwhile: what is copied must be what was counted.
        state = self._compacted_state(known)
        return _Sensed(state, known, self._view_of(state, known, damaged), damaged)

    def _compact(self, plan: CompactionPlan, sensed: _Sensed, why: str, executor: Executor,
                 run: Run) -> Done[CompactionReport] | Skipped | Failed:
        state = sensed.state
        plan, set_aside = without_damaged(plan, sensed.damaged)
        plan = self._compactor.feasible(plan)
        self._cadence.planned(plan, sensed.view)
        if plan.is_empty and not set_aside:
            purged = self._compactor.reclaim()
            self._cadence.ended(plan, ())
            return Skipped(f"nothing to {'rewrite or drop' if plan.kind == 'major' else 'drop'} at snapshot "
                           f"{state.index}" + (f"; purged {len(purged)} old links" if purged else ""))
        report = self._compactor.run(plan, state, why=why, limits=self._limits, executor=executor, run=run,
                                     set_aside=set_aside)
        self._cadence.ended(plan, report.failed)
        return outcome_of(report)

    def punch_holes(self, *, min_bytes: int = DEFAULT_MIN_HOLE_BYTES, budget: Budget | None = None
                    ) -> Done[HoleReport] | Skipped | Failed:
        """Give back the room of dead payloads in segments that the policy leaves alone. Appends and reads go on.

        Args:
            min_bytes: dead bytes on end that are worth a hole; 64 KiB by default, never less than a block of 4 KiB.
            budget: what may be used up, in bytes of holes.

        Returns:
            `Done` with the report, in which single segments may have failed; `Skipped` if there was nothing to do, or a
            compaction runs, or somebody holds a lease; `Failed` with `Unsupported` where there are no holes.

        Raises:
            InvalidInput: `min_bytes` is less than 1.
            Closed: the log was closed.
            Exception: whatever the policy raised; nothing was changed.
        """
        self._require_open()
        if budget is not None:
            require_method("the budget", budget, "lend")
        if whole("min_bytes", min_bytes) < 1:
            raise InvalidInput(f"min_bytes is {min_bytes}; a hole has at least 1 byte")
        with self._owner.begin(budget) as run:
            if run is None:
                return self._busy()
            try:
                sensed = self._sense()
            except CompactlibError as error:
                return self._failed(error)
            if sensed is None:
                return Skipped("no snapshot was recorded yet, so nothing is dead")
            plan = plan_major(sensed.view, self._options.policy)
            try:
                return self._punch_holes(plan, sensed, min_bytes, run.budget)
            except CompactlibError as error:
                return self._failed(error)

    def _punch_holes(self, plan: CompactionPlan, sensed: _Sensed, min_bytes: int,
                     budget: Budget) -> Done[HoleReport] | Skipped | Failed:
        leave = {stats.number for stats in plan.drops}.union(sensed.damaged, *(group.numbers for group in plan.groups))
        if self._segments.is_leased(self._segments.epoch + 1):
            return Skipped("somebody holds a lease and may still read what has died since; ask again when it ended")
        return punch_holes(self._folder, self._files, self._segments, [segment.ref for segment in sensed.known[:-1]],
                           sensed.state, leave=leave, min_bytes=min_bytes, budget=budget)

    def _compacted_state(self, known: Sequence[KnownSegment]) -> SnapshotState:
        """What a compaction of the segments `known` has to keep. They are listed first: what is added later is safe."""
        assert self._state is not None, "a compaction comes after a snapshot"
        return self._state

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

    def close(self) -> None:
        """Sync, and let the log go; closing again does nothing. A compaction that runs is cancelled and waited for.

        Raises:
            Busy: called from within a compaction, by an observer for example; nothing was done.
            StorageError: the disk refused the last sync; the log is closed all the same.
        """
        # The folder must not be given to another process while groups are still committed in it.
        if self._lock.is_mine:
            self._owner.close()
        super().close()

    def __enter__(self) -> SegmentLog:
        return self


def _set_of(live: IndexSet | Iterable[int]) -> IndexSet:
    try:
        return live if isinstance(live, IndexSet) else IndexSet.from_sorted(live)
    except TypeError:
        raise InvalidInput(f"the live indexes are {live!r:.100}; give an IndexSet, or ascending indexes") from None
