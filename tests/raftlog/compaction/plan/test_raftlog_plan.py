# SPDX-License-Identifier: Apache-2.0
"""Plans: the rules that each plan keeps."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given, settings

from compactlib.errors import InvalidInput
from compactlib.raftlog import (
    CostPolicy,
    DropDead,
    LogChoice,
    LogPolicy,
    LogView,
    RaPolicy,
    SeedPolicy,
    SegmentLimits,
)
from compactlib.raftlog.compaction.plan.plan import (
    MAX_GROUP_MEMBERS,
    PlannedGroup,
    plan_for,
)
from compactlib.raftlog.compaction.plan.policy import LeftOut
from compactlib.raftlog.model.names import compacting_members, compacting_name
from compactlib.raftlog.model.values import SegmentRef, SegmentStats
from compactlib.testing.views import log_views
from tests.tools.raft_segments import segments_of

SCENARIOS = Path(__file__).parents[3] / "raftlog" / "scenarios"
LOGS: Any = log_views().examples
POLICIES: dict[str, Callable[..., LogPolicy]] = {"drop": DropDead, "seed": SeedPolicy, "ra": RaPolicy,
                                                   "cost": CostPolicy}
SEGMENTS = re.compile(r"segments (\d+)(?:-(\d+))? \{(\d+),(\d+)\} +live (\d+) of (\d+), bytes (\d+) of (\d+)")


def view_of(*counts: tuple[int, int, int, int], newest: bool = True, limits: SegmentLimits | None = None,
            ) -> LogView:
    """A log of these segments with a snapshot above them, and a newest segment behind."""
    rows = (*counts, (1, 1, 10, 10)) if newest else counts
    segments = segments_of(*rows)
    return LogView(segments=segments, snapshot_index=segments[-1].ref.last if segments else 0,
                          limits=limits or SegmentLimits(max_entries=128))


@attrs.frozen
class Fixed:
    """A policy that answers as it is told."""

    choice: LogChoice

    name: str = "fixed"

    def choose(self, view: LogView, now: float) -> LogChoice:
        return self.choice


class Recording(SeedPolicy):
    """The seed's policy, remembering what it was shown."""

    shown: list[int]

    def choose(self, view: LogView, now: float) -> LogChoice:
        object.__setattr__(self, "shown", [segment.number for segment in view.candidates])
        return super().choose(view, now)


def test_an_empty_log_and_a_single_segment_leave_nothing_to_do() -> None:
    for view in (view_of(newest=False), view_of((16, 0, 160, 0), newest=False)):
        assert plan_for(view, DropDead()).is_empty
        assert plan_for(view, SeedPolicy()).is_empty
    assert [left.stats.number for left in plan_for(view, DropDead()).left_out] == [1]


def test_the_policy_sees_only_compactable_segments_with_something_alive() -> None:
    segments = segments_of((10, 5, 100, 50), (10, 0, 100, 0), (10, 1, 100, 10), (10, 10, 100, 100), (10, 9, 100, 90))
    policy = Recording()
    plan_for(LogView(segments=segments, snapshot_index=35, limits=SegmentLimits()), policy)
    assert policy.shown == [1, 3]
    plan_for(LogView(segments=segments, snapshot_index=None, limits=SegmentLimits()), policy)
    assert policy.shown == []


def test_totals_count_drops_and_groups() -> None:
    plan = plan_for(view_of((100, 0, 1000, 0), (100, 10, 1000, 100), (100, 20, 1000, 200), (128, 128, 1280, 1280)),
                      SeedPolicy())
    assert [drop.number for drop in plan.drops] == [1]
    assert [group.numbers for group in plan.groups] == [(2, 3)]
    assert (plan.groups[0].entries, plan.groups[0].live_entries) == (200, 30)
    assert (plan.groups[0].data_bytes, plan.groups[0].live_bytes) == (2000, 300)
    # A head of 104 bytes a file, 40 bytes an index record.
    assert (plan.groups[0].bytes_to_copy, plan.groups[0].bytes_freed) == (104 + 30 * 40 + 300, 104 + 170 * 40 + 1700)
    assert plan.bytes_freed == 2 * 104 + 270 * 40 + 2700
    assert plan.bytes_to_copy == 1604
    assert plan.segments_removed == 2
    assert not plan.is_empty


def test_dropping_what_is_dead_moves_nothing() -> None:
    plan = plan_for(view_of((100, 0, 1000, 0), (100, 1, 1000, 10)), DropDead())
    assert (plan.drops_only, str(plan.policy), plan.groups) == (True, "drop()", ())
    assert not plan_for(view_of(), SeedPolicy()).drops_only
    assert [drop.number for drop in plan.drops] == [1]
    assert plan.bytes_to_copy == 0


