# SPDX-License-Identifier: Apache-2.0
"""The segments of a log in order, the row of its snapshot, the open files behind them, and the leases of readers.

Ranges are disjoint and ascend with the numbers. The list is one immutable value that a change replaces as a whole, so
that a read takes no lock; whoever finds that a file has gone reads the list anew.
"""

from __future__ import annotations

import errno
import itertools
import os
import stat
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import attrs

from compactlib.errors import Closed, CorruptData, NotFound, StorageError
from compactlib.files.disk import StrPath, list_folder, look_at
from compactlib.indexset import IndexSet
from compactlib.raftlog.model.names import compacting_members, compacting_name, segment_name, segment_number
from compactlib.raftlog.model.refs import next_ref
from compactlib.raftlog.model.snapshot_meta import SnapshotMeta
from compactlib.raftlog.model.values import Entry, SegmentRef
from compactlib.raftlog.segment.index import SegmentIndex
from compactlib.raftlog.segment.reader import SegmentReader

DEFAULT_MAX_OPEN = 128
_MAX_OPEN_INDEX_ENTRIES = 2_000_000
_MAX_LISTINGS = 100


@attrs.frozen
class KnownSegment:
    """What is remembered of a segment without reading it again.

    Attributes:
        ref: its number and its range.
        entries: index records in the file.
        data_bytes: payload bytes in the file, those behind a cut included.
        is_dense: whether it holds every index of its range.
    """

    ref: SegmentRef
    entries: int
    data_bytes: int
    is_dense: bool

    @classmethod
    def of(cls, number: int, index: SegmentIndex) -> KnownSegment | None:
        """What to remember of a segment with this index; `None` if it holds nothing."""
        if not len(index):
            return None
        return cls(SegmentRef(number, index.first, index.last), len(index), index.data_bytes, index.is_dense)


@attrs.frozen
class _View:
    """The list at one moment."""

    refs: tuple[SegmentRef, ...] = ()
    firsts: tuple[int, ...] = ()
    known: Mapping[int, KnownSegment] = attrs.field(factory=dict)

    @classmethod
    def of(cls, known: Iterable[KnownSegment]) -> _View:
        listed = tuple(known)
        refs = tuple(each.ref for each in listed)
        return cls(refs, tuple(ref.first for ref in refs), {each.ref.number: each for each in listed})


