# SPDX-License-Identifier: Apache-2.0
"""Reading the segments of a log: for the log's owner, or for a reader of its folder.

**There, dead, or missing** is answered here and nowhere else. A read takes no lock: it asks the snapshot's row whether
the index is dead, and memory and the list which segment holds it. In between, this process or another may record a
snapshot and compact. So what was not found is read again after a refresh (`_read_again`); a live index that is missing
twice under the same row is damage. Scans and plans of reads hold a lease, and read single entries again the same way.
"""

from __future__ import annotations

import contextlib
import os
from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

from compactlib._closing import Closing
from compactlib.budget import Budget
from compactlib.errors import CorruptData, InvalidInput, NotFound, Unsupported
from compactlib.guard import Guard
from compactlib.indexset import IndexSet
from compactlib.raftlog.arguments import require_ascending
from compactlib.raftlog.compaction.policy import LogView
from compactlib.raftlog.errors import LiveIndexMissing
from compactlib.raftlog.log.folder import Examination, examine_segments, wal_of
from compactlib.raftlog.model.refs import asked_refs, next_ref
from compactlib.raftlog.model.snapshot_meta import NO_SNAPSHOT, SnapshotMeta
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
from compactlib.raftlog.segment.liveness import kept_positions
from compactlib.raftlog.segment.segment_list import Lease, SegmentList
from compactlib.report import Finding, VerifyReport

if TYPE_CHECKING:
    from compactlib.raftlog.memtable import Memtable, Slab


_MAX_ATTEMPTS = 100
_T = TypeVar("_T")


