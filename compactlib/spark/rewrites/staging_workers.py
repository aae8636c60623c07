# SPDX-License-Identifier: Apache-2.0
"""What a staging merge runs on Spark's workers: read changes as rows; merge sorted rows and ranges into ranges.

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
from compactlib.staging.committed.formats.rows import ChangeBatch, Rows
from compactlib.staging.committed.formats.split import SplitRule
from compactlib.staging.committed.ranges.range_files import RangeFiles
from compactlib.staging.committed.ranges.range_writer import RangeWriter
from compactlib.staging.model.values import RangeEntry, RangeId

SOURCE_DDL: Final = "layer int, name string, size_bytes bigint, digest binary"
"""A file of changes of one layer that is to be read."""
BASE_LAYER: Final = -1
"""The layer of a row that stands for a range of the base: it comes before the changes from its first key on."""
ROW_DDL: Final = "bucket int, key binary, layer int, identity binary, data binary, error binary"
"""A change (a tombstone has no identity), and which part of the keys it belongs to. Or a range of the base, as
`range_row` makes it. Or only a pickled error of the library's, which so comes to the caller with all its fields."""
CLOSED_DDL: Final = ("range_id string, min_key binary, max_key binary, count bigint, size_bytes bigint, "
                     "is_new boolean, was_there boolean, added bigint, changed bigint, removed bigint, error binary")
"""A range that was made; the counts are those of the whole bucket, with its first range. Or only an error."""

_BATCH_ROWS: Final = 8192
_MERGE_BYTES: Final = 16 << 20
_TYPES: Final[dict[str, pa.DataType]] = {"int": pa.int32(), "bigint": pa.int64(), "binary": pa.binary(),
                                         "string": pa.string(), "boolean": pa.bool_()}
_CHANGE_SCHEMA: Final = pa.schema([("key", pa.binary()), ("identity", pa.binary()), ("data", pa.binary())])


def _schema(ddl: str) -> pa.Schema:
    return pa.schema([pa.field(name, _TYPES[kind]) for name, kind in map(str.split, ddl.split(", "))])


_ROW_SCHEMA: Final = _schema(ROW_DDL)
_CLOSED_SCHEMA: Final = _schema(CLOSED_DDL)


def range_row(bucket: int, entry: RangeEntry, first: bytes, behind: bytes | None) -> tuple[object, ...]:
    """The row of `ROW_DDL` for those of a range's records whose keys are >= `first`, and < `behind` unless `None`."""
    return bucket, max(first, entry.min_key), BASE_LAYER, behind, pickle.dumps(entry), None


def encode_changes(batch: ChangeBatch) -> bytes:
    """A file of changes: Parquet, sorted by key; a tombstone has neither identity nor data."""
    sink = io.BytesIO()
    columns = [pa.array(column, pa.binary()) for column in (batch.keys, batch.identities, batch.datas)]
    parquet.write_table(pa.table(columns, schema=_CHANGE_SCHEMA), sink, compression="zstd")
    return sink.getvalue()


