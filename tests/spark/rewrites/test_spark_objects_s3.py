# SPDX-License-Identifier: Apache-2.0
"""Files of executors through a real S3 server: on Spark, and with requests that are refused, cut, or lose their answer.

Whatever happens to one request: the log is what it was or is compacted, and reads the same; the next run succeeds; what
was left in the bucket is removed by the run itself or by a sweep.
"""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
import json
import os
import signal
import sys
import threading
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pyarrow as pa
import pytest
from pyarrow import parquet
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from compactlib.clock import ManualClock
from compactlib.errors import CompactlibError
from compactlib.executors import Executor, LocalExecutor, RewriteFailure, RewriteResult, RewriteTask
from compactlib.objects import LocalObjects, MemoryObjects, ObjectRef, ObjectStore, RemoteObjects
from compactlib.objects.folder import ObjectFolder
from compactlib.outcome import Done, Failed
from compactlib.raftlog import LogReader, SegmentLog
from compactlib.rewrite import RewriteOutcome
from compactlib.runtime import Budget, Observer, RecordingObserver
from compactlib.scheduler import BlockMeta, JobPlan, MemoryFence, RunningJob
from compactlib.scheduler.workers.worker_core import Start
from compactlib.spark import BlockFolder, MergeBlocks, MergeOptions, ObjectsExecutor, SparkExecutor, StagingMerge
from compactlib.spark.rewrites.object_files import store_heads
from compactlib.staging import CommittedRanges, ParquetFormat, Record, SplitRule
from tests.harness.kv import servers
from tests.harness.objects import s3_servers
from tests.spark.rewrite_tasks import DiesFirstTask
from tests.spark.rewrites import s3_stores
from tests.spark.rewrites.s3_faults import Fault, S3Proxy
from tests.spark.rewrites.s3_stores import OpenBucket
from tests.spark.store_jobs import LIMITS, build_logs, contents, job

pytestmark = pytest.mark.cluster

_numbers = itertools.count()
FAR_FUTURE = 1e12


@pytest.fixture(scope="module")
def proxy() -> Iterator[S3Proxy]:
    with S3Proxy(servers.moto()) as running:
        yield running


@pytest.fixture
def bucket(proxy: S3Proxy) -> OpenBucket:
    """A new bucket behind the proxy, which lets everything pass."""
    proxy.choose = lambda method, path: None
    proxy.met.clear()
    name = f"executors-{next(_numbers)}"
    s3_servers.make_bucket(servers.moto(), name)
    return OpenBucket(proxy.address, name)


def keys(bucket: OpenBucket) -> list[str]:
    with OpenBucket(servers.moto(), bucket.name)() as store:
        return [info.key for info in store.list()]


def sweep_all(bucket: OpenBucket) -> None:
    through(bucket).sweep(now=FAR_FUTURE, older_than_seconds=1.0)


def through(bucket: OpenBucket, executor: Executor | None = None, part_bytes: int = 300) -> ObjectsExecutor:
    return ObjectsExecutor(LocalExecutor() if executor is None else executor, bucket, part_bytes=part_bytes)


def compacted(folder: str, executor: Executor, observer: Observer | None = None) -> Any:
    with SegmentLog(folder, attrs.evolve(LIMITS, observer=Observer() if observer is None else observer)) as log:
        return log.compact(policy=log.policy, executor=executor)


def entries(folder: str) -> list[Any]:
    with LogReader(folder) as log:
        return list(log.entries())


# ------------------------------------------------------------------------------------------------------- on Spark


@pytest.fixture
def by_value() -> Iterator[None]:
    """The bucket's class is importable here only, so it travels by value, as a notebook's does."""
    for module in (s3_stores, sys.modules[__name__]):
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    yield
    for module in (s3_stores, sys.modules[__name__]):
        cloudpickle.unregister_pickle_by_value(module)  # type: ignore[no-untyped-call]


