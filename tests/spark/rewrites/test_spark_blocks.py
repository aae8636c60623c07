# SPDX-License-Identifier: Apache-2.0
"""Merging Parquet blocks as a DataFrame job: contents, order, sizes, ids, and that a late worker leaves nothing."""

from __future__ import annotations

import datetime
import itertools
import json
import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings, strategies as st
from pyarrow import parquet
from pyspark.sql import SparkSession

from compactlib.budget import Budget
from compactlib.clock import ManualClock
from compactlib.errors import CorruptData, InvalidInput
from compactlib.fences import FencedOff, KVFence, MemoryFence
from compactlib.kv import MemoryStore
from compactlib.kv.errors import OutcomeUnknown
from compactlib.scheduler import (
    BlockMeta,
    JobPlan,
    NoOutput,
    RunningJob,
)
from compactlib.spark import MergeBlocks
from tests.spark.block_files import LocalBlocks

pytestmark = pytest.mark.spark

EPOCH = datetime.datetime(2026, 11, 21, tzinfo=datetime.UTC)
COLUMNS: list[tuple[str, pa.DataType]] = [
    ("service", pa.string()), ("at", pa.timestamp("us", tz="UTC")), ("count", pa.uint16()), ("payload", pa.binary()),
]
SCHEMA = pa.schema(COLUMNS)
WRITTEN = SCHEMA.set(2, pa.field("count", pa.int32()))
"""The columns as Spark writes them."""


def rows(seed: int, count: int) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    return [{"service": rng.choice(["a", "b", "größe", None]),
             "at": EPOCH + datetime.timedelta(seconds=rng.randrange(9999)),
             "count": rng.randrange(60_000), "payload": rng.randbytes(20)} for _ in range(count)]


def write_block(folder: LocalBlocks, block_id: str, content: list[dict[str, Any]], *, tenant: str = "acme",
                schema: pa.Schema = SCHEMA) -> None:
    path = folder.path_of(tenant, 3, block_id)
    parquet.write_table(pa.Table.from_pylist(content, schema=schema), path)


def read_block(folder: LocalBlocks, block_id: str, tenant: str = "acme") -> pa.Table:
    return parquet.read_table(folder.path_of(tenant, 3, block_id), partitioning=None)


def running(sources: list[str], token: int = 7, tenant: str = "acme", known: tuple[BlockMeta, ...] = ()) -> RunningJob:
    plan = JobPlan(name="the-job", tenant=tenant, shard=3, compaction_level=0, source_blocks=tuple(sources))
    clock = ManualClock(0.0)
    return RunningJob(plan, token, 100.0, known, budget=Budget(clock=clock), clock=clock)


def order(row: dict[str, Any]) -> tuple[Any, ...]:
    return (row["service"] is not None, row["service"] or "", row["at"])


def files_of(folder: LocalBlocks) -> set[str]:
    return {str(path.relative_to(folder.folder)) for path in Path(folder.folder).rglob("*") if path.is_file()}


def test_outputs_without_a_time_column_have_the_sources_span(spark: SparkSession,
                                                             tmp_path: Path) -> None:
    folder = LocalBlocks(tmp_path / "blocks")
    known = tuple(BlockMeta(id=f"b{number}", tenant="acme", shard=3, level=0, min_time=1e6 + number,
                            max_time=2e6 + number) for number in range(3))
    for number, block in enumerate(known):
        write_block(folder, block.id, rows(number, 40))
    job = running([block.id for block in known], known=known)
    options: dict[str, Any] = {"sort_by": ("at",), "target_bytes": 2_000}
    blocks = MergeBlocks(spark, folder, MemoryFence(), **options)(job).new_blocks
    assert len(blocks) > 1
    assert {(block.min_time, block.max_time) for block in blocks} == {(1e6, 2e6 + 2)}


