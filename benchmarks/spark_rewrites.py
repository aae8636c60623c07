# SPDX-License-Identifier: Apache-2.0
"""The heavy rewrites, each by this process, by processes, by Spark, and plainly; a part of `spark.py`.

    python benchmarks/spark_rewrites.py [--quick] [--runs N] [--json FILE] [--folder FOLDER]

Run as a script it measures rewrites of rows: staging merges and Parquet blocks. Their goal is 0.8 of plain Spark, which
reads, sorts and writes the same rows in the same session. All ways of one rewrite take turns, A B C D A B C
D …, so that a slow machine slows all of them. Needs Java; DuckDB and Polars are left out where they are not installed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import pyarrow as pa
from local_spark import spark_session
from measure import Figure, report
from pyarrow import parquet
from raftlog_compaction import (
    SEGMENT_ENTRIES,
    build_log,
    compact_copy,
    local,
    plain_copy,
)
from staging_merge import Bench, spread_changes

from compactlib.blobstore import BlobStore, BlobStoreConfig, CompactAll
from compactlib.budget import Budget
from compactlib.clock import SystemClock
from compactlib.executors import Executor, LocalExecutor, ProcessExecutor
from compactlib.fences import MemoryFence
from compactlib.kv import KVStore, SqliteStore
from compactlib.objects import LocalObjects
from compactlib.scheduler import JobPlan, RunningJob
from compactlib.spark import (
    BlockFolder,
    MergeBlocks,
    SparkExecutor,
    StagingMerge,
    ship_library,
)
from compactlib.staging import CommittedRanges, ParquetFormat
from compactlib.staging.policy import StagingToken
from compactlib.staging.rewrite import CompactTokens
from compactlib.staging.tokens import Staged, encode_staged
from compactlib.staging.values import token_partition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MIB = 1 << 20
RAFTLOG_SEGMENT = 16 * SEGMENT_ENTRIES
CORES = 2

Way = Callable[[], float]
"""Runs the rewrite once; gives its rate."""


@attrs.frozen
class Rewrite:
    """One rewrite and the ways of doing it.

    Attributes:
        name: part of the figures' names.
        unit: of the rates.
        amount: how much of it one run does.
        spark: on Spark, session up.
        others: the references by name; this library in this process is the first, if it takes part.
        told: a description of each reference.
        limits: the references that do less than a compaction.
        copies: whether bytes are copied as they are; then Spark should not be far behind.
    """

    name: str
    unit: str
    amount: float
    spark: Way
    others: Mapping[str, Way]
    told: Mapping[str, str]
    limits: tuple[str, ...]
    copies: bool = False

    def figures(self, runs: int) -> Iterator[Figure]:
        """Spark over each of the others, and each of ours over each limit."""
        ways = {"spark": self.spark, **self.others}
        for way in ways.values():
            way()
        rounds = [{name: way() for name, way in ways.items()} for _ in range(runs)]
        pairs = [("spark", name) for name in self.others]
        pairs += [(name, limit) for limit in self.limits for name in self.others if name not in self.limits]
        for ours, reference in pairs:
            yield Figure(figure=f"rewrite.{self.name}.{ours}_over_{reference}", unit=self.unit,
                         values=tuple(each[ours] for each in rounds), reference=self.told[reference],
                         reference_values=tuple(each[reference] for each in rounds),
                         goal=">= 0.8" if (ours, reference) in self._goals else "")

    @property
    def _goals(self) -> set[tuple[str, str]]:
        return {("spark", "local")} if self.copies else {("spark", "plain_spark")}


@contextlib.contextmanager
def all_rewrites(spark: SparkSession, scratch: Path, quick: bool,
                 megabytes: int | None = None) -> Iterator[Iterator[Rewrite]]:
    """The four, one after the other, each with data of its own; worker processes are started once."""
    with nullcontext(ProcessExecutor(CORES)) as processes:
        yield _one_by_one(spark, processes, scratch, quick, megabytes)


def _one_by_one(spark: SparkSession, processes: Executor, scratch: Path, quick: bool,
                megabytes: int | None) -> Iterator[Rewrite]:
    yield raftlog_rewrite(spark, processes, scratch / "raftlog", megabytes or (384 if quick else 1024))
    shutil.rmtree(scratch / "raftlog")
    yield blobstore_rewrite(spark, processes, scratch / "blobstore", megabytes or (64 if quick else 1024))
    shutil.rmtree(scratch / "blobstore")
    yield from row_rewrites(spark, processes, scratch, quick)


def row_rewrites(spark: SparkSession, processes: Executor, scratch: Path, quick: bool) -> Iterator[Rewrite]:
    """Those of rows, one after the other."""
    yield staging_rewrite(spark, processes, scratch / "staging", 100_000 if quick else 1_000_000)
    shutil.rmtree(scratch / "staging")
    for parts in (1, 4):
        yield blocks_rewrite(spark, scratch / "blocks", 80_000 if quick else 2_000_000, parts)
        shutil.rmtree(scratch / "blocks")


# ------------------------------------------------------------------------------------------------- bytes are copied


LOCAL = f"LocalExecutor(workers={CORES})"
PROCESSES = f"ProcessExecutor({CORES}), workers running"
PLAIN = "plain copy of the live bytes, one fsync a file"


def raftlog_rewrite(spark: SparkSession, processes: Executor, scratch: Path, megabytes: int) -> Rewrite:
    """A whole major of a log of which 30 % is live, in segments of 64 MiB."""
    source = scratch / "log"
    scratch.mkdir()
    build_log(source, max(megabytes * 1024 // RAFTLOG_SEGMENT, 6), 0.3, 1, RAFTLOG_SEGMENT)
    _, sample = compact_copy(source, scratch, local(), RAFTLOG_SEGMENT)
    live = {group.numbers: group.output.live_bytes for group in sample.plan.groups}
    sizes = [live[group.members] for group in sample.done]
    moved = sum(sizes) / 1e6

    def rate(executor: Executor) -> float:
        return moved / compact_copy(source, scratch, executor, RAFTLOG_SEGMENT)[0]

    return _copying("raftlog", moved, rate, spark, processes, _plain(scratch, sizes))


def blobstore_rewrite(spark: SparkSession, processes: Executor, scratch: Path, megabytes: int) -> Rewrite:
    """A compaction of every segment of a store of which 40 % is dead."""
    source, work = scratch / "store", scratch / "work"
    scratch.mkdir()
    config = blob_config(megabytes)
    build_blobs(source, megabytes, config)
    live = 0

    def rate(executor: Executor) -> float:
        nonlocal live
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(source, work)
        os.sync()
        with BlobStore(work, config) as store:
            plan = store.plan(CompactAll(min_used_fraction=0.0))
            began = time.perf_counter()
            report = store.compact(plan, executor=executor, budget=Budget())
            seconds = time.perf_counter() - began
        assert not report.is_empty, report
        live = report.copied_bytes
        return live / 1e6 / seconds

    rate(local())
    sizes = [min(64 * MIB, live - start) for start in range(0, live, 64 * MIB)]
    return _copying("blobstore", live / 1e6, rate, spark, processes, _plain(scratch, sizes))


def _copying(name: str, megabytes: float, rate: Callable[[Executor], float], spark: SparkSession, processes: Executor,
             plain: Way) -> Rewrite:
    return Rewrite(name, "MB/s of live bytes", megabytes, partial(rate, SparkExecutor(spark)),
                   {"local": partial(rate, LocalExecutor(CORES)), "processes": partial(rate, processes), "copy": plain},
                   {"local": LOCAL, "processes": PROCESSES, "copy": PLAIN}, ("copy",), copies=True)


def _plain(scratch: Path, sizes: Sequence[int]) -> Way:
    flat = scratch / "live-bytes"
    noise = random.Random(2).randbytes(16 * MIB)
    with flat.open("wb") as out:
        for start in range(0, sum(sizes), len(noise)):
            out.write(noise[:sum(sizes) - start])
    return lambda: sum(sizes) / 1e6 / plain_copy(flat, scratch, list(sizes))


def blob_config(megabytes: int) -> BlobStoreConfig:
    segment = 64 * MIB if megabytes >= 256 else 4 * MIB
    return BlobStoreConfig(
        capacity_bytes=(4 * megabytes * MIB // segment + 8) * segment, segment_bytes=segment, durability="interval",
        sync_interval_seconds=3600.0, deleted_retention_seconds=0.0, journal_max_entries=0,
        compaction_bytes_per_second=None)


def build_blobs(folder: Path, megabytes: int, config: BlobStoreConfig) -> None:
    """Blobs of 4 to 64 KiB, 40 % of them deleted."""
    rng = random.Random(5)
    noise = rng.randbytes(2 * 65536)
    with BlobStore(folder, config) as store:
        left, number = megabytes * MIB, 0
        while left > 0:
            size = rng.randrange(4096, 65536)
            start = rng.randrange(65536)
            store.put(f"blob {number}", noise[start:start + size])
            left -= size
            number += 1
        for each in range(number):
            if rng.random() < 0.4:
                store.delete(f"blob {each}")


# --------------------------------------------------------------------------------------------------- rows are merged


TOKEN = StagingToken(f"stg-{1:032x}")


@attrs.frozen
class StoresInFolder:
    """Opens the staging area's stores in the process that rewrites."""

    folder: str

    @property
    def tokens_path(self) -> str:
        return f"{self.folder}/tokens.sqlite"

    @contextlib.contextmanager
    def __call__(self) -> Iterator[tuple[KVStore, CommittedRanges]]:
        with contextlib.closing(SqliteStore(self.tokens_path)) as store:
            yield store, self.committed()

    @property
    def open_objects(self) -> Callable[[], LocalObjects]:
        """Not a method of this class: Spark's workers cannot import this module."""
        return partial(LocalObjects, f"{self.folder}/objects")

    def committed(self) -> CommittedRanges:
        return CommittedRanges(self.open_objects(), range_format=ParquetFormat(), cache_bytes=0)