@attrs.frozen
class DyingExecutor:
    """Kills the worker of each task's first attempt, which has then put all its files."""

    executor: Executor
    marks: Path

    def run(self, tasks: Iterable[RewriteTask], *, budget: Budget | None = None,
            observer: Observer | None = None) -> Generator[RewriteOutcome, None, None]:
        dying = [DiesFirstTask(task.name, task, str(self.marks / task.name)) for task in tasks]
        yield from self.executor.run(dying, budget=budget, observer=observer)


@pytest.mark.spark
@pytest.mark.usefixtures("by_value")
def test_executors_read_and_write_s3_also_when_they_die(spark: SparkSession, bucket: OpenBucket,
                                                        tmp_path: Path) -> None:
    ours, theirs = build_logs(tmp_path / "ours", 5), build_logs(tmp_path / "theirs", 5)
    assert isinstance(compacted(ours[4], through(bucket, SparkExecutor(spark))), Done)
    assert keys(bucket) == []
    marks = tmp_path / "marks"
    marks.mkdir()
    dying = compacted(ours[3], through(bucket, DyingExecutor(SparkExecutor(spark), marks)))
    assert isinstance(dying, Done)
    assert len(list(marks.iterdir())) == len(dying.stats.done) > 0
    for here, there in zip(ours[3:], theirs[3:], strict=True):
        compacted(there, LocalExecutor())
        assert contents(here) == contents(there)
    assert keys(bucket) == []


@pytest.mark.spark
@pytest.mark.usefixtures("by_value")
def test_a_put_that_s3_refuses_to_an_executor_fails_its_task_by_name(
        spark: SparkSession, bucket: OpenBucket, proxy: S3Proxy, tmp_path: Path) -> None:
    (folder,) = build_logs(tmp_path / "logs", 1)
    before = contents(folder)
    proxy.always(Fault.REFUSE, "PUT", "/out/")
    outcome = compacted(folder, through(bucket, SparkExecutor(spark)))
    assert isinstance(outcome, Failed)
    assert type(outcome.error).__name__ == "AccessDenied"
    assert contents(folder) == before
    assert keys(bucket) == []


# --------------------------------------------------------------------------------------------- one request goes wrong


CASES = [(method, place, fault) for method, cut in (("PUT", Fault.CUT_REQUEST), ("GET", Fault.CUT_ANSWER))
         for place in ("/in/", "/out/") for fault in (cut, Fault.LOSE_ANSWER, Fault.FAIL, Fault.REFUSE)]


@pytest.mark.parametrize(("method", "place", "fault"), CASES)
def test_a_request_that_goes_wrong_loses_nothing(bucket: OpenBucket, proxy: S3Proxy, tmp_path: Path, method: str,
                                                 place: str, fault: Fault) -> None:
    (ours,), (theirs,) = build_logs(tmp_path / "ours", 1), build_logs(tmp_path / "theirs", 1)
    before, told = contents(ours), entries(ours)
    # The second part: a file is half-way there by then.
    proxy.after(1, fault, method, place)
    outcome = compacted(ours, through(bucket))
    assert isinstance(outcome, Failed)
    assert [(met, asked) for met, asked, _ in proxy.met] == [(fault, method)]
    assert type(outcome.error).__name__ == ("AccessDenied" if fault is Fault.REFUSE else "ObjectStoreFailed")
    assert contents(ours) == before
    assert entries(ours) == told
    # The run itself has removed what it had put; the next one does the work.
    assert keys(bucket) == []
    assert isinstance(compacted(ours, through(bucket)), Done)
    compacted(theirs, LocalExecutor())
    assert contents(ours) == contents(theirs)


