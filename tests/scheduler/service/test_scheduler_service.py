# SPDX-License-Identifier: Apache-2.0
"""The service: two phases, answers, results against plans, quarantine, cleanup, retention."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Literal

import attrs
import pytest

from compactlib.runtime import Observer, RecordingObserver
from compactlib.scheduler import (
    AddBlocks,
    BlockMeta,
    Command,
    CompactedBlocks,
    FairTenants,
    JobPlan,
    JobStatus,
    LevelConfig,
    NoOutput,
    PollRequest,
    PollResponse,
    Requeue,
    Retain,
    SchedulerConfig,
    SchedulerService,
    StatusUpdate,
    Tick,
)
from compactlib.scheduler.errors import JobNotFound
from compactlib.scheduler.model.poll import Verdict
from compactlib.scheduler.model.update import (
    AlreadyApplied,
    Applied,
    AssignedJob,
    BlocksAdded,
    CompletedJob,
    PlanUpdate,
    Requeued,
    Retained,
    TermChanged,
    Ticked,
)
from compactlib.scheduler.model.values import BlockTombstones, JobPhase, ShardTombstone
from compactlib.scheduler.persistence.state_rows import dump_rows, load_rows
from compactlib.scheduler.queue.state import QuarantinedJob
from tests.scheduler.build import Host, P, S, at_once, job_plan, job_state, output, say

PAIRS = SchedulerConfig(levels=(LevelConfig(max_blocks=2), LevelConfig(max_blocks=2, max_age_seconds=50)),
                        cleanup_delay_seconds=60, max_failures=2)


def with_job(config: SchedulerConfig = PAIRS) -> tuple[Host, PollResponse]:
    """A host with one job, of the blocks a and b, and the poll that assigned it."""
    host = Host(config)
    host.add("a", "b")
    return host, host.assigned()


# ------------------------------------------------------------------------------------------------------- two phases


def test_one_completion_and_one_assignment_in_one_poll() -> None:
    host = Host(PAIRS)
    host.add("a", "b", "c", "d")
    host.poll(2)
    first = host.poll(1)
    host.index = 40
    command = host.command()
    request = PollRequest((say(first, S, results=output(first.compaction_jobs[0], "x")),), 1)
    update = host.service.prepare(command, request)
    assert (update.index, update.term) == (41, 1)
    assert [done.compacted_blocks for done in update.completed_jobs] == [output(first.compaction_jobs[0], "x")]
    applied = host.service.apply(command, update)
    assert isinstance(applied, Applied)
    assert [job.source_blocks for job in applied.response.compaction_jobs] == [("c", "d")]
    assert [lease.token for lease in applied.response.assignments] == [41]
    host.audit()


def test_an_update_of_another_term_changes_nothing_and_says_so() -> None:
    host, response = with_job()
    prepared = host.service.prepare(host.command(), PollRequest((say(response, P),), 1))
    before = list(dump_rows(host.service.state))[1:]
    host.term = 2
    assert host.apply(prepared) == TermChanged(prepared=1, found=2)
    assert list(dump_rows(host.service.state))[1:] == before


@pytest.mark.parametrize(("said", "told", "left"), [
    ([P, S], ["accepted", "duplicate"], 1), ([S, P], ["accepted", "duplicate"], 0),
    ([S, S], ["accepted", "duplicate"], 0), ([P, S, S], ["accepted", "duplicate", "duplicate"], 1),
    ([JobStatus.FAILED, S], ["accepted", "duplicate"], 1), ([P, JobStatus.RELEASED], ["accepted", "duplicate"], 1),
    ([JobStatus.RELEASED, JobStatus.FAILED], ["accepted", "duplicate"], 1), ([P, P], ["accepted", "duplicate"], 1),
])
def test_of_several_updates_about_one_job_each_is_told_what_became_of_it(
        said: list[JobStatus], told: list[str], left: int) -> None:
    host, response = with_job(at_once(levels=PAIRS.levels))
    results = output(response.compaction_jobs[0], "x")
    answer = host.poll(0, *(say(response, status, results=results if status is S else None) for status in said))
    assert [one.verdict.value for one in answer.answers] == told
    assert len(host.service.state.jobs) == left
    assert len({one.name for one in answer.assignments}) == (said[0] is P)
    index = host.service.state.index
    assert index is not None
    assert (index.get("A", 1, "x") is not None) == (not left)


def test_preparing_changes_nothing_and_gives_the_same_again() -> None:
    host, response = with_job()
    host.add("c", "d", "e", "f")
    before = list(dump_rows(host.service.state))
    command = host.command()
    request = PollRequest((say(response, S, results=output(response.compaction_jobs[0], "x")),), 3)
    assert host.service.prepare(command, request) == host.service.prepare(command, request)
    assert list(dump_rows(host.service.state)) == before


def said_about(rng: random.Random, plan: JobPlan, token: int) -> StatusUpdate:
    """Mostly that the worker goes on or is done, and sometimes anything."""
    new = output(plan, f"{plan.source_blocks[0]}-{rng.choice([token, token, 0])}")
    results = rng.choice([new, new, new, new, None, output(plan), attrs.evolve(new, shard=7), attrs.evolve(
        new, source_blocks=plan.source_blocks[1:]), attrs.evolve(output(plan), no_output=rng.choice([*NoOutput]))])
    status = rng.choice([P, P, P, S, S, S, S, JobStatus.FAILED, JobStatus.RELEASED])
    return StatusUpdate(plan.name, token, status, results if status is S else None)


@pytest.mark.parametrize("config", [
    PAIRS, at_once(levels=PAIRS.levels, max_failures=2), attrs.evolve(PAIRS, max_queue_size=3, tokens_above=1000)])
def test_a_poll_does_what_its_two_phases_would(config: SchedulerConfig) -> None:
    for seed in range(25):
        rng = random.Random(seed)
        host = Host(config)
        if rng.random() < 0.3:
            host.service.policy = FairTenants()
        held: list[tuple[JobPlan, int]] = []
        for number in range(40):
            host.now += rng.choice([0, 0, 0, 1, 1, 10, 20, 70])
            host.term += rng.random() < 0.03
            if rng.random() < 0.4:
                host.add(*(f"{number}-{each}" for each in range(rng.randrange(1, 5))), tenant=rng.choice("AB"))
            said = [said_about(rng, *one) for one in rng.sample(held, min(len(held), rng.randrange(4)))]
            dead = [entry.tombstone.name for entry in host.service.state.tombstones if rng.random() < 0.1]
            # Each poll is compared by the host.
            response = host.poll(rng.randrange(4), *said, *(said[:1] if rng.random() < 0.1 else ()), deleted=dead)
            tokens = {lease.name: lease.token for lease in response.assignments}
            held = [*held, *((plan, tokens[plan.name]) for plan in response.compaction_jobs)][-8:]


def test_a_command_is_applied_once() -> None:
    host = Host(PAIRS)
    command = host.command()
    host.service.apply(command, AddBlocks((BlockMeta(id="a", tenant="A", shard=1, level=0),)))
    before = list(dump_rows(host.service.state))
    assert host.service.apply(command, Tick()) == AlreadyApplied(1, 1)
    assert host.service.apply(Command(0, 1, 5.0), Tick()) == AlreadyApplied(0, 1)
    assert list(dump_rows(host.service.state)) == before


def test_an_observer_that_raises_changes_nothing_of_a_command() -> None:
    told: list[str] = []

    class Raising(Observer):
        def event(self, name: str, fields: Mapping[str, object]) -> None:
            told.append(name)
            raise ZeroDivisionError(name)

    watched, quiet = SchedulerService(PAIRS, observer=Raising()), SchedulerService(PAIRS)
    for number, time in enumerate((0.0, 1e9), start=1):
        # The second time is in doubt.
        assert watched.apply(Command(number, 1, time), Tick()) == quiet.apply(Command(number, 1, time), Tick())
    assert told == ["scheduler_time_in_doubt"]
    assert list(dump_rows(watched.state)) == list(dump_rows(quiet.state))


def test_an_update_that_is_applied_by_two_commands_does_what_one_would() -> None:
    host, response = with_job()
    host.add("c", "d", "e", "f")
    host.poll(2)
    request = PollRequest((say(response, S, results=output(response.compaction_jobs[0], "x")),), 2)
    update = host.service.prepare(host.command(), request)
    first = host.apply(update)
    before = list(dump_rows(host.service.state))[1:]
    second = host.apply(update)
    assert isinstance(first, Applied)
    assert isinstance(second, Applied)
    assert list(dump_rows(host.service.state))[1:] == before
    assert second.response.assignments == first.response.assignments
    assert second.response.compaction_jobs == first.response.compaction_jobs


def test_of_two_polls_prepared_at_once_only_one_gets_the_job() -> None:
    host = Host(PAIRS)
    host.add("a", "b")
    host.poll(1)
    updates = [host.service.prepare(host.command(), PollRequest(job_capacity=1)) for _ in range(2)]
    newer, older = host.apply(updates[1]), host.apply(updates[0])
    assert isinstance(newer, Applied)
    assert isinstance(older, Applied)
    assert ([lease.token for lease in newer.response.assignments], older.response.assignments) == ([4], ())


def test_of_two_polls_prepared_at_once_only_one_makes_the_jobs() -> None:
    host = Host(attrs.evolve(PAIRS, max_queue_size=1))
    host.add("a", "b", "c", "d")
    updates = [host.service.prepare(host.command(), PollRequest(job_capacity=1)) for _ in range(2)]
    for update in updates:
        assert len(update.new_jobs) == 1
        host.apply(update)
    assert (len(host.service.state.jobs), len(host.service.state.blocks)) == (1, 2)


def test_a_job_whose_blocks_are_gone_meanwhile_is_not_made() -> None:
    host = Host(PAIRS)
    host.add("a", "b")
    late = host.service.prepare(host.command(), PollRequest(job_capacity=1))
    response = host.assigned()
    host.poll(0, say(response, S, results=output(response.compaction_jobs[0], "x")))
    assert [job.plan.source_blocks for job in late.new_jobs] == [("a", "b")]
    host.apply(late)
    assert len(host.service.state.jobs) == 0


def test_a_renewal_that_was_overtaken_is_superseded() -> None:
    host, response = with_job()
    host.now += 100
    renewal = host.service.prepare(host.command(), PollRequest((say(response, P),)))
    taken = host.poll(1)
    assert len(taken.assignments) == 1
    late = host.apply(renewal)
    assert isinstance(late, Applied)
    assert ([one.verdict for one in late.response.answers], late.response.assignments) == ([Verdict.SUPERSEDED], ())
    assert host.service.job(taken.assignments[0].name)[0].token == taken.assignments[0].token


def test_a_completion_that_was_overtaken_is_superseded_and_its_outputs_are_remembered() -> None:
    host, response = with_job()
    plan = response.compaction_jobs[0]
    host.now += 100
    late = host.service.prepare(host.command(), PollRequest((say(response, S, results=output(plan, "late")),)))
    taken = host.poll(1)
    applied = host.apply(late)
    assert isinstance(applied, Applied)
    assert [one.verdict for one in applied.response.answers] == [Verdict.SUPERSEDED]
    assert host.service.job(plan.name)[0].token == taken.assignments[0].token
    host.poll(0, say(taken, S, results=output(plan, "good")))
    assert host.service.state.tombstones.exists("A", 1, "late")
    assert not host.service.state.tombstones.exists("A", 1, "good")


def test_a_completion_is_superseded_if_its_output_was_given_up_meanwhile() -> None:
    host, response = with_job()
    plan = response.compaction_jobs[0]
    prepared = host.service.prepare(host.command(), PollRequest((say(response, S, results=output(plan, "x")),)))
    host.service.state.tombstones.add(host.command(), BlockTombstones(name="t", tenant="A", shard=1, level=1,
                                                                      blocks=("x",)))
    applied = host.apply(prepared)
    assert isinstance(applied, Applied)
    assert [one.verdict for one in applied.response.answers] == [Verdict.SUPERSEDED]
    assert host.service.job(plan.name)[0].status is P


def test_an_eviction_is_left_out_if_the_job_was_renewed_meanwhile() -> None:
    host = Host(attrs.evolve(PAIRS, max_queue_size=1, max_failures=1))
    host.add("a", "b", "c", "d")
    first = host.assigned()
    host.now += 100
    last = host.poll(1)
    host.now += 100
    evicting = host.service.prepare(host.command(), PollRequest(job_capacity=1))
    assert [gone.state.name for gone in evicting.evicted_jobs] == [first.compaction_jobs[0].name]
    renewed = host.poll(0, say(last, P))
    assert len(renewed.assignments) == 1
    host.apply(evicting)
    assert [phase for phase, _ in host.service.jobs(host.now)] == [JobPhase.IN_PROGRESS]
    assert host.service.quarantine() == ()


def test_a_well_formed_update_about_nothing_that_exists_does_nothing() -> None:
    host = Host(PAIRS)
    ghost, plan = job_state("ghost", status=P), job_plan("ghost")
    update = host.service.prepare(host.command(), PollRequest())
    full = attrs.evolve(update, assigned_jobs=(AssignedJob(ghost, ghost, plan),),
                        completed_jobs=(CompletedJob(ghost, output(plan, "x")),), deleted_tombstones=("t",),
                        shared=((7, 3),), turns=((7, "t", 2, 3),))
    result = host.apply(full)
    assert isinstance(result, Applied)
    assert (result.response.assignments, len(host.service.state.jobs)) == ((), 0)


@pytest.mark.parametrize("named", [("c", "d"), ("b", "a"), ("a", "c"), ()], ids=str)
def test_a_recorded_completion_takes_the_job_s_own_sources_along_whatever_it_names(named: tuple[str, ...]) -> None:
    """A host's log may hold one that nobody has held against the job; without an index the jobs alone know of blocks.
    """
    host = Host(service=SchedulerService(PAIRS, index=None))
    host.add("a", "b", "c", "d")
    response = host.assigned(2)
    plan = response.compaction_jobs[0]
    assert plan.source_blocks == ("a", "b")
    update = host.service.prepare(host.command(), PollRequest((say(response, S, results=output(plan, "x")),)))
    done = update.completed_jobs[0]
    results = attrs.evolve(output(plan, "x"), source_blocks=named)
    host.apply(attrs.evolve(update, completed_jobs=(attrs.evolve(done, compacted_blocks=results),)))
    jobs = host.service.state.jobs
    assert [jobs.has_source("A", 1, 0, block_id) for block_id in "abcd"] == [False, False, True, True]


# ----------------------------------------------------------------------------------------------------------- answers


def test_each_update_is_answered_in_its_place_with_the_holder_s_deadline() -> None:
    host = Host(PAIRS)
    host.add("a", "b", "c", "d")
    response = host.assigned(2)
    name = response.compaction_jobs[0].name
    host.now += 1
    answer = host.poll(0, StatusUpdate("unknown", 3, P), say(response, P, token=1), say(response, P, which=1),
                       say(response, 0, which=0))
    assert [(one.name, one.verdict, one.holder_deadline) for one in answer.answers] == [
        ("unknown", Verdict.NOT_FOUND, None), (name, Verdict.STALE_TOKEN, 1015.0),
        (response.compaction_jobs[1].name, Verdict.ACCEPTED, 1016.0), (name, Verdict.BAD_STATUS, 1015.0)]


def test_a_slot_that_a_worker_lost_is_given_away_in_the_same_poll() -> None:
    host = Host(PAIRS)
    host.add("a", "b")
    host.poll(1)
    assert len(host.poll(0, StatusUpdate("lost", 1, P)).compaction_jobs) == 1


def test_a_slot_of_a_job_that_is_over_is_not_counted_twice() -> None:
    host = Host(PAIRS)
    host.add("a", "b")
    host.poll(1)
    assert host.poll(0, StatusUpdate("over", 1, S), StatusUpdate("gone", 1, JobStatus.RELEASED)).compaction_jobs == ()


def test_a_late_renewal_and_a_late_completion_count_as_long_as_nobody_else_has_the_job() -> None:
    host, response = with_job()
    host.now += 1000
    assert host.poll(0, say(response, P)).assignments[0].lease_expires_at == host.now + 15
    host.now += 1000
    done = host.poll(0, say(response, S, results=output(response.compaction_jobs[0], "x")))
    assert [one.verdict for one in done.answers] == [Verdict.ACCEPTED]


def test_failed_and_released_jobs_are_taken_back_at_once() -> None:
    host = Host(PAIRS)
    host.add("a", "b", "c", "d")
    response = host.assigned(2)
    host.poll(0, say(response, JobStatus.FAILED, reason="boom"), say(response, JobStatus.RELEASED, which=1))
    failed, released = (host.service.job(job.name)[0] for job in response.compaction_jobs)
    assert (failed.failures, failed.last_failure, failed.not_before) == (1, "boom", host.now + 5)
    assert (released.failures, released.not_before) == (0, 0.0)
    # An update that was on its way before is stale now, though nobody else has the job; it leaves the worker room.
    again = host.poll(0, say(response, P))
    assert again.answers[0].verdict is Verdict.STALE_TOKEN
    assert [job.name for job in again.compaction_jobs] == [response.compaction_jobs[1].name]


# ----------------------------------------------------------------------------------------------------------- results


def refused(results: CompactedBlocks | None) -> tuple[Host, str]:
    """A host whose worker has reported these results for a job of a and b, and the answer's detail."""
    host, response = with_job()
    answer = host.poll(0, say(response, S, results=results))
    assert [one.verdict for one in answer.answers] == [Verdict.BAD_RESULT]
    state = host.service.job(response.compaction_jobs[0].name)[0]
    assert (state.status, state.failures) == (JobStatus.UNSPECIFIED, 1)
    assert "bad result" in state.last_failure
    return host, answer.answers[0].detail


