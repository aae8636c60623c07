# SPDX-License-Identifier: Apache-2.0
"""How the CPU time of each step grows with the number of segments, entries, stores, jobs, branches and versions.

    python benchmarks/growth.py [--quick] [--only NAME ...] [--json FILE] [--folder FOLDER]

Each step runs at n, 4n and 16n, in a folder in memory, where a sync costs next to nothing; the least of some runs
counts. What grows as n log n keeps `time / (n log n)`: from 4n to 16n that may rise by a quarter. Where the memory of a
step is promised to be flat, the peak of what Python holds for it may rise by a quarter, too. Above it the exit code
is 1.
"""

from __future__ import annotations

import argparse
import gc
import math
import os
import shutil
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
from measure import Figure, report

from compactlib.blobstore import BlobStore, BlobStoreConfig, CompactAll, CostBenefit
from compactlib.budget import Budget
from compactlib.catalog import CatalogService, HybridClock, PutObject, Schema, UpdateLog
from compactlib.catalog.check import reclaim, recover_history
from compactlib.clock import SystemClock
from compactlib.commandlog import Command, KVLog
from compactlib.indexset import IndexSet
from compactlib.kv import MemoryStore, SnapshotStore, SqliteStore
from compactlib.objects import LocalObjects, MemoryObjects
from compactlib.raftlog import LogOptions, RaftLogStore, SeedPolicy, SegmentLimits, SegmentLog, StoreOptions
from compactlib.report import Table
from compactlib.scheduler import (
    AddBlocks,
    BlockMeta,
    CompactedBlocks,
    JobStatus,
    NoOutput,
    PollRequest,
    Scheduler,
    SchedulerConfig,
    SchedulerMachine,
    StatusUpdate,
)
from compactlib.staging import Branch, CommittedRanges, Repository, SplitRule, StagingOptions

MOST_RISE = 1.25
_IN_MEMORY = "/dev/shm"


