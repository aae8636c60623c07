# SPDX-License-Identifier: Apache-2.0
"""What an operator sees and does while a scheduler runs: limits that are raised, jobs that are tried again, what is
told of jobs that go from hand to hand."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from compactlib.errors import InvalidInput
from compactlib.fences import FencedOff, MemoryFence
from compactlib.runtime import RecordingObserver
from compactlib.scheduler import (
    AddBlocks,
    BlockMeta,
    CompactedBlocks,
    Configure,
    JobStatus,
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
from compactlib.scheduler.errors import BadConfig
from compactlib.scheduler.model.poll import Verdict
from compactlib.scheduler.model.update import Applied, Configured, PlanUpdate, Requeued
from compactlib.scheduler.model.values import BlockTombstones, JobPhase
from compactlib.scheduler.persistence.state_rows import decode_state, encode_state
from compactlib.scheduler.service.machine import SchedulerMachine
from tests.scheduler.build import Host, levels, output, say

CONFIG = SchedulerConfig(levels=levels((2, 0), (2, 0)), max_failures=2, cleanup_batch_size=0)


class Watched(Host):
    """A host that notes the events of its service."""

    def __init__(self, config: SchedulerConfig = CONFIG) -> None:
        self.seen = RecordingObserver()
        super().__init__(service=SchedulerService(config, observer=self.seen))

    def told(self, name: str) -> list[dict[str, Any]]:
        return [dict(fields) for told, fields in self.seen.events if told == name]

    def phases(self) -> list[tuple[JobPhase, int]]:
        return [(phase, state.failures) for phase, state in self.service.jobs(self.now)]


def excluded(host: Host) -> PollResponse:
    """One job, given up without a word as often as it takes; the answer with its last assignment."""
    host.add("a", "b")
    given = host.assigned()
    while [phase for phase, _ in host.service.jobs(host.now)] != [JobPhase.EXCLUDED]:
        host.now += 20
        again = host.poll(1)
        given = again if again.assignments else given
    return given


# ------------------------------------------------------------------------------------------- given back for ever


def test_a_job_that_workers_give_back_again_and_again_waits_longer_each_time_and_fails_in_the_end() -> None:
    host = Watched(attrs.evolve(CONFIG, max_releases=4, backoff_seconds=5.0, max_backoff_seconds=8.0))
    host.add("a", "b")
    host.poll(1)
    delays = []
    while host.phases()[0][0] is not JobPhase.EXCLUDED:
        asked_at = host.now
        while not (given := host.poll(1)).assignments:
            host.now += 1
        delays.append((host.now - asked_at, host.phases()[0][1]))
        host.poll(0, say(given, JobStatus.RELEASED, reason="not here"))
    # At once, then after 5 seconds and 8; the fourth time it has failed, and waits as a failed job does.
    assert delays == [(0, 0), (0, 0), (5, 0), (8, 0), (5, 1), (0, 1), (5, 1), (8, 1)]
    [(_, state)] = host.service.jobs(host.now)
    assert state.last_failure == "given back 4 times, the last time: not here"
    assert "given back 4 times" in str(host.service.table(host.now))


def test_a_job_that_is_given_back_for_five_thousand_times_at_one_moment_is_not_assigned_for_ever() -> None:
    host = Watched()
    host.add("a", "b")
    host.poll(1)
    given = 0
    for _ in range(5_000):
        answer = host.service.poll(host.command(), PollRequest(job_capacity=1))
        if not answer.assignments:
            break
        given += 1
        host.poll(0, say(answer, JobStatus.RELEASED))
    assert given == 2
    assert "1 wait for their back-off" in answer.why


def test_without_a_limit_of_releases_a_job_is_given_back_as_often_as_workers_like() -> None:
    host = Watched(attrs.evolve(CONFIG, max_releases=0, backoff_seconds=0.0))
    host.add("a", "b")
    host.poll(1)
    for _ in range(50):
        host.poll(0, say(host.poll(1), JobStatus.RELEASED))
    assert host.phases() == [(JobPhase.UNASSIGNED, 0)]


def test_a_failure_that_is_reported_begins_the_count_of_releases_anew() -> None:
    host = Watched(attrs.evolve(CONFIG, max_releases=2, backoff_seconds=0.0, max_failures=0))
    host.add("a", "b")
    host.poll(1)
    for status in (JobStatus.RELEASED, JobStatus.FAILED, JobStatus.RELEASED):
        host.poll(0, say(host.poll(1), status))
    assert host.phases() == [(JobPhase.UNASSIGNED, 1)]
    host.poll(0, say(host.poll(1), JobStatus.RELEASED))
    assert host.phases() == [(JobPhase.UNASSIGNED, 2)]


# --------------------------------------------------------------------------------------------- what is told


def test_a_job_that_goes_to_another_worker_and_one_that_is_given_up_are_told() -> None:
    host = Watched()
    given = excluded(host)
    name, token = given.assignments[0].name, given.assignments[0].token
    first, last = host.told("scheduler_job_reassigned")
    assert last == {"job": name, "failures": 2, "token": token, "held_token": first["token"]}
    assert (first["job"], first["failures"], first["held_token"] < first["token"]) == (name, 1, True)
    [told] = host.told("scheduler_job_excluded")
    assert told == {"job": name, "failures": 2, "blocks": 2, "reason": ""}


def test_a_job_whose_last_attempt_fails_with_a_reason_is_told_with_it_and_once() -> None:
    host = Watched(attrs.evolve(CONFIG, backoff_seconds=0.0))
    host.add("a", "b")
    host.poll(1)
    for reason in ("no disk", "no memory"):
        host.poll(0, say(host.poll(1), JobStatus.FAILED, reason=reason))
    host.poll(1)
    host.apply(Tick())
    assert [(each["failures"], each["reason"]) for each in host.told("scheduler_job_excluded")] == [(2, "no memory")]


def test_a_last_attempt_that_ends_in_silence_is_told_by_a_poll_that_has_nothing_else_to_do() -> None:
    host = Watched()
    host.add("a", "b")
    host.assigned()
    for _ in range(2):
        host.now += 20
        host.poll(1)
    assert host.told("scheduler_job_excluded") == []
    host.now += 20
    update = host.service.prepare(host.command(), PollRequest(job_capacity=1))
    assert not update.changes_nothing
    host.service.apply(host.command(), update)
    assert len(host.told("scheduler_job_excluded")) == 1
    assert host.service.prepare(host.command(), PollRequest(job_capacity=1)).changes_nothing


def test_a_last_attempt_that_is_renewed_in_time_is_not_told() -> None:
    host = Watched()
    host.add("a", "b")
    host.assigned()
    host.now += 20
    host.poll(1)
    host.now += 20
    given = host.poll(1)
    for _ in range(5):
        host.now += 10
        host.poll(0, StatusUpdate(given.assignments[0].name, given.assignments[0].token, JobStatus.IN_PROGRESS))
    assert host.told("scheduler_job_excluded") == []


# ----------------------------------------------------------------------------------------------- tried again


def test_an_excluded_job_that_is_still_queued_can_be_tried_again() -> None:
    host = Watched()
    given = excluded(host)
    [plan] = given.compaction_jobs
    assert host.apply(Requeue((plan.name,))) == Requeued((plan.name,), (), 2)
    assert host.phases() == [(JobPhase.UNASSIGNED, 0)]
    again = host.poll(1)
    assert again.compaction_jobs == (plan,)
    # The one that had it last comes too late.
    late = host.poll(0, say(given, JobStatus.SUCCESS, results=output(plan, "late")))
    assert late.answers[0].verdict is Verdict.STALE_TOKEN
    done = host.poll(0, say(again, JobStatus.SUCCESS, results=output(plan, "new")))
    assert done.answers[0].verdict is Verdict.ACCEPTED


def test_a_late_worker_of_an_excluded_job_that_was_queued_again_learns_it_and_leaves_nothing_behind() -> None:
    host = Watched()
    given = excluded(host)
    [plan] = given.compaction_jobs
    host.apply(Requeue((plan.name,)))
    late = host.poll(0, say(given, JobStatus.SUCCESS, results=output(plan, "late")))
    assert late.answers[0].verdict is Verdict.STALE_TOKEN
    host.poll(0, say(host.poll(1), JobStatus.SUCCESS, results=output(plan, "new")))
    assert {"late", "new"} & {block for entry in host.service.state.tombstones
                              for block in entry.tombstone.blocks} == {"late"}  # type: ignore[union-attr]


def test_a_job_that_is_not_given_up_is_not_queued_again() -> None:
    host = Watched()
    host.add("a", "b", "c", "d")
    name = host.assigned(2).assignments[0].name
    assert host.apply(Requeue((name,))) == Requeued((), (name,), 0)
    host.now += 20                                    # lost, and on its way to another worker
    assert host.apply(Requeue((name,))) == Requeued((), (name,), 0)


def test_a_last_attempt_is_not_disturbed() -> None:
    host = Watched(attrs.evolve(CONFIG, max_failures=1))
    host.add("a", "b")
    host.assigned()
    host.now += 20
    given = host.poll(1)
    name = given.assignments[0].name
    assert host.apply(Requeue((name,))) == Requeued((), (name,), 0)
    assert host.poll(0, say(given, JobStatus.IN_PROGRESS)).answers[0].verdict is Verdict.ACCEPTED


# -------------------------------------------------------------------------------------------- limits are raised


def test_a_limit_that_is_raised_while_it_runs_lets_excluded_jobs_go_again() -> None:
    host = Watched()
    given = excluded(host)
    counts = host.service.stats(host.now)[0]["reassigned"]
    assert not host.poll(1).assignments
    raised = attrs.evolve(CONFIG, max_failures=5)
    assert host.apply(Configure(raised)) == Configured(CONFIG, raised)
    assert host.service.config == raised
    [again] = host.poll(1).assignments
    assert (again.name, host.phases()) == (given.assignments[0].name, [(JobPhase.IN_PROGRESS, 3)])
    assert host.service.stats(host.now)[0]["reassigned"] == counts + 1
    assert host.apply(Configure(CONFIG)) == Configured(raised, CONFIG)


def test_a_queue_that_is_made_longer_takes_more_jobs_at_once() -> None:
    host = Watched(attrs.evolve(CONFIG, max_queue_size=1))
    host.add(*"abcd")
    host.poll(10)
    assert len(host.service.state.jobs) == 1
    host.apply(Configure(attrs.evolve(CONFIG, max_queue_size=2)))
    host.poll(10)
    assert len(host.service.state.jobs) == 2


def test_what_was_prepared_before_the_limits_changed_is_carried_out_all_the_same() -> None:
    host = Watched()
    host.add("a", "b")
    host.poll(1)
    command = host.command()
    update = host.service.prepare(command, PollRequest(job_capacity=1))
    host.apply(Configure(attrs.evolve(CONFIG, max_failures=5)))
    host.index += 1
    applied = host.service.apply(attrs.evolve(command, index=host.index), update)
    assert isinstance(update, PlanUpdate)
    assert isinstance(applied, Applied)
    assert len(applied.response.assignments) == 1


def test_other_levels_come_into_force_with_their_blocks() -> None:
    host = Watched()
    host.add("a", "b", level=2)
    assert len(host.service.state.blocks) == 0
    host.apply(Configure(attrs.evolve(CONFIG, levels=levels((2, 0), (2, 0), (2, 0)))))
    assert len(host.service.state.blocks) == 2


def test_the_same_command_changes_the_limits_once_and_the_state_comes_back() -> None:
    host = Watched()
    excluded(host)
    host.apply(Configure(attrs.evolve(CONFIG, max_failures=7)))
    data = encode_state(host.service.state)
    assert encode_state(decode_state(data, "here")) == data
    again = SchedulerMachine(SchedulerConfig())
    again.load(data)
    assert again.service.config.max_failures == 7


# ----------------------------------------------------------------------------------- beside fences that remember


def test_a_scheduler_that_begins_anew_gives_tokens_that_fences_admit_once_it_is_told_where_to_begin() -> None:
    fence = MemoryFence()
    host = Watched()
    host.add("a", "b")
    given = host.assigned()
    name, token = given.assignments[0].name, given.assignments[0].token
    fence.admit(name, 5_000)                 # by a scheduler before, whose log was lost
    with pytest.raises(FencedOff, match=f"token {token} is stale"):
        fence.admit(name, token)
    host.apply(Configure(attrs.evolve(CONFIG, tokens_above=1 << 40)))
    host.now += 20
    again = host.poll(1)
    assert again.assignments[0].token == (1 << 40) + host.index
    fence.admit(name, again.assignments[0].token)
    done = host.poll(0, say(again, JobStatus.SUCCESS, results=output(again.compaction_jobs[0], "new")))
    assert done.answers[0].verdict is Verdict.ACCEPTED


def test_tokens_never_fall_again_and_the_log_s_own_indexes_stay() -> None:
    host = Watched(attrs.evolve(CONFIG, tokens_above=100))
    host.add("a", "b")
    first = host.assigned()
    assert (first.assignments[0].token, host.service.state.applied_index) == (103, 3)
    host.apply(Configure(CONFIG))
    host.apply(Configure(attrs.evolve(CONFIG, tokens_above=50)))
    host.now += 20
    assert host.poll(1).assignments[0].token == 106
    again = SchedulerService(state=decode_state(encode_state(host.service.state), "here"))
    assert encode_state(again.state) == encode_state(host.service.state)
    assert (again.state.tokens_above, again.state.applied_index) == (100, 6)
    future = StatusUpdate(first.assignments[0].name, 108, JobStatus.IN_PROGRESS)
    assert host.poll(0, future).answers[0].verdict is Verdict.FUTURE_TOKEN


@pytest.mark.parametrize("above", [-1, 1 << 62, 1.5, None])
def test_what_no_token_can_be_above_is_refused(above: Any) -> None:
    with pytest.raises(BadConfig, match="tokens_above"):
        SchedulerConfig(tokens_above=above)


@pytest.mark.parametrize("given", [None, 5, {"max_failures": 3}], ids=repr)
def test_what_are_no_settings_is_refused(given: Any) -> None:
    host = Watched()
    with pytest.raises(InvalidInput, match="nothing was changed"):
        host.apply(Configure(given))
    assert host.service.config == CONFIG


# ------------------------------------------------------------------------------------------- removed while it runs


def old(*ids: str) -> AddBlocks:
    return AddBlocks(tuple(BlockMeta(id=name, tenant="A", shard=1, level=0, min_time=1.0, max_time=2.0)
                           for name in ids))


def test_what_two_workers_wrote_of_sources_that_are_gone_is_all_deleted() -> None:
    host = Host(CONFIG)
    host.apply(old("a", "b"))
    late = host.assigned()
    host.now += 20
    holder = host.poll(1)
    host.poll(0, say(late, JobStatus.SUCCESS, results=output(late.compaction_jobs[0], "late")))
    host.apply(Retain(1e6))
    done = host.poll(0, say(holder, JobStatus.SUCCESS, results=output(holder.compaction_jobs[0], "own")))
    assert done.answers[0].verdict is Verdict.SOURCES_GONE
    waiting = [entry.tombstone for entry in host.service.state.tombstones]
    assert [each.blocks for each in waiting if isinstance(each, BlockTombstones)] == [("late", "own")]


def test_what_was_written_for_a_job_that_nobody_knows_is_deleted_whatever_is_said_of_it() -> None:
    host = Host(CONFIG)
    said = [StatusUpdate("none", 1, JobStatus.SUCCESS, CompactedBlocks(
        tenant="A", shard=1, source_blocks=("a",),
        new_blocks=tuple(BlockMeta(id=f"{name}{shard}", tenant="A", shard=shard, level=1) for shard in (1, 2))))
        for name in "xy"]
    host.poll(0, *said)
    waiting = [entry.tombstone for entry in host.service.state.tombstones]
    assert sorted(each.blocks for each in waiting if isinstance(each, BlockTombstones)) == [
        ("x1",), ("x2",), ("y1",), ("y2",)]


def test_sources_that_retention_has_removed_are_missed_by_nobody() -> None:
    host = Host(CONFIG)
    host.apply(old("a", "b"))
    given = host.assigned()
    host.apply(Retain(1e6))
    missing = CompactedBlocks(tenant="A", shard=1, source_blocks=(), no_output=NoOutput.MISSING)
    assert host.poll(0, say(given, JobStatus.SUCCESS, results=missing)).answers[0].verdict is Verdict.ACCEPTED
    assert (host.service.quarantine(), len(host.service.state.jobs)) == ((), 0)


def test_a_batch_that_is_full_under_other_limits_is_planned() -> None:
    host = Host(SchedulerConfig(levels=levels((10, 0))))
    host.add(*"abcde")
    host.apply(Configure(SchedulerConfig(levels=levels((2, 0)))))
    given = host.assigned(9)
    assert [plan.source_blocks for plan in given.compaction_jobs] == [("a", "b"), ("c", "d")]