@pytest.mark.parametrize(("method", "place", "fault"), [case for case in CASES if case[2] is not Fault.REFUSE])
def test_where_obstore_asks_again_nothing_fails(bucket: OpenBucket, proxy: S3Proxy, tmp_path: Path, method: str,
                                                place: str, fault: Fault) -> None:
    """Among them: a put whose answer is lost. Asked again, the server says that there is such an object."""
    (ours,), (theirs,) = build_logs(tmp_path / "ours", 1), build_logs(tmp_path / "theirs", 1)
    proxy.after(1, fault, method, place)
    outcome = compacted(ours, through(attrs.evolve(bucket, retries=2)))
    assert isinstance(outcome, Done), outcome
    assert len(proxy.met) == 1
    compacted(theirs, LocalExecutor())
    assert contents(ours) == contents(theirs)
    assert keys(bucket) == []


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_what_cannot_be_deleted_fails_nothing_and_is_swept(bucket: OpenBucket, proxy: S3Proxy, tmp_path: Path,
                                                           method: str) -> None:
    """obstore lists with GET and deletes with POST."""
    (folder,) = build_logs(tmp_path / "logs", 1)
    told = entries(folder)
    proxy.choose = lambda asked, path: Fault.REFUSE if asked == method and ("list-type" in path or "delete" in path
                                                                           ) else None
    observer = RecordingObserver()
    assert isinstance(compacted(folder, through(bucket), observer), Done)
    assert entries(folder) == told
    (left,) = [fields for name, fields in observer.events if name == "spark_objects_left"]
    assert left["prefix"].startswith("rewrites/")
    assert len(keys(bucket)) > 2
    proxy.choose = lambda asked, path: None
    sweep_all(bucket)
    assert keys(bucket) == []


def test_a_store_that_is_away_fails_every_task(tmp_path: Path) -> None:
    (folder,) = build_logs(tmp_path / "logs", 1)
    before = contents(folder)

    def away() -> RemoteObjects:
        return RemoteObjects(OpenBucket("http://127.0.0.1:1", "nobody").bucket())

    outcome = compacted(folder, ObjectsExecutor(LocalExecutor(), away))
    assert isinstance(outcome, Failed)
    assert type(outcome.error).__name__ == "ObjectStoreFailed"
    assert contents(folder) == before


# ---------------------------------------------------------------------------------- a store that lies in the bucket


def folder_in(store: RemoteObjects) -> ObjectFolder:
    return ObjectFolder(store, "logs/one", heads=store_heads, part_bytes=300, clock=ManualClock(0.0))


def put_log(bucket: OpenBucket, folder: str) -> None:
    with OpenBucket(servers.moto(), bucket.name)() as store:
        folder_in(store).put(folder)


def compact_there(bucket: OpenBucket, executor: Executor) -> Any:
    """The outcome of a compaction, which has committed when this returns."""
    with bucket() as store, folder_in(store).opened(only_heads=True) as copy:
        return compacted(copy.folder, ObjectsExecutor(executor, bucket, copy=copy, part_bytes=300))


def fetched(bucket: OpenBucket, folder: Path) -> str:
    with OpenBucket(servers.moto(), bucket.name)() as store:
        return folder_in(store).fetch(folder).folder


def is_compacted(folder: str, before: Any) -> bool:
    with LogReader(folder) as log:
        assert log.verify().findings == ()
    return bool(contents(folder) != before)


THERE = [(method, place, number, fault, retries)
         for method, place, number in (("GET", "/files/", 0), ("GET", "/files/", 6), ("GET", "/manifest/", 0),
                                       ("PUT", "/files/", 1), ("PUT", "/manifest/", 0),
                                       *(("GET", "list-type", number) for number in range(4)))
         for fault in Fault if fault is not (Fault.CUT_ANSWER if method == "PUT" else Fault.CUT_REQUEST)
         for retries in (0, 2) if not retries or fault in (Fault.FAIL, Fault.LOSE_ANSWER)]


