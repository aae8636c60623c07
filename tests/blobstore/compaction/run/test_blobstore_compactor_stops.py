# SPDX-License-Identifier: Apache-2.0
"""A compaction that is stopped, dropped, paused or written against; and what goes on from there."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Generator, Iterable
from pathlib import Path

import attrs
import pytest

from compactlib.blobstore import BlobStore, Pace
from compactlib.blobstore.compaction.progress.compaction_log import Phase
from compactlib.blobstore.compaction.sense.statistics import log_statistics
from compactlib.blobstore.model.names import SegmentName
from compactlib.blobstore.validity.verdicts import Verdict
from compactlib.clock import ManualClock
from compactlib.executors import LocalExecutor, RewriteTask
from compactlib.outcome import Done, Failed, Skipped
from compactlib.rewrite import RewriteOutcome
from compactlib.runtime import Budget, Observer
from tests.blobstore.compaction_stores import (
    EVERYTHING,
    RETENTION,
    answers,
    check_against,
    compact_all,
    done,
    fill,
    garbage_store,
    names,
    open_store,
    plan_of,
    strays,
)
from tests.blobstore.store_pictures import StorePicture, compare
from tests.tools.faults.plan import FailingFiles

# ------------------------------------------------------------------------------------------ stopping and going on


def test_it_is_cancelled_and_goes_on_without_copying_twice(folder: Path, clock: ManualClock) -> None:
    with garbage_store(folder, clock, compaction_buffer_bytes=1) as store:
        before, plain = StorePicture.of(store), answers(store, 60)
        budget = Budget(total_bytes=1500)
        outcome = store.compact(plan_of(store), budget=budget)
        assert isinstance(outcome, Failed)
        assert answers(store, 60) == plain
        spent, stops = budget.spent_bytes, 1
        while isinstance(outcome, Failed):
            budget = Budget(total_bytes=1500)
            outcome = store.resume(budget=budget)
            spent += budget.spent_bytes
            stops += 1
            store.audit()
        report = done(outcome)
        assert stops > 3
        assert spent == report.copied_bytes
        check_against(store, before)
    assert strays(folder) == []


def test_it_goes_on_after_the_store_was_opened_anew(folder: Path, clock: ManualClock) -> None:
    with garbage_store(folder, clock, compaction_buffer_bytes=1) as store:
        before = StorePicture.of(store)
        budget = Budget(total_bytes=1500)
        assert isinstance(store.compact(plan_of(store), budget=budget), Failed)
    with open_store(folder, clock) as store:
        assert store.compaction_recovery.log is not None
        second = Budget()
        report = done(store.resume(budget=second))
        assert report.resumed
        assert budget.spent_bytes + second.spent_bytes == report.copied_bytes
        check_against(store, before)


@pytest.mark.parametrize("reopened", [False, True])
def test_what_was_copied_before_is_not_used_if_it_would_be_copied_otherwise_now(reopened: bool, folder: Path,
                                                                              clock: ManualClock) -> None:
    """Blobs have expired since a new segment was whole: the cycle is decided anew."""
    with open_store(folder, clock, swap_segments=9) as store:
        for number in range(40):
            store.put(f"b{number}", bytes(300), ttl_seconds=1000 if number % 3 else None)
        before, began = StorePicture.of(store), clock.now()
        assert isinstance(store.compact(plan_of(store), budget=Budget(total_bytes=4500)), Failed)
        assert store.compaction is not None
        assert len(store.compaction.cycles[-1].targets) == 2
        clock.advance(2000)
        if not reopened:
            report = done(store.resume(budget=Budget()))
    if reopened:
        with open_store(folder, clock, swap_segments=9) as store:
            store.accept_clock()
            report = done(store.resume(budget=Budget()))
    assert report.verdicts[Verdict.EXPIRED] > 20
    with open_store(folder, clock) as store:
        found = compare(before, StorePicture.of(store), began - RETENTION, clock.now())
        assert not found.findings, str(found)
        assert not store.verify().findings
        assert answers(store, 3) == [bytes(300), "Missing", "Missing"]


@pytest.mark.parametrize("copied", [0, 1500])
def test_it_goes_on_with_the_longer_retention_of_the_next_opening(copied: int, folder: Path, clock: ManualClock,
                                                                  ) -> None:
    with open_store(folder, clock, swap_segments=9, deleted_retention_seconds=10) as store:
        for number in range(40):
            store.put(f"b{number}", bytes(300))
        for number in range(0, 40, 3):
            store.delete(f"b{number}")
        clock.advance(100)
        assert isinstance(store.compact(plan_of(store), budget=Budget(total_bytes=copied)), Failed)
    with open_store(folder, clock, swap_segments=9, deleted_retention_seconds=1000) as store:
        assert done(store.resume(budget=Budget())).verdicts[Verdict.DELETED] == 0
        for number in range(0, 40, 3):
            store.undelete(f"b{number}")
        assert answers(store, 40) == [bytes(300)] * 40
        assert not store.verify().findings


def test_the_stores_own_temporary_files_are_let_be_while_it_is_open(folder: Path, clock: ManualClock) -> None:
    """Under load, a compaction removed the index file that the store was writing, or failed when that was faster."""
    with garbage_store(folder, clock) as store:
        mine = folder / "5_0.80.index.tmp"
        mine.write_bytes(b"half")
        done(store.compact(plan_of(store, names("0_0", "1_0"))))
        assert mine.exists()
    with open_store(folder, clock):
        assert not mine.exists()


def test_an_attempt_elsewhere_that_removes_its_own_file_is_no_failure(folder: Path, clock: ManualClock) -> None:
    class Racing(FailingFiles):
        def unlink(self, path: object) -> None:
            if str(path).endswith(".lent.temp"):
                os.unlink(str(path))
            super().unlink(path)  # type: ignore[arg-type]

    with garbage_store(folder, clock) as store:
        pass
    with open_store(folder, clock, files=Racing()) as store:
        (folder / "0_1.log.abc.lent.temp").write_bytes(b"")
        done(store.compact(plan_of(store)))
    assert strays(folder) == []


def test_an_attempt_that_failed_can_be_dropped(folder: Path, clock: ManualClock) -> None:
    with garbage_store(folder, clock) as store:
        before = StorePicture.of(store)
        assert isinstance(store.compact(plan_of(store), budget=Budget(total_bytes=3000)), Failed)
        dropped = done(store.drop_compaction())
        assert dropped.sources
        assert store.compaction is None
        check_against(store, before)
        compact_all(store)
        check_against(store, before)
    assert strays(folder) == []


def test_what_a_drop_leaves_twice_counts_as_garbage_and_goes_with_the_next_compaction_of_its_segment(
        folder: Path, clock: ManualClock) -> None:
    def held_twice(store: BlobStore) -> dict[SegmentName, int]:
        """Bytes of each segment whose records lie in an earlier segment, too."""
        snapshot, seen = store.snapshot(), set[int]()
        found: dict[SegmentName, int] = {}
        for info in snapshot.segments:
            entries = list(snapshot.entries_of(info.name))
            again = sum(entry.size for entry in entries if entry.sequence in seen)
            found.update({info.name: again} if again else {})
            seen |= {entry.sequence for entry in entries}
        return found

    with garbage_store(folder, clock) as store:
        before, plain = StorePicture.of(store), answers(store, 60)
        assert isinstance(store.compact(plan_of(store), budget=Budget(total_bytes=3000)), Failed)
        dropped = done(store.drop_compaction())
        ((double, size),) = held_twice(store).items()
        assert double not in dropped.sources
        assert 0 < size < store.segment_bytes
        at = clock.now()
        valid = log_statistics(store.snapshot(), at - RETENTION, at).valid_bytes
        alone = [store.snapshot().history(entry.id) for entry in store.snapshot().entries_of(double)]
        assert valid[double] <= sum(entry.size for history in alone for entry in history
                                    if entry.segment == double) - size
        report = done(store.compact(plan_of(store, [double])))
        assert report.verdicts[Verdict.DUPLICATE] > 0
        assert held_twice(store) == {}
        assert answers(store, 60) == plain
        check_against(store, before)


def test_it_waits_while_the_budget_is_paused_and_the_store_goes_on(folder: Path, clock: ManualClock) -> None:
    begun = threading.Event()

    class Begun(Observer):
        def progress(self, progress: object) -> None:
            begun.set()

    with garbage_store(folder, clock) as store:
        budget = Budget(clock=clock)
        budget.pause()
        found: list[object] = []
        # The pause holds the executor back before its first task.
        thread = threading.Thread(target=lambda: found.append(store.compact(plan_of(store), budget=budget)))
        thread.start()
        while store.compaction is None or store.compaction.phase is not Phase.COPY:
            store.get("b0")
        store.put("meanwhile", b"x")
        plain = answers(store, 60)
        assert isinstance(store.compact(plan_of(store)), Skipped)
        assert not begun.is_set()
        budget.resume()
        thread.join()
        assert isinstance(found[0], Done)
        assert answers(store, 60) == plain


def test_the_configured_rate_holds(folder: Path, clock: ManualClock) -> None:
    with garbage_store(folder, clock, pace=Pace(bytes_per_second=500.0, min_bytes_per_second=500.0)) as store:
        began = clock.monotonic()
        report = compact_all(store)
        assert clock.monotonic() - began >= 0.9 * report.copied_bytes / 500


def test_the_rate_of_a_budget_that_is_given_counts_and_not_the_configured_one(folder: Path, clock: ManualClock) -> None:
    with garbage_store(folder, clock, pace=Pace(bytes_per_second=500.0, min_bytes_per_second=50.0)) as store:
        began = clock.monotonic()
        done(store.compact(plan_of(store), budget=Budget(clock=clock)))
        assert clock.monotonic() == began
        fill(store, 20, random.Random(3), first=100)
        report = done(store.compact(plan_of(store), budget=Budget(bytes_per_second=5000.0, clock=clock)))
        seconds = clock.monotonic() - began
        assert 0.9 * report.copied_bytes / 5000 <= seconds <= 1.1 * report.copied_bytes / 5000 + 0.2


def test_writes_during_the_copying_are_not_lost(folder: Path, clock: ManualClock) -> None:
    """Property 8: what is deleted, undeleted, made permanent or put meanwhile counts."""
    with garbage_store(folder, clock) as store:
        store.put("dying", b"x", ttl_seconds=1000)
        fill(store, 10, random.Random(5), first=500)

        class Busy(Observer):
            told = 0

            def progress(self, progress: object) -> None:
                Busy.told += 1
                store.put(f"new{Busy.told}", b"meanwhile")
                if Busy.told == 1:
                    store.delete("b0")
                    store.delete("b3")
                    store.undelete("b3")
                    store.ttl_update("dying")

        done(store.compact(plan_of(store), executor=Telling(Busy())))
        assert Busy.told > 3
        assert answers(store, 1) == ["Deleted"]
        assert type(store.get("b3")).__name__ == "Blob"
        clock.advance(2000)
        assert type(store.get("dying")).__name__ == "Blob"
        assert all(type(store.get(f"new{number}")).__name__ == "Blob" for number in range(1, Busy.told + 1))
        assert not store.verify().findings


@attrs.frozen
class Telling:
    """Runs tasks here and lets another observer hear of them."""

    other: Observer

    def run(self, tasks: Iterable[RewriteTask], *, budget: Budget | None = None,
            observer: Observer | None = None) -> Generator[RewriteOutcome, None, None]:
        yield from LocalExecutor().run(tasks, budget=budget, observer=self.other)


def test_a_blob_that_comes_back_while_it_is_dropped_is_kept(folder: Path, clock: ManualClock) -> None:
    """Only a clock that was set back lets the store undelete what the compaction has dropped."""
    with garbage_store(folder, clock) as store:
        class SettingBack(Observer):
            told = 0

            def progress(self, progress: object) -> None:
                SettingBack.told += 1
                if SettingBack.told == 1:
                    clock.set_now(clock.now() - RETENTION)
                    store.undelete("b1")

        content = store.get("b1", EVERYTHING)
        done(store.compact(plan_of(store), executor=Telling(SettingBack())))
        found = store.get("b1")
        assert type(found).__name__ == "Blob"
        assert found.content == content.content  # type: ignore[union-attr]
