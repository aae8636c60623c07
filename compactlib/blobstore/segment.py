# SPDX-License-Identifier: Apache-2.0
"""The file of a log segment, and its header (`docs/formats/blobstore-log.md`).

The header repeats the store's descriptor, which is in the list of segments, so that a lost list is made anew from the
segments.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import cached_property

import attrs

from compactlib._closing import closed_on_failure
from compactlib.blobstore.names import MAX_NUMBER, MIN_SEGMENT_BYTES, SegmentName
from compactlib.errors import CorruptData, InvalidInput, StorageError
from compactlib.files.checksum import crc32
from compactlib.files.disk import Files, OutFile, ReadDescriptor, StrPath, look_at, read_exactly, removed_on_failure
from compactlib.files.record_frame import RecordFrame
from compactlib.lru import Lru

SEGMENT_HEADER_BYTES = 80
"""Size of a segment's header; the first record begins here."""

_HEADER = RecordFrame("segment format", b"CLBLOBSG", 1, "<HHIQQQQ16s12x")


@attrs.frozen
class Descriptor:
    """The identity and the capacities of a store."""

    incarnation: bytes  # 16 bytes that are the store's own; another store in the same folder would have others
    segment_bytes: int
    log_segments: int  # how many segments the log may have
    created_ms: int = attrs.field(default=0, eq=False)  # 0 if that was lost

    @cached_property
    def salt(self) -> int:
        """The start value of the CRC of every record of the store."""
        return crc32(self.incarnation, 0)

    @property
    def capacity_bytes(self) -> int:
        """Capacity of the whole log."""
        return self.segment_bytes * self.log_segments

    def header(self, name: SegmentName, first_sequence: int = 0) -> SegmentHeader:
        """Return the header of a segment of this store."""
        return SegmentHeader(name, self, first_sequence)


@attrs.frozen
class SegmentHeader:
    """The header of a segment, fixed when the segment is created."""

    name: SegmentName  # as the file name has it, except while a compaction builds the file
    store: Descriptor  # without the time of its creation
    first_sequence: int = 0
    """The next sequence when the segment was begun: all older records have lower numbers; 0 in segments that a
    compaction wrote."""


def encode_header(header: SegmentHeader) -> bytes:
    """Return the 80 bytes of a header."""
    name, store = header.name, header.store
    if not (min(name) >= 0 and max(name) <= MAX_NUMBER and len(store.incarnation) == 16
            and MIN_SEGMENT_BYTES <= store.segment_bytes <= MAX_NUMBER
            and 0 < store.log_segments < 1 << 32 and 0 <= header.first_sequence <= MAX_NUMBER):
        raise InvalidInput(f"this is not the header of a segment: {header}")
    return _HEADER.encode(SEGMENT_HEADER_BYTES, store.log_segments, store.segment_bytes, name.position,
                          name.generation, header.first_sequence, store.incarnation)


def decode_header(data: bytes, path: str) -> SegmentHeader:
    """Return the header in the first 80 bytes of a file."""
    size, segments, capacity, position, generation, sequence, incarnation = _HEADER.decode_header(data, path)
    if size != SEGMENT_HEADER_BYTES or capacity < MIN_SEGMENT_BYTES or max(
            capacity, position, generation, sequence) > MAX_NUMBER:
        raise CorruptData(path=path, offset=10, expected="the fields of a segment header",
                          found=f"size {size}, capacity {capacity}")
    return Descriptor(incarnation, capacity, segments).header(SegmentName(position, generation), sequence)


class Opened(list[OutFile]):
    """A segment's file, open for writers and for threads that wait for a sync."""

    def close(self) -> None:
        """Close it, without a sync; closing again does nothing."""
        for out in self:
            out.close()


def begin_segment(files: Files, folder: StrPath, header: SegmentHeader) -> Opened:
    """Create a segment without records, durably, and open it; nothing is left of it if that fails."""
    path = os.path.join(folder, header.name.log_file)
    if look_at(path) is not None:
        # A leftover of a failed attempt, without records.
        files.unlink(path)
    opened = Opened()
    with removed_on_failure(files, path), closed_on_failure(opened):
        opened.append(files.create(path))
        opened[0].write_at(0, [encode_header(header)])
        opened[0].sync()
        opened.append(files.open(path))
        files.sync_folder(folder)
    return opened


class SegmentFile(ReadDescriptor):
    """A segment open for reading. Threads may share one. A known header is not read from the file.

    The last reference closes the file, so that a reader can finish after a compaction has removed it.
    """

    __slots__ = ("header", "path")

    def __init__(self, path: StrPath, header: SegmentHeader | None = None) -> None:
        self.path: str = os.fspath(path)
        super().__init__()
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            self.header: SegmentHeader = header or decode_header(
                read_exactly(self._descriptor, SEGMENT_HEADER_BYTES, 0), self.path)
        except BaseException as error:
            # A reference to the error, by its traceback, keeps this object alive.
            self.close()
            if isinstance(error, OSError):
                raise StorageError.from_os(error, "open", path) from error
            raise

    def size(self) -> int:
        """Return the current length of the file, in bytes."""
        return os.fstat(self._descriptor).st_size

    def read(self, offset: int, length: int) -> bytes:
        """Return up to `length` bytes from `offset`; fewer only where the file ends. One `pread` for most."""
        try:
            return read_exactly(self._descriptor, length, offset)
        except OSError as error:
            raise StorageError.from_os(error, "read", self.path) from error


class OpenSegments:
    """Opens segment files and keeps the most recently used. A file is closed when no reader holds it either."""

    def __init__(self, folder: str, header: Callable[[SegmentName], SegmentHeader], max_open: int) -> None:
        self._folder = folder
        self._header = header
        self._closed = False
        self._kept: Lru[SegmentName, SegmentFile] = Lru(max_open)

    def get(self, name: SegmentName, is_listed: Callable[[SegmentName], bool]) -> SegmentFile:
        """Return the file of a segment; it can be read while it is referenced, even after it was removed.

        Files of segments that are not in the log are not kept: an open file occupies disk space.
        """
        file = self._kept.get(name)
        if file is None:
            file = SegmentFile(os.path.join(self._folder, name.log_file), self._header(name))
            self._kept.put(name, file)
            # A compaction may have removed the segment since the caller found it.
            if self._closed or not is_listed(name):
                self._kept.drop(name)
        return file

    def forget(self, names: Iterable[SegmentName]) -> None:
        """Drop the files of segments that have left the log."""
        for name in names:
            self._kept.drop(name)

    def close(self) -> None:
        """Drop all files, and keep none any more."""
        self._closed = True
        self._kept.clear()
