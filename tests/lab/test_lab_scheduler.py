"""The scheduler's replay: the real service, every block compacted, late reports refused."""

from __future__ import annotations

import attrs
import pytest

from compactlib.errors import InvalidInput
from compactlib.lab import SchedulerLoad, replay_scheduler
from compactlib.scheduler import LevelConfig, SchedulerConfig

CONFIG = SchedulerConfig(levels=(LevelConfig(max_blocks=10, max_age_seconds=30),))
LOAD = SchedulerLoad(blocks=200, workers=3)


def test_every_block_is_compacted_once_and_the_seed_decides_everything() -> None:
    report = replay_scheduler(CONFIG, LOAD, seed=5)
    assert replay_scheduler(CONFIG, LOAD, seed=5) == report
    assert replay_scheduler(CONFIG, LOAD, seed=6) != report
    assert (report.left_blocks, len(report.wait_seconds)) == (0, 200)
    assert report.assigned == report.jobs
    assert report.refused == 0
    assert report.write_amplification == pytest.approx(2.0)
    assert "200 blocks" in repr(report)


def test_workers_that_hang_are_fenced_off_and_their_jobs_done_by_others() -> None:
    report = replay_scheduler(attrs.evolve(CONFIG, max_failures=0), attrs.evolve(LOAD, hang_rate=0.3), seed=5)
    assert report.refused > 0
    assert report.assigned > report.jobs
    assert report.left_blocks == 0
    assert report.write_amplification == pytest.approx(2.0)


def test_larger_batches_wait_longer_and_a_second_level_writes_twice() -> None:
    eager = attrs.evolve(CONFIG, levels=(LevelConfig(max_blocks=2, max_age_seconds=30),))
    idle = attrs.evolve(LOAD, workers=40)
    assert replay_scheduler(eager, idle).wait_quantile(0.5) < replay_scheduler(CONFIG, idle).wait_quantile(0.5)
    busy = attrs.evolve(LOAD, workers=1)
    assert replay_scheduler(eager, busy).wait_quantile(0.5) > replay_scheduler(CONFIG, busy).wait_quantile(0.5)
    deep = attrs.evolve(CONFIG, levels=(*CONFIG.levels, LevelConfig(max_blocks=2, max_age_seconds=1)))
    assert replay_scheduler(deep, LOAD).write_amplification > 2.0


def test_a_level_without_an_age_leaves_blocks() -> None:
    stuck = attrs.evolve(CONFIG, levels=(LevelConfig(max_blocks=10),))
    assert replay_scheduler(stuck, LOAD, patience_seconds=600).left_blocks > 0


@pytest.mark.parametrize("changes", [{"blocks": 0}, {"hang_rate": 1.0}, {"workers": -1}])
def test_loads_out_of_range_are_refused(changes: dict[str, float]) -> None:
    with pytest.raises(InvalidInput):
        attrs.evolve(LOAD, **changes)  # type: ignore[arg-type]