def test_the_policy_and_its_settings_are_recorded() -> None:
    plan = plan_for(view_of(), CostPolicy(max_bytes_copied_per_byte_freed=0.5))
    assert dict(plan.policy.settings) == attrs.asdict(CostPolicy(max_bytes_copied_per_byte_freed=0.5))
    assert str(plan_for(view_of(), SeedPolicy()).policy) == "seed(max_sources=8, reclaim_fraction=0.5)"


def test_a_plan_prints_itself_in_one_line_as_a_table_as_html_and_as_data() -> None:
    plan = plan_for(view_of((100, 0, 1000, 0), (100, 10, 1000, 100), (100, 20, 1000, 200), (128, 128, 1280, 1280)),
                      SeedPolicy())
    assert repr(plan) == ("<LogPlan: seed(max_sources=8, reclaim_fraction=0.5) at snapshot 429: drop 1, rewrite "
                          "2 into 1, keep 2; frees 13,708 bytes, copies 1,604: neighbours fit into one segment, or "
                          "more than 50% of one can go>")
    rows = plan.to_dicts()
    assert [(row["action"], row["members"]) for row in rows] == [
        ("drop", [1]), ("merge", [2, 3]), ("keep", [4]), ("keep", [5])]
    assert sum(row["bytes_freed"] for row in rows) == plan.bytes_freed
    assert sum(row["bytes_to_copy"] for row in rows) == plan.bytes_to_copy
    text = str(plan).splitlines()
    assert len(text) == 3 + len(rows)
    assert text[4].split()[:2] == ["merge", "2-3"]
    assert text[6].endswith("the newest segment, still written to")
    html = plan._repr_html_()
    assert html.count("<tr>") == 1 + len(rows)
    assert "the newest segment, still written to" in html


def test_a_plan_is_a_value() -> None:
    view = view_of((100, 0, 1000, 0), (100, 10, 1000, 100), (100, 20, 1000, 200))
    plan = plan_for(view, SeedPolicy())
    assert plan == plan_for(view, SeedPolicy())
    assert hash(plan) == hash(plan_for(view, SeedPolicy()))
    assert pickle.loads(pickle.dumps(plan)) == plan
    assert pickle.loads(pickle.dumps(view)) == view


@pytest.mark.parametrize(("count", "parts"), [(14, [14]), (15, [7, 8]), (28, [14, 14]), (40, [13, 13, 14])])
def test_a_long_group_becomes_adjacent_parts_of_nearly_equal_size(count: int, parts: list[int]) -> None:
    plan = plan_for(view_of(*[(1, 1, 10, 10)] * count), SeedPolicy(max_sources=100))
    assert [len(group.members) for group in plan.groups] == parts
    assert [number for group in plan.groups for number in group.numbers] == list(range(1, count + 1))


def test_the_name_of_an_output_has_room_for_the_most_members_and_not_for_one_more() -> None:
    largest = 10**16 - 1
    longest = compacting_name(range(largest - MAX_GROUP_MEMBERS + 1, largest + 1))
    assert len(longest) <= 255
    assert len(compacting_members(longest) or ()) == MAX_GROUP_MEMBERS
    assert len(compacting_name(range(largest - MAX_GROUP_MEMBERS, largest + 1))) > 255


def test_a_wholly_live_segment_is_not_rewritten_alone_whatever_the_policy_says() -> None:
    plan = plan_for(view_of((10, 10, 100, 100)), Fixed(LogChoice(((1,),), (), "told")))
    assert plan.is_empty
    assert plan.left_out[0].reason == "all of it is live: the policy 'fixed' would rewrite it for nothing"


A, B, C = (LeftOut(number, "so it was told") for number in (1, 2, 3))


@pytest.mark.parametrize(("choice", "segment", "what"), [
    (LogChoice((), (A, B), "told"), 3, "neither in a group nor left out"),
    (LogChoice(((1, 2),), (B, C), "told"), 2, "named twice"),
    (LogChoice(((1, 1),), (B, C), "told"), 1, "named twice"),
    (LogChoice(((4,),), (A, B, C), "told"), 4, "not among those shown"),
    (LogChoice(((2, 1),), (C,), "told"), 1, "must ascend"),
    (LogChoice(((2,), (1,)), (C,), "told"), 1, "must ascend"),
    (LogChoice(((1, 3),), (B,), "told"), 3, "not adjacent"),
    (LogChoice(((1, 2, 3),), (), "told"), 1, "150 live entries"),
    (LogChoice(((1, 2),), (C,), "told"), 1, "1400 live bytes"),
])
def test_a_bad_choice_is_refused_with_the_policy_and_the_segment(choice: LogChoice, segment: int, what: str) -> None:
    view = view_of((100, 50, 1000, 700), (100, 50, 1000, 700), (100, 50, 1000, 100),
                   limits=SegmentLimits(max_entries=128, max_bytes=1000))
    with pytest.raises(InvalidInput, match=rf"'fixed' made a bad choice: segment {segment} .*{what}"):
        plan_for(view, Fixed(choice))


