# SPDX-License-Identifier: Apache-2.0
"""`decide`: from the reports of all nodes, in a `CatalogView`, to the version up to which history may be cut; pure.

The design names four restrictions. The catalog must not be cut

1. above a version that an active transaction uses,
2. above a version that a node may need to replay the Raft log of a partition,
3. to a version in which an index is being built, as the status of the catalog's indexes shows,
4. above a version that a rebalance depends on.

Restrictions 1, 2 and 4 are times that nodes report. The lowest of these times is the *bound*, and the version in force
at the bound is the highest candidate, since it stays readable as the snapshot. Four conditions forbid a cut to a
candidate: the topology lacks a node that the candidate's tables need, a node lacks a partition that it must host, an
index is being built (3), a rebalance may refer to the candidate (4).

`limits_of` returns the limits that forbid a version. `decide` walks down from the bound to the first version without
limits, so that an index build as the last change, or a table created a moment ago, does not stop every cut. Right
before a cut, `limits_of` checks the target again.

Sized for a thousand nodes and a thousand tables: a decision compares each node's bitmap of each table once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, TypeAlias

import attrs

from compactlib.catalog.errors import TimeBeforeHistory
from compactlib.catalog.history import RetainedVersions
from compactlib.catalog.schema import Catalog, CatalogTable
from compactlib.catalog.timestamp import HIGHEST, Timestamp, show
from compactlib.catalog.values import (
    Assignments,
    Culprit,
    Factor,
    Floor,
    NodeReport,
    Topology,
    partitions_of,
)
from compactlib.errors import InvalidInput
from compactlib.kv import Conditions
from compactlib.report import Printed

MAX_CULPRITS = 5
"""Number of culprits of a factor that a decision names; the others are counted."""
_ADVICE = {
    Factor.ACTIVE_TRANSACTIONS: "end them, or wait",
    Factor.RAFT_RECOVERY: "flush these partitions, remove those of dropped tables, or wait",
    Factor.INDEX_BUILD: "wait until it is built, or drop the index",
    Factor.REBALANCE: "wait until it is complete",
    Factor.LOW_WATERMARK: "wait until it is raised, or lower data_availability_seconds",
    Factor.PIN: "release it, or wait until it expires",
    Factor.MISSING_NODE: "start the node, or assign its partitions to others",
    Factor.MISSING_PARTITION: "register the partition on its node, or assign it to another",
    Factor.DROPPED_TABLE: "wait until the low watermark has passed the drop",
    Factor.NO_ASSIGNMENTS: "read the assignments again",
    Factor.NO_ANSWER: "start these nodes, or take them out of the topology",
    Factor.UNAVAILABLE: "wait until it is known; a low watermark is known once it was raised",
}
_Spread: TypeAlias = tuple[int, int]
"""A zone's id and its number of partitions in a catalog version."""
_Hosts: TypeAlias = tuple[Mapping[Factor, Sequence[tuple[str, int]]], Sequence[tuple[str, int, Mapping[int, int]]]]
"""The nodes that must host a zone: absent ones; name, required partitions and reported bitmaps by table of others."""


# ----------------------------------------------------------------------------------------------------------- the view


