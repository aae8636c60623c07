# SPDX-License-Identifier: Apache-2.0
"""How fast a blob store is compacted, against the same bytes copied plainly and against two peers.

    python benchmarks/blobstore.py [--quick] [--runs N] [--json FILE] [--folder FOLDER]

Blobs of 4 KiB to 1 MiB (log-uniform), 40 % of them deleted at random, 1 GiB in all (64 MiB with --quick). Each figure
measures ours and the reference in turn in one run. The peers come with `make peers`; without them their figures are
left out. `docs/benchmarks.md` has the last figures.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import statistics
import subprocess
import tempfile
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import attrs
from measure import Figure, alternate, report

from compactlib.blobstore import Blob, BlobStore, BlobStoreConfig, BlobView, CompactAll, RecordKind, StatsBased
from compactlib.blobstore.policy import SEGMENT_HEADER_BYTES, SegmentName, SegmentView, plan_for
from compactlib.budget import Budget
from compactlib.executors import LocalExecutor, ProcessExecutor
from compactlib.files import LocalFiles
from compactlib.rewrite import Executor

MIB = 1 << 20
DEAD_SHARE = 0.4
LEAST_BLOB, MOST_BLOB = 4096, MIB


@attrs.frozen
class Scale:
    """How much is measured.

    Attributes:
        total_bytes: of blobs, the dead ones included.
        segment_bytes: capacity of a segment, and of the peers' files where they have such.
        runs: pairs of runs.
        read_seconds: how long reads are timed.
    """

    total_bytes: int
    segment_bytes: int
    runs: int
    read_seconds: float

    def config(self) -> BlobStoreConfig:
        """Of the store that is measured: nothing limits the compaction, and a delete is in effect at once."""
        segments = 2 * self.total_bytes // self.segment_bytes + 4
        return BlobStoreConfig(
            capacity_bytes=segments * self.segment_bytes, segment_bytes=self.segment_bytes, durability="interval",
            sync_interval_seconds=3600.0, deleted_retention_seconds=0.0, journal_max_entries=0,
            compaction_bytes_per_second=None)


@attrs.frozen
class Data:
    """The same blobs for everybody: sizes and fates, contents cut from one piece of noise.

    Attributes:
        sizes: length of each blob.
        dead: which of them are deleted.
        noise: where contents come from.
    """

    sizes: list[int]
    dead: set[int]
    noise: bytes

    @classmethod
    def make(cls, total_bytes: int) -> Data:
        """Blobs of that many bytes together."""
        rng = random.Random(4)
        sizes: list[int] = []
        left = total_bytes
        while left > 0:
            size = int(LEAST_BLOB * (MOST_BLOB / LEAST_BLOB) ** rng.random())
            sizes.append(size)
            left -= size
        dead = {number for number in range(len(sizes)) if rng.random() < DEAD_SHARE}
        return cls(sizes, dead, rng.randbytes(MOST_BLOB + 65536))

    def content(self, number: int) -> bytes:
        start = number * 64 % 65536
        return self.noise[start:start + self.sizes[number]]

    @property
    def live_bytes(self) -> int:
        return sum(size for number, size in enumerate(self.sizes) if number not in self.dead)

    def live(self) -> list[int]:
        return [number for number in range(len(self.sizes)) if number not in self.dead]


def key_of(number: int) -> bytes:
    """The id of a blob."""
    return b"blob-%010d" % number


def build_store(folder: Path, data: Data, scale: Scale) -> None:
    """Put all blobs, delete the dead ones, and close the last segment, so that all segments may be compacted."""
    with BlobStore(folder, scale.config()) as store:
        for number in range(len(data.sizes)):
            store.put(key_of(number), data.content(number))
        for number in sorted(data.dead):
            store.delete(key_of(number))
        store.close_active_segment()


def fresh_copy(source: Path, work: Path) -> None:
    """A copy of a folder, on the disk and in the page cache."""
    shutil.rmtree(work, ignore_errors=True)
    subprocess.run(["cp", "-r", "--reflink=never", str(source), str(work)], check=True)
    os.sync()


def compact(store: BlobStore, executor: Executor | None = None) -> int:
    """One whole compaction with its decision; how many bytes it has copied. While a thread copies, others sync."""
    report = store.compact(policy=CompactAll(min_used_fraction=0.0), budget=Budget(),
                           executor=executor or LocalExecutor(3))
    assert not report.is_empty, report
    return report.copied_bytes


def timed_compaction(source: Path, work: Path, scale: Scale) -> float:
    """MB of live data per second of a whole compaction: statistics, plan, copy, commit, reclaim."""
    fresh_copy(source, work)
    with BlobStore(work, scale.config()) as store:
        began = time.perf_counter()
        copied = compact(store)
        seconds = time.perf_counter() - began
    return copied / 1e6 / seconds


def live_runs(source: Path, scale: Scale, data: Data) -> list[list[tuple[str, int, int]]]:
    """For each output segment the stretches of live bytes that go into it: file, offset, length."""
    dead = {key_of(number) for number in data.dead}
    outputs: list[list[tuple[str, int, int]]] = [[]]
    room = scale.segment_bytes
    with BlobStore(source, scale.config()) as store:
        snapshot = vars(store)["_log"].snapshot()
        for segment in snapshot.segments:
            path = segment.name.log_file
            for entry in segment.entries():
                if entry.kind == RecordKind.PUT and entry.id in dead:
                    continue
                if entry.size > room:
                    outputs.append([])
                    room = scale.segment_bytes
                room -= entry.size
                last = outputs[-1][-1] if outputs[-1] else None
                if last and last[0] == path and last[1] + last[2] == entry.offset:
                    outputs[-1][-1] = (path, last[1], last[2] + entry.size)
                else:
                    outputs[-1].append((path, entry.offset, entry.size))
    return outputs


def timed_plain_copy(source: Path, work: Path, outputs: list[list[tuple[str, int, int]]]) -> float:
    """MB per second of copying the same live stretches in the kernel, with one fsync per output segment."""
    fresh_copy(source, work)
    moved = 0
    began = time.perf_counter()
    for number, stretches in enumerate(outputs):
        target = os.open(work / f"{number}.plain", os.O_CREAT | os.O_EXCL | os.O_RDWR)
        at, path, descriptor = 0, "", -1
        for file, offset, length in stretches:
            if file != path:
                if descriptor >= 0:
                    os.close(descriptor)
                path, descriptor = file, os.open(work / file, os.O_RDONLY)
            end = at + length
            while at < end:
                at += os.copy_file_range(descriptor, target, end - at, offset + length - (end - at), at)
        os.close(descriptor)
        os.fsync(target)
        os.close(target)
        moved += at
    seconds = time.perf_counter() - began
    return moved / 1e6 / seconds


class OnCpu:
    """Notes the CPU seconds of each run, those of all threads and of the system on their behalf."""

    def __init__(self, measure: Callable[[], float]) -> None:
        self._measure = measure
        self.seconds: list[float] = []

    def run(self) -> float:
        began = time.process_time()
        value = self._measure()
        self.seconds.append(time.process_time() - began)
        return value


# ------------------------------------------------------------------------------------------------------------- peers

def rocks_options(scale: Scale) -> Any:
    """BlobDB with blobs in files of the segments' size, and a garbage collection that takes every file."""
    import rocksdict
    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_enable_blob_files(True)
    options.set_min_blob_size(0)
    options.set_blob_file_size(scale.segment_bytes)
    options.set_enable_blob_gc(True)
    options.set_blob_gc_age_cutoff(1.0)
    options.set_blob_gc_force_threshold(0.0)
    options.set_disable_auto_compactions(True)
    return options


