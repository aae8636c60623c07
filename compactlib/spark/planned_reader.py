"""The reader of every data source here: parts are planned once, and each is read in any process.

It takes no filters from Spark, on purpose. Spark (4.3.0) keeps what a filtered query pushed into a Python source and
reads the next query on the same DataFrame or view through it: after `df.where("index = 7").count()`, `df.count()` gives
1, and the two sides of a self-join share the filter of the last one. Options do the same work and belong to one
DataFrame.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from compactlib.errors import InvalidInput
from compactlib.spark.neighbours import neighbours
from compactlib.spark.settled import settled

if TYPE_CHECKING:
    import pyarrow as pa


class PlannedReader(DataSourceReader):
    """Plans partitions of some neighbouring parts each, and reads them.

    Args:
        columns: names and Spark SQL types of the source's columns.
        schema: what Spark asks for.
        plan: gives the parts, in order; picklable, as they are.
        read: gives the rows of a part; picklable.
        partition_bytes: up to which size neighbours share a partition.

    Raises:
        InvalidInput: `.schema(...)` was given and is not the source's own.
    """

    def __init__(self, columns: Sequence[tuple[str, str]], schema: StructType, plan: Callable[[], Sequence[Any]],
                 read: Callable[[Any], Iterator[pa.RecordBatch]], partition_bytes: int) -> None:
        given = tuple((field.name, field.dataType.simpleString()) for field in schema.fields)
        if given != tuple(columns):
            raise InvalidInput(f"this source has the columns {columns}, found {given}; leave .schema() out, "
                               "and cast or select afterwards")
        self._plan = plan
        self._read = read
        self._partition_bytes = partition_bytes

    def partitions(self) -> list[InputPartition]:
        """Called once, in a planning process."""
        return list(map(InputPartition, neighbours(self._plan(), self._partition_bytes)))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one partition; called in a worker."""
        # Spark makes one partition of `None` when there is nothing to read.
        return settled(chain.from_iterable(map(self._read, partition.value or ())))


def sql_schema(columns: Sequence[tuple[str, str]]) -> str:
    """The columns, as Spark SQL."""
    return ", ".join(f"{name} {kind}" for name, kind in columns)
