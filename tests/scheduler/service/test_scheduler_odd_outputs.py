# SPDX-License-Identifier: Apache-2.0
"""Workers and hosts that name what is known already: outputs with ids that others have, blocks that are added again,
also while a job or one in quarantine has them. Whatever they say, each block is in one place, and both ways to carry a
poll out end alike (`Host` looks after each call)."""

from __future__ import annotations

import random
from typing import Literal

import pytest

from compactlib.scheduler import (
    AddBlocks,
    BlockMeta,
    CompactedBlocks,
    JobPlan,
    JobStatus,
    LevelConfig,
    NoOutput,
    Requeue,
    Retain,
    SchedulerConfig,
    SchedulerService,
    StatusUpdate,
)
from tests.harness.effort import Effort
from tests.scheduler.build import Host

IDS = 12
STATUSES = [JobStatus.IN_PROGRESS, JobStatus.SUCCESS, JobStatus.SUCCESS, JobStatus.FAILED, JobStatus.RELEASED]


class Life:
    """Some calls of a scheduler, with few ids for all blocks."""

    def __init__(self, rng: random.Random, index: Literal["default"] | None) -> None:
        config = SchedulerConfig(
            levels=tuple(LevelConfig(max_blocks=rng.randint(1, 3), max_age_seconds=rng.choice([0, 5]))
                         for _ in range(rng.randint(1, 3))), max_failures=rng.choice([0, 1, 2]),
            max_queue_size=rng.choice([0, 2]), max_quarantine_size=rng.choice([2, 100]), backoff_seconds=0.0,
            cleanup_delay_seconds=rng.choice([0.0, 20.0]))
        self.host = Host(config) if index else Host(config, SchedulerService(config, index=None))
        self.rng = rng
        self.held: list[tuple[JobPlan, int]] = []
        self.written = 0

    def step(self) -> None:
        rng, host = self.rng, self.host
        host.now += rng.choice([0.0, 1.0, 20.0])
        choice = rng.random()
        if choice < 0.3:
            host.apply(AddBlocks(tuple(self.block("t", rng.randint(0, 2)) for _ in range(rng.randint(1, 4)))))
        elif choice < 0.35:
            host.apply(Requeue((*host.service.state.quarantine, "nobody")[:rng.randint(1, 3)]))
        elif choice < 0.38:
            host.apply(Retain(float(rng.randint(0, 120_000))))
        else:
            updates = [self.said() for _ in range(rng.randint(0, 2))] if self.held else []
            response = host.poll(rng.randint(0, 3), *updates)
            tokens = {assignment.name: assignment.token for assignment in response.assignments}
            self.held += [(plan, tokens[plan.name]) for plan in response.compaction_jobs]

    def block(self, tenant: str, level: int, *, is_output: bool = False) -> BlockMeta:
        number, index = self.rng.randrange(IDS), self.host.service.state.index
        if is_output and index is not None and index.get(tenant, 1, f"b{number}") is None:
            # No worker gives an id again that retention has removed.
            self.written += 1
            return BlockMeta(id=f"new {self.written}", tenant=tenant, shard=1, level=level, min_time=0.0,
                             max_time=50_000.0)
        return BlockMeta(id=f"b{number}", tenant=tenant, shard=1, level=level, min_time=3000.0 * number,
                         max_time=50_000.0)

    def said(self) -> StatusUpdate:
        (plan, token), status = self.rng.choice(self.held), self.rng.choice(STATUSES)
        if status is not JobStatus.SUCCESS:
            return StatusUpdate(plan.name, token, status)
        nothing = self.rng.choice([None, None, NoOutput.EMPTY, NoOutput.MISSING])
        blocks = () if nothing else (self.block(plan.tenant, plan.compaction_level + 1, is_output=True),)
        return StatusUpdate(plan.name, token, status, CompactedBlocks(
            tenant=plan.tenant, shard=plan.shard, source_blocks=plan.source_blocks, new_blocks=blocks,
            no_output=nothing))


@pytest.mark.parametrize("index", ["default", None])
def test_whatever_is_named_again_each_block_is_in_one_place(index: Literal["default"] | None, effort: Effort) -> None:
    for seed in range(effort(15, 3_000)):
        life = Life(random.Random(seed), index)
        for _ in range(80):
            life.step()
