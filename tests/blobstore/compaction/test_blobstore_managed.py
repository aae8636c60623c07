# SPDX-License-Identifier: Apache-2.0
"""The manager with real stores: policies, disks that refuse, restarts, statistics, hard deletes, containers."""

from __future__ import annotations

import contextlib
import errno
import itertools
import threading
from pathlib import Path
from typing import Any

import attrs
import pytest

from compactlib.blobstore import (
    Blob,
    BlobChoice,
    BlobPolicy,
    BlobStore,
    BlobStoreConfig,
    BlobView,
    CompactAll,
    Deleted,
    Hybrid,
    Missing,
    Questions,
    StatsBased,
)
from compactlib.blobstore.compaction.plan.last_plans import read_last_plans
from compactlib.blobstore.compaction.run.events import COMPACTION_DONE, CONTENTS_ERASED
from compactlib.blobstore.compaction.sense.look import Sensor
from compactlib.blobstore.errors import StoreFull
from compactlib.blobstore.validity.verdicts import PurgeRules
from compactlib.clock import ManualClock
from compactlib.errors import BudgetSpent
from compactlib.executors import LocalExecutor
from compactlib.files import Files
from compactlib.manager import COMPACTION_FAILING, CompactionManager, OnRequest, Periodic
from compactlib.observer import EventRecorder
from compactlib.outcome import Done, Failed
from compactlib.runtime import Budget, Observer, Progress, RecordingObserver
from tests.tools.faults.plan import FailingFiles

CONFIG = BlobStoreConfig(capacity_bytes=1 << 16, segment_bytes=1 << 12, journal_max_entries=0, max_blob_bytes=0,
                         deleted_retention_seconds=10.0, ttl_update_buffer_seconds=0.0, pace=None)
EVERYTHING = CompactAll(min_used_fraction=0.0)


def managing(clock: ManualClock, observer: EventRecorder | None = None) -> CompactionManager:
    return CompactionManager([Periodic(100.0), OnRequest()], retry_seconds=10.0, max_retry_seconds=40.0, clock=clock,
                             observer=observer)


def opened(folder: Path, clock: ManualClock, *, policy: BlobPolicy | None = None, questions: Questions | None = None,
           files: Files | None = None, observer: Observer | None = None, **changed: Any) -> BlobStore:
    """A store whose policy takes what frees anything, however empty the store is."""
    return BlobStore(folder, attrs.evolve(CONFIG, **changed), clock=clock, questions=questions, files=files,
                     observer=observer, policy=StatsBased(min_used_fraction=0.0) if policy is None else policy)


def filled(folder: Path, clock: ManualClock, *, policy: BlobPolicy | None = None, questions: Questions | None = None,
           **changed: Any) -> BlobStore:
    """Twelve blobs of 1000 bytes, three in a segment; every other one expires after an hour."""
    store = opened(folder, clock, policy=policy, questions=questions, **changed)
    for number in range(12):
        store.put(f"blob {number}", bytes([number]) * 1000, ttl_seconds=3600 if number % 2 else None)
    return store


def check_content(store: BlobStore) -> None:
    for number in range(0, 12, 2):
        answer = store.get(f"blob {number}")
        assert isinstance(answer, Blob)
        assert answer.content == bytes([number]) * 1000


def test_real_stores_are_compacted_when_it_is_worth_it(tmp_path: Path) -> None:
    clock = ManualClock(1_000_000.0)
    manager = managing(clock)
    with filled(tmp_path / "one", clock) as one, filled(tmp_path / "two", clock, stats_bucket_count=200) as two:
        for store in (one, two):
            manager.add(store.name, store)
        manager.run_pending()
        assert [len(store.snapshot().segments) for store in (one, two)] == [4, 4]
        clock.advance(2 * 3600.0)
        manager.run_pending()
        assert [row["failures"] for row in manager.report().to_dicts()] == [0, 0]
        assert all(len(store.snapshot().segments) < 4 for store in (one, two))
        for store in (one, two):
            check_content(store)
            store.audit()


