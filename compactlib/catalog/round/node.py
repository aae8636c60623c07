# SPDX-License-Identifier: Apache-2.0
"""A node of the cluster as one state machine without I/O: events in, effects out, time as an argument.

>>> from compactlib.catalog.round.effects import Elected, TopologyIs
>>> from compactlib.catalog.model.values import Topology
>>> node = CatalogNode(NodeId("a"))
>>> node.handle(TopologyIs(Topology.of("a", "b")), now=0.0)
[]
>>> for effect in node.handle(Elected(term=1, coordinator="a"), now=0.0):
...     print(effect)
Send(to='a', message=ReportRequest(round=RoundId(term=1, coordinator=NodeId(name='a', incarnation=1), number=1)))
Send(to='b', message=ReportRequest(round=RoundId(term=1, coordinator=NodeId(name='a', incarnation=1), number=1)))
SetTimer(name='collect', at=10.0)
SetTimer(name='retry', at=2.0)

Every node answers (`participant.py`); the one that was elected also asks (`coordinator.py`). `docs/catalog.md`
describes the protocol and why it is safe; `docs/tla/` has it as a specification.
"""

from __future__ import annotations

from compactlib.catalog.model.values import NodeId, Topology
from compactlib.catalog.round.coordinator import Coordinator
from compactlib.catalog.round.effects import (
    Broke,
    Decided,
    Effect,
    Elected,
    Event,
    Received,
    Reported,
    SnapshotWritten,
    Stop,
    TimerFired,
    TopologyConfirmed,
    TopologyIs,
    Triggered,
    ZonePublished,
    ZonesListed,
)
from compactlib.catalog.round.election import Election, Heard
from compactlib.catalog.round.messages import (
    Message,
    PublishAnswer,
    PublishTime,
    Refusal,
    ReportAnswer,
    ReportFailed,
    ReportRequest,
    RoundId,
)
from compactlib.catalog.round.outbox import NodeOptions, Outbox
from compactlib.catalog.round.participant import REPORT_TIMER, ZONES_TIMER, Participant


class CatalogNode:
    """See the module. Not for several threads at once.

    Args:
        me: this node, in this life.
        options: its waits.
    """

    def __init__(self, me: NodeId, options: NodeOptions | None = None) -> None:
        waits = options or NodeOptions()
        self.me = me
        self._out = Outbox()
        self._election = Election()
        self._participant = Participant(me, waits, self._election, self._out)
        self._coordinator = Coordinator(me, waits, self._election, self._out)
        self._stopped = False

    @property
    def term(self) -> int:
        """The highest term known."""
        return self._election.term

    @property
    def coordinator(self) -> str | None:
        """The name of the coordinator; `None` if this node does not know it."""
        return self._election.coordinator

    @property
    def coordinating(self) -> bool:
        """Whether this node is the coordinator, as far as it knows."""
        return self._coordinator.coordinating and not self._stopped

    @property
    def running(self) -> RoundId | None:
        """The round that this node coordinates now."""
        return self._coordinator.running

    @property
    def topology(self) -> Topology:
        """The membership as last set."""
        return self._coordinator.topology

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Take in one event and say what is to be done, in order. Late and unknown tickets do nothing.

        Args:
            event: what happened.
            now: monotonic seconds, never below those of the call before.

        Raises:
            InvalidInput: `Elected` with a term below 1 or no name.
        """
        if not self._stopped:
            self._handle(event, now)
        elif isinstance(event, Received) and isinstance(event.message, ReportRequest | PublishTime):
            self._participant.refuse_stopping(event.message.round)
        return self._out.take()

    def _handle(self, event: Event, now: float) -> None:
        match event:
            case Received():
                self._received(event.sender, event.message, now)
            case TimerFired():
                self._timer_fired(event.name, now)
            case Reported():
                self._participant.reported(event)
            case ZonePublished():
                self._participant.zone_published(event)
            case ZonesListed():
                self._participant.zones_listed(event)
            case Decided():
                self._coordinator.decided(event, now)
            case SnapshotWritten():
                self._coordinator.snapshot_written(event, now)
            case TopologyConfirmed():
                self._coordinator.topology_confirmed(event, now)
            case Broke():
                if not self._participant.broke(event):
                    self._coordinator.broke(event, now)
            case Triggered():
                self._coordinator.trigger(event.trigger, now)
            case TopologyIs():
                self._coordinator.topology_is(event.topology, now)
            case Elected():
                self._elected(event.term, event.coordinator, now)
            case Stop():
                self._stopped = True
                self._coordinator.stop(now)
                self._participant.stop()

    def _elected(self, term: int, coordinator: str, now: float) -> None:
        knew = self._election.term, self._election.coordinator
        heard = self._election.hear(term, coordinator)
        self._participant.told_of(self._election.term)
        if (self._election.term, self._election.coordinator) != knew:
            self._coordinator.term_changed(now)
        if heard is Heard.CONTRADICTION:
            self._out.note("catalog_two_coordinators", term=term, known=knew[1], claims=coordinator)

    def _received(self, sender: str, message: Message, now: float) -> None:
        if sender != _author(message):
            self._out.note("catalog_forged_sender", sender=sender, author=_author(message))
            return
        match message:
            case ReportRequest() | PublishTime():
                heard = self._election.claimed(message.round.term, message.round.coordinator.name)
                if heard is Heard.UNKNOWN:
                    # No answer: the coordinator repeats itself, and by then the host may have told of its election.
                    self._participant.note_refused(
                        sender, "UNKNOWN_TERM", f"{message.round}, but the host has told of terms up to "
                        f"{self._election.term} only")
                elif heard in (Heard.STALE, Heard.CONTRADICTION):
                    self._participant.refuse(message.round, heard)
                elif isinstance(message, ReportRequest):
                    self._participant.report_requested(message, now)
                else:
                    self._participant.time_to_publish(message, now)
            case Refusal():
                self._coordinator.refused(sender, message, now)
            case _:
                self._coordinator.answered(message, now)

    def _timer_fired(self, name: str, now: float) -> None:
        if not self._out.is_due(name, now):
            return
        if name == REPORT_TIMER:
            self._participant.report_deadline()
        elif name == ZONES_TIMER:
            self._participant.zones_deadline()
        else:
            self._coordinator.timer_fired(name, now)

    def audit(self) -> None:
        """Check the state of all parts.

        Raises:
            AuditFailed: something does not hold that must; this is a bug.
        """
        self._election.audit()
        self._participant.audit()
        self._coordinator.audit()

    def __repr__(self) -> str:
        role = "coordinator" if self.coordinating else f"follower of {self.coordinator}"
        return f"CatalogNode({self.me}, {role}, term {self.term}, running {self.running})"


def _author(message: Message) -> str:
    """The node whose message this is."""
    match message:
        case ReportRequest() | PublishTime():
            return message.round.coordinator.name
        case ReportAnswer():
            return message.report.node.name
        case ReportFailed() | PublishAnswer() | Refusal():
            return message.node.name
