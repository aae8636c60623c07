# SPDX-License-Identifier: Apache-2.0
"""`LogReader` reads a log's folder, in the owner's process or in any other."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence

from compactlib._arguments import require_whole
from compactlib.budget import Budget
from compactlib.clock import SystemClock
from compactlib.errors import Busy, CorruptData, NotFound
from compactlib.files.disk import LocalFiles, StrPath, local_path
from compactlib.guard import Guard
from compactlib.indexset import IndexSet
from compactlib.raftlog.compaction.plan import LogPlan, plan_for
from compactlib.raftlog.compaction.policy import LogPolicy, LogView
from compactlib.raftlog.log.folder import Examination, examine_segments, require_log, wal_of
from compactlib.raftlog.log.reading import LogReading
from compactlib.raftlog.memtable import Memtable, replay
from compactlib.raftlog.names import segment_name
from compactlib.raftlog.policies import SeedPolicy
from compactlib.raftlog.segment.listing import read_folder
from compactlib.raftlog.segment.segments import DEFAULT_MAX_OPEN, OpenFiles, Segments
from compactlib.raftlog.snapshot_meta import (
    NO_SNAPSHOT,
    SnapshotMeta,
    SnapshotVersion,
    read_snapshot_meta,
    snapshot_version,
)
from compactlib.raftlog.snapshots import is_half_installed
from compactlib.raftlog.values import SegmentLimits
from compactlib.raftlog.wal.frames import Frame, read_frames, wal_files
from compactlib.report import VerifyReport

_MAX_READS = 100


class LogReader(LogReading):
    """A log's folder, open for reading. Changes nothing on the disk; another process may own the log.

    It reads the log as it was at the opening or the last `refresh`. When the owner's compaction removes a segment that
    this reader still lists, the reader refreshes. Threads may share it.

    In the folder of a log of a `RaftLogStore` it also reads the store's whole WAL, where the newest entries are, at
    each refresh. So its answers are those of the `RaftLog`; `unflushed` has the indexes that are only in the WAL.
    `view` and `plan` are about segments.

    Args:
        folder: the log's folder.
        max_open_segments: files kept open.

    Attributes:
        limits: of the log's newest segment; they count for plans.

    Raises:
        NotALog: there is no log.
        CorruptData: a segment's index, the log's row or the store's WAL is damaged.
        Unsupported: a file was written by a later release.
        StorageError: the folder cannot be read.
    """

    def __init__(self, folder: StrPath, *, max_open_segments: int = DEFAULT_MAX_OPEN) -> None:
        # Absolute: tasks of a compaction may run in processes with another working directory.
        folder = local_path(folder)
        self._open_files = OpenFiles(require_whole("max_open_segments", max_open_segments, 1))
        require_log(folder, may_create=False)
        guard = Guard(f"the reader of the log in {folder}")
        super().__init__(folder, Segments(folder, guard, open_files=self._open_files), guard)
        self._wal = wal_of(folder)
        self._snapshot_version: SnapshotVersion | None = None
        self.refresh()

    def refresh(self) -> None:
        """Re-read the folder: new segments, compactions, a new snapshot.

        Raises:
            Busy: snapshots are recorded faster than the folder can be read, or a received snapshot is being installed.
            CorruptData, Unsupported, StorageError: as at the opening.
        """
        with self._guard.lock:
            self._guard.require_open()
            for _ in range(_MAX_READS):
                version = snapshot_version(self._folder)
                row = read_snapshot_meta(self._folder)
                # Before the entries: the installation may end while they are read.
                is_half = row is not None and is_half_installed(self._folder, row)
                wal_files = self._wal_files()
                # The WAL before the segments: an entry is in segments before it leaves the WAL.
                frames = self._frames()
                try:
                    contents = read_folder(self._folder, row)
                except CorruptData:
                    # Segments within the range of one that was merged by a later row look damaged by this row.
                    if read_snapshot_meta(self._folder) == row:
                        raise
                    continue
                # A list older than the row may lack entries that are live by the row; a newer list may lack entries
                # that died later. A list that a truncation has shortened lacks entries that are in the WAL by now, or
                # were flushed since: then a WAL file, perhaps with the truncation, is gone.
                if read_snapshot_meta(self._folder) != row:
                    continue
                if self._wal_files() != wal_files and (
                        _cuts_in(self._frames()) != _cuts_in(frames)
                        or not _names(wal_files) <= _names(self._wal_files())):
                    continue
                segments = Segments(self._folder, self._guard, contents.known, row, open_files=self._open_files)
                with contextlib.suppress(NotFound):
                    memtable = _replayed(frames, segments, row or NO_SNAPSHOT)
                    break
            else:
                raise Busy(f"{self._folder} changed {_MAX_READS} times while it was read; try again")
            if is_half:
                raise Busy(f"{self._folder} is installing a snapshot of its leader; open it again when that has ended, "
                           f"or open its store if that process has ended")
            self._segments.retire()
            self._segments, self._memtable, self._snapshot_version = segments, memtable, version
            newest = contents.newest
            self.limits: SegmentLimits = SegmentLimits() if newest is None else newest.loaded.header.limits

    @property
    def _is_contiguous(self) -> bool:
        return self._wal is not None

    def _is_behind(self) -> bool:
        return snapshot_version(self._folder) != self._snapshot_version

    def _frames(self) -> tuple[Frame, ...]:
        return () if self._wal is None else read_frames(self._wal, os.path.basename(os.path.realpath(self._folder)))

    def _wal_files(self) -> list[tuple[str, int, int]]:
        """Names, sizes and times of the WAL files, to detect changes."""
        return [] if self._wal is None else wal_files(self._wal)

    @property
    def unflushed(self) -> IndexSet:
        """Indexes of the entries that are only in the store's WAL, and in no segment."""
        return (self._segments.row or NO_SNAPSHOT).needed(super().unflushed)

    def view(self, *, budget: Budget | None = None) -> LogView:
        self._guard.require_open()
        return self._retried(lambda: self._sense(budget))

    def _sense(self, budget: Budget | None) -> LogView:
        # Read once: another thread may refresh the log.
        segments, memtable = self._segments, self._memtable
        row = segments.row
        if row is not None and memtable is not None:
            # Without live entries that are only in the WAL.
            row = SnapshotMeta(row.index, row.term, row.live.at_most(memtable.table.base - 1))
        return self._view_of(segments.known() if self.refs else (), row, self.limits, budget)

    def _planned(self, view: LogView, policy: LogPolicy | None) -> LogPlan:
        return plan_for(view, SeedPolicy() if policy is None else policy, SystemClock().now(),
                        bytes_available=LocalFiles().available_bytes(self._folder))

    def path_of(self, number: int) -> str:
        """The path of a segment's file, which a compaction may remove at any time."""
        return os.path.join(self._folder, segment_name(number))

    def close(self) -> None:
        """Close all files. Idempotent."""
        with self._guard.lock:  # a refresh ends before: it sets other segments
            self._guard.close()
            self._segments.close()


def verify_log(folder: StrPath) -> VerifyReport:
    """Verify the log in a folder: `LogReader.verify`, or each segment alone if the log cannot be opened.

    Raises:
        NotALog: there is no log.
        StorageError: a file cannot be read.
    """
    try:
        with LogReader(folder) as reader:
            return reader.verify()
    except CorruptData as error:
        seen = Examination()
        examine_segments(folder, seen)
        if not any(str(error) == str(each.error) for each in seen.findings):
            seen.note(error)
        return seen.report()


def _replayed(frames: Sequence[Frame], segments: Segments, row: SnapshotMeta) -> Memtable | None:
    """The memtable after a replay of `frames` over `segments`; `None` if it is empty."""
    memtable = Memtable(segments.last_index)
    replay(frames, memtable, row, segments.matching)
    return None if memtable.table.is_unused else memtable


def _names(files: Sequence[tuple[str, int, int]]) -> set[str]:
    return {name for name, _, _ in files}


def _cuts_in(frames: Sequence[Frame]) -> int:
    """Count the frames that truncate the log."""
    return sum(frame.cuts for frame in frames)
