# SPDX-License-Identifier: Apache-2.0
"""Packing and list scheduling, without Spark."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, strategies as st

from compactlib.errors import InvalidInput
from compactlib.spark.executors.jobs import packed, weight_of

WEIGHTS = st.lists(st.floats(0, 1e6), max_size=60)


@given(WEIGHTS, st.integers(1, 20))
def test_every_piece_is_in_one_group_and_none_is_far_above_the_rest(weights: list[float], parts: int) -> None:
    groups = packed(weights, parts)
    assert sorted(place for group in groups for place in group) == list(range(len(weights)))
    assert len(groups) == min(parts, len(weights))
    loads = [math.fsum(weights[place] for place in group) for group in groups]
    if weights:
        # Graham: the last piece that the heaviest group got went to what was the lightest group then.
        assert max(loads) <= math.fsum(weights) / len(groups) + max(weights) + 1e-6
        assert loads == sorted(loads, reverse=True) or max(loads) - loads[0] < 1e-6


def test_pieces_of_no_weight_are_spread_all_the_same() -> None:
    assert packed([0.0] * 6, 3) == [[0, 3], [1, 4], [2, 5]]


def test_the_weight_of_a_task_is_a_number_that_it_has() -> None:
    class Task:
        def __init__(self, weight: object) -> None:
            self.weight = weight

    assert weight_of(Task(7)) == 7.0
    assert [weight_of(Task(wrong)) for wrong in (-1, math.nan, math.inf, "heavy", None)] == [1.0] * 5
    assert weight_of(object()) == 1.0


def test_the_heaviest_begins_first_and_small_ones_share() -> None:
    assert packed([1, 1, 1, 1, 10, 3], 3) == [[4], [5, 3], [0, 1, 2]]


@pytest.mark.parametrize(("weights", "parts"), [([1.0], 0), ([-1.0], 1), ([math.nan], 1)])
def test_bad_input(weights: list[float], parts: int) -> None:
    with pytest.raises(InvalidInput):
        packed(weights, parts)
