# SPDX-License-Identifier: Apache-2.0
"""A cluster of 3 to 7 nodes in one thread, with everything that can go wrong; one integer decides all of it.

A run has two parts. First the faults: messages are lost, repeated, delayed and reordered, nodes crash, restart, join
and leave, clocks are set, coordinators change and act side by side, host calls dawdle, while schemas change and
transactions, readers, pins, index builds and rebalances come and go. Each cut is held against what is really needed
(`world.py`). Then the faults stop, and the log must shrink to its latest version.

    python -m tests.catalog.simulation.run 4711        # replay one seed, with its story
    python -m tests.catalog.simulation.run 1 5000      # a campaign: this many seeds from the first one

The nodes, the decision, the update log and the messages are the real ones. To see whether the simulation finds a bug,
put it in by overriding a method of `CatalogSimulation`; `tests/catalog/round/test_catalog_simulation_bugs.py` does.
"""

from __future__ import annotations

import sys
from heapq import heappop, heappush
from random import Random
from typing import Any, TypeAlias

import attrs

from compactlib.catalog import (
    CatalogPlan,
    CatalogView,
    CutReport,
    CutToBound,
    NodeId,
    NodeOptions,
    NodeReport,
    Topology,
    ZoneResult,
)
from compactlib.catalog.errors import CatalogMoved
from compactlib.catalog.log.log_model import SnapshotSaved
from compactlib.catalog.model.partitions import HostedPartitions
from compactlib.catalog.model.timestamp import Timestamp
from compactlib.catalog.model.values import Factor, Floor, Unavailable
from compactlib.catalog.plan.decision import decide
from compactlib.catalog.plan.verdict import Compact, Decision
from compactlib.catalog.round.effects import (
    Broke,
    CancelCall,
    CancelTimer,
    Collect,
    ConfirmTopology,
    Decide,
    Decided,
    Effect,
    Elected,
    Event,
    ListZones,
    Note,
    PublishZone,
    Received,
    Reported,
    Send,
    SetTimer,
    SnapshotWritten,
    Tell,
    TimerFired,
    TopologyConfirmed,
    TopologyIs,
    WriteSnapshot,
    ZonePublished,
    ZonesListed,
)
from compactlib.catalog.round.messages import Message, ReportRequest, RoundId
from compactlib.catalog.round.node import CatalogNode
from compactlib.catalog.round.report import RoundReport
from compactlib.errors import CompactlibError
from compactlib.outcome import Done, Failed, Outcome, Skipped
from compactlib.report import PolicyRecord
from tests.catalog.simulation.faults import Faults
from tests.catalog.simulation.network import MemoryNetwork
from tests.catalog.simulation.world import Partition, SimulatedNode, SimulatedTime, SimulationFailure, World

OPTIONS = NodeOptions(collect_seconds=2.0, retry_seconds=0.2, decide_seconds=1.5, write_seconds=1.5,
                      publish_seconds=3.0, report_seconds=1.5, zones_seconds=2.5, interval_seconds=4.0)
SETTLE_SECONDS = 60.0
"""How long after the last fault the log may take to shrink."""

_Call: TypeAlias = Collect | ListZones | PublishZone | ConfirmTopology | Decide | WriteSnapshot


@attrs.frozen(kw_only=True)
class SimulationResult:
    """What a run came to; failures are raised instead.

    Attributes:
        seed: what decided everything.
        nodes: how many nodes there were at most.
        rounds: how many rounds ended, on any node.
        cuts: the versions to which history was cut, in order.
        versions: how many versions there were.
        messages: how many messages were sent.
        story: what happened, one line each; empty unless asked for.
        trace: the steps in the words of `docs/tla/CatalogCompaction.tla`.
    """

    seed: int
    nodes: int
    rounds: int
    cuts: tuple[int, ...]
    versions: int
    messages: int
    story: tuple[str, ...] = attrs.field(repr=False)
    trace: tuple[tuple[Any, ...], ...] = attrs.field(repr=False)


