# SPDX-License-Identifier: Apache-2.0
"""The row of a log: its last snapshot with the live set, in the file `SNAPSHOT` (`docs/formats/raftlog-snapshot.md`).

Replacing this file is the switch to the next snapshot. The row names the snapshot's state in the folder `snapshots/`,
which is durable before. An empty live set is written too: a log without the file never had a snapshot. A log with the
folder `snapshots/` has the file.
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


def live_set_crc(data: bytes) -> int:
    """CRC-32 of a live set as `IndexSet.to_bytes`, without its last 4 bytes.

    Those are its own CRC; a CRC over data and its CRC would be the same for all data of that length.
    """
    return crc32(memoryview(data)[:-_OWN_CRC_BYTES])


@attrs.frozen(kw_only=True)
class SnapshotManifest:
    """A snapshot's place in the log, with size and checksum of its state and of its live set. Compared by value.

    Attributes:
        index: everything up to here is in the snapshot or in a live entry.
        term: the term of the entry at `index`.
        machine_version: the host's own number for the form of the state, 0 .. 2**32 - 1.
        live_count: live indexes.
        live_bytes: size of the live set as `IndexSet.to_bytes`.
        live_crc: `live_set_crc` of those bytes.
        state_bytes: size of the state.
        state_crc: CRC-32 of the state.

    Raises:
        InvalidInput: a number is out of its range.
    """

    index: int = attrs.field(converter=whole, validator=is_whole(0, MAX_INDEX))
    term: int = attrs.field(converter=whole, validator=is_whole(0, MAX_INDEX))
    machine_version: int = attrs.field(default=0, converter=whole, validator=is_whole(0, _MAX_U32))
    live_count: int = attrs.field(default=0, validator=is_whole(0, MAX_INDEX))
    live_bytes: int = attrs.field(default=0, validator=is_whole(0, MAX_INDEX))
    live_crc: int = attrs.field(default=0, validator=is_whole(0, _MAX_U32))
    state_bytes: int = attrs.field(default=0, validator=is_whole(0, MAX_INDEX))
    state_crc: int = attrs.field(default=0, validator=is_whole(0, _MAX_U32))

    def with_live(self, live: IndexSet) -> SnapshotManifest:
        """The same snapshot with another live set."""
        data = live.to_bytes()
        return attrs.evolve(self, live_count=live.count, live_bytes=len(data), live_crc=live_set_crc(data))

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
        found = (len(data), live_set_crc(data), live.count)
        wanted = (self.live_bytes, self.live_crc, self.live_count)
        if found != wanted or (live and live.last > self.index):
            raise CorruptData(path=path, offset=0, expected=f"(bytes, CRC, members) {wanted}, up to index {self.index}",
                              found=f"{found}, up to {live.last if live else None}")
        return live


@attrs.frozen
class SnapshotMeta:
    """The row of a log: its last snapshot. `SnapshotMeta()` is the row of a log without a snapshot: see `NO_SNAPSHOT`.

    Attributes:
        index: everything up to here is in the snapshot, 0 .. 2**64 - 1; -1 without a snapshot.
        term: the term of the entry at `index`, 0 if it is not known.
        live: indexes <= `index` whose entries must stay in the log.
        manifest: the manifest of the state that the log stores; `None` if the host stores the state itself.
        attempt: the number in the name of the state's file.
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
    attempt: int = attrs.field(default=0, kw_only=True, eq=False, repr=False)
    smallest_live_index: int = attrs.field(init=False)
    kept_from: int = attrs.field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        if self.live and self.live.last > self.index:
            raise LiveAboveSnapshot(f"live index {self.live.last} lies above the snapshot index {self.index}; live "
                                    f"indexes describe what the snapshot left in the log")
        object.__setattr__(self, "smallest_live_index", self.live.first if self.live else self.index + 1)
        ends_there = bool(self.live) and self.live.last == self.index
        object.__setattr__(self, "kept_from", self.live.columns[0][-1] if ends_there else self.index + 1)

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


@attrs.frozen
class SnapshotHead:
    """The content of a row's file without the live set.

    Attributes:
        manifest: `None` for a log without a snapshot.
        kept: length of the live run that ends at the snapshot's index.
        attempt: see `SnapshotMeta`.
        has_state: whether the log stores the state.
    """

    manifest: SnapshotManifest | None = None
    kept: int = 0
    attempt: int = 0
    has_state: bool = False

    def row(self, live: bytes, path: str) -> SnapshotMeta | None:
        """The row with its live set, which must be this snapshot's; raises as `SnapshotManifest.live_set`."""
        of = self.manifest
        return None if of is None else SnapshotMeta(
            of.index, of.term, of.live_set(live, path=path), manifest=of if self.has_state else None,
            attempt=self.attempt)


HEADS: JsonCodec[SnapshotHead] = JsonCodec(SnapshotHead)


def encode_snapshot_meta(row: SnapshotMeta) -> bytes:
    """The bytes of a row's file."""
    head, data = SnapshotHead(), b""
    if row.index >= 0:
        data = row.live.to_bytes()
        of = row.manifest or SnapshotManifest(index=row.index, term=row.term, live_count=row.live.count,
                                              live_bytes=len(data), live_crc=live_set_crc(data))
        head = SnapshotHead(of, row.index + 1 - row.kept_from, row.attempt, row.manifest is not None)
    body = HEADS.encode(head)
    return _HEAD.encode(_HEAD.size + len(body), body=body) + data


def decode_head(data: bytes, path: str) -> tuple[SnapshotHead, bytes]:
    """The head of a row's file, and the bytes of the live set.

    Raises:
        CorruptData: a check fails.
        Unsupported: another release wrote it.
    """
    end = _LENGTH.unpack_from(data)[0] if len(data) >= _LENGTH.size else 0
    _, body = _HEAD.decode(data[:max(end, _HEAD.size)], path)
    return HEADS.decode(body, path), data[end:]


def decode_snapshot_meta(data: bytes, path: str) -> SnapshotMeta | None:
    """The inverse of `encode_snapshot_meta`; `None` for a log without a snapshot. Raises as `decode_head`.

    Raises:
        LiveSetLost: the live set is damaged and the rest is whole.
    """
    head, live = decode_head(data, path)
    try:
        return head.row(live, path)
    except CorruptData as error:
        raise LiveSetLost(path=path, offset=len(data) - len(live) + error.offset, expected=error.expected,
                          found=error.found) from error


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
