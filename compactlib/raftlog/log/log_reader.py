# SPDX-License-Identifier: Apache-2.0
"""`LogReader`: reading a log's folder, from the process that writes it or from any other."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from compactlib._closing import Closing
from compactlib.clock import SystemClock
from compactlib.errors import Busy, CorruptData, InvalidInput, NotFound
from compactlib.files.disk import LocalFiles, StrPath, local_path
from compactlib.indexset.index_set import IndexSet
from compactlib.raftlog.arguments import whole
from compactlib.raftlog.compaction.plan.plan import LogPlan, plan_for
from compactlib.raftlog.compaction.plan.policies.seed import SeedPolicy
from compactlib.raftlog.compaction.plan.policy import LogPolicy
from compactlib.raftlog.compaction.plan.view import LogView
from compactlib.raftlog.compaction.recover import leftovers
from compactlib.raftlog.log.folder import (
    Examination,
    FolderContents,
    examine_segments,
    read_folder,
    require_log,
    room_in,
    wal_of,
)
from compactlib.raftlog.log.other_names import OtherName, other_names
from compactlib.raftlog.log.read_path import SegmentReadPath
from compactlib.raftlog.log.read_plan import ReadPlan
from compactlib.raftlog.model.names import segment_name
from compactlib.raftlog.model.snapshot_meta import (
    NO_SNAPSHOT,
    SnapshotMeta,
    SnapshotVersion,
    read_snapshot_meta,
    snapshot_version,
)
from compactlib.raftlog.model.values import (
    MAX_INDEX,
    Answer,
    DamagedEntry,
    DeadEntry,
    Entry,
    MissingEntry,
    SegmentLimits,
    SegmentRef,
    SegmentStats,
)
from compactlib.raftlog.segment.known import KnownSegment
from compactlib.raftlog.segment.segment_set import DEFAULT_MAX_OPEN, Lease, SegmentSet
from compactlib.report import VerifyReport
from compactlib.runtime.budget import Budget

if TYPE_CHECKING:
    from compactlib.raftlog.log.unflushed import Unflushed
    from compactlib.raftlog.wal.frames import Frame

_MAX_LOOKS = 100


class LogReader(Closing):
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
        self._folder = local_path(folder)
        self._max_open = whole("max_open_segments", max_open_segments)
        if self._max_open < 1:
            raise InvalidInput(f"max_open_segments is {max_open_segments}; at least 1 stays open")
        require_log(self._folder, may_create=False)
        self._wal = wal_of(self._folder)
        self._refreshing = threading.Lock()
        self._snapshot_version: SnapshotVersion | None = None
        self._reads = SegmentReadPath(SegmentSet(self._folder), None, read=self.read, refresh=self.refresh,
                                     held=lambda: self.unflushed, is_behind=self._is_behind)
        self.refresh()

    def refresh(self) -> None:
        """Look at the folder again: new segments, compactions, a new snapshot.

        Raises:
            Busy: snapshots are recorded faster than the folder can be looked at.
            CorruptData, Unsupported, StorageError: as when it was opened.
        """
        with self._refreshing:
            for _ in range(_MAX_LOOKS):
                version = snapshot_version(self._folder)
                state = read_snapshot_meta(self._folder)
                # Before the segments: what leaves the WAL is in segments by then.
                frames = self._frames()
                contents = read_folder(self._folder, keep_open=self._max_open)
                # A list older than the state may lack entries that are live by it, a newer one those that died since.
                if read_snapshot_meta(self._folder) != state:
                    continue
                segments = SegmentSet(self._folder, contents.known, max_open=self._max_open)
                for number, reader in contents.readers:
                    segments.keep_open(number, reader)
                with contextlib.suppress(NotFound):
                    unflushed = _replayed(frames, segments, state or NO_SNAPSHOT) if frames else None
                    break
            else:
                raise Busy(f"{self._folder} changed {_MAX_LOOKS} times while it was looked at; try again")
            self._reads.segments, self._reads.state, self._snapshot_version = segments, state, version
            self._reads.unflushed = unflushed
            self._limits = _limits_of(contents)

    def _is_behind(self) -> bool:
        return snapshot_version(self._folder) != self._snapshot_version

    def _frames(self) -> tuple[Frame, ...]:
        if self._wal is None:
            return ()
        # Loaded for logs of a store alone, as in `_replayed`.
        from compactlib.raftlog.log.unflushed import read_frames

        return read_frames(self._wal, os.path.basename(os.path.realpath(self._folder)))

    @property
    def folder(self) -> str:
        """The log's folder, as an absolute path."""
        return self._folder

    @property
    def limits(self) -> SegmentLimits:
        """The limits with which the log's newest segment was begun; its plans are made under them."""
        return self._limits

    @property
    def snapshot(self) -> SnapshotMeta | None:
        """The last snapshot recorded, `None` before the first."""
        return self._reads.state

    @property
    def refs(self) -> tuple[SegmentRef, ...]:
        """The segments, oldest first, with the range of indexes each answers for."""
        return self._reads.refs

    @property
    def unflushed(self) -> IndexSet:
        """Which entries come from the write-ahead log of the log's store, since no segment holds them yet."""
        found = self._reads.unflushed
        return IndexSet() if found is None else (self._reads.state or NO_SNAPSHOT).needed(found.indexes)

    @property
    def first_index(self) -> int | None:
        """The lowest index in the log, `None` if it is empty."""
        return self._reads.first_index

    @property
    def last_index(self) -> int | None:
        """The highest index in the log, `None` if it is empty."""
        return self._reads.last_index

    def read(self, index: int) -> Entry | DeadEntry | MissingEntry:
        """The entry of `index`, or that it is dead, or that the log never held it. One bisection and one `pread`.

        Raises:
            CorruptData: the entry is damaged, or it is live and no segment holds it.
        """
        return self._reads.read(index)

    def read_many(self, indexes: Sequence[int]) -> Iterator[Answer]:
        """One answer for each of `indexes` (strictly ascending), in order; physical neighbours are read together.

        Damage to one entry is its answer, `DamagedEntry`, and does not hide the others.

        Raises:
            Unsorted: the indexes do not ascend strictly.
            CorruptData: a whole segment is damaged.
        """
        with self.plan_read(indexes) as plan:
            yield from plan.answers()

    def plan_read(self, indexes: Sequence[int]) -> ReadPlan:
        """Decide now which segments answer for `indexes` (strictly ascending), and hold them until it is closed.

        Raises:
            Unsorted: the indexes do not ascend strictly.
        """
        return self._reads.plan_read(indexes)

    def entries(self, first: int = 0, last: int = MAX_INDEX) -> Iterator[Entry]:
        """Every entry from `first` to `last` that is not dead, ascending; physical neighbours are read together.

        Raises:
            CorruptData: an entry is damaged; those before it have been given.
            LiveIndexMissing: a live entry is not in its segment.
        """
        return self._reads.entries(first, last)

    def scan(self, first: int = 0, last: int = MAX_INDEX) -> Iterator[Entry | DamagedEntry]:
        """As `entries`, but goes on behind damage, which it answers as `DamagedEntry`.

        Uses the list of segments as it is when each is reached, so that compactions may run meanwhile: an entry that
        dies before is left out. What is appended meanwhile is left out too.
        """
        return self._reads.scan(first, last)

    def lease(self) -> Lease:
        """Keep every file that can be read now from being removed by this process until the lease is released."""
        return self._reads.lease()

    def stats(self) -> tuple[SegmentStats, ...]:
        """What a policy may know of each segment, oldest to newest: `view().segments`."""
        return self.view().segments

    def view(self, *, budget: Budget | None = None) -> LogView:
        """The log as a plan sees it now. A segment that cannot be judged is listed as damaged.

        Args:
            budget: asked before each segment whose index has to be read.

        Raises:
            BudgetSpent: the budget refused.
            Closed: the log was closed.
        """
        return self._reads.view(self._look, self._limits, budget, SystemClock())

    def _look(self) -> tuple[SnapshotMeta | None, tuple[KnownSegment, ...]]:
        """The snapshot without what is alive in the write-ahead log only, and the segments."""
        state, unflushed = self._reads.state, self._reads.unflushed
        if state is not None and unflushed is not None:
            state = SnapshotMeta(state.index, state.term, state.live.at_most(unflushed.base - 1))
        return state, self._reads.segments.known() if self.refs else ()

    def plan(self, policy: LogPolicy | None = None, *, view: LogView | None = None) -> LogPlan:
        """What a compaction would do now, and why it would leave the rest: a dry run that changes nothing.

        Args:
            policy: decides what is rewritten; default `SeedPolicy()`.
            view: to plan for instead of the log as it is now.

        Raises:
            InvalidInput: the policy is none, or its choice breaks a rule.
            Exception: whatever the policy raised.
        """
        self._reads.require_open()
        return plan_for(self.view() if view is None else self._reads.require_own(view),
                        SeedPolicy() if policy is None else policy, SystemClock().now(),
                        bytes_available=room_in(LocalFiles(), self._folder))

    def verify(self, *, budget: Budget | None = None) -> VerifyReport:
        """Read every entry, those in a store's write-ahead log included, and list what is damaged or missing.

        A live index that nothing holds is missing. What an interrupted compaction has left is listed as harmless.
        Compactions may run meanwhile.

        Args:
            budget: asked before each segment.

        Raises:
            BudgetSpent: the budget refused.
            StorageError: something cannot be read.
            Closed: the log was closed.
        """
        return self._reads.verify(budget, self.leftovers)

    def examine(self, seen: Examination, *, budget: Budget | None = None) -> None:
        """As `verify`, without the write-ahead log; for callers that verify many logs of a store."""
        self._reads.examine(seen, budget, self.leftovers)

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
        self._reads.close()

    def __repr__(self) -> str:
        return self._reads.described(type(self).__name__)


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


def _limits_of(contents: FolderContents) -> SegmentLimits:
    header = None if contents.newest is None else contents.newest[1].loaded.header
    return SegmentLimits() if header is None else header.limits


def _replayed(frames: tuple[Frame, ...], segments: SegmentSet, row: SnapshotMeta) -> Unflushed | None:
    from compactlib.raftlog.log.unflushed import replayed

    return replayed(frames, segments, row)
