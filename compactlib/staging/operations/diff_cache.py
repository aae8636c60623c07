# SPDX-License-Identifier: Apache-2.0
"""`DiffCache`: differences between two metaranges, kept by the pair of ids, since neither ever changes."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import islice
from operator import attrgetter
from typing import TypeAlias

from compactlib.runtime.lru import Lru
from compactlib.staging.committed.committed_ranges import CommittedRanges
from compactlib.staging.model.values import Difference, MetaRangeId, Record

_Pair: TypeAlias = tuple[MetaRangeId | None, MetaRangeId | None]
_KEY = attrgetter("key")
_TOO_LARGE: list[Difference] = []
"""Stands for differences that are not remembered."""
_OVERHEAD_BYTES = 200  # what Python's objects add to the bytes of one difference, roughly


class DiffCache:
    """Remembers whole diffs, the least recently used ones go first. Threads may share it.

    A diff is read as a whole when it is first asked for, up to the limit; one that is larger is remembered as such, and
    read from the ranges each time.

    Args:
        committed: makes the diffs.
        max_bytes: how much memory the differences may take together.
    """

    def __init__(self, committed: CommittedRanges, max_bytes: int) -> None:
        self._committed = committed
        self._max_bytes = max_bytes
        self._diffs: Lru[_Pair, Sequence[Difference]] = Lru(max_bytes=max_bytes)

    def diff(self, left: MetaRangeId | None, right: MetaRangeId | None, start: bytes = b"") -> Iterator[Difference]:
        """What changed from `left` to `right`, from the first key >= `start` on."""
        if left == right:
            return iter(())
        pair = left, right
        differences = self._diffs.get(pair)
        if differences is None:
            differences = self._load(pair)
        if differences is _TOO_LARGE:
            return self._committed.diff(left, right, start)
        return islice(differences, bisect_left(differences, start, key=_KEY), None)

    def __repr__(self) -> str:
        return f"DiffCache({self._diffs!r})"

    def _load(self, pair: _Pair) -> Sequence[Difference]:
        differences: list[Difference] = []
        size = 0
        for difference in self._committed.diff(*pair):
            size += _size(difference)
            if size > self._max_bytes:
                self._diffs.put(pair, _TOO_LARGE, _OVERHEAD_BYTES)
                return _TOO_LARGE
            differences.append(difference)
        self._diffs.put(pair, differences, size + _OVERHEAD_BYTES)
        return differences


def _size(difference: Difference) -> int:
    return _OVERHEAD_BYTES + len(difference.key) + _record_size(difference.left) + _record_size(difference.right)


def _record_size(record: Record | None) -> int:
    return 0 if record is None else len(record.identity) + len(record.data)
