# SPDX-License-Identifier: Apache-2.0
"""The worker side of a merge of Parquet blocks: read row groups of objects; write sorted rows to objects."""

from __future__ import annotations

import contextlib
import io
import mmap
import tempfile  # noqa: TID251 - scratch of one attempt, no data of the library
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet
from pyspark import TaskContext
from pyspark.errors import PySparkTypeError
from pyspark.sql.pandas.types import from_arrow_type

from compactlib.errors import CompactlibError, CorruptData, InvalidInput
from compactlib.objects import Digest, ObjectExists, ObjectStore

WRITTEN_DDL: Final = "number bigint, rows bigint, size_bytes bigint, begin double, end double"
"""The columns that describe a written block; `begin` and `end`: its oldest and newest time, seconds since the epoch."""

Share: TypeAlias = tuple[str, int, int, int]
"""A share of a block's row groups to read: the block's key and size, the share's number, the number of shares."""

_Span: TypeAlias = tuple[float | None, float | None]

_BATCH_ROWS: Final = 8192
_BATCH_BYTES: Final = 16 << 20
_GROUP_ROWS: Final = 100_000
_GROUP_BYTES: Final = 128 << 20
"""Size at which a row group ends, even with few rows: a worker holds a whole row group in memory."""
_READ_BYTES: Final = 32 << 20


class ObjectFile(io.RawIOBase):
    """Read an object of known size as a seekable file, by range requests."""

    def __init__(self, objects: ObjectStore, key: str, size_bytes: int) -> None:
        super().__init__()
        self._objects = objects
        self._key = key
        self._size = size_bytes
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        left = max(0, self._size - self._at)
        data = self._objects.get_range(self._key, self._at, left if size is None or size < 0 else min(size, left))
        self._at += len(data)
        return data


@contextlib.contextmanager
def opened_block(objects: ObjectStore, key: str, size_bytes: int) -> Iterator[parquet.ParquetFile]:
    """Open a block and read its footer.

    Raises:
        CorruptData: it is no Parquet file; or, raised in the context, its pages cannot be read.
        CompactlibError: the errors of the store.
    """
    try:
        with parquet.ParquetFile(pa.PythonFile(ObjectFile(objects, key, size_bytes), mode="r"), pre_buffer=True,
                                 page_checksum_verification=True) as file:
            yield file
    except CompactlibError:
        raise
    except (pa.ArrowException, OSError) as error:
        raise CorruptData(path=key, offset=0, expected="a sound Parquet file",
                          found=" ".join(str(error).split())) from error


def rows_of(file: parquet.ParquetFile, key: str) -> int:
    """Count the rows of a block.

    Each row has a value in each column (nulls count); only a repeated column has more.

    Raises:
        CorruptData: the counts in the footer, the row groups and the column chunks differ.
    """
    groups = [file.metadata.row_group(number) for number in range(file.num_row_groups)]
    for number, group in enumerate(groups):
        for place in range(group.num_columns):
            values, column = group.column(place).num_values, file.schema.column(place)
            if values != group.num_rows and not (values > group.num_rows > 0 and column.max_repetition_level):
                raise CorruptData(path=key, offset=0, found=f"{values} values in column {column.path}",
                                  expected=f"{group.num_rows} rows in row group {number}, as its header says")
    if (rows := sum(group.num_rows for group in groups)) != file.metadata.num_rows:
        raise CorruptData(path=key, offset=0, expected=f"{file.metadata.num_rows} rows, as the footer says",
                          found=f"{rows} rows in its row groups")
    return rows


_CARRIED: Final[dict[pa.DataType, pa.DataType]] = {
    pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64(), pa.uint64(): pa.decimal128(20, 0),
    pa.time32("s"): pa.time64("ns"), pa.time32("ms"): pa.time64("ns"), pa.time64("us"): pa.time64("ns"),
    pa.date64(): pa.date32(), pa.large_string(): pa.string(), pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(), pa.binary_view(): pa.binary(),
}


def carried(kind: pa.DataType) -> pa.DataType:
    """Return the Spark-compatible type that carries values of `kind`; the output has this type."""
    if isinstance(kind, pa.DictionaryType):
        value: pa.DataType = kind.value_type
        return carried(value)
    if isinstance(kind, pa.TimestampType):
        return pa.timestamp("us", None if kind.tz is None else "UTC")
    if isinstance(kind, pa.Decimal256Type):
        return pa.decimal128(kind.precision, kind.scale)
    if isinstance(kind, pa.DurationType):
        return pa.int64()
    if pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    if isinstance(kind, pa.ListType | pa.LargeListType | pa.FixedSizeListType):
        return pa.list_(pa.field("element", carried(kind.value_type)))
    if isinstance(kind, pa.MapType):
        return pa.map_(carried(kind.key_type), carried(kind.item_type))
    return pa.struct(list(map(carried_field, kind))) if isinstance(kind, pa.StructType) else _CARRIED.get(kind, kind)


