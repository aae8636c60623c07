# SPDX-License-Identifier: Apache-2.0
"""Threads that share commits: batches, answers, errors, and a leader that is interrupted."""

from __future__ import annotations

import linecache
import sys
import threading
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import pytest

from compactlib.errors import Busy, InvalidInput
from compactlib.kv import OutcomeUnknown
from compactlib.kv.parts.group_commit import GroupCommit


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


class Odd(Exception):
    """An error that `copy.copy` cannot copy."""

    def __init__(self, *, why: str) -> None:
        super().__init__(why)
        self.why = why


class Strange(Exception):
    """An error of which `copy.copy` makes something else."""

    def __copy__(self) -> Exception:
        return ValueError("another")


@pytest.mark.parametrize("ended", [KeyboardInterrupt(), SystemExit(3), Odd(why="no copies"), Strange()])
def test_what_ends_only_the_leader_leaves_the_others_in_doubt_and_nobody_hanging(ended: BaseException) -> None:
    """A Ctrl-C in the thread that leads says nothing of the writes that went with its own."""
    ledger = Ledger()
    group: GroupCommit[int, int] = GroupCommit(ledger.commit)
    first = Submitter(group, 0)
    assert ledger.entered.acquire(timeout=60)
    waiting = []
    for number in (2, 4, 6):
        waiting.append(Submitter(group, number))
        gathered(group, len(waiting))
    ledger.gate.release()
    first.join(60)
    assert ledger.entered.acquire(timeout=60)
    ledger.error = ended
    ledger.gate.release()
    for thread in waiting:
        thread.join(10)
    assert first.answer == 0
    assert waiting[0].answer is ended
    assert [type(thread.answer) for thread in waiting[1:]] == [OutcomeUnknown] * 2
    assert type(ended).__name__ in str(waiting[1].answer)
    ledger.error = None
    ledger.gate.release()
    assert group.submit(8) == 80


def interrupted_at(number: int, code: Callable[[], object]) -> bool:
    """Run `code` and raise `KeyboardInterrupt` at the n-th line of the group commit, in this thread; whether it was."""
    left = number

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal left
        if not frame.f_code.co_filename.endswith("group_commit.py"):
            return trace
        # Python delivers no signal between the end of a `with` and its `__exit__`, which is traced as its first line.
        if event == "line" and "with " not in linecache.getline(frame.f_code.co_filename, frame.f_lineno):
            left -= 1
            if left == 0:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        code()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return left <= 0


def test_a_leader_that_is_interrupted_at_any_line_leaves_nobody_hanging() -> None:
    """And nobody is told that a write was carried out that was not, or of a certain failure of one that was."""
    number, interrupted = 0, True
    while interrupted:
        number += 1
        ledger = Ledger()
        group: GroupCommit[int, int] = GroupCommit(ledger.commit)
        others = [Submitter(group, 0)]
        assert ledger.entered.acquire(timeout=60)
        ended = threading.Event()

        def others_join(group: GroupCommit[int, int] = group, ledger: Ledger = ledger,
                        others: list[Submitter] = others, ended: threading.Event = ended) -> None:
            """Queue two more behind the thread that is to lead, so that they are of its batch, and let all go."""
            while not group._queue and not ended.is_set():  # noqa: SLF001
                ended.wait(0.0005)
            before = len(group._queue)  # noqa: SLF001
            for count, item in enumerate((4, 6), start=before + 1):
                others.append(Submitter(group, item))
                while len(group._queue) < count and not ended.is_set():  # noqa: SLF001
                    ended.wait(0.0005)
            for _ in range(10):
                ledger.gate.release()

        helper = threading.Thread(target=others_join)
        helper.start()
        interrupted = interrupted_at(number, lambda group=group: group.submit(2))  # type: ignore[misc]
        ended.set()
        helper.join()
        for thread in others:
            thread.join(10)
            assert not thread.is_alive(), f"interrupted at line {number}: {thread.item} hangs"
            assert type(thread.answer) is OutcomeUnknown or thread.answer == thread.item * 10, thread.answer
        assert group.submit(8) == 80
        carried_out = [item for batch in ledger.batches for item in batch]
        assert len(carried_out) == len(set(carried_out))
        told = {thread.item for thread in others if not isinstance(thread.answer, OutcomeUnknown)}
        assert told <= set(carried_out)
    assert number > 20


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
