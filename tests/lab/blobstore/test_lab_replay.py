# SPDX-License-Identifier: Apache-2.0
"""The replay itself: what it counts, that it refuses what does not fit, and that it repeats."""

from __future__ import annotations

import random
from typing import Any

import attrs
import pytest

from compactlib.blobstore import BlobChoice, BlobView, CostBenefit, Greedy, StatsBased
from compactlib.errors import InvalidInput
from compactlib.lab import BlobSettings, HotCold, Operations, TtlMix, Uniform, replay_blobs
from compactlib.lab.blobstore.replay import BlobReplay
from compactlib.lab.policies import DChoices
from compactlib.lab.results.measures import together
from compactlib.lab.results.reports import ReplayReport
from compactlib.lab.traces.operations import DELETE, FOREVER, PUT, READ
from compactlib.lab.traces.workloads import AppendMostly, Bursts
from tests.harness.recording import RecordingObserver

SETTINGS = BlobSettings.of_slots(60, 16)
GREEDY = Greedy(min_used_fraction=0, min_reclaimed_segments=2)


def one(kind: int, key: int, size: int = 1, life: int = FOREVER, at: int = 0) -> Operations:
    return Operations(kinds=bytes([kind]), keys=[key], sizes=[size], lives_ms=[life], times_ms=[at])


@pytest.mark.parametrize("workload", [
    Uniform(keys=700, writes=4_000), HotCold(keys=700, writes=4_000), TtlMix(keys=700, writes=4_000),
    Bursts(keys=700, writes=4_000, every=500, burst_keys=50), AppendMostly(keys=300, writes=700, deletes=0.5),
    Uniform(keys=300, writes=3_000, record_bytes=2, spread=0.5),
], ids=str)
def test_equal_arguments_give_equal_reports(workload: Uniform) -> None:
    policy = DChoices(min_used_fraction=0, choices=3, seed=4)
    first = replay_blobs(workload, policy, SETTINGS, seed=9)
    assert all(replay_blobs(workload, policy, SETTINGS, seed=9) == first for _ in range(3))
    assert ReplayReport.from_json(first.to_json()) == first
    assert first.total.operations == workload.operations
    assert first.total.refused == 0


def test_what_is_written_copied_and_reclaimed_adds_up() -> None:
    replay = BlobReplay(GREEDY, SETTINGS)
    for piece in HotCold(keys=700, writes=5_000).pieces(1):
        replay.feed(piece)
    total = replay.report("").total
    assert total.user_bytes == 5_700
    held = replay.log.record_bytes
    assert held == total.user_bytes - total.reclaimed_bytes
    assert replay.log.live_bytes == 700
    assert total.write_amplification == (total.user_bytes + total.copied_bytes) / total.user_bytes
    assert total.peak_fill <= 1.0


def test_a_tombstone_is_a_record_that_stays() -> None:
    settings = BlobSettings.of_slots(4, 10, tombstone_bytes=2)
    replay = BlobReplay(GREEDY, settings)
    for piece in (one(PUT, 1, 3), one(DELETE, 1, at=1), one(DELETE, 1, at=2), one(PUT, 2, 3, at=3)):
        replay.feed(piece)
    replay.wait_until(10)
    view = replay.log.view(10)
    assert (view.segments[0].used_bytes, view.segments[0].valid_bytes) == (8, 5)
    assert replay.log.live_bytes == 3


@pytest.mark.parametrize("changed", [{}, {"spread": 0.5}], ids=str)
def test_any_zero_of_times_gives_the_same_numbers(changed: dict[str, float]) -> None:
    before, after = (replay_blobs(Uniform(keys=300, writes=3_000, record_bytes=2, start=start, **changed),
                                  CostBenefit(min_used_fraction=0.0), BlobSettings.of_slots(40, 16, 2)).total
                     for start in (-1e6, 0.0))
    assert attrs.evolve(before, start=0.0, end=0.0) == attrs.evolve(after, start=0.0, end=0.0)


