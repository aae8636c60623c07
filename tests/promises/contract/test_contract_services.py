# SPDX-License-Identifier: Apache-2.0
"""Every service of the library keeps `contract.Service`."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from compactlib.budget import Budget
from compactlib.errors import Busy, Closed, CompactlibError
from tests.promises.contract.offered import offered
from tests.promises.contract.services import PATIENCE_SECONDS, Running, ServiceFactory, lasting_threads, made, raising


class Bug(Exception):
    """An error that is not of the library."""


@pytest.fixture(params=offered("SERVICES"))
def running(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Running]:
    factory: ServiceFactory = request.param
    with made(factory, tmp_path / "service") as one:
        yield one


def test_new_service_has_met_nothing(running: Running) -> None:
    assert (running.service.last_error, running.service.failures) == (None, 0)
    running.service.stop()
    assert running.hooks.decided == 0


def test_started_service_works_in_its_own_thread(running: Running) -> None:
    threads: list[threading.Thread] = []
    running.hooks.on_decide = lambda: threads.append(threading.current_thread())
    running.service.start()
    alive = set(threading.enumerate())
    running.service.start()
    assert not lasting_threads(alive)
    running.until(lambda: bool(threads))
    assert threading.current_thread() not in threads


def test_stopped_service_begins_nothing(running: Running) -> None:
    running.service.start()
    running.service.stop()
    running.service.stop()
    decided = running.hooks.decided
    running.wake()
    assert running.hooks.decided == decided
    try:
        running.service.start()
    except Closed:
        return
    running.until(lambda: running.hooks.decided > decided)


def test_with_starts_and_stops(running: Running) -> None:
    with running.service as entered:
        assert entered is running.service
        running.until(lambda: running.hooks.decided > 0)
    decided = running.hooks.decided
    running.wake()
    assert running.hooks.decided == decided


def test_run_pending_works_in_its_caller(running: Running) -> None:
    before, done, threads = set(threading.enumerate()), list[int](), set[threading.Thread]()
    running.hooks.on_decide = lambda: threads.add(threading.current_thread())
    running.until(lambda: any(done), lambda: done.append(running.pending()))
    assert threads == {threading.current_thread()}
    assert running.hooks.worked
    assert not lasting_threads(before)
    assert (running.service.last_error, running.service.failures) == (None, 0)
    running.require_released()


def test_error_of_the_work_is_kept_and_the_service_continues(running: Running) -> None:
    error = Bug("what is unexpected")
    running.hooks.on_decide = raising(error, times=2)
    running.service.start()
    running.until(lambda: running.hooks.decided > 2)
    running.until(lambda: running.service.failures >= 2)
    assert running.service.last_error is error
    running.until(lambda: not running.factory.held(running.service))


def test_run_pending_keeps_the_error_of_its_work(running: Running) -> None:
    error = Bug("what is unexpected")
    running.hooks.on_decide = raising(error)
    running.until(lambda: running.service.failures > 0, running.pending)
    assert (running.service.last_error, running.service.failures) == (error, 1)
    running.require_released()
    decided = running.hooks.decided
    running.until(lambda: running.hooks.decided > decided, running.pending)
    assert running.service.failures == 1


@pytest.mark.parametrize("error", [KeyboardInterrupt("the host's user"), SystemExit("the host's end")])
def test_interrupt_passes_through_run_pending(running: Running, error: BaseException) -> None:
    running.hooks.on_decide = raising(error)
    with pytest.raises(type(error)) as raised:
        running.until(lambda: running.hooks.decided > 0, running.pending)
    assert raised.value is error
    running.require_released()


def test_stop_cancels_running_work(running: Running) -> None:
    budgets: list[Budget] = []

    def work(budget: Budget) -> None:
        budgets.append(budget)
        waiting = threading.Event()
        for _ in range(int(PATIENCE_SECONDS / 0.005)):
            budget.check()
            waiting.wait(0.005)

    running.hooks.on_work = work
    running.service.start()
    running.until(lambda: bool(budgets))
    running.service.stop()
    assert budgets[0].cancelled
    running.require_released()


def test_stop_of_endless_work_is_busy(running: Running) -> None:
    ended, begun = threading.Event(), threading.Event()

    def decide() -> None:
        begun.set()
        ended.wait(2 * PATIENCE_SECONDS)

    running.hooks.on_decide = decide
    try:
        running.service.start()
        running.until(begun.is_set)
        with pytest.raises(Busy):
            running.service.stop(wait_seconds=0.05)
    finally:
        ended.set()
    running.service.stop()


def test_stop_from_within_is_busy(running: Running) -> None:
    answers: list[object] = []

    def stop() -> None:
        try:
            answers.append(running.service.stop())
        except CompactlibError as error:
            answers.append(error)

    running.hooks.on_decide = stop
    running.service.start()
    running.until(lambda: bool(answers))
    assert isinstance(answers[0], Busy)


def test_observer_that_raises_breaks_nothing(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    def event(name: str, /, **fields: Any) -> None:
        raise Bug("the observer's own")

    monkeypatch.setattr(running.observer, "event", event)
    running.hooks.on_decide = raising(Bug("the work's own"))
    running.service.start()
    running.until(lambda: running.hooks.decided > 1)
    assert str(running.service.last_error) == "the work's own"
