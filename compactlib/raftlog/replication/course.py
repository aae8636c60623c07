# SPDX-License-Identifier: Apache-2.0
"""The way from the first byte of a live set to the last one of the state, the same on both sides. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from compactlib.indexset.index_set import IndexSet
from compactlib.raftlog.replication.messages import Phase, Position
from compactlib.raftlog.snapshots.model import SnapshotManifest

_BLOCK_MEMBERS = 1024


def needed_entries(live: IndexSet, last_applied: int) -> IndexSet:
    """What a follower needs of a live set: everything above what it has applied.

    Below, its entries are the leader's. Above, they may be stale, so they do not count whatever it holds.
    """
    return live.at_least(last_applied + 1)


class EntrySequence:
    """Needed live indexes in order, of which the next few are found without copying, or counting out, the whole set.

    Args:
        needed: what is to be sent.
    """

    def __init__(self, needed: IndexSet) -> None:
        self._needed = needed
        self._lasts: Sequence[int] = needed.columns[1]

    def after(self, previous: int) -> IndexSet:
        """The next members above `previous`, at most 1024; empty if there are none. O(log runs)."""
        run = bisect_right(self._lasts, previous)
        if run == len(self._lasts):
            return IndexSet()
        near = self._needed.between(previous + 1, self._lasts[min(run + _BLOCK_MEMBERS, len(self._lasts)) - 1])
        return near if near.count <= _BLOCK_MEMBERS else next(near.chunks(_BLOCK_MEMBERS))

    def follows(self, previous: int, indexes: Sequence[int]) -> bool:
        """Whether `indexes` are exactly the next members above `previous`, none left out. O(members asked for)."""
        done = 0
        while done < len(indexes):
            expected = self.after(previous).members()
            if not expected or list(indexes[done:done + len(expected)]) != expected[:len(indexes) - done]:
                return False
            done += len(expected)
            previous = expected[-1]
        return True


class Course:
    """The positions of one transfer.

    Args:
        meta: what is transferred.
        last_applied: the receiver's, fixed when it accepted.
        needed: the entries that it needs; `None` while the receiver does not know the live set.
        state_offset: bytes of the state that the receiver kept from an earlier try.
    """

    def __init__(self, meta: SnapshotManifest, last_applied: int, needed: IndexSet | None, *,
                 state_offset: int = 0) -> None:
        self._meta = meta
        self._last_applied = last_applied
        self.state_offset: int = state_offset
        self.entries: EntrySequence = EntrySequence(IndexSet() if needed is None else needed)

    def settled(self, position: Position) -> Position:
        """The same place, named as the start of the following part."""
        if position.phase is Phase.LIVE and position.offset >= self._meta.live_bytes:
            position = Position(Phase.ENTRIES, self._last_applied)
        if position.phase is Phase.ENTRIES and not self.entries.after(position.offset):
            position = Position(Phase.STATE, self.state_offset)
        if position.phase is Phase.STATE and position.offset >= self._meta.state_bytes:
            position = Position(Phase.END, 0)
        return position
