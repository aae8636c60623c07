# SPDX-License-Identifier: Apache-2.0
"""The row of a log: its last snapshot with the live set, in the file `SNAPSHOT` (`docs/formats/raftlog-snapshot.md`).

Replacing this file is the switch to the next snapshot. The row names the snapshot's state in the folder `snapshots/`,
which is durable before. A log without the file never had a snapshot; a log with the folder `snapshots/` has the file.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from operator import index as whole
from typing import TypeAlias

import attrs

from compactlib._arguments import is_whole
from compactlib.codec import JsonCodec
from compactlib.errors import CorruptData
from compactlib.files.checksum import crc32
from compactlib.files.disk import Files, StrPath, look_at, read_if_there, write_durably
from compactlib.files.record_frame import RecordFrame
from compactlib.indexset import IndexSet
from compactlib.raftlog.errors import LiveAboveSnapshot, LiveSetLost, SnapshotLost
from compactlib.raftlog.names import SNAPSHOT_NAME, SNAPSHOTS_FOLDER, TEMPORARY_SUFFIX
from compactlib.raftlog.values import MAX_INDEX

_MAX_U32 = (1 << 32) - 1
_OWN_CRC_BYTES = 4

SnapshotVersion: TypeAlias = tuple[int, int, int]

_HEAD = RecordFrame("snapshot row", b"CLRAFSNP", 1, "<H2xI")
_LENGTH = struct.Struct("<12xI")


@attrs.frozen(kw_only=True)
class SnapshotManifest:
    """A snapshot without the content of its live set and its state. Compared by value, except `attempt`.

    Attributes:
        index: everything up to here is in the snapshot or in a live entry; -1 without a snapshot.
        term: the term of the entry at `index`.
        machine_version: the host's own number for the form of the state, 0 .. 2**32 - 1.
        live_bytes: size of the live set as `IndexSet.to_bytes`.
        live_crc: CRC-32 of those bytes without the last 4, which are their own CRC.
        kept: length of the live run that ends at `index`.
        state_bytes: size of the state.
        state_crc: CRC-32 of the state.
        attempt: the number in the name of the state's file; 0 if the host stores the state itself.

    Raises:
        InvalidInput: a number is out of its range.
    """

    index: int = attrs.field(validator=is_whole(-1, MAX_INDEX))
    term: int = attrs.field(validator=is_whole(0, MAX_INDEX))
    machine_version: int = attrs.field(default=0, converter=whole, validator=is_whole(0, _MAX_U32))
    live_bytes: int = attrs.field(default=0, validator=is_whole(0, MAX_INDEX))
    live_crc: int = attrs.field(default=0, validator=is_whole(0, _MAX_U32))
    kept: int = attrs.field(default=0, validator=is_whole(0, MAX_INDEX + 1))
    state_bytes: int = attrs.field(default=0, validator=is_whole(0, MAX_INDEX))
    state_crc: int = attrs.field(default=0, validator=is_whole(0, _MAX_U32))
    attempt: int = attrs.field(default=0, eq=False, validator=is_whole(0, _MAX_U32))

    def with_live(self, live: IndexSet) -> SnapshotManifest:
        """The same snapshot with another live set."""
        return self._with_live(live, live.to_bytes())

    def _with_live(self, live: IndexSet, data: bytes) -> SnapshotManifest:
        return attrs.evolve(self, live_bytes=len(data), live_crc=_live_crc(data),
                            kept=self.index + 1 - _kept_from(live, self.index))

    def live_set(self, data: bytes, *, path: str) -> IndexSet:
        """The live set in `data`, which must be this snapshot's. O(runs).

        Args:
            data: as `IndexSet.to_bytes` gave it.
            path: where it was read from, for the message of an error.

        Raises:
            CorruptData: it is not whole, or not this snapshot's.
            Unsupported: a later release wrote it.
        """
        live = IndexSet.from_bytes(data, path=path)
        found = len(data), _live_crc(data), self.index + 1 - _kept_from(live, self.index)
        wanted = self.live_bytes, self.live_crc, self.kept
        if found != wanted or (live and live.last > self.index):
            raise CorruptData(path=path, offset=0, expected=f"(bytes, CRC, kept) {wanted}, up to index {self.index}",
                              found=f"{found}, up to {live.last if live else None}")
        return live

    def row(self, live: bytes, path: str) -> SnapshotMeta:
        """The row of this snapshot; arguments and errors as `live_set`."""
        return SnapshotMeta(self.index, self.term, self.live_set(live, path=path),
                            manifest=self if self.attempt else None)


def _live_crc(data: bytes) -> int:
    # A CRC over data and its CRC would be the same for all data of that length.
    return crc32(memoryview(data)[:-_OWN_CRC_BYTES])


def _kept_from(live: IndexSet, index: int) -> int:
    return live.columns[0][-1] if live and live.last == index else index + 1


@attrs.frozen
class SnapshotMeta:
    """The row of a log: its last snapshot. `SnapshotMeta()` is the row of a log without a snapshot: see `NO_SNAPSHOT`.

    Attributes:
        index: everything up to here is in the snapshot, 0 .. 2**64 - 1; -1 without a snapshot.
        term: the term of the entry at `index`, 0 if it is not known.
        live: indexes <= `index` whose entries must stay in the log.
        manifest: the manifest of the state that the log stores; `None` if the host stores the state itself.
        smallest_live_index: everything below is dead: the lowest live index, or `index + 1` without live entries.
        kept_from: from here to `index` nothing is dead: the first index of the live run that ends at `index`, or
            `index + 1` without such a run.

    Raises:
        InvalidInput: a number is out of its range.
        LiveAboveSnapshot: a live index lies above `index`.
    """

    index: int = attrs.field(default=-1, converter=whole, validator=is_whole(-1, MAX_INDEX))
    term: int = attrs.field(default=0, converter=whole, validator=is_whole(0, MAX_INDEX))
    live: IndexSet = attrs.field(factory=IndexSet)
    manifest: SnapshotManifest | None = attrs.field(default=None, kw_only=True)
    smallest_live_index: int = attrs.field(init=False)
    kept_from: int = attrs.field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        if self.live and self.live.last > self.index:
            raise LiveAboveSnapshot(f"live index {self.live.last} lies above the snapshot index {self.index}; live "
                                    f"indexes describe what the snapshot left in the log")
        object.__setattr__(self, "smallest_live_index", self.live.first if self.live else self.index + 1)
        object.__setattr__(self, "kept_from", _kept_from(self.live, self.index))

    def is_dead(self, index: int) -> bool:
        """Whether the entry of `index` may have been removed. O(log live runs)."""
        return index <= self.index and not self.live.holds(index)

    def needed(self, indexes: IndexSet) -> IndexSet:
        """The `indexes` that are not dead: all above the snapshot, live indexes below. O(runs)."""
        return indexes.at_least(self.index + 1) | (indexes.at_most(self.index) & self.live)


NO_SNAPSHOT = SnapshotMeta()
"""The row of a log without a snapshot: nothing is dead."""


def live_set(indexes: IndexSet | Iterable[int]) -> IndexSet:
    """A host's live set, or its strictly ascending indexes, as a set; raises as `IndexSet.from_sorted`."""
    return indexes if isinstance(indexes, IndexSet) else IndexSet.from_sorted(indexes)


