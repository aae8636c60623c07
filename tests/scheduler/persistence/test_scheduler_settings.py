# SPDX-License-Identifier: Apache-2.0
"""Settings change: what was carried out under some is never judged again by others, wherever the log is replayed."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from hypothesis import given, settings, strategies as st

from compactlib.scheduler import (
    AddBlocks,
    BlockMeta,
    Command,
    CompactedBlocks,
    JobStatus,
    LevelConfig,
    PollRequest,
    PollResponse,
    SchedulerConfig,
    SchedulerService,
    StatusUpdate,
)
from compactlib.scheduler.model.poll import Verdict
from compactlib.scheduler.model.update import Applied, Operation
from compactlib.scheduler.model.values import BlockTombstones
from compactlib.scheduler.persistence.codec import decode_command, encode_command
from compactlib.scheduler.persistence.plain import to_plain
from compactlib.scheduler.persistence.state_rows import dump_rows, load_rows, under
from compactlib.scheduler.queue.metadata_index import MetadataIndex
from compactlib.scheduler.queue.state import SchedulerState
from tests.harness.scheduler_history import SchedulerHistory, SchedulerStep, scheduler_histories

LEVELS = st.builds(LevelConfig, max_blocks=st.integers(1, 4), max_age_seconds=st.sampled_from([0.0, 5.0, 40.0]),
                   max_range_seconds=st.sampled_from([0.0, 6.0]))


def configs(**fixed: Any) -> st.SearchStrategy[SchedulerConfig]:
    """Legal settings of all kinds."""
    drawn: dict[str, st.SearchStrategy[Any]] = {
        "levels": st.lists(LEVELS, min_size=1, max_size=3).map(tuple), "max_failures": st.integers(0, 3),
        "lease_seconds": st.sampled_from([1.0, 10.0, 60.0]), "max_queue_size": st.sampled_from([0, 1, 2, 4]),
        "max_quarantine_size": st.integers(1, 3), "max_jobs_per_poll": st.integers(1, 5),
        "backoff_seconds": st.sampled_from([0.0, 3.0]),
        "max_backoff_seconds": st.sampled_from([0.0, 10.0]),
        "cleanup_batch_size": st.integers(0, 3), "cleanup_delay_seconds": st.sampled_from([0.0, 15.0]),
        "max_tombstones": st.sampled_from([1, 3, 1000]), "cleanup_lease_seconds": st.sampled_from([0.0, 20.0]),
        "max_releases": st.integers(0, 3), "tokens_above": st.sampled_from([0, 0, 7, 1 << 40]),
    }
    return st.builds(SchedulerConfig, **{name: strategy for name, strategy in drawn.items() if name not in fixed},
                     **{name: st.just(value) for name, value in fixed.items()})


def acknowledged(state: SchedulerState, levels: int) -> dict[str, Any]:
    """All that somebody may have been told, and that must not depend on the settings of a replay."""
    assert state.index is not None
    blocks = list(state.index.blocks())
    return {
        "blocks": [to_plain(block) for block in blocks],
        "dropped": state.index.dropped_until(),
        "waiting": [block.id for block in blocks
                    if block.level < levels and state.blocks.holds((block.tenant, block.shard, block.level), block.id)],
        "jobs": {job.state.name: (job.state, job.plan(), job.orphans) for job in state.jobs},
        "tombstones": sorted((attrs.astuple(entry, recurse=False) for entry in state.tombstones), key=repr),
        "quarantine": state.quarantine,
        "forgotten": (state.quarantine_dropped, state.tombstones_dropped),
        "applied": (state.applied, state.timeline, state.polled_term, state.tokens_above),
    }


def replayed(log: list[tuple[Command, Operation]], cut: int, before: SchedulerConfig,
             after: SchedulerConfig) -> SchedulerService:
    """The log carried out: until `cut` under some settings, then stored, loaded, and on under others."""
    service = SchedulerService(before)
    for command, operation in log[:cut]:
        service.apply(command, operation)
    again = SchedulerService(state=load_rows(dump_rows(service.state), after))
    for command, operation in log[cut:]:
        again.apply(*decode_command(encode_command(command, operation)))
    again.audit()
    return again


def check_replay(history: tuple[SchedulerStep, ...], before: SchedulerConfig, after: SchedulerConfig,
                 cut: float) -> None:
    world = SchedulerHistory(before)
    for step in history:
        world.step(step)
    again = replayed(world.log, round(cut * len(world.log)), before, after)
    levels = min(len(before.levels), len(after.levels))
    assert acknowledged(again.state, levels) == acknowledged(world.service.state, levels)
    # Life goes on under the new settings, and nothing is given out for deletion that the index knows.
    index, now = len(world.log), 2000.0
    for _ in range(4):
        index, now = index + 1, now + 1000.0
        response = again.poll(Command(index, 2, now), PollRequest(job_capacity=3))
        tombstones = [*response.tombstones, *(each for plan in response.compaction_jobs for each in plan.tombstones)]
        assert again.state.index is not None
        for tombstone in tombstones:
            assert not isinstance(tombstone, BlockTombstones) or set(tombstone.blocks) == set(
                again.state.index.missing(tombstone.tenant, tombstone.shard, tombstone.blocks))
        again.audit()


def compacted(config: SchedulerConfig, level: int) -> tuple[SchedulerService, list[tuple[Command, Operation]]]:
    """Five jobs of one block each, of this level, were assigned and completed, and their sources' objects deleted."""
    service, log = SchedulerService(config), list[tuple[Command, Operation]]()

    def poll(now: float, request: PollRequest) -> PollResponse:
        command = Command(len(log) + 1, 1, now)
        update = service.prepare(command, request)
        log.append((command, update))
        applied = service.apply(command, update)
        assert isinstance(applied, Applied)
        return applied.response

    log.append((Command(1, 1, 1000.0), AddBlocks(tuple(
        BlockMeta(id=f"b{number}", tenant="A", shard=1, level=level) for number in range(5)))))
    service.apply(*log[0])
    poll(1000.0, PollRequest(job_capacity=9))
    given_out = poll(1000.0, PollRequest(job_capacity=9))
    assert len(given_out.compaction_jobs) == 5
    done = poll(1001.0, PollRequest(tuple(
        StatusUpdate(plan.name, lease.token, JobStatus.SUCCESS, CompactedBlocks(
            tenant="A", shard=1, source_blocks=plan.source_blocks,
            new_blocks=(BlockMeta(id=f"new {plan.source_blocks[0]}", tenant="A", shard=1, level=level + 1),)))
        for plan, lease in zip(given_out.compaction_jobs, given_out.assignments, strict=True))))
    assert {answer.verdict for answer in done.answers} == {Verdict.ACCEPTED}
    due = poll(2000.0, PollRequest(job_capacity=9)).tombstones
    poll(2001.0, PollRequest((), 0, tuple(tombstone.name for tombstone in due)))
    assert len(due) == 5
    return service, log


