# SPDX-License-Identifier: Apache-2.0
"""Writes ordered records as ranges cut by the rule, and reuses unchanged ranges."""

from __future__ import annotations

from collections import deque
from collections.abc import Set
from typing import TYPE_CHECKING, Final

import attrs

from compactlib.budget import Budget
from compactlib.staging.ranges.collect import confirm
from compactlib.staging.ranges.files import RangeFiles
from compactlib.staging.ranges.metarange import MetaRange
from compactlib.staging.ranges.rows import Rows, unsorted
from compactlib.staging.ranges.split import SplitRule
from compactlib.staging.values import MetaRangeId, RangeEntry, RangeId

if TYPE_CHECKING:
    from concurrent.futures import Executor, Future

MAX_IN_FLIGHT: Final = 4
"""Ranges written in the background concurrently; each is in memory until then."""


@attrs.frozen
class ClosedRange:
    """A complete, durable range.

    Attributes:
        entry: the range.
        is_new: whether it was written.
        is_elsewhere: whether it is reused from a metarange other than the base.
    """

    entry: RangeEntry
    is_new: bool = False
    is_elsewhere: bool = False


class RangeWriter:
    """Writes a metarange. Its files are unreachable until `finish` has returned. For one thread.

    Args:
        files: writes ranges.
        rule: cuts ranges.
        known: the base's ranges, which are not written again.
        elsewhere: ranges of other metaranges, which are marked as reused and not written again.
        budget: charged the logical bytes of each range before its write.
        background: threads that hash, encode and write ranges; `None`: the caller's thread.
    """

    def __init__(self, files: RangeFiles, rule: SplitRule, known: Set[RangeId], budget: Budget,
                 background: Executor | None = None, *, elsewhere: Set[RangeId] = frozenset()) -> None:
        self._elsewhere = elsewhere
        self._files = files
        self._rule = rule
        self._known = known
        self._budget = budget
        self._background = background
        self._open: Rows = files.range_format.empty
        self._last_key: bytes = b""
        self._closed: list[ClosedRange | Future[ClosedRange]] = []
        self._in_flight: deque[Future[ClosedRange]] = deque()
        self.ranges_written: int = 0
        self.bytes_written: int = 0

    @property
    def is_between_ranges(self) -> bool:
        """Whether the next record begins a range."""
        return len(self._open) == 0

    def add(self, rows: Rows, cut_keys: list[bytes]) -> None:
        """Append records.

        Args:
            rows: with keys above all earlier keys.
            cut_keys: the cuts among their keys; other keys are ignored.
        """
        if len(rows) == 0:
            return
        self._go_on(rows.key(0), rows.key(len(rows) - 1))
        run = self._open.followed_by(rows) if len(self._open) else rows
        start = 0
        for stop in self._rule.cuts(run.ends(), _places(run, cut_keys)):
            self._close(run.part(start, stop))
            start = stop
        self._open = run.part(start, len(run)) if start else run

    def adopt(self, closed: ClosedRange) -> None:
        """Append a whole range of the base or of another writer, unread."""
        self._go_on(closed.entry.min_key, closed.entry.max_key)
        self._closed.append(closed)

    def end(self) -> list[ClosedRange]:
        """Close the last range, and return all ranges once they are durable."""
        if len(self._open):
            self._close(self._open)
            self._open = self._files.range_format.empty
        return [each if isinstance(each, ClosedRange) else each.result() for each in self._closed]

    def finish(self, base_id: MetaRangeId | None) -> MetaRangeId:
        """Close the last range, and publish the metarange once all its ranges are durable, unless it is the base."""
        closed = self.end()
        new = [each for each in closed if each.is_new]
        self.ranges_written = len(new)
        self.bytes_written = sum(each.entry.size_bytes for each in new)
        metarange_id, data = MetaRange(self._rule, tuple(each.entry for each in closed)).encode()
        if metarange_id != base_id:
            self._files.write_metarange(metarange_id, data)
            confirm(self._files, [*(self._files.path_of_range(each.entry.range_id) for each in closed
                                    if each.is_new or each.is_elsewhere), self._files.path_of_metarange(metarange_id)])
        return metarange_id

    def abandon(self) -> None:
        """Cancel the writes in the background and wait for them; ignores their errors."""
        for pending in self._in_flight:
            pending.cancel()
        for pending in self._in_flight:
            if not pending.cancelled():
                pending.exception()

    def _go_on(self, first: bytes, last: bytes) -> None:
        if first <= self._last_key:
            raise unsorted(self._last_key, first)
        self._last_key = last

    def _close(self, rows: Rows) -> None:
        if self._background is None:
            self._closed.append(self._write(rows))
            return
        if len(self._in_flight) == MAX_IN_FLIGHT:
            self._in_flight.popleft().result()
        pending = self._background.submit(self._write, rows)
        self._in_flight.append(pending)
        self._closed.append(pending)

    def _write(self, rows: Rows) -> ClosedRange:
        range_id = rows.content_id()
        entry = RangeEntry(range_id, rows.key(0), rows.key(len(rows) - 1), len(rows), rows.size_bytes)
        if range_id in self._known:
            return ClosedRange(entry)
        if range_id in self._elsewhere:
            self._files.mark_reuse(range_id)
            return ClosedRange(entry, is_elsewhere=True)
        self._budget.spend(entry.size_bytes)
        self._files.write_range(range_id, rows)
        return ClosedRange(entry, is_new=True)


def _places(run: Rows, keys: list[bytes]) -> list[int]:
    """Return the positions of the keys that the run has."""
    found = []
    for key in keys:
        place = run.find(key)
        if place < len(run) and run.key(place) == key:
            found.append(place)
    return found
