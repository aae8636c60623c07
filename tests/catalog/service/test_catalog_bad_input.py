# SPDX-License-Identifier: Apache-2.0
"""Names with every character and numbers of every kind: a named error or it works, and the catalog opens afterwards."""

from __future__ import annotations

import contextlib
import string
from collections.abc import Callable
from typing import Any

import pytest

from compactlib.catalog import (
    CatalogService,
    CreateSchema,
    CreateZone,
    HybridClock,
    LogFollower,
    LowWatermark,
    PublishedTimes,
    UpdateLog,
)
from compactlib.catalog.sense.pins import Pins
from compactlib.clock import ManualClock
from compactlib.errors import CompactlibError
from compactlib.kv import KVStore, MemoryStore
from tests.catalog.services import cut, service_in
from tests.harness.catalog_logs import sound

NAMES: list[Any] = ["".join(string.printable), *string.punctuation, "\0", "\ud800", "é", "😀", "a/b", "..", "%2F",
                    "x" * 100_000, "", None, 5, b"x", 1.5, []]
NUMBERS: list[Any] = [-1, 2**63, 2**64, float("nan"), float("inf"), 1e300, 1.5]


def works_or_is_named(*calls: Callable[[], object]) -> None:
    for call in calls:
        with contextlib.suppress(CompactlibError):
            call()


@pytest.mark.parametrize("name", NAMES, ids=lambda name: ascii(name)[:12])
def test_names(name: Any) -> None:
    store: KVStore = MemoryStore()
    service = service_in(store, delay_seconds=0)
    service.execute([CreateSchema("PUBLIC")], wait=False)
    pins = Pins(service.log, service.clock)
    works_or_is_named(
        lambda: pins.pin(name, 1, service.history, ttl_seconds=50), lambda: pins.renew(name, ttl_seconds=50),
        lambda: LowWatermark(store, name, service.clock).advance(5),
        lambda: PublishedTimes(store, name).register(1, 1, incarnation=1, created_at=1),
        lambda: service.execute([CreateSchema(name)], wait=False),
        lambda: service.execute([CreateZone(name, partitions=3)], wait=False))
    again = service_in(store, seed=2)
    sound(again)
    assert list(again.history) == list(service.history)
    held = Pins(again.log, again.clock).all()
    assert [pin.owner for pin in held] == ([name] if held else [])
    works_or_is_named(lambda: pins.release(name))


@pytest.mark.parametrize("number", NUMBERS, ids=repr)
def test_numbers(number: Any) -> None:
    store: KVStore = MemoryStore()
    clock = ManualClock(1000.0)
    service = service_in(store, clock=clock, delay_seconds=0)
    service.execute([CreateSchema("PUBLIC")], wait=False)
    pins, low = Pins(service.log, service.clock), LowWatermark(store, "A", service.clock)
    times = PublishedTimes(store, "A")
    works_or_is_named(
        lambda: service.execute(number, wait=False), lambda: service.execute([number], wait=False),
        lambda: service.execute([CreateSchema("S")], delay_seconds=number, wait=False),
        lambda: service.catalog(number), lambda: service.at(number), lambda: cut(service, number),
        lambda: service.wait_ready(number, 0), lambda: service.wait_ready(1, number),
        lambda: pins.pin("o", number, service.history, ttl_seconds=5),
        lambda: pins.pin("o", 1, service.history, ttl_seconds=number), lambda: pins.renew("o", ttl_seconds=number),
        lambda: low.advance(number), lambda: low.lock("r", number), lambda: service.clock.observe(number),
        lambda: times.register(number, 1, incarnation=1, created_at=1),
        lambda: times.register(1, number, incarnation=1, created_at=1),
        lambda: times.register(1, 1, incarnation=number, created_at=1),
        lambda: times.register(1, 1, incarnation=1, created_at=number),
        lambda: times.register(1, 2, incarnation=1, created_at=1, flushed_index=number),
        lambda: HybridClock(clock, max_skew_seconds=number), lambda: UpdateLog(store, chunk_bytes=number),
        lambda: UpdateLog(store, max_record_bytes=number),
        lambda: CatalogService(service.log, service.clock, delay_seconds=number),
        lambda: LogFollower(service, interval_seconds=number))
    again = service_in(store, clock=clock, seed=2)
    sound(again)
    assert again.history.latest >= 1


def test_a_batch_beyond_every_limit_is_named_and_changes_nothing() -> None:
    service = service_in(delay_seconds=0)
    works_or_is_named(lambda: service.execute([CreateSchema("x" * (70 << 20))], wait=False))
    assert service.execute([CreateSchema("PUBLIC")], wait=False).version == service.history.latest
    sound(service)
