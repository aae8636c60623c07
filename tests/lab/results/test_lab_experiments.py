# SPDX-License-Identifier: Apache-2.0
"""Comparisons and sweeps: in this process, in others and in Spark, with the same results; frames and plots of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from compactlib.blobstore import BlobChoice, BlobPolicy, BlobView, Greedy, StatsBased
from compactlib.errors import CompactlibError, InvalidInput, TaskFailed
from compactlib.executors import LocalExecutor, ProcessExecutor
from compactlib.lab import BlobSettings, HotCold, Uniform, compare, replay_blobs, run_experiments, sweep
from compactlib.lab.results.experiments import Comparison
from compactlib.runtime import RecordingObserver
from compactlib.testing.stand_ins import ExecutorBy

SETTINGS = BlobSettings.of_slots(60, 16)
POLICIES: list[BlobPolicy] = [Greedy(min_used_fraction=0.5, min_reclaimed_segments=2),
                          StatsBased(min_used_fraction=0.5)]
WORKLOADS = [Uniform(keys=500, writes=2_000), HotCold(keys=500, writes=2_000)]


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    return run_experiments(compare(POLICIES, WORKLOADS, SETTINGS, seeds=(1, 2)), tmp_path_factory.mktemp("here"))


def test_an_executor_that_forgets_an_experiment_is_named(tmp_path: Path) -> None:
    forgets = ExecutorBy(lambda tasks, budget, observer: LocalExecutor().run(list(tasks)[1:]))
    table = run_experiments(compare(POLICIES, WORKLOADS[:1], SETTINGS), tmp_path, executor=forgets)
    (experiment, error), = table.failures
    assert experiment.policy == POLICIES[0]
    assert "gave no outcome for the task 'experiment 00000'" in str(error)
    assert len(table.reports) == 1


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


@pytest.mark.parametrize("name", ["seed", "settings", "refused"])
def test_a_parameter_that_a_column_of_every_table_would_hide_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match=name):
        sweep(lambda **_: Greedy(), {"min_reclaimed_segments": [1], name: [1, 2]}, WORKLOADS[0], SETTINGS)


def test_bars_stand_side_by_side_for_whatever_differs_by_more_than_its_seed() -> None:
    pytest.importorskip("matplotlib")
    from compactlib.lab.results import plots

    policies = [Greedy(min_reclaimed_segments=least, min_used_fraction=0.0) for least in (1, 6)]
    workloads = [Uniform(keys=500, writes=writes) for writes in (1_000, 3_000)]
    setups = {"tight": BlobSettings.of_slots(40, 16), "wide": SETTINGS}
    for table in (run_experiments(compare(policies, WORKLOADS, SETTINGS, seeds=(1, 2))),
                  run_experiments(compare(policies[:1], WORKLOADS, setups)),
                  run_experiments(compare(policies[:1], workloads, SETTINGS))):
        drawn: Any = plots.side_by_side(table).axes[0]
        bars = sorted(bar.get_height() for bar in drawn.patches)
        assert len(bars) == len({(each.policy, each.workload, tuple(each.labels.items()))
                                 for each in table.experiments})
        seeds = len({each.seed for each in table.experiments})
        rows = [row["write_amplification"] for row in table.to_dicts()]
        means = sorted(sum(rows[at:at + seeds]) / seeds for at in range(0, len(rows), seeds))
        assert bars == pytest.approx(means)
        shown = [text.get_text() for text in (*drawn.get_legend().get_texts(), *drawn.get_xticklabels())]
        assert len(set(shown)) == len(shown)


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


class Raising:
    """A policy with a bug."""

    name = "raising"

    def choose(self, view: object, now: float) -> BlobChoice:
        raise ZeroDivisionError("the policy's bug")


def test_what_fails_keeps_nothing_of_the_others(tmp_path: Path) -> None:
    settings = BlobSettings.of_slots(20, 16)
    policies: list[BlobPolicy] = [Greedy(min_used_fraction=0.0), Raising()]
    experiments = compare(policies, [Uniform(keys=200, writes=400)], settings)
    for found in (run_experiments(experiments), run_experiments(experiments, tmp_path)):
        assert [experiment.policy.name for experiment, _ in found.failures] == ["raising"]
        assert "the policy's bug" in str(found.failures[0][1])
        [report] = found.reports
        assert report == replay_blobs(Uniform(keys=200, writes=400), Greedy(min_used_fraction=0.0), settings)
        good, bad = found.to_dicts()
        assert (good["error"], bad["write_amplification"]) == (None, None)
        assert "the policy's bug" in bad["error"]
        assert set(good) == set(bad)
        assert found.best().policy.name == "greedy"
        assert "1 failed" in str(found)
    with pytest.raises(TaskFailed, match="the policy's bug"):
        run_experiments(experiments[1:])
    with pytest.raises(InvalidInput, match="no folder"):
        run_experiments(experiments, executor=LocalExecutor(workers=2))


def test_what_has_no_value_is_drawn_as_missing(tmp_path: Path) -> None:
    plots = pytest.importorskip("compactlib.lab.results.plots")
    settings = BlobSettings.of_slots(20, 16)
    policies: list[BlobPolicy] = [Greedy(min_used_fraction=0.0), Raising()]
    found = run_experiments(compare(policies, [Uniform(keys=200, writes=400)], settings))
    [axes] = plots.side_by_side(found).axes
    assert [text.get_text() for text in axes.texts] == ["no value"]
    swept = run_experiments(sweep(lambda part: Raising() if part else Greedy(min_used_fraction=0.0), {"part": [0, 1]},
                                  Uniform(keys=200, writes=400), settings))
    assert "no value" in [text.get_text() for text in plots.heat_map(swept, "part", "part").axes[0].texts]
    for drawn in (plots.along(swept, "part"), plots.trade_off(swept)):
        plots.save(drawn, tmp_path / "drawn.svg")


def test_a_setting_that_may_be_none_or_text_has_its_place_in_a_plot() -> None:
    plots = pytest.importorskip("compactlib.lab.results.plots")
    found = run_experiments(sweep(lambda part, size: Greedy(min_used_fraction=0.0), {
        "part": [None, "a", 2, 1], "size": [1]}, Uniform(keys=200, writes=400), BlobSettings.of_slots(20, 16)))
    [line] = plots.along(found, "part").axes[0].lines
    assert list(line.get_xdata()) == ["1", "2", "a", "None"]
    axes = plots.heat_map(found, "part", "size").axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "2", "a", "None"]
