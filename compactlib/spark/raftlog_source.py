"""The Spark data source `compactlib.raftlog`; registered by `compactlib.spark.register`.

It takes no filters from Spark, on purpose. Spark (4.3.0) keeps what a filtered query pushed into a Python source and
reads the next query on the same DataFrame or view through it: after `df.where("index = 7").count()`, `df.count()` gives
1, and the two sides of a self-join share the filter of the last one. The options `first` and `last` do the same work
and belong to one DataFrame.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from compactlib.errors import InvalidInput
from compactlib.spark.raftlog_rows import SegmentSlice, SourceOptions, plan_slices, read_slice

if TYPE_CHECKING:
    import pyarrow as pa

NAME = "compactlib.raftlog"
"""What `spark.read.format` takes."""


class RaftLogSource(DataSource):
    """A log's entries as rows, one partition per segment; see `compactlib.spark.register` for columns and options."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._parsed = SourceOptions.parse(options)

    @classmethod
    def name(cls) -> str:
        """What `spark.read.format` takes."""
        return NAME

    def schema(self) -> str:
        """The columns, as Spark SQL."""
        return ", ".join(f"{name} {kind}" for name, kind in self._parsed.columns)

    def reader(self, schema: StructType) -> RaftLogReader:
        """Plans and reads."""
        return RaftLogReader(self._parsed, schema)


class RaftLogReader(DataSourceReader):
    """Plans one partition per segment, and reads it.

    Raises:
        InvalidInput: `.schema(...)` was given and is not the source's own.
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        given = tuple((field.name, field.dataType.simpleString()) for field in schema.fields)
        if given != options.columns:
            raise InvalidInput(f"this source has the columns {options.columns}, found {given}; leave .schema() out, "
                               "and cast or select afterwards")
        self._options = options

    def partitions(self) -> list[InputPartition]:
        """One per segment that the range meets; called once, in a planning process."""
        return [InputPartition(part) for part in plan_slices(self._options)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one segment; called in a worker."""
        part: SegmentSlice | None = partition.value
        # Spark makes one partition of `None` when there is nothing to read.
        return iter(()) if part is None else read_slice(part, self._options)
