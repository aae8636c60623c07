"""The manager at work: without threads step by step, and with threads on two disks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import copy_context
from pathlib import Path
from typing import Any

import attrs
import pytest

from compactlib.blobstore.disk import disk_of
from compactlib.blobstore.manager import STORE_FAILING, STORE_RECOVERED, CompactionManager
from compactlib.blobstore.manager_model import Accepted, ManagerSettings, Refused, Removed
from compactlib.blobstore.store_compactions import StoreBusy
from compactlib.blobstore.triggers import Trigger
from compactlib.budget import Budget
from compactlib.clock import ManualClock
from compactlib.errors import Busy, DiskFull, StorageError
from compactlib.observe import Observer, RecordingObserver
from compactlib.outcome import Done, Failed, Outcome, Skipped

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


# ------------------------------------------------------------------------------------- whatever is raised by whoever

class Trouble(Exception):
    """Of a host's own."""


def raises(error: BaseException) -> Callable[[], Any]:
    def call() -> Any:
        raise error

    return call


class Shouting(Observer):
    """Raises whatever it is told."""

    def event(self, name: str, fields: object) -> None:
        raise Trouble(name)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit()])
def test_what_ends_a_process_frees_the_disk_and_propagates(error: BaseException) -> None:
    store = FakeStore("a", raises(error))
    manager, clock, _ = managed(store, FakeStore("b"))
    with pytest.raises(type(error)):
        manager.run_due()
    manager.audit()
    assert manager.last_error is error
    assert [each.condition for each in manager.report().stores] == ["failing", "queued"]
    store.check_ends = nothing
    clock.advance(10.0)
    assert manager.run_due() == 2
    assert manager.report().failing == ()
    assert manager.last_error is error
    assert type(error).__name__ in manager.report().last_error


def test_what_is_no_outcome_is_a_failure() -> None:
    manager, _, _ = managed(FakeStore("a", lambda: None), FakeStore("b"))  # type: ignore[arg-type, return-value]
    manager.run_due()
    manager.audit()
    assert "None" in manager.report().failing[0].last_told


def test_a_budget_that_cannot_be_made_is_a_failure() -> None:
    class Broke(FakeStore):
        def new_budget(self) -> Budget:
            raise Trouble("no money")

    other = FakeStore("b")
    manager, _, _ = managed(Broke("a"), other)
    manager.run_due()
    assert "check" in other.calls
    manager.audit()
    assert "no money" in manager.report().failing[0].last_told
    assert isinstance(manager.last_error, Trouble)
    assert manager.report().errors == 1


def test_an_observer_that_raises_does_not_end_the_manager() -> None:
    ended = threading.Event()

    def last() -> Outcome[Any]:
        ended.set()
        return nothing()

    manager = CompactionManager(ManagerSettings(triggers=frozenset(Trigger)), observer=Shouting())
    manager.add(FakeStore("a", raises(Trouble("broken"))), disk="d", enabled=True)
    manager.add(FakeStore("b", last), disk="d", enabled=True)
    with manager:
        assert ended.wait(30)
        manager.audit()
    assert manager.report().failing[0].store == "a"


def test_a_thread_that_cannot_be_begun_is_a_failure_and_the_manager_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    checked, refused = threading.Event(), threading.Event()
    start = threading.Thread.start

    def refusing(thread: threading.Thread) -> None:
        if thread.name.startswith("compact-") and not refused.is_set():
            refused.set()
            raise RuntimeError("can't start new thread")
        start(thread)

    def told() -> Outcome[Any]:
        checked.set()
        return nothing()

    monkeypatch.setattr(threading.Thread, "start", refusing)
    settings = ManagerSettings(triggers=frozenset(Trigger), retry_seconds=0.001)
    with CompactionManager(settings) as manager:
        manager.add(FakeStore("a", told), disk="d", enabled=True)
        assert checked.wait(30)
        manager.audit()
    assert refused.is_set()
    assert isinstance(manager.last_error, RuntimeError)


@pytest.mark.parametrize("threads", [False, True])
def test_stopping_from_the_inside_is_busy(threads: bool) -> None:
    told: list[BaseException] = []
    ended = threading.Event()

    def stops() -> Outcome[Any]:
        def elsewhere() -> None:
            try:
                manager.stop()
            except BaseException as error:
                told.append(error)

        elsewhere()
        thread = threading.Thread(target=copy_context().run, args=(elsewhere,))
        thread.start()
        thread.join()
        ended.set()
        return nothing()

    manager = CompactionManager(ManagerSettings(triggers=frozenset(Trigger)))
    manager.add(FakeStore("a", stops), disk="d", enabled=True)
    if threads:
        with manager:
            assert ended.wait(30)
    else:
        manager.run_due()
    assert [type(error) for error in told] == [Busy, Busy]
    assert manager.stop()
    manager.audit()


def test_a_store_that_is_busy_is_asked_again_soon_and_has_not_failed() -> None:
    ends: list[Outcome[Any]] = [StoreBusy("store a is busy")]
    store = FakeStore("a", lambda: ends.pop() if ends else Done("freed 1"))
    manager, clock, observer = managed(store, FakeStore("b"))
    manager.run_due()
    assert [each.failures for each in manager.report().stores] == [0, 0]
    assert store.calls.count("check") == 1
    clock.advance(9.0)
    assert manager.run_due() == 0
    clock.advance(1.0)
    manager.run_due()
    assert store.calls.count("check") == 2
    assert manager.report().stores[0].last_told == "'freed 1'"
    assert observer.events == []
    manager.audit()
