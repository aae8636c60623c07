# SPDX-License-Identifier: Apache-2.0
"""Policies: cases with known answers, each rule at its edge, and what holds on any log."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, pairwise
from math import ceil, log

import attrs
import pytest
from hypothesis import given, settings, strategies as st

from compactlib.raftlog import CostPolicy, DropDead, LogChoice, LogPolicy, RaPolicy, SeedPolicy, SegmentLimits
from compactlib.raftlog.compaction.plan import plan_for
from compactlib.raftlog.compaction.policy import filled_groups, is_worthwhile, stored_dead_bytes, stored_live_bytes
from compactlib.raftlog.values import DEFAULT_MAX_BYTES, SegmentStats
from compactlib.testing import check_policy
from compactlib.testing.views import log_views, segment_sequences
from tests.harness.effort import Effort
from tests.tools.raft_segments import segments_of, view_of_candidates

CAP_128 = SegmentLimits(max_entries=128)

POLICIES: list[LogPolicy] = [
    DropDead(),
    SeedPolicy(),
    SeedPolicy(max_sources=2, reclaim_fraction=0.0),
    SeedPolicy(max_sources=20, reclaim_fraction=1.0),
    RaPolicy(),
    CostPolicy(),
    CostPolicy(max_bytes_copied_per_byte_freed=0.1, segment_overhead_bytes=0),
    CostPolicy(max_bytes_copied_per_byte_freed=50.0, max_sources=20, max_bytes_copied=20_000),
]


def grouped(policy: LogPolicy, counts: Sequence[tuple[int, int, int, int]], limits: SegmentLimits = CAP_128,
            ) -> list[tuple[int, ...]]:
    return list(chosen_by(policy, segments_of(*counts), limits).groups)


def chosen_by(policy: LogPolicy, segments: Sequence[SegmentStats], limits: SegmentLimits = CAP_128) -> LogChoice:
    """Return a policy's choice from these candidates."""
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


# Filling groups

@given(segment_sequences(min_live=1), st.integers(1, 9) | st.none())
@settings(max_examples=50)
def test_groups_are_filled_with_neighbours_up_to_the_limit(
        segments: tuple[SegmentStats, ...], max_sources: int | None) -> None:
    groups = filled_groups(segments, CAP_128, max_sources)
    assert [segment for group in groups for segment in group] == list(segments)
    for group, after in pairwise(groups):
        assert len(group) == max_sources or sum(each.live_entries for each in [*group, after[0]]) > 128 \
            or sum(each.live_bytes for each in [*group, after[0]]) > DEFAULT_MAX_BYTES


# SeedPolicy


@given(segment_sequences(min_live=1), st.sampled_from([2, 3, 8]))
@settings(max_examples=50)
def test_seed_policy_ends_in_the_runs_that_its_source_limit_needs(
        segments: tuple[SegmentStats, ...], max_sources: int) -> None:
    view = view_of_candidates(segments, CAP_128)
    rounds = 0
    while not (plan := plan_for(view, SeedPolicy(max_sources=max_sources))).is_empty:
        view, rounds = plan.forecast(), rounds + 1
    assert rounds <= max(1, ceil(log(max(len(segments), 1)) / log(max_sources) - 1e-9))


# RaPolicy: tuples are (entries, live entries, bytes, live bytes)


@given(segment_sequences(min_live=1))
@settings(max_examples=50)
def test_ra_policy_follows_the_published_rule_step_by_step(segments: tuple[SegmentStats, ...]) -> None:
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


def test_cost_spends_its_copy_limit_on_the_cheapest_groups() -> None:
    counts = of_26((128, 60), (128, 128), (128, 10), (128, 128), (128, 30))
    full = CostPolicy(max_sources=1)
    assert grouped(full, counts) == [(1,), (3,), (5,)]
    assert grouped(attrs.evolve(full, max_bytes_copied=66 * 40), counts) == [(3,), (5,)]
    assert grouped(attrs.evolve(full, max_bytes_copied=66 * 39), counts) == [(3,)]
    assert grouped(attrs.evolve(full, max_bytes_copied=66 * 9), counts) == []
    why = chosen_by(attrs.evolve(full, max_bytes_copied=66 * 39), segments_of(*counts)).why
    assert "2 groups wait for max_bytes_copied=2574" in why


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
