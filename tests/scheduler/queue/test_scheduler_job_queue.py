# SPDX-License-Identifier: Apache-2.0
"""The queue of jobs and its parts against plain models: whatever happened before, the order is that of the states."""

from __future__ import annotations

import contextlib
import random

import attrs
import pytest
from hypothesis import given, settings, strategies as st

from compactlib.errors import CompactlibError
from compactlib.scheduler import AssignmentPolicy, ByPriority, Command, FairTenants, JobStatus, SchedulerConfig
from compactlib.scheduler.model.values import JobPhase, JobState
from compactlib.scheduler.plan.schedule import Schedule
from compactlib.scheduler.queue.due_jobs import DueJobs, due_time
from compactlib.scheduler.queue.job import Job
from compactlib.scheduler.queue.job_queue import JobQueue
from compactlib.testing.interrupts import Interrupted
from tests.scheduler.build import P, U, assigned_names, job_plan, job_state, jobs_of

CONFIG = SchedulerConfig(max_failures=3, max_queue_size=0)


@given(st.integers(0, 10**6), st.booleans())
def test_jobs_that_wait_come_out_in_order_whatever_was_renewed(seed: int, includes_end: bool) -> None:
    rng = random.Random(seed)
    waiting = DueJobs(includes_end=includes_end)
    jobs: dict[int, Job] = {}
    for number in range(rng.randint(1, 60)):
        roll = rng.random()
        if roll < 0.4 or not jobs:
            state = job_state(str(number), status=P, lease=float(rng.randint(0, 30)), sequence=number)
            jobs[number] = Job(state, job_plan(state.name))
            waiting.add((jobs[number],))
        elif roll < 0.8:
            job = rng.choice(list(jobs.values()))
            before = due_time(job)
            job.lease_expires_at = float(rng.randint(0, 40))
            if due_time(job) < before:
                waiting.hastened(job)
        else:
            waiting.remove(jobs.pop(rng.choice(list(jobs))))
        waiting.audit()
        now = float(rng.randint(0, 45))
        found = list(dict.fromkeys(job.state.sequence for job in waiting.due(now)))
        due = sorted((due_time(job), number) for number, job in jobs.items()
                     if due_time(job) < now or (includes_end and due_time(job) == now))
        assert found == [number for _, number in due]
    assert len(waiting) == len(jobs)


def model_order(states: list[JobState], config: SchedulerConfig, now: float) -> list[str]:
    """What is to be assigned at a time, as a filter and a sort."""
    able = [state for state in states if not 0 < config.max_failures <= state.failures
            and (now > state.lease_expires_at if state.status is P else now >= state.not_before)]
    return [state.name for state in sorted(able, key=lambda state: (
        state.compaction_level, state.status, state.failures,
        state.lease_expires_at if state.status is P else state.not_before,
        state.sequence))]


class ByView(ByPriority):
    """The same choice as any policy makes it, by looking at the view."""


def chosen_after_a_release(queue: JobQueue, config: SchedulerConfig, now: float, released: str,
                           policy: AssignmentPolicy, capacity: int) -> tuple[list[str], str]:
    """What is chosen once a job was given back in the same poll, and why."""
    schedule = Schedule(queue, config, Command(10_000, 1, now))
    job = queue.get(released)
    if job is not None:
        schedule.released(job.state, 0.0, "")
    given, choice = schedule.choose(policy, capacity)
    assert [item.name for item in given] == list(choice.jobs)
    return list(choice.jobs), choice.why


