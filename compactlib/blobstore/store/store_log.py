"""An open store as its compactions, its statistics and its hard delete see it: the folder, the log, and the switch.

`BlobStore` adds what its users do with blobs and compactions. This is what `swap.CompactableStore` asks for, and what
goes with it: opening, closing, checking, and the lock that every change is made under.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Self

from compactlib.arguments import require_method, require_policy
from compactlib.blobstore.compaction.commit.recover import CompactionRecovery
from compactlib.blobstore.compaction.plan.policy import Policy
from compactlib.blobstore.compaction.run.store_compactions import StoreCompactions, require_forecast
from compactlib.blobstore.compaction.run.work import Questions, require_questions
from compactlib.blobstore.config import BlobStoreConfig
from compactlib.blobstore.log.contents import LogSnapshot
from compactlib.blobstore.log.live_log import LiveLog
from compactlib.blobstore.log.load_log import RecoveryReport
from compactlib.blobstore.log.open_store import open_log
from compactlib.blobstore.log.store_clock import StoreClock, last_known_time
from compactlib.blobstore.model.names import SegmentName
from compactlib.blobstore.model.values import is_a, milliseconds
from compactlib.blobstore.segment.reader import SegmentHeader, salt_of
from compactlib.blobstore.store.status import StoreStatus
from compactlib.clock import Clock, SystemClock
from compactlib.errors import Closed, InvalidInput
from compactlib.files.disk import Files, LocalFiles, StrPath
from compactlib.runtime import telling
from compactlib.runtime.observe import Observer


def _new_incarnation() -> bytes:
    return uuid.uuid4().bytes


class StoreLog:
    """The log of a store in a folder of its own; see `BlobStore` for the arguments and errors."""

    def __init__(self, folder: StrPath, config: BlobStoreConfig | None = None, *, policy: Policy | None = None,
                 questions: Questions | None = None, files: Files | None = None, clock: Clock | None = None,
                 observer: Observer | None = None, name: str | None = None,
                 new_incarnation: Callable[[], bytes] = _new_incarnation) -> None:
        if not is_a(folder, str, os.PathLike) or not is_a(config, BlobStoreConfig, type(None)):
            raise InvalidInput(f"a store is opened by a path and a BlobStoreConfig, not {type(folder).__name__} and "
                               f"{type(config).__name__}")
        chosen: Policy = _default_policy() if policy is None else policy
        asked = Questions() if questions is None else questions
        require_policy("policy", chosen)
        require_questions(asked)
        if not is_a(name, str, type(None)):
            raise InvalidInput(f"the name of a store is text, not {type(name).__name__}")
        self._folder = _path(folder)
        self._name = name if name is not None else os.path.basename(self._folder)
        self._config = config if config is not None else BlobStoreConfig()
        require_forecast(self._config, chosen)
        require_method("files", files, "sync_folder", or_none=True)
        require_method("clock", clock, "monotonic", or_none=True)
        require_method("observer", observer, "event", or_none=True)
        require_method("new_incarnation", new_incarnation, "__call__", or_none=True)
        self._files: Files = files if files is not None else LocalFiles()
        self._clock: Clock = clock if clock is not None else SystemClock()
        self._observer = telling(observer)
        opened = open_log(self._folder, self._config, self._files, self._clock, self._observer, new_incarnation)
        self._lock_file = opened.lock_file
        self._descriptor = opened.descriptor
        self._recovery = opened.report
        self._compaction_recovery = opened.compaction
        self._log: LiveLog = opened.log
        self._salt = salt_of(self._descriptor.incarnation)
        self._store_clock = StoreClock(self._clock, last_known_time(self._log.state), self._log.observer)
        self._closed = False
        self._compactions = StoreCompactions(self, chosen, asked, opened.compaction.log)
        self._log.observer.deliver()

    # ------------------------------------------------------------------------------------------------- properties

    @property
    def name(self) -> str:
        """What the store is called in messages and events."""
        return self._name

    @property
    def folder(self) -> str:
        """The store's folder, absolute."""
        return self._folder

    @property
    def incarnation(self) -> bytes:
        """16 bytes that are the store's own."""
        return self._descriptor.incarnation

    @property
    def segment_bytes(self) -> int:
        """Capacity of each segment, fixed when the store was created."""
        return self._descriptor.segment_bytes

    @property
    def capacity_bytes(self) -> int:
        """Capacity of the log, fixed when the store was created."""
        return self._descriptor.capacity_bytes

    @property
    def created_at(self) -> float:
        """When the store was created, seconds since the epoch; 0 if that was lost."""
        return self._descriptor.created_ms / 1000

    @property
    def config(self) -> BlobStoreConfig:
        """How it is kept."""
        return self._config

    @property
    def files(self) -> Files:
        """The disk."""
        return self._files

    @property
    def clock(self) -> Clock:
        """The time that compactions and hard deletes go by: behind the host's while that is in doubt."""
        return self._store_clock

    @property
    def observer(self) -> Observer:
        """Told of progress, counters and events."""
        return self._observer

    @property
    def recovery(self) -> RecoveryReport:
        """What opening the store has found out of order."""
        return self._recovery

    @property
    def compaction_recovery(self) -> CompactionRecovery:
        """What opening the store has found of an interrupted compaction, and what it did about it."""
        return self._compaction_recovery

    def flush(self) -> None:
        """Make everything written durable.

        Raises:
            StorageError: the disk refused; writing has stopped.
        """
        log = self._opened()
        self._lock_file.require_mine()
        log.flush()
        log.observer.deliver()

    def accept_clock(self) -> None:
        """Believe the host's clock as it stands, although it has jumped, or stepped since the store was used last.

        For an operator who has looked at it. Nobody has to: if the clock stays so, it is believed half a minute later.
        """
        self._store_clock.accept()
        self._log.observer.deliver()

    def status(self) -> StoreStatus:
        """Numbers of the store as it is now. Takes the lock for a moment."""
        log = self._opened()
        with log.lock:
            return StoreStatus.of(self._name, log, self._descriptor, self._compactions)

    # ------------------------------------------------------------------------- for its compactions (compaction/swap.py)

    @property
    def compactions(self) -> StoreCompactions:
        """Who may compact it, and what is in progress: one for the store, whichever objects work on it."""
        return self._compactions

    def require_mine(self) -> None:
        """Return if the folder is this store's to change.

        Raises:
            Closed: the store is closed, or this process is a fork of the one that has it open.
        """
        self._opened()
        self._lock_file.require_mine()

    def segment_header(self, name: SegmentName) -> SegmentHeader:
        """The header of a segment of this store with that name, for one that a compaction builds."""
        return self._descriptor.header(_named(name))

    def snapshot(self) -> LogSnapshot:
        """A frozen look at log and index. O(1), takes the lock for a moment."""
        return self._opened().snapshot()

    def swap_segments(self, remove: Sequence[SegmentName], add: Sequence[SegmentName]) -> None:
        """Answer from the segments `add` instead of `remove`, in one step; see `swap.CompactableStore`.

        Raises:
            PlanDoesNotFit: the segments do not fit the log as it is.
            CorruptData: a segment to add is not readable; nothing was switched.
        """
        gone, new = _all_named(remove), _all_named(add)
        log = self._opened()
        self._lock_file.require_mine()
        loaded = log.load(new)
        with log.lock:
            log.swap(gone, loaded)

    def drain(self, removed: Iterable[SegmentName], timeout_seconds: float) -> bool:
        """Wait until no reader holds a file of the removed segments; whether that was so in time."""
        milliseconds(timeout_seconds)
        return self._opened().segments.drain(_all_named(removed), timeout_seconds, self._clock)

    def reload_index(self, segment: SegmentName) -> None:
        """Load the index files of a sealed segment again, after a hard delete has changed them.

        Raises:
            PlanDoesNotFit: the segment is unknown or is the active one.
        """
        log = self._opened()
        self._lock_file.require_mine()
        (loaded,) = log.load([_named(segment)])
        with log.lock:
            log.reload(segment, loaded)

    def close_active_segment(self) -> None:
        """Seal the active segment and begin the next one; does nothing to an empty one.

        Raises:
            StoreFull: no segment is left.
            StorageError: the disk refused.
        """
        with self._writing() as log:
            if log.state.open.end > log.state.active.end or log.state.active.index:
                log.writer.check()
                log.roll()

    # ------------------------------------------------------------------------------------------------------ the end

    def audit(self) -> None:
        """Check everything in memory against itself, and the compaction in progress against the disk.

        Raises:
            AuditFailed: something does not agree; the message has the numbers.
        """
        log = self._opened()
        with log.lock:
            log.audit()
        self._compactions.audit()
        self._compactions.sensor.audit()

    def close(self) -> None:
        """Cancel what compacts the store and wait for it, make everything durable, and give the folder up.

        A compaction that was cancelled goes on with the first one after the store is opened again. Closing again does
        nothing. In a fork of the process that opened the store, only the fork's copy is given up.

        Raises:
            Busy: called from within a compaction of the store, on whichever thread: by an observer, a policy, a
                question, a task. Nothing was done.
            StorageError: the disk refused; the folder is given up all the same.
        """
        if not self._lock_file.is_mine:
            # Closed before; or a fork, in which what is locked or under way in its parent never ends.
            if not self._closed:
                self._closed = True
                self._log.close(is_mine=False)
                self._lock_file.release()
            return
        self._compactions.ownership.close()
        with self._compactions.sensor.side_files, self._log.lock:
            if self._closed:
                return
            self._closed = True
            try:
                self._log.close(is_mine=True)
            finally:
                self._lock_file.release()
        self._log.observer.deliver()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{len(self._log.state.segments)} segments"
        return f"{type(self).__name__}({self._folder!r}, {state})"

    # ---------------------------------------------------------------------------------------------------- internal

    def _opened(self) -> LiveLog:
        if self._closed:
            raise Closed(f"the blob store {self._name} is closed; open it again")
        return self._log

    def _writing(self) -> _Writing:
        return _Writing(self)

    def _now_ms(self) -> int:
        return milliseconds(self._store_clock.steady())


