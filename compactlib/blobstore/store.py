"""`BlobStore`: blobs in a segmented log, with time to live, delete and undelete.

Any thread may call any method. Reads never wait for writes: they work on the state of the log that was current when
they began, and look again if a compaction has removed a file under them. Writes follow each other under one lock.
"""

from __future__ import annotations

from typing import BinaryIO

from compactlib.blobstore.errors import BlobExists
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
from compactlib.blobstore.operations import draft_delete, draft_of, draft_put, draft_ttl_update, draft_undelete
from compactlib.blobstore.records import HEADER_BYTES, TRAILER_BYTES, check_record, content_range
from compactlib.blobstore.replication import FoundEntries, ReplicationToken, entries_since
from compactlib.blobstore.state import BlobState, blob_state
from compactlib.blobstore.store_log import StoreLog
from compactlib.blobstore.stream import read_stream
from compactlib.errors import CorruptData, InvalidInput, StorageError

_PLAIN = GetOptions()


class BlobStore(StoreLog):
    """A store in a folder of its own, open for reading and writing by this process alone.

    Args:
        folder: where its files lie; created (in an existing folder) if it does not exist.
        config: how it is kept. Capacities are used when the store is created and come from the disk afterwards.
        files: the disk.
        clock: where time comes from. What jumps is not believed at once: see `accept_clock`.
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

        A PUT that is here already is not written again: the answer is the entry of the one that is.

        Raises:
            InvalidInput: a field is out of its range, or a record other than a PUT has content.
            BlobExists: a PUT of this id is here that is not the same; a blob has one.
            CorruptData: a PUT of this id is here, and is damaged.
            BlobTooLarge: it does not fit into a segment.
            StoreFull: no segment is left.
            StorageError: the disk refused.
        """
        try:
            kind = RecordKind(kind)
        except ValueError:
            raise InvalidInput(f"{kind!r} is no kind of record; give one of RecordKind") from None
        if not isinstance(content, bytes):
            raise InvalidInput(f"the content of a replicated record is bytes, not {type(content).__name__}")
        if expires_at is not None and milliseconds(expires_at) < 0:
            raise InvalidInput(f"the expiry is {expires_at}; give seconds since the epoch, or None for never")
        if content and kind != RecordKind.PUT:
            raise InvalidInput(f"a {kind.name} has no content, and this one has {len(content)} bytes")
        expires_ms = NO_EXPIRY if expires_at is None else milliseconds(expires_at)
        flags = RecordFlag.TTL_UPDATED if permanent or kind == RecordKind.TTL_UPDATE else RecordFlag.NONE
        draft = draft_of(id_bytes(blob_id), kind, content_bytes=len(content), flags=flags, life_version=life_version,
                         op_time_ms=milliseconds(op_time), expires_ms=expires_ms, account=account, container=container)
        with self._writing() as log:
            known = blob_state(log.state.find(draft.id)) if kind == RecordKind.PUT else None
            if known is not None and known.put is not None:
                entry = self._same_put(known.put, draft, content)
            else:
                entry = log.append(draft, content)
        log.wait_for(entry)
        return entry

    def entries_since(self, token: ReplicationToken | None = None, *, max_bytes: int | None = None) -> FoundEntries:
        """The blobs that have changed since a token, for a peer that follows this store.

        At most `find_max_entries` records are looked at; ask again with the answer's token until `at_end`.
        """
        return entries_since(self.snapshot(), token, max_entries=self._config.find_max_entries, max_bytes=max_bytes)

    # ---------------------------------------------------------------------------------------------------- internal

    def _judged(self, key: bytes, state: BlobState | None,
                options: GetOptions) -> IndexEntry | Missing | Deleted | Expired:
        """The PUT to answer with, or why there is none."""
        if not isinstance(options, GetOptions):
            raise InvalidInput(f"the options of a get are GetOptions, not {type(options).__name__}")
        if state is None or state.deciding is None:
            return Missing(key)
        put, deciding = state.put, state.deciding
        gone = put is None or bool(put.flags & RecordFlag.ERASED)
        if state.is_deleted and (gone or not options.include_deleted):
            return Deleted(key, deciding.op_time_ms / 1000, deciding.life_version, gone)
        if state.newest.expires_ms >= 0 and not options.include_expired:
            is_expired = state.is_expired(self._now_ms())
            # What the clock had to say.
            self._log.observer.deliver()
        else:
            is_expired = False
        if is_expired:
            return Expired(key, state.newest.expires_ms / 1000)
        return Missing(key) if put is None or gone else put

    def _same_put(self, known: IndexEntry, draft: IndexEntry, content: bytes) -> IndexEntry:
        """The PUT that is here, if it is the one that a peer brings once more."""
        erased = bool(known.flags & RecordFlag.ERASED)
        same = (known.size, known.op_time_ms, known.expires_ms, known.account, known.container) == (
            draft.size, draft.op_time_ms, draft.expires_ms, draft.account, draft.container)
        if not same or not (erased or self._read(known) == content):
            raise BlobExists(f"blob {draft.id!r} was put at {known.op_time_ms / 1000:.3f} with "
                             f"{content_range(known)[1]} bytes, and this is another PUT of the same id, of "
                             f"{draft.op_time_ms / 1000:.3f} with {len(content)} bytes; a blob has one", id=draft.id)
        return known

    def _read(self, entry: IndexEntry) -> bytes:
        file = self._log.segments.get(entry.segment)
        record = file.read(entry.offset, entry.size)
        problem = check_record(entry, record, self._salt)
        if problem is not None:
            raise CorruptData(path=file.path, offset=entry.offset, index=entry.sequence, found=problem,
                              expected=f"the record of blob {entry.id!r}, {entry.size} bytes")
        return record[HEADER_BYTES + len(entry.id):-TRAILER_BYTES]
