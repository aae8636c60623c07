# SPDX-License-Identifier: Apache-2.0
"""The segments of a log: the list, the open files, the leases of readers; for the owner: append, sync, truncate, drop.

The list is an immutable value that a change replaces as a whole, so that a read of an older segment takes no lock. A
reader in another process that finds a file removed re-reads the folder.

Entries are appended to the active segment, which is sealed when it is full and the next is there: so a log whose newest
segment is sealed has lost the next (`read_folder`). A number is never used twice, and nothing is appended to a file
that was sealed once.

**Truncation** leaves no file with truncated entries, in three steps, each durable before the next:

(a) create the next segment, empty. It needs room; if there is none, nothing has changed;
(b) remove the segments that begin above the cut, newest first, so that a crash leaves a prefix of the log. Segment 1
    of a log without a snapshot is emptied instead: so such a log without it has lost it (`read_folder`);
(c) end the segment with the cut by one more seal, with fewer entries.

After a crash between these steps an empty newest segment is behind an unsealed segment. Opening seals the latter, and
appends to the empty segment. A store's WAL has the truncation, and opening the store repeats it; a log without a WAL is
then a prefix of what it was.

**Opening** trusts no byte that an earlier owner may have left in the page cache alone, because it was killed before a
sync or a sync was refused: what no durable seal covers, and the last seal, are written again and synced. A segment with
a torn tail is sealed without it, and takes no more entries. That needs room on some disks, so that a full disk puts it
off to the first change (`settle`).

Invariant: a truncation changes segments above the snapshot, a compaction segments at or below it, so that they never
change the same file.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import attrs

from compactlib.clock import Clock
from compactlib.errors import AuditFailed, Closed, CompactlibError, CorruptData, DiskFull, NotFound, StorageError
from compactlib.files.disk import Files, StrPath, look_at
from compactlib.guard import Guard
from compactlib.indexset import IndexSet
from compactlib.raftlog.names import segment_name
from compactlib.raftlog.segment.format import SegmentIndex
from compactlib.raftlog.segment.listing import (
    FolderContents,
    KnownSegment,
    between,
    next_ref,
    open_segment,
    refs_holding,
)
from compactlib.raftlog.segment.reader import SegmentReader
from compactlib.raftlog.segment.writer import SegmentWriter, cut_segment
from compactlib.raftlog.snapshot_meta import SnapshotMeta
from compactlib.raftlog.values import MAX_INDEX, Entry, SegmentLimits, SegmentRef, entry_of

DEFAULT_MAX_OPEN = 128
_MAX_OPEN_INDEX_ENTRIES = 2_000_000
_BEYOND = MAX_INDEX + 1


@attrs.frozen
class _View:
    """The list at one moment, without the active segment."""

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
        self._entries: dict[tuple[Segments, int], int] = {}

    def opened(self, segments: Segments, number: int, entries: int) -> None:
        """Count a file, and close others above the limit."""
        with self._lock:
            self._entries[segments, number] = entries
            while len(self._entries) > 1 and (len(self._entries) > self._most
                                              or sum(self._entries.values()) > _MAX_OPEN_INDEX_ENTRIES):
                oldest, place = next(iter(self._entries))
                del self._entries[oldest, place]
                oldest.readers.pop(place, None)

    def closed(self, segments: Segments, numbers: Iterable[int]) -> None:
        """Close files of a log."""
        with self._lock:
            for number in numbers:
                self._entries.pop((segments, number), None)
                segments.readers.pop(number, None)


class Lease:
    """Keeps files for a reader in this process. A context manager.

    A truncation does not wait for leases: its entries were never committed.

    Attributes:
        epoch: number of the last change of the list when it was taken.
        since: when a host took it, in seconds since the epoch; `None` of a read's lease.
    """

    def __init__(self, leases: set[Lease], epoch: int, since: float | None) -> None:
        self._leases = leases
        self.epoch = epoch
        self.since = since
        leases.add(self)

    def release(self) -> None:
        """Release the files, idempotent; the next compaction or `reclaim` removes those that waited for it."""
        self._leases.discard(self)

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __repr__(self) -> str:
        return f"Lease(epoch={self.epoch})"


class Segments:
    """The segments of a log. `begin_writing` makes it the owner's, which has an active segment.

    A change raises `StorageError` if the disk refused, and `Closed` if the log was closed. A failed change closes the
    log, unless its method says otherwise.

    Args:
        folder: the log's folder.
        guard: the guard of the log; changes take its lock.
        known: the segments, oldest first.
        row: the snapshot in force.
        open_files: bounds the readers that are kept open.

    Attributes:
        folder: as given.
        row: as given; a later one is assigned.
        readers: the open readers, by number.
        torn_entries: count of entries that the opening has cut off at the end.
        pins: entries that compactions keep as if they were live, by holder.
    """

    def __init__(self, folder: StrPath, guard: Guard, known: Iterable[KnownSegment] = (),
                 row: SnapshotMeta | None = None, *, open_files: OpenFiles) -> None:
        self.folder: str = os.fspath(folder)
        self.row: SnapshotMeta | None = row
        self.readers: dict[int, SegmentReader] = {}
        self.torn_entries: int = 0
        self.pins: dict[Any, IndexSet] = {}
        self._guard = guard
        self._open_files = open_files
        self._view = _View.of(known)
        # Guards the leases, and the list with its epoch.
        self._lock = threading.Lock()
        self._changes = itertools.count(1)
        self._epoch = 0
        self._leases: set[Lease] = set()
        self._closed = False
        # Whether the active segment's file is open only while it has entries that are not synced.
        self._rests = False
        # Of the owner alone.
        self._files: Files | None = None
        self._limits: SegmentLimits | None = None
        self._newest = 0
        # Whether all that opening has found is durable.
        self._is_settled = True
        self._writer: SegmentWriter | None = None
        # The next segment, created for a truncation that was not executed.
        self._successor: SegmentWriter | None = None
        # The first index of the active segment.
        self._newest_first = _BEYOND
        self._last = self._end_of_view()
        # The dropped segments whose files exist: the epoch of the list without it, and the time of the drop.
        self._dropped: dict[int, tuple[int, float]] = {}

    # -- opening for writing

    def begin_writing(self, files: Files, limits: SegmentLimits, found: FolderContents, *, rests: bool = False) -> None:
        """Continue the newest segment, or begin the first, and drop the segments that a crash has left.

        Args:
            files: the disk.
            limits: of new segments.
            found: in the folder, which this process has locked, and in which no compaction runs.
            rests: close the file of the active segment after each sync. Of many logs the open files are bounded then.
        """
        self._files, self._limits, self._rests = files, limits, rests
        self._guard.keep(self)
        if found.newest is None:
            self._use(self._create(1))
        else:
            self._newest = found.newest.loaded.header.number
            self._is_settled = False
        # On a full disk the log can be read, and the first change that has room retries.
        with contextlib.suppress(DiskFull):
            self._settle()
        for leader in found.leaders:
            # No file is removed if its merged segment is damaged.
            for damage in self.reader(leader).damaged_entries():
                raise damage
        self._drop([number for number in found.dropped if not self._emptied(number)], 0.0)

    def settle(self) -> None:
        """Make everything that opening has found durable, if it could not because the disk was full.

        The caller holds the guard's lock. Every change of entries begins with it. If the disk is still full, nothing
        has changed, and the log stays open.
        """
        if not self._is_settled:
            self._guard.begin("the end of its opening")
            try:
                self._settle()
            except DiskFull:
                self._guard.undone()
                raise
            self._guard.done()

    def _settle(self) -> None:
        """Take over the last segment that has entries, and behind it an empty one that a truncation has begun."""
        numbers = () if self._is_settled else sorted({*(ref.number for ref in self._view.refs[-1:]), self._newest})
        for number in numbers:
            writer = SegmentWriter.open(self._disk, self.folder, number, is_last=number == self._newest)
            self.torn_entries += writer.torn_records
            if writer.is_open and number == self._newest:
                self._use(writer)
            else:
                writer.abandon()
        self._is_settled = True

    def _begin(self, change: str) -> None:
        """Begin a change of entries. The caller holds the guard's lock."""
        if not self._is_settled:
            self.settle()
        self._guard.begin(change)

    @property
    def _disk(self) -> Files:
        assert self._files is not None, "only the owner writes"
        return self._files

    def _path_of(self, number: int) -> str:
        return os.path.join(self.folder, segment_name(number))

    def _end_of_view(self) -> int:
        refs = self._view.refs
        return refs[-1].last if refs else -1

    # -- the list

    @property
    def refs(self) -> tuple[SegmentRef, ...]:
        """The references, oldest first."""
        if self._files is None:
            return self._view.refs
        with self._guard.lock:
            newest = self._known_newest()
            return self._view.refs if newest is None else (*self._view.refs, newest.ref)

    def known(self) -> tuple[KnownSegment, ...]:
        """The facts of each segment, oldest first."""
        if self._files is None:
            return tuple(self._view.known.values())
        with self._guard.lock:
            newest = self._known_newest()
            return (*self._view.known.values(), *([] if newest is None else [newest]))

    def known_of(self, number: int) -> KnownSegment | None:
        """The facts of a segment; `None` if it is not listed."""
        if number == self._newest:
            with self._guard.lock:
                newest = self._known_newest()
                if newest is not None and newest.ref.number == number:
                    return newest
        return self._view.known.get(number)

    def _known_newest(self) -> KnownSegment | None:
        """The facts of the active segment; `None` if it is empty or there is none."""
        writer = self._writer
        return None if writer is None else KnownSegment.of(writer.number, writer.index)

    def _show(self, known: Iterable[KnownSegment], gone: Iterable[int] = ()) -> None:
        """Replace the list, and close the readers of the segments `gone`, whose files have changed.

        The list is assigned before its epoch: a lease taken in between leases more than it must, never less.
        """
        with self._lock:
            self._view = _View.of(known)
            self._epoch = next(self._changes)
            self._open_files.closed(self, gone)

    # -- reads

    def read(self, index: int) -> Entry | None:
        """The entry of `index`, or `None` if no segment has it.

        Raises:
            NotFound: a segment was removed; re-read the list.
            CorruptData: the entry or its segment is damaged.
        """
        newest_first = self._newest_first
        if index >= newest_first:
            found = self._read_active(index)
            if found is not False:
                return found
        view = self._view
        place = bisect_right(view.firsts, index) - 1
        if place < 0 or view.refs[place].last < index:
            # In between, `settle` may have made the last segment of the list the active segment.
            return self.read(index) if newest_first > index >= self._newest_first else None
        number = view.refs[place].number
        reader = self.readers.get(number)
        return (self.reader(number) if reader is None else reader).read(index)

    def _read_active(self, index: int) -> Entry | Literal[False] | None:
        """The entry of `index` in the active segment, or `None`; `False` if the entry is in an older segment by now."""
        with self._guard.lock:
            self._guard.require_open()
            writer = self._writer
            if index < self._newest_first or writer is None:
                return False
            position = writer.index.find(index)
            if position < 0:
                return None
            payload = writer.unflushed(position)
            if payload is not None:
                return entry_of((index, writer.index.terms[position], payload))
            return self._reader_of(writer).read(index)

    def index_of(self, number: int) -> SegmentIndex:
        """The index of a segment; raises as `reader`."""
        if number == self._newest:
            with self._guard.lock:
                if self._writer is not None and self._writer.number == number:
                    return self._writer.index
                # With the lock: `settle` makes it the active segment.
                return self._older_reader(number).index
        return self._older_reader(number).index

    def held(self, indexes: IndexSet, *, counted: tuple[type[CompactlibError], ...] = ()) -> IndexSet:
        """The part of `indexes` that is in segments; a file that was removed has none of them.

        Args:
            indexes: of entries, dead or not.
            counted: errors with which a segment counts as one that has all of them; others are raised. With any, the
                index of each segment is read; else only of those that are not dense.
        """
        found: list[IndexSet] = []
        for ref, here in refs_holding(self.refs, indexes):
            known = self.known_of(ref.number)
            if counted or known is None or not known.is_dense:
                try:
                    here &= self.index_of(ref.number).index_set()
                except counted:
                    pass
                except NotFound:
                    continue
            found.append(here)
        return IndexSet().union(*found)

    def term_of(self, index: int) -> int | None:
        """The term of the entry of `index`, dead or not, `None` if no segment has it. Raises as `reader`."""
        ref = next_ref(self.refs, index)
        if ref is None or ref.first > index:
            return None
        found = self.index_of(ref.number)
        position = found.find(index)
        return None if position < 0 else found.terms[position]

    def next_index(self, index: int) -> int | None:
        """The lowest index >= `index` in a segment, dead or not; `None` without any."""
        refs = self.refs
        while (ref := next_ref(refs, index)) is not None:
            found = self.index_of(ref.number)
            inside = found.positions_between(max(ref.first, index), ref.last)
            if inside:
                return found.indexes[inside[0]]
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
            indexes = index.indexes[position:position + wanted]
            terms = index.terms[position:position + wanted]
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
        if number == self._newest:
            with self._guard.lock:
                writer = self._writer
                if writer is not None and writer.number == number:
                    self._guard.begin("a flush")
                    writer.flush()
                    self._guard.done()
                    return self._reader_of(writer)
                # With the lock: `settle` makes it the active segment.
                return self._older_reader(number)
        return self._older_reader(number)

    def _older_reader(self, number: int) -> SegmentReader:
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

    def _reader_of(self, writer: SegmentWriter) -> SegmentReader:
        reader = self.readers.get(writer.number)
        if reader is None:
            reader = self.readers[writer.number] = SegmentReader.following(writer.path, writer.index)
            self._open_files.opened(self, writer.number, len(writer.index))
        return reader

    # -- leases and pins

    def lease(self, since: float | None = None) -> Lease:
        """Keep compactions from removing any current file until the lease is released.

        Args:
            since: the current time, in seconds since the epoch, for a host's lease; `None` for a read's.
        """
        with self._lock:
            return Lease(self._leases, self._epoch, since)

    def is_leased(self, epoch: int) -> bool:
        """Whether a lease exists that was taken before the change number `epoch`."""
        with self._lock:
            return any(lease.epoch < epoch for lease in list(self._leases))

    def oldest_lease(self) -> float | None:
        """The time of the oldest host's lease, in seconds since the epoch; `None` without any."""
        return min((lease.since for lease in list(self._leases) if lease.since is not None), default=None)

    @property
    def pinned(self) -> IndexSet:
        """The pinned indexes."""
        return IndexSet().union(*list(self.pins.values()))

    # -- appending

    @property
    def newest_number(self) -> int:
        """The highest number of a segment."""
        return self._newest

    @property
    def last_index(self) -> int:
        """The highest index, -1 if there is none."""
        return self._last

    @property
    def last_term(self) -> int | None:
        """The term of the active segment's last entry, `None` if it is empty."""
        if self._writer is None or not len(self._writer.index):
            return None
        return self._writer.index.terms[-1]

    @property
    def durability(self) -> tuple[int, int]:
        """The last index that is certainly durable, -1 without any; and the count of entries that are not."""
        with self._guard.lock:
            writer, refs = self._writer, self._view.refs
            if not self._is_settled and refs:
                # Opened on a full disk: nothing behind the seal is certain.
                loaded = self.reader(refs[-1].number).loaded
                index, synced = loaded.index, loaded.seal.entries
                before = refs[-2].last if len(refs) > 1 else -1
            elif writer is not None:
                index, synced, before = writer.index, writer.synced_entries, self._end_of_view()
            else:
                return self._end_of_view(), 0
            return index.indexes[synced - 1] if synced else before, len(index) - synced

    def append(self, index: int, term: int, payload: bytes) -> None:
        """Append a checked entry. At or below the last index, it truncates the log there first, durably.

        The caller holds the guard's lock.
        """
        if index <= self._last or not self._is_settled:
            self.truncate(index - 1)
        guard = self._guard
        guard.begin("an append")
        writer = self._writer
        if writer is None or writer.is_full:
            writer = self._roll()
        writer.append(index, term, payload)
        if index < self._newest_first:
            self._newest_first = index
        self._last = index
        guard.done()

    def append_run(self, first: int, term: int, payloads: Sequence[bytes]) -> None:
        """Append entries of consecutive indexes and one term, as `append`; a few calls for any number."""
        with self._guard.lock:
            self.truncate(first - 1)
            self._guard.begin("an append")
            done = 0
            while done < len(payloads):
                writer = self._writer
                if writer is None or writer.is_full:
                    writer = self._roll()
                count = writer.append_run(first + done, term, payloads[done:] if done else payloads)
                self._newest_first = min(self._newest_first, first + done)
                done += count
                self._last = first + done - 1
            self._guard.done()

    def sync(self) -> None:
        """Make all appended entries durable: one fsync, none without new entries."""
        with self._guard.lock:
            self._begin("a sync")
            if self._writer is not None:
                self._writer.sync()
                self._rest(self._writer)
            self._guard.done()

    def _rest(self, writer: SegmentWriter) -> None:
        if self._rests:
            writer.rest()

    def end_segment(self) -> None:
        """Seal the active segment, and begin the next."""
        with self._guard.lock:
            self._begin("the end of a segment")
            self._roll()
            self._guard.done()

    def take_back(self) -> None:
        """Truncate the active segment to the last sync, after a `StorageError`, and seal it. Needs no room.

        The next append begins another segment; a segment without a synced entry stays active.
        """
        with self._guard.lock:
            writer = self._writer
            if writer is not None:
                known = KnownSegment.of(writer.number, writer.index.head(writer.synced_entries))
                # Before the file: no read finds truncated entries.
                self._end_active(known)
                self._last = self._end_of_view()
                writer.take_back()
                if writer.is_open:
                    # The empty file stays the active segment: a folder without a segment is no log.
                    self._use(writer)
                else:
                    writer.abandon()
            self._guard.undone()

    def _roll(self) -> SegmentWriter:
        """Seal the active segment durably, and begin the next; an empty active segment stays."""
        writer = self._writer
        if writer is not None and not len(writer.index):
            return writer
        successor = self._begin_successor()
        if writer is not None:
            # Sealed durably before its successor has entries: only the last segment with entries may be torn.
            writer.seal()
            writer.close()
            self._end_active(KnownSegment.of(writer.number, writer.index))
        self._use(successor)
        return successor

    def _end_active(self, known: KnownSegment | None) -> None:
        """Move the active segment, with these facts, to the list."""
        number, self._writer = self._newest, None
        # The list first: a read without the lock finds the entry in the list or in the active segment.
        self._show([*self._view.known.values(), *([] if known is None else [known])], [number])
        self._newest_first = _BEYOND

    def _begin_successor(self) -> SegmentWriter:
        if self._successor is None:
            self._successor = self._create(self._newest + 1)
        return self._successor

    def _create(self, number: int) -> SegmentWriter:
        # Replaces the empty file of an earlier attempt of which the disk refused the last sync.
        return SegmentWriter.create(self._disk, self.folder, number, self._limits)

    def _use(self, writer: SegmentWriter) -> None:
        """Make `writer` the active segment."""
        self._writer, self._newest, self._successor = writer, writer.number, None
        index = writer.index
        self._rest(writer)
        self._newest_first = index.first if len(index) else _BEYOND
        older = self._view.known
        if writer.number in older:
            self._show([each for each in older.values() if each.ref.number != writer.number], [writer.number])
        self._last = index.last if len(index) else self._end_of_view()

    # -- truncation

    def prepare_truncation(self) -> None:
        """Step (a), for a caller that records the truncation durably before it calls `truncate`.

        If the disk refuses, nothing has changed, and the log stays open.
        """
        with self._guard.lock:
            self._begin("a truncation")
            try:
                if self._writer is None or len(self._writer.index):
                    self._begin_successor()
            except StorageError:
                self._guard.undone()
                raise
            self._guard.done()

    def truncate(self, after: int) -> None:
        """Truncate every entry above `after`; durable when this returns, and no file has them.

        If step (a) is refused, nothing has changed, and the log stays open. After another error, opening the log finds
        a prefix of it that ends at `after` or above.
        """
        with self._guard.lock:
            self.settle()
            if after < self._last:
                self.prepare_truncation()
                self._guard.begin("a truncation")
                self._truncate(after)
                self._guard.done()

    def _truncate(self, after: int) -> None:
        newest = self._known_newest()
        writer = self._writer
        listed = [*self._view.known.values(), *([] if newest is None else [newest])]
        kept = [each for each in listed if each.ref.first <= after]
        removed = [each.ref.number for each in listed[len(kept):]]
        cut = kept[-1] if kept and kept[-1].ref.last > after else None
        # Step (a).
        successor = self._begin_successor() if writer is None or newest is not None else writer
        if cut is not None:
            index = self.index_of(cut.ref.number)
            ended = KnownSegment.of(cut.ref.number, index.head(bisect_right(index.indexes, after)))
            assert ended is not None, "it begins at or below the cut"
            kept[-1] = attrs.evolve(ended, data_bytes=index.data_bytes)
        if writer is not None and writer is not successor:
            if cut is not None and cut.ref.number == writer.number:
                writer.flush()
                writer.cut_zeros()
            writer.abandon()
        # The list before the files: a read without the lock finds the files of all listed segments.
        self._show(kept, [*removed, *([] if cut is None else [cut.ref.number])])
        self._use(successor)
        # Step (b).
        for number in reversed(removed):
            if not self._emptied(number):
                self._disk.unlink(self._path_of(number))
                self._disk.sync_folder(self.folder)
        # Step (c).
        if cut is not None:
            cut_segment(self._disk, self.folder, cut.ref.number, after)

    def _emptied(self, number: int) -> bool:
        """Empty segment 1 of a log without a snapshot, durably, whose file must stay; `False` for any other."""
        if number != 1 or self.row is not None:
            return False
        cut_segment(self._disk, self.folder, number, -1)
        return True

    # -- compaction

    def drop(self, numbers: Sequence[int], clock: Clock) -> None:
        """Take segments out of the list; their files go with `remove_dropped`."""
        with self._guard.lock:
            self._guard.begin("a drop")
            self._drop(numbers, clock.now())
            self._guard.done()

    def _drop(self, numbers: Sequence[int], now: float) -> None:
        gone = set(numbers)
        if gone:
            self._show([each for each in self._view.known.values() if each.ref.number not in gone], gone)
            self._dropped.update(dict.fromkeys(numbers, (self._epoch, now)))

    def replace(self, members: Sequence[int], by: KnownSegment) -> None:
        """Put the segment that has the live entries of `members` in their place; its name leads to its new file.

        The caller holds the lock and has begun a change.
        """
        known = list(self._view.known.values())
        known[between(self._view.refs, members)] = [by]
        self._show(known, members)

    @property
    def dropped(self) -> frozenset[int]:
        """Numbers of the dropped segments whose files exist."""
        return frozenset(self._dropped)

    def oldest_dropped(self) -> float | None:
        """The time of the oldest of these drops, in seconds since the epoch; `None` without any."""
        return min((since for _, since in self._dropped.values()), default=None)

    def remove_dropped(self) -> tuple[tuple[int, ...], int]:
        """Remove the files of dropped segments without a lease: their numbers, and the freed bytes.

        One call at a time. The next call retries what the disk refuses; the log stays open.
        """
        removed: list[int] = []
        freed = 0
        for number, (epoch, _) in list(self._dropped.items()):
            if self.is_leased(epoch):
                continue
            path = self._path_of(number)
            found = look_at(path)
            if found is not None:
                freed += found.st_size
                self._disk.unlink(path)
            del self._dropped[number]
            removed.append(number)
        return tuple(removed), freed

    # -- ending

    def audit(self) -> None:
        """Check that numbers and ranges ascend without overlap, and that `last_index` is the last segment's.

        Raises:
            AuditFailed: an invariant is broken; the message has the numbers.
        """
        with self._guard.lock:
            refs = self.refs
            for older, newer in itertools.pairwise(refs):
                if older.number >= newer.number or older.last >= newer.first or older.first > older.last:
                    raise AuditFailed(f"segment references out of order: {older} before {newer}")
            if self._last != (refs[-1].last if refs else -1):
                raise AuditFailed(f"the last index is {self._last}, and the segments are {refs}")

    def close(self) -> None:
        """Close all files without another write. Idempotent. No reader is opened later, also for an unfinished scan."""
        with self._lock:
            self._closed = True
            self._open_files.closed(self, list(self.readers))
        for writer in (self._writer, self._successor):
            if writer is not None:
                writer.abandon()

    def end(self) -> None:
        """Sync, and close the log; does nothing in a closed log."""
        with self._guard.lock:
            if self._guard.is_open and self._writer is not None:
                self._guard.begin("a close")
                self._writer.close()
                self._guard.done()
            self._guard.close()


def _leading(indexes: Sequence[int], terms: Sequence[int], term: int) -> int:
    count = 0
    while count < len(indexes) and indexes[count] == indexes[0] + count and terms[count] == term:
        count += 1
    return count
