"""The gate, `CompactAll`, `Hybrid` and the policies beyond the notes: vectors of 3.3 by number, and each promise."""

from __future__ import annotations

from itertools import combinations
from random import Random
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactlib.blobstore.config import BlobStoreConfig
from compactlib.blobstore.errors import PlanDoesNotFit, UnknownPolicy
from compactlib.blobstore.plan import CompactionPlan, check_plan, forecast
from compactlib.blobstore.plan_history import PlanHistory
from compactlib.blobstore.policies import (
    POLICY_NAMES,
    CompactAll,
    CopyBudget,
    CostBenefit,
    DChoices,
    ExpiryForecast,
    Greedy,
    Hybrid,
    StatsBased,
    policy_named,
    policy_of,
)
from compactlib.blobstore.policy import CompactionPolicy, Dying, StoreView, why_no_plan
from compactlib.errors import InvalidInput
from tests.blobstore.policy_views import DAY, FILL, NOW, SEGMENT, SHARES_A, a_view, places, shares, toy

TOTAL = 10 * SEGMENT


def planned(policy: CompactionPolicy, view: StoreView, now: float = NOW) -> CompactionPlan:
    plan = policy.plan(view, now)
    assert plan is not None
    return plan


# ---------------------------------------------------------------------------------------------------- the gate (3.3)

@pytest.mark.parametrize("policy", [StatsBased(), CompactAll()])
@pytest.mark.parametrize(("percent", "compacts"), [(20, False), (40, False), (50, True), (51, True), (60, True),
                                                   (70, True), (90, True)])
