# SPDX-License-Identifier: Apache-2.0
"""The tables `compactlib.raftlog` and `compactlib.blobstore`: entries and records as rows, for `spark.read`.

A query is planned once, in one process. The plan names the segments to read and fixes which entries are live and which
records are valid. Any process that sees the folder can read a part, through the store's own reader, which checks the
data. Reading a segment that was compacted or truncated after the plan raises `Stale`. Neighbouring segments share a
partition up to `partition_bytes`.

The tables refuse filters from Spark: Spark (4.3.0) applies a pushed filter to later queries on the same DataFrame.
After `df.where("index = 7").count()`, `df.count()` would give 1.
"""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Iterator, Mapping, MutableMapping
from itertools import repeat
from typing import Any, ClassVar, TypeAlias

import attrs
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from compactlib.blobstore import BlobReader, RecordKind, SegmentRecords
from compactlib.clock import SystemClock
from compactlib.errors import InvalidInput, NotFound, Stale, Unsupported
from compactlib.files import local_path
from compactlib.indexset import IndexSet
from compactlib.raftlog import (
    DamagedEntry,
    Entry,
    LogReader,
    SnapshotMeta,
    open_segment,
)
from compactlib.raftlog.errors import LiveIndexMissing

Row: TypeAlias = tuple[Any, ...]
"""Values of the columns between `store` and `payload`, then the payload."""

MAX_INDEX = (1 << 64) - 1
_MAX_BATCH_ROWS = 16_384
_MAX_BATCH_BYTES = 1 << 20
_ARROW = {"bigint": pa.int64(), "int": pa.int32(), "boolean": pa.bool_(), "binary": pa.binary(), "string": pa.string()}
_KINDS = {int(kind): kind.name.lower() for kind in RecordKind}


