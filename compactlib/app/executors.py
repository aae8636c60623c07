# SPDX-License-Identifier: Apache-2.0
"""The executors that a command line can name."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

import attrs

from compactlib.app.stores import Asked
from compactlib.app.terminal import waiting
from compactlib.errors import InvalidInput, Unsupported
from compactlib.rewrite import Attempt, Executor, RewriteFailure, RewriteResult

# Short-lived Java processes come up in half the time with the quick compiler and the small collector.
_QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

EXECUTORS = ("local", "process", "spark")
"""The names that `opened_executor` knows."""


@contextlib.contextmanager
def opened_executor(name: str, workers: int | None = None) -> Iterator[Executor]:
    """An executor by name, ready for work, for as long as the context lasts.

    Args:
        name: `"local"` (threads of this process), `"process"` (processes of this machine), `"spark"` (a session of
            this process; a running one is used and left running).
        workers: how many tasks run at once; default 1 for `"local"`, else the machine's processors.

    Raises:
        InvalidInput: there is no such executor, or `workers` is less than 1.
        MissingDependency: Spark or one of its packages is not installed.
        Unsupported: there is no Java for Spark.
    """
    processors = os.cpu_count() or 1
    if name == "local":
        from compactlib.executors import LocalExecutor

        yield LocalExecutor(1 if workers is None else workers)
    elif name == "process":
        from compactlib.executors import ProcessExecutor

        yield ProcessExecutor(processors if workers is None else workers)
    elif name == "spark":
        with _spark_executor(processors if workers is None else workers) as executor:
            yield executor
    else:
        raise InvalidInput(f"there is no executor {name!r}; choose one of {', '.join(EXECUTORS)}")


@contextlib.contextmanager
def started_executor(asked: Asked) -> Iterator[Executor]:
    """The executor that a command line asks for; while it starts, which may take seconds, the terminal says so."""
    name = asked.executor or "local"
    with contextlib.ExitStack() as stack:
        with waiting(f"starting {name}"):
            executor = stack.enter_context(opened_executor(name, asked.workers))
        yield executor


@contextlib.contextmanager
def _spark_executor(cores: int) -> Iterator[Executor]:
    from compactlib.spark import SparkExecutor, require_spark

    require_spark("a Spark session")
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    found = SparkSession.getActiveSession()
    try:
        # A worker that is killed is tried again; nothing listens beyond this machine.
        spark = found or SparkSession.builder.appName("compactlib").master(f"local[{cores},4]").config(map={
            "spark.driver.extraJavaOptions": _QUICK_JAVA,
            "spark.driver.host": "127.0.0.1",
            "spark.log.level": "OFF",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
        }).getOrCreate()
    except PySparkRuntimeError as error:
        if error.getCondition() != "JAVA_GATEWAY_EXITED":
            raise
        raise Unsupported("Spark could not start Java; install a Java 17 (or later) runtime (Debian and Ubuntu: "
                          "apt-get install openjdk-17-jre-headless) and put it on the PATH") from error
    try:
        if found is None:
            # Without PYSPARK_PYTHON Spark would run whatever `python3` the PATH gives.
            spark.sparkContext.pythonExec = sys.executable
        executor = SparkExecutor(spark)
        warm_up(executor, cores)
        yield executor
    finally:
        if found is None:
            spark.stop()


@attrs.frozen
class _NoWork:
    """A task that only has a worker started, and the library loaded there."""

    name: str

    def run(self, attempt: Attempt) -> RewriteResult:
        return RewriteResult(task=self.name, attempt=attempt.id, files=(), bytes_read=0, bytes_written=0, seconds=0.0)


def warm_up(executor: Executor, workers: int) -> None:
    """Have the executor start its workers now, and find out whether they can do anything at all.

    Raises:
        CompactlibError: they cannot; says why.
    """
    for outcome in executor.run([_NoWork(f"warm-up {number}") for number in range(workers)]):
        if isinstance(outcome, RewriteFailure):
            raise outcome.error
