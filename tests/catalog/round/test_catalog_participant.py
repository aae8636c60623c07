# SPDX-License-Identifier: Apache-2.0
"""The answering side of a node: reports, publications zone by zone, and what it refuses."""

from __future__ import annotations

import re

import pytest

from compactlib.catalog import NodeId, ZoneResult
from compactlib.catalog.errors import HostFailed, StaleTerm, TwoCoordinators
from compactlib.catalog.round.effects import (
    Broke,
    CancelCall,
    Collect,
    Elected,
    ListZones,
    Note,
    PublishZone,
    Reported,
    Send,
    Stop,
    TimerFired,
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
)
from compactlib.errors import InvalidInput
from tests.catalog.round.protocol import Driven, report_of

ROUND = RoundId(term=3, coordinator=NodeId("c"), number=5)
NEXT = RoundId(term=3, coordinator=NodeId("c"), number=6)
BROKEN = HostFailed(call="Collect", kind="OSError", detail="disk")


def ticket_of(node: Driven) -> int:
    return node.last(Collect).ticket


def test_a_node_reports_to_whoever_asked() -> None:
    node = Driven()
    node.receive("c", ReportRequest(ROUND))
    found = node(Reported(ticket_of(node), report_of("a")))
    assert Send("c", ReportAnswer(ROUND, report_of("a"))) in found
    assert node(Reported(ticket_of(node), report_of("a"))) == []


def test_a_repeated_request_starts_no_second_report_while_one_runs() -> None:
    node = Driven()
    node.receive("c", ReportRequest(ROUND))
    assert node.receive("c", ReportRequest(ROUND)) == []
    node(Reported(ticket_of(node), report_of("a")))
    node.receive("c", ReportRequest(ROUND))
    assert len(node.all(Collect)) == 2


def test_a_newer_round_takes_the_place_of_the_one_under_way_and_an_older_one_does_not() -> None:
    node = Driven()
    node.receive("c", ReportRequest(ROUND))
    first = ticket_of(node)
    assert CancelCall(first) in node.receive("c", ReportRequest(NEXT))
    assert node.receive("c", ReportRequest(ROUND)) == []
    assert node(Reported(first, report_of("a"))) == []
    found = node(Reported(ticket_of(node), report_of("a")))
    assert Send("c", ReportAnswer(NEXT, report_of("a"))) in found


def test_sources_that_fail_or_hang_are_told() -> None:
    node = Driven()
    node.receive("c", ReportRequest(ROUND))
    found = node(Broke(ticket_of(node), BROKEN))
    assert [effect.message for effect in found if isinstance(effect, Send)] == [
        ReportFailed(ROUND, NodeId("a"), f"HostFailed: {BROKEN}")]
    node.receive("c", ReportRequest(NEXT))
    found = node(TimerFired("report"), after=8.0)
    assert CancelCall(ticket_of(node)) in found
    [failed] = [effect.message for effect in found if isinstance(effect, Send)]
    assert isinstance(failed, ReportFailed)
    assert failed.reason.startswith("DeadlinePassed: asking this node's sources took longer than 8.0 s")


def reported(round_id: RoundId = ROUND, node: Driven | None = None) -> Driven:
    """A node that has told the coordinator that it has no transaction from before 80."""
    node = node or Driven()
    node.receive("c", ReportRequest(round_id))
    node(Reported(ticket_of(node), report_of("a", 80)))
    return node


def publishing(zones: dict[int, int]) -> Driven:
    """A node that hands a time to these zones."""
    node = reported()
    node.receive("c", PublishTime(ROUND, 70))
    assert (node.last(ListZones).time, node.last(ListZones).ticket) == (70, 2)
    node(ZonesListed(2, zones))
    return node


def answer_of(node: Driven) -> PublishAnswer:
    [*_, (to, answer)] = node.sent(PublishAnswer)
    assert to == "c"
    return answer


def test_the_time_goes_to_every_zone_at_once_and_the_answer_tells_of_each() -> None:
    node = publishing({9: 25, 4: 2})
    assert [(call.zone, call.partitions, call.time) for call in node.all(PublishZone)] == [(4, 2, 70), (9, 25, 70)]
    first, second = node.all(PublishZone)
    node(ZonePublished(second.ticket, ZoneResult(9, published=20, skipped=5)))
    assert not node.sent(PublishAnswer)
    node(ZonePublished(first.ticket, ZoneResult(4, published=2)))
    assert answer_of(node) == PublishAnswer(ROUND, NodeId("a"), (ZoneResult(4, 2), ZoneResult(9, 20, 5)))


