# SPDX-License-Identifier: Apache-2.0
"""Names of segments and of their files."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from compactlib.blobstore.model.names import (
    FIRST_SEGMENT,
    MAX_NUMBER,
    LogPosition,
    SegmentName,
    place_of_index_file,
    segment_of_log_file,
)
from compactlib.errors import InvalidInput

names = st.builds(SegmentName, st.integers(0, MAX_NUMBER), st.integers(0, MAX_NUMBER))


def test_names_are_compared_as_numbers() -> None:
    assert SegmentName(10, 0) > SegmentName(2, 0) > SegmentName(1, 11) > SegmentName(1, 2)
    assert LogPosition(SegmentName(2, 0), 9) < LogPosition(SegmentName(2, 0), 10) < LogPosition(SegmentName(10, 0), 0)


def test_the_next_position_begins_with_generation_0() -> None:
    assert str(FIRST_SEGMENT) == "0_0"
    assert SegmentName(3, 4).next_position == SegmentName(4, 0)


@given(names, st.integers(0, MAX_NUMBER))
def test_names_and_file_names_are_read_back(name: SegmentName, start: int) -> None:
    assert SegmentName.parse(str(name)) == name
    assert segment_of_log_file(name.log_file) == name
    assert place_of_index_file(name.index_file(start)) == (name, start)
    assert segment_of_log_file(name.index_file(start)) is None
    assert place_of_index_file(name.log_file) is None


@pytest.mark.parametrize("text", ["", "0", "0_", "_0", "00_1", "1_01", "1_-1", "1_1_1", "a_b", "1_1 "])
def test_what_is_no_name_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="position_generation"):
        SegmentName.parse(text)


def test_the_files_of_0_1_are_not_those_of_0_10() -> None:
    place = place_of_index_file("0_10.80.index")
    assert place is not None
    assert place.segment == SegmentName(0, 10) != SegmentName(0, 1)


@pytest.mark.parametrize("file_name", [
    "0_1.log.temp", "0_1.log.tmp", ".0_1.log", "0_1.80.index.tmp", "0_1.index", "LOCK",
])
def test_files_that_are_being_built_are_nobodys(file_name: str) -> None:
    assert segment_of_log_file(file_name) is None
    assert place_of_index_file(file_name) is None
