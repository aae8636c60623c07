# SPDX-License-Identifier: Apache-2.0
"""Policies: cases with known answers, each rule at its edge, and what holds on any log."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Callable, Sequence
from itertools import combinations, pairwise
from math import ceil, log
from typing import Any

import attrs
import pytest
from hypothesis import given, settings, strategies as st

from compactlib.errors import InvalidInput
from compactlib.raftlog import CostPolicy, DropDead, LogChoice, LogPolicy, RaPolicy, SeedPolicy, SegmentLimits
from compactlib.raftlog.compaction.plan.plan import plan_for
from compactlib.raftlog.compaction.plan.policy import filled_groups, is_worthwhile, stored_dead_bytes, stored_live_bytes
from compactlib.raftlog.model.values import DEFAULT_MAX_BYTES, INDEX_RECORD_BYTES, SegmentStats
from compactlib.raftlog.segment import format as native
from compactlib.testing import check_policy
from compactlib.testing.views import log_views, segment_sequences
from tests.harness.effort import Effort
from tests.tools.raft_segments import segments_of, view_of_candidates

CAP_128 = SegmentLimits(max_entries=128)
CAP_4096 = SegmentLimits(max_entries=4096)

POLICIES: list[LogPolicy] = [
    DropDead(),
    SeedPolicy(),
    SeedPolicy(max_sources=2, reclaim_fraction=0.0),
    SeedPolicy(max_sources=20, reclaim_fraction=1.0),
    RaPolicy(),
    RaPolicy(max_sources=1),
    CostPolicy(),
    CostPolicy(max_bytes_copied_per_byte_freed=0.1, segment_overhead_bytes=0),
    CostPolicy(max_bytes_copied_per_byte_freed=50.0, max_sources=20, max_bytes_copied=20_000),
]


def grouped(policy: LogPolicy, counts: Sequence[tuple[int, int, int, int]], limits: SegmentLimits = CAP_128,
            ) -> list[tuple[int, ...]]:
    return list(chosen_by(policy, segments_of(*counts), limits).groups)


def chosen_by(policy: LogPolicy, segments: Sequence[SegmentStats], limits: SegmentLimits = CAP_128) -> LogChoice:
    """What a policy chooses if these are the candidates."""
    view = view_of_candidates(segments, limits)
    assert view.candidates == tuple(segments)
    return policy.choose(view, 0.0)


def of_26(*counts: tuple[int, int]) -> list[tuple[int, int, int, int]]:
    """Segments of (entries, live entries) with payloads of 26 bytes."""
    return [(entries, live, 26 * entries, 26 * live) for entries, live in counts]


# Every policy

@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_the_policy_keeps_its_contract(policy: LogPolicy, effort: Effort) -> None:
    check_policy(policy, log_views(), max_examples=effort(25, 400))


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_nothing_is_chosen_from_nothing(policy: LogPolicy) -> None:
    choice = chosen_by(policy, ())
    assert choice.is_empty
    assert choice.left_out == ()
    assert choice.why


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_the_settings_make_the_same_policy_again(policy: LogPolicy) -> None:
    settings_of = attrs.asdict(policy)  # type: ignore[arg-type]
    assert type(policy)(**json.loads(json.dumps(settings_of))) == policy
    assert pickle.loads(pickle.dumps(policy)) == policy


@pytest.mark.parametrize("make", [
    lambda: SeedPolicy(max_sources=0), lambda: SeedPolicy(reclaim_fraction=-0.1),
    lambda: SeedPolicy(reclaim_fraction=1.1), lambda: SeedPolicy(reclaim_fraction=float("nan")),
    lambda: RaPolicy(max_sources=0),
    lambda: CostPolicy(max_bytes_copied_per_byte_freed=0.0), lambda: CostPolicy(max_sources=0),
    lambda: CostPolicy(max_bytes_copied_per_byte_freed=float("inf")),
    lambda: CostPolicy(max_bytes_copied_per_byte_freed=float("nan")),
    lambda: CostPolicy(segment_overhead_bytes=-1), lambda: CostPolicy(max_bytes_copied=-1),
])
def test_a_setting_out_of_range_is_refused_by_name(make: Callable[[], LogPolicy]) -> None:
    with pytest.raises(InvalidInput, match=r"^(max|reclaim|segment)_\w+ is "):
        make()


@pytest.mark.parametrize("strange", [float("nan"), float("inf"), -1])
@pytest.mark.parametrize("kind", [SeedPolicy, RaPolicy, CostPolicy])
def test_a_setting_that_is_no_number_is_refused_by_name(kind: Any, strange: object) -> None:
    for field in attrs.fields(kind):
        with pytest.raises(InvalidInput, match=f"^{field.name} is "):
            kind(**{field.name: strange})


@pytest.mark.parametrize("policy", [SeedPolicy(), SeedPolicy(reclaim_fraction=0.0), SeedPolicy(max_sources=1),
                                    CostPolicy(), CostPolicy(segment_overhead_bytes=0)], ids=str)
def test_where_nothing_is_dead_no_setting_is_said_to_help(policy: LogPolicy) -> None:
    choice = chosen_by(policy, segments_of(*of_26((128, 128), (128, 128))))
    assert choice.is_empty
    assert choice.why.endswith("and nothing in them is dead; take a snapshot with fewer live indexes, or wait")


@pytest.mark.parametrize("counts", [[(10, 10), (20, 20)], [(128, 100), (128, 128)], [(128, 127), (2, 1)]], ids=str)
def test_the_price_that_cost_names_is_the_one_to_pay(counts: list[tuple[int, int]]) -> None:
    segments = segments_of(*of_26(*counts))
    choice = chosen_by(CostPolicy(max_bytes_copied_per_byte_freed=0.001), segments)
    named = re.search(r"\(the cheapest copies ([\d,.]+)\); raise it, or wait$", choice.why)
    assert named is not None, choice.why
    price = float(named[1].replace(",", ""))
    assert chosen_by(CostPolicy(max_bytes_copied_per_byte_freed=price - 0.01), segments).is_empty
    assert not chosen_by(CostPolicy(max_bytes_copied_per_byte_freed=price + 0.01), segments).is_empty


def test_an_index_record_is_as_large_as_the_native_format_makes_it() -> None:
    assert INDEX_RECORD_BYTES == native.RECORD_BYTES


# Filling groups

@given(segment_sequences(min_live=1), st.integers(1, 9) | st.none())
@settings(max_examples=50)
def test_groups_are_filled_with_neighbours_and_none_could_take_one_more(
        segments: tuple[SegmentStats, ...], max_sources: int | None) -> None:
    groups = filled_groups(segments, CAP_128, max_sources)
    assert [segment for group in groups for segment in group] == list(segments)
    for group, after in pairwise(groups):
        assert len(group) == max_sources or sum(each.live_entries for each in [*group, after[0]]) > 128 \
            or sum(each.live_bytes for each in [*group, after[0]]) > DEFAULT_MAX_BYTES


@given(st.lists(st.integers(1, 128), max_size=9))
@settings(max_examples=40)
def test_oldest_first_gives_the_fewest_groups(live: list[int]) -> None:
    def fewest(rest: list[int]) -> int:
        return min((1 + fewest(rest[size:]) for size in range(1, len(rest) + 1)
                    if sum(rest[:size]) <= 128 or size == 1), default=0)

    assert len(filled_groups(segments_of(*of_26(*((each, each) for each in live))), CAP_128)) == fewest(live)


# SeedPolicy

def test_seed_merges_neighbours_that_fit_however_dense_they_are() -> None:
    assert grouped(SeedPolicy(), of_26((64, 64), (64, 64), (64, 64))) == [(1, 2)]
    assert grouped(SeedPolicy(), of_26((128, 128), (1, 1), (127, 127))) == [(2, 3)]


def test_seed_fits_entries_and_bytes_exactly() -> None:
    half_the_bytes = DEFAULT_MAX_BYTES // 2
    assert grouped(SeedPolicy(), [(1, 1, half_the_bytes, half_the_bytes)] * 2) == [(1, 2)]
    assert grouped(SeedPolicy(), [(1, 1, half_the_bytes, half_the_bytes),
                                  (1, 1, half_the_bytes + 1, half_the_bytes + 1)]) == []
    assert grouped(SeedPolicy(), of_26((64, 64), (65, 65))) == []


def test_seed_takes_at_most_eight_sources() -> None:
    assert grouped(SeedPolicy(), of_26(*[(1, 1)] * 17)) == [tuple(range(1, 9)), tuple(range(9, 17))]
    assert grouped(SeedPolicy(max_sources=3), of_26(*[(1, 1)] * 4)) == [(1, 2, 3)]


def test_seed_clears_a_segment_alone_when_more_than_half_of_its_stored_bytes_can_go() -> None:
    assert grouped(SeedPolicy(), of_26((128, 64))) == []
    assert grouped(SeedPolicy(), of_26((128, 63))) == [(1,)]
    assert grouped(SeedPolicy(reclaim_fraction=0.9), of_26((100, 10))) == []
    assert grouped(SeedPolicy(reclaim_fraction=0.9), of_26((100, 9))) == [(1,)]
    assert grouped(SeedPolicy(reclaim_fraction=1.0), of_26((128, 1))) == []


def test_seed_is_not_moved_by_the_count_alone() -> None:
    # 90 of 100 entries died, and with them one part in a hundred of the bytes.
    assert grouped(SeedPolicy(), [(100, 10, 100_000, 99_000)]) == []
    # Nor by payloads alone: without any, the records count.
    assert grouped(SeedPolicy(), [(16, 8, 0, 0)]) == []
    assert grouped(SeedPolicy(), [(16, 7, 0, 0)]) == [(1,)]


def test_seed_says_why_it_leaves_a_segment_out() -> None:
    choice = chosen_by(SeedPolicy(), segments_of(*of_26((128, 100), (128, 128))))
    assert [left.reason for left in choice.left_out] == [
        "no neighbour joins it, and 1,848 of 8,448 stored bytes can go, not more than 50%",
        "no neighbour joins it, and all of it is live",
    ]


@given(segment_sequences(min_live=1), st.sampled_from([2, 3, 8]))
@settings(max_examples=50)
def test_seed_comes_to_rest_in_as_many_runs_as_the_source_limit_needs(
        segments: tuple[SegmentStats, ...], max_sources: int) -> None:
    view = view_of_candidates(segments, CAP_128)
    rounds = 0
    while not (plan := plan_for(view, SeedPolicy(max_sources=max_sources))).is_empty:
        view, rounds = plan.forecast(view), rounds + 1
    assert rounds <= max(1, ceil(log(max(len(segments), 1)) / log(max_sources) - 1e-9))


@given(segment_sequences(min_live=1))
@settings(max_examples=50)
def test_a_second_run_does_nothing_when_no_group_was_cut_by_the_source_limit(
        segments: tuple[SegmentStats, ...]) -> None:
    for policy in (SeedPolicy(max_sources=14), RaPolicy(max_sources=14)):
        view = view_of_candidates(segments, CAP_128)
        plan = plan_for(view, policy)
        if isinstance(policy, RaPolicy) or all(len(group.members) < 14 for group in plan.groups):
            assert plan_for(plan.forecast(view), policy).is_empty


# RaPolicy: tuples are (entries, live entries, bytes, live bytes)

def test_neighbours_under_half_live_form_groups() -> None:
    counts = [(1000, live, 26_000, 26 * live) for live in (200, 300, 800, 100, 150)]
    assert grouped(RaPolicy(), counts, CAP_4096) == [(1, 2), (4, 5)]


def test_half_is_not_under_half() -> None:
    assert grouped(RaPolicy(), of_26((128, 64), (128, 64))) == []
    assert grouped(RaPolicy(), of_26((128, 63), (128, 63), (128, 3))) == [(1, 2), (3,)]


def test_bytes_or_entries_decide() -> None:
    assert grouped(RaPolicy(), [(65, 33, 132_000, 65_999)]) == [(1,)]
    assert grouped(RaPolicy(), [(65, 33, 132_000, 66_000)]) == []
    assert grouped(RaPolicy(), [(100, 10, 1000, 990)]) == [(1,)]


def test_dense_ones_separate_and_nothing_limits_the_sources() -> None:
    assert grouped(RaPolicy(), of_26((128, 128), (128, 8), (128, 128))) == [(2,)]
    assert grouped(RaPolicy(), of_26(*[(128, 1)] * 40)) == [tuple(range(1, 41))]
    assert grouped(RaPolicy(max_sources=30), of_26(*[(128, 1)] * 40)) == [tuple(range(1, 31)), tuple(range(31, 41))]


def test_small_dense_segments_are_never_merged() -> None:
    assert grouped(RaPolicy(), of_26(*[(4, 4)] * 40)) == []


def test_decided_differently_zero_byte_payloads_count_by_entries() -> None:
    # Ra divides by the bytes and fails, and with it the whole compaction.
    assert grouped(RaPolicy(), [(16, 10, 0, 0)]) == []
    assert grouped(RaPolicy(), [(16, 7, 0, 0)]) == [(1,)]


def test_bytes_decide_where_entries_are_half_live() -> None:
    assert grouped(RaPolicy(), [(130, 65, 64 * 1006 + 66 * 2006, 64 * 1006 + 2006)], SegmentLimits()) == [(1,)]


def test_ra_takes_an_exact_fit_and_begins_a_new_group_with_what_does_not_fit() -> None:
    assert grouped(RaPolicy(), of_26((200, 64), (200, 64), (200, 1))) == [(1, 2), (3,)]
    limits = SegmentLimits(max_entries=128, max_bytes=2600)
    assert grouped(RaPolicy(), of_26((200, 50), (200, 50)), limits) == [(1, 2)]
    assert grouped(RaPolicy(), of_26((200, 50), (200, 51)), limits) == [(1,), (2,)]


@pytest.mark.parametrize("oversize", [(300, 129, 26 * 300, 26 * 129), (100, 10, 10_001 * 3, 10_001)])
def test_ra_skips_an_oversize_segment_first_between_and_last(oversize: tuple[int, int, int, int]) -> None:
    limits = SegmentLimits(max_entries=128, max_bytes=10_000)
    small = (100, 5, 1000, 50)
    assert grouped(RaPolicy(), [oversize, small, small], limits) == [(2, 3)]
    assert grouped(RaPolicy(), [small, oversize, small], limits) == [(1,), (3,)]
    assert grouped(RaPolicy(), [small, small, oversize], limits) == [(1, 2)]


@given(segment_sequences(min_live=1))
@settings(max_examples=50)
def test_ra_does_what_the_rule_of_the_notes_says_step_by_step(segments: tuple[SegmentStats, ...]) -> None:
    expected: list[list[int]] = []
    group: list[int] = []
    room_entries, room_bytes = 128, 5_000
    queue = list(segments)
    while queue:
        each = queue[0]
        eligible = each.live_entries / each.entries < 0.5 \
            or (each.data_bytes > 0 and each.live_bytes / each.data_bytes < 0.5)
        fits = each.live_entries <= room_entries and each.live_bytes <= room_bytes
        if eligible and fits:
            group.append(each.number)
            room_entries, room_bytes = room_entries - each.live_entries, room_bytes - each.live_bytes
            queue.pop(0)
            continue
        if not (eligible and group):
            queue.pop(0)
        expected.append(group)
        group, room_entries, room_bytes = [], 128, 5_000
    expected.append(group)
    choice = chosen_by(RaPolicy(), segments, SegmentLimits(max_entries=128, max_bytes=5_000))
    assert [list(numbers) for numbers in choice.groups] == [numbers for numbers in expected if numbers]


# CostPolicy

def cost(members: Sequence[SegmentStats], overhead: int) -> tuple[int, int]:
    freed = sum(map(stored_dead_bytes, members)) + overhead * (len(members) - 1)
    return sum(map(stored_live_bytes, members)), freed


def test_cost_pays_up_to_its_limit_and_not_more() -> None:
    assert grouped(CostPolicy(), of_26((100, 50))) == [(1,)]
    assert grouped(CostPolicy(), of_26((100, 51))) == []
    assert grouped(CostPolicy(max_bytes_copied_per_byte_freed=0.25), of_26((100, 20))) == [(1,)]
    assert grouped(CostPolicy(max_bytes_copied_per_byte_freed=0.25), of_26((100, 21))) == []
    assert grouped(CostPolicy(max_bytes_copied_per_byte_freed=9.0), of_26((100, 90))) == [(1,)]


def test_cost_counts_a_file_less_as_its_overhead() -> None:
    small = of_26((4, 4), (4, 4))  # 2 * 4 * 66 = 528 bytes stored
    assert grouped(CostPolicy(segment_overhead_bytes=528), small) == [(1, 2)]
    assert grouped(CostPolicy(segment_overhead_bytes=527), small) == []
    assert grouped(CostPolicy(segment_overhead_bytes=0, max_bytes_copied_per_byte_freed=1e12), small) == []


def test_cost_leaves_a_large_dense_neighbour_in_peace() -> None:
    counts = [(4000, 4000, 4_000_000, 4_000_000), (90, 20, 90_000, 20_000), (90, 30, 90_000, 30_000)]
    assert grouped(SeedPolicy(), counts, SegmentLimits(max_entries=8192)) == [(1, 2, 3)]
    assert grouped(CostPolicy(), counts, SegmentLimits(max_entries=8192)) == [(2, 3)]


def test_cost_spends_what_a_run_may_copy_on_the_cheapest_groups() -> None:
    counts = of_26((128, 60), (128, 128), (128, 10), (128, 128), (128, 30))
    full = CostPolicy(max_sources=1)
    assert grouped(full, counts) == [(1,), (3,), (5,)]
    assert grouped(attrs.evolve(full, max_bytes_copied=66 * 40), counts) == [(3,), (5,)]
    assert grouped(attrs.evolve(full, max_bytes_copied=66 * 39), counts) == [(3,)]
    assert grouped(attrs.evolve(full, max_bytes_copied=66 * 9), counts) == []
    left = chosen_by(attrs.evolve(full, max_bytes_copied=66 * 39), segments_of(*counts)).left_out
    assert [each.reason for each in left if each.number in (1, 5)] == [
        "its group of 1 copies 3,960 bytes; this run has 1,914 left to copy",
        "its group of 1 copies 1,980 bytes; this run has 1,914 left to copy",
    ]


@given(segment_sequences(min_live=1, max_segments=7), st.sampled_from([0.2, 1.0, 6.0]), st.sampled_from([0, 4096]),
       st.integers(1, 4))
@settings(max_examples=40)
def test_cost_finds_the_cut_of_most_worth_among_all(segments: tuple[SegmentStats, ...], limit: float, overhead: int,
                                                    max_sources: int) -> None:
    def worth(members: Sequence[SegmentStats]) -> float:
        copied, freed = cost(members, overhead)
        return limit * freed - copied

    def allowed(members: Sequence[SegmentStats]) -> bool:
        fits = (sum(each.live_entries for each in members) <= 128
                and sum(each.live_bytes for each in members) <= DEFAULT_MAX_BYTES)
        return (len(members) <= max_sources and (len(members) == 1 or fits)
                and is_worthwhile(members) and worth(members) >= 0)

    # Every way to cut the segments into runs; a run that is not allowed is left out.
    best = max(
        sum(worth(run) for run in runs if allowed(run))
        for size in range(len(segments) + 1) for cuts in combinations(range(1, len(segments)), size)
        for runs in [[segments[start:end] for start, end in zip((0, *cuts), (*cuts, len(segments)), strict=True)]]
    ) if segments else 0
    policy = CostPolicy(max_bytes_copied_per_byte_freed=limit, segment_overhead_bytes=overhead,
                        max_sources=max_sources)
    by_number = {each.number: each for each in segments}
    chosen = [[by_number[number] for number in group] for group in chosen_by(policy, segments).groups]
    assert all(allowed(group) for group in chosen)
    assert sum(map(worth, chosen)) == pytest.approx(best)
