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

Traces note times in seconds, or coarser, and a second may hold tens of thousands of requests. Were they all made at
once, nothing that one of them replaces would be dead before the last. So requests that share a time are spread evenly
from it on, over `tick_seconds` at most and never past the next time; the pages of one request stay together. Give
`tick_seconds` the resolution of the trace's clock; 0 leaves all times as they are.
"""

from __future__ import annotations

import csv
import gzip
import math
import os
import zlib
from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import IO, Any, ClassVar, TypeAlias

import attrs

from compactlib.errors import CorruptData, InvalidInput
from compactlib.files import StrPath
from compactlib.lab.operations import DELETE, FOREVER, KIND_NAMES, MAX_RECORD_BYTES, PUT, Operations
from compactlib.lab.workloads import PIECE

REQUIRED = ("time", "op", "key")
COLUMNS = (*REQUIRED, "size", "ttl")
"""The columns of a trace."""
Request: TypeAlias = tuple[int, Sequence[str], int, int, int]
"""Kind, keys, and of each key size, time to live and time, milliseconds."""
_LATEST_MS = 1 << 53
_UNREADABLE = (EOFError, gzip.BadGzipFile, zlib.error, csv.Error)


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
class RowTrace(ABC):
    """A base: a file with a row a request.

    Attributes:
        path: of the file.
        tick_seconds: how coarse its times are.

    Raises:
        InvalidInput: that is no time.
    """

    path: str = attrs.field(converter=path_text)
    tick_seconds: float | None = tick_field()

    name: ClassVar[str]
    operations: ClassVar[int] = 0
    # What is said of a row that goes back in time; `None`: it is noted late, and the time of the workload stays.
    _unsorted: ClassVar[str | None] = None

    def pieces(self, seed: int) -> Iterator[Operations]:
        """See `Workload.pieces`; the seed changes nothing. Memory: the keys, and one piece.

        Raises:
            CorruptData: the file, or a row, is not of the trace's kind; its line (of Parquet, its row), from 1, is the
                index.
        """
        yield from pieces_of(self._requests(), self._tick)

    def _requests(self) -> Iterator[Request]:
        before, number = -math.inf, 0
        rows = self._rows()
        while True:
            try:
                number, row = next(rows, (number, None))
            except _UNREADABLE as error:
                raise CorruptData(path=self.path, offset=0, index=number + 1, expected="a whole row",
                                  found=str(error)) from error
            if row is None:
                return
            try:
                kind, keys, size, life_ms, time_ms = self._request(row)
                if size > MAX_RECORD_BYTES or life_ms > _LATEST_MS or abs(time_ms) > _LATEST_MS:
                    raise ValueError("beyond what a replay counts")
            except (KeyError, TypeError, ValueError, OverflowError) as error:
                raise self._damaged(number, row, self._schema) from error
            if time_ms < before and self._unsorted is not None:
                raise self._damaged(number, row, f"a time not before {before / 1000}: {self._unsorted}")
            before = max(before, time_ms)
            yield kind, keys, size, life_ms, int(before)

    def _damaged(self, number: int, row: Mapping[str, Any], expected: str) -> CorruptData:
        return CorruptData(path=self.path, offset=0, index=number, expected=expected, found=repr(dict(row))[:200])

    @property
    def _tick(self) -> float:
        return self.tick_seconds or 0.0

    @property
    @abstractmethod
    def _schema(self) -> str:
        """What a row has to be."""

    @abstractmethod
    def _rows(self) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """The rows with their numbers."""

    @abstractmethod
    def _request(self, row: Mapping[str, Any]) -> Request:
        """What a row asks; without keys it does not count. A `ValueError` and its like: it is not in the schema."""

    def __str__(self) -> str:
        return f"{self.name}({self.path})"


class OwnTrace(RowTrace):
    """A base: rows in the schema of this module."""

    _unsorted = "sort the trace by time"
    _schema = "time, op (put, delete, read), key, size and ttl, see compactlib.lab.trace"

    def _request(self, row: Mapping[str, Any]) -> Request:
        kind = KIND_NAMES.index(row["op"])
        size, life = row.get("size"), row.get("ttl")
        if row["key"] in (None, ""):
            raise ValueError("no key")
        size_bytes = 0 if size in (None, "") and kind != PUT else int(size)  # type: ignore[arg-type]
        least = 0 if kind == DELETE else 1
        if not least <= size_bytes <= MAX_RECORD_BYTES or (isinstance(size, float) and size != size_bytes):
            raise ValueError("a size out of range")
        life_ms = FOREVER
        if kind == PUT and life is not None and life != "" and life == life:
            life_ms = round(float(life) * 1000)
            if life_ms < 0:
                raise ValueError("a negative time to live")
        return kind, (str(row["key"]),), size_bytes, life_ms, round(float(row["time"]) * 1000)


@attrs.frozen
class CsvTrace(OwnTrace):
    """A trace in CSV, plain or `.gz`, in the schema of this module.

    Reading raises `CorruptData`, with the line, for what is not in the schema; `NotFound` stays the system's own
    `FileNotFoundError`.

    Attributes:
        path: of the file.
        tick_seconds: how coarse its times are.

    Raises:
        InvalidInput: that is no time.
    """

    name: ClassVar[str] = "csv_trace"

    def _rows(self) -> Iterator[tuple[int, Mapping[str, Any]]]:
        with opened(self.path) as lines:
            rows = csv.DictReader(lines)
            missing = [name for name in REQUIRED if name not in (rows.fieldnames or ())]
            if missing:
                raise CorruptData(path=self.path, offset=0, index=1, found=f"the columns {rows.fieldnames}",
                                  expected=f"the columns {', '.join(REQUIRED)}")
            for row in rows:
                yield rows.line_num, row


@contextmanager
def opened(path: str) -> Iterator[IO[str]]:
    """The lines of a text file, unpacked if its name ends in `.gz`. What is no UTF-8 stays apart, byte by byte."""
    if path.endswith(".gz"):
        with gzip.open(path, "rt", encoding="utf-8-sig", errors="surrogateescape", newline="") as unpacked:
            yield unpacked
    else:
        with open(path, encoding="utf-8-sig", errors="surrogateescape", newline="") as plain:
            yield plain


def pieces_of(requests: Iterable[Request], tick_seconds: float = 0.0) -> Iterator[Operations]:
    """Requests in order of time as pieces of a workload. Memory: the keys, a piece, and what shares one time.

    Args:
        requests: what is asked; those that share a time are spread over it.
        tick_seconds: how coarse times are; 0: they are left as they are.
    """
    known: dict[str, int] = {}
    kinds, numbers = bytearray(), array("i")
    sizes, lives, times, starts = array("q"), array("q"), array("q"), array("q")
    tick_ms, settled = round(tick_seconds * 1000), 0

    def settle(next_ms: int) -> None:
        # Those that share the latest time are all there.
        nonlocal settled
        span = min(tick_ms, next_ms - times[-1])
        for number, (first, end) in enumerate(pairwise((*starts, len(times)))):
            times[first:end] = array("q", (times[first] + number * span // len(starts),)) * (end - first)
        settled = len(times)
        del starts[:]

    def take() -> Operations:
        nonlocal settled
        end, settled = settled, 0
        made = Operations(kinds=bytes(kinds[:end]), keys=numbers[:end], sizes=sizes[:end], lives_ms=lives[:end],
                          times_ms=times[:end])
        for column in (kinds, numbers, sizes, lives, times):
            del column[:end]
        return made

    for kind, keys, size, life_ms, time_ms in requests:
        if not keys:
            continue
        if starts and time_ms != times[-1]:
            settle(time_ms)
            if settled >= PIECE:
                yield take()
        starts.append(len(times))
        for key in keys:
            kinds.append(kind)
            numbers.append(known.setdefault(key, len(known)))
            sizes.append(size)
            lives.append(life_ms)
            times.append(time_ms)
    if times:
        if starts:
            settle(times[-1] + tick_ms)
        yield take()
