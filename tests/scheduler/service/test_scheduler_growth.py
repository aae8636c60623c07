# SPDX-License-Identifier: Apache-2.0
"""What calls of a scheduler look at, however many jobs are queued, given up or have failed: counted, not timed."""

from __future__ import annotations

from collections import Counter

from compactlib.hosting.http.status import MAX_SHOWN, SchedulerStatus
from compactlib.runtime import RecordingObserver
from compactlib.scheduler import (
    AddBlocks,
    BlockMeta,
    Command,
    LevelConfig,
    PollRequest,
    SchedulerConfig,
    SchedulerService,
)
from compactlib.scheduler.queue.state import QuarantinedJob
from compactlib.scheduler.service.numbers import NUMBERS, levels_of
from tests.harness.steps import calls_of
from tests.scheduler.build import check_numbers, job_plan


def scraped(service: SchedulerService, now: float) -> Counter[str]:
    observer = RecordingObserver()

    def scrape() -> None:
        SchedulerStatus.of(service, now).tell(observer)
        NUMBERS.levels(observer, levels_of(service.state))

    return calls_of(scrape)


def test_a_scrape_costs_the_same_with_eight_times_the_jobs() -> None:
    costs = []
    for jobs in (2 * MAX_SHOWN, 16 * MAX_SHOWN):
        service = SchedulerService(SchedulerConfig(max_queue_size=0, max_jobs_per_poll=1 << 16), index=None)
        blocks = tuple(BlockMeta(id=f"{number:06}", tenant="", shard=1, level=0) for number in range(20 * jobs))
        for index in range(0, len(blocks), 500):
            service.apply(Command(index + 1, 1, 1000.0), AddBlocks(blocks[index:index + 500]))
        service.poll(Command(len(blocks), 1, 1000.0), PollRequest((), jobs // 2))
        service.poll(Command(len(blocks) + 1, 1, 1000.0), PollRequest((), jobs // 2))
        assert len(service.state.jobs) == jobs
        assert service.state.jobs.lease_count >= MAX_SHOWN
        check_numbers(service, 1000.0)
        costs.append(scraped(service, 1000.0).total())
    assert costs[1] <= 1.2 * costs[0]


def test_a_scrape_costs_the_same_with_eight_times_the_keys() -> None:
    costs = []
    for tenants in (100, 800):
        service = SchedulerService(SchedulerConfig())
        service.apply(Command(1, 1, 1000.0), AddBlocks(tuple(
            BlockMeta(id=f"{number:06}", tenant=f"t{number}", shard=1, level=0) for number in range(tenants))))
        costs.append(scraped(service, 1000.0).total())
    assert costs[1] <= 1.2 * costs[0]


def test_without_an_index_a_block_costs_the_same_with_eight_times_the_jobs_in_quarantine() -> None:
    costs = []
    for jobs in (100, 800):
        service = SchedulerService(SchedulerConfig(), index=None)
        for number in range(jobs):
            service.state.give_up(QuarantinedJob(plan=job_plan(f"job {number}", sources=(f"{number} a", f"{number} b")),
                                                 reason="", failures=3, since=0.0))
        service.audit()
        blocks = AddBlocks((BlockMeta(id="new", tenant="A", shard=1, level=0),))
        costs.append(calls_of(lambda: service.apply(Command(1, 1, 1000.0), blocks)).total())  # noqa: B023
    assert costs[1] <= 1.2 * costs[0]


def test_a_poll_costs_the_same_after_eight_times_the_failures() -> None:
    """Once, a job that is tried for ever left something behind for each time that it had failed."""
    service = SchedulerService(SchedulerConfig(levels=(LevelConfig(max_blocks=1),), max_failures=0))
    service.apply(Command(1, 1, 1000.0), AddBlocks((BlockMeta(id="a", tenant="A", shard=1, level=0),)))
    costs, index = [], 1
    for failures in (100, 800):
        while index <= failures:
            index += 1
            service.poll(Command(index, 1, 1000.0 + 20 * index), PollRequest((), 1))
        service.audit()
        index += 1
        command = Command(index, 1, 1000.0 + 20 * index)
        costs.append(calls_of(lambda: service.poll(command, PollRequest((), 1))).total())  # noqa: B023
    assert costs[1] <= 1.2 * costs[0]
