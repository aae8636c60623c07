# SPDX-License-Identifier: Apache-2.0
"""What a compaction does to a log, in numbers: cases with known answers."""

from __future__ import annotations

import os
import random
from pathlib import Path

import attrs
import pytest

from compactlib.blobstore import BlobPlan, BlobStore
from compactlib.blobstore.errors import (
    PlanDoesNotFit,
)
from compactlib.blobstore.model.names import SegmentName
from compactlib.blobstore.validity.verdicts import Verdict
from compactlib.clock import ManualClock
from compactlib.errors import BudgetSpent, CorruptData, InvalidInput
from compactlib.files import LocalFiles, OutFile
from compactlib.files.disk import StrPath
from compactlib.outcome import Failed, Skipped
from compactlib.runtime import Budget
from tests.blobstore.compaction_stores import (
    RETENTION,
    answers,
    check_against,
    compact_all,
    done,
    fill,
    flip,
    garbage_store,
    names,
    open_store,
    plan_of,
    put_twice,
    segment_names,
    strays,
)
from tests.blobstore.store_pictures import StorePicture, compare


def test_live_data_stays_as_it_is_in_generation_1_at_the_same_positions(folder: Path, clock: ManualClock) -> None:
    with garbage_store(folder, clock, dead=lambda number: False) as store:
        before, plain = StorePicture.of(store), answers(store, 60)
        report = done(store.compact(plan_of(store, names("0_0", "1_0"))))
        assert [str(name) for name in report.targets] == ["0_1", "1_1"]
        assert report.freed_segments == 0
        assert answers(store, 60) == plain
        check_against(store, before)


def test_segments_without_a_valid_record_are_dropped_whole(folder: Path, clock: ManualClock) -> None:
    with open_store(folder, clock) as store:
        for number in range(30):
            store.put(f"b{number}", bytes(200), ttl_seconds=5)
        clock.advance(6)
        held = len(store.snapshot().segments)
        report = compact_all(store)
        assert (report.targets, report.copied_bytes) == ((), 0)
        assert report.freed_segments == len(report.sources) == held - 1
        assert segment_names(store)[:-1] == []
        assert answers(store, 3) == ["Missing"] * 3


@pytest.mark.parametrize(("wanted", "why"), [
    (("70_0",), "is not in the log"), (("0_1",), "is not in the log"), (("0_0", "last"), "is active"),
])
def test_a_plan_that_does_not_fit(folder: Path, clock: ManualClock, wanted: tuple[str, ...], why: str) -> None:
    with garbage_store(folder, clock) as store:
        chosen = [store.snapshot().segments[-1].name if text == "last" else names(text)[0] for text in wanted]
        refused(store, plan_of(store, chosen), why)
        assert store.compaction is None
        assert strays(folder) == []


def refused(store: BlobStore, plan: BlobPlan, why: str) -> None:
    """The plan is outdated, and nothing has changed."""
    before = segment_names(store)
    outcome = store.compact(plan)
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, PlanDoesNotFit)
    assert why in str(outcome.error)
    assert outcome.changed == "no"
    assert segment_names(store) == before


def test_segments_are_copied_in_the_order_of_the_plan(folder: Path, clock: ManualClock) -> None:
    """Each output takes the place of a segment copied by then, and holds what its first victims held."""
    with garbage_store(folder, clock) as store:
        before = StorePicture.of(store)
        chosen = names("3_0", "0_0", "2_0", "1_0")
        held = {name: {entry.sequence for entry, _ in before.segments[name]} for name in chosen}
        report = done(store.compact(plan_of(store, chosen)))
        assert report.victims == report.sources == tuple(chosen)
        first = {entry.sequence for entry in store.snapshot().entries_of(SegmentName(3, 1))}
        assert first & held[SegmentName(3, 0)]
        assert first & held[SegmentName(0, 0)]
        assert not first & held[SegmentName(1, 0)]
        found = compare(before, StorePicture.of(store), clock.now() - RETENTION, clock.now(), victims=chosen)
        assert not found.findings, str(found)
        in_log_order = compare(before, StorePicture.of(store), clock.now() - RETENTION, clock.now())
        assert "order" in {finding.kind for finding in in_log_order.findings}


