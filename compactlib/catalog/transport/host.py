# SPDX-License-Identifier: Apache-2.0
"""`CatalogHost`: what a node asks of the database around it. Every method may block; each call has a deadline outside.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from compactlib.catalog.model.timestamp import Timestamp
from compactlib.catalog.model.values import NodeReport, Topology
from compactlib.catalog.plan.plan import CatalogPlan, CutReport
from compactlib.catalog.round.messages import ZoneResult
from compactlib.outcome import Done, Failed, Skipped


class CatalogHost(Protocol):
    """Called from worker threads, several at once. A call whose deadline has passed may still end; its result is
    dropped.

    Any `CompactlibError` fails the call alone; other exceptions are taken for `HostFailed`, logged and counted.
    """

    def report(self) -> NodeReport:
        """What this node needs and hosts, from one moment. What it says stays true: no lower need may arise later."""

    def zones(self, since: Timestamp) -> Mapping[int, int]:
        """Partition counts by zone id, over all versions from the one active at `since` to the one active now.

        Raises:
            TimeBeforeHistory: `since` is before the retained history.
        """

    def publish(self, zone: int, partitions: int, time: Timestamp) -> ZoneResult:
        """Replicate `time` to the zone's partitions whose primary is here; others are skipped and counted."""

    def confirm(self, topology: Topology) -> bool:
        """Whether the membership is still exactly `topology`, epoch included, as of some moment during this call.

        The answer must come from where membership is decided: a local copy may be old. A node begins transactions, and
        whatever else can need a version, only after it was admitted there and the clocks' greatest skew has passed.
        """

    def plan(self, reports: tuple[NodeReport, ...], topology: Topology, term: int) -> CatalogPlan:
        """Look up the assignments and decide; reports may be missing, and then the plan is empty and says whose."""

    def compact(self, plan: CatalogPlan) -> Done[CutReport] | Skipped | Failed:
        """Check once more that the plan holds, and carry it out.

        Part of it is that the membership is still that of the plan: a condition of the write itself, not a look
        before it.
        """
