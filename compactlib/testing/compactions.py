# SPDX-License-Identifier: Apache-2.0
"""The contract of `contract.Compaction`, as tests of any store through its `Driver`.

    class TestMyStore(CompactionConformance):       # each promise is a test of pytest
        def make_driver(self):
            return MyDriver()

    check_compaction(MyDriver(), folder)            # without pytest

`Driver.act` is called until `plan(policy)` is not empty. Every compaction gets the driver's policy. `check_hazards`
tests the same store with kills, crashes and refusals at each step.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import attrs

from compactlib.budget import Budget
from compactlib.errors import (
    BudgetSpent,
    Busy,
    Closed,
    CompactionFailed,
    CompactlibError,
    Conflict,
    InvalidInput,
    Rejected,
    Stale,
    TaskFailed,
)
from compactlib.executors import RewriteTask
from compactlib.files import StrPath
from compactlib.observer import Observer
from compactlib.report import VerifyReport
from compactlib.testing.choices import spread
from compactlib.testing.driver import Driver, Journal, World
from compactlib.testing.in_front import FilesInFront, Request, act_at_once
from compactlib.testing.promises import ConformanceKit, Mismatch, error_from, expect, names_a_gate, same, shown
from compactlib.testing.stand_ins import (
    Call,
    ExecutorBy,
    FenceBy,
    Gate,
    ObserverBy,
    PolicyBy,
    StepClock,
    TaskBy,
    garbage_executors,
    lasting_threads,
    raising,
    soundly,
)

_MOST_COMPACTIONS, _MOST_ACTS, _MOST_SPENT, _MOST_PAUSED = 8, 200, 6, 2
_EARLY_SECONDS = 0.05


class Surprise(Exception):
    """An error outside the library's tree."""


class _Room(FilesInFront):
    """The local disk with a set amount of room."""

    def __init__(self) -> None:
        super().__init__(act_at_once)
        self.room: int | None = 1 << 40

    def available_bytes(self, path: StrPath) -> int | None:
        return self.room


@attrs.frozen
class Opened:
    """A store that a test has open, with its driver, world, disk and journal, and its requests that change the disk."""

    store: Any
    driver: Driver[Any]
    world: World
    disk: _Room
    journal: Journal
    changes: list[Request] = attrs.field(factory=list)

    @classmethod
    def of(cls, driver: Driver[Any], world: World, journal: Journal) -> Opened:
        """Open the store of a world."""
        disk, changes = _Room(), list[Request]()

        def step(request: Request, act: Callable[[], Any]) -> Any:
            changes.extend([request] if request.changes else [])
            return act()

        world.behind, world.step = disk, step
        return cls(driver.open(world, driver.settings()[0]), driver, world, disk, journal, changes)

    def plan(self, **named: Any) -> Any:
        """`plan()` with the driver's policy."""
        return self.store.plan(self.driver.policy(), **named)

    def compact(self, plan: Any = None, **named: Any) -> Any:
        """Call `compact()` with a plan, or with the driver's policy."""
        given = {} if plan is not None else {"policy": self.driver.policy()}
        return self.store.compact(plan, **{**given, **named})

    def ended(self, plan: Any = None, **named: Any) -> Any:
        """Return the report of `compact()`, or the library's error."""
        return _attempt(partial(self.compact, plan, **named))

    def reclaimed(self, **named: Any) -> Any:
        """Return the report of `reclaim()`, or the library's error."""
        return _attempt(lambda: self.store.reclaim(**named))

    def act(self, number: int) -> None:
        """Let the driver act until the plan is not empty, and copies something if the store uses an executor."""
        rng = Random(number)
        for _ in range(_MOST_ACTS):
            self.driver.act(self.store, rng, self.journal)
            plan = self.plan()
            copies = plan.bytes_to_copy != 0 or not self.driver.uses_executor
            if copies and not plan.is_empty:
                return
        raise Mismatch(f"after {_MOST_ACTS} calls of act() plan(policy) is {self.plan()!r}",
                       "a policy() of the driver whose plan is not empty after a few acts")

    def state(self) -> object:
        """Return the value that changes with a commit."""
        return self.driver.state(self.store)

    def contents(self) -> Mapping[str, bytes]:
        """Return the whole stored content."""
        return self.driver.contents(self.world, self.store)

    def check(self, after: str, reader: Any = None) -> None:
        """Require that every acknowledged change is present, read from the store or from a reader."""
        try:
            self.driver.check(self.store if reader is None else reader, self.journal, damage="")
        except Exception as error:
            raise Mismatch(f"after {after}: {type(error).__name__}: {error}", "every acknowledged change to be present"
                           ) from error

    def finish(self, after: str) -> None:
        """Require that the store is idle, that further compactions end with an empty one, and that nothing is lost."""
        status = self.store.status()
        if status.is_busy:
            raise Mismatch(f"after {after}: {status!r}", "is_busy to be false: every end of a run releases it")
        for _ in range(_MOST_COMPACTIONS):
            report = self.ended()
            if isinstance(report, CompactlibError):
                raise Mismatch(f"after {after} the next compact() raised {report!r}",
                               "it to compact the rest, until its report is empty")
            if report.is_empty:
                break
        else:
            raise Mismatch(f"after {after} none of {_MOST_COMPACTIONS} compactions was empty",
                           "an empty compaction, since nothing was written")
        plan = self.plan()
        if not plan.is_empty:
            raise Mismatch(f"after {after} the report of compact() is empty ({report.why}), but plan() is {plan!r}",
                           "a plan that is empty, or a compaction that carries it out")
        self.store.audit()
        self.check(after)


