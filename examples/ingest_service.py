# SPDX-License-Identifier: Apache-2.0
"""An ingest service: it writes small blocks all the time, and workers in other processes make few large ones of them.

    python examples/ingest_service.py FOLDER

Each batch of events is one object, and the scheduler knows of it. Workers ask the scheduler for jobs over HTTP, merge
the objects that a job names, and delete merged objects once no reader needs them. One worker is killed during a job.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path
from typing import Any

import uvicorn

from compactlib.commandlog import KVLog
from compactlib.kv import SnapshotStore, SqliteStore
from compactlib.objects import LocalObjects, ObjectExists, ObjectNotFound
from compactlib.scheduler import (
    BlockMeta,
    CompactedBlocks,
    LevelConfig,
    NoOutput,
    RunningJob,
    Scheduler,
    SchedulerApplication,
    SchedulerClient,
    SchedulerConfig,
    Tombstone,
    Worker,
    WorkerOptions,
)

Event = dict[str, Any]
CONFIG = SchedulerConfig(levels=(LevelConfig(max_blocks=10), LevelConfig(max_blocks=4)), lease_seconds=1.0,
                         cleanup_delay_seconds=0.5)


class Blocks:
    """Blocks of events in objects: lines of JSON, oldest first."""

    def __init__(self, folder: Path) -> None:
        self._objects = LocalObjects(folder)

    def write(self, tenant: str, block: str, level: int, events: Iterable[Event]) -> BlockMeta:
        """Durable when it returns. A block that is there already is the same one: its name says what went into it."""
        ordered = sorted(events, key=lambda event: event["time"])
        data = "".join(json.dumps(event) + "\n" for event in ordered).encode()
        with contextlib.suppress(ObjectExists):
            self._objects.create(f"{tenant}/{block}", data)
        return BlockMeta(id=block, tenant=tenant, shard=0, level=level, min_time=ordered[0]["time"],
                         max_time=ordered[-1]["time"], size_bytes=len(data))

    def read(self, tenant: str, block: str) -> list[Event]:
        """All events of a block."""
        return [json.loads(line) for line in self._objects.get(f"{tenant}/{block}").splitlines()]

    def merge(self, job: RunningJob) -> CompactedBlocks:
        """Does a job of the scheduler: merges the sources that still exist into one block."""
        plan, found = job.plan, dict[str, list[Event]]()
        for source in plan.source_blocks:
            job.check()
            with contextlib.suppress(ObjectNotFound):
                found[source] = self.read(plan.tenant, source)
        if not found:
            return CompactedBlocks(tenant=plan.tenant, shard=plan.shard, source_blocks=(), no_output=NoOutput.MISSING)
        merged = self.write(plan.tenant, job.output_id(), plan.compaction_level + 1,
                            itertools.chain.from_iterable(found.values()))
        return CompactedBlocks(tenant=plan.tenant, shard=plan.shard, source_blocks=tuple(found), new_blocks=(merged,))

    def delete(self, tombstone: Tombstone) -> None:
        """Return the merged objects that no reader needs any more."""
        self._objects.delete(f"{tombstone.tenant}/{block}" for block in tombstone.blocks)

    def sweep(self, scheduler: Scheduler, now: float, older_than_seconds: float) -> int:
        """Remove outputs of workers that died or came too late: old objects of blocks that the scheduler does not know.

        The age is above the time from the write of an object until its block is reported.
        """
        listed = list(self._objects.list())
        known = scheduler.read(lambda machine: {
            *(f"{block.tenant}/{block.id}" for block in machine.index.blocks()),
            *(f"{gone.tombstone.tenant}/{block}" for gone in machine.tombstones for block in gone.tombstone.blocks)})
        old = [found.key for found in listed if found.modified_at < now - older_than_seconds and found.key not in known]
        self._objects.delete(old)
        return len(old)

    def count(self, batches: str) -> int:
        """Objects whose name begins so, of all tenants."""
        return sum(f"/{batches}" in found.key for found in self._objects.list())


class Ingest:
    """The service: takes events, and answers queries; workers ask it over HTTP."""

    def __init__(self, folder: Path) -> None:
        self.blocks = Blocks(folder / "blocks")
        self._kv = SqliteStore(folder / "scheduler.sqlite")
        self.scheduler = Scheduler(KVLog(self._kv), SnapshotStore(self._kv), CONFIG)

    def take(self, tenant: str, batch: str, events: Sequence[Event]) -> None:
        """Durable, and found by queries, when it returns. The same batch again changes nothing."""
        self.scheduler.add_blocks([self.blocks.write(tenant, batch, 0, events)])

    def known(self, **which: Any) -> list[BlockMeta]:
        """The blocks there are, oldest first; `tenant`, `start` and `end` say which."""
        return self.scheduler.read(lambda machine: list(machine.index.blocks(**which)))

    def query(self, tenant: str, start: float, end: float) -> list[Event]:
        """The events from `start` to `end`, oldest first. Needs to be done before `cleanup_delay_seconds` are over."""
        events = itertools.chain.from_iterable(
            self.blocks.read(tenant, block.id) for block in self.known(tenant=tenant, start=start, end=end))
        return sorted((event for event in events if start <= event["time"] <= end), key=lambda event: event["time"])

    @contextlib.asynccontextmanager
    async def served(self) -> AsyncIterator[str]:
        """Serve the scheduler until the block is left; yields its address. Elsewhere than here, give TLS and tokens."""
        server = uvicorn.Server(uvicorn.Config(SchedulerApplication(self.scheduler), port=0, log_level="error"))
        serving = asyncio.create_task(server.serve())
        while not (server.started or serving.done()):
            await asyncio.sleep(0.01)
        try:
            yield "http://{}:{}".format(*server.servers[0].sockets[0].getsockname())
        finally:
            server.should_exit = True
            await serving

    def close(self) -> None:
        """Give the store up."""
        self.scheduler.close()
        self._kv.close()


def work(address: str, folder: Path) -> None:
    """A worker's process, until its input ends."""
    blocks = Blocks(folder / "blocks")
    options = WorkerOptions(capacity=2, poll_seconds=0.05)
    with SchedulerClient([address]) as scheduler, Worker(scheduler, blocks.merge, cleanup=blocks.delete,
                                                         options=options):
        sys.stdin.read()


