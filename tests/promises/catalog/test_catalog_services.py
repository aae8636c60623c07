# SPDX-License-Identifier: Apache-2.0
"""The services of a catalog's node: one keeps its view up to date, the other one forgets what has had its time."""

from __future__ import annotations

import threading
from random import Random
from typing import Any

import pytest

from compactlib.catalog import (
    CatalogService,
    CatalogUpkeep,
    CreateSchema,
    HybridClock,
    LogFollower,
    LowWatermark,
    PublishedTimes,
    UpdateLog,
)
from compactlib.clock import ManualClock
from compactlib.kv import KVStore, MemoryStore, StoreFailed
from compactlib.testing import Request, StoreInFront


def service_on(store: KVStore, clock: ManualClock, seed: int) -> CatalogService:
    return CatalogService(UpdateLog(store, rng=Random(seed), clock=clock), HybridClock(clock), delay_seconds=0.5)


class Refusing:
    """A step that refuses each request while it is told to, and notes that it did."""

    def __init__(self) -> None:
        self.refuses, self.has_refused = threading.Event(), threading.Event()

    def __call__(self, request: Request, act: Any) -> Any:
        if self.refuses.is_set():
            self.has_refused.set()
            raise StoreFailed(operation=request.kind, path="a store under test", detail="refused")
        return act()


@pytest.mark.parametrize("is_refused", [False, True])
def test_follower_takes_in_what_others_write(is_refused: bool) -> None:
    """Also once a store that was away for a while is there again."""
    store, clock, refusing = MemoryStore(), ManualClock(1_000.0), Refusing()
    writer, reader = service_on(store, clock, 1), service_on(StoreInFront(store, refusing), clock, 2)
    with LogFollower(reader, interval_seconds=0.001) as follower:
        for number in range(1, 4):
            if is_refused:
                refusing.has_refused.clear()
                refusing.refuses.set()
            writer.execute([CreateSchema(f"S{number}")], wait=False)
            if is_refused:
                follower.nudge()
                assert refusing.has_refused.wait(30)
                assert reader.history.latest == number - 1
                refusing.refuses.clear()
            follower.nudge()
            assert reader.wait_ready(number, 30).version == number
    writer.close()
    reader.close()


def test_upkeep_raises_the_watermark_and_forgets_expired_pins() -> None:
    store, clock = MemoryStore(), ManualClock(1_000_000.0)
    hybrid = HybridClock(clock)
    service = CatalogService(UpdateLog(store, rng=Random(1), clock=clock), hybrid, delay_seconds=0.5)
    service.execute([CreateSchema("S")], wait=False)
    low = LowWatermark(store, "A", hybrid, data_availability_seconds=600.0)
    upkeep = CatalogUpkeep(service, low, published=PublishedTimes(store, "A", clock=clock), interval_seconds=60.0,
                           clock=clock)
    raised = list[int]()
    low.listen(raised.append)
    service.pins.pin("short", 1, service.history, ttl_seconds=100.0)
    service.pins.pin("long", 1, service.history, ttl_seconds=10_000.0)
    seen = list[int]()
    for _ in range(20):
        upkeep.run_pending()
        assert low.value.time is not None
        seen.append(low.value.time)
        clock.advance(60.0)
    assert upkeep.failures == 0
    assert seen == sorted(set(seen)) == raised
    assert {pin.owner for pin in service.pins.all()} == {"long"}
    # What a reader holds is not passed, and the rise comes once it has let go.
    low.lock("reader", seen[-1])
    clock.advance(60.0)
    upkeep.run_pending()
    assert low.value.time == seen[-1]
    low.unlock("reader")
    assert (low.value.time or 0) > seen[-1]
    assert LowWatermark(store, "A", hybrid).value == low.value
    service.close()