def build_rocks(folder: Path, data: Data, scale: Scale) -> None:
    """The same blobs in a RocksDB with BlobDB."""
    import rocksdict
    database = rocksdict.Rdict(str(folder), options=rocks_options(scale))
    for number in range(len(data.sizes)):
        database[key_of(number)] = data.content(number)
    for number in data.dead:
        del database[key_of(number)]
    database.flush()
    database.close()


def timed_rocks(source: Path, work: Path, scale: Scale, data: Data) -> float:
    """MB of live data per second of a full compaction with garbage collection of every blob file."""
    import rocksdict
    fresh_copy(source, work)
    before = sum(path.stat().st_size for path in work.glob("*.blob"))
    database = rocksdict.Rdict(str(work), options=rocks_options(scale))
    choice = rocksdict.CompactOptions()
    choice.set_bottommost_level_compaction(rocksdict.BottommostLevelCompaction.force())
    began = time.perf_counter()
    database.compact_range(None, None, choice)
    seconds = time.perf_counter() - began
    database.close()
    after = sum(path.stat().st_size for path in work.glob("*.blob"))
    assert after < before * 0.8, (before, after)
    return data.live_bytes / 1e6 / seconds


def build_semidbm(folder: Path, data: Data) -> None:
    """The same blobs in a semidbm."""
    import semidbm
    database = semidbm.open(str(folder), "c")
    for number in range(len(data.sizes)):
        database[key_of(number)] = data.content(number)
    for number in data.dead:
        del database[key_of(number)]
    database.close(compact=False)


