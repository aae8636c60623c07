# SPDX-License-Identifier: Apache-2.0
"""Every table here is this data source: parts are planned once, and each is read in any process.

It takes no filters from Spark, on purpose. Spark (4.3.0) keeps what a filtered query pushed into a Python source and
reads the next query on the same DataFrame or view through it: after `df.where("index = 7").count()`, `df.count()` gives
1, and the two sides of a self-join share the filter of the last one. Options do the same work and belong to one
DataFrame.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

import attrs
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from compactlib.errors import InvalidInput
from compactlib.spark.sources.table_options import TableOptions

if TYPE_CHECKING:
    import pyarrow as pa


class Part(Protocol):
    """Something to read."""

    @property
    def size_bytes(self) -> int:
        """How much there is to read, about."""


P = TypeVar("P", bound=Part)


def neighbours(parts: Sequence[P], most_bytes: int) -> list[tuple[P, ...]]:
    """The parts in order, neighbours together as long as they have no more than `most_bytes`; larger ones alone."""
    groups: list[list[P]] = []
    size = 0
    for part in parts:
        size += part.size_bytes
        if not groups or size > most_bytes:
            groups.append([])
            size = part.size_bytes
        groups[-1].append(part)
    return list(map(tuple, groups))


@attrs.frozen
class Table:
    """What is a table's own.

    Attributes:
        name: what `spark.read.format` takes.
        options: their class.
        plan: gives the parts for the options, in order, once, in a planning process.
        read: gives the rows of a part, in a worker.
    """

    name: str
    options: type[TableOptions]
    plan: Callable[[Any], Sequence[Any]]
    read: Callable[[Any, Any], Iterator[pa.RecordBatch]]


class TableSource(DataSource):
    """What every table here is.

    Attributes:
        table: what is its own.
    """

    table: ClassVar[Table]

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._asked: TableOptions = self.table.options.parse(options)

    @classmethod
    def name(cls) -> str:
        """What `spark.read.format` takes."""
        return cls.table.name

    def schema(self) -> str:
        """The columns, as Spark SQL."""
        return sql_schema(self._asked.columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Plans and reads.

        Raises:
            InvalidInput: `.schema(...)` was given and is not the source's own.
        """
        given = tuple((field.name, field.dataType.simpleString()) for field in schema.fields)
        if given != self._asked.columns:
            raise InvalidInput(f"this source has the columns {self._asked.columns}, found {given}; leave .schema() "
                               "out, and cast or select afterwards")
        return TableReader(self.table, self._asked)


class TableReader(DataSourceReader):
    """Plans partitions of some neighbouring parts each, and reads them."""

    def __init__(self, table: Table, asked: TableOptions) -> None:
        self._table = table
        self._asked = asked

    def partitions(self) -> list[InputPartition]:
        """See `Table.plan`."""
        return list(map(InputPartition, neighbours(self._table.plan(self._asked), self._asked.partition_bytes)))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """See `Table.read`."""
        # Spark makes one partition of `None` when there is nothing to read.
        return chain.from_iterable(self._table.read(part, self._asked) for part in partition.value or ())


def sql_schema(columns: Iterable[tuple[str, str]]) -> str:
    """The columns, as Spark SQL."""
    return ", ".join(f"{name} {kind}" for name, kind in columns)
