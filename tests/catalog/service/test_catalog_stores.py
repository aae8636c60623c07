# SPDX-License-Identifier: Apache-2.0
"""The catalog over stores that keep their data on disk: whatever was acknowledged is there when it is opened again."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

import pytest

from compactlib.catalog import CatalogService, CreateSchema, HybridClock, LowWatermark, PublishedTimes
from compactlib.catalog.errors import RetriesExhausted
from compactlib.catalog.schema.catalog import Catalog
from compactlib.clock import ManualClock
from compactlib.kv import PostgresStore, SlowDown, SqliteStore
from compactlib.kv.errors import DamagedStore
from compactlib.outcome import Done, Failed, Skipped
from tests.catalog.services import cut, service_in
from tests.harness.catalog_logs import INITIAL, create_table, sound
from tests.harness.kv.postgres_server import postgres


def test_a_catalog_in_sqlite_survives_being_closed(tmp_path: Path) -> None:
    path = tmp_path / "catalog.sqlite"
    known: list[Catalog] = []
    for turn in range(4):
        store = SqliteStore(path)
        service = service_in(store, seed=turn, clock=ManualClock(1000.0 + turn))
        assert list(service.history)[-len(known):] == known[-len(service.history):] or not known
        service.execute(INITIAL if not turn else [create_table(turn), CreateSchema(f"S{turn}")], wait=False)
        outcome = cut(service, service.history.latest, term=turn + 1)
        assert isinstance(outcome, Done if turn else Skipped)
        known = list(service.history)
        LowWatermark(store, "A", HybridClock(ManualClock(1000.0))).advance(100 + turn)
        times = PublishedTimes(store, "A")
        times.register(7, 0, incarnation=1, created_at=1)
        times.publish(7, 0, 1, 50 + turn)
        sound(service)
        store.close()
    store = SqliteStore(path)
    again = service_in(store)
    assert list(again.history) == known
    assert (again.history.earliest, again.history.latest) == (4, 4)
    assert LowWatermark(store, "A", HybridClock(ManualClock(1.0))).value.time == 103
    assert PublishedTimes(store, "A").register(7, 0, incarnation=1, created_at=1) == 53
    store.close()


@pytest.mark.cluster
def test_a_catalog_in_postgresql_is_shared_cut_and_recovered() -> None:
    with postgres() as uri:
        stores = [PostgresStore(uri) for _ in range(2)]
        first, second = (service_in(store, seed=number) for number, store in enumerate(stores))
        first.execute(INITIAL, wait=False)
        threads = [threading.Thread(target=execute_five, args=(service, number))
                   for number, service in enumerate((first, second))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        first.poll()
        assert isinstance(cut(first, 8, term=3), Done)
        second.poll()
        assert isinstance(cut(second, 9, term=2), Failed)
        assert list(first.history) == list(second.history) == list(service_in(stores[0]).history)
        assert (first.history.earliest, first.history.latest) == (8, 11)
        sound(first)
        for store in stores:
            store.close()


def execute_five(service: CatalogService, number: int) -> None:
    left = [f"S{number}-{step}" for step in range(5)]
    while left:
        with contextlib.suppress(RetriesExhausted, SlowDown):
            service.execute([CreateSchema(left[-1])], wait=False)
            left.pop()


def test_two_processes_worth_of_stores_share_one_file(tmp_path: Path) -> None:
    stores = [SqliteStore(tmp_path / "catalog.sqlite") for _ in range(2)]
    services = [service_in(store, seed=number) for number, store in enumerate(stores)]
    services[0].execute(INITIAL, wait=False)
    for number in range(10):
        services[number % 2].execute([CreateSchema(f"S{number}")], wait=False)
    cut(services[1], 6)
    for service in services:
        service.poll()
    assert list(services[0].history) == list(services[1].history)
    assert (services[0].history.earliest, services[0].history.latest) == (6, 11)
    for store in stores:
        store.close()


def test_damage_below_the_log_is_the_store_s_to_name(tmp_path: Path) -> None:
    path = tmp_path / "catalog.sqlite"
    store = SqliteStore(path)
    service_in(store).execute(INITIAL, wait=False)
    store.close()
    for leftover in tmp_path.glob("catalog.sqlite-*"):
        leftover.unlink()
    data = path.read_bytes()
    place = data.index(b'"product"')
    path.write_bytes(data[:place] + b"X" + data[place + 1:])
    store = SqliteStore(path)
    with pytest.raises(DamagedStore):
        service_in(store)
    store.close()
