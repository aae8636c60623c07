# SPDX-License-Identifier: Apache-2.0
"""The least recently used values go first, by number and by size."""

from __future__ import annotations

from hypothesis import given, strategies as st

from compactlib.lru import Lru


@given(st.lists(st.tuples(st.sampled_from("abcde"), st.integers(0, 6), st.booleans())), st.integers(0, 12))
def test_cache_equals_a_list_in_order_of_use(steps: list[tuple[str, int, bool]], size: int) -> None:
    cache: Lru[str, int] = Lru(size)
    held: list[tuple[str, int]] = []
    for key, weight, is_put in steps:
        found = [pair for pair in held if pair[0] == key]
        held = [pair for pair in held if pair[0] != key]
        if is_put:
            cache.put(key, weight, weight)
            held += [(key, weight)] if weight <= size else []
            while sum(weight for _, weight in held) > size:
                held.pop(0)
        else:
            assert cache.get(key) == (found[0][1] if found else None)
            held += found
        assert cache.items() == held
        assert len(cache) == len(held)
