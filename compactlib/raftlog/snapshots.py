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
the part of its state that has arrived. The live entries are stored as sparse frames of the WAL, as they arrived, behind
the room for one frame. `Incoming.seal` writes there a truncation, with the highest index that stays in the log, and
gives the state its name. Then the log's row can name the snapshot.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import attrs

from compactlib._arguments import require_whole
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
    MANIFESTS,
    NO_SNAPSHOT,
    SnapshotManifest,
    SnapshotMeta,
    decode_manifest,
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
"""Attempts of received snapshots have this bit; those of own snapshots are drawn below it."""
_INCOMING = "incoming.state"
_NAME = re.compile(r"([0-9]{20})-([0-9]{20})-([0-9]+)\.(state|entries|incoming\.state|checkpoint(?:\.tmp)?)")


def _name(of: SnapshotManifest, suffix: str) -> str:
    return f"{of.index:020d}-{of.term:020d}-{of.attempt}.{suffix}"


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
        except LiveSetLost as lost:
            row = self._rebuilt(lost)
        if row is not None and row.manifest is not None:
            self.open_state(row).close()
        if look_at(self.folder) is not None:
            # An earlier process may have been killed between a name and its sync.
            self._files.sync_folder(self.folder)
            self.tidy(row)
        return row

    def _rebuilt(self, lost: LiveSetLost) -> SnapshotMeta:
        """The log's row, whose live set is lost, with that of a machine which is restored from the state."""
        of, _ = decode_manifest(read_if_there(lost.path) or b"", lost.path)
        if self._machine is None or not of.attempt:
            raise lost
        try:
            machine = self._machine()
            with self._opened(of) as reader:
                machine.restore(reader.pieces())
            indexes = machine.live_indexes()
            live = indexes if isinstance(indexes, IndexSet) else IndexSet.from_iterable(indexes)
            if of.kept:
                live |= IndexSet.range(of.index + 1 - of.kept, of.index)
            row = of.row(live.to_bytes(), f"the set rebuilt from the state of {lost.path}")
        except (SnapshotLost, StorageError):
            raise
        except Exception as error:  # of the host's machine, too
            raise lost from error
        write_snapshot_meta(self._files, self._log_folder, row)
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
        above = -1 if row is None else row.index
        kept: set[str] = set()
        if row is not None and row.manifest is not None:
            kept = {_name(row.manifest, "state"), _name(row.manifest, "entries")}
        for of in self._checkpoints_above(above)[-MAX_CHECKPOINTS:]:
            kept |= {_name(of, "checkpoint"), _name(of, "state")}
        found = self._found()
        for of, suffix in found:
            if suffix == _INCOMING and of.index > above:
                kept |= {_name(of, _INCOMING), _name(of, "entries")}
        removed = [name for of, suffix in found if (name := _name(of, suffix)) not in kept]
        # Checkpoints first, durably: a state without a checkpoint is a leftover, the reverse would be damage.
        checkpoints = [name for name in removed if name.endswith(".checkpoint")]
        for name in checkpoints:
            self._files.unlink(os.path.join(self.folder, name))
        if checkpoints:
            self._files.sync_folder(self.folder)
        for name in removed:
            if name not in checkpoints:
                self._files.unlink(os.path.join(self.folder, name))

    def _found(self) -> list[tuple[SnapshotManifest, str]]:
        """Index, term and attempt of each file, as a manifest, and its suffix; ascending, none without a folder."""
        names = [] if look_at(self.folder) is None else list_folder(self.folder)
        return [(SnapshotManifest(index=int(match[1]), term=int(match[2]), attempt=int(match[3])), match[4])
                for name in names if (match := _NAME.fullmatch(name))]

    # -- states

    def open_state(self, row: SnapshotMeta) -> StateReader:
        """Open the state of a snapshot or checkpoint; raises as `StateReader`."""
        return self._opened(self._stored(row))

    def _opened(self, of: SnapshotManifest) -> StateReader:
        return StateReader(self._path(of, "state"), of)

    def _stored(self, row: SnapshotMeta) -> SnapshotManifest:
        assert row.manifest is not None, "the log stores its state"
        return row.manifest

    def _path(self, of: SnapshotManifest, suffix: str) -> str:
        return os.path.join(self.folder, _name(of, suffix))

    def write(self, row: SnapshotMeta, state: Iterable[Buffer], machine_version: int) -> SnapshotMeta:
        """Write a state durably, read it back, and return the row that names it, which the caller commits."""
        # Of this call alone: one that fails after the log was closed removes no file of a later owner.
        of = SnapshotManifest(index=row.index, term=row.term, machine_version=machine_version,
                              attempt=1 + int.from_bytes(os.urandom(4), "little") % (_RECEIVED - 1))
        path = self._path(of, "state")
        with removed_on_failure(self._files, path):
            with contextlib.closing(self._files.create(path)) as out:
                size = crc = 0
                for batch in _batches(state):
                    size += out.write_at(size, [batch])
                    crc = crc32(batch, crc)
                out.sync()
            of = attrs.evolve(of, state_bytes=size, state_crc=crc).with_live(row.live)
            self._check(of)
            self._files.sync_folder(self.folder)
        return attrs.evolve(row, manifest=of)

    def read_all(self, row: SnapshotMeta | None) -> None:
        """Read the states of the snapshot and of every checkpoint; raise `CorruptData` for a damaged state."""
        if row is not None and row.manifest is not None:
            self._check(row.manifest)
        for each in self.checkpoints(-1 if row is None else row.index):
            self._check(self._stored(each))

    def _check(self, of: SnapshotManifest) -> None:
        with self._opened(of) as reader:
            reader.check()

    # -- checkpoints

    def write_checkpoint(self, row: SnapshotMeta) -> None:
        """Commit a checkpoint whose state was written, durably and atomically. After an error it may be committed."""
        of = self._stored(row)
        path = self._path(of, "checkpoint")
        try:
            write_durably(self._files, path, [encode_snapshot_meta(row)])
        except BaseException:
            if not may_be_there(path):
                # A full disk needs its room.
                with contextlib.suppress(StorageError):
                    self._files.unlink(self._path(of, "state"))
            raise

    def require_above(self, index: int, above: int) -> None:
        """Raise `Stale` if the snapshot (`above`) or a checkpoint has the same or a higher index."""
        newest = max([above, *(of.index for of in self._checkpoints_above(above))])
        if index <= newest:
            raise Stale(f"checkpoint {index} is not above {newest}, the newest snapshot or checkpoint")

    def checkpoints(self, above: int) -> tuple[SnapshotMeta, ...]:
        """The checkpoints above an index, oldest first; raises `CorruptData` if one is damaged."""
        return tuple(map(self._checkpoint, self._checkpoints_above(above)))

    def checkpoint_below(self, index: int, above: int) -> SnapshotMeta | None:
        """The newest checkpoint in `above + 1 .. index`, `None` without any; raises as `checkpoints`."""
        found = [of for of in self._checkpoints_above(above) if of.index <= index]
        return self._checkpoint(found[-1]) if found else None

    def is_kept(self, row: SnapshotMeta, newest: SnapshotMeta) -> bool:
        """Whether a row has the state of `newest`, the snapshot in force, or is a checkpoint.

        A checkpoint's file is removed before its state.
        """
        of = self._stored(row)
        return ((newest.manifest is not None and _name(newest.manifest, "") == _name(of, ""))
                or look_at(self._path(of, "checkpoint")) is not None)

    def _checkpoints_above(self, above: int) -> list[SnapshotManifest]:
        return [of for of, suffix in self._found() if suffix == "checkpoint" and of.index > above]

    def _checkpoint(self, of: SnapshotManifest) -> SnapshotMeta:
        path = self._path(of, "checkpoint")
        data = read_if_there(path)
        row = None if data is None else decode_snapshot_meta(data, path)
        if row is None or row.manifest is None or _name(row.manifest, "") != _name(of, ""):
            raise CorruptData(path=path, offset=0, expected=f"checkpoint {of.index} of term {of.term}", found=str(row))
        return row

    # -- receiving

    def receive(self, manifest: SnapshotManifest) -> Incoming:
        """Start to receive a snapshot, behind the part of its state that an earlier transfer has left."""
        sent = MANIFESTS.encode(attrs.evolve(manifest, attempt=0))
        of = attrs.evolve(manifest, attempt=crc32(sent) | _RECEIVED)
        for other, suffix in self._found():
            if suffix == _INCOMING and other.attempt != of.attempt:
                self._files.unlink(self._path(other, suffix))
        return Incoming(self._files, self.folder, of)

    def entries_path(self, row: SnapshotMeta) -> str:
        """The file of a half installed snapshot's live entries; it exists until the log has them."""
        return self._path(self._stored(row), "entries")

    def taken(self, row: SnapshotMeta) -> None:
        """Remove the file of the live entries, durably, since the log has them."""
        path = self.entries_path(row)
        if may_be_there(path):
            self._files.unlink(path)
        self._files.sync_folder(self.folder)


