# SPDX-License-Identifier: Apache-2.0
"""Blocks that wait for compaction: staged per tenant, shard and level, and flushed in batches.

A block is pushed to the staging batch of its key. The batch is flushed when it is full (`max_blocks`), large
(`max_job_bytes`) or old (`max_age_seconds`), which each command that adds blocks and each poll looks at; only flushed
batches are planned. Blocks leave by `remove` alone, so that planning changes nothing.

So that planning does not look at what cannot become a job yet, flushed batches are kept in two orders: those of *ripe*
keys (enough blocks or bytes for a job, times too far apart for one job, or old) by arrival, and the oldest batch of
every other key by its age.

See `docs/design/scheduler.md` for how Pyroscope does it, and for the differences.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator, Sequence
from typing import Any

from compactlib.errors import AuditFailed
from compactlib.scheduler.config import LevelConfig
from compactlib.scheduler.model.values import BlockEntry, BlockMeta
from compactlib.scheduler.queue.block_groups import (
    Batch,
    Group,
    Key,
    QueuedBlock,
    QueueLevel,
    audit_group,
    drop_batch,
    dump_batch,
    is_full,
    is_ripe,
    load_batch,
)

NO_TIME = -1e-9
"""What an id without a time counts as: -1 nanosecond."""

_TIME_CHARS = 10
# The first digit holds 3 bits only: 10 digits of 5 bits are two more than a time's 48.
_ULID = re.compile("[0-7][0-9A-HJKMNP-TV-Z]{25}", re.IGNORECASE | re.ASCII)
_AS_BASE_32 = str.maketrans("JKMNPQRSTVWXYZjkmnpqrstvwxyz", "IJKLMNOPQRSTUVIJKLMNOPQRSTUV")


def ulid_seconds(block_id: str) -> float:
    """The time of a ULID in seconds since the epoch, or `NO_TIME` if it is none."""
    if not _ULID.fullmatch(block_id):
        return NO_TIME
    return int(block_id[:_TIME_CHARS].translate(_AS_BASE_32), 32) / 1000


class Pushed(enum.Enum):
    """The outcome of a pushed block."""

    QUEUED = "queued"
    DUPLICATE = "duplicate"
    TERMINAL = "terminal"
    """Its level is not compacted: nothing to do."""


class BlockQueue:
    """The compaction queue: push, flush, remove. Deterministic: equal calls give equal states.

    Args:
        levels: the limits of each level that is compacted.
    """

    def __init__(self, levels: Sequence[LevelConfig]) -> None:
        self.levels: list[QueueLevel] = [QueueLevel(config) for config in levels]
        # The others wait for as long as it takes.
        self._aging: list[QueueLevel] = [level for level in self.levels if level.config.max_age_seconds]
        self._next_sequence = 1
        self.rejected: int = 0
        self.missed: int = 0

    def __len__(self) -> int:
        """Blocks, staged ones included. O(levels)."""
        return sum(level.blocks for level in self.levels)

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
        if block.level >= len(self.levels):
            return Pushed.TERMINAL
        time = ulid_seconds(block.id) if block.min_time is None else block.min_time
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
        level.blocks += 1
        if batch.live == 1:
            level.place_staged(group)
        age = level.config.max_age_seconds
        if is_full(level.config, batch) or (age and group.updated_at - batch.created_at > age):
            self._flush(level, group)
        self._flush_oldest(level, now)
        return Pushed.QUEUED

    def tick(self, now: float) -> int:
        """Flush every staged batch that is too old, and note which keys are too old to wait, so that later plans find
        them at once; returns how many batches were flushed. O(those + log keys)."""
        flushed = 0
        for level in self._aging:
            for group in list(level.old(now)):
                self._flush(level, group)
                flushed += 1
            for group in list(level.due(now)):
                self._make_ripe(level, group)
        return flushed

    def flush_full(self) -> None:
        """Flush every staged batch that is full, as one may be under other limits than before. O(keys)."""
        for level in self.levels:
            for group in level.groups.values():
                if is_full(level.config, group.staging):
                    self._flush(level, group)

    def has_old(self, now: float) -> bool:
        """Whether `tick` would flush anything. O(levels)."""
        for level in self._aging:
            for _ in level.old(now):
                return True
        return False

    def cut(self, now: float) -> None:
        """No batch is younger than `now`, seconds. O(keys + batches)."""
        for level in self.levels:
            for group in level.groups.values():
                group.updated_at = min(group.updated_at, now)
                if group.staging.live:
                    group.staging.created_at = min(group.staging.created_at, now)
                    level.place_staged(group)
                late = [batch for batch in group.flushed if batch.created_at > now]
                if late:
                    # Its place among those that wait is that of its oldest batch.
                    self._leave_orders(level, group)
                    for batch in late:
                        batch.created_at = now
                    self._classify(level, group)

    def remove_all(self, key: Key, block_ids: Sequence[str]) -> None:
        """Take blocks out that are there, staged or flushed. As `remove`, but whole batches go at once: O(blocks)."""
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
            level.blocks -= len(ids)
            group.live -= batch.live
            group.size_bytes -= batch.size_bytes
            batch.live = batch.size_bytes = 0
            drop_batch(level, group, batch)
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
        level.blocks -= 1
        batch.live -= 1
        batch.size_bytes -= block.size_bytes
        if batch is not group.staging:
            group.live -= 1
            group.size_bytes -= block.size_bytes
            if not batch.live:
                drop_batch(level, group, batch)
            self._classify(level, group)
        elif not batch.live:
            level.place_staged(group)
        if not group.members:
            # With its last block, a staged one perhaps, it leaves the orders as well.
            self._leave_orders(level, group)
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
        level.place_staged(group)
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

    def has_flushed(self) -> bool:
        """Whether a plan might find anything at all. O(levels)."""
        for level in self.levels:  # noqa: SIM110 - a generator costs more than the look
            if level.arrival or level.waiting:
                return True
        return False

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
        return [{"level": number, "blocks": level.blocks,
                 "keys": len(level.groups), "batches": len(self.batches(number))}
                for number, level in enumerate(self.levels)]

    def audit(self) -> None:
        """Check that every count and every order says the same. O(blocks).

        Raises:
            AuditFailed: something does not; the message has the numbers.
        """
        for number, level in enumerate(self.levels):
            ripe, waiting, staged = 0, 0, 0
            for key, group in level.groups.items():
                audit_group(key, number, group)
                ripe += sum(1 for batch in group.flushed if batch.live) if group.ripe else 0
                waiting += group.waiting_as is not None
                staged += group.staging.live > 0
                if group.staging.live and level.staged.get((group.staging.created_at, key)) is not group:
                    raise AuditFailed(f"{key} is not where its staged batch is looked for: {group.staged_as}")
                if group.live and group.ripe == (group.waiting_as is not None):
                    raise AuditFailed(f"{key}: ripe is {group.ripe}, and its place in the waiting order is "
                                          f"{group.waiting_as}; exactly one holds")
                if group.waiting_as is not None and (
                        level.waiting.get(group.waiting_as) is not group
                        or group.waiting_as != (group.flushed[0].created_at, group.flushed[0].sequence)):
                    raise AuditFailed(f"{key} is not where its oldest batch waits: {group.waiting_as}")
            blocks = sum(len(group.members) for group in level.groups.values())
            if level.blocks != blocks:
                raise AuditFailed(f"level {number} counts {level.blocks} blocks, and has {blocks}")
            if (len(level.arrival), len(level.waiting), len(level.staged)) != (ripe, waiting, staged):
                raise AuditFailed(f"level {number}: {len(level.arrival)} batches in the order of arrival for {ripe} "
                                  f"ripe ones, {len(level.waiting)} keys waiting for {waiting}, {len(level.staged)} "
                                  f"with staged blocks for {staged}")

    # ---------------------------------------------------------------------------------------------- stored form

    def dump(self) -> Iterator[list[Any]]:
        """The whole state as rows of plain values, in the order in which `load` needs them."""
        yield ["queue", self._next_sequence, self.rejected, self.missed]
        for level in self.levels:
            for group in level.groups.values():
                yield ["group", *group.key, group.updated_at, *dump_batch(group.staging)]
                for batch in group.flushed:
                    if batch.live:
                        yield ["batch", *group.key, batch.sequence, *dump_batch(batch)]

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
            load_batch(group.staging, row[5:])
            level.blocks += group.staging.live
            level.place_staged(group)
        else:
            group = level.groups[key]
            batch = Batch(group, sequence=row[4])
            load_batch(batch, row[5:])
            level.blocks += batch.live
            self._append(level, group, batch)

    def __repr__(self) -> str:
        return f"BlockQueue({len(self)} blocks in {sum(len(level.groups) for level in self.levels)} keys)"


def _by_sequence(batch: Batch) -> int:
    return batch.sequence