@settings(max_examples=40)
@given(st.integers(0, 10**6))
def test_the_order_of_assignment_is_that_of_the_states(seed: int) -> None:
    rng, config = random.Random(seed), CONFIG
    queue = JobQueue(config)
    for number in range(rng.randint(1, 80)):
        names = [job.state.name for job in queue]
        roll = rng.random()
        if roll < 0.45 or not names:
            name = f"{rng.randrange(1000)}-{number}"
            queue.add(job_state(name, rng.randrange(2), token=number, sequence=rng.randrange(1000) << 8 | number),
                      job_plan(name))
        else:
            job = queue.get(rng.choice(names))
            assert job is not None
            if roll < 0.6:
                queue.put(job, attrs.evolve(job.state, status=P, token=number, not_before=0.0,
                                            lease_expires_at=float(rng.randint(0, 30)),
                                            failures=job.state.failures + (job.state.status is P)))
            elif roll < 0.65:
                queue.assign((job,), number, float(rng.randint(0, 30)))
            elif roll < 0.75 and job.state.status is P:
                until = float(rng.randint(0, 40))
                if rng.random() < 0.5:
                    queue.extend(job, until)
                else:
                    queue.put(job, attrs.evolve(job.state, lease_expires_at=until))
            elif roll < 0.85:
                queue.put(job, attrs.evolve(job.state, status=U, token=number, lease_expires_at=0.0,
                                            failures=job.state.failures + rng.randrange(2),
                                            not_before=float(rng.choice([0, 0, 5, 25]))))
            else:
                queue.complete(job)
        queue.audit()
        now = float(rng.randint(0, 45))
        states = [job.state for job in queue]
        order = model_order(states, config, now)
        assert assigned_names(queue, config, Command(10_000, 1, now)) == order
        assert assigned_names(queue, config, Command(10_000, 1, now), ByView()) == order
        released = rng.choice(states).name if states else ""
        some = [chosen_after_a_release(queue, config, now, released, policy, 3) for policy in (ByPriority(), ByView())]
        assert some[0] == some[1]
        excluded = {state.name for state in states if queue.phase(state, now) is JobPhase.EXCLUDED}
        assert {job.state.name for job in queue.excluded(now)} == excluded


@settings(max_examples=40)
@given(st.integers(0, 10**6))
def test_turns_are_the_same_after_loading(seed: int) -> None:
    rng = random.Random(seed)
    config, policy = CONFIG, FairTenants({"A": 3, "B": 2})
    queue = JobQueue(config)
    for number in range(rng.randint(1, 60)):
        if rng.random() < 0.6:
            queue.add(job_state(str(number), sequence=number), job_plan(str(number), tenant=rng.choice("ABCD")))
            continue
        schedule = Schedule(queue, config, Command(number + 2, 1, 0.0))
        chosen, choice = schedule.choose(policy, rng.randint(1, 3))
        for job in chosen:
            queue.put(job, schedule.assignment(job).state)
        for level_number, tenant, before, after in choice.turns:
            queue.level(level_number).ready.set_turn(tenant, before, after)
        queue.audit()
        again = JobQueue(config)
        for level_number, level in queue.levels.items():
            if turns := level.ready.dump():
                again.level(level_number).ready.load(turns)
        for job in queue:
            again.restore(job.state, job.plan(), ())
        for level in again.levels.values():
            level.ready.loaded()
        again.audit()
        command = Command(10_000, 1, 0.0)
        assert assigned_names(again, config, command, policy) == assigned_names(queue, config, command, policy)
        late = job_state(f"late{number}", sequence=1000 + number), job_plan(f"late{number}", tenant="D")
        assert queue.add(*late)
        assert again.add(*late)
        assert assigned_names(again, config, command, policy) == assigned_names(queue, config, command, policy)


def test_a_tenant_that_lags_behind_still_does_after_loading() -> None:
    # Its job was spoken of in the polls in which its turn came, so it was passed over.
    config = CONFIG
    queue, again = JobQueue(config), JobQueue(config)
    for number in range(12):
        queue.add(job_state(str(number), sequence=number), job_plan(str(number), tenant="AB"[number % 2]))
    queue.level(0).ready.set_turn("A", 3 << 20, 4 << 20)
    again.level(0).ready.load(queue.level(0).ready.dump())
    for job in queue:
        again.restore(job.state, job.plan(), ())
    names = assigned_names(queue, config, Command(1, 1, 0.0), FairTenants())
    assert names[:4] == ["1", "3", "5", "7"]
    assert assigned_names(again, config, Command(1, 1, 0.0), FairTenants()) == names


