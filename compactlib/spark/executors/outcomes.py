# SPDX-License-Identifier: Apache-2.0
"""Matches the rows a job returned to the tasks it was given: each task ends with exactly one outcome.

Of a job that failed as a whole, what Spark says (hundreds of lines) becomes one sentence with advice, and the rest is
kept.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence

import attrs

from compactlib.errors import CompactlibError, CorruptData, NotFound, TaskFailed
from compactlib.rewrite import RewriteFailure, RewriteOutcome, RewriteResult
from compactlib.runtime.observe import RecordingObserver
from compactlib.spark.executors.rows import ResultRow
from compactlib.spark.executors.worker import Report, read_report

_MAX_SENTENCE = 400
_MAX_DETAIL = 65_536
_NOISE = re.compile(r"^(: |An error occurred while calling |An exception was thrown from the Python worker)")
_PYTHON_ERROR = re.compile(r"^[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt|Warning)\b.*", re.MULTILINE)
_ONE_ATTEMPT_MASTER = re.compile(r"local(\[(\d+|\*)\])?")
_CRASHED = "Python worker exited unexpectedly"


@attrs.frozen
class Matched:
    """One task's outcome.

    Attributes:
        outcome: its result or failure.
        spent_bytes: to be charged to the caller's budget.
        told: what the task reported, for the caller's observer; `None` if nothing came back.
        extra_attempts: ids of attempts that also reported and were not used.
    """

    outcome: RewriteOutcome
    spent_bytes: int = 0
    told: RecordingObserver | None = None
    extra_attempts: tuple[str, ...] = ()


def match_outcomes(names: Mapping[int, str], rows: Sequence[ResultRow], *, check_files: bool) -> Iterator[Matched]:
    """One `Matched` for each task, in the order of `names`.

    If several attempts of one task reported (Spark gives one per partition; other engines may not), the first success
    is used, else the first row: each attempt's files are whole and under names of their own, so any one will do and
    the others stay in the private place. A task without a row, with a report that cannot be read, or (with
    `check_files`) with files that this process does not see as reported, gives a failure.

    Args:
        names: each task's number in the job and its name.
        rows: what came back, in any order.
        check_files: compare each file's size on disk with what the worker reported.
    """
    by_number: dict[int, list[ResultRow]] = {number: [] for number in names}
    for row in rows:
        by_number.setdefault(row.number, []).append(row)
    for number, name in names.items():
        yield _match_one(name, by_number[number], check_files)


def _match_one(name: str, rows: Sequence[ResultRow], check_files: bool) -> Matched:
    if not rows:
        return _unreadable(name, "its Spark job ended without a row for it")
    reports: list[tuple[ResultRow, Report]] = []
    for row in rows:
        try:
            report = read_report(row.report)
        except CompactlibError as error:
            return _unreadable(name, f"the report of attempt {row.attempt} could not be read here: {error}")
        if report.task != name:
            return _unreadable(name, f"attempt {row.attempt} reported for task {report.task!r}")
        reports.append((row, report))
    chosen = next((pair for pair in reports if isinstance(pair[1].outcome, RewriteResult)), reports[0])
    outcome = chosen[1].outcome
    if check_files and isinstance(outcome, RewriteResult):
        problem = unseen_file(outcome)
        outcome = outcome if problem is None else RewriteFailure(name, problem)
    spent = sum(report.spent_bytes for _, report in reports)
    extra = tuple(row.attempt for row, _ in reports if row is not chosen[0])
    return Matched(outcome, spent, chosen[1].told, extra)


def _unreadable(name: str, why: str) -> Matched:
    told = f"task {name!r} has no result: {why}; the inputs are untouched, run it again"
    return Matched(RewriteFailure(name, TaskFailed(told, task=name, kind="SparkResult", detail=told)))


def unseen_file(result: RewriteResult) -> CompactlibError | None:
    """What is wrong with a result's files as seen from this process, or `None`. Names with `://` are not looked at."""
    for file in result.files:
        if "://" in file.path:
            continue
        try:
            size = os.stat(file.path).st_size
        except OSError as error:
            return NotFound(f"task {result.task!r} wrote {file.path} on a worker, but this process does not see it "
                            f"({error.strerror}); workers and driver need the same folder under the same path")
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


def advice(message: str, master: str | None, tasks: int) -> str:
    """What the caller can do about a job that failed, in one sentence.

    Args:
        message: the whole Spark error.
        master: the session's `spark.master`, if known.
        tasks: how many tasks were in the job.
    """
    if "No module named 'compactlib" in message:
        return "the workers cannot import compactlib: install it there, or call compactlib.spark.ship_library(spark)"
    if "ModuleNotFoundError" in message or "ImportError" in message:
        return "install the missing module on the workers, or ship it with spark.addArtifacts(path, pyfile=True)"
    if _CRASHED in message and "failed 1 times" in message and _ONE_ATTEMPT_MASTER.fullmatch(master or ""):
        return (f"a worker died and master {master!r} never retries, whatever spark.task.maxFailures says: "
                "use local[N,4] (compactlib.spark.local_session does)")
    if _CRASHED in message and tasks > 1:
        return "a worker died in every attempt; run with max_tasks_per_job=1 to find the task that kills it"
    if _CRASHED in message:
        return "the worker died in every attempt: look for lack of memory or a crash in native code"
    return "the inputs are untouched: repair the session or cluster and run the tasks again"


def job_failure(task: str, error: Exception, master: str | None, tasks: int) -> TaskFailed:
    """The failure of one task whose Spark job failed as a whole."""
    message = str(error)
    told = (f"task {task!r} has no result because its Spark job failed: {condensed(message)}; "
            f"{advice(message, master, tasks)}")
    return TaskFailed(told, task=task, kind=type(error).__name__, detail=message[:_MAX_DETAIL])
