# SPDX-License-Identifier: Apache-2.0
"""The answering side of a node: reports what it needs, and hands the cluster's oldest time to its partitions.

One report and one publication are under way at most; a newer round takes their place. Zones fail apart, and a zone
that hangs holds up neither the others nor the answer.
"""

from __future__ import annotations

import attrs

from compactlib.catalog.errors import DeadlinePassed
from compactlib.catalog.model.timestamp import Timestamp, show
from compactlib.catalog.model.values import NodeId
from compactlib.catalog.round.effects import (
    Broke,
    Collect,
    ListZones,
    PublishZone,
    Reported,
    ZonePublished,
    ZonesListed,
)
from compactlib.catalog.round.election import Election, Heard
from compactlib.catalog.round.messages import (
    PublishAnswer,
    PublishTime,
    Refusal,
    RefusalReason,
    ReportAnswer,
    ReportFailed,
    ReportRequest,
    RoundId,
    ZoneResult,
    short_text,
)
from compactlib.catalog.round.outbox import NodeOptions, Outbox
from compactlib.errors import AuditFailed, CompactlibError

REPORT_TIMER = "report"
"""Ends a wait for this node's own sources."""
ZONES_TIMER = "zones"
"""Ends a wait for this node's own zones."""


@attrs.define
class _Report:
    round: RoundId
    ticket: int


@attrs.define
class _Publication:
    """A time on its way to the partitions of this node; `waiting` is zone by ticket, `answer` what was sent last."""

    request: PublishTime
    listing: int | None
    waiting: dict[int, int] = attrs.field(factory=dict)
    results: dict[int, ZoneResult] = attrs.field(factory=dict)
    answer: PublishAnswer | None = None


