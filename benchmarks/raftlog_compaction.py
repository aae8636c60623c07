# SPDX-License-Identifier: Apache-2.0
"""How fast a Raft log is compacted and read, against the same bytes moved plainly.

    python benchmarks/raftlog_compaction.py [--quick] [--spark] [--json FILE] [--folder FOLDER]

Each figure measures ours and the reference in turn in one run. `docs/benchmarks.md` has the last figures.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from pathlib import Path

import attrs
from measure import Figure, alternate, report

from compactlib.budget import Budget
from compactlib.executors import Executor, LocalExecutor, RewriteTask
from compactlib.indexset import IndexSet
from compactlib.observer import Observer
from compactlib.raftlog import LogCompactionReport, LogOptions, SegmentLimits, SegmentLog
from compactlib.raftlog.compaction import rewrite
from compactlib.raftlog.names import segment_name
from compactlib.rewrite import RewriteOutcome

PAYLOAD_BYTES = 1024
SEGMENT_ENTRIES = 4096


def one_size(rng: random.Random) -> int:
    """Payloads of 1 KiB."""
    return PAYLOAD_BYTES


def mixed_sizes(rng: random.Random) -> int:
    """Payloads of 100 bytes to 16 KiB, log-uniform."""
    return int(100 * (16_384 / 100) ** rng.random())


def build_log(folder: Path, segments: int, live_share: float, run: int, entries: int = SEGMENT_ENTRIES,
              size: Callable[[random.Random], int] = one_size) -> IndexSet:
    """Write `segments` segments of `entries` and a newest one, and record a snapshot; returns the live set."""
    rng = random.Random(1)
    last = segments * entries
    blocks = [block for block in range(last // run) if rng.random() < live_share]
    live = IndexSet.from_runs((block * run + 1, block * run + run) for block in blocks)
    noise = rng.randbytes(16_384 + 4096)
    options = LogOptions(limits=SegmentLimits(max_entries=entries, max_bytes=1 << 30))
    with SegmentLog(folder, options) as log:
        for index in range(1, last + 2):
            start = index % 4096
            log.append([(index, 1, noise[start:start + size(rng)])])
        log.snapshot(last, live)
    return live


@attrs.frozen
class Goals:
    """The goals of one log's figures."""

    rewrite: str
    major: str
    without_numpy: str = ""


