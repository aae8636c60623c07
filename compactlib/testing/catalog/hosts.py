"""What the databases around the nodes of `catalog_simulation` answer: from what is true, and what each node knows."""

from __future__ import annotations

from compactlib.catalog.errors import CatalogMoved
from compactlib.catalog.log.log_model import SnapshotSaved
from compactlib.catalog.model.partitions import HostedPartitions
from compactlib.catalog.model.timestamp import Timestamp
from compactlib.catalog.model.values import Factor, Floor, NodeId, NodeReport, Topology, Unavailable
from compactlib.catalog.plan.decision import decide
from compactlib.catalog.plan.plan import CatalogPlan, CutReport
from compactlib.catalog.plan.policy import CutToBound
from compactlib.catalog.plan.verdict import Compact, Decision
from compactlib.catalog.plan.view import CatalogView
from compactlib.catalog.round.effects import Decide, WriteSnapshot
from compactlib.catalog.round.messages import RoundId, ZoneResult
from compactlib.errors import CompactlibError
from compactlib.outcome import Done, Failed, Outcome, Skipped
from compactlib.report import PolicyRecord
from compactlib.testing.catalog.faults import Faults
from compactlib.testing.catalog.world import SimulatedNode, SimulationFailure, World


class SimulatedHosts:
    """The calls of the host of every node; `CatalogSimulation` adds the nodes. Override a method to put in a bug."""

    seed: int
    world: World
    faults: Faults
    _event_round: RoundId | None
    _call_rounds: dict[tuple[NodeId, int], RoundId | None]

    def tell(self, text: str, *values: object) -> None:
        """A line of the story."""
        raise NotImplementedError

    def report(self, node: SimulatedNode) -> NodeReport:
        """What a node needs, as its sources would say."""
        world = self.world
        transactions_from = self.transactions_from(node)
        floors = [Floor(Factor.ACTIVE_TRANSACTIONS, transactions_from)]
        unavailable = []
        if node.watermark is None:
            unavailable.append(Unavailable(Factor.LOW_WATERMARK, "there is none yet"))
        else:
            floors.append(Floor(Factor.LOW_WATERMARK, node.watermark))
        published = [replica.published for _, replica in world.hosted(node)]
        if published:
            floors.append(Floor(Factor.RAFT_RECOVERY, min(published)))
        if world.rebalancing:
            floors.append(Floor(Factor.REBALANCE, world.activations[min(world.rebalancing.values())]))
        if node.pins:
            floors.append(Floor(Factor.PIN, world.activations[min(node.pins.values())]))
        report = NodeReport(node=node.id, floors=tuple(floors), unavailable=tuple(unavailable),
                            hosted=HostedPartitions.from_masks(world.hosted_tables(node)),
                            transactions_from=transactions_from)
        self.trace_report(node, report)
        return report

    def trace_report(self, node: SimulatedNode, report: NodeReport) -> None:
        """Note the step for the specification."""
        lowest = report.minimum()
        floor = 0 if report.unavailable or lowest is None else self.world.version_at(lowest)
        self.world.trace.append(("Report", node.name, str(self._event_round), floor,
                                 self.world.version_at(report.transactions_from)))

    def transactions_from(self, node: SimulatedNode) -> Timestamp:
        """Restriction 1: from which time on the node's transactions need the catalog."""
        if node.transactions:
            return self.world.activations[min(node.transactions.values())]
        return node.now()

    def publish(self, node: SimulatedNode, zone: int, partitions: int, time: Timestamp) -> ZoneResult:
        """Replicate a time to the partitions whose primary the node is."""
        published = 0
        for number in range(partitions):
            partition = self.world.partitions[zone, number]
            if partition.primary == node.name:
                self.world.append_time(partition, time)
                published += 1
        return ZoneResult(zone, published, partitions - published)

    def confirm(self, topology: Topology) -> bool:
        """Whether nobody has joined or left since."""
        return topology == self.world.topology()

    def decide(self, node: SimulatedNode, reports: tuple[NodeReport, ...], topology: Topology) -> Decision:
        """The decision, from what the node knows."""
        world = self.world
        return decide(CatalogView(reports=reports, history=world.view_of(node), now=node.now(),
                                  low_watermark=node.watermark, assignments=world.assignments(), topology=topology))

    def plan(self, node: SimulatedNode, call: Decide) -> CatalogPlan:
        """The decision as a plan that carries its term, and the epochs of membership and assignments."""
        history = self.world.view_of(node)
        decision = self.decide(node, call.reports, call.topology)
        return CatalogPlan(
            why=decision.explain(), target=decision.target if isinstance(decision, Compact) else None,
            earliest=history.earliest, latest=history.latest, commits=(), policy=PolicyRecord.of(CutToBound()),
            explanation=decision.why, reports=call.reports, topology=call.topology, term=call.term,
            conditions=self.world.conditions())

    def compact(self, node: SimulatedNode, call: WriteSnapshot) -> Outcome[CutReport]:
        """Write the snapshot, as long as the plan's term, membership and assignments still hold."""
        world, plan = self.world, call.plan
        target = plan.target or 0
        before = world.content() if self.seed % 8 == 0 else ()
        catalog = world.view_of(node).catalog(target)
        try:
            if world.epoch != plan.topology.epoch:
                raise CatalogMoved(what=f"epoch {plan.topology.epoch} became {world.epoch}", target=target)
            saved = world.log.save_snapshot(catalog, term=plan.term, conditions=plan.conditions)
        except CompactlibError as error:
            if before and world.content() != before:
                raise SimulationFailure("a refused snapshot changed the log") from None
            return Failed(error)
        if not isinstance(saved, SnapshotSaved):
            return Skipped(f"history begins at version {saved.earliest} already")
        self.tell("{} cuts history to {}", node.id, target)
        world.trace.append(("Cut", str(self._call_rounds[node.id, call.ticket]), target))
        self.check_reports(target, plan.reports)
        world.check_cut(target)
        world.service.poll()
        self.faults.was_cut(target)
        return Done(CutReport(earliest=target, before=saved.previous, bytes_written=saved.bytes_written,
                              deleted=saved.deleted))

    def check_reports(self, target: int, reports: tuple[NodeReport, ...]) -> None:
        """Invariants (a) and (e): every floor that was reported stays readable, and everybody has reported.

        Raises:
            SimulationFailure: it does not hold.
        """
        world = self.world
        for report in reports:
            for floor in report.floors:
                if world.version_at(floor.time) < target:
                    raise SimulationFailure(f"{report.node} reported that it needs {floor.time}, but history was cut "
                                            f"to {target}")
        hosted = {report.node.name: report.hosted for report in reports}
        catalog, latest = world.catalogs[target], world.catalogs[-1]
        for table in catalog.tables.values():
            for number in range(world.zones[table.zone_id] if table.id in latest.tables else 0):
                for name in world.partitions[table.zone_id, number].replicas:
                    if name not in hosted or not hosted[name].has(table.id, number):
                        raise SimulationFailure(f"{name} did not report partition {number} of table {table.id}, but "
                                                f"history was cut to {target}")
