# SPDX-License-Identifier: Apache-2.0
"""Test any `contract.Policy` against its contract: a pure function that returns a choice with a reason.

`compactlib.testing.views` has views of the library's stores, with the additional rules of each store.
"""

from __future__ import annotations

import copy
import dataclasses
import pickle
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import attrs

from compactlib.contract import Policy
from compactlib.errors import InvalidInput, MissingDependency
from compactlib.report import PolicyRecord
from compactlib.testing.promises import PromiseBroken, names_a_gate, shown

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

ViewT = TypeVar("ViewT")

TIMES: tuple[float, ...] = (0.0, 1_700_000_000.0, 1_700_086_400.0)
"""The default times at which a policy chooses, seconds since the epoch."""
_MOST_NAME_CHARS = 60


@attrs.frozen
class Views(Generic[ViewT]):
    """Views of one kind of store, and the additional rules of this kind.

    Attributes:
        examples: views, or a Hypothesis strategy of them; they should have a view of an empty store.
        judge: takes the policy, a view, a time and the choice; raises `AssertionError` if the choice breaks a rule.
        times: the times at which the policy chooses, seconds since the epoch; at least one.
    """

    examples: Iterable[ViewT] | SearchStrategy[ViewT]
    judge: Callable[[Any, ViewT, float, Any], object] = lambda *_: None
    times: Sequence[float] = attrs.field(default=TIMES)

    @times.validator
    def _has_times(self, _: object, times: Sequence[float]) -> None:
        if not times:
            raise InvalidInput("times is empty; give at least one time at which the policy chooses")


def check_policy(policy: Policy[Any, Any], views: Views[Any] | Iterable[Any] | SearchStrategy[Any], *,
                 max_examples: int = 100) -> None:
    """Test `policy` on views against the contract of `compactlib.contract.Policy`.

    The policy, and each copy of it, returns equal choices for equal arguments; it changes neither itself nor the view;
    it never returns `None`; the reason of an empty choice names a gate with its value; the policy can be pickled, and
    is a frozen class (attrs or dataclass), whose public fields a plan shows as settings.

    A strategy draws the same views in every call.

    Args:
        policy: the policy with its settings.
        views: from `compactlib.testing.views`, or examples, or a Hypothesis strategy of them.
        max_examples: the number of views drawn from a strategy.

    Raises:
        PromiseBroken: the policy breaks a rule; the message has the rule and the remedy.
        InvalidInput: there are no views.
    """
    _check_itself(policy)
    tried = views if isinstance(views, Views) else Views(views)

    def check(view: Any) -> None:
        for now in tried.times:
            tried.judge(policy, view, now, _checked_choice(policy, view, now))

    if hasattr(tried.examples, "validate"):
        _for_each_drawn(tried.examples, max_examples, check)
        return
    examples = list(tried.examples)
    if not examples:
        raise InvalidInput("there are no views; give at least one, or a strategy")
    for view in examples:
        check(view)


def _for_each_drawn(strategy: Any, max_examples: int, check: Callable[[Any], None]) -> None:
    try:
        from hypothesis import HealthCheck, Phase, given, settings
    except ImportError:
        raise MissingDependency(package="hypothesis", extra="testing", purpose="drawing views") from None
    # Derandomized, so that a failure repeats without a database on disk.
    drawn = settings(max_examples=max_examples, deadline=None, database=None, derandomize=True,
                     report_multiple_bugs=False, phases=(Phase.generate, Phase.shrink),
                     suppress_health_check=list(HealthCheck))
    over: Any = given(strategy)
    drawn(over(check))()


def _check_itself(policy: Any) -> None:
    kind = type(policy).__name__
    name = getattr(policy, "name", None)
    if not isinstance(name, str) or not 0 < len(name) <= _MOST_NAME_CHARS or "\n" in name:
        raise _broken("a policy has a short name", f"{kind}.name is {shown(name)}", "a word or two",
                      "give it a `name`, as a property or a class attribute: plans and metrics show it")
    if not callable(getattr(policy, "choose", None)):
        raise _broken("a policy chooses", f"{kind} has no choose(view, now)", "that method",
                      "implement compactlib.contract.Policy")
    if not _is_frozen(policy):
        raise _broken("a policy is a frozen class", f"{kind} can be changed, or has no fields to compare",
                      "attrs.frozen, or dataclass(frozen=True)",
                      "decorate it with attrs.frozen, and make each setting a field: plans record them")
    record = PolicyRecord.of(policy)
    strange = [f"{key}={value!r}" for key, value in record.settings if " at 0x" in str(value)]
    if strange:
        raise _broken("a plan shows the settings of its policy", f"{record}: {', '.join(strange)}",
                      "each field as a number, a text or a policy", "let settings be plain values")
    try:
        # A class of a function, or of an example, cannot be pickled.
        again = pickle.loads(pickle.dumps(policy)) if _is_importable(type(policy)) else copy.deepcopy(policy)
    except Exception as error:
        raise _broken("a policy can be pickled", f"{kind}: {type(error).__name__}: {error}", "no error",
                      "make its settings plain values: no lambdas, no locks, no open files") from error
    if again != policy or hash(again) != hash(policy):
        raise _broken("copies of a policy are equal", f"{kind}: {again!r} is not equal to {policy!r}", "equal copies",
                      "use attrs.frozen, whose classes compare by their fields")


