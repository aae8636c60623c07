# SPDX-License-Identifier: Apache-2.0
"""Loading segments: the parts of the index where they hold, the log itself where they do not.

What is known to be durable is never cut. Records are kept up to the first that does not hold, and that point is
searched only behind the last record that was written when everything before it was durable: what lies before such a
record was acknowledged, so a failure there is damage, which is reported; what lies behind may never have reached the
disk, so a failure there is the end of the log.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence

import attrs

from compactlib.blobstore.contents import LogSegment
from compactlib.blobstore.descriptor import Descriptor
from compactlib.blobstore.index_file import part_bytes, read_parts
from compactlib.blobstore.index_segment import IndexSegment
from compactlib.blobstore.names import SegmentName
from compactlib.blobstore.open_index import OpenIndex
from compactlib.blobstore.scan import DamagedRange, Scanned, ScannedRecord, scan_records
from compactlib.blobstore.segment import SEGMENT_HEADER_BYTES, SegmentFile, SegmentHeader
from compactlib.blobstore.values import RecordFlag
from compactlib.errors import CorruptData

_MOST_PART_RECORDS = 10_000
_RECORD_ROOM = 256


def part_records(segment_bytes: int) -> int:
    """Return after how many records the index of the active segment gets a part: so many a killed store reads again."""
    return max(4, min(_MOST_PART_RECORDS, segment_bytes // _RECORD_ROOM))


@attrs.frozen
class LoadedSegment:
    """One log segment, loaded.

    Attributes:
        segment: the segment with its index.
        header: its header, or what it has to be if the file's is damaged.
        open: the index of the records behind its parts; only of the active segment.
        damage: what is not as it was written.
        is_rebuilt: whether a part of the index was made again from the log.
        end: the offset behind the last record.
        size: of the log file.
    """

    segment: LogSegment
    header: SegmentHeader
    open: OpenIndex | None = None
    damage: tuple[CorruptData, ...] = ()
    is_rebuilt: bool = False
    end: int = SEGMENT_HEADER_BYTES
    size: int = SEGMENT_HEADER_BYTES

    @property
    def index_bytes(self) -> int:
        """How long the parts are in the index file."""
        return sum(map(part_bytes, self.segment.index))


def load_segment(folder: str, name: SegmentName, descriptor: Descriptor, *, is_active: bool = False,
                 erased: Collection[int] = ()) -> LoadedSegment:
    """Load a segment; changes nothing on the disk.

    Args:
        folder: the store's.
        name: the segment's.
        descriptor: what the store is.
        is_active: whether it is appended to: then the index of its last records is one that can grow.
        erased: offsets of records whose contents are gone, whatever the index says.

    Raises:
        StorageError: the disk refused.
        Unsupported: its format version is newer than this release.
    """
    file, damage = _opened(os.path.join(folder, name.log_file), descriptor.header(name))
    parts = _parts(folder, name, descriptor)
    start = parts[-1].end if parts else SEGMENT_HEADER_BYTES
    size = file.size()
    if size < start:
        damage.append(CorruptData(path=file.path, offset=size, expected=f"records up to offset {start}",
                                  found="the end of the file"))
    found: Sequence[Scanned] = list(scan_records(file, start, size)) if size > start else []
    end = max(start, size)
    opened = None
    if is_active:
        found, end = acknowledged(found, start)
        opened = OpenIndex(name, start)
        if parts and len(parts[-1]) <= part_records(descriptor.segment_bytes) // 2:
            # A small one grows, instead of being followed by another.
            opened = OpenIndex.reopened(parts.pop())
    damage += _damage(file, found)
    entries = [each.header.entry(name, each.offset) for each in found if isinstance(each, ScannedRecord)]
    is_rebuilt = bool(found) and not is_active
    if opened is not None:
        for entry in entries:
            opened.append(entry)
        opened.end = end
        segment = LogSegment(name, opened.start, tuple(parts))
    else:
        if is_rebuilt or not parts:
            stop = max(end, entries[-1].end if entries else 0)
            parts.append(IndexSegment.of_entries(name, entries, start, stop, descriptor.incarnation))
        segment = LogSegment(name, parts[-1].end, tuple(parts))
    if erased:
        segment = segment.without_contents(erased, descriptor.incarnation)
    return LoadedSegment(segment, file.header, opened, tuple(error.with_traceback(None) for error in damage),
                         is_rebuilt, end, size)


def load_lost(folder: str, name: SegmentName, descriptor: Descriptor) -> LoadedSegment:
    """Load what the index of a lost segment says it held."""
    parts = _parts(folder, name, descriptor)
    end = parts[-1].end if parts else SEGMENT_HEADER_BYTES
    return LoadedSegment(LogSegment(name, end, tuple(parts), is_lost=True), descriptor.header(name), end=end, size=end)


def acknowledged(scanned: Sequence[Scanned], start: int) -> tuple[Sequence[Scanned], int]:
    """Return how much of a scan of the active segment counts, and where the log ends."""
    proven = max((place for place, found in enumerate(scanned) if isinstance(found, ScannedRecord)
                  and found.header.flags & RecordFlag.SYNCED_BEFORE), default=0)
    count = next((place for place in range(proven, len(scanned)) if not _holds(scanned[place])), len(scanned))
    return scanned[:count], scanned[count - 1].end if count else start


def _holds(found: Scanned) -> bool:
    return isinstance(found, ScannedRecord) and found.whole


def _opened(path: str, expected: SegmentHeader) -> tuple[SegmentFile, list[CorruptData]]:
    try:
        file = SegmentFile(path)
        if attrs.evolve(file.header, first_sequence=0) != expected:
            raise CorruptData(path=path, offset=0, expected=f"the header {expected}", found=f"{file.header}")
    except CorruptData as error:
        # Everything that the header says is known from elsewhere.
        return SegmentFile(path, expected), [error]
    return file, []


def _parts(folder: str, name: SegmentName, descriptor: Descriptor) -> list[IndexSegment]:
    """Return the parts of the index that follow each other from the segment's beginning."""
    at, parts = SEGMENT_HEADER_BYTES, list[IndexSegment]()
    for part in read_parts(os.path.join(folder, name.index_file), descriptor.incarnation, name):
        if part.start != at or part.end > descriptor.segment_bytes:
            break
        parts.append(part)
        at = part.end
    return parts


def _damage(file: SegmentFile, scanned: Iterable[Scanned]) -> list[CorruptData]:
    """Return what a scan found that is no whole record."""
    found: list[CorruptData] = []
    for each in scanned:
        if isinstance(each, DamagedRange):
            found.append(CorruptData(path=file.path, offset=each.offset, expected="a record",
                                     found=f"{each.end - each.offset} bytes of something else: {each.found}"))
        elif not each.whole:
            found.append(CorruptData(
                path=file.path, offset=each.offset, index=each.header.sequence, found="content whose CRC fails",
                expected=f"{each.header.size} bytes of blob {each.header.id!r}"))
    return found
