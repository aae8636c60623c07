# SPDX-License-Identifier: Apache-2.0
"""A model of the planner: slow, and easy to check by eye."""

from __future__ import annotations

import attrs

from compactlib.scheduler import SchedulerConfig
from compactlib.scheduler.queue.block_groups import Batch
from compactlib.scheduler.queue.block_queue import BlockQueue


@attrs.frozen
class Block:
    """What the test has pushed."""

    id: str
    key: tuple[str, int, int]
    time: float
    size: int
    at: float


def model_jobs(queue: BlockQueue, config: SchedulerConfig, now: float) -> list[list[str]]:
    """The sources of every job that a plan gives, walking over all batches in the order of arrival."""
    jobs: list[list[str]] = []
    for number, limits in enumerate(config.levels):
        everything = queue.batches(number)
        visited: set[tuple[tuple[str, int, int], str]] = set()
        for batch in everything:
            rewind = True
            while rewind:
                rewind = False
                later = [other for other in everything if other.group is batch.group
                         and other.sequence >= batch.sequence]
                job, force, last = _walk(later, visited, config, number)
                complete = bool(job) and (len(job) >= limits.max_blocks or force == "cut")
                aged = bool(limits.max_age_seconds) and now - batch.created_at > limits.max_age_seconds
                if job and (complete or aged):
                    jobs.append(job)
                    rewind = last is not None
    return jobs


def _walk(later: list[Batch], visited: set[tuple[tuple[str, int, int], str]], config: SchedulerConfig,
          number: int) -> tuple[list[str], str, Batch | None]:
    """The blocks of one job, why it ended, and the batch that goes on after it."""
    limits = config.levels[number]
    job: list[str] = []
    times: list[float] = []
    size = 0
    for batch in later:
        for place, block in enumerate(batch.slots):
            if block is None or (batch.group.key, block.id) in visited:
                continue
            span = limits.max_range_seconds
            if job and span and max([*times, block.time]) - min([*times, block.time]) > span:
                return job, "cut", batch
            if job and limits.max_job_bytes is not None and size + block.size_bytes > limits.max_job_bytes:
                return job, "cut", batch
            visited.add((batch.group.key, block.id))
            job.append(block.id)
            times.append(block.time)
            size += block.size_bytes
            if len(job) >= limits.max_blocks or (limits.max_job_bytes is not None and size >= limits.max_job_bytes):
                return job, "cut", batch if place + 1 < len(batch.slots) else None
    return job, "ran out", None
