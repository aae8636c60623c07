# SPDX-License-Identifier: Apache-2.0
"""The contract of `contract.Service`, as promises that any service can be held to: `PeriodicService` keeps them.

    class MyWorkers(ServiceFactory):
        def make(self, folder, hooks, *, observer):
            return MyWorker(decide=hooks.decides, work=hooks.works, observer=observer)

    class TestMyWorker(ServiceConformance):         # each promise is a test of pytest
        def make_factory(self):
            return MyWorkers()

    check_service(MyWorkers(), folder)              # without pytest
"""

from __future__ import annotations

import abc
import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from compactlib.budget import Budget
from compactlib.contract import Service
from compactlib.errors import Busy, Closed, CompactlibError
from compactlib.observer import EventRecorder, Observer
from compactlib.testing import stand_ins
from compactlib.testing.promises import ConformanceKit, Mismatch, run_kit, same, shown
from compactlib.testing.stand_ins import Call, lasting_threads

_LOOK_SECONDS = 0.005
_SHORT_SECONDS = 0.05


class Bug(Exception):
    """An error that is none of the library's."""


def _no_work(budget: Budget) -> Iterator[None]:
    yield from ()


class ServiceHooks:
    """Where the suite gets into the work of a service: the factory has it call these, and the suite says what they do.

    Attributes:
        on_decide: what `decides` does; the suite sets it.
        on_work: the steps of what `works` does, between which it pauses.
        decided: how often `decides` was called.
        worked: how often `works` was called.
    """

    def __init__(self) -> None:
        self.on_decide: Callable[[], object] = lambda: None
        self.on_work: Callable[[Budget], Iterator[None]] = _no_work
        self.decided: int = 0
        self.worked: int = 0

    def decides(self) -> None:
        """To be called once in each turn, where no error is expected: by a policy, say, or a source of jobs."""
        self.decided += 1
        self.on_decide()

    def works(self, budget: Budget) -> None:
        """To be called within the long part of the work: by an executor, say, with the budget that it was given."""
        self.worked += 1
        for _ in self.on_work(budget):
            time.sleep(_LOOK_SECONDS)


