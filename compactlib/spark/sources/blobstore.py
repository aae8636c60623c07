# SPDX-License-Identifier: Apache-2.0
"""`compactlib.blobstore`: a store's records as rows, partitioned by segments.

Planning says of each record whether a compaction would keep it, since that takes the index of the whole store.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import attrs
import pyarrow as pa

from compactlib.blobstore import BlobReader, SegmentRecords, StoredRecord
from compactlib.blobstore.policy import SegmentName
from compactlib.clock import Clock, SystemClock
from compactlib.errors import InvalidInput, Unsupported
from compactlib.spark.sources.table_source import (
    DAMAGED,
    Columns,
    Option,
    TableOptions,
    TableSource,
    batch_of,
    batched,
)

MAX_BATCH_ROWS = 16_384
MAX_BATCH_BYTES = 2 << 20
"""A batch ends at so many rows, or bytes of records if they are read; one larger record is a batch of its own."""

_LARGEST_BINARY = (1 << 31) - 1


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


def plan_slices(options: BlobOptions, clock: Clock | None = None) -> list[SegmentRecords]:
    """The segments to read, oldest first. Raises what `BlobReader` does, and `InvalidInput` for a segment that is not
    there."""
    now = (SystemClock() if clock is None else clock).now() if options.now is None else options.now
    with BlobReader(options.folder) as reader:
        if reader.damage and not options.errors:
            raise reader.damage[0]
        found = reader.records(reference_time=now if options.reference_time is None else options.reference_time,
                               now=now)
        names = {segment.name for segment in reader.snapshot().segments}
    if missing := set(options.segments) - names:
        raise InvalidInput(f"the store in {options.folder} has no segment {min(missing)}; it has "
                           f"{', '.join(str(each.name) for each in found)}")
    return [each for each in found if not options.segments or each.name in options.segments]


def read_slice(part: SegmentRecords, options: BlobOptions) -> Iterator[pa.RecordBatch]:
    """The records of a segment, ascending by offset, each checked against its CRC if its content is read.

    `Stale` if the store was compacted since the slice was planned.
    """
    reads = options.payload or options.errors
    for rows in batched(part.read(payloads=reads), lambda row: row.size if reads else 0, MAX_BATCH_ROWS,
                        MAX_BATCH_BYTES):
        columns = dict(zip(StoredRecord._fields, zip(*rows, strict=True), strict=True))
        if options.payload and (largest := max(columns["length"])) > _LARGEST_BINARY:
            raise Unsupported(f"segment {part.name} of {part.folder}: a content of {largest} bytes is more than Spark "
                              f"holds ({_LARGEST_BINARY}); read it with compactlib.blobstore, or the others with "
                              "payload=false")
        yield batch_of(columns, options)


class BlobStoreSource(TableSource):
    """See `register`."""

    source: ClassVar[str] = "compactlib.blobstore"
    options_class: ClassVar[type[TableOptions]] = BlobOptions
    plan: ClassVar[Any] = staticmethod(plan_slices)
    read_part: ClassVar[Any] = staticmethod(read_slice)
