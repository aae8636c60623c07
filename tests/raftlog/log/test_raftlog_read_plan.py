# SPDX-License-Identifier: Apache-2.0
"""Reads that are decided now and carried out later, across compactions."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from compactlib.errors import Closed, CorruptData, Unsorted
from compactlib.outcome import Done
from compactlib.raftlog import (
    DamagedEntry,
    DeadEntry,
    Entry,
    LogOptions,
    LogReader,
    MissingEntry,
    SegmentLimits,
    SegmentLog,
)
from compactlib.raftlog.log.read_plan import ReadPart, plan_parts
from compactlib.raftlog.model.names import segment_name
from compactlib.raftlog.model.values import SegmentRef
from tests.harness.plain_log import told
from tests.raftlog.compaction_logs import damaged, flip_byte, payload_place
from tests.tools.index_strategies import segment_refs


def rows(first: int, last: int) -> list[tuple[int, int, bytes]]:
    return [(index, 1, b"payload of %d" % index) for index in range(first, last + 1)]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[SegmentLog]:
    """Segments of four entries, 1 to 18; the snapshot at 16 leaves 2, 6, 11 and 14, one in each."""
    with SegmentLog(tmp_path, LogOptions(limits=SegmentLimits(max_entries=4))) as made:
        made.extend(rows(1, 18))
        made.record_snapshot(16, [2, 6, 11, 14])
        yield made


@given(segment_refs(), st.sets(st.integers(0, 60)))
def test_each_index_goes_to_the_segment_that_answers_for_it(refs: list[SegmentRef], wanted: set[int]) -> None:
    indexes = sorted(wanted)
    parts = plan_parts(refs, indexes)
    assert [index for part in parts for index in part.indexes] == indexes
    for part in parts:
        assert part.indexes
        for index in part.indexes:
            assert part.number == next((ref.number for ref in refs if ref.first <= index <= ref.last), None)
    # One part a segment: what lies in one file is asked for together.
    numbers = [part.number for part in parts if part.number is not None]
    assert len(numbers) == len(set(numbers))


def test_an_uncovered_index_does_not_hide_those_below_it() -> None:
    """In Ra the plan stops at the first index that no segment covers, and drops all lower ones."""
    assert plan_parts([SegmentRef(1, 1, 4), SegmentRef(3, 9, 12)], [2, 6, 10, 13]) == (
        ReadPart(1, (2,)), ReadPart(None, (6,)), ReadPart(3, (10,)), ReadPart(None, (13,)))


@pytest.mark.parametrize("indexes", [[2, 1], [1, 1], [1, 3, 2]])
def test_indexes_must_ascend(log: SegmentLog, indexes: list[int]) -> None:
    with pytest.raises(Unsorted, match="sort the indexes and drop duplicates") as raised:
        log.plan_read(indexes)
    assert raised.value.found <= raised.value.previous
    with pytest.raises(Unsorted):
        list(log.read_many(indexes))
    # Nothing is held by a plan that could not be made.
    log.compact(policy=log.policy)
    assert log.compact(policy=log.policy).__class__.__name__ == "Skipped"


def test_a_plan_stays_valid_across_a_compaction(log: SegmentLog, tmp_path: Path) -> None:
    with log.plan_read(range(1, 20)) as plan:
        assert [part.number for part in plan.parts] == [1, 2, 3, 4, 5, None]
        assert "19 indexes in 6 segments" in repr(plan)
        outcome = log.compact(policy=log.policy)
        assert isinstance(outcome, Done)
        assert [group.members for group in outcome.stats.done] == [(1, 2, 3, 4)]
        for _ in range(2):
            assert dict(told(plan.answers())) == {
                **{index: DeadEntry(index, 16) for index in range(1, 17)},
                **{row[0]: Entry(*row) for row in rows(1, 18) if row[0] in (2, 6, 11, 14, 17, 18)},
                19: MissingEntry(19)}


def test_what_dies_while_a_plan_is_held_is_dead_in_it(log: SegmentLog) -> None:
    """Where Ra exits the reader (missing_key)."""
    with log.plan_read([2, 6, 17, 18]) as plan:
        log.extend(rows(19, 30))
        log.record_snapshot(28, [6, 18, 28])
        log.compact(policy=log.policy)
        assert dict(told(plan.answers())) == {
            2: DeadEntry(2, 28), 6: Entry(*rows(6, 6)[0]), 17: DeadEntry(17, 28), 18: Entry(*rows(18, 18)[0])}


def test_answers_may_be_taken_slowly(log: SegmentLog) -> None:
    """One before the compaction, one after it, one after the next snapshot."""
    with log.plan_read([2, 6, 11, 14, 17]) as plan:
        answers = plan.answers()
        assert next(answers) == Entry(*rows(2, 2)[0])
        log.compact(policy=log.policy)
        assert next(answers) == Entry(*rows(6, 6)[0])
        log.record_snapshot(16, [11])
        log.compact(policy=log.policy)
        assert list(answers) == [Entry(*rows(11, 11)[0]), DeadEntry(14, 16), Entry(*rows(17, 17)[0])]


def test_names_and_files_stay_as_long_as_the_plan_is_held(tmp_path: Path) -> None:
    options = LogOptions(limits=SegmentLimits(max_entries=4), keep_links_seconds=0.0)
    with SegmentLog(tmp_path, options) as log:
        log.extend(rows(1, 18))
        log.record_snapshot(16, [2, 6, 14])
        plan = log.plan_read([2, 6, 14])
        log.compact(policy=log.policy)
        # Segment 3 was dropped, 2 (and perhaps 4) merged: all names are there.
        assert {segment_name(number) for number in range(1, 6)} <= set(os.listdir(tmp_path))
        plan.close()
        plan.close()
        log.compact(policy=log.policy)
        log.reclaim()
        assert [name for name in sorted(os.listdir(tmp_path)) if name.endswith(".segment")] == [
            segment_name(1), segment_name(5)]


def test_damage_to_one_entry_is_its_answer_and_hides_no_other(log: SegmentLog, tmp_path: Path) -> None:
    flip_byte(tmp_path / segment_name(2), payload_place(tmp_path, 2, 6))
    assert dict(told(log.read_many([2, 6, 11]))) == {
        2: Entry(*rows(2, 2)[0]), 6: "damaged", 11: Entry(*rows(11, 11)[0])}
    answer = next(log.read_many([6]))
    assert isinstance(answer, DamagedEntry)
    assert (answer.error.index, answer.error.path) == (6, str(tmp_path / segment_name(2)))


def test_a_live_entry_that_no_segment_holds_is_damage(log: SegmentLog, tmp_path: Path) -> None:
    log.close()
    (tmp_path / segment_name(2)).unlink()
    with LogReader(tmp_path) as reader:
        assert dict(told(reader.read_many([2, 6, 7, 17]))) == {
            2: Entry(*rows(2, 2)[0]), 6: "damaged", 7: DeadEntry(7, 16), 17: Entry(*rows(17, 17)[0])}
        with pytest.raises(CorruptData, match=r"\(index 6\): expected a segment that holds the live entry 6"):
            reader.read(6)
        assert [error.index for error in damaged(reader)] == [6]


def test_a_plan_of_a_closed_log_says_so(log: SegmentLog) -> None:
    log.close()
    with pytest.raises(Closed):
        log.plan_read([1])


def test_an_empty_plan(log: SegmentLog) -> None:
    with log.plan_read([]) as plan:
        assert (plan.parts, list(plan.answers())) == ((), [])
