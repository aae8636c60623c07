# SPDX-License-Identifier: Apache-2.0
"""A worker with a hanging job or transport delays neither the end of its process nor its `stop`."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from compactlib.errors import Busy
from compactlib.scheduler import CompactedBlocks, PollRequest, PollResponse, RunningJob, Worker, WorkerOptions

PATIENCE = 60.0
FAST = WorkerOptions(poll_seconds=0.01, max_poll_seconds=0.01)

PROGRAM = """
import threading
from compactlib.commandlog import KVLog
from compactlib.errors import Busy
from compactlib.kv import MemoryStore
from compactlib.scheduler import BlockMeta, LevelConfig, Scheduler, SchedulerConfig, Worker, WorkerOptions
scheduler = Scheduler(KVLog(MemoryStore()), None, SchedulerConfig(levels=(LevelConfig(max_blocks=1),)))
began = threading.Event()
scheduler.add_blocks([BlockMeta(id="a", tenant="A", shard=1, level=0)])
def execute(job):
    began.set()
    threading.Event().wait()
worker = Worker(scheduler, execute, options=WorkerOptions(poll_seconds=0.01))
worker.start()
began.wait()
{end}
print("over")
"""


@pytest.mark.parametrize("end", ["try: worker.stop(wait_seconds=0.01)\nexcept Busy: pass", ""])
def test_process_ends_while_a_job_hangs(end: str) -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM.format(end=end)], check=True, capture_output=True, text=True,
                           timeout=PATIENCE)
    assert ended.stdout.split() == ["over"]


def test_stop_keeps_its_deadline_while_polls_hang() -> None:
    asked, may_answer = threading.Event(), threading.Event()

    class Hanging:
        def poll(self, request: PollRequest) -> PollResponse:
            asked.set()
            assert may_answer.wait(PATIENCE)
            return PollResponse()

    def execute(job: RunningJob) -> CompactedBlocks:
        raise NotImplementedError

    worker = Worker(Hanging(), execute, options=FAST)
    worker.start()
    assert asked.wait(PATIENCE)
    refused: list[Busy] = []

    def stop() -> None:
        try:
            worker.stop(wait_seconds=0.01)
        except Busy as busy:
            refused.append(busy)

    stopping = threading.Thread(target=stop, daemon=True)
    stopping.start()
    stopping.join(PATIENCE / 2)
    assert not stopping.is_alive()
    assert refused, "its poll has not ended"
    may_answer.set()
    worker.stop(wait_seconds=PATIENCE)