class CompactionConformance(ConformanceKit):
    """Inherit in a test class, return a driver from `make_driver`, and pytest finds the promises."""

    def make_driver(self) -> Driver[Any]:
        """Return the driver of the store to test."""
        raise NotImplementedError("override make_driver to return a Driver")

    @contextlib.contextmanager
    def opened(self, folder: Path, *, acts: int = 0, name: str = "store") -> Iterator[Opened]:
        """Open a store in a new world below `folder`, with something to compact after each of `acts`; close it."""
        place = folder / name
        place.mkdir(exist_ok=True)
        world = World(place)
        with contextlib.ExitStack() as held:
            held.callback(_close_all, world)
            opened = held.enter_context(_closing(Opened.of(self.make_driver(), world, Journal())))
            for number in range(acts):
                opened.act(number)
            yield opened

    @contextlib.contextmanager
    def reopened(self, opened: Opened) -> Iterator[Opened]:
        """Open the store of the same world again: of a closed store its successor, else a peer."""
        with _closing(Opened.of(opened.driver, opened.world, opened.journal)) as again:
            yield again

    def _places(self, *places: str) -> list[str]:
        """Return the places of a compaction that this store has."""
        return [each for each in places if self.make_driver().uses_executor or each not in ("executor", "task")]

    def test_driver_sees_what_is_missing(self, tmp_path: Path) -> None:
        """The driver's `check` raises for an empty store; `state` and `contents` change with a commit.

        To do: compare each change with the read value in check(), and return replaced files in state(), contents().
        """
        with self.opened(tmp_path, acts=1) as opened, self.opened(tmp_path, name="empty") as empty:
            found = _raised_by(lambda: opened.driver.check(empty.store, opened.journal, damage=""))
            if not isinstance(found, Exception):
                raise Mismatch("check() accepts an empty store", "it to raise, since all changes are missing")
            before = {"state()": opened.state(), "contents()": opened.contents()}
            _done(opened.ended(), "compact()")
            for name, after in {"state()": opened.state(), "contents()": opened.contents()}.items():
                if after == before[name]:
                    raise Mismatch(f"{name} is the same before and after a compaction", "it to change with a commit")

    # ---- plans

    def test_nothing_to_do_says_why(self, tmp_path: Path) -> None:
        """The plan of an empty store, and of one that was compacted, is empty, never `None`, and names the gate;
        `compact` reports the same reason, and changes nothing.

        To do: give the reason: "0 of 0 bytes are dead, below min_dead_bytes=4096; lower it, or wait". Plan nothing
        without gain: a segment that was just written is not worth copying again.
        """
        for acts in (0, 1):
            with self.opened(tmp_path, acts=acts, name=f"store-{acts}") as opened:
                if acts:
                    opened.finish("compact()")
                    opened.store.reclaim()
                plan, before = opened.plan(), opened.contents()
                assert plan is not None, "plan() returned None"
                assert plan.is_empty, f"the store is {'compacted' if acts else 'empty'}, and the plan is {plan!r}"
                if not names_a_gate(plan.why):
                    raise Mismatch(shown(plan.why), "a sentence with the value that shut the gate, and the setting")
                same((plan.bytes_to_copy or 0, plan.bytes_freed or 0), (0, 0))
                same(_nothing(opened.ended(), "compact() with nothing to do").why, plan.why)
                same(opened.contents(), before)

    def test_plan_is_a_function_that_changes_nothing(self, tmp_path: Path) -> None:
        """A plan is a function of a view, a policy and a time. A plan, a view, a status, an audit and a verification
        change no byte. Views, plans and status are frozen, picklable, printed in one line, and plain in `to_dicts()`.

        To do: decide in memory, by the view alone, with the room in it and the time from the store's clock; write,
        recover and remove in compact(). Return attrs.frozen values of plain fields, on compactlib.report.Printed.
        """
        with self.opened(tmp_path, acts=1) as opened:
            before, values = opened.contents(), dict[str, Any]()
            opened.changes.clear()
            for name, call in {"view()": opened.store.view, "plan()": opened.store.plan, "plan(policy)": opened.plan,
                               "status()": opened.store.status, "audit()": opened.store.audit,
                               "verify()": opened.store.verify}.items():
                values[name] = call()
                same(opened.changes, [], case=f"changes of the disk in {name}")
                same(opened.contents(), before, case=f"the stored content after {name}")
            view, plan, status = values["view()"], values["plan(policy)"], values["status()"]
            for name in ("view()", "plan()", "plan(policy)", "status()"):
                _is_a_value(name, values[name])
            same(opened.store.view(), view, case="two views of an idle store")
            for again in (view, pickle.loads(pickle.dumps(view))):
                same(opened.plan(view=again), plan, case="plan(policy, view=...)")
                same(opened.store.plan(view=again), values["plan()"], case="plan(view=...)")
            same(plan.is_empty, False, case="is_empty, after act()")
            assert plan.why.strip(), "the plan has no reason"
            same((status.is_busy, status.last_error, status.failures), (False, "", 0), case="an idle store's status")

    def test_contradicting_arguments_are_refused(self, tmp_path: Path) -> None:
        """A plan of another store is `InvalidInput` or `Stale`, a plan and a policy `InvalidInput`; nothing changes.

        To do: put the store's name into the plan, and check both arguments first.
        """
        with self.opened(tmp_path, acts=1) as opened, self.opened(tmp_path, acts=1, name="other") as other:
            foreign, own, before = other.plan(), opened.plan(), opened.contents()
            found = opened.ended(foreign)
            assert isinstance(found, InvalidInput | Stale), f"a plan of another store: {found!r}, not InvalidInput"
            error_from(InvalidInput, lambda: opened.compact(own, policy=opened.driver.policy()))
            same(opened.contents(), before)
            opened.finish("a plan of another store, and a plan with a policy")

    def test_old_plan_takes_nothing_of_later_writes(self, tmp_path: Path) -> None:
        """A plan whose sources were compacted is `Stale`; a plan made before later writes may be.

        To do: put the sources into the plan, and compare them with the store before the first write.
        """
        with self.opened(tmp_path, acts=1) as opened:
            plan = opened.plan()
            opened.act(1)
            report = opened.ended(plan)
            if isinstance(report, CompactlibError) or report.is_empty:
                _failed(report, Stale, "compact() with a plan made before the last write")
            opened.finish("a plan made before a write")
        with self.opened(tmp_path, acts=1, name="carried out") as opened:
            plan = opened.plan()
            _done(opened.ended(plan), "compact(plan)")
            opened.act(1)
            before = opened.contents()
            _failed(opened.ended(plan), Stale, "compact() with a plan that was carried out before")
            same(opened.contents(), before)
            opened.finish("an outdated plan")

    # ---- the other calls

    def test_reclaim_verify_and_audit_answer(self, tmp_path: Path) -> None:
        """`reclaim` returns a report, `verify` a sound report of the records that it read, `audit` returns `None`.

        To do: return a report, which may be empty, a compactlib.report.VerifyReport, and None.
        """
        with self.opened(tmp_path, acts=1) as opened:
            for when in ("before", "after"):
                _answered(opened.reclaimed(), f"reclaim() {when} compact()")
                report: object = opened.store.verify()
                if not isinstance(report, VerifyReport) or not report.is_sound:
                    raise Mismatch(f"verify() {when} a compaction: {report!r}: {getattr(report, 'findings', '')}",
                                   "a VerifyReport that is sound")
                assert report.records > 0, f"verify() has read no records: {report!r}"
                same(opened.store.audit(), None)
                opened.check(f"reclaim() {when} a compaction")
                opened.compact()

    def test_closed_store_says_so(self, tmp_path: Path) -> None:
        """A folder that is open cannot be opened again: `Busy`. After `close` every call raises `Closed`; closing again
        does nothing, and the folder is free.

        To do: hold a compactlib.files.FolderLock from before the first read until the end of close(); check first in
        each method whether the store is closed.
        """
        with self.opened(tmp_path, acts=1) as opened:
            if not self.make_driver().has_peers:
                with expect(Busy), self.reopened(opened):
                    pass
            plan, store = opened.plan(), opened.store
            store.close()
            for name, call in {"view()": store.view, "plan()": store.plan, "compact()": store.compact,
                               "compact(plan)": lambda: store.compact(plan), "reclaim()": store.reclaim,
                               "verify()": store.verify, "status()": store.status, "audit()": store.audit}.items():
                found = _attempt(call)
                if not isinstance(found, Closed):
                    raise Mismatch(f"{name}: {found!r}", "Closed to be raised")
            store.close()
            with self.reopened(opened) as again:
                again.finish("closing and opening again")

    def test_closing_releases_files_and_threads(self, tmp_path: Path) -> None:
        """After a compaction that was done, interrupted or refused, closing leaves no file open and no thread alive.

        To do: close each file in a `finally`, the descriptors of readers too, and join each thread.
        """
        if self.make_driver().has_peers:
            return
        threads = set(threading.enumerate())
        policy, refusal = self.make_driver().policy(), Conflict("a newer token was admitted")
        given: list[dict[str, Any]] = [
            {}, {"fence": FenceBy(raising(refusal))}, {"observer": ObserverBy(raising(KeyboardInterrupt()))},
            {"policy": PolicyBy(policy, raising(refusal))}]
        for number, named in enumerate(given):
            with self.opened(tmp_path, acts=1, name=f"store-{number}") as opened:
                with contextlib.suppress(CompactlibError, KeyboardInterrupt):
                    opened.compact(**named)
                opened.store.view()
                opened.check("a compaction")
            left = [*_open_files(opened.world.folder), *lasting_threads(threads)]
            if left:
                raise Mismatch(f"after compact({', '.join(named)}) and close(), still open: {shown(left)}",
                               "every file to be closed and every thread to have ended")

    # ---- a store owns its compaction: one at a time, and `close` ends it

    def test_busy_store_says_so_at_once(self, tmp_path: Path) -> None:
        """During a commit a second run raises `Busy`, and the status is busy. Of two peers one commits.

        To do: begin each run with compactlib.guard.Run.begin(), which raises Busy while another runs.
        """
        with self.opened(tmp_path, acts=1) as opened, Gate() as gate:
            first = Call(lambda: opened.ended(fence=FenceBy(gate.hold)), "compact()")
            first.holds_until(gate)
            assert Call(opened.store.status, "status() during a commit").answer().is_busy, (
                "status().is_busy is false while a compaction runs")
            second = Call(opened.ended, "a second compact() during a commit").answer()
            if not self.make_driver().has_peers:
                reclaimed = Call(opened.reclaimed, "reclaim() during a commit").answer()
                for what, answer in {"reclaim()": reclaimed, "a second compact()": second}.items():
                    _failed(answer, Busy, f"{what} while a compaction runs")
            gate.open()
            _one_done([first.answer(), second], "two at once")
            opened.finish("two compactions at once")

    def test_calls_from_within_a_run_are_busy(self, tmp_path: Path) -> None:
        """Policy, fence, observer, executor and task get `Busy` when they close or compact the store.

        To do: call the policy, enter the fence and notify inside `with runs.begin(budget)`, and not under a lock.
        """
        for place in self._places("policy", "fence", "observer", "executor", "task"):
            with self.opened(tmp_path, acts=1, name=f"store-{place}") as opened:
                answers: list[tuple[str, object]] = []

                def ask(*_: object, opened: Opened = opened, answers: list[tuple[str, object]] = answers) -> None:
                    if not answers:
                        answers.append(("close()", _attempt(opened.store.close)))
                        if not self.make_driver().has_peers:
                            answers.append(("compact()", opened.ended()))
                            answers.append(("reclaim()", opened.reclaimed()))

                what = f"a compaction whose {place} closes the store and compacts it"
                call = partial(opened.ended, **_calling(place, opened.driver, ask))
                outcome = Call(call, what).answer()
                assert answers, f"the {place} given to compact() was never called: {outcome!r}"
                for name, answer in answers:
                    _failed(answer, Busy, f"{name} from the {place}")
                _done(outcome, what)
                opened.finish(what)

    def test_readers_and_writers_continue_during_a_compaction(self, tmp_path: Path) -> None:
        """While tasks run and while a commit waits for its fence, views, plans and readers return the same; while tasks
        run, writes return, and stay.

        To do: hold no lock of readers or writers while an executor works or a fence is entered; take it for the switch
        alone. Keep replaced files until no reader can use them, and let readers find the new names.
        """
        for place in self._places("fence", "executor"):
            with (self.opened(tmp_path, acts=2, name=f"store-{place}") as opened, Gate() as gate,
                  contextlib.ExitStack() as readers):
                if reader := opened.driver.reader(opened.world):
                    readers.enter_context(contextlib.closing(reader))
                compaction = Call(partial(opened.ended, **_calling(place, opened.driver, gate.hold)), "compact()")
                compaction.holds_until(gate)
                if reader:
                    opened.check(f"the {place} waits, by a reader from before", reader)
                calls = {"view()": opened.store.view, "plan()": opened.plan, "audit()": opened.store.audit,
                         "status()": opened.store.status}
                if place == "executor":
                    calls["act()"] = partial(opened.act, 2)
                for name, call in calls.items():
                    Call(call, f"{name} while the {place} waits").answer()
                gate.open()
                _done(compaction.answer(), "a compaction with concurrent calls")
                if reader:
                    fresh = readers.enter_context(contextlib.closing(opened.driver.reader(opened.world)))
                    opened.check("a compaction, by a new reader", fresh)
                    if place == "fence":
                        opened.check("a compaction, by a reader from before", reader)
                opened.finish("calls during a compaction")

    def test_close_cancels_the_run_and_waits(self, tmp_path: Path) -> None:
        """`close` cancels the tasks' budget, and returns when the run has ended: also in a commit.

        To do: give the executor the budget of compactlib.guard.Run; its close() cancels that and waits.
        """
        for place in self._places("fence", "executor"):
            with self.opened(tmp_path, acts=1, name=f"store-{place}") as opened, Gate() as gate:
                lent, mine = list[Budget](), Budget()

                def hold(*given: Any, gate: Gate = gate, lent: list[Budget] = lent) -> None:
                    lent.extend(each for each in given if isinstance(each, Budget))
                    gate.hold()

                call = partial(opened.ended, budget=mine, **_calling(place, opened.driver, hold))
                compaction = Call(call, "compact()")
                compaction.holds_until(gate)
                closings = [Call(opened.store.close, f"close() {nth} during a compaction") for nth in ("once", "twice")]
                # A close() that does not wait returns within this time; a close() that waits never fails this check.
                if any(closing.ended.wait(_EARLY_SECONDS) for closing in closings):
                    raise Mismatch("close() returned while the compaction still ran", "it to wait for the run's end")
                gate.open()
                for closing in closings:
                    closing.answer()
                outcome = compaction.answer()
                assert all(each.cancelled for each in lent), "close() returned, and the tasks' budget is not cancelled"
                assert not mine.cancelled, "close() has cancelled the caller's budget, which other stores may share"
                if lent and not (isinstance(outcome, CompactlibError) or getattr(outcome, "is_partial", False)):
                    raise Mismatch(f"the compaction while the store was closed: {outcome!r}", "BudgetSpent")
                with self.reopened(opened) as again:
                    again.finish("closing during a compaction")

    # ---- errors of observers, policies, executors, fences and budgets

    def test_observers_may_raise_and_may_call(self, tmp_path: Path) -> None:
        """An observer may call for a view or a plan, without waiting; an observer that raises breaks nothing.

        To do: notify through compactlib.observer.notify, and never inside a lock.
        """
        with self.opened(tmp_path, acts=1) as opened:
            answers: list[object] = []

            def ask() -> None:
                # Also in another thread, since the notifying thread may hold a reentrant lock.
                for asked in (opened.store.status, opened.store.view, opened.plan):
                    answers.append(_attempt(asked))
                    asking = Call(partial(_attempt, asked), "a call of the store from an observer")
                    answers.append(asking.answer())
                raise Surprise("the observer's own bug")

            observer = ObserverBy(ask)
            what = "a compaction whose observer calls the store, and raises"
            _done(Call(partial(opened.ended, observer=observer), what).answer(), what)
            assert observer.calls, "the observer given to compact() was never notified"
            same(len(answers), 6 * observer.calls, case="the observer's calls that returned")
            strange = [answer for answer in answers if isinstance(answer, CompactlibError)]
            assert not strange, f"a call of the store from an observer raised {strange[0]!r}"
            opened.finish(what)

    def test_errors_of_the_host_end_the_run(self, tmp_path: Path) -> None:
        """Errors of a policy and a fence, and interrupts from anywhere, are raised; an executor that raises, fails,
        forgets or invents a task gives an error of the library. The next compaction works.

        To do: release runs, locks and files in `finally`; catch CompactlibError around a fence, BaseException nowhere.
        Catch Exception around the executor as TaskFailed, and check its outcomes: answers_of().
        """
        for number, (name, named, wanted) in enumerate(self._endings()):
            with self.opened(tmp_path, acts=1, name=f"store-{number}") as opened:
                before, calls = opened.state(), [partial(opened.compact, **named)]
                if "policy" in named:
                    calls.append(partial(opened.store.plan, named["policy"]))
                for call in calls:
                    found = _raised_by(call)
                    if isinstance(wanted, type):
                        _truthful(opened, _failed(found, wanted, name), before, name)
                    elif not any(each is wanted for each in _causes(found)):
                        raise Mismatch(f"{wanted!r} from {name}: {found!r}", "this error to be raised")
                executor = named.get("executor")
                assert executor is None or executor.runs, f"{name} was never called"
                opened.finish(name)

    def _endings(self) -> Iterator[tuple[str, dict[str, Any], Any]]:
        """Yield what a host does wrong, as arguments of `compact`, with the error, or its class, that must be raised.
        """
        own, refused, driver = Surprise("the host's own bug"), Conflict("the task's own refusal"), self.make_driver()
        for error in (own, KeyboardInterrupt("the host's user")):
            for place in ("policy", "fence", "observer")[:2 if error is own else 3]:
                yield f"{place} that raises", _calling(place, driver, raising(error)), error
            for place in self._places("executor", "task"):
                wanted = TaskFailed if error is own else error
                yield f"{place} that raises", _calling(place, driver, raising(error)), wanted
        if driver.uses_executor:
            for name, executor in garbage_executors().items():
                yield f"an executor that {name}", {"executor": executor}, CompactlibError
            late = ExecutorBy(lambda *_: map(raising(own), "iterated"))
            yield "an executor that raises during iteration", {"executor": late}, TaskFailed
            yield "a task that is refused", _calling("task", driver, raising(refused)), refused

    def test_fence_guards_each_commit(self, tmp_path: Path) -> None:
        """Each commit is inside the fence; a library's error on entering it is raised.

        To do: put `with fence.guard():` around each commit, and let an error on entering end the work.
        """
        with self.opened(tmp_path, acts=2, name="counting") as opened:
            before, seen = opened.state(), list[object]()
            fence = FenceBy(lambda number: seen.append(opened.state()))
            _done(opened.ended(fence=fence), "compact(fence=...)")
            assert fence.entered, "something was committed, and the fence was never entered"
            same(seen[0], before, case="the store's state when its fence is entered first")
            opened.finish("a fence")
        for number in range(1, fence.entered + 1):
            with self.opened(tmp_path, acts=2, name=f"store-{number}") as opened:
                before, refusal = opened.state(), Conflict("a newer token was admitted")

                def refuse(entry: int, number: int = number, refusal: Conflict = refusal) -> None:
                    if entry == number:
                        raise refusal

                when = f"a fence that refuses entry {number} of {fence.entered}"
                error = _failed(opened.ended(fence=FenceBy(refuse)), Conflict, when)
                assert any(each is refusal for each in _causes(error)), f"the fence raised {refusal!r}, not {error!r}"
                if number == 1:
                    same(opened.state(), before, case="the store's state, after the first entry was refused")
                opened.finish(when)

    def test_cancelled_budget_starts_nothing(self, tmp_path: Path) -> None:
        """`compact` raises `BudgetSpent`; `reclaim`, `view` and `verify` raise it or return; nothing has changed.

        To do: call budget.check() before the first step, and before long counting or reading.
        """
        with self.opened(tmp_path, acts=1) as opened:
            budget, before, fence = Budget(), opened.state(), FenceBy()
            budget.cancel()
            _failed(opened.ended(budget=budget, fence=fence), BudgetSpent, "compact(), cancelled before")
            same(fence.entered, 0)
            for name, call in {"view": opened.store.view, "verify": opened.store.verify}.items():
                found = _attempt(partial(call, budget=budget))
                if found is None or (isinstance(found, CompactlibError) and not isinstance(found, BudgetSpent)):
                    raise Mismatch(f"{name}() with a cancelled budget: {found!r}", "BudgetSpent, or its value")
            reclaimed = opened.reclaimed(budget=budget)
            if isinstance(reclaimed, CompactlibError):
                _failed(reclaimed, BudgetSpent, "reclaim() with a cancelled budget")
            same(opened.state(), before)
            opened.finish("a budget that was cancelled before")

    def test_budget_ends_or_holds_the_work_at_any_step(self, tmp_path: Path) -> None:
        """Spent: a partial report, `BudgetSpent` if nothing could be committed, or done; paused: it waits.

        To do: check the budget before each chunk and each commit, not inside a commit, and wait in it without a lock.
        """
        with self.opened(tmp_path, acts=2, name="counting steps") as opened:
            clock = StepClock()
            _done(opened.ended(budget=clock.budget), "a compaction with a deadline far away")
        steps = clock.readings
        assert steps, "a whole compaction never checked the budget"
        for what, most in (("spent", _MOST_SPENT), ("paused", _MOST_PAUSED)):
            outcomes = []
            for number in spread(range(1, steps + 1), most):
                with self.opened(tmp_path, acts=2, name=f"store {what} {number}") as opened:
                    before, when = opened.state(), f"a budget that is {what} at its step {number}"
                    call = partial(opened.ended, budget=StepClock(what, number).budget)
                    outcome = Call(call, f"a compaction with {when}").answer()
                    outcomes.append(outcome)
                    opened.check(when)
                    if what == "paused":
                        _done(outcome, when)
                    elif isinstance(outcome, CompactlibError):
                        _truthful(opened, _failed(outcome, BudgetSpent, when), before, when)
                    elif not getattr(outcome, "is_partial", False) and not opened.plan().is_empty:
                        raise Mismatch(f"{when}: {outcome!r}, and {opened.plan()!r} is left",
                                       "a report with is_partial, or BudgetSpent")
                    opened.finish(when)
            assert what != "spent" or any(isinstance(outcome, CompactlibError) or getattr(outcome, "is_partial", False)
                                          for outcome in outcomes), (
                f"the budget was spent at each of {len(outcomes)} steps, and every compaction was whole anyway")

    # ---- a disk without room

    def test_nothing_begins_without_room(self, tmp_path: Path) -> None:
        """Without room, the report is empty, and its reason has the needed and the available bytes.

        To do: call files.available_bytes(folder) before the first change, and compare with plan.bytes_needed.
        """
        with self.opened(tmp_path, acts=1) as opened:
            plan = opened.plan()
            if not plan.bytes_needed or plan.bytes_available is None:
                return
            room = opened.disk.room = plan.bytes_needed - 1
            before, fence = opened.contents(), FenceBy()
            for report in (opened.ended(fence=fence), opened.ended(plan, fence=fence)):
                reason = _nothing(report, f"compact() of {plan.bytes_needed} bytes with room for {room}").why
                plainly = reason.replace(",", "")
                if str(plan.bytes_needed) not in plainly or str(room) not in plainly:
                    raise Mismatch(f"the reason {reason!r}", f"both numbers in it, {plan.bytes_needed} and {room}")
            same((opened.contents(), fence.entered), (before, 0))
            opened.disk.room = plan.bytes_needed * 2
            opened.finish("a compaction that had no room")


