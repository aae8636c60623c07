# SPDX-License-Identifier: Apache-2.0
"""Cuts the flushed blocks of the queue into jobs, small levels first; changes nothing.

A job takes blocks of one tenant, shard and level in the order of arrival, until it is full, or the next block does not
fit by its bytes or its time. What is left of a key becomes a job only once its oldest batch is too old to wait. Within
a level, the key whose oldest batch arrived first comes first.

See `docs/internals/differences.md` for how Pyroscope does it, and for the differences.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush

from compactlib.scheduler.block_queue import Batch, BlockQueue, Group, QueueLevel
from compactlib.scheduler.config import LevelConfig
from compactlib.scheduler.values import BlockMeta, JobPlan


def job_name(tenant: str, shard: int, level: int, source_blocks: Sequence[str]) -> str:
    """Return `<hash>-T<tenant>-S<shard>-L<level>`, with 8 bytes of BLAKE2b over the ids, each after its length."""
    digest = hashlib.blake2b(digest_size=8)
    for block in source_blocks:
        encoded = block.encode()
        digest.update(len(encoded).to_bytes(8, "little") + encoded)
    return f"{digest.hexdigest()}-T{tenant}-S{shard}-L{level}"


def planned_jobs(queue: BlockQueue, now: float) -> Iterator[JobPlan]:
    """Yield successive, disjoint jobs out of a queue that must not change meanwhile; the same ones each time.

    O(blocks + log keys) for each job.

    Args:
        queue: what is planned.
        now: the time of the command, seconds.
    """
    for number, level in enumerate(queue.levels):
        for group, blocks in _cuts(level, now):
            tenant, shard, _ = group.key
            ids = tuple(block.id for block in blocks)
            yield JobPlan(name=job_name(tenant, shard, number, ids), tenant=tenant, shard=shard,
                          compaction_level=number, source_blocks=ids,
                          size_bytes=sum(block.size_bytes for block in blocks))


def _cuts(level: QueueLevel, now: float) -> Iterator[tuple[Group, list[BlockMeta]]]:
    """Yield the blocks of each job of a level."""
    overdue = [(group.oldest[0], group) for group in level.overdue(now)]
    # The keys that give a job, by their next batch: those that are overdue, and lazily those that are ripe.
    heap = [(sequence, _Stream(group)) for sequence, group in overdue]
    heapify(heap)
    ripe = iter(level.ripe.items())
    upcoming = next(ripe, None)
    while heap or upcoming is not None:
        if upcoming is not None and (not heap or upcoming[0] < heap[0][0]):
            heappush(heap, (upcoming[0], _Stream(upcoming[1])))
            upcoming = next(ripe, None)
        _, stream = heappop(heap)
        blocks = stream.cut(level.config, now)
        if blocks:
            yield stream.group, blocks
            if stream.next is not None:
                heappush(heap, (stream.next[1][0], stream))


class _Stream:
    """The flushed blocks of a key, oldest first, one read ahead."""

    def __init__(self, group: Group) -> None:
        self.group: Group = group
        self._blocks: Iterator[tuple[BlockMeta, Batch]] = iter(group.flushed.values())
        self.next: tuple[BlockMeta, Batch] | None = next(self._blocks, None)

    def cut(self, limits: LevelConfig, now: float) -> list[BlockMeta]:
        """Take the blocks of the next job; none if they are too few to make one yet."""
        assert self.next is not None, "it has blocks"
        created_at = self.next[1][1]
        blocks: list[BlockMeta] = []
        size, low, high = 0, 0.0, 0.0
        while self.next is not None:
            block = self.next[0]
            if not blocks:
                low = high = block.time
            elif _does_not_fit(block, limits, size, low, high):
                return blocks
            blocks.append(block)
            size += block.size_bytes
            low, high = min(low, block.time), max(high, block.time)
            self.next = next(self._blocks, None)
            if len(blocks) >= limits.max_blocks or (limits.max_job_bytes is not None and size >= limits.max_job_bytes):
                return blocks
        return blocks if limits.max_age_seconds and now - created_at > limits.max_age_seconds else []

    def __lt__(self, other: _Stream) -> bool:
        return False  # batches differ


def _does_not_fit(block: BlockMeta, limits: LevelConfig, size: int, low: float, high: float) -> bool:
    span = limits.max_range_seconds
    if span and (block.time - low > span or high - block.time > span):
        return True
    return limits.max_job_bytes is not None and size + block.size_bytes > limits.max_job_bytes
