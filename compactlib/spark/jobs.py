# SPDX-License-Identifier: Apache-2.0
"""Call a function with pieces of work in small DataFrame jobs, over a classic session or Spark Connect.

A job has a few partitions, a partition a few pieces; the pieces are pickled with the function. The values of a job
arrive when it ends. Two jobs run at a time: the caller handles the values of a job while the next job runs.

If the workers of a job die in every attempt, the job runs again partition by partition, and a partition piece by piece.
So only the piece that kills its worker fails.
"""

from __future__ import annotations

import contextlib
import importlib
import pickle
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs

from compactlib.budget import Budget
from compactlib.errors import CompactlibError, MissingDependency, TaskFailed
from compactlib.executors import foreign_error, new_attempt_id, portable_error

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

_Job: TypeAlias = "list[list[str]]"
"""The names of the pieces of each partition."""

_RESULTS_DDL = "partition bigint, results binary"
_PARTITIONS_A_SLOT = 4
_JOBS_AT_ONCE = 2
_POLL_SECONDS = 0.2
_PROBE_ROWS = 4096
_MAX_REASON = 400
_MAX_DETAIL = 65_536


def require_spark(purpose: str) -> None:
    """Raise `MissingDependency`, which names the purpose, unless PySpark, PyArrow and pandas can be imported."""
    for package in ("pyspark", "pyarrow", "pandas"):  # `mapInArrow` requires pandas
        try:
            importlib.import_module(package)
        except ImportError:
            raise MissingDependency(package=package, extra="spark", purpose=purpose) from None


def pickled(value: object) -> bytes:
    """Return `value` as bytes for `pickle.loads`: classes of notebooks by value, classes of modules by name."""
    from pyspark import cloudpickle

    return bytes(cloudpickle.dumps(value))  # type: ignore[no-untyped-call]


def slots_of(spark: SparkSession) -> int:
    """Return how many tasks the session runs at once now. Over Spark Connect this costs a small job."""
    context = _classic_context(spark)
    if context is not None:
        return context.defaultParallelism
    from pyspark.sql import functions

    # Collect the rows themselves: an aggregate would cost a second stage.
    parts = spark.range(0, _PROBE_ROWS).select(functions.spark_partition_id()).collect()
    return 1 + max(int(row[0]) for row in parts)


def on_workers(spark: SparkSession, function: Callable[[Any], Any], pieces: Mapping[str, Any], *, slots: int,
               budget: Budget, together: int = 1, at_once: int = 1) -> Generator[tuple[str, Any], None, None]:
    """Call `function` with each piece on the workers; yield each piece's name with its value when its job has ended.

    If the call raised a `CompactlibError`, the value is that error. The value is a `TaskFailed` if the call raised
    another error, if the Spark job failed, or if the piece or its value cannot be pickled or loaded. Closing the
    iterator cancels the jobs and waits until they have ended.

    Args:
        function: picklable; called again for a piece whose worker died.
        pieces: the arguments of the calls, by name.
        slots: a job has four partitions for each slot.
        budget: checked five times a second; when it is cancelled, the jobs and the iterator end; while it is paused,
            no further job begins.
        together: how many pieces share a partition.
        at_once: how many pieces of a partition run at once, in threads.
    """
    packed: dict[str, bytes] = {}
    for name, piece in pieces.items():
        try:
            packed[name] = pickled(piece)
        except Exception as error:  # pickling runs foreign code, which may raise anything
            yield name, foreign_error(name, error)
    names, size = list(packed), _PARTITIONS_A_SLOT * slots
    partitions = [names[start:start + together] for start in range(0, len(names), together)]
    waiting = deque(partitions[start:start + size] for start in range(0, len(partitions), size))
    tag = f"compactlib-{new_attempt_id()}"
    running: dict[Future[dict[str, Any]], _Job] = {}
    with ThreadPoolExecutor(_JOBS_AT_ONCE, thread_name_prefix="compactlib-spark") as pool:
        try:
            while (waiting or running) and not budget.cancelled:
                while waiting and len(running) < _JOBS_AT_ONCE and not budget.paused:
                    job = waiting.popleft()
                    parts = tuple([(name, packed[name]) for name in part] for part in job)
                    running[pool.submit(_collected, spark, _Partitions(function, parts, at_once), tag)] = job
                ended, _ = wait(running, timeout=_POLL_SECONDS, return_when=FIRST_COMPLETED)
                for future in ended:
                    job, raised = running.pop(future), future.exception()
                    if raised is None:
                        yield from future.result().items()
                    elif not isinstance(raised, Exception):
                        raise raised
                    elif _is_death(str(raised)) and len(job) > 1:
                        waiting.extendleft([part] for part in reversed(job))
                    elif _is_death(str(raised)) and len(job[0]) > 1:
                        waiting.extendleft([[name]] for name in reversed(job[0]))
                    else:
                        yield from ((name, _job_failure(name, raised)) for part in job for name in part)
        finally:
            while running and wait(running, timeout=_POLL_SECONDS).not_done:
                # Cancel in a loop: a job may be about to begin. A stopped session raises, and has no jobs.
                with contextlib.suppress(Exception):
                    context = _classic_context(spark)
                    if context is None:
                        spark.interruptTag(tag)
                    else:
                        context.cancelJobsWithTag(tag)


