# SPDX-License-Identifier: Apache-2.0
"""One owner for a store's compaction: whoever asks, through whichever object, and whatever is closed meanwhile."""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest

from compactlib.blobstore import BlobStore, CompactAll, Questions, RecordKind, compact_many
from compactlib.blobstore.compaction.plan.last_plans import read_last_plans
from compactlib.clock import ManualClock
from compactlib.errors import BudgetSpent, Busy, Closed, DiskFull, Stale
from compactlib.executors import LocalExecutor, RewriteFailure, RewriteTask
from compactlib.outcome import Done, Failed, Skipped
from compactlib.rewrite import RewriteOutcome
from compactlib.runtime import Budget, Observer, RecordingObserver
from tests.blobstore.compaction.held_compactions import PATIENCE, SETTINGS, Held, Working, build, check, open_held
from tests.blobstore.compaction_stores import START, done, open_store, plan_of, strays

Beside = Callable[[BlobStore], Any]


@pytest.fixture
def folder(scratch: Path) -> Path:
    """Of a store that is not there yet, in memory."""
    return scratch / "store"


class Trouble(Exception):
    """Of a host's own."""


def never(*_: object) -> Any:
    """A callable of a host's own that is broken."""
    raise Trouble("this is broken")


def compact(store: BlobStore) -> Any:
    return store.compact(plan_of(store), budget=Budget())


def compact_by_policy(store: BlobStore) -> Any:
    return store.compact(policy=CompactAll(min_used_fraction=0.0), budget=Budget())


def resume(store: BlobStore) -> Any:
    return store.resume(budget=Budget())


def drop(store: BlobStore) -> Any:
    return store.drop_compaction()


def erase(store: BlobStore) -> Any:
    return store.hard_delete(budget=Budget())


def reclaim(store: BlobStore) -> Any:
    return store.reclaim(budget=Budget())


TURNED_AWAY: dict[str, Beside] = {
    "compact": compact, "compact by policy": compact_by_policy, "resume": resume, "drop": drop, "hard delete": erase,
    "reclaim": reclaim}


def meet(folder: Path, at: int, first: Beside, second: Beside) -> tuple[Any, Any] | None:
    """Hold `first` at a change of the disk, call `second`, let `first` go on; what both answered.

    `None`: `first` has ended before.
    """
    shutil.rmtree(folder, ignore_errors=True)
    before, held = build(folder), Held(at)
    with open_held(folder, held) as store:

        def work() -> Any:
            held.counts_me()
            return first(store)

        working = Working(work)
        try:
            if not held.is_reached(working.thread):
                return None
            answer = second(store)
        finally:
            held.release()
        ended = working.join()
        check(store, before)
        store.resume(budget=Budget())
        assert isinstance(compact(store), Done)
        check(store, before)
    with open_held(folder) as store:
        assert not store.compaction_recovery
        check(store, before)
    assert strays(folder) == []
    return ended, answer


def each_step(folder: Path, first: Beside, second: Beside, *, stride: int = 1) -> Iterator[tuple[Any, Any]]:
    """`meet` at every step of the first, or at every so many."""
    at = 1
    while (answers := meet(folder, at, first, second)) is not None:
        yield answers
        at += stride
    assert at > 20 // stride, f"the first one has made {at} changes only"


@pytest.mark.parametrize("name", TURNED_AWAY)
def test_who_comes_second_is_turned_away_at_any_step_of_a_compaction(name: str, scratch: Path) -> None:
    for ended, answer in each_step(scratch / "store", compact, TURNED_AWAY[name], stride=13):
        assert isinstance(ended, Done), ended
        assert isinstance(answer, Skipped), answer
        assert answer.is_busy
        assert "busy" in answer.reason


@pytest.mark.soak
@pytest.mark.parametrize("name", TURNED_AWAY)
def test_who_comes_second_is_turned_away_at_every_step_of_a_compaction(name: str, scratch: Path) -> None:
    for ended, answer in each_step(scratch / "store", compact, TURNED_AWAY[name]):
        assert isinstance(ended, Done), ended
        assert isinstance(answer, Skipped), answer


