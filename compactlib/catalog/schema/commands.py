# SPDX-License-Identifier: Apache-2.0
"""Commands that change the schema. Each checks itself against a catalog and answers with changes.

A batch of commands is one version, or none.

>>> from compactlib.catalog.schema.catalog import EMPTY
>>> update = plan_update(EMPTY, [CreateSchema("PUBLIC"), CreateZone("Z", partitions=4), CreateSchema("PUBLIC", True)])
>>> update.applied, update.next_id, len(update.changes)
((True, True, False), 2, 2)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import attrs

from compactlib._arguments import require_fields
from compactlib.catalog.errors import CommandRefused
from compactlib.catalog.model.partitions import MAX_PARTITIONS
from compactlib.catalog.schema.catalog import Catalog, Change, DropObject, PutObject, SetDefaultZone
from compactlib.catalog.schema.descriptors import Column, Schema, Table, Zone
from compactlib.errors import CompactlibError, InvalidInput

MAX_COMMANDS = 10_000
"""Commands in one batch."""
MAX_NAME = 255
"""Characters of a name."""
MAX_REPLICAS = 1_000
"""Copies of a partition."""


class Command(Protocol):
    """What a batch is made of; hosts may add their own."""

    def changes(self, catalog: Catalog) -> Sequence[Change]:
        """What to change in `catalog`; nothing, if it is already so and the command allows that.

        New objects take their ids from `catalog.next_id` on, in order.

        Raises:
            CommandRefused: the command does not fit the catalog; `refuse` makes one.
        """


@attrs.frozen(kw_only=True)
class PlannedUpdate:
    """What a batch of commands comes down to.

    Attributes:
        changes: all of them, in order; none means that no version is needed.
        applied: one flag per command: whether it changed something.
        next_id: the id after the last one given out.
    """

    changes: tuple[Change, ...]
    applied: tuple[bool, ...]
    next_id: int


def plan_update(catalog: Catalog, commands: Sequence[Command]) -> PlannedUpdate:
    """Check a batch, each command against the catalog that those before it leave. Changes nothing.

    Raises:
        CommandRefused: one does not fit; the batch is refused as a whole.
        InvalidInput: there are more than `MAX_COMMANDS`, or a field of one is of another type than it is to be.
    """
    if len(commands) > MAX_COMMANDS:
        raise InvalidInput(f"{len(commands)} commands in one batch; the limit is {MAX_COMMANDS}: split it")
    changes: list[Change] = []
    applied = []
    state = catalog
    for command in commands:
        try:
            found = command.changes(state)
        except (TypeError, AttributeError, ValueError, LookupError, ArithmeticError) as error:
            if not isinstance(error, CompactlibError) and attrs.has(type(command)):
                _check_fields(command)
            raise
        for change in found:
            _check_types(change, state)
        applied.append(bool(found))
        changes += (_unstamped(change, catalog) for change in found)
        state = state.apply(found, version=state.version, commit=state.commit, activation=state.activation,
                            next_id=_id_after(state, found))
    return PlannedUpdate(changes=tuple(changes), applied=tuple(applied), next_id=state.next_id)


def _check_fields(command: Any) -> None:
    require_fields(command)
    for value in attrs.asdict(command, recurse=False).values():
        for each in value if isinstance(value, tuple) else (value,):
            if isinstance(each, Column):
                require_fields(each)


def _check_types(change: Change, state: Catalog) -> None:
    """Pass what can be stored, and comes back as it is."""
    if isinstance(change, PutObject):
        require_fields(change.descriptor)
        if isinstance(change.descriptor, Table):
            known = state.tables.get(change.descriptor.id)
            checked = set(map(id, () if known is None else known.columns))
            for column in change.descriptor.columns:
                if id(column) not in checked:
                    require_fields(column)


def _unstamped(change: Change, catalog: Catalog) -> Change:
    """The change as its version is to stamp it: what an earlier command of the batch has made is as new as that."""
    if (isinstance(change, PutObject) and change.descriptor.id >= catalog.next_id
            and change.descriptor.created_at == catalog.activation):
        return PutObject(attrs.evolve(change.descriptor, created_at=0))
    return change


def _id_after(state: Catalog, changes: Sequence[Change]) -> int:
    new = (change.descriptor.id for change in changes if isinstance(change, PutObject))
    return max(state.next_id, max(new, default=-1) + 1)


def refuse(command: object, reason: str, catalog: Catalog) -> CommandRefused:
    """The error of a command that does not fit `catalog`."""
    return CommandRefused(command=repr(command), reason=reason, version=catalog.version)


def check_name(command: object, name: str, catalog: Catalog) -> None:
    """Check a name.

    Raises:
        CommandRefused: it is empty, longer than `MAX_NAME`, or holds characters that cannot be printed.
    """
    if type(name) is not str or not 1 <= len(name) <= MAX_NAME or not name.isprintable():
        raise refuse(command, f"{str(name)[:40]!r} is no name; give 1 to {MAX_NAME} printable characters", catalog)


def require_schema(command: object, name: str, catalog: Catalog) -> Schema:
    """The schema of this name.

    Raises:
        CommandRefused: there is none.
    """
    found = catalog.find_schema(name)
    if found is None:
        raise refuse(command, f"there is no schema {name!r}", catalog)
    return found


def require_zone(command: object, name: str, catalog: Catalog) -> Zone:
    """The zone of this name, or the default zone for `""`.

    Raises:
        CommandRefused: there is none.
    """
    if name:
        found = catalog.find_zone(name)
    else:
        found = None if catalog.default_zone is None else catalog.zones.get(catalog.default_zone)
    if found is None:
        raise refuse(command, f"there is no zone {name!r}" if name else "there is no default zone", catalog)
    return found


# --- schemas ------------------------------------------------------------------------------------------------------


@attrs.frozen
class CreateSchema:
    """Create a schema.

    Attributes:
        name: its name.
        if_not_exists: do nothing if there is one of this name, instead of refusing.
    """

    name: str
    if_not_exists: bool = False

    def changes(self, catalog: Catalog) -> Sequence[Change]:
        """See `Command.changes`."""
        check_name(self, self.name, catalog)
        if catalog.find_schema(self.name) is not None:
            if self.if_not_exists:
                return ()
            raise refuse(self, f"schema {self.name!r} exists", catalog)
        return (PutObject(Schema(catalog.next_id, self.name)),)


@attrs.frozen
class DropSchema:
    """Drop a schema without tables.

    Attributes:
        name: its name.
        if_exists: do nothing if there is none, instead of refusing.
    """

    name: str
    if_exists: bool = False

    def changes(self, catalog: Catalog) -> Sequence[Change]:
        """See `Command.changes`."""
        found = catalog.find_schema(self.name)
        if found is None:
            if self.if_exists:
                return ()
            raise refuse(self, f"there is no schema {self.name!r}", catalog)
        if catalog.tables_of.get(found.id):
            held = [table.name for table in catalog.tables.values() if table.schema_id == found.id]
            raise refuse(self, f"schema {self.name!r} still has {len(held)} tables, {held[0]!r} among them", catalog)
        return (DropObject("schema", found.id),)


# --- zones --------------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class CreateZone:
    """Create a zone; the attributes are those of `Zone`.

    Attributes:
        if_not_exists: do nothing if there is one of this name, instead of refusing.
    """

    name: str = attrs.field(kw_only=False)
    partitions: int = 25
    replicas: int = 1
    quorum: int = 1
    node_filter: str = ""
    storage_profiles: tuple[str, ...] = ("default",)
    strong_consistency: bool = True
    scale_up_seconds: int = 0
    scale_down_seconds: int = 0
    if_not_exists: bool = False

    def changes(self, catalog: Catalog) -> Sequence[Change]:
        """See `Command.changes`."""
        check_name(self, self.name, catalog)
        if catalog.find_zone(self.name) is not None:
            if self.if_not_exists:
                return ()
            raise refuse(self, f"zone {self.name!r} exists", catalog)
        fields = attrs.asdict(self, recurse=False)
        del fields["if_not_exists"]
        zone = Zone(id=catalog.next_id, **fields)
        _check_zone(self, zone, catalog)
        return (PutObject(zone),)


@attrs.frozen(kw_only=True)
class AlterZone:
    """Change a zone; what is `None` stays as it is. The number of partitions can only grow.

    Attributes:
        new_name: rename it.
    """

    name: str = attrs.field(kw_only=False)
    new_name: str | None = None
    partitions: int | None = None
    replicas: int | None = None
    quorum: int | None = None
    node_filter: str | None = None
    storage_profiles: tuple[str, ...] | None = None
    strong_consistency: bool | None = None
    scale_up_seconds: int | None = None
    scale_down_seconds: int | None = None

    def changes(self, catalog: Catalog) -> Sequence[Change]:
        """See `Command.changes`."""
        before = require_zone(self, self.name, catalog)
        given = {name: value for name, value in attrs.asdict(self, recurse=False).items() if value is not None}
        given["name"] = given.pop("new_name", self.name)
        after = attrs.evolve(before, **given)
        check_name(self, after.name, catalog)
        if after.name != before.name and catalog.find_zone(after.name) is not None:
            raise refuse(self, f"zone {after.name!r} exists", catalog)
        if after.partitions < before.partitions:
            raise refuse(self, f"{before.partitions} partitions cannot become {after.partitions}", catalog)
        _check_zone(self, after, catalog)
        return () if after == before else (PutObject(after),)


@attrs.frozen
class DropZone:
    """Drop a zone without tables.

    Attributes:
        name: its name.
        if_exists: do nothing if there is none, instead of refusing.
    """

    name: str
    if_exists: bool = False

    def changes(self, catalog: Catalog) -> Sequence[Change]:
        """See `Command.changes`."""
        found = catalog.find_zone(self.name)
        if found is None:
            if self.if_exists:
                return ()
            raise refuse(self, f"there is no zone {self.name!r}", catalog)
        if catalog.tables_in.get(found.id):
            held = [table.name for table in catalog.tables.values() if table.zone_id == found.id]
            raise refuse(self, f"zone {self.name!r} still has {len(held)} tables, {held[0]!r} among them", catalog)
        if catalog.default_zone == found.id:
            raise refuse(self, f"zone {self.name!r} is the default zone; choose another one first", catalog)
        return (DropObject("zone", found.id),)


@attrs.frozen
class ChooseDefaultZone:
    """Let tables that name no zone go into this one from now on."""

    name: str

    def changes(self, catalog: Catalog) -> Sequence[Change]:
        """See `Command.changes`."""
        found = require_zone(self, self.name, catalog)
        return () if catalog.default_zone == found.id else (SetDefaultZone(found.id),)


def _check_zone(command: object, zone: Zone, catalog: Catalog) -> None:
    if not 1 <= zone.partitions <= MAX_PARTITIONS:
        raise refuse(command, f"{zone.partitions} partitions; give 1 to {MAX_PARTITIONS}", catalog)
    if not 1 <= zone.replicas <= MAX_REPLICAS:
        raise refuse(command, f"{zone.replicas} replicas; give 1 to {MAX_REPLICAS}", catalog)
    if not 1 <= zone.quorum <= zone.replicas:
        raise refuse(command, f"a quorum of {zone.quorum} among {zone.replicas} replicas; give 1 to {zone.replicas}",
                     catalog)
    if min(zone.scale_up_seconds, zone.scale_down_seconds) < 0:
        raise refuse(command, "a negative delay; give 0 or more seconds", catalog)
    if not zone.storage_profiles:
        raise refuse(command, "no storage profile; name at least one", catalog)
