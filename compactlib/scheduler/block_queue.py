# SPDX-License-Identifier: Apache-2.0
"""Blocks that wait for compaction: staged per tenant, shard and level, and flushed in batches.

A block is staged under its key. The staged batch is flushed when it is full (`max_blocks`), large (`max_job_bytes`) or
old (`max_age_seconds`); each command that adds blocks and each poll flushes the old ones. Only flushed blocks are
planned. Blocks leave by `remove` alone, so that planning changes nothing.

So that planning does not read what cannot become a job yet, keys with flushed blocks are kept in two orders: *ripe*
ones (enough blocks or bytes for a job, or times too far apart for one job) by the arrival of their oldest batch, and
all others by its age.

See `docs/internals/differences.md` for how Pyroscope does it, and for the differences.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile
from typing import Any, TypeAlias

import attrs
from sortedcontainers import SortedDict

from compactlib.scheduler.config import LevelConfig
from compactlib.scheduler.values import BlockMeta

Key: TypeAlias = tuple[str, int, int]
"""Tenant, shard, level."""
Batch: TypeAlias = tuple[int, float]
"""A flushed batch: its place in the order of arrival, and the time of the command that brought its first block."""


@attrs.define
class Group:
    """Everything queued under one key."""

    key: Key
    staged: OrderedDict[str, BlockMeta] = attrs.field(factory=OrderedDict)
    staged_at: float = attrs.field(default=0.0, eq=False)
    """Time of the command that brought the first staged block, seconds."""
    staged_bytes: int = 0
    flushed: OrderedDict[str, tuple[BlockMeta, Batch]] = attrs.field(factory=OrderedDict)
    """In the order of arrival; blocks of one batch follow each other."""
    flushed_bytes: int = 0
    stands_at: tuple[SortedDict[Any, Group], Any] | None = attrs.field(default=None, eq=False)
    """The order in which planning finds it, and its key there."""

    @property
    def oldest(self) -> Batch:
        """The batch of the first flushed block; there must be one."""
        return next(iter(self.flushed.values()))[1]


@attrs.define
class QueueLevel:
    """All groups of one level, and their orders."""

    config: LevelConfig
    groups: dict[Key, Group] = attrs.field(factory=dict)
    ripe: SortedDict[int, Group] = attrs.field(factory=SortedDict)
    waiting: SortedDict[tuple[float, int], Group] = attrs.field(factory=SortedDict)
    staged: SortedDict[tuple[float, Key], Group] = attrs.field(factory=SortedDict)
    blocks: int = 0

    def overdue(self, now: float) -> list[Group]:
        """Return the groups whose oldest flushed batch is too old to wait any longer."""
        return self._older(self.waiting, now)

    def old(self, now: float) -> list[Group]:
        """Return the groups whose staged batch is too old to be filled any longer."""
        return self._older(self.staged, now)

    def _older(self, order: SortedDict[Any, Group], now: float) -> list[Group]:
        age = self.config.max_age_seconds
        return [group for _, group in takewhile(lambda item: now - item[0][0] > age, order.items())] if age else []


class BlockQueue:
    """The compaction queue: push, flush, remove. Deterministic: equal calls give equal states.

    Args:
        levels: the limits of each level that is compacted.
    """

    def __init__(self, levels: Sequence[LevelConfig]) -> None:
        self.levels: list[QueueLevel] = [QueueLevel(config) for config in levels]
        self._next_batch = 1

    def __len__(self) -> int:
        """Blocks, staged ones included. O(levels)."""
        return sum(level.blocks for level in self.levels)

    # ------------------------------------------------------------------------------------------------- changes

    def push(self, block: BlockMeta, now: float) -> bool:
        """Queue a block, and flush its batch if it is full or old; `False` if its level is not compacted, or it is
        queued already. O(log groups)."""
        level = self._level(block.level)
        if level is None:
            return False
        key = block.place
        group = level.groups.get(key)
        if group is None:
            group = level.groups[key] = Group(key)
        if block.id in group.staged or block.id in group.flushed:
            return False
        if not group.staged:
            group.staged_at = now
            level.staged[now, key] = group
        group.staged[block.id] = block
        group.staged_bytes += block.size_bytes
        level.blocks += 1
        age = level.config.max_age_seconds
        if _is_full(level.config, group) or (age and now - group.staged_at > age):
            self._flush(level, group)
        return True

    def tick(self, now: float) -> int:
        """Flush every staged batch that is too old; return how many. O(those + levels)."""
        flushed = 0
        for level in self.levels:
            for group in level.old(now):
                self._flush(level, group)
                flushed += 1
        return flushed

    def has_old(self, now: float) -> bool:
        """Whether `tick` would flush anything. O(what it would flush + levels)."""
        return any(level.old(now) for level in self.levels)

    def remove(self, key: Key, block_ids: Iterable[str]) -> None:
        """Take blocks out, those that are there; a key without blocks is forgotten. O(blocks + log groups)."""
        level = self._level(key[2])
        group = None if level is None else level.groups.get(key)
        if level is None or group is None:
            return
        for block_id in block_ids:
            staged, flushed = group.staged.pop(block_id, None), group.flushed.pop(block_id, None)
            level.blocks -= (staged is not None) + (flushed is not None)
            group.staged_bytes -= 0 if staged is None else staged.size_bytes
            group.flushed_bytes -= 0 if flushed is None else flushed[0].size_bytes
        if not group.staged:
            level.staged.pop((group.staged_at, key), None)
        self._order(level, group)
        if not group.staged and not group.flushed:
            del level.groups[key]

    def _flush(self, level: QueueLevel, group: Group) -> None:
        batch = self._next_batch, group.staged_at
        self._next_batch += 1
        del level.staged[group.staged_at, group.key]
        for block in group.staged.values():
            group.flushed[block.id] = block, batch
        group.flushed_bytes += group.staged_bytes
        group.staged.clear()
        group.staged_bytes = 0
        self._order(level, group)

    @staticmethod
    def _order(level: QueueLevel, group: Group) -> None:
        """Put the group where planning finds it; after each change of its flushed blocks."""
        if group.stands_at is not None:
            order, at = group.stands_at
            del order[at]
            group.stands_at = None
        if group.flushed:
            sequence, created_at = group.oldest
            if _is_ripe(level.config, group):
                level.ripe[sequence] = group
                group.stands_at = level.ripe, sequence
            else:
                level.waiting[created_at, sequence] = group
                group.stands_at = level.waiting, (created_at, sequence)

    # ---------------------------------------------------------------------------------------------------- views

    def _level(self, number: int) -> QueueLevel | None:
        return self.levels[number] if 0 <= number < len(self.levels) else None

    def has_flushed(self) -> bool:
        """Whether a plan might find anything at all. O(levels)."""
        return any(level.ripe or level.waiting for level in self.levels)

    def holds(self, key: Key, block_id: str) -> bool:
        """Whether the block is queued under this key, staged or flushed."""
        level = self._level(key[2])
        group = None if level is None else level.groups.get(key)
        return group is not None and (block_id in group.staged or block_id in group.flushed)

    # ---------------------------------------------------------------------------------------------- stored form

    def dump(self) -> StoredQueue:
        """Return the whole state as a value, blocks by their ids. O(blocks)."""
        groups = []
        for level in self.levels:
            for group in level.groups.values():
                batches: dict[Batch, list[str]] = {}
                for block_id, (_, batch) in group.flushed.items():
                    batches.setdefault(batch, []).append(block_id)
                groups.append(StoredGroup(
                    group.key, group.staged_at if group.staged else 0.0, tuple(group.staged),
                    tuple((*batch, tuple(ids)) for batch, ids in batches.items())))
        return StoredQueue(self._next_batch, tuple(groups))

    def load(self, stored: StoredQueue, find: Callable[[str, int, str], BlockMeta | None]) -> None:
        """Become what `dump` returned, but for levels that are configured no more; flush what is full now.

        Args:
            stored: of a queue.
            find: returns the block of a tenant, a shard and an id.

        Raises:
            ValueError: there is no such block.
        """
        self._next_batch = stored.next_batch
        for each in stored.groups:
            level = self._level(each.key[2])
            if level is None:
                continue
            group = level.groups[each.key] = Group(each.key)
            for sequence, created_at, ids in each.batches:
                for block_id in ids:
                    block = _found(find, each.key, block_id)
                    group.flushed[block_id] = block, (sequence, created_at)
                    group.flushed_bytes += block.size_bytes
            for block_id in each.staged:
                block = group.staged[block_id] = _found(find, each.key, block_id)
                group.staged_bytes += block.size_bytes
            level.blocks += len(group.staged) + len(group.flushed)
            if group.staged:
                group.staged_at = each.staged_at
                level.staged[each.staged_at, each.key] = group
            self._order(level, group)
        for level in self.levels:
            for group in level.groups.values():
                if group.staged and _is_full(level.config, group):
                    self._flush(level, group)

    def __repr__(self) -> str:
        return f"BlockQueue({len(self)} blocks in {sum(len(level.groups) for level in self.levels)} keys)"


@attrs.frozen
class StoredGroup:
    """A group as it is stored: ids of staged blocks, and of each batch its place, its time and the ids."""

    key: Key
    staged_at: float
    staged: tuple[str, ...]
    batches: tuple[tuple[int, float, tuple[str, ...]], ...]


@attrs.frozen
class StoredQueue:
    """A block queue as it is stored."""

    next_batch: int
    groups: tuple[StoredGroup, ...] = ()


def _found(find: Callable[[str, int, str], BlockMeta | None], key: Key, block_id: str) -> BlockMeta:
    block = find(key[0], key[1], block_id)
    if block is None:
        raise ValueError(f"block {block_id!r} of {key} is queued, and not in the index")
    return block


def _is_full(limits: LevelConfig, group: Group) -> bool:
    return len(group.staged) >= limits.max_blocks or (
        limits.max_job_bytes is not None and group.staged_bytes >= limits.max_job_bytes)


def _is_ripe(limits: LevelConfig, group: Group) -> bool:
    """Whether a plan would make a job of the group's oldest flushed blocks, whatever the time. O(max_blocks)."""
    if len(group.flushed) >= limits.max_blocks:
        return True
    if limits.max_job_bytes is not None and group.flushed_bytes >= limits.max_job_bytes:
        return True
    if not limits.max_range_seconds:
        return False
    times = [block.time for block, _ in group.flushed.values()]
    return max(times) - min(times) > limits.max_range_seconds
