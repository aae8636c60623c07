# SPDX-License-Identifier: Apache-2.0
"""`Log`: the log of an open store: its contents, its durable end, and every change, under one lock.

A record is written, synced if `durability="each"`, and then published in the open index. After a number of records, and
when the segment is full, the open index becomes a part of the segment's index. The index file is not synced: opening
rebuilds from the log the part that a crash loses.

Locks, in this order: the fence of a commit, `guard.lock`, the lock of a shared sync. Under `guard.lock` are synced: a
record if `durability="each"`, the active segment before a part of its index is written, a new segment (file, folder and
list), and the list when a compaction commits. The sync of a group of writers is under none.

After a failed sync a second sync proves nothing, so every later sync fails, too.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import attrs

from compactlib._steady_clock import SteadyClock
from compactlib.blobstore.config import BlobStoreConfig
from compactlib.blobstore.contents import LogContents, LogSegment
from compactlib.blobstore.erasure import STATE_FILE
from compactlib.blobstore.errors import BlobTooLarge, PlanDoesNotFit, StoreFull
from compactlib.blobstore.folder import part_records
from compactlib.blobstore.index import write_part
from compactlib.blobstore.names import (
    HALF_WRITTEN_SUFFIX,
    SegmentName,
    is_private,
    segment_of_index_file,
    segment_of_log_file,
)
from compactlib.blobstore.records import IndexEntry, RecordFlag, encode_head, encode_trailer
from compactlib.blobstore.segment import SEGMENT_HEADER_BYTES, Descriptor, Opened, OpenSegments, begin_segment
from compactlib.blobstore.segment_list import FILE_NAME as LIST_FILE, Layout, SegmentListFile, Step, lay_out
from compactlib.errors import StorageError
from compactlib.files.checksum import crc32
from compactlib.files.disk import Files, OutFile, list_folder, look_at
from compactlib.guard import Guard

_REPLACED_FILES = tuple(name + HALF_WRITTEN_SUFFIX for name in (LIST_FILE, STATE_FILE))
_SYNCED_BEFORE = int(RecordFlag.SYNCED_BEFORE)  # of `int`: `|` of an enumeration takes a microsecond
MAX_UNSYNCED_RECORDS = 1 << 16
"""How many records may be written without a sync; opening skips as many sequences, which a crash may have lost."""


@attrs.define(eq=False)
class Log:
    """Log and index of an open store. Readers use `contents` and `segments`; changes are made under `guard.lock`."""

    guard: Guard
    files: Files
    folder: str
    config: BlobStoreConfig
    clock: SteadyClock
    contents: LogContents  # the segments and their index. The last record of the active segment is durable at first.
    lists: SegmentListFile
    next_sequence: int
    _index_bytes: int  # bytes of the parts in the index file of the active segment
    descriptor: Descriptor = attrs.field(init=False)
    segments: OpenSegments = attrs.field(init=False)  # files open for reading
    # events under the lock; the store notifies its observer of them after the lock
    events: list[tuple[str, dict[str, Any]]] = attrs.field(factory=list, init=False)
    _active: SegmentName = attrs.field(init=False)
    _end: int = attrs.field(init=False)  # of the last record of the active segment
    _unsynced_records: int = attrs.field(default=0, init=False)
    _synced: tuple[SegmentName, int] = attrs.field(init=False)  # everything before is durable
    _synced_at: float = attrs.field(init=False)
    _sync_lock: threading.Lock = attrs.field(factory=threading.Lock, init=False)
    _sync_error: StorageError | None = attrs.field(default=None, init=False)
    _out: Opened = attrs.field(factory=Opened, init=False)

    def __attrs_post_init__(self) -> None:
        self.descriptor = self.lists.known.store
        self._active, self._end = self.contents.active.name, self.contents.active.end
        self._synced = self._active, self._end
        self._synced_at = self.clock.monotonic()
        self.segments = OpenSegments(self.folder, self.descriptor.header, self.config.max_open_segments)
        for kept in (self._out, self.segments):
            self.guard.keep(kept)
        path = os.path.join(self.folder, self._active.log_file)
        for _ in range(2):
            self._out.append(self.files.open(path))

    @property
    def free_segments(self) -> int:
        """How many more segments the log may have."""
        return max(self.descriptor.log_segments - len(self.contents.segments), 0)

    @property
    def is_synced(self) -> bool:
        """Whether every record written is durable."""
        return self._synced >= (self._active, self._end)

    def eligible(self) -> tuple[SegmentName, ...]:
        """Return the segments that may be compacted now."""
        return self.contents.eligible(self.config.journal_max_entries, self.descriptor.log_segments)

    def snapshot(self) -> LogContents:
        """Return a frozen view of log and index."""
        with self.guard.lock:
            self.guard.require_open()
            return self.contents.frozen()

    # -- appending, with the lock held

    def append(self, draft: IndexEntry, content: bytes) -> IndexEntry:
        """Write a record and publish it; with the lock held."""
        largest = self.descriptor.segment_bytes - SEGMENT_HEADER_BYTES
        if draft.size > largest:
            raise BlobTooLarge(f"a record of {draft.size} bytes does not fit into a segment, which has room for "
                               f"{largest}; split the blob", record_bytes=draft.size, limit_bytes=largest)
        if draft.size > self.descriptor.segment_bytes - self._end:
            self.roll(draft.size)
        if self._unsynced_records >= MAX_UNSYNCED_RECORDS:
            self.sync()
        flags = draft.flags | _SYNCED_BEFORE if self.is_synced else draft.flags
        entry = draft._replace(sequence=self.next_sequence, segment=self._active, offset=self._end, flags=flags)
        head, crc = encode_head(entry, self.descriptor.salt)
        pieces = (head, content, encode_trailer(crc32(content, crc)))
        self.guard.begin("a write")
        try:
            self._out[0].write_at(self._end, pieces)
        except StorageError:
            self._out[0].truncate(self._end)
            self.guard.undone()
            raise
        self._end += entry.size
        self._unsynced_records += 1
        self.next_sequence += 1
        if self.config.durability == "each" or (
                self.config.durability == "interval"
                and self.clock.monotonic() - self._synced_at >= self.config.sync_interval_seconds):
            # No reader sees a record whose write was reported as failed.
            self._sync()
        opened = self.contents.open
        opened.append(entry)
        self.guard.done()
        if len(opened.entries) >= part_records(self.descriptor.segment_bytes):
            # The record is written: a failure of the index is no failure of the append.
            with contextlib.suppress(StorageError):
                self.seal_index()
        return entry

    def seal_index(self) -> None:
        """Make the open index a part of the segment's index; does nothing to an empty one. With the lock held."""
        contents = self.contents
        if contents.open.end == contents.active.sealed_end:
            return
        self.sync()
        part = contents.open.sealed(contents.key)
        try:
            self._index_bytes = write_part(self.files, self.folder, part, contents.key, self._index_bytes)
        except StorageError as error:
            self.events.append(("blobstore_index_not_written", {
                "folder": self.folder, "index": f"{part.segment}:{part.start}", "error": str(error)}))
        self.contents = contents.sealed_open(part)

    def roll(self, wanted_bytes: int = 0) -> None:
        """Seal the active segment and begin the next one, durably; with the lock held."""
        if not self.free_segments:
            what = f"a record of {wanted_bytes:,} bytes" if wanted_bytes else "going on"
            raise StoreFull(operation="append", path=self.folder, errno=errno.EDQUOT, detail=(
                f"all {self.descriptor.capacity_bytes:,} bytes of the log's capacity are in segments, and {what} needs "
                f"another one"))
        self.lists.make_ready()
        self.seal_index()
        name = self._active.next_position
        contents = self.contents.with_next(name)
        self.guard.begin("the beginning of a segment")
        try:
            out = begin_segment(self.files, self.folder, self.descriptor.header(name, self.next_sequence))
        except StorageError:
            self.guard.undone()
            raise
        with self._sync_lock:
            before, self._out[:] = Opened(self._out), out
            self._active, self._end = name, SEGMENT_HEADER_BYTES
            self._synced = name, SEGMENT_HEADER_BYTES
        before.close()
        self.contents, self._index_bytes = contents, 0
        known = self.lists.known
        self.lists.write(attrs.evolve(known, segments=(*known.segments, name)))
        self.guard.done()

    def close_active(self) -> bool:
        """Seal the active segment and begin the next one, unless it has no records; return whether it had."""
        with self.guard.lock:
            self.guard.require_open()
            if has_records := bool(self.contents.active.records):
                self.roll()
            return has_records

    # -- durability

    def sync(self) -> None:
        """Make everything written durable."""
        with self.guard.lock:
            self.guard.require_open()
            if not self.is_synced:
                self.guard.begin("a sync")
                self._sync()
                self.guard.done()
            self._synced_at = self.clock.monotonic()

    def _sync(self) -> None:
        with self._sync_lock:
            self._sync_through(self._out[0], (self._active, self._end))
        self._unsynced_records = 0
        self._synced_at = self.clock.monotonic()

    def wait_for(self, entry: IndexEntry) -> None:
        """Wait until a record is durable, if `durability="group"`; without the lock. Waiting threads share one sync."""
        position = entry.segment, entry.end
        if self.config.durability != "group" or self._synced >= position:
            return
        try:
            with self._sync_lock:
                if self._synced < position:
                    self._sync_through(self._out[1], (self._active, self._end))
        except StorageError as error:
            self.guard.fail(error)
            raise

    def _sync_through(self, out: OutFile, reached: tuple[SegmentName, int]) -> None:
        if self._sync_error is not None:
            raise StorageError.from_os(OSError(self._sync_error.errno or 0, ""), "sync", self._sync_error.path)
        try:
            out.sync()
        except StorageError as error:
            self._sync_error = error
            raise
        self._synced = max(self._synced, reached)

    # -- changes by compactions and hard deletes

    def switch(self, step: Step, add: Sequence[LogSegment], last_full_ms: int | None = None) -> None:
        """Commit a step of a compaction, durably and atomically for readers; with the lock held. One sync.

        The outputs `add` and their names are durable. `last_full_ms` is the time, if the step ends a full round.
        """
        stray = sorted(set(step.sources).difference(self.eligible()))
        if stray:
            raise PlanDoesNotFit(f"segments {', '.join(map(str, stray))} may not be replaced any more; plan again")
        new = self.lists.known.with_step(step)
        contents = self.contents.with_segments(step.sources, add)
        self.guard.begin("the commit of a compaction")
        self.lists.write(new if last_full_ms is None else attrs.evolve(new, last_full_ms=last_full_ms))
        self.contents = contents
        self.guard.done()
        self.segments.forget(step.sources)

    def mark_erased(self, offsets: Mapping[SegmentName, Collection[int]]) -> None:
        """Mark the contents of records of sealed segments as erased in the index; with the lock held."""
        marked = [attrs.evolve(segment, parts=tuple(part.erased(offsets[segment.name]) for part in segment.parts))
                  for segment in self.contents.segments if segment.name in offsets]
        self.contents = self.contents.with_segments(offsets.keys(), marked)

    def remove_leftovers(self) -> tuple[list[str], int]:
        """Remove the leftovers of interrupted compactions; return their names and bytes. Not during a compaction."""
        return remove_names(self.files, self.folder, leftovers(list_folder(self.folder), self.layout()))

    def layout(self) -> Layout:
        """Return which segments of the folder are the log."""
        with self.guard.lock:  # no segment is begun between the two reads
            present = set(filter(None, map(segment_of_log_file, list_folder(self.folder))))
            return lay_out(self.folder, self.lists.known, present)

    # -- the end

    def end(self) -> None:
        """Sync the log and write the index, if the store is open."""
        with self.guard.lock:
            if self.guard.is_open:
                self.seal_index()


