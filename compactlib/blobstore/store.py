"""`BlobStore`: blobs in a segmented log, with time to live, delete and undelete.

Any thread may call any method. Reads never wait for writes: they work on the state of the log that was current when
they began, and look again if a compaction has removed a file under them. Writes follow each other under one lock.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import BinaryIO, Self

from compactlib.blobstore.config import BlobStoreConfig
from compactlib.blobstore.live_log import LiveLog
from compactlib.blobstore.load_log import RecoveryReport
from compactlib.blobstore.log_state import LogSnapshot
from compactlib.blobstore.model import (
    NO_EXPIRY,
    Answer,
    Blob,
    BlobId,
    BlobInfo,
    Deleted,
    Expired,
    GetOptions,
    IndexEntry,
    Missing,
    RecordFlag,
    RecordKind,
    id_bytes,
    milliseconds,
)
from compactlib.blobstore.names import SegmentName
from compactlib.blobstore.open_store import open_log
from compactlib.blobstore.operations import draft_delete, draft_of, draft_put, draft_ttl_update, draft_undelete
from compactlib.blobstore.records import HEADER_BYTES, TRAILER_BYTES, check_record
from compactlib.blobstore.recover import CompactionRecovery
from compactlib.blobstore.replication import FoundEntries, ReplicationToken, entries_since
from compactlib.blobstore.segment import SegmentHeader, salt_of
from compactlib.blobstore.state import BlobState, blob_state
from compactlib.blobstore.status import StoreStatus
from compactlib.blobstore.stream import read_stream
from compactlib.clock import Clock, SystemClock
from compactlib.errors import Closed, CorruptData, InvalidInput, StorageError
from compactlib.files import Files, LocalFiles, StrPath
from compactlib.observe import Observer

_PLAIN = GetOptions()


def _new_incarnation() -> bytes:
    return uuid.uuid4().bytes


class BlobStore:
    """A store in a folder of its own, open for reading and writing by this process alone.

    Args:
        folder: where its files lie; created (in an existing folder) if it does not exist.
        config: how it is kept. Capacities are used when the store is created and come from the disk afterwards.
        files: the disk.
        clock: where time comes from.
        observer: told of progress, counters and events.
        name: what it is called in messages; the folder's name if not given.
        new_incarnation: gives a new store its 16 bytes, for tests that need them to repeat.

    Raises:
        Busy: another process or object has it open.
        NotAStore: the folder holds something else.
        InvalidInput: the capacity of a new store is no multiple of its segments'.
        CorruptData: neither the descriptor nor any segment says what the store is, or two generations of a segment
            are there. Other damage is no reason not to open: see `recovery`.
        Unsupported: a format version is newer than this release.
        StorageError: the disk refused.
    """

    def __init__(self, folder: StrPath, config: BlobStoreConfig | None = None, *, files: Files | None = None,
                 clock: Clock | None = None, observer: Observer | None = None, name: str | None = None,
                 new_incarnation: Callable[[], bytes] = _new_incarnation) -> None:
        self._folder = os.path.abspath(folder)
        self._name = name if name is not None else os.path.basename(self._folder)
        self._config = config if config is not None else BlobStoreConfig()
        self._files: Files = files if files is not None else LocalFiles()
        self._clock: Clock = clock if clock is not None else SystemClock()
        self._observer = observer if observer is not None else Observer()
        opened = open_log(self._folder, self._config, self._files, self._clock, self._observer, new_incarnation)
        self._lock_file = opened.lock_file
        self._descriptor = opened.descriptor
        self._recovery = opened.report
        self._compaction_recovery = opened.compaction
        self._log: LiveLog = opened.log
        self._salt = salt_of(self._descriptor.incarnation)
        self._closed = False

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
    def config(self) -> BlobStoreConfig:
        """How it is kept."""
        return self._config

    @property
    def files(self) -> Files:
        """The disk."""
        return self._files

    @property
    def clock(self) -> Clock:
        """Where time comes from."""
        return self._clock

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

    # -------------------------------------------------------------------------------------------------- operations

    def put(self, blob_id: BlobId, content: bytes | bytearray | memoryview | BinaryIO, *,
            ttl_seconds: float | None = None, size: int | None = None, account: int = 0,
            container: int = 0) -> BlobInfo:
        """Store a blob under an id that was never used.

        Args:
            blob_id: 1 to 1024 bytes.
            content: the bytes, or a file open for reading. A stream of more than 8 MiB is copied while other writers
                wait, so that memory stays bounded.
            ttl_seconds: how long it lives; strictly after that it is expired. `None` for no end.
            size: how many bytes the stream has; needed for one of more than 8 MiB.
            account: account number.
            container: container number.

        Raises:
            BlobExists: the id is known, deleted and expired blobs included.
            BlobTooLarge: it does not fit into a segment.
            InvalidInput: the id, the time to live or another argument is out of its range, or the stream has another
                size than was said.
            StoreFull: no segment is left.
            StorageError: the disk refused; the blob is not stored.
        """
        key = id_bytes(blob_id)
        pieces = read_stream(content, size)
        with self._writing() as log:
            draft = draft_put(key, blob_state(log.state.find(key)), content_bytes=pieces.size,
                              now_ms=self._now_ms(), ttl_seconds=ttl_seconds, account=account, container=container)
            entry = log.append(draft, pieces.head) if pieces.rest is None else log.append_pieces(draft, pieces.all())
        log.wait_for(entry)
        return BlobState(entry, entry, entry).info(entry)

    def get(self, blob_id: BlobId, options: GetOptions = _PLAIN) -> Answer:
        """The blob, or why there is none: `Missing`, `Deleted` or `Expired`. One `pread`.

        Raises:
            CorruptData: the blob is there, but its bytes are not what was written.
            InvalidInput: the id is empty, too long or of another type.
            StorageError: the disk refused.
            Closed: the store is closed.
        """
        key = id_bytes(blob_id)
        while True:
            log = self._opened()
            seen = log.state
            state = blob_state(seen.find(key))
            found = self._judged(key, state, options)
            if not isinstance(found, IndexEntry):
                return found
            assert state is not None
            try:
                return Blob(state.info(found), self._read(found))
            except (StorageError, CorruptData):
                # A compaction may have removed the file meanwhile, or a hard delete changed the record: then the log
                # says otherwise by now.
                if self._log.state is seen or self._closed:
                    raise

    def info(self, blob_id: BlobId, options: GetOptions = _PLAIN) -> BlobInfo | Missing | Deleted | Expired:
        """As `get`, but the properties alone: nothing is read from the disk."""
        key = id_bytes(blob_id)
        state = blob_state(self._opened().state.find(key))
        found = self._judged(key, state, options)
        if not isinstance(found, IndexEntry):
            return found
        assert state is not None
        return state.info(found)

    def delete(self, blob_id: BlobId) -> Deleted:
        """Delete a blob; within the retention it can be undeleted.

        Raises:
            BlobMissing: the id is not known.
            BlobDeleted: it is deleted already.
            StoreFull: no segment is left for the record.
            StorageError: the disk refused; nothing has changed.
        """
        key = id_bytes(blob_id)
        with self._writing() as log:
            entry = log.append(draft_delete(key, blob_state(log.state.find(key)), self._now_ms()), b"")
        log.wait_for(entry)
        return Deleted(key, entry.op_time_ms / 1000, entry.life_version)

    def undelete(self, blob_id: BlobId) -> BlobInfo:
        """Take back a delete that is not older than the retention; the blob's next life begins.

        Raises:
            BlobMissing: the id is not known.
            NotDeleted: the blob is live; `AlreadyUndeleted` if for the second time.
            DeletedForGood: the delete is older than `deleted_retention_seconds`, or the content is gone.
            BlobExpired: its time to live is over.
            StoreFull: no segment is left for the record.
            StorageError: the disk refused; nothing has changed.
        """
        key = id_bytes(blob_id)
        retention_ms = milliseconds(self._config.deleted_retention_seconds)
        with self._writing() as log:
            state = blob_state(log.state.find(key))
            entry = log.append(draft_undelete(key, state, self._now_ms(), retention_ms), b"")
        log.wait_for(entry)
        assert state is not None
        assert state.put is not None
        return BlobState(entry, entry, state.put).info(state.put)

    def ttl_update(self, blob_id: BlobId) -> BlobInfo:
        """Make a blob permanent: it does not expire any more.

        Raises:
            BlobMissing: the id is not known.
            BlobDeleted: it is deleted.
            BlobExpired: its time to live is over.
            TtlAlreadyUpdated: it was made permanent before.
            TtlUpdateTooLate: it expires within `ttl_update_buffer_seconds`.
            StoreFull: no segment is left for the record.
            StorageError: the disk refused; nothing has changed.
        """
        key = id_bytes(blob_id)
        buffer_ms = milliseconds(self._config.ttl_update_buffer_seconds)
        with self._writing() as log:
            state = blob_state(log.state.find(key))
            entry = log.append(draft_ttl_update(key, state, self._now_ms(), buffer_ms), b"")
        log.wait_for(entry)
        assert state is not None
        assert state.put is not None
        return BlobState(entry, state.deciding, state.put).info(state.put)

    def append_replicated(self, kind: RecordKind, blob_id: BlobId, content: bytes = b"", *, op_time: float,
                          life_version: int = 0, expires_at: float | None = None, permanent: bool = False,
                          account: int = 0, container: int = 0) -> IndexEntry:
        """Append a record as a peer has it, whatever the blob's state here; what it is to mean is the host's concern.

        Raises:
            InvalidInput: a field is out of its range, or a record other than a PUT has content.
            BlobTooLarge: it does not fit into a segment.
            StoreFull: no segment is left.
            StorageError: the disk refused.
        """
        if expires_at is not None and expires_at < 0:
            raise InvalidInput(f"the expiry is {expires_at}; give seconds since the epoch, or None for never")
        if content and kind != RecordKind.PUT:
            raise InvalidInput(f"a {kind.name} has no content, and this one has {len(content)} bytes")
        expires_ms = NO_EXPIRY if expires_at is None else milliseconds(expires_at)
        flags = RecordFlag.TTL_UPDATED if permanent or kind == RecordKind.TTL_UPDATE else RecordFlag.NONE
        draft = draft_of(id_bytes(blob_id), kind, content_bytes=len(content), flags=flags, life_version=life_version,
                         op_time_ms=milliseconds(op_time), expires_ms=expires_ms, account=account, container=container)
        with self._writing() as log:
            entry = log.append(draft, content)
        log.wait_for(entry)
        return entry

    def entries_since(self, token: ReplicationToken | None = None, *, max_bytes: int | None = None) -> FoundEntries:
        """The blobs that have changed since a token, for a peer that follows this store.

        At most `find_max_entries` records are looked at; ask again with the answer's token until `at_end`.
        """
        return entries_since(self.snapshot(), token, max_entries=self._config.find_max_entries, max_bytes=max_bytes)

    def flush(self) -> None:
        """Make everything written durable.

        Raises:
            StorageError: the disk refused; writing has stopped.
        """
        self._opened().flush()

    def status(self) -> StoreStatus:
        """Numbers of the store as it is now. Takes the lock for a moment."""
        log = self._opened()
        with log.lock:
            return StoreStatus.of(self._name, log, self._descriptor)

    # ----------------------------------------------------------------------------------- for the compactor (swap.py)

    def segment_header(self, name: SegmentName) -> SegmentHeader:
        """The header of a segment of this store with that name, for one that a compaction builds."""
        return self._descriptor.header(name)

    def snapshot(self) -> LogSnapshot:
        """A frozen look at log and index. O(1), takes the lock for a moment."""
        return self._opened().snapshot()

    def swap_segments(self, remove: Sequence[SegmentName], add: Sequence[SegmentName]) -> None:
        """Answer from the segments `add` instead of `remove`, in one step; see `swap.CompactableStore`.

        Raises:
            PlanDoesNotFit: the segments do not fit the log as it is.
            CorruptData: a segment to add is not readable; nothing was switched.
        """
        log = self._opened()
        loaded = log.load(add)
        with log.lock:
            log.swap(remove, loaded)

    def drain(self, removed: Iterable[SegmentName], timeout_seconds: float) -> bool:
        """Wait until no reader holds a file of the removed segments; whether that was so in time."""
        return self._opened().segments.drain(removed, timeout_seconds, self._clock)

    def reload_index(self, segment: SegmentName) -> None:
        """Load the index files of a sealed segment again, after a hard delete has changed them.

        Raises:
            PlanDoesNotFit: the segment is unknown or is the active one.
        """
        log = self._opened()
        (loaded,) = log.load([segment])
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
        """Check everything in memory against itself.

        Raises:
            CompactlibError: something does not agree; the message has the numbers.
        """
        log = self._opened()
        with log.lock:
            log.audit()

    def close(self) -> None:
        """Make everything durable, seal the index, and give the folder up; closing again does nothing.

        Raises:
            StorageError: the disk refused; the folder is given up all the same.
        """
        with self._log.lock:
            if self._closed:
                return
            self._closed = True
            try:
                self._log.close()
            finally:
                self._lock_file.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{len(self._log.state.segments)} segments"
        return f"BlobStore({self._folder!r}, {state})"

    # ---------------------------------------------------------------------------------------------------- internal

    def _opened(self) -> LiveLog:
        if self._closed:
            raise Closed(f"the blob store {self._name} is closed; open it again")
        return self._log

    def _writing(self) -> _Writing:
        return _Writing(self)

    def _now_ms(self) -> int:
        return milliseconds(self._clock.now())

    def _judged(self, key: bytes, state: BlobState | None,
                options: GetOptions) -> IndexEntry | Missing | Deleted | Expired:
        """The PUT to answer with, or why there is none."""
        if state is None or state.deciding is None:
            return Missing(key)
        put, deciding = state.put, state.deciding
        gone = put is None or bool(put.flags & RecordFlag.ERASED)
        if state.is_deleted and (gone or not options.include_deleted):
            return Deleted(key, deciding.op_time_ms / 1000, deciding.life_version, gone)
        if not options.include_expired and state.is_expired(self._now_ms()):
            return Expired(key, state.newest.expires_ms / 1000)
        return Missing(key) if put is None or gone else put

    def _read(self, entry: IndexEntry) -> bytes:
        file = self._log.segments.get(entry.segment)
        record = file.read(entry.offset, entry.size)
        problem = check_record(entry, record, self._salt)
        if problem is not None:
            raise CorruptData(path=file.path, offset=entry.offset, index=entry.sequence, found=problem,
                              expected=f"the record of blob {entry.id!r}, {entry.size} bytes")
        return record[HEADER_BYTES + len(entry.id):-TRAILER_BYTES]


class _Writing:
    """Holds the lock of an open store while something is written."""

    __slots__ = ("_store",)

    def __init__(self, store: BlobStore) -> None:
        self._store = store

    def __enter__(self) -> LiveLog:
        log = self._store._log
        log.lock.acquire()
        try:
            return self._store._opened()
        except BaseException:
            log.lock.release()
            raise

    def __exit__(self, *_: object) -> None:
        self._store._log.lock.release()
