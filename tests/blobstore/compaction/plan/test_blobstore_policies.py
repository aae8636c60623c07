# SPDX-License-Identifier: Apache-2.0
"""The gate, CompactAll and Hybrid, and what holds for every policy."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from random import Random
from typing import Any

import attrs
import pytest

from compactlib.blobstore import (
    BlobChoice,
    BlobPolicy,
    BlobView,
    CompactAll,
    CopyBudget,
    CostBenefit,
    DChoices,
    ExpiryForecast,
    Greedy,
    Hybrid,
    StatsBased,
)
from compactlib.blobstore.compaction.plan.last_plans import LastPlans
from compactlib.blobstore.compaction.plan.plan import forecast, plan_for, plan_for_choice
from compactlib.blobstore.errors import PlanDoesNotFit
from compactlib.blobstore.model.names import SegmentName
from compactlib.errors import InvalidInput
from tests.blobstore.policy_views import DAY, FILL, NOW, SEGMENT, SHARES_A, a_view, places, planned, shares, toy

TOTAL = 10 * SEGMENT


# ---------------------------------------------------------------------------------------------------- the gate

@pytest.mark.parametrize("policy", [StatsBased(), CompactAll()])
@pytest.mark.parametrize(("percent", "compacts"), [(20, False), (40, False), (50, True), (51, True), (60, True),
                                                   (70, True), (90, True)])
def test_half_full_is_full_enough(policy: BlobPolicy, percent: int, compacts: bool) -> None:
    view = a_view([0] * 10, used_bytes=TOTAL * percent // 100)
    assert (not plan_for(view, policy, NOW).is_empty) == compacts


@pytest.mark.parametrize(("used", "compacts"), [(499, False), (500, True)])
def test_the_boundary_counts_as_full_enough(used: int, compacts: bool) -> None:
    view = toy([0], capacity_bytes=1000, used_bytes=used)
    assert (not plan_for(view, CompactAll(), NOW).is_empty) == compacts
    if not compacts:
        assert plan_for(view, CompactAll(), NOW).why == (
            "49.9% of the log is used, below min_used_fraction=0.5; lower it, or wait")


@pytest.mark.parametrize("percent", [10, 20, 35, 40, 50, 59, 60, 61, 65, 70, 80, 95])
def test_the_gate_moves_with_its_setting(percent: int) -> None:
    view = a_view([0] * 10, used_bytes=TOTAL * 60 // 100)
    for policy in (StatsBased(min_used_fraction=percent / 100), CompactAll(min_used_fraction=percent / 100)):
        assert (not plan_for(view, policy, NOW).is_empty) == (percent <= 60)


def test_ten_empty_segments_free_ten_and_not_eleven() -> None:
    assert places(plan_for(a_view([0] * 10), StatsBased(min_reclaimed_segments=10), NOW)) == list(range(10))
    assert plan_for(a_view([0] * 10), StatsBased(min_reclaimed_segments=11), NOW).is_empty


def test_nothing_eligible_is_nothing_to_do_for_any_policy() -> None:
    view = a_view([0] * 4, eligible=[False] * 4)
    for policy in every_policy():
        assert plan_for(view, policy, NOW).is_empty
        assert "none of the 5 segments may be compacted yet" in plan_for(view, policy, NOW).why


# ------------------------------------------------------------------------------------------------------- CompactAll

def test_compact_all_takes_every_eligible_segment() -> None:
    plan = planned(CompactAll(), shares(SHARES_A))
    assert places(plan) == list(range(10))
    assert (plan.is_full, plan.reference_time) == (True, NOW - 7 * DAY)


@pytest.mark.parametrize("hours", [60, 120, 180, 360, 540])
def test_the_reference_time_is_the_retention_ago(hours: int) -> None:
    seconds = hours * 3600.0
    view = a_view([0] * 4, retention_seconds=seconds, reference_time=NOW - seconds)
    assert planned(CompactAll(), view).reference_time == NOW - seconds
    assert planned(StatsBased(), view).reference_time == NOW - seconds


@pytest.mark.parametrize(("valid", "ends", "everywhere"), [
    pytest.param([100, 100, 5, 5, 5], [2, 3, 4], [2, 3, 4], id="at-the-end"),
    pytest.param([5, 5, 5, 100, 100], [0, 1, 2], [0, 1, 2], id="at-the-beginning"),
    pytest.param([100, 100, 5, 100, 100], [2], [2], id="one-inside"),
    pytest.param([100] * 5, None, None, id="none-dirty"),
    pytest.param([5] * 5, [0, 1, 2, 3, 4], [0, 1, 2, 3, 4], id="all-dirty"),
    pytest.param([100, 5, 100, 5, 100], [1, 2, 3], [1, 3], id="two-inside"),
])
def test_wholly_valid_segments_are_left_out(valid: list[int], ends: list[int] | None,
                                            everywhere: list[int] | None) -> None:
    view = toy(valid, used=[100] * 5)
    assert places(plan_for(view, CompactAll(skip_valid="ends"), NOW)) == ends
    assert places(plan_for(view, CompactAll(skip_valid="all"), NOW)) == everywhere
    assert places(plan_for(view, CompactAll(), NOW)) == [0, 1, 2, 3, 4]


def test_nothing_wholly_valid_need_be_copied() -> None:
    view = toy([100, 5, 100, 100, 5], used=[100] * 5)
    assert planned(CompactAll(skip_valid="all"), view).valid_bytes == 10
    assert plan_for(toy([9, 9], used=[9, 9]), CompactAll(skip_valid="ends"), NOW).why == (
        "each of the 2 eligible segments is wholly valid, which skip_valid='ends' leaves out; wait until something is "
        "dead")


def test_an_unknown_way_to_skip_is_refused() -> None:
    with pytest.raises(InvalidInput, match="skip_valid is 'some'"):
        CompactAll(skip_valid="some")  # type: ignore[arg-type]


# ----------------------------------------------------------------------------------------------------------- Hybrid

def hybrid_view(last_full_at: float | None, **changed: Any) -> BlobView:
    return shares(SHARES_A, history=LastPlans(since=NOW - DAY, last_full_at=last_full_at), **changed)


def test_a_new_store_begins_with_the_usual_policy() -> None:
    plan = planned(Hybrid(), hybrid_view(None))
    assert (places(plan), plan.kind) == ([5, 6], "normal")
    assert plan.policy.name == "hybrid"


def test_six_days_after_the_last_full_round_the_next_one_is_due() -> None:
    """Ambry only sets a flag now, and runs its full round at the check after this one."""
    assert places(plan_for(hybrid_view(NOW - 6 * DAY + 1), Hybrid(), NOW)) == [5, 6]
    plan = planned(Hybrid(), hybrid_view(NOW - 6 * DAY))
    assert (places(plan), plan.kind) == (list(range(10)), "full")
    assert "a full round has been due for 0 seconds" in plan.why


def test_after_a_full_round_the_usual_policy_is_back_also_from_the_file() -> None:
    view = hybrid_view(NOW - 8 * DAY)
    after = view.history.after(planned(Hybrid(), view).kind, NOW + 60)
    assert after.last_full_at == NOW + 60
    again = shares(SHARES_A, history=after)
    assert places(plan_for(again, Hybrid(), NOW + 120)) == [5, 6]
    assert planned(Hybrid(), again, NOW + 60 + 6 * DAY).is_full


def test_a_full_round_that_the_gate_refuses_stays_due() -> None:
    """Ambry uses its full round up when the store is not full enough for it."""
    view = hybrid_view(NOW - 8 * DAY, used_bytes=TOTAL * 49 // 100)
    assert plan_for(view, Hybrid(), NOW).is_empty
    assert "for the full round that is due" in plan_for(view, Hybrid(), NOW).why
    assert planned(Hybrid(), hybrid_view(NOW - 8 * DAY), NOW + 60).is_full


def test_only_a_plan_that_was_carried_out_counts() -> None:
    view = hybrid_view(NOW - 8 * DAY)
    assert planned(Hybrid(), view).is_full
    assert planned(Hybrid(), view, NOW + 3600).is_full
    usual = planned(Hybrid(), hybrid_view(NOW))
    assert view.history.after(usual.kind, NOW) == view.history


def test_full_rounds_of_many_stores_are_spread_and_follow_the_time_that_is_passed_in() -> None:
    policy = Hybrid(spread_seconds=DAY)
    dues = {policy.due_at(hybrid_view(NOW, store=f"disk/{number}")) for number in range(20)}
    assert len(dues) == 20
    assert all(NOW + 6 * DAY <= due <= NOW + 7 * DAY for due in dues)
    view = hybrid_view(NOW, store="disk/3")
    assert planned(policy, view, policy.due_at(view)).is_full
    assert not planned(policy, view, policy.due_at(view) - 1).is_full


def test_a_plan_compares_by_what_a_freed_segment_costs() -> None:
    plan = planned(StatsBased(), toy([300, 300, 300, 900]))
    assert (plan.valid_bytes, plan.benefit_segments, plan.ratio) == (900, 2, 450.0)
    assert planned(CompactAll(), toy([950, 950])).ratio == float("inf")


# ------------------------------------------------------------------------------------------------------ all of them

def every_policy() -> list[BlobPolicy]:
    return [StatsBased(), StatsBased(weight_on_benefit=True), CompactAll(), CompactAll(skip_valid="ends"),
            CompactAll(skip_valid="all"), Hybrid(), Greedy(), Greedy(fill_outputs=True), CostBenefit(),
            ExpiryForecast(), CopyBudget(), DChoices(seed=7)]


@pytest.mark.parametrize("policy", every_policy(), ids=lambda policy: policy.name)
def test_a_plan_says_its_cost_its_benefit_and_its_reason(policy: BlobPolicy) -> None:
    view = shares((.1, .2, 0, .3, .1, .9))
    plan = planned(policy, view)
    assert plan.why
    assert f"frees {plan.benefit_segments} for sure: {plan.why}" in repr(plan) or plan.benefit_segments < 1
    assert plan.policy.name == policy.name
    rows = plan.to_dicts()
    assert [row["segment"] for row in rows] == [str(segment.name) for segment in view.segments]
    assert [row["segment"] for row in rows if row["action"] != "keep"] == [str(name) for name in plan.names]
    assert all(row["why"] for row in rows)
    assert plan._repr_html_().startswith("<table>")
    forecast(plan, view)


@pytest.mark.parametrize("policy", every_policy(), ids=lambda policy: policy.name)
def test_ten_thousand_segments_are_no_problem(policy: BlobPolicy) -> None:
    rng = Random(4)
    view = a_view([rng.randint(0, FILL) for _ in range(10_000)], capacity_bytes=10_000 * SEGMENT,
                  used_bytes=10_000 * SEGMENT, last_modified=[rng.uniform(0, NOW) for _ in range(10_000)])
    plan = planned(policy, view)
    assert plan.is_full or plan.benefit_segments >= 1


@pytest.mark.parametrize("policy", every_policy(), ids=lambda policy: policy.name)
def test_a_choice_of_nothing_names_its_gate_and_every_setting_says_its_name(policy: BlobPolicy) -> None:
    choice = policy.choose(shares((.1, .2), used_bytes=1), NOW)
    assert choice.is_empty
    assert "below min_used_fraction=0.5; lower it, or wait" in choice.why
    plan = plan_for_choice(shares((.1, .2), used_bytes=1), choice, policy, NOW)
    assert (plan.is_empty, plan.bytes_to_copy, plan.bytes_freed, plan.bytes_needed) == (True, 0, 0, 0)
    assert plan.is_exact
    assert repr(plan) == f"<BlobPlan: nothing to compact in disk1/7 by {policy.name}: {choice.why}>"
    assert [row["action"] for row in plan.to_dicts()] == ["keep"] * 3
    assert pickle.loads(pickle.dumps((plan, choice, policy))) == (plan, choice, policy)
    settings = {field.name for field in attrs.fields(type(policy))}  # type: ignore[arg-type]
    assert {name for name, _ in plan.policy.settings} == settings


@pytest.mark.parametrize("policy", every_policy(), ids=lambda policy: policy.name)
def test_what_is_no_view_is_refused(policy: BlobPolicy) -> None:
    with pytest.raises(InvalidInput, match="chooses from a BlobView, not from NoneType"):
        policy.choose(None, NOW)  # type: ignore[arg-type]


@pytest.mark.parametrize(("make", "told"), [
    (lambda: CompactAll(min_used_fraction="half"), "min_used_fraction is 'half'"),  # type: ignore[arg-type]
    (lambda: Greedy(min_reclaimed_segments=1.5), "min_reclaimed_segments is 1.5"),  # type: ignore[arg-type]
    (lambda: StatsBased(min_reclaimed_segments=True), "min_reclaimed_segments is True"),
    (lambda: StatsBased(weight_on_benefit=1), "weight_on_benefit is 1; it is True or False"),  # type: ignore[arg-type]
    (lambda: Greedy(fill_outputs="no"), "fill_outputs is 'no'; it is True or False"),  # type: ignore[arg-type]
    (lambda: attrs.evolve(toy([]), used_bytes="x"), "view of store 'disk1/7' has a value of another type"),  # type: ignore[arg-type]
    (lambda: attrs.evolve(toy([]), segments=None), "view of store 'disk1/7' has a value of another type"),  # type: ignore[arg-type]
    (lambda: attrs.evolve(toy([1]).segments[0], valid_bytes="1"), "segment 0_0 has a value of another type"),  # type: ignore[arg-type]
    (lambda: attrs.evolve(plan_for(toy([]), Greedy(), NOW), victims=3), "plan .* has a value of another type"),  # type: ignore[arg-type]
    (lambda: attrs.evolve(plan_for(toy([]), Greedy(), NOW), reference_time="x"), "plan .* has a value of another type"),  # type: ignore[arg-type]
    (lambda: attrs.evolve(plan_for(toy([]), Greedy(), NOW), why=None), "gives no reason"),  # type: ignore[arg-type]
    (lambda: Hybrid(every_seconds=None), "every_seconds is None"),  # type: ignore[arg-type]
    (lambda: DChoices(seed="x"), "seed is 'x'"),  # type: ignore[arg-type]
    (lambda: BlobChoice(why=3), "gives the reason 3"),  # type: ignore[arg-type]
    (lambda: BlobChoice(["0_0"], why="x"), "names '0_0', which is no segment"),  # type: ignore[list-item]
    (lambda: BlobChoice(7, why="x"), "names 7, which is no segment"),  # type: ignore[arg-type]
    (lambda: BlobChoice(why="x", kind="odd"), "kind of a choice is 'odd'"),  # type: ignore[arg-type]
])
def test_arguments_of_other_types_are_refused_by_name(make: Callable[[], object], told: str) -> None:
    with pytest.raises(InvalidInput, match=told):
        make()


def test_a_store_is_told_of_a_full_round_also_where_nothing_is_eligible_yet() -> None:
    nothing = toy([0], eligible=[False])
    assert CompactAll().choose(nothing, NOW) == BlobChoice(why=CompactAll().choose(nothing, NOW).why, kind="full")
    assert CompactAll().choose(toy([0], used_bytes=0), NOW).kind == "normal"
    due = toy([0], eligible=[False], history=LastPlans(since=0.0))
    assert (Hybrid().choose(due, NOW).kind, Hybrid().choose(nothing, NOW).kind) == ("full", "normal")
    assert not getattr(StatsBased(), "needs_forecast", False)
    assert ExpiryForecast().needs_forecast
    assert [Hybrid(usual=usual).needs_forecast for usual in (Greedy(), ExpiryForecast())] == [False, True]


@attrs.frozen
class Answers:
    """A policy that gives one answer to everything."""

    answer: Any
    name: str = "stubborn"

    def choose(self, view: BlobView, now: float) -> BlobChoice:
        return self.answer  # type: ignore[no-any-return]


@pytest.mark.parametrize(("answer", "told"), [
    (None, "answered None; choose.. answers a BlobChoice"),
    ([SegmentName(0, 0)], "answered .*; choose.. answers a BlobChoice"),
    (BlobChoice([SegmentName(9, 9)], why="x"), "names segment 9_9, which store 'disk1/7' does not have"),
    (BlobChoice([SegmentName(2, 0)], why="x"), "names segment 2_0, which may not be compacted yet"),
    (BlobChoice([SegmentName(1, 0)] * 2, why="x"), "names segment 1_0 twice"),
])
def test_a_choice_that_breaks_a_rule_is_no_plan(answer: Any, told: str) -> None:
    with pytest.raises(InvalidInput, match=f"policy 'stubborn' (made a bad choice: it )?{told}"):
        plan_for(toy([0, 0]), Answers(answer), NOW)


# ------------------------------------------------------------------------------------------- plans that do not fit

def test_a_plan_that_does_not_fit_the_store_any_more_is_refused() -> None:
    view = toy([0, 0, 500])
    plan = planned(CompactAll(), view)
    after = forecast(plan, view)
    assert [str(segment.name) for segment in after.segments] == ["0_1", "3_0"]
    with pytest.raises(PlanDoesNotFit, match="segment 0_0, which store 'disk1/7' does not have"):
        forecast(plan, after)
    with pytest.raises(PlanDoesNotFit, match="0_0 of store 'disk1/7', which may not be compacted yet"):
        forecast(plan, toy([0, 0, 500], eligible=[False] * 3))
