# SPDX-License-Identifier: Apache-2.0
"""The newest segment of a log that is open for writing: appending, rolling over, and reading what was just written."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from compactlib.files.disk import Files
from compactlib.raftlog.model.names import segment_name
from compactlib.raftlog.model.values import Entry, SegmentLimits, SegmentRef
from compactlib.raftlog.segment.known import KnownSegment, know_index
from compactlib.raftlog.segment.reader import SegmentReader
from compactlib.raftlog.segment.writer import SegmentWriter

if TYPE_CHECKING:
    from typing_extensions import Buffer


class NewestSegment:
    """Appends to the newest segment and starts the next one when it is full. Not for several threads at once.

    After a `StorageError` what was not synced is lost: call `recover` before anything else.

    Args:
        files: the disk.
        folder: the log's folder.
        limits: for segments to be created.
        number: of the newest segment there is, 0 if there is none.
        found: that segment, opened for reading; it is appended to unless it is sealed or not native.
    """

    def __init__(self, files: Files, folder: str, limits: SegmentLimits, *, number: int,
                 found: SegmentReader | None) -> None:
        self._files = files
        self._folder = folder
        self._limits = limits
        self._number = number
        self._reader: SegmentReader | None = None
        self._writer: SegmentWriter | None = None
        self._failed: SegmentWriter | None = None
        if found is not None and found.format == "native":
            if found.loaded.sealed:
                self._sync_seal()
            else:
                self._use(SegmentWriter.open(files, folder, number))

    def _sync_seal(self) -> None:
        # The process that wrote it may have ended before it was synced.
        out = self._files.open(self.path)
        try:
            out.sync()
        finally:
            out.close()

    @property
    def number(self) -> int:
        """The newest segment's number."""
        return self._number

    @property
    def path(self) -> str:
        """The newest segment's file."""
        return os.path.join(self._folder, segment_name(self._number))

    @property
    def takes_entries(self) -> bool:
        """Whether it is appended to: not if it is foreign, or a crash came between its seal and its successor."""
        return self._writer is not None

    @property
    def torn_entries(self) -> int:
        """Entries that were cut off when the segment was opened."""
        torn = None if self._writer is None else self._writer.torn_tail
        return 0 if torn is None else torn.records

    def make_room(self) -> KnownSegment | None:
        """Begin the next segment if this one takes no more entries; returns the one that this ended, if any.

        Raises:
            StorageError: the disk refused; entries that were not synced are lost, see `recover`.
        """
        if self._writer is not None and not self._writer.is_full:
            return None
        return self.begin_next()

    def begin_next(self) -> KnownSegment | None:
        """Begin the next segment, full or not, or the first; returns what this one holds, if anything.

        Raises:
            StorageError: as `make_room`.
        """
        ended = None
        if self._writer is not None:
            ended = know_index(self._number, self._writer.index, "native")
            # Sealed durably before its successor exists: a segment that is not the newest is never torn.
            self._writer.seal()
            self._writer.close()
            self._writer = None
        number = self._number + 1
        if os.path.lexists(os.path.join(self._folder, segment_name(number))):
            # An earlier try created it, and the disk refused only the last sync.
            self._files.sync_folder(self._folder)
            writer = SegmentWriter.open(self._files, self._folder, number)
        else:
            writer = SegmentWriter.create(self._files, self._folder, number, self._limits)
        self._use(writer)
        return ended

    def append_run(self, first: int, term: int, payloads: Sequence[bytes]) -> int:
        """Append entries of consecutive indexes, after `make_room`; returns how many found room, at least one.

        Raises:
            StorageError: as `make_room`.
            InvalidInput: see `SegmentWriter.append`.
        """
        assert self._writer is not None, "make_room comes first"
        return self._writer.append_run(first, term, payloads)

    def append(self, index: int, term: int, payload: Buffer) -> None:
        """Append one entry, after `make_room`.

        Raises:
            StorageError: as `make_room`.
            InvalidInput: see `SegmentWriter.append`.
        """
        assert self._writer is not None, "make_room comes first"
        self._writer.append(index, term, payload)

    def _use(self, writer: SegmentWriter) -> None:
        number, reader = writer.number, SegmentReader.following(writer.path, writer.index)
        # Without a call in between, so that an interrupt comes before or after all three.
        self._number, self._writer, self._reader = number, writer, reader

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
        """After a `StorageError`: go on from what was durable before; until this succeeds the segment holds nothing.

        Raises:
            StorageError: not even that is possible now; call again.
        """
        failed = self._writer or self._failed
        if failed is not None:
            self._failed, self._writer, self._reader = failed, None, None
            self._use(SegmentWriter.reopen(self._files, self._folder, failed))
            self._failed = None

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
        return KnownSegment(ref, index.entries, index.data_bytes, "native", index.is_dense)

    @property
    def last_term(self) -> int | None:
        """The term of the last entry that the segment holds, `None` if none."""
        if self._writer is None or not len(self._writer.index):
            return None
        return self._writer.index.columns.terms[-1]

    @property
    def unsynced_entries(self) -> int:
        """Entries appended that are not durable yet."""
        return 0 if self._writer is None else self._writer.unsynced_entries

    @property
    def durable_index(self) -> int | None:
        """The last entry that is durable for sure, `None` if none of this segment is."""
        if self._writer is None:
            return None
        durable = len(self._writer.index) - self._writer.unsynced_entries
        return self._writer.index.columns.indexes[durable - 1] if durable > 0 else None

    def abandon(self) -> None:
        """Give up the files without another write."""
        writer, self._writer, self._reader = self._writer, None, None
        if writer is not None:
            writer.abandon()

    def close(self) -> None:
        """Sync and give up the files.

        Raises:
            StorageError: the disk refused the last sync.
        """
        # Closed when its last reader is done.
        self._reader = None
        if self._writer is not None:
            self._writer.close()
