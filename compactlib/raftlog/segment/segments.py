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
    of a log without a snapshot is replaced by an empty one instead: so such a log without it has lost it
    (`read_folder`);
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
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from operator import and_, eq
from typing import Any, Literal

import attrs

from compactlib.clock import Clock
from compactlib.errors import AuditFailed, Closed, CompactlibError, CorruptData, DiskFull, NotFound, StorageError
from compactlib.files.disk import Files, StrPath, look_at
from compactlib.guard import Guard
from compactlib.indexset import IndexSet
from compactlib.lru import Lru
from compactlib.raftlog.names import segment_name
from compactlib.raftlog.segment.format import SegmentIndex, picked
from compactlib.raftlog.segment.listing import (
    FolderContents,
    between,
    next_ref,
    open_segment,
    segments_holding,
    stats_of,
)
from compactlib.raftlog.segment.reader import SegmentReader
from compactlib.raftlog.segment.writer import SegmentWriter, cut_segment, empty_segment
from compactlib.raftlog.snapshot_meta import SnapshotMeta
from compactlib.raftlog.values import MAX_INDEX, Entry, SegmentLimits, SegmentRef, SegmentStats, entry_of

DEFAULT_MAX_OPEN = 128
_MAX_OPEN_INDEX_ENTRIES = 2_000_000
_BEYOND = MAX_INDEX + 1


@attrs.frozen
class _View:
    """The list at one moment, without the active segment."""

    known: tuple[SegmentStats, ...]
    refs: tuple[SegmentRef, ...]
    firsts: tuple[int, ...]

    @classmethod
    def of(cls, known: Iterable[SegmentStats]) -> _View:
        known = tuple(known)
        return cls(known, tuple(each.ref for each in known), tuple(each.ref.first for each in known))

    def followed_by(self, newest: SegmentStats) -> _View:
        # Each new segment costs three copies of tuples, and no loop.
        return _View((*self.known, newest), (*self.refs, newest.ref), (*self.firsts, newest.ref.first))

    @property
    def last(self) -> int:
        return self.refs[-1].last if self.refs else -1


