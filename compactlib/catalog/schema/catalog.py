# SPDX-License-Identifier: Apache-2.0
"""`Catalog`: one immutable version of the whole schema. The next version shares everything that did not change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, TypeAlias, TypeVar

import attrs

from compactlib.catalog.errors import ObjectNotFound
from compactlib.catalog.model.timestamp import LOWEST, Timestamp
from compactlib.catalog.schema.descriptors import Descriptor, Index, Schema, Table, Zone
from compactlib.catalog.schema.persistent_map import GrowingMap, PersistentMap
from compactlib.errors import AuditFailed

KINDS: dict[type[Descriptor], str] = {Schema: "schema", Zone: "zone", Table: "table", Index: "index"}
"""The kinds of objects, each with its name, in the order in which one refers to another."""
_MAPS = ("schemas", "zones", "tables", "indexes", "names", "indexes_of", "tables_in", "tables_of", "building")
_DescriptorT = TypeVar("_DescriptorT", bound=Descriptor)


@attrs.frozen
class PutObject:
    """A change: this descriptor is new, or takes the place of the one with its id."""

    descriptor: Descriptor


@attrs.frozen
class DropObject:
    """A change: the object of this kind (`"schema"`, `"zone"`, `"table"`, `"index"`) and id is gone."""

    kind: str
    id: int


@attrs.frozen
class SetDefaultZone:
    """A change: tables that name no zone go into this one from now on; `None`: there is none."""

    zone_id: int | None


Change: TypeAlias = PutObject | DropObject | SetDefaultZone
"""One change of an update. An update is a list of them, applied together as one version."""


@attrs.frozen(kw_only=True, repr=False)
class Catalog:
    """One version of the schema.

    Attributes:
        version: its number.
        commit: when it was appended to the log.
        activation: from when on it is in force, >= `commit`.
        next_id: the id that the next new object gets.
        default_zone: id of the zone for tables that name none.
        schemas, zones, tables, indexes: by id.
        names: id by qualified name.
        indexes_of: ids of the indexes of each table, by table id.
        tables_in: how many tables each zone has, by zone id; zones without tables are left out.
        tables_of: the same of each schema.
        building: ids of the indexes that are registered or building, each to its table's id.
    """

    version: int
    commit: Timestamp
    activation: Timestamp
    next_id: int = 0
    default_zone: int | None = None
    schemas: PersistentMap[int, Schema] = attrs.field(factory=PersistentMap)
    zones: PersistentMap[int, Zone] = attrs.field(factory=PersistentMap)
    tables: PersistentMap[int, Table] = attrs.field(factory=PersistentMap)
    indexes: PersistentMap[int, Index] = attrs.field(factory=PersistentMap)
    names: PersistentMap[str, int] = attrs.field(factory=PersistentMap)
    indexes_of: PersistentMap[int, tuple[int, ...]] = attrs.field(factory=PersistentMap)
    tables_in: PersistentMap[int, int] = attrs.field(factory=PersistentMap)
    tables_of: PersistentMap[int, int] = attrs.field(factory=PersistentMap)
    building: PersistentMap[int, int] = attrs.field(factory=PersistentMap)

    @classmethod
    def of(cls, descriptors: Iterable[Descriptor], *, version: int, commit: Timestamp, activation: Timestamp,
           next_id: int, default_zone: int | None) -> Catalog:
        """The catalog of these objects, each after what it belongs to. O(n).

        Raises:
            ObjectNotFound: the table of an index is not among them.
        """
        made = cls(version=version, commit=commit, activation=activation, next_id=next_id, default_zone=default_zone)
        made._set(**{name: GrowingMap() for name in _MAPS})
        for one in descriptors:
            made._put(one)
        made._set(**{name: PersistentMap.of(getattr(made, name)) for name in _MAPS})
        return made

    # --- by name ------------------------------------------------------------------------------------------------

    def find_schema(self, name: str) -> Schema | None:
        """The schema of this name, if there is one. O(log n), as all look-ups by name."""
        found = self.names.get(f"schema {name}")
        return None if found is None else self.schemas.get(found)

    def find_zone(self, name: str) -> Zone | None:
        """The zone of this name, if there is one."""
        found = self.names.get(f"zone {name}")
        return None if found is None else self.zones.get(found)

    def find_table(self, schema: str, name: str) -> Table | None:
        """The table of this name in this schema, if there is one."""
        found = self._relation(schema, name)
        return None if found is None else self.tables.get(found)

    def find_index(self, schema: str, name: str) -> Index | None:
        """The index of this name in this schema, if there is one."""
        found = self._relation(schema, name)
        return None if found is None else self.indexes.get(found)

    def _relation(self, schema: str, name: str) -> int | None:
        home = self.find_schema(schema)
        return None if home is None else self.names.get(f"relation {home.id} {name}")

    def table(self, table_id: int) -> Table:
        """The table of this id.

        Raises:
            ObjectNotFound: there is none in this version.
        """
        found = self.tables.get(table_id)
        if found is None:
            raise ObjectNotFound(kind="table", key=str(table_id), version=self.version)
        return found

    def index(self, index_id: int) -> Index:
        """The index of this id.

        Raises:
            ObjectNotFound: there is none in this version.
        """
        found = self.indexes.get(index_id)
        if found is None:
            raise ObjectNotFound(kind="index", key=str(index_id), version=self.version)
        return found

    # --- the next version ---------------------------------------------------------------------------------------

    def apply(self, changes: Sequence[Change], *, version: int, commit: Timestamp, activation: Timestamp,
              next_id: int) -> Catalog:
        """The catalog after these changes; the same on every node and at every replay. O(changes log n)."""
        made = Catalog(version=version, commit=commit, activation=activation, next_id=next_id,
                       default_zone=self.default_zone, schemas=self.schemas, zones=self.zones, tables=self.tables,
                       indexes=self.indexes, names=self.names, indexes_of=self.indexes_of, tables_in=self.tables_in,
                       tables_of=self.tables_of, building=self.building)
        for change in changes:
            match change:
                case PutObject(new):
                    made._put(attrs.evolve(new, created_at=new.created_at or activation, updated_at=commit))
                case DropObject(kind, object_id):
                    made._drop(kind, object_id)
                case SetDefaultZone(zone_id):
                    made._set(default_zone=zone_id)
        return made

    def _set(self, **fields: object) -> None:
        """Change what nobody else has seen yet: one copy serves all changes of a version."""
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    def _put(self, new: Descriptor) -> None:
        match new:
            case Schema():
                self._set(names=self._renamed(self.schemas.get(new.id), new),
                          schemas=self.schemas.with_entry(new.id, new))
            case Zone():
                self._set(names=self._renamed(self.zones.get(new.id), new), zones=self.zones.with_entry(new.id, new))
            case Table():
                old = self.tables.get(new.id)
                self._set(names=self._renamed(old, new), **self._counted(old, new),
                          tables=self.tables.with_entry(new.id, new))
            case Index():
                siblings = self.indexes_of.get(new.table_id) or ()
                owned = siblings if new.id in siblings else (*siblings, new.id)
                building = (self.building.with_entry(new.id, new.table_id) if new.status.is_being_built
                            else self.building.without(new.id))
                self._set(names=self._renamed(self.indexes.get(new.id), new), building=building,
                          indexes=self.indexes.with_entry(new.id, new),
                          indexes_of=self.indexes_of.with_entry(new.table_id, owned))

    def _drop(self, kind: str, object_id: int) -> None:
        match kind:
            case "schema" if (schema := self.schemas.get(object_id)) is not None:
                self._set(names=self._renamed(schema, None), schemas=self.schemas.without(object_id))
            case "zone" if (zone := self.zones.get(object_id)) is not None:
                self._set(names=self._renamed(zone, None), zones=self.zones.without(object_id))
            case "table" if (table := self.tables.get(object_id)) is not None:
                self._set(names=self._renamed(table, None), **self._counted(table, None),
                          tables=self.tables.without(object_id), indexes_of=self.indexes_of.without(object_id))
            case "index" if (index := self.indexes.get(object_id)) is not None:
                left = tuple(one for one in self.indexes_of.get(index.table_id) or () if one != object_id)
                owners = (self.indexes_of.with_entry(index.table_id, left) if left
                          else self.indexes_of.without(index.table_id))
                self._set(names=self._renamed(index, None), indexes=self.indexes.without(object_id),
                          indexes_of=owners, building=self.building.without(object_id))
            case _:
                raise ObjectNotFound(kind=kind, key=str(object_id), version=self.version)

    def _renamed(self, old: Descriptor | None, new: Descriptor | None) -> PersistentMap[str, int]:
        before = None if old is None else self._qualified(old)
        after = None if new is None else self._qualified(new)
        if before == after:
            return self.names
        names = self.names if before is None else self.names.without(before)
        return names if new is None or after is None else names.with_entry(after, new.id)

    def _counted(self, old: Table | None, new: Table | None) -> dict[str, PersistentMap[int, int]]:
        """Of how many tables a zone and a schema are, after one was put or dropped."""
        left, taken = ((None, None) if table is None else (table.zone_id, table.schema_id) for table in (old, new))
        return {"tables_in": _moved(self.tables_in, left[0], taken[0]),
                "tables_of": _moved(self.tables_of, left[1], taken[1])}

    def _qualified(self, one: Descriptor) -> str:
        match one:
            case Schema():
                return f"schema {one.name}"
            case Zone():
                return f"zone {one.name}"
            case Table():
                return f"relation {one.schema_id} {one.name}"
            case Index():
                return f"relation {self.table(one.table_id).schema_id} {one.name}"

    # --- itself -------------------------------------------------------------------------------------------------

    def descriptors(self) -> list[Descriptor]:
        """Everything in it, in an order in which it can be put back: schemas, zones, tables, indexes, each by id."""
        return [*_by_id(self.schemas), *_by_id(self.zones), *_by_id(self.tables), *_by_id(self.indexes)]

    def audit(self) -> None:
        """Check that ids, names and references agree. O(n).

        Raises:
            AuditFailed: they do not; the message names the object.
        """
        found = self.descriptors()
        ids = [one.id for one in found]
        if len(ids) != len(set(ids)):
            raise AuditFailed(f"version {self.version}: two objects share an id")
        if any(one >= self.next_id for one in ids):
            raise AuditFailed(f"version {self.version}: an id is not below {self.next_id}")
        if dict(self.names.items()) != {self._qualified(one): one.id for one in found}:
            raise AuditFailed("names and objects differ")
        for table in self.tables.values():
            if table.zone_id not in self.zones:
                raise AuditFailed(f"{table} is in no zone")
            if table.schema_id not in self.schemas:
                raise AuditFailed(f"{table} is in no schema")
            owned = self.indexes_of.get(table.id) or ()
            if table.primary_index_id not in owned:
                raise AuditFailed(f"{table} has no primary index")
        spread = Counter(table.zone_id for table in self.tables.values())
        in_schemas = Counter(table.schema_id for table in self.tables.values())
        if dict(self.tables_in.items()) != spread or dict(self.tables_of.items()) != in_schemas:
            raise AuditFailed("the tables of a zone or a schema are counted wrong")
        owned_by = {one: table for table, indexes in self.indexes_of.items() for one in indexes}
        if owned_by != {index.id: index.table_id for index in self.indexes.values()}:
            raise AuditFailed("indexes and owners differ")
        building = {index.id: index.table_id for index in self.indexes.values() if index.status.is_being_built}
        if dict(self.building.items()) != building:
            raise AuditFailed("the list of indexes being built is wrong")
        if self.default_zone is not None and self.default_zone not in self.zones:
            raise AuditFailed("the default zone does not exist")

    def __repr__(self) -> str:
        return (f"Catalog(version={self.version}, activation={self.activation}, {len(self.schemas)} schemas, "
                f"{len(self.zones)} zones, {len(self.tables)} tables, {len(self.indexes)} indexes)")


EMPTY = Catalog(version=0, commit=LOWEST, activation=LOWEST)
"""Version 0: nothing, active since the lowest time. It is in memory only, never in the log."""


class GrowingCatalog:
    """A catalog that `apply` changes in place: for one who replays a history, and shows nobody but what is `settled`.

    It keeps its objects by id and nothing else, but refuses what a `Catalog` refuses. The descriptors of its changes
    are its own from then on, so only what nobody else holds may be given.
    """

    def __init__(self, catalog: Catalog) -> None:
        """One that begins as this catalog. O(objects)."""
        self.version: int = catalog.version
        self.commit: Timestamp = catalog.commit
        self.activation: Timestamp = catalog.activation
        self.next_id: int = catalog.next_id
        self.default_zone: int | None = catalog.default_zone
        # Each kind by id, so that the indexes of a table come in the order in which they came.
        self._objects: dict[str, dict[int, Any]] = {
            "schema": dict(sorted(catalog.schemas.items())), "zone": dict(sorted(catalog.zones.items())),
            "table": dict(sorted(catalog.tables.items())), "index": dict(sorted(catalog.indexes.items()))}
        self._tables, self._indexes = self._objects["table"], self._objects["index"]

    def __len__(self) -> int:
        return sum(map(len, self._objects.values()))

    def apply(self, changes: Sequence[Change], *, version: int, commit: Timestamp, activation: Timestamp,
              next_id: int) -> GrowingCatalog:
        """This catalog, after these changes. O(changes)."""
        self.version, self.commit, self.activation, self.next_id = version, commit, activation, next_id
        for change in changes:
            match change:
                case PutObject(descriptor):
                    self._put(descriptor)
                case DropObject(kind, object_id):
                    found = self._objects.get(kind, {}).pop(object_id, None)
                    if found is None:
                        raise ObjectNotFound(kind=kind, key=str(object_id), version=version)
                    if kind == "index":
                        self._require_table(found)
                case SetDefaultZone(zone_id):
                    self.default_zone = zone_id
        return self

    def _put(self, new: Descriptor) -> None:
        if not new.created_at:
            object.__setattr__(new, "created_at", self.activation)
        object.__setattr__(new, "updated_at", self.commit)
        kind = KINDS[type(new)]
        if kind == "index":
            self._require_table(self._indexes.get(new.id))
            self._require_table(new)
        self._objects[kind][new.id] = new

    def _require_table(self, index: Any) -> None:
        if index is not None and index.table_id not in self._tables:
            raise ObjectNotFound(kind="table", key=str(index.table_id), version=self.version)

    def settled(self) -> Catalog:
        """The catalog as it is now. O(objects).

        Raises:
            ObjectNotFound: the table of an index is gone.
        """
        return Catalog.of(chain.from_iterable(objects.values() for objects in self._objects.values()),
                          version=self.version, commit=self.commit, activation=self.activation, next_id=self.next_id,
                          default_zone=self.default_zone)


def _moved(counts: PersistentMap[int, int], old: int | None, new: int | None) -> PersistentMap[int, int]:
    """The counts once something of one owner is another's; `None`: nobody's."""
    if old == new:
        return counts
    if old is not None:
        left = (counts.get(old) or 0) - 1
        counts = counts.with_entry(old, left) if left else counts.without(old)
    return counts if new is None else counts.with_entry(new, (counts.get(new) or 0) + 1)


def _by_id(objects: PersistentMap[int, _DescriptorT]) -> list[_DescriptorT]:
    return [one for _, one in sorted(objects.items())]
