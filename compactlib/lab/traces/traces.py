# SPDX-License-Identifier: Apache-2.0
"""Real traces as workloads: a CSV schema of our own. Those that are published have readers in `public_traces`.

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


def tick_field(default: float | None = 1.0) -> Any:
    """The setting `tick_seconds` of a trace, for `attrs`; `InvalidInput` if it is negative, or more than a day."""
    def check(_: object, field: attrs.Attribute[Any], value: object) -> None:
        if value is None and default is None:
            return
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= 86_400:
            raise InvalidInput(f"{field.name} is {value!r}; give a number of seconds, 0 to 86,400")

    return attrs.field(default=default, validator=check)


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
    yield from builder.rest()


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
