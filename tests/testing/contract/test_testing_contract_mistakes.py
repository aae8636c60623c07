# SPDX-License-Identifier: Apache-2.0
"""Planted mistakes: each makes one step of a toy wrong, and turns the promise red that it breaks."""

from __future__ import annotations

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

from compactlib.budget import Budget
from compactlib.errors import Busy, CompactlibError
from compactlib.executors import RewriteFailure, RewriteResult
from compactlib.guard import Guard, Run
from compactlib.testing import CompactionConformance, PromiseBroken, check_compaction, stand_ins
from tests.harness.lessons import check_lesson
from tests.harness.toy_lines import LineChoice, LinePlan
from tests.testing.contract.toy_shared import SharedLineDriver, SharedLineStore
from tests.testing.contract.toy_store import LineDriver, LineReport, LineStore

HANGS_SECONDS = 0.2
"""The patience with a mistake that makes something hang."""


@attrs.frozen
class Mistake:
    """A toy with some of its methods replaced, the broken promise, and the text of the report."""

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


def mistake(name: str, promise: str, says: str, *, hangs: bool = False, toy: type = LineStore,
            **methods: Any) -> Mistake:
    return Mistake(name, f"test_{promise}", says, methods, hangs, toy)


def nothing(*_: Any, **__: Any) -> None:
    """Do nothing."""


def answering(value: Any) -> Callable[..., Any]:
    return lambda *_, **__: value


# ------------------------------------------------------------------------------------------- steps that take more lines


def changed_plan(change: Callable[[LineStore, LinePlan], Any]) -> Callable[..., Any]:
    return lambda self, *args, **named: change(self, LineStore.plan(self, *args, **named))


def written(self: LineStore, plan: LinePlan) -> LinePlan:
    with contextlib.closing(self._files.create(self._folder / f"plan {time.perf_counter_ns()}")) as out:
        out.write_at(0, [repr(plan).encode()])
    return plan


@attrs.define(repr=False)
class LoosePlan(LinePlan):
    def __setattr__(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)


@contextlib.contextmanager
def begun_apart(self: LineStore, budget: Budget | None) -> Iterator[Run]:
    run = Run(Guard("one of many"), budget)
    with run.held:
        run.begin()
        yield run


@contextlib.contextmanager
def begun_when_free(self: LineStore, budget: Budget | None) -> Iterator[Run]:
    while True:
        with contextlib.suppress(Busy), LineStore.begun(self, budget) as run:
            yield run
            return
        time.sleep(0.001)


@contextlib.contextmanager
def begun_without_end(self: LineStore, budget: Budget | None) -> Iterator[Run]:
    run = Run(self._guard, budget)
    run.held.acquire()
    run.begin()
    yield run
    run.held.release()


LOCKS: dict[int, threading.Lock] = {}


def locked(method: str) -> Callable[..., Any]:
    """A method that holds one lock of the store."""

    def call(self: LineStore, *args: Any) -> Any:
        with LOCKS.setdefault(id(self), threading.Lock()):
            return getattr(LineStore, method)(self, *args)

    return call


def commit_and_leave_a_file_open(self: Any, result: RewriteResult, fence: Any) -> int:
    self.left = os.open(self._folder / "0001.lines", os.O_RDONLY)
    return LineStore.commit(self, result, fence)


