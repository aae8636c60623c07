"""What Spark costs and gives: each rewrite locally, on Spark and plainly; the data sources; many executors, simulated.

    python benchmarks/spark.py [--quick] [--runs N] [--json FILE] [--plot FILE.png] [--folder FOLDER]

Each figure measures ours and the reference in turn in one run, on `local[2,4]`. `docs/spark-benchmarks.md` says what is
compared. Needs Java; the plot needs matplotlib.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import pyarrow as pa
from measure import Figure, alternate, report
from pyarrow import parquet
from raftlog_compaction import PAYLOAD_BYTES, SEGMENT_ENTRIES, build_log, compact_copy, local, plain_copy

from compactlib.blobstore import BlobCompactor, BlobStore, BlobStoreConfig, policy_named
from compactlib.blobstore.records import check_record, content_range
from compactlib.blobstore.segment import SegmentFile
from compactlib.blobstore.sense import Sensor
from compactlib.blobstore.store_reader import look_at_store
from compactlib.budget import Budget
from compactlib.clock import SystemClock
from compactlib.outcome import Done
from compactlib.raftlog import LogReader
from compactlib.report import Table
from compactlib.rewrite import Attempt, Executor, LocalExecutor, RewriteResult, RewrittenFile
from compactlib.scheduler import JobPlan, MemoryFence, RunningJob
from compactlib.scheduler.worker_core import Start
from compactlib.spark import BlockFolder, MergeBlocks, MergeOptions, SparkExecutor, local_session, makespan, register

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MIB = 1 << 20
RAFTLOG_SEGMENT = 16 * SEGMENT_ENTRIES
EXECUTORS = (10, 20, 50, 100, 200, 500, 1000)
SHARING = (1, 2, 4, 8, 16, 32, 64)
SIMULATED_TASKS = 10_000

SESSION = """
import time
began = time.perf_counter()
{body}
print(time.perf_counter() - began)
"""
START_SPARK = """
from compactlib.spark import local_session
local_session("benchmark", cores=2).range(1).collect()
"""


@attrs.frozen
class EmptyTask:
    """Does nothing, so that only its executor costs anything."""

    name: str

    def run(self, attempt: Attempt) -> RewriteResult:
        return RewriteResult(task=self.name, attempt=attempt.id, files=(RewrittenFile("none://", 0, 0, 0),),
                             bytes_read=0, bytes_written=0, seconds=0.0)


# --------------------------------------------------------------------------------------------------------- rewrites


def raftlog_figures(spark: SparkSession, scratch: Path, megabytes: int, runs: int) -> Iterator[Figure]:
    """A whole major: Spark over local, and each over plainly copying the live bytes."""
    source = scratch / "log"
    build_log(source, max(megabytes * 1024 // RAFTLOG_SEGMENT, 6), 0.3, 1, RAFTLOG_SEGMENT)
    _, sample = compact_copy(source, scratch, local(), RAFTLOG_SEGMENT)
    sizes = [group.entries_after * PAYLOAD_BYTES for group in sample.done]
    flat = scratch / "live-bytes"
    flat.write_bytes(random.Random(2).randbytes(sum(sizes)))
    moved = sum(sizes) / 1e6

    def rate(executor: Executor) -> float:
        return moved / compact_copy(source, scratch, executor, RAFTLOG_SEGMENT)[0]

    yield from _three("raftlog", partial(rate, SparkExecutor(spark)), partial(rate, local()),
                      lambda: moved / plain_copy(flat, scratch, sizes), runs)
    shutil.rmtree(source)
    shutil.rmtree(scratch / "work")


def blobstore_figures(spark: SparkSession, scratch: Path, megabytes: int, runs: int) -> Iterator[Figure]:
    """A compaction of every segment of a store of which 40 % is dead."""
    source = scratch / "store"
    config = _blob_config(megabytes)
    build_blobs(source, megabytes, config)
    live = 0

    def rate(executor: Executor) -> float:
        nonlocal live
        work = scratch / "store-work"
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(source, work)
        os.sync()
        with BlobStore(work, config) as store:
            now = store.clock.now()
            plan = policy_named("compact_all", min_used_fraction=0.0).plan(Sensor(store).view(now), now)
            assert plan is not None
            began = time.perf_counter()
            outcome = BlobCompactor(store).compact(plan, executor=executor, budget=Budget())
            seconds = time.perf_counter() - began
        assert isinstance(outcome, Done), outcome
        live = outcome.stats.copied_bytes
        return live / 1e6 / seconds

    rate(local())
    flat = scratch / "live-bytes"
    flat.write_bytes(random.Random(2).randbytes(live))
    sizes = [min(64 * MIB, live - start) for start in range(0, live, 64 * MIB)]
    yield from _three("blobstore", partial(rate, SparkExecutor(spark)), partial(rate, local()),
                      lambda: live / 1e6 / plain_copy(flat, scratch, sizes), runs)
    shutil.rmtree(scratch / "store-work")


def blocks_figure(spark: SparkSession, scratch: Path, rows: int, runs: int) -> Figure:
    """Eight Parquet blocks merged into one, sorted, against PyArrow in this process."""
    blocks = BlockFolder(scratch / "blocks")
    rng = random.Random(3)
    names = tuple(f"b{number}" for number in range(8))
    paths = [blocks.path_of("t", 1, name) for name in names]
    blocks.make_folder(os.path.dirname(paths[0]))
    for path in paths:
        keys = [rng.randrange(1 << 40) for _ in range(rows // 8)]
        table = pa.table({"key": pa.array(keys, pa.int64()), "value": pa.array([rng.randbytes(64) for _ in keys])})
        parquet.write_table(table, path)
    token = iter(range(1, 1_000_000))

    def ours() -> float:
        merge = MergeBlocks(spark, blocks, MemoryFence(), MergeOptions(sort_by=("key",)))
        plan = JobPlan(name="job", tenant="t", shard=1, compaction_level=0, source_blocks=names)
        began = time.perf_counter()
        merge(RunningJob(Start(1, plan, token=next(token), deadline=2e9), Budget(), SystemClock()))
        return rows / (time.perf_counter() - began)

    def plain() -> float:
        began = time.perf_counter()
        table = pa.concat_tables([parquet.read_table(path) for path in paths]).sort_by("key")
        with open(scratch / "plain.parquet", "wb") as out:
            parquet.write_table(table, out)
            out.flush()
            os.fsync(out.fileno())
        return rows / (time.perf_counter() - began)

    values, references = alternate(runs, ours, plain)
    return Figure(figure="rewrite.blocks", unit="rows/s", values=tuple(values),
                  reference="pyarrow: read, sort, write, fsync", reference_values=tuple(references), goal="")


def _three(name: str, on_spark: Callable[[], float], here: Callable[[], float], limit: Callable[[], float],
           runs: int) -> Iterator[Figure]:
    for figure, ours, reference, told, goal in (
            (f"rewrite.{name}.spark_over_local", on_spark, here, "LocalExecutor(workers=3)", ">= 0.8"),
            (f"rewrite.{name}.spark_over_limit", on_spark, limit, "plain copy of the live bytes", ""),
            (f"rewrite.{name}.local_over_limit", here, limit, "plain copy of the live bytes", "")):
        values, references = alternate(runs, ours, reference)
        yield Figure(figure=figure, unit="MB/s of live bytes", values=tuple(values), reference=told,
                     reference_values=tuple(references), goal=goal)


# --------------------------------------------------------------------------------------------------------- overhead


def overhead_figures(spark: SparkSession, runs: int) -> Iterator[Figure]:
    """A session, a job, a task: what each costs when there is nothing to do."""
    def process(body: str) -> float:
        shown = subprocess.run([sys.executable, "-c", SESSION.format(body=body)], check=True, capture_output=True)
        return float(shown.stdout)

    pairs = [(process(START_SPARK), process("import compactlib.spark")) for _ in range(max(runs // 2, 1))]
    yield Figure(figure="overhead.session", unit="s", values=tuple(pair[0] for pair in pairs), goal="",
                 reference="importing compactlib.spark alone", reference_values=tuple(pair[1] for pair in pairs))

    def seconds(executor: Executor, tasks: int) -> float:
        began = time.perf_counter()
        list(executor.run([EmptyTask(f"t{number}") for number in range(tasks)]))
        return time.perf_counter() - began

    one_job = SparkExecutor(spark, jobs_at_once=1)
    for _ in range(3):
        seconds(one_job, 64)
    values, references = alternate(runs, lambda: seconds(one_job, 1), lambda: seconds(LocalExecutor(), 1))
    yield Figure(figure="overhead.job", unit="s", values=tuple(values), reference="LocalExecutor",
                 reference_values=tuple(references), goal="")
    values, references = alternate(runs, lambda: (seconds(one_job, 64) - seconds(one_job, 1)) / 63,
                                   lambda: seconds(LocalExecutor(), 1000) / 1000)
    yield Figure(figure="overhead.task", unit="s", values=tuple(max(value, 1e-4) for value in values),
                 reference="LocalExecutor", reference_values=tuple(references), goal="")


# ----------------------------------------------------------------------------------------------------- data sources


def source_figures(spark: SparkSession, scratch: Path, megabytes: int, runs: int) -> Iterator[Figure]:
    """Rows with payload through Spark, against a plain Python loop over the same files."""
    register(spark)
    log, store = scratch / "rows-log", scratch / "rows-store"
    entries = 16 * 1024
    build_log(log, max(megabytes * 1024 // entries, 2), 0.3, 1, entries)
    build_blobs(store, megabytes, _blob_config(megabytes))

    def plain_log() -> tuple[int, int]:
        count = size = 0
        with LogReader(log) as reader:
            for ref in reader.refs:
                for entry in reader.entries(ref.first, ref.last):
                    count += 1
                    size += len(entry.payload)
        return count, size

    def plain_store() -> tuple[int, int]:
        count = size = 0
        look = look_at_store(store)
        for info in look.snapshot.segments:
            file = SegmentFile(store / info.name.log_file)
            for entry in look.snapshot.entries_of(info.name):
                record = file.read(entry.offset, entry.size)
                assert check_record(entry, record, file.header.salt) is None
                at, length = content_range(entry)
                size += len(record[at - entry.offset:at - entry.offset + length])
                count += 1
        return count, size

    def on_spark(name: str, folder: Path, **options: str) -> tuple[int, int]:
        frame = spark.read.format(name).options(**options).load(str(folder))
        (row,) = frame.selectExpr("count(*)", "sum(length(payload))").collect()
        return row[0], row[1]

    for name, folder, plain in (("raftlog", log, plain_log), ("blobstore", store, plain_store)):
        ours: Callable[[], tuple[int, int]] = partial(on_spark, f"compactlib.{name}", folder)
        rows, size = ours()
        for figure, unit, amount in (("mb", "MB/s of payload", size / 1e6), ("rows", "rows/s", rows)):
            values, references = alternate(runs, partial(_rate, ours, amount), partial(_rate, plain, amount))
            yield Figure(figure=f"source.{name}.{figure}", unit=unit, values=tuple(values),
                         reference="a plain Python loop over the same files", reference_values=tuple(references),
                         goal=">= 0.7")
    shutil.rmtree(log)
    shutil.rmtree(store)


def _rate(work: Callable[[], object], amount: float) -> float:
    began = time.perf_counter()
    work()
    return amount / (time.perf_counter() - began)


def _blob_config(megabytes: int) -> BlobStoreConfig:
    segment = 64 * MIB if megabytes >= 256 else 4 * MIB
    return BlobStoreConfig(
        capacity_bytes=(4 * megabytes * MIB // segment + 8) * segment, segment_bytes=segment, durability="interval",
        sync_interval_seconds=3600.0, deleted_retention_seconds=0.0, journal_max_entries=0,
        compaction_bytes_per_second=None, min_used_fraction=0.0, stats_entries_per_second=None, swap_segments=64)


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


# ------------------------------------------------------------------------------------------------------- simulation


@attrs.frozen
class Measured:
    """What the simulation stands on, all in seconds.

    Attributes:
        tasks: how long tasks take on a worker.
        task: what a Spark task costs besides.
        job: what a job costs.
        session: what a session costs.
        commit: what a commit takes, in the one driver.
    """

    tasks: tuple[float, ...]
    task: float
    job: float
    session: float
    commit: float


def measured(spark: SparkSession, scratch: Path, megabytes: int, figures: Sequence[Figure]) -> Measured:
    """Times of the tasks of one compaction on Spark, and the rest from the figures."""
    source = scratch / "log-times"
    build_log(source, max(megabytes * 1024 // SEGMENT_ENTRIES, 16), 0.3, 1)
    times: list[float] = []

    class Noting:
        def run(self, tasks: Any, **given: Any) -> Any:
            self.began = time.perf_counter()
            outcomes = list(SparkExecutor(spark).run(tasks, **given))
            times.extend(outcome.seconds for outcome in outcomes if isinstance(outcome, RewriteResult))
            self.ended = time.perf_counter()
            return iter(outcomes)

    noting = Noting()
    began = time.perf_counter()
    seconds, _ = compact_copy(source, scratch, noting)
    assert began
    commit = max(seconds - (noting.ended - noting.began), 0.001) / len(times)
    shutil.rmtree(source)
    cost = {figure.figure: statistics.median(figure.values) for figure in figures}
    return Measured(tuple(times), cost["overhead.task"], cost["overhead.job"], cost["overhead.session"], commit)


def simulated(times: Measured, executors: int, shared: int) -> float:
    """Seconds for many tasks on so many executors of one core, `shared` tasks to a Spark task, commits beside them."""
    rng = random.Random(6)
    tasks = sorted(rng.choices(times.tasks, k=SIMULATED_TASKS), reverse=True)
    # Dealt out like cards, so that every Spark task gets some of the long ones.
    parts = -(-len(tasks) // shared)
    packed = [sum(tasks[place::parts]) for place in range(parts)]
    work = times.job + makespan(packed, executors, cost_seconds=times.task)
    # The driver commits one after the other; it cannot be faster than that, however many executors there are.
    return max(work, times.job + times.commit * len(tasks))


def simulation(times: Measured, plot: str | None) -> None:
    """Print the table, the partitioning it suggests and the sizes from which Spark pays; draw the plot."""
    alone = sum(random.Random(6).choices(times.tasks, k=SIMULATED_TASKS))
    rows, best = [], []
    for executors in EXECUTORS:
        seconds = {shared: simulated(times, executors, shared) for shared in SHARING}
        shared = min(seconds, key=seconds.__getitem__)
        best.append(alone / seconds[shared])
        rows.append({"executors": executors, "seconds, one task each": round(seconds[1], 2),
                     "seconds, best": round(seconds[shared], 2), "tasks_per_partition": shared,
                     "times as fast as one core": round(best[-1], 1)})
    print(Table.from_dicts(rows, title=f"{SIMULATED_TASKS:,} tasks like the measured ones (median "
                                       f"{statistics.median(times.tasks):.3f} s), simulated by list scheduling; "
                                       f"a commit takes {times.commit * 1e3:.1f} ms in the driver"))
    if plot:
        import matplotlib as mpl

        mpl.use("Agg")
        from matplotlib import pyplot

        figure, axes = pyplot.subplots(figsize=(7, 5))
        for shared in SHARING[::2]:
            axes.plot(EXECUTORS, [alone / simulated(times, executors, shared) for executors in EXECUTORS], marker="o",
                      label=f"{shared} tasks to a Spark task")
        axes.plot(EXECUTORS, EXECUTORS, linestyle=":", color="grey", label="as many times as executors")
        axes.set(xscale="log", yscale="log", xlabel="executors of one core", ylabel="times as fast as one core",
                 title="Rewrites on many executors, simulated from measured task times")
        axes.legend()
        figure.savefig(plot, dpi=120, bbox_inches="tight")


def break_even(figures: Sequence[Figure], times: Measured) -> None:
    """Print from which size on Spark is faster than this machine alone."""
    by_name = {figure.figure: figure for figure in figures}
    both = by_name["rewrite.raftlog.spark_over_local"]
    here, two = statistics.median(both.reference_values), statistics.median(both.values)
    rows = []
    for cores in (2, 4, 8, 16, 64):
        there = two * cores / 2
        for told, fixed in (("session up", times.job), ("session to be started", times.session + times.job)):
            pays = f"{fixed / (1 / here - 1 / there) / 1e3:,.2f} GB of live bytes" if there > here else "never"
            rows.append({"cores of the cluster": cores, "case": told, "Spark pays from": pays})
    print(Table.from_dicts(rows, title=f"from which size Spark pays: {here:,.0f} MB/s here, {two / 2:,.0f} MB/s a core "
                                       "there, disks and network aside"))


# ------------------------------------------------------------------------------------------------------------- main


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smaller data, about a minute")
    parser.add_argument("--json", metavar="FILE", help="write the figures as JSON")
    parser.add_argument("--plot", metavar="FILE", help="draw the simulation (PNG)")
    parser.add_argument("--folder", help="where to put the data; default a temporary folder")
    parser.add_argument("--runs", type=int, default=None, help="counted runs of each (default 5, quick 1)")
    options = parser.parse_args()
    quick: bool = options.quick
    runs = options.runs or (1 if quick else 5)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        scratch = Path(folder)
        spark = local_session("benchmark", cores=2)
        try:
            figures = [
                *overhead_figures(spark, runs),
                *raftlog_figures(spark, scratch, 384 if quick else 2048, runs),
                *blobstore_figures(spark, scratch, 64 if quick else 1024, runs),
                blocks_figure(spark, scratch, 80_000 if quick else 2_000_000, runs),
                *source_figures(spark, scratch, 32 if quick else 512, runs),
            ]
            times = measured(spark, scratch, 128 if quick else 1024, figures)
        finally:
            spark.stop()
    report(figures, options.json)
    break_even(figures, times)
    simulation(times, options.plot)


if __name__ == "__main__":
    main()
