# SPDX-License-Identifier: Apache-2.0
"""`MergeBlocks`: a worker's execute that merges Parquet blocks as a Spark DataFrame job, fenced.

Spark reads small blocks, sorts them by the given keys, and writes one block, or several of about a given size, whose
ranges of keys do not overlap. What comes out depends on the sources' rows and on the job's token alone: the cuts
between blocks come from a sample that is chosen by the keys' hash (`repartitionByRange` draws another one each time),
and rows of equal keys are ordered by their own hash. So an attempt that is repeated, by Spark or by the worker, writes
the same rows into the same blocks under the same ids.

Spark writes into a private folder. This process counts the rows of its files, makes the files durable, gives them their
names, which contain the token, and commits the list to the fence. A late worker's list is refused, and its files are
removed; those of the worker after it have other names.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, time
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs

from compactlib.errors import Busy, CorruptData, InvalidInput, StorageError
from compactlib.executors.tasks import new_attempt_id
from compactlib.files.disk import list_folder
from compactlib.objects import Digest
from compactlib.scheduler import BlockMeta, CompactedBlocks, FencedOff, NoOutput, RunningJob
from compactlib.scheduler.errors import CommittedOtherwise
from compactlib.scheduler.fences.fence import Fence
from compactlib.spark.dependencies import require_spark
from compactlib.spark.rewrites.block_folder import BlockFolder

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

_SAMPLES_PER_BLOCK = 200
_NOT_COMMITTED = (FencedOff, CommittedOtherwise, InvalidInput, Busy)
"""Answers of a fence after which its list is known not to name the blocks. After any other error it may."""


@attrs.frozen(kw_only=True)
class MergeOptions:
    """How blocks are merged.

    Attributes:
        sort_by: the columns to sort by, ascending, nulls first; at least one.
        target_bytes: about how large an output may become, counted in bytes of the sources' files; `None` for one
            output, whatever its size. Rows with equal keys stay together, so one key can make a block larger.
        time_column: a column of times (timestamps, dates, or numbers of seconds) from which the outputs' `min_time`
            and `max_time` are taken. Without it each output has the span of all sources, as the scheduler's metadata
            index knows it (`RunningJob.blocks`); 0.0 if it knows none, and retention by time then makes no sense.
        row_group_rows: most rows of one row group in the files.
        compression: of the files, as Spark's Parquet writer names it.

    Raises:
        InvalidInput: there is no key, or a number is less than 1.
    """

    sort_by: tuple[str, ...]
    target_bytes: int | None = None
    time_column: str | None = None
    row_group_rows: int = 100_000
    compression: str = "zstd"

    def __attrs_post_init__(self) -> None:
        if not self.sort_by:
            raise InvalidInput("sort_by is empty; name at least one column")
        if (self.target_bytes is not None and self.target_bytes < 1) or self.row_group_rows < 1:
            raise InvalidInput(f"target_bytes is {self.target_bytes}, row_group_rows {self.row_group_rows}; "
                               f"give at least 1")


_Block: TypeAlias = tuple[str, str, BlockMeta | None]
"""A Parquet file that is there: the block's id, the path, and its metadata if the poll carried it."""