def test_a_delete_without_room_for_its_tombstone_is_refused_as_in_a_store() -> None:
    replay = BlobReplay(GREEDY, BlobSettings.of_slots(2, 10, tombstone_bytes=2))
    for key in range(20):
        replay.feed(one(PUT, key, 1, at=key))
    replay.feed(one(DELETE, 3, at=30))
    replay.wait_until(40)
    replay.log.advance(40)
    total = replay.report("").total
    assert (total.refused, sum(count for _, count in total.refused_by), total.operations) == (1, 1, 21)
    assert (replay.log.live_bytes, total.user_bytes) == (20, 20)


def test_time_to_reclaim_is_measured_from_death() -> None:
    settings = BlobSettings.of_slots(4, 2, min_free_segments=0)
    replay = BlobReplay(Greedy(min_used_fraction=0), settings)
    for piece in (one(PUT, 1, at=0), one(PUT, 2, at=0), one(PUT, 1, at=1_000), one(PUT, 2, at=3_000),
                  one(PUT, 3, at=4_000)):
        replay.feed(piece)
    replay.wait_until(5_000)
    assert not replay.check().is_empty
    total = replay.report("").total
    assert (total.reclaimed_bytes, total.copied_bytes) == (2, 0)
    assert total.seconds_to_reclaim == pytest.approx((4 + 2) / 2)


@pytest.mark.parametrize(("life", "dead_since"), [(500, 500), (1_000, 1_000), (3_000, 1_000)])
def test_with_a_forecast_a_record_is_dead_from_its_first_end_on(life: int, dead_since: int) -> None:
    replay = BlobReplay(GREEDY, BlobSettings.of_slots(10, 2, forecast_seconds=100.0, bucket_seconds=10.0))
    replay.feed(one(PUT, 0, life=life))
    for key in (1, 2, 3):
        replay.feed(one(PUT, key))
    replay.feed(one(DELETE, 0, at=1_000))
    replay.log.view(5_000)
    done = replay.log.compact(BlobChoice([replay.log.names[0]], why="asked for"), 5_000)
    assert (done.reclaimed_bytes, done.copied_bytes) == (1, 1)
    assert done.waited == 5_000 - dead_since


def test_a_blob_that_expires_is_dead_strictly_after_its_time() -> None:
    replay = BlobReplay(GREEDY, BlobSettings.of_slots(4, 10))
    replay.feed(one(PUT, 1, 4, life=1_000))
    assert replay.log.view(1_000).segments[0].valid_bytes == 4
    assert replay.log.view(1_001).segments[0].valid_bytes == 0
    assert replay.log.live_bytes == 0


def test_a_delete_counts_once_its_retention_is_over() -> None:
    replay = BlobReplay(GREEDY, BlobSettings.of_slots(4, 10, deleted_retention_seconds=2.0))
    replay.feed(one(PUT, 1, 4))
    replay.feed(one(DELETE, 1, at=500))
    assert replay.log.view(2_500).segments[0].valid_bytes == 4
    assert replay.log.live_bytes == 0
    assert replay.log.view(2_501).segments[0].valid_bytes == 0


def test_a_full_log_refuses_and_says_how_often() -> None:
    report = replay_blobs(Uniform(keys=2_000, writes=100), GREEDY, SETTINGS)
    assert report.total.refused > 0
    assert report.total.live_bytes <= 60 * 16


def test_what_is_refused_is_explained_by_the_policys_own_gate() -> None:
    load, full = HotCold(keys=700, writes=6_000), BlobSettings.of_slots(46, 16)
    report = replay_blobs(load, Greedy(min_used_fraction=0.0, min_reclaimed_segments=30), full)
    [(why, count)] = report.refused_by.items()
    assert "lower min_reclaimed_segments" in why
    assert count == report.total.refused > 1_000
    assert f"{count:,} of them: {why}" in repr(report)
    assert type(report).from_json(report.to_json()) == report
    opened = replay_blobs(load, Greedy(min_used_fraction=0.0, min_reclaimed_segments=1), full)
    assert (opened.refused_by, opened.total.refused) == ({}, 0)


