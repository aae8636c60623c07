# SPDX-License-Identifier: Apache-2.0
"""Arguments of another type than is annotated are `InvalidInput`, named; everything else comes through as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, Protocol

import attrs
import pytest

from compactlib._arguments import refuses_misfits, require_method, require_type
from compactlib.errors import InvalidInput, NotFound
from compactlib.indexset import IndexSet
from compactlib.runtime import Budget, BudgetLimits


class Speaks(Protocol):
    def speak(self) -> str: ...


@refuses_misfits
def call(number: int = 1, seconds: float | None = None, names: Iterable[str] = (), pair: tuple[str, int] = ("a", 1),
         ages: Mapping[str, int] | None = None, kind: Literal["a", "b"] = "a", who: Speaks | None = None,
         then: Callable[[], object] = int, whatever: Any = None) -> None:
    """Raises a bare error whatever it is given."""
    raise TypeError("bare")


@pytest.mark.parametrize("wrong", [
    {"number": "x"}, {"number": None}, {"seconds": "x"}, {"names": 5}, {"names": [5]}, {"names": (b"x",)},
    {"pair": ("a",)}, {"pair": (1, "a")}, {"ages": {1: 1}}, {"ages": {"a": "b"}}, {"ages": []}, {"kind": "c"},
    {"kind": []}, {"who": "x"}, {"then": 5}])
def test_what_does_not_fit_is_named(wrong: dict[str, Any]) -> None:
    [(name, value)] = wrong.items()
    with pytest.raises(InvalidInput) as caught:
        call(**wrong)
    assert str(caught.value).startswith(f"{name} is {value!r}; give ")
    assert isinstance(caught.value.__cause__, TypeError)


@pytest.mark.parametrize("fine", [
    {}, {"number": True}, {"seconds": 5}, {"seconds": None}, {"names": "abc"}, {"names": {"a"}}, {"ages": {"a": 1}},
    {"kind": "b"}, {"then": print}, {"whatever": object()}, {"unknown": 5}])
def test_what_is_raised_although_all_fits_comes_through(fine: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=r"^bare$|unexpected keyword argument 'unknown'") as caught:
        call(**fine)
    assert not isinstance(caught.value, InvalidInput)


def test_the_library_s_own_errors_come_through() -> None:
    @refuses_misfits
    def missing(name: str) -> None:
        raise NotFound(name)

    strange: Any = 5
    with pytest.raises(NotFound):
        missing(strange)


def test_fields_of_a_value_are_arguments_too() -> None:
    @attrs.frozen
    class Sized:
        size: int

        @refuses_misfits
        def __attrs_post_init__(self) -> None:
            if self.size < 0:
                raise InvalidInput("negative")

    strange: Any = "x"
    with pytest.raises(InvalidInput, match="size is 'x'; give int"):
        Sized(strange)
    for wrong in ({"total_bytes": strange}, {"deadline": strange}, {"bytes_per_second": strange}):
        for make in (Budget, BudgetLimits):
            with pytest.raises(InvalidInput, match=next(iter(wrong))):
                make(**wrong)
    with pytest.raises(InvalidInput, match="other is 'x'; give IndexSet"):
        IndexSet().issubset(strange)


def test_types_and_methods_that_are_asked_for() -> None:
    require_type("size", 5, int, "a number")
    require_method("store", [], "append", "pop")
    with pytest.raises(InvalidInput, match="size is 'x'; give a number"):
        require_type("size", "x", int, "a number")
    with pytest.raises(InvalidInput, match=r"store is \[\]; give an object with the method keys\(\)"):
        require_method("store", [], "append", "keys")
