# SPDX-License-Identifier: Apache-2.0
"""Clocks that go wrong: what a script says happens, monotonic time never goes back, and the library lives with it."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from compactlib.catalog import HybridClock
from compactlib.clock import ManualClock
from compactlib.errors import ClockJumped, InvalidInput
from compactlib.runtime import Throttle
from compactlib.testing.faults.clocks import ClockScript, Freeze, Jump, Rate, ScriptedClock
from compactlib.testing.strategies import clock_scripts

WAITS = st.lists(st.sampled_from([0.0, 0.25, 1.0, 7.0, 100.0]), max_size=12)


def scripted(*events: Jump | Freeze | Rate, skew: float = 0.0, oversleep: float = 0.0) -> ScriptedClock:
    return ScriptedClock(ManualClock(1000.0), ClockScript(skew, events, oversleep))


def told(clock: ScriptedClock, *waits: float) -> list[tuple[float, float]]:
    """What both faces show, and then after each wait of true time."""
    shown = [(clock.now(), clock.monotonic())]
    for wait in waits:
        clock.truth.advance(wait)
        shown.append((clock.now(), clock.monotonic()))
    return shown


def test_a_clock_without_a_script_is_right() -> None:
    assert told(scripted(), 5.0) == [(1000.0, 0.0), (1005.0, 5.0)]


def test_a_jump_moves_the_wall_clock_alone() -> None:
    assert told(scripted(Jump(2.0, -10.0), skew=1.0), 1.0, 1.0) == [(1001.0, 0.0), (1002.0, 1.0), (993.0, 2.0)]


def test_a_clock_that_stands_still_catches_up() -> None:
    assert told(scripted(Freeze(1.0, 2.0)), 1.5, 1.0, 1.0) == [
        (1000.0, 0.0), (1001.0, 1.0), (1001.0, 1.0), (1003.5, 3.5)]


def test_a_clock_at_another_rate_counts_other_seconds() -> None:
    assert told(scripted(Rate(2.0, 0.5), Rate(4.0, 10.0)), 2.0, 2.0, 1.0) == [
        (1000.0, 0.0), (1002.0, 2.0), (1003.0, 3.0), (1013.0, 13.0)]


def test_sleeping_counts_on_this_clock_and_moves_true_time() -> None:
    slow = scripted(Rate(0.0, 0.5), oversleep=1.0)
    slow.sleep(3.0)
    assert (slow.monotonic(), slow.truth.monotonic()) == (3.5, 7.0)
    paused = scripted(Freeze(1.0, 10.0))
    paused.sleep(5.0)
    assert paused.truth.monotonic() == 11.0


@given(st.lists(clock_scripts(), min_size=1, max_size=3), WAITS)
def test_monotonic_time_never_goes_back(scripts: list[ClockScript], waits: list[float]) -> None:
    truth = ManualClock(1000.0)
    for script in scripts:
        clock = ScriptedClock(truth, script)
        shown = told(clock, *waits)
        assert all(before[1] <= after[1] for before, after in pairwise(shown))
        assert script.goes_back or all(before[0] <= after[0] for before, after in pairwise(shown))


@given(clock_scripts(), WAITS)
def test_a_sleep_is_never_too_short(script: ClockScript, waits: list[float]) -> None:
    clock = ScriptedClock(ManualClock(1000.0), script)
    for wait in waits:
        before = clock.monotonic()
        clock.sleep(wait)
        assert clock.monotonic() - before >= wait - 1e-6


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
def test_impossible_sleeps_are_refused(seconds: float) -> None:
    with pytest.raises(InvalidInput, match="sleep"):
        scripted().sleep(seconds)


@pytest.mark.parametrize("make", [
    lambda: ClockScript(float("inf")), lambda: ClockScript(oversleep_seconds=-1.0),
    lambda: ClockScript(events=(Rate(0.0, 0.0),)), lambda: ClockScript(events=(Jump(-1.0, 1.0),)),
    lambda: ClockScript(events=(Freeze(1.0, -1.0),))])
def test_impossible_scripts_are_refused(make: object) -> None:
    assert callable(make)
    with pytest.raises(InvalidInput, match="give"):
        make()


# ------------------------------------------------------------------------------------------ the library on such clocks


@given(clock_scripts(), WAITS)
def test_hybrid_timestamps_ascend_on_any_clock(script: ClockScript, waits: list[float]) -> None:
    clock = ScriptedClock(ManualClock(1000.0), script)
    hybrid = HybridClock(clock)
    times, refused = [], 0
    for wait in waits:
        clock.truth.advance(wait)
        for _ in range(2):
            try:
                times.append(hybrid.now())
            except ClockJumped:
                refused += 1
    assert all(before < after for before, after in pairwise(times))
    assert not refused or script.events


@given(clock_scripts(), st.lists(st.integers(1, 500), max_size=10))
def test_a_throttle_keeps_its_rate_on_any_clock(script: ClockScript, sizes: list[int]) -> None:
    clock = ScriptedClock(ManualClock(1000.0), script)
    throttle = Throttle(100.0, burst_bytes=10.0, clock=clock)
    for size in sizes:
        throttle.take(size)
    assert clock.monotonic() >= (sum(sizes) - 10) / 100 - 1e-6
