# SPDX-License-Identifier: Apache-2.0
"""Planted mistakes: each makes one step of a toy wrong, and turns the promise red that it breaks."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from compactlib.errors import Closed, CompactlibError
from compactlib.executors import RewriteFailure, RewriteResult
from compactlib.outcome import Done, Failed, Skipped
from compactlib.runtime import Budget, Observer
from compactlib.runtime.observe import telling
from compactlib.runtime.ownership import Ownership, Run
from compactlib.testing import CompactionConformance, PromiseBroken, ServiceConformance, check_compaction, stand_ins
from tests.harness.lessons import check_lesson
from tests.harness.toy_lines import Clean, LineChoice, LinePlan
from tests.testing.contract.toy_service import ToyAsyncService, ToyAsyncServices, ToyService, ToyServices
from tests.testing.contract.toy_shared import SharedLineDriver, SharedLineStore
from tests.testing.contract.toy_store import LineDriver, LineStore

HANGS_SECONDS = 0.2
"""The patience with a mistake that makes something hang."""


@attrs.frozen
class Mistake:
    """A toy with some of its methods replaced, the promise that it breaks, and what the report says."""

    name: str
    promise: str
    says: str
    methods: dict[str, Any]
    hangs: bool = False
    toy: type = LineStore

    def __str__(self) -> str:
        return self.name

    def planted(self) -> Any:
        return type(self.name.title().replace(" ", ""), (self.toy,), self.methods)


def store(name: str, promise: str, says: str, *, hangs: bool = False, toy: type = LineStore,
          **methods: Any) -> Mistake:
    return Mistake(name, f"test_{promise}", says, methods, hangs, toy)


def nothing(*_: Any, **__: Any) -> None:
    """Do nothing."""


def answering(value: Any) -> Callable[..., Any]:
    return lambda *_, **__: value


def ended(change: Callable[[LineStore, Any], Any], *errors: type[BaseException]) -> Callable[..., Any]:
    """A `carry_out` whose outcome is changed; of these errors, too."""

    def carry_out(self: LineStore, *args: Any) -> Any:
        try:
            outcome: Any = LineStore.carry_out(self, *args)
        except errors as error:
            outcome = Failed(CompactlibError(str(error)))
        return change(self, outcome)

    return carry_out


# ------------------------------------------------------------------------------------------- steps that take more lines


def changed_plan(change: Callable[[LineStore, LinePlan], Any]) -> Callable[..., Any]:
    return lambda self, *args, **named: change(self, LineStore.plan(self, *args, **named))


def written(self: LineStore, plan: LinePlan) -> LinePlan:
    with contextlib.suppress(CompactlibError), contextlib.closing(self._files.create(self._folder / "plan")) as out:
        out.write_at(0, [repr(plan).encode()])
    return plan


@attrs.define(repr=False)
class LoosePlan(LinePlan):
    def __setattr__(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)


@attrs.frozen
class WritesAHeader(Clean):
    def kept(self) -> bytes:
        return b"#v1\n" + super().kept()


def open_lock(self: LineStore) -> Any:
    lock = LineStore.locked(self)
    lock.release()
    return lock


@contextlib.contextmanager
def begin_when_free(self: LineStore, budget: Budget | None) -> Iterator[Run | None]:
    while True:
        with self._owner.begin(budget) as run:
            if run is not None:
                yield run
                return
        time.sleep(0.001)


@contextlib.contextmanager
def begin_within(self: LineStore, budget: Budget | None) -> Iterator[Run | None]:
    if self._owner.is_mine:
        yield Run(budget or Budget())
        return
    with self._owner.begin(budget) as run:
        yield run


@contextlib.contextmanager
def begin_unmarked(self: LineStore, budget: Budget | None) -> Iterator[Run | None]:
    run = Run(budget or Budget())
    try:
        yield run if self._owner.take(run) else None
    finally:
        self._owner.release(run)


@contextlib.contextmanager
def begin_without_finally(self: LineStore, budget: Budget | None) -> Iterator[Run | None]:
    run = Run(budget or Budget())
    if not self._owner.take(run):
        yield None
        return
    with run.inside():
        try:
            yield run
        except Exception:
            self._owner.release(run)
            raise
    self._owner.release(run)


LOCKS: dict[int, threading.Lock] = {}


def locked(method: str) -> Callable[..., Any]:
    """A method that holds one lock of the store."""

    def call(self: LineStore, *args: Any) -> Any:
        with LOCKS.setdefault(id(self), threading.Lock()):
            return getattr(LineStore, method)(self, *args)

    return call


def commit_and_leave_a_file_open(self: Any, result: RewriteResult, fence: Any) -> None:
    self.left = os.open(self._folder / "0001.lines", os.O_RDONLY)
    LineStore.commit(self, result, fence)


def with_a_thread(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method that leaves a thread behind."""

    def call(self: Any, *args: Any) -> Any:
        threading.Thread(target=threading.Event().wait, args=(2,), name="left", daemon=True).start()
        return method(self, *args)

    return call


