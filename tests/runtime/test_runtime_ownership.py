# SPDX-License-Identifier: Apache-2.0
"""One piece of work at a time; closing cancels and waits; from inside, on whichever thread, it is refused."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import copy_context

import pytest

from compactlib.errors import BudgetSpent, Busy
from compactlib.executors import Attempt, LocalExecutor, RewriteFailure, RewriteResult
from compactlib.runtime import Budget, Observer, Progress
from compactlib.runtime.ownership import Ownership, Run
from compactlib.testing.interrupts import interruptions


class Asking:
    """A task that asks something on the thread that it runs in."""

    def __init__(self, name: str, ask: Callable[[], object]) -> None:
        self.name = name
        self._ask = ask

    def run(self, attempt: Attempt) -> RewriteResult:
        self._ask()
        return RewriteResult(task=self.name, attempt=attempt.id, files=(), bytes_read=0, bytes_written=0, seconds=0.0)


def in_thread(call: Callable[[], object]) -> None:
    """Call it on a thread that knows nothing of this one."""
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()


def test_a_second_run_is_turned_away_and_the_next_begins() -> None:
    owner = Ownership("the store")
    assert repr(owner) == "<Ownership of the store: free>"
    with owner.begin() as first:
        assert first is not None
        assert "running" in repr(owner)
        with owner.begin() as second:
            assert second is None
        answers: list[object] = []

        def elsewhere() -> None:
            with owner.begin() as third:
                answers.append(third)

        in_thread(elsewhere)
        assert answers == [None]
    assert not owner.is_running
    with owner.begin() as again:
        assert again is not None


def test_each_work_has_a_run_of_its_own_and_reads_are_any_number() -> None:
    owner = Ownership("the store")
    with owner.begin(None, "main") as first, owner.begin(None, "other") as second, owner.begin(None, "main") as third:
        assert first is not None
        assert second is not None
        assert third is None
        with owner.begin(None, None) as read, owner.begin(None, None) as another:
            assert read is not None
            assert another is not None
            assert list(owner.works) == ["main", "other"]
            with pytest.raises(Busy, match="from within its own work"):
                owner.close()
        owner.release(second)
        assert list(owner.works) == ["main"]
    assert not owner.is_running


def test_closing_cancels_the_runs_of_all_works_and_waits_for_each() -> None:
    owner = Ownership("the store")
    runs = [Run(Budget()) for _ in range(4)]
    assert all(map(owner.take, runs, ("main", "other", None, None)))
    closing = threading.Thread(target=owner.close)
    closing.start()
    while not all(run.budget.cancelled for run in runs):
        pass
    for run in runs:
        assert closing.is_alive()
        assert not owner.take(Run(Budget()), "late")
        owner.release(run)
    closing.join()
    assert owner.is_closed


def test_closing_cancels_the_run_waits_for_it_and_lets_nothing_begin() -> None:
    owner, caller = Ownership("the store"), Budget()
    running, closed = threading.Event(), threading.Event()

    def work() -> None:
        with owner.begin(caller) as run:
            assert run is not None
            running.set()
            run.budget.pause()
            with pytest.raises(BudgetSpent):
                run.budget.check()
            assert not closed.is_set()

    thread = threading.Thread(target=work)
    thread.start()
    running.wait()
    owner.close()
    closed.set()
    assert not owner.is_running
    thread.join()
    assert not caller.cancelled
    with owner.begin() as run:
        assert run is None
    owner.close()


def test_ended_lets_work_begin_again_afterwards() -> None:
    owner = Ownership("the store")
    with owner.ended(), owner.begin() as run:
        assert run is None
    with owner.begin() as run:
        assert run is not None


@pytest.mark.parametrize("workers", [1, 3])
def test_closing_from_a_task_is_refused_on_whichever_thread(workers: int) -> None:
    owner = Ownership("the store")
    with owner.begin() as run:
        assert run is not None
        tasks = [Asking(f"task {number}", owner.close) for number in range(5)]
        outcomes = list(LocalExecutor(workers).run(tasks, budget=run.budget))
    assert len(outcomes) == 5
    for outcome in outcomes:
        assert isinstance(outcome, RewriteFailure)
        assert isinstance(outcome.error, Busy)
        assert "the store cannot be closed from within its own work" in str(outcome.error)
    assert not owner.is_closed


def test_closing_from_an_observer_is_refused_even_on_a_thread_of_a_hosts_own() -> None:
    owner = Ownership("the store")
    refused: list[str] = []
    mine: list[bool] = []

    class Closing(Observer):
        def progress(self, progress: Progress) -> None:
            mine.append(owner.is_mine)
            with pytest.raises(Busy) as raised:
                owner.close()
            refused.append(str(raised.value))

    with owner.begin() as run:
        assert run is not None
        told = run.observer(Closing())
        in_thread(lambda: told.progress(Progress("x", 1, 1)))
    assert len(refused) == 1
    assert mine == [True]
    assert not owner.is_mine


def test_another_stores_run_is_not_ones_own() -> None:
    one, other = Ownership("one"), Ownership("other")
    with one.begin(), other.begin():
        assert one.is_mine
        assert other.is_mine
    with one.begin():
        other.close()
        context = copy_context()
    # What remembers the run's context knows of its end.
    assert not context.run(lambda: one.is_mine)
    assert other.is_closed


def test_a_run_that_raises_leaves_the_store_free() -> None:
    owner = Ownership("the store")
    for kind in (RuntimeError, KeyboardInterrupt, SystemExit):
        with pytest.raises(kind), owner.begin():
            raise kind("stop")
        assert not owner.is_running


def test_an_interrupt_anywhere_leaves_no_run_behind_and_nothing_that_keeps_the_next_from_beginning() -> None:
    def begin() -> None:
        with owner.begin() as run:
            assert run is not None
            with owner.begin() as second:
                assert second is None

    def end() -> None:
        with owner.ended():
            pass

    def cancel() -> None:
        with owner.cancels(other):
            pass

    for act in (begin, end, cancel):
        owner, other = Ownership("the store"), Budget()
        for interrupt in interruptions(act, 1_000):
            owner, other = Ownership("the store"), Budget()
            with pytest.raises(KeyboardInterrupt), interrupt:
                act()
            assert not owner.is_running, (act, interrupt.where)
            with owner.begin() as run:
                assert run is not None, (act, interrupt.where)
            owner.close()
            assert not other.cancelled, (act, interrupt.where)