def test_a_segment_without_valid_bytes_is_exactly_what_is_taken(tmp_path: Path) -> None:
    clock = ManualClock(1_000_000.0)
    config = attrs.evolve(CONFIG, max_blob_bytes=1067)
    with BlobStore(tmp_path / "one", config, clock=clock) as store:
        for number in range(30):
            store.put(f"blob {number:02}", b"x" * 1000, ttl_seconds=5.0 if number in (12, 13, 14) else None)
        clock.advance(6.0)
        assert len(store.snapshot().segments) == 10
        plan = store.plan(StatsBased(min_used_fraction=0.0))
        assert ([str(name) for name in plan.names], plan.valid_bytes, plan.benefit_segments) == (["4_0"], 0, 1)
        outcome = store.compact(plan)
        assert isinstance(outcome, Done)
        assert len(store.snapshot().segments) == 9


def test_property_4_the_segments_that_are_freed_are_at_least_the_plans_benefit(tmp_path: Path) -> None:
    clock = ManualClock(1_000_000.0)
    with filled(tmp_path / "one", clock) as store:
        clock.advance(3601.0)
        plan = store.plan(StatsBased(min_used_fraction=0.0))
        before = len(store.snapshot().segments)
        outcome = store.compact(plan)
        assert isinstance(outcome, Done)
        assert before - len(store.snapshot().segments) >= plan.benefit_segments
        assert outcome.stats.copied_bytes == plan.valid_bytes


def test_property_5_what_the_statistics_say_is_what_is_copied(tmp_path: Path) -> None:
    clock = ManualClock(1_000_000.0)
    with filled(tmp_path / "one", clock) as store:
        store.delete("blob 4")
        store.ttl_update("blob 11")
        clock.advance(3601.0)
        store.delete("blob 6")
        view = store.view()
        plan = store.plan(EVERYTHING, view=view)
        outcome = store.compact(plan)
        assert isinstance(outcome, Done)
        assert outcome.stats.copied_bytes == plan.valid_bytes == sum(each.valid_bytes for each in view.eligible)


def test_a_disk_that_refuses_any_one_step_is_tried_again_and_nothing_is_lost(tmp_path: Path) -> None:
    failures = 0
    for step in range(1, 40, 5):
        clock, observer, folder = ManualClock(1_000_000.0), EventRecorder(), tmp_path / str(step)
        filled(folder, clock).close()
        # Files are counted from the first change of the opened store on: opening one makes the same ones each time.
        counted = FailingFiles()
        opened(folder, clock, files=counted).close()
        files = FailingFiles(fail_at=counted.count + step, errno=errno.EIO)
        with opened(folder, clock, files=files) as store:
            manager = managing(clock, observer)
            manager.add(store.name, store)
            clock.advance(3601.0)
            manager.run_pending()
            failures += manager.failures
            check_content(store)
            clock.advance(10.0)
            manager.run_pending()
            assert manager.report().to_dicts()[0]["failures"] == 0
            assert len(store.snapshot().segments) < 4
            check_content(store)
            store.audit()
    assert failures > 3


def test_a_full_round_is_remembered_over_a_restart(tmp_path: Path) -> None:
    clock = ManualClock(1_000_000.0)
    policy = Hybrid(usual=StatsBased(min_used_fraction=0.0), thorough=EVERYTHING,
                    every_seconds=7200.0)
    for hours, expected in ((1, None), (2, 1_007_200.0), (3, 1_007_200.0), (4, 1_014_400.0)):
        clock.set_now(1_000_000.0 + hours * 3600.0)
        fresh = not (tmp_path / "one").exists()
        if fresh:
            with filled(tmp_path / "one", ManualClock(1_000_000.0)) as store:
                store.view()
        with opened(tmp_path / "one", clock) as store:
            store.accept_clock()
            manager = managing(clock)
            manager.add(store.name, store, policy=policy)
            manager.run_pending()
            history = read_last_plans(tmp_path / "one")
            assert (None if history is None else history.last_full_at) == expected
            assert store.view().history.since == 1_000_000.0


def test_a_full_round_that_a_restart_has_interrupted_is_remembered_when_it_is_resumed(tmp_path: Path) -> None:
    clock, budget = ManualClock(1_000_000.0), Budget()

    class Cancelling(RecordingObserver):
        def progress(self, progress: Progress) -> None:
            budget.cancel()

    filled(tmp_path / "one", clock).close()
    clock.advance(3601.0)
    with opened(tmp_path / "one", clock, observer=Cancelling()) as store:
        store.accept_clock()
        assert isinstance(store.compact(policy=EVERYTHING, budget=budget), Failed)
    clock.advance(60.0)
    with opened(tmp_path / "one", clock) as store:
        store.accept_clock()
        assert isinstance(store.resume(), Done)
        check_content(store)
    history = read_last_plans(tmp_path / "one")
    assert history is not None
    assert history.last_full_at == clock.now()


