# SPDX-License-Identifier: Apache-2.0
"""Running tasks: the pieces that executors are made of, and `LocalExecutor`, which runs them in this process."""

from __future__ import annotations

import itertools
import os
import pickle
import queue
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
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
"""The longest name a task may have."""
MAX_MESSAGE_CHARS = 2000
"""How much of a foreign error's own text goes into a `TaskFailed` message."""
MAX_DETAIL_CHARS = 20_000
"""How much of a foreign traceback `TaskFailed.detail` keeps; the middle is left out."""


def new_attempt_id() -> str:
    """A fresh id: 32 hexadecimal digits, unique without coordination."""
    return os.urandom(16).hex()


def attempt_task(task: RewriteTask, attempt: Attempt) -> RewriteOutcome:
    """Run one attempt and turn whatever it raises into an outcome; for authors of executors.

    Begins only when the attempt's budget lets it (waiting while that is paused). What is no `Exception`, such as
    `KeyboardInterrupt`, passes through.
    """
    try:
        attempt.budget.check()
        result: object = task.run(attempt)
    except Exception as error:  # whatever foreign code raises is this task's outcome
        return RewriteFailure(task.name, own_error(task.name, error))
    if isinstance(result, RewriteResult) and (result.task, result.attempt) == (task.name, attempt.id):
        return result
    return RewriteFailure(task.name, InvalidInput(
        f"task {task.name!r} returned {_cut(repr(result), MAX_MESSAGE_CHARS)}; its run() must return a RewriteResult "
        f"with its own name and the attempt id {attempt.id!r}"))


class CarriedEvents:
    """An observer that keeps a task's events for their way home from another process. Progress is left out.

    An event that cannot be pickled is an error of the task that reports it.

    Args:
        dumps: how the events will be pickled.
        limit: how many are kept; later ones are left out.
    """

    def __init__(self, dumps: Callable[[object], bytes], limit: int = 100_000) -> None:
        self._dumps = dumps
        self._limit = limit
        self._events: list[tuple[str, dict[str, Any]]] = []

    def event(self, name: str, /, **fields: Any) -> None:
        if name != "progress":
            self._dumps(fields)
            if len(self._events) < self._limit:
                self._events.append((name, fields))

    @property
    def kept(self) -> tuple[tuple[str, dict[str, Any]], ...]:
        """The names and fields so far: a copy, as the task's threads may outlive it."""
        return tuple(self._events)


def foreign_error(task: str, error: BaseException) -> TaskFailed:
    """A `TaskFailed` that describes `error` in text alone, so that it can travel; for authors of executors."""
    kind = type(error).__name__
    detail = _cut("".join(traceback.format_exception(error)), MAX_DETAIL_CHARS)
    told = f"task {task!r} failed: {kind}: {_cut(_text(error), MAX_MESSAGE_CHARS)}"
    described = TaskFailed(told, task=task, kind=kind, detail=detail)
    # So that a log which shows this error shows where the other one was raised.
    described.add_note(detail)
    return described


def own_error(task: str, error: Exception) -> CompactlibError:
    """`error` if it is the library's; what describes it, if it is another's."""
    return error if isinstance(error, CompactlibError) else foreign_error(task, error)


def portable(outcome: RewriteOutcome, dumps: Callable[[object], bytes] = pickle.dumps) -> RewriteOutcome:
    """The outcome if it survives pickling, else a failure that does; for authors of executors.

    A library error with a field that cannot be pickled becomes a `TaskFailed` with its class, message and traceback.
    """
    try:
        pickle.loads(dumps(outcome))
    except Exception as error:  # pickling runs foreign code, which may raise anything
        cause = outcome.error if isinstance(outcome, RewriteFailure) else error
        return RewriteFailure(outcome.task, foreign_error(outcome.task, cause))
    return outcome


def portable_error(task: str, error: Exception, dumps: Callable[[object], bytes] = pickle.dumps) -> CompactlibError:
    """`own_error`, or what describes it where that does not survive pickling; for authors of executors."""
    outcome = portable(RewriteFailure(task, own_error(task, error)), dumps)
    assert isinstance(outcome, RewriteFailure)
    return outcome.error


