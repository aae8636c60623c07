# SPDX-License-Identifier: Apache-2.0
"""Run by test_spark_scheduler.py in a process of its own: a worker that is given a job which another one still does.

    python -m tests.spark.executors.second_driver KIND PORT FOLDER FENCE

It polls the test's scheduler over a socket. Its job's first act is to show its token to the fence; it says so, and
waits for the lock of the store, which the first driver has. Prints how its job ended.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from multiprocessing.connection import Client
from pathlib import Path
from typing import Any

from compactlib.clock import ManualClock, SystemClock
from compactlib.errors import Busy
from compactlib.fences import FileFence, LockingFence, TokenFence
from compactlib.raftlog import SegmentLog
from compactlib.scheduler import (
    BlockMeta,
    CompactedBlocks,
    PollRequest,
    PollResponse,
    RunningJob,
    Worker,
    WorkerOptions,
)
from examples.raftlog_jobs import RaftlogExecute
from tests.harness.blob_stores import RETENTION, START, open_store
from tests.harness.recording import RecordingObserver
from tests.spark.store_jobs import LIMITS

KEY = b"only for this test"


class Remote:
    """A `Transport` over a socket."""

    def __init__(self, port: int) -> None:
        self._connection = Client(("127.0.0.1", port), authkey=KEY)

    def poll(self, request: PollRequest) -> PollResponse:
        self._connection.send(request)
        response: PollResponse = self._connection.recv()
        return response


def say(*words: object) -> None:
    """One line for the test."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def one_block(job: RunningJob) -> CompactedBlocks:
    """What a job over a blob store reports: its source goes on under a new name."""
    plan = job.plan
    new = BlockMeta(id=job.output_id(), tenant=plan.tenant, shard=plan.shard, level=plan.compaction_level + 1)
    return CompactedBlocks(tenant=plan.tenant, shard=plan.shard, source_blocks=plan.source_blocks, new_blocks=(new,))


@contextlib.contextmanager
def opened_when_free(job: RunningJob, kind: str, folder: Path) -> Iterator[Any]:
    while True:
        job.check()
        with contextlib.suppress(Busy):
            found = (SegmentLog(folder, LIMITS) if kind == "raftlog"
                     else open_store(folder, ManualClock(START + RETENTION + 1)))
            break
        SystemClock().sleep(0.02)
    with found:
        yield found


def execute(job: RunningJob, kind: str, folder: Path, fence: LockingFence) -> CompactedBlocks:
    """Shows the token, waits for the lock, does the job."""
    fence.admit(job.plan.name, job.token)
    say("admitted", job.token)
    with opened_when_free(job, kind, folder) as store:
        if kind == "raftlog":
            return RaftlogExecute({job.plan.tenant: store}, fence)(job)
        store.compact(fence=TokenFence(fence, job.plan.name, job.token))
        return one_block(job)


def main(kind: str, port: int, folder: Path, fence: LockingFence) -> None:
    """Poll until there is a job, do it, report it."""
    told = RecordingObserver()
    worker = Worker(Remote(port), lambda job: execute(job, kind, folder, fence), observer=told,
                    options=WorkerOptions(poll_seconds=0.05))
    worker.start()
    while not any(name == "scheduler_job_started" for name, _ in told.events):
        SystemClock().sleep(0.02)
    worker.stop(wait_seconds=100.0, grace_seconds=100.0)
    (ended,) = (fields for name, fields in told.events if name == "scheduler_job_reported")
    say("reported", ended["status"], ended["verdict"])


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), FileFence(sys.argv[4]))
