# SPDX-License-Identifier: Apache-2.0
"""`JsonRecord`: a value as a stored record: magic, version, the value as JSON, checksum (`record_frame.py`)."""

from __future__ import annotations

from typing import Generic, TypeVar

from compactlib.codec import JsonCodec
from compactlib.files.record_frame import RecordFrame

T = TypeVar("T")


class JsonRecord(Generic[T]):
    """Writes and checks records of one type. Threads may share it.

    Args:
        name: what a record is, for errors.
        magic: what it begins with, 8 bytes.
        version: the version that is written, and the only one that is read; at least 1.
        kind: the type of the value: an attrs class, or a union of them.
    """

    def __init__(self, name: str, magic: bytes, version: int, kind: type[T]) -> None:
        self._frame = RecordFrame(name, magic, version, "<H")
        self._codec: JsonCodec[T] = JsonCodec(kind)

    def encode(self, value: T) -> bytes:
        """Return the record.

        Raises:
            FieldError: the value holds something that does not fit.
        """
        return self._frame.encode(body=self._codec.encode(value))

    def decode(self, data: bytes, place: str) -> T:
        """Return the value; `place` is where the record was read, for errors.

        Raises:
            CorruptData: the record is damaged, or holds no such value; the message names the field.
            Unsupported: another release wrote it.
        """
        return self._codec.decode(self._frame.decode(data, place)[0], place)
