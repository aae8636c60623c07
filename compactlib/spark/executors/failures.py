# SPDX-License-Identifier: Apache-2.0
"""What Spark says when a job fails, in one sentence with advice."""

from __future__ import annotations

import re

from compactlib.errors import TaskFailed

_MAX_SENTENCE = 400
_MAX_DETAIL = 65_536
_NOISE = re.compile(r"^(: |An error occurred while calling |An exception was thrown from the Python worker)")
_PYTHON_ERROR = re.compile(r"^[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt|Warning)\b.*", re.MULTILINE)
_ONE_ATTEMPT_MASTER = re.compile(r"local(\[(\d+|\*)\])?")
_CRASHED = "Python worker exited unexpectedly"


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
    """The failure of one task whose Spark job, of so many tasks, failed as a whole."""
    message = str(error)
    told = (f"task {task!r} has no result because its Spark job failed: {condensed(message)}; "
            f"{advice(message, master, tasks)}")
    return TaskFailed(told, task=task, kind=type(error).__name__, detail=message[:_MAX_DETAIL])
