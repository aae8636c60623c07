# SPDX-License-Identifier: Apache-2.0
"""Spark rewrites under the real scheduler: a driver that is too late commits nothing, the one after it everything.

Two workers of one scheduler, in two processes. The first has the job and its rewrite has run on Spark when its lease
ends by the scheduler's clock. The job goes to the second, which shows its token to the fence. Only then does the first
come to its commit.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from multiprocessing.connection import Listener
from pathlib import Path

import attrs
import pytest
from pyspark.sql import SparkSession

from compactlib.budget import Budget
from compactlib.clock import ManualClock
from compactlib.executors import Executor, LocalExecutor, RewriteResult, RewriteTask
from compactlib.fences import FencedOff, FileFence, TokenFence
from compactlib.observer import Observer
from compactlib.raftlog import LocalLog, LogOptions, LogReader, SegmentLog
from compactlib.rewrite import RewriteOutcome
from compactlib.scheduler import BlockMeta, CompactedBlocks, LevelConfig, RunningJob, Scheduler, SchedulerConfig, Worker
from compactlib.spark import SparkExecutor
from examples.raftlog_jobs import RaftlogExecute, TheseSegments, segment_block_id
from tests.harness.blob_stores import START, answers, garbage_store, open_store, plan_of, segment_names, strays
from tests.harness.recording import RecordingObserver
from tests.spark.executors.second_driver import KEY
from tests.spark.store_jobs import LIMITS, build_logs, contents

pytestmark = [pytest.mark.spark, pytest.mark.cluster]

ROOT = Path(__file__).parents[3]
CONFIG = SchedulerConfig(levels=(LevelConfig(max_blocks=2),), lease_seconds=15.0)
BLOB_CONFIG = SchedulerConfig(levels=(LevelConfig(max_blocks=1),), lease_seconds=15.0)


@attrs.define
class Overtaken:
    """Rewrites as it should; before the first outcome is handed over, something happens."""

    executor: Executor
    happens: Callable[[], None]
    files: list[str] = attrs.field(factory=list)

    def run(self, tasks: Iterable[RewriteTask], *, budget: Budget | None = None,
            observer: Observer | None = None) -> Generator[RewriteOutcome, None, None]:
        for outcome in self.executor.run(tasks, budget=budget, observer=observer):
            assert isinstance(outcome, RewriteResult), outcome
            if not self.files:
                self.happens()
            self.files += (file.path for file in outcome.files)
            assert all(Path(path).exists() for path in self.files[-1:])
            yield outcome


class Desk:
    """The scheduler, a first worker in this process, and a second one in another.

    Args:
        folder: for the scheduler's log and the fence.
        kind: `raftlog` or `blobstore`.
        store: the folder that both compact.
    """

    def __init__(self, folder: Path, kind: str, store: Path, config: SchedulerConfig) -> None:
        self.clock = ManualClock(START)
        self.host = Scheduler(LocalLog(folder / "commands", LogOptions(clock=self.clock)), None, config)
        self.fence = FileFence(folder / "fence")
        self._arguments = [kind, str(store), str(folder / "fence")]
        self._listener = Listener(("127.0.0.1", 0), authkey=KEY)
        self._server = threading.Thread(target=self._serve, daemon=True)
        self._second: subprocess.Popen[str] | None = None
        self.tokens: list[int] = []

    def _serve(self) -> None:
        with contextlib.suppress(EOFError, OSError), self._listener.accept() as connection:
            while True:
                connection.send(self.host.poll(connection.recv()))

    def lose_the_lease(self) -> None:
        """Let the first worker's lease end, start the second, and wait until it has shown its token."""
        self.clock.advance(CONFIG.lease_seconds + 1)
        kind, store, fence = self._arguments
        port = str(self._listener.address[1])
        self._server.start()
        self._second = subprocess.Popen([sys.executable, "-m", "tests.spark.executors.second_driver", kind, port, store,
                                         fence],
                                        cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert self._second.stdout is not None
        said, token = self._second.stdout.readline().split()
        assert said == "admitted"
        self.tokens.append(int(token))

    def first_driver(self, execute: Callable[[RunningJob], CompactedBlocks]) -> Exception:
        """Poll until there is a job, be silent until it has ended, and report; what it ended in."""
        ended = threading.Event()
        errors: list[Exception] = []

        def noted(job: RunningJob) -> CompactedBlocks:
            self.tokens.append(job.token)
            try:
                return execute(job)
            except Exception as error:
                errors.append(error)
                raise
            finally:
                ended.set()

        told = RecordingObserver()
        worker = Worker(self.host, noted, clock=self.clock, observer=told)
        while not ended.is_set():
            worker.run_pending()
        worker.stop(wait_seconds=60.0)
        # Either its report was refused, or it had heard before that the job is another's.
        assert [name for name, _ in told.events if name in ("scheduler_job_reported", "scheduler_job_stopped")]
        assert not any(fields.get("status") == "SUCCESS" for _, fields in told.events)
        (error,) = errors
        return error

    def second_ends(self) -> list[str]:
        """What the second worker said of its job."""
        assert self._second is not None
        said, _ = self._second.communicate(timeout=200)
        assert self._second.returncode == 0
        return said.split()

    def blocks(self) -> list[BlockMeta]:
        return self.host.look(lambda machine: list(machine.state.index.blocks()))

    def close(self) -> None:
        if self._second is not None:
            # After `second_ends` it is gone; it is still there only when the test has failed.
            self._second.kill()
            self._second.communicate()
            self._server.join(10.0)
        self._listener.close()
        self.host.close()


@contextlib.contextmanager
def a_desk(folder: Path, kind: str, store: Path, config: SchedulerConfig, blocks: Iterable[str]) -> Iterator[Desk]:
    """A scheduler that has one job to give: for these blocks of the store."""
    desk = Desk(folder, kind, store, config)
    try:
        desk.host.add_blocks(BlockMeta(id=block, tenant="orders", shard=0, level=0) for block in blocks)
        yield desk
    finally:
        desk.close()


def test_a_raft_log_goes_to_a_second_driver(spark: SparkSession, tmp_path: Path) -> None:
    folder = Path(build_logs(tmp_path / "logs", 5)[-1])
    twin = Path(build_logs(tmp_path / "twins", 5)[-1])
    with LogReader(folder) as reader:
        before = list(reader.entries())
    with a_desk(tmp_path, "raftlog", folder, CONFIG, (segment_block_id(1), segment_block_id(2))) as desk:
        late = Overtaken(SparkExecutor(spark), desk.lose_the_lease)

        def execute(job: RunningJob) -> CompactedBlocks:
            with SegmentLog(folder, LIMITS) as log:
                files = contents(str(folder))
                try:
                    return RaftlogExecute({"orders": log}, desk.fence, late)(job)
                finally:
                    # Nothing was committed, and what was written is gone, before anybody else opens the log.
                    assert contents(str(folder)) == files
                    assert [path for path in folder.iterdir() if path.is_dir()] == []
                    assert late.files
                    assert not any(Path(path).exists() for path in late.files)

        assert isinstance(desk.first_driver(execute), FencedOff)
        assert desk.second_ends() == ["reported", "SUCCESS", "ACCEPTED"]
        first, second = desk.tokens
        assert first < second
        (block,) = desk.blocks()
        assert block.id == segment_block_id(1, second)
    with SegmentLog(twin, LIMITS) as log:
        assert not log.compact(policy=TheseSegments((1, 2)), executor=LocalExecutor()).is_empty
    assert contents(str(folder)) == contents(str(twin))
    with LogReader(folder) as reader:
        assert list(reader.entries()) == before


def test_a_blob_store_goes_to_a_second_driver(spark: SparkSession, tmp_path: Path) -> None:
    """Nothing of the first one's step counts; the second one does it anew."""
    folder = tmp_path / "store"
    with garbage_store(folder, ManualClock(START), count=30) as store:
        before, plan = answers(store, 30), plan_of(store)
        sources = [str(segment.name) for segment in plan.victims]
    with a_desk(tmp_path, "blobstore", folder, BLOB_CONFIG, ("store",)) as desk:
        late = Overtaken(SparkExecutor(spark), desk.lose_the_lease)

        def execute(job: RunningJob) -> CompactedBlocks:
            with open_store(folder, ManualClock(START + 11)) as store:
                try:
                    store.compact(plan, executor=late, fence=TokenFence(desk.fence, job.plan.name, job.token))
                finally:
                    assert answers(store, 30) == before
                    assert set(sources) <= set(segment_names(store))
                raise AssertionError("the first driver has lost its lease")

        assert isinstance(desk.first_driver(execute), FencedOff)
        assert desk.second_ends() == ["reported", "SUCCESS", "ACCEPTED"]
        assert desk.tokens == sorted(desk.tokens)
        (block,) = desk.blocks()
        assert block.level == 1
    with open_store(folder, ManualClock(START + 11)) as store:
        assert answers(store, 30) == before
        assert not set(sources) & set(segment_names(store))
    assert strays(folder) == []
