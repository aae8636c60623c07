# SPDX-License-Identifier: Apache-2.0
"""Which jobs are made of which blocks: batches by count, bytes and age, spans of time, levels, the queue's limit."""

from __future__ import annotations

from typing import Any

import pytest

from compactlib.clock import ManualClock
from compactlib.commandlog import KVLog
from compactlib.kv import MemoryStore, SnapshotStore
from compactlib.scheduler import (
    BlockMeta,
    CompactedBlocks,
    JobStatus,
    LevelConfig,
    NoOutput,
    PollRequest,
    Scheduler,
    SchedulerConfig,
    StatusUpdate,
)
from tests.harness.scheduler_audit import audit


class Planner:
    """A scheduler, and the jobs that it makes."""

    def __init__(self, *levels: LevelConfig, **settings: Any) -> None:
        self.clock = ManualClock(1000.0)
        self.scheduler = Scheduler(KVLog(MemoryStore(), clock=self.clock), None,
                                   SchedulerConfig(levels=levels, **settings))

    def add(self, *names: str, tenant: str = "A", shard: int = 1, level: int = 0, size_bytes: int = 0,
            time: float | None = None) -> None:
        self.scheduler.add_blocks(BlockMeta(id=name, tenant=tenant, shard=shard, level=level, size_bytes=size_bytes,
                                            min_time=time, max_time=time) for name in names)

    def plan(self) -> list[str]:
        """Make all jobs; the sources of each, in the order in which they are given out."""
        self.scheduler.poll(PollRequest(job_capacity=100))
        answer = self.scheduler.poll(PollRequest(job_capacity=100))
        return [",".join(plan.source_blocks) for plan in answer.compaction_jobs]


def test_jobs_never_mix_tenants_shards_or_levels() -> None:
    planner = Planner(LevelConfig(max_blocks=3), LevelConfig(max_blocks=2))
    for number in range(9):
        place = [("A", 1, 0), ("B", 1, 0), ("A", 2, 0)][number % 3]
        planner.add(str(number), tenant=place[0], shard=place[1], level=place[2])
    planner.add("x", "y", level=1)
    assert planner.plan() == ["0,3,6", "1,4,7", "2,5,8", "x,y"]


def test_blocks_above_the_highest_level_are_never_compacted() -> None:
    planner = Planner(LevelConfig(max_blocks=1))
    planner.add("a", level=1)
    assert planner.plan() == []
    assert planner.scheduler.status()["blocks"] == 1


def test_a_batch_that_is_not_full_waits_until_it_is_old() -> None:
    planner = Planner(LevelConfig(max_blocks=3, max_age_seconds=30.0))
    planner.add("a", "b")
    planner.clock.advance(30.0)
    assert planner.plan() == []
    planner.clock.advance(0.5)
    planner.plan()  # flushes it
    planner.scheduler.poll(PollRequest(job_capacity=0))
    assert planner.scheduler.status()["jobs"] == 1


def test_blocks_that_fill_no_job_join_later_blocks() -> None:
    planner = Planner(LevelConfig(max_blocks=3))
    planner.add("a", "b", "c", "d")
    assert planner.plan() == ["a,b,c"]
    planner.add("e", "f")
    assert planner.plan() == ["d,e,f"]


def test_a_job_exceeds_its_bytes_only_by_its_first_block() -> None:
    planner = Planner(LevelConfig(max_blocks=10, max_job_bytes=100))
    planner.add("big", size_bytes=500)
    planner.add("a", "b", size_bytes=60)
    planner.add("c", size_bytes=40)
    planner.add("d", size_bytes=60)
    assert planner.plan() == ["big", "a", "b,c"]


def test_blocks_with_distant_times_are_not_joined() -> None:
    planner = Planner(LevelConfig(max_blocks=3, max_range_seconds=100.0))
    planner.add("a", time=0.0)
    planner.add("b", time=100.0)
    planner.add("c", time=101.0)
    planner.add("d", "e", "f", time=150.0)
    assert planner.plan() == ["a,b", "c,d,e"]
    planner.scheduler.read(audit)


def test_the_age_of_a_block_without_times_is_that_of_its_ulid() -> None:
    planner = Planner(LevelConfig(max_blocks=2, max_range_seconds=10.0))
    planner.add("01J8F000000000000000000000", *(f"01J8G00000000000000000000{number}" for number in range(3)))
    assert planner.plan() == ["01J8F000000000000000000000", "01J8G000000000000000000000,01J8G000000000000000000001"]


def test_no_more_jobs_are_queued_than_the_limit() -> None:
    planner = Planner(LevelConfig(max_blocks=1), max_queue_size=2)
    planner.add("a", "b", "c")
    planner.scheduler.poll(PollRequest(job_capacity=10))
    assert planner.scheduler.status()["jobs"] == 2


