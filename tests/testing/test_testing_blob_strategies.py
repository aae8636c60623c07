"""`check_blob_policy` must find what is planted: one wrong policy for each rule of the contract."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from random import Random
from typing import Any

import attrs
import pytest
from hypothesis import given, settings

from compactlib.blobstore.names import SegmentName
from compactlib.blobstore.plan import CompactionPlan, plan_for
from compactlib.blobstore.policies import (
    CompactAll,
    CopyBudget,
    CostBenefit,
    DChoices,
    ExpiryForecast,
    Greedy,
    Hybrid,
    StatsBased,
)
from compactlib.blobstore.policy import CompactionPolicy, SegmentView, Setting, StoreView
from compactlib.testing.blob_strategies import check_blob_policy, rounds_to_rest, store_views

Plans = Callable[["Planted", StoreView, float], CompactionPlan | None]


@attrs.frozen
class Planted:
    """A policy made of one function."""

    how: Plans
    told: dict[str, Setting] = attrs.Factory(dict)
    name: str = "planted"

    def config(self) -> dict[str, Setting]:
        return self.told

    def plan(self, view: StoreView, now: float) -> CompactionPlan | None:
        return self.how(self, view, now)


def first_eligible(policy: Planted, view: StoreView, now: float) -> CompactionPlan | None:
    """Well made, but it copies for nothing."""
    return plan_for(view, policy, view.eligible[:1], now=now, reason="the first") if view.eligible else None


def whatever_is_there(policy: Planted, view: StoreView, now: float) -> CompactionPlan | None:
    return plan_for(view, policy, view.segments, now=now, reason="all")


def makes_one_up(policy: Planted, view: StoreView, now: float) -> CompactionPlan | None:
    stranger = SegmentView(name=SegmentName(10**6, 0), used_bytes=0, valid_bytes=0)
    return plan_for(view, policy, [stranger], now=now, reason="out of thin air")


def promises_too_much(policy: Planted, view: StoreView, now: float) -> CompactionPlan | None:
    plan = first_eligible(policy, view, now)
    return plan and attrs.evolve(plan, benefit_segments=plan.benefit_segments + 1)


def hides_the_cost(policy: Planted, view: StoreView, now: float) -> CompactionPlan | None:
    plan = first_eligible(policy, view, now)
    return plan and attrs.evolve(plan, victims=tuple(attrs.evolve(each, valid_bytes=0) for each in plan.victims))


def gives_no_reason(policy: Planted, view: StoreView, now: float) -> CompactionPlan | None:
    plan = first_eligible(policy, view, now)
    return plan and attrs.evolve(plan, reason="")


def takes_deletes_that_can_be_undone(policy: Planted, view: StoreView, now: float) -> CompactionPlan | None:
    plan = first_eligible(policy, view, now)
    return plan and attrs.evolve(plan, reference_time=now)


def plans_for_another(policy: Planted, view: StoreView, now: float) -> CompactionPlan | None:
    plan = first_eligible(policy, view, now)
    return plan and attrs.evolve(plan, store="another")


def changes_its_settings(policy: Planted, view: StoreView, now: float) -> CompactionPlan | None:
    policy.told["calls"] = int(policy.told.get("calls") or 0) + 1
    return None


def names_a_segment_twice(policy: Planted, view: StoreView, now: float) -> CompactionPlan | None:
    return plan_for(view, policy, view.eligible[:1] * 2, now=now, reason="twice") if view.eligible else None


def counts_on_segments(policy: Planted, view: StoreView, now: float) -> CompactionPlan | None:
    return plan_for(view, policy, [view.eligible[3]], now=now, reason="the fourth")


def changes_the_view(policy: Planted, view: StoreView, now: float) -> CompactionPlan | None:
    object.__setattr__(view, "segments", view.segments[:1])
    return None


def answers_names(policy: Planted, view: StoreView, now: float) -> Any:
    return [segment.name for segment in view.eligible]


def changes_its_mind() -> Plans:
    calls = itertools.count()

    def plan(policy: Planted, view: StoreView, now: float) -> CompactionPlan | None:
        made = first_eligible(policy, view, now)
        return made and attrs.evolve(made, reason=f"call {next(calls)}")

    return plan


@pytest.mark.parametrize(("how", "told"), [
    (names_a_segment_twice, "segments come in log order, each once.*make plans with plan_for"),
    (counts_on_segments, "raised IndexError.*answer None when nothing is worth it"),
    (changes_the_view, "changed the view"),
    (answers_names, "give a CompactionPlan"),
    (whatever_is_there, "may not be compacted yet.*takes segments of view.eligible and no others"),
    (makes_one_up, "which store .* does not have"),
    (promises_too_much, "promises .* segments for sure"),
    (hides_the_cost, "the plan says segment .* holds 0 valid"),
    (gives_no_reason, "gives no reason"),
    (takes_deletes_that_can_be_undone, "inside of the retention"),
    (plans_for_another, "is for store 'another'"),
    (changes_its_settings, "planning changed the settings"),
    (changes_its_mind(), "two equal questions got two answers"),
    (first_eligible, "makes no progress"),
])
def test_a_planted_mistake_is_found_and_named(how: Plans, told: str) -> None:
    with pytest.raises(AssertionError, match=f"planted: (?s:.*{told})"):
        check_blob_policy(Planted(how))


@pytest.mark.parametrize(("policy", "told"), [
    (Planted(first_eligible, name=""), "needs a name"),
    (Planted(first_eligible, told={"list": []}), "setting list is"),  # type: ignore[dict-item]
    (Planted(first_eligible, told={3: 4}), "name of a setting is text"),  # type: ignore[dict-item]
])
def test_a_policy_has_a_name_and_plain_settings(policy: CompactionPolicy, told: str) -> None:
    with pytest.raises(AssertionError, match=told):
        check_blob_policy(policy)


@pytest.mark.parametrize("policy", [
    StatsBased(), StatsBased(min_used_fraction=0.0, min_reclaimed_segments=2, weight_on_benefit=True),
    StatsBased(middle_range_interval_seconds=86_400.0), CompactAll(skip_valid="ends"), CompactAll(skip_valid="all"),
    Hybrid(), Hybrid(usual=Greedy(), every_seconds=0.0, spread_seconds=10.0), Greedy(), Greedy(fill_outputs=True),
    CostBenefit(min_reclaimed_segments=2), ExpiryForecast(), ExpiryForecast(max_dying_fraction=0.0),
    CopyBudget(max_copied_bytes=1_500), DChoices(random=Random(3)), DChoices(choices=1, random=Random(3)),
], ids=repr)
def test_each_of_the_librarys_policies_keeps_the_contract(policy: CompactionPolicy) -> None:
    check_blob_policy(policy, max_examples=15)


def test_compact_all_without_an_option_keeps_all_of_it_but_rest() -> None:
    check_blob_policy(CompactAll(), comes_to_rest=False, max_examples=15)
    with pytest.raises(AssertionError, match="makes no progress"):
        check_blob_policy(CompactAll())


@given(store_views())
@settings(max_examples=30)
def test_stats_based_rests_after_at_most_as_many_rounds_as_there_are_segments(view: StoreView) -> None:
    assert rounds_to_rest(StatsBased(), view) <= len(view.segments)


