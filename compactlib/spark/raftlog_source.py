"""The Spark data source `compactlib.raftlog`; registered by `compactlib.spark.register`."""

from __future__ import annotations

from collections.abc import MutableMapping
from functools import partial

from pyspark.sql.datasource import DataSource, DataSourceReader
from pyspark.sql.types import StructType

from compactlib.spark.planned_reader import PlannedReader, sql_schema
from compactlib.spark.raftlog_rows import SourceOptions, plan_slices, read_slice

NAME = "compactlib.raftlog"
"""What `spark.read.format` takes."""


class RaftLogSource(DataSource):
    """A log's entries as rows, partitioned by segments; see `compactlib.spark.register` for columns and options."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._parsed = SourceOptions.parse(options)

    @classmethod
    def name(cls) -> str:
        """What `spark.read.format` takes."""
        return NAME

    def schema(self) -> str:
        """The columns, as Spark SQL."""
        return sql_schema(self._parsed.columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Plans and reads."""
        options = self._parsed
        return PlannedReader(options.columns, schema, partial(plan_slices, options),
                             partial(read_slice, options=options), options.partition_bytes)