@attrs.frozen(kw_only=True, repr=False, slots=False)
class CatalogView(Printed):
    """The input of a policy: the retained versions, and the needs of the nodes.

    Attributes:
        reports: one per node that answered, including the coordinator.
        now: the coordinator's time; a table absent from the catalog active now counts as dropped.
        low_watermark: the coordinator's; `None` before it was first raised, and then nothing is cut.
        assignments: stable assignments of the zones.
        topology: the nodes of the round; nothing is cut while it is empty.
        needs: needs that no report contains: the lowest pin.
        term: the coordinator's term; `None` without an election.
        conditions: states of keys (pins, membership, term) that must be unchanged when history is cut.
    """

    reports: tuple[NodeReport, ...]
    history: RetainedVersions
    now: Timestamp
    low_watermark: Timestamp | None
    assignments: Assignments
    topology: Topology
    needs: tuple[Floor, ...] = ()
    term: int | None = None
    conditions: Conditions = attrs.field(factory=dict)

    @cached_property
    def decision(self) -> Decision:
        """The highest version to which a cut is safe, or the reason why no cut is; see `decide`."""
        return decide(self)

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return one row for each node of the topology, and for each other node that reported."""
        asked = {node.name for node in self.topology.nodes}
        reports = {report.node.name: report for report in self.reports}
        rows = []
        for name in sorted(asked | reports.keys()):
            floors = reports[name].floors if name in reports else ()
            lowest = min(floors, key=lambda floor: floor.time, default=None)
            rows.append({"node": name, "asked": name in asked, "reported": name in reports,
                         "needs_from": (lowest and lowest.time) or None, "why": str(lowest.factor) if lowest else ""})
        return rows

    def _summary(self) -> str:
        return (f"versions {self.history.earliest} to {self.history.latest}, {len(self.reports)} reports of "
                f"{len(self.topology.nodes)} nodes")


def version_at(history: RetainedVersions, time: Timestamp) -> int | None:
    """Return the version in force at `time`; `None` if it is not retained."""
    try:
        return history.version_at(time)
    except TimeBeforeHistory:
        return None


# ------------------------------------------------------------------------------------------------------ the result


@attrs.frozen(kw_only=True)
class Limit:
    """The limit that a factor sets to the target.

    Attributes:
        allows: the highest target that this factor alone would allow; `None`: it forbids every cut.
        time: the lowest time that the factor needs; `None` if the factor has no time.
        culprits: the causes, up to `MAX_CULPRITS`.
        more: number of further culprits.
    """

    factor: Factor
    allows: int | None
    time: Timestamp | None = None
    culprits: tuple[Culprit, ...] = ()
    more: int = 0

    def __str__(self) -> str:
        at = "" if self.time is None else f" at {show(self.time)}"
        who = "; ".join(map(str, self.culprits)) + (f" and {self.more} more" if self.more else "")
        cut = "no cut" if self.allows is None else f"cut at most to version {self.allows}"
        return f"{cut}: {self.factor}{at}" + (f" ({who})" if who else "")


@attrs.frozen(kw_only=True)
class Decision:
    """The version up to which history may be cut, and the limits that prevent cutting further.

    Attributes:
        target: the highest version that may become the earliest, as a snapshot; `None`: nothing may be cut.
        earliest: the earliest retained version, before the cut.
        latest: the latest registered version.
        bound: the lowest time that any node needs; `None` if it is not known.
        limits: every factor that forbids a cut to the version in force now, the strongest first.
    """

    target: int | None
    earliest: int
    latest: int
    bound: Timestamp | None = None
    limits: tuple[Limit, ...] = ()

    @property
    def factors(self) -> tuple[Factor, ...]:
        """The limiting factors, the strongest first."""
        return tuple(limit.factor for limit in self.limits)

    def reason(self) -> str:
        """Return the strongest limits and the operator's remedy, in one sentence."""
        if not self.limits:
            return f"history is as short as it can be: it begins at version {self.earliest}, which is in force"
        return "; ".join([*map(str, self.limits[:3]), _ADVICE[self.limits[0].factor]])


def decide(view: CatalogView, *, at_most: int | None = None) -> Decision:
    """Choose the highest target up to which history may be cut, and list what prevents cutting further.

    Args:
        view: the retained versions and the needs of the nodes.
        at_most: upper limit of the target; default: the version in force now.

    Raises:
        InvalidInput: a node is in `reports` twice.

    Cost: O(nodes x tables); linear in each.
    """
    history, evidence = view.history, _Evidence(view)
    # Version 0 is in memory only: the log begins with version 1.
    lowest = max(history.earliest, 1)
    wanted = version_at(history, view.now)
    if wanted is not None and at_most is not None:
        wanted = min(wanted, at_most)
    bound = evidence.bound
    decision = Decision(target=None, earliest=history.earliest, latest=history.latest, bound=bound)
    if wanted is None or wanted <= lowest:
        return decision
    allowed = None if bound is None else version_at(history, bound)
    ceiling = lowest if allowed is None else max(lowest, min(allowed, wanted))
    target = evidence.highest(ceiling)
    limits = {limit.factor: limit for limit in evidence.limits(wanted)}
    for limit in evidence.limits(ceiling):
        # A factor without a limit at `wanted` may have a limit at `ceiling`, the version that the bound allows.
        limits.setdefault(limit.factor, limit)
    return attrs.evolve(decision, target=target if target > lowest else None,
                        limits=tuple(sorted(limits.values(), key=_strength)))


