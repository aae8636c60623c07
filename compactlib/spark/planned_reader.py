"""The reader of every data source here: parts are planned once, and each is read in any process.

It takes no filters from Spark, on purpose. Spark (4.3.0) keeps what a filtered query pushed into a Python source and
reads the next query on the same DataFrame or view through it: after `df.where("index = 7").count()`, `df.count()` gives
1, and the two sides of a self-join share the filter of the last one. Options do the same work and belong to one
DataFrame.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from compactlib.errors import InvalidInput

if TYPE_CHECKING:
    import pyarrow as pa


class PlannedReader(DataSourceReader):
    """Plans one partition for each part, and reads it.

    Args:
        columns: names and Spark SQL types of the source's columns.
        schema: what Spark asks for.
        plan: gives the parts; picklable, as they are.
        read: gives the rows of a part; picklable.

    Raises:
        InvalidInput: `.schema(...)` was given and is not the source's own.
    """

    def __init__(self, columns: Sequence[tuple[str, str]], schema: StructType, plan: Callable[[], Sequence[Any]],
                 read: Callable[[Any], Iterator[pa.RecordBatch]]) -> None:
        given = tuple((field.name, field.dataType.simpleString()) for field in schema.fields)
        if given != tuple(columns):
            raise InvalidInput(f"this source has the columns {columns}, found {given}; leave .schema() out, "
                               "and cast or select afterwards")
        self._plan = plan
        self._read = read

    def partitions(self) -> list[InputPartition]:
        """One per part; called once, in a planning process."""
        return [InputPartition(part) for part in self._plan()]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one part; called in a worker."""
        # Spark makes one partition of `None` when there is nothing to read.
        return iter(()) if partition.value is None else self._read(partition.value)


def sql_schema(columns: Sequence[tuple[str, str]]) -> str:
    """The columns, as Spark SQL."""
    return ", ".join(f"{name} {kind}" for name, kind in columns)