def test_a_full_round_may_close_the_segment_that_is_written_to(tmp_path: Path) -> None:
    clock = ManualClock(1_000_000.0)
    with filled(tmp_path / "one", clock, policy=EVERYTHING, close_active_segment=True) as store:
        clock.advance(3601.0)
        before = len(store.snapshot().segments)
        assert isinstance(store.compact(), Done)
        assert len(store.snapshot().segments) < before
        assert store.snapshot().segments[-1].records == 0
        check_content(store)


@pytest.mark.parametrize(("capacity", "fraction", "closes"), [
    (5 << 12, 0.0, True),    # four segments, and room for one more
    (4 << 12, 0.0, False),   # no room
    (8 << 12, 0.5, False),   # just below half full: its tail is not written
    (1 << 16, 0.9, False),
])
def test_the_segment_is_closed_only_where_there_is_room_and_the_store_is_full_enough(
        capacity: int, fraction: float, closes: bool, tmp_path: Path) -> None:
    clock = ManualClock(1_000_000.0)
    with filled(tmp_path / "one", clock, policy=CompactAll(min_used_fraction=fraction), close_active_segment=True,
                capacity_bytes=capacity) as store:
        clock.advance(3601.0)
        assert len(store.snapshot().segments) == 4
        store.compact()
        assert (store.snapshot().segments[-1].records == 0) is closes


def test_a_writer_that_takes_the_last_segment_meanwhile_stops_no_full_round(tmp_path: Path) -> None:
    clock = ManualClock(1_000_000.0)
    with filled(tmp_path / "one", clock, close_active_segment=True, capacity_bytes=5 << 12) as store:
        numbers = itertools.count()

        class WritesMeanwhile:
            name = "writes meanwhile"

            def choose(self, view: BlobView, now: float) -> BlobChoice:
                with contextlib.suppress(StoreFull):
                    for number in numbers:
                        store.put(f"meanwhile {number}", b"x" * 1000)
                return EVERYTHING.choose(view, now)

        clock.advance(3601.0)
        assert isinstance(store.compact(policy=WritesMeanwhile()), Done)
        check_content(store)


def test_a_damaged_plan_history_starts_anew_and_says_so(tmp_path: Path) -> None:
    clock, observer = ManualClock(1_000_000.0), RecordingObserver()
    with opened(tmp_path / "one", clock, observer=observer) as store:
        (tmp_path / "one" / "plan_history.json").write_text("{")
        assert store.view().history.since == 1_000_000.0
        assert [name for name, _ in observer.events if "history" in name] == ["blobstore_plan_history_damaged"]
        store.view()
        assert len([name for name, _ in observer.events if "history" in name]) == 1


def test_the_reserve_is_the_largest_record_where_the_configured_one_leaves_no_room(tmp_path: Path) -> None:
    clock = ManualClock(1_000_000.0)
    with filled(tmp_path / "one", clock, max_blob_bytes=4 << 20) as store:
        largest = max(entry.size for info in store.snapshot().segments
                      for entry in store.snapshot().entries_of(info.name))
        assert store.view().max_blob_bytes == largest
    with BlobStore(tmp_path / "empty", attrs.evolve(CONFIG, max_blob_bytes=4 << 20), clock=clock) as store:
        assert store.view().max_blob_bytes == 0


def test_kept_statistics_of_a_real_store_are_those_of_a_full_count(tmp_path: Path) -> None:
    clock = ManualClock(1_000_000.0)
    with filled(tmp_path / "one", clock, stats_bucket_count=500, stats_bucket_seconds=1.0) as store:
        kept, exact = (Sensor(each, PurgeRules(), store.compactions.ownership)
                       for each in (store, without_buckets(store)))
        for step in range(12):
            if step % 3 == 0:
                store.delete(f"blob {step}")
            clock.advance(7.0)
            expected = exact.view(clock.now())
            assert [each.valid_bytes for each in kept.view(clock.now()).segments] == [
                each.valid_bytes for each in expected.segments]
            plan = store.plan(CompactAll(min_used_fraction=0.0, skip_valid="all"), view=expected)
            if not plan.is_empty and step % 4 == 3:
                assert isinstance(store.compact(plan), Done)


