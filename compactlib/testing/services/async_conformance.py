# SPDX-License-Identifier: Apache-2.0
"""What every `contract.AsyncService` has to do, as tests that any implementation can inherit.

    from compactlib.testing import AsyncServiceFactory
    from compactlib.testing.services.async_conformance import AsyncServiceConformance

    class MyNodes(AsyncServiceFactory):
        async def make(self, folder, hooks, *, observer):
            return MyNode(decide=hooks.decides, work=hooks.awaits, observer=observer)

    class TestMyNode(AsyncServiceConformance):
        def make_factory(self):
            return MyNodes()

pytest collects the inherited methods; without pytest, `check_async_service` runs them one after the other. Each test
runs an event loop of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from compactlib.errors import Busy, Closed, CompactlibError
from compactlib.outcome import Done, Failed, Skipped
from compactlib.runtime.observe import RecordingObserver
from compactlib.testing.kit.conformance import ConformanceKit, Mismatch, run_kit, same, shown
from compactlib.testing.kit.contract_actors import PATIENCE_SECONDS, asserts_of
from compactlib.testing.services.conformance import Bug, raising
from compactlib.testing.services.factory import AsyncServiceFactory, ServiceHooks

_LOOK_SECONDS = 0.005
_SHORT_SECONDS = 0.05


@attrs.frozen
class AsyncRunning:
    """A service that a check has made.

    Attributes:
        service: what is checked.
        hooks: in its work.
        observer: is notified.
        factory: knows it.
    """

    service: Any
    hooks: ServiceHooks
    observer: RecordingObserver
    factory: AsyncServiceFactory

    async def wake(self) -> None:
        """Wake it; one that was stopped may say so."""
        with contextlib.suppress(Closed):
            await self.factory.wake(self.service)

    async def until(self, is_so: Callable[[], bool], what: str,
                    meanwhile: Callable[[], Awaitable[object]] | None = None) -> None:
        """Wake it until something is so.

        Raises:
            Mismatch: it never is.
        """
        for _ in range(int(PATIENCE_SECONDS / _LOOK_SECONDS)):
            if is_so():
                return
            await self.wake()
            if meanwhile is not None:
                await meanwhile()
            await asyncio.sleep(_LOOK_SECONDS)
        raise Mismatch(f"{what}: not after {PATIENCE_SECONDS:.0f} seconds; last_error is {self.service.last_error!r}",
                       "it to happen soon")

    async def pending(self) -> Sequence[Any]:
        """What `run_pending` answers once it was woken: a sequence of outcomes.

        Raises:
            Mismatch: it is none.
        """
        await self.wake()
        outcomes = await self.service.run_pending()
        if not isinstance(outcomes, Sequence) or not all(isinstance(each, Done | Skipped | Failed)
                                                         for each in outcomes):
            raise Mismatch(f"run_pending() answered {shown(outcomes)}", "a sequence of Done, Skipped and Failed")
        return outcomes

    async def let_go(self, when: str) -> None:
        """Its work holds nothing.

        Raises:
            Mismatch: it does.
        """
        held = list(await self.factory.held(self.service))
        if held:
            raise Mismatch(f"{when} its work still holds {shown(held)}", "each lease and lock to be released")

    async def stopped(self, when: str) -> None:
        """Stop it, and look whether it has ended.

        Raises:
            Mismatch: it has not.
        """
        outcome = await _in_time(self.service.stop(), f"stop() {when}")
        if not isinstance(outcome, Done):
            raise Mismatch(f"stop() {when}: {outcome!r}", "Done")


class AsyncServiceConformance(ConformanceKit):
    """Inherit in a test class, say how services are made, and pytest finds the rest."""

    def make_factory(self) -> AsyncServiceFactory:
        """What is to be tested."""
        raise NotImplementedError("say which services are to be tested: make_factory returns an AsyncServiceFactory")

    @contextlib.asynccontextmanager
    async def made(self, folder: Path) -> AsyncIterator[AsyncRunning]:
        """A service that was not started; at the end it is stopped, and no task of its is left."""
        factory, hooks, observer = self.make_factory(), ServiceHooks(), RecordingObserver()
        before = asyncio.all_tasks()
        running = AsyncRunning(await factory.make(folder, hooks, observer=observer), hooks, observer, factory)
        try:
            yield running
        except BaseException:
            with contextlib.suppress(Exception):
                await _in_time(running.service.stop(), "stop()")
                await factory.release(running.service)
            raise
        await running.stopped("at the end")
        await running.let_go("after stop()")
        await factory.release(running.service)
        for _ in range(10):
            await asyncio.sleep(0)
        left = asyncio.all_tasks() - before
        assert not left, f"after stop() these tasks go on: {left}"

    def test_a_new_service_has_met_nothing(self, tmp_path: Path) -> None:
        """`last_error` is `None`, `failures` is 0, an audit is content.

        To do: keep what was raised last and how often, and nothing else, as `AsyncWork` of
        compactlib.runtime.services.async_service does.
        """
        async def check() -> None:
            async with self.made(tmp_path) as running:
                same((running.service.last_error, running.service.failures), (None, 0))
                same(running.service.audit(), None)
                asserts = asserts_of(type(running.service).audit)
                assert not asserts, f"audit() has `{asserts[0]}`, which says nothing under python -O; raise AuditFailed"

        _run(check())

    def test_it_does_its_work_by_itself(self, tmp_path: Path) -> None:
        """Once it is started, in tasks of its own; starting again starts nothing more.

        To do: keep the tasks, and return from start() if they are there.
        """
        async def check() -> None:
            async with self.made(tmp_path) as running:
                await running.service.start()
                tasks = asyncio.all_tasks()
                await running.service.start()
                more = asyncio.all_tasks() - tasks
                assert not more, f"the second start() has started {more}"
                await running.until(lambda: running.hooks.decided > 0, "a turn after start()")
                running.service.audit()

        _run(check())

    def test_stopping_ends_it(self, tmp_path: Path) -> None:
        """Nothing begins any more; stopping again, or without a start, is `Done`.

        To do: answer Done whenever nothing runs any more, and let no wake-up begin anything after stop().
        """
        async def check() -> None:
            async with self.made(tmp_path) as running:
                await running.stopped("without start()")
                same(running.hooks.decided, 0)
            (tmp_path / "again").mkdir()
            async with self.made(tmp_path / "again") as running:
                await running.service.start()
                await running.stopped("after start()")
                await running.stopped("again")
                decided = running.hooks.decided
                await running.wake()
                running.service.audit()
                same(running.hooks.decided, decided, case="turns after stop()")

        _run(check())

    def test_an_async_with_starts_and_stops(self, tmp_path: Path) -> None:
        """Entering it is `start()`, leaving it is `stop()`.

        To do: return self from __aenter__, after start(); await stop() in __aexit__.
        """
        async def check() -> None:
            async with self.made(tmp_path) as running:
                async with running.service as entered:
                    assert entered is running.service, f"`async with` gives {entered!r}"
                    await running.until(lambda: running.hooks.decided > 0, "a turn inside the `async with`")
                decided = running.hooks.decided
                await running.wake()
                same(running.hooks.decided, decided, case="turns after the `async with`")

        _run(check())

    def test_run_pending_does_the_work_and_answers(self, tmp_path: Path) -> None:
        """What is due is done before it returns, with an outcome for each piece of work.

        To do: let the tasks and run_pending() await the same method, which answers outcomes.
        """
        async def check() -> None:
            async with self.made(tmp_path) as running:
                outcomes: list[Any] = []

                async def pend() -> None:
                    outcomes.extend(await running.pending())

                await running.until(lambda: bool(outcomes), "an outcome of run_pending()", pend)
                assert running.hooks.decided, f"nothing was decided: {outcomes}"
                same((running.service.last_error, running.service.failures), (None, 0))
                await running.let_go("after run_pending()")

        _run(check())

    def test_what_its_work_raises_is_kept_and_told_and_it_goes_on(self, tmp_path: Path) -> None:
        """`last_error` has it, `failures` counts it, an event reports it, and the work is tried again.

        To do: catch Exception around each turn, keep, count, log and report it, and take the next turn after a growing
        delay; release what was held in a `finally`. compactlib.runtime.services.async_service.AsyncWork does.
        """
        async def check() -> None:
            async with self.made(tmp_path) as running:
                error = Bug("what is unexpected")
                running.hooks.on_decide = raising(error, times=2)
                await running.service.start()
                await running.until(lambda: running.hooks.decided > 2, "a third turn after two that raised")
                await running.until(lambda: running.service.failures >= 2, "failures to be 2")
                same(running.service.last_error, error)
                if not any("Bug" in "".join(map(str, fields.values())) for _, fields in running.observer.events):
                    raise Mismatch(f"events: {shown([name for name, _ in running.observer.events])}",
                                   "an event with the class of the error among its fields")
                running.service.audit()

        _run(check())

    def test_run_pending_keeps_what_its_work_raises(self, tmp_path: Path) -> None:
        """It answers all the same; the next call tries again.

        To do: let run_pending() treat errors as the tasks do: kept in last_error, counted, reported, not raised.
        """
        async def check() -> None:
            async with self.made(tmp_path) as running:
                error = Bug("what is unexpected")
                running.hooks.on_decide = raising(error, times=1)
                await running.until(lambda: running.service.failures > 0, "a turn that raises", running.pending)
                same((running.service.last_error, running.service.failures), (error, 1))
                await running.let_go("after a turn that raised")
                decided = running.hooks.decided
                await running.until(lambda: running.hooks.decided > decided,
                                    "run_pending() trying again after a turn that raised", running.pending)
                same(running.service.failures, 1)

        _run(check())

    def test_interrupts_pass_through_run_pending(self, tmp_path: Path) -> None:
        """`KeyboardInterrupt` and `SystemExit` propagate, out of the event loop, and release what the work held.

        To do: catch Exception, never BaseException; release in `finally`.
        """
        for number, error in enumerate((KeyboardInterrupt("the host's user"), SystemExit("the host's end"))):
            (tmp_path / f"{number}").mkdir()
            held: list[object] = []

            async def check(error: BaseException = error, number: int = number, held: list[object] = held) -> None:
                factory, hooks = self.make_factory(), ServiceHooks()
                service: Any = await factory.make(tmp_path / f"{number}", hooks, observer=RecordingObserver())
                running = AsyncRunning(service, hooks, RecordingObserver(), factory)
                hooks.on_decide = raising(error, times=1)
                try:
                    await running.until(lambda: hooks.decided > 1, "", running.pending)
                finally:
                    held.extend(await factory.held(service))
                    hooks.on_decide = lambda: None
                    await service.stop()
                    await factory.release(service)

            found: object = None
            try:
                _run(check())
            except (KeyboardInterrupt, SystemExit) as raised:
                found = raised
            if found is not error and repr(found) != repr(error):
                raise Mismatch(f"{error!r} from its work: run_pending() went on", "it to come through")
            assert not held, f"after {error!r} its work still holds {held}"

    def test_stop_cancels_what_waits(self, tmp_path: Path) -> None:
        """Work that waits is cancelled, and stop is `Done`.

        To do: cancel the tasks in stop(), and wait for their end.
        """
        async def check() -> None:
            async with self.made(tmp_path) as running:
                if not running.factory.has_wait:
                    return
                cancelled: list[str] = []

                async def wait() -> None:
                    try:
                        await asyncio.Event().wait()
                    finally:
                        cancelled.append("ended")

                running.hooks.on_await = wait
                await running.service.start()
                await running.until(lambda: running.hooks.worked > 0, "work to begin")
                await running.stopped("while its work waits")
                assert cancelled, "stop() came back, and the work that waits has not ended"
                await running.let_go("after stop()")

        _run(check())

    def test_stop_of_work_that_does_not_end_says_so(self, tmp_path: Path) -> None:
        """It is `Failed(Busy)` when `wait_seconds` have passed; once the work has ended, stopping again is `Done`.

        To do: wait for the tasks for so long, and answer Failed(Busy(...)) if one still goes on; never Done before.
        """
        async def check() -> None:
            async with self.made(tmp_path) as running:
                if not running.factory.has_wait:
                    return
                opened = asyncio.Event()

                async def ignore() -> None:
                    while not opened.is_set():
                        with contextlib.suppress(asyncio.CancelledError):
                            await opened.wait()

                running.hooks.on_await = ignore
                try:
                    await running.service.start()
                    await running.until(lambda: running.hooks.worked > 0, "work to begin")
                    outcome = await _in_time(running.service.stop(wait_seconds=_SHORT_SECONDS), "stop()")
                    if not isinstance(outcome, Failed) or not isinstance(outcome.error, Busy):
                        raise Mismatch(f"stop() while its work does not end: {outcome!r}", "Failed(Busy)")
                finally:
                    opened.set()
                await running.stopped("once its work has ended")

        _run(check())

    def test_stopping_from_within_is_busy(self, tmp_path: Path) -> None:
        """Its own work cannot wait for its own end: `Busy` is raised, nothing hangs, and it ends all the same.

        To do: look whose task it is before waiting (AsyncWork.is_mine), and raise Busy.
        """
        async def check() -> None:
            async with self.made(tmp_path) as running:
                if not running.factory.has_wait:
                    return
                answers: list[object] = []

                async def stop() -> None:
                    try:
                        answers.append(await running.service.stop())
                    except CompactlibError as error:
                        answers.append(error)

                running.hooks.on_await = stop
                await running.service.start()
                await running.until(lambda: bool(answers), "work that stops the service")
                if not isinstance(answers[0], Busy):
                    raise Mismatch(f"stop() from within its work: {answers[0]!r}", "Busy to be raised")
                await running.stopped("from outside, after it was stopped from within")

        _run(check())

    def test_what_observers_raise_breaks_nothing(self, tmp_path: Path) -> None:
        """Watching a service breaks nothing.

        To do: notify through compactlib.runtime.observe.telling(observer).
        """
        async def check() -> None:
            async with self.made(tmp_path) as running:

                def event(name: str, fields: Mapping[str, Any]) -> None:
                    raise Bug("the observer's own")

                running.observer.event = event  # type: ignore[method-assign]
                running.hooks.on_decide = raising(Bug("the work's own"), times=1)
                await running.service.start()
                await running.until(lambda: running.hooks.decided > 1,
                                    "a turn after one whose event the observer refused")
                same(str(running.service.last_error), "the work's own")

        _run(check())


def check_async_service(factory: AsyncServiceFactory, folder: Path) -> list[str]:
    """Run the whole suite without pytest, and outside of any event loop; the names of the tests that were passed.

    Args:
        factory: makes services of one kind.
        folder: an empty folder that exists; each test gets a folder of its own inside.

    Raises:
        PromiseBroken: the service does not do what a test demands; the message says what, and what to do.
    """
    suite = AsyncServiceConformance()
    suite.make_factory = lambda: factory  # type: ignore[method-assign]
    return run_kit(suite, folder)


def _run(check: Coroutine[Any, Any, None]) -> None:
    asyncio.run(check)


async def _in_time(call: Awaitable[Any], what: str) -> Any:
    try:
        return await asyncio.wait_for(call, PATIENCE_SECONDS)
    except TimeoutError:
        raise Mismatch(f"{what} has not come back after {PATIENCE_SECONDS:.0f} seconds", "it to come back") from None
