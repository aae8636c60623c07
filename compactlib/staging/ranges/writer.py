# SPDX-License-Identifier: Apache-2.0
"""Writes ordered records as ranges cut by the rule, and reuses unchanged ranges."""

from __future__ import annotations

from collections.abc import Set

from compactlib.budget import Budget
from compactlib.staging.ranges.collect import confirm
from compactlib.staging.ranges.files import RangeFiles
from compactlib.staging.ranges.metarange import MetaRange
from compactlib.staging.ranges.rows import Rows, unsorted
from compactlib.staging.values import MetaRangeId, RangeEntry, RangeId


class RangeWriter:
    """Writes a metarange. Its files are unreachable until `finish` has returned. For one thread.

    Ranges of the base (`known`) are not written again; those of other metaranges (`elsewhere`) are marked as reused.
    The budget is charged the logical bytes of each range before its write. `ranges_written` and `bytes_written` count
    adopted ranges of other writers too.
    """

    def __init__(self, files: RangeFiles, known: Set[RangeId], budget: Budget, *,
                 elsewhere: Set[RangeId] = frozenset()) -> None:
        self.ranges_written: int = 0
        self.bytes_written: int = 0
        self._files = files
        self._known = known
        self._budget = budget
        self._elsewhere = elsewhere
        self._open: Rows = files.range_format.empty
        self._last_key = b""
        self._closed: list[RangeEntry] = []
        self._to_confirm: list[str] = []

    @property
    def is_between_ranges(self) -> bool:
        """Whether the next record begins a range."""
        return len(self._open) == 0

    def add(self, rows: Rows, cut_keys: list[bytes]) -> None:
        """Append records with keys above all earlier keys, cut at those of `cut_keys` that are among them."""
        if len(rows) == 0:
            return
        self._go_on(rows.key(0), rows.key(len(rows) - 1))
        run = self._open.followed_by(rows) if len(self._open) else rows
        places = [place for key in cut_keys if (place := run.find(key)) < len(run) and run.key(place) == key]
        start = 0
        for stop in self._files.rule.cuts(run.ends(), places):
            self._write(run.part(start, stop))
            start = stop
        self._open = run.part(start, len(run)) if start else run

    def adopt(self, entry: RangeEntry) -> None:
        """Append a whole range of the base or of another writer, unread."""
        self._go_on(entry.min_key, entry.max_key)
        self._append(entry, is_new=entry.range_id not in self._known)

    def end(self) -> list[RangeEntry]:
        """Close the last range, and return all ranges."""
        if len(self._open):
            self._write(self._open)
            self._open = self._files.range_format.empty
        return self._closed

    def finish(self, base_id: MetaRangeId | None) -> MetaRangeId:
        """Close the last range, and publish the metarange, unless it is the base."""
        metarange_id, data = MetaRange(self._files.rule, self.end()).encode()
        if metarange_id != base_id:
            self._files.write_metarange(metarange_id, data)
            confirm(self._files, [*self._to_confirm, self._files.path_of_metarange(metarange_id)])
        return metarange_id

    def _go_on(self, first: bytes, last: bytes) -> None:
        if first <= self._last_key:
            raise unsorted(self._last_key, first)
        self._last_key = last

    def _append(self, entry: RangeEntry, *, is_new: bool) -> None:
        self._closed.append(entry)
        if is_new:
            self.ranges_written += 1
            self.bytes_written += entry.size_bytes
            self._to_confirm.append(self._files.path_of_range(entry.range_id))

    def _write(self, rows: Rows) -> None:
        range_id = rows.content_id()
        entry = RangeEntry(range_id, rows.key(0), rows.key(len(rows) - 1), len(rows), rows.size_bytes)
        is_new = range_id not in self._known and range_id not in self._elsewhere
        if is_new:
            self._budget.spend(entry.size_bytes)
            self._files.write_range(range_id, rows)
        elif range_id not in self._known:
            self._files.mark_reuse(range_id)
            self._to_confirm.append(self._files.path_of_range(range_id))
        self._append(entry, is_new=is_new)