def test_a_clock_that_was_set_back_never_makes_deletes_count_too_early(tmp_path: Path) -> None:
    clock = ManualClock(1_000_000.0)
    with filled(tmp_path / "one", clock, stats_bucket_count=500, stats_bucket_seconds=1.0) as store:
        clock.advance(3700.0)
        assert store.view().reference_time == clock.now() - 10.0
        clock.set_now(1_003_650.0)
        assert store.view().reference_time == clock.now() - 10.0
        plan = store.plan(EVERYTHING)
        assert isinstance(store.compact(plan), Done)


def without_buckets(store: BlobStore) -> Any:
    """The same store, configured without buckets."""

    class Without:
        config = attrs.evolve(store.config, stats_bucket_count=0)

        def __getattr__(self, name: str) -> Any:
            return getattr(store, name)

    return Without()


# ------------------------------------------------------------------------------------- hard deletes, and containers

LAZY = CompactAll(min_used_fraction=1.0)
"""Compacts nothing here."""


def with_secrets(folder: Path, clock: ManualClock, *, files: Files | None = None, observer: Observer | None = None,
                 **changed: Any) -> BlobStore:
    """Ten blobs of 1000 bytes, each behind a secret; the odd ones are deleted, and their deletes are in effect."""
    store = opened(folder, clock, files=files, observer=observer, **changed)
    if store.info("blob 0") == Missing(b"blob 0"):
        for number in range(10):
            store.put(f"blob {number}", SECRET + bytes(1000))
        for number in range(1, 10, 2):
            store.delete(f"blob {number}")
        store.close_active_segment()
        clock.advance(11.0)
    return store


SECRET = b"a secret of forty bytes, and nobody's....."


def secrets_on_disk(folder: Path) -> int:
    return sum(path.read_bytes().count(SECRET) for path in folder.glob("*.log"))


@pytest.mark.parametrize("hard_delete", [False, True])
def test_the_content_of_deleted_blobs_is_overwritten_after_a_check_if_that_is_configured(
        hard_delete: bool, tmp_path: Path) -> None:
    clock, observer = ManualClock(1_000_000.0), RecordingObserver()
    with with_secrets(tmp_path / "one", clock, observer=observer, hard_delete=hard_delete) as store:
        manager = managing(clock)
        manager.add(store.name, store, policy=LAZY)
        manager.run_pending()
        reclaimed = manager.report().to_dicts()[0]["last_reclaim"]
        assert ("overwrote the content of 5 deleted blobs" in reclaimed) == hard_delete
        assert secrets_on_disk(tmp_path / "one") == (5 if hard_delete else 10)
        erased = [fields for name, fields in observer.events if name == CONTENTS_ERASED]
        assert [fields["records"] for fields in erased] == [5] * hard_delete
        # Nothing is deleted since, so the next check does nothing and says so.
        clock.advance(100.0)
        manager.run_pending()
        assert "overwrote" not in manager.report().to_dicts()[0]["last_reclaim"]
        store.audit()


def test_a_compaction_comes_first_and_leaves_less_to_overwrite(tmp_path: Path) -> None:
    clock = ManualClock(1_000_000.0)
    with with_secrets(tmp_path / "one", clock, hard_delete=True) as store:
        outcome = store.compact(policy=EVERYTHING, budget=Budget(clock=clock))
        assert isinstance(outcome, Done)
        assert secrets_on_disk(tmp_path / "one") == 5
        assert isinstance(store.get("blob 1"), Deleted)


def test_the_hard_delete_has_a_rate_of_its_own(tmp_path: Path) -> None:
    clock = ManualClock(1_000_000.0)
    with with_secrets(tmp_path / "one", clock, hard_delete=True, hard_delete_bytes_per_second=100.0) as store:
        before = clock.now()
        assert isinstance(store.reclaim(budget=Budget(clock=clock)), Done)
        assert clock.now() - before > 30.0
        assert secrets_on_disk(tmp_path / "one") == 5


def test_the_rate_of_a_callers_budget_counts_for_the_hard_delete_of_a_reclaim(tmp_path: Path) -> None:
    clock = ManualClock(1_000_000.0)
    with with_secrets(tmp_path / "one", clock, hard_delete=True, hard_delete_bytes_per_second=100.0) as store:
        before = clock.now()
        assert isinstance(store.reclaim(budget=Budget(bytes_per_second=5_000.0, clock=clock)), Done)
        assert 0.5 < clock.now() - before < 3.0
        assert secrets_on_disk(tmp_path / "one") == 5


