# SPDX-License-Identifier: Apache-2.0
"""`SnapshotFolder`: the snapshots and checkpoints of one log in a folder of files. A `SnapshotStore` for `RaftLog`.

A snapshot is three files: its state, its live set, and a manifest that puts both in force. The manifest is written
last, under a temporary name, when everything else is durable; its renaming is the switch. A manifest that ends in
`.checkpoint` serves a fast start only: the log keeps what lies below. Renamed to `.snapshot`, it is a snapshot.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import attrs

from compactlib._forks import OwnedLock
from compactlib.errors import AuditFailed, Busy, CorruptData, InvalidInput, NotFound, Stale, StorageError
from compactlib.files.checksum import crc32
from compactlib.files.disk import (
    Files,
    LocalFiles,
    StrPath,
    local_path,
    look_at,
    make_missing_folder,
    may_be_there,
    require_folder,
    sync_names,
    write_durably,
)
from compactlib.indexset import IndexSet
from compactlib.raftlog.arguments import bytes_of
from compactlib.raftlog.errors import LiveSetLost
from compactlib.raftlog.model.snapshot_meta import SnapshotMeta
from compactlib.raftlog.snapshots.files_format import (
    INCOMING_ENTRIES,
    INCOMING_MANIFEST,
    LIVE_HEAD,
    LIVE_SUFFIX,
    PART_HEAD_BYTES,
    STATE_HEAD,
    STATE_SUFFIX,
    SnapshotKind,
    encode_manifest,
    manifest_name,
    stem_of,
)
from compactlib.raftlog.snapshots.listing import (
    Listed,
    listed_in,
    read_live_set,
    read_manifest,
    strays_in,
    superseded_in,
)
from compactlib.raftlog.snapshots.machine import StateMachine
from compactlib.raftlog.snapshots.model import SnapshotManifest, StagedState
from compactlib.raftlog.snapshots.staging import IncomingState, find_incoming, remove_stray
from compactlib.raftlog.snapshots.state_reader import StateReader

if TYPE_CHECKING:
    from typing_extensions import Buffer

_T = TypeVar("_T")
_BATCH_BYTES = 1 << 20


class SnapshotFolder:
    """See the module. One process at a time writes it (that of the log), one call at a time by the caller's lock.

    Any thread may ask at any time what is in force. Opening removes what a crash left unfinished; it keeps a state that
    was being received, see `staged`.

    Args:
        folder: where; made if there is none.
        files: the disk.
        machine: makes an empty state machine, from which a lost live set is rebuilt.
        max_checkpoints: checkpoints kept above the snapshot; the oldest go first.
        create: whether the folder may be made.

    Raises:
        InvalidInput: `max_checkpoints` is negative.
        NotFound: the folder is not there, and `create` is not set.
        StorageError: the disk refused.
    """

    def __init__(self, folder: StrPath, *, files: Files | None = None,
                 machine: Callable[[], StateMachine] | None = None, max_checkpoints: int = 10,
                 create: bool = True) -> None:
        if max_checkpoints < 0:
            raise InvalidInput(f"max_checkpoints is {max_checkpoints}; keep 0 or more")
        self._folder: str = local_path(folder)
        self._files: Files = LocalFiles() if files is None else files
        # A listing that runs while one name comes and another goes may show neither.
        self._names = OwnedLock(f"the snapshots in {self._folder}")
        self._machine = machine
        self._max_checkpoints = max_checkpoints
        self._incoming: IncomingState | None = None
        require_folder(self._folder, "the snapshots", create=create)
        make_missing_folder(self._files, self._folder)
        # An earlier process may have been killed between a renaming and its sync: what is in force must stay so.
        sync_names(self._files, self._folder)
        self._names_unsynced = False
        # By index and term, the parts whose manifest is gone, and which the disk kept from being removed.
        self._left: set[tuple[int, int]] = set()
        self._remove_strays()

    # -- what is there

    @staticmethod
    def indexes_in(folder: StrPath) -> list[int]:
        """The indexes of the snapshots and checkpoints in force in a folder, which others may be writing; ascending."""
        return sorted(each.index for each in _in_force(folder))

    @staticmethod
    def meta_in(folder: StrPath, index: int) -> SnapshotMeta | None:
        """What the snapshot or checkpoint of this index in a folder left in the log; `None` if there is none.

        Raises:
            LiveSetLost: its live set is missing or damaged.
            CorruptData, Unsupported, StorageError: its manifest cannot be read.
        """
        path = local_path(folder)
        for each in _in_force(path):
            if each.index == index:
                manifest = read_manifest(path, each)
                return SnapshotMeta(index, manifest.term, read_live_set(path, manifest))
        return None

    def latest(self) -> SnapshotMeta | None:
        """The newest snapshot in force with its live set; `None` before the first.

        A live set that is missing or damaged is rebuilt from the state, and written anew, if there is a `machine`.

        Raises:
            LiveSetLost: it cannot be rebuilt. It is never taken for empty.
            CorruptData: the manifest is damaged, or the rebuilt set is not the one that was written.
            StorageError: the disk refused.
        """
        self._sync_names()
        return self._read_in_force(lambda found: SnapshotMeta(found.index, found.term, self.live_set(found)))

    def _read_in_force(self, read: Callable[[SnapshotManifest], _T]) -> _T | None:
        """Read what belongs to the newest snapshot; `None` before the first."""
        while True:
            manifest = self.manifest
            try:
                return None if manifest is None else read(manifest)
            except CorruptData:
                # It may have been removed meanwhile, since a newer one is in force.
                if self.manifest == manifest:
                    raise

    def _sync_names(self) -> None:
        """Sync the folder if the disk refused that when a snapshot was put in force: a reported one is durable."""
        if self._names_unsynced:
            self._files.sync_folder(self._folder)
            self._names_unsynced = False

    @property
    def manifest(self) -> SnapshotManifest | None:
        """What the newest snapshot in force says of itself; `None` before the first. Raises as `latest`."""
        with self._names:
            listed = self._listed("snapshot")
            return self._read_manifest(listed[-1]) if listed else None

    @property
    def checkpoints(self) -> tuple[SnapshotManifest, ...]:
        """The checkpoints above the snapshot, oldest first. Raises as `latest`."""
        with self._names:
            return tuple(map(self._read_manifest, self._listed("checkpoint")))

    def live_set(self, manifest: SnapshotManifest) -> IndexSet:
        """The live set of a snapshot or checkpoint. Raises as `latest`."""
        try:
            return read_live_set(self._folder, manifest)
        except LiveSetLost as lost:
            if self._machine is None:
                raise
            return self._rebuild(manifest, self._machine(), lost)

    def open_state(self, manifest: SnapshotManifest | None = None) -> StateReader:
        """The state of a snapshot or checkpoint, by default of the newest snapshot.

        Raises:
            NotFound: there is no snapshot yet.
            CorruptData: the state is missing or not of the size that was written.
            StorageError: the disk refused.
        """
        def opened(wanted: SnapshotManifest) -> StateReader:
            return StateReader(self._path(wanted, STATE_SUFFIX), wanted)

        found = self._read_in_force(opened) if manifest is None else opened(manifest)
        if found is None:
            raise NotFound(f"{self._folder} holds no snapshot yet; take one first")
        return found

    # -- taking one

    def write(self, meta: SnapshotMeta, state: Iterable[Buffer], *, machine_version: int = 0,
              cluster: bytes = b"") -> None:
        """Put a snapshot in force durably, in one step; the one before stays until `remove_older`.

        A checkpoint of the same entry is promoted instead, and `state` not looked at.

        Args:
            meta: its place, and its live set; an empty set is written too.
            state: the state in pieces; 1 MiB of them is held in memory.
            machine_version: see `SnapshotManifest`.
            cluster: see `SnapshotManifest`.

        Raises:
            Stale: one of the same or a higher index is in force.
            StorageError: the disk refused; the one before stays in force.
        """
        self._refuse_stale(meta.index)
        if self._is_checkpoint(meta):
            self.promote(meta.index)
            return
        self._put(meta, state, "snapshot", machine_version, cluster)

    def write_checkpoint(self, meta: SnapshotMeta, state: Iterable[Buffer], *, machine_version: int = 0,
                         cluster: bytes = b"") -> None:
        """Put a checkpoint in force: for a fast start, or to be promoted. The log keeps what lies below it.

        Raises:
            Stale: a snapshot or checkpoint of the same or a higher index is in force.
            StorageError: as `write`.
        """
        self._refuse_stale(meta.index)
        listed = self._listed("checkpoint")
        if listed and listed[-1].index >= meta.index:
            raise Stale(f"checkpoint {meta.index} is not above {listed[-1].index}, which is there")
        self._put(meta, state, "checkpoint", machine_version, cluster)
        # It is in force: what the disk keeps from being removed goes with the next one.
        with contextlib.suppress(StorageError):
            self._remove(self._listed("checkpoint")[:-self._max_checkpoints or None])

    def checkpoint_below(self, index: int) -> SnapshotMeta | None:
        """The newest checkpoint at or below `index` and above the snapshot, `None` if there is none; as `latest`."""
        with self._names:
            chosen = self._checkpoint_below(index)
            if chosen is None:
                return None
            manifest = self._read_manifest(chosen)
        return SnapshotMeta(manifest.index, manifest.term, self.live_set(manifest))

    def promote(self, index: int) -> SnapshotManifest:
        """Make the newest checkpoint at or below `index` the snapshot in force: one renaming.

        Of a log that this store was attached to, `RaftLog.promote` does it: the log's row has to follow.

        Raises:
            NotFound: there is none above the snapshot.
            StorageError: the disk refused.
        """
        chosen = self._checkpoint_below(index)
        if chosen is None:
            raise NotFound(f"no checkpoint at or below {index} in {self._folder}; write one, or take a snapshot")
        manifest = self._read_manifest(chosen)
        # Both must be whole before the log forgets what lies below.
        self.live_set(manifest)
        self.open_state(manifest).close()
        self._names_unsynced = True
        with self._names:
            self._files.rename(chosen.path(self._folder), attrs.evolve(chosen, kind="snapshot").path(self._folder))
        self._files.sync_folder(self._folder)
        self._names_unsynced = False
        return manifest

    def remove_older(self) -> None:
        """Remove snapshots older than the one in force, and checkpoints that are not above it.

        Raises:
            StorageError: the disk refused; call again.
        """
        self._remove(superseded_in(self._folder))

    # -- receiving one

    def staged(self) -> StagedState | None:
        """What an interrupted transfer has left of a state."""
        return find_incoming(self._folder)

    def receive(self, manifest: SnapshotManifest, *, keep_bytes: int = 0) -> IncomingState:
        """Make room for the state of a snapshot that comes from elsewhere; put it in force with `adopt`.

        Args:
            manifest: what will come.
            keep_bytes: how much of the staged state to go on with.

        Raises:
            Busy: another is being received.
            StorageError: the disk refused.
        """
        with self._names:
            if self._incoming is not None and self._incoming.is_open:
                raise Busy(f"snapshot {self._incoming.manifest.index} is being received in {self._folder}; close its "
                           f"stream, or wait for its end")
            self._incoming = IncomingState(self._files, self._folder, manifest, keep_bytes=keep_bytes)
            return self._incoming

    def adopt(self, incoming: IncomingState, live: IndexSet) -> None:
        """Put a received snapshot in force durably, in one step; the one before stays until `remove_older`.

        One that is in force already, since an earlier try got that far, is left as it is.

        Raises:
            Stale: one of the same or a higher index is in force.
            CorruptData: state or live set are not what the manifest says; nothing was changed.
            StorageError: the disk refused; the one before stays in force, unless `manifest` is the new one: call again.
        """
        manifest = incoming.manifest
        if self.manifest == manifest:
            self._sync_names()
            incoming.discard()
            return
        self._refuse_stale(manifest.index)
        data = live.to_bytes()
        manifest.live_set(data, path="<the live set received>")
        incoming.finish()
        self._remove_checkpoint(manifest)
        self._remove_parts(manifest.index, manifest.term)
        self._files.rename(incoming.path, self._path(manifest, STATE_SUFFIX))
        self._write_live(manifest, data)
        self._switch(manifest, "snapshot")
        self._files.unlink(os.path.join(self._folder, INCOMING_MANIFEST))
        incoming.close()
        remove_stray(self._files, os.path.join(self._folder, INCOMING_ENTRIES))

    def audit(self) -> None:
        """Read every snapshot and checkpoint, and check that it is whole.

        Raises:
            AuditFailed: two have one index; says which.
            CorruptData: one is not whole.
        """
        everything = [*self._listed("snapshot"), *self._listed("checkpoint")]
        indexes = [(listed.index, listed.kind) for listed in everything]
        if len(set(indexes)) != len(indexes):
            raise AuditFailed(f"two snapshots of one index in {self._folder}: {sorted(indexes)}")
        for listed in everything:
            manifest = self._read_manifest(listed)
            self.live_set(manifest)
            with self.open_state(manifest) as reader:
                for _ in reader.pieces():
                    pass

    def __repr__(self) -> str:
        listed = listed_in(self._folder, "snapshot")
        return f"SnapshotFolder({self._folder!r}, snapshot {listed[-1].index if listed else None}, " \
               f"{len(listed_in(self._folder, 'checkpoint'))} checkpoints)"

    # -- inside

    def _path(self, manifest: SnapshotManifest, suffix: str) -> str:
        return os.path.join(self._folder, stem_of(manifest.index, manifest.term) + suffix)

    def _checkpoint_below(self, index: int) -> Listed | None:
        snapshots = self._listed("snapshot")
        above = snapshots[-1].index if snapshots else -1
        found = [listed for listed in self._listed("checkpoint") if above < listed.index <= index]
        return found[-1] if found else None

    def _listed(self, kind: SnapshotKind) -> list[Listed]:
        with self._names:
            return listed_in(self._folder, kind)

    def _read_manifest(self, listed: Listed) -> SnapshotManifest:
        return read_manifest(self._folder, listed)

    def _refuse_stale(self, index: int) -> None:
        # Whoever is told that one is there finds it after a crash, too.
        self._sync_names()
        snapshots = self._listed("snapshot")
        if snapshots and snapshots[-1].index >= index:
            raise Stale(f"snapshot {index} is not above {snapshots[-1].index}, which is in force; snapshots only move "
                        f"forward")

    def _is_checkpoint(self, meta: SnapshotMeta) -> bool:
        """Whether this very snapshot is there as a checkpoint."""
        if Listed(meta.index, meta.term, "checkpoint") not in self._listed("checkpoint"):
            return False
        with contextlib.suppress(CorruptData):
            manifest = self._read_manifest(Listed(meta.index, meta.term, "checkpoint"))
            self.open_state(manifest).close()
            return self.live_set(manifest) == meta.live
        return False

    def _put(self, meta: SnapshotMeta, state: Iterable[Buffer], kind: SnapshotKind, machine_version: int,
             cluster: bytes) -> None:
        self._remove_checkpoint(meta)
        self._remove_parts(meta.index, meta.term)
        path = os.path.join(self._folder, stem_of(meta.index, meta.term) + STATE_SUFFIX)
        try:
            size, crc = self._write_state(path, meta, state)
            manifest = SnapshotManifest.of(meta.index, meta.term, meta.live, state_bytes=size, state_crc=crc,
                                           machine_version=machine_version, cluster=cluster)
            self._write_live(manifest, meta.live.to_bytes())
            self._switch(manifest, kind)
        except BaseException:
            # A full disk must not be kept full by what is of no use; only the switch itself may have happened.
            if not may_be_there(os.path.join(self._folder, manifest_name(meta.index, meta.term, kind))):
                with contextlib.suppress(StorageError):
                    self._remove_parts(meta.index, meta.term)
            raise

    def _write_state(self, path: str, meta: SnapshotMeta, state: Iterable[Buffer]) -> tuple[int, int]:
        """Write a state durably; returns its size and CRC."""
        out = self._files.create(path)
        try:
            out.write_at(0, [STATE_HEAD.encode(meta.index, meta.term)])
            size = crc = waiting = 0
            batch: list[bytes] = []
            for piece in map(partial(bytes_of, what="a piece of the state"), state):
                batch.append(piece)
                waiting += len(piece)
                crc = crc32(piece, crc)
                if waiting >= _BATCH_BYTES:
                    size += out.write_at(PART_HEAD_BYTES + size, batch)
                    batch, waiting = [], 0
            size += out.write_at(PART_HEAD_BYTES + size, batch)
            out.sync()
        finally:
            out.close()
        return size, crc

    def _write_live(self, manifest: SnapshotManifest, data: bytes) -> None:
        write_durably(self._files, self._path(manifest, LIVE_SUFFIX),
                      [LIVE_HEAD.encode(manifest.index, manifest.term), data])

    def _switch(self, manifest: SnapshotManifest, kind: SnapshotKind) -> None:
        # `_write_live` has synced the folder, so the names of both parts are durable by now.
        path = os.path.join(self._folder, manifest_name(manifest.index, manifest.term, kind))
        self._names_unsynced = True
        with self._names:
            write_durably(self._files, path, [encode_manifest(manifest)])
        self._names_unsynced = False

    def _rebuild(self, manifest: SnapshotManifest, machine: StateMachine, lost: LiveSetLost) -> IndexSet:
        with self.open_state(manifest) as reader:
            machine.restore(reader.pieces())
        asked = machine.live_indexes()
        live = asked if isinstance(asked, IndexSet) else IndexSet.from_iterable(asked)
        try:
            manifest.live_set(live.to_bytes(), path=lost.path)
        except CorruptData as error:
            raise LiveSetLost(path=lost.path, offset=lost.offset, expected=error.expected,
                              found=f"{lost.found}, and a set rebuilt from the state with {error.found}") from lost
        self._write_live(manifest, live.to_bytes())
        return live

    def _remove(self, going: Sequence[Listed]) -> None:
        # Manifests first, durably: parts without one are strays, a manifest without its parts would be damage.
        for old in going:
            with self._names:
                self._files.unlink(old.path(self._folder))
            self._left.add((old.index, old.term))
        if self._left:
            self._files.sync_folder(self._folder)
        for index, term in sorted(self._left):
            self._remove_parts(index, term)

    def _remove_checkpoint(self, meta: SnapshotMeta | SnapshotManifest) -> None:
        path = os.path.join(self._folder, manifest_name(meta.index, meta.term, "checkpoint"))
        if look_at(path) is not None:
            with self._names:
                self._files.unlink(path)
            self._files.sync_folder(self._folder)

    def _remove_parts(self, index: int, term: int) -> None:
        for suffix in (STATE_SUFFIX, LIVE_SUFFIX):
            path = os.path.join(self._folder, stem_of(index, term) + suffix)
            if look_at(path) is not None:
                self._files.unlink(path)
        self._left.discard((index, term))

    def _remove_strays(self) -> None:
        for path in strays_in(self._folder, keep_incoming=self.staged() is not None):
            self._files.unlink(path)


def _in_force(folder: StrPath) -> list[Listed]:
    path = local_path(folder)
    return [*listed_in(path, "snapshot"), *listed_in(path, "checkpoint")]