class OpenFiles:
    """Bounds how many segments are open for reading, in all logs that share it, and how many of their index records are
    in memory (about 2 million). The one that was opened first goes first. Threads may share it.

    Args:
        most: how many files.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._entries: dict[tuple[SegmentList, int], int] = {}

    def opened(self, segments: SegmentList, number: int, entries: int) -> None:
        """Count a file, and let others go if there are too many."""
        with self._lock:
            self._entries[segments, number] = entries
            while len(self._entries) > 1 and (len(self._entries) > self._most
                                              or sum(self._entries.values()) > _MAX_OPEN_INDEX_ENTRIES):
                oldest, place = next(iter(self._entries))
                del self._entries[oldest, place]
                oldest.readers.pop(place, None)

    def closed(self, segments: SegmentList, numbers: Iterable[int]) -> None:
        """Let files of one log go."""
        with self._lock:
            for number in numbers:
                self._entries.pop((segments, number), None)
                segments.readers.pop(number, None)


class Releasable(Protocol):
    """What pins entries."""

    def release(self) -> None:
        """Let them go."""


class SegmentList:
    """Which segment answers for which index, and an open reader for each that is asked.

    Threads may read while one of them changes the list: a change is one assignment.

    Args:
        folder: where the segments are.
        known: the segments, oldest first.
        row: the snapshot in force.
        open_files: bounds the readers that are kept open.

    Attributes:
        folder: as given.
        row: as given; a later one is assigned.
        readers: those that are open, by number.
    """

    def __init__(self, folder: StrPath, known: Iterable[KnownSegment] = (), row: SnapshotMeta | None = None, *,
                 open_files: OpenFiles | None = None) -> None:
        self.folder: str = os.fspath(folder)
        self.row: SnapshotMeta | None = row
        self.readers: dict[int, SegmentReader] = {}
        self._open_files = OpenFiles(DEFAULT_MAX_OPEN) if open_files is None else open_files
        self._view = _View.of(known)
        # Guards the leases, and the change of the list with its number.
        self._lock = threading.Lock()
        self._changes = itertools.count(1)
        self._epoch = 0
        self._leases: set[Lease] = set()
        self._pins: dict[Releasable, IndexSet] = {}
        self._closed = False

    @property
    def refs(self) -> tuple[SegmentRef, ...]:
        """The references, oldest first."""
        return self._view.refs

    def known(self) -> tuple[KnownSegment, ...]:
        """What is remembered of each segment, oldest first."""
        return tuple(self._view.known.values())

    def known_of(self, number: int) -> KnownSegment | None:
        """What is remembered of one segment; `None` if it is not listed."""
        return self._view.known.get(number)

    # -- asking for an index

    def read(self, index: int) -> Entry | None:
        """The entry of `index`, or `None` if no segment holds it.

        Raises:
            NotFound: a segment has gone meanwhile; read again.
            CorruptData: the entry or its segment is damaged.
        """
        view = self._view
        place = bisect_right(view.firsts, index) - 1
        if place < 0 or view.refs[place].last < index:
            return None
        number = view.refs[place].number
        reader = self.readers.get(number)
        return (self.reader(number) if reader is None else reader).read(index)

    def index_of(self, number: int) -> SegmentIndex:
        """The index of a segment; raises what `reader` does."""
        return self.reader(number).index

    def term_of(self, index: int) -> int | None:
        """The term of the entry of `index`, dead or not, `None` if no segment holds it. Raises what `reader` does."""
        ref = next_ref(self.refs, index)
        if ref is None or ref.first > index:
            return None
        found = self.index_of(ref.number)
        position = found.find(index)
        return None if position < 0 else found.columns.terms[position]

    def next_index(self, index: int) -> int | None:
        """The lowest index from `index` on that is held, dead or not; `None` if there is none."""
        refs = self.refs
        while (ref := next_ref(refs, index)) is not None:
            found = self.index_of(ref.number)
            inside = found.positions_between(max(ref.first, index), ref.last)
            if inside:
                return found.columns.indexes[inside[0]]
            index = ref.last + 1
        return None

    def matching(self, first: int, last: int, term: int) -> int:
        """How many entries from `first` on, up to `last`, are held with this term: for a replay. O(entries), in C."""
        matched = 0
        refs = self.refs
        while first + matched <= last and (ref := next_ref(refs, first + matched)) is not None:
            index = self.index_of(ref.number)
            position = index.find(first + matched)
            if position < 0:
                break
            wanted = min(last, ref.last) - first - matched + 1
            indexes = index.columns.indexes[position:position + wanted]
            terms = index.columns.terms[position:position + wanted]
            is_run = indexes[-1] - indexes[0] + 1 == len(indexes) == terms.count(term)
            count = len(indexes) if is_run else _leading(indexes, terms, term)
            matched += count
            if count < wanted:
                break
        return matched

    # -- open readers

    def reader(self, number: int) -> SegmentReader:
        """The open reader of a segment; opens it. A segment that was merged into another leads there through its link.

        Raises:
            NotFound: the file is gone; the list has changed meanwhile.
            CorruptData, Unsupported, StorageError: it cannot be opened.
            Closed: the log was closed.
        """
        while True:
            reader = self.readers.get(number)
            if reader is not None:
                return reader
            if self._closed:
                raise Closed(f"the log in {self.folder} was closed; open it again")
            epoch, view = self._epoch, self._view
            known = view.known.get(number)
            try:
                reader = open_segment(self.folder, number, newest=known is not None and view.refs[-1] == known.ref)
            except CorruptData:
                if epoch != self._epoch:
                    continue
                raise
            if known is not None and (not len(reader.index) or reader.index.last < known.ref.last):
                raise NotFound(f"segment {number} of {self.folder} was cut or rewritten; read the list again")
            with self._lock:
                # After a change the name may lead elsewhere: what was opened before it must not be kept.
                if epoch != self._epoch or self._closed:
                    continue
                self.readers[number] = reader
            self._open_files.opened(self, number, len(reader.index))
            return reader

    # -- changes

    def _show(self, view: _View, gone: Iterable[int] = ()) -> None:
        """Put another list in the place of the present one, and open the segments `gone` anew when they are asked for.

        The list comes before its number: a lease taken between the two holds more than it must, never less.
        """
        with self._lock:
            self._view = view
            self._epoch = next(self._changes)
            self._open_files.closed(self, gone)

    # -- leases

    def lease(self, since: float | None = None) -> Lease:
        """Keep every file that can be read now from being removed by a compaction until the lease is released.

        Args:
            since: now, in seconds since the epoch, for a lease of a host's.
        """
        with self._lock:
            lease = Lease(self, self._epoch, since)
            self._leases.add(lease)
        return lease

    def is_leased(self, epoch: int) -> bool:
        """Whether a lease is held that was taken before the change number `epoch`."""
        with self._lock:
            return any(lease.epoch < epoch for lease in self._leases)

    def oldest_lease(self) -> float | None:
        """Since when the oldest lease of a host's is held, in seconds since the epoch."""
        with self._lock:
            return min((lease.since for lease in self._leases if lease.since is not None), default=None)

    def release(self, lease: Lease) -> None:
        """Let a lease go; again does nothing."""
        with self._lock:
            self._leases.discard(lease)

    # -- pins

    def pin(self, holder: Releasable, indexes: IndexSet) -> None:
        """Have compactions keep entries as if they were live, until `unpin` of the same holder."""
        self._pins[holder] = indexes

    def unpin(self, holder: Releasable) -> None:
        """Let them go; again does nothing."""
        self._pins.pop(holder, None)

    @property
    def pins(self) -> tuple[Releasable, ...]:
        """Who pins entries."""
        return tuple(self._pins)

    @property
    def pinned(self) -> IndexSet:
        """What is pinned."""
        return IndexSet().union(*list(self._pins.values()))

    def close(self) -> None:
        """Let all readers go; none is opened any more, for a scan that was left half-way either."""
        with self._lock:
            self._closed = True
            self._open_files.closed(self, list(self.readers))


