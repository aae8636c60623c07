# SPDX-License-Identifier: Apache-2.0
"""Which operations a blob's state allows, and the record that each writes. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence

from compactlib._arguments import require_whole
from compactlib.blobstore.blobs import BlobState, blob_state
from compactlib.blobstore.errors import (
    AlreadyUndeleted,
    BlobDeleted,
    BlobExists,
    BlobExpired,
    BlobMissing,
    DeletedForGood,
    NotDeleted,
    TtlAlreadyUpdated,
    TtlUpdateTooLate,
)
from compactlib.blobstore.names import FIRST_SEGMENT
from compactlib.blobstore.records import (
    MAX_LIFE_VERSION,
    MAX_TAG,
    MAX_TIME_MS,
    NO_EXPIRY,
    BlobId,
    IndexEntry,
    RecordFlag,
    RecordKind,
    id_bytes,
    milliseconds,
    record_size,
)
from compactlib.errors import InvalidInput


def draft_of(blob_id: bytes, kind: RecordKind, *, content_bytes: int = 0, flags: int = 0, life_version: int = 0,
             op_time_ms: int, expires_ms: int = NO_EXPIRY, account: int = 0, container: int = 0) -> IndexEntry:
    """Return a record without sequence and place; the log assigns both."""
    account = require_whole("account", account, 0, MAX_TAG)
    container = require_whole("container", container, 0, MAX_TAG)
    life_version = require_whole("life_version", life_version, 0, MAX_LIFE_VERSION)
    return IndexEntry(blob_id, int(kind), int(flags), life_version, 0, op_time_ms, expires_ms, account, container,
                      FIRST_SEGMENT, 0, record_size(len(blob_id), content_bytes))


def draft_put(blob_id: bytes, history: Sequence[IndexEntry], *, content_bytes: int, now_ms: int,
              ttl_seconds: float | None, account: int, container: int, replace: bool) -> IndexEntry:
    """Return the PUT of a new blob, or of one that replaces another blob.

    A replacement is stamped later than every record of the replaced blob, also if a fast clock stamped these. If that
    blob is deleted, the next life begins.
    """
    if ttl_seconds is not None and not ttl_seconds >= 0:
        raise InvalidInput(f"the time to live is {ttl_seconds} seconds; give 0 or more, or None for no end")
    expires_ms = NO_EXPIRY if ttl_seconds is None else now_ms + milliseconds(ttl_seconds)
    if ttl_seconds is not None and expires_ms < 0:
        raise InvalidInput(f"the blob would expire at {expires_ms / 1000:.3f}, before 1970, which no record can hold; "
                           f"put the host's clock right, or give no time to live")
    draft = draft_of(blob_id, RecordKind.PUT, content_bytes=content_bytes, op_time_ms=now_ms, expires_ms=expires_ms,
                     account=account, container=container)
    state = blob_state(history)
    if state is None:
        return draft
    # A blob without its PUT that is not deleted counts as missing.
    is_there = state.is_deleted or state.put is not None
    if not replace and is_there and not state.newest.is_expired(now_ms):
        was = "deleted" if state.is_deleted else "put before"
        raise BlobExists(f"blob {blob_id!r} is {was}; choose another id, or put it with replace=True")
    newest = state.newest
    if state.is_deleted and newest.life_version == MAX_LIFE_VERSION:
        raise BlobExists(f"blob {blob_id!r} is deleted, and has had all {MAX_LIFE_VERSION + 1} lives that a record can "
                         f"count; choose another id")
    return draft._replace(op_time_ms=max(now_ms, 1 + max(entry.op_time_ms for entry in history)),
                          life_version=newest.life_version + state.is_deleted)


def draft_delete(blob_id: bytes, state: BlobState | None, now_ms: int) -> IndexEntry:
    """Return the DELETE of a blob; an expired blob can be deleted, too."""
    known = _known(blob_id, state)
    if known.is_deleted:
        raise BlobDeleted(f"blob {blob_id!r} was deleted before, at {known.newest.op_time_ms / 1000:.3f}")
    return _following(known, RecordKind.DELETE, now_ms)


def draft_undelete(blob_id: bytes, state: BlobState | None, now_ms: int, retention_ms: int) -> IndexEntry:
    """Return the UNDELETE of a blob with a delete that is not older than the retention: the next life begins."""
    known = _known(blob_id, state)
    if not known.is_deleted:
        kind = AlreadyUndeleted if known.newest.life_version else NotDeleted
        raise kind(f"blob {blob_id!r} is not deleted")
    newest = known.newest
    if not known.has_content or newest.op_time_ms + retention_ms < now_ms:
        raise DeletedForGood(f"blob {blob_id!r} was deleted at {newest.op_time_ms / 1000:.3f}, more than "
                             f"{retention_ms / 1000:g} s ago, or its content was dropped")
    if known.newest.is_expired(now_ms):
        raise BlobExpired(f"blob {blob_id!r} has expired at {newest.expires_ms / 1000:.3f}")
    return _following(known, RecordKind.UNDELETE, now_ms)._replace(life_version=newest.life_version + 1)


def draft_ttl_update(blob_id: bytes, state: BlobState | None, now_ms: int, buffer_ms: int) -> IndexEntry:
    """Return the TTL_UPDATE that makes a blob permanent."""
    known = _known(blob_id, state)
    if known.is_deleted:
        raise BlobDeleted(f"blob {blob_id!r} is deleted; undelete it first")
    if not known.has_content:
        raise BlobMissing(f"blob {blob_id!r} has lost its content")
    assert known.put is not None
    if known.newest.is_permanent:
        raise TtlAlreadyUpdated(f"blob {blob_id!r} was made permanent before")
    expires_ms = known.newest.expires_ms
    if known.newest.is_expired(now_ms):
        raise BlobExpired(f"blob {blob_id!r} has expired at {expires_ms / 1000:.3f}")
    if 0 <= expires_ms < now_ms + buffer_ms:
        raise TtlUpdateTooLate(f"blob {blob_id!r} expires in {(expires_ms - now_ms) / 1000:g} s, within the "
                               f"{buffer_ms / 1000:g} s that an update needs to reach all replicas")
    # A fast clock may have stamped the PUT. An update with an earlier time would belong to the PUT before.
    return _following(known, RecordKind.TTL_UPDATE, max(now_ms, known.put.op_time_ms))._replace(
        flags=int(RecordFlag.TTL_UPDATED), expires_ms=NO_EXPIRY)


def draft_replicated(kind: RecordKind, blob_id: BlobId, content: bytes, *, op_time: float, life_version: int,
                     expires_at: float | None, permanent: bool, account: int, container: int) -> IndexEntry:
    """Return a peer's record as a draft; see `BlobStore.append_replicated`."""
    try:
        kind = RecordKind(kind)
    except ValueError:
        raise InvalidInput(f"{kind!r} is no kind of record; give one of RecordKind") from None
    if expires_at is not None and milliseconds(expires_at) < 0:
        raise InvalidInput(f"the expiry is {expires_at}; give seconds since the epoch, or None for never")
    if content and kind != RecordKind.PUT:
        raise InvalidInput(f"a {kind.name} has no content, and this one has {len(content)} bytes")
    expires_ms = NO_EXPIRY if expires_at is None else milliseconds(expires_at)
    flags = RecordFlag.TTL_UPDATED if permanent or kind == RecordKind.TTL_UPDATE else RecordFlag.NONE
    return draft_of(id_bytes(blob_id), kind, content_bytes=len(content), flags=flags, life_version=life_version,
                    op_time_ms=milliseconds(op_time), expires_ms=expires_ms, account=account, container=container)