def _collected(spark: SparkSession, partitions: _Partitions, tag: str) -> dict[str, Any]:
    """Run a job; return the value, or the error, of each of its pieces."""
    context = _classic_context(spark)
    with contextlib.suppress(Exception):  # a session that cannot be tagged runs its jobs to their end
        if context is None:
            spark.addTag(tag)
        else:
            # A classic session's own tags reach SQL queries, but not what Python collects (4.3.0).
            context.addJobTag(tag)
            context.setInterruptOnCancel(True)
    count = len(partitions.pieces)
    rows = spark.range(0, count, 1, count).mapInArrow(partitions, _RESULTS_DDL).collect()
    return {name: _loaded(name, data) for row in rows for (name, _), data
            in zip(partitions.pieces[row["partition"]], pickle.loads(row["results"]), strict=True)}


@attrs.frozen
class _Partitions:
    """Map `function` over partition numbers. Names are not in the pickle of a piece: a failure to load it names it."""

    function: Callable[[Any], Any]
    pieces: tuple[list[tuple[str, bytes]], ...]
    at_once: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            numbers: list[Any] = batch.column(0).to_pylist()  # by position, as Spark binds columns
            for number in numbers:
                if self.at_once == 1:
                    found = list(map(self._pickled_value, self.pieces[number]))
                else:
                    with ThreadPoolExecutor(self.at_once) as pool:
                        found = list(pool.map(self._pickled_value, self.pieces[number]))
                yield pa.RecordBatch.from_pydict({"partition": pa.array([number], pa.int64()),
                                                  "results": pa.array([pickle.dumps(found)], pa.binary())})

    def _pickled_value(self, piece: tuple[str, bytes]) -> bytes:
        name, data = piece
        try:
            given = pickle.loads(data)
        except Exception as error:  # unpickling runs foreign code, which may raise anything
            return pickled(TaskFailed(
                f"{name!r} could not be loaded on the worker: {type(error).__name__}: {error}; install the missing "
                f"module there, or ship it with spark.addArtifacts(path, pyfile=True)",
                task=name, kind=type(error).__name__, detail=foreign_error(name, error).detail))
        try:
            return pickled(self.function(given))
        except Exception as error:  # foreign code may raise anything
            return pickled(portable_error(name, error, pickled))


def _loaded(name: str, data: bytes) -> Any:
    try:
        return pickle.loads(data)
    except Exception as error:  # unpickling runs foreign code, which may raise anything
        return foreign_error(name, error)


def _is_death(message: str) -> bool:
    """Return whether a job failed because its workers or executors died during a task."""
    return "Python worker exited unexpectedly" in message or "ExecutorLostFailure" in message


def _job_failure(name: str, error: Exception) -> CompactlibError:
    """Return the failure, with advice, of a piece whose Spark job failed."""
    message = str(error)
    if _is_death(message):
        advice = ("it killed its worker in every attempt: check for lack of memory or a crash in native code; tasks "
                  "are not retried unless the master is local[N,4], or spark.task.maxFailures is above 1")
    elif "No module named" in message or "ImportError" in message:
        advice = ("install the missing module on the workers, or ship it: compactlib by "
                  "compactlib.spark.ship_library(spark), others by spark.addArtifacts(path, pyfile=True)")
    else:
        advice = "the inputs are untouched: repair the session or cluster and run it again"
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    reason = next((line for line in lines if "Job aborted" in line), next(iter(lines), "no message"))
    return TaskFailed(f"{name!r} has no result because its Spark job failed: {reason[:_MAX_REASON]}; {advice}",
                      task=name, kind=type(error).__name__, detail=message[:_MAX_DETAIL])


def _classic_context(spark: SparkSession) -> SparkContext | None:
    try:
        return spark.sparkContext
    except Exception:  # Spark Connect and a stopped session raise different errors
        return None
