# SPDX-License-Identifier: Apache-2.0
"""What a staging merge runs on Spark's workers: read ranges and changes as rows; merge sorted rows into ranges.

`mapInArrow` binds columns by position, so every batch is built here, from one list of columns.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import attrs
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from compactlib.errors import CompactlibError
from compactlib.objects import Digest, ObjectRef, ObjectStore
from compactlib.objects.store import read_checked
from compactlib.runtime.budget import Budget
from compactlib.staging.committed.formats.parquet import ArrowRows, ParquetFormat
from compactlib.staging.committed.formats.rows import ChangeBatch
from compactlib.staging.committed.formats.split import SplitRule
from compactlib.staging.committed.ranges.range_files import RangeFiles
from compactlib.staging.committed.ranges.range_writer import ClosedRange, RangeWriter
from compactlib.staging.model.values import RangeEntry, RangeId

BASE_LAYER: Final = (1 << 31) - 1
"""The layer of the base's records: older than every token."""
SOURCE_DDL: Final = ("layer int, name string, count bigint, size_bytes bigint, min_key binary, max_key binary, "
                     "digest binary")
"""What is to be read: a range of the base, or a file of changes of one layer."""
ROW_DDL: Final = "bucket int, key binary, layer int, identity binary, data binary, error binary"
"""A record or a change (a tombstone has no identity), and which part of the keys it belongs to. Or only a pickled error
of the library's, which so comes to the caller with all its fields."""
CLOSED_DDL: Final = ("range_id string, min_key binary, max_key binary, count bigint, size_bytes bigint, "
                     "is_new boolean, was_there boolean, added bigint, changed bigint, removed bigint, error binary")
"""A range that was made; the counts are those of the whole bucket, with its first range. Or only an error."""

_BATCH_ROWS: Final = 8192
_MERGE_BYTES: Final = 16 << 20
_ROW_COLUMNS: Final[list[tuple[str, pa.DataType]]] = [
    ("bucket", pa.int32()), ("key", pa.binary()), ("layer", pa.int32()), ("identity", pa.binary()),
    ("data", pa.binary()), ("error", pa.binary())]
_ROW_SCHEMA: Final = pa.schema(_ROW_COLUMNS)
_CHANGE_SCHEMA: Final = pa.schema([("key", pa.binary()), ("identity", pa.binary()), ("data", pa.binary())])
_CLOSED_COLUMNS: Final[list[tuple[str, pa.DataType]]] = [
    ("range_id", pa.string()), ("min_key", pa.binary()), ("max_key", pa.binary()), ("count", pa.int64()),
    ("size_bytes", pa.int64()), ("is_new", pa.bool_()), ("was_there", pa.bool_()), ("added", pa.int64()),
    ("changed", pa.int64()), ("removed", pa.int64()), ("error", pa.binary())]
_CLOSED_SCHEMA: Final = pa.schema(_CLOSED_COLUMNS)


def encode_changes(batch: ChangeBatch) -> bytes:
    """A file of changes: Parquet, sorted by key; a tombstone has neither identity nor data."""
    sink = io.BytesIO()
    columns = [pa.array(column, pa.binary()) for column in (batch.keys, batch.identities, batch.datas)]
    parquet.write_table(pa.table(columns, schema=_CHANGE_SCHEMA), sink, compression="zstd")
    return sink.getvalue()


