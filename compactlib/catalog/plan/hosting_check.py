# SPDX-License-Identifier: Apache-2.0
"""Whether every node that hosts a table has reported it: the part of a decision that looks at every node and table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import attrs

from compactlib.catalog.errors import AssignmentsMissing
from compactlib.catalog.model.partitions import ReportedColumns, partitions_of, picker
from compactlib.catalog.model.values import Assignments, Culprit, Factor, NodeReport, ZoneAssignments
from compactlib.catalog.schema.catalog import Catalog

MAX_CULPRITS = 5
"""How many culprits of one factor a decision names; the others are counted."""

_Spread: TypeAlias = tuple[int, int]
"""A zone's id and its number of partitions, as a catalog version has them."""


@attrs.define
class Blocked:
    """What one factor forbids: every version that holds one of these tables, spread so.

    Attributes:
        tables: by table id, the spread under which it was found wanting.
        culprits: the first few.
        more: how many others.
    """

    tables: dict[int, set[_Spread]] = attrs.field(factory=dict)
    culprits: list[Culprit] = attrs.field(factory=list)
    more: int = 0

    def add(self, table: int, spread: _Spread, culprit: Culprit) -> None:
        """Forbid this table under this spread."""
        self.tables.setdefault(table, set()).add(spread)
        if len(self.culprits) < MAX_CULPRITS:
            self.culprits.append(culprit)
        else:
            self.more += 1

    def forbids(self, catalog: Catalog) -> bool:
        """Whether the catalog holds one of the tables. O(blocked tables)."""
        for table_id, spreads in self.tables.items():
            table = catalog.tables.get(table_id)
            if table is not None and _spread(catalog, table.zone_id) in spreads:
                return True
        return False


class HostingCheck:
    """Looks for required (table, partition, node) triples that were not reported. Looks at each table once.

    Args:
        reports: by node name, those that count.
        members: names in the topology.
        assignments: which nodes must host which partitions.
        now: the catalog in force; its tables must be hosted.
        at_watermark: the catalog at the low watermark: a dropped table that is in it may still be read; `None` if it is
            not known, and then every dropped table counts as readable.
    """

    def __init__(self, *, reports: Mapping[str, NodeReport], members: frozenset[str], assignments: Assignments,
                 now: Catalog, at_watermark: Catalog | None) -> None:
        self._hosted = {name: report.hosted for name, report in reports.items()}
        self._members = members
        self._assignments = assignments
        self._now = now
        self._at_watermark = at_watermark
        self._looked_at: set[tuple[int, _Spread]] = set()
        self.blocked: dict[Factor, Blocked] = {factor: Blocked() for factor in HOSTING_FACTORS}

    def look_at(self, catalog: Catalog) -> None:
        """Take in the tables of one version. O(tables, nodes x tables that were not looked at before)."""
        wanted: dict[_Spread, list[int]] = {}
        spreads: dict[int, _Spread] = {zone.id: (zone.id, zone.partitions) for zone in catalog.zones.values()}
        for table in catalog.tables.values():
            spread = spreads[table.zone_id]
            if (table.id, spread) in self._looked_at:
                continue
            self._looked_at.add((table.id, spread))
            if table.id in self._now.tables:
                wanted.setdefault(spread, []).append(table.id)
            elif self._at_watermark is None or table.id in self._at_watermark.tables:
                culprit = Culprit(table=table.id, zone=table.zone_id, owner=f"table {table.name!r} was dropped")
                self.blocked[Factor.DROPPED_TABLE].add(table.id, spread, culprit)
        known = {spread: assigned for spread, tables in wanted.items()
                 if (assigned := self._known(spread, tables)) is not None}
        self._look_at_absent(wanted, known)
        self._look_at_reports(wanted, known)

    def _known(self, spread: _Spread, tables: list[int]) -> ZoneAssignments | None:
        zone, partitions = spread
        assigned = self._assignments.zones.get(zone)
        lacking = (1 << partitions) - 1 & ~(0 if assigned is None else assigned.assigned())
        if not lacking:
            return assigned
        for table in tables:
            culprit = Culprit(table=table, zone=zone, partitions=tuple(partitions_of(lacking)))
            self.blocked[Factor.NO_ASSIGNMENTS].add(table, spread, culprit)
        return None

    def _look_at_absent(self, wanted: dict[_Spread, list[int]], known: dict[_Spread, ZoneAssignments]) -> None:
        """Nodes that host something and are no members of the topology."""
        blocked = self.blocked[Factor.MISSING_NODE]
        for spread, assigned in known.items():
            full = (1 << spread[1]) - 1
            for name in sorted(assigned.masks.keys() - self._members):
                if assigned.masks[name] & full:
                    for table in wanted[spread]:
                        culprit = Culprit(node=name, table=table, zone=spread[0],
                                          partitions=tuple(partitions_of(assigned.masks[name] & full)))
                        blocked.add(table, spread, culprit)

    def _look_at_reports(self, wanted: dict[_Spread, list[int]], known: dict[_Spread, ZoneAssignments]) -> None:
        """Nodes that reported, but not everything: one row of bitmaps a node, compared in C if nothing is missing."""
        if not known:
            return
        zones = list(known)
        rows = [(table, at) for at, spread in enumerate(zones) for table in wanted[spread]]
        assigned = [(known[spread].masks.get, (1 << spread[1]) - 1) for spread in zones]
        must_have = picker([at for _, at in rows])
        columns = ReportedColumns([table for table, _ in rows])
        for name, hosted in self._hosted.items():
            needed = must_have([masks_of(name, 0) & full for masks_of, full in assigned])
            reported = columns.masks_of(hosted)
            if needed == reported:
                continue
            for (table, at), must, has in zip(rows, needed, reported, strict=True):
                if must & ~has:
                    self.blocked[Factor.MISSING_PARTITION].add(table, zones[at], Culprit(
                        node=name, table=table, zone=zones[at][0], partitions=tuple(partitions_of(must & ~has))))

    def require_assignments(self, catalog: Catalog) -> None:
        """Check that the assignments of every live table of this version, which was looked at, are known.

        Raises:
            AssignmentsMissing: some are not; names the first.
        """
        for table_id, spreads in sorted(self.blocked[Factor.NO_ASSIGNMENTS].tables.items()):
            table = catalog.tables.get(table_id)
            if table is not None and _spread(catalog, table.zone_id) in spreads:
                zone, partitions = _spread(catalog, table.zone_id)
                assigned = self._assignments.zones.get(zone)
                lacking = (1 << partitions) - 1 & ~(0 if assigned is None else assigned.assigned())
                raise AssignmentsMissing(table=table_id, zone=zone, partition=next(partitions_of(lacking)))


HOSTING_FACTORS: tuple[Factor, ...] = (
    Factor.MISSING_NODE, Factor.MISSING_PARTITION, Factor.DROPPED_TABLE, Factor.NO_ASSIGNMENTS,
)
"""The factors that `HostingCheck` looks for."""


def _spread(catalog: Catalog, zone_id: int) -> _Spread:
    zone = catalog.zones.get(zone_id)
    return zone_id, 0 if zone is None else zone.partitions