def close_early(self: LineStore) -> None:
    threading.Thread(target=self._owner.close, daemon=True).start()
    self._lock.release()


def carry_out_with_another_budget(self: LineStore, run: Run, *args: Any) -> Any:
    mine = Run(Budget())
    with mine.inside(), run.inside():
        return LineStore.carry_out(self, mine, *args)


def check_budget_and_go_on(self: LineStore, run: Run, *args: Any) -> Any:
    with contextlib.suppress(CompactlibError):
        run.budget.check()
    return carry_out_with_another_budget(self, run, *args)


def compact_noting_the_budget(self: Any, *args: Any, **named: Any) -> Any:
    self.given = named.get("budget")
    return LineStore.compact(self, *args, **named)


def close_cancelling_the_callers(self: Any) -> None:
    if getattr(self, "given", None) is not None:
        self.given.cancel()
    LineStore.close(self)


def rewritten_unless_forgotten(self: LineStore, plan: LinePlan, *args: Any) -> Iterator[Any]:
    executor, budget, observer = args
    for outcome in self.answers(executor, [self.task(file) for file in plan.chosen], budget, observer):
        if isinstance(outcome, RewriteResult | RewriteFailure) and outcome.task.startswith("clean"):
            yield outcome


def commit_before_the_fence(self: LineStore, result: RewriteResult, fence: Any) -> None:
    LineStore.commit(self, result, None)
    with self.guard(fence):
        pass


@contextlib.contextmanager
def guard_wrapping_errors(self: LineStore, fence: Any) -> Iterator[None]:
    with contextlib.ExitStack() as entered:
        try:
            if fence is not None:
                entered.enter_context(fence.guard())
        except Exception as error:
            raise CompactlibError(str(error)) from error
        yield


def clean_up_with_the_sources(self: LineStore) -> int:
    for path in [path for path in self._folder.iterdir() if path.suffix == ".new"]:
        self._files.unlink(self._folder / f"{path.name.split('.')[0]}.lines")
    return LineStore.clean_up(self)


def outdated_noting_paths(self: Any, plan: LinePlan) -> bool:
    self.known = frozenset(self._paths())
    return SharedLineStore.is_outdated(self, plan)


def clean_up_unknown_paths(self: Any) -> int:
    strange = set(self._paths()) - getattr(self, "known", set(self._paths()))
    for path in strange:
        self._files.unlink(path)
    return len(strange)


RUNS = threading.RLock()


def carry_out_one_at_a_time(self: SharedLineStore, *args: Any) -> Any:
    with RUNS:
        return SharedLineStore.carry_out(self, *args)


EMPTY, BUSY = "empty_store_says_why_nothing_is_done", "busy_store_says_so_at_once"
WITHIN, CLOSING = "run_refuses_what_is_asked_from_within", "close_cancels_the_run_and_waits"
FOREIGN, FENCE = "foreign_errors_and_interrupts_come_through", "fence_guards_each_commit"
STEPS, OWNERS = "budget_ends_or_holds_the_work_at_any_step", "one_of_two_owners_commits"
SHARED: Any = {"toy": SharedLineStore}

