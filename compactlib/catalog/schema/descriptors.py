# SPDX-License-Identifier: Apache-2.0
"""What a catalog is made of: schemas, zones, tables with their columns, and indexes with their status."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, TypeAlias, TypeVar

import attrs

from compactlib.catalog.model.timestamp import Timestamp
from compactlib.errors import InvalidInput

KindT = TypeVar("KindT", bound=StrEnum)

ColumnDefault: TypeAlias = str | int | float | bool | None
"""A column's default value; `None` for none."""


class IndexStatus(StrEnum):
    """The life of an index. In the first two states it is being built, which ties the cluster to that version."""

    REGISTERED = "registered"
    BUILDING = "building"
    AVAILABLE = "available"
    STOPPING = "stopping"

    @property
    def is_being_built(self) -> bool:
        """Whether history may not be cut to a version in which an index has this status."""
        return self in (IndexStatus.REGISTERED, IndexStatus.BUILDING)


class ColumnType(StrEnum):
    """The types of columns."""

    BOOLEAN = "boolean"
    INT8 = "int8"
    INT16 = "int16"
    INT32 = "int32"
    INT64 = "int64"
    FLOAT = "float"
    DOUBLE = "double"
    DECIMAL = "decimal"
    STRING = "string"
    BYTES = "bytes"
    UUID = "uuid"
    DATE = "date"
    TIME = "time"
    DATETIME = "datetime"
    TIMESTAMP = "timestamp"


@attrs.frozen
class Schema:
    """A namespace of tables and indexes.

    Attributes:
        id: unique in the catalog, never used again.
        name: unique among schemas.
        created_at: when the version that made it became active.
        updated_at: commit time of the last version that changed it.
    """

    id: int
    name: str
    created_at: Timestamp = 0
    updated_at: Timestamp = 0


def _names(names: tuple[str, ...]) -> tuple[str, ...]:
    found: tuple[str, ...] = _fixed(names)
    return found


def _fixed(items: Any) -> Any:
    """A list as it is read back; what is none, a text say, is refused where it is to be stored."""
    return tuple(items) if isinstance(items, list) else items


@attrs.frozen(kw_only=True)
class Zone:
    """How tables are spread over nodes.

    Attributes:
        id: unique in the catalog.
        name: unique among zones.
        partitions: how many.
        replicas: copies of each partition.
        quorum: replicas that must agree.
        node_filter: which nodes may host it, in the host's own language.
        storage_profiles: storage engines it needs.
        strong_consistency: whether it prefers consistency over availability.
        scale_up_seconds: how long to wait before it spreads to new nodes; no change point of a rebalance.
        scale_down_seconds: how long to wait before it leaves lost nodes; no change point either.
        created_at: as that of `Schema`.
        updated_at: as that of `Schema`.
    """

    id: int
    name: str
    partitions: int = 25
    replicas: int = 1
    quorum: int = 1
    node_filter: str = ""
    storage_profiles: tuple[str, ...] = attrs.field(default=("default",), converter=_names)
    strong_consistency: bool = True
    scale_up_seconds: int = 0
    scale_down_seconds: int = 0
    created_at: Timestamp = 0
    updated_at: Timestamp = 0

    def placement(self) -> tuple[object, ...]:
        """Everything whose change moves data between nodes."""
        return (self.partitions, self.replicas, self.quorum, self.node_filter, self.storage_profiles,
                self.strong_consistency)


def _column_type(value: str) -> ColumnType:
    return _one_of(ColumnType, value)


def _index_status(value: str) -> IndexStatus:
    return _one_of(IndexStatus, value)


def _one_of(kind: type[KindT], value: Any) -> KindT:
    try:
        # What is no text is compared with none of them.
        return kind(value if isinstance(value, str) else "")
    except ValueError:
        raise InvalidInput(f"{value!r:.100} is no {kind.__name__}; give one of {', '.join(kind)}") from None


@attrs.frozen(kw_only=True)
class Column:
    """One column of a table.

    Attributes:
        name: unique in the table.
        type: its type.
        nullable: whether it may be empty.
        default: its value where none is given.
        length: of strings and bytes, the most; 0 for no limit.
        precision: digits of decimals, or of fractions of seconds.
        scale: of decimals, digits after the point.
    """

    name: str
    type: ColumnType = attrs.field(converter=_column_type)
    nullable: bool = True
    default: ColumnDefault = None
    length: int = 0
    precision: int = 0
    scale: int = 0


def _columns(columns: tuple[Column, ...]) -> tuple[Column, ...]:
    found: tuple[Column, ...] = _fixed(columns)
    return found


@attrs.frozen(kw_only=True)
class Table:
    """A table.

    Attributes:
        id: unique in the catalog.
        schema_id: the schema it is in.
        name: unique among the tables and indexes of its schema.
        zone_id: the zone that spreads it.
        columns: in order.
        primary_key: names of the key's columns.
        primary_index_id: the index of the primary key, available from the start.
        created_at: when the version that made it became active: nothing of it can need an earlier version.
        updated_at: as that of `Schema`.
    """

    id: int
    schema_id: int
    name: str
    zone_id: int
    columns: tuple[Column, ...] = attrs.field(converter=_columns)
    primary_key: tuple[str, ...] = attrs.field(converter=_names)
    primary_index_id: int
    created_at: Timestamp = 0
    updated_at: Timestamp = 0

    def column(self, name: str) -> Column | None:
        """The column of this name, if there is one."""
        return next((column for column in self.columns if column.name == name), None)


@attrs.frozen(kw_only=True)
class Index:
    """An index over columns of a table.

    Attributes:
        id: unique in the catalog.
        table_id: its table.
        name: unique among the tables and indexes of the schema.
        columns: names, in order.
        unique: whether no two rows may agree on them.
        is_sorted: whether it keeps an order, rather than hashes.
        status: how far it is built.
        created_at: as that of `Table`.
        updated_at: as that of `Schema`.
    """

    id: int
    table_id: int
    name: str
    columns: tuple[str, ...] = attrs.field(converter=_names)
    unique: bool = False
    is_sorted: bool = True
    status: IndexStatus = attrs.field(default=IndexStatus.REGISTERED, converter=_index_status)
    created_at: Timestamp = 0
    updated_at: Timestamp = 0


Descriptor: TypeAlias = Schema | Zone | Table | Index
"""Anything with an id of its own."""
