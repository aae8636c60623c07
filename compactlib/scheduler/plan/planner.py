# SPDX-License-Identifier: Apache-2.0
"""Cuts the flushed blocks of the queue into jobs, small levels first; changes nothing.

A job takes blocks of one tenant, shard and level in the order of arrival, until it is full, or the next block does not
fit by its bytes or its time. What is left of a key becomes a job only once its oldest batch is too old to wait.

See `docs/design/scheduler.md` for how Pyroscope does it, and for the differences.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from compactlib.scheduler.config import LevelConfig, SchedulerConfig
from compactlib.scheduler.model.values import JobPlan, Tombstone
from compactlib.scheduler.queue.block_groups import Batch, Group, QueuedBlock, QueueLevel
from compactlib.scheduler.queue.block_queue import BlockQueue


def job_name(tenant: str, shard: int, level: int, source_blocks: Sequence[str]) -> str:
    """Return `<hash>-T<tenant>-S<shard>-L<level>`, with 8 bytes of BLAKE2b over the ids, each after its length."""
    digest = hashlib.blake2b(digest_size=8)
    for block in source_blocks:
        encoded = block.encode()
        digest.update(len(encoded).to_bytes(8, "little") + encoded)
    return f"{digest.hexdigest()}-T{tenant}-S{shard}-L{level}"


class PlanCursor:
    """Successive, disjoint jobs out of a queue that must not change meanwhile. A fresh one gives the same jobs again.

    Args:
        queue: what is planned.
        config: levels and tombstone limits.
        now: the time of the command, seconds.
        tombstones: those that are due, in their order; each rides on one job at most.
    """

    def __init__(self, queue: BlockQueue, config: SchedulerConfig, now: float,
                 tombstones: Iterable[Tombstone] = ()) -> None:
        self._config = config
        self._now = now
        self._tombstones = iter(tombstones)
        self._streams: dict[Group, _Stream] = {}
        self._candidates = iter(self._all_candidates(queue))
        self._current: tuple[QueueLevel, Batch] | None = None

    def next_job(self) -> JobPlan | None:
        """The next job, or `None` when no more can be made. O(its blocks + log batches)."""
        while True:
            candidate = self._current or next(self._candidates, None)
            self._current = None
            if candidate is None:
                return None
            level, batch = candidate
            group = batch.group
            stream = self._streams.get(group)
            if stream is None:
                stream = self._streams[group] = _Stream(group)
            blocks = _cut(stream, level.config, self._now - batch.created_at)
            if blocks:
                # The rest of a batch that was cut into goes on with the same key.
                self._current = candidate if stream.is_inside_batch() else None
                return self._job(group, blocks)

    def _job(self, group: Group, blocks: list[QueuedBlock]) -> JobPlan:
        tenant, shard, level = group.key
        ids = tuple(block.id for block in blocks)
        config = self._config
        riding: tuple[Tombstone, ...] = ()
        if config.cleanup_min_level <= level <= config.cleanup_max_level:
            riding = tuple(islice(self._tombstones, config.cleanup_batch_size))
        return JobPlan(name=job_name(tenant, shard, level, ids), tenant=tenant, shard=shard, compaction_level=level,
                       source_blocks=ids, tombstones=riding, size_bytes=sum(block.size_bytes for block in blocks))

    def _all_candidates(self, queue: BlockQueue) -> Iterator[tuple[QueueLevel, Batch]]:
        """Levels ascending; in a level, batches of ripe keys and the oldest batches of overdue ones by arrival."""
        for level in queue.levels:
            overdue = sorted((group.flushed[0] for group in level.due(self._now)), key=lambda batch: batch.sequence)
            late = iter(overdue)
            next_late = next(late, None)
            for batch in level.arrival.values():
                while next_late is not None and next_late.sequence < batch.sequence:
                    yield level, next_late
                    next_late = next(late, None)
                yield level, batch
            while next_late is not None:
                yield level, next_late
                next_late = next(late, None)


class _Stream:
    """The live blocks of a key's flushed batches, oldest first, one look ahead."""

    def __init__(self, group: Group) -> None:
        self._batches = iter(group.flushed)
        self._slots: list[QueuedBlock | None] = []
        self._place = 0

    def peek(self) -> QueuedBlock | None:
        """The next block, or `None` at the end."""
        while True:
            while self._place < len(self._slots):
                block = self._slots[self._place]
                if block is not None:
                    return block
                self._place += 1
            batch = next(self._batches, None)
            if batch is None:
                return None
            self._slots, self._place = batch.slots, 0

    def advance(self) -> None:
        self._place += 1

    def is_inside_batch(self) -> bool:
        """Whether the batch of the last block goes on after it."""
        return self._place < len(self._slots)


def _cut(stream: _Stream, limits: LevelConfig, age: float) -> list[QueuedBlock]:
    """The blocks of the next job, or none; what does not make a job is passed over."""
    blocks: list[QueuedBlock] = []
    size, low, high = 0, 0.0, 0.0
    while (block := stream.peek()) is not None:
        if not blocks:
            low = high = block.time
        elif _does_not_fit(block, limits, size, low, high):
            return blocks
        stream.advance()
        blocks.append(block)
        size += block.size_bytes
        low, high = min(low, block.time), max(high, block.time)
        if len(blocks) >= limits.max_blocks or (limits.max_job_bytes is not None and size >= limits.max_job_bytes):
            return blocks
    return blocks if limits.max_age_seconds and age > limits.max_age_seconds else []


def _does_not_fit(block: QueuedBlock, limits: LevelConfig, size: int, low: float, high: float) -> bool:
    span = limits.max_range_seconds
    if span and (block.time - low > span or high - block.time > span):
        return True
    return limits.max_job_bytes is not None and size + block.size_bytes > limits.max_job_bytes
