# SPDX-License-Identifier: Apache-2.0
"""Which parts share a partition."""

from __future__ import annotations

import attrs
from hypothesis import given, strategies as st

from compactlib.spark.sources.table_source import neighbours


@attrs.frozen
class Sized:
    size_bytes: int


@given(st.lists(st.builds(Sized, st.integers(0, 50))), st.integers(0, 120))
def test_neighbours_stay_in_order_and_below_the_limit(parts: list[Sized], most: int) -> None:
    groups = neighbours(parts, most)
    assert [part for group in groups for part in group] == parts
    sizes = [sum(part.size_bytes for part in group) for group in groups]
    for group, size in zip(groups, sizes, strict=True):
        assert size <= most or len(group) == 1
    for size, following in zip(sizes, groups[1:], strict=False):
        assert size + following[0].size_bytes > most


def test_no_parts() -> None:
    assert neighbours([], 10) == []
