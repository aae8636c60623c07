# SPDX-License-Identifier: Apache-2.0
"""`clock`: the system's clock keeps its contract, the manual one moves exactly as set, from any thread."""

from __future__ import annotations

import math
import pickle
import sys
import threading
from collections.abc import Iterator

import pytest

from compactlib.clock import Clock, ManualClock, SystemClock
from compactlib.errors import InvalidInput


@pytest.fixture
def eager_switching() -> Iterator[None]:
    """Threads take turns as often as the interpreter can, so that an unguarded change loses updates."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_system_clock_is_recent_and_never_goes_back() -> None:
    clock = SystemClock()
    assert clock.now() > 1_700_000_000
    readings = [clock.monotonic() for _ in range(100)]
    assert readings == sorted(readings)


def test_system_clock_sleeps_at_least_the_given_time() -> None:
    # The only test of real sleeping: `sleep` cannot return too early on a busy machine.
    clock = SystemClock()
    start = clock.monotonic()
    clock.sleep(0.001)
    assert clock.monotonic() - start >= 0.001
    clock.sleep(0)


def test_system_clocks_are_equal_and_travel() -> None:
    assert pickle.loads(pickle.dumps(SystemClock())) == SystemClock()
    assert hash(SystemClock()) == hash(SystemClock())
    assert repr(SystemClock()) == "SystemClock()"


@pytest.mark.parametrize("clock", [SystemClock(), ManualClock()])
@pytest.mark.parametrize("seconds", [-1.0, math.nan, math.inf])
def test_clocks_refuse_an_invalid_duration(clock: Clock, seconds: float) -> None:
    with pytest.raises(InvalidInput, match="seconds"):
        clock.sleep(seconds)


def test_manual_clock_moves_both_times_when_advanced_and_when_slept() -> None:
    clock = ManualClock(1000.0)
    clock.advance(1.5)
    clock.sleep(0.5)
    assert (clock.now(), clock.monotonic()) == (1002.0, 2.0)


def test_setting_the_wall_clock_back_leaves_monotonic_alone() -> None:
    clock = ManualClock(1000.0)
    clock.advance(5)
    clock.set_now(10)
    assert (clock.now(), clock.monotonic()) == (10.0, 5.0)
    assert repr(clock) == "ManualClock(10.0)"


def test_manual_clock_refuses_an_invalid_time() -> None:
    clock = ManualClock(7)
    with pytest.raises(InvalidInput, match="-1"):
        clock.advance(-1)
    with pytest.raises(InvalidInput, match="nan"):
        clock.set_now(math.nan)
    with pytest.raises(InvalidInput, match="inf"):
        ManualClock(math.inf)
    assert (clock.now(), clock.monotonic()) == (7.0, 0.0)


def test_a_pickled_manual_clock_keeps_its_time_and_moves_alone() -> None:
    clock = ManualClock(100)
    clock.advance(1)
    copy = pickle.loads(pickle.dumps(clock))
    copy.advance(1)
    assert (copy.now(), copy.monotonic()) == (102.0, 2.0)
    assert (clock.now(), clock.monotonic()) == (101.0, 1.0)


@pytest.mark.usefixtures("eager_switching")
def test_no_advance_is_lost_between_threads() -> None:
    # An interpreter with one global lock happens to keep this even unguarded; a free-threaded one does not.
    clock = ManualClock()

    def move() -> None:
        for _ in range(5000):
            clock.advance(1)

    threads = [threading.Thread(target=move) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (clock.now(), clock.monotonic()) == (20_000.0, 20_000.0)
