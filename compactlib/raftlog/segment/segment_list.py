# SPDX-License-Identifier: Apache-2.0
"""The segments of a log in order, the row of its snapshot, the open files behind them, and the leases of readers.

Invariant: ranges are disjoint and ascend with the numbers. The list is an immutable value that a change replaces as a
whole, so that a read takes no lock. A reader that finds a file removed re-reads the list.
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
    """The facts of a segment that the list keeps in memory.

    Attributes:
        ref: its number and its range.
        entries: index records in the file.
        data_bytes: payload bytes in the file, truncated entries included.
        is_dense: whether it has every index of its range.
    """

    ref: SegmentRef
    entries: int
    data_bytes: int
    is_dense: bool

    @classmethod
    def of(cls, number: int, index: SegmentIndex) -> KnownSegment | None:
        """The facts of a segment with this index; `None` if it is empty."""
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
    """Bounds the files open for reading in all logs that share it, and their index records in memory (about 2 million).

    The file that was opened first is closed first. Thread-safe.

    Args:
        most: limit of the files.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._entries: dict[tuple[SegmentList, int], int] = {}

    def opened(self, segments: SegmentList, number: int, entries: int) -> None:
        """Count a file, and close others above the limit."""
        with self._lock:
            self._entries[segments, number] = entries
            while len(self._entries) > 1 and (len(self._entries) > self._most
                                              or sum(self._entries.values()) > _MAX_OPEN_INDEX_ENTRIES):
                oldest, place = next(iter(self._entries))
                del self._entries[oldest, place]
                oldest.readers.pop(place, None)

    def closed(self, segments: SegmentList, numbers: Iterable[int]) -> None:
        """Close files of a log."""
        with self._lock:
            for number in numbers:
                self._entries.pop((segments, number), None)
                segments.readers.pop(number, None)


class Releasable(Protocol):
    """The holder of pins."""

    def release(self) -> None:
        """Release the pinned entries."""


class SegmentList:
    """The segments of a log, and an open reader for each segment that is read.

    Threads may read while another thread changes the list: a change is a single assignment.

    Args:
        folder: of the segments.
        known: the segments, oldest first.
        row: the snapshot in force.
        open_files: bounds the readers that are kept open.

    Attributes:
        folder: as given.
        row: as given; a later one is assigned.
        readers: the open readers, by number.
    """

    def __init__(self, folder: StrPath, known: Iterable[KnownSegment] = (), row: SnapshotMeta | None = None, *,
                 open_files: OpenFiles | None = None) -> None:
        self.folder: str = os.fspath(folder)
        self.row: SnapshotMeta | None = row
        self.readers: dict[int, SegmentReader] = {}
        self._open_files = OpenFiles(DEFAULT_MAX_OPEN) if open_files is None else open_files
        self._view = _View.of(known)
        # Guards the leases, and the list with its epoch.
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
        """The facts of each segment, oldest first."""
        return tuple(self._view.known.values())

    def known_of(self, number: int) -> KnownSegment | None:
        """The facts of a segment; `None` if it is not listed."""
        return self._view.known.get(number)

    # -- reads

    def read(self, index: int) -> Entry | None:
        """The entry of `index`, or `None` if no segment has it.

        Raises:
            NotFound: a segment was removed; re-read the list.
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
        """The index of a segment; raises as `reader`."""
        return self.reader(number).index

    def term_of(self, index: int) -> int | None:
        """The term of the entry of `index`, dead or not, `None` if no segment has it. Raises as `reader`."""
        ref = next_ref(self.refs, index)
        if ref is None or ref.first > index:
            return None
        found = self.index_of(ref.number)
        position = found.find(index)
        return None if position < 0 else found.columns.terms[position]

    def next_index(self, index: int) -> int | None:
        """The lowest index >= `index` in a segment, dead or not; `None` without any."""
        refs = self.refs
        while (ref := next_ref(refs, index)) is not None:
            found = self.index_of(ref.number)
            inside = found.positions_between(max(ref.first, index), ref.last)
            if inside:
                return found.columns.indexes[inside[0]]
            index = ref.last + 1
        return None

    def matching(self, first: int, last: int, term: int) -> int:
        """Count the entries in `first..last`, from `first` on, that have this term. O(entries), in C."""
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
        """The open reader of a segment, opened if necessary; that of the merged segment, if it was merged.

        Raises:
            NotFound: the file was removed; the list has changed.
            CorruptData, Unsupported, StorageError: the segment cannot be opened.
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
                raise NotFound(f"segment {number} of {self.folder} was cut or rewritten; re-read the list")
            with self._lock:
                # After a change the name may be of another file: a reader opened before is not kept.
                if epoch != self._epoch or self._closed:
                    continue
                self.readers[number] = reader
            self._open_files.opened(self, number, len(reader.index))
            return reader

    # -- changes

    def _show(self, view: _View, gone: Iterable[int] = ()) -> None:
        """Replace the list, and close the readers of the segments `gone`, whose files have changed.

        The list is assigned before its epoch: a lease taken in between leases more than it must, never less.
        """
        with self._lock:
            self._view = view
            self._epoch = next(self._changes)
            self._open_files.closed(self, gone)

    # -- leases

    def lease(self, since: float | None = None) -> Lease:
        """Keep compactions from removing any current file until the lease is released.

        Args:
            since: the current time, in seconds since the epoch, for a host's lease; `None` for a read's.
        """
        with self._lock:
            lease = Lease(self, self._epoch, since)
            self._leases.add(lease)
        return lease

    def is_leased(self, epoch: int) -> bool:
        """Whether a lease exists that was taken before the change number `epoch`."""
        with self._lock:
            return any(lease.epoch < epoch for lease in self._leases)

    def oldest_lease(self) -> float | None:
        """The time of the oldest host's lease, in seconds since the epoch; `None` without any."""
        with self._lock:
            return min((lease.since for lease in self._leases if lease.since is not None), default=None)

    def release(self, lease: Lease) -> None:
        """Release a lease; idempotent."""
        with self._lock:
            self._leases.discard(lease)

    # -- pins

    def pin(self, holder: Releasable, indexes: IndexSet) -> None:
        """Let compactions keep entries as if they were live, until `unpin` of the same holder."""
        self._pins[holder] = indexes

    def unpin(self, holder: Releasable) -> None:
        """Release the entries of a holder; idempotent."""
        self._pins.pop(holder, None)

    @property
    def pins(self) -> tuple[Releasable, ...]:
        """The holders of pins."""
        return tuple(self._pins)

    @property
    def pinned(self) -> IndexSet:
        """The pinned indexes."""
        return IndexSet().union(*list(self._pins.values()))

    def close(self) -> None:
        """Close all readers. No reader is opened later, also for an unfinished scan."""
        with self._lock:
            self._closed = True
            self._open_files.closed(self, list(self.readers))


