# SPDX-License-Identifier: Apache-2.0
"""Reading a store's folder: by the owner when it opens the store, and by every `BlobReader`. Changes nothing.

Segments are loaded from the valid parts of their index, and from the log where there is no valid part. Opening never
cuts durable records. A record with the flag `SYNCED_BEFORE` proves that all records before it in its segment were
durable, so a bad record before the last such flag is damage and is reported. The first bad record after it may never
have reached the disk, and is the end of the log.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise

import attrs

from compactlib.blobstore.contents import LogSegment
from compactlib.blobstore.erasure import STATE_FILE, read_state
from compactlib.blobstore.index import IndexPart, OpenIndex, read_parts
from compactlib.blobstore.names import FIRST_SEGMENT, SegmentName, segment_of_index_file, segment_of_log_file
from compactlib.blobstore.records import RecordFlag
from compactlib.blobstore.scan import Scanned, scan_records
from compactlib.blobstore.segment import SEGMENT_HEADER_BYTES, Descriptor, SegmentFile, SegmentHeader
from compactlib.blobstore.segment_list import FILE_NAME as LIST_FILE, Layout, SegmentList, read_list
from compactlib.errors import CorruptData, StorageError
from compactlib.files.disk import list_folder, look_at

_MOST_PART_RECORDS = 10_000
_RECORD_ROOM = 256


def part_records(segment_bytes: int) -> int:
    """Return the records of a part of the active segment's index; opening after a kill reads at most as many again."""
    return max(4, min(_MOST_PART_RECORDS, segment_bytes // _RECORD_ROOM))


@attrs.frozen
class FoundFolder:
    """The contents of a folder."""

    names: Sequence[str]  # the names of its files
    present: frozenset[SegmentName]  # its segments, without a segment that was just begun
    # the list of segments, made anew from the segments if the file is lost; `None` if there is no store
    listed: SegmentList | None
    is_list_whole: bool  # whether both slots of the list's file are valid or empty
    damage: tuple[CorruptData, ...] = ()  # the loss of the list


def read_folder(folder: str) -> FoundFolder:
    """Read a folder; of its segments only headers."""
    listed, list_damage = read_list(folder)
    names = list_folder(folder)
    if listed is None and LIST_FILE in names:
        # Its owner may have created the store just now.
        listed, list_damage = read_list(folder)
    present = set(filter(None, map(segment_of_log_file, names)))
    newest = max(present, default=None)
    if newest is not None and listed is not None and newest not in listed.segments and newest.index_file not in names:
        found_file = look_at(os.path.join(folder, newest.log_file))
        if found_file is None or found_file.st_size <= SEGMENT_HEADER_BYTES:
            present.discard(newest)
    if listed is not None and not present and (listed.segments or any(
            name == STATE_FILE or segment_of_index_file(name) is not None for name in names)):
        raise CorruptData(path=os.path.join(folder, FIRST_SEGMENT.log_file), offset=0, found="none, although the "
                          "store has had some; restore the folder from a copy", expected="the segments of the log")
    found = FoundFolder(names, frozenset(present), listed, not list_damage)
    if listed is not None or (not present and LIST_FILE not in names):
        return found
    lost = CorruptData(path=os.path.join(folder, LIST_FILE), offset=0, expected="the list of segments",
                       found=list_damage)
    counted = tuple(sorted(present))
    for first, second in pairwise(counted):
        if first.position == second.position:
            raise CorruptData(path=os.path.join(folder, second.log_file), offset=0, found=f"{first} and {second}",
                              expected=f"one generation of each segment, as {LIST_FILE!r} is missing or damaged")
    for name in counted:
        with contextlib.suppress(CorruptData, StorageError):
            store = SegmentFile(os.path.join(folder, name.log_file)).header.store
            return attrs.evolve(found, listed=SegmentList(store=store, segments=counted), damage=(lost,))
    raise lost


@attrs.frozen
class LoadedSegment:
    """One loaded log segment."""

    segment: LogSegment  # the segment with its index
    header: SegmentHeader  # its header; the expected header if that of the file is damaged
    damage: tuple[CorruptData, ...] = ()
    is_rebuilt: bool = False  # whether the last part of the index was rebuilt from the log
    size: int = SEGMENT_HEADER_BYTES  # the size of the log file
    state: object = None  # of its files, to read them again only if they have changed


def load_store(folder: str, layout: Layout, known: Mapping[SegmentName, LoadedSegment]) -> list[LoadedSegment]:
    """Load every segment of a log, in order; of a lost one the index, which names its records.

    Segments that were loaded before (`known`) are reused unless their files have changed.
    """
    descriptor = layout.list.store
    erased = read_state(folder, descriptor.incarnation)[0].offsets
    names = sorted((*layout.segments, *layout.lost))
    found: list[LoadedSegment] = []
    for name in names:
        if name in layout.lost:
            parts = read_parts(folder, name, descriptor.incarnation, SEGMENT_HEADER_BYTES, descriptor.segment_bytes)
            found.append(LoadedSegment(LogSegment(name, tuple(parts), is_lost=True), descriptor.header(name)))
            continue
        files = [look_at(os.path.join(folder, file)) for file in (name.log_file, name.index_file)]
        state = name == names[-1], frozenset(erased.get(name, ())), *(
            (each.st_ino, each.st_size, each.st_mtime_ns) for each in files if each is not None)
        before = known.get(name)
        found.append(before if before is not None and before.state == state else attrs.evolve(load_segment(
            folder, name, descriptor, is_active=name == names[-1], erased=erased.get(name, ())), state=state))
    return found


def load_segment(folder: str, name: SegmentName, descriptor: Descriptor, *, is_active: bool = False,
                 erased: Collection[int] = ()) -> LoadedSegment:
    """Load a segment; the last records of the active one are in an open index.

    Contents at the offsets `erased` count as erased, even if the index does not mark them.
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
    damage += [each.damage(file.path) for each in found if each.found]
    entries = [each.entry for each in found if each.entry is not None]
    opened = None
    if is_active:
        if parts and len(parts[-1]) <= part_records(descriptor.segment_bytes) // 2:
            # A small last part becomes part of the open index, so that parts stay large.
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


def acknowledged(scanned: Sequence[Scanned], start: int) -> tuple[Sequence[Scanned], int]:
    """Return the records of the active segment that count, and the end of the log."""
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
        # The descriptor has all fields of the header.
        return SegmentFile(path, expected), [error]
    return file, []
