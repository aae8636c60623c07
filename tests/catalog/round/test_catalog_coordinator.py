# SPDX-License-Identifier: Apache-2.0
"""The asking side of a node: triggers, deadlines, two processes that fail apart, terms."""

from __future__ import annotations

import pytest

from compactlib.catalog import NodeId, NodeOptions, NodeReport, Topology, ZoneResult
from compactlib.catalog.errors import (
    DeadlinePassed,
    EmptyTopology,
    HostFailed,
    NotInTopology,
    ReportsMissing,
    StaleTerm,
    UnsafeCompaction,
)
from compactlib.catalog.model.partitions import HostedPartitions
from compactlib.catalog.model.values import Factor, Floor
from compactlib.catalog.round.effects import (
    Broke,
    CancelCall,
    ConfirmTopology,
    Decide,
    Decided,
    Elected,
    Event,
    Note,
    SetTimer,
    SnapshotWritten,
    Stop,
    TimerFired,
    TopologyConfirmed,
    TopologyIs,
    Triggered,
    WriteSnapshot,
)
from compactlib.catalog.round.messages import (
    Message,
    PublishAnswer,
    PublishTime,
    Refusal,
    RefusalReason,
    ReportAnswer,
    ReportFailed,
    ReportRequest,
    RoundId,
)
from compactlib.catalog.round.report import PublicationStats, Trigger
from compactlib.errors import Closed, InvalidInput
from compactlib.outcome import Done, Failed, Skipped
from tests.catalog.round.protocol import CUT, HOLD, PLAN, Driven, report_of


def finished(*others: str, options: NodeOptions | None = None) -> Driven:
    """A coordinator whose first round is through, with nothing to cut."""
    node = Driven(options=options)
    node.coordinate(*others)
    end_round(node, "a", *others)
    return node


def end_round(node: Driven, *names: str) -> None:
    """Everybody answers; nothing can be cut."""
    round_id = node.round
    node.all_report(*names)
    node(Decided(node.decide.ticket, HOLD))
    for name in names:
        node.receive(name, PublishAnswer(round_id, NodeId(name)))


# ---- a round


def test_a_round_asks_every_node_of_the_topology_once_itself_included() -> None:
    node = Driven()
    round_id = node.coordinate("b", "c")
    assert node.sent(ReportRequest) == [(name, ReportRequest(round_id)) for name in "abc"]
    assert round_id == RoundId(term=1, coordinator=NodeId("a"), number=1)


def test_both_processes_start_from_the_same_reports_and_run_side_by_side() -> None:
    node = Driven()
    round_id = node.coordinate("b", "c")
    node.all_report("a", "b")
    assert not node.all(Decide)
    node.receive("c", ReportAnswer(round_id, report_of("c", transactions_from=30)))
    assert node.decide.reports == (report_of("a"), report_of("b"), report_of("c", transactions_from=30))
    assert node.sent(PublishTime) == [(name, PublishTime(round_id, 30)) for name in "abc"]

    node(Decided(node.decide.ticket, PLAN))
    assert node.write.plan is PLAN
    assert node.decide.term == 1
    for name in "abc":
        node.receive(name, PublishAnswer(round_id, NodeId(name), (ZoneResult(1, published=2, skipped=1),)))
    assert not node.reports
    node(SnapshotWritten(node.write.ticket, Done(CUT)))
    [report] = node.reports
    assert report.compaction == Done(CUT)
    assert report.publication == Done(PublicationStats(time=30, nodes=3, published=6, skipped=3))
    assert (report.errors, report.missing, report.triggers) == ((), (), (Trigger.COORDINATOR_CHANGED,))
    assert node.node.running is None


def test_a_decision_that_holds_writes_nothing_and_says_why() -> None:
    node = finished("b")
    [report] = node.reports
    assert not node.all(WriteSnapshot)
    assert report.compaction == Skipped(HOLD.why)
    assert report.plan is HOLD


def test_a_snapshot_that_somebody_else_has_written_is_skipped() -> None:
    node = Driven()
    node.coordinate()
    node.all_report("a")
    node(Decided(node.decide.ticket, PLAN))
    node(SnapshotWritten(node.write.ticket, Skipped("somebody else has cut it")))
    node.receive("a", PublishAnswer(RoundId(1, NodeId("a"), 1), NodeId("a")))
    [report] = node.reports
    assert isinstance(report.compaction, Skipped)
    assert report.compaction.reason == "somebody else has cut it"