def timed_semidbm(source: Path, work: Path, data: Data) -> float:
    """MB of live data per second of its compaction, which copies everything into one file and syncs that once.

    Made equal to ours: it checks checksums, and the folder is synced, without which its rename may be lost.
    """
    import semidbm
    fresh_copy(source, work)
    database = semidbm.open(str(work), "c", verify_checksums=True)
    began = time.perf_counter()
    database.compact()
    LocalFiles().sync_folder(work)
    seconds = time.perf_counter() - began
    database.close()
    return data.live_bytes / 1e6 / seconds


CYCLE_BLOBS, CYCLE_BYTES, CYCLE_BATCH = 20_000, 4096, 100


def cycle(put: Callable[[bytes, bytes], object], sync: Callable[[], object], get: Callable[[bytes], object]) -> float:
    """Cycles a second: blobs that are put, synced in batches, and got, each once and in random order."""
    rng = random.Random(8)
    content = rng.randbytes(CYCLE_BYTES)
    order = rng.sample(range(CYCLE_BLOBS), CYCLE_BLOBS)
    began = time.perf_counter()
    for number in range(CYCLE_BLOBS):
        put(key_of(number), content)
        if number % CYCLE_BATCH == CYCLE_BATCH - 1:
            sync()
    for number in order:
        get(key_of(number))
    return CYCLE_BLOBS / (time.perf_counter() - began)


def blob_cycle(folder: Path, scale: Scale) -> float:
    """Ours."""
    shutil.rmtree(folder, ignore_errors=True)
    with BlobStore(folder, scale.config()) as store:
        return cycle(store.put, store.flush, store.get)


def semidbm_cycle(folder: Path) -> float:
    """Return the same figure of semidbm, which is set to check a checksum in each get, as ours do."""
    import semidbm
    shutil.rmtree(folder, ignore_errors=True)
    database = semidbm.open(str(folder), "c", verify_checksums=True)
    try:
        return cycle(database.__setitem__, database.sync, database.__getitem__)
    finally:
        database.close(compact=False)


# ---------------------------------------------------------------------------------------------- latency, memory, plans

def read_latencies(store: BlobStore, live: list[int], until: Callable[[], bool]) -> list[float]:
    """Milliseconds of random gets of live blobs, one reader."""
    rng = random.Random(5)
    found = []
    while not until():
        key = key_of(rng.choice(live))
        began = time.perf_counter()
        answer = store.get(key)
        found.append((time.perf_counter() - began) * 1000)
        assert isinstance(answer, Blob)
    return found


def p99(latencies: list[float]) -> float:
    """The 99th percentile."""
    return statistics.quantiles(latencies, n=100)[98]


def latency_pair(source: Path, work: Path, scale: Scale, data: Data, executor: Executor) -> tuple[float, float, float]:
    """p99 of a get in ms, while a compaction runs and without; and how fast that compaction was, in MB/s."""
    fresh_copy(source, work)
    live = data.live()
    with BlobStore(work, scale.config()) as store:
        ends = time.perf_counter() + scale.read_seconds
        without = read_latencies(store, live, lambda: time.perf_counter() > ends)
        done = threading.Event()
        rates: list[float] = []

        def work_through() -> None:
            began = time.perf_counter()
            copied = compact(store, executor)
            rates.append(copied / 1e6 / (time.perf_counter() - began))
            done.set()

        thread = threading.Thread(target=work_through)
        thread.start()
        during = read_latencies(store, live, lambda: done.is_set() or not thread.is_alive())
        thread.join()
    print(f"  gets: {len(without)} without, {len(during)} during; p50 {statistics.median(without):.3f} and "
          f"{statistics.median(during):.3f} ms")
    return p99(during), p99(without), rates[0]


