# SPDX-License-Identifier: Apache-2.0
"""Which kept times are of tables that are gone: as the versions say one by one, and without a look at each."""

from __future__ import annotations

import random

import pytest

from compactlib.catalog import (
    CatalogService,
    Column,
    ColumnType,
    CreateSchema,
    CreateTable,
    CreateZone,
    DropTable,
    PublishedTimes,
)
from compactlib.catalog.log import keys
from compactlib.catalog.schema.versions import RetainedVersions
from compactlib.clock import ManualClock
from compactlib.kv import MemoryStore
from tests.catalog.services import service_in
from tests.harness.steps import calls_of


def with_tables(rng: random.Random, versions: int) -> CatalogService:
    """So many versions, in each of which a table comes or goes."""
    clock = ManualClock(1000.0)
    service = service_in(clock=clock)
    service.execute([CreateSchema("A"), CreateZone("Z")], wait=False)
    there: list[str] = []
    for number in range(versions):
        clock.advance(1.0)
        if there and rng.random() < 0.5:
            service.execute([DropTable(schema="A", name=there.pop(rng.randrange(len(there))))], wait=False)
        else:
            there.append(f"T{number}")
            service.execute([CreateTable(schema="A", name=f"T{number}", zone="Z", primary_key=("ID",),
                                         columns=(Column(name="ID", type=ColumnType.INT64, nullable=False),))],
                            wait=False)
    return service


def published_of(history: RetainedVersions) -> PublishedTimes:
    times = PublishedTimes(MemoryStore(), "A")
    for table in sorted({table for catalog in history for table in catalog.tables} | {10_000}):
        times.register(table, 0, incarnation=1, created_at=1)
    return times


@pytest.mark.parametrize("seed", range(6))
def test_what_can_be_read_no_more_is_what_no_version_has(seed: int) -> None:
    service = with_tables(random.Random(seed), 30)
    whole = service.history
    times = published_of(whole)
    ever = {table for catalog in whole for table in catalog.tables}
    hosted = [table for table, *_ in times.unreadable(whole, whole.activation(whole.latest) + 1)]
    assert hosted
    for version in range(1, whole.latest + 1):
        history = whole.from_version(version)
        for since in (0, *(history.activation(each) + more for each in range(version, whole.latest + 1)
                           for more in (-1, 0, 1))):
            readable = {table for catalog in history for table in catalog.tables
                        if catalog.version == history.latest or history.activation(catalog.version + 1) > since}
            assert {table for table, *_ in times.unreadable(history, since)} == {
                table for table in ever if table not in readable}
        # Kept from another life of the node, which hosts none of them any more.
        kept = {table for catalog in history for table in catalog.tables}
        assert {table for table in ever if times._is_gone(keys.published_key("A", table, 0), history, None)  # noqa: SLF001
                } == ever - kept


def looked_at(times: PublishedTimes, other: PublishedTimes, history: RetainedVersions) -> int:
    return calls_of(lambda: (times.unreadable(history, 0), other.forget_removed(history))).total()


def test_it_takes_as_long_with_eight_times_the_versions() -> None:
    costs = []
    for versions in (50, 400):
        service = with_tables(random.Random(1), versions)
        times = PublishedTimes(MemoryStore(), "A")
        for table in range(2, 22):
            times.register(table, 0, incarnation=1, created_at=1)
        other = PublishedTimes(times._store, "A")  # noqa: SLF001
        other.register(1, 0, incarnation=1, created_at=1)
        costs.append(looked_at(times, other, service.history))
    assert costs[1] <= 1.5 * costs[0]
