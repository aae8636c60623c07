# SPDX-License-Identifier: Apache-2.0
"""The four commands that change the schema. A batch makes one version; a batch without effect makes no version.

>>> from compactlib.catalog.schema import EMPTY, Schema, Zone
>>> batch = [PutObject(Schema("S")), PutObject(Zone("Z", partitions=4)), PutObject(Schema("S"), if_exists="keep")]
>>> update, applied = plan_update(EMPTY, batch, commit=10, activation=20)
>>> applied, update.next_id, len(update.puts)
((True, True, False), 2, 2)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol

import attrs

from compactlib._arguments import is_one_of
from compactlib.catalog.errors import CommandRefused
from compactlib.catalog.schema import (
    KINDS,
    NO_ID,
    Catalog,
    CatalogObject,
    CatalogTable,
    Index,
    IndexStatus,
    Schema,
    Update,
    Zone,
)
from compactlib.catalog.timestamp import Timestamp
from compactlib.catalog.values import MAX_PARTITIONS
from compactlib.errors import InvalidInput

MAX_COMMANDS = 10_000
"""Commands in one batch."""
MAX_NAME = 255
"""Characters of a name."""
Kind = Literal["schema", "zone", "table", "index"]
IfExists = Literal["refuse", "keep", "replace"]


class Command(Protocol):
    """An item of a batch; a host may write its own."""

    def apply(self, draft: Catalog) -> bool:
        """Change a copy of the latest version, to which the commands of a batch are applied in turn.

        Returns:
            Whether it changed.

        Raises:
            CommandRefused: the command does not fit the catalog; `refuse` makes this error.
        """


def plan_update(catalog: Catalog, commands: Sequence[Command], *, commit: Timestamp,
                activation: Timestamp) -> tuple[Update, tuple[bool, ...]]:
    """Check a batch, each command against the catalog that results from the commands before it.

    O(commands), and a copy of the dictionaries of all objects.

    Args:
        catalog: the latest version.
        commands: the batch.
        commit: commit time of the next version.
        activation: time from which the next version is in force.

    Returns:
        The update to the next version, without puts and drops if nothing changes; and for each command whether it
        changed anything.

    Raises:
        CommandRefused: a command does not fit; the batch is refused as a whole.
        InvalidInput: the batch has more than `MAX_COMMANDS`.
    """
    if len(commands) > MAX_COMMANDS:
        raise InvalidInput(f"{len(commands)} commands in one batch; the limit is {MAX_COMMANDS}: split it")
    draft = catalog.copy()
    applied = tuple(command.apply(draft) for command in commands)
    return draft.difference(catalog, commit=commit, activation=activation), applied


def refuse(command: object, reason: str, draft: Catalog) -> CommandRefused:
    """Return the error for a command that does not fit the draft."""
    return CommandRefused(command=repr(command), reason=reason, version=draft.version)


# ----------------------------------------------------------------------------------------------------- the commands


@attrs.frozen
class PutObject:
    """Create or replace an object.

    Attributes:
        object: the object, without an id.
        schema: name of the schema; for tables and indexes.
        zone: name of the zone; for tables.
        table: name of the table; for indexes.
        if_exists: if the name is taken, `"refuse"` the batch, `"keep"` the existing object, or `"replace"` it under its
            id.
    """

    object: Schema | Zone | CatalogTable | Index
    schema: str = attrs.field(default="", kw_only=True)
    zone: str = attrs.field(default="", kw_only=True)
    table: str = attrs.field(default="", kw_only=True)
    if_exists: IfExists = attrs.field(default="refuse", validator=is_one_of(IfExists), kw_only=True)

    def apply(self, draft: Catalog) -> bool:
        item = self.object
        _check_name(self, item.name, draft)
        if isinstance(item, Zone) and not 1 <= item.partitions <= MAX_PARTITIONS:
            raise refuse(self, f"{item.partitions} partitions; give 1 to {MAX_PARTITIONS}", draft)
        if isinstance(item, CatalogTable):
            item = attrs.evolve(item, schema_id=_found(self, "schema", self.schema, "", draft).id,
                               zone_id=_found(self, "zone", self.zone, "", draft).id)
        if isinstance(item, Index):
            item = attrs.evolve(item, table_id=_found(self, "table", self.table, self.schema, draft).id)
        known = _taken(item, self.schema, draft)
        if known is None:
            draft.put(attrs.evolve(item, id=NO_ID, created_at=0))
            return True
        if self.if_exists == "refuse" or type(known) is not type(item):
            raise refuse(self, f"{KINDS[type(known)]} {item.name!r} exists", draft)
        item = attrs.evolve(item, id=known.id, created_at=known.created_at, updated_at=known.updated_at)
        if self.if_exists == "keep" or item == known:
            return False
        if isinstance(item, CatalogTable) and isinstance(known, CatalogTable) and item.schema_id != known.schema_id:
            raise refuse(self, "a table stays in its schema", draft)
        draft.put(item)
        return True


@attrs.frozen
class DropObject:
    """Drop an object: a table with its indexes, or an index, or a schema or zone that has no tables.

    Attributes:
        schema: name of the schema; for tables and indexes.
        if_exists: ignore a name that does not exist, instead of refusing the batch.
    """

    kind: Kind = attrs.field(validator=is_one_of(Kind))
    name: str
    schema: str = attrs.field(default="", kw_only=True)
    if_exists: bool = attrs.field(default=False, kw_only=True)

    def apply(self, draft: Catalog) -> bool:
        found = draft.find(self.kind, self.name, self.schema)
        if found is None:
            if self.if_exists:
                return False
            raise refuse(self, f"there is no {self.kind} {self.name!r}", draft)
        if isinstance(found, Schema | Zone):
            held = [table.name for table in draft.tables.values()
                    if found.id in (table.schema_id, table.zone_id)]
            if held:
                raise refuse(self, f"{self.kind} {self.name!r} still has {len(held)} tables, {held[0]!r} among them",
                             draft)
        if isinstance(found, CatalogTable):
            for index in [each for each in draft.indexes.values() if each.table_id == found.id]:
                draft.drop("index", index.id)
        draft.drop(self.kind, found.id)
        return True


@attrs.frozen
class RenameObject:
    """Rename an object.

    Attributes:
        to: the new name.
        schema: name of the schema; for tables and indexes.
    """

    kind: Kind = attrs.field(validator=is_one_of(Kind))
    name: str
    to: str
    schema: str = attrs.field(default="", kw_only=True)

    def apply(self, draft: Catalog) -> bool:
        found = _found(self, self.kind, self.name, self.schema, draft)
        _check_name(self, self.to, draft)
        if self.to == self.name:
            return False
        renamed = attrs.evolve(found, name=self.to)
        if _taken(renamed, self.schema, draft) is not None:
            raise refuse(self, f"{self.to!r} exists", draft)
        draft.put(renamed)
        return True


@attrs.frozen
class SetIndexStatus:
    """Set the build status of an index."""

    name: str
    status: IndexStatus = attrs.field(converter=IndexStatus)
    schema: str = attrs.field(default="", kw_only=True)

    def apply(self, draft: Catalog) -> bool:
        found = _found(self, "index", self.name, self.schema, draft)
        if found.status is self.status:
            return False
        draft.put(attrs.evolve(found, status=self.status))
        return True


def _check_name(command: object, name: str, draft: Catalog) -> None:
    if not 1 <= len(name) <= MAX_NAME or not name.isprintable():
        raise refuse(command, f"{name[:40]!r} is no name; give 1 to {MAX_NAME} printable characters", draft)


def _found(command: object, kind: str, name: str, schema: str, draft: Catalog) -> Any:
    found = draft.find(kind, name, schema)
    if found is None:
        raise refuse(command, f"there is no {kind} {f'{schema}.' if schema else ''}{name}", draft)
    return found


def _taken(item: CatalogObject, schema: str, draft: Catalog) -> CatalogObject | None:
    """Return the object that has this name already. Tables and indexes of a schema share a name space."""
    kinds = ("table", "index") if isinstance(item, CatalogTable | Index) else (KINDS[type(item)],)
    return next((found for kind in kinds if (found := draft.find(kind, item.name, schema)) is not None), None)
