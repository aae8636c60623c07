# SPDX-License-Identifier: Apache-2.0
"""How fast a compaction may go while the disk is slow: the rate falls with the latency per MiB."""

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
    """How fast a compaction copies: a rate, and how far it falls by the latency of the disk.

    Attributes:
        bytes_per_second: the rate while the disk answers within the threshold, > 0.
        min_bytes_per_second: the rate that is kept however slow the disk is, > 0; as large as the other one or larger:
            the rate never falls.
        latency_threshold_seconds: latency per MiB up to which nothing is held back, >= 0; 0: the rate never falls.
        divisor: by how much the rate above the minimum is divided once the threshold is passed, > 0.
        only_if_slow: nothing is held back while the disk answers within the threshold; so it is as well where a budget
            of the caller's own limits the rate.

    Raises:
        InvalidInput: a number is out of its range.
    """

    bytes_per_second: float = float(_MIB)
    min_bytes_per_second: float = 512.0 * 1024
    latency_threshold_seconds: float = 0.020
    divisor: float = 1.0
    only_if_slow: bool = False

    def __attrs_post_init__(self) -> None:
        for name in ("bytes_per_second", "min_bytes_per_second", "latency_threshold_seconds", "divisor"):
            value = getattr(self, name)
            least = 0 if name == "latency_threshold_seconds" else math.ulp(0.0)
            if not isinstance(value, int | float) or isinstance(value, bool) or not least <= value < math.inf:
                raise InvalidInput(f"{name} of a pace is {value!r}; give a positive number, or no pace for no limit")
        if not isinstance(self.only_if_slow, bool):
            raise InvalidInput(f"only_if_slow of a pace is {self.only_if_slow!r}; give True or False")

    @property
    def limit(self) -> float | None:
        """The rate on a disk that is not slow, `None` for none."""
        return None if self.only_if_slow else self.bytes_per_second

    @property
    def may_fall(self) -> bool:
        """Whether the rate depends on the disk."""
        return self.min_bytes_per_second < self.bytes_per_second and self.latency_threshold_seconds > 0

    def rate(self, latency_seconds: float) -> float:
        """Bytes per second at a latency per MiB."""
        if not self.may_fall or latency_seconds <= self.latency_threshold_seconds:
            return self.bytes_per_second
        above = self.bytes_per_second - self.min_bytes_per_second
        rate = self.min_bytes_per_second + above * self.latency_threshold_seconds / latency_seconds / self.divisor
        return min(max(rate, self.min_bytes_per_second), self.bytes_per_second)


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
        if self._pace.only_if_slow and self.latency <= self._pace.latency_threshold_seconds:
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
