# SPDX-License-Identifier: Apache-2.0
"""Apply: make changes to a metarange, and touch no range that they do not touch.

The base's ranges and the changes are walked together. A range without changes is taken over unread, if the result has
just come to a cut, which is where the base has one too. A change makes its range be read, and cut anew from the range's
start on. If the new cut falls where the old one was, the next range can be taken over again; if not (the last key of
the range was removed, say) the following range is read too, until the cuts meet. So the result is cut exactly as if
it had been written from scratch, and its ids are the same.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from compactlib.budget import Budget
from compactlib.observer import Observer, Observers
from compactlib.staging.ranges.changes import ChangeReader
from compactlib.staging.ranges.files import RangeFiles
from compactlib.staging.ranges.metarange import MetaRange
from compactlib.staging.ranges.rows import ChangeBatch, Merged, Rows
from compactlib.staging.ranges.split import SplitRule
from compactlib.staging.ranges.writer import ClosedRange, RangeWriter
from compactlib.staging.values import Applied, Changes, MetaRangeId, RangeEntry

if TYPE_CHECKING:
    from concurrent.futures import Executor, Future


_READ_AHEAD: Final = 2
"""Ranges of the base that are read in the background before they are merged; each is held in memory until then."""


class Apply:
    """One apply under way.

    Args:
        files: where ranges are read and written.
        rule: where they are cut.
        base: what the changes are made to.
        changes: what to change; a reader of it, where that is at hand.
        budget: asked before each range is written.
        elsewhere: ranges of other metaranges, which are not written again if they come out.
        background: reads the next ranges and writes the last ones besides the caller's thread.
        observer: notified of progress, in ranges of the base; changes after the last range count as one more.
        above: of the base, only keys above this one count.
        last: and up to this one, if there is one.

    Attributes:
        counts: how many keys were `added`, `changed` and `removed`, and of the base's ranges, how many were read
            (`ranges_read`, `bytes_read`) and how many taken over (`ranges_reused`).
    """

    def __init__(self, files: RangeFiles, rule: SplitRule, base: MetaRange, changes: Changes | ChangeReader,
                 budget: Budget, *, elsewhere: Iterable[RangeEntry] = (), background: Executor | None = None,
                 observer: Observer | None = None, above: bytes = b"", last: bytes | None = None) -> None:
        self.counts: Counter[str] = Counter(added=0, changed=0, removed=0, ranges_reused=0, ranges_read=0, bytes_read=0)
        self._observer: Observer = Observers(observer)
        self._work = ""
        self._files = files
        self._rule = rule
        self._base = base
        self._changes = changes if isinstance(changes, ChangeReader) else ChangeReader(changes)
        self._above = above
        self._last = last
        self._writer = RangeWriter(files, rule, {entry.range_id for entry in base.entries}, budget, background,
                                   elsewhere={entry.range_id for entry in elsewhere})
        self._background = background
        self._ahead: deque[tuple[RangeEntry, Future[Rows]]] = deque()

    def run(self, base_id: MetaRangeId | None) -> Applied:
        """Make all the changes, and publish the result. See `CommittedRanges.apply`.

        O(ranges + records of the ranges touched). In memory are a few ranges and a batch of changes.

        Args:
            base_id: the base's own id, which needs not be published if it is the result's.
        """
        self._work = f"apply to {'nothing' if base_id is None else base_id[:12]}"
        try:
            self._walk()
            writer = self._writer
            metarange_id = writer.finish(base_id)
        finally:
            self._abandon()
        self._tell(len(self._base.entries) + 1)
        return Applied(metarange_id=metarange_id, ranges_written=writer.ranges_written,
                       bytes_written=writer.bytes_written, **self.counts)

    def ranges(self) -> list[ClosedRange]:
        """Make all the changes; the ranges that come out, durable but not published: a part of a larger result."""
        try:
            self._walk()
            return self._writer.end()
        finally:
            self._abandon()

    def _abandon(self) -> None:
        self._writer.abandon()
        for _, pending in self._ahead:
            if not pending.cancel():
                pending.exception()

    def _walk(self) -> None:
        for place, entry in enumerate(self._base.entries):
            if self._can_stay(entry, is_last=place == len(self._base.entries) - 1):
                self.counts["ranges_reused"] += 1
                self._writer.adopt(ClosedRange(entry))
            else:
                self._rewrite(place)
            self._tell(place + 1)
        while batch := self._changes.take(None):
            self._add(self._merge(self._files.range_format.empty, batch), batch, [])

    def _tell(self, done: int) -> None:
        self._observer.event("progress", work=self._work, done=done, total=len(self._base.entries) + 1, unit="ranges")

    def _can_stay(self, entry: RangeEntry, *, is_last: bool) -> bool:
        if not self._writer.is_between_ranges or self._base.rule != self._rule or not self._is_whole(entry):
            return False
        change = self._changes.peek()
        if change is None:
            return True
        if change <= entry.max_key:
            return False
        # The last range may be one that only the end has closed: what comes after it belongs to it.
        return not is_last or self._rule.closes(entry.max_key, entry.size_bytes)

    def _is_whole(self, entry: RangeEntry) -> bool:
        return entry.min_key > self._above and (self._last is None or entry.max_key <= self._last)

    def _rewrite(self, place: int) -> None:
        entry = self._base.entries[place]
        rows = self._rows_of(entry)
        if not self._is_whole(entry):
            rows = rows.part(rows.find(self._above + b"\0"),
                             len(rows) if self._last is None else rows.find(self._last + b"\0"))
        self.counts.update(ranges_read=1, bytes_read=entry.size_bytes)
        cut_keys = self._cut_keys(rows)
        for part, batch in self._changes.laid_over(rows, entry.max_key):
            if batch:
                self._read_ahead(place)
                self._add(self._merge(part, batch), batch, cut_keys)
            else:
                self._writer.add(part, cut_keys)

    def _rows_of(self, entry: RangeEntry) -> Rows:
        if self._ahead and self._ahead[0][0] is entry:
            return self._ahead.popleft()[1].result()
        return self._files.read_range(entry, keep=False)

    def _read_ahead(self, place: int) -> None:
        """Begin to read the next ranges after this one that are sure to be changed."""
        if self._background is None:
            return
        entries = self._base.entries
        for at in range(place + 1 + len(self._ahead), min(place + 1 + _READ_AHEAD, len(entries))):
            if not self._changes.has_between(entries[at - 1].max_key, entries[at].max_key):
                return
            self._ahead.append((entries[at], self._background.submit(self._files.read_range, entries[at], keep=False)))

    def _cut_keys(self, rows: Rows) -> list[bytes]:
        """The keys of a range of the base that are cuts. The rule has left few to be looked at."""
        rule = self._rule
        if self._base.rule != rule or not len(rows):
            return rows.cut_keys(rule.raggedness)
        last = len(rows) - 1
        early = rows.part(0, min(_first_at_least(rows, rule.min_bytes), last)).cut_keys(rule.raggedness)
        return [*early, rows.key(last)] if rule.is_cut(rows.key(last)) else early

    def _merge(self, rows: Rows, batch: ChangeBatch) -> Merged:
        merged = rows.merged(batch)
        self.counts.update(added=merged.added, changed=merged.changed, removed=merged.removed)
        return merged

    def _add(self, merged: Merged, batch: ChangeBatch, cut_keys: list[bytes]) -> None:
        raggedness = self._rule.raggedness
        self._writer.add(merged.rows, sorted({*cut_keys, *batch.cut_keys(raggedness)}))


def _first_at_least(rows: Rows, size_bytes: int) -> int:
    """How many records at the start lie before the range has that size."""
    return bisect_left(rows.ends(), size_bytes) if size_bytes else 0