def test_a_zone_that_fails_does_not_stop_the_others() -> None:
    node = publishing({1: 2, 2: 2, 3: 2})
    first, second, third = node.all(PublishZone)
    node(Broke(first.ticket, BROKEN))
    node(ZonePublished(third.ticket, ZoneResult(3, published=2)))
    found = node(TimerFired("zones"), after=25.0)
    assert CancelCall(second.ticket) in found
    one, two, three = answer_of(node).zones
    assert one.error == f"HostFailed: {BROKEN}"
    assert two.error.startswith("DeadlinePassed")
    assert three == ZoneResult(3, published=2)
    assert node(ZonePublished(second.ticket, ZoneResult(2, published=2))) == []


def test_a_node_without_zones_answers_at_once() -> None:
    assert answer_of(publishing({})) == PublishAnswer(ROUND, NodeId("a"))


def test_zones_that_cannot_be_listed_are_told() -> None:
    node = reported()
    node.receive("c", PublishTime(ROUND, 70))
    node(Broke(2, BROKEN))
    assert answer_of(node).error == f"HostFailed: {BROKEN}"
    reported(NEXT, node)
    node.receive("c", PublishTime(NEXT, 71))
    node(TimerFired("zones"), after=25.0)
    assert answer_of(node).error.startswith("DeadlinePassed")


def test_a_repeated_time_is_answered_again_and_published_once() -> None:
    node = publishing({1: 1})
    assert node.receive("c", PublishTime(ROUND, 70)) == []
    node(ZonePublished(3, ZoneResult(1, published=1)))
    assert node.receive("c", PublishTime(ROUND, 70)) == [Send("c", answer_of(node))]
    assert len(node.all(PublishZone)) == 1


def test_a_newer_time_takes_the_place_of_the_one_under_way() -> None:
    node = publishing({1: 1})
    reported(NEXT, node)
    assert CancelCall(3) in node.receive("c", PublishTime(NEXT, 80))
    assert node.receive("c", PublishTime(ROUND, 70)) == []
    assert node(ZonePublished(3, ZoneResult(1, published=1))) == []
    node(ZonesListed(node.last(ListZones).ticket, {1: 1}))
    assert node.last(PublishZone).time == 80


@pytest.mark.parametrize(("message", "why"), [
    (PublishTime(ROUND, 81), "is above .* which a#1 reported"), (PublishTime(ROUND, 1 << 62), "is above"),
    (PublishTime(NEXT, 70), "a#1 has not reported in round 6")])
def test_a_time_that_cannot_come_from_what_this_node_reported_is_refused(message: PublishTime, why: str) -> None:
    node = reported()
    notes = [effect for effect in node.receive("c", message) if isinstance(effect, Note)]
    assert [(note.name, note.fields["reason"]) for note in notes] == [("catalog_message_refused", "UNFOUNDED_TIME")]
    assert re.search(why, answer_of(node).error)
    assert not node.all(ListZones)
    node.receive("c", PublishTime(ROUND, 80))
    assert node.last(ListZones).time == 80


# ---- terms


@pytest.mark.parametrize("message", [ReportRequest(ROUND), PublishTime(ROUND, 7)])
def test_a_message_of_a_term_that_is_over_is_refused(message: ReportRequest | PublishTime) -> None:
    node = Driven()
    node(Elected(4, "b"))
    found = node.receive("c", message)
    [refusal] = [effect.message for effect in found if isinstance(effect, Send)]
    assert refusal == Refusal(NodeId("a"), RefusalReason.STALE_TERM, 4, ROUND, str(StaleTerm(term=3, current=4)))
    assert [effect.name for effect in found if isinstance(effect, Note)] == ["catalog_message_refused"]
    assert not node.all(Collect)
    assert not node.all(ListZones)


