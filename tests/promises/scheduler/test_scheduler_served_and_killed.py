# SPDX-License-Identifier: Apache-2.0
"""The process that serves a scheduler over HTTP is killed while jobs run; the workers continue with its successor."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from compactlib.scheduler import (
    BlockMeta,
    CompactedBlocks,
    RunningJob,
    SchedulerClient,
    Worker,
    WorkerOptions,
)
from tests.harness.ports import free_ports

pytest.importorskip("uvicorn")
PATIENCE = 120.0
JOBS = 12
OPTIONS = WorkerOptions(capacity=2, poll_seconds=0.05, max_poll_seconds=0.2)
SERVER = """
import sys
import uvicorn
from compactlib.kv import SnapshotStore, SqliteStore
from compactlib.raftlog import LocalLog
from compactlib.scheduler import LevelConfig, Scheduler, SchedulerApplication, SchedulerConfig

folder, port = sys.argv[1:]
config = SchedulerConfig(levels=(LevelConfig(max_blocks=1),), lease_seconds=300.0)
scheduler = Scheduler(LocalLog(folder + "/log"), SnapshotStore(SqliteStore(folder + "/snapshots.db")), config,
                      snapshot_every=5)
uvicorn.run(SchedulerApplication(scheduler), port=int(port), log_level="error")
"""


@contextlib.contextmanager
def serving(folder: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    server = subprocess.Popen([sys.executable, "-c", SERVER, str(folder), str(port)])
    try:
        yield server
    finally:
        server.kill()
        server.wait(PATIENCE)


def until(is_so: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_workers_continue_with_the_successor_of_a_killed_scheduler(tmp_path: Path) -> None:
    runs: Counter[str] = Counter()
    may_end = threading.Event()
    blocks = [BlockMeta(id=f"b{number}", tenant="acme", shard=1, level=0) for number in range(JOBS)]

    def execute(job: RunningJob) -> CompactedBlocks:
        runs[job.plan.name] += 1
        assert may_end.wait(PATIENCE)
        output = BlockMeta(id=job.output_id(), tenant="acme", shard=1, level=1)
        return CompactedBlocks(tenant="acme", shard=1, source_blocks=job.plan.source_blocks, new_blocks=(output,))

    first, second = free_ports(2)
    addresses = [f"http://127.0.0.1:{port}" for port in (first, second)]
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(SchedulerClient(addresses, timeout_seconds=PATIENCE)) for _ in range(3)]
        with serving(tmp_path, first):
            assert len(clients[0].add_blocks(blocks).queued) == JOBS
            workers = [stack.enter_context(Worker(client, execute, options=OPTIONS)) for client in clients[1:]]
            until(lambda: len(runs) == 4)  # each has as many as it can take: no answer that brings a job is lost
        may_end.set()
        stack.enter_context(serving(tmp_path, second))
        until(lambda: len(runs) == JOBS and all(worker.is_idle for worker in workers))
        assert set(runs.values()) == {1}
        status = clients[0].status()
        assert (status["blocks"], status["jobs"], status["term"]) == (JOBS, 0, 2)
        assert len(clients[0].add_blocks(blocks).tombstoned) == JOBS  # each took effect
