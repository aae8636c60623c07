# SPDX-License-Identifier: Apache-2.0
"""`compactlib.blobstore`: a store's records as rows, partitioned by segments.

Planning says of each record whether a compaction would keep it, since that takes the index of the whole store.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import attrs
import pyarrow as pa
import pyarrow.compute as pc

from compactlib.blobstore import BlobReader, RecordKind
from compactlib.blobstore.compaction.sense.kept_records import kept_records
from compactlib.blobstore.index.entry_columns import EntryColumns
from compactlib.blobstore.model.values import RecordFlag
from compactlib.blobstore.policy import SegmentName
from compactlib.blobstore.segment.descriptor import Descriptor
from compactlib.blobstore.segment.reader import SegmentFile
from compactlib.blobstore.segment.records import OVERHEAD_BYTES, TRAILER_BYTES, check_whole
from compactlib.blobstore.store.store_reader import look_at_segment, segment_path
from compactlib.clock import Clock, SystemClock
from compactlib.errors import CorruptData, InvalidInput, NotFound, Stale, Unsupported
from compactlib.spark.sources import arrow_arrays as arrays
from compactlib.spark.sources.table_source import DAMAGED, Columns, Option, TableOptions, TableSource

MAX_BATCH_ROWS = 16_384
MAX_BATCH_BYTES = 2 << 20
"""A batch ends at so many rows, or bytes of records if they are read; one larger record is a batch of its own."""

_PUT = int(RecordKind.PUT)
_LARGEST_BINARY = (1 << 31) - 1
_NAMES = {int(kind): kind.name.lower() for kind in RecordKind}
_KINDS = [_NAMES.get(number, "") for number in range(max(_NAMES) + 1)]
_IS_TTL_UPDATED = bytes(bool(value & RecordFlag.TTL_UPDATED) for value in range(256))
_IS_ERASED = bytes(bool(value & RecordFlag.ERASED) for value in range(256))


def _seconds(text: str) -> float:
    if not math.isfinite(float(text)):
        raise ValueError
    return float(text)


def _segments(text: str) -> tuple[SegmentName, ...]:
    return tuple(SegmentName.parse(name.strip()) for name in text.split(",") if name.strip())


@attrs.frozen(kw_only=True)
class BlobOptions(TableOptions):
    """What a reader of the source may ask for, besides `TableOptions`: see `docs/spark.md`. `now` is when planning
    happens if `None`, and `reference_time` as `now`."""

    now: float | None = None
    reference_time: float | None = None
    segments: tuple[SegmentName, ...] = ()
    known: ClassVar[Mapping[str, Option]] = {
        "damaged": DAMAGED, "segments": Option("segments", _segments),
        **{name: Option(name, _seconds, "seconds since the epoch") for name in ("now", "reference_time")}}
    what: ClassVar[str] = "store"
    own: ClassVar[Columns] = (
        ("segment", "string"), ("offset", "bigint"), ("size", "bigint"), ("length", "bigint"), ("id", "binary"),
        ("kind", "string"), ("sequence", "bigint"), ("op_time_ms", "bigint"), ("expires_ms", "bigint"),
        ("account", "bigint"), ("container", "bigint"), ("life_version", "int"), ("permanent", "boolean"),
        ("erased", "boolean"), ("valid", "boolean"))


@attrs.frozen(kw_only=True)
class BlobSlice:
    """What is read of one segment: so many records, which ended at `size_bytes` in its file. `kept` has one bit for
    each, the first the lowest of the first byte: whether a compaction would keep it."""

    name: SegmentName
    descriptor: Descriptor
    records: int
    size_bytes: int
    kept: bytes


def plan_slices(options: BlobOptions, clock: Clock | None = None) -> list[BlobSlice]:
    """The segments to read, oldest first. Raises what `BlobReader` does, and `InvalidInput` for a segment that is not
    there."""
    now = (SystemClock() if clock is None else clock).now() if options.now is None else options.now
    with BlobReader(options.folder) as reader:
        look = reader.look
    if look.damage and not options.errors:
        raise look.damage[0]
    kept = kept_records(look.snapshot, now if options.reference_time is None else options.reference_time, now)
    ends = {info.name: info.end for info in look.snapshot.segments if info.records}
    if missing := set(options.segments).difference(info.name for info in look.snapshot.segments):
        raise InvalidInput(f"the store in {options.folder} has no segment {min(missing)}; it has "
                           f"{', '.join(map(str, ends))}")
    return [BlobSlice(name=name, descriptor=look.descriptor, records=len(kept[name]), size_bytes=end,
                      kept=arrays.packed(kept[name]))
            for name, end in ends.items() if not options.segments or name in options.segments]


def read_slice(part: BlobSlice, options: BlobOptions) -> Iterator[pa.RecordBatch]:
    """The records of a segment, ascending by offset, each checked against its CRC if its content is read.

    `Stale` if the store was compacted since the slice was planned.
    """
    try:
        loaded = look_at_segment(options.folder, part.name, part.descriptor)
        path = segment_path(options.folder, part.name)
        if path is None:
            raise NotFound(f"segment {part.name} of {options.folder} is gone")
        file = SegmentFile(path, loaded.header)
    except NotFound as error:
        raise Stale(f"segment {part.name} of {options.folder} was compacted away after this read was planned; load the "
                    "store again to see it as it is now") from error
    schema, kept, before = arrays.schema_of(options.columns), arrays.unpacked(part.kept, part.records), 0
    for columns in (index.columns for index in loaded.segment.index):
        count = min(len(columns.offsets), part.records - before)
        for first in range(0, count, MAX_BATCH_ROWS):
            rows = range(first, min(first + MAX_BATCH_ROWS, count))
            made = _of_the_index(columns, rows, schema)
            made |= {"segment": pa.repeat(pa.scalar(str(part.name)), len(rows)),
                     "valid": kept.slice(before + first, len(rows))}
            yield from arrays.in_batches(made, schema, rows, options.errors, (
                (some, *read_contents(file, columns, some)) for some in _within_bytes(columns, rows)
            ) if options.payload or options.errors else None)
        before += count


def _of_the_index(columns: EntryColumns, rows: range, schema: pa.Schema) -> dict[str, pa.Array[Any]]:
    part, ids = slice(rows.start, rows.stop), [columns.ids[row] for row in rows]
    marks = columns.flags[part].tobytes()
    expiries: Any = arrays.numbers(columns.expiries[part], pa.int64())
    return {
        "length": pa.array([size - OVERHEAD_BYTES - len(name)
                            for size, name in zip(columns.sizes[part], ids, strict=True)], pa.int64()),
        "id": arrays.binaries(map(len, ids), b"".join(ids)),
        "kind": arrays.chosen(_KINDS, columns.kinds[part].tobytes()),
        "expires_ms": pc.if_else(pc.less(expiries, pa.scalar(0)), pa.scalar(None, pa.int64()), expiries),
        "permanent": arrays.flags(marks.translate(_IS_TTL_UPDATED)),
        "erased": arrays.flags(marks.translate(_IS_ERASED)),
        **{name: arrays.numbers(column[part], schema.field(name).type) for name, column in (
            ("offset", columns.offsets), ("size", columns.sizes), ("sequence", columns.sequences),
            ("op_time_ms", columns.op_times), ("account", columns.accounts), ("container", columns.containers),
            ("life_version", columns.life_versions))},
    }


def read_contents(file: SegmentFile, columns: EntryColumns, rows: range,
                  ) -> tuple[pa.Array[Any], dict[int, CorruptData]]:
    """Read and check the records of some rows, which ascend by offset, at once, into memory of Arrow's, given on.

    Gives the content of each, null if it is no put, or damaged; and what is wrong with the damaged ones, by their rows.
    """
    part = slice(rows.start, rows.stop)
    offsets, sizes = columns.offsets[part], columns.sizes[part]
    lengths = [size - OVERHEAD_BYTES - len(columns.ids[row]) for row, size in zip(rows, sizes, strict=True)]
    if (largest := max(lengths)) > _LARGEST_BINARY:
        raise Unsupported(f"{file.path}: a content of {largest} bytes is more than Spark holds "
                          f"({_LARGEST_BINARY}); read it with compactlib.blobstore, or the others with payload=false")
    base, salt = offsets[0], file.header.salt
    buffer = pa.allocate_buffer(offsets[-1] + sizes[-1] - base)
    data = memoryview(buffer).cast("B")
    data = data[:file.read_into(base, data)]
    damage: dict[int, CorruptData] = {}
    there = bytearray(kind == _PUT for kind in columns.kinds[part])
    first = end = sizes[0] - TRAILER_BYTES - lengths[0]
    for place, (offset, size, sequence) in enumerate(zip(offsets, sizes, columns.sequences[part], strict=True)):
        record, length = data[offset - base:offset - base + size], lengths[place]
        found = check_whole(record, salt, sequence) if len(record) == size else f"{len(record)} bytes of it"
        if found is not None:
            length = lengths[place] = there[place] = 0
            damage[rows.start + place] = CorruptData(path=file.path, offset=offset, index=sequence, found=found,
                                                     expected=f"record {sequence} of {size} bytes")
        elif (start := offset - base + size - TRAILER_BYTES - length) > end:
            # Up to the one before, while it is in the processor's cache: other memory would cost more than the reading.
            data[end:end + length] = data[start:start + length]
        end += length
    return arrays.binaries(lengths, buffer.slice(first, end - first), there), damage


def _within_bytes(columns: EntryColumns, rows: range) -> Iterator[range]:
    """The rows in parts that fit into one read, or are one row."""
    start, stop = rows.start, rows.stop
    while start < stop:
        limit = columns.offsets[start] + MAX_BATCH_BYTES
        fits = columns.offsets[stop - 1] + columns.sizes[stop - 1] <= limit
        end = stop if fits else max(bisect_right(columns.offsets, limit, start, stop) - 1, start + 1)
        yield range(start, end)
        start = end


class BlobStoreSource(TableSource):
    """See `register`."""

    source: ClassVar[str] = "compactlib.blobstore"
    options_class: ClassVar[type[TableOptions]] = BlobOptions
    plan: ClassVar[Any] = staticmethod(plan_slices)
    read_part: ClassVar[Any] = staticmethod(read_slice)
