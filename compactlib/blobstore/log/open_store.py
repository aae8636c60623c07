# SPDX-License-Identifier: Apache-2.0
"""Opening a store's folder: the lock, the descriptor, an interrupted compaction, then the log."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator

import attrs

from compactlib.blobstore.compaction.commit.recover import CompactionRecovery, recover_compaction
from compactlib.blobstore.compaction.progress.compaction_file import LOG_NAME
from compactlib.blobstore.config import BlobStoreConfig
from compactlib.blobstore.errors import NotAStore
from compactlib.blobstore.index.open_index import OpenIndex
from compactlib.blobstore.log.contents import LogContents, LogSegment
from compactlib.blobstore.log.live_log import MAX_UNSYNCED_RECORDS, LiveLog, remove_leftovers
from compactlib.blobstore.log.load_log import (
    FILES_BESIDE_SEGMENTS,
    BlobRecoveryReport,
    LoadedSegment,
    SegmentLoader,
    check_not_emptied,
    find_descriptor,
    list_log,
    merged,
)
from compactlib.blobstore.model.names import (
    FIRST_SEGMENT,
    HALF_WRITTEN_SUFFIX,
    SegmentName,
    place_of_index_file,
    segment_of_log_file,
)
from compactlib.blobstore.model.values import milliseconds
from compactlib.blobstore.segment.descriptor import DESCRIPTOR_FILE, Descriptor, read_descriptor, write_descriptor
from compactlib.blobstore.segment.erasure import pending_erasures
from compactlib.blobstore.segment.reader import SEGMENT_HEADER_BYTES, create_segment, decode_header, is_ordinary
from compactlib.blobstore.segment.tail import LogWriter
from compactlib.clock import Clock
from compactlib.errors import CorruptData, DiskFull, InvalidInput, StorageError
from compactlib.files.disk import Files, list_folder, look_at, sync_names
from compactlib.files.folder_lock import LOCK_NAME, FolderLock
from compactlib.runtime.later import LaterObserver
from compactlib.runtime.observe import Observer

_OWN_FILES = (DESCRIPTOR_FILE, *FILES_BESIDE_SEGMENTS)
_NO_STRANGERS = (LOCK_NAME, DESCRIPTOR_FILE + HALF_WRITTEN_SUFFIX, "lost+found")
"""What a folder may hold in which a store is created, beside hidden files."""


@attrs.frozen
class OpenedStore:
    """What opening a folder gives.

    Attributes:
        lock_file: held until the store is closed.
        descriptor: what the store is.
        log: its log.
        report: what was out of order.
        compaction: what an interrupted compaction had left.
    """

    lock_file: FolderLock
    descriptor: Descriptor
    log: LiveLog
    report: BlobRecoveryReport
    compaction: CompactionRecovery


def open_log(folder: str, config: BlobStoreConfig, files: Files, clock: Clock, observer: Observer,
             new_incarnation: Callable[[], bytes], *, create: bool = True) -> OpenedStore:
    """Open or create the store in a folder; see `BlobStore` for the errors.

    What is found may be in the page cache only, left there by a process that was killed before it had synced it: the
    folder, its parent and the log of a compaction are synced before anything is built on them. Nothing but a new store
    needs room on the disk.
    """
    told = LaterObserver(observer)
    if not create:
        _require_store(folder)
    _make_folder(folder, config, files)
    lock = FolderLock(folder)
    try:
        sync_names(files, folder)
        _check_own_files(folder, files)
        descriptor, damage = _descriptor(folder, config, files, clock, new_incarnation)
        check_not_emptied(folder, *list_log(folder, check=False))
        remove_leftovers(files, folder)
        compaction = recover_compaction(folder, files)
        lost = tuple(_lost_segments(folder, compaction.removed))
        log, report = _load(folder, config, files, clock, told, descriptor)
        found = (*damage, *([compaction.damage] if compaction.damage is not None else []), *lost,
                 *_strange_segments(folder))
        report = merged([BlobRecoveryReport(found), report])
        for error in report.damage:
            told.event("blobstore_damage", {"folder": folder, "path": error.path, "offset": error.offset,
                                            "expected": error.expected, "found": error.found})
        if report.cut_bytes:
            told.event("blobstore_tail_cut", {"folder": folder, "bytes": report.cut_bytes})
        told.deliver()
        return OpenedStore(lock, descriptor, log, report, compaction)
    except BaseException:
        lock.release()
        raise


def _require_store(folder: str) -> None:
    if not os.path.isdir(folder):
        raise NotAStore(f"{folder} is no folder, so there is no blob store in it; check the path, or open it with "
                        f"create=True to make one", path=folder)
    if look_at(os.path.join(folder, DESCRIPTOR_FILE)) is None and not list_log(folder, check=False)[0]:
        raise NotAStore(f"{folder} holds no blob store: neither {DESCRIPTOR_FILE!r} nor a segment is in it; check the "
                        f"path, or open it with create=True to make one", path=folder)


def _make_folder(folder: str, config: BlobStoreConfig, files: Files) -> None:
    if os.path.isdir(folder):
        return
    config.check_capacity()
    try:
        files.make_folder(folder)
    except StorageError:
        # Two processes may create one store at once: the one that gets the lock does the rest.
        if not os.path.isdir(folder):
            if os.path.lexists(folder):
                raise NotAStore(f"{folder} is not a folder; choose another place for the store",
                                path=folder) from None
            raise


def _check_own_files(folder: str, files: Files) -> None:
    """Links are not followed, pipes are not waited for: what has the name of one of our files has to be a file."""
    for name in _OWN_FILES:
        path = os.path.join(folder, name)
        if look_at(path) is not None and not is_ordinary(path):
            raise InvalidInput(f"{path} is not an ordinary file, and the store's own is one; see what it is, and "
                               f"remove it")
    if look_at(path := os.path.join(folder, LOG_NAME)) is not None:
        # The step that it ends with decides what is removed.
        with contextlib.closing(files.open(path)) as out:
            out.sync()


def _descriptor(folder: str, config: BlobStoreConfig, files: Files, clock: Clock,
                new_incarnation: Callable[[], bytes]) -> tuple[Descriptor, tuple[CorruptData, ...]]:
    """The folder's descriptor: read, made again from the segments, or new."""
    names, _ = list_log(folder, check=False)
    damage: tuple[CorruptData, ...] = ()
    try:
        known = read_descriptor(folder)
        if known is not None:
            return known, ()
        lost = CorruptData(path=os.path.join(folder, DESCRIPTOR_FILE), offset=0, expected="the store's descriptor",
                           found="segments, but no such file")
    except CorruptData as error:
        lost = error
        if not names:
            raise
    if names:
        damage = (lost,)
        known = find_descriptor(folder, names)
        if known is None:
            raise lost
    else:
        strangers = [name for name in list_folder(folder) if name not in _NO_STRANGERS and not name.startswith(".")]
        if strangers:
            raise NotAStore(f"{folder} holds {strangers[0]!r} and no blob store; choose an empty folder", path=folder)
        config.check_capacity()
        segment_bytes = min(config.segment_bytes, config.capacity_bytes)
        known = Descriptor(new_incarnation(), segment_bytes, config.capacity_bytes // segment_bytes,
                           milliseconds(clock.now()))
    try:
        write_descriptor(files, folder, known)
    except DiskFull:
        # The segments say the same; the next opening tries again.
        if not names:
            raise
    return known, damage


