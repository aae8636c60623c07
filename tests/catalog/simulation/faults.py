# SPDX-License-Identifier: Apache-2.0
"""What happens to the cluster of `run.py`: its workload, and everything that goes wrong."""

from __future__ import annotations

from typing import Any, Protocol

from compactlib.catalog import NodeId, Topology
from compactlib.catalog.model.timestamp import add_ms
from compactlib.catalog.round.effects import Event, Triggered
from compactlib.catalog.round.node import CatalogNode
from compactlib.catalog.round.report import Trigger
from tests.catalog.simulation.network import LinkFaults, MemoryNetwork
from tests.catalog.simulation.world import DELAY_SECONDS, Partition, SimulatedNode, World

AVAILABILITY_SECONDS = 0.2
"""How far behind the time the low watermark stays, the clocks' skew not counted."""
WATERMARK_SECONDS = 0.5
"""Between two looks at the low watermark."""


class Cluster(Protocol):
    """What the faults make happen; `CatalogSimulation` carries it out."""

    world: World
    network: MemoryNetwork

    def later(self, seconds: float, action: Any, *arguments: Any) -> None:
        """Call `action` after some seconds."""

    def tell(self, text: str, *values: object) -> None:
        """A line of the story."""

    def make_node(self, me: NodeId) -> CatalogNode:
        """The state machine of a node that starts."""

    def hand(self, node: SimulatedNode, event: Event) -> None:
        """An event for a node."""

    def flush(self, node: SimulatedNode, partition: Partition, upto: int) -> None:
        """A replica's entries reach its disk."""

    def elect(self, name: str, term: int, to: SimulatedNode) -> None:
        """A node hears of an election."""

    def tell_topology(self, node: SimulatedNode, topology: Topology) -> None:
        """A node hears of the membership."""


