# SPDX-License-Identifier: Apache-2.0
"""Packing pieces of work into few parts of about equal weight: list scheduling. Pure functions."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

from compactlib.errors import InvalidInput


def packed(weights: Sequence[float], parts: int) -> list[list[int]]:
    """At most `parts` groups of the places in `weights`: each goes, the heaviest first, to the lightest group.

    Of groups that weigh the same, the one with fewer pieces. The heaviest group is at most 4/3 of the best there is
    (Graham's bound). Groups come the heaviest first. O(n log n).

    Raises:
        InvalidInput: `parts` is less than 1, or a weight is negative or not a number.
    """
    if parts < 1:
        raise InvalidInput(f"work cannot be divided among {parts}; give at least 1")
    if not all(weight >= 0 for weight in weights):
        raise InvalidInput("a weight is negative or not a number")
    groups: list[list[int]] = [[] for _ in range(min(parts, len(weights)))]
    loads = [(0.0, 0, number) for number in range(len(groups))]
    for place in sorted(range(len(weights)), key=lambda place: (-weights[place], place)):
        load, pieces, number = heapq.heappop(loads)
        groups[number].append(place)
        heapq.heappush(loads, (load + weights[place], pieces + 1, number))
    return sorted(groups, key=lambda group: (-sum(weights[place] for place in group), group))


def weight_of(task: object) -> float:
    """The number `weight` of a task, if it has one that can be packed by; else 1."""
    weight = getattr(task, "weight", None)
    return float(weight) if isinstance(weight, int | float) and 0 <= weight < math.inf else 1.0
