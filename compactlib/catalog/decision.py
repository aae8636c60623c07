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
from compactlib.catalog.schema import Catalog
from compactlib.catalog.timestamp import HIGHEST, Timestamp, show
from compactlib.catalog.values import (
    Assignments,
    Culprit,
    Factor,
    Floor,
    Need,
    NodeReport,
    Topology,
    Unavailable,
    partitions_of,
)
from compactlib.errors import InvalidInput
from compactlib.kv import Condition
from compactlib.report import Printed

MAX_CULPRITS = 5
"""Number of culprits of a factor that a decision names; the others are counted."""
_MAX_REASONS = 3
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
    needs: tuple[Need, ...] = ()
    term: int | None = None
    conditions: tuple[Condition, ...] = ()

    @cached_property
    def decision(self) -> Decision:
        """The highest version to which a cut is safe, or the reason why no cut is; see `decide`."""
        return decide(self)

    @property
    def needed(self) -> int | None:
        """The version in force at the bound; `None` if the bound is not known, or below history."""
        bound = self.decision.bound
        return None if bound is None else version_at(self.history, bound)

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return one row for each node of the topology, and for each other node that reported."""
        asked = {node.name for node in self.topology.nodes}
        reports = {report.node.name: report for report in self.reports}
        rows = []
        for name in sorted(asked | reports.keys()):
            report, needs_from, why = reports.get(name), None, ""
            if report is not None and report.unavailable:
                why = f"{report.unavailable[0].factor}: {report.unavailable[0].reason}"
            elif report is not None and report.floors:
                lowest = min(report.floors, key=lambda floor: floor.time)
                needs_from, why = lowest.time, str(lowest.factor)
            rows.append({"node": name, "asked": name in asked, "reported": report is not None,
                         "needs_from": needs_from, "why": why})
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
        allows = "nothing" if self.allows is None else f"up to version {self.allows}"
        return f"{self.factor}{at} allows {allows}" + (f" ({who})" if who else "")


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
        return "; ".join([*map(str, self.limits[:_MAX_REASONS]), _ADVICE[self.limits[0].factor]])

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return one row for each limit, with its culprits as text."""
        return [{"factor": str(limit.factor), "allows": limit.allows, "time": limit.time,
                 "culprits": "; ".join(map(str, limit.culprits)), "more": limit.more} for limit in self.limits]


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


class _Evidence:
    """The needs of a view, indexed so that many versions can be checked against them.

    Attributes:
        bound: the lowest time that any node needs; `None` if it is not known.
    """

    def __init__(self, view: CatalogView) -> None:
        self._history = view.history
        reports: dict[str, NodeReport] = {}
        for report in view.reports:
            if reports.setdefault(report.node.name, report) is not report:
                raise InvalidInput(f"node {report.node.name!r} reported twice in a round; give one report per node")
        self._unknown = [_limit(factor, None, found) for factor, found in (
            (Factor.NO_ANSWER, list(_without_report(view, reports))),
            (Factor.UNAVAILABLE, list(_not_available(view)))) if found]
        self._floors: dict[Factor, list[Floor]] = defaultdict(list)
        for floor in _floors(view):
            self._floors[floor.factor].append(floor)
        lowest = min((floor.time for floors in self._floors.values() for floor in floors), default=None)
        self.bound: Timestamp | None = None if self._unknown else lowest
        self._hosting = _Hosting(view, reports)

    def limits(self, version: int) -> Iterator[Limit]:
        """Return the limits that forbid a cut to this version."""
        catalog = self._history.catalog(version)
        yield from self._unknown
        for factor, floors in self._floors.items():
            time = min(floor.time for floor in floors)
            allows = version_at(self._history, time)
            if allows is None or allows < version:
                yield _limit(factor, allows, [floor.culprit for floor in floors if floor.time == time], time=time)
        for factor, created in self._forbidding(catalog).items():
            if created:
                blocked = self._hosting.blocked.get(factor) or _Blocked(culprits=[
                    Culprit(index=each, table=table, owner=f"index {catalog.indexes[each].name!r} is "
                                                           f"{catalog.indexes[each].status}")
                    for each, table in sorted(catalog.building.items())])
                yield _limit(factor, self.highest(version, factor), blocked.culprits, more=blocked.more)

    def highest(self, version: int, *factors: Factor) -> int:
        """Return the highest version up to `version` that no object forbids; only objects of `factors`, if given."""
        history = self._history
        while version > history.earliest:
            forbidding = self._forbidding(history.catalog(version))
            created = [time for factor, times in forbidding.items() if not factors or factor in factors
                       for time in times]
            if not created:
                break
            # All versions from `made` to this one have the object.
            made = version_at(history, min(created))
            version = history.earliest if made is None else max(min(made, version) - 1, history.earliest)
        return version

    def _forbidding(self, catalog: Catalog) -> dict[Factor, list[Timestamp]]:
        """Return the creation times of the objects that forbid a cut to this version, by factor."""
        self._hosting.read(catalog)
        return {Factor.INDEX_BUILD: [catalog.indexes[each].created_at for each in catalog.building],
                **{factor: blocked.tables_of(catalog) for factor, blocked in self._hosting.blocked.items()}}