SOURCES = ("a", "b")


def block(block_id: str = "x", **fields: object) -> BlockMeta:
    return BlockMeta(**{"id": block_id, "tenant": "A", "shard": 1, "level": 1, **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize(("results", "detail"), [
    (None, "no results"),
    (CompactedBlocks(tenant="B", shard=1, source_blocks=SOURCES, new_blocks=(block(),)), "tenant 'B'"),
    (CompactedBlocks(tenant="A", shard=2, source_blocks=SOURCES, new_blocks=(block(),)), "shard 2"),
    (CompactedBlocks(tenant="A", shard=1, source_blocks=("a", "z"), new_blocks=(block(),)), "'z'"),
    (CompactedBlocks(tenant="A", shard=1, source_blocks=("a", "a"), new_blocks=(block(),)), "twice"),
    (CompactedBlocks(tenant="A", shard=1, source_blocks=(), new_blocks=(block(),)), "no sources"),
    (CompactedBlocks(tenant="A", shard=1, source_blocks=SOURCES), "0 new blocks"),
    (CompactedBlocks(tenant="A", shard=1, source_blocks=SOURCES, new_blocks=(block(),), no_output=NoOutput.EMPTY),
     "1 new blocks"),
    (CompactedBlocks(tenant="A", shard=1, source_blocks=SOURCES, new_blocks=(block(level=2),)), "level 2"),
    (CompactedBlocks(tenant="A", shard=1, source_blocks=SOURCES, new_blocks=(block(shard=3),)), "shard 3"),
    (CompactedBlocks(tenant="A", shard=1, source_blocks=SOURCES, new_blocks=(block(tenant="B"),)), "tenant 'B'"),
    (CompactedBlocks(tenant="A", shard=1, source_blocks=SOURCES, new_blocks=(block(), block())), "twice"),
])
def test_results_that_do_not_fit_the_plan_count_as_a_failure(results: CompactedBlocks | None, detail: str) -> None:
    host, found = refused(results)
    assert detail in found
    assert host.service.state.index is not None
    assert [one.id for one in host.service.state.index.blocks()] == ["a", "b"]


def test_outputs_of_a_bad_result_are_deleted_once_the_job_is_done_without_them() -> None:
    host, _ = refused(CompactedBlocks(tenant="A", shard=1, source_blocks=("a", "z"), new_blocks=(block("bad"),)))
    host.now += 10
    response = host.poll(1)
    assert len(host.service.state.tombstones) == 0
    host.poll(0, say(response, S, results=output(response.compaction_jobs[0], "good")))
    doomed = [entry.tombstone for entry in host.service.state.tombstones]
    assert sorted(one.blocks for one in doomed if isinstance(one, BlockTombstones)) == [("a", "b"), ("bad",)]


def test_an_anonymous_job_may_write_a_block_for_each_tenant() -> None:
    host = Host(PAIRS)
    host.add("a", "b", tenant="")
    response = host.assigned()
    plan = response.compaction_jobs[0]
    results = CompactedBlocks(tenant="", shard=1, source_blocks=plan.source_blocks,
                              new_blocks=(block("x", tenant="A"), block("x", tenant="B")))
    assert host.poll(0, say(response, S, results=results)).answers[0].verdict is Verdict.ACCEPTED
    assert set(host.service.state.blocks.levels[1].groups) == {("A", 1, 1), ("B", 1, 1)}


def test_the_sources_give_way_to_the_outputs() -> None:
    host, response = with_job()
    plan = response.compaction_jobs[0]
    host.poll(0, say(response, S, results=output(plan, "x")))
    state = host.service.state
    assert state.index is not None
    assert [one.id for one in state.index.blocks()] == ["x"]
    assert [entry.tombstone for entry in state.tombstones] == [
        BlockTombstones(name=plan.name, tenant="A", shard=1, level=0, blocks=("a", "b"))]
    assert state.blocks.staged(("A", 1, 1)) == ("x",)
    # A retry of the push that is late does not bring a source back.
    assert host.add("a") == BlocksAdded(tombstoned=("a",))


def test_a_late_worker_s_outputs_are_deleted_when_its_successor_is_done() -> None:
    host, late = with_job()
    plan = late.compaction_jobs[0]
    host.now += 100
    successor = host.poll(1)
    answer = host.poll(0, say(late, S, results=output(plan, "late")))
    assert (answer.answers[0].verdict, answer.answers[0].holder_deadline) == (Verdict.STALE_TOKEN, host.now + 15)
    assert len(host.service.state.tombstones) == 0
    host.poll(0, say(successor, S, results=output(plan, "good")))
    blocks = [entry.tombstone.blocks for entry in host.service.state.tombstones
              if isinstance(entry.tombstone, BlockTombstones)]
    assert sorted(blocks) == [("a", "b"), ("late",)]


def test_a_late_worker_s_outputs_stay_if_they_are_its_successor_s_as_well() -> None:
    host, late = with_job()
    plan = late.compaction_jobs[0]
    host.now += 100
    successor = host.poll(1)
    for response in (late, successor, late):
        host.poll(0, say(response, S, results=output(plan, "same")))
    blocks = [entry.tombstone.blocks for entry in host.service.state.tombstones
              if isinstance(entry.tombstone, BlockTombstones)]
    assert blocks == [("a", "b")]


def test_outputs_for_a_job_that_is_gone_are_deleted() -> None:
    host, response = with_job()
    plan = response.compaction_jobs[0]
    host.poll(0, say(response, S, results=output(plan, "x")))
    answer = host.poll(0, say(response, S, results=output(plan, "y")))
    assert answer.answers[0].verdict is Verdict.NOT_FOUND
    assert host.service.state.tombstones.exists("A", 1, "y")
    assert not host.service.state.tombstones.exists("A", 1, "x")


def test_a_completion_whose_output_waits_for_deletion_is_tried_again_later() -> None:
    host, response = with_job()
    plan = response.compaction_jobs[0]
    host.service.state.tombstones.add(host.command(), BlockTombstones(name="t", tenant="A", shard=1, level=1,
                                                                      blocks=("x",)))
    answer = host.poll(0, say(response, S, results=output(plan, "x")))
    assert answer.answers[0].verdict is Verdict.BAD_RESULT
    state = host.service.job(plan.name)[0]
    assert (state.failures, state.not_before) == (0, host.now + 300)


def test_a_job_whose_sources_were_deleted_meanwhile_is_over_and_the_rest_is_queued_again() -> None:
    config = attrs.evolve(PAIRS, levels=(LevelConfig(max_blocks=2),))
    host = Host(config)
    day = 86400.0
    host.apply(AddBlocks((BlockMeta(id="old", tenant="A", shard=1, level=0, min_time=0.0, max_time=1.0),
                          BlockMeta(id="new", tenant="A", shard=1, level=0, min_time=9 * day, max_time=9 * day))))
    response = host.assigned()
    plan = response.compaction_jobs[0]
    assert host.apply(Retain(5 * day)) == Retained(1, ("0 (21600s)-TA-S1@4",))
    answer = host.poll(0, say(response, S, results=output(plan, "x")))
    assert [one.verdict for one in answer.answers] == [Verdict.SOURCES_GONE]
    state = host.service.state
    assert (len(state.jobs), state.blocks.staged(("A", 1, 0))) == (0, ("new",))
    assert state.tombstones.exists("A", 1, "x")


def test_a_job_that_found_nothing_to_keep_deletes_its_sources() -> None:
    host, response = with_job()
    results = CompactedBlocks(tenant="A", shard=1, source_blocks=SOURCES, no_output=NoOutput.EMPTY)
    assert host.poll(0, say(response, S, results=results)).answers[0].verdict is Verdict.ACCEPTED
    state = host.service.state
    assert state.index is not None
    assert (len(state.index), state.tombstones.exists("A", 1, "a"), state.quarantine) == (0, True, {})


def test_a_job_that_did_not_find_its_sources_puts_them_into_quarantine() -> None:
    host, response = with_job()
    results = CompactedBlocks(tenant="A", shard=1, source_blocks=(), no_output=NoOutput.MISSING)
    assert host.poll(0, say(response, S, results=results)).answers[0].verdict is Verdict.ACCEPTED
    [given_up] = host.service.quarantine()
    assert (given_up.plan.source_blocks, "not find" in given_up.reason) == (("a", "b"), True)
    assert host.apply(Requeue((given_up.plan.name, "nobody"))) == Requeued((given_up.plan.name,), ("nobody",), 2)
    assert host.service.quarantine() == ()
    assert host.assigned().compaction_jobs == response.compaction_jobs


def test_a_source_that_the_worker_did_not_find_goes_to_quarantine() -> None:
    host, response = with_job()
    results = CompactedBlocks(tenant="A", shard=1, source_blocks=("b",), new_blocks=(block(),))
    assert host.poll(0, say(response, S, results=results)).answers[0].verdict is Verdict.ACCEPTED
    assert [one.plan.source_blocks for one in host.service.quarantine()] == [("a",)]
    state = host.service.state
    assert state.index is not None
    assert [one.id for one in state.index.blocks()] == ["a", "x"]


# ------------------------------------------------------------------------------------------- bounded queue, quarantine


def exhausted(config: SchedulerConfig, pairs: int) -> Host:
    """A host with a full queue of jobs that failed too often."""
    host = Host(config)
    host.add(*(f"a{number:02}" for number in range(2 * pairs)))
    host.poll(pairs)
    for _ in range(config.max_failures):
        response = host.poll(pairs)
        assert len(response.compaction_jobs) == pairs
        host.poll(0, *(say(response, JobStatus.FAILED, which=which, reason="poison") for which in range(pairs)))
        host.now += 1000
    assert {phase for phase, _ in host.service.jobs(host.now)} == {JobPhase.EXCLUDED}
    return host


def test_a_queue_full_of_excluded_jobs_makes_room_for_as_many_as_are_wanted() -> None:
    host = exhausted(attrs.evolve(PAIRS, max_queue_size=3), 3)
    host.add(*(f"b{number}" for number in range(4)))
    host.poll(9)
    assert len(host.service.state.jobs) == 3
    assert len(host.service.quarantine()) == 2
    assert {one.reason for one in host.service.quarantine()} == {"poison"}
    assert len(host.poll(9).compaction_jobs) == 2


def test_a_job_is_never_renewed_and_evicted_by_one_poll() -> None:
    host = Host(attrs.evolve(PAIRS, max_queue_size=1, max_failures=1))
    host.add("a", "b", "c", "d")
    host.assigned()
    host.now += 100
    last = host.poll(1)
    host.now += 100
    response = host.poll(1, say(last, P))
    assert [lease.name for lease in response.assignments] == [last.compaction_jobs[0].name]
    assert host.service.quarantine() == ()


def test_a_full_quarantine_forgets_the_oldest_and_says_so() -> None:
    watching = RecordingObserver()
    config = attrs.evolve(PAIRS, max_queue_size=2, max_quarantine_size=1, max_failures=1)
    host = Host(config, SchedulerService(config, observer=watching))
    host.add("a", "b", "c", "d", "e", "f", "g", "h")
    response = host.assigned(2)
    host.poll(0, *(say(response, JobStatus.FAILED, which=which) for which in range(2)))
    host.poll(2)
    assert (len(host.service.quarantine()), host.service.state.quarantine_dropped) == (1, 1)
    assert [name for name, _ in watching.events] == ["scheduler_job_excluded", "scheduler_job_excluded",
                                                     "scheduler_job_quarantined", "scheduler_job_quarantined",
                                                     "scheduler_quarantine_dropped"]
    assert len(host.service.state.unaccounted_blocks()) == 2


def test_what_a_poll_made_happen_is_told_in_its_order_when_somebody_asks() -> None:
    host = Host(PAIRS)
    host.add("a", "b", "c", "d", "e", "f")
    response = host.assigned(3)
    results = [output(plan, f"x{number}") for number, plan in enumerate(response.compaction_jobs)]
    results[1] = attrs.evolve(results[1], source_blocks=results[1].source_blocks[:1])
    host.now += 5
    host.poll(0, *(say(response, S, which=which, results=results[which]) for which in range(3)))
    events = host.service.events
    assert [name for name, _ in events] == ["scheduler_job_completed", "scheduler_job_completed",
                                            "scheduler_job_quarantined", "scheduler_job_completed"]
    assert [fields["job"] for _, fields in events] == [
        response.compaction_jobs[which].name for which in (0, 1, 1, 2)]
    assert events[0][1]["seconds"] == 5
    assert host.service.events is events
    host.poll(1)
    assert host.service.events == []


def test_a_completion_makes_room_in_the_same_poll() -> None:
    host = Host(attrs.evolve(PAIRS, max_queue_size=1))
    host.add("a", "b", "c", "d")
    response = host.assigned()
    host.poll(1, say(response, S, results=output(response.compaction_jobs[0], "x")))
    assert len(host.service.state.jobs) == 1


# ------------------------------------------------------------------------------------------------- cleanup, retention


def test_tombstones_ride_on_new_jobs_and_stay_until_they_are_confirmed() -> None:
    host, response = with_job()
    name = response.compaction_jobs[0].name
    host.poll(0, say(response, S, results=output(response.compaction_jobs[0], "x")))
    host.now += 61
    host.add("c", "d")
    host.poll(1)
    carrier = host.poll(1)
    assert [one.name for one in carrier.compaction_jobs[0].tombstones] == [name]
    assert carrier.tombstones == ()
    assert name in host.service.state.tombstones
    host.poll(0, say(carrier, P), deleted=(name, "unknown"))
    assert name not in host.service.state.tombstones


def test_a_tombstone_that_was_confirmed_rides_no_more() -> None:
    host, response = with_job()
    name = response.compaction_jobs[0].name
    host.poll(0, say(response, S, results=output(response.compaction_jobs[0], "x")))
    host.now += 61
    host.add("c", "d")
    host.poll(1)
    host.poll(0, deleted=(name,))
    assert host.poll(1).compaction_jobs[0].tombstones == ()


def test_cleanup_runs_alone_when_there_is_nothing_else_to_do() -> None:
    host, response = with_job(attrs.evolve(PAIRS, levels=(LevelConfig(max_blocks=2),) * 2))
    name = response.compaction_jobs[0].name
    host.poll(0, say(response, S, results=output(response.compaction_jobs[0], "x")))
    assert host.poll(1).tombstones == ()
    host.now += 61
    assert [one.name for one in host.poll(1).tombstones] == [name]
    assert host.poll(1).tombstones == ()
    host.now += PAIRS.cleanup_lease_seconds + 1
    assert [one.name for one in host.poll(1).tombstones] == [name]
    assert host.poll(0).tombstones == ()
    host.poll(0, deleted=(name,))
    host.now += 10_000
    assert host.poll(1).tombstones == ()


def test_tombstones_ride_on_one_job_each_of_the_levels_that_carry_them() -> None:
    config = attrs.evolve(PAIRS, levels=(LevelConfig(max_blocks=1), LevelConfig(max_blocks=1)), cleanup_max_level=0,
                          cleanup_batch_size=1)
    host = Host(config)
    for number in range(3):
        host.service.state.tombstones.add(
            host.command(), BlockTombstones(name=f"t{number}", tenant="A", shard=1, level=0, blocks=("gone",)))
    host.now += 61
    host.add("a", "b")
    host.add("c", level=1)
    update = host.service.prepare(host.command(), PollRequest(job_capacity=9))
    assert [[one.name for one in job.plan.tombstones] for job in update.new_jobs] == [["t0"], ["t1"], []]


def test_retention_removes_whole_spans_and_what_is_queued_of_them() -> None:
    host = Host(PAIRS)
    blocks = (BlockMeta(id="old", tenant="A", shard=1, level=0, min_time=10.0, max_time=20.0),)
    host.apply(AddBlocks(blocks))
    assert host.apply(Retain(1000.0)) == Retained(0)
    assert host.apply(Retain(1e9)) == Retained(1, ("0 (21600s)-TA-S1@3",))
    assert len(host.service.state.blocks) == 0
    [entry] = host.service.state.tombstones
    assert isinstance(entry.tombstone, ShardTombstone)
    assert host.apply(AddBlocks(blocks)) == BlocksAdded(tombstoned=("old",))


# -------------------------------------------------------------------------------------------------------- the rest


def test_a_tick_makes_old_blocks_ready_without_another_push() -> None:
    host = Host(attrs.evolve(PAIRS, levels=(LevelConfig(max_blocks=9, max_age_seconds=30),)))
    host.add("a")
    host.now += 31
    assert host.apply(Tick()) == Ticked(1)
    assert len(host.assigned().compaction_jobs) == 1


def test_polls_alone_make_old_blocks_ready() -> None:
    host = Host(attrs.evolve(PAIRS, levels=(LevelConfig(max_blocks=9, max_age_seconds=30),)))
    host.add("a")
    assert host.service.prepare(host.command(), PollRequest(job_capacity=1)).changes_nothing
    host.now += 31
    # The host has to replicate this one, though nothing is queued yet that a job could be made of.
    assert not host.service.prepare(host.command(), PollRequest(job_capacity=1)).changes_nothing
    assert [len(host.poll(1).compaction_jobs) for _ in range(3)] == [0, 0, 1]
    assert host.service.prepare(host.command(), PollRequest(job_capacity=1)).changes_nothing


def test_new_jobs_are_assigned_from_the_next_poll_on() -> None:
    host = Host(PAIRS)
    host.add("a", "b")
    assert [len(host.poll(1).compaction_jobs) for _ in range(3)] == [0, 1, 0]


def test_an_idle_poll_changes_nothing_and_says_so() -> None:
    host = Host(PAIRS)
    assert host.service.prepare(host.command(), PollRequest(job_capacity=4)).changes_nothing
    host.add("a", "b")
    assert not host.service.prepare(host.command(), PollRequest(job_capacity=4)).changes_nothing


def test_without_an_index_the_host_keeps_track_of_its_blocks() -> None:
    host = Host(PAIRS, SchedulerService(PAIRS, index=None))
    host.add("a", "b")
    response = host.assigned()
    plan = response.compaction_jobs[0]
    host.poll(0, say(response, S, results=output(plan, "x")))
    assert host.add("a") == BlocksAdded(tombstoned=("a",))
    # Nobody can tell whether these are somebody's, so they are let be.
    host.poll(0, say(response, S, results=output(plan, "y")))
    assert not host.service.state.tombstones.exists("A", 1, "y")
    assert host.apply(Retain(1e12)) == Retained(0)
    assert len(host.service.state.tombstones) == 1


def test_without_an_index_a_block_that_is_added_again_is_in_one_place_all_the_same() -> None:
    """Once, what a host added again for want of an answer was queued a second time while a job had it."""
    host = Host(PAIRS, SchedulerService(PAIRS, index=None))
    host.add("a", "b")
    assert host.add("a") == BlocksAdded(duplicate=("a",))
    response = host.assigned()
    assert host.add("b", "c") == BlocksAdded(queued=("c",), duplicate=("b",))
    host.service.state.audit()
    restored = Host(PAIRS, SchedulerService(state=load_rows(dump_rows(host.service.state), PAIRS)))
    restored.index = host.index
    assert restored.add("a", "b") == BlocksAdded(duplicate=("a", "b"))
    restored.service.state.audit()
    plan = response.compaction_jobs[0]
    host.poll(0, say(response, S, results=output(plan, "x")))
    host.service.state.audit()


def test_without_an_index_a_block_in_quarantine_is_not_queued_a_second_time() -> None:
    host = Host(PAIRS, SchedulerService(PAIRS, index=None))
    host.add("a", "b")
    plan = host.assigned().compaction_jobs[0]
    state = host.service.state
    job = state.jobs.get(plan.name)
    assert job is not None
    state.jobs.evict(job)
    state.give_up(QuarantinedJob(plan=plan, reason="", failures=3, since=0.0))
    assert host.add("a", "b") == BlocksAdded(duplicate=("a", "b"))
    state.audit()


@pytest.mark.parametrize("index", ["default", None])
def test_an_output_that_somebody_has_added_meanwhile_is_in_one_place_all_the_same(
        index: Literal["default"] | None) -> None:
    """Once, it was queued a second time while a job had it: whoever looks for objects that nobody knows may add it."""
    host = Host(PAIRS, SchedulerService(PAIRS, index=index))
    host.add("a", "b")
    response = host.assigned()
    host.add("x", "y", level=1)
    assert host.assigned().compaction_jobs[0].source_blocks == ("x", "y")
    host.poll(0, say(response, S, results=output(response.compaction_jobs[0], "x", "z")))
    blocks = host.service.state.blocks
    assert [blocks.holds(("A", 1, 1), block_id) for block_id in "xyz"] == [False, False, True]


def test_what_people_see() -> None:
    host, response = with_job()
    name = response.compaction_jobs[0].name
    [row] = host.service.table(host.now + 20).to_dicts()
    assert (row["job"], row["phase"], row["token"], row["age"]) == (name, "lease expired", 3, 20.0)
    assert host.service.stats(host.now)[0]["in progress"] == 1
    assert "1 jobs" in repr(host.service)
    with pytest.raises(JobNotFound, match="no job 'x'"):
        host.service.job("x")
    assert isinstance(host.service.prepare(host.command(), PollRequest()), PlanUpdate)


def test_a_plan_update_says_what_it_will_do() -> None:
    host, response = with_job()
    host.add("c", "d", "e", "f")
    host.poll(1)
    done = say(response, S, results=output(response.compaction_jobs[0], "x"))
    update = host.service.prepare(host.command(), PollRequest((done, StatusUpdate("nobody", 1, P)), 1))
    assert repr(update) == "PlanUpdate(index 6, term 1: 1 not found, 1 complete, 1 queue, 1 assign)"
    assert [row["do"] for row in update.to_dicts()] == ["not found", "complete", "queue", "assign"]
    assert "command 6, term 1" in str(update)
    assert "<table>" in update._repr_html_()
    assert repr(host.service.prepare(host.command(), PollRequest())) == (
        "PlanUpdate(index 7, term 1: nothing to do; the worker has no room: job_capacity=0, and it has lost no job in "
        "this poll)")
