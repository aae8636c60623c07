# SPDX-License-Identifier: Apache-2.0
"""An exception of a host's code in a thread, a task or a service of the library is never silent.

Each row of the tables is one place at which the library calls the host where no caller of the host's waits for an
answer. The error is logged with its traceback by a logger of the package. Where the object has `last_error` and
`failures`, the error is kept there and counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import attrs
import pytest

from compactlib.catalog import (
    Assignments,
    CatalogNode,
    CatalogTable,
    DropObject,
    HybridClock,
    NodeId,
    PutObject,
    Schema,
    UpdateLog,
    Zone,
)
from compactlib.clock import SystemClock
from compactlib.commandlog import KVLog
from compactlib.errors import Busy
from compactlib.executors import RewriteTask
from compactlib.kv import KVStore, MemoryStore
from compactlib.manager import CompactionManager, OnRequest
from compactlib.objects import MemoryObjects
from compactlib.raftlog import (
    LogCompactionWorker,
    LogOptions,
    SeedPolicy,
    SegmentLimits,
    SegmentLog,
)
from compactlib.scheduler import (
    BlockMeta,
    CompactedBlocks,
    LevelConfig,
    NoOutput,
    RunningJob,
    Scheduler,
    SchedulerConfig,
    Worker,
    WorkerOptions,
)
from compactlib.staging import (
    AlwaysPolicy,
    CommittedRanges,
    CompactionSensor,
    PlainFormat,
    PressurePolicy,
    Repository,
    StagingOptions,
    StagingWorker,
)

PATIENCE = 60.0
WORDS = "the host's mistake"


@attrs.frozen
class Host:
    """The host's code: every call of it raises.

    Attributes:
        error: the exception it raises.
        folder: for the files of a store.
        called: set by the first call.
    """

    error: BaseException = attrs.field(repr=False)
    folder: Path
    called: threading.Event = attrs.field(factory=threading.Event)

    def hosts_mistake(self, *_: Any, **__: Any) -> Any:
        self.called.set()
        raise self.error

    def wait(self) -> None:
        assert self.called.wait(PATIENCE)


Seen: TypeAlias = "tuple[object, int] | None"
"""`last_error` and `failures`; `None` of an object that has none."""
Row: TypeAlias = "Callable[[Host], Seen]"


class MistakenObserver:
    """An observer of the host's."""

    def __init__(self, host: Host, name: str) -> None:
        self._host = host
        self._name = name

    def event(self, name: str, /, **fields: Any) -> None:
        if name == self._name:
            self._host.hosts_mistake()


class MistakenExecutor:
    """An executor of the host's."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def run(self, tasks: Iterable[RewriteTask], **_: Any) -> Iterator[Any]:
        self._host.hosts_mistake()
        return iter(())


@attrs.frozen
class MistakenPolicy:
    """A policy of the host's, of any package."""

    host: Host
    name: ClassVar[str] = "mistaken"

    def choose(self, view: Any, now: float) -> Any:
        return self.host.hosts_mistake()


class MistakenFence:
    """A fence of the host's."""

    def __init__(self, host: Host) -> None:
        self._host = host

    @contextlib.contextmanager
    def guard(self) -> Iterator[None]:
        self._host.hosts_mistake()
        yield


def until(is_so: Callable[[], object]) -> None:
    """Return as soon as the condition holds, or after a time; the next assertion then reports the difference."""
    deadline = time.monotonic() + PATIENCE / 6
    while not is_so() and time.monotonic() < deadline:
        time.sleep(0.005)


# ---------------------------------------------------------------------------------------------------- scheduler


def scheduler(**settings: Any) -> Scheduler:
    made = Scheduler(KVLog(MemoryStore()), None, SchedulerConfig(levels=(LevelConfig(max_blocks=2),), **settings))
    made.add_blocks(BlockMeta(id=f"b{number}", tenant="acme", shard=1, level=0) for number in range(4))
    return made


def nothing(job: RunningJob) -> CompactedBlocks:
    return CompactedBlocks(tenant="acme", shard=1, source_blocks=job.plan.source_blocks, no_output=NoOutput.EMPTY)


QUICK = WorkerOptions(poll_seconds=0.01)


