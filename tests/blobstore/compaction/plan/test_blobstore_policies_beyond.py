# SPDX-License-Identifier: Apache-2.0
"""The policies that Ambry does not have: greedy, cost and benefit, d choices, forecasts, declines, copy budgets."""

from __future__ import annotations

import math
from itertools import combinations

import attrs
import pytest
from hypothesis import given, strategies as st

from compactlib.blobstore import BlobView, CopyBudget, CostBenefit, DChoices, ExpiryForecast, Greedy, StatsBased
from compactlib.blobstore.compaction.plan.plan import plan_for
from compactlib.blobstore.compaction.plan.policies.declining_cost import DecliningCost
from compactlib.blobstore.compaction.plan.policy import Dying, SegmentView, fullest_that_free
from compactlib.blobstore.model.names import SegmentName
from compactlib.errors import InvalidInput
from tests.blobstore.policy_views import DAY, NOW, SHARES_A, places, planned, shares, toy

# ------------------------------------------------------------------------------------------------- beyond Ambry's

def cheapest_subset(view: BlobView, at_least: int) -> int | None:
    """The fewest bytes that free so many segments, over all subsets."""
    valid = [segment.valid_bytes for segment in view.eligible]
    return min((sum(subset) for size in range(len(valid) + 1) for subset in combinations(valid, size)
                if view.benefit(size, sum(subset)) >= at_least), default=None)


few_segments = st.lists(st.sampled_from([0, 100, 450, 899, 900, 980]) | st.integers(0, 980), max_size=8)


@given(few_segments, st.integers(1, 3))
def test_greedy_copies_no_more_than_the_best_of_all_subsets(valid: list[int], least: int) -> None:
    view = toy(valid)
    plan = plan_for(view, Greedy(min_reclaimed_segments=least), NOW)
    cheapest = cheapest_subset(view, least)
    assert plan.is_empty == (cheapest is None)
    if not plan.is_empty:
        assert plan.valid_bytes == cheapest
        assert plan.benefit_segments >= least
        assert set(plan.names) >= {segment.name for segment in view.eligible if not segment.valid_bytes}


def test_greedy_takes_victims_that_are_no_neighbours() -> None:
    view = toy([100, 900, 100, 900, 900, 100])
    assert planned(StatsBased(min_reclaimed_segments=2), view).valid_bytes == 3_000
    plan = planned(Greedy(min_reclaimed_segments=2), view)
    assert (places(plan), plan.valid_bytes, plan.benefit_segments) == ([0, 2, 5], 300, 2)


@given(few_segments, st.integers(1, 3))
def test_outputs_are_filled_for_one_segment_more_each(valid: list[int], least: int) -> None:
    view = toy(valid)
    plan = plan_for(view, Greedy(min_reclaimed_segments=least), NOW)
    filled = plan_for(view, Greedy(min_reclaimed_segments=least, fill_outputs=True), NOW)
    assert plan.is_empty == filled.is_empty
    if plan.is_empty or filled.is_empty:
        return
    more = len(filled.victims) - len(plan.victims)
    assert more >= 0
    assert filled.benefit_segments == plan.benefit_segments + more
    left_out = [each.valid_bytes for each in view.eligible if each.name not in filled.names]
    assert all(each > -filled.valid_bytes % view.fill_bytes for each in left_out)


def test_a_half_empty_output_takes_the_next_ones() -> None:
    view = toy([200, 250, 400, 600])
    assert places(plan_for(view, Greedy(), NOW)) == [0, 1]
    assert places(plan_for(view, Greedy(fill_outputs=True), NOW)) == [0, 1, 2]


def test_the_same_seed_gives_the_same_plans_ten_times() -> None:
    def plans() -> list[list[int] | None]:
        policy = DChoices(choices=2, seed=5)
        return [places(plan_for(shares(SHARES_A), policy, NOW + hour)) for hour in range(10)]

    first = plans()
    assert all(plans() == first for _ in range(10))
    assert len({tuple(each or ()) for each in first}) > 1


