# SPDX-License-Identifier: Apache-2.0
"""Scheduler jobs that rewrite raftlog segments: what they commit and report, and that a late worker commits nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from compactlib.clock import ManualClock
from compactlib.errors import CorruptData, InvalidInput, NotFound
from compactlib.executors import LocalExecutor, RewriteTask
from compactlib.fences import FencedOff, FileFence, LockingFence, MemoryFence
from compactlib.hosting import LocalLog, RaftlogExecute, SchedulerHost, segment_block_id
from compactlib.hosting.raftlog_execute import TheseSegments, segment_of_block
from compactlib.outcome import Done
from compactlib.raftlog import Entry, LogOptions, SegmentLimits, SegmentLog
from compactlib.report import PolicyRecord
from compactlib.rewrite import RewriteOutcome
from compactlib.runtime import Budget, Observer
from compactlib.scheduler import BlockMeta, JobPlan, LevelConfig, NoOutput, RunningJob, SchedulerConfig, Worker
from compactlib.scheduler.workers.worker_core import Start
from compactlib.testing import check_policy
from compactlib.testing.views import log_views

LIVE = [index for index in range(1, 17) if index % 3 == 0]


@pytest.fixture
def log(memory_path: Path) -> Iterator[SegmentLog]:
    """Five segments of four entries, the first four below the snapshot."""
    with SegmentLog(memory_path / "raftlog", LogOptions(limits=SegmentLimits(max_entries=4))) as opened:
        opened.extend((index, 1, b"command %d" % index) for index in range(1, 20))
        opened.record_snapshot(16, live=LIVE)
        yield opened


def check_contents(log: SegmentLog) -> None:
    for index in range(1, 20):
        answer = log.read(index)
        assert isinstance(answer, Entry) == (index in LIVE or index > 16)
        assert not isinstance(answer, Entry) or answer.payload == b"command %d" % index
    log.audit()


def running(numbers: list[int], token: int = 5, tenant: str = "orders") -> RunningJob:
    plan = JobPlan(name="the-job", tenant=tenant, shard=0, compaction_level=0,
                   source_blocks=tuple(segment_block_id(number) for number in numbers))
    clock = ManualClock(0.0)
    return RunningJob(Start(1, plan, token, 100.0), Budget(clock=clock), clock)


def numbers_of(log: SegmentLog) -> list[int]:
    return [ref.number for ref in log.refs]


def test_a_group_becomes_one_segment(log: SegmentLog) -> None:
    done = RaftlogExecute({"orders": log}, MemoryFence())(running([1, 2, 3], 57))
    assert numbers_of(log) == [1, 4, 5]
    assert done.source_blocks == ("0000000000000001", "0000000000000002", "0000000000000003")
    (block,) = done.new_blocks
    assert (block.id, block.tenant, block.level) == ("0000000000000001@57", "orders", 1)
    assert block.size_bytes == sum(len(b"command %d" % index) for index in LIVE if index <= 12)
    assert done.no_output is None
    check_contents(log)


def test_doing_it_twice_reports_what_is_there(log: SegmentLog) -> None:
    execute = RaftlogExecute({"orders": log}, MemoryFence())
    execute(running([2, 3], 5))
    after = numbers_of(log)
    again = execute(running([2, 3], 8))
    assert numbers_of(log) == after
    assert [block.id for block in again.new_blocks] == ["0000000000000002@8"]
    check_contents(log)


def test_segments_that_are_wholly_dead_leave_nothing(log: SegmentLog) -> None:
    log.record_snapshot(16, live=[15])
    done = RaftlogExecute(lambda tenant: log, MemoryFence())(running([1, 2]))
    assert (done.new_blocks, done.no_output) == ((), NoOutput.EMPTY)
    assert numbers_of(log) == [4, 5]
    # And once more, when they are gone.
    assert RaftlogExecute(lambda tenant: log, MemoryFence())(running([1, 2])).no_output is NoOutput.EMPTY


class Overtaken:
    """Runs the tasks; before the outcome is handed over, the job goes to somebody else."""

    def __init__(self, fence: LockingFence, token: int) -> None:
        self.fence = fence
        self.token = token

    def run(self, tasks: Iterable[RewriteTask], *, budget: Budget | None = None,
            observer: Observer | None = None) -> Iterator[RewriteOutcome]:
        for outcome in LocalExecutor().run(tasks, budget=budget, observer=observer):
            self.fence.admit("the-job", self.token)
            yield outcome


@pytest.mark.parametrize("kind", ["memory", "file"])
def test_a_worker_that_lost_its_job_while_copying_commits_nothing(log: SegmentLog, kind: str,
                                                                  memory_path: Path) -> None:
    fence: LockingFence = MemoryFence() if kind == "memory" else FileFence(memory_path / "fence")
    late = RaftlogExecute({"orders": log}, fence, Overtaken(fence, 9))
    with pytest.raises(FencedOff, match="token 5 is stale"):
        late(running([1, 2, 3], 5))
    assert numbers_of(log) == [1, 2, 3, 4, 5]
    check_contents(log)
    RaftlogExecute({"orders": log}, fence)(running([1, 2, 3], 9))
    assert numbers_of(log) == [1, 4, 5]
    with pytest.raises(FencedOff):
        RaftlogExecute({"orders": log}, fence)(running([1, 2, 3], 8))
    check_contents(log)


def test_segments_are_joined_over_one_whose_file_is_leased(log: SegmentLog) -> None:
    execute = RaftlogExecute({"orders": log}, MemoryFence())
    with log.lease():
        # Segment 2 is dead now, and its file stays until the lease ends, between those that are joined.
        log.record_snapshot(16, live=[3, 9])
        assert [block.id for block in execute(running([1, 2, 3])).new_blocks] == ["0000000000000001@5"]
    assert numbers_of(log) == [1, 5]


def test_segments_that_do_not_fit_into_one_become_several(log: SegmentLog) -> None:
    done = RaftlogExecute({"orders": log}, MemoryFence())(running([1, 2, 3, 4]))
    assert [block.id for block in done.new_blocks] == ["0000000000000001@5", "0000000000000004@5"]
    assert numbers_of(log) == [1, 4, 5]
    check_contents(log)
    # Neither are those that are not neighbours joined.
    done = RaftlogExecute({"orders": log}, MemoryFence())(running([1, 4]))
    assert len(done.new_blocks) == 2


def test_wrong_jobs_are_named(log: SegmentLog) -> None:
    execute = RaftlogExecute({"orders": log}, MemoryFence())
    with pytest.raises(NotFound, match="no log 'other'; it has orders"):
        execute(running([1, 2], tenant="other"))
    for block_id in ("7", "000000000000000x", "0000000000000001@", "0000000000000001@x", "0000000000000000", ""):
        with pytest.raises(InvalidInput, match="not the id of a segment"):
            segment_of_block(block_id)
    assert segment_of_block(segment_block_id(7)) == segment_of_block(segment_block_id(7, 99)) == 7
    with pytest.raises(InvalidInput, match="0 is not the number"):
        segment_block_id(0)


def test_damage_is_told_and_changes_nothing(log: SegmentLog, memory_path: Path) -> None:
    path = memory_path / "raftlog" / "0000000000000002.segment"
    data = bytearray(path.read_bytes())
    place = data.index(b"command 6")
    data[place] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptData):
        RaftlogExecute({"orders": log}, MemoryFence())(running([1, 2]))
    assert numbers_of(log) == [1, 2, 3, 4, 5]


def test_the_policy_keeps_the_contract() -> None:
    check_policy(TheseSegments((2, 3)), log_views())
    assert str(PolicyRecord.of(TheseSegments((2, 3)))) == "these(numbers=(2, 3))"


def test_from_scheduler_to_segment(log: SegmentLog, memory_path: Path) -> None:
    log.record_snapshot(16, live=[3, 6, 9, 15])
    clock = ManualClock(1000.0)
    config = SchedulerConfig(levels=(LevelConfig(max_blocks=2), LevelConfig(max_blocks=2)))
    with SchedulerHost(LocalLog(memory_path / "commands", LogOptions(clock=clock)), None, config) as host:
        host.add_blocks(BlockMeta(id=segment_block_id(number), tenant="orders", shard=0, level=0)
                        for number in (1, 2, 3, 4))
        worker = Worker(host, RaftlogExecute({"orders": log}, FileFence(memory_path / "fence")), clock=clock)
        for _ in range(10):
            worker.run_pending()
        assert worker.is_idle
        assert isinstance(worker.stop(), Done)
        assert numbers_of(log) == [1, 5]
        (block,) = host.look(lambda service: [] if service.state.index is None else list(service.state.index.blocks()))
        assert (segment_of_block(block.id), block.level) == (1, 2)
    assert [entry.index for entry in log.entries()] == [3, 6, 9, 15, 17, 18, 19]
