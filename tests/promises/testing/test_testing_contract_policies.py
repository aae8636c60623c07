# SPDX-License-Identifier: Apache-2.0
"""The check of policies passes a sound policy, and finds planted mistakes, each reported with advice."""

from __future__ import annotations

import dataclasses
import random
import time
from typing import Any, ClassVar

import attrs
import pytest
from hypothesis import strategies as st

from compactlib.errors import InvalidInput
from compactlib.report import PolicyRecord
from compactlib.testing import PromiseBroken, Views, check_policy
from tests.harness.toy_lines import LineChoice, LineFile, LineView, MinGarbage

VIEWS = [LineView("a", ()), LineView("a", (LineFile(1, 100, 0), LineFile(2, 100, 50))),
         LineView("a", (LineFile(1, 9, 0),))]
FILES = st.builds(LineFile, st.integers(1, 9), st.integers(100, 200), st.integers(0, 99))
ANY_VIEWS = st.builds(LineView, st.just("a"), st.lists(FILES, max_size=4).map(tuple))


@attrs.frozen
class Sound:
    """Another word for `MinGarbage`, for others to get one thing wrong."""

    min_bytes: int = 1
    name = "sound"

    def choose(self, view: Any, now: float) -> Any:
        return MinGarbage(self.min_bytes).choose(view, now)


@attrs.frozen
class AnswersNone(Sound):
    def choose(self, view: Any, now: float) -> Any:
        choice = super().choose(view, now)
        return None if choice.is_empty else choice


@attrs.frozen
class SaysNothing(Sound):
    def choose(self, view: Any, now: float) -> Any:
        return LineChoice(super().choose(view, now).files, " ")


@attrs.frozen
class NamesNoGate(Sound):
    def choose(self, view: Any, now: float) -> Any:
        choice = super().choose(view, now)
        return attrs.evolve(choice, why="nothing to do") if choice.is_empty else choice


@attrs.frozen
class AsksTheClock(Sound):
    def choose(self, view: Any, now: float) -> Any:
        return attrs.evolve(super().choose(view, now), why=f"1 second after {time.time() - 1}")


@attrs.frozen
class Draws(Sound):
    def choose(self, view: Any, now: float) -> Any:
        return LineChoice(tuple(file for file in view.files if random.random() < 0.5), "drawn by 1 coin")


@attrs.frozen
class ChangesTheView(Sound):
    def choose(self, view: Any, now: float) -> Any:
        choice = super().choose(view, now)
        object.__setattr__(view, "files", view.files[:1])
        return choice


@attrs.frozen
class Remembers(Sound):
    seen: list[float] = attrs.field(factory=list, hash=False)

    def choose(self, view: Any, now: float) -> Any:
        self.seen.append(now)
        return super().choose(view, now)


@attrs.frozen
class CountsItsCalls(Sound):
    calls: ClassVar[list[int]] = [0]

    def choose(self, view: Any, now: float) -> Any:
        self.calls[0] += 1
        return attrs.evolve(super().choose(view, now), why=f"call {self.calls[0]}")


@attrs.define
class CanBeChanged:
    min_bytes: int = 1
    name = "loose"

    def choose(self, view: Any, now: float) -> Any:
        return MinGarbage(self.min_bytes).choose(view, now)


class NoAttrs:
    name = "plain"

    def choose(self, view: Any, now: float) -> Any:
        return MinGarbage().choose(view, now)


@attrs.frozen
class HasNoName(Sound):
    name = ""


@attrs.frozen
class HasAFunction(Sound):
    accept: Any = attrs.field(default=lambda file: True, repr=False)


@attrs.frozen(eq=False)
class EqualToNothing:
    name = "alone"

    def choose(self, view: Any, now: float) -> Any:
        return MinGarbage().choose(view, now)


@attrs.frozen
class Raises(Sound):
    def choose(self, view: Any, now: float) -> Any:
        return LineChoice(view.files, f"{1 / len(view.files)} of all")


