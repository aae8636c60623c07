# SPDX-License-Identifier: Apache-2.0
"""`decide`: cases with known answers (with the margin of Ignite), and what they leave open."""

from __future__ import annotations

import itertools
import pickle

import attrs
import pytest

from compactlib.catalog import Assignments, CatalogView, NodeId, NodeReport, Topology, ZoneAssignments
from compactlib.catalog.errors import AssignmentsMissing, DuplicateReport, EmptyTopology
from compactlib.catalog.model.partitions import HostedPartitions
from compactlib.catalog.model.values import RESTRICTIONS, Culprit, Factor, Floor, Unavailable
from compactlib.catalog.plan.decision import decide
from compactlib.catalog.plan.verdict import Compact, Hold, Limit
from compactlib.catalog.schema.catalog import PutObject
from compactlib.catalog.schema.descriptors import IndexStatus, Zone
from compactlib.catalog.schema.versions import RetainedVersions
from compactlib.errors import InvalidInput
from tests.catalog.cases import (
    ALL_NODES,
    TABLE_X,
    ZONE,
    decided,
    drop_table,
    given,
    held_by,
    history,
    index,
    report,
    schema_and_zone,
    table,
    target,
    with_table_x,
)

BUILD = (IndexStatus.REGISTERED, IndexStatus.BUILDING, IndexStatus.AVAILABLE)


def three(*needs: int) -> list[NodeReport]:
    return [report(name, need) for name, need in zip("ABC", needs, strict=True)]


# --- target selection ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("margin", "expected"), [(1, 3), (0, 4)])
def test_the_lowest_time_counts(margin: int, expected: int) -> None:
    decision = decided(history(), three(60, 50, 40), margin=margin)
    assert target(decision) == expected
    assert decision.why.bound == 40
    assert target(decided(history(earliest=expected), three(60, 50, 40), margin=margin)) is None


def test_needing_the_earliest_version_itself_holds() -> None:
    for margin in (0, 1):
        assert held_by(decided(history(earliest=3), three(30, 30, 30), margin=margin)) is Factor.RAFT_RECOVERY


@pytest.mark.parametrize("time", [0, 1, 29])
def test_a_time_before_history_holds_and_is_no_error(time: int) -> None:
    decision = decided(history(earliest=3), three(1000, time, 1000))
    assert held_by(decision) is Factor.RAFT_RECOVERY
    assert decision.why.limits[0].allows is None
    assert decision.why.limits[0].culprits == (Culprit(node="B"),)


@pytest.mark.parametrize(("margin", "expected"), [(1, 3), (0, 4)])
def test_the_low_watermark_bounds_too(margin: int, expected: int) -> None:
    decision = decided(history(), margin=margin, low_watermark=45)
    assert target(decision) == expected
    assert decision.why.factors == (Factor.LOW_WATERMARK,)


def test_a_node_that_is_not_available_holds() -> None:
    as_in_ignite = [report("A"), report("B", 1, hosted=HostedPartitions()), report("C")]
    assert held_by(decided(history(), as_in_ignite, margin=1)) is Factor.RAFT_RECOVERY
    waiting = report("B", None, unavailable=[Unavailable(Factor.LOW_WATERMARK, "no value was recovered yet")])
    decision = decided(history(), [report("A"), waiting, report("C")])
    assert held_by(decision) is Factor.UNAVAILABLE
    assert decision.why.limits[0].culprits == (
        Culprit(node="B", owner="low watermark: no value was recovered yet"),)


def test_a_need_is_that_of_the_node_that_reports_it_whomever_it_names() -> None:
    blaming = Floor(Factor.REBALANCE, 25, Culprit(node="A", zone=ZONE))
    waiting = Unavailable(Factor.RAFT_RECOVERY, "n/a", Culprit(node="A"))
    for liar in (report("B", floors=[blaming]), report("B", unavailable=[waiting])):
        decision = decided(with_table_x(), [report("A"), liar, report("C")])
        assert {culprit.node for culprit in decision.why.limits[0].culprits} == {"B"}


def test_who_says_a_low_time_of_its_transactions_and_no_need_is_named() -> None:
    # The time is handed to the partitions of all nodes, whose published times it would hold without a name.
    liar = attrs.evolve(report("B", needs=None), transactions_from=25)
    decision = decided(with_table_x(), [report("A"), liar, report("C")])
    assert target(decision) == 2
    assert decision.why.limits[0] == Limit(factor=Factor.ACTIVE_TRANSACTIONS, allows=2, time=25,
                                           culprits=(Culprit(node="B"),))


def test_a_coordinator_without_a_low_watermark_holds() -> None:
    assert held_by(decided(history(), low_watermark=None)) is Factor.UNAVAILABLE


