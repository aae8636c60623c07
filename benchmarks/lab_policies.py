# SPDX-License-Identifier: Apache-2.0
"""The measured tables of docs/lab.md: `python benchmarks/lab.py --policies`."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, get_args

import attrs

from compactlib.blobstore import BlobPolicy, CostBenefit, DChoices, ExpiryForecast, Greedy, StatsBased
from compactlib.blobstore.compaction.plan.policy import CopyOrder
from compactlib.lab import (
    BlobSettings,
    Experiment,
    HotCold,
    RaftLogSettings,
    SchedulerLoad,
    SchedulerSettings,
    SensorSettings,
    TtlMix,
    Uniform,
    Zipf,
    compare,
    run_experiments,
)
from compactlib.lab.blobstore.fifo import OldestFirst
from compactlib.lab.blobstore.placement.dac import DAC
from compactlib.lab.blobstore.placement.fadac import FADaC
from compactlib.lab.blobstore.placement.sepbit import SepBIT
from compactlib.lab.blobstore.placement.user_and_survivors import UserAndSurvivors
from compactlib.lab.results.experiments import Comparison, grid
from compactlib.lab.traces.workloads import Bursts, WithReads, Workload
from compactlib.raftlog import (
    CostPolicy,
    DeadRatio,
    EveryNMinors,
    LogPolicy as RaftLogPolicy,
    RaPolicy,
    SeedPolicy,
    SegmentLimits,
)
from compactlib.raftlog.compaction.sense.trigger import Manual
from compactlib.report import Table
from compactlib.scheduler import LevelConfig, SchedulerConfig
from compactlib.staging.compaction.sense_policies import AnyOf, DeletesPolicy, ListingCostPolicy, SensePolicy


def _run(experiments: Iterable[Experiment], skip: float = 0.5) -> Comparison:
    with tempfile.TemporaryDirectory() as folder:
        return run_experiments(experiments, folder, skip=skip)


def blob_policies() -> Table:
    """Each policy on each workload: a log of 400 segments of 32 records, three quarters full, second half."""
    trigger: dict[str, Any] = {"min_used_fraction": 0.0, "min_reclaimed_segments": 4}
    policies: list[BlobPolicy] = [Greedy(**trigger), CostBenefit(**trigger), StatsBased(**trigger),
                              ExpiryForecast(**trigger), DChoices(**trigger, seed=1), OldestFirst(**trigger)]
    shape: dict[str, Any] = {"keys": 9_600, "writes": 50_000}
    workloads: list[Workload] = [
        Uniform(**shape), HotCold(**shape), Zipf(**shape), Bursts(**shape, every=8_000, burst_keys=1_500),
        TtlMix(**shape, lives_seconds=((0.4, 4.0), (0.2, 1.0)))]
    settings = BlobSettings.of_slots(400, 32)
    # What looks ahead counts by buckets, so that it sees what has died a little later than the others do.
    ahead = attrs.evolve(settings, forecast_seconds=30.0, bucket_seconds=0.2)
    experiments = [each for policy in policies for each in compare(
        [policy], workloads, ahead if isinstance(policy, ExpiryForecast) else settings)]
    found: dict[str, dict[str, object]] = {}
    for row in _run(experiments).to_dicts():
        found.setdefault(row["policy"], {"policy": row["policy"]})[row["workload"]] = row["write_amplification"]
    return Table.from_dicts(list(found.values()), title="blob store: write amplification")


def blob_placements() -> Table:
    """The same log and load by how survivors are laid out: in which order, and into which segments."""
    base = BlobSettings.of_slots(400, 32)
    setups = {"as in a store": base, **{placement.name: attrs.evolve(base, placement=placement)
                                        for placement in (UserAndSurvivors(), DAC(), FADaC(), SepBIT())}}
    trigger: dict[str, Any] = {"min_used_fraction": 0.0, "min_reclaimed_segments": 4}
    workloads = [kind(keys=9_600, writes=50_000) for kind in (Uniform, HotCold, Zipf)]
    found: dict[tuple[str, str, str], dict[str, object]] = {}
    for order in get_args(CopyOrder):
        policies = [kind(**trigger, copy_order=order) for kind in (Greedy, CostBenefit)]
        chosen = setups if order == "choice" else {"as in a store": base}
        for row in _run(compare(policies, workloads, chosen)).to_dicts():
            key = (row["policy"], order, row["setup"])
            found.setdefault(key, dict(zip(("policy", "order", "survivors"), key, strict=True)))[row["workload"]] = row[
                "write_amplification"]
    return Table.from_dicts(list(found.values()), title="blob store: write amplification by how survivors are laid out")


def raftlog_triggers() -> Table:
    """Each policy with each trigger: 2,000 keys of 200 bytes, nine tenths of the writes to a tenth of them."""
    base = RaftLogSettings(limits=SegmentLimits(max_entries=256), snapshot_every=500)
    setups = {"never (minor only)": attrs.evolve(base, trigger=Manual()),
              "EveryNMinors(8)": attrs.evolve(base, trigger=EveryNMinors(8)),
              "DeadRatio(1.0)": attrs.evolve(base, trigger=DeadRatio(1.0)),
              "DeadRatio(3.0)": attrs.evolve(base, trigger=DeadRatio(3.0))}
    policies: list[RaftLogPolicy] = [SeedPolicy(), RaPolicy(), CostPolicy()]
    workload = HotCold(keys=2_000, writes=40_000, record_bytes=200)
    rows = _run(compare(policies, [workload], setups)).to_dicts()
    names = ("write_amplification", "space_amplification", "copied_per_reclaimed", "read_cost", "seconds_to_reclaim")
    return _columns(rows, ("setup", "policy", *names), "Raft log: triggers and policies, hot/cold writes")


def sensor_thresholds() -> Table:
    """Thresholds on a branch of 20,000 keys on which whole folders are deleted, and one operation in five lists."""
    policies: list[SensePolicy] = [DeletesPolicy(100), DeletesPolicy(1_000), DeletesPolicy(10_000),
                                   ListingCostPolicy(1_000), ListingCostPolicy(10_000), AnyOf()]
    workload = WithReads(of=Bursts(keys=20_000, writes=60_000, record_bytes=100, every=3_000, burst_keys=300),
                         reads=0.2)
    settings = SensorSettings(base_keys=20_000, base_bytes=100, tombstone_bytes=20, range_keys=500)
    names = ("read_amplification", "write_amplification", "space_amplification", "seconds_to_reclaim", "compactions")
    return _columns(_run(compare(policies, [workload], settings)).to_dicts(), ("policy", *names),
                    "staging sensor: thresholds, folders deleted")


def scheduler_leases() -> Table:
    """Leases and batches: 1,000 blocks at 2 a second, six workers; none of their jobs hangs, or one in ten."""
    def make(lease_seconds: float, batch: int, hang_rate: float) -> Experiment:
        config = SchedulerConfig(levels=(LevelConfig(max_blocks=batch, max_age_seconds=36),), max_failures=0,
                                 lease_seconds=lease_seconds)
        return Experiment(policy=config, workload=SchedulerLoad(blocks=1_000, workers=6, hang_rate=hang_rate),
                          settings=SchedulerSettings())

    experiments = grid(make, {"batch": [5, 20], "lease_seconds": [6.0, 15.0, 60.0], "hang_rate": [0.0, 0.1]})
    names = ("median_wait_seconds", "wait_99_seconds", "vain_share", "write_amplification", "space_amplification",
             "compactions")
    return _columns(_run(experiments, skip=0.0).to_dicts(), ("batch", "lease_seconds", "hang_rate", *names),
                    "scheduler: leases and batches")


def _columns(rows: Sequence[dict[str, Any]], names: Sequence[str], title: str) -> Table:
    return Table.from_dicts([{name: row[name] for name in names} for row in rows], title=title)


def policy_tables() -> Iterator[Table]:
    """All five, one after the other. A few minutes."""
    for measure in (scheduler_leases, sensor_thresholds, raftlog_triggers, blob_policies, blob_placements):
        yield measure()
