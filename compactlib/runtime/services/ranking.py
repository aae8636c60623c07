# SPDX-License-Identifier: Apache-2.0
"""`Ranking`: names by keys that change, of which the smallest is asked for again and again."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TypeAlias

Key: TypeAlias = tuple[float, ...]

_SLACK = 16
"""Entries without a meaning that are kept in any case, besides as many as there are names."""


class Ranking:
    """Names with a key each. An interrupt at any step leaves what was there before the call, or what it makes.

    Both changes and questions cost O(log n) each, over many of them; memory is O(names).
    """

    def __init__(self) -> None:
        self._keys: dict[str, Key] = {}
        # Entries that `_keys` does not bear out mean nothing.
        self._heap: list[tuple[Key, str]] = []

    def put(self, name: str, key: Key | None) -> None:
        """Give `name` this key instead of any other; `None`: it has none any more."""
        if key is None:
            self._keys.pop(name, None)
        elif self._keys.get(name) != key:
            heappush(self._heap, (key, name))  # before it counts
            self._keys[name] = key
        if len(self._heap) > 2 * len(self._keys) + _SLACK:
            heap = [(key, name) for name, key in self._keys.items()]
            heapify(heap)
            self._heap = heap

    def first(self) -> tuple[Key, str] | None:
        """The smallest key, and whose it is; of equal keys that of the smallest name. `None` if there is none."""
        while self._heap and self._keys.get(self._heap[0][1]) != self._heap[0][0]:
            heappop(self._heap)
        return self._heap[0] if self._heap else None

    def __contains__(self, name: str) -> bool:
        return name in self._keys

    def __len__(self) -> int:
        return len(self._keys)
