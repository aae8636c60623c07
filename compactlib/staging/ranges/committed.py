# SPDX-License-Identifier: Apache-2.0
"""`CommittedRanges`: the committed layer over an object store. Reads, comparison and three-way merge of metaranges.

A comparison skips common ranges unread. A merge applies the changes from the base to the source to the destination.

Branches that merged each other have several newest common ancestors. Then the base is the merge of these ancestors over
their own base (`CrossedBase`). It is computed for the keys in which the source differs from one of the ancestors: where
the source equals all of them, it equals their merge. A key that the ancestors changed in different ways has no state in
the base. Unless source and destination agree about it, it is a conflict.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from itertools import groupby
from typing import Final, Self, TypeAlias

import attrs

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
    before, after = next(lefts, None), next(rights, None)
    while before is not None or after is not None:
        if after is None or (before is not None and before[0] < after[0]):
            assert before is not None
            yield Difference("removed", *before, None)
            before = next(lefts, None)
        elif before is None or after[0] < before[0]:
            yield Difference("added", after[0], None, after[1])
            after = next(rights, None)
        else:
            found = Difference.between(before[0], before[1], after[1])
            if found is not None:
                yield found
            before, after = next(lefts, None), next(rights, None)


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


@attrs.frozen
class CrossedBase:
    """The merge of two common ancestors, of which neither descends from the other, over their own merge base.

    `one` may itself be the merge of several.
    """

    one: MergeBase
    other: MetaRangeId | None
    base: MergeBase

    def ancestors(self) -> list[MetaRangeId | None]:
        """Return the metaranges of the common ancestors."""
        return [*(self.one.ancestors() if isinstance(self.one, CrossedBase) else [self.one]), self.other]

    def metaranges(self) -> set[MetaRangeId]:
        """Return all metaranges that a read of the base needs."""
        return metaranges_of(self.one) | metaranges_of(self.other) | metaranges_of(self.base)


MergeBase: TypeAlias = MetaRangeId | CrossedBase | None
"""The common records of the two sides of a merge."""

_States: TypeAlias = tuple[Record | None, ...]
"""The state of a key in a base, as a tuple; empty if its ancestors disagree."""


def metaranges_of(base: MergeBase) -> set[MetaRangeId]:
    """Return all metaranges that a read of a base needs."""
    if isinstance(base, CrossedBase):
        return base.metaranges()
    return set() if base is None else {base}


def _differences(files: RangeFiles, base: MergeBase, source: MetaRange,
                 ) -> Iterator[tuple[bytes, _States, Record | None]]:
    """Yield each key in which the source may differ from the base, its states in the base, and the source's."""
    def lookup(base: MergeBase) -> Callable[[bytes], _States]:
        if isinstance(base, CrossedBase):
            one, other, before = lookup(base.one), lookup(base.other), lookup(base.base)
            return lambda key: _merged_states(one(key), other(key), before(key))
        ranges = RangeLookup(files, files.read_metarange(base))
        return lambda key: (ranges.get(key),)

    if not isinstance(base, CrossedBase):
        for difference in diff(files, files.read_metarange(base), source):
            yield difference.key, (difference.left,), difference.right
        return
    states = lookup(base)
    found = heapq.merge(*(diff(files, files.read_metarange(each), source) for each in base.ancestors()), key=_key_of)
    for key, differences in groupby(found, _key_of):
        yield key, states(key), next(differences).right


def _key_of(difference: Difference) -> bytes:
    return difference.key


def _merged_states(one: _States, other: _States, before: _States) -> _States:
    if _agree(one, other) or _agree(other, before):
        return one
    return other if _agree(one, before) else ()


def _agree(one: _States, other: _States) -> bool:
    return bool(one and other) and are_same(one[0], other[0])


def _merged_changes(differences: Iterator[tuple[bytes, _States, Record | None]], destination: RangeLookup,
                    strategy: MergeStrategy) -> Iterator[tuple[bytes, Change]]:
    conflicts: list[bytes] = []
    for key, before, theirs in differences:
        ours = destination.get(key)
        if are_same(ours, theirs) or _agree(before, (theirs,)):
            continue
        if _agree(before, (ours,)) or strategy == "source_wins":
            # After a conflict nothing is published.
            if not conflicts:
                yield key, theirs
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
            InvalidInput: the keys do not ascend strictly, or a change is neither a `Record` nor `TOMBSTONE`; nothing is
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

    def merge(self, base: MergeBase, source: MetaRangeId | None, destination: MetaRangeId | None,
              strategy: MergeStrategy = "fail", *, budget: Budget | None = None) -> Applied:
        """Apply the changes from `base` to `source` to `destination`; counts are against `destination`.

        A base of several common ancestors is a `CrossedBase`.

        Raises:
            MergeConflict: both sides changed a key in different ways, and the strategy is `"fail"`.
            BudgetSpent: as for `apply`.
        """
        require_one_of("the strategy", strategy, MergeStrategy)
        new, present = self.read_metarange(source), self.read_metarange(destination)
        changes = _merged_changes(_differences(self, base, new), RangeLookup(self, present), strategy)
        return Apply(self, present, batches_of(changes), budget or Budget(), elsewhere=new.entries).run(destination)

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