@pytest.mark.parametrize(("method", "place", "number", "fault", "retries"), THERE)
def test_a_request_that_goes_wrong_leaves_the_old_log_or_the_new_one(
        bucket: OpenBucket, proxy: S3Proxy, tmp_path: Path, method: str, place: str, number: int, fault: Fault,
        retries: int) -> None:
    ours, theirs = build_logs(tmp_path / "ours", 1)[0], build_logs(tmp_path / "theirs", 1)[0]
    before = contents(ours)
    put_log(bucket, ours)
    proxy.after(number, fault, method, place)
    try:
        outcome: Any = compact_there(attrs.evolve(bucket, retries=retries), LocalExecutor())
    except CompactlibError as error:
        outcome = error
    assert [(met, asked) for met, asked, _ in proxy.met] == [(fault, method)]
    after = is_compacted(fetched(bucket, tmp_path / "after"), before)
    assert after == isinstance(outcome, Done)
    if place == "/manifest/" and method == "PUT" and fault is not Fault.REFUSE:
        # What was not answered is looked for until it is seen.
        assert after
    assert after or not retries
    proxy.choose = lambda method, path: None
    if not after:
        assert isinstance(compact_there(bucket, LocalExecutor()), Done)
    compacted(theirs, LocalExecutor())
    assert contents(fetched(bucket, tmp_path / "again")) == contents(theirs)
    # What was left behind is reclaimed, and nothing else.
    with bucket() as store:
        folder_in(store).reclaim(now=FAR_FUTURE, older_than_seconds=1.0)
        folder_in(store).reclaim(now=FAR_FUTURE, older_than_seconds=1.0)
    assert contents(fetched(bucket, tmp_path / "kept")) == contents(theirs)


@pytest.mark.parametrize(("method", "place"), [("GET", "/files/"), ("PUT", "/files/"), ("PUT", "/manifest/"),
                                               ("GET", "list-type")])
def test_a_server_that_goes_away_leaves_the_old_log_or_the_new_one(
        bucket: OpenBucket, proxy: S3Proxy, tmp_path: Path, method: str, place: str) -> None:
    """From one request on there are no answers: for the server as if the process that commits had died there."""
    for passed in range(4):
        run = tmp_path / f"{passed}"
        run.mkdir()
        (ours,) = build_logs(run / "ours", 1)
        before = contents(ours)
        name = f"{bucket.name}-{passed}"
        s3_servers.make_bucket(servers.moto(), name)
        there = attrs.evolve(bucket, name=name)
        put_log(there, ours)
        seen = itertools.count()
        away: list[bool] = []

        def choose(asked: str, path: str, seen: Iterator[int] = seen, away: list[bool] = away,
                   passed: int = passed) -> Fault | None:
            if away or (asked == method and place in path and next(seen) == passed):
                away.append(True)
                return Fault.LOSE_ANSWER if len(away) == 1 else Fault.CUT_REQUEST
            return None

        proxy.choose = choose
        with contextlib.suppress(CompactlibError):
            compact_there(there, LocalExecutor())
        proxy.choose = lambda asked, path: None
        if not is_compacted(fetched(there, run / "after"), before):
            assert isinstance(compact_there(there, LocalExecutor()), Done)
        assert is_compacted(fetched(there, run / "again"), before)


@pytest.mark.spark
@pytest.mark.usefixtures("by_value")
def test_executors_read_and_write_the_bucket_and_the_driver_commits(
        spark: SparkSession, bucket: OpenBucket, tmp_path: Path) -> None:
    ours, theirs = build_logs(tmp_path / "ours", 5), build_logs(tmp_path / "theirs", 5)
    marks = tmp_path / "marks"
    marks.mkdir()
    put_log(bucket, ours[4])
    assert isinstance(compact_there(bucket, DyingExecutor(SparkExecutor(spark), marks)), Done)
    assert list(marks.iterdir())
    compacted(theirs[4], LocalExecutor())
    assert contents(fetched(bucket, tmp_path / "after")) == contents(theirs[4])


# --------------------------------------------------------------------------------------------- staging, in the bucket


