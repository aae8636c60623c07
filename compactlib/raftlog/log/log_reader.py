# SPDX-License-Identifier: Apache-2.0
"""`LogReader`: reading a log's folder, from the process that writes it or from any other."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from compactlib._arguments import require_whole
from compactlib.budget import Budget
from compactlib.clock import SystemClock
from compactlib.errors import Busy, CorruptData, NotFound
from compactlib.files.disk import LocalFiles, StrPath, local_path
from compactlib.guard import Guard
from compactlib.indexset import IndexSet
from compactlib.raftlog.compaction.commit import leftovers
from compactlib.raftlog.compaction.plan import LogPlan, plan_for
from compactlib.raftlog.compaction.policies import SeedPolicy
from compactlib.raftlog.compaction.policy import LogPolicy, LogView
from compactlib.raftlog.compaction.statistics import StatsCache, room_in
from compactlib.raftlog.log.folder import Examination, OtherName, examine_segments, other_names, require_log, wal_of
from compactlib.raftlog.log.reading import LogReading
from compactlib.raftlog.model.names import segment_name
from compactlib.raftlog.model.snapshot_meta import (
    NO_SNAPSHOT,
    SnapshotMeta,
    SnapshotVersion,
    read_snapshot_meta,
    snapshot_version,
)
from compactlib.raftlog.model.values import SegmentLimits
from compactlib.raftlog.segment.segment_list import DEFAULT_MAX_OPEN, OpenFiles, SegmentList, read_folder
from compactlib.report import VerifyReport

if TYPE_CHECKING:
    from compactlib.raftlog.memtable import Memtable
    from compactlib.raftlog.wal.frames import Frame

_MAX_LOOKS = 100


class LogReader(LogReading):
    """A log's folder, open for reading: nothing on the disk is changed, and another process may be writing.

    It sees the log as it was when opened; `refresh` looks again. Threads may share one. When the writer's compaction
    removes a segment that this reader still lists, the reader refreshes by itself.

    In the folder of a log of a `RaftLogStore` it also reads the store's write-ahead log, where the newest entries are:
    all of it, whenever it looks at the folder. So its answers are those of the `RaftLog`; `unflushed` says which come
    from there. `view`, `stats` and `plan` are about segments.

    Args:
        folder: the log's folder.
        max_open_segments: files kept open.

    Raises:
        NotALog: there is no log.
        CorruptData: a segment's index, the snapshot state or the store's write-ahead log is damaged.
        Unsupported: a file was written by a later release.
        StorageError: the folder cannot be read.
    """

    def __init__(self, folder: StrPath, *, max_open_segments: int = DEFAULT_MAX_OPEN) -> None:
        # Absolute: the tasks of a compaction may run in processes that are in another folder.
        folder = local_path(folder)
        require_whole("max_open_segments", max_open_segments, 1)
        self._open_files = OpenFiles(max_open_segments)
        require_log(folder, may_create=False)
        super().__init__(folder, SegmentList(folder), Guard(f"the reader of the log in {folder}"))
        self._wal = wal_of(folder)
        self._snapshot_version: SnapshotVersion | None = None
        self._stats = StatsCache()
        self.refresh()

    def refresh(self) -> None:
        """Look at the folder again: new segments, compactions, a new snapshot.

        Raises:
            Busy: snapshots are recorded faster than the folder can be read, or a received one is being installed.
            CorruptData, Unsupported, StorageError: as when it was opened.
        """
        with self._guard.lock:
            self._guard.require_open()
            for _ in range(_MAX_LOOKS):
                version = snapshot_version(self._folder)
                row = read_snapshot_meta(self._folder)
                wal_files = self._wal_files()
                # Before the segments: what leaves the WAL is in segments by then.
                frames = self._frames()
                contents = read_folder(self._folder, row)
                # A list older than the row may lack entries that are live by it, a newer one those that died since. And
                # one that a cut has shortened lacks entries that the WAL holds by now.
                if read_snapshot_meta(self._folder) != row:
                    continue
                if self._wal_files() != wal_files and not _cuts_in(self._frames()) <= _cuts_in(frames):
                    continue
                segments = SegmentList(self._folder, contents.known, row, open_files=self._open_files)
                with contextlib.suppress(NotFound):
                    memtable = _replayed(frames, segments, row or NO_SNAPSHOT) if frames else None
                    break
            else:
                raise Busy(f"{self._folder} changed {_MAX_LOOKS} times while it was looked at; try again")
            self._refuse_half_installed(row)
            # Who reads by the old list goes on.
            self._open_files.closed(self._segments, list(self._segments.readers))
            self._segments, self._memtable, self._snapshot_version = segments, memtable, version
            newest = contents.newest
            self._limits = SegmentLimits() if newest is None else newest.loaded.header.limits

    def _refuse_half_installed(self, row: SnapshotMeta | None) -> None:
        if self._wal is not None and row is not None and row.manifest is not None:
            # Loaded for logs of a store alone, as below.
            from compactlib.raftlog.snapshots.folder import is_half_installed

            if is_half_installed(self._folder, row):
                raise Busy(f"{self._folder} is taking a snapshot that its leader has sent; open it again when that "
                           f"has ended, or open its store if the process that did so is gone")

    @property
    def _is_contiguous(self) -> bool:
        return self._wal is not None

    def _is_behind(self) -> bool:
        return snapshot_version(self._folder) != self._snapshot_version

    def _frames(self) -> tuple[Frame, ...]:
        if self._wal is None:
            return ()
        # Loaded for logs of a store alone, as in `_replayed`.
        from compactlib.raftlog.log.unflushed import read_frames

        return read_frames(self._wal, os.path.basename(os.path.realpath(self._folder)))

    def _wal_files(self) -> object:
        """What the files of the WAL are like, to be compared with what they are like later."""
        if self._wal is None:
            return None
        from compactlib.raftlog.log.unflushed import wal_files

        return wal_files(self._wal)

    def checkpoint(self, index: int) -> SnapshotMeta | None:
        """The checkpoint of that index, with its live set; `None` if the log has none.

        Raises:
            CorruptData, Unsupported, StorageError: it cannot be read.
        """
        # Loaded for logs that keep states alone.
        from compactlib.raftlog.snapshots.folder import checkpoint_in

        return checkpoint_in(self._folder, index)

    @property
    def limits(self) -> SegmentLimits:
        """The limits with which the log's newest segment was begun; its plans are made under them."""
        return self._limits

    @property
    def unflushed(self) -> IndexSet:
        """Which entries come from the write-ahead log of the log's store, since no segment holds them yet."""
        return (self._segments.row or NO_SNAPSHOT).needed(super().unflushed)

    def view(self, *, budget: Budget | None = None) -> LogView:
        self._guard.require_open()
        row, memtable = self._segments.row, self._memtable
        if row is not None and memtable is not None:
            # Without what is alive in the write-ahead log only.
            row = SnapshotMeta(row.index, row.term, row.live.at_most(memtable.base - 1))
        known = self._segments.known() if self.refs else ()
        return self._stats.view_of(self._segments, row, known, self._limits, budget)

    def plan(self, policy: LogPolicy | None = None, *, view: LogView | None = None) -> LogPlan:
        """What a compaction would do now, and why it would leave the rest: a dry run that changes nothing.

        Args:
            policy: decides what is rewritten; default `SeedPolicy()`.
            view: to plan for instead of the log as it is now.

        Raises:
            InvalidInput: the policy is none, or its choice breaks a rule.
            Exception: whatever the policy raised.
        """
        self._guard.require_open()
        return plan_for(self.view() if view is None else self._require_own(view),
                        SeedPolicy() if policy is None else policy, SystemClock().now(),
                        bytes_available=room_in(LocalFiles(), self._folder))

    def leftovers(self) -> Sequence[str]:
        """Names that an interrupted compaction has left; those of one that runs in another process, too.

        Raises:
            StorageError: the folder cannot be read.
        """
        return leftovers(self._folder)

    def path_of(self, number: int) -> str:
        """The path of a segment's file, which a compaction may remove at any time."""
        return os.path.join(self._folder, segment_name(number))

    def other_names(self) -> tuple[OtherName, ...]:
        """Every name in the folder that is no segment with entries of its own, nor a file that each log has.

        Raises:
            StorageError: the folder cannot be read.
        """
        return other_names(self._folder, {ref.number for ref in self.refs})

    def close(self) -> None:
        """Let all files go; closing again does nothing."""
        self._guard.close()
        self._segments.close()


def verify_log(folder: StrPath) -> VerifyReport:
    """Verify the log in a folder: `LogReader.verify`, and each segment by itself if the log cannot be opened.

    Raises:
        NotALog: there is no log.
        StorageError: something cannot be read.
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


def _cuts_in(frames: Sequence[Frame]) -> set[tuple[object, ...]]:
    """What tells the frames that cut the log from each other."""
    return {(frame.kind, frame.previous, frame.first, frame.term) for frame in frames if frame.cuts}


def _replayed(frames: tuple[Frame, ...], segments: SegmentList, row: SnapshotMeta) -> Memtable | None:
    from compactlib.raftlog.log.unflushed import replayed

    return replayed(frames, segments, row)