def test_a_choice_that_frees_nothing_is_told_too() -> None:
    class Shuffling:
        name = "shuffling"

        def choose(self, view: BlobView, now: float) -> BlobChoice:
            return BlobChoice(tuple(each.name for each in view.eligible)[:1], why="the first of 5")

    report = replay_blobs(Uniform(keys=2_000, writes=100), Shuffling(), SETTINGS)
    assert report.refused_by == {"what was chosen freed no segment: the first of 5": report.total.refused}


def test_reads_are_counted_and_change_nothing() -> None:
    replay = BlobReplay(GREEDY, SETTINGS)
    replay.feed(one(PUT, 1))
    before = replay.log.view(5)
    replay.feed(one(READ, 1, at=1))
    assert replay.report("").total.reads == 1
    assert replay.log.view(5) == before


def test_intervals_add_up_to_the_total() -> None:
    report = replay_blobs(Uniform(keys=20_000, writes=60_000), Greedy(min_used_fraction=0, min_reclaimed_segments=20),
                          BlobSettings.of_slots(1_000, 32, intervals=5))
    assert len(report.intervals) in (5, 6)
    assert sum(each.operations for each in report.intervals) == report.total.operations == 80_000
    assert report.steady(0.5).operations < 80_000
    assert "write_amplification" in report._repr_html_()
    assert "80,000 operations" in repr(report)


def test_an_interval_that_is_not_there_is_no_figure() -> None:
    with pytest.raises(InvalidInput):
        together([])
    with pytest.raises(InvalidInput, match="less than 1"):
        replay_blobs(Uniform(keys=5, writes=5), GREEDY, SETTINGS).steady(1.0)


def test_progress_is_told_and_ends() -> None:
    observer = RecordingObserver()
    replay_blobs(Uniform(keys=10_000, writes=10_000), StatsBased(), BlobSettings.of_slots(1_000, 32), observer=observer)
    told = [(each.done, each.total) for each in observer.progresses]
    assert told[-1] == (20_000, 20_000)
    assert all(done < total for done, total in told[:-1])


def test_a_record_that_fits_no_segment_is_refused_aloud() -> None:
    with pytest.raises(InvalidInput, match="has room for 16"):
        replay_blobs(Uniform(keys=1, writes=0, record_bytes=17), GREEDY, SETTINGS)


@pytest.mark.parametrize("changed", [
    {"segments": 1}, {"deleted_retention_seconds": -1.0}, {"swap_segments": 0}, {"intervals": 0},
])
def test_layouts_that_cannot_be_are_refused(changed: dict[str, Any]) -> None:
    more = {name: value for name, value in changed.items() if name != "segments"}
    with pytest.raises(InvalidInput):
        BlobSettings.of_slots(int(changed.get("segments", 10)), 16, **more)


def test_what_replaces_a_record_that_expired_while_room_was_made_lives() -> None:
    for seed in range(60):
        drawn, at, ends = random.Random(seed), 0, dict[int, int]()
        replay = BlobReplay(Greedy(min_used_fraction=0, min_reclaimed_segments=1), BlobSettings.of_slots(8, 2))
        for _ in range(60):
            at, key, life = at + 2 * drawn.randrange(1, 25), drawn.randrange(8), drawn.choice([61, 201, 100_001])
            replay.feed(one(PUT, key, life=life, at=at))
            ends[key] = at + life
            assert replay.report("").total.refused == 0
            assert replay.log.live_bytes == sum(end > at for end in ends.values()), (seed, at)
            replay.log.audit()


@pytest.mark.parametrize("most_dead", [0.2, 1.0])
def test_a_write_that_is_refused_replaces_nothing(most_dead: float) -> None:
    full = BlobSettings.of_slots(46, 16, max_dead_fraction=most_dead)
    total = replay_blobs(HotCold(keys=700, writes=6_000), Greedy(min_used_fraction=0, min_reclaimed_segments=30),
                         full).total
    assert total.refused > 1_000
    assert total.live_bytes == 700