class TimedExecutor:
    """Runs all tasks before it hands out their outcomes, and notes how long that took: the rewrite step alone.

    An executor's iterator ends when all its threads have.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self.seconds = self.cpu_seconds = 0.0

    def run(self, tasks: Iterable[RewriteTask], *, budget: Budget | None = None,
            observer: Observer | None = None) -> Iterator[RewriteOutcome]:
        began, cpu_began = time.perf_counter(), time.process_time()
        outcomes = list(self._executor.run(tasks, budget=budget, observer=observer))
        self.seconds, self.cpu_seconds = time.perf_counter() - began, time.process_time() - cpu_began
        return iter(outcomes)


def local() -> LocalExecutor:
    """The local executor as it is measured: one thread more than two cores, since one waits for the disk."""
    return LocalExecutor(workers=3)


def compact_copy(source: Path, scratch: Path, executor: Executor,
                 entries: int = SEGMENT_ENTRIES) -> tuple[float, LogCompactionReport]:
    """Seconds of one whole major compaction (statistics, plan, rewrite, commit, reclaim) of a copy of `source`."""
    work = scratch / "work"
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(source, work)
    os.sync()
    with SegmentLog(work, LogOptions(limits=SegmentLimits(max_entries=entries, max_bytes=1 << 30))) as log:
        began = time.perf_counter()
        done = log.compact(policy=log.policy, executor=executor)
        seconds = time.perf_counter() - began
    return seconds, done


def plain_copy(live_bytes: Path, scratch: Path, sizes: list[int]) -> float:
    """Seconds to copy the same live bytes with large reads and writes and one fsync per output file."""
    began = time.perf_counter()
    with open(live_bytes, "rb", buffering=0) as source:
        for number, size in enumerate(sizes):
            with open(scratch / f"plain-{number}", "wb", buffering=0) as target:
                while size:
                    chunk = source.read(min(size, 1 << 20))
                    target.write(chunk)
                    size -= len(chunk)
                os.fsync(target.fileno())
    seconds = time.perf_counter() - began
    for number in range(len(sizes)):
        (scratch / f"plain-{number}").unlink()
    return seconds


def replacing_copy(live_bytes: Path, source: Path, scratch: Path, groups: list[tuple[list[Path], int]]) -> float:
    """Seconds of a bare loop with the system calls of a major: the same bytes copied, synced, named and committed, and
    the sources freed, each at the same time as the others where the order allows it. No plan, no lookup, no check.

    Args:
        live_bytes: the file to copy.
        source: the log; a copy of it loses the segments.
        scratch: folder of that copy.
        groups: for each file to write, the names of the segments that it replaces, and its size in bytes.
    """
    work = scratch / "replaced"
    shutil.copytree(source, work)
    os.sync()
    began = time.perf_counter()
    (work / "private").mkdir()
    turn, sizes = threading.Lock(), [size for _, size in groups]

    def copied(number: int) -> int:
        out = os.open(work / "private" / str(number), os.O_CREAT | os.O_EXCL | os.O_RDWR)
        with turn:
            start, done = sum(sizes[:number]), 0
            while done < sizes[number]:
                done += os.pwrite(out, os.pread(descriptor, min(sizes[number] - done, 1 << 20), start + done), done)
        os.fsync(out)
        os.close(out)
        return number

    def commit(number: int) -> None:
        leader, *others = members = [work / name for name in groups[number][0]]
        removed = [os.open(member, os.O_RDONLY) for member in members]
        compacting, swap = work / f"{number}.compacting", work / "swap"
        os.rename(work / "private" / str(number), compacting)
        os.link(compacting, swap)
        os.rename(swap, leader)
        os.fsync(folder)
        for other in others:
            os.symlink(leader.name, swap)
            os.rename(swap, other)
        for each in removed:
            freeing.submit(os.close, each)

    descriptor, folder = os.open(live_bytes, os.O_RDONLY), os.open(work, os.O_RDONLY)
    with ThreadPoolExecutor(2) as freeing, ThreadPoolExecutor(3) as copying:
        for done in as_completed([copying.submit(copied, number) for number in range(len(groups))]):
            commit(done.result())
    (work / "private").rmdir()
    os.fsync(folder)
    for path in work.glob("*.compacting"):
        path.unlink()
    seconds = time.perf_counter() - began
    os.close(descriptor)
    os.close(folder)
    shutil.rmtree(work)
    return seconds


@contextlib.contextmanager
def without_numpy() -> Iterator[None]:
    """Copy as where NumPy is not installed."""
    fastest, rewrite._numpy = rewrite._numpy, lambda: None
    try:
        yield
    finally:
        rewrite._numpy = fastest


def rewrite_figures(name: str, scratch: Path, segments: int, run: int, runs: int, goals: Goals, *,
                    entries: int = SEGMENT_ENTRIES, size: Callable[[random.Random], int] = one_size,
                    ) -> Iterator[Figure]:
    """The rewrite step of a major, with NumPy and without, and the whole major, against a plain copy of its live bytes.

    The whole major removes its sources too; so it is also compared with a bare loop that does, and that loop with the
    copy, which shows the limit of the disk.
    The CPU seconds are those of all threads of the process, and of the system for them.
    """
    source = scratch / f"log-{name}"
    build_log(source, segments, 0.3, run, entries, size)
    _, sample = compact_copy(source, scratch, local(), entries)
    live = {group.numbers: group.output.live_bytes for group in sample.plan.groups}
    sizes = [live[group.members] for group in sample.done]
    groups = [([Path(segment_name(number)) for number in group.members], size)
              for group, size in zip(sample.done, sizes, strict=True)]
    megabytes = sum(sizes) / 1e6
    live_bytes = scratch / "live-bytes"
    live_bytes.write_bytes(os.urandom(sum(sizes)))  # `randbytes` makes at most 256 MiB
    cpu: list[float] = []
    plain_cpu: list[float] = []

    def rewritten() -> float:
        timed = TimedExecutor(local())
        compact_copy(source, scratch, timed, entries)
        cpu.append(timed.cpu_seconds)
        return megabytes / timed.seconds

    def major() -> float:
        return megabytes / compact_copy(source, scratch, local(), entries)[0]

    def copied() -> float:
        began = time.process_time()
        seconds = plain_copy(live_bytes, scratch, sizes)
        plain_cpu.append(time.process_time() - began)
        return megabytes / seconds

    def replaced() -> float:
        return megabytes / replacing_copy(live_bytes, source, scratch, groups)

    reference = "plain copy of the live bytes, one fsync per file"
    measured = [("rewrite", rewritten, goals.rewrite), ("major", major, goals.major),
                ("rewrite_without_numpy", rewritten, goals.without_numpy)]
    for figure, ours, goal in measured:
        if not goal:
            continue
        cpu.clear()
        plain_cpu.clear()
        with without_numpy() if ours is rewritten and goal is goals.without_numpy else contextlib.nullcontext():
            values, plain = alternate(runs, ours, copied)
        yield Figure(figure=f"{figure}.{name}", unit="MB/s of live bytes", values=tuple(values), reference=reference,
                     reference_values=tuple(plain), goal=goal)
        if cpu:
            # The first of each has warmed up.
            yield Figure(figure=f"{figure}_cpu.{name}", unit="s of CPU", values=tuple(cpu[1:]), reference=reference,
                         reference_values=tuple(plain_cpu[1:]), goal="printed")
    bare = "a bare loop with the system calls of a major"
    values, replacing = alternate(runs, major, replaced)
    yield Figure(figure=f"major_beside_bare.{name}", unit="MB/s of live bytes", values=tuple(values), reference=bare,
                 reference_values=tuple(replacing), goal="printed")
    values, plain = alternate(runs, replaced, copied)
    yield Figure(figure=f"bare.{name}", unit="MB/s of live bytes", values=tuple(values), reference=reference,
                 reference_values=tuple(plain), goal="printed")
    shutil.rmtree(source)
    live_bytes.unlink()


def point_read_figure(scratch: Path, segments: int, reads: int, runs: int) -> Figure:
    """Random reads of single entries against `pread` and `crc32` in a bare loop."""
    source = scratch / "log-reads"
    build_log(source, segments, 0.3, 1)
    last = segments * SEGMENT_ENTRIES
    rng = random.Random(3)
    flat = scratch / "flat"
    flat.write_bytes(rng.randbytes(last * PAYLOAD_BYTES))

    def limit() -> float:
        descriptor = os.open(flat, os.O_RDONLY)
        offsets = [rng.randrange(last) * PAYLOAD_BYTES for _ in range(reads)]
        pread, crc32 = os.pread, zlib.crc32
        began = time.perf_counter()
        for offset in offsets:
            crc32(pread(descriptor, PAYLOAD_BYTES, offset))
        seconds = time.perf_counter() - began
        os.close(descriptor)
        return reads / seconds

    with SegmentLog(source) as log:
        live = log.state.live.members()

        def ours() -> float:
            indexes = [rng.choice(live) for _ in range(reads)]
            read = log.read
            began = time.perf_counter()
            for index in indexes:
                read(index)
            return reads / (time.perf_counter() - began)

        values, limits = alternate(runs, ours, limit)
    shutil.rmtree(source)
    flat.unlink()
    return Figure(figure="point_reads", unit="reads/s", values=tuple(values), reference="pread + crc32 in a bare loop",
                  reference_values=tuple(limits), goal=">= 0.4 and >= 60,000 reads/s")


def scaling_figure(scratch: Path, segments: int, runs: int) -> Figure:
    """Seconds for twice as many segments, over seconds for `segments`: enough for 6 outputs and 11, at a share of 0.3.

    4 segments make 2 outputs and 8 make 3, which would be 1.5 times the work.
    """
    small, large = scratch / "log-small", scratch / "log-large"
    build_log(small, segments, 0.3, 1)
    build_log(large, 2 * segments, 0.3, 1)
    values, references = alternate(runs, lambda: compact_copy(large, scratch, local())[0],
                                   lambda: compact_copy(small, scratch, local())[0])
    shutil.rmtree(small)
    shutil.rmtree(large)
    return Figure(figure="scaling.double_segments", unit="s", values=tuple(values), reference=f"{segments} segments",
                  reference_values=tuple(references), goal="<= 2.3")  # linear, and a little; below 2 is better


MEMORY_PROBE = """
import re, sys
from compactlib.raftlog import SegmentLog
def peak():  # not getrusage: its figure is inherited from the process that started this one
    return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1024
