# SPDX-License-Identifier: Apache-2.0
"""A function over pieces of work, as small DataFrame jobs over a classic session or Spark Connect.

Each piece is a partition of a range; all pieces of a job travel with the function. What a job answers comes back when
it ends, and two jobs run at a time, so that the caller works on the answers of one while the next one runs. A job
whose workers die in every attempt is run again piece by piece: the piece that kills its worker then fails alone.
"""

from __future__ import annotations

import contextlib
import importlib
import pickle
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs

from compactlib.errors import MissingDependency, TaskFailed
from compactlib.executors import new_attempt_id

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

_ANSWER_DDL = "number bigint, answer binary"
_JOBS_AT_ONCE = 2
_POLL_SECONDS = 0.2
_PROBE_ROWS = 4096
_MAX_REASON = 400
_MAX_DETAIL = 65_536


def require_spark(purpose: str) -> None:
    """Raise `MissingDependency`, which names the purpose, unless PySpark, PyArrow and pandas can be imported."""
    for package in ("pyspark", "pyarrow", "pandas"):  # PySpark asks for pandas in `mapInArrow`
        try:
            importlib.import_module(package)
        except ImportError:
            raise MissingDependency(package=package, extra="spark", purpose=purpose) from None


def pickled(value: object) -> bytes:
    """Return `value` as bytes for `pickle.loads`: classes of notebooks travel along, those of modules by name."""
    from pyspark import cloudpickle

    return bytes(cloudpickle.dumps(value))  # type: ignore[no-untyped-call]


def slots_of(spark: SparkSession) -> int:
    """Return how many tasks the session runs at once, as it is now; over Spark Connect a small job finds out."""
    context = _classic_context(spark)
    if context is not None:
        return context.defaultParallelism
    from pyspark.sql import functions

    # Collected as they are: an aggregate would cost a second stage.
    parts = spark.range(0, _PROBE_ROWS).select(functions.spark_partition_id()).collect()
    return 1 + max(int(row[0]) for row in parts)


def answers(spark: SparkSession, apply: Callable[[bytes], bytes], pieces: Sequence[bytes], *, in_a_job: int,
            stop: Callable[[], bool] = lambda: False, pause: Callable[[], bool] = lambda: False,
            ) -> Generator[tuple[int, bytes | Exception], None, None]:
    """Run `apply` over each piece on the workers; yield each piece's number with its answer when its job has ended.

    Instead of an answer comes what Spark raised, for all pieces of a job that failed for another reason than dying
    workers. Closing the iterator has Spark end the jobs, and waits for that. A job sees the caller's local properties
    and tags, such as the scheduler pool.

    Args:
        apply: picklable; called again for a piece whose worker died.
        pieces: the work.
        in_a_job: how many pieces a job has.
        stop: asked five times a second; once true, the jobs and the iterator end.
        pause: asked as often; while true, no further job begins.
    """
    waiting = deque([range(len(pieces))[start:start + in_a_job] for start in range(0, len(pieces), in_a_job)])
    tag = f"compactlib-{new_attempt_id()}"
    running: dict[Future[list[bytes]], range] = {}
    with ThreadPoolExecutor(_JOBS_AT_ONCE, thread_name_prefix="compactlib-spark") as pool:
        try:
            while (waiting or running) and not stop():
                while waiting and len(running) < _JOBS_AT_ONCE and not pause():
                    numbers = waiting.popleft()
                    job = _with_properties(spark, partial(_collected, spark, apply, [pieces[n] for n in numbers], tag))
                    running[pool.submit(job)] = numbers
                ended, _ = wait(running, timeout=_POLL_SECONDS, return_when=FIRST_COMPLETED)
                for future in ended:
                    numbers, error = running.pop(future), future.exception()
                    if error is None:
                        yield from zip(numbers, future.result(), strict=True)
                    elif not isinstance(error, Exception):
                        raise error
                    elif is_death(error) and len(numbers) > 1:
                        waiting.extendleft(range(number, number + 1) for number in reversed(numbers))
                    else:
                        yield from ((number, error) for number in numbers)
        finally:
            while running and wait(running, timeout=_POLL_SECONDS).not_done:
                # Again and again: a job may be about to begin. A session that is gone has no jobs either.
                with contextlib.suppress(Exception):
                    context = _classic_context(spark)
                    if context is None:
                        spark.interruptTag(tag)
                    else:
                        context.cancelJobsWithTag(tag)


