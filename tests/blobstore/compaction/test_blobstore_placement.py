# SPDX-License-Identifier: Apache-2.0
"""Survivors are placed by class: what shares a segment, and that no cycle needs more segments than it would without."""

from __future__ import annotations

import random
from itertools import accumulate
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given, strategies as st

from compactlib.blobstore.compaction.rewrite.packing import Packing
from compactlib.blobstore.model.placement import CLASSES, ByAge, ByEnd, Survivor, class_of
from compactlib.blobstore.model.values import MAX_TIME_MS
from compactlib.clock import ManualClock
from compactlib.errors import InvalidInput
from compactlib.outcome import Failed
from tests.blobstore.compaction_stores import (
    START,
    check_against,
    compact_all,
    config,
    done,
    fill,
    open_store,
    plan_of,
)
from tests.blobstore.store_pictures import StorePicture

ROOM = 100


@given(st.lists(st.lists(st.tuples(st.integers(1, ROOM), st.integers(0, 5)), max_size=12), min_size=1, max_size=8),
       st.integers(1, 5), st.sampled_from([None, 1, 10, 30]))
def test_a_cycle_fills_no_more_than_it_may_and_loses_no_record(sources: list[list[tuple[int, int]]], segments: int,
                                                               one_size: int | None) -> None:
    """Sources hold what fits into a segment; each cycle ends a source at least, and has a place for each output."""
    fitting = [[(one_size or size, placed) for size, placed in each] for each in sources]
    rest = [[record for record, end in zip(each, accumulate(size for size, _ in each), strict=True) if end <= ROOM]
            for each in fitting]
    outputs = 0
    while rest:
        packing, classes, sizes, done = Packing(ROOM, segments, is_placed=True), list[int](), list[int](), 0
        for source in list(rest):
            while source and packing.admit(source[0][0]):
                size, placed = source.pop(0)
                sizes.append(size)
                classes.append(placed)
            if source:
                break
            packing.sources = done = done + 1
        numbers = packing.placed(classes)
        assert done >= 1
        assert packing.filled <= min(segments, done)
        filled = [0] * packing.filled
        for number, size in zip(numbers, sizes, strict=True):
            filled[number] += size
        assert all(0 < each <= ROOM for each in filled)
        outputs += packing.filled
        del rest[:done]
    total = sum(size for each in fitting for size, end in zip((size for size, _ in each), accumulate(
        size for size, _ in each), strict=True) if end <= ROOM)
    assert outputs <= -(-total // max(ROOM - max((size for each in fitting for size, _ in each), default=0) + 1, 1))


def test_classes_follow_one_another_from_segment_to_segment() -> None:
    packing = Packing(4, 3, is_placed=True)
    classes = [2, 0, 1, 2, 0, 1, 2, 0, 0, 1, 2, 2]
    assert all(packing.admit(1) for _ in classes)
    packing.sources = 3
    numbers = packing.placed(classes)
    assert sorted(zip(numbers, classes, strict=True)) == [(0, 0)] * 4 + [(1, 1)] * 3 + [(1, 2)] + [(2, 2)] * 4


def test_schemes_tell_records_apart_by_age_or_by_what_is_left() -> None:
    now = 1_000_000

    def survivor(age: int, left: int | None) -> Survivor:
        return Survivor(now - age, MAX_TIME_MS if left is None else now + left, 10, 1)

    assert [ByAge().place(survivor(age, 7), now) for age in (0, 3, 4, 100, 70_000)] == [0, 0, 1, 3, 8]
    by_end = [ByEnd().place(survivor(age, left), now) for age, left in (
        (9_000, 1), (5, 5_000), (70, 900_000), (3, None), (70_000, None))]
    assert by_end == sorted(set(by_end))
    # Three puts in 90 seconds have lasted half a minute each, as one of half a minute ago has.
    often = Survivor(now - 3, MAX_TIME_MS, 10, 1, [now - 90_000, now - 40_000])
    assert ByEnd().place(often, now) == ByEnd().place(survivor(30_000, None), now) > by_end[3]
    assert ByEnd().place(often._replace(until_ms=now + 70), now) == ByEnd().place(survivor(5, 70), now)
    for scheme in (ByAge(step=1 + 1e-9), ByEnd(step=1 + 1e-9)):
        assert [class_of(scheme, survivor(now, left), now) < CLASSES for left in (70_000, None)] == [True, True]


@pytest.mark.parametrize("make", [lambda: ByAge(step=1.0), lambda: ByEnd(step=float("inf")),
                                  lambda: config(placement="by age"),
                                  lambda: config(placement=ByEnd)])
def test_a_placement_that_cannot_be_is_refused(make: Any) -> None:
    with pytest.raises(InvalidInput):
        make()


def test_what_ends_at_one_time_shares_a_segment_and_a_report_counts_each_class(tmp_path: Path) -> None:
    """Blobs of three times to live in turns: after a compaction, each kind lies in two segments at most."""
    clock = ManualClock(START)
    with open_store(tmp_path / "store", clock, swap_segments=8, placement=ByEnd()) as store:
        for number in range(90):
            store.put(f"b{number}", bytes(100), ttl_seconds=[60, 600, None][number % 3])
        for number in range(0, 90, 2):
            store.delete(f"b{number}")
        clock.advance(30)
        before = StorePicture.of(store)
        report = compact_all(store)
        check_against(store, before)
        kinds = [{int(entry.id[1:]) % 3 for entry in store.snapshot().entries_of(name) if entry.kind == 1}
                 for name in report.targets]
        assert len(report.targets) >= 4
        assert all(sum(kind in each for each in kinds) <= 2 for kind in range(3))
        assert sum(report.classes.values()) == report.copied_records
        assert len(report.classes) >= 3
        assert {row["what"] for row in report.to_dicts()} >= {f"class {number}" for number in report.classes}


@attrs.frozen
class Always:
    """A scheme that gives every record the same."""

    answer: Any
    name: str = "always"

    def place(self, record: Survivor, now_ms: int) -> int:
        answer: int = self.answer
        return answer


@pytest.mark.parametrize("answer", [-1, 1.0, None, "0", CLASSES])
def test_a_class_that_cannot_be_is_refused_by_name_and_the_compaction_goes_on_with_another(tmp_path: Path,
                                                                                        answer: Any) -> None:
    clock = ManualClock(START)
    with open_store(tmp_path / "store", clock, swap_segments=3, placement=Always(answer)) as store:
        fill(store, 60, random.Random(5))
        before = StorePicture.of(store)
        outcome = store.compact(plan_of(store))
        assert isinstance(outcome, Failed)
        assert isinstance(outcome.error, InvalidInput)
        for part in ("Always", repr(answer), "written_ms", f"0 to {CLASSES - 1}"):
            assert part in str(outcome.error)
        check_against(store, before)
    with open_store(tmp_path / "store", clock, swap_segments=3, placement=Always(CLASSES - 1)) as store:
        report = done(store.resume())
        assert report.classes == {CLASSES - 1: report.copied_records}
        check_against(store, before)
