# SPDX-License-Identifier: Apache-2.0
"""`CommittedRanges`: the committed layer over an object store. Reads, comparison and three-way merge of metaranges.

A comparison skips common ranges unread. A merge applies the changes from the base to the source to the destination.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from typing import Final, Self, TypeVar

from compactlib._arguments import require_one_of
from compactlib.budget import Budget
from compactlib.observer import Observer
from compactlib.staging.errors import BeingCollected, MergeConflict, MetaRangeNotFound, RangeNotFound
from compactlib.staging.ranges.apply import Apply, batches_of
from compactlib.staging.ranges.files import RangeFiles
from compactlib.staging.ranges.metarange import MetaRange
from compactlib.staging.ranges.rows import Rows
from compactlib.staging.values import (
    Applied,
    Change,
    Changes,
    Difference,
    MergeStrategy,
    MetaRangeId,
    RangeEntry,
    RangeId,
    Record,
    are_same,
)

LeftT = TypeVar("LeftT")
RightT = TypeVar("RightT")


class RangeLookup:
    """Reads keys, and keeps the last range, so that ascending keys open each range once. For one thread."""

    def __init__(self, files: RangeFiles, metarange: MetaRange) -> None:
        self._files = files
        self._metarange = metarange
        self._opened: tuple[RangeEntry, Rows] | None = None

    def get(self, key: bytes) -> Record | None:
        """Return the record of a key, or `None`. Opens no range for a key between two ranges."""
        entries = self._metarange.entries
        place = self._metarange.find(key)
        if place == len(entries) or key < entries[place].min_key:
            return None
        rows = self.rows_of(entries[place])
        index = rows.find(key)
        return rows.record(index) if rows.key(index) == key else None

    def rows_of(self, entry: RangeEntry) -> Rows:
        """Return the records of a range. Reads it, unless it was the last."""
        if self._opened is None or self._opened[0] is not entry:
            self._opened = entry, self._files.read_range(entry)
        return self._opened[1]


class RangeScan:
    """Iterates over the records of a metarange in order of their keys; counts them, and can seek. For one thread."""

    def __init__(self, files: RangeFiles, metarange: MetaRange, start: bytes) -> None:
        self.scanned: int = 0
        self._metarange = metarange
        self._lookup = RangeLookup(files, metarange)
        self._pairs: Iterator[tuple[bytes, Record]] = iter(())
        self.seek(start)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> tuple[bytes, Record]:
        while (found := next(self._pairs, None)) is None:
            if self._place == len(self._metarange.entries):
                raise StopIteration
            entry = self._metarange.entries[self._place]
            self._pairs = _pairs_from(self._lookup.rows_of(entry), entry, self._lowest)
            self._place += 1
        self.scanned += 1
        return found

    def seek(self, key: bytes) -> None:
        """Continue with the first key >= `key`, forwards or backwards, also after the end. Opens no range."""
        self._lowest: bytes = key
        self._place: int = self._metarange.find(key)
        self._pairs = iter(())


def diff(files: RangeFiles, left: MetaRange, right: MetaRange, start: bytes = b"", end: bytes | None = None,
         ) -> Iterator[Difference]:
    """Yield the differences of two metaranges for the keys >= `start` and < `end`, in order.

    A range of both sides, or above `end`, is not opened.
    """
    common = left.ids & right.ids
    lefts, rights = (_own_pairs(files, side, common, start, end) for side in (left, right))
    for key, before, after in aligned(lefts, rights):
        found = Difference.between(key, None if before is None else before[1], None if after is None else after[1])
        if found is not None:
            yield found


def aligned(left: Iterator[tuple[bytes, LeftT]], right: Iterator[tuple[bytes, RightT]],
            ) -> Iterator[tuple[bytes, tuple[bytes, LeftT] | None, tuple[bytes, RightT] | None]]:
    """Yield each key of two sorted sources with its item in each, or `None`. Reads no item ahead."""
    before, after = next(left, None), next(right, None)
    while before is not None or after is not None:
        key = min(item[0] for item in (before, after) if item is not None)
        is_left, is_right = before is not None and before[0] == key, after is not None and after[0] == key
        yield key, before if is_left else None, after if is_right else None
        before = next(left, None) if is_left else before
        after = next(right, None) if is_right else after


def _own_pairs(files: RangeFiles, metarange: MetaRange, common: Set[RangeId], start: bytes, end: bytes | None,
               ) -> Iterator[tuple[bytes, Record]]:
    for entry in metarange.entries[metarange.find(start):]:
        if end is not None and entry.min_key >= end:
            return
        if entry.range_id not in common:
            for key, record in _pairs_from(files.read_range(entry), entry, start):
                if end is not None and key >= end:
                    return
                yield key, record


def _pairs_from(rows: Rows, entry: RangeEntry, start: bytes) -> Iterator[tuple[bytes, Record]]:
    return rows.pairs(rows.find(start) if start > entry.min_key else 0)


MAX_CONFLICTS: Final = 100
"""The most keys in a `MergeConflict`."""


def _merged_changes(differences: Iterator[Difference], destination: RangeLookup, strategy: MergeStrategy | Record,
                    ) -> Iterator[tuple[bytes, Change]]:
    """Yield the changes to the destination; of a key that both sides changed, a record given as the strategy."""
    conflicts: list[bytes] = []
    for difference in differences:
        key, theirs, ours = difference.key, difference.right, destination.get(difference.key)
        if are_same(ours, theirs):
            continue
        if are_same(ours, difference.left) or strategy == "source_wins":
            # After a conflict nothing is published.
            if not conflicts:
                yield key, theirs
        elif isinstance(strategy, Record):
            yield key, strategy
        elif strategy == "fail":
            conflicts.append(key)
            if len(conflicts) == MAX_CONFLICTS:
                break
    if conflicts:
        raise MergeConflict(keys=tuple(conflicts))


class CommittedRanges(RangeFiles):
    """Immutable metaranges: apply changes, read, compare, merge, collect. Threads and processes may share one store.

    A metarange is an immutable sorted set of records, named by its content. The metarange `None` means "without a
    commit" and reads as empty; an empty metarange has an id like any other. Under the same split rule equal content
    has equal ids, independent of history, format and release.

    Every method that reads raises `MetaRangeNotFound`, `RangeNotFound`, `CorruptData` or `Unsupported` for a missing
    or wrong file, and the errors of the object store (`ObjectStoreFailed`, `StorageError`). It never returns a part.

    Args:
        objects: stores the files.
        range_format: for new ranges: `PlainFormat()` has no dependency, `ParquetFormat()` is for large ranges and for
            other tools. Either reads both.
        rule: cuts ranges. A base that was cut by another rule is rewritten as a whole.
        cache_bytes: logical bytes of ranges, and of metaranges, to cache in memory.
        prefix: the prefix of the keys of the files: empty, or ends with a slash.
        clock: for the ages of files in a collection.
        new_name: names the marks of writers and collections; for tests with repeatable names.
    """

    def unless_head(self, metarange_id: MetaRangeId, head: MetaRangeId | None) -> MetaRangeId | None:
        """Return a result; `None` if it has the content of HEAD, so that a branch need not name it."""
        unchanged = MetaRange(self.rule, ()).encode()[0] if head is None else head
        return None if metarange_id == unchanged else metarange_id

    def apply(self, base: MetaRangeId | None, changes: Changes, *, budget: Budget | None = None,
              observer: Observer | None = None) -> Applied:
        """Apply changes to a metarange and return the new one, durable.

        A tombstone of an unknown key changes nothing. A record with the base's identity changes nothing and keeps the
        base's data. The result's id depends on the resulting records alone: without a change it is `base`. The observer
        gets progress in ranges of the base. Claim an unreachable base first (`claim`), unless it is young. O(ranges +
        records of the ranges touched).

        Raises:
            InvalidInput: the keys do not ascend strictly, or a change is neither a `Record` nor `None`; nothing is
                published.
            BudgetSpent: the budget ran out; nothing is published.
        """
        metarange = self.read_metarange(base)
        return Apply(self, metarange, batches_of(changes), budget or Budget(), observer=observer).run(base)

    def get(self, metarange_id: MetaRangeId | None, key: bytes) -> Record | None:
        """Return the record of a key, or `None`. Reads at most one range, unless cached."""
        return RangeLookup(self, self.read_metarange(metarange_id)).get(key)

    def get_many(self, metarange_id: MetaRangeId | None, keys: Iterable[bytes]) -> dict[bytes, Record]:
        """Return the records of the keys that exist. Opens each range at most once."""
        lookup = RangeLookup(self, self.read_metarange(metarange_id))
        found = {key: lookup.get(key) for key in sorted(set(keys))}
        return {key: record for key, record in found.items() if record is not None}

    def scan(self, metarange_id: MetaRangeId | None, start: bytes = b"") -> RangeScan:
        """Return a scan of all records from the first key >= `start`. Opens each range when it reaches it."""
        return RangeScan(self, self.read_metarange(metarange_id), start)

    def diff(self, left: MetaRangeId | None, right: MetaRangeId | None, start: bytes = b"",
             end: bytes | None = None) -> Iterator[Difference]:
        """Yield the differences from `left` to `right` for the keys >= `start` and < `end`. Skips common ranges.

        O(ranges + records of the ranges that only one side has).
        """
        return diff(self, self.read_metarange(left), self.read_metarange(right), start, end)

    def merge(self, base: MetaRangeId | None, source: MetaRangeId | None, destination: MetaRangeId | None,
              strategy: MergeStrategy = "fail") -> Applied:
        """Apply the changes from `base` to `source` to `destination`; counts are against `destination`.

        Raises `MergeConflict` if both sides changed a key in different ways, and the strategy is `"fail"`.
        """
        require_one_of("the strategy", strategy, MergeStrategy)
        return self._merge(base, source, destination, strategy)

    def merged_ancestors(self, base: MetaRangeId | None, one: MetaRangeId | None, other: MetaRangeId | None,
                         ) -> MetaRangeId:
        """Return the merge of two common ancestors over their own base, as the base of a merge of their descendants.

        A key that both changed in different ways has a record that equals no other, nor that of other ancestors that
        disagree. So it is a conflict, unless the descendants agree about it.
        """
        disagreement = Record(f"compactlib: {one} and {other} disagree over {base}".encode("ascii"), b"")
        return self._merge(base, one, other, disagreement).metarange_id

    def _merge(self, base: MetaRangeId | None, source: MetaRangeId | None, destination: MetaRangeId | None,
               strategy: MergeStrategy | Record) -> Applied:
        new, present = self.read_metarange(source), self.read_metarange(destination)
        changes = _merged_changes(diff(self, self.read_metarange(base), new), RangeLookup(self, present), strategy)
        return Apply(self, present, batches_of(changes), Budget(), elsewhere=new.entries).run(destination)

    def ranges_of(self, metarange_id: MetaRangeId | None) -> Sequence[RangeEntry]:
        """Return the ranges of a metarange, in order of their keys. Opens no range."""
        return self.read_metarange(metarange_id).entries

    def check(self, metarange_id: MetaRangeId, base: MetaRangeId | None) -> None:
        """Read a result and its ranges that `base` does not have, from the store, past the caches.

        Called before the sources are dropped: an executor's result may come from another process, and its files may
        have changed since. Raises `CorruptData`, or `BeingCollected` for a missing file.
        """
        if metarange_id == base:
            return
        known = self.read_metarange(base).ids
        self.forget(metarange_id)
        try:
            for entry in self.ranges_of(metarange_id):
                if entry.range_id not in known:
                    self.reread(entry)
        except (MetaRangeNotFound, RangeNotFound) as error:
            raise BeingCollected(id=metarange_id) from error

    def __repr__(self) -> str:
        return f"CommittedRanges({self.objects!r}, {self.range_format.name}, {self.rule!r})"
