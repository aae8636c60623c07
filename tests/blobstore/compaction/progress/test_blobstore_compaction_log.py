# SPDX-License-Identifier: Apache-2.0
"""The compaction log in memory: order of phases (L1, L2), and what makes no sense."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from compactlib.blobstore.compaction.progress.compaction_format import decode_log, encode_log
from compactlib.blobstore.compaction.progress.compaction_log import CompactionLog, Phase, Target
from compactlib.blobstore.errors import CompactionOutOfOrder
from compactlib.blobstore.model.names import LogPosition, SegmentName
from compactlib.errors import CompactlibError, InvalidInput
from tests.blobstore.compaction.progress.compaction_logs import at_all_phases, begun, with_step
from tests.blobstore.compaction_stores import names


def test_two_cycles_and_where_they_stand() -> None:
    logs = at_all_phases()
    assert [log.phase.name for log in logs] == ["PREPARE", "COPY", "COPY", "COMMIT", "CLEANUP", "PREPARE", "DONE",
                                                "COPY", "DONE", "DONE"]
    assert logs[5].remaining == tuple(names("2_3"))
    assert logs[5].copied_before == LogPosition(SegmentName(2, 3), 1080)
    assert logs[6].copied_before is None
    assert [log.next_number for log in logs] == [7, 7, 7, 8, 8, 8, 8, 8, 9, 7]
    assert logs[8].copied_bytes == 1920


STEPS: dict[str, Callable[[CompactionLog], CompactionLog]] = {
    "start_copy": lambda log: log.start_copy(log.remaining, None, (), 9),
    "copied": lambda log: log.copied(Target(SegmentName(0, 1), 2000, 9, 77, (80,))),
    "start_commit": lambda log: log.start_commit(0, 9),
    "start_cleanup": lambda log: log.start_cleanup(9),
    "end_cycle": lambda log: log.end_cycle(9),
    "restart_copy": lambda log: log.restart_copy(),
    "leave_out": lambda log: log.leave_out(log.victims[-1]),
    "drop": lambda log: log.drop(),
}
ALLOWED: dict[int, set[str]] = {
    0: {"start_copy", "leave_out", "drop"}, 1: {"copied", "restart_copy", "drop"},
    2: {"start_commit", "restart_copy", "drop"}, 3: {"start_cleanup"}, 4: {"end_cycle"},
    5: {"start_copy", "leave_out", "drop"}, 6: set(), 8: set(), 9: set(),
}


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("place", ALLOWED)
def test_a_step_out_of_order_is_refused_with_the_phase(step: str, place: int) -> None:
    log = at_all_phases()[place]
    if step in ALLOWED[place]:
        STEPS[step](log).audit()
    else:
        with pytest.raises(CompactionOutOfOrder) as caught:
            STEPS[step](log)
        assert caught.value.phase == log.phase.value


@pytest.mark.parametrize("changes", [
    {"victims": ()}, {"victims": tuple(names("1_0", "1_0"))},
    {"swap_segments": 0}, {"number": 0}, {"reference_ms": -1},
])
def test_a_log_that_makes_no_sense(changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        begun(**changes)


@pytest.mark.parametrize("arguments", [
    (tuple(names("1_0")), None, ()), ((), None, ()), (tuple(names("0_0")), LogPosition(SegmentName(2, 3), 99), ()),
    (tuple(names("0_0")), None, tuple(names("0_1", "1_1"))),
])
def test_a_cycle_that_does_not_fit(arguments: tuple[Any, ...]) -> None:
    with pytest.raises(InvalidInput, match="does not"):
        begun().start_copy(arguments[0], arguments[1], arguments[2], 9)


class CompactionLogMachine(RuleBasedStateMachine):
    """Random steps; in each state the log survives its file, and says what is left."""

    def __init__(self) -> None:
        super().__init__()
        self.log = begun(swap_segments=2, victims=tuple(names("2_3", "0_0", "1_0")))
        self.gone: list[SegmentName] = []
        self.data = encode_log(self.log)

    @precondition(lambda self: self.log.phase is Phase.PREPARE)
    @rule(count=st.integers(1, 3), swaps=st.integers(0, 2))
    def start(self, count: int, swaps: int) -> None:
        sources = self.log.remaining[:count]
        planned = tuple(SegmentName(name.position, 9) for name in sources[:swaps])
        self.log = self.log.start_copy(sources, None, planned, 1)

    @precondition(lambda self: self.log.phase is Phase.COPY)
    @rule(anew=st.booleans())
    def copy(self, anew: bool) -> None:
        if anew:
            self.log = self.log.restart_copy()
            return
        cycle = self.log.cycles[-1]
        for name in cycle.planned[len(cycle.targets):]:
            self.log = self.log.copied(Target(name, 100, 1, 0, (80,)))
        self.log = self.log.start_commit(20, 2)

    @precondition(lambda self: self.log.phase is Phase.COMMIT)
    @rule()
    def commit(self) -> None:
        self.log = self.log.start_cleanup(3)

    @precondition(lambda self: self.log.phase is Phase.CLEANUP)
    @rule()
    def end(self) -> None:
        self.gone += self.log.cycles[-1].sources
        self.log = self.log.end_cycle(4)

    @precondition(lambda self: self.log.phase in (Phase.PREPARE, Phase.COPY))
    @rule()
    def drop(self) -> None:
        self.log = self.log.drop()

    @precondition(lambda self: self.log.phase is Phase.DONE)
    @rule()
    def begin_another(self) -> None:
        self.log = begun(number=self.log.next_number, swap_segments=2)
        self.gone = []

    @invariant()
    def it_holds_together(self) -> None:
        self.log.audit()
        assert decode_log(encode_log(self.log), "x").log == self.log
        self.data = with_step(self.data, self.log)
        assert decode_log(self.data, "x").log == self.log
        cycle = self.log.cycle
        begun_with = cycle.sources if cycle else ()
        assert self.log.remaining == tuple(name for name in self.log.victims
                                           if name not in self.gone and name not in begun_with)


TestCompactionLogMachine = CompactionLogMachine.TestCase


def test_it_prints_itself() -> None:
    log = at_all_phases()[5]
    assert "1 cycles committed, 1 segments left" in repr(log)
    assert "0_0, 1_0" in str(log)
    assert "<table>" in log._repr_html_()
    assert log.to_dicts()[0]["records"] == 9


def test_a_log_from_a_file_with_cycles_that_do_not_fit() -> None:
    log = at_all_phases()[5]
    cycle = attrs.evolve(log.cycles[0], sources=tuple(names("1_0")))
    with pytest.raises(CompactlibError, match="cycle 1"):
        attrs.evolve(log, cycles=(cycle,)).audit()