def test_a_decision_to_cut_without_every_report_is_refused() -> None:
    node = Driven()
    node.coordinate("b")
    node.all_report("a")
    node(TimerFired("collect"), after=10.0)
    node(Decided(node.decide.ticket, PLAN))
    [report] = node.reports
    assert isinstance(report.compaction, Failed)
    assert isinstance(report.compaction.error, UnsafeCompaction)
    assert "no report from b" in str(report.compaction.error)
    assert not node.all(WriteSnapshot)


def test_nothing_is_published_if_every_partition_says_that_it_has_published() -> None:
    node = Driven()
    round_id = node.coordinate()
    hosted = HostedPartitions.of({1: [0]})
    report = NodeReport(node=NodeId("a"), floors=(Floor(Factor.RAFT_RECOVERY, 50),), hosted=hosted,
                        transactions_from=50)
    node.receive("a", ReportAnswer(round_id, report))
    node(Decided(node.decide.ticket, HOLD))
    assert not node.sent(PublishTime)
    assert isinstance(node.reports[0].publication, Skipped)


# ---- failures stay apart


@pytest.mark.parametrize("compaction_fails", [True, False])
@pytest.mark.parametrize("publication_fails", [True, False])
def test_the_processes_fail_apart(compaction_fails: bool, publication_fails: bool) -> None:
    node = Driven()
    round_id = node.coordinate("b")
    node.all_report("a", "b")
    first = HostFailed(call="decide", kind="OSError", detail="E1")
    node(Broke(node.decide.ticket, first) if compaction_fails else Decided(node.decide.ticket, PLAN))
    for name in "ab":
        node.receive(name, PublishAnswer(round_id, NodeId(name), error="E2" if publication_fails else ""))
    if not compaction_fails:
        node(SnapshotWritten(node.write.ticket, Done(CUT)))
    [report] = node.reports
    assert isinstance(report.compaction, Failed if compaction_fails else Done)
    assert isinstance(report.publication, Failed if publication_fails else Done)
    assert [("E1" in str(error), "E2" in str(error)) for error in report.errors] == [
        *[(True, False)] * compaction_fails, *[(False, True)] * publication_fails]


def test_a_node_that_does_not_answer_is_named_and_the_next_trigger_starts_afresh() -> None:
    node = Driven()
    first = node.coordinate("b", "c")
    node.all_report("a", "c")
    node(TimerFired("collect"), after=10.0)
    assert [found.node.name for found in node.decide.reports] == ["a", "c"]
    node(Decided(node.decide.ticket, HOLD))
    [report] = node.reports
    assert isinstance(report.publication, Failed)
    assert isinstance(report.publication.error, ReportsMissing)
    assert report.publication.error.nodes == ("b: did not answer in time",)
    assert [str(missing) for missing in report.missing] == ["b: did not answer in time"]
    assert not node.sent(PublishTime)

    node(Triggered(Trigger.MANUAL))
    assert node.round.number == first.number + 1
    assert len(node.sent(ReportRequest)) == 6


def test_a_node_that_cannot_report_ends_the_wait_at_once() -> None:
    node = Driven()
    round_id = node.coordinate("b")
    node.all_report("a")
    node.receive("b", ReportFailed(round_id, NodeId("b"), "HostFailed: disk"))
    node(Decided(node.decide.ticket, HOLD))
    assert [str(missing) for missing in node.reports[0].missing] == ["b: HostFailed: disk"]


def test_one_node_that_cannot_publish_does_not_stop_the_others() -> None:
    node = Driven()
    round_id = node.coordinate("b", "c", "d")
    node.all_report("a", "b", "c", "d")
    node(Decided(node.decide.ticket, HOLD))
    node.receive("a", PublishAnswer(round_id, NodeId("a"), (ZoneResult(1, 5), ZoneResult(2, error="no leader"))))
    node.receive("b", PublishAnswer(round_id, NodeId("b"), error="TimeBeforeHistory: gone"))
    node.receive("c", Refusal(NodeId("c"), RefusalReason.STOPPING, 1, round_id, "c is stopping"))
    node(TimerFired("publish"), after=30.0)
    [report] = node.reports
    assert isinstance(report.publication, Done)
    stats = report.publication.stats
    assert (stats.nodes, stats.published) == (1, 5)
    assert sorted(map(str, stats.failures)) == [
        "a, zone 2: no leader", "b: TimeBeforeHistory: gone", "c: STOPPING: c is stopping", "d: did not answer in time"]


