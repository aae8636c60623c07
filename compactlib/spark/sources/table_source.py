# SPDX-License-Identifier: Apache-2.0
"""What every table here is: options that come as text, parts that are planned once, and each read in any process."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from itertools import accumulate, chain
from typing import Any, ClassVar, Final, Protocol, Self, TypeAlias, TypeVar

import attrs
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from compactlib.errors import InvalidInput
from compactlib.files import local_path
from compactlib.spark.sources.arrow_arrays import schema_of

Columns: TypeAlias = tuple[tuple[str, str], ...]
"""Names and Spark SQL types of columns, in order."""


@attrs.frozen
class Option:
    """How the text of an option gives a field: `read` raises `KeyError` or `ValueError` for what it does not take."""

    field: str
    read: Callable[[str], Any]
    takes: str = ""


def one_of(field: str, meanings: Mapping[str, Any]) -> Option:
    """An option of a few words, in capitals or not."""
    return Option(field, lambda text: meanings[text.lower()], " or ".join(meanings))


def whole(field: str, takes: str, least: int = 0, most: float = math.inf) -> Option:
    """An option that is a number of digits alone."""
    def read(text: str) -> int:
        if not (text.isascii() and text.isdigit()) or not least <= int(text) <= most:
            raise ValueError
        return int(text)
    return Option(field, read, takes)


def values_of(options: Mapping[str, str], known: Mapping[str, Option]) -> dict[str, Any]:
    """The fields that these options give, in capitals or not; `InvalidInput` if one is unknown, or has a value that it
    cannot have."""
    given = {name.lower(): text for name, text in options.items()}
    if "paths" in given:
        raise InvalidInput(f"the paths {given['paths']:.200}; load each by itself, and unite the DataFrames")
    if unknown := sorted(given.keys() - known.keys()):
        raise InvalidInput(f"unknown option {unknown[0]!r}; this source has {', '.join(sorted(known))}")
    values: dict[str, Any] = {}
    for name, text in given.items():
        option = known[name]
        if option.field in values:
            raise InvalidInput(f"option {name!r} was given beside another that says the same")
        try:
            values[option.field] = option.read(text)
        except InvalidInput:
            raise
        except (KeyError, ValueError, RecursionError) as error:
            raise InvalidInput(f"option {name!r} is {text!r:.400}; it takes {option.takes}") from error
    return values


DAMAGED: Final = one_of("errors", {"fail": False, "column": True})


@attrs.frozen(kw_only=True)
class TableOptions:
    """What a reader of any of the tables may ask for: see `docs/spark.md`. With `errors` payloads are always read."""

    folder: str
    payload: bool = True
    errors: bool = False
    # What spark.sql.files.maxPartitionBytes is by default.
    partition_bytes: int = 128 << 20
    known: ClassVar[Mapping[str, Option]] = {}
    """The options of this table beside path, payload and partition_bytes, by name."""
    what: ClassVar[str]
    """What is opened, for messages."""
    own: ClassVar[Columns] = ()
    """The columns in front of payload and error."""

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> Self:
        """The options of `spark.read`, checked. Raises what `values_of` does."""
        return cls(**cls.values(options))

    @classmethod
    def values(cls, options: Mapping[str, str], known: Mapping[str, Option] = {}) -> dict[str, Any]:
        """The fields that these options give; those that are `known` here go before the table's."""
        values = values_of(options, {
            "path": Option("folder", lambda text: local_path(text) if text else None),
            "payload": one_of("payload", {"true": True, "false": False}),
            "partition_bytes": whole("partition_bytes", "a number of bytes"), **cls.known, **known})
        if values.get("folder") is None and "path" not in known:
            raise InvalidInput(f"which {cls.what}? Give its folder: spark.read.format(...).load(folder)")
        return values

    @property
    def columns(self) -> Columns:
        """The table's columns."""
        asked = (("payload", "binary", self.payload), ("error", "string", self.errors))
        return (*self.own, *((name, kind) for name, kind, is_asked in asked if is_asked))


class Part(Protocol):
    """Something to read, of about so many bytes."""

    @property
    def size_bytes(self) -> int: ...


RowT = TypeVar("RowT")


def batched(rows: Iterable[RowT], size_of: Callable[[RowT], int], most_rows: int, most_bytes: int
            ) -> Iterator[list[RowT]]:
    """The rows in lists of at most so many rows and bytes; a larger row alone."""
    batch: list[RowT] = []
    held = 0
    for row in rows:
        size = size_of(row)
        if batch and (len(batch) == most_rows or held + size > most_bytes):
            yield batch
            batch, held = [], 0
        batch.append(row)
        held += size
    if batch:
        yield batch


def batch_of(columns: Mapping[str, Sequence[Any]], options: TableOptions) -> pa.RecordBatch:
    """Columns as one batch with those that the options ask for. Raises damage if there is no column for `error`."""
    errors = columns["error"]
    damage = next((error for error in errors if error is not None), None)
    if damage is not None and not options.errors:
        raise damage
    told = {**columns, "error": [None if error is None else str(error) for error in errors]}
    schema = schema_of(options.columns)
    return pa.RecordBatch.from_arrays([
        _binaries(told[field.name]) if field.name == "payload" else pa.array(told[field.name], field.type)
        for field in schema], schema=schema)


def _binaries(values: Sequence[bytes | None]) -> pa.Array[Any]:
    """As `pa.array` makes them, which takes five times as long for large values: its buffer grows."""
    offsets = array("i", accumulate((len(value or b"") for value in values), initial=0))
    mask = pa.array([value is not None for value in values], pa.bool_()).buffers()[1]
    data = pa.py_buffer(b"".join(value or b"" for value in values))
    return pa.Array.from_buffers(pa.binary(), len(values), [mask, pa.py_buffer(offsets), data])


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


class TableSource(DataSource, DataSourceReader):
    """A table as PySpark asks for it: what a query reads, and how; a class of its own gives the functions.

    It takes no filters from Spark, on purpose: Spark (4.3.0) reads the next query on the same DataFrame through what a
    filtered one has pushed: after `df.where("index = 7").count()`, `df.count()` gives 1.
    """

    source: ClassVar[str]
    """What `spark.read.format` takes."""
    options_class: ClassVar[type[TableOptions]]
    plan: ClassVar[Any]
    """A static method: the parts to read, in order, for the options; called once, in a planning process."""
    read_part: ClassVar[Any]
    """A static method: the rows of a part, for the options, in batches; called in workers."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._asked: TableOptions = self.options_class.parse(options)

    @classmethod
    def name(cls) -> str:
        return cls.source

    def schema(self) -> str:
        return ", ".join(f"{name} {kind}" for name, kind in self._asked.columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Refuses what `.schema(...)` was given, if it is not the source's own."""
        given = tuple((field.name, field.dataType.simpleString()) for field in schema.fields)
        if given != self._asked.columns:
            raise InvalidInput(f"this source has the columns {self._asked.columns}, found {given}; leave .schema() "
                               "out, and cast or select afterwards")
        return self

    def partitions(self) -> list[InputPartition]:
        return list(map(InputPartition, neighbours(self.plan(self._asked), self._asked.partition_bytes)))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Spark makes one partition of `None` when there is nothing to read.
        return chain.from_iterable(self.read_part(part, self._asked) for part in partition.value or ())
