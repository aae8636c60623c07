# SPDX-License-Identifier: Apache-2.0
"""A merge of blocks removes no source whose rows it has not read, and dates no row that has no time."""

from __future__ import annotations

import random
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pyarrow as pa
import pytest
from pyarrow import parquet
from pyspark.sql import SparkSession

from compactlib.clock import ManualClock
from compactlib.commandlog import KVLog
from compactlib.errors import CorruptData, InvalidInput
from compactlib.fences import MemoryFence
from compactlib.kv import MemoryStore
from compactlib.objects import LocalObjects, ObjectRef
from compactlib.scheduler import BlockMeta, LevelConfig, Scheduler, SchedulerConfig, Worker
from compactlib.spark import BlockFolder, MergeBlocks

pytestmark = pytest.mark.spark

ODD = Path(__file__).with_name("data") / "repeated_no_annotation.parquet"
"""Of apache/parquet-testing: the footer says that it has 0 rows, its row group has 6."""
NOW = 1_790_000_000.0
SPAN = {"min_time": NOW - 100.0, "max_time": NOW + 400.0}


@attrs.frozen
class Blocks:
    """Blocks of one tenant and shard, with a scheduler that merges all of them and removes the sources."""

    folder: BlockFolder
    top: Path

    @classmethod
    def under(cls, top: Path) -> Blocks:
        return cls(BlockFolder(partial(LocalObjects, str(top))), top)

    def path_of(self, name: str) -> Path:
        path = self.top / self.folder.key_of("acme", 7, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def merged(self, spark: SparkSession, names: list[str], options: dict[str, Any],
               **told: Any) -> tuple[Scheduler, BaseException | None]:
        """Return the scheduler after a merge, a clean-up of leftovers, and retention of seven days; the first error."""
        clock = ManualClock(NOW)
        scheduler = Scheduler(KVLog(MemoryStore(), clock=clock), None,
                              SchedulerConfig(levels=(LevelConfig(max_blocks=len(names)),)))
        scheduler.add_blocks(BlockMeta(id=name, tenant="acme", shard=7, level=0, **told) for name in names)

        def cleanup(tombstone: Any) -> None:
            for name in tombstone.blocks:
                self.folder.delete(tombstone.tenant, tombstone.shard, name)

        worker = Worker(scheduler, MergeBlocks(spark, self.folder, MemoryFence(), **options), cleanup=cleanup,
                        clock=clock)
        error: BaseException | None = None
        for _ in range(6):
            worker.run_pending()
            error = error or worker.last_error
            clock.advance(600.0)
        worker.stop()
        scheduler.retain(NOW - 7 * 86_400.0)
        return scheduler, error

    def rows_of(self, scheduler: Scheduler) -> int:
        counts: list[int] = [parquet.read_table(self.path_of(block.id), partitioning=None).num_rows
                             for block in known(scheduler)]
        return sum(counts)


def known(scheduler: Scheduler) -> list[BlockMeta]:
    return scheduler.read(lambda machine: list(machine.index.blocks()))


def spans_of(scheduler: Scheduler) -> list[tuple[float | None, float | None]]:
    return [(block.min_time, block.max_time) for block in known(scheduler)]


def test_a_merge_removes_no_source_with_0_rows_in_a_footer(spark: SparkSession, tmp_path: Path) -> None:
    blocks = Blocks.under(tmp_path)
    for name in ("b0", "b1"):
        shutil.copy(ODD, blocks.path_of(name))
    scheduler, error = blocks.merged(spark, ["b0", "b1"], {"sort_by": ("id",)})
    assert "6 rows in its row groups" in str(error)
    assert blocks.path_of("b0").read_bytes() == blocks.path_of("b1").read_bytes() == ODD.read_bytes()
    assert not scheduler.status()["tombstones"]


@pytest.mark.parametrize("rows", [0, 6])
def test_a_merge_removes_no_source_when_metadata_is_wrong_as_well(spark: SparkSession, tmp_path: Path,
                                                                  rows: int) -> None:
    blocks = Blocks.under(tmp_path)
    for name in ("b0", "b1"):
        shutil.copy(ODD, blocks.path_of(name))
    _, error = blocks.merged(spark, ["b0", "b1"], {"sort_by": ("id",)}, rows=rows)
    assert "6 rows in its row groups" in str(error)
    assert blocks.path_of("b0").exists()
    assert blocks.path_of("b1").exists()


def test_a_merge_removes_no_source_with_0_rows_in_all_headers(spark: SparkSession, tmp_path: Path) -> None:
    """Two bytes of a footer that were lost: the rows are there still, and a column's chunk knows of them."""
    blocks = Blocks.under(tmp_path)
    for name in ("b0", "b1"):
        data = bytearray(ODD.read_bytes())
        start = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
        # The row group's own number of rows: field 3 of Thrift's compact protocol, an i64, of 6.
        place = data.rindex(b"\x16\x0c", start)
        data[place + 1] = 0
        blocks.path_of(name).write_bytes(data)
        group = parquet.read_metadata(blocks.path_of(name)).row_group(0)
        assert (group.num_rows, group.column(0).num_values) == (0, 6)
    _, error = blocks.merged(spark, ["b0", "b1"], {"sort_by": ("id",)})
    assert "6 values in column" in str(error)
    assert blocks.path_of("b0").exists()
    assert blocks.path_of("b1").exists()


def test_a_merge_removes_sources_that_it_saw_empty(spark: SparkSession, tmp_path: Path) -> None:
    blocks = Blocks.under(tmp_path)
    none = pa.table({"id": pa.array([], pa.int64())})
    for name in ("b0", "b1"):
        parquet.write_table(none, blocks.path_of(name))
    scheduler, error = blocks.merged(spark, ["b0", "b1"], {"sort_by": ("id",)})
    assert error is None
    assert not known(scheduler)
    assert not blocks.path_of("b0").exists()
    assert not blocks.path_of("b1").exists()


NONE_TIMED = [pa.array([None] * 100, pa.timestamp("us")), pa.array([float("nan")] * 100),
              pa.array([float("inf")] * 50 + [None] * 50)]


@pytest.mark.parametrize("times", NONE_TIMED, ids=["null", "nan", "infinite"])
def test_rows_without_times_have_the_span_of_the_sources(spark: SparkSession, tmp_path: Path, times: Any) -> None:
    blocks = Blocks.under(tmp_path)
    for name in ("b0", "b1"):
        parquet.write_table(pa.table({"at": times, "v": pa.array(range(100))}), blocks.path_of(name))
    scheduler, error = blocks.merged(spark, ["b0", "b1"], {"sort_by": ("v",), "time_column": "at"}, **SPAN)
    assert error is None
    assert spans_of(scheduler) == [(NOW - 100.0, NOW + 400.0)]
    assert blocks.rows_of(scheduler) == 200


def test_rows_without_times_have_no_time_if_the_sources_have_none(spark: SparkSession, tmp_path: Path) -> None:
    blocks = Blocks.under(tmp_path)
    times = pa.array([NOW] * 50 + [None] * 50, pa.float64())
    for name in ("b0", "b1"):
        parquet.write_table(pa.table({"at": times, "v": pa.array(range(100))}), blocks.path_of(name))
    scheduler, error = blocks.merged(spark, ["b0", "b1"], {"sort_by": ("v",), "time_column": "at"})
    assert error is None
    assert spans_of(scheduler) == [(None, None)]
    assert blocks.rows_of(scheduler) == 200


@pytest.mark.parametrize("options", [
    {"sort_by": ("v",), "time_column": "text"}, {"sort_by": ("v",), "time_column": "day"},
    {"sort_by": ("day",), "target_bytes": 1000}], ids=["text", "time_of_day", "outputs_by_time_of_day"])
def test_a_column_of_a_type_that_cannot_serve_is_named(spark: SparkSession, tmp_path: Path,
                                                       options: dict[str, Any]) -> None:
    blocks = Blocks.under(tmp_path)
    table = pa.table({"text": ["a"] * 100, "day": pa.array(range(100), pa.time64("us")), "v": pa.array(range(100))})
    for name in ("b0", "b1"):
        parquet.write_table(table, blocks.path_of(name))
    _, error = blocks.merged(spark, ["b0", "b1"], options, **SPAN)
    assert isinstance(error, InvalidInput)
    assert options.get("time_column", "day") in str(error)


def test_a_service_without_times_outlives_retention(spark: SparkSession, tmp_path: Path) -> None:
    """One of many services writes no times, and sorting by service gives it its own block."""
    blocks = Blocks.under(tmp_path)
    names = [f"service-{letter}" for letter in "abc"]
    table = pa.table({"service": pa.array([name for name in [*names, "zz"] for _ in range(250)]),
                      "at": pa.array([NOW - 100.0 + row for _ in names for row in range(250)] + [None] * 250),
                      "v": pa.array([str(row * 7_919 % 1_000) * 5 for row in range(1_000)])})
    for name in ("b0", "b1"):
        parquet.write_table(table, blocks.path_of(name), compression="none")
    options = {"sort_by": ("service",), "time_column": "at",
                           "target_bytes": blocks.path_of("b0").stat().st_size // 8}
    scheduler, error = blocks.merged(spark, ["b0", "b1"], options, **SPAN)
    assert error is None
    spans = spans_of(scheduler)
    assert len(spans) > 1
    assert (NOW - 100.0, NOW + 149.0) in spans
    assert (NOW - 100.0, NOW + 400.0) in spans
    assert blocks.rows_of(scheduler) == 2_000


def test_outputs_without_a_time_column_need_times_of_all_sources(spark: SparkSession,
                                                                 tmp_path: Path) -> None:
    blocks = Blocks.under(tmp_path)
    for name in ("b0", "b1"):
        parquet.write_table(pa.table({"v": pa.array(range(10))}), blocks.path_of(name))
    scheduler, error = blocks.merged(spark, ["b0", "b1"], {"sort_by": ("v",)})
    assert error is None
    assert spans_of(scheduler) == [(None, None)]
    assert blocks.rows_of(scheduler) == 20


def test_a_merge_removes_no_source_when_its_output_is_damaged(spark: SparkSession, tmp_path: Path) -> None:
    """The output changed between the worker that wrote it and the commit."""

    class Unsound(LocalObjects):
        def create(self, key: str, data: bytes | memoryview) -> ObjectRef:
            ref = super().create(key, data)
            path = Path(self.folder) / key
            changed = bytearray(path.read_bytes())
            changed[len(changed) // 2] ^= 4
            path.chmod(0o600)
            path.write_bytes(changed)
            return ref

    blocks = Blocks(BlockFolder(partial(Unsound, str(tmp_path))), tmp_path)
    table = pa.table({"id": pa.array(range(500), pa.int64())})
    for name in ("b0", "b1"):
        parquet.write_table(table, blocks.path_of(name))
    scheduler, error = blocks.merged(spark, ["b0", "b1"], {"sort_by": ("id",)})
    assert "as written, found the digest" in str(error)
    assert [block.id for block in known(scheduler)] == ["b0", "b1"]
    assert all(parquet.read_table(blocks.path_of(name)).num_rows == 500 for name in ("b0", "b1"))
    assert not scheduler.status()["tombstones"]


@pytest.mark.parametrize("damage", ["pages", "bit"])
def test_a_source_with_a_damaged_page_is_named(spark: SparkSession, tmp_path: Path, damage: str) -> None:
    """A page that cannot be decompressed, and a flipped bit that only the checksum of its page shows."""
    blocks, rng = Blocks.under(tmp_path), random.Random(1)
    table = pa.table({"id": pa.array(range(2000), pa.int64()), "v": [rng.randbytes(50) for _ in range(2000)]})
    for name in ("b0", "b1"):
        parquet.write_table(table, blocks.path_of(name), use_dictionary=False, write_page_checksum=damage == "bit",
                            compression="none" if damage == "bit" else "zstd")
    data = bytearray(blocks.path_of("b1").read_bytes())
    if damage == "bit":
        data[data.index((321).to_bytes(8, "little"))] ^= 1
    else:
        data[len(data) // 3:len(data) // 3 + 512] = bytes(512)
    blocks.path_of("b1").write_bytes(data)
    scheduler, error = blocks.merged(spark, ["b0", "b1"], {"sort_by": ("id",)})
    assert isinstance(error, CorruptData)
    assert error.path.endswith("block-b1.parquet")
    assert [block.id for block in known(scheduler)] == ["b0", "b1"]
    assert not scheduler.status()["tombstones"]


def test_a_merged_block_has_page_checksums(spark: SparkSession, tmp_path: Path) -> None:
    blocks = Blocks.under(tmp_path)
    for name in ("b0", "b1"):
        parquet.write_table(pa.table({"id": range(100)}), blocks.path_of(name))
    scheduler, error = blocks.merged(spark, ["b0", "b1"], {"sort_by": ("id",)})
    assert error is None
    (block,) = known(scheduler)
    data = bytearray(blocks.path_of(block.id).read_bytes())
    column = parquet.ParquetFile(pa.BufferReader(bytes(data))).metadata.row_group(0).column(0)
    data[(column.dictionary_page_offset or column.data_page_offset) + column.total_compressed_size - 1] ^= 1
    with pytest.raises(OSError, match="CRC checksum verification failed"):
        parquet.read_table(pa.BufferReader(bytes(data)), page_checksum_verification=True)


def test_odd_files_are_merged_with_all_their_rows(spark: SparkSession, tmp_path: Path) -> None:
    """Columns of nulls alone, with and without a type; a file without a row group; pages of a dictionary."""
    blocks = Blocks.under(tmp_path)
    columns: list[tuple[str, pa.DataType]] = [("id", pa.int64()), ("nothing", pa.null()), ("unknown", pa.string()),
                                              ("word", pa.string())]
    schema = pa.schema(columns)
    rows = [{"id": number, "word": f"word {number % 3}"} for number in range(300)]
    parquet.write_table(pa.Table.from_pylist(rows[::2], schema=schema), blocks.path_of("b0"), use_dictionary=True)
    parquet.write_table(pa.Table.from_pylist(rows[1::2], schema=schema), blocks.path_of("b1"), use_dictionary=False,
                        data_page_version="2.0")
    parquet.ParquetWriter(blocks.path_of("b2"), schema).close()
    assert parquet.read_metadata(blocks.path_of("b2")).num_row_groups == 0
    scheduler, error = blocks.merged(spark, ["b0", "b1", "b2"], {"sort_by": ("id",)})
    assert error is None
    (block,) = known(scheduler)
    assert parquet.read_table(blocks.path_of(block.id)).to_pylist() == [
        {**row, "nothing": None, "unknown": None} for row in rows]


@pytest.mark.parametrize(("values", "kind"), [
    (pa.array([3_723_000_000_007, None, 1], pa.time64("ns")), pa.time64("ns")),
    (pa.array([3_723_000_000, None, 1], pa.time64("us")), pa.time64("ns")),
    (pa.array([3_723_000, None, 1], pa.time32("ms")), pa.time64("ns")),
    (pa.array(["1.25", None, "-3.00"]).cast(pa.decimal128(30, 2)).cast(pa.decimal256(30, 2)), pa.decimal128(30, 2)),
], ids=str)
def test_times_of_a_day_and_wide_decimals_are_merged(spark: SparkSession, tmp_path: Path, values: Any,
                                                     kind: Any) -> None:
    blocks = Blocks.under(tmp_path)
    for name in ("b0", "b1"):
        parquet.write_table(pa.table({"id": [1, 2, 3], "v": values}), blocks.path_of(name))
    scheduler, error = blocks.merged(spark, ["b0", "b1"], {"sort_by": ("id",)})
    assert error is None
    (block,) = known(scheduler)
    found = parquet.read_table(blocks.path_of(block.id), partitioning=None)["v"].combine_chunks()
    assert found.equals(pa.array([value for value in values.cast(kind) for _ in range(2)], kind))


@pytest.mark.parametrize("kind", [pa.float16(), pa.decimal256(60, 2)], ids=str)
def test_a_column_without_a_type_in_spark_is_refused_by_name(spark: SparkSession, tmp_path: Path, kind: Any) -> None:
    blocks = Blocks.under(tmp_path)
    for name in ("b0", "b1"):
        parquet.write_table(pa.table({"id": [1], "odd": pa.array([None], kind)}), blocks.path_of(name))
    scheduler, error = blocks.merged(spark, ["b0", "b1"], {"sort_by": ("id",)})
    assert isinstance(error, InvalidInput)
    assert f"column 'odd' has the type {kind}" in str(error)
    assert [block.id for block in known(scheduler)] == ["b0", "b1"]