def test_a_setting_for_a_level_plans_its_waiting_blocks() -> None:
    planner = Planner(LevelConfig(max_blocks=1))
    planner.add("a", "b", level=1)
    planner.scheduler.configure(SchedulerConfig(levels=(LevelConfig(max_blocks=1), LevelConfig(max_blocks=2))))
    assert planner.plan() == ["a,b"]


def test_jobs_of_a_level_that_is_compacted_no_more_are_carried_out() -> None:
    planner = Planner(LevelConfig(max_blocks=1), LevelConfig(max_blocks=1))
    planner.add("a", level=1)
    planner.scheduler.poll(PollRequest(job_capacity=1))
    planner.scheduler.configure(SchedulerConfig(levels=(LevelConfig(max_blocks=1),)))
    [plan] = planner.scheduler.poll(PollRequest(job_capacity=1)).compaction_jobs
    assert plan.source_blocks == ("a",)
    planner.scheduler.read(audit)


@pytest.mark.parametrize("status", [0, 5, 99])
def test_a_status_that_no_worker_sends_changes_nothing(status: int) -> None:
    planner = Planner(LevelConfig(max_blocks=1))
    planner.add("a")
    planner.scheduler.poll(PollRequest(job_capacity=1))
    [lease] = planner.scheduler.poll(PollRequest(job_capacity=1)).assignments
    before = planner.scheduler.status()
    answer = planner.scheduler.poll(PollRequest((StatusUpdate(lease.name, lease.token, status),)))
    assert answer.answers[0].verdict.value == "bad status"
    assert planner.scheduler.status() == before


def output(name: str = "out", *, tenant: str = "A", shard: int = 1, level: int = 1) -> BlockMeta:
    return BlockMeta(id=name, tenant=tenant, shard=shard, level=level)


@pytest.mark.parametrize(("changes", "problem"), [
    ({"tenant": "B"}, "results are for tenant 'B'"), ({"shard": 2}, "and shard 2"),
    ({"source_blocks": ("a", "x")}, "1 sources are not the job's"), ({"source_blocks": ("a", "a")}, "named twice"),
    ({"new_blocks": ()}, "give one of the two"), ({"no_output": NoOutput.EMPTY}, "give one of the two"),
    ({"source_blocks": ()}, "made of no sources"), ({"new_blocks": (output(), output())}, "a block is named twice"),
    ({"new_blocks": (output(level=2),)}, "has level 2"), ({"new_blocks": (output(shard=3),)}, "shard 3"),
    ({"new_blocks": (output(tenant="B"),)}, "of tenant 'B'")])
def test_invalid_results_count_as_a_failure_and_change_no_block(changes: dict[str, Any],
                                                                            problem: str) -> None:
    planner = Planner(LevelConfig(max_blocks=2))
    planner.add("a", "b")
    planner.scheduler.poll(PollRequest(job_capacity=1))
    [lease] = planner.scheduler.poll(PollRequest(job_capacity=1)).assignments
    results: dict[str, Any] = {"tenant": "A", "shard": 1, "source_blocks": ("a", "b"), "new_blocks": (output(),)}
    said = StatusUpdate(lease.name, lease.token, JobStatus.SUCCESS, CompactedBlocks(**{**results, **changes}))
    [answer] = planner.scheduler.poll(PollRequest((said,))).answers
    assert answer.verdict.value == "bad result"
    assert problem in answer.detail
    assert planner.scheduler.table().to_dicts()[0]["failures"] == 1
    assert planner.scheduler.read(lambda machine: [block.id for block in machine.index.blocks()]) == ["a", "b"]


def test_an_output_whose_id_waits_for_deletion_is_refused() -> None:
    planner, verdicts = Planner(LevelConfig(max_blocks=1), backoff_seconds=0.0), []
    for source, made in (("a", "out"), ("b", "a"), ("b", "new")):
        planner.add(source)
        polled = [planner.scheduler.poll(PollRequest(job_capacity=1)) for _ in range(2)]
        [lease] = [lease for answer in polled for lease in answer.assignments]
        results = CompactedBlocks(tenant="A", shard=1, source_blocks=(source,), new_blocks=(output(made),))
        said = StatusUpdate(lease.name, lease.token, JobStatus.SUCCESS, results)
        verdicts += [answer.verdict.value for answer in planner.scheduler.poll(PollRequest((said,))).answers]
    assert verdicts == ["accepted", "bad result", "accepted"]
    assert planner.scheduler.read(lambda machine: [block.id for block in machine.index.blocks()]) == ["new", "out"]
    planner.scheduler.read(audit)


