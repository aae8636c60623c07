# SPDX-License-Identifier: Apache-2.0
"""Threads that run a host's calls and keep no process from ending, which those of `concurrent.futures` do."""

from __future__ import annotations

import contextlib
import logging
import threading
import weakref
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from compactlib.errors import Closed

if TYPE_CHECKING:
    from concurrent.futures import Future

_LOGGER = logging.getLogger("compactlib.threads")
AnswerT = TypeVar("AnswerT")
_Calls: TypeAlias = "SimpleQueue[Callable[[], object] | None]"


class DaemonThreads:
    """Runs calls in up to so many daemon threads, begun when they are needed. Any thread may use it.

    What a call raises is logged; a call that is to report its errors does so itself.

    Args:
        count: threads at most, >= 1.
        name: what their names begin with.
    """

    def __init__(self, count: int, name: str) -> None:
        self._count = count
        self._name = name
        self._calls: _Calls = SimpleQueue()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._free = threading.Semaphore(0)
        self._closed = False
        # The threads know the queue alone, so that they end when no caller can give them anything any more.
        weakref.finalize(self, self._calls.put, None)

    def submit(self, call: Callable[[], object]) -> None:
        """Run a call as soon as a thread is free.

        Raises:
            Closed: `close` was called.
            RuntimeError: there is no thread yet, and none can be started; the call will not be run.
        """
        with self._lock:
            if self._closed:
                raise Closed(f"the threads {self._name} were closed; make new ones")
            if not self._free.acquire(blocking=False) and len(self._threads) < self._count:
                thread = threading.Thread(target=_run, args=(self._calls, self._free), daemon=True,
                                          name=f"{self._name}-{len(self._threads)}")
                try:
                    thread.start()
                except RuntimeError:
                    if not self._threads:
                        raise
                else:
                    self._threads.append(thread)
            self._calls.put(call)

    def future(self, call: Callable[[], AnswerT]) -> Future[AnswerT]:
        """As `submit`, with a future of what the call returns or raises; it is never done if `close` comes first.

        Raises:
            Closed, RuntimeError: as `submit`.
        """
        # Imported by those who wait for answers: it takes as long as all the rest of a package's threads.
        from concurrent.futures import Future

        future: Future[AnswerT] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(call())
            except BaseException as error:  # the waiting caller gets it, whatever it is
                future.set_exception(error)

        self.submit(run)
        return future

    def close(self) -> None:
        """Take no more calls; those that have not begun never will. Does not wait for those that run."""
        with self._lock:
            self._closed = True
            with contextlib.suppress(Empty):
                while True:
                    self._calls.get_nowait()
            self._calls.put(None)

    def __repr__(self) -> str:
        return f"<DaemonThreads {self._name}: {len(self._threads)} of {self._count}{', closed' * self._closed}>"


def _run(calls: _Calls, free: threading.Semaphore) -> None:
    while (call := calls.get()) is not None:
        try:
            call()
        except BaseException as error:
            _LOGGER.warning("a call in %s raised %r", threading.current_thread().name, error, exc_info=error)
        finally:
            del call
        free.release()
    calls.put(None)  # for the next thread
