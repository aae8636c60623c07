# SPDX-License-Identifier: Apache-2.0
"""`Catalog`: a version of the schema, limited to the facts that a compaction reads; and `Update`, the step to the next.

The host has its own schema language. The catalog has the facts that a decision reads: the zone of each table, the
partitions and placement of each zone, and the build status of each index. All else is in the host's `properties`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any, TypeAlias

import attrs

from compactlib.catalog.errors import ObjectNotFound
from compactlib.catalog.timestamp import LOWEST, Timestamp

Property: TypeAlias = str | int | float | bool | None
"""A property of an object; the host encodes nested values as text."""


NO_ID = -1
"""The id of an object that is not in a catalog yet."""


class IndexStatus(StrEnum):
    """The build status of an index. A registered or building index forbids a cut to a version with the index."""

    REGISTERED = "registered"
    BUILDING = "building"
    AVAILABLE = "available"
    STOPPING = "stopping"

    @property
    def is_being_built(self) -> bool:
        """Whether a backfill may still read the catalog of this version."""
        return self in (IndexStatus.REGISTERED, IndexStatus.BUILDING)


@attrs.frozen
class _Object:
    """An object of a catalog.

    Attributes:
        name: the name of a schema or zone, unique among these; of a table or index, among those of its schema.
        id: unique in the catalog, which assigns it.
        created_at: activation of the version that created the object.
        updated_at: commit time of the last version that changed the object.
    """

    name: str
    id: int = attrs.field(default=NO_ID, kw_only=True)
    created_at: Timestamp = attrs.field(default=0, kw_only=True)
    updated_at: Timestamp = attrs.field(default=0, kw_only=True)


@attrs.frozen
class Schema(_Object):
    """A name space of tables and indexes; `properties` are the host's."""

    properties: Mapping[str, Property] = attrs.field(factory=dict)


@attrs.frozen
class Zone(_Object):
    """The distribution of tables over nodes.

    Attributes:
        partitions: number of partitions.
        placement: the host's settings whose change moves data: replicas, a filter of nodes, ...
        properties: the host's other settings.
    """

    partitions: int = 25
    placement: Mapping[str, Property] = attrs.field(factory=dict)
    properties: Mapping[str, Property] = attrs.field(factory=dict)


@attrs.frozen
class CatalogTable(_Object):
    """A table; `properties` are the host's: columns, a primary key, ..."""

    properties: Mapping[str, Property] = attrs.field(factory=dict)
    schema_id: int = attrs.field(default=NO_ID, kw_only=True)
    zone_id: int = attrs.field(default=NO_ID, kw_only=True)


@attrs.frozen
class Index(_Object):
    """An index of a table; `properties` are the host's."""

    status: IndexStatus = IndexStatus.REGISTERED
    properties: Mapping[str, Property] = attrs.field(factory=dict)
    table_id: int = attrs.field(default=NO_ID, kw_only=True)


CatalogObject: TypeAlias = Schema | Zone | CatalogTable | Index
"""An object of a catalog."""
KINDS: Mapping[type[CatalogObject], str] = {Schema: "schema", Zone: "zone", CatalogTable: "table", Index: "index"}
"""The kinds of objects; each refers to earlier kinds alone."""


@attrs.frozen(kw_only=True)
class Update:
    """A record of the log: the difference between a version and the version before; in a snapshot, the empty catalog.

    Attributes:
        version: the new version.
        commit: time of the append.
        activation: time from which the version is in force, >= `commit`.
        next_id: the id of the next new object.
        drops: kinds and ids of the dropped objects.
        puts: new objects, and objects that replace those with the same id.
    """

    version: int
    commit: Timestamp
    activation: Timestamp
    next_id: int
    drops: tuple[tuple[str, int], ...] = ()
    puts: tuple[Schema | Zone | CatalogTable | Index, ...] = ()


