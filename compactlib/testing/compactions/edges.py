"""The part of the kit of `contract.Compaction` about whoever misbehaves: observers, policies, executors, fences."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from compactlib.errors import BudgetSpent, CompactlibError, Conflict, InvalidInput, TaskFailed
from compactlib.outcome import Done, Failed, Skipped
from compactlib.runtime.budget import Budget
from compactlib.testing.compactions.kit import CompactionPart, Opened, attempt, done, failed, spent
from compactlib.testing.kit.conformance import Mismatch, same, shown
from compactlib.testing.kit.contract_actors import (
    Call,
    ExecutorBy,
    FenceBy,
    Gate,
    ObserverBy,
    PolicyBy,
    SteppingClock,
    failing_executor,
    garbage_executors,
    in_another_thread,
    raising,
    raising_executors,
)

_MOST_STEPS = 40
_MOST_PAUSES = 3
_MOST_OVERTAKEN = 20
_LATE = 1e18


class Surprise(Exception):
    """An error that is none of the library's."""


class EdgePromises(CompactionPart):
    """Whatever those do who watch, decide, copy, guard or limit: it is named, and the next compaction goes on."""

    def test_observers_that_raise_break_nothing(self, tmp_path: Path) -> None:
        """Watching breaks nothing: the compaction ends as it would have.

        To do: tell through compactlib.runtime.telling(observer) or Run.observer(observer), and through nothing else.
        """
        with self.opened(tmp_path, fills=1) as opened:
            observer = ObserverBy(raising(Surprise("the observer's own bug")))
            done(opened.compact(observer=observer), "a compaction whose observer raises")
            assert observer.told, "the observer given to compact() was told nothing"
            opened.finish("a compaction whose observer raises")

    def test_observers_may_ask_the_store(self, tmp_path: Path) -> None:
        """Within what it is told, an observer gets a status, a view and a plan; nothing waits for itself.

        To do: tell nobody inside a lock: keep what is to be told, and tell it after the lock's release (LaterObserver).
        """
        for name, executor in self._executors().items():
            with self.opened(tmp_path, fills=1, name=f"store {name}") as opened:
                answers: list[object] = []

                def ask(opened: Opened = opened, answers: list[object] = answers) -> None:
                    # One thread each, so that a lock that its holder may take again does not hide behind that.
                    for asked in (opened.store.status, opened.view, opened.plan):
                        answers.append(attempt(asked))
                        asking = Call(partial(attempt, asked), "asking the store from an observer")
                        answers.append(asking.answer(times=2))

                watching = ObserverBy(ask)
                call = partial(opened.compact, observer=watching, **executor)
                outcome = Call(call, "a compaction whose observer asks").answer()
                done(outcome, "a compaction whose observer asks the store")
                assert watching.told, "the observer given to compact() was told nothing"
                same(len(answers), 6 * watching.told, case="answers that the observer got")
                strange = [answer for answer in answers if isinstance(answer, CompactlibError)]
                assert not strange, f"asking the store from an observer raised {strange[0]!r}"

    def _executors(self) -> Mapping[str, Mapping[str, Any]]:
        if not self.make_factory().uses_executor:
            return {"without": {}}
        return {"in this thread": {}, "in another thread": {"executor": ExecutorBy(in_another_thread)}}

    def test_what_a_policy_raises_comes_through(self, tmp_path: Path) -> None:
        """A policy is asked, not told: its error is the caller's, and nothing stays held.

        To do: let what choose() raises pass as it is, in plan() and in compact(), and release the run in a `finally`.
        """
        with self.opened(tmp_path, fills=1) as opened:
            before = opened.contents()
            for error in (Surprise("the policy's own bug"), Conflict("the policy's own refusal")):
                policy = PolicyBy(opened.factory.policy(), raising(error))
                for name, call in {"plan": partial(opened.plan, policy),
                                   "compact": partial(opened.compact, policy=policy)}.items():
                    same(_raised_by(call), error, case=f"{name}() with a policy that raises it")
                    same(opened.contents(), before)
            opened.finish("a policy that raises")

    def test_a_policy_that_answers_nothing_is_named(self, tmp_path: Path) -> None:
        """`None`, or what is no choice, is `InvalidInput` with the policy's name.

        To do: look at what choose() returned before using it, and say whose answer it was, and which type is needed.
        """
        with self.opened(tmp_path, fills=1) as opened:
            before = opened.contents()
            for answer in (None, 42, "everything"):
                policy = PolicyBy(opened.factory.policy(), _answering(answer))
                for name, call in {"plan": partial(opened.plan, policy),
                                   "compact": partial(opened.compact, policy=policy)}.items():
                    found = _raised_by(call)
                    if not isinstance(found, InvalidInput) or policy.name not in str(found):
                        raise Mismatch(f"{name}() with a policy that answers {answer!r}: {found!r}",
                                       f"InvalidInput that names the policy {policy.name!r}")
                    same(opened.contents(), before)
            opened.finish("a policy that answers nothing")

    def test_an_executor_that_does_wrong_is_a_failure(self, tmp_path: Path) -> None:
        """Whether it raises, fails a task, answers garbage or forgets a task: `Failed`, and the next one goes on.

        To do: catch Exception around the executor as TaskFailed, check that each task was answered exactly once and by
        a RewriteResult or a RewriteFailure, and release the run in a `finally`.
        """
        raised = raising_executors(Surprise("the executor's own bug"))
        refused = Conflict("the task's own refusal")
        executors: dict[str, ExecutorBy] = {**raised, **garbage_executors(),
                                            "fails each task": failing_executor(refused)}
        for number, (name, executor) in enumerate(executors.items()):
            with self.opened(tmp_path, fills=1, name=f"store-{number}") as opened:
                if not opened.factory.uses_executor:
                    return
                before = opened.state()
                kind = TaskFailed if name in raised else CompactlibError
                outcome = failed(opened.compact(executor=executor), kind, f"an executor that {name}")
                assert executor.runs, f"the executor that {name} was never called"
                if executor.tasks and name == "fails each task":
                    same(outcome.error, refused)
                truthful(opened, outcome, before, f"an executor that {name}")
                opened.finish(f"an executor that {name}")

    def test_interrupts_pass_and_release_everything(self, tmp_path: Path) -> None:
        """`KeyboardInterrupt` and `SystemExit`, from wherever they come, propagate; the next compaction goes on.

        To do: release runs, locks and private files in `finally`; catch Exception, never BaseException.
        """
        for error in (KeyboardInterrupt("the host's user"), SystemExit("the host's end")):
            for name, named in self._interrupting(error).items():
                with self.opened(tmp_path, fills=1, name=f"store {type(error).__name__} {name}") as opened:
                    found = _raised_by(partial(opened.compact, **named))
                    if found is not error:
                        raise Mismatch(f"{error!r} from {name}: {found!r}", "it to come through")
                    opened.idle(f"{error!r} from {name}")
                    opened.finish(f"{error!r} from {name}")

    def _interrupting(self, error: BaseException) -> Mapping[str, Mapping[str, Any]]:
        factory = self.make_factory()
        found: dict[str, Mapping[str, Any]] = {
            "a policy": {"policy": PolicyBy(factory.policy(), raising(error))},
            "a fence": {"fence": FenceBy(raising(error))},
            "an observer": {"observer": ObserverBy(raising(error))},
        }
        if factory.uses_executor:
            found.update({f"an executor that {name}": {"executor": executor}
                          for name, executor in raising_executors(error).items()})
        return found

    def test_a_fence_is_entered_around_each_commit(self, tmp_path: Path) -> None:
        """Whatever is committed is committed inside the fence, and while it may not, nothing is.

        To do: put `with fence.guard():` around each commit, in the thread that commits.
        """
        with self.opened(tmp_path, fills=2) as opened:
            before = opened.state()
            seen: list[object] = []
            fence = FenceBy(lambda number: seen.append(opened.state()))
            done(opened.compact(fence=fence), "compact(fence=...)")
            assert fence.entered, "something was committed, and the fence was never entered"
            same(seen[0], before, case="the store's state when its fence is entered first")
            opened.finish("a fence")

    def test_a_fence_that_refuses_keeps_its_commit_from_happening(self, tmp_path: Path) -> None:
        """A library's error on entering is `Failed` with that very error; what was not committed is as it was.

        To do: enter the fence before the first change that others see; answer Failed(error, changed=...) truthfully:
        "no" if no commit came before, else "partly".
        """
        commits = self._commits(tmp_path)
        for number in range(1, commits + 1):
            with self.opened(tmp_path, fills=2, name=f"store-{number}") as opened:
                before, refusal = opened.state(), Conflict("a newer token was admitted")
                fence = FenceBy(_raising_at(number, refusal))
                outcome = failed(opened.compact(fence=fence), Conflict, f"a fence that refuses entry {number}")
                assert outcome.error is refusal, f"the fence raised {refusal!r}, the outcome is {outcome!r}"
                if number == 1:
                    same(outcome.changed, "no", case="changed, after the first entry was refused")
                truthful(opened, outcome, before, f"a fence that refuses entry {number} of {commits}")
                opened.finish(f"a fence that refuses entry {number} of {commits}")

    def test_what_else_a_fence_raises_comes_through(self, tmp_path: Path) -> None:
        """An error that is none of the library's is the host's bug: it propagates, and everything was let go.

        To do: catch CompactlibError around the fence's guard, and nothing wider.
        """
        with self.opened(tmp_path, fills=1) as opened:
            error = Surprise("the fence's own bug")
            found = _raised_by(lambda: opened.compact(fence=FenceBy(raising(error))))
            if found is not error:
                raise Mismatch(f"{error!r} from a fence: {found!r}", "it to come through")
            opened.finish("a fence that raises")

    def _commits(self, folder: Path) -> int:
        with self.opened(folder, fills=2, name="counting") as opened:
            fence = FenceBy()
            done(opened.compact(fence=fence), "compact(fence=...)")
            return fence.entered

    def test_a_budget_that_was_cancelled_before_lets_nothing_begin(self, tmp_path: Path) -> None:
        """It is `Failed(BudgetSpent)`, and nothing has changed.

        To do: ask budget.check() before the first step.
        """
        with self.opened(tmp_path, fills=1) as opened:
            budget, before, fence = Budget(), opened.state(), FenceBy()
            budget.cancel()
            outcome = spent(opened.compact(budget=budget, fence=fence), "a budget that was cancelled before")
            same((outcome.changed, fence.entered), ("no", 0))
            same(opened.state(), before)
            opened.finish("a budget that was cancelled before")

    def test_looking_and_reclaiming_may_be_cancelled_too(self, tmp_path: Path) -> None:
        """With a cancelled budget `view` and `verify` raise `BudgetSpent` or answer, `reclaim` fails by it or answers.

        To do: ask the budget where much has to be counted or read, and let nothing else come out of it.
        """
        with self.opened(tmp_path, fills=1) as opened:
            budget = Budget()
            budget.cancel()
            for name, call in {"view": opened.view, "verify": opened.store.verify}.items():
                found = attempt(partial(call, budget=budget))
                assert found is not None, f"{name}(budget=...) answered None"
                if isinstance(found, CompactlibError) and not isinstance(found, BudgetSpent):
                    raise Mismatch(f"{name}() with a cancelled budget: {found!r}", "BudgetSpent, or its value")
            outcome = opened.reclaim(budget=budget)
            if not isinstance(outcome, Done | Skipped):
                spent(outcome, "reclaim() with a cancelled budget")
            opened.finish("looking with a cancelled budget")

    def test_a_budget_that_is_spent_at_any_step(self, tmp_path: Path) -> None:
        """At each step at which it is asked: `Failed(BudgetSpent)`, all is there, and the next compaction goes on.

        To do: ask the budget that was given (or one lent from it) before each chunk that is written, and before a
        commit begins, not inside it; let BudgetSpent end the work.
        """
        outcomes = list(self._at_steps(tmp_path, _MOST_STEPS, "spent", _SpentAt))
        assert any(isinstance(outcome, Failed) for outcome in outcomes), (
            f"the budget was spent at each of {len(outcomes)} steps, and every compaction was Done all the same")

    def test_a_budget_that_is_cancelled_between_any_two_steps(self, tmp_path: Path) -> None:
        """The next step that asks it ends the work; where none does any more, the work ends by itself.

        To do: ask the budget often, so that a cancelled compaction ends soon.
        """
        for _ in self._at_steps(tmp_path, _MOST_STEPS // 2, "cancelled", _CancelledAt):
            pass

    def test_a_pause_between_any_two_steps(self, tmp_path: Path) -> None:
        """Work that is paused waits, and goes on when it is resumed.

        To do: wait in the budget alone, with no lock held.
        """
        for outcome in self._at_steps(tmp_path, _MOST_PAUSES, "paused", _PausedAt):
            done(outcome, "a compaction that was paused and resumed")

    def test_an_owner_that_stands_still_at_any_step_is_overtaken(self, tmp_path: Path) -> None:
        """Where a store is shared: it wakes when another has compacted, undoes nothing of that, and is done or skipped.

        To do: commit and delete with a condition on what was read; a former owner may wake at any step.
        """
        if self.make_factory().has_owner:
            return
        with self.opened(tmp_path, fills=2, name="counting overtaken") as opened:
            clock = SteppingClock()
            done(opened.compact(budget=Budget(deadline=1.0, clock=clock)), "a compaction with a deadline far away")
        for number in self.some(clock.readings, _MOST_OVERTAKEN):
            with self.opened(tmp_path, fills=2, name=f"store overtaken {number}") as opened, Gate() as gate:
                when = f"an owner that stood still at step {number}, and was overtaken"
                budget = Budget(deadline=1.0, clock=_HeldAt(number, gate))
                slow = Call(partial(opened.compact, budget=budget), "the owner that stands still")
                slow.holds_until(gate)
                with self.reopened(opened) as other:
                    outcomes = [Call(other.compact, "the compaction that overtakes").answer()]
                    other.check(when)
                    other.fill(2)
                    gate.open()
                    outcomes.append(slow.answer())
                    if not all(isinstance(each, Done | Skipped) for each in outcomes) or not any(
                            isinstance(each, Done) for each in outcomes):
                        raise Mismatch(f"{when}: {outcomes}", "Done and Skipped, or both Done")
                    other.check(when)
                    other.finish(when)
                opened.finish(when)

    def _at_steps(self, folder: Path, most: int, what: str, steered: Callable[[int], SteppingClock]) -> Iterator[Any]:
        """The outcomes of compactions to whose budget something was done, each at another of its steps."""
        with self.opened(folder, fills=2, name=f"counting {what}") as opened:
            clock = SteppingClock()
            done(opened.compact(budget=Budget(deadline=1.0, clock=clock)), "a compaction with a deadline far away")
        if not clock.readings:
            raise Mismatch("a whole compaction never asked the budget", "it to be asked before each chunk")
        for number in self.some(clock.readings, most):
            with self.opened(folder, fills=2, name=f"store {what} {number}") as opened:
                clock = steered(number)
                clock.budget = Budget(deadline=1.0, clock=clock)
                before, when = opened.state(), f"a budget that is {what} at its step {number}"
                call = partial(opened.compact, budget=clock.budget)
                outcome = Call(call, f"a compaction with {when}").answer()
                opened.check(when)
                if not isinstance(outcome, Done):
                    truthful(opened, spent(outcome, when), before, when)
                elif not opened.plan().is_empty:
                    raise Mismatch(f"{when}: {outcome!r}, and {opened.plan()!r} is left", "Failed(BudgetSpent)")
                opened.idle(when)
                opened.finish(when)
                yield outcome


class _HeldAt(SteppingClock):
    """At its n-th reading the work stands still, until it is let go."""

    def __init__(self, number: int, gate: Gate) -> None:
        super().__init__()
        self._number = number
        self._gate = gate

    def at(self, reading: int) -> float:
        if reading == self._number:
            self._gate.hold()
        return 0.0


class _SpentAt(SteppingClock):
    """From its n-th reading on the deadline has passed."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self._number = number

    def at(self, reading: int) -> float:
        return _LATE if reading >= self._number else 0.0


class _CancelledAt(_SpentAt):
    """At its n-th reading the budget is cancelled."""

    def at(self, reading: int) -> float:
        if reading == self._number and self.budget is not None:
            self.budget.cancel()
        return 0.0


class _PausedAt(_SpentAt):
    """At its n-th reading the budget is paused, and resumed when the work that waits looks at the time again."""

    def at(self, reading: int) -> float:
        if self.budget is not None and self.budget.paused:
            self.budget.resume()
        elif reading == self._number and self.budget is not None:
            self.budget.pause()
        return 0.0


def truthful(opened: Opened, outcome: Failed, before: object, when: str) -> None:
    """`changed` says what the store shows.

    Raises:
        Mismatch: it says "no" and something has changed, or "partly" and nothing has.
    """
    after = opened.state()
    if outcome.changed == "no" and after != before:
        raise Mismatch(f"{when}: {outcome!r}, but the store was {shown(before)} and is {shown(after)}",
                       'changed="partly", or "unknown"')
    if outcome.changed == "partly" and after == before:
        raise Mismatch(f"{when}: {outcome!r}, but the store is as it was", 'changed="no"')


def _answering(answer: object) -> Callable[..., object]:
    return lambda *_: answer


def _raising_at(number: int, error: BaseException) -> Callable[[int], None]:
    def call(found: int) -> None:
        if found == number:
            raise error

    return call


def _raised_by(call: Callable[[], object]) -> object:
    """What the call raises, or what it answers if it raises nothing."""
    try:
        return call()
    except BaseException as error:
        return error