class Faults:
    """Drives one simulation: first with faults, after `stop` without.

    Args:
        simulation: what to drive.
        seconds: how long.
    """

    def __init__(self, simulation: Cluster, seconds: float) -> None:
        self._simulation = simulation
        self._world = simulation.world
        self._random = simulation.world.random
        self.end: float = simulation.world.time.at + seconds
        self.on: bool = True
        self._calm = self._random.choice((1.0, 3.0, 8.0))
        self._term = 0
        self._leader: str | None = None
        self._serial = 0

    # ---- start and stop

    def start(self) -> None:
        """Bring up the cluster and begin."""
        random = self._random
        self._simulation.network.faults = LinkFaults(
            lost=random.choice((0.0, 0.02, 0.15)), repeated=random.choice((0.0, 0.1, 0.3)), min_delay_seconds=0.001,
            max_delay_seconds=random.choice((0.01, 0.05, 0.3)))
        names = sorted(self._world.nodes)
        self._world.nodes[names[-1]].member = random.random() < 0.5  # the last one hosts nothing and may join later
        for node in self._world.nodes.values():
            if node.member:
                self._start_node(node)
        self._elect()
        for node in self._world.nodes.values():
            self._simulation.later(random.uniform(0, WATERMARK_SECONDS), self._watermark_tick, node)
        self._simulation.later(0.1, self._work)
        self._simulation.later(0.5, self._fault)

    def stop(self) -> None:
        """Mend everything: all nodes are up and agree, nothing is lost, nobody holds on to a version."""
        self.on = False
        world, simulation = self._world, self._simulation
        simulation.network.faults = LinkFaults(min_delay_seconds=0.001, max_delay_seconds=0.01)
        simulation.network.heal()
        for node in world.nodes.values():
            node.member = True
            if not node.alive:
                self._start_node(node)
        for node in world.nodes.values():
            self._end_everything(node)
        world.finish_builds()
        world.rebalancing.clear()
        for node in world.nodes.values():
            self._learn(node, world.service.history.latest, world.service.history.earliest)
        for partition in world.partitions.values():
            partition.primary = min(partition.replicas)
        self._elect()
        simulation.later(0.2, self._flush_all)

    def has_settled(self) -> bool:
        """Whether history is as short as it can be."""
        view = self._world.service.history
        return not self.on and view.earliest == view.latest

    def call_seconds(self) -> float:
        """How long a call of the host takes; rarely longer than anybody waits."""
        if self.on and self._random.random() < 0.03:
            return self._random.uniform(0.5, 3.0)
        return self._random.uniform(0.0, 0.05)

    # ---- work

    def _work(self) -> None:
        if not self.on:
            return
        self._simulation.later(self._random.uniform(0.01, 0.12), self._work)
        alive = [node for node in self._world.nodes.values() if node.alive]
        if not alive:
            return
        node = self._random.choice(alive)
        self._random.choices((self._begin, self._write, self._read, self._pin, self._flush, self._change_schema,
                              self._rebalance, self._ask), (8, 14, 3, 2, 18, 4, 1, 1))[0](node)

    def _begin(self, node: SimulatedNode) -> None:
        now = node.now()
        if self._world.time.at < node.begins_after or not self._world.knows_all_until(node, now):
            return
        self._serial += 1
        version = self._world.version_at(now)
        node.transactions[self._serial] = version
        self._world.trace.append(("Begin", node.name, version))
        seconds = self._random.choice((0.1, 0.1, 0.3, 0.5, 4.0))
        self._simulation.later(self._random.uniform(0, seconds), self._end_transaction, node, node.id, self._serial)

    def _end_transaction(self, node: SimulatedNode, life: NodeId, serial: int) -> None:
        if node.id == life and serial in node.transactions:
            version = node.transactions.pop(serial)
            if version not in node.transactions.values():
                self._world.trace.append(("End", node.name, version))

    def _write(self, node: SimulatedNode) -> None:
        if node.transactions:
            version = self._random.choice(sorted(node.transactions.values()))
            tables = list(self._world.catalogs[version].tables.values())
            if not tables:
                return
            table = self._random.choice(tables)
            partition = self._world.partitions[table.zone_id, self._random.randrange(self._world.zones[table.zone_id])]
            if partition.primary is not None and self._world.nodes[partition.primary].alive:
                self._world.append_write(partition, version, table.id)

    def _read(self, node: SimulatedNode) -> None:
        if node.watermark is None or not self._world.knows_all_until(node, now := node.now()):
            return
        self._serial += 1
        node.readers[self._serial] = self._random.choice((node.watermark, now))
        self._simulation.later(self._random.uniform(0, 1.5), self._release, node, node.id, self._serial)

    def _pin(self, node: SimulatedNode) -> None:
        """Pin a version that is not below the one in force at the node's own low watermark."""
        if node.watermark is None or not self._world.knows_all_until(node, node.now()):
            return
        self._serial += 1
        lowest, highest = self._world.version_at(node.watermark), self._world.version_at(node.now())
        node.pins[self._serial] = self._random.randint(lowest, highest)
        self._simulation.later(self._random.uniform(0, 2.0), self._release, node, node.id, self._serial)

    def _release(self, node: SimulatedNode, life: NodeId, serial: int) -> None:
        if node.id == life:
            node.readers.pop(serial, None)
            node.pins.pop(serial, None)
            self._move_watermark(node)

    def _flush(self, node: SimulatedNode) -> None:
        for partition, replica in self._world.hosted(node):
            choice = self._random.random()
            if choice < 0.8:
                upto = len(partition.log) if choice < 0.5 else self._random.randint(replica.flushed, len(partition.log))
                self._simulation.flush(node, partition, upto)

    def _flush_all(self) -> None:
        for node in self._world.nodes.values():
            for partition, _ in self._world.hosted(node):
                self._simulation.flush(node, partition, len(partition.log))
        self._simulation.later(0.5, self._flush_all)

    def _change_schema(self, node: SimulatedNode) -> None:
        version = self._world.change_schema()
        for one in self._world.nodes.values():
            wait = self._random.uniform(0, 1.5 if self._random.random() < 0.1 else DELAY_SECONDS)
            self._simulation.later(wait, self._learn, one, version, 0)

    def _learn(self, node: SimulatedNode, known: int, cut: int) -> None:
        self._world.learn(node, known=known, cut=cut)

    def was_cut(self, target: int) -> None:
        """Nodes hear of a cut one after the other."""
        for one in self._world.nodes.values():
            wait = self._random.uniform(0, 2.0 if self.on and self._random.random() < 0.3 else 0.1)
            self._simulation.later(wait, self._learn, one, 0, target)

    def _rebalance(self, node: SimulatedNode) -> None:
        zone = self._random.choice(sorted(self._world.zones))
        if zone not in self._world.rebalancing:
            version = self._world.version_at(node.now())
            self._world.rebalancing[zone] = version
            self._simulation.later(self._random.uniform(0.2, 2.5), self._end_rebalance, zone)

    def _end_rebalance(self, zone: int) -> None:
        if not self.on or zone not in self._world.rebalancing:
            return
        partition = self._random.choice([one for one in self._world.partitions.values() if one.zone == zone])
        sources = [name for name in partition.replicas if self._world.nodes[name].alive]
        targets = [name for name, node in self._world.nodes.items() if node.alive and name not in partition.replicas]
        if sources and targets:
            self._world.move_replica(partition, self._random.choice(sorted(sources)), self._random.choice(targets))
        del self._world.rebalancing[zone]

    def _ask(self, node: SimulatedNode) -> None:
        self._simulation.hand(node, Triggered(Trigger.MANUAL))

    def _end_everything(self, node: SimulatedNode) -> None:
        for version in sorted(set(node.transactions.values())):
            self._world.trace.append(("End", node.name, version))
        for held in (node.transactions, node.readers, node.pins):
            held.clear()

    # ---- the low watermark

    def _watermark_tick(self, node: SimulatedNode) -> None:
        self._simulation.later(WATERMARK_SECONDS, self._watermark_tick, node)
        if not node.alive:
            return
        behind = round((AVAILABILITY_SECONDS + self._world.max_skew_seconds) * 1000)
        candidate = add_ms(node.now(), -behind)
        if candidate > (node.watermark or 0) and self._world.knows_all_until(node, candidate):
            node.wanted_watermark = max(candidate, node.wanted_watermark or 0)
            self._move_watermark(node)

    def _move_watermark(self, node: SimulatedNode) -> None:
        wanted = node.wanted_watermark
        held = [*node.readers.values(), *(self._world.activations[version + 1] - 1 for version in node.pins.values()
                                          if version + 1 < len(self._world.activations))]
        if wanted is None or not node.alive or any(time < wanted for time in held):
            return
        node.watermark, node.wanted_watermark = wanted, None
        self._world.trace.append(("MoveWatermark", node.name, self._world.version_at(wanted)))
        self._simulation.hand(node, Triggered(Trigger.WATERMARK_MOVED))

    # ---- faults

    def _fault(self) -> None:
        if not self.on:
            return
        self._simulation.later(self._calm * self._random.uniform(0.2, 1.6), self._fault)
        self._random.choices((self._crash, self._elect, self._cut_links, self._heal_links, self._join_or_leave),
                             (4, 2, 1, 3, 1))[0]()

    def _crash(self) -> None:
        node = self._random.choice(list(self._world.nodes.values()))
        if not node.alive:
            return
        self._take_down(node)
        self._simulation.later(self._random.uniform(0.05, 2.5), self._restart, node)

    def _take_down(self, node: SimulatedNode) -> None:
        self._simulation.tell("{} crashes", node.id)
        node.crash()
        self._world.trace.append(("Crash", node.name))
        for partition, _ in self._world.hosted(node):
            if partition.primary == node.name:
                partition.primary = next((name for name in sorted(partition.replicas)
                                          if self._world.nodes[name].alive), None)
        self._topology_changed()
        if self._leader == node.name:
            self._simulation.later(self._random.uniform(0.1, 1.0), self._elect)

    def _restart(self, node: SimulatedNode) -> None:
        if self.on and not node.alive and node.member:
            self._start_node(node)

    def _start_node(self, node: SimulatedNode) -> None:
        simulation, world = self._simulation, self._world
        node.incarnation += 1
        world.new_skew(node)
        self.wait_for_clocks(node)
        node.start(simulation.make_node(node.id))
        self._learn(node, world.service.history.latest, world.service.history.earliest)
        world.trace.append(("Join", node.name))
        simulation.tell("{} starts", node.id)
        for partition, _ in world.hosted(node):
            if partition.primary is None:
                partition.primary = node.name
        self._topology_changed()
        if self._term and self._leader is not None:
            simulation.later(self._random.uniform(0.0, 0.3), simulation.elect, self._leader, self._term, node)

    def wait_for_clocks(self, node: SimulatedNode) -> None:
        """A new life begins no transaction below a time that the old one gave out as now."""
        node.begins_after = self._world.time.at + self._world.max_skew_seconds

    def _topology_changed(self) -> None:
        self._world.bump_epoch()
        topology = self._world.topology()
        for node in self._world.nodes.values():
            wait = self._random.uniform(0.0, self._random.choice((0.1, 2.5)) if self.on else 0.01)
            self._simulation.later(wait, self._simulation.tell_topology, node, topology)

    def _elect(self) -> None:
        alive = [node.name for node in self._world.nodes.values() if node.alive]
        if not alive:
            return
        self._term += 1
        self._leader = self._random.choice(sorted(alive))
        self._simulation.tell("{} is elected in term {}", self._leader, self._term)
        for node in self._world.nodes.values():
            if not self.on or self._random.random() < 0.8:
                wait = self._random.uniform(0.0, 1.5 if self.on else 0.01)
                self._simulation.later(wait, self._simulation.elect, self._leader, self._term, node)

    def _cut_links(self) -> None:
        names = sorted(self._world.nodes)
        for _ in range(self._random.randint(1, 2)):
            self._simulation.network.cut(*self._random.sample(names, 2))

    def _heal_links(self) -> None:
        self._simulation.network.heal()

    def _join_or_leave(self) -> None:
        node = self._world.nodes[max(self._world.nodes)]
        if not node.member:
            node.member = True
            self._start_node(node)
        elif node.alive and not any(self._world.hosted(node)):
            node.member = False
            self._take_down(node)
