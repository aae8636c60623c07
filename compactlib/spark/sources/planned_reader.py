# SPDX-License-Identifier: Apache-2.0
"""Every data source here, and its reader: parts are planned once, and each is read in any process.

It takes no filters from Spark, on purpose. Spark (4.3.0) keeps what a filtered query pushed into a Python source and
reads the next query on the same DataFrame or view through it: after `df.where("index = 7").count()`, `df.count()` gives
1, and the two sides of a self-join share the filter of the last one. Options do the same work and belong to one
DataFrame.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import attrs
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from compactlib.errors import InvalidInput
from compactlib.spark.sources.neighbours import neighbours

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
        return chain.from_iterable(map(self._read, partition.value or ()))


class AskedOptions(Protocol):
    """Options of a source, as they were parsed."""

    @property
    def columns(self) -> Sequence[tuple[str, str]]:
        """Names and Spark SQL types of the columns, in order."""

    @property
    def partition_bytes(self) -> int:
        """Up to which size neighbours share a partition."""


@attrs.frozen
class SourceSteps:
    """What is a source's own.

    Attributes:
        parse: the options, checked.
        plan: gives the parts for the options, in order.
        read: gives the rows of a part; takes the options as `options`.
    """

    parse: Callable[[Mapping[str, str]], AskedOptions]
    plan: Callable[[Any], Sequence[Any]]
    read: Callable[..., Iterator[pa.RecordBatch]]


class PlannedSource(DataSource):
    """What every data source here is.

    Attributes:
        format_name: what `spark.read.format` takes.
        steps: what is this source's own.
    """

    format_name: ClassVar[str]
    steps: ClassVar[SourceSteps]

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._asked: AskedOptions = self.steps.parse(options)

    @classmethod
    def name(cls) -> str:
        """What `spark.read.format` takes."""
        return cls.format_name

    def schema(self) -> str:
        """The columns, as Spark SQL."""
        return sql_schema(self._asked.columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Plans and reads."""
        asked = self._asked
        return PlannedReader(asked.columns, schema, partial(self.steps.plan, asked),
                             partial(self.steps.read, options=asked), asked.partition_bytes)


def sql_schema(columns: Sequence[tuple[str, str]]) -> str:
    """The columns, as Spark SQL."""
    return ", ".join(f"{name} {kind}" for name, kind in columns)
