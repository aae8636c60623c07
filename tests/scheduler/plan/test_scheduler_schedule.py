# SPDX-License-Identifier: Apache-2.0
"""The schedule: cases with known answers, with every check switched off, and what is ours."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from compactlib.errors import InvalidInput
from compactlib.scheduler import (
    AssignmentPolicy,
    ByPriority,
    Command,
    FairTenants,
    JobStatus,
    LevelConfig,
    SchedulerConfig,
    SchedulerService,
    SmallestFirst,
)
from compactlib.scheduler.errors import BadConfig
from compactlib.scheduler.model.poll import Verdict
from compactlib.scheduler.model.update import AssignedJob, CompletedJob, EvictedJob, NewJob, PlanUpdate, UpdatedJob
from compactlib.scheduler.model.values import BlockEntry, JobPhase, JobState
from compactlib.scheduler.persistence.state_rows import dump_rows, load_rows
from compactlib.scheduler.plan.schedule import Schedule
from compactlib.scheduler.queue.job_queue import JobQueue
from tests.scheduler.build import P, S, U, assigned_names, at_once, given_out, job_plan, job_state, jobs_of

AT_ONCE = at_once(lease_seconds=10, max_failures=3)
OURS = SchedulerConfig(lease_seconds=10, max_failures=3)
AT_0 = Command(1, 1, 0.0)
AT_20 = Command(2, 1, 20.0)


def twice(queue: JobQueue, config: SchedulerConfig, command: Command) -> list[Schedule]:
    """Two schedules over one queue: what one of them does, the other one does not see."""
    return [Schedule(queue, config, command) for _ in range(2)]


def update_job(schedule: Schedule, name: str, token: int, status: int, reason: str = "") -> JobState | Verdict:
    """The job's state after a worker's update, or why it is refused."""
    job = schedule.check(name, token, status)
    return job if isinstance(job, Verdict) else schedule.updated(job.state, status, reason)


def test_renewal() -> None:
    queue = jobs_of(AT_ONCE, job_state("1", status=P))
    for schedule in twice(queue, AT_ONCE, AT_0):
        assert update_job(schedule, "1", 0, P) is Verdict.STALE_TOKEN
        assert update_job(schedule, "0", 1, P) is Verdict.NOT_FOUND
        assert update_job(schedule, "1", 1, U) is Verdict.BAD_STATUS
        assert update_job(schedule, "1", 1, P) == job_state("1", status=P, lease=10.0)
        assert update_job(schedule, "1", 1, P) is Verdict.DUPLICATE


def test_a_token_that_nobody_can_have_is_refused() -> None:
    schedule = Schedule(jobs_of(OURS, job_state("1", status=P)), OURS, AT_0)
    assert update_job(schedule, "1", 7, P) is Verdict.FUTURE_TOKEN
    assert isinstance(update_job(schedule, "1", 1, P), JobState)


def test_completion() -> None:
    queue = jobs_of(AT_ONCE, job_state("1", 1, P))
    for schedule in twice(queue, AT_ONCE, AT_0):
        assert update_job(schedule, "1", 0, S) is Verdict.STALE_TOKEN
        assert update_job(schedule, "1", 1, S) == job_state("1", 1, S)


@pytest.mark.parametrize("config", [AT_ONCE, OURS])
def test_assignment(config: SchedulerConfig) -> None:
    queue = jobs_of(config, job_state("1", 1), job_state("2", sequence=2), job_state("3", sequence=3),
                    job_state("4", status=P), job_state("5", status=P))
    for schedule in twice(queue, config, AT_0):
        found = given_out(schedule, 4)
        assert [(job.state.name, job.state.status, job.state.lease_expires_at, job.state.token)
                for job in found] == [("2", P, 10.0, 1), ("3", P, 10.0, 1), ("1", P, 10.0, 1)]


@pytest.mark.parametrize("config", [AT_ONCE, OURS])
def test_a_job_that_lost_its_worker_goes_to_another_before_higher_levels(config: SchedulerConfig) -> None:
    # A live lease does not end the level: behind it stands a job whose lease has run out.
    queue = jobs_of(config, job_state("live", status=P, lease=99.0), job_state("lost", status=P, lease=5.0, failures=1),
                    job_state("high", 1))
    assert assigned_names(queue, config, AT_20) == ["lost", "high"]


@pytest.mark.parametrize("config", [AT_ONCE, OURS])
def test_updates_come_before_assignments(config: SchedulerConfig) -> None:
    queue = jobs_of(config, *(job_state(name, status=P, sequence=int(name)) for name in "123"))
    renewing, finishing = twice(queue, config, AT_20)
    for name in "123":
        assert update_job(renewing, name, 1, P) == job_state(name, status=P, lease=30.0, sequence=int(name))
        assert isinstance(update_job(finishing, name, 1, S), JobState)
    assert given_out(renewing) == given_out(finishing) == []
    silent = Schedule(queue, config, AT_20)
    assert [(job.state.name, job.state.token, job.state.lease_expires_at, job.state.failures)
            for job in given_out(silent, 4)] == [("1", 2, 30.0, 1), ("2", 2, 30.0, 1), ("3", 2, 30.0, 1)]


@pytest.mark.parametrize("config", [AT_ONCE, OURS])
def test_new_jobs(config: SchedulerConfig) -> None:
    queue = jobs_of(config)
    for schedule in twice(queue, config, Command(1, 1, 1.0)):
        for place, name in enumerate("123"):
            new = schedule.add_job(job_plan(name))
            assert new is not None
            assert new.state == JobState(name=name, compaction_level=0, token=1, added_at=1.0,
                                         sequence=(1 << 20) + place)
        assert given_out(schedule) == []


def test_a_full_queue_takes_no_more() -> None:
    config = at_once(max_queue_size=2)
    schedule = Schedule(jobs_of(config), config, AT_0)
    assert [schedule.add_job(job_plan(name)) is not None for name in "123"] == [True, True, False]


@pytest.mark.parametrize(("limit", "evicted"), [(2, 2), (3, 1), (5, 0), (0, 0)])
def test_eviction_at_the_limit(limit: int, evicted: int) -> None:
    config = at_once(max_queue_size=limit)
    queue = jobs_of(config, *(job_state(name, status=P, failures=3) for name in "123"))
    for schedule in twice(queue, config, AT_20):
        assert sum(schedule.evict_job() is not None for _ in range(3)) == evicted


def test_room_is_made_before_the_queue_is_over_its_limit() -> None:
    config = SchedulerConfig(max_queue_size=3)
    queue = jobs_of(config, *(job_state(name, status=P, failures=3) for name in "123"))
    schedule = Schedule(queue, config, AT_20)
    for name in "45":
        assert schedule.evict_job() is not None
        assert schedule.evict_job() is None
        assert schedule.add_job(job_plan(name)) is not None


def test_applying_a_schedule() -> None:
    service = SchedulerService(at_once(), index=None)
    for name in "234":
        assert service.state.jobs.add(job_state(name, failures=3 if name == "4" else 0), job_plan(name))
    service.state.blocks.push(BlockEntry(index=1, appended_at=0, id="1-source", tenant="A", shard=1, level=0))
    queue = service.state.jobs
    before = {name: job.state for name in "234" if (job := queue.get(name)) is not None}
    update = PlanUpdate(
        index=5, term=1, now=0.0, new_jobs=(NewJob(job_state("1", token=5), job_plan("1")),),
        updated_jobs=(UpdatedJob(before["2"]),), completed_jobs=(CompletedJob(before["3"], None),),
        evicted_jobs=(EvictedJob(before["4"]),))
    service.apply(Command(5, 1, 0.0), update)
    service.audit()
    assert assigned_names(queue, service.config, Command(6, 1, 0.0)) == ["2", "1"]
    counts = queue.levels[0].counts
    assert (counts.completed, counts.evicted) == (1, 1)
    assert sorted(job.state.name for job in queue) == ["1", "2"]
    assert [job.plan.name for job in service.quarantine()] == ["4"]


def test_loaded_jobs_can_be_assigned_and_counters_start_anew() -> None:
    service = SchedulerService(AT_ONCE)
    for name in "12":
        service.state.jobs.add(job_state(name), job_plan(name))
    loaded = load_rows(dump_rows(service.state), AT_ONCE)
    loaded.audit()
    assert assigned_names(loaded.jobs, AT_ONCE, AT_0) == ["1", "2"]
    counts = loaded.jobs.levels[0].counts
    assert (counts.added, counts.completed, counts.assigned, counts.reassigned, counts.evicted) == (0, 0, 0, 0, 0)


def test_what_is_counted() -> None:
    service = SchedulerService(at_once(max_failures=5))
    queue = service.state.jobs
    queue.add(job_state("a"), job_plan("a"))
    queue.add(job_state("b", 2), job_plan("b", 2))
    job = queue.get("a")
    assert job is not None
    queue.complete(job)
    low, high = service.stats(0.0)
    assert (low["level"], low["added"], low["completed"], low["unassigned"]) == (0, 1, 1, 0)
    assert (high["level"], high["added"], high["unassigned"]) == (2, 1, 1)
    assert [level for level, _ in queue.levels.items()] == [0, 2]


def test_removing_what_is_not_there() -> None:
    queue = jobs_of(AT_ONCE)
    assert queue.get("1") is None
    queue.add(job_state("1"), job_plan("1"))
    job = queue.get("1")
    assert job is not None
    queue.complete(job)
    assert len(queue) == 0
    queue.audit()


# ------------------------------------------------------------------------------------------------- order, ours


def test_age_comes_before_the_name() -> None:
    states = [job_state("c", sequence=1), job_state("a", sequence=3), job_state("b", sequence=2)]
    assert assigned_names(jobs_of(OURS, *states), OURS, AT_0) == ["c", "b", "a"]


def test_fewer_failures_come_first_then_the_lease_that_ended_first() -> None:
    queue = jobs_of(OURS, job_state("twice", status=P, lease=1.0, failures=2),
                    job_state("later", status=P, lease=3.0, failures=1),
                    job_state("once", status=P, lease=2.0, failures=1),
                    job_state("new", sequence=9), job_state("returned", failures=1))
    assert assigned_names(queue, OURS, AT_20) == ["new", "returned", "once", "later", "twice"]


def test_the_end_of_a_lease_is_still_the_holder_s() -> None:
    queue = jobs_of(OURS, job_state("1", status=P, lease=20.0))
    assert assigned_names(queue, OURS, AT_20) == []
    assert assigned_names(queue, OURS, Command(3, 1, 20.000001)) == ["1"]


def test_a_clock_that_goes_back_makes_leases_longer_and_nothing_worse() -> None:
    queue = jobs_of(OURS, job_state("1", status=P, lease=15.0))
    assert assigned_names(queue, OURS, AT_20) == ["1"]
    assert assigned_names(queue, OURS, AT_0) == []
    assert assigned_names(queue, OURS, AT_20) == ["1"]


def test_phases_are_those_of_the_seed_s_diagram() -> None:
    queue = jobs_of(OURS)
    for state, phase in [
        (job_state("1"), JobPhase.UNASSIGNED), (job_state("1", status=P, lease=20.0), JobPhase.IN_PROGRESS),
        (job_state("1", status=P, lease=19.0), JobPhase.LEASE_EXPIRED),
        (job_state("1", status=P, lease=20.0, failures=3), JobPhase.IN_PROGRESS),
        (job_state("1", status=P, lease=19.0, failures=3), JobPhase.EXCLUDED),
        (job_state("1", failures=3), JobPhase.EXCLUDED),
    ]:
        assert queue.phase(state, 20.0) is phase


def test_an_excluded_job_waits_for_the_limit_to_be_raised() -> None:
    states = [job_state("1", status=P, failures=3), job_state("2", failures=7)]
    assert assigned_names(jobs_of(OURS, *states), OURS, AT_20) == []
    generous = SchedulerConfig(max_failures=8)
    assert assigned_names(jobs_of(generous, *states), generous, AT_20) == ["2", "1"]
    endless = SchedulerConfig(max_failures=0)
    assert assigned_names(jobs_of(endless, *states), endless, AT_20) == ["2", "1"]


def test_the_worst_excluded_job_goes_first_and_never_one_that_is_held_or_spoken_of() -> None:
    config = SchedulerConfig(max_queue_size=1)
    queue = jobs_of(config, job_state("held", status=P, lease=99.0, failures=9),
                    job_state("renewed", status=P, lease=1.0, failures=8),
                    job_state("old", status=P, lease=2.0, failures=4),
                    job_state("new", status=P, lease=3.0, failures=4),
                    job_state("three", status=P, lease=1.0, failures=3))
    schedule = Schedule(queue, config, AT_20)
    assert isinstance(update_job(schedule, "renewed", 1, P), JobState)
    gone = [schedule.evict_job() for _ in range(5)]
    assert [job and job.state.name for job in gone] == ["old", "new", "three", None, None]


# ------------------------------------------------------------------------------------------------------- fairness


def fair_queue(config: SchedulerConfig, **jobs: int) -> JobQueue:
    """So many jobs of each tenant, the first tenant's first."""
    queue = JobQueue(config)
    sequence = 0
    for tenant, count in jobs.items():
        for number in range(count):
            sequence += 1
            queue.add(job_state(f"{tenant}{number}", sequence=sequence), job_plan(f"{tenant}{number}", tenant=tenant))
    queue.audit()
    return queue


