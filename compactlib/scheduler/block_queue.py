"""Blocks that wait for compaction: staged per tenant, shard and level, and flushed in batches.

A block is pushed to the staging batch of its key. The batch is flushed when it is full (`max_blocks`), large
(`max_job_bytes`) or old (`max_age_seconds`); only flushed batches are planned. Blocks leave by `remove` alone, so that
planning changes nothing.

So that planning does not look at what cannot become a job yet, flushed batches are kept in two orders: those of *ripe*
keys (enough blocks or bytes for a job, times too far apart for one job, or old) by arrival, and the oldest batch of
every other key by its age.

Source: notes 1.2.
"""

from __future__ import annotations

import enum
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import attrs
from sortedcontainers import SortedDict

from compactlib.errors import CompactlibError
from compactlib.scheduler.config import LevelConfig
from compactlib.scheduler.model import BlockEntry, BlockMeta
from compactlib.scheduler.ulid import ulid_seconds

Key: TypeAlias = tuple[str, int, int]
"""Tenant, shard, level."""


class Pushed(enum.Enum):
    """What became of a pushed block."""

    QUEUED = "queued"
    DUPLICATE = "duplicate"
    TERMINAL = "terminal"
    """Its level is not compacted: nothing to do."""


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

    def __attrs_post_init__(self) -> None:
        self.staging = Batch(self)


class QueueLevel:
    """All groups of one level.

    Attributes:
        config: the level's limits.
        groups: by key, least recently pushed to first.
        arrival: the batches of ripe groups, by sequence.
        waiting: the groups that are not ripe, by the age of their oldest batch.
    """

    def __init__(self, config: LevelConfig) -> None:
        self.config = config
        self.groups: OrderedDict[Key, Group] = OrderedDict()
        self.arrival: SortedDict[int, Batch] = SortedDict()
        self.waiting: SortedDict[tuple[float, int], Group] = SortedDict()

    def due(self, now: float) -> list[Group]:
        """The groups whose oldest batch is too old to wait any longer. O(answer + log groups)."""
        if not self.waiting or not self.config.max_age_seconds:
            return []
        found: list[Group] = []
        for (created_at, _), group in self.waiting.items():
            if not now - created_at > self.config.max_age_seconds:
                break
            found.append(group)
        return found


