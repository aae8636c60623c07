# SPDX-License-Identifier: Apache-2.0
"""What every `contract.Service` has to do, as tests that any implementation can inherit.

    from compactlib.testing import ServiceFactory
    from compactlib.testing.services.conformance import ServiceConformance

    class MyWorkers(ServiceFactory):
        def make(self, folder, hooks, *, observer):
            return MyWorker(decide=hooks.decides, work=hooks.works, observer=observer)

    class TestMyWorker(ServiceConformance):
        def make_factory(self):
            return MyWorkers()

pytest collects the inherited methods; without pytest, `check_service` runs them one after the other. For an
`AsyncService` see `compactlib.testing.services.async_conformance`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from compactlib.errors import AuditFailed, Busy, Closed, CompactlibError
from compactlib.outcome import Done, Failed, Skipped
from compactlib.runtime.budget import Budget
from compactlib.runtime.observe import RecordingObserver
from compactlib.testing.kit.conformance import ConformanceKit, Mismatch, run_kit, same, shown
from compactlib.testing.kit.contract_actors import PATIENCE_SECONDS, Call, Gate, asserts_of, lasting_threads
from compactlib.testing.services.factory import ServiceFactory, ServiceHooks

_LOOK_SECONDS = 0.005
_SHORT_SECONDS = 0.05


class Bug(Exception):
    """An error that is none of the library's."""


@attrs.frozen
class Running:
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
    factory: ServiceFactory

    def wake(self) -> None:
        """Wake it; one that was stopped may say so."""
        with contextlib.suppress(Closed):
            self.factory.wake(self.service)

    def until(self, is_so: Callable[[], bool], what: str, meanwhile: Callable[[], object] = lambda: None) -> None:
        """Wake it until something is so.

        Args:
            meanwhile: what else to do while it is not.

        Raises:
            Mismatch: it never is.
        """
        waiting = threading.Event()
        for _ in range(int(PATIENCE_SECONDS / _LOOK_SECONDS)):
            if is_so():
                return
            self.wake()
            meanwhile()
            waiting.wait(_LOOK_SECONDS)
        raise Mismatch(f"{what}: not after {PATIENCE_SECONDS:.0f} seconds; last_error is {self.service.last_error!r}",
                       "it to happen soon")

    def pending(self) -> Sequence[Any]:
        """What `run_pending` answers once it was woken: a sequence of outcomes.

        Raises:
            Mismatch: it is none.
        """
        self.wake()
        outcomes = self.service.run_pending()
        if not isinstance(outcomes, Sequence) or not all(isinstance(each, Done | Skipped | Failed)
                                                         for each in outcomes):
            raise Mismatch(f"run_pending() answered {shown(outcomes)}", "a sequence of Done, Skipped and Failed")
        return outcomes

    def let_go(self, when: str) -> None:
        """Its work holds nothing.

        Raises:
            Mismatch: it does.
        """
        held = list(self.factory.held(self.service))
        if held:
            raise Mismatch(f"{when} its work still holds {shown(held)}", "each lease and lock to be released")

    def stopped(self, when: str, **named: float) -> None:
        """Stop it, and look whether it has ended.

        Raises:
            Mismatch: it has not.
        """
        outcome = Call(lambda: self.service.stop(**named), f"stop() {when}").answer()
        if not isinstance(outcome, Done):
            raise Mismatch(f"stop() {when}: {outcome!r}", "Done")


