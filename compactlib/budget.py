"""What long work may use up: bytes per second, bytes in all, time; and the host's pause and cancel."""

from __future__ import annotations

import threading

import attrs

from compactlib.clock import Clock, SystemClock
from compactlib.errors import BudgetSpent, InvalidInput
from compactlib.throttle import Throttle


@attrs.frozen(kw_only=True)
class BudgetLimits:
    """The numbers of a budget, as a value that can travel to another process. `None` means no limit.

    Attributes:
        bytes_per_second: rate of bytes written.
        total_bytes: bytes written in all.
        deadline: seconds since the epoch after which no new bytes are granted.
    """

    bytes_per_second: float | None = None
    total_bytes: int | None = None
    deadline: float | None = None

    def share(self, parts: int) -> BudgetLimits:
        """The part of one of `parts` (>= 1) workers that run at the same time: rate and total are divided."""
        rate = None if self.bytes_per_second is None else self.bytes_per_second / parts
        total = None if self.total_bytes is None else self.total_bytes // parts
        return BudgetLimits(bytes_per_second=rate, total_bytes=total, deadline=self.deadline)


class Budget:
    """Long work asks it before each chunk of bytes; the host limits, pauses and cancels through it.

    Threads may share one. Asking costs well under a microsecond when nothing limits.

    Args:
        bytes_per_second: rate of bytes written; default unlimited.
        total_bytes: bytes that may be written in all; default unlimited.
        deadline: seconds since the epoch after which nothing more is granted; default never.
        clock: where time comes from.

    Raises:
        InvalidInput: a limit is negative, or the rate is not positive.
    """

    def __init__(self, *, bytes_per_second: float | None = None, total_bytes: int | None = None,
                 deadline: float | None = None, clock: Clock | None = None) -> None:
        if total_bytes is not None and total_bytes < 0:
            raise InvalidInput(f"total_bytes is {total_bytes}; a budget cannot be negative")
        self._clock: Clock = SystemClock() if clock is None else clock
        self._throttle = None if bytes_per_second is None else Throttle(bytes_per_second, clock=self._clock)
        self._total_bytes = total_bytes
        self._deadline = deadline
        self._spent_bytes = 0
        self._lock = threading.Lock()
        self._running = threading.Event()
        self._running.set()
        self._cancelled = False

    @classmethod
    def from_limits(cls, limits: BudgetLimits, *, clock: Clock | None = None) -> Budget:
        """A fresh budget with these limits, for a worker in another process."""
        return cls(bytes_per_second=limits.bytes_per_second, total_bytes=limits.total_bytes,
                   deadline=limits.deadline, clock=clock)

    @property
    def spent_bytes(self) -> int:
        """Bytes granted so far."""
        return self._spent_bytes

    @property
    def remaining(self) -> BudgetLimits:
        """What is left, as a value for workers elsewhere."""
        left = None if self._total_bytes is None else max(0, self._total_bytes - self._spent_bytes)
        rate = None if self._throttle is None else self._throttle.bytes_per_second
        return BudgetLimits(bytes_per_second=rate, total_bytes=left, deadline=self._deadline)

    def spend(self, size: int) -> None:
        """Ask for `size` bytes; returns when they may be written, waiting for the rate and while paused.

        Raises:
            BudgetSpent: the bytes would exceed the total, the deadline has passed, or the work was cancelled;
                nothing was granted.
        """
        self.check()
        with self._lock:
            if self._total_bytes is not None and self._spent_bytes + size > self._total_bytes:
                raise self._refusal("bytes", f"{size} more bytes would exceed the total of {self._total_bytes} bytes")
            self._spent_bytes += size
        if self._throttle is not None:
            self._throttle.take(size)

    def charge(self, size: int) -> None:
        """Book `size` bytes that a worker elsewhere has already written; never waits or refuses."""
        with self._lock:
            self._spent_bytes += size

    def check(self) -> None:
        """Return if work may go on; waits while paused.

        Raises:
            BudgetSpent: the deadline has passed or the work was cancelled.
        """
        self._running.wait()
        if self._cancelled:
            raise self._refusal("cancelled", "the work was cancelled")
        if self._deadline is not None and self._clock.now() >= self._deadline:
            raise self._refusal("deadline", f"the deadline {self._deadline:.3f} has passed")

    def _refusal(self, reason: str, why: str) -> BudgetSpent:
        return BudgetSpent(f"{why} ({self._spent_bytes} bytes spent); call again with a new budget to go on",
                           reason=reason, spent_bytes=self._spent_bytes)

    def pause(self) -> None:
        """Make work wait at its next `spend` or `check`, until `resume` or `cancel`."""
        self._running.clear()

    def resume(self) -> None:
        """Let paused work go on."""
        self._running.set()

    def cancel(self) -> None:
        """End the work at its next `spend` or `check`; paused work wakes up to end."""
        self._cancelled = True
        self._running.set()

    def __repr__(self) -> str:
        limits = attrs.asdict(self.remaining, filter=lambda _, value: value is not None)
        state = "cancelled" if self._cancelled else "running" if self._running.is_set() else "paused"
        told = "".join(f", {name}={value}" for name, value in limits.items())
        return f"Budget({state}, spent_bytes={self._spent_bytes}{told})"
