# SPDX-License-Identifier: Apache-2.0
"""The segments in a log's folder, and search in the ordered list of segments.

Invariant: the ranges of a log's segments are disjoint, and ascend with the numbers.
"""

from __future__ import annotations

import contextlib
import errno
import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from operator import attrgetter

import attrs

from compactlib.errors import CorruptData, NotFound, StorageError, Unsupported
from compactlib.files.disk import StrPath, list_folder, look_at
from compactlib.indexset import IndexSet
from compactlib.raftlog.names import HARD_STATE_NAME, segment_name, segment_number
from compactlib.raftlog.segment.format import SegmentIndex
from compactlib.raftlog.segment.reader import SegmentReader
from compactlib.raftlog.snapshot_meta import SnapshotMeta
from compactlib.raftlog.values import SegmentRef, SegmentStats

_MAX_LISTINGS = 100


def stats_of(number: int, index: SegmentIndex) -> SegmentStats | None:
    """The statistics of a segment with this index while its live entries are not counted: all count as live.

    `None` if it is empty.
    """
    count, size = len(index), index.data_bytes
    return SegmentStats(ref=SegmentRef(number, index.first, index.last), entries=count, data_bytes=size,
                        live_entries=count, live_bytes=size) if count else None


# -- search in a list


def next_ref(refs: Sequence[SegmentRef], index: int) -> SegmentRef | None:
    """The oldest segment with an index >= `index`, `None` without any. O(log n)."""
    place = bisect_left(refs, index, key=attrgetter("last"))
    return refs[place] if place < len(refs) else None


def segments_holding(known: Sequence[SegmentStats], indexes: IndexSet) -> Iterator[tuple[SegmentStats, IndexSet]]:
    """The segments whose ranges contain some of `indexes`, oldest first, each with these indexes.

    O(log n + log runs) for each, and a copy of `indexes`.
    """
    firsts, lasts = indexes.columns
    beyond = 0
    while (run := bisect_left(lasts, beyond)) < len(lasts):
        place = bisect_left(known, max(firsts[run], beyond), key=attrgetter("ref.last"))
        if place == len(known):
            return
        ref = known[place].ref
        here = indexes.between(ref.first, ref.last)
        if here:
            yield known[place], here
        beyond = ref.last + 1


def between(refs: Sequence[SegmentRef], numbers: Sequence[int]) -> slice:
    """The place in the list of the segments from the first to the last of `numbers`."""
    number = attrgetter("number")
    return slice(bisect_left(refs, numbers[0], key=number), bisect_right(refs, numbers[-1], key=number))


# -- the segments in a folder


@attrs.frozen
class FolderContents:
    """The segments in a folder.

    Attributes:
        known: segments with entries, oldest first, with disjoint ranges.
        dropped: numbers of segments whose files can go: empty segments, without the newest; segments whose live
            entries are all in an older segment; and copies of merged segments (`leader_copied_to`). Segment 1 of a log
            without a snapshot is emptied instead.
        leaders: numbers of these older segments.
        newest: the open reader of the newest segment, which may be empty. `None` if there is no segment.
    """

    known: tuple[SegmentStats, ...]
    dropped: tuple[int, ...]
    leaders: frozenset[int]
    newest: SegmentReader | None


def read_folder(folder: StrPath, row: SnapshotMeta | None) -> FolderContents:
    """Open every segment, and read its index; `row` is the snapshot in force. Raises as `open_segment`.

    A missing segment is `CorruptData`: segment 1 of a log without a snapshot, the newest, or all of a log with a
    snapshot or a vote. If a compaction in another process removes a file during that, the folder is listed again, up to
    100 times.
    """
    for _ in range(_MAX_LISTINGS - 1):
        try:
            return _read_folder(folder, row)
        except NotFound:
            continue
    return _read_folder(folder, row)