STORES = [
    store("plan is None", EMPTY, "plan() answered None",
          plan=changed_plan(lambda toy, plan: None if plan.is_empty else plan)),
    store("empty plan without reason", EMPTY, "the setting to change",
          plan=changed_plan(lambda toy, plan: attrs.evolve(plan, why="nothing to do") if plan.is_empty else plan)),
    store("plan writes", "plan_changes_nothing", "changes of the disk in plan()", plan=changed_plan(written)),
    store("plan can be changed", "views_plans_and_status_are_values", "can be set", plan=changed_plan(
        lambda toy, plan: LoosePlan(plan.store, plan.chosen, plan.why, plan.bytes_available))),
    store("plan depends on the hour", "equal_views_give_equal_plans", "decide by the view alone",
          plan=changed_plan(lambda toy, plan: attrs.evolve(plan, why=f"at {time.perf_counter_ns()}"))),
    store("forecast without headers", "plan_is_carried_out_as_it_says", "bytes copied", task=lambda self, file:
          WritesAHeader(f"clean {file.number}", str(self._path(file.number)), self._files)),
    store("always finds work", "second_run_finds_nothing_to_do", "them to come to rest",
          choice=lambda self, policy, view: LineChoice(view.files, f"{len(view.files)} files")),
    store("takes any plan", "order_that_cannot_be_meant_is_refused", "InvalidInput", require_mine=nothing),
    store("takes plan and policy", "order_that_cannot_be_meant_is_refused", "InvalidInput", require_one_of=nothing),
    store("carries out old plans", "old_plan_takes_nothing_of_later_writes", "Stale to be raised",
          is_outdated=answering(False)),
    store("skips old plans", "old_plan_takes_nothing_of_later_writes", "Stale to be raised", carry_out=ended(
        lambda toy, outcome: Skipped("1 plan is old") if isinstance(outcome, Failed) else outcome)),
    store("asks no policy but its own", "given_policy_is_the_one_that_is_asked", "did not ask it",
          choice=lambda self, policy, view: LineStore.choice(self, self._policy, view)),
    store("takes None for nothing", "given_policy_is_the_one_that_is_asked", "InvalidInput that names the policy",
          choice=lambda self, policy, view: policy.choose(view, 0.0) or LineChoice((), "0 files")),
    store("verifies in words", "reclaim_verify_and_audit_answer", "a VerifyReport that is sound",
          verify=lambda self: str(LineStore.verify(self))),
    store("verifies nothing", "damage_is_found", "verify() is sound", damage_in=answering([])),
    store("works after its end", "closed_store_says_so", "Closed to be raised", require_open=nothing),
    store("leaves a file open", "closing_lets_everything_go", "0001.lines", commit=commit_and_leave_a_file_open,
          __del__=lambda self: os.close(self.left) if hasattr(self, "left") else None),
    store("leaves a thread", "closing_lets_everything_go", "every thread to have ended", hangs=True,
          carry_out=with_a_thread(LineStore.carry_out)),
    store("lets a second owner in", "second_owner_is_refused", "Busy", locked=open_lock, require_open=nothing),
    store("two at once", BUSY, "Busy to be raised", is_busy=answering(True),
          begin=lambda self, budget: Ownership("one of many").begin(budget)),
    store("waits for the other", BUSY, "a second compact() during a commit has not", hangs=True, begin=begin_when_free),
    store("says nothing of busy", BUSY, "Busy to be raised", busy=answering(Skipped("1 compaction is under way"))),
    store("status is never busy", BUSY, "status().is_busy is false while a compaction", is_busy=answering(False)),
    store("runs within itself", WITHIN, "Busy to be raised", begin=begin_within),
    store("hangs when closed from within", WITHIN, "has not come back", hangs=True, begin=begin_unmarked),
    store("knows its own thread only", WITHIN, "has not come back", hangs=True,
          notified=lambda self, run, observer: telling(observer)),
    store("holds writers", "writers_go_on_beside_a_compaction", "act() while tasks run has not come back", hangs=True,
          write=locked("write"), carry_out=locked("carry_out")),
    store("closes early", CLOSING, "close() came back while the compaction still ran", close=close_early),
    store("closes without cancelling", CLOSING, "is not cancelled", carry_out=carry_out_with_another_budget),
    store("cancels the callers", CLOSING, "has cancelled the caller's budget", compact=compact_noting_the_budget,
          close=close_cancelling_the_callers),
    store("lets observers break it", "observers_may_raise_and_may_ask", "compactlib.observer.notify",
          notified=lambda self, run, observer: observer or Observer()),
    store("notifies inside a lock", "observers_may_raise_and_may_ask", "has not come back", hangs=True,
          status=locked("status"), carry_out=locked("carry_out")),
    store("lets executors raise", "executor_that_does_wrong_is_a_failure", "catch Exception around the executor",
          answers=lambda self, executor, tasks, budget, observer: executor.run(tasks, budget=budget,
                                                                               observer=observer)),
    store("forgets forgotten tasks", "executor_that_does_wrong_is_a_failure", "answers for no task at all",
          rewritten=rewritten_unless_forgotten),
    store("keeps what policies raise", FOREIGN, "it to come through",
          carry_out=ended(lambda toy, outcome: outcome, Exception)),
    store("keeps interrupts", FOREIGN, "it to come through",
          carry_out=ended(lambda toy, outcome: outcome, KeyboardInterrupt)),
    store("wraps what fences raise", FOREIGN, "it to come through", guard=guard_wrapping_errors),
    store("leaks its run", FOREIGN, "is_busy to be false", hangs=True, begin=begin_without_finally),
    store("ignores its fence", FENCE, "the fence was never entered", guard=answering(contextlib.nullcontext())),
    store("enters its fence late", FENCE, "when its fence is entered first", commit=commit_before_the_fence),
    store("says nothing has changed", STEPS, "a partial report", changed=answering("no")),
    store("asks no budget", "cancelled_budget_lets_nothing_begin", "BudgetSpent to be raised",
          carry_out=carry_out_with_another_budget),
    store("asks no budget at any step", STEPS, "a whole compaction never asked",
          carry_out=carry_out_with_another_budget),
    store("asks and goes on", STEPS, "every compaction was whole all the same", carry_out=check_budget_and_go_on),
    store("loses what it had", STEPS, "everything acknowledged to be there", clean_up=clean_up_with_the_sources),
    store("asks for no room", "nothing_begins_without_room", "with room for", room=answering(1 << 40)),
    store("names no numbers", "nothing_begins_without_room", "one with both numbers", carry_out=ended(
        lambda toy, outcome: Skipped("the disk is full: 0 or so") if isinstance(outcome, Skipped) else outcome)),
    store("commits blindly", OWNERS, "one to be done", **SHARED, has_changed=answering(False)),
    store("counts what is lost", OWNERS, "one to be done", **SHARED,
          carry_out=lambda self, *args: LineStore.carry_out(self, *args)),
    store("holds the others", OWNERS, "the faster compaction has not come back", hangs=True, **SHARED,
          carry_out=carry_out_one_at_a_time),
    store("deletes what it does not know", OWNERS, "everything acknowledged to be there", **SHARED,
          is_outdated=outdated_noting_paths, clean_up=clean_up_unknown_paths),
]


