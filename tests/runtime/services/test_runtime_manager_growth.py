# SPDX-License-Identifier: Apache-2.0
"""How the steps of a manager grow with the number of its stores: counted, not timed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from compactlib.clock import ManualClock
from compactlib.runtime import CompactionManager
from compactlib.runtime.services.agenda import Accepted, Removed
from tests.harness.steps import calls_of
from tests.runtime.services.test_runtime_manager import BOTH, FakeStore, add


def add_all(manager: CompactionManager, stores: int, disk: Callable[[int], str]) -> None:
    for number in range(stores):
        add(manager, f"s{number}", FakeStore(), disk=disk(number))


@pytest.mark.parametrize("disk", [lambda number: "d", lambda number: f"d{number}"], ids=["one disk", "own disks"])
@pytest.mark.parametrize("all_at_once", [True, False])
def test_the_life_of_four_times_the_stores_takes_little_more_than_four_times_the_steps(
        disk: Callable[[int], str], *, all_at_once: bool) -> None:
    def life(stores: int) -> None:
        clock = ManualClock()
        manager = CompactionManager(BOTH, clock=clock)
        add_all(manager, stores, disk)
        manager.run_pending()
        for number in range(stores):
            assert isinstance(manager.request(f"s{number}"), Accepted)
            if not all_at_once:
                assert len(manager.run_pending()) == 1
        assert len(manager.run_pending()) == (stores if all_at_once else 0)
        clock.advance(100.0)
        assert len(manager.run_pending()) == stores
        for number in range(stores):
            manager.disable(f"s{number}")
            assert isinstance(manager.remove(f"s{number}"), Removed)

    few, many = (calls_of(partial(life, stores)).total() for stores in (50, 200))
    assert many <= 4.4 * few


def test_a_wait_for_one_of_four_times_the_stores_takes_as_many_steps() -> None:
    def steps(stores: int) -> int:
        manager = CompactionManager((), clock=ManualClock())
        add_all(manager, stores, lambda number: "d")
        with manager:
            manager.wait_until_idle()
            return calls_of(manager.wait_until_idle).total()

    assert steps(200) <= 1.2 * steps(50)
