# SPDX-License-Identifier: Apache-2.0
"""Reading the segments of a log: for the log's owner, or for a reader of its folder.

**There, dead, or missing** is answered here and nowhere else. A read takes no lock: it asks the snapshot's row whether
the index is dead, and memory and the list which segment holds it. In between, this process or another may record a
snapshot and compact. So what was not found is read again after a refresh; a live index that is missing
twice under the same row is damage. Scans and reads of many indexes hold a lease, and read single entries again the
same way.
"""

from __future__ import annotations

import contextlib
import os
import threading
from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import TypeVar

from compactlib._closing import Closing
from compactlib.budget import Budget
from compactlib.errors import Closed, CompactlibError, CorruptData, InvalidInput, NotFound, Unsorted, Unsupported
from compactlib.guard import Guard
from compactlib.indexset import IndexSet
from compactlib.raftlog.compaction.plan import LogPlan
from compactlib.raftlog.compaction.policy import GroupFailed, LogPolicy, LogView
from compactlib.raftlog.errors import LiveIndexMissing
from compactlib.raftlog.log.folder import Examination, examine_segments, examine_wal, wal_of
from compactlib.raftlog.memtable import Memtable, Slab
from compactlib.raftlog.segment.format import kept_positions, picked
from compactlib.raftlog.segment.listing import file_bytes, next_ref
from compactlib.raftlog.segment.segments import Segments
from compactlib.raftlog.snapshot_meta import NO_SNAPSHOT, SnapshotMeta
from compactlib.raftlog.values import (
    MAX_INDEX,
    Answer,
    DamagedEntry,
    DeadEntry,
    Entry,
    MissingEntry,
    SegmentLimits,
    SegmentRef,
    SegmentStats,
)
from compactlib.report import VerifyReport

_MAX_ATTEMPTS = 100
_T = TypeVar("_T")


