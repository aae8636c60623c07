"""Writes records, which arrive in order, as ranges cut by the rule; and takes over ranges that stayed the same."""

from __future__ import annotations

from collections.abc import Set

from compactlib.budget import Budget
from compactlib.staging.errors import UnsortedKeys
from compactlib.staging.metarange import MetaRange
from compactlib.staging.model import MetaRangeId, RangeEntry, RangeId
from compactlib.staging.range_files import RangeFiles
from compactlib.staging.rows import Rows
from compactlib.staging.split import SplitRule


class RangeWriter:
    """One metarange in the making. Nothing refers to what it wrote before `finish` has returned. For one thread.

    Args:
        files: where ranges go.
        rule: where they are cut.
        known: the ranges that are durable, and need not be written again.
        budget: asked for the logical bytes of each range before it is written.
    """

    def __init__(self, files: RangeFiles, rule: SplitRule, known: Set[RangeId], budget: Budget) -> None:
        self._files = files
        self._rule = rule
        self._known = known
        self._budget = budget
        self._open: Rows = files.range_format.empty
        self._entries: list[RangeEntry] = []
        self.ranges_written: int = 0
        self.bytes_written: int = 0

    @property
    def is_between_ranges(self) -> bool:
        """Whether the next record begins a range."""
        return len(self._open) == 0

    def add(self, rows: Rows, cut_keys: list[bytes]) -> None:
        """Go on with these records.

        Args:
            rows: their keys lie above all before.
            cut_keys: those of their keys that are cuts; others may be among them and are ignored.

        Raises:
            UnsortedKeys: the keys do not lie above those before.
            BudgetSpent: a range was not allowed to be written.
        """
        if len(rows) == 0:
            return
        self._check_order(rows.key(0))
        run = self._open.followed_by(rows) if len(self._open) else rows
        start = 0
        for stop in self._rule.cuts(run.ends(), _places(run, cut_keys)):
            self._write(run.part(start, stop))
            start = stop
        self._open = run.part(start, len(run)) if start else run

    def reuse(self, entry: RangeEntry) -> None:
        """Take over a whole range of the base, unread.

        Raises:
            UnsortedKeys: it does not lie above all before.
        """
        self._check_order(entry.min_key)
        self._entries.append(entry)

    def finish(self, base_id: MetaRangeId | None) -> MetaRangeId:
        """Close the last range, and publish the metarange once all its ranges are durable, if it is not the base."""
        if len(self._open):
            self._write(self._open)
            self._open = self._files.range_format.empty
        return self._files.write_metarange(MetaRange(self._rule, tuple(self._entries)), base_id)

    def _check_order(self, key: bytes) -> None:
        if len(self._open):
            last = self._open.key(len(self._open) - 1)
        elif self._entries:
            last = self._entries[-1].max_key
        else:
            return
        if key <= last:
            raise UnsortedKeys(previous=last, found=key)

    def _write(self, rows: Rows) -> None:
        range_id = rows.content_id()
        entry = RangeEntry(range_id, rows.key(0), rows.key(len(rows) - 1), len(rows), rows.size_bytes)
        if range_id not in self._known:
            self._budget.spend(entry.size_bytes)
            self._files.write_range(range_id, rows)
            self.ranges_written += 1
            self.bytes_written += entry.size_bytes
        self._entries.append(entry)


def _places(run: Rows, keys: list[bytes]) -> list[int]:
    """Where in the run those of the keys are that it has."""
    found = []
    for key in keys:
        place = run.find(key)
        if place < len(run) and run.key(place) == key:
            found.append(place)
    return found
