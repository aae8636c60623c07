# SPDX-License-Identifier: Apache-2.0
"""`Staged`: what a staging token holds for one key, and its stored form (docs/formats/staging-records.md)."""

from __future__ import annotations

import attrs

from compactlib.errors import CorruptData
from compactlib.files.record_frame import RecordFrame
from compactlib.staging.values import Change, Record

WRITE_ID_BYTES = 8

_FRAME = RecordFrame("staged entry", b"", 1, "<BB8sI")
_VALUE = 0
_TOMBSTONE = 1


@attrs.frozen
class Staged:
    """One staged entry.

    Attributes:
        record: the record put; `None` for a tombstone.
        write_id: drawn by the operation that wrote it, so that a conditional put knows its own write again; zeros if
            it will not be read.
    """

    record: Change
    write_id: bytes = bytes(WRITE_ID_BYTES)

    @property
    def is_tombstone(self) -> bool:
        """Whether it hides the key."""
        return self.record is None


def encode_staged(staged: Staged) -> bytes:
    """The stored form of a staged entry. O(size)."""
    record = staged.record
    if record is None:
        return _FRAME.encode(_TOMBSTONE, staged.write_id, 0)
    return _FRAME.encode(_VALUE, staged.write_id, len(record.identity), body=record.identity + record.data)


def decode_staged(data: bytes, place: str) -> Staged:
    """The entry of a stored form. O(size).

    Raises:
        CorruptData: the bytes are not those of a staged entry.
        Unsupported: they were written by another release.
    """
    kind, write_id, identity_bytes, body = _FRAME.decode(data, place)
    if kind == _TOMBSTONE and identity_bytes == len(body) == 0:
        return Staged(None, write_id)
    if kind != _VALUE or identity_bytes > len(body):
        raise CorruptData(path=place, offset=1, expected="a value or a tombstone that fills its bytes",
                          found=f"kind {kind}, identity of {identity_bytes} bytes")
    return Staged(Record(body[:identity_bytes], body[identity_bytes:]), write_id)
