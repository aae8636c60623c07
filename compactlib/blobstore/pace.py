"""How fast a compaction may go while the disk is slow: the rate falls with the latency per MiB (notes 1.10)."""

from __future__ import annotations

import math
from collections import deque

import attrs

from compactlib.errors import InvalidInput

_MIB = 1 << 20
_SAMPLES = 64
_LONGEST_WAIT_SECONDS = 10.0


@attrs.frozen(kw_only=True)
class Pace:
    """A rate between two limits, by the latency of the disk. Numbers in Python do not overflow (W11).

    Attributes:
        max_bytes_per_second: the rate while the disk answers within the threshold, > 0.
        min_bytes_per_second: the rate that is kept however slow the disk is, > 0 and at most the other.
        threshold_seconds: latency per MiB up to which nothing is held back, > 0.
        divisor: by how much the rate above the minimum is divided once the threshold is passed, > 0.
        only_if_slow: nothing is held back while the disk answers within the threshold, since a budget of the caller's
            own limits the rate.

    Raises:
        InvalidInput: a number is out of its range.
    """

    max_bytes_per_second: float
    min_bytes_per_second: float
    threshold_seconds: float = 0.020
    divisor: float = 1.0
    only_if_slow: bool = False

    def __attrs_post_init__(self) -> None:
        if not (0 < self.min_bytes_per_second <= self.max_bytes_per_second < math.inf
                and self.threshold_seconds > 0 and self.divisor > 0):
            raise InvalidInput(f"{self} is no pace: give 0 < minimum <= maximum rate, and a positive threshold and "
                               f"divisor")

    def rate(self, latency_seconds: float) -> float:
        """Bytes per second at a latency per MiB."""
        if latency_seconds <= self.threshold_seconds:
            return self.max_bytes_per_second
        above = self.max_bytes_per_second - self.min_bytes_per_second
        rate = self.min_bytes_per_second + above * self.threshold_seconds / latency_seconds / self.divisor
        return min(max(rate, self.min_bytes_per_second), self.max_bytes_per_second)


class PaceKeeper:
    """Remembers the last latencies, and says how long to wait after each chunk.

    Args:
        pace: the limits.
    """

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._latencies: deque[float] = deque(maxlen=_SAMPLES)

    def wait_after(self, size: int, seconds: float) -> float:
        """Seconds to wait after `size` bytes took the disk `seconds`; at most ten."""
        if size <= 0:
            return 0.0
        self._latencies.append(seconds * _MIB / size)
        if self._pace.only_if_slow and self.latency <= self._pace.threshold_seconds:
            return 0.0
        due = size / self._pace.rate(self.latency) - seconds
        return min(max(due, 0.0), _LONGEST_WAIT_SECONDS)

    @property
    def latency(self) -> float:
        """The 95th percentile of the last latencies, seconds per MiB; 0 at first."""
        if not self._latencies:
            return 0.0
        ordered = sorted(self._latencies)
        return ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]
