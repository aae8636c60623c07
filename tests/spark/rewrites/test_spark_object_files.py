# SPDX-License-Identifier: Apache-2.0
"""Files of tasks that travel through an object store: here with threads, and on Spark."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from compactlib.blobstore import BlobStore
from compactlib.blobstore.segment.reader import SEGMENT_HEADER_BYTES
from compactlib.clock import ManualClock
from compactlib.errors import InvalidInput, Stale
from compactlib.executors import Executor, LocalExecutor, ProcessExecutor, RewriteFailure
from compactlib.objects import LocalObjects, ObjectRef
from compactlib.objects.errors import BadDigest
from compactlib.objects.folder import ObjectFolder, OpenInObjects
from compactlib.outcome import Done, Failed
from compactlib.raftlog import (
    Entry,
    LogOptions,
    LogReader,
    SeedPolicy,
    SegmentLimits,
    SegmentLog,
    StoreOptions,
    open_log as open_raft_log,
)
from compactlib.raftlog.model.names import segment_name
from compactlib.runtime import Budget
from compactlib.scheduler import MemoryFence, TokenFence
from compactlib.spark import ObjectsExecutor, SparkExecutor, compact_on_workers
from compactlib.spark.rewrites.object_files import TaskFiles, store_heads
from compactlib.spark.stores.whole_stores import WholeStore
from tests.blobstore.compaction_stores import START, answers, flip, garbage_store, plan_of
from tests.spark.rewrite_tasks import ReturningTask
from tests.spark.store_jobs import build_logs, contents, grow, job, open_log


def through_objects(folder: Path, executor: Executor) -> ObjectsExecutor:
    return ObjectsExecutor(executor, partial(LocalObjects, str(folder)), scratch=None)


def keys(folder: Path) -> list[str]:
    with LocalObjects(folder) as store:
        return [info.key for info in store.list()]


def test_a_log_is_compacted_as_without(tmp_path: Path) -> None:
    (ours,), (theirs,) = build_logs(tmp_path / "ours", 1), build_logs(tmp_path / "theirs", 1)
    assert isinstance(job(ours).compact(through_objects(tmp_path / "objects", LocalExecutor()), Budget()), Done)
    job(theirs).compact(LocalExecutor(), Budget())
    assert contents(ours) == contents(theirs)
    assert keys(tmp_path / "objects") == []


def test_a_blob_store_is_compacted_as_without(tmp_path: Path) -> None:
    with garbage_store(tmp_path / "store", ManualClock(START), count=30, swap_segments=8) as store:
        before = answers(store, 30)
        executor = through_objects(tmp_path / "objects", LocalExecutor())
        assert isinstance(store.compact(plan_of(store), executor=executor, budget=Budget()), Done)
        assert answers(store, 30) == before
        assert store.verify().findings == ()
    assert keys(tmp_path / "objects") == []


def test_tasks_go_to_other_processes(tmp_path: Path) -> None:
    (ours,), (theirs,) = build_logs(tmp_path / "ours", 1), build_logs(tmp_path / "theirs", 1)
    job(theirs).compact(LocalExecutor(), Budget())
    put_store(ours, tmp_path / "objects")
    with garbage_store(tmp_path / "store", ManualClock(START), count=30, swap_segments=8) as store:
        put_store(tmp_path / "store", tmp_path / "blobs")
        config, clock = store.config, store.clock
    with ProcessExecutor(workers=1) as processes:
        with compacting(tmp_path / "objects", processes) as (folder, executor):
            assert isinstance(job(folder).compact(executor, Budget()), Done)
        with compacting(tmp_path / "blobs", processes) as (folder, executor), BlobStore(
                folder, config, clock=clock) as store:
            assert isinstance(store.compact(plan_of(store), executor=executor), Done)
    assert contents(fetched(tmp_path / "objects", tmp_path / "after")) == contents(theirs)


def test_an_input_that_is_not_what_was_put_fails_its_task(tmp_path: Path) -> None:
    class Damaging:
        """Flips a byte of an input before the tasks run."""

        def run(self, tasks: object, **given: object) -> object:
            path = next((tmp_path / "objects").glob("rewrites/*/in/*/0"))
            data = bytearray(path.read_bytes())
            data[50] ^= 1
            path.write_bytes(bytes(data))
            return LocalExecutor().run(tasks, **given)  # type: ignore[arg-type]

    (folder,) = build_logs(tmp_path / "logs", 1)
    before = contents(folder)
    outcome = job(folder).compact(through_objects(tmp_path / "objects", Damaging()), Budget())  # type: ignore[arg-type]
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, BadDigest)
    assert contents(folder) == before


def test_an_input_that_is_gone_fails_its_task(tmp_path: Path) -> None:
    kind = TaskFiles(ReturningTask, lambda task: [str(tmp_path / "absent")], lambda task: str(tmp_path),
                     lambda task, folder: task)
    executor = ObjectsExecutor(LocalExecutor(), partial(LocalObjects, str(tmp_path / "objects")), kinds=[kind])
    (outcome,) = executor.run([ReturningTask("task", None)])
    assert isinstance(outcome, RewriteFailure)
    assert "absent" in str(outcome.error)


def test_what_nobody_knows_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="ReturningTask"):
        through_objects(tmp_path / "objects", LocalExecutor()).run([ReturningTask("task", None)])


def test_leftovers_are_swept_by_age(tmp_path: Path) -> None:
    executor = through_objects(tmp_path / "objects", LocalExecutor())
    with LocalObjects(tmp_path / "objects") as store:
        store.create("rewrites/run/out/late/0", b"an attempt that nobody waited for")
        store.create("other", b"not ours")
        (info,) = store.list("rewrites/")
    assert executor.sweep(now=info.modified_at + 5, older_than_seconds=10) == 0
    assert executor.sweep(now=info.modified_at + 11, older_than_seconds=10) == 1
    assert keys(tmp_path / "objects") == ["other"]


@pytest.mark.spark
def test_on_spark(spark: SparkSession, tmp_path: Path) -> None:
    (ours,), (theirs,) = build_logs(tmp_path / "ours", 1), build_logs(tmp_path / "theirs", 1)
    assert isinstance(job(ours).compact(through_objects(tmp_path / "objects", SparkExecutor(spark)), Budget()), Done)
    job(theirs).compact(LocalExecutor(), Budget())
    assert contents(ours) == contents(theirs)
    assert keys(tmp_path / "objects") == []


# --------------------------------------------------------------------------------- stores that lie in an object store


def bucket_of(folder: Path) -> partial[LocalObjects]:
    return partial(LocalObjects, str(folder))


def put_store(folder: str | Path, objects: Path, part_bytes: int = 1000) -> None:
    with LocalObjects(objects) as store:
        ObjectFolder(store, "stores/one", heads=store_heads, part_bytes=part_bytes).put(folder)


@contextlib.contextmanager
def compacting(objects: Path, executor: Executor) -> Iterator[tuple[str, ObjectsExecutor]]:
    """The folder of the store in the object store, to be compacted there."""
    with LocalObjects(objects) as store:
        folder = ObjectFolder(store, "stores/one", heads=store_heads, part_bytes=1000)
        with folder.opened(only_heads=True) as copy:
            yield copy.folder, ObjectsExecutor(executor, bucket_of(objects), copy=copy, part_bytes=1000)


def fetched(objects: Path, folder: Path) -> str:
    with LocalObjects(objects) as store:
        return ObjectFolder(store, "stores/one").fetch(folder).folder


class Counting(LocalObjects):
    """Counts the bytes that pass through this process."""

    read = written = 0

    def get(self, key: str) -> bytes:
        data = super().get(key)
        Counting.read += 0 if "/manifest/" in key else len(data)
        return data

    def get_range(self, key: str, start: int, length: int) -> bytes:
        data = super().get_range(key, start, length)
        Counting.read += len(data)
        return data

    def create(self, key: str, data: bytes | memoryview) -> ObjectRef:
        Counting.written += 0 if "/manifest/" in key else memoryview(data).nbytes
        return super().create(key, data)


def test_a_log_in_an_object_store_is_compacted_there(tmp_path: Path) -> None:
    (ours,), (theirs,) = build_logs(tmp_path / "ours", 1), build_logs(tmp_path / "theirs", 1)
    for folder in (ours, theirs):
        grow(folder)
    put_store(ours, tmp_path / "objects")
    with compacting(tmp_path / "objects", LocalExecutor()) as (folder, executor):
        assert isinstance(job(folder).compact(executor, Budget()), Done)
    job(theirs).compact(LocalExecutor(), Budget())
    assert contents(fetched(tmp_path / "objects", tmp_path / "after")) == contents(theirs)


def test_a_blob_store_in_an_object_store_is_compacted_there(tmp_path: Path) -> None:
    clock = ManualClock(START)
    with garbage_store(tmp_path / "store", clock, count=30, swap_segments=8) as store:
        before = answers(store, 30)
        config = store.config
    put_store(tmp_path / "store", tmp_path / "objects")
    with compacting(tmp_path / "objects", LocalExecutor()) as (folder, executor), BlobStore(
            folder, config, clock=clock) as store:
        plan = plan_of(store)
        outcome = store.compact(plan, executor=executor)
        assert isinstance(outcome, Done), outcome
    with BlobStore(fetched(tmp_path / "objects", tmp_path / "after"), config, clock=clock) as store:
        assert answers(store, 30) == before
        assert store.verify().findings == ()
        assert not store.recovery.damage
    sizes = [sum(path.stat().st_size for path in (tmp_path / name).glob("*.log")) for name in ("store", "after")]
    assert sizes[1] < sizes[0] - outcome.stats.bytes_freed // 2


def test_a_raft_log_with_its_wal_lies_there_while_it_is_closed(tmp_path: Path) -> None:
    """The newest segment, the WAL and what is beside them come whole; sealed segments of each log by their heads."""
    options = StoreOptions(background=False, log=LogOptions(limits=SegmentLimits(max_entries=10)))
    with open_raft_log(tmp_path / "store", options) as log:
        log.append_run(1, 1, [b"entry %d" % index * 20 for index in range(1, 102)])
        log.sync()
        log.flush()
        log.snapshot(100, range(1, 101, 3))
        log.append_run(102, 1, [b"in the WAL"])
        log.sync()
    put_store(tmp_path / "store", tmp_path / "objects")
    with compacting(tmp_path / "objects", LocalExecutor()) as (folder, executor), open_raft_log(folder, options) as log:
        assert isinstance(log.compact(policy=SeedPolicy(), executor=executor), Done)
    with open_raft_log(fetched(tmp_path / "objects", tmp_path / "after"), options) as log:
        assert log.verify().findings == ()
        assert log.read(102) == Entry(102, 1, b"in the WAL")
        assert log.read(4) == Entry(4, 1, b"entry 4" * 20)
    assert any(path.is_symlink() for path in (tmp_path / "after").rglob("*.segment"))


def test_no_contents_pass_through_the_process_that_commits(tmp_path: Path) -> None:
    limits = LogOptions(limits=SegmentLimits(max_entries=10))
    with SegmentLog(tmp_path / "log", limits) as log:
        log.extend((index, 1, bytes(10_000)) for index in range(1, 102))
        log.record_snapshot(100, live=range(1, 101, 3))
    put_store(tmp_path / "log", tmp_path / "objects", part_bytes=50_000)
    Counting.read = Counting.written = 0
    with Counting(tmp_path / "objects") as store:
        folder = ObjectFolder(store, "stores/one", heads=store_heads)
        with folder.opened(only_heads=True) as copy:
            executor = ObjectsExecutor(LocalExecutor(), bucket_of(tmp_path / "objects"), copy=copy)
            with SegmentLog(copy.folder, limits) as log:
                outcome = log.compact(executor=executor, policy=log.policy)
                assert isinstance(outcome, Done)
                assert outcome.stats.bytes_written > 300_000
    # Of a million bytes: the heads of old and new segments, and the newest one, which has one entry.
    assert Counting.read < 25_000
    assert Counting.written < 11_000
    with SegmentLog(fetched(tmp_path / "objects", tmp_path / "after"), limits) as log:
        assert [entry.index for entry in log.entries()] == [*range(1, 101, 3), 101]
        assert log.verify().findings == ()


def live_in_runs(folder: Path) -> LogOptions:
    """Segments of two megabytes, of which some entries at each end are alive."""
    limits = LogOptions(limits=SegmentLimits(max_entries=200))
    with SegmentLog(folder, limits) as log:
        log.extend((index, 1, bytes([index % 251]) * 10_000) for index in range(1, 402))
        log.record_snapshot(400, live=[*range(1, 6), *range(196, 206), *range(396, 401)])
    return limits


@pytest.mark.parametrize("part_bytes", [700_000, 1 << 22])
def test_workers_read_what_is_alive(tmp_path: Path, part_bytes: int) -> None:
    limits = live_in_runs(tmp_path / "log")
    put_store(tmp_path / "log", tmp_path / "objects", part_bytes=part_bytes)
    with LocalObjects(tmp_path / "objects") as store, ObjectFolder(
            store, "stores/one", heads=store_heads).opened(only_heads=True) as copy:
        Counting.read = 0
        executor = ObjectsExecutor(LocalExecutor(), partial(Counting, tmp_path / "objects"), copy=copy)
        with SegmentLog(copy.folder, limits) as log:
            assert isinstance(log.compact(executor=executor, policy=log.policy), Done)
    # Of four million bytes: the live ones, heads, and of the parts that the ends lie in no more.
    assert 200_000 < Counting.read < 300_000
    with SegmentLog(fetched(tmp_path / "objects", tmp_path / "after"), limits) as log:
        assert [entry.index for entry in log.entries()] == [*range(1, 6), *range(196, 206), *range(396, 402)]
        assert log.verify().findings == ()


def test_the_owner_without_the_contents_cannot_copy_them(tmp_path: Path) -> None:
    """A compaction in this process would read holes: their checksums tell, and the store stays as it was."""
    (ours,) = build_logs(tmp_path / "ours", 1)
    put_store(ours, tmp_path / "objects")
    with compacting(tmp_path / "objects", LocalExecutor()) as (folder, _):
        outcome = job(folder).compact(LocalExecutor(), Budget())
        assert isinstance(outcome, Failed)
    assert contents(fetched(tmp_path / "objects", tmp_path / "after")) == contents(ours)


def test_of_two_compactions_of_one_store_one_commits(tmp_path: Path) -> None:
    (ours,) = build_logs(tmp_path / "ours", 1)
    put_store(ours, tmp_path / "objects")

    def compact(meanwhile: Callable[[], object]) -> None:
        with compacting(tmp_path / "objects", LocalExecutor()) as (folder, executor):
            assert isinstance(job(folder).compact(executor, Budget()), Done)
            meanwhile()

    with pytest.raises(Stale):
        compact(partial(compact, int))
    with LogReader(fetched(tmp_path / "objects", tmp_path / "after")) as log:
        assert log.verify().findings == ()


def test_an_index_that_does_not_reach_the_end_leaves_a_segment_whole(tmp_path: Path) -> None:
    clock = ManualClock(START)
    garbage_store(tmp_path / "store", clock, count=30, swap_segments=8).close()
    heads = store_heads(str(tmp_path / "store"))
    assert heads["0_0.log"] == SEGMENT_HEADER_BYTES
    assert len(heads) == len(list((tmp_path / "store").glob("*.log"))) - 1
    next((tmp_path / "store").glob("0_0.*.index")).unlink()
    assert "0_0.log" not in store_heads(str(tmp_path / "store"))


def test_what_is_damaged_lies_there_whole(tmp_path: Path) -> None:
    clock = ManualClock(START)
    garbage_store(tmp_path / "store", clock, count=30, swap_segments=8).close()
    flip(next((tmp_path / "store").glob("0_0.*.index")), 20)
    (log,) = build_logs(tmp_path / "logs", 1)
    flip(Path(log) / segment_name(1), 300)
    assert "0_0.log" not in store_heads(str(tmp_path / "store"))
    assert segment_name(1) not in store_heads(log)
    for name, folder in (("a", tmp_path / "store"), ("b", Path(log))):
        put_store(folder, tmp_path / f"objects-{name}")
        with compacting(tmp_path / f"objects-{name}", LocalExecutor()) as (here, _):
            damaged = Path(here) / ("0_0.log" if name == "a" else segment_name(1))
            assert damaged.read_bytes() == (folder / damaged.name).read_bytes()


@pytest.mark.spark
def test_a_store_in_an_object_store_is_compacted_by_spark(spark: SparkSession, tmp_path: Path) -> None:
    (ours,), (theirs,) = build_logs(tmp_path / "ours", 1), build_logs(tmp_path / "theirs", 1)
    put_store(ours, tmp_path / "objects")
    with compacting(tmp_path / "objects", SparkExecutor(spark)) as (folder, executor):
        assert isinstance(job(folder).compact(executor, Budget()), Done)
    job(theirs).compact(LocalExecutor(), Budget())
    assert contents(fetched(tmp_path / "objects", tmp_path / "after")) == contents(theirs)


# ------------------------------------------------------------------------------------- whole stores, each by a worker


def in_objects(objects: Path) -> OpenInObjects:
    return OpenInObjects(bucket_of(objects), open_log)


def put_logs(folders: Sequence[str], objects: Path) -> list[str]:
    names = [f"stores/{number}" for number in range(len(folders))]
    with LocalObjects(objects) as store:
        for name, folder in zip(names, folders, strict=True):
            ObjectFolder(store, name).put(folder)
    return names


def versions(objects: Path, name: str) -> int:
    with LocalObjects(objects) as store:
        version = ObjectFolder(store, name).read()
        return 0 if version is None else version.number


def fetched_log(objects: Path, name: str, folder: Path) -> dict[str, Any]:
    with LocalObjects(objects) as store:
        return contents(ObjectFolder(store, name).fetch(folder).folder)


def test_a_whole_store_is_fetched_compacted_and_committed(tmp_path: Path) -> None:
    (ours,), (theirs,) = build_logs(tmp_path / "ours", 1), build_logs(tmp_path / "theirs", 1)
    (name,) = put_logs([ours], tmp_path / "objects")
    work = WholeStore(in_objects(tmp_path / "objects"), SeedPolicy())
    assert work(name)[1] == "done"
    job(theirs).compact(LocalExecutor(), Budget())
    assert fetched_log(tmp_path / "objects", name, tmp_path / "after") == contents(theirs)
    # What had nothing to do, or was refused, makes no version.
    assert work(name)[1] == "skipped"
    assert versions(tmp_path / "objects", name) == 2
    assert work("stores/none")[-1] == "NotFound"


def test_a_fence_guards_the_commit_to_the_object_store(tmp_path: Path) -> None:
    (ours,) = build_logs(tmp_path / "ours", 1)
    (name,) = put_logs([ours], tmp_path / "objects")
    fence = MemoryFence()
    fence.admit(name, 9)
    work = WholeStore(in_objects(tmp_path / "objects"), SeedPolicy(), lambda resource: TokenFence(fence, resource, 8))
    assert work(name)[-1] == "FencedOff"
    assert versions(tmp_path / "objects", name) == 1


def test_a_store_that_another_has_changed_meanwhile_stays_as_it_is(tmp_path: Path) -> None:
    (ours,) = build_logs(tmp_path / "ours", 1)
    (name,) = put_logs([ours], tmp_path / "objects")

    def open_late(folder: str) -> SegmentLog:
        assert WholeStore(in_objects(tmp_path / "objects"), SeedPolicy())(name)[1] == "done"
        return open_log(folder)

    assert WholeStore(OpenInObjects(bucket_of(tmp_path / "objects"), open_late), SeedPolicy())(name)[-1] == "Stale"
    assert versions(tmp_path / "objects", name) == 2


@pytest.mark.parametrize(("settings", "largest"), [({}, 1 << 20), ({"part_bytes": 100_000}, 100_000)])
def test_what_a_whole_store_has_written_travels_in_parts(settings: dict[str, Any], largest: int,
                                                         tmp_path: Path) -> None:
    open_large = partial(SegmentLog, options=LogOptions(limits=SegmentLimits(max_entries=4)))
    with open_large(tmp_path / "log") as log:
        log.extend((index, 1, bytes([index]) * 600_000) for index in range(1, 15))
        log.record_snapshot(12, [1, 5, 9])
        expected = [(entry.index, entry.payload) for entry in log.entries()]
    (name,) = put_logs([str(tmp_path / "log")], tmp_path / "objects")
    before = set(keys(tmp_path / "objects"))
    opener = OpenInObjects(bucket_of(tmp_path / "objects"), open_large, **settings)
    assert WholeStore(opener, SeedPolicy())(name)[1] == "done"
    with LocalObjects(tmp_path / "objects") as store:
        sizes = [info.size_bytes for info in store.list() if info.key not in before]
        copy = ObjectFolder(store, name).fetch(tmp_path / "after")
    assert max(sizes) == largest
    with open_large(copy.folder) as log:
        assert [(entry.index, entry.payload) for entry in log.entries()] == expected


@pytest.mark.spark
def test_many_stores_in_an_object_store_are_compacted_by_the_workers(spark: SparkSession, tmp_path: Path) -> None:
    ours, theirs = build_logs(tmp_path / "ours", 6), build_logs(tmp_path / "theirs", 6)
    names = put_logs(ours, tmp_path / "objects")
    frame = compact_on_workers(spark, names, in_objects(tmp_path / "objects"), policy=SeedPolicy())
    assert {(row.store, row.outcome) for row in frame.collect()} == {(name, "done") for name in names}
    for number, (name, folder) in enumerate(zip(names, theirs, strict=True)):
        job(folder).compact(LocalExecutor(), Budget())
        assert fetched_log(tmp_path / "objects", name, tmp_path / f"after-{number}") == contents(folder)
