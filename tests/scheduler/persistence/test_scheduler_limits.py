# SPDX-License-Identifier: Apache-2.0
"""Limits: what is above a lowered one leaves, what nobody confirms is kept up to a bound, and both are told."""

from __future__ import annotations

import attrs
import pytest

from compactlib.runtime import RecordingObserver
from compactlib.scheduler import JobStatus, LevelConfig, SchedulerConfig, SchedulerService
from compactlib.scheduler.errors import BadConfig
from compactlib.scheduler.persistence.state_rows import dump_rows, load_rows
from tests.scheduler.build import Host, S, output, say

ONES = SchedulerConfig(levels=(LevelConfig(max_blocks=1), LevelConfig(max_blocks=9)), max_failures=1)


def reconfigured(host: Host, config: SchedulerConfig) -> Host:
    """The same scheduler, loaded under other settings."""
    again = Host(service=SchedulerService(state=load_rows(dump_rows(host.service.state), config)), now=host.now)
    again.index = host.index
    again.audit()
    return again


def test_a_queue_above_a_lowered_limit_is_sound_and_makes_room_in_one_poll() -> None:
    host = Host(attrs.evolve(ONES, max_queue_size=6))
    host.add(*"abcdef")
    response = host.assigned(9)
    host.poll(0, *(say(response, JobStatus.FAILED, which=which, reason="no") for which in range(6)))
    host.now += 1000
    again = reconfigured(host, attrs.evolve(ONES, max_queue_size=2))
    again.add("new")
    again.poll(9)
    assert (len(again.service.state.jobs), len(again.service.quarantine())) == (2, 5)
    assert [plan.source_blocks for plan in again.poll(9).compaction_jobs] == [("new",)]


def test_a_queue_of_sound_jobs_above_a_lowered_limit_is_worked_off_and_takes_no_more() -> None:
    host = Host(attrs.evolve(ONES, max_queue_size=3))
    host.add(*"abc")
    host.poll(9)
    again = reconfigured(host, attrs.evolve(ONES, max_queue_size=1))
    again.add("new")
    response = again.poll(9)
    assert (len(response.compaction_jobs), len(again.service.state.jobs)) == (3, 3)
    again.poll(9, *(say(response, S, which=which, results=output(response.compaction_jobs[which], f"x{which}"))
                    for which in range(3)))
    assert [plan.source_blocks for plan in again.poll(9).compaction_jobs] == [("new",)]


def test_a_quarantine_above_a_lowered_limit_is_sound_and_keeps_the_newest() -> None:
    host = Host(attrs.evolve(ONES, max_queue_size=1, max_quarantine_size=5))
    for name in "abcd":
        host.add(name)
        host.poll(0, say(host.assigned(9), JobStatus.FAILED, reason="no"))
        host.now += 1000
    again = reconfigured(host, attrs.evolve(ONES, max_queue_size=1, max_quarantine_size=1))
    assert len(again.service.quarantine()) == 3
    again.add("e")
    again.poll(9)
    assert [given_up.plan.source_blocks for given_up in again.service.quarantine()] == [("d",)]
    assert again.service.state.quarantine_dropped == 3


def test_tombstones_that_nobody_confirms_are_kept_up_to_a_bound_and_the_oldest_leave_with_a_word() -> None:
    told = RecordingObserver()
    config = attrs.evolve(ONES, levels=ONES.levels[:1], max_tombstones=3, cleanup_delay_seconds=0.0)
    host = Host(service=SchedulerService(config, observer=told))
    for number in range(8):
        host.add(f"b{number}")
        response = host.assigned()
        host.poll(0, say(response, S, results=output(response.compaction_jobs[0], f"x{number}")))
        host.now += 100
    state = host.service.state
    kept = sorted(block for entry in state.tombstones for block in entry.tombstone.blocks)  # type: ignore[union-attr]
    assert kept == ["b5", "b6", "b7"]
    assert state.tombstones_dropped == 5
    dropped = [fields["blocks"] for name, fields in told.events if name == "scheduler_tombstone_dropped"]
    assert dropped == [1] * 5
    again = load_rows(dump_rows(state), config)
    assert again.tombstones_dropped == 5
    # What is no longer remembered is not protected either.
    assert state.index is not None
    assert host.add("b7") != host.add("b0")


@pytest.mark.parametrize("bound", [0, -1, 1 << 20])
def test_a_bound_of_tombstones_that_is_none(bound: int) -> None:
    with pytest.raises(BadConfig, match="max_tombstones"):
        SchedulerConfig(max_tombstones=bound)
