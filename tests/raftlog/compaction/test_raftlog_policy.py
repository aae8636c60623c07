# SPDX-License-Identifier: Apache-2.0
"""Policies: cases with known answers, each rule at its edge, and what holds on any log."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import ceil, log

import pytest
from hypothesis import given, settings, strategies as st

from compactlib.raftlog import DropDead, LogChoice, LogPolicy, SeedPolicy, SegmentLimits
from compactlib.raftlog.compaction.plan import plan_for
from compactlib.raftlog.compaction.policy import filled_groups
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
    SeedPolicy(max_sources=14, reclaim_fraction=1.0),
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

@given(segment_sequences(min_live=1), st.integers(1, 14))
@settings(max_examples=50)
def test_groups_are_filled_with_neighbours_up_to_the_limit(
        segments: tuple[SegmentStats, ...], max_sources: int) -> None:
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
