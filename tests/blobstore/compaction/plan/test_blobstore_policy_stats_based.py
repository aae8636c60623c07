# SPDX-License-Identifier: Apache-2.0
"""`StatsBased`: cases with known answers, and a brute-force oracle beside the fast search."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, strategies as st

from compactlib.blobstore import BlobView, StatsBased
from compactlib.blobstore.compaction.plan.best_range import SegmentRange, best_range
from compactlib.blobstore.compaction.plan.last_plans import LastPlans
from compactlib.blobstore.compaction.plan.plan import plan_for
from compactlib.errors import InvalidInput
from tests.blobstore.policy_views import (
    DAY,
    FILL,
    NOW,
    SEGMENT,
    SHARES_A,
    SHARES_B,
    SHARES_C,
    SHARES_D,
    a_view,
    places,
    shares,
    toy,
)

MIDDLE: dict[str, Any] = {"middle_range_interval_seconds": DAY}
DUE: dict[str, Any] = {"history": LastPlans(since=NOW - 30 * DAY, last_middle_range_at=NOW - DAY)}
QUARTER = FILL // 4


def span(first: int, last: int) -> list[int]:
    return list(range(first, last + 1))


def expect(view: BlobView, policy: StatsBased, taken: list[int] | None, *, cost: int | None = None,
           benefit: int | None = None, ratio: float | None = None, weighted: int | None = None) -> None:
    plan = plan_for(view, policy, NOW)
    assert places(plan) == taken
    if not plan.is_empty:
        assert cost is None or plan.valid_bytes == cost
        assert benefit is None or plan.benefit_segments == benefit
        assert ratio is None or plan.ratio == pytest.approx(ratio, abs=0.005)
        assert plan.weighted_cost == weighted
        assert plan.reference_time == view.reference_time


def test_how_full_a_segment_can_be() -> None:
    assert a_view([]).fill_bytes == FILL
    assert toy([]).fill_bytes == 900


@pytest.mark.parametrize(("view", "settings", "taken", "numbers"), [
    pytest.param(shares(SHARES_A), {}, span(5, 6), {"cost": 209_714, "benefit": 1}, id="cheapest-pair"),
    pytest.param(shares(SHARES_A, **DUE), MIDDLE, span(3, 7), {"cost": 943_716, "benefit": 3, "ratio": 314_572},
                 id="middle-range"),
    pytest.param(shares(SHARES_B, **DUE), MIDDLE, span(5, 7), {"cost": 1_468_005, "benefit": 1},
                 id="middle-range-is-dear"),
    pytest.param(shares(SHARES_C, **DUE), MIDDLE, span(3, 6), {"cost": 2_097_150, "benefit": 1},
                 id="middle-range-of-four"),
    pytest.param(shares(SHARES_D), {}, span(3, 4), {"cost": 20_970, "benefit": 1}, id="nearly-empty-pair"),
    pytest.param(shares(SHARES_D), {"weight_on_benefit": True}, span(2, 5),
                 {"weighted": 251_656, "benefit": 3, "ratio": 83_885.33}, id="weighted"),
    pytest.param(shares(SHARES_A), {"min_reclaimed_segments": 3}, span(4, 7),
                 {"cost": 629_144, "benefit": 3, "ratio": 209_714.67}, id="at-least-three-freed"),
    pytest.param(shares(SHARES_A), {"min_reclaimed_segments": 5}, None, {}, id="five-cannot-be-freed"),
    pytest.param(shares(SHARES_B), {"min_reclaimed_segments": 2}, None, {}, id="two-cannot-be-freed"),
    pytest.param(a_view([FILL] * 10), {}, None, {}, id="all-full"),
    pytest.param(a_view([0] * 10), {}, span(0, 9), {"cost": 0, "benefit": 10}, id="all-empty"),
    pytest.param(a_view([FILL] * 4 + [0] + [FILL] * 5), {}, [4], {"cost": 0, "benefit": 1}, id="one-empty-among-full"),
    pytest.param(a_view([FILL] * 2 + [QUARTER] * 4 + [FILL] * 4), {}, span(2, 5), {"cost": 734_004, "benefit": 3},
                 id="four-quarters"),
    pytest.param(a_view([0, FILL, 0, FILL]), {}, [0], {"cost": 0, "benefit": 1}, id="first-of-two-empty"),
    pytest.param(a_view([0, 0, FILL, 0, 0, 0]), {}, span(0, 1), {"cost": 0, "benefit": 2},
                 id="first-of-two-empty-runs"),
    pytest.param(a_view([FILL // 2, FILL // 2, FILL, FILL // 2, FILL // 2]), {}, span(0, 1), {"ratio": 734_004},
                 id="first-of-two-equal-pairs"),
    pytest.param(a_view([100, 100, 100, FILL]), {}, span(0, 2), {"cost": 300, "benefit": 2, "ratio": 150},
                 id="three-nearly-empty"),
    pytest.param(a_view([10, 20, FILL]), {}, span(0, 1), {"cost": 30, "benefit": 1}, id="two-into-one"),
    pytest.param(a_view([FILL - 1] + [FILL] * 9), {}, None, {}, id="one-byte-short-of-full"),
    pytest.param(a_view([FILL - 1, 1]), {}, span(0, 1), {"benefit": 1}, id="exactly-one-segment"),
    pytest.param(a_view([FILL, 1]), {}, None, {}, id="one-byte-too-many"),
    pytest.param(a_view([SEGMENT]), {}, None, {}, id="fuller-than-the-fill"),
    pytest.param(a_view([QUARTER] * 4 + [QUARTER - 1] * 4, eligible=[True] * 4 + [False] * 4), {}, span(0, 3),
                 {"benefit": 3}, id="only-eligible-ones"),
    pytest.param(a_view([0] * 5, eligible=[False] * 5), {}, None, {}, id="none-eligible"),
])
def test_the_range_that_costs_least(view: BlobView, settings: dict[str, Any], taken: list[int] | None,
                                    numbers: dict[str, Any]) -> None:
    expect(view, StatsBased(**settings), taken, **numbers)


def test_any_range_that_fits_into_one_segment_is_found_exactly() -> None:
    for first in range(10):
        for last in range(first, 10):
            valid = [FILL] * 10
            valid[first:last + 1] = [FILL // (last - first + 1)] * (last - first + 1)
            expect(a_view(valid), StatsBased(), span(first, last) if first < last else None, benefit=last - first)


def test_any_range_without_valid_bytes_is_found_exactly() -> None:
    for first in range(10):
        for last in range(first, 10):
            valid = [FILL] * 10
            valid[first:last + 1] = [0] * (last - first + 1)
            expect(a_view(valid), StatsBased(), span(first, last), cost=0, benefit=last - first + 1)


@pytest.mark.parametrize(("valid", "benefit"), [
    ((FILL, FILL), 0), ((FILL, 1), 0), ((FILL - 1, 1), 1), ((SEGMENT,), -1),
])
def test_the_benefit_rounds_against_itself(valid: tuple[int, ...], benefit: int) -> None:
    assert a_view(valid).benefit(len(valid), sum(valid)) == benefit


def test_the_realistic_geometry_loses_little_to_the_reserve() -> None:
    gib = 1 << 30
    view = a_view([int(gib * part) for part in (.95, .9, .2, .1, .6, .05, .97, .3)], segment_bytes=gib, header_bytes=18,
                  max_blob_bytes=4 << 20, capacity_bytes=8 * gib, used_bytes=8 * gib)
    expect(view, StatsBased(), span(2, 3), benefit=1)
    expect(view, StatsBased(min_reclaimed_segments=3), span(2, 5), benefit=3, cost=1_020_054_731)


@pytest.mark.parametrize(("valid", "settings", "taken", "numbers"), [
    pytest.param([900, 900, 450, 450, 900], {}, span(2, 3), {"cost": 900, "benefit": 1, "ratio": 900},
                 id="two-halves-inside"),
    pytest.param([450, 450, 900, 450, 450], {}, span(0, 1), {"cost": 900, "benefit": 1, "ratio": 900},
                 id="first-of-two-equal-pairs"),
    pytest.param([300, 300, 300, 900], {}, span(0, 2), {"cost": 900, "benefit": 2, "ratio": 450}, id="three-thirds"),
    pytest.param([0, 500, 0, 500, 0], {}, [0], {"cost": 0, "benefit": 1, "ratio": 0}, id="empty-before-half-full"),
    pytest.param([0, 500, 0, 500, 0], {"min_reclaimed_segments": 4}, None, {}, id="four-cannot-be-freed"),
    pytest.param([10, 10, 900, 10, 10], {}, span(0, 1), {"cost": 20, "benefit": 1, "ratio": 20},
                 id="nearly-empty-pair"),
    pytest.param([10, 10, 900, 10, 10], {"weight_on_benefit": True}, span(0, 1), {"weighted": 120, "ratio": 120},
                 id="nearly-empty-pair-weighted"),
    pytest.param([950, 950, 950], {}, None, {}, id="all-fuller-than-the-fill"),
    pytest.param([901, 0], {}, [1], {"cost": 0, "benefit": 1, "ratio": 0}, id="empty-behind-too-full"),
    pytest.param([100] * 8, {}, span(0, 7), {"cost": 800, "benefit": 7, "ratio": 114.29}, id="all-eight"),
    pytest.param([100] * 8, {"weight_on_benefit": True, "min_cost_fraction": 0.2}, span(0, 7),
                 {"weighted": 1600, "ratio": 228.57, "benefit": 7}, id="all-eight-weighted"),
    pytest.param([800, 700, 600, 500, 400, 300, 200, 100], {}, span(5, 7), {"cost": 600, "benefit": 2, "ratio": 300},
                 id="end-of-a-slope"),
    pytest.param([800, 700, 600, 500, 400, 300, 200, 100], {"min_reclaimed_segments": 4}, span(0, 7),
                 {"cost": 3600, "benefit": 4, "ratio": 900}, id="whole-slope-to-free-four"),
    pytest.param([800, 700, 600, 500, 400, 300, 200, 100], {"min_reclaimed_segments": 5}, None, {},
                 id="five-cannot-be-freed"),
])
def test_the_range_that_costs_least_in_small_numbers(valid: list[int], settings: dict[str, Any],
                                                     taken: list[int] | None, numbers: dict[str, Any]) -> None:
    expect(toy(valid), StatsBased(**settings), taken, **numbers)


# ------------------------------------------------------------------------------------------- the oracle

def brute_force(valid: list[int], fill: int, least: int, costs: list[int]) -> SegmentRange | None:
    """The notes' loop: starts ascend, ends descend, the first of the smallest ratios stays."""
    found, smallest = None, None
    for start in range(len(valid)):
        for end in range(len(valid), start, -1):
            benefit = (end - start) - -(-sum(valid[start:end]) // fill)
            if benefit >= least:
                cost = sum(costs[start:end])
                if smallest is None or Fraction(cost, benefit) < smallest:
                    found, smallest = SegmentRange(start, end, cost, benefit), Fraction(cost, benefit)
    return found


@given(st.data(), st.integers(1, 12), st.integers(1, 4), st.sampled_from([0, 0, 2, 5]))
def test_the_fast_search_finds_what_the_slow_one_finds(data: st.DataObject, fill: int, least: int, floor: int) -> None:
    sizes = st.integers(0, 3 * fill) | st.sampled_from([0, fill, fill // 2, fill + 1])
    valid = data.draw(st.lists(sizes, max_size=14))
    costs = [max(each, floor) for each in valid]
    assert best_range(valid, fill, least, costs) == brute_force(valid, fill, least, costs)


@given(st.lists(st.sampled_from([0, 1, 299, 300, 450, 899, 900, 901, 980]) | st.integers(0, 980), max_size=20),
       st.integers(1, 3), st.booleans())
def test_property_9_no_eligible_range_has_a_smaller_ratio(valid: list[int], least: int, weighted: bool) -> None:
    policy = StatsBased(min_reclaimed_segments=least, weight_on_benefit=weighted)
    plan = plan_for(toy(valid), policy, NOW)
    costs = [max(each, 60) for each in valid] if weighted else valid
    expected = brute_force(valid, 900, least, costs)
    assert places(plan) == (None if expected is None else span(expected.start, expected.end - 1))
    if not plan.is_empty:
        assert plan.benefit_segments >= least


def test_of_equals_the_first_start_wins_also_where_a_later_one_is_found_with_it() -> None:
    """1 .. 3 costs 2 for each segment as well; a search that forgets the earlier of two equal starts answers that."""
    assert best_range([1, 1, 3, 0, 1], 4, 2) == SegmentRange(0, 5, 6, 3)


def test_the_best_of_fifty_million_ranges_is_found() -> None:
    """How long it takes is in `benchmarks/`; a search that looked at each range would not end here."""
    valid = [400 + (place * 7919) % 500 for place in range(10_000)]
    valid[6_000:6_040] = [200] * 40
    found = best_range(valid, 900)
    # Each 4.5 segments of 200 fit into one: 36 give 28, the ratio of the whole 40 is 8000 / 31.
    assert found == SegmentRange(6_000, 6_036, 7_200, 28)


def test_a_segment_that_may_not_be_taken_is_no_part_of_a_range() -> None:
    view = toy([300, 300, 300, 300], eligible=[True, False, True, True])
    assert places(plan_for(view, StatsBased(), NOW)) == [2, 3]
    equals = toy([450, 450, 0, 450, 450], eligible=[True, True, False, True, True])
    assert places(plan_for(equals, StatsBased(), NOW)) == [0, 1]


# --------------------------------------------------------------------------------------------- the middle range

def test_the_middle_range_waits_for_its_time_after_the_last_one_carried_out() -> None:
    policy = StatsBased(middle_range_interval_seconds=DAY)
    view = shares(SHARES_A, history=LastPlans(since=0.0, last_middle_range_at=NOW - DAY + 1))
    assert places(plan_for(view, policy, NOW)) == span(5, 6)
    plan = plan_for(view, policy, NOW + 1)
    assert (places(plan), plan.kind) == (span(3, 7), "middle range")
    assert view.history.after(plan.kind, NOW + 2).last_middle_range_at == NOW + 2


def test_the_first_middle_range_comes_at_a_time_of_the_stores_own_within_a_day() -> None:
    policy = StatsBased(middle_range_interval_seconds=7 * DAY)
    firsts = set()
    for number in range(20):
        view = shares(SHARES_A, store=f"disk/{number}", history=LastPlans(since=NOW))
        at = NOW + view.spread(DAY)
        assert NOW <= at <= NOW + DAY
        assert places(plan_for(view, policy, at - 1)) == span(5, 6)
        assert places(plan_for(view, policy, at)) == span(3, 7)
        firsts.add(at)
    assert len(firsts) == 20


def test_a_middle_range_that_frees_only_one_is_not_taken() -> None:
    view = shares((.3, .9, .3), **DUE)
    assert places(plan_for(view, StatsBased(**MIDDLE), NOW)) is None
    assert places(plan_for(shares((.3, .2, .1, .3), **DUE), StatsBased(**MIDDLE), NOW)) == span(0, 3)
    of_one = plan_for(shares((.3, .3), **DUE), StatsBased(**MIDDLE), NOW)
    assert (of_one.benefit_segments, of_one.kind) == (1, "normal")


def test_the_options_take_more_at_once_where_single_gains_are_cheapest() -> None:
    assert len(places(plan_for(shares(SHARES_D), StatsBased(), NOW)) or ()) == 2
    assert len(places(plan_for(shares(SHARES_D), StatsBased(weight_on_benefit=True), NOW)) or ()) == 4
    assert len(places(plan_for(shares(SHARES_D), StatsBased(min_reclaimed_segments=4), NOW)) or ()) == 5


@pytest.mark.parametrize("settings", [
    {"min_used_fraction": 1.01}, {"min_used_fraction": -0.1}, {"min_used_fraction": float("nan")},
    {"min_reclaimed_segments": 0}, {"min_cost_fraction": 2.0}, {"middle_range_interval_seconds": -1.0},
    {"middle_range_interval_seconds": float("inf")}, {"middle_range_max_valid_fraction": 1.5},
])
def test_settings_out_of_range_are_refused(settings: dict[str, Any]) -> None:
    name = next(iter(settings))
    with pytest.raises(InvalidInput, match=name):
        StatsBased(**settings)


def test_the_reason_has_the_numbers() -> None:
    plan = plan_for(shares(SHARES_A), StatsBased(), NOW)
    assert "209,714 bytes copied for each segment freed" in plan.why
    assert plan_for(shares(SHARES_A), StatsBased(min_reclaimed_segments=5), NOW).why == (
        "no choice among the 10 eligible segments (4,404,015 valid bytes) is sure to free min_reclaimed_segments=5; "
        "lower min_reclaimed_segments, or wait until more is dead, as what is deleted is "
        "deleted_retention_seconds=604800 later")
