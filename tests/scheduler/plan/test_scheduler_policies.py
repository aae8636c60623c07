# SPDX-License-Identifier: Apache-2.0
"""Which job goes first is a policy's choice, the leader's alone: orders, reasons, and what replicas make of it."""

from __future__ import annotations

import copy
import pickle
import random
import threading
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import pytest
from hypothesis import given, settings, strategies as st

from compactlib.errors import Busy, Closed, InvalidInput
from compactlib.kv import MemoryStore
from compactlib.scheduler import (
    AddBlocks,
    AssignmentPolicy,
    AssignmentView,
    BlockMeta,
    ByPriority,
    Command,
    CompactedBlocks,
    FairTenants,
    JobChoice,
    JobStatus,
    LevelConfig,
    PollRequest,
    PollResponse,
    SchedulerConfig,
    SchedulerService,
    SmallestFirst,
    StatusUpdate,
    StoredScheduler,
)
from compactlib.scheduler.model.update import Applied
from compactlib.scheduler.persistence.codec import decode_command, encode_command
from compactlib.scheduler.persistence.state_rows import dump_rows, load_rows
from compactlib.scheduler.plan.policy import Lazily, LevelView, TenantLine, WaitingJob
from compactlib.testing import check_policy
from compactlib.testing.views import job_views
from tests.scheduler.build import Host, P, say

ONE_EACH = SchedulerConfig(levels=(LevelConfig(max_blocks=1),) * 2, max_failures=2, backoff_seconds=5.0)
POLICIES: list[AssignmentPolicy] = [
    ByPriority(), ByPriority(0.5), FairTenants(), FairTenants({"A": 3}, 2, 0.3), SmallestFirst(),
    SmallestFirst(max_wait_seconds=5.0, window=2, higher_level_share=0.5)]


def waiting(name: str, size: int = 0, *, level: int = 0, tenant: str = "A", blocks: int = 1,
            added_at: float = 100.0) -> WaitingJob:
    return WaitingJob(name=name, tenant=tenant, shard=1, level=level, blocks=blocks, size_bytes=size, added_at=added_at)


def view_of(ready: Sequence[WaitingJob], again: Sequence[WaitingJob] = (), *, capacity: int = 99) -> AssignmentView:
    """The jobs as a queue would show them: in the order given."""
    levels = []
    for number in sorted({job.level for job in (*ready, *again)}):
        mine = tuple(job for job in ready if job.level == number)
        tenants = tuple(TenantLine(tenant, 0, tuple(job for job in mine if job.tenant == tenant))
                        for tenant in sorted({job.tenant for job in mine}))
        levels.append(LevelView(number, 0, mine, tuple(job for job in again if job.level == number), tenants))
    return AssignmentView(capacity=capacity, levels=tuple(levels), queued=len(ready) + len(again))


SIZES = [waiting("old", 50, added_at=10.0), waiting("big", 900), waiting("small", 7), waiting("same", 7),
         waiting("high", 1, level=1)]


@pytest.mark.parametrize(("policy", "order"), [
    (ByPriority(), ["old", "big", "small", "same", "gave up", "high"]),
    (SmallestFirst(), ["small", "same", "old", "big", "gave up", "high"]),
    (SmallestFirst(max_wait_seconds=60.0), ["old", "small", "same", "big", "gave up", "high"]),
    (SmallestFirst(window=2), ["old", "big", "small", "same", "gave up", "high"]),
    (SmallestFirst(window=1), ["old", "big", "small", "same", "gave up", "high"]),
], ids=["by priority", "smallest", "unless it waited too long", "of the two oldest", "of the oldest"])
def test_the_order_of_a_policy(policy: AssignmentPolicy, order: list[str]) -> None:
    view = view_of(SIZES, [attrs.evolve(waiting("gave up"), failures=1)])
    assert list(policy.choose(view, 100.0).jobs) == order
    assert list(policy.choose(attrs.evolve(view, capacity=3), 100.0).jobs) == order[:3]


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_of_the_smallest_a_job_that_came_back_and_waited_too_long_goes_first(share: float) -> None:
    """Under a steady inflow it was never given out again."""
    old, fresh = waiting("failed", 9, added_at=10.0), waiting("failed later", 9, added_at=90.0)
    policy = SmallestFirst(max_wait_seconds=60.0, higher_level_share=share)
    ready = [waiting("new", 7, added_at=95.0), waiting("newer", 7, added_at=99.0)]
    assert policy.choose(view_of(ready, [fresh, old]), 100.0).jobs == ("failed", "new", "newer", "failed later")
    assert policy.choose(view_of([], [fresh, old]), 100.0).jobs == ("failed", "failed later")


