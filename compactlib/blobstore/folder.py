# SPDX-License-Identifier: Apache-2.0
"""What a store's folder holds: read by the owner when it opens the store, and by every `BlobReader`. Changes nothing.

Segments are loaded from the parts of their index where these hold, and from the log where they do not. What is known to
be durable is never cut: of the active segment, records count up to the first that does not hold, and that one is
searched only behind the last record that was written when everything before it was durable. What lies before such a
record was acknowledged, so a failure there is damage, which is reported; what lies behind may never have reached the
disk, so a failure there is the end of the log.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterable, Sequence

import attrs

from compactlib.blobstore.contents import LogSegment
from compactlib.blobstore.erasure import STATE_FILE
from compactlib.blobstore.index import IndexPart, OpenIndex
from compactlib.blobstore.index_file import part_bytes, read_parts
from compactlib.blobstore.names import FIRST_SEGMENT, SegmentName, segment_of_index_file, segment_of_log_file
from compactlib.blobstore.records import RecordFlag
from compactlib.blobstore.scan import Scanned, scan_records
from compactlib.blobstore.segment import (
    DESCRIPTOR_FILE,
    SEGMENT_HEADER_BYTES,
    Descriptor,
    SegmentFile,
    SegmentHeader,
    decode_header,
    read_descriptor,
)
from compactlib.blobstore.segment_list import FoundList, read_list
from compactlib.errors import CorruptData, StorageError
from compactlib.files.disk import list_folder, read_if_there

_MOST_PART_RECORDS = 10_000
_RECORD_ROOM = 256


def part_records(segment_bytes: int) -> int:
    """Return after how many records the index of the active segment gets a part: so many a killed store reads again."""
    return max(4, min(_MOST_PART_RECORDS, segment_bytes // _RECORD_ROOM))


@attrs.frozen
class FoundFolder:
    """A folder.

    Attributes:
        names: all that lies in it.
        present: the segments.
        listed: the list of segments.
        descriptor: what the store is; `None` if there is none.
        damage: what is wrong with its descriptor.
    """

    names: Sequence[str]
    present: frozenset[SegmentName]
    listed: FoundList
    descriptor: Descriptor | None
    damage: tuple[CorruptData, ...] = ()


def read_folder(folder: str) -> FoundFolder:
    """Read a folder; nothing of its segments but headers."""
    listed = read_list(folder)
    names = list_folder(folder)
    present = _present(folder, names, listed)
    descriptor, damage = None, CorruptData(path=os.path.join(folder, DESCRIPTOR_FILE), offset=0, found="no such file",
                                           expected="the store's descriptor")
    try:
        descriptor = read_descriptor(folder)
    except CorruptData as error:
        damage = error
        if not present:
            raise
    had_segments = (listed.list is not None and listed.list.segments) or any(
        name == STATE_FILE or segment_of_index_file(name) is not None for name in names)
    if descriptor is not None and not present and had_segments:
        raise CorruptData(path=os.path.join(folder, FIRST_SEGMENT.log_file), offset=0, found="none, although the store "
                          "has had some; restore the folder from a copy", expected="the segments of the log")
    if descriptor is not None or not present:
        return FoundFolder(names, present, listed, descriptor)
    for name in sorted(present):
        with contextlib.suppress(CorruptData, StorageError):
            header = SegmentFile(os.path.join(folder, name.log_file)).header
            return FoundFolder(names, present, listed, Descriptor.of_header(header), (damage,))
    raise damage


def _present(folder: str, names: Iterable[str], listed: FoundList) -> frozenset[SegmentName]:
    """Return the segments in a folder; one that was cut off before it had a whole header was never anything."""
    present = set(filter(None, map(segment_of_log_file, names)))
    newest = max(present, default=None)
    if newest is not None and listed.list is not None and newest not in listed.list.segments and (
            newest.index_file not in names) and _is_headless(os.path.join(folder, newest.log_file)):
        present.discard(newest)
    return frozenset(present)


def _is_headless(path: str) -> bool:
    """Whether a segment's file ends before its header does."""
    data = read_if_there(path, SEGMENT_HEADER_BYTES + 1)
    if data is None or len(data) > SEGMENT_HEADER_BYTES:
        return False
    try:
        decode_header(data, path)
    except CorruptData:
        return True
    return False


