# SPDX-License-Identifier: Apache-2.0
"""The store as the contract sees it: wrong types, plans that change nothing, room, reclaiming, what it says."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest

from compactlib.blobstore import BlobStore, CompactAll, Greedy, Questions, RecordKind, StoreFull
from compactlib.clock import ManualClock
from compactlib.errors import Closed, InvalidInput, TaskFailed
from compactlib.files import LocalFiles
from compactlib.files.disk import StrPath
from compactlib.outcome import Done, Failed, Skipped
from compactlib.runtime import Budget, Observer, RecordingObserver
from compactlib.testing.compactions import folder_contents
from tests.blobstore.compaction_stores import START, answers, done, fill, garbage_store, open_store, strays
from tests.tools.faults.plan import FailingFiles, Fault

# ------------------------------------------------------------------------------------------------ views, plans, choices


def test_looking_and_planning_change_nothing_on_the_disk(folder: Path, clock: ManualClock) -> None:
    with garbage_store(folder, clock) as store:
        store.flush()
        before = folder_contents(folder)
        view = store.view()
        assert store.view() == view
        plan = store.plan()
        assert attrs.evolve(store.plan(view=view), bytes_available=plan.bytes_available) == plan
        assert not plan.is_empty
        assert store.plan(Greedy(min_used_fraction=1.0)).is_empty
        assert folder_contents(folder) == before


def test_a_view_of_another_store_is_no_view_of_this_one(tmp_path: Path) -> None:
    with (garbage_store(tmp_path / "a", ManualClock()) as one,
          BlobStore(tmp_path / "store", attrs.evolve(one.config), clock=ManualClock()) as other,
          pytest.raises(InvalidInput, match="is of store")):
        other.plan(view=one.view())


def test_a_plan_and_a_policy_together(folder: Path, clock: ManualClock) -> None:
    with garbage_store(folder, clock) as store, pytest.raises(InvalidInput, match="not both"):
        store.compact(store.plan(), policy=CompactAll())


def test_an_empty_plan_is_skipped_with_its_reason_which_names_the_setting(folder: Path, clock: ManualClock) -> None:
    with garbage_store(folder, clock) as store:
        lazy = Greedy(min_used_fraction=1.0)
        plan = store.plan(lazy)
        assert "min_used_fraction=1.0" in plan.why
        assert store.compact(plan) == Skipped(plan.why) == store.compact(policy=lazy)


class ClosingClock(ManualClock):
    """Closes a store when somebody waits."""

    store: BlobStore | None = None

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        if self.store is not None:
            self.store.close()


@pytest.mark.parametrize("look", [BlobStore.view, BlobStore.plan])
@pytest.mark.parametrize("buckets", [0, 100])
def test_closing_ends_who_counts_and_they_are_told_so(look: Callable[[BlobStore], object], buckets: int,
                                                      folder: Path) -> None:
    clock = ClosingClock(1_000_000.0)
    with garbage_store(folder, clock, stats_entries_per_second=1, stats_bucket_count=buckets) as store:
        clock.store = store
        with pytest.raises(Closed, match="meanwhile"):
            look(store)


# ----------------------------------------------------------------------------------------------------- room on the disk


class Room(LocalFiles):
    """A disk with so much room left."""

    def __init__(self, room: int | None) -> None:
        self.room = room

    def available_bytes(self, path: StrPath) -> int | None:
        return self.room


@pytest.mark.parametrize("swaps", [1, 100])
def test_a_compaction_without_room_is_skipped_before_it_begins(swaps: int, folder: Path, clock: ManualClock) -> None:
    files = Room(None)
    with garbage_store(folder, clock, files=files, swap_segments=swaps) as store:
        before = folder_contents(folder)
        plan = store.plan()
        assert plan.bytes_available is None
        assert plan.bytes_needed > 0
        files.room = plan.bytes_needed - 1
        outcome = store.compact(plan)
        assert isinstance(outcome, Skipped)
        assert f"{plan.bytes_needed:,} bytes" in outcome.reason
        assert f"{files.room:,} are available" in outcome.reason
        assert not outcome.is_busy
        assert isinstance(store.compact(), Skipped)
        assert folder_contents(folder) == before
        files.room = plan.bytes_needed
        assert store.plan().bytes_available == files.room
        done(store.compact(plan))


@pytest.mark.parametrize("swaps", [1, 2, 100])
def test_no_compaction_takes_more_room_than_its_plan_says(swaps: int, folder: Path, clock: ManualClock) -> None:
    def data_bytes() -> int:
        return sum(path.stat().st_size for path in folder.iterdir() if ".log" in path.name or ".index" in path.name)

    class Watching(Observer):
        def progress(self, progress: object) -> None:
            seen.append(data_bytes())

        def event(self, name: str, fields: object) -> None:
            seen.append(data_bytes())

    with garbage_store(folder, clock, swap_segments=swaps) as store:
        seen = [before := data_bytes()]
        plan = store.plan()
        report = done(store.compact(plan, observer=Watching()))
        assert before - data_bytes() == report.bytes_freed
        assert not plan.is_exact or report.bytes_written == plan.bytes_to_copy
        assert max(seen) - before <= plan.bytes_needed
        assert before - data_bytes() == plan.bytes_freed or not plan.is_exact


# --------------------------------------------------------------------------------------------- reclaiming, hard deletes


def test_what_attempts_have_left_is_reclaimed_and_nothing_else(folder: Path, clock: ManualClock) -> None:
    with garbage_store(folder, clock) as store:
        outcome = store.reclaim()
        assert isinstance(outcome, Skipped)
        assert "no attempt has left a file" in outcome.reason
        (folder / "0_7.log.abc.lent.temp").write_bytes(b"half")
        (folder / "9_9.80.index").write_bytes(b"no segment has it")
        before = answers(store, 60)
        outcome = store.reclaim()
        assert isinstance(outcome, Done)
        assert sorted(outcome.stats.removed) == ["0_7.log.abc.lent.temp", "9_9.80.index"]
        assert outcome.stats.bytes_freed == len(b"half") + len(b"no segment has it")
        assert outcome.stats.erased is None
        assert strays(folder) == []
        assert answers(store, 60) == before
        assert isinstance(store.reclaim(), Skipped)


def test_what_an_interrupted_compaction_needs_is_left_to_it(folder: Path, clock: ManualClock) -> None:
    with garbage_store(folder, clock, compaction_buffer_bytes=1, swap_segments=9) as store:
        budget = Budget(total_bytes=2500)
        assert isinstance(store.compact(budget=budget), Failed)
        assert isinstance(store.reclaim(), Skipped)
        again = Budget()
        report = done(store.compact(budget=again))
        assert report.number == 1
        assert budget.spent_bytes + again.spent_bytes == report.copied_bytes


@pytest.mark.parametrize("configured", [False, True])
def test_the_hard_delete_is_a_part_of_reclaiming_where_it_is_configured(configured: bool, folder: Path,
                                                                        clock: ManualClock) -> None:
    with garbage_store(folder, clock, hard_delete=configured, hard_delete_bytes_per_second=None) as store:
        outcome = store.reclaim()
        if not configured:
            assert isinstance(outcome, Skipped)
            erased = store.hard_delete()
            assert isinstance(erased, Done)
            assert erased.stats.records > 10
        else:
            assert isinstance(outcome, Done)
            assert outcome.stats.erased is not None
            assert outcome.stats.erased.records > 10
            assert "no delete came into effect" in store.reclaim().reason  # type: ignore[union-attr]
        assert store.verify().is_sound


def test_a_reclaim_whose_budget_is_spent_has_done_nothing(folder: Path, clock: ManualClock) -> None:
    with garbage_store(folder, clock, hard_delete=True) as store:
        budget = Budget()
        budget.cancel()
        before = folder_contents(folder)
        outcome = store.reclaim(budget=budget)
        assert isinstance(outcome, Failed)
        assert outcome.changed == "no"
        assert folder_contents(folder) == before


@pytest.mark.parametrize(("left", "expected"), [
    (2, ["no", "partly", "partly", "done"]),
    (0, ["unknown"] * 8)])
def test_a_reclaim_that_the_disk_refused_says_whether_anything_has_changed(left: int, expected: list[str],
                                                                           tmp_path: Path) -> None:
    told: list[str] = []
    for step in range(1, len(expected) + 1):
        folder, refused = tmp_path / str(step), set[int]()
        files = FailingFiles(faults=partial(_refused, refused))
        with garbage_store(folder, ManualClock(START), files=files, hard_delete=not left,
                           hard_delete_bytes_per_second=None) as store:
            for number in range(left):
                (folder / f"9_{number}.80.index").write_bytes(b"no segment has it")
            store.flush()
            before = folder_contents(folder)
            refused.add(files.count + step)
            outcome = store.reclaim()
            told.append(outcome.changed if isinstance(outcome, Failed) else "done")
            assert told[-1] != "no" or folder_contents(folder) == before
            assert not isinstance(store.reclaim(), Failed)
            assert store.verify().is_sound
    assert told == expected


def _refused(numbers: set[int], number: int) -> Fault | None:
    return Fault.REFUSED if number in numbers else None


# ---------------------------------------------------------------------------------------------------- what a store says


class Breaking:
    """An executor that raises what is none of the library's."""

    def run(self, tasks: object, **_: object) -> Any:
        raise ValueError("broken")


