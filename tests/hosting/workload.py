# SPDX-License-Identifier: Apache-2.0
"""A small world of blocks and workers for tests of scheduler hosts."""

from __future__ import annotations

import random
from collections import Counter
from typing import Protocol

from compactlib.scheduler import (
    BlockMeta,
    CompactedBlocks,
    JobPlan,
    JobStatus,
    LevelConfig,
    PollRequest,
    PollResponse,
    SchedulerConfig,
    StatusUpdate,
)
from compactlib.scheduler.model.poll import Verdict
from compactlib.scheduler.workers.running_job import output_block_id

CONFIG = SchedulerConfig(levels=(LevelConfig(max_blocks=2), LevelConfig(max_blocks=3)), lease_seconds=10.0)


class Scheduler(Protocol):
    """What a worker needs."""

    def poll(self, request: PollRequest) -> PollResponse:
        """See `Transport.poll`."""


def blocks(first: int, count: int) -> list[BlockMeta]:
    """New blocks of three shards."""
    return [BlockMeta(id=f"b{number}", tenant="acme", shard=number % 3, level=0, size_bytes=number)
            for number in range(first, first + count)]


def success(plan: JobPlan, token: int) -> StatusUpdate:
    """The report of a job that was done: one block, whose id names the assignment."""
    done = BlockMeta(id=output_block_id(plan, token, plan.tenant), tenant=plan.tenant, shard=plan.shard,
                     level=plan.compaction_level + 1)
    return StatusUpdate(plan.name, token, JobStatus.SUCCESS, CompactedBlocks(
        tenant=plan.tenant, shard=plan.shard, source_blocks=plan.source_blocks, new_blocks=(done,)))


class PlainWorker:
    """Takes jobs and mostly finishes them, or always if it is diligent. Not a worker for anything but tests.

    Attributes:
        completed: how often the completion of each job was accepted.
        tokens: the tokens of each job, in the order in which this worker saw them.
    """

    def __init__(self, seed: int, *, diligent: bool = False) -> None:
        self.rng = random.Random(seed)
        self.diligent = diligent
        self.held: dict[str, tuple[JobPlan, int]] = {}
        self.completed: Counter[str] = Counter()
        self.tokens: dict[str, list[int]] = {}

    def request(self) -> PollRequest:
        """The next poll: finishes some jobs, renews some, gives some up, forgets some."""
        updates = []
        for name, (plan, token) in list(self.held.items()):
            choice = 0.0 if self.diligent else self.rng.random()
            if choice < 0.6:
                updates.append(success(plan, token))
            elif choice < 0.8:
                updates.append(StatusUpdate(name, token, JobStatus.IN_PROGRESS))
            elif choice < 0.9:
                updates.append(StatusUpdate(name, token, JobStatus.FAILED, reason="bad luck"))
            else:
                del self.held[name]
        return PollRequest(tuple(updates), 3 if self.diligent else self.rng.randrange(4))

    def take(self, request: PollRequest, response: PollResponse) -> None:
        """Look at the answer."""
        for update, answer in zip(request.status_updates, response.answers, strict=True):
            assert update.name == answer.name
            if update.status is JobStatus.SUCCESS and answer.verdict is Verdict.ACCEPTED:
                self.completed[update.name] += 1
        tokens = {assignment.name: assignment.token for assignment in response.assignments}
        for name in [name for name in self.held if name not in tokens]:
            del self.held[name]
        for plan in response.compaction_jobs:
            self.held[plan.name] = plan, tokens[plan.name]
        for name, (plan, _) in list(self.held.items()):
            self.held[name] = plan, tokens[name]
            self.tokens.setdefault(name, []).append(tokens[name])

    def poll(self, scheduler: Scheduler) -> PollResponse:
        """One poll."""
        request = self.request()
        response = scheduler.poll(request)
        self.take(request, response)
        return response
