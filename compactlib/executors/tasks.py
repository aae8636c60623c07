# SPDX-License-Identifier: Apache-2.0
"""`LocalExecutor`, which runs tasks in this process, and functions for a host's own executors."""

from __future__ import annotations

import itertools
import os
import pickle
import queue
import threading
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

from compactlib._arguments import require_whole
from compactlib.budget import Budget
from compactlib.clock import Clock, SystemClock
from compactlib.errors import CompactlibError, InvalidInput, TaskFailed
from compactlib.observer import Observer, Observers
from compactlib.rewrite import Attempt, Executor, RewriteFailure, RewriteOutcome, RewriteResult, RewriteTask

if TYPE_CHECKING:
    from concurrent.futures import Future

MAX_NAME_CHARS = 1000
"""The longest name of a task."""
MAX_MESSAGE_CHARS = 2000
"""The longest text of a foreign error in a `TaskFailed` message."""
MAX_DETAIL_CHARS = 20_000
"""The longest traceback in `TaskFailed.detail`; the middle is left out."""
_MAX_EVENTS = 100_000


def new_attempt_id() -> str:
    """Return a random id of 32 hexadecimal digits."""
    return os.urandom(16).hex()


def attempt_task(task: RewriteTask, attempt: Attempt) -> RewriteOutcome:
    """Run one attempt, and return its result or a failure; for authors of executors.

    First calls `check` of the attempt's budget, which waits during a pause. `KeyboardInterrupt` and other exceptions
    that are no `Exception` propagate.
    """
    try:
        attempt.budget.check()
        result: object = task.run(attempt)
    except Exception as error:  # of foreign code
        return RewriteFailure(task.name, own_error(task.name, error))
    if isinstance(result, RewriteResult) and (result.task, result.attempt) == (task.name, attempt.id):
        return result
    return RewriteFailure(task.name, InvalidInput(
        f"task {task.name!r} returned {_cut(repr(result), MAX_MESSAGE_CHARS)}; its run() must return a RewriteResult "
        f"with its own name and the attempt id {attempt.id!r}"))


class CarriedEvents:
    """An observer in a worker process that keeps a task's events, except progress, to send them with the result.

    It keeps the first 100,000 events. An event that cannot be pickled is an error of the task that emits it.

    Args:
        dumps: pickles an event.
    """

    def __init__(self, dumps: Callable[[object], bytes]) -> None:
        self._dumps = dumps
        self._events: list[tuple[str, dict[str, Any]]] = []

    def event(self, name: str, /, **fields: Any) -> None:
        if name != "progress":
            self._dumps(fields)
            if len(self._events) < _MAX_EVENTS:
                self._events.append((name, fields))

    @property
    def kept(self) -> tuple[tuple[str, dict[str, Any]], ...]:
        """The names and fields so far: a copy, since threads of the task may add more."""
        return tuple(self._events)


def foreign_error(task: str, error: BaseException) -> TaskFailed:
    """Return a `TaskFailed` that describes an error as text, which can be pickled; for authors of executors."""
    kind = type(error).__name__
    detail = _cut("".join(traceback.format_exception(error)), MAX_DETAIL_CHARS)
    message = f"task {task!r} failed: {kind}: {_cut(_text(error), MAX_MESSAGE_CHARS)}"
    described = TaskFailed(message, task=task, kind=kind, detail=detail)
    # A log that shows this error then shows the original traceback.
    described.add_note(detail)
    return described


def own_error(task: str, error: Exception) -> CompactlibError:
    """Return an error of the library unchanged, and any other as `foreign_error`."""
    return error if isinstance(error, CompactlibError) else foreign_error(task, error)


def portable(outcome: RewriteOutcome, dumps: Callable[[object], bytes] = pickle.dumps) -> RewriteOutcome:
    """Return the outcome if it can be pickled, else a failure that can; for authors of executors.

    A library error with a field that cannot be pickled becomes a `TaskFailed` with its class, message and traceback.
    """
    try:
        pickle.loads(dumps(outcome))
    except Exception as error:  # pickling runs foreign code, which may raise anything
        cause = outcome.error if isinstance(outcome, RewriteFailure) else error
        return RewriteFailure(outcome.task, foreign_error(outcome.task, cause))
    return outcome


def portable_error(task: str, error: Exception, dumps: Callable[[object], bytes] = pickle.dumps) -> CompactlibError:
    """Return `own_error` if it can be pickled, else `foreign_error`; for authors of executors."""
    outcome = portable(RewriteFailure(task, own_error(task, error)), dumps)
    assert isinstance(outcome, RewriteFailure)
    return outcome.error


def checked_names(tasks: Iterable[RewriteTask]) -> Sequence[RewriteTask]:
    """Return the tasks as a sequence; for authors of executors.

    Raises:
        InvalidInput: two tasks share a name, or a name is empty or longer than `MAX_NAME_CHARS`.
    """
    listed = list(tasks)
    seen: set[str] = set()
    for task in listed:
        name = task.name
        if not 1 <= len(name) <= MAX_NAME_CHARS:
            raise InvalidInput(f"a task's name has 1 to {MAX_NAME_CHARS} characters, found {len(name)}: {name[:100]!r}")
        if name in seen:
            raise InvalidInput(f"two tasks are named {name!r}; outcomes are matched by name, rename one")
        seen.add(name)
    return listed


