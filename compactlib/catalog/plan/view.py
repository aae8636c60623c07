"""`CatalogView`: everything that a decision depends on, as one frozen value."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import attrs

from compactlib.catalog.log.log_sizes import LogSizes
from compactlib.catalog.model.timestamp import Timestamp
from compactlib.catalog.model.values import Assignments, Need, NodeReport, Topology
from compactlib.catalog.plan.decision import bound_of, decide, version_at
from compactlib.catalog.plan.verdict import Decision
from compactlib.catalog.schema.versions import HistoryView
from compactlib.kv import Condition
from compactlib.report import Printed


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
    history: HistoryView
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
        """What is safe: the highest version that nobody's needs forbid, or why there is none; see `decide`.

        Raises:
            EmptyTopology, DuplicateReport, AssignmentsMissing: as `decide`.
        """
        return decide(self)

    @property
    def needed(self) -> int | None:
        """The version in force at the lowest time that anybody needs; `None` if that is not known, or not retained."""
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