class LogReading(Closing):
    """The reads of a log, for `SegmentLog` and `LogReader`. Threads may share one.

    Args:
        folder: the log's.
        segments: its segments, with the row of the snapshot in force.
        guard: whether the log can be used.
        memtable: of a log of a store: what it says on top of the segments.
    """

    def __init__(self, folder: str, segments: SegmentList, guard: Guard, memtable: Memtable | None = None) -> None:
        self._folder = folder
        self._segments = segments
        self._guard = guard
        self._memtable = memtable

    def _require_open(self) -> None:
        self._guard.require_open()

    # -- for the classes that inherit

    @abstractmethod
    def leftovers(self) -> Sequence[str]:
        """Names that an interrupted compaction has left."""

    def refresh(self) -> None:
        """Read the folder again. The owner of the log has nothing to read: it made every change itself."""

    def _is_behind(self) -> bool:
        """Whether a snapshot was recorded since the folder was read: what was alive then may be gone."""
        return False

    @property
    def unflushed(self) -> IndexSet:
        """Which entries a log's store holds in memory, or in its write-ahead log, and no segment yet."""
        return IndexSet() if self._memtable is None else self._memtable.indexes()

    # -- the log

    @property
    def folder(self) -> str:
        """The log's folder, as an absolute path."""
        return self._folder

    @property
    def refs(self) -> tuple[SegmentRef, ...]:
        """The segments, oldest first, with the range of indexes each answers for."""
        refs, memtable = self._segments.refs, self._memtable
        base = MAX_INDEX + 1 if memtable is None else memtable.base
        if not refs or refs[-1].last < base:
            return refs
        return tuple(ref if ref.last < base else SegmentRef(ref.number, ref.first, base - 1)
                     for ref in refs if ref.first < base)

    @property
    def first_index(self) -> int | None:
        """The lowest index that can be read, `None` if none can."""
        row, slabs = self.state, self._slabs()
        if row.live:
            return row.live.first
        start, base = row.index + 1, MAX_INDEX + 1 if self._memtable is None else self._memtable.base
        found = self._asked(lambda: self._segments.next_index(start)) if start < base else None
        if found is not None and found < base:
            return found
        return min((max(slab.first, start) for slab in slabs if slab.last >= start), default=None)

    @property
    def last_index(self) -> int:
        """The highest index held, or the snapshot's if that is higher; -1 in an empty log."""
        refs, slabs = self.refs, self._slabs()
        return max(slabs[-1].last if slabs else refs[-1].last if refs else -1, self.state.index)

    @property
    def state(self) -> SnapshotMeta:
        """What the last snapshot left, as one value; its index is -1 before the first."""
        return self._segments.row or NO_SNAPSHOT

    def _slabs(self) -> Sequence[Slab]:
        if self._memtable is None or not self._memtable.tables:
            return ()
        from compactlib.raftlog.memtable import visible_slabs  # loaded for logs of a store alone

        return visible_slabs(self._memtable.tables)

    def _asked(self, ask: Callable[[], _T]) -> _T:
        """The answer of the segments; asked again, by the list as it is then, when one has gone meanwhile."""
        for _ in range(_MAX_ATTEMPTS - 1):
            try:
                return ask()
            except NotFound:
                self.refresh()
        return ask()

    # -- one index

    def read(self, index: int) -> Entry | DeadEntry | MissingEntry:
        """The entry of `index`, or that it is dead, or that the log never held it.

        From memory, or with one bisection and one `pread`.

        Raises:
            CorruptData: the entry is damaged, or it is live and no segment holds it.
            Closed: the log was closed.
        """
        self._require_open()
        row = self._segments.row
        if row is not None and index <= row.index and not row.live.holds(index):
            return DeadEntry(index, row.index)
        try:
            entry = self._segments.read(index) if self._memtable is None else self._find(index)
        except NotFound:
            return self._read_again(index)
        if entry is not None:
            return entry
        row = self._segments.row
        above = row is None or index > row.index
        return MissingEntry(index) if above and not self._is_behind() else self._read_again(index)

    def _find(self, index: int) -> Entry | None:
        # The tables before the segments: what leaves the tables is in segments by then.
        for table in reversed(() if self._memtable is None else self._memtable.tables):
            if index >= table.base:
                return table.find(index)
        return self._segments.read(index)

    def _read_again(self, index: int) -> Entry | DeadEntry | MissingEntry:
        """What to answer for an index that a snapshot and a compaction may have overtaken while it was looked up."""
        for _ in range(_MAX_ATTEMPTS):
            self._require_open()
            self.refresh()
            row = self._segments.row
            if row is not None and row.is_dead(index):
                return DeadEntry(index, row.index)
            try:
                entry = self._find(index)
            except NotFound:
                # It was in a file that has gone since: the list leads elsewhere by now.
                continue
            if entry is not None:
                return entry
            if row is None or index > row.index:
                return MissingEntry(index)
            if row is self._segments.row:
                break
        raise CorruptData(path=self._folder, offset=0, index=index, found="none",
                          expected=f"a segment that holds the live entry {index}")

    # -- many

    def read_many(self, indexes: Sequence[int]) -> Iterator[Answer]:
        """One answer for each of `indexes` (strictly ascending), in order; physical neighbours are read together.

        Damage to one entry is its answer, `DamagedEntry`, and does not hide the others.

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
        require_ascending(indexes)
        return ReadPlan(self, indexes)

    def entries(self, first: int = 0, last: int = MAX_INDEX) -> Iterator[Entry]:
        """Every entry from `first` to `last` that is not dead, ascending; physical neighbours are read together.

        Raises:
            CorruptData: an entry is damaged, or one that a log of a store must hold is missing; those before it have
                been given.
            LiveIndexMissing: a live entry is not in its segment.
        """
        following = max(first, self.state.index + 1) if self.state.index >= 0 else -1
        for answer in self.scan(first, last):
            if isinstance(answer, DamagedEntry):
                raise answer.error
            # A snapshot may have covered what is missing meanwhile.
            if self._is_contiguous and -1 < following < answer.index and following > self.state.index:
                raise self._missing(following)
            following = max(following, answer.index + 1)
            yield answer

    def scan(self, first: int = 0, last: int = MAX_INDEX) -> Iterator[Entry | DamagedEntry]:
        """As `entries`, but goes on behind damage, which it answers as `DamagedEntry`.

        Uses the list of segments as it is when each is reached, so that compactions may run meanwhile: an entry that
        dies before is left out. What is appended meanwhile may be left out too.
        """
        self._require_open()
        with self._segments.lease():
            # The tables before the segments, as above.
            slabs, through = self._slabs(), self._end_of_segments()
            failed: SegmentRef | None = None
            while first <= min(last, through) and (ref := next_ref(self.refs, first)) is not None:
                part = SegmentRef(ref.number, max(ref.first, first), min(ref.last, last, through))
                try:
                    reader = self._segments.reader(ref.number)
                    # Only now: a state older than the file would ask for what was left out of it.
                    kept = kept_positions(reader.index, part, self._segments.row)
                except (NotFound, LiveIndexMissing) as error:
                    if ref == failed:
                        missing = error.first if isinstance(error, LiveIndexMissing) else None
                        if missing is None or missing not in self.unflushed:
                            raise
                        # What is from there on is in no segment.
                        through = missing - 1
                        continue
                    failed = ref
                    self.refresh()
                    slabs, through = self._slabs(), self._end_of_segments()
                    continue
                for answer in reader.answers_at(kept):
                    # As above: what has died meanwhile is left out.
                    if not (isinstance(answer, DamagedEntry) and self._has_died(answer.index)):
                        yield answer
                first = part.last + 1
        for slab in slabs:
            for entry in slab.entries(first, last):
                if self._segments.row is None or not self._segments.row.is_dead(entry.index):
                    yield entry

    def _end_of_segments(self) -> int:
        refs = self.refs
        return refs[-1].last if refs else -1

    def _has_died(self, index: int) -> bool:
        try:
            return isinstance(self.read(index), DeadEntry)
        except CorruptData:
            return False

    def lease(self) -> Lease:
        """Keep every file that can be read now from being removed by this process's compactions until the lease is
        released. What is truncated goes all the same: it was never committed.
        """
        return self._segments.lease()

    # -- statistics

    def stats(self) -> tuple[SegmentStats, ...]:
        """What a policy may know of each segment, oldest to newest: `view().segments`."""
        return self.view().segments

    @abstractmethod
    def view(self, *, budget: Budget | None = None) -> LogView:
        """The log as a policy sees it now. A segment that cannot be judged is listed as damaged.

        Args:
            budget: asked before each segment whose index has to be read.

        Raises:
            BudgetSpent: the budget refused.
            Closed: the log was closed.
        """

    def _require_own(self, view: LogView) -> LogView:
        if view.folder and view.folder != self._folder:
            raise InvalidInput(f"the view is of the log in {view.folder}, and this is the one in {self._folder}")
        return view

    # -- damage

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
        seen = Examination()
        self.examine(seen, budget=budget)
        wal = wal_of(self._folder)
        if wal is not None:
            # Loaded for logs of a store alone.
            from compactlib.raftlog.log.unflushed import examine_wal

            examine_wal(wal, os.path.basename(os.path.realpath(self._folder)), seen)
        return seen.report()

    def examine(self, seen: Examination, *, budget: Budget | None = None) -> None:
        """As `verify`, without the write-ahead log; for callers that verify many logs of a store."""
        with self._segments.lease():
            examine_segments(self._folder, seen, budget=budget)
            row = self._segments.row
            lost = IndexSet() if row is None else row.live - self.unflushed
            found: list[IndexSet] = []
            for ref, here in asked_refs(self.refs, lost):
                try:
                    found.append(here & self._segments.index_of(ref.number).index_set())
                except (CorruptData, Unsupported):
                    # Listed already, once for all its entries.
                    found.append(here)
                except NotFound:
                    continue
            lost = lost - IndexSet().union(*found)
        for index in lost:
            try:
                # It may have died, or moved to another segment.
                self.read(index)
            except CorruptData as error:
                seen.note(error, kind="missing")
        hole = self._hole() if self._is_contiguous else None
        if hole is not None and hole == self._hole():
            seen.note(self._missing(hole), kind="missing")
        for name in self.leftovers():
            seen.findings.append(Finding("leftover", os.path.join(self._folder, name),
                                         "left by an interrupted compaction; the next one finishes or removes it"))

    @property
    def _is_contiguous(self) -> bool:
        """Whether every index above the snapshot must be held: a log of a store has no gaps there."""
        return self._memtable is not None

    def _hole(self) -> int | None:
        """The first index that is missing above the snapshot, by the ranges of the segments; `None` if none is."""
        held = self.unflushed.union(*(IndexSet.range(each.ref.first, each.ref.last) for each in self._segments.known()))
        above = held.at_least(self.state.index + 1)
        if not above:
            return None
        wanted = IndexSet.range(self.state.index + 1 if self.state.index >= 0 else above.first, above.last)
        missing = wanted - above
        return missing.first if missing else None

    def _missing(self, index: int) -> CorruptData:
        return CorruptData(path=self._folder, offset=0, index=index, found="none",
                           expected=f"a segment that holds entry {index}, since later ones are there")

    def __repr__(self) -> str:
        return (f"<{type(self).__name__} of {self._folder!r}: {len(self.refs)} segments up to {self.last_index}, "
                f"snapshot {self.state.index}>")


class ReadPlan(Closing):
    """Answers for many indexes; stays valid while it is open, whatever compactions do meanwhile.

    A context manager: it holds a lease on the files until it is closed. An index that dies before it is read is
    answered as `DeadEntry`.
    """

    def __init__(self, log: LogReading, indexes: Sequence[int]) -> None:
        self._log = log
        self._indexes = indexes
        # Before the list is read, so that everything it leads to stays.
        self._lease = log._segments.lease()
        self._refs = log.refs

    def answers(self) -> Iterator[Answer]:
        """One answer per index, ascending; neighbours in a file are read together, damage is a `DamagedEntry`.

        Raises:
            CorruptData: a whole segment is damaged.
        """
        place = 0
        while place < len(self._indexes):
            ref = next_ref(self._refs, self._indexes[place])
            last = MAX_INDEX if ref is None else ref.last
            stop = bisect_right(self._indexes, last, place)
            yield from self._answers_of(None if ref is None else ref.number, self._indexes[place:stop])
            place = stop

    def _answers_of(self, number: int | None, indexes: Sequence[int]) -> Iterator[Answer]:
        row = self._log._segments.row
        alive = [index for index in indexes if row is None or not row.is_dead(index)]
        found: Iterator[Answer] = map(MissingEntry, alive)
        if number is not None and alive:
            # It may have gone: another process has compacted, or links could not be made on a full disk.
            with contextlib.suppress(NotFound):
                found = self._log._segments.reader(number).read_many(alive)
        for index in indexes:
            if row is not None and row.is_dead(index):
                yield DeadEntry(index, row.index)
                continue
            answer = next(found)
            # A gap, or an entry that has died since, perhaps by a snapshot that this reader does not know yet.
            yield self._read_again(index) if isinstance(answer, MissingEntry | DamagedEntry) else answer

    def _read_again(self, index: int) -> Answer:
        try:
            return self._log.read(index)
        except CorruptData as error:
            return DamagedEntry(index, error)

    def close(self) -> None:
        """Give the lease back; closing again does nothing."""
        self._lease.release()

    def __repr__(self) -> str:
        return f"<ReadPlan of {len(self._indexes)} indexes>"