def index_bytes_per_blob(source: Path, work: Path, scale: Scale) -> float:
    """Memory that opening the store takes, divided by its blobs."""
    fresh_copy(source, work)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    with BlobStore(work, scale.config()) as store:
        taken = tracemalloc.get_traced_memory()[0] - before
        status = store.status()
        snapshot = vars(store)["_log"].snapshot()
        blobs = sum(1 for segment in snapshot.segments
                    for entry in segment.entries() if entry.kind == RecordKind.PUT)
    tracemalloc.stop()
    print(f"  {blobs} blobs in {status.records} records: {taken} bytes for the open store")
    return taken / blobs


def small_blobs(scratch: Path, count: int) -> tuple[float, float]:
    """Memory of the index per blob of a store of many small blobs, one segment of it open; and its gets a second."""
    config = BlobStoreConfig(capacity_bytes=1 << 28, segment_bytes=1 << 24, durability="interval",
                             sync_interval_seconds=3600.0)
    rng = random.Random(6)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    with BlobStore(scratch / "small", config) as store:
        for number in range(count):
            store.put(key_of(number), b"x" * 64)
        taken = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
        keys = [key_of(rng.randrange(count)) for _ in range(20_000)]
        began = time.perf_counter()
        for key in keys:
            store.get(key)
        rate = len(keys) / (time.perf_counter() - began)
    shutil.rmtree(scratch / "small")
    return taken / count, rate


def decision_seconds(segments: int) -> float:
    """How long the default policy thinks about that many segments."""
    rng = random.Random(7)
    size = 1 << 30
    now = time.time()
    view = BlobView(
        store="bench", capacity_bytes=segments * size, segment_bytes=size, header_bytes=SEGMENT_HEADER_BYTES,
        max_blob_bytes=4 * MIB, used_bytes=segments * size, reference_time=now, retention_seconds=0.0,
        last_full_at=now,
        segments=tuple(SegmentView(name=SegmentName(number, 0), used_bytes=size - SEGMENT_HEADER_BYTES,
                                   valid_bytes=rng.randrange(size), eligible=number < segments - 1,
                                   last_modified=now - rng.random() * 1e6) for number in range(segments)))
    policy = StatsBased()
    began = time.perf_counter()
    plan = plan_for(view, policy, now)
    seconds = time.perf_counter() - began
    assert not plan.is_empty
    return seconds


# -------------------------------------------------------------------------------------------------------------- main

def compaction_figures(scale: Scale, scratch: Path, data: Data) -> Iterator[Figure]:
    """Ours against the plain copy and the peers."""
    source, work = scratch / "source", scratch / "work"
    outputs = live_runs(source, scale, data)
    plain = partial(timed_plain_copy, source, work, outputs)
    reference = "copy_file_range of the live bytes, one fsync per segment"
    ours = partial(timed_compaction, source, work, scale)
    cpu, plain_cpu = OnCpu(ours), OnCpu(plain)
    values, others = alternate(scale.runs, cpu.run, plain_cpu.run)
    yield Figure(figure="compaction", unit="MB/s", values=tuple(values), reference_values=tuple(others),
                 reference=reference, goal=">= 0.8")
    yield Figure(figure="compaction: CPU", unit="s of CPU", values=tuple(cpu.seconds[1:]),
                 reference_values=tuple(plain_cpu.seconds[1:]), reference=reference, goal="printed")
    with nullcontext(ProcessExecutor(2)) as processes:
        executors: dict[str, Executor] = {"": LocalExecutor(3), " in processes": processes}
        for name, executor in executors.items():
            # The first one starts the workers, and does not count, as of all figures.
            beside = [latency_pair(source, work, scale, data, executor) for _ in range(scale.runs + 1)][1:]
            yield Figure(figure=f"get p99 during compaction{name}", unit="ms", goal="<= 3",
                         values=tuple(each[0] for each in beside), reference="the same store, idle",
                         reference_values=tuple(each[1] for each in beside))
            yield Figure(figure=f"compaction{name} during gets", unit="MB/s", goal=">= 0.75",
                         values=tuple(each[2] for each in beside), reference=reference,
                         reference_values=tuple(plain() for _ in beside))
    yield from peer_figures(scale, scratch, data, ours)


