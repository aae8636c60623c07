# SPDX-License-Identifier: Apache-2.0
"""`CommittedRanges`: the committed layer over an object store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from compactlib.budget import Budget
from compactlib.observer import Observer
from compactlib.staging.errors import BeingCollected, MetaRangeNotFound, RangeNotFound
from compactlib.staging.ranges.apply import Apply, batches_of
from compactlib.staging.ranges.collect import claim
from compactlib.staging.ranges.cursor import RangeLookup, RangeScan, diff
from compactlib.staging.ranges.files import RangeFiles
from compactlib.staging.ranges.merge import MergeBase, merge_metaranges
from compactlib.staging.ranges.metarange import MetaRange
from compactlib.staging.values import (
    Applied,
    Changes,
    Difference,
    MergeStrategy,
    MetaRangeId,
    RangeEntry,
    Record,
)


class CommittedRanges(RangeFiles):
    """Immutable metaranges: apply changes, read, compare, merge, collect. Threads and processes may share one store.

    A metarange is an immutable sorted set of records, named by its content. The metarange `None` means "without a
    commit" and reads as empty; an empty metarange has an id like any other. Under the same split rule equal content
    has equal ids, independent of history, format and release.

    Every method that reads raises `MetaRangeNotFound`, `RangeNotFound`, `DamagedRange` or `Unsupported` for a missing
    or wrong file, and the errors of the object store (`ObjectStoreFailed`, `StorageError`). It never returns a part.

    Args:
        objects: stores the files.
        range_format: for new ranges: `PlainFormat()` has no dependency, `ParquetFormat()` is for large ranges and for
            other tools. Either reads both.
        rule: cuts ranges. A base that was cut by another rule is rewritten as a whole.
        cache_bytes: logical bytes of ranges, and of metaranges, to cache in memory.
        prefix: of the keys of the files: empty, or ends with a slash.
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

        A base of several common ancestors is a `CrossedBase` (`compactlib.staging.ranges.merge`).

        Raises:
            MergeConflict: both sides changed a key in different ways, and the strategy is `"fail"`.
            BudgetSpent: as for `apply`.
        """
        return merge_metaranges(self, base, source, destination, strategy, budget or Budget())

    def ranges_of(self, metarange_id: MetaRangeId | None) -> Sequence[RangeEntry]:
        """Return the ranges of a metarange, in order of their keys. Opens no range."""
        return self.read_metarange(metarange_id).entries

    def claim(self, metarange_id: MetaRangeId) -> None:
        """Protect an unreachable metarange from collections for their grace period. Three requests.

        Raises `MetaRangeNotFound` if it was collected, and `BeingCollected` if a collection deletes it now.
        """
        claim(self, metarange_id)

    def check(self, metarange_id: MetaRangeId, base: MetaRangeId | None) -> None:
        """Read a result and its ranges that `base` does not have, from the store, past the caches.

        Called before the sources are dropped: an executor's result may come from another process, and its files may
        have changed since. Raises `DamagedRange`, or `BeingCollected` for a missing file.
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
