# SPDX-License-Identifier: Apache-2.0
"""`SparkExecutor`: rewrite tasks as DataFrame jobs, over a classic session or Spark Connect.

A task reads and writes its files itself, on the worker; only its pickled self and its report pass through Spark.
Nothing is published there: the caller commits, after the outcome has come back.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Generator, Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs

from compactlib.budget import Budget, BudgetLimits
from compactlib.errors import BudgetSpent, CompactlibError, CorruptData, InvalidInput, NotFound
from compactlib.executors import CarriedEvents, attempt_task, checked_names, new_attempt_id, portable
from compactlib.observer import Observer, Observers
from compactlib.rewrite import Attempt, RewriteFailure, RewriteOutcome, RewriteResult, RewriteTask
from compactlib.spark.jobs import on_workers, pickled, require_spark, slots_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MAX_OBSERVATIONS = 256
"""How many events one attempt may send home; later ones are left out."""
_MARK_BYTES = 64
_Mark: TypeAlias = tuple[int, bytes]
"""The size of a file, and its first bytes: a checksum of its header is among them."""


class NotVisible(NotFound):
    """A worker and this process do not see the same file under a path that one of them reads or has written.

    Attributes:
        path: the file.
        host: the worker's.
    """

    def __init__(self, path: str, host: str) -> None:
        self.path = path
        self.host = host
        super().__init__(f"{path} is not the same file on {host} and in this process; mount one file system under the "
                         f"same path on all workers and here, or keep the data in an object store")


class SparkExecutor:
    """A `compactlib.executors.Executor` whose tasks run on Spark's workers.

    Tasks and their results are pickled by value where they come from a notebook, by reference where they come from a
    module, which the workers must have: see `ship_library`. Folders named in tasks must be reachable under the same
    path from every worker and from this process; else the task fails with `NotVisible`: before it begins where the
    worker sees no or other `source_files`, afterwards where this process does not see the new files.

    A run is several small jobs of four Spark tasks for each slot of the session, two at a time; the outcomes of a job
    come when it ends. Where the workers of a job die in every attempt, its tasks run again one by one, and the one
    that kills them fails alone. What reaches the other side:

    * **budget**: cancel ends the jobs; while paused, none begins. Tasks check the deadline by the workers' clocks. A
      byte rate is divided among the session's slots. Under a total, tasks run one after the other, each with what is
      left. What tasks report as spent is charged, also by those that failed.
    * **observer**: counters and events of a task come with its outcome, its written bytes as its progress.
    * **errors** come back with all their fields; one that cannot be pickled comes as `TaskFailed` with its text.

    Args:
        tasks_per_partition: how many tasks share one Spark task, one after the other, >= 1: a Spark task costs 20 to
            60 ms of a core whatever it does, but a killed worker repeats all that share it.
    """

    def __init__(self, spark: SparkSession, *, tasks_per_partition: int = 1) -> None:
        if tasks_per_partition < 1:
            raise InvalidInput(f"tasks_per_partition is {tasks_per_partition}; give at least 1")
        require_spark("SparkExecutor")
        self._spark = spark
        self._tasks_per_partition = tasks_per_partition

    def run(self, tasks: Iterable[RewriteTask], *, budget: Budget | None = None,
            observer: Observer | None = None) -> Generator[RewriteOutcome, None, None]:
        """See `Executor.run`. Nothing starts before the first outcome is asked for.

        A job that fails as a whole (a session that was stopped) gives a failure for each of its tasks, with Spark's
        message. Leaving the iterator early has Spark end the jobs, and waits for that.
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
                # Each gets an error of its own.
                yield from [RewriteFailure(name, budget.refusal or spent) for name in undone]
                return
            slots = 1
            if not has_total:
                with contextlib.suppress(Exception):  # of a session that is gone: the job's own error says so
                    slots = slots_of(self._spark)
            now = {name: (task, {path: _mark(path) for path in getattr(task, "source_files", ())})
                   for name, task in islice(undone.items(), 1 if has_total else None)}
            limits = budget.remaining if has_total else budget.remaining.share(slots)
            with contextlib.closing(on_workers(
                    self._spark, _Attempted(limits), now, slots=slots, together=self._tasks_per_partition,
                    stop=lambda: budget.cancelled, pause=lambda: budget.paused)) as coming:
                for name, found in coming:
                    del undone[name]
                    report = _Report(RewriteFailure(name, found)) if isinstance(found, CompactlibError) else found
                    budget.charge(report.spent_bytes)
                    for event, fields in report.events:
                        observer.event(event, **fields)
                    outcome = _seen(report)
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
    """How one attempt ended, what it spent, and what it reported to its observer."""

    outcome: RewriteOutcome
    host: str = ""
    spent_bytes: int = 0
    events: tuple[tuple[str, dict[str, Any]], ...] = ()


@attrs.frozen
class _Attempted:
    """Runs on a worker: an attempt at a task, with these limits, if the files that it reads are those of the driver."""

    limits: BudgetLimits

    def __call__(self, given: tuple[RewriteTask, dict[str, _Mark | None]]) -> _Report:
        task, marks = given
        for path, mark in marks.items():
            if mark is not None and mark != _mark(path):
                return _Report(RewriteFailure(task.name, NotVisible(path, socket.gethostname())))
        events = CarriedEvents(pickled, MAX_OBSERVATIONS)
        attempt = Attempt(new_attempt_id(), Budget.from_limits(self.limits), events)
        outcome = portable(attempt_task(task, attempt), pickled)
        return _Report(outcome, socket.gethostname(), attempt.budget.spent_bytes, events.kept)


def _mark(path: str) -> _Mark | None:
    """Return what tells a file from another one; `None` if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return os.fstat(file.fileno()).st_size, file.read(_MARK_BYTES)
    except OSError:
        return None


def _seen(report: _Report) -> RewriteOutcome:
    """Return an attempt's outcome: a failure where this process does not see its files. Objects are not checked."""
    outcome = report.outcome
    for file in outcome.files if isinstance(outcome, RewriteResult) else ():
        if "://" in file.path:
            continue
        try:
            size = os.stat(file.path).st_size
        except (OSError, ValueError):  # the latter for a name that no file can have
            return RewriteFailure(outcome.task, NotVisible(file.path, report.host))
        if size != file.size_bytes:
            return RewriteFailure(outcome.task, CorruptData(
                path=file.path, offset=min(size, file.size_bytes), found=f"{size} bytes",
                expected=f"the {file.size_bytes} bytes that its attempt reported"))
    return outcome
