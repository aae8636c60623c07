# SPDX-License-Identifier: Apache-2.0
"""Which entries to append again: against every other choice there is."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from compactlib.errors import InvalidInput
from compactlib.indexset import IndexSet
from compactlib.raftlog import DropDead, Entry, SegmentLog
from compactlib.raftlog.policy import plan_clump
from tests.raftlog.compaction_logs import options


def runs_after(live: frozenset[int], moved: frozenset[int], head: int) -> int:
    """Runs of the live set once `moved` were appended at `head` and applied."""
    final = IndexSet.from_iterable([*(live - moved), *range(head, head + len(moved))])
    return final.run_count


def fewest(live: frozenset[int], max_runs: int, head: int) -> int:
    """By trying every set of entries: how many must move at least."""
    return next(count for count in range(len(live) + 1) for moved in combinations(sorted(live), count)
                if runs_after(live, frozenset(moved), head) <= max_runs)


@settings(max_examples=150, deadline=None)
@given(st.frozensets(st.integers(0, 20), max_size=9), st.integers(1, 5))
def test_no_other_choice_moves_fewer_entries(members: frozenset[int], max_runs: int) -> None:
    moved = frozenset(plan_clump(IndexSet.from_iterable(members), max_runs))
    assert moved <= members
    assert runs_after(members, moved, head=100) <= max(max_runs, 1)
    assert len(moved) == fewest(members, max_runs, head=100)


def test_the_oldest_of_equal_runs_are_first() -> None:
    assert list(plan_clump(IndexSet.from_sorted([1, 5, 9, 20, 30]), 4)) == [1, 5]
    with pytest.raises(InvalidInput, match="max_runs is 0"):
        plan_clump(IndexSet(), 0)
    assert not plan_clump(IndexSet(), 1)


def test_a_clumped_log_loses_the_segments_that_old_entries_pinned(tmp_path: Path) -> None:
    """One old live entry pins a whole segment."""
    live = IndexSet.from_sorted([3, 20, 40, *range(50, 60)])
    with SegmentLog(tmp_path, options()) as log:
        log.append(Entry(index, 1, b"value %d" % index) for index in range(1, 100))
        log.snapshot(90, live)
        moved = plan_clump(live, 2)
        assert list(moved) == [3, 20, 40]
        values = [log.read(index) for index in moved]
        for number, entry in enumerate(values):
            assert isinstance(entry, Entry)
            log.append([(100 + number, 2, entry.payload)])
        log.sync()
        # The machine has applied the new entries: the old places died, the new ones are alive.
        after = (live - moved) | IndexSet.range(100, 102)
        assert after.run_count == 2
        log.snapshot(102, after)
        log.compact(policy=DropDead())
        assert {ref.number for ref in log.refs}.isdisjoint((1, 2, 3))
        for number, entry in enumerate(values):
            again = log.read(100 + number)
            assert isinstance(again, Entry)
            assert isinstance(entry, Entry)
            assert again.payload == entry.payload