def staging_rewrite(spark: SparkSession, processes: Executor, scratch: Path, count: int) -> Rewrite:
    """A token of changes, a fifth of the records and spread all over, applied to committed records."""
    scratch.mkdir()
    bench, changes = Bench(scratch, count), spread_changes(count)
    stores = StoresInFolder(str(scratch))
    with contextlib.closing(SqliteStore(stores.tokens_path)) as store:
        for start in range(0, len(changes), 1000):
            store.transact(changes={(token_partition(TOKEN), key): encode_staged(Staged(change))
                                    for key, change in changes[start:start + 1000]})
    before = {str(path) for path in (scratch / "objects").rglob("*")}
    rows = count + len(changes)

    def rate(executor: Executor) -> float:
        task = CompactTokens("merge", stores, bench.base, (TOKEN,))
        began = time.perf_counter()
        outcome, = executor.run([task])
        seconds = time.perf_counter() - began
        assert not hasattr(outcome, "error"), outcome
        for path in (scratch / "objects").rglob("*"):
            if path.is_file() and str(path) not in before:
                path.unlink()
        return rows / seconds

    def plainly(tool: Way) -> float:
        return rows / tool()

    def with_spark() -> float:
        paths = [f"file://{path}" for path in (*bench.paths, scratch / "changes.parquet")]
        return sorted_by_spark(spark, paths, 2 * CORES, scratch / "plain")

    merge = StagingMerge(spark, stores.committed(), stores.open_objects, partitions=2 * CORES)
    plain = {name: partial(plainly, tool) for name, tool in bench.plain(changes).items() if name != "pyarrow"}
    return Rewrite("staging", "rows/s", rows, partial(rate, merge),
                   {"local": partial(rate, LocalExecutor()), "processes": partial(rate, processes), **plain,
                    "plain_spark": partial(plainly, with_spark)},
                   {"local": "LocalExecutor()", "processes": f"{PROCESSES}; it is one task", "plain_spark": PLAIN_SPARK,
                    "duckdb": "DuckDB: anti-join, sort, write, fsync", "polars": "Polars: the same"}, tuple(plain))


