# SPDX-License-Identifier: Apache-2.0
"""Computing in Python leaves the interpreter to others now and then."""

from __future__ import annotations

from compactlib.breather import WORK_SECONDS, Breather
from compactlib.clock import ManualClock
from tests.raftlog.store.busy_clock import BusyClock


def test_a_nap_comes_after_each_stretch_of_work() -> None:
    clock = BusyClock(0.0, WORK_SECONDS * 0.3)
    breather = Breather(clock)
    for _ in range(40):
        breather.breathe()
    assert clock.naps == 10


def test_a_clock_that_is_moved_by_hand_sees_no_naps() -> None:
    clock = ManualClock(5.0)
    breather = Breather(clock)
    for _ in range(1000):
        breather.breathe()
    assert clock.now() == 5.0