def is_death(error: Exception) -> bool:
    """Return whether a job failed because its workers or executors ended in the midst of a task."""
    return "Python worker exited unexpectedly" in str(error) or "ExecutorLostFailure" in str(error)


def job_failure(name: str, error: Exception) -> TaskFailed:
    """Return the failure of a piece of work of which the Spark job has failed, with advice."""
    message = str(error)
    if "No module named 'compactlib" in message:
        advice = "the workers cannot import compactlib: install it there, or call compactlib.spark.ship_library(spark)"
    elif "ModuleNotFoundError" in message or "ImportError" in message:
        advice = "install the missing module on the workers, or ship it with spark.addArtifacts(path, pyfile=True)"
    elif is_death(error) and "failed 1 times" in message:
        advice = ("a worker died, and tasks are not tried again: use the master local[N,4], or on a cluster raise "
                  "spark.task.maxFailures")
    elif is_death(error):
        advice = "it killed its worker in every attempt: check for lack of memory or a crash in native code"
    else:
        advice = "the inputs are untouched: repair the session or cluster and run it again"
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    reason = next((line for line in lines if "Job aborted" in line), next(iter(lines), "no message"))
    return TaskFailed(f"{name!r} has no result because its Spark job failed: {reason[:_MAX_REASON]}; {advice}",
                      task=name, kind=type(error).__name__, detail=message[:_MAX_DETAIL])


def _classic_context(spark: SparkSession) -> SparkContext | None:
    try:
        return spark.sparkContext
    except Exception:  # over Spark Connect, or of a session that is gone: each has an error of its own
        return None


def _with_properties(spark: SparkSession, job: Callable[[], list[bytes]]) -> Callable[[], list[bytes]]:
    from pyspark import inheritable_thread_target

    try:
        made: Callable[[], list[bytes]] = inheritable_thread_target(spark)(job)
    except Exception:
        return job  # the session is gone: the job's own error says so
    return made


def _collected(spark: SparkSession, apply: Callable[[bytes], bytes], pieces: Sequence[bytes], tag: str) -> list[bytes]:
    context = _classic_context(spark)
    with contextlib.suppress(Exception):  # a session that cannot be tagged runs its jobs to their end
        if context is None:
            spark.addTag(tag)
        else:
            # A classic session's own tags reach SQL queries, but not what Python collects (4.3.0).
            context.addJobTag(tag)
            context.setInterruptOnCancel(True)
    frame = spark.range(0, len(pieces), 1, len(pieces)).mapInArrow(_Applied(apply, tuple(pieces)), _ANSWER_DDL)
    rows = frame.collect()
    found = {row["number"]: bytes(row["answer"]) for row in rows}
    return [found[number] for number in range(len(pieces))]


@attrs.frozen
class _Applied:
    """The function that Spark maps over the numbers of pieces."""

    apply: Callable[[bytes], bytes]
    pieces: tuple[bytes, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            numbers: list[Any] = batch.column(0).to_pylist()  # by its place: Spark binds columns so
            for number in numbers:
                yield pa.RecordBatch.from_pydict(
                    {"number": pa.array([number], pa.int64()),
                     "answer": pa.array([self.apply(self.pieces[number])], pa.binary())})


def loaded(data: bytes | Exception, name: str) -> Any:
    """Return what a worker has pickled, or the `TaskFailed` that says why there is none."""
    if isinstance(data, Exception):
        return job_failure(name, data)
    try:
        return pickle.loads(data)
    except Exception as error:  # unpickling runs foreign code, which may raise anything
        message = f"the answer of {name!r} cannot be read here: {type(error).__name__}: {error}"
        return TaskFailed(message, task=name, kind=type(error).__name__, detail=message)
