# SPDX-License-Identifier: Apache-2.0
"""`LogWriter`: the end of the active segment, its durable end, and the syncs that threads share."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from compactlib.blobstore.names import SegmentName
from compactlib.blobstore.segment import SEGMENT_HEADER_BYTES, SegmentHeader, create_segment
from compactlib.errors import StorageError
from compactlib.files.disk import Files, OutFile, look_at

if TYPE_CHECKING:
    from typing_extensions import Buffer

Place: TypeAlias = tuple[SegmentName, int]
"""A segment, and an offset in it."""


class LogWriter:
    """Writes records at the end of the active segment. All but `sync_to` is called under the store's lock.

    After a failed sync a second sync proves nothing, so every later sync fails, too.

    Args:
        files: the disk.
        folder: the store's folder.
        header: the header of the active segment; its file exists.
        end: the offset after its last record; all records are durable.

    Attributes:
        header: the header of the active segment.
        end: the offset after its last record.
        unsynced_records: the number of records since the last sync.
    """

    def __init__(self, files: Files, folder: str, header: SegmentHeader, end: int) -> None:
        self._files = files
        self._folder = folder
        self.header: SegmentHeader = header
        self.end: int = end
        self.unsynced_records: int = 0
        self._synced = (header.name, end)
        self._sync_lock = threading.Lock()
        self._failed: StorageError | None = None
        path = os.path.join(folder, header.name.log_file)
        self._out = files.open(path)
        self._synced_through: OutFile = files.open(path)  # synced by waiting threads while another thread writes

    @property
    def segment(self) -> SegmentName:
        """The active segment."""
        return self.header.name

    @property
    def room(self) -> int:
        """The bytes that fit into the active segment."""
        return self.header.capacity_bytes - self.end

    @property
    def is_synced(self) -> bool:
        """Whether every record written is durable."""
        return self._synced >= (self.header.name, self.end)

    def is_durable(self, position: Place) -> bool:
        """Whether everything before a position is durable."""
        return self._synced >= position

    def write(self, pieces: Sequence[Buffer]) -> None:
        """Write at the end; the bytes do not count before `keep`."""
        self._out.write_at(self.end, pieces)

    def take_back(self) -> None:
        """Truncate the bytes of a failed `write`."""
        self._out.truncate(self.end)

    def keep(self, size: int) -> None:
        """Count the `size` bytes at the end as a record."""
        self.end += size
        self.unsynced_records += 1

    def sync(self) -> None:
        """Make everything written durable."""
        if self.is_synced:
            return
        with self._sync_lock:
            self._sync(self._out, (self.header.name, self.end))
        self.unsynced_records = 0

    def sync_to(self, position: Place) -> None:
        """Make everything before `position` durable. Threads may call it concurrently: they share one sync."""
        with self._sync_lock:
            if self._synced < position:
                self._sync(self._synced_through, (self.header.name, self.end))

    def _sync(self, out: OutFile, reached: Place) -> None:
        if self._failed is not None:
            raise StorageError.from_os(OSError(self._failed.errno or 0, ""), "sync", self._failed.path)
        try:
            out.sync()
        except StorageError as error:
            self._failed = error
            raise
        self._synced = max(self._synced, reached)

    def roll(self, header: SegmentHeader) -> None:
        """Begin a new segment, durably. The active segment has to be synced."""
        path = os.path.join(self._folder, header.name.log_file)
        if look_at(path) is not None:
            # A leftover of a failed attempt, without records.
            self._files.unlink(path)
        opened: list[OutFile] = []
        try:
            opened.append(create_segment(self._files, path, header))
            opened[0].sync()
            opened.append(self._files.open(path))
            self._files.sync_folder(self._folder)
        except BaseException:
            for each in opened:
                each.close()
            with contextlib.suppress(StorageError):
                self._files.unlink(path)
            raise
        with self._sync_lock:
            before = self._out, self._synced_through
            self._out, self._synced_through = opened
            self.header, self.end = header, SEGMENT_HEADER_BYTES
            self._synced = (header.name, self.end)
        for each in before:
            each.close()

    def close(self) -> None:
        """Close the files, without a sync; closing again does nothing."""
        self._out.close()
        self._synced_through.close()