def test_rows_that_the_poll_counts_otherwise_are_damage(spark: SparkSession, tmp_path: Path) -> None:
    folder = LocalBlocks(tmp_path / "blocks")
    write_block(folder, "b0", rows(0, 30))
    known = (BlockMeta(id="b0", tenant="acme", shard=3, level=0, rows=31),)
    with pytest.raises(CorruptData, match=r"b0.*31 rows, as the metadata of the block says"):
        MergeBlocks(spark, folder, MemoryFence(), sort_by=("at",))(running(["b0"], known=known))


def test_blocks_become_one_sorted_block(spark: SparkSession, tmp_path: Path) -> None:
    folder = LocalBlocks(tmp_path / "blocks")
    contents = [rows(seed, 40) for seed in range(5)]
    for number, content in enumerate(contents):
        write_block(folder, f"b{number}", content)
    before = files_of(folder)
    options: dict[str, Any] = {"sort_by": ("service", "at"), "time_column": "at"}
    job = running([f"b{number}" for number in range(5)])
    done = MergeBlocks(spark, folder, MemoryFence(), **options)(job)
    (block,) = done.new_blocks
    assert block.id == job.output_id()
    assert (block.tenant, block.shard, block.level) == ("acme", 3, 1)
    assert done.source_blocks == job.plan.source_blocks
    table = read_block(folder, block.id)
    assert table.schema.equals(WRITTEN)
    found = table.to_pylist()
    assert [order(row) for row in found] == sorted(order(row) for content in contents for row in content)
    wanted = sorted((row for content in contents for row in content), key=lambda row: bytes(row["payload"]))
    assert sorted(found, key=lambda row: bytes(row["payload"])) == wanted
    times = [row["at"].timestamp() for row in found]
    assert (block.min_time, block.max_time) == (min(times), max(times))
    assert block.size_bytes == os.path.getsize(folder.path_of("acme", 3, block.id))
    assert files_of(folder) - before == {os.path.relpath(folder.path_of("acme", 3, block.id), folder.folder)}
    # Once more, as the same worker would after a lost answer: the same id, the same bytes.
    first = Path(folder.path_of("acme", 3, block.id)).read_bytes()
    assert MergeBlocks(spark, folder, MemoryFence(), **options)(job).new_blocks == (block,)
    assert Path(folder.path_of("acme", 3, block.id)).read_bytes() == first


