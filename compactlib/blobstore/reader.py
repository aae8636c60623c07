# SPDX-License-Identifier: Apache-2.0
"""`BlobReader`: reading a store's folder, from any process, while its owner writes and compacts.

A read sees one moment: every record that was completely written by then, and each step of a compaction completely or
not at all. A folder after a crash is read in the state in which opening would leave it: `lay_out` decides which
segments count, a torn tail is left out, contents that were being overwritten count as erased, and missing parts of the
index are rebuilt in memory.
"""

from __future__ import annotations

import errno
import os
import threading
import zlib
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import NamedTuple

import attrs

from compactlib.blobstore.blobs import content_of
from compactlib.blobstore.config import BlobStoreConfig
from compactlib.blobstore.contents import LogContents, LogSegment
from compactlib.blobstore.errors import NotAStore
from compactlib.blobstore.folder import LoadedSegment, load_segment, load_store, read_folder
from compactlib.blobstore.log import leftovers
from compactlib.blobstore.names import FIRST_SEGMENT, UNPUBLISHED_SUFFIX, SegmentName
from compactlib.blobstore.reading import Reading
from compactlib.blobstore.records import IndexEntry, RecordFlag, RecordKind, milliseconds
from compactlib.blobstore.report import BlobStoreStatus
from compactlib.blobstore.segment import Descriptor, OpenSegments, SegmentFile
from compactlib.blobstore.segment_list import Layout, lay_out, read_list
from compactlib.blobstore.statistics import all_lifetimes, view_of
from compactlib.blobstore.validity import never
from compactlib.blobstore.view import BlobPolicy, BlobView
from compactlib.budget import Budget
from compactlib.clock import Clock, SystemClock
from compactlib.errors import Busy, Closed, CorruptData, Stale, StorageError
from compactlib.files.disk import LocalFiles, StrPath, list_folder, local_path
from compactlib.observer import Observers

_TRIES = 100
"""How often a read is repeated because a compaction has switched files."""
_CERTAIN_AFTER = 10
"""The number of tries after which a missing segment counts as lost, not as just removed."""


@attrs.frozen(eq=False)
class _Seen:
    """The result of one read of the folder."""

    contents: LogContents  # its log and index
    damage: tuple[CorruptData, ...]
    layout: Layout  # which segments count
    loaded: Mapping[SegmentName, LoadedSegment]  # its segments, for the next read

    @property
    def descriptor(self) -> Descriptor:
        """The store's descriptor."""
        return self.layout.list.store