def check_compaction(driver: Driver[Any], folder: Path) -> list[str]:
    """Test a store against the contract of `Compaction`, without pytest, and return the names of the promises.

    Args:
        driver: opens, uses and checks the store, as for `check_hazards`.
        folder: an empty folder that exists; each promise gets a new folder inside.

    Raises:
        PromiseBroken: the first promise that the store breaks, with the usual remedy.
    """
    return CompactionConformance.check(folder, make_driver=lambda: driver)


# -------------------------------------------------------------------------------------------------- opening and closing


@contextlib.contextmanager
def _closing(opened: Opened) -> Iterator[Opened]:
    """Close the store at the end; after an error of the block, an error of closing is not reported."""
    try:
        yield opened
    except BaseException:
        with contextlib.suppress(Exception):
            Call(opened.store.close, "close()").wait()
        raise
    Call(opened.store.close, "close()").answer()


def _close_all(world: World) -> None:
    for kept in world.kept.values():
        getattr(kept, "close", int)()


def _open_files(folder: Path) -> list[str]:
    """Return the files of a folder that this process has open; empty on systems without `/proc`."""
    found = []
    with contextlib.suppress(OSError):
        for descriptor in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                found.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return [name for name in found if name.startswith(f"{folder}/")]


def _calling(place: str, driver: Driver[Any], call: Callable[..., None]) -> dict[str, Any]:
    """Return arguments of `compact()` with which this place of a compaction calls a function; of the executor, with the
    tasks' budget.
    """
    if place == "policy":
        return {"policy": PolicyBy(driver.policy(), call)}
    if place == "fence":
        return {"fence": FenceBy(call)}
    if place == "observer":
        return {"observer": ObserverBy(call)}

    def run(tasks: Sequence[RewriteTask], budget: Budget, observer: Observer) -> Iterable[Any]:
        if place == "executor":
            call(budget)
            return soundly(tasks, budget, observer)
        return soundly([TaskBy(task, call) for task in tasks], budget, observer)

    return {"executor": ExecutorBy(run)}


