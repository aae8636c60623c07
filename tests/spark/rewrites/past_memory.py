# SPDX-License-Identifier: Apache-2.0
"""Run by test_spark_past_memory.py in a process of its own: merges of four times the memory that Spark is given.

    python -m tests.spark.rewrites.past_memory FOLDER MEGABYTES MEMORY
"""

from __future__ import annotations

import functools
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet
from pyspark.sql import SparkSession

from compactlib.budget import Budget
from compactlib.clock import ManualClock
from compactlib.fences import MemoryFence
from compactlib.objects import LocalObjects
from compactlib.scheduler import BlockMeta, JobPlan, RunningJob
from compactlib.spark import MergeBlocks, MergeOptions, StagingMerge, ship_library
from compactlib.staging import CommittedRanges, ParquetFormat, Record
from compactlib.staging.values import Change
from tests.harness.spark_session import spark_session
from tests.spark.block_files import LocalBlocks

BLOCKS = 16
PAYLOAD = 1000


def blocks_of(blocks: LocalBlocks, megabytes: int) -> tuple[str, ...]:
    """Blocks of rows of a kilobyte that cannot be compressed, in no order."""
    names = tuple(f"b{number}" for number in range(BLOCKS))
    rng = random.Random(1)
    for name in names:
        path = blocks.path_of("acme", 3, name)
        count = megabytes * (1 << 20) // BLOCKS // PAYLOAD
        noise = rng.randbytes(count * PAYLOAD)
        parquet.write_table(pa.table({
            "key": pa.array([rng.randrange(1 << 40) for _ in range(count)], pa.int64()),
            "payload": pa.array([noise[at:at + PAYLOAD] for at in range(0, len(noise), PAYLOAD)], pa.binary()),
        }), path, use_dictionary=False, row_group_size=10_000)
    return names


def merge_blocks(spark: SparkSession, folder: Path, megabytes: int, target_bytes: int | None) -> None:
    """Merge them; what comes out has all rows, in order."""
    blocks = LocalBlocks(folder)
    names = blocks_of(blocks, megabytes)
    plan = JobPlan(name="the-job", tenant="acme", shard=3, compaction_level=0, source_blocks=names)
    clock = ManualClock(0.0)
    job = RunningJob(plan, 7, 100.0, budget=Budget(clock=clock), clock=clock)
    options = MergeOptions(sort_by=("key",), target_bytes=target_bytes, row_group_rows=10_000)
    made: tuple[BlockMeta, ...] = MergeBlocks(spark, blocks, MemoryFence(), options)(job).new_blocks
    assert (len(made) > 2) == (target_bytes is not None)
    sources, outputs = (keys_of(blocks, given) for given in (names, [block.id for block in made]))
    assert outputs == sorted(sources)


def keys_of(blocks: LocalBlocks, names: Sequence[str]) -> list[Any]:
    """The keys of some blocks, one after the other."""
    return [key for name in names for key in parquet.read_table(
        blocks.path_of("acme", 3, name), columns=["key"], partitioning=None)["key"].to_pylist()]


def merge_changes(spark: SparkSession, folder: Path, megabytes: int) -> None:
    """Lay as many changes over a few records; the id is that of a merge on this machine."""
    count = megabytes * (1 << 20) // PAYLOAD

    def changes() -> Iterator[tuple[bytes, Change]]:
        rng = random.Random(2)
        for number in range(count):
            yield b"path/%010d" % number, Record.of(rng.randbytes(PAYLOAD))

    open_objects = functools.partial(LocalObjects, folder / "spark")
    there = CommittedRanges(open_objects(), range_format=ParquetFormat(), cache_bytes=0)
    here = CommittedRanges(LocalObjects(folder / "here"), range_format=ParquetFormat(), cache_bytes=0)
    old = [(b"path/%010d+" % number, Record.of(b"old")) for number in range(0, count, 1000)]
    bases = [layer.apply(None, old).metarange_id for layer in (there, here)]
    applied = StagingMerge(spark, there, open_objects, partitions=16).apply(bases[0], changes())
    assert applied.metarange_id == here.apply(bases[1], changes()).metarange_id
    assert applied.added == count


def main() -> None:
    folder, megabytes, memory = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    spark = spark_session("past-memory", options={
        "spark.driver.memory": memory, "spark.local.dir": str(folder / "spill"),
        "spark.sql.warehouse.dir": str(folder / "warehouse")})
    ship_library(spark)
    try:
        merge_blocks(spark, folder / "one", megabytes, None)
        merge_blocks(spark, folder / "several", megabytes, megabytes * (1 << 20) // 8)
        merge_changes(spark, folder / "changes", megabytes)
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