# ---- the topology is confirmed before a time is handed out


def collected() -> Driven:
    """A coordinator with all reports, whose host has not confirmed the topology yet."""
    node = Driven()
    node.confirms = False
    node.coordinate("b")
    node.all_report("a", "b")
    node(Decided(node.decide.ticket, HOLD))
    assert node.last(ConfirmTopology).topology == Topology.of("a", "b")
    assert not node.sent(PublishTime)
    return node


def test_a_time_is_handed_out_only_if_nobody_has_joined_since_the_reports_were_asked_for() -> None:
    node = collected()
    node(TopologyConfirmed(node.last(ConfirmTopology).ticket, unchanged=False))
    assert not node.sent(PublishTime)
    assert isinstance(node.reports[0].publication, Skipped)
    assert "topology changed" in node.reports[0].publication.reason


@pytest.mark.parametrize("hangs", [True, False])
def test_a_topology_that_cannot_be_confirmed_fails_the_publication_alone(hangs: bool) -> None:
    node = collected()
    ticket = node.last(ConfirmTopology).ticket
    broken = HostFailed(call="confirm", kind="OSError", detail="no quorum")
    found = node(TimerFired("publish"), after=30.0) if hangs else node(Broke(ticket, broken))
    assert (CancelCall(ticket) in found) is hangs
    [report] = node.reports
    assert isinstance(report.compaction, Skipped)
    assert isinstance(report.publication, Failed)
    assert isinstance(report.publication.error, DeadlinePassed if hangs else HostFailed)
    assert node(TopologyConfirmed(ticket, unchanged=True)) == []


# ---- deadlines


@pytest.mark.parametrize(("name", "wait"), [("decide", 30.0), ("write", 30.0)])
def test_each_call_of_the_host_has_a_deadline(name: str, wait: float) -> None:
    node = Driven()
    round_id = node.coordinate()
    node.all_report("a")
    if name == "write":
        node(Decided(node.decide.ticket, PLAN))
    node.receive("a", PublishAnswer(round_id, NodeId("a")))
    ticket = node.write.ticket if name == "write" else node.decide.ticket
    found = node(TimerFired(name), after=wait)
    assert CancelCall(ticket) in found
    [report] = node.reports
    assert isinstance(report.compaction, Failed)
    assert isinstance(report.compaction.error, DeadlinePassed)
    # The host may be writing the snapshot still.
    assert report.compaction.changed == ("unknown" if name == "write" else "no")
    late: Event = SnapshotWritten(ticket, Done(CUT)) if name == "write" else Decided(ticket, PLAN)
    assert node(late) == []


def test_a_time_that_was_handed_out_and_not_answered_may_be_published() -> None:
    node = Driven()
    node.coordinate("b")
    node.all_report("a", "b")
    node(Decided(node.decide.ticket, HOLD))
    node(TimerFired("publish"), after=30.0)
    [report] = node.reports
    assert isinstance(report.publication, Failed)
    assert report.publication.changed == "unknown"


def test_every_wait_of_a_round_has_a_timer_so_that_silence_ends_it() -> None:
    node = Driven()
    node.coordinate("b")
    fired = 0
    while node.node.running is not None and fired < 100:
        due = {timer.name: timer.at for timer in node.all(SetTimer) if timer.name != "interval"}
        name = min((name for name in due if due[name] > node.now), key=lambda name: due[name])
        node(TimerFired(name), after=due[name] - node.now)
        fired += 1
    assert node.node.running is None
    assert isinstance(node.reports[0].compaction, Failed)


def test_a_timer_that_was_cancelled_or_fires_early_does_nothing() -> None:
    node = Driven()
    node.coordinate("b")
    assert node(TimerFired("collect"), after=9.9) == [SetTimer("collect", 10.0)]
    assert node(TimerFired("publish")) == []
    assert node.node.running is not None


def test_requests_are_repeated_to_those_who_have_not_answered() -> None:
    node = Driven()
    round_id = node.coordinate("b", "c")
    node.all_report("a", "b")
    node.effects.clear()
    node(TimerFired("retry"), after=2.0)
    assert node.sent(ReportRequest) == [("c", ReportRequest(round_id))]
    node.all_report("c")
    node.receive("a", PublishAnswer(round_id, NodeId("a")))
    node.effects.clear()
    node(TimerFired("retry"), after=2.0)
    assert node.sent(PublishTime) == [(name, PublishTime(round_id, 50)) for name in "bc"]