class Participant:
    """See the module. Not for several threads at once; times are monotonic seconds.

    Args:
        me: this node, in this life.
        options: its waits.
        election: shared with the coordinator's side.
        outbox: where effects go.
    """

    def __init__(self, me: NodeId, options: NodeOptions, election: Election, outbox: Outbox) -> None:
        self._me = me
        self._options = options
        self._election = election
        self._out = outbox
        self._report: _Report | None = None
        self._publication: _Publication | None = None
        self._reported: tuple[RoundId, Timestamp] | None = None

    def report_requested(self, request: ReportRequest, now: float) -> None:
        """Start a report, unless one for this round is under way or a newer round is known."""
        running = self._report
        if running is not None:
            if running.round == request.round or _is_older(request.round, running.round):
                return
            self._drop_report()
        ticket = self._out.ticket()
        self._report = _Report(request.round, ticket)
        self._out.set_timer(REPORT_TIMER, now + self._options.report_seconds)
        self._out.put(Collect(ticket))

    def reported(self, event: Reported) -> None:
        """Send the report to the coordinator that asked for it."""
        if self._report is None or self._report.ticket != event.ticket:
            return
        round_id = self._end_report()
        self._reported = round_id, event.report.transactions_from
        self._out.send(round_id.coordinator.name, ReportAnswer(round_id, event.report))

    def time_to_publish(self, request: PublishTime, now: float) -> None:
        """Start publishing, unless this round's time is on its way already or a newer round is known.

        A time above what this node reported in that round is refused: the round's lowest time is no higher than that.
        """
        running = self._publication
        if running is not None:
            if running.request.round == request.round:
                if running.answer is not None:
                    self._out.send(request.round.coordinator.name, running.answer)
                return
            if _is_older(request.round, running.request.round):
                return
        if not self._is_founded(request):
            return
        self._drop_publication()
        ticket = self._out.ticket()
        self._publication = _Publication(request, ticket)
        self._out.set_timer(ZONES_TIMER, now + self._options.zones_seconds)
        self._out.put(ListZones(ticket, request.time))

    def _is_founded(self, request: PublishTime) -> bool:
        """Whether the time can come from this round's reports, of which this node's own is one; refuses it if not."""
        round_id, reported = self._reported or (None, None)
        if round_id != request.round or reported is None:
            error = f"{self._me} has not reported in {request.round}, so no time can come from it"
        elif request.time > reported:
            error = f"time {show(request.time)} of {request.round} is above {show(reported)}, which {self._me} reported"
        else:
            return True
        self.note_refused(request.round.coordinator.name, "UNFOUNDED_TIME", error)
        self._out.send(request.round.coordinator.name,
                       PublishAnswer(request.round, self._me, error=short_text(error)))
        return False

    def zones_listed(self, event: ZonesListed) -> None:
        """Hand the time to every zone at once."""
        running = self._publication
        if running is None or running.listing != event.ticket:
            return
        running.listing = None
        for zone, partitions in sorted(event.zones.items()):
            ticket = self._out.ticket()
            running.waiting[ticket] = zone
            self._out.put(PublishZone(ticket, zone, partitions, running.request.time))
        self._answer_when_done(running)

    def zone_published(self, event: ZonePublished) -> None:
        """Note the result; answer after the last one."""
        self._zone_ended(event.ticket, event.result)

    def broke(self, event: Broke) -> bool:
        """A call of the host failed; whether it was one of this side."""
        running = self._publication
        if self._report is not None and self._report.ticket == event.ticket:
            self._fail_report(event.error)
        elif running is not None and running.listing == event.ticket:
            self._finish(running, _told(event.error))
        elif running is not None and event.ticket in running.waiting:
            self._zone_ended(event.ticket, ZoneResult(running.waiting[event.ticket], error=_told(event.error)))
        else:
            return False
        return True

    def report_deadline(self) -> None:
        """The sources took too long."""
        if self._report is not None:
            self._out.cancel_call(self._report.ticket)
            self._fail_report(DeadlinePassed(wait="asking this node's sources", seconds=self._options.report_seconds))

    def zones_deadline(self) -> None:
        """Zones that have not taken the time by now count as failed; the others do not suffer."""
        running = self._publication
        if running is None or running.answer is not None:
            return
        error = _told(DeadlinePassed(wait="publishing a time", seconds=self._options.zones_seconds))
        self._cancel_calls(running)
        for zone in running.waiting.values():
            running.results[zone] = ZoneResult(zone, error=error)
        running.waiting.clear()
        self._finish(running, error if running.listing is not None else "")

    def refuse(self, round_id: RoundId, heard: Heard) -> None:
        """Report to the sender of a message of this round why it was refused."""
        error = self._election.error(heard, round_id.term, round_id.coordinator.name)
        reason = RefusalReason.STALE_TERM if heard is Heard.STALE else RefusalReason.TWO_COORDINATORS
        self._refuse(round_id, reason, str(error))
        self.note_refused(round_id.coordinator.name, reason.name, str(error))

    def note_refused(self, sender: str, reason: str, error: str) -> None:
        """Tell the observer of a message that was not accepted."""
        self._out.note("catalog_message_refused", sender=sender, error=error, reason=reason)

    def told_of(self, term: int) -> None:
        """The host has told of its election: what claimed a higher term is dropped."""
        if self._report is not None and self._report.round.term > term:
            self._drop_report()
        if self._publication is not None and self._publication.request.round.term > term:
            self._drop_publication()

    def refuse_stopping(self, round_id: RoundId) -> None:
        """Report to the sender that this node goes down."""
        self._refuse(round_id, RefusalReason.STOPPING, f"{self._me} is stopping")

    def stop(self) -> None:
        """Give up what is under way; the sender of the request is notified."""
        if self._report is not None:
            round_id = self._report.round
            self._drop_report()
            self.refuse_stopping(round_id)
        self._drop_publication()

    def audit(self) -> None:
        """Check that no zone is waited for and done at once.

        Raises:
            AuditFailed: one is; this is a bug.
        """
        running = self._publication
        if running is not None:
            both = set(running.waiting.values()) & set(running.results)
            if both or (running.answer is not None and running.waiting):
                raise AuditFailed(f"zones {sorted(both)} are waited for and done, answer {running.answer}")

    def _refuse(self, round_id: RoundId, reason: RefusalReason, detail: str) -> None:
        self._out.send(round_id.coordinator.name,
                       Refusal(self._me, reason, self._election.term, round_id, short_text(detail)))

    def _zone_ended(self, ticket: int, result: ZoneResult) -> None:
        running = self._publication
        if running is None or running.waiting.pop(ticket, None) is None:
            return
        running.results[result.zone] = result
        self._answer_when_done(running)

    def _answer_when_done(self, running: _Publication) -> None:
        if not running.waiting:
            self._finish(running, "")

    def _finish(self, running: _Publication, error: str) -> None:
        running.listing = None
        self._out.cancel_timer(ZONES_TIMER)
        zones = tuple(running.results[zone] for zone in sorted(running.results))
        running.answer = PublishAnswer(running.request.round, self._me, zones, error)
        self._out.send(running.request.round.coordinator.name, running.answer)

    def _fail_report(self, error: CompactlibError) -> None:
        round_id = self._end_report()
        self._out.send(round_id.coordinator.name, ReportFailed(round_id, self._me, _told(error)))

    def _end_report(self) -> RoundId:
        assert self._report is not None
        round_id, self._report = self._report.round, None
        self._out.cancel_timer(REPORT_TIMER)
        return round_id

    def _drop_report(self) -> None:
        if self._report is not None:
            self._out.cancel_call(self._report.ticket)
            self._end_report()

    def _drop_publication(self) -> None:
        running, self._publication = self._publication, None
        if running is not None and running.answer is None:
            self._cancel_calls(running)
            self._out.cancel_timer(ZONES_TIMER)

    def _cancel_calls(self, running: _Publication) -> None:
        if running.listing is not None:
            self._out.cancel_call(running.listing)
        for ticket in running.waiting:
            self._out.cancel_call(ticket)


def _is_older(asked: RoundId, known: RoundId) -> bool:
    """Whether `asked` comes before `known`: an earlier term, or an earlier round of the same life."""
    if asked.coordinator == known.coordinator:
        return (asked.term, asked.number) < (known.term, known.number)
    return asked.term < known.term


def _told(error: CompactlibError) -> str:
    return short_text(f"{type(error).__name__}: {error}")