class BlobReader(Reading):
    """A store's folder, open for reading. It takes no lock and changes nothing on the disk, not even a torn tail, while
    another process may write and compact. Threads may share a reader.

    A reader sees the store as of its last read: every record that was completely written, synced or not. `refresh`
    reads again. A segment that a compaction has removed can be read while its file is open here; otherwise the reader
    refreshes itself.

    Args:
        folder: the store's folder.
        config: the owner's settings: plans and views use its retention, its `max_blob_bytes` and so on. Capacities
            are read from the disk.
        policy: chooses for `plan`; default `StatsBased()`.
        clock: the source of time: decides which blobs have expired.
        name: the store's name in plans; default the folder's name, which is the owner's default, too.

    Raises:
        NotAStore: the folder holds no store.
        Busy: compactions switched files in each of 100 attempts to read.
        CorruptData: neither the list nor a segment identifies the store, its segments are missing, or there are
            two generations of a segment and no list says which counts. A store with other damage opens: see `damage`.
        Unsupported: a later release wrote it.
        StorageError: it cannot be read.
    """

    def __init__(self, folder: StrPath, config: BlobStoreConfig | None = None, *, policy: BlobPolicy | None = None,
                 clock: Clock | None = None, name: str | None = None) -> None:
        path = local_path(folder)
        self._refreshing = threading.Lock()
        self._closed = False
        self._last_seen = _read_store(path, None)
        config, found = BlobStoreConfig() if config is None else config, self._last_seen.descriptor
        super().__init__(path, name, config, policy, LocalFiles(), SystemClock() if clock is None else clock, found,
                         OpenSegments(path, found.header, config.max_open_segments), Observers())

    @property
    def damage(self) -> tuple[CorruptData, ...]:
        """The damage found when the folder was read; everything else is readable."""
        return self._last_seen.damage

    def snapshot(self) -> LogContents:
        """Return log and index as of the last read."""
        return self._seen().contents

    def refresh(self) -> None:
        """Read the folder again; segments whose files have not changed are reused.

        Raises:
            CorruptData: the folder holds another store now.
            NotAStore, Busy, CorruptData, Unsupported, StorageError: as for a new reader.
        """
        with self._refreshing:
            before = self._seen()
            after = _read_store(self.folder, before)
            if after.descriptor.incarnation != before.descriptor.incarnation:
                raise CorruptData(path=self.folder, offset=0, expected=f"store {before.descriptor.incarnation.hex()}",
                                  found=f"{after.descriptor.incarnation.hex()}, another store; open a reader of it")
            self._last_seen = after
        self._segments.forget(before.loaded.keys() - after.loaded.keys())

    def records(self, *, reference_time: float, now: float) -> list[SegmentRecords]:
        """Return all records of the store, dead records included, by segment, oldest first.

        Contents are read later, by `SegmentRecords.read`. A few microseconds and some 60 bytes of memory a record.

        Args:
            reference_time: deletes made strictly before it are in effect; seconds since the epoch.
            now: blobs that expire strictly before it have expired; seconds since the epoch.
        """
        seen = self._seen()
        reference_ms, now_ms = milliseconds(reference_time), milliseconds(now)
        kept: dict[SegmentName, set[int]] = {segment.name: set() for segment in seen.contents.segments}
        for life in all_lifetimes(seen.contents, None, Budget()):
            if life.is_kept(reference_ms, now_ms):
                kept[life.segment].add(life.offset)
        return [SegmentRecords(
                    folder=self.folder, name=segment.name, count=segment.records, size_bytes=segment.end,
                    descriptor=seen.descriptor, kept=zlib.compress(bytes(
                        entry.offset in kept[segment.name] for entry in segment.entries()), 1))
                for segment in seen.contents.segments if segment.records and not segment.is_lost]

    def status(self) -> BlobStoreStatus:
        """Return the counters of the store as of the last read."""
        return BlobStoreStatus.of(self.name, self._descriptor, self._contents())

    def close(self) -> None:
        """Close all files; closing again does nothing."""
        self._closed = True
        self._segments.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{len(self._last_seen.contents.segments)} segments"
        return f"<BlobReader of {self.folder!r}: {state}>"

    def _seen(self) -> _Seen:
        if self._closed:
            raise Closed(f"the reader of the blob store in {self.folder} is closed; open another one")
        return self._last_seen

    def _contents(self) -> LogContents:
        return self._seen().contents

    def _newest(self) -> LogContents:
        self.refresh()
        return self._contents()

    def _view_for(self, policy: BlobPolicy, budget: Budget) -> BlobView:
        seen = self._seen()
        budget.check()
        return view_of(seen.contents, seen.layout.list, self.config, policy, name=self.name, now=self.clock.now(),
                       eligible=seen.contents.eligible(0, seen.descriptor.log_segments),
                       purge=never if self.config.purge_tombstones else None, budget=budget)

    def _out_of_order(self) -> tuple[list[CorruptData], list[str]]:
        # Files that the list does not name may be outputs of a running compaction.
        seen = self._seen()
        names = leftovers(list_folder(self.folder), seen.layout)
        is_compacting = any(name.endswith(UNPUBLISHED_SUFFIX) for name in names)
        return list(seen.damage), [] if is_compacting else names


