"""`CommittedRanges`: the committed layer over an object store."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor

from compactlib._arguments import require_method, require_type
from compactlib.clock import Clock, SystemClock
from compactlib.objects import ObjectStore
from compactlib.report import VerifyReport
from compactlib.runtime.budget import Budget
from compactlib.runtime.observe import Observer
from compactlib.staging.committed.apply import Apply
from compactlib.staging.committed.diff import RangeDiff
from compactlib.staging.committed.formats.metarange import MetaRange
from compactlib.staging.committed.formats.plain_format import PlainFormat
from compactlib.staging.committed.formats.rows import RangeFormat
from compactlib.staging.committed.formats.split import SplitRule
from compactlib.staging.committed.interface import MergeStrategy
from compactlib.staging.committed.merge import merge_metaranges
from compactlib.staging.committed.ranges.range_cache import CacheStats
from compactlib.staging.committed.ranges.range_collect import RangeCollector
from compactlib.staging.committed.ranges.range_cursor import RangeLookup, RangeScan
from compactlib.staging.committed.ranges.range_files import METARANGES, RANGES, RangeFiles
from compactlib.staging.committed.ranges.range_verify import RangeVerifier
from compactlib.staging.model.values import (
    Applied,
    Changes,
    Collected,
    LiveMetaRanges,
    MetaRangeId,
    RangeEntry,
    Record,
    StoredFile,
)


class CommittedRanges:
    """A `Committed` that keeps ranges and metaranges as immutable objects. Threads and processes may share a store.

    Equal content has equal ids under one split rule, whatever its history, format and release.

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
        require_method("the object store", objects, "create", "get", "list")
        require_method("the range format", range_format, "encode", "decode", or_none=True)
        require_method("the clock", clock, "now", or_none=True)
        require_method("background", background, "submit", or_none=True)
        require_type("the rule", rule, SplitRule, or_none=True)
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
    def files(self) -> RangeFiles:
        """Where ranges are read and written; for those who make ranges elsewhere, on a cluster say."""
        return self._files

    def apply(self, base: MetaRangeId | None, changes: Changes, *, budget: Budget | None = None,
              observer: Observer | None = None) -> Applied:
        """See `Committed.apply`. O(ranges + records of the ranges touched)."""
        return Apply(self._files, self._rule, self._metarange(base), changes, Budget() if budget is None else budget,
                     background=self._background, observer=observer).run(base)

    def get(self, metarange_id: MetaRangeId | None, key: bytes) -> Record | None:
        """See `Committed.get`. O(log ranges + log records) once the range is cached, else a read of it."""
        return RangeLookup(self._files, self._metarange(metarange_id)).get(key)

    def get_many(self, metarange_id: MetaRangeId | None, keys: Iterable[bytes]) -> dict[bytes, Record]:
        """See `Committed.get_many`."""
        lookup = RangeLookup(self._files, self._metarange(metarange_id))
        found = {key: lookup.get(key) for key in sorted(set(keys))}
        return {key: record for key, record in found.items() if record is not None}

    def scan(self, metarange_id: MetaRangeId | None, start: bytes = b"") -> RangeScan:
        """See `Committed.scan`."""
        return RangeScan(self._files, self._metarange(metarange_id), start)

    def diff(self, left: MetaRangeId | None, right: MetaRangeId | None, start: bytes = b"") -> RangeDiff:
        """See `Committed.diff`. O(ranges + records of the ranges that are not in both)."""
        return RangeDiff(self._files, self._metarange(left), self._metarange(right), start)

    def merge(self, base: MetaRangeId | None, source: MetaRangeId | None, destination: MetaRangeId | None,
              strategy: MergeStrategy = "fail", *, budget: Budget | None = None) -> Applied:
        """See `Committed.merge`."""
        return merge_metaranges(self._files, self._rule, self._metarange(base), self._metarange(source),
                                self._metarange(destination), destination, strategy,
                                Budget() if budget is None else budget, self._background)

    def ranges_of(self, metarange_id: MetaRangeId | None) -> Sequence[RangeEntry]:
        """See `Committed.ranges_of`."""
        return self._metarange(metarange_id).entries

    def claim(self, metarange_id: MetaRangeId) -> None:
        """See `Committed.claim`. Three requests, whatever its size."""
        self._files.claim(metarange_id)

    def available_bytes(self) -> int | None:
        """See `Committed.available_bytes`."""
        return self._files.objects.available_bytes()

    def list_ranges(self) -> Iterator[StoredFile]:
        """See `Committed.list_ranges`."""
        return self._files.list(RANGES)

    def list_metaranges(self) -> Iterator[StoredFile]:
        """See `Committed.list_metaranges`."""
        return self._files.list(METARANGES)

    def collect(self, live: Callable[[], LiveMetaRanges], *, grace_seconds: float,
                budget: Budget | None = None) -> Collected:
        """See `Committed.collect`; the protocol against racing writers is in `range_collect`."""
        return RangeCollector(self._files, self._clock, live, grace_seconds, budget).run()

    def verify(self, live: LiveMetaRanges, *, budget: Budget | None = None) -> VerifyReport:
        """See `Committed.verify`. O(records of all ranges)."""
        verifier = RangeVerifier(self._files, Budget() if budget is None else budget)
        for metarange_id in sorted(live.needed):
            verifier.verify(metarange_id)
        for metarange_id in sorted(live.history):
            verifier.verify(metarange_id, is_history=True)
        return VerifyReport(findings=tuple(verifier.findings), records=verifier.records,
                            bytes_read=verifier.bytes_read)

    def cache_stats(self) -> CacheStats:
        """How well the cache did."""
        return self._files.cache.stats()

    def audit(self) -> None:
        """Check the cache's books.

        Raises:
            CompactlibError: they are wrong; the message has the numbers.
        """
        self._files.cache.audit()

    def _metarange(self, metarange_id: MetaRangeId | None) -> MetaRange:
        return self._files.read_metarange(metarange_id, self._rule)

    def __repr__(self) -> str:
        return f"CommittedRanges({self._files.objects!r}, {self._files.range_format.name}, {self._rule!r})"