# ---- who answers what


def test_the_first_answer_of_a_node_counts() -> None:
    node = Driven()
    round_id = node.coordinate("b")
    node.all_report("a")
    node.receive("a", ReportAnswer(round_id, report_of("a", transactions_from=1)))
    node.all_report("b")
    assert node.decide.reports[0].transactions_from == 50
    node.receive("b", ReportAnswer(round_id, report_of("b", transactions_from=1)))
    node(Decided(node.decide.ticket, HOLD))
    for name in "aab":
        node.receive(name, PublishAnswer(round_id, NodeId(name)))
    assert node.reports[0].repeated == 3


def test_an_answer_to_another_round_is_late_and_counts_for_nothing() -> None:
    node = finished("b")
    old = RoundId(1, NodeId("a"), 1)
    node(Triggered(Trigger.MANUAL))
    for message in (ReportAnswer(old, report_of("b")), ReportFailed(old, NodeId("b"), ""),
                    PublishAnswer(old, NodeId("b"))):
        [note] = node.receive("b", message)
        assert isinstance(note, Note)
        assert (note.name, note.fields["kind"]) == ("catalog_late_answer", type(message).__name__)
    assert node.round.number == 2


def test_an_answer_to_an_earlier_life_of_the_coordinator_is_late() -> None:
    node = Driven(life=2)
    node(TopologyIs(Topology(frozenset({NodeId("a", 2), NodeId("b")}))))
    node(Elected(1, "a"))
    node.receive("b", ReportAnswer(RoundId(1, NodeId("a", 1), 1), report_of("b")))
    node.receive("a", ReportAnswer(node.round, report_of("a", life=2)))
    assert not node.all(Decide)


def test_a_node_that_restarted_during_the_round_is_missing() -> None:
    node = Driven()
    round_id = node.coordinate("b")
    node.all_report("a")
    node.receive("b", ReportAnswer(round_id, report_of("b", life=2)))
    node(Decided(node.decide.ticket, HOLD))
    assert [str(missing) for missing in node.reports[0].missing] == ["b: restarted: b#2 answered, life 1 was asked"]


def test_an_answer_of_somebody_who_was_not_asked_counts_for_nothing() -> None:
    node = Driven()
    round_id = node.coordinate("b")
    node.receive("z", ReportAnswer(round_id, report_of("z", transactions_from=1)))
    node.all_report("a", "b")
    assert [found.node.name for found in node.decide.reports] == ["a", "b"]


@pytest.mark.parametrize("message", [
    ReportAnswer(RoundId(1, NodeId("a"), 1), report_of("c", transactions_from=1)),
    ReportFailed(RoundId(1, NodeId("a"), 1), NodeId("c"), "no"),
    PublishAnswer(RoundId(1, NodeId("a"), 1), NodeId("c")),
    Refusal(NodeId("c"), RefusalReason.STALE_TERM, 99, None, ""),
    ReportRequest(RoundId(99, NodeId("c"), 1)),
    PublishTime(RoundId(99, NodeId("c"), 1), 5),
])
def test_a_message_that_names_another_sender_changes_nothing(message: Message) -> None:
    node = Driven()
    node.coordinate("b", "c")
    [note] = node.receive("b", message)
    assert isinstance(note, Note)
    assert note.name == "catalog_forged_sender"
    assert node.node.term == 1


@pytest.mark.parametrize("reason", [RefusalReason.UNKNOWN_TYPE, RefusalReason.UNKNOWN_VERSION,
                                    RefusalReason.TWO_COORDINATORS, RefusalReason.STOPPING])
def test_a_node_that_refuses_is_missing_at_once(reason: RefusalReason) -> None:
    node = Driven()
    node.coordinate("b")
    node.all_report("a")
    node.receive("b", Refusal(NodeId("b"), reason, 1, None, "told"))
    node(Decided(node.decide.ticket, HOLD))
    assert [str(missing) for missing in node.reports[0].missing] == [f"b: {reason.name}: told"]


# ---- topology