@pytest.mark.spark
@pytest.mark.usefixtures("by_value")
def test_a_staging_merge_in_the_bucket_is_the_same_or_has_not_happened(
        spark: SparkSession, bucket: OpenBucket, proxy: S3Proxy) -> None:
    """Workers read and write ranges in the bucket. One of their requests goes wrong; the next merge goes through."""
    content = [(b"path/%05d" % number, Record.of(b"old %d" % number)) for number in range(600)]
    changes: list[tuple[bytes, Record | None]] = [
        (b"path/%05d" % number, None if number % 5 else Record.of(b"new")) for number in range(200, 400, 2)]
    rule = SplitRule(raggedness=40)
    local = CommittedRanges(MemoryObjects(), rule=rule, range_format=ParquetFormat())
    expected = local.apply(local.apply(None, content).metarange_id, changes)
    with bucket() as objects:
        committed = CommittedRanges(objects, rule=rule, range_format=ParquetFormat())
        base = committed.apply(None, content).metarange_id
        merge = StagingMerge(spark, committed, bucket, partitions=2)
        for method, place, fault in (("GET", "/ranges/", Fault.FAIL), ("PUT", "/ranges/", Fault.LOSE_ANSWER),
                                     ("PUT", "/ranges/", Fault.REFUSE), ("PUT", "/metaranges/", Fault.FAIL)):
            proxy.met.clear()
            proxy.after(0, fault, method, place)
            with contextlib.suppress(Exception):
                # Spark may have run the task again, or has raised.
                assert merge.apply(base, changes).metarange_id == expected.metarange_id
            assert proxy.met
            proxy.choose = lambda method, path: None
            assert dict(committed.scan(base)) == dict(content)
        applied = merge.apply(base, changes)
        assert applied.metarange_id == expected.metarange_id
        assert applied.ranges_reused
        assert list(committed.scan(applied.metarange_id)) == list(local.scan(expected.metarange_id))


# ------------------------------------------------------------------------------------- Parquet blocks, in the bucket


NAMES = ("b0", "b1", "b2")


def write_blocks(objects: ObjectStore, folder: BlockFolder) -> list[dict[str, Any]]:
    """Three blocks of fifty rows in four row groups; gives all rows."""
    tables = [pa.table({"key": [(7 * number + 3 * row) % 151 for row in range(50)],
                        "value": [f"{number} {row}" for row in range(50)]}) for number in range(3)]
    for name, table in zip(NAMES, tables, strict=True):
        out = io.BytesIO()
        parquet.write_table(table, out, row_group_size=13)
        objects.create(folder.key_of("acme", 3, name), out.getvalue())
    return [row for table in tables for row in table.to_pylist()]


def merge_blocks(spark: SparkSession, folder: BlockFolder, fence: MemoryFence, token: int) -> tuple[BlockMeta, ...]:
    plan = JobPlan(name="job", tenant="acme", shard=3, compaction_level=0, source_blocks=NAMES)
    job = RunningJob(Start(1, plan, token, 100.0), Budget(), ManualClock(0.0))
    merge = MergeBlocks(spark, folder, fence, MergeOptions(sort_by=("key",), target_bytes=1500, time_column="key"))
    done: tuple[BlockMeta, ...] = merge(job).new_blocks
    return done


def blocks_in(objects: ObjectStore, folder: BlockFolder, ids: Iterable[str]) -> list[bytes]:
    return [objects.get(folder.key_of("acme", 3, each)) for each in ids]


def rows_of(blocks: Iterable[bytes]) -> list[dict[str, Any]]:
    return [row for block in blocks for row in parquet.read_table(pa.BufferReader(block)).to_pylist()]


def by_key(row: dict[str, Any]) -> tuple[int, str]:
    return row["key"], row["value"]


@attrs.frozen
class BucketThatKills:
    """Opens a bucket for a worker that dies once: when its object is there, before it could say so."""

    bucket: OpenBucket
    mark: str

    def __call__(self) -> RemoteObjects:
        store, mark = self.bucket(), self.mark
        create = store.create

        def created(key: str, data: bytes | memoryview) -> ObjectRef:
            made = create(key, data)
            with contextlib.suppress(FileExistsError):
                os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
                os.kill(os.getpid(), signal.SIGKILL)
            return made

        store.create = created  # type: ignore[method-assign]
        return store


