# SPDX-License-Identifier: Apache-2.0
"""The planner: cases with known answers, and what is ours."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, strategies as st

from compactlib.scheduler import LevelConfig, SchedulerConfig
from compactlib.scheduler.model.poll import Verdict
from compactlib.scheduler.model.update import BlocksAdded
from compactlib.scheduler.model.values import BlockEntry, BlockTombstones
from compactlib.scheduler.plan.planner import PlanCursor, job_name
from compactlib.scheduler.queue.block_queue import NO_TIME, BlockQueue, ulid_seconds
from tests.scheduler.build import (
    CFG3,
    Host,
    S,
    at_once,
    batches,
    cursor,
    drained,
    levels,
    output,
    planned,
    push,
    queue_of,
    say,
)
from tests.scheduler.plan.model_planner import Block, model_jobs

KEYS = {"A0": ("A", 0, 0), "A1": ("A", 1, 0), "B2": ("B", 2, 0)}
ARRIVAL = ["A0", "B2", "A1", "A1", "B2", "A1", "B2", "A0", "A1", "A0", "B2", "A1"]


def named(tenant: str, shard: int, level: int, sources: list[str]) -> tuple[str, list[str]]:
    """Name and sources of a job, as `planned` gives them."""
    return job_name(tenant, shard, level, sources), sources


FIRST_THREE = [named("A", 1, 0, ["2", "3", "5"]), named("B", 2, 0, ["1", "4", "6"]),
               named("A", 0, 0, ["0", "7", "9"])]


def arrived(*keys: str) -> BlockQueue:
    queue = queue_of()
    for number, key in enumerate(keys):
        push(queue, KEYS[key], number)
    return queue


def test_jobs_of_one_level_in_the_order_of_arrival() -> None:
    assert planned(arrived(*ARRIVAL)) == FIRST_THREE


def test_a_later_plan_gives_the_same_jobs_and_new_ones() -> None:
    queue = arrived(*ARRIVAL, "B2", "A1", "B2")
    assert planned(queue) == [*FIRST_THREE, named("A", 1, 0, ["8", "11", "13"]),
                              named("B", 2, 0, ["10", "12", "14"])]


def test_lower_levels_come_first() -> None:
    queue = queue_of()
    for number, key in enumerate([("B", 2, 1), ("A", 1, 0), ("A", 1, 0), ("B", 2, 1), ("A", 1, 0)]):
        push(queue, key, number)
    assert planned(queue) == [named("A", 1, 0, ["1", "2", "4"]),
                              named("B", 2, 1, ["0", "3"])]


def test_nothing_comes_of_nothing() -> None:
    queue = queue_of()
    assert planned(queue) == []
    push(queue, ("A", 1, 1), 0)
    assert planned(queue) == []
    push(queue, ("A", 1, 1), 1)
    assert planned(queue) == [named("A", 1, 1, ["0", "1"])]


def test_a_batch_with_holes_borrows_from_the_next() -> None:
    queue = arrived(*["A1", "B2"] * 3)
    queue.remove(KEYS["A1"], "0")
    queue.remove(KEYS["A1"], "4")
    assert planned(queue) == [named("B", 2, 0, ["1", "3", "5"])]
    push(queue, KEYS["A1"], 6, 7, 8)
    assert planned(queue) == [named("A", 1, 0, ["2", "6", "7"]),
                              named("B", 2, 0, ["1", "3", "5"])]


def test_a_batch_without_blocks_gives_no_job() -> None:
    queue = arrived("A1", "A1", "A1")
    for number in range(3):
        queue.remove(KEYS["A1"], str(number))
    assert planned(queue) == []


def test_old_batches_become_jobs_of_one_block() -> None:
    config = at_once(levels=levels((5, 5), (5, 5)), cleanup_batch_size=0)
    queue = queue_of(config)
    push(queue, ("A", 1, 0), 1, at=10)
    push(queue, ("B", 0, 0), 2, at=20)
    push(queue, ("A", 1, 0), 3, at=30)
    assert planned(queue, config, 40) == [named("A", 1, 0, ["1"]), named("B", 0, 0, ["2"])]
    assert queue.staged(("A", 1, 0)) == ("3",)


def ulid(seconds: float, tail: int = 0) -> str:
    value = round(seconds * 1000) << 80 | tail
    return "".join("0123456789ABCDEFGHJKMNPQRSTVWXYZ"[value >> shift & 31] for shift in range(125, -1, -5))


def test_blocks_too_far_apart_in_time_are_not_joined() -> None:
    config = at_once(cleanup_batch_size=0)
    queue = queue_of(config)
    start = 1727049615.0  # 2024-09-23T00:00:15Z
    times = [start + 15 * number for number in range(10)]
    times += [times[-1] + 6 * 3600 + 15 * number for number in range(5)]
    for number, at in enumerate(times):
        push(queue, ("A", 1, 0), ulid(at, number), at=at)
    assert list(map(len, batches(queue))) == [4, 4, 3, 4]
    jobs = planned(queue, config, times[-1])
    assert [len(sources) for _, sources in jobs] == [10, 5]
    assert jobs[1][1] == [ulid(at, number) for number, at in enumerate(times)][10:]


def test_removing_staged_blocks_harms_no_other_key() -> None:
    queue = queue_of()
    push(queue, ("X", 1, 0), 1, 2, 3)
    plan = cursor(queue)
    assert plan.next_job() is not None
    push(queue, ("Y", 1, 0), 4, 5)
    queue.remove(("Y", 1, 0), "4")
    queue.remove(("Y", 1, 0), "5")
    assert len(planned(queue)) == 1
    assert plan.next_job() is None


def test_blocks_that_became_jobs_leave_the_queue_once() -> None:
    queue = queue_of()
    push(queue, ("A", 0, 0), *range(10))
    jobs = drained(cursor(queue))
    assert [list(job.source_blocks) for job in jobs] == [["0", "1", "2"], ["3", "4", "5"], ["6", "7", "8"]]
    removed = [queue.remove(("A", 0, 0), block_id) for _ in range(2) for job in jobs for block_id in job.source_blocks]
    assert removed == [True] * 9 + [False] * 9
    assert planned(queue) == []


def test_a_loaded_queue_plans_what_the_stored_one_did() -> None:
    queue = queue_of()
    push(queue, ("A", 0, 0), *range(4))
    again = queue_of()
    for row in queue.dump():
        again.load(row)
    assert planned(again) == planned(queue) == [named("A", 0, 0, ["0", "1", "2"])]


# -------------------------------------------------------------------------------------------------------------- ours


def test_a_job_takes_no_block_that_brings_it_over_its_bytes_except_the_first() -> None:
    config = SchedulerConfig(levels=(LevelConfig(max_blocks=5, max_job_bytes=100),))
    queue = BlockQueue(config.levels)
    for number, size in enumerate((250, 60, 50, 40, 99, 2, 99)):
        queue.push(BlockEntry(index=1, appended_at=0, id=str(number), tenant="A", shard=1, level=0, size_bytes=size))
    assert [sources for _, sources in planned(queue, config)] == [["0"], ["1"], ["2", "3"], ["4"], ["5"]]


def test_each_level_has_its_own_limit_of_time() -> None:
    config = SchedulerConfig(levels=(LevelConfig(max_blocks=2, max_range_seconds=10),
                                     LevelConfig(max_blocks=2, max_range_seconds=100)))
    queue = BlockQueue(config.levels)
    for level in (0, 1):
        for number, time in enumerate((0.0, 50.0)):
            queue.push(BlockEntry(index=1, appended_at=0, id=f"{level}{number}", tenant="A", shard=1, level=level,
                                  time=time))
    assert [sources for _, sources in planned(queue, config)] == [["00"], ["10", "11"]]


def test_a_job_name_is_the_same_on_every_replica() -> None:
    assert job_name("A", 1, 0, ["2", "6", "7"]) == "61d8e106d0697271-TA-S1-L0"
    assert job_name("A", 1, 0, ["26", "7"]) != job_name("A", 1, 0, ["2", "67"])


@pytest.mark.parametrize("block_id", ["", "abc", "8" + "0" * 25, "0" * 25 + "U", "I" * 26, "0" * 27])
def test_an_id_that_is_no_ulid_has_no_time(block_id: str) -> None:
    assert ulid_seconds(block_id) == NO_TIME


@given(st.floats(0, 2e9))
def test_the_time_of_a_ulid(seconds: float) -> None:
    assert ulid_seconds(ulid(seconds)) == round(seconds * 1000) / 1000
    assert ulid_seconds(ulid(seconds).lower()) == round(seconds * 1000) / 1000


@given(st.integers(0, 10**6))
def test_the_planner_gives_what_the_plain_model_gives(seed: int) -> None:
    rng = random.Random(seed)
    config = SchedulerConfig(levels=tuple(
        LevelConfig(max_blocks=rng.randint(1, 4), max_age_seconds=rng.choice([0, 0, 5, 20]),
                    max_range_seconds=rng.choice([0, 30]), max_job_bytes=rng.choice([None, 12]))
        for _ in range(2)), cleanup_batch_size=0)
    queue, model = BlockQueue(config.levels), []
    now = 100.0
    for number in range(rng.randint(1, 60)):
        now += rng.choice([0, 1, 1, 7])
        block = Block(str(number), (rng.choice("AB"), rng.randrange(2), rng.randrange(2)), now + rng.choice([0, 0, 40]),
                      rng.randint(0, 5), now)
        model.append(block)
        queue.push(BlockEntry(index=1, appended_at=now, id=block.id, tenant=block.key[0], shard=block.key[1],
                              level=block.key[2], time=block.time, size_bytes=block.size))
        if rng.random() < 0.2:
            gone = model[rng.randrange(len(model))]
            queue.remove(gone.key, gone.id)
        if rng.random() < 0.1:
            queue.tick(now)
        queue.audit()
    for at in (now, now + 6, now + 1000, now - 30):
        expected = model_jobs(queue, config, at)
        assert [list(job.source_blocks) for job in drained(PlanCursor(queue, config, at))] == expected
    assert planned(queue, CFG3, now) == planned(queue, CFG3, now)


def test_jobs_whose_sources_read_the_same_one_after_the_other_are_two() -> None:
    host = Host(SchedulerConfig(levels=(LevelConfig(max_blocks=2),)))
    for pair in (("1", "23"), ("12", "3")):
        host.add(*pair)
        answer = host.assigned()
        assert answer.compaction_jobs[0].source_blocks == pair
        done = host.poll(0, say(answer, S, results=output(answer.compaction_jobs[0], f"of {pair}")))
        assert done.answers[0].verdict is Verdict.ACCEPTED
    waiting = [entry.tombstone for entry in host.service.state.tombstones]
    assert [each.blocks for each in waiting if isinstance(each, BlockTombstones)] == [("1", "23"), ("12", "3")]
    assert host.add("12") == BlocksAdded(tombstoned=("12",))


def test_jobs_whose_sources_read_the_same_wait_side_by_side() -> None:
    host = Host(SchedulerConfig(levels=(LevelConfig(max_blocks=2),)))
    host.add("1", "23", "12", "3")
    for _ in range(2):
        host.poll(2)
    assert sorted(job.source_blocks for job in host.service.state.jobs) == [("1", "23"), ("12", "3")]