@attrs.frozen
class LoadRows:
    """Reads files of changes as rows, checked as everywhere; for `DataFrame.mapInArrow`.

    Attributes:
        open_objects: gives the object store, in this process.
        bounds: the last key of each bucket but the last one, ascending.
    """

    open_objects: Callable[[], ObjectStore]
    bounds: tuple[bytes, ...]

    def __call__(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Rows of `ROW_DDL` for those of `SOURCE_DDL`."""
        try:
            with self.open_objects() as objects:
                for source in (source for batch in batches for source in batch.to_pylist()):
                    ref = ObjectRef(source["name"], source["size_bytes"], Digest(source["digest"]))
                    table = parquet.read_table(pa.BufferReader(read_checked(objects, ref)), use_threads=False)
                    columns = (column.combine_chunks() for column in table.columns)
                    yield from self._batches(source["layer"], ArrowRows(*columns))
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
                                       pa.nulls(len(part), pa.binary())], schema=_ROW_SCHEMA)
            start = max(start, stop)


@attrs.frozen
class WriteRanges:
    """Merges the rows of one bucket, which come sorted by key and layer, into ranges; for `DataFrame.mapInArrow`.

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
        """Rows of `CLOSED_DDL`: the bucket's ranges, the last of which may be still open; none if it has no rows."""
        try:
            with self.open_objects() as objects:
                files = RangeFiles(objects, prefix=self.prefix, range_format=self.range_format, cache_bytes=0)
                bucket = _Bucket(files, RangeWriter(files, self.rule, self.known, Budget()), self.rule)
                for table in _whole_keys(batches):
                    bucket.add(table)
                yield bucket.finish()
        except CompactlibError as error:
            yield pa.RecordBatch.from_pylist([{"error": pickle.dumps(error)}], schema=_CLOSED_SCHEMA)


class _Bucket:
    """One part of the keys in the making."""

    def __init__(self, files: RangeFiles, writer: RangeWriter, rule: SplitRule) -> None:
        self._files = files
        self._writer = writer
        self._rule = rule
        self._counts = {"added": 0, "changed": 0, "removed": 0}
        self._base = _EMPTY
        """What is left of the range that was read last."""

    def add(self, table: Any) -> None:
        """Go on with some more rows, all rows of each key among them."""
        for error in table["error"].drop_null().to_pylist():
            raise pickle.loads(error)
        ranges = pc.indices_nonzero(pc.equal(table["layer"], pa.scalar(BASE_LAYER, pa.int32()))).to_pylist()
        start = 0
        for place in ranges:
            self._merge(table.slice(start, place - start))
            self._write(self._base)
            row = table.slice(place, 1).to_pylist()[0]
            self._base = self._part_of(pickle.loads(row["data"]), row["key"], row["identity"])
            start = place + 1
        self._merge(table.slice(start))

    def _part_of(self, entry: RangeEntry, first: bytes, behind: bytes | None) -> ArrowRows:
        rows = self._files.read_range(entry)
        assert isinstance(rows, ArrowRows)
        return rows.part(rows.find(first), len(rows) if behind is None else rows.find(behind))

    def _merge(self, changes: Any) -> None:
        """Merge changes, the newest of each key first, with the base's records up to the last of them."""
        if not len(changes):
            return
        key = changes["key"].combine_chunks()
        is_newest = pa.concat_arrays([pa.array([True]), pc.not_equal(key.slice(1), key.slice(0, len(key) - 1))])
        stop = self._base.find(key[-1].as_py() + b"\0")
        merged = self._base.part(0, stop).merged_columns(
            *(changes[name].combine_chunks().filter(is_newest) for name in ("key", "identity", "data")))
        for name in self._counts:
            self._counts[name] += getattr(merged, name)
        self._write(merged.rows)
        self._base = self._base.part(stop, len(self._base))

    def _write(self, rows: Rows) -> None:
        self._writer.add(rows, rows.cut_keys(self._rule.raggedness))

    def finish(self) -> Any:
        """The bucket's ranges, and its counts also where it has none."""
        self._write(self._base)
        rows = [{**attrs.asdict(closed.entry), "is_new": closed.is_new, "was_there": closed.was_there,
                 "added": 0, "changed": 0, "removed": 0} for closed in self._writer.end()]
        rows = rows or [dict.fromkeys(_CLOSED_SCHEMA.names)]
        rows[0].update(self._counts)
        return pa.RecordBatch.from_pylist(rows, schema=_CLOSED_SCHEMA)


_EMPTY: Final = ParquetFormat().rows([])


def _whole_keys(batches: Iterable[Any]) -> Iterator[Any]:
    """The same rows in tables of some size, none of which ends between two rows of one key."""
    held: list[Any] = []
    size = 0
    for batch in batches:
        if batch.num_rows:
            held.append(batch)
            size += batch.nbytes
        if size >= _MERGE_BYTES:
            table = pa.Table.from_batches(held)
            stop = pc.index(table["key"], table["key"][-1]).as_py()
            held = table.slice(stop).to_batches()
            size = sum(each.nbytes for each in held)
            if stop:
                yield table.slice(0, stop)
    if held:
        yield pa.Table.from_batches(held)