def _limit(factor: Factor, allows: int | None, culprits: Sequence[Culprit], *, time: Timestamp | None = None,
           more: int = 0) -> Limit:
    return Limit(factor=factor, allows=allows, time=time, culprits=tuple(culprits[:MAX_CULPRITS]),
                 more=more + max(len(culprits) - MAX_CULPRITS, 0))


def _without_report(view: CatalogView, reports: Mapping[str, NodeReport]) -> Iterator[Culprit]:
    if not view.topology.nodes:
        yield Culprit(owner="0 nodes are known; give view() the topology and the reports")
    for node in sorted(view.topology.nodes):
        report = reports.get(node.name)
        if report is None:
            yield Culprit(node=node.name, owner="did not answer")
        elif report.node.incarnation != node.incarnation:
            yield Culprit(node=node.name, owner=f"answered as incarnation {report.node.incarnation}; incarnation "
                                                f"{node.incarnation} is in the topology")


def _not_available(view: CatalogView) -> Iterator[Culprit]:
    for report in view.reports:
        for each in report.unavailable:
            yield attrs.evolve(each.culprit, node=report.node.name, owner=f"{each.factor}: {each.reason}")
    for need in view.needs:
        if isinstance(need, Unavailable):
            yield attrs.evolve(need.culprit, owner=f"{need.factor}: {need.reason}")
    if view.low_watermark is None:
        yield Culprit(owner=f"{Factor.LOW_WATERMARK}: the coordinator has none yet")


def _floors(view: CatalogView) -> Iterator[Floor]:
    if view.low_watermark is not None:
        yield Floor(Factor.LOW_WATERMARK, view.low_watermark, Culprit(owner="of the coordinator"))
    yield from (need for need in view.needs if isinstance(need, Floor))
    for report in view.reports:
        name = report.node.name
        # A round publishes this time and partitions then need it, so it counts as a floor.
        found = report.floor(Factor.ACTIVE_TRANSACTIONS)
        if found is None or found.time > report.transactions_from:
            yield Floor(Factor.ACTIVE_TRANSACTIONS, report.transactions_from, Culprit(node=name))
        for floor in report.floors:
            yield attrs.evolve(floor, culprit=attrs.evolve(floor.culprit, node=name))


