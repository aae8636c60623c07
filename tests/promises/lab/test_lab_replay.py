# SPDX-License-Identifier: Apache-2.0
"""A replay counts, refuses invalid arguments, and repeats."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs
import pytest

from compactlib.blobstore import BlobChoice, BlobView, CostBenefit, Greedy, StatsBased
from compactlib.errors import InvalidInput
from compactlib.lab import (
    Arrivals,
    BlobLogModel,
    BranchModel,
    Bursts,
    Expiring,
    HotCold,
    RaftLogModel,
    Row,
    SchedulerModel,
    Uniform,
    WithReads,
    Zipf,
    replay,
)
from compactlib.lab.policies import ByEnd, DChoices, DecliningCost
from compactlib.raftlog import EveryNMinors, SeedPolicy, SegmentLimits
from compactlib.raftlog.policies import Elapsed
from compactlib.scheduler import ByPriority, LevelConfig, SchedulerConfig
from compactlib.staging import PressurePolicy
from tests.harness.recording import RecordingObserver

PUT, DELETE, READ, FOREVER = 0, 1, 2, -1
MODEL = BlobLogModel.of_slots(60, 16)
GREEDY = Greedy(min_used_fraction=0, min_reclaimed_segments=2)
CONFIG = SchedulerConfig(levels=(LevelConfig(max_blocks=10, max_age_seconds=30),))
BLOCKS = Arrivals(blocks=200)


def one(kind: int, key: int, size: int = 1, life: int = FOREVER, at: int = 0) -> Row:
    return kind, key, size, life, at


def log_of(model: BlobLogModel, *rows: Row, policy: Any = GREEDY) -> Any:
    log = model.start(policy)
    for row in rows:
        log.apply([row])
    return log


@pytest.mark.parametrize(("workload", "policy", "model"), [
    (Uniform(keys=700, writes=4_000), DChoices(min_used_fraction=0, choices=3, seed=4), MODEL),
    (Expiring(keys=700, writes=4_000), GREEDY, MODEL),
    (Uniform(keys=300, writes=3_000, record_bytes=2, spread=0.5), GREEDY, MODEL),
    (Zipf(keys=700, writes=4_000), GREEDY, attrs.evolve(MODEL, survivors=ByEnd())),
    (HotCold(keys=300, writes=4_000, record_bytes=50), SeedPolicy(),
     RaftLogModel(limits=SegmentLimits(max_entries=64), snapshot_every=200)),
    (WithReads(of=Bursts(keys=400, writes=2_000, every=200, burst_keys=40)), PressurePolicy(deletes=10),
     BranchModel(base_keys=300)),
    (BLOCKS, ByPriority(), SchedulerModel(config=CONFIG, hang_rate=0.2)),
], ids=lambda value: getattr(value, "name", type(value).__name__))
def test_replay_repeats_and_its_intervals_add_up(workload: Any, policy: Any, model: Any) -> None:
    first = replay(workload, policy, model, seed=9)
    assert replay(workload, policy, model, seed=9) == first
    assert replay(workload, policy, model, seed=8) != first
    assert sum(each.operations for each in first.intervals) == first.total.operations
    assert first.total.compactions > 0
    assert first.total.used_bytes == first.intervals[-1].used_bytes
    assert [each.start for each in first.intervals[1:]] == [each.end for each in first.intervals[:-1]]
    assert set(first.to_dicts()[0]) >= {"write_amplification", "space_amplification"}
    assert "write_amplification" in first._repr_html_()


def test_bytes_written_and_copied_add_up() -> None:
    log = log_of(MODEL, *HotCold(keys=700, writes=5_000).rows(1))
    total = log.cut()
    assert (total.user_bytes, total.live_bytes) == (5_700, 700)
    assert total.live_bytes < log.record_bytes < total.user_bytes
    assert total.write_amplification == (total.user_bytes + total.copied_bytes) / total.user_bytes
    assert total.used_bytes <= 60 * 16


def test_tombstones_are_records_that_stay() -> None:
    log = log_of(BlobLogModel.of_slots(4, 10, tombstone_bytes=2),
                 one(PUT, 1, 3), one(DELETE, 1, at=1), one(DELETE, 1, at=2), one(PUT, 2, 3, at=3))
    log.advance(10)
    [segment] = log.view().segments
    assert (segment.used_bytes, segment.valid_bytes, log.live_bytes) == (8, 5, 3)


def test_a_delete_without_room_for_its_tombstone_is_refused() -> None:
    log = log_of(BlobLogModel.of_slots(2, 10, tombstone_bytes=2), *(one(PUT, key, at=key) for key in range(20)),
                 one(DELETE, 3, at=30))
    log.advance(40)
    total = log.cut()
    assert (total.refused, bool(total.refused_why), total.operations) == (1, True, 21)
    assert (total.live_bytes, total.user_bytes) == (20, 20)


@attrs.frozen
class Shifted:
    """A workload whose times begin elsewhere."""

    of: Uniform
    seconds: int
    name: str = "shifted"
    operations: int = 0

    def rows(self, seed: int) -> Iterator[Row]:
        for kind, key, size, life, at in self.of.rows(seed):
            yield kind, key, size, life, at + self.seconds * 1000


@pytest.mark.parametrize("spread", [0.0, 0.5])
def test_any_zero_of_times_gives_the_same_numbers(spread: float) -> None:
    before, after = (replay(Shifted(Uniform(keys=300, writes=3_000, record_bytes=2, spread=spread), start),
                            CostBenefit(min_used_fraction=0.0), BlobLogModel.of_slots(40, 16, 2)).total
                     for start in (-1_000_000, 0))
    assert attrs.evolve(before, start=0.0, end=0.0) == attrs.evolve(after, start=0.0, end=0.0)


@pytest.mark.parametrize("life", [500, 1_000, 3_000])
def test_with_a_forecast_a_record_is_dead_from_its_first_end_on(life: int) -> None:
    log = log_of(BlobLogModel.of_slots(10, 2, forecast_seconds=100.0, bucket_seconds=10.0), one(PUT, 0, life=life),
                 *(one(PUT, key) for key in (1, 2, 3)), one(DELETE, 0, at=1_000))
    log.advance(5_000)
    log.rewrite(BlobChoice([log.view().segments[0].name], why="asked for"))
    assert (log.record_bytes, log.cut().copied_bytes) == (3, 1)


def test_a_blob_that_expires_is_dead_strictly_after_its_time() -> None:
    log = log_of(BlobLogModel.of_slots(4, 10), one(PUT, 1, 4, life=1_000))
    for now, valid in ((1_000, 4), (1_001, 0)):
        log.advance(now)
        assert log.view().segments[0].valid_bytes == valid == log.live_bytes


def test_a_delete_counts_once_its_retention_is_over() -> None:
    log = log_of(BlobLogModel.of_slots(4, 10, deleted_retention_seconds=2.0), one(PUT, 1, 4), one(DELETE, 1, at=500))
    for now, valid in ((2_500, 4), (2_501, 0)):
        log.advance(now)
        assert (log.view().segments[0].valid_bytes, log.live_bytes) == (valid, 0)


def test_refused_writes_are_explained_by_the_policys_own_gate() -> None:
    load, full = HotCold(keys=700, writes=6_000), BlobLogModel.of_slots(46, 16)
    report = replay(load, Greedy(min_used_fraction=0.0, min_reclaimed_segments=30), full)
    why = report.total.refused_why
    assert "lower min_reclaimed_segments" in why
    assert report.total.refused > 1_000
    assert f"{report.total.refused:,} refused; the last: {why}" in repr(report)
    assert report.total.live_bytes == 700
    opened = replay(load, Greedy(min_used_fraction=0.0, min_reclaimed_segments=1), full)
    assert (opened.total.refused_why, opened.total.refused) == ("", 0)


def test_a_choice_that_frees_nothing_explains_refused_writes() -> None:
    class Shuffling:
        name = "shuffling"

        def choose(self, view: BlobView, now: float) -> BlobChoice:
            return BlobChoice(tuple(each.name for each in view.eligible)[:1], why="the first of 5")

    report = replay(Uniform(keys=2_000, writes=100), Shuffling(), MODEL)
    assert report.total.refused_why == "the choice freed no segment: the first of 5"
    assert report.total.live_bytes <= 60 * 16


def test_reads_are_counted_and_change_nothing() -> None:
    log = log_of(MODEL, one(PUT, 1))
    log.advance(5)
    before = log.view()
    log.apply([one(READ, 1, at=5)])
    assert (log.view(), log.cut().reads) == (before, 1)


def test_steady_leaves_out_the_first_intervals() -> None:
    report = replay(Uniform(keys=20_000, writes=60_000), Greedy(min_used_fraction=0, min_reclaimed_segments=20),
                    BlobLogModel.of_slots(1_000, 32))
    assert len(report.intervals) > 5
    assert report.steady(0.5).operations < report.total.operations == 80_000
    with pytest.raises(InvalidInput, match="less than 1"):
        report.steady(1.0)


def test_progress_is_notified_and_ends() -> None:
    observer = RecordingObserver()
    replay(Uniform(keys=10_000, writes=10_000), StatsBased(), BlobLogModel.of_slots(1_000, 32), observer=observer)
    seen = [(each.done, each.total) for each in observer.progresses]
    assert seen[-1] == (20_000, 20_000)
    assert all(done < total for done, total in seen[:-1])


def test_a_record_that_fits_no_segment_is_refused_by_name() -> None:
    with pytest.raises(InvalidInput, match="has room for 16"):
        replay(Uniform(keys=1, writes=0, record_bytes=17), GREEDY, MODEL)


# ----------------------------------------------------------------------------------------------------- placements


class Remembering:
    """A policy that changes with each question."""

    name = "remembering"

    def __init__(self) -> None:
        self.asked = 0

    def choose(self, view: BlobView, now: float) -> BlobChoice:
        self.asked += 1
        return GREEDY.choose(view, now)


def test_replay_leaves_the_callers_policy_as_it_is() -> None:
    policy = Remembering()
    assert replay(Uniform(keys=700, writes=2_000), policy, MODEL).total.asked > 0
    assert policy.asked == 0


def test_known_ends_of_survivors_save_copies() -> None:
    workload = Expiring(keys=3_000, writes=12_000, longest_seconds=6.0)
    copies = []
    for placement in (ByEnd(), None):
        model = BlobLogModel.of_slots(150, 25, survivors=placement, forecast_seconds=10.0, bucket_seconds=0.2)
        policy = DecliningCost(min_used_fraction=0.0, min_reclaimed_segments=4)
        copies.append(replay(workload, policy, model, seed=1).steady(0.4).write_amplification - 1)
    assert copies[0] < copies[1]


@pytest.mark.parametrize("make", [
    lambda: BlobLogModel.of_slots(1, 16), lambda: BlobLogModel.of_slots(10, 16, deleted_retention_seconds=-1.0),
    lambda: BlobLogModel.of_slots(10, 16, min_free_segments=-1),
    lambda: BlobLogModel.of_slots(10, 16, max_blob_bytes=16), lambda: RaftLogModel(snapshot_every=0),
    lambda: ByEnd(step=1.0), lambda: DecliningCost(decline=0.0),
    lambda: SchedulerModel(hang_rate=1.5), lambda: SchedulerModel(workers=0),
])
def test_settings_out_of_range_are_refused(make: Any) -> None:
    with pytest.raises(InvalidInput):
        make()


# ------------------------------------------------------------------------------------------- Raft log and scheduler


def test_bytes_of_a_raft_log_add_up() -> None:
    model = RaftLogModel(limits=SegmentLimits(max_entries=64), snapshot_every=500, trigger=EveryNMinors(1))
    report = replay(Uniform(keys=300, writes=4_000, record_bytes=50), SeedPolicy(), model, seed=3)
    total = report.total
    assert (total.user_bytes, total.live_bytes) == (4_300 * 90, 300 * 90)
    assert total.live_bytes < total.used_bytes < total.user_bytes
    assert total.write_amplification > 1


def test_a_raft_log_without_live_entries_is_dropped_without_copies() -> None:
    model = RaftLogModel(limits=SegmentLimits(max_entries=10), snapshot_every=100, trigger=EveryNMinors(0))
    total = replay(Uniform(keys=1, writes=999), SeedPolicy(), model).total
    assert (total.copied_bytes, total.freed_segments) == (0, 99)


def test_a_trigger_counts_the_seconds_of_the_workload() -> None:
    model = RaftLogModel(limits=SegmentLimits(max_entries=50), snapshot_every=100, trigger=Elapsed(1.0))
    total = replay(Uniform(keys=50, writes=3_950, record_bytes=10), SeedPolicy(), model).total
    # Four seconds, in which 40 snapshots were taken.
    assert 0 < total.copied_bytes < total.user_bytes


def test_every_block_is_compacted_once() -> None:
    total = replay(BLOCKS, ByPriority(), SchedulerModel(config=CONFIG, workers=3), seed=5).total
    assert (total.left_blocks, len(total.waits), total.refused) == (0, 200, 0)
    assert total.assigned == total.compactions
    assert total.write_amplification == pytest.approx(2.0)


def test_jobs_of_hanging_workers_are_done_by_other_workers() -> None:
    model = SchedulerModel(config=attrs.evolve(CONFIG, max_failures=0), workers=3, hang_rate=0.3)
    total = replay(BLOCKS, ByPriority(), model, seed=5).total
    assert total.assigned > total.compactions
    assert total.left_blocks == 0
    # Workers that were too late have written in vain, and that is deleted in the end.
    assert total.write_amplification > 2.0
    assert 0 < total.vain_share == total.refused / total.assigned
    assert total.used_bytes == total.live_bytes


def test_a_job_whose_lease_expired_too_often_waits_for_its_worker() -> None:
    model = SchedulerModel(config=attrs.evolve(CONFIG, max_failures=1), hang_rate=0.3)
    total = replay(BLOCKS, ByPriority(), model, seed=3).total
    assert total.left_blocks == 0
    assert total.end < 3_600


def test_bytes_of_blocks_add_up() -> None:
    model = SchedulerModel(config=attrs.evolve(CONFIG, cleanup_delay_seconds=100.0), workers=20)
    total = replay(BLOCKS, ByPriority(), model, seed=2).total
    assert total.live_bytes == total.used_bytes == total.user_bytes == total.copied_bytes


def test_larger_batches_wait_longer_unless_workers_are_few() -> None:
    eager = attrs.evolve(CONFIG, levels=(LevelConfig(max_blocks=2, max_age_seconds=30),))
    waits = [replay(BLOCKS, ByPriority(), SchedulerModel(config=config, workers=workers)).total.median_wait_seconds
             for workers in (40, 1) for config in (eager, CONFIG)]
    assert waits[0] < waits[1]
    assert waits[2] > waits[3]


def test_bursts_of_blocks_wait_longer() -> None:
    smooth, bursts = (replay(attrs.evolve(BLOCKS, burst=each), ByPriority(), SchedulerModel(config=CONFIG, workers=1))
                      for each in (1, 100))
    assert bursts.total.median_wait_seconds > smooth.total.median_wait_seconds


def test_a_workload_may_return_its_rows_as_a_list() -> None:
    class Listed:
        name, operations = "listed", 0

        def rows(self, seed: int) -> Any:
            return list(Uniform(keys=50, writes=5_000).rows(seed))

    assert replay(Listed(), GREEDY, MODEL).total.operations == 5_050
