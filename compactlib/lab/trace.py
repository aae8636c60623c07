# SPDX-License-Identifier: Apache-2.0
"""Real traces as workloads: CSV, Parquet, the entries of a Raft log.

A host's trace has a header line, then one operation a line, ascending in time:

| column | type | meaning |
|---|---|---|
| `time` | seconds, a decimal number | the time, from any origin |
| `op` | `put`, `delete` or `read` | the kind; a put of an existing key replaces its object |
| `key` | text | the object |
| `size` | whole number of bytes | content of a put, or bytes read; may be empty otherwise |
| `ttl` | seconds, a decimal number | time to live of a put; empty or no column: none |

Other columns are ignored. `LAYOUTS` has the layouts of published traces as data.

The times of traces have a resolution of seconds, or less, and a second may have tens of thousands of requests. If all
were made at once, no record would expire between them; so requests with equal times are spread evenly over the tick.
"""

from __future__ import annotations

import csv
import gzip
import math
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, Any, ClassVar, Protocol, TypeAlias

import attrs

from compactlib._arguments import is_seconds
from compactlib.errors import CorruptData, MissingDependency
from compactlib.files import StrPath
from compactlib.lab.workloads import (
    DELETE,
    FOREVER,
    KIND_NAMES,
    MAX_RECORD_BYTES,
    PIECE,
    PUT,
    READ,
    Row,
)
from compactlib.raftlog import Entry

_Request: TypeAlias = tuple[int, Sequence[str], int, int, int]
"""Kind, keys, and for each key its size, its time to live and the time, milliseconds."""
_LATEST_MS = 1 << 53
_MAX_PAGES = 1 << 20
_DAY = 86_400.0
_UNREADABLE = (EOFError, gzip.BadGzipFile, zlib.error, csv.Error)


def _path_text(path: StrPath) -> str:
    return os.fspath(path)