class OpenFiles:
    """Bounds the files open for reading in all logs that share it, and their index records in memory (about 2 million).

    The file that was opened first is closed first. Thread-safe.

    Args:
        most: limit of the files.
    """

    def __init__(self, most: int) -> None:
        # In both units at once: a file takes the place of its index records, at least the place of a file.
        self._most = most
        self._files: Lru[tuple[Segments, int], None] = Lru(most * _MAX_OPEN_INDEX_ENTRIES)

    def opened(self, segments: Segments, number: int, entries: int) -> None:
        """Count a file, and close others above the limit."""
        size = max(_MAX_OPEN_INDEX_ENTRIES, self._most * min(entries, _MAX_OPEN_INDEX_ENTRIES))
        for oldest, place in self._files.put((segments, number), None, size):
            oldest.readers.pop(place, None)

    def closed(self, segments: Segments, numbers: Iterable[int]) -> None:
        """Close files of a log."""
        for number in numbers:
            self._files.drop((segments, number))
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
        row: as given, or a later one.
        readers: the open readers, by number.
        newest_number: the highest number of a segment; 0 of a reader.
        last_index: the highest index, -1 if there is none.
        dropped: the dropped segments whose files exist: the epoch of the list without it, and the time of the drop.
        torn_entries: count of entries that the opening has cut off at the end.
        pins: entries that compactions keep as if they were live, by holder.
    """

    def __init__(self, folder: StrPath, guard: Guard, known: Iterable[SegmentStats] = (),
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
        self._epoch = 0
        self._leases: set[Lease] = set()
        self._closed = self._is_old = False
        # Whether the active segment's file is open only while it has entries that are not synced.
        self._rests = False
        # Of the owner alone.
        self._files: Files | None = None
        self._limits = SegmentLimits()
        self.newest_number: int = 0
        # Whether all that opening has found is durable.
        self._is_settled = True
        # Whether opening has found segment 1 empty below others, in a log without a snapshot: its file stays.
        self._is_emptied = False
        # Of the active segment; its reader has the index of the writer.
        self._writer: SegmentWriter | None = None
        # The first index of the active segment.
        self._newest_first = _BEYOND
        # The next segment, created for a truncation or a seal that has not happened yet.
        self._successor: SegmentWriter | None = None
        self.last_index: int = self._view.last
        self.dropped: dict[int, tuple[int, float]] = {}

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
            self._use(self._begin_successor())
        else:
            self.newest_number = found.newest.loaded.header.number
            self._is_settled = False
            self._is_emptied = 1 in found.dropped and self.row is None
        # On a full disk the log can be read, and the first change that has room retries.
        with contextlib.suppress(DiskFull):
            self._settle()
        for leader in found.leaders:
            # No file is removed if its merged segment is damaged.
            for damage in self.reader(leader).damaged_entries():
                raise damage
        self._drop([number for number in found.dropped if number > 1 or not self._is_emptied], 0.0)

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
        """Take over the last segment that has entries, and behind it an empty one that a truncation has begun.

        Segment 1 is emptied again, if a truncation has emptied it.
        """
        if self._is_settled:
            return
        if self._is_emptied:
            self._empty_first()
        for number in sorted({*(ref.number for ref in self._view.refs[-1:]), self.newest_number}):
            writer = SegmentWriter.open(self._disk, self.folder, number, is_last=number == self.newest_number)
            self.torn_entries += writer.torn_records
            if writer.is_open and number == self.newest_number:
                self._use(writer)
            else:
                writer.abandon()
        self._is_settled = True

    def _begin(self, change: str) -> None:
        """Begin a change of entries. The caller holds the guard's lock."""
        self.settle()
        self._guard.begin(change)

    @property
    def _disk(self) -> Files:
        assert self._files is not None, "only the owner writes"
        return self._files

    def _path_of(self, number: int) -> str:
        return os.path.join(self.folder, segment_name(number))

    # -- the list

    @property
    def refs(self) -> tuple[SegmentRef, ...]:
        """The references, oldest first."""
        if self._files is None:
            return self._view.refs
        with self._guard.lock:
            return (*self._view.refs, *(each.ref for each in self._active()))

    def known(self) -> tuple[SegmentStats, ...]:
        """The statistics of each segment, oldest first; all entries count as live."""
        if self._files is None:
            return self._view.known
        with self._guard.lock:
            return (*self._view.known, *self._active())

    def _active(self) -> tuple[SegmentStats, ...]:
        """Those of the active segment; none if it is empty."""
        writer = self._writer
        known = None if writer is None else stats_of(writer.number, writer.index)
        return () if known is None else (known,)

    def _show(self, view: _View, gone: Iterable[int] = ()) -> None:
        """Replace the list, and close the readers of the segments `gone`, whose files have changed.

        The list is assigned before its epoch: a lease taken in between leases more than it must, never less.
        """
        with self._lock:
            self._view = view
            self._epoch += 1
            self._open_files.closed(self, gone)
        if self._newest_first == _BEYOND:
            # A compaction can take the last segment with entries: it was not the newest when the compaction began.
            self.last_index = view.last

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
        if number == self.newest_number:
            with self._guard.lock:
                if self._writer is not None and self._writer.number == number:
                    return self._writer.index
        return self.reader(number).index

    def held(self, indexes: IndexSet, *, counted: tuple[type[CompactlibError], ...] = ()) -> IndexSet:
        """The part of `indexes` that is in segments; a file that was removed has none of them.

        Args:
            indexes: of entries, dead or not.
            counted: errors with which a segment counts as one that has all of them; others are raised. With any, the
                index of each segment is read; else only of those that are not dense.
        """
        found: list[IndexSet] = []
        for known, here in segments_holding(self.known(), indexes):
            if counted or known.ref.last - known.ref.first + 1 != known.entries:
                try:
                    here &= self.index_of(known.ref.number).index_set()
                except counted:
                    pass
                except NotFound:
                    continue
            found.append(here)
        return IndexSet().union(*found)

    def _parts(self, first: int, last: int) -> Iterator[tuple[SegmentIndex, range]]:
        """The indexes of the segments that reach into `first..last`, oldest first, each with the positions in there."""
        refs = self.refs
        while (ref := next_ref(refs, first)) is not None and ref.first <= last:
            index = self.index_of(ref.number)
            yield index, index.positions_between(max(ref.first, first), min(ref.last, last))
            first = ref.last + 1

    def term_of(self, index: int) -> int | None:
        """The term of the entry of `index`, dead or not, `None` if no segment has it. Raises as `reader`."""
        return next((found.terms[places[0]] for found, places in self._parts(index, index) if places), None)

    def next_index(self, index: int) -> int | None:
        """The lowest index >= `index` in a segment, dead or not; `None` without any."""
        return next((found.indexes[places[0]] for found, places in self._parts(index, MAX_INDEX) if places), None)

    def matching(self, first: int, last: int, term: int) -> int:
        """Count the entries in `first..last`, from `first` on, that have this term. O(entries), in C."""
        matched = 0
        for found, places in self._parts(first, last):
            indexes, terms = picked(found.indexes, places), picked(found.terms, places)
            agree = list(map(and_, map(eq, indexes, itertools.count(first + matched)), map(term.__eq__, terms)))
            count = agree.index(False) if False in agree else len(agree)
            matched += count
            if count < len(agree):
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
        if number != self.newest_number:
            return self._older_reader(number)
        with self._guard.lock:
            writer = self._writer
            if writer is None or writer.number != number:
                # With the lock: `settle` makes it the active segment.
                return self._older_reader(number)
            self._guard.begin("a flush")
            writer.flush()
            self._guard.done()
            return self._reader_of(writer)

    def _older_reader(self, number: int) -> SegmentReader:
        while True:
            reader = self.readers.get(number)
            if reader is not None:
                return reader
            if self._closed:
                raise Closed(f"the log in {self.folder} was closed; open it again")
            epoch, refs = self._epoch, self._view.refs
            listed = refs[between(refs, [number])]
            try:
                reader = open_segment(self.folder, number, newest=bool(listed) and listed[0] is refs[-1])
            except CorruptData as error:
                if epoch != self._epoch:
                    continue
                if listed:
                    raise
                # A truncation takes a segment out of the list before it removes the file, which may be unsealed.
                raise NotFound(f"segment {number} of {self.folder} is not listed any more; re-read the list") from error
            if listed and (not len(reader.index) or reader.index.last < listed[0].last):
                with self._guard.lock:
                    # Who has replaced the file shows the new list before the lock is released.
                    if epoch != self._epoch:
                        continue
                raise NotFound(f"segment {number} of {self.folder} was cut or rewritten; re-read the list")
            with self._lock:
                # After a change the name may be of another file: a reader opened before is not kept.
                if epoch != self._epoch or self._closed:
                    continue
                if not listed or self._is_old:
                    # Not kept: when the file is replaced, it would take room while it is open.
                    return reader
                self.readers[number] = reader
            self._open_files.opened(self, number, len(reader.index))
            return reader

    def _reader_of(self, writer: SegmentWriter) -> SegmentReader:
        reader = self.readers.get(writer.number)
        if reader is None:
            reader = self.readers[writer.number] = SegmentReader.following(writer.path, writer.index)
            self._open_files.opened(self, writer.number, len(reader.index))
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
    def last_term(self) -> int | None:
        """The term of the active segment's last entry, `None` if it is empty."""
        if self._writer is None or not len(self._writer.index):
            return None
        return self._writer.index.terms[-1]

    @property
    def durable_index(self) -> int:
        """The last index that is certainly durable, -1 without any."""
        with self._guard.lock:
            refs, durable = self._view.refs, array("Q")
            if self._writer is not None:
                durable = self._writer.index.indexes[:self._writer.synced.entries]
            elif not self._is_settled and refs:
                # Opened on a full disk: nothing behind the seal is certain.
                loaded, refs = self.reader(refs[-1].number).loaded, refs[:-1]
                durable = loaded.index.indexes[:loaded.seal.entries]
            return durable[-1] if durable else refs[-1].last if refs else -1

    def append(self, index: int, term: int, payload: bytes) -> None:
        """Append a checked entry. At or below the last index, it truncates the log there first, durably.

        The caller holds the guard's lock.
        """
        if index <= self.last_index or not self._is_settled:
            self.truncate(index - 1)
        guard = self._guard
        guard.begin("an append")
        writer = self._writer
        if writer is None or writer.is_full:
            writer = self._roll()
        writer.append(index, term, payload)
        if index < self._newest_first:
            self._newest_first = index
        self.last_index = index
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
                self.last_index = first + done - 1
            self._guard.done()

    def sync(self) -> None:
        """Make all appended entries durable: one fsync, none without new entries."""
        with self._guard.lock:
            self._begin("a sync")
            if self._writer is not None:
                self._writer.sync(rests=self._rests)
            self._guard.done()

    def end_segment(self) -> None:
        """Seal the active segment, and begin the next."""
        with self._guard.lock:
            self._begin("the end of a segment")
            self._roll()
            self._guard.done()

    def take_back(self) -> None:
        """Truncate the active segment to the last sync, after a `StorageError`, and seal it. Needs no room.

        The next append begins another segment. A segment without a synced entry, or whose file was not opened since the
        last sync, stays active.
        """
        with self._guard.lock:
            writer = self._writer
            if writer is not None:
                known = stats_of(writer.number, writer.index.head(writer.synced.entries))
                # Before the file: no read finds truncated entries.
                self._end_active(known)
                self.last_index = self._view.last
                writer.take_back()
                if writer.is_open:
                    # Also an empty file stays the active segment: a folder without a segment is no log.
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
            self._end_active(stats_of(writer.number, writer.index))
        self._use(successor)
        return successor

    def _end_active(self, known: SegmentStats | None) -> None:
        """Move the active segment, with these statistics, to the list."""
        self._writer = None
        # The list first: a read without the lock finds the entry in the list or in the active segment.
        self._show(self._view if known is None else self._view.followed_by(known), [self.newest_number])
        self._newest_first = _BEYOND

    def _begin_successor(self) -> SegmentWriter:
        if self._successor is None:
            # Replaces the empty file of an earlier attempt of which the disk refused the last sync.
            self._successor = SegmentWriter.create(self._disk, self.folder, self.newest_number + 1, self._limits)
        return self._successor

    def _use(self, writer: SegmentWriter) -> None:
        """Make `writer` the active segment."""
        self._writer, self.newest_number, self._successor = writer, writer.number, None
        index = writer.index
        if self._rests:
            writer.rest()
        self._newest_first = index.first if len(index) else _BEYOND
        if any(ref.number == writer.number for ref in self._view.refs[-1:]):
            self._show(_View.of(self._view.known[:-1]), [writer.number])
        self.last_index = index.last if len(index) else self._view.last

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
            if after < self.last_index:
                self.prepare_truncation()
                self._guard.begin("a truncation")
                self._truncate(after)
                self._guard.done()

    def _truncate(self, after: int) -> None:
        writer, listed = self._writer, self.known()
        kept = [each for each in listed if each.ref.first <= after]
        removed = [each.ref.number for each in listed[len(kept):]]
        cut = kept[-1] if kept and kept[-1].ref.last > after else None
        # Step (a).
        successor = self._begin_successor() if writer is None or len(writer.index) else writer
        if cut is not None:
            index = self.index_of(cut.ref.number)
            ended = stats_of(cut.ref.number, index.head(bisect_right(index.indexes, after)))
            assert ended is not None, "it begins at or below the cut"
            kept[-1] = attrs.evolve(ended, data_bytes=index.data_bytes)
        if writer is not None and writer is not successor:
            if cut is not None and cut.ref.number == writer.number:
                writer.flush()
                writer.cut_zeros()
            writer.abandon()
        # The list before the files: a read without the lock finds the files of all listed segments.
        self._show(_View.of(kept), [*removed, *([] if cut is None else [cut.ref.number])])
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
        self._empty_first()
        return True

    def _empty_first(self) -> None:
        try:
            empty_segment(self._disk, self.folder, 1, self._limits)
        except DiskFull:
            # Needs no room, and frees none. Perhaps only the sync of the new name was refused.
            cut_segment(self._disk, self.folder, 1, -1)
            self._disk.sync_folder(self.folder)

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
            self._show(_View.of(each for each in self._view.known if each.ref.number not in gone), gone)
            self.dropped.update(dict.fromkeys(numbers, (self._epoch, now)))

    def replace(self, members: Sequence[int], by: SegmentStats) -> None:
        """Put the segment that has the live entries of `members` in their place; its name leads to its new file.

        The caller holds the lock and has begun a change.
        """
        known = list(self._view.known)
        known[between(self._view.refs, members)] = [by]
        self._show(_View.of(known), members)

    def oldest_dropped(self) -> float | None:
        """The time of the oldest of these drops, in seconds since the epoch; `None` without any."""
        return min((since for _, since in self.dropped.values()), default=None)

    def remove_dropped(self) -> tuple[tuple[int, ...], int]:
        """Remove the files of dropped segments without a lease: their numbers, and the freed bytes.

        One call at a time. The next call retries what the disk refuses; the log stays open.
        """
        removed: list[int] = []
        freed = 0
        for number, (epoch, _) in list(self.dropped.items()):
            if self.is_leased(epoch):
                continue
            path = self._path_of(number)
            found = look_at(path)
            if found is not None:
                freed += found.st_size
                self._disk.unlink(path)
            del self.dropped[number]
            removed.append(number)
        return tuple(removed), freed

    # -- ending

    def audit(self) -> None:
        """Check that numbers and ranges ascend without overlap, and that `last_index` is the last segment's.

        Raises:
            AuditFailed: an invariant is broken; the message has the numbers.
        """
        with self._guard.lock:
            # The thread that held the lock may have left in the middle of a change.
            self._guard.require_open()
            refs = self.refs
            for older, newer in itertools.pairwise(refs):
                if older.number >= newer.number or older.last >= newer.first or older.first > older.last:
                    raise AuditFailed(f"segment references out of order: {older} before {newer}")
            if self.last_index != (refs[-1].last if refs else -1):
                raise AuditFailed(f"the last index is {self.last_index}, and the segments are {refs}")

    def retire(self) -> None:
        """Keep no file open from now on, since another object has a newer list; running reads keep theirs."""
        with self._lock:
            self._is_old = True
            self._open_files.closed(self, list(self.readers))

    def close(self) -> None:
        """Close all files without another write. Idempotent. No reader is opened later, also for an unfinished scan."""
        self._closed = True
        self.retire()
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