# ------------------------------------------------------------------------------------------------------ checks


def _attempt(call: Callable[[], object]) -> object:
    """Return the value of a call, or the library's error that it raises."""
    try:
        return call()
    except CompactlibError as error:
        return error


def _raised_by(call: Callable[[], object]) -> object:
    """Return the error of a call, or its value if it raises nothing."""
    try:
        return call()
    except BaseException as error:
        return error


def _answered(report: Any, when: str) -> Any:
    if report is None or isinstance(report, CompactlibError):
        raise Mismatch(f"{when}: {report!r}", "a report")
    return report


def _done(report: Any, when: str) -> None:
    if _answered(report, when).is_empty or getattr(report, "is_partial", False):
        raise Mismatch(f"{when}: {report!r}", "a report of a whole compaction")


def _nothing(report: Any, when: str) -> Any:
    if not _answered(report, when).is_empty or not report.why.strip():
        raise Mismatch(f"{when}: {report!r}", "an empty report with a reason")
    return report


def _causes(error: Any) -> list[Any]:
    """Return the error, and the errors of the failed parts of a compaction."""
    return [error, *(error.failures.values() if isinstance(error, CompactionFailed) else ())]


def _failed(answer: object, kind: type[CompactlibError], when: str) -> CompactlibError:
    if isinstance(answer, CompactlibError) and any(isinstance(each, kind) for each in _causes(answer)):
        return answer
    raise Mismatch(f"{when}: {answer!r}", f"{kind.__name__} to be raised")