@pytest.mark.spark
@pytest.mark.usefixtures("by_value")
def test_blocks_of_a_bucket_are_merged_as_those_of_a_folder_also_when_a_worker_dies(
        spark: SparkSession, bucket: OpenBucket, tmp_path: Path) -> None:
    local = functools.partial(LocalObjects, str(tmp_path / "blocks"))
    found = []
    for opener in (local, bucket, BucketThatKills(bucket, str(tmp_path / "died"))):
        folder = BlockFolder(opener, prefix="killed/" if opener is not local and opener is not bucket else "some/")
        with (bucket if isinstance(opener, BucketThatKills) else opener)() as objects:
            rows = write_blocks(objects, folder)
            fence = MemoryFence()
            made = merge_blocks(spark, folder, fence, 7)
            blocks = blocks_in(objects, folder, (block.id for block in made))
            committed = fence.committed("job")
            assert committed is not None
            assert json.loads(committed.value) == [block.id for block in made]
            assert sorted(rows_of(blocks), key=by_key) == sorted(rows, key=by_key)
            keys_in_order = [row["key"] for row in rows_of(blocks)]
            assert keys_in_order == sorted(keys_in_order)
            assert len(made) > 1
            assert [(block.min_time, block.rows) for block in made] == [
                (rows_of([block])[0]["key"], len(rows_of([block]))) for block in blocks]
            found.append((made, blocks))
            # Nothing else was written.
            assert len(list(objects.list(folder.prefix))) == len(NAMES) + len(made)
    assert found[0] == found[1] == found[2]
    assert (tmp_path / "died").exists()


@pytest.mark.spark
@pytest.mark.usefixtures("by_value")
@pytest.mark.parametrize("fault", Fault)
def test_a_merge_of_blocks_of_which_a_request_goes_wrong_is_whole_or_has_not_happened(
        spark: SparkSession, bucket: OpenBucket, proxy: S3Proxy, fault: Fault) -> None:
    fence, folder = MemoryFence(), BlockFolder(bucket)
    with OpenBucket(servers.moto(), bucket.name)() as objects:
        rows = sorted(write_blocks(objects, folder), key=by_key)
        sources, done = keys(bucket), None
        # Of the reads, the first are this process's, the last the workers'. One is wrong, or all are from there on.
        for token, (method, number, forever) in enumerate(
                (("HEAD", 0, False), ("GET", 16, False), ("PUT", 1, False), ("PUT", 1, True)), 1):
            if fault is (Fault.CUT_ANSWER if method == "PUT" else Fault.CUT_REQUEST):
                continue
            proxy.met.clear()
            seen = itertools.count()
            proxy.choose = lambda asked, path, method=method, number=number, forever=forever, seen=seen: (  # type: ignore[misc]
                fault if asked == method and "block-" in path
                and ((at := next(seen)) == number or (forever and at > number)) else None)
            try:
                made = merge_blocks(spark, folder, fence, token)
            except Exception:
                # Spark may have run the task again, or has raised.
                made = ()
            assert proxy.met, (method, number)
            proxy.choose = lambda method, path: None
            committed = fence.committed("job")
            if made:
                assert committed is not None
                assert (committed.token, json.loads(committed.value)) == (token, [block.id for block in made])
                assert sorted(rows_of(blocks_in(objects, folder, (block.id for block in made))), key=by_key) == rows
                done = made
                # The other merges' blocks were removed, or are when nobody knows them.
            else:
                assert committed is None or committed.token < token
            known = [*(BlockMeta(id=name, tenant="acme", shard=3, level=0) for name in NAMES), *(done or ())]
            left = sorted({*sources, *(folder.key_of("acme", 3, block.id) for block in done or ())})
            # A task of a job that has failed may go on for a while, and put its block behind a sweep.
            for _ in range(2000):
                folder.sweep(known, now=FAR_FUTURE, older_than_seconds=1.0)
                if (found := keys(bucket)) == left:
                    break
                threading.Event().wait(0.01)
            assert found == left
        made = merge_blocks(spark, folder, fence, 100)
        assert sorted(rows_of(blocks_in(objects, folder, (block.id for block in made))), key=by_key) == rows


@pytest.mark.spark
@pytest.mark.usefixtures("by_value")
def test_what_another_attempt_has_left_is_taken_if_it_is_the_same_and_never_replaced(
        spark: SparkSession, bucket: OpenBucket) -> None:
    folder = BlockFolder(bucket)
    with bucket() as objects:
        write_blocks(objects, folder)
        made = merge_blocks(spark, folder, MemoryFence(), 7)
        first = blocks_in(objects, folder, (block.id for block in made))
        # As by a driver that died before it committed, and one whose commit was not answered.
        assert merge_blocks(spark, folder, MemoryFence(), 7) == made
        objects.delete(folder.key_of("acme", 3, made[0].id))
        objects.create(folder.key_of("acme", 3, made[0].id), b"another")
        with pytest.raises(Exception, match="ObjectExists"):
            merge_blocks(spark, folder, MemoryFence(), 7)
        assert blocks_in(objects, folder, (block.id for block in made)) == [b"another", *first[1:]]


