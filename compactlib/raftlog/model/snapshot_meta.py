# SPDX-License-Identifier: Apache-2.0
"""What the last snapshot left in the log: its index and the live set (`docs/formats/raftlog-snapshot.md`).

```
0   magic CLRAFSNP, version u16, zeros (6 bytes), snapshot index u64
24  CRC-32 of the 24 bytes before, u32
28  snapshot term u64, CRC-32 of these 8 bytes (continued from the one before), u32
40  the live set, as `IndexSet.to_bytes` (it carries its own length and CRC)
```

An empty live set is written out: only a missing file means that no snapshot was ever taken.
"""

from __future__ import annotations

import os
import struct
from typing import TypeAlias

import attrs

from compactlib.errors import CorruptData, InvalidInput
from compactlib.files.checksum import crc32
from compactlib.files.disk import Files, StrPath, read_if_there, write_durably
from compactlib.files.record_frame import RecordFrame
from compactlib.indexset import IndexSet
from compactlib.raftlog.errors import LiveAboveSnapshot
from compactlib.raftlog.model.names import SNAPSHOT_NAME, TEMPORARY_SUFFIX
from compactlib.raftlog.model.values import MAX_INDEX

MAGIC = b"CLRAFSNP"
VERSION = 3

SnapshotVersion: TypeAlias = tuple[int, int, int]

_HEAD = RecordFrame("snapshot state", MAGIC, VERSION, "<H6xQ")
_TERM = struct.Struct("<QI")
_LIVE_START = _HEAD.size + _TERM.size


@attrs.frozen
class SnapshotMeta:
    """A snapshot, as far as the log is concerned. `SnapshotMeta()` is that of a log without one: see `NO_SNAPSHOT`.

    Attributes:
        index: everything up to here is in the snapshot, 0 .. 2**64 - 1; -1 without one.
        term: the term of the entry at `index`, 0 if the host did not say.
        live: indexes <= `index` whose entries must stay in the log.
        smallest_live_index: everything below it is dead: the lowest live index, or `index + 1` with none.
        kept_from: from here to `index` nothing is dead: the first index of the live run that ends at `index`, or
            `index + 1` with none.

    Raises:
        InvalidInput: a number is out of its range.
        LiveAboveSnapshot: a live index lies above `index`.
    """

    index: int = -1
    term: int = 0
    live: IndexSet = attrs.field(factory=IndexSet)
    smallest_live_index: int = attrs.field(init=False)
    kept_from: int = attrs.field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        for name, value in (("index", self.index), ("term", self.term)):
            if not isinstance(value, int):
                raise InvalidInput(f"the snapshot's {name} is {value!r:.100}; give a whole number")
        if not -1 <= self.index <= MAX_INDEX:
            raise InvalidInput(f"snapshot index {self.index}; it must be between 0 and {MAX_INDEX}")
        if not 0 <= self.term <= MAX_INDEX:
            raise InvalidInput(f"snapshot term {self.term}; it must be between 0 and {MAX_INDEX}")
        if self.live and self.live.last > self.index:
            raise LiveAboveSnapshot(index=self.live.last, snapshot_index=self.index)
        object.__setattr__(self, "smallest_live_index", self.live.first if self.live else self.index + 1)
        ends_there = bool(self.live) and self.live.last == self.index
        object.__setattr__(self, "kept_from", self.live.columns[0][-1] if ends_there else self.index + 1)

    def is_dead(self, index: int) -> bool:
        """Whether the entry of `index` may be gone. O(log live runs)."""
        return index <= self.index and not self.live.holds(index)

    def needed(self, indexes: IndexSet) -> IndexSet:
        """Those of `indexes` that are not dead: everything above the snapshot, only the live ones below. O(runs)."""
        return indexes.at_least(self.index + 1) | (indexes.at_most(self.index) & self.live)


NO_SNAPSHOT = SnapshotMeta()
"""Of a log of which no snapshot was ever taken: nothing is dead."""


def encode_snapshot_meta(state: SnapshotMeta) -> bytes:
    """The bytes of the `SNAPSHOT` file."""
    head = _HEAD.encode(state.index)
    return head + _TERM.pack(state.term, _term_crc(head, state.term)) + state.live.to_bytes()


def decode_snapshot_meta(data: bytes, path: str) -> SnapshotMeta:
    """The inverse of `encode_snapshot_meta`.

    Raises:
        CorruptData: any check fails.
        Unsupported: written by another release.
    """
    (index,) = _HEAD.decode_header(data, path)
    if len(data) < _LIVE_START:
        raise CorruptData(path=path, offset=len(data), expected=f"at least {_LIVE_START} bytes",
                          found=f"{len(data)} bytes")
    term, stored = _TERM.unpack_from(data, _HEAD.size)
    actual = _term_crc(data, term)
    if stored != actual:
        raise CorruptData(path=path, offset=_HEAD.size, expected=f"a term with CRC {actual:#010x}",
                          found=f"term {term} with {stored:#010x}")
    live = IndexSet.from_bytes(data[_LIVE_START:], path=path, offset=_LIVE_START)
    if live and live.last > index:
        raise CorruptData(path=path, offset=_LIVE_START, expected=f"live indexes up to {index}", found=str(live.last))
    return SnapshotMeta(index, term, live)


def _term_crc(data: bytes, term: int) -> int:
    return crc32(_TERM.pack(term, 0)[:-4], crc32(data[:_HEAD.header_bytes]))


def read_snapshot_meta(folder: StrPath) -> SnapshotMeta | None:
    """The state of the log in `folder`, or `None` if no snapshot was ever recorded.

    Raises:
        CorruptData: the file is damaged.
        Unsupported: written by another release.
        StorageError: it cannot be read.
    """
    path = os.path.join(folder, SNAPSHOT_NAME)
    data = read_if_there(path)
    return None if data is None else decode_snapshot_meta(data, path)


def snapshot_version(folder: StrPath) -> SnapshotVersion | None:
    """What distinguishes one `SNAPSHOT` file from another without reading it; `None` if there is none."""
    try:
        found = os.lstat(os.path.join(folder, SNAPSHOT_NAME))
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def write_snapshot_meta(files: Files, folder: StrPath, state: SnapshotMeta) -> None:
    """Put `state` in force, durably and in one step.

    Raises:
        StorageError: the disk refused; the state before it stays in force.
    """
    write_durably(files, os.path.join(folder, SNAPSHOT_NAME), [encode_snapshot_meta(state)],
                  temporary_suffix=TEMPORARY_SUFFIX)
