# SPDX-License-Identifier: Apache-2.0
"""What all conformance kits share: how a kit runs without pytest, and how a broken promise is reported as a lesson.

A kit is a class of methods `test_...`, each a promise. Its docstring says what is promised, and after `To do:` what
usually helps. A backend that breaks one gets all of that in the report, in pytest and without it:

    PromiseBroken: compare and set: A predicate is good for one write.
      at:       with expect(PredicateFailed):
                    store.set_if(P, b"k", b"v3", predicate)
      expected: PredicateFailed
      found:    nothing was raised
      to do:    compare and write in one step of the backend; ...
"""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import re
import textwrap
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from compactlib.files.disk import LocalFiles

ErrorT = TypeVar("ErrorT", bound=Exception)

_MOST_LINES = 4
_MOST_CHARS = 300
_ADVICE = re.compile(r"^To do:\s*", re.MULTILINE)


class Mismatch(AssertionError):
    """Something else was found than was expected.

    Attributes:
        found: what was found, as text.
        expected: what should have been, as text.
    """

    def __init__(self, found: str, expected: str) -> None:
        super().__init__(found, expected)
        self.found = found
        self.expected = expected

    def __str__(self) -> str:
        return f"expected {self.expected}, found {self.found}"


class PromiseBroken(AssertionError):
    """A backend does not do what a test of its kit demands; the message says which promise, what was found, what to do.

    Attributes:
        test: the name of the test.
        promise: what is promised, in words.
        found: what was found.
        expected: what should have been; empty if `found` says all.
        advice: what to do about it.
    """

    def __init__(self, *, test: str, promise: str, at: str, found: str, expected: str, advice: str) -> None:
        self.test = test
        self.promise = promise
        self.found = found
        self.expected = expected
        self.advice = advice
        lines = [("at:", at), ("expected:", expected), ("found:", found), ("to do:", advice)]
        told = [textwrap.indent(text, " " * 12).replace(" " * 12, f"  {label:<10}", 1) for label, text in lines if text]
        super().__init__("\n".join([promise, *told]))


def same(found: object, *expected: object, case: object = None) -> None:
    """All of them must be equal, each to the one before.

    Args:
        found: what the backend gave.
        expected: what it should have given.
        case: for which case, if there are several.

    Raises:
        Mismatch: two differ.
    """
    for wanted in expected:
        if found != wanted:
            about = "" if case is None else f" (for {shown(case)})"
            raise Mismatch(shown(found) + _first_difference(found, wanted), shown(wanted) + about)


@contextlib.contextmanager
def expect(kind: type[BaseException]) -> Iterator[None]:
    """The block must raise `kind`.

    Raises:
        Mismatch: it raised something else, or nothing.
    """
    try:
        yield
    except kind:
        return
    except BaseException as other:
        raise Mismatch(f"{type(other).__name__} was raised: {other}", kind.__name__) from other
    raise Mismatch("nothing was raised", kind.__name__)


def error_from(kind: type[ErrorT], call: Callable[[], object]) -> ErrorT:
    """The error of class `kind` that the call must raise.

    Raises:
        Mismatch: it raised something else, or nothing.
    """
    try:
        call()
    except kind as error:
        return error
    except Exception as other:
        raise Mismatch(f"{type(other).__name__} was raised: {other}", kind.__name__) from other
    raise Mismatch("nothing was raised", kind.__name__)


def shown(value: object) -> str:
    """A value as text, the middle of a long one left out."""
    text = repr(value)
    if len(text) <= _MOST_CHARS:
        return text
    return f"{text[:_MOST_CHARS // 2]} ... {text[-_MOST_CHARS // 4:]} ({len(text):,} characters)"


def _first_difference(found: object, wanted: object) -> str:
    if not isinstance(found, list | tuple | bytes) or type(found) is not type(wanted) or len(repr(found)) < _MOST_CHARS:
        return ""
    others: Any = wanted
    place = next((place for place, (one, other) in enumerate(zip(found, others, strict=False)) if one != other),
                 min(len(found), len(others)))
    return f", which differs from place {place} on: {shown(found[place:place + 1])}"


class ConformanceKit:
    """A base for kits: what goes wrong in a method `test_...` of a class that inherits is reported as a lesson."""

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        for name, method in list(vars(cls).items()):
            if name.startswith("test_") and inspect.isfunction(method):
                setattr(cls, name, _teaching(method))


def run_kit(kit: ConformanceKit, folder: Path | None = None) -> list[str]:
    """Run a kit's tests one after the other, the plainest first; the names of all, sorted, which were passed.

    Args:
        kit: what to run.
        folder: an empty folder that exists; each test gets a folder of its own inside. `None` if none needs any.

    Raises:
        PromiseBroken: the first promise that is not kept.
    """
    names = list(dict.fromkeys(name for part in reversed(type(kit).__mro__) for name in vars(part)
                               if name.startswith("test_")))
    for name in names:
        if folder is None:
            getattr(kit, name)()
            continue
        LocalFiles().make_folder(folder / name)
        getattr(kit, name)(folder / name)
    return sorted(names)


def _teaching(test: Callable[..., None]) -> Callable[..., None]:
    """The test, whose failures are lessons."""

    @functools.wraps(test)
    def told(*args: Any, **named: Any) -> None:
        try:
            test(*args, **named)
        except (PromiseBroken, NotImplementedError):
            raise
        except Exception as error:
            raise _lesson(test, error) from error

    return told


def _lesson(test: Callable[..., None], error: Exception) -> PromiseBroken:
    promise, advice = _parts(inspect.getdoc(test) or "")
    title = test.__name__.removeprefix("test_").replace("_", " ")
    if isinstance(error, Mismatch):
        found, expected = error.found, error.expected
    elif isinstance(error, AssertionError):
        found, expected = str(error) or "it does not hold", ""
    else:
        last = traceback.extract_tb(error.__traceback__)[-1]
        found = f"{type(error).__name__}: {error}\nraised in {last.name}, {Path(last.filename).name}:{last.lineno}"
        expected = "no error here"
    return PromiseBroken(test=test.__name__, promise=f"{title}: {promise}" if promise else title, expected=expected,
                         found=found, advice=advice, at=_statement(test, error))


def _parts(doc: str) -> tuple[str, str]:
    """The promise and the advice of a docstring, each on one line."""
    promise, *advice = _ADVICE.split(doc, maxsplit=1)
    return " ".join(promise.split()), " ".join(" ".join(advice).split())


def _statement(test: Callable[..., None], error: Exception) -> str:
    """The statement of the test at which it ended, as it is written; nothing if the source is not there."""
    places = [line for frame, line in traceback.walk_tb(error.__traceback__)
              if frame.f_code.co_filename == test.__code__.co_filename
              and frame.f_code.co_qualname.startswith(test.__qualname__)]
    try:
        lines, first = inspect.getsourcelines(test)
    except OSError:
        return ""
    if not places:
        return ""
    source = textwrap.dedent("".join(lines))
    inner = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.stmt)
             and node.lineno <= places[-1] - first + 1 <= (node.end_lineno or node.lineno)]
    innermost = max(inner, key=lambda node: node.lineno)
    text = textwrap.dedent("\n".join(source.splitlines()[innermost.lineno - 1:innermost.end_lineno]))
    return _few_lines(text.splitlines())


def _few_lines(lines: Sequence[str]) -> str:
    return "\n".join([*lines[:_MOST_LINES], *(["..."] if len(lines) > _MOST_LINES else [])])
