# SPDX-License-Identifier: Apache-2.0
"""Arrow arrays over memory that is there already: no work is done value by value.

Never give views to `pa.array`: it keeps their buffers for good.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, Final, TypeAlias

import pyarrow as pa

from compactlib.errors import CorruptData

_TYPES: Final[dict[str, pa.DataType]] = {
    "bigint": pa.int64(), "int": pa.int32(), "boolean": pa.bool_(), "binary": pa.binary(), "string": pa.string(),
}
_STORED: Final[dict[str, pa.DataType]] = {
    "Q": pa.uint64(), "q": pa.int64(), "I": pa.uint32(), "i": pa.int32(), "H": pa.uint16(), "B": pa.uint8(),
}


def schema_of(columns: Iterable[tuple[str, str]]) -> pa.Schema:
    """The Arrow schema of columns that are given by names and Spark SQL types."""
    return pa.schema([pa.field(name, _TYPES[kind]) for name, kind in columns])


Contents: TypeAlias = "tuple[Sequence[int], pa.Array[Any], Mapping[int, CorruptData]]"
"""What was read of some rows that follow each other: the payloads, and what is wrong with the damaged ones."""


def in_batches(columns: Mapping[str, pa.Array[Any]], schema: pa.Schema, rows: range, errors: bool,
               contents: Iterable[Contents] | None) -> Iterator[pa.RecordBatch]:
    """These columns of some rows, with their contents, in the batches in which those are read; else as one.

    Damage is raised if there is no column for `errors`. Columns are made once for many batches: making one costs more
    than a batch's few values.
    """
    if contents is None:
        yield pa.RecordBatch.from_pydict(columns, schema=schema)
    for part, payload, damage in contents or ():
        if damage and not errors:
            raise next(iter(damage.values()))
        batch = {name: column.slice(part[0] - rows.start, len(part)) for name, column in columns.items()}
        batch["payload"] = payload
        if errors:
            batch["error"] = pa.array([str(damage[row]) if row in damage else None for row in part], pa.string())
        yield pa.RecordBatch.from_pydict(batch, schema=schema)


def numbers(column: array[int], kind: pa.DataType) -> pa.Array[Any]:
    """Numbers as another type; `pyarrow.ArrowInvalid` if one does not fit into it."""
    return pa.Array.from_buffers(_STORED[column.typecode], len(column), [None, pa.py_buffer(column)]).cast(kind)


def flags(values: bytes | bytearray) -> pa.Array[Any]:
    """A boolean for each byte, true where it is not 0."""
    return pa.Array.from_buffers(pa.uint8(), len(values), [None, pa.py_buffer(bytes(values))]).cast(pa.bool_())


def packed(values: bytes | bytearray) -> bytes:
    """One bit for each byte, set where it is not 0."""
    bits = flags(values).buffers()[1]
    return b"" if bits is None else bits.to_pybytes()


def unpacked(bits: bytes, count: int) -> pa.Array[Any]:
    """A boolean for each of so many bits that `packed` gave."""
    return pa.Array.from_buffers(pa.bool_(), count, [None, pa.py_buffer(bits)])


def binaries(lengths: Iterable[int], values: Any, there: bytes | bytearray | None = None) -> pa.Array[Any]:
    """Values that lie one behind the other in a buffer; null where `there` has a 0."""
    offsets = array("i", accumulate(lengths, initial=0))
    mask = None if there is None else flags(there).buffers()[1]
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, [mask, pa.py_buffer(offsets), pa.py_buffer(values)])


def chosen(names: Sequence[str], places: bytes) -> pa.Array[Any]:
    """For each byte the name at that place; for columns of a few words."""
    dictionary = pa.array(names, pa.string())
    return dictionary.take(pa.Array.from_buffers(pa.uint8(), len(places), [None, pa.py_buffer(places)]))
