# SPDX-License-Identifier: Apache-2.0
"""Budgets of long work: bytes per second, bytes in all, time; and the host's pause and cancel.

Work asks `Budget.spend` before it writes, which grants, waits or raises `BudgetSpent`. A host keeps the budget
and steers the work through it from any thread. `BudgetLimits` is the same as plain numbers, for workers in other
processes, whose use comes back through `Budget.charge`.
"""

from __future__ import annotations

import math
import threading
from operator import index
from sys import float_info

import attrs

from compactlib.clock import Clock, SystemClock
from compactlib.errors import BudgetSpent, CompactlibError, InvalidInput
from compactlib.runtime.throttle import Throttle

_LOOK_AGAIN_SECONDS = 0.1
"""How long work waits at most (for its rate, or paused under a deadline) before it looks for news from the host."""


@attrs.frozen(kw_only=True)
class BudgetLimits:
    """The numbers of a budget, as a value that can travel to another process. `None` means no limit.

    Attributes:
        bytes_per_second: rate of bytes written, > 0.
        total_bytes: bytes written in all, >= 0.
        deadline: seconds since the epoch from which on nothing more is granted.

    Raises:
        InvalidInput: the rate is not positive and finite, the total is negative, or the deadline is not a number.
    """

    bytes_per_second: float | None = None
    total_bytes: int | None = None
    deadline: float | None = None

    def __attrs_post_init__(self) -> None:
        if self.total_bytes is not None and not self.total_bytes >= 0:
            raise InvalidInput(f"total_bytes is {self.total_bytes}; give 0 bytes or more")
        if self.bytes_per_second is not None and not 0 < self.bytes_per_second <= float_info.max:
            raise InvalidInput(f"bytes_per_second is {self.bytes_per_second}; give a positive rate, or None")
        if self.deadline is not None and not (abs(self.deadline) <= float_info.max or abs(self.deadline) == math.inf):
            raise InvalidInput("the deadline is not a number; give seconds since the epoch, or None for never")

    def share(self, parts: int) -> BudgetLimits:
        """The part of one of `parts` workers that run at the same time: rate and total (rounded down) are divided.

        Raises:
            InvalidInput: `parts` is less than 1.
        """
        if parts < 1:
            raise InvalidInput(f"a budget cannot be shared by {parts} workers; give at least 1")
        rate = None if self.bytes_per_second is None else self.bytes_per_second / parts
        total = None if self.total_bytes is None else self.total_bytes // parts
        return BudgetLimits(bytes_per_second=rate, total_bytes=total, deadline=self.deadline)


class _Account:
    """What a budget and those lent from it have in common. Every change is made under `lock`."""

    def __init__(self, limits: BudgetLimits, throttle: Throttle | None, clock: Clock) -> None:
        self.total_bytes = limits.total_bytes
        self.deadline = limits.deadline
        self.throttle = throttle
        self.clock = clock
        self.granted_bytes = 0
        self.charged_bytes = 0
        self.paused = False
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)

    @property
    def spent_bytes(self) -> int:
        return self.granted_bytes + self.charged_bytes


