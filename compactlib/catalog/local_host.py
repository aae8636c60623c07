"""`LocalHost`: a ready `CatalogHost` over a `CatalogService`, the sources of need, and the host's placement.

What is left to a database: where zones are assigned, and how a time is replicated to a zone's partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from compactlib.catalog.decision import decide
from compactlib.catalog.errors import UnsafeCompaction
from compactlib.catalog.log_model import Fence
from compactlib.catalog.messages import ZoneResult
from compactlib.catalog.model import Assignments, Floor, NodeReport, Topology
from compactlib.catalog.needs import LocalNeeds
from compactlib.catalog.pins import Pins
from compactlib.catalog.safety import check_target
from compactlib.catalog.service import CatalogService
from compactlib.catalog.timestamp import Timestamp
from compactlib.catalog.verdict import Compact, Decision, DecisionInput
from compactlib.catalog.watermark import LowWatermark
from compactlib.errors import InvalidInput
from compactlib.kv import Condition
from compactlib.outcome import Done, Failed

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

    Args:
        service: the node's catalog.
        needs: the node's sources.
        watermark: the node's low watermark.
        membership: looks up the membership.
        assignments: looks up the assignments.
        publish: replicates a time to a zone.
        pins: the catalog's pins, if it has any: a pin taken between decision and snapshot stops the snapshot.
        guards: what else must not change between the last check and the snapshot: give a key that changes with the
            membership, if it lies in the log's store.
        retention_margin: how many versions more to keep than anybody needs; 1 is what Ignite 3 does.

    Raises:
        InvalidInput: the margin is negative.
    """

    def __init__(self, service: CatalogService, needs: LocalNeeds, *, watermark: LowWatermark,
                 membership: MembershipLookup, assignments: AssignmentLookup, publish: ZonePublisher,
                 pins: Pins | None = None, guards: Guards = tuple, retention_margin: int = 0) -> None:
        if retention_margin < 0:
            raise InvalidInput(f"retention_margin is {retention_margin}; give 0 or more versions")
        self._service = service
        self._needs = needs
        self._watermark = watermark
        self._membership = membership
        self._assignments = assignments
        self._publish = publish
        self._pins = pins
        self._guards = guards
        self._margin = retention_margin

    def report(self) -> NodeReport:
        """See `CatalogHost.report`. The node first takes in what the log holds."""
        self._service.poll()
        return self._needs.report()

    def zones(self, since: Timestamp) -> Mapping[int, int]:
        """See `CatalogHost.zones`: dropped zones are among them; of several counts the last one counts."""
        found = self._service.view.between(since, self._service.clock.present())
        return {zone.id: zone.partitions for catalog in found for zone in catalog.zones.values()}

    def publish(self, zone: int, partitions: int, time: Timestamp) -> ZoneResult:
        """See `CatalogHost.publish`."""
        return self._publish(zone, partitions, time)

    def confirm(self, topology: Topology) -> bool:
        """See `CatalogHost.confirm`."""
        return self._membership() == topology

    def decide(self, reports: tuple[NodeReport, ...], topology: Topology) -> Decision:
        """See `CatalogHost.decide`."""
        return decide(self._input(reports, topology))

    def _input(self, reports: tuple[NodeReport, ...], topology: Topology) -> DecisionInput:
        self._service.poll()
        return DecisionInput(reports=reports, history=self._service.view, now=self._service.clock.expiry(),
                             low_watermark=self._watermark.value.time, assignments=self._assignments(),
                             topology=topology, retention_margin=self._margin)

    def write(self, decision: Compact, reports: tuple[NodeReport, ...], topology: Topology, term: int) -> bool:
        """See `CatalogHost.write`. Assignments are looked up anew, and pins are read under the snapshot's own fence.

        Raises:
            UnsafeCompaction: the decision does not hold any more.
            StaleTerm: a coordinator of a later term has cut the log.
        """
        # Conditions first: whatever changes after this moment stops the snapshot, whatever changed before is seen here.
        conditions = (*self._guards(), *([] if self._pins is None else [self._pins.condition()]))
        if not self.confirm(topology):
            raise UnsafeCompaction(rule="the membership must be the one that was asked (a)", target=decision.target,
                                   detail=f"it was epoch {topology.epoch} with {len(topology.nodes)} nodes")
        given = self._input(reports, topology)
        if decision.target <= given.history.earliest:
            return False
        check_target(given, decision.target)
        self._check_pins(decision.target)
        outcome = self._service.compact(decision.target, Fence(term=term, conditions=conditions))
        if isinstance(outcome, Failed):
            raise outcome.error
        return isinstance(outcome, Done)

    def _check_pins(self, target: int) -> None:
        need = None if self._pins is None else self._pins.need(self._service.view)
        if isinstance(need, Floor) and self._service.view.version_at(need.time) < target:
            raise UnsafeCompaction(rule="a pinned version must stay readable (a)", target=target,
                                   detail=f"{need.culprit} needs time {need.time}")
