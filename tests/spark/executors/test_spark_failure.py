# SPDX-License-Identifier: Apache-2.0
"""What a failed job's message is boiled down to. The messages are those of PySpark 4.3.0, cut where they repeat."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable
from typing import cast

import pyspark
import pytest
from pyspark.sql import SparkSession

from compactlib.spark.executors.jobs import SparkJobs
from compactlib.spark.executors.reports import advice, condensed, job_failure

CRASHED = """An error occurred while calling o80.collectToPython.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 times, most recent \
failure: Lost task 0.0 in stage 1.0 (TID 2) (192.0.2.2 executor driver): org.apache.spark.SparkException: Python \
worker exited unexpectedly (crashed). Consider setting 'spark.python.worker.faulthandler.enabled' to 'true'.
\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator$$anonfun$1.applyOrElse(PythonRunner.scala:1136)
"""
CLASSIC_RAISED = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "/tmp/job.py", line 26, in err
    raise ValueError("bad things\\nsecond line")
ValueError: bad things
second line"""
CONNECT_RAISED = """
  An exception was thrown from the Python worker. Please see the stack trace below.
[PYTHON_EXCEPTION] An exception was thrown from the Python worker: Traceback (most recent call last):
  File "/lib/pyspark.zip/pyspark/worker.py", line 4327, in invoke_udf
    run_process()
  File "/tmp/job.py", line 20, in fn
    import compactlib.spark
ModuleNotFoundError: No module named 'compactlib'
 SQLSTATE: 38000
"""
STOPPED = "[NO_ACTIVE_SESSION] No active Spark session found. Please create a new Spark session."


@pytest.mark.parametrize(("message", "line"), [
    (CRASHED, "Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 times, most recent failure: Lost task "
              "0.0 in stage 1.0 (TID 2) (192.0.2.2 executor driver): org.apache.spark.SparkException: Python worker "
              "exited unexpectedly (crashed)."),
    (CLASSIC_RAISED, "ValueError: bad things"),
    (CONNECT_RAISED, "ModuleNotFoundError: No module named 'compactlib'"),
    (STOPPED, STOPPED),
    ("", "no message"),
    ("x" * 1000, "x" * 400),
])
def test_the_telling_line(message: str, line: str) -> None:
    assert condensed(message) == line


@pytest.mark.parametrize(("message", "tasks", "words"), [
    (CRASHED, 1, "tasks are not tried again: use the master local[N,4]"),
    (CRASHED.replace("failed 1 times", "failed 4 times"), 2, "one of these tasks kills it"),
    (CRASHED.replace("failed 1 times", "failed 4 times"), 1, "lack of memory"),
    (CONNECT_RAISED, 1, "ship_library(spark)"),
    (CONNECT_RAISED.replace("compactlib", "obstore"), 1, "addArtifacts"),
    (STOPPED, 1, "run the tasks again"),
])
def test_the_advice(message: str, tasks: int, words: str) -> None:
    assert words in advice(message, tasks)


def test_a_session_that_goes_before_the_job_begins_is_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """PySpark asks the session in the job's own thread before anything else."""
    def gone(work: Callable[[], None]) -> Callable[[], None]:
        def asked() -> None:
            raise RuntimeError("there is no active session")

        return asked

    monkeypatch.setattr(pyspark, "inheritable_thread_target", lambda session: gone)
    looks = itertools.count()
    jobs = SparkJobs(cast(SparkSession, object()))
    with pytest.raises(RuntimeError, match="no active session"):
        list(jobs.answers(bytes, [[(0, b"")]], lambda: next(looks) == 20))


def test_the_failure_names_the_task_and_keeps_the_rest() -> None:
    error = job_failure("group 7", RuntimeError(CRASHED), 3)
    assert str(error).startswith("task 'group 7' has no result because its Spark job failed: Job aborted")
    assert (error.task, error.kind, error.detail) == ("group 7", "RuntimeError", CRASHED)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
