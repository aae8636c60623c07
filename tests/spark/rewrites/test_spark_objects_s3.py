# SPDX-License-Identifier: Apache-2.0
"""Rewrites of ranges and blocks that lie in a bucket of a real S3 server, also with requests that are refused or cut.

Whatever happens to one request, or to a worker: what is in the bucket is what it was or is rewritten, and the next run
succeeds.
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
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pyarrow as pa
import pytest
from pyarrow import parquet
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from compactlib.budget import Budget
from compactlib.clock import ManualClock
from compactlib.fences import MemoryFence
from compactlib.objects import LocalObjects, MemoryObjects, ObjectRef, ObjectStore, RemoteObjects
from compactlib.scheduler import BlockMeta, JobPlan, RunningJob
from compactlib.spark import BlockFolder, MergeBlocks, MergeOptions, StagingMerge
from compactlib.staging import CommittedRanges, ParquetFormat, Record, SplitRule
from tests.harness.kv import servers
from tests.harness.objects import s3_servers
from tests.spark.rewrites import s3_stores
from tests.spark.rewrites.s3_faults import Fault, S3Proxy
from tests.spark.rewrites.s3_stores import OpenBucket

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
    name = f"rewrites-{next(_numbers)}"
    s3_servers.make_bucket(servers.moto(), name)
    return OpenBucket(proxy.address, name)


def keys(bucket: OpenBucket) -> list[str]:
    with OpenBucket(servers.moto(), bucket.name)() as store:
        return [info.key for info in store.list()]


@pytest.fixture
def by_value() -> Iterator[None]:
    """The bucket's class is importable here only, so it travels by value, as a notebook's does."""
    for module in (s3_stores, sys.modules[__name__]):
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    yield
    for module in (s3_stores, sys.modules[__name__]):
        cloudpickle.unregister_pickle_by_value(module)  # type: ignore[no-untyped-call]


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
    job = RunningJob(plan, token, 100.0, budget=Budget(), clock=ManualClock(0.0))
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
        objects.delete([folder.key_of("acme", 3, made[0].id)])
        objects.create(folder.key_of("acme", 3, made[0].id), b"another")
        with pytest.raises(Exception, match="ObjectExists"):
            merge_blocks(spark, folder, MemoryFence(), 7)
        assert blocks_in(objects, folder, (block.id for block in made)) == [b"another", *first[1:]]
