# SPDX-License-Identifier: Apache-2.0
"""Attrs values as JSON: decoding returns the encoded value, and an invalid value is refused by its field."""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, NewType

import attrs
import pytest
from hypothesis import given, strategies as st

from compactlib.codec import FieldError, JsonCodec
from compactlib.errors import CorruptData, InvalidInput

Id = NewType("Id", str)


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


@attrs.frozen
class Circle:
    radius: float = attrs.field(validator=attrs.validators.gt(0))


@attrs.frozen
class Square:
    side: int
    colour: Colour = Colour.RED


@attrs.frozen
class Tree:
    name: Id
    children: tuple[Tree, ...] = ()
    parent: Tree | None = None


class Place(NamedTuple):
    row: int
    column: str


@attrs.frozen
class Everything:
    number: int
    data: bytes
    flag: bool
    level: Level
    shapes: tuple[Circle | Square, ...]
    pair: tuple[int, str]
    by_name: Mapping[str, Square]
    by_number: dict[int, str]
    names: frozenset[str]
    kind: Literal["a", "b"] = "a"
    note: str | int | None = None
    tree: Tree | None = None
    some: Sequence[float] = ()
    place: Place | None = None
    _private: int = 7


ONE: Any = 1.0
CODEC: JsonCodec[Everything] = JsonCodec(Everything)
EXAMPLE = Everything(number=1, data=b"\0\xff", flag=False, level=Level.HIGH, shapes=(Circle(1.5), Square(2)),
                     pair=(3, "x"), by_name={"q": Square(4, Colour.BLUE)}, by_number={-5: "five"},
                     names=frozenset("ba"), tree=Tree(Id("root"), (Tree(Id("leaf")),)), some=(0.5, 1.0),
                     place=Place(1, "b"))


def test_value_is_decoded_as_encoded() -> None:
    assert CODEC.decode(CODEC.encode(EXAMPLE), "here") == EXAMPLE


def test_form_is_readable_and_leaves_defaults_out() -> None:
    assert CODEC.to_plain(EXAMPLE) == {
        "number": 1, "data": "AP8=", "flag": False, "level": 2,
        "shapes": [{"is": "Circle", "radius": 1.5}, {"is": "Square", "side": 2}], "pair": [3, "x"],
        "by_name": {"q": {"side": 4, "colour": "blue"}}, "by_number": {"-5": "five"}, "names": ["a", "b"],
        "tree": {"name": "root", "children": [{"name": "leaf"}]}, "some": [0.5, 1.0], "place": [1, "b"]}


@given(st.builds(Everything, number=st.integers(), data=st.binary(), flag=st.booleans(), level=st.sampled_from(Level),
                 shapes=st.lists(st.builds(Circle, st.floats(0.1, 1e9)) | st.builds(Square, st.integers()),
                                 max_size=3).map(tuple),
                 pair=st.tuples(st.integers(), st.text()), by_name=st.just({}),
                 by_number=st.dictionaries(st.integers(), st.text(), max_size=3), names=st.frozensets(st.text()),
                 kind=st.sampled_from(["a", "b"]), note=st.none() | st.text() | st.integers(), tree=st.none(),
                 some=st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=3).map(tuple)))
def test_any_value_is_decoded_as_encoded(value: Everything) -> None:
    assert CODEC.decode(CODEC.encode(value), "here") == value


@pytest.mark.parametrize(("change", "field", "expected"), [
    ({"number": "1"}, "number", "a whole number"),
    ({"number": True}, "number", "a whole number"),
    ({"flag": 0}, "flag", "true or false"),
    ({"data": "?"}, "data", "text in base64"),
    ({"data": 5}, "data", "text in base64"),
    ({"level": 3}, "level", "one of"),
    ({"level": True}, "level", "one of"),
    ({"kind": "c"}, "kind", "one of"),
    ({"shapes": [{"is": "Circle", "radius": 1.0}, {"is": "Square", "side": None}]}, "shapes[1].side", "a whole number"),
    ({"shapes": [{"radius": 1.0}]}, "shapes[0]", "'is' of Circle or Square"),
    ({"shapes": [{"is": "Circle", "radius": -1.0}]}, "shapes[0]", "radius"),
    ({"shapes": [{"is": "Circle", "radius": 1e999}]}, "shapes[0].radius", "a finite number"),
    ({"shapes": [{"is": "Circle", "radius": 10**400}]}, "shapes[0].radius", "a finite number"),
    ({"shapes": [{"is": []}]}, "shapes[0]", "'is' of Circle or Square"),
    ({"shapes": 5}, "shapes", "a list"),
    ({"pair": [1]}, "pair", "2 values"),
    ({"place": [1, 2]}, "place[1]", "text"),
    ({"pair": [1, 2]}, "pair[1]", "text"),
    ({"by_name": {"q": {"side": 1, "colour": "green"}}}, "by_name['q'].colour", "one of"),
    ({"by_number": {"x": "y"}}, "by_number", "whole numbers for keys"),
    ({"note": 1.5}, "note", "str or int or NoneType"),
    ({"tree": {"name": "a", "children": [{"name": 5}]}}, "tree.children[0].name", "text"),
    ({"tree": {"name": "a", "leaves": 1}}, "tree.leaves", "no such field in a Tree"),
    ({"tree": {}}, "tree.name", "a field of a Tree"),
])
def test_misfit_names_its_field(change: dict[str, Any], field: str, expected: str) -> None:
    plain = {**CODEC.to_plain(EXAMPLE), **change}
    with pytest.raises(FieldError) as caught:
        CODEC.from_plain(plain)
    assert caught.value.field == field
    assert expected in caught.value.expected
    with pytest.raises(CorruptData, match="at the place") as damaged:
        CODEC.decode(json.dumps(plain).encode(), "at the place")
    assert field in damaged.value.expected


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b"[" * 100_000, b"5", b"null", b"[]"])
def test_decoding_raises_damage_for_an_invalid_value(data: bytes) -> None:
    with pytest.raises(CorruptData):
        CODEC.decode(data, "here")


def test_value_with_a_field_of_another_type_is_not_written() -> None:
    for wrong, field in ((attrs.evolve(EXAMPLE, number=ONE), "number"), (attrs.evolve(EXAMPLE, some=(float("nan"),)),
                                                                         "some[0]")):
        with pytest.raises(InvalidInput) as caught:
            CODEC.encode(wrong)
        assert isinstance(caught.value, FieldError)
        assert caught.value.field == field


def test_type_without_a_form_is_refused_when_it_is_named() -> None:
    with pytest.raises(TypeError, match="has no form in JSON"):
        JsonCodec(complex)
    with pytest.raises(TypeError, match="keys of type"):
        JsonCodec(dict[bytes, int])
