# SPDX-License-Identifier: Apache-2.0
"""Names by keys that change."""

from __future__ import annotations

import tracemalloc

from hypothesis import given, strategies as st

from compactlib.runtime.services.ranking import Key, Ranking


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.none() | st.tuples(st.integers(0, 5).map(float)))))
def test_the_first_is_that_of_the_smallest_key_of_now(changes: list[tuple[str, Key | None]]) -> None:
    ranking, keys = Ranking(), dict[str, Key]()
    for name, key in changes:
        ranking.put(name, key)
        keys.pop(name, None)
        if key is not None:
            keys[name] = key
        assert ranking.first() == min(((key, name) for name, key in keys.items()), default=None)
        assert (len(ranking), name in ranking) == (len(keys), name in keys)


def test_a_key_that_changes_again_and_again_takes_no_memory() -> None:
    ranking = Ranking()

    def change() -> int:
        for number in range(1000):
            ranking.put("a", (float(number),))
            ranking.put("b", (1.0,))
            ranking.put("b", None)
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        first, last = [change() for _ in range(5)][::4]
    finally:
        tracemalloc.stop()
    assert last <= first + 10_000
    assert ranking.first() == ((999.0,), "a")