@pytest.mark.parametrize("name", TURNED_AWAY)
def test_who_comes_second_is_turned_away_while_a_policy_is_asked_and_its_plan_carried_out(
        name: str, scratch: Path) -> None:
    for ended, answer in each_step(scratch / "store", compact_by_policy, TURNED_AWAY[name], stride=13):
        assert isinstance(ended, Done), ended
        assert isinstance(answer, Skipped), answer
        assert answer.is_busy


@pytest.mark.soak
@pytest.mark.parametrize("name", TURNED_AWAY)
def test_who_comes_second_is_turned_away_at_every_step_of_a_policys_plan(name: str, scratch: Path) -> None:
    for ended, answer in each_step(scratch / "store", compact_by_policy, TURNED_AWAY[name]):
        assert isinstance(ended, Done), ended
        assert isinstance(answer, Skipped), answer


def test_a_compaction_waits_for_the_batch_of_a_hard_delete_at_any_step_of_it(scratch: Path) -> None:
    at = 0
    while True:
        at += 1
        folder = scratch / str(at)
        before, held = build(folder), Held(at)
        with open_held(folder, held) as store:
            def erase(store: BlobStore = store, held: Held = held) -> Any:
                held.counts_me()
                return store.hard_delete(budget=Budget())

            erasing = Working(erase)
            if not held.is_reached(erasing.thread):
                break
            waiting, closing = Working(partial(compact, store)), None
            waiting.thread.join(0.02)
            assert waiting.thread.is_alive(), waiting.answer
            if at == 2:
                closing = Working(store.close)
                assert isinstance(waiting.join(), Skipped | Closed), waiting.answer
            held.release()
            if closing is not None:
                assert closing.join() is None
                continue
            assert isinstance(waiting.join(), Done), waiting.answer
            assert isinstance(erasing.join(), Done | Skipped), erasing.answer
            check(store, before)
    assert at > 8, f"a hard delete has made {at} changes only"


def test_a_compaction_that_a_hard_delete_notifies_of_is_turned_away(folder: Path) -> None:
    """It would wait for itself."""
    answered: list[Any] = []

    class Compacting(RecordingObserver):
        def event(self, name: str, fields: Any) -> None:
            if not answered and store.compactions.ownership.is_running:
                answered.append(compact(store))

    build(folder)
    store = open_held(folder)
    with store, store.compactions.running(is_brief=True) as run:
        assert run is not None
        run.observer(Compacting()).event("any", {})
    assert isinstance(answered[0], Skipped)
    assert answered[0].is_busy


def close_while_held(folder: Path, at: int, first: Beside) -> bool:
    """Close the store while `first` is held; whoever opens it next finds everything, whenever `first` goes on."""
    shutil.rmtree(folder, ignore_errors=True)
    before, held, clock = build(folder), Held(at), ManualClock(START + 20)
    store = open_held(folder, held, clock=clock)

    def work() -> Any:
        held.counts_me()
        return first(store)

    working = Working(work)
    is_held = held.is_reached(working.thread)
    closing = Working(store.close)
    owner = store.compactions.ownership
    while closing.thread.is_alive() and is_held and not (owner.is_ending or owner.is_closed):
        closing.thread.join(0.001)
    if is_held:
        assert closing.thread.is_alive(), "the store was closed while it was being compacted"
        with pytest.raises(Busy):
            open_held(folder)
    clock.advance(200.0)
    held.release()
    ended = working.join()
    assert closing.join() is None
    assert (isinstance(ended, Done | Closed) or (isinstance(ended, Skipped) and ended.is_busy)
            or isinstance(ended.error, BudgetSpent | Closed)), ended
    with open_held(folder, clock=clock) as again:
        check(again, before)
        again.resume(budget=Budget())
        done(compact(again))
        check(again, before)
    assert strays(folder) == []
    return is_held


@pytest.mark.parametrize("first", [compact, erase, compact_by_policy])
def test_closing_cancels_and_waits_at_any_step(first: Beside, scratch: Path) -> None:
    at = 1
    while close_while_held(scratch / "store", at, first):
        at += 7
    assert at > 5