def many_secrets(folder: Path, clock: ManualClock, **changed: Any) -> BlobStore:
    """Two hundred deleted blobs behind a secret each, in effect; three slices and a bit."""
    store = opened(folder, clock, hard_delete=True, capacity_bytes=1 << 18, **changed)
    for number in range(200):
        store.put(f"blob {number}", SECRET + bytes(100))
        store.delete(f"blob {number}")
    store.close_active_segment()
    clock.advance(11.0)
    return store


def test_a_hard_delete_goes_on_in_slices_and_other_stores_of_the_disk_come_in_between(tmp_path: Path) -> None:
    """At 1000 bytes a second it takes most of a minute; in one turn it would hold the disk for that long."""
    clock = ManualClock(1_000_000.0)
    ran: list[tuple[str, str, float]] = []

    class Spying(RecordingObserver):
        def event(self, name: str, fields: Any) -> None:
            ran.append((name, fields["store"], clock.now()))

    manager = managing(clock)
    with (many_secrets(tmp_path / "one", clock, observer=Spying(), hard_delete_bytes_per_second=1_000.0) as one,
          filled(tmp_path / "two", clock, observer=Spying()) as two):
        clock.advance(3_601.0)
        began = clock.now()
        manager.add(one.name, one, policy=LAZY)
        manager.add(two.name, two, policy=EVERYTHING)
        for _ in range(60):
            manager.run_pending()
            clock.advance(1.0)
        assert secrets_on_disk(tmp_path / "one") == 0
        assert next(at - began for name, store, at in ran if name == COMPACTION_DONE and store == "two") == 0.0
        erased = [at - began for name, _, at in ran if name == CONTENTS_ERASED]
        assert len(erased) > 1
        assert erased[-1] > 40.0


def test_a_manager_that_works_on_request_alone_erases_after_what_was_requested(tmp_path: Path) -> None:
    clock = ManualClock(1_000_000.0)
    manager = CompactionManager((OnRequest(),), clock=clock)
    with many_secrets(tmp_path / "one", clock, hard_delete_bytes_per_second=None) as store:
        manager.add(store.name, store, policy=LAZY)
        manager.run_pending()
        assert secrets_on_disk(tmp_path / "one") == 200
        manager.request("one")
        manager.run_pending()
        assert secrets_on_disk(tmp_path / "one") == 0


def test_a_hard_delete_that_the_disk_refuses_is_a_failing_store(tmp_path: Path) -> None:
    clock, observer = ManualClock(1_000_000.0), EventRecorder()
    with_secrets(tmp_path / "one", clock).close()
    counted = FailingFiles()
    with_secrets(tmp_path / "one", clock, files=counted, hard_delete=True).close()
    files = FailingFiles(fail_at=counted.count + 4, errno=errno.EIO)
    with with_secrets(tmp_path / "one", clock, files=files, hard_delete=True) as store:
        manager = managing(clock, observer)
        manager.add(store.name, store, policy=LAZY)
        manager.run_pending()
        assert [name for name, _ in observer.events] == [COMPACTION_FAILING]
        clock.advance(10.0)
        manager.run_pending()
        assert manager.report().to_dicts()[0]["failures"] == 0
        assert secrets_on_disk(tmp_path / "one") == 5


# --------------------------------------------------------------------------------- stores that are closed, long counts

def test_a_store_that_is_closed_is_left_alone_and_has_not_failed(tmp_path: Path) -> None:
    clock, observer = ManualClock(1_000_000.0), EventRecorder()
    manager = managing(clock, observer)
    with filled(tmp_path / "one", clock) as one, filled(tmp_path / "two", clock) as two:
        for store in (one, two):
            manager.add(store.name, store)
        one.close()
        manager.run_pending()
        rows = manager.report().to_dicts()
        assert [(row["state"], row["failures"]) for row in rows] == [("closed", 0), ("waiting", 0)]
        assert "closed" in rows[0]["last"]
        clock.advance(1e6)
        manager.run_pending()
        assert observer.events == []


class Ending(ManualClock):
    """Cancels a budget when somebody waits."""

    budget: Budget | None = None

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        if self.budget is not None:
            self.budget.cancel()


def test_counting_ends_when_it_is_told_to_while_it_waits_for_its_rate(tmp_path: Path) -> None:
    clock = Ending(1_000_000.0)
    with filled(tmp_path / "one", clock, stats_entries_per_second=1) as store:
        budget, began = Budget(clock=clock), clock.monotonic()
        clock.budget = budget
        outcome = store.compact(budget=budget)
        assert isinstance(outcome, Failed)
        assert isinstance(outcome.error, BudgetSpent)
        assert clock.monotonic() - began < 1.0


