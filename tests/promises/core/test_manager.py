# SPDX-License-Identifier: Apache-2.0
"""`manager`: the order of turns, the outcomes of a turn, and stores that are added, removed and opened again."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

from compactlib.budget import Budget
from compactlib.clock import ManualClock
from compactlib.errors import BudgetSpent, Busy, Closed, CorruptData, InvalidInput, NotFound, StorageError
from compactlib.manager import CompactionManager, LowSpace, OnRequest, Periodic, disk_of
from compactlib.observer import EventRecorder


@attrs.frozen
class Report:
    is_partial: bool = False
    why: str = ""


class Store:
    """Notes its calls; each does the next thing of a list, or returns a report."""

    def __init__(self, name: str = "", calls: list[str] | None = None) -> None:
        self.name = name
        self.calls: list[str] = [] if calls is None else calls
        self.compacts: list[Any] = []
        self.reclaims: list[Any] = []
        self.arguments: list[dict[str, Any]] = []
        self.is_closed = False

    def _next(self, what: str, does: list[Any], arguments: dict[str, Any]) -> Any:
        self.calls.append(f"{what} {self.name}".strip())
        self.arguments.append(arguments)
        if self.is_closed:
            raise Closed(f"{self.name} was closed; open it again")
        action = does.pop(0) if does else Report()
        if isinstance(action, BaseException):
            raise action
        return action(arguments["budget"]) if callable(action) else action

    def compact(self, *_: Any, **arguments: Any) -> Any:
        return self._next("compact", self.compacts, arguments)

    def reclaim(self, *_: Any, **arguments: Any) -> Any:
        return self._next("reclaim", self.reclaims, arguments)

    def status(self) -> Any:
        if self.is_closed:
            raise Closed("closed")
        return "open"

    def view(self, *_: Any, **named: Any) -> Any:
        return self.status()

    plan = verify = view

    def audit(self) -> None:
        self.status()

    def close(self) -> None:
        self.is_closed = True


class SmallStore(Store):
    free_fraction = 1.0


def managing(clock: ManualClock, *triggers: Periodic | OnRequest | LowSpace, **settings: Any) -> CompactionManager:
    return CompactionManager(triggers or (Periodic(100.0), OnRequest()), retry_seconds=10.0, max_retry_seconds=30.0,
                             clock=clock, **settings)


def row(manager: CompactionManager, number: int = 0) -> dict[str, Any]:
    return manager.report().to_dicts()[number]


# ------------------------------------------------------------------------------------------------------ whose turn


def test_a_store_is_compacted_and_reclaimed_each_period() -> None:
    clock, store = ManualClock(), Store()
    manager = managing(clock)
    manager.add("store", store)
    assert manager.run_pending() == 2
    assert store.calls == ["compact", "reclaim"]
    clock.advance(99)
    assert manager.run_pending() == 0
    assert row(manager)["due_in_seconds"] == 1.0
    clock.advance(1)
    assert manager.run_pending() == 2


def test_the_report_has_the_outcome_of_each_store() -> None:
    store = Store()
    store.compacts, store.reclaims = [Report(why="nothing is dead\nand more")], [Report(why="nothing to reclaim")]
    manager = managing(ManualClock())
    manager.add("store", store)
    manager.run_pending()
    assert "nothing is dead" in row(manager)["last"]
    assert "nothing to reclaim" in row(manager)["last_reclaim"]
    assert "nothing is dead" in str(manager.report())


def test_requests_are_first_and_then_the_longest_due() -> None:
    clock, calls = ManualClock(), list[str]()
    manager = managing(clock)
    for name in ("a", "b", "c"):
        manager.add(name, Store(name, calls))
        manager.run_pending()
        clock.advance(1)
    calls.clear()
    clock.advance(100)
    manager.request("c")
    manager.run_pending()
    assert calls[:3] == ["compact c", "compact a", "compact b"]
    assert sorted(calls[3:]) == ["reclaim a", "reclaim b", "reclaim c"]


def test_without_a_period_only_a_request_counts() -> None:
    clock, store = ManualClock(), Store()
    manager = managing(clock, OnRequest())
    manager.add("store", store)
    clock.advance(1e9)
    assert manager.run_pending() == 0
    assert row(manager)["due_in_seconds"] is None
    manager.request("store")
    assert row(manager)["state"] == "requested"
    assert manager.run_pending() == 2
    assert manager.run_pending() == 0


def test_requests_need_their_trigger_and_a_store() -> None:
    manager = managing(ManualClock(), Periodic())
    with pytest.raises(InvalidInput, match="OnRequest"):
        manager.request("store")
    with pytest.raises(NotFound, match="no store 'store'"):
        managing(ManualClock()).request("store")
    with pytest.raises(NotFound):
        manager.remove("store")


@pytest.mark.parametrize("wrong", [[Periodic(1.0), Periodic(2.0)], ["Periodic"]])
def test_triggers_are_one_of_each_kind(wrong: Any) -> None:
    with pytest.raises(InvalidInput, match="trigger"):
        CompactionManager(wrong)


@pytest.mark.parametrize("make", [lambda: Periodic(0), lambda: LowSpace(1.5), lambda: Periodic(float("nan"))])
def test_times_and_parts_are_in_their_ranges(make: Callable[[], object]) -> None:
    with pytest.raises(InvalidInput):
        make()


def test_low_space_compacts_under_any_triggers_once_for_each_loss() -> None:
    clock, store = ManualClock(), SmallStore()
    manager = managing(clock, OnRequest())
    manager.add("store", store)
    store.free_fraction = 0.13
    assert manager.run_pending() == 0
    store.free_fraction = 0.12
    manager.run_pending()
    assert store.calls == ["compact", "reclaim"]
    manager.run_pending()
    assert len(store.calls) == 2, "nothing was taken since a compaction that has freed nothing"
    store.free_fraction = 0.05
    manager.run_pending()
    assert len(store.calls) == 4
    store.free_fraction = 0.5
    manager.run_pending()
    store.free_fraction = 0.12
    manager.run_pending()
    assert len(store.calls) == 6


def test_a_store_whose_free_space_cannot_be_read_holds_up_no_store(caplog: pytest.LogCaptureFixture) -> None:
    class Remote(Store):
        @property
        def free_fraction(self) -> float:
            raise ConnectionError("no route")

    clock, calls = ManualClock(), list[str]()
    manager = managing(clock)
    manager.add("remote", Remote("remote", calls))
    manager.add("other", Store("other", calls))
    assert manager.run_pending() == 4
    assert sorted(calls) == ["compact other", "compact remote", "reclaim other", "reclaim remote"]
    assert "no route" in caplog.text


def test_little_space_can_be_left_alone() -> None:
    store = SmallStore()
    store.free_fraction = 0.0
    manager = managing(ManualClock(), OnRequest(), LowSpace(fraction=0))
    manager.add("store", store)
    assert manager.run_pending() == 0


def test_disks_work_in_parallel_and_stores_of_one_disk_in_turn() -> None:
    clock = ManualClock()
    manager = managing(clock, OnRequest())
    running, both, at_once = [0], threading.Barrier(2), list[int]()

    def alone(budget: Budget) -> Report:
        running[0] += 1
        at_once.append(running[0])
        running[0] -= 1
        return Report()

    def together(budget: Budget) -> Report:
        both.wait(60)
        return Report()

    stores = {name: Store(name) for name in ("a", "b", "c", "d")}
    for name, store in stores.items():
        store.compacts.append(together if name in ("a", "b") else alone)
        manager.add(name, store, disk=name if name in ("a", "b") else "shared")
    with manager:
        for name in stores:
            manager.request(name)
        manager.wait_until_idle()
    assert at_once == [1, 1]
    assert all(store.calls for store in stores.values())


def test_the_disk_of_a_folder_is_its_device(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    assert disk_of(tmp_path) == disk_of(tmp_path / "sub")
    with pytest.raises(StorageError):
        disk_of(tmp_path / "none")
    store: Any = Store()
    store.folder = str(tmp_path)
    manager = managing(ManualClock())
    manager.add("store", store)
    assert row(manager)["disk"] == disk_of(tmp_path)


# ---------------------------------------------------------------------------------------------- outcomes of a turn


def test_a_failure_is_tried_again_with_a_growing_delay_and_shown() -> None:
    clock, store, other, events = ManualClock(), Store(), Store("other"), EventRecorder()
    manager = managing(clock, observer=events)
    store.compacts = [CorruptData(path="/f", offset=1, expected="a", found="b"), ValueError("v"), ValueError("v"),
                      ValueError("v")]
    manager.add("store", store)
    manager.add("other", other)
    manager.run_pending()
    assert other.calls == ["compact other", "reclaim other"]
    assert (row(manager)["state"], row(manager)["failures"]) == ("failing", 1)
    assert row(manager)["last"].startswith("CorruptData: corrupt data in /f")
    waited = []
    for _ in range(4):
        seconds = row(manager)["due_in_seconds"]
        waited.append(seconds)
        clock.advance(seconds)
        manager.run_pending()
    assert waited == [10, 20, 30, 30]
    assert row(manager)["state"] == "waiting"
    assert (manager.failures, str(manager.last_error)) == (4, "v")
    assert [fields["retry_in_seconds"] for fields in events.named("compaction_failing")] == waited
    assert events.named("compaction_recovered") == [{"work": "store", "lane": "", "failures": 4}]


def test_an_exit_in_a_turn_ends_no_thread_and_passes_through_a_caller() -> None:
    store, other = Store(), Store("other")
    store.compacts = [SystemExit(1), KeyboardInterrupt()]
    with managing(ManualClock(), OnRequest()) as manager:
        for name, each in (("store", store), ("other", other)):
            manager.add(name, each)
            manager.request(name)
        manager.wait_until_idle()
    assert (row(manager)["state"], manager.failures) == ("failing", 1)
    assert other.calls == ["compact other", "reclaim other"]
    manager.request("store")
    with pytest.raises(KeyboardInterrupt):
        manager.run_pending()
    assert manager.run_pending() == 2


@pytest.mark.parametrize("ending", [
    Busy("another compaction runs"), Report(is_partial=True),
    BudgetSpent("cancelled", reason="cancelled", spent_bytes=0),
    BudgetSpent("late", reason="deadline", spent_bytes=0)])
def test_busy_cancelled_and_partial_turns_repeat_at_the_period(ending: Any) -> None:
    clock, store = ManualClock(), Store()
    manager = managing(clock)
    store.compacts = [ending]
    manager.add("store", store)
    manager.run_pending()
    assert (row(manager)["failures"], row(manager)["due_in_seconds"]) == (0, 100.0)


def test_a_budget_of_too_few_bytes_is_a_failure() -> None:
    store = Store()
    store.compacts = [BudgetSpent("bytes", reason="bytes", spent_bytes=0, needed_bytes=10)]
    manager = managing(ManualClock())
    manager.add("store", store)
    manager.run_pending()
    assert row(manager)["failures"] == 1


def test_a_store_is_compacted_with_the_arguments_of_add() -> None:
    store, budgets = Store(), [Budget(total_bytes=7)]
    manager = managing(ManualClock())
    manager.add("store", store, policy="p", executor="e", fence="f", new_budget=lambda: budgets[0])
    manager.run_pending()
    arguments = store.arguments[0]
    assert arguments["budget"].remaining.total_bytes == 7
    assert {name: arguments[name] for name in ("policy", "executor", "fence")} == {
        "policy": "p", "executor": "e", "fence": "f"}
    assert list(store.arguments[1]) == ["budget"]


def test_a_budget_that_cannot_be_made_is_a_failure() -> None:
    manager = managing(ManualClock())
    manager.add("store", Store(), new_budget=lambda: 1 / 0)  # type: ignore[arg-type, return-value]
    manager.run_pending()
    assert row(manager)["last"].startswith("ZeroDivisionError")


def test_a_reclaim_that_always_fails_holds_up_no_compaction() -> None:
    clock, store, recorder = ManualClock(), Store(), EventRecorder()
    store.reclaims = [CorruptData(path="leftover", offset=0, expected="a mark", found="other bytes")] * 4
    manager = managing(clock, observer=recorder)
    manager.add("store", store)
    waits = []
    while store.reclaims:
        manager.run_pending()
        assert store.calls[-2:] == ["compact", "reclaim"]
        assert manager.run_pending() == 0
        waits.append(row(manager)["due_in_seconds"])
        clock.advance(waits[-1])
    assert waits == [10.0, 20.0, 30.0, 30.0]
    assert not recorder.named("compaction_recovered")
    manager.run_pending()
    assert len(recorder.named("compaction_recovered")) == 1
    assert row(manager)["due_in_seconds"] == 100.0


def test_a_reclaim_runs_in_slices_between_turns_of_other_stores() -> None:
    clock, calls, slices = ManualClock(), list[str](), list[float]()
    manager = managing(clock, OnRequest())
    first, second = Store("first", calls), Store("second", calls)

    def slice_of(ends: Any) -> Callable[[Budget], Any]:
        def work(budget: Budget) -> Any:
            before = clock.now()
            assert budget.remaining.deadline is not None
            slices.append(budget.remaining.deadline - before)
            manager.request("second")
            if isinstance(ends, Exception):
                raise ends
            return ends
        return work

    late = BudgetSpent("late", reason="deadline", spent_bytes=0)
    first.reclaims = [slice_of(Report(is_partial=True)), slice_of(late), slice_of(late), slice_of(Report())]
    manager.add("first", first)
    manager.add("second", second)
    manager.request("first")
    manager.run_pending()
    assert calls[:5] == ["compact first", "reclaim first", "compact second", "reclaim first", "compact second"]
    assert calls.count("reclaim first") == 4
    assert slices == [10, 20, 40, 80], "one that is too short for a piece of the work is not repeated for ever"


# ------------------------------------------------------------------------------------------------ stores come and go


def test_a_store_that_is_closed_is_shown_and_left() -> None:
    clock, store = ManualClock(), Store("store")
    manager = managing(clock)
    manager.add("store", store)
    store.is_closed = True
    manager.run_pending()
    assert (row(manager)["state"], row(manager)["failures"]) == ("closed", 0)
    assert "was closed; open it again" in row(manager)["last"]
    clock.advance(1e6)
    assert manager.run_pending() == 0


def test_a_closed_tool_of_the_policy_closes_no_store() -> None:
    store = Store()
    store.compacts = [Closed("the policy's database")]
    manager = managing(ManualClock())
    manager.add("store", store)
    manager.run_pending()
    assert row(manager)["state"] == "failing"


def test_an_opener_opens_the_store_again() -> None:
    clock, opened = ManualClock(), list[Store]()

    def opener() -> Store:
        opened.append(Store(f"{len(opened)}"))
        return opened[-1]

    manager = managing(clock)
    manager.add("store", opener)
    manager.run_pending()
    assert opened[0].calls == ["compact 0", "reclaim 0"]
    opened[0].is_closed = True
    clock.advance(100)
    manager.run_pending()
    assert opened[1].calls == ["compact 1", "reclaim 1"]
    assert row(manager)["failures"] == 0


def test_an_opener_that_fails_is_tried_again() -> None:
    clock, store = ManualClock(), Store()
    ways: list[Callable[[], Store]] = [lambda: store]
    manager = managing(clock)
    manager.add("store", lambda: ways[0]())
    store.is_closed = True
    ways[0] = lambda: [][0]
    manager.run_pending()
    assert row(manager)["last"].startswith("IndexError")
    ways[0] = lambda: store  # which is closed
    clock.advance(10)
    manager.run_pending()
    assert (row(manager)["state"], row(manager)["failures"]) == ("failing", 2)
    other = Store("other")
    ways[0] = lambda: other
    clock.advance(20)
    manager.run_pending()
    assert other.calls == ["compact other", "reclaim other"]


def test_an_object_without_compaction_is_refused() -> None:
    manager = managing(ManualClock())
    for wrong in (object(), object):
        with pytest.raises(InvalidInput, match="has no compact"):
            manager.add("store", wrong)  # type: ignore[arg-type]
    manager.add("store", Store())
    with pytest.raises(InvalidInput, match="already"):
        manager.add("store", Store())


def waiting_for_the_end(begun: threading.Event) -> Callable[[Budget], Any]:
    def work(budget: Budget) -> Any:
        begun.set()
        while True:
            budget.spend(1)
    return work


@pytest.mark.parametrize("own", [None, Budget()])
@pytest.mark.parametrize("end", ["remove", "stop"])
def test_removing_and_stopping_cancel_the_turn_and_wait(own: Budget | None, end: str) -> None:
    store, begun = Store(), threading.Event()
    store.compacts = [waiting_for_the_end(begun)]
    manager = CompactionManager([OnRequest()])
    manager.add("store", store, new_budget=None if own is None else lambda: own)
    manager.start()
    manager.request("store")
    begun.wait()
    assert row(manager)["state"] == "running"
    manager.request("store")  # counts as done by this run
    if end == "stop":
        manager.stop()
        assert row(manager)["state"] == "waiting"
        assert row(manager)["failures"] == 0
    else:
        manager.remove("store")
        assert manager.report().rows == ()
        manager.stop()
    assert store.calls == ["compact"]
    assert own is None or not own.cancelled


def test_stopping_and_removing_from_within_a_turn_is_busy() -> None:
    def work(budget: Budget) -> Report:
        with pytest.raises(Busy, match="cannot wait for its own end"):
            manager.stop()
        with pytest.raises(Busy, match="which called this, is its last"):
            manager.remove("store")
        ended.append(True)
        return Report()

    ended: list[bool] = []

    store = Store()
    store.compacts = [work]
    manager = managing(ManualClock())
    manager.add("store", store)
    manager.run_pending()
    assert ended
    assert manager.report().rows == ()


def test_a_stopped_manager_can_be_started_again() -> None:
    store = Store()
    with CompactionManager([OnRequest()]) as manager:
        manager.add("store", store)
    with manager:
        manager.request("store")
        manager.wait_until_idle()
    assert store.calls == ["compact", "reclaim"]
    manager.remove("store", wait_seconds=float("inf"))


@pytest.mark.parametrize("seconds", [0, -1, float("nan")])
def test_failing_store_is_tried_again_after_a_delay(seconds: float) -> None:
    with pytest.raises(InvalidInput, match="retry_seconds"):
        CompactionManager(retry_seconds=seconds)