class _Table(DataSource, DataSourceReader):
    """A table in PySpark's interface. A subclass plans (`parts`) and reads (`rows`) a kind of store."""

    source: ClassVar[str]
    """The name for `spark.read.format`."""
    numbers: ClassVar[Mapping[str, int]] = {"partition_bytes": 128 << 20}
    """The options that are whole numbers, with their defaults."""
    own: ClassVar[tuple[tuple[str, str], ...]]
    """Names and Spark SQL types of the columns between `store` and `payload`."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        given = {name.lower(): text for name, text in options.items()}
        known = {"path", "paths", "payload", *self.numbers}
        if strange := given.keys() - known:
            raise InvalidInput(f"unknown option {min(strange)!r}; this source has {', '.join(sorted(known))}")
        if (payload := given.get("payload", "true").lower()) not in ("true", "false"):
            raise InvalidInput(f"option 'payload' is {payload!r:.400}; it takes true or false")
        self._payloads = payload == "true"
        self.settings: dict[str, int] = {**self.numbers}
        for name in self.numbers.keys() & given.keys():
            text = given[name]
            if not (text.isascii() and text.isdigit()) or int(text) > MAX_INDEX:
                raise InvalidInput(f"option {name!r} is {text!r:.400}; it takes a whole number, 0 to 2**64 - 1")
            self.settings[name] = int(text)
        self._columns = (("store", "string"), *self.own, *([("payload", "binary")] if self._payloads else []))
        self._stores: list[str] = [*filter(None, [given.get("path")]), *json.loads(given.get("paths", "[]"))]
        if not self._stores:
            raise InvalidInput("no store is named; give a folder, a list of folders or a pattern: "
                               "spark.read.format(...).load(folder)")

    @classmethod
    def name(cls) -> str:
        return cls.source

    def schema(self) -> str:
        return ", ".join(f"{name} {kind}" for name, kind in self._columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        return self

    def partitions(self) -> list[InputPartition]:
        groups: list[list[Any]] = []
        size = 0
        for folder in self._folders():
            for part in self.parts(folder):
                size += part.size_bytes
                if not groups or size > self.settings["partition_bytes"]:
                    groups.append([])
                    size = part.size_bytes
                groups[-1].append(part)
        return list(map(InputPartition, groups))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Without parts Spark reads one partition with the value `None`.
        for part in partition.value or ():
            batch: list[Row] = []
            held = 0
            for row in self.rows(part):
                size = len(row[-1] or b"")
                if batch and (len(batch) == _MAX_BATCH_ROWS or held + size > _MAX_BATCH_BYTES):
                    yield self._batch(part.folder, batch)
                    batch, held = [], 0
                batch.append(row)
                held += size
            if batch:
                yield self._batch(part.folder, batch)

    def parts(self, folder: str) -> list[Any]:
        """Plan the parts of a store to read, in order; each has `folder` and `size_bytes`."""
        raise NotImplementedError

    def rows(self, part: Any) -> Iterator[Row]:
        """Read the rows of a part; runs in any process."""
        raise NotImplementedError

    def _folders(self) -> list[str]:
        found: list[str] = []
        for given in self._stores:
            path = local_path(given)
            matching = sorted(glob.glob(path)) if glob.has_magic(path) and not os.path.exists(path) else [path]
            if not matching:
                raise NotFound(f"no folder matches {given!r}")
            found += matching
        return found

    def _batch(self, folder: str, rows: list[Row]) -> pa.RecordBatch:
        names = (*(name for name, _ in self.own), "payload")
        columns: dict[str, Any] = dict(zip(names, zip(*rows, strict=True), strict=True))
        columns["store"] = [folder] * len(rows)
        arrays: dict[str, pa.Array[Any]] = {}
        for name, kind in self._columns:
            try:
                arrays[name] = pa.array(columns[name], _ARROW[kind])
            except (OverflowError, pa.ArrowException) as error:
                raise Unsupported(f"{folder}: a {name} is too large for Spark's type ({error}); read the other rows "
                                  f"with payload=false or a range, and this row with the store's own reader") from error
        return pa.RecordBatch.from_pydict(arrays)


# --- raft logs ----------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class _LogPart:
    """The planned read of a segment, or of entries in the write-ahead log, with the state at the time of the plan.

    Attributes:
        number: the segment's number; `None` for entries that are in the write-ahead log only.
        indexes: the range of indexes to read in the segment, or the indexes of the write-ahead log's entries.
        newest: whether the segment was the log's newest, whose end may still grow or be truncated.
        last_term: the term of the last entry to read; another term in the file means that the entry was replaced after
            the plan. `None` if the entry is damaged, dead or in a gap, or if the segment is not the newest.
        inode: the segment file's inode. A replaced segment has another inode, unless the file system reuses the number.
        snapshot: the snapshot that decides which entries are live, cut down to the live indexes of this range.
    """

    folder: str
    number: int | None
    indexes: IndexSet
    newest: bool
    last_term: int | None
    inode: int
    size_bytes: int
    snapshot: SnapshotMeta


class LogTable(_Table):
    """The entries of a raft log; see `register`."""

    source = "compactlib.raftlog"
    numbers: ClassVar[Mapping[str, int]] = {**_Table.numbers, "first": 0, "last": MAX_INDEX}
    own: ClassVar[tuple[tuple[str, str], ...]] = (
        ("segment", "bigint"), ("index", "bigint"), ("term", "bigint"), ("offset", "bigint"), ("length", "bigint"),
        ("live", "boolean"))

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        if self.settings["first"] > self.settings["last"]:
            raise InvalidInput(f"first is {self.settings['first']}, which is above last, {self.settings['last']}")

    def parts(self, folder: str) -> list[_LogPart]:
        with LogReader(folder) as log:
            state, refs, first, last = log.state, log.refs, self.settings["first"], self.settings["last"]
            held = IndexSet().union(*(IndexSet.range(ref.first, ref.last) for ref in refs), log.unflushed)
            if lost := state.live.between(first, last) - held:
                raise _missing(f"{len(lost)} live indexes of {folder} are in no segment", lost)
            planned: list[tuple[int | None, IndexSet]] = [
                (ref.number, IndexSet.range(max(ref.first, first), min(ref.last, last))) for ref in refs
                if max(ref.first, first) <= min(ref.last, last)]
            if unflushed := log.unflushed.between(first, last):
                planned.append((None, unflushed))
            found: list[_LogPart] = []
            for number, indexes in planned:
                try:
                    file = None if number is None else os.stat(log.path_of(number))
                except FileNotFoundError as error:
                    raise _stale(folder, indexes) from error
                newest = number is None or number == refs[-1].number
                [answer] = log.read_many([indexes.last]) if newest else [None]
                found.append(_LogPart(
                    folder=folder, number=number, indexes=indexes, newest=newest,
                    last_term=answer.term if isinstance(answer, Entry) else None,
                    inode=0 if file is None else file.st_ino,
                    # Reading an entry of the write-ahead log reads the whole file, so its entries share a partition.
                    size_bytes=self.settings["partition_bytes"] if file is None else file.st_size,
                    snapshot=attrs.evolve(state, live=state.live.between(indexes.first, indexes.last))))
        return found

    def rows(self, part: _LogPart) -> Iterator[Row]:
        return self._unflushed(part) if part.number is None else self._stored(part, part.number)

    def _stored(self, part: _LogPart, number: int) -> Iterator[Row]:
        first, last, state = part.indexes.first, part.indexes.last, part.snapshot
        try:
            reader = open_segment(part.folder, number, newest=part.newest)
        except NotFound as error:
            raise _stale(part.folder, part.indexes) from error
        with reader:
            index, found, place = reader.index, os.fstat(reader.fileno()), reader.index.find(last)
            if (found.st_ino != part.inode or (found.st_size != part.size_bytes and not part.newest)
                    or part.last_term not in (None, index.terms[place] if place >= 0 else None)):
                raise _stale(part.folder, part.indexes)
            positions = index.positions_between(first, last)
            indexes, terms, offsets, lengths = (column[positions.start:positions.stop] for column in index.columns[:4])
            if missing := state.live.between(first, last) - IndexSet.from_sorted(indexes):
                with LogReader(part.folder) as log:
                    # It may have been compacted between the reads of the list and of its inode.
                    if missing - log.state.live:
                        raise _stale(part.folder, part.indexes)
                raise _missing(f"segment {number} does not hold {len(missing)} entries from {first} to {last} that "
                               "are live", missing)
            answers = reader.answers_at(positions) if self._payloads else repeat(None)
            # As many rows as the index has.
            for at, term, offset, length, answer in zip(indexes, terms, offsets, lengths, answers, strict=False):
                if isinstance(answer, DamagedEntry):
                    raise answer.error
                yield (number, at, term, offset, length, at > state.index or state.live.holds(at),
                       answer.payload if isinstance(answer, Entry) else None)

    def _unflushed(self, part: _LogPart) -> Iterator[Row]:
        state = part.snapshot
        with LogReader(part.folder) as log:
            if log.state.index > state.index:
                raise _stale(part.folder, part.indexes)
            for answer in log.read_many(list(part.indexes)):
                if isinstance(answer, DamagedEntry):
                    raise answer.error
                if not isinstance(answer, Entry) or (answer.index == part.indexes.last
                                                     and answer.term != (part.last_term or answer.term)):
                    # Truncated, or dead by a newer snapshot, since the plan.
                    raise _stale(part.folder, part.indexes)
                yield (None, answer.index, answer.term, None, len(answer.payload),
                       answer.index > state.index or state.live.holds(answer.index), answer.payload)


def _stale(folder: str, indexes: IndexSet) -> Stale:
    return Stale(f"indexes {indexes.first} to {indexes.last} of {folder} were compacted away or truncated after this "
                 f"read was planned; load the log again")


def _missing(what: str, lost: IndexSet) -> LiveIndexMissing:
    return LiveIndexMissing(f"{what}, the first is {lost.first}; restore the segments from a copy",
                            missing=len(lost), first=lost.first)


# --- blob stores --------------------------------------------------------------------------------------------------


class BlobTable(_Table):
    """The records of a blob store; see `register`. The plan marks each record that a compaction would keep as valid."""

    source = "compactlib.blobstore"
    own: ClassVar[tuple[tuple[str, str], ...]] = (
        ("segment", "bigint"), ("generation", "bigint"), ("offset", "bigint"), ("size", "bigint"), ("length", "bigint"),
        ("id", "binary"), ("kind", "string"), ("sequence", "bigint"), ("op_time_ms", "bigint"),
        ("expires_ms", "bigint"), ("account", "bigint"), ("container", "bigint"), ("life_version", "int"),
        ("permanent", "boolean"), ("erased", "boolean"), ("valid", "boolean"))

    def parts(self, folder: str) -> list[SegmentRecords]:
        now = SystemClock().now()
        with BlobReader(folder) as reader:
            if reader.damage:
                raise reader.damage[0]
            return list(reader.records(reference_time=now, now=now))

    def rows(self, part: SegmentRecords) -> Iterator[Row]:
        for entry, valid, payload, error in part.read(payloads=self._payloads):
            if error is not None:
                raise error
            yield (*part.name, entry.offset, entry.size, entry.content_bytes, entry.id, _KINDS[entry.kind],
                   entry.sequence, entry.op_time_ms, None if entry.expires_ms < 0 else entry.expires_ms, entry.account,
                   entry.container, entry.life_version, entry.is_permanent, entry.is_erased, valid, payload)
