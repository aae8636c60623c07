# SPDX-License-Identifier: Apache-2.0
"""Try any `contract.Policy` against its contract: pure, never `None`, with a reason, also for nothing.

>>> import attrs
>>> @attrs.frozen
... class Sizes:
...     sizes: tuple[int, ...] = ()
...     def to_dicts(self):
...         return [{"size": size} for size in self.sizes]
>>> @attrs.frozen
... class Chosen:
...     sizes: tuple[int, ...]
...     why: str
...     is_empty: bool
>>> @attrs.frozen
... class Large:
...     min_bytes: int = 10
...     name = "large"
...     def choose(self, view, now):
...         found = tuple(size for size in view.sizes if size >= self.min_bytes)
...         return Chosen(found, f"{len(found)} of {len(view.sizes)} have min_bytes={self.min_bytes}", not found)
>>> check_policy(Large(), [Sizes(), Sizes((3, 20)), Sizes((3,))])
"""

from __future__ import annotations

import contextlib
import copy
import pickle
import random
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import attrs

from compactlib.contract import Policy
from compactlib.errors import InvalidInput
from compactlib.report import PolicyRecord
from compactlib.testing.promises import PromiseBroken, shown

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

ViewT = TypeVar("ViewT")
Views: TypeAlias = "Iterable[ViewT] | SearchStrategy[ViewT]"

TIMES: tuple[float, ...] = (0.0, 1_700_000_000.0, 1_700_086_400.0)
"""At which times, in seconds since the epoch, a policy is asked by default."""
_TELLS = re.compile(r"\d|\w_\w|=")
_MOST_NAME_CHARS = 60
_HIDDEN: tuple[tuple[Any, str], ...] = (
    *((time, name) for name in ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns",
                                "sleep")),
    *((random, name) for name in ("random", "randrange", "randint", "choice", "choices", "sample", "shuffle",
                                  "uniform", "getrandbits")),
)


class HiddenInput(AssertionError):
    """Something was asked that is no argument: a clock, or the shared generator of random numbers."""


def check_policy(policy: Policy[Any, Any], views: Views[Any], *, times: Sequence[float] = TIMES,
                 max_examples: int = 100, judge: Callable[[Any, float, Any], object] | None = None) -> None:
    """Try `policy` on views, and return if it keeps the contract of `compactlib.contract.Policy`.

    It must give equal choices for equal arguments, whichever copy of it is asked; change neither itself nor the view;
    ask no clock and no generator that it was not given; never answer `None`; say why, of nothing with a number or a
    setting; and survive pickling, with settings that a plan can show.

    Args:
        policy: as it will be used.
        views: examples, or a Hypothesis strategy of them; among them one where there is nothing to do.
        times: at which to ask, in seconds since the epoch.
        max_examples: how many views of a strategy.
        judge: further rules of a package: given a view, a time and the choice; raises if it breaks one.

    Raises:
        PromiseBroken: it does not; the message says which rule, why there is one, and what to do.
        InvalidInput: there are no views, or no times.
    """
    if not times:
        raise InvalidInput("there are no times; give at least one at which the policy is to be asked")
    _check_itself(policy)

    def check(view: Any) -> None:
        for now in times:
            choice = _check_choice(policy, view, now)
            if judge is not None:
                judge(view, now, choice)

    if not hasattr(views, "validate"):
        listed = list(views)
        if not listed:
            raise InvalidInput("there are no views; give at least one, or a strategy")
        for view in listed:
            check(view)
        return
    # Only for those who have a strategy, and so Hypothesis.
    from hypothesis import given

    from compactlib.testing.kit.examples import as_always

    as_always(max_examples)(given(views)(check))()  # type: ignore[arg-type]


def _check_itself(policy: Any) -> None:
    kind = type(policy).__name__
    name = getattr(policy, "name", None)
    if not isinstance(name, str) or not 0 < len(name) <= _MOST_NAME_CHARS or "\n" in name:
        raise _broken("a policy has a short name", f"{kind}.name is {shown(name)}", "a word or two",
                      "give it a `name`, as a property or a class attribute: plans and metrics show it")
    if not callable(getattr(policy, "choose", None)):
        raise _broken("a policy chooses", f"{kind} has no choose(view, now)", "that method",
                      "implement compactlib.contract.Policy")
    if not attrs.has(type(policy)) or not _is_frozen(policy):
        raise _broken("a policy is a frozen attrs class", f"{kind} can be changed, or is none", "attrs.frozen",
                      "decorate it with attrs.frozen, and make each setting a field: plans record them")
    record = PolicyRecord.of(policy)
    fields = [field.name for field in attrs.fields(type(policy)) if not field.name.startswith("_")]
    strange = [f"{key}={value!r}" for key, value in record.settings if " at 0x" in str(value)]
    if sorted(key for key, _ in record.settings) != sorted(fields) or strange:
        raise _broken("a plan shows the settings of its policy", f"{record}: {', '.join(strange)}",
                      "each field as a number, a text or a policy", "let settings be plain values")
    try:
        # No pickler takes a class that was made inside a function, or in an example.
        again = pickle.loads(pickle.dumps(policy)) if _is_importable(type(policy)) else copy.deepcopy(policy)
    except Exception as error:
        raise _broken("a policy can be pickled", f"{kind}: {type(error).__name__}: {error}", "no error",
                      "make its settings plain values: no lambdas, no locks, no open files") from error
    if again != policy or hash(again) != hash(policy):
        raise _broken("copies of a policy are equal", f"{kind}: {again!r} is not equal to {policy!r}", "equal copies",
                      "use attrs.frozen, whose classes compare by their fields")


