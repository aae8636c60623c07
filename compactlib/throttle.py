"""A byte-rate throttle: a token bucket as a pure value, and the class that waits for it."""

from __future__ import annotations

import threading

import attrs

from compactlib.clock import Clock, SystemClock
from compactlib.errors import InvalidInput


@attrs.frozen
class TokenBucket:
    """How many bytes may go now, as a value: `take` returns the next state and how long to wait first.

    Attributes:
        bytes_per_second: the long-run rate.
        burst_bytes: what may go at once after a pause.
        level: bytes that may go without waiting; negative when the future has been borrowed from.
        at: monotonic seconds at which `level` held.
    """

    bytes_per_second: float
    burst_bytes: float
    level: float
    at: float

    def take(self, size: int, now: float) -> tuple[TokenBucket, float]:
        """Take `size` bytes at monotonic time `now`: the next state, and the seconds to wait before using them.

        A request larger than the burst is granted whole and paid for by waiting, so no request can starve.
        """
        refilled = self.level + max(0.0, now - self.at) * self.bytes_per_second
        level = min(self.burst_bytes, refilled) - size
        wait = max(0.0, -level / self.bytes_per_second)
        return attrs.evolve(self, level=level, at=max(self.at, now)), wait


class Throttle:
    """Keeps work below a byte rate by making it wait. Threads may share one: each waits for its own share.

    Args:
        bytes_per_second: the long-run rate, > 0.
        burst_bytes: what may go at once after a pause; default a tenth of a second's worth.
        clock: where time comes from.

    Raises:
        InvalidInput: the rate or the burst is not positive.
    """

    def __init__(self, bytes_per_second: float, *, burst_bytes: float | None = None, clock: Clock | None = None) -> None:
        burst = bytes_per_second / 10 if burst_bytes is None else burst_bytes
        if not bytes_per_second > 0 or not burst > 0:
            raise InvalidInput(f"a throttle needs a positive rate and burst, found {bytes_per_second} B/s and {burst} B")
        self._clock: Clock = SystemClock() if clock is None else clock
        self._bucket = TokenBucket(bytes_per_second, burst, burst, self._clock.monotonic())
        self._lock = threading.Lock()

    @property
    def bytes_per_second(self) -> float:
        """The long-run rate."""
        return self._bucket.bytes_per_second

    def take(self, size: int) -> float:
        """Wait until `size` more bytes may go; returns the seconds waited."""
        with self._lock:
            self._bucket, wait = self._bucket.take(size, self._clock.monotonic())
        if wait:
            self._clock.sleep(wait)
        return wait

    def __repr__(self) -> str:
        return f"Throttle({self.bytes_per_second:g} B/s)"
