# SPDX-License-Identifier: Apache-2.0
"""`check_blob_policy` must find what is planted: one wrong policy for each rule of the contract."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from random import Random
from typing import Any

import attrs
import pytest
from hypothesis import given, settings

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
from compactlib.blobstore.compaction.plan.policies.declining_cost import DecliningCost
from compactlib.blobstore.model.names import SegmentName
from compactlib.testing import check_blob_policy
from compactlib.testing.policies.blob_strategies import rounds_to_rest, store_views

Chooses = Callable[["Planted", BlobView, float], BlobChoice]


@attrs.frozen
class Planted:
    """A policy made of one function."""

    _how: Chooses
    limit: int = 3
    name: str = "planted"

    def choose(self, view: BlobView, now: float) -> BlobChoice:
        return self._how(self, view, now)


def first_eligible(policy: Planted, view: BlobView, now: float) -> BlobChoice:
    """Well made, but it copies for nothing."""
    return BlobChoice(view.eligible[:1], why="the first of 1 or none")


def whatever_is_there(policy: Planted, view: BlobView, now: float) -> BlobChoice:
    return BlobChoice(view.segments, why="all")


def makes_one_up(policy: Planted, view: BlobView, now: float) -> BlobChoice:
    return BlobChoice([SegmentName(10**6, 0)], why="out of thin air")


def gives_no_reason(policy: Planted, view: BlobView, now: float) -> BlobChoice:
    return BlobChoice(view.eligible[:1], why="")


def changes_its_settings(policy: Planted, view: BlobView, now: float) -> BlobChoice:
    object.__setattr__(policy, "limit", policy.limit + 1)
    return BlobChoice(why="3 times as many")


def names_a_segment_twice(policy: Planted, view: BlobView, now: float) -> BlobChoice:
    return BlobChoice(view.eligible[:1] * 2, why="1 of them twice")


def counts_on_segments(policy: Planted, view: BlobView, now: float) -> BlobChoice:
    return BlobChoice([view.eligible[3]], why="the fourth")


def changes_the_view(policy: Planted, view: BlobView, now: float) -> BlobChoice:
    object.__setattr__(view, "segments", view.segments[:1])
    return BlobChoice(why="0 are left")


def answers_names(policy: Planted, view: BlobView, now: float) -> Any:
    return [segment.name for segment in view.eligible]


def answers_nothing(policy: Planted, view: BlobView, now: float) -> Any:
    return None


_CALLS = itertools.count()


def changes_its_mind(policy: Planted, view: BlobView, now: float) -> BlobChoice:
    return BlobChoice(why=f"call {next(_CALLS)}")


@attrs.frozen
class Another:
    """What another package's policy would answer."""

    why: str = "3 of them"
    is_empty: bool = False


def answers_another(policy: Planted, view: BlobView, now: float) -> Any:
    return Another()


@attrs.frozen
class Drawing:
    """Goes on with a generator of its own."""

    _random: Random = attrs.field(factory=lambda: Random(1), eq=False)
    name: str = "drawing"

    def choose(self, view: BlobView, now: float) -> BlobChoice:
        return BlobChoice([each for each in view.eligible if self._random.random() < 0.5], why="each with 50 %")


@pytest.mark.parametrize(("how", "told"), [
    (names_a_segment_twice, "names segment .* twice.*takes segments of view.eligible"),
    (counts_on_segments, "IndexError.*answer a choice of nothing where it cannot decide"),
    (changes_the_view, "changes nothing"),
    (answers_names, "answer the package's own choice"),
    (answers_another, "give a BlobChoice, an empty one"),
    (answers_nothing, "never None"),
    (whatever_is_there, "may not be compacted yet.*takes segments of view.eligible and no others"),
    (makes_one_up, "which store .* does not have"),
    (gives_no_reason, "say in one sentence why"),
    (changes_its_settings, "keeps nothing"),
    (changes_its_mind, "equal arguments give equal choices"),
    (first_eligible, "makes no progress"),
])
def test_a_planted_mistake_is_found_and_named(how: Chooses, told: str) -> None:
    with pytest.raises(AssertionError, match=f"(?s:.*{told})"):
        check_blob_policy(Planted(how))


def test_a_policy_that_goes_on_with_a_generator_is_told_so() -> None:
    with pytest.raises(AssertionError, match="a policy keeps nothing"):
        check_blob_policy(Drawing())


def test_a_policy_has_a_name() -> None:
    with pytest.raises(AssertionError, match="a policy has a short name"):
        check_blob_policy(Planted(first_eligible, name=""))


@pytest.mark.parametrize("policy", [
    StatsBased(), StatsBased(min_used_fraction=0.0, min_reclaimed_segments=2, weight_on_benefit=True),
    StatsBased(middle_range_interval_seconds=86_400.0), CompactAll(skip_valid="ends"), CompactAll(skip_valid="all"),
    Hybrid(), Hybrid(usual=Greedy(), every_seconds=0.0, spread_seconds=10.0), Greedy(), Greedy(fill_outputs=True),
    CostBenefit(min_reclaimed_segments=2), ExpiryForecast(), ExpiryForecast(max_dying_fraction=0.0),
    CopyBudget(max_copied_bytes=1_500), DChoices(seed=3), DChoices(choices=1, seed=3), DecliningCost(),
    DecliningCost(decline=None, min_reclaimed_segments=2, max_reclaimed_segments=3),
], ids=repr)
def test_each_of_the_librarys_policies_keeps_the_contract(policy: BlobPolicy) -> None:
    check_blob_policy(policy, max_examples=15)


def test_compact_all_without_an_option_keeps_all_of_it_but_rest() -> None:
    check_blob_policy(CompactAll(), comes_to_rest=False, max_examples=15)
    with pytest.raises(AssertionError, match="makes no progress"):
        check_blob_policy(CompactAll(min_used_fraction=0.0))


@given(store_views())
@settings(max_examples=30)
def test_stats_based_rests_after_at_most_as_many_rounds_as_there_are_segments(view: BlobView) -> None:
    assert rounds_to_rest(StatsBased(), view) <= len(view.segments)


