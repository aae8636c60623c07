# SPDX-License-Identifier: Apache-2.0
"""What a round did: one outcome for each of its two processes, which nodes answered, and which did not."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import attrs

from compactlib.catalog.model.timestamp import Timestamp, show
from compactlib.catalog.model.values import NodeId
from compactlib.catalog.plan.plan import CatalogPlan, CutReport
from compactlib.catalog.round.messages import RoundId
from compactlib.errors import CompactlibError
from compactlib.outcome import Done, Failed, Outcome
from compactlib.report import Printed


class Trigger(StrEnum):
    """What starts a round. The first two are Ignite's."""

    COORDINATOR_CHANGED = "coordinator changed"
    WATERMARK_MOVED = "low watermark moved"
    MANUAL = "asked for"
    INTERVAL = "interval"
    TOPOLOGY_CHANGED = "topology changed"


@attrs.frozen
class NodeFailure:
    """A node, or one of its zones, that did not do its part.

    Attributes:
        node: its name.
        reason: why, as text.
        zone: the zone, if only that failed.
    """

    node: str
    reason: str
    zone: int | None = None

    def __str__(self) -> str:
        return f"{self.node}{'' if self.zone is None else f', zone {self.zone}'}: {self.reason}"


@attrs.frozen
class PublicationStats:
    """The time was handed out.

    Attributes:
        time: the lowest time that an active read-write transaction may need.
        nodes: how many took it.
        published: partitions that took it.
        skipped: partitions left alone, because their primary is elsewhere or they had it.
        failures: nodes and zones that did not take it.
    """

    time: Timestamp
    nodes: int
    published: int
    skipped: int
    failures: tuple[NodeFailure, ...] = ()

    def to_dicts(self) -> list[dict[str, Any]]:
        """One row, and one for each failure."""
        head = {"time": self.time, "nodes": self.nodes, "published": self.published, "skipped": self.skipped}
        return [head, *(attrs.asdict(failure) for failure in self.failures)]


@attrs.frozen(kw_only=True, repr=False)
class RoundReport(Printed):
    """What one round did. `repr()` is one line, `to_dicts()` rows, notebooks show a table.

    Attributes:
        round: which.
        triggers: what started it.
        answered: nodes whose reports were taken.
        missing: nodes without a report, and why.
        plan: what was decided, and why; `None` if it did not come to that.
        compaction: the outcome of the process that cuts history.
        publication: the outcome of the process that updates the replicas; fails apart from the other.
        repeated: answers of nodes that had answered.
        seconds: how long it took.
    """

    round: RoundId
    triggers: tuple[Trigger, ...]
    answered: tuple[NodeId, ...]
    missing: tuple[NodeFailure, ...]
    plan: CatalogPlan | None
    compaction: Outcome[CutReport]
    publication: Outcome[PublicationStats]
    repeated: int
    seconds: float

    @property
    def errors(self) -> tuple[CompactlibError, ...]:
        """The errors of failed processes, that of the compaction first."""
        return tuple(outcome.error for outcome in (self.compaction, self.publication) if isinstance(outcome, Failed))

    def to_dicts(self) -> list[dict[str, Any]]:
        """The rows of both outcomes, then one a missing node."""
        rows = [{"process": "compaction", **row} for row in self.compaction.to_dicts()]
        rows += [{"process": "publication", **row} for row in self.publication.to_dicts()]
        return rows + [{"process": "collection", "outcome": "missing", **attrs.asdict(node)} for node in self.missing]

    def _summary(self) -> str:
        why = ", ".join(self.triggers)
        missing = f", {len(self.missing)} MISSING" if self.missing else ""
        return (f"{self.round} ({why}): {len(self.answered)} nodes answered{missing}; "
                f"compaction {_told(self.compaction)}; publication {_told(self.publication)}; {self.seconds:.3f} s")


def _told(outcome: Outcome[Any]) -> str:
    if isinstance(outcome, Failed):
        return f"FAILED ({type(outcome.error).__name__}: {outcome.error})"
    if not isinstance(outcome, Done):
        return f"skipped ({outcome.reason})"
    stats = outcome.stats
    if isinstance(stats, CutReport):
        return f"done, earliest {stats.before} -> {stats.earliest}"
    failures = f", {len(stats.failures)} FAILURES" if stats.failures else ""
    return f"done, {show(stats.time)} to {stats.published} partitions on {stats.nodes} nodes{failures}"