# --------------------------------------------------------------------------------------------------- large and early


class Noting(MemoryObjects):
    """Keeps the sizes of what goes through it; opened again, it is the same one."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []
        self.opened = 0

    def create(self, key: str, data: bytes | memoryview) -> ObjectRef:
        self.sizes.append(memoryview(data).nbytes)
        return super().create(key, data)

    def __call__(self) -> Noting:
        self.opened += 1
        return self

    def close(self) -> None:
        """It is used again."""


@pytest.mark.parametrize("part_bytes", [1, 7, 64, 1 << 20])
def test_no_piece_is_larger_than_a_part(tmp_path: Path, part_bytes: int) -> None:
    (ours,), (theirs,) = build_logs(tmp_path / "ours", 1), build_logs(tmp_path / "theirs", 1)
    store = Noting()
    assert isinstance(compacted(ours, ObjectsExecutor(LocalExecutor(), store, part_bytes=part_bytes)), Done)
    compacted(theirs, LocalExecutor())
    assert contents(ours) == contents(theirs)
    assert 0 < max(store.sizes) <= part_bytes
    assert list(store.list()) == []


def test_whoever_leaves_early_leaves_nothing_that_still_runs(tmp_path: Path) -> None:
    """What runs ends before its objects are deleted: it would fail for want of its input, or put something later."""
    folder = build_logs(tmp_path / "logs", 5)[4]
    store = Noting()
    there_at_the_end: list[int] = []

    class Watching:
        def run(self, tasks: Iterable[RewriteTask], *, budget: Budget | None = None,
                observer: Observer | None = None) -> Generator[RewriteOutcome, None, None]:
            try:
                yield from LocalExecutor().run(tasks, budget=budget, observer=observer)
            finally:
                there_at_the_end.append(len(list(store.list())))

    collected: list[Any] = []

    class Collecting:
        def run(self, tasks: Iterable[RewriteTask], **given: Any) -> Iterator[RewriteOutcome]:
            collected.extend(tasks)
            return LocalExecutor().run(collected, **given)

    compacted(folder, Collecting())
    outcomes = ObjectsExecutor(Watching(), store).run([attrs.evolve(task, name=f"{number}") for number in range(3)
                                                       for task in collected[:1]])
    assert isinstance(next(outcomes), RewriteResult | RewriteFailure)
    outcomes.close()
    assert there_at_the_end[0] > 0
    assert list(store.list()) == []


def test_an_executor_that_lost_the_store_is_told(tmp_path: Path) -> None:
    """A result that names plain files did not go through the store."""
    (folder,) = build_logs(tmp_path / "logs", 1)

    class Forgetting:
        def run(self, tasks: Iterable[Any], **given: Any) -> Iterator[RewriteOutcome]:
            return LocalExecutor().run([attrs.evolve(task.task, name=task.name) for task in tasks], **given)

    outcome = compacted(folder, ObjectsExecutor(Forgetting(), Noting()))
    assert isinstance(outcome, Failed)
    assert "names no file in an object store" in str(outcome.error)


def test_one_job_of_many_stores_goes_through_one_bucket(bucket: OpenBucket, tmp_path: Path) -> None:
    folders = build_logs(tmp_path / "logs", 3)
    told = [entries(folder) for folder in folders]
    executor = through(bucket, LocalExecutor(workers=2), part_bytes=1000)
    for folder, before in zip(folders, told, strict=True):
        assert isinstance(job(folder).compact(executor, Budget()), Done)
        after = {entry.index: entry for entry in entries(folder)}
        assert after
        assert all(entry in before for entry in after.values())
    assert keys(bucket) == []
