# SPDX-License-Identifier: Apache-2.0
"""Comparisons, sweeps and grids of all four replays: one shape, and the same results wherever they run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import attrs
import pytest

from compactlib.blobstore import BlobPolicy, Greedy, StatsBased
from compactlib.errors import InvalidInput
from compactlib.executors import ProcessExecutor
from compactlib.lab import (
    BlobSettings,
    Experiment,
    HotCold,
    RaftLogSettings,
    SchedulerLoad,
    SchedulerSettings,
    SensorSettings,
    Uniform,
    compare,
    run_experiments,
    sweep,
)
from compactlib.lab.results.experiments import Comparison, grid
from compactlib.lab.traces.workloads import AppendMostly, Bursts
from compactlib.raftlog import CostPolicy, DeadRatio, EveryNMinors, LogPolicy, SeedPolicy, SegmentLimits
from compactlib.scheduler import LevelConfig, SchedulerConfig
from compactlib.staging import PressurePolicy
from tests.harness.recording import RecordingObserver

RAFTLOG = RaftLogSettings(limits=SegmentLimits(max_entries=32), snapshot_every=100)
LOAD = SchedulerLoad(blocks=120, workers=2)
SENSOR = SensorSettings(base_keys=400, range_keys=50)
COMMON = {"write_amplification", "space_amplification", "copied_per_reclaimed", "read_cost", "seconds_to_reclaim",
          "peak_fill"}


def blobs() -> tuple[Experiment, ...]:
    policies: list[BlobPolicy] = [Greedy(min_used_fraction=0.5), StatsBased(min_used_fraction=0.5)]
    return compare(policies, [Uniform(keys=300, writes=900), HotCold(keys=300, writes=900)],
                   BlobSettings.of_slots(40, 16))


def raftlogs() -> tuple[Experiment, ...]:
    workload = HotCold(keys=100, writes=900, record_bytes=50)
    setups = {"every fourth": RAFTLOG, "half dead": attrs.evolve(RAFTLOG, trigger=DeadRatio(1.0))}
    policies: list[LogPolicy] = [SeedPolicy(), CostPolicy()]
    return compare(policies, [workload], setups, seeds=(1, 2))


def config(lease_seconds: float, max_failures: int, batch: int) -> SchedulerConfig:
    return SchedulerConfig(levels=(LevelConfig(max_blocks=batch, max_age_seconds=30),), lease_seconds=lease_seconds,
                           max_failures=max_failures, cleanup_delay_seconds=20.0)


def schedulers() -> tuple[Experiment, ...]:
    return grid(lambda hang_rate, **settings: Experiment(
        policy=config(**settings), workload=attrs.evolve(LOAD, hang_rate=hang_rate), settings=SchedulerSettings()),
        {"lease_seconds": [5.0, 60.0], "max_failures": [0], "batch": [4, 8], "hang_rate": [0.0, 0.4]})


def sensors() -> tuple[Experiment, ...]:
    return sweep(PressurePolicy, {"deletes": [5, 20, 80]},
                 Bursts(keys=400, writes=600, every=100, burst_keys=40), SENSOR)


KINDS = pytest.mark.parametrize("make", [blobs, raftlogs, schedulers, sensors], ids=lambda make: make.__name__)


@pytest.fixture(scope="module")
def cores() -> Iterator[ProcessExecutor]:
    with nullcontext(ProcessExecutor(2)) as executor:
        yield executor


@KINDS
def test_all_cores_give_the_results_of_one_and_leave_no_file(make: Callable[[], tuple[Experiment, ...]],
                                                             cores: ProcessExecutor, tmp_path: Path) -> None:
    observer = RecordingObserver()
    here = run_experiments(make(), tmp_path, observer=observer)
    there = run_experiments(make(), tmp_path, executor=cores)
    assert there.reports == here.reports
    assert list(tmp_path.iterdir()) == []
    count = len(here.experiments)
    assert ("experiments", count, count) in [(each.work, each.done, each.total) for each in observer.progresses]


@KINDS
def test_a_table_says_what_was_run_and_has_every_figure(make: Callable[[], tuple[Experiment, ...]],
                                                        tmp_path: Path) -> None:
    table = run_experiments(make(), tmp_path)
    rows = table.to_dicts()
    assert len({(row["policy"], row["of"], row.get("setup"), row["seed"]) for row in rows}) == len(rows)
    assert set(table.figures) >= COMMON
    for row in rows:
        assert set(row) >= {*table.figures, "policy", "workload", "seed", "settings", "of"}
    for name in COMMON - {"peak_fill"}:
        assert any(row[name] is not None for row in rows), name
    for report in table.reports:
        assert sum(each.operations for each in report.intervals) == report.total.operations
        assert set(report.to_dicts()[0]) >= set(table.figures)  # type: ignore[attr-defined]
    assert "write_amplification" in table._repr_html_()


@pytest.fixture(scope="module")
def waits(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    return run_experiments(schedulers(), tmp_path_factory.mktemp("schedulers"))


def test_figures_of_one_kind_alone_can_be_asked_for(waits: Comparison) -> None:
    least = min(row["median_wait_seconds"] for row in waits.to_dicts())
    best = waits.best("median_wait_seconds")
    [row] = [row for row in waits.to_dicts() if row["median_wait_seconds"] == least][:1]
    assert best.labels["batch"] == row["batch"]
    with pytest.raises(InvalidInput, match="no best 'read_amplification'"):
        waits.best("read_amplification")


def test_a_figure_that_nobody_knows_has_no_best(waits: Comparison) -> None:
    with pytest.raises(InvalidInput, match="no best 'peak_fill'"):
        waits.best("peak_fill")


def test_shorter_leases_cost_less_waiting_where_workers_hang(waits: Comparison) -> None:
    found = {(row["lease_seconds"], row["hang_rate"], row["batch"]): row for row in waits.to_dicts()}
    for batch in (4, 8):
        assert found[5.0, 0.4, batch]["wait_99_seconds"] < found[60.0, 0.4, batch]["wait_99_seconds"]
        assert found[60.0, 0.0, batch]["vain_share"] == 0


def test_several_setups_are_told_apart(tmp_path: Path) -> None:
    rows = run_experiments(raftlogs(), tmp_path).to_dicts()
    assert [row["setup"] for row in rows] == [*["every fourth"] * 4, *["half dead"] * 4]


def test_a_sweep_of_a_sensor_trades_copies_for_reads(tmp_path: Path) -> None:
    rows = run_experiments(sensors(), tmp_path, skip=0.0).to_dicts()
    assert [row["deletes"] for row in rows] == [5, 20, 80]
    copies = [row["write_amplification"] for row in rows]
    waits = [row["seconds_to_reclaim"] for row in rows]
    assert copies == sorted(copies, reverse=True)
    assert waits == sorted(waits)


def test_workloads_of_every_kind_meet_policies_of_every_kind(tmp_path: Path) -> None:
    """What arrives at a branch is what arrives at a log."""
    workloads = [AppendMostly(keys=50, writes=200, deletes=0.3), Bursts(keys=100, writes=200, every=50, burst_keys=10)]
    experiments = [*compare([SeedPolicy()], workloads, attrs.evolve(RAFTLOG, trigger=EveryNMinors(1))),
                   *compare([PressurePolicy(deletes=5)], workloads, SENSOR)]
    table = run_experiments(experiments, tmp_path)
    assert set(table.figures) == {*COMMON, "read_amplification"}
    assert {row["policy"] for row in table.to_dicts()} >= {"seed"}
