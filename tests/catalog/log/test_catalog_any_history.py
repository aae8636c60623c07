# SPDX-License-Identifier: Apache-2.0
"""Any history of all commands, cut and opened anywhere, is the same for who lived through it and for who replays it."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable

import pytest

from compactlib.catalog import (
    CatalogService,
    Column,
    ColumnType,
    CreateIndex,
    CreateSchema,
    CreateTable,
    CreateZone,
    DropSchema,
    DropTable,
    HybridClock,
    MakeIndexAvailable,
    StartBuildingIndex,
)
from compactlib.catalog.errors import CommandRefused
from compactlib.catalog.log import recover
from compactlib.catalog.schema.catalog import EMPTY, Catalog
from compactlib.catalog.schema.commands import AlterZone, ChooseDefaultZone, Command, DropZone
from compactlib.catalog.schema.table_commands import (
    AddColumns,
    AlterColumn,
    DropColumns,
    DropIndex,
    RemoveIndex,
    RenameTable,
)
from compactlib.clock import ManualClock
from compactlib.kv import MemoryStore
from tests.harness.catalog_logs import log_in
from tests.harness.effort import Effort

SCHEMAS, TABLES, ZONES, INDEXES, COLUMNS = "AB", "ABCD", "XYZ", "IJKLM", "STUVW"


def any_command(rng: random.Random, catalog: Catalog) -> Command:
    """A command that often fits: there are few names, and half of them are for indexes."""
    schema, table, zone, index = (rng.choice(names) for names in (SCHEMAS, TABLES, ZONES, INDEXES))
    column = Column(name=rng.choice(COLUMNS), type=rng.choice((ColumnType.INT32, ColumnType.INT64)))
    key = Column(name="ID", type=ColumnType.INT64, nullable=False)
    index_id = rng.choice([one.id for one in catalog.indexes.values()] or [0])
    makers: list[Callable[[], Command]] = [
        lambda: CreateSchema(schema), lambda: CreateSchema(schema, if_not_exists=True),
        lambda: CreateZone(zone, partitions=rng.randint(1, 3)), lambda: AlterZone(zone, partitions=rng.randint(1, 4)),
        lambda: AlterZone(zone, new_name=rng.choice(ZONES)), lambda: DropZone(zone), lambda: ChooseDefaultZone(zone),
        lambda: CreateTable(schema=schema, name=table, columns=(key, column), primary_key=("ID",), zone=zone),
        lambda: CreateTable(schema=schema, name=table, columns=(key,), primary_key=("ID",)),
        lambda: DropTable(schema=schema, name=table),
        lambda: RenameTable(schema=schema, name=table, new_name=rng.choice(TABLES)),
        lambda: AddColumns(schema=schema, table=table, columns=(column,)),
        lambda: DropColumns(schema=schema, table=table, columns=(column.name,)),
        lambda: AlterColumn(schema=schema, table=table, column=column), lambda: StartBuildingIndex(index_id),
        lambda: MakeIndexAvailable(index_id), lambda: DropIndex(schema=schema, name=index),
        lambda: RemoveIndex(index_id)]
    makers += [lambda: CreateIndex(schema=schema, table=table, name=index, columns=("ID",))] * 5
    return DropSchema(schema) if rng.random() < 0.01 else rng.choice(makers)()


def live(seed: int) -> int:
    """One life; how many versions it has."""
    rng = random.Random(seed)
    clock, store = ManualClock(1000.0), MemoryStore(page_size=rng.choice((1, 3, 1000)))
    chunk_bytes = rng.choice((1024, 1 << 18))

    def opened(number: int) -> CatalogService:
        return CatalogService(log_in(store, seed=number, chunk_bytes=chunk_bytes), HybridClock(clock))

    service, known = opened(0), {0: EMPTY}
    for number in range(1, 200):
        latest = service.history.catalog(service.history.latest)
        with contextlib.suppress(CommandRefused):
            service.execute([any_command(rng, latest) for _ in range(rng.choice((1, 1, 1, 2, 4)))], wait=False)
        clock.advance(rng.random())
        latest = service.history.catalog(service.history.latest)
        known[latest.version] = latest
        if rng.random() < 0.06 and latest.version:
            service.log.save_snapshot(known[rng.randint(service.history.earliest, latest.version)])
            service.poll()
        if rng.random() < 0.1:
            another = opened(number)
            assert (another.history.earliest, another.history.latest) == (service.history.earliest, latest.version)
            versions = list(range(another.history.earliest, latest.version + 1))
            for version in rng.sample(versions, len(versions)):
                assert another.history.catalog(version) == known[version], f"version {version} at step {number}"
                another.history.catalog(version).audit()
            assert another.verify().is_sound
            service = rng.choice((service, another))
    return service.history.latest


@pytest.mark.parametrize("updates_between", [1, 3, 1000])
def test_any_history_is_the_same_however_it_came_about(updates_between: int, effort: Effort,
                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recover, "UPDATES_BETWEEN", updates_between)
    assert sum(map(live, range(effort(8, 1_000)))) > 100
