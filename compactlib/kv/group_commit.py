# SPDX-License-Identifier: Apache-2.0
"""`GroupCommit`: many threads hand in work, one at a time carries out all that has gathered, so that they share a sync.

The first to come leads: it commits what is queued while the others wait; what gathers meanwhile is the next batch, led
by one of the threads that wait. No thread waits longer than for the batch under way and its own.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from compactlib.errors import CompactlibError
from compactlib.kv.errors import OutcomeUnknown

ItemT = TypeVar("ItemT")


class _Request(Generic[ItemT]):
    """One item on its way.

    Attributes:
        batch: the requests that this one leads.
        failure: what ended that batch.
        done: whether it was carried out, or failed with `error`.
    """

    def __init__(self, item: ItemT) -> None:
        self.item = item
        self.batch: list[_Request[ItemT]] = []
        self.failure: BaseException | None = None
        self.done = False
        self.error: Exception | None = None


class GroupCommit(Generic[ItemT]):
    """Turns `commit(batch)` into `submit(item)` for any number of threads.

    A thread that is interrupted while it leads is interrupted alone: the others of its batch get `OutcomeUnknown`, and
    another thread leads.

    Args:
        commit: carries out a batch, in order, in one thread at a time; returns the error of each item that failed on
            its own, `None` for the others. What it raises is the answer to every item of the batch.
    """

    def __init__(self, commit: Callable[[Sequence[ItemT]], Sequence[Exception | None]]) -> None:
        self._commit = commit
        self._queue: list[_Request[ItemT]] = []
        self._leader: _Request[ItemT] | None = None
        self._changed = threading.Condition()

    def submit(self, item: ItemT) -> None:
        """Return once the item was carried out.

        Raises:
            OutcomeUnknown: another thread's interrupt ended the batch.
            Exception: the item's own error, or what ended the batch: one copy for each waiting thread.
        """
        mine = _Request(item)
        try:
            try:
                if self._leads(mine):
                    self._lead(mine)
            finally:
                self._end(mine)
        except BaseException:
            self._end(mine)  # an interrupt may have come within the first one, and others wait for it
            raise
        if mine.error is not None:
            raise mine.error

    def _leads(self, mine: _Request[ItemT]) -> bool:
        with self._changed:
            self._queue.append(mine)
            while self._leader is not None and not mine.done:
                self._changed.wait()
            if mine.done:
                return False
            self._leader = mine
            mine.batch, self._queue = self._queue, []
            return True

    def _lead(self, mine: _Request[ItemT]) -> None:
        try:
            answers = self._commit([request.item for request in mine.batch])
            for request, error in zip(mine.batch, answers, strict=True):
                request.error = error
                request.done = True
        except Exception as error:
            mine.failure = mine.error = error
            mine.done = True
        except BaseException as interrupt:
            mine.failure = interrupt
            raise

    def _end(self, mine: _Request[ItemT]) -> None:
        """Give each of the batch its outcome, and let another thread lead. May be called again."""
        if self._leader is not mine and mine.done:
            return
        with self._changed:
            if mine in self._queue:
                self._queue.remove(mine)
            for request in mine.batch:
                if not request.done:
                    request.error = _for_another(mine.failure)
                    request.done = True
            if self._leader is mine:
                self._changed.notify_all()
                self._leader = None


def _for_another(error: BaseException | None) -> Exception:
    """Return what the other threads of a batch raise: two cannot raise one exception, each adds its own traceback."""
    if isinstance(error, CompactlibError):
        return copy.copy(error)
    return OutcomeUnknown(operation="write", path="the store", detail=f"the thread that carried it out together with "
                          f"its own ended in {type(error).__name__}: {error}")
