# SPDX-License-Identifier: Apache-2.0
"""The segments below a `RaftLog`: written by flushes, and cut when the log takes back entries that they hold."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import TypeVar

from compactlib._closing import Closing
from compactlib.errors import NotFound, StorageError
from compactlib.files.disk import StrPath
from compactlib.guard import Guard
from compactlib.indexset.index_set import IndexSet
from compactlib.raftlog.log.segment_log import SegmentLog
from compactlib.raftlog.memtable.flush import FlushPlan, NewestStats
from compactlib.raftlog.memtable.table import Memtable, Slab, Table, visible_slabs
from compactlib.raftlog.model.gap import KeptGap
from compactlib.raftlog.model.hard_state import KeptHardState
from compactlib.raftlog.model.refs import next_ref
from compactlib.raftlog.model.values import SegmentRef
from compactlib.raftlog.options import LogOptions
from compactlib.raftlog.segment.reader import SegmentReader
from compactlib.runtime.breather import Breather

_RUN_ENTRIES = 1024
"""Flushed at a stretch, in about a millisecond, before a read of another thread has its turn."""
_MAX_ATTEMPTS = 100
_SeenT = TypeVar("_SeenT")


class LogSegments(Closing):
    """The `SegmentLog` that is one half of a `RaftLog`: the other half, the memtable, may hold live entries as well.

    Errors as `SegmentLog`.

    Args:
        folder: the log's folder.
        memtable: what is in no segment yet.
        options: how it is kept.
        row_is_lost: see `SegmentLog`.

    Attributes:
        log: the segments as a log by themselves: for those who read and compact them.
        guard: its lock is held by a flush of this log, and by a cut; taken before the log's own lock. A cut that was
            left half way closes the log.
        hard_state: the member's term and vote, which lie in the same folder.
        gap: where a gap is in which no index is missing, there too.
    """

    def __init__(self, folder: StrPath, memtable: Memtable, options: LogOptions | None = None, *,
                 row_is_lost: bool = False) -> None:
        options = LogOptions() if options is None else options
        self.log: SegmentLog = SegmentLog(folder, options, memtable=memtable, row_is_lost=row_is_lost)
        try:
            self.hard_state: KeptHardState = KeptHardState(options.files, self.log.folder)
            self.gap: KeptGap = KeptGap(options.files, self.log.folder)
        except BaseException:
            self.log.close()
            raise
        self.guard: Guard = Guard(f"the log in {self.log.folder}")
        self._clock = options.clock
        self._segments = self.log.segments
        # From an index above the snapshot to the end of a segment, which is not the newest, every index was held: so it
        # is as long as that one is listed like this, since entries are taken back from the end.
        self._whole: tuple[int, SegmentRef | None] = (0, None)

    # -- writing

    @property
    def last(self) -> int:
        """The last index that segments hold, -1 if none."""
        last = self._segments.last_index
        return -1 if last is None else last

    def newest_stats(self) -> NewestStats:
        """What a flush plan wants to know of the segment that is appended to."""
        newest = self._segments.known_of(self._segments.newest_number)
        return NewestStats() if newest is None else NewestStats(newest.ref.last, newest.data_bytes)

    def write(self, plan: FlushPlan) -> None:
        """Carry out a flush plan durably. What segments hold already is not written again.

        Raises:
            StorageError: the disk refused; what was written since the last sync is taken back, call again. If that is
                refused too, the log is closed.
            Closed: the log was closed.
        """
        if plan.successor:
            self._undone_if_refused(self._segments.end_segment)
        breather = Breather(self._clock)
        for slab in plan.slabs:
            for start in range(max(self.last + 1 - slab.first, 0), len(slab.payloads), _RUN_ENTRIES):
                payloads = slab.payloads[start:start + _RUN_ENTRIES]
                self._undone_if_refused(self._segments.append_run, slab.first + start, slab.term, payloads)
                breather.breathe()
        self._undone_if_refused(self._segments.sync)

    def _undone_if_refused(self, change: Callable[..., object], *arguments: object) -> None:
        with self.log.guard.lock:
            try:
                change(*arguments)
            except StorageError:
                self._segments.take_back()
                raise

    def prepare_cut(self, after: int) -> None:
        """Make sure that `cut` needs no room. What is raised has changed nothing.

        Raises:
            StorageError, Closed: the disk refused, or the log was closed.
        """
        if self.last > after:
            self._segments.prepare_truncation()

    def cut(self, after: int) -> None:
        """Remove every entry above `after` from the files, durably; see `Segments.truncate`."""
        self._segments.truncate(after)

    def roll_forward(self, tables: Sequence[Table], row_index: int) -> None:
        """Make the cuts again that the WAL names and a crash may have left half way.

        What agrees with the tables stays: a flush has written it since the cut. So does what the snapshot covers, which
        was recorded after the cuts below it were whole.

        Args:
            tables: replayed from the WAL.
            row_index: the snapshot's index.
        """
        cuts = [table.base - 1 for table in tables if table.cuts]
        if cuts:
            self.cut(self._agreeing_through(max(min(cuts), row_index), visible_slabs(tables)))

    def _agreeing_through(self, after: int, slabs: Sequence[Slab]) -> int:
        """Up to where segments hold, above `after`, exactly what `slabs` (ascending) say, or a beginning of it."""
        for slab in slabs:
            if slab.last <= after:
                continue
            first = max(slab.first, after + 1)
            held = self.next_index(after + 1)
            if held is None or held < first:
                break
            count = self.matching(first, slab.last, slab.term)
            after = first + count - 1 if count else after
            if after < slab.last:
                break
        return after

    # -- asking

    def term_of(self, index: int) -> int | None:
        """The term of the entry of `index`, dead or not, `None` if no segment holds it."""
        return self._retried(lambda: self._segments.term_of(index))

    def next_index(self, index: int) -> int | None:
        """The lowest index from `index` on that segments hold, dead or not; `None` if there is none."""
        return self._retried(lambda: self._segments.next_index(index))

    def previous_index(self, index: int) -> int:
        """The highest index up to `index` that segments hold, dead or not; -1 if there is none."""
        return self._retried(lambda: self._segments.previous_index(index))

    def matching(self, first: int, last: int, term: int) -> int:
        """How many entries from `first` on, up to `last`, are held with this term: for a replay. O(entries), in C."""
        return self._retried(lambda: self._segments.matching(first, last, term))

    def open_for(self, indexes: IndexSet) -> list[tuple[SegmentReader, IndexSet]]:
        """The open segments that hold `indexes`, each with those that it holds, ascending."""
        return self._retried(lambda: self._segments.open_for(indexes))

    def contiguous_through(self, first: int, last: int) -> int:
        """Up to where segments hold every index from `first` to `last`; `first - 1` if they do not hold that one.

        O(log segments) for each that was added since the last call; the index of one is read only if it has gaps.
        """
        return self._retried(lambda: self._contiguous_through(first, last))

    def _retried(self, ask: Callable[[], _SeenT]) -> _SeenT:
        """The answer; asked again, by the list as it is then, when a segment that was listed has gone meanwhile."""
        for _ in range(_MAX_ATTEMPTS - 1):
            with contextlib.suppress(NotFound):
                return ask()
        return ask()

    def _contiguous_through(self, first: int, last: int) -> int:
        refs, through = self._segments.refs, first - 1
        begun, whole = self._whole
        if whole is None or not begun <= first <= whole.last or next_ref(refs, whole.last) != whole:
            begun = first
        else:
            through = whole.last
        while through < last and (ref := next_ref(refs, through + 1)) is not None and ref.first <= through + 1:
            known = self._segments.known_of(ref.number)
            # It may have changed since the list was read.
            if known is not None and known.is_dense and known.ref.first <= ref.first <= ref.last <= known.ref.last:
                through = ref.last
                if ref != refs[-1]:
                    self._whole = begun, ref
                continue
            held = self._segments.index_of(ref.number).index_set().between(through + 1, ref.last)
            if not held or held.first > through + 1:
                break
            _, through = next(held.runs())
            if through < ref.last:
                break
        return min(through, last)

    def close(self) -> None:
        """See `SegmentLog.close`."""
        self.log.close()
