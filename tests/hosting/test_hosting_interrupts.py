# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C anywhere in a scheduler's or a worker's work: nothing acknowledged is lost, and no job is kept by nobody."""

from __future__ import annotations

import contextlib
import itertools
from pathlib import Path
from typing import Any

import pytest

from compactlib.errors import Closed, Stale
from compactlib.hosting import LocalLog, SchedulerHost
from compactlib.kv import MemoryStore
from compactlib.outcome import Done
from compactlib.runtime import Budget
from compactlib.scheduler import (
    BlockMeta,
    CompactedBlocks,
    LevelConfig,
    NoOutput,
    PollRequest,
    PollResponse,
    RunningJob,
    SchedulerConfig,
    StoredScheduler,
    Worker,
)
from compactlib.testing.interrupts import interruptions
from tests.harness.effort import Effort

CONFIG = SchedulerConfig(levels=(LevelConfig(max_blocks=2),))


def block(number: int) -> BlockMeta:
    return BlockMeta(id=f"block-{number}", tenant="acme", shard=0, level=0)


def work(scheduler: SchedulerHost | StoredScheduler, added: list[int]) -> None:
    for number in range(4):
        scheduler.add_blocks([block(number)])
        added.append(number)
        scheduler.poll(PollRequest(job_capacity=1))


def check(scheduler: SchedulerHost | StoredScheduler, added: list[int]) -> None:
    assert not scheduler.add_blocks(map(block, added)).queued


def test_an_interrupt_anywhere_leaves_a_log_that_goes_on_or_is_broken_and_holds_what_was_answered(
        tmp_path: Path, effort: Effort) -> None:
    kv, numbers = MemoryStore(), itertools.count()

    def opened(number: int) -> SchedulerHost:
        return SchedulerHost(LocalLog(tmp_path / str(number)), kv, CONFIG, partition=b"%d" % number, snapshot_every=3)

    with opened(next(numbers)) as host:
        plan = list(interruptions(lambda: work(host, []), effort(60, 3_000)))
    for interrupt in plan:
        added: list[int] = []
        number = next(numbers)
        with opened(number) as host:
            with contextlib.suppress(KeyboardInterrupt), interrupt:
                work(host, added)
            with contextlib.suppress(Closed):
                check(host, added)
        with opened(number) as host:
            check(host, added)


def test_an_interrupt_anywhere_leaves_a_store_that_goes_on_or_says_that_it_cannot(effort: Effort) -> None:
    with contextlib.closing(StoredScheduler(MemoryStore(), CONFIG)) as scheduler:
        plan = list(interruptions(lambda: work(scheduler, []), effort(60, 3_000)))
    for interrupt in plan:
        added: list[int] = []
        kv = MemoryStore()
        with contextlib.closing(StoredScheduler(kv, CONFIG)) as scheduler:
            with contextlib.suppress(KeyboardInterrupt), interrupt:
                work(scheduler, added)
            with contextlib.suppress(Stale):
                check(scheduler, added)
        with contextlib.closing(StoredScheduler(kv, CONFIG)) as scheduler:
            check(scheduler, added)


def test_a_worker_that_is_interrupted_between_an_answer_and_its_job_keeps_no_job() -> None:
    class Interrupting(Budget):
        is_armed = False

        def child(self, **limits: Any) -> Budget:
            if self.is_armed:
                self.is_armed = False
                raise KeyboardInterrupt
            return super().child(**limits)

    class Arming:
        def poll(self, request: PollRequest) -> PollResponse:
            response = scheduler.poll(request)
            budget.is_armed = bool(response.compaction_jobs)
            return response

    def execute(job: RunningJob) -> CompactedBlocks:
        plan = job.plan
        return CompactedBlocks(tenant=plan.tenant, shard=plan.shard, source_blocks=plan.source_blocks,
                               no_output=NoOutput.EMPTY)

    budget = Interrupting()
    with contextlib.closing(StoredScheduler(MemoryStore(), CONFIG)) as scheduler:
        scheduler.add_blocks(map(block, range(2)))
        scheduler.poll(PollRequest(job_capacity=1))
        worker = Worker(Arming(), execute, budget=budget)
        with pytest.raises(KeyboardInterrupt):
            worker.run_pending()
        assert isinstance(worker.stop(wait_seconds=10), Done)
        other = Worker(scheduler, execute)
        other.run_pending()
        assert not other.jobs
        assert isinstance(other.stop(wait_seconds=10), Done)
        assert not list(scheduler.look(lambda service: list(service.jobs(now=0.0))))
