# SPDX-License-Identifier: Apache-2.0
"""`DiffCache`: differences between two metaranges, kept by the pair of ids, since neither ever changes.

They are read as far as they are asked for, and what was read is kept: of each pair the *stretches* of keys between
which all differences are known. A question about whether there is any costs the ranges of the first one.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import pairwise
from operator import attrgetter
from typing import TypeAlias

import attrs

from compactlib.errors import AuditFailed
from compactlib.runtime.lru import Lru
from compactlib.staging.ranges.committed import CommittedRanges
from compactlib.staging.values import Difference, MetaRangeId, Record

_Pair: TypeAlias = tuple[MetaRangeId | None, MetaRangeId | None]
_KEY = attrgetter("key")
_START = attrgetter("start")
_OVERHEAD_BYTES = 200  # what Python's objects add to the bytes of one difference, or of a stretch, roughly


@attrs.frozen
class _Stretch:
    """All differences from the key `start` on and below `end`, `None` for no end."""

    start: bytes
    end: bytes | None
    differences: tuple[Difference, ...]
    size_bytes: int

    def reaches(self, key: bytes) -> bool:
        """Whether it goes at least up to this key."""
        return self.end is None or key <= self.end


_Stretches: TypeAlias = tuple[_Stretch, ...]


class DiffCache:
    """Remembers what was read of diffs, the least recently used ones go first. Threads may share it.

    Of a diff that is larger than the limit a part is remembered; the others are read from the ranges each time.

    Args:
        committed: makes the diffs.
        max_bytes: how much memory the differences may take together.
    """

    def __init__(self, committed: CommittedRanges, max_bytes: int) -> None:
        self._committed = committed
        self._max_bytes = max_bytes
        self._diffs: Lru[_Pair, _Stretches] = Lru(max_bytes=max_bytes)
        self._lock = threading.Lock()

    def diff(self, left: MetaRangeId | None, right: MetaRangeId | None, start: bytes = b"",
             end: bytes | None = None) -> Iterator[Difference]:
        """What changed from `left` to `right`, from the first key >= `start` on and below `end`, read as it is asked
        for.
        """
        pair = left, right
        while left != right and (end is None or start < end):
            known = self._diffs.get(pair) or ()
            place = bisect_right(known, start, key=_START)
            held = known[place - 1] if place else None
            if held is not None and (held.end is None or start < held.end):
                yield from _between(held.differences, start, end)
                reached = held.end
            else:
                following = known[place].start if place < len(known) else end
                reached = following if end is None or following is None else min(following, end)
                yield from self._read(pair, start, reached)
            if reached is None:
                return
            start = reached

    def _read(self, pair: _Pair, start: bytes, end: bytes | None) -> Iterator[Difference]:
        """The differences of a stretch; keeps those that were read, also if the last ones are not asked for."""
        found: list[Difference] = []
        room = self._max_bytes - sum(each.size_bytes for each in self._diffs.get(pair) or ()) - _OVERHEAD_BYTES
        size = 0
        fits = room >= 0
        reached: bytes | None = start
        try:
            for difference in self._committed.diff(*pair, start, end):
                fits = fits and size + _size(difference) <= room
                if fits:
                    size += _size(difference)
                    found.append(difference)
                    reached = difference.key + b"\0"
                yield difference
            if fits:
                reached = end
        finally:
            if reached != start:
                self._keep(pair, _Stretch(start, reached, tuple(found), size + _OVERHEAD_BYTES))

    def _keep(self, pair: _Pair, read: _Stretch) -> None:
        """Join a stretch with those that it meets; other threads may have read some of it meanwhile."""
        with self._lock:
            apart: list[_Stretch] = []
            for held in self._diffs.get(pair) or ():
                if held.reaches(read.start) and read.reaches(held.start):
                    read = _joined(held, read) if held.start <= read.start else _joined(read, held)
                else:
                    apart.append(held)
            stretches = tuple(sorted((*apart, read), key=_START))
            self._diffs.put(pair, stretches, sum(each.size_bytes for each in stretches))

    def audit(self) -> None:
        """Check that stretches lie apart, each with the differences of its own keys, and count as they are large.

        Raises:
            AuditFailed: they do not.
        """
        for pair, stretches in self._diffs.items():
            for held in stretches:
                listed = [each.key for each in held.differences]
                size = sum(map(_size, held.differences)) + _OVERHEAD_BYTES
                if (listed != sorted(set(listed)) or size != held.size_bytes
                        or (listed and (listed[0] < held.start or not held.reaches(listed[-1] + b"\0")))):
                    raise AuditFailed(f"{pair}: from {held.start!r} to {held.end!r} are kept {len(listed)} differences "
                                      f"of {size} bytes, counted as {held.size_bytes}")
            if any(first.reaches(second.start) for first, second in pairwise(stretches)):
                raise AuditFailed(f"{pair}: {len(stretches)} stretches, of which two meet")

    def __repr__(self) -> str:
        return f"DiffCache({self._diffs!r})"


def _between(differences: tuple[Difference, ...], start: bytes, end: bytes | None) -> Iterator[Difference]:
    for place in range(bisect_left(differences, start, key=_KEY), len(differences)):
        if end is not None and differences[place].key >= end:
            return
        yield differences[place]


def _joined(first: _Stretch, second: _Stretch) -> _Stretch:
    """One of two, of which the first begins first and reaches the second."""
    if first.end is None or (second.end is not None and second.end <= first.end):
        return first
    more = second.differences[bisect_left(second.differences, first.end, key=_KEY):]
    return _Stretch(first.start, second.end, first.differences + more, first.size_bytes + sum(map(_size, more)))


def _size(difference: Difference) -> int:
    return _OVERHEAD_BYTES + len(difference.key) + _record_size(difference.left) + _record_size(difference.right)


def _record_size(record: Record | None) -> int:
    return 0 if record is None else len(record.identity) + len(record.data)
