# SPDX-License-Identifier: Apache-2.0
"""The manager of many stores: without threads step by step, and with threads on two disks."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
import pytest

from compactlib.clock import ManualClock
from compactlib.errors import BudgetSpent, Busy, Closed, DiskFull, InvalidInput, NotFound, StorageError
from compactlib.outcome import Done, Failed, Outcome, Skipped
from compactlib.runtime import Budget, CompactionManager, OnRequest, Periodic, RecordingObserver
from compactlib.runtime.services.agenda import Accepted, Refused, Removed
from compactlib.runtime.services.manager import COMPACTION_FAILING, COMPACTION_RECOVERED, disk_of
from compactlib.testing.interrupts import interruptions
from tests.harness.effort import Effort

BOTH = (Periodic(100.0), OnRequest())


def nothing() -> Outcome[Any]:
    return Skipped("nothing is worth it")


@attrs.define(eq=False)
class FakeStore:
    """A store whose compactions end as it is told."""

    compact_ends: Callable[[], Outcome[Any]] = nothing
    resume_ends: Callable[[], Outcome[Any]] = nothing
    reclaim_ends: Callable[[], Outcome[Any]] = nothing
    calls: list[str] = attrs.Factory(list)
    budgets: list[Budget] = attrs.Factory(list)
    given: list[dict[str, Any]] = attrs.Factory(list)
    folder: str = "/"
    is_closed: bool = False

    def resume(self, *, budget: Budget, **given: Any) -> Outcome[Any]:
        self.calls.append("resume")
        return self.resume_ends()

    def compact(self, *, budget: Budget, **given: Any) -> Outcome[Any]:
        if self.is_closed:
            raise Closed("it is closed")
        self.calls.append("compact")
        self.budgets.append(budget)
        self.given.append(given)
        return self.compact_ends()

    def reclaim(self, *, budget: Budget) -> Outcome[Any]:
        self.calls.append("reclaim")
        return self.reclaim_ends()

    def status(self) -> object:
        if self.is_closed:
            raise Closed("it is closed")
        return "well"


def managed(*stores: FakeStore, triggers: Iterable[Periodic | OnRequest] = BOTH,
            ) -> tuple[CompactionManager, ManualClock, RecordingObserver]:
    clock, observer = ManualClock(), RecordingObserver()
    manager = CompactionManager(triggers, retry_seconds=10.0, max_retry_seconds=40.0, clock=clock, observer=observer)
    for name, store in zip("abcdefgh", stores, strict=False):
        add(manager, name, store)
    return manager, clock, observer


def add(manager: CompactionManager, name: str, store: Any, *, disk: str | None = "d", **how: Any) -> None:
    manager.add(name, store, disk=disk, **how)


# --------------------------------------------------------------------------------------------------- without threads

def test_every_store_is_compacted_each_period_and_on_request() -> None:
    stores = [FakeStore((lambda: Done("freed 1")) if number else nothing) for number in range(5)]
    manager, clock, _ = managed(*stores)
    manager.run_pending()
    clock.advance(100.0)
    manager.run_pending()
    assert [store.calls.count("compact") for store in stores] == [2] * 5
    assert [row.done for row in manager.report().rows] == [0, 2, 2, 2, 2]
    assert manager.request("e") == Accepted("e", "queued")
    assert len(manager.run_pending()) == 1
    assert stores[4].calls.count("compact") == 3


def test_what_is_closed_beside_a_store_closes_no_store() -> None:
    def no_connection() -> Outcome[Any]:
        raise Closed("the policy's own connection is closed")

    store = FakeStore(no_connection)
    manager, clock, _ = managed(store)
    [outcome] = manager.run_pending()[-1:]
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, Closed)
    assert [(row.condition, row.failures) for row in manager.report().rows] == [("failing", 1)]
    store.compact_ends = lambda: Done("freed 1")
    clock.advance(10.0)
    manager.run_pending()
    assert [(row.condition, row.done) for row in manager.report().rows] == [("waiting", 1)]
    store.is_closed = True
    clock.advance(100.0)
    manager.run_pending()
    assert [row.condition for row in manager.report().rows] == ["closed"]


def test_without_triggers_nothing_is_compacted_but_interrupted_work_is_resumed() -> None:
    """Ambry leaves an interrupted compaction lying until a trigger is configured."""
    store = FakeStore()
    manager, clock, _ = managed(store, triggers=())
    assert manager.request("a") == Refused("a", "this manager takes no requests; give it the trigger OnRequest()")
    clock.advance(1e6)
    manager.run_pending()
    assert store.calls == ["resume"]
    assert isinstance(manager.request("a"), Refused)
    assert isinstance(manager.stop(), Done)
    assert isinstance(manager.request("a"), Refused)


def test_one_trigger_alone_is_enough() -> None:
    asked, due = FakeStore(), FakeStore()
    manager, clock, _ = managed(asked, triggers=[OnRequest()])
    manager.run_pending()
    clock.advance(1e9)
    manager.run_pending()
    assert asked.calls == ["resume"]
    assert isinstance(manager.request("a"), Accepted)
    manager.run_pending()
    assert asked.calls == ["resume", "compact", "reclaim"]
    manager, clock, _ = managed(due, triggers=[Periodic(100.0)])
    assert isinstance(manager.request("a"), Refused)
    manager.run_pending()
    clock.advance(100.0)
    manager.run_pending()
    assert due.calls == ["resume", "compact", "reclaim", "compact", "reclaim"]


@pytest.mark.parametrize(("wrong", "message"), [
    (["admin"], "no trigger 'admin'"), ([Periodic()] * 1 + [Periodic(5.0)], "two triggers are Periodic"),
    (7, "the triggers are 7"), ("periodic", "no trigger 'p'"),
])
def test_what_is_no_trigger_is_named(wrong: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        CompactionManager(wrong)


@pytest.mark.parametrize("wrong", [0.0, -1, float("nan"), "weekly", None, True])
def test_a_period_is_above_0(wrong: Any) -> None:
    with pytest.raises(InvalidInput, match="give seconds, more than 0"):
        Periodic(wrong)


def test_what_cannot_be_compacted_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"has no compact\(\)"):
        add(CompactionManager(), "a", object())


def test_a_time_to_wait_may_be_as_long_as_one_likes() -> None:
    assert isinstance(CompactionManager().stop(wait_seconds=10**400), Done)


class Helper:
    """A policy, an executor and a fence, for stores that ask none of them."""

    choose = run = guard = nothing


def test_a_store_is_given_what_it_was_added_with() -> None:
    class Thrifty(FakeStore):
        def new_budget(self) -> Budget:
            return Budget(total_bytes=7)

    stores = FakeStore(), Thrifty(), FakeStore()
    manager = CompactionManager()
    policy = executor = fence = Helper()
    add(manager, "a", stores[0], policy=policy, executor=executor, fence=fence)
    add(manager, "b", stores[1])
    add(manager, "c", stores[2], new_budget=lambda: Budget(total_bytes=8))
    manager.run_pending()
    assert stores[0].given == [{"policy": policy, "executor": executor, "fence": fence}]
    assert [store.budgets[0].remaining.total_bytes for store in stores] == [None, 7, 8]


def test_what_a_reclaim_has_done_is_told_and_its_failure_is_one() -> None:
    ends: list[Outcome[Any]] = [Done("2 files"), Failed(StorageError(operation="unlink", path="/x", errno=5))]
    store = FakeStore(reclaim_ends=lambda: ends.pop(0))
    manager, clock, _ = managed(store)
    manager.run_pending()
    assert manager.report().rows[0].last_told == "nothing is worth it; reclaimed '2 files'"
    clock.advance(100.0)
    manager.run_pending()
    assert manager.report().failing[0].last_told.startswith("unlink /x")


def test_a_failing_store_is_retried_and_shown_and_told_of() -> None:
    ends: list[Outcome[Any]] = [Failed(StorageError(operation="write", path="/x", errno=5)) for _ in range(2)]
    store = FakeStore(lambda: ends.pop() if ends else Done("freed 1"))
    manager, clock, observer = managed(store, FakeStore())
    manager.run_pending()
    shown = manager.report().failing
    assert [(each.work, each.failures, each.next_try_in_seconds) for each in shown] == [("a", 1, 10.0)]
    assert shown[0].last_told.startswith("write /x: ")
    clock.advance(10.0)
    manager.run_pending()
    clock.advance(20.0)
    manager.run_pending()
    assert manager.report().failing == ()
    assert store.calls.count("compact") == 3
    assert [(name, fields["work"], fields["failures"]) for name, fields in observer.events] == [
        (COMPACTION_FAILING, "a", 1), (COMPACTION_FAILING, "a", 2), (COMPACTION_RECOVERED, "a", 2)]
    assert [fields["retry_in_seconds"] for name, fields in observer.events if name == COMPACTION_FAILING] == [
        10.0, 20.0]
    # An error of the library's own is no surprise.
    assert (manager.failures, manager.last_error) == (0, None)


def test_an_exception_of_any_kind_is_a_failure_with_its_name_and_not_the_end_of_the_manager() -> None:
    def breaks() -> Outcome[Any]:
        raise RuntimeError("a bug in a policy")

    manager, _, observer = managed(FakeStore(breaks), FakeStore())
    manager.run_pending()
    report = manager.report()
    assert [each.condition for each in report.rows] == ["failing", "waiting"]
    assert "ended in RuntimeError: a bug in a policy" in report.failing[0].last_told
    assert observer.events[0][1]["error"] == "TaskFailed"
    assert isinstance(manager.last_error, RuntimeError)


def test_what_cannot_be_resumed_is_not_compacted() -> None:
    def refuses() -> Outcome[Any]:
        raise DiskFull(operation="write", path="/x", errno=28)

    store = FakeStore(resume_ends=refuses)
    manager, clock, _ = managed(store, triggers=[OnRequest()])
    manager.run_pending()
    clock.advance(10.0)
    manager.run_pending()
    assert store.calls == ["resume", "resume"]
    store.resume_ends = lambda: Done("resumed")
    clock.advance(20.0)
    manager.run_pending()
    assert manager.report().rows[0].last_told == "'resumed'"


def test_a_store_of_which_one_name_is_taken_is_not_added_at_all() -> None:
    class Sliced(FakeStore):
        slices = SimpleNamespace(what="hard delete")

    manager, *_ = managed()
    add(manager, "a (hard delete)", FakeStore())
    with pytest.raises(InvalidInput, match=r"there is work 'a \(hard delete\)' already"):
        add(manager, "a", Sliced())
    assert [row.work for row in manager.report().rows] == ["a (hard delete)"]
    add(manager, "a", FakeStore())


def test_a_store_is_removed_when_it_is_disabled_and_stop_may_come_first() -> None:
    manager, _, _ = managed(FakeStore())
    assert isinstance(manager.stop(), Done)
    with manager:
        assert isinstance(manager.remove("a"), Refused)
        manager.disable("a")
        manager.wait_until_idle()
        assert manager.remove("a") == Removed("a")
    assert manager.report().rows == ()


def test_the_disk_of_a_folder_is_its_device(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    assert disk_of(tmp_path) == disk_of(tmp_path / "one")
    with pytest.raises(StorageError, match="stat"):
        disk_of(tmp_path / "none")
    manager = CompactionManager(clock=ManualClock())
    add(manager, "a", FakeStore(folder=str(tmp_path)), disk=None, enabled=False)
    assert manager.report().rows[0].lane == disk_of(tmp_path)
    assert "1 disabled" in repr(manager)


def test_a_store_that_is_busy_is_asked_again_soon_and_has_not_failed() -> None:
    ends: list[Outcome[Any]] = [Skipped("somebody else is at it", is_busy=True)]
    store = FakeStore(lambda: ends.pop() if ends else Done("freed 1"))
    manager, clock, observer = managed(store, FakeStore())
    manager.run_pending()
    assert [each.failures for each in manager.report().rows] == [0, 0]
    assert store.calls == ["resume", "compact"]
    clock.advance(9.0)
    assert manager.run_pending() == []
    clock.advance(1.0)
    manager.run_pending()
    assert store.calls.count("compact") == 2
    assert manager.report().rows[0].last_told == "'freed 1'"
    assert observer.events == []


@pytest.mark.parametrize("under_it", [False, True])
def test_a_store_that_is_closed_is_left_alone_until_it_is_opened_and_has_not_failed(under_it: bool) -> None:
    def closes() -> Outcome[Any]:
        store.is_closed = True
        return Failed(StorageError(operation="write", path="/x", errno=5))

    store = FakeStore(closes if under_it else nothing, is_closed=not under_it)
    manager, clock, observer = managed(store, FakeStore())
    manager.run_pending()
    assert [(each.condition, each.failures) for each in manager.report().rows] == [("closed", 0), ("waiting", 0)]
    assert "closed" in manager.report().rows[0].last_told
    clock.advance(1e6)
    manager.run_pending()
    assert observer.events == []
    store.is_closed, store.compact_ends = False, nothing
    manager.set_open("a", True)
    manager.run_pending()
    assert manager.report().rows[0].condition == "waiting"


def test_a_budget_that_is_spent_is_no_failure_and_the_next_turn_goes_on() -> None:
    spent = Budget(total_bytes=0)

    def spends() -> Outcome[Any]:
        try:
            spent.spend(1)
        except BudgetSpent as error:
            return Failed(error, changed="partly")
        return Done("never")

    store = FakeStore(spends)
    manager, clock, observer = managed(store)
    outcomes = manager.run_pending()
    assert isinstance(outcomes[-1], Failed)
    assert manager.run_pending() == []
    assert (manager.report().rows[0].last_ending, manager.report().failing, observer.events) == ("busy", (), [])
    clock.advance(10.0)
    store.compact_ends = lambda: Done("the rest")
    manager.run_pending()
    assert manager.report().rows[0].last_told == "'the rest'"


def test_a_budget_that_is_never_enough_is_a_failure_that_is_told_from_the_second_time_on() -> None:
    """One that is spent without that the store knows of any that suffices goes on: it may have got somewhere."""
    def spends(needed: int | None) -> Outcome[Any]:
        return Failed(BudgetSpent("give more", reason="bytes", spent_bytes=0, needed_bytes=needed))

    poor, slow = FakeStore(lambda: spends(9)), FakeStore(lambda: spends(None))
    manager, clock, observer = managed(poor, slow)
    manager.run_pending()
    assert (manager.report().failing, observer.events) == ((), [])
    clock.advance(10.0)
    manager.run_pending()
    clock.advance(10.0)
    manager.run_pending()
    assert [(name, fields["work"], fields["error"], fields["message"], fields["failures"])
            for name, fields in observer.events] == [(COMPACTION_FAILING, "a", "BudgetSpent", "give more", number)
                                                     for number in (1, 2)]
    assert [(each.work, each.failures) for each in manager.report().failing] == [("a", 2)]
    assert manager.last_error is None
    poor.compact_ends = lambda: Done("with more")
    clock.advance(20.0)
    manager.run_pending()
    assert observer.events[-1][0] == COMPACTION_RECOVERED
    poor.compact_ends = lambda: spends(9)
    clock.advance(200.0)
    manager.run_pending()
    assert manager.report().failing == ()


def test_what_a_policy_raises_is_an_error_that_nobody_expects_whatever_its_class() -> None:
    def chooses() -> Outcome[Any]:
        raise InvalidInput("the policy lost its table")

    manager, _, observer = managed(FakeStore(chooses))
    assert [type(outcome) for outcome in manager.run_pending()] == [Skipped, Failed]
    assert isinstance(manager.last_error, InvalidInput)
    assert manager.failures == 1
    assert [(name, fields["error"], fields["message"]) for name, fields in observer.events] == [
        (COMPACTION_FAILING, "InvalidInput", "the policy lost its table")]
    assert manager.report().failing[0].failures == 1


def test_a_budget_that_cannot_be_made_is_a_failure() -> None:
    class Broke(FakeStore):
        def new_budget(self) -> Budget:
            raise ZeroDivisionError("no money")

    other = FakeStore()
    manager, _, _ = managed(Broke(), other)
    manager.run_pending()
    assert "compact" in other.calls
    assert "no money" in manager.report().failing[0].last_told
    assert isinstance(manager.last_error, ZeroDivisionError)
    assert manager.report().failures == 1


# ------------------------------------------------------------------------------------------------------ with threads

def test_disks_work_in_parallel_and_stores_of_one_disk_do_not() -> None:
    """Two stores on two disks meet at a barrier, inside of their compactions; a third one shares a disk, after them."""
    meeting, ended = threading.Barrier(2, timeout=30), threading.Event()
    seen: list[str] = []

    def meet() -> Outcome[Any]:
        meeting.wait()
        return Done("met")

    def last() -> Outcome[Any]:
        row = manager.report().row("a")
        assert row is not None
        seen.append(row.condition)
        ended.set()
        return Done("last")

    manager = CompactionManager()
    add(manager, "a", FakeStore(meet), disk="d1")
    add(manager, "b", FakeStore(meet), disk="d2")
    add(manager, "c", FakeStore(last), disk="d1")
    with manager:
        assert ended.wait(30)
        manager.wait_until_idle()
    assert seen == ["waiting"]
    assert [row.done for row in manager.report().rows] == [1, 1, 1]


def test_a_stopped_manager_does_nothing_and_can_be_started_again() -> None:
    compacted = threading.Semaphore(0)

    def told() -> Outcome[Any]:
        compacted.release()
        return Skipped("x")

    manager = CompactionManager()
    add(manager, "a", FakeStore(told))
    for _ in range(2):
        manager.start()
        manager.start()
        assert compacted.acquire(timeout=30)
        assert isinstance(manager.stop(), Done)
        assert isinstance(manager.request("a"), Refused)
        assert not manager.report().is_active
    assert not compacted.acquire(blocking=False)


@pytest.mark.parametrize("own", [False, True])
def test_disabling_a_store_stops_its_run_at_once_and_counts_no_failure(own: bool) -> None:
    """Also where the store makes its own budgets."""
    begun, ended = threading.Event(), threading.Event()

    class Endless(FakeStore):
        def compact(self, *, budget: Budget, **given: Any) -> Outcome[Any]:
            begun.set()
            budget.pause()
            try:
                budget.check()
            finally:
                ended.set()
            return Done("it was never cancelled")

    manager = CompactionManager()
    add(manager, "a", Endless(), new_budget=Budget if own else None)
    with manager:
        assert begun.wait(30)
        manager.disable("a")
        assert ended.wait(30)
    row = manager.report().rows[0]
    assert (row.last_ending, row.failures, row.condition) == ("stopped", 0, "disabled")


def test_stopping_from_within_a_store_is_busy() -> None:
    told: list[Busy] = []

    def stops() -> Outcome[Any]:
        try:
            manager.stop()
        except Busy as error:
            told.append(error)
        return nothing()

    manager, _, _ = managed(FakeStore(stops))
    manager.run_pending()
    assert len(told) == 1
    assert isinstance(manager.stop(), Done)


def test_an_interrupt_while_a_store_is_added_or_removed_leaves_neither_half(effort: Effort) -> None:
    store = FakeStore()
    slices = SimpleNamespace(what="checks", run=lambda **_: (nothing(), 1.0), reclaim=store.reclaim)
    in_slices = SimpleNamespace(compact=store.compact, reclaim=store.reclaim, status=store.status, slices=slices)

    def change(manager: CompactionManager) -> None:
        add(manager, "b", in_slices)
        manager.remove("b")
        manager.remove("a")

    for interrupted in interruptions(lambda: change(managed(FakeStore())[0]), effort(200, 1_000)):
        manager, clock, _ = managed(FakeStore())
        with interrupted, contextlib.suppress(KeyboardInterrupt):
            change(manager)
        clock.advance(100.0)
        manager.run_pending()
        assert manager.last_error is None, interrupted.where
        for name in "ab":
            with contextlib.suppress(NotFound):
                manager.disable(name)
            with contextlib.suppress(NotFound):
                assert isinstance(manager.remove(name), Removed)
            add(manager, name, FakeStore())
        manager.run_pending()
        assert [row.work for row in manager.report().rows] == ["a", "b"], interrupted.where