def _read_folder(folder: StrPath, row: SnapshotMeta | None) -> FolderContents:
    known: list[SegmentStats] = []
    dropped: list[int] = []
    leaders: set[int] = set()
    newest: SegmentReader | None = None
    numbers = list_segments(folder)
    may_be_unsealed = True
    for number in reversed(numbers):
        try:
            reader = open_segment(folder, number, newest=may_be_unsealed)
        except CorruptData:
            leader = leader_copied_to(folder, number)
            if leader is None:
                raise
            leaders.add(leader)
            dropped.append(number)
            continue
        segment = stats_of(number, reader.index)
        if segment is not None:
            known.append(segment)
        if newest is None:
            newest = reader
        elif segment is None:
            dropped.append(number)
        # Behind an unsealed segment there is at most an empty segment, which a truncation has begun.
        may_be_unsealed = may_be_unsealed and segment is None
    listed = list_segments(folder)
    if gone := set(numbers).difference(listed):
        # The folder may have been read partly before and partly after a truncation by its owner.
        raise NotFound(f"segments {sorted(gone)} of {os.fspath(folder)} were removed while the folder was read; read "
                       f"it again")
    if row is None and numbers and numbers[0] != 1:
        raise CorruptData(path=os.path.join(folder, segment_name(1)), offset=0, found="no file",
                          expected=f"segment 1 before segment {numbers[0]}, since the log never had a snapshot")
    seal = None if newest is None else newest.loaded.seal
    if seal is not None and seal.sealed and not seal.is_alone:
        if listed[-1] > numbers[-1]:
            raise NotFound(f"segment {listed[-1]} of {os.fspath(folder)} was begun while the folder was read; read it "
                           f"again")
        raise CorruptData(path=os.path.join(folder, segment_name(numbers[-1] + 1)), offset=0, found="no file",
                          expected=f"a segment behind segment {numbers[-1]}, which was ended")
    if not numbers and (row is not None or look_at(os.path.join(folder, HARD_STATE_NAME)) is not None):
        raise CorruptData(path=os.fspath(folder), offset=0, found="no segment",
                          expected="at least one segment, since there is a snapshot or a vote")
    # A merged segment reaches from its first member to its last. After a crash, there may be segments within that
    # range: other members, or dropped segments. The merged segment has all of their live entries.
    kept: list[SegmentStats] = []
    for each in reversed(known):
        if not kept or kept[-1].ref.last < each.ref.first:
            kept.append(each)
        else:
            _require_inside(folder, kept[-1].ref, each.ref, row)
            leaders.add(kept[-1].ref.number)
            dropped.append(each.ref.number)
    return FolderContents(tuple(kept), tuple(dropped), frozenset(leaders), newest)


def _require_inside(folder: StrPath, leader: SegmentRef, ref: SegmentRef, row: SnapshotMeta | None) -> None:
    """Raise `CorruptData` unless the older segment has every live entry of a segment within its range."""
    if row is not None and ref.last <= row.index:
        live = row.live.between(ref.first, ref.last)
        if live:
            live &= open_segment(folder, ref.number).index.index_set()
        if not live or not live - open_segment(folder, leader.number).index.index_set():
            return
    raise CorruptData(path=os.path.join(folder, segment_name(ref.number)), offset=0, index=ref.first,
                      expected=f"entries above {leader.last}, the end of segment {leader.number}",
                      found=f"{ref.first} to {ref.last}")


def leader_copied_to(folder: StrPath, number: int) -> int | None:
    """The number of the merged segment that a tool has copied to the name of segment `number`, which was a link.

    `None` unless it has the header and the seal, so the entries, of a segment in the folder with a lower number.
    """
    path = os.path.join(folder, segment_name(number))
    with contextlib.suppress(CorruptData, NotFound, Unsupported), SegmentReader(path) as copy:
        found = copy.loaded
        if found.header.number < number:
            with open_segment(folder, found.header.number) as leader:
                if (leader.loaded.header, leader.loaded.seal) == (found.header, found.seal):
                    return found.header.number
    return None


def list_segments(folder: StrPath) -> list[int]:
    """The numbers of the segment files in a folder, ascending, without links."""
    return [number for name in list_folder(folder) if (number := segment_number(name)) is not None
            and not os.path.islink(os.path.join(folder, name))]


def open_segment(folder: StrPath, number: int, *, newest: bool = False) -> SegmentReader:
    """Open segment `number`, or the segment into which it was merged.

    Raises:
        NotFound: there is no such file.
        CorruptData, Unsupported, StorageError: the segment cannot be opened.
    """
    path = os.path.join(folder, segment_name(number))
    merged = os.path.islink(path)
    try:
        return SegmentReader(path, sealed=not newest, number=None if merged else number)
    except (CorruptData, StorageError) as error:
        if not merged and os.path.islink(path):
            # A compaction has replaced it by a link between the two calls.
            return open_segment(folder, number)
        # Its link to the merged segment may have been removed since it was opened.
        is_there = os.path.lexists(path) if isinstance(error, CorruptData) else error.errno != errno.ENOENT
        if is_there:
            raise
        raise NotFound(f"segment {path} was removed; read the entry again") from error


def file_bytes(folder: StrPath, number: int) -> int:
    """The size of a segment's file; 0 if it was removed by hand: it can be dropped, and copying from it raises."""
    found = look_at(os.path.join(folder, segment_name(number)))
    return 0 if found is None else found.st_size
