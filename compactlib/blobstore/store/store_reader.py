# SPDX-License-Identifier: Apache-2.0
"""Looking at a store's folder from outside: no lock, no writing, no repair; the store may be in use.

A look shows one moment: every record that was written as a whole by then, and, while a compaction switches its files,
either what was before the switch or what is after it. What a crash has left is read as opening the store would leave
it: the compaction log says which segments count (see `recover`), a torn tail is the writer's affair, contents that were
being overwritten are gone, and index files that are missing or damaged are made again in memory.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import attrs

from compactlib.blobstore.compaction.commit.publish import private_name
from compactlib.blobstore.compaction.progress.compaction_file import LOG_NAME, read_log
from compactlib.blobstore.compaction.progress.compaction_log import CompactionLog, Phase, Target
from compactlib.blobstore.config import BlobStoreConfig
from compactlib.blobstore.errors import NotAStore
from compactlib.blobstore.index.open_index import OpenIndex
from compactlib.blobstore.log.contents import LogContents, LogSegment, LogSnapshot
from compactlib.blobstore.log.load_log import (
    LoadedSegment,
    Loading,
    SegmentLoader,
    acknowledged,
    check_not_emptied,
    find_descriptor,
    list_log,
)
from compactlib.blobstore.log.open_store import never_whole
from compactlib.blobstore.model.names import FIRST_SEGMENT, SegmentName
from compactlib.blobstore.segment.descriptor import DESCRIPTOR_FILE, Descriptor, read_descriptor
from compactlib.blobstore.segment.erasure import STATE_NAME, pending_erasures
from compactlib.blobstore.segment.reader import SEGMENT_HEADER_BYTES
from compactlib.blobstore.segment.scan import scan_records
from compactlib.errors import Busy, CorruptData, NotFound, StorageError
from compactlib.files.disk import LocalFiles, StrPath, look_at

_LOOKS = 100
_OWN_FILES = (DESCRIPTOR_FILE, LOG_NAME, STATE_NAME)
_INDEX_MAX_ENTRIES = BlobStoreConfig().index_max_entries


@attrs.frozen(eq=False)
class StoreLook:
    """A store as it was found.

    Attributes:
        folder: its folder, absolute.
        descriptor: what the store is.
        snapshot: its log and index; nothing is known of a journal, so every segment but the last is eligible.
        damage: what is not as it was written.
        compaction: the compaction that runs, or was interrupted; `None` if there is none.
        loaded: for each segment how its files looked, and what was read of them, for the next look.
    """

    folder: str
    descriptor: Descriptor
    snapshot: LogSnapshot
    damage: tuple[CorruptData, ...]
    compaction: CompactionLog | None = None
    loaded: Mapping[SegmentName, tuple[object, LoadedSegment]] = attrs.field(factory=dict, repr=False)


def look_at_store(folder: StrPath, before: StoreLook | None = None) -> StoreLook:
    """A frozen look at the store in a folder; reads its index, and of the log what is not indexed.

    Args:
        folder: the store's.
        before: an earlier look: segments whose files have not changed since are not read again.

    Raises:
        NotAStore: the folder holds no store.
        Busy: compactions switched files again and again while they were looked at.
        CorruptData: neither the descriptor nor any segment says what the store is, its segments are gone, or two
            generations of one are there and nothing says which counts.
        Unsupported: a later release wrote it.
        StorageError: it cannot be read.
    """
    path = os.path.abspath(os.fsdecode(folder))
    for left in reversed(range(_LOOKS)):
        try:
            found = _try_to_look(path, before, is_last=not left)
        except StorageError as error:
            # A file that was listed is gone: a compaction has removed it, or given it another name.
            if error.errno != errno.ENOENT or not left:
                raise
            continue
        if found is not None:
            return found
    raise Busy(f"compactions of the store in {path} switched files {_LOOKS} times while it was looked at; look again")


def look_at_segment(folder: StrPath, name: SegmentName, descriptor: Descriptor) -> LoadedSegment:
    """The index of one segment of a store that was looked at before.

    Raises:
        NotFound: the segment is gone; a compaction has removed it.
        Unsupported, StorageError: as for `look_at_store`.
    """
    path = os.path.abspath(os.fsdecode(folder))
    for left in reversed(range(_LOOKS)):
        names, index_files = list_log(path, check=False)
        file = segment_path(path, name)
        if file is None:
            raise NotFound(f"segment {name} of the store in {path} is gone")
        try:
            return _load(_loader(path, descriptor, index_files, {name: file}), name, is_active=name >= max(names))
        except StorageError as error:
            if error.errno != errno.ENOENT or not left:
                raise
    raise AssertionError("the last try returns or raises")


def segment_path(folder: str, name: SegmentName) -> str | None:
    """Where the file of a segment is: one that a commit has put in force may not have its name yet; `None` if gone."""
    final = os.path.join(folder, name.log_file)
    # Twice, as it may get its name in between.
    places = (final, os.path.join(folder, private_name(name)), final)
    return next((path for path in places if look_at(path) is not None), None)


@attrs.frozen
class _Layout:
    """Which segments count, and where they are.

    Attributes:
        names: the segments, in log order.
        index_files: the offsets at which index files begin, by segment.
        paths: files of segments that do not have their names yet.
        log: the compaction that runs, or was interrupted.
        damage: what is wrong with its log.
    """

    names: tuple[SegmentName, ...]
    index_files: dict[SegmentName, list[int]]
    paths: dict[SegmentName, str]
    log: CompactionLog | None
    damage: tuple[CorruptData, ...]

    def continues(self, after: _Layout) -> bool:
        """Whether the log was only appended to until `after`."""
        return after.names[:len(self.names)] == self.names

    @property
    def clash(self) -> tuple[SegmentName, SegmentName] | None:
        """Two generations of one position."""
        return next((pair for pair in pairwise(self.names) if pair[0].position == pair[1].position), None)


def _layout(folder: str) -> _Layout:
    """The compaction log says what counts: as `recover_compaction`, without changing anything."""
    damage: tuple[CorruptData, ...] = ()
    try:
        log = read_log(folder)
    except CorruptData as error:
        log, damage = None, (error,)
    listed, index_files = list_log(folder, check=False)
    names, paths = set(listed), dict[SegmentName, str]()
    if log is not None:
        names.difference_update(*(cycle.sources for cycle in log.cycles if cycle.ended_ms is not None))
        cycle = log.cycles[-1] if log.cycles else None
        if cycle is not None and log.phase is Phase.COPY:
            given = names.intersection(cycle.planned)
            if given and names.issuperset(cycle.sources):
                # The step that said COMMIT is damaged, or came after the log was read: the sources are whole still.
                names -= given
        elif cycle is not None and log.phase in (Phase.COMMIT, Phase.CLEANUP):
            names.difference_update(cycle.sources)
            for target in cycle.targets:
                names.add(target.name)
                paths[target.name] = _path_of(folder, target)
    ordered = sorted(names)
    if ordered and ordered[-1] not in paths and never_whole(folder, ordered[-1]):
        # It is being created, or a crash came while it was: no record was ever in it.
        ordered.pop()
    return _Layout(tuple(ordered), index_files, paths, log, damage)


def _path_of(folder: str, target: Target) -> str:
    path = segment_path(folder, target.name)
    try:
        size = 0 if path is None else os.stat(path).st_size
    except OSError as error:
        raise StorageError.from_os(error, "look at", str(path)) from error
    if path is None or size != target.end:
        raise CorruptData(path=path or os.path.join(folder, target.name.log_file), offset=size,
                          expected=f"a new segment of {target.end} bytes", found=f"{size} bytes")
    return path


def _try_to_look(folder: str, before: StoreLook | None, *, is_last: bool) -> StoreLook | None:
    """One try; `None` if files were switched meanwhile."""
    _check_folder(folder)
    try:
        layout = _layout(folder)
    except CorruptData:
        # A new segment that a commit relies on; unless the next step came after the log was read.
        if is_last:
            raise
        return None
    if layout.clash is not None:
        if not is_last:
            return None
        first, second = layout.clash
        raise layout.damage[0] if layout.damage else CorruptData(
            path=os.path.join(folder, second.log_file), offset=0, expected="one generation of each position",
            found=f"{first} beside {second}")
    descriptor, lost = _descriptor(folder, layout.names)
    check_not_emptied(folder, layout.names, layout.index_files)
    loader = _loader(folder, descriptor, layout.index_files, layout.paths)
    known = before.loaded if before is not None and before.descriptor == descriptor else {}
    loaded = {name: _loaded(loader, name, name == layout.names[-1], known) for name in layout.names}
    erasures = pending_erasures(folder, descriptor.incarnation)
    try:
        after = _layout(folder)
    except CorruptData:
        return None
    if not layout.continues(after):
        return None
    segments = tuple(each.segment.without_contents(erasures.get(name, ()), descriptor.incarnation)
                     for name, (_, each) in loaded.items())
    if not segments:
        segments = (LogSegment(FIRST_SEGMENT, SEGMENT_HEADER_BYTES),)
    contents = LogContents.of(descriptor.incarnation, segments, OpenIndex(segments[-1].name, segments[-1].end),
                              None if before is None else before.snapshot.contents.directory)
    damage = (*lost, *layout.damage, *_lost_segments(folder, layout, after),
              *(error for _, each in loaded.values() for error in each.report.damage))
    log = layout.log if layout.log is not None and layout.log.phase is not Phase.DONE else None
    return StoreLook(folder, descriptor, contents.snapshot(None, descriptor.segment_bytes), damage, log, loaded)


def _check_folder(folder: str) -> None:
    if not os.path.isdir(folder):
        raise NotAStore(f"{folder} is no folder; give that of a blob store", path=folder)
    for name in _OWN_FILES:
        path = os.path.join(folder, name)
        try:
            found = os.stat(path)  # once: an owner may make or remove it meanwhile
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise StorageError.from_os(error, "open", path) from error
        if not stat.S_ISREG(found.st_mode):
            # A pipe would be waited for.
            raise NotAStore(f"{path} is not a file, and a store's is one; see what it is, and remove it", path=folder)


def _descriptor(folder: str, names: Sequence[SegmentName]) -> tuple[Descriptor, tuple[CorruptData, ...]]:
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


def _lost_segments(folder: str, *layouts: _Layout) -> Iterator[CorruptData]:
    """Segments of which only an index is left, at each look, whose place no other has taken, and which no compaction
    removes."""
    held = {name.position for layout in layouts for name in layout.names}
    logs = [layout.log for layout in layouts if layout.log is not None]
    going = {name for log in logs for cycle in log.cycles for name in (*cycle.sources, *cycle.planned)}
    for name in sorted(set.intersection(*(set(layout.index_files) for layout in layouts))):
        if name.position not in held and name not in going:
            yield CorruptData(path=os.path.join(folder, name.log_file), offset=0, expected="the segment of an index",
                              found="no such file")


def _loader(folder: str, descriptor: Descriptor, index_files: dict[SegmentName, list[int]],
            paths: dict[SegmentName, str]) -> SegmentLoader:
    return SegmentLoader(LocalFiles(), folder, descriptor, _INDEX_MAX_ENTRIES, index_files, repair=False, paths=paths)


def _loaded(loader: SegmentLoader, name: SegmentName, is_active: bool,
            known: Mapping[SegmentName, tuple[object, LoadedSegment]]) -> tuple[object, LoadedSegment]:
    """A segment with how its files look, read again if they look otherwise than before."""
    paths = [loader.paths.get(name) or os.path.join(loader.folder, name.log_file),
             *(os.path.join(loader.folder, name.index_file(start)) for start in loader.index_files.get(name, ()))]
    try:
        # The path of the segment itself does not matter: it may get its name at any time.
        looks = is_active, tuple((stat.st_ino, stat.st_size, stat.st_mtime_ns) for stat in map(os.stat, paths))
    except OSError as error:
        raise StorageError.from_os(error, "look at", error.filename) from error
    if name in known and known[name][0] == looks:
        return known[name]
    return looks, _load(loader, name, is_active=is_active)


def _load(loader: SegmentLoader, name: SegmentName, *, is_active: bool) -> LoadedSegment:
    """A segment as far as it was written: the active one may end in the middle of a record."""
    if not is_active:
        return loader.load_sealed(name)
    loading = Loading(loader, name)
    loading.read_index_files()
    start, size = loading.end, loading.file.size()
    if size > start:
        kept, end = acknowledged(list(scan_records(loading.file, start, size)), start)
        if kept:
            loading.add_scanned(kept, end)
    return loading.loaded(None)
