# SPDX-License-Identifier: Apache-2.0
"""Bugs put into the simulation, each of which it must find: what it cannot see, it does not check."""

# Each bug is put where it would be, behind the underscores:
# ruff: noqa: SLF001

from __future__ import annotations

from typing import Any

import attrs
import pytest

from compactlib.catalog import Assignments, CatalogView, CutReport, NodeId, NodeOptions, NodeReport, Topology, UpdateLog
from compactlib.catalog.log.log_model import LogState
from compactlib.catalog.model.partitions import HostedPartitions
from compactlib.catalog.model.timestamp import Timestamp
from compactlib.catalog.model.values import Factor, Floor
from compactlib.catalog.plan.decision import decide
from compactlib.catalog.plan.verdict import Compact, Decision
from compactlib.catalog.round.coordinator import Coordinator
from compactlib.catalog.round.effects import WriteSnapshot
from compactlib.catalog.round.election import Election, Heard
from compactlib.catalog.round.messages import RoundId
from compactlib.catalog.round.node import CatalogNode
from compactlib.catalog.round.outbox import Outbox
from compactlib.catalog.round.report import Trigger
from compactlib.catalog.round.state import Collection, Round
from compactlib.outcome import Outcome
from tests.catalog.simulation.run import CatalogSimulation
from tests.catalog.simulation.world import TIME, Partition, SimulatedNode, SimulationFailure

MANY = 400
"""Seeds after which a bug counts as not found."""


class IgnoresPublishedTimes(CatalogSimulation):
    """Restriction 2 is forgotten: reports leave out what partitions need to replay."""

    def report(self, node: SimulatedNode) -> NodeReport:
        found = super().report(node)
        return attrs.evolve(found, floors=tuple(one for one in found.floors if one.factor is not Factor.RAFT_RECOVERY))


class PublishesBeforeFlush(CatalogSimulation):
    """A time counts as published when it is replicated, not when it is on disk."""

    def publish(self, node: SimulatedNode, zone: int, partitions: int, time: Timestamp) -> Any:
        for number in range(partitions):
            partition = self.world.partitions[zone, number]
            for replica in partition.replicas.values() if partition.primary == node.name else ():
                replica.published = max(replica.published, time)
        return super().publish(node, zone, partitions, time)


class ForgetsTransactions(CatalogSimulation):
    """Restriction 1 is forgotten: a node always says that its transactions need nothing before now."""

    def transactions_from(self, node: SimulatedNode) -> Timestamp:
        return node.now()


class ForgetsPins(CatalogSimulation):
    """Pins and rebalances are forgotten, and the watermark does not protect them."""

    def report(self, node: SimulatedNode) -> NodeReport:
        found = super().report(node)
        kept = tuple(one for one in found.floors
                     if one.factor not in (Factor.PIN, Factor.REBALANCE, Factor.LOW_WATERMARK))
        return attrs.evolve(found, floors=(*kept, Floor(Factor.LOW_WATERMARK, node.now())))

    def decide(self, node: SimulatedNode, reports: tuple[NodeReport, ...], topology: Topology) -> Decision:
        now, node.watermark = node.watermark, node.now()
        try:
            return super().decide(node, reports, topology)
        finally:
            node.watermark = now


@attrs.define(slots=False)
class ForgetfulCollection(Collection):
    """Takes silence for an answer that needs nothing."""

    def missing(self) -> tuple[Any, ...]:
        return ()


class DecidesWithoutEverybody(CatalogSimulation):
    """Nodes that did not answer are left out of the topology that the decision sees."""

    def make_node(self, me: NodeId) -> CatalogNode:
        node = super().make_node(me)
        node._coordinator.__class__ = _CoordinatorWithoutEverybody
        return node

    def decide(self, node: SimulatedNode, reports: tuple[NodeReport, ...], topology: Topology) -> Decision:
        world = self.world
        present = Topology(frozenset(report.node for report in reports), topology.epoch)
        return decide(CatalogView(reports=reports, history=world.view_of(node), now=node.now(),
                                  low_watermark=node.watermark, topology=present,
                                  assignments=Assignments({
                                      zone: attrs.evolve(one, masks=dict.fromkeys(
                                          (report.node.name for report in reports), one.assigned()))
                                      for zone, one in world.assignments().zones.items()})))

    def report(self, node: SimulatedNode) -> NodeReport:
        found = super().report(node)
        everything = {table: 7 for _, table, _ in self.world._seen}
        return attrs.evolve(found, hosted=HostedPartitions.from_masks(everything))


class _CoordinatorWithoutEverybody(Coordinator):
    def _start(self, now: float) -> None:
        super()._start(now)
        if self._round is not None:
            self._round.collection = ForgetfulCollection(self._round.collection.topology)


class IgnoresHostedPartitions(CatalogSimulation):
    """Nobody checks who hosts what: the assignments say that nobody has to."""

    def decide(self, node: SimulatedNode, reports: tuple[NodeReport, ...], topology: Topology) -> Decision:
        everything = HostedPartitions.from_masks({table: 7 for _, table, _ in self.world._seen})
        return super().decide(node, tuple(attrs.evolve(report, hosted=everything) for report in reports), topology)


