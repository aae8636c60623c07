# SPDX-License-Identifier: Apache-2.0
"""One attempt at a task on a worker, the report that travels back, and the one outcome that is made of all reports, or
of what Spark says where the job fails.

An attempt may die, run twice, or go on after its job has ended: its files then lie in its private place for the caller
to sweep.
"""

from __future__ import annotations

import os
import pickle
import re
from collections.abc import Iterator, Mapping, Sequence

import attrs

from compactlib.errors import CompactlibError, CorruptData, NotFound, TaskFailed
from compactlib.executors import attempt_task, foreign_error, new_attempt_id, portable
from compactlib.rewrite import Attempt, RewriteFailure, RewriteOutcome, RewriteResult, RewriteTask
from compactlib.runtime import Budget, BudgetLimits, RecordingObserver
from compactlib.spark.executors.jobs import pickled

MAX_OBSERVATIONS = 256
"""How many distinct counters, and how many events, one attempt may send home; what comes later is only counted."""

_MAX_SENTENCE = 400
_MAX_DETAIL = 65_536
_NOISE = re.compile(r"^(: |An error occurred while calling |An exception was thrown from the Python worker)")
_PYTHON_ERROR = re.compile(r"^[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt|Warning)\b.*", re.MULTILINE)


@attrs.frozen
class Report:
    """How one attempt ended. Where no attempt has said so: what the driver makes of that.

    Attributes:
        outcome: its result or failure.
        attempt: its id.
        spent_bytes: what its share of the budget granted, also when it failed.
        told: what it reported to its observer.
    """

    outcome: RewriteOutcome
    attempt: str = ""
    spent_bytes: int = 0
    told: RecordingObserver = attrs.field(factory=RecordingObserver)


def packed_task(task: RewriteTask) -> bytes:
    """A task as it travels: its name can be read even where its class cannot be imported. In the place of one that
    cannot be pickled goes what that has raised."""
    try:
        data = pickled(task)
    except Exception as error:  # pickling runs foreign code, which may raise anything
        data = pickled(foreign_error(task.name, error))
    return pickle.dumps((task.name, data))


@attrs.frozen
class TaskRunner:
    """What Spark runs over packed tasks: an attempt at each, with these limits; gives the pickled `Report`."""

    limits: BudgetLimits

    def __call__(self, data: bytes) -> bytes:
        name, inner = pickle.loads(data)
        observer = RecordingObserver(limit=MAX_OBSERVATIONS, dumps=pickled)
        attempt = Attempt(new_attempt_id(), Budget.from_limits(self.limits), observer)
        try:
            task: RewriteTask | TaskFailed = pickle.loads(inner)
        except Exception as error:  # unpickling runs foreign code, which may raise anything
            told = (f"task {name!r} could not be loaded on the worker: {type(error).__name__}: {error}; install what "
                    "it needs there, or ship it with spark.addArtifacts(path, pyfile=True)")
            task = TaskFailed(told, task=name, kind=type(error).__name__, detail=foreign_error(name, error).detail)
        outcome: RewriteOutcome = (RewriteFailure(name, task) if isinstance(task, TaskFailed)
                                   else portable(attempt_task(task, attempt), pickled))
        return pickled(Report(outcome, attempt.id, attempt.budget.spent_bytes, observer))


class Matching:
    """The reports of one job and its tasks: each task gets one outcome, whatever comes, early, twice, or never.

    If several attempts of one task report, the first success is used, else the first failure: each attempt's files are
    whole and under names of their own. A report that cannot be read, or that names files which this process does not
    see as reported, is a failure. Tasks are named by their numbers in the job.
    """

    def __init__(self, names: Mapping[int, str]) -> None:
        self._names = names
        self._reports: dict[int, dict[bytes, Report]] = {number: {} for number in names}
        self._used: dict[int, Report] = {}

    def hear(self, number: int, data: bytes) -> Report | None:
        """A report has come: given back if it is the task's first success."""
        known = self._reports.get(number)
        if known is None or data in known:
            return None
        known[data] = report = _read(data, self._names[number])
        is_first = number not in self._used and isinstance(report.outcome, RewriteResult)
        return self._use(number, report) if is_first else None

    def rest(self, *, is_whole: bool) -> Iterator[Report]:
        """The job has ended: the tasks without a success. Those that have not reported are left out unless it came to
        its end (`is_whole`), so that they never will."""
        for number, name in self._names.items():
            if number not in self._used:
                if self._reports[number]:
                    yield self._use(number, next(iter(self._reports[number].values())))
                elif is_whole:
                    yield _no_result(name, "its Spark job ended without a row for it")

    def silent(self) -> list[int]:
        """The numbers of the tasks that did not report."""
        return [number for number, reports in self._reports.items() if not reports]

    def unused(self) -> Iterator[tuple[str, Sequence[Report]]]:
        """The names of tasks of which further attempts reported, with these reports."""
        for number, used in self._used.items():
            others = [report for report in self._reports[number].values() if report is not used]
            if others:
                yield self._names[number], others

    def _use(self, number: int, report: Report) -> Report:
        self._used[number] = report
        problem = _unseen_file(report.outcome) if isinstance(report.outcome, RewriteResult) else None
        return report if problem is None else attrs.evolve(
            report, outcome=RewriteFailure(self._names[number], problem))


