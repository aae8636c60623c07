# SPDX-License-Identifier: Apache-2.0
"""The asking side of a node: starts rounds while it is the coordinator, one at a time.

Whatever asks for a round while one runs, or before the minimum interval has passed, is remembered; when the time has
come all of it starts one round. A round ends when another node is elected, when the node stops, or with its last
deadline, so nothing can hold up the next one for ever.
"""

from __future__ import annotations

from compactlib.catalog.errors import EmptyTopology, NotInTopology, StaleTerm
from compactlib.catalog.model.values import NodeId, Topology
from compactlib.catalog.round.effects import Broke, Decided, SnapshotWritten, Tell, TopologyConfirmed
from compactlib.catalog.round.election import Election
from compactlib.catalog.round.messages import PublishAnswer, Refusal, ReportAnswer, ReportFailed, RoundId
from compactlib.catalog.round.outbox import NodeOptions, Outbox
from compactlib.catalog.round.report import RoundReport, Trigger
from compactlib.catalog.round.state import (
    COLLECT_TIMER,
    DECIDE_TIMER,
    PUBLISH_TIMER,
    RETRY_TIMER,
    WRITE_TIMER,
    Round,
)
from compactlib.errors import AuditFailed, Closed, CompactlibError
from compactlib.outcome import Failed

NEXT_TIMER = "next round"
"""Starts the round that was put off."""
INTERVAL_TIMER = "interval"
"""Starts the periodic round, which was not requested."""