PLAIN_SPARK = "Spark: read the same rows, sort, write, fsync"


def sorted_by_spark(spark: SparkSession, paths: Sequence[str], parts: int, out: Path) -> float:
    """Seconds in which Spark reads Parquet files, sorts them by `key`, and writes files that do not overlap."""
    began = time.perf_counter()
    frame = spark.read.parquet(*paths)
    frame = frame.coalesce(1) if parts == 1 else frame.repartitionByRange(parts, "key")
    frame.sortWithinPartitions("key").write.option("compression", "zstd").parquet(f"file://{out}")
    for path in out.glob("part-*"):
        _fsync(path)
    seconds = time.perf_counter() - began
    shutil.rmtree(out)
    return seconds


def blocks_rewrite(spark: SparkSession, scratch: Path, rows: int, parts: int) -> Rewrite:
    """Eight Parquet blocks merged into one, sorted; or into several whose keys do not overlap."""
    scratch.mkdir()
    folder = scratch / "blocks"
    blocks = BlockFolder(partial(LocalObjects, str(folder)))
    rng = random.Random(3)
    names = tuple(f"b{number}" for number in range(8))
    paths = [str(folder / blocks.key_of("t", 1, name)) for name in names]
    os.makedirs(os.path.dirname(paths[0]))
    for path in paths:
        keys = [rng.randrange(1 << 40) for _ in range(rows // 8)]
        table = pa.table({"key": pa.array(keys, pa.int64()), "value": pa.array([rng.randbytes(64) for _ in keys])})
        parquet.write_table(table, path)
    size = sum(map(os.path.getsize, paths))
    merge = MergeBlocks(spark, blocks, MemoryFence(), sort_by=("key",),
                        target_bytes=None if parts == 1 else -(-size // parts))
    token = iter(range(1, 1_000_000))

    def on_spark() -> float:
        plan = JobPlan(name="job", tenant="t", shard=1, compaction_level=0, source_blocks=names)
        job = RunningJob(plan, next(token), 2e9, budget=Budget(), clock=SystemClock())
        began = time.perf_counter()
        made = merge(job).new_blocks
        seconds = time.perf_counter() - began
        assert len(made) == parts, made
        for block in made:
            blocks.delete("t", 1, block.id)
        return rows / seconds

    def with_spark() -> float:
        return rows / sorted_by_spark(spark, [f"file://{path}" for path in paths], parts, scratch / "plain")

    plain: dict[str, Way] = {"plain_spark": with_spark}
    if parts == 1:
        plain.update((name, partial(_timed, tool, scratch / "plain.parquet", rows))
                     for name, tool in _block_tools(paths).items())
    return Rewrite("blocks" if parts == 1 else f"blocks_in_{parts}", "rows/s", rows, on_spark, plain,
                   {"plain_spark": PLAIN_SPARK, "pyarrow": "PyArrow in this process: read, sort, write, fsync",
                    "duckdb": "DuckDB: the same", "polars": "Polars: the same"},
                   tuple(name for name in plain if name in ("duckdb", "polars")))


def _fsync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _timed(tool: Callable[[Path], None], out: Path, rows: int) -> float:
    began = time.perf_counter()
    tool(out)
    _fsync(out)
    seconds = time.perf_counter() - began
    out.unlink()
    return rows / seconds


def _block_tools(paths: list[str]) -> dict[str, Callable[[Path], None]]:
    """Read, sort by key, write; with those tools that are installed. All compress with zstd, as ours does."""
    def with_pyarrow(out: Path) -> None:
        table = pa.concat_tables([parquet.read_table(path) for path in paths]).sort_by("key")
        parquet.write_table(table, out, compression="zstd")

    def with_duckdb(out: Path) -> None:
        import duckdb

        with duckdb.connect() as connection:
            connection.execute(f"SET threads={CORES}")
            connection.execute(f"COPY (SELECT * FROM read_parquet({paths!r}) ORDER BY key) TO '{out}' "
                               f"(FORMAT parquet, COMPRESSION zstd, COMPRESSION_LEVEL 1)")

    def with_polars(out: Path) -> None:
        import polars as pl

        pl.scan_parquet(paths).sort("key").sink_parquet(out, compression="zstd", compression_level=1)

    found: dict[str, Callable[[Path], None]] = {"pyarrow": with_pyarrow}
    for name, tool in (("duckdb", with_duckdb), ("polars", with_polars)):
        try:
            __import__(name)
        except ImportError:
            print(f"{name} is not installed: left out")
        else:
            found[name] = tool
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smaller data, under a minute")
    parser.add_argument("--json", metavar="FILE", help="write the figures as JSON")
    parser.add_argument("--folder", help="where to put the data; default a temporary folder")
    parser.add_argument("--runs", type=int, default=None, help="counted runs of each (default 5, quick 1)")
    options = parser.parse_args()
    runs = options.runs or (1 if options.quick else 5)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder, nullcontext(ProcessExecutor(CORES)) as processes:
        spark = spark_session("benchmark", cores=CORES)
        ship_library(spark)
        try:
            found = [figure for rewrite in row_rewrites(spark, processes, Path(folder), options.quick)
                     for figure in rewrite.figures(runs)]
        finally:
            spark.stop()
    report(found, options.json)


if __name__ == "__main__":
    main()