def carry_out(queue: JobQueue, schedule: Schedule, count: int, policy: AssignmentPolicy | None = None,
              shared: dict[int, int] | None = None) -> list[str]:
    """Assign jobs, and apply that."""
    jobs, choice = schedule.choose(policy or FairTenants(), count)
    assigned = [schedule.assignment(job) for job in jobs]
    for item in assigned:
        _put(queue, item)
    for level, tenant, before, after in choice.turns:
        queue.level(level).ready.set_turn(tenant, before, after)
    if shared is not None:
        shared.update(choice.shared)
    queue.audit()
    return [item.state.name for item in assigned]


def _put(queue: JobQueue, item: AssignedJob) -> None:
    job = queue.get(item.state.name)
    assert job is not None
    queue.put(job, item.state)


def test_tenants_take_turns() -> None:
    config = SchedulerConfig()
    queue = fair_queue(config, big=6, small=2, tiny=1)
    assert assigned_names(queue, config, AT_0, FairTenants()) == [
        "big0", "small0", "tiny0", "big1", "small1", "big2", "big3", "big4", "big5"]


@pytest.mark.parametrize("at_once", [1, 2, 3, 40])
def test_turns_are_weighted_and_go_on_from_poll_to_poll(at_once: int) -> None:
    config, policy = SchedulerConfig(), FairTenants({"gold": 3}, default_weight=1)
    queue = fair_queue(config, lead=40, gold=40)
    names: list[str] = []
    for number in range(40 // at_once):
        names += carry_out(queue, Schedule(queue, config, Command(number + 1, 1, 0.0)), at_once, policy)
    assert Counter(name[:4] for name in names)["gold"] == pytest.approx(len(names) * 3 / 4, abs=1)


def test_a_tenant_that_had_no_jobs_saves_up_no_turns() -> None:
    config = SchedulerConfig()
    queue = fair_queue(config, busy=30)
    carry_out(queue, Schedule(queue, config, AT_0), 20)
    for number in range(9):
        queue.add(job_state(f"late{number}", sequence=100 + number), job_plan(f"late{number}", tenant="late"))
    names = carry_out(queue, Schedule(queue, config, AT_20), 8)
    assert Counter(name[:4] for name in names) == {"busy": 4, "late": 4}


@pytest.mark.parametrize(("share", "high"), [(0.0, 0), (0.25, 10), (0.5, 20), (1.0, 40)])
def test_a_share_goes_to_higher_levels(share: float, high: int) -> None:
    config = SchedulerConfig()
    queue = jobs_of(config, *(job_state(f"{level}-{number}", level, sequence=number) for level in (0, 1)
                              for number in range(60)))
    shared: dict[int, int] = {}
    names: list[str] = []
    for number in range(20):
        schedule = Schedule(queue, config, Command(number + 1, 1, 0.0), shared)
        names += carry_out(queue, schedule, 2, ByPriority(share), shared)
    assert sum(name.startswith("1-") for name in names) == high


def test_a_share_passes_on_from_level_to_level_and_takes_nothing_from_nobody() -> None:
    config = SchedulerConfig(levels=(LevelConfig(max_blocks=1),) * 3)
    queue = jobs_of(config, *(job_state(f"{level}-{number}", level, sequence=number) for level in (0, 1, 2)
                              for number in range(8)))
    names = carry_out(queue, Schedule(queue, config, AT_0), 8, ByPriority(0.5))
    assert Counter(name[0] for name in names) == {"0": 4, "1": 2, "2": 2}
    alone = jobs_of(config, *(job_state(str(number), 1, sequence=number) for number in range(4)))
    assert len(carry_out(alone, Schedule(alone, config, AT_0), 4, ByPriority(0.5))) == 4


# --------------------------------------------------------------------------------------------------- reports of workers


def test_a_failed_job_waits_longer_each_time() -> None:
    config = SchedulerConfig(backoff_seconds=4, max_backoff_seconds=10, max_failures=5)
    waits = []
    for failures in range(4):
        schedule = Schedule(jobs_of(config, job_state("1", status=P, failures=failures)), config, AT_20)
        state = update_job(schedule, "1", 1, JobStatus.FAILED, "out of memory")
        assert isinstance(state, JobState)
        assert (state.status, state.failures, state.token, state.last_failure) == (U, failures + 1, 2, "out of memory")
        waits.append(state.not_before - 20)
        queue = jobs_of(config, state)
        assert assigned_names(queue, config, Command(3, 1, state.not_before - 0.001)) == []
        assert assigned_names(queue, config, Command(3, 1, state.not_before)) == ["1"]
    assert waits == [4, 8, 10, 10]


def test_a_released_job_may_go_at_once_and_counts_no_failure() -> None:
    queue = jobs_of(OURS, job_state("1", status=P), job_state("2", sequence=5))
    state = update_job(Schedule(queue, OURS, AT_20), "1", 1, JobStatus.RELEASED, "shutting down")
    assert isinstance(state, JobState)
    assert (state.status, state.failures, state.token, state.not_before) == (U, 0, 2, 0.0)
    job = queue.get("1")
    assert job is not None
    queue.put(job, state)
    queue.audit()
    assert assigned_names(queue, OURS, AT_20) == ["1", "2"]


@pytest.mark.parametrize("changes", [
    {"levels": ()}, {"lease_seconds": 0}, {"lease_seconds": float("inf")}, {"max_failures": -1},
    {"max_queue_size": -1}, {"max_quarantine_size": 0}, {"max_jobs_per_poll": 0}, {"max_jobs_per_poll": 1 << 20},
    {"backoff_seconds": -1}, {"cleanup_delay_seconds": float("nan")},
])
def test_a_setting_out_of_its_range_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(BadConfig):
        SchedulerConfig(**changes)  # type: ignore[arg-type]


def test_a_level_or_a_share_out_of_its_range_is_refused() -> None:
    for fields in ({"max_blocks": 0}, {"max_blocks": 1, "max_age_seconds": -1}, {"max_blocks": 1, "max_job_bytes": 0}):
        with pytest.raises(BadConfig):
            LevelConfig(**fields)
    strange: list[Callable[[], object]] = [
        lambda: FairTenants({"a": 0}), lambda: FairTenants(default_weight=0), lambda: FairTenants(5),  # type: ignore[arg-type]
        lambda: FairTenants({"a": "x"}), lambda: ByPriority(1.5), lambda: ByPriority("x"),  # type: ignore[arg-type]
        lambda: SmallestFirst(max_wait_seconds=0), lambda: SmallestFirst(window=0), lambda: SmallestFirst(window=1.5),  # type: ignore[arg-type]
        lambda: SmallestFirst(max_wait_seconds="x"), lambda: SmallestFirst(higher_level_share=-1)]  # type: ignore[arg-type]
    for make in strange:
        with pytest.raises(InvalidInput):
            make()