def test_without_sizes_the_one_with_the_fewest_blocks_is_the_smallest() -> None:
    view = view_of([waiting("three", blocks=3), waiting("two", blocks=2), waiting("ten", blocks=10)])
    assert SmallestFirst().choose(view, 100.0).jobs == ("two", "three", "ten")


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_a_policy_keeps_the_contract_on_random_views(policy: AssignmentPolicy) -> None:
    check_policy(policy, job_views(), max_examples=25)


@attrs.frozen
class Greedy:
    """Takes no account of the room there is."""

    name = "greedy"

    def choose(self, view: AssignmentView, now: float) -> JobChoice:
        jobs = tuple(job.name for level in view.levels for job in level.ready)
        return JobChoice(jobs, "all of them" if jobs else view.why_nothing())


def test_a_policy_that_does_not_is_told_what_to_do() -> None:
    with pytest.raises(AssertionError, match=r"cut them to view\.capacity"):
        check_policy(Greedy(), job_views())


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_a_choice_follows_from_its_arguments_alone(policy: AssignmentPolicy) -> None:
    view = view_of(SIZES)
    lazy = attrs.evolve(view, levels=tuple(
        attrs.evolve(level, ready=Lazily(iter, level.ready), again=Lazily(iter, level.again), tenants=Lazily(
            iter, tuple(attrs.evolve(line, jobs=Lazily(iter, line.jobs)) for line in level.tenants)))
        for level in view.levels))
    first = policy.choose(lazy, 100.0)
    assert first == policy.choose(lazy, 100.0) == policy.choose(view, 100.0)
    assert first == copy.deepcopy(policy).choose(pickle.loads(pickle.dumps(lazy)), 100.0)
    assert pickle.loads(pickle.dumps(first)) == first
    assert not first.is_empty
    assert [row["name"] for row in lazy.to_dicts()] == [job.name for job in SIZES]


# --------------------------------------------------------------------------------------------- the reasons of nothing


def failed(host: Host, response: PollResponse) -> None:
    host.poll(0, say(response, JobStatus.FAILED, reason="no"))


def all_leased(host: Host) -> None:
    host.add("a")
    host.assigned()


def one_waits(host: Host) -> None:
    host.add("a")
    failed(host, host.assigned())


def one_excluded(host: Host) -> None:
    one_waits(host)
    host.now += 100
    failed(host, host.poll(1))


@pytest.mark.parametrize("policy", POLICIES, ids=str)
@pytest.mark.parametrize(("story", "capacity", "reason"), [
    (lambda host: None, 1, "no job is queued: blocks become one once a batch has max_blocks"),
    (lambda host: None, 0, "the worker has no room: job_capacity=0"),
    (all_leased, 1, "none of 1 queued jobs is free: 1 are leased (lease_seconds=15.0), 0 wait for their back-off, 0 f"),
    (one_waits, 1, "none of 1 queued jobs is free: 0 are leased (lease_seconds=15.0), 1 wait for their back-off, 0 f"),
    (one_excluded, 1, "0 wait for their back-off, 1 failed max_failures=2 times"),
], ids=["nothing queued", "no room", "leased", "backing off", "excluded"])
def test_where_nothing_is_assigned_the_answer_names_the_gate(policy: AssignmentPolicy, capacity: int, reason: str,
                                                             story: Callable[[Host], None]) -> None:
    host = Host(service=SchedulerService(ONE_EACH, policy=policy))
    story(host)
    answer = host.poll(capacity)
    assert answer.compaction_jobs == ()
    assert reason in answer.why


def test_a_store_that_writes_nothing_down_names_the_gate_too() -> None:
    scheduler = StoredScheduler(MemoryStore(), ONE_EACH)
    assert "no job is queued" in scheduler.poll(PollRequest(job_capacity=1)).why


def test_the_update_says_who_chose_and_why() -> None:
    host = Host(service=SchedulerService(ONE_EACH, policy=FairTenants()))
    host.add("a")
    host.poll(1)
    update = host.service.prepare(host.command(), PollRequest(job_capacity=1))
    assert (update.policy, update.why) == ("fair_tenants", "tenants in weighted turns")
    [job] = update.assigned_jobs
    assert update.turns == ((0, "A", 0, 1 << 20),)
    result = host.apply(update)
    assert isinstance(result, Applied)
    assert result.response.why == "tenants in weighted turns"
    assert [plan.name for plan in result.response.compaction_jobs] == [job.state.name]