ONE = LevelConfig(max_blocks=1)


@pytest.mark.parametrize("changes", [
    {"max_queue_size": 2}, {"levels": (ONE,) * 2}, {"levels": (ONE,)}, {"levels": (ONE,) * 5}, {"max_tombstones": 1},
    {"levels": (LevelConfig(max_blocks=9),) * 3}, {"max_failures": 1},
    {"cleanup_lease_seconds": 5.0}], ids=lambda changes: next(iter(changes)))
@pytest.mark.parametrize("cut", range(7))
def test_completions_stay_and_their_outputs_are_not_deleted(changes: dict[str, Any], cut: int) -> None:
    before = SchedulerConfig(levels=(ONE,) * 3, max_queue_size=5)
    after = attrs.evolve(before, **changes)
    service, log = compacted(before, level=2)
    again = replayed(log, cut, before, after)
    levels = min(3, len(after.levels))
    assert acknowledged(again.state, levels) == acknowledged(service.state, levels)
    assert again.state.index is not None
    assert sorted(block.id for block in again.state.index.blocks()) == [f"new b{number}" for number in range(5)]
    assert not list(again.state.tombstones)


def test_blocks_of_a_level_that_is_compacted_again_are_queued() -> None:
    three = SchedulerConfig(levels=(LevelConfig(max_blocks=2),) * 3)
    two, four = (attrs.evolve(three, levels=three.levels[:1] * count) for count in (2, 4))
    state = SchedulerState(three, MetadataIndex())
    SchedulerService(state=state).apply(Command(1, 1, 1000.0), AddBlocks(tuple(
        BlockMeta(id=f"{level}-{name}", tenant="A", shard=1, level=level) for level in range(5) for name in "ab")))
    assert len(state.blocks) == 6
    for config, queued in ((two, 4), (three, 6), (four, 8), (three, 6)):
        state = under(state, config)
        state.audit()
        assert (len(state.blocks), state.unaccounted_blocks()) == (queued, [])
    service = SchedulerService(state=state)
    service.poll(Command(2, 1, 1001.0), PollRequest(job_capacity=9))
    given_out = service.poll(Command(3, 1, 1002.0), PollRequest(job_capacity=9))
    assert [plan.compaction_level for plan in given_out.compaction_jobs] == [0, 1, 2]


HISTORIES = st.tuples(scheduler_histories(), configs(), configs(), st.floats(0, 1))


@settings(max_examples=40, derandomize=True)
@given(HISTORIES)
def test_a_log_replayed_under_any_other_settings_gives_what_was_acknowledged(
        drawn: tuple[tuple[SchedulerStep, ...], SchedulerConfig, SchedulerConfig, float]) -> None:
    check_replay(*drawn)


@pytest.mark.soak
def test_a_thousand_logs_replayed_under_other_settings() -> None:
    @settings(max_examples=1_000, deadline=None)
    @given(HISTORIES)
    def replay(drawn: tuple[tuple[SchedulerStep, ...], SchedulerConfig, SchedulerConfig, float]) -> None:
        check_replay(*drawn)

    replay()
