"""Packing pieces of work into few parts of about equal weight, and what it gains: list scheduling. Pure functions."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from compactlib.errors import InvalidInput


def packed(weights: Sequence[float], parts: int) -> list[list[int]]:
    """At most `parts` groups of the places in `weights`: each goes, the heaviest first, to the lightest group.

    The heaviest group is at most 4/3 of the best there is (Graham's bound). Groups come the heaviest first. O(n log n).

    Raises:
        InvalidInput: `parts` is less than 1, or a weight is negative or not a number.
    """
    _check(weights, parts)
    groups: list[list[int]] = [[] for _ in range(min(parts, len(weights)))]
    loads = [(0.0, number) for number in range(len(groups))]
    for place in sorted(range(len(weights)), key=lambda place: (-weights[place], place)):
        load, number = heapq.heappop(loads)
        groups[number].append(place)
        heapq.heappush(loads, (load + weights[place], number))
    return sorted(groups, key=lambda group: (-sum(weights[place] for place in group), group))


def makespan(seconds: Sequence[float], workers: int, *, cost_seconds: float = 0.0) -> float:
    """How long `workers` take for tasks that are begun in this order, each by the first who is free.

    Args:
        seconds: how long each task takes.
        workers: how many run at once.
        cost_seconds: what each task costs besides.

    Raises:
        InvalidInput: as for `packed`.
    """
    _check(seconds, workers)
    free = [0.0] * min(workers, max(len(seconds), 1))
    for each in seconds:
        heapq.heapreplace(free, free[0] + each + cost_seconds)
    return max(free)


def _check(weights: Sequence[float], parts: int) -> None:
    if parts < 1:
        raise InvalidInput(f"work cannot be divided among {parts}; give at least 1")
    if not all(weight >= 0 for weight in weights):
        raise InvalidInput("a weight is negative or not a number")
