# SPDX-License-Identifier: Apache-2.0
"""The rules that are checked before history is cut: alone, against `decide`, and with asserts switched off."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given as any_of, strategies as st

from compactlib.catalog import Assignments, CatalogView, NodeId, Topology, ZoneAssignments
from compactlib.catalog.errors import AssignmentsMissing, UnsafeCompaction
from compactlib.catalog.model.partitions import HostedPartitions
from compactlib.catalog.model.values import Factor, Floor, Unavailable
from compactlib.catalog.plan.decision import decide
from compactlib.catalog.plan.safety import check_target
from compactlib.catalog.plan.verdict import Compact
from compactlib.catalog.schema.catalog import Change, PutObject
from compactlib.catalog.schema.descriptors import IndexStatus, Zone
from tests.catalog.cases import (
    ALL_NODES,
    ZONE,
    drop_table,
    given,
    history,
    index,
    report,
    schema_and_zone,
    table,
    with_table_x,
)
from tests.tools.need_strategies import floors

VIEW = with_table_x()


def test_a_safe_target_passes() -> None:
    for target in range(1, 9):
        check_target(given(VIEW), target)


@pytest.mark.parametrize(("target", "changes", "rule"), [
    (0, {}, "only rises"),
    (9, {}, "only rises"),
    (2, {"history": VIEW.from_version(3)}, "only rises"),
    (8, {"now": 75}, "that is active"),
    (3, {"history": with_table_x({3: index(9, IndexStatus.BUILDING)})}, "restriction 3"),
    (3, {"reports": [report("A"), report("C")]}, "must have answered"),
    (3, {"topology": Topology(frozenset({NodeId("A", 2), NodeId("B"), NodeId("C")}))}, "must have answered"),
    (3, {"reports": [report("A"), report("B", unavailable=[Unavailable(Factor.PIN, "?")]), report("C")]}, "must know"),
    (3, {"topology": Topology(frozenset())}, "must be known"),
    (3, {"low_watermark": None}, "must be known"),
    (4, {"low_watermark": 39}, "low watermark on the coordinator needs time 39, which is version 3"),
    (4, {"reports": [report("A"), report("B", 39), report("C")]}, "raft log recovery on B needs time 39"),
    (4, {"reports": [report("A"), report("B", floors=[Floor(Factor.PIN, 0)]), report("C")]}, "which is version None"),
    (3, {"history": with_table_x({7: drop_table(7)}), "low_watermark": 65}, "dropped table must not be readable"),
    (3, {"assignments": Assignments()}, "who hosts what"),
    (3, {"assignments": Assignments({ZONE: ZoneAssignments.everywhere("ABC", 24)})}, "who hosts what"),
    (3, {"assignments": Assignments({ZONE: ZoneAssignments.everywhere("ABCD", 25)})}, "on node D"),
    (3, {"reports": [report("A"), report("B", hosted=HostedPartitions()), report("C")]}, "on node B"),
])
def test_an_unsafe_target_is_refused_and_the_rule_is_named(target: int, changes: dict[str, Any], rule: str) -> None:
    reports = changes.pop("reports", None)
    view = changes.pop("history", VIEW)
    with pytest.raises(UnsafeCompaction, match=rule) as caught:
        check_target(given(view, reports, **changes), target)
    assert caught.value.target == target


def test_the_rules_hold_with_asserts_switched_off() -> None:
    program = ("from compactlib.catalog.plan.safety import UnsafeCompaction, check_target\n"
               "from tests.catalog.cases import given, with_table_x\n"
               "try:\n    check_target(given(with_table_x(), low_watermark=39), 4)\n"
               "except UnsafeCompaction as error:\n    print('refused:', error.target, __debug__)")
    told = subprocess.run([sys.executable, "-O", "-c", program], capture_output=True, text=True, check=True)
    assert told.stdout == "refused: 4 False\n"


# --- what decide finds, the rules accept ----------------------------------------------------------------------------

STATUSES = [IndexStatus.REGISTERED, IndexStatus.BUILDING, IndexStatus.AVAILABLE, IndexStatus.STOPPING]


@st.composite
def situations(draw: st.DrawFn) -> CatalogView:
    changes: dict[int, list[Change]] = {1: schema_and_zone(3)}
    for number in range(draw(st.integers(0, 3))):
        table_id = 7 + number
        created = draw(st.integers(2, 6))
        changes.setdefault(created, []).extend(table(table_id))
        if draw(st.booleans()):
            changes.setdefault(draw(st.integers(created + 1, 8)), []).extend(drop_table(table_id))
        elif draw(st.booleans()):
            status = draw(st.sampled_from(STATUSES))
            changes.setdefault(draw(st.integers(created, 8)), []).extend(index(90 + number, status, table_id))
    if draw(st.booleans()):
        changes.setdefault(draw(st.integers(2, 8)), []).append(PutObject(Zone(id=ZONE, name="Z", partitions=4)))
    view = history(changes, earliest=draw(st.integers(0, 4)))
    times = st.integers(0, 100)
    reports = []
    for name in ALL_NODES:
        masks = {7 + number: draw(st.sampled_from([0b1111, 0b1111, 0b1111, 0b111, 0b101])) for number in range(3)}
        reports.append(report(name, draw(st.integers(20, 100)), floors=draw(st.lists(floors(times), max_size=2)),
                              hosted=HostedPartitions.from_masks(masks)))
    assignments = Assignments({ZONE: ZoneAssignments.of(
        [draw(st.lists(st.sampled_from("ABC"), min_size=1, max_size=3)) for _ in range(4)])})
    return given(view, reports, now=draw(st.integers(50, 100)), low_watermark=draw(st.integers(20, 100)),
                 assignments=assignments)


@any_of(situations())
def test_whatever_decide_answers_is_safe_and_below_it_nothing_more_was_to_be_had(asked: CatalogView) -> None:
    try:
        decision = decide(asked)
    except AssignmentsMissing:
        return
    assert decide(asked) == decision
    best = asked.history.earliest
    if isinstance(decision, Compact):
        check_target(asked, decision.target)
        best = decision.target
    else:
        assert decision.why.limits or decision.factor is None
    for catalog in asked.history:
        if catalog.version > best:
            with pytest.raises(UnsafeCompaction):
                check_target(asked, catalog.version)
