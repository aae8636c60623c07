# SPDX-License-Identifier: Apache-2.0
"""Comparisons and sweeps: in this process, in others and in Spark, with the same results; frames and plots of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from compactlib.blobstore import BlobChoice, BlobPolicy, BlobView, Greedy, StatsBased
from compactlib.errors import CompactlibError, InvalidInput
from compactlib.executors import ProcessExecutor
from compactlib.lab import BlobSettings, HotCold, Uniform, compare, run_experiments, sweep
from compactlib.lab.results.experiments import Comparison
from compactlib.runtime.observe import RecordingObserver

SETTINGS = BlobSettings.of_slots(60, 16)
POLICIES: list[BlobPolicy] = [Greedy(min_used_fraction=0.5, min_reclaimed_segments=2),
                          StatsBased(min_used_fraction=0.5)]
WORKLOADS = [Uniform(keys=500, writes=2_000), HotCold(keys=500, writes=2_000)]


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    return run_experiments(compare(POLICIES, WORKLOADS, SETTINGS, seeds=(1, 2)), tmp_path_factory.mktemp("here"))


def test_every_pair_is_run_and_leaves_no_file(tmp_path: Path) -> None:
    observer = RecordingObserver()
    table = run_experiments(compare(POLICIES, WORKLOADS, SETTINGS), tmp_path, observer=observer)
    assert [(row["policy"], row["workload"]) for row in table.to_dicts()] == [
        ("greedy", "uniform"), ("stats_based", "uniform"), ("greedy", "hot_cold"), ("stats_based", "hot_cold")]
    assert list(tmp_path.iterdir()) == []
    assert ("experiments", 4, 4) in [(each.work, each.done, each.total) for each in observer.progresses]
    least = min(table.to_dicts(), key=lambda row: row["write_amplification"])
    assert (table.best().policy.name, table.best().workload.name) == (least["policy"], least["workload"])
    assert "4 experiments" in repr(table)
    assert "<table>" in table._repr_html_()


def test_all_cores_give_the_same_results(here: Comparison, tmp_path: Path) -> None:
    with ProcessExecutor(2) as executor:
        there = run_experiments(here.experiments, tmp_path, executor=executor)
    assert there.reports == here.reports


def test_a_sweep_tries_every_combination(tmp_path: Path) -> None:
    experiments = sweep(Greedy, {"min_reclaimed_segments": [1, 3], "min_used_fraction": [0.0, 0.8]}, WORKLOADS[0],
                        SETTINGS)
    table = run_experiments(experiments, tmp_path)
    assert [(row["min_reclaimed_segments"], row["min_used_fraction"]) for row in table.to_dicts()] == [
        (1, 0.0), (1, 0.8), (3, 0.0), (3, 0.8)]
    with pytest.raises(InvalidInput, match="no best"):
        table.best("beauty")


class BadPolicy(Greedy):
    def choose(self, view: BlobView, now: float) -> BlobChoice:
        raise CompactlibError("planted")


def test_an_experiment_that_fails_says_why(tmp_path: Path) -> None:
    with pytest.raises(CompactlibError, match="planted"):
        run_experiments(compare([BadPolicy(min_used_fraction=0)], WORKLOADS, SETTINGS), tmp_path)


def test_results_become_a_data_frame(here: Comparison) -> None:
    pytest.importorskip("pandas")
    from compactlib.lab.results.frame import frame

    found = frame(here)
    assert len(found) == 8
    assert found.groupby("policy").write_amplification.mean()["greedy"] >= 1


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_each_question_has_a_plot(here: Comparison, tmp_path: Path, ending: str) -> None:
    pytest.importorskip("matplotlib")
    from compactlib.lab.results import plots

    swept = run_experiments(sweep(Greedy, {"min_reclaimed_segments": [1, 3]}, WORKLOADS[0], SETTINGS), tmp_path)
    drawn = [plots.over_time(here.reports[:2]), plots.side_by_side(here, "read_cost"),
             plots.along(swept, "min_reclaimed_segments"), plots.trade_off(here)]
    for number, figure in enumerate(drawn):
        path = plots.save(figure, tmp_path / f"{number}.{ending}")
        assert Path(path).read_bytes()[:5] in (b"\x89PNG\r", b"<?xml")
    with pytest.raises(InvalidInput, match="png or svg"):
        plots.save(drawn[0], tmp_path / "x.pdf")
    with pytest.raises(InvalidInput, match="no figure"):
        plots.over_time(here.reports, "beauty")
    with pytest.raises(InvalidInput, match="sweep"):
        plots.along(here, "min_reclaimed_segments")
