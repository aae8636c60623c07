"""The newest segment of a log that is open for writing: appending, rolling over, and reading what was just written."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from compactlib.files import Files
from compactlib.raftlog.model import Entry, SegmentLimits, SegmentRef
from compactlib.raftlog.names import segment_name
from compactlib.raftlog.segment import SegmentReader
from compactlib.raftlog.segment_set import KnownSegment
from compactlib.raftlog.writer import SegmentWriter

if TYPE_CHECKING:
    from typing_extensions import Buffer


class NewestSegment:
    """Appends to the newest segment and starts the next one when it is full. Not for several threads at once.

    After the disk has refused something, what was not synced is lost; the segment is opened again from the disk by
    the next call, so that the log goes on with what is really there.

    Args:
        files: the disk.
        folder: the log's folder.
        limits: for segments to be created.
        number: of the newest segment there is, 0 if there is none.
        resume: whether that one can be appended to.
    """

    def __init__(self, files: Files, folder: str, limits: SegmentLimits, *, number: int, resume: bool) -> None:
        self._files = files
        self._folder = folder
        self._limits = limits
        self._number = number
        self._reader: SegmentReader | None = None
        self._writer: SegmentWriter | None = None
        if resume:
            self._use(SegmentWriter.open(files, folder, number))

    @property
    def number(self) -> int:
        """The newest segment's number."""
        return self._number

    @property
    def path(self) -> str:
        """The newest segment's file."""
        return os.path.join(self._folder, segment_name(self._number))

    @property
    def torn_entries(self) -> int:
        """Entries that were cut off when the segment was opened."""
        torn = None if self._writer is None else self._writer.torn_tail
        return 0 if torn is None else torn.records

    def create_first(self) -> None:
        """Create the first segment of a new log, durably.

        Raises:
            StorageError: the disk refused; there is no log then.
        """
        self._begin_next()

    def append(self, index: int, term: int, payload: Buffer) -> KnownSegment | None:
        """Append one entry; returns the segment that it ended if it began the next one.

        Raises:
            StorageError: the disk refused; entries that were not synced are lost, see `recover`.
            InvalidInput: see `SegmentWriter.append`.
        """
        writer = self._writer
        ended = None
        if writer is None or writer.is_full:
            ended = self.known()
            writer = self._begin_next()
        writer.append(index, term, payload)
        return ended

    def _begin_next(self) -> SegmentWriter:
        if self._writer is not None:
            # Sealed durably before its successor exists: a segment that is not the newest is never torn.
            self._writer.seal()
            self._writer.close()
            self._writer = None
        writer = SegmentWriter.create(self._files, self._folder, self._number + 1, self._limits)
        self._number += 1
        self._use(writer)
        return writer

    def _use(self, writer: SegmentWriter) -> None:
        self._writer = writer
        self._reader = SegmentReader.following(writer.path, writer.index)

    def sync(self) -> None:
        """Make every entry durable.

        Raises:
            StorageError: the disk refused; entries that were not synced are lost, see `recover`.
        """
        if self._writer is not None:
            self._writer.sync()

    def flush(self) -> None:
        """Hand every entry to the operating system, so that other readers of the file see it."""
        if self._writer is not None:
            self._writer.flush()

    def recover(self) -> None:
        """After a `StorageError`: give up the writer and go on from what the disk holds.

        Raises:
            StorageError: not even that is possible now; call again.
        """
        if self._writer is not None:
            writer, self._writer = self._writer, None
            self._reader = None
            try:
                writer.abandon()
            finally:
                self._use(SegmentWriter.open(self._files, self._folder, self._number))

    def read(self, index: int) -> Entry | None:
        """The entry of `index` if this segment holds it.

        Raises:
            CorruptData: it is damaged.
        """
        if self._writer is None or self._reader is None:
            return None
        self._writer.flush()
        return self._reader.read(index)

    def known(self) -> KnownSegment | None:
        """What the segment holds now, `None` if nothing (or if it takes no more entries)."""
        if self._writer is None or not len(self._writer.index):
            return None
        index = self._writer.index
        ref = SegmentRef(self._number, index.first, index.last)
        return KnownSegment(ref, index.entries, index.data_bytes, "native")

    def close(self) -> None:
        """Sync and give up the files.

        Raises:
            StorageError: the disk refused the last sync.
        """
        if self._writer is not None:
            self._writer.close()
