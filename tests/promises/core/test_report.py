# SPDX-License-Identifier: Apache-2.0
"""`report`: a table reads well in a terminal and in a notebook, and its data stays as it is."""

from __future__ import annotations

import math
from html.parser import HTMLParser
from typing import Any, ClassVar

import attrs
import pytest
from hypothesis import given, strategies as st

from compactlib.errors import InvalidInput
from compactlib.report import MAX_ROWS, Finding, PolicyRecord, Printed, Table, VerifyReport

EXAMPLE = Table(
    ("segment", "live", "ratio", "why"),
    ((1, 1024, 0.25, "fits into its neighbour"), (12, None, None, "newest")),
    "A plan",
)


class Cells(HTMLParser):
    """Collects the texts of the body's cells, and checks that every tag that opens also closes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.cells: list[str] = []
        self.open: list[str] = []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.open.append(tag)
        if tag == "td":
            self.cells.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1] == "td":
            self.cells[-1] += data


def test_numbers_align_right_and_text_left_also_with_gaps() -> None:
    assert str(EXAMPLE).split("\n") == [
        "A plan",
        "segment   live  ratio  why",
        "-------  -----  -----  -----------------------",
        "      1  1,024  0.250  fits into its neighbour",
        "     12                newest",
    ]


def test_truth_values_are_text_and_columns_of_gaps_are_too() -> None:
    table = Table(("flag", "gap", "mixed"), ((True, None, 1), (False, None, "x")))
    assert str(table).split("\n")[2:] == ["True        1", "False       x"]


def test_small_numbers_are_not_shown_as_zero() -> None:
    table = Table(("n",), ((0.0,), (0.00012345,), (-0.5,), (1e9,), (math.inf,), (math.nan,)))
    shown = [line.strip() for line in str(table).split("\n")[2:]]
    assert shown == ["0.000", "0.000123", "-0.500", "1,000,000,000.000", "inf", "nan"]


def test_a_table_without_rows_prints_that_it_is_empty() -> None:
    assert str(Table(("a", "bcd"), ())) == "a  bcd\n-  ---\n(no rows)"
    assert str(Table.from_dicts([], title="Nothing")) == "Nothing\n(no rows)"
    assert "(no rows)" in Table.from_dicts([])._repr_html_()
    assert Table.from_dicts([]).to_dicts() == []


def test_rows_and_columns_must_match() -> None:
    with pytest.raises(InvalidInput, match=r"row 1 has 3 values for 2 columns \(a, b\)"):
        Table(("a", "b"), ((1, 2), (1, 2, 3)))


def test_dictionaries_are_read_as_written() -> None:
    rows: list[dict[str, object]] = [{"a": 1, "b": [1, 2]}, {"a": None, "b": "x\ny"}]
    assert Table.from_dicts(rows).to_dicts() == rows


def test_dictionaries_may_leave_gaps() -> None:
    rows: list[dict[str, int]] = [{"a": 1}, {"b": 2, "a": 3}]
    table = Table.from_dicts(rows)
    assert table.columns == ("a", "b")
    assert table.rows == ((1, None), (3, 2))


def test_rows_come_from_the_fields_of_attrs_values() -> None:
    found = Table.of([Finding("damage", "/log/7", "a byte was changed")])
    assert found.columns == ("kind", "place", "what", "error")
    assert found.rows == (("damage", "/log/7", "a byte was changed", None),)


def test_a_value_stays_on_its_line_and_cannot_steer_the_terminal() -> None:
    shown = str(Table(("text",), (("a\nb\x1b[31mred",),))).split("\n")
    assert shown[2:] == [r"a\nb\x1b[31mred"]


def test_many_rows_are_counted_rather_than_shown() -> None:
    table = Table(("n",), tuple((number,) for number in range(MAX_ROWS + 1500)))
    assert str(table).split("\n")[-1] == "(1,500 more rows)"
    assert len(str(table).split("\n")) == MAX_ROWS + 3
    assert table._repr_html_().count("<tr>") == MAX_ROWS + 1
    assert "(1,500 more rows)" in table._repr_html_()
    assert len(table.to_text(max_rows=None).split("\n")) == MAX_ROWS + 1502


def test_the_notebook_gets_the_same_table_escaped() -> None:
    page = Table(("<a>", "n"), (("<script>", 1), (None, 2000)), "<title>")._repr_html_()
    assert "<script>" not in page
    assert "<title>" not in page
    assert Cells(page).cells == ["<script>", "1", "", "2,000"]
    assert page.count("text-align: right") == 3


def test_its_repr_is_one_line() -> None:
    assert repr(EXAMPLE) == "Table('A plan', 2 rows of segment, live, ratio, why)"
    assert repr(Table.from_dicts([])) == "Table('', 0 rows of no columns)"


VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=100)


@given(rows=st.lists(st.tuples(VALUES, VALUES, VALUES), max_size=8))
def test_any_values_give_one_line_each(rows: list[tuple[object, ...]]) -> None:
    table = Table(("a", "b", "c"), tuple(rows))
    text = str(table)
    assert len(f"{text}.".splitlines()) == 2 + max(1, len(rows))
    assert len(Cells(table._repr_html_()).cells) == 3 * len(rows)
    assert str(table.to_dicts()) == str([dict(zip("abc", row, strict=True)) for row in rows])


@attrs.frozen(repr=False)
class Harvest(Printed):
    """What prints itself, for the test."""

    apples: tuple[int, ...]

    def to_dicts(self) -> list[dict[str, Any]]:
        return [{"tree": number, "apples": count} for number, count in enumerate(self.apples)]

    def _summary(self) -> str:
        return f"{sum(self.apples)} apples"


def test_a_printed_value_is_a_line_a_table_and_data() -> None:
    harvest = Harvest((3, 4))
    assert repr(harvest) == "<Harvest: 7 apples>"
    assert str(harvest).splitlines() == ["7 apples", "tree  apples", "----  ------", "   0       3", "   1       4"]
    assert Cells(harvest._repr_html_()).cells == ["0", "3", "1", "4"]
    assert harvest == Harvest((3, 4)) != Harvest((4, 3))
    assert not hasattr(harvest, "__dict__")


@attrs.frozen
class Ripest:
    most: int = 3
    colour: str = "red"
    age: float | None = None
    usual: object = None
    _kept: int = 7
    name: ClassVar[str] = "ripest"

    def choose(self, view: object, now: float) -> None:
        """Nothing."""


def test_a_policys_record_names_its_settings_in_order() -> None:
    record = PolicyRecord.of(Ripest())
    assert record == PolicyRecord("ripest", (("age", None), ("colour", "red"), ("most", 3), ("usual", None)))
    assert str(record) == "ripest(age=None, colour=red, most=3, usual=None)"


def test_a_policy_in_a_policy_is_recorded_as_text_and_other_values_too() -> None:
    record = PolicyRecord.of(Ripest(usual=Ripest(most=4)))
    assert dict(record.settings)["usual"] == "ripest(age=None, colour=red, most=4, usual=None)"
    assert dict(PolicyRecord.of(Ripest(usual=(1, 2))).settings)["usual"] == "(1, 2)"


def test_a_policy_that_is_no_attrs_class_has_no_settings() -> None:
    class Plain:
        name = "plain"

    assert PolicyRecord.of(Plain()) == PolicyRecord("plain", ())


def test_a_verification_is_sound_if_all_that_was_found_is_harmless() -> None:
    leftover, damage = Finding("leftover", "a.tmp", "an attempt died"), Finding("damage", "1 at 7", "wrong checksum")
    assert VerifyReport((leftover,), 3, 100).is_sound
    report = VerifyReport((leftover, damage), 3, 100)
    assert not report.is_sound
    assert repr(report) == "<VerifyReport: 2 findings in 3 records, 100 bytes>"
    assert [row["kind"] for row in report.to_dicts()] == ["leftover", "damage"]
