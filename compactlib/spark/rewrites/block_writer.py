# SPDX-License-Identifier: Apache-2.0
"""The part of a merge that runs on Spark's workers: sorted rows in, private Parquet files out."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import attrs

from compactlib.errors import StorageError
from compactlib.executors.tasks import new_attempt_id
from compactlib.files.disk import Files, OutFile

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import parquet

WRITTEN_DDL = "bucket int, path string, rows bigint, size_bytes bigint, min_time double, max_time double"
"""What `BlockWriter.write` gives, as a Spark schema."""


_UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


@attrs.frozen
class WrittenBlock:
    """One private file.

    Attributes:
        bucket: which of the merge's outputs it is; they ascend by key.
        path: where it lies.
        rows: how many it holds.
        size_bytes: its length.
        min_time: the smallest value of the time column, seconds; 0.0 without one.
        max_time: the largest.
    """

    bucket: int
    path: str
    rows: int
    size_bytes: int
    min_time: float
    max_time: float


def written_blocks(table: pa.Table) -> list[WrittenBlock]:
    """The rows that came back from Spark."""
    return [WrittenBlock(*row.values()) for row in table.to_pylist()]


@attrs.frozen(kw_only=True)
class BlockWriter:
    """Writes each bucket of a sorted partition to a file of its own, durably, under a name of this attempt alone.

    Attributes:
        folder: where the files go; must exist.
        prefix: how their names begin.
        schema: the columns of the files, a serialized Arrow schema.
        bucket: the column that says which output a row belongs to; it comes last, and is not written.
        time_column: where `min_time` and `max_time` come from.
        row_group_rows: rows of one row group.
        compression: of the files.
        files: the disk.
    """

    folder: str
    prefix: str
    schema: bytes
    bucket: str
    time_column: str | None
    row_group_rows: int
    compression: str
    files: Files

    def write(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """For `DataFrame.mapInArrow`: one row a file.

        Raises:
            StorageError: the disk refused; this attempt's files are removed.
        """
        import pyarrow as pa

        schema = pa.ipc.read_schema(pa.py_buffer(self.schema))
        written: list[WrittenBlock] = []
        current: _Output | None = None
        try:
            for batch in batches:
                for bucket, table in _by_bucket(batch, self.bucket):
                    if current is None or current.bucket != bucket:
                        if current is not None:
                            written.append(current.finish())
                        current = _Output(self, bucket, schema)
                    current.append(table)
            if current is not None:
                written.append(current.finish())
        except BaseException:
            for path in [block.path for block in written] + ([] if current is None else [current.path]):
                if os.path.exists(path):
                    try:
                        self.files.unlink(path)
                    except StorageError:
                        break
            raise
        if written:
            yield _rows_of(written)


class _Output:
    """One file that is being written."""

    def __init__(self, writer: BlockWriter, bucket: int, schema: pa.Schema) -> None:
        import pyarrow as pa
        from pyarrow import parquet

        self.bucket = bucket
        self.path = os.path.join(writer.folder, f"{writer.prefix}.{bucket}.{new_attempt_id()}")
        self._schema = schema
        self._time_column = writer.time_column
        self._row_group_rows = writer.row_group_rows
        self._rows = 0
        self._span: tuple[float, float] | None = None
        self._pending: list[pa.Table] = []
        self._pending_rows = 0
        self._out = writer.files.create(self.path)
        self._stream = _Stream(self._out)
        stream: Any = self._stream
        compression: Any = writer.compression
        self._parquet: parquet.ParquetWriter = parquet.ParquetWriter(pa.PythonFile(stream, mode="w"), schema,
                                                                     compression=compression)

    def append(self, table: pa.Table) -> None:
        """Add rows, in order; full row groups go to the file at once."""
        # By name: Spark's types are fewer than Arrow's, and the file is to have those of its sources.
        table = table.select(self._schema.names).cast(self._schema)
        self._note_times(table)
        self._rows += table.num_rows
        self._pending.append(table)
        self._pending_rows += table.num_rows
        if self._pending_rows >= self._row_group_rows:
            self._flush(whole=False)

    def finish(self) -> WrittenBlock:
        """Write the rest, sync, and say what was written."""
        try:
            self._flush(whole=True)
            self._parquet.close()
            self._out.sync()
        finally:
            self._out.close()
        low, high = self._span or (0.0, 0.0)
        return WrittenBlock(self.bucket, self.path, self._rows, self._stream.size, low, high)

    def _flush(self, *, whole: bool) -> None:
        import pyarrow as pa

        if not self._pending:
            return
        table = pa.concat_tables(self._pending)
        step = self._row_group_rows
        end = table.num_rows if whole else table.num_rows - table.num_rows % step
        for start in range(0, end, step):
            self._parquet.write_table(table.slice(start, min(step, end - start)), row_group_size=step)
        self._pending = [table.slice(end)] if end < table.num_rows else []
        self._pending_rows = table.num_rows - end

    def _note_times(self, table: pa.Table) -> None:
        if self._time_column is None:
            return
        from pyarrow import compute

        found = compute.min_max(table.column(self._time_column))
        low, high = (_seconds(found[name]) for name in ("min", "max"))
        if low is not None and high is not None:
            known = self._span or (low, high)
            self._span = min(known[0], low), max(known[1], high)


class _Stream:
    """An `OutFile` as the file object that pyarrow writes to."""

    def __init__(self, out: OutFile) -> None:
        self._out = out
        self.size = 0
        self.closed = False

    def write(self, data: Any) -> int:
        piece = bytes(data)
        self._out.write_at(self.size, [piece])
        self.size += len(piece)
        return len(piece)

    def tell(self) -> int:
        return self.size

    def flush(self) -> None:
        """Nothing is held back."""

    def close(self) -> None:
        self.closed = True

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False


def _by_bucket(batch: pa.RecordBatch, column: str) -> Iterator[tuple[int, pa.Table]]:
    """The runs of equal buckets in a batch that is sorted by them."""
    import pyarrow as pa
    from pyarrow import compute

    table = pa.Table.from_batches([batch]).drop_columns([column])
    runs: Any = compute.value_counts(batch.column(batch.schema.get_field_index(column)))
    start = 0
    for run in runs.to_pylist():
        yield run["values"], table.slice(start, run["counts"])
        start += run["counts"]


def _seconds(value: Any) -> float | None:
    """A number, timestamp or date as seconds since the epoch."""
    import pyarrow as pa

    if not value.is_valid:
        return None
    if pa.types.is_date(value.type):
        value = value.cast(pa.timestamp("s"))
    if pa.types.is_timestamp(value.type):
        return float(value.cast(pa.int64()).as_py()) / _UNITS[value.type.unit]
    return float(value.as_py())


def _rows_of(written: list[WrittenBlock]) -> pa.RecordBatch:
    import pyarrow as pa

    types = (pa.int32(), pa.string(), pa.int64(), pa.int64(), pa.float64(), pa.float64())
    names = [field.name for field in attrs.fields(WrittenBlock)]
    # Built from one list of columns: Spark binds them by position, whatever they are called.
    columns = [pa.array([getattr(block, name) for block in written], kind)
               for name, kind in zip(names, types, strict=True)]
    return pa.RecordBatch.from_arrays(columns, names=names)