def test_the_status_says_what_nobody_expected_and_what_waits(folder: Path, clock: ManualClock) -> None:
    with garbage_store(folder, clock) as store:
        status = store.status()
        assert (status.is_busy, status.last_error, status.failures, status.compaction) == (False, "", 0, None)
        outcome = store.compact(executor=Breaking())
        assert isinstance(outcome, Failed)
        assert isinstance(outcome.error, TaskFailed)
        status = store.status()
        assert (status.is_busy, status.failures, status.compaction) == (False, 1, "copy")
        assert status.last_error.startswith("TaskFailed: ")
        assert "ValueError: broken" in status.last_error
        done(store.compact())
        assert store.status().compaction is None
        assert status.to_dicts()[0]["failures"] == 1
        assert "blob store store" in repr(status)


def test_the_observer_of_a_call_is_told_besides_the_stores_own(folder: Path, clock: ManualClock) -> None:
    own, given = RecordingObserver(), RecordingObserver()
    garbage_store(folder, clock).close()
    with open_store(folder, clock, observer=own) as store:
        done(store.compact(observer=given))
        done_events = ("blobstore_compaction_done", "blobstore_positions_moved")
        for told in (own, given):
            assert {name for name, _ in told.events} >= set(done_events)
            assert told.progresses
        assert isinstance(store.compact(observer=given), Skipped)