def test_without_changes_history_shrinks_to_the_margin() -> None:
    assert target(decided(history(), margin=1)) == 7
    assert held_by(decided(history(earliest=7), margin=1)) is None
    assert target(decided(history(latest=9, earliest=7), margin=1, now=2000)) == 8
    assert target(decided(history())) == 8
    assert held_by(decided(history(earliest=8))) is None


def test_a_node_without_partitions_needs_what_its_other_sources_need() -> None:
    floors = [Floor(Factor.LOW_WATERMARK, 70), Floor(Factor.REBALANCE, 35)]
    reports = [report(name, None, floors=floors, hosted=HostedPartitions()) for name in "ABC"]
    assert target(decided(history(), reports, margin=1)) == 2
    assert target(decided(history(), reports)) == 3
    assert decided(history(), reports).why.factors == (Factor.REBALANCE, Factor.LOW_WATERMARK)


# --- partitions and topology --------------------------------------------------------------------------------------


def lacking(partition: int) -> HostedPartitions:
    return HostedPartitions.of({TABLE_X: set(range(25)) - {partition}})


def test_a_partition_that_its_node_does_not_report_holds() -> None:
    reports = [report("A", 60), report("B", 60, hosted=lacking(11)), report("C", 60)]
    decision = decided(with_table_x(), reports, margin=1)
    # Version 1 has no table X; below that there is nothing to gain, and 1.5 calls a snapshot at 1 no compaction.
    assert target(decision) == 1
    limit = next(limit for limit in decision.why.limits if limit.factor is Factor.MISSING_PARTITION)
    assert limit.culprits == (Culprit(node="B", table=TABLE_X, zone=ZONE, partitions=(11,)),)
    assert limit.allows == 1
    assert held_by(decided(with_table_x(earliest=1), reports, margin=1)) is Factor.MISSING_PARTITION
    assert target(decided(with_table_x(), three(60, 60, 60), margin=1)) == 5


def test_a_table_that_its_node_does_not_report_holds() -> None:
    reports = [report("A", 60), report("B", 60, hosted=HostedPartitions()), report("C", 60)]
    decision = decided(with_table_x(earliest=1), reports, margin=1)
    assert held_by(decision) is Factor.MISSING_PARTITION
    assert decision.why.limits[0].culprits[0].partitions == tuple(range(25))


def test_what_nobody_asked_for_is_no_matter() -> None:
    more = HostedPartitions.of({TABLE_X: range(36), 4711: [0]})
    reports = [report("A", 60), report("B", 60, hosted=more), report("C", 60)]
    assert target(decided(with_table_x(), reports, margin=1)) == 5


def test_an_assigned_node_outside_of_the_topology_holds() -> None:
    decision = decided(with_table_x(earliest=1), [report("A"), report("B")], topology=Topology.of("A", "B"))
    assert held_by(decision) is Factor.MISSING_NODE
    assert decision.why.limits[0].culprits[0].node == "C"


def test_a_node_too_many_counts_in_the_minimum_and_holds_nothing_else() -> None:
    decision = decided(with_table_x(latest=9), [*three(1000, 1000, 1000), report("D", 80, hosted=HostedPartitions())],
                       topology=Topology.of("A", "B", "C", "D"), margin=1)
    assert target(decision) == 7


def test_unknown_assignments_of_a_live_table_are_an_error() -> None:
    for zones in ({}, {ZONE: ZoneAssignments.of([None] * 25)}):
        with pytest.raises(AssignmentsMissing) as caught:
            decided(with_table_x(), assignments=Assignments(zones))
        assert (caught.value.table, caught.value.zone, caught.value.partition) == (TABLE_X, ZONE, 0)


def test_unknown_assignments_of_a_table_above_the_bound_are_none() -> None:
    view = with_table_x({6: [PutObject(Zone(id=9, name="new")), *table(8, zone=9)]})
    decision = decided(view, three(50, 50, 50))
    assert target(decision) == 5
    assert Factor.NO_ASSIGNMENTS not in [limit.factor for limit in decision.why.limits if (limit.allows or 0) < 5]


def test_a_table_above_the_target_need_not_be_hosted() -> None:
    view = with_table_x({6: table(8)})
    assert target(decided(view, three(60, 60, 60), margin=1)) == 5
    # Without a margin version 6 itself is the candidate, which holds Y; the search goes on below it.
    decision = decided(view, three(60, 60, 60))
    assert target(decision) == 5
    assert Factor.MISSING_PARTITION in decision.why.factors


def test_only_the_partitions_that_the_zone_has_in_the_candidate_are_required() -> None:
    wider = [PutObject(Zone(id=ZONE, name="Z", partitions=30))]
    view = with_table_x({6: wider})
    assert target(decided(view, three(50, 50, 50))) == 5
    decision = decided(view, three(70, 70, 70), assignments=Assignments({ZONE: ZoneAssignments.everywhere("ABC", 30)}))
    assert target(decision) == 5
    assert decision.why.limits[0].culprits[0].partitions == (25, 26, 27, 28, 29)