def _read(data: bytes, task: str) -> Report:
    try:
        report: Report = pickle.loads(data)
        named = report.outcome.task
    except Exception as error:  # unpickling runs foreign code, which may raise anything
        return _no_result(task, f"its report could not be read here: {type(error).__name__}: {error}")
    return report if named == task else _no_result(task, f"attempt {report.attempt} reported for task {named!r}")


def _no_result(task: str, why: str) -> Report:
    told = f"task {task!r} has no result: {why}; the inputs are untouched, run it again"
    return Report(RewriteFailure(task, TaskFailed(told, task=task, kind="SparkResult", detail=told)))


def _unseen_file(result: RewriteResult) -> CompactlibError | None:
    """What is wrong with a result's files as seen from here, or `None`. Names with `://` are not looked at."""
    for file in result.files:
        if "://" in file.path:
            continue
        try:
            size = os.stat(file.path).st_size
        except (OSError, ValueError) as error:  # the latter for a name that no file can have
            return NotFound(f"task {result.task!r} wrote {file.path!r} on a worker, but this process does not see it "
                            f"({error}); workers and driver need the same folder under the same path")
        if size != file.size_bytes:
            return CorruptData(path=file.path, offset=min(size, file.size_bytes),
                               expected=f"the {file.size_bytes} bytes that attempt {result.attempt} reported",
                               found=f"{size} bytes")
    return None


def condensed(message: str) -> str:
    """The one line of a Spark error that says what happened, at most 400 characters."""
    python_trace = message.rfind('\n  File "')
    if python_trace >= 0 and "Traceback" in message:
        found = _PYTHON_ERROR.search(message, python_trace)
        if found:
            return found[0].strip()[:_MAX_SENTENCE]
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    telling = next((line for line in lines if "Job aborted" in line), None)
    if telling is None:
        telling = next((line for line in lines if not _NOISE.match(line)), "no message")
    telling = telling.removeprefix(": org.apache.spark.SparkException: ").split(" Consider setting ")[0]
    return telling[:_MAX_SENTENCE]


def died(message: str) -> bool:
    """Whether a job failed because workers or executors ended in the midst of a task."""
    return "Python worker exited unexpectedly" in message or "ExecutorLostFailure" in message


def advice(message: str, tasks: int) -> str:
    """What the caller can do about a job of so many tasks that failed with `message`, in one sentence."""
    if "No module named 'compactlib" in message:
        return "the workers cannot import compactlib: install it there, or call compactlib.spark.ship_library(spark)"
    if "ModuleNotFoundError" in message or "ImportError" in message:
        return "install the missing module on the workers, or ship it with spark.addArtifacts(path, pyfile=True)"
    if died(message) and "failed 1 times" in message:
        return ("a worker died, and tasks are not tried again: use the master local[N,4], or on a "
                "cluster raise spark.task.maxFailures")
    if died(message):
        return ("the worker died in every attempt: look for lack of memory or a crash in native code" if tasks == 1 else
                "a worker died in every attempt: one of these tasks kills it; run fewer of them together to find it")
    return "the inputs are untouched: repair the session or cluster and run the tasks again"


def job_failure(task: str, error: Exception, tasks: int) -> TaskFailed:
    """The failure of one task whose Spark job, of so many tasks, failed as a whole."""
    message = str(error)
    told = f"task {task!r} has no result because its Spark job failed: {condensed(message)}; {advice(message, tasks)}"
    return TaskFailed(told, task=task, kind=type(error).__name__, detail=message[:_MAX_DETAIL])
