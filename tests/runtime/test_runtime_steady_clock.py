# SPDX-License-Identifier: Apache-2.0
"""A clock that went wrong once freezes nothing, expires nothing and brings nothing back."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

import pytest

from compactlib.clock import ManualClock
from compactlib.errors import ClockJumped, InvalidInput
from compactlib.runtime import Observer, RecordingObserver, SteadyClock
from compactlib.runtime.steady_clock import CLOCK_ACCEPTED, CLOCK_JUMPED

DAY = 86_400.0


def test_an_ordinary_clock_is_passed_on() -> None:
    host = ManualClock(1000)
    clock = SteadyClock(host)
    for seconds in (0, 1, 59, 10 * DAY):
        host.advance(seconds)
        assert clock.now() == clock.steady() == clock.expiry() == host.now()
    clock.sleep(3)
    assert clock.monotonic() == host.monotonic()


@pytest.mark.parametrize("jump", [DAY, -DAY, 61, -61])
def test_a_jump_is_refused_and_forgotten_when_the_clock_is_right_again(jump: float) -> None:
    host, observer = ManualClock(1_000_000), RecordingObserver()
    clock = SteadyClock(host, observer=observer)
    host.set_now(1_000_000 + jump)
    host.advance(5)
    for _ in range(2):
        with pytest.raises(ClockJumped, match=re.escape(f"jumped by {jump:+.1f} seconds")) as raised:
            clock.now()
        assert (raised.value.seconds, raised.value.max_jump_seconds) == (jump, 60)
        assert clock.steady() == clock.expiry() == 1_000_005
    host.set_now(1_000_005)
    assert clock.now() == 1_000_005
    assert [name for name, _ in observer.events] == [CLOCK_JUMPED]
    # Seen again much later, it is a new jump.
    host.advance(100)
    assert clock.now() == 1_000_105
    host.set_now(1_000_105 + jump)
    with pytest.raises(ClockJumped):
        clock.now()


@pytest.mark.parametrize("jump", [DAY, -DAY])
def test_a_jump_that_stays_is_believed_when_it_was_seen_twice(jump: float) -> None:
    host, observer = ManualClock(1_000_000), RecordingObserver()
    clock = SteadyClock(host, observer=observer)
    host.set_now(1_000_000 + jump)
    with pytest.raises(ClockJumped):
        clock.now()
    host.advance(29)
    with pytest.raises(ClockJumped):
        clock.now()
    host.advance(1)
    assert clock.now() == 1_000_030 + jump
    assert clock.expiry() == 1_000_030 + jump
    assert [(name, fields.get("how")) for name, fields in observer.events] == [
        (CLOCK_JUMPED, None), (CLOCK_ACCEPTED, "confirmed")]


def test_a_jump_within_a_jump_begins_the_wait_anew() -> None:
    host = ManualClock(1_000_000)
    clock = SteadyClock(host)
    host.set_now(1_000_000 + DAY)
    assert clock.steady() == 1_000_000
    host.advance(20)
    host.set_now(1_000_020 + 2 * DAY)
    assert clock.steady() == 1_000_020
    host.advance(20)
    with pytest.raises(ClockJumped):
        clock.now()
    host.advance(10)
    assert clock.now() == 1_000_050 + 2 * DAY


def test_an_operator_may_accept_a_jump_at_once() -> None:
    host = ManualClock(1_000_000)
    clock = SteadyClock(host)
    host.set_now(1_000_000 - DAY)
    with pytest.raises(ClockJumped):
        clock.now()
    clock.accept()
    assert clock.now() == 1_000_000 - DAY


def test_after_a_long_stop_new_times_count_at_once_and_expiry_waits() -> None:
    host, observer = ManualClock(1_000_000 + 365 * DAY), RecordingObserver()
    clock = SteadyClock(host, last_known=1_000_000, observer=observer)
    assert clock.now() == host.now()
    assert clock.expiry() == 1_000_000
    assert observer.events == [(CLOCK_ACCEPTED, {"seconds": 365 * DAY, "how": "at opening"})]
    host.advance(30)
    assert clock.expiry() == host.now()


def test_a_clock_that_was_ahead_at_opening_only_has_expired_nothing() -> None:
    host = ManualClock(1_000_000 + DAY)
    clock = SteadyClock(host, last_known=1_000_000)
    assert clock.expiry() == 1_000_000
    host.set_now(1_000_010)
    host.advance(40)
    with pytest.raises(ClockJumped):
        clock.now()
    assert clock.expiry() == 1_000_000
    host.advance(30)
    assert clock.now() == clock.expiry() == 1_000_080


def test_a_step_back_at_opening_brings_nothing_back_before_it_is_confirmed() -> None:
    host = ManualClock(1_000_000 - DAY)
    clock = SteadyClock(host, last_known=1_000_000)
    host.advance(1)
    with pytest.raises(ClockJumped):
        clock.now()
    assert clock.steady() == clock.expiry() == 1_000_001
    host.advance(29)
    assert clock.now() == clock.expiry() == 1_000_030 - DAY


def test_an_observer_that_raises_changes_no_time() -> None:
    told: list[str] = []

    class Raising(Observer):
        def event(self, name: str, fields: Mapping[str, object]) -> None:
            told.append(name)
            raise ZeroDivisionError(name)

    below = ManualClock(1000.0)
    clock = SteadyClock(below, last_known=10.0, max_jump_seconds=60.0, observer=Raising())
    below.set_now(90_000.0)
    assert clock.steady() == 1000.0
    clock.accept()
    assert clock.now() == 90_000.0
    assert told == [CLOCK_ACCEPTED, CLOCK_JUMPED, CLOCK_ACCEPTED]


def test_a_small_step_at_opening_is_none() -> None:
    for step in (-60, 0, 60):
        clock = SteadyClock(ManualClock(1_000_000 + step), last_known=1_000_000)
        assert clock.now() == clock.expiry() == 1_000_000 + step


@pytest.mark.parametrize(("max_jump", "confirm", "last_known"), [
    (0.0, 1.0, None), (math.inf, 1.0, None), (1.0, -1.0, None), (1.0, math.nan, None), (1.0, 1.0, math.nan)])
def test_bounds_are_checked(max_jump: float, confirm: float, last_known: float | None) -> None:
    with pytest.raises(InvalidInput):
        SteadyClock(ManualClock(), max_jump_seconds=max_jump, confirm_seconds=confirm, last_known=last_known)
