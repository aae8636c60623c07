# SPDX-License-Identifier: Apache-2.0
"""Plans: the rules that each plan keeps."""

from __future__ import annotations

import re
from typing import Any

import attrs
import pytest
from hypothesis import given, settings

from compactlib.errors import InvalidInput
from compactlib.raftlog import (
    DropDead,
    LogChoice,
    LogView,
    SeedPolicy,
    SegmentLimits,
)
from compactlib.raftlog.compaction.plan import plan_for
from compactlib.raftlog.compaction.policy import MAX_GROUP_MEMBERS
from compactlib.raftlog.names import compacting_members, compacting_name
from compactlib.testing.views import log_views
from tests.tools.raft_segments import segments_of, view_of_candidates

LIMITS = SegmentLimits(max_entries=128)
LOGS: Any = log_views().examples


def view_of(*counts: tuple[int, int, int, int], limits: SegmentLimits = LIMITS) -> LogView:
    """A log of these segments with a snapshot above them, and a newest segment behind."""
    return view_of_candidates(segments_of(*counts), limits)


@attrs.frozen
class Fixed:
    """A policy with a fixed choice."""

    choice: LogChoice

    name: str = "fixed"

    def choose(self, view: LogView, now: float) -> LogChoice:
        return self.choice


def test_the_name_of_an_output_limits_its_members() -> None:
    largest = 10**16 - 1
    longest = compacting_name(range(largest - MAX_GROUP_MEMBERS + 1, largest + 1))
    assert len(longest) <= 255
    assert len(compacting_members(longest) or ()) == MAX_GROUP_MEMBERS
    assert len(compacting_name(range(largest - MAX_GROUP_MEMBERS, largest + 1))) > 255


def test_a_wholly_live_segment_is_not_rewritten_alone() -> None:
    plan = plan_for(view_of((10, 10, 100, 100)), Fixed(LogChoice(((1,),), "told")))
    assert plan.is_empty
    assert [each.number for each in plan.kept] == [1, 2]


@pytest.mark.parametrize(("groups", "bad", "what"), [
    (((1,), (1,)), (1,), "adjacent candidates"),
    (((1, 1),), (1, 1), "adjacent candidates"),
    (((4,),), (4,), "adjacent candidates"),
    (((2, 1),), (2, 1), "adjacent candidates"),
    (((2,), (1,)), (1,), "adjacent candidates"),
    (((1, 3),), (1, 3), "adjacent candidates"),
    (((),), (), "adjacent candidates"),
    (((1, 2, 3),), (1, 2, 3), "150 live entries"),
    (((1, 2),), (1, 2), "1400 live bytes"),
])
def test_a_bad_choice_is_refused_with_the_policy_and_the_group(groups: tuple[tuple[int, ...], ...],
                                                               bad: tuple[int, ...], what: str) -> None:
    view = view_of((100, 50, 1000, 700), (100, 50, 1000, 700), (100, 50, 1000, 100),
                   limits=SegmentLimits(max_entries=128, max_bytes=1000))
    with pytest.raises(InvalidInput, match=rf"'fixed' made a bad choice: group {re.escape(str(bad))} .*{what}"):
        plan_for(view, Fixed(LogChoice(groups, "told")))


def test_a_group_with_too_long_a_name_is_refused() -> None:
    view = view_of(*[(1, 1, 10, 10)] * 15)
    assert plan_for(view, Fixed(LogChoice((tuple(range(1, 15)),), "told"))).groups
    with pytest.raises(InvalidInput, match="of at most 14"):
        plan_for(view, Fixed(LogChoice((tuple(range(1, 16)),), "told")))


@settings(max_examples=60)
@given(LOGS)
def test_each_segment_has_exactly_one_place_in_a_plan(view: LogView) -> None:
    for plan in [plan_for(view, make()) for make in (DropDead, SeedPolicy)]:
        named = [number for row in plan.to_dicts() for number in row["members"]]
        assert sorted(named) == [each.number for each in view.segments]
        assert len(plan.to_dicts()) == len(plan.drops) + len(plan.groups) + len(plan.kept)
        touched = {*plan.drops, *(member for group in plan.groups for member in group.members)}
        assert touched <= set(view.compactable)
        assert all(len(group.members) <= MAX_GROUP_MEMBERS for group in plan.groups)
        assert {drop.number for drop in plan.drops} == {drop.number for drop in plan_for(view, DropDead()).drops}
        assert all(row["reason"] for row in plan.to_dicts())
