# SPDX-License-Identifier: Apache-2.0
"""What a scrape of a scheduler's numbers looks at, however many jobs are queued: counted, not timed."""

from __future__ import annotations

from collections import Counter

from compactlib.hosting.http.status import MAX_SHOWN, SchedulerStatus
from compactlib.runtime.observe import RecordingObserver
from compactlib.scheduler import AddBlocks, BlockMeta, PollRequest, SchedulerConfig, SchedulerService
from compactlib.scheduler.model.values import Command
from compactlib.scheduler.service.numbers import NUMBERS, levels_of
from tests.scheduler.build import check_numbers
from tests.steps import calls_of


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