@pytest.mark.parametrize("read", [("a", "b"), ("b",)])
def test_an_output_with_the_id_of_a_source_is_refused(read: tuple[str, ...]) -> None:
    """The tombstone of the source would delete the output, while the index names it."""
    planner = Planner(LevelConfig(max_blocks=2), cleanup_delay_seconds=0.0)
    planner.add("a", "b")
    polled = [planner.scheduler.poll(PollRequest(job_capacity=1)) for _ in range(2)]
    [lease] = [lease for answer in polled for lease in answer.assignments]
    results = CompactedBlocks(tenant="A", shard=1, source_blocks=read, new_blocks=(output("a"),))
    said = StatusUpdate(lease.name, lease.token, JobStatus.SUCCESS, results)
    [answer] = planner.scheduler.poll(PollRequest((said,))).answers
    planner.clock.advance(1.0)
    assert not planner.scheduler.poll(PollRequest(job_capacity=9)).tombstones
    assert answer.verdict.value == "bad result"
    assert "new block 'a' has the id of a source" in answer.detail
    assert planner.scheduler.read(lambda machine: [block.id for block in machine.index.blocks()]) == ["a", "b"]


def test_outputs_of_a_late_worker_are_left_alone() -> None:
    """Its id may be that of the present holder's output, so nothing deletes it but a sweep of unknown objects."""
    planner = Planner(LevelConfig(max_blocks=1), cleanup_delay_seconds=0.0)
    planner.add("a")
    planner.scheduler.poll(PollRequest(job_capacity=1))
    [late] = planner.scheduler.poll(PollRequest(job_capacity=1)).assignments
    planner.clock.advance(16.0)
    [present] = planner.scheduler.poll(PollRequest(job_capacity=1)).assignments
    for lease in (late, present, late):
        results = CompactedBlocks(tenant="A", shard=1, source_blocks=("a",), new_blocks=(output(),))
        planner.scheduler.poll(PollRequest((StatusUpdate(lease.name, lease.token, JobStatus.SUCCESS, results),)))
    planner.clock.advance(1.0)
    [tombstone] = planner.scheduler.poll(PollRequest(job_capacity=9)).tombstones
    assert tombstone.blocks == ("a",)
    assert planner.scheduler.read(lambda machine: [block.id for block in machine.index.blocks()]) == ["out"]


def test_a_token_that_was_never_assigned_is_refused() -> None:
    planner = Planner(LevelConfig(max_blocks=1))
    planner.add("a")
    planner.scheduler.poll(PollRequest(job_capacity=1))
    [lease] = planner.scheduler.poll(PollRequest(job_capacity=1)).assignments
    answer = planner.scheduler.poll(PollRequest((StatusUpdate(lease.name, 1 << 40, JobStatus.IN_PROGRESS),)))
    assert answer.answers[0].verdict.value == "future token"
    assert answer.assignments == ()


def test_a_success_for_an_unknown_job_frees_no_slot_and_a_renewal_does() -> None:
    planner = Planner(LevelConfig(max_blocks=1))
    planner.add("a")
    planner.scheduler.poll(PollRequest(job_capacity=1))
    for status, given in ((JobStatus.SUCCESS, 0), (JobStatus.IN_PROGRESS, 1)):
        answer = planner.scheduler.poll(PollRequest((StatusUpdate("gone", 1, status),)))
        assert len(answer.compaction_jobs) == given


def test_blocks_of_a_leader_with_a_fast_clock_hold_up_no_other_blocks() -> None:
    planner = Planner(LevelConfig(max_blocks=3, max_age_seconds=36))
    planner.clock.set_now(1000.0 + 86400)
    planner.add("fast", tenant="A")
    planner.clock.set_now(1000.0)
    planner.add("b", tenant="B")
    planner.clock.advance(37)
    assert "b" in planner.plan()


def test_a_job_that_failed_for_good_counts_for_no_silent_worker() -> None:
    seen: list[Any] = []

    class Watch:
        def event(self, name: str, /, **fields: Any) -> None:
            if name == "store_oldest_lease_seconds":
                seen.append(fields["value"])

    clock, store = ManualClock(1000.0), MemoryStore()
    scheduler = Scheduler(KVLog(store, clock=clock), SnapshotStore(store), SchedulerConfig(
        levels=(LevelConfig(max_blocks=1),), max_failures=1, lease_seconds=10), observer=Watch())
    scheduler.add_blocks([BlockMeta(id="a", tenant="A", shard=1, level=0)])
    scheduler.poll(PollRequest(job_capacity=1))
    scheduler.poll(PollRequest(job_capacity=1))
    scheduler.snapshot()
    clock.advance(11)
    scheduler.poll(PollRequest(job_capacity=1))  # the last attempt
    clock.advance(11)
    scheduler.poll(PollRequest(job_capacity=1))
    assert scheduler.status()["excluded"] == 1
    scheduler.snapshot()
    assert seen == [1000.0, None]