def test_a_log_without_a_free_segment_is_told_from_a_full_disk(scratch: Path) -> None:
    with open_store(scratch / "store", ManualClock(), capacity_bytes=2 * 2048) as store:
        with pytest.raises(StoreFull, match="all 4,096 bytes of the log's capacity") as full:
            fill(store, 100, random.Random(1))
        assert os.strerror(errno.ENOSPC) not in str(full.value)
        assert "1 of 2 segments may be compacted, 0 are kept by the journal (journal_max_entries=1)" in str(full.value)
        assert "deleted_retention_seconds=10.0" in full.value.gates
        assert "see plan().why for what holds that back, or create a larger one" in str(full.value)


@pytest.mark.parametrize("buckets", [0, 100])
def test_other_questions_count_from_the_next_look_on(buckets: int, folder: Path, clock: ManualClock) -> None:
    with garbage_store(folder, clock, purge_tombstones=True, stats_bucket_count=buckets) as store:
        for number in range(20):
            store.append_replicated(RecordKind.DELETE, f"of a peer {number}", op_time=START, life_version=0)
        before = sum(segment.valid_bytes for segment in store.view().segments)
        assert before > 0

        def asked(entry: object) -> bool:
            # In the middle of a count; whoever counts goes on with those it began with.
            store.questions = Questions(seen_by_all_peers=lambda entry: True)
            return False

        store.questions = Questions(seen_by_all_peers=asked)
        assert sum(segment.valid_bytes for segment in store.view().segments) == before
        assert sum(segment.valid_bytes for segment in store.view().segments) < before