def worker_execute(host: Host) -> Seen:
    with Worker(scheduler(), host.hosts_mistake, options=QUICK) as worker:
        host.wait()
        until(lambda: worker.failures)
    return worker.last_error, worker.failures


def worker_execute_by_hand(host: Host) -> Seen:
    worker = Worker(scheduler(), host.hosts_mistake)
    with contextlib.suppress(SystemExit, KeyboardInterrupt):
        while not host.called.is_set():
            worker.run_pending()
    return worker.last_error, worker.failures


def worker_cleanup(host: Host) -> Seen:
    with Worker(scheduler(cleanup_delay_seconds=0.0), nothing, cleanup=host.hosts_mistake, options=QUICK) as worker:
        host.wait()
        until(lambda: worker.failures)
    return worker.last_error, worker.failures


def worker_transport(host: Host) -> Seen:
    class Transport:
        poll = staticmethod(host.hosts_mistake)

    worker = Worker(Transport(), nothing, options=QUICK)
    worker.start()
    host.wait()
    until(lambda: worker.failures)
    with contextlib.suppress(Busy):  # its last poll may be under way
        worker.stop(wait_seconds=0.0)
    return worker.last_error, worker.failures


def worker_observer(host: Host) -> Seen:
    with Worker(scheduler(), nothing, options=QUICK, observer=MistakenObserver(host, "scheduler_job_started")):
        host.wait()
    return None


# ------------------------------------------------------------------------------------------------------ raft log


def filled_log(folder: Path, **options: Any) -> SegmentLog:
    log = SegmentLog(folder, LogOptions(limits=SegmentLimits(max_entries=4), **options))
    log.append((index, 1, b"command") for index in range(1, 30))
    log.snapshot(28, live=[1, 5, 9, 13, 17])
    return log


def managed_log(host: Host, **how: Any) -> Seen:
    with filled_log(host.folder / "log") as log, CompactionManager([OnRequest()]) as manager:
        manager.add("log", log, **{"policy": SeedPolicy(), **how})
        manager.request("log")
        host.wait()
        until(lambda: manager.failures)
        return manager.last_error, manager.failures


def manager_policy(host: Host) -> Seen:
    return managed_log(host, policy=MistakenPolicy(host))


def manager_executor(host: Host) -> Seen:
    return managed_log(host, executor=MistakenExecutor(host))


def manager_fence(host: Host) -> Seen:
    return managed_log(host, fence=MistakenFence(host))


def manager_new_budget(host: Host) -> Seen:
    return managed_log(host, new_budget=host.hosts_mistake)


def manager_observer(host: Host) -> Seen:
    with filled_log(host.folder / "log") as log, \
            CompactionManager([OnRequest()], observer=MistakenObserver(host, "compaction_failing")) as manager:
        manager.add("log", log, new_budget=lambda: 1 / 0)  # type: ignore[arg-type, return-value]
        manager.request("log")
        host.wait()
    return None


def log_worker(host: Host, policy: Any = None, **how: Any) -> Seen:
    with filled_log(host.folder / "log") as log, LogCompactionWorker(log, **how) as worker:
        worker.request(policy or SeedPolicy())
        host.wait()
        until(lambda: worker.failures)
        return worker.last_error, worker.failures


def log_on_changes(host: Host) -> Seen:
    with filled_log(host.folder / "log", on_changes=host.hosts_mistake) as log, LogCompactionWorker(log) as worker:
        worker.request(SeedPolicy())
        host.wait()
    return None


def log_worker_policy(host: Host) -> Seen:
    return log_worker(host, MistakenPolicy(host))


def log_worker_executor(host: Host) -> Seen:
    return log_worker(host, executor=MistakenExecutor(host))


# ------------------------------------------------------------------------------------------------------- staging


def repository(**how: Any) -> Repository:
    return Repository(MemoryStore(), CommittedRanges(MemoryObjects(), range_format=PlainFormat()),
                      options=StagingOptions(owns_ranges=True), **how)


def staging_worker(host: Host, **how: Any) -> Seen:
    sensor = CompactionSensor(PressurePolicy(deletes=1))
    with StagingWorker(sensor, reclaim_seconds=None, **how) as worker:
        made = repository(sensor=sensor)
        worker.add(made)
        main = made.create_branch("main")
        main.put_many({b"%d" % number: b"noon" for number in range(10)})
        main.commit("ten")
        main.delete_many([b"%d" % number for number in range(5)])
        host.wait()
        until(lambda: worker.failures)
        seen = worker.last_error, worker.failures
    made.close()
    return seen


