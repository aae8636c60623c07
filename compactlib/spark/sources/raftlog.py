# SPDX-License-Identifier: Apache-2.0
"""`compactlib.raftlog`: a log's entries as rows, partitioned by segments, with no work per row but the checksum."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, TypeAlias

import attrs
import pyarrow as pa

from compactlib.errors import InvalidInput, NotFound, Stale, Unsupported
from compactlib.files.disk import local_path
from compactlib.indexset.index_set import IndexSet
from compactlib.raftlog.errors import LiveIndexMissing
from compactlib.raftlog.log.log_reader import LogReader
from compactlib.raftlog.model.names import segment_name
from compactlib.raftlog.model.refs import overlapping_refs
from compactlib.raftlog.model.snapshot_meta import SnapshotMeta, read_snapshot_meta
from compactlib.raftlog.model.values import MAX_INDEX, DamagedEntry, Entry, SegmentRef
from compactlib.raftlog.segment.liveness import kept_positions
from compactlib.raftlog.segment.reader import SegmentReader, Span
from compactlib.raftlog.segment.segment_list import open_segment
from compactlib.raftlog.snapshots.listing import listed_in, read_live_set, read_manifest
from compactlib.spark.sources.arrow_arrays import Contents, binaries, flags, in_batches, numbers, schema_of
from compactlib.spark.sources.table_source import DAMAGED, Columns, Option, TableOptions, TableSource, whole

MAX_BATCH_ROWS = 16_384
"""Rows in one batch. A batch also ends where a read does, which is after 1 MiB of payload or one larger entry."""

_MAX_BATCH_BYTES = 1 << 20
_LARGEST_LONG = (1 << 63) - 1
_LARGEST_BINARY = (1 << 31) - 1
_ADVICE = "read a range without it (options first and last), or use compactlib.raftlog.LogReader"


@attrs.frozen(kw_only=True)
class SourceOptions(TableOptions):
    """What a reader of the source may ask for, besides `TableOptions`: see `docs/spark.md`."""

    first: int = 0
    last: int = MAX_INDEX
    as_of: int | None = None
    snapshots: str | None = None
    known: ClassVar[Mapping[str, Option]] = {
        "damaged": DAMAGED, "snapshots": Option("snapshots", local_path),
        **{name: whole(name, "a log index, 0 to 2**64 - 1", most=MAX_INDEX) for name in ("first", "last", "as_of")}}
    what: ClassVar[str] = "log"
    own: ClassVar[Columns] = (("segment", "bigint"), ("index", "bigint"), ("term", "bigint"), ("offset", "bigint"),
                              ("length", "bigint"), ("live", "boolean"))

    def __attrs_post_init__(self) -> None:
        if self.first > self.last:
            raise InvalidInput(f"first is {self.first}, which lies above last, {self.last}")
        if self.snapshots is not None and self.as_of is None:
            raise InvalidInput("option 'snapshots' needs option 'as_of', the index of one of them")


@attrs.frozen(kw_only=True)
class SegmentSlice:
    """What is read of one segment (`ref`: the segment, and the range to read), as it was when planned."""

    ref: SegmentRef
    newest: bool
    """Whether it was the log's newest, whose end may still grow, or be taken back."""
    last_term: int | None
    """Of the newest, that of the last entry that is read: another one was written after the plan. `None` if it is
    damaged, dead or in a gap."""
    inode: int
    size_bytes: int
    snapshot: SnapshotMeta | None
    """The one that decides, with the live indexes of this range only."""


@attrs.frozen(kw_only=True)
class UnflushedSlice:
    """What is read of the write-ahead log of the log's store: entries that no segment holds yet. Its size is that of a
    partition of its own: reading a part of the write-ahead log reads all of it."""

    indexes: IndexSet
    last_term: int | None
    snapshot: SnapshotMeta | None
    size_bytes: int


LogSlice: TypeAlias = SegmentSlice | UnflushedSlice


