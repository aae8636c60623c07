"""What the last snapshot left in the log: its index and the live set (`docs/formats/raftlog-snapshot.md`).

```
0   magic CLRAFSNP, version u16, zeros u16, zeros u32, snapshot index u64
24  CRC-32 of the 24 bytes before, u32
28  the live set, as `IndexSet.to_bytes` (it carries its own length and CRC)
```

An empty live set is written out: only a missing file means that no snapshot was ever taken (notes 5.1, item 5).
"""

from __future__ import annotations

import os
import struct
from typing import TypeAlias

import attrs

from compactlib.checksum import crc32
from compactlib.errors import CorruptData, InvalidInput, LiveAboveSnapshot, StorageError, Unsupported
from compactlib.files import Files, StrPath, write_durably
from compactlib.indexset import IndexSet
from compactlib.raftlog.model import MAX_INDEX
from compactlib.raftlog.names import SNAPSHOT_NAME, TEMPORARY_SUFFIX

MAGIC = b"CLRAFSNP"
VERSION = 1

SnapshotVersion: TypeAlias = tuple[int, int, int]

_HEAD = struct.Struct("<8sHHIQ")
_CRC = struct.Struct("<I")
_LIVE_START = _HEAD.size + _CRC.size


@attrs.frozen
class SnapshotState:
    """A snapshot, as far as the log is concerned.

    Attributes:
        index: everything up to here is in the snapshot, 0 .. 2**64 - 1.
        live: indexes <= `index` whose entries must stay in the log.
    """

    index: int
    live: IndexSet

    def __attrs_post_init__(self) -> None:
        if not 0 <= self.index <= MAX_INDEX:
            raise InvalidInput(f"snapshot index {self.index}; it must be between 0 and {MAX_INDEX}")
        if self.live and self.live.last > self.index:
            raise LiveAboveSnapshot(index=self.live.last, snapshot_index=self.index)

    def is_dead(self, index: int) -> bool:
        """Whether the entry of `index` may be gone."""
        return index <= self.index and index not in self.live


def encode_snapshot_state(state: SnapshotState) -> bytes:
    """The bytes of the `SNAPSHOT` file."""
    head = _HEAD.pack(MAGIC, VERSION, 0, 0, state.index)
    return head + _CRC.pack(crc32(head, 0)) + state.live.to_bytes()


def decode_snapshot_state(data: bytes, path: str) -> SnapshotState:
    """The inverse of `encode_snapshot_state`.

    Raises:
        CorruptData: any check fails.
        Unsupported: written by a later release.
    """
    if len(data) < _LIVE_START:
        raise CorruptData(path=path, offset=len(data), expected=f"at least {_LIVE_START} bytes",
                          found=f"{len(data)} bytes")
    magic, version, zero_a, zero_b, index = _HEAD.unpack_from(data)
    if magic != MAGIC:
        raise CorruptData(path=path, offset=0, expected=f"magic {MAGIC!r}", found=repr(magic))
    (stored,) = _CRC.unpack_from(data, _HEAD.size)
    actual = crc32(data[:_HEAD.size], 0)
    if stored != actual:
        raise CorruptData(path=path, offset=_HEAD.size, expected=f"CRC {actual:#010x}", found=f"{stored:#010x}")
    if version > VERSION:
        raise Unsupported(f"{path}: snapshot state version {version}; this release reads up to {VERSION}: upgrade")
    if version < 1 or zero_a or zero_b:
        raise CorruptData(path=path, offset=8, expected="version 1 and zeros", found=f"{version}, {zero_a}, {zero_b}")
    live = IndexSet.from_bytes(data[_LIVE_START:], path=path, offset=_LIVE_START)
    if live and live.last > index:
        raise CorruptData(path=path, offset=_LIVE_START, expected=f"live indexes up to {index}", found=str(live.last))
    return SnapshotState(index, live)


def read_snapshot_state(folder: StrPath) -> SnapshotState | None:
    """The state of the log in `folder`, or `None` if no snapshot was ever recorded.

    Raises:
        CorruptData: the file is damaged.
        Unsupported: written by a later release.
        StorageError: it cannot be read.
    """
    path = os.path.join(folder, SNAPSHOT_NAME)
    try:
        with open(path, "rb") as file:
            data = file.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError.from_os(error, "read", path) from error
    return decode_snapshot_state(data, path)


def snapshot_version(folder: StrPath) -> SnapshotVersion | None:
    """What tells one `SNAPSHOT` file from another without reading it; `None` if there is none."""
    try:
        found = os.stat(os.path.join(folder, SNAPSHOT_NAME))
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def write_snapshot_state(files: Files, folder: StrPath, state: SnapshotState) -> None:
    """Put `state` in force, durably and in one step.

    Raises:
        StorageError: the disk refused; the state before it stays in force.
    """
    write_durably(files, os.path.join(folder, SNAPSHOT_NAME), [encode_snapshot_state(state)],
                  temporary_suffix=TEMPORARY_SUFFIX)
