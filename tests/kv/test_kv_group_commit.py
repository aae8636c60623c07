# SPDX-License-Identifier: Apache-2.0
"""Threads that share commits: batches, errors, and a leader that is interrupted."""

from __future__ import annotations

import linecache
import sys
import threading
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import pytest

from compactlib.errors import Busy, InvalidInput
from compactlib.kv import KVLimits, OutcomeUnknown
from compactlib.kv.sql import SqlStore, Transaction


class Ledger(SqlStore[Any]):
    """Commits by noting the batches; each waits at a gate, so that others gather behind it. A number is a write."""

    def __init__(self) -> None:
        super().__init__("a ledger", KVLimits(9, 9, 9, 9), page_size=1)
        self.batches: list[list[int]] = []
        self.entered = threading.Semaphore(0)
        self.gate = threading.Semaphore(0)
        self.error: BaseException | None = None

    def submit(self, number: int) -> None:
        self.set(b"p", b"k", b"%d" % number)

    def _commit(self, batch: Sequence[Transaction]) -> list[Exception | None]:
        numbers = [int(value or b"") for _, changes in batch for value in changes.values()]
        self.batches.append(numbers)
        self.entered.release()
        assert self.gate.acquire(timeout=60)
        if self.error is not None:
            raise self.error
        return [InvalidInput(f"{number} is odd") if number % 2 else None for number in numbers]


class Submitter(threading.Thread):
    def __init__(self, group: Ledger, item: int) -> None:
        super().__init__()
        self.group = group
        self.item = item
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self.group.submit(self.item)
        except BaseException as error:
            self.error = error


def gathered(group: Ledger, count: int) -> None:
    """Wait until `count` writes are queued."""
    while len(group._batch.writes) < count:  # noqa: SLF001
        threading.Event().wait(0.001)


def behind_a_commit(items: Sequence[int]) -> tuple[Ledger, list[Submitter]]:
    """Queue items behind the commit of another one, and let that end; theirs has begun when this returns."""
    ledger = Ledger()
    first = Submitter(ledger, 0)
    assert ledger.entered.acquire(timeout=60)
    threads = []
    for number, item in enumerate(items, start=1):
        threads.append(Submitter(ledger, item))
        gathered(ledger, number)
    ledger.gate.release()
    first.join(60)
    assert first.error is None
    assert ledger.entered.acquire(timeout=60)
    return ledger, threads


def test_writes_during_a_commit_are_the_next_batch_in_order() -> None:
    ledger, threads = behind_a_commit([1, 2, 3, 4, 5])
    ledger.gate.release()
    for thread in threads:
        thread.join(60)
    assert ledger.batches == [[0], [1, 2, 3, 4, 5]]
    assert [str(thread.error) for thread in threads] == ["1 is odd", "None", "3 is odd", "None", "5 is odd"]


@pytest.mark.parametrize("ended", [Busy("the disk is on fire"), KeyboardInterrupt(), SystemExit(3)])
def test_a_batchs_error_reaches_each_thread_and_no_later_batch(ended: BaseException) -> None:
    """A Ctrl-C in the thread that leads says nothing of the writes that went with its own."""
    ledger, threads = behind_a_commit([2, 4, 6])
    ledger.error = ended
    ledger.gate.release()
    for thread in threads:
        thread.join(60)
    errors = [thread.error for thread in threads]
    assert ended in errors
    others = [error for error in errors if error is not ended]
    assert [type(error) for error in others] == [Busy if isinstance(ended, Busy) else OutcomeUnknown] * 2
    assert others[0] is not others[1], "each thread adds its own traceback"
    ledger.error = None
    ledger.gate.release()
    ledger.submit(8)


def interrupted_at(number: int, code: Callable[[], object]) -> bool:
    """Run `code` and raise `KeyboardInterrupt` at the n-th line of the group commit, in this thread; whether it was."""
    left = number

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal left
        if not frame.f_code.co_filename.endswith("sql.py"):
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


def test_a_leader_interrupted_at_any_line_leaves_no_thread_hanging() -> None:
    """And no thread returns from a write that was not carried out, or learns a certain failure of one that was."""
    number, interrupted = 0, True
    while interrupted:
        number += 1
        ledger, ended = Ledger(), threading.Event()
        others: list[Submitter] = []

        def others_join(ledger: Ledger = ledger, others: list[Submitter] = others,
                        ended: threading.Event = ended) -> None:
            """Queue two more behind the thread that leads, and let all go."""
            while not ledger.entered.acquire(timeout=0.0005) and not ended.is_set():
                pass
            for count, item in enumerate((4, 6), start=1):
                others.append(Submitter(ledger, item))
                while len(ledger._batch.writes) < count and not ended.is_set():  # noqa: SLF001
                    ended.wait(0.0005)
            for _ in range(10):
                ledger.gate.release()

        helper = threading.Thread(target=others_join)
        helper.start()
        interrupted = interrupted_at(number, lambda ledger=ledger: ledger.submit(2))  # type: ignore[misc]
        ended.set()
        helper.join()
        for thread in others:
            thread.join(10)
            assert not thread.is_alive(), f"interrupted at line {number}: {thread.item} hangs"
            assert thread.error is None or type(thread.error) is OutcomeUnknown, thread.error
        ledger.submit(8)
        carried_out = [item for batch in ledger.batches for item in batch]
        assert len(carried_out) == len(set(carried_out))
        assert {thread.item for thread in others if thread.error is None} <= set(carried_out)
    assert number > 20