def with_a_thread(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method that leaves a thread behind."""

    def call(self: Any, *args: Any) -> Any:
        threading.Thread(target=threading.Event().wait, args=(2,), name="left", daemon=True).start()
        return method(self, *args)

    return call


def close_early(self: LineStore) -> None:
    threading.Thread(target=self._guard.release, daemon=True).start()


def close_cancelling_the_callers(self: Any) -> None:
    self.given.cancel()
    LineStore.close(self)


def compact_noting_the_budget(self: Any, *args: Any, **named: Any) -> LineReport:
    self.given = named.get("budget") or Budget()
    return LineStore.compact(self, *args, **named)


def carry_out_with_another_budget(self: LineStore, run: Run, *args: Any) -> LineReport:
    return LineStore.carry_out(self, Run(self._guard), *args)


def check_budget_and_go_on(self: LineStore, run: Run, *args: Any) -> LineReport:
    with contextlib.suppress(CompactlibError):
        run.budget.check()
    return carry_out_with_another_budget(self, run, *args)


def compact_keeping(*errors: type[BaseException]) -> Callable[..., LineReport]:
    def compact(self: LineStore, *args: Any, **named: Any) -> LineReport:
        try:
            return LineStore.compact(self, *args, **named)
        except errors as error:
            raise CompactlibError(str(error)) from error

    return compact


def rewritten_unless_forgotten(self: LineStore, plan: LinePlan, *args: Any) -> Iterator[Any]:
    executor, budget, observer = args
    for outcome in self.answers(executor, [self.task(file) for file in plan.chosen], budget, observer):
        if isinstance(outcome, RewriteResult | RewriteFailure) and outcome.task.startswith("clean"):
            yield outcome


def commit_before_the_fence(self: LineStore, result: RewriteResult, fence: Any) -> int:
    committed = LineStore.commit(self, result, None)
    with self.guarded(fence):
        return committed


def clean_up_with_the_sources(self: LineStore) -> int:
    for path in [path for path in self._folder.iterdir() if path.suffix == ".new"]:
        self._files.unlink(self._folder / f"{path.name.split('.')[0]}.lines")
    return LineStore.clean_up(self)


PLAN = "plan_is_a_function_that_changes_nothing"
EMPTY, BUSY = "nothing_to_do_says_why", "busy_store_says_so_at_once"
WITHIN, CLOSING = "calls_from_within_a_run_are_busy", "close_cancels_the_run_and_waits"
OBSERVERS, FENCE = "observers_may_raise_and_may_call", "fence_guards_each_commit"
ENDINGS = "errors_of_the_host_end_the_run"
STEPS = "budget_ends_or_holds_the_work_at_any_step"
SHARED: Any = {"toy": SharedLineStore}

STORES = [
    mistake("plan is None", EMPTY, "plan() returned None",
            plan=changed_plan(lambda toy, plan: None if plan.is_empty else plan)),
    mistake("plan without reason", EMPTY, "and the setting",
            plan=changed_plan(lambda toy, plan: attrs.evolve(plan, why="nothing to do") if plan.is_empty else plan)),
    mistake("plan writes", PLAN, "changes of the disk in plan()", plan=changed_plan(written)),
    mistake("plan can be changed", PLAN, "can be set", plan=changed_plan(
        lambda toy, plan: LoosePlan(plan.store, plan.chosen, plan.why, plan.bytes_available))),
    mistake("plan depends on the hour", PLAN, "by the view alone",
            plan=changed_plan(lambda toy, plan: attrs.evolve(plan, why=f"at {time.perf_counter_ns()}"))),
    mistake("always finds work", EMPTY, "an empty compaction",
            choice=lambda self, policy, view: LineChoice(view.files, f"{len(view.files)} files")),
    mistake("takes any plan", "contradicting_arguments_are_refused", "InvalidInput", require_mine=nothing),
    mistake("takes plan and policy", "contradicting_arguments_are_refused", "InvalidInput", require_one_of=nothing),
    mistake("carries out old plans", "old_plan_takes_nothing_of_later_writes", "Stale to be raised",
            is_outdated=answering(False)),
    mistake("asks no policy but its own", ENDINGS, "this error to be raised",
            choice=lambda self, policy, view: LineStore.choice(self, self._policy, view)),
    mistake("verifies in words", "reclaim_verify_and_audit_answer", "a VerifyReport that is sound",
            verify=lambda self: str(LineStore.verify(self))),
    mistake("works after its end", "closed_store_says_so", "Closed to be raised", require_open=nothing),
    mistake("leaves a file open", "closing_releases_files_and_threads", "0001.lines",
            commit=commit_and_leave_a_file_open,
            __del__=lambda self: os.close(self.left) if hasattr(self, "left") else None),
    mistake("leaves a thread", "closing_releases_files_and_threads", "every thread to have ended", hangs=True,
            carry_out=with_a_thread(LineStore.carry_out)),
    mistake("lets a second owner in", "closed_store_says_so", "Busy", lock_folder=nothing),
    mistake("two at once", BUSY, "Busy to be raised", is_busy=answering(True), begun=begun_apart),
    mistake("waits for the other", BUSY, "a second compact() during a commit has not", hangs=True,
            begun=begun_when_free),
    mistake("status is never busy", BUSY, "status().is_busy is false while a compaction", is_busy=answering(False)),
    mistake("commits blindly", BUSY, "one to be done", **SHARED, begun=begun_apart, is_busy=answering(True),
            has_changed=answering(False)),
    mistake("closes from within", WITHIN, "Busy to be raised", is_within=answering(False)),
    mistake("runs within itself", WITHIN, "Busy to be raised", begun=begun_apart),
    mistake("holds writers", "readers_and_writers_continue_during_a_compaction", "has not returned",
            hangs=True, write=locked("write"), carry_out=locked("carry_out")),
    mistake("closes early", CLOSING, "close() returned while the compaction still ran", close=close_early),
    mistake("closes without cancelling", CLOSING, "is not cancelled", carry_out=carry_out_with_another_budget),
    mistake("cancels the callers", CLOSING, "has cancelled the caller's budget", compact=compact_noting_the_budget,
            close=close_cancelling_the_callers),
    mistake("lets observers break it", OBSERVERS, "compactlib.observer.notify",
            notify=lambda self, observer, event: observer and observer.event(event)),
    mistake("notifies inside a lock", OBSERVERS, "has not returned", hangs=True,
            status=locked("status"), notify=locked("notify")),
    mistake("lets executors raise", ENDINGS, "Catch Exception around the executor",
            answers=lambda self, executor, tasks, budget, observer: executor.run(tasks, budget=budget,
                                                                                 observer=observer)),
    mistake("forgets forgotten tasks", ENDINGS, "yields no outcome", rewritten=rewritten_unless_forgotten),
    mistake("keeps what policies raise", ENDINGS, "this error to be raised", compact=compact_keeping(Exception)),
    mistake("keeps interrupts", ENDINGS, "this error to be raised", compact=compact_keeping(KeyboardInterrupt)),
    mistake("leaks its run", ENDINGS, "is_busy to be false", hangs=True, begun=begun_without_end),
    mistake("ignores its fence", FENCE, "the fence was never entered", guarded=answering(contextlib.nullcontext())),
    mistake("enters its fence late", FENCE, "when its fence is entered first", commit=commit_before_the_fence),
    mistake("asks no budget", "cancelled_budget_starts_nothing", "BudgetSpent to be raised",
            carry_out=carry_out_with_another_budget),
    mistake("asks and goes on", STEPS, "every compaction was whole anyway", carry_out=check_budget_and_go_on),
    mistake("says nothing has changed", STEPS, "a partial report", has_changed_by=answering(False)),
    mistake("loses what it had", STEPS, "every acknowledged change to be present", clean_up=clean_up_with_the_sources),
    mistake("asks for no room", "nothing_begins_without_room", "with room for", room=answering(1 << 40)),
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
    ("check", "check() accepts an empty store"), ("state", "state() is the same"),
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
        check_compaction(LineDriver(planted.planted()), tmp_path)
    check_lesson(broken.value, planted.promise)