def test_an_empty_topology_is_named_and_the_round_after_works() -> None:
    node = Driven()
    node(Elected(1, "a"))
    [report] = node.reports
    assert [type(error) for error in report.errors] == [EmptyTopology, EmptyTopology]
    node(TopologyIs(Topology.of("a")))
    assert node.round.number == 2


def test_a_topology_without_the_coordinator_is_named() -> None:
    node = Driven(life=2)
    node(TopologyIs(Topology.of("a", "b", epoch=3)))
    node(Elected(1, "a"))
    [error, _] = node.reports[0].errors
    assert isinstance(error, NotInTopology)
    assert (error.node, error.epoch) == ("a#2", 3)


def test_a_node_that_leaves_is_not_waited_for_and_the_round_cuts_nothing() -> None:
    node = Driven()
    node.coordinate("b")
    node.all_report("a")
    node(TopologyIs(Topology.of("a", epoch=1)))
    node(Decided(node.decide.ticket, HOLD))
    assert [str(missing) for missing in node.reports[0].missing] == ["b: left the topology"]
    assert node.round.number == 2
    assert node.sent(ReportRequest)[-1] == ("a", ReportRequest(node.round))


def test_a_node_that_joins_during_the_round_stops_the_cut_and_starts_another_round() -> None:
    node = Driven()
    round_id = node.coordinate("b")
    node.all_report("a", "b")
    node(TopologyIs(Topology.of("a", "b", "c", epoch=1)))
    node(Decided(node.decide.ticket, PLAN))
    assert not node.all(WriteSnapshot)
    for name in "ab":
        node.receive(name, PublishAnswer(round_id, NodeId(name)))
    [report] = node.reports
    assert isinstance(report.compaction, Skipped)
    assert "topology changed" in report.compaction.reason
    assert isinstance(report.publication, Done)
    assert node.round.number == 2


def test_an_older_topology_is_ignored_and_an_equal_one_starts_nothing() -> None:
    node = finished()
    node(TopologyIs(Topology.of("a", epoch=5)))
    assert node.node.running is None
    node(TopologyIs(Topology.of("a", "b", epoch=4)))
    assert node.node.topology == Topology.of("a", epoch=5)


# ---- triggers


@pytest.mark.parametrize("trigger", list(Trigger))
def test_a_trigger_does_nothing_on_a_node_that_does_not_coordinate(trigger: Trigger) -> None:
    node = Driven()
    node(TopologyIs(Topology.of("a", "b")))
    assert node(Triggered(trigger)) == []
    node(Elected(1, "b"))
    assert node(Triggered(trigger)) == []
    node(Elected(2, "a"))
    assert node.round.term == 2


def test_triggers_during_a_round_become_one_round_after_it() -> None:
    node = Driven()
    first = node.coordinate("b")
    for trigger in (Trigger.WATERMARK_MOVED, Trigger.MANUAL, Trigger.WATERMARK_MOVED):
        assert node(Triggered(trigger)) == []
    assert node.round == first
    end_round(node, "a", "b")
    assert node.round.number == 2
    end_round(node, "a", "b")
    assert node.reports[1].triggers == (Trigger.WATERMARK_MOVED, Trigger.MANUAL)
    assert node.node.running is None


def test_the_interval_starts_a_round_that_nobody_asked_for() -> None:
    node = finished(options=NodeOptions(interval_seconds=60.0))
    assert node.last(SetTimer) == SetTimer("interval", 60.0)
    node(TimerFired("interval"), after=60.0)
    end_round(node, "a")
    assert node.reports[1].triggers == (Trigger.INTERVAL,)


def test_without_an_interval_nothing_starts_by_itself() -> None:
    node = finished(options=NodeOptions(interval_seconds=None))
    assert not [timer for timer in node.all(SetTimer) if timer.name == "interval"]


def test_rounds_keep_the_minimum_interval_and_lose_no_trigger() -> None:
    node = finished(options=NodeOptions(min_interval_seconds=5.0))
    node(Triggered(Trigger.WATERMARK_MOVED), after=1.0)
    node(Triggered(Trigger.MANUAL), after=1.0)
    assert node.node.running is None
    assert node.last(SetTimer) == SetTimer("next round", 5.0)
    node(TimerFired("next round"), after=3.0)
    end_round(node, "a")
    assert node.reports[1].triggers == (Trigger.WATERMARK_MOVED, Trigger.MANUAL)


# ---- terms


