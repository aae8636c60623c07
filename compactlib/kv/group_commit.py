"""`GroupCommit`: many threads hand in work, one at a time carries out all that has gathered, so that they share a sync.

The first to come leads: it commits what is queued while the others wait; what gathers meanwhile is the next batch, led
by the first of those who wait. Nobody waits longer than for the batch under way and their own.
"""

from __future__ import annotations

import copy
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

ItemT = TypeVar("ItemT")
AnswerT = TypeVar("AnswerT")


class _Request(Generic[ItemT, AnswerT]):
    """One item on its way."""

    __slots__ = ("answer", "done", "error", "item", "leads", "woken")

    def __init__(self, item: ItemT) -> None:
        self.item = item
        self.leads = False
        self.done = False
        self.answer: AnswerT | None = None
        self.error: BaseException | None = None
        # Held until the request is done, or its thread is to lead.
        self.woken = threading.Lock()
        self.woken.acquire()


class GroupCommit(Generic[ItemT, AnswerT]):
    """Turns `commit(batch)` into `submit(item)` for any number of threads.

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
        self._led = False
        self._lock = threading.Lock()

    def submit(self, item: ItemT) -> AnswerT:
        """Have the item carried out, and return its answer once its batch is done.

        Raises:
            BaseException: the item's own exception, or what ended the batch: one copy for each who waits.
        """
        mine: _Request[ItemT, AnswerT] = _Request(item)
        with self._lock:
            self._queue.append(mine)
            mine.leads = not self._led
            self._led = True
        try:
            if not mine.leads:
                mine.woken.acquire()
            if not mine.done:
                self._lead(mine)
        except BaseException:
            # A signal: the item may go its way, but this thread must not be counted on to lead.
            self._leave(mine)
            raise
        if mine.error is not None:
            raise mine.error
        return mine.answer  # type: ignore[return-value]

    def _lead(self, mine: _Request[ItemT, AnswerT]) -> None:
        batch: list[_Request[ItemT, AnswerT]] = []
        error: BaseException | None = None
        try:
            with self._lock:
                batch += (self._queue.popleft() for _ in range(min(len(self._queue), self._max_batch)))
            answers = self._commit([request.item for request in batch])
            for request, answer in zip(batch, answers, strict=True):
                if isinstance(answer, Exception):
                    request.error = answer
                else:
                    request.answer = answer
        except BaseException as raised:
            error = raised
        with self._lock:
            for request in batch:
                if error is not None:
                    # Two threads cannot raise one exception: each adds its own traceback.
                    request.error = error if request is mine else copy.copy(error)
                request.done = True
                request.woken.release()
            mine.leads = False
            self._pass_on()

    def _leave(self, mine: _Request[ItemT, AnswerT]) -> None:
        with self._lock:
            if mine in self._queue:
                self._queue.remove(mine)
            if mine.leads:
                mine.leads = False
                self._pass_on()

    def _pass_on(self) -> None:
        """Wake the next to lead, if somebody waits; the lock is held."""
        if self._queue:
            self._queue[0].leads = True
            self._queue[0].woken.release()
        else:
            self._led = False
