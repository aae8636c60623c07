# SPDX-License-Identifier: Apache-2.0
"""`decide`: from what every node reported, a `CatalogView`, to the version up to which history may be cut; pure.

The lowest time that any node needs is the *bound*. The version in force at the bound stays readable, as the snapshot,
so it is the highest candidate; a policy may choose a lower one. From there the search goes down to the highest version
that no index build, missing node or missing partition forbids: an index build as the last change, or a table created a
moment ago, does not stop everything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any

import attrs

from compactlib.catalog.errors import DuplicateReport, EmptyTopology, TimeBeforeHistory
from compactlib.catalog.log.log_sizes import LogSizes
from compactlib.catalog.model.timestamp import HIGHEST, Timestamp
from compactlib.catalog.model.values import (
    Assignments,
    Culprit,
    Factor,
    Floor,
    Need,
    NodeReport,
    Topology,
    Unavailable,
)
from compactlib.catalog.plan.hosting_check import HOSTING_FACTORS, MAX_CULPRITS, HostingCheck
from compactlib.catalog.plan.verdict import Compact, Decision, Explanation, Hold, Limit
from compactlib.catalog.schema.catalog import Catalog
from compactlib.catalog.schema.versions import RetainedVersions
from compactlib.kv import Condition
from compactlib.report import Printed

__all__ = ["CatalogView", "bound_of", "decide", "version_at"]

_BLOCKS_ALL = (Factor.NO_ANSWER, Factor.UNAVAILABLE)


@attrs.frozen(kw_only=True, repr=False, slots=False)
class CatalogView(Printed):
    """The catalog as a policy sees it: what is retained, and what the nodes still need of it.

    Attributes:
        reports: one per node that answered, the coordinator's own among them.
        history: the retained catalog versions.
        now: the coordinator's time; a table absent from the catalog active now counts as dropped.
        low_watermark: the coordinator's; `None` before the first one, and then nothing is cut.
        assignments: stable assignments of the zones.
        topology: the nodes asked; nothing is cut while it has none.
        needs: what is needed besides the reports: the lowest pin.
        term: the coordinator's term; `None` without one.
        conditions: states of keys that must still hold when history is cut: the epochs of pins and membership.
        sizes: what the log takes in its store.
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
    sizes: LogSizes | None = None

    @cached_property
    def decision(self) -> Decision:
        """What is safe: the highest version that no node's needs forbid, or why there is none; see `decide`.

        Raises:
            EmptyTopology, DuplicateReport, AssignmentsMissing: as `decide`.
        """
        return decide(self)

    @property
    def needed(self) -> int | None:
        """The version in force at the lowest time that any node needs; `None` if that is not known, or not retained."""
        bound = bound_of(self)
        return None if bound is None else version_at(self.history, bound)

    def to_dicts(self) -> list[dict[str, Any]]:
        """One row a node that was asked, or that reported unasked."""
        asked = {node.name for node in self.topology.nodes}
        told = {report.node.name: report for report in self.reports}
        return [_row(name, told.get(name), name in asked) for name in sorted(asked | told.keys())]

    def _summary(self) -> str:
        return (f"versions {self.history.earliest} to {self.history.latest}, {len(self.reports)} reports of "
                f"{len(self.topology.nodes)} nodes")


def _row(name: str, report: NodeReport | None, asked: bool) -> dict[str, Any]:
    row: dict[str, Any] = {"node": name, "asked": asked, "reported": report is not None, "needs_from": None, "why": ""}
    if report is None:
        return row
    lowest = min(report.floors, key=lambda floor: floor.time, default=None)
    if report.unavailable:
        return {**row, "why": f"{report.unavailable[0].factor}: {report.unavailable[0].reason}"}
    return row if lowest is None else {**row, "needs_from": lowest.time, "why": str(lowest.factor)}


def decide(given: CatalogView, *, at_most: int | None = None) -> Decision:
    """The target up to which history may be cut, or why nothing can be.

    Args:
        given: what the nodes need.
        at_most: the highest version that is wanted; default: the one in force now.

    Raises:
        EmptyTopology: there are no nodes.
        DuplicateReport: a node is in `reports` twice.
        AssignmentsMissing: the assignments of a live table of the candidate version are not known.

    Cost: O(nodes x tables) bitmap tests; linear in each.
    """
    reports = _checked(given)
    view = given.history
    floors = _floors(given, reports)
    unknown = _unknown(given, reports)
    bound = min((floor.time for lowest in floors.values() for floor in lowest[:1]), default=None)
    wanted = version_at(view, given.now)
    if wanted is not None and at_most is not None and at_most < wanted:
        wanted = at_most
    if wanted is None or wanted <= view.earliest:
        return Hold(None, Explanation(earliest=view.earliest, latest=view.latest,
                                      wanted=view.earliest, bound=bound))
    search = _Search(given, reports)
    allowed = None if unknown or bound is None else version_at(view, bound)
    ceiling = view.earliest if allowed is None else min(allowed, wanted)
    target = search.highest(ceiling)
    limits = [*unknown, *_timed(view, floors, wanted), *search.limits(wanted, ceiling)]
    why = Explanation(earliest=view.earliest, latest=view.latest, wanted=wanted, bound=bound,
                      limits=tuple(sorted(_merged(limits), key=_strength)))
    return Compact(target, why) if target > view.earliest else Hold(why.limits[0].factor, why)


