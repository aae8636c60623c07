# SPDX-License-Identifier: Apache-2.0
"""Real traces as workloads: a CSV schema of our own, and the block trace of CloudPhysics.

The schema: a header line, then one operation a line, ascending in time.

| column | type | meaning |
|---|---|---|
| `time` | seconds, a decimal number | when; any zero |
| `op` | `put`, `delete` or `read` | what; a put of a key that is there replaces it |
| `key` | text | which object |
| `size` | whole number of bytes | content of a put, or what a read asks for; may be empty otherwise |
| `ttl` | seconds, a decimal number | time to live of a put; empty or no column: none |

Other columns are ignored. The same columns make a Parquet trace (`parquet_trace.ParquetTrace`).

Operations that share a time are spread evenly from it on, over `tick_seconds` at most and never past the next time
(`OperationsBuilder`); the pages of one request stay together. Give `tick_seconds` the resolution of the trace's clock;
0 leaves all times as they are.
"""

from __future__ import annotations

import csv
import gzip
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import IO, Any, ClassVar

import attrs

from compactlib.errors import CorruptData, InvalidInput
from compactlib.files.disk import StrPath
from compactlib.lab.traces.operations import (
    DELETE,
    FOREVER,
    KIND_NAMES,
    MAX_RECORD_BYTES,
    PUT,
    READ,
    Operations,
    OperationsBuilder,
)
from compactlib.lab.traces.workloads import PIECE

REQUIRED = ("time", "op", "key")
COLUMNS = (*REQUIRED, "size", "ttl")
"""The columns of a trace."""


def path_text(path: StrPath) -> str:
    """A path as text."""
    return os.fspath(path)


def tick_field() -> Any:
    """The setting `tick_seconds` of a trace, for `attrs`; `InvalidInput` if it is negative, or more than a day."""
    def check(_: object, field: attrs.Attribute[Any], value: object) -> None:
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= 86_400:
            raise InvalidInput(f"{field.name} is {value!r}; give a number of seconds, 0 to 86,400")

    return attrs.field(default=1.0, validator=check)


@attrs.frozen
class CsvTrace:
    """A trace in CSV, plain or `.gz`, in the schema of this module.

    Reading raises `CorruptData`, with the line, for what is not in the schema; `NotFound` stays the system's own
    `FileNotFoundError`.

    Attributes:
        path: of the file.
        tick_seconds: how coarse its times are.

    Raises:
        InvalidInput: that is no time.
    """

    path: str = attrs.field(converter=path_text)
    tick_seconds: float = tick_field()

    name: ClassVar[str] = "csv_trace"
    operations: ClassVar[int] = 0

    def pieces(self, seed: int) -> Iterator[Operations]:
        """See `Workload.pieces`; the seed changes nothing. Memory: the keys, and one piece."""
        with opened(self.path) as lines:
            rows = csv.DictReader(lines)
            missing = [name for name in REQUIRED if name not in (rows.fieldnames or ())]
            if missing:
                raise CorruptData(path=self.path, offset=0, index=1, found=f"the columns {rows.fieldnames}",
                                  expected=f"the columns {', '.join(REQUIRED)}")
            yield from pieces_of(rows, self.path, self.tick_seconds)

    def __str__(self) -> str:
        return f"{self.name}({self.path})"


