# SPDX-License-Identifier: Apache-2.0
"""A thread dies of nothing that a turn raises, and says what it was."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from compactlib.clock import ManualClock
from compactlib.errors import Busy, Closed
from compactlib.runtime import RecordingObserver
from compactlib.runtime.services.turns import Turns


class Work:
    """Turns that count themselves, and raise as they are told to."""

    def __init__(self) -> None:
        self.turns = 0
        self.raising: BaseException | None = None
        self.due_in: float | None = None
        self.taken = threading.Semaphore(0)

    def turn(self) -> float | None:
        self.turns += 1
        try:
            if self.raising is not None:
                raise self.raising
            return self.due_in
        finally:
            self.taken.release()


def test_a_turn_at_the_start_and_one_for_each_wake() -> None:
    work = Work()
    with Turns(work.turn, name="worker", event="failed") as turns:
        work.taken.acquire()
        turns.start()
        turns.wake()
        work.taken.acquire()
        assert "running" in repr(turns)
    assert work.turns == 2
    assert not turns.is_running
    with pytest.raises(Closed, match="worker was stopped"):
        turns.start()
    assert turns.stop()


def test_what_a_turn_raises_is_kept_and_told_and_the_next_one_comes() -> None:
    work, observer, clock = Work(), RecordingObserver(), ManualClock()
    turns = Turns(work.turn, name="worker", event="failed", observer=observer, clock=clock)
    work.raising = RuntimeError("broken")
    assert [turns.attempt() for _ in range(12)] == pytest.approx(
        [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 60, 60])
    assert turns.last_error is work.raising
    assert (turns.failures, turns.failures_in_a_row) == (12, 12)
    assert observer.events[0] == ("failed", {"error": "RuntimeError", "message": "broken", "failures": 1,
                                             "retry_in_seconds": 0.1})
    work.raising, work.due_in = None, 5.0
    assert turns.attempt() == 5.0
    assert (turns.failures, turns.failures_in_a_row) == (12, 0)
    assert isinstance(turns.last_error, RuntimeError)


def test_the_thread_goes_on_after_an_error() -> None:
    work = Work()
    work.raising = OSError("away")
    with Turns(work.turn, name="worker", event="failed", first_delay_seconds=0.0) as turns:
        for _ in range(3):
            work.taken.acquire()
        work.raising = None
        work.taken.acquire()
    assert turns.failures >= 3


def test_the_next_turn_waits_for_the_hosts_clock() -> None:
    work, clock = Work(), ManualClock()
    work.due_in = 10.0
    with Turns(work.turn, name="worker", event="failed", clock=clock):
        work.taken.acquire()
        clock.advance(10.0)
        work.taken.acquire()
    assert work.turns >= 2


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_what_ends_a_process_ends_the_thread_and_is_told_by_audit() -> None:
    work = Work()
    work.raising = KeyboardInterrupt()
    turns = Turns(work.turn, name="worker", event="failed")
    turns.start()
    work.taken.acquire()
    while turns.is_running:
        pass
    assert isinstance(turns.last_error, KeyboardInterrupt)


def test_stop_returns_when_its_time_is_over_or_the_turn() -> None:
    go, began = threading.Event(), threading.Event()

    def turn() -> None:
        began.set()
        go.wait()

    turns = Turns(turn, name="worker", event="failed")
    turns.start()
    began.wait()
    assert not turns.stop(wait_seconds=0.01)
    go.set()
    assert turns.stop()


def test_stopping_from_the_thread_itself_is_refused_and_heard() -> None:
    refused: list[Busy] = []

    def turn() -> None:
        try:
            turns.stop()
        except Busy as error:
            refused.append(error)

    turns = Turns(turn, name="worker", event="failed")
    turns.start()
    assert turns.stop()
    assert len(refused) <= 1


def test_a_turn_that_hangs_keeps_no_process_from_ending() -> None:
    program = ("import threading; from compactlib.runtime.services.turns import Turns\n"
               "began = threading.Event()\n"
               "def hang():\n    began.set(); threading.Event().wait()\n"
               "turns = Turns(hang, name='x', event='failed'); turns.start(); began.wait()\n"
               "print(turns.stop(wait_seconds=0.0))")
    ended = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=60)
    assert ended.stdout == "False\n"
