# SPDX-License-Identifier: Apache-2.0
"""`CommittedRanges`: the committed layer over an object store."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence

from compactlib.budget import Budget
from compactlib.clock import Clock, SystemClock
from compactlib.objects import ObjectStore
from compactlib.observer import Observer
from compactlib.report import VerifyReport
from compactlib.staging.errors import BeingCollected, MetaRangeNotFound, RangeNotFound
from compactlib.staging.ranges.apply import Apply, batches_of
from compactlib.staging.ranges.collect import RangeCollector, claim
from compactlib.staging.ranges.cursor import RangeLookup, RangeScan, diff
from compactlib.staging.ranges.files import RangeFiles
from compactlib.staging.ranges.merge import MergeBase, merge_metaranges
from compactlib.staging.ranges.metarange import MetaRange
from compactlib.staging.ranges.plain import PlainFormat
from compactlib.staging.ranges.rows import RangeFormat
from compactlib.staging.ranges.split import SplitRule
from compactlib.staging.ranges.verify import verify_ranges
from compactlib.staging.values import (
    Applied,
    Changes,
    Collected,
    Difference,
    LiveMetaRanges,
    MergeStrategy,
    MetaRangeId,
    RangeEntry,
    Record,
)


class CommittedRanges:
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
        clock: for the ages of files in `collect`.
        new_name: names the marks of writers and `collect`; for tests with repeatable names.
    """

    def __init__(self, objects: ObjectStore, *, range_format: RangeFormat | None = None, rule: SplitRule | None = None,
                 cache_bytes: int = 64 << 20, prefix: str = "", clock: Clock | None = None,
                 new_name: Callable[[], str] = lambda: uuid.uuid4().hex) -> None:
        self._rule: SplitRule = SplitRule() if rule is None else rule
        self._clock: Clock = SystemClock() if clock is None else clock
        chosen: RangeFormat = PlainFormat() if range_format is None else range_format
        self._files: RangeFiles = RangeFiles(objects, prefix=prefix, range_format=chosen, cache_bytes=cache_bytes,
                                             new_name=new_name)

    @property
    def rule(self) -> SplitRule:
        """The split rule of new ranges."""
        return self._rule

    @property
    def empty_id(self) -> MetaRangeId:
        """The id of the empty metarange."""
        return MetaRange(self._rule, ()).encode()[0]

    def unless_head(self, metarange_id: MetaRangeId, head: MetaRangeId | None) -> MetaRangeId | None:
        """Return a result; `None` if it has the content of HEAD, so that a branch need not name it."""
        return None if metarange_id == (self.empty_id if head is None else head) else metarange_id

    @property
    def files(self) -> RangeFiles:
        """Reads and writes the files; for callers that write ranges themselves, as on a cluster."""
        return self._files

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
        return Apply(self._files, self._rule, self._metarange(base), batches_of(changes), budget or Budget(),
                     observer=observer).run(base)

    def get(self, metarange_id: MetaRangeId | None, key: bytes) -> Record | None:
        """Return the record of a key, or `None`. Reads at most one range, unless cached.

        O(log ranges + log records).
        """
        return RangeLookup(self._files, self._metarange(metarange_id)).get(key)

    def get_many(self, metarange_id: MetaRangeId | None, keys: Iterable[bytes]) -> dict[bytes, Record]:
        """Return the records of the keys that exist. Opens each range at most once."""
        lookup = RangeLookup(self._files, self._metarange(metarange_id))
        found = {key: lookup.get(key) for key in sorted(set(keys))}
        return {key: record for key, record in found.items() if record is not None}

    def scan(self, metarange_id: MetaRangeId | None, start: bytes = b"") -> RangeScan:
        """Return a scan of all records from the first key >= `start`. Opens each range when it reaches it."""
        return RangeScan(self._files, self._metarange(metarange_id), start)

    def diff(self, left: MetaRangeId | None, right: MetaRangeId | None, start: bytes = b"",
             end: bytes | None = None) -> Iterator[Difference]:
        """Yield the differences from `left` to `right` for the keys >= `start` and < `end`. Skips common ranges.

        O(ranges + records of the ranges that only one side has).
        """
        return diff(self._files, self._metarange(left), self._metarange(right), start, end)

    def merge(self, base: MergeBase, source: MetaRangeId | None, destination: MetaRangeId | None,
              strategy: MergeStrategy = "fail", *, budget: Budget | None = None) -> Applied:
        """Apply the changes from `base` to `source` to `destination`; counts are against `destination`.

        A base of several common ancestors is a `CrossedBase` (`compactlib.staging.ranges.merge`).

        Raises:
            MergeConflict: both sides changed a key in different ways, and the strategy is `"fail"`.
            BudgetSpent: as for `apply`.
        """
        return merge_metaranges(self._files, self._rule, base, source, destination, strategy,
                                budget or Budget())

    def ranges_of(self, metarange_id: MetaRangeId | None) -> Sequence[RangeEntry]:
        """Return the ranges of a metarange, in order of their keys. Opens no range."""
        return self._metarange(metarange_id).entries

    def claim(self, metarange_id: MetaRangeId) -> None:
        """Protect a metarange from collections for their grace period, until a record names it.

        For a caller that reuses an unreachable metarange. Three requests, independent of its size.

        Raises:
            MetaRangeNotFound: it was collected.
            BeingCollected: a collection deletes it now.
        """
        claim(self._files, metarange_id)

    def check(self, metarange_id: MetaRangeId, base: MetaRangeId | None) -> None:
        """Read a result and its ranges that `base` does not have, from the store, past the caches.

        Called before the sources are dropped: an executor's result may come from another process, and its files may
        have changed since. One request for each file.

        Raises:
            DamagedRange: the content of a file does not match its name.
            BeingCollected: a file is missing.
        """
        if metarange_id == base:
            return
        known = {entry.range_id for entry in self.ranges_of(base)}
        self._files.forget(metarange_id)
        try:
            for entry in self.ranges_of(metarange_id):
                if entry.range_id not in known:
                    self._files.forget(entry.range_id)
                    self._files.read_range(entry, keep=False)
        except (MetaRangeNotFound, RangeNotFound) as error:
            raise BeingCollected(id=metarange_id) from error

    def available_bytes(self) -> int | None:
        """Return the free bytes of the object store; `None` if unknown."""
        return self._files.objects.available_bytes()

    def collect(self, live: Callable[[], LiveMetaRanges], *, grace_seconds: float, budget: Budget | None = None,
                require_owner: Callable[[], object] = lambda: None) -> Collected:
        """Delete the files that no live metarange needs and that are older than the grace period.

        The module `collect` has the protocol with concurrent writers.

        Args:
            live: returns every metarange that a commit or a branch record names now. Called again before the deletes,
                because branches may have moved; this call must also invalidate updates in flight.
            grace_seconds: younger files stay; must exceed the longest operation and the longest scan.
            budget: checked before each read of a metarange, and before every 1,000 deletes.
            require_owner: called before every 1,000 deletes; raises if another repository owns the files now.

        Raises:
            BudgetSpent: the budget ran out; the files deleted before were unneeded.
        """
        return RangeCollector(self._files, self._clock, live, grace_seconds, budget or Budget(), require_owner).run()

    def verify(self, live: LiveMetaRanges, *, budget: Budget | None = None) -> VerifyReport:
        """Read and check all ranges of metaranges, deeper than an ordinary read, and list the findings.

        O(records of all ranges).

        Args:
            live: the metaranges; a missing one of the history is an `orphan`, which is harmless.
            budget: checked before each file.

        Raises:
            BudgetSpent: the budget ran out.
        """
        return verify_ranges(self._files, live, budget or Budget())

    def _metarange(self, metarange_id: MetaRangeId | None) -> MetaRange:
        return self._files.read_metarange(metarange_id, self._rule)

    def __repr__(self) -> str:
        return f"CommittedRanges({self._files.objects!r}, {self._files.range_format.name}, {self._rule!r})"
