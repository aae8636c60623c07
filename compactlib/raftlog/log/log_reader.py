"""`LogReader`: reading a log's folder, from the process that writes it or from any other."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from compactlib.arguments import require_policy
from compactlib.clock import SystemClock
from compactlib.errors import (
    Busy,
    Closed,
    CompactlibError,
    CorruptData,
    InvalidInput,
    LiveIndexMissing,
    NotFound,
    Unsupported,
)
from compactlib.files.disk import LocalFiles, StrPath
from compactlib.indexset.index_set import IndexSet
from compactlib.raftlog.arguments import folder_path, require_budget, whole
from compactlib.raftlog.compaction.plan.plan import CompactionPlan, plan_for
from compactlib.raftlog.compaction.plan.policies import SeedPolicy
from compactlib.raftlog.compaction.plan.policy import CompactionPolicy
from compactlib.raftlog.compaction.plan.view import CompactionView, DamagedSegment
from compactlib.raftlog.compaction.recover import leftovers
from compactlib.raftlog.compaction.sense.statistics import StatsCache
from compactlib.raftlog.log.folder import Examination, examine_segments, read_folder, require_log, room_in, wal_of
from compactlib.raftlog.log.read_plan import ReadPlan, plan_parts
from compactlib.raftlog.model.refs import next_ref
from compactlib.raftlog.model.row import LogRow
from compactlib.raftlog.model.snapshot_state import (
    SnapshotState,
    SnapshotVersion,
    read_snapshot_state,
    snapshot_version,
)
from compactlib.raftlog.model.values import (
    MAX_INDEX,
    Answer,
    Damaged,
    Dead,
    Entry,
    Missing,
    SegmentLimits,
    SegmentRef,
    SegmentStats,
)
from compactlib.raftlog.segment.known import KnownSegment
from compactlib.raftlog.segment.liveness import kept_positions
from compactlib.raftlog.segment.reader import SegmentReader
from compactlib.raftlog.segment.segment_set import DEFAULT_MAX_OPEN, Lease, SegmentSet
from compactlib.report import Finding, VerifyReport
from compactlib.runtime.budget import Budget

if TYPE_CHECKING:
    from compactlib.raftlog.log.unflushed import Unflushed
    from compactlib.raftlog.wal.frames import Frame

_MAX_LOOKS = 100
_MAX_VIEWS = 3


class LogReader:
    """A log's folder, open for reading: nothing on the disk is changed, and another process may be writing.

    It sees the log as it was when opened; `refresh` looks again. Threads may share one. When the writer's compaction
    removes a segment that this reader still lists, the reader refreshes by itself.

    In the folder of a log of a `RaftLogStore` it also reads the store's write-ahead log, where the newest entries are:
    all of it, whenever it looks at the folder. So its answers are those of the `RaftLog`; `unflushed` says which come
    from there. `view`, `stats` and `plan` are about segments.

    Args:
        folder: the log's folder.
        max_open_segments: files kept open.

    Raises:
        NotALog: there is no log.
        CorruptData: a segment's index, the snapshot state or the store's write-ahead log is damaged.
        Unsupported: a file was written by a later release.
        StorageError: the folder cannot be read.
    """

    def __init__(self, folder: StrPath, *, max_open_segments: int = DEFAULT_MAX_OPEN) -> None:
        # Absolute: the tasks of a compaction may run in processes that are in another folder.
        self._folder = folder_path(folder)
        self._max_open = whole("max_open_segments", max_open_segments)
        if self._max_open < 1:
            raise InvalidInput(f"max_open_segments is {max_open_segments}; at least 1 stays open")
        self._limits = SegmentLimits()
        self._stats = StatsCache()
        self._closed = False
        self._refreshing = threading.Lock()
        self._state: SnapshotState | None = None
        self._snapshot_version: SnapshotVersion | None = None
        self._unflushed: Unflushed | None = None
        self._segments = SegmentSet(self._folder)
        self._load()

    def _load(self) -> None:
        require_log(self._folder, may_create=False)
        self._wal = wal_of(self._folder)
        self.refresh()

    def refresh(self) -> None:
        """Look at the folder again: new segments, compactions, a new snapshot.

        Raises:
            Busy: snapshots are recorded faster than the folder can be looked at.
            CorruptData, Unsupported, StorageError: as when it was opened.
        """
        with self._refreshing:
            for _ in range(_MAX_LOOKS):
                version = snapshot_version(self._folder)
                state = read_snapshot_state(self._folder)
                # Before the segments: what leaves the WAL is in segments by then.
                frames = self._frames()
                contents = read_folder(self._folder, keep_open=self._max_open)
                # A list older than the state may lack entries that are live by it, a newer one those that died since.
                if read_snapshot_state(self._folder) != state:
                    continue
                segments = SegmentSet(self._folder, contents.known, max_open=self._max_open)
                for number, reader in contents.readers:
                    segments.keep_open(number, reader)
                with contextlib.suppress(NotFound):
                    unflushed = _replayed(frames, segments, LogRow.of(state)) if frames else None
                    break
            else:
                raise Busy(f"{self._folder} changed {_MAX_LOOKS} times while it was looked at; try again")
            self._segments, self._state, self._snapshot_version = segments, state, version
            self._unflushed = unflushed

    def _frames(self) -> tuple[Frame, ...]:
        if self._wal is None:
            return ()
        # Loaded for logs of a store alone, as in `_replayed`.
        from compactlib.raftlog.log.unflushed import read_frames

        return read_frames(self._wal, os.path.basename(os.path.realpath(self._folder)))

    @property
    def folder(self) -> str:
        """The log's folder, as an absolute path."""
        return self._folder

    @property
    def snapshot(self) -> SnapshotState | None:
        """The last snapshot recorded, `None` before the first."""
        return self._state

    @property
    def refs(self) -> tuple[SegmentRef, ...]:
        """The segments, oldest first, with the range of indexes each answers for."""
        return self._segments.refs if self._unflushed is None else self._unflushed.below(self._segments.refs)

    @property
    def unflushed(self) -> IndexSet:
        """Which entries come from the write-ahead log of the log's store, since no segment holds them yet."""
        return IndexSet() if self._unflushed is None else LogRow.of(self._state).needed(self._unflushed.indexes)

    @property
    def first_index(self) -> int | None:
        """The lowest index in the log, `None` if it is empty."""
        refs, unflushed = self.refs, self._unflushed
        if not refs and unflushed is not None and unflushed.slabs:
            return unflushed.slabs[0].first
        return refs[0].first if refs else None

    @property
    def last_index(self) -> int | None:
        """The highest index in the log, `None` if it is empty."""
        refs, unflushed = self.refs, self._unflushed
        if unflushed is not None and unflushed.slabs:
            return unflushed.slabs[-1].last
        return refs[-1].last if refs else None

    def read(self, index: int) -> Entry | Dead | Missing:
        """The entry of `index`, or that it is dead, or that the log never held it. One bisection and one `pread`.

        Raises:
            CorruptData: the entry is damaged, or it is live and no segment holds it.
        """
        if self._closed:
            self._require_open()
        if type(index) is not int:
            index = whole("the index", index)
        state = self._state
        if state is not None and index <= state.index and index not in state.live:
            return Dead(index, state.index)
        try:
            entry = self._segments.read(index) if self._unflushed is None else self._find(index)
        except NotFound:
            return self._look_again(index)
        except CorruptData:
            # It may have died since it was looked up, and become a hole.
            if self._state is state and not self._is_behind():
                raise
            return self._look_again(index)
        return entry if entry is not None else self._absent(index)

    def _find(self, index: int) -> Entry | None:
        unflushed = self._unflushed
        if unflushed is not None and index >= unflushed.base:
            return unflushed.find(index)
        return self._segments.read(index)

    def _absent(self, index: int) -> Entry | Dead | Missing:
        self._require_open()
        state = self._state
        above = state is None or index > state.index
        return Missing(index) if above and not self._is_behind() else self._look_again(index)

    def _has_died(self, index: int) -> bool:
        try:
            return isinstance(self.read(index), Dead)
        except CorruptData:
            return False

    def _is_behind(self) -> bool:
        """Whether a snapshot was recorded since the folder was looked at: what was alive then may be gone."""
        return snapshot_version(self._folder) != self._snapshot_version

    def _look_again(self, index: int) -> Entry | Dead | Missing:
        """What to answer for an index that a snapshot and a compaction may have overtaken while it was looked up."""
        for _ in range(_MAX_LOOKS):
            self._require_open()
            self.refresh()
            state = self._state
            if state is not None and state.is_dead(index):
                return Dead(index, state.index)
            with contextlib.suppress(NotFound):
                entry = self._find(index)
                if entry is not None:
                    return entry
                if state is None or index > state.index:
                    return Missing(index)
                if state is self._state:
                    break
        raise _lost(self._folder, index)

    def read_many(self, indexes: Sequence[int]) -> Iterator[Answer]:
        """One answer for each of `indexes` (strictly ascending), in order; physical neighbours are read together.

        Damage to one entry is its answer, `Damaged`, and does not hide the others.

        Raises:
            Unsorted: the indexes do not ascend strictly.
            CorruptData: a whole segment is damaged.
        """
        with self.plan_read(indexes) as plan:
            yield from plan.answers()

    def plan_read(self, indexes: Sequence[int]) -> ReadPlan:
        """Decide now which segments answer for `indexes` (strictly ascending), and hold them until it is closed.

        Raises:
            Unsorted: the indexes do not ascend strictly.
        """
        self._require_open()
        # Before the list is looked at, so that everything it leads to stays.
        lease = self.lease()
        try:
            parts = plan_parts(self.refs, indexes)
        except BaseException as error:
            lease.release()
            if isinstance(error, TypeError):
                raise InvalidInput(f"the indexes are {indexes!r:.100}; give a sequence of whole numbers") from error
            raise
        return ReadPlan(parts, lease, reader=self._reader, state=lambda: self._state, again=self.read)

    def entries(self, first: int = 0, last: int = MAX_INDEX) -> Iterator[Entry]:
        """Every entry from `first` to `last` that is not dead, ascending; physical neighbours are read together.

        Raises:
            CorruptData: an entry is damaged; those before it have been given.
            LiveIndexMissing: a live entry is not in its segment.
        """
        for answer in self.scan(first, last):
            if isinstance(answer, Damaged):
                raise answer.error
            yield answer

    def scan(self, first: int = 0, last: int = MAX_INDEX) -> Iterator[Entry | Damaged]:
        """As `entries`, but goes on behind damage, which it answers as `Damaged`.

        Goes by the list of segments as it is when each is reached, so that compactions may run meanwhile: an entry that
        dies before is left out. What is appended meanwhile is left out too.
        """
        self._require_open()
        first, last = whole("first", first), whole("last", last)
        with self.lease():
            unflushed, asked = self._unflushed, last
            refs = self.refs
            last = min(last, refs[-1].last) if refs else -1
            outdated: SegmentRef | None = None
            while first <= last and (ref := next_ref(self.refs, first)) is not None:
                part = SegmentRef(ref.number, max(ref.first, first), min(ref.last, last))
                try:
                    reader = self._reader(ref.number)
                    # Only now: a state older than the file would look for what was left out of it.
                    kept = kept_positions(reader.index, part, self._state)
                except (NotFound, LiveIndexMissing):
                    if ref == outdated:
                        raise
                    outdated = ref
                    self.refresh()
                    continue
                for answer in reader.answers_at(kept):
                    # As above: what has died meanwhile is left out.
                    if not (isinstance(answer, Damaged) and self._has_died(answer.index)):
                        yield answer
                first = part.last + 1
        for slab in () if unflushed is None else unflushed.slabs:
            for index in range(max(slab.first, first), min(slab.last, asked) + 1):
                if self._state is None or not self._state.is_dead(index):
                    yield Entry(index, slab.term, slab.payloads[index - slab.first])

    def lease(self) -> Lease:
        """Keep every file that can be read now from being removed by this process until the lease is released."""
        return self._segments.lease()

    def stats(self) -> tuple[SegmentStats, ...]:
        """What a policy may know of each segment, oldest to newest: `view().segments`."""
        return self.view().segments

    def view(self, *, budget: Budget | None = None) -> CompactionView:
        """The log as a plan sees it now. A segment that cannot be judged is listed as damaged.

        Args:
            budget: asked before each segment whose index has to be read.

        Raises:
            BudgetSpent: the budget refused.
            Closed: the log was closed.
        """
        require_budget(budget)
        for _ in range(_MAX_VIEWS - 1):
            view = self._look(budget)
            # A compaction that runs meanwhile may remove or replace what is looked at.
            if not any(isinstance(each.error, NotFound) for each in view.damaged):
                return view
            self.refresh()
        return self._look(budget)

    def _look(self, budget: Budget | None) -> CompactionView:
        return self._view_of(self._state_of_segments(), self._listed(), budget)

    def _state_of_segments(self) -> SnapshotState | None:
        """The snapshot without what is alive in the write-ahead log only."""
        state, unflushed = self._state, self._unflushed
        if state is None or unflushed is None:
            return state
        return SnapshotState(state.index, state.live.at_most(unflushed.base - 1), state.term)

    def _listed(self) -> tuple[KnownSegment, ...]:
        return self._segments.known() if self.refs else ()

    def _view_of(self, state: SnapshotState | None, known: Sequence[KnownSegment],
                 budget: Budget | None = None) -> CompactionView:
        self._require_open()
        damaged: dict[int, CompactlibError] = {}
        stats = self._stats.gather(self._segments, state, known=known, damaged=damaged, budget=budget)
        return CompactionView(
            segments=stats, limits=self._limits, snapshot_index=None if state is None else state.index,
            folder=self._folder, damaged=tuple(DamagedSegment(*each) for each in sorted(damaged.items())))

    def plan(self, policy: CompactionPolicy | None = None, *, view: CompactionView | None = None) -> CompactionPlan:
        """What a compaction would do now, and why it would leave the rest: a dry run that changes nothing.

        Args:
            policy: decides what is rewritten; default `SeedPolicy()`.
            view: to plan for instead of the log as it is now.

        Raises:
            InvalidInput: the policy is none, or its choice breaks a rule.
            Exception: whatever the policy raised.
        """
        self._require_open()
        require_policy("the policy", policy, or_none=True)
        return plan_for(self._view_for(view), SeedPolicy() if policy is None else policy, SystemClock().now(),
                        bytes_available=room_in(LocalFiles(), self._folder))

    def _view_for(self, view: CompactionView | None) -> CompactionView:
        if view is None:
            return self.view()
        if not isinstance(view, CompactionView):
            raise InvalidInput(f"the view is {view!r:.100}; give one that view() made")
        if view.folder and view.folder != self._folder:
            raise InvalidInput(f"the view is of the log in {view.folder}, and this is the one in {self._folder}")
        return view

    def verify(self, *, budget: Budget | None = None) -> VerifyReport:
        """Read every entry, those in a store's write-ahead log included, and list what is damaged or missing.

        A live index that nothing holds is missing. What an interrupted compaction has left is listed as harmless.
        Compactions may run meanwhile.

        Args:
            budget: asked before each segment.

        Raises:
            BudgetSpent: the budget refused.
            StorageError: something cannot be read.
            Closed: the log was closed.
        """
        self._require_open()
        require_budget(budget)
        seen = Examination()
        self.examine(seen, budget=budget)
        wal = wal_of(self._folder)
        if wal is not None:
            from compactlib.raftlog.log.unflushed import examine_wal

            examine_wal(wal, os.path.basename(os.path.realpath(self._folder)), seen)
        return seen.report()

    def examine(self, seen: Examination, *, budget: Budget | None = None) -> None:
        """As `verify`, without the write-ahead log; for those who verify many logs of a store."""
        with self.lease():
            examine_segments(self._folder, seen, budget=budget)
            lost = IndexSet() if self._state is None else self._state.live - self.unflushed
            for ref in self.refs:
                try:
                    lost = lost - self._reader(ref.number).index.index_set().between(ref.first, ref.last)
                except (CorruptData, Unsupported):
                    # Listed already, once for all its entries.
                    lost = lost - lost.between(ref.first, ref.last)
                except NotFound:
                    continue
        for index in lost:
            try:
                # It may have died, or moved to another segment.
                self.read(index)
            except CorruptData as error:
                seen.note(error, kind="missing")
        for name in self._leftovers():
            seen.findings.append(Finding("leftover", os.path.join(self._folder, name),
                                         "left by an interrupted compaction; the next one finishes or removes it"))

    def _leftovers(self) -> Sequence[str]:
        """Names that an interrupted compaction has left; those of one that runs in another process, too."""
        return leftovers(self._folder)

    def audit(self) -> None:
        """Check the log's own invariants.

        Raises:
            AuditFailed: one is broken; says which, with the numbers.
            Closed: it was closed.
        """
        self._require_open()
        self._segments.audit()

    def _reader(self, number: int) -> SegmentReader:
        return self._segments.reader(number)

    def _require_open(self) -> None:
        if self._closed:
            raise Closed(f"the log in {self._folder} is closed; open it again")

    def close(self) -> None:
        """Let all files go; closing again does nothing."""
        self._closed = True
        self._segments.close()

    def __enter__(self) -> LogReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._folder!r}: {len(self.refs)} segments, {self.first_index} to " \
               f"{self.last_index}, snapshot {None if self._state is None else self._state.index}>"


def _lost(folder: str, index: int) -> CorruptData:
    return CorruptData(path=folder, offset=0, index=index, expected=f"a segment that holds the live entry {index}",
                       found="none")


def _replayed(frames: tuple[Frame, ...], segments: SegmentSet, row: LogRow) -> Unflushed | None:
    from compactlib.raftlog.log.unflushed import replayed

    return replayed(frames, segments, row)