@given(few_segments, st.integers(0, 4000))
def test_the_copy_budget_frees_as_much_as_the_best_of_all_subsets(valid: list[int], allowance: int) -> None:
    view = toy(valid)
    plan = plan_for(view, CopyBudget(max_copied_bytes=allowance), NOW)
    best = max(view.benefit(size, sum(subset)) for size in range(len(valid) + 1)
               for subset in combinations(valid, size) if sum(subset) <= allowance)
    assert plan.benefit_segments == best
    if not plan.is_empty:
        assert plan.valid_bytes == cheapest_subset(view, best)
        assert plan.valid_bytes <= allowance


def test_the_copy_budget_may_be_nothing() -> None:
    assert places(plan_for(toy([10, 0, 10, 0]), CopyBudget(max_copied_bytes=0), NOW)) == [1, 3]
    shut = plan_for(toy([10, 10]), CopyBudget(max_copied_bytes=0), NOW)
    assert shut.is_empty
    assert "max_copied_bytes=0; raise max_copied_bytes, or wait until more is dead" in shut.why
    # Where no allowance would do, none is asked for.
    assert "raise" not in plan_for(toy([900, 900]), CopyBudget(max_copied_bytes=0), NOW).why
    with pytest.raises(InvalidInput, match="max_copied_bytes is -1"):
        CopyBudget(max_copied_bytes=-1)


def test_cost_benefit_gives_hot_segments_time() -> None:
    """Segments 0 and 1 are cold and half full; 2 and 3 are emptier, but were written to an hour ago."""
    view = toy([450, 450, 400, 400], used=[980] * 4, last_modified=[NOW - 30 * DAY] * 2 + [NOW - 3600] * 2)
    assert places(plan_for(view, CostBenefit(), NOW)) == [0, 1]
    assert places(plan_for(view, Greedy(), NOW)) == [2, 3]


def test_the_score_is_that_of_the_paper() -> None:
    view = toy([490], used=[980], last_modified=[NOW - 300])
    assert CostBenefit().score(view.segments[0], view, NOW) == pytest.approx(0.5 * 300 / 1.5)
    assert CostBenefit().score(view.segments[0], view, NOW - 1000) == 0.0


def test_what_is_about_to_die_is_not_copied() -> None:
    """Segments 0 and 1 hold the fewest bytes, all of which expire within the hour."""
    soon = [Dying(NOW + 3600, 100)]
    view = toy([100, 100, 300, 300, 900], dying=[soon, soon, [], [], []])
    assert places(plan_for(view, Greedy(), NOW)) == [0, 1]
    policy = ExpiryForecast(horizon_seconds=DAY)
    plan = planned(policy, view)
    assert places(plan) == [2, 3]
    assert "2 wait for what dies within 86,400 seconds" in plan.why
    assert places(plan_for(view, ExpiryForecast(horizon_seconds=60.0), NOW)) == [0, 1]


def test_a_shorter_look_ahead_is_advised_only_where_it_opens_the_gate() -> None:
    soon = [Dying(NOW + 3600, 100)]
    waiting = plan_for(toy([100, 100], dying=[soon, soon]), ExpiryForecast(), NOW)
    assert waiting.is_empty
    assert "2 of them wait for what dies within horizon_seconds=86400.0; lower horizon_seconds, or wait" in waiting.why
    assert not plan_for(toy([100, 100], dying=[soon, soon]), ExpiryForecast(horizon_seconds=0.0), NOW).is_empty
    for full in (toy([900, 900], dying=[soon, soon]), toy([900, 900])):
        plan = plan_for(full, ExpiryForecast(max_dying_fraction=0.05), NOW)
        assert plan.is_empty
        assert "lower horizon_seconds" not in plan.why
        assert " 0 of them wait" not in plan.why


def test_exactly_the_part_that_may_die_does_not_wait() -> None:
    for dying, waits in ((20, False), (21, True)):
        view = toy([100], dying=[[Dying(NOW + 3600, dying)]])
        assert ExpiryForecast(max_dying_fraction=0.2).waits(view.segments[0], NOW) == waits


