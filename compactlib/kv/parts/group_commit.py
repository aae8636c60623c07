# SPDX-License-Identifier: Apache-2.0
"""`GroupCommit`: many threads hand in work, one at a time carries out all that has gathered, so that they share a sync.

The first to come leads: it commits what is queued while the others wait; what gathers meanwhile is the next batch, led
by the first thread that waits. No thread waits longer than for the batch under way and their own.
"""

from __future__ import annotations

import contextlib
import copy
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from compactlib.kv.errors import OutcomeUnknown

ItemT = TypeVar("ItemT")
AnswerT = TypeVar("AnswerT")


class _Request(Generic[ItemT, AnswerT]):
    """One item on its way."""

    __slots__ = ("answer", "batch", "done", "error", "item", "woken")

    def __init__(self, item: ItemT) -> None:
        self.item = item
        self.done = False
        self.answer: AnswerT | None = None
        self.error: BaseException | None = None
        # The requests that this one leads.
        self.batch: list[_Request[ItemT, AnswerT]] = []
        # Held until the request is done, or its thread is to lead.
        self.woken = threading.Lock()
        self.woken.acquire()

    def wake(self) -> None:
        """Let the thread go on; waking it again does nothing."""
        with contextlib.suppress(RuntimeError):  # it was released before
            self.woken.release()


class GroupCommit(Generic[ItemT, AnswerT]):
    """Turns `commit(batch)` into `submit(item)` for any number of threads.

    A thread that is interrupted while it leads (`KeyboardInterrupt`, `SystemExit`) is interrupted alone: the others of
    its batch get `OutcomeUnknown`, and the next thread that waits leads.

    Args:
        commit: carries out a batch, in order, in one thread at a time; gives one answer for each item, an exception
            for an item that failed on its own. What it raises is the answer to every item of the batch.
        max_batch: how many items one batch holds, at most.
    """

    def __init__(self, commit: Callable[[Sequence[ItemT]], Sequence[AnswerT | Exception]], *,
                 max_batch: int = 1000) -> None:
        self._commit = commit
        self._max_batch = max_batch
        self._queue: deque[_Request[ItemT, AnswerT]] = deque()
        self._leader: _Request[ItemT, AnswerT] | None = None
        self._lock = threading.Lock()

    def submit(self, item: ItemT) -> AnswerT:
        """Have the item carried out, and return its answer once its batch is done.

        Raises:
            OutcomeUnknown: what ended the batch was another thread's interrupt, or an error that cannot be copied.
            BaseException: the item's own exception, or what ended the batch: one copy for each waiting thread.
        """
        mine: _Request[ItemT, AnswerT] = _Request(item)
        try:
            with self._lock:
                self._queue.append(mine)
                if self._leader is None:
                    self._leader = mine
            if self._leader is not mine:
                mine.woken.acquire()
            if not mine.done:
                self._lead(mine)
        except BaseException as interrupt:
            # A signal, at any line: the item may go its way, but this thread must not be counted on to lead.
            self._leave(mine, interrupt)
            raise
        if mine.error is not None:
            raise mine.error
        return mine.answer  # type: ignore[return-value]

    def _lead(self, mine: _Request[ItemT, AnswerT]) -> None:
        with self._lock:
            # Into the batch before out of the queue: whatever interrupts this, none is in neither.
            while self._queue and len(mine.batch) < self._max_batch:
                mine.batch.append(self._queue[0])
                self._queue.popleft()
        try:
            answers = self._commit([request.item for request in mine.batch])
            for request, answer in zip(mine.batch, answers, strict=True):
                if isinstance(answer, Exception):
                    request.error = answer
                else:
                    request.answer = answer
        except BaseException as error:
            self._end(mine, error)
        else:
            self._end(mine, None)

    def _end(self, mine: _Request[ItemT, AnswerT], error: BaseException | None) -> None:
        """Give each of the batch its outcome, and let the next lead. May be called again if it was interrupted."""
        with self._lock:
            for request in mine.batch:
                if not request.done:
                    if error is not None:
                        request.error = error if request is mine else _for_another(error)
                    request.done = True
                request.wake()
            self._pass_on(mine)

    def _leave(self, mine: _Request[ItemT, AnswerT], interrupt: BaseException) -> None:
        while True:
            try:
                with self._lock:
                    if mine in self._queue:
                        self._queue.remove(mine)
                self._end(mine, interrupt)
                return
            except KeyboardInterrupt:
                continue  # once more: others wait for this

    def _pass_on(self, mine: _Request[ItemT, AnswerT]) -> None:
        """If this one leads, let the first thread that waits do so from now on; the lock is held."""
        while self._queue and self._queue[0].done:
            self._queue.popleft()
        if self._leader is mine:
            self._leader = self._queue[0] if self._queue else None
        if self._leader is not None:
            self._leader.wake()


def _for_another(error: BaseException) -> BaseException:
    """What the other threads of a batch raise: two cannot raise one exception, each adds its own traceback."""
    if isinstance(error, Exception):
        with contextlib.suppress(Exception):
            copied = copy.copy(error)
            if type(copied) is type(error):
                return copied
    return OutcomeUnknown(operation="write", path="the store", detail=f"the thread that carried it out together with "
                          f"its own ended in {type(error).__name__}: {error}")