def is_half_installed(folder: StrPath, row: SnapshotMeta) -> bool:
    """Whether the snapshot of `row` in the log's `folder` is half installed: the log lacks its live entries."""
    return row.manifest is not None and look_at(
        os.path.join(folder, SNAPSHOTS_FOLDER, _name(row.manifest, "entries"))) is not None


def _batches(state: Iterable[Buffer]) -> Iterator[Buffer]:
    """Join small pieces; a large one is not copied."""
    batch = bytearray()
    for piece in state:
        is_large = memoryview(piece).nbytes >= _PIECE_BYTES
        if not is_large:
            batch += piece
        if is_large or len(batch) >= _PIECE_BYTES:
            yield bytes(batch)
            batch.clear()
        if is_large:
            yield piece
    yield bytes(batch)


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
        self.manifest: SnapshotManifest = manifest
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

    def pieces(self, offset: int = 0, *, piece_bytes: int = _PIECE_BYTES) -> Iterator[bytes]:
        """Iterate over the state. From its beginning, the last piece is yielded after all bytes were checked.

        Args:
            offset: where to begin; behind 0 only the size is checked, because the checksum is of the whole state.
            piece_bytes: size of the pieces but the last.

        Raises:
            InvalidInput: `offset` lies behind the end, or `piece_bytes` is below 1.
            CorruptData: the bytes are not the state that was written; do not use the pieces.
            Closed: the reader was closed.
            StorageError: the disk refused.
        """
        size, is_whole, crc, held = self.manifest.state_bytes, offset == 0, 0, b""
        require_whole("offset", offset, most=size)
        require_whole("piece_bytes", piece_bytes, 1)
        while offset < size and (data := self._read(offset, piece_bytes)):
            if held:
                yield held
            held, offset, crc = data, offset + len(data), crc32(data, crc)
        if offset != size or (is_whole and crc != self.manifest.state_crc):
            raise CorruptData(path=self._path, offset=0, found=f"{offset} with {crc:#010x}",
                              expected=f"{size} bytes with CRC {self.manifest.state_crc:#010x}")
        # After the check: with the last piece, the caller takes the state for complete.
        if held:
            yield held

    def _read(self, offset: int, length: int) -> bytes:
        if self._descriptor < 0:
            raise Closed(f"the reader of {self._path} is closed; open the state again")
        try:
            return read_exactly(self._descriptor, length, offset)
        except OSError as error:
            raise StorageError.from_os(error, "read", self._path) from error

    def check(self) -> None:
        """Read the whole state. O(bytes). Raises as `pieces`."""
        for _ in self.pieces():
            pass

    def __repr__(self) -> str:
        return f"StateReader({self._path!r}, {self.manifest.state_bytes} bytes)"