@pytest.mark.soak
@pytest.mark.parametrize("first", [compact, erase, compact_by_policy])
def test_closing_cancels_and_waits_at_every_step(first: Beside, scratch: Path) -> None:
    at = 1
    while close_while_held(scratch / "store", at, first):
        at += 1


class Abandoning(LocalExecutor):
    """Goes away while a task of its own still copies in another thread."""

    def __init__(self, held: Held) -> None:
        super().__init__()
        self.held = held
        self.threads: list[threading.Thread] = []

    def run(self, tasks: Iterable[RewriteTask], *, budget: Budget | None = None,
            observer: Observer | None = None) -> Generator[RewriteOutcome, None, None]:
        first, *others = tasks

        def copy() -> None:
            self.held.counts_me()
            list(LocalExecutor().run([first, *others]))

        thread = threading.Thread(target=copy, daemon=True)
        self.threads.append(thread)
        thread.start()
        self.held.is_reached(thread)
        yield from never("this executor is broken")


@pytest.mark.parametrize("reopened", [False, True])
@pytest.mark.parametrize("expired", [False, True])
def test_a_copy_is_not_gone_on_with_while_another_thread_still_writes_it(reopened: bool, expired: bool,
                                                                         scratch: Path) -> None:
    folder = scratch / "store"
    for at in range(1, 100, 3):
        shutil.rmtree(folder, ignore_errors=True)
        before, held, clock = build(folder), Held(at), ManualClock(START + 20)
        store = open_held(folder, held, clock=clock)
        executor = Abandoning(held)
        outcome = store.compact(plan_of(store), executor=executor, budget=Budget())
        assert isinstance(outcome, Failed)
        assert "this is broken" in str(outcome.error)
        (thread,) = executor.threads
        was_held = thread.is_alive()
        if expired:
            clock.advance(200.0)
        if reopened:
            store.close()
            store = open_held(folder, clock=clock)
        done(store.resume(budget=Budget()))
        held.release()
        thread.join(PATIENCE)
        check(store, before)
        store.close()
        with open_held(folder, clock=clock) as store:
            check(store, before)
        if not was_held:
            break
    assert at > 4


# ------------------------------------------------------------------------------------------------- from the inside

def closing_inside(folder: Path, **arguments: Any) -> tuple[list[BaseException], Any]:
    """What a close from within raised, and how the compaction ended."""
    raised: list[BaseException] = []
    build(folder)

    class Closing(Observer):
        def progress(self, progress: object) -> None:
            try_to_close()

        def event(self, name: str, fields: object) -> None:
            try_to_close()

    def try_to_close(*_: object) -> bool:
        try:
            stores[0].close()
        except BaseException as error:
            raised.append(error)
        return False

    stores: list[BlobStore] = []
    with open_store(folder, ManualClock(START + 20), observer=Closing(), **SETTINGS) as store:
        stores.append(store)
        outcome = store.compact(plan_of(store), budget=Budget(), **arguments)
    return raised, outcome


def _all_of(outcomes: Iterable[RewriteOutcome]) -> list[RewriteOutcome]:
    return list(outcomes)


class InThreads:
    """An executor with threads of its own, which know nothing of the caller."""

    def run(self, tasks: Iterable[RewriteTask], *, budget: Budget | None = None,
            observer: Observer | None = None) -> Generator[RewriteOutcome, None, None]:
        for task in list(tasks):
            working = Working(partial(_all_of, LocalExecutor().run([task], budget=budget, observer=observer)))
            yield from working.join()


@pytest.mark.parametrize("executor", [LocalExecutor(), LocalExecutor(2), InThreads()])
def test_closing_from_the_inside_is_busy_on_whichever_thread(executor: Any, folder: Path) -> None:
    raised, outcome = closing_inside(folder, executor=executor)
    assert isinstance(outcome, Done), outcome
    assert len(raised) > 5
    assert all(isinstance(error, Busy) for error in raised), raised