def answers_of(executor: Executor, tasks: Sequence[RewriteTask], *, budget: Budget | None = None,
               observer: Observer | None = None) -> Generator[RewriteOutcome, None, None]:
    """Run an executor, and check that it yields one outcome for each task; for callers of executors.

    A task without an outcome fails with `InvalidInput`. Closing this iterator closes the executor's.

    Raises:
        InvalidInput: the executor yields something else, or an outcome for another task, or two for one.
        Exception: of the executor.
    """
    waiting = dict.fromkeys(task.name for task in tasks)
    given: Iterator[object] = iter(executor.run(tasks, budget=budget, observer=observer))
    try:
        for outcome in given:
            if not isinstance(outcome, RewriteResult | RewriteFailure) or outcome.task not in waiting:
                raise InvalidInput(f"the executor {executor!r} answered {outcome!r:.200}; it must give one outcome for "
                                   f"each of the tasks it was given: see Executor.run")
            del waiting[outcome.task]
            yield outcome
    finally:
        if isinstance(given, Generator):
            given.close()
    for name in waiting:
        yield RewriteFailure(name, InvalidInput(f"the executor {executor!r} gave no outcome for the task {name!r}; it "
                                                f"must give one for each: see Executor.run"))


class LocalExecutor:
    """Runs tasks in this process: one after the other, or in `workers` threads.

    Threads overlap fsync, and the reading and checksumming of tasks that take no turns (`Attempt.turn`); they share the
    caller's budget. The observer is called on the caller's thread, while it waits for an outcome. Threads run at most
    `2 * workers` tasks ahead of the caller, so that memory does not grow with the number of tasks.

    Args:
        workers: the number of concurrent tasks, >= 1.
        clock: the attempts' clock, for the seconds in their results.

    Raises:
        InvalidInput: `workers` is less than 1.
    """

    def __init__(self, workers: int = 1, *, clock: Clock | None = None) -> None:
        self._workers: int = require_whole("workers", workers, 1)
        self._clock: Clock = SystemClock() if clock is None else clock

    def run(self, tasks: Iterable[RewriteTask], *, budget: Budget | None = None,
            observer: Observer | None = None) -> Generator[RewriteOutcome, None, None]:
        """Run the tasks; yield an outcome for each, in any order. With one worker, `next` runs a task.

        The iterator is a generator. Closing it begins no further task, cancels the running ones, and returns when all
        have ended. A task's `KeyboardInterrupt` is raised from it in the same way.
        """
        listed, notified = checked_names(tasks), Observers(observer)
        # A child, so that leaving the iterator cancels the running tasks and not the caller's budget.
        child = (Budget() if budget is None else budget).child()
        if self._workers == 1:
            return (self._attempt(task, child, notified, nullcontext()) for task in listed)
        return self._run_threads(listed, child, notified)

    def _attempt(self, task: RewriteTask, budget: Budget, observer: Observer,
                 turn: AbstractContextManager[object]) -> RewriteOutcome:
        return attempt_task(task, Attempt(new_attempt_id(), budget, observer, self._clock, turn))

    def _run_threads(self, tasks: Sequence[RewriteTask], budget: Budget,
                     observer: Observers) -> Generator[RewriteOutcome, None, None]:
        # Imported here, because the import takes as long as the rest of this module.
        from concurrent.futures import ThreadPoolExecutor

        news: queue.SimpleQueue[Future[RewriteOutcome] | partial[None]] = queue.SimpleQueue()
        # Each event wakes the caller's thread.
        queued = observer if observer.is_deaf else _Queued(news, observer)
        waiting = iter(tasks)
        pool = ThreadPoolExecutor(self._workers, thread_name_prefix="compactlib-rewrite")
        turn = threading.Lock()
        unfinished = 0
        try:
            while True:
                for task in itertools.islice(waiting, 2 * self._workers - unfinished):
                    pool.submit(self._attempt, task, budget, queued, turn).add_done_callback(news.put)
                    unfinished += 1
                if not unfinished:
                    return
                item = news.get()
                if isinstance(item, partial):
                    item()
                else:
                    unfinished -= 1
                    yield item.result()
        finally:
            budget.cancel()
            pool.shutdown(wait=True, cancel_futures=True)

    def __repr__(self) -> str:
        return f"LocalExecutor(workers={self._workers})"


class _Queued:
    """An observer that queues the events of tasks for the caller's thread."""

    def __init__(self, news: queue.SimpleQueue[Future[RewriteOutcome] | partial[None]], observer: Observer) -> None:
        self._news = news
        self._observer = observer

    def event(self, name: str, /, **fields: Any) -> None:
        self._news.put(partial(self._observer.event, name, **fields))


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # of a foreign `__str__`
        return "(its text cannot be shown)"


def _cut(text: str, limit: int) -> str:
    """Return `text`, or its beginning and end if it is longer than `limit`."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]} … {len(text) - 2 * half} characters left out … {text[-half:]}"
