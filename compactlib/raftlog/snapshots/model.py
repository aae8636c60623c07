# SPDX-License-Identifier: Apache-2.0
"""The metadata of a snapshot: what is known of it without reading its state."""

from __future__ import annotations

import attrs

from compactlib.errors import CorruptData, InvalidInput
from compactlib.files.checksum import crc32
from compactlib.indexset import IndexSet
from compactlib.raftlog.arguments import whole
from compactlib.raftlog.model.values import MAX_INDEX

MAX_CLUSTER_BYTES = 64 << 10
_MAX_U32 = (1 << 32) - 1
_OWN_CRC_BYTES = 4


def live_set_crc(data: bytes) -> int:
    """What distinguishes a live set, as `IndexSet.to_bytes`, from others: CRC-32 of all but its last 4 bytes.

    Those are its own CRC, and a CRC over data with its own CRC behind it is the same for all data of one length.
    """
    return crc32(memoryview(data)[:-_OWN_CRC_BYTES])


@attrs.frozen(kw_only=True)
class SnapshotManifest:
    """A snapshot's place in the log, and what its two parts must add up to. Two with equal values are the same.

    Attributes:
        index: everything up to here is in the snapshot or in a live entry.
        term: the term of the entry at `index`.
        machine_version: the host's own number for the form of the state, 0 .. 2**32 - 1.
        cluster: the host's own bytes, such as the members of its group, at most 64 KiB.
        live_count: live indexes.
        live_bytes: size of the live set as `IndexSet.to_bytes`.
        live_crc: `live_set_crc` of those bytes.
        state_bytes: size of the state.
        state_crc: CRC-32 of the state.

    Raises:
        InvalidInput: a number is out of its range, `cluster` is too large, or a value is of another type.
    """

    index: int
    term: int
    machine_version: int = 0
    cluster: bytes = b""
    live_count: int
    live_bytes: int
    live_crc: int
    state_bytes: int
    state_crc: int

    def __attrs_post_init__(self) -> None:
        for name in ("index", "term", "live_count", "live_bytes", "state_bytes"):
            value = whole(f"a snapshot's {name}", getattr(self, name))
            if not 0 <= value <= MAX_INDEX:
                raise InvalidInput(f"a snapshot's {name} is {value}; it must be between 0 and {MAX_INDEX}")
        for name in ("machine_version", "live_crc", "state_crc"):
            value = whole(f"a snapshot's {name}", getattr(self, name))
            if not 0 <= value <= _MAX_U32:
                raise InvalidInput(f"a snapshot's {name} is {value}; it must be between 0 and {_MAX_U32}")
        if len(self.cluster) > MAX_CLUSTER_BYTES:
            raise InvalidInput(f"a snapshot's cluster bytes are {len(self.cluster)}; at most {MAX_CLUSTER_BYTES} fit")

    @classmethod
    def of(cls, index: int, term: int, live: IndexSet, *, state_bytes: int, state_crc: int, machine_version: int = 0,
           cluster: bytes = b"") -> SnapshotManifest:
        """The manifest of a snapshot with this live set."""
        data = live.to_bytes()
        return cls(index=index, term=term, machine_version=machine_version, cluster=cluster, live_count=live.count,
                   live_bytes=len(data), live_crc=live_set_crc(data), state_bytes=state_bytes, state_crc=state_crc)

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
class StagedState:
    """The beginning of a state that an earlier transfer left on the disk.

    Attributes:
        meta: of which snapshot.
        state_bytes: how much of it there is; whether it is what was sent shows when all of it is there.
    """

    meta: SnapshotManifest
    state_bytes: int