@attrs.frozen
class LoadRows:
    """Reads sources as rows, checked as everywhere; for `DataFrame.mapInArrow`.

    Attributes:
        open_objects: gives the object store, in this process.
        prefix: of the ranges' keys.
        bounds: the last key of each bucket but the last one, ascending.
    """

    open_objects: Callable[[], ObjectStore]
    prefix: str
    bounds: tuple[bytes, ...]

    def __call__(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Rows of `ROW_DDL` for those of `SOURCE_DDL`."""
        try:
            with self.open_objects() as objects:
                files = RangeFiles(objects, prefix=self.prefix, range_format=ParquetFormat(), cache_bytes=0)
                for batch in batches:
                    for source in batch.to_pylist():
                        yield from self._batches(source["layer"], _rows_of(files, source))
        except CompactlibError as error:
            yield pa.RecordBatch.from_pylist([{"bucket": 0, "key": b"", "layer": 0, "error": pickle.dumps(error)}],
                                             schema=_ROW_SCHEMA)

    def _batches(self, layer: int, rows: ArrowRows) -> Iterator[Any]:
        start = 0
        for bucket, stop in enumerate([*(rows.find(bound + b"\0") for bound in self.bounds), len(rows)]):
            for at in range(start, stop, _BATCH_ROWS):
                part = rows.part(at, min(at + _BATCH_ROWS, stop))
                key, identity, data = part.columns
                yield pa.record_batch([pa.repeat(pa.scalar(bucket, pa.int32()), len(part)), key,
                                       pa.repeat(pa.scalar(layer, pa.int32()), len(part)), identity, data,
                                       pa.nulls(len(part), pa.binary())],
                                      schema=_ROW_SCHEMA)
            start = max(start, stop)


def _rows_of(files: RangeFiles, source: dict[str, Any]) -> ArrowRows:
    if source["layer"] == BASE_LAYER:
        rows = files.read_range(RangeEntry(RangeId(source["name"]), source["min_key"], source["max_key"],
                                           source["count"], source["size_bytes"]))
        assert isinstance(rows, ArrowRows)
        return rows
    data = read_checked(files.objects, ObjectRef(source["name"], source["size_bytes"], Digest(source["digest"])))
    table = parquet.read_table(pa.BufferReader(data), use_threads=False)
    return ArrowRows(*(pa.concat_arrays(column.chunks) for column in table.columns))


@attrs.frozen
class WriteRanges:
    """Merges rows, which come sorted by bucket, key and layer, into ranges; for `DataFrame.mapInArrow`.

    Attributes:
        open_objects: gives the object store, in this process.
        prefix: of the ranges' keys.
        rule: where ranges are cut.
        range_format: how they are written.
        known: the base's ranges, which are not written again.
    """

    open_objects: Callable[[], ObjectStore]
    prefix: str
    rule: SplitRule
    range_format: ParquetFormat
    known: frozenset[RangeId]

    def __call__(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Rows of `CLOSED_DDL`: each bucket's ranges, the last of which may be still open."""
        try:
            yield from self._written(batches)
        except CompactlibError as error:
            yield pa.RecordBatch.from_pylist([{"error": pickle.dumps(error)}], schema=_CLOSED_SCHEMA)

    def _written(self, batches: Iterable[Any]) -> Iterator[Any]:
        with self.open_objects() as objects:
            files = RangeFiles(objects, prefix=self.prefix, range_format=self.range_format, cache_bytes=0)
            bucket: _Bucket | None = None
            for table in _whole_keys(batches):
                for error in table["error"].drop_null().to_pylist():
                    raise pickle.loads(error)
                for number in pc.unique(table["bucket"]).to_pylist():
                    if bucket is None or bucket.number != number:
                        if bucket is not None:
                            yield bucket.finish()
                        bucket = _Bucket(number, RangeWriter(files, self.rule, self.known, Budget()), self.rule)
                    bucket.add(table.filter(pc.equal(table["bucket"], pa.scalar(number, pa.int32()))))
            if bucket is not None:
                yield bucket.finish()


class _Bucket:
    """One part of the keys in the making."""

    def __init__(self, number: int, writer: RangeWriter, rule: SplitRule) -> None:
        self.number = number
        self._writer = writer
        self._rule = rule
        self._counts = [0, 0, 0]

    def add(self, table: Any) -> None:
        """Merge some more rows, all rows of each key among them: the newest first, the base's last."""
        key = _array(table["key"])
        is_base = pc.equal(_array(table["layer"]), pa.scalar(BASE_LAYER, pa.int32()))
        is_newest = pa.concat_arrays([pa.array([True]), pc.not_equal(key.slice(1), key.slice(0, len(key) - 1))])
        columns = [key, _array(table["identity"]), _array(table["data"])]
        is_change = pc.and_not(is_newest, is_base)
        merged = ArrowRows(*(column.filter(is_base) for column in columns)).merged_columns(
            *(column.filter(is_change) for column in columns))
        for place, count in enumerate((merged.added, merged.changed, merged.removed)):
            self._counts[place] += count
        self._writer.add(merged.rows, merged.rows.cut_keys(self._rule.raggedness))

    def finish(self) -> Any:
        """The bucket's ranges, and its counts also where it has none."""
        rows = [_closed_row(closed) for closed in self._writer.end()] or [dict.fromkeys(_CLOSED_SCHEMA.names)]
        for row in rows:
            row.update(added=0, changed=0, removed=0)
        rows[0].update(zip(("added", "changed", "removed"), self._counts, strict=True))
        return pa.RecordBatch.from_pylist(rows, schema=_CLOSED_SCHEMA)


def _closed_row(closed: ClosedRange) -> dict[str, Any]:
    return {**attrs.asdict(closed.entry), "is_new": closed.is_new, "was_there": closed.was_there}


def _whole_keys(batches: Iterable[Any]) -> Iterator[Any]:
    """The same rows in tables of some size, none of which ends between two rows of one key."""
    held: list[Any] = []
    for batch in batches:
        if batch.num_rows:
            held.append(batch)
        if sum(each.nbytes for each in held) >= _MERGE_BYTES:
            table = pa.Table.from_batches(held)
            last = table["key"][-1]
            stop = pc.index(table["key"], last).as_py()
            held = table.slice(stop).to_batches()
            if stop:
                yield table.slice(0, stop)
    if held:
        yield pa.Table.from_batches(held)


def _array(column: Any) -> Any:
    return pa.concat_arrays(column.chunks)