def test_a_policy_and_a_question_cannot_close_either(folder: Path) -> None:
    build(folder)
    raised: list[str] = []

    class Closing(CompactAll):
        def choose(self, view: Any, now: float) -> Any:
            try:
                store.close()
            except Busy as error:
                raised.append(str(error))
            return super().choose(view, now)

    with open_held(folder) as store:
        assert isinstance(store.compact(policy=Closing(min_used_fraction=0.0)), Done)
    assert len(raised) == 1
    assert "own work" in raised[0]


def test_a_store_that_is_closed_is_not_compacted(folder: Path) -> None:
    build(folder)
    store = open_held(folder)
    plan = plan_of(store)
    assert isinstance(store.compact(plan, budget=Budget(total_bytes=10)), Failed)
    store.close()
    store.close()
    calls: list[Callable[[], object]] = [
        lambda: store.compact(plan), store.compact, store.resume, store.drop_compaction, store.reclaim,
        store.hard_delete, store.view, store.plan, store.verify, store.status, store.audit]
    for call in calls:
        with pytest.raises(Closed):
            call()


# ------------------------------------------------------------------------------------- whatever is raised by whoever

@attrs.frozen
class Breaking:
    """An executor that raises after so many outcomes."""

    after: int
    error: BaseException

    def run(self, tasks: Iterable[RewriteTask], *, budget: Budget | None = None,
            observer: Observer | None = None) -> Generator[RewriteOutcome, None, None]:
        for number, outcome in enumerate(LocalExecutor().run(tasks, budget=budget, observer=observer)):
            if number == self.after:
                raise self.error
            yield outcome


class Refusing:
    """An executor whose disk refuses, and that is broken besides."""

    def run(self, tasks: Iterable[RewriteTask], *, budget: Budget | None = None,
            observer: Observer | None = None) -> Generator[RewriteOutcome, None, None]:
        first, *_ = tasks
        yield RewriteFailure(first.name, DiskFull(operation="write", path="/x", errno=28))
        yield from never()


@attrs.frozen
class Fence:
    """A fence whose guard is what a function makes."""

    guard: Callable[[], Any]


@attrs.frozen
class Refusal:
    """A guard that raises when it is entered."""

    error: BaseException

    def __enter__(self) -> None:
        raise self.error

    def __exit__(self, *error: object) -> None:
        raise AssertionError("it was never entered")


class Shouting(Observer):
    """Raises whatever it is told."""

    def progress(self, progress: object) -> None:
        raise Trouble

    def event(self, name: str, fields: object) -> None:
        raise Trouble


@pytest.mark.parametrize("arguments", [
    {"executor": Breaking(0, Trouble("broken"))}, {"executor": Breaking(1, Trouble("broken"))},
    {"executor": Refusing()}, {"executor": Breaking(1, KeyboardInterrupt())}, {"executor": Breaking(1, SystemExit())},
    {"fence": Fence(never)}, {"fence": Fence(lambda: None)}, {"fence": Fence(lambda: Refusal(Stale("too late")))},
    {"fence": Fence(lambda: Refusal(KeyboardInterrupt()))}],
    ids=["raises", "raises later", "refuses and raises", "is interrupted", "exits", "fence raises", "fence is none",
         "fence refuses", "fence is interrupted"])
def test_whatever_is_raised_the_store_is_usable_and_the_next_goes_on(arguments: dict[str, Any], folder: Path) -> None:
    before = build(folder)
    with open_held(folder) as store:
        with contextlib.suppress(KeyboardInterrupt, SystemExit, Trouble, TypeError):
            outcome = store.compact(plan_of(store), budget=Budget(), **arguments)
            assert isinstance(outcome, Failed)
            assert outcome.changed == "no"
        check(store, before)
        done(store.resume(budget=Budget()))
        check(store, before)
        done(compact(store))
    assert strays(folder) == []


