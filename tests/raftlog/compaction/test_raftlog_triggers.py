# SPDX-License-Identifier: Apache-2.0
"""Triggers: their due times, their combination, and the trigger in a plan."""

from __future__ import annotations

import attrs
import pytest

from compactlib.clock import ManualClock
from compactlib.errors import Busy, InvalidInput
from compactlib.raftlog import DeadRatio, EveryNMinors, LogView, SegmentLimits
from compactlib.raftlog.policies import DeadBytes, Elapsed, Manual, SeedPolicy
from compactlib.raftlog.policy import MajorCadence, SegmentRef, SegmentStats, Trigger

VIEW = LogView(segments=tuple(SegmentStats(ref=SegmentRef(number, 10 * number, 10 * number + 9), entries=10,
                                           data_bytes=100, live_entries=5, live_bytes=10) for number in (1, 2)),
               snapshot_index=19, limits=SegmentLimits())


@pytest.mark.parametrize(("trigger", "is_due"), [
    (EveryNMinors(3), True), (EveryNMinors(4), False), (EveryNMinors(0), True),
    (DeadRatio(1.3), True), (DeadRatio(1.4), False), (DeadRatio(1.0, "entries"), True),
    (DeadRatio(1.1, "entries"), False),
    (DeadBytes(290), True), (DeadBytes(291), False), (Elapsed(60.0), True), (Elapsed(61.0), False), (Manual(), False),
    (EveryNMinors(4) | DeadBytes(290), True), (EveryNMinors(4) | DeadBytes(291), False),
    (EveryNMinors(3) & DeadBytes(290), True), (EveryNMinors(3) & DeadBytes(291), False)], ids=str)
def test_trigger_is_due_from_its_setting_on(trigger: Trigger, is_due: bool) -> None:
    assert trigger.is_due(VIEW, 3, 60.0) == is_due


def test_nothing_dead_is_due_for_no_ratio() -> None:
    whole = tuple(attrs.evolve(each, live_entries=10, live_bytes=100) for each in VIEW.segments)
    dead = tuple(attrs.evolve(each, live_entries=0, live_bytes=0) for each in VIEW.segments)
    assert not DeadRatio(0.0).is_due(attrs.evolve(VIEW, segments=whole), 0, 0.0)
    assert DeadRatio(9.0).is_due(attrs.evolve(VIEW, segments=dead), 0, 0.0)


@pytest.mark.parametrize("make", [lambda: EveryNMinors(-1), lambda: DeadRatio(-0.1), lambda: DeadRatio(float("nan")),
                                  lambda: DeadBytes(0), lambda: Elapsed(-1.0),
                                  lambda: DeadRatio(1.0, "files")])  # type: ignore[arg-type]
def test_setting_out_of_its_range_is_refused(make: object) -> None:
    with pytest.raises(InvalidInput):
        make()  # type: ignore[operator]


def test_minors_count_towards_a_major_and_a_partial_one_is_due() -> None:
    cadence = MajorCadence(EveryNMinors(2), ManualClock())
    for due in (False, False, True):
        plan = cadence.plan(VIEW, SeedPolicy())
        assert plan.drops_only != due
        assert "EveryNMinors(n=2)" in plan.why
        cadence.ended(plan, [Busy("a lease")] * due)
    plan = cadence.plan(VIEW, SeedPolicy())
    assert not plan.drops_only
    cadence.ended(plan)
    assert cadence.plan(VIEW, SeedPolicy()).drops_only
