# SPDX-License-Identifier: Apache-2.0
"""`service`: a function is called when it is due, also after any error, and ends when its service is stopped."""

from __future__ import annotations

import sys
import threading
import tracemalloc
from collections.abc import Callable

import pytest

from compactlib.budget import Budget
from compactlib.clock import ManualClock
from compactlib.errors import BudgetSpent, Busy
from compactlib.service import PeriodicService


class Work:
    """Counts its calls; raises the errors that it was given, in order."""

    def __init__(self) -> None:
        self.calls = 0
        self.raises: list[BaseException] = []
        self.returns: float | None = None
        self.called = threading.Condition()

    def __call__(self, budget: Budget) -> float | None:
        with self.called:
            self.calls += 1
            self.called.notify_all()
        if self.raises:
            raise self.raises.pop(0)
        return self.returns

    def wait(self, calls: int) -> None:
        with self.called:
            assert self.called.wait_for(lambda: self.calls >= calls, 60)


def test_the_function_is_called_at_start_and_every_period() -> None:
    clock, work = ManualClock(), Work()
    service = PeriodicService(work, name="work", every_seconds=10, clock=clock)
    assert [service.run_pending(), service.run_pending()] == [True, False]
    clock.advance(9.9)
    assert not service.run_pending()
    clock.advance(0.1)
    assert service.run_pending()
    assert work.calls == 2


def test_without_a_period_the_function_is_called_when_woken() -> None:
    clock, work = ManualClock(), Work()
    service = PeriodicService(work, name="work", clock=clock)
    assert service.run_pending()
    clock.advance(1e9)
    assert not service.run_pending()
    service.wake()
    assert [service.run_pending(), service.run_pending()] == [True, False]


def test_a_call_returns_the_time_of_the_next() -> None:
    clock, work = ManualClock(), Work()
    service = PeriodicService(work, name="work", every_seconds=10, clock=clock)
    work.returns = 2.0
    service.run_pending()
    clock.advance(2)
    assert service.run_pending()


def test_a_wake_during_a_call_causes_one_more_call() -> None:
    def work(budget: Budget) -> None:
        if not calls:
            service.wake()
        calls.append(1)

    calls: list[int] = []
    service = PeriodicService(work, name="work")
    while service.run_pending():
        pass
    assert len(calls) == 2


def test_errors_are_logged_and_tried_again_with_a_growing_delay(caplog: pytest.LogCaptureFixture) -> None:
    clock, work = ManualClock(), Work()
    service = PeriodicService(work, name="the work", every_seconds=100, retry_seconds=1, max_retry_seconds=3,
                              clock=clock)
    work.raises = [ValueError(str(number)) for number in range(4)]
    waited = []
    service.run_pending()
    for _ in range(4):
        before = clock.monotonic()
        while not service.run_pending():
            clock.advance(0.5)
        waited.append(clock.monotonic() - before)
    assert waited == [1, 2, 3, 3]
    assert service.failures == 4
    assert str(service.last_error) == "3"
    assert caplog.messages[0] == "the work failed, and is tried again in 1.0 s"
    work.raises = [ValueError("again")]
    clock.advance(100)
    service.run_pending()
    clock.advance(1)
    assert service.run_pending(), "the delay begins at its first value after a success"


def test_a_thread_calls_the_function_until_the_stop() -> None:
    work = Work()
    with PeriodicService(work, name="work", every_seconds=0.001) as service:
        service.start()
        work.wait(3)
    assert not service.is_running
    calls = work.calls
    service.start()
    work.wait(calls + 1)
    service.stop()
    service.stop()
    service.wake()
    assert service.run_pending()


@pytest.mark.parametrize("error", [ValueError("v"), SystemExit(1)])
def test_no_error_ends_the_thread(error: BaseException) -> None:
    work = Work()
    work.raises = [error]
    with PeriodicService(work, name="work", retry_seconds=0.001) as service:
        work.wait(2)
    assert service.failures == 1


def test_a_clock_that_raises_ends_nothing() -> None:
    class Broken(ManualClock):
        def monotonic(self) -> float:
            if not mended.is_set():
                raised.set()
                raise OSError("no time")
            return super().monotonic()

    mended, raised, work = threading.Event(), threading.Event(), Work()
    mended.set()
    with PeriodicService(work, name="work", every_seconds=0.0, retry_seconds=0.001, clock=Broken()):
        work.wait(1)
        mended.clear()
        assert raised.wait(60)
        calls = work.calls
        mended.set()
        work.wait(calls + 1)


def test_stop_cancels_the_budget_of_the_call_and_waits() -> None:
    begun, ended = threading.Event(), []

    def work(budget: Budget) -> None:
        begun.set()
        try:
            while True:
                budget.spend(1)
        except BudgetSpent as error:
            ended.append(error.reason)

    service = PeriodicService(work, name="work")
    service.start()
    begun.wait()
    service.stop()
    assert ended == ["cancelled"]
    begun.clear()
    service.wake()
    caller = threading.Thread(target=service.run_pending)  # a host without threads
    caller.start()
    begun.wait()
    service.stop()
    assert ended == ["cancelled"] * 2
    caller.join()


def test_stop_names_the_call_that_does_not_end() -> None:
    begun, go = threading.Event(), threading.Event()

    def work(budget: Budget) -> None:
        begun.set()
        go.wait()

    service = PeriodicService(work, name="the work")
    service.start()
    begun.wait()
    with pytest.raises(Busy, match="the work has not ended in 0 seconds"):
        service.stop(wait_seconds=0)
    with pytest.raises(Busy, match="is being stopped"):
        service.start()
    go.set()
    service.stop()


def test_a_service_is_not_stopped_or_run_from_its_function() -> None:
    refused: list[str] = []

    def work(budget: Budget) -> None:
        for call in (service.stop, service.run_pending):
            try:
                call()
            except Busy as error:
                refused.append(str(error))

    service = PeriodicService(work, name="work")
    service.run_pending()
    assert len(refused) == 2


def test_threads_share_one() -> None:
    work = Work()
    service = PeriodicService(work, name="work", every_seconds=0.0)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)

    def many(act: Callable[[], object]) -> None:
        for _ in range(50):
            act()

    try:
        threads = [threading.Thread(target=many, args=(act,))
                   for act in (service.start, service.wake, service.run_pending)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        service.stop()
    finally:
        sys.setswitchinterval(before)
    assert not service.is_running


def test_wakes_of_a_service_without_a_thread_take_no_memory() -> None:
    service = PeriodicService(lambda _: None, name="work", clock=ManualClock())
    tracemalloc.start()
    try:
        for _ in range(20_000):
            service.wake()
            service.run_pending()
        assert tracemalloc.get_traced_memory()[0] < 50_000
    finally:
        tracemalloc.stop()


def test_a_stop_may_wait_without_an_end() -> None:
    service = PeriodicService(lambda _: None, name="work", every_seconds=0.001)
    service.start()
    service.stop(wait_seconds=float("inf"))
    assert not service.is_running
