"""The part of the kit of `contract.Compaction` about who runs: two at once, closing meanwhile, closing from within."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from compactlib.budget import Budget
from compactlib.errors import BudgetSpent, Busy, Closed
from compactlib.observe import Observer
from compactlib.outcome import Done, Failed, Skipped
from compactlib.rewrite import RewriteTask
from compactlib.testing.compaction_kit import CompactionPart, Opened, attempt, done, skipped
from compactlib.testing.conformance import Mismatch, expect, same
from compactlib.testing.contract_actors import (
    EARLY_SECONDS,
    Call,
    ExecutorBy,
    FenceBy,
    Gate,
    ObserverBy,
    PolicyBy,
    TaskBy,
    in_another_thread,
    soundly,
)

_THREADS = 4


class RunPromises(CompactionPart):
    """A store owns its compaction: one at a time, and `close` ends it."""

    def test_a_second_owner_is_refused(self, tmp_path: Path) -> None:
        """A folder that is open cannot be opened again: `Busy`. Once it is closed it can.

        To do: hold a compactlib.folder_lock.FolderLock from before the first read until the end of close().
        """
        with self.opened(tmp_path, fills=1) as opened:
            if not opened.factory.has_owner:
                return
            with expect(Busy):
                opened.factory.open(opened.folder, files=opened.files)
            opened.check("a second opening was refused")
        with self.reopened(opened) as again:
            again.check("closing and opening again")

    def test_busy_is_skipped_at_once(self, tmp_path: Path) -> None:
        """While one compaction stands in its commit, a second one and a reclaim are `Skipped`, and status says busy.

        To do: begin each run with Ownership.begin(), and answer Skipped if it yields None; never wait for the other,
        and raise nothing. Where stores are shared, one of the two commits, and the other is Skipped.
        """
        with self.opened(tmp_path, fills=1) as opened, Gate() as gate:
            first = Call(lambda: opened.compact(fence=FenceBy(gate.hold)), "compact()")
            first.holds_until(gate)
            assert Call(opened.store.status, "status() during a commit").answer().is_busy, (
                "status().is_busy is false while a compaction runs")
            second = Call(lambda: opened.compact(), "a second compact() during a commit").answer()
            reclaimed = Call(opened.reclaim, "reclaim() during a commit").answer() if opened.factory.has_owner else None
            gate.open()
            outcomes = [first.answer(), second]
            if opened.factory.has_owner:
                assert skipped(second, "a second compact() while one runs").is_busy, (
                    f"{second!r} is Skipped because somebody else is at it, and is_busy is false")
                skipped(reclaimed, "reclaim() while a compaction runs")
                done(first.answer(), "the compaction that was first")
            kinds = sorted(type(outcome).__name__ for outcome in outcomes)
            same((kinds, outcomes), (["Done", "Skipped"], outcomes))
            opened.finish("two compactions at once")

    def test_of_many_threads_that_begin_at_once_one_compacts(self, tmp_path: Path) -> None:
        """All come back with `Done` or `Skipped`; nothing is raised and nothing lost.

        To do: take the run under a lock (Ownership does), and answer everybody else Skipped.
        """
        with self.opened(tmp_path, fills=1) as opened:
            barrier = threading.Barrier(_THREADS)

            def compact() -> Any:
                barrier.wait()
                return opened.compact()

            calls = [Call(compact, f"compact() in thread {number}") for number in range(_THREADS)]
            outcomes = [call.answer() for call in calls]
            strange = [outcome for outcome in outcomes if not isinstance(outcome, Done | Skipped)]
            assert not strange, f"of {_THREADS} compactions at once: {strange}"
            assert any(isinstance(outcome, Done) for outcome in outcomes), f"none of them compacted: {outcomes}"
            opened.finish("compactions in many threads")

    def test_writers_go_on_beside_a_compaction(self, tmp_path: Path) -> None:
        """While tasks run, writing, views and plans come back; what is written stays.

        To do: hold no lock that writers need while an executor works; take it for the commit alone.
        """
        with self.opened(tmp_path, fills=1) as opened, Gate() as gate:
            if not opened.factory.uses_executor:
                return
            compaction = Call(lambda: opened.compact(executor=_held(gate)), "compact()")
            compaction.holds_until(gate)
            for name, call in {"fill()": lambda: opened.fill(1), "view()": opened.view, "plan()": opened.plan,
                               "audit()": opened.store.audit, "status()": opened.store.status}.items():
                Call(call, f"{name} while tasks run").answer()
            gate.open()
            done(compaction.answer(), "a compaction beside which was written")
            opened.check("writes beside a compaction")
            opened.finish("writes beside a compaction")

    def test_close_cancels_and_waits_for_what_copies(self, tmp_path: Path) -> None:
        """It cancels the budget that the tasks were given, and comes back when the run has ended.

        To do: give the executor the run's budget (Run.budget), cancel it in close(), and wait for the run before
        anything is let go; Ownership.close() does both.
        """
        with self.opened(tmp_path, fills=1) as opened, Gate() as gate:
            if not opened.factory.uses_executor:
                return
            lent: list[Budget] = []

            def run(tasks: Sequence[RewriteTask], budget: Budget, observer: Observer) -> Iterable[Any]:
                lent.append(budget)
                gate.hold()
                return soundly(tasks, budget, observer)

            mine = Budget()
            outcome = self._closed_meanwhile(opened, gate, budget=mine, executor=ExecutorBy(run))
            assert lent[0].cancelled, "close() came back, and the budget of the tasks was not cancelled"
            assert not mine.cancelled, "close() has cancelled the caller's budget, who may need it for other stores"
            if not isinstance(outcome, Failed) or not isinstance(outcome.error, BudgetSpent):
                raise Mismatch(f"the compaction during which the store was closed: {outcome!r}", "Failed(BudgetSpent)")

    def test_close_waits_for_a_commit(self, tmp_path: Path) -> None:
        """A commit that has begun ends before `close` comes back.

        To do: wait in close() for the end of the run; Ownership.close() does.
        """
        with self.opened(tmp_path, fills=1) as opened, Gate() as gate:
            outcome = self._closed_meanwhile(opened, gate, fence=FenceBy(gate.hold))
            if not isinstance(outcome, Done | Failed):
                raise Mismatch(f"the compaction during which the store was closed: {outcome!r}", "Done or Failed")

    def _closed_meanwhile(self, opened: Opened, gate: Gate, **named: Any) -> Any:
        """The outcome of a compaction that was held at the gate while another thread closed the store."""
        compaction = Call(lambda: opened.compact(**named), "compact()")
        compaction.holds_until(gate)
        closing = Call(opened.store.close, "close() during a compaction")
        if closing.ended.wait(EARLY_SECONDS):
            closing.answer()
            raise Mismatch("close() came back while the compaction still ran", "it to wait for the run's end")
        gate.open()
        closing.answer()
        outcome = compaction.answer()
        if not isinstance(attempt(opened.compact), Closed):
            raise Mismatch("after close() compact() did not raise Closed", "Closed")
        opened.factory.release(opened.store)
        with self.reopened(opened) as again:
            again.finish("closing during a compaction")
        return outcome

    def test_closing_from_a_policy_is_busy(self, tmp_path: Path) -> None:
        """A policy that closes the store gets `Busy`; nothing hangs, and the compaction goes on.

        To do: let the run begin before its policy is asked, so that Ownership knows whose doing it is.
        """
        with self.opened(tmp_path, fills=1) as opened:
            answers: list[object] = []

            def close(view: Any, now: float) -> object:
                answers.append(attempt(opened.store.close))
                return PolicyBy.GOES_ON

            self._closed_within(opened, answers, policy=PolicyBy(opened.factory.policy(), close))

    def test_closing_from_a_fence_is_busy(self, tmp_path: Path) -> None:
        """A fence that closes the store gets `Busy`; nothing hangs, and the compaction goes on.

        To do: enter the fence in the thread that runs, inside Run.inside().
        """
        with self.opened(tmp_path, fills=1) as opened:
            answers: list[object] = []
            self._closed_within(opened, answers, fence=FenceBy(
                lambda number: answers.append(attempt(opened.store.close))))

    def test_closing_from_an_observer_is_busy(self, tmp_path: Path) -> None:
        """An observer that closes the store when it is first told something gets `Busy`; the compaction goes on.

        To do: tell through Run.observer(observer), which marks on each thread whose doing it is.
        """
        with self.opened(tmp_path, fills=1) as opened:
            answers: list[object] = []

            def close() -> None:
                if not answers:
                    answers.append(attempt(opened.store.close))

            self._closed_within(opened, answers, observer=ObserverBy(close))

    def test_closing_from_an_executor_or_a_task_is_busy(self, tmp_path: Path) -> None:
        """So does whatever runs on behalf of the compaction, also on a thread that knows nothing of its caller.

        To do: give the executor Run.observer(observer): attempt_task marks by it what a task does, on any thread.
        """
        for number, around in enumerate((soundly, in_another_thread)):
            with self.opened(tmp_path, fills=1, name=f"store-{number}") as opened:
                if not opened.factory.uses_executor:
                    return
                answers: list[object] = []

                def close(opened: Opened = opened, answers: list[object] = answers) -> None:
                    answers.append(attempt(opened.store.close))

                def run(tasks: Sequence[RewriteTask], budget: Budget, observer: Observer,
                        around: Callable[..., Iterable[Any]] = around,
                        close: Callable[[], None] = close) -> Iterable[Any]:
                    close()
                    return around([TaskBy(task, close) for task in tasks], budget, observer)

                self._closed_within(opened, answers, executor=ExecutorBy(run))

    def _closed_within(self, opened: Opened, answers: list[object], **named: Any) -> None:
        """The compaction within which the store was to be closed comes to its end, and each closing was `Busy`."""
        outcome = Call(lambda: opened.compact(**named), "a compaction from within which the store is closed").answer()
        assert answers, f"the {', '.join(named)} given to compact() was never called: {outcome!r}"
        strange = [answer for answer in answers if not isinstance(answer, Busy)]
        if strange:
            raise Mismatch(f"close() from within answered {strange[0]!r}", "Busy to be raised")
        done(outcome, "the compaction from within which the store was to be closed")
        opened.finish("closing from within")


def _held(gate: Gate) -> ExecutorBy:
    def run(tasks: Sequence[RewriteTask], budget: Budget, observer: Observer) -> Iterable[Any]:
        gate.hold()
        return soundly(tasks, budget, observer)

    return ExecutorBy(run)
