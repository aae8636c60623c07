# SPDX-License-Identifier: Apache-2.0
"""What is answered for a blob: whether its content is to be had, and the content, checked. Pure but for one read."""

from __future__ import annotations

from collections.abc import Callable

from compactlib.blobstore.records import HEADER_BYTES, TRAILER_BYTES, check_record
from compactlib.blobstore.segment import SegmentFile
from compactlib.blobstore.state import BlobState
from compactlib.blobstore.values import Deleted, Expired, GetOptions, IndexEntry, Missing
from compactlib.errors import CorruptData


def judged(key: bytes, state: BlobState | None, options: GetOptions,
           now_ms: Callable[[], int]) -> IndexEntry | Missing | Deleted | Expired:
    """The PUT to answer with, or why there is none.

    Args:
        key: the id.
        state: what the log knows of it.
        options: what else may be answered.
        now_ms: the time, milliseconds since the epoch; asked if it matters.
    """
    if state is None or state.deciding is None:
        return Missing(key)
    put, deciding = state.put, state.deciding
    gone = not state.has_content
    if state.is_deleted and (gone or not options.include_deleted):
        return Deleted(key, deciding.op_time_ms / 1000, deciding.life_version, gone)
    if state.newest.expires_ms >= 0 and not options.include_expired and state.is_expired(now_ms()):
        return Expired(key, state.newest.expires_ms / 1000)
    return Missing(key) if put is None or gone else put


def content_of(file: SegmentFile, entry: IndexEntry, salt: int) -> bytes:
    """The content of a PUT. One `pread`.

    Raises:
        CorruptData: its bytes are not what was written.
        StorageError: the disk refused.
    """
    record = file.read(entry.offset, entry.size)
    problem = check_record(entry, record, salt)
    if problem is not None:
        raise CorruptData(path=file.path, offset=entry.offset, index=entry.sequence, found=problem,
                          expected=f"the record of blob {entry.id!r}, {entry.size} bytes")
    return record[HEADER_BYTES + len(entry.id):-TRAILER_BYTES]
