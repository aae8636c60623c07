# SPDX-License-Identifier: Apache-2.0
"""A broken promise is reported as a lesson: the promise, the result, the expected result, and advice."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from compactlib.errors import InvalidInput
from compactlib.testing import PromiseBroken
from compactlib.testing.promises import ConformanceKit, Mismatch, error_from, expect, same


class Kit(ConformanceKit):
    """Three tests, for the tests of the lessons themselves."""

    def test_numbers(self, found: int) -> None:
        """Seven is seven.

        To do: count again.
        """
        for number in (7,):
            same(found, number, case="a week")

    def test_refusals(self, error: Exception | None) -> None:
        """Invalid values are refused."""
        with expect(InvalidInput):
            if error is not None:
                raise error

    def test_own_errors(self) -> None:
        int("seven")


def test_lesson_has_promise_both_values_and_advice() -> None:
    with pytest.raises(PromiseBroken) as caught:
        Kit().test_numbers(6)
    assert str(caught.value) == "\n".join([
        "numbers: Seven is seven.",
        "  expected: 7 (for 'a week')",
        "  found:    6",
        "  to do:    count again."])
    assert isinstance(caught.value.__cause__, Mismatch)


@pytest.mark.parametrize(("error", "found"), [
    (None, "nothing was raised"), (KeyError("k"), "KeyError was raised: 'k'")])
def test_a_missing_error_is_a_mismatch(error: Exception | None, found: str) -> None:
    with pytest.raises(PromiseBroken) as caught:
        Kit().test_refusals(error)
    assert (caught.value.expected, caught.value.found) == ("InvalidInput", found)


def test_an_error_of_the_host_is_reported_with_its_place() -> None:
    with pytest.raises(PromiseBroken, match=r"ValueError: invalid literal.*\n +raised in test_own_errors, test_"):
        Kit().test_own_errors()


def test_error_from_names_the_case() -> None:
    assert str(error_from(ValueError, int, "seven")) == "invalid literal for int() with base 10: 'seven'"
    with pytest.raises(Mismatch, match=r"expected KeyError \(for 'a week'\), found ValueError was raised: invalid"):
        error_from(KeyError, int, "seven", case="a week")
    with pytest.raises(Mismatch, match="expected KeyError, found nothing was raised"):
        error_from(KeyError, int, "7")


def test_long_values_are_cut_where_they_differ() -> None:
    with pytest.raises(Mismatch) as caught:
        same(bytes(1000), bytes(999) + b"x")
    assert "which differs from place 999 on" in str(caught.value)
    assert len(str(caught.value)) < 800


def test_the_plainest_tests_run_first(tmp_path: Path) -> None:
    seen: list[str] = []

    class First(ConformanceKit):
        def test_z(self, folder: Path) -> None:
            seen.append("z")
            assert os.listdir(folder) == []

    class Second(First):
        def test_a(self, folder: Path) -> None:
            seen.append("a")

    assert Second.check(tmp_path) == ["test_a", "test_z"]
    assert seen == ["z", "a"]