class ServiceConformance(ConformanceKit):
    """Inherit in a test class, say how services are made, and pytest finds the rest."""

    def make_factory(self) -> ServiceFactory:
        """What is to be tested."""
        raise NotImplementedError("say which services are to be tested: make_factory returns a ServiceFactory")

    @contextlib.contextmanager
    def made(self, folder: Path) -> Iterator[Running]:
        """A service that was not started; at the end it is stopped, and no thread of its is left."""
        factory, hooks, observer = self.make_factory(), ServiceHooks(), RecordingObserver()
        before = set(threading.enumerate())
        running = Running(factory.make(folder, hooks, observer=observer), hooks, observer, factory)
        try:
            yield running
        except BaseException:
            with contextlib.suppress(Exception):
                Call(running.service.stop, "stop()").wait()
                factory.release(running.service)
            raise
        running.stopped("at the end")
        running.let_go("after stop()")
        factory.release(running.service)
        left = lasting_threads(before)
        assert not left, f"after stop() these threads go on: {left}"

    def test_a_new_service_has_met_nothing(self, tmp_path: Path) -> None:
        """`last_error` is `None`, `failures` is 0, an audit is content.

        To do: keep what was raised last and how often, and nothing else; compactlib.runtime does.
        """
        with self.made(tmp_path) as running:
            same((running.service.last_error, running.service.failures), (None, 0))
            same(running.service.audit(), None)
            asserts = asserts_of(type(running.service).audit)
            assert not asserts, f"audit() has `{asserts[0]}`, which says nothing under python -O; raise AuditFailed"

    def test_it_does_its_work_in_its_own_thread(self, tmp_path: Path) -> None:
        """Once it is started, without further calls; starting again starts nothing more.

        To do: keep the thread, and return from start() if there is one.
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
            running.service.audit()

    def test_stopping_ends_it(self, tmp_path: Path) -> None:
        """Nothing begins any more; stopping again is `Done`. It may be started anew, or else says `Closed`.

        To do: answer Done whenever nothing runs any more, and let no wake-up begin anything after stop().
        """
        with self.made(tmp_path) as running:
            running.service.start()
            running.stopped("after start()")
            running.stopped("again")
            decided = running.hooks.decided
            running.wake()
            running.service.audit()
            same(running.hooks.decided, decided, case="turns after stop()")
            try:
                running.service.start()
            except Closed:
                return
            running.until(lambda: running.hooks.decided > decided, "a turn after start(), stop() and start()")

    def test_what_was_never_started_can_be_stopped(self, tmp_path: Path) -> None:
        """It is `Done` at once, and nothing was done.

        To do: answer Done from stop() if there is no thread.
        """
        with self.made(tmp_path) as running:
            running.stopped("without start()")
            same(running.hooks.decided, 0)

    def test_a_with_starts_and_stops(self, tmp_path: Path) -> None:
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

    def test_run_pending_does_the_work_without_a_thread(self, tmp_path: Path) -> None:
        """In the caller's thread, with an outcome for each piece of work.

        To do: let the thread and run_pending() call the same method, which answers outcomes.
        """
        with self.made(tmp_path) as running:
            before = set(threading.enumerate())
            threads: list[threading.Thread] = []
            running.hooks.on_decide = lambda: threads.append(threading.current_thread())
            outcomes = running.pending()
            assert outcomes, "there was something to do, and run_pending() answered no outcome"
            same(set(threads), {threading.current_thread()}, case="threads in which it decided")
            if running.factory.has_budget:
                assert running.hooks.worked, f"its work was not done: {outcomes}"
            same(lasting_threads(before), [])
            same((running.service.last_error, running.service.failures), (None, 0))
            running.let_go("after run_pending()")

    def test_what_its_work_raises_is_kept_and_told_and_it_goes_on(self, tmp_path: Path) -> None:
        """`last_error` has it, `failures` counts it, an event reports it, and the work is tried again.

        To do: catch Exception around each turn, keep, count, log and report it, and take the next turn after a growing
        delay; release what was held in a `finally`. compactlib.runtime does.
        """
        with self.made(tmp_path) as running:
            error = Bug("what is unexpected")
            running.hooks.on_decide = raising(error, times=2)
            running.service.start()
            running.until(lambda: running.hooks.decided > 2, "a third turn after two that raised")
            running.until(lambda: running.service.failures >= 2, "failures to be 2")
            same(running.service.last_error, error)
            told = [name for name, fields in running.observer.events if "Bug" in "".join(map(str, fields.values()))]
            if not told:
                raise Mismatch(f"events: {shown([name for name, _ in running.observer.events])}",
                               "an event with the class of the error among its fields")
            running.service.audit()
            running.until(lambda: not running.factory.held(running.service), "its work to hold nothing")

    def test_run_pending_keeps_what_its_work_raises(self, tmp_path: Path) -> None:
        """It answers all the same; the next call tries again.

        To do: let run_pending() treat errors as the thread does: kept in last_error, counted, reported, not raised.
        """
        with self.made(tmp_path) as running:
            error = Bug("what is unexpected")
            running.hooks.on_decide = raising(error, times=1)
            running.pending()
            same((running.service.last_error, running.service.failures), (error, 1))
            running.let_go("after a turn that raised")
            decided = running.hooks.decided
            running.until(lambda: running.hooks.decided > decided, "run_pending() trying again after an error",
                          running.pending)
            same(running.service.failures, 1)

    def test_interrupts_pass_through_run_pending(self, tmp_path: Path) -> None:
        """`KeyboardInterrupt` and `SystemExit` propagate, and release what the work held.

        To do: catch Exception, never BaseException; release in `finally`.
        """
        with self.made(tmp_path) as running:
            for error in (KeyboardInterrupt("the host's user"), SystemExit("the host's end")):
                running.hooks.on_decide = raising(error, times=1)
                found: object = None
                try:
                    found = running.pending()
                except (KeyboardInterrupt, SystemExit) as raised:
                    found = raised
                if found is not error:
                    raise Mismatch(f"{error!r} from its work: run_pending() answered {shown(found)}",
                                   "it to come through")
                running.let_go(f"after {error!r}")
            decided = running.hooks.decided
            running.until(lambda: running.hooks.decided > decided, "run_pending() trying again after an interrupt",
                          running.pending)

    def test_an_audit_tells_a_thread_that_has_died(self, tmp_path: Path) -> None:
        """What ends its thread without a call of stop is kept, and audit raises `AuditFailed`.

        To do: keep what ended the thread in last_error, and look in audit() whether it lives if it should.
        """
        with self.made(tmp_path) as running:
            error, threads = SystemExit("the end of a thread"), []
            dies = raising(error, times=1)

            def die() -> None:
                threads.append(threading.current_thread())
                dies()

            running.hooks.on_decide = die
            with _unreported(error):
                running.service.start()
                running.until(lambda: _fails(running.service.audit), "audit() to raise AuditFailed")
                threads[0].join(PATIENCE_SECONDS)
            same(running.service.last_error, error)
            running.let_go("after its thread has died")

    def test_stop_cancels_what_works(self, tmp_path: Path) -> None:
        """Work that asks its budget ends soon, and stop is `Done`.

        To do: give the work a budget of the service's own, cancel it in stop(), and wait for the thread.
        """
        with self.made(tmp_path) as running:
            if not running.factory.has_budget:
                return
            budgets: list[Budget] = []

            def work(budget: Budget) -> None:
                budgets.append(budget)
                waiting = threading.Event()
                for _ in range(int(PATIENCE_SECONDS / _LOOK_SECONDS)):
                    budget.check()
                    waiting.wait(_LOOK_SECONDS)

            running.hooks.on_work = work
            running.service.start()
            running.until(lambda: bool(budgets), "work to begin")
            running.stopped("while it works", wait_seconds=PATIENCE_SECONDS)
            assert budgets[0].cancelled, "stop() came back, and the budget of the work was not cancelled"
            running.let_go("after stop()")

    def test_stop_of_work_that_does_not_end_says_so(self, tmp_path: Path) -> None:
        """It is `Failed(Busy)` when `wait_seconds` have passed; once the work has ended, stopping again is `Done`.

        To do: wait for the thread for so long, and answer Failed(Busy(...)) if it still lives; never Done before.
        """
        with self.made(tmp_path) as running, Gate() as gate:
            if running.factory.has_budget:
                running.hooks.on_work = gate.hold
            else:
                running.hooks.on_decide = gate.hold
            running.service.start()
            running.until(gate.reached.is_set, "work to begin")
            outcome = Call(lambda: running.service.stop(wait_seconds=_SHORT_SECONDS),
                           "stop() of work that does not end").answer()
            if not isinstance(outcome, Failed) or not isinstance(outcome.error, Busy):
                raise Mismatch(f"stop() while its work does not end: {outcome!r}", "Failed(Busy)")
            gate.open()
            running.stopped("once its work has ended")

    def test_stopping_from_within_is_busy(self, tmp_path: Path) -> None:
        """Its own work cannot wait for its own end: `Busy` is raised, nothing hangs, and it ends all the same.

        To do: look whose thread it is (Turns.is_mine, Run.is_mine) before waiting, and raise Busy.
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
            running.until(lambda: bool(answers), "a turn that stops the service")
            if not isinstance(answers[0], Busy):
                raise Mismatch(f"stop() from within its work: {answers[0]!r}", "Busy to be raised")
            running.stopped("from outside, after it was stopped from within")

    def test_what_observers_raise_breaks_nothing(self, tmp_path: Path) -> None:
        """Watching a service breaks nothing.

        To do: notify through compactlib.runtime.observe.telling(observer).
        """
        with self.made(tmp_path) as running:

            def event(name: str, fields: Mapping[str, Any]) -> None:
                raise Bug("the observer's own")

            running.observer.event = event  # type: ignore[method-assign]
            running.hooks.on_decide = raising(Bug("the work's own"), times=1)
            running.service.start()
            running.until(lambda: running.hooks.decided > 1, "a turn after one whose event the observer refused")
            same(str(running.service.last_error), "the work's own")


def check_service(factory: ServiceFactory, folder: Path) -> list[str]:
    """Run the whole suite without pytest; the names of the tests that were passed.

    Args:
        factory: makes services of one kind.
        folder: an empty folder that exists; each test gets a folder of its own inside.

    Raises:
        PromiseBroken: the service does not do what a test demands; the message says what, and what to do.
    """
    suite = ServiceConformance()
    suite.make_factory = lambda: factory  # type: ignore[method-assign]
    return run_kit(suite, folder)


def raising(error: BaseException, *, times: int) -> Callable[[], None]:
    """A call that raises so often, and then does nothing."""
    left = [error] * times

    def call() -> None:
        if left:
            raise left.pop()

    return call


@contextlib.contextmanager
def _unreported(expected: BaseException) -> Iterator[None]:
    """Inside the `with` nothing reports that a thread has ended by this error, which is what is wanted."""
    report = threading.excepthook

    def hook(ended: threading.ExceptHookArgs) -> None:
        if ended.exc_value is not expected:
            report(ended)

    threading.excepthook = hook
    try:
        yield
    finally:
        threading.excepthook = report


def _fails(audit: Callable[[], object]) -> bool:
    try:
        audit()
    except AuditFailed:
        return True
    return False