class CatalogSimulation:
    """One run. Override a method to put in a bug.

    Args:
        seed: decides everything.
        story: whether to keep what happens as text.
        fault_seconds: how long the faults last.
    """

    options = OPTIONS

    def __init__(self, seed: int, *, story: bool = False, fault_seconds: float = 7.0) -> None:
        self.seed: int = seed
        self.random: Random = Random(seed)
        self.world: World = World(self.random, self.random.randint(3, 7), max_skew_seconds=0.2)
        self.clock: SimulatedTime = self.world.time
        self.network: MemoryNetwork = MemoryNetwork(self.random, through_wire=seed % 10 == 0)
        self.faults: Faults = Faults(self, fault_seconds)
        self.reports: list[RoundReport] = []
        self.story: list[str] | None = [] if story else None
        self.messages: int = 0
        self._queue: list[tuple[float, int, Any, tuple[Any, ...]]] = []
        self._count = 0
        self._network_due = float("inf")
        self._cancelled: set[tuple[NodeId, int]] = set()
        self._traced_rounds: set[RoundId] = set()
        self._event_round: RoundId | None = None
        self._call_rounds: dict[tuple[NodeId, int], RoundId | None] = {}

    # ---- running

    def run(self) -> SimulationResult:
        """Run to the end.

        Raises:
            SimulationFailure: an invariant was broken, or the log did not shrink.
        """
        try:
            self.faults.start()
            self._run_until(self.faults.end, lambda: False)
            self.tell("---- the faults stop")
            self.faults.stop()
            deadline = self.clock.at + SETTLE_SECONDS
            self._run_until(deadline, self.faults.has_settled)
            self._check_end()
        except Exception as error:
            raise SimulationFailure(
                f"seed {self.seed} at {self.clock.at - 1000:.3f} s: {type(error).__name__}: {error}; replay it with: "
                f"python -m tests.catalog.simulation.run {self.seed}") from error
        return SimulationResult(
            seed=self.seed, nodes=len(self.world.nodes), rounds=len(self.reports), cuts=tuple(self.world.cuts),
            versions=len(self.world.activations), messages=self.messages, story=tuple(self.story or ()),
            trace=tuple(self.world.trace))

    def later(self, seconds: float, action: Any, *arguments: Any) -> None:
        """Call `action` after some seconds."""
        self._count += 1
        heappush(self._queue, (self.clock.at + seconds, self._count, action, arguments))

    def _run_until(self, end: float, done: Any) -> None:
        queue, clock = self._queue, self.clock
        while queue and queue[0][0] <= end and not done():
            at, _, action, arguments = heappop(queue)
            clock.at = max(clock.at, at)
            action(*arguments)

    def tell(self, text: str, *values: object) -> None:
        """A line of the story."""
        if self.story is not None:
            self.story.append(f"{self.clock.at - 1000:7.3f}  {text.format(*values)}")

    def _check_end(self) -> None:
        world = self.world
        latest = world.service.history.latest
        if not self.faults.has_settled():
            last = next((report for report in reversed(self.reports)), None)
            raise SimulationFailure(f"{SETTLE_SECONDS} s after the last fault history still begins at "
                                    f"{world.service.history.earliest}, not at {latest}; the last round: {last!r}")
        world.service.audit()
        report = world.service.verify()
        if not report.is_sound:
            raise SimulationFailure(f"the log is not what its service holds: {report}")
        before = world.content()
        leader = next(node for node in world.nodes.values() if node.alive)
        world.learn(leader, known=latest, cut=latest)
        reports = tuple(self.report(node) for node in world.nodes.values() if node.alive)
        again = self.decide(leader, reports, world.topology())
        if isinstance(again, Compact):
            raise SimulationFailure(f"history is as short as it can be, and a second run would cut it: {again!r}")
        if world.content() != before:
            raise SimulationFailure("a decision that cuts nothing changed the log")

    # ---- nodes

    def make_node(self, me: NodeId) -> CatalogNode:
        """The state machine of a node that starts."""
        return CatalogNode(me, self.options)

    def hand(self, node: SimulatedNode, event: Event) -> None:
        """An event for a node; nothing if it is down."""
        if node.machine is None:
            return
        self._event_round = event.message.round if isinstance(event, Received) else None
        effects = node.machine.handle(event, self.clock.at)
        node.machine.audit()
        for effect in effects:
            self._carry_out(node, effect)

    def _carry_out(self, node: SimulatedNode, effect: Effect) -> None:
        if isinstance(effect, Send):
            self._send(node, effect)
        elif isinstance(effect, SetTimer):
            node.timers[effect.name] = effect.at
            self.later(max(0.0, effect.at - self.clock.at), self._fire, node, node.incarnation, effect.name, effect.at)
        elif isinstance(effect, CancelTimer):
            node.timers.pop(effect.name, None)
        elif isinstance(effect, CancelCall):
            self._cancelled.add((node.id, effect.ticket))
        elif isinstance(effect, Tell):
            self.reports.append(effect.report)
            self.tell("{!r}", effect.report)
        elif isinstance(effect, Note):
            self.tell("{} notes {} {}", node.id, effect.name, effect.fields)
        else:
            self._call(node, effect)

    def _send(self, node: SimulatedNode, effect: Send) -> None:
        self.messages += 1
        self.tell("{} -> {}: {}", node.id, effect.to, effect.message)
        self._trace_round(node, effect.message)
        if effect.to == node.name:
            self.later(0.0, self._arrive, node.name, node.name, effect.message)
            return
        self.network.send(node.name, effect.to, effect.message, self.clock.at)
        due = self.network.next_at()
        if due is not None and due < self._network_due:
            self._network_due = due
            self.later(due - self.clock.at, self._deliver, due)

    def _trace_round(self, node: SimulatedNode, message: Message) -> None:
        """Note the first message of a round that asks the nodes that are members now; others come to nothing."""
        if isinstance(message, ReportRequest) and message.round not in self._traced_rounds and node.machine is not None:
            self._traced_rounds.add(message.round)
            if node.machine.topology == self.world.topology():
                self.world.trace.append(("StartRound", str(message.round)))

    def _deliver(self, due: float) -> None:
        if due == self._network_due:
            self._network_due = float("inf")
        for delivery in self.network.deliver(self.clock.at):
            self._arrive(delivery.sender, delivery.to, delivery.message)
        following = self.network.next_at()
        if following is not None and following < self._network_due:
            self._network_due = following
            self.later(following - self.clock.at, self._deliver, following)

    def _arrive(self, sender: str, to: str, message: Any) -> None:
        self.hand(self.world.nodes[to], Received(sender, message))

    def _fire(self, node: SimulatedNode, incarnation: int, name: str, at: float) -> None:
        if node.alive and node.incarnation == incarnation and node.timers.get(name) == at:
            del node.timers[name]
            self.hand(node, TimerFired(name))

    # ---- calls of the host

    def _call(self, node: SimulatedNode, call: _Call) -> None:
        dawdle = self.faults.call_seconds()
        self._call_rounds[node.id, call.ticket] = None if node.machine is None else node.machine.running
        if isinstance(call, WriteSnapshot | PublishZone | ConfirmTopology):  # they act on what is true at their end
            self.later(dawdle, self._finish, node, node.id, call, None)
            return
        try:
            answer: Event = self._answer(node, call)
        except CompactlibError as error:
            answer = Broke(call.ticket, error)
        self.later(dawdle, self._finish, node, node.id, call, answer)

    def _finish(self, node: SimulatedNode, life: NodeId, call: _Call, answer: Event | None) -> None:
        if not node.alive or node.id != life:
            return
        if answer is None:
            try:
                answer = self._answer(node, call)
            except CompactlibError as error:
                answer = Broke(call.ticket, error)
        if (life, call.ticket) not in self._cancelled:
            self.hand(node, answer)

    def _answer(self, node: SimulatedNode, call: _Call) -> Event:
        match call:
            case Collect():
                return Reported(call.ticket, self.report(node))
            case ListZones():
                return ZonesListed(call.ticket, self.world.zones)
            case PublishZone():
                return ZonePublished(call.ticket, self.publish(node, call.zone, call.partitions, call.time))
            case ConfirmTopology():
                unchanged = self.confirm(call.topology)
                if unchanged:
                    self.world.trace.append(("Confirm", str(self._call_rounds[node.id, call.ticket])))
                return TopologyConfirmed(call.ticket, unchanged)
            case Decide():
                return Decided(call.ticket, self.plan(node, call))
            case WriteSnapshot():
                return SnapshotWritten(call.ticket, self.compact(node, call))

    # ---- what the databases around the nodes answer: from what is true, and what each node knows

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

    # ---- what the faults make happen

    def flush(self, node: SimulatedNode, partition: Partition, upto: int) -> None:
        """A replica's entries reach its disk."""
        self.world.flush(node, partition, upto)

    def elect(self, name: str, term: int, to: SimulatedNode) -> None:
        """A node hears of an election."""
        self.hand(to, Elected(term, name))

    def tell_topology(self, node: SimulatedNode, topology: Topology) -> None:
        """A node hears of the membership."""
        self.hand(node, TopologyIs(topology))


def run_seed(seed: int, *, story: bool = False) -> SimulationResult:
    """Run one seed.

    Raises:
        SimulationFailure: an invariant was broken, or the log did not shrink.
    """
    return CatalogSimulation(seed, story=story).run()


def main(arguments: list[str]) -> int:
    """Replay one seed with its story, or run a campaign; see the module."""
    if not 1 <= len(arguments) <= 2 or not all(argument.isdigit() for argument in arguments):
        sys.stderr.write(__doc__ or "")
        return 2
    first = int(arguments[0])
    if len(arguments) == 2:
        for seed in range(first, first + int(arguments[1])):
            run_seed(seed)
        sys.stdout.write(f"{arguments[1]} seeds from {first}: every invariant holds, and the log shrank\n")
        return 0
    simulation = CatalogSimulation(first, story=True)
    try:
        sys.stdout.write(f"{simulation.run()!r}\n")
    finally:
        sys.stdout.write("\n".join(simulation.story or ()) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
