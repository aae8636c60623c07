"""The gate, CompactAll and Hybrid (notes 3.3), and what holds for every policy."""

from __future__ import annotations

from random import Random
from typing import Any

import attrs
import pytest

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
from compactlib.blobstore.policy import CompactionPolicy, StoreView, why_no_plan
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
