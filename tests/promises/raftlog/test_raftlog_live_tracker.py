# SPDX-License-Identifier: Apache-2.0
"""`LiveTracker`: the live set is what was applied and has not died, over gaps, several snapshots and refusals."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from compactlib.errors import InvalidInput
from compactlib.indexset import IndexSet
from compactlib.raftlog import LiveTracker


@given(before=st.sets(st.integers(1, 20)), data=st.data())
def test_the_live_set_is_what_was_applied_and_has_not_died(before: set[int], data: st.DataObject) -> None:
    tracker, alive, applied = LiveTracker(IndexSet.from_iterable(before), applied=20), set(before), 20
    for _ in range(3):
        for step in data.draw(st.lists(st.integers(1, 3), max_size=10)):
            applied += step
            tracker.apply(applied)
            alive.add(applied)
        dead = data.draw(st.sets(st.sampled_from(sorted(alive)))) if alive else set()
        tracker.mark_dead(dead)
        alive -= dead
        assert tracker.live_set() == IndexSet.from_iterable(alive)
        assert tracker.applied == applied


def test_a_refused_report_changes_nothing() -> None:
    tracker = LiveTracker()
    tracker.apply(3)
    tracker.apply(5)
    with pytest.raises(InvalidInput, match="applied after 5"):
        tracker.apply(4)
    tracker.mark_dead([4])
    for _ in range(2):
        with pytest.raises(InvalidInput, match="the lowest is 4"):
            tracker.live_set()