def bound_of(given: CatalogView) -> Timestamp | None:
    """The lowest time that any node needs; `None` if it is not known.

    Raises:
        EmptyTopology, DuplicateReport: as `decide`.
    """
    reports = _checked(given)
    if _unknown(given, reports):
        return None
    return min((floor.time for _, floor in _all_floors(given, reports)), default=None)


def _checked(given: CatalogView) -> Mapping[str, NodeReport]:
    """The reports by node name."""
    if not given.topology.nodes:
        raise EmptyTopology("a decision needs at least one node in the topology; wait until it is known")
    reports: dict[str, NodeReport] = {}
    for report in given.reports:
        if reports.setdefault(report.node.name, report) is not report:
            raise DuplicateReport(node=report.node.name)
    return reports


# --- times ------------------------------------------------------------------------------------------------------------


def _floors(given: CatalogView, reports: Mapping[str, NodeReport]) -> dict[Factor, list[Floor]]:
    """The lowest floors of each factor: all that share its lowest time, each naming its node."""
    lowest: dict[Factor, list[Floor]] = {}
    for node, floor in _all_floors(given, reports):
        known = lowest.get(floor.factor)
        if known is None or floor.time < known[0].time:
            lowest[floor.factor] = [_of_node(node, floor)]
        elif floor.time == known[0].time:
            known.append(_of_node(node, floor))
    return lowest


def _all_floors(given: CatalogView, reports: Mapping[str, NodeReport]) -> Iterator[tuple[str, Floor]]:
    if given.low_watermark is not None:
        yield "", Floor(Factor.LOW_WATERMARK, given.low_watermark, Culprit(owner="of the coordinator"))
    for need in given.needs:
        if isinstance(need, Floor):
            yield "", need
    for name, report in reports.items():
        for floor in _needed_of(report):
            yield name, floor


def _needed_of(report: NodeReport) -> Iterator[Floor]:
    """What a node needs: its floors, and the time of its transactions, which bounds what partitions publish."""
    told = report.floor(Factor.ACTIVE_TRANSACTIONS)
    if told is None or told.time > report.transactions_from:
        yield Floor(Factor.ACTIVE_TRANSACTIONS, report.transactions_from)
    yield from report.floors


def _of_node(node: str, floor: Floor) -> Floor:
    # Whatever a report says of other nodes, it is the need of the node that sent it.
    return attrs.evolve(floor, culprit=attrs.evolve(floor.culprit, node=node)) if node else floor


def version_at(view: RetainedVersions, time: Timestamp) -> int | None:
    """The version in force at `time`; `None` if it is not retained."""
    try:
        return view.version_at(time)
    except TimeBeforeHistory:
        return None


def _timed(view: RetainedVersions, floors: Mapping[Factor, list[Floor]], wanted: int) -> Iterator[Limit]:
    for factor, lowest in floors.items():
        allows = version_at(view, lowest[0].time)
        if allows is None or allows < wanted:
            yield Limit(factor=factor, allows=allows, time=lowest[0].time, more=max(len(lowest) - MAX_CULPRITS, 0),
                        culprits=tuple(floor.culprit for floor in lowest[:MAX_CULPRITS]))


def _unknown(given: CatalogView, reports: Mapping[str, NodeReport]) -> list[Limit]:
    """What keeps the bound from being known at all."""
    silent = [Culprit(node=name, owner=told) for name, told in _silent(given, reports)]
    waiting = [attrs.evolve(one.culprit, node=name, owner=f"{one.factor}: {one.reason}")
               for name, report in reports.items() for one in report.unavailable]
    waiting += [attrs.evolve(one.culprit, owner=f"{one.factor}: {one.reason}") for one in given.needs
                if isinstance(one, Unavailable)]
    if given.low_watermark is None:
        waiting.append(Culprit(owner=f"{Factor.LOW_WATERMARK}: the coordinator has none yet"))
    return [Limit(factor=factor, allows=None, culprits=tuple(found[:MAX_CULPRITS]),
                  more=max(len(found) - MAX_CULPRITS, 0))
            for factor, found in zip(_BLOCKS_ALL, (silent, waiting), strict=True) if found]