class BlockQueue:
    """The compaction queue: push, flush, remove. Deterministic: equal calls give equal states.

    Args:
        levels: the limits of each level that is compacted.
    """

    def __init__(self, levels: Sequence[LevelConfig]) -> None:
        self.levels = [QueueLevel(config) for config in levels]
        self._next_sequence = 1
        self.rejected = 0
        self.missed = 0

    def __len__(self) -> int:
        """Blocks, staged ones included. O(keys)."""
        return sum(len(group.members) for level in self.levels for group in level.groups.values())

    # ------------------------------------------------------------------------------------------------- changes

    def push(self, entry: BlockEntry) -> Pushed:
        """Queue a block; flush its batch if it is full or old, and the least recently used one of its level if old.

        O(1), and O(log batches) if a batch is flushed.
        """
        time = ulid_seconds(entry.id) if entry.time is None else entry.time
        return self._push((entry.tenant, entry.shard, entry.level), entry.appended_at,
                          QueuedBlock(entry.id, time, entry.size_bytes))

    def push_meta(self, block: BlockMeta, now: float) -> Pushed:
        """Queue a block that the metadata index knows; its age is that of its oldest data, if it says so. As `push`."""
        time = block.min_time or ulid_seconds(block.id)
        return self._push((block.tenant, block.shard, block.level), now,
                          QueuedBlock(block.id, time, block.size_bytes))

    def _push(self, key: Key, now: float, block: QueuedBlock) -> Pushed:
        if key[2] >= len(self.levels):
            return Pushed.TERMINAL
        level = self.levels[key[2]]
        group = level.groups.get(key)
        if group is None:
            group = level.groups[key] = Group(key)
        else:
            level.groups.move_to_end(key)
        # A duplicate is a sign of life of its key as well.
        group.updated_at = now
        if block.id in group.members:
            self.rejected += 1
            self._flush_oldest(level, now)
            return Pushed.DUPLICATE
        batch = group.staging
        if not batch.live:
            batch.created_at = group.updated_at
        batch.slots.append(block)
        batch.live += 1
        batch.size_bytes += block.size_bytes
        group.members[block.id] = batch
        limits = level.config
        if (batch.live >= limits.max_blocks
                or (limits.max_age_seconds and group.updated_at - batch.created_at > limits.max_age_seconds)
                or (limits.max_job_bytes is not None and batch.size_bytes >= limits.max_job_bytes)):
            self._flush(level, group)
        self._flush_oldest(level, now)
        return Pushed.QUEUED

    def tick(self, now: float) -> int:
        """Flush every staged batch that is too old, without another push; returns how many. O(keys)."""
        flushed = 0
        for level in self.levels:
            age = level.config.max_age_seconds
            if age:
                old = [group for group in level.groups.values()
                       if group.staging.live and now - group.staging.created_at > age]
                for group in old:
                    self._flush(level, group)
                flushed += len(old)
        self.ripen(now)
        return flushed

    def ripen(self, now: float) -> None:
        """Note which keys are too old to wait, so that later plans find them at once. O(those + log keys)."""
        for level in self.levels:
            if level.waiting:
                for group in level.due(now):
                    self._make_ripe(level, group)

    def remove_all(self, key: Key, block_ids: Sequence[str]) -> None:
        """Take blocks out that are there. As `remove`, but whole batches go at once: O(blocks)."""
        level = self.levels[key[2]]
        group = level.groups[key]
        parts: dict[int, tuple[Batch, list[str]]] = {}
        for block_id in dict.fromkeys(block_ids):
            batch = group.members[block_id]
            parts.setdefault(id(batch), (batch, []))[1].append(block_id)
        for batch, ids in parts.values():
            if len(ids) < batch.live or batch is group.staging:
                for block_id in ids:
                    self.remove(key, block_id)
                continue
            for block_id in ids:
                del group.members[block_id]
            group.live -= batch.live
            group.size_bytes -= batch.size_bytes
            batch.live = batch.size_bytes = 0
            _drop(level, group, batch)
        if key in level.groups:
            self._classify(level, group)
            if not group.members:
                del level.groups[key]

    def remove(self, key: Key, block_id: str) -> bool:
        """Take a block out; a key without blocks is forgotten. Returns whether it was there. O(max_blocks)."""
        level = self.levels[key[2]] if 0 <= key[2] < len(self.levels) else None
        group = None if level is None else level.groups.get(key)
        batch = None if group is None else group.members.pop(block_id, None)
        if level is None or group is None or batch is None:
            self.missed += 1
            return False
        place = next(i for i, block in enumerate(batch.slots) if block is not None and block.id == block_id)
        block = batch.slots[place]
        assert block is not None
        batch.slots[place] = None
        batch.live -= 1
        batch.size_bytes -= block.size_bytes
        if batch is not group.staging:
            group.live -= 1
            group.size_bytes -= block.size_bytes
            if not batch.live:
                _drop(level, group, batch)
            self._classify(level, group)
        if not group.members:
            del level.groups[key]
        return True

    def _flush_oldest(self, level: QueueLevel, now: float) -> None:
        """Look at the group that was least recently pushed to, and at no other."""
        age = level.config.max_age_seconds
        if not age:
            return
        group = next(iter(level.groups.values()))
        batch = group.staging
        if now - batch.created_at > age:
            if batch.live:
                self._flush(level, group)
            group.updated_at = now
            level.groups.move_to_end(group.key)

    def _flush(self, level: QueueLevel, group: Group) -> None:
        batch = group.staging
        group.staging = Batch(group)
        batch.sequence = self._next_sequence
        self._next_sequence += 1
        self._append(level, group, batch)

    def _append(self, level: QueueLevel, group: Group, batch: Batch) -> None:
        group.flushed.append(batch)
        group.live += batch.live
        group.size_bytes += batch.size_bytes
        if group.ripe:
            level.arrival[batch.sequence] = batch
        else:
            self._classify(level, group)

    # ------------------------------------------------------------------------------- which keys planning looks at

    def _classify(self, level: QueueLevel, group: Group) -> None:
        """Put the group's flushed batches where planning will find them."""
        if not group.live:
            self._leave_orders(level, group)
        elif is_ripe(level.config, group):
            self._make_ripe(level, group)
        else:
            self._make_waiting(level, group)

    @staticmethod
    def _make_ripe(level: QueueLevel, group: Group) -> None:
        if group.waiting_as is not None:
            del level.waiting[group.waiting_as]
            group.waiting_as = None
        if not group.ripe:
            group.ripe = True
            for batch in group.flushed:
                if batch.live:
                    level.arrival[batch.sequence] = batch

    def _make_waiting(self, level: QueueLevel, group: Group) -> None:
        oldest = group.flushed[0]
        place = (oldest.created_at, oldest.sequence)
        if group.waiting_as != place:
            self._leave_orders(level, group)
            level.waiting[place] = group
            group.waiting_as = place

    @staticmethod
    def _leave_orders(level: QueueLevel, group: Group) -> None:
        if group.waiting_as is not None:
            del level.waiting[group.waiting_as]
            group.waiting_as = None
        if group.ripe:
            group.ripe = False
            for batch in group.flushed:
                if batch.live:
                    del level.arrival[batch.sequence]

    # ---------------------------------------------------------------------------------------------------- views

    def holds(self, key: Key, block_id: str) -> bool:
        """Whether the block is queued under this key, staged or flushed."""
        level = self.levels[key[2]] if 0 <= key[2] < len(self.levels) else None
        group = None if level is None else level.groups.get(key)
        return group is not None and block_id in group.members

    def batches(self, level: int) -> list[Batch]:
        """The flushed batches of a level in the order of arrival. O(batches)."""
        groups = self.levels[level].groups.values()
        return sorted((batch for group in groups for batch in group.flushed if batch.live), key=_by_sequence)

    def staged(self, key: Key) -> tuple[str, ...]:
        """The ids staged under a key, in the order of arrival."""
        group = self.levels[key[2]].groups.get(key)
        return () if group is None else tuple(block.id for block in group.staging.slots if block is not None)

    def stats(self) -> list[dict[str, int]]:
        """One row a level: blocks, keys and flushed batches. O(batches)."""
        return [{"level": number, "blocks": sum(len(group.members) for group in level.groups.values()),
                 "keys": len(level.groups), "batches": len(self.batches(number))}
                for number, level in enumerate(self.levels)]

    def audit(self) -> None:
        """Check that every count and every order says the same. O(blocks).

        Raises:
            CompactlibError: something does not; the message has the numbers.
        """
        for number, level in enumerate(self.levels):
            ripe, waiting = 0, 0
            for key, group in level.groups.items():
                _audit_group(key, number, group)
                ripe += sum(1 for batch in group.flushed if batch.live) if group.ripe else 0
                waiting += group.waiting_as is not None
                if group.live and group.ripe == (group.waiting_as is not None):
                    raise CompactlibError(f"{key}: ripe is {group.ripe}, and its place in the waiting order is "
                                          f"{group.waiting_as}; exactly one holds")
                if group.waiting_as is not None and level.waiting.get(group.waiting_as) is not group:
                    raise CompactlibError(f"{key} is not where it waits: {group.waiting_as}")
            if (len(level.arrival), len(level.waiting)) != (ripe, waiting):
                raise CompactlibError(f"level {number}: {len(level.arrival)} batches in the order of arrival for "
                                      f"{ripe} ripe ones, {len(level.waiting)} keys waiting for {waiting}")

    # ---------------------------------------------------------------------------------------------- stored form

    def dump(self) -> Iterator[list[Any]]:
        """The whole state as rows of plain values, in the order in which `load` needs them."""
        yield ["queue", self._next_sequence, self.rejected, self.missed]
        for level in self.levels:
            for group in level.groups.values():
                yield ["group", *group.key, group.updated_at, *_dump_batch(group.staging)]
                for batch in group.flushed:
                    if batch.live:
                        yield ["batch", *group.key, batch.sequence, *_dump_batch(batch)]

    def load(self, row: list[Any]) -> None:
        """Take one row of `dump`; rows of levels that are no longer configured are left out."""
        if row[0] == "queue":
            _, self._next_sequence, self.rejected, self.missed = row
            return
        key: Key = (row[1], row[2], row[3])
        if key[2] >= len(self.levels):
            return
        level = self.levels[key[2]]
        if row[0] == "group":
            group = level.groups[key] = Group(key, row[4])
            _load_batch(group.staging, row[5:])
        else:
            group = level.groups[key]
            batch = Batch(group, sequence=row[4])
            _load_batch(batch, row[5:])
            self._append(level, group, batch)

    def __repr__(self) -> str:
        return f"BlockQueue({len(self)} blocks in {sum(len(level.groups) for level in self.levels)} keys)"


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


