# SPDX-License-Identifier: Apache-2.0
"""Planted mistakes: each breaks a promise of the contract, and is found by the test that it should be."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest

from compactlib.contract import CommitFence, Policy
from compactlib.errors import Busy, CompactlibError, StorageError
from compactlib.executors import Executor, RewriteFailure, RewriteResult
from compactlib.files import Files
from compactlib.files.folder_lock import FolderLock
from compactlib.outcome import Failed, Skipped
from compactlib.report import Finding
from compactlib.runtime import Budget, Observer
from compactlib.runtime.observe import telling
from compactlib.runtime.ownership import Ownership, Run
from compactlib.testing import CompactionConformance, PromiseBroken, check_compaction
from compactlib.testing.crash import scratch_folder
from compactlib.testing.kit import contract_actors
from tests.harness.lessons import check_lesson
from tests.harness.toy_lines import Clean, LineChoice, LineFile, LinePlan, LineStatus, LineView
from tests.testing.contract.toy_factory import LineStores
from tests.testing.contract.toy_shared import (
    CommitsBlindly,
    CountsWhatIsLost,
    DeletesWhatItDoesNotKnow,
    HoldsTheOthers,
    SharedLineStore,
    SharedLineStores,
)
from tests.testing.contract.toy_store import LineStore


class PlanIsNone(LineStore):
    def plan(self, *args: Any, **named: Any) -> Any:
        plan = super().plan(*args, **named)
        return None if plan.is_empty else plan


class EmptyPlanWithoutReason(LineStore):
    def plan(self, *args: Any, **named: Any) -> LinePlan:
        plan = super().plan(*args, **named)
        return attrs.evolve(plan, why="nothing to do") if plan.is_empty else plan


class PlanWrites(LineStore):
    def plan(self, *args: Any, **named: Any) -> LinePlan:
        plan = super().plan(*args, **named)
        with contextlib.suppress(CompactlibError), contextlib.closing(self._files.create(self._folder / "plan")) as out:
            out.write_at(0, [repr(plan).encode()])
        return plan


@attrs.define(repr=False)
class LoosePlan(LinePlan):
    """Has a `__dict__`, and no hash."""

    def __setattr__(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)


class PlanCanBeChanged(LineStore):
    def plan(self, *args: Any, **named: Any) -> LinePlan:
        plan = super().plan(*args, **named)
        return LoosePlan(plan.store, plan.chosen, plan.why, plan.bytes_available)


class PlanDependsOnTheHour(LineStore):
    calls = 0

    def plan(self, *args: Any, **named: Any) -> LinePlan:
        self.calls += 1
        return attrs.evolve(super().plan(*args, **named), why=f"plan {self.calls}")


class ForecastWithoutHeaders(LineStore):
    def task(self, file: LineFile) -> Clean:
        return WritesAHeader(f"clean {file.number}", str(self._path(file.number)), self._files)


@attrs.frozen
class WritesAHeader(Clean):
    def kept(self) -> bytes:
        return b"#v1\n" + super().kept()


class AlwaysFindsWork(LineStore):
    def choice(self, policy: Policy[LineView, LineChoice], view: LineView) -> LineChoice:
        super().choice(policy, view)
        return LineChoice(view.files, f"{len(view.files)} files")


class TakesAnyPlan(LineStore):
    def require_mine(self, plan: LinePlan | None) -> None:
        pass


class TakesPlanAndPolicy(LineStore):
    def require_one_of(self, plan: LinePlan | None, policy: object) -> None:
        pass


class CarriesOutOldPlans(LineStore):
    def is_outdated(self, plan: LinePlan) -> bool:
        return False


class AnswersSkippedToOldPlans(LineStore):
    def carry_out(self, *args: Any) -> Any:
        outcome = super().carry_out(*args)
        return Skipped("1 plan is old") if isinstance(outcome, Failed) else outcome


class LooksAtNoArguments(LineStore):
    def checked(self, **given: object) -> None:
        pass


class AsksNoPolicyButItsOwn(LineStore):
    def choice(self, policy: Policy[LineView, LineChoice], view: LineView) -> LineChoice:
        return super().choice(self._policy, view)


class AuditsWithAssert(LineStore):
    def audit(self) -> None:
        assert self._folder.is_dir()


class VerifiesNothing(LineStore):
    def damage_in(self, path: Path) -> list[Finding]:
        return []


class VerifiesInWords(LineStore):
    def verify(self, **named: Any) -> Any:
        return str(super().verify(**named))


class WorksAfterItsEnd(LineStore):
    def require_open(self) -> None:
        pass


class LetsASecondOwnerIn(LineStore):
    def locked(self) -> FolderLock:
        lock = super().locked()
        lock.release()
        return lock

    def require_open(self) -> None:
        pass


class TwoAtOnce(LineStore):
    def begin(self, budget: Budget | None) -> contextlib.AbstractContextManager[Run | None]:
        return Ownership("one of many").begin(budget)

    def is_busy(self) -> bool:
        return True


class RaisesBusy(LineStore):
    def busy(self) -> Skipped:
        raise Busy("1 compaction is under way")


class WaitsForTheOther(LineStore):
    @contextlib.contextmanager
    def begin(self, budget: Budget | None) -> Iterator[Run | None]:
        while True:
            with self._owner.begin(budget) as run:
                if run is not None:
                    yield run
                    return
            threading.Event().wait(0.001)


class SaysNothingOfBusy(LineStore):
    def busy(self) -> Skipped:
        return Skipped("1 compaction is under way")


class StatusIsNeverBusy(LineStore):
    def is_busy(self) -> bool:
        return False


class HoldsWriters(LineStore):
    def __init__(self, folder: Path, *, files: Files) -> None:
        self._writing = threading.Lock()
        super().__init__(folder, files=files)

    def write(self, *args: Any) -> None:
        with self._writing:
            super().write(*args)

    def carry_out(self, *args: Any) -> Any:
        with self._writing:
            return super().carry_out(*args)


class RunsWithinItself(LineStore):
    @contextlib.contextmanager
    def begin(self, budget: Budget | None) -> Iterator[Run | None]:
        if self._owner.is_mine:
            yield Run(budget or Budget())
            return
        with self._owner.begin(budget) as run:
            yield run


class LeavesAFileOpen(LineStore):
    """Until nobody knows the store any more."""

    left = -1

    def commit(self, result: RewriteResult, fence: CommitFence | None) -> None:
        if self.left < 0:
            self.left = os.open(self._folder / "0001.lines", os.O_RDONLY)
        super().commit(result, fence)

    def __del__(self) -> None:
        if self.left >= 0:
            os.close(self.left)


class LeavesAThread(LineStore):
    def carry_out(self, *args: Any) -> Any:
        threading.Thread(target=threading.Event().wait, args=(10,), name="left", daemon=True).start()
        return super().carry_out(*args)


class RaisesFromCancelledLooks(LineStore):
    def reclaim(self, *, budget: Budget | None = None) -> Any:
        if budget is not None:
            budget.check()
        return super().reclaim(budget=budget)


class ClosesEarly(LineStore):
    def close(self) -> None:
        threading.Thread(target=self._owner.close, daemon=True).start()
        self._lock.release()


class ClosesWithoutCancelling(LineStore):
    def carry_out(self, run: Run, *args: Any) -> Any:
        mine = Run(Budget())
        with mine.inside(), run.inside():
            return super().carry_out(mine, *args)


class CancelsTheCallers(LineStore):
    def compact(self, *args: Any, **named: Any) -> Any:
        self.given: Budget | None = named.get("budget")
        return super().compact(*args, **named)

    def close(self) -> None:
        if getattr(self, "given", None) is not None:
            self.given.cancel()  # type: ignore[union-attr]
        super().close()


class HangsWhenClosedFromWithin(LineStore):
    @contextlib.contextmanager
    def begin(self, budget: Budget | None) -> Iterator[Run | None]:
        run = Run(budget or Budget())
        try:
            yield run if self._owner.take(run) else None
        finally:
            self._owner.release(run)


class KnowsItsOwnThreadOnly(LineStore):
    def told(self, run: Run, observer: Observer | None) -> Observer:
        return telling(observer)


class LetsObserversBreakIt(LineStore):
    def told(self, run: Run, observer: Observer | None) -> Observer:
        return observer or Observer()


class TellsInsideALock(LineStore):
    def __init__(self, folder: Path, *, files: Files) -> None:
        self._looking = threading.Lock()
        super().__init__(folder, files=files)

    def status(self) -> LineStatus:
        with self._looking:
            return super().status()

    def carry_out(self, *args: Any) -> Any:
        with self._looking:
            return super().carry_out(*args)


class KeepsWhatPoliciesRaise(LineStore):
    def carry_out(self, *args: Any) -> Any:
        try:
            return super().carry_out(*args)
        except Exception as error:
            return Failed(CompactlibError(str(error)))


class TakesNoneForNothing(LineStore):
    def choice(self, policy: Policy[LineView, LineChoice], view: LineView) -> LineChoice:
        found: object = policy.choose(view, 0.0)
        return found if isinstance(found, LineChoice) else LineChoice((), f"0 of {len(view.files)} files")


class LetsExecutorsRaise(LineStore):
    def answers(self, executor: Executor, tasks: list[Clean], budget: Budget, observer: Observer) -> Iterable[Any]:
        return executor.run(tasks, budget=budget, observer=observer)


class ForgetsForgottenTasks(LineStore):
    def rewritten(self, plan: LinePlan, executor: Executor, budget: Budget,
                  observer: Observer) -> Iterator[RewriteResult | RewriteFailure]:
        for outcome in self.answers(executor, [self.task(file) for file in plan.chosen], budget, observer):
            if isinstance(outcome, RewriteResult | RewriteFailure) and outcome.task.startswith("clean"):
                yield outcome


class LeaksItsRun(LineStore):
    @contextlib.contextmanager
    def begin(self, budget: Budget | None) -> Iterator[Run | None]:
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


class KeepsInterrupts(LineStore):
    def carry_out(self, *args: Any) -> Any:
        try:
            return super().carry_out(*args)
        except (KeyboardInterrupt, SystemExit) as error:
            return Failed(CompactlibError(str(error)))


class IgnoresItsFence(LineStore):
    def guard(self, fence: CommitFence | None) -> contextlib.AbstractContextManager[object]:
        return contextlib.nullcontext()


class EntersItsFenceLate(LineStore):
    def commit(self, result: RewriteResult, fence: CommitFence | None) -> None:
        super().commit(result, None)
        with self.guard(fence):
            pass


class SaysNothingHasChanged(LineStore):
    def changed(self, committed: int) -> Any:
        return "no"


class TakesForeignErrorsOfFences(LineStore):
    @contextlib.contextmanager
    def guard(self, fence: CommitFence | None) -> Iterator[object]:
        with contextlib.ExitStack() as entered:
            try:
                if fence is not None:
                    entered.enter_context(fence.guard())
            except Exception as error:
                raise CompactlibError(str(error)) from error
            yield None


class AsksNoBudget(LineStore):
    def carry_out(self, run: Run, *args: Any) -> Any:
        with run.inside():
            return super().carry_out(Run(Budget()), *args)


class AsksAndGoesOn(LineStore):
    def carry_out(self, run: Run, *args: Any) -> Any:
        with contextlib.suppress(CompactlibError):
            run.budget.check()
        with run.inside():
            return super().carry_out(Run(Budget()), *args)


class LosesWhatItHad(LineStore):
    """Where it ends early, what it took is gone."""

    def clean_up(self) -> int:
        left = [path for path in self._folder.iterdir() if path.suffix == ".new"]
        for path in left:
            self._files.unlink(self._folder / f"{path.name.split('.')[0]}.lines")
        return super().clean_up()


class AsksForNoRoom(LineStore):
    def room(self) -> int | None:
        return 1 << 40


class NamesNoNumbers(LineStore):
    def carry_out(self, *args: Any) -> Any:
        outcome = super().carry_out(*args)
        return Skipped("the disk is full: 0 or so") if isinstance(outcome, Skipped) else outcome


class LetsTheDiskRaise(LineStore):
    def compact(self, *args: Any, **named: Any) -> Any:
        outcome = super().compact(*args, **named)
        if isinstance(outcome, Failed) and isinstance(outcome.error, StorageError):
            raise outcome.error
        return outcome


class SaysNoOfAnyDisk(LineStore):
    def compact(self, *args: Any, **named: Any) -> Any:
        outcome = super().compact(*args, **named)
        return attrs.evolve(outcome, changed="no") if isinstance(outcome, Failed) else outcome


@attrs.frozen
class WritesWithoutSync(Clean):
    """Its new file is in place before its bytes are."""

    def sync(self, out: Any) -> None:
        pass


class RenamesBeforeItsBytesAreThere(LineStore):
    def task(self, file: LineFile) -> Clean:
        return WritesWithoutSync(f"clean {file.number}", str(self._path(file.number)), self._files)


MISTAKES: list[tuple[type[LineStore], str, str]] = [
    (PlanIsNone, "test_a_store_with_nothing_in_it_says_why_nothing_is_done", "plan() answered None"),
    (EmptyPlanWithoutReason, "test_a_store_with_nothing_in_it_says_why_nothing_is_done", "the setting to change"),
    (PlanWrites, "test_a_plan_changes_nothing", "changes of the disk in plan()"),
    (PlanCanBeChanged, "test_views_plans_and_status_are_values", "can be set"),
    (PlanDependsOnTheHour, "test_equal_views_give_equal_plans", "decide by the view alone"),
    (ForecastWithoutHeaders, "test_a_plan_is_carried_out_as_it_says", "bytes copied"),
    (AlwaysFindsWork, "test_a_second_run_finds_nothing_to_do", "an empty plan"),
    (TakesAnyPlan, "test_a_plan_of_another_store_is_refused", "InvalidInput"),
    (TakesPlanAndPolicy, "test_a_plan_and_a_policy_together_are_refused", "InvalidInput"),
    (CarriesOutOldPlans, "test_an_outdated_plan_is_stale", "Failed(Stale)"),
    (AnswersSkippedToOldPlans, "test_an_outdated_plan_is_stale", "Failed(Stale)"),
    (AsksNoPolicyButItsOwn, "test_a_policy_given_to_plan_or_compact_is_the_one_that_is_asked", "did not ask it"),
    (LooksAtNoArguments, "test_arguments_that_are_none", "look at the types of all arguments"),
    (AuditsWithAssert, "test_reclaim_verify_and_audit_answer", "raise AuditFailed"),
    (VerifiesInWords, "test_reclaim_verify_and_audit_answer", "a VerifyReport that is sound"),
    (VerifiesNothing, "test_damage_is_found", "bytes have changed, and verify() says"),
    (WorksAfterItsEnd, "test_a_closed_store_says_so", "Closed to be raised"),
    (LetsASecondOwnerIn, "test_a_second_owner_is_refused", "Busy"),
    (TwoAtOnce, "test_busy_is_skipped_at_once", "Skipped, with a reason"),
    (RaisesBusy, "test_busy_is_skipped_at_once", "raise nothing"),
    (WaitsForTheOther, "test_busy_is_skipped_at_once", "a second compact() during a commit has not come back"),
    (SaysNothingOfBusy, "test_busy_is_skipped_at_once", "is_busy is false"),
    (StatusIsNeverBusy, "test_busy_is_skipped_at_once", "status().is_busy is false while a compaction runs"),
    (RunsWithinItself, "test_compacting_from_within_a_compaction_is_skipped", "Skipped, with a reason"),
    (LeavesAFileOpen, "test_closing_lets_everything_go", "0001.lines"),
    (LeavesAThread, "test_closing_lets_everything_go", "every thread to have ended"),
    (RaisesFromCancelledLooks, "test_looking_and_reclaiming_may_be_cancelled_too", "reclaim"),
    (HoldsWriters, "test_writers_go_on_beside_a_compaction", "fill() while tasks run has not come back"),
    (ClosesEarly, "test_close_cancels_and_waits_for_what_copies", "close() came back while the compaction still ran"),
    (ClosesEarly, "test_close_waits_for_a_commit", "close() came back while the compaction still ran"),
    (ClosesWithoutCancelling, "test_close_cancels_and_waits_for_what_copies", "was not cancelled"),
    (CancelsTheCallers, "test_close_cancels_and_waits_for_what_copies", "has cancelled the caller's budget"),
    (HangsWhenClosedFromWithin, "test_closing_from_a_policy_is_busy", "from within which the store is closed has not"),
    (HangsWhenClosedFromWithin, "test_closing_from_a_fence_is_busy", "from within which the store is closed has not"),
    (KnowsItsOwnThreadOnly, "test_closing_from_an_executor_or_a_task_is_busy", "has not come back"),
    (LetsObserversBreakIt, "test_observers_that_raise_break_nothing", "telling(observer)"),
    (TellsInsideALock, "test_observers_may_ask_the_store", "has not come back"),
    (KeepsWhatPoliciesRaise, "test_what_a_policy_raises_comes_through", "its error is the caller's"),
    (TakesNoneForNothing, "test_a_policy_that_answers_nothing_is_named", "InvalidInput that names the policy"),
    (LetsExecutorsRaise, "test_an_executor_that_does_wrong_is_a_failure", "catch Exception around the executor"),
    (ForgetsForgottenTasks, "test_an_executor_that_does_wrong_is_a_failure", "answers for no task at all"),
    (LeaksItsRun, "test_interrupts_pass_and_release_everything", "is_busy to be false"),
    (KeepsInterrupts, "test_interrupts_pass_and_release_everything", "it to come through"),
    (IgnoresItsFence, "test_a_fence_is_entered_around_each_commit", "the fence was never entered"),
    (EntersItsFenceLate, "test_a_fence_is_entered_around_each_commit", "when its fence is entered first"),
    (SaysNothingHasChanged, "test_a_fence_that_refuses_keeps_its_commit_from_happening", 'changed="partly"'),
    (TakesForeignErrorsOfFences, "test_what_else_a_fence_raises_comes_through", "it to come through"),
    (AsksNoBudget, "test_a_budget_that_was_cancelled_before_lets_nothing_begin", "Failed(BudgetSpent)"),
    (AsksNoBudget, "test_a_budget_that_is_spent_at_any_step", "a whole compaction never asked the budget"),
    (AsksAndGoesOn, "test_a_budget_that_is_spent_at_any_step", "every compaction was Done all the same"),
    (LosesWhatItHad, "test_a_budget_that_is_spent_at_any_step", "everything acknowledged to be there"),
    (AsksForNoRoom, "test_without_room_nothing_begins", "with room for"),
    (NamesNoNumbers, "test_without_room_nothing_begins", "one with both numbers"),
    (LetsTheDiskRaise, "test_a_disk_that_refuses_any_step", "let StorageError end the work as Failed"),
    (SaysNoOfAnyDisk, "test_a_disk_that_refuses_any_step", 'changed="partly", or "unknown"'),
    (RenamesBeforeItsBytesAreThere, "test_killed_at_any_step_then_a_successor_then_a_power_failure",
     "everything acknowledged to be there"),
]


@pytest.mark.parametrize(("kind", "test", "told"), MISTAKES, ids=lambda each: getattr(each, "__name__", None))
def test_a_mistake_is_found_and_told(kind: type[LineStore], test: str, told: str,
                                     monkeypatch: pytest.MonkeyPatch) -> None:
    # What hangs is found sooner.
    monkeypatch.setattr(contract_actors, "PATIENCE_SECONDS", 1.0)
    kit = CompactionConformance()
    kit.make_factory = lambda: LineStores(kind)  # type: ignore[method-assign]
    with scratch_folder(None) as folder, pytest.raises(PromiseBroken) as broken:
        getattr(kit, test)(folder)
    check_lesson(broken.value, test)
    assert told in str(broken.value)


class IsContentWithAnything(LineStores):
    def check(self, store: LineStore, acknowledged: Sequence[tuple[int, ...]]) -> None:
        pass


class SeesNoCommit(LineStores):
    def state(self, store: LineStore) -> object:
        return None


class SeesNothingStored(LineStores):
    def contents(self, folder: Path, store: LineStore) -> object:
        return None


@pytest.mark.parametrize(("kind", "told"), [
    (IsContentWithAnything, "check() is content with an empty store"),
    (SeesNoCommit, "state() is the same"), (SeesNothingStored, "contents() is the same")])
def test_a_factory_that_sees_nothing_is_found_and_told(kind: type[LineStores], told: str) -> None:
    kit = CompactionConformance()
    kit.make_factory = kind  # type: ignore[method-assign]
    test = "test_the_factory_sees_what_is_missing_and_what_was_committed"
    with scratch_folder(None) as folder, pytest.raises(PromiseBroken) as broken:
        getattr(kit, test)(folder)
    check_lesson(broken.value, test)
    assert told in str(broken.value)


SHARED: list[tuple[type[SharedLineStore], str, str]] = [
    (CommitsBlindly, "test_of_two_owners_of_a_shared_store_one_commits", "one Done, and one Skipped"),
    (CountsWhatIsLost, "test_of_two_owners_of_a_shared_store_one_commits", "one Done, and one Skipped"),
    (HoldsTheOthers, "test_of_two_owners_of_a_shared_store_one_commits", "the faster compaction has not come back"),
    (DeletesWhatItDoesNotKnow, "test_an_owner_that_stands_still_at_any_step_is_overtaken",
     "everything acknowledged to be there"),
]


@pytest.mark.parametrize(("kind", "test", "told"), SHARED, ids=lambda each: getattr(each, "__name__", None))
def test_a_mistake_of_a_shared_store_is_found_and_told(kind: type[SharedLineStore], test: str, told: str,
                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contract_actors, "PATIENCE_SECONDS", 1.0)
    factory = SharedLineStores(kind)
    kit = CompactionConformance()
    kit.make_factory = lambda: factory  # type: ignore[method-assign]
    with scratch_folder(None) as folder, pytest.raises(PromiseBroken) as broken:
        getattr(kit, test)(folder)
    check_lesson(broken.value, test)
    assert told in str(broken.value)


def test_the_first_lesson_is_the_plainest(tmp_path: Path) -> None:
    with pytest.raises(PromiseBroken) as broken:
        check_compaction(LineStores(TakesAnyPlan), tmp_path, effort_percent=1)
    check_lesson(broken.value, "test_a_plan_of_another_store_is_refused")

