# SPDX-License-Identifier: Apache-2.0
"""`MergeBlocks`: a worker's execute that merges Parquet blocks as a Spark DataFrame job, fenced.

Small blocks are read, sorted by the given keys, and written as one block, or as several of about a given size, whose
ranges of keys do not overlap. What comes out depends on the sources' rows and on the job's token alone: the cuts
between blocks come from a sample that is chosen by the keys' hash, and rows of equal keys are ordered by their own
hash. So an attempt that is repeated, by Spark or by the worker, writes the same blocks under the same ids.

Executors write private files and publish nothing. This process checks that no row is missing, gives the files their
names, which contain the token, and commits the list to the fence. A late worker's list is refused, and its files are
removed; those of the worker after it have other names.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs

from compactlib.errors import Busy, CorruptData, InvalidInput, StorageError
from compactlib.files.disk import Files
from compactlib.objects import Digest
from compactlib.scheduler import BlockMeta, CompactedBlocks, FencedOff, JobPlan, NoOutput, RunningJob
from compactlib.scheduler.errors import CommittedOtherwise
from compactlib.scheduler.fences.fence import Fence
from compactlib.scheduler.workers.running_job import output_block_id
from compactlib.spark.dependencies import require_spark
from compactlib.spark.rewrites.block_folder import BlockFolder
from compactlib.spark.rewrites.block_writer import WRITTEN_DDL, BlockWriter, WrittenBlock, written_blocks

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

_SAMPLES_PER_BLOCK = 200
_NOT_COMMITTED = (FencedOff, CommittedOtherwise, InvalidInput, Busy)
"""Answers of a fence after which its list is known not to name the blocks. After any other error it may."""
_BUCKET = "__compactlib_block"


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
        row_group_rows: rows of one row group in the files.
        compression: of the files, as pyarrow names it.

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
"""A source that is there: its id, its path, and its metadata if the poll carried it."""


@attrs.frozen
class _Sources:
    """The blocks that were found, and what they have together."""

    blocks: tuple[_Block, ...]
    schema: pa.Schema
    rows: int
    size_bytes: int

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(block_id for block_id, _, _ in self.blocks)

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(path for _, path, _ in self.blocks)


class MergeBlocks:
    """An `Execute` for jobs whose sources are Parquet blocks. Any thread may call it.

    Args:
        spark: the session, classic or Spark Connect; its workers can import the library (`ship_library`).
        folder: where the blocks lie.
        fence: what every commit goes through, under the job's name.
        options: how to merge.

    Raises:
        MissingDependency: PySpark is not installed.
    """

    def __init__(self, spark: SparkSession, folder: BlockFolder, fence: Fence, options: MergeOptions) -> None:
        require_spark("merging blocks")
        self._spark = spark
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
        token, plan = job.token, job.plan
        self._fence.admit(plan.name, token)
        sources = self._sources(job)
        if sources is None:
            return _nothing(plan, (), NoOutput.MISSING)
        if not sources.rows:
            # Nothing will be written that could be counted.
            _read_footers(sources.blocks)
            return _nothing(plan, sources.ids, NoOutput.EMPTY)
        job.check()
        self._folder.make_folder(self._folder.private)
        try:
            written = self._write(sources, plan, token)
        except Exception:
            # Spark says that something cannot be read; the files say which, and why.
            _read_footers(sources.blocks)
            raise
        try:
            _require_all_rows(written, sources)
            job.check()
            blocks = self._publish(written, job, columns_of(sources.schema))
        except BaseException:
            self._remove_private(written)
            raise
        return CompactedBlocks(tenant=plan.tenant, shard=plan.shard, source_blocks=sources.ids, new_blocks=blocks)

    # -- reading

    def _sources(self, job: RunningJob) -> _Sources | None:
        """The blocks that are there, with what the metadata index knows of them, or else their footers."""
        plan, known = job.plan, {block.id: block for block in job.blocks}
        paths = {name: self._folder.path_of(plan.tenant, plan.shard, name) for name in plan.source_blocks}
        blocks = tuple((name, path, known.get(name)) for name, path in paths.items() if os.path.exists(path))
        if not blocks:
            return None
        schema, rows = _read_footers(blocks, few=True)
        options = self._options
        for name in (*options.sort_by, *([options.time_column] if options.time_column else [])):
            if name not in schema.names:
                raise InvalidInput(f"the blocks have no column {name!r}; they have {_columns(schema)}")
        return _Sources(blocks, schema, rows, sum(os.path.getsize(path) for _, path, _ in blocks))

    # -- the Spark job

    def _write(self, sources: _Sources, plan: JobPlan, token: int) -> list[WrittenBlock]:
        from pyspark.sql import functions as f

        options = self._options
        frame = self._spark.read.parquet(*sources.paths)
        columns = [f.col(_quoted(name)) for name in sources.schema.names]
        keys = [f.col(_quoted(name)) for name in options.sort_by]
        count = 1 if options.target_bytes is None else -(-sources.size_bytes // options.target_bytes)
        cuts = self._cuts(frame, keys, sources.rows, count)
        bucket = f.lit(0)
        for cut in cuts:
            bucket = bucket + f.when(_at_or_after(keys, cut), 1).otherwise(0)
        # Within equal keys by the rest of the row, so that files do not depend on who was faster.
        rest = [] if _has_map(sources.schema) else [f.xxhash64(*columns)]
        frame = frame.select(*columns, bucket.cast("int").alias(_BUCKET))
        frame = frame.repartition(len(cuts) + 1, f.col(_BUCKET)) if cuts else frame.coalesce(1)
        ordered = frame.sortWithinPartitions(f.col(_BUCKET), *(key.asc_nulls_first() for key in keys), *rest)
        writer = BlockWriter(folder=self._folder.private, prefix=output_block_id(plan, token),
                             schema=sources.schema.serialize().to_pybytes(), bucket=_BUCKET,
                             time_column=options.time_column, row_group_rows=options.row_group_rows,
                             compression=options.compression, files=self._folder.files)
        table = ordered.mapInArrow(writer.write, WRITTEN_DDL).toArrow()
        return sorted(written_blocks(table), key=lambda block: block.bucket)

    @staticmethod
    def _cuts(frame: DataFrame, keys: list[Column], rows: int, count: int) -> list[tuple[Any, ...]]:
        """The first keys of all blocks but the first. The sample depends on the keys, not on how they are read."""
        from pyspark.sql import functions as f

        if count < 2:
            return []
        every = max(1, rows // (_SAMPLES_PER_BLOCK * count))
        named = [key.alias(f"k{number}") for number, key in enumerate(keys)]
        sample = frame.select(*named).where(f.pmod(f.xxhash64(*keys), f.lit(every)) == 0)
        ordered = sample.orderBy(*(f.col(f"k{number}").asc_nulls_first() for number in range(len(keys)))).collect()
        cuts: list[tuple[Any, ...]] = []
        for number in range(1, count if ordered else 0):
            row = ordered[len(ordered) * number // count]
            cut = tuple(bytes(value) if isinstance(value, bytearray) else value for value in row)
            # A key that is more than one block long gets one block.
            if not cuts or cuts[-1] != cut:
                cuts.append(cut)
        return cuts

    # -- publishing

    def _publish(self, written: Sequence[WrittenBlock], job: RunningJob, columns: str) -> tuple[BlockMeta, ...]:
        files, plan, token = self._folder.files, job.plan, job.token
        span: tuple[float, float] | None = None
        if self._options.time_column is None:
            span = (min((block.min_time for block in job.blocks), default=0.0),
                    max((block.max_time for block in job.blocks), default=0.0))
        blocks = tuple(
            BlockMeta(id=output_block_id(plan, token, number=number), tenant=plan.tenant, shard=plan.shard,
                      level=plan.compaction_level + 1, min_time=begin, max_time=end, size_bytes=block.size_bytes,
                      rows=block.rows, columns=columns)
            for number, block in enumerate(written) for begin, end in [span or (block.min_time, block.max_time)])
        paths = [self._folder.path_of(block.tenant, block.shard, block.id) for block in blocks]
        self._folder.make_folder(os.path.dirname(paths[0]))
        for block, path in zip(written, paths, strict=True):
            files.rename(block.path, path)
        files.sync_folder(os.path.dirname(paths[0]))
        try:
            self._fence.commit(plan.name, token, json.dumps([block.id for block in blocks]).encode())
        except _NOT_COMMITTED:
            self._take_back(paths, files)
            raise
        return blocks

    def _take_back(self, paths: Sequence[str], files: Files) -> None:
        """Remove blocks that were refused. The disk may refuse too; the scheduler deletes what is left of them."""
        for path in paths:
            try:
                files.unlink(path)
            except StorageError:
                return

    def _remove_private(self, written: Sequence[WrittenBlock]) -> None:
        for block in written:
            if os.path.exists(block.path):
                try:
                    self._folder.files.unlink(block.path)
                except StorageError:
                    return


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


def _nothing(plan: JobPlan, sources: tuple[str, ...], why: NoOutput) -> CompactedBlocks:
    return CompactedBlocks(tenant=plan.tenant, shard=plan.shard, source_blocks=sources, no_output=why)


def _require_all_rows(written: Sequence[WrittenBlock], sources: _Sources) -> None:
    rows = sum(block.rows for block in written)
    buckets = [block.bucket for block in written]
    if rows != sources.rows or len(buckets) != len(set(buckets)):
        raise CorruptData(path=os.path.dirname(sources.paths[0]), offset=0,
                          expected=f"{sources.rows} rows of {len(sources.ids)} blocks",
                          found=f"{rows} rows in outputs {buckets}")


def _at_or_after(keys: Sequence[Column], cut: tuple[Any, ...]) -> Column:
    """Whether a row's keys are >= those of the cut, in the order of `asc_nulls_first`."""
    from pyspark.sql import functions as f

    key, value = keys[0], cut[0]
    after = key.isNotNull() if value is None else key > f.lit(value)
    equal = key.isNull() if value is None else key == f.lit(value)
    here = equal if len(keys) == 1 else equal & _at_or_after(keys[1:], cut[1:])
    return f.coalesce(after, f.lit(False)) | f.coalesce(here, f.lit(False))


def _has_map(schema: pa.Schema) -> bool:
    return any("map<" in str(field.type) for field in schema)


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
