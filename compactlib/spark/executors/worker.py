# SPDX-License-Identifier: Apache-2.0
"""What runs on a Spark worker: one attempt at each task, and the report that travels back.

Nothing here keeps state between tasks or publishes anything: an attempt may die, run twice, or go on after its job has
ended, and its files then lie in its private place for the caller to sweep.
"""

from __future__ import annotations

import pickle

import attrs

from compactlib.errors import CompactlibError, TaskFailed
from compactlib.executors.tasks import attempt_task, foreign_error, new_attempt_id
from compactlib.rewrite import Attempt, RewriteFailure, RewriteOutcome, RewriteTask
from compactlib.runtime.budget import Budget, BudgetLimits
from compactlib.runtime.observe import RecordingObserver

MAX_OBSERVATIONS = 256
"""How many distinct counters, and how many events, one attempt may send home; what comes later is only counted."""


@attrs.frozen
class Report:
    """How one attempt ended, with everything the driver needs.

    Attributes:
        task: the task's name.
        attempt: the attempt's id.
        outcome: its result or failure.
        spent_bytes: what its share of the budget granted, also when it failed.
        told: what it reported to its observer.
    """

    task: str
    attempt: str
    outcome: RewriteOutcome
    spent_bytes: int
    told: RecordingObserver


@attrs.frozen
class TaskRunner:
    """What Spark runs over packed tasks: an attempt at each, under an id and with a share of the budget of its own;
    gives the pickled `Report`."""

    limits: BudgetLimits

    def __call__(self, data: bytes) -> bytes:
        told = RecordingObserver(limit=MAX_OBSERVATIONS, dumps=pickled)
        attempt = Attempt(new_attempt_id(), Budget.from_limits(self.limits), told)
        name, outcome = _run_packed(data, attempt)
        return pickled(Report(name, attempt.id, outcome, attempt.budget.spent_bytes, told))


def pickled(value: object) -> bytes:
    """`value` as bytes for `pickle.loads`: classes of notebooks and scripts travel along, those of modules by name."""
    from pyspark import cloudpickle

    return bytes(cloudpickle.dumps(value))  # type: ignore[no-untyped-call]


def packed_task(task: RewriteTask) -> bytes:
    """A task as it travels: its name can be read even where its class cannot be imported."""
    return pickle.dumps((task.name, pickled(task)))


def read_report(data: bytes) -> Report:
    """The report in a result row; `CompactlibError` if the bytes do not give one here, for example because an error's
    class is not importable."""
    try:
        report = pickle.loads(data)
    except Exception as error:  # unpickling runs foreign code, which may raise anything
        raise CompactlibError(f"{type(error).__name__}: {error}") from error
    if not isinstance(report, Report):
        raise CompactlibError(f"found a {type(report).__name__}")
    return report


def _run_packed(data: bytes, attempt: Attempt) -> tuple[str, RewriteOutcome]:
    name, inner = pickle.loads(data)
    try:
        task: RewriteTask = pickle.loads(inner)
    except Exception as error:  # unpickling runs foreign code, which may raise anything
        foreign = foreign_error(name, error)
        told = (f"task {name!r} could not be loaded on the worker: {type(error).__name__}: {error}; install what it "
                "needs there, or ship it with spark.addArtifacts(path, pyfile=True)")
        return name, RewriteFailure(name, TaskFailed(told, task=name, kind=foreign.kind, detail=foreign.detail))
    return name, _portable(attempt_task(task, attempt))


def _portable(outcome: RewriteOutcome) -> RewriteOutcome:
    """As `compactlib.executors.tasks.portable`, but an error's class may also come from a notebook."""
    try:
        pickle.loads(pickled(outcome))
    except Exception as error:  # pickling runs foreign code, which may raise anything
        cause = outcome.error if isinstance(outcome, RewriteFailure) else error
        return RewriteFailure(outcome.task, foreign_error(outcome.task, cause))
    return outcome
