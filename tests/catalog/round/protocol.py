# SPDX-License-Identifier: Apache-2.0
"""What the tests of the protocol share: reports, verdicts, and a node that is driven by hand."""

from __future__ import annotations

from typing import TypeVar

import attrs

from compactlib.catalog import CatalogPlan, CutReport, CutToBound, NodeId, NodeOptions, NodeReport, Topology
from compactlib.catalog.model.partitions import HostedPartitions
from compactlib.catalog.model.values import Factor, Floor
from compactlib.catalog.plan.verdict import Explanation
from compactlib.catalog.round.effects import (
    ConfirmTopology,
    Decide,
    Effect,
    Elected,
    Event,
    Received,
    Send,
    Tell,
    TopologyConfirmed,
    TopologyIs,
    WriteSnapshot,
)
from compactlib.catalog.round.messages import Message, ReportAnswer, RoundId
from compactlib.catalog.round.node import CatalogNode
from compactlib.catalog.round.report import RoundReport
from compactlib.report import PolicyRecord

EffectT = TypeVar("EffectT")

EXPLANATION = Explanation(earliest=0, latest=8, wanted=8, bound=40)
PLAN = CatalogPlan(why="no node needs what lies below", target=4, earliest=0, latest=8, commits=(),
                   policy=PolicyRecord.of(CutToBound()), explanation=EXPLANATION)
HOLD = attrs.evolve(PLAN, why="held by low watermark", target=None)
CUT = CutReport(earliest=4, before=0, bytes_written=100, deleted=4)


def report_of(name: str, transactions_from: int = 50, *, life: int = 1) -> NodeReport:
    """A report with one floor, and one partition that has published nothing."""
    return NodeReport(node=NodeId(name, life), floors=(Floor(Factor.LOW_WATERMARK, 40),),
                      hosted=HostedPartitions.of({1: [0]}), transactions_from=transactions_from)


class Driven:
    """A node, the time, and everything it wanted done so far."""

    def __init__(self, name: str = "a", *, options: NodeOptions | None = None, life: int = 1) -> None:
        self.node = CatalogNode(NodeId(name, life), options)
        self.now = 0.0
        self.effects: list[Effect] = []
        self.confirms = True

    def __call__(self, event: Event, *, after: float = 0.0) -> list[Effect]:
        """Hand in an event some seconds later; the effects of this event, and of confirming the topology if asked."""
        self.now += after
        found = self.node.handle(event, self.now)
        self.node.audit()
        self.effects += found
        asked = [effect for effect in found if isinstance(effect, ConfirmTopology)]
        return found + self(TopologyConfirmed(asked[0].ticket, True)) if asked and self.confirms else found

    def coordinate(self, *others: str, term: int = 1) -> RoundId:
        """Make it the coordinator of itself and others; the round that this starts."""
        self(TopologyIs(Topology.of(self.node.me.name, *others)))
        self(Elected(term, self.node.me.name))
        return self.round

    def receive(self, sender: str, message: Message, *, after: float = 0.0) -> list[Effect]:
        """A message arrives."""
        return self(Received(sender, message), after=after)

    def all_report(self, *names: str, transactions_from: int = 50) -> None:
        """Reports of these nodes arrive."""
        for name in names:
            self.receive(name, ReportAnswer(self.round, report_of(name, transactions_from)))

    @property
    def round(self) -> RoundId:
        """The round that runs."""
        assert self.node.running is not None
        return self.node.running

    def all(self, kind: type[EffectT]) -> list[EffectT]:
        """All effects of a kind, in order."""
        return [effect for effect in self.effects if isinstance(effect, kind)]

    def last(self, kind: type[EffectT]) -> EffectT:
        """The last effect of a kind."""
        return self.all(kind)[-1]

    def sent(self, kind: type[EffectT]) -> list[tuple[str, EffectT]]:
        """Receiver and message, of all messages of a kind."""
        return [(send.to, send.message) for send in self.all(Send) if isinstance(send.message, kind)]

    @property
    def reports(self) -> list[RoundReport]:
        """The reports of rounds that ended."""
        return [effect.report for effect in self.all(Tell)]

    @property
    def decide(self) -> Decide:
        """The last decision asked for."""
        return self.last(Decide)

    @property
    def write(self) -> WriteSnapshot:
        """The last snapshot asked for."""
        return self.last(WriteSnapshot)
