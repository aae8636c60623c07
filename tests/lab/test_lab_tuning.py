# SPDX-License-Identifier: Apache-2.0
"""Tuning: what is chosen on the first half of a workload is measured on the second, and the limits are kept."""

from __future__ import annotations

import math
from pathlib import Path
from random import Random
from typing import Any

import attrs
import pytest

from compactlib.blobstore import BlobPolicy, CostBenefit, Greedy
from compactlib.errors import InvalidInput
from compactlib.executors import ProcessExecutor
from compactlib.lab import (
    BlobSettings,
    CsvTrace,
    Experiment,
    HotCold,
    Operations,
    RaftLogSettings,
    SensorSettings,
    TtlMix,
)
from compactlib.lab.results.experiments import grid
from compactlib.lab.traces.workloads import Workload
from compactlib.lab.tuning import Stretches, Tuning, tune
from compactlib.raftlog import CostPolicy, SeedPolicy, SegmentLimits
from compactlib.runtime import RecordingObserver
from compactlib.staging import DeletesPolicy

TRACE = HotCold(keys=700, writes=6_000)
SETTINGS = BlobSettings.of_slots(60, 16)


def experiment(aged: int, least: int) -> Experiment:
    policy: BlobPolicy = (CostBenefit if aged else Greedy)(min_used_fraction=0.0, min_reclaimed_segments=least)
    return Experiment(policy=policy, workload=TRACE, settings=SETTINGS)


CANDIDATES = grid(experiment, {"aged": [0, 1], "least": [1, 4]})
TODAY = CANDIDATES[0]


@pytest.fixture(scope="module")
def tuned() -> Tuning:
    return tune(CANDIDATES, today=TODAY)


def rows(pieces: list[Operations]) -> list[tuple[int, ...]]:
    return [(*row, owner) for piece in pieces for row, owner in zip(piece.rows(), piece.owners(), strict=True)]


@pytest.mark.parametrize("workload", [TRACE, TtlMix(keys=300, writes=9_000)])
def test_stretches_are_the_workload_in_equal_pieces(workload: Workload) -> None:
    whole = rows(list(workload.pieces(3)))
    made = list(Stretches(workload, length=433, count=20).pieces(3))
    assert [len(each) for each in made[:-1]] == [433] * (len(made) - 1)
    assert rows(made) == whole[:433 * 20]
    assert made[0].are_plain_puts == next(workload.pieces(3)).are_plain_puts


def test_the_best_of_the_first_half_is_measured_on_the_second(tuned: Tuning) -> None:
    length = sum(map(len, TRACE.pieces(0))) // 20
    first = {tuple(each.labels.values()): attrs.evolve(each, workload=Stretches(TRACE, length, 10)).run().steady(0.5)
             for each in CANDIDATES}
    best = min(first, key=lambda labels: first[labels].write_amplification)
    assert tuple(tuned.chosen.labels.values()) == best
    whole = attrs.evolve(tuned.chosen, workload=Stretches(TRACE, length, 20)).run()
    assert tuned.figures["write_amplification"].expected == whole.steady(0.5).write_amplification
    before = attrs.evolve(TODAY, workload=Stretches(TRACE, length, 20)).run()
    assert tuned.figures["write_amplification"].today == before.steady(0.5).write_amplification
    assert [each.run() for each in tuned.first.experiments] == list(tuned.first.outcomes)


def test_the_report_says_what_to_set_and_what_it_brings(tuned: Tuning) -> None:
    found = tuned.figures["write_amplification"]
    assert found.expected is not None
    assert found.today is not None
    assert found.low is not None
    assert found.high is not None
    assert found.low < found.expected < found.high < found.today
    assert tuned.is_worth_it
    aged, least = tuned.chosen.labels.values()
    assert (f"cost_benefit with aged={aged}, least={least}: expected write amplification {found.expected:.2f} "
            f"({found.low:.2f}..{found.high:.2f}), today {found.today:.2f}") in str(tuned)
    assert {row["figure"] for row in tuned.to_dicts()} >= {"write_amplification", "refused", "peak_fill"}
    assert "<table>" in tuned._repr_html_()


