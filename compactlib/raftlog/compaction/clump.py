# SPDX-License-Identifier: Apache-2.0
"""Clumping: which scattered live entries to append again at the head of the log, so that the live set has fewer runs.

For each of these indexes the host proposes a command "rewrite entry i if it is still live": applied, it has the old
entry's content if i is live at that point of the log, and none if it is not, since another command may have outdone it
meanwhile. When these are applied, the old places die and the new ones form one run.
"""

from __future__ import annotations

from heapq import nsmallest

from compactlib.errors import InvalidInput
from compactlib.indexset import IndexSet


def plan_clump(live: IndexSet, max_runs: int) -> IndexSet:
    """The fewest entries that must be appended again so that the live set has at most `max_runs` runs. Pure.

    Whole runs are taken, since a part of one would leave it a run; the shortest first, and among equals the oldest,
    which pin the oldest segments. Those taken become one run at the head.

    Args:
        live: the live set.
        max_runs: how many runs it may have in the end, the one at the head included; at least 1.

    Returns:
        The entries, to be appended in this order; empty if the live set has no more runs than that.

    Raises:
        InvalidInput: `max_runs` is less than 1.

    Cost: O(runs log runs).

    >>> list(plan_clump(IndexSet.from_runs([(1, 9), (20, 20), (31, 32), (44, 44), (60, 80)]), max_runs=3))
    [20, 31, 32, 44]
    """
    if max_runs < 1:
        raise InvalidInput(f"max_runs is {max_runs}; what is appended again is a run itself, so allow at least 1")
    surplus = live.run_count - max_runs
    # One more than the surplus: those taken come back as one.
    return IndexSet.from_runs(nsmallest(surplus + 1, live.runs(), key=_length_then_age) if surplus > 0 else ())


def _length_then_age(run: tuple[int, int]) -> tuple[int, int]:
    first, last = run
    return last - first, first
