# SPDX-License-Identifier: Apache-2.0
"""`Incoming`: a snapshot that is being received, with its state and its live entries in files of the snapshots' folder.

The state stays for a retry when the stream breaks; the manifest's file names its snapshot. The live entries are stored
as the frames in which they arrived. `sealed_entries` ends their file by a frame without entries, which has the index
above which these entries replace the log's.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from compactlib.errors import Closed, CorruptData, StorageError, Unsupported
from compactlib.files.disk import Files, OutFile, StrPath, look_at, read_exactly, write_durably
from compactlib.raftlog.messages import (
    CRC_BYTES,
    HEAD_BYTES,
    OVERHEAD_BYTES,
    Entries,
    body_bytes,
    decode,
    encode,
)
from compactlib.raftlog.model.snapshot_meta import SnapshotManifest, decode_head, encode_head
from compactlib.raftlog.model.values import MAX_PAYLOAD_BYTES
from compactlib.raftlog.snapshots.state_reader import require_state

INCOMING_MANIFEST = "incoming.manifest"
INCOMING_STATE = "incoming.state"
INCOMING_ENTRIES = "incoming.entries"
_SEAL_BYTES = len(encode(Entries(-1, ())))


class Incoming:
    """A snapshot that is being received. Not thread-safe; made by `Snapshots.receive`.

    Args:
        files: the disk.
        folder: the folder of snapshots.
        manifest: what is being received.
        keep_bytes: size of the state that an earlier transfer has left; the rest of the file is cut.

    Attributes:
        manifest: as given.
        state_bytes: as `keep_bytes`.
        is_open: whether it is still being received.

    Raises:
        StorageError: the disk refused.
    """

    def __init__(self, files: Files, folder: str, manifest: SnapshotManifest, *, keep_bytes: int) -> None:
        self._files = files
        self._folder = folder
        self.manifest = manifest
        self.state_bytes: int = keep_bytes
        self.is_open: bool = True
        self._entries_path: str = os.path.join(folder, INCOMING_ENTRIES)
        self._entries_bytes = 0
        path = os.path.join(folder, INCOMING_STATE)
        if not keep_bytes:
            self._remove()
            # The manifest first: a state without a manifest is a leftover.
            write_durably(files, os.path.join(folder, INCOMING_MANIFEST), [encode_head(manifest)])
        _remove_if_there(files, self._entries_path)
        self._outs: list[OutFile] = []
        try:
            self._state = self._kept(files.open(path) if keep_bytes else files.create(path))
            self._state.truncate(keep_bytes)
            self._entries = self._kept(files.create(self._entries_path))
        except BaseException:
            self.close()
            raise

    def _kept(self, out: OutFile) -> OutFile:
        self._outs.append(out)
        return out

    def write(self, offset: int, data: bytes) -> None:
        """Write a piece of the state at its offset; not durable.

        Raises:
            StorageError: the disk refused.
        """
        self._require_open()
        self._state.write_at(offset, [data])

    def write_entries(self, entries: Entries) -> None:
        """Append live entries; not durable. Raises as `write`."""
        self._require_open()
        self._entries_bytes += self._entries.write_at(self._entries_bytes, [encode(entries)])

    def groups(self) -> Iterator[Entries]:
        """The live entries in the frames in which they arrived."""
        return _groups(self._entries.fileno(), self._entries_path)

    def finish(self) -> None:
        """Make the state durable, read it, and compare it with the manifest.

        Raises:
            CorruptData: it differs.
            StorageError: the disk refused.
        """
        self._require_open()
        self._state.sync()
        require_state(self._state.fileno(), os.path.join(self._folder, INCOMING_STATE), self.manifest.state_bytes,
                      self.manifest.state_crc)

    def sealed_entries(self, cut_after: int) -> str:
        """End the file of the live entries, durably, and return its path."""
        self.write_entries(Entries(cut_after, ()))
        self._entries.sync()
        return self._entries_path

    def close(self) -> None:
        """Close the files, and leave the state for a retry. Idempotent."""
        self.is_open = False
        while self._outs:
            self._outs.pop().close()

    def discard(self) -> None:
        """Close and remove the files.

        Raises:
            StorageError: the disk refused; the next transfer, or opening the log, removes them.
        """
        self.close()
        self._remove()

    def _remove(self) -> None:
        for name in (INCOMING_ENTRIES, INCOMING_STATE, INCOMING_MANIFEST):
            _remove_if_there(self._files, os.path.join(self._folder, name))

    def _require_open(self) -> None:
        if not self.is_open:
            raise Closed(f"the transfer into {self._folder} has ended; receive the snapshot again")


def staged_in(folder: StrPath) -> tuple[SnapshotManifest, int] | None:
    """The manifest of the snapshot of an interrupted transfer, and the size of the state that it left; or `None`.

    Raises:
        StorageError: a file cannot be read.
    """
    path = os.path.join(folder, INCOMING_MANIFEST)
    try:
        with open(path, "rb") as file:
            head, _ = decode_head(file.read(), path)
        size = os.stat(os.path.join(folder, INCOMING_STATE)).st_size
    except (FileNotFoundError, CorruptData, Unsupported):
        return None
    except OSError as error:
        raise StorageError.from_os(error, "read", folder) from error
    return (head.manifest, size) if head is not None and 0 < size <= head.manifest.state_bytes else None


def is_incoming(name: str) -> bool:
    """Whether a file of this name belongs to a snapshot that is being received."""
    return name.removesuffix(".tmp") in (INCOMING_MANIFEST, INCOMING_STATE, INCOMING_ENTRIES)


def read_sealed(path: StrPath) -> tuple[int, Iterator[Entries]]:
    """Read a file that `sealed_entries` has ended: the index, and an iterator over the live entries above it.

    Raises:
        CorruptData: the file is damaged; raised by the iterator, too.
        StorageError: it cannot be read.
    """
    name = os.fspath(path)
    try:
        size = os.stat(path).st_size
        with open(path, "rb") as file:
            last = list(_groups(file.fileno(), name, max(0, size - _SEAL_BYTES)))
    except OSError as error:
        raise StorageError.from_os(error, "read", path) from error
    if len(last) != 1 or last[0].entries:
        raise CorruptData(path=name, offset=size, expected="the frame that ends the live entries", found="another")
    after = last[0].previous

    def missing() -> Iterator[Entries]:
        with open(path, "rb") as file:
            for group in _groups(file.fileno(), name):
                entries = tuple(entry for entry in group.entries if entry.index > after)
                if entries:
                    yield Entries(group.previous, entries)

    return after, missing()


def _groups(descriptor: int, path: str, at: int = 0) -> Iterator[Entries]:
    end = os.fstat(descriptor).st_size
    while at < end:
        head = read_exactly(descriptor, HEAD_BYTES, at)
        try:
            if len(head) < HEAD_BYTES:
                raise Unsupported(f"{len(head)} bytes")
            size = HEAD_BYTES + body_bytes(head, limit=MAX_PAYLOAD_BYTES + OVERHEAD_BYTES) + CRC_BYTES
            group = decode(read_exactly(descriptor, size, at))
        except (CorruptData, Unsupported) as error:
            raise CorruptData(path=path, offset=at, expected="a frame of live entries", found=str(error)) from error
        if not isinstance(group, Entries):
            raise CorruptData(path=path, offset=at, expected="a frame of live entries", found=type(group).__name__)
        yield group
        at += size


def _remove_if_there(files: Files, path: str) -> None:
    if look_at(path) is not None:
        files.unlink(path)