class IgnoresIndexBuilds(CatalogSimulation):
    """Restriction 3 is forgotten: the target is the version in force at the bound, whatever is being built."""

    def decide(self, node: SimulatedNode, reports: tuple[NodeReport, ...], topology: Topology) -> Decision:
        found = super().decide(node, reports, topology)
        if not {Factor.NO_ANSWER, Factor.UNAVAILABLE} & set(found.why.factors) and found.why.bound is not None:
            view = self.world.view_of(node)
            target = min(view.version_at(found.why.bound) if found.why.bound >= view.activation(view.earliest) else 0,
                         view.version_at(node.now()))
            others = {Factor.MISSING_PARTITION, Factor.MISSING_NODE, Factor.DROPPED_TABLE, Factor.NO_ASSIGNMENTS}
            if target > view.earliest and not others & set(found.why.factors):
                return Compact(target, found.why)
        return found


class BlindLog(UpdateLog):
    """Writes a snapshot whatever the earliest version is, and whatever the term."""

    def state(self) -> LogState | None:
        found = super().state()
        return found if found is None else attrs.evolve(found, earliest=0)

    def _earliest(self) -> Any:
        found, predicate = super()._earliest()
        return found and (0, *found[1:]), predicate

    def _of_term(self, cut: Any) -> Any:
        return [], []


class CutsBackwards(CatalogSimulation):
    """The snapshot is written without comparing: a late coordinator moves the earliest version back."""

    def compact(self, node: SimulatedNode, call: WriteSnapshot) -> Outcome[CutReport]:
        careful, self.world.log = self.world.log, BlindLog(self.world.store, rng=self.random)
        try:
            return super().compact(node, call)
        finally:
            self.world.log = careful


class LosesWhatWasFlushed(CatalogSimulation):
    """A flush publishes the last time instead of the greatest one that it holds, without the entries below it."""

    def flush(self, node: SimulatedNode, partition: Partition, upto: int) -> None:
        replica = partition.replicas[node.name]
        times = [value for kind, value in partition.log if kind == TIME]
        if times:
            replica.published = max(replica.published, times[-1])
        super().flush(node, partition, upto)


UNSAFE = [IgnoresPublishedTimes, PublishesBeforeFlush, ForgetsTransactions, ForgetsPins, DecidesWithoutEverybody,
          IgnoresHostedPartitions, IgnoresIndexBuilds, CutsBackwards, LosesWhatWasFlushed]


class NeverRetries(CatalogSimulation):
    """Nobody starts another round: not the interval, not the watermark, not a change of the topology."""

    options = attrs.evolve(CatalogSimulation.options, interval_seconds=None)

    def make_node(self, me: NodeId) -> CatalogNode:
        node = super().make_node(me)
        node._coordinator.__class__ = _CoordinatorThatIsDoneSoon
        return node


class _CoordinatorThatIsDoneSoon(Coordinator):
    def trigger(self, trigger: Trigger, now: float) -> None:
        if trigger is Trigger.COORDINATOR_CHANGED:
            super().trigger(trigger, now)


class ElectionOfOne(Election):
    """Once a node knows a coordinator, no other one will do."""

    __slots__ = ()

    def hear(self, term: int, coordinator: str) -> Heard:
        if self.coordinator not in (None, coordinator):
            return Heard.STALE
        return super().hear(term, coordinator)


class StaysWithItsCoordinator(CatalogSimulation):
    """A node goes on with the first coordinator that it heard of."""

    def make_node(self, me: NodeId) -> CatalogNode:
        node = super().make_node(me)
        node._election = node._participant._election = node._coordinator._election = ElectionOfOne()
        return node


class NeverPublishes(CatalogSimulation):
    """The times of transactions do not reach the partitions."""

    def publish(self, node: SimulatedNode, zone: int, partitions: int, time: Timestamp) -> Any:
        return attrs.evolve(super().publish(node, 0, 0, time), zone=zone)


STUCK = [NeverRetries, StaysWithItsCoordinator, NeverPublishes]


# Where the search begins, to save the time for seeds that are known not to show the bug.
NEAR = {"CutsBackwards": 10, "ForgetsPins": 12, "IgnoresHostedPartitions": 50, "IgnoresIndexBuilds": 25,
        "LosesWhatWasFlushed": 20}


def first_failure(kind: type[CatalogSimulation]) -> SimulationFailure:
    first = NEAR.get(kind.__name__, 1)
    for seed in range(first, first + MANY):
        try:
            kind(seed).run()
        except SimulationFailure as failure:
            return failure
    raise AssertionError(f"{MANY} seeds did not find it: {kind.__doc__}")


@pytest.mark.parametrize("kind", UNSAFE, ids=lambda kind: kind.__name__)
def test_the_simulation_finds_a_cut_that_takes_away_what_is_needed(kind: type[CatalogSimulation]) -> None:
    failure = str(first_failure(kind))
    assert any(told in failure for told in ("but history was cut to", "the earliest version went back")), failure
    assert "python -m tests.catalog.simulation.run" in failure


@pytest.mark.parametrize("kind", STUCK, ids=lambda kind: kind.__name__)
def test_the_simulation_finds_a_log_that_does_not_shrink(kind: type[CatalogSimulation]) -> None:
    assert "after the last fault history still begins at" in str(first_failure(kind))


def test_the_bugs_are_in_the_code_that_they_name() -> None:
    # The classes above reach into these; if they change, the bugs must follow.
    assert {"missing"} <= vars(Collection).keys()
    assert {"trigger", "_start"} <= vars(Coordinator).keys()
    begun = Round(RoundId(1, NodeId("a"), 1), (), Topology.of("a"), now=0.0, options=NodeOptions(), outbox=Outbox())
    assert begun.collecting
