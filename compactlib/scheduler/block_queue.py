# SPDX-License-Identifier: Apache-2.0
"""`BlockQueue`: the blocks to compact, in the order of their arrival, and the plan of their jobs.

A job takes blocks of one key (tenant, shard and level) in the order of arrival, until it is full, or the next block
does not fit by its bytes or its time. A key is *ripe* if its blocks fill a job: there are `max_blocks` or
`max_job_bytes` of them, or their times are too far apart for one job. The blocks of another key become a job when the
first is older than `max_age_seconds`. Low levels are first; within a level, the job whose first block arrived first.

Planning changes nothing. It reads only keys with a job, since each level keeps its ripe keys and the others in two
orders, by the arrival of their first blocks.

`docs/internals/differences.md` has the differences from Pyroscope.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush, merge
from itertools import takewhile
from typing import TypeAlias

import attrs
from sortedcontainers import SortedDict

from compactlib.scheduler.config import LevelConfig
from compactlib.scheduler.values import BlockMeta, JobPlan

Key: TypeAlias = tuple[str, int, int]
"""Tenant, shard, level."""


@attrs.define
class Group:
    """The blocks of a key; there is at least one.

    Attributes:
        key: the blocks' key.
        blocks: the blocks by id, each with its position in the order of arrival and the time of its command, seconds.
        size_bytes: the bytes of all blocks.
        times: the lowest and the highest time of a block; perhaps too wide in a ripe group.
        position: the position of the first block when the group was put into the order `is_in`.
        is_in: the order of the level that has it.
    """

    key: Key
    blocks: OrderedDict[str, tuple[BlockMeta, int, float]] = attrs.field(factory=OrderedDict)
    size_bytes: int = 0
    times: tuple[float, float] = attrs.field(default=(0.0, 0.0), eq=False)
    position: int = 0
    is_in: SortedDict[int, Group] | None = attrs.field(default=None, eq=False)


@attrs.define
class QueueLevel:
    """All groups of a level, ripe and unripe groups by position, and the number of their blocks."""

    config: LevelConfig
    groups: dict[Key, Group] = attrs.field(factory=dict)
    ripe: SortedDict[int, Group] = attrs.field(factory=SortedDict)
    waiting: SortedDict[int, Group] = attrs.field(factory=SortedDict)
    blocks: int = 0

    def put(self, group: Group) -> None:
        """Put a group into the order of its present blocks."""
        order = self.ripe if self._is_ripe(group) else self.waiting
        _, position, _ = next(iter(group.blocks.values()))
        if group.is_in is order and group.position == position:
            return
        if group.is_in is not None:
            del group.is_in[group.position]
        order[position] = group
        group.is_in, group.position = order, position

    def _is_ripe(self, group: Group) -> bool:
        limits, (low, high) = self.config, group.times
        return (len(group.blocks) >= limits.max_blocks
                or (limits.max_job_bytes is not None and group.size_bytes >= limits.max_job_bytes)
                or 0 < limits.max_range_seconds < high - low)

    def planned(self, now: float) -> Iterator[tuple[Group, list[BlockMeta]]]:
        """Yield the blocks of each job, in the order of their first blocks."""
        overdue = takewhile(lambda item: self._is_old(next(iter(item[1].blocks.values()))[2], now),
                            self.waiting.items())
        groups = merge(self.ripe.items(), overdue)
        heap: list[tuple[int, list[BlockMeta], Group, Iterator[tuple[int, list[BlockMeta]]]]] = []
        upcoming = next(groups, None)
        while heap or upcoming is not None:
            if upcoming is not None and (not heap or upcoming[0] < heap[0][0]):
                group = upcoming[1]
                jobs = self._jobs(group, now)
                upcoming = next(groups, None)
            else:
                _, blocks, group, jobs = heappop(heap)
                yield group, blocks
            following = next(jobs, None)
            if following is not None:
                heappush(heap, (*following, group, jobs))  # positions differ, so nothing else is compared

    def _jobs(self, group: Group, now: float) -> Iterator[tuple[int, list[BlockMeta]]]:
        """Yield the jobs of a group: the position of the first block, and the blocks."""
        limits = self.config
        most_bytes, span = limits.max_job_bytes, limits.max_range_seconds
        blocks: list[BlockMeta] = []
        first, since, size, low, high = 0, 0.0, 0, 0.0, 0.0
        for block, position, queued_at in group.blocks.values():
            time = block.time
            if blocks and ((span and (time - low > span or high - time > span))
                           or (most_bytes is not None and size + block.size_bytes > most_bytes)):
                yield first, blocks
                blocks = []
            if not blocks:
                first, since, size, low, high = position, queued_at, 0, time, time
            blocks.append(block)
            size, low, high = size + block.size_bytes, min(low, time), max(high, time)
            if len(blocks) >= limits.max_blocks or (most_bytes is not None and size >= most_bytes):
                yield first, blocks
                blocks = []
        if blocks and self._is_old(since, now):
            yield first, blocks

    def _is_old(self, since: float, now: float) -> bool:
        # Also with a time of a leader whose clock was fast: else its blocks would hold up all that arrived later.
        return self.config.max_age_seconds > 0 and not 0 <= now - since <= self.config.max_age_seconds


class BlockQueue:
    """The compaction queue. Deterministic: equal calls give equal states.

    Args:
        levels: the limits of each level that is compacted.

    Attributes:
        levels: with their groups.
        pushed: the number of blocks that were ever queued.
    """

    def __init__(self, levels: Sequence[LevelConfig]) -> None:
        self.levels: list[QueueLevel] = [QueueLevel(config) for config in levels]
        self.pushed: int = 0

    def __len__(self) -> int:
        # O(levels).
        return sum(level.blocks for level in self.levels)

    def push(self, block: BlockMeta, now: float, position: int | None = None) -> bool:
        """Queue a block; return `False` if its level is not compacted, or it is queued already. O(log groups).

        Args:
            block: the block to compact.
            now: the time of the command, seconds.
            position: the position of a stored block; a new block is the last.
        """
        key = block.place
        if block.level >= len(self.levels) or self.holds(key, block.id):
            return False
        if position is None:
            position = self.pushed = self.pushed + 1
        level, time = self.levels[block.level], block.time
        group = level.groups.get(key)
        if group is None:
            group = level.groups[key] = Group(key, times=(time, time))
        group.blocks[block.id] = block, position, now
        group.size_bytes += block.size_bytes
        group.times = min(group.times[0], time), max(group.times[1], time)
        level.blocks += 1
        level.put(group)
        return True

    def remove(self, key: Key, block_ids: Iterable[str]) -> None:
        """Remove the known ones of these blocks. O(blocks + log groups), and the rest of the key if it is no job."""
        level = self.levels[key[2]] if key[2] < len(self.levels) else None
        group = None if level is None else level.groups.get(key)
        if level is None or group is None:
            return
        for block_id in block_ids:
            found = group.blocks.pop(block_id, None)
            if found is not None:
                level.blocks -= 1
                group.size_bytes -= found[0].size_bytes
        if group.blocks:
            if len(group.blocks) < level.config.max_blocks:
                times = [block.time for block, _, _ in group.blocks.values()]
                group.times = min(times), max(times)
            level.put(group)
        else:
            assert group.is_in is not None, "it had blocks"
            del group.is_in[group.position], level.groups[key]

    def holds(self, key: Key, block_id: str) -> bool:
        """Return whether the block is queued under this key."""
        group = self.levels[key[2]].groups.get(key) if key[2] < len(self.levels) else None
        return group is not None and block_id in group.blocks

    def planned_jobs(self, now: float) -> Iterator[JobPlan]:
        """Yield disjoint jobs; the queue must not change during the iteration. O(blocks + log keys) for each job.

        Args:
            now: the time of the command, seconds.
        """
        for number, level in enumerate(self.levels):
            for group, blocks in level.planned(now):
                tenant, shard, _ = group.key
                ids = tuple(block.id for block in blocks)
                yield JobPlan(name=job_name(tenant, shard, number, ids), tenant=tenant, shard=shard,
                              compaction_level=number, source_blocks=ids,
                              size_bytes=sum(block.size_bytes for block in blocks))

    def dump(self) -> tuple[tuple[str, int, str, int, float], ...]:
        """Return tenant, shard, id, position and time of each block, for `push`. O(blocks)."""
        return tuple((*group.key[:2], block_id, position, queued_at) for level in self.levels
                     for group in level.groups.values() for block_id, (_, position, queued_at) in group.blocks.items())


def job_name(tenant: str, shard: int, level: int, source_blocks: Sequence[str]) -> str:
    """Return `<hash>-T<tenant>-S<shard>-L<level>`, with 8 bytes of BLAKE2b over the ids, each after its length."""
    digest = hashlib.blake2b(digest_size=8)
    for block in source_blocks:
        encoded = block.encode()
        digest.update(len(encoded).to_bytes(8, "little") + encoded)
    return f"{digest.hexdigest()}-T{tenant}-S{shard}-L{level}"