@attrs.frozen
class LoadedSegment:
    """One log segment, loaded.

    Attributes:
        segment: the segment with its index.
        header: its header, or what it has to be if the file's is damaged.
        damage: what is not as it was written.
        is_rebuilt: whether the last part of the index was made again from the log.
        size: of the log file.
    """

    segment: LogSegment
    header: SegmentHeader
    damage: tuple[CorruptData, ...] = ()
    is_rebuilt: bool = False
    size: int = SEGMENT_HEADER_BYTES

    @property
    def index_bytes(self) -> int:
        """How long the parts are in the index file."""
        return sum(map(part_bytes, self.segment.parts))


def load_segment(folder: str, name: SegmentName, descriptor: Descriptor, *, is_active: bool = False,
                 erased: Collection[int] = ()) -> LoadedSegment:
    """Load a segment.

    Args:
        folder: the store's.
        name: the segment's.
        descriptor: what the store is.
        is_active: whether it is appended to: then its last records are in an open index.
        erased: offsets of records whose contents are gone, whatever the index says.
    """
    file, damage = _opened(os.path.join(folder, name.log_file), descriptor.header(name))
    parts = read_parts(folder, name, descriptor.incarnation, SEGMENT_HEADER_BYTES, descriptor.segment_bytes)
    start = parts[-1].end if parts else SEGMENT_HEADER_BYTES
    size = file.size()
    if size < start:
        damage.append(CorruptData(path=file.path, offset=size, expected=f"records up to offset {start}",
                                  found="the end of the file"))
    found: Sequence[Scanned] = list(scan_records(file, start, size)) if size > start else []
    end = max(start, size)
    if is_active:
        found, end = acknowledged(found, start)
    damage += _damage(file, found)
    entries = [each.entry for each in found if each.entry is not None]
    opened = None
    if is_active:
        if parts and len(parts[-1]) <= part_records(descriptor.segment_bytes) // 2:
            # A small part grows, instead of being followed by another.
            small = parts.pop()
            start, entries = small.start, [*small.entries(), *entries]
        opened = OpenIndex(name, start, entries, end)
    elif found or not parts:
        stop = max(end, entries[-1].end if entries else 0)
        parts.append(IndexPart.of(name, start, stop, entries, descriptor.incarnation))
    if erased:
        parts = [part.erased(erased) for part in parts]
    segment = LogSegment(name, tuple(parts), opened)
    return LoadedSegment(segment, file.header, tuple(error.with_traceback(None) for error in damage),
                         bool(found) and not is_active, size)


def load_lost(folder: str, name: SegmentName, descriptor: Descriptor) -> LoadedSegment:
    """Load what the index of a lost segment says it held."""
    parts = read_parts(folder, name, descriptor.incarnation, SEGMENT_HEADER_BYTES, descriptor.segment_bytes)
    return LoadedSegment(LogSegment(name, tuple(parts), is_lost=True), descriptor.header(name))


def acknowledged(scanned: Sequence[Scanned], start: int) -> tuple[Sequence[Scanned], int]:
    """Return how much of a scan of the active segment counts, and where the log ends."""
    proven = max((place for place, found in enumerate(scanned) if found.entry is not None
                  and found.entry.flags & RecordFlag.SYNCED_BEFORE), default=0)
    count = next((place for place in range(proven, len(scanned)) if scanned[place].found), len(scanned))
    return scanned[:count], scanned[count - 1].end if count else start


def _opened(path: str, expected: SegmentHeader) -> tuple[SegmentFile, list[CorruptData]]:
    try:
        file = SegmentFile(path)
        if attrs.evolve(file.header, first_sequence=0) != expected:
            raise CorruptData(path=path, offset=0, expected=f"the header {expected}", found=f"{file.header}")
    except CorruptData as error:
        # Everything that the header says is known from elsewhere.
        return SegmentFile(path, expected), [error]
    return file, []


def _damage(file: SegmentFile, scanned: Iterable[Scanned]) -> list[CorruptData]:
    """Return what a scan found that is no whole record."""
    found: list[CorruptData] = []
    for each in scanned:
        if each.entry is None:
            found.append(CorruptData(path=file.path, offset=each.offset, expected="a record",
                                     found=f"{each.end - each.offset} bytes of something else: {each.found}"))
        elif each.found:
            found.append(CorruptData(path=file.path, offset=each.offset, index=each.entry.sequence, found=each.found,
                                     expected=f"{each.entry.size} bytes of blob {each.entry.id!r}"))
    return found
