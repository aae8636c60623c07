# SPDX-License-Identifier: Apache-2.0
"""A scheduler of this format opens for ever, and the same calls write the same commands and the same snapshot.

`python -m tests.promises.scheduler.test_scheduler_golden` writes the golden file again: a change in it is another
version of the format, or a mistake.
"""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest

from compactlib.clock import ManualClock
from compactlib.commandlog import KVLog
from compactlib.errors import CorruptData
from compactlib.kv import MemoryStore, SnapshotStore
from compactlib.scheduler import (
    BlockMeta,
    CompactedBlocks,
    JobStatus,
    LevelConfig,
    PollRequest,
    Scheduler,
    SchedulerConfig,
    StatusUpdate,
)

GOLDEN = Path(__file__).parents[1] / "golden" / "scheduler" / "scheduler.json"
PARTITIONS = (b"commands", b"snapshots")
CONFIG = SchedulerConfig(levels=(LevelConfig(max_blocks=2, max_age_seconds=60.0),), lease_seconds=15.0)


def opened(store: MemoryStore, clock: ManualClock, config: SchedulerConfig | None = None) -> Scheduler:
    return Scheduler(KVLog(store, clock=clock, rng=Random(1)), SnapshotStore(store, clock=clock, rng=Random(2)), config)


def written() -> dict[str, str]:
    """What some calls of every kind leave in a store."""
    store, clock = MemoryStore(), ManualClock(1000.0)
    scheduler = opened(store, clock, CONFIG)
    scheduler.add_blocks(BlockMeta(id=f"block-{number}", tenant="acme", shard=7, level=0, min_time=100.0 * number,
                                   max_time=100.0 * number + 50, size_bytes=4096) for number in range(8))
    scheduler.poll(PollRequest(job_capacity=4))
    clock.advance(1.0)
    assigned = scheduler.poll(PollRequest(job_capacity=3))
    done, failed, running = zip(assigned.compaction_jobs, assigned.assignments, strict=True)
    output = BlockMeta(id="output", tenant="acme", shard=7, level=1, min_time=0.0, max_time=150.0, size_bytes=8000)
    results = CompactedBlocks(tenant="acme", shard=7, source_blocks=done[0].source_blocks, new_blocks=(output,))
    clock.advance(1.0)
    scheduler.poll(PollRequest((
        StatusUpdate(done[0].name, done[1].token, JobStatus.SUCCESS, results),
        StatusUpdate(failed[0].name, failed[1].token, JobStatus.FAILED, reason="disk full"),
        StatusUpdate(running[0].name, running[1].token, JobStatus.IN_PROGRESS))))
    scheduler.snapshot()
    scheduler.retain(260.0)
    scheduler.requeue([failed[0].name])
    scheduler.add_blocks([BlockMeta(id="late", tenant="beta", shard=1, level=2)])
    scheduler.configure(CONFIG)
    scheduler.poll(PollRequest(job_capacity=1))
    scheduler.close()
    return {f"{partition.decode()}:{entry.key.decode()}": bytes(entry.value).hex()
            for partition in PARTITIONS for entry in store.scan(partition)}


def kept() -> dict[str, str]:
    records: dict[str, str] = json.loads(GOLDEN.read_text())
    return records


def restored(records: dict[str, str]) -> Scheduler:
    store = MemoryStore()
    for name, record in records.items():
        partition, _, key = name.partition(":")
        store.set(partition.encode(), key.encode(), bytes.fromhex(record))
    return opened(store, ManualClock(100_000.0))


def test_same_calls_write_the_same_records() -> None:
    assert written() == kept()


def test_golden_scheduler_opens() -> None:
    with restored(kept()) as scheduler:
        blocks = {block.id: block.level for block in scheduler.read(lambda machine: list(machine.index.blocks()))}
        assert blocks == {"block-3": 0, "block-4": 0, "block-5": 0, "block-6": 0, "block-7": 0, "late": 2}
        assert scheduler.read(lambda machine: machine.config) == CONFIG
        answer = scheduler.poll(PollRequest(job_capacity=9))
        assert answer.tombstones
        sources = scheduler.read(lambda machine: [job.plan.source_blocks for job in machine.jobs])
        assert ("block-6", "block-7") in sources


@pytest.mark.parametrize("name", sorted(kept()) if GOLDEN.exists() else [])
def test_damage_in_any_record_is_found(name: str) -> None:
    damaged = bytearray.fromhex(kept()[name])
    damaged[-1] ^= 1
    with pytest.raises(CorruptData):
        restored({**kept(), name: damaged.hex()})


if __name__ == "__main__":
    GOLDEN.parent.mkdir(exist_ok=True)
    GOLDEN.write_text(json.dumps(written(), indent=1) + "\n")