def test_g1_and_g2_half_full_is_full_enough(policy: CompactionPolicy, percent: int, compacts: bool) -> None:
    view = a_view([0] * 10, used_bytes=TOTAL * percent // 100)
    assert (policy.plan(view, NOW) is not None) == compacts


@pytest.mark.parametrize(("used", "compacts"), [(499, False), (500, True)])
def test_g3_the_boundary_counts_as_full_enough(used: int, compacts: bool) -> None:
    view = toy([0], capacity_bytes=1000, used_bytes=used)
    assert (CompactAll().plan(view, NOW) is not None) == compacts
    if not compacts:
        assert why_no_plan(CompactAll(), view, NOW) == "49.9% of the log is used, below 50.0%"


@pytest.mark.parametrize("percent", [10, 20, 35, 40, 50, 59, 60, 61, 65, 70, 80, 95])
def test_g8_the_gate_moves_with_its_setting(percent: int) -> None:
    view = a_view([0] * 10, used_bytes=TOTAL * 60 // 100)
    for policy in (StatsBased(min_used_fraction=percent / 100), CompactAll(min_used_fraction=percent / 100)):
        assert (policy.plan(view, NOW) is not None) == (percent <= 60)


def test_g8_ten_empty_segments_free_ten_and_not_eleven() -> None:
    assert places(StatsBased(min_reclaimed_segments=10).plan(a_view([0] * 10), NOW)) == list(range(10))
    assert StatsBased(min_reclaimed_segments=11).plan(a_view([0] * 10), NOW) is None


def test_p25_nothing_eligible_is_nothing_to_do_for_any_policy() -> None:
    view = a_view([0] * 4, eligible=[False] * 4)
    for policy in every_policy():
        assert policy.plan(view, NOW) is None
        assert "none of the 5 segments may be compacted yet" in why_no_plan(policy, view, NOW)


# ------------------------------------------------------------------------------------------------------- CompactAll

def test_g4_compact_all_takes_every_eligible_segment() -> None:
    plan = planned(CompactAll(), shares(SHARES_A))
    assert places(plan) == list(range(10))
    assert (plan.is_full, plan.reference_time) == (True, NOW - 7 * DAY)


@pytest.mark.parametrize("hours", [60, 120, 180, 360, 540])
def test_g9_the_reference_time_is_the_retention_ago(hours: int) -> None:
    seconds = hours * 3600.0
    view = a_view([0] * 4, retention_seconds=seconds, reference_time=NOW - seconds)
    assert planned(CompactAll(), view).reference_time == NOW - seconds
    assert planned(StatsBased(), view).reference_time == NOW - seconds


@pytest.mark.parametrize(("valid", "ends", "everywhere"), [
    pytest.param([100, 100, 5, 5, 5], [2, 3, 4], [2, 3, 4], id="G5"),
    pytest.param([5, 5, 5, 100, 100], [0, 1, 2], [0, 1, 2], id="G6"),
    pytest.param([100, 100, 5, 100, 100], [2], [2], id="G7-one"),
    pytest.param([100] * 5, None, None, id="G7-none-dirty"),
    pytest.param([5] * 5, [0, 1, 2, 3, 4], [0, 1, 2, 3, 4], id="G7-all-dirty"),
    pytest.param([100, 5, 100, 5, 100], [1, 2, 3], [1, 3], id="G7-inside"),
])
def test_wholly_valid_segments_are_left_out(valid: list[int], ends: list[int] | None,
                                            everywhere: list[int] | None) -> None:
    view = toy(valid, used=[100] * 5)
    assert places(CompactAll(skip_valid="ends").plan(view, NOW)) == ends
    assert places(CompactAll(skip_valid="all").plan(view, NOW)) == everywhere
    assert places(CompactAll().plan(view, NOW)) == [0, 1, 2, 3, 4]


def test_w6_nothing_wholly_valid_need_be_copied() -> None:
    view = toy([100, 5, 100, 100, 5], used=[100] * 5)
    assert planned(CompactAll(skip_valid="all"), view).cost_bytes == 10
    assert why_no_plan(CompactAll(skip_valid="ends"), toy([9, 9], used=[9, 9]), NOW) == (
        "each of the 2 eligible segments is wholly valid")


def test_an_unknown_way_to_skip_is_refused() -> None:
    with pytest.raises(InvalidInput, match="skip_valid is 'some'"):
        CompactAll(skip_valid="some")  # type: ignore[arg-type]


# ----------------------------------------------------------------------------------------------------------- Hybrid

def hybrid_view(last_full_at: float | None, **changed: Any) -> StoreView:
    return shares(SHARES_A, history=PlanHistory(since=NOW - DAY, last_full_at=last_full_at), **changed)


def test_h1_a_new_store_begins_with_the_usual_policy() -> None:
    plan = planned(Hybrid(), hybrid_view(None))
    assert (places(plan), plan.kind) == ([5, 6], "normal")
    assert plan.policy.name == "hybrid"


def test_h2_six_days_after_the_last_full_round_the_next_one_is_due() -> None:
    """The system behind the notes only sets a flag now, and runs its full round at the check after this one."""
    assert places(Hybrid().plan(hybrid_view(NOW - 6 * DAY + 1), NOW)) == [5, 6]
    plan = planned(Hybrid(), hybrid_view(NOW - 6 * DAY))
    assert (places(plan), plan.kind) == (list(range(10)), "full")
    assert "a full round has been due for 0 seconds" in plan.reason


def test_h3_after_a_full_round_the_usual_policy_is_back_also_from_the_file() -> None:
    view = hybrid_view(NOW - 8 * DAY)
    after = view.history.after(planned(Hybrid(), view), NOW + 60)
    assert after.last_full_at == NOW + 60
    again = shares(SHARES_A, history=after)
    assert places(Hybrid().plan(again, NOW + 120)) == [5, 6]
    assert planned(Hybrid(), again, NOW + 60 + 6 * DAY).is_full


def test_h4_and_w7_a_full_round_that_the_gate_refuses_stays_due() -> None:
    """The system behind the notes uses its full round up when the store is not full enough for it."""
    view = hybrid_view(NOW - 8 * DAY, used_bytes=TOTAL * 49 // 100)
    assert Hybrid().plan(view, NOW) is None
    assert "for the full round that is due" in why_no_plan(Hybrid(), view, NOW)
    assert planned(Hybrid(), hybrid_view(NOW - 8 * DAY), NOW + 60).is_full


def test_w7_only_a_plan_that_was_carried_out_counts() -> None:
    view = hybrid_view(NOW - 8 * DAY)
    assert planned(Hybrid(), view).is_full
    assert planned(Hybrid(), view, NOW + 3600).is_full
    usual = planned(Hybrid(), hybrid_view(NOW))
    assert view.history.after(usual, NOW) == view.history


def test_w14_full_rounds_of_many_stores_are_spread_and_follow_the_time_that_is_passed_in() -> None:
    policy = Hybrid(spread_seconds=DAY)
    dues = {policy.due_at(hybrid_view(NOW, store=f"disk/{number}")) for number in range(20)}
    assert len(dues) == 20
    assert all(NOW + 6 * DAY <= due <= NOW + 7 * DAY for due in dues)
    view = hybrid_view(NOW, store="disk/3")
    assert planned(policy, view, policy.due_at(view)).is_full
    assert not planned(policy, view, policy.due_at(view) - 1).is_full


def test_h6_a_plan_compares_by_what_a_freed_segment_costs() -> None:
    plan = planned(StatsBased(), toy([300, 300, 300, 900]))
    assert (plan.cost_bytes, plan.benefit_segments, plan.ratio) == (900, 2, 450.0)
    assert planned(CompactAll(), toy([950, 950])).ratio == float("inf")


# ------------------------------------------------------------------------------------------------- beyond the notes

def cheapest_subset(view: StoreView, at_least: int) -> int | None:
    """The fewest bytes that free so many segments, over all subsets."""
    valid = [segment.valid_bytes for segment in view.eligible]
    return min((sum(subset) for size in range(len(valid) + 1) for subset in combinations(valid, size)
                if view.benefit(size, sum(subset)) >= at_least), default=None)


few_segments = st.lists(st.sampled_from([0, 100, 450, 899, 900, 980]) | st.integers(0, 980), max_size=8)


@given(few_segments, st.integers(1, 3))
def test_greedy_copies_no_more_than_the_best_of_all_subsets(valid: list[int], least: int) -> None:
    view = toy(valid)
    plan = Greedy(min_reclaimed_segments=least).plan(view, NOW)
    cheapest = cheapest_subset(view, least)
    assert (plan is None) == (cheapest is None)
    if plan is not None:
        assert plan.cost_bytes == cheapest
        assert plan.benefit_segments >= least
        assert set(plan.names) >= {segment.name for segment in view.eligible if not segment.valid_bytes}


def test_w1_greedy_takes_victims_that_are_no_neighbours() -> None:
    view = toy([100, 900, 100, 900, 900, 100])
    assert planned(StatsBased(min_reclaimed_segments=2), view).cost_bytes == 3_000
    plan = planned(Greedy(min_reclaimed_segments=2), view)
    assert (places(plan), plan.cost_bytes, plan.benefit_segments) == ([0, 2, 5], 300, 2)


@given(few_segments, st.integers(1, 3))
def test_w3_outputs_are_filled_for_one_segment_more_each(valid: list[int], least: int) -> None:
    view = toy(valid)
    plan = Greedy(min_reclaimed_segments=least).plan(view, NOW)
    filled = Greedy(min_reclaimed_segments=least, fill_outputs=True).plan(view, NOW)
    assert (plan is None) == (filled is None)
    if plan is None or filled is None:
        return
    more = len(filled.victims) - len(plan.victims)
    assert more >= 0
    assert filled.benefit_segments == plan.benefit_segments + more
    left_out = [each.valid_bytes for each in view.eligible if each.name not in filled.names]
    assert all(each > -filled.cost_bytes % view.fill_bytes for each in left_out)


def test_w3_a_half_empty_output_takes_the_next_ones() -> None:
    view = toy([200, 250, 400, 600])
    assert places(Greedy().plan(view, NOW)) == [0, 1]
    assert places(Greedy(fill_outputs=True).plan(view, NOW)) == [0, 1, 2]


def test_the_same_seed_gives_the_same_plans_ten_times() -> None:
    def plans() -> list[list[int] | None]:
        policy = DChoices(choices=2, random=Random(5))
        return [places(policy.plan(shares(SHARES_A), NOW + hour)) for hour in range(10)]

    first = plans()
    assert all(plans() == first for _ in range(10))
    assert len({tuple(each or ()) for each in first}) > 1


@given(few_segments, st.integers(0, 4000))
def test_the_copy_budget_frees_as_much_as_the_best_of_all_subsets(valid: list[int], allowance: int) -> None:
    view = toy(valid)
    plan = CopyBudget(max_copied_bytes=allowance).plan(view, NOW)
    best = max(view.benefit(size, sum(subset)) for size in range(len(valid) + 1)
               for subset in combinations(valid, size) if sum(subset) <= allowance)
    assert (plan.benefit_segments if plan is not None else 0) == best
    if plan is not None:
        assert plan.cost_bytes == cheapest_subset(view, best)
        assert plan.cost_bytes <= allowance


def test_the_copy_budget_may_be_nothing() -> None:
    assert places(CopyBudget(max_copied_bytes=0).plan(toy([10, 0, 10, 0]), NOW)) == [1, 3]
    assert CopyBudget(max_copied_bytes=0).plan(toy([10, 10]), NOW) is None
    with pytest.raises(InvalidInput, match="max_copied_bytes is -1"):
        CopyBudget(max_copied_bytes=-1)


def test_w4_cost_benefit_gives_hot_segments_time() -> None:
    """Segments 0 and 1 are cold and half full; 2 and 3 are emptier, but were written to an hour ago."""
    view = toy([450, 450, 400, 400], used=[980] * 4, last_modified=[NOW - 30 * DAY] * 2 + [NOW - 3600] * 2)
    assert places(CostBenefit().plan(view, NOW)) == [0, 1]
    assert places(Greedy().plan(view, NOW)) == [2, 3]


def test_the_score_is_that_of_the_paper() -> None:
    view = toy([490], used=[980], last_modified=[NOW - 300])
    assert CostBenefit().score(view.segments[0], view, NOW) == pytest.approx(0.5 * 300 / 1.5)
    assert CostBenefit().score(view.segments[0], view, NOW - 1000) == 0.0


def test_w4_what_is_about_to_die_is_not_copied() -> None:
    """Segments 0 and 1 hold the fewest bytes, all of which expire within the hour."""
    soon = [Dying(NOW + 3600, 100)]
    view = toy([100, 100, 300, 300, 900], dying=[soon, soon, [], [], []])
    assert places(Greedy().plan(view, NOW)) == [0, 1]
    policy = ExpiryForecast(horizon_seconds=DAY)
    plan = planned(policy, view)
    assert places(plan) == [2, 3]
    assert "2 wait for what dies within 86,400 seconds" in plan.reason
    assert places(ExpiryForecast(horizon_seconds=60.0).plan(view, NOW)) == [0, 1]


def test_exactly_the_part_that_may_die_does_not_wait() -> None:
    for dying, waits in ((20, False), (21, True)):
        view = toy([100], dying=[[Dying(NOW + 3600, dying)]])
        assert ExpiryForecast(max_dying_fraction=0.2).waits(view.segments[0], NOW) == waits


def test_what_died_whole_is_dropped_without_a_copy() -> None:
    view = toy([0, 500, 0, 200, 0, 200])
    plan = planned(ExpiryForecast(), view)
    assert (places(plan), plan.cost_bytes, plan.benefit_segments, len(plan.drops)) == ([0, 2, 4], 0, 3, 3)
    assert places(ExpiryForecast(min_reclaimed_segments=4).plan(view, NOW)) == [0, 2, 3, 4, 5]


def test_a_nearly_full_store_waits_for_nothing() -> None:
    soon = [Dying(NOW + 3600, 100)]
    view = toy([100, 100, 300, 300], dying=[soon, soon, [], []], used_bytes=9_500)
    plan = planned(ExpiryForecast(), view)
    assert places(plan) == [0, 1]
    assert "nothing waits, as 95.0% of the log is used" in plan.reason


def test_a_store_in_which_everything_waits_says_so() -> None:
    soon = [Dying(NOW + 3600, 100)]
    view = toy([100, 100], dying=[soon, soon])
    assert ExpiryForecast().plan(view, NOW) is None
    assert "2 of them wait" in why_no_plan(ExpiryForecast(), view, NOW)


@given(few_segments, st.integers(1, 12), st.integers(1, 3), st.integers(0, 99))
def test_d_choices_takes_the_emptiest_of_each_draw_and_no_more_than_needed(valid: list[int], choices: int, least: int,
                                                                         seed: int) -> None:
    view = toy(valid)
    plan = DChoices(choices=choices, min_reclaimed_segments=least, random=Random(seed)).plan(view, NOW)
    assert (plan is None) == (cheapest_subset(view, least) is None)
    if plan is None:
        return
    assert plan == DChoices(choices=choices, min_reclaimed_segments=least, random=Random(seed)).plan(view, NOW)
    assert plan.benefit_segments >= least
    if choices >= len(valid):
        greedy = sorted(segment.valid_bytes for segment in view.eligible)[:len(plan.victims)]
        assert sorted(victim.valid_bytes for victim in plan.victims) == greedy


def test_d_choices_needs_one_choice() -> None:
    with pytest.raises(InvalidInput, match="choices is 0"):
        DChoices(choices=0, random=Random(1))


# ------------------------------------------------------------------------------------------------------ all of them

def every_policy() -> list[CompactionPolicy]:
    return [StatsBased(), StatsBased(weight_on_benefit=True), CompactAll(), CompactAll(skip_valid="ends"),
            CompactAll(skip_valid="all"), Hybrid(), Greedy(), Greedy(fill_outputs=True), CostBenefit(),
            ExpiryForecast(), CopyBudget(), DChoices(random=Random(7))]


@pytest.mark.parametrize("policy", every_policy(), ids=lambda policy: policy.name)
def test_a_plan_says_its_cost_its_benefit_and_its_reason(policy: CompactionPolicy) -> None:
    view = shares((.1, .2, 0, .3, .1, .9))
    plan = planned(policy, view)
    assert plan.reason
    assert f"copies {plan.cost_bytes:,} bytes" in repr(plan)
    assert plan.policy.name == policy.name
    assert [row["segment"] for row in plan.to_dicts()] == [str(name) for name in plan.names]
    assert plan._repr_html_().startswith("<table>")
    check_plan(plan, view)


@pytest.mark.parametrize("policy", every_policy(), ids=lambda policy: policy.name)
def test_ten_thousand_segments_are_no_problem(policy: CompactionPolicy) -> None:
    rng = Random(4)
    view = a_view([rng.randint(0, FILL) for _ in range(10_000)], capacity_bytes=10_000 * SEGMENT,
                  used_bytes=10_000 * SEGMENT, last_modified=[rng.uniform(0, NOW) for _ in range(10_000)])
    plan = planned(policy, view)
    assert plan.is_full or plan.benefit_segments >= 1


@pytest.mark.parametrize("name", POLICY_NAMES)
def test_each_policy_is_found_by_its_name(name: str) -> None:
    settings = {"random": Random(1)} if name == "d_choices" else {}
    assert policy_named(name, **settings).name == name
    assert policy_named(f" {name.upper().replace('_', '-')} ", **settings).name == name
    assert policy_of(BlobStoreConfig(compaction_policy=name)).name == name


def test_an_unknown_policy_is_named_with_those_there_are() -> None:
    with pytest.raises(UnknownPolicy, match="no policy 'best'; take one of compact_all, copy_budget") as caught:
        policy_named("best")
    assert (caught.value.name, caught.value.known) == ("best", ", ".join(POLICY_NAMES))
    with pytest.raises(UnknownPolicy):
        policy_of(BlobStoreConfig(compaction_policy="best"))
    with pytest.raises(InvalidInput, match="cannot be made of these settings"):
        policy_named("greedy", speed=3)


def test_a_configuration_reaches_its_policy() -> None:
    config = BlobStoreConfig(min_used_fraction=0.25, min_reclaimed_segments=3, weight_on_benefit=True,
                             min_cost_fraction=0.1, middle_range_interval_seconds=DAY, skip_valid_ends=True,
                             middle_range_max_valid_fraction=0.2, full_compaction_interval_seconds=2 * DAY,
                             full_compaction_stagger_seconds=60.0)
    stats = StatsBased(min_used_fraction=0.25, min_reclaimed_segments=3, weight_on_benefit=True, min_cost_fraction=0.1,
                       middle_range_interval_seconds=DAY, middle_range_max_valid_fraction=0.2)
    everything = CompactAll(min_used_fraction=0.25, skip_valid="ends")
    assert policy_of(config) == stats
    assert policy_of(BlobStoreConfig(compaction_policy="compact_all")) == CompactAll()
    assert policy_of(BlobStoreConfig()) == StatsBased()
    hybrid = Hybrid(usual=stats, thorough=everything, every_seconds=2 * DAY, spread_seconds=60.0)
    assert policy_of(attrs.evolve(config, compaction_policy="hybrid")) == hybrid
    assert policy_of(attrs.evolve(config, compaction_policy="greedy")) == Greedy(min_used_fraction=0.25,
                                                                                min_reclaimed_segments=3)


# ------------------------------------------------------------------------------------------- plans that do not fit

def test_a_plan_that_does_not_fit_the_store_any_more_is_refused() -> None:
    view = toy([0, 0, 500])
    plan = planned(CompactAll(), view)
    check_plan(plan, view)
    after = forecast(plan, view)
    assert [str(segment.name) for segment in after.segments] == ["0_1", "3_0"]
    with pytest.raises(PlanDoesNotFit, match="segment 0_0, which store 'disk1/7' does not have"):
        check_plan(plan, after)
    with pytest.raises(PlanDoesNotFit, match="0_0 of store 'disk1/7', which may not be compacted yet"):
        check_plan(plan, toy([0, 0, 500], eligible=[False] * 3))
