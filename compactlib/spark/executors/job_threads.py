# SPDX-License-Identifier: Apache-2.0
"""Threads that each wait for one Spark job, so that the next jobs run while the results of one are being used."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any, TypeVar

from compactlib.executors.tasks import new_attempt_id

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

_T = TypeVar("_T")
_ASK_AGAIN_SECONDS = 0.2


class JobThreads:
    """Runs calls that start Spark jobs, at most `at_once` of them; closing it ends the jobs that still run.

    The calls see the caller's local properties and tags, such as the scheduler pool.

    Args:
        spark: the session of the jobs.
        at_once: how many calls run at the same time, >= 1.
    """

    def __init__(self, spark: SparkSession, at_once: int) -> None:
        self._spark = spark
        self._tag = f"compactlib-{new_attempt_id()}"
        self._pool = ThreadPoolExecutor(at_once, thread_name_prefix="compactlib-spark")
        self._unfinished: set[Future[Any]] = set()
        try:
            self._context: SparkContext | None = spark.sparkContext
        except Exception:
            # Spark Connect has none, and says so in an error of its own.
            self._context = None

    def submit(self, call: Callable[[], _T]) -> Future[_T]:
        """Run `call` in a thread as soon as one is free."""
        future = self._pool.submit(self._inheriting(self._tagged(call)))
        self._unfinished = {other for other in self._unfinished if not other.done()} | {future}
        return future

    def tasks(self) -> tuple[int, int] | None:
        """How many Spark tasks of these jobs have ended, and how many there are so far; `None` if Spark does not say.

        Spark Connect does not; its own handlers do (`SparkSession.registerProgressHandler`).
        """
        if self._context is None:
            return None
        try:
            ids = self._context._jsc.sc().statusTracker().getJobIdsForTag(self._tag)
            tracker = self._context.statusTracker()
            jobs = filter(None, map(tracker.getJobInfo, ids))
            stages = [stage for job in jobs for stage in map(tracker.getStageInfo, job.stageIds) if stage is not None]
        except Exception:
            # Only for display: whatever is wrong, the job's own result will say it.
            return None
        return sum(stage.numCompletedTasks for stage in stages), sum(stage.numTasks for stage in stages)

    def close(self) -> None:
        """Begin nothing more, ask Spark to end what runs, and wait until the threads are gone."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        # Again and again: a call may be about to begin its job.
        while self._unfinished:
            with contextlib.suppress(Exception):
                # A session that is gone has no jobs either.
                self._end_jobs()
            self._unfinished = wait(self._unfinished, timeout=_ASK_AGAIN_SECONDS).not_done
        self._pool.shutdown(wait=True)

    def _tagged(self, call: Callable[[], _T]) -> Callable[[], _T]:
        def tagged() -> _T:
            with contextlib.suppress(Exception):
                # Where a session cannot be tagged (it is gone, or the server is old), its jobs run to their end.
                if self._context is None:
                    self._spark.addTag(self._tag)
                else:
                    self._context.addJobTag(self._tag)
                    self._context.setInterruptOnCancel(True)
            return call()

        return tagged

    def _end_jobs(self) -> None:
        if self._context is None:
            self._spark.interruptTag(self._tag)
        else:
            # A classic session's own tags reach SQL queries only, and not those that Python collects (4.3.0).
            self._context.cancelJobsWithTag(self._tag)

    def _inheriting(self, call: Callable[[], _T]) -> Callable[[], _T]:
        from pyspark import inheritable_thread_target

        try:
            inherited: Callable[[], _T] = inheritable_thread_target(self._spark)(call)
        except Exception:
            # The session is gone; the job's own error will say so.
            return call
        return inherited

    def __repr__(self) -> str:
        return f"JobThreads(tag={self._tag!r})"
