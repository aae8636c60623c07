# SPDX-License-Identifier: Apache-2.0
"""`JsonRecord`, a value as bytes with a checksum, and `DurableRecord`, a file with such a value, replaced whole."""

from __future__ import annotations

import os
from typing import Generic, TypeVar

from compactlib.codec import JsonCodec
from compactlib.files.disk import Files, StrPath, may_be_there, read_if_there, write_durably
from compactlib.files.record_frame import RecordFrame

T = TypeVar("T")


class JsonRecord(Generic[T]):
    """Writes and reads records of one type. Threads may share it.

    Args:
        name: the format's name, for errors.
        magic: the first 8 bytes of a record.
        version: the only version that is written and read; at least 1.
        kind: the type of the value: an attrs class, or a union of attrs classes.
    """

    def __init__(self, name: str, magic: bytes, version: int, kind: type[T]) -> None:
        self._frame = RecordFrame(name, magic, version, "<H")
        self._codec: JsonCodec[T] = JsonCodec(kind)

    def encode(self, value: T) -> bytes:
        """Return the record.

        Raises:
            FieldError: a field does not fit its type.
        """
        return self._frame.encode(body=self._codec.encode(value))

    def decode(self, data: bytes, place: str) -> T:
        """Return the value; `place` is the source of the record, for errors.

        Raises:
            CorruptData: the record is damaged, or is of another type; the message names the field.
            Unsupported: another release wrote it.
        """
        return self._codec.decode(self._frame.decode(data, place)[0], place)


class DurableRecord(Generic[T]):
    """A value in a file. After a crash the file has the old or the new value.

    One writer at a time. A killed writer may leave a value that is not durable: an owner syncs its folder when it opens
    (`sync_names`), before it acknowledges anything that depends on the value.

    Args:
        files: the disk.
        path: the file.
        record: the format of the value.
        temporary_suffix: the suffix of the temporary file, to which a new value is written first.

    Attributes:
        path: the file.
    """

    def __init__(self, files: Files, path: StrPath, record: JsonRecord[T], *, temporary_suffix: str = ".tmp") -> None:
        self.path: str = os.fspath(path)
        self._files = files
        self._record = record
        self._suffix = temporary_suffix

    def read(self) -> T | None:
        """Return the value; `None` if there is no file.

        Raises:
            CorruptData: the file is damaged.
            Unsupported: another release wrote it.
            StorageError: it cannot be read.
        """
        data = read_if_there(self.path)
        return None if data is None else self._record.decode(data, self.path)

    def write(self, value: T) -> None:
        """Replace the value, durably. Two syncs.

        Raises:
            StorageError: the disk refused; the file has the old value, or the new value, which a crash may undo.
        """
        write_durably(self._files, self.path, [self._record.encode(value)], temporary_suffix=self._suffix)

    def remove(self) -> None:
        """Remove the file, durably; also if it does not exist.

        Raises:
            StorageError: the disk refused; call again.
        """
        if may_be_there(self.path):
            self._files.unlink(self.path)
        self._files.sync_folder(os.path.dirname(self.path) or ".")

    def clear_leftover(self) -> None:
        """Remove the temporary file of a killed writer.

        Raises:
            StorageError: the disk refused.
        """
        if may_be_there(self.path + self._suffix):
            self._files.unlink(self.path + self._suffix)

    def __repr__(self) -> str:
        return f"DurableRecord({self.path!r})"
