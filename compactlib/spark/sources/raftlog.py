# SPDX-License-Identifier: Apache-2.0
"""`compactlib.raftlog`: a log's entries as rows, partitioned by segments."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar, TypeAlias

import attrs
import pyarrow as pa

from compactlib.errors import InvalidInput, NotFound, Stale, Unsupported
from compactlib.files import local_path
from compactlib.indexset import IndexSet
from compactlib.raftlog import (
    DamagedEntry,
    Entry,
    LogReader,
    SnapshotFolder,
    SnapshotMeta,
    StoredEntry,
    StoredSegment,
)
from compactlib.raftlog.errors import LiveIndexMissing
from compactlib.raftlog.policy import SegmentRef
from compactlib.spark.sources.table_source import (
    DAMAGED,
    Columns,
    Option,
    TableOptions,
    TableSource,
    batch_of,
    batched,
    whole,
)

MAX_INDEX = (1 << 64) - 1
MAX_BATCH_ROWS = 16_384
"""Rows in one batch. A batch also ends after 1 MiB of payload, or with one larger entry."""

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
        for ref in refs:
            if max(ref.first, first) > min(ref.last, last):
                continue
            part = SegmentRef(ref.number, max(ref.first, first), min(ref.last, last))
            file = os.stat(log.path_of(ref.number))
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
    listed: list[int] = []
    if folder is not None and (state is None or wanted > state.index):
        found = SnapshotFolder.meta_in(folder, wanted)
        if found is not None:
            return found
        listed = SnapshotFolder.indexes_in(folder)
    raise NotFound(f"the log in {options.folder} cannot be read as of {wanted}: its last snapshot is "
                   f"{None if state is None else state.index}, and above it option 'snapshots' ({folder}) "
                   f"has {listed}; what an earlier snapshot saw may be compacted away")


def read_slice(part: LogSlice, options: SourceOptions) -> Iterator[pa.RecordBatch]:
    """The entries of a slice, ascending by index, each checked against its CRC if its payload is read.

    `Stale` if since the slice was planned the log was taken back, or went on to a later snapshot and was compacted;
    `Unsupported` if an index or a term is 2**63 or more, or a payload 2 GiB or more, which Spark's types cannot hold.
    """
    if isinstance(part, UnflushedSlice):
        yield from _read_unflushed(part, options)
        return
    try:
        segment = StoredSegment(options.folder, part.ref.number, newest=part.newest)
    except NotFound as error:
        raise _stale(options.folder, f"segment {part.ref.number}") from error
    with segment:
        # The number of a file that is gone is given to another one.
        is_planned = segment.inode == part.inode and (part.newest or segment.size_bytes == part.size_bytes)
        if not is_planned and _is_superseded(part, segment.snapshot()):
            raise _stale(options.folder, f"segment {part.ref.number}")
        first, last = part.ref.first, part.ref.last
        if part.last_term is not None and segment.inode == part.inode and segment.term_of(last) != part.last_term:
            raise _stale(options.folder, f"segment {part.ref.number}")
        _require_live(part, (each.index for each in segment.entries(first, last, payloads=False)))
        reads = options.payload or options.errors
        for entries in _batches(segment.entries(first, last, payloads=reads), reads):
            yield _batch(part.ref.number, entries, part.snapshot, options)


def _require_live(part: SegmentSlice, indexes: Iterable[int]) -> None:
    live = IndexSet() if part.snapshot is None else part.snapshot.live.between(part.ref.first, part.ref.last)
    if live and (missing := live - IndexSet.from_sorted(indexes)):
        raise LiveIndexMissing(
            f"segment {part.ref.number} does not hold {len(missing)} entries from {part.ref.first} to {part.ref.last} "
            f"that are live, the first of them {missing.first}; restore the segment from a copy",
            missing=len(missing), first=missing.first)


def _read_unflushed(part: UnflushedSlice, options: SourceOptions) -> Iterator[pa.RecordBatch]:
    def entries(log: LogReader) -> Iterator[StoredEntry]:
        for answer in log.read_many(list(part.indexes)):
            if isinstance(answer, DamagedEntry):
                raise answer.error
            if not isinstance(answer, Entry) or (answer.index == part.indexes.last
                                                 and answer.term != (part.last_term or answer.term)):
                # Taken back, or dead by a snapshot, since the plan.
                raise _stale(options.folder, f"entry {answer.index}")
            yield StoredEntry(answer.index, answer.term, 0, len(answer.payload), answer.payload, None)

    with LogReader(options.folder) as log:
        if _is_superseded(part, log.snapshot):
            raise _stale(options.folder, "the write-ahead log")
        for batch in _batches(entries(log), reads=True):
            yield _batch(None, batch, part.snapshot, options)


def _is_superseded(part: LogSlice, now: SnapshotMeta | None) -> bool:
    return now is not None and (part.snapshot is None or now.index > part.snapshot.index)


def _stale(folder: str, what: str) -> Stale:
    return Stale(f"{what} of {folder} was compacted away or taken back after this read was planned; load the log "
                 f"again to see it as it is now")


def _batches(entries: Iterable[StoredEntry], reads: bool) -> Iterator[list[StoredEntry]]:
    return batched(entries, lambda entry: entry.length if reads else 0, MAX_BATCH_ROWS, _MAX_BATCH_BYTES)


def _batch(segment: int | None, entries: list[StoredEntry], state: SnapshotMeta | None,
           options: SourceOptions) -> pa.RecordBatch:
    """Some entries of a segment, or of the write-ahead log, as rows. Raises damage if there is no column for it."""
    indexes, terms, offsets, lengths, payloads, errors = zip(*entries, strict=True)
    longest = _LARGEST_BINARY if options.payload else _LARGEST_LONG
    for name, column, largest in (("index", indexes, _LARGEST_LONG), ("term", terms, _LARGEST_LONG),
                                  ("payload length", lengths, longest)):
        if (found := max(column)) > largest:
            raise Unsupported(f"{options.folder}: {name} {found} is larger than Spark's type holds ({largest}); "
                              f"{_ADVICE}")
    if state is None or indexes[0] > state.index:
        live: list[bool] = [True] * len(entries)
    else:
        held = set(state.live.between(indexes[0], indexes[-1]).members())
        live = [index > state.index or index in held for index in indexes]
    return batch_of({"segment": [segment] * len(entries), "index": indexes, "term": terms, "length": lengths,
                     "live": live, "offset": [None] * len(entries) if segment is None else offsets,
                     "payload": payloads, "error": errors}, options)


class RaftLogSource(TableSource):
    """See `register`."""

    source: ClassVar[str] = "compactlib.raftlog"
    options_class: ClassVar[type[TableOptions]] = SourceOptions
    plan: ClassVar[Any] = staticmethod(plan_slices)
    read_part: ClassVar[Any] = staticmethod(read_slice)
