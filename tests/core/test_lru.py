# SPDX-License-Identifier: Apache-2.0
"""The least recently used values go first, by number and by size."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from compactlib.errors import InvalidInput
from compactlib.lru import Lru


@pytest.mark.parametrize("bounds", [{"max_entries": -1}, {"max_bytes": -1}])
def test_a_bound_below_nothing_is_refused(bounds: dict[str, int]) -> None:
    with pytest.raises(InvalidInput, match="a cache cannot hold less than nothing"):
        Lru(**bounds)


@given(st.lists(st.tuples(st.sampled_from("abcde"), st.integers(0, 6), st.booleans())), st.integers(0, 4),
       st.integers(0, 12))
def test_cache_equals_a_list_in_order_of_use(steps: list[tuple[str, int, bool]], entries: int,
                                             size: int) -> None:
    cache: Lru[str, int] = Lru(max_entries=entries, max_bytes=size)
    held: list[tuple[str, int]] = []
    for key, weight, is_put in steps:
        found = [pair for pair in held if pair[0] == key]
        held = [pair for pair in held if pair[0] != key]
        if is_put:
            cache.put(key, weight, weight)
            held += [(key, weight)] if weight <= size else []
            while len(held) > entries or sum(weight for _, weight in held) > size:
                held.pop(0)
        else:
            assert cache.get(key) == (found[0][1] if found else None)
            held += found
        assert cache.items() == held
        assert len(cache) == len(held)
