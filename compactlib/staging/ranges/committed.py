# SPDX-License-Identifier: Apache-2.0
"""`CommittedRanges`: the committed layer over an object store."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from compactlib.budget import Budget
from compactlib.clock import Clock, SystemClock
from compactlib.objects import ObjectStore
from compactlib.observer import Observer
from compactlib.report import VerifyReport
from compactlib.staging.errors import BeingCollected, MetaRangeNotFound, RangeNotFound
from compactlib.staging.ranges.apply import Apply, batches_of
from compactlib.staging.ranges.collect import RangeCollector, claim
from compactlib.staging.ranges.cursor import RangeDiff, RangeLookup, RangeScan
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
    LiveMetaRanges,
    MergeStrategy,
    MetaRangeId,
    RangeEntry,
    Record,
)

if TYPE_CHECKING:
    from concurrent.futures import Executor


class CommittedRanges:
    """Immutable metaranges: apply changes, read, compare, merge, collect. Threads and processes may share one store.

    A metarange is an immutable sorted set of records, named by its content. Where a metarange may be `None`, that means
    "nothing was ever committed" and reads as an empty one; an EMPTY metarange has an id like any other. Equal content
    has equal ids under one split rule, whatever its history, format and release.

    Every method that reads raises `MetaRangeNotFound`, `RangeNotFound`, `DamagedRange` or `NewerFormat` when a file is
    not what it should be, and what the object store raises (`ObjectStoreFailed`, `StorageError`): never a
    shorter answer.

    Args:
        objects: where the files lie.
        range_format: how ranges are written: `PlainFormat()` needs nothing, `parquet.ParquetFormat()` is for large
            ranges and for other tools. Either reads what the other wrote.
        rule: where ranges are cut. A base that was cut by another rule is read and cut anew as a whole.
        cache_bytes: logical bytes of ranges, and of metaranges, to keep in memory.
        prefix: what the keys of the files begin with: `""`, or something that ends with a slash.
        background: lends threads to applies and merges, which then read, hash, encode and write ranges beside the
            caller's thread; the result is the same. The host starts it and shuts it down.
        clock: for the ages of files in `collect`.
        new_name: names the marks that keep writers and `collect` apart; for tests that need names to repeat.
    """

    def __init__(self, objects: ObjectStore, *, range_format: RangeFormat | None = None, rule: SplitRule | None = None,
                 cache_bytes: int = 64 << 20, prefix: str = "", background: Executor | None = None,
                 clock: Clock | None = None, new_name: Callable[[], str] = lambda: uuid.uuid4().hex) -> None:
        self._rule: SplitRule = SplitRule() if rule is None else rule
        self._background: Executor | None = background
        self._clock: Clock = SystemClock() if clock is None else clock
        chosen: RangeFormat = PlainFormat() if range_format is None else range_format
        self._files: RangeFiles = RangeFiles(objects, prefix=prefix, range_format=chosen, cache_bytes=cache_bytes,
                                             new_name=new_name)

    @property
    def rule(self) -> SplitRule:
        """Where ranges are cut."""
        return self._rule

    @property
    def empty_id(self) -> MetaRangeId:
        """The id of the empty set."""
        return MetaRange(self._rule, ()).encode()[0]

    @property
    def files(self) -> RangeFiles:
        """Where ranges are read and written; for those who make ranges elsewhere, on a cluster say."""
        return self._files

    def apply(self, base: MetaRangeId | None, changes: Changes, *, budget: Budget | None = None,
              observer: Observer | None = None) -> Applied:
        """The metarange that has `base`'s records with `changes` made to them; durable when this returns.

        A tombstone of an unknown key changes nothing. A record of the same identity as the base's changes nothing: the
        base's data stays. The result's id depends on the resulting records alone, so it is `base` if nothing changed.
        The observer is notified how many of the base's ranges are done. A base that nothing names any more, and that is
        not young, is to be claimed first. O(ranges + records of the ranges touched).

        Raises:
            UnsortedKeys: the keys do not ascend strictly. Nothing is published.
            NilValue: a change is neither a `Record` nor `TOMBSTONE`.
            BudgetSpent: the budget ran out; nothing is published.
        """
        return Apply(self._files, self._rule, self._metarange(base), batches_of(changes), budget or Budget(),
                     background=self._background, observer=observer).run(base)

    def get(self, metarange_id: MetaRangeId | None, key: bytes) -> Record | None:
        """The record of a key, or `None` if there is none. Opens at most one range.

        O(log ranges + log records) once the range is cached, else a read of it.
        """
        return RangeLookup(self._files, self._metarange(metarange_id)).get(key)

    def get_many(self, metarange_id: MetaRangeId | None, keys: Iterable[bytes]) -> dict[bytes, Record]:
        """The records of those keys that have one. Opens each range at most once."""
        lookup = RangeLookup(self._files, self._metarange(metarange_id))
        found = {key: lookup.get(key) for key in sorted(set(keys))}
        return {key: record for key, record in found.items() if record is not None}

    def scan(self, metarange_id: MetaRangeId | None, start: bytes = b"") -> RangeScan:
        """All records from the first key >= `start` on. Opens each range as it gets there."""
        return RangeScan(self._files, self._metarange(metarange_id), start)

    def diff(self, left: MetaRangeId | None, right: MetaRangeId | None, start: bytes = b"",
             end: bytes | None = None) -> RangeDiff:
        """What changed from `left` to `right`, from the first key >= `start` on, and below `end`. Equal ranges are not
        opened, nor those outside of these keys.

        O(ranges + records of the ranges that are not in both).
        """
        return RangeDiff(self._files, self._metarange(left), self._metarange(right), start, end)

    def merge(self, base: MergeBase, source: MetaRangeId | None, destination: MetaRangeId | None,
              strategy: MergeStrategy = "fail", *, budget: Budget | None = None) -> Applied:
        """`destination` with what changed from `base` to `source`; counts are against `destination`.

        A base of several common ancestors is a `CrossedBase` (`compactlib.staging.ranges.merge`).

        Raises:
            MergeConflict: keys were changed differently on both sides, and the strategy is `"fail"`.
            BudgetSpent: as for `apply`.
        """
        return merge_metaranges(self._files, self._rule, base, source, destination, strategy,
                                budget or Budget(), self._background)

    def ranges_of(self, metarange_id: MetaRangeId | None) -> Sequence[RangeEntry]:
        """The ranges of a metarange, in order of their keys. Opens none of them."""
        return self._metarange(metarange_id).entries

    def claim(self, metarange_id: MetaRangeId) -> None:
        """Keep a metarange that perhaps nothing names from `collect`, until what names it is written.

        For a caller that uses an old one again: the claim counts for the collections' grace period. Three requests,
        whatever its size.

        Raises:
            MetaRangeNotFound: it was collected.
            BeingCollected: it is being collected at this moment.
        """
        claim(self._files, metarange_id)

    def check(self, metarange_id: MetaRangeId, base: MetaRangeId | None) -> None:
        """Read a metarange that was made of `base`, and its ranges that are not `base`'s, from the store itself.

        Before what it was made of goes: what an executor reports may have come from another process, and what it
        wrote may have changed since. One request for each file.

        Raises:
            DamagedRange: a file is not what its name says.
            BeingCollected: one is not there any more.
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
        """How much room there is for more ranges now; `None` where it is unknown."""
        return self._files.objects.available_bytes()

    def collect(self, live: Callable[[], LiveMetaRanges], *, grace_seconds: float, budget: Budget | None = None,
                require_owner: Callable[[], object] = lambda: None) -> Collected:
        """Delete the files that no live metarange needs and that are older than the grace period. See `Collected`.

        The protocol against racing writers is in `collect`.

        Args:
            live: gives every metarange that a commit or a branch record names, as it is at the time of the call. It
                is called a second time before anything is deleted, because branches may move between looking and
                deleting; that call should also keep those from writing who have read a branch before.
            grace_seconds: files younger than this stay; must exceed the longest operation and the longest scan.
            budget: asked before each metarange is read, and before every 1,000 files are deleted.
            require_owner: called before every 1,000 files are deleted; raises if the files are another's by now.

        Raises:
            BudgetSpent: the budget ran out; what was deleted before it was garbage.
        """
        return RangeCollector(self._files, self._clock, live, grace_seconds, budget or Budget(), require_owner).run()

    def verify(self, live: LiveMetaRanges, *, budget: Budget | None = None) -> VerifyReport:
        """Read all ranges of these metaranges, check them more deeply than a read does, and list what is wrong.

        O(records of all ranges).

        Args:
            live: which metaranges; one of the history that is not there is an `orphan`, which is harmless.
            budget: asked before each file.

        Raises:
            BudgetSpent: the budget ran out.
        """
        return verify_ranges(self._files, live, budget or Budget())

    def _metarange(self, metarange_id: MetaRangeId | None) -> MetaRange:
        return self._files.read_metarange(metarange_id, self._rule)

    def __repr__(self) -> str:
        return f"CommittedRanges({self._files.objects!r}, {self._files.range_format.name}, {self._rule!r})"