def test_a_group_without_members_is_refused() -> None:
    with pytest.raises(InvalidInput, match="'fixed' made a bad choice: a group has no members"):
        plan_for(view_of((10, 1, 100, 10)), Fixed(LogChoice(((),), (A,), "told")))


def test_an_exact_fit_and_an_oversize_single_are_accepted() -> None:
    limits = SegmentLimits(max_entries=100, max_bytes=1400)
    view = view_of((100, 50, 1000, 700), (100, 50, 1000, 700), (300, 150, 9000, 2000), limits=limits)
    plan = plan_for(view, Fixed(LogChoice(((1, 2), (3,)), (), "told")))
    assert [group.numbers for group in plan.groups] == [(1, 2), (3,)]


def segment(number: int, first: int, last: int, counts: tuple[int, int, int, int] = (1, 1, 1, 1)) -> SegmentStats:
    entries, live_entries, data_bytes, live_bytes = counts
    return SegmentStats(ref=SegmentRef(number, first, last), entries=entries, data_bytes=data_bytes,
                        live_entries=live_entries, live_bytes=live_bytes)


@pytest.mark.parametrize("segments", [
    (segment(2, 1, 10), segment(1, 11, 20)),
    (segment(1, 1, 10), segment(1, 11, 20)),
    (segment(1, 1, 10), segment(2, 10, 20)),
    (segment(1, 1, 10), segment(2, 11, 20, (1, 2, 10, 10))),
    (segment(1, 1, 10), segment(2, 11, 20, (1, 1, 10, 11))),
    (segment(1, 1, 10), segment(2, 11, 20, (1, -1, 10, 0))),
    (segment(1, 1, 10), segment(2, 11, 20, (1, 0, 10, 1))),
])
def test_a_view_that_cannot_be_is_refused_with_the_segment(segments: tuple[SegmentStats, ...]) -> None:
    with pytest.raises(InvalidInput, match=rf"segment {segments[1].number} "):
        LogView(segments=segments, snapshot_index=20, limits=SegmentLimits())


def test_a_forecast_puts_each_output_in_the_place_of_its_oldest_member() -> None:
    view = view_of((100, 0, 1000, 0), (100, 10, 1000, 100), (100, 20, 1000, 200), (128, 128, 1280, 1280))
    after = plan_for(view, SeedPolicy()).forecast(view)
    assert [each.ref for each in after.segments] == [
        SegmentRef(2, 101, 300), SegmentRef(4, 301, 428), SegmentRef(5, 429, 429)]
    assert (after.segments[0].entries, after.segments[0].live_entries) == (30, 30)
    assert (after.segments[0].data_bytes, after.segments[0].live_bytes) == (300, 300)
    assert PlannedGroup(view.segments[1:3]).output == after.segments[0]


def test_a_forecast_refuses_a_view_that_has_moved_on() -> None:
    view = view_of((100, 10, 1000, 100), (100, 20, 1000, 200))
    plan = plan_for(view, SeedPolicy())
    with pytest.raises(InvalidInput, match="segment 1, which the view does not hold as planned"):
        plan.forecast(plan.forecast(view))


@settings(max_examples=60)
@given(LOGS)
def test_each_segment_has_exactly_one_place_in_a_plan(view: LogView) -> None:
    for plan in [plan_for(view, make()) for make in POLICIES.values()]:
        named = [number for row in plan.to_dicts() for number in row["members"]]
        assert sorted(named) == [each.number for each in view.segments]
        assert len(plan.to_dicts()) == len(plan.drops) + len(plan.groups) + len(plan.left_out)
        touched = {*plan.drops, *(member for group in plan.groups for member in group.members)}
        assert touched <= set(view.compactable)
        assert all(len(group.members) <= MAX_GROUP_MEMBERS for group in plan.groups)
        assert {drop.number for drop in plan.drops} == {drop.number for drop in plan_for(view, DropDead()).drops}
        assert all(left.reason for left in plan.left_out)


@settings(max_examples=60)
@given(LOGS)
def test_a_forecast_keeps_what_is_alive_and_loses_what_the_plan_frees(view: LogView) -> None:
    for plan in [plan_for(view, make()) for make in POLICIES.values()]:
        after = plan.forecast(view)
        assert len(after.segments) == len(view.segments) - plan.segments_removed
        assert sum(each.live_bytes for each in after.segments) == sum(each.live_bytes for each in view.segments)
        assert sum(each.live_entries for each in after.segments) == sum(each.live_entries for each in view.segments)
        assert sum(each.file_bytes for each in after.segments) \
            == sum(each.file_bytes for each in view.segments) - plan.bytes_freed
        assert sum(each.entries for each in after.segments) \
            == sum(each.entries for each in view.segments) - sum(drop.entries for drop in plan.drops) \
            - sum(group.entries - group.live_entries for group in plan.groups)
        assert plan_for(after, DropDead()).is_empty