def _checked_choice(policy: Any, view: Any, now: float) -> Any:
    kind, at = type(policy).__name__, f"choose({shown(view)}, {now})"
    own_view, own_policy = copy.deepcopy(view), copy.deepcopy(policy)
    choice = _choice(policy, own_view, now, at)
    if choice is None:
        raise _broken("a policy returns a choice, never None", "None", "an empty choice, whose is_empty is true",
                      "return the package's choice without victims, and a `why` that names the gate", at)
    if view != own_view:
        raise _broken("a policy changes nothing", f"the view is now {shown(own_view)}", shown(view),
                      "copy what you want to change; views are shared with other policies and with the store", at)
    if policy != own_policy or _values(policy) != _values(own_policy):
        raise _broken("a policy keeps nothing", f"{kind} has changed: {policy!r}", repr(own_policy),
                      "decide by the view and the time alone; put state into the view", at)
    _check_answer(choice, at)
    for which, asked in {"at the second call": policy, "from a copy of the policy": own_policy}.items():
        other = _choice(asked, own_view, now, at)
        if other != choice:
            raise _broken("equal arguments give equal choices", f"{shown(other)} ({which})", shown(choice),
                          "decide by the view and the time alone, without a clock or a random number, and break ties "
                          "by a number of the view, not by the order of a set; give the choice an __eq__ "
                          "(attrs.frozen does)", at)
    return choice


def _choice(policy: Any, view: Any, now: float, at: str) -> Any:
    try:
        return policy.choose(view, now)
    except Exception as error:
        raise _broken("a policy chooses from any view", f"{type(error).__name__}: {error}", "a choice",
                      "return an empty choice if it cannot decide; an error ends the compaction", at
                      ) from error


def _check_answer(choice: Any, at: str) -> None:
    why, is_empty = getattr(choice, "why", None), getattr(choice, "is_empty", None)
    if not isinstance(is_empty, bool):
        raise _broken("a choice says whether it is empty", f"is_empty is {shown(is_empty)} of {shown(choice)}",
                      "True or False", "return the package's own choice, which has is_empty", at)
    if not isinstance(why, str) or not why.strip():
        raise _broken("a choice has a reason", f"why is {shown(why)}", "a sentence",
                      "put the found numbers into `why`: plans, logs and reports show it", at)
    if is_empty and not names_a_gate(why):
        raise _broken("an empty choice names the gate", shown(why), "a value, and the setting to change",
                      'write it like "61% of the log is used, below min_used_fraction=0.75; lower it, or wait"', at)
    try:
        choice.why = why
    except AttributeError:
        return
    raise _broken("a choice is frozen", f"{type(choice).__name__}.why can be set", "a frozen value",
                  "make the choice an attrs.frozen class", at)


def _field_names(kind: type) -> list[str] | None:
    """Return the fields of an attrs class or a dataclass; `None` for another class."""
    if attrs.has(kind):
        return [field.name for field in attrs.fields(kind)]
    if dataclasses.is_dataclass(kind):
        return [field.name for field in dataclasses.fields(kind)]
    return None


def _is_frozen(policy: Any) -> bool:
    names = _field_names(type(policy))
    if names is None:
        return False
    for name in names or ["a_new_name"]:
        try:
            setattr(policy, name, getattr(policy, name, None))
        except AttributeError:
            continue
        return False
    return True


def _values(policy: Any) -> dict[str, Any]:
    """Return the policy's fields and other attributes."""
    names = _field_names(type(policy)) or []
    return {**{name: getattr(policy, name) for name in names}, **getattr(policy, "__dict__", {})}


def _is_importable(kind: type) -> bool:
    found: object = sys.modules.get(kind.__module__)
    for name in kind.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is kind


def _broken(promise: str, found: str, expected: str, advice: str, at: str = "") -> PromiseBroken:
    return PromiseBroken(test="check_policy", promise=promise, at=at, found=found, expected=expected, advice=advice)