class LooseChoice:
    """Can be changed."""

    def __init__(self, choice: LineChoice) -> None:
        self.why, self.is_empty = choice.why, choice.is_empty

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LooseChoice) and self.why == other.why

    def __hash__(self) -> int:
        return hash(self.why)


@attrs.frozen
class ChoiceCanBeChanged(Sound):
    def choose(self, view: Any, now: float) -> Any:
        return LooseChoice(super().choose(view, now))


@attrs.frozen
class AnswersATuple(Sound):
    def choose(self, view: Any, now: float) -> Any:
        return super().choose(view, now).files


MISTAKES: list[tuple[Any, str]] = [
    (AnswersNone(), "return the package's choice without victims"),
    (SaysNothing(), "a choice has a reason"),
    (NamesNoGate(), "an empty choice names the gate"),
    (AsksTheClock(), "equal arguments give equal choices"),
    (Draws(), "equal arguments give equal choices"),
    (ChangesTheView(), "copy what you want to change"),
    (Remembers(), "a policy keeps nothing"),
    (CountsItsCalls(), "equal arguments give equal choices"),
    (CanBeChanged(), "a policy is a frozen class"),
    (NoAttrs(), "a policy is a frozen class"),
    (HasNoName(), "a policy has a short name"),
    (HasAFunction(), "a plan shows the settings of its policy"),
    (EqualToNothing(), "copies of a policy are equal"),
    (Raises(), "a policy chooses from any view"),
    (ChoiceCanBeChanged(), "a choice is frozen"),
    (AnswersATuple(), "a choice says whether it is empty"),
    (LineChoice((), "1"), "a policy has a short name"),
]


def test_a_sound_policy_passes_on_examples_and_on_a_strategy() -> None:
    judged: list[tuple[float, bool]] = []
    check_policy(Sound(), Views(VIEWS, lambda policy, view, now, choice: judged.append((now, choice.is_empty)), (5.0,)))
    assert judged == [(5.0, True), (5.0, False), (5.0, True)]
    check_policy(MinGarbage(min_bytes=20), ANY_VIEWS, max_examples=20)


@pytest.mark.parametrize(("policy", "told"), MISTAKES, ids=lambda each: type(each).__name__)
def test_a_mistake_of_a_policy_is_found_and_named(policy: Any, told: str) -> None:
    with pytest.raises(PromiseBroken) as broken:
        check_policy(policy, VIEWS)
    assert told in str(broken.value)
    assert broken.value.found
    assert len(broken.value.advice) > 20


@dataclasses.dataclass(frozen=True)
class Dataclass:
    min_bytes: int = 20
    name: ClassVar[str] = "dataclass"

    def choose(self, view: Any, now: float) -> Any:
        return MinGarbage(self.min_bytes).choose(view, now)


def test_policy_may_be_a_frozen_dataclass() -> None:
    check_policy(Dataclass(), VIEWS)
    assert str(PolicyRecord.of(Dataclass())) == "dataclass(min_bytes=20)"


def test_a_strategy_finds_the_smallest_view() -> None:
    with pytest.raises(PromiseBroken) as broken:
        check_policy(Raises(), ANY_VIEWS, max_examples=50)
    assert "LineView(store='a', files=())" in str(broken.value)


def test_a_judge_may_check_more() -> None:
    def judge(policy: Any, view: LineView, now: float, choice: LineChoice) -> None:
        assert len(choice.files) <= 0, "takes more than it may"

    with pytest.raises(AssertionError, match="takes more than it may"):
        check_policy(Sound(), Views(VIEWS, judge))


def test_no_views_and_no_times_are_refused() -> None:
    with pytest.raises(InvalidInput, match="no views"):
        check_policy(Sound(), [])
    with pytest.raises(InvalidInput, match="times is empty"):
        Views(VIEWS, times=())
