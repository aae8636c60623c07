# SPDX-License-Identifier: Apache-2.0
"""The parts of a block queue: batches of blocks, the groups of a key, the levels with their orders."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from itertools import takewhile
from typing import Any, TypeAlias

import attrs
from sortedcontainers import SortedDict

from compactlib.errors import AuditFailed
from compactlib.scheduler.config import LevelConfig

Key: TypeAlias = tuple[str, int, int]
"""Tenant, shard, level."""


@attrs.frozen
class QueuedBlock:
    """What the queue keeps of a block."""

    id: str
    time: float
    size_bytes: int


@attrs.define(eq=False)
class Batch:
    """Blocks of one key in the order of arrival; a removed one leaves a hole.

    Attributes:
        group: the key's group.
        created_at: time of the command that brought its first block, seconds; 0 while there is none.
        sequence: its place among the flushed batches; 0 while it is staged.
        slots: the blocks and the holes.
        live: how many are blocks.
        size_bytes: of the blocks.
    """

    group: Group
    created_at: float = 0.0
    sequence: int = 0
    slots: list[QueuedBlock | None] = attrs.field(factory=list)
    live: int = 0
    size_bytes: int = 0


@attrs.define(eq=False)
class Group:
    """Everything queued under one key.

    Attributes:
        key: the key.
        updated_at: time of the last push, seconds; or of the last look at its age.
        staging: the batch that is being filled.
        flushed: batches in the order of flushing; those without live blocks are dropped from the front.
        members: id to the batch that holds it.
        live: blocks in flushed batches.
        size_bytes: of these blocks.
        dropped: about how many of `flushed` have no live blocks.
        ripe: whether its batches are in the order of arrival.
        waiting_as: its place in the order of age, if it is not ripe and has flushed blocks.
        staged_as: its place among the keys that have staged blocks.
    """

    key: Key
    updated_at: float = 0.0
    staging: Batch = attrs.field(init=False)
    flushed: deque[Batch] = attrs.field(factory=deque)
    members: dict[str, Batch] = attrs.field(factory=dict)
    live: int = 0
    size_bytes: int = 0
    dropped: int = 0
    ripe: bool = False
    waiting_as: tuple[float, int] | None = None
    staged_as: tuple[float, Key] | None = None

    def __attrs_post_init__(self) -> None:
        self.staging = Batch(self)


class QueueLevel:
    """All groups of one level.

    Attributes:
        config: the level's limits.
        blocks: how many wait, staged ones included.
        groups: by key, least recently pushed to first.
        arrival: the batches of ripe groups, by sequence.
        waiting: the groups that are not ripe, by the age of their oldest batch.
        staged: the groups with staged blocks, by the age of that batch.
    """

    def __init__(self, config: LevelConfig) -> None:
        self.config: LevelConfig = config
        self.blocks: int = 0
        self.groups: OrderedDict[Key, Group] = OrderedDict()
        self.arrival: SortedDict[int, Batch] = SortedDict()
        self.waiting: SortedDict[tuple[float, int], Group] = SortedDict()
        self.staged: SortedDict[tuple[float, Key], Group] = SortedDict()

    def due(self, now: float) -> Iterator[Group]:
        """The groups whose oldest flushed batch is too old to wait any longer. O(answer + log groups)."""
        return self._older(self.waiting, now)

    def old(self, now: float) -> Iterator[Group]:
        """The groups whose staged batch is too old to be filled any longer. O(answer + log groups)."""
        return self._older(self.staged, now)

    def _older(self, order: SortedDict[Any, Group], now: float) -> Iterator[Group]:
        age = self.config.max_age_seconds
        if not age:
            return iter(())
        return (group for _, group in takewhile(lambda item: now - item[0][0] > age, order.items()))

    def place_staged(self, group: Group) -> None:
        """Keep the group where its staged batch is looked for; after each change of that batch. O(log groups)."""
        place = (group.staging.created_at, group.key) if group.staging.live else None
        if place != group.staged_as:
            if group.staged_as is not None:
                del self.staged[group.staged_as]
            if place is not None:
                self.staged[place] = group
            group.staged_as = place


def is_full(limits: LevelConfig, batch: Batch) -> bool:
    """Whether a staged batch is to be flushed, whatever the time. O(1)."""
    return batch.live >= limits.max_blocks or (
        limits.max_job_bytes is not None and batch.size_bytes >= limits.max_job_bytes)


def is_ripe(limits: LevelConfig, group: Group) -> bool:
    """Whether a plan would make a job of the group's oldest flushed blocks, whatever the time. O(max_blocks)."""
    if group.live >= limits.max_blocks:
        return True
    if limits.max_job_bytes is not None and group.size_bytes >= limits.max_job_bytes:
        return True
    if not limits.max_range_seconds:
        return False
    times = [block.time for batch in group.flushed for block in batch.slots if block is not None]
    return max(times) - min(times) > limits.max_range_seconds


