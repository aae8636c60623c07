# SPDX-License-Identifier: Apache-2.0
"""Receiving a snapshot: state and live entries are written piece by piece, and count only once all is durable."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from compactlib.errors import Closed, CorruptData, StorageError, Unsupported
from compactlib.files.checksum import crc32
from compactlib.files.disk import Files, OutFile, look_at, read_exactly, write_durably
from compactlib.raftlog.snapshots.files_format import (
    INCOMING_ENTRIES,
    INCOMING_MANIFEST,
    INCOMING_STATE,
    PART_HEAD_BYTES,
    STATE_HEAD,
    decode_manifest,
    encode_manifest,
)
from compactlib.raftlog.snapshots.model import SnapshotManifest, StagedState

_PIECE_BYTES = 1 << 20


class IncomingState:
    """A snapshot that is being received. Used by one thread at a time; `SnapshotFolder.receive` makes it.

    Its live entries wait in a file of their own until all of it is here: the log is not touched before that. They are
    gone when the process ends; the state is kept for another try.

    Args:
        files: the disk.
        folder: the snapshots' folder.
        manifest: what is being received.
        keep_bytes: how much of the state an earlier try has left; the rest of the file is cut.

    Raises:
        StorageError: the disk refused.
    """

    def __init__(self, files: Files, folder: str, manifest: SnapshotManifest, *, keep_bytes: int = 0) -> None:
        self._files = files
        self._folder = folder
        self._manifest = manifest
        self._path: str = os.path.join(folder, INCOMING_STATE)
        self._entries: OutFile | None = None
        self._entries_path: str = os.path.join(folder, INCOMING_ENTRIES)
        self._entries_bytes = 0
        self._sizes: list[int] = []
        self._is_open = True
        self._out: OutFile | None = None
        try:
            if keep_bytes:
                self._out = files.open(self._path)
                self._out.truncate(PART_HEAD_BYTES + keep_bytes)
            else:
                remove_incoming(files, folder)
                # The manifest first: a state without one cannot be gone on with, and is removed.
                write_durably(files, os.path.join(folder, INCOMING_MANIFEST), [encode_manifest(manifest)])
                self._out = files.create(self._path)
                self._out.write_at(0, [STATE_HEAD.encode(manifest.index, manifest.term)])
        except BaseException:
            self._close_state()
            raise

    @property
    def is_open(self) -> bool:
        """Whether it is still received."""
        return self._is_open

    @property
    def manifest(self) -> SnapshotManifest:
        """What is being received."""
        return self._manifest

    @property
    def path(self) -> str:
        """Where the state is, until it is put in force."""
        return self._path

    def write(self, offset: int, data: bytes) -> None:
        """Put a piece where it belongs; not durable.

        Raises:
            StorageError: the disk refused.
            Closed: it was finished or closed.
        """
        self._open().write_at(PART_HEAD_BYTES + offset, [data])

    def write_entries(self, piece: bytes) -> None:
        """Put a piece of the live entries behind the others; not durable.

        Raises:
            StorageError: the disk refused.
        """
        if self._entries is None:
            remove_stray(self._files, self._entries_path)
            self._entries = self._files.create(self._entries_path)
        self._entries_bytes += self._entries.write_at(self._entries_bytes, [piece])
        self._sizes.append(len(piece))

    def entry_pieces(self) -> Iterator[bytes]:
        """The pieces of the live entries, as they were written.

        Raises:
            StorageError: the disk refused.
        """
        at = 0
        for size in self._sizes:
            assert self._entries is not None, "there is a piece"
            yield read_exactly(self._entries.fileno(), size, at)
            at += size

    def sync(self) -> None:
        """Make the state durable as far as it was written.

        Raises:
            StorageError: the disk refused.
        """
        self._open().sync()

    def finish(self) -> None:
        """Make the state durable, and check that it is what the manifest says.

        Raises:
            CorruptData: it is not; nothing is in force.
            StorageError: the disk refused.
        """
        out = self._open()
        out.sync()
        size, crc = _measured(out.fileno())
        self._close_state()
        if (size, crc) != (self._manifest.state_bytes, self._manifest.state_crc):
            raise CorruptData(path=self._path, offset=PART_HEAD_BYTES, found=f"{size} with {crc:#010x}",
                              expected=f"{self._manifest.state_bytes} bytes with CRC {self._manifest.state_crc:#010x}")

    def close(self) -> None:
        """Let the files go, and leave the state for another try; closing again does nothing."""
        self._is_open = False
        self._close_state()
        entries, self._entries = self._entries, None
        self._sizes.clear()
        if entries is not None:
            entries.close()

    def _close_state(self) -> None:
        out, self._out = self._out, None
        if out is not None:
            out.close()

    def discard(self) -> None:
        """Let the files go and remove them.

        Raises:
            StorageError: the disk refused; the next try, or opening the folder, removes it.
        """
        self.close()
        remove_incoming(self._files, self._folder)

    def _open(self) -> OutFile:
        if self._out is None:
            raise Closed(f"{self._path} was finished or closed; receive the snapshot again")
        return self._out

    def __repr__(self) -> str:
        return f"IncomingState(snapshot {self._manifest.index}, {'closed' if self._out is None else 'open'})"


def find_incoming(folder: str) -> StagedState | None:
    """What an earlier try has left of a snapshot, `None` if nothing that can be gone on with.

    Raises:
        StorageError: it cannot be read.
    """
    try:
        with open(os.path.join(folder, INCOMING_MANIFEST), "rb") as file:
            manifest = decode_manifest(file.read(), file.name)
        with open(os.path.join(folder, INCOMING_STATE), "rb") as file:
            head = read_exactly(file.fileno(), PART_HEAD_BYTES, 0)
            size = os.fstat(file.fileno()).st_size - PART_HEAD_BYTES
    except (FileNotFoundError, IsADirectoryError, CorruptData, Unsupported):
        return None
    except OSError as error:
        raise StorageError.from_os(error, "read", folder) from error
    whole = head == STATE_HEAD.encode(manifest.index, manifest.term)
    return StagedState(manifest, size) if whole and 0 < size <= manifest.state_bytes else None


def remove_incoming(files: Files, folder: str) -> None:
    """Remove what an earlier try has left.

    Raises:
        StorageError: the disk refused.
    """
    for name in (INCOMING_ENTRIES, INCOMING_STATE, INCOMING_MANIFEST):
        remove_stray(files, os.path.join(folder, name))


def remove_stray(files: Files, path: str) -> None:
    """Remove a file that an earlier try may have left."""
    if look_at(path) is not None:
        files.unlink(path)


def _measured(descriptor: int) -> tuple[int, int]:
    """How many bytes of state a file holds, and their CRC."""
    size = crc = 0
    with contextlib.suppress(EOFError):
        while data := read_exactly(descriptor, _PIECE_BYTES, PART_HEAD_BYTES + size):
            crc = crc32(data, crc)
            size += len(data)
    return size, crc