@attrs.frozen(kw_only=True)
class TraceLayout:
    """The meaning of the columns of a trace.

    Attributes:
        name: the layout's name.
        columns: the columns' names in order, for a file without a header; empty: the first line has the names.
        skips_header: whether a file with `columns` may begin with a header, which is skipped.
        kinds: the texts for a put (0), a delete (1) and a read (2).
        keys: the columns that form the key; with `offset`, those of the device.
        sizes: the columns whose sum is the size.
        ttl: the column of times to live, seconds; empty: no time to live. With `columns`, 0 is no time to live.
        offset: the column of the first byte of a request to a device; each page of the device is a key then.
        page_bytes: size of a page of a device.
        unit_bytes: the unit of sizes, bytes.
        offset_bytes: the unit of offsets, bytes.
        units_per_second: the unit of times.
        tick_seconds: the resolution of times; requests with equal times are spread over it.
        is_sorted: whether a descending time is damage; otherwise its request is made at the latest time so far.
    """

    name: str
    columns: tuple[str, ...] = ()
    skips_header: bool = False
    kinds: Mapping[str, int] = attrs.field(factory=lambda: {name: kind for kind, name in enumerate(KIND_NAMES)})
    keys: tuple[str, ...] = ("key",)
    sizes: tuple[str, ...] = ("size",)
    ttl: str = "ttl"
    offset: str = ""
    page_bytes: int = 4_096
    unit_bytes: int = 1
    offset_bytes: int = 1
    units_per_second: int = 1
    tick_seconds: float = attrs.field(default=0.0, validator=is_seconds(most=_DAY))
    is_sorted: bool = False

    def needed(self) -> list[str]:
        """Return the required columns."""
        return ["time", "op", *self.keys, *filter(None, [self.offset])]

    def request(self, row: Mapping[str, Any]) -> _Request:
        """Parse a row.

        Raises:
            KeyError, TypeError, ValueError, OverflowError: the row is not of this layout.
        """
        kind, time_ms = self.kinds[row["op"]], round(float(row["time"]) * 1000 / self.units_per_second)
        texts = [row[name] for name in self.keys]
        if any(text in (None, "") for text in texts):
            raise ValueError("no key")
        key = "/".join(map(str, texts))
        given: list[Any] = [row.get(name) for name in self.sizes]
        is_unknown = kind == DELETE or (kind == READ and all(each in (None, "") for each in given))
        size = 0 if is_unknown else sum(map(int, given)) * self.unit_bytes
        if any(isinstance(each, float) and each != int(each) for each in given):
            raise ValueError("a size that is no whole number")
        if self.offset:
            first = int(row[self.offset]) * self.offset_bytes
            pages = range(first // self.page_bytes, (first + max(size, 1) - 1) // self.page_bytes + 1)
            if first < 0 or size < 0 or len(pages) > _MAX_PAGES:
                raise ValueError("out of range")
            keys = [f"{key}:{page}" if key else str(page) for page in pages]
            return kind, keys, self.page_bytes, FOREVER, time_ms
        life: Any = row.get(self.ttl)
        life_ms = FOREVER
        # Some writers of Parquet store NaN for a missing value.
        if kind == PUT and life not in (None, "") and life == life:
            life_ms = round(float(life) * 1000)
            if not life_ms and self.columns:
                life_ms = FOREVER
            elif not 0 <= life_ms <= _LATEST_MS:
                raise ValueError("a time to live out of range")
        if not (1 if kind == PUT else 0) <= size <= MAX_RECORD_BYTES:
            raise ValueError("a size out of range")
        return kind, (key,), size, life_ms, time_ms


OWN_LAYOUT = TraceLayout(name="trace", tick_seconds=1.0, is_sorted=True)
_SECTOR = 512
LAYOUTS: Mapping[str, TraceLayout] = {layout.name: layout for layout in (
    # A header, then a line as libCacheSim ships it.
    TraceLayout(name="cloudphysics", columns=("version", "time", "op", "size", "lbn"), skips_header=True, keys=(),
                kinds={"2a": PUT, "28": READ}, offset="lbn", offset_bytes=_SECTOR, tick_seconds=1.0),
    # FAST 2008; times in units of 100 nanoseconds.
    TraceLayout(name="msr_cambridge", columns=("time", "host", "disk", "op", "offset", "size", "response"),
                keys=("host", "disk"), kinds={"Write": PUT, "Read": READ}, offset="offset",
                units_per_second=10_000_000),
    # github.com/alibaba/block-traces
    TraceLayout(name="alibaba", columns=("device", "op", "offset", "size", "time"), keys=("device",),
                kinds={"W": PUT, "R": READ}, offset="offset", units_per_second=1_000_000),
    # USENIX ATC 2020
    TraceLayout(name="tencent", columns=("time", "offset", "size", "op", "volume"), keys=("volume",),
                kinds={"1": PUT, "0": READ}, offset="offset", offset_bytes=_SECTOR, unit_bytes=_SECTOR,
                tick_seconds=1.0),
    # github.com/twitter/cache-trace
    TraceLayout(name="twitter", columns=("time", "key", "key_size", "value_size", "client", "op", "ttl"),
                sizes=("key_size", "value_size"), tick_seconds=1.0,
                kinds={"get": READ, "gets": READ, "delete": DELETE, **dict.fromkeys(
                    ("set", "add", "replace", "cas", "append", "prepend", "incr", "decr"), PUT)}),
)}
"""The layouts of published traces, by name. Unpack traces published as `.tgz` or `.zst` first."""


@attrs.frozen
class CsvTrace:
    """A trace in CSV, plain or `.gz`. Memory: the keys, and the requests of one tick.

    Attributes:
        path: the path of the file.
        layout: the meaning of the columns; by default the header has their names.

    Raises:
        CorruptData: during reading: a line (of Parquet, a row) is not of the layout; its number, from 1, is the index.
    """

    path: str = attrs.field(converter=_path_text)
    layout: TraceLayout = OWN_LAYOUT

    operations: ClassVar[int] = 0

    @property
    def name(self) -> str:
        """The name of the layout."""
        return self.layout.name

    def rows(self, seed: int) -> Iterator[Row]:
        """Yield the operations; the seed is ignored."""
        return _spread(_requests(self.path, self.layout, self._rows()), self.layout.tick_seconds)

    def _rows(self) -> Iterator[tuple[int, Mapping[str, Any]]]:
        with _opened(self.path) as lines:
            columns = self.layout.columns
            # A quote in a published trace is an ordinary character, which a key may contain.
            rows = csv.DictReader(lines, columns, restkey="more", restval="", quoting=csv.QUOTE_NONE) if columns else (
                csv.DictReader(lines))
            _check_columns(self.path, self.layout, rows.fieldnames or ())
            for place, row in enumerate(rows):
                # A split of a trace has no header.
                if place or not self.layout.skips_header or row["op"] in self.layout.kinds:
                    yield rows.line_num, row

    def __str__(self) -> str:
        return f"{self.name}({self.path})"


@attrs.frozen
class ParquetTrace(CsvTrace):
    """A trace in Parquet: the columns of a CSV trace, numbers as numbers, missing values as null. Needs pyarrow."""

    def _rows(self) -> Iterator[tuple[int, Mapping[str, Any]]]:
        try:
            import pyarrow
            from pyarrow import parquet
        except ImportError:
            raise MissingDependency(package="pyarrow", extra="lab", purpose="reading a trace in Parquet") from None
        try:
            with parquet.ParquetFile(self.path) as file:
                names = file.schema_arrow.names
                _check_columns(self.path, self.layout, names)
                used = [*self.layout.needed(), *self.layout.sizes, self.layout.ttl]
                batches = file.iter_batches(batch_size=PIECE, columns=[name for name in used if name in names])
                yield from enumerate((row for batch in batches for row in batch.to_pylist()), 1)
        except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            raise CorruptData(path=self.path, offset=0, expected="a Parquet file", found=str(error)[:200]) from error


class HasEntries(Protocol):
    """The source of a `LogTrace`: a `LogReader`, a `SegmentLog` or a `RaftLog`."""

    def entries(self) -> Iterator[Entry]:
        """Yield the entries, by ascending index."""


@attrs.frozen
class LogTrace:
    """A Raft log as a trace: each entry is a put of the key that its command writes, a millisecond after the last.

    A compacted log lacks its dead entries.

    Attributes:
        reader: the open log.
        key_of: returns the key that a command writes, or `None` for a command whose entry is dead at once. By default
            each entry has a unique key.
    """

    reader: HasEntries
    key_of: Callable[[bytes], str | None] | None = attrs.field(default=None, repr=False)

    name: ClassVar[str] = "raft_log"
    operations: ClassVar[int] = 0

    def rows(self, seed: int) -> Iterator[Row]:
        """Yield the operations; the seed is ignored."""
        return _spread(self._request(number, entry) for number, entry in enumerate(self.reader.entries()))

    def _request(self, number: int, entry: Entry) -> _Request:
        own = f"\0{entry.index}"
        key = own if self.key_of is None else self.key_of(entry.payload)
        if key is None:
            return DELETE, (own,), 0, FOREVER, number
        return PUT, (key,), max(len(entry.payload), 1), FOREVER, number


@contextmanager
def _opened(path: str) -> Iterator[IO[str]]:
    """Open a text file, unpacked if its name ends in `.gz`. Bytes that are not UTF-8 become surrogates."""
    opener: Any = gzip.open if path.endswith(".gz") else open
    with opener(path, "rt", encoding="utf-8-sig", errors="surrogateescape", newline="") as lines:
        yield lines


def _check_columns(path: str, layout: TraceLayout, names: Sequence[str]) -> None:
    needed = layout.needed()
    if not {*needed} <= {*names}:
        raise CorruptData(path=path, offset=0, index=1, expected=f"the columns {', '.join(needed)}",
                          found=f"the columns {', '.join(names)}")


def _requests(path: str, layout: TraceLayout, rows: Iterator[tuple[int, Mapping[str, Any]]]) -> Iterator[_Request]:
    """Parse rows; a time never descends."""
    def damaged(expected: str) -> CorruptData:
        return CorruptData(path=path, offset=0, index=number, expected=expected, found=repr(dict(row or {}))[:200])

    before, number = -math.inf, 0
    row: Mapping[str, Any] | None = None
    while True:
        try:
            number, row = next(rows, (number, None))
        except _UNREADABLE as error:
            raise CorruptData(path=path, offset=0, index=number + 1, expected="a whole row",
                              found=str(error)) from error
        if row is None:
            return
        try:
            kind, keys, size, life_ms, time_ms = layout.request(row)
            if abs(time_ms) > _LATEST_MS:
                raise ValueError("a time out of range")
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            columns = layout.columns or (*layout.needed(), *layout.sizes, layout.ttl)
            raise damaged(f"{', '.join(columns)} with an op of {', '.join(layout.kinds)}") from error
        if time_ms < before and layout.is_sorted:
            raise damaged(f"a time not before {before / 1000}: sort the trace by time")
        before = max(before, time_ms)
        yield kind, keys, size, life_ms, int(before)


def _spread(requests: Iterable[_Request], tick_seconds: float = 0.0) -> Iterator[Row]:
    """Yield the operations of requests; requests with equal times are spread evenly over the tick."""
    known: dict[str, int] = {}
    tick_ms, equal = round(tick_seconds * 1000), list[_Request]()

    def operations(next_ms: int) -> Iterator[Row]:
        for number, (kind, keys, size, life_ms, time_ms) in enumerate(equal):
            at_ms = time_ms + number * min(tick_ms, next_ms - time_ms) // len(equal)
            for key in keys:
                yield kind, known.setdefault(key, len(known)), size, life_ms, at_ms

    for request in requests:
        if equal and request[4] != equal[0][4]:
            yield from operations(request[4])
            equal.clear()
        equal.append(request)
    if equal:
        yield from operations(equal[0][4] + tick_ms)
