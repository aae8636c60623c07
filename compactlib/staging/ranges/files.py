# SPDX-License-Identifier: Apache-2.0
"""Ranges and metaranges in an object store: written once, checked by every read.

Keys below the prefix: `ranges/<id>`, `metaranges/<id>`; the marks of garbage collection `reused/<name>` and
`doomed/<name>` (see `collect`); `incoming/<name>`; and `owner/`, the owner's entry. A range file names its format,
so a store may hold several formats. Other files are ignored.
"""

from __future__ import annotations

import contextlib
import re
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import attrs

from compactlib._arguments import require_whole
from compactlib.clock import Clock, SystemClock
from compactlib.errors import CorruptData, InvalidInput, Unsupported
from compactlib.lru import Lru
from compactlib.objects import CachedObjects, ObjectExists, ObjectInfo, ObjectNotFound, ObjectStore
from compactlib.staging.errors import BeingCollected, MetaRangeNotFound, RangeNotFound
from compactlib.staging.ranges.metarange import MetaRange, SplitRule
from compactlib.staging.ranges.plain import PlainFormat
from compactlib.staging.ranges.rows import RangeFormat, Rows
from compactlib.staging.values import MetaRangeId, RangeEntry, RangeId

RANGES: Final = "ranges/"
METARANGES: Final = "metaranges/"
REUSED: Final = "reused/"
DOOMED: Final = "doomed/"
INCOMING: Final = "incoming/"
"""Changes for the workers of a cluster; the process that wrote them removes them."""
_ID: Final = re.compile(r"[0-9a-f]{40}")
_NAME: Final = re.compile(r"[A-Za-z0-9_=+@,-][A-Za-z0-9._=+@,-]*")


class RangeFiles:
    """Reads and writes the files of a committed layer; arguments and errors as for `CommittedRanges`."""

    def __init__(self, objects: ObjectStore, *, range_format: RangeFormat | None = None, rule: SplitRule | None = None,
                 cache_bytes: int = 64 << 20, prefix: str = "", clock: Clock | None = None,
                 new_name: Callable[[], str] = lambda: uuid.uuid4().hex) -> None:
        if prefix and not prefix.endswith("/"):
            raise InvalidInput(f"the prefix {prefix!r} must be empty or end with a slash")
        self.objects: ObjectStore = objects
        self.prefix: str = prefix
        self.new_name: Callable[[], str] = new_name
        self.range_format: RangeFormat = PlainFormat() if range_format is None else range_format
        self.rule: SplitRule = SplitRule() if rule is None else rule
        self.clock: Clock = SystemClock() if clock is None else clock
        self._cache: Lru[str, Rows | MetaRange] = Lru(require_whole("cache_bytes", cache_bytes))

    def read_range(self, entry: RangeEntry, *, keep: bool = True) -> Rows:
        """Return the records of a range, checked against its id and its metarange. One request, unless cached."""
        held = self._cache.get(entry.range_id)
        if held is not None and not isinstance(held, MetaRange):
            return held
        path = self.path_of_range(entry.range_id)
        with self._uncached_if_damaged(entry.range_id):
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

    @contextlib.contextmanager
    def _uncached_if_damaged(self, id_: str) -> Iterator[None]:
        """Drop damaged bytes from the caches: the file may be put back."""
        try:
            yield
        except CorruptData:
            self.forget(id_)
            raise

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
        with self._uncached_if_damaged(metarange_id):
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
            # The file decides, not a copy of it that was cached before.
            self.forget(id_)
            # If it was deleted since, `confirm` raises.
            with contextlib.suppress(ObjectNotFound, Unsupported):
                try:
                    decoded(self.objects.get(path))  # may have another format
                except CorruptData:
                    # Damaged, or copied in part: its name is the hash of the content at hand.
                    self.objects.delete([path])
                    with contextlib.suppress(ObjectExists):
                        self.objects.create(path, data)

    def mark_reuse(self, id_: str) -> None:
        """Mark an existing file as reused, for garbage collections; the caller confirms it with `confirm`."""
        self.objects.create(f"{self.prefix}{REUSED}{self.new_name()}", id_.encode())

    def confirm(self, written: Iterable[str]) -> None:
        """Raise `BeingCollected` if a collection deletes, or has deleted, one of these written or reused files.

        One listing, and one request for each file.
        """
        doomed = self.doomed()
        for path in written:
            id_ = path.rpartition("/")[2]
            if id_ in doomed or not self.is_there(path):
                raise BeingCollected(id=id_)

    def claim(self, metarange_id: MetaRangeId) -> None:
        """Protect an unreachable metarange from collections for their grace period. Three requests.

        One mark covers its ranges too: a collection dooms and deletes metaranges first. So if the metarange is neither
        doomed nor missing, its ranges are neither. Raises `MetaRangeNotFound` if it was collected, and `BeingCollected`
        if a collection deletes it now.
        """
        path = self.path_of_metarange(metarange_id)
        self.mark_reuse(metarange_id)
        if metarange_id in self.doomed():
            raise BeingCollected(id=metarange_id)
        if not self.is_there(path):
            raise MetaRangeNotFound(metarange_id=metarange_id, path=path)

    def doomed(self, besides: str = "") -> set[str]:
        """Return the ids of files in doom marks, except in the mark with this name."""
        return {id_ for text in self.texts(DOOMED, besides) for id_ in text.split()}

    def texts(self, folder: str, besides: str = "") -> Iterator[str]:
        """Yield the texts of marks."""
        for mark in self.list(folder):
            if mark.key != besides:
                with contextlib.suppress(ObjectNotFound):
                    yield self.objects.get(self.prefix + folder + mark.key).decode("ascii", "replace")

    def is_there(self, path: str) -> bool:
        """Return whether a file exists. One request."""
        try:
            self.objects.info(path)
        except ObjectNotFound:
            return False
        return True

    def list(self, folder: str) -> Iterator[ObjectInfo]:
        """Yield the files of a folder, each by its name in the folder; skips unrelated files."""
        start = len(self.prefix) + len(folder)
        for info in self.objects.list(self.prefix + folder):
            name = info.key[start:]
            if (_ID if folder in (RANGES, METARANGES) else _NAME).fullmatch(name):
                yield attrs.evolve(info, key=name)

    @property
    def path_of_owner(self) -> str:
        """The prefix of the keys of the owner's entries."""
        return f"{self.prefix}owner"

    def path_of_range(self, range_id: RangeId) -> str:
        """Return the key of a range's file."""
        return f"{self.prefix}{RANGES}{range_id}"

    def path_of_metarange(self, metarange_id: MetaRangeId) -> str:
        """Return the key of a metarange's file; `InvalidInput` if this is no id."""
        if not _ID.fullmatch(metarange_id):
            raise InvalidInput(f"{metarange_id!r} is no id of 40 hexadecimal digits")
        return f"{self.prefix}{METARANGES}{metarange_id}"
