"""Looking at a store without opening it: no lock, no writing, no repair; the store may be in use.

What is read is what was acknowledged when the look was taken. A compaction that is just switching its files cannot
be looked through from outside, and neither can one that a crash has left there: then it is `Busy`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import chain

import attrs

from compactlib.blobstore.compaction_file import LOG_NAME, read_log
from compactlib.blobstore.compaction_log import Phase
from compactlib.blobstore.config import BlobStoreConfig
from compactlib.blobstore.descriptor import DESCRIPTOR_FILE, Descriptor, read_descriptor
from compactlib.blobstore.errors import NotAStore
from compactlib.blobstore.load_log import (
    LoadedSegment,
    SegmentLoader,
    _Loading,
    acknowledged,
    find_descriptor,
    list_log,
)
from compactlib.blobstore.log_state import LogSegment, LogSnapshot, LogState
from compactlib.blobstore.model import IndexEntry, RecordFlag, RecordKind, milliseconds
from compactlib.blobstore.names import FIRST_SEGMENT, SegmentName
from compactlib.blobstore.open_index import OpenIndex
from compactlib.blobstore.scan import scan_records
from compactlib.blobstore.segment import SEGMENT_HEADER_BYTES
from compactlib.blobstore.statistics import _slices
from compactlib.blobstore.swap import Snapshot
from compactlib.blobstore.validity import Rules, Verdict, judge
from compactlib.errors import Busy, CorruptData, NotFound
from compactlib.files import LocalFiles, StrPath

_TRIES = 5
_PUT = int(RecordKind.PUT)
_TTL_UPDATED = int(RecordFlag.TTL_UPDATED)
_SWITCHING = (Phase.COMMIT, Phase.CLEANUP)


@attrs.frozen
class StoreLook:
    """A store as it was found.

    Attributes:
        folder: its folder, absolute.
        descriptor: what the store is.
        snapshot: its log and index; nothing is known of a journal, so every segment but the last is eligible.
        damage: what is not as it was written.
    """

    folder: str
    descriptor: Descriptor
    snapshot: LogSnapshot
    damage: tuple[CorruptData, ...]


def look_at_store(folder: StrPath) -> StoreLook:
    """A frozen look at the store in a folder; reads its index, and of the log what is not indexed.

    Raises:
        NotAStore: the folder holds no store.
        Busy: a compaction is switching files, or was interrupted while it did.
        CorruptData: neither the descriptor nor any segment says what the store is.
        Unsupported: a later release wrote it.
        StorageError: it cannot be read.
    """
    path = os.path.abspath(os.fspath(folder))
    for _ in range(_TRIES):
        found = _try_to_look(path)
        if found is not None:
            return found
    raise Busy(f"a compaction of the store in {path} is switching its files, or was interrupted while it did; look "
               "again later, or open the store once, which finishes it")


def kept_offsets(snapshot: Snapshot, reference_time: float, now: float) -> dict[SegmentName, set[int]]:
    """Where the records begin that a compaction of their segment alone would keep: those that `log_statistics` counts.

    Args:
        snapshot: of a store.
        reference_time: deletes made strictly before it are in effect; seconds since the epoch.
        now: blobs that expire strictly before it have expired; seconds since the epoch.
    """
    rules = Rules(reference_ms=milliseconds(reference_time), now_ms=milliseconds(now))
    parts = snapshot.index_parts()
    kept: dict[SegmentName, set[int]] = {info.name: set() for info in snapshot.segments}
    for alone, histories in _slices(parts, None):
        others: list[list[IndexEntry]] = []
        for part, row in alone:
            columns = parts[part].columns
            if columns.kinds[row] != _PUT:
                others.append([columns.entry(row)])
            elif columns.flags[row] & _TTL_UPDATED or not 0 <= columns.expiries[row] < rules.now_ms:
                # Most blobs were put once and never touched again.
                kept[columns.segment].add(columns.offsets[row])
        for history in chain(others, histories):
            for segment in {entry.segment for entry in history}:
                verdicts = judge(history, rules, (segment,))
                kept[segment].update(entry.offset for entry, verdict in zip(history, verdicts, strict=True)
                                     if entry.segment == segment and verdict is Verdict.KEEP)
    return kept


def look_at_segment(folder: StrPath, name: SegmentName, descriptor: Descriptor) -> LoadedSegment:
    """The index of one segment of a store that was looked at before.

    Raises:
        NotFound: the segment is gone; a compaction has removed it.
        Unsupported, StorageError: as for `look_at_store`.
    """
    path = os.fspath(folder)
    _, index_files = list_log(path, check=False)
    if not os.path.exists(os.path.join(path, name.log_file)):
        raise NotFound(f"segment {name} of the store in {path} is gone")
    return _load(_loader(path, descriptor, index_files), name)


def _try_to_look(folder: str) -> StoreLook | None:
    """One try; `None` if files were switched meanwhile."""
    if not os.path.isdir(folder):
        raise NotAStore(f"{folder} is no folder; give that of a blob store", path=folder)
    for name in (DESCRIPTOR_FILE, LOG_NAME):
        path = os.path.join(folder, name)
        if os.path.exists(path) and not os.path.isfile(path):
            # A pipe would be waited for.
            raise NotAStore(f"{path} is not a file, and a store's is one; see what it is, and remove it", path=folder)
    if _is_switching(folder):
        return None
    names, index_files = list_log(folder, check=False)
    descriptor = _descriptor(folder, names)
    loader = _loader(folder, descriptor, index_files)
    try:
        loaded = [_load(loader, name) for name in names]
    except NotFound:
        return None
    after, _ = list_log(folder, check=False)
    positions = {name.position for name in names}
    if after[:len(names)] != names or len(positions) != len(names) or _is_switching(folder):
        return None
    segments = tuple(segment.segment for segment in loaded) or (LogSegment(FIRST_SEGMENT, SEGMENT_HEADER_BYTES),)
    state = LogState(descriptor.incarnation, segments, OpenIndex(segments[-1].name, segments[-1].end))
    damage = tuple(error for segment in loaded for error in segment.report.damage)
    return StoreLook(folder, descriptor, state.snapshot(None, descriptor.segment_bytes), damage)


def _is_switching(folder: str) -> bool:
    log = read_log(folder)
    return log is not None and log.phase in _SWITCHING


def _descriptor(folder: str, names: Sequence[SegmentName]) -> Descriptor:
    try:
        known = read_descriptor(folder)
    except CorruptData:
        known = None
    known = known or find_descriptor(folder, names)
    if known is None:
        raise NotAStore(f"{folder} holds no blob store: neither its descriptor nor a segment can be read", path=folder)
    return known


def _loader(folder: str, descriptor: Descriptor, index_files: dict[SegmentName, list[int]]) -> SegmentLoader:
    entries = BlobStoreConfig(capacity_bytes=descriptor.capacity_bytes,
                              segment_bytes=descriptor.segment_bytes).index_max_entries
    return SegmentLoader(LocalFiles(), folder, descriptor, entries, index_files, repair=False)


def _load(loader: SegmentLoader, name: SegmentName) -> LoadedSegment:
    """A segment as far as it was acknowledged: the active one may end in the middle of a record."""
    loading = _Loading(loader, name)
    loading.read_index_files()
    start, size = loading.end, loading.file.size()
    if size > start:
        kept, end = acknowledged(list(scan_records(loading.file, start, size)), start)
        if kept:
            loading.add_scanned(kept, end)
    return loading.loaded(None)
