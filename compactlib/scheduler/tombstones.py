# SPDX-License-Identifier: Apache-2.0
"""Delayed deletion: what is to be deleted, kept until a worker has confirmed that it is gone.

A completed job leaves a tombstone with its sources' ids. Once that is old enough for no reader to need the objects, it
is leased to a worker that polls. The worker deletes the objects and confirms by the tombstone's name;
if no confirmation comes before the lease ends, the tombstone is due again. Deleting twice does no harm.

As long as a tombstone is here, its blocks are refused by the index: a late retry of an `AddBlocks` must not bring back
a block whose object is about to go.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator
from itertools import takewhile

import attrs
from sortedcontainers import SortedList

from compactlib.scheduler.values import BlockMeta, ShardTombstone, Tombstone


@attrs.define
class TombstoneEntry:
    """A tombstone and its progress so far: all that is stored.

    Attributes:
        tombstone: what is to be deleted.
        appended_at: time of the command that added it, seconds.
        leased_until: end of the lease under which a worker deletes it, seconds; 0 if none ever did.
    """

    tombstone: Tombstone
    appended_at: float
    leased_until: float = 0.0


class Tombstones:
    """All tombstones that are not confirmed. A call costs O(log n) a tombstone, unless it says more.

    Args:
        cleanup_delay_seconds: how old a tombstone must be before it is due.
    """

    def __init__(self, cleanup_delay_seconds: float) -> None:
        self._delay = cleanup_delay_seconds
        self._entries: OrderedDict[str, TombstoneEntry] = OrderedDict()  # by arrival
        self._free: OrderedDict[str, TombstoneEntry] = OrderedDict()  # of them, those without a lease
        self._leased: SortedList[tuple[float, str]] = SortedList()
        # How many tombstones name a block: two may, if two workers wrote the same outputs and both came too late.
        self._blocks: dict[tuple[str, int], Counter[str]] = {}
        self._spans: dict[tuple[str, int], dict[str, ShardTombstone]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[TombstoneEntry]:
        """All entries, the oldest first."""
        return iter(self._entries.values())

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def add(self, tombstone: Tombstone, now: float) -> None:
        """Keep a tombstone, unless there is one of this name; its name must never be used for anything else."""
        if tombstone.name not in self._entries:
            self.restore(TombstoneEntry(tombstone, now))

    def restore(self, entry: TombstoneEntry) -> None:
        """Keep an entry as it was iterated."""
        tombstone = entry.tombstone
        self._entries[tombstone.name] = entry
        if entry.leased_until:
            self._leased.add((entry.leased_until, tombstone.name))
        else:
            self._free[tombstone.name] = entry
        place = tombstone.tenant, tombstone.shard
        if isinstance(tombstone, ShardTombstone):
            self._spans.setdefault(place, {})[tombstone.name] = tombstone
        elif tombstone.blocks:
            self._blocks.setdefault(place, Counter()).update(set(tombstone.blocks))

    def covers(self, block: BlockMeta) -> bool:
        """Whether the block is to be deleted: by its id, or because its `min_time` lies in a span that goes.

        Cost: O(spans that wait for deletion in the block's tenant and shard).
        """
        first = block.min_time
        return self.exists(block.tenant, block.shard, block.id) or (first is not None and any(
            span.timestamp <= first < span.timestamp + span.duration
            for span in self._spans.get((block.tenant, block.shard), {}).values()))

    def exists(self, tenant: str, shard: int, block_id: str) -> bool:
        """Whether a tombstone names the block. O(1)."""
        return block_id in self._blocks.get((tenant, shard), ())

    def due(self, now: float) -> Iterator[Tombstone]:
        """Yield what may be leased at `now`: older than the delay, and under no lease (both strictly).

        Tombstones whose lease has run out come after those that never had one.
        """
        # A new leader's clock may stand behind the old one's: like the first one that is too young, that ends the
        # search, and costs nothing but time.
        yield from (entry.tombstone for entry in takewhile(
            lambda entry: entry.appended_at < now - self._delay, self._free.values()))
        yield from (self._entries[name].tombstone for _, name in takewhile(lambda lease: lease[0] < now, self._leased))

    def lease(self, name: str, until: float) -> Tombstone | None:
        """Have a worker delete it until then, seconds; `None` if it was confirmed meanwhile."""
        entry = self._entries.get(name)
        if entry is None:
            return None
        self._unlist(entry)
        entry.leased_until = until
        self._leased.add((until, name))
        return entry.tombstone

    def confirm(self, name: str) -> None:
        """Its objects are gone: forget it, if it is there. O(log n + its blocks)."""
        entry = self._entries.pop(name, None)
        if entry is None:
            return
        self._unlist(entry)
        place = entry.tombstone.tenant, entry.tombstone.shard
        if isinstance(entry.tombstone, ShardTombstone):
            del self._spans[place][name]
            if not self._spans[place]:
                del self._spans[place]
        elif entry.tombstone.blocks:
            named = self._blocks[place]
            for block_id in set(entry.tombstone.blocks):
                named[block_id] -= 1
                if not named[block_id]:
                    del named[block_id]
            if not named:
                del self._blocks[place]

    def _unlist(self, entry: TombstoneEntry) -> None:
        name = entry.tombstone.name
        if entry.leased_until:
            self._leased.remove((entry.leased_until, name))
        else:
            del self._free[name]

    def drop_oldest(self) -> Tombstone:
        """Forget the oldest one; there must be one. O(log n + its blocks)."""
        oldest = next(iter(self._entries.values())).tombstone
        self.confirm(oldest.name)
        return oldest

    def __repr__(self) -> str:
        return f"Tombstones({len(self._free)} waiting, {len(self._leased)} leased)"