def drop_batch(level: QueueLevel, group: Group, batch: Batch) -> None:
    """Forget a flushed batch without live blocks: at once from the front, from the middle once they are many."""
    level.arrival.pop(batch.sequence, None)
    batch.slots.clear()
    while group.flushed and not group.flushed[0].live:
        group.flushed.popleft()
        group.dropped = max(0, group.dropped - 1)
    group.dropped += 1
    if group.dropped > 8 and group.dropped * 2 > len(group.flushed):
        group.flushed = deque(batch for batch in group.flushed if batch.live)
        group.dropped = 0


def dump_batch(batch: Batch) -> list[Any]:
    """A batch's fields of a stored row."""
    return [batch.created_at, [block and [block.id, block.time, block.size_bytes] for block in batch.slots]]


def load_batch(batch: Batch, row: list[Any]) -> None:
    """Fill an empty batch with the fields of a stored row."""
    batch.created_at = row[0]
    for slot in row[1]:
        block = None if slot is None else QueuedBlock(*slot)
        batch.slots.append(block)
        if block is not None:
            batch.live += 1
            batch.size_bytes += block.size_bytes
            batch.group.members[block.id] = batch


def audit_group(key: Key, level: int, group: Group) -> None:
    """Raise `AuditFailed` unless the group's counts are those of its blocks. O(blocks)."""
    flushed = [batch for batch in group.flushed if batch.live]
    if key != group.key or key[2] != level or not group.members:
        raise AuditFailed(f"a group of {len(group.members)} blocks with key {group.key} is kept as {key}")
    if group.flushed and not group.flushed[0].live:
        raise AuditFailed(f"{key}: the first flushed batch, {group.flushed[0].sequence}, has no live blocks")
    if [batch.sequence for batch in flushed] != sorted({batch.sequence for batch in flushed}):
        raise AuditFailed(f"{key}: flushed batches are out of order")
    for batch in (*flushed, group.staging):
        blocks = [block for block in batch.slots if block is not None]
        if (len(blocks), sum(block.size_bytes for block in blocks)) != (batch.live, batch.size_bytes):
            raise AuditFailed(f"{key}: batch {batch.sequence} counts {batch.live} blocks of {batch.size_bytes} "
                                  f"bytes and has {len(blocks)}")
        if any(group.members.get(block.id) is not batch for block in blocks):
            raise AuditFailed(f"{key}: a block of batch {batch.sequence} is listed elsewhere")
    live, size = sum(batch.live for batch in flushed), sum(batch.size_bytes for batch in flushed)
    if (group.live, group.size_bytes, len(group.members)) != (live, size, live + group.staging.live):
        raise AuditFailed(f"{key} counts {group.live} flushed blocks of {group.size_bytes} bytes and "
                              f"{len(group.members)} in all; there are {live} of {size} bytes, and "
                              f"{live + group.staging.live} in all")