def test_a_plan_that_names_a_segment_twice_cannot_be_made(folder: Path, clock: ManualClock) -> None:
    with garbage_store(folder, clock) as store, pytest.raises(InvalidInput, match="each comes once"):
        plan_of(store, names("1_0", "0_0", "1_0"))


def test_a_plan_that_reaches_into_the_journal(folder: Path, clock: ManualClock) -> None:
    with garbage_store(folder, clock, journal_max_entries=20) as store:
        sealed = [info.name for info in store.snapshot().segments][:-1]
        refused(store, plan_of(store, sealed), "the journal reaches it")


def test_a_plan_that_was_carried_out_does_not_fit_again(folder: Path, clock: ManualClock) -> None:
    with garbage_store(folder, clock) as store:
        plan = plan_of(store)
        done(store.compact(plan))
        refused(store, plan, "is not in the log")


def test_a_plan_for_another_store(folder: Path, clock: ManualClock) -> None:
    with garbage_store(folder, clock) as store, pytest.raises(InvalidInput, match="is for store 'other'"):
        store.compact(attrs.evolve(plan_of(store), store="other"))


def test_a_plan_that_would_drop_what_can_still_be_undeleted(folder: Path, clock: ManualClock) -> None:
    with garbage_store(folder, clock) as store, pytest.raises(InvalidInput, match="can still be undone"):
        store.compact(plan_of(store, reference=clock.now() - RETENTION + 0.001))


def test_a_plan_for_another_store_of_the_same_name(folder: Path, clock: ManualClock) -> None:
    with garbage_store(folder, clock) as store, pytest.raises(InvalidInput, match="another one of this name"):
        store.compact(attrs.evolve(plan_of(store), incarnation=b"another's ......"))


def test_a_second_compaction_while_one_is_in_progress_finishes_that_one_first(
        folder: Path, clock: ManualClock) -> None:
    with garbage_store(folder, clock) as store:
        before, plan = StorePicture.of(store), plan_of(store, names("0_0", "1_0"))
        outcome = store.compact(plan, budget=Budget(total_bytes=100))
        assert isinstance(outcome, Failed)
        assert isinstance(outcome.error, BudgetSpent)
        assert (outcome.changed, store.status().compaction) == ("no", "copy")
        report = done(store.compact())
        assert report.finished is not None
        assert report.finished.victims == plan.names
        assert report.number == report.finished.number + report.finished.cycles
        assert store.compaction is None
        assert isinstance(store.resume(), Skipped)
        assert isinstance(store.drop_compaction(), Skipped)
        check_against(store, before)


def test_a_plan_that_is_outdated_once_the_earlier_compaction_is_finished(folder: Path, clock: ManualClock) -> None:
    with garbage_store(folder, clock) as store:
        plan = plan_of(store)
        assert isinstance(store.compact(plan, budget=Budget(total_bytes=100)), Failed)
        outcome = store.compact(plan)
        assert isinstance(outcome, Failed)
        assert isinstance(outcome.error, PlanDoesNotFit)
        assert outcome.changed == "partly"
        assert store.compaction is None


def test_of_two_puts_of_one_blob_the_later_stays(folder: Path, clock: ManualClock) -> None:
    """In Ambry the compaction fails each time."""
    with garbage_store(folder, clock) as store:
        put_twice(store, b"b0")
        fill(store, 10, random.Random(1), first=100)
        before, plain = segment_names(store), answers(store, 60)
        assert plain[0] == b"again"
        first, second = store.snapshot().history(b"b0")
        report = compact_all(store)
        assert (report.left_out, report.damage) == ((), ())
        assert report.verdicts[Verdict.REPLACED] == 1
        assert [entry.sequence for entry in store.snapshot().history(b"b0")] == [second.sequence]
        assert first.sequence < second.sequence
        assert len(segment_names(store)) == len(before) - report.freed_segments
        assert answers(store, 60) == plain
        assert store.compaction is None


