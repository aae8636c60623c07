# SPDX-License-Identifier: Apache-2.0
"""`service` and `manager` come through an interrupt at any place."""

from __future__ import annotations

import threading
from typing import Any, cast

from compactlib.budget import Budget
from compactlib.clock import ManualClock
from compactlib.contract import Compaction
from compactlib.manager import CompactionManager, OnRequest, Periodic
from compactlib.service import PeriodicService
from tests.harness.interruptions import interruptions


class Work:
    """Counts its calls."""

    def __init__(self) -> None:
        self.calls = 0
        self.called = threading.Condition()

    def __call__(self, budget: Budget) -> None:
        with self.called:
            self.calls += 1
            self.called.notify_all()

    def wait(self, calls: int) -> None:
        with self.called:
            assert self.called.wait_for(lambda: self.calls >= calls, 60)


class Store:
    """Notes its calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def compact(self, **arguments: Any) -> None:
        self.calls.append("compact")

    def reclaim(self, **arguments: Any) -> None:
        self.calls.append("reclaim")

    def status(self) -> str:
        return "open"


def managing(clock: ManualClock) -> CompactionManager:
    return CompactionManager((Periodic(100.0), OnRequest()), clock=clock)


def test_an_interrupt_at_any_place_loses_no_call() -> None:
    def make(work: Work) -> PeriodicService:
        return PeriodicService(work, name="work", clock=ManualClock())

    def act(service: PeriodicService) -> None:
        service.wake()
        service.run_pending()
        service.stop()

    for interrupted in interruptions(lambda: act(make(Work())), 1000):
        work = Work()
        service = make(work)
        try:
            with interrupted:
                act(service)
        except KeyboardInterrupt:
            pass
        service.stop()
        while service.run_pending():
            pass
        assert work.calls >= 1
        calls = work.calls
        service.start()  # a lock that stayed held would hold it up
        work.wait(calls + 1)
        service.stop()


def test_an_interrupt_at_any_place_ends_no_period() -> None:
    for interrupted in interruptions(PeriodicService(Work(), name="work", every_seconds=100.0,
                                                     clock=ManualClock()).run_pending, 1000):
        work, clock = Work(), ManualClock()
        service = PeriodicService(work, name="work", every_seconds=100.0, clock=clock)
        try:
            with interrupted:
                service.run_pending()
        except KeyboardInterrupt:
            pass
        service.run_pending()
        calls = work.calls
        clock.advance(100.0)
        assert service.run_pending()
        assert work.calls == calls + 1


def test_an_interrupt_while_adding_or_removing_leaves_no_half() -> None:
    def act(manager: CompactionManager) -> None:
        manager.add("store", cast(Compaction, Store()))
        manager.run_pending()
        manager.remove("store")

    for interrupted in interruptions(lambda: act(managing(ManualClock())), 2_000):
        manager = managing(ManualClock())
        try:
            with interrupted:
                act(manager)
        except KeyboardInterrupt:
            pass
        if manager.report().rows:
            manager.remove("store", wait_seconds=0)
        store = Store()
        manager.add("store", cast(Compaction, store))
        manager.run_pending()
        assert store.calls == ["compact", "reclaim"]