class MergeBlocks:
    """An `Execute` for jobs whose sources are Parquet blocks. Any thread may call it.

    Columns come out as Spark's Parquet writer has them: an unsigned number as the next larger signed one, a timestamp
    in microseconds, a dictionary as its values.

    Args:
        spark: the session, classic or Spark Connect; the jobs run in a new one beside it. Its workers need not have
            the library.
        folder: where the blocks lie.
        fence: what every commit goes through, under the job's name.
        options: how to merge.

    Raises:
        MissingDependency: PySpark is not installed.
    """

    def __init__(self, spark: SparkSession, folder: BlockFolder, fence: Fence, options: MergeOptions) -> None:
        require_spark("merging blocks")
        # The type of timestamps is set for a session alone. Over Connect before 4.3, only a copy of one can be made.
        begin: Callable[[], SparkSession] = getattr(spark, "newSession", None) or getattr(spark, "cloneSession")  # noqa: B009
        self._spark: SparkSession = begin()
        self._spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
        self._folder = folder
        self._fence = fence
        self._options = options

    def __call__(self, job: RunningJob) -> CompactedBlocks:
        """Merge the job's sources.

        Raises:
            FencedOff: the job went to another worker; nothing of this attempt is left.
            JobLost: likewise, as the worker found out.
            InvalidInput: the sources' columns differ, or a key is not among them.
            CorruptData: a source is damaged, or rows were lost on the way.
            StorageError: the disk refused.
            OutcomeUnknown: the fence cannot say whether it has committed the list of blocks; they stay, in case it has.
            Exception: what Spark raises.
        """
        plan, known = job.plan, {block.id: block for block in job.blocks}
        self._fence.admit(plan.name, job.token)
        paths = {name: self._folder.path_of(plan.tenant, plan.shard, name) for name in plan.source_blocks}
        sources = tuple((name, path, known.get(name)) for name, path in paths.items() if os.path.exists(path))
        done = partial(CompactedBlocks, tenant=plan.tenant, shard=plan.shard,
                       source_blocks=tuple(name for name, _, _ in sources))
        if not sources:
            return done(no_output=NoOutput.MISSING)
        schema, rows = _read_footers(sources, few=True)
        for name in (*self._options.sort_by, self._options.time_column):
            if name is not None and name not in schema.names:
                raise InvalidInput(f"the blocks have no column {name!r}; they have {_columns(schema)}")
        if not rows:
            # Nothing will be written that could be counted.
            _read_footers(sources)
            return done(no_output=NoOutput.EMPTY)
        job.check()
        self._folder.make_folder(self._folder.private)
        private = os.path.join(self._folder.private, f"{job.output_id()}.{new_attempt_id()}")
        try:
            try:
                self._write(sources, schema, rows, private)
            except Exception:
                # Spark says that something cannot be read; the files say which, and why.
                _read_footers(sources)
                raise
            # Named by their parts' numbers, which ascend with the keys.
            names = sorted(name for name in list_folder(private) if name.startswith("part-"))
            outputs = [os.path.join(private, name) for name in names]
            written = [(path, *_footer((path, path, None))) for path in outputs]
            count = sum(count for _, _, count in written)
            if count != rows:
                raise CorruptData(path=os.path.dirname(sources[0][1]), offset=0,
                                  expected=f"{rows} rows of {len(sources)} blocks",
                                  found=f"{count} rows in {len(written)} outputs")
            job.check()
            return done(new_blocks=self._publish([each for each in written if each[2]], job))
        finally:
            # The disk may refuse that too; `sweep` removes what is left.
            with contextlib.suppress(StorageError):
                self._folder.remove(private)

    # -- the Spark job

    def _write(self, sources: Sequence[_Block], schema: pa.Schema, rows: int, private: str) -> None:
        from pyspark.sql import functions as f

        options = self._options
        columns = [f.col(_quoted(name)) for name in schema.names]
        keys = [f.col(_quoted(name)) for name in options.sort_by]
        # Paths on the machines' own disks, whatever file system the cluster takes a path for.
        frame = self._spark.read.parquet(*(f"file://{path}" for _, path, _ in sources)).select(*columns)
        size = sum(os.path.getsize(path) for _, path, _ in sources)
        cuts = self._cuts(frame, keys, rows, 1 if options.target_bytes is None else -(-size // options.target_bytes))
        frame = frame.repartitionById(len(cuts) + 1, _part(f.struct(*keys), cuts, 0)) if cuts else frame.coalesce(1)
        # Within equal keys by the rest of the row, so that files do not depend on who was faster. Maps have no hash.
        rest = [] if any("map<" in str(field.type) for field in schema) else [f.xxhash64(*columns)]
        ordered = frame.sortWithinPartitions(*(key.asc_nulls_first() for key in keys), *rest)
        writer = ordered.write.option("compression", options.compression).option("maxRecordsPerFile", 0)
        writer.option("parquet.block.row.count.limit", options.row_group_rows).parquet(f"file://{private}")

    @staticmethod
    def _cuts(frame: DataFrame, keys: list[Column], rows: int, count: int) -> list[Column]:
        """The first keys of all blocks but the first. The sample depends on the keys, not on how they are read."""
        from pyspark.sql import functions as f

        if count < 2:
            return []
        every = max(1, rows // (_SAMPLES_PER_BLOCK * count))
        # Structs are compared as rows are sorted: field by field, a null before all else.
        sample = frame.where(f.pmod(f.xxhash64(*keys), f.lit(every)) == 0).select(f.struct(*keys).alias("key"))
        ordered = [[bytes(value) if isinstance(value, bytearray) else value for value in row.key]
                   for row in sample.orderBy("key").collect()]
        fields: Any = sample.schema["key"].dataType
        # A key that is more than one block long gets one block.
        chosen = groupby(ordered[len(ordered) * number // count] for number in range(1, count if ordered else 0))
        return [f.struct(*(f.lit(value).cast(field.dataType).alias(field.name)
                           for value, field in zip(cut, fields, strict=True))) for cut, _ in chosen]

    # -- publishing

    def _publish(self, written: Sequence[tuple[str, pa.Schema, int]], job: RunningJob) -> tuple[BlockMeta, ...]:
        files, plan, column = self._folder.files, job.plan, self._options.time_column
        span = (min((block.min_time for block in job.blocks), default=0.0),
                max((block.max_time for block in job.blocks), default=0.0))
        blocks = tuple(
            BlockMeta(id=job.output_id(number=number), tenant=plan.tenant, shard=plan.shard,
                      level=plan.compaction_level + 1, min_time=begin, max_time=end, rows=rows,
                      size_bytes=os.path.getsize(path), columns=columns_of(schema))
            for number, (path, schema, rows) in enumerate(written)
            for begin, end in [span if column is None else _span(path, column)])
        paths = [self._folder.path_of(block.tenant, block.shard, block.id) for block in blocks]
        self._folder.make_folder(os.path.dirname(paths[0]))
        for (source, _, _), path in zip(written, paths, strict=True):
            out = files.open(source)
            try:
                out.sync()
            finally:
                out.close()
            files.rename(source, path)
        files.sync_folder(os.path.dirname(paths[0]))
        try:
            self._fence.commit(plan.name, job.token, json.dumps([block.id for block in blocks]).encode())
        except _NOT_COMMITTED:
            # The disk may refuse that too; the scheduler deletes what is left of them.
            with contextlib.suppress(StorageError):
                for path in paths:
                    self._folder.remove(path)
            raise
        return blocks


def columns_of(schema: pa.Schema) -> str:
    """What to give as `BlockMeta.columns` for a block of this Arrow schema: a digest of its columns' names and types.

    With it and `BlockMeta.rows`, a merge reads the footer of one of its sources before it begins, else of all.
    """
    return Digest.of("\n".join(str(field) for field in schema).encode()).hex


def _read_footers(blocks: Sequence[_Block], *, few: bool = False) -> tuple[pa.Schema, int]:
    """The columns of all blocks, and how many rows they have together.

    Args:
        blocks: the blocks, at least one.
        few: read the first footer alone, if the metadata says how many rows each has and that all have its columns.

    Raises:
        CorruptData: a file is damaged, or has not as many rows as its metadata says.
        InvalidInput: the columns differ.
    """
    footers = map(_footer, blocks)
    schema, rows = next(footers)
    told = [meta.rows for _, _, meta in blocks if meta is not None and meta.columns == columns_of(schema)
            and meta.rows is not None]
    if few and len(told) == len(blocks):
        return schema, sum(told)
    for (block_id, _, _), (own, count) in zip(blocks[1:], footers, strict=True):
        if own != schema:
            raise InvalidInput(f"block {block_id!r} has the columns {_columns(own)}, block {blocks[0][0]!r} has "
                               f"{_columns(schema)}; blocks of one tenant and shard need the same columns")
        rows += count
    return schema, rows


def _footer(block: _Block) -> tuple[pa.Schema, int]:
    import pyarrow as pa
    from pyarrow import parquet

    _, path, meta = block
    try:
        with parquet.ParquetFile(path) as file:
            schema, rows = file.schema_arrow.remove_metadata(), file.metadata.num_rows
    except (pa.ArrowException, OSError) as error:
        raise CorruptData(path=path, offset=0, expected="a Parquet file", found=str(error)) from error
    if meta is not None and meta.rows not in (None, rows):
        raise CorruptData(path=path, offset=0, expected=f"{meta.rows} rows, as the metadata of the block says",
                          found=f"{rows} rows")
    return schema, rows


def _span(path: str, column: str) -> tuple[float, float]:
    """The smallest and the largest time in a file, in seconds; 0.0 if there is none. Reads that column alone."""
    from pyarrow import compute, parquet

    with parquet.ParquetFile(path) as file:
        found: list[Any] = [compute.min_max(batch.column(0)).as_py() for batch in file.iter_batches(columns=[column])]
    times = [_seconds(value) for each in found for value in each.values() if value is not None]
    return min(times, default=0.0), max(times, default=0.0)


def _seconds(value: Any) -> float:
    """A number, timestamp or date as seconds since the epoch."""
    if hasattr(value, "year"):
        value = value if isinstance(value, datetime) else datetime.combine(value, time())
        return float((value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp())
    return float(value)


def _part(key: Column, cuts: Sequence[Column], first: int) -> Column:
    """Which of the parts that begin at these cuts a row belongs to; the part before them has the number `first`."""
    from pyspark.sql import functions as f

    if not cuts:
        return f.lit(first)
    middle = len(cuts) // 2
    return f.when(key >= cuts[middle], _part(key, cuts[middle + 1:], first + middle + 1)).otherwise(
        _part(key, cuts[:middle], first))


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