def _default_policy() -> Policy:
    # Who has a policy of their own need not load the library's.
    from compactlib.blobstore.compaction.plan.policies.stats_based import StatsBased

    return StatsBased()


def _path(folder: StrPath) -> str:
    path = os.path.abspath(os.fsdecode(folder))
    if "\0" in path:
        raise InvalidInput(f"the folder is {path!r:.200}; a path has no zero byte")
    return path


def _named(name: SegmentName) -> SegmentName:
    if not is_a(name, SegmentName):
        raise InvalidInput(f"{name!r:.100} is no name of a segment; give a SegmentName")
    return name


def _all_named(names: Iterable[SegmentName]) -> list[SegmentName]:
    if not is_a(names, Iterable):
        raise InvalidInput(f"{names!r:.100} are no names of segments; give SegmentNames")
    return [_named(name) for name in names]


class _Writing:
    """Holds the lock of an open store while something is written."""

    __slots__ = ("_store",)

    def __init__(self, store: StoreLog) -> None:
        self._store = store

    def __enter__(self) -> LiveLog:
        log = self._store._log
        # Before the lock, which a fork may have copied while another thread held it.
        self._store._lock_file.require_mine()
        log.lock.acquire()
        try:
            return self._store._opened()
        except BaseException:
            log.lock.release()
            raise

    def __exit__(self, *_: object) -> None:
        log = self._store._log
        log.lock.release()
        log.observer.deliver()
