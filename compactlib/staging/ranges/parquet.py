# SPDX-License-Identifier: Apache-2.0
"""Ranges as Parquet files, which Spark, DuckDB, Polars and pandas read; rows as Arrow columns.

The only module that needs pyarrow (extra `staging`). Merging, cutting and hashing work on whole columns. A file has a
seal, its own digest: checking it costs a fraction of hashing the records, and covers the footer.
docs/formats/staging-range.md describes the file.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, Self

from compactlib._arguments import require_whole
from compactlib.errors import CorruptData, InvalidInput, MissingDependency
from compactlib.files.checksum import crc32
from compactlib.staging.ranges.metarange import LENGTHS_BYTES
from compactlib.staging.ranges.rows import DIGEST_BYTES, ChangeBatch, Merged, Rows, content_hash
from compactlib.staging.values import RangeId, Record

try:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq
except ImportError:
    raise MissingDependency(package="pyarrow", extra="staging", purpose="ranges as Parquet files") from None

COLUMNS: Final = ("key", "identity", "data")
"""The columns of a range file: bytes, never null; sorted by the first."""
_PARQUET: Final = b"PAR1"
_SEAL: Final = b"CLRANGE:"
"""Precedes the digest in the footer, which follows all records."""
_DIGITS: Final = 2 * DIGEST_BYTES
_BLOCK: Final = 1024
_SCHEMA: Final = pa.schema([pa.field(name, pa.binary(), nullable=False) for name in COLUMNS])


class ArrowRows:
    """Rows as three `pyarrow.BinaryArray`: keys, identities and data."""

    __slots__ = ("_ends", "_keys", "columns")

    def __init__(self, key: Any, identity: Any, data: Any) -> None:
        self.columns: tuple[Any, Any, Any] = key, identity, data
        self._keys: _Bytes = _Bytes(key)
        self._ends: Sequence[int] | None = None

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def size_bytes(self) -> int:
        lengths: int = LENGTHS_BYTES * len(self) + sum(_Bytes(column).size_bytes for column in self.columns)
        return lengths

    def key(self, index: int) -> bytes:
        return self._keys[index]

    def record(self, index: int) -> Record:
        _, identity, data = self.columns
        return Record(identity[index].as_py(), data[index].as_py())

    def pairs(self, start: int) -> Iterator[tuple[bytes, Record]]:
        for at in range(start, len(self), _BLOCK):
            keys, identities, datas = (column.slice(at, _BLOCK).to_pylist() for column in self.columns)
            yield from zip(keys, map(Record, identities, datas), strict=True)

    def find(self, key: bytes) -> int:
        return bisect_left(self._keys, key)

    def ends(self) -> Sequence[int]:
        if self._ends is None:
            lengths = [pc.binary_length(column).cast(pa.int64()) for column in self.columns]
            sizes = pc.add(pc.add(pc.add(lengths[0], lengths[1]), lengths[2]), LENGTHS_BYTES)
            self._ends = _numbers(pc.cumulative_sum(sizes), "q")
        return self._ends

    def part(self, start: int, stop: int) -> Self:
        return type(self)(*(column.slice(start, stop - start) for column in self.columns))

    def followed_by(self, other: Self) -> Self:
        return type(self)(*map(_joined, self.columns, other.columns))

    def merged(self, changes: ChangeBatch) -> Merged:
        if not len(changes):
            return Merged(self, 0, 0, 0)
        return _merge(self, *(pa.array(column, pa.binary())
                              for column in (changes.keys, changes.identities, changes.datas)))

    def cut_keys(self, raggedness: int) -> list[bytes]:
        keys: list[bytes] = self.columns[0].to_pylist()
        return [key for key, value in zip(keys, map(crc32, keys), strict=True) if value % raggedness == 0]

    def content_id(self) -> RangeId:
        return content_hash(len(self), ((memoryview(_numbers(pc.binary_length(column), "i")).cast("B"),
                                         (_Bytes(column).joined,)) for column in self.columns))


class _Bytes:
    """An array of bytes, whose items are read without Arrow scalars."""

    def __init__(self, column: Any) -> None:
        _, offsets, values = column.buffers()
        self._count = len(column)
        start = column.offset
        numbers = memoryview(offsets).cast("i") if self._count else memoryview(b"\0" * 4).cast("i")
        self._offsets = numbers[start:start + self._count + 1] if self._count else numbers
        self._values = memoryview(b"" if values is None else values)

    @property
    def size_bytes(self) -> int:
        """Total length of the items."""
        return self._offsets[self._count] - self._offsets[0]

    @property
    def joined(self) -> memoryview:
        """Return the concatenated items."""
        return self._values[self._offsets[0]:self._offsets[self._count]]

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> bytes:
        return bytes(self._values[self._offsets[index]:self._offsets[index + 1]])


def _numbers(column: Any, code: str) -> memoryview:
    """A column of integers without nulls, as a sequence."""
    if not len(column):
        return memoryview(b"").cast(code)  # type: ignore[call-overload, no-any-return]
    whole = memoryview(column.buffers()[1]).cast(code)  # type: ignore[call-overload]
    return whole[column.offset:column.offset + len(column)]  # type: ignore[no-any-return]


def _joined(first: Any, second: Any) -> Any:
    try:
        return pa.concat_arrays([first, second])
    except pa.ArrowInvalid as error:
        raise InvalidInput(f"a range of Parquet holds less than 2 GiB a column; lower max_bytes: {error}") from error


def _merge(base: ArrowRows, key: Any, identity: Any, data: Any) -> Merged:
    columns = [_joined(new, old) for new, old in zip((key, identity, data), base.columns, strict=True)]
    # Stable, so that of two equal keys the change directly precedes the record.
    order = pc.array_sort_indices(columns[0])
    keys, identities = columns[0].take(order), columns[1].take(order)
    meets = _with_previous(pc.equal, keys)
    same = pc.and_(meets, pc.fill_null(_with_previous(pc.equal, identities), False))
    tombstones = identities.is_null()
    matched, unchanged = _true(meets), _true(same)
    removed = _true(pc.and_(meets, _later(tombstones)))
    changed = matched - unchanged - removed
    added = len(key) - identity.null_count - (matched - removed)
    if not (added or changed or removed):
        return Merged(base, 0, 0, 0)
    # Drop tombstones, records that a change replaces or removes, and changes with the record's identity.
    stays = pc.invert(pc.or_(pc.or_(tombstones, pc.and_not(meets, same)), _earlier(same)))
    rows = ArrowRows(keys.filter(stays), identities.filter(stays), columns[2].take(order.filter(stays)))
    return Merged(rows, added, changed, removed)


_NO: Final = pa.array([False])


def _with_previous(compare: Any, column: Any) -> Any:
    """Return the comparison of each item with the previous item; `False` for the first."""
    return pa.concat_arrays([_NO, compare(column.slice(1), column.slice(0, len(column) - 1))])


def _later(flags: Any) -> Any:
    return pa.concat_arrays([_NO, flags.slice(0, len(flags) - 1)])


def _earlier(flags: Any) -> Any:
    return pa.concat_arrays([flags.slice(1), _NO])


def _true(flags: Any) -> int:
    return int(pc.sum(flags).as_py() or 0)


class ParquetFormat:
    """Ranges as Parquet files of the columns `key`, `identity` and `data`, sorted by key, compressed by Zstandard.

    Args:
        rows_per_group: records in a row group; each has its first and last key, so that a reader can pass it over.

    Raises:
        InvalidInput: `rows_per_group` is not positive.
        MissingDependency: on import, if pyarrow is not installed.
    """

    name: str = "parquet"

    def __init__(self, *, rows_per_group: int = 16_384) -> None:
        self._rows_per_group: int = require_whole("rows_per_group", rows_per_group, 1)

    def rows(self, pairs: Iterable[tuple[bytes, Record]]) -> ArrowRows:
        held = list(pairs)
        return ArrowRows(pa.array([key for key, _ in held], pa.binary()),
                         pa.array([record.identity for _, record in held], pa.binary()),
                         pa.array([record.data for _, record in held], pa.binary()))

    def encode(self, rows: Rows, range_id: RangeId) -> bytes:
        own = rows if isinstance(rows, ArrowRows) else self.rows(rows.pairs(0))
        sink = pa.BufferOutputStream()
        with pq.ParquetWriter(
                sink, _SCHEMA, compression="zstd", compression_level=1, use_dictionary=False, store_schema=False,
                write_statistics=["key"], sorting_columns=[pq.SortingColumn(0)]) as writer:
            writer.write_table(pa.table(list(own.columns), schema=_SCHEMA), row_group_size=self._rows_per_group)
            writer.add_key_value_metadata({"compactlib.seal": _SEAL.decode() + "0" * _DIGITS})
        data = sink.getvalue().to_pybytes()
        at = data.rindex(_SEAL) + len(_SEAL)
        return b"".join((data[:at], _seal_of(data, at, range_id), data[at + _DIGITS:]))

    def recognizes(self, data: bytes) -> bool:
        return data[:4] == _PARQUET

    def decode(self, data: bytes, range_id: RangeId, path: str) -> ArrowRows:
        at = data.rfind(_SEAL) + len(_SEAL)
        if _seal_of(data, at, range_id) != data[at:at + _DIGITS]:
            raise CorruptData(path=path, offset=at, expected=f"the seal of range {range_id}, "
                              f"{_seal_of(data, at, range_id)!r}", found=repr(data[at:at + _DIGITS]))
        try:
            table = pq.ParquetFile(pa.BufferReader(data)).read()
            if tuple(table.column_names) != COLUMNS or any(column.null_count for column in table.columns):
                raise CorruptData(path=path, offset=0, expected=f"the columns {', '.join(COLUMNS)} without nulls",
                                  found=str(table.schema))
            return ArrowRows(*(_one_array(column.cast(pa.binary())) for column in table.columns))
        except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
            raise CorruptData(path=path, offset=0, expected="a Parquet file", found=str(error)) from error


def _seal_of(data: bytes, at: int, range_id: RangeId) -> bytes:
    """Return the digest of an id and of a file without the digits at `at`."""
    view, digest = memoryview(data), hashlib.blake2b(range_id.encode(), digest_size=DIGEST_BYTES, person=_SEAL)
    digest.update(view[:at])
    digest.update(view[at + _DIGITS:])
    return digest.hexdigest().encode()


def _one_array(column: Any) -> Any:
    whole = column.combine_chunks()
    return whole if isinstance(whole, pa.Array) else pa.concat_arrays(whole.chunks)
