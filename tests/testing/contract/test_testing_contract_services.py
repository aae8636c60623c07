# SPDX-License-Identifier: Apache-2.0
"""Planted mistakes of services: each is found by the promise that it breaks, and told with what to do."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from compactlib.errors import Closed, CompactlibError
from compactlib.outcome import Done, Failed, Outcome
from compactlib.runtime import Budget, Observer
from compactlib.runtime.services.work_service import Job
from compactlib.testing import AsyncServiceConformance, PromiseBroken, ServiceConformance
from compactlib.testing.kit import contract_actors
from compactlib.testing.services import (
    async_conformance as async_service_conformance,
    conformance as service_conformance,
)
from tests.harness.lessons import check_lesson
from tests.testing.contract.toy_service import ToyAsyncService, ToyAsyncServices, ToyService, ToyServices


class LeaksItsLease(ToyService):
    @contextlib.contextmanager
    def leased(self) -> Iterator[None]:
        self.leases.append("lease")
        yield
        self.leases.clear()


class StopsEarly(ToyService):
    def stop(self, *, wait_seconds: float = 30.0) -> Done[Any] | Failed:
        outcome = super().stop(wait_seconds=0.0)
        return Done(0) if isinstance(outcome, Failed) else outcome


class StopsLate(ToyService):
    def stop(self, *, wait_seconds: float = 30.0) -> Done[Any] | Failed:
        return super().stop(wait_seconds=30.0)


class DoesNotCancel(ToyService):
    def play(self, job: Job) -> Outcome[None]:
        self._decide()
        self._work(Budget())
        return Done(None)


class SwallowsErrors(ToyService):
    def play(self, job: Job) -> Outcome[None]:
        try:
            return super().play(job)
        except Exception as error:
            return Failed(CompactlibError(str(error)))


class KeepsInterrupts(ToyService):
    def run_pending(self) -> Sequence[Outcome[Any]]:
        try:
            return super().run_pending()
        except (KeyboardInterrupt, SystemExit):
            return ()


class RaisesFromRunPending(ToyService):
    def run_pending(self) -> Sequence[Outcome[Any]]:
        outcomes = super().run_pending()
        if outcomes and isinstance(outcomes[0], Failed):
            raise outcomes[0].error
        return outcomes


class AnswersNothing(ToyService):
    def run_pending(self) -> Any:
        super().run_pending()


class AuditsNothing(ToyService):
    def audit(self) -> None:
        pass


class WaitsForItself(ToyService):
    def stop(self, *, wait_seconds: float = 30.0) -> Done[Any] | Failed:
        ended = threading.Event()

        def end() -> None:
            super(WaitsForItself, self).stop()
            ended.set()

        threading.Thread(target=end, daemon=True).start()
        ended.wait()
        return Done(None)


class StartsAnotherEachTime(ToyService):
    def start(self) -> None:
        if self._service.report().is_active:
            threading.Thread(target=threading.Event().wait, args=(10,), name="another", daemon=True).start()
        super().start()


class WorksInTheCallersThread(ToyService):
    def start(self) -> None:
        self.run_pending()
        super().start()


class LeavesAThread(ToyService):
    def start(self) -> None:
        threading.Thread(target=threading.Event().wait, args=(10,), name="left", daemon=True).start()
        super().start()


class GoesOnAfterItsEnd(ToyService):
    def wake(self) -> None:
        if self._service.is_stopped:
            self._decide()
        super().wake()


class NeverTriesAgain(ToyService):
    def play(self, job: Job) -> Outcome[None]:
        if self.failures:
            raise Closed("it has failed once")
        return super().play(job)


class LetsObserversBreakIt(ToyService):
    def __init__(self, decide: Any, work: Any, observer: Observer) -> None:
        super().__init__(decide, work, Observer())
        self.observer = observer

    def play(self, job: Job) -> Outcome[None]:
        try:
            return super().play(job)
        except Exception as error:
            self.observer.event("toy_failed", {"error": repr(error)})
            raise


MISTAKES: list[tuple[type[ToyService], str, str]] = [
    (LeaksItsLease, "test_run_pending_keeps_what_its_work_raises", "each lease and lock to be released"),
    (LeaksItsLease, "test_interrupts_pass_through_run_pending", "each lease and lock to be released"),
    (StopsEarly, "test_stop_of_work_that_does_not_end_says_so", "never Done before"),
    (StopsLate, "test_stop_of_work_that_does_not_end_says_so", "stop() of work that does not end has not come back"),
    (DoesNotCancel, "test_stop_cancels_what_works", "cancel it in stop()"),
    (SwallowsErrors, "test_what_its_work_raises_is_kept_and_told_and_it_goes_on", "keep, count, log and report it"),
    (SwallowsErrors, "test_run_pending_keeps_what_its_work_raises", "kept in last_error"),
    (KeepsInterrupts, "test_interrupts_pass_through_run_pending", "it to come through"),
    (RaisesFromRunPending, "test_run_pending_keeps_what_its_work_raises", "not raised"),
    (AnswersNothing, "test_run_pending_does_the_work_without_a_thread", "a sequence of Done, Skipped and Failed"),
    (AuditsNothing, "test_an_audit_tells_a_thread_that_has_died", "audit() to raise AuditFailed: not after"),
    (WaitsForItself, "test_stopping_from_within_is_busy", "look whose thread it is"),
    (StartsAnotherEachTime, "test_it_does_its_work_in_its_own_thread", "the second start() has started"),
    (WorksInTheCallersThread, "test_it_does_its_work_in_its_own_thread", "in the thread that called start()"),
    (LeavesAThread, "test_a_with_starts_and_stops", "after stop() these threads go on"),
    (GoesOnAfterItsEnd, "test_stopping_ends_it", "turns after stop()"),
    (NeverTriesAgain, "test_what_its_work_raises_is_kept_and_told_and_it_goes_on", "a third turn after two"),
    (LetsObserversBreakIt, "test_what_observers_raise_breaks_nothing", "telling(observer)"),
]


@pytest.fixture(autouse=True)
def _found_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    """What hangs."""
    for module in (contract_actors, service_conformance, async_service_conformance):
        monkeypatch.setattr(module, "PATIENCE_SECONDS", 1.0)


@pytest.mark.parametrize(("kind", "test", "told"), MISTAKES, ids=lambda each: getattr(each, "__name__", None))
def test_a_mistake_of_a_service_is_found_and_told(kind: type[ToyService], test: str, told: str,
                                                  tmp_path: Path) -> None:
    kit = ServiceConformance()
    kit.make_factory = lambda: ToyServices(kind)  # type: ignore[method-assign]
    with pytest.raises(PromiseBroken) as broken:
        getattr(kit, test)(tmp_path)
    check_lesson(broken.value, test)
    assert told in str(broken.value)


class AsyncStopsEarly(ToyAsyncService):
    async def stop(self, *, wait_seconds: float = 30.0) -> Done[Any] | Failed:
        outcome = await super().stop(wait_seconds=0.0)
        return Done(0) if isinstance(outcome, Failed) else outcome


class AsyncSwallowsErrors(ToyAsyncService):
    async def play(self) -> Done[None]:
        with contextlib.suppress(Exception):
            return await super().play()
        return Done(None)


class AsyncLeaksItsLease(ToyAsyncService):
    async def play(self) -> Done[None]:
        self.leases.append("lease")
        self._decide()
        await self._await()
        self.leases.clear()
        return Done(None)


class AsyncDiesOfErrors(ToyAsyncService):
    async def _begin(self) -> None:
        self._woken.set()
        self._work.spawn(self.turns(), "playing")

    async def turns(self) -> None:
        while True:
            await self.turn()


class AsyncLeavesATask(ToyAsyncService):
    async def _begin(self) -> None:
        await super()._begin()
        self.left = asyncio.get_running_loop().create_task(asyncio.Event().wait())


class AsyncWaitsForItself(ToyAsyncService):
    async def stop(self, *, wait_seconds: float = 30.0) -> Done[Any] | Failed:
        await asyncio.shield(self.ended(asyncio.current_task()))
        return await super().stop(wait_seconds=wait_seconds)

    async def ended(self, task: asyncio.Task[Any] | None) -> None:
        while self.leases:
            await asyncio.sleep(0.001)


class AsyncDoesNotStart(ToyAsyncService):
    async def __aenter__(self) -> Any:
        return self


ASYNC_MISTAKES: list[tuple[type[ToyAsyncService], str, str]] = [
    (AsyncStopsEarly, "test_stop_of_work_that_does_not_end_says_so", "never Done before"),
    (AsyncSwallowsErrors, "test_what_its_work_raises_is_kept_and_told_and_it_goes_on", "failures to be 2: not after"),
    (AsyncSwallowsErrors, "test_run_pending_keeps_what_its_work_raises", "a turn that raises: not after"),
    (AsyncLeaksItsLease, "test_run_pending_keeps_what_its_work_raises", "each lease and lock to be released"),
    (AsyncLeaksItsLease, "test_interrupts_pass_through_run_pending", "its work still holds"),
    (AsyncDiesOfErrors, "test_what_its_work_raises_is_kept_and_told_and_it_goes_on", "a third turn after two"),
    (AsyncLeavesATask, "test_an_async_with_starts_and_stops", "after stop() these tasks go on"),
    (AsyncWaitsForItself, "test_stopping_from_within_is_busy", "look whose task it is before waiting"),
    (AsyncDoesNotStart, "test_an_async_with_starts_and_stops", "a turn inside the `async with`"),
]


@pytest.mark.parametrize(("kind", "test", "told"), ASYNC_MISTAKES, ids=lambda each: getattr(each, "__name__", None))
def test_a_mistake_of_an_async_service_is_found_and_told(kind: type[ToyAsyncService], test: str, told: str,
                                                         tmp_path: Path) -> None:
    kit = AsyncServiceConformance()
    kit.make_factory = lambda: ToyAsyncServices(kind)  # type: ignore[method-assign]
    with pytest.raises(PromiseBroken) as broken:
        getattr(kit, test)(tmp_path)
    check_lesson(broken.value, test)
    assert told in str(broken.value)




def test_a_thread_that_is_about_to_begin_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """`threading.enumerate` names it before it can be joined."""
    begun, about_to_begin = threading.enumerate, [threading.Thread()]
    monkeypatch.setattr(threading, "enumerate", lambda: [*begun(), *about_to_begin])
    monkeypatch.setattr(time, "sleep", lambda _seconds: about_to_begin.clear())
    assert contract_actors.lasting_threads(set(begun())) == []
