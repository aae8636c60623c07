# SPDX-License-Identifier: Apache-2.0
"""The service against a plain model, and the properties that hold for any history."""

from __future__ import annotations

import random

import attrs
import pytest
from hypothesis import given, settings, strategies as st

from compactlib.commandlog import Command
from compactlib.scheduler import (
    AddBlocks,
    AssignmentPolicy,
    BlockMeta,
    ByPriority,
    CompactedBlocks,
    FairTenants,
    LevelConfig,
    PollRequest,
    PollResponse,
    SchedulerConfig,
    SchedulerMachine,
    SmallestFirst,
    StatusUpdate,
)
from tests.harness.scheduler_audit import audit
from tests.harness.scheduler_history import SchedulerHistory, SchedulerStep, scheduler_histories
from tests.harness.steps import calls_of

CONFIG = SchedulerConfig(
    levels=(LevelConfig(max_blocks=3, max_age_seconds=20), LevelConfig(max_blocks=2, max_age_seconds=40)),
    max_failures=2, lease_seconds=10, max_queue_size=4, backoff_seconds=3, max_backoff_seconds=10,
    cleanup_delay_seconds=15, cleanup_lease_seconds=20)
AT_ONCE = SchedulerConfig(
    levels=tuple(attrs.evolve(level, max_range_seconds=40) for level in CONFIG.levels), max_queue_size=5,
    backoff_seconds=0.0)
"""No back-off, and a widest span of a job's times."""
USUAL, FAIR = ByPriority(), FairTenants({"A": 2})
POLICIES: list[AssignmentPolicy] = [USUAL, FAIR, SmallestFirst(window=2, max_wait_seconds=20.0)]


def lived_through(history: tuple[SchedulerStep, ...], policy: AssignmentPolicy) -> None:
    # At the end, a replica with another policy replays the recorded commands, and has the same state.
    world = SchedulerHistory(CONFIG, policy)
    for step in history:
        world.step(step)
    world.finish()


@settings(max_examples=30)
@given(scheduler_histories())
def test_workers_that_do_anything_at_any_time(history: tuple[SchedulerStep, ...]) -> None:
    lived_through(history, USUAL)


@settings(max_examples=20)
@given(scheduler_histories(), st.sampled_from(POLICIES[1:]))
def test_and_with_other_policies(history: tuple[SchedulerStep, ...], policy: AssignmentPolicy) -> None:
    lived_through(history, policy)


@pytest.mark.soak
@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
def test_many_long_histories(policy: AssignmentPolicy) -> None:
    @settings(max_examples=1_000, deadline=None)
    @given(scheduler_histories(max_steps=80))
    def live(history: tuple[SchedulerStep, ...]) -> None:
        lived_through(history, policy)

    live()


def random_run(seed: int, steps: int, config: SchedulerConfig = CONFIG,
               policy: AssignmentPolicy = USUAL) -> list[object]:
    """What happens to a service whose workers are random: every update, answer and state."""
    rng = random.Random(seed)
    service, now, index, blocks = SchedulerMachine(config, policy=policy), 1000.0, 0, 0
    trace: list[object] = []
    held: list[tuple[PollResponse, int]] = []
    for _ in range(steps):
        now += rng.choice([0, 0.5, 3, 12])
        index += 1
        command = Command(index, 1, now)
        if rng.random() < 0.4:
            names = [f"b{blocks + number}" for number in range(rng.randint(1, 6))]
            blocks += len(names)
            trace.append(service.carry_out(command, AddBlocks(tuple(
                BlockMeta(id=name, tenant=rng.choice("AB"), shard=rng.randrange(2), level=0) for name in names))))
            continue
        updates = []
        for response, which in rng.sample(held, min(len(held), rng.randint(0, 2))):
            plan = response.compaction_jobs[which]
            token = next(lease.token for lease in response.assignments if lease.name == plan.name)
            output = BlockMeta(id=f"{plan.name}@{token}", tenant=plan.tenant, shard=plan.shard,
                               level=plan.compaction_level + 1)
            updates.append(StatusUpdate(plan.name, token, rng.choice([1, 1, 2, 2, 3, 4]), CompactedBlocks(
                tenant=plan.tenant, shard=plan.shard, source_blocks=plan.source_blocks, new_blocks=(output,))))
        update, _ = service.prepare(command, PollRequest(tuple(updates), rng.randint(0, 3)))
        result = service.carry_out(command, update)
        answer: PollResponse = result  # type: ignore[assignment]
        trace += [update, result]
        held += [(answer, which) for which in range(len(answer.compaction_jobs))]
        audit(service)
    return [*trace, *service.jobs.phases(now), *service.quarantine.values(), *service.stats(now)]


@pytest.mark.parametrize("config", [CONFIG, AT_ONCE])
@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
def test_the_same_seed_gives_the_same_trace_three_times(config: SchedulerConfig, policy: AssignmentPolicy) -> None:
    first = random_run(11, 60, config, policy)
    assert all(random_run(11, 60, config, policy) == first for _ in range(2))
    assert random_run(12, 60, config, policy) != first


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(30))
def test_longer_runs_of_random_workers(seed: int) -> None:
    assert random_run(seed, 2000, CONFIG, POLICIES[seed % 3])


def test_the_numbers_of_a_long_queue_cost_as_much_as_those_of_a_short_one() -> None:
    machine, calls, jobs = SchedulerMachine(SchedulerConfig(max_queue_size=0, max_jobs_per_poll=1000)), [], []
    for index in range(1, 9):
        machine.carry_out(Command(2 * index, 1, 1000.0), AddBlocks(tuple(
            BlockMeta(id=f"{index:06}{number:06}", tenant="", shard=number % 10, level=0) for number in range(1000))))
        machine.poll(Command(2 * index + 1, 1, 1000.0), PollRequest((), 1000))
        calls.append(calls_of(lambda: machine.stats(1000.0)).total())
        jobs.append(len(machine.jobs))
    assert jobs[7] >= 8 * jobs[0] > 0
    assert calls[7] < calls[0] * 1.2
