# SPDX-License-Identifier: Apache-2.0
"""One round under way on the coordinator: which nodes have answered, and how far its two processes have come.

The two processes of Ignite, compaction and replicas update (here: publication), start from the same reports, run side
by side and fail apart. Each ends with an outcome of its own; the round ends when both have.
"""

from __future__ import annotations

import attrs

from compactlib.catalog.errors import DeadlinePassed, HostFailed, ReportsMissing, UnsafeCompaction
from compactlib.catalog.model.timestamp import Timestamp
from compactlib.catalog.model.values import Factor, NodeReport, Topology
from compactlib.catalog.plan.plan import CatalogPlan, CutReport
from compactlib.catalog.round.effects import ConfirmTopology, Decide, WriteSnapshot
from compactlib.catalog.round.messages import PublishAnswer, PublishTime, ReportRequest, RoundId
from compactlib.catalog.round.outbox import NodeOptions, Outbox
from compactlib.catalog.round.report import NodeFailure, PublicationStats, Trigger
from compactlib.errors import AuditFailed, CompactlibError, InvalidInput
from compactlib.outcome import Done, Failed, Outcome, Skipped

COLLECT_TIMER = "collect"
"""Ends the wait for reports."""
DECIDE_TIMER = "decide"
"""Ends the wait for the decision."""
WRITE_TIMER = "write"
"""Ends the wait for the snapshot."""
PUBLISH_TIMER = "publish"
"""Ends the wait for nodes to publish."""
RETRY_TIMER = "retry"
"""Repeats what was not answered."""


@attrs.define
class Collection:
    """The reports of one round. Each node counts once, in the life that the topology names.

    `left` are the names of the nodes that have neither reported nor failed.
    """

    topology: Topology
    left: set[str] = attrs.field(init=False)
    reports: dict[str, NodeReport] = attrs.field(factory=dict)
    failed: dict[str, str] = attrs.field(factory=dict)
    repeated: int = 0

    def __attrs_post_init__(self) -> None:
        self.left = {node.name for node in self.topology.nodes}

    def take(self, report: NodeReport) -> bool:
        """Take a report; whether it was wanted. The first one of a node counts."""
        node = report.node
        if node.name in self.reports or node.name in self.failed:
            self.repeated += 1
            return False
        if node not in self.topology.nodes:
            lives = self.topology.incarnations()
            if node.name in lives:
                self.fail(node.name, f"restarted: {node} answered, life {lives[node.name]} was asked")
            return False
        self.left.remove(node.name)
        self.reports[node.name] = report
        return True

    def fail(self, node: str, reason: str) -> None:
        """A node that was asked will not report; no matter if it has already."""
        if node in self.left:
            self.left.remove(node)
            self.failed[node] = reason

    def missing(self) -> tuple[NodeFailure, ...]:
        """The nodes that did not report, and why."""
        silent = dict.fromkeys(self.left, "did not answer in time")
        return tuple(NodeFailure(name, reason) for name, reason in sorted({**silent, **self.failed}.items()))

    def in_order(self) -> tuple[NodeReport, ...]:
        """The reports, by node."""
        return tuple(self.reports[name] for name in sorted(self.reports))


@attrs.define
class CompactionProcess:
    """Plan, then write the snapshot. `ticket` is the call of the host that is waited for, `None` between calls."""

    ticket: int | None = None
    plan: CatalogPlan | None = None
    outcome: Outcome[CutReport] | None = None


@attrs.define
class PublicationProcess:
    """Hand the time to all nodes; `waiting` are those that have not answered.

    `ticket` is the call of the host that is waited for before the first message goes out.
    """

    ticket: int | None = None
    request: PublishTime | None = None
    waiting: set[str] = attrs.field(factory=set)
    answers: dict[str, PublishAnswer] = attrs.field(factory=dict)
    failures: list[NodeFailure] = attrs.field(factory=list)
    outcome: Outcome[PublicationStats] | None = None


