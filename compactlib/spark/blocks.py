# SPDX-License-Identifier: Apache-2.0
"""`MergeBlocks`: merge Parquet blocks in a fenced Spark DataFrame job; an `Execute` of a scheduler's worker.

The outputs depend only on the sources' rows and the job's token, so a repeated attempt writes the same bytes under the
same keys. Cuts come from a sample chosen by the keys' hash (`repartitionByRange` draws a new sample each time). Rows of
equal keys are ordered by their own hash.

The calling process counts the written rows. Then it commits the list of block ids to the fence; each id contains the
token. The fence refuses the list of a late worker. `BlockFolder.sweep` removes the blocks of attempts that failed.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import attrs

from compactlib._arguments import is_whole, require_age
from compactlib.errors import Conflict, CorruptData, InvalidInput
from compactlib.fences import Fence
from compactlib.objects import ObjectInfo, ObjectNotFound, ObjectStore
from compactlib.scheduler import BlockMeta, CompactedBlocks, NoOutput, RunningJob, span_of
from compactlib.spark.jobs import require_spark

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, Row, SparkSession

_SAMPLES_PER_BLOCK = 200
_SHARE_BYTES = 128 << 20
"""About how many bytes a Spark task reads."""
_BLOCK = re.compile(r"tenant-[\w.@-]*/shard-\d+/block-[\w.@-]+\.parquet", re.ASCII)
_DAMAGE = re.compile(r"corrupt data in (.+?) at offset 0: expected (.+?), found (.+?); restore the file")


@attrs.frozen
class BlockFolder:
    """Name the objects of blocks: `tenant-<tenant>/shard-<shard>/block-<id>.parquet`.

    Tenant and id are percent-encoded, with `@` in place of `%`.

    Attributes:
        open_objects: opens the object store in this process and on Spark's workers; picklable. For files in a folder
            that every machine mounts under the same path: `functools.partial(LocalObjects, folder)`.
    """

    open_objects: Callable[[], ObjectStore]

    def key_of(self, tenant: str, shard: int, block_id: str) -> str:
        """Return the key of a block; the block need not exist."""
        # The words in front keep names from beginning with "." or "_", which Spark and Hive take for hidden.
        names = (quote(name, safe="").replace("~", "%7E").replace("%", "@") for name in (tenant, block_id))
        return f"tenant-{next(names)}/shard-{shard}/block-{next(names)}.parquet"

    def delete(self, tenant: str, shard: int, block_id: str) -> None:
        """Remove a block durably; idempotent. Raises the errors of `ObjectStore.delete`."""
        with self.open_objects() as objects:
            objects.delete([self.key_of(tenant, shard, block_id)])

    def sweep(self, known: Iterable[BlockMeta], *, now: float, older_than_seconds: float) -> int:
        """Remove orphan blocks: outputs of merges that died or were fenced off. Returns the number of blocks removed.

        A block is removed if it is not `known` and is older than `older_than_seconds` at `now`, by the store's clock;
        other objects stay. `sweep` may raise the object store's errors; call it again then.

        Only the blocks' own scheduler may sweep them. A copy of the scheduler does not know the blocks that were made
        after the copy, and would remove them.

        Args:
            known: all blocks that may still be read: those in the scheduler's metadata index and in its tombstones.
            now: seconds since the epoch.
            older_than_seconds: an age above the duration of a merge plus the time until its blocks become known.

        Raises:
            InvalidInput: `now` is not a number, or `older_than_seconds` is not a number >= 0.
            Conflict: the folder has blocks, and not one is known, so `known` is from an empty scheduler or for another
                folder. Nothing was removed.
        """
        kept = {self.key_of(block.tenant, block.shard, block.id) for block in known}
        require_age(now, older_than_seconds)
        with self.open_objects() as objects:
            listed = [info for info in objects.list("tenant-") if _BLOCK.fullmatch(info.key)]
            old = [info.key for info in listed if info.modified_at < now - older_than_seconds and info.key not in kept]
            if old and kept.isdisjoint(info.key for info in listed):
                raise Conflict(f"none of the {len(listed)} blocks in the folder is among the {len(kept)} known "
                               f"blocks; give the blocks that the scheduler of this folder knows, or remove the "
                               f"objects yourself if they are not needed")
            objects.delete(old)
            return len(old)


@attrs.frozen(eq=False)
class MergeBlocks:
    """An `Execute` for jobs whose sources are Parquet blocks. Any thread may call it.

    Output columns have types of Spark: an unsigned number as the next larger signed type, a timestamp in
    microseconds, a time of day in nanoseconds, a dictionary as its values. Workers must be able to import the library
    (`ship_library`). Every commit goes through the fence, under the job's name.

    Attributes:
        spark: the session.
        folder: the blocks.
        fence: refuses the commit of a late worker.
        sort_by: the columns to sort by, ascending, nulls first; at least one.
        target_bytes: the approximate largest size of an output, in bytes of the sources; `None` for one output. Rows
            with equal keys share an output, even above this size. An output is put in one request, at most 5 GB on S3.
        time_column: timestamps, dates, or numbers of seconds, from which the outputs' `min_time` and `max_time` are
            taken. Without the column, the output has the span of all sources in `RunningJob.blocks`. If a row has no
            time (null, NaN, infinite), the output's span includes that of the sources. The output has no times if those
            of a source are not known.
    """

    spark: SparkSession
    folder: BlockFolder
    fence: Fence
    sort_by: tuple[str, ...] = attrs.field(kw_only=True)
    target_bytes: int | None = attrs.field(default=None, kw_only=True, validator=is_whole(1, or_none=True))
    time_column: str | None = attrs.field(default=None, kw_only=True)

    def __attrs_post_init__(self) -> None:
        require_spark("merging blocks")
        if not self.sort_by:
            raise InvalidInput("sort_by is empty; name at least one column")

    def __call__(self, job: RunningJob) -> CompactedBlocks:
        """Merge the job's sources.

        Raises:
            FencedOff: the job went to another worker.
            JobLost: the same, found by the worker's own check.
            InvalidInput: the sources' columns differ, a key is not among them, or Spark has no type for a column.
            CorruptData: a source or an output is damaged, or rows were lost on the way.
            ObjectStoreFailed, StorageError: the object store cannot be reached, or the disk failed.
            OutcomeUnknown: it is not known whether the fence committed the list of blocks.
            Exception: an error of Spark, with the worker's error as its text; for example `InvalidInput` for a time
                finer than microseconds.
        """
        plan = job.plan
        self.fence.admit(plan.name, job.token)
        sources: dict[str, ObjectInfo] = {}
        with self.folder.open_objects() as objects:
            for name in plan.source_blocks:
                with contextlib.suppress(ObjectNotFound):
                    sources[name] = objects.info(self.folder.key_of(plan.tenant, plan.shard, name))
            done = partial(CompactedBlocks, tenant=plan.tenant, shard=plan.shard, source_blocks=tuple(sources))
            if not sources:
                return done(no_output=NoOutput.MISSING)
            known = [block for block in job.blocks if block.id in sources]
            schema, rows = _read_footers(objects, sources, {block.id: block.rows for block in known})
        for column in (*self.sort_by, self.time_column):
            if column is not None and column not in schema.names:
                raise InvalidInput(f"the blocks have no column {column!r}; they have {_columns(schema)}")
        self._check_types(schema)
        job.check()
        blocks = self._written(job, list(sources.values()), schema, rows,
                               span_of(known if len(known) == len(sources) else ()))
        # Empty sources are read too: their footers may be wrong.
        if (count := sum(block.rows or 0 for block in blocks)) != rows:
            raise CorruptData(path=next(iter(sources.values())).key, offset=0,
                              expected=f"{rows} rows of {len(sources)} blocks",
                              found=f"{count} rows in {len(blocks)} outputs")
        if not blocks:
            return done(no_output=NoOutput.EMPTY)
        job.check()
        self.fence.commit(plan.name, job.token, json.dumps([block.id for block in blocks]).encode())
        return done(new_blocks=blocks)

    def _check_types(self, schema: pa.Schema) -> None:
        import pyarrow as pa

        if self.time_column is not None:
            kind = schema.field(self.time_column).type
            if not (pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_integer(kind)
                    or pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
                raise InvalidInput(f"the time column {self.time_column!r} is of type {kind}; name a column of "
                                   f"timestamps, dates or numbers of seconds")
        for name in self.sort_by if self.target_bytes is not None else ():
            if pa.types.is_time(kind := schema.field(name).type):
                raise InvalidInput(f"column {name!r} is of type {kind}, by which Spark cannot divide the rows into "
                                   f"outputs; merge without target_bytes, or sort by another column")

    def _written(self, job: RunningJob, sources: Sequence[ObjectInfo], schema: pa.Schema, rows: int,
                 span: tuple[float | None, float | None]) -> tuple[BlockMeta, ...]:
        from pyspark.sql import functions as f

        from compactlib.spark.block_workers import WRITTEN_DDL, write_blocks

        plan = job.plan
        keys = [f.col(f"c{schema.names.index(name)}") for name in dict.fromkeys(self.sort_by)]
        size = sum(source.size_bytes for source in sources)
        cuts = self._cuts(sources, schema, rows, -(-size // (self.target_bytes or size)))
        frame = self._frame(sources, schema)
        first = f.struct(*(key.alias(f"c{place}") for place, key in enumerate(keys)))
        frame = frame.repartitionById(len(cuts) + 1, _part(first, cuts, 0)) if cuts else frame.coalesce(1)
        # Rows of equal keys are ordered by the hash of the row, independent of task timing. Spark cannot hash maps.
        rest = f.xxhash64(*(f.col(field.name).cast("string") if "map<" in field.dataType.simpleString()
                            else f.col(field.name) for field in frame.schema))
        ordered = frame.sortWithinPartitions(*(key.asc_nulls_first() for key in keys), rest)
        ids = [job.output_id(number=number) for number in range(len(cuts) + 1)]
        outputs = tuple(self.folder.key_of(plan.tenant, plan.shard, each) for each in ids)
        write = partial(write_blocks, self.folder.open_objects, outputs, schema, self.time_column, span)
        return tuple(
            BlockMeta(id=ids[row.number], tenant=plan.tenant, shard=plan.shard, level=plan.compaction_level + 1,
                      min_time=row.begin, max_time=row.end, rows=row.rows, size_bytes=row.size_bytes)
            for row in sorted(_collected(ordered.mapInArrow(write, WRITTEN_DDL))))

    def _frame(self, sources: Sequence[ObjectInfo], schema: pa.Schema) -> DataFrame:
        """Read columns of all sources, named `c0`, `c1`, ...: PySpark misreads names with dots."""
        import pyarrow as pa
        from pyspark.sql.pandas.types import from_arrow_schema

        from compactlib.spark.block_workers import Share, read_blocks

        shares: list[Share] = [(source.key, source.size_bytes, number, count) for source in sources
                               for count in [max(1, source.size_bytes // _SHARE_BYTES)] for number in range(count)]
        count = max(1, sum(source.size_bytes for source in sources) // _SHARE_BYTES)
        parts = [shares[start::count] for start in range(min(count, len(shares)))]
        columns = pa.schema(field.with_name(f"c{place}") for place, field in enumerate(schema))
        read = partial(read_blocks, self.folder.open_objects, schema, parts)
        return self.spark.range(0, len(parts), 1, len(parts)).mapInArrow(
            read, from_arrow_schema(columns, prefer_timestamp_ntz=True))

    def _cuts(self, sources: Sequence[ObjectInfo], schema: pa.Schema, rows: int, count: int) -> list[Column]:
        """Return the first key of each output but the first. The sample depends on the keys, not on reading order."""
        from pyspark.sql import functions as f

        if count < 2:
            return []
        frame = self._frame(sources, schema.empty_table().select(dict.fromkeys(self.sort_by)).schema)
        every = max(1, rows // (_SAMPLES_PER_BLOCK * count))
        # Structs compare as rows are sorted: field by field, nulls first.
        sample = frame.where(f.pmod(f.xxhash64("*"), f.lit(every)) == 0).select(f.struct("*").alias("key"))
        ordered = [[bytes(value) if isinstance(value, bytearray) else value for value in row.key]
                   for row in _collected(sample.orderBy("key"))]
        fields: Any = sample.schema["key"].dataType
        # A key larger than a block gives a single cut. The smallest key gives no cut: the first block would be empty.
        chosen = groupby(key for key in (ordered[len(ordered) * number // count]
                                         for number in range(1, count if ordered else 0)) if key != ordered[0])
        return [f.struct(*(f.lit(value).cast(field.dataType).alias(field.name)
                           for value, field in zip(cut, fields, strict=True))) for cut, _ in chosen]


def _read_footers(objects: ObjectStore, sources: Mapping[str, ObjectInfo],
                  known: Mapping[str, int | None]) -> tuple[pa.Schema, int]:
    """Return the carried columns, which all blocks share, and the sum of the blocks' rows.

    Args:
        known: the rows of blocks as their metadata say.
    """
    import pyarrow as pa

    from compactlib.spark.block_workers import carried_field, opened_block, rows_of

    schemas: dict[str, pa.Schema] = {}
    total = 0
    for name, source in sources.items():
        with opened_block(objects, source.key, source.size_bytes) as file:
            schemas[name], rows = file.schema_arrow.remove_metadata(), rows_of(file, source.key)
        if known.get(name) not in (None, rows):
            raise CorruptData(path=source.key, offset=0, found=f"{rows} rows",
                              expected=f"{known[name]} rows, as the metadata of the block says")
        total += rows
        first = next(iter(schemas))
        if schemas[name] != schemas[first]:
            raise InvalidInput(f"block {name!r} has the columns {_columns(schemas[name])}, block {first!r} has "
                               f"{_columns(schemas[first])}; blocks of one tenant and shard need the same columns")
    return pa.schema(map(carried_field, schemas[first])), total


def _collected(frame: DataFrame) -> list[Row]:
    """Return the rows. Raises a worker's `CorruptData`, of which Spark has only the text, and Spark's other errors."""
    from pyspark.errors import PySparkException

    try:
        return frame.collect()
    except PySparkException as error:
        damage = _DAMAGE.search(str(error))
        if damage is None:
            raise
        path, expected, found = damage.groups()
        raise CorruptData(path=path, offset=0, expected=expected, found=found) from error


def _part(key: Column, cuts: Sequence[Column], first: int) -> Column:
    """Return the number of a row's part, by binary search. Each cut begins a part; part `first` is before all cuts."""
    from pyspark.sql import functions as f

    if not cuts:
        return f.lit(first)
    middle = len(cuts) // 2
    return f.when(key >= cuts[middle], _part(key, cuts[middle + 1:], first + middle + 1)).otherwise(
        _part(key, cuts[:middle], first))


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