def checked_names(tasks: Iterable[RewriteTask]) -> Sequence[RewriteTask]:
    """The tasks as a sequence; for authors of executors.

    Raises:
        InvalidInput: two tasks share a name, so that their outcomes could not be distinguished, or a name is empty or
            longer than `MAX_NAME_CHARS`.
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
    """What any executor answers, held against its tasks: an outcome of each, once; for those that call executors.

    A task without an answer has failed with `InvalidInput`. What the executor began ends when this is closed.

    Raises:
        InvalidInput: it answers something else, or for another task, or twice.
        Exception: whatever the executor raises.
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

    Threads overlap reading, checksumming of large entries, and fsync; they share the caller's budget. What their tasks
    report to the observer reaches it on the caller's thread, while that waits for an outcome.
    They run at most `2 * workers` tasks ahead of the caller, so memory does not grow with the number of tasks.

    Args:
        workers: how many tasks run at once, >= 1.
        attempt_id: gives each attempt its id; for tests that need names to repeat. Threads may call it at once.
        clock: lent to the attempts, for the seconds in their results.

    Raises:
        InvalidInput: `workers` is no number from 1 on.
    """

    def __init__(self, workers: int = 1, *, attempt_id: Callable[[], str] = new_attempt_id,
                 clock: Clock | None = None) -> None:
        require_whole("workers", workers, 1)
        self._workers = workers
        self._attempt_id = attempt_id
        self._clock: Clock = SystemClock() if clock is None else clock

    def run(self, tasks: Iterable[RewriteTask], *, budget: Budget | None = None,
            observer: Observer | None = None) -> Generator[RewriteOutcome, None, None]:
        """See `Executor.run`. With one worker, a task starts when its outcome is asked for.

        The iterator is a generator. Closing it (or leaving a `for` over it) begins no further task, ends those that
        run at their next question to the budget, and returns when nothing runs any more. What is no `Exception`,
        such as a task's `KeyboardInterrupt`, is raised from it in the same way.
        """
        listed = checked_names(tasks)
        # A child, so that leaving the iterator cancels the running tasks and not the caller's budget.
        child = (Budget() if budget is None else budget).child()
        return (self._run_here if self._workers == 1 else self._run_threads)(listed, child, Observers(observer))

    def _attempt(self, task: RewriteTask, budget: Budget, observer: Observer) -> RewriteOutcome:
        return attempt_task(task, Attempt(self._attempt_id(), budget, observer, self._clock))

    def _run_here(self, tasks: Sequence[RewriteTask], budget: Budget,
                  observer: Observer) -> Generator[RewriteOutcome, None, None]:
        for task in tasks:
            yield self._attempt(task, budget, observer)

    def _run_threads(self, tasks: Sequence[RewriteTask], budget: Budget,
                     observer: Observer) -> Generator[RewriteOutcome, None, None]:
        # Imported here, because the import takes as long as the rest of this module.
        from concurrent.futures import ThreadPoolExecutor

        news: queue.SimpleQueue[Future[RewriteOutcome] | partial[None]] = queue.SimpleQueue()
        queued = _Queued(news, observer)
        waiting = iter(tasks)
        pool = ThreadPoolExecutor(self._workers, thread_name_prefix="compactlib-rewrite")
        unfinished = 0
        try:
            while True:
                for task in itertools.islice(waiting, 2 * self._workers - unfinished):
                    pool.submit(self._attempt, task, budget, queued).add_done_callback(news.put)
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
    """Puts the events of a task on a queue, for the caller's thread."""

    def __init__(self, news: queue.SimpleQueue[Future[RewriteOutcome] | partial[None]], observer: Observer) -> None:
        self._news = news
        self._observer = observer

    def event(self, name: str, /, **fields: Any) -> None:
        self._news.put(partial(self._observer.event, name, **fields))


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # a foreign __str__ may raise anything
        return "(its text cannot be shown)"


def _cut(text: str, limit: int) -> str:
    """`text`, or its beginning and end when it is longer than `limit`."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]} … {len(text) - 2 * half} characters left out … {text[-half:]}"
