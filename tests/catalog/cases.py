# SPDX-License-Identifier: Apache-2.0
"""A history for many cases: v0@1, v1@10, v2@20, ... v8@80, and nodes A, B and C that need nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs

from compactlib.catalog import (
    Assignments,
    CatalogView,
    Column,
    ColumnType,
    KeepVersions,
    NodeId,
    NodeReport,
    Topology,
    ZoneAssignments,
)
from compactlib.catalog.model.partitions import HostedPartitions
from compactlib.catalog.model.values import Factor, Floor, Unavailable
from compactlib.catalog.plan.decision import decide
from compactlib.catalog.plan.verdict import Compact, Decision, Hold
from compactlib.catalog.schema.catalog import EMPTY, Change, DropObject, PutObject
from compactlib.catalog.schema.descriptors import Index, IndexStatus, Schema, Table, Zone
from compactlib.catalog.schema.versions import RetainedVersions

ALL_NODES = ("A", "B", "C")
SCHEMA = 1
ZONE = 2
TABLE_X = 7
FOREVER = 1000


def schema_and_zone(partitions: int = 25) -> list[Change]:
    return [PutObject(Schema(SCHEMA, "PUBLIC")), PutObject(Zone(id=ZONE, name="Z", partitions=partitions))]


def table(table_id: int, *, zone: int = ZONE, name: str = "") -> list[Change]:
    """A table, with the index of its primary key."""
    primary = table_id + 500
    made = Table(id=table_id, schema_id=SCHEMA, name=name or f"T{table_id}", zone_id=zone, primary_key=("ID",),
                 columns=(Column(name="ID", type=ColumnType.INT64, nullable=False),), primary_index_id=primary)
    return [PutObject(made), PutObject(Index(id=primary, table_id=table_id, name=f"PK{table_id}", columns=("ID",),
                                             unique=True, status=IndexStatus.AVAILABLE))]


def index(index_id: int, status: IndexStatus, table_id: int = TABLE_X) -> list[Change]:
    return [PutObject(Index(id=index_id, table_id=table_id, name=f"I{index_id}", columns=("ID",), status=status))]


def drop_table(table_id: int) -> list[Change]:
    return [DropObject("index", table_id + 500), DropObject("table", table_id)]


def history(changes: Mapping[int, Sequence[Change]] | None = None, *, latest: int = 8,
            earliest: int = 0) -> RetainedVersions:
    """v0@1, v1@10, ... with these changes in these versions."""
    catalogs = [EMPTY]
    for version in range(1, latest + 1):
        found = (changes or {}).get(version, ())
        catalogs.append(catalogs[-1].apply(found, version=version, commit=10 * version, activation=10 * version,
                                           next_id=10_000))
    return RetainedVersions(catalogs[earliest:])


def with_table_x(more: Mapping[int, Sequence[Change]] | None = None, **options: Any) -> RetainedVersions:
    """Table X, id 7, created in v2, in a zone of 25 partitions."""
    changes = {1: schema_and_zone(), 2: table(TABLE_X), **(more or {})}
    return history(changes, **options)


def report(name: str, needs: int | None = FOREVER, *, floors: Iterable[Floor] = (),
           hosted: HostedPartitions | None = None, unavailable: Iterable[Unavailable] = (),
           incarnation: int = 1) -> NodeReport:
    """A node whose minimum required time is `needs`."""
    first = () if needs is None else (Floor(Factor.RAFT_RECOVERY, needs),)
    return NodeReport(node=NodeId(name, incarnation), floors=(*first, *floors), unavailable=tuple(unavailable),
                      hosted=HostedPartitions.of({TABLE_X: range(25)}) if hosted is None else hosted,
                      transactions_from=FOREVER)


def given(view: RetainedVersions, reports: Iterable[NodeReport] | None = None, **changes: Any) -> CatalogView:
    fields: dict[str, Any] = {
        "reports": tuple(map(report, ALL_NODES) if reports is None else reports), "history": view, "now": FOREVER,
        "low_watermark": FOREVER, "topology": Topology.of(*ALL_NODES),
        "assignments": Assignments({ZONE: ZoneAssignments.everywhere(ALL_NODES, 25)}), **changes,
    }
    return CatalogView(**fields)


def decided(*args: Any, margin: int = 0, **named: Any) -> Decision:
    """The decision, of as many versions less as a policy with this margin keeps."""
    asked = given(*args, **named)
    if isinstance(asked.decision, Hold) or not margin:
        return asked.decision
    chosen = KeepVersions(margin).choose(asked, FOREVER)
    if chosen.target is None:
        return Hold(next(iter(asked.decision.why.factors), None), asked.decision.why)
    found = decide(asked, at_most=chosen.target)
    return attrs.evolve(found, why=asked.decision.why) if isinstance(found, Compact) else found


def target(decision: Decision) -> int | None:
    return decision.target if isinstance(decision, Compact) else None


def held_by(decision: Decision) -> Factor | None:
    assert isinstance(decision, Hold), decision
    return decision.factor
