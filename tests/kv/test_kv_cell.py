# SPDX-License-Identifier: Apache-2.0
"""Cells and swaps: every lost, late or refused answer at every request, with other writers in between."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from typing import Any

import pytest

from compactlib.clock import ManualClock
from compactlib.errors import Busy, CompactlibError, CorruptData, InvalidInput
from compactlib.kv import KVStore, MemoryStore, OutcomeUnknown, PredicateFailed, SlowDown
from compactlib.kv.cell import Cell, Found, Retries, Swap, Updated, swap
from compactlib.testing import Choices, Failing, StoreInFront, explore
from compactlib.testing.in_front import Request
from compactlib.testing.stand_ins import in_threads

P, K, OTHER = b"p", b"k", b"other"


def cell_over(store: KVStore, seed: int = 0, key: bytes = K, tries: int = 100) -> Cell[str]:
    return Cell(store, P, key, str, clock=ManualClock(0.0), rng=random.Random(seed), retries=Retries(tries=tries))


def with_word(word: str) -> Callable[[str | None], str]:
    """Adds one word: a change that must not be made twice."""
    return lambda before: f"{before or ''}{word}"


def both_kinds(choices: Choices) -> MemoryStore:
    return MemoryStore(predicates=choices.pick("the store", "version", "value"))


def test_a_change_is_read_by_the_next_change() -> None:
    store = MemoryStore()
    cell = cell_over(store)
    assert cell.read() is None
    assert cell.update(with_word("a")) == Updated(None, "a")
    assert cell.update(with_word("b")) == Updated("a", "ab")
    assert cell_over(store, 1).read() == "ab"
    assert cell.update(lambda before: before) == Updated("ab", "ab")
    assert cell.update(lambda _: None) == Updated("ab", None)
    assert cell.read() is None
    assert list(store.scan(P)) == []


def test_no_change_of_many_threads_is_lost() -> None:
    store = MemoryStore()

    def work(number: int) -> None:
        cell: Cell[str] = Cell(store, P, K, str, rng=random.Random(number), retries=Retries(tries=10_000))
        for _ in range(25):
            cell.update(with_word("x"))

    in_threads(4, work)
    assert cell_over(store).read() == "x" * 100


# ---- answers that are lost


def outcome_of(act: Callable[[], Updated[str]]) -> Updated[str] | type[CompactlibError]:
    try:
        return act()
    except CompactlibError as error:
        return type(error)


def run_with_others(choices: Choices, *, before: str | None) -> None:
    """One change under faults, and others right after some requests; each change counts once, as reported."""
    store = both_kinds(choices)
    if before is not None:
        cell_over(store, 9).update(lambda _: before)
    failing = Failing(choices)
    written: list[str] = []
    others: list[str] = []

    def counting(request: Request, act: Callable[[], Any]) -> Any:
        answer = act()
        if request.changes:
            written.append(str(request))
        return answer

    def step(request: Request, act: Callable[[], Any]) -> Any:
        try:
            return failing(request, act)
        finally:
            other = choices.pick("another writer", "waits", "writes", "deletes") if len(others) < 2 else "waits"
            if other != "waits":
                others.append(other)
                beside = cell_over(store, 100 + len(others))
                beside.update(with_word("o") if other == "writes" else lambda _: None)

    mine = cell_over(StoreInFront(StoreInFront(store, counting), step), 1, tries=4)
    outcome = outcome_of(lambda: mine.update(with_word("m")))
    failing.settle()
    if isinstance(outcome, Updated):
        assert (outcome.after, len(written)) == (f"{outcome.before or ''}m", 1)
    else:
        assert len(written) <= (outcome is OutcomeUnknown), (outcome, written)
    if "deletes" not in others:
        assert (cell_over(store).read() or "").count("o") == len(others), "another writer's change was lost"


@pytest.mark.parametrize("before", [None, "b"])
def test_a_change_counts_once_when_answers_are_lost(before: str | None) -> None:
    assert explore(lambda choices: run_with_others(choices, before=before), most=3) > 500


def test_a_lost_answer_is_known_after_later_writes() -> None:
    for happens in (True, False):
        store = MemoryStore()
        cell_over(store, 9).update(with_word("b"))
        lost = iter([True])

        def step(request: Request, act: Callable[[], Any], store: MemoryStore = store, lost: Any = lost,
                 happens: bool = happens) -> Any:
            if request.kind == "set_if" and next(lost, False):
                if happens:
                    act()
                for number in range(5):
                    cell_over(store, 20 + number).update(with_word("o"))
                raise OutcomeUnknown(operation="set_if", path="a test", detail="no answer")
            return act()

        done = cell_over(StoreInFront(store, step), 1).update(with_word("m"))
        assert done.after == ("bm" if happens else "booooom")
        assert cell_over(store).read() == ("bmooooo" if happens else "booooom")


def test_an_outcome_is_unknown_once_too_many_wrote_since() -> None:
    def run(may_repeat: bool) -> str | None:
        store = MemoryStore()
        cell_over(store, 9).update(with_word("b"))
        lost = iter([True])

        def step(request: Request, act: Callable[[], Any]) -> Any:
            if request.kind == "set_if" and next(lost, False):
                for number in range(17):
                    cell_over(store, 20 + number).update(with_word("o"))
                raise OutcomeUnknown(operation="set_if", path="a test", detail="no answer")
            return act()

        return cell_over(StoreInFront(store, step), 1).update(with_word("m"), may_repeat=may_repeat).after

    assert run(True) == "b" + 17 * "o" + "m"
    with pytest.raises(OutcomeUnknown):
        run(False)


def test_an_error_of_a_change_waits_for_the_fate_of_earlier_writes() -> None:
    """A change that refuses after an unanswered write: its refusal counts if that write is lost for good."""
    for others, kind in ((1, InvalidInput), (0, OutcomeUnknown)):
        store = MemoryStore()
        cell_over(store, 9).update(with_word("b"))
        asked: list[str | None] = []

        def change(before: str | None, asked: list[str | None] = asked) -> str:
            asked.append(before)
            if len(asked) > 1:
                raise InvalidInput("no more")
            return "m"

        def step(request: Request, act: Callable[[], Any], store: MemoryStore = store, others: int = others) -> Any:
            if request.kind == "set_if":
                for _ in range(others):
                    cell_over(store, 20).update(with_word("o"))
                raise OutcomeUnknown(operation="set_if", path="a test", detail="no answer")
            return act()

        with pytest.raises(kind):
            cell_over(StoreInFront(store, step), 1).update(change)


def test_a_deletion_whose_answer_is_lost() -> None:
    def run(choices: Choices) -> None:
        store = both_kinds(choices)
        cell_over(store, 9).update(with_word("b"))
        failing = Failing(choices)
        outcome = outcome_of(lambda: cell_over(StoreInFront(store, failing), 1, tries=4).update(lambda _: None))
        if not isinstance(outcome, type):
            failing.settle()
            assert (outcome.after, cell_over(store).read()) == (None, None)
        elif outcome is not OutcomeUnknown:
            failing.settle()
            assert cell_over(store).read() == "b"

    explore(run, most=2)


def losing(store: KVStore, kind: str, *, happens: bool = True, times: int = 1) -> StoreInFront:
    """The first requests of a kind get no answer."""
    lost = iter(range(times))

    def step(request: Request, act: Callable[[], Any]) -> Any:
        if request.kind != kind or next(lost, None) is None:
            return act()
        if happens:
            act()
        raise OutcomeUnknown(operation=kind, path="a test", detail="no answer")

    return StoreInFront(store, step)


def test_a_deletion_that_happened_is_known() -> None:
    store = MemoryStore()
    cell_over(store, 9).update(with_word("b"))
    assert cell_over(losing(store, "delete_if"), 1).update(lambda _: None) == Updated("b", None)


def test_a_last_try_that_happened_is_known() -> None:
    store = MemoryStore()
    assert cell_over(losing(store, "set_if"), 1, tries=1).update(with_word("m")) == Updated(None, "m")
    with pytest.raises(OutcomeUnknown):
        cell_over(losing(store, "set_if", happens=False), 1, tries=1).update(with_word("m"))


def test_no_change_is_returned_while_a_write_may_still_arrive() -> None:
    store = MemoryStore()
    cell_over(store, 9).update(with_word("b"))
    wanted = iter(["m", "b"])
    with pytest.raises(OutcomeUnknown):
        cell_over(losing(store, "set_if", happens=False), 1).update(lambda _: next(wanted), may_repeat=True)


def test_a_write_that_the_store_repeats_counts_once() -> None:
    """The repetition finds its own first write, and says that the condition failed."""
    store = MemoryStore()

    def repeating(request: Request, act: Callable[[], Any]) -> Any:
        if request.kind == "set_if":
            act()
        return act()

    assert cell_over(StoreInFront(store, repeating), 1).update(with_word("m")) == Updated(None, "m")
    assert cell_over(store).read() == "m"


# ---- what else is done in the same step


def test_other_keys_are_written_in_the_same_step() -> None:
    def run(choices: Choices) -> None:
        store = both_kinds(choices)
        store.set(P, b"gone", b"x")
        failing = Failing(choices)
        cell = cell_over(StoreInFront(store, failing), 1, tries=4)
        outcome = outcome_of(lambda: cell.update(
            with_word("m"), may_repeat=True, also={(OTHER, K): b"beside", (P, b"gone"): None},
            conditions={(OTHER, b"absent"): None}))
        failing.settle()
        held, beside = cell_over(store).read(), [entry.value for entry in store.scan(OTHER)]
        is_gone = b"gone" not in [entry.key for entry in store.scan(P)]
        assert (held, beside, is_gone) in ((None, [], False), ("m", [b"beside"], True))
        if isinstance(outcome, Updated):
            assert held == "m"
        elif outcome is not OutcomeUnknown:
            assert held is None

    explore(run, most=2)


def test_a_failed_condition_of_the_caller_ends_the_call() -> None:
    store = MemoryStore()
    store.set(OTHER, K, b"there")
    with pytest.raises(PredicateFailed) as caught:
        cell_over(store).update(with_word("m"), conditions={(OTHER, K): None})
    assert (caught.value.partition, caught.value.key) == (OTHER, K)
    assert cell_over(store).read() is None


def test_a_state_is_a_condition() -> None:
    store = MemoryStore()
    cell = cell_over(store)
    absent = cell.state()
    cell.update(with_word("a"))
    there = cell.state()
    assert (absent.value, there.value) == (None, "a")
    with pytest.raises(PredicateFailed):
        store.transact(absent.conditions, {(OTHER, K): b"v"})
    store.transact(there.conditions, {(OTHER, K): b"v"})


# ---- bounds


def test_tries_and_waits_are_bounded() -> None:
    clock = ManualClock(0.0)

    def refuse(kind: type[CompactlibError]) -> type[CompactlibError] | Updated[str]:
        def step(request: Request, act: Callable[[], Any]) -> Any:
            if request.kind != "set_if":
                return act()
            if kind is SlowDown:
                raise SlowDown(operation="set_if", detail="a test")
            raise PredicateFailed(partition=P, key=K)

        cell: Cell[str] = Cell(StoreInFront(MemoryStore(), step), P, K, str, clock=clock, rng=random.Random(1),
                               retries=Retries(tries=5, first_seconds=1.0, longest_seconds=4.0))
        return outcome_of(lambda: cell.update(with_word("a")))

    assert (refuse(SlowDown), refuse(PredicateFailed)) == (SlowDown, Busy)
    assert 11.0 <= clock.monotonic() <= 22.0


def test_damage_and_a_record_of_another_key_are_found() -> None:
    store = MemoryStore()
    cell_over(store).update(with_word("a"))
    sound = store.get(P, K).value
    store.set(P, b"moved", sound)
    with pytest.raises(CorruptData):
        cell_over(store, key=b"moved").read()
    for place in range(len(sound)):
        store.set(P, K, sound[:place] + bytes([sound[place] ^ 1]) + sound[place + 1:])
        with pytest.raises(CompactlibError):
            cell_over(store).update(with_word("b"))


# ---- several keys


def test_money_moves_between_keys() -> None:
    """No sum is lost or made, when answers are lost and others transfer at the same time."""
    def run(choices: Choices) -> None:
        store = both_kinds(choices)
        for name in (b"a", b"b"):
            store.set(P, name, b"10 start")
        failing = Failing(choices)

        def move(through: KVStore, word: str) -> str:
            def decide(found: Found) -> Swap[str]:
                a, b = (int(found[P, name].value.split()[0]) for name in (b"a", b"b"))
                return Swap(word, {(P, b"a"): b"%d %s" % (a - 1, word.encode()),
                                   (P, b"b"): b"%d %s" % (b + 1, word.encode())})

            return swap(through, [(P, b"a"), (P, b"b")], decide, retries=Retries(tries=4), clock=ManualClock(0.0),
                        rng=random.Random(1))

        moved = list[str]()

        def step(request: Request, act: Callable[[], Any]) -> Any:
            try:
                return failing(request, act)
            finally:
                if not moved and choices.pick("another writer", "waits", "moves") == "moves":
                    moved.append(move(store, "other"))

        try:
            outcome = move(StoreInFront(store, step), "mine")
        except OutcomeUnknown:
            outcome = "unknown"
        except CompactlibError:
            outcome = "refused"
        if outcome != "unknown":
            failing.settle()
        a, b = (int(store.get(P, name).value.split()[0]) for name in (b"a", b"b"))
        assert a + b == 20
        certain = {"mine": 1, "refused": 0}.get(outcome)
        assert 10 - a - len(moved) in ((0, 1) if certain is None else (certain,)), (outcome, a, moved)

    explore(run, most=3, limit=4000)


@pytest.mark.parametrize("happens", [True, False])
def test_a_swap_with_a_lost_answer_is_known_without_other_writers(*, happens: bool) -> None:
    store = MemoryStore()
    store.set(P, K, b"before")
    store.set(OTHER, b"log", b"before")
    asked: list[Found] = []

    def decide(found: Found) -> Swap[int]:
        asked.append(found)
        return Swap(len(asked), {(P, K): b"mine %d" % len(asked), (OTHER, b"log"): b"after"})

    assert swap(losing(store, "transact", happens=happens), [(P, K)], decide, clock=ManualClock(0.0)) == len(asked)
    assert len(asked) == (1 if happens else 2)
    assert store.get(P, K).value == b"mine %d" % len(asked)


def test_a_swap_that_writes_no_key_it_read_is_refused() -> None:
    with pytest.raises(InvalidInput, match="writes none of the keys that it read"):
        swap(MemoryStore(), [(P, K)], lambda _: Swap(None, {(P, b"elsewhere"): b"v"}))
    with contextlib.suppress(InvalidInput):
        swap(MemoryStore(), [(P, K)], lambda _: Swap(None))


@pytest.mark.parametrize("kind", [
    SlowDown(operation="read", detail="a test"), PredicateFailed(partition=P, key=K),
    OutcomeUnknown(operation="write", path="a test", detail="of something else")])
def test_a_refused_decision_is_retried(kind: CompactlibError) -> None:
    asked: list[Found] = []

    def decide(found: Found) -> Swap[str]:
        asked.append(found)
        if len(asked) < 3:
            raise kind
        return Swap("done", {(P, K): b"v"})

    assert swap(MemoryStore(), [(P, K)], decide, clock=ManualClock(0.0)) == "done"
    asked.clear()
    with pytest.raises(Busy if isinstance(kind, PredicateFailed) else type(kind)):
        swap(MemoryStore(), [(P, K)], decide, clock=ManualClock(0.0), retries=Retries(tries=2))