def test_a_job_knows_the_bytes_of_its_sources() -> None:
    host = Host(service=SchedulerService(SchedulerConfig(levels=(LevelConfig(max_blocks=2),)), policy=SmallestFirst()))
    sizes = {"a": 500, "b": 400, "c": 1, "d": 2}
    host.apply(AddBlocks(tuple(BlockMeta(id=name, tenant="A", shard=1, level=0, size_bytes=size)
                               for name, size in sizes.items())))
    answer = host.assigned(2)
    assert [(plan.source_blocks, plan.size_bytes) for plan in answer.compaction_jobs] == [(("c", "d"), 3),
                                                                                         (("a", "b"), 900)]


# ------------------------------------------------------------------------------------------------- strange policies


@attrs.frozen
class Strange:
    """Answers what it was told to."""

    answer: Callable[[AssignmentView], Any]
    name: Any = "strange"

    def choose(self, view: AssignmentView, now: float) -> JobChoice:
        answer = self.answer(view)
        if isinstance(answer, Exception):
            raise answer
        return answer  # type: ignore[no-any-return]


def names(view: AssignmentView) -> list[str]:
    return [job.name for level in view.levels for job in level.ready]


@pytest.mark.parametrize(("answer", "message"), [
    (lambda view: None, "chose None; answer a JobChoice"),
    (lambda view: ["a"], "answer a JobChoice"),
    (lambda view: JobChoice(("nobody",), "x"), "job 'nobody', which may not be assigned now"),
    (lambda view: JobChoice((names(view)[0],) * 2, "x"), "or a second time"),
    (lambda view: JobChoice(tuple(names(view)), "x"), "3 jobs, where the poll has room for 2"),
    (lambda view: JobChoice((), "x", shared=((0, "one"),)), "the turns"),  # type: ignore[arg-type]
    (lambda view: JobChoice((), "x", turns=((0, "A", 1),)), "the turns"),  # type: ignore[arg-type]
    (lambda view: JobChoice((), None), "the turns"),  # type: ignore[arg-type]
])
def test_a_choice_that_cannot_be_carried_out_is_refused_and_changes_nothing(answer: Callable[[AssignmentView], Any],
                                                                            message: str) -> None:
    host = Host(service=SchedulerService(ONE_EACH, policy=Strange(answer)))
    host.add("a", "b", "c")
    host.service.policy = ByPriority()
    host.poll(3)
    host.service.policy = Strange(answer)
    before = list(dump_rows(host.service.state))
    with pytest.raises(InvalidInput, match=message):
        host.poll(2)
    host.audit()
    assert list(dump_rows(host.service.state)) == before


def test_what_a_policy_raises_reaches_whoever_polls_and_the_next_poll_goes_on() -> None:
    scheduler = StoredScheduler(MemoryStore(), ONE_EACH, policy=Strange(lambda view: ZeroDivisionError("a slip")))
    with pytest.raises(ZeroDivisionError, match="a slip"):
        scheduler.poll(PollRequest(job_capacity=1))
    assert scheduler.poll(PollRequest()).why.startswith("the worker has no room")
    scheduler.audit()


def test_a_policy_that_calls_its_scheduler_is_told_that_it_is_busy() -> None:
    calls: list[Callable[[], object]] = [
        lambda: scheduler.close(), lambda: scheduler.poll(PollRequest()), lambda: scheduler.apply(AddBlocks(())),
        lambda: scheduler.checkpoint(), lambda: scheduler.audit()]

    def choose(view: AssignmentView) -> JobChoice:
        for call in calls:
            with pytest.raises(Busy, match="called from within it"):
                call()
        return JobChoice((), view.why_nothing())

    scheduler = StoredScheduler(MemoryStore(), ONE_EACH, policy=Strange(choose))
    # In a thread, so that a call that waits for itself fails the test instead of hanging it.
    polling = threading.Thread(target=lambda: scheduler.poll(PollRequest(job_capacity=1)), daemon=True)
    polling.start()
    polling.join(60)
    assert not polling.is_alive()
    scheduler.apply(AddBlocks(()))
    scheduler.close()
    scheduler.close()
    with pytest.raises(Closed):
        scheduler.poll(PollRequest())


def test_a_policy_sees_what_may_be_assigned_and_nothing_else() -> None:
    seen: list[list[str]] = []

    def look(view: AssignmentView) -> JobChoice:
        seen.append([job.name for level in view.levels for jobs in (level.ready, level.again) for job in jobs])
        for level in view.levels:
            assert sorted(job.name for line in level.tenants for job in line.jobs) == sorted(
                job.name for job in level.ready)
        return ByPriority().choose(view, 0.0)

    host = Host(service=SchedulerService(ONE_EACH, policy=Strange(look)))
    host.add("a", "b", "c")
    answer = host.assigned(2)
    held = [plan.name for plan in answer.compaction_jobs]
    host.poll(1, say(answer, JobStatus.RELEASED), say(answer, P, which=1))
    [third] = seen[2]
    assert (seen[0], sorted(seen[1])) == ([], sorted(held))
    assert third not in held, "neither what was released in this very poll nor what was renewed"
    host.now += 100
    host.poll(1)
    assert sorted(seen[-1]) == sorted([*held, third]), "the released one, and those whose leases are over"


