# SPDX-License-Identifier: Apache-2.0
"""Safety checks right before history is cut: rules that hold whatever decided the target, checked with `-O` too.

`decide` searches; this module checks what it found, in another way and without its caches. Each rule has the letter of
the invariant that it keeps, (a) to (e).
"""

from __future__ import annotations

from compactlib.catalog.errors import TimeBeforeHistory, UnsafeCompaction
from compactlib.catalog.model.values import Factor, Unavailable
from compactlib.catalog.plan.decision import CatalogView
from compactlib.catalog.schema.catalog import Catalog
from compactlib.catalog.schema.versions import RetainedVersions


def check_target(given: CatalogView, target: int) -> None:
    """Check that cutting history to `target` takes nothing from a node that reported, and that all nodes that must have
    reported did.

    Raises:
        UnsafeCompaction: a rule does not hold; names it, with the numbers.

    Cost: O(nodes x tables), like the decision.
    """
    view = given.history
    if not view.has(target) or target <= view.earliest:
        raise _broken("the earliest version only rises (b)", target,
                      f"versions {view.earliest} to {view.latest} are retained")
    if view.activation(target) > given.now:
        raise _broken("only a version that is active can become the earliest (a)", target,
                      f"it becomes active at {view.activation(target)}, it is {given.now}")
    catalog = view.catalog(target)
    if catalog.building:
        raise _broken("no index may be being built in the earliest version (restriction 3)", target,
                      f"index {min(catalog.building)} is")
    _check_answers(given, target)
    _check_floors(given, target)
    _check_dropped(given, catalog)
    _check_hosting(given, catalog)


def _check_answers(given: CatalogView, target: int) -> None:
    reports = {report.node: report for report in given.reports}
    for node in sorted(given.topology.nodes):
        report = reports.get(node)
        if report is None:
            raise _broken("every node of the topology must have answered (a)", target, f"node {node} did not")
        if report.unavailable:
            raise _broken("every source must know what it needs (a)", target,
                          f"node {node}: {report.unavailable[0].factor}: {report.unavailable[0].reason}")
    if not given.topology.nodes or given.low_watermark is None:
        raise _broken("the topology and the low watermark must be known (a)", target,
                      f"{len(given.topology.nodes)} nodes, low watermark {given.low_watermark}")


def _check_floors(given: CatalogView, target: int) -> None:
    floors = [(report.node.name, floor.factor, floor.time) for report in given.reports for floor in report.floors]
    floors += [(report.node.name, Factor.ACTIVE_TRANSACTIONS, report.transactions_from) for report in given.reports]
    if given.low_watermark is not None:
        floors.append(("the coordinator", Factor.LOW_WATERMARK, given.low_watermark))
    for need in given.needs:
        if isinstance(need, Unavailable):
            raise _broken("every source must know what it needs (a)", target, f"{need.factor}: {need.reason}")
        floors.append((str(need.culprit), need.factor, need.time))
    for name, factor, time in floors:
        needed = _needed(given.history, time)
        if needed is None or needed < target:
            raise _broken("whatever a reported time resolves to must stay readable (a)", target,
                          f"{factor} on {name} needs time {time}, which is version {needed}")


def _needed(view: RetainedVersions, time: int) -> int | None:
    try:
        return view.version_at(time)
    except TimeBeforeHistory:
        return None


def _check_dropped(given: CatalogView, catalog: Catalog) -> None:
    marks = [floor.time for report in given.reports for floor in report.floors
             if floor.factor is Factor.LOW_WATERMARK]
    marks += [] if given.low_watermark is None else [given.low_watermark]
    version = _needed(given.history, min(marks))
    now = given.history.at(given.now)
    for table in catalog.tables.values():
        if table.id not in now.tables and (version is None or table.id in given.history.catalog(version).tables):
            raise _broken("a dropped table must not be readable at the low watermark (e)", catalog.version,
                          f"table {table.id} is, in version {version}")


def _check_hosting(given: CatalogView, catalog: Catalog) -> None:
    now = given.history.at(given.now)
    hosted = {report.node.name: report.hosted for report in given.reports}
    required: dict[int, list[int]] = {}
    for table in catalog.tables.values():
        if table.id in now.tables:
            required.setdefault(table.zone_id, []).append(table.id)
    masks = {name: hosting.masks() for name, hosting in hosted.items()}
    for zone_id, tables in required.items():
        zone = catalog.zones.get(zone_id)
        assigned = given.assignments.zones.get(zone_id)
        full = (1 << (0 if zone is None else zone.partitions)) - 1
        if assigned is None or full & ~assigned.assigned():
            raise _broken("who hosts what must be known (e)", catalog.version, f"zone {zone_id}, table {tables[0]}")
        for name, mask in assigned.masks.items():
            reported = masks.get(name, {})
            for table_id in tables:
                if mask & full & ~reported.get(table_id, 0):
                    raise _broken("every required table, partition and node must have been reported (e)",
                                  catalog.version, f"table {table_id} of zone {zone_id} on node {name}")


def _broken(rule: str, target: int, detail: str) -> UnsafeCompaction:
    return UnsafeCompaction(rule=rule, target=target, detail=detail)