def test_a_second_coordinator_of_the_term_is_refused() -> None:
    node = Driven()
    node(Elected(3, "b"))
    found = node.receive("c", ReportRequest(ROUND))
    [refusal] = [effect.message for effect in found if isinstance(effect, Send)]
    assert refusal == Refusal(NodeId("a"), RefusalReason.TWO_COORDINATORS, 3, ROUND,
                              str(TwoCoordinators(term=3, known="b", claims="c")))


def test_a_node_that_was_told_of_no_election_yet_goes_by_the_coordinators_messages() -> None:
    node = Driven()
    node.receive("c", ReportRequest(ROUND))
    assert (node.node.term, node.node.coordinator) == (3, "c")


@pytest.mark.parametrize("message", [ReportRequest(RoundId((1 << 64) - 1, NodeId("c"), 5)),
                                     PublishTime(RoundId((1 << 64) - 1, NodeId("c"), 5), 7)])
def test_terms_move_by_the_hosts_election_alone(message: ReportRequest | PublishTime) -> None:
    node = Driven()
    node(Elected(2, "b"))
    [note] = node.receive("c", message)
    assert isinstance(note, Note)
    assert (note.name, note.fields["reason"]) == ("catalog_message_refused", "UNKNOWN_TERM")
    assert (node.node.term, node.node.coordinator) == (2, "b")
    assert not node.all(Collect)
    node(Elected(3, "c"))
    node.receive("c", ReportRequest(ROUND))
    assert node.all(Collect)


@pytest.mark.parametrize("is_answered", [True, False])
def test_the_hosts_first_word_ends_what_a_peer_has_claimed(is_answered: bool) -> None:
    node, claimed = Driven(), RoundId((1 << 64) - 1, NodeId("x"), 1)
    node.receive("x", ReportRequest(claimed))
    node(Reported(ticket_of(node), report_of("a", 80)))
    node.receive("x", PublishTime(claimed, 70))
    if is_answered:
        node(ZonesListed(node.last(ListZones).ticket, {}))
    node.receive("x", ReportRequest(claimed))
    node(Elected(3, "c"))
    assert (node.node.term, node.node.coordinator) == (3, "c")
    reported(node=node)
    node.receive("c", PublishTime(ROUND, 70))
    node(ZonesListed(node.last(ListZones).ticket, {}))
    assert answer_of(node) == PublishAnswer(ROUND, NodeId("a"))


def test_a_stopping_node_says_so() -> None:
    node = Driven()
    node.receive("c", ReportRequest(ROUND))
    refusals = [effect.message for effect in node(Stop()) if isinstance(effect, Send)]
    refusals += [effect.message for effect in node.receive("c", PublishTime(ROUND, 7)) if isinstance(effect, Send)]
    assert [refusal.reason for refusal in refusals if isinstance(refusal, Refusal)] == [RefusalReason.STOPPING] * 2


# ---- the election


def test_terms_only_grow_and_belong_to_one_node() -> None:
    election = Election()
    assert election.hear(2, "a") is Heard.NEWER
    assert election.hear(2, "a") is Heard.KNOWN
    assert election.hear(1, "b") is Heard.STALE
    assert election.hear(2, "b") is Heard.CONTRADICTION
    assert (election.term, election.coordinator) == (2, "a")
    assert election.claimed(2, "a") is Heard.KNOWN
    assert election.claimed(1, "b") is Heard.STALE
    assert election.claimed(2, "b") is Heard.CONTRADICTION
    assert election.claimed(5, "b") is Heard.UNKNOWN
    assert (election.term, election.coordinator) == (2, "a")
    assert election.hear(5, "b") is Heard.NEWER
    assert election.claimed(5, "b") is Heard.KNOWN
    assert repr(election) == "Election(term=5, coordinator='b')"
    election.audit()
    assert isinstance(election.error(Heard.STALE, 4, "x"), StaleTerm)
    assert isinstance(election.error(Heard.CONTRADICTION, 5, "x"), TwoCoordinators)
    assert election.error(Heard.KNOWN, 5, "b") is None


@pytest.mark.parametrize(("term", "name"), [(0, "a"), (-3, "a"), (1, "")])
def test_a_term_below_one_or_without_a_name_is_refused(term: int, name: str) -> None:
    with pytest.raises(InvalidInput, match="terms count from 1"):
        Election().hear(term, name)
