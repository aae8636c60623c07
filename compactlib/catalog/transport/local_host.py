# SPDX-License-Identifier: Apache-2.0
"""`LocalHost`: a ready `CatalogHost` over a `CatalogService`, the sources of need, and the host's placement.

What is left to a database: where zones are assigned, and how a time is replicated to a zone's partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from compactlib.catalog.model.timestamp import Timestamp
from compactlib.catalog.model.values import Assignments, NodeReport, Topology
from compactlib.catalog.plan.plan import CatalogPlan, CutReport
from compactlib.catalog.round.messages import ZoneResult
from compactlib.catalog.sense.needs import LocalNeeds
from compactlib.catalog.sense.watermark import LowWatermark
from compactlib.catalog.service.service import CatalogService
from compactlib.contract import CommitFence
from compactlib.errors import Busy
from compactlib.kv import Condition
from compactlib.outcome import Done, Failed, Skipped

_MAX_LOOKS = 10

MembershipLookup = Callable[[], Topology]
"""Gives the membership from where it is decided, with its epoch; may raise any `CompactlibError`."""
AssignmentLookup = Callable[[], Assignments]
"""Gives the stable assignments of all zones, from one moment; may raise any `CompactlibError`."""
ZonePublisher = Callable[[int, int, Timestamp], ZoneResult]
"""Replicates a time to the partitions of a zone whose primary is here: (zone id, how many partitions, time)."""
Guards = Callable[[], Sequence[Condition]]
"""Gives conditions on keys of the log's store that must hold when a snapshot is written: epochs of the membership."""


class LocalHost:
    """Answers a node's questions from what this process holds. Any thread may call it.

    It connects itself to the service, which asks it for whatever a view needs: in a cluster of one node
    `service.compact()` works by itself; in a larger one it is `Skipped`, and names the nodes whose reports are missing,
    which the coordinated round (`CompactionService`) collects.

    Args:
        service: the node's catalog.
        needs: the node's sources.
        watermark: the node's low watermark.
        membership: looks up the membership.
        assignments: looks up the assignments.
        publish: replicates a time to a zone.
        guards: what else must not change between the decision and the cut: give a key that changes with the
            membership, if it lies in the log's store.
        fence: entered around each cut.
    """

    def __init__(self, service: CatalogService, needs: LocalNeeds, *, watermark: LowWatermark,
                 membership: MembershipLookup, assignments: AssignmentLookup, publish: ZonePublisher,
                 guards: Guards = tuple, fence: CommitFence | None = None) -> None:
        self._service = service
        self._needs = needs
        self._watermark = watermark
        self._membership = membership
        self._assignments = assignments
        self._publish = publish
        self._guards = guards
        self._fence = fence
        service.connect(self)

    # --- a node's questions: `CatalogHost` ----------------------------------------------------------------------

    def report(self) -> NodeReport:
        """See `CatalogHost.report`. The node first takes in what the log holds.

        Raises:
            Busy: versions came again and again while its sources were asked.
        """
        self._service.poll()
        for _ in range(_MAX_LOOKS):
            latest = self._service.history.latest
            report = self._needs.report()
            # What came meanwhile may be in force by now, and the sources were not asked about it.
            self._service.poll()
            if self._service.history.latest == latest:
                return report
        raise Busy(f"the catalog grew {_MAX_LOOKS} times while this node's sources were asked; the next round asks "
                   f"again")

    def zones(self, since: Timestamp) -> Mapping[int, int]:
        """See `CatalogHost.zones`: dropped zones are among them; of several counts the last one counts."""
        found = self._service.history.between(since, self._service.clock.present())
        return {zone.id: zone.partitions for catalog in found for zone in catalog.zones.values()}

    def publish(self, zone: int, partitions: int, time: Timestamp) -> ZoneResult:
        """See `CatalogHost.publish`."""
        return self._publish(zone, partitions, time)

    def confirm(self, topology: Topology) -> bool:
        """See `CatalogHost.confirm`."""
        return self._membership() == topology

    def plan(self, reports: tuple[NodeReport, ...], topology: Topology, term: int) -> CatalogPlan:
        """See `CatalogHost.plan`."""
        return self._service.plan(view=self._service.view(reports=reports, topology=topology, term=term))

    def compact(self, plan: CatalogPlan) -> Done[CutReport] | Skipped | Failed:
        """See `CatalogHost.compact`: the service looks up membership and assignments anew."""
        return self._service.compact(plan, fence=self._fence)

    # --- a view's questions: `ClusterSource` --------------------------------------------------------------------

    def conditions(self) -> Sequence[Condition]:
        """See `ClusterSource.conditions`."""
        return self._guards()

    def topology(self) -> Topology:
        """See `ClusterSource.topology`."""
        return self._membership()

    def reports(self) -> Sequence[NodeReport]:
        """See `ClusterSource.reports`: that of this node."""
        return (self.report(),)

    def assignments(self) -> Assignments:
        """See `ClusterSource.assignments`."""
        return self._assignments()

    def low_watermark(self) -> Timestamp | None:
        """See `ClusterSource.low_watermark`."""
        return self._watermark.value.time
