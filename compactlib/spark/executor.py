# SPDX-License-Identifier: Apache-2.0
"""`SparkExecutor`: run rewrite tasks as DataFrame jobs, over a classic session or Spark Connect.

A task reads and writes its files on the worker; only the pickled task and its report pass through Spark. Workers
publish nothing: the caller commits, once it has the outcome.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Generator, Iterable, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs

from compactlib._arguments import require_whole
from compactlib.budget import Budget, BudgetLimits
from compactlib.errors import BudgetSpent, CompactlibError, NotFound
from compactlib.executors import CarriedEvents, attempt_task, checked_names, new_attempt_id, portable
from compactlib.observer import Observer, Observers
from compactlib.rewrite import Attempt, RewriteFailure, RewriteOutcome, RewriteResult, RewriteTask
from compactlib.spark.jobs import on_workers, pickled, require_spark, slots_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MARK_BYTES = 64
_Mark: TypeAlias = tuple[int, bytes]
"""The size of a file and its first bytes, which include a checksum of its header."""


class NotVisible(NotFound):
    """A file is missing, or has other content, on a worker: it does not share the file system of this process.

    Attributes:
        path: the file.
        host: the host name of the worker.
    """

    def __init__(self, path: str, host: str) -> None:
        self.path = path
        self.host = host
        super().__init__(f"{path} is not the same file on {host} and in this process; mount one file system under the "
                         f"same path on all workers and here, or keep the data in an object store")


class SparkExecutor:
    """Run rewrite tasks on Spark's workers; an `Executor` of `compactlib.executors`.

    Classes from a notebook are pickled by value, classes from a module by reference: the workers must have the module
    (see `ship_library`). Every worker and this process must reach the folders named in tasks under the same path. A
    task fails with `NotVisible` before it begins if its `source_files` differ on the worker.

    A run is several small jobs, two at a time, each of four Spark tasks for each slot of the session. The outcomes and
    events of a job arrive when it ends. If the workers of a job die in every attempt, its tasks run again one by one,
    so that only the task that kills its worker fails. An error that cannot be pickled becomes `TaskFailed`.

    A cancelled budget ends the jobs, a paused one starts no further job. A byte rate is divided among the session's
    slots. Under a total, tasks run in sequence, each with the remaining bytes. Failed tasks are charged too.

    Args:
        tasks_per_partition: how many rewrite tasks share a Spark task, in sequence, >= 1. A Spark task costs 20 to
            60 ms of a core by itself, but a killed worker repeats all tasks that share it.
    """

    def __init__(self, spark: SparkSession, *, tasks_per_partition: int = 1) -> None:
        self._tasks_per_partition: int = require_whole("tasks_per_partition", tasks_per_partition, 1)
        require_spark("SparkExecutor")
        self._spark = spark

    def run(self, tasks: Iterable[RewriteTask], *, budget: Budget | None = None,
            observer: Observer | None = None) -> Generator[RewriteOutcome, None, None]:
        """See `Executor.run`. The first job starts with the first `next()`.

        A job that fails as a whole (the session was stopped) gives a failure for each of its tasks, with Spark's
        message. Closing the iterator early cancels the jobs and waits until they have ended.
        """
        return self._run(checked_names(tasks), Budget() if budget is None else budget, Observers(observer))

    def _run(self, tasks: Sequence[RewriteTask], budget: Budget,
             observer: Observer) -> Generator[RewriteOutcome, None, None]:
        undone = {task.name: task for task in tasks}
        has_total = budget.remaining.total_bytes is not None
        while undone:
            try:
                budget.check()
            except BudgetSpent as spent:
                # Each task gets its own error object.
                yield from [RewriteFailure(name, budget.refusal or spent) for name in undone]
                return
            slots = 1
            if not has_total:
                with contextlib.suppress(Exception):  # a stopped session: the job raises a better error
                    slots = slots_of(self._spark)
            now = {name: (task, {path: _mark(path) for path in getattr(task, "source_files", ())})
                   for name, task in islice(undone.items(), 1 if has_total else None)}
            limits = budget.remaining if has_total else budget.remaining.share(slots)
            with contextlib.closing(on_workers(
                    self._spark, partial(_attempted, limits), now, slots=slots, together=self._tasks_per_partition,
                    budget=budget)) as coming:
                for name, found in coming:
                    del undone[name]
                    report = _Report(RewriteFailure(name, found)) if isinstance(found, CompactlibError) else found
                    budget.charge(report.spent_bytes)
                    for event, fields in report.events:
                        observer.event(event, **fields)
                    outcome = report.outcome
                    if isinstance(outcome, RewriteResult):
                        observer.event("progress", work=name, done=outcome.bytes_written,
                                       total=outcome.bytes_written, unit="bytes")
                    observer.event("progress", work="rewrite", done=len(tasks) - len(undone), total=len(tasks),
                                   unit="groups")
                    yield outcome

    def __repr__(self) -> str:
        return f"SparkExecutor(tasks_per_partition={self._tasks_per_partition})"


@attrs.frozen
class _Report:
    """The outcome of an attempt, its spent bytes, and its events."""

    outcome: RewriteOutcome
    spent_bytes: int = 0
    events: tuple[tuple[str, dict[str, Any]], ...] = ()


def _attempted(limits: BudgetLimits, given: tuple[RewriteTask, dict[str, _Mark | None]]) -> _Report:
    """Attempt a task on a worker, within the limits; refuse it if its source files are not those of the driver."""
    task, marks = given
    for path, mark in marks.items():
        if mark is not None and mark != _mark(path):
            return _Report(RewriteFailure(task.name, NotVisible(path, socket.gethostname())))
    events = CarriedEvents(pickled)
    attempt = Attempt(new_attempt_id(), Budget.from_limits(limits), events)
    outcome = portable(attempt_task(task, attempt), pickled)
    return _Report(outcome, attempt.budget.spent_bytes, events.kept)


def _mark(path: str) -> _Mark | None:
    """Return the mark of a file; `None` if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return os.fstat(file.fileno()).st_size, file.read(_MARK_BYTES)
    except OSError:
        return None
