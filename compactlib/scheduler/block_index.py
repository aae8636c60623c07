# SPDX-License-Identifier: Apache-2.0
"""`BlockIndex`: all blocks, by tenant, shard, id and time. Retention removes whole partitions of time.

Only commands change it. See `docs/internals/differences.md`.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator

import attrs
from sortedcontainers import SortedDict, SortedList

from compactlib.scheduler.tombstones import Tombstones
from compactlib.scheduler.values import ANONYMOUS_TENANT, BlockMeta, ShardTombstone

PARTITION_SECONDS = 6 * 3600
"""The unit of retention: the blocks of a tenant and shard that begin in one partition."""
_FIRST = (math.nextafter(-math.inf, 0), "")
"""Before all blocks with times, after all others."""


@attrs.define
class _Group:
    """The blocks of one tenant and shard."""

    by_id: dict[str, BlockMeta] = attrs.field(factory=dict)
    times: SortedList[tuple[float, str]] = attrs.field(factory=SortedList)
    """`min_time` and id of each block, with -inf for a block without times."""
    longest: float = attrs.field(default=0.0, eq=False)
    """An upper bound of the time from the oldest to the newest data of a block; removals do not lower it."""


class BlockIndex:
    """All blocks, up to some millions."""

    def __init__(self) -> None:
        self._groups: SortedDict[tuple[str, int], _Group] = SortedDict()
        self._dropped_until: dict[tuple[str, int], float] = {}
        self._shard_dropped_until: dict[int, float] = {}  # the highest of all tenants of a shard
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def get(self, tenant: str, shard: int, block_id: str) -> BlockMeta | None:
        """Return the block of this id, or `None`. O(1)."""
        group = self._groups.get((tenant, shard))
        return None if group is None else group.by_id.get(block_id)

    def find(self, tenant: str, shard: int, block_ids: Iterable[str]) -> tuple[BlockMeta, ...]:
        """Return the blocks of these ids in this order, without unknown ids. O(ids)."""
        group = self._groups.get((tenant, shard))
        known = {} if group is None else group.by_id
        return tuple([known[block_id] for block_id in block_ids if block_id in known])

    def add(self, block: BlockMeta) -> bool:
        """Add a block, unless its id is known in its tenant and shard. O(log n)."""
        key = block.tenant, block.shard
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = _Group()
        elif block.id in group.by_id:
            return False
        group.by_id[block.id] = block
        group.times.add(_by_time(block))
        if block.min_time is not None and block.max_time is not None:
            group.longest = max(group.longest, block.max_time - block.min_time)
        self._size += 1
        return True

    def refuses(self, block: BlockMeta, tombstones: Tombstones) -> bool:
        """Return whether a new block is refused: it has a tombstone, or begins in a time that retention has dropped.

        A block is too old if it begins before the end of a dropped span, also after the confirmation of its tombstone:
        the deletion of the span may have deleted the object of a block that was not added yet. A block of several
        tenants is too old if any tenant of its shard has lost that time: a job's outputs would be in a span that a
        worker may still delete, long after its lease.
        """
        until = (self._shard_dropped_until.get(block.shard, -math.inf) if block.tenant == ANONYMOUS_TENANT
                 else self._dropped_until.get((block.tenant, block.shard), -math.inf))
        return (block.min_time is not None and block.min_time < until) or tombstones.covers(block)

    def remove(self, tenant: str, shard: int, block_ids: Iterable[str]) -> int:
        """Remove the known ones of these blocks; return their number. O(log n) a block."""
        group = self._groups.get((tenant, shard))
        if group is None:
            return 0
        removed = 0
        for block_id in block_ids:
            block = group.by_id.pop(block_id, None)
            if block is not None:
                removed += 1
                group.times.remove(_by_time(block))
        if not group.by_id:
            del self._groups[tenant, shard]
        self._size -= removed
        return removed

    def blocks(self, *, tenant: str | None = None, shard: int | None = None, start: float = -math.inf,
               end: float = math.inf) -> Iterator[BlockMeta]:
        """Yield the blocks that may have data between `start` and `end` (both inclusive, seconds), oldest first.

        Ordered by `min_time`, then tenant, shard and id; blocks without times are in every span, and come last. The
        index must not change during the iteration.

        Args:
            tenant: only of this tenant.
            shard: only of this shard.
            start: only blocks that end at this time or later.
            end: only blocks that begin at this time or earlier.
        """
        groups = [(key, group) for key, group in self._groups.items()
                  if tenant in (None, key[0]) and shard in (None, key[1])]
        times = heapq.merge(*([(first, key, block_id) for first, block_id in
                               group.times.irange(max(_FIRST, (start - group.longest, "")),
                                                  (math.nextafter(end, math.inf), ""), (True, False))]
                              for key, group in groups))
        for _, key, block_id in times:
            block = self._groups[key].by_id[block_id]
            if block.max_time is not None and block.max_time >= start:
                yield block
        for _, group in groups:
            yield from (group.by_id[block_id] for _, block_id in group.times.irange(None, _FIRST, (True, False)))

    def expired(self, before: float, limit: int, *, name_suffix: str) -> tuple[ShardTombstone, ...]:
        """Return the partitions that retention removes: those that end before `before`, with all their data.

        `drop` removes a partition from the index, and its tombstone deletes the objects: all blocks of the tenant and
        shard that begin in the span. A partition stays while the shard has a block of several tenants that begins
        before its end, from which a job may make blocks in the partition; such blocks expire or are compacted. Blocks
        without times are never removed; a block of several tenants without times keeps all partitions of its shard.

        Args:
            before: data newer than this stays, seconds.
            limit: the most partitions, oldest first within each tenant and shard.
            name_suffix: makes the names unique for ever, for example by the command's index.
        """
        found: list[ShardTombstone] = []
        for (tenant, shard), group in self._groups.items():
            ends_by = before if tenant == ANONYMOUS_TENANT else min(before, self._anonymous_from(shard))
            entries = group.times.irange(_FIRST)
            entry = next(entries, None)
            while entry is not None and len(found) < limit:
                # With whole numbers, since a rounded quotient could put a block outside of the span of its partition.
                start = int(entry[0] // PARTITION_SECONDS) * PARTITION_SECONDS
                if not start + PARTITION_SECONDS <= ends_by:
                    break
                is_old = True
                while entry is not None and entry[0] < start + PARTITION_SECONDS:
                    last = group.by_id[entry[1]].max_time
                    is_old = is_old and last is not None and last < before
                    entry = next(entries, None)
                if is_old:
                    name = f"{start} ({PARTITION_SECONDS}s)-T{tenant}-S{shard}{name_suffix}"
                    found.append(ShardTombstone(name=name, tenant=tenant, shard=shard, timestamp=float(start),
                                                duration=float(PARTITION_SECONDS)))
        return tuple(found)

    def _anonymous_from(self, shard: int) -> float:
        """Return the begin of the shard's oldest block of several tenants; -inf if one has no times."""
        group = self._groups.get((ANONYMOUS_TENANT, shard))
        if group is None:
            return math.inf
        return group.times[0][0]

    def drop(self, span: ShardTombstone) -> tuple[BlockMeta, ...]:
        """Remove and return all blocks of the tenant and shard that begin in the span. O(log n) a block.

        Later blocks that begin before the end of the span are refused.
        """
        end = span.timestamp + span.duration
        self.note_dropped(span.tenant, span.shard, end)
        group = self._groups.get((span.tenant, span.shard))
        gone = () if group is None else tuple(group.by_id[block_id] for _, block_id in group.times.irange(
            (span.timestamp, ""), (end, ""), inclusive=(True, False)))
        self.remove(span.tenant, span.shard, [block.id for block in gone])
        return gone

    def note_dropped(self, tenant: str, shard: int, until: float) -> None:
        """Refuse later blocks of the tenant and shard that begin before `until`."""
        self._dropped_until[tenant, shard] = max(until, self._dropped_until.get((tenant, shard), -math.inf))
        self._shard_dropped_until[shard] = max(until, self._shard_dropped_until.get(shard, -math.inf))

    def dropped(self) -> tuple[tuple[str, int, float], ...]:
        """Return the arguments of `note_dropped` that restore this index."""
        return tuple((*key, until) for key, until in sorted(self._dropped_until.items()))

    def __repr__(self) -> str:
        return f"BlockIndex({self._size} blocks in {len(self._groups)} tenants and shards)"


def _by_time(block: BlockMeta) -> tuple[float, str]:
    return -math.inf if block.min_time is None else block.min_time, block.id