@pytest.mark.parametrize(("low_watermark", "expected"), [(65, 3), (75, 6), (1000, 6)])
def test_a_dropped_table_holds_while_it_is_readable_at_the_low_watermark(low_watermark: int, expected: int) -> None:
    view = with_table_x({4: table(8), 7: drop_table(8)})
    floors = [Floor(Factor.PIN, 60)]
    decision = decided(view, [report("A", floors=floors), report("B"), report("C")], low_watermark=low_watermark)
    assert target(decision) == expected
    assert (Factor.DROPPED_TABLE in decision.why.factors) == (expected == 3)


# --- index builds -------------------------------------------------------------------------------------------------


def index_history(latest: int) -> RetainedVersions:
    """v3 registers index 9, v4 starts to build it, v5 makes it available."""
    return with_table_x({3 + step: index(9, status) for step, status in enumerate(BUILD)}, latest=latest)


def test_an_index_build_with_the_margin_of_the_notes() -> None:
    assert target(decided(index_history(3), three(30, 30, 30), margin=1)) == 2
    held = decided(index_history(4).from_version(2), three(30, 30, 30), margin=1)
    assert isinstance(held, Hold)
    assert set(held.why.factors) == {Factor.INDEX_BUILD, Factor.RAFT_RECOVERY}
    for latest, needs in ((4, 40), (5, 50)):
        decision = decided(index_history(latest).from_version(2), three(needs, needs, needs), margin=1)
        assert held_by(decision) is Factor.INDEX_BUILD
        assert decision.why.limits[0].culprits[0].index == 9
    assert target(decided(index_history(6).from_version(2), three(60, 60, 60), margin=1)) == 5


def test_the_end_of_an_index_build_as_the_last_change_holds_nothing() -> None:
    assert target(decided(index_history(5), three(1000, 1000, 1000))) == 5


def test_below_an_index_build_the_search_goes_on() -> None:
    for needs in (30, 40):
        decision = decided(index_history(4), three(needs, needs, needs))
        assert target(decision) == 2
        assert decision.why.factors[0] is Factor.INDEX_BUILD


def test_an_index_that_is_being_stopped_holds_nothing() -> None:
    view = with_table_x({3: index(9, IndexStatus.AVAILABLE), 4: index(9, IndexStatus.STOPPING)})
    assert target(decided(view, three(50, 50, 50), margin=1)) == 4


def test_a_node_that_builds_an_index_holds_its_version_too() -> None:
    building = Floor(Factor.INDEX_BUILD, 40, Culprit(index=9, table=TABLE_X))
    decision = decided(index_history(8), [report("A"), report("B", floors=[building]), report("C")])
    assert target(decision) == 2
    assert decision.why.limits[0].culprits == (
        Culprit(index=9, table=TABLE_X, owner="index 'I9' is building"), Culprit(node="B", index=9, table=TABLE_X))


# --- rebalance ----------------------------------------------------------------------------------------------------


def test_a_rebalance_that_needs_the_beginning_holds() -> None:
    reports = [report(name, floors=[Floor(Factor.REBALANCE, 1)]) for name in "ABC"]
    assert held_by(decided(history(latest=3), reports, margin=1)) is Factor.REBALANCE
    reports = [report(name, floors=[Floor(Factor.REBALANCE, 1000)]) for name in "ABC"]
    assert target(decided(history(latest=3), reports, margin=1)) == 2


# --- the four restrictions ----------------------------------------------------------------------------------------

COMBINATIONS = [combination for size in range(5) for combination in itertools.combinations(RESTRICTIONS, size)]


@pytest.mark.parametrize("inside", COMBINATIONS, ids=lambda combination: "+".join(combination) or "none")
def test_the_four_restrictions_alone_and_in_every_combination(inside: tuple[Factor, ...]) -> None:
    """Each restriction in force needs version 2, the earliest; the others need nothing."""
    view = with_table_x({3: index(9, IndexStatus.REGISTERED)} if Factor.INDEX_BUILD in inside else None, earliest=2)
    times = [factor for factor in inside if factor is not Factor.INDEX_BUILD]
    reports = [report("A"), report("B", None, floors=[Floor(factor, 25) for factor in times]), report("C")]
    decision = decided(view, reports)
    assert set(decision.why.factors) == set(inside)
    assert all(limit.allows == 2 for limit in decision.why.limits)
    if inside:
        assert held_by(decision) in inside
        assert all(str(factor) in decision.explain() for factor in inside)
    else:
        assert target(decision) == 8


