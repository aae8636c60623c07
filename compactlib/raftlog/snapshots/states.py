# SPDX-License-Identifier: Apache-2.0
"""The files of a snapshot: `StateReader` reads a state, `Incoming` receives one with its live entries.

The state that has arrived stays for a retry when the stream breaks. The live entries are stored as sparse frames of the
WAL, as they arrived. `seal` gives the state its name, and ends the file of the entries by a truncation, which has the
highest index that stays in the log. Then the log's row can name the snapshot.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from compactlib._closing import closed_on_failure
from compactlib.errors import Closed, CorruptData, StorageError
from compactlib.files.checksum import crc32
from compactlib.files.disk import Files, OutFile, ReadDescriptor, StrPath, look_at, read_exactly
from compactlib.raftlog.errors import SnapshotLost
from compactlib.raftlog.snapshot_meta import SnapshotManifest, SnapshotMeta
from compactlib.raftlog.wal.frames import (
    FRAME_HEADER_BYTES,
    Frame,
    FrameKind,
    cut_frame,
    decode_frame,
    sparse_frame,
    whole_bytes,
)

_PIECE_BYTES = 1 << 20


class StateReader(ReadDescriptor):
    """An open state; it stays readable when the snapshot is removed. A context manager.

    Args:
        path: the state's file.
        manifest: the manifest of its snapshot.

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


class Incoming:
    """A snapshot that is being received. Not thread-safe; made by `Snapshots.receive`.

    Args:
        files: the disk.
        row: names the snapshot, without its live set.
        incoming_path: the file of the state that has arrived.
        state_path: its name once it is whole.
        entries_path: the file of the live entries.
        state_bytes: size of the state that an earlier transfer has left; the rest of the file is cut.

    Attributes:
        is_open: whether it is still being received; a log that is closed clears it, since the files may belong to the
            next transfer then.
    """

    def __init__(self, files: Files, row: SnapshotMeta, incoming_path: str, state_path: str, entries_path: str,
                 *, state_bytes: int) -> None:
        assert row.manifest is not None, "a received snapshot has a state"
        self._files = files
        self.row = row
        self.manifest: SnapshotManifest = row.manifest
        self.state_bytes: int = state_bytes
        self.is_open: bool = True
        self._incoming_path = incoming_path
        self._state_path = state_path
        self._entries_path = entries_path
        self._entries_bytes = 0
        self._outs: list[OutFile] = []
        with closed_on_failure(self):
            self._state = self._opened(incoming_path, state_bytes)
            self._entries = self._opened(entries_path, 0)

    def _opened(self, path: str, size: int) -> OutFile:
        out = self._files.create(path) if look_at(path) is None else self._files.open(path)
        self._outs.append(out)
        out.truncate(size)
        return out

    def write(self, offset: int, data: bytes) -> None:
        """Write a piece of the state at its offset; not durable."""
        self._require_open()
        self._state.write_at(offset, [data])

    def write_frame(self, frame: Frame) -> None:
        """Append a frame of live entries; not durable."""
        self._require_open()
        self._entries_bytes += self._entries.write_at(self._entries_bytes, frame.encode(0, 0, 0))

    def frames(self) -> Iterator[Frame]:
        """The live entries in the frames in which they arrived."""
        return _frames(self._entries.fileno(), self._entries_path)

    def finish(self) -> None:
        """Make the state durable, read it, and raise `CorruptData` if it is not the manifest's."""
        # What an earlier transfer has left is written again: after a failed fsync these bytes can be read, and the next
        # fsync does not write them.
        for place in range(0, self.state_bytes, _PIECE_BYTES):
            part = read_exactly(self._state.fileno(), min(_PIECE_BYTES, self.state_bytes - place), place)
            self._state.write_at(place, [part])
        self._state.sync()
        with StateReader(self._incoming_path, self.manifest) as reader:
            reader.check()

    def seal(self, cut_after: int) -> None:
        """End the file of the live entries, which replace the log's above `cut_after`; both files are durable then."""
        # First: if the log was closed, the state under its first name is of the next transfer.
        self.write_frame(cut_frame(cut_after))
        self._entries.sync()
        self._files.rename(self._incoming_path, self._state_path)
        self._files.sync_folder(os.path.dirname(self._entries_path))

    def _require_open(self) -> None:
        if not self.is_open:
            raise Closed(f"snapshot {self.manifest.index} is not being received any more; receive it again")

    def close(self) -> None:
        """Close the files, and leave the state for a retry. Idempotent."""
        self.is_open = False
        while self._outs:
            self._outs.pop().close()

    def discard(self) -> None:
        """Close and remove the files; not after `close`, when the log's row may name them."""
        if self.is_open:
            self.close()
            for path in (self._entries_path, self._incoming_path, self._state_path):
                if look_at(path) is not None:
                    self._files.unlink(path)


def read_sealed(path: str) -> tuple[int, Iterator[Frame]]:
    """Read a file that `Incoming.seal` has ended: the index, and an iterator over the live entries above it.

    Raises:
        CorruptData: the file is damaged; raised by the iterator, too.
        StorageError: it cannot be read.
    """
    try:
        size = os.stat(path).st_size
        with open(path, "rb") as file:
            last = list(_frames(file.fileno(), path, max(0, size - FRAME_HEADER_BYTES)))
    except OSError as error:
        raise StorageError.from_os(error, "read", path) from error
    if len(last) != 1 or last[0].kind != FrameKind.CUT:
        raise CorruptData(path=path, offset=size, expected="the frame that ends the live entries", found="another")
    after = -1 if last[0].previous is None else last[0].previous

    def missing() -> Iterator[Frame]:
        with open(path, "rb") as file:
            for frame in _frames(file.fileno(), path):
                rows = [(index, term, payload) for index, term, (payload,) in frame.runs() if index > after]
                if rows:
                    indexes, terms, payloads = zip(*rows, strict=True)
                    yield sparse_frame(indexes, terms, payloads, None)

    return after, missing()


def _frames(descriptor: int, path: str, at: int = 0) -> Iterator[Frame]:
    end = os.fstat(descriptor).st_size
    while at < end:
        size = whole_bytes(read_exactly(descriptor, FRAME_HEADER_BYTES, at), 0)
        decoded = decode_frame(read_exactly(descriptor, size, at), 0, 0)
        if decoded is None:
            raise CorruptData(path=path, offset=at, expected="a frame of live entries", found="a damaged frame")
        yield decoded[0]
        at += size
