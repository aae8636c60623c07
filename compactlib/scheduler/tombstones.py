# SPDX-License-Identifier: Apache-2.0
"""`Tombstones`: delayed deletions, until a worker has confirmed them.

A completed job leaves a tombstone with the ids of its sources. After a delay, when no reader needs the
objects any more, it is leased to a worker that polls. The worker deletes the objects and confirms the tombstone by
name; without a confirmation before the end of the lease, the tombstone is due again. Deleting is idempotent.

The index refuses the blocks of a tombstone, so that a late retry of an `AddBlocks` does not add a block whose object
will be deleted.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from itertools import takewhile

import attrs
from sortedcontainers import SortedList

from compactlib.scheduler.values import BlockMeta, Tombstone


@attrs.define
class TombstoneEntry:
    """A tombstone and its lease; the stored form.

    Attributes:
        tombstone: the blocks to delete.
        appended_at: time of the command that added it, seconds.
        leased_until: end of its last lease, seconds; 0 if there was none.
    """

    tombstone: Tombstone
    appended_at: float
    leased_until: float = 0.0


class Tombstones:
    """All tombstones that are not confirmed. A call costs O(log n) a tombstone, unless its docstring says more.

    Args:
        cleanup_delay_seconds: the age at which a tombstone is due.
    """

    def __init__(self, cleanup_delay_seconds: float) -> None:
        self._delay = cleanup_delay_seconds
        self._entries: OrderedDict[str, TombstoneEntry] = OrderedDict()  # by arrival
        self._due: SortedList[tuple[float, str]] = SortedList()
        self._blocks: dict[tuple[str, int], set[str]] = {}  # no block is in two tombstones, since each was in the index

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[TombstoneEntry]:
        # All entries, the oldest first.
        return iter(self._entries.values())

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def add(self, tombstone: Tombstone, now: float) -> None:
        """Add a tombstone, unless its name exists. A name must never be reused."""
        if tombstone.name not in self._entries:
            self.restore(TombstoneEntry(tombstone, now))

    def restore(self, entry: TombstoneEntry) -> None:
        """Add a stored entry."""
        tombstone = entry.tombstone
        self._entries[tombstone.name] = entry
        self._due.add((self._due_at(entry), tombstone.name))
        if tombstone.blocks:
            self._blocks.setdefault((tombstone.tenant, tombstone.shard), set()).update(tombstone.blocks)

    def covers(self, block: BlockMeta) -> bool:
        """Return whether a tombstone has the id of the block. O(1)."""
        return block.id in self._blocks.get((block.tenant, block.shard), ())

    def due(self, now: float) -> Iterator[Tombstone]:
        """Yield the tombstones that may be leased at `now`: older than the delay, and without a present lease."""
        return (self._entries[name].tombstone for _, name in takewhile(lambda entry: entry[0] < now, self._due))

    def _due_at(self, entry: TombstoneEntry) -> float:
        return entry.leased_until or entry.appended_at + self._delay

    def lease(self, name: str, until: float) -> Tombstone | None:
        """Lease a tombstone until a time, seconds; return `None` if it was confirmed."""
        entry = self._entries.get(name)
        if entry is None:
            return None
        self._due.remove((self._due_at(entry), name))
        entry.leased_until = until
        self._due.add((until, name))
        return entry.tombstone

    def confirm(self, name: str) -> None:
        """Remove a tombstone, if it exists, after its objects were deleted. O(log n + its blocks)."""
        entry = self._entries.pop(name, None)
        if entry is None:
            return
        self._due.remove((self._due_at(entry), name))
        place = entry.tombstone.tenant, entry.tombstone.shard
        if entry.tombstone.blocks:
            self._blocks[place].difference_update(entry.tombstone.blocks)
            if not self._blocks[place]:
                del self._blocks[place]

    def drop_oldest(self) -> Tombstone:
        """Remove and return the oldest tombstone; there must be a tombstone. O(log n + its blocks)."""
        oldest = next(iter(self._entries.values())).tombstone
        self.confirm(oldest.name)
        return oldest
