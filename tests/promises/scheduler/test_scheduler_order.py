# SPDX-License-Identifier: Apache-2.0
"""The job that a poll assigns, and the cost of a clock that was ahead."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest

from compactlib.clock import ManualClock
from compactlib.commandlog import CommandLog, KVLog
from compactlib.errors import InvalidInput
from compactlib.kv import MemoryStore
from compactlib.raftlog import LocalLog, LogOptions
from compactlib.scheduler import (
    AssignmentPolicy,
    AssignmentView,
    BlockMeta,
    ByPriority,
    CompactedBlocks,
    FairTenants,
    JobChoice,
    JobStatus,
    LevelConfig,
    NoOutput,
    PollRequest,
    PollResponse,
    Scheduler,
    SchedulerConfig,
    SmallestFirst,
    StatusUpdate,
)

ONES = SchedulerConfig(levels=(LevelConfig(max_blocks=1), LevelConfig(max_blocks=1)), lease_seconds=15.0,
                       max_queue_size=0, max_jobs_per_poll=1 << 19, backoff_seconds=0.0)


class Desk:
    """A scheduler whose jobs have one block each."""

    def __init__(self, policy: AssignmentPolicy | None = None) -> None:
        self.store, self.policy = MemoryStore(), policy
        self.lead(1000.0)
        self.scheduler.configure(ONES)

    def lead(self, now: float) -> None:
        """Have a leader take over whose clock shows this time."""
        self.clock = ManualClock(now)
        self.scheduler = Scheduler(KVLog(self.store, clock=self.clock), policy=self.policy)

    def queue(self, *blocks: BlockMeta) -> None:
        """Make a job of each block; call it once, since a later poll would assign the jobs."""
        self.scheduler.add_blocks(blocks)
        assert self.scheduler.poll(PollRequest(job_capacity=len(blocks))).compaction_jobs == ()

    def take(self, capacity: int = 1) -> PollResponse:
        return self.scheduler.poll(PollRequest(job_capacity=capacity))

    def say(self, answer: PollResponse, status: JobStatus) -> None:
        self.scheduler.poll(PollRequest(tuple(StatusUpdate(lease.name, lease.token, status)
                                              for lease in answer.assignments)))


def sources(answer: PollResponse) -> list[str]:
    return [block for plan in answer.compaction_jobs for block in plan.source_blocks]


def block(name: str, *, tenant: str = "A", level: int = 0, size_bytes: int = 0) -> BlockMeta:
    return BlockMeta(id=name, tenant=tenant, shard=0, level=level, size_bytes=size_bytes)


def test_an_expired_lease_is_found_behind_a_live_lease() -> None:
    desk = Desk()
    desk.queue(block("lost"), block("healthy"))
    assert sources(desk.take()) == ["lost"]
    desk.clock.advance(16.0)
    healthy = desk.take()
    assert sources(healthy) == ["healthy"]
    assert sources(desk.take()) == ["lost"]  # with a failure now
    desk.clock.advance(14.0)
    desk.say(healthy, JobStatus.IN_PROGRESS)
    desk.clock.advance(2.0)
    assert sources(desk.take(2)) == ["lost"]


@pytest.mark.parametrize("policy", [None, ByPriority()])
def test_unassigned_jobs_are_before_expired_then_fewer_failures(policy: AssignmentPolicy | None) -> None:
    desk = Desk(policy)
    desk.queue(block("expired"), block("failed"), block("new"))
    assert sources(desk.take()) == ["expired"]
    failed = desk.take()
    assert sources(failed) == ["failed"]
    desk.say(failed, JobStatus.FAILED)
    desk.clock.advance(16.0)
    assert sources(desk.take(3)) == ["new", "failed", "expired"]


def test_small_levels_are_first() -> None:
    desk = Desk()
    desk.queue(block("large", level=1), block("small"))
    assert sources(desk.take(2)) == ["small", "large"]


def test_a_tenant_with_one_job_waits_for_two_assignments_at_most() -> None:
    desk = Desk(FairTenants())
    desk.queue(*(block(f"{number:05}", tenant="big") for number in range(10_000)), block("mine", tenant="small"))
    assert "mine" in sources(desk.take()) + sources(desk.take())


def test_workers_are_shared_out_by_weights() -> None:
    desk = Desk(FairTenants({"A": 3}))
    desk.queue(*(block(f"{tenant}{number}", tenant=tenant) for tenant in "AB" for number in range(20)))
    taken = [name[0] for _ in range(8) for name in sources(desk.take())]
    assert (taken.count("A"), taken.count("B")) == (6, 2)


def test_the_smallest_job_is_first_unless_another_waits_too_long() -> None:
    for waited, first in ((30.0, "small"), (61.0, "large")):
        desk = Desk(SmallestFirst(max_wait_seconds=60.0))
        desk.queue(block("large", size_bytes=1000), block("small", size_bytes=10))
        desk.clock.advance(waited)
        assert sources(desk.take())[0] == first


def test_a_job_from_a_clock_that_was_ahead_has_waited_too_long() -> None:
    desk = Desk(SmallestFirst(max_wait_seconds=60.0))
    desk.lead(1e9)
    desk.queue(block("large", size_bytes=1000), block("small", size_bytes=10))
    desk.lead(1010.0)
    assert sources(desk.take()) == ["large"]


class Broken:
    name = "broken"

    def __init__(self, *jobs: str) -> None:
        self._jobs = jobs

    def choose(self, view: AssignmentView, now: float) -> JobChoice:
        return JobChoice(self._jobs, "broken")


@pytest.mark.parametrize("jobs", [("no such job",), ("twice", "twice")])
def test_an_invalid_choice_of_a_policy_changes_nothing(jobs: tuple[str, ...]) -> None:
    desk = Desk(Broken(*jobs))
    desk.scheduler.add_blocks([block("a")])
    before = desk.scheduler.status()
    with pytest.raises(InvalidInput, match="choose of the view's jobs"):
        desk.take(5)
    assert desk.scheduler.status() == before


def test_a_lease_of_a_leader_hours_ahead_is_shortened() -> None:
    desk = Desk()
    desk.queue(block("a"))
    desk.lead(1000.0 + 7200.0)
    assert sources(desk.take()) == ["a"]
    desk.lead(1010.0)
    assert sources(desk.take()) == []
    assert desk.scheduler.table().to_dicts()[0]["lease ends in"] == 15.0
    desk.clock.advance(15.5)
    assert sources(desk.take()) == ["a"]


@pytest.mark.parametrize("policy", [None, ByPriority()])
def test_a_back_off_from_a_clock_that_was_ahead_ends(policy: AssignmentPolicy | None) -> None:
    desk = Desk(policy)
    desk.scheduler.configure(attrs.evolve(ONES, backoff_seconds=5.0))
    desk.queue(block("a"))
    answer = desk.take()
    desk.lead(1e9)
    desk.say(answer, JobStatus.FAILED)
    desk.lead(1010.0)
    assert sources(desk.take()) == ["a"]


@pytest.mark.parametrize("wrong", [0.0, 1e9])
@pytest.mark.parametrize("in_folder", [False, True])
def test_one_wrong_reading_of_the_clock_ends_no_lease_and_no_delay(
        in_folder: bool, wrong: float, tmp_path: Path) -> None:
    clock = ManualClock(1000.0)
    log: CommandLog = (LocalLog(tmp_path / "log", LogOptions(clock=clock)) if in_folder
                       else KVLog(MemoryStore(), clock=clock))
    with Scheduler(log, None, ONES) as scheduler:
        scheduler.add_blocks([block("a"), block("b")])
        scheduler.poll(PollRequest(job_capacity=2))
        [done, _] = scheduler.poll(PollRequest(job_capacity=2)).assignments
        results = CompactedBlocks(tenant="A", shard=0, source_blocks=("a",), no_output=NoOutput.EMPTY)
        scheduler.poll(PollRequest((StatusUpdate(done.name, done.token, JobStatus.SUCCESS, results),)))
        for now in (wrong, 1010.0):
            clock.set_now(now)
            answer = scheduler.poll(PollRequest(job_capacity=2))
            assert (answer.compaction_jobs, answer.tombstones) == ((), ())
        assert scheduler.table().to_dicts()[0]["lease ends in"] == 5.0


def test_an_idle_poll_writes_nothing() -> None:
    desk = Desk()
    desk.queue(block("a"))
    desk.take()
    index = desk.scheduler.status()["index"]
    for _ in range(3):
        desk.clock.advance(1.0)
        desk.take()
    assert desk.scheduler.status()["index"] == index
