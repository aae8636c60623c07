# SPDX-License-Identifier: Apache-2.0
"""`Catalog`: one version of the schema, as far as a compaction has to know it; and `Update`, what makes the next one.

A host has a schema language of its own. The catalog keeps what a decision reads: which tables are in which zone, how
many partitions a zone has and what moves them, and how far an index is built. All else is the host's `properties`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any, TypeAlias, TypeVar

import attrs

from compactlib.catalog.errors import ObjectNotFound
from compactlib.catalog.timestamp import LOWEST, Timestamp
from compactlib.codec import JsonCodec

Property: TypeAlias = str | int | float | bool | None
"""A property of an object; what is deeper the host keeps as text."""


NO_ID = -1
"""The id of an object that the catalog has not seen yet."""


class IndexStatus(StrEnum):
    """How far an index is built. One that is registered or building keeps history from being cut to its version."""

    REGISTERED = "registered"
    BUILDING = "building"
    AVAILABLE = "available"
    STOPPING = "stopping"

    @property
    def is_being_built(self) -> bool:
        """Whether a backfill may still read the catalog of this version."""
        return self in (IndexStatus.REGISTERED, IndexStatus.BUILDING)


@attrs.frozen
class Schema:
    """A name space of tables and indexes.

    Attributes:
        name: unique among schemas.
        properties: the host's.
        id: unique in the catalog, which gives it.
        created_at: when the version that made it became active.
        updated_at: commit time of the last version that changed it.
    """

    name: str
    properties: Mapping[str, Property] = attrs.field(factory=dict)
    id: int = attrs.field(default=NO_ID, kw_only=True)
    created_at: Timestamp = attrs.field(default=0, kw_only=True)
    updated_at: Timestamp = attrs.field(default=0, kw_only=True)


@attrs.frozen
class Zone:
    """How tables are spread over nodes.

    Attributes:
        name: unique among zones.
        partitions: how many.
        placement: the host's settings whose change moves data: replicas, a filter of nodes, ...
        properties: the host's other settings.
        id, created_at, updated_at: as those of `Schema`.
    """

    name: str
    partitions: int = 25
    placement: Mapping[str, Property] = attrs.field(factory=dict)
    properties: Mapping[str, Property] = attrs.field(factory=dict)
    id: int = attrs.field(default=NO_ID, kw_only=True)
    created_at: Timestamp = attrs.field(default=0, kw_only=True)
    updated_at: Timestamp = attrs.field(default=0, kw_only=True)


@attrs.frozen
class CatalogTable:
    """A table.

    Attributes:
        name: unique among the tables and indexes of its schema.
        properties: the host's: columns, a primary key, ...
        schema_id: the schema it is in.
        zone_id: the zone that spreads it.
        id, created_at, updated_at: as those of `Schema`.
    """

    name: str
    properties: Mapping[str, Property] = attrs.field(factory=dict)
    schema_id: int = attrs.field(default=NO_ID, kw_only=True)
    zone_id: int = attrs.field(default=NO_ID, kw_only=True)
    id: int = attrs.field(default=NO_ID, kw_only=True)
    created_at: Timestamp = attrs.field(default=0, kw_only=True)
    updated_at: Timestamp = attrs.field(default=0, kw_only=True)


@attrs.frozen
class Index:
    """An index of a table.

    Attributes:
        name: unique among the tables and indexes of the schema.
        status: how far it is built.
        properties: the host's.
        table_id: its table.
        id, created_at, updated_at: as those of `Schema`.
    """

    name: str
    status: IndexStatus = IndexStatus.REGISTERED
    properties: Mapping[str, Property] = attrs.field(factory=dict)
    table_id: int = attrs.field(default=NO_ID, kw_only=True)
    id: int = attrs.field(default=NO_ID, kw_only=True)
    created_at: Timestamp = attrs.field(default=0, kw_only=True)
    updated_at: Timestamp = attrs.field(default=0, kw_only=True)


CatalogObject: TypeAlias = Schema | Zone | CatalogTable | Index
"""What a catalog holds."""
ObjectT = TypeVar("ObjectT", Schema, Zone, CatalogTable, Index)
KINDS: Mapping[type[CatalogObject], str] = {Schema: "schema", Zone: "zone", CatalogTable: "table", Index: "index"}
"""The kinds of objects, in the order in which one refers to another."""
_MAP_OF = {"schema": "schemas", "zone": "zones", "table": "tables", "index": "indexes"}
_MAPS = (*_MAP_OF.values(), "_names")


@attrs.frozen(kw_only=True)
class Update:
    """One record of the log: what turns one version into the next.

    Attributes:
        version: the version that it makes.
        commit: when it was appended.
        activation: from when on it is in force, >= `commit`.
        next_id: the id that the next new object gets.
        drops: kinds and ids of the objects that are gone.
        puts: objects that are new, or take the place of those with their ids.
    """

    version: int
    commit: Timestamp
    activation: Timestamp
    next_id: int
    drops: tuple[tuple[str, int], ...] = ()
    puts: tuple[Schema | Zone | CatalogTable | Index, ...] = ()


UPDATES = JsonCodec[Update](Update)
"""An update as it is stored."""


class Catalog:
    """One version of the schema. Read it; only who has just made it changes it.

    Args:
        version: its number.
        commit: when it was appended to the log.
        activation: from when on it is in force, >= `commit`.
        next_id: the id that the next new object gets.

    Attributes:
        version, commit, activation, next_id: as given.
        schemas, zones, tables, indexes: by id.
    """

    __slots__ = ("_names", "_shared", "activation", "commit", "indexes", "next_id", "schemas", "tables", "version",
                 "zones")

    def __init__(self, *, version: int = 0, commit: Timestamp = LOWEST, activation: Timestamp = LOWEST,
                 next_id: int = 0) -> None:
        self.version: int = version
        self.commit: Timestamp = commit
        self.activation: Timestamp = activation
        self.next_id: int = next_id
        self.schemas: dict[int, Schema] = {}
        self.zones: dict[int, Zone] = {}
        self.tables: dict[int, CatalogTable] = {}
        self.indexes: dict[int, Index] = {}
        # Invariant: id by (kind, name) of schemas and zones, by (schema's id, name) of tables and indexes.
        self._names: dict[tuple[str | int, str], int] = {}
        self._shared: set[str] = set()  # maps that another version has as well, to be copied before a change

    @property
    def building(self) -> dict[int, int]:
        """The ids of the indexes that are registered or building, each to its table's id. O(indexes)."""
        return {index.id: index.table_id for index in self.indexes.values() if index.status.is_being_built}

    # -- by name

    def find_schema(self, name: str) -> Schema | None:
        """Return the schema of this name, if there is one. O(1), as all look-ups by name."""
        return self.schemas.get(self._names.get(("schema", name), NO_ID))

    def find_zone(self, name: str) -> Zone | None:
        """Return the zone of this name, if there is one."""
        return self.zones.get(self._names.get(("zone", name), NO_ID))

    def find_table(self, schema: str, name: str) -> CatalogTable | None:
        """Return the table of this name in this schema, if there is one."""
        home = self.find_schema(schema)
        return None if home is None else self.tables.get(self._names.get((home.id, name), NO_ID))

    def find_index(self, schema: str, name: str) -> Index | None:
        """Return the index of this name in this schema, if there is one."""
        home = self.find_schema(schema)
        return None if home is None else self.indexes.get(self._names.get((home.id, name), NO_ID))

    # -- the next version

    def updated(self, update: Update) -> Catalog:
        """Return the catalog after an update. O(objects of the kinds that change).

        Raises:
            ObjectNotFound: it drops what is not there, or an object refers to nothing.
        """
        made = self.copy()
        made.apply(update)
        return made

    def copy(self) -> Catalog:
        """Return one that may be changed. O(1): what both share is copied by whoever changes it."""
        made = Catalog(version=self.version, commit=self.commit, activation=self.activation, next_id=self.next_id)
        for name in _MAPS:
            setattr(made, name, getattr(self, name))
        self._shared, made._shared = set(_MAPS), set(_MAPS)
        return made

    def _own(self, *names: str) -> None:
        """Have these maps to itself."""
        for name in self._shared.intersection(names):
            setattr(self, name, getattr(self, name).copy())
            self._shared.discard(name)

    def apply(self, update: Update) -> None:
        """Become the catalog after an update. O(changes); raises as `updated`."""
        self.version, self.commit = update.version, update.commit
        self.activation, self.next_id = update.activation, update.next_id
        for kind, object_id in update.drops:
            self.drop(kind, object_id)
        for new in update.puts:
            self.put(new)

    def put(self, new: CatalogObject) -> None:
        """Add an object, or replace the one with its id."""
        kind, name = KINDS[type(new)], self._qualified(new)
        self._own("_names", _MAP_OF[kind])
        objects = self.objects_of(kind)
        if new.id in objects:
            self._forget_name(objects[new.id])
        objects[new.id] = new
        self._names[name] = new.id

    def drop(self, kind: str, object_id: int) -> None:
        """Remove an object."""
        if object_id not in self.objects_of(kind):
            raise ObjectNotFound(f"catalog version {self.version} has no {kind} {object_id}")
        self._own("_names", _MAP_OF[kind])
        self._forget_name(self.objects_of(kind).pop(object_id))

    def _forget_name(self, one: CatalogObject) -> None:
        name = self._qualified(one)
        if self._names.get(name) == one.id:  # and not that of one that was renamed to it in the same update
            del self._names[name]

    def _qualified(self, one: CatalogObject) -> tuple[str | int, str]:
        if isinstance(one, CatalogTable):
            return one.schema_id, one.name
        if isinstance(one, Index):
            table = self.tables.get(one.table_id)
            if table is None:
                raise ObjectNotFound(f"catalog version {self.version} has no table {one.table_id}, of {one!r}")
            return table.schema_id, one.name
        return KINDS[type(one)], one.name

    # -- itself

    def objects_of(self, kind: str) -> dict[int, Any]:
        """Return the objects of one kind by id; of a kind that there is not, none."""
        objects: dict[int, Any] = getattr(self, _MAP_OF[kind]) if kind in _MAP_OF else {}
        return objects

    def objects(self) -> Iterator[CatalogObject]:
        """Return everything in it, each after what it refers to: schemas, zones, tables, indexes, each by id."""
        for kind in KINDS.values():
            objects = self.objects_of(kind)
            yield from (objects[each] for each in sorted(objects))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Catalog):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__slots__ if name != "_shared")

    def __hash__(self) -> int:
        return hash((self.version, self.commit, self.activation))

    def __len__(self) -> int:
        return len(self.schemas) + len(self.zones) + len(self.tables) + len(self.indexes)

    def __repr__(self) -> str:
        return (f"Catalog(version={self.version}, activation={self.activation}, {len(self.schemas)} schemas, "
                f"{len(self.zones)} zones, {len(self.tables)} tables, {len(self.indexes)} indexes)")


EMPTY = Catalog()
"""Version 0: nothing, active since the lowest time. It is in memory only, never in the log."""