class Stopwatch:
    """Counts the CPU seconds of this process, its threads included, inside `with watch:`; or the peak of its memory.

    Args:
        traced: measure memory, which makes the time useless.
    """

    def __init__(self, *, traced: bool = False) -> None:
        self.traced = traced
        self.seconds = 0.0
        self.peak = 0

    def __enter__(self) -> Stopwatch:
        # Earlier objects are no part of the step: the collector of cycles skips them.
        gc.collect()
        gc.freeze()
        if self.traced:
            tracemalloc.start()
        self._began = time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds += time.process_time() - self._began
        if self.traced:
            self.peak = max(self.peak, tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
        gc.unfreeze()


Step = Callable[[int, Path, Stopwatch], None]


def _require_done(done: Any) -> None:
    if done.is_empty:
        raise SystemExit(f"nothing was measured: {done}")


@attrs.frozen
class Growth:
    """One step at three sizes.

    Attributes:
        step: its name.
        unit: what n counts.
        sizes: n, 4n, 16n.
        seconds: CPU time of each.
        peaks: bytes of Python at 4n and 16n, where they are promised to be the same.
    """

    step: str
    unit: str
    sizes: tuple[int, ...]
    seconds: tuple[float, ...]
    peaks: tuple[int, int] | None

    @property
    def rise(self) -> float:
        """`time / (n log n)` at 16n over that at 4n."""
        (_, middle, most), (_, before, after) = self.sizes, self.seconds
        return (after / (most * math.log(most))) / (before / (middle * math.log(middle)))

    @property
    def peak_rise(self) -> float:
        """The peak of memory at 16n over that at 4n; 1 where nothing is promised."""
        return 1.0 if self.peaks is None else self.peaks[1] / self.peaks[0]

    @property
    def is_kept(self) -> bool:
        """Whether neither rises by more than a quarter."""
        return max(self.rise, self.peak_rise) <= MOST_RISE

    def row(self) -> dict[str, object]:
        """One row of the table."""
        return {"step": self.step, "n": f"{self.sizes[0]:,} {self.unit}",
                **{f"{times}n ms": round(seconds * 1000, 1) for times, seconds in zip((1, 4, 16), self.seconds,
                                                                                      strict=True)},
                "rise": round(self.rise, 2), "MB": None if self.peaks is None else round(self.peaks[1] / 1e6, 1),
                "its rise": None if self.peaks is None else round(self.peak_rise, 2), "kept": self.is_kept}


# ------------------------------------------------------------------------------------------------------------ raft log

_OPTIONS = LogOptions(limits=SegmentLimits(max_entries=8), keep_links_seconds=0.0)
_ENTRIES = 8


@contextmanager
def _log_of(segments: int, folder: Path) -> Iterator[SegmentLog]:
    with SegmentLog(folder / "log", _OPTIONS) as log:
        log.append((index, 1, b"x" * 32) for index in range(1, _ENTRIES * segments + 1))
        log.sync()
        yield log


def log_append(n: int, folder: Path, watch: Stopwatch) -> None:
    with watch, _log_of(n, folder):
        pass


def log_major(n: int, folder: Path, watch: Stopwatch) -> None:
    with _log_of(n, folder) as log:
        log.snapshot(_ENTRIES * n - 1, range(1, _ENTRIES * n, 3))
        with watch:
            _require_done(log.compact(policy=SeedPolicy()))


def log_plan(n: int, folder: Path, watch: Stopwatch) -> None:
    with _log_of(n, folder) as log:
        log.snapshot(_ENTRIES * n - 1, range(1, _ENTRIES * n, 3))
        with watch:
            log.plan(SeedPolicy())


def log_open(n: int, folder: Path, watch: Stopwatch) -> None:
    with _log_of(n, folder):
        pass
    with watch:
        SegmentLog(folder / "log", _OPTIONS).close()


def log_snapshot(n: int, folder: Path, watch: Stopwatch) -> None:
    with _log_of(n, folder) as log, watch:
        log.snapshot(_ENTRIES * n - 1, range(1, _ENTRIES * n, 3))


def log_spark_plan(n: int, folder: Path, watch: Stopwatch) -> None:
    try:
        from compactlib.spark.tables import LogTable
    except ImportError:
        return
    with _log_of(n, folder) as log:
        log.snapshot(_ENTRIES * n - 1, range(1, _ENTRIES * n, 3))
    with watch:
        LogTable({"path": str(folder / "log")}).partitions()


def store_append(n: int, folder: Path, watch: Stopwatch) -> None:
    with RaftLogStore(folder / "store", StoreOptions(log=_OPTIONS, background=False)) as store:
        log = store.log("a")
        with watch:
            for index in range(1, n + 1):
                log.append_run(index, 1, [b"x" * 32])
            log.sync()
            store.flush()


# ----------------------------------------------------------------------------------------------------------- blob store

_SEGMENT_BYTES = 1 << 14


def _config(segments: int) -> BlobStoreConfig:
    return BlobStoreConfig(capacity_bytes=_SEGMENT_BYTES * (2 * segments + 16), segment_bytes=_SEGMENT_BYTES,
                           journal_max_entries=0, max_blob_bytes=0, durability="interval", find_max_entries=40)


@contextmanager
def _blobs_of(segments: int, folder: Path) -> Iterator[BlobStore]:
    with BlobStore(folder / "blobs", _config(segments)) as store:
        for number in range(7 * segments):
            store.put(b"%d" % number, b"x" * 2000)
        yield store


def blob_put(n: int, folder: Path, watch: Stopwatch) -> None:
    with watch, _blobs_of(n, folder):
        pass


def blob_get(n: int, folder: Path, watch: Stopwatch) -> None:
    with _blobs_of(n, folder) as store, watch:
        for number in range(7 * n):
            store.get(b"%d" % number)


def blob_view(n: int, folder: Path, watch: Stopwatch) -> None:
    with _blobs_of(n, folder) as store, watch:
        store.view()


def blob_open(n: int, folder: Path, watch: Stopwatch) -> None:
    with _blobs_of(n, folder):
        pass
    with watch:
        BlobStore(folder / "blobs", _config(n)).close()


def blob_compaction(n: int, folder: Path, watch: Stopwatch) -> None:
    with _blobs_of(n, folder) as store:
        for number in range(0, 7 * n, 2):
            store.delete(b"%d" % number)
        with watch:
            _require_done(store.compact(policy=CompactAll(min_used_fraction=0.0)))


def blob_plan(n: int, folder: Path, watch: Stopwatch) -> None:
    with _blobs_of(n, folder) as store:
        for number in range(0, 7 * n, 2):
            store.delete(b"%d" % number)
        with watch:
            store.plan(policy=CostBenefit())


def blob_put_again(n: int, folder: Path, watch: Stopwatch) -> None:
    """Each segment has one common blob, which is read from an older segment."""
    with BlobStore(folder / "blobs", _config(n)) as store, watch:
        for number in range(7 * n):
            if number % 7 == 1:
                store.info(b"again")
            store.put(b"again" if number % 7 == 1 else b"%d" % number, b"x" * 2000, replace=True)
        _require_done(store.compact(policy=CompactAll(min_used_fraction=0.0)))


def blob_follow(n: int, folder: Path, watch: Stopwatch) -> None:
    with _blobs_of(n, folder) as store, watch:
        found = store.entries_since()
        while not found.at_end:
            found = store.entries_since(found.token)


# ------------------------------------------------------------------------------------------- index sets and scheduler


def index_set_algebra(n: int, folder: Path, watch: Stopwatch) -> None:
    left, right = IndexSet.from_sorted(range(0, 6 * n, 3)), IndexSet.from_sorted(range(0, 6 * n, 2))
    with watch:
        for found in (left | right, left & right, left - right):
            len(found)


def _jobs_of(n: int) -> SchedulerMachine:
    machine = SchedulerMachine(SchedulerConfig(max_queue_size=0, max_jobs_per_poll=1 << 19))
    blocks = [BlockMeta(id=f"{number:012}", tenant="", shard=number % 16, level=0) for number in range(n)]
    for start in range(0, n, 100):
        machine.carry_out(Command(start // 100 + 1, 1, 1000.0), AddBlocks(tuple(blocks[start:start + 100])))
    machine.poll(Command(n, 1, 1000.0), PollRequest((), n))
    return machine


def scheduler_jobs(n: int, folder: Path, watch: Stopwatch) -> None:
    with watch:
        _jobs_of(n)


def scheduler_cycle(n: int, folder: Path, watch: Stopwatch) -> None:
    machine = _jobs_of(n)
    index, done = n, tuple[StatusUpdate, ...]()
    with watch:
        while done or index == n:
            index += 1
            given = machine.poll(Command(index, 1, 1001.0), PollRequest(done, 32))
            tokens = {lease.name: lease.token for lease in given.assignments}
            done = tuple(StatusUpdate(plan.name, tokens[plan.name], JobStatus.SUCCESS, CompactedBlocks(
                tenant=plan.tenant, shard=plan.shard, source_blocks=plan.source_blocks, no_output=NoOutput.EMPTY))
                for plan in given.compaction_jobs)
    if len(machine.jobs):
        raise SystemExit(f"nothing was measured: {len(machine.jobs)} jobs are left")


def scheduler_dump(n: int, folder: Path, watch: Stopwatch) -> None:
    machine = _jobs_of(n)
    with watch:
        machine.dump()


def scheduler_stored(n: int, folder: Path, watch: Stopwatch) -> None:
    store = MemoryStore()
    with Scheduler(KVLog(store), SnapshotStore(store), SchedulerConfig(max_queue_size=0)) as scheduler, watch:
        for number in range(n):
            scheduler.add_blocks([BlockMeta(id=f"{number:012}", tenant="", shard=number % 16, level=0)])


def scheduler_looks(n: int, folder: Path, watch: Stopwatch) -> None:
    machine = _jobs_of(n)
    with watch:
        for _ in range(n // 10):
            machine.stats(1001.0)


# ------------------------------------------------------------------------------------------------ many logs; a catalog


def store_of_logs(n: int, folder: Path, watch: Stopwatch) -> None:
    options = StoreOptions(log=_OPTIONS, background=False)
    for _ in range(2):
        with watch, RaftLogStore(folder / "store", options) as store:
            for number in range(n):
                log = store.log(f"log-{number}")
                log.append_run(log.last_index + 1, 1, [b"x" * 32])
                log.sync()
            store.flush()


def _catalog_of(n: int) -> UpdateLog:
    log = UpdateLog(MemoryStore())
    service = CatalogService(log, HybridClock(SystemClock(), max_skew_seconds=0.0), delay_seconds=0.0)
    for number in range(n):
        service.execute([PutObject(Schema(f"S{number}"))], wait=False)
    return log


def catalog_execute(n: int, folder: Path, watch: Stopwatch) -> None:
    with watch:
        _catalog_of(n)


def catalog_open(n: int, folder: Path, watch: Stopwatch) -> None:
    log = _catalog_of(n)
    with watch:
        recover_history(log)


def catalog_cut(n: int, folder: Path, watch: Stopwatch) -> None:
    log = _catalog_of(n)
    history = recover_history(log)
    with watch:
        log.cut(log.write_snapshot(history.catalog(history.latest)))
        reclaim(log, Budget())


# -------------------------------------------------------------------------------------------------------- staging area

_PAGE = 1000


def _branch_of(n: int, folder: Path | None = None) -> tuple[Repository, Branch]:
    store = MemoryStore() if folder is None else SqliteStore(folder / "staging.sqlite", synchronous="normal")
    objects = MemoryObjects() if folder is None else LocalObjects(folder / "objects")
    repo = Repository(store, CommittedRanges(objects, rule=SplitRule(raggedness=500, max_bytes=1 << 17),
                                             cache_bytes=0), options=StagingOptions(
        range_grace_seconds=0.0, grace_seconds=0.0, owns_ranges=True))
    branch = repo.create_branch("main")
    for start in range(0, n, _PAGE):
        branch.put_many({b"%09d" % number: b"value" for number in range(start, min(start + _PAGE, n))})
    return repo, branch


def staging_put(n: int, folder: Path, watch: Stopwatch) -> None:
    with watch:
        _branch_of(n)


def staging_commit(n: int, folder: Path, watch: Stopwatch) -> None:
    _, branch = _branch_of(n)
    with watch:
        branch.commit("all")


def staging_compaction(n: int, folder: Path, watch: Stopwatch) -> None:
    repo, branch = _branch_of(n, folder)
    with watch:
        _require_done(repo.compact(branch=branch))


def staging_tombstones(n: int, folder: Path, watch: Stopwatch) -> None:
    _, branch = _branch_of(n, folder)
    branch.put(b"z", b"live")
    branch.commit("all")
    for start in range(0, n, _PAGE):
        branch.delete_many([b"%09d" % number for number in range(start, min(start + _PAGE, n))])
    with watch:
        if [listed.key for listed in branch.entries()] != [b"z"]:
            raise SystemExit("nothing was measured: the listing is wrong")


def staging_history(n: int, folder: Path, watch: Stopwatch) -> None:
    repo, branch = _branch_of(0)
    for number in range(n):
        branch.put(b"key", b"%d" % number)
        branch.commit("one")
    with watch:
        _require_done(repo.reclaim())


def staging_branches(n: int, folder: Path, watch: Stopwatch) -> None:
    repo, branch = _branch_of(10)
    branch.commit("all")
    with watch:
        for number in range(n):
            repo.create_branch(f"branch-{number}", "main").put(b"key", b"value")
        repo.dropped_tokens()
        _require_done(repo.reclaim())


def kv_scan(n: int, folder: Path, watch: Stopwatch) -> None:
    store = MemoryStore()
    with watch:
        for number in range(n):
            store.set(b"p", b"%09d" % number, b"value")
        sum(1 for _ in store.scan(b"p"))


STEPS: dict[str, tuple[Step, int, str]] = {
    "raft log: append": (log_append, 128, "segments"), "raft log: major": (log_major, 128, "segments"),
    "raft log: plan": (log_plan, 128, "segments"), "raft log: open": (log_open, 128, "segments"),
    "raft log: snapshot": (log_snapshot, 128, "segments"),
    "raft log: Spark's slices": (log_spark_plan, 128, "segments"),
    "raft log store: append, flush": (store_append, 2000, "entries"),
    "blob store: put": (blob_put, 50, "segments"), "blob store: get": (blob_get, 50, "segments"),
    "blob store: view": (blob_view, 50, "segments"), "blob store: open": (blob_open, 50, "segments"),
    "blob store: compaction": (blob_compaction, 50, "segments"),
    "blob store: plan": (blob_plan, 50, "segments"),
    "blob store: put again": (blob_put_again, 50, "segments"), "blob store: follow": (blob_follow, 50, "segments"),
    "index sets": (index_set_algebra, 20_000, "indexes"), "scheduler: jobs": (scheduler_jobs, 1000, "blocks"),
    "scheduler: cycle": (scheduler_cycle, 1000, "blocks"), "scheduler: dump": (scheduler_dump, 1000, "blocks"),
    "scheduler: stored commands": (scheduler_stored, 2000, "blocks"),
    "scheduler: a tenth as many views": (scheduler_looks, 1000, "blocks"),
    "raft log store: logs": (store_of_logs, 32, "logs"),
    "catalog: execute": (catalog_execute, 250, "versions"), "catalog: open": (catalog_open, 500, "versions"),
    "catalog: cut": (catalog_cut, 500, "versions"),
    "staging: put": (staging_put, 4000, "keys"), "staging: commit": (staging_commit, 4000, "keys"),
    "staging: compaction": (staging_compaction, 24_000, "entries"),
    "staging: past tombstones": (staging_tombstones, 10_000, "tombstones"),
    "staging: reclaim": (staging_history, 50, "commits"), "staging: branches": (staging_branches, 50, "branches"),
    "key-value store in memory": (kv_scan, 5000, "keys")}


FLAT = frozenset({"staging: compaction", "staging: past tombstones"})
"""Steps with memory independent of the size."""


def measured(name: str, *, runs: int, base: str | None, shrink: int) -> Growth | None:
    """Measure one step at its three sizes; `None` if a package that it needs is missing."""
    step, smallest, unit = STEPS[name]
    sizes = tuple(max(smallest // shrink, 2) * times for times in (1, 4, 16))

    def watched(size: int, *, traced: bool = False) -> Stopwatch:
        watch, folder = Stopwatch(traced=traced), tempfile.mkdtemp(dir=base)
        try:
            step(size, Path(folder), watch)
        finally:
            shutil.rmtree(folder)
        return watch

    seconds = tuple(min(watched(size).seconds for _ in range(runs)) for size in sizes)
    peaks = (watched(sizes[1], traced=True).peak, watched(sizes[2], traced=True).peak) if name in FLAT else None
    return Growth(name, unit, sizes, seconds, peaks) if all(seconds) else None


def main() -> int:
    """Measure, print the table, and return exit code 0 if all steps keep their growth."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="an eighth of each size, once, to check that it runs")
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=tuple(STEPS), default=tuple(STEPS))
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--folder", metavar="FOLDER", default=_IN_MEMORY if os.path.isdir(_IN_MEMORY) else None)
    arguments = parser.parse_args()
    rows = [found for name in arguments.only
            if (found := measured(name, runs=1 if arguments.quick else arguments.runs, base=arguments.folder,
                                  shrink=8 if arguments.quick else 1)) is not None]
    print(Table.from_dicts([each.row() for each in rows], title="CPU time as the work grows"))
    unit = "times as much for each n log n"
    steps = [Figure(figure=f"growth.{each.step}", unit=f"{unit}, {each.unit}", values=(each.rise,),
                    reference="n log n", reference_values=(1.0,), goal="printed") for each in rows]
    worst = Figure(figure="growth.worst", unit=unit, values=(max((each.rise for each in rows), default=0.0),),
                   reference=f"n log n, of {len(rows)} steps", reference_values=(1.0,), goal=f"<= {MOST_RISE}")
    report([*steps, worst], arguments.json)
    return 0 if arguments.quick or all(each.is_kept for each in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