@pytest.mark.parametrize("error", [Trouble(), KeyboardInterrupt()])
def test_a_question_that_raises_is_asked_again(error: BaseException, folder: Path) -> None:
    before, raising = build(folder), [error]

    def asked(_: object) -> bool:
        if raising:
            raise raising.pop()
        return False

    with open_store(folder, ManualClock(START + 20), purge_tombstones=True, **SETTINGS) as store:
        store.append_replicated(RecordKind.DELETE, b"of a peer", op_time=START, life_version=0)
        store.close_active_segment()
        store.put("newest", b"x")
        store.questions = Questions(seen_by_all_peers=asked)
        with contextlib.suppress(KeyboardInterrupt):
            assert isinstance(store.compact(plan_of(store), budget=Budget()), Failed)
        assert not raising
        done(store.resume(budget=Budget()))
        check(store, before)


def test_an_observer_that_raises_breaks_nobody(folder: Path) -> None:
    before = build(folder)
    with open_store(folder, ManualClock(START + 20), observer=Shouting(), **SETTINGS) as store:
        done(compact(store))
        check(store, before)


# -------------------------------------------------------------------------------------------------- many stores at once

class ClosingOne:
    """Closes a store in another thread before anything is copied, and sees it closed before the others go on."""

    def __init__(self, store: BlobStore) -> None:
        self.store = store
        self.closing: Working | None = None
        self.rounds: int = 0

    def run(self, tasks: Iterable[RewriteTask], *, budget: Budget | None = None,
            observer: Observer | None = None) -> Generator[RewriteOutcome, None, None]:
        self.rounds += 1
        if self.closing is None:
            self.closing = Working(self.store.close)
            while not self.store.compactions.ownership.is_ending:
                self.closing.thread.join(0.001)
            assert budget is not None
            # The owner lets nothing begin; the budget is cancelled right after that.
            while not budget.cancelled:
                self.closing.thread.join(0.001)
        else:
            assert self.closing.join() is None
        return LocalExecutor().run(tasks, budget=budget, observer=observer)


def test_closing_one_of_many_stores_ends_its_part_alone(scratch: Path) -> None:
    clocks = [ManualClock(START + 20) for _ in range(3)]
    before = [build(scratch / str(number)) for number in range(3)]
    stores = [open_held(scratch / str(number), clock=clocks[number]) for number in range(3)]
    executor = ClosingOne(stores[1])
    found = compact_many([(store, plan_of(store)) for store in stores], executor=executor,
                         budget=Budget())
    assert [type(found[store.folder]).__name__ for store in stores] == ["Done", "Failed", "Done"]
    assert executor.rounds > 1
    stores[1] = open_held(scratch / "1", clock=clocks[1])
    done(stores[1].resume(budget=Budget()))
    for store, answered in zip(stores, before, strict=True):
        check(store, answered)
        assert not store.compactions.ownership.is_running
        store.close()


class Meeting:
    """Compacts other stores while it is asked to copy."""

    def __init__(self, *work: tuple[BlobStore, Any]) -> None:
        self.work = work
        self.found: Any = None

    def run(self, tasks: Iterable[RewriteTask], *, budget: Budget | None = None,
            observer: Observer | None = None) -> Any:
        if self.found is None:
            self.found = compact_many(self.work, budget=Budget())
        return LocalExecutor().run(tasks, budget=budget, observer=observer)


def test_those_of_many_stores_that_are_busy_are_left_out_alone(scratch: Path) -> None:
    before = [build(scratch / str(number)) for number in range(3)]
    stores = [open_held(scratch / str(number)) for number in range(3)]
    work = [(store, plan_of(store)) for store in stores]
    executor = Meeting(*((store, plan_of(store)) for store in stores[1:]))
    found = compact_many(work[:2], executor=executor, budget=Budget())
    assert [type(found[store.folder]) for store in stores[:2]] == [Done, Done]
    assert isinstance(executor.found[stores[1].folder], Skipped)
    assert isinstance(executor.found[stores[2].folder], Done)
    for store, answered in zip(stores, before, strict=True):
        check(store, answered)
        store.close()


class Strange:
    """Answers what it was not asked, and not all that it was."""

    def run(self, tasks: Iterable[RewriteTask], *, budget: Budget | None = None,
            observer: Observer | None = None) -> Any:
        first, *_ = tasks
        (outcome,) = LocalExecutor().run([first], budget=budget, observer=observer)
        return iter([outcome, attrs.evolve(outcome, task="another"), outcome])


