# SPDX-License-Identifier: Apache-2.0
"""`BlockIndex`: all blocks, by tenant, shard, id and time. Retention removes old blocks.

Only commands change it. See `docs/internals/differences.md`.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator
from itertools import islice

import attrs
from sortedcontainers import SortedDict, SortedList

from compactlib.scheduler.values import BlockMeta

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
    """All blocks, up to some millions.

    Attributes:
        expired_until: the newest `max_time` of a block that retention has removed, seconds; `None` before the first.
    """

    def __init__(self, expired_until: float | None = None) -> None:
        self.expired_until: float | None = expired_until
        self._groups: SortedDict[tuple[str, int], _Group] = SortedDict()
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

    def is_expired(self, block: BlockMeta) -> bool:
        """Return whether a new block is too old. A late retry must not add a block that retention has removed."""
        until = self.expired_until
        return until is not None and block.max_time is not None and block.max_time <= until

    def remove(self, tenant: str, shard: int, block_ids: Iterable[str]) -> None:
        """Remove these blocks, without unknown ones. O(log n) a block."""
        group = self._groups.get((tenant, shard))
        if group is None:
            return
        for block_id in block_ids:
            block = group.by_id.pop(block_id, None)
            if block is not None:
                self._size -= 1
                group.times.remove(_by_time(block))
        if not group.by_id:
            del self._groups[tenant, shard]

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

    def expire(self, before: float, limit: int) -> list[BlockMeta]:
        """Remove and return blocks without data from `before` on, seconds, at most `limit`; later, refuse older blocks.

        Blocks without times stay. O(blocks that begin before `before`).
        """
        expired = (block for group in self._groups.values()
                   for _, block_id in group.times.irange(_FIRST, (before, ""), (True, False))
                   if (block := group.by_id[block_id]).max_time is not None and block.max_time < before)
        gone = list(islice(expired, limit))
        for block in gone:
            assert block.max_time is not None, "blocks without times stay"
            until = self.expired_until
            self.expired_until = block.max_time if until is None else max(until, block.max_time)
            self.remove(block.tenant, block.shard, (block.id,))
        return gone


def _by_time(block: BlockMeta) -> tuple[float, str]:
    return -math.inf if block.min_time is None else block.min_time, block.id
