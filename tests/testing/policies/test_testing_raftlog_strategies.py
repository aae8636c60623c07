# SPDX-License-Identifier: Apache-2.0
"""`check_policy` must find what is planted: one wrong policy for each rule of the contract."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import attrs
import pytest
from hypothesis import Phase, find, given, settings
from hypothesis.errors import NoSuchExample

from compactlib.errors import InvalidInput
from compactlib.raftlog import LogChoice, LogPolicy, LogView, SeedPolicy, SegmentLimits
from compactlib.raftlog.compaction.plan.policy import LeftOut
from compactlib.raftlog.model.values import SegmentRef, SegmentStats
from compactlib.testing.policies.raftlog_strategies import (
    check_policy,
    compaction_views,
    rounds_to_rest,
    segment_limits,
    segment_sequences,
    segments_of,
)

Chooses = Callable[[LogView], LogChoice]


@attrs.frozen
class Planted:
    """A policy made of one function."""

    how: Chooses
    name: str = "planted"

    def choose(self, view: LogView, now: float) -> LogChoice:
        return self.how(view)


WHY = "so it was planted"


def keep(segments: Sequence[SegmentStats]) -> tuple[LeftOut, ...]:
    return tuple(LeftOut(each.number, "kept") for each in segments)


def nothing(view: LogView) -> LogChoice:
    return LogChoice((), keep(view.candidates), WHY)


def forgets_the_last(view: LogView) -> LogChoice:
    return LogChoice((), keep(view.candidates[:-1]), WHY)


def names_one_twice(view: LogView) -> LogChoice:
    return LogChoice((), keep([*view.candidates, *view.candidates[:1]]), WHY)


def makes_one_up(view: LogView) -> LogChoice:
    return LogChoice(((10**6,),), keep(view.candidates), WHY)


def merges_all(view: LogView) -> LogChoice:
    if len(view.candidates) < 2:
        return nothing(view)
    return LogChoice((tuple(each.number for each in view.candidates),), (), WHY)


def skips_the_middle(view: LogView) -> LogChoice:
    if len(view.candidates) < 3:
        return nothing(view)
    first, second, third, *others = view.candidates
    return LogChoice(((first.number, third.number),), keep([second, *others]), WHY)


def newest_first(view: LogView) -> LogChoice:
    return LogChoice(tuple((each.number,) for each in reversed(view.candidates) if each.live_entries < each.entries),
                  keep([each for each in view.candidates if each.live_entries == each.entries]), WHY)


def rewrites_for_nothing(view: LogView) -> LogChoice:
    return LogChoice(tuple((each.number,) for each in view.candidates), (), WHY)


def gives_no_reason(view: LogView) -> LogChoice:
    return LogChoice((), tuple(LeftOut(each.number, "") for each in view.candidates), WHY)


def says_nothing(view: LogView) -> LogChoice:
    return LogChoice((), keep(view.candidates), "")


@attrs.define
class Forgetful:
    """A policy whose settings change as it decides."""

    name: str = "planted"
    calls: int = 0

    def choose(self, view: LogView, now: float) -> LogChoice:
        self.calls += 1
        return nothing(view)


def divides_by_the_live(view: LogView) -> LogChoice:
    return nothing(view) if 1 // len(view.candidates) else LogChoice((), (), WHY)


def answers_none(view: LogView) -> Any:
    return None


def changes_its_mind() -> Chooses:
    calls = itertools.count()

    def choose(view: LogView) -> LogChoice:
        return LogChoice((), tuple(LeftOut(each.number, f"call {next(calls)}") for each in view.candidates), WHY)

    return choose


@pytest.mark.parametrize(("how", "error", "told"), [
    (forgets_the_last, InvalidInput, "neither in a group nor left out"),
    (names_one_twice, InvalidInput, "named twice"),
    (makes_one_up, InvalidInput, "not among those shown"),
    (merges_all, InvalidInput, "live entries and"),
    (skips_the_middle, InvalidInput, "not adjacent"),
    (newest_first, InvalidInput, "must ascend"),
    (rewrites_for_nothing, AssertionError, "rewriting it alone changes nothing"),
    (gives_no_reason, AssertionError, "without a reason"),
    (says_nothing, AssertionError, "has no `why`"),
    (changes_its_mind(), AssertionError, "not a pure function"),
    (divides_by_the_live, AssertionError, "raised ZeroDivisionError.*also one without segments"),
    (answers_none, AssertionError, "answered None; give a LogChoice"),
])
def test_a_planted_mistake_is_found_and_named(how: Chooses, error: type[Exception], told: str) -> None:
    with pytest.raises(error, match=f"planted.*{told}"):
        check_policy(Planted(how))


@pytest.mark.parametrize(("policy", "told"), [(Planted(nothing, name=""), "needs a name"),
                                             (Forgetful(), "changed the settings")])
def test_a_policy_that_cannot_be_recorded_is_named(policy: LogPolicy, told: str) -> None:
    with pytest.raises(AssertionError, match=told):
        check_policy(policy)


def test_doing_nothing_keeps_the_contract() -> None:
    check_policy(Planted(nothing), max_examples=20)


def test_rounds_are_counted_until_a_plan_is_empty() -> None:
    segments = segments_of(*[(1, 1, 10, 10)] * 10)
    view = LogView(segments=segments, snapshot_index=10, limits=SegmentLimits())
    assert rounds_to_rest(SeedPolicy(max_sources=3), view) == 2
    assert rounds_to_rest(SeedPolicy(max_sources=9), view) == 1
    assert rounds_to_rest(Planted(nothing), view) == 0


def test_segments_of_counts_cover_the_log_without_gaps() -> None:
    assert [each.ref for each in segments_of((100, 1, 9, 5), (28, 0, 3, 0))] == [
        SegmentRef(1, 1, 100), SegmentRef(2, 101, 128)]
    assert segments_of() == ()


@given(segment_sequences(min_live=1), segment_limits())
def test_what_a_policy_is_shown_is_alive(segments: tuple[SegmentStats, ...], limits: SegmentLimits) -> None:
    assert all(each.live_entries >= 1 for each in segments)
    LogView(segments=segments, snapshot_index=None, limits=limits)


CASES: dict[str, Callable[[LogView], bool]] = {
    "no snapshot yet": lambda view: view.snapshot_index is None,
    "no segments": lambda view: not view.segments,
    "many segments": lambda view: len(view.compactable) > 15,
    "wholly dead": lambda view: any(not each.live_entries for each in view.compactable),
    "wholly live": lambda view: any(each.live_entries == each.entries > 1 for each in view.compactable),
    "no payload": lambda view: any(not each.data_bytes for each in view.compactable),
    "too large for a segment": lambda view: any(each.live_bytes > view.limits.max_bytes for each in view.compactable),
    "few entries live, but large": lambda view: any(
        2 * each.live_entries < each.entries and 2 * each.live_bytes > each.data_bytes for each in view.compactable),
    "some above the snapshot": lambda view: 0 < len(view.compactable) < len(view.segments) - 1,
}


def test_the_random_logs_reach_the_cases_that_policies_trip_over() -> None:
    missing = set(CASES)

    def none_is_missing(view: LogView) -> bool:
        missing.difference_update([case for case in missing if CASES[case](view)])
        return not missing

    # Enough whatever else is loaded: Hypothesis also draws the constants that it finds in modules.
    with suppress(NoSuchExample):
        find(compaction_views(), none_is_missing, settings=settings(
            max_examples=1000, derandomize=True, database=None, phases=[Phase.generate]))
    assert not missing