# --------------------------------------------------------------------------------------------------------- replicas


class Group:
    """Replicas, each with a policy of its own; any of them may lead the next poll."""

    def __init__(self, policies: Sequence[AssignmentPolicy]) -> None:
        self.replicas = [SchedulerService(ONE_EACH, policy=policy) for policy in policies]
        self.log: list[bytes] = []
        self.now = 1000.0

    def command(self) -> Command:
        return Command(len(self.log) + 1, 1, self.now)

    def apply(self, operation: Any) -> Any:
        """As it comes from the log."""
        record = encode_command(self.command(), operation)
        self.log.append(record)
        answers = [replica.apply(*decode_command(record)) for replica in self.replicas]
        assert answers.count(answers[0]) == len(answers)
        return answers[0]

    def poll(self, leader: int, request: PollRequest) -> PollResponse:
        result = self.apply(self.replicas[leader].prepare(self.command(), request))
        assert isinstance(result, Applied)
        return result.response

    def check(self) -> None:
        first, *others = (list(dump_rows(replica.state)) for replica in self.replicas)
        assert all(other == first for other in others)
        for replica in self.replicas:
            replica.audit()


@settings(max_examples=25)
@given(st.integers(0, 1 << 32), st.permutations(POLICIES))
def test_leaders_with_different_policies_and_replays_with_others_never_diverge(
        seed: int, policies: Sequence[AssignmentPolicy]) -> None:
    rng = random.Random(seed)
    group = Group(policies[:3])
    held: list[tuple[str, int, tuple[str, ...], str, int]] = []
    for step in range(30):
        group.now += rng.choice([0.0, 1.0, 20.0])
        if rng.random() < 0.4:
            group.apply(AddBlocks(tuple(
                BlockMeta(id=f"{step}-{place}", tenant=rng.choice("ABC"), shard=1, level=rng.randrange(2),
                          size_bytes=rng.randrange(100)) for place in range(rng.randint(1, 4)))))
            continue
        said = []
        for name, token, sources, tenant, level in rng.sample(held, min(len(held), 2)):
            status = JobStatus(rng.choice([1, 2, 3, 4]))
            results = CompactedBlocks(tenant=tenant, shard=1, source_blocks=sources, new_blocks=(
                BlockMeta(id=f"{name}@{token}", tenant=tenant, shard=1, level=level + 1),))
            said.append(StatusUpdate(name, token, status, results if status is JobStatus.SUCCESS else None))
        answer = group.poll(rng.randrange(3), PollRequest(tuple(said), rng.randint(0, 3)))
        tokens = {lease.name: lease.token for lease in answer.assignments}
        held += [(plan.name, tokens[plan.name], plan.source_blocks, plan.tenant, plan.compaction_level)
                 for plan in answer.compaction_jobs]
        group.check()
    for policy in policies[3:]:
        cut = rng.randrange(len(group.log) + 1)
        replica = SchedulerService(ONE_EACH, policy=policy)
        for record in group.log[:cut]:
            replica.apply(*decode_command(record))
        loaded = SchedulerService(state=load_rows(dump_rows(replica.state), ONE_EACH), policy=policy)
        for record in group.log[cut:]:
            loaded.apply(*decode_command(record))
        assert list(dump_rows(loaded.state)) == list(dump_rows(group.replicas[0].state))


def test_turns_go_on_from_leader_to_leader() -> None:
    group = Group([FairTenants(), ByPriority(), FairTenants()])
    group.apply(AddBlocks(tuple(BlockMeta(id=f"{tenant}{number}", tenant=tenant, shard=1, level=0)
                                for tenant in "AB" for number in range(6))))
    group.poll(0, PollRequest(job_capacity=20))
    tenants = []
    for leader in (0, 2, 1, 2, 0):
        group.now += 1
        [plan] = group.poll(leader, PollRequest(job_capacity=1)).compaction_jobs
        tenants.append(plan.tenant)
        group.check()
    # The second leader knows that A had its turn; the third goes by age, takes no turns, and moves nobody's.
    assert tenants == ["A", "B", "A", "A", "B"]