def test_several_blocks_of_about_a_size_whose_keys_do_not_overlap(spark: SparkSession, tmp_path: Path) -> None:
    folder, fence = LocalBlocks(tmp_path / "blocks"), KVFence(MemoryStore())
    contents = [rows(seed, 400) for seed in range(4)]
    for number, content in enumerate(contents):
        write_block(folder, f"b{number}", content)
    size = sum(os.path.getsize(folder.path_of("acme", 3, f"b{number}")) for number in range(4))
    options: dict[str, Any] = {"sort_by": ("payload",), "target_bytes": size // 3}
    job = running(["b0", "b1", "b2", "b3"])
    done = MergeBlocks(spark, folder, fence, **options)(job)
    assert 3 <= len(done.new_blocks) <= 4
    assert [block.id for block in done.new_blocks] == [job.output_id(number=number)
                                                       for number in range(len(done.new_blocks))]
    tables = [read_block(folder, block.id).to_pylist() for block in done.new_blocks]
    keys = [row["payload"] for table in tables for row in table]
    assert keys == sorted(row["payload"] for content in contents for row in content)
    assert max(map(len, tables)) < 2 * min(map(len, tables))
    committed = fence.committed("the-job")
    assert committed is not None
    assert json.loads(committed.value) == [block.id for block in done.new_blocks]
    # Repeated with the same token: the same cuts, and so the same list, which the fence takes again.
    assert MergeBlocks(spark, folder, fence, **options)(job) == done
    assert [read_block(folder, block.id).to_pylist() for block in done.new_blocks] == tables


def test_one_key_stays_in_one_block_and_missing_keys_come_first(spark: SparkSession, tmp_path: Path) -> None:
    folder = LocalBlocks(tmp_path / "blocks")
    content = [{**row, "service": service} for service, many in ((None, 30), ("x", 300), ("y", 30))
               for row in rows(many, many)]
    write_block(folder, "b0", content)
    write_block(folder, "b1", [])
    size = sum(os.path.getsize(folder.path_of("acme", 3, name)) for name in ("b0", "b1"))
    done = MergeBlocks(spark, folder, MemoryFence(),
                       sort_by=("service",), target_bytes=size // 8)(running(["b0", "b1"]))
    found = [{row["service"] for row in read_block(folder, block.id).to_pylist()} for block in done.new_blocks]
    assert found[0] >= {None}
    assert sum("x" in services for services in found) == 1
    assert sum(read_block(folder, block.id).num_rows for block in done.new_blocks) == 360


def test_missing_and_empty_sources_are_named(spark: SparkSession, tmp_path: Path) -> None:
    folder = LocalBlocks(tmp_path / "blocks")
    merge = MergeBlocks(spark, folder, MemoryFence(), sort_by=("count",))
    assert merge(running(["b0", "b1"])).no_output is NoOutput.MISSING
    write_block(folder, "b1", [])
    done = merge(running(["b0", "b1"]))
    assert (done.source_blocks, done.new_blocks, done.no_output) == (("b1",), (), NoOutput.EMPTY)
    write_block(folder, "b2", rows(2, 5))
    done = merge(running(["b0", "b1", "b2"]))
    assert done.source_blocks == ("b1", "b2")
    assert read_block(folder, done.new_blocks[0].id).num_rows == 5


def test_names_of_every_kind_are_read_and_written(spark: SparkSession, tmp_path: Path) -> None:
    folder = LocalBlocks(tmp_path / "blocks")
    tenant = "_a/b=c {x}*%41.größe"
    for number, block_id in enumerate(("_hidden", ".dot", "a=b", "x/y [z]", "%2F")):
        write_block(folder, block_id, rows(number, 3), tenant=tenant)
    done = MergeBlocks(spark, folder, MemoryFence(), sort_by=("count",))(
        running(["_hidden", ".dot", "a=b", "x/y [z]", "%2F"], tenant=tenant))
    assert read_block(folder, done.new_blocks[0].id, tenant).num_rows == 15


def test_a_worker_that_lost_its_job_commits_nothing(spark: SparkSession, tmp_path: Path) -> None:
    folder = LocalBlocks(tmp_path / "blocks")
    for number in range(2):
        write_block(folder, f"b{number}", rows(number, 10))

    class Overtaken(MemoryFence):
        def commit(self, resource: str, token: int, value: bytes) -> Any:
            self.admit(resource, 9)
            return super().commit(resource, token, value)

    fence = Overtaken()
    merge = MergeBlocks(spark, folder, fence, sort_by=("count",))
    with pytest.raises(FencedOff, match="token 7 is stale"):
        merge(running(["b0", "b1"], 7))
    assert fence.committed("the-job") is None
    done = merge(running(["b0", "b1"], 9))
    assert read_block(folder, done.new_blocks[0].id).num_rows == 20
    with pytest.raises(FencedOff):
        merge(running(["b0", "b1"], 8))


def test_blocks_that_may_be_committed_stay(spark: SparkSession, tmp_path: Path) -> None:
    folder = LocalBlocks(tmp_path / "blocks")
    for number in range(2):
        write_block(folder, f"b{number}", rows(number, 10))

    class Unanswered(MemoryFence):
        def commit(self, resource: str, token: int, value: bytes) -> Any:
            super().commit(resource, token, value)
            raise OutcomeUnknown(operation="set_if", path="the fence", detail="no answer")

    fence = Unanswered()
    with pytest.raises(OutcomeUnknown):
        MergeBlocks(spark, folder, fence, sort_by=("count",))(running(["b0", "b1"], 7))
    committed = fence.committed("the-job")
    assert committed is not None
    for block_id in json.loads(committed.value):
        assert read_block(folder, block_id).num_rows == 20


COUNTED = [(number * 5 + 2) % 7 for number in range(7)]
TYPES: list[tuple[pa.Array[Any], pa.DataType]] = [
    *((pa.array(COUNTED, small), large) for small, large in (
        (pa.int8(), pa.int8()), (pa.uint8(), pa.int16()), (pa.uint32(), pa.int64()),
        (pa.uint64(), pa.decimal128(20, 0)), (pa.float32(), pa.float32()),
        (pa.date32(), pa.date32()),
        (pa.timestamp("ms"), pa.timestamp("us")), (pa.timestamp("s", "Asia/Tokyo"), pa.timestamp("us", "UTC")))),
    *((pa.array([f"größe {each}" for each in COUNTED]).cast(kind), pa.string())
      for kind in (pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string()))),
    *((pa.array([b"%02d" % each for each in COUNTED], kind), pa.binary())
      for kind in (pa.binary(), pa.binary(2), pa.large_binary())),
    (pa.array([None, True, False] * 2 + [None]), pa.bool_()),
    (pa.array([[each, None] for each in COUNTED], pa.list_(pa.uint16())), pa.list_(pa.field("element", pa.int32()))),
    (pa.array([{"a.b": each, "c": [{"d": "x"}]} for each in COUNTED]),
     pa.struct([("a.b", pa.int64()), ("c", pa.list_(pa.field("element", pa.struct([("d", pa.string())]))))])),
    (pa.array([[("x", each)] for each in COUNTED], pa.map_(pa.string(), pa.uint8())), pa.map_(pa.string(), pa.int16())),
]


@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
def test_values_of_all_types_come_through_in_one_that_spark_has(spark: SparkSession, tmp_path: Path,
                                                                zone: str) -> None:
    folder = LocalBlocks(tmp_path / "blocks")
    names = [f"column `{number}` of {len(TYPES)}.x" for number in range(len(TYPES))]
    table = pa.table([values for values, _ in TYPES], names=names)
    parquet.write_table(table, folder.path_of("acme", 3, "b0"))
    before = spark.conf.get("spark.sql.session.timeZone")
    assert before is not None
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        merge = MergeBlocks(spark, folder, MemoryFence(), sort_by=(names[0],), time_column=names[7])
        (block,) = merge(running(["b0"])).new_blocks
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)
    written = pa.schema(list(zip(names, (kind for _, kind in TYPES), strict=True)))
    found = read_block(folder, block.id)
    assert found.schema.equals(written)
    assert found.to_pylist() == table.sort_by(names[0]).cast(written).to_pylist()
    assert (block.min_time, block.max_time) == (0.0, 6.0)


