# SPDX-License-Identifier: Apache-2.0
"""Which segments hold the newest records: they are not eligible for compaction."""

from __future__ import annotations

from collections import deque

from compactlib.blobstore.names import SegmentName
from compactlib.errors import AuditFailed


class Journal:
    """Counts the newest records per segment, the oldest falling out; a few bytes a segment. Used under a lock.

    Args:
        max_entries: how many records it reaches back.
        max_segments: over how many segments, at most; so it never holds every segment of a log.
    """

    def __init__(self, max_entries: int, max_segments: int) -> None:
        self._max_entries = max_entries
        self._max_segments = max_segments
        self._runs: deque[tuple[SegmentName, int]] = deque()
        self._count = 0

    def append(self, segment: SegmentName, count: int = 1) -> None:
        """`count` records were appended to this segment, which is the newest one. Amortised O(1)."""
        # In place, and counted without a call in between: an interrupt comes before both, or after both.
        if self._runs and self._runs[-1][0] == segment:
            self._runs[-1] = segment, self._runs[-1][1] + count
            self._count += count
        else:
            self._count += count
            self._runs.append((segment, count))
        self._evict()

    def _evict(self) -> None:
        while len(self._runs) > self._max_segments or (
                self._runs and self._count - self._runs[0][1] >= self._max_entries):
            self._count -= self._runs[0][1]
            self._runs.popleft()
        excess = self._count - self._max_entries
        if excess > 0:
            segment, held = self._runs[0]
            self._runs[0] = segment, held - excess
            self._count -= excess

    @property
    def floor(self) -> SegmentName | None:
        """The segment of the oldest record that is still in it; `None` if it is empty."""
        return self._runs[0][0] if self._runs else None

    def __len__(self) -> int:
        return self._count

    def audit(self) -> None:
        """Check its bound and its order.

        Raises:
            AuditFailed: it reaches too far back, or segments are out of order.
        """
        names = [name for name, _ in self._runs]
        held = [count for _, count in self._runs]
        if sum(held) != self._count or self._count > self._max_entries or min(held, default=1) < 1 or (
                names != sorted(set(names))) or len(names) > self._max_segments:
            raise AuditFailed(f"the journal holds {self._count} of {self._max_entries} entries in at most "
                              f"{self._max_segments} segments: {list(self._runs)}")