class Budget:
    """Long work asks it before each chunk of bytes; the host limits, pauses and cancels through it.

    Threads may share one. Asking costs less than a microsecond when nothing limits.

    Args:
        bytes_per_second: rate of bytes written, > 0; default unlimited.
        total_bytes: bytes that may be written in all, >= 0; default unlimited.
        deadline: seconds since the epoch from which on nothing more is granted; default never.
        clock: where time comes from.

    Raises:
        InvalidInput: as for `BudgetLimits`.
    """

    def __init__(self, *, bytes_per_second: float | None = None, total_bytes: int | None = None,
                 deadline: float | None = None, clock: Clock | None = None) -> None:
        chosen: Clock = SystemClock() if clock is None else clock
        limits = BudgetLimits(bytes_per_second=bytes_per_second, total_bytes=total_bytes, deadline=deadline)
        throttle = None if bytes_per_second is None else Throttle(bytes_per_second, clock=chosen)
        self._account = _Account(limits, throttle, chosen)
        self._lender: Budget | None = None
        self._cancelled = False

    @classmethod
    def from_limits(cls, limits: BudgetLimits, *, clock: Clock | None = None) -> Budget:
        """A fresh budget with these limits, for a worker in another process.

        It starts with none of its rate saved up, so that many short tasks do not each bring a burst of their own.
        """
        budget = cls(total_bytes=limits.total_bytes, deadline=limits.deadline, clock=clock)
        if limits.bytes_per_second is not None:
            account = budget._account
            account.throttle = Throttle(limits.bytes_per_second, saved_bytes=0, clock=account.clock)
        return budget

    def lend(self) -> Budget:
        """A budget that draws on this one: everything is shared, but cancelling it does not cancel this one.

        For work inside work that may have to end alone. Cancelling this one ends it too.
        """
        lent = Budget.__new__(Budget)
        lent._account = self._account
        lent._lender = self
        lent._cancelled = False
        return lent

    def beside(self, limits: BudgetLimits) -> Budget:
        """A budget of its own limits and its own count, which ends when this one is cancelled.

        For work of another kind in the same turn: at another rate, say. Pausing this one does not pause it.
        """
        other = Budget.from_limits(limits, clock=self._account.clock)
        other._lender = self
        return other

    @property
    def spent_bytes(self) -> int:
        """Bytes granted and charged so far, less what was granted to work that ended before it could use it."""
        return self._account.spent_bytes

    @property
    def paused(self) -> bool:
        """Whether work has to wait for `resume`."""
        return self._account.paused and not self.cancelled

    @property
    def cancelled(self) -> bool:
        """Whether this budget, or one it was lent from, was cancelled."""
        return self._cancelled or (self._lender is not None and self._lender.cancelled)

    @property
    def refusal(self) -> BudgetSpent | None:
        """The error that `check` would raise now, a new one each time; `None` while work may go on. Never waits."""
        if self.cancelled:
            return self._refused("cancelled", "the work was cancelled")
        if self._is_late():
            return self._refused("deadline", f"the deadline {self._account.deadline:.3f} has passed")
        return None

    @property
    def remaining(self) -> BudgetLimits:
        """What is left, as a value for workers elsewhere."""
        account = self._account
        left = None if account.total_bytes is None else max(0, account.total_bytes - account.spent_bytes)
        rate = None if account.throttle is None else account.throttle.bytes_per_second
        return BudgetLimits(bytes_per_second=rate, total_bytes=left, deadline=account.deadline)

    def spend(self, size: int) -> None:
        """Ask for `size` bytes; returns when they may be written, waiting for the rate and while paused.

        Raises:
            BudgetSpent: the bytes would exceed the total, the deadline has passed, or the work was cancelled;
                nothing was granted.
            InvalidInput: `size` is negative.
        """
        # Numbers of NumPy would wrap around in the sums.
        size = index(size)
        if size < 0:
            raise InvalidInput(f"{size} bytes cannot be spent; give 0 or more")
        self.check()
        account = self._account
        with account.lock:
            total = account.total_bytes
            if total is not None and account.granted_bytes + account.charged_bytes + size > total:
                raise self._too_many(size, total)
            account.granted_bytes += size
        if account.throttle is not None:
            self._await_rate(account.throttle, size)

    def _await_rate(self, throttle: Throttle, size: int) -> None:
        """Wait until the rate allows `size` bytes, in short naps so that a pause, a cancel or the deadline counts."""
        clock = self._account.clock
        booked = throttle.reserve(size)
        try:
            while (left := booked.due - clock.monotonic()) > 0:
                self.check()
                clock.sleep(min(left, _LOOK_AGAIN_SECONDS))
            self.check()
        except BaseException as error:
            throttle.give_back(booked)
            with self._account.lock:
                self._account.granted_bytes -= size
            if isinstance(error, BudgetSpent):
                # Reported again, with a sum that does not count the bytes that were just given back.
                raise (self.refusal or error) from None
            raise

    def charge(self, size: int) -> None:
        """Book `size` bytes that a worker elsewhere has already written; never waits and never refuses.

        Raises:
            InvalidInput: `size` is negative.
        """
        size = index(size)
        if not size >= 0:
            raise InvalidInput(f"{size} bytes cannot be charged; give 0 or more")
        with self._account.lock:
            self._account.charged_bytes += size

    def check(self) -> None:
        """Return if work may go on; waits while paused, though not beyond the deadline.

        Raises:
            BudgetSpent: the deadline has passed or the work was cancelled.
        """
        account = self._account
        if account.paused:
            self._await_resume()
        # Asked before every chunk: a budget without limits has to answer at once.
        if self._cancelled or self._lender is not None or account.deadline is not None:
            refusal = self.refusal
            if refusal is not None:
                raise refusal

    def _await_resume(self) -> None:
        account = self._account
        # The deadline is a time on the injected clock, which no condition can wait for: look at it now and then.
        # A lender with an account of its own is cancelled without a word to those who wait here.
        patience = None if account.deadline is None and not self._has_foreign_lender else _LOOK_AGAIN_SECONDS
        with account.changed:
            while account.paused and not self.cancelled and not self._is_late():
                account.changed.wait(patience)

    @property
    def _has_foreign_lender(self) -> bool:
        lender = self._lender
        return lender is not None and (lender._account is not self._account or lender._has_foreign_lender)

    def _is_late(self) -> bool:
        account = self._account
        return account.deadline is not None and account.clock.now() >= account.deadline

    def _too_many(self, size: int, total: int) -> BudgetSpent:
        if size > total:
            return self._refused("bytes", f"one piece of {size} bytes is larger than the whole total of {total} bytes; "
                                          f"total_bytes has to be at least {size}", needed=size)
        return self._refused("bytes", f"{size} more bytes would exceed the total of {total} bytes")

    def _refused(self, reason: str, why: str, needed: int | None = None) -> BudgetSpent:
        spent = self._account.spent_bytes
        return BudgetSpent(f"{why} ({spent} bytes spent); call again with a new budget to go on",
                           reason=reason, spent_bytes=spent, needed_bytes=needed)

    def pause(self) -> None:
        """Make work wait at its next `spend` or `check`, until `resume`, `cancel` or the deadline."""
        with self._account.lock:
            self._account.paused = True

    def resume(self) -> None:
        """Let paused work go on."""
        with self._account.changed:
            self._account.paused = False
            self._account.changed.notify_all()

    def cancel(self) -> None:
        """End the work at its next `spend` or `check`; work that is paused or waits for its rate wakes up to end."""
        with self._account.changed:
            self._cancelled = True
            self._account.changed.notify_all()

    def __repr__(self) -> str:
        limits = attrs.asdict(self.remaining, filter=lambda _, value: value is not None)
        state = "cancelled" if self.cancelled else "paused" if self.paused else "running"
        told = "".join(f", {name}={value}" for name, value in limits.items())
        return f"Budget({state}, spent_bytes={self.spent_bytes}{told})"


def spent_at_once(error: CompactlibError, what: str, *, left: int | None, needed: int | None) -> CompactlibError:
    """`error`, and if the total did not suffice for one commit, another one that says how much would.

    Args:
        error: what ended the work.
        what: is committed all at once, and begins anew each time: `"the branch 'main'"`.
        left: bytes that the budget had when it began; `None`: no total.
        needed: what it takes, as far as that is known before.
    """
    if not isinstance(error, BudgetSpent) or error.reason != "bytes" or left is None:
        return error
    least = max(needed or 0, left + 1)
    advice = f"give more than {left}, how many is unknown" if needed is None else f"give at least {least}"
    return BudgetSpent(f"{what} is committed all at once, and begins anew each time: the budget had {left} bytes left "
                       f"({error.spent_bytes} bytes spent in all); {advice}",
                       reason=error.reason, spent_bytes=error.spent_bytes, needed_bytes=least)