def test_times_finer_than_microseconds_are_refused_and_not_cut_off(spark: SparkSession, tmp_path: Path) -> None:
    folder = LocalBlocks(tmp_path / "blocks")
    parquet.write_table(pa.table({"at": pa.array([1], pa.timestamp("ns"))}), folder.path_of("acme", 3, "b0"))
    before = files_of(folder)
    with pytest.raises(Exception, match=r"block-b0\.parquet: .*; Spark holds times in microseconds"):
        MergeBlocks(spark, folder, MemoryFence(), sort_by=("at",))(running(["b0"]))
    assert files_of(folder) == before


def test_rows_with_maps_are_sorted_in_one_order(spark: SparkSession, tmp_path: Path) -> None:
    """A repeated attempt could not continue the first one's output: rows of equal keys were in another order."""
    of_map = pa.map_(pa.string(), pa.int64())
    schema = pa.schema([("key", pa.int64()), ("map", of_map),
                        ("in.side", pa.struct([("a.b", pa.list_(pa.map_(pa.int32(), of_map)))]))])
    written = []
    for sources in (["b0", "b1", "b2"], ["b2", "b1", "b0"]):
        folder = LocalBlocks(tmp_path / "-".join(sources))
        for number in range(3):
            row = {"key": 1, "map": [("x", number)], "in.side": {"a.b": [[(number, [("y", 1)])]]}}
            alike = {"key": 1, "map": [("x", -1)], "in.side": {"a.b": [[(number, [])]]}}
            write_block(folder, f"b{number}", [row, alike, {"key": 1, "map": None, "in.side": None}], schema=schema)
        merge = MergeBlocks(spark, folder, MemoryFence(), sort_by=("key",))
        (block,) = merge(running(sources)).new_blocks
        written.append(Path(folder.path_of("acme", 3, block.id)).read_bytes())
    assert written[0] == written[1]


