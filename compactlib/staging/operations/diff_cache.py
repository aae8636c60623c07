"""`DiffCache`: differences between two metaranges, kept by the pair of ids, since neither ever changes."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import islice
from operator import attrgetter
from typing import TypeAlias

from compactlib.staging.committed.committed_ranges import CommittedRanges
from compactlib.staging.model.values import Difference, MetaRangeId, Record

_Pair: TypeAlias = tuple[MetaRangeId | None, MetaRangeId | None]
_KEY = attrgetter("key")
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
        self._diffs: OrderedDict[_Pair, tuple[int, Sequence[Difference] | None]] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def diff(self, left: MetaRangeId | None, right: MetaRangeId | None, start: bytes = b"") -> Iterator[Difference]:
        """What changed from `left` to `right`, from the first key >= `start` on."""
        if left == right:
            return iter(())
        with self._lock:
            kept = self._diffs.get((left, right))
            if kept is not None:
                self._diffs.move_to_end((left, right))
        differences = self._load((left, right)) if kept is None else kept[1]
        if differences is None:
            return self._committed.diff(left, right, start)
        return islice(differences, bisect_left(differences, start, key=_KEY), None)

    def __repr__(self) -> str:
        return f"DiffCache({len(self._diffs)} diffs, {self._bytes:,} of {self._max_bytes:,} bytes)"

    def _load(self, pair: _Pair) -> Sequence[Difference] | None:
        differences: list[Difference] = []
        size = 0
        for difference in self._committed.diff(*pair):
            size += _size(difference)
            if size > self._max_bytes:
                self._keep(pair, 0, None)
                return None
            differences.append(difference)
        self._keep(pair, size, differences)
        return differences

    def _keep(self, pair: _Pair, size: int, differences: Sequence[Difference] | None) -> None:
        size += _OVERHEAD_BYTES
        with self._lock:
            if pair in self._diffs:
                return
            self._diffs[pair] = (size, differences)
            self._bytes += size
            while self._bytes > self._max_bytes and self._diffs:
                _, (freed, _) = self._diffs.popitem(last=False)
                self._bytes -= freed


def _size(difference: Difference) -> int:
    return _OVERHEAD_BYTES + len(difference.key) + _record_size(difference.left) + _record_size(difference.right)


def _record_size(record: Record | None) -> int:
    return 0 if record is None else len(record.identity) + len(record.data)