def test_sources_are_known_as_long_as_a_job_has_them_beside_jobs_that_have_none() -> None:
    queue = JobQueue(CONFIG, knows_sources=True)
    plans = [attrs.evolve(job_plan(name), source_blocks=sources)
             for name, sources in (("1", ()), ("2", ()), ("3", ("a",)), ("4", ("a", "b")))]
    for number, plan in enumerate(plans[:2]):
        queue.add(job_state(plan.name, sequence=number), plan)
    jobs = list(queue)
    queue.complete(jobs[0])
    for number, plan in enumerate(plans[2:]):
        queue.add(job_state(plan.name, sequence=number), plan)
    queue.complete(jobs[1])
    assert queue.has_source("A", plans[2].shard, 0, "a")
    queue.audit()
    last = list(queue)
    queue.evict(last[1])
    queue.complete(last[0], ("a",))
    assert not queue.has_source("A", plans[2].shard, 0, "a")
    queue.audit()


def test_many_renewals_leave_no_pile_behind() -> None:
    queue = jobs_of(CONFIG, *(job_state(str(number), status=P, lease=1.0, sequence=number) for number in range(100)))
    for step in range(60):
        for job in list(queue):
            queue.put(job, attrs.evolve(job.state, lease_expires_at=float(step if step % 2 else 500 - step)))
    waiting = queue.levels[0].leased[0]
    assert (len(waiting), waiting.entries <= 2 * 100 + 64) == (100, True)
    for job in list(queue)[10:]:
        queue.complete(job)
    queue.audit()
    assert (len(waiting), waiting.entries <= 2 * 10 + 64) == (10, True)


def test_audits_find_what_is_wrong() -> None:
    queue = jobs_of(CONFIG, job_state("1"), job_state("2", status=P, lease=5.0, sequence=1), job_state("3", failures=3))
    for name, changes in (("1", {"status": P}), ("2", {"lease_expires_at": 1.0}), ("3", {"failures": 0})):
        job = queue.get(name)
        assert job is not None
        before = job.state
        job.become(attrs.evolve(before, **changes))
        if name != "1":
            with pytest.raises(CompactlibError):
                queue.audit()
        job.become(before)
        queue.audit()


def test_a_job_knows_its_sources_however_they_are_spelt() -> None:
    for sources in (("a", "b"), ("a\nb", "c"), ("",), ("a",), ()):
        plan = attrs.evolve(job_plan("x"), source_blocks=sources)
        job = Job(job_state("x"), plan)
        assert job.plan() == plan
        assert job.has_sources(sources)
        assert not job.has_sources((*sources, "z"))
        assert not job.has_sources(("\n".join(sources), "y"))
    assert JobStatus.IN_PROGRESS is P


def test_turns_that_an_interrupt_kept_from_being_made_are_made_by_the_next_who_plans() -> None:
    def planned(interrupted: Interrupted) -> list[str]:
        queue = JobQueue(CONFIG)
        for number in range(4):
            queue.add(job_state(str(number), sequence=number), job_plan(str(number), tenant="AB"[number % 2]))
        schedule = Schedule(queue, CONFIG, Command(10, 1, 0.0))
        with contextlib.suppress(KeyboardInterrupt), interrupted:
            schedule.choose(FairTenants(), 4)
        # One leaves, and is no more in any line.
        first = queue.get("0")
        assert first is not None
        queue.complete(first)
        queue.audit()
        return assigned_names(queue, CONFIG, Command(11, 1, 0.0), FairTenants())

    whole = Interrupted()
    expected = planned(whole)
    for place in range(1, whole.places + 1):
        interrupted = Interrupted(place)
        assert planned(interrupted) == expected, interrupted.where