@attrs.define(repr=False)
class Catalog:
    """A version of the schema. Read-only for all but the creator of the object.

    Attributes:
        version: number of the version.
        commit: time of the append to the log.
        activation: time from which the version is in force, >= `commit`.
        next_id: the id of the next new object.
        schemas, zones, tables, indexes: by id.
    """

    version: int = 0
    commit: Timestamp = LOWEST
    activation: Timestamp = LOWEST
    next_id: int = 0
    schemas: dict[int, Schema] = attrs.field(factory=dict)
    zones: dict[int, Zone] = attrs.field(factory=dict)
    tables: dict[int, CatalogTable] = attrs.field(factory=dict)
    indexes: dict[int, Index] = attrs.field(factory=dict)
    # Invariant: id by (kind, name) of schemas and zones, by (schema's id, name) of tables and indexes.
    _names: dict[tuple[str | int, str], int] = attrs.field(factory=dict)
    _objects: dict[str, dict[int, Any]] = attrs.field(init=False, eq=False, default=attrs.Factory(
        lambda self: dict(zip(KINDS.values(), (self.schemas, self.zones, self.tables, self.indexes), strict=True)),
        takes_self=True))
    # Kind and id of each object that was put or dropped since this version.
    _changed: set[tuple[str, int]] = attrs.field(init=False, eq=False, factory=set)

    @property
    def building(self) -> dict[int, int]:
        """The table's id, by the id of each index that is registered or building. O(indexes)."""
        return {index.id: index.table_id for index in self.indexes.values() if index.status.is_being_built}

    # -- by name

    def find(self, kind: str, name: str, schema: str = "") -> Any:
        """Return the object of this kind and name, or `None`; `schema` names that of a table or index. O(1)."""
        home = self._names.get(("schema", schema)) if kind in ("table", "index") else kind
        return self._objects[kind].get(NO_ID if home is None else self._names.get((home, name), NO_ID))

    # -- the next version

    def copy(self) -> Catalog:
        """Return a copy that may be changed. O(objects)."""
        return attrs.evolve(self, schemas=self.schemas.copy(), zones=self.zones.copy(), tables=self.tables.copy(),
                            indexes=self.indexes.copy(), names=self._names.copy())

    def apply(self, update: Update) -> None:
        """Apply an update in place. O(changes).

        Raises:
            ObjectNotFound: the update drops a missing object, or an object refers to a missing table.
        """
        self.version, self.commit = update.version, update.commit
        self.activation, self.next_id = update.activation, update.next_id
        # Puts first: an index may move away from a table that is dropped, which is part of its old name.
        for new in update.puts:
            self.put(new)
        for kind, object_id in update.drops:
            self.drop(kind, object_id)
        self._changed.clear()

    def put(self, new: CatalogObject) -> None:
        """Add an object, or replace the object with its id; an object without an id gets the next one."""
        if new.id == NO_ID:
            new = attrs.evolve(new, id=self.next_id)
            self.next_id += 1
        kind, name = KINDS[type(new)], self._qualified(new)
        objects = self._objects[kind]
        if new.id in objects:
            self._forget_name(objects[new.id])
        objects[new.id] = new
        self._names[name] = new.id
        self._changed.add((kind, new.id))

    def drop(self, kind: str, object_id: int) -> None:
        """Remove an object; `ObjectNotFound` if it is missing."""
        objects = self._objects.get(kind, {})
        if object_id not in objects:
            raise ObjectNotFound(f"catalog version {self.version} has no {kind} {object_id}")
        self._forget_name(objects.pop(object_id))
        self._changed.add((kind, object_id))

    def _forget_name(self, item: CatalogObject) -> None:
        name = self._qualified(item)
        if self._names.get(name) == item.id:  # unless the same update gave the name to another object
            del self._names[name]

    def _qualified(self, item: CatalogObject) -> tuple[str | int, str]:
        if isinstance(item, CatalogTable):
            return item.schema_id, item.name
        if isinstance(item, Index):
            table = self.tables.get(item.table_id)
            if table is None:
                raise ObjectNotFound(f"catalog version {self.version} has no table {item.table_id}, of {item!r}")
            return table.schema_id, item.name
        return KINDS[type(item)], item.name

    # -- all objects

    def as_update(self) -> Update:
        """Return the update that makes this version of the empty catalog. O(objects)."""
        return Update(version=self.version, commit=self.commit, activation=self.activation, next_id=self.next_id,
                      puts=tuple(self.objects()))

    def objects(self) -> Iterator[CatalogObject]:
        """Yield all objects in an order without forward references: schemas, zones, tables, indexes, each by id."""
        for objects in self._objects.values():
            yield from (objects[each] for each in sorted(objects))

    def difference(self, before: Catalog, *, commit: Timestamp, activation: Timestamp) -> Update:
        """Return the update that makes this changed copy of the version `before`. O(changes log changes)."""
        puts, drops = [], []
        for kind, objects in self._objects.items():
            for each in sorted(object_id for of, object_id in self._changed if of == kind):
                old, new = before._objects[kind].get(each), objects.get(each)
                if new is None:
                    drops += [] if old is None else [(kind, each)]
                elif new != old:
                    puts.append(attrs.evolve(new, created_at=new.created_at or activation, updated_at=commit))
        # An index is dropped before its table: the table's schema is part of the index's name.
        return Update(version=before.version + 1, commit=commit, activation=activation, next_id=self.next_id,
                      drops=tuple(reversed(drops)), puts=tuple(puts))

    def __len__(self) -> int:
        return sum(map(len, self._objects.values()))

    def __repr__(self) -> str:
        return (f"Catalog(version={self.version}, activation={self.activation}, {len(self.schemas)} schemas, "
                f"{len(self.zones)} zones, {len(self.tables)} tables, {len(self.indexes)} indexes)")


EMPTY = Catalog()
"""Version 0, without objects, active since the lowest time. It is in memory only, never in the log."""