def _read_store(folder: str, before: _Seen | None) -> _Seen:
    """Read the index of a store, and the part of its log that has no index. See `BlobReader` for the errors.

    The segments of an earlier read are reused unless their files have changed. The read is repeated if a compaction has
    switched files meanwhile. A segment counts as lost only if it is missing in several reads.
    """
    if not os.path.isdir(folder):
        raise NotAStore(f"{folder} is no folder; give the folder of a blob store")
    for number in range(_TRIES):
        found = read_folder(folder)
        if found.listed is None:
            raise NotAStore(f"{folder} holds no blob store: no list of segments, and no segment")
        layout = lay_out(folder, found.listed, found.present)
        if (layout.lost or layout.damage) and number < _CERTAIN_AFTER:
            continue
        descriptor = found.listed.store
        known = before.loaded if before is not None and before.descriptor == descriptor else {}
        try:
            loaded = load_store(folder, layout, known)
        except StorageError as error:
            if error.errno != errno.ENOENT or number == _TRIES - 1:
                raise
            continue
        after, _ = read_list(folder)
        if (None if after is None else after.step) != found.listed.step:
            continue
        segments = [each.segment for each in loaded] or [LogSegment(FIRST_SEGMENT)]
        contents = LogContents.of(descriptor.incarnation, segments,
                                  None if before is None else before.contents.directory)
        damage = (*found.damage, *layout.damage, *(error for each in loaded for error in each.damage))
        return _Seen(contents, damage, layout, {each.segment.name: each for each in loaded})
    raise Busy(f"compactions of the store in {folder} switched files {_TRIES} times while it was read; read it again")


_PUT = int(RecordKind.PUT)


class StoredRecord(NamedTuple):
    """A record as its segment holds it.

    Attributes:
        entry: its index entry: every field of the record but the content.
        valid: whether a compaction of the segment would keep it.
        payload: the content of a put; `None` if it is damaged, or with `payloads=False`.
        error: the damage of the record; `None` if it is whole.
    """

    entry: IndexEntry
    valid: bool
    payload: bytes | None
    error: CorruptData | None


@attrs.frozen(kw_only=True)
class SegmentRecords:
    """The records of one segment as a `BlobReader` saw them. Picklable: any process that sees the folder reads them.

    Attributes:
        folder: the store's folder, absolute.
        name: the segment's name.
        count: the number of records.
        size_bytes: the offset after the last record.
    """

    folder: str
    name: SegmentName
    count: int
    size_bytes: int
    _descriptor: Descriptor
    _kept: bytes = attrs.field(repr=False)

    def read(self, *, payloads: bool = True) -> Iterator[StoredRecord]:
        """Yield the records, ascending by offset; with `payloads`, each is checked against its CRC, by one
        `pread`.

        Raises:
            Stale: a compaction has removed the segment since the store was read.
            CorruptData: its last records are missing; the others were yielded.
            Unsupported, StorageError: the segment cannot be read.
        """
        path = os.path.join(self.folder, self.name.log_file)
        try:
            loaded = load_segment(self.folder, self.name, self._descriptor)
            file = SegmentFile(path, loaded.header)
        except StorageError as error:
            if error.errno != errno.ENOENT:
                raise
            raise Stale(f"segment {self.name} of {self.folder} was compacted away after this read was planned; load "
                        "the store again to see it as it is now") from error
        kept, count = zlib.decompress(self._kept), 0
        for entry in islice(loaded.segment.entries(), self.count):
            content: bytes | None = None
            damage: CorruptData | None = None
            if payloads:
                try:
                    content = content_of(file, entry, self._descriptor.salt, RecordFlag.ERASED)
                except CorruptData as found:
                    damage = found
            yield StoredRecord(entry, bool(kept[count]), content if entry.kind == _PUT else None, damage)
            count += 1
        if count < self.count:
            raise CorruptData(path=path, offset=self.size_bytes, expected=f"{self.count} records", found=f"{count}")