class LogReading(Closing):
    """The reads of a log, for `SegmentLog` and `LogReader`. Threads may share one.

    Args:
        folder: the log's.
        segments: its segments, with the row of the snapshot in force.
        guard: whether the log can be used.
        memtable: the memtable of a log of a store: the entries that replace or follow those of the segments.
    """

    def __init__(self, folder: str, segments: Segments, guard: Guard, memtable: Memtable | None = None) -> None:
        self._folder = folder
        self._segments = segments
        self._guard = guard
        self._memtable = memtable
        # The live entries and bytes of each segment, with what they depend on.
        self._counted: dict[int, tuple[object, tuple[int, int]]] = {}
        self._counting = threading.Lock()

    def _require_open(self) -> None:
        self._guard.require_open()

    # -- for the classes that inherit

    def refresh(self) -> None:
        """Re-read the folder. Nothing to do for the owner, which made every change itself."""

    def _is_behind(self) -> bool:
        """Whether a snapshot was recorded since the folder was read: entries may have died and been removed."""
        return False

    @property
    def unflushed(self) -> IndexSet:
        """Indexes of the entries that the log's store has in memory, or in its WAL, and not in segments."""
        return IndexSet() if self._memtable is None else self._memtable.indexes()

    # -- the log

    @property
    def folder(self) -> str:
        """The log's folder, as an absolute path."""
        return self._folder

    @property
    def refs(self) -> tuple[SegmentRef, ...]:
        """The segments, oldest first, each with the range of indexes that is read from it."""
        refs, memtable = self._segments.refs, self._memtable
        base = MAX_INDEX + 1 if memtable is None else memtable.table.base
        if not refs or refs[-1].last < base:
            return refs
        return tuple(ref if ref.last < base else SegmentRef(ref.number, ref.first, base - 1)
                     for ref in refs if ref.first < base)

    @property
    def first_index(self) -> int | None:
        """The lowest readable index, `None` in an empty log."""
        row, slabs = self.state, self._slabs()
        if row.live:
            return row.live.first
        start, base = row.index + 1, MAX_INDEX + 1 if self._memtable is None else self._memtable.table.base
        found = self._retried(lambda: self._segments.next_index(start)) if start < base else None
        if found is not None and found < base:
            return found
        return min((max(slab.first, start) for slab in slabs if slab.last >= start), default=None)

    @property
    def last_index(self) -> int:
        """The highest index, or the snapshot's if that is higher; -1 in an empty log."""
        refs, slabs = self.refs, self._slabs()
        return max(slabs[-1].last if slabs else refs[-1].last if refs else -1, self.state.index)

    @property
    def state(self) -> SnapshotMeta:
        """The last snapshot and its live set; its index is -1 before the first."""
        return self._segments.row or NO_SNAPSHOT

    def _slabs(self) -> Sequence[Slab]:
        return () if self._memtable is None else list(self._memtable.table.slabs)

    def _retried(self, read: Callable[[], _T]) -> _T:
        """Call `read`; after a `NotFound`, because a segment was removed, re-read the folder and retry."""
        for _ in range(_MAX_ATTEMPTS - 1):
            try:
                return read()
            except NotFound:
                self.refresh()
        return read()

    # -- a single index

    def read(self, index: int) -> Entry | DeadEntry | MissingEntry:
        """Read the entry of `index`; or the answer that it is dead, or that the log never had it.

        From memory, or with a bisection and a `pread`.

        Raises:
            CorruptData: the entry is damaged, or it is live and in no segment.
            Closed: the log was closed.
        """
        attempt = 0
        while attempt < _MAX_ATTEMPTS:
            self._require_open()
            row = self._segments.row
            if row is not None and index <= row.index and not row.live.holds(index):
                return DeadEntry(index, row.index)
            try:
                entry = self._segments.read(index) if self._memtable is None else self._find(index)
            except NotFound:
                # Its file was removed; after a refresh the list has another segment for it.
                entry = None
            else:
                if entry is not None:
                    return entry
                above = row is None or index > row.index
                if row is self._segments.row and (attempt or above) and not self._is_behind():
                    if above:
                        return MissingEntry(index)
                    break
            attempt += 1
            self.refresh()
        raise CorruptData(path=self._folder, offset=0, index=index, found="no segment",
                          expected=f"a segment that holds the live entry {index}")

    def _find(self, index: int) -> Entry | None:
        # The memtable before the segments: an entry is in segments before it leaves the memtable.
        table = None if self._memtable is None else self._memtable.table
        return self._segments.read(index) if table is None or index < table.base else table.find(index)

    # -- many indexes

    def read_many(self, indexes: Sequence[int]) -> Iterator[Answer]:
        """Iterate over the answers for `indexes` (strictly ascending); physical neighbours are read together.

        The answer for a damaged entry is `DamagedEntry`; the iteration continues. An index that dies before it is read
        is a `DeadEntry`.

        Raises:
            Unsorted: the indexes do not ascend strictly.
            CorruptData: a whole segment is damaged.
        """
        self._require_open()
        for previous, index in pairwise(indexes):
            if index <= previous:
                raise Unsorted(f"index {index} follows {previous}; sort the indexes and drop duplicates",
                               previous=previous, found=index)
        # The lease before the list, so that the files of all its segments stay.
        with self._segments.lease():
            refs, place = self.refs, 0
            while place < len(indexes):
                ref = next_ref(refs, indexes[place])
                stop = bisect_right(indexes, MAX_INDEX if ref is None else ref.last, place)
                yield from self._answers_of(None if ref is None else ref.number, indexes[place:stop])
                place = stop

    def _answers_of(self, number: int | None, indexes: Sequence[int]) -> Iterator[Answer]:
        row = self.state
        alive = [index for index in indexes if not row.is_dead(index)]
        found: Iterator[Answer] = iter(())
        positions: dict[int, int] = {}
        if number is not None and alive:
            # The file may be missing: another process has compacted, or a full disk has refused links.
            with contextlib.suppress(NotFound):
                reader = self._segments.reader(number)
                positions = {index: place for index in alive if (place := reader.index.find(index)) >= 0}
                found = reader.answers_at(list(positions.values()))
        for index in indexes:
            answer = next(found) if index in positions else None
            # Dead, or in memory, or in a gap; or it has died by a snapshot that this reader has not read yet.
            yield self._read_again(index) if answer is None or isinstance(answer, DamagedEntry) else answer

    def _read_again(self, index: int) -> Answer:
        try:
            return self.read(index)
        except CorruptData as error:
            return DamagedEntry(index, error)

    def entries(self, first: int = 0, last: int = MAX_INDEX) -> Iterator[Entry]:
        """Every entry from `first` to `last` that is not dead, ascending; physical neighbours are read together.

        Raises:
            CorruptData: an entry is damaged, or missing in a log of a store; its predecessors have been yielded.
            LiveIndexMissing: a live entry is not in its segment.
        """
        following = max(first, self.state.index + 1) if self.state.index >= 0 else -1
        for answer in self.scan(first, last):
            if isinstance(answer, DamagedEntry):
                raise answer.error
            # A newer snapshot may cover the missing entry.
            if self._is_contiguous and -1 < following < answer.index and following > self.state.index:
                # Twice: the log may have been truncated and appended to during the scan.
                if self._lacks(following) and self._lacks(following):
                    raise self._missing(following)
                if not self._has_died(following):
                    return
            following = max(following, answer.index + 1)
            yield answer

    def scan(self, first: int = 0, last: int = MAX_INDEX) -> Iterator[Entry | DamagedEntry]:
        """As `entries`, but yields `DamagedEntry` for a damaged entry, and continues.

        The list of segments is re-read for each segment, so that compactions may run during the scan: entries that die
        before they are reached are left out. Entries that are appended during the scan may be left out too.
        """
        self._require_open()
        with self._segments.lease():
            # The memtable before the segments, as in `_find`.
            slabs, through = self._slabs(), self._end_of_segments()
            failed: SegmentRef | None = None
            while first <= min(last, through) and (ref := next_ref(self.refs, first)) is not None:
                part = SegmentRef(ref.number, max(ref.first, first), min(ref.last, last, through))
                try:
                    reader = self._segments.reader(ref.number)
                    # After the opening: an older row may name entries that a compaction has left out of the file.
                    kept = kept_positions(reader.index, part, self._segments.row)
                except (NotFound, LiveIndexMissing):
                    if ref == failed and not self._is_behind():
                        raise
                    failed = ref
                    self.refresh()
                    slabs, through = self._slabs(), self._end_of_segments()
                    continue
                for answer in reader.answers_at(kept):
                    # An entry that has died during the scan is left out.
                    if not (isinstance(answer, DamagedEntry) and self._has_died(answer.index)):
                        yield answer
                first = part.last + 1
        for slab in slabs:
            for entry in slab.entries(first, last):
                if not self.state.is_dead(entry.index):
                    yield entry

    def _end_of_segments(self) -> int:
        refs = self.refs
        return refs[-1].last if refs else -1

    def _lacks(self, index: int) -> bool:
        return self.last_index > index and isinstance(self.read(index), MissingEntry)

    def _has_died(self, index: int) -> bool:
        try:
            return isinstance(self.read(index), DeadEntry)
        except CorruptData:
            return False

    # -- statistics

    @abstractmethod
    def view(self, *, budget: Budget | None = None) -> LogView:
        """The current view for policies. A segment whose index cannot be read is listed as damaged.

        The owner's pinned entries count as live. The budget is checked before each segment whose index has to be read.
        """

    def _view_of(self, known: Sequence[SegmentStats], state: SnapshotMeta | None, limits: SegmentLimits,
                 budget: Budget | None) -> LogView:
        """The view of the segments `known`, which the caller has read before `state`.

        A segment's index is read again if its range, its file or its part of the live set has changed.

        Raises:
            NotFound: a segment was truncated or compacted meanwhile; the folder was read again.
        """
        gathered: list[SegmentStats] = []
        damaged: list[GroupFailed] = []
        with self._counting:
            for each in known:
                number = each.ref.number
                if budget is not None:
                    budget.check()
                size = file_bytes(self._folder, number)
                try:
                    entries, live_bytes = self._live_part(each, state or NO_SNAPSHOT, size)
                except Closed:
                    raise
                except CompactlibError as error:
                    if isinstance(error, NotFound):
                        self.refresh()
                        if each not in self._segments.known():
                            raise NotFound(f"segment {number} has changed; read the list again") from error
                    damaged.append(GroupFailed((number,), error))
                    entries, live_bytes = each.entries, each.data_bytes
                gathered.append(SegmentStats(
                    ref=each.ref, entries=each.entries, data_bytes=each.data_bytes, live_entries=entries,
                    live_bytes=live_bytes, file_bytes=size))
            for number in self._counted.keys() - {each.ref.number for each in known}:
                del self._counted[number]
        return LogView(segments=tuple(gathered), limits=limits, folder=self._folder, damaged=tuple(damaged),
                       snapshot_index=None if state is None else state.index)

    def _live_part(self, known: SegmentStats, state: SnapshotMeta, size: int) -> tuple[int, int]:
        """Count the live entries of a segment, and their payload bytes."""
        ref = known.ref
        # The entries above `covered` are live.
        covered = -1 if state.index < ref.first else min(state.index, ref.last)
        live = state.live.between(ref.first, covered) if covered >= 0 else IndexSet()
        if covered == ref.last and not live:
            return 0, 0
        key = known, covered, live, size
        before = self._counted.get(ref.number)
        if before is None or before[0] != key:
            index = self._segments.index_of(ref.number)
            kept = kept_positions(index, ref, state)
            before = self._counted[ref.number] = key, (len(kept), sum(picked(index.lengths, kept)))
        return before[1]

    def plan(self, policy: LogPolicy | None = None, *, view: LogView | None = None) -> LogPlan:
        """Plan a compaction: what it would drop and rewrite, and the reason for each other segment. Changes nothing.

        Without a policy the owner's trigger decides: if it is due and the disk has room for the rewrites, the log's own
        policy chooses; else `DropDead` does, and the plan names the gate. A `LogReader` uses `SeedPolicy()`.

        Args:
            policy: chooses the victims.
            view: to plan for; default the current view.

        Raises:
            InvalidInput: the policy's choice breaks a rule, or the view is of another log.
            Closed: the log was closed.
            Exception: of the policy or the trigger.
        """
        self._require_open()
        if view is not None and view.folder and view.folder != self._folder:
            raise InvalidInput(f"the view is of the log in {view.folder}, and this log is in {self._folder}")
        return self._planned(self.view() if view is None else view, policy)

    @abstractmethod
    def _planned(self, view: LogView, policy: LogPolicy | None) -> LogPlan:
        """The plan for a view."""

    # -- damage

    def verify(self, *, budget: Budget | None = None) -> VerifyReport:
        """Read every entry, also in a store's WAL, and list what is damaged or missing.

        A live index without an entry is missing. Compactions may run at the same time. The budget is checked before
        each segment.
        """
        self._require_open()
        seen = Examination()
        try:
            self.examine(seen, budget=budget)
        except CompactlibError:
            self._require_open()
            raise
        # The files of a log that was closed meanwhile may be gone.
        self._require_open()
        wal = wal_of(self._folder)
        if wal is not None:
            examine_wal(wal, os.path.basename(os.path.realpath(self._folder)), seen)
        return seen.report()

    def examine(self, seen: Examination, *, budget: Budget | None = None) -> None:
        """As `verify`, without the WAL; for callers that verify many logs of a store."""
        with self._segments.lease():
            examine_segments(self._folder, seen, budget=budget)
            lost = self.state.live - self.unflushed
            # A damaged segment is listed already.
            lost -= self._segments.held(lost, counted=(CorruptData, Unsupported))
        for index in lost:
            try:
                # It may have died, or moved to another segment.
                self.read(index)
            except CorruptData as error:
                seen.note(error, kind="missing")
        hole = self._hole() if self._is_contiguous else None
        if hole is not None and hole == self._hole():
            seen.note(self._missing(hole), kind="missing")

    @property
    def _is_contiguous(self) -> bool:
        """Whether the log has no gaps above the snapshot: so a log of a store."""
        return self._memtable is not None

    def _hole(self) -> int | None:
        """The first missing index above the snapshot, by the ranges of the segments; `None` without a hole."""
        held = self.unflushed.union(*(IndexSet.range(ref.first, ref.last) for ref in self._segments.refs))
        first = self.state.index + 1
        above = held.at_least(first)
        if not above:
            return None
        wanted = IndexSet.range(first or above.first, above.last)
        missing = wanted - above
        return missing.first if missing else None

    def _missing(self, index: int) -> CorruptData:
        return CorruptData(path=self._folder, offset=0, index=index, found="no segment",
                           expected=f"a segment that holds entry {index}, since the log has later entries")

    def __repr__(self) -> str:
        return (f"<{type(self).__name__} of {self._folder!r}: {len(self.refs)} segments up to {self.last_index}, "
                f"snapshot {self.state.index}>")