def test_what_died_whole_is_dropped_without_a_copy() -> None:
    view = toy([0, 500, 0, 200, 0, 200])
    plan = planned(ExpiryForecast(), view)
    assert (places(plan), plan.valid_bytes, plan.benefit_segments, len(plan.drops)) == ([0, 2, 4], 0, 3, 3)
    assert places(plan_for(view, ExpiryForecast(min_reclaimed_segments=4), NOW)) == [0, 2, 3, 4, 5]


def test_a_nearly_full_store_waits_for_nothing() -> None:
    soon = [Dying(NOW + 3600, 100)]
    view = toy([100, 100, 300, 300], dying=[soon, soon, [], []], used_bytes=9_500)
    plan = planned(ExpiryForecast(), view)
    assert places(plan) == [0, 1]
    assert "nothing waits, as 95.0% of the log is used" in plan.why


def test_a_store_in_which_everything_waits_says_so() -> None:
    soon = [Dying(NOW + 3600, 100)]
    view = toy([100, 100], dying=[soon, soon])
    assert plan_for(view, ExpiryForecast(), NOW).is_empty
    assert "2 of them wait" in plan_for(view, ExpiryForecast(), NOW).why


def test_a_price_falls_by_age_for_what_dies_at_random_and_until_its_end_for_what_expires() -> None:
    """Room for 980 bytes, half of them valid: a price of 1, written 100 seconds ago."""
    view = toy([490], used=[980], last_modified=[NOW - 100])
    segment = view.segments[0]
    policy = DecliningCost(decline=0.2)
    assert policy.fall(segment, view, NOW, 400) == pytest.approx(0.2 * 0.5 / 0.5 ** 2 / 200)
    assert policy.fall(segment, view, NOW + 300, 100) == pytest.approx(0.2 * 0.5 / 0.5 ** 2 / 400)
    random = math.log(2) / 100 * 0.5 / (0.5 + 0.5 * math.log(0.5))
    assert DecliningCost(decline=None).fall(segment, view, NOW, 400) == pytest.approx(random)
    known = toy([490], used=[980], last_modified=[NOW - 100], dying=[[Dying(NOW + 10, 49), Dying(NOW + 20, 441)]])
    assert policy.fall(known.segments[0], known, NOW, 100) == pytest.approx(1 / 20)
    # What waiting saves until the second end: 490 bytes, while 490 and then 539 are held for ten seconds each.
    assert DecliningCost(decline=None).fall(known.segments[0], known, NOW, 100) == pytest.approx(490 / (4_900 + 5_390))
    early = toy([490], used=[980], last_modified=[NOW - 100], dying=[[Dying(NOW + 10, 392), Dying(NOW + 90, 98)]])
    assert policy.fall(early.segments[0], early, NOW, 100) == pytest.approx((1 - 0.1 / 0.9) / 10)
    partly = toy([490], used=[980], last_modified=[NOW - 100], dying=[[Dying(NOW + 10, 245)]])
    left = 0.25 - 10 * 0.2 * 0.25 / 100
    assert policy.fall(partly.segments[0], partly, NOW, 100) == pytest.approx((1 - left / (1 - left)) / 10)
    assert policy.fall(toy([0]).segments[0], view, NOW, 100) == 0.0
    assert policy.fall(toy([980]).segments[0], view, NOW, 100) == math.inf


