# SPDX-License-Identifier: Apache-2.0
"""Commands: what each changes, what each refuses, and catalogs that share what did not change."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import attrs
import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from compactlib.catalog import (
    Column,
    ColumnType,
    CreateIndex,
    CreateSchema,
    CreateTable,
    CreateZone,
    DropSchema,
    DropTable,
    MakeIndexAvailable,
    StartBuildingIndex,
)
from compactlib.catalog.errors import CommandRefused, ObjectNotFound
from compactlib.catalog.schema.catalog import EMPTY, Catalog
from compactlib.catalog.schema.commands import (
    MAX_COMMANDS,
    MAX_NAME,
    AlterZone,
    ChooseDefaultZone,
    Command,
    DropZone,
    plan_update,
)
from compactlib.catalog.schema.descriptors import IndexStatus
from compactlib.catalog.schema.persistent_map import PersistentMap
from compactlib.catalog.schema.table_commands import (
    AddColumns,
    AlterColumn,
    DropColumns,
    DropIndex,
    RemoveIndex,
    RenameTable,
)
from compactlib.errors import InvalidInput
from tests.harness.catalog_logs import ID

NAME = Column(name="NAME", type=ColumnType.STRING, length=100)


def after(catalog: Catalog, *commands: Command) -> Catalog:
    planned = plan_update(catalog, commands)
    version = catalog.version + 1
    made = catalog.apply(planned.changes, version=version, commit=10 * version, activation=10 * version + 5,
                         next_id=planned.next_id)
    made.audit()
    return made


def create_table(**changes: Any) -> CreateTable:
    fields: dict[str, Any] = {"schema": "PUBLIC", "name": "T", "columns": (ID, NAME), "primary_key": ("ID",),
                              "zone": "Z", **changes}
    return CreateTable(**fields)


BASE = after(EMPTY, CreateSchema("PUBLIC"), CreateZone("Z", partitions=4, replicas=3, quorum=2))
WITH_TABLE = after(BASE, create_table())
INDEX = CreateIndex(schema="PUBLIC", table="T", name="I", columns=("NAME",))
WITH_INDEX = after(WITH_TABLE, INDEX)
INDEX_ID = WITH_INDEX.next_id - 1


def refused(catalog: Catalog, *commands: Command) -> str:
    with pytest.raises(CommandRefused) as caught:
        plan_update(catalog, commands)
    assert caught.value.version == catalog.version
    return caught.value.reason


# --- schemas and zones --------------------------------------------------------------------------------------------


def test_schemas_are_created_and_dropped() -> None:
    made = BASE.find_schema("PUBLIC")
    assert made is not None
    assert (made.id, made.created_at, made.updated_at) == (0, 15, 10)
    assert refused(BASE, CreateSchema("PUBLIC")) == "schema 'PUBLIC' exists"
    assert plan_update(BASE, [CreateSchema("PUBLIC", True)]).changes == ()
    assert after(BASE, DropSchema("PUBLIC")).find_schema("PUBLIC") is None
    assert plan_update(BASE, [DropSchema("NONE", True)]).applied == (False,)
    assert refused(BASE, DropSchema("NONE")) == "there is no schema 'NONE'"
    assert "'T' among them" in refused(WITH_TABLE, DropSchema("PUBLIC"))


@pytest.mark.parametrize("name", ["", "x" * (MAX_NAME + 1), "line\nend", "\x00", 7])
def test_a_name_that_is_none_is_refused(name: Any) -> None:
    assert "is no name" in refused(BASE, CreateSchema(name))


def test_zones_are_altered_renamed_and_dropped() -> None:
    altered = after(BASE, AlterZone("Z", new_name="Y", replicas=5, quorum=3, node_filter="ssd", scale_up_seconds=9))
    zone = altered.find_zone("Y")
    assert zone is not None
    assert (zone.partitions, zone.replicas, zone.quorum, zone.node_filter, zone.updated_at) == (4, 5, 3, "ssd", 20)
    assert zone.created_at == 15
    assert altered.find_zone("Z") is None
    assert plan_update(BASE, [AlterZone("Z", replicas=3)]).changes == ()
    assert refused(BASE, AlterZone("NONE")) == "there is no zone 'NONE'"
    assert refused(BASE, CreateZone("Y"), AlterZone("Z", new_name="Y")) == "zone 'Y' exists"
    assert refused(BASE, AlterZone("Z", partitions=3)) == "4 partitions cannot become 3"
    assert after(BASE, DropZone("Z")).find_zone("Z") is None
    assert "'T' among them" in refused(WITH_TABLE, DropZone("Z"))
    assert refused(BASE, DropZone("NONE")) == "there is no zone 'NONE'"
    assert plan_update(BASE, [DropZone("NONE", True), CreateZone("Z", if_not_exists=True)]).applied == (False, False)
    assert refused(BASE, CreateZone("Z")) == "zone 'Z' exists"


@pytest.mark.parametrize("fields", [
    {"partitions": 0}, {"partitions": 65_001}, {"replicas": 0}, {"replicas": 1001}, {"quorum": 0},
    {"replicas": 3, "quorum": 4}, {"scale_up_seconds": -1}, {"scale_down_seconds": -1}, {"storage_profiles": ()},
])
def test_a_zone_that_cannot_be_is_refused(fields: dict[str, Any]) -> None:
    assert refused(BASE, CreateZone("Y", **fields))


def test_the_default_zone_takes_tables_that_name_none() -> None:
    assert refused(BASE, create_table(zone="")) == "there is no default zone"
    chosen = after(BASE, ChooseDefaultZone("Z"))
    assert plan_update(chosen, [ChooseDefaultZone("Z")]).applied == (False,)
    table = after(chosen, create_table(zone="")).find_table("PUBLIC", "T")
    assert table is not None
    assert table.zone_id == chosen.default_zone
    assert "default zone" in refused(chosen, DropZone("Z"))


# --- tables -------------------------------------------------------------------------------------------------------


def test_a_table_comes_with_the_index_of_its_key() -> None:
    table = WITH_TABLE.find_table("PUBLIC", "T")
    primary = WITH_TABLE.find_index("PUBLIC", "T_PK")
    assert table is not None
    assert primary is not None
    assert (primary.status, primary.columns, primary.id) == (IndexStatus.AVAILABLE, ("ID",), table.primary_index_id)
    assert (table.created_at, WITH_TABLE.zones.get(table.zone_id)) == (25, WITH_TABLE.find_zone("Z"))
    assert table.column("NAME") == NAME
    assert WITH_TABLE.building.get(primary.id) is None


@pytest.mark.parametrize(("changes", "reason"), [
    ({"schema": "NONE"}, "there is no schema 'NONE'"), ({"zone": "NONE"}, "there is no zone 'NONE'"),
    ({"columns": ()}, "0 columns"), ({"columns": (ID, ID)}, "two columns have one name"),
    ({"columns": (attrs.evolve(ID, name=""),)}, "is no name"), ({"primary_key": ()}, "columns are to be named"),
    ({"primary_key": ("ID", "ID")}, "each once"), ({"primary_key": ("NONE",)}, "no column 'NONE'"),
    ({"primary_key": ("NAME",)}, "nullable"), ({"name": ""}, "is no name"), ({"name": "x" * MAX_NAME}, "is no name"),
])
def test_a_table_that_cannot_be_is_refused(changes: dict[str, Any], reason: str) -> None:
    assert reason in refused(BASE, create_table(**changes))


def test_tables_and_indexes_share_the_names_of_a_schema() -> None:
    assert "exists" in refused(WITH_TABLE, create_table())
    assert "exists" in refused(WITH_INDEX, create_table(name="I"))
    assert "exists" in refused(WITH_TABLE, create_table(name="T_PK"))
    assert "exists" in refused(WITH_TABLE, attrs.evolve(INDEX, name="T"))
    assert plan_update(WITH_TABLE, [create_table(if_not_exists=True)]).applied == (False,)
    other = after(WITH_TABLE, CreateSchema("OTHER"), create_table(schema="OTHER"))
    assert other.find_table("OTHER", "T") != other.find_table("PUBLIC", "T")


def test_a_dropped_table_takes_its_indexes_along() -> None:
    dropped = after(WITH_INDEX, DropTable(schema="PUBLIC", name="T"))
    assert (len(dropped.tables), len(dropped.indexes), len(dropped.building), len(dropped.tables_in)) == (0, 0, 0, 0)
    assert refused(dropped, DropTable(schema="PUBLIC", name="T")) == "there is no table PUBLIC.T"
    assert plan_update(dropped, [DropTable(schema="PUBLIC", name="T", if_exists=True)]).applied == (False,)
    assert after(dropped, create_table()).find_table("PUBLIC", "T") != WITH_INDEX.find_table("PUBLIC", "T")


def test_a_table_is_renamed() -> None:
    renamed = after(WITH_TABLE, RenameTable(schema="PUBLIC", name="T", new_name="U"))
    assert renamed.find_table("PUBLIC", "T") is None
    assert renamed.find_table("PUBLIC", "U") is not None
    assert plan_update(WITH_TABLE, [RenameTable(schema="PUBLIC", name="T", new_name="T")]).changes == ()
    assert "exists" in refused(WITH_TABLE, RenameTable(schema="PUBLIC", name="T", new_name="T_PK"))


def test_a_renamed_table_leaves_its_name_and_its_index_s_to_a_new_one() -> None:
    rename = RenameTable(schema="PUBLIC", name="T", new_name="U")
    both = after(WITH_TABLE, rename, create_table())
    both.audit()
    for name in ("T", "U"):
        table, index = both.find_table("PUBLIC", name), both.find_index("PUBLIC", f"{name}_PK")
        assert table is not None
        assert index is not None
        assert (table.primary_index_id, index.table_id) == (index.id, table.id)
    taken = after(WITH_TABLE, create_table(name="U_PK"))
    assert refused(taken, rename) == "PUBLIC.U_PK exists"


def columns_of(catalog: Catalog) -> list[str]:
    table = catalog.find_table("PUBLIC", "T")
    assert table is not None
    return [column.name for column in table.columns]


def test_columns_are_added_altered_and_dropped() -> None:
    place: dict[str, Any] = {"schema": "PUBLIC", "table": "T"}
    more = Column(name="AGE", type=ColumnType.INT8)
    added = after(WITH_TABLE, AddColumns(**place, columns=(more,)))
    assert columns_of(added) == ["ID", "NAME", "AGE"]
    assert "exists" in refused(added, AddColumns(**place, columns=(more,)))
    assert plan_update(added, [AddColumns(**place, columns=())]).applied == (False,)
    wider = after(added, AlterColumn(**place, column=attrs.evolve(more, type=ColumnType.INT32)))
    assert plan_update(wider, [AlterColumn(**place, column=attrs.evolve(more, type=ColumnType.INT32))]).changes == ()
    assert "cannot be nullable" in refused(added, AlterColumn(**place, column=attrs.evolve(ID, nullable=True)))
    assert columns_of(after(wider, DropColumns(**place, columns=("AGE",)))) == ["ID", "NAME"]
    assert "belongs to index 'T_PK'" in refused(wider, DropColumns(**place, columns=("AGE", "ID")))
    assert "belongs to index 'I'" in refused(WITH_INDEX, DropColumns(**place, columns=("NAME",)))
    assert "no column 'NONE'" in refused(wider, DropColumns(**place, columns=("NONE",)))
    assert "no table" in refused(BASE, AddColumns(**place, columns=(more,)))


def test_an_index_lives_through_its_states() -> None:
    assert (WITH_INDEX.index(INDEX_ID).status, dict(WITH_INDEX.building.items())) == (
        IndexStatus.REGISTERED, {INDEX_ID: WITH_INDEX.index(INDEX_ID).table_id})
    building = after(WITH_INDEX, StartBuildingIndex(INDEX_ID))
    assert len(building.building) == 1
    available = after(building, MakeIndexAvailable(INDEX_ID))
    assert len(available.building) == 0
    stopping = after(available, DropIndex(schema="PUBLIC", name="I"))
    assert stopping.index(INDEX_ID).status is IndexStatus.STOPPING
    gone = after(stopping, RemoveIndex(INDEX_ID))
    with pytest.raises(ObjectNotFound):
        gone.index(INDEX_ID)
    for catalog in (WITH_INDEX, building):
        assert len(after(catalog, DropIndex(schema="PUBLIC", name="I")).building) == 0
    for catalog, command in ((building, StartBuildingIndex(INDEX_ID)), (WITH_INDEX, MakeIndexAvailable(INDEX_ID)),
                             (available, RemoveIndex(INDEX_ID)), (stopping, DropIndex(schema="PUBLIC", name="I"))):
        assert refused(catalog, command)
    assert refused(gone, StartBuildingIndex(INDEX_ID)) == f"there is no index of id {INDEX_ID}"
    assert "none of this id" in refused(gone, RemoveIndex(INDEX_ID))
    assert "primary key" in refused(gone, DropIndex(schema="PUBLIC", name="T_PK"))
    assert "no index PUBLIC.I" in refused(gone, DropIndex(schema="PUBLIC", name="I"))
    assert plan_update(gone, [DropIndex(schema="PUBLIC", name="I", if_exists=True)]).applied == (False,)
    assert plan_update(WITH_INDEX, [attrs.evolve(INDEX, if_not_exists=True)]).applied == (False,)


@pytest.mark.parametrize("before", [EMPTY, BASE], ids=["the first version", "a later one"])
def test_what_a_batch_makes_and_changes_is_as_new_as_its_version(before: Catalog) -> None:
    more = AddColumns(schema="S", table="T", columns=(attrs.evolve(NAME, name="B"),))
    made = after(before, CreateSchema("S"), CreateZone("Y"), AlterZone("Y", partitions=30),
                 create_table(schema="S", zone="Y"), more, attrs.evolve(INDEX, schema="S", table="T"),
                 StartBuildingIndex(before.next_id + 4))
    new = [one for one in made.descriptors() if one.id >= before.next_id]
    assert len(new) == 5
    assert {(one.created_at, one.updated_at) for one in new} == {(made.activation, made.commit)}
    altered = after(made, RenameTable(schema="S", name="T", new_name="U"))
    assert [one.created_at for one in altered.descriptors()] == [one.created_at for one in made.descriptors()]


def test_a_batch_that_is_too_long_is_refused() -> None:
    with pytest.raises(InvalidInput, match="split it"):
        plan_update(BASE, [CreateSchema("PUBLIC", True)] * (MAX_COMMANDS + 1))


def test_what_is_not_there_is_named() -> None:
    for call in (lambda: EMPTY.table(7), lambda: EMPTY.index(7)):
        with pytest.raises(ObjectNotFound) as caught:
            call()
        assert (caught.value.key, caught.value.version) == ("7", 0)


# --- catalogs and maps --------------------------------------------------------------------------------------------


def test_a_catalog_shares_what_did_not_change_and_pickles() -> None:
    assert WITH_INDEX.zones is WITH_TABLE.zones
    assert WITH_INDEX.tables is WITH_TABLE.tables
    assert pickle.loads(pickle.dumps(WITH_INDEX)) == WITH_INDEX
    assert hash(WITH_INDEX.tables) == hash(PersistentMap.of(dict(WITH_INDEX.tables.items())))
    assert WITH_INDEX != WITH_TABLE


KEYS = st.integers(0, 40) | st.sampled_from([1 << 20, (1 << 20) + 16, 1 << 62])


class MapMachine(RuleBasedStateMachine):
    """A persistent map beside a dict, and every map that there ever was."""

    def __init__(self) -> None:
        super().__init__()
        self.now: PersistentMap[int, int] = PersistentMap()
        self.model: dict[int, int] = {}
        self.kept: list[tuple[PersistentMap[int, int], dict[int, int]]] = []

    @rule(key=KEYS, value=st.integers(0, 9))
    def put(self, key: int, value: int) -> None:
        self.kept.append((self.now, dict(self.model)))
        self.now = self.now.with_entry(key, value)
        self.model[key] = value

    @rule(key=KEYS)
    def remove(self, key: int) -> None:
        self.kept.append((self.now, dict(self.model)))
        self.now = self.now.without(key)
        self.model.pop(key, None)

    @invariant()
    def all_maps_are_what_they_were(self) -> None:
        for found, model in [(self.now, self.model), *self.kept[-5:]]:
            assert dict(found.items()) == model
            assert len(found) == len(model)
            assert sorted(found) == sorted(model)
            assert sorted(found.values()) == sorted(model.values())
        # The order follows from the entries, not from how the map came about.
        assert list(self.now) == list(PersistentMap.of(self.model))
        assert self.now == PersistentMap.of(self.model)


TestMap = MapMachine.TestCase
TestMap.settings = settings(max_examples=25, stateful_step_count=40, deadline=None)


def test_names_with_one_hash_live_side_by_side() -> None:
    same: Sequence[str] = ("plumless", "buckeroo")  # one CRC-32
    both = PersistentMap.of({same[0]: 1, same[1]: 2})
    assert (both.get(same[0]), both.get(same[1]), len(both)) == (1, 2, 2)
    assert both.without(same[0]) == PersistentMap.of({same[1]: 2})
    assert both.without(same[0]).get(same[0]) is None
    assert repr(both) == "PersistentMap(2 entries)"
    assert both != {same[0]: 1}
