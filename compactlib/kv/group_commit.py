# SPDX-License-Identifier: Apache-2.0
"""`GroupCommit`: threads submit items, and one of them at a time commits all queued items, so that they share a sync.

The first thread leads: it commits the queued items while their threads wait. Items that arrive during the commit are
the next batch, led by a waiting thread. A thread waits at most for the present batch and its own.
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
    """A submitted item.

    Attributes:
        batch: the requests of the batch that this one leads.
        failure: the exception that ended that batch.
        done: whether the item was carried out, or failed with `error`.
    """

    def __init__(self, item: ItemT) -> None:
        self.item = item
        self.batch: list[_Request[ItemT]] = []
        self.failure: BaseException | None = None
        self.done = False
        self.error: Exception | None = None


class GroupCommit(Generic[ItemT]):
    """Turns `commit(batch)` into `submit(item)` for any number of threads.

    If the leading thread is interrupted, the other threads of its batch get `OutcomeUnknown`, and another thread leads.

    Args:
        commit: carries out a batch, in order, in one thread at a time; returns for each item its own error or `None`.
            An exception is the error of every item of the batch.
    """

    def __init__(self, commit: Callable[[Sequence[ItemT]], Sequence[Exception | None]]) -> None:
        self._commit = commit
        self._queue: list[_Request[ItemT]] = []
        self._leader: _Request[ItemT] | None = None
        self._changed = threading.Condition()

    def submit(self, item: ItemT) -> None:
        """Return after the item was carried out.

        Raises:
            OutcomeUnknown: another thread's interrupt ended the batch.
            Exception: the item's own error, or a copy of the exception that ended the batch.
        """
        mine = _Request(item)
        try:
            try:
                if self._leads(mine):
                    self._lead(mine)
            finally:
                self._end(mine)
        except BaseException:
            self._end(mine)  # again, after an interrupt of the first call, since other threads wait
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
        """Set the outcome of each item of the batch, and let another thread lead. Idempotent."""
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
    """Return a copy of an error for another thread, since each `raise` adds a traceback."""
    if isinstance(error, CompactlibError):
        return copy.copy(error)
    return OutcomeUnknown(operation="write", path="the store", detail=f"the thread that carried it out together with "
                          f"its own ended in {type(error).__name__}: {error}")