class Lease:
    """Holds files in place for a reader, in this process. A context manager; releasing again does nothing.

    A truncation does not wait for leases: what it removes was never committed.

    Attributes:
        epoch: after which change of the list it was taken.
        since: when, in seconds since the epoch; `None` of one that a read takes for itself.
    """

    def __init__(self, segments: SegmentList, epoch: int, since: float | None) -> None:
        self._segments = segments
        self.epoch = epoch
        self.since = since

    def release(self) -> None:
        """Let the files go; what was waiting for it is removed by the next compaction or `reclaim`."""
        self._segments.release(self)

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __repr__(self) -> str:
        return f"Lease(epoch={self.epoch})"


# -- the segments in a folder


@attrs.frozen
class FolderContents:
    """The segments in a folder.

    Attributes:
        known: those that hold entries, oldest first, with disjoint ranges.
        empty: numbers of those that hold none, the newest aside.
        inside: numbers of those of which an older one holds all that is alive, each with that one's.
        unsealed: number of one that is not the newest, and not sealed: a crash came in the middle of a truncation.
        newest: the open reader of the newest; it may hold no entry. `None` if there is no segment.
        number: the newest one's, 0 if there is none.
    """

    known: tuple[KnownSegment, ...]
    empty: tuple[int, ...]
    inside: Mapping[int, int]
    unsealed: int | None
    newest: SegmentReader | None
    number: int


def read_folder(folder: StrPath, row: SnapshotMeta | None) -> FolderContents:
    """Open every segment and learn what it holds. Costs one read of each segment's index.

    A file that a compaction in another process removes meanwhile is no error: the folder is listed anew.

    Args:
        folder: the log's.
        row: the snapshot in force.

    Raises:
        CorruptData, Unsupported: a segment is damaged or of an unknown version.
        NotFound: files kept vanishing while they were opened.
        StorageError: one cannot be read.
    """
    for _ in range(_MAX_LISTINGS - 1):
        try:
            return _read_folder(folder, row)
        except NotFound:
            continue
    return _read_folder(folder, row)


def _read_folder(folder: StrPath, row: SnapshotMeta | None) -> FolderContents:
    known: list[KnownSegment] = []
    empty: list[int] = []
    unsealed: int | None = None
    newest: SegmentReader | None = None
    numbers = list_segments(folder)
    may_be_unsealed = True
    for number in reversed(numbers):
        reader = open_segment(folder, number, newest=may_be_unsealed)
        newest = newest or reader
        segment = KnownSegment.of(number, reader.index)
        if segment is not None:
            known.append(segment)
        if number != numbers[-1] and segment is None:
            empty.append(number)
        elif number != numbers[-1] and not reader.loaded.seal.sealed:
            unsealed = number
        # Behind one that is not sealed only an empty one can be, which a truncation has just begun.
        may_be_unsealed = may_be_unsealed and segment is None
    if gone := set(numbers).difference(list_segments(folder)):
        # A truncation in another process may have been read half before it and half after it.
        raise NotFound(f"segments {sorted(gone)} of {os.fspath(folder)} went while the folder was read; read it again")
    kept, inside = _disjoint(folder, known[::-1], row)
    return FolderContents(tuple(kept), tuple(empty), inside, unsealed, newest, numbers[-1] if numbers else 0)