async def demonstrate(folder: Path) -> None:
    """A hundred batches of two tenants; three workers, of which one is killed."""
    service = Ingest(folder)
    try:
        async with service.served() as address:
            workers = [subprocess.Popen([sys.executable, __file__, str(folder), address], stdin=subprocess.PIPE)
                       for _ in range(3)]
            for number in range(100):
                tenant = "acme" if number % 2 else "globex"
                events = [{"time": float(number), "what": f"event {number}.{place}"} for place in range(50)]
                await asyncio.to_thread(service.take, tenant, f"batch-{number:04}", events)
                if number == 50:
                    workers[0].kill()
            # Fifty batches of a tenant become five blocks, and four of these become one; merged objects are deleted.
            while len(service.known()) > 4 or service.blocks.count("batch-"):
                await asyncio.sleep(0.05)
            for worker in workers:
                await asyncio.to_thread(worker.communicate)
        for tenant in ("acme", "globex"):
            found = service.query(tenant, 0.0, 100.0)
            print(f"{tenant}: {len(found)} events")
        print(f"100 batches in {len(service.known())} blocks")
        service.blocks.sweep(service.scheduler, time.time(), 0.0)  # no worker is left
    finally:
        service.close()


if __name__ == "__main__":
    work(sys.argv[2], Path(sys.argv[1])) if len(sys.argv) > 2 else asyncio.run(demonstrate(Path(sys.argv[1])))