def staging_worker_policy(host: Host) -> Seen:
    return staging_worker(host, policy=MistakenPolicy(host))


def staging_worker_executor(host: Host) -> Seen:
    return staging_worker(host, policy=AlwaysPolicy(), executor=MistakenExecutor(host))


def staging_worker_observer(host: Host) -> Seen:
    other = attrs.evolve(host, error=ValueError("other"))
    staging_worker(host, policy=MistakenPolicy(other), observer=MistakenObserver(host, "staging_compaction_triggered"))
    return None


def staging_sensor_policy(host: Host) -> Seen:
    with StagingWorker(CompactionSensor(MistakenPolicy(host)), reclaim_seconds=None) as worker:
        with repository(sensor=worker.sensor) as made:
            worker.add(made)
            main = made.create_branch("main")
            main.put(b"a", b"noon")
            main.delete(b"a")
            host.wait()
            until(lambda: worker.failures)
        return worker.last_error, worker.failures


# ------------------------------------------------------------------------------------------------------- catalog


class QuietDatabase:
    """The database around a node that is alone; one of its methods is the host's mistake."""

    def __init__(self, host: Host | None = None, method: str = "") -> None:
        if host is not None:
            setattr(self, method, host.hosts_mistake)

    def assignments(self) -> Assignments:
        return {}

    def publish(self, zone: int, partitions: int, time: int) -> int:
        return partitions

    def destroy(self, table: int, partition: int) -> None:
        pass


def catalog_node(database: QuietDatabase, *, store: KVStore | None = None, **options: Any) -> CatalogNode:
    """A node that hosts a partition of a table."""
    clock = HybridClock(SystemClock(), max_skew_seconds=0.0)
    node = CatalogNode("a", UpdateLog(MemoryStore() if store is None else store), clock, database, delay_seconds=0.0,
                       data_availability_seconds=0.0, follow_seconds=0.01, upkeep_seconds=0.01, **options)
    node.service.execute([PutObject(Schema("S")), PutObject(Zone("Z", 1)),
                          PutObject(CatalogTable("T"), schema="S", zone="Z")])
    table = node.service.catalog(node.service.history.latest).find("table", "T", "S")
    assert table is not None
    node.published.register(table.id, 0, incarnation=1, created_at=table.created_at)
    return node


class OneNode:
    """The host's calls of a node that is alone; one of them is the host's mistake."""

    def __init__(self, node: CatalogNode, host: Host, method: str) -> None:
        self.node, self.host, self.method = node, host, method

    async def report(self, node: NodeId) -> Any:
        return self.host.hosts_mistake() if self.method == "report" else self.node.report()

    async def publish(self, node: NodeId, time: int) -> Any:
        return self.host.hosts_mistake() if self.method == "publish" else self.node.publish(time)


def catalog_host(method: str) -> Row:
    """A round continues, or ends, and the next one follows."""
    def row(host: Host) -> Seen:
        in_database = method in ("assignments", "database publish")
        node = catalog_node(QuietDatabase(host, method.split()[-1]) if in_database else QuietDatabase(),
                            lease_seconds=None)

        async def run() -> None:
            task = asyncio.create_task(node.coordinate(OneNode(node, host, "" if in_database else method),
                                                       retry_seconds=0.01))
            node.elected(1, "a")
            await asyncio.to_thread(host.wait)
            await asyncio.to_thread(until, lambda: node.last_round is not None or node.failures)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        with contextlib.closing(node):
            node.join()
            asyncio.run(run())
        return (node.last_error, node.failures) if method == "assignments" else None

    return row


def catalog_upkeep_destroy(host: Host) -> Seen:
    with catalog_node(QuietDatabase(host, "destroy"), lease_seconds=None) as node:
        node.service.execute([DropObject("table", "T", schema="S")])
        host.wait()
        until(lambda: node.failures)
    return node.last_error, node.failures


