# SPDX-License-Identifier: Apache-2.0
"""`RaftReading`: what a Raft host asks of a log besides its entries: terms, gaps, what a follower lacks."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import TypeVar

from compactlib.errors import NotFound
from compactlib.indexset import IndexSet
from compactlib.raftlog.arguments import whole
from compactlib.raftlog.compaction.options import LogOptions
from compactlib.raftlog.log.owned_log import OwnedLog
from compactlib.raftlog.memtable import Memtable, visible_slabs
from compactlib.raftlog.model.gap import KeptGap
from compactlib.raftlog.model.refs import next_ref
from compactlib.raftlog.model.snapshot_meta import NO_SNAPSHOT, SnapshotMeta
from compactlib.raftlog.model.values import AppendAnswer, AppendEntries, Entry, SegmentRef
from compactlib.raftlog.segment.reader import SegmentReader
from compactlib.raftlog.segment.segment_list import OpenFiles

_MAX_ATTEMPTS = 100
_SeenT = TypeVar("_SeenT")


class RaftReading(OwnedLog):
    """See the module; `RaftLog` adds the writes."""

    def __init__(self, folder: str, options: LogOptions, memtable: Memtable, *, open_files: OpenFiles,
                 row_is_lost: bool = False) -> None:
        super().__init__(folder, options, memtable=memtable, row_is_lost=row_is_lost, open_files=open_files)
        self._memory = memtable
        try:
            self._gap: KeptGap = KeptGap(self._files, folder)
        except BaseException:
            self._guard.release()
            raise
        # From an index above the snapshot to the end of a segment, which is not the newest, every index was held: so it
        # is as long as that one is listed like this, since entries are taken back from the end.
        self._whole: tuple[int, SegmentRef | None] = (0, None)
        # Up to where nothing is missing, while entries behind that are; computed when it is first needed.
        self._gap_after: int | None = None
        self._knows_gap = False

    @property
    def state(self) -> SnapshotMeta:
        """The row: what the last snapshot left, as one value."""
        return self._own.row or NO_SNAPSHOT

    @property
    def last_index(self) -> int:
        """The highest index held, or the snapshot's if that is higher; -1 in an empty log. O(1).

        While a snapshot is received, and after a crash in the middle of that, entries below it are missing: what a
        host says of its log in a vote is `contiguous_through`, and the term of that index.
        """
        return self._memory.last

    @property
    def last_term(self) -> int | None:
        """The term of the last index, `None` in an empty log."""
        return self.term_of(self.last_index) if self.last_index >= 0 else None

    @property
    def first_index(self) -> int | None:
        """The lowest index that can be read, `None` if none can."""
        row = self.state
        if row.live:
            return row.live.first
        tables = self._memory.tables
        base, start = self._memory.base, row.index + 1
        found = self._asked(lambda: self._own.next_index(start)) if start < base else None
        if found is not None and found < base:
            return found
        return min((max(slab.first, start) for slab in visible_slabs(tables) if slab.last >= start), default=None)

    def term_of(self, index: int) -> int | None:
        """The term of an entry that can be read, or of the one at which the snapshot ends; `None` for any other index.
        """
        if type(index) is not int:
            index = whole("the index", index)
        row = self.state
        if index == row.index and row.term:
            return row.term
        if row.is_dead(index):
            return None
        for table in reversed(self._memory.tables):
            if index >= table.base:
                return table.term_of(index)
        return self._asked(lambda: self._own.term_of(index))

    # -- gaps

    def _through(self) -> int:
        """Up to here every index behind the snapshot is held, and follows the one before. The caller locks."""
        gap = self._find_gap()
        return self._memory.last if gap is None else gap

    def _find_gap(self) -> int | None:
        """The index before the first gap, `None` if there is no gap. The caller locks."""
        if not self._knows_gap:
            through = self._contiguous_through()
            self._gap_after = through if through < self._memory.last else None
            self._knows_gap = True
        return self._gap_after

    def _contiguous_through(self) -> int:
        row = self.state
        start = row.index + 1 if row.index >= 0 else self.first_index
        if start is None:
            return -1
        below = max(min(self._memory.base, self._memory.last + 1) - 1, start - 1)
        through = self._asked(lambda: self._dense_through(start, below))
        for slab in visible_slabs(self._memory.tables):
            if slab.first > through + 1:
                break
            through = max(through, slab.last)
        gap = self._gap.after
        return through if gap is None or gap < start - 1 else min(through, gap)

    def _dense_through(self, first: int, last: int) -> int:
        """Up to where segments hold every index from `first` to `last`; `first - 1` if they do not hold that one.

        O(log segments) for each that was added since the last call; the index of one is read only if it has gaps.
        """
        refs, through = self._own.refs, first - 1
        begun, whole_ref = self._whole
        if whole_ref is None or not begun <= first <= whole_ref.last or next_ref(refs, whole_ref.last) != whole_ref:
            begun = first
        else:
            through = whole_ref.last
        while through < last and (ref := next_ref(refs, through + 1)) is not None and ref.first <= through + 1:
            known = self._own.known_of(ref.number)
            # It may have changed since the list was read.
            if known is not None and known.is_dense and known.ref.first <= ref.first <= ref.last <= known.ref.last:
                through = ref.last
                if ref != refs[-1]:
                    self._whole = begun, ref
                continue
            held = self._own.index_of(ref.number).index_set().between(through + 1, ref.last)
            if not held or held.first > through + 1:
                break
            _, through = next(held.runs())
            if through < ref.last:
                break
        return min(through, last)

    @property
    def _kept_from(self) -> int:
        """From here on every index can be read, up to where nothing is missing; 1 in an empty log."""
        row = self.state
        if row.index >= 0:
            return row.kept_from
        begins = self.first_index
        return 1 if begins is None else begins

    def _highest_held(self, limit: int) -> int:
        """The highest index up to `limit` that is held or that the snapshot ends at; -1 if there is none."""
        held = [min(slab.last, limit) for slab in visible_slabs(self._memory.tables) if slab.first <= limit]
        if not held:
            below = min(limit, self._memory.base - 1)
            held = [self._asked(lambda: self._own.previous_index(below))]
        return max(*held, self.state.index)

    # -- what a follower lacks

    def _entries_after(self, prev_index: int, through: int, max_bytes: int) -> AppendEntries | None:
        row, first = self.state, self._kept_from
        if row.index < 0:
            prev_index = max(prev_index, first - 1)
        prev_index = min(prev_index, max(through, first - 1))
        prev_term = 0 if prev_index < first and row.index < 0 else self.term_of(prev_index)
        if prev_index < first - 1 or prev_term is None:
            return None
        entries: list[Entry] = []
        if prev_index < through:
            for entry in self.entries(prev_index + 1, through):
                max_bytes -= len(entry.payload)
                # A snapshot may leave some of them dead meanwhile: what is behind such a gap is not sent.
                if entry.index != prev_index + 1 + len(entries) or (entries and max_bytes < 0):
                    break
                entries.append(entry)
        return AppendEntries(prev_index, prev_term, tuple(entries))

    def _next_index(self, answer: AppendAnswer, through: int) -> int:
        wanted, first = answer.conflict_term, max(self._kept_from, answer.next_index)
        if wanted is None or first > through:
            return answer.next_index
        # What it holds of that term, if anything, lies together.
        after = first + bisect_right(range(first, through + 1), wanted, key=lambda index: self.term_of(index) or 0)
        return after if self.term_of(after - 1) == wanted else answer.next_index

    # -- segments that a compaction may take away

    def _asked(self, ask: Callable[[], _SeenT]) -> _SeenT:
        """The answer of the segments; asked again, by the list as it is then, when one has gone meanwhile."""
        for _ in range(_MAX_ATTEMPTS - 1):
            try:
                return ask()
            except NotFound:
                continue
        return ask()

    def _matching(self, first: int, last: int, term: int) -> int:
        """How many entries from `first` on, up to `last`, segments hold with this term: for a replay."""
        return self._asked(lambda: self._own.matching(first, last, term))

    def _agreeing_through(self, after: int) -> int:
        """Up to where segments hold, above `after`, exactly what memory says, or a beginning of it."""
        for slab in visible_slabs(self._memory.tables):
            if slab.last <= after:
                continue
            first = max(slab.first, after + 1)
            above = after + 1
            held = self._asked(lambda above=above: self._own.next_index(above))  # type: ignore[misc]
            if held is None or held < first:
                break
            count = self._matching(first, slab.last, slab.term)
            after = first + count - 1 if count else after
            if after < slab.last:
                break
        return after

    def _pinned_files(self, indexes: IndexSet) -> list[tuple[SegmentReader, tuple[int, ...]]]:
        """The open segments that hold `indexes`, each with those that it holds, ascending."""
        return [(reader, tuple(held)) for reader, held in self._asked(lambda: self._own.open_for(indexes))]