def leftovers(names: Sequence[str], layout: Layout) -> list[str]:
    """Return the names of leftover files in a folder; call it only while no compaction runs.

    The index of a lost segment is no leftover: it names the lost blobs.
    """
    gone, counted = set(layout.leftovers), {*layout.segments, *layout.lost}
    present = counted | set(filter(None, map(segment_of_log_file, names)))
    return [name for name in names if is_private(name) or name in _REPLACED_FILES or segment_of_log_file(name) in gone
            or ((indexed := segment_of_index_file(name)) is not None and (indexed in gone or indexed not in present))]


def remove_names(files: Files, folder: str, names: Iterable[str]) -> tuple[list[str], int]:
    """Remove files that exist, not durably; return their names and bytes."""
    removed, size = [], 0
    for name in names:
        path = os.path.join(folder, name)
        found = look_at(path)
        if found is None or stat.S_ISDIR(found.st_mode):
            continue
        try:
            files.unlink(path)
        except StorageError:
            # A copying attempt that still runs in another process may have removed its own file.
            if look_at(path) is not None:
                raise
        removed.append(name)
        size += found.st_size
    return removed, size


def remove_segments(files: Files, folder: str, segments: Iterable[SegmentName]) -> int:
    """Remove the files of segments, and return their bytes.

    The removal is durable after the next sync of the folder; until then the list names the step, so that opening
    removes files again that a crash restores.
    """
    return remove_names(files, folder, [name for each in segments for name in (each.log_file, each.index_file)])[1]
