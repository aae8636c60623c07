# SPDX-License-Identifier: Apache-2.0
"""`StateReader`: reads the state of a snapshot from any offset, also after a newer snapshot has replaced it."""

from __future__ import annotations

import os
from collections.abc import Iterator

from compactlib.errors import Closed, CorruptData, StorageError
from compactlib.files.checksum import crc32
from compactlib.files.disk import ReadDescriptor, StrPath, read_exactly
from compactlib.raftlog.errors import SnapshotLost
from compactlib.raftlog.snapshot_meta import SnapshotManifest

_PIECE_BYTES = 1 << 20


class StateReader(ReadDescriptor):
    """An open state; it stays readable when the snapshot is removed. A context manager.

    Args:
        path: the state's file.
        manifest: of its snapshot.

    Raises:
        SnapshotLost: the file is missing, or its size differs from the manifest's.
        StorageError: it cannot be opened.
    """

    def __init__(self, path: StrPath, manifest: SnapshotManifest) -> None:
        super().__init__()
        self._path = os.fspath(path)
        self._manifest = manifest
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            size = os.fstat(self._descriptor).st_size
        except FileNotFoundError:
            raise SnapshotLost(path=self._path, offset=0, expected=f"the state of snapshot {manifest.index}",
                               found="no file") from None
        except OSError as error:
            raise StorageError.from_os(error, "read", path) from error
        if size != manifest.state_bytes:
            self.close()
            raise SnapshotLost(path=self._path, offset=min(size, manifest.state_bytes), found=f"{size}",
                               expected=f"{manifest.state_bytes} bytes")

    @property
    def manifest(self) -> SnapshotManifest:
        """The snapshot."""
        return self._manifest

    def read(self, offset: int, length: int) -> bytes:
        """Read a piece of the state; shorter than `length` at its end. Not checked: the checksum is of the whole state.

        Raises:
            Closed: the reader was closed.
            StorageError: the disk refused.
        """
        if self._descriptor < 0:
            raise Closed(f"the reader of {self._path} is closed; open the state again")
        try:
            return read_exactly(self._descriptor, length, offset)
        except OSError as error:
            raise StorageError.from_os(error, "read", self._path) from error

    def pieces(self) -> Iterator[bytes]:
        """Iterate over the whole state. The last piece is yielded after all bytes were checked.

        Raises:
            CorruptData: the bytes are not the state that was written; do not use the pieces.
            StorageError: the disk refused.
        """
        offset = crc = 0
        while data := self.read(offset, _PIECE_BYTES):
            crc = crc32(data, crc)
            offset += len(data)
            if offset >= self._manifest.state_bytes:
                break
            yield data
        if (offset, crc) != (self._manifest.state_bytes, self._manifest.state_crc):
            raise CorruptData(path=self._path, offset=0, found=f"{offset} with {crc:#010x}",
                              expected=f"{self._manifest.state_bytes} bytes with CRC {self._manifest.state_crc:#010x}")
        # After the check: with the last piece, the caller takes the state for complete.
        if data:
            yield data

    def check(self) -> None:
        """Read the whole state. O(bytes). Raises as `pieces`."""
        for _ in self.pieces():
            pass

    def __repr__(self) -> str:
        return f"StateReader({self._path!r}, {self._manifest.state_bytes} bytes)"