@pytest.mark.parametrize("executor", [Breaking(0, Trouble("broken")), Breaking(1, KeyboardInterrupt()), Strange()],
                         ids=["raises", "is interrupted", "is strange"])
def test_whatever_an_executor_does_with_many_stores_all_of_them_go_on(executor: Any, scratch: Path) -> None:
    before = [build(scratch / str(number)) for number in range(3)]
    stores = [open_held(scratch / str(number)) for number in range(3)]
    with contextlib.suppress(KeyboardInterrupt):
        found = compact_many([(store, plan_of(store)) for store in stores], executor=executor,
                             budget=Budget())
        assert all(isinstance(outcome, Failed) for outcome in found.values()), found
    resumed = compact_many([(store, None) for store in stores], budget=Budget())
    for store, answered in zip(stores, before, strict=True):
        assert isinstance(resumed[store.folder], Done)
        check(store, answered)
        store.close()
        assert strays(Path(store.folder)) == []


class Interrupted:
    """An executor that is interrupted at once."""

    calls = 0

    def run(self, tasks: Iterable[RewriteTask], *, budget: Budget | None = None,
            observer: Observer | None = None) -> Any:
        self.calls += 1
        raise KeyboardInterrupt


@pytest.mark.parametrize("raised", ["a policy", "a fence"])
def test_what_a_policy_or_a_fence_raises_comes_through_and_holds_nobody(raised: str, scratch: Path) -> None:
    before = [build(scratch / str(number)) for number in range(3)]
    stores = [open_held(scratch / str(number)) for number in range(3)]
    if raised == "a fence":
        with pytest.raises(Trouble):
            compact_many([(store, plan_of(store)) for store in stores], fence=Fence(never), budget=Budget())
    else:
        for store in stores:
            with pytest.raises(Trouble):
                store.compact(policy=Broken())
    found = compact_many([(store, None) for store in stores], budget=Budget())
    for store, answered in zip(stores, before, strict=True):
        assert isinstance(found[store.folder], Done)
        check(store, answered)
        store.close()
        assert strays(Path(store.folder)) == []


class Broken(CompactAll):
    """A policy that raises what is none of the library's."""

    def choose(self, view: Any, now: float) -> Any:
        never()


def test_an_error_of_the_library_that_one_stores_fence_raises_ends_its_part_alone(scratch: Path) -> None:
    before = [build(scratch / str(number)) for number in range(2)]
    stores = [open_held(scratch / str(number)) for number in range(2)]
    entered = []

    @contextlib.contextmanager
    def once() -> Iterator[None]:
        entered.append(1)
        if len(entered) == 1:
            raise Stale("another one has the token")
        yield

    found = compact_many([(store, plan_of(store)) for store in stores], fence=Fence(once), budget=Budget())
    first = found[stores[0].folder]
    assert isinstance(first, Failed)
    assert (str(first.error), first.changed) == ("another one has the token", "no")
    assert isinstance(found[stores[1].folder], Done)
    for store, answered in zip(stores, before, strict=True):
        check(store, answered)
        store.close()


# ------------------------------------------------------------------------------------------ other files of the store

@pytest.mark.parametrize("at", range(1, 6))
def test_two_who_remember_a_plan_do_not_disturb_each_other(at: int, folder: Path) -> None:
    """Both keep the last plans, through one temporary name."""
    before, held = build(folder), Held(at)
    with open_held(folder, held) as store:
        def remember(done_at: float) -> None:
            store.compactions.sensor.carried_out("full", done_at, {})

        def first() -> None:
            held.counts_me()
            remember(START + 30)

        working = Working(first)
        held.is_reached(working.thread)
        other = Working(partial(remember, START + 40))
        other.thread.join(0.01)
        held.release()
        assert (working.join(), other.join()) == (None, None)
        check(store, before)
    history = read_last_plans(folder)
    assert history is not None
    assert history.last_full_at == START + 40
    assert strays(folder) == []
