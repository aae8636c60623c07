# SPDX-License-Identifier: Apache-2.0
"""Reading a store's folder from outside: no lock, no writing, no repair; the store may be in use.

What is read is one moment: every record that was written as a whole by then, and either all of a compaction's step or
nothing of it. What a crash has left is read as opening the store would leave it: `layout` says which segments count, a
torn tail is left out, contents that were being overwritten are gone, and indexes are made again in memory.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Mapping

import attrs

from compactlib.blobstore.contents import LogContents, LogSegment, LogSnapshot
from compactlib.blobstore.descriptor import DESCRIPTOR_FILE, Descriptor, read_descriptor
from compactlib.blobstore.erasure import pending_erasures
from compactlib.blobstore.errors import NotAStore
from compactlib.blobstore.layout import Layout, lay_out
from compactlib.blobstore.load import LoadedSegment, load_lost, load_segment
from compactlib.blobstore.names import FIRST_SEGMENT, SegmentName, segment_of_log_file
from compactlib.blobstore.open_index import OpenIndex
from compactlib.blobstore.opening import find_descriptor, is_headless
from compactlib.blobstore.segment import SEGMENT_HEADER_BYTES
from compactlib.blobstore.segment_list import FoundList, read_list
from compactlib.errors import Busy, CorruptData, StorageError
from compactlib.files.disk import list_folder

TRIES = 100
"""How often a read begins again because a compaction has switched files meanwhile."""
_CERTAIN_AFTER = 10
"""After so many tries a segment that is not there is lost, and not just removed."""


@attrs.frozen(eq=False)
class StoredLog:
    """A store as it was found.

    Attributes:
        descriptor: what the store is.
        snapshot: its log and index; nothing is known of a journal, so every segment but the last is eligible.
        damage: what is not as it was written.
        layout: which segments count.
        last_full_ms: when the last full round ended; below 0: never.
        loaded: for each segment the state of its files, and what was read of them, for the next read.
    """

    descriptor: Descriptor
    snapshot: LogSnapshot
    damage: tuple[CorruptData, ...]
    layout: Layout
    last_full_ms: int
    loaded: Mapping[SegmentName, tuple[object, LoadedSegment]] = attrs.field(factory=dict, repr=False)


def read_store(folder: str, before: StoredLog | None = None) -> StoredLog:
    """Read the index of a store, and of its log what is not in the index.

    Args:
        folder: the store's, absolute.
        before: an earlier read: segments whose files have not changed since are not read again.

    Raises:
        NotAStore: the folder holds no store.
        Busy: compactions switched files again and again meanwhile.
        CorruptData: neither the descriptor nor any segment says what the store is, or its segments are gone, or there
            is no list of them and two generations of one are there.
        Unsupported: a later release wrote it.
        StorageError: it cannot be read.
    """
    if not os.path.isdir(folder):
        raise NotAStore(f"{folder} is no folder; give that of a blob store", path=folder)
    for number in range(TRIES):
        try:
            found = _try_to_read(folder, before, is_certain=number >= _CERTAIN_AFTER)
        except StorageError as error:
            # A file that was listed is gone: a compaction has removed it.
            if error.errno != errno.ENOENT or number == TRIES - 1:
                raise
            continue
        if found is not None:
            return found
    raise Busy(f"compactions of the store in {folder} switched files {TRIES} times while it was read; read it again")


def _try_to_read(folder: str, before: StoredLog | None, *, is_certain: bool) -> StoredLog | None:
    """Try once; `None` if files were switched meanwhile."""
    listed = read_list(folder)
    layout = _layout(folder, listed)
    if (layout.lost or layout.damage) and not is_certain:
        # A step may have been committed between the list and the folder.
        return None
    descriptor, damage = _descriptor(folder, layout.segments)
    if not layout.segments and layout.lost:
        raise CorruptData(path=os.path.join(folder, FIRST_SEGMENT.log_file), offset=0, found="none, although the store "
                          "has had some; restore the folder from a copy", expected="the segments of the log")
    erased = pending_erasures(folder, descriptor.incarnation)
    known = before.loaded if before is not None and before.descriptor == descriptor else {}
    newest = max((*layout.segments, *layout.lost), default=None)
    loaded = {name: _loaded(folder, name, descriptor, name == newest, erased.get(name, ()), known)
              for name in layout.segments}
    after = read_list(folder)
    if (after.list is None) != (listed.list is None) or (
            after.list is not None and listed.list is not None and after.list.step != listed.list.step):
        return None
    segments = [_as_read(each) for _, each in loaded.values()]
    segments += [load_lost(folder, name, descriptor).segment for name in layout.lost]
    segments.sort(key=lambda each: each.name)
    segments = segments or [LogSegment(FIRST_SEGMENT, SEGMENT_HEADER_BYTES)]
    contents = LogContents.of(descriptor.incarnation, segments, OpenIndex(segments[-1].name, segments[-1].end),
                              None if before is None else before.snapshot.contents.directory)
    return StoredLog(descriptor, contents.snapshot(None, descriptor.segment_bytes),
                     (*damage, *layout.damage, *(error for _, each in loaded.values() for error in each.damage)),
                     layout, layout.list.last_full_ms, loaded)


def _as_read(loaded: LoadedSegment) -> LogSegment:
    """Return a segment whose index is all in parts."""
    segment, opened = loaded.segment, loaded.open
    if opened is None or not len(opened):
        return segment
    part = opened.sealed(_key_of(loaded))
    return attrs.evolve(segment, end=part.end, index=(*segment.index, part))


def _key_of(loaded: LoadedSegment) -> bytes:
    return loaded.header.incarnation


def _layout(folder: str, listed: FoundList) -> Layout:
    names = set(filter(None, map(segment_of_log_file, list_folder(folder))))
    newest = max(names, default=None)
    if newest is not None and is_headless(folder, newest) and (
            listed.list is None or newest not in listed.list.segments):
        # It is being created, or a crash came while it was: no record was ever in it.
        names.discard(newest)
    return lay_out(folder, listed, names)


def _descriptor(folder: str, names: Iterable[SegmentName]) -> tuple[Descriptor, tuple[CorruptData, ...]]:
    damage: CorruptData | None = None
    try:
        known = read_descriptor(folder)
    except CorruptData as error:
        known, damage = None, error
    if known is not None:
        return known, ()
    known = find_descriptor(folder, names)
    if known is None:
        if damage is not None:
            raise damage
        raise NotAStore(f"{folder} holds no blob store: neither its descriptor nor a segment can be read", path=folder)
    return known, (damage or CorruptData(path=os.path.join(folder, DESCRIPTOR_FILE), offset=0, found="no such file",
                                         expected="the store's descriptor"),)


def _loaded(folder: str, name: SegmentName, descriptor: Descriptor, is_active: bool, erased: Iterable[int],
            known: Mapping[SegmentName, tuple[object, LoadedSegment]]) -> tuple[object, LoadedSegment]:
    """Return a segment with the state of its files, read again if that has changed."""
    gone = frozenset(erased)
    states: list[object] = [is_active, gone]
    for file in (name.log_file, name.index_file):
        try:
            found = os.stat(os.path.join(folder, file))
            states.append((found.st_ino, found.st_size, found.st_mtime_ns))
        except FileNotFoundError:
            states.append(None)
        except OSError as error:
            raise StorageError.from_os(error, "look at", os.path.join(folder, file)) from error
    state = tuple(states)
    if name in known and known[name][0] == state:
        return known[name]
    return state, load_segment(folder, name, descriptor, is_active=is_active, erased=gone)