class Incoming:
    """A snapshot that is being received. Not thread-safe; made by `Snapshots.receive`.

    Args:
        files: the disk.
        folder: the folder of the snapshots.
        manifest: names the snapshot's files.

    Attributes:
        row: the snapshot, without its live set.
        state_bytes: size of the state that an earlier transfer has left.
        is_open: whether it is still being received.
    """

    def __init__(self, files: Files, folder: str, manifest: SnapshotManifest) -> None:
        self._files = files
        self.manifest: SnapshotManifest = manifest
        self.row: SnapshotMeta = SnapshotMeta(manifest.index, manifest.term, manifest=manifest)
        self._incoming_path = os.path.join(folder, _name(manifest, _INCOMING))
        self._state_path = os.path.join(folder, _name(manifest, "state"))
        self._entries_path = os.path.join(folder, _name(manifest, "entries"))
        found = look_at(self._incoming_path)
        self.state_bytes: int = 0 if found is None else min(found.st_size, manifest.state_bytes)
        self._state = _opened(files, self._incoming_path, self.state_bytes)
        with closed_on_failure(self._state):
            self._entries = _opened(files, self._entries_path, 0)
        self._entries_bytes = FRAME_HEADER_BYTES
        self.is_open: bool = True

    def write(self, offset: int, data: bytes) -> None:
        """Write a piece of the state at its offset; not durable."""
        self._state.write_at(offset, [data])

    def write_frame(self, frame: Frame) -> None:
        """Append a frame of live entries; not durable."""
        self._entries_bytes += self._entries.write_at(self._entries_bytes, frame.encode(0, 0, 0))

    def frames(self) -> Iterator[Frame]:
        """The live entries in the frames in which they arrived."""
        return _frames(self._entries_path, FRAME_HEADER_BYTES)

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
        """Put the truncation that precedes the live entries before them; both files are durable then."""
        self._entries.write_at(0, cut_frame(cut_after).encode(0, self._entries_bytes, 0))
        self._entries.sync()
        self._files.rename(self._incoming_path, self._state_path)
        self._files.sync_folder(os.path.dirname(self._entries_path))

    def close(self) -> None:
        """Close the files, and leave the state for a retry. Idempotent."""
        self.is_open = False
        self._state.close()
        self._entries.close()

    def discard(self) -> None:
        """Close and remove the files; not after `close`, when the log's row may name them."""
        if self.is_open:
            for path in (self._entries_path, self._incoming_path, self._state_path):
                if look_at(path) is not None:
                    self._files.unlink(path)
            # Last: from then on the next transfer may have files of the same names.
            self.close()