class Lease:
    """Keeps files for a reader in this process. A context manager.

    A truncation does not wait for leases: its entries were never committed.

    Attributes:
        epoch: number of the last change of the list when it was taken.
        since: when a host took it, in seconds since the epoch; `None` of a read's lease.
    """

    def __init__(self, segments: SegmentList, epoch: int, since: float | None) -> None:
        self._segments = segments
        self.epoch = epoch
        self.since = since

    def release(self) -> None:
        """Release the files, idempotent; the next compaction or `reclaim` removes those that waited for it."""
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
        known: segments with entries, oldest first, with disjoint ranges.
        empty: numbers of empty segments, without the newest.
        inside: numbers of segments whose live entries are all in an older segment, with the number of that.
        unsealed: number of an unsealed segment that is not the newest, after a crash during a truncation.
        newest: the open reader of the newest segment, which may be empty. `None` if there is no segment.
        number: of the newest segment, 0 if there is no segment.
    """

    known: tuple[KnownSegment, ...]
    empty: tuple[int, ...]
    inside: Mapping[int, int]
    unsealed: int | None
    newest: SegmentReader | None
    number: int


def read_folder(folder: StrPath, row: SnapshotMeta | None) -> FolderContents:
    """Open every segment, and read its index.

    If a compaction in another process removes a file during that, the folder is listed again.

    Args:
        folder: the log's.
        row: the snapshot in force.

    Raises:
        CorruptData, Unsupported: a segment is damaged or of an unknown version.
        NotFound: files were removed during each of many attempts.
        StorageError: a segment cannot be read.
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
        # Behind an unsealed segment there is at most an empty segment, which a truncation has begun.
        may_be_unsealed = may_be_unsealed and segment is None
    if gone := set(numbers).difference(list_segments(folder)):
        # The folder may have been read partly before and partly after a truncation by its owner.
        raise NotFound(f"segments {sorted(gone)} of {os.fspath(folder)} were removed while the folder was read; read "
                       f"it again")
    kept, inside = _disjoint(folder, known[::-1], row)
    return FolderContents(tuple(kept), tuple(empty), inside, unsealed, newest, numbers[-1] if numbers else 0)


def _disjoint(folder: StrPath, known: Sequence[KnownSegment],
              row: SnapshotMeta | None) -> tuple[list[KnownSegment], dict[int, int]]:
    """The segments of a log, oldest first; and the segments within the range of an older segment, with its number.

    A merged segment reaches from its first member to its last. After a crash, there may be segments within that range:
    other members, or dropped segments. The merged segment has all of their live entries.
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
    """The numbers of the segments in a folder, ascending, without merged members, linked yet or not.

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
    """Open segment `number`, or the segment into which it was merged.

    Raises:
        NotFound: there is no such file.
        CorruptData, Unsupported, StorageError: the segment cannot be opened.
    """
    path = os.path.join(folder, segment_name(number))
    merged = os.path.islink(path)
    try:
        return SegmentReader(path, tail="cut" if newest else "refuse", number=None if merged else number)
    except (CorruptData, StorageError) as error:
        if not merged and os.path.islink(path):
            # A compaction has replaced it by a link between the two calls.
            return open_segment(folder, number)
        if isinstance(error, CorruptData) or error.errno != errno.ENOENT:
            raise
        raise NotFound(f"segment {path} was removed; read the entry again") from error


def file_bytes(folder: StrPath, number: int) -> int:
    """The size of a segment's file; 0 if it was removed by hand: it can be dropped, and copying from it raises.

    Raises:
        StorageError: the disk refused.
    """
    found = look_at(os.path.join(folder, segment_name(number)))
    return 0 if found is None else found.st_size


def is_committed(folder: StrPath, members: Sequence[int]) -> bool:
    """Whether the leader's name, which is not a symbolic link, is a hard link of a group's new file, durably or not.

    A link count of 2 alone is no proof: the second name may be `1.segment.swap`, or the private name.

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