class Round:
    """See the module. The coordinator hands it what concerns it and asks `ended` afterwards.

    Args:
        round_id: which round.
        triggers: what started it.
        topology: the nodes that are asked.
        now: when it starts; monotonic seconds.
        options: the waits.
        outbox: where effects go.
    """

    def __init__(self, round_id: RoundId, triggers: tuple[Trigger, ...], topology: Topology, *, now: float,
                 options: NodeOptions, outbox: Outbox) -> None:
        self.id = round_id
        self.triggers = triggers
        self.started = now
        self.collection: Collection = Collection(topology)
        self.collecting: bool = True
        self.compaction: CompactionProcess = CompactionProcess()
        self.publication: PublicationProcess = PublicationProcess()
        self.topology_changed = False
        self._options = options
        self._out = outbox

    def start(self) -> None:
        """Ask every node."""
        request = ReportRequest(self.id)
        for name in sorted(self.collection.left):
            self._out.send(name, request)
        self._out.set_timer(COLLECT_TIMER, self.started + self._options.collect_seconds)
        self._out.set_timer(RETRY_TIMER, self.started + self._options.retry_seconds)

    def retry(self, now: float) -> None:
        """Repeat what was not answered; messages get lost."""
        if self.collecting:
            for name in sorted(self.collection.left):
                self._out.send(name, ReportRequest(self.id))
        elif self.publication.request is not None:
            for name in sorted(self.publication.waiting):
                self._out.send(name, self.publication.request)
        if self.collecting or self.publication.waiting:
            self._out.set_timer(RETRY_TIMER, now + self._options.retry_seconds)

    def reported(self, report: NodeReport, now: float) -> None:
        """A node answered."""
        if not self.collecting:
            self.collection.repeated += 1
            return
        self.collection.take(report)
        self.go_on(now)

    def report_failed(self, node: str, reason: str, now: float) -> None:
        """A node will not answer."""
        if self.collecting:
            self.collection.fail(node, reason)
            self.go_on(now)

    def go_on(self, now: float, *, deadline: bool = False) -> None:
        """Start both processes once no node is waited for, or the wait is over."""
        if not self.collecting or (self.collection.left and not deadline):
            return
        self.collecting = False
        self._out.cancel_timer(COLLECT_TIMER)
        self._out.cancel_timer(RETRY_TIMER)
        self._start_compaction(now)
        self._start_publication(now)

    # ---- compaction

    def _start_compaction(self, now: float) -> None:
        ticket = self.compaction.ticket = self._out.ticket()
        self._out.set_timer(DECIDE_TIMER, now + self._options.decide_seconds)
        self._out.put(Decide(ticket, self.collection.in_order(), self.collection.topology,
                             self.id.term))

    def decided(self, plan: CatalogPlan, now: float) -> None:
        """Write the snapshot if there is one to write, and nothing has changed since the round began."""
        process = self.compaction
        process.ticket, process.plan = None, plan
        self._out.cancel_timer(DECIDE_TIMER)
        if plan.target is None:
            process.outcome = Skipped(plan.why)
            return
        missing = self.collection.missing()
        if missing:
            process.outcome = Failed(UnsafeCompaction(
                rule="every node of the topology must have reported", target=plan.target,
                detail=f"no report from {', '.join(failure.node for failure in missing)}"))
            return
        if self.topology_changed:
            process.outcome = Skipped("the topology changed during the round; the next one asks the new nodes")
            return
        process.ticket = self._out.ticket()
        self._out.set_timer(WRITE_TIMER, now + self._options.write_seconds)
        self._out.put(WriteSnapshot(process.ticket, plan))

    def snapshot_written(self, outcome: Outcome[CutReport]) -> None:
        """The compaction is through."""
        self.compaction.ticket, self.compaction.outcome = None, outcome
        self._out.cancel_timer(WRITE_TIMER)

    def compaction_broke(self, error: CompactlibError) -> None:
        """The compaction ends here; the publication goes on."""
        process = self.compaction
        is_given_up = process.ticket is not None
        if process.ticket is not None:
            self._out.cancel_call(process.ticket)
        process.ticket = None
        self._out.cancel_timer(DECIDE_TIMER)
        self._out.cancel_timer(WRITE_TIMER)
        if process.outcome is None:
            # A snapshot that the host was asked for may be there, or be written yet.
            may_have_cut = process.plan is not None and (is_given_up or isinstance(error, HostFailed))
            process.outcome = Failed(error, "unknown") if may_have_cut else Failed(error)

    # ---- publication

    def _start_publication(self, now: float) -> None:
        process = self.publication
        missing = self.collection.missing()
        if missing:
            process.outcome = Failed(ReportsMissing(nodes=tuple(map(str, missing))))
            return
        reports = self.collection.in_order()
        time = min(report.transactions_from for report in reports)
        if all(_has_published(report, time) for report in reports):
            process.outcome = Skipped("every partition has published this time already")
            return
        process.request = PublishTime(self.id, time)
        process.ticket = self._out.ticket()
        self._out.set_timer(PUBLISH_TIMER, now + self._options.publish_seconds)
        self._out.put(ConfirmTopology(process.ticket, self.collection.topology))

    def topology_confirmed(self, unchanged: bool, now: float) -> None:
        """Hand the time to all nodes, unless a node has joined whose transactions it does not cover."""
        process = self.publication
        process.ticket = None
        assert process.request is not None
        if not unchanged or self.topology_changed:
            self._out.cancel_timer(PUBLISH_TIMER)
            process.outcome = Skipped("the topology changed during the round; the next one asks the new nodes")
            return
        process.waiting = set(self.collection.reports)
        for name in sorted(process.waiting):
            self._out.send(name, process.request)
        self._out.set_timer(RETRY_TIMER, now + self._options.retry_seconds)

    def published(self, answer: PublishAnswer) -> bool:
        """A node published, or tried to; whether it was waited for."""
        process = self.publication
        if answer.node.name not in process.waiting or answer.node not in self.collection.topology.nodes:
            return False
        process.waiting.remove(answer.node.name)
        process.answers[answer.node.name] = answer
        self._end_publication_if_done()
        return True

    def publication_failed(self, node: str, reason: str) -> None:
        """A node will not publish; the others do."""
        if node in self.publication.waiting:
            self.publication.waiting.remove(node)
            self.publication.failures.append(NodeFailure(node, reason))
            self._end_publication_if_done()

    def publication_deadline(self) -> None:
        """Nodes that have not answered by now count as failed."""
        if self.publication.ticket is not None:
            self.publication_broke(DeadlinePassed(wait="confirming the topology",
                                                  seconds=self._options.publish_seconds))
        for node in sorted(self.publication.waiting):
            self.publication_failed(node, "did not answer in time")

    def publication_broke(self, error: CompactlibError) -> None:
        """The publication ends here; the compaction goes on."""
        process = self.publication
        was_handed_out = bool(process.waiting or process.answers or process.failures)
        if process.ticket is not None:
            self._out.cancel_call(process.ticket)
        process.ticket = None
        process.waiting.clear()
        self._out.cancel_timer(PUBLISH_TIMER)
        self._out.cancel_timer(RETRY_TIMER)
        if process.outcome is None:
            process.outcome = Failed(error, "unknown") if was_handed_out else Failed(error)

    def _end_publication_if_done(self) -> None:
        process = self.publication
        if process.request is None or process.waiting or process.ticket is not None or process.outcome is not None:
            return
        self._out.cancel_timer(PUBLISH_TIMER)
        self._out.cancel_timer(RETRY_TIMER)
        failures, published, skipped, nodes = list(process.failures), 0, 0, 0
        for name, answer in sorted(process.answers.items()):
            if answer.error:
                failures.append(NodeFailure(name, answer.error))
                continue
            nodes += 1
            for result in answer.zones:
                published += result.published
                skipped += result.skipped
                if result.error:
                    failures.append(NodeFailure(name, result.error, result.zone))
        if not nodes:
            # Who did not answer may have published.
            process.outcome = Failed(ReportsMissing(nodes=tuple(map(str, failures))),
                                     "unknown" if process.failures else "no")
        else:
            process.outcome = Done(PublicationStats(process.request.time, nodes, published, skipped, tuple(failures)))

    # ---- the end

    @property
    def ended(self) -> bool:
        """Whether both processes have."""
        return self.compaction.outcome is not None and self.publication.outcome is not None

    def abandon(self, error: CompactlibError) -> None:
        """End whatever has not ended with this error."""
        self.collecting = False
        self._out.cancel_timer(COLLECT_TIMER)
        self.compaction_broke(error)
        self.publication_broke(error)

    def deadline(self, wait: str, seconds: float) -> None:
        """The host's answer to the compaction did not come in time."""
        self.compaction_broke(DeadlinePassed(wait=wait, seconds=seconds))

    def audit(self) -> None:
        """Check that no node counts twice and that what is over waits for nothing.

        Raises:
            AuditFailed: one does; this is a bug.
            InvalidInput: the topology is not one.
        """
        both = set(self.collection.reports) & set(self.collection.failed)
        strangers = [report.node for report in self.collection.reports.values()
                     if report.node not in self.collection.topology.nodes]
        over = any(process.outcome is not None and process.ticket is not None
                   for process in (self.compaction, self.publication))
        if both or strangers or over or (self.publication.outcome is not None and self.publication.waiting):
            raise AuditFailed(f"{self.id}: {sorted(both)} count twice, {strangers} were not asked, compaction "
                              f"{self.compaction}, publication {self.publication}")
        if not self.collection.topology.nodes:
            raise InvalidInput(f"{self.id} asks no node")


def _has_published(report: NodeReport, time: Timestamp) -> bool:
    """Whether every partition of the node has published this time or a later one, as the node itself says."""
    floor = report.floor(Factor.RAFT_RECOVERY)
    if floor is None:
        return not len(report.hosted)
    return floor.time >= time and all(absent.factor is not Factor.RAFT_RECOVERY for absent in report.unavailable)
