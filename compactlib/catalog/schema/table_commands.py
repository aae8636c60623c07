# SPDX-License-Identifier: Apache-2.0
"""Commands on tables, their columns and their indexes; see `commands.py`."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from compactlib.catalog.schema.catalog import Catalog, Change, DropObject, PutObject
from compactlib.catalog.schema.commands import check_name, refuse, require_schema, require_zone
from compactlib.catalog.schema.descriptors import Column, Index, IndexStatus, Table

MAX_COLUMNS = 10_000
"""Columns of one table."""


@attrs.frozen(kw_only=True)
class CreateTable:
    """Create a table, with an index of its primary key that is available at once.

    Attributes:
        schema: name of its schema.
        name: its name.
        columns: at least one.
        primary_key: names of columns that are not nullable.
        zone: name of its zone; `""` for the default zone.
        if_not_exists: do nothing if there is a table of this name, instead of refusing.
    """

    schema: str
    name: str
    columns: tuple[Column, ...]
    primary_key: tuple[str, ...]
    zone: str = ""
    if_not_exists: bool = False

    def changes(self, catalog: Catalog) -> Sequence[Change]:
        """See `Command.changes`."""
        if self.if_not_exists and catalog.find_table(self.schema, self.name) is not None:
            return ()
        schema = require_schema(self, self.schema, catalog)
        _check_new_relation(self, self.schema, self.name, catalog)
        zone = require_zone(self, self.zone, catalog)
        if len(self.columns) > MAX_COLUMNS or not self.columns:
            raise refuse(self, f"{len(self.columns)} columns; give 1 to {MAX_COLUMNS}", catalog)
        names = [column.name for column in self.columns]
        for name in names:
            check_name(self, name, catalog)
        if len(names) != len(set(names)):
            raise refuse(self, "two columns have one name", catalog)
        primary_name = _new_primary_name(self, self.schema, self.name, catalog)
        table = Table(id=catalog.next_id, schema_id=schema.id, name=self.name, zone_id=zone.id, columns=self.columns,
                      primary_key=self.primary_key, primary_index_id=catalog.next_id + 1)
        _check_columns(self, table, self.primary_key, catalog)
        for name in self.primary_key:
            column = table.column(name)
            if column is not None and column.nullable:
                raise refuse(self, f"column {name!r} of the primary key is nullable", catalog)
        return (PutObject(table), PutObject(Index(
            id=table.primary_index_id, table_id=table.id, name=primary_name, columns=self.primary_key, unique=True,
            is_sorted=False, status=IndexStatus.AVAILABLE)))


@attrs.frozen(kw_only=True)
class DropTable:
    """Drop a table and its indexes.

    Attributes:
        if_exists: do nothing if there is none, instead of refusing.
    """

    schema: str
    name: str
    if_exists: bool = False

    def changes(self, catalog: Catalog) -> Sequence[Change]:
        """See `Command.changes`."""
        found = catalog.find_table(self.schema, self.name)
        if found is None:
            if self.if_exists:
                return ()
            raise refuse(self, f"there is no table {self.schema}.{self.name}", catalog)
        indexes = catalog.indexes_of.get(found.id) or ()
        return (*(DropObject("index", index) for index in indexes), DropObject("table", found.id))


@attrs.frozen(kw_only=True)
class RenameTable:
    """Give a table another name, and the index of its primary key the one that goes with it."""

    schema: str
    name: str
    new_name: str

    def changes(self, catalog: Catalog) -> Sequence[Change]:
        """See `Command.changes`."""
        found = _require_table(self, self.schema, self.name, catalog)
        if self.name == self.new_name:
            return ()
        _check_new_relation(self, self.schema, self.new_name, catalog)
        primary_name = _new_primary_name(self, self.schema, self.new_name, catalog)
        return (PutObject(attrs.evolve(found, name=self.new_name)),
                PutObject(attrs.evolve(catalog.index(found.primary_index_id), name=primary_name)))


@attrs.frozen(kw_only=True)
class AddColumns:
    """Add columns at the end of a table."""

    schema: str
    table: str
    columns: tuple[Column, ...]

    def changes(self, catalog: Catalog) -> Sequence[Change]:
        """See `Command.changes`."""
        found = _require_table(self, self.schema, self.table, catalog)
        names = [column.name for column in found.columns]
        for column in self.columns:
            check_name(self, column.name, catalog)
            if column.name in names:
                raise refuse(self, f"column {column.name!r} exists", catalog)
            names.append(column.name)
        if len(names) > MAX_COLUMNS:
            raise refuse(self, f"{len(names)} columns; the limit is {MAX_COLUMNS}", catalog)
        return (PutObject(attrs.evolve(found, columns=(*found.columns, *self.columns))),) if self.columns else ()


@attrs.frozen(kw_only=True)
class DropColumns:
    """Drop columns that no index uses.

    Attributes:
        columns: their names.
    """

    schema: str
    table: str
    columns: tuple[str, ...]

    def changes(self, catalog: Catalog) -> Sequence[Change]:
        """See `Command.changes`."""
        found = _require_table(self, self.schema, self.table, catalog)
        _check_columns(self, found, self.columns, catalog)
        for index_id in catalog.indexes_of.get(found.id) or ():
            index = catalog.indexes.get(index_id)
            used = set() if index is None else set(index.columns) & set(self.columns)
            if index is not None and used:
                raise refuse(self, f"column {min(used)!r} belongs to index {index.name!r}", catalog)
        left = tuple(column for column in found.columns if column.name not in self.columns)
        return (PutObject(attrs.evolve(found, columns=left)),)


@attrs.frozen(kw_only=True)
class AlterColumn:
    """Put a column in the place of the one of its name. A column of the primary key stays not nullable."""

    schema: str
    table: str
    column: Column

    def changes(self, catalog: Catalog) -> Sequence[Change]:
        """See `Command.changes`."""
        found = _require_table(self, self.schema, self.table, catalog)
        _check_columns(self, found, (self.column.name,), catalog)
        if self.column.name in found.primary_key and self.column.nullable:
            raise refuse(self, f"column {self.column.name!r} of the primary key cannot be nullable", catalog)
        columns = tuple(self.column if one.name == self.column.name else one for one in found.columns)
        return () if columns == found.columns else (PutObject(attrs.evolve(found, columns=columns)),)


@attrs.frozen(kw_only=True)
class CreateIndex:
    """Register an index; it is built next. Attributes as those of `Index`.

    Attributes:
        if_not_exists: do nothing if there is an index of this name, instead of refusing.
    """

    schema: str
    table: str
    name: str
    columns: tuple[str, ...]
    unique: bool = False
    is_sorted: bool = True
    if_not_exists: bool = False

    def changes(self, catalog: Catalog) -> Sequence[Change]:
        """See `Command.changes`."""
        if self.if_not_exists and catalog.find_index(self.schema, self.name) is not None:
            return ()
        found = _require_table(self, self.schema, self.table, catalog)
        _check_new_relation(self, self.schema, self.name, catalog)
        _check_columns(self, found, self.columns, catalog)
        return (PutObject(Index(id=catalog.next_id, table_id=found.id, name=self.name, columns=self.columns,
                                unique=self.unique, is_sorted=self.is_sorted)),)


@attrs.frozen
class StartBuildingIndex:
    """A registered index is being built from now on."""

    index_id: int

    def changes(self, catalog: Catalog) -> Sequence[Change]:
        """See `Command.changes`."""
        return _status_changed(self, self.index_id, IndexStatus.REGISTERED, IndexStatus.BUILDING, catalog)


@attrs.frozen
class MakeIndexAvailable:
    """An index was built; queries may use it."""

    index_id: int

    def changes(self, catalog: Catalog) -> Sequence[Change]:
        """See `Command.changes`."""
        return _status_changed(self, self.index_id, IndexStatus.BUILDING, IndexStatus.AVAILABLE, catalog)


@attrs.frozen(kw_only=True)
class DropIndex:
    """Stop an available index, or remove one that is not; the index of a primary key stays.

    Attributes:
        if_exists: do nothing if there is none, instead of refusing.
    """

    schema: str
    name: str
    if_exists: bool = False

    def changes(self, catalog: Catalog) -> Sequence[Change]:
        """See `Command.changes`."""
        found = catalog.find_index(self.schema, self.name)
        if found is None:
            if self.if_exists:
                return ()
            raise refuse(self, f"there is no index {self.schema}.{self.name}", catalog)
        if catalog.table(found.table_id).primary_index_id == found.id:
            raise refuse(self, f"index {self.name!r} is that of a primary key", catalog)
        if found.status is IndexStatus.AVAILABLE:
            return (PutObject(attrs.evolve(found, status=IndexStatus.STOPPING)),)
        if found.status is IndexStatus.STOPPING:
            raise refuse(self, f"index {self.name!r} is being stopped already", catalog)
        return (DropObject("index", found.id),)


@attrs.frozen
class RemoveIndex:
    """A stopping index is not used any more: it is removed."""

    index_id: int

    def changes(self, catalog: Catalog) -> Sequence[Change]:
        """See `Command.changes`."""
        found = catalog.indexes.get(self.index_id)
        if found is None or found.status is not IndexStatus.STOPPING:
            told = "there is none of this id" if found is None else f"the index is {found.status}"
            raise refuse(self, f"{told}; only one that is being stopped can be removed", catalog)
        return (DropObject("index", found.id),)


def _status_changed(command: object, index_id: int, before: IndexStatus, after: IndexStatus,
                    catalog: Catalog) -> Sequence[Change]:
    found = catalog.indexes.get(index_id)
    if found is None:
        raise refuse(command, f"there is no index of id {index_id}", catalog)
    if found.status is not before:
        raise refuse(command, f"the index is {found.status}, not {before}", catalog)
    return (PutObject(attrs.evolve(found, status=after)),)


def _require_table(command: object, schema: str, name: str, catalog: Catalog) -> Table:
    found = catalog.find_table(schema, name)
    if found is None:
        raise refuse(command, f"there is no table {schema}.{name}", catalog)
    return found


def _check_new_relation(command: object, schema: str, name: str, catalog: Catalog) -> None:
    check_name(command, name, catalog)
    require_schema(command, schema, catalog)
    if catalog.find_table(schema, name) is not None or catalog.find_index(schema, name) is not None:
        raise refuse(command, f"{schema}.{name} exists", catalog)


def _new_primary_name(command: object, schema: str, table: str, catalog: Catalog) -> str:
    name = f"{table}_PK"
    _check_new_relation(command, schema, name, catalog)
    return name


def _check_columns(command: object, table: Table, names: Sequence[str], catalog: Catalog) -> None:
    if not names or len(names) != len(set(names)):
        raise refuse(command, "columns are to be named, each once", catalog)
    unknown = [name for name in names if table.column(name) is None]
    if unknown:
        raise refuse(command, f"table {table.name!r} has no column {unknown[0]!r}", catalog)