def test_limits_leave_out_what_breaks_them(tuned: Tuning) -> None:
    pauses = {tuple(experiment.labels.values()): report.steady(0.5).most_moved_bytes
              for experiment, report in zip(tuned.first.experiments, tuned.first.reports, strict=True)}
    assert len(set(pauses.values())) > 1
    limit = min(pauses.values())
    short = tune(CANDIDATES, today=TODAY, limits={"most_moved_bytes": limit})
    assert pauses[tuple(short.chosen.labels.values())] == limit
    assert short.figures["most_moved_bytes"].limit == limit
    with pytest.raises(InvalidInput, match=r"none of the 4 experiments .*write_amplification at most 0.5: the least "
                                           r"is \d"):
        tune(CANDIDATES, today=TODAY, limits={"write_amplification": 0.5})
    with pytest.raises(InvalidInput, match="beauty"):
        tune(CANDIDATES, today=TODAY, limits={"beauty": 1})
    with pytest.raises(InvalidInput, match="beauty"):
        tune(CANDIDATES, today=TODAY, least="beauty")


@pytest.mark.parametrize(("asked", "told"), [
    ({"least": "beauty"}, "no figure 'beauty'"), ({"limits": {"beauty": 1.0}}, "no figure 'beauty'"),
    ({"limits": {"peak_fill": None}}, "limit of peak_fill is None"),
    ({"limits": {"peak_fill": math.nan}}, "limit of peak_fill is nan"), ({"skip": 1.0}, "skip is 1.0")])
def test_what_cannot_be_asked_for_is_told_before_the_search(asked: dict[str, Any], told: str) -> None:
    observer = RecordingObserver()
    with pytest.raises(InvalidInput, match=told):
        tune(CANDIDATES, today=TODAY, observer=observer, **asked)
    assert observer.progresses == []


def test_what_refuses_writes_is_not_chosen() -> None:
    full = BlobSettings.of_slots(46, 16)
    lazy = Experiment(policy=Greedy(min_used_fraction=0.0, min_reclaimed_segments=30), workload=TRACE, settings=full,
                      labels={"least": 30})
    eager = attrs.evolve(lazy, policy=Greedy(min_used_fraction=0.0, min_reclaimed_segments=1), labels={"least": 1})
    assert lazy.run().total.refused
    assert tune([lazy, eager], today=eager).chosen == eager


def test_settings_that_are_best_already_stay() -> None:
    found = tune(CANDIDATES[:2], today=CANDIDATES[0], limits={"write_amplification": 100})
    again = tune(CANDIDATES[:2], today=found.chosen)
    assert again.chosen == again.today
    assert not again.is_worth_it
    assert "keep" in str(again)


def test_other_cores_choose_the_same(tuned: Tuning, tmp_path: Path) -> None:
    with ProcessExecutor(2) as executor:
        there = tune(CANDIDATES, today=TODAY, folder=tmp_path, executor=executor)
    assert (there.chosen, there.figures) == (tuned.chosen, tuned.figures)


def test_a_random_search_tries_some(tuned: Tuning) -> None:
    some = tune(CANDIDATES, today=TODAY, tries=2, rng=Random(5))
    assert len(some.first.experiments) <= 3
    assert TODAY.policy in [each.policy for each in some.first.experiments]
    with pytest.raises(InvalidInput, match="tries"):
        tune(CANDIDATES, today=TODAY, tries=0)


def test_logs_and_sensors_are_tuned_alike() -> None:
    load = HotCold(keys=100, writes=2_000, record_bytes=50)
    logs = [Experiment(policy=policy, workload=load,
                       settings=RaftLogSettings(limits=SegmentLimits(max_entries=64), snapshot_every=50),
                       labels={"policy": policy.name}) for policy in (SeedPolicy(), CostPolicy())]
    assert tune(logs, today=logs[0], least="space_amplification").figures["space_amplification"].expected
    branches = [Experiment(policy=DeletesPolicy(threshold=threshold), workload=load,
                           settings=SensorSettings(base_keys=100), labels={"threshold": threshold})
                for threshold in (5, 50)]
    assert tune(branches, today=branches[1]).chosen in branches


def test_what_cannot_be_halved_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "short.csv"
    path.write_text("time,op,key,size,ttl\n0,put,a,1,\n")
    short = attrs.evolve(TODAY, workload=CsvTrace(path))
    with pytest.raises(InvalidInput, match="1 operation"):
        tune([short], today=short)
    with pytest.raises(InvalidInput, match="same workload"):
        tune([short], today=TODAY)
