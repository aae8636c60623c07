# SPDX-License-Identifier: Apache-2.0
"""Opening a log: index files where they hold, the log itself where they do not.

What is known to be durable is never cut. Records are kept up to the first that does not hold, and that point is
searched only behind the last record that was written when everything before it was durable: what lies before such a
record was acknowledged, so a failure there is damage, which is reported; what lies behind may never have reached the
disk, so a failure there is the end of the log.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise

import attrs

from compactlib.blobstore.compaction.plan.last_plans import FILE_NAME as LAST_PLANS_NAME
from compactlib.blobstore.compaction.progress.compaction_file import LOG_NAME as COMPACTION_NAME
from compactlib.blobstore.index.index_file import read_index, write_index
from compactlib.blobstore.index.index_segment import IndexSegment
from compactlib.blobstore.index.open_index import OpenIndex
from compactlib.blobstore.log.contents import LogSegment
from compactlib.blobstore.model.names import FIRST_SEGMENT, SegmentName, place_of_index_file, segment_of_log_file
from compactlib.blobstore.model.values import IndexEntry, RecordFlag
from compactlib.blobstore.segment.descriptor import Descriptor
from compactlib.blobstore.segment.erasure import STATE_NAME as ERASURE_NAME
from compactlib.blobstore.segment.reader import SEGMENT_HEADER_BYTES, SegmentFile, SegmentHeader
from compactlib.blobstore.segment.scan import DamagedRange, Scanned, ScannedRecord, scan_records
from compactlib.errors import CorruptData, StorageError, Unsupported
from compactlib.files.disk import Files, look_at


def _without_frames(errors: Iterable[CorruptData]) -> tuple[CorruptData, ...]:
    """Kept for as long as the store is, they would keep the files open that the frames had open."""
    return tuple(error.with_traceback(None) for error in errors)


FILES_BESIDE_SEGMENTS = (COMPACTION_NAME, ERASURE_NAME, LAST_PLANS_NAME)
"""What only a store with segments has."""


@attrs.frozen
class BlobRecoveryReport:
    """What opening a store found out of order. All empty after a clean close.

    Attributes:
        damage: what is not as it was written; whatever is not named here is readable.
        rebuilt: segments whose index, or part of it, was made again from the log.
        cut_bytes: bytes behind the last whole record that were cut off: writes that were never acknowledged.
    """

    damage: tuple[CorruptData, ...] = attrs.field(default=(), converter=_without_frames)
    rebuilt: tuple[SegmentName, ...] = ()
    cut_bytes: int = 0

    def to_dicts(self) -> list[dict[str, object]]:
        """One row for each finding."""
        rows: list[dict[str, object]] = [
            {"finding": "damage", "path": error.path, "offset": error.offset, "found": error.found}
            for error in self.damage]
        rows.extend({"finding": "index rebuilt", "path": str(name)} for name in self.rebuilt)
        if self.cut_bytes:
            rows.append({"finding": "tail cut", "bytes": self.cut_bytes})
        return rows


@attrs.frozen
class LoadedSegment:
    """One log segment, opened.

    Attributes:
        segment: the segment with its sealed index.
        header: its header, or what it has to be if the file's is damaged.
        open: the index of what comes behind; only of the active segment.
        report: what was out of order.
    """

    segment: LogSegment
    header: SegmentHeader
    open: OpenIndex | None
    report: BlobRecoveryReport


@attrs.frozen
class SegmentLoader:
    """Opens log segments of one store.

    Attributes:
        files: the disk.
        folder: the store's folder.
        descriptor: what the store is.
        index_max_entries: how many entries an index segment made from the log may have.
        index_files: the offsets at which the folder's index files begin, by segment.
        repair: whether indexes that had to be made again are written to the disk.
        not_written: called with each that the disk did not take; it is made again at the next opening.
        paths: files of segments that do not have their own name yet.
    """

    files: Files
    folder: str
    descriptor: Descriptor
    index_max_entries: int
    index_files: dict[SegmentName, list[int]]
    repair: bool = True
    not_written: Callable[[str, StorageError], None] = lambda place, error: None
    paths: Mapping[SegmentName, str] = attrs.field(factory=dict)

    def load_sealed(self, name: SegmentName) -> LoadedSegment:
        """Open a segment that nothing is appended to any more.

        Raises:
            StorageError: the disk refused.
            Unsupported: its format version is newer than this release.
        """
        loading = Loading(self, name)
        loading.read_index_files()
        at, size = loading.end, loading.file.size()
        if size > at:
            loading.add_scanned(list(scan_records(loading.file, at, size)), size)
        return loading.loaded(None)

    def load_active(self, name: SegmentName) -> LoadedSegment:
        """Open the segment that is appended to; cuts off what was never acknowledged, and syncs the rest.

        Raises:
            StorageError: the disk refused.
            Unsupported: its format version is newer than this release.
        """
        loading = Loading(self, name)
        loading.read_index_files()
        start, size = loading.end, loading.file.size()
        index = OpenIndex(name, start)
        if loading.index and len(loading.index[-1]) <= self.index_max_entries // 2:
            # A small one, sealed when the store was closed: goes on growing instead of being followed by another.
            index = OpenIndex.reopened(loading.index.pop())
        kept, end = acknowledged(list(scan_records(loading.file, start, size)), start)
        loading.note_damage(kept)
        for record in kept:
            if isinstance(record, ScannedRecord):
                index.append(record.header.entry(name, record.offset))
        index.end = max(index.end, end)
        if size > index.end:
            loading.cut_bytes = size - index.end
        self._settle(loading.file.path, min(size, index.end) if loading.cut_bytes else None)
        return loading.loaded(index)

    def _settle(self, path: str, cut_to: int | None) -> None:
        """What is answered from now on has to be on the disk."""
        with contextlib.closing(self.files.open(path)) as out:
            if cut_to is not None:
                out.truncate(cut_to)
            out.sync()


class Loading:
    """One segment while it is being opened."""

    def __init__(self, loader: SegmentLoader, name: SegmentName) -> None:
        self._loader = loader
        self._name = name
        self._damage: list[CorruptData] = []
        self._rebuilt = False
        self._useless: list[int] = []
        self.index: list[IndexSegment] = []
        self.cut_bytes = 0
        self.file: SegmentFile
        path = loader.paths.get(name) or os.path.join(loader.folder, name.log_file)
        expected = loader.descriptor.header(name)
        try:
            self.file = SegmentFile(path)
            if attrs.evolve(self.file.header, first_sequence=0) != expected:
                raise CorruptData(path=path, offset=0, expected=f"the header {expected}",
                                  found=f"{self.file.header}")
        except CorruptData as error:
            # Everything that the header says is known from elsewhere.
            self._damage.append(error)
            self.file = SegmentFile(path, expected)

    @property
    def end(self) -> int:
        """How far the index reaches."""
        return self.index[-1].end if self.index else SEGMENT_HEADER_BYTES

    def read_index_files(self) -> None:
        """The chain of index files; gaps in it are filled from the log."""
        for start in self._loader.index_files.get(self._name, ()):
            path = os.path.join(self._loader.folder, self._name.index_file(start))
            try:
                index = read_index(path, self._loader.descriptor.incarnation)
                if index.segment != self._name or index.start != start or index.start < self.end or (
                        index.end > self._loader.descriptor.segment_bytes):
                    raise CorruptData(path=path, offset=16, expected=f"the index of {self._name} from {start}, behind "
                                      f"{self.end}", found=f"{index}")
            except (CorruptData, Unsupported) as error:
                self._rebuilt = True
                self._useless.append(start)
                if isinstance(error, CorruptData):
                    self._damage.append(error)
                continue
            if start > self.end:
                self.add_scanned(list(scan_records(self.file, self.end, start)), start)
            self.index.append(index)
        if self.file.size() < self.end:
            self._damage.append(CorruptData(path=self.file.path, offset=self.file.size(),
                                            expected=f"records up to offset {self.end}", found="the end of the file"))

    def add_scanned(self, scanned: Sequence[Scanned], end: int) -> None:
        """Make index segments of what a scan up to `end` found."""
        self._rebuilt = True
        self.note_damage(scanned)
        records = [found for found in scanned if isinstance(found, ScannedRecord)]
        step = self._loader.index_max_entries
        for first in range(0, max(len(records), 1), step):
            chosen = records[first:first + step]
            stop = max(end, records[-1].end if records else 0) if first + step >= len(records) else chosen[-1].end
            self._add_index([record.header.entry(self._name, record.offset) for record in chosen], stop)

    def _add_index(self, entries: list[IndexEntry], stop: int) -> None:
        loader = self._loader
        index = IndexSegment.of_entries(self._name, entries, self.end, stop, loader.descriptor.incarnation)
        self.index.append(index)
        if loader.repair:
            try:
                write_index(loader.files, loader.folder, index, loader.descriptor.incarnation)
            except StorageError as error:
                # It is in memory, and the log says the same: a full disk keeps no store from being opened.
                loader.not_written(str(index.place), error)

    def note_damage(self, scanned: Iterable[Scanned]) -> None:
        """Remember what a scan found that is no whole record."""
        for found in scanned:
            if isinstance(found, DamagedRange):
                self._damage.append(CorruptData(path=self.file.path, offset=found.offset, expected="a record",
                                                found=f"{found.end - found.offset} bytes of something else: "
                                                      f"{found.found}"))
            elif not found.whole:
                self._damage.append(CorruptData(
                    path=self.file.path, offset=found.offset, index=found.header.sequence,
                    expected=f"{found.header.size} bytes of blob {found.header.id!r}", found="content whose CRC fails"))

    def loaded(self, index: OpenIndex | None) -> LoadedSegment:
        """The result; index files that are of no use, and were not written anew, are removed."""
        loader = self._loader
        for start in set(self._useless).difference(known.start for known in self.index) if loader.repair else ():
            loader.files.unlink(os.path.join(loader.folder, self._name.index_file(start)))
        end = self.end if index is None else index.start
        report = BlobRecoveryReport(tuple(self._damage), (self._name,) if self._rebuilt else (), self.cut_bytes)
        return LoadedSegment(LogSegment(self._name, end, tuple(self.index)), self.file.header, index, report)


def acknowledged(scanned: Sequence[Scanned], start: int) -> tuple[Sequence[Scanned], int]:
    """How much of what a scan of the active segment found counts, and where the log ends."""
    proven = max((place for place, found in enumerate(scanned) if isinstance(found, ScannedRecord)
                  and found.header.flags & RecordFlag.SYNCED_BEFORE), default=0)
    count = next((place for place in range(proven, len(scanned)) if not _holds(scanned[place])), len(scanned))
    return scanned[:count], scanned[count - 1].end if count else start


def _holds(found: Scanned) -> bool:
    return isinstance(found, ScannedRecord) and found.whole


def list_log(folder: str, *, check: bool = True) -> tuple[list[SegmentName], dict[SegmentName, list[int]]]:
    """The log segments in a folder, and where their index files begin, both ascending.

    Raises:
        CorruptData: `check` is set, and two generations of one position are there.
        StorageError: the folder cannot be read.
    """
    names, index_files = [], dict[SegmentName, list[int]]()
    for file_name in _ordinary_names(folder):
        name, place = segment_of_log_file(file_name), place_of_index_file(file_name)
        if name is not None:
            names.append(name)
        elif place is not None:
            index_files.setdefault(place.segment, []).append(place.offset)
    names.sort()
    for first, second in pairwise(names) if check else ():
        if first.position == second.position:
            raise CorruptData(path=os.path.join(folder, second.log_file), offset=0,
                              expected="one generation of each position", found=f"{first} beside {second}")
    return names, {name: sorted(starts) for name, starts in index_files.items()}


def _ordinary_names(folder: str) -> list[str]:
    """The ordinary files in a folder. What else has such a name is unrelated: links are not
    followed, pipes not waited for."""
    try:
        with os.scandir(folder) as found:
            return [entry.name for entry in found if entry.is_file(follow_symlinks=False)]
    except OSError as error:
        raise StorageError.from_os(error, "list", folder) from error


def check_not_emptied(folder: str, names: Sequence[SegmentName], index_files: Mapping[SegmentName, list[int]]) -> None:
    """Return unless all segments of a store were taken away: it is not a new one, what they held was acknowledged.

    Raises:
        CorruptData: they were.
    """
    if names:
        return
    if index_files or any(look_at(os.path.join(folder, name)) is not None for name in FILES_BESIDE_SEGMENTS):
        raise CorruptData(path=os.path.join(folder, FIRST_SEGMENT.log_file), offset=0,
                          expected="the segments of the log", found="none, although the store has had some; restore "
                          "the folder from a copy")


def find_descriptor(folder: str, names: Sequence[SegmentName]) -> Descriptor | None:
    """What the segments' headers say of their store; `None` if none of them can be read."""
    for name in names:
        try:
            return Descriptor.of_header(SegmentFile(os.path.join(folder, name.log_file)).header)
        except (CorruptData, StorageError):
            continue
    return None


def merged(reports: Iterable[BlobRecoveryReport]) -> BlobRecoveryReport:
    """All of them in one."""
    every = list(reports)
    return BlobRecoveryReport(tuple(error for report in every for error in report.damage),
                          tuple(name for report in every for name in report.rebuilt),
                          sum(report.cut_bytes for report in every))
