# SPDX-License-Identifier: Apache-2.0
"""The snapshots of one log: `Snapshots` has the files in the folder `snapshots/` of the log.

```
<index>-<term>-<attempt>.state        the machine's own bytes (`StateReader`)
<index>-<term>-<attempt>.checkpoint   the row of a checkpoint with such a state; no entry dies by it
<index>-<term>-<attempt>.entries      live entries of a snapshot that is being received or half installed
<...>.incoming.state                  the part of a received state that has arrived (`Incoming`)
```

A snapshot is taken in two steps: the state is written and synced; then the log's row (`SNAPSHOT`), which names the
state, is replaced. A state that neither a row nor a checkpoint names is a leftover. Opening a log whose row
names a missing state, or a state of another size, raises `SnapshotLost`.

The attempt of a received snapshot is a checksum of its manifest, so that the next transfer of the same snapshot finds
the part of its state that has arrived. The live entries are stored as sparse frames of the WAL, as they arrived.
`Incoming.seal` gives the state its name, and ends the file of the entries by a truncation, which has the highest index
that stays in the log. Then the log's row can name the snapshot.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import attrs

from compactlib._arguments import own_bytes
from compactlib._closing import closed_on_failure
from compactlib.errors import Closed, CorruptData, Stale, StorageError
from compactlib.files.checksum import crc32
from compactlib.files.disk import (
    Files,
    OutFile,
    ReadDescriptor,
    StrPath,
    list_folder,
    look_at,
    may_be_there,
    read_exactly,
    read_if_there,
    removed_on_failure,
    write_durably,
)
from compactlib.indexset import IndexSet
from compactlib.raftlog.errors import LiveSetLost, SnapshotLost
from compactlib.raftlog.names import SNAPSHOT_NAME, SNAPSHOTS_FOLDER
from compactlib.raftlog.options import StateMachine
from compactlib.raftlog.snapshot_meta import (
    HEADS,
    NO_SNAPSHOT,
    SnapshotHead,
    SnapshotManifest,
    SnapshotMeta,
    decode_head,
    decode_snapshot_meta,
    encode_snapshot_meta,
    read_snapshot_meta,
    write_snapshot_meta,
)
from compactlib.raftlog.wal.frames import (
    FRAME_HEADER_BYTES,
    Frame,
    FrameKind,
    cut_frame,
    decode_frame,
    sparse_frame,
    whole_bytes,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer

MAX_CHECKPOINTS = 10
_PIECE_BYTES = 1 << 20
_RECEIVED = 1 << 31
"""Attempts of received snapshots have this bit; those of own snapshots count from 1."""
_INCOMING = "incoming.state"
_NAME = re.compile(r"([0-9]{20})-([0-9]{20})-([0-9]+)\.(state|entries|incoming\.state|checkpoint(?:\.tmp)?)")


def _name(row: SnapshotMeta, suffix: str) -> str:
    return f"{row.index:020d}-{row.term:020d}-{row.attempt}.{suffix}"


class Snapshots:
    """The folder of a log's snapshots, in the log's `folder`. The log's owner makes one call at a time.

    `machine` makes an empty state machine, from which a damaged live set is rebuilt.
    """

    def __init__(self, files: Files, folder: str, machine: Callable[[], StateMachine] | None = None) -> None:
        self._files = files
        self._log_folder = folder
        self._machine = machine
        self.folder: str = os.path.join(folder, SNAPSHOTS_FOLDER)

    # -- opening

    def recover(self) -> SnapshotMeta | None:
        """Return the log's row, and remove leftovers.

        Raises:
            SnapshotLost: the state that the row names is missing.
            LiveSetLost: the row's live set is damaged and cannot be rebuilt.
            CorruptData, Unsupported, StorageError: as `read_snapshot_meta`.
        """
        try:
            row = read_snapshot_meta(self._log_folder)
        except LiveSetLost:
            row = self._read(os.path.join(self._log_folder, SNAPSHOT_NAME))
        if row is not None and row.manifest is not None:
            self.open_state(row).close()
        if look_at(self.folder) is not None:
            # An earlier process may have been killed between a name and its sync.
            self._files.sync_folder(self.folder)
            self.tidy(row)
        return row

    def make_folder(self) -> None:
        """Make the folder, durably, with the lock of the log's guard held.

        The row's file is written before: if it is missing later, it was lost.
        """
        if look_at(self.folder) is None:
            if look_at(os.path.join(self._log_folder, SNAPSHOT_NAME)) is None:
                write_snapshot_meta(self._files, self._log_folder, NO_SNAPSHOT)
            self._files.make_folder(self.folder)
        self._files.sync_folder(self._log_folder)

    def tidy(self, row: SnapshotMeta | None) -> None:
        """Remove older snapshots than `row`, checkpoints that are not above it, and leftovers. Restartable."""
        if look_at(self.folder) is None:
            return
        kept = {_name(row, suffix) for suffix in ("state", "entries")} if row is not None else set()
        above = -1 if row is None else row.index
        for stem in _checkpoint_stems(self.folder, above)[-MAX_CHECKPOINTS:]:
            kept |= {_name(stem, "checkpoint"), _name(stem, "state")}
        found = [match for name in list_folder(self.folder) if (match := _NAME.fullmatch(name))]
        for match in found:
            if match[4] == _INCOMING and int(match[1]) > above:
                kept |= {match[0], match[0].replace(_INCOMING, "entries")}
        removed = [match[0] for match in found if match[0] not in kept]
        # Checkpoints first, durably: a state without a checkpoint is a leftover, the reverse would be damage.
        checkpoints = [name for name in removed if name.endswith(".checkpoint")]
        for name in checkpoints:
            self._files.unlink(os.path.join(self.folder, name))
        if checkpoints:
            self._files.sync_folder(self.folder)
        for name in removed:
            if name not in checkpoints:
                self._files.unlink(os.path.join(self.folder, name))

    # -- states

    def open_state(self, row: SnapshotMeta) -> StateReader:
        """Open the state of a snapshot or checkpoint; raises as `StateReader`."""
        assert row.manifest is not None, "the log keeps its state"
        return StateReader(self._path(row, "state"), row.manifest)

    def write(self, row: SnapshotMeta, state: Iterable[Buffer], machine_version: int) -> SnapshotMeta:
        """Write a state durably, read it back, and return the row that names it, which the caller commits."""
        row = attrs.evolve(row, attempt=self._next_attempt(row))
        path = self._path(row, "state")
        with removed_on_failure(self._files, path):
            with contextlib.closing(self._files.create(path)) as out:
                size = crc = 0
                for batch in _batches(state):
                    size += out.write_at(size, [batch])
                    crc = crc32(batch, crc)
                out.sync()
            row = attrs.evolve(row, manifest=SnapshotManifest(
                index=row.index, term=row.term, state_bytes=size, state_crc=crc,
                machine_version=machine_version).with_live(row.live))
            self._check(row)
            self._files.sync_folder(self.folder)
        return row

    def discard(self, row: SnapshotMeta) -> None:
        """Remove a state that was not committed, so that it takes no room on a full disk."""
        path = self._path(row, "state")
        with contextlib.suppress(StorageError):
            if may_be_there(path):
                self._files.unlink(path)

    def _next_attempt(self, row: SnapshotMeta) -> int:
        found = [int(match[3]) for name in list_folder(self.folder) if (match := _NAME.fullmatch(name))
                 and (int(match[1]), int(match[2])) == (row.index, row.term)]
        return max((attempt for attempt in found if attempt < _RECEIVED), default=0) + 1

    def _path(self, row: SnapshotMeta, suffix: str) -> str:
        return os.path.join(self.folder, _name(row, suffix))

    # -- checkpoints

    def write_checkpoint(self, row: SnapshotMeta) -> None:
        """Commit a checkpoint whose state was written, durably and atomically. After an error it may be committed."""
        path = self._path(row, "checkpoint")
        try:
            write_durably(self._files, path, [encode_snapshot_meta(row)])
        except BaseException:
            if not may_be_there(path):
                self.discard(row)
            raise

    def require_above(self, index: int, above: int) -> None:
        """Raise `Stale` if the snapshot (`above`) or a checkpoint has the same or a higher index."""
        newest = max([above, *(stem.index for stem in _checkpoint_stems(self.folder, above))])
        if index <= newest:
            raise Stale(f"checkpoint {index} is not above {newest}, the newest snapshot or checkpoint")

    def checkpoints(self, above: int) -> tuple[SnapshotMeta, ...]:
        """The checkpoints above an index, oldest first; raises `CorruptData` if one is damaged."""
        return tuple(map(self._checkpoint, _checkpoint_stems(self.folder, above)))

    def checkpoint_below(self, index: int, above: int) -> SnapshotMeta | None:
        """The newest checkpoint in `above + 1 .. index`, `None` without any; raises as `checkpoints`."""
        stems = [stem for stem in _checkpoint_stems(self.folder, above) if stem.index <= index]
        return self._checkpoint(stems[-1]) if stems else None

    def _checkpoint(self, stem: SnapshotMeta) -> SnapshotMeta:
        row = self._read(self._path(stem, "checkpoint"))
        if row is None or (row.index, row.term) != (stem.index, stem.term):
            raise CorruptData(path=self.folder, offset=0, found=str(row),
                              expected=f"checkpoint {stem.index} of term {stem.term}")
        return row

    def _read(self, path: str) -> SnapshotMeta | None:
        """The row in a file; a damaged live set is rebuilt, if there is a machine and a state."""
        data = read_if_there(path)
        if data is None:
            raise CorruptData(path=path, offset=0, expected="a checkpoint", found="no file")
        try:
            return decode_snapshot_meta(data, path)
        except LiveSetLost as lost:
            head, _ = decode_head(data, path)
            if self._machine is None or head.manifest is None or not head.has_state:
                raise
            live = self._restored(head.manifest, head.attempt, self._machine())
            if head.kept:
                live |= IndexSet.range(head.manifest.index + 1 - head.kept, head.manifest.index)
            try:
                row = head.row(live.to_bytes(), path)
            except CorruptData as error:
                raise LiveSetLost(path=path, offset=lost.offset, expected=error.expected, found=f"{lost.found}, and a "
                                  f"set rebuilt from the state with {error.found}") from lost
            write_durably(self._files, path, [encode_snapshot_meta(row or NO_SNAPSHOT)])
            return row

    def _restored(self, of: SnapshotManifest, attempt: int, machine: StateMachine) -> IndexSet:
        """The live set of a machine that is restored from a state."""
        with self.open_state(SnapshotMeta(of.index, of.term, manifest=of, attempt=attempt)) as reader:
            machine.restore(reader.pieces())
        indexes = machine.live_indexes()
        return indexes if isinstance(indexes, IndexSet) else IndexSet.from_iterable(indexes)

    # -- receiving

    def receive(self, manifest: SnapshotManifest) -> Incoming:
        """Start to receive a snapshot, behind the part of its state that an earlier transfer has left."""
        row = SnapshotMeta(manifest.index, manifest.term, manifest=manifest,
                           attempt=crc32(HEADS.encode(SnapshotHead(manifest))) | _RECEIVED)
        path = self._path(row, _INCOMING)
        for name in list_folder(self.folder):
            if name.endswith(_INCOMING) and name != os.path.basename(path):
                self._files.unlink(os.path.join(self.folder, name))
        found = look_at(path)
        return Incoming(self._files, row, path, self._path(row, "state"), self.entries_path(row),
                        state_bytes=0 if found is None else min(found.st_size, manifest.state_bytes))

    def entries_path(self, row: SnapshotMeta) -> str:
        """The file of a half installed snapshot's live entries; it exists until the log has them."""
        return self._path(row, "entries")

    def taken(self, row: SnapshotMeta) -> None:
        """Remove the file of the live entries, durably, since the log has them."""
        path = self.entries_path(row)
        if may_be_there(path):
            self._files.unlink(path)
        self._files.sync_folder(self.folder)

    def read_all(self, row: SnapshotMeta | None) -> None:
        """Read the states of the snapshot and of every checkpoint; raise `CorruptData` for a damaged state."""
        rows = [] if row is None or row.manifest is None else [row]
        for each in [*rows, *self.checkpoints(-1 if row is None else row.index)]:
            self._check(each)

    def _check(self, row: SnapshotMeta) -> None:
        with self.open_state(row) as reader:
            reader.check()


def _checkpoint_stems(folder: str, above: int) -> list[SnapshotMeta]:
    """Rows with index, term and attempt of the checkpoints above an index in a folder of snapshots; ascending."""
    if look_at(folder) is None:
        return []
    keys = sorted(tuple(map(int, match.groups()[:3])) for name in list_folder(folder)
                  if (match := _NAME.fullmatch(name)) and match[4] == "checkpoint")
    return [SnapshotMeta(index, term, attempt=attempt) for index, term, attempt in keys if index > above]


def is_half_installed(folder: StrPath, row: SnapshotMeta) -> bool:
    """Whether the snapshot of `row` in the log's `folder` is half installed: the log lacks its live entries."""
    return row.manifest is not None and look_at(
        os.path.join(folder, SNAPSHOTS_FOLDER, _name(row, "entries"))) is not None


def _batches(state: Iterable[Buffer]) -> Iterator[bytes]:
    batch: list[bytes] = []
    waiting = 0
    for piece in state:
        batch.append(own_bytes(piece))
        waiting += len(batch[-1])
        if waiting >= _PIECE_BYTES:
            yield b"".join(batch)
            batch, waiting = [], 0
    yield b"".join(batch)


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