class ServiceFactory(abc.ABC):
    """Makes services of one kind.

    Attributes:
        has_long_work: whether there is a long part of the work, in which `hooks.works` is called.
    """

    has_long_work: bool = True

    @abc.abstractmethod
    def make(self, folder: Path, hooks: ServiceHooks, *, observer: Observer) -> Service:
        """Return a service that was not started, with something to do at once.

        Args:
            folder: an empty one, which it may use.
            hooks: have it call `hooks.decides()` in each turn, and in its long work `hooks.works(budget)`.
            observer: to be notified, besides others.
        """

    def wake(self, service: Any) -> None:  # noqa: B027
        """Make it due now: something to do, and after an error its delay over. May be called repeatedly.

        Default: nothing, for a service that comes back to its work within a second by itself.
        """

    def held(self, service: Any) -> Sequence[object]:
        """Return the leases, locks and runs that its work holds now; default none."""
        return ()

    def release(self, service: Any) -> None:  # noqa: B027
        """Release what was opened beside the service, after its `stop`. May be called twice. Default nothing."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class _Running:
    """A service that was made, and the threads that there were before."""

    def __init__(self, factory: ServiceFactory, folder: Path) -> None:
        self.factory = factory
        self.hooks = ServiceHooks()
        self.observer = EventRecorder()
        self.before = set(threading.enumerate())
        self.service: Any = factory.make(folder, self.hooks, observer=self.observer)

    def wake(self) -> None:
        """Wake it; one that was stopped may say so."""
        with contextlib.suppress(Closed):
            self.factory.wake(self.service)

    def until(self, is_so: Callable[[], bool], what: str, meanwhile: Callable[[], object] = lambda: None) -> None:
        """Wake it, and do something else meanwhile, until something is so."""
        deadline = time.monotonic() + stand_ins.PATIENCE_SECONDS
        while not is_so():
            if time.monotonic() > deadline:
                raise Mismatch(f"{what}: not after {stand_ins.PATIENCE_SECONDS:g} seconds; last_error is "
                               f"{self.service.last_error!r}", "it to happen soon")
            self.wake()
            meanwhile()
            time.sleep(_LOOK_SECONDS)

    def pending(self) -> int:
        """Wake it, and return what `run_pending` returns: whether, or how much, was due."""
        self.wake()
        done = self.service.run_pending()
        if not isinstance(done, int):
            raise Mismatch(f"run_pending() returned {shown(done)}", "whether something was due")
        return done

    def let_go(self, when: str) -> None:
        """Require that its work holds nothing."""
        if held := self.factory.held(self.service):
            raise Mismatch(f"{when} its work still holds {shown(held)}", "each lease and lock to be released")

    def stopped(self, when: str) -> None:
        """Stop it, and require that it has ended."""
        try:
            self.ended(when)
        except Busy as error:
            raise Mismatch(f"stop() {when}: {error!r}", "it to come back once the work has ended") from error

    def ended(self, when: str, **named: float) -> None:
        """Stop it; raises `Busy` if it has not ended in time."""
        Call(lambda: self.service.stop(**named), f"stop() {when}").answer()


class ServiceConformance(ConformanceKit):
    """Inherit in a test class, return a factory from `make_factory`, and pytest finds the promises."""

    def make_factory(self) -> ServiceFactory:
        """Return the factory of the services to test."""
        raise NotImplementedError("say which services are to be tested: make_factory returns a ServiceFactory")

    @contextlib.contextmanager
    def made(self, folder: Path, name: str = "service") -> Iterator[_Running]:
        """A service that was not started; at the end it is stopped, and nothing of it goes on."""
        factory = self.make_factory()
        (folder / name).mkdir()
        running = _Running(factory, folder / name)
        try:
            try:
                yield running
            except BaseException:
                with contextlib.suppress(Exception):
                    running.ended("after a broken promise", wait_seconds=_SHORT_SECONDS)
                raise
            running.stopped("at the end")
            running.let_go("after stop()")
        finally:
            with contextlib.suppress(Closed):
                factory.release(running.service)
            left = lasting_threads(running.before)
        assert not left, f"after stop() these go on: {left}"

    def test_new_service_has_met_nothing(self, tmp_path: Path) -> None:
        """`last_error` is `None`, `failures` is 0, and it can be stopped.

        To do: keep what was raised last and how often, as compactlib.service.PeriodicService does.
        """
        with self.made(tmp_path) as running:
            same((running.service.last_error, running.service.failures), (None, 0))
            running.stopped("without start()")
            same(running.hooks.decided, 0)

    def test_started_service_works_by_itself(self, tmp_path: Path) -> None:
        """In a thread of its own, without further calls; starting again starts nothing.

        To do: keep the thread, and return from start() if it is there.
        """
        with self.made(tmp_path) as running:
            threads: list[threading.Thread] = []
            running.hooks.on_decide = lambda: threads.append(threading.current_thread())
            running.service.start()
            alive = set(threading.enumerate())
            running.service.start()
            # A turn may begin a thread that soon ends; a second one of the service goes on.
            more = lasting_threads(alive)
            assert not more, f"the second start() has started {more}"
            running.until(lambda: bool(threads), "a turn after start()")
            assert threading.current_thread() not in threads, "it worked in the thread that called start()"

    def test_stopping_ends_it(self, tmp_path: Path) -> None:
        """Nothing begins any more; stopping again comes back. It starts again, or else says `Closed`.

        To do: return from stop() whenever nothing runs any more, and let no wake-up begin anything after it.
        """
        with self.made(tmp_path) as running:
            running.service.start()
            running.stopped("after start()")
            running.stopped("again")
            decided = running.hooks.decided
            running.wake()
            same(running.hooks.decided, decided, case="turns after stop()")
            try:
                running.service.start()
            except Closed:
                return
            running.until(lambda: running.hooks.decided > decided, "a turn after start(), stop() and start()")

    def test_with_starts_and_stops(self, tmp_path: Path) -> None:
        """Entering it is `start()`, leaving it is `stop()`.

        To do: return self from __enter__, after start(); call stop() in __exit__.
        """
        with self.made(tmp_path) as running:
            with running.service as entered:
                assert entered is running.service, f"`with` gives {entered!r}"
                running.until(lambda: running.hooks.decided > 0, "a turn inside the `with`")
            decided = running.hooks.decided
            running.wake()
            same(running.hooks.decided, decided, case="turns after the `with`")

    def test_run_pending_works_in_its_caller(self, tmp_path: Path) -> None:
        """What is due is done before it returns, on the caller's thread, and it says that there was something.

        To do: let the thread and run_pending() call the same method.
        """
        with self.made(tmp_path) as running:
            before, done, threads = set(threading.enumerate()), list[int](), set[threading.Thread]()
            running.hooks.on_decide = lambda: threads.add(threading.current_thread())
            running.until(lambda: any(done), "run_pending() doing something", lambda: done.append(running.pending()))
            same(threads, {threading.current_thread()}, case="threads in which it decided")
            if running.factory.has_long_work:
                assert running.hooks.worked, "its work was not done"
            same(lasting_threads(before), [])
            same((running.service.last_error, running.service.failures), (None, 0))
            running.let_go("after run_pending()")

    def test_error_of_its_work_is_kept_and_it_goes_on(self, tmp_path: Path) -> None:
        """`last_error` has it, `failures` counts it; it is tried again.

        To do: catch Exception around each turn, keep, count and log it; release in a `finally`.
        """
        with self.made(tmp_path) as running:
            error = Bug("what is unexpected")
            running.hooks.on_decide = _raising(error, times=2)
            running.service.start()
            running.until(lambda: running.hooks.decided > 2, "a third turn after two that raised")
            running.until(lambda: running.service.failures >= 2, "failures to be 2")
            same(running.service.last_error, error)
            running.until(lambda: not running.factory.held(running.service), "its work to hold nothing")

    def test_run_pending_keeps_what_its_work_raises(self, tmp_path: Path) -> None:
        """It answers all the same; the next call tries again.

        To do: let run_pending() treat errors as the thread does: kept in last_error, counted, reported, not raised.
        """
        with self.made(tmp_path) as running:
            error = Bug("what is unexpected")
            running.hooks.on_decide = _raising(error, times=1)
            running.until(lambda: running.service.failures > 0, "a turn that raises", running.pending)
            same((running.service.last_error, running.service.failures), (error, 1))
            running.let_go("after a turn that raised")
            decided = running.hooks.decided
            running.until(lambda: running.hooks.decided > decided, "run_pending() trying again", running.pending)
            same(running.service.failures, 1)

    def test_interrupts_pass_through_run_pending(self, tmp_path: Path) -> None:
        """`KeyboardInterrupt` and `SystemExit` propagate, and release what the work held.

        To do: catch Exception, never BaseException; release in `finally`.
        """
        for error in (KeyboardInterrupt("the host's user"), SystemExit("the host's end")):
            with self.made(tmp_path, type(error).__name__) as running:
                running.hooks.on_decide = _raising(error, times=1)
                found: BaseException | None = None
                try:
                    running.until(lambda running=running: running.hooks.decided > 0,  # type: ignore[misc]
                                  "a turn", running.pending)
                except (KeyboardInterrupt, SystemExit) as raised:
                    found = raised
                if found is not error:
                    raise Mismatch(f"{error!r} from its work: run_pending() went on", "it to come through")
                running.let_go(f"after {error!r}")

    def test_stop_cancels_what_works(self, tmp_path: Path) -> None:
        """Work that asks its budget ends soon, and stop comes back.

        To do: give the work a budget of the service's own; cancel it in stop(), and wait for the end.
        """
        with self.made(tmp_path) as running:
            if not running.factory.has_long_work:
                return
            budgets: list[Budget] = []

            def work(budget: Budget) -> Iterator[None]:
                budgets.append(budget)
                deadline = time.monotonic() + stand_ins.PATIENCE_SECONDS
                while time.monotonic() < deadline:
                    budget.check()
                    yield

            running.hooks.on_work = work
            running.service.start()
            running.until(lambda: bool(budgets), "work to begin")
            running.stopped("while it works")
            assert budgets[0].cancelled, "stop() came back, and the work was not cancelled"
            running.let_go("after stop()")

    def test_stop_of_endless_work_says_so(self, tmp_path: Path) -> None:
        """It raises `Busy` when `wait_seconds` have passed; once the work has ended it comes back.

        To do: wait for the thread for so long, and raise Busy if it still lives; never come back before.
        """
        with self.made(tmp_path) as running:
            ended, begun = threading.Event(), threading.Event()

            def decide() -> None:
                begun.set()
                ended.wait(2 * stand_ins.PATIENCE_SECONDS)

            running.hooks.on_decide = decide
            try:
                running.service.start()
                running.until(begun.is_set, "work to begin")
                try:
                    running.ended("of work that does not end", wait_seconds=_SHORT_SECONDS)
                except Busy:
                    pass
                else:
                    raise Mismatch("stop() came back while its work did not end", "Busy to be raised")
            finally:
                ended.set()
            running.stopped("once its work has ended")

    def test_stopping_from_within_is_busy(self, tmp_path: Path) -> None:
        """Its own work cannot wait for its own end: `Busy` is raised, and it ends all the same.

        To do: compare the thread with its own before waiting, and raise Busy.
        """
        with self.made(tmp_path) as running:
            answers: list[object] = []

            def stop() -> None:
                try:
                    answers.append(running.service.stop())
                except CompactlibError as error:
                    answers.append(error)

            running.hooks.on_decide = stop
            running.service.start()
            running.until(lambda: bool(answers), "work that stops the service")
            if not isinstance(answers[0], Busy):
                raise Mismatch(f"stop() from within its work: {answers[0]!r}", "Busy to be raised")
            running.stopped("from outside, after it was stopped from within")

    def test_observers_that_raise_break_nothing(self, tmp_path: Path) -> None:
        """Watching a service breaks nothing.

        To do: notify through compactlib.observer.notify(observer, ...).
        """
        with self.made(tmp_path) as running:

            def event(name: str, /, **fields: Any) -> None:
                raise Bug("the observer's own")

            running.observer.event = event  # type: ignore[method-assign]
            running.hooks.on_decide = _raising(Bug("the work's own"), times=1)
            running.service.start()
            running.until(lambda: running.hooks.decided > 1, "a turn after one whose event the observer refused")
            same(str(running.service.last_error), "the work's own")


def check_service(factory: ServiceFactory, folder: Path) -> list[str]:
    """Hold services to the contract, without pytest, and return the names of the promises.

    Args:
        factory: makes services of one kind.
        folder: an empty folder that exists; each promise gets a folder of its own inside.

    Raises:
        PromiseBroken: the first promise that the service does not keep, with what to do.
    """
    suite = ServiceConformance()
    suite.make_factory = lambda: factory  # type: ignore[method-assign]
    return run_kit(suite, folder)


def _raising(error: BaseException, *, times: int) -> Callable[[], None]:
    """A call that raises so often, and then does nothing."""
    left = [error] * times

    def call() -> None:
        if left:
            raise left.pop()

    return call
