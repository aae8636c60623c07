# SPDX-License-Identifier: Apache-2.0
"""Comparisons of all four models: one shape, the same results wherever they run, and errors that name their replay."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from typing import Any

import attrs
import pytest

from compactlib.blobstore import BlobChoice, BlobView, Greedy, StatsBased
from compactlib.errors import InvalidInput
from compactlib.lab import (
    Arrivals,
    BlobLogModel,
    BranchModel,
    Bursts,
    HotCold,
    RaftLogModel,
    SchedulerModel,
    Uniform,
    compare,
)
from compactlib.raftlog import DeadRatio, DropDead, SeedPolicy, SegmentLimits
from compactlib.scheduler import ByPriority, LevelConfig, SchedulerConfig, SmallestFirst
from compactlib.staging import PressurePolicy
from tests.harness.recording import RecordingObserver

RAFTLOG = RaftLogModel(limits=SegmentLimits(max_entries=32), snapshot_every=100)
BLOBS: Any = ([Greedy(min_used_fraction=0.5), StatsBased(min_used_fraction=0.5)],
              [Uniform(keys=300, writes=900), HotCold(keys=300, writes=900)], BlobLogModel.of_slots(40, 16))
KINDS: dict[str, Any] = {
    "blobs": BLOBS,
    "raftlog": ([SeedPolicy(), DropDead()], [HotCold(keys=100, writes=900, record_bytes=50)],
                {"every fourth": RAFTLOG, "half dead": attrs.evolve(RAFTLOG, trigger=DeadRatio(1.0))}),
    "staging": ({str(number): PressurePolicy(deletes=number) for number in (5, 20, 80)},
                [Bursts(keys=400, writes=600, every=100, burst_keys=40)], BranchModel(base_keys=400, range_keys=50)),
    "scheduler": ([ByPriority(), SmallestFirst()], [Arrivals(blocks=120)],
                  {f"lease {lease}, hang {rate}": SchedulerModel(config=SchedulerConfig(
                      levels=(LevelConfig(max_blocks=8, max_age_seconds=30),), lease_seconds=lease,
                      max_failures=0), hang_rate=rate) for lease in (5.0, 60.0) for rate in (0.0, 0.4)}),
}


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        yield pool


@pytest.mark.parametrize("kind", KINDS)
def test_all_cores_give_the_results_of_one_core(kind: str, pool: ProcessPoolExecutor) -> None:
    observer = RecordingObserver()
    here = compare(*KINDS[kind], seeds=(1, 2), observer=observer)
    there = compare(*KINDS[kind], seeds=(1, 2), mapper=pool.map)
    assert there.reports == here.reports
    count = len(here.experiments)
    assert ("experiments", count, count) in [(each.work, each.done, each.total) for each in observer.progresses]


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_names_each_replay_and_has_every_figure(kind: str) -> None:
    policies, workloads, models = KINDS[kind]
    table = compare(policies, workloads, models)
    rows = table.to_dicts()
    assert len(rows) == len(policies) * len(workloads) * (len(models) if isinstance(models, dict) else 1)
    assert len({(row["policy"], row["workload"], row.get("model")) for row in rows}) == len(rows)
    assert all(set(row) == set(rows[0]) for row in rows)
    assert set(rows[0]) >= {"seed", "write_amplification", "space_amplification", "compactions", "refused"}
    assert "write_amplification" in table._repr_html_()
    assert f"{len(rows)} experiments" in repr(table)


def test_thresholds_of_a_sensor_trade_copies_for_reads() -> None:
    rows = compare(*KINDS["staging"], skip=0.0).to_dicts()
    assert [row["policy"] for row in rows] == ["5", "20", "80"]
    copies = [row["write_amplification"] for row in rows]
    assert copies == sorted(copies, reverse=True)


def test_shorter_leases_cost_less_waiting_where_workers_hang() -> None:
    rows = {row["model"]: row for row in compare([ByPriority()], *KINDS["scheduler"][1:], skip=0.0).to_dicts()}
    assert rows["lease 5.0, hang 0.4"]["wait_99_seconds"] < rows["lease 60.0, hang 0.4"]["wait_99_seconds"]
    assert rows["lease 60.0, hang 0.0"]["vain_share"] == 0


class Raising:
    """A policy with a bug."""

    name = "raising"

    def choose(self, view: BlobView, now: float) -> BlobChoice:
        raise ZeroDivisionError("the policy's bug")


def test_an_error_of_a_policy_names_its_replay() -> None:
    workload, model, good = Uniform(keys=200, writes=400), BlobLogModel.of_slots(20, 16), Greedy(min_used_fraction=0.0)
    with ThreadPoolExecutor(2) as pool:
        for mapper in (map, pool.map):
            with pytest.raises(ZeroDivisionError, match="the policy's bug") as caught:
                compare([good, Raising()], [workload], model, mapper=mapper)
            assert caught.value.__notes__ == ["in the replay of raising, uniform"]


@pytest.mark.parametrize("skip", [1, 50, -0.1, float("nan")])
def test_a_part_that_no_table_can_leave_out_is_refused_before_the_replays(skip: float) -> None:
    with pytest.raises(InvalidInput, match="skip is"):
        compare([Greedy(min_used_fraction=0.0)], [Uniform(keys=200, writes=400)], BlobLogModel.of_slots(20, 16),
                skip=skip, mapper=lambda _, experiments: pytest.fail("a replay began"))
