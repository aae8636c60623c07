# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C anywhere in a fence's work: no lock is kept by nobody, and what was admitted and committed stays so."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from compactlib.errors import Busy
from compactlib.fences import FencedOff, FileFence, LockingFence, MemoryFence
from compactlib.testing.interrupts import interruptions
from tests.harness.effort import Effort


def work(fence: LockingFence, committed: list[int]) -> None:
    fence.admit("job", 5)
    with fence.guard("job", 7):
        fence.commit("job", 7, b"seven")
        committed.append(7)
    with pytest.raises(FencedOff):
        fence.commit("job", 6, b"six")
    fence.raise_floor(3)


def in_another_thread(call: Callable[[], object]) -> None:
    raised: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if raised:
        raise raised[0]


# A file that an interrupt comes to right after it was opened is closed when it is collected, with a warning.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("kind", ["memory", "file"])
def test_an_interrupt_anywhere_leaves_a_fence_that_others_can_use(kind: str, tmp_path: Path, effort: Effort) -> None:
    numbers = itertools.count()

    def made() -> tuple[LockingFence, list[LockingFence]]:
        """A fence, and all through which others come to what it guards."""
        if kind == "memory":
            memory = MemoryFence(wait_seconds=0.0)
            return memory, [memory]
        folder = tmp_path / str(next(numbers))
        first = FileFence(folder, wait_seconds=0.0)
        return first, [first, FileFence(folder, wait_seconds=0.0)]

    def follow(fences: list[LockingFence], committed: list[int], where: str) -> None:
        token = 9
        for fence in fences:
            try:
                done = fence.admit("job", token).committed
            except Busy as busy:
                raise AssertionError(f"an interrupt at {where} leaves {busy}") from None
            assert not committed or (done is not None and done.value == b"seven"), where
            with fence.guard("job", token):
                pass
            token += 1

    first, _ = made()
    for interrupt in interruptions(lambda: work(first, []), effort(150, 3_000)):
        fence, fences = made()
        committed: list[int] = []
        kept: list[BaseException] = []
        try:
            with interrupt:
                work(fence, committed)
        except KeyboardInterrupt as error:
            kept.append(error)  # as a shell keeps the last one, and all that it refers to
        in_another_thread(partial(follow, fences, committed, interrupt.where))