def plan_slices(options: SourceOptions) -> list[LogSlice]:
    """What to read: segments, oldest first, and what a write-ahead log adds. Reads no payload but the last ones.

    Raises what `LogReader` does, `LiveIndexMissing` if a live index of the range lies between the segments, and
    `NotFound` if there is no snapshot `options.as_of`.
    """
    with LogReader(options.folder) as log:
        state = _state_of(log, options)
        refs, first = log.refs, options.first
        last = options.last if options.as_of is None else min(options.last, options.as_of)

        def state_between(low: int, high: int) -> SnapshotMeta | None:
            return None if state is None else SnapshotMeta(state.index, live=state.live.between(low, high))
        if state is not None:
            held = IndexSet().union(*(IndexSet.range(ref.first, ref.last) for ref in refs), log.unflushed)
            if lost := state.live.between(first, last) - held:
                raise LiveIndexMissing(
                    f"{len(lost)} live indexes of {options.folder} are in no segment, the first of them {lost.first}; "
                    "restore the segments from a copy", missing=len(lost), first=lost.first)
        slices: list[LogSlice] = []
        for ref in overlapping_refs(refs, first, last) if first <= last else ():
            part = SegmentRef(ref.number, max(ref.first, first), min(ref.last, last))
            file = os.stat(os.path.join(options.folder, segment_name(ref.number)))
            slices.append(SegmentSlice(ref=part, newest=ref == refs[-1], inode=file.st_ino, size_bytes=file.st_size,
                                       last_term=_term_of(log, part.last) if ref == refs[-1] else None,
                                       snapshot=state_between(part.first, part.last)))
        if unflushed := log.unflushed.between(first, last):
            slices.append(UnflushedSlice(indexes=unflushed, snapshot=state_between(unflushed.first, unflushed.last),
                                         last_term=_term_of(log, unflushed.last), size_bytes=options.partition_bytes))
        return slices


def _term_of(log: LogReader, index: int) -> int | None:
    """The term of an entry that can be read. In Raft it tells, with the index, all that is before."""
    [answer] = log.read_many([index])
    return answer.term if isinstance(answer, Entry) else None


def _state_of(log: LogReader, options: SourceOptions) -> SnapshotMeta | None:
    """The snapshot that decides what is live. What was live by a later one than the log's last is still in the log."""
    state, wanted, folder = log.snapshot, options.as_of, options.snapshots
    if wanted is None or (state is not None and state.index == wanted):
        return state
    listed = [] if folder is None or (state is not None and wanted < state.index) else [
        *listed_in(folder, "snapshot"), *listed_in(folder, "checkpoint")]
    for each in listed:
        if folder is not None and each.index == wanted:
            manifest = read_manifest(folder, each)
            return SnapshotMeta(wanted, manifest.term, read_live_set(folder, manifest))
    raise NotFound(f"the log in {options.folder} cannot be read as of {wanted}: its last snapshot is "
                   f"{None if state is None else state.index}, and above it option 'snapshots' ({folder}) "
                   f"has {[each.index for each in listed]}; what an earlier snapshot saw may be compacted away")


def read_slice(part: LogSlice, options: SourceOptions) -> Iterator[pa.RecordBatch]:
    """The entries of a slice, ascending by index, each checked against its CRC if its payload is read.

    `Stale` if since the slice was planned the log was taken back, or went on to a later snapshot and was compacted;
    `Unsupported` if an index or a term is 2**63 or more, or a payload 2 GiB or more, which Spark's types cannot hold.
    """
    if isinstance(part, UnflushedSlice):
        yield from _read_unflushed(part, options)
        return
    try:
        reader = open_segment(options.folder, part.ref.number, newest=part.newest)
    except NotFound as error:
        raise _stale(options.folder, f"segment {part.ref.number}") from error
    with reader:
        file = os.fstat(reader.fileno())
        # The number of a file that is gone is given to another one.
        is_planned = file.st_ino == part.inode and (part.newest or file.st_size == part.size_bytes)
        if not is_planned and _is_superseded(part, options):
            raise _stale(options.folder, f"segment {part.ref.number}")
        if part.last_term is not None and file.st_ino == part.inode:
            last = reader.index.find(part.ref.last)
            if last < 0 or reader.index.columns.terms[last] != part.last_term:
                raise _stale(options.folder, f"segment {part.ref.number}")
        positions = reader.index.positions_between(part.ref.first, part.ref.last)
        live = bytearray(len(positions))
        for position in kept_positions(reader.index, part.ref, part.snapshot):
            live[position - positions.start] = 1
        rows = _Rows(reader, part.ref.number, positions, live, options)
        for start in range(0, len(positions), MAX_BATCH_ROWS):
            yield from rows.batches(positions[start:start + MAX_BATCH_ROWS])


