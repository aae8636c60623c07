# SPDX-License-Identifier: Apache-2.0
"""Suites of promises, with pytest and without, which report a broken promise as a lesson.

A suite is a class of methods `test_...`. Inherit it and make what it tests; pytest collects the inherited methods:

    class TestMyStore(KVStoreConformance):
        shared = True

        def make_store(self, folder: Path) -> KVStore:
            return MyStore(folder / "my.store")

Without pytest, `KVStoreConformance.check(folder, make_store=..., shared=True)` runs them one after the other. No suite
tests arguments of a wrong type. The docstring of a method states the promise and, after `To do:`, the usual remedy. The
report of a broken promise has both:

    PromiseBroken: compare and set: A predicate is good for one write.
      expected: PredicateFailed
      found:    nothing was raised
      to do:    compare and write in one step of the backend; ...
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
import textwrap
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

ErrorT = TypeVar("ErrorT", bound=BaseException)

_MOST_CHARS = 300
_ADVICE = re.compile(r"^To do:\s*", re.MULTILINE)
_GATE = re.compile(r"\d|\w_\w|=")


class Mismatch(AssertionError):
    """A difference between a found and an expected value, both as text."""

    def __init__(self, found: str, expected: str) -> None:
        super().__init__(found, expected)
        self.found = found
        self.expected = expected

    def __str__(self) -> str:
        return f"expected {self.expected}, found {self.found}"


class PromiseBroken(AssertionError):
    """The report of one broken promise.

    Attributes:
        test: the name of the test.
        promise: the promise, in words.
        found: the behaviour that breaks it.
        expected: the behaviour that keeps it; empty if `found` is enough.
        advice: the usual remedy.
    """

    def __init__(self, *, test: str, promise: str, found: str, expected: str = "", advice: str = "",
                 at: str = "") -> None:
        self.test = test
        self.promise = promise
        self.found = found
        self.expected = expected
        self.advice = advice
        parts = [("at:", at), ("expected:", expected), ("found:", found), ("to do:", advice)]
        lines = [f"  {label:<10}{textwrap.indent(text, ' ' * 12)[12:]}" for label, text in parts if text]
        super().__init__("\n".join([promise, *lines]))


def same(found: object, *expected: object, case: object = None) -> None:
    """Require that `found` equals each of `expected`; `case` names the case in the message.

    Raises:
        Mismatch: a value differs.
    """
    for wanted in expected:
        if found != wanted:
            raise Mismatch(shown(found) + _first_difference(found, wanted), shown(wanted) + _about(case))


def error_from(kind: type[ErrorT], call: Callable[..., object], *args: object, case: object = None) -> ErrorT:
    """Return the error of class `kind` that `call(*args)` must raise; `case` names the case in the message.

    Raises:
        Mismatch: the call raised another error, or returned.
    """
    with expect(kind, case=case) as caught:
        call(*args)
    return caught[0]


@contextlib.contextmanager
def expect(kind: type[ErrorT], case: object = None) -> Iterator[list[ErrorT]]:
    """Require that the block raises an error of this class, and put it into the list."""
    caught: list[ErrorT] = []
    try:
        yield caught
    except kind as error:
        caught.append(error)
        return
    except BaseException as other:
        raise Mismatch(f"{type(other).__name__} was raised: {other}", kind.__name__ + _about(case)) from other
    raise Mismatch("nothing was raised", kind.__name__ + _about(case))


def names_a_gate(why: str) -> bool:
    """Return whether a reason has a value or the name of a setting."""
    return _GATE.search(why) is not None


def shown(value: object) -> str:
    """Return a value as text; the middle of a long one is left out."""
    text = repr(value)
    if len(text) <= _MOST_CHARS:
        return text
    return f"{text[:_MOST_CHARS // 2]} ... {text[-_MOST_CHARS // 4:]} ({len(text):,} characters)"


def _about(case: object) -> str:
    return "" if case is None else f" (for {shown(case)})"


def _first_difference(found: object, wanted: object) -> str:
    if not isinstance(found, list | tuple | bytes) or type(found) is not type(wanted) or len(repr(found)) < _MOST_CHARS:
        return ""
    others: Any = wanted
    place = next((place for place, (one, other) in enumerate(zip(found, others, strict=False)) if one != other),
                 min(len(found), len(others)))
    return f", which differs from place {place} on: {shown(found[place:place + 1])}"


class ConformanceKit:
    """A base for suites: a failure of a method `test_...` of a subclass is raised as `PromiseBroken`."""

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        for name, method in list(vars(cls).items()):
            if name.startswith("test_") and inspect.isfunction(method):
                setattr(cls, name, _teaching(method))

    @classmethod
    def check(cls, folder: Path, **given: Any) -> list[str]:
        """Run the suite without pytest, in the order in which its tests are written; return their names, sorted.

        Args:
            folder: an empty folder that exists; each test gets a new folder inside.
            given: methods and attributes that a subclass would override, by name: `make_store`, `shared`.

        Raises:
            PromiseBroken: the first broken promise.
        """
        kit = cls()
        for name, value in given.items():
            setattr(kit, name, value)
        names = dict.fromkeys(name for part in reversed(cls.__mro__) for name in vars(part) if name.startswith("test_"))
        for name in names:
            test, place = getattr(kit, name), folder / name
            place.mkdir()
            test(*[place] * bool(inspect.signature(test).parameters))
        return sorted(names)


def _teaching(test: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(*args: Any, **named: Any) -> None:
        try:
            test(*args, **named)
        except (PromiseBroken, NotImplementedError):
            raise
        except Exception as error:
            raise _lesson(test, error) from error

    return run


def _lesson(test: Callable[..., None], error: Exception) -> PromiseBroken:
    promise, *advice = (" ".join(part.split()) for part in _ADVICE.split(inspect.getdoc(test) or "", maxsplit=1))
    title = test.__name__.removeprefix("test_").replace("_", " ")
    if isinstance(error, Mismatch):
        found, expected = error.found, error.expected
    elif isinstance(error, AssertionError):
        found, expected = str(error) or "it does not hold", ""
    else:
        last = traceback.extract_tb(error.__traceback__)[-1]
        found = f"{type(error).__name__}: {error}\nraised in {last.name}, {Path(last.filename).name}:{last.lineno}"
        expected = "no error here"
    return PromiseBroken(test=test.__name__, promise=f"{title}: {promise}" if promise else title, found=found,
                         expected=expected, advice=" ".join(advice))
