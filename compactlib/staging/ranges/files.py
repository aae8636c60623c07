# SPDX-License-Identifier: Apache-2.0
"""Ranges and metaranges in an object store: written once, checked by every read.

A range file names its format, so a store may hold several formats. `collect` has the names of all files.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable

from compactlib.clock import Clock, SystemClock
from compactlib.errors import CorruptData, Unsupported
from compactlib.lru import Lru
from compactlib.objects import CachedObjects, ObjectExists, ObjectNotFound, ObjectStore
from compactlib.staging.errors import MetaRangeNotFound, RangeNotFound
from compactlib.staging.ranges.collect import MarkedFiles
from compactlib.staging.ranges.metarange import MetaRange, SplitRule
from compactlib.staging.ranges.plain import PlainFormat
from compactlib.staging.ranges.rows import RangeFormat, Rows
from compactlib.staging.values import MetaRangeId, RangeEntry, RangeId


class RangeFiles(MarkedFiles):
    """Reads and writes the files of a committed layer; arguments and errors as for `CommittedRanges`."""

    def __init__(self, objects: ObjectStore, *, range_format: RangeFormat | None = None, rule: SplitRule | None = None,
                 cache_bytes: int = 64 << 20, prefix: str = "", clock: Clock | None = None,
                 new_name: Callable[[], str] = lambda: uuid.uuid4().hex) -> None:
        super().__init__(objects, prefix, new_name)
        self.range_format: RangeFormat = PlainFormat() if range_format is None else range_format
        self.rule: SplitRule = SplitRule() if rule is None else rule
        self.clock: Clock = SystemClock() if clock is None else clock
        self._cache: Lru[str, Rows | MetaRange] = Lru(max_bytes=cache_bytes)

    def read_range(self, entry: RangeEntry, *, keep: bool = True) -> Rows:
        """Return the records of a range, checked against its id and its metarange. One request, unless cached."""
        held = self._cache.get(entry.range_id)
        if held is not None and not isinstance(held, MetaRange):
            return held
        path = self.path_of_range(entry.range_id)
        rows = self._decode(self._fetched(entry, path), entry.range_id, path)
        if (len(rows), rows.key(0), rows.key(len(rows) - 1)) != (entry.count, entry.min_key, entry.max_key):
            raise CorruptData(path=path, offset=0, expected=f"{entry.count} records as the metarange says",
                              found=f"{len(rows)} records, or other first and last keys")
        if keep:
            self._cache.put(entry.range_id, rows, entry.size_bytes)
        return rows

    def reread(self, entry: RangeEntry) -> Rows:
        """Return the records of a range, read past the caches and hashed anew: before its sources are removed, say."""
        self.forget(entry.range_id)
        rows = self.read_range(entry, keep=False)
        found = rows.content_id()
        if found != entry.range_id:
            raise CorruptData(path=self.path_of_range(entry.range_id), offset=0, found=f"that of {found}",
                              expected=f"the content of range {entry.range_id}")
        return rows

    def forget(self, id_: str) -> None:
        """Drop a range or metarange from the caches, so that the next read reads the store."""
        self._cache.drop(id_)
        if isinstance(self.objects, CachedObjects):
            self.objects.forget(self.path_of_range(RangeId(id_)))
            self.objects.forget(self.path_of_metarange(MetaRangeId(id_)))

    def _decode(self, data: bytes, range_id: RangeId, path: str) -> Rows:
        own, found = self.range_format, self._format_of(data, path)
        rows = found.decode(data, range_id, path)
        return rows if found is own else own.rows(rows.pairs(0))

    def format_of(self, entry: RangeEntry) -> RangeFormat:
        """Return the format of a range's file. One request."""
        path = self.path_of_range(entry.range_id)
        return self._format_of(self._fetched(entry, path), path)

    def _fetched(self, entry: RangeEntry, path: str) -> bytes:
        try:
            return self.objects.get(path)
        except ObjectNotFound:
            raise RangeNotFound(range_id=entry.range_id, path=path) from None

    def _format_of(self, data: bytes, path: str) -> RangeFormat:
        if self.range_format.recognizes(data):
            return self.range_format
        plain = PlainFormat()
        if plain.recognizes(data):
            return plain
        if data[:4] == b"PAR1":
            # The import needs pyarrow.
            from compactlib.staging.ranges.parquet import ParquetFormat

            return ParquetFormat()
        raise CorruptData(path=path, offset=0, expected="a range file", found=f"one that begins with {data[:8]!r}")

    def read_metarange(self, metarange_id: MetaRangeId | None) -> MetaRange:
        """Return a metarange, checked against its id; for `None` an empty metarange under the present rule."""
        if metarange_id is None:
            return MetaRange(self.rule, ())
        held = self._cache.get(metarange_id)
        if isinstance(held, MetaRange):
            return held
        path = self.path_of_metarange(metarange_id)
        try:
            data = self.objects.get(path)
        except ObjectNotFound:
            raise MetaRangeNotFound(metarange_id=metarange_id, path=path) from None
        found = MetaRange.decode(data, metarange_id, path)
        self._cache.put(metarange_id, found, len(data))
        return found

    def write_range(self, range_id: RangeId, rows: Rows) -> None:
        """Write a range, durably; the caller confirms it. A damaged file of this name is replaced."""
        path = self.path_of_range(range_id)
        self._create(range_id, path, self.range_format.encode(rows, range_id),
                     lambda data: self._decode(data, range_id, path))

    def write_metarange(self, metarange_id: MetaRangeId, data: bytes) -> None:
        """Write a metarange of durable ranges, durably; the caller confirms it with `confirm`."""
        path = self.path_of_metarange(metarange_id)
        self._create(metarange_id, path, data, lambda data: MetaRange.decode(data, metarange_id, path))

    def _create(self, id_: str, path: str, data: bytes, decoded: Callable[[bytes], object]) -> None:
        try:
            self.objects.create(path, data)
        except ObjectExists:
            self.mark_reuse(id_)
            # If it was deleted since, `confirm` raises.
            with contextlib.suppress(ObjectNotFound, Unsupported):
                try:
                    decoded(self.objects.get(path))  # may have another format
                except CorruptData:
                    # Damaged, or copied in part: its name is the hash of the content at hand.
                    self.objects.delete([path])
                    with contextlib.suppress(ObjectExists):
                        self.objects.create(path, data)
