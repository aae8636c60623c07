"""The part of the kit of `contract.Compaction` about who runs: two at once, closing meanwhile, closing from within."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from compactlib.errors import BudgetSpent, Busy, Closed, Conflict
from compactlib.outcome import Done, Failed, Skipped
from compactlib.rewrite import RewriteTask
from compactlib.runtime.budget import Budget
from compactlib.runtime.observe import Observer
from compactlib.testing.compactions.kit import (
    CompactionPart,
    Opened,
    attempt,
    done,
    lasting_threads,
    open_files,
    skipped,
)
from compactlib.testing.kit.conformance import Mismatch, expect, shown
from compactlib.testing.kit.contract_actors import (
    EARLY_SECONDS,
    Call,
    ExecutorBy,
    FenceBy,
    Gate,
    ObserverBy,
    PolicyBy,
    TaskBy,
    in_another_thread,
    raising,
    soundly,
)

_THREADS = 4


class RunPromises(CompactionPart):
    """A store owns its compaction: one at a time, and `close` ends it."""

    def test_a_second_owner_is_refused(self, tmp_path: Path) -> None:
        """A folder that is open cannot be opened again: `Busy`. Once it is closed it can.

        To do: hold a compactlib.files.folder_lock.FolderLock from before the first read until the end of close().
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
            one_done(outcomes, "two at once")
            opened.finish("two compactions at once")

    def test_compacting_from_within_a_compaction_is_skipped(self, tmp_path: Path) -> None:
        """An observer, a policy or a fence that compacts or reclaims gets `Skipped`; nothing waits for itself.

        To do: answer Skipped(..., is_busy=True) whoever asks while a run is under way, the run itself included.
        """
        if not self.make_factory().has_owner:
            return
        for name in ("observer", "policy", "fence"):
            with self.opened(tmp_path, fills=1, name=f"store-{name}") as opened:
                answers: list[Any] = []

                def again(*_: object, opened: Opened = opened, answers: list[Any] = answers) -> object:
                    if not answers:
                        answers.append(opened.compact())
                        answers.append(opened.reclaim())
                    return PolicyBy.GOES_ON

                doer: dict[str, Any] = {"observer": ObserverBy(again), "fence": FenceBy(again),
                                        "policy": PolicyBy(opened.factory.policy(), again)}
                call = partial(opened.compact, **{name: doer[name]})
                outcome = Call(call, f"a compaction whose {name} compacts").answer()
                for answer in answers:
                    assert skipped(answer, f"compacting within the {name} of a compaction").is_busy, (
                        f"{answer!r} is Skipped because the store is busy, and is_busy is false")
                done(outcome, f"a compaction whose {name} compacts")
                opened.finish(f"a compaction whose {name} compacts")

    def test_of_two_owners_of_a_shared_store_one_commits(self, tmp_path: Path) -> None:
        """Another opening of the same store overtakes a compaction that stands still: the slower one is `Skipped`.

        To do: commit with a condition on what was read, look what came of it, and answer Skipped when another was
        first and has done the same.
        """
        for number, place in enumerate(("fence", "executor")):
            with self.opened(tmp_path, fills=1, name=f"store-{number}") as opened, Gate() as gate:
                if opened.factory.has_owner or (place == "executor" and not opened.factory.uses_executor):
                    continue
                held: dict[str, Any] = {"fence": FenceBy(gate.hold)} if place == "fence" else {"executor": _held(gate)}
                slow = Call(partial(opened.compact, **held), "the slower compaction")
                slow.holds_until(gate)
                with self.reopened(opened) as other:
                    fast = Call(other.compact, "the faster compaction").answer()
                    gate.open()
                    outcomes = [slow.answer(), fast]
                    one_done(outcomes, f"one held in its {place}, one beside it")
                    other.finish("two owners that compact at once")
                opened.finish("two owners that compact at once")

    def test_readers_go_on_through_a_compaction(self, tmp_path: Path) -> None:
        """A reader that opened the store before reads the same before the commit, in it, and after it.

        To do: keep what is replaced until no reader can hold it any more, and let readers find the new names.
        """
        with self.opened(tmp_path, fills=2) as opened, Gate() as gate, contextlib.ExitStack() as readers:
            found = opened.factory.reader(opened.folder)
            if found is None:
                return
            readers.callback(found.close)
            opened.reads(found, "opening a reader")
            compaction = Call(lambda: opened.compact(fence=FenceBy(gate.hold)), "compact()")
            compaction.holds_until(gate)
            opened.reads(found, "a commit has begun")
            gate.open()
            done(compaction.answer(), "a compaction beside which was read")
            opened.reads(found, "a compaction, by a reader from before")
            fresh = opened.factory.reader(opened.folder)
            readers.callback(fresh.close)
            opened.reads(fresh, "a compaction, by a new reader")

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

    def test_closing_lets_everything_go(self, tmp_path: Path) -> None:
        """After compactions that were done, interrupted and refused, no file of the folder is open, no thread lives.

        To do: close what was opened in a `finally`, the descriptors of readers included, and join each thread.
        """
        threads = set(threading.enumerate())
        refusal = Conflict("a newer token was admitted")
        given: list[dict[str, Any]] = [
            {}, {"fence": FenceBy(raising(refusal))}, {"observer": ObserverBy(raising(KeyboardInterrupt()))},
            {"policy": PolicyBy(self.make_factory().policy(), raising(refusal))}]
        for number, named in enumerate(given):
            with self.opened(tmp_path, fills=1, name=f"store-{number}") as opened:
                if not opened.factory.has_owner:
                    return
                with contextlib.suppress(Conflict, KeyboardInterrupt):
                    opened.compact(**named)
                opened.view()
                opened.check("a compaction")
            left = [*open_files(opened.folder), *lasting_threads(threads)]
            if left:
                raise Mismatch(f"after compact({', '.join(named)}) and close() there are still open: {shown(left)}",
                               "every file to be closed and every thread to have ended")

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
        closings = [Call(opened.store.close, f"close() {nth} during a compaction") for nth in ("once", "twice")]
        for closing in closings:
            if closing.ended.wait(EARLY_SECONDS):
                closing.answer()
                raise Mismatch("close() came back while the compaction still ran", "it to wait for the run's end")
        gate.open()
        for closing in closings:
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


def one_done(outcomes: Sequence[object], when: str) -> None:
    """Of two compactions one was done, and the other skipped.

    Raises:
        Mismatch: it is not so.
    """
    if [isinstance(outcome, Done) for outcome in outcomes].count(True) != 1 or not all(
            isinstance(outcome, Done | Skipped) for outcome in outcomes):
        raise Mismatch(f"{when}: {outcomes}", "one Done, and one Skipped")


def _held(gate: Gate) -> ExecutorBy:
    def run(tasks: Sequence[RewriteTask], budget: Budget, observer: Observer) -> Iterable[Any]:
        gate.hold()
        return soundly(tasks, budget, observer)

    return ExecutorBy(run)
