# SPDX-License-Identifier: Apache-2.0
"""Appending to the active segment: what is written, what is durable, and what happens when the disk refuses."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from compactlib.blobstore.errors import WritesStopped
from compactlib.blobstore.model.names import LogPosition, SegmentName
from compactlib.blobstore.segment.reader import SEGMENT_HEADER_BYTES, SegmentHeader, create_segment
from compactlib.errors import AuditFailed, StorageError
from compactlib.files.disk import Files, OutFile, look_at

if TYPE_CHECKING:
    from typing_extensions import Buffer


class LogWriter:
    """Writes records at the end of the active segment. All but `sync_to` is called under the store's lock.

    Args:
        files: the disk.
        folder: the store's folder.
        header: of the active segment, whose file exists.
        end: the offset behind its last record, all durable.

    Attributes:
        header: of the active segment.
    """

    def __init__(self, files: Files, folder: str, header: SegmentHeader, end: int) -> None:
        self._files = files
        self._folder = folder
        self.header: SegmentHeader = header
        self._out = files.open(os.path.join(folder, header.name.log_file))
        self._end = end
        self._synced = LogPosition(header.name, end)
        self._sync_lock = threading.Lock()
        self.unsynced_records: int = 0
        self.stopped: StorageError | None = None

    @property
    def segment(self) -> SegmentName:
        """The active segment."""
        return self.header.name

    @property
    def end(self) -> int:
        """The offset behind its last record."""
        return self._end

    @property
    def room(self) -> int:
        """How many bytes still fit into the active segment."""
        return self.header.capacity_bytes - self._end

    @property
    def all_synced(self) -> bool:
        """Whether every record written is durable."""
        return self._synced >= (self.header.name, self._end)

    @property
    def synced(self) -> LogPosition:
        """Everything before it is durable."""
        return self._synced

    def check(self) -> None:
        """Refuse to write after the disk has once refused a sync.

        Raises:
            WritesStopped: it has.
        """
        if self.stopped is not None:
            raise WritesStopped(operation=self.stopped.operation, path=self.stopped.path,
                                errno=self.stopped.errno or 0) from self.stopped

    def write(self, pieces: Sequence[Buffer]) -> None:
        """Write behind the end; counts for nothing before `keep`.

        Raises:
            StorageError: the disk refused; call `give_back`.
        """
        self._out.write_at(self._end, pieces)

    def keep(self, size: int) -> None:
        """The `size` bytes behind the end are a record from now on."""
        self._end += size
        self.unsynced_records += 1

    def give_back(self, end: int) -> None:
        """Cut off what was written behind offset `end`, whose write or sync was refused or interrupted; if not even
        that works, writing stops.
        """
        with self._sync_lock:
            self._end = end
            # Another thread may have synced what is written over from now on.
            self._synced = min(self._synced, LogPosition(self.header.name, end))
        try:
            self._out.truncate(end)
        except StorageError as error:
            self.stopped = error

    def sync(self) -> None:
        """Make everything written durable.

        Raises:
            StorageError: the disk refused; what it holds is not known any more, so writing stops.
        """
        self.check()
        if self.all_synced:
            return
        with self._sync_lock:
            self._sync(self._out, LogPosition(self.header.name, self._end))
        self.unsynced_records = 0

    def sync_to(self, position: LogPosition) -> None:
        """Make everything before `position` durable. Threads may call it together: one sync serves all that wait.

        Raises:
            StorageError: the disk refused.
            WritesStopped: it has refused before.
        """
        with self._sync_lock:
            if self._synced >= position:
                return
            self.check()
            header, end = self.header, self._end
            # A descriptor of its own: the other one is being written through by another thread.
            with contextlib.closing(self._files.open(os.path.join(self._folder, header.name.log_file))) as own:
                self._sync(own, LogPosition(header.name, end))

    def _sync(self, out: OutFile, reached: LogPosition) -> None:
        try:
            out.sync()
        except StorageError as error:
            self.stopped = error
            raise
        self._synced = max(self._synced, reached)

    def roll(self, header: SegmentHeader) -> None:
        """Go on in a new segment. The active one has to be synced; the new one is durable when this returns.

        Raises:
            StorageError: the disk refused; the active segment stays the one it was.
        """
        path = os.path.join(self._folder, header.name.log_file)
        if look_at(path) is not None:
            # Left by an attempt that failed; nothing was written to it.
            self._files.unlink(path)
        out = create_segment(self._files, path, header)
        try:
            out.sync()
            self._files.sync_folder(self._folder)
        except BaseException:
            out.close()
            with contextlib.suppress(StorageError):
                self._files.unlink(path)
            raise
        with self._sync_lock:
            previous, self._out = self._out, out
            self.header = header
            self._end = SEGMENT_HEADER_BYTES
            self._synced = LogPosition(header.name, self._end)
        previous.close()

    def close(self) -> None:
        """Give up the file. Does not sync."""
        self._out.close()

    def audit(self) -> None:
        """Check the bounds.

        Raises:
            AuditFailed: more is said to be durable than was written, or the segment is over its capacity.
        """
        if self._synced > (self.header.name, self._end) or not (
                SEGMENT_HEADER_BYTES <= self._end <= self.header.capacity_bytes):
            raise AuditFailed(f"segment {self.header.name} ends at {self._end} of {self.header.capacity_bytes} "
                                  f"bytes, durable to {self._synced}")
