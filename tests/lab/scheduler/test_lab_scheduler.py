# SPDX-License-Identifier: Apache-2.0
"""The scheduler's replay: the real service, every block compacted, late reports refused."""

from __future__ import annotations

import math

import attrs
import pytest

from compactlib.errors import InvalidInput
from compactlib.lab import SchedulerLoad, SchedulerSettings, replay_scheduler
from compactlib.lab.scheduler.report import SchedulerMeasures, SchedulerReport
from compactlib.scheduler import LevelConfig, SchedulerConfig
from tests.harness.recording import RecordingObserver

CONFIG = SchedulerConfig(levels=(LevelConfig(max_blocks=10, max_age_seconds=30),))
LOAD = SchedulerLoad(blocks=200, workers=3)


def test_every_block_is_compacted_once_and_the_seed_decides_everything() -> None:
    report = replay_scheduler(CONFIG, LOAD, seed=5)
    assert replay_scheduler(CONFIG, LOAD, seed=5) == report
    assert replay_scheduler(CONFIG, LOAD, seed=6) != report
    assert (report.total.left_blocks, len(report.total.waits)) == (0, 200)
    assert report.total.assigned == report.total.compactions
    assert report.total.refused == 0
    assert report.total.write_amplification == pytest.approx(2.0)
    assert "200 blocks" in repr(report)


def test_workers_that_hang_are_fenced_off_and_their_jobs_done_by_others() -> None:
    report = replay_scheduler(attrs.evolve(CONFIG, max_failures=0), attrs.evolve(LOAD, hang_rate=0.3), seed=5)
    assert report.total.refused > 0
    assert report.total.assigned > report.total.compactions
    assert report.total.left_blocks == 0
    # What they wrote was written in vain, and is deleted in the end.
    assert report.total.write_amplification > 2.0
    assert report.total.vain_share == pytest.approx(report.total.refused / report.total.assigned)
    assert report.total.used_bytes == report.total.live_bytes


def test_bytes_and_blocks_add_up_and_time_to_reclaim_is_the_delay_and_a_poll() -> None:
    config = attrs.evolve(CONFIG, cleanup_delay_seconds=100.0)
    report = replay_scheduler(config, attrs.evolve(LOAD, kept_part=0.5, workers=20), SchedulerSettings(
        intervals=5, capacity_bytes=1 << 30), seed=2)
    total = report.total
    assert total.live_bytes == total.used_bytes == pytest.approx(total.user_bytes / 2, rel=1e-6)
    assert total.reclaimed_bytes == total.user_bytes == total.read_bytes
    assert total.copied_per_reclaimed == pytest.approx(0.5, rel=1e-6)
    assert 100 < total.seconds_to_reclaim < 130
    assert 1 < total.space_amplification < 3
    assert total.peak_fill == total.peak_used_bytes / (1 << 30)
    assert len(report.intervals) in (5, 6)
    assert sum(each.operations for each in report.intervals) == report.total.operations == 200
    assert [each.start for each in report.intervals[1:]] == [each.end for each in report.intervals[:-1]]
    assert SchedulerReport.from_json(report.to_json()) == report


@pytest.mark.parametrize(("share", "wait"), [(0.0, 1.0), (0.01, 1.0), (0.07, 7.0), (0.5, 50.0), (0.99, 99.0),
                                             (0.995, 100.0), (1.0, 100.0)])
def test_a_share_of_the_waits_is_the_least_that_so_many_do_not_exceed(share: float, wait: float) -> None:
    assert SchedulerMeasures(waits=tuple(map(float, range(1, 101)))).wait_quantile(share) == wait


def test_half_of_two_waits_is_the_shorter_one() -> None:
    assert SchedulerMeasures(waits=(9.0, 1.0)).median_wait_seconds == 1.0
    assert math.isnan(SchedulerMeasures().median_wait_seconds)


def test_jobs_that_fail_are_tried_again_until_they_are_given_up() -> None:
    load = attrs.evolve(LOAD, failure_rate=0.5, workers=8)
    patient = replay_scheduler(attrs.evolve(CONFIG, max_failures=0), load, seed=3).total
    assert patient.left_blocks == patient.given_up == 0
    assert patient.failed == patient.assigned - patient.compactions > 5
    strict = replay_scheduler(attrs.evolve(CONFIG, max_failures=1), load, seed=3).total
    assert strict.given_up == strict.failed > 0
    assert strict.left_blocks > 0
    assert strict.end < 86_400  # Nobody waits for them.


def test_blocks_may_come_in_bursts() -> None:
    smooth, bursts = (replay_scheduler(CONFIG, attrs.evolve(LOAD, burst_blocks=each, workers=1)) for each in (1, 100))
    assert bursts.total.operations == smooth.total.operations
    assert bursts.total.median_wait_seconds > smooth.total.median_wait_seconds


def test_progress_is_told_in_blocks() -> None:
    observer = RecordingObserver()
    replay_scheduler(CONFIG, LOAD, observer=observer)
    assert [(each.done, each.total, each.unit) for each in observer.progresses] == [
        (100, 200, "blocks"), (200, 200, "blocks")]


def test_larger_batches_wait_longer_and_a_second_level_writes_twice() -> None:
    eager = attrs.evolve(CONFIG, levels=(LevelConfig(max_blocks=2, max_age_seconds=30),))
    idle = attrs.evolve(LOAD, workers=40)
    busy = attrs.evolve(LOAD, workers=1)
    half = [replay_scheduler(config, load).total.median_wait_seconds
            for load in (idle, busy) for config in (eager, CONFIG)]
    assert half[0] < half[1]
    assert half[2] > half[3]
    deep = attrs.evolve(CONFIG, levels=(*CONFIG.levels, LevelConfig(max_blocks=2, max_age_seconds=1)))
    assert replay_scheduler(deep, LOAD).total.write_amplification > 2.0


def test_a_level_without_an_age_leaves_blocks() -> None:
    stuck = attrs.evolve(CONFIG, levels=(LevelConfig(max_blocks=10),))
    assert replay_scheduler(stuck, LOAD, settings=SchedulerSettings(patience_seconds=600)).total.left_blocks > 0


@pytest.mark.parametrize("changes", [
    {"blocks": 0}, {"hang_rate": 1.0}, {"workers": -1}, {"hang_rate": 0.5, "failure_rate": 0.5}, {"kept_part": 0.0}])
def test_loads_out_of_range_are_refused(changes: dict[str, float]) -> None:
    with pytest.raises(InvalidInput):
        attrs.evolve(LOAD, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("changes", [{"patience_seconds": -1.0}, {"intervals": 0}, {"capacity_bytes": -1}])
def test_settings_out_of_range_are_refused(changes: dict[str, float]) -> None:
    with pytest.raises(InvalidInput):
        SchedulerSettings(**changes)  # type: ignore[arg-type]