def limits_of(view: CatalogView, version: int) -> tuple[Limit, ...]:
    """Return the limits that forbid a cut to this version, the strongest first; empty if the cut is safe.

    Raises:
        CatalogVersionNotFound: the version is not retained.
        InvalidInput: a node is in `reports` twice.
    """
    return tuple(sorted(_Evidence(view).limits(version), key=_strength))


_ORDER = {factor: place for place, factor in enumerate(Factor)}


def _strength(limit: Limit) -> tuple[int, Timestamp, int]:
    """Sort by the version that a limit allows, then by its time."""
    at = HIGHEST if limit.time is None else limit.time
    return (-1 if limit.allows is None else limit.allows, at, _ORDER[limit.factor])


# ---------------------------------------------------------------------------------------------------- the evidence


@attrs.frozen
class _Obstacle:
    """A table or an index that forbids a cut to every version that has it.

    Attributes:
        created_at: activation of the version that created it.
        culprits: the first `MAX_CULPRITS`.
        count: number of culprits.
    """

    factor: Factor
    created_at: Timestamp
    culprits: Sequence[Culprit]
    count: int = 1


class _Evidence:
    """The needs of a view, indexed so that many versions can be checked against them.

    Attributes:
        bound: the lowest time that any node needs; `None` if it is not known.
    """

    def __init__(self, view: CatalogView) -> None:
        self._history = view.history
        self._reports: dict[str, NodeReport] = {}
        for report in view.reports:
            if self._reports.setdefault(report.node.name, report) is not report:
                raise InvalidInput(f"node {report.node.name!r} reported twice in a round; give one report per node")
        self._floors: dict[Factor, list[Floor]] = defaultdict(list)
        for floor in _floors(view, self._reports):
            self._floors[floor.factor].append(floor)
        # Without a low watermark, the lowest floor is 0.
        self.bound: Timestamp | None = min(floor.time for floors in self._floors.values() for floor in floors) or None
        self._members = {node.name for node in view.topology.nodes}
        self._assignments = view.assignments
        self._now = view.history.at(max(view.now, view.history.activation(view.history.earliest)))
        # A dropped table that exists at the lowest watermark may still be read.
        marks = [floor.time for floor in self._floors.get(Factor.LOW_WATERMARK, ())]
        version = version_at(view.history, min(marks)) if marks else None
        self._at_watermark = None if version is None else view.history.catalog(version)
        self._tables: dict[tuple[int, _Spread], list[_Obstacle]] = {}
        self._hosts: dict[_Spread, _Hosts] = {}

    def limits(self, version: int) -> Iterator[Limit]:
        """Return the limits that forbid a cut to this version."""
        for factor, floors in self._floors.items():
            time = min(floor.time for floor in floors)
            allows = version_at(self._history, time)
            if allows is None or allows < version:
                lowest = [floor.culprit for floor in floors if floor.time == time]
                yield _limit(factor, allows, lowest, len(lowest), time=time or None)
        found: dict[Factor, list[_Obstacle]] = defaultdict(list)
        for obstacle in self._obstacles(self._history.catalog(version)):
            found[obstacle.factor].append(obstacle)
        for factor, obstacles in found.items():
            culprits = [culprit for obstacle in obstacles[:MAX_CULPRITS] for culprit in obstacle.culprits]
            yield _limit(factor, self.highest(version, factor), culprits, sum(each.count for each in obstacles))

    def highest(self, version: int, factor: Factor | None = None) -> int:
        """Return the highest version up to `version` without an obstacle, or without an obstacle of this factor."""
        history = self._history
        while version > history.earliest:
            created = [each.created_at for each in self._obstacles(history.catalog(version))
                       if factor in (None, each.factor)]
            if not created:
                break
            # All versions from `made` to this one have the object.
            made = version_at(history, min(created))
            version = history.earliest if made is None else max(min(made, version) - 1, history.earliest)
        return version

    def _obstacles(self, catalog: Catalog) -> Iterator[_Obstacle]:
        """Yield the obstacles to a cut to a version. O(tables), and O(nodes) for each table on its first visit."""
        for each, table_id in sorted(catalog.building.items()):
            index = catalog.indexes[each]
            yield _Obstacle(Factor.INDEX_BUILD, index.created_at, [
                Culprit(index=each, table=table_id, owner=f"index {index.name!r} is {index.status}")])
        for table in catalog.tables.values():
            zone = catalog.zones.get(table.zone_id)
            place = table.id, (table.zone_id, 0 if zone is None else zone.partitions)
            if place not in self._tables:
                self._tables[place] = list(self._of_table(table, place[1]))
            yield from self._tables[place]

    def _of_table(self, table: CatalogTable, spread: _Spread) -> Iterator[_Obstacle]:
        """Yield the obstacles that a table is, under the spread of its zone."""
        if table.id not in self._now.tables:
            if self._at_watermark is None or table.id in self._at_watermark.tables:
                yield _Obstacle(Factor.DROPPED_TABLE, table.created_at, [
                    Culprit(table=table.id, zone=spread[0], owner=f"table {table.name!r} was dropped")])
            return
        if spread not in self._hosts:
            self._hosts[spread] = self._hosts_of(spread)
        absent, present = self._hosts[spread]
        lacking = [(name, lacks) for name, needed, hosted in present if (lacks := needed & ~hosted.get(table.id, 0))]
        for factor, nodes in (*absent.items(), (Factor.MISSING_PARTITION, lacking)):
            if nodes:
                yield _Obstacle(factor, table.created_at, [
                    Culprit(node=name, table=table.id, zone=spread[0], partitions=tuple(partitions_of(mask)))
                    for name, mask in nodes[:MAX_CULPRITS]], len(nodes))

    def _hosts_of(self, spread: _Spread) -> _Hosts:
        """Return the nodes that lack all tables of a zone, by factor, with their partitions; and the others."""
        zone, partitions = spread
        full = (1 << partitions) - 1
        assigned = self._assignments.get(zone)
        unknown = full & ~(0 if assigned is None else assigned.assigned())
        if assigned is None or unknown:
            return {Factor.NO_ASSIGNMENTS: [("", unknown)]}, []
        needed = [(name, mask & full) for name, mask in sorted(assigned.masks.items()) if mask & full]
        return ({Factor.MISSING_NODE: [each for each in needed if each[0] not in self._members]},
                [(name, mask, self._reports[name].hosted) for name, mask in needed if name in self._reports])


