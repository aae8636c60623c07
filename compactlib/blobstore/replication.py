# SPDX-License-Identifier: Apache-2.0
"""Replication: a peer reads the changes since a token, and gets the token for its next call.

A token has the sequence of the last record that the peer has seen. Sequences ascend with time, are unique, and are kept
by compactions, so a compaction invalidates no token. Only a token of another history (a new store in the folder, or a
restored copy) restarts at the first record.
"""

from __future__ import annotations

import attrs

from compactlib.blobstore.blobs import blob_state
from compactlib.blobstore.contents import LogContents, records_after
from compactlib.blobstore.names import MAX_NUMBER
from compactlib.blobstore.records import IndexEntry, RecordKind
from compactlib.errors import CorruptData, InvalidInput
from compactlib.files.checksum import crc32
from compactlib.files.record_frame import RecordFrame

_FRAME = RecordFrame("replication token", b"", 1, "<B16sQI")


@attrs.frozen
class ReplicationToken:
    """The position of a peer in a store.

    Attributes:
        incarnation: the store's 16 bytes.
        sequence: the number of the last record that the peer has seen; 0 before the first.
        check: a checksum of that record, because a store restored from a copy may use the number again; 0: unknown.
    """

    incarnation: bytes
    sequence: int
    check: int = 0

    def __attrs_post_init__(self) -> None:
        if not (len(self.incarnation) == 16 and 0 <= self.sequence <= MAX_NUMBER and 0 <= self.check < 1 << 32):
            raise InvalidInput(f"{self.incarnation!r}, {self.sequence!r} and {self.check!r} make no token: give the "
                               f"store's 16 bytes, the number of a record, 0 or more, and 32 bits")

    def to_bytes(self) -> bytes:
        """Return 33 bytes: version 1, incarnation (16), sequence (u64, little-endian), check (u32), CRC-32 of these."""
        return _FRAME.encode(self.incarnation, self.sequence, self.check)

    @classmethod
    def from_bytes(cls, data: bytes) -> ReplicationToken:
        """Return the token of its bytes. `CorruptData`: they are not a whole token; `Unsupported`: of a later release.
        """
        incarnation, sequence, check, behind = _FRAME.decode(data, "replication token")
        if sequence > MAX_NUMBER or behind:
            raise CorruptData(path="replication token", offset=17, expected="a sequence, and nothing behind it",
                              found=f"{sequence}, {len(behind)} bytes")
        return cls(incarnation, sequence, check)


@attrs.frozen
class ReplicaEntry:
    """The current state of a blob that has changed, for a peer.

    Attributes:
        id: the blob's id.
        is_deleted: whether it is deleted.
        is_permanent: whether a TTL update has made it permanent.
        life_version: its current life.
        size_bytes: length of the record with its content; 0 if the content was dropped.
        changed_at: when its newest record was written, seconds since the epoch.
        expires_at: when it expires, `None` for never.
        account, container: its numbers, as put.
        sequence: the number of its newest record.
        permanent_at: when it was made permanent, or when it was put if that is unknown; `None` if it is not permanent.
    """

    id: bytes
    is_deleted: bool
    is_permanent: bool
    life_version: int
    size_bytes: int
    changed_at: float
    expires_at: float | None
    account: int
    container: int
    sequence: int
    permanent_at: float | None


@attrs.frozen
class FoundEntries:
    """One result of `entries_since`.

    Attributes:
        entries: one for each blob that has changed, in the order of their records.
        token: the token for the next call.
        at_end: whether these are all changes.
        was_reset: whether the given token was of another history, so that the entries start at the first record; the
            peer drops all that it knows only from that history.
    """

    entries: tuple[ReplicaEntry, ...]
    token: ReplicationToken
    at_end: bool
    was_reset: bool


def entries_since(snapshot: LogContents, token: ReplicationToken | None, next_sequence: int, max_entries: int,
                  ) -> FoundEntries:
    """Return the blobs with records newer than the token, each once, with its current state.

    O(log n) to find the place, then O(1) for each of at most `max_entries` records.
    """
    incarnation = snapshot.key
    was_reset = token is not None and not _is_ours(token, snapshot, next_sequence)
    reached, check = (token.sequence, token.check) if token is not None and not was_reset else (0, 0)
    found: dict[bytes, ReplicaEntry] = {}
    at_end = True
    for count, entry in enumerate(records_after(snapshot, reached)):
        if count == max_entries:
            at_end = False
            break
        if entry.id not in found:
            found[entry.id] = _state_of(snapshot, entry)
        reached, check = entry.sequence, check_of(entry)
    return FoundEntries(tuple(found.values()), ReplicationToken(incarnation, reached, check), at_end, was_reset)


def check_of(entry: IndexEntry) -> int:
    """Return a checksum of 32 bits of a record's fields; never 0."""
    fields = (bytes(entry.id), entry.kind, entry.life_version, entry.op_time_ms, entry.expires_ms, entry.account,
              entry.container, entry.size)
    return crc32(repr(fields).encode()) or 1


def _is_ours(token: ReplicationToken, snapshot: LogContents, next_sequence: int) -> bool:
    """Whether a token is of this history: not ahead of it, and with the checksum of its record if that exists."""
    if token.incarnation != snapshot.key or token.sequence >= next_sequence:
        return False
    if not token.check or not token.sequence:
        return True
    entry = next(records_after(snapshot, token.sequence - 1), None)
    return entry is None or entry.sequence != token.sequence or check_of(entry) == token.check


def _state_of(snapshot: LogContents, entry: IndexEntry) -> ReplicaEntry:
    history = snapshot.history(entry.id)
    state = blob_state(history)
    assert state is not None, "a record of the snapshot has a history in it"
    newest, put = state.newest, state.put
    kind = state.deciding.kind if state.deciding is not None else RecordKind.TTL_UPDATE
    expires = newest.expires_ms
    return ReplicaEntry(entry.id, kind == RecordKind.DELETE, state.newest.is_permanent, newest.life_version,
                        put.size if put is not None and state.has_content else 0, newest.op_time_ms / 1000,
                        expires / 1000 if expires >= 0 else None, newest.account, newest.container, newest.sequence,
                        state.permanent_ms(history) / 1000 if state.newest.is_permanent else None)