def _drop(level: QueueLevel, group: Group, batch: Batch) -> None:
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


def _by_sequence(batch: Batch) -> int:
    return batch.sequence


def _dump_batch(batch: Batch) -> list[Any]:
    return [batch.created_at, [block and [block.id, block.time, block.size_bytes] for block in batch.slots]]


def _load_batch(batch: Batch, row: list[Any]) -> None:
    batch.created_at = row[0]
    for slot in row[1]:
        block = None if slot is None else QueuedBlock(*slot)
        batch.slots.append(block)
        if block is not None:
            batch.live += 1
            batch.size_bytes += block.size_bytes
            batch.group.members[block.id] = batch


def _audit_group(key: Key, level: int, group: Group) -> None:
    flushed = [batch for batch in group.flushed if batch.live]
    if key != group.key or key[2] != level or not group.members:
        raise CompactlibError(f"a group of {len(group.members)} blocks with key {group.key} is kept as {key}")
    if group.flushed and not group.flushed[0].live:
        raise CompactlibError(f"{key}: the first flushed batch, {group.flushed[0].sequence}, has no live blocks")
    if [batch.sequence for batch in flushed] != sorted({batch.sequence for batch in flushed}):
        raise CompactlibError(f"{key}: flushed batches are out of order")
    for batch in (*flushed, group.staging):
        blocks = [block for block in batch.slots if block is not None]
        if (len(blocks), sum(block.size_bytes for block in blocks)) != (batch.live, batch.size_bytes):
            raise CompactlibError(f"{key}: batch {batch.sequence} counts {batch.live} blocks of {batch.size_bytes} "
                                  f"bytes and has {len(blocks)}")
        if any(group.members.get(block.id) is not batch for block in blocks):
            raise CompactlibError(f"{key}: a block of batch {batch.sequence} is listed elsewhere")
    live, size = sum(batch.live for batch in flushed), sum(batch.size_bytes for batch in flushed)
    if (group.live, group.size_bytes, len(group.members)) != (live, size, live + group.staging.live):
        raise CompactlibError(f"{key} counts {group.live} flushed blocks of {group.size_bytes} bytes and "
                              f"{len(group.members)} in all; there are {live} of {size} bytes, and "
                              f"{live + group.staging.live} in all")