def peer_figures(scale: Scale, scratch: Path, data: Data, ours: Callable[[], float]) -> Iterator[Figure]:
    """Measure the same in two other stores, if they are installed."""
    work = scratch / "work"
    try:
        import rocksdict  # noqa: F401
        import semidbm  # noqa: F401
    except ImportError as missing:
        print(f"  {missing.name} is not installed (make peers): the peers' figures are left out")
        return
    build_rocks(scratch / "rocks", data, scale)
    values, others = alternate(scale.runs, ours, partial(timed_rocks, scratch / "rocks", work, scale, data))
    yield Figure(figure="compaction vs BlobDB", unit="MB/s", values=tuple(values), reference_values=tuple(others),
                 reference="RocksDB BlobDB garbage collection (rocksdict)", goal=">= 3")
    shutil.rmtree(scratch / "rocks")
    build_semidbm(scratch / "semidbm", data)
    values, others = alternate(scale.runs, ours, partial(timed_semidbm, scratch / "semidbm", work, data))
    yield Figure(figure="compaction vs semidbm", unit="MB/s", values=tuple(values),
                 reference_values=tuple(others), reference="semidbm compact, checked and synced", goal=">= 1")
    shutil.rmtree(scratch / "semidbm")
    values, others = alternate(scale.runs, partial(blob_cycle, scratch / "cycle", scale),
                               partial(semidbm_cycle, scratch / "cycle"))
    yield Figure(figure="puts and gets vs semidbm", unit="cycles/s", values=tuple(values),
                 reference_values=tuple(others), goal="printed",
                 reference="semidbm: the same puts, a sync for each 100, and each got once")


def figures(scale: Scale, scratch: Path) -> Iterator[Figure]:
    """Each figure as soon as it is there."""
    data = Data.make(scale.total_bytes)
    source, work = scratch / "source", scratch / "work"
    print(f"{len(data.sizes)} blobs, {sum(data.sizes) / 1e6:.0f} MB, of which {data.live_bytes / 1e6:.0f} MB live")
    build_store(source, data, scale)
    yield from compaction_figures(scale, scratch, data)
    per_blob = tuple(index_bytes_per_blob(source, work, scale) for _ in range(scale.runs))
    yield Figure(figure="index memory per blob", unit="bytes", values=per_blob, reference="limit",
                 reference_values=(300.0,) * len(per_blob), goal="<= 1")
    small, rate = small_blobs(scratch, 100_000)
    print(f"  100,000 small blobs: {rate:,.0f} gets a second")
    yield Figure(figure="index memory per small blob", unit="bytes", values=(small,), reference="limit",
                 reference_values=(300.0,), goal="<= 1")
    seconds = tuple(decision_seconds(10_000) for _ in range(scale.runs))
    yield Figure(figure="decision over 10,000 segments", unit="s", values=seconds, reference="limit",
                 reference_values=(1.0,) * len(seconds), goal="<= 1")


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="less data, under a minute")
    parser.add_argument("--runs", type=int, help="pairs of runs")
    parser.add_argument("--json", help="write the figures to this file")
    parser.add_argument("--folder", help="where to work; a folder for temporary files if not given")
    chosen = parser.parse_args()
    scale = Scale(64 * MIB, 8 * MIB, 3, 2.0) if chosen.quick else Scale(1024 * MIB, 64 * MIB, 5, 5.0)
    if chosen.runs:
        scale = attrs.evolve(scale, runs=chosen.runs)
    with tempfile.TemporaryDirectory(prefix="compactlib-bench-", dir=chosen.folder) as scratch:
        report(list(figures(scale, Path(scratch))), chosen.json)


if __name__ == "__main__":
    main()
