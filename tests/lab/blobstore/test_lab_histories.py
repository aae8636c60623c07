# SPDX-License-Identifier: Apache-2.0
"""The lab's chains of the records of each key, beside a plain list of what was put and not removed."""

from __future__ import annotations

from array import array

from hypothesis import given, strategies as st

from compactlib.lab.blobstore.histories import Histories


@given(st.lists(st.one_of(st.tuples(st.just("put"), st.integers(-1, 4)), st.tuples(st.just("remove"), st.integers(0)))))
def test_of_each_record_those_are_known_that_were_put_before_it_and_are_there(steps: list[tuple[str, int]]) -> None:
    histories, owner, free, held = Histories(), array("i", bytes(4 * 300)), list(range(299, -1, -1)), list[int]()
    for step, number in steps:
        if step == "put":
            record = free.pop()
            owner[record] = number
            held.append(record)
            if number >= 0:
                histories.put(record, number)
        elif held:
            record = held.pop(number % len(held))
            histories.remove([record], owner)
            free.append(record)
    for place, record in enumerate(held):
        if owner[record] >= 0:
            before = [each for each in held[:place] if owner[each] == owner[record]]
            assert list(histories.before(record)) == before[::-1]
