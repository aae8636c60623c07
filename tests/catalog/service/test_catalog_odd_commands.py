# SPDX-License-Identifier: Apache-2.0
"""Commands with fields of any kind: refused by name, or carried out and read back as they were."""

from __future__ import annotations

import random
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import attrs
import pytest

from compactlib.catalog import (
    CatalogService,
    Column,
    ColumnType,
    CreateSchema,
    CreateTable,
    CreateZone,
    HybridClock,
    UpdateLog,
)
from compactlib.catalog.schema import commands, table_commands
from compactlib.clock import ManualClock
from compactlib.errors import CompactlibError, InvalidInput
from compactlib.kv import MemoryStore
from tests.harness.effort import Effort

KEY = Column(name="ID", type=ColumnType.INT64, nullable=False)
COMMANDS: Sequence[Any] = [value for module in (commands, table_commands) for value in vars(module).values()
                           if isinstance(value, type) and value.__module__ == module.__name__
                           and attrs.has(value) and callable(getattr(value, "changes", None))]
LIKELY = ("A", "T", "X", "ID", "Z", 1, 2, 3, True, ("ID",), ["X"], (KEY,))
ODD = (False, 0, -1, 2.0, 2.5, float("nan"), float("inf"), 1 << 64, 10 ** 400, None, "", "\x00", "\ud800",
       "a" * 256, b"A", ["A"], {"A"}, {"A": 1}, (), (1,), (None,), Decimal(1), ColumnType.INT64, KEY, object())


def opened(store: MemoryStore) -> CatalogService:
    clock = ManualClock(1000.0)
    return CatalogService(UpdateLog(store, clock=clock), HybridClock(clock), delay_seconds=0)


def with_a_table(store: MemoryStore) -> CatalogService:
    service = opened(store)
    columns = (KEY, Column(name="X", type=ColumnType.STRING))
    service.execute([CreateSchema("A"), CreateZone("Z", partitions=2),
                     CreateTable(schema="A", name="T", zone="Z", primary_key=("ID",), columns=columns)], wait=False)
    return service


def read_back(service: CatalogService, store: MemoryStore) -> None:
    again = opened(store)
    now, then = (each.catalog(each.history.latest) for each in (again, service))
    assert now == then
    assert now.descriptors() == then.descriptors()
    now.audit()
    assert again.verify().is_sound


def drawn(rng: random.Random) -> Any:
    """A command, or `None`: its fields were refused."""
    kind = rng.choice(COMMANDS)
    try:
        if rng.random() < 0.3:
            odd: dict[str, Any] = {rng.choice(("nullable", "default", "length")): rng.choice(ODD[:-1])}
            column = Column(name=rng.choice("XYV"), type=ColumnType.STRING, **odd)
            return table_commands.AddColumns(schema="A", table="T", columns=(column,))
        return kind(**{field.name: rng.choice(LIKELY if rng.random() < 0.8 else ODD) for field in attrs.fields(kind)
                       if field.default is attrs.NOTHING or rng.random() < 0.4})
    except CompactlibError:
        return None


def test_what_a_command_holds_is_refused_or_read_back(effort: Effort) -> None:
    for seed in range(effort(30, 5_000)):
        rng, store = random.Random(seed), MemoryStore()
        service = with_a_table(store)
        for _ in range(20):
            batch = [made for made in (drawn(rng) for _ in range(rng.randint(1, 2))) if made is not None]
            try:
                service.execute(batch, wait=False)
            except CompactlibError as error:
                assert str(error)
            except Exception as error:
                raise AssertionError(f"seed {seed}: {batch} raised {error!r}") from error
        if any(column.default != column.default for table in service.catalog(service.history.latest).tables.values()
               for column in table.columns):
            continue  # what is no number equals nothing
        try:
            read_back(service, store)
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error


@pytest.mark.parametrize("profiles", ["ssd", 5, ("ssd", 1)])
def test_a_zone_that_could_not_be_read_back_is_refused(profiles: Any) -> None:
    store = MemoryStore()
    service = with_a_table(store)
    with pytest.raises(InvalidInput, match="storage_profiles of a Zone is"):
        service.execute([CreateZone("Y", storage_profiles=profiles)], wait=False)
    read_back(service, store)


def test_lists_are_read_back_as_they_were() -> None:
    store = MemoryStore()
    service = with_a_table(store)
    columns: Any = [KEY]
    key: Any = ["ID"]
    service.execute([CreateTable(schema="A", name="U", columns=columns, primary_key=key, zone="Z")], wait=False)
    read_back(service, store)
