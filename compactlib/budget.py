# SPDX-License-Identifier: Apache-2.0
"""Budgets of long work: bytes a second, bytes in all, a deadline; and the host's pause and cancel.

Work calls `Budget.spend` before it writes, which grants, waits or raises `BudgetSpent`. A host pauses and cancels the
work through the budget, from any thread. A part of the work gets a `child`, which may have limits of its own and may
end alone. `BudgetLimits` are the limits as plain numbers for workers in other processes, whose bytes `Budget.charge`
counts.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable
from operator import index
from typing import TypeVar

import attrs

from compactlib._arguments import is_above, is_whole, require_whole
from compactlib.clock import Clock, SystemClock
from compactlib.errors import BudgetSpent, InvalidInput

_NumberT = TypeVar("_NumberT", int, float)

_POLL_SECONDS = 0.1
"""How often work that waits, for its rate or in a pause, checks again."""
_BURST_SECONDS = 0.1
"""How much of its rate an idle budget saves up."""


@attrs.frozen(kw_only=True)
class BudgetLimits:
    """The limits of a budget, as a value that can travel to another process. `None` means no limit.

    Attributes:
        bytes_per_second: rate of bytes written, > 0.
        total_bytes: bytes written in all, >= 0.
        deadline: nothing is granted from then on, in seconds since the epoch.

    Raises:
        InvalidInput: the rate is not positive and finite, the total is negative, or the deadline is not finite.
    """

    bytes_per_second: float | None = attrs.field(default=None, validator=is_above(0, or_none=True))
    total_bytes: int | None = attrs.field(default=None, validator=is_whole(or_none=True))
    deadline: float | None = attrs.field(default=None, validator=is_above(-math.inf, or_none=True))

    def share(self, parts: int) -> BudgetLimits:
        """Return the limits of one of `parts` concurrent workers: rate and total (rounded down) are divided.

        Raises:
            InvalidInput: `parts` is less than 1.
        """
        parts = require_whole("parts", parts, 1)
        rate = None if self.bytes_per_second is None else self.bytes_per_second / parts
        total = None if self.total_bytes is None else self.total_bytes // parts
        return BudgetLimits(bytes_per_second=rate, total_bytes=total, deadline=self.deadline)


class Budget:
    """Limits long work, which calls `spend` before each chunk of bytes; the host pauses and cancels through it.

    Threads may share one. Without limits a call takes less than a microsecond.

    Args:
        bytes_per_second: rate of bytes written, > 0; default unlimited. An idle budget saves up a tenth of a second.
        total_bytes: bytes written in all, >= 0; default unlimited.
        deadline: nothing is granted from then on, in seconds since the epoch; default never.
        clock: the clock for the rate and the deadline.

    Raises:
        InvalidInput: as for `BudgetLimits`.
    """

    def __init__(self, *, bytes_per_second: float | None = None, total_bytes: int | None = None,
                 deadline: float | None = None, clock: Clock | None = None) -> None:
        self._limits = BudgetLimits(bytes_per_second=bytes_per_second, total_bytes=total_bytes, deadline=deadline)
        self._clock: Clock = SystemClock() if clock is None else clock
        self._chain: tuple[Budget, ...] = (self,)  # up to the outermost parent
        self._lock = threading.RLock()  # one for a budget and all its children
        self._spent = 0
        # When the bytes granted so far are paid for, by the monotonic clock.
        self._free_at = 0.0 if bytes_per_second is None else self._clock.monotonic() - _BURST_SECONDS
        self._cancelled = self._paused = False
        self._is_ended: Callable[[], bool] | None = None
        # Whether bytes are limited here or in a parent.
        self._is_limited = bytes_per_second is not None or total_bytes is not None

    @classmethod
    def from_limits(cls, limits: BudgetLimits, *, clock: Clock | None = None,
                    is_ended: Callable[[], bool] | None = None) -> Budget:
        """Return a budget for a worker in another process.

        It begins with no saved rate, so that many short tasks do not each begin with a burst.

        Args:
            limits: the limits for this worker.
            clock: the clock for the rate and the deadline.
            is_ended: returns whether the host has cancelled the work; called at each `check`.
        """
        budget = cls(bytes_per_second=limits.bytes_per_second, total_bytes=limits.total_bytes,
                     deadline=limits.deadline, clock=clock)
        budget._free_at += _BURST_SECONDS
        budget._is_ended = is_ended
        return budget

    def child(self, *, bytes_per_second: float | None = None, total_bytes: int | None = None,
              deadline: float | None = None) -> Budget:
        """Return a budget for a part of the work; its bytes count here too.

        Its limits hold in addition to those here. It is paused and cancelled with this budget, or alone.
        """
        child = Budget(bytes_per_second=bytes_per_second, total_bytes=total_bytes, deadline=deadline,
                       clock=self._clock)
        child._chain, child._lock = (child, *self._chain), self._lock
        child._is_limited |= self._is_limited
        return child

    @property
    def spent_bytes(self) -> int:
        """Bytes granted and charged so far, without the bytes of work that ended while it waited for its rate."""
        return self._spent

    @property
    def paused(self) -> bool:
        """Whether work has to wait for `resume`."""
        return any(budget._paused for budget in self._chain) and not self.cancelled

    @property
    def cancelled(self) -> bool:
        """Whether this budget or one of its parents was cancelled."""
        return any(budget._cancelled or (budget._is_ended is not None and budget._is_ended())
                   for budget in self._chain)

    @property
    def refusal(self) -> BudgetSpent | None:
        """The error that `check` would raise now, new each time; `None` while work may continue. Never waits."""
        if self.cancelled:
            return self._refused("cancelled", "the work was cancelled")
        deadline = _least(budget._limits.deadline for budget in self._chain)
        if deadline is not None and self._clock.now() >= deadline:
            return self._refused("deadline", f"the deadline {deadline:.3f} has passed")
        return None

    @property
    def remaining(self) -> BudgetLimits:
        """The limits that are left here and in the parents, as a value for workers in other processes."""
        return BudgetLimits(
            bytes_per_second=_least(budget._limits.bytes_per_second for budget in self._chain),
            total_bytes=_least(None if budget._limits.total_bytes is None
                               else max(0, budget._limits.total_bytes - budget._spent) for budget in self._chain),
            deadline=_least(budget._limits.deadline for budget in self._chain))

    def spend(self, size: int) -> None:
        """Take `size` bytes from the budget; return when they may be written, after a wait for the rate or a pause.

        Raises:
            BudgetSpent: the bytes would exceed the total, the deadline has passed, or the work was cancelled;
                nothing was granted.
            InvalidInput: `size` is negative.
        """
        size = _checked(size)
        self.check()
        with self._lock:
            if not self._is_limited:
                self._count(size)
                return
            for budget in self._chain:
                total = budget._limits.total_bytes
                if total is not None and budget._spent + size > total:
                    raise budget._too_many(size, total)
            due = self._book(size)
        self._await(due, size)

    def charge(self, size: int) -> None:
        """Count `size` bytes that a worker elsewhere has written; never waits and never refuses.

        Raises:
            InvalidInput: `size` is negative.
        """
        size = _checked(size)
        with self._lock:
            self._count(size)

    def check(self) -> None:
        """Return if work may continue; waits during a pause, until the deadline.

        Raises:
            BudgetSpent: the deadline has passed or the work was cancelled.
        """
        # Called before every chunk, so the common case without limits comes first.
        for budget in self._chain:
            if (budget._cancelled or budget._paused or budget._is_ended is not None
                    or budget._limits.deadline is not None):
                self._check_all()
                return

    def pause(self) -> None:
        """Make work wait at its next `spend` or `check`, until `resume`, `cancel` or the deadline."""
        self._paused = True

    def resume(self) -> None:
        """End a pause; waiting work notices within a tenth of a second."""
        self._paused = False

    def cancel(self) -> None:
        """End the work at its next `spend` or `check`; waiting work notices within a tenth of a second."""
        self._cancelled = True

    def _check_all(self) -> None:
        while (refusal := self.refusal) is None:
            if not self.paused:
                return
            # In real time, because the host ends the pause: the budget's clock may be a manual clock.
            SystemClock().sleep(_POLL_SECONDS)
        raise refusal

    def _count(self, size: int) -> None:
        for budget in self._chain:
            budget._spent += size

    def _book(self, size: int) -> float:
        """Count the bytes; return the monotonic time from which on all rates allow them."""
        self._count(size)
        due, now = 0.0, self._clock.monotonic()
        for budget in self._chain:
            rate = budget._limits.bytes_per_second
            if rate is not None:
                budget._free_at = max(budget._free_at, now - _BURST_SECONDS) + size / rate
                due = max(due, budget._free_at)
        return due

    def _await(self, due: float, size: int) -> None:
        if not due:
            return
        try:
            while (left := due - self._clock.monotonic()) > 0:
                self.check()
                self._clock.sleep(min(left, _POLL_SECONDS))
            self.check()
        except BudgetSpent as error:
            with self._lock:
                # Shortens the wait of later calls; present waits keep their length.
                self._count(-size)
                for budget in self._chain:
                    if budget._limits.bytes_per_second is not None:
                        budget._free_at -= size / budget._limits.bytes_per_second
            # A new error, whose sum leaves out the bytes that were just given back.
            raise (self.refusal or error) from None

    def _too_many(self, size: int, total: int) -> BudgetSpent:
        if size > total:
            return self._refused("bytes", f"one piece of {size} bytes is larger than the whole total of {total} bytes; "
                                          f"total_bytes has to be at least {size}", needed=size)
        return self._refused("bytes", f"{size} more bytes would exceed the total of {total} bytes")

    def _refused(self, reason: str, why: str, needed: int | None = None) -> BudgetSpent:
        return BudgetSpent(f"{why} ({self._spent} bytes spent); call again with a new budget to continue",
                           reason=reason, spent_bytes=self._spent, needed_bytes=needed)

    def __repr__(self) -> str:
        limits = attrs.asdict(self.remaining, filter=lambda _, value: value is not None)
        state = "cancelled" if self.cancelled else "paused" if self.paused else "running"
        shown = "".join(f", {name}={value}" for name, value in limits.items())
        return f"Budget({state}, spent_bytes={self.spent_bytes}{shown})"


def _least(values: Iterable[_NumberT | None]) -> _NumberT | None:
    return min((value for value in values if value is not None), default=None)


def _checked(size: int) -> int:
    # NumPy's integers would overflow in the sums.
    size = index(size)
    if size < 0:
        raise InvalidInput(f"{size} bytes cannot be spent or charged; give 0 or more")
    return size
