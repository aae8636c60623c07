"""Threads that share commits: batches, answers, errors, and a leader that is interrupted."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from compactlib.errors import Busy, InvalidInput
from compactlib.kv.group_commit import GroupCommit


class Ledger:
    """Commits by noting the batches; the first waits at a gate, so that others gather behind it."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.entered = threading.Semaphore(0)
        self.gate = threading.Semaphore(0)
        self.error: BaseException | None = None

    def commit(self, batch: Sequence[int]) -> list[int | Exception]:
        self.batches.append(list(batch))
        self.entered.release()
        assert self.gate.acquire(timeout=60)
        if self.error is not None:
            raise self.error
        return [InvalidInput(f"{item} is odd") if item % 2 else item * 10 for item in batch]


class Submitter(threading.Thread):
    def __init__(self, group: GroupCommit[int, int], item: int) -> None:
        super().__init__()
        self.group = group
        self.item = item
        self.answer: int | BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self.answer = self.group.submit(self.item)
        except BaseException as error:
            self.answer = error


def gathered(group: GroupCommit[int, int], count: int) -> None:
    """Wait until so many are queued."""
    while len(group._queue) < count:  # noqa: SLF001
        threading.Event().wait(0.001)


def test_a_lone_item_is_a_batch_of_its_own() -> None:
    group: GroupCommit[int, int] = GroupCommit(lambda batch: [item + 1 for item in batch])
    assert [group.submit(number) for number in range(3)] == [1, 2, 3]


def test_what_gathers_during_a_commit_is_the_next_batch_in_order() -> None:
    ledger = Ledger()
    group: GroupCommit[int, int] = GroupCommit(ledger.commit, max_batch=3)
    threads = [Submitter(group, 0)]
    assert ledger.entered.acquire(timeout=60)
    for number in range(1, 6):
        threads.append(Submitter(group, number))
        gathered(group, number)
    for _ in range(3):
        ledger.gate.release()
    for thread in threads:
        thread.join(60)
    assert ledger.batches == [[0], [1, 2, 3], [4, 5]]
    assert [thread.answer for thread in threads[::2]] == [0, 20, 40]
    assert [str(thread.answer) for thread in threads[1::2]] == ["1 is odd", "3 is odd", "5 is odd"]


def test_what_ends_a_batch_is_told_to_each_who_waits_and_the_next_batch_goes_on() -> None:
    ledger = Ledger()
    group: GroupCommit[int, int] = GroupCommit(ledger.commit)
    first = Submitter(group, 0)
    assert ledger.entered.acquire(timeout=60)
    waiting = [Submitter(group, number) for number in (2, 4)]
    gathered(group, 2)
    ledger.gate.release()
    first.join(60)
    assert ledger.entered.acquire(timeout=60)
    ledger.error = Busy("the disk is on fire")
    ledger.gate.release()
    for thread in waiting:
        thread.join(60)
    errors = [thread.answer for thread in waiting]
    assert [str(error) for error in errors] == ["the disk is on fire"] * 2
    assert errors[0] is not errors[1], "each thread adds its own traceback"
    ledger.error = None
    ledger.gate.release()
    assert group.submit(6) == 60


def test_a_leader_that_is_interrupted_hands_over() -> None:
    ledger = Ledger()
    group: GroupCommit[int, int] = GroupCommit(ledger.commit)
    ledger.error = KeyboardInterrupt()
    first = Submitter(group, 0)
    assert ledger.entered.acquire(timeout=60)
    second = Submitter(group, 2)
    gathered(group, 1)
    ledger.gate.release()
    assert ledger.entered.acquire(timeout=60)
    ledger.error = None
    ledger.gate.release()
    first.join(60)
    second.join(60)
    assert isinstance(first.answer, KeyboardInterrupt)
    assert second.answer == 20


def test_too_few_answers_are_an_error_not_a_hang() -> None:
    group: GroupCommit[int, int] = GroupCommit(lambda batch: [])
    for _ in range(2):
        with pytest.raises(ValueError, match="shorter"):
            group.submit(1)


def test_many_threads_get_each_their_own_answer() -> None:
    group: GroupCommit[int, int] = GroupCommit(lambda batch: [item * 2 for item in batch], max_batch=5)
    wrong: list[int] = []

    def work(number: int) -> None:
        wrong.extend(item for item in range(number, 4000, 8) if group.submit(item) != item * 2)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert wrong == []
