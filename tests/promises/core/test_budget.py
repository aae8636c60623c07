# SPDX-License-Identifier: Apache-2.0
"""`budget`: limits hold to the byte, waits can be paused and cancelled, refused bytes are not booked."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import cast

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from compactlib.budget import Budget, BudgetLimits
from compactlib.clock import ManualClock
from compactlib.errors import BudgetSpent, InvalidInput


class HookedClock(ManualClock):
    """A manual clock that does something when it is slept on, or asked, for the n-th time."""

    def __init__(self, *, at_sleep: int = 0, at_now: int = 0, action: Callable[[], None] = lambda: None,
                 tick: float = 0.0) -> None:
        super().__init__(1000.0)
        self.sleeps = 0
        self.questions = 0
        self.action = action
        self._at_sleep = at_sleep
        self._at_now = at_now
        self._tick = tick

    def sleep(self, seconds: float) -> None:
        self.sleeps += 1
        if self.sleeps == self._at_sleep:
            self.action()
        super().sleep(seconds)

    def now(self) -> float:
        self.questions += 1
        if self.questions == self._at_now:
            self.action()
        self.advance(self._tick)
        return super().now()


def joined(threads: list[threading.Thread]) -> bool:
    for thread in threads:
        thread.join(60)
    return not any(thread.is_alive() for thread in threads)


def started(work: Callable[[], None], count: int) -> list[threading.Thread]:
    threads = [threading.Thread(target=work, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    return threads


# ------------------------------------------------------------------------------------------------------ limits


def test_without_limits_everything_is_granted_and_counted() -> None:
    budget = Budget()
    budget.spend(10)
    budget.spend(0)
    budget.check()
    assert budget.spent_bytes == 10
    assert budget.remaining == BudgetLimits()
    assert budget.refusal is None
    assert repr(budget) == "Budget(running, spent_bytes=10)"


def test_the_total_may_be_spent_to_the_last_byte_and_not_beyond() -> None:
    budget = Budget(total_bytes=100)
    budget.spend(60)
    with pytest.raises(BudgetSpent, match="41 more bytes would exceed the total of 100 bytes") as refused:
        budget.spend(41)
    assert (refused.value.reason, refused.value.spent_bytes) == ("bytes", 60)
    assert budget.spent_bytes == 60
    budget.spend(40)
    assert budget.remaining.total_bytes == 0
    budget.spend(0)


def test_a_piece_larger_than_the_whole_total_has_its_own_message() -> None:
    with pytest.raises(BudgetSpent, match="total_bytes has to be at least 101") as refused:
        Budget(total_bytes=100).spend(101)
    assert refused.value.reason == "bytes"


def test_sizes_that_are_numbers_of_numpy_do_not_wrap_around() -> None:
    budget = Budget(total_bytes=1000)
    for _ in range(9):
        budget.spend(cast("int", np.uint8(100)))
    budget.charge(cast("int", np.int8(100)))
    assert budget.spent_bytes == 1000
    with pytest.raises(BudgetSpent):
        budget.spend(cast("int", np.uint8(1)))


def test_charged_bytes_count_and_are_never_refused() -> None:
    budget = Budget(total_bytes=100)
    budget.charge(150)
    assert (budget.spent_bytes, budget.remaining.total_bytes) == (150, 0)
    with pytest.raises(BudgetSpent):
        budget.spend(1)


def test_the_deadline_is_the_first_moment_of_refusal() -> None:
    clock = ManualClock(100)
    budget = Budget(deadline=110, clock=clock)
    clock.advance(9)
    budget.spend(1)
    clock.advance(1)
    with pytest.raises(BudgetSpent, match="deadline 110") as refused:
        budget.spend(1)
    assert (refused.value.reason, refused.value.spent_bytes) == ("deadline", 1)


@pytest.mark.parametrize("make", [
    lambda: Budget(total_bytes=-1), lambda: Budget(total_bytes=math.nan),  # type: ignore[arg-type]
    lambda: Budget(bytes_per_second=0), lambda: Budget(bytes_per_second=math.nan),
    lambda: Budget(bytes_per_second=math.inf), lambda: Budget(deadline=math.nan),
    lambda: BudgetLimits(total_bytes=-1), lambda: BudgetLimits(bytes_per_second=-5.0),
    lambda: Budget(deadline=10**400), lambda: Budget(bytes_per_second=10**400),
    lambda: BudgetLimits().share(0), lambda: Budget().spend(-1), lambda: Budget().charge(-1),
])
def test_impossible_numbers_are_refused(make: Callable[[], object]) -> None:
    with pytest.raises(InvalidInput):
        make()


# ---------------------------------------------------------------------------------------------- rate and waiting


def test_the_rate_is_kept_on_the_budgets_clock() -> None:
    clock = ManualClock()
    budget = Budget(bytes_per_second=1000, clock=clock)
    for _ in range(10):
        budget.spend(500)
    assert clock.monotonic() == pytest.approx((5000 - 100) / 1000)


def test_cancelling_ends_a_wait_for_the_rate_and_books_nothing() -> None:
    clock = HookedClock(at_sleep=3)
    budget = Budget(bytes_per_second=10, clock=clock)
    clock.action = budget.cancel
    with pytest.raises(BudgetSpent) as refused:
        budget.spend(1_000_000)
    assert refused.value.reason == "cancelled"
    assert (budget.spent_bytes, clock.sleeps) == (0, 3)


def test_a_deadline_ends_a_wait_for_the_rate_and_gives_the_rate_back() -> None:
    clock = ManualClock(100)
    budget = Budget(bytes_per_second=10, deadline=101, clock=clock)
    with pytest.raises(BudgetSpent) as refused:
        budget.spend(1_000_000)
    assert refused.value.reason == "deadline"
    assert budget.spent_bytes == 0
    assert clock.now() == pytest.approx(101, abs=0.2)


def test_bytes_refused_for_the_deadline_do_not_slow_later_ones() -> None:
    clock = HookedClock(at_sleep=1)
    budget = Budget(bytes_per_second=10, clock=clock)
    work = budget.child()
    clock.action = work.cancel
    with pytest.raises(BudgetSpent):
        work.spend(1_000_000)
    before = clock.monotonic()
    budget.spend(1)
    assert clock.monotonic() == before


def test_a_pause_during_a_wait_for_the_rate_holds() -> None:
    order: list[str] = []
    clock = HookedClock(at_sleep=2)
    budget = Budget(bytes_per_second=10, clock=clock)

    def resume_later() -> None:
        budget.pause()
        paused.set()

    paused = threading.Event()
    clock.action = resume_later

    def work() -> None:
        budget.spend(10)
        order.append("granted")

    threads = started(work, 1)
    assert paused.wait(60)
    order.append("resumed")
    budget.resume()
    assert joined(threads)
    assert order == ["resumed", "granted"]


# ------------------------------------------------------------------------------------------ pause, resume, cancel


def test_paused_work_waits_until_it_is_resumed() -> None:
    # Under a deadline, paused work asks the clock now and then; the clock resumes it at the fourth question.
    clock = HookedClock(at_now=4)
    budget = Budget(deadline=5000, clock=clock)
    clock.action = budget.resume
    budget.pause()
    assert budget.paused
    assert repr(budget).startswith("Budget(paused")
    budget.spend(1)
    assert clock.questions >= 4
    assert not budget.paused


def test_paused_work_ends_when_its_deadline_passes() -> None:
    budget = Budget(deadline=1003, clock=HookedClock(tick=1.0))
    budget.pause()
    with pytest.raises(BudgetSpent) as refused:
        budget.check()
    assert refused.value.reason == "deadline"


def test_resume_wakes_every_thread_in_order_of_events() -> None:
    order: list[str] = []
    budget = Budget()
    budget.pause()

    def work() -> None:
        budget.spend(1)
        order.append("granted")

    threads = started(work, 4)
    order.append("resumed")
    budget.resume()
    assert joined(threads)
    assert order == ["resumed", *["granted"] * 4]
    assert budget.spent_bytes == 4


def test_cancel_wakes_every_paused_thread() -> None:
    reasons: list[str] = []
    budget = Budget()
    budget.pause()

    def work() -> None:
        try:
            budget.check()
        except BudgetSpent as error:
            reasons.append(error.reason)

    threads = started(work, 4)
    budget.cancel()
    assert joined(threads)
    assert reasons == ["cancelled"] * 4


def test_cancel_is_final() -> None:
    budget = Budget()
    budget.cancel()
    budget.pause()
    assert (budget.cancelled, budget.paused) == (True, False)
    with pytest.raises(BudgetSpent, match="cancelled"):
        budget.spend(1)
    budget.resume()
    with pytest.raises(BudgetSpent, match="cancelled"):
        budget.check()
    assert repr(budget) == "Budget(cancelled, spent_bytes=0)"


def test_each_refusal_is_its_own_error() -> None:
    budget = Budget()
    budget.cancel()
    first, second = budget.refusal, budget.refusal
    assert isinstance(first, BudgetSpent)
    assert first is not second


def test_threads_never_get_more_than_the_total_between_them() -> None:
    budget = Budget(total_bytes=10_000)
    granted: list[int] = []

    def work() -> None:
        mine = 0
        try:
            while True:
                budget.spend(7)
                mine += 7
        except BudgetSpent:
            granted.append(mine)

    assert joined(started(work, 4))
    assert sum(granted) == budget.spent_bytes == 10_000 // 7 * 7


# ------------------------------------------------------------------------------------------ children and sharing


def test_a_child_spends_from_its_parent_and_has_its_own_count() -> None:
    budget = Budget(total_bytes=100)
    child = budget.child()
    child.spend(30)
    budget.spend(30)
    assert (child.spent_bytes, budget.spent_bytes) == (30, 60)
    assert child.remaining == budget.remaining
    with pytest.raises(BudgetSpent, match="41 more bytes would exceed the total of 100"):
        child.spend(41)
    child.charge(10)
    assert (child.spent_bytes, budget.spent_bytes) == (40, 70)


def test_limits_of_a_child_hold_besides_those_of_its_parent() -> None:
    clock = ManualClock(0.0)
    budget = Budget(bytes_per_second=100, total_bytes=1000, deadline=500, clock=clock)
    child = budget.child(bytes_per_second=10, total_bytes=500, deadline=50)
    assert child.remaining == BudgetLimits(bytes_per_second=10, total_bytes=500, deadline=50)
    child.spend(101)
    assert clock.monotonic() == pytest.approx(10)
    with pytest.raises(BudgetSpent, match="exceed the total of 500"):
        child.spend(400)
    assert budget.spent_bytes == 101
    clock.advance(40)
    with pytest.raises(BudgetSpent, match="deadline 50"):
        child.check()
    before = clock.monotonic()
    budget.spend(10)
    assert clock.monotonic() == before
    budget.spend(800)
    with pytest.raises(BudgetSpent, match="exceed the total of 1000"):
        budget.child(total_bytes=5000).spend(90)


def test_a_child_ends_alone_and_with_its_parent() -> None:
    budget = Budget()
    first, second = budget.child(), budget.child()
    nested = second.child()
    first.cancel()
    assert (first.cancelled, second.cancelled, budget.cancelled) == (True, False, False)
    nested.check()
    budget.cancel()
    for child in (second, nested):
        with pytest.raises(BudgetSpent, match="cancelled"):
            child.check()


def test_cancelling_a_child_ends_it_while_its_parent_stays_paused() -> None:
    budget = Budget()
    child = budget.child()
    budget.pause()
    reasons: list[str] = []

    def work() -> None:
        try:
            child.spend(1)
        except BudgetSpent as error:
            reasons.append(error.reason)

    threads = started(work, 1)
    child.cancel()
    assert joined(threads)
    assert reasons == ["cancelled"]
    assert budget.paused


def test_a_child_that_is_paused_pauses_no_other() -> None:
    budget = Budget()
    child, other = budget.child(), budget.child()
    child.pause()
    assert (child.paused, other.paused, budget.paused) == (True, False, False)
    other.spend(1)
    budget.spend(1)
    child.resume()
    child.spend(1)


def test_a_budget_in_a_worker_ends_when_its_host_cancels() -> None:
    ended: list[bool] = []
    budget = Budget.from_limits(BudgetLimits(), is_ended=lambda: bool(ended))
    budget.child().spend(1)
    ended.append(True)
    with pytest.raises(BudgetSpent, match="cancelled"):
        budget.child().spend(1)


def test_shares_add_up_to_no_more_than_the_whole() -> None:
    limits = BudgetLimits(bytes_per_second=100, total_bytes=10, deadline=5.0)
    assert limits.share(3) == BudgetLimits(bytes_per_second=100 / 3, total_bytes=3, deadline=5.0)
    assert BudgetLimits().share(7) == BudgetLimits()


def test_a_budget_from_limits_has_the_limits_and_nothing_saved_up() -> None:
    limits = BudgetLimits(bytes_per_second=1000, total_bytes=100, deadline=500.0)
    clock = ManualClock()
    budget = Budget.from_limits(limits, clock=clock)
    assert budget.remaining == limits
    budget.spend(50)
    assert clock.monotonic() == pytest.approx(0.05)


# ---------------------------------------------------------------------------------------------------- a plain model


class BudgetMachine(RuleBasedStateMachine):
    """A budget against a model of a few integers; one thread, so nothing is ever paused when it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock(0)
        self.budget = Budget(total_bytes=1000, deadline=50, bytes_per_second=100, clock=self.clock)
        self.child = self.budget.child()
        self.spent = self.of_child = 0
        self.ended = {"whole": False, "child": False}

    def ask(self, name: str, size: int) -> None:
        budget = self.budget if name == "whole" else self.child
        refused: BudgetSpent | None = None
        try:
            budget.spend(size)
        except BudgetSpent as error:
            refused = error
        reasons = {
            "cancelled": self.ended[name], "deadline": self.clock.now() >= 50, "bytes": self.spent + size > 1000,
        }
        if refused is None:
            assert not any(reasons.values())
            self.spent += size
            self.of_child += size if name == "child" else 0
        else:
            assert refused.reason == next(reason for reason, holds in reasons.items() if holds)
            assert refused.spent_bytes in (self.spent, self.of_child)

    @rule(name=st.sampled_from(["whole", "child"]), size=st.integers(0, 300))
    def spend(self, name: str, size: int) -> None:
        self.ask(name, size)

    @precondition(lambda self: self.spent < 900)
    @rule(size=st.integers(0, 50))
    def charge(self, size: int) -> None:
        self.budget.charge(size)
        self.spent += size

    @rule(seconds=st.floats(0, 10))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule()
    def pause_and_resume(self) -> None:
        self.budget.pause()
        assert self.budget.paused is not self.ended["whole"]
        self.budget.resume()

    @rule()
    def cancel_child(self) -> None:
        self.child.cancel()
        self.ended["child"] = True

    @precondition(lambda self: self.spent > 500)
    @rule()
    def cancel_whole(self) -> None:
        self.budget.cancel()
        self.ended["whole"] = self.ended["child"] = True

    @invariant()
    def agrees(self) -> None:
        assert (self.budget.spent_bytes, self.child.spent_bytes) == (self.spent, self.of_child)
        assert self.budget.remaining.total_bytes == max(0, 1000 - self.spent)
        assert (self.budget.cancelled, self.child.cancelled) == (self.ended["whole"], self.ended["child"])


TestBudgetMachine = BudgetMachine.TestCase
