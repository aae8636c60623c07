# SPDX-License-Identifier: Apache-2.0
"""What a worker decides: each answer it may get, leases on its own clock, shutting down, cleaning up."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from compactlib.errors import InvalidInput
from compactlib.scheduler import CompactedBlocks, JobPlan, JobStatus, NoOutput, PollRequest, PollResponse, StatusUpdate
from compactlib.scheduler.model.poll import Assignment, StatusAnswer, Verdict
from compactlib.scheduler.model.values import BlockTombstones, Tombstone
from compactlib.scheduler.queue.block_queue import ulid_seconds
from compactlib.scheduler.workers.running_job import output_block_id
from compactlib.scheduler.workers.worker_core import (
    MAX_CONFIRMED,
    Clean,
    Crashed,
    Finished,
    GivenBack,
    Renewed,
    Settled,
    Start,
    Stop,
    WorkerCore,
)

LOST = [Verdict.NOT_FOUND, Verdict.STALE_TOKEN, Verdict.FUTURE_TOKEN, Verdict.FORGED_TOKEN, Verdict.WRONG_STATE]
KEPT = [Verdict.SUPERSEDED, Verdict.BAD_STATUS, Verdict.DUPLICATE]
RESULT = CompactedBlocks(tenant="A", shard=1, source_blocks=("1",), no_output=NoOutput.EMPTY)


def plan(name: str, *tombstones: Tombstone) -> JobPlan:
    return JobPlan(name=name, tenant="A", shard=1, compaction_level=0, source_blocks=("1",), tombstones=tombstones)


def tombstone(name: str) -> BlockTombstones:
    return BlockTombstones(name=name, tenant="A", shard=1, level=0, blocks=("x",))


def asked(core: WorkerCore, now: float = 0.0) -> PollRequest:
    request = core.poll(now)
    assert request is not None
    return request


def given(core: WorkerCore, *names: str, token: int = 5, now: float = 0.0) -> tuple[object, ...]:
    """Poll, and get these jobs with a lease of 15 seconds."""
    return core.answered(asked(core, now), PollResponse(
        tuple(map(plan, names)), tuple(Assignment(name, token, 1015.0, f"seal {token}") for name in names), now=1000.0))


def answer(request: PollRequest, verdict: Verdict, *renewed: Assignment) -> PollResponse:
    return PollResponse(assignments=renewed, now=1000.0, answers=tuple(
        StatusAnswer(update.name, verdict, detail="told so") for update in request.status_updates))


def test_it_asks_for_as_many_jobs_as_it_has_room_for() -> None:
    core = WorkerCore(2)
    assert asked(core) == PollRequest(job_capacity=2)
    assert given(core, "a") == (Start(1, plan("a"), 5, 15.0),)
    assert asked(core) == PollRequest((StatusUpdate("a", 5, JobStatus.IN_PROGRESS, seal="seal 5"),), 1)
    assert core.jobs == ("a",)


def test_a_lease_is_measured_from_when_the_poll_was_sent_on_the_worker_s_clock() -> None:
    core = WorkerCore(1)
    request = asked(core, 70.0)
    (start,) = core.answered(request, PollResponse((plan("a"),), (Assignment("a", 5, 1015.0),), now=1010.0))
    assert isinstance(start, Start)
    assert start.deadline == 75.0
    assert core.earliest_deadline() == 75.0


@pytest.mark.parametrize(("token", "seal"), [(5, "sealed anew"), (4, "seal 5")])
def test_a_renewal_brings_a_new_deadline_and_the_run_keeps_its_token(token: int, seal: str) -> None:
    core = WorkerCore(1)
    given(core, "a")
    request = asked(core, 10.0)
    response = answer(request, Verdict.ACCEPTED, Assignment("a", token, 1015.0, "sealed anew"))
    assert core.answered(request, response) == (Renewed(1, 25.0),)
    assert asked(core).status_updates[0] == StatusUpdate("a", 5, JobStatus.IN_PROGRESS, seal=seal)


@pytest.mark.parametrize("verdict", [*LOST, None])
def test_a_job_that_is_not_renewed_is_stopped_and_its_slot_is_free_when_it_has_ended(verdict: Verdict | None) -> None:
    core = WorkerCore(1)
    given(core, "a")
    request = asked(core)
    response = PollResponse() if verdict is None else answer(request, verdict)
    (stop,) = core.answered(request, response)
    assert isinstance(stop, Stop)
    assert (stop.run, stop.name, stop.lost) == (1, "a", True)
    assert stop.reason.startswith("the scheduler did not renew" if verdict is None else verdict.value)
    assert core.poll(0) is None
    assert not core.is_idle
    core.ended(1, Finished(RESULT))
    assert asked(core) == PollRequest(job_capacity=1)
    assert core.is_idle


@pytest.mark.parametrize("verdict", KEPT)
def test_a_job_about_which_nothing_changed_is_asked_for_again(verdict: Verdict) -> None:
    core = WorkerCore(1)
    given(core, "a")
    request = asked(core)
    assert core.answered(request, answer(request, verdict)) == ()
    assert asked(core).status_updates == request.status_updates


@pytest.mark.parametrize(("outcome", "status", "reason"), [
    (Finished(RESULT), JobStatus.SUCCESS, ""), (Crashed("boom" * 999), JobStatus.FAILED, ("boom" * 999)[:1000]),
    (GivenBack("tired"), JobStatus.RELEASED, "tired"),
])
def test_an_end_is_reported_until_it_is_answered(outcome: object, status: JobStatus, reason: str) -> None:
    core = WorkerCore(1)
    given(core, "a")
    core.ended(1, outcome)  # type: ignore[arg-type]
    for _ in range(2):
        request = asked(core)
        results = RESULT if status is JobStatus.SUCCESS else None
        assert request == PollRequest((StatusUpdate("a", 5, status, results, reason, "seal 5"),), 1)
    response = answer(request, Verdict.ACCEPTED)
    assert core.answered(request, response) == (Settled("a", status, Verdict.ACCEPTED, "told so"),)
    assert core.is_idle
    assert asked(core) == PollRequest(job_capacity=1)


@pytest.mark.parametrize("verdict", [*LOST, Verdict.BAD_RESULT, Verdict.SOURCES_GONE])
def test_a_report_that_is_refused_for_good_is_not_repeated(verdict: Verdict) -> None:
    core = WorkerCore(1)
    given(core, "a")
    core.ended(1, Finished(RESULT))
    request = asked(core)
    assert core.answered(request, answer(request, verdict)) == (Settled("a", JobStatus.SUCCESS, verdict, "told so"),)
    assert core.is_idle


def test_a_job_that_ends_while_it_is_renewed_is_reported_next() -> None:
    core = WorkerCore(1)
    given(core, "a")
    request = asked(core)
    core.ended(1, Finished(RESULT))
    response = answer(request, Verdict.ACCEPTED, Assignment("a", 5, 1015.0, "again"))
    assert core.answered(request, response) == ()
    assert asked(core).status_updates == (StatusUpdate("a", 5, JobStatus.SUCCESS, RESULT, seal="again"),)


def test_a_job_that_ends_while_it_is_lost_is_not_reported() -> None:
    core = WorkerCore(1)
    given(core, "a")
    request = asked(core)
    core.ended(1, Finished(RESULT))
    (settled,) = core.answered(request, answer(request, Verdict.STALE_TOKEN))
    assert settled == Settled("a", JobStatus.SUCCESS, Verdict.STALE_TOKEN, "told so")
    assert core.is_idle


def test_only_the_answer_to_the_last_poll_counts() -> None:
    core = WorkerCore(1)
    first = asked(core)
    second = asked(core)
    response = PollResponse((plan("a"),), (Assignment("a", 5, 1015.0),), now=1000.0)
    assert core.answered(first, response) == ()
    assert core.answered(second, response) != ()
    assert core.answered(second, response) == ()


@pytest.mark.parametrize("verdict", list(Verdict))
def test_an_answer_that_says_lost_and_assigned_again_ends_the_run_and_begins_another(verdict: Verdict) -> None:
    core = WorkerCore(2)
    given(core, "a")
    request = asked(core)
    response = PollResponse((plan("a"),), (Assignment("a", 9, 1015.0),), (StatusAnswer("a", verdict),), now=1000.0)
    stop, start = core.answered(request, response)
    assert isinstance(stop, Stop)
    assert (stop.run, stop.name, stop.lost) == (1, "a", True)
    assert start == Start(2, plan("a"), 9, 15.0)
    # What the lost run ends in means nothing.
    core.ended(1, Finished(RESULT))
    assert asked(core).status_updates == (StatusUpdate("a", 9, JobStatus.IN_PROGRESS),)
    core.ended(2, Finished(RESULT))
    assert asked(core).status_updates == (StatusUpdate("a", 9, JobStatus.SUCCESS, RESULT),)


def test_a_result_of_a_job_that_is_lost_and_assigned_again_is_thrown_away() -> None:
    core = WorkerCore(1)
    given(core, "a")
    request = asked(core)
    core.ended(1, Finished(RESULT))
    response = PollResponse((plan("a"),), (Assignment("a", 9, 1015.0),), (StatusAnswer("a", Verdict.STALE_TOKEN),),
                            now=1000.0)
    assert core.answered(request, response) == (Settled("a", JobStatus.SUCCESS, Verdict.STALE_TOKEN, ""),
                                                Start(2, plan("a"), 9, 15.0))
    assert asked(core).status_updates == (StatusUpdate("a", 9, JobStatus.IN_PROGRESS),)


def test_a_report_about_which_nothing_changed_ends_with_a_later_assignment() -> None:
    core = WorkerCore(1)
    given(core, "a")
    core.ended(1, Finished(RESULT))
    request = asked(core)
    response = PollResponse((plan("a"),), (Assignment("a", 9, 1015.0),), (StatusAnswer("a", Verdict.SUPERSEDED),),
                            now=1000.0)
    assert core.answered(request, response) == (Settled("a", JobStatus.SUCCESS, Verdict.SUPERSEDED, ""),
                                                Start(2, plan("a"), 9, 15.0))


def test_a_worker_without_room_gives_the_later_assignment_back_until_the_lost_run_has_ended() -> None:
    core = WorkerCore(1)
    given(core, "a")
    request = asked(core)
    response = PollResponse((plan("a"),), (Assignment("a", 9, 1015.0),), (StatusAnswer("a", Verdict.STALE_TOKEN),),
                            now=1000.0)
    assert [type(effect) for effect in core.answered(request, response)] == [Stop]
    (update,) = asked(core).status_updates
    assert (update.token, update.status) == (9, JobStatus.RELEASED)


def test_the_same_assignment_a_second_time_is_a_renewal() -> None:
    core = WorkerCore(2)
    given(core, "a")
    assert given(core, "a", now=10.0) == (Renewed(1, 25.0), Renewed(1, 25.0))


def test_a_job_that_was_lost_and_comes_back_is_a_new_run() -> None:
    core = WorkerCore(2)
    given(core, "a")
    request = asked(core)
    core.answered(request, answer(request, Verdict.STALE_TOKEN))
    assert given(core, "a", token=9) == (Start(2, plan("a"), 9, 15.0),)
    core.ended(1, Finished(RESULT))
    assert asked(core).status_updates[0].status is JobStatus.IN_PROGRESS
    core.ended(2, Finished(RESULT))
    assert asked(core).status_updates[0].status is JobStatus.SUCCESS


def test_more_than_it_has_room_for_is_given_back() -> None:
    core = WorkerCore(1)
    assert [type(effect) for effect in given(core, "a", "b")] == [Start]
    assert [(update.name, update.status) for update in asked(core).status_updates] == [
        ("a", JobStatus.IN_PROGRESS), ("b", JobStatus.RELEASED)]


def test_a_plan_without_a_token_is_no_assignment() -> None:
    core = WorkerCore(1)
    assert core.answered(asked(core), PollResponse((plan("a"),))) == ()
    assert core.jobs == ()


def test_without_an_answer_the_work_is_stopped_in_the_end_and_given_back() -> None:
    core = WorkerCore(1, patience_seconds=100)
    given(core, "a")
    assert core.give_up_overdue(115.0) == ()
    (stop,) = core.give_up_overdue(115.1)
    assert (stop.run, stop.lost) == (1, False)
    assert core.give_up_overdue(200.0) == ()
    assert asked(core).job_capacity == 0
    core.ended(1, Crashed("JobLost"))
    assert asked(core).status_updates == (StatusUpdate("a", 5, JobStatus.RELEASED, reason="JobLost", seal="seal 5"),)


def test_draining_takes_no_more_jobs_and_ends_with_everything_reported() -> None:
    core = WorkerCore(3)
    given(core, "a")
    last = asked(core)
    core.drain()
    late = PollResponse((plan("b"),), (Assignment("a", 5, 1015.0), Assignment("b", 6, 1015.0)), now=1000.0)
    assert [type(effect) for effect in core.answered(last, late)] == [Renewed]
    core.ended(1, Finished(RESULT))
    request = asked(core)
    assert request.job_capacity == 0
    assert [update.status for update in request.status_updates] == [JobStatus.SUCCESS, JobStatus.RELEASED]
    core.answered(request, answer(request, Verdict.ACCEPTED))
    assert core.is_idle
    assert core.poll(0) is None


def test_giving_back_stops_what_runs_but_takes_a_good_end() -> None:
    core = WorkerCore(3)
    given(core, "a", "b", "c")
    core.ended(1, Crashed("by itself"))
    stops = core.give_back("closing time")
    assert [(stop.run, stop.lost, stop.reason) for stop in stops] == [
        (2, False, "closing time"), (3, False, "closing time")]
    assert core.give_back("again") == ()
    core.ended(2, Finished(RESULT))
    core.ended(3, Crashed("stopped"))
    assert [update.status for update in asked(core).status_updates] == [
        JobStatus.FAILED, JobStatus.SUCCESS, JobStatus.RELEASED]


def test_tombstones_come_with_jobs_and_alone_and_are_confirmed_once_all_is_deleted() -> None:
    core = WorkerCore(1, cleanup_capacity=2)
    effects = core.answered(asked(core), PollResponse(
        (plan("a", tombstone("t1")),), (Assignment("a", 5, 1015.0),), (), (tombstone("t2"), tombstone("t3")), 1000.0))
    assert effects[1:] == (Clean(tombstone("t1")), Clean(tombstone("t2")))
    core.cleaned("t1", deleted=True)
    core.cleaned("t2", deleted=False)
    request = asked(core)
    assert request.deleted_tombstones == ("t1",)
    again = PollResponse(assignments=(Assignment("a", 5, 1015.0),), tombstones=(tombstone("t1"), tombstone("t2")))
    # t1 was handed out again before the confirmation had arrived.
    assert core.answered(request, again)[1:] == (Clean(tombstone("t1")), Clean(tombstone("t2")))
    assert asked(core).deleted_tombstones == ()


def test_what_is_deleted_and_not_confirmed_yet_is_not_deleted_again() -> None:
    core = WorkerCore(1, cleanup_capacity=2)
    core.answered(asked(core), PollResponse(tombstones=(tombstone("t1"),)))
    core.cleaned("t1", deleted=True)
    assert core.answered(asked(core), PollResponse()) == ()
    core.cleaned("t2", deleted=True)
    request = asked(core)
    core.cleaned("t3", deleted=True)
    assert core.answered(request, PollResponse(tombstones=(tombstone("t3"),))) == ()
    assert asked(core).deleted_tombstones == ("t3",)


def test_confirmations_come_in_portions() -> None:
    core = WorkerCore(1)
    for number in range(MAX_CONFIRMED + 5):
        core.cleaned(str(number), deleted=True)
    request = asked(core)
    assert len(request.deleted_tombstones) == MAX_CONFIRMED
    core.answered(request, PollResponse())
    assert len(asked(core).deleted_tombstones) == 5


def test_a_worker_without_cleanup_leaves_tombstones_to_others() -> None:
    core = WorkerCore(1)
    assert core.answered(asked(core), PollResponse(tombstones=(tombstone("t"),))) == ()
    assert core.is_idle


@pytest.mark.parametrize("settings_", [{"capacity": 0}, {"capacity": 1, "cleanup_capacity": -1},
                                       {"capacity": 1, "patience_seconds": float("nan")}])
def test_settings_that_are_none(settings_: dict[str, float]) -> None:
    with pytest.raises(InvalidInput):
        WorkerCore(**settings_)  # type: ignore[arg-type]


# ----------------------------------------------------------------------------------------------- output ids


def test_the_ids_of_outputs_depend_on_the_assignment_alone() -> None:
    base = JobPlan(name="job", tenant="", shard=1, compaction_level=0,
                   source_blocks=("01ARZ3NDEKTSV4RRFFQ69G5FAV", "01BX5ZZKBKACTAV9WEVGEMMVRZ"))
    first = output_block_id(base, 41)
    assert first == "01ARZ3NDEKGNMTTPP234BPFQS4"
    assert ulid_seconds(first) == ulid_seconds("01ARZ3NDEKTSV4RRFFQ69G5FAV")
    assert output_block_id(attrs.evolve(base, name="another name", tombstones=(tombstone("t"),)), 41) == first
    others = {output_block_id(base, 41, "A"), output_block_id(base, 41, "B"), output_block_id(base, 41, number=1),
              output_block_id(base, 42), output_block_id(attrs.evolve(base, shard=2), 41),
              output_block_id(attrs.evolve(base, compaction_level=1), 41),
              output_block_id(attrs.evolve(base, source_blocks=base.source_blocks[::-1]), 41),
              output_block_id(attrs.evolve(base, source_blocks=base.source_blocks[:1]), 41), first}
    assert len(others) == 9


def test_sources_that_are_no_ulids_give_ids_of_the_time_0() -> None:
    assert ulid_seconds(output_block_id(plan("a"), 1)) == 0
    assert ulid_seconds(output_block_id(attrs.evolve(plan("a"), source_blocks=()), 1)) == 0


# --------------------------------------------------------------------------------------- any order of events


class CoreMachine(RuleBasedStateMachine):
    """Whatever happens, no slot is lost and none is taken twice."""

    def __init__(self) -> None:
        super().__init__()
        self.core = WorkerCore(3, cleanup_capacity=2, patience_seconds=20)
        self.now = 0.0
        self.asked: list[PollRequest] = []
        self.running: dict[int, tuple[str, int]] = {}
        self.lost: set[int] = set()
        self.cleaning: set[str] = set()
        self.given = 0

    def act(self, effects: tuple[object, ...]) -> None:
        for effect in effects:
            match effect:
                case Start(run, start_plan, token, _):
                    self.running[run] = start_plan.name, token
                    assert len(self.running) <= 3
                case Clean(cleaned):
                    assert cleaned.name not in self.cleaning
                    self.cleaning.add(cleaned.name)
                case Renewed(run, _):
                    assert run in self.running.keys() - self.lost
                case Stop(run, _, lost, _):
                    assert run in self.running.keys() - self.lost
                    self.lost |= {run} if lost else set()

    @rule(seconds=st.sampled_from([1.0, 20.0, 50.0]))
    def poll(self, seconds: float) -> None:
        self.now += seconds
        self.act(self.core.give_up_overdue(self.now))
        request = self.core.poll(self.now)
        if request is not None:
            assert len(request.status_updates) == len(self.core.jobs)
            # A run keeps the token that it began with, and one that was lost is spoken of no more.
            kept = [self.running[run] for run in self.running.keys() - self.lost]
            assert all((update.name, update.token) in kept for update in request.status_updates
                       if update.status == JobStatus.IN_PROGRESS)
            self.asked.append(request)

    @precondition(lambda self: self.asked)
    @rule(data=st.data(), new=st.integers(0, 3), late=st.booleans())
    def answer(self, data: st.DataObject, new: int, late: bool) -> None:
        request = self.asked[-1] if late else data.draw(st.sampled_from(self.asked))
        verdicts = [data.draw(st.sampled_from(Verdict)) for _ in request.status_updates]
        renewed = [Assignment(update.name, update.token, 1015.0)
                   for update, verdict in zip(request.status_updates, verdicts, strict=True)
                   if verdict is Verdict.ACCEPTED and update.status == JobStatus.IN_PROGRESS]
        plans = [plan(f"job {(self.given + number) % 5}") for number in range(new)]
        self.given += new
        self.act(self.core.answered(request, PollResponse(
            tuple(plans), (*renewed, *(Assignment(each.name, self.given, 1015.0) for each in plans)),
            tuple(StatusAnswer(update.name, verdict)
                  for update, verdict in zip(request.status_updates, verdicts, strict=True)),
            tuple(tombstone(f"t{self.given % 4}") for _ in range(new)), 1000.0)))

    @precondition(lambda self: self.running)
    @rule(data=st.data(), outcome=st.sampled_from([Finished(RESULT), Crashed("no"), GivenBack("yes")]))
    def end(self, data: st.DataObject, outcome: Finished) -> None:
        run = data.draw(st.sampled_from(sorted(self.running)))
        del self.running[run]
        self.core.ended(run, outcome)

    @precondition(lambda self: self.cleaning)
    @rule(data=st.data(), deleted=st.booleans())
    def clean(self, data: st.DataObject, deleted: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.cleaning)))
        self.cleaning.remove(name)
        self.core.cleaned(name, deleted=deleted)

    @rule(often=st.integers(0, 9))
    def shut_down(self, often: int) -> None:
        if not often:
            self.act(self.core.give_back("closing time"))

    @invariant()
    def counts(self) -> None:
        assert self.core.free_slots == 3 - len(self.running)

    def teardown(self) -> None:
        self.act(self.core.give_back("closing time"))
        for run in list(self.running):
            self.core.ended(run, Crashed("stopped"))
        for name in self.cleaning:
            self.core.cleaned(name, deleted=True)
        request = self.core.poll(self.now)
        if request is not None:
            assert all(update.status != JobStatus.IN_PROGRESS for update in request.status_updates)
            self.core.answered(request, answer(request, Verdict.ACCEPTED))
        assert self.core.is_idle


TestCoreMachine = CoreMachine.TestCase
TestCoreMachine.settings = settings(stateful_step_count=30)