def _read_unflushed(part: UnflushedSlice, options: SourceOptions) -> Iterator[pa.RecordBatch]:
    schema, state = schema_of(options.columns), part.snapshot
    with LogReader(options.folder) as log:
        if _is_superseded(part, options):
            raise _stale(options.folder, "the write-ahead log")
        rows: list[dict[str, object]] = []
        size = 0
        for answer in log.read_many(list(part.indexes)):
            if isinstance(answer, DamagedEntry):
                raise answer.error
            if not isinstance(answer, Entry) or (answer.index == part.indexes.last
                                                 and answer.term != (part.last_term or answer.term)):
                # Taken back, or dead by a snapshot, since the plan.
                raise _stale(options.folder, f"entry {answer.index}")
            if max(answer.index, answer.term) > _LARGEST_LONG or len(answer.payload) > _LARGEST_BINARY:
                raise Unsupported(f"{options.folder}: entry {answer.index} in term {answer.term} of "
                                  f"{len(answer.payload)} bytes is larger than Spark's types hold; {_ADVICE}")
            if rows and (len(rows) == MAX_BATCH_ROWS or size + len(answer.payload) > _MAX_BATCH_BYTES):
                yield pa.RecordBatch.from_pylist(rows, schema=schema)
                rows, size = [], 0
            size += len(answer.payload)
            rows.append({"index": answer.index, "term": answer.term, "length": len(answer.payload),
                         "live": state is None or not state.is_dead(answer.index), "payload": answer.payload})
        if rows:
            yield pa.RecordBatch.from_pylist(rows, schema=schema)


def _is_superseded(part: LogSlice, options: SourceOptions) -> bool:
    now = read_snapshot_meta(options.folder)
    return now is not None and (part.snapshot is None or now.index > part.snapshot.index)


def _stale(folder: str, what: str) -> Stale:
    return Stale(f"{what} of {folder} was compacted away or taken back after this read was planned; load the log "
                 f"again to see it as it is now")


@attrs.frozen(eq=False)
class _Rows:
    """Turns positions of one segment's index into batches."""

    reader: SegmentReader
    number: int
    positions: range
    live: bytearray
    options: SourceOptions

    def batches(self, positions: range) -> Iterator[pa.RecordBatch]:
        columns, options = self.reader.index.columns, self.options
        part = slice(positions.start, positions.stop)
        longest = _LARGEST_BINARY if options.payload else _LARGEST_LONG
        for name, column, largest in (("index", columns.indexes, _LARGEST_LONG), ("term", columns.terms, _LARGEST_LONG),
                                      ("payload length", columns.lengths, longest)):
            if (found := max(column[part])) > largest:
                raise Unsupported(f"{self.reader.path}: {name} {found} is larger than Spark's type holds ({largest}); "
                                  f"{_ADVICE}")
        mask = self.live[positions.start - self.positions.start:positions.stop - self.positions.start]
        # No value needs the 64th bit.
        made: dict[str, pa.Array[Any]] = {
            "segment": pa.repeat(pa.scalar(self.number, pa.int64()), len(positions)), "live": flags(mask),
            **{name: numbers(column[part], pa.int64()) for name, column in (
                ("index", columns.indexes), ("term", columns.terms), ("offset", columns.offsets),
                ("length", columns.lengths))}}
        yield from in_batches(made, schema_of(options.columns), positions, options.errors, map(
            self._contents, self.reader.spans(positions)) if options.payload or options.errors else None)

    def _contents(self, span: Span) -> Contents:
        gone = set(span.damaged)
        damage = {position: self.reader.damage_at(position) for position in span.damaged}
        # The span's memory is used again. Payloads mostly lie without gaps: then they need not be picked.
        values = bytes(span.buffer) if span.live_bytes == len(span.buffer) else b"".join(span.payloads)
        there = bytes(position not in gone for position in span.positions) if gone else None
        return span.positions, binaries(map(len, span.payloads), values, there), damage


class RaftLogSource(TableSource):
    """See `register`."""

    source: ClassVar[str] = "compactlib.raftlog"
    options_class: ClassVar[type[TableOptions]] = SourceOptions
    plan: ClassVar[Any] = staticmethod(plan_slices)
    read_part: ClassVar[Any] = staticmethod(read_slice)
