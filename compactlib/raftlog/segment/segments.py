# SPDX-License-Identifier: Apache-2.0
"""The segments of a log that is open for writing: append, sync, truncate, drop, replace.

Entries are appended to the newest segment, which is sealed when it is full. A number is never used twice, and nothing
is appended to a file that was sealed once.

**Truncation** leaves no file with truncated entries, in three steps, each durable before the next:

(a) create the next segment, empty. It needs room; if there is none, nothing has changed;
(b) remove the segments that begin above the cut, newest first, so that a crash leaves a prefix of the log;
(c) end the segment with the cut by one more seal, with fewer entries.

After a crash between these steps an empty newest segment is behind an unsealed segment. Opening seals the latter, and
appends to the empty segment. Opening also syncs the last seal: a killed owner may have written it without a sync. A
store's WAL has the truncation, and opening the store repeats it; a log without a WAL is then a prefix of what it was.

Invariant: a truncation changes segments above the snapshot, a compaction segments at or below it, so that they never
change the same file.
"""

from __future__ import annotations

import contextlib
import os
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise

import attrs

from compactlib.clock import Clock
from compactlib.errors import AuditFailed, StorageError
from compactlib.files.disk import Files, look_at
from compactlib.guard import Guard
from compactlib.raftlog.model.names import segment_name
from compactlib.raftlog.model.snapshot_meta import SnapshotMeta
from compactlib.raftlog.model.values import MAX_INDEX, Entry, SegmentLimits, SegmentRef, entry_of
from compactlib.raftlog.segment.index import SegmentIndex
from compactlib.raftlog.segment.reader import SegmentReader
from compactlib.raftlog.segment.segment_list import KnownSegment, OpenFiles, SegmentList, _View, between, read_folder
from compactlib.raftlog.segment.writer import SegmentWriter, cut_segment

_BEYOND = MAX_INDEX + 1


@attrs.frozen
class _Dropped:
    """A dropped segment whose file exists.

    Attributes:
        number: of the segment.
        epoch: of the list without it.
        since: time of the drop, in seconds since the epoch.
    """

    number: int
    epoch: int
    since: float