def _one_done(answers: Sequence[Any], when: str) -> None:
    """Require that exactly one call has compacted."""
    done = [each for each in answers if not isinstance(each, CompactlibError) and not each.is_empty]
    strange = [each for each in answers if isinstance(each, CompactlibError) and not isinstance(each, Rejected)]
    if strange or len(done) != 1:
        raise Mismatch(f"{when}: {answers}", "one to be done, and one to be Rejected or empty")


def _truthful(opened: Opened, error: CompactlibError, before: object, when: str) -> None:
    """Require that nothing has changed if the error is `Rejected`."""
    after = opened.state()
    if isinstance(error, Rejected) and after != before:
        raise Mismatch(f"{when}: {error!r}, but the store was {shown(before)} and is {shown(after)}",
                       "CompactionFailed, or a partial report")


def _is_a_value(what: str, value: Any) -> None:
    """Require that a value is frozen, picklable, printed in one line, and plain in `to_dicts()`."""
    if value is None:
        raise Mismatch(f"{what} returned None", "a value")
    line = repr(value)
    if "\n" in line or not line.strip():
        raise Mismatch(f"repr({what}) is {shown(line)}", "one line")
    again = pickle.loads(pickle.dumps(value))
    if again != value:
        raise Mismatch(f"{what} differs after pickling: {shown(again)}", shown(value))
    try:
        json.dumps(value.to_dicts(), default=bytes.hex)
    except TypeError as error:
        raise Mismatch(f"{what}.to_dicts() is {shown(value.to_dicts())}", "a list of dictionaries of plain values"
                       ) from error
    name = next((name for name in ("why", "is_busy") if hasattr(value, name)), "to_dicts")
    try:
        setattr(value, name, getattr(value, name))
    except AttributeError:
        return
    raise Mismatch(f"{what}.{name} can be set", "a frozen value")