def test_a_round_ends_when_another_node_is_elected() -> None:
    node = Driven()
    node.coordinate("b")
    node.all_report("a", "b")
    node(Decided(node.decide.ticket, PLAN))
    found = node(Elected(2, "b"))
    assert CancelCall(node.write.ticket) in found
    [report] = node.reports
    assert [type(error) for error in report.errors] == [StaleTerm, StaleTerm]
    assert [outcome.changed for outcome in (report.compaction, report.publication) if isinstance(outcome, Failed)] == [
        "unknown", "unknown"]
    assert node.node.running is None
    assert node(SnapshotWritten(node.write.ticket, Done(CUT))) == []


def test_a_round_of_an_old_term_ends_when_the_same_node_is_elected_again() -> None:
    node = Driven()
    node.coordinate("b")
    node(Elected(3, "a"))
    assert (node.round.term, node.round.number) == (3, 2)
    assert isinstance(node.reports[0].compaction, Failed)


def test_a_deposed_coordinator_cuts_nothing_and_learns_of_its_end_from_its_host() -> None:
    node = Driven()
    round_id = node.coordinate("b", "c")
    node.all_report("a", "b")
    node.receive("c", Refusal(NodeId("c"), RefusalReason.STALE_TERM, 7, round_id, "term 1 is over"))
    assert (node.node.term, node.node.coordinator) == (1, "a")
    node(Decided(node.decide.ticket, HOLD))
    [report] = node.reports
    assert [(missing.node, missing.reason) for missing in report.missing] == [("c", "STALE_TERM: term 1 is over")]
    node(Elected(7, "a"))
    assert node.round.term == 7


def test_a_coordinator_that_is_asked_by_a_newer_one_waits_for_its_hosts_word() -> None:
    node = Driven()
    node.coordinate("b")
    newer = RoundId(2, NodeId("b"), 1)
    [note] = node.receive("b", ReportRequest(newer))
    assert isinstance(note, Note)
    assert (node.node.coordinator, node.reports) == ("a", [])
    node(Elected(2, "b"))
    assert (node.node.coordinator, node.node.running) == ("b", None)
    assert isinstance(node.reports[0].compaction, Failed)
    assert node.receive("b", ReportRequest(newer))


@pytest.mark.parametrize(("term", "name"), [(0, "a"), (-1, "a"), (1, "")])
def test_an_election_without_a_term_or_a_name_is_refused(term: int, name: str) -> None:
    with pytest.raises(InvalidInput):
        Driven()(Elected(term, name))


def test_two_coordinators_of_one_term_are_noted_and_the_first_stays() -> None:
    node = Driven()
    node.coordinate("b")
    [note] = node(Elected(1, "b"))
    assert isinstance(note, Note)
    assert note.name == "catalog_two_coordinators"
    assert node.node.coordinating


def test_stopping_ends_the_round_and_starts_no_other() -> None:
    node = Driven()
    node.coordinate("b")
    node(Triggered(Trigger.MANUAL))
    node(Stop())
    [report] = node.reports
    assert [type(error) for error in report.errors] == [Closed, Closed]
    # Nothing was decided yet, and no time handed out.
    assert [outcome.changed for outcome in (report.compaction, report.publication) if isinstance(outcome, Failed)] == [
        "no", "no"]
    for event in (Triggered(Trigger.MANUAL), Elected(9, "a"), Stop(), TimerFired("collect")):
        assert node(event, after=20.0) == []


def test_reports_of_rounds_print_themselves() -> None:
    node = Driven()
    node.coordinate("b")
    node.all_report("a")
    node(TimerFired("collect"), after=10.0)
    node(Decided(node.decide.ticket, HOLD))
    [report] = node.reports
    assert "1 nodes answered, 1 MISSING" in repr(report)
    assert "publication FAILED (ReportsMissing" in repr(report)
    assert {row["process"] for row in report.to_dicts()} == {"compaction", "publication", "collection"}
    assert "did not answer in time" in str(report)
    assert report._repr_html_().startswith("<table>")


@pytest.mark.parametrize("wrong", [{"collect_seconds": 0.0}, {"retry_seconds": -1.0}, {"interval_seconds": 0.0},
                                   {"min_interval_seconds": -1.0}, {"write_seconds": float("inf")},
                                   {"decide_seconds": float("nan")}])
def test_waits_must_be_above_zero(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidInput):
        NodeOptions(**wrong)