def test_where_nothing_else_is_to_be_compacted_it_fails_and_is_over(folder: Path, clock: ManualClock) -> None:
    with garbage_store(folder, clock) as store:
        entry = next(iter(store.snapshot().entries_of(names("0_0")[0])))
        flip(folder / "0_0.log", entry.end - 1)
        before = segment_names(store)
        outcome = store.compact(plan_of(store, names("0_0")))
        assert isinstance(outcome, Failed)
        assert isinstance(outcome.error, CorruptData)
        assert segment_names(store) == before
        assert store.compaction is None
        assert strays(folder) == []


def test_each_of_three_expiries_shrinks_the_log(folder: Path, clock: ManualClock) -> None:
    with open_store(folder, clock) as store:
        for number in range(60):
            store.put(f"b{number}", bytes(100), ttl_seconds=(number % 4) * 10 + 5)
        sizes = []
        for _ in range(3):
            clock.advance(10)
            compact_all(store)
            sizes.append(len(store.snapshot().segments))
        plain = answers(store, 60)
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) == 3
    with open_store(folder, clock) as store:
        assert answers(store, 60) == plain


def test_files_of_a_position_that_begins_alike_stay(folder: Path, clock: ManualClock) -> None:
    with garbage_store(folder, clock, count=120) as store:
        kept = {name for name in os.listdir(folder) if name.startswith(("10_", "11_"))}
        assert len(kept) > 3
        done(store.compact(plan_of(store, names("0_0", "1_0"))))
        assert kept <= set(os.listdir(folder))


@pytest.mark.parametrize("swaps", [1, 3])
def test_records_keep_their_order(swaps: int, folder: Path, clock: ManualClock) -> None:
    def order(store: BlobStore) -> list[int]:
        snapshot = store.snapshot()
        return [entry.sequence for info in snapshot.segments for entry in snapshot.entries_of(info.name)]

    with garbage_store(folder, clock, swap_segments=swaps) as store:
        before = order(store)
        for info in store.snapshot().segments:
            offsets = [entry.offset for entry in store.snapshot().entries_of(info.name)]
            assert offsets == sorted(offsets)
        compact_all(store)
        after = order(store)
        left = set(after)
        assert after == [sequence for sequence in before if sequence in left]
        assert len(after) == len(left) < len(before)
        for info in store.snapshot().segments:
            offsets = [entry.offset for entry in store.snapshot().entries_of(info.name)]
            assert offsets == sorted(offsets)


def test_of_three_sources_whose_records_fit_into_one_segment_two_are_freed(folder: Path,
                                                                               clock: ManualClock) -> None:
    with garbage_store(folder, clock, dead=lambda number: number % 5 != 0, swap_segments=1) as store:
        free = store.status().free_segments
        report = done(store.compact(plan_of(store, names("0_0", "1_0", "2_0"))))
        assert (len(report.sources), len(report.targets), report.cycles) == (3, 1, 1)
        assert report.freed_segments == 2
        assert store.status().free_segments == free + 2


@pytest.mark.parametrize("swaps", [1, 2, 4])
def test_more_files_than_segments_are_needed_only_for_so_many_swaps(swaps: int, folder: Path,
                                                                        clock: ManualClock) -> None:
    """Nothing is reserved beforehand: what a pool of swap segments would have to hold may lie there beside."""
    most = 0

    class Counting(LocalFiles):
        def create(self, path: StrPath) -> OutFile:
            nonlocal most
            out = super().create(path)
            building = [name for name in os.listdir(folder) if ".log" in name and name.endswith(".temp")]
            most = max(most, len(building))
            return out

    garbage_store(folder, clock, swap_segments=swaps, dead=lambda number: number % 8 == 0).close()
    with open_store(folder, clock, files=Counting(), swap_segments=swaps) as store:
        report = compact_all(store)
    assert len(report.targets) >= 4
    assert most == swaps
