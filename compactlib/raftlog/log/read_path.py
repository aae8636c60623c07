# SPDX-License-Identifier: Apache-2.0
"""Reading the segments of a log: for the log's owner, or for a reader of its folder.

What is looked up may be overtaken by a snapshot and a compaction, in this process or another; then it is looked up
again by the list as it is by then, and what cannot be found although it is alive is damage.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from compactlib.clock import Clock
from compactlib.errors import Closed, CompactlibError, CorruptData, InvalidInput, NotFound, Unsupported
from compactlib.indexset.index_set import IndexSet
from compactlib.raftlog.arguments import whole
from compactlib.raftlog.compaction.plan.view import DamagedSegment, LogView
from compactlib.raftlog.compaction.sense.statistics import StatsCache
from compactlib.raftlog.errors import LiveIndexMissing
from compactlib.raftlog.log.folder import Examination, examine_segments, wal_of
from compactlib.raftlog.log.read_plan import ReadPlan, plan_parts
from compactlib.raftlog.model.refs import asked_refs, next_ref
from compactlib.raftlog.model.snapshot_meta import SnapshotMeta
from compactlib.raftlog.model.values import (
    DamagedEntry,
    DeadEntry,
    Entry,
    MissingEntry,
    SegmentLimits,
    SegmentRef,
)
from compactlib.raftlog.segment.known import KnownSegment
from compactlib.raftlog.segment.liveness import kept_positions
from compactlib.raftlog.segment.segment_set import Lease, SegmentSet
from compactlib.report import Finding, VerifyReport
from compactlib.runtime.breather import Breather
from compactlib.runtime.budget import Budget

if TYPE_CHECKING:
    from compactlib.raftlog.log.unflushed import Unflushed

_MAX_LOOKS = 100
_MAX_VIEWS = 3


class SegmentReadPath:
    """The segments of a log and its snapshot as they were last seen, and every way to read them.

    Threads may share one. Its owner replaces `segments`, `state` and `unflushed`.

    Args:
        segments: the log's segments.
        state: the snapshot in force.
        read: how the log answers for one index.
        follow: brings the list up to what was appended; called before it is looked at.
        refresh: looks at the folder again, since what is listed has gone or died.
        held: gives the indexes that a store has in memory, and no segment needs to hold.
        is_behind: whether a snapshot was recorded since the folder was looked at: what was alive then may be gone.
        require_mine: raises `Closed` in a process that must not use the log, such as a fork of its owner.
    """

    def __init__(self, segments: SegmentSet, state: SnapshotMeta | None, *,
                 read: Callable[[int], Entry | DeadEntry | MissingEntry], follow: Callable[[], object] = lambda: None,
                 refresh: Callable[[], object] = lambda: None, held: Callable[[], IndexSet] = IndexSet,
                 is_behind: Callable[[], bool] = lambda: False,
                 require_mine: Callable[[], object] = lambda: None) -> None:
        self.segments: SegmentSet = segments
        self.state: SnapshotMeta | None = state
        self.unflushed: Unflushed | None = None
        self.is_closed: bool = False
        self._folder = segments.folder
        self._read = read
        self._follow = follow
        self._refresh = refresh
        self._held = held
        self._is_behind = is_behind
        self._require_mine = require_mine
        self._stats = StatsCache()

    @property
    def refs(self) -> tuple[SegmentRef, ...]:
        """The segments, oldest first, with the range of indexes each answers for."""
        self._follow()
        return self.segments.refs if self.unflushed is None else self.unflushed.below(self.segments.refs)

    @property
    def first_index(self) -> int | None:
        """The lowest index in the log, `None` if it is empty."""
        refs, unflushed = self.refs, self.unflushed
        if not refs and unflushed is not None and unflushed.slabs:
            return unflushed.slabs[0].first
        return refs[0].first if refs else None

    @property
    def last_index(self) -> int | None:
        """The highest index in the log, `None` if it is empty."""
        refs, unflushed = self.refs, self.unflushed
        if unflushed is not None and unflushed.slabs:
            return unflushed.slabs[-1].last
        return refs[-1].last if refs else None

    def read(self, index: int) -> Entry | DeadEntry | MissingEntry:
        """The entry of `index`, or that it is dead, or that the log never held it. One bisection and one `pread`.

        Raises:
            CorruptData: the entry is damaged, or it is live and no segment holds it.
        """
        if self.is_closed:
            self.require_open()
        if type(index) is not int:
            index = whole("the index", index)
        state = self.state
        if state is not None and index <= state.index and not state.live.holds(index):
            return DeadEntry(index, state.index)
        try:
            entry = self.segments.read(index) if self.unflushed is None else self._find(index)
        except NotFound:
            return self._look_again(index)
        return entry if entry is not None else self.absent(index)

    def _find(self, index: int) -> Entry | None:
        unflushed = self.unflushed
        if unflushed is not None and index >= unflushed.base:
            return unflushed.find(index)
        return self.segments.read(index)

    def absent(self, index: int) -> Entry | DeadEntry | MissingEntry:
        """What to answer for an index that was not found where it would be."""
        self.require_open()
        state = self.state
        above = state is None or index > state.index
        return MissingEntry(index) if above and not self._is_behind() else self._look_again(index)

    def _has_died(self, index: int) -> bool:
        try:
            return isinstance(self._read(index), DeadEntry)
        except CorruptData:
            return False

    def _look_again(self, index: int) -> Entry | DeadEntry | MissingEntry:
        """What to answer for an index that a snapshot and a compaction may have overtaken while it was looked up."""
        for _ in range(_MAX_LOOKS):
            self.require_open()
            self._refresh()
            state = self.state
            if state is not None and state.is_dead(index):
                return DeadEntry(index, state.index)
            with contextlib.suppress(NotFound):
                entry = self._find(index)
                if entry is not None:
                    return entry
                if state is None or index > state.index:
                    return MissingEntry(index)
                if state is self.state:
                    break
        raise CorruptData(path=self._folder, offset=0, index=index, found="none",
                          expected=f"a segment that holds the live entry {index}")

    def plan_read(self, indexes: Sequence[int]) -> ReadPlan:
        """Decide now which segments answer for `indexes` (strictly ascending), and hold them until it is closed.

        Raises:
            Unsorted: the indexes do not ascend strictly.
        """
        self.require_open()
        # Before the list is looked at, so that everything it leads to stays.
        lease = self.lease()
        try:
            parts = plan_parts(self.refs, indexes)
        except BaseException:
            lease.release()
            raise
        return ReadPlan(parts, lease, reader=lambda number: self.segments.reader(number), state=lambda: self.state,
                        again=self._read)

    def scan(self, first: int, last: int) -> Iterator[Entry | DamagedEntry]:
        """Every entry from `first` to `last` that is not dead, ascending, and what is damaged; see `LogReader.scan`."""
        self.require_open()
        first, last = whole("first", first), whole("last", last)
        with self.lease():
            unflushed, asked = self.unflushed, last
            refs = self.refs
            last = min(last, refs[-1].last) if refs else -1
            outdated: SegmentRef | None = None
            while first <= last and (ref := next_ref(self.refs, first)) is not None:
                part = SegmentRef(ref.number, max(ref.first, first), min(ref.last, last))
                try:
                    reader = self.segments.reader(ref.number)
                    # Only now: a state older than the file would look for what was left out of it.
                    kept = kept_positions(reader.index, part, self.state)
                except (NotFound, LiveIndexMissing) as error:
                    if ref == outdated:
                        lost = error.first if isinstance(error, LiveIndexMissing) else None
                        if lost is None or lost not in self._held():
                            raise
                        # From there on all was taken back since, and what came instead is in no segment.
                        last = lost - 1
                    outdated = ref
                    self._refresh()
                    continue
                for answer in reader.answers_at(kept):
                    # As above: what has died meanwhile is left out.
                    if not (isinstance(answer, DamagedEntry) and self._has_died(answer.index)):
                        yield answer
                first = part.last + 1
        for slab in () if unflushed is None else unflushed.slabs:
            for entry in slab.entries(first, asked):
                if self.state is None or not self.state.is_dead(entry.index):
                    yield entry

    def entries(self, first: int, last: int) -> Iterator[Entry]:
        """As `scan`, and ends at damage.

        Raises:
            CorruptData: an entry is damaged; those before it have been given.
        """
        for answer in self.scan(first, last):
            if isinstance(answer, DamagedEntry):
                raise answer.error
            yield answer

    def lease(self) -> Lease:
        """Keep every file that can be read now from being removed by this process until the lease is released."""
        self._follow()
        return self.segments.lease()

    # -- as a compaction sees it

    def view(self, look: Callable[[], tuple[SnapshotMeta | None, Sequence[KnownSegment]]], limits: SegmentLimits,
             budget: Budget | None, clock: Clock) -> LogView:
        """What a policy sees of the state and the segments that `look` gives; looks again for what has gone meanwhile.

        Other threads get on meanwhile.

        One that has left the list was removed by a compaction, or taken back by a flush: that is no damage. One that is
        still listed may be about to be replaced.

        Raises:
            BudgetSpent: the budget refused.
            Closed: the log was closed.
        """
        looks = 0
        while True:
            view = self._view_of(*look(), limits, budget, Breather(clock))
            lost = {each.number for each in view.damaged if isinstance(each.error, NotFound)}
            if not lost:
                return view
            self._refresh()
            looks += 1
            if looks >= _MAX_VIEWS and lost.issubset(ref.number for ref in self.segments.refs):
                return view

    def _view_of(self, state: SnapshotMeta | None, known: Sequence[KnownSegment], limits: SegmentLimits,
                 budget: Budget | None, breather: Breather) -> LogView:
        """What a policy sees of these segments. One that cannot be judged is listed as damaged."""
        self.require_open()
        damaged: dict[int, CompactlibError] = {}
        stats = self._stats.gather(self.segments, state, known=known, damaged=damaged, budget=budget,
                                   breathe=breather.breathe)
        return LogView(
            segments=stats, limits=limits, snapshot_index=None if state is None else state.index,
            folder=self._folder, damaged=tuple(DamagedSegment(*each) for each in sorted(damaged.items())))

    def require_own(self, view: LogView) -> LogView:
        """The view, if it may be of this log.

        Raises:
            InvalidInput: it is none, or of another log.
        """
        if not isinstance(view, LogView):
            raise InvalidInput(f"the view is {view!r:.100}; give one that view() made")
        if view.folder and view.folder != self._folder:
            raise InvalidInput(f"the view is of the log in {view.folder}, and this is the one in {self._folder}")
        return view

    # -- looking for damage

    def verify(self, budget: Budget | None, leftovers: Callable[[], Sequence[str]]) -> VerifyReport:
        """See `LogReader.verify`, and `examine` for the arguments."""
        self.require_open()
        seen = Examination()
        self.examine(seen, budget, leftovers)
        wal = wal_of(self._folder)
        if wal is not None:
            from compactlib.raftlog.log.unflushed import examine_wal

            examine_wal(wal, os.path.basename(os.path.realpath(self._folder)), seen)
        return seen.report()

    def examine(self, seen: Examination, budget: Budget | None, leftovers: Callable[[], Sequence[str]]) -> None:
        """As `verify`, without the write-ahead log.

        Args:
            seen: takes what is found.
            budget: asked before each segment.
            leftovers: gives the names that an interrupted compaction has left.
        """
        with self.lease():
            examine_segments(self._folder, seen, budget=budget)
            lost = IndexSet() if self.state is None else self.state.live - self._held()
            found: list[IndexSet] = []
            for ref, here in asked_refs(self.refs, lost):
                try:
                    found.append(here & self.segments.reader(ref.number).index.index_set())
                except (CorruptData, Unsupported):
                    # Listed already, once for all its entries.
                    found.append(here)
                except NotFound:
                    continue
            lost = lost - IndexSet().union(*found)
        for index in lost:
            try:
                # It may have died, or moved to another segment.
                self._read(index)
            except CorruptData as error:
                seen.note(error, kind="missing")
        for name in leftovers():
            seen.findings.append(Finding("leftover", os.path.join(self._folder, name),
                                         "left by an interrupted compaction; the next one finishes or removes it"))

    def described(self, kind: str) -> str:
        """The log in one line."""
        return f"<{kind} of {self._folder!r}: {len(self.refs)} segments, {self.first_index} to {self.last_index}, " \
               f"snapshot {None if self.state is None else self.state.index}>"

    def require_open(self) -> None:
        """Return unless the log was closed, or is that of another process.

        Raises:
            Closed: it was, or is.
        """
        if self.is_closed:
            raise Closed(f"the log in {self._folder} is closed; open it again")
        self._require_mine()

    def close(self) -> None:
        """Let all files go; closing again does nothing."""
        self.is_closed = True
        self.segments.close()