def test_who_waits_for_another_count_ends_when_it_is_told_to(tmp_path: Path) -> None:
    ended: list[BaseException] = []
    with filled(tmp_path / "one", ManualClock(1_000_000.0)) as store:
        budget = Budget()

        def look() -> None:
            try:
                store.view(budget=budget)
            except BudgetSpent as error:
                ended.append(error)

        looking = threading.Thread(target=look, daemon=True)
        with store.compactions.sensor._counting:  # noqa: SLF001
            budget.cancel()
            looking.start()
            looking.join(60)
        assert [type(error) for error in ended] == [BudgetSpent]


class Closing(ManualClock):
    """Has another thread close a store when somebody waits."""

    store: BlobStore | None = None
    closer: threading.Thread | None = None

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        if self.store is not None and self.closer is None:
            self.closer = threading.Thread(target=self.store.close)
            self.closer.start()
            while not self.store.compactions.ownership.is_ending:
                pass


@pytest.mark.parametrize("bucket_count", [None, 200])
def test_counting_ends_when_the_store_is_closed(bucket_count: int | None, tmp_path: Path) -> None:
    clock, observer = Closing(1_000_000.0), EventRecorder()
    with filled(tmp_path / "one", clock, stats_entries_per_second=1, stats_bucket_count=bucket_count) as store:
        clock.store = store
        manager = managing(clock, observer)
        manager.add(store.name, store)
        manager.run_pending()
        assert clock.monotonic() < 10.0
        assert clock.closer is not None
        clock.closer.join()
        # It may have been asked for its status before it was closed to the end.
        clock.advance(100.0)
        manager.run_pending()
        assert manager.report().to_dicts()[0]["state"] == "closed"
        assert observer.events == []


def many(folder: Path, clock: ManualClock, **changed: Any) -> BlobStore:
    """As many small blobs as take long to look at, half of them deleted."""
    store = opened(folder, clock, capacity_bytes=1 << 22, segment_bytes=1 << 19, durability="interval", **changed)
    for number in range(3000):
        store.put(f"blob {number}", b"x" * 100)
    for number in range(0, 3000, 2):
        store.delete(f"blob {number}")
    clock.advance(100.0)
    store.close_active_segment()
    return store


def test_every_step_asks_the_budget(tmp_path: Path) -> None:
    """Each is ended by a budget that is cancelled, though the clock stands still; then all is done."""
    clock = ManualClock(1_000_000.0)
    with many(tmp_path / "one", clock, hard_delete=True) as store:
        cancelled = Budget()
        cancelled.cancel()
        with pytest.raises(BudgetSpent):
            store.view(budget=cancelled)
        plan = store.plan(EVERYTHING)
        for outcome in (store.compact(plan, budget=cancelled), store.compact(policy=EVERYTHING, budget=cancelled),
                        store.reclaim(budget=cancelled), store.hard_delete(budget=cancelled)):
            assert isinstance(outcome, Failed)
            assert isinstance(outcome.error, BudgetSpent)
        # Not even the first cycle was decided.
        assert store.compaction is None or store.compaction.phase.value == "prepare"
        assert isinstance(store.compact(plan), Done)
        assert isinstance(store.hard_delete(), Done)


class CancellingAt(LocalExecutor):
    """Cancels a budget when everything is copied, before what was copied is noted."""

    def __init__(self, budget: Budget) -> None:
        super().__init__()
        self.budget = budget

    def run(self, tasks: Any, *, budget: Budget | None = None, observer: Observer | None = None) -> Any:
        outcomes = list(super().run(tasks, budget=budget, observer=observer))
        self.budget.cancel()
        return iter(outcomes)


def test_a_budget_that_ends_while_an_index_is_built_wastes_no_copy(tmp_path: Path) -> None:
    clock = ManualClock(1_000_000.0)
    with many(tmp_path / "one", clock) as store:
        plan = store.plan(EVERYTHING)
        budget = Budget()
        outcome = store.compact(plan, budget=budget, executor=CancellingAt(budget))
        assert isinstance(outcome, Failed)
        assert isinstance(outcome.error, BudgetSpent)
        assert budget.spent_bytes > 100_000
        again = Budget()
        resumed = store.resume(budget=again)
        assert isinstance(resumed, Done)
        assert budget.spent_bytes + again.spent_bytes == resumed.stats.copied_bytes