def _limit(factor: Factor, allows: int | None, culprits: Sequence[Culprit], count: int, *,
           time: Timestamp | None = None) -> Limit:
    shown = tuple(culprits[:MAX_CULPRITS])
    return Limit(factor=factor, allows=allows, time=time, culprits=shown, more=count - len(shown))


def _floors(view: CatalogView, reports: Mapping[str, NodeReport]) -> Iterator[Floor]:
    """Yield all needs; a need that is not known is a floor at time 0."""
    if view.low_watermark is None:
        yield Floor.unknown("the coordinator has no low watermark yet")
    else:
        yield Floor(Factor.LOW_WATERMARK, view.low_watermark, Culprit(owner="of the coordinator"))
    yield from view.needs
    if not view.topology.nodes:
        yield Floor(Factor.NO_ANSWER, 0, Culprit(owner="0 nodes are known; give view() the topology and the reports"))
    for node in sorted(view.topology.nodes):
        report = reports.get(node.name)
        if report is None:
            yield Floor(Factor.NO_ANSWER, 0, Culprit(node=node.name, owner="did not answer"))
        elif report.node.incarnation != node.incarnation:
            yield Floor(Factor.NO_ANSWER, 0, Culprit(
                node=node.name, owner=f"answered as incarnation {report.node.incarnation}; incarnation "
                                      f"{node.incarnation} is in the topology"))
    for name, report in reports.items():
        # A round publishes this time and partitions then need it, so it counts as a floor.
        if not any(each.factor is Factor.ACTIVE_TRANSACTIONS and each.time <= report.transactions_from
                   for each in report.floors):
            yield Floor(Factor.ACTIVE_TRANSACTIONS, report.transactions_from, Culprit(node=name))
        for floor in report.floors:
            yield attrs.evolve(floor, culprit=attrs.evolve(floor.culprit, node=name))
