# SPDX-License-Identifier: Apache-2.0
"""A snapshot that is being received: state and live entries are written piece by piece beside the log.

The state is kept for another try when the stream breaks; the manifest beside it says of which snapshot it is. The live
entries are kept as the frames in which they came. `sealed_entries` ends their file by one more frame without entries,
which names the index above which the log takes them.
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
    """See the module. Used by one thread at a time; `Snapshots.receive` makes it.

    Args:
        files: the disk.
        folder: the folder of snapshots.
        manifest: what is being received.
        keep_bytes: how much of the state an earlier try has left; the rest of the file is cut.

    Attributes:
        manifest: as given.
        state_bytes: how much of the state was there already.
        is_open: whether it is still received.

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
            # The manifest first: a state without one cannot be gone on with, and is removed.
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
        """Put a piece of the state where it belongs; not durable.

        Raises:
            StorageError: the disk refused.
        """
        self._require_open()
        self._state.write_at(offset, [data])

    def write_entries(self, entries: Entries) -> None:
        """Put live entries behind the others; not durable. Raises as `write`."""
        self._require_open()
        self._entries_bytes += self._entries.write_at(self._entries_bytes, [encode(entries)])

    def groups(self) -> Iterator[Entries]:
        """The live entries, as they came."""
        return _groups(self._entries.fileno(), self._entries_path)

    def finish(self) -> None:
        """Make the state durable, and check that it is what the manifest says.

        Raises:
            CorruptData: it is not.
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
        """Let the files go, and leave the state for another try; closing again does nothing."""
        self.is_open = False
        while self._outs:
            self._outs.pop().close()

    def discard(self) -> None:
        """Let the files go and remove them.

        Raises:
            StorageError: the disk refused; the next try, or opening the log, removes them.
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
    """The snapshot of which an earlier try has left the beginning of the state, and how many bytes; or `None`.

    Raises:
        StorageError: it cannot be read.
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
    """Whether a name is one under which a snapshot is received."""
    return name.removesuffix(".tmp") in (INCOMING_MANIFEST, INCOMING_STATE, INCOMING_ENTRIES)


def read_sealed(path: StrPath) -> tuple[int, Iterator[Entries]]:
    """The index above which a log takes the live entries in a file, and these entries, which are read as they are used.

    Raises:
        CorruptData: the file is not whole; from the iterator, too.
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
