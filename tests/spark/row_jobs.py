# SPDX-License-Identifier: Apache-2.0
"""The two jobs over rows, small: a branch's changes merged into a metarange, and Parquet blocks merged into one."""

from __future__ import annotations

import functools
import hashlib
import random
from pathlib import Path

import pyarrow as pa
from pyarrow import parquet
from pyspark.sql import SparkSession

from compactlib.budget import Budget
from compactlib.clock import ManualClock
from compactlib.fences import MemoryFence
from compactlib.objects import LocalObjects, MemoryObjects
from compactlib.scheduler import JobPlan, RunningJob
from compactlib.spark import MergeBlocks, StagingMerge
from compactlib.staging import CommittedRanges, ParquetFormat, Record, SplitRule
from compactlib.staging.values import Change
from tests.spark.block_files import LocalBlocks

RULE = SplitRule(raggedness=60)
SOURCES = ("b0", "b1", "b2")


def _content() -> list[tuple[bytes, Record]]:
    return [(b"key %05d" % number, Record.of(b"old %d" % number)) for number in range(400)]


def _changes() -> list[tuple[bytes, Change]]:
    rng = random.Random(8)
    return [(b"key %05d" % number, None if rng.random() < 0.3 else Record.of(b"new %d" % rng.randrange(9)))
            for number in sorted(rng.sample(range(100, 300), 110))]


def merged_here() -> str:
    """The id of the metarange that a merge in this process makes."""
    committed = CommittedRanges(MemoryObjects(), rule=RULE)
    return str(committed.apply(committed.apply(None, _content()).metarange_id, _changes()).metarange_id)


def merged_on_spark(spark: SparkSession, folder: Path) -> str:
    """The id of the metarange that `StagingMerge` makes of the same, in objects in this folder."""
    open_objects = functools.partial(LocalObjects, folder)
    committed = CommittedRanges(open_objects(), rule=RULE, range_format=ParquetFormat())
    base = committed.apply(None, _content()).metarange_id
    applied = StagingMerge(spark, committed, open_objects, partitions=3).apply(base, _changes())
    assert applied.changed + applied.removed > 50
    return str(applied.metarange_id)


def merged_block(spark: SparkSession, folder: Path) -> list[str]:
    """Id of the block that `MergeBlocks` makes of three, and the digest of its rows in order.

    Not that of the file: parquet-java lists a column's encodings in an order that differs from one Java process to the
    next.
    """
    blocks = LocalBlocks(folder)
    rng = random.Random(9)
    for name in SOURCES:
        path = blocks.path_of("acme", 3, name)
        rows = [{"at": rng.randrange(1000), "payload": rng.randbytes(10)} for _ in range(50)]
        parquet.write_table(pa.Table.from_pylist(rows), path)
    plan = JobPlan(name="the-job", tenant="acme", shard=3, compaction_level=0, source_blocks=SOURCES)
    clock = ManualClock(0.0)
    job = RunningJob(plan, 7, 100.0, budget=Budget(clock=clock), clock=clock)
    (block,) = MergeBlocks(spark, blocks, MemoryFence(), sort_by=("at",))(job).new_blocks
    path = blocks.path_of("acme", 3, block.id)
    table = parquet.read_table(path, partitioning=None)
    assert len(table) == 50 * len(SOURCES)
    return [block.id, hashlib.sha256(repr(table.to_pylist()).encode()).hexdigest()]