def _load(folder: str, config: BlobStoreConfig, files: Files, clock: Clock, observer: LaterObserver,
          descriptor: Descriptor) -> tuple[LiveLog, BlobRecoveryReport]:
    names, index_files = list_log(folder)
    if names and names[-1] not in index_files and never_whole(folder, names[-1]):
        # The crash came while the segment was being created: no record was ever in it, or an index would name it.
        files.unlink(os.path.join(folder, names.pop().log_file))
    def not_written(index: str, error: StorageError) -> None:
        observer.event("blobstore_index_not_written", {"folder": folder, "index": index, "error": str(error)})

    loader = SegmentLoader(files, folder, descriptor, config.index_max_entries, index_files, not_written=not_written)
    loaded = [loader.load_sealed(name) for name in names[:-1]]
    loaded.append(loader.load_active(names[-1]) if names else _first_segment(folder, files, descriptor))
    active = loaded[-1]
    assert active.open is not None
    # A full disk may have kept `recover_compaction` from overwriting them: they are given up all the same.
    gone = pending_erasures(folder, descriptor.incarnation)
    segments = [each.segment.without_contents(gone.get(each.segment.name, ()), descriptor.incarnation)
                for each in loaded]
    contents = LogContents.of(descriptor.incarnation, segments, active.open)
    newest = max(active.header.first_sequence, active.open.last_sequence, contents.last_sequence)
    # Records that a crash may have lost have had numbers too, and peers may have seen them.
    following = newest + 1 + (MAX_UNSYNCED_RECORDS if newest else 0)
    writer = LogWriter(files, folder, active.header, active.open.end)
    log = LiveLog(files, folder, config, clock, observer, descriptor, contents, writer, following)
    return log, merged(segment.report for segment in loaded)


def _strange_segments(folder: str) -> Iterator[CorruptData]:
    """What has the name of a segment and is none: it is left alone."""
    for name in list_folder(folder):
        path = os.path.join(folder, name)
        if segment_of_log_file(name) is not None and not is_ordinary(path):
            yield CorruptData(path=path, offset=0, expected="a segment's file",
                              found="a link, a folder or another thing that is not an ordinary file")


def _lost_segments(folder: str, removed: Iterable[str]) -> Iterator[CorruptData]:
    """Segments of which only an index was left, and whose place no other has taken."""
    held = {name.position for name in list_log(folder)[0]}
    places = [place for place in map(place_of_index_file, removed) if place is not None]
    for name in sorted({place.segment for place in places if place.segment.position not in held}):
        yield CorruptData(path=os.path.join(folder, name.log_file), offset=0, expected="the segment of an index",
                          found="no such file")


def never_whole(folder: str, name: SegmentName) -> bool:
    """Whether a segment's file ends before its header does: nothing was ever in it."""
    path = os.path.join(folder, name.log_file)
    try:
        with open(path, "rb") as file:
            data = file.read(SEGMENT_HEADER_BYTES + 1)
    except OSError as error:
        raise StorageError.from_os(error, "read", path) from error
    if len(data) > SEGMENT_HEADER_BYTES:
        return False
    try:
        decode_header(data, path)
    except CorruptData:
        return True
    return False


def _first_segment(folder: str, files: Files, descriptor: Descriptor) -> LoadedSegment:
    header = descriptor.header(FIRST_SEGMENT)
    with contextlib.closing(create_segment(files, os.path.join(folder, FIRST_SEGMENT.log_file), header)) as out:
        out.sync()
    files.sync_folder(folder)
    return LoadedSegment(LogSegment(FIRST_SEGMENT, SEGMENT_HEADER_BYTES), header,
                         OpenIndex(FIRST_SEGMENT, SEGMENT_HEADER_BYTES), BlobRecoveryReport())