@attrs.frozen
class CloudPhysicsTrace:
    """The block trace of CloudPhysics as libCacheSim ships it: `version,time,op,size,lbn`, plain or `.gz`.

    Each page that a request touches is a key; a write (`2a`) puts it, a read (`28`) reads it.

    Attributes:
        path: of the file.
        page_bytes: size of a page, a multiple of 512.
        tick_seconds: how coarse its times are: they are whole seconds.

    Raises:
        InvalidInput: the page's size is none, or the tick is no time.
    """

    path: str = attrs.field(converter=path_text)
    page_bytes: int = 4_096
    tick_seconds: float = tick_field()

    name: ClassVar[str] = "cloudphysics"
    operations: ClassVar[int] = 0

    def __attrs_post_init__(self) -> None:
        if self.page_bytes < 512 or self.page_bytes % 512:
            raise InvalidInput(f"page_bytes is {self.page_bytes}; give a multiple of 512, the size of a block")

    def pieces(self, seed: int) -> Iterator[Operations]:
        """See `Workload.pieces`; the seed changes nothing.

        Raises:
            CorruptData: a line is not of the trace's kind.
        """
        builder = OperationsBuilder(tick_ms=round(self.tick_seconds * 1000))
        latest = 0
        with opened(self.path) as lines:
            for number, row in enumerate(csv.DictReader(lines), 2):
                try:
                    kind = {"2a": PUT, "28": READ}[row["op"]]
                    size, first = int(row["size"]), int(row["lbn"]) * 512
                    # A few requests are noted a little late; the time of a workload does not go back.
                    latest = max(latest, round(float(row["time"]) * 1000))
                except (KeyError, TypeError, ValueError) as error:
                    raise _damaged(self.path, number, row, "version,time,op,size,lbn with op 28 or 2a") from error
                pages = range(first // self.page_bytes, (first + max(size, 1) - 1) // self.page_bytes + 1)
                for page in pages:
                    builder.add(kind, str(page), self.page_bytes, FOREVER, latest, joins=page != pages[0])
                if len(builder) >= PIECE:
                    yield builder.take()
        builder.finish()
        if len(builder):
            yield builder.take()

    def __str__(self) -> str:
        return f"{self.name}({self.path}, page_bytes={self.page_bytes})"


@contextmanager
def opened(path: str) -> Iterator[IO[str]]:
    """The lines of a text file, unpacked if its name ends in `.gz`."""
    if path.endswith(".gz"):
        with gzip.open(path, "rt", encoding="utf-8", errors="replace", newline="") as unpacked:
            yield unpacked
    else:
        with open(path, encoding="utf-8", errors="replace", newline="") as plain:
            yield plain


def pieces_of(rows: Iterable[Mapping[str, Any]], path: str, tick_seconds: float, *,
              first: int = 2) -> Iterator[Operations]:
    """Rows in the schema of this module as pieces of a workload.

    Args:
        rows: in order.
        path: of the file, for errors.
        tick_seconds: how coarse times are.
        first: number of the first row: 2 for lines behind a header.

    Raises:
        CorruptData: a row is not in the schema, or goes back in time; its number is the index.
    """
    builder = OperationsBuilder(tick_ms=round(tick_seconds * 1000))
    before = -math.inf
    for number, row in enumerate(rows, first):
        try:
            kind, key, size, life_ms, time_ms = _parsed(row)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise _damaged(path, number, row, "time, op (put, delete, read), key, size and ttl, see "
                                              "compactlib.lab.traces.traces") from error
        if time_ms < before:
            raise _damaged(path, number, row, f"a time not before {before / 1000}: sort the trace by time")
        before = time_ms
        builder.add(kind, key, size, life_ms, time_ms)
        if len(builder) >= PIECE:
            yield builder.take()
    builder.finish()
    if len(builder):
        yield builder.take()


def _parsed(row: Mapping[str, Any]) -> tuple[int, str, int, int, int]:
    kind = KIND_NAMES.index(row["op"])
    size, life = row.get("size"), row.get("ttl")
    if row["key"] in (None, ""):
        raise ValueError("no key")
    size_bytes = 0 if size in (None, "") and kind != PUT else int(size)  # type: ignore[arg-type]
    if not (0 if kind == DELETE else 1) <= size_bytes <= MAX_RECORD_BYTES and not (kind == READ and size_bytes == 0):
        raise ValueError("a size out of range")
    life_ms = FOREVER
    if kind == PUT and life is not None and life != "" and life == life:
        life_ms = round(float(life) * 1000)
        if life_ms < 0:
            raise ValueError("a negative time to live")
    return kind, str(row["key"]), size_bytes, life_ms, round(float(row["time"]) * 1000)


def _damaged(path: str, number: int, row: Mapping[str, Any], expected: str) -> CorruptData:
    return CorruptData(path=path, offset=0, index=number, expected=expected, found=repr(dict(row))[:200])
