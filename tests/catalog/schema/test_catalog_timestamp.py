# SPDX-License-Identifier: Apache-2.0
"""Hybrid timestamps: their order and their bytes, and the clock that gives them."""

from __future__ import annotations

import threading

import pytest

from compactlib.catalog import HybridClock
from compactlib.catalog.errors import ClockSkewExceeded
from compactlib.catalog.model.timestamp import (
    HIGHEST,
    add_ms,
    ensured_activation,
    from_seconds,
    logical,
    milliseconds,
    physical_ms,
    round_up,
    show,
    timestamp,
    to_seconds,
)
from compactlib.clock import ManualClock
from compactlib.errors import InvalidInput


def test_activation_and_ensured_activation() -> None:
    activation = add_ms(timestamp(1000, 5), 500)
    assert activation == 98304005 == timestamp(1500, 5)
    assert ensured_activation(activation, max_skew_ms=500) == 131137536 == timestamp(2001, 0)
    even = add_ms(timestamp(1000), 500)
    assert (even, ensured_activation(even, max_skew_ms=500)) == (98304000, 131072000)
    assert timestamp(2000) == 131072000


def test_parts_and_seconds() -> None:
    time = timestamp(1500, 7)
    assert (physical_ms(time), logical(time), to_seconds(time)) == (1500, 7, 1.5)
    assert from_seconds(1.5) == timestamp(1500)
    assert from_seconds(0) == 1 == timestamp(0, 1)
    assert round_up(time) == timestamp(1501)
    assert round_up(timestamp(1500)) == timestamp(1500)
    assert (show(time), show(timestamp(1500))) == ("1500+7", "1500")


@pytest.mark.parametrize("call", [
    lambda: timestamp(0, 0), lambda: timestamp(-1, 0), lambda: timestamp(1, 65536), lambda: timestamp(1, -1),
    lambda: timestamp(1 << 47), lambda: add_ms(timestamp(1), -2), lambda: add_ms(HIGHEST, 1),
    lambda: from_seconds(-1), lambda: from_seconds(float("inf")), lambda: from_seconds(float("nan")),
    lambda: from_seconds(10**400), lambda: from_seconds(1e308), lambda: milliseconds(1e308, name="delay_seconds"),
    lambda: milliseconds(-0.1, name="delay_seconds"), lambda: milliseconds(float("nan"), name="delay_seconds"),
    lambda: HybridClock(ManualClock(), max_skew_seconds=-1),
])
def test_what_is_no_time_is_refused(call: object) -> None:
    assert callable(call)
    with pytest.raises(InvalidInput):
        call()


def test_durations_are_rounded_up() -> None:
    assert [milliseconds(one, name="x") for one in (0, 0.5, 0.0001, 0.3, 1.0)] == [0, 500, 1, 300, 1000]


def test_the_clock_ascends_strictly_while_the_wall_clock_stands_or_jumps_back() -> None:
    wall = ManualClock(10.0)
    clock = HybridClock(wall)
    times = [clock.now() for _ in range(3)]
    assert times == [timestamp(10_000, step) for step in range(3)]
    wall.set_now(5.0)
    assert clock.now() == timestamp(10_000, 3)
    wall.set_now(10.002)
    assert clock.now() == timestamp(10_002)
    assert HybridClock(ManualClock(0)).now() == 1


def test_the_counter_carries_into_the_milliseconds() -> None:
    clock = HybridClock(ManualClock(10.0))
    clock.observe(timestamp(10_000, 65_535))
    assert clock.now() == timestamp(10_001, 1)


def test_what_was_observed_is_never_fallen_behind() -> None:
    clock = HybridClock(ManualClock(10.0))
    seen = timestamp(10_400, 9)
    assert clock.observe(seen) == timestamp(10_400, 10)
    assert clock.observe(timestamp(9_000)) == timestamp(10_400, 11)


def test_a_time_too_far_ahead_is_refused_and_the_clock_stays() -> None:
    clock = HybridClock(ManualClock(10.0), max_skew_seconds=0.5)
    clock.observe(timestamp(10_500))
    with pytest.raises(ClockSkewExceeded) as caught:
        clock.observe(timestamp(10_501))
    assert (caught.value.ahead_ms, caught.value.limit_ms) == (501, 500)
    assert clock.now() == timestamp(10_500, 2)
    with pytest.raises(InvalidInput):
        clock.observe(0)


def test_waiting_ends_when_the_wall_clock_is_there() -> None:
    wall = ManualClock(10.0)
    clock = HybridClock(wall)
    clock.wait_until(timestamp(12_500))
    assert wall.now() == 12.5
    clock.wait_until(timestamp(11_000))
    assert wall.now() == 12.5


def test_threads_never_get_one_time_twice() -> None:
    clock = HybridClock(ManualClock(10.0))
    found: list[list[int]] = [[] for _ in range(4)]

    def take(into: list[int]) -> None:
        into.extend(clock.now() for _ in range(2000))

    threads = [threading.Thread(target=take, args=(into,)) for into in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    everything = [time for one in found for time in one]
    assert len(set(everything)) == 8000
    assert all(one == sorted(one) for one in found)