@attrs.define
class _Blocked:
    """The tables because of which a factor forbids every version that has them.

    Attributes:
        tables: by table id, the spreads under which a version with this table is forbidden.
        culprits: the first `MAX_CULPRITS`.
        more: number of further culprits.
    """

    tables: dict[int, set[_Spread]] = attrs.field(factory=dict)
    culprits: list[Culprit] = attrs.field(factory=list)
    more: int = 0

    def add(self, table: int, spread: _Spread, culprit: Culprit) -> None:
        self.tables.setdefault(table, set()).add(spread)
        if len(self.culprits) < MAX_CULPRITS:
            self.culprits.append(culprit)
        else:
            self.more += 1

    def tables_of(self, catalog: Catalog) -> list[Timestamp]:
        """Return the creation times of the blocked tables that a catalog has. O(blocked tables)."""
        tables = [table for each in self.tables if (table := catalog.tables.get(each)) is not None]
        return [table.created_at for table in tables if _spread(catalog, table.zone_id) in self.tables[table.id]]


class _Hosting:
    """Finds required (table, partition, node) triples that no node reported. Reads each table once."""

    def __init__(self, view: CatalogView, reports: Mapping[str, NodeReport]) -> None:
        self._hosted = {name: report.hosted for name, report in reports.items()}
        self._members = {node.name for node in view.topology.nodes}
        self._assignments = view.assignments
        self._now = view.history.at(max(view.now, view.history.activation(view.history.earliest)))
        # A dropped table that exists at the lowest watermark may still be read.
        marks = [floor.time for report in reports.values() if (floor := report.floor(Factor.LOW_WATERMARK))]
        marks += [] if view.low_watermark is None else [view.low_watermark]
        version = version_at(view.history, min(marks)) if marks else None
        self._at_watermark = None if version is None else view.history.catalog(version)
        self._read: set[tuple[int, _Spread]] = set()
        self.blocked: dict[Factor, _Blocked] = {factor: _Blocked() for factor in (
            Factor.MISSING_NODE, Factor.MISSING_PARTITION, Factor.DROPPED_TABLE, Factor.NO_ASSIGNMENTS)}

    def read(self, catalog: Catalog) -> None:
        """Check the tables of a version. O(tables + nodes x tables that no earlier version had)."""
        required: dict[_Spread, list[int]] = defaultdict(list)
        for table in catalog.tables.values():
            spread = _spread(catalog, table.zone_id)
            if (table.id, spread) in self._read:
                continue
            self._read.add((table.id, spread))
            if table.id in self._now.tables:
                required[spread].append(table.id)
            elif self._at_watermark is None or table.id in self._at_watermark.tables:
                self.blocked[Factor.DROPPED_TABLE].add(table.id, spread, Culprit(
                    table=table.id, zone=table.zone_id, owner=f"table {table.name!r} was dropped"))
        for spread, tables in required.items():
            self._require(spread, tables)

    def _require(self, spread: _Spread, tables: Sequence[int]) -> None:
        """Block the tables of a zone that lack a host."""
        zone, partitions = spread
        full = (1 << partitions) - 1
        assigned = self._assignments.zones.get(zone)
        unknown = full & ~(0 if assigned is None else assigned.assigned())
        if assigned is None or unknown:
            self._block(Factor.NO_ASSIGNMENTS, "", spread, [(table, unknown) for table in tables])
            return
        for name in sorted(assigned.masks):
            needed = assigned.masks[name] & full
            if not needed:
                continue
            if name not in self._members:
                self._block(Factor.MISSING_NODE, name, spread, [(table, needed) for table in tables])
            hosted = self._hosted.get(name)
            if hosted is not None:
                lacking = [(table, needed & ~hosted.get(table, 0)) for table in tables
                           if needed & ~hosted.get(table, 0)]
                self._block(Factor.MISSING_PARTITION, name, spread, lacking)

    def _block(self, factor: Factor, node: str, spread: _Spread, lacking: Sequence[tuple[int, int]]) -> None:
        for table, mask in lacking:
            self.blocked[factor].add(table, spread, Culprit(node=node, table=table, zone=spread[0],
                                                            partitions=tuple(partitions_of(mask))))


def _spread(catalog: Catalog, zone_id: int) -> _Spread:
    zone = catalog.zones.get(zone_id)
    return zone_id, 0 if zone is None else zone.partitions