def _silent(given: CatalogView, reports: Mapping[str, NodeReport]) -> Iterator[tuple[str, str]]:
    for node in sorted(given.topology.nodes):
        report = reports.get(node.name)
        if report is None:
            yield node.name, "did not answer"
        elif report.node.incarnation != node.incarnation:
            yield node.name, f"answered as incarnation {report.node.incarnation} and is {node.incarnation}"


# --- versions ---------------------------------------------------------------------------------------------------------


class _Search:
    """Finds the highest version that nothing in it forbids."""

    def __init__(self, given: CatalogView, reports: Mapping[str, NodeReport]) -> None:
        self._view = given.history
        marks = [floor.time for report in reports.values() if (floor := report.floor(Factor.LOW_WATERMARK))]
        marks += [] if given.low_watermark is None else [given.low_watermark]
        version = version_at(given.history, min(marks)) if marks else None
        self._hosting = HostingCheck(
            reports=reports, members=frozenset(node.name for node in given.topology.nodes),
            assignments=given.assignments, now=given.history.at(given.now),
            at_watermark=None if version is None else given.history.catalog(version),
        )

    def highest(self, version: int) -> int:
        """The highest version <= `version` that nothing forbids; the earliest if there is none.

        Raises:
            AssignmentsMissing: as `decide`.
        """
        if version > self._view.earliest:
            first = self._view.catalog(version)
            self._hosting.look_at(first)
            self._hosting.require_assignments(first)
        return self._walk(version, lambda catalog: bool(catalog.building) or self._hosting_forbids(catalog))

    def limits(self, *starts: int) -> Iterator[Limit]:
        """What each factor alone would allow, if less than the first of `starts`; else, than the next."""
        for start in starts:
            self._hosting.look_at(self._view.catalog(start))
        for start, allows in self._first_below(starts, lambda catalog: bool(catalog.building)):
            catalog = self._view.catalog(start)
            found = sorted(catalog.building.items())
            culprits = tuple(Culprit(index=index, table=table, owner=_status(catalog, index))
                             for index, table in found[:MAX_CULPRITS])
            yield Limit(factor=Factor.INDEX_BUILD, allows=allows, culprits=culprits,
                        more=max(len(found) - MAX_CULPRITS, 0))
        for factor in HOSTING_FACTORS:
            blocked = self._hosting.blocked[factor]
            for _, allows in self._first_below(starts, blocked.forbids):
                yield Limit(factor=factor, allows=allows, culprits=tuple(blocked.culprits), more=blocked.more)

    def _first_below(self, starts: tuple[int, ...], forbids: Callable[[Catalog], bool]) -> Iterator[tuple[int, int]]:
        for start in starts:
            allows = self._walk(start, forbids)
            if allows < start:
                yield start, allows
                return

    def _hosting_forbids(self, catalog: Catalog) -> bool:
        blocked = self._hosting.blocked.values()
        if any(one.forbids(catalog) for one in blocked):
            return True
        self._hosting.look_at(catalog)
        return any(one.forbids(catalog) for one in blocked)

    def _walk(self, version: int, forbids: Callable[[Catalog], bool]) -> int:
        while version > self._view.earliest and forbids(self._view.catalog(version)):
            version = self._view.below(version) or self._view.earliest
        return version


def _status(catalog: Catalog, index_id: int) -> str:
    index = catalog.indexes.get(index_id)
    return "" if index is None else f"index {index.name!r} is {index.status}"


# --- limits -----------------------------------------------------------------------------------------------------------


def _merged(limits: list[Limit]) -> list[Limit]:
    """One limit per factor: an index build can limit by a node's floor and by the catalog itself."""
    merged: dict[Factor, Limit] = {}
    for limit in limits:
        known = merged.get(limit.factor)
        if known is None:
            merged[limit.factor] = limit
            continue
        first, second = sorted((known, limit), key=_strength)
        culprits = (*first.culprits, *second.culprits)
        merged[limit.factor] = attrs.evolve(first, culprits=culprits[:MAX_CULPRITS], more=first.more + second.more
                                            + max(len(culprits) - MAX_CULPRITS, 0))
    return list(merged.values())


_ORDER = {factor: place for place, factor in enumerate(Factor)}


def _strength(limit: Limit) -> tuple[int, Timestamp, int]:
    """Sorts the factor that allows least first; of equals, the one that needs the lower time."""
    at = HIGHEST if limit.time is None else limit.time
    return (-1 if limit.allows is None else limit.allows, at, _ORDER[limit.factor])
