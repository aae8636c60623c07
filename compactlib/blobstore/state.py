# SPDX-License-Identifier: Apache-2.0
"""The state of a blob, folded from its records: live, deleted or expired. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from compactlib.blobstore.records import content_range
from compactlib.blobstore.values import BlobInfo, IndexEntry, RecordFlag, RecordKind


@attrs.frozen
class BlobState:
    """The state of one id.

    Attributes:
        newest: its newest record; expiry, life version and the mark of a TTL update are those of this one.
        deciding: its newest PUT, DELETE or UNDELETE; `None` if only TTL updates are left of it.
        put: its PUT, `None` if a compaction removed it.
    """

    newest: IndexEntry
    deciding: IndexEntry | None
    put: IndexEntry | None

    @property
    def is_deleted(self) -> bool:
        """Whether the last word on it is a delete."""
        return self.deciding is not None and self.deciding.kind == RecordKind.DELETE

    @property
    def is_permanent(self) -> bool:
        """Whether a TTL update has made it permanent."""
        return bool(self.newest.flags & RecordFlag.TTL_UPDATED)

    @property
    def has_content(self) -> bool:
        """Whether neither a compaction nor a hard delete has removed the content of its PUT."""
        return self.put is not None and not self.put.flags & RecordFlag.ERASED

    def permanent_ms(self, history: Sequence[IndexEntry]) -> int:
        """When the permanent blob of this history was made so; if that is not known, when it was put."""
        since = self.newest.op_time_ms if self.put is None else self.put.op_time_ms
        return max((entry.op_time_ms for entry in history
                    if entry.kind == RecordKind.TTL_UPDATE and (self.put is None or entry.op_time_ms >= since)),
                   default=since)

    def is_expired(self, now_ms: int) -> bool:
        """Whether its time is over: strictly after its expiry."""
        return self.newest.is_expired(now_ms)

    def info(self, put: IndexEntry) -> BlobInfo:
        """Its properties, given its PUT."""
        newest = self.newest
        expires = newest.expires_ms
        return BlobInfo(put.id, content_range(put)[1], put.op_time_ms / 1000, expires / 1000 if expires >= 0 else None,
                        newest.life_version, put.account, put.container, newest.op_time_ms / 1000)


def blob_state(history: Sequence[IndexEntry]) -> BlobState | None:
    """The state that these records of one id, ascending by sequence, leave; `None` if there are none."""
    if not history:
        return None
    deciding = put = None
    for entry in reversed(history):
        if entry.kind != RecordKind.TTL_UPDATE and deciding is None:
            deciding = entry
        if entry.kind == RecordKind.PUT:
            put = entry
            break
    return BlobState(history[-1], deciding, put)


def info_after(history: Sequence[IndexEntry], entry: IndexEntry) -> BlobInfo:
    """The properties of a blob whose PUT is in `history`, after one record more."""
    state = blob_state((*history, entry))
    assert state is not None
    assert state.put is not None
    return state.info(state.put)