class MistakenStore(MemoryStore):
    """A key-value store of the host's, which fails from some time on."""

    host: Host | None = None

    def _get_many(self, *args: Any, **how: Any) -> Any:
        return super()._get_many(*args, **how) if self.host is None else self.host.hosts_mistake()


def catalog_node_store(host: Host) -> Seen:
    store = MistakenStore()
    with catalog_node(QuietDatabase(), store=store, lease_seconds=None) as node:
        store.host = host
        host.wait()
        until(lambda: node.failures)
        store.host = None
    return node.last_error, node.failures


# ---------------------------------------------------------------------------------------------- blob store




# --------------------------------------------------------------------------------------------------------- tables


ROWS: list[Row] = [
    worker_execute, worker_execute_by_hand, worker_cleanup, worker_transport, worker_observer,
    manager_policy, manager_executor, manager_fence, manager_new_budget, manager_observer,
    log_on_changes, log_worker_policy, log_worker_executor,
    staging_worker_policy, staging_worker_executor, staging_worker_observer, staging_sensor_policy,
    catalog_upkeep_destroy, catalog_node_store]
HOST_CALLS = ["report", "publish", "assignments", "database publish"]


def check(row: Row, host: Host, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "compactlib"):
        seen = row(host)

    def logged() -> str:
        return "\n".join(caplog.handler.format(record) for record in tuple(caplog.records)
                         if record.name.split(".")[0] == "compactlib")

    # It may be counted before it is logged.
    until(lambda: WORDS in logged())
    assert WORDS in logged()
    assert "in hosts_mistake" in logged()
    if seen is not None:
        last_error, failures = seen
        assert WORDS in str(last_error)
        assert failures >= 1


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.__name__)
def test_an_error_of_the_host_is_logged_and_kept(row: Row, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    check(row, Host(ValueError(WORDS), tmp_path), caplog)


@pytest.mark.parametrize("call", HOST_CALLS)
def test_an_error_of_a_catalog_host_is_logged_and_kept(call: str, tmp_path: Path,
                                                       caplog: pytest.LogCaptureFixture) -> None:
    check(catalog_host(call), Host(ValueError(WORDS), tmp_path), caplog)


def test_the_check_of_a_worker_fails_after_an_execute_that_raised(tmp_path: Path) -> None:
    host = Host(ValueError(WORDS), tmp_path)
    worker = Worker(scheduler(), host.hosts_mistake)
    while not host.called.is_set():
        worker.run_pending()
    worker.stop()
    assert worker.failures == 1
    assert worker.last_error is host.error


@pytest.mark.parametrize("answer", [None, "done"])
def test_an_execute_that_returns_something_else_is_an_error(answer: Any, caplog: pytest.LogCaptureFixture) -> None:
    worker = Worker(scheduler(), lambda job: answer)
    for _ in range(2):  # plans, and then gets the job
        worker.run_pending()
    assert "must return CompactedBlocks" in str(worker.last_error)
    assert "must return CompactedBlocks" in caplog.text


def test_a_job_that_is_stopped_by_its_worker_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    began = threading.Event()

    def execute(job: RunningJob) -> CompactedBlocks:
        began.set()
        until(lambda: job.is_stopped)
        job.budget.check()
        return nothing(job)

    with Worker(scheduler(), execute, options=QUICK) as worker:
        assert began.wait(PATIENCE)
    assert worker.last_error is None
    assert worker.failures == 0
    assert caplog.text == ""


IN_THREADS: list[Row] = [
    worker_execute, worker_execute_by_hand, worker_cleanup, worker_transport, worker_observer, manager_policy,
    manager_executor, manager_observer, log_on_changes, log_worker_executor,
    staging_worker_policy, staging_worker_executor, catalog_upkeep_destroy,
    catalog_node_store]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
@pytest.mark.parametrize("row", IN_THREADS, ids=lambda row: row.__name__)
def test_an_exit_in_a_thread_is_logged_and_kept(row: Row, kind: type[BaseException], tmp_path: Path,
                                                caplog: pytest.LogCaptureFixture) -> None:
    def through(host: Host) -> Seen:
        # An event loop ends with it, and so does what runs in the caller's thread.
        with contextlib.suppress(SystemExit, KeyboardInterrupt):
            return row(host)
        return None

    check(through, Host(kind(WORDS), tmp_path), caplog)
