# SPDX-License-Identifier: Apache-2.0
"""Matches the reports of a job to its tasks, and makes one sentence with advice of what Spark says when a job fails."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence

import attrs

from compactlib.errors import CompactlibError, CorruptData, NotFound, TaskFailed
from compactlib.rewrite import RewriteFailure, RewriteOutcome, RewriteResult
from compactlib.spark.executors.worker import Report, read_report

_MAX_SENTENCE = 400
_MAX_DETAIL = 65_536
_NOISE = re.compile(r"^(: |An error occurred while calling |An exception was thrown from the Python worker)")
_PYTHON_ERROR = re.compile(r"^[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt|Warning)\b.*", re.MULTILINE)
_ONE_ATTEMPT_MASTER = re.compile(r"local(\[(\d+|\*)\])?")
_CRASHED = "Python worker exited unexpectedly"


class Matching:
    """The reports of one job and its tasks: each task gets one outcome, whatever comes, early, twice, or never.

    If several attempts of one task report, the first success is used, else the first failure: each attempt's files are
    whole and under names of their own, so any one will do and the others stay in the private place. A report that
    cannot be read, or that names files which this process does not see as reported, gives a failure.

    Args:
        names: each task's number in the job and its name.
    """

    def __init__(self, names: Mapping[int, str]) -> None:
        self._names = names
        self._heard: dict[int, list[bytes]] = {number: [] for number in names}
        self._reports: dict[int, list[Report]] = {number: [] for number in names}
        self._broken: dict[int, str] = {}
        self._used: dict[int, Report] = {}

    def hear(self, number: int, data: bytes) -> Matched | None:
        """A report has come: the task's outcome, if this is its first success."""
        heard = self._heard.get(number)
        if heard is None or data in heard:
            return None
        heard.append(data)
        try:
            report = read_report(data)
        except CompactlibError as error:
            self._broken[number] = f"its report could not be read here: {error}"
            return None
        if report.task != self._names[number]:
            self._broken[number] = f"attempt {report.attempt} reported for task {report.task!r}"
            return None
        self._reports[number].append(report)
        if number in self._used or not isinstance(report.outcome, RewriteResult):
            return None
        return self._matched(number, report)

    def rest(self, *, is_whole: bool) -> Iterator[Matched]:
        """The job has ended: the tasks without a success. Those that have not reported are left out unless it came to
        its end (`is_whole`), so that they never will."""
        for number, name in self._names.items():
            if number in self._used:
                continue
            if self._reports[number] and number not in self._broken:
                yield self._matched(number, self._reports[number][0])
            elif is_whole or number in self._broken:
                why = self._broken.get(number, "its Spark job ended without a row for it")
                told = f"task {name!r} has no result: {why}; the inputs are untouched, run it again"
                yield Matched(RewriteFailure(name, TaskFailed(told, task=name, kind="SparkResult", detail=told)))

    def silent(self) -> list[int]:
        """The numbers of the tasks that did not report."""
        return [number for number, heard in self._heard.items() if not heard]

    def unused(self) -> Iterator[tuple[str, Sequence[Report]]]:
        """The names of tasks of which further attempts reported, with these reports."""
        for number, used in self._used.items():
            others = [report for report in self._reports[number] if report is not used]
            if others:
                yield used.task, others

    def _matched(self, number: int, report: Report) -> Matched:
        self._used[number] = report
        outcome = report.outcome
        problem = _unseen_file(outcome) if isinstance(outcome, RewriteResult) else None
        return Matched(outcome if problem is None else RewriteFailure(outcome.task, problem), report)


@attrs.frozen
class Matched:
    """One task's outcome, and the report that it is from; `None` if there is none that can be read."""

    outcome: RewriteOutcome
    report: Report | None = None


def _unseen_file(result: RewriteResult) -> CompactlibError | None:
    """What is wrong with a result's files as seen from here, or `None`. Names with `://` are not looked at."""
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


def died(message: str) -> bool:
    """Whether a job failed because workers or executors ended in the midst of a task."""
    return _CRASHED in message or "ExecutorLostFailure" in message


def advice(message: str, master: str | None, tasks: int) -> str:
    """What the caller can do about a job of so many tasks that failed with `message`, in one sentence."""
    if "No module named 'compactlib" in message:
        return "the workers cannot import compactlib: install it there, or call compactlib.spark.ship_library(spark)"
    if "ModuleNotFoundError" in message or "ImportError" in message:
        return "install the missing module on the workers, or ship it with spark.addArtifacts(path, pyfile=True)"
    if _CRASHED in message and "failed 1 times" in message and _ONE_ATTEMPT_MASTER.fullmatch(master or ""):
        return (f"a worker died and master {master!r} never retries, whatever spark.task.maxFailures says: "
                "use local[N,4] (compactlib.spark.local_session does)")
    if died(message) and tasks > 1:
        return "a worker died in every attempt: one of these tasks kills it; run fewer of them together to find it"
    if died(message):
        return "the worker died in every attempt: look for lack of memory or a crash in native code"
    return "the inputs are untouched: repair the session or cluster and run the tasks again"


def job_failure(task: str, error: Exception, master: str | None, tasks: int) -> TaskFailed:
    """The failure of one task whose Spark job failed as a whole."""
    message = str(error)
    told = (f"task {task!r} has no result because its Spark job failed: {condensed(message)}; "
            f"{advice(message, master, tasks)}")
    return TaskFailed(told, task=task, kind=type(error).__name__, detail=message[:_MAX_DETAIL])
