"""The manager at work: without threads step by step, with threads on two disks, and on real stores."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

from compactlib.blobstore.compactor import BlobCompactor
from compactlib.blobstore.config import BlobStoreConfig
from compactlib.blobstore.disk import disk_of
from compactlib.blobstore.managed_store import ManagedBlobStore
from compactlib.blobstore.manager import STORE_FAILING, STORE_RECOVERED, CompactionManager
from compactlib.blobstore.manager_model import Accepted, ManagerSettings, Refused, Removed
from compactlib.blobstore.model import Blob
from compactlib.blobstore.plan_history import read_history
from compactlib.blobstore.policies import CompactAll, Hybrid, StatsBased
from compactlib.blobstore.sense import Sensor
from compactlib.blobstore.store import BlobStore
from compactlib.blobstore.triggers import Trigger
from compactlib.budget import Budget
from compactlib.clock import ManualClock
from compactlib.errors import DiskFull, StorageError
from compactlib.observe import Progress, RecordingObserver
from compactlib.outcome import Done, Failed, Outcome, Skipped
from compactlib.testing import FailingFiles

BOTH = ManagerSettings(triggers=frozenset(Trigger), check_seconds=100.0, retry_seconds=10.0, max_retry_seconds=40.0)


def nothing() -> Outcome[Any]:
    return Skipped("nothing is worth it")


@attrs.define(eq=False)
class FakeStore:
    """A store whose runs end as it is told."""

    name: str
    check_ends: Callable[[], Outcome[Any]] = nothing
    resume_ends: Callable[[], Outcome[Any]] = nothing
    calls: list[str] = attrs.Factory(list)
    folder: str = "/"

    def new_budget(self) -> Budget:
        return Budget()

    def resume(self, budget: Budget) -> Outcome[Any]:
        self.calls.append("resume")
        return self.resume_ends()

    def check(self, budget: Budget) -> Outcome[Any]:
        self.calls.append("check")
        return self.check_ends()


def managed(*stores: FakeStore, **changed: Any) -> tuple[CompactionManager, ManualClock, RecordingObserver]:
    clock, observer = ManualClock(), RecordingObserver()
    manager = CompactionManager(attrs.evolve(BOTH, **changed), clock=clock, observer=observer)
    for store in stores:
        manager.add(store, disk="d", enabled=True)
    return manager, clock, observer


# --------------------------------------------------------------------------------------------------- without threads

def test_m3_every_store_is_checked_each_period_and_on_request() -> None:
    stores = [FakeStore(str(number), (lambda: Done("freed 1")) if number else nothing) for number in range(5)]
    manager, clock, _ = managed(*stores)
    manager.run_due()
    clock.advance(100.0)
    manager.run_due()
    assert [store.calls.count("check") for store in stores] == [2] * 5
    assert [store.compactions for store in manager.report().stores] == [0, 2, 2, 2, 2]
    assert manager.request("4") == Accepted("4", "queued")
    assert manager.run_due() == 1
    assert stores[4].calls.count("check") == 3
    manager.audit()


def test_m1_without_triggers_nothing_is_checked_but_interrupted_work_is_resumed() -> None:
    """W10: the system behind the notes leaves an interrupted compaction lying until a trigger is configured."""
    store = FakeStore("a")
    manager, clock, _ = managed(store, triggers=frozenset())
    assert isinstance(manager.request("a"), Refused)
    clock.advance(1e6)
    manager.run_due()
    assert store.calls == ["resume"]
    assert isinstance(manager.request("a"), Refused)
    assert manager.stop()
    assert isinstance(manager.request("a"), Refused)


def test_w9_a_failing_store_is_retried_and_shown_and_told_of() -> None:
    ends: list[Outcome[Any]] = [Failed(StorageError(operation="write", path="/x", errno=5)) for _ in range(2)]
    store = FakeStore("a", lambda: ends.pop() if ends else Done("freed 1"))
    manager, clock, observer = managed(store, FakeStore("b"))
    manager.run_due()
    shown = manager.report().failing
    assert [(each.store, each.failures, each.next_try_in_seconds) for each in shown] == [("a", 1, 10.0)]
    assert shown[0].last_told.startswith("write /x: ")
    clock.advance(10.0)
    manager.run_due()
    clock.advance(20.0)
    manager.run_due()
    assert manager.report().failing == ()
    assert store.calls.count("check") == 3
    assert [(name, fields["failures"]) for name, fields in observer.events] == [
        (STORE_FAILING, 1), (STORE_FAILING, 2), (STORE_RECOVERED, 2)]
    assert [fields["retry_in_seconds"] for name, fields in observer.events if name == STORE_FAILING] == [10.0, 20.0]


def test_an_exception_of_any_kind_is_a_failure_with_its_name_and_not_the_end_of_the_manager() -> None:
    def breaks() -> Outcome[Any]:
        raise RuntimeError("a bug in a policy")

    manager, _, observer = managed(FakeStore("a", breaks), FakeStore("b"))
    manager.run_due()
    report = manager.report()
    assert [each.condition for each in report.stores] == ["failing", "waiting"]
    assert "ended in RuntimeError: a bug in a policy" in report.failing[0].last_told
    assert observer.events[0][1]["error"] == "TaskFailed"


def test_what_cannot_be_resumed_is_not_checked() -> None:
    def refuses() -> Outcome[Any]:
        raise DiskFull(operation="write", path="/x", errno=28)

    store = FakeStore("a", resume_ends=refuses)
    manager, clock, _ = managed(store)
    manager.run_due()
    clock.advance(10.0)
    manager.run_due()
    assert store.calls == ["resume", "resume"]
    store.resume_ends = lambda: Done("resumed")
    assert manager.request("a") == Accepted("a", "queued")
    manager.run_due()
    assert store.calls[2:] == ["resume", "check"]
    assert manager.report().stores[0].last_told == "'resumed'"


def test_m6_and_m7_a_store_is_removed_when_it_is_disabled_and_stop_may_come_first() -> None:
    manager, _, _ = managed(FakeStore("a"))
    assert manager.stop()
    manager.run_due()
    assert isinstance(manager.remove("a"), Refused)
    manager.disable("a")
    assert manager.remove("a") == Removed("a")
    assert manager.report().stores == ()
    manager.audit()


def test_the_disk_of_a_folder_is_its_device(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    assert disk_of(tmp_path) == disk_of(tmp_path / "one")
    with pytest.raises(StorageError, match="stat"):
        disk_of(tmp_path / "none")
    manager = CompactionManager(BOTH, clock=ManualClock())
    manager.add(FakeStore("a", folder=str(tmp_path)))
    assert manager.report().stores[0].disk == disk_of(tmp_path)
    assert "1 disabled" in repr(manager)


# ------------------------------------------------------------------------------------------------------ with threads

def test_disks_work_in_parallel_and_stores_of_one_disk_do_not() -> None:
    """Two stores on two disks meet at a barrier, inside of their checks; a third one shares a disk and comes after."""
    meeting, ended = threading.Barrier(2, timeout=30), threading.Event()
    inside: list[str] = []

    def meet() -> Outcome[Any]:
        meeting.wait()
        return Done("met")

    def last() -> Outcome[Any]:
        inside.append(manager.report().of_store("a").condition)  # type: ignore[union-attr]
        ended.set()
        return Done("last")

    manager = CompactionManager(ManagerSettings(triggers=frozenset(Trigger)))
    manager.add(FakeStore("a", meet), disk="d1", enabled=True)
    manager.add(FakeStore("b", meet), disk="d2", enabled=True)
    manager.add(FakeStore("c", last), disk="d1", enabled=True)
    with manager:
        assert ended.wait(30)
    assert inside == ["waiting"]
    manager.audit()
    assert [store.compactions for store in manager.report().stores] == [1, 1, 1]


def test_m2_a_stopped_manager_does_nothing_and_can_be_started_again() -> None:
    checked = threading.Semaphore(0)

    def told() -> Outcome[Any]:
        checked.release()
        return Skipped("x")

    manager = CompactionManager(ManagerSettings(triggers=frozenset(Trigger)))
    manager.add(FakeStore("a", told), disk="d", enabled=True)
    for _ in range(2):
        manager.start()
        manager.start()
        assert checked.acquire(timeout=30)
        assert manager.stop()
        assert isinstance(manager.request("a"), Refused)
        assert not manager.report().is_active
    assert not checked.acquire(blocking=False)


def test_disabling_a_store_stops_its_run_at_once_and_counts_no_failure() -> None:
    begun, ended = threading.Event(), threading.Event()

    class Endless(FakeStore):
        def check(self, budget: Budget) -> Outcome[Any]:
            begun.set()
            budget.pause()
            try:
                budget.check()
            finally:
                ended.set()
            return Done("it was never cancelled")

    manager = CompactionManager(ManagerSettings(triggers=frozenset(Trigger)))
    manager.add(Endless("a"), disk="d", enabled=True)
    with manager:
        assert begun.wait(30)
        manager.disable("a")
        assert ended.wait(30)
    report = manager.report().stores[0]
    assert (report.last_outcome, report.failures, report.condition) == ("stopped", 0, "disabled")


def test_a_clock_that_jumps_is_noticed_when_the_manager_is_poked() -> None:
    clock, checked = ManualClock(), threading.Semaphore(0)

    def told() -> Outcome[Any]:
        checked.release()
        return Skipped("x")

    manager = CompactionManager(BOTH, clock=clock)
    manager.add(FakeStore("a", told), disk="d", enabled=True)
    with manager:
        assert checked.acquire(timeout=30)
        clock.advance(100.0)
        manager.poke()
        assert checked.acquire(timeout=30)


# ------------------------------------------------------------------------------------------------------ real stores

CONFIG = BlobStoreConfig(capacity_bytes=1 << 16, segment_bytes=1 << 12, journal_max_entries=0, min_used_fraction=0.0,
                         max_blob_bytes=0, deleted_retention_seconds=10.0, ttl_update_buffer_seconds=0.0,
                         compaction_bytes_per_second=None)


def filled(folder: Path, clock: ManualClock, **changed: Any) -> BlobStore:
    """Twelve blobs of 1000 bytes, three in a segment; every other one expires after an hour."""
    store = BlobStore(folder, attrs.evolve(CONFIG, **changed), clock=clock)
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
    manager = CompactionManager(BOTH, clock=clock)
    with filled(tmp_path / "one", clock) as one, filled(tmp_path / "two", clock, stats_bucket_count=200) as two:
        for store in (one, two):
            manager.add(ManagedBlobStore(store), enabled=True)
        manager.run_due()
        for report in manager.report().stores:
            assert (report.last_outcome, report.compactions) == ("skipped", 0)
            assert "is sure to free 1" in report.last_told
        clock.advance(2 * 3600.0)
        manager.run_due()
        assert [report.compactions for report in manager.report().stores] == [1, 1]
        for store in (one, two):
            check_content(store)
            store.audit()
        manager.audit()


def test_c10_a_segment_without_valid_bytes_is_exactly_what_is_taken(tmp_path: Path) -> None:
    clock = ManualClock(1_000_000.0)
    config = attrs.evolve(CONFIG, max_blob_bytes=1067)
    with BlobStore(tmp_path / "one", config, clock=clock) as store:
        for number in range(30):
            store.put(f"blob {number:02}", b"x" * 1000, ttl_seconds=5.0 if number in (12, 13, 14) else None)
        clock.advance(6.0)
        assert len(store.snapshot().segments) == 10
        plan = StatsBased(min_used_fraction=0.0).plan(Sensor(store).view(clock.now()), clock.now())
        assert plan is not None
        assert ([str(name) for name in plan.names], plan.cost_bytes, plan.benefit_segments) == (["4_0"], 0, 1)
        outcome = BlobCompactor(store).compact(plan)
        assert isinstance(outcome, Done)
        assert len(store.snapshot().segments) == 9


def test_property_4_the_segments_that_are_freed_are_at_least_the_plans_benefit(tmp_path: Path) -> None:
    clock = ManualClock(1_000_000.0)
    with filled(tmp_path / "one", clock) as store:
        clock.advance(3601.0)
        plan = StatsBased(min_used_fraction=0.0).plan(Sensor(store).view(clock.now()), clock.now())
        assert plan is not None
        before = len(store.snapshot().segments)
        outcome = BlobCompactor(store).compact(plan)
        assert isinstance(outcome, Done)
        assert before - len(store.snapshot().segments) >= plan.benefit_segments
        assert outcome.stats.copied_bytes == plan.cost_bytes


def test_property_5_what_the_statistics_say_is_what_is_copied(tmp_path: Path) -> None:
    clock = ManualClock(1_000_000.0)
    with filled(tmp_path / "one", clock) as store:
        store.delete("blob 4")
        store.ttl_update("blob 11")
        clock.advance(3601.0)
        store.delete("blob 6")
        view = Sensor(store).view(clock.now())
        plan = CompactAll(min_used_fraction=0.0).plan(view, clock.now())
        assert plan is not None
        outcome = BlobCompactor(store).compact(plan)
        assert isinstance(outcome, Done)
        assert outcome.stats.copied_bytes == plan.cost_bytes == sum(each.valid_bytes for each in view.eligible)


def test_a_disk_that_refuses_any_one_step_is_tried_again_and_nothing_is_lost(tmp_path: Path) -> None:
    failures = 0
    for step in range(1, 40, 5):
        clock, observer, folder = ManualClock(1_000_000.0), RecordingObserver(), tmp_path / str(step)
        filled(folder, clock).close()
        # Files are counted from the first change of the opened store on: opening one makes the same ones each time.
        counted = FailingFiles()
        BlobStore(folder, CONFIG, clock=clock, files=counted).close()
        files = FailingFiles(fail_at=counted.count + step, errno=errno.EIO)
        with BlobStore(folder, CONFIG, clock=clock, files=files) as store:
            manager = CompactionManager(BOTH, clock=clock, observer=observer)
            manager.add(ManagedBlobStore(store), enabled=True)
            clock.advance(3601.0)
            manager.run_due()
            failures += len(manager.report().failing)
            check_content(store)
            clock.advance(10.0)
            manager.run_due()
            report = manager.report().stores[0]
            assert (report.failures, report.compactions) == (0, 1)
            check_content(store)
            store.audit()
    assert failures > 3


def test_a_compaction_that_is_stopped_half_way_is_resumed(tmp_path: Path) -> None:
    """The store is disabled while its first record is copied: at that record it stops, and goes on when enabled."""
    clock = ManualClock(1_000_000.0)

    class Disabling(RecordingObserver):
        def progress(self, progress: Progress) -> None:
            super().progress(progress)
            if len(self.progresses) == 1:
                manager.disable("one")

    observer = Disabling()
    manager = CompactionManager(BOTH, clock=clock, observer=observer)
    filled(tmp_path / "one", clock).close()
    with BlobStore(tmp_path / "one", CONFIG, clock=clock, observer=observer) as store:
        manager.add(ManagedBlobStore(store, policy=CompactAll(min_used_fraction=0.0)), enabled=True)
        clock.advance(3601.0)
        manager.run_due()
        report = manager.report().stores[0]
        assert (report.last_outcome, report.failures, report.compactions) == ("stopped", 0, 0)
        check_content(store)
        manager.enable("one")
        manager.run_due()
        assert manager.report().stores[0].compactions >= 1
        check_content(store)
        store.audit()


def test_a_full_round_is_remembered_over_a_restart(tmp_path: Path) -> None:
    clock = ManualClock(1_000_000.0)
    policy = Hybrid(usual=StatsBased(min_used_fraction=0.0), thorough=CompactAll(min_used_fraction=0.0),
                    every_seconds=7200.0)
    for hours, expected in ((1, None), (2, 1_007_200.0), (3, 1_007_200.0), (4, 1_014_400.0)):
        clock.set_now(1_000_000.0 + hours * 3600.0)
        fresh = not (tmp_path / "one").exists()
        opened = filled(tmp_path / "one", ManualClock(1_000_000.0)) if fresh else None
        if opened is not None:
            Sensor(opened).view(1_000_000.0)
            opened.close()
        with BlobStore(tmp_path / "one", CONFIG, clock=clock) as store:
            manager = CompactionManager(BOTH, clock=clock)
            manager.add(ManagedBlobStore(store, policy=policy), enabled=True)
            manager.run_due()
            history = read_history(tmp_path / "one")
            assert history is not None
            assert (history.since, history.last_full_at) == (1_000_000.0, expected)


def test_a_full_round_that_a_restart_has_interrupted_is_remembered_when_it_is_resumed(tmp_path: Path) -> None:
    clock, budget = ManualClock(1_000_000.0), Budget()

    class Cancelling(RecordingObserver):
        def progress(self, progress: Progress) -> None:
            budget.cancel()

    filled(tmp_path / "one", clock).close()
    clock.advance(3601.0)
    everything = CompactAll(min_used_fraction=0.0)
    with BlobStore(tmp_path / "one", CONFIG, clock=clock, observer=Cancelling()) as store:
        assert isinstance(ManagedBlobStore(store, policy=everything).check(budget), Failed)
    clock.advance(60.0)
    with BlobStore(tmp_path / "one", CONFIG, clock=clock) as store:
        assert isinstance(ManagedBlobStore(store, policy=everything).resume(Budget()), Done)
        check_content(store)
    history = read_history(tmp_path / "one")
    assert history is not None
    assert history.last_full_at == clock.now()


def test_w16_a_full_round_may_close_the_segment_that_is_written_to(tmp_path: Path) -> None:
    clock = ManualClock(1_000_000.0)
    with filled(tmp_path / "one", clock, close_active_segment=True, compaction_policy="compact_all") as store:
        clock.advance(3601.0)
        before = len(store.snapshot().segments)
        assert isinstance(ManagedBlobStore(store).check(Budget()), Done)
        assert len(store.snapshot().segments) < before
        assert store.snapshot().segments[-1].records == 0
        check_content(store)


def test_a_damaged_plan_history_starts_anew_and_says_so(tmp_path: Path) -> None:
    clock, observer = ManualClock(1_000_000.0), RecordingObserver()
    with BlobStore(tmp_path / "one", CONFIG, clock=clock, observer=observer) as store:
        (tmp_path / "one" / "plan_history.json").write_text("{")
        assert Sensor(store).view(clock.now()).history.since == 1_000_000.0
        assert [name for name, _ in observer.events if "history" in name] == ["blobstore_plan_history_damaged"]
        assert read_history(tmp_path / "one") is not None


def test_the_reserve_is_the_largest_record_where_the_configured_one_leaves_no_room(tmp_path: Path) -> None:
    clock = ManualClock(1_000_000.0)
    with filled(tmp_path / "one", clock, max_blob_bytes=4 << 20) as store:
        largest = max(entry.size for info in store.snapshot().segments
                      for entry in store.snapshot().entries_of(info.name))
        assert Sensor(store).view(clock.now()).max_blob_bytes == largest
    with BlobStore(tmp_path / "empty", attrs.evolve(CONFIG, max_blob_bytes=4 << 20), clock=clock) as store:
        assert Sensor(store).view(clock.now()).max_blob_bytes == 0


def test_kept_statistics_of_a_real_store_are_those_of_a_full_count(tmp_path: Path) -> None:
    clock = ManualClock(1_000_000.0)
    with filled(tmp_path / "one", clock, stats_bucket_count=500, stats_bucket_seconds=1.0) as store:
        kept, exact = Sensor(store), Sensor(without_buckets(store))
        for step in range(12):
            if step % 3 == 0:
                store.delete(f"blob {step}")
            clock.advance(7.0)
            expected = exact.view(clock.now())
            assert [each.valid_bytes for each in kept.view(clock.now()).segments] == [
                each.valid_bytes for each in expected.segments]
            plan = CompactAll(min_used_fraction=0.0, skip_valid="all").plan(expected, clock.now())
            if plan is not None and step % 4 == 3:
                assert isinstance(BlobCompactor(store).compact(plan), Done)


def test_a_clock_that_was_set_back_never_makes_deletes_count_too_early(tmp_path: Path) -> None:
    clock = ManualClock(1_000_000.0)
    with filled(tmp_path / "one", clock, stats_bucket_count=500, stats_bucket_seconds=1.0) as store:
        sensor = Sensor(store)
        clock.advance(3700.0)
        assert sensor.view(clock.now()).reference_time == clock.now() - 10.0
        clock.set_now(1_003_650.0)
        assert sensor.view(clock.now()).reference_time == clock.now() - 10.0
        plan = CompactAll(min_used_fraction=0.0).plan(sensor.view(clock.now()), clock.now())
        assert plan is not None
        assert isinstance(BlobCompactor(store).compact(plan), Done)


def without_buckets(store: BlobStore) -> Any:
    """The same store, configured without buckets."""

    class Without:
        config = attrs.evolve(store.config, stats_bucket_count=0)

        def __getattr__(self, name: str) -> Any:
            return getattr(store, name)

    return Without()