start = peak()
with SegmentLog(sys.argv[1]) as log:
    log.compact(policy=log.policy)
print(peak() - start)
"""


def memory_figure(scratch: Path, small: int, large: int, runs: int) -> Figure:
    """Peak memory above start of a compaction, of a large log and of a small one."""
    def peak(segments: int) -> float:
        work = scratch / "work"
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(scratch / f"log-{segments}", work)
        shown = subprocess.run([sys.executable, "-c", MEMORY_PROBE, str(work)], check=True, capture_output=True)
        return float(shown.stdout)

    for segments in (small, large):
        build_log(scratch / f"log-{segments}", segments, 0.3, 1)
    values, references = alternate(runs, lambda: peak(large), lambda: peak(small))
    for segments in (small, large):
        shutil.rmtree(scratch / f"log-{segments}")
    return Figure(figure="memory.peak_above_start", unit="MiB", values=tuple(values),
                  reference=f"{small} segments (ours: {large})", reference_values=tuple(references),
                  goal="<= 200 MiB, flat")


def spark_figures(scratch: Path, megabytes: int, runs: int) -> Iterator[Figure]:
    """The Spark executor on two local cores against the local executor, whole majors, in MB/s of source.

    Once with segments of 64 MiB, one Spark task for each group; once with segments of 4 MiB, 16 groups sharing one.
    """
    from local_spark import spark_session

    from compactlib.spark import SparkExecutor

    spark = spark_session("raftlog-benchmark", cores=2)
    try:
        for name, entries, executor in (
                ("spark.local2", 16 * SEGMENT_ENTRIES, SparkExecutor(spark)),
                ("spark.local2_small_segments", SEGMENT_ENTRIES,
                 SparkExecutor(spark, tasks_per_partition=16))):
            source = scratch / "log-spark"
            build_log(source, megabytes * 1024 // entries, 0.3, 1, entries)
            rate = partial(_source_rate, source, scratch, megabytes * 1024 * PAYLOAD_BYTES / 1e6, entries)
            values, references = alternate(runs, partial(rate, executor), partial(rate, local()))
            shutil.rmtree(source)
            yield Figure(figure=name, unit="MB/s of source", values=tuple(values),
                         reference="LocalExecutor(workers=3)", reference_values=tuple(references), goal=">= 0.8")
    finally:
        spark.stop()


def _source_rate(source: Path, scratch: Path, megabytes: float, entries: int, executor: Executor) -> float:
    return megabytes / compact_copy(source, scratch, executor, entries)[0]


def figures(scratch: Path, quick: bool, spark: bool, runs: int) -> Iterator[Figure]:
    segments = 4 if quick else 16
    at_random, in_runs = Goals(">= 0.65", ">= 0.5", ">= 0.45"), Goals(">= 0.75", ">= 0.6", ">= 0.55")
    yield from rewrite_figures("random_30", scratch, segments, 1, runs, at_random)
    yield from rewrite_figures("runs_of_64_30", scratch, segments, 64, runs, in_runs)
    mixed = partial(rewrite_figures, entries=1300, size=mixed_sizes)
    yield from mixed("mixed_random_30", scratch, segments, 1, runs, Goals(">= 0.5", "printed"))
    yield from mixed("mixed_runs_of_64_30", scratch, segments, 64, runs, Goals(">= 0.7", "printed"))
    if not quick:
        # 1 GiB, of which the page cache holds all.
        yield from rewrite_figures("random_30_of_1_gib", scratch, 256, 1, runs, at_random)
        yield from rewrite_figures("runs_of_64_30_of_1_gib", scratch, 256, 64, runs, in_runs)
    yield point_read_figure(scratch, segments, 20_000 if quick else 200_000, runs)
    yield scaling_figure(scratch, 16, runs)
    yield memory_figure(scratch, segments, 4 * segments, 1 if quick else 3)
    if spark:
        yield from spark_figures(scratch, 256 if quick else 4096, runs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smaller data, under a minute")
    parser.add_argument("--spark", action="store_true", help="also the Spark executor (4 GiB of source; needs Java)")
    parser.add_argument("--json", metavar="FILE", help="write the figures as JSON")
    parser.add_argument("--folder", help="where to put the data; default a temporary folder")
    parser.add_argument("--runs", type=int, default=5, help="counted runs of each (default 5)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as scratch:
        report(list(figures(Path(scratch), options.quick, options.spark, options.runs)), options.json)


if __name__ == "__main__":
    main()