@pytest.mark.parametrize("order", list(itertools.permutations(RESTRICTIONS)), ids=lambda order: order[0])
def test_of_several_restrictions_the_strongest_comes_first(order: tuple[Factor, ...]) -> None:
    times = dict(zip(order, (31, 41, 51, 61), strict=True))
    floors = [Floor(factor, time) for factor, time in times.items()]
    decision = decided(history(), [report("A", None, floors=floors), report("B"), report("C")])
    assert decision.why.factors == order
    assert target(decision) == 3
    assert [limit.allows for limit in decision.why.limits] == [3, 4, 5, 6]


# --- who answered -------------------------------------------------------------------------------------------------


def test_a_node_that_did_not_answer_holds_and_is_named() -> None:
    decision = decided(history(), [report("A"), report("C")])
    assert held_by(decision) is Factor.NO_ANSWER
    assert decision.why.limits[0].culprits == (Culprit(node="B", owner="did not answer"),)


def test_an_answer_of_an_earlier_life_is_none() -> None:
    nodes = frozenset({NodeId("A"), NodeId("B", 2), NodeId("C")})
    decision = decided(history(), topology=Topology(nodes))
    assert held_by(decision) is Factor.NO_ANSWER
    assert "incarnation 1 and is 2" in decision.explain()


def test_the_first_culprits_are_named_and_the_others_counted() -> None:
    names = [f"node {number:02}" for number in range(12)]
    decision = decided(history(), [report(name, 25) for name in names], topology=Topology.of(*names))
    assert len(decision.why.limits[0].culprits) == 5
    assert decision.why.limits[0].more == 7
    assert "and 7 more" in decision.explain()


# --- bad input ----------------------------------------------------------------------------------------------------


def test_an_empty_topology_is_refused() -> None:
    with pytest.raises(EmptyTopology):
        decided(history(), [], topology=Topology(frozenset()))


def test_a_node_that_reported_twice_is_refused() -> None:
    with pytest.raises(DuplicateReport) as caught:
        decided(history(), [report("A"), report("B"), report("C"), report("B", 40)])
    assert caught.value.node == "B"


def test_a_margin_longer_than_history_holds() -> None:
    assert held_by(decided(history(), margin=100)) is None


@pytest.mark.parametrize("time", [-1, 1 << 63, 2.5, True])
def test_a_floor_that_is_no_time_is_refused(time: int) -> None:
    with pytest.raises(InvalidInput):
        Floor(Factor.PIN, time)


def test_a_version_that_is_not_active_yet_is_no_target() -> None:
    assert target(decided(history(), now=55)) == 5


def test_before_history_became_active_there_is_nothing_to_do() -> None:
    assert held_by(decided(history(earliest=3), now=5)) is None


# --- what it says -------------------------------------------------------------------------------------------------


def test_a_decision_prints_itself_and_pickles() -> None:
    compact, hold = decided(history(), three(60, 50, 40)), decided(history(), three(1, 1, 1))
    assert compact.explain().splitlines() == [
        "compact up to version 4 (of 0 to 8)", "  raft log recovery at 0+40 allows up to version 4 (node C)"]
    assert hold.explain().startswith("held by raft log recovery (versions 0 to 8 are retained)")
    for decision in (compact, hold):
        assert pickle.loads(pickle.dumps(decision)) == decision
        assert "raft log recovery" in decision._repr_html_()
    assert compact.to_dicts() == [{"decision": "compact", "target": 4, "factor": "raft log recovery", "allows": 4,
                                   "time": 40, "culprits": "node C", "more": 0}]
    assert Hold(None, hold.why).explain().startswith("history is as short as it can be")
    assert Compact(4, attrs.evolve(hold.why, limits=())).to_dicts() == [{"decision": "compact", "target": 4}]


def test_the_same_input_gives_the_same_decision_and_after_it_nothing_is_left_to_do() -> None:
    view = with_table_x({5: index(9, IndexStatus.BUILDING)})
    asked = given(view, three(60, 70, 80))
    first = decide(asked)
    assert all(decide(asked) == first for _ in range(10))
    assert isinstance(first, Compact)
    assert target(decide(given(view.from_version(first.target), three(60, 70, 80)))) is None


def test_a_schema_without_tables_needs_no_assignments() -> None:
    assert target(decided(history({1: schema_and_zone()}), assignments=Assignments())) == 8


@pytest.mark.parametrize(("asked", "advice"), [
    (given(with_table_x(), low_watermark=None), "a low watermark is when CatalogUpkeep or the host has raised it"),
    (given(with_table_x(), low_watermark=1), "wait until CatalogUpkeep or the host raises it"),
    (given(with_table_x(), [report(name, 1) for name in ALL_NODES]), "remove those of dropped tables, or wait"),
])
def test_what_holds_everything_says_what_would_end_that(asked: CatalogView, advice: str) -> None:
    assert isinstance(asked.decision, Hold)
    assert advice in asked.decision.reason()
