# SPDX-License-Identifier: Apache-2.0
"""Retention removes blocks by their times. A block without times is not old."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from compactlib.clock import ManualClock
from compactlib.commandlog import KVLog
from compactlib.errors import InvalidInput
from compactlib.kv import SnapshotStore, SqliteStore
from compactlib.scheduler import (
    BlockMeta,
    CompactedBlocks,
    LevelConfig,
    PollRequest,
    RunningJob,
    Scheduler,
    SchedulerConfig,
    Worker,
)
from tests.harness.scheduler_audit import audit

NOW = 1_790_000_000.0
DAY = 86_400.0
PAIRS = SchedulerConfig(levels=(LevelConfig(max_blocks=2),))


def opened(kept: SqliteStore, clock: ManualClock) -> Scheduler:
    return Scheduler(KVLog(kept, clock=clock), SnapshotStore(kept), PAIRS)


def blocks_of(scheduler: Scheduler, start: float = -math.inf, end: float = math.inf) -> list[BlockMeta]:
    return scheduler.read(lambda machine: list(machine.index.blocks(start=start, end=end)))


def names_of(scheduler: Scheduler) -> set[str]:
    return {block.id for block in blocks_of(scheduler)}


def block(name: str, time: float | None = None, *, tenant: str = "acme") -> BlockMeta:
    return BlockMeta(id=name, tenant=tenant, shard=7, level=1, min_time=time, max_time=time)


@pytest.fixture
def kept(tmp_path: Path) -> SqliteStore:
    return SqliteStore(tmp_path / "state")


def test_retention_keeps_a_block_without_times(kept: SqliteStore) -> None:
    scheduler = opened(kept, ManualClock(NOW))
    scheduler.add_blocks((BlockMeta(id="untold", tenant="acme", shard=7, level=1), block("old", NOW - 9 * DAY),
                               block("new", NOW)))
    scheduler.retain(NOW - 7 * DAY)
    assert names_of(scheduler) == {"untold", "new"}
    scheduler.retain(NOW + 7 * DAY)
    assert names_of(scheduler) == {"untold"}


def test_a_block_without_times_is_added_after_a_retention(kept: SqliteStore) -> None:
    scheduler = opened(kept, ManualClock(NOW))
    scheduler.add_blocks((block("old", NOW - 9 * DAY),))
    scheduler.retain(NOW - 7 * DAY)
    scheduler.add_blocks((block("untold"), block("late", NOW - 9 * DAY)))
    assert names_of(scheduler) == {"untold"}


def test_a_block_without_times_stays_without_times_after_opening(kept: SqliteStore) -> None:
    scheduler = opened(kept, ManualClock(NOW))
    scheduler.add_blocks((block("untold"), block("epoch", 0.0)))
    scheduler = opened(kept, ManualClock(NOW))
    found = {each.id: (each.min_time, each.max_time) for each in blocks_of(scheduler)}
    assert found == {"untold": (None, None), "epoch": (0.0, 0.0)}
    scheduler.retain(NOW)
    assert names_of(scheduler) == {"untold"}


def test_a_block_without_times_is_found_in_any_span(kept: SqliteStore) -> None:
    scheduler = opened(kept, ManualClock(NOW))
    scheduler.add_blocks((block("untold"), block("a", 10.0), block("b", 90_000.0)))
    assert [each.id for each in blocks_of(scheduler, start=80_000.0)] == ["b", "untold"]
    assert [each.id for each in blocks_of(scheduler, end=20.0)] == ["a", "untold"]
    scheduler.read(audit)


def test_retention_removes_old_blocks_but_none_of_several_tenants(kept: SqliteStore) -> None:
    scheduler = opened(kept, ManualClock(NOW))
    scheduler.add_blocks((block("mixed", tenant=""), block("old", NOW - 9 * DAY)))
    scheduler.retain(NOW - 7 * DAY)
    assert names_of(scheduler) == {"mixed"}


def test_a_block_that_retention_removed_is_in_no_later_job(kept: SqliteStore) -> None:
    scheduler = opened(kept, ManualClock(NOW))
    scheduler.add_blocks(BlockMeta(id=name, tenant="acme", shard=7, level=0, min_time=time, max_time=time)
                         for name, time in (("old", NOW - 9 * DAY), ("new", NOW)))
    scheduler.configure(SchedulerConfig(levels=(LevelConfig(max_blocks=1),)))
    assert scheduler.retain(NOW - 7 * DAY).blocks == 1
    scheduler.read(audit)
    scheduler.poll(PollRequest(job_capacity=9))
    assert [plan.source_blocks for plan in scheduler.poll(PollRequest(job_capacity=9)).compaction_jobs] == [("new",)]


def test_a_block_has_both_times_or_neither() -> None:
    with pytest.raises(InvalidInput, match="give finite times, min_time <= max_time, or None for both"):
        BlockMeta(id="b", tenant="acme", shard=7, level=0, min_time=3.0)
    with pytest.raises(InvalidInput, match="or None for both"):
        BlockMeta(id="b", tenant="acme", shard=7, level=0, max_time=3.0)


def test_an_output_without_times_outlives_retention(kept: SqliteStore) -> None:
    clock = ManualClock(NOW)

    def merge(job: RunningJob) -> CompactedBlocks:
        plan = job.plan
        output = BlockMeta(id=job.output_id(), tenant=plan.tenant, shard=plan.shard, level=plan.compaction_level + 1)
        return CompactedBlocks(tenant=plan.tenant, shard=plan.shard, source_blocks=plan.source_blocks,
                               new_blocks=(output,))

    scheduler = opened(kept, clock)
    scheduler.add_blocks(tuple(BlockMeta(id=f"b{number}", tenant="acme", shard=7, level=0)
                                    for number in range(2)))
    worker = Worker(scheduler, merge, clock=clock)
    for _ in range(3):
        worker.run_pending()
        clock.advance(60.0)
    worker.stop()
    (output,) = blocks_of(scheduler)
    assert (output.level, output.min_time, output.max_time) == (1, None, None)
    scheduler.retain(NOW + DAY)
    assert names_of(scheduler) == {output.id}
