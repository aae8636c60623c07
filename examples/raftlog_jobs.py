# SPDX-License-Identifier: Apache-2.0
"""`RaftlogExecute`: a worker's execute that rewrites segments of Raft logs, fenced.

    python -m examples.raftlog_jobs URL LOGS FENCES [SECONDS]

A worker process: it takes the jobs of the scheduler at URL, compacts the logs in the folder LOGS, one a tenant, opens
each only for its job, and keeps the tokens that it saw in the folder FENCES, which all workers share. It prints a line
when a job starts and when it ends, and ends with its standard input. Before each commit it waits for SECONDS, to be
watched.

The scheduler's blocks are the logs' segments: the tenant is the log's name, the id of a block its segment's number, and
after a rewrite the number with the token of the job that wrote it (`segment_block_id`). A job's sources are a group of
adjacent segments, which become one (or more, if they do not fit into one). The files are the log's own business: give
the worker a cleanup that deletes nothing (`lambda tombstone: None`), so that tombstones are confirmed and forgotten.

Doing a job twice is harmless. Segments that an earlier worker has merged are reported as done.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from itertools import groupby
from pathlib import Path

import attrs

from compactlib.budget import Budget
from compactlib.clock import SystemClock
from compactlib.errors import BudgetSpent, Busy, CompactionFailed, CompactlibError, InvalidInput, NotFound
from compactlib.executors import Executor, LocalExecutor, RewriteTask
from compactlib.fences import FileFence, LockingFence, TokenFence
from compactlib.observer import Observer
from compactlib.raftlog import LogChoice, LogView, SegmentLog
from compactlib.raftlog.policy import filled_groups, is_worthwhile
from compactlib.rewrite import RewriteOutcome
from compactlib.scheduler import (
    BlockMeta,
    CompactedBlocks,
    NoOutput,
    RunningJob,
    SchedulerClient,
    Worker,
    WorkerOptions,
)
from compactlib.scheduler.errors import ReleaseJob

_DIGITS = 16


def segment_block_id(number: int, token: int | None = None) -> str:
    """The id of a block that is a segment: `0000000000000007`, or `0000000000000007@52` as a job with token 52 left it.

    Raises:
        InvalidInput: the number is no segment's.
    """
    if not 0 < number < 10**_DIGITS:
        raise InvalidInput(f"{number} is not the number of a segment; give 1 to {10**_DIGITS - 1}")
    return f"{number:0{_DIGITS}d}" if token is None else f"{number:0{_DIGITS}d}@{token}"


def segment_of_block(block_id: str) -> int:
    """The number of the segment that a block is.

    Raises:
        InvalidInput: the id was not made by `segment_block_id`.
    """
    digits, at, token = block_id.partition("@")
    if len(digits) != _DIGITS or not digits.isdecimal() or bool(at) != token.isdecimal() or not int(digits):
        raise InvalidInput(f"{block_id!r} is not the id of a segment; make ids with segment_block_id()")
    return int(digits)


@attrs.frozen
class TheseSegments:
    """A `LogPolicy` that joins the given segments, as far as they fit into one, and leaves every other alone.

    Attributes:
        numbers: the segments' numbers, ascending.

    Raises:
        InvalidInput: they are no tuple of numbers.
    """

    numbers: tuple[int, ...]

    @property
    def name(self) -> str:
        """`"these"`."""
        return "these"

    def choose(self, view: LogView, now: float) -> LogChoice:
        """See `LogPolicy`."""
        groups = tuple(
            tuple(stats.number for stats in members)
            for wanted, run in groupby(view.candidates, key=lambda stats: stats.number in self.numbers) if wanted
            for members in filled_groups(list(run), view.limits) if is_worthwhile(members))
        return LogChoice(groups, "they are the job's" if groups else
                         f"no neighbour joins segments {self}, and none has dead entries")

    def __str__(self) -> str:
        return ", ".join(map(str, self.numbers))


class RaftlogExecute:
    """An `Execute` for jobs whose sources are segments. Any thread may call it; one compaction a log runs at a time.

    Args:
        logs: the open log of each tenant, or a function that opens it for one job, which closes it.
        fence: what every commit goes through, under the job's name.
        executor: runs the copying; the worker's thread by default.
    """

    def __init__(self, logs: Mapping[str, SegmentLog] | Callable[[str], SegmentLog], fence: LockingFence,
                 executor: Executor | None = None) -> None:
        self._logs = logs
        self._fence = fence
        self._executor = executor

    def __call__(self, job: RunningJob) -> CompactedBlocks:
        """Join the job's segments.

        Raises:
            FencedOff: the job went to another worker; nothing was committed.
            ReleaseJob: the log is being compacted, or its segments cannot be joined now: a worker should try again.
            InvalidInput: a source is no segment.
            NotFound: there is no such log.
            CompactlibError: the rewrite failed; the segments are as before.
        """
        job.check()
        policy = TheseSegments(tuple(sorted(map(segment_of_block, job.plan.source_blocks))))
        # First: an earlier worker of this job, perhaps a paused one, can commit nothing any more.
        self._fence.admit(job.plan.name, job.token)
        with self._log(job.plan.tenant) as log:
            return self._joined(job, log, policy)

    def _joined(self, job: RunningJob, log: SegmentLog, policy: TheseSegments) -> CompactedBlocks:
        token, plan = job.token, job.plan
        why = ""
        try:
            why = log.compact(policy=policy, executor=self._executor, budget=job.budget,
                              fence=TokenFence(self._fence, plan.name, token)).why
        except CompactionFailed as error:
            # Failures of other segments of the log do not concern the job.
            mine = [group.error for group in error.report.failed if set(group.members) & set(policy.numbers)]
            if mine:
                raise mine[0] from error
        except Busy as error:
            if isinstance(error, BudgetSpent):
                raise
            why = str(error)
        # The policy would still join these although the plan was carried out: they are in use.
        if policy.choose(log.view(), 0.0).groups:
            raise ReleaseJob(f"segments {policy} of log {plan.tenant!r} cannot be joined now: {why}; try again later")
        # The missing segments were dropped as dead, or are part of their predecessor.
        left = [stats for stats in log.view().segments if stats.number in policy.numbers]
        return CompactedBlocks(
            tenant=plan.tenant, shard=plan.shard, source_blocks=plan.source_blocks,
            new_blocks=tuple(BlockMeta(id=segment_block_id(stats.number, token), tenant=plan.tenant, shard=plan.shard,
                                       level=plan.compaction_level + 1, size_bytes=stats.data_bytes)
                             for stats in left),
            no_output=None if left else NoOutput.EMPTY)

    def _log(self, tenant: str) -> AbstractContextManager[SegmentLog]:
        if callable(self._logs):
            try:
                return self._logs(tenant)
            except Busy as error:
                raise ReleaseJob(f"another worker has log {tenant!r} open; try again later") from error
        log = self._logs.get(tenant)
        if log is None:
            raise NotFound(f"this worker has no log {tenant!r}; it has {', '.join(sorted(self._logs)) or 'none'}")
        return nullcontext(log)


@attrs.frozen
class Slow:
    """An `Executor` that waits before it returns the outcomes, so that there is time to kill it.

    Attributes:
        seconds: how long.
    """

    seconds: float

    def run(self, tasks: Iterable[RewriteTask], *, budget: Budget | None = None,
            observer: Observer | None = None) -> Iterator[RewriteOutcome]:
        """See `Executor`."""
        for outcome in LocalExecutor().run(tasks, budget=budget, observer=observer):
            _say("rewritten")
            SystemClock().sleep(self.seconds)
            yield outcome


def _say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def main(url: str, logs: str, fences: str, seconds: str = "0") -> None:
    """Work until standard input ends."""
    execute = RaftlogExecute(lambda tenant: SegmentLog(Path(logs) / tenant, create=False), FileFence(fences),
                             Slow(float(seconds)))

    def told(job: RunningJob) -> CompactedBlocks:
        _say("started", job.plan.name, job.token)
        try:
            found = execute(job)
        except CompactlibError as error:
            _say("failed", job.plan.name, type(error).__name__)
            raise
        _say("done", job.plan.name, job.token)
        return found

    with SchedulerClient([url]) as client, \
            Worker(client, told, cleanup=lambda tombstone: None, options=WorkerOptions(poll_seconds=0.2)):
        sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
