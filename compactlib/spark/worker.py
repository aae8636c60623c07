"""What runs on a Spark worker: one attempt per plan row, and the report that travels back.

Nothing here imports PySpark when it is loaded, keeps state between tasks, or publishes anything: an attempt may
die, run twice, or go on after its job has ended, and its files then lie in its private place for the caller to sweep.
"""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import attrs

from compactlib.budget import Budget, BudgetLimits
from compactlib.clock import SystemClock
from compactlib.errors import CompactlibError, TaskFailed
from compactlib.observe import Observer, Progress
from compactlib.rewrite import (
    Attempt,
    RewriteFailure,
    RewriteOutcome,
    RewriteResult,
    RewriteTask,
    attempt_task,
    new_attempt_id,
)
from compactlib.spark.rows import PlanRow, ResultRow, plan_rows, result_batch

if TYPE_CHECKING:
    import pyarrow as pa

MAX_OBSERVATIONS = 256
"""How many distinct counters, works and events one attempt may send home; the rest is only counted."""

_Labels = tuple[tuple[str, str], ...]


@attrs.frozen
class Observations:
    """What an attempt told its observer, kept small enough to travel.

    Attributes:
        progresses: the last progress of each piece of work.
        counters: name, labels and sum.
        events: name and fields, in order.
        dropped: how many were left out because there were more than `MAX_OBSERVATIONS` of a kind.
    """

    progresses: tuple[Progress, ...]
    counters: tuple[tuple[str, _Labels, int], ...]
    events: tuple[tuple[str, dict[str, Any]], ...]
    dropped: int

    def replay(self, observer: Observer) -> None:
        """Tell `observer` all of it."""
        for progress in self.progresses:
            observer.progress(progress)
        for name, labels, value in self.counters:
            observer.count(name, value, dict(labels))
        for event, fields in self.events:
            observer.event(event, fields)
        if self.dropped:
            observer.event("spark_observations_dropped", {"dropped": self.dropped, "kept": MAX_OBSERVATIONS})


@attrs.frozen
class Report:
    """How one attempt ended, with everything the driver needs.

    Attributes:
        task: the task's name.
        outcome: its result or failure.
        spent_bytes: what its share of the budget granted, also when it failed.
        observations: what it told its observer.
    """

    task: str
    outcome: RewriteOutcome
    spent_bytes: int
    observations: Observations


@attrs.frozen
class PlanRunner:
    """The function that Spark maps over the plan: runs each row's task and yields its result row.

    Attributes:
        limits: the share of the budget that each task gets.
    """

    limits: BudgetLimits

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for row in plan_rows(batch):
                yield result_batch(self.run_row(row))

    def run_row(self, row: PlanRow) -> ResultRow:
        """One attempt at one task, under an id of its own."""
        attempt = Attempt(new_attempt_id(), Budget.from_limits(self.limits), recorder := _Recorder())
        clock = SystemClock()
        started = clock.monotonic()
        name, outcome = _run_packed(row.task, attempt)
        seconds = clock.monotonic() - started
        spent = attempt.budget.spent_bytes
        result = outcome if isinstance(outcome, RewriteResult) else None
        return ResultRow(
            number=row.number,
            name=row.name,
            attempt=attempt.id,
            bytes_read=None if result is None else result.bytes_read,
            bytes_written=spent if result is None else result.bytes_written,
            seconds=seconds,
            report=_pickled_report(Report(name, outcome, spent, recorder.observations())),
        )


def packed_task(task: RewriteTask) -> bytes:
    """A task as it travels: its name can be read even where its class cannot be imported.

    Raises:
        Exception: whatever pickling the task raises.
    """
    return pickle.dumps((task.name, pickled(task)))


def _run_packed(data: bytes, attempt: Attempt) -> tuple[str, RewriteOutcome]:
    name, inner = pickle.loads(data)
    try:
        task: RewriteTask = pickle.loads(inner)
    except Exception as error:
        told = (f"task {name!r} could not be loaded on the worker: {type(error).__name__}: {error}; install what it "
                "needs there, or ship it with spark.addArtifacts(path, pyfile=True)")
        detail = "".join(traceback.format_exception(error))
        return name, RewriteFailure(name, TaskFailed(told, task=name, kind=type(error).__name__, detail=detail))
    return name, _checked(task, attempt_task(task, attempt))


def _checked(task: RewriteTask, outcome: object) -> RewriteOutcome:
    """The outcome, unless the task returned something else or another task's."""
    if isinstance(outcome, RewriteResult | RewriteFailure) and outcome.task == task.name:
        return outcome
    told = f"task {task.name!r} returned {outcome!r:.200}; a task returns the RewriteResult that carries its own name"
    return RewriteFailure(task.name, TaskFailed(told, task=task.name, kind="TypeError", detail=told))


def pickled(value: object) -> bytes:
    """`value` as bytes for `pickle.loads`: classes of notebooks and scripts travel along, those of modules by name."""
    from pyspark import cloudpickle

    return bytes(cloudpickle.dumps(value))  # type: ignore[no-untyped-call]


def _pickled_report(report: Report) -> bytes:
    try:
        return pickled(report)
    except Exception as error:
        # Whatever cannot travel (a lock in an error, a generator in an event) must not cost the task its answer.
        told = f"task {report.task!r} ended in something that cannot be pickled: {type(error).__name__}: {error}"
        failed = TaskFailed(told, task=report.task, kind=type(error).__name__, detail=repr(report.outcome)[:4096])
        nothing = _Recorder().observations()
        return pickled(Report(report.task, RewriteFailure(report.task, failed), report.spent_bytes, nothing))


def read_report(data: bytes) -> Report:
    """The report in a result row.

    Raises:
        CompactlibError: the bytes do not give a report here, for example because an error's class is not importable.
    """
    try:
        report = pickle.loads(data)
    except Exception as error:
        raise CompactlibError(f"{type(error).__name__}: {error}") from error
    if not isinstance(report, Report):
        raise CompactlibError(f"found a {type(report).__name__}")
    return report


class _Recorder(Observer):
    """Keeps the last progress of each work, sums counters, and keeps the first events."""

    def __init__(self) -> None:
        self._progresses: dict[str, Progress] = {}
        self._counters: dict[tuple[str, _Labels], int] = {}
        self._events: list[tuple[str, dict[str, Any]]] = []
        self._dropped = 0

    def progress(self, progress: Progress) -> None:
        if self._has_room(progress.work in self._progresses, len(self._progresses)):
            self._progresses[progress.work] = progress

    def count(self, name: str, value: int = 1, labels: Mapping[str, str] | None = None) -> None:
        key = name, tuple(sorted((labels or {}).items()))
        if self._has_room(key in self._counters, len(self._counters)):
            self._counters[key] = self._counters.get(key, 0) + value

    def event(self, name: str, fields: Mapping[str, Any]) -> None:
        if self._has_room(False, len(self._events)):
            self._events.append((name, dict(fields)))

    def _has_room(self, known: bool, kept: int) -> bool:
        if known or kept < MAX_OBSERVATIONS:
            return True
        self._dropped += 1
        return False

    def observations(self) -> Observations:
        counters = tuple((name, labels, value) for (name, labels), value in self._counters.items())
        return Observations(tuple(self._progresses.values()), counters, tuple(self._events), self._dropped)