@pytest.mark.parametrize("mistake", STORES, ids=str)
def test_mistake_of_a_store_is_found(mistake: Mistake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = (SharedLineDriver if mistake.toy is SharedLineStore else LineDriver)(mistake.planted())
    kit = CompactionConformance()
    kit.make_driver = lambda: driver  # type: ignore[method-assign]
    check_mistake(mistake, kit, tmp_path, monkeypatch)


def check_mistake(mistake: Mistake, kit: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if mistake.hangs:
        monkeypatch.setattr(stand_ins, "PATIENCE_SECONDS", HANGS_SECONDS)
    with pytest.raises(PromiseBroken) as broken:
        getattr(kit, mistake.promise)(folder)
    check_lesson(broken.value, mistake.promise)
    assert mistake.says in str(broken.value)


@pytest.mark.parametrize(("method", "says"), [
    ("check", "check() is content with an empty store"), ("state", "state() is the same"),
    ("contents", "contents() is the same")])
def test_driver_that_sees_nothing_is_found(method: str, says: str, tmp_path: Path) -> None:
    driver: Any = LineDriver()
    setattr(driver, method, nothing)
    kit = CompactionConformance()
    kit.make_driver = lambda: driver  # type: ignore[method-assign]
    with pytest.raises(PromiseBroken, match=re.escape(says)):
        kit.test_driver_sees_what_is_missing(tmp_path)


def test_first_lesson_is_the_plainest(tmp_path: Path) -> None:
    planted = next(each for each in STORES if each.name == "takes any plan")
    with pytest.raises(PromiseBroken) as broken:
        check_compaction(LineDriver(planted.planted()), tmp_path, effort_percent=1)
    check_lesson(broken.value, planted.promise)


# ------------------------------------------------------------------------------------------------------------- services


@contextlib.contextmanager
def leased_without_finally(self: ToyService) -> Iterator[None]:
    self.leases.append("lease")
    yield
    self.leases.clear()


def stop_early(self: ToyService, *, wait_seconds: float = 30.0) -> Any:
    outcome = ToyService.stop(self, wait_seconds=0.0)
    return Done(0) if isinstance(outcome, Failed) else outcome


def play_without_cancelling(self: ToyService, job: Any) -> Any:
    self._decide()
    self._work(Budget())
    return Done(None)


def play_swallowing_errors(self: ToyService, job: Any) -> Any:
    try:
        return ToyService.play(self, job)
    except Exception as error:
        return Failed(CompactlibError(str(error)))


def play_once(self: ToyService, job: Any) -> Any:
    if self.failures:
        raise Closed("it has failed once")
    return ToyService.play(self, job)


def pending_keeping_interrupts(self: ToyService) -> Any:
    try:
        return ToyService.run_pending(self)
    except (KeyboardInterrupt, SystemExit):
        return ()


def pending_raising(self: ToyService) -> Any:
    outcomes = ToyService.run_pending(self)
    if outcomes and isinstance(outcomes[0], Failed):
        raise outcomes[0].error
    return outcomes


def stop_by_waiting_for_itself(self: ToyService, *, wait_seconds: float = 30.0) -> Any:
    ending = threading.Thread(target=ToyService.stop, args=(self,), daemon=True)
    ending.start()
    ending.join(2.0)
    return Done(None)


def start_another_each_time(self: ToyService) -> None:
    if self._service.report().is_active:
        threading.Thread(target=threading.Event().wait, args=(2,), name="another", daemon=True).start()
    ToyService.start(self)


def start_in_the_callers_thread(self: ToyService) -> None:
    self.run_pending()
    ToyService.start(self)


def wake_after_its_end(self: ToyService) -> None:
    if self._service.is_stopped:
        self._decide()
    ToyService.wake(self)


def init_with_a_raw_observer(self: Any, decide: Any, work: Any, observer: Observer) -> None:
    ToyService.__init__(self, decide, work, Observer())
    self.observer = observer


def play_notifying(self: Any, job: Any) -> Any:
    try:
        return ToyService.play(self, job)
    except Exception as error:
        self.observer.event("toy_failed", {"error": repr(error)})
        raise


async def async_stop_early(self: ToyAsyncService, *, wait_seconds: float = 30.0) -> Any:
    outcome = await ToyAsyncService.stop(self, wait_seconds=0.0)
    return Done(0) if isinstance(outcome, Failed) else outcome


async def async_play_swallowing_errors(self: ToyAsyncService) -> Any:
    with contextlib.suppress(Exception):
        return await ToyAsyncService.play(self)
    return Done(None)


async def async_play_leaking(self: ToyAsyncService) -> Any:
    self.leases.append("lease")
    self._decide()
    await self._await()
    self.leases.clear()
    return Done(None)


async def async_begin_and_die(self: ToyAsyncService) -> None:
    async def turns() -> None:
        while True:
            await self.turn()

    self._woken.set()
    self._work.spawn(turns(), "playing")


async def async_begin_leaving_a_task(self: Any) -> None:
    await async_begin_and_die(self)
    self.left = asyncio.get_running_loop().create_task(asyncio.Event().wait())


async def async_stop_waiting_for_itself(self: ToyAsyncService, *, wait_seconds: float = 30.0) -> Any:
    while self.leases:
        await asyncio.sleep(0.001)
    return await ToyAsyncService.stop(self, wait_seconds=wait_seconds)


async def async_enter_without_start(self: Any) -> Any:
    return self


GOES_ON, KEEPS = "error_of_its_work_is_kept_and_it_goes_on", "run_pending_keeps_what_its_work_raises"
INTERRUPTS, ENDLESS = "interrupts_pass_through_run_pending", "stop_of_endless_work_says_so"
ITSELF, WITH = "started_service_works_by_itself", "with_starts_and_stops"
THREADS: Any = {"toy": ToyService}
LOOP: Any = {"toy": ToyAsyncService}

SERVICES = [
    store("leaks its lease", KEEPS, "each lease and lock to be released", **THREADS, leased=leased_without_finally),
    store("leaks its lease when interrupted", INTERRUPTS, "each lease and lock", **THREADS,
          leased=leased_without_finally),
    store("stops early", ENDLESS, "never come back before", **THREADS, stop=stop_early),
    store("stops late", ENDLESS, "stop() of work that does not end has not come back", hangs=True, **THREADS,
          stop=lambda self, wait_seconds=30.0: ToyService.stop(self, wait_seconds=30.0)),
    store("does not cancel", "stop_cancels_what_works", "cancel it", hangs=True, **THREADS,
          play=play_without_cancelling),
    store("swallows errors", GOES_ON, "keep, count and log it", hangs=True, **THREADS,
          play=play_swallowing_errors),
    store("swallows errors of run_pending", KEEPS, "kept in last_error", hangs=True, **THREADS,
          play=play_swallowing_errors),
    store("keeps interrupts", INTERRUPTS, "it to come through", **THREADS, run_pending=pending_keeping_interrupts),
    store("raises from run_pending", KEEPS, "not raised", **THREADS, run_pending=pending_raising),
    store("answers nothing", "run_pending_works_in_its_caller", "whether something was due", **THREADS,
          run_pending=nothing),
    store("waits for itself", "stopping_from_within_is_busy", "compare the thread or task", hangs=True, **THREADS,
          stop=stop_by_waiting_for_itself),
    store("starts another each time", ITSELF, "the second start() has started", hangs=True, **THREADS,
          start=start_another_each_time),
    store("works in the caller's thread", ITSELF, "in the thread that called start()", **THREADS,
          start=start_in_the_callers_thread),
    store("leaves a thread", WITH, "after stop() these go on", hangs=True, **THREADS,
          start=with_a_thread(ToyService.start)),
    store("goes on after its end", "stopping_ends_it", "turns after stop()", **THREADS, wake=wake_after_its_end),
    store("never tries again", GOES_ON, "a third turn after two", hangs=True, **THREADS, play=play_once),
    store("lets observers break it", "observers_that_raise_break_nothing", "compactlib.observer.notify", **THREADS,
          __init__=init_with_a_raw_observer, play=play_notifying),
    store("async stops early", ENDLESS, "never come back before", **LOOP, stop=async_stop_early),
    store("async swallows errors", GOES_ON, "failures to be 2: not after", hangs=True, **LOOP,
          play=async_play_swallowing_errors),
    store("async swallows errors of run_pending", KEEPS, "a turn that raises: not after", hangs=True, **LOOP,
          play=async_play_swallowing_errors),
    store("async leaks its lease", KEEPS, "each lease and lock to be released", **LOOP, play=async_play_leaking),
    store("async leaks its lease when interrupted", INTERRUPTS, "its work still holds", **LOOP,
          play=async_play_leaking),
    store("async dies of errors", GOES_ON, "a third turn after two", hangs=True, **LOOP, _begin=async_begin_and_die),
    store("async leaves a task", WITH, "after stop() these go on", **LOOP, _begin=async_begin_leaving_a_task),
    store("async waits for itself", "stopping_from_within_is_busy", "compare the thread or task", hangs=True,
          **LOOP, stop=async_stop_waiting_for_itself),
    store("async does not start", WITH, "a turn inside the `with`", hangs=True, **LOOP,
          __aenter__=async_enter_without_start),
]


@pytest.mark.parametrize("mistake", SERVICES, ids=str)
def test_mistake_of_a_service_is_found(mistake: Mistake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planted = mistake.planted()
    kit = ServiceConformance()
    kit.make_factory = lambda: (  # type: ignore[method-assign]
        ToyAsyncServices(planted) if mistake.toy is ToyAsyncService else ToyServices(planted))
    check_mistake(mistake, kit, tmp_path, monkeypatch)


def test_thread_about_to_begin_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """`threading.enumerate` names it before it can be joined."""
    begun, about_to_begin = threading.enumerate, [threading.Thread()]
    monkeypatch.setattr(threading, "enumerate", lambda: [*begun(), *about_to_begin])
    monkeypatch.setattr(time, "sleep", lambda _seconds: about_to_begin.clear())
    assert stand_ins.lasting_threads(set(begun())) == []
