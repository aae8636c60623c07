# SPDX-License-Identifier: Apache-2.0
"""Real traces as workloads: a CSV file, the entries of a Raft log.

A CSV trace has a header line, then one operation a line, ascending in time:

| column | type | meaning |
|---|---|---|
| `time` | seconds, a decimal number | the time, from any origin |
| `op` | `put`, `delete` or `read` | the kind; a put of an existing key replaces its object |
| `key` | text | the object |
| `size` | whole number of bytes | content of a put, or bytes read; may be empty otherwise |
| `ttl` | seconds, a decimal number | time to live of a put; empty or no column: none |

Other columns are ignored. Times often have a resolution of a second, which may have tens of thousands of operations. If
all were made at once, no record would be dead before the next second; so operations with equal times are spread evenly
over a second, or up to the next time.
"""

from __future__ import annotations

import csv
import gzip
import math
import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Any, ClassVar, Protocol

import attrs

from compactlib.errors import CorruptData, StorageError
from compactlib.files import StrPath
from compactlib.lab.workloads import DELETE, FOREVER, KIND_NAMES, MAX_RECORD_BYTES, PUT, Row
from compactlib.raftlog import Entry

_LATEST_MS = 1 << 53
_TICK_MS = 1_000
_NEEDED = ("time", "op", "key")
_UNREADABLE = (EOFError, gzip.BadGzipFile, zlib.error, csv.Error)


def _path_text(path: StrPath) -> str:
    return os.fspath(path)


@attrs.frozen
class CsvTrace:
    """A trace in CSV, plain or `.gz`. Memory: the keys, and the operations of one time.

    Attributes:
        path: the path of the file.

    Raises:
        CorruptData: during reading: a line is not of the layout; its number, from 1, is the index.
        StorageError: during reading: the file cannot be opened.
    """

    path: str = attrs.field(converter=_path_text)

    name: ClassVar[str] = "trace"
    operations: ClassVar[int] = 0

    def rows(self, seed: int) -> Iterator[Row]:
        """Yield the operations; the seed is ignored."""
        return _spread(self._operations())

    def _operations(self) -> Iterator[Row]:
        known: dict[str, int] = {}
        before = -math.inf
        opener: Any = gzip.open if self.path.endswith(".gz") else open
        # Bytes that are not UTF-8 become surrogates.
        try:
            opened = opener(self.path, "rt", encoding="utf-8-sig", errors="surrogateescape", newline="")
        except OSError as error:
            raise StorageError.from_os(error, "read", self.path) from error
        with opened as file:
            lines = csv.DictReader(file)
            try:
                if not {*_NEEDED} <= {*(lines.fieldnames or ())}:
                    raise self._damaged(1, f"the columns {', '.join(_NEEDED)}", str(lines.fieldnames))
                for line in lines:
                    try:
                        kind, size, life_ms, time_ms = _operation(line)
                    except (TypeError, ValueError, OverflowError) as error:
                        raise self._damaged(lines.line_num, f"time, op, key, size, ttl with an op of "
                                            f"{', '.join(KIND_NAMES)}", repr(line)) from error
                    if time_ms < before:
                        raise self._damaged(lines.line_num, f"a time not before {before / 1000}: sort the trace by "
                                            f"time", repr(line))
                    before = time_ms
                    yield kind, known.setdefault(line["key"], len(known)), size, life_ms, time_ms
            except _UNREADABLE as error:
                raise self._damaged(lines.line_num + 1, "a whole line", str(error)) from error

    def _damaged(self, line: int, expected: str, found: str) -> CorruptData:
        return CorruptData(path=self.path, offset=0, index=line, expected=expected, found=found[:200])

    def __str__(self) -> str:
        return f"{self.name}({self.path})"


def _operation(line: Mapping[str, Any]) -> tuple[int, int, int, int]:
    """Return kind, size, time to live and time of a line, in milliseconds; raises `ValueError` and the like."""
    kind, time_ms = KIND_NAMES.index(line["op"]), round(float(line["time"]) * 1000)
    # Tools that have a number for each missing size write sizes such as 20.0.
    size = 0.0 if kind == DELETE else float(line.get("size") or 0)
    lasts = kind != PUT or not line.get("ttl")
    life_ms = 0 if lasts else round(float(line["ttl"]) * 1000)
    if not line["key"] or abs(time_ms) > _LATEST_MS:
        raise ValueError("no key, or a time out of range")
    if not (int(kind == PUT) <= size <= MAX_RECORD_BYTES and size.is_integer() and 0 <= life_ms <= _LATEST_MS):
        raise ValueError("a size or a time to live out of range")
    return kind, int(size), FOREVER if lasts else life_ms, time_ms


def _spread(operations: Iterator[Row]) -> Iterator[Row]:
    equal = list[Row]()
    for following in chain(operations, [None]):
        if equal and (following is None or following[4] != equal[0][4]):
            start = equal[0][4]
            room = _TICK_MS if following is None else min(_TICK_MS, following[4] - start)
            for number, (kind, key, size, life, _) in enumerate(equal):
                yield kind, key, size, life, start + number * room // len(equal)
            equal.clear()
        if following is not None:
            equal.append(following)


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
        known: dict[str | int | None, int] = {}
        for number, entry in enumerate(self.reader.entries()):
            key = entry.index if self.key_of is None else self.key_of(entry.payload)
            if key is None:
                yield DELETE, known.setdefault(entry.index, len(known)), 0, FOREVER, number
            else:
                yield PUT, known.setdefault(key, len(known)), max(len(entry.payload), 1), FOREVER, number