class Segments(SegmentList):
    """The segments of a log, with the active segment. Changes take the lock of `guard`.

    A failed change closes the log, unless its method says otherwise. Reads of older segments take no lock.

    Args:
        files: the disk.
        folder: the log's folder, locked by this process, without a running compaction.
        limits: of new segments.
        guard: of the log.
        row: the snapshot in force.
        open_files: bounds the open readers.

    Attributes:
        torn_entries: count of entries that the opening has cut off at the end.
    """

    def __init__(self, files: Files, folder: str, limits: SegmentLimits, guard: Guard, row: SnapshotMeta | None, *,
                 open_files: OpenFiles) -> None:
        found = read_folder(folder, row)
        super().__init__(folder, found.known, row, open_files=open_files)
        self._files = files
        self._limits = limits
        self._guard = guard
        self._writer: SegmentWriter | None = None
        # Reads the file of the active segment with the index of its writer.
        self._newest_reader: SegmentReader | None = None
        # The next segment, created for a truncation that was not executed.
        self._successor: SegmentWriter | None = None
        # The first index of the active segment.
        self._newest_first = _BEYOND
        self._last = found.known[-1].ref.last if found.known else -1
        self._newest = found.number
        self._dropped: list[_Dropped] = []
        self.torn_entries: int = 0
        guard.keep(self)
        if found.unsealed is not None:
            with self._reopened(found.unsealed) as writer:
                writer.seal()
        self._begin(found.newest)
        for leader in set(found.inside.values()):
            # No file is removed if its merged segment is damaged.
            for damage in self.reader(leader).damaged_entries():
                raise damage
        self._drop([*found.empty, *found.inside], 0.0)

    def _begin(self, newest: SegmentReader | None) -> None:
        """Continue the newest segment that was found, or begin the first."""
        refs = self._view.refs
        if newest is None:
            self._use(self._create(1))
        elif not newest.loaded.seal.sealed:
            self._use(self._reopened(self._newest))
        if refs and self._known_newest() is None:
            # The process that wrote the last seal, or cut that segment, may have been killed before it synced it.
            with contextlib.closing(self._files.open(os.path.join(self.folder, segment_name(refs[-1].number)))) as out:
                out.sync()

    def _reopened(self, number: int) -> SegmentWriter:
        writer = SegmentWriter.open(self._files, self.folder, number)
        self.torn_entries += writer.torn_records
        return writer

    # -- appending

    @property
    def newest_number(self) -> int:
        """The highest number of a segment."""
        return self._newest

    @property
    def last_index(self) -> int:
        """The highest index, -1 if there is none."""
        return self._last

    def append(self, index: int, term: int, payload: bytes) -> None:
        """Append a checked entry. At or below the last index, it truncates the log there first, durably.

        The caller holds the guard's lock.

        Raises:
            StorageError, Closed: the disk refused, or the log was closed.
        """
        guard = self._guard
        if index <= self._last:
            self.prepare_truncation()
        guard.begin("an append")
        if index <= self._last:
            self._truncate(index - 1)
        writer = self._writer
        if writer is None or writer.is_full:
            writer = self._roll()
        writer.append(index, term, payload)
        if index < self._newest_first:
            self._newest_first = index
        self._last = index
        guard.done()

    def append_run(self, first: int, term: int, payloads: Sequence[bytes]) -> None:
        """Append entries of consecutive indexes and one term, as `append`; a few calls for any number.

        Raises:
            StorageError, Closed: as `append`.
        """
        guard = self._guard
        with guard.lock:
            if first <= self._last:
                self.prepare_truncation()
            guard.begin("an append")
            if first <= self._last:
                self._truncate(first - 1)
            done = 0
            while done < len(payloads):
                writer = self._writer
                if writer is None or writer.is_full:
                    writer = self._roll()
                count = writer.append_run(first + done, term, payloads[done:] if done else payloads)
                self._newest_first = min(self._newest_first, first + done)
                done += count
                self._last = first + done - 1
            guard.done()

    def sync(self) -> None:
        """Make all appended entries durable: one fsync, none without new entries.

        Raises:
            StorageError, Closed: as `append`.
        """
        guard = self._guard
        with guard.lock:
            guard.begin("a sync")
            if self._writer is not None:
                self._writer.sync()
            guard.done()

    def end_segment(self) -> None:
        """Seal the active segment, and begin the next.

        Raises:
            StorageError, Closed: as `append`.
        """
        with self._guard.lock:
            self._guard.begin("the end of a segment")
            self._roll()
            self._guard.done()

    def take_back(self) -> None:
        """Truncate the active segment to the last sync, after a `StorageError`, and seal it. Needs no room.

        The next append begins another segment; a segment without a synced entry stays active.

        Raises:
            StorageError: the disk refused that too; the log is closed.
        """
        with self._guard.lock:
            writer = self._writer
            if writer is not None:
                known = KnownSegment.of(writer.number, writer.index.head(writer.synced_entries))
                # Before the file: no read finds truncated entries.
                self._writer = self._newest_reader = None
                self._show(_View.of([*self._view.known.values(), *([] if known is None else [known])]))
                self._newest_first, refs = _BEYOND, self._view.refs
                self._last = refs[-1].last if refs else -1
                writer.take_back()
                writer.abandon()
                if known is None:
                    # The empty file stays the active segment: a folder without a segment is no log.
                    self._use(SegmentWriter.open(self._files, self.folder, writer.number))
            self._guard.undone()

    def _roll(self) -> SegmentWriter:
        """Seal the active segment durably, and begin the next; an empty active segment stays."""
        writer = self._writer
        if writer is not None:
            known = KnownSegment.of(writer.number, writer.index)
            if known is None:
                return writer
            # Sealed durably before its successor has entries: only the last segment with entries may be torn.
            writer.seal()
            writer.close()
            self._writer = self._newest_reader = None
            # The list first: a read without the lock finds the entry in the list or in the active segment.
            self._show(_View.of([*self._view.known.values(), known]))
            self._newest_first = _BEYOND
        successor = self._begin_successor()
        self._use(successor)
        return successor

    def _begin_successor(self) -> SegmentWriter:
        if self._successor is None:
            self._successor = self._create(self._newest + 1)
        return self._successor

    def _create(self, number: int) -> SegmentWriter:
        if look_at(os.path.join(self.folder, segment_name(number))) is not None:
            # An earlier attempt has created it, and the disk refused only the last sync.
            self._files.sync_folder(self.folder)
            return SegmentWriter.open(self._files, self.folder, number)
        return SegmentWriter.create(self._files, self.folder, number, self._limits)

    def _use(self, writer: SegmentWriter) -> None:
        """Make `writer` the active segment."""
        self._writer, self._newest_reader, self._newest, self._successor = writer, None, writer.number, None
        index = writer.index
        self._newest_first = index.first if len(index) else _BEYOND
        older = self._view.known
        if writer.number in older:
            self._show(_View.of(each for each in older.values() if each.ref.number != writer.number), [writer.number])
        refs = self._view.refs
        self._last = index.last if len(index) else refs[-1].last if refs else -1

    # -- truncation

    def prepare_truncation(self) -> None:
        """Step (a), for a caller that records the truncation durably before it calls `truncate`.

        Raises:
            StorageError: the disk is full; nothing has changed, and the log stays open.
            Closed: as `append`.
        """
        with self._guard.lock:
            self._guard.begin("a truncation")
            try:
                if self._writer is None or len(self._writer.index):
                    self._begin_successor()
            except StorageError:
                self._guard.undone()
                raise
            self._guard.done()

    def truncate(self, after: int) -> None:
        """Truncate every entry above `after`; durable when this returns, and no file has them.

        Raises:
            StorageError, Closed: as `append`; opening the log finds a prefix of it that ends at `after` or above.
        """
        with self._guard.lock:
            self._guard.begin("a truncation")
            if after < self._last:
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
            ended = KnownSegment.of(cut.ref.number, index.head(bisect_right(index.columns.indexes, after)))
            assert ended is not None, "it begins at or below the cut"
            kept[-1] = attrs.evolve(ended, data_bytes=index.data_bytes)
        if writer is not None and writer is not successor:
            if cut is not None and cut.ref.number == writer.number:
                writer.flush()
            writer.abandon()
        # The list before the files: a read without the lock finds the files of all listed segments.
        self._show(_View.of(kept), [*removed, *([] if cut is None else [cut.ref.number])])
        self._use(successor)
        # Step (b).
        for number in reversed(removed):
            self._files.unlink(os.path.join(self.folder, segment_name(number)))
            self._files.sync_folder(self.folder)
        # Step (c).
        if cut is not None:
            cut_segment(self._files, self.folder, cut.ref.number, after)

    # -- reads

    @property
    def refs(self) -> tuple[SegmentRef, ...]:
        """The references, oldest first."""
        with self._guard.lock:
            newest = self._known_newest()
            return self._view.refs if newest is None else (*self._view.refs, newest.ref)

    def known(self) -> tuple[KnownSegment, ...]:
        with self._guard.lock:
            newest = self._known_newest()
            return super().known() if newest is None else (*super().known(), newest)

    def known_of(self, number: int) -> KnownSegment | None:
        if number != self._newest:
            return super().known_of(number)
        with self._guard.lock:
            newest = self._known_newest()
            return newest if newest is not None and newest.ref.number == number else super().known_of(number)

    def _known_newest(self) -> KnownSegment | None:
        """The facts of the active segment; `None` if it is empty or there is none."""
        writer = self._writer
        return None if writer is None else KnownSegment.of(writer.number, writer.index)

    def read(self, index: int) -> Entry | None:
        if index < self._newest_first:
            # As `SegmentList.read`, inlined: the path of every random read.
            view = self._view
            place = bisect_right(view.firsts, index) - 1
            if place < 0 or view.refs[place].last < index:
                return None
            number = view.refs[place].number
            reader = self.readers.get(number)
            return (self.reader(number) if reader is None else reader).read(index)
        with self._guard.lock:
            self._guard.require_open()
            writer = self._writer
            if index < self._newest_first or writer is None:
                # Another thread has begun a new segment before this thread had the lock.
                return super().read(index)
            position = writer.index.find(index)
            if position < 0:
                return None
            payload = writer.unflushed(position)
            if payload is not None:
                return entry_of((index, writer.index.columns.terms[position], payload))
            return self._reader_of(writer).read(index)

    def _reader_of(self, writer: SegmentWriter) -> SegmentReader:
        if self._newest_reader is None:
            self._newest_reader = SegmentReader.following(writer.path, writer.index)
        return self._newest_reader

    def index_of(self, number: int) -> SegmentIndex:
        if number == self._newest:
            with self._guard.lock:
                if self._writer is not None and self._writer.number == number:
                    return self._writer.index
        return super().index_of(number)

    def reader(self, number: int) -> SegmentReader:
        if number != self._newest:
            return super().reader(number)
        with self._guard.lock:
            writer = self._writer
            if writer is None or writer.number != number:
                return super().reader(number)
            self._guard.begin("a flush")
            writer.flush()
            self._guard.done()
            return self._reader_of(writer)

    @property
    def last_term(self) -> int | None:
        """The term of the active segment's last entry, `None` if it is empty."""
        if self._writer is None or not len(self._writer.index):
            return None
        return self._writer.index.columns.terms[-1]

    @property
    def durability(self) -> tuple[int, int]:
        """The last index that is certainly durable, -1 without any; and the count of entries that are not."""
        with self._guard.lock:
            writer, refs = self._writer, self._view.refs
            synced = 0 if writer is None else writer.synced_entries
            unsynced = 0 if writer is None else len(writer.index) - synced
            if writer is not None and synced:
                return writer.index.columns.indexes[synced - 1], unsynced
            return refs[-1].last if refs else -1, unsynced

    # -- compaction

    def drop(self, numbers: Sequence[int], clock: Clock) -> None:
        """Take segments out of the list; their files go with `remove_dropped`.

        Raises:
            Closed: as `append`.
        """
        with self._guard.lock:
            self._guard.begin("a drop")
            self._drop(numbers, clock.now())
            self._guard.done()

    def _drop(self, numbers: Sequence[int], now: float) -> None:
        gone = set(numbers)
        if gone:
            self._show(_View.of(each for each in self._view.known.values() if each.ref.number not in gone), gone)
            self._dropped += [_Dropped(number, self._epoch, now) for number in numbers]

    def replace(self, members: Sequence[int], by: KnownSegment) -> int:
        """Put the segment that holds what is live in `members` in their place; its name leads to its new file already.

        The caller holds the lock and has begun a change. Returns the number of the change, for `is_leased`.
        """
        known = list(self._view.known.values())
        known[between(self._view.refs, members)] = [by]
        self._show(_View.of(known), members)
        return self._epoch

    @property
    def dropped(self) -> frozenset[int]:
        """Segments that are not listed any more, and whose files are still there."""
        return frozenset(each.number for each in self._dropped)

    def oldest_dropped(self) -> float | None:
        """Since when the oldest of them waits, in seconds since the epoch."""
        return min((each.since for each in self._dropped), default=None)

    def remove_dropped(self) -> tuple[tuple[int, ...], int]:
        """Remove the files of dropped segments that no lease holds: their numbers, and the bytes given back.

        One call at a time.

        Raises:
            StorageError: the disk refused; what is left is tried again by the next call.
        """
        removed: list[int] = []
        freed = 0
        for each in list(self._dropped):
            if self.is_leased(each.epoch):
                continue
            path = os.path.join(self.folder, segment_name(each.number))
            found = look_at(path)
            if found is not None:
                freed += found.st_size
                self._files.unlink(path)
            self._dropped.remove(each)
            removed.append(each.number)
        return tuple(removed), freed

    # -- ending

    def audit(self) -> None:
        """Check that numbers and ranges ascend without overlap, and that `last_index` is the last segment's.

        Raises:
            AuditFailed: an invariant is broken; the message has the numbers.
        """
        with self._guard.lock:
            refs = self.refs
            for older, newer in pairwise(refs):
                if older.number >= newer.number or older.last >= newer.first or older.first > older.last:
                    raise AuditFailed(f"segment references out of order: {older} before {newer}")
            if self._last != (refs[-1].last if refs else -1):
                raise AuditFailed(f"the last index is {self._last}, and the segments are {refs}")

    def close(self) -> None:
        """Close all files without another write. Idempotent."""
        super().close()
        writers = [each for each in (self._writer, self._successor) if each is not None]
        self._newest_reader = None
        for writer in writers:
            writer.abandon()

    def end(self) -> None:
        """Sync, and close the log; does nothing in a closed log.

        Raises:
            StorageError: the disk refused.
        """
        with self._guard.lock:
            if self._guard.is_open and self._writer is not None:
                self._guard.begin("a close")
                self._writer.close()
                self._guard.done()
            self._guard.close()