MANIFESTS: JsonCodec[SnapshotManifest] = JsonCodec(SnapshotManifest)


def encode_snapshot_meta(row: SnapshotMeta) -> bytes:
    """The bytes of a row's file."""
    live = row.live.to_bytes()
    body = MANIFESTS.encode(row.manifest or SnapshotManifest(index=row.index, term=row.term)._with_live(row.live, live))
    return _HEAD.encode(_HEAD.size + len(body), body=body) + live


def decode_manifest(data: bytes, path: str) -> tuple[SnapshotManifest, bytes]:
    """The manifest in a row's file, and the bytes of the live set.

    Raises:
        CorruptData: a check fails.
        Unsupported: another release wrote it.
    """
    end = _LENGTH.unpack_from(data)[0] if len(data) >= _LENGTH.size else 0
    _, body = _HEAD.decode(data[:max(end, _HEAD.size)], path)
    return MANIFESTS.decode(body, path), data[end:]


def decode_snapshot_meta(data: bytes, path: str) -> SnapshotMeta | None:
    """The inverse of `encode_snapshot_meta`; `None` for a log without a snapshot. Raises as `decode_manifest`.

    Raises:
        LiveSetLost: the live set is damaged and the rest is whole.
    """
    manifest, live = decode_manifest(data, path)
    try:
        row = manifest.row(live, path)
    except CorruptData as error:
        raise LiveSetLost(path=path, offset=len(data) - len(live) + error.offset, expected=error.expected,
                          found=error.found) from error
    return row if row.index >= 0 else None


def read_snapshot_meta(folder: StrPath) -> SnapshotMeta | None:
    """The row of the log in `folder`, or `None` if it never had a snapshot.

    Raises:
        CorruptData: the file is damaged, or it is missing although the folder of states exists.
        Unsupported: written by another release.
        StorageError: it cannot be read.
    """
    path = os.path.join(folder, SNAPSHOT_NAME)
    data = read_if_there(path)
    if data is not None:
        return decode_snapshot_meta(data, path)
    if look_at(os.path.join(folder, SNAPSHOTS_FOLDER)) is not None and read_if_there(path) is None:
        raise SnapshotLost(path=path, offset=0, expected="the log's last snapshot", found=f"no file, but a folder "
                           f"{SNAPSHOTS_FOLDER}/; put back the log's whole folder from one copy")
    return None


def snapshot_version(folder: StrPath) -> SnapshotVersion | None:
    """Inode, time and size of the file `SNAPSHOT`, to detect its replacement; `None` if it is missing."""
    try:
        found = os.lstat(os.path.join(folder, SNAPSHOT_NAME))
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def write_snapshot_meta(files: Files, folder: StrPath, row: SnapshotMeta) -> None:
    """Commit `row`, durably and atomically.

    Raises:
        StorageError: the disk refused; the row before is in force, unless only the sync of the folder was refused.
    """
    write_durably(files, os.path.join(folder, SNAPSHOT_NAME), [encode_snapshot_meta(row)],
                  temporary_suffix=TEMPORARY_SUFFIX)