def _opened(files: Files, path: str, size: int) -> OutFile:
    """Open a file, which is made if it is missing, and cut it to a size."""
    out = files.create(path) if look_at(path) is None else files.open(path)
    with closed_on_failure(out):
        out.truncate(size)
    return out


def read_sealed(path: str) -> tuple[int, Iterator[Frame]]:
    """Read a file that `Incoming.seal` has completed: the highest index that stays, and the live entries above it.

    Raises:
        CorruptData: the file is damaged; raised by the iterator, too.
        StorageError: it cannot be read.
    """
    frames = _frames(path)
    cut = next(frames, None)
    if cut is None or cut.kind != FrameKind.CUT:
        raise CorruptData(path=path, offset=0, expected="the truncation before the live entries", found="another frame")
    after = -1 if cut.previous is None else cut.previous

    def missing() -> Iterator[Frame]:
        for frame in frames:
            rows = [(index, term, payload) for index, term, (payload,) in frame.runs() if index > after]
            if rows:
                indexes, terms, payloads = zip(*rows, strict=True)
                yield sparse_frame(indexes, terms, payloads, None)

    return after, missing()


def _frames(path: str, at: int = 0) -> Iterator[Frame]:
    try:
        with open(path, "rb") as file:
            end = os.fstat(file.fileno()).st_size
            while at < end:
                size = whole_bytes(read_exactly(file.fileno(), FRAME_HEADER_BYTES, at), 0)
                decoded = decode_frame(read_exactly(file.fileno(), size, at), 0, 0)
                # The truncation has the size of the whole file.
                if decoded is None or decoded[2] not in (0, end):
                    raise CorruptData(path=path, offset=at, expected="all frames of live entries",
                                      found=f"damage, or an end at {end}")
                yield decoded[0]
                at += size
    except OSError as error:
        raise StorageError.from_os(error, "read", path) from error