def covering_record(draft: IndexEntry, state: BlobState | None, history: Sequence[IndexEntry]) -> IndexEntry | None:
    """Return the local record that already covers this replicated record, or `None` if the replicated record is new.

    A life of a blob begins with its PUT or UNDELETE and ends with its DELETE. So the record of the later life is newer,
    and within one life the DELETE is. A TTL update counts for all lives, unless it is older than the local PUT. These
    rules are idempotent: a peer may send all its records again in order, and no older state returns. The caller
    does not pass a PUT that the local PUT outranks (`rank_of`).
    """
    if state is None:
        return None
    if draft.kind == RecordKind.TTL_UPDATE:
        if state.put is not None and draft.op_time_ms < state.put.op_time_ms:
            return state.put
        if state.put is not None and state.newest.is_permanent:
            return state.newest
        # Without a local PUT, a later TTL update covers this one whatever PUT follows.
        return next((entry for entry in history if entry.kind == RecordKind.TTL_UPDATE
                     and (state.put is not None or entry.op_time_ms >= draft.op_time_ms)), None)
    deciding = state.deciding
    if deciding is None:
        return None
    life, life_here = draft.life_version, deciding.life_version
    if draft.kind == RecordKind.UNDELETE:
        is_known = life <= life_here
    elif draft.kind == RecordKind.DELETE:
        is_known = life < life_here or (life == life_here and state.is_deleted)
    else:
        is_known = state.is_deleted and life <= life_here
    return deciding if is_known else None


def rank_of(put: IndexEntry, content: bytes) -> tuple[int, int, int, bytes, int]:
    """Return the rank of a PUT. Of two PUTs of one blob that two replicas accepted independently, every replica keeps
    the PUT of the higher rank: the later one; of equal times the first differing field decides."""
    expires = put.expires_ms if put.expires_ms >= 0 else MAX_TIME_MS
    return put.op_time_ms, put.account, put.container, content, expires


def as_successor(draft: IndexEntry, state: BlobState, history: Sequence[IndexEntry]) -> IndexEntry:
    """Return a peer's new record in the form in which it is written locally.

    A PUT or TTL update never ends a later life. A TTL update counts for a PUT that is older, in whatever order they
    arrive. A DELETE or UNDELETE keeps the local expiry and container, and a TTL update the local container: the peer's
    values may belong to another PUT, which the local PUT supersedes.
    """
    newest = state.newest
    if draft.kind != RecordKind.PUT and state.put is not None:
        draft = draft._replace(account=state.put.account, container=state.put.container)
    if draft.kind in (RecordKind.DELETE, RecordKind.UNDELETE):
        return draft if state.put is None else draft._replace(
            flags=newest.flags & RecordFlag.TTL_UPDATED, expires_ms=newest.expires_ms)
    successor = draft._replace(life_version=max(draft.life_version, newest.life_version))
    if draft.kind == RecordKind.TTL_UPDATE or not state.newest.is_permanent:
        return successor
    return successor if state.permanent_ms(history) < draft.op_time_ms else successor._replace(
        flags=draft.flags | RecordFlag.TTL_UPDATED, expires_ms=NO_EXPIRY)


def _known(blob_id: bytes, state: BlobState | None) -> BlobState:
    if state is None or state.deciding is None:
        raise BlobMissing(f"blob {blob_id!r} is not known: never put, or removed by a compaction")
    return state


def _following(state: BlobState, kind: RecordKind, now_ms: int) -> IndexEntry:
    newest = state.newest
    return draft_of(newest.id, kind, flags=newest.flags & RecordFlag.TTL_UPDATED, life_version=newest.life_version,
                    op_time_ms=now_ms, expires_ms=newest.expires_ms, account=newest.account,
                    container=newest.container)