def _check_choice(policy: Any, view: Any, now: float) -> Any:
    kind, at = type(policy).__name__, f"choose({shown(view)}, {now})"
    lent, own = copy.deepcopy(view), copy.deepcopy(policy)
    choice = _choice(policy, lent, now, at)
    if choice is None:
        raise _broken("a policy answers a choice, never None", "None", "a choice of nothing, whose is_empty is true",
                      "return the package's choice with nothing in it, and a `why` that names the gate", at)
    if view != lent:
        raise _broken("a policy changes nothing", f"the view is now {shown(lent)}", shown(view),
                      "copy what you want to change; views are shared with other policies and with the store", at)
    if policy != own or _values(policy) != _values(own):
        raise _broken("a policy keeps nothing", f"{kind} has changed: {policy!r}", repr(own),
                      "decide by the view and the time alone; what has to be remembered belongs to the view", at)
    _check_answer(choice, at)
    for what, asked in {"asked again": policy, "a copy of it": own}.items():
        other = _choice(asked, lent, now, at)
        if other != choice:
            raise _broken("equal arguments give equal choices", f"{shown(other)} ({what})", shown(choice),
                          "decide by the view and the time alone, and break ties by a number of the view, not by the "
                          "order of a set; give the choice an __eq__ (attrs.frozen does)", at)
    return choice


def _check_answer(choice: Any, at: str) -> None:
    why, is_empty = getattr(choice, "why", None), getattr(choice, "is_empty", None)
    if not isinstance(is_empty, bool):
        raise _broken("a choice says whether it is empty", f"is_empty is {shown(is_empty)} of {shown(choice)}",
                      "True or False", "answer the package's own choice, whose is_empty says whether it takes anything",
                      at)
    if not isinstance(why, str) or not why.strip():
        raise _broken("a choice says why", f"why is {shown(why)}", "a sentence",
                      "say in `why` what was found, in numbers: it is shown in plans, logs and reports", at)
    if is_empty and not _TELLS.search(why):
        raise _broken("a choice of nothing names the gate", shown(why), "a value, and the setting to change",
                      'say it like "61% of the log is used, below min_used_fraction=0.75; lower it, or wait"', at)
    try:
        choice.why = why
    except AttributeError:
        return
    raise _broken("a choice is frozen", f"{type(choice).__name__}.why can be set", "a frozen value",
                  "make the choice an attrs.frozen class", at)


def _choice(policy: Any, view: Any, now: float, at: str) -> Any:
    try:
        with _nothing_hidden():
            return policy.choose(view, now)
    except HiddenInput as error:
        raise _broken("a policy asks no clock and draws nothing", str(error), "a decision by view and time",
                      "use `now`, and a random.Random of your own seeded by a setting, where a policy must draw", at
                      ) from error
    except Exception as error:
        raise _broken("a policy chooses from any view", f"{type(error).__name__}: {error}", "a choice",
                      "answer a choice of nothing where it cannot decide; what it raises ends the compaction", at
                      ) from error


@contextlib.contextmanager
def _nothing_hidden() -> Iterator[None]:
    """Inside the `with` this process's clocks and shared generator raise."""
    real = [(module, name, getattr(module, name)) for module, name in _HIDDEN]
    try:
        for module, name, call in real:
            setattr(module, name, _refusing(f"{module.__name__}.{name}", call))
        yield
    finally:
        for module, name, call in real:
            setattr(module, name, call)


def _refusing(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
    asking = threading.get_ident()

    def refuse(*given: object, **named: object) -> object:
        if threading.get_ident() != asking:
            return real(*given, **named)
        raise HiddenInput(f"{name}() was called")

    return refuse


def _is_frozen(policy: Any) -> bool:
    names = [field.name for field in attrs.fields(type(policy))] or ["a_new_name"]
    for name in names:
        try:
            setattr(policy, name, getattr(policy, name, None))
        except AttributeError:
            continue
        return False
    return True


def _values(policy: Any) -> dict[str, Any]:
    """All that it holds, its fields and what else it has been given."""
    fields = [field.name for field in attrs.fields(type(policy))]
    return {**{name: getattr(policy, name) for name in fields}, **getattr(policy, "__dict__", {})}


def _is_importable(kind: type) -> bool:
    found: object = sys.modules.get(kind.__module__)
    for name in kind.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is kind


def _broken(promise: str, found: str, expected: str, advice: str, at: str = "") -> PromiseBroken:
    return PromiseBroken(test="check_policy", promise=promise, at=at, found=found, expected=expected, advice=advice)