class Coordinator:
    """See the module. Not for several threads at once; times are monotonic seconds.

    Args:
        me: this node, in this life.
        options: its waits.
        election: shared with the answering side.
        outbox: where effects go.
    """

    def __init__(self, me: NodeId, options: NodeOptions, election: Election, outbox: Outbox) -> None:
        self._me = me
        self._options = options
        self._election = election
        self._out = outbox
        self._topology = Topology(frozenset())
        self._round: Round | None = None
        self._pending: dict[Trigger, None] = {}
        self._rounds = 0
        self._last_start: float | None = None

    @property
    def coordinating(self) -> bool:
        """Whether this node is the coordinator, as far as it knows."""
        return self._election.coordinator == self._me.name

    @property
    def running(self) -> RoundId | None:
        """The round under way."""
        return self._round.id if self._round is not None else None

    @property
    def topology(self) -> Topology:
        """The membership as last set."""
        return self._topology

    def trigger(self, trigger: Trigger, now: float) -> None:
        """Start a round, or remember to; does nothing on a node that is not the coordinator."""
        if not self.coordinating:
            return
        self._pending[trigger] = None
        self._start_if_due(now)

    def term_changed(self, now: float) -> None:
        """The election has a new term or coordinator: end what an old term began, and begin if it is this node."""
        self.check_leadership(now)
        if self.coordinating:
            self.trigger(Trigger.COORDINATOR_CHANGED, now)

    def check_leadership(self, now: float) -> None:
        """End the round of a term that is over."""
        if self._round is not None and (not self.coordinating or self._round.id.term != self._election.term):
            self._round.abandon(StaleTerm(term=self._round.id.term, current=self._election.term))
            self._end_if_done(now)
        if not self.coordinating:
            self._pending.clear()
            self._out.cancel_timer(NEXT_TIMER)
            self._out.cancel_timer(INTERVAL_TIMER)

    def topology_is(self, topology: Topology, now: float) -> None:
        """Take in the membership; a change starts a round, and the one under way cuts nothing."""
        if topology.epoch < self._topology.epoch:
            return
        changed = topology.nodes != self._topology.nodes
        moved = changed or topology.epoch != self._topology.epoch
        self._topology = topology
        running = self._round
        if running is not None and moved:
            running.topology_changed = True
            alive = topology.incarnations()
            for node in sorted(running.collection.topology.nodes - topology.nodes):
                reason = "restarted" if node.name in alive else "left the topology"
                running.report_failed(node.name, reason, now)
                running.publication_failed(node.name, reason)
            self._end_if_done(now)
        if changed or (moved and running is not None):
            self.trigger(Trigger.TOPOLOGY_CHANGED, now)

    # ---- what comes back

    def answered(self, message: ReportAnswer | ReportFailed | PublishAnswer, now: float) -> None:
        """Hand an answer to the round that it belongs to; one for a round that is over is only counted."""
        running = self._round
        if running is None or message.round != running.id:
            self._out.note("catalog_late_answer", round=str(message.round), kind=type(message).__name__)
            return
        if isinstance(message, ReportAnswer):
            running.reported(message.report, now)
        elif isinstance(message, ReportFailed):
            running.report_failed(message.node.name, message.reason, now)
        elif not running.published(message):
            running.collection.repeated += 1
        self._end_if_done(now)

    def refused(self, sender: str, message: Refusal, now: float) -> None:
        """A node did not accept a message: give up on it. What it says of terms is the host's to say."""
        self._out.note("catalog_refused", node=sender, reason=message.reason.name, term=message.term,
                       detail=message.detail)
        running = self._round
        if running is not None and (message.round is None or message.round == running.id):
            running.report_failed(sender, f"{message.reason.name}: {message.detail}", now)
            running.publication_failed(sender, f"{message.reason.name}: {message.detail}")
            self._end_if_done(now)

    def decided(self, event: Decided, now: float) -> None:
        """The decision is there."""
        running = self._of_ticket(event.ticket)
        if running is not None and running.compaction.plan is None:
            running.decided(event.plan, now)
            self._end_if_done(now)

    def snapshot_written(self, event: SnapshotWritten, now: float) -> None:
        """The snapshot is there."""
        running = self._of_ticket(event.ticket)
        if running is not None and running.compaction.plan is not None:
            running.snapshot_written(event.outcome)
            self._end_if_done(now)

    def broke(self, event: Broke, now: float) -> None:
        """A call of the host failed."""
        running = self._round
        if running is None:
            return
        if running.compaction.ticket == event.ticket:
            running.compaction.ticket = None
            running.compaction_broke(event.error)
        elif running.publication.ticket == event.ticket:
            running.publication.ticket = None
            running.publication_broke(event.error)
        self._end_if_done(now)

    def topology_confirmed(self, event: TopologyConfirmed, now: float) -> None:
        """The membership was looked at."""
        running = self._round
        if running is not None and running.publication.ticket == event.ticket:
            running.topology_confirmed(event.unchanged, now)
            self._end_if_done(now)

    def timer_fired(self, name: str, now: float) -> None:
        """One of the timers of this side."""
        running = self._round
        if name == NEXT_TIMER:
            self._start_if_due(now)
        elif name == INTERVAL_TIMER:
            self.trigger(Trigger.INTERVAL, now)
        elif running is not None:
            if name == COLLECT_TIMER:
                running.go_on(now, deadline=True)
            elif name == RETRY_TIMER:
                running.retry(now)
            elif name == DECIDE_TIMER:
                running.deadline("deciding", self._options.decide_seconds)
            elif name == WRITE_TIMER:
                running.deadline("writing the snapshot", self._options.write_seconds)
            elif name == PUBLISH_TIMER:
                running.publication_deadline()
            self._end_if_done(now)

    def stop(self, now: float) -> None:
        """Give up the round and start no other."""
        if self._round is not None:
            self._round.abandon(Closed(f"{self._me} is stopping"))
            self._pending.clear()
            self._end_if_done(now)
        self._pending.clear()
        self._out.cancel_timer(NEXT_TIMER)
        self._out.cancel_timer(INTERVAL_TIMER)

    def audit(self) -> None:
        """Check that only a coordinator runs or remembers rounds, and the round's own state.

        Raises:
            AuditFailed: it does not hold; this is a bug.
        """
        if not self.coordinating and (self._round is not None or self._pending):
            raise AuditFailed(f"{self._me} does not coordinate, but runs {self.running} and remembers "
                              f"{list(self._pending)}")
        if self._round is not None:
            self._round.audit()
            if self._round.ended or self._round.id.term != self._election.term:
                raise AuditFailed(f"{self._round.id} is over and still there")

    # ---- rounds

    def _start_if_due(self, now: float) -> None:
        if self._round is not None or not self._pending or not self.coordinating:
            return
        if self._last_start is not None:
            due = self._last_start + self._options.min_interval_seconds
            if now < due:
                self._out.set_timer(NEXT_TIMER, due)
                return
        self._start(now)

    def _start(self, now: float) -> None:
        triggers, self._pending = tuple(self._pending), {}
        self._last_start = now
        self._rounds += 1
        round_id = RoundId(self._election.term, self._me, self._rounds)
        running = Round(round_id, triggers, self._topology, now=now, options=self._options, outbox=self._out)
        self._out.cancel_timer(NEXT_TIMER)
        self._out.cancel_timer(INTERVAL_TIMER)
        refused = self._topology_error()
        if refused is not None:
            running.abandon(refused)
            self._end(running, now)
            return
        self._round = running
        running.start()

    def _topology_error(self) -> CompactlibError | None:
        if not self._topology.nodes:
            return EmptyTopology("the topology has no nodes, so none can be asked; wait until it is known")
        if self._me not in self._topology.nodes:
            return NotInTopology(node=str(self._me), epoch=self._topology.epoch)
        return None

    def _of_ticket(self, ticket: int) -> Round | None:
        running = self._round
        return running if running is not None and running.compaction.ticket == ticket else None

    def _end_if_done(self, now: float) -> None:
        if self._round is not None and self._round.ended:
            running, self._round = self._round, None
            self._end(running, now)

    def _end(self, running: Round, now: float) -> None:
        publication = running.publication.outcome
        compaction = running.compaction.outcome
        if publication is None or compaction is None:
            raise AuditFailed(f"{running.id} ends before both of its processes have")
        self._out.put(Tell(RoundReport(
            round=running.id, triggers=running.triggers,
            answered=tuple(report.node for report in running.collection.in_order()),
            missing=running.collection.missing(), plan=running.compaction.plan, compaction=compaction,
            publication=publication, repeated=running.collection.repeated, seconds=now - running.started,
        )))
        if self._options.interval_seconds is not None and self.coordinating:
            self._out.set_timer(INTERVAL_TIMER, now + self._options.interval_seconds)
        if isinstance(publication, Failed) or isinstance(compaction, Failed):
            self._out.note("catalog_round_failed", round=str(running.id),
                           errors=[str(outcome.error) for outcome in (compaction, publication)
                                   if isinstance(outcome, Failed)])
        self._start_if_due(now)