@pytest.mark.parametrize("decline", [1.0, None])
def test_of_segments_of_one_age_the_fullest_waits_longest_however_little_of_it_is_dead(decline: float | None) -> None:
    room = 1 << 30
    falls = []
    for dead in (1, 10, 100, 1_000, 20_000, 1 << 20, room // 2, room - 1):
        view = attrs.evolve(toy([]), capacity_bytes=4 * room, segment_bytes=room, header_bytes=0)
        segment = SegmentView(name=SegmentName(0, 0), used_bytes=room, valid_bytes=room - dead, last_modified=NOW - 100)
        falls.append(DecliningCost(decline=decline).fall(segment, view, NOW, 100))
    assert falls == sorted(falls, reverse=True)


def test_a_segment_whose_records_end_soon_is_left_to_end_and_one_that_ends_late_is_not() -> None:
    old = [NOW - DAY] * 4
    for left, taken in ((60.0, [2, 3]), (300 * DAY, [0, 1])):
        view = toy([100, 100, 300, 300], last_modified=old, dying=[[Dying(NOW + left, 100)]] * 2 + [[]] * 2)
        assert places(planned(DecliningCost(), view)) == taken
    plan = planned(DecliningCost(), toy([0, 500, 0, 200, 0, 200]))
    assert (places(plan), plan.valid_bytes) == ([0, 2, 4], 0)
    assert "3 of them died whole" in plan.why
    assert "min_reclaimed_segments=1" in plan_for(toy([980, 980]), DecliningCost(), NOW).why


def test_of_plans_that_free_enough_the_one_with_the_fullest_outputs_is_taken() -> None:
    old = [NOW - DAY] * 6
    for most, taken in ((1, [0, 1]), (2, [0, 1, 2]), (5, [0, 1, 2])):
        policy = DecliningCost(max_reclaimed_segments=most)
        assert places(planned(policy, toy([300] * 6, last_modified=old))) == taken
    dead = planned(DecliningCost(max_reclaimed_segments=1), toy([0, 0, 0, 500], last_modified=old))
    assert places(dead) == [0, 1, 2]
    with pytest.raises(InvalidInput, match="max_reclaimed_segments is 2; give at least min_reclaimed_segments, 3"):
        DecliningCost(min_reclaimed_segments=3, max_reclaimed_segments=2)


@given(few_segments, st.integers(1, 3), st.integers(0, 3))
def test_the_fullest_outputs_are_those_of_all_beginnings_and_one_that_follows(valid: list[int], least: int, more: int
                                                                              ) -> None:
    view = toy(valid)
    taken = fullest_that_free(view, view.eligible, least, least + more)
    useful = [segment for segment in view.eligible if segment.valid_bytes < view.fill_bytes]
    left = {}
    for count in range(1, len(useful) + 1):
        for last in range(count - 1, min(count + 16, len(useful))):
            chosen = [*useful[:count - 1], useful[last]]
            held = sum(segment.valid_bytes for segment in chosen)
            freed = view.benefit(count, held)
            if least <= freed <= least + more:
                left[(count, last)] = (((count - freed) * view.fill_bytes - held) / freed, chosen)
    best = min(left, key=lambda place: (left[place][0], place), default=None)
    assert list(taken) == ([] if best is None else left[best][1])


def test_the_last_segment_of_a_plan_is_one_that_fills_its_outputs() -> None:
    for between, last in ((16, 17), (17, 1)):
        view = toy([450, *[300] * between, 450], capacity_bytes=40_000)
        assert view.fill_bytes == 900
        taken = fullest_that_free(view, view.eligible, 1, 1)
        assert [segment.name.position for segment in taken] == [0, last]


@given(few_segments, st.integers(1, 12), st.integers(1, 3), st.integers(0, 99))
def test_d_choices_takes_the_emptiest_of_each_draw_and_no_more_than_needed(valid: list[int], choices: int, least: int,
                                                                         seed: int) -> None:
    view = toy(valid)
    plan = plan_for(view, DChoices(choices=choices, min_reclaimed_segments=least, seed=seed), NOW)
    assert plan.is_empty == (cheapest_subset(view, least) is None)
    if plan.is_empty:
        return
    assert plan == plan_for(view, DChoices(choices=choices, min_reclaimed_segments=least, seed=seed), NOW)
    assert plan.benefit_segments >= least
    if choices >= len(valid):
        greedy = sorted(segment.valid_bytes for segment in view.eligible)[:len(plan.victims)]
        assert sorted(victim.valid_bytes for victim in plan.victims) == greedy


def test_d_choices_needs_one_choice() -> None:
    with pytest.raises(InvalidInput, match="choices is 0"):
        DChoices(choices=0, seed=1)