def _disjoint(folder: StrPath, known: Sequence[KnownSegment],
              row: SnapshotMeta | None) -> tuple[list[KnownSegment], dict[int, int]]:
    """The segments of a log, oldest first; and those that lie in the range of an older one, each with that one.

    A merged segment reaches from its first member to its last. What lies in between, and may be there after a crash, is
    another member, or was dropped: the merged one holds all of it that is alive.
    """
    kept: list[KnownSegment] = []
    inside: dict[int, int] = {}
    for each in known:
        if not kept or kept[-1].ref.last < each.ref.first:
            kept.append(each)
            continue
        number, leader = each.ref.number, kept[-1].ref
        live = IndexSet() if row is None else row.live.between(each.ref.first, each.ref.last)
        if live:
            live &= open_segment(folder, number).index.index_set()
        if row is None or each.ref.last > row.index or (
                live and live - open_segment(folder, leader.number).index.index_set()):
            raise CorruptData(path=os.path.join(folder, segment_name(number)), offset=0, index=each.ref.first,
                              expected=f"entries above {leader.last}, the end of segment {leader.number}",
                              found=f"{each.ref.first} to {each.ref.last}")
        inside[number] = leader.number
    return kept, inside


def list_segments(folder: StrPath) -> list[int]:
    """The numbers of the segments in a folder, ascending; those merged into others are left out, linked yet or not.

    Raises:
        StorageError: the folder cannot be read.
    """
    names = list_folder(folder)
    # Members of groups that are committed but not finished; their own files no longer count.
    groups = [members for name in names if (members := compacting_members(name)) is not None]
    merged = {member for members in groups if is_committed(folder, members) for member in members[1:]}
    return [number for name in names if (number := segment_number(name)) is not None
            and not os.path.islink(os.path.join(folder, name)) and number not in merged]


def open_segment(folder: StrPath, number: int, *, newest: bool = False) -> SegmentReader:
    """Open segment `number`, or the one it was merged into.

    Raises:
        NotFound: there is no such file.
        CorruptData, Unsupported, StorageError: it cannot be opened.
    """
    path = os.path.join(folder, segment_name(number))
    merged = os.path.islink(path)
    try:
        return SegmentReader(path, tail="cut" if newest else "refuse", number=None if merged else number)
    except (CorruptData, StorageError) as error:
        if not merged and os.path.islink(path):
            # It became a link between the two calls.
            return open_segment(folder, number)
        if isinstance(error, CorruptData) or error.errno != errno.ENOENT:
            raise
        raise NotFound(f"segment {path} is gone; read the index again") from error


def file_bytes(folder: StrPath, number: int) -> int:
    """The size of a segment's own file; 0 if it was removed by hand: dropping that is still right, and copying from it
    fails by name.

    Raises:
        StorageError: the disk refused.
    """
    found = look_at(os.path.join(folder, segment_name(number)))
    return 0 if found is None else found.st_size


def is_committed(folder: StrPath, members: Sequence[int]) -> bool:
    """Whether the leader's own name (not a link) leads to the new file of a group, durably or not.

    A link count of 2 alone says nothing: the second name may be `1.segment.swap`, or the private one.

    Raises:
        StorageError: the disk refused.
    """
    new = look_at(os.path.join(folder, compacting_name(members)))
    old = look_at(os.path.join(folder, segment_name(members[0])))
    return (new is not None and old is not None and new.st_nlink >= 2 and stat.S_ISREG(old.st_mode)
            and os.path.samestat(new, old))


def _leading(indexes: Sequence[int], terms: Sequence[int], term: int) -> int:
    count = 0
    while count < len(indexes) and indexes[count] == indexes[0] + count and terms[count] == term:
        count += 1
    return count


def between(refs: Sequence[SegmentRef], numbers: Sequence[int]) -> slice:
    """The place in the list of the segments from the first to the last of `numbers`."""
    return slice(bisect_left(refs, numbers[0], key=_number), bisect_right(refs, numbers[-1], key=_number))


def _number(ref: SegmentRef) -> int:
    return ref.number