def carried_field(field: pa.Field[Any]) -> pa.Field[Any]:
    """Return the column with its carried type. Raises `InvalidInput` if Spark has no type for its values."""
    try:
        kind = carried(field.type)
        from_arrow_type(kind)
    except (PySparkTypeError, ValueError) as error:
        raise InvalidInput(f"column {field.name!r} has the type {field.type}, for which Spark has none ({error}); "
                           f"write it with another type") from error
    return pa.field(field.name, kind)


def read_blocks(open_objects: Callable[[], ObjectStore], schema: pa.Schema, parts: Sequence[Sequence[Share]],
                batches: Iterable[Any]) -> Iterator[Any]:
    """Read the columns of `schema` of the numbered parts, a row group at a time; for `DataFrame.mapInArrow`.

    Raises:
        CorruptData: a page is damaged.
        InvalidInput: Spark has no such value.
    """
    with open_objects() as objects:
        for key, size_bytes, share, count in (
                share for batch in batches for part in batch[0].to_pylist() for share in parts[part]):
            with opened_block(objects, key, size_bytes) as file:
                groups = file.num_row_groups
                for number in range(groups * share // count, groups * (share + 1) // count):
                    group = file.metadata.row_group(number)
                    rows = _BATCH_BYTES * group.num_rows // max(1, group.total_byte_size)
                    for batch in file.iter_batches(min(_BATCH_ROWS, max(1, rows)), [number], schema.names, False):
                        try:
                            yield batch.select(schema.names).cast(schema)
                        except pa.ArrowInvalid as error:
                            raise InvalidInput(f"{key}: {error}; Spark holds times in microseconds, from the year 1 to "
                                               f"9999: write finer times as whole numbers") from error


def write_blocks(open_objects: Callable[[], ObjectStore], keys: Sequence[str], schema: pa.Schema,
                 time_column: str | None, span: _Span, batches: Iterable[Any]) -> Iterator[Any]:
    """Write a Spark partition that has rows to an object; for `DataFrame.mapInArrow`. Yield a row of `WRITTEN_DDL`.

    The rows go to a local temporary file first; one row group is in memory. The object is created in one request, then
    read back and compared. An object that exists is kept: a repeated attempt writes the same bytes.

    Args:
        keys: the object of each partition.
        time_column: see `MergeBlocks`.
        span: the times of the sources, which a row without a time may have.

    Raises:
        CorruptData: the object has other bytes than those written.
    """
    task = TaskContext.get()
    assert task is not None
    number = task.partitionId()
    times: set[float | None] = set(span if time_column is None else ())
    with tempfile.TemporaryFile(prefix="compactlib-block-") as out:
        with parquet.ParquetWriter(out, schema, compression="zstd", write_page_checksum=True) as writer:
            for table in _row_groups(batches, schema):
                writer.write_table(table.combine_chunks(), row_group_size=_GROUP_ROWS)
                if time_column is not None:
                    times |= _times_in(table[time_column], span)
        out.flush()
        with parquet.ParquetFile(out) as written, mmap.mmap(out.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            if not (rows := written.metadata.num_rows):
                return
            with open_objects() as objects, memoryview(mapped) as data:
                digest = Digest.of(data)
                with contextlib.suppress(ObjectExists):
                    objects.create(keys[number], data)
                # The sources are deleted in favour of this object, so its stored bytes are checked.
                stored = Digest.of_parts(_parts_of(objects, keys[number]))
                if stored != digest:
                    raise CorruptData(path=keys[number], offset=0, found=f"the digest {stored.hex}",
                                      expected=f"the digest {digest.hex}, as written")
            known = [time for time in times if time is not None]
            yield pa.RecordBatch.from_pylist([{
                "number": number, "rows": rows, "size_bytes": len(mapped),
                "begin": None if None in times else min(known), "end": None if None in times else max(known)}])


def _row_groups(batches: Iterable[Any], schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield tables of about a row group. Spark's batches have at most 10,000 rows."""
    held: list[Any] = []
    rows = size = 0
    for batch in batches:
        held.append(batch.rename_columns(schema.names).cast(schema))
        rows, size = rows + len(batch), size + batch.nbytes
        if rows >= _GROUP_ROWS or size >= _GROUP_BYTES:
            yield pa.Table.from_batches(held)
            held, rows, size = [], 0, 0
    if held:
        yield pa.Table.from_batches(held)


def _times_in(column: Any, span: _Span) -> set[float | None]:
    """Return the oldest and the newest time in seconds; for a null, NaN or infinite time also those of the sources."""
    if pa.types.is_temporal(column.type):
        column = pc.divide(column.cast(pa.timestamp("us")).cast(pa.int64()).cast(pa.float64(), safe=False), 1e6)
    seconds = column.cast(pa.float64(), safe=False)
    known = seconds.filter(pc.is_finite(seconds))
    ends: Any = pc.min_max(known)
    return {*(end.as_py() for end in ends.values() if end.is_valid), *(span if len(known) < len(column) else ())}


def _parts_of(objects: ObjectStore, key: str) -> Iterator[bytes]:
    at = 0
    while part := objects.get_range(key, at, _READ_BYTES):
        yield part
        at += len(part)
