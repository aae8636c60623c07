# SPDX-License-Identifier: Apache-2.0
"""The log of an open store: the contents that readers see, and the one place that changes them, under one lock.

A record is written (and synced, if writes are synced one by one), then published in the open index. When the open
index is full, or the active segment has no room, it is sealed; its file is written durably, but if the disk refuses
that, nothing is lost: opening the store makes it again from the log.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence

import attrs

from compactlib.blobstore.compaction.commit.publish import files_of, remove_file
from compactlib.blobstore.config import BlobStoreConfig
from compactlib.blobstore.errors import BlobTooLarge, PlanDoesNotFit, StoreFull
from compactlib.blobstore.index.index_file import write_index
from compactlib.blobstore.log.contents import LogContents, LogSegment, LogSnapshot
from compactlib.blobstore.log.journal import Journal
from compactlib.blobstore.log.load_log import SegmentLoader
from compactlib.blobstore.model.names import HALF_WRITTEN_SUFFIX, LogPosition, SegmentName, place_of_index_file
from compactlib.blobstore.model.values import IndexEntry, RecordFlag
from compactlib.blobstore.segment.descriptor import DESCRIPTOR_FILE, Descriptor
from compactlib.blobstore.segment.open_segments import OpenSegments
from compactlib.blobstore.segment.reader import SEGMENT_HEADER_BYTES, is_ordinary, salt_of
from compactlib.blobstore.segment.records import encode_head, encode_trailer
from compactlib.blobstore.segment.tail import LogWriter
from compactlib.clock import Clock
from compactlib.errors import AuditFailed, StorageError
from compactlib.files.checksum import crc32
from compactlib.files.disk import Files, list_folder, look_at
from compactlib.runtime.later import LaterObserver
from compactlib.runtime.owned_lock import OwnedLock

MAX_UNSYNCED_RECORDS = 1 << 16
"""How many records may be written without a sync; sequences that a crash may have lost are never given again."""


class LiveLog:
    """Log and index of an open store. Readers use `contents` and `segments`; every change is made under `lock`.

    Args:
        files: the disk.
        folder: the store's folder.
        config: how the store is kept.
        clock: where time comes from.
        observer: notified of index files that could not be written, when `deliver` is called on it.
        descriptor: what the store is.
        contents: what the folder holds.
        writer: at the end of the active segment.
        next_sequence: the number of the next record.

    Attributes:
        is_managed: whether a `CompactionManager` compacts the store.
    """

    def __init__(self, files: Files, folder: str, config: BlobStoreConfig, clock: Clock, observer: LaterObserver,
                 descriptor: Descriptor, contents: LogContents, writer: LogWriter, next_sequence: int) -> None:
        self._files = files
        self._folder = folder
        self._config = config
        self._clock = clock
        self.observer: LaterObserver = observer
        self._descriptor = descriptor
        self._salt = salt_of(descriptor.incarnation)
        self._next_sequence = next_sequence
        self._synced_at = clock.monotonic()
        self.contents: LogContents = contents
        self.writer: LogWriter = writer
        self.lock: OwnedLock = OwnedLock(f"the blob store in {folder}")
        self.segments: OpenSegments = OpenSegments(folder, descriptor.header, config.max_open_segments)
        self.journal: Journal = Journal(config.journal_max_entries, max(descriptor.log_segments // 4, 1))
        self.is_managed: bool = False
        self.going: dict[str, Callable[[IndexEntry], bool]] = {}
        held = sum(len(index) for index in contents.active.index) + len(contents.open)
        if held:
            self.journal.append(contents.active.name, held)

    @property
    def next_sequence(self) -> int:
        """The number of the next record."""
        return self._next_sequence

    # ------------------------------------------------------------------------------------------------ appending

    def append(self, draft: IndexEntry, content: bytes) -> IndexEntry:
        """Write a record whose content is at hand; under the lock.

        Raises:
            BlobTooLarge: it does not fit into an empty segment.
            StoreFull: no segment is left.
            StorageError: the disk refused; nothing was written.
        """
        entry = self._placed(draft)
        head, crc = encode_head(entry, self._salt)
        try:
            self.writer.write((head, content, encode_trailer(crc32(content, crc))))
            self._keep(entry)
        except BaseException:
            self._undo(entry)
            raise
        self._seal_if_full()
        return entry

    def _placed(self, draft: IndexEntry) -> IndexEntry:
        self.writer.check()
        largest = self._descriptor.segment_bytes - SEGMENT_HEADER_BYTES
        if draft.size > largest:
            raise BlobTooLarge(f"a record of {draft.size} bytes does not fit into a segment, which has room for "
                               f"{largest}; split the blob", record_bytes=draft.size, limit_bytes=largest)
        if draft.size > self.writer.room:
            self.roll(draft.size)
        if self.writer.unsynced_records >= MAX_UNSYNCED_RECORDS:
            self.writer.sync()
        flags = draft.flags | (RecordFlag.SYNCED_BEFORE if self.writer.all_synced else 0)
        return draft._replace(sequence=self._next_sequence, segment=self.writer.segment, offset=self.writer.end,
                              flags=int(flags))

    def _keep(self, entry: IndexEntry) -> None:
        """Make a record that was written count, and readers see it."""
        self.writer.keep(entry.size)
        # Given once, even if the sync fails: what a failed sync has left on the disk may be found there later.
        self._next_sequence += 1
        now = self._clock.monotonic()
        if self._config.durability == "each" or (self._config.durability == "interval"
                                                 and now - self._synced_at >= self._config.sync_interval_seconds):
            # No reader sees a record whose write was reported as failed.
            self.writer.sync()
            self._synced_at = now
        self.journal.append(entry.segment)
        self.contents.open.append(entry)

    def _undo(self, entry: IndexEntry) -> None:
        """Nothing is left of a record that was refused, or interrupted, however far it came."""
        self.writer.give_back(entry.offset)
        if not self.contents.open.ends_at(entry.offset):
            self._cut(entry.offset)

    def _seal_if_full(self) -> None:
        """The record is written: whatever sealing meets is no failure of it."""
        index = self.contents.open
        if len(index) < self._config.index_max_entries and index.file_bytes() < self._config.index_max_bytes:
            return
        try:
            self.seal_index()
        except StorageError as error:
            self.observer.event("blobstore_seal_failed", {"folder": self._folder, "error": str(error)})

    # -------------------------------------------------------------------------------------- sealing and switching

    def seal_index(self) -> None:
        """Make the open index a sealed one with a file, and begin another; does nothing to an empty one.

        Raises:
            StorageError: the log could not be synced. That the file could not be written is reported to the observer
                only.
        """
        contents = self.contents
        if not len(contents.open) and contents.open.end == contents.active.end:
            return
        self.writer.sync()
        index = contents.open.sealed(contents.key)
        try:
            write_index(self._files, self._folder, index, self._descriptor.incarnation)
        except StorageError as error:
            self.observer.event("blobstore_index_not_written", {"folder": self._folder, "index": str(index.place),
                                                                 "error": str(error)})
        self.contents = contents.sealed_open(index)

    def roll(self, wanted_bytes: int = 0) -> None:
        """Seal the active segment and go on in the next one.

        Raises:
            StoreFull: no segment is left.
            StorageError: the disk refused; the active segment stays.
        """
        free = self._descriptor.log_segments - len(self.contents.segments)
        if free <= 0:
            raise StoreFull(path=self._folder, capacity_bytes=self._descriptor.capacity_bytes,
                            wanted_bytes=wanted_bytes, gates=self._gates(), is_managed=self.is_managed)
        self.seal_index()
        contents, name = self.contents, self.writer.segment.next_position
        while look_at(path := os.path.join(self._folder, name.log_file)) is not None and not is_ordinary(path):
            # An unrelated link or folder has this name, and stays.
            name = name.next_position
        header, contents = self._descriptor.header(name, self._next_sequence), contents.with_segment(name)
        try:
            self.writer.roll(header)
        finally:
            # Also when an interrupt comes once the writer has gone on.
            if self.writer.header is header:
                self.contents = contents

    def _gates(self) -> str:
        """What keeps segments from being compacted, of what needs no look at the index."""
        config, segments = self._config, len(self.contents.segments)
        eligible = len(self.snapshot().eligible())
        return (f"{eligible} of {segments} segments may be compacted, {segments - 1 - eligible} are kept by the "
                f"journal (journal_max_entries={config.journal_max_entries}), deletes count after "
                f"deleted_retention_seconds={config.deleted_retention_seconds}, evicts={config.evicts}")

    def load(self, names: Sequence[SegmentName],
             index_starts: Mapping[SegmentName, Sequence[int]] | None = None) -> list[LogSegment]:
        """Sealed segments from the disk, for `swap` and `reload`; lists the folder unless told where their index files
        begin.

        Raises:
            CorruptData: one is damaged.
            StorageError: one cannot be read.
        """
        there = {segment: sorted(place.offset for place in map(place_of_index_file, found) if place is not None)
                 for segment, found in files_of(self._folder, names).items()} if index_starts is None else {
            name: [start for start in index_starts.get(name, ())
                   if look_at(os.path.join(self._folder, name.index_file(start))) is not None] for name in names}
        loader = SegmentLoader(self._files, self._folder, self._descriptor, self._config.index_max_entries, there)
        loaded = list(map(loader.load_sealed, names))
        for segment in loaded:
            for error in segment.report.damage:
                raise error
        return [segment.segment for segment in loaded]

    def swap(self, remove: Sequence[SegmentName], add: Sequence[LogSegment]) -> None:
        """See `swap.CompactableStore.swap_segments`; under the lock.

        Raises:
            PlanDoesNotFit: the segments do not fit the log as it is.
        """
        snapshot = self.snapshot()
        stray = [str(name) for name in remove if not snapshot.is_eligible(name)]
        if stray or not remove:
            raise PlanDoesNotFit(f"segments {', '.join(stray)} cannot be removed: eligible are "
                                 f"{', '.join(map(str, snapshot.eligible())) or 'none'}; plan again")
        generations = {name.position: name.generation for name in remove}
        for segment in add:
            if segment.name.generation <= generations.get(segment.name.position, segment.name.generation):
                raise PlanDoesNotFit(f"segment {segment.name} takes no position of the removed ones, or does not "
                                     f"have a higher generation; plan again")
        if len({segment.name.position for segment in add}) < len(add):
            raise PlanDoesNotFit("two of the new segments take one position; plan again")
        self.contents = self.contents.replaced(remove, add)
        self.segments.forget(remove)

    def reload(self, name: SegmentName, loaded: LogSegment) -> None:
        """Take over the index of a sealed segment anew; under the lock."""
        if self.contents.segment(name) is None or name == self.contents.active.name:
            raise PlanDoesNotFit(f"segment {name} is not a sealed segment of this store; plan again")
        self.contents = self.contents.replaced([name], [loaded])

    def has(self, name: SegmentName) -> bool:
        """Whether a segment is in the log now. O(log n)."""
        return self.contents.segment(name) is not None

    def is_going(self, put: IndexEntry) -> bool:
        """Whether the content of a PUT is about to go; under the lock."""
        return any(is_going(put) for is_going in self.going.values())

    def snapshot(self) -> LogSnapshot:
        """A frozen look at log and index."""
        with self.lock:
            return self.contents.snapshot(self.journal.floor, self._descriptor.segment_bytes)

    # -------------------------------------------------------------------------------------------- durability, end

    def wait_for(self, entry: IndexEntry) -> None:
        """Return when a record is durable, if the configuration wants that; not under the lock.

        Raises:
            StorageError: the disk refused; the record, and all others that wait for the same, are taken back.
        """
        if self._config.durability != "group":
            return
        try:
            self.writer.sync_to(LogPosition(entry.segment, entry.end))
        except StorageError:
            with self.lock:
                if self.writer.stopped is None:
                    # It was not the sync that was refused: no descriptor is left, say. This one is open.
                    with contextlib.suppress(StorageError):
                        self.writer.sync()
                if self.writer.synced >= (entry.segment, entry.end):
                    return
                self._take_back()
            raise

    def _take_back(self) -> None:
        """After a refused sync: records that were never acknowledged are there no more. Writing has stopped."""
        end = self.writer.synced.offset
        if self.contents.open.end > end:
            self.writer.give_back(end)
            self._cut(end)

    def _cut(self, end: int) -> None:
        self.contents = attrs.evolve(self.contents, open=self.contents.open.cut(end))

    def flush(self) -> None:
        """Make everything written durable."""
        with self.lock:
            self.writer.sync()
            self._synced_at = self._clock.monotonic()

    def close(self, *, is_mine: bool = True) -> None:
        """Seal the index and give up the files; in a fork of the process that has the store, only the latter.

        Raises:
            StorageError: the disk refused.
            WritesStopped: it did before, and there are records that are not durable.
        """
        try:
            if is_mine and self.writer.stopped is None:
                self.seal_index()
            elif is_mine and not self.writer.all_synced:
                # Whoever wrote them need not have been told: sealing an index is no part of any write.
                self.writer.check()
        finally:
            self.writer.close()
            if is_mine:
                # A fork's copies end with the fork: a thread that does not exist there may hold their lock.
                self.segments.close()

    def audit(self) -> None:
        """Check contents, writer and journal against each other.

        Raises:
            AuditFailed: they do not agree.
        """
        self.contents.audit()
        self.writer.audit()
        self.journal.audit()
        if self.writer.segment != self.contents.active.name or self.writer.end != self.contents.open.end:
            raise AuditFailed(f"the writer is at {self.writer.segment}:{self.writer.end}, the index at "
                                  f"{self.contents.open}")
        newest = max([segment.info.last_sequence for segment in self.contents.segments]
                     + [self.contents.open.last_sequence])
        if newest >= self._next_sequence:
            raise AuditFailed(f"record {newest} is in the log, and {self._next_sequence} would be given next")
        if len(self.contents.segments) > self._descriptor.log_segments:
            raise AuditFailed(f"{len(self.contents.segments)} segments in a log of {self._descriptor.log_segments}")


def remove_leftovers(files: Files, folder: str) -> None:
    """Unlink what an interrupted durable write of the store itself has left."""
    for file_name in list_folder(folder):
        written, suffix = os.path.splitext(file_name)
        if suffix == HALF_WRITTEN_SUFFIX and (written == DESCRIPTOR_FILE or place_of_index_file(written) is not None):
            remove_file(files, folder, file_name)