def test_bad_blocks_are_named(spark: SparkSession, tmp_path: Path) -> None:
    folder = LocalBlocks(tmp_path / "blocks")
    write_block(folder, "b0", rows(0, 3))
    write_block(folder, "other", [{"service": "a"}], schema=pa.schema([("service", pa.string())]))
    merge = MergeBlocks(spark, folder, MemoryFence(), sort_by=("count",))
    with pytest.raises(InvalidInput, match="block 'other' has the columns service string, block 'b0' has service"):
        merge(running(["b0", "other"]))
    with pytest.raises(InvalidInput, match="no column 'size'; they have service string"):
        MergeBlocks(spark, folder, MemoryFence(), sort_by=("size",))(running(["b0"]))
    Path(folder.path_of("acme", 3, "b1")).write_bytes(b"PAR1 no more")
    with pytest.raises(CorruptData, match=r"block-b1\.parquet"):
        merge(running(["b0", "b1"]))
    with pytest.raises(InvalidInput, match="sort_by is empty"):
        MergeBlocks(spark, folder, MemoryFence(), sort_by=())
    with pytest.raises(InvalidInput, match="target_bytes is 0"):
        MergeBlocks(spark, folder, MemoryFence(), sort_by=("a",), target_bytes=0)


Rows = list[tuple[str | None, int, bytes]]
"""Service, count and payload; the time is the row's place, which no other row has."""
ROWS = st.lists(st.tuples(st.sampled_from([None, "", "a", "b\0", "größe"]), st.integers(0, 65535),
                          st.binary(max_size=30)), min_size=1, max_size=60)
HUGE: Rows = [("a", 1, bytes(range(256)) * 4096), *[("a", n, b"") for n in range(9)]]
_folders = itertools.count()


def dealt(content: Rows, blocks: Sequence[int]) -> list[list[dict[str, Any]]]:
    """The rows in blocks: each goes to one that `blocks` names, in turn; the others stay empty."""
    found: list[list[dict[str, Any]]] = [[] for _ in range(1 + max(blocks))]
    for place, (service, count, payload) in enumerate(content):
        found[blocks[place % len(blocks)]].append({"service": service, "at": EPOCH + datetime.timedelta(seconds=place),
                                                   "count": count, "payload": payload})
    return found


@settings(max_examples=2, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=ROWS, blocks=st.lists(st.integers(0, 5), min_size=1, max_size=8))
@example(content=HUGE, blocks=[2])
@example(content=[("a", n, b"x") for n in range(40)], blocks=list(range(40)))
def test_a_merge_gives_the_rows_of_a_plain_sort_here(spark: SparkSession, tmp_path: Path, content: Rows,
                                                     blocks: list[int]) -> None:
    """One huge row, many blocks of one row, blocks that are empty, and what Hypothesis finds; no two keys are equal."""
    base = tmp_path / str(next(_folders))
    folder = LocalBlocks(base)
    named = dict(enumerate(dealt(content, blocks)))
    for number, rows_of_block in named.items():
        write_block(folder, f"b{number}", rows_of_block)
    options: dict[str, Any] = {"sort_by": ("service", "at"), "time_column": "at"}
    done = MergeBlocks(spark, folder, MemoryFence(), **options)(running([f"b{number}" for number in named]))
    (block,) = done.new_blocks
    ordered: list[dict[str, Any]] = sorted(dealt(content, [0])[0], key=order)
    assert read_block(folder, block.id) == pa.Table.from_pylist(ordered, schema=WRITTEN)
