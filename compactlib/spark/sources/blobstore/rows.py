# SPDX-License-Identifier: Apache-2.0
"""The records of a blob store as Arrow batches: which segments are read, and what each gives.

Planning happens once, in one process, and says of each record whether a compaction would keep it, since that takes the
index of the whole store; a segment is then read in any process that sees the folder. Bytes go from the file right into
the batch's buffers.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import attrs
import pyarrow as pa
import pyarrow.compute as pc

from compactlib.blobstore.index.entry_columns import EntryColumns
from compactlib.blobstore.model.names import SegmentName
from compactlib.blobstore.model.values import RecordFlag, RecordKind
from compactlib.blobstore.segment.descriptor import Descriptor
from compactlib.blobstore.segment.reader import SegmentFile, SegmentHeader
from compactlib.blobstore.segment.records import OVERHEAD_BYTES
from compactlib.blobstore.store.blob_reader import BlobReader
from compactlib.blobstore.store.store_reader import kept_offsets, look_at_segment, segment_path
from compactlib.clock import Clock, SystemClock
from compactlib.errors import InvalidInput, NotFound, Stale
from compactlib.spark.sources.arrow_arrays import binaries, chosen, flags, numbers, schema_of
from compactlib.spark.sources.blobstore.contents import read_contents
from compactlib.spark.sources.neighbours import DEFAULT_PARTITION_BYTES
from compactlib.spark.sources.planned_reader import PlannedSource, SourceSteps
from compactlib.spark.sources.source_options import folder_of, given_options, one_of, partition_bytes_of, seconds_of

MAX_BATCH_ROWS = 16_384
MAX_BATCH_BYTES = 2 << 20
"""A batch ends at so many rows, or bytes of records if they are read; one larger record is a batch of its own."""

_OPTIONS = frozenset({"path", "payload", "damaged", "now", "reference_time", "segments", "partition_bytes"})
_NAMES = {int(kind): kind.name.lower() for kind in RecordKind}
_KINDS = [_NAMES.get(number, "") for number in range(max(_NAMES) + 1)]
_DIGITS = bytes(b"01"[value & 1] for value in range(256))
_BYTES = bytes(value & 1 for value in range(256))
_IS_TTL_UPDATED = bytes(bool(value & RecordFlag.TTL_UPDATED) for value in range(256))
_IS_ERASED = bytes(bool(value & RecordFlag.ERASED) for value in range(256))
_COLUMNS = (
    ("segment", "string"), ("offset", "bigint"), ("size", "bigint"), ("length", "bigint"), ("id", "binary"),
    ("kind", "string"), ("sequence", "bigint"), ("op_time_ms", "bigint"), ("expires_ms", "bigint"),
    ("account", "bigint"), ("container", "bigint"), ("life_version", "int"), ("permanent", "boolean"),
    ("erased", "boolean"), ("valid", "boolean"),
)


@attrs.frozen(kw_only=True)
class BlobOptions:
    """What a reader of the source may ask for.

    Attributes:
        folder: the store's folder.
        payload: give the blobs' contents; without, the log itself is not read (unless `errors`).
        errors: give damaged records with the error in a column of its own, instead of failing.
        now: for `valid`: blobs that expire strictly before it have expired; when planning happens if `None`.
        reference_time: for `valid`: deletes made strictly before it are in effect; as `now` if `None`.
        segments: the names of the segments to read; all if empty.
        partition_bytes: up to which size neighbouring segments share a partition.
    """

    folder: str
    payload: bool = True
    errors: bool = False
    now: float | None = None
    reference_time: float | None = None
    segments: tuple[SegmentName, ...] = ()
    partition_bytes: int = DEFAULT_PARTITION_BYTES

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> BlobOptions:
        """The options of `spark.read`, checked.

        Raises:
            InvalidInput: one is unknown, or has a value that it cannot have.
        """
        given = given_options(options, _OPTIONS, "store")
        names = tuple(SegmentName.parse(name.strip()) for name in given.get("segments", "").split(",") if name.strip())
        return cls(folder=folder_of(given), payload=one_of(given, "payload", {"true": True, "false": False}),
                   errors=one_of(given, "damaged", {"fail": False, "column": True}), now=seconds_of(given, "now"),
                   reference_time=seconds_of(given, "reference_time"), segments=names,
                   partition_bytes=partition_bytes_of(given))

    @property
    def columns(self) -> tuple[tuple[str, str], ...]:
        """Names and Spark SQL types of the columns, in order."""
        payload = (("payload", "binary"),) if self.payload else ()
        error = (("error", "string"),) if self.errors else ()
        return (*_COLUMNS, *payload, *error)


@attrs.frozen(kw_only=True)
class BlobSlice:
    """What is read of one segment, as it was found.

    Attributes:
        folder: the store's folder.
        name: the segment.
        descriptor: of the store.
        records: how many records it had.
        size_bytes: where they ended in its file.
        kept: one bit a record, the first the lowest of the first byte: whether a compaction would keep it.
    """

    folder: str
    name: SegmentName
    descriptor: Descriptor
    records: int
    size_bytes: int
    kept: bytes


def plan_slices(options: BlobOptions, clock: Clock | None = None) -> list[BlobSlice]:
    """The segments to read, oldest first. Reads the index of the whole store.

    Raises:
        NotAStore, Busy, CorruptData, Unsupported, StorageError: as for `BlobReader`.
        InvalidInput: a segment was named that is not there.
    """
    now = (SystemClock() if clock is None else clock).now() if options.now is None else options.now
    with BlobReader(options.folder) as reader:
        look = reader.look
    if look.damage and not options.errors:
        raise look.damage[0]
    kept = kept_offsets(look.snapshot, now if options.reference_time is None else options.reference_time, now)
    ends = {info.name: info.end for info in look.snapshot.segments if info.records}
    missing = set(options.segments).difference(info.name for info in look.snapshot.segments)
    if missing:
        raise InvalidInput(f"the store in {options.folder} has no segment {min(missing)}; it has "
                           f"{', '.join(map(str, ends))}")
    masks: dict[SegmentName, bytearray] = {}
    for index in look.snapshot.index_parts():
        is_kept = kept[index.segment].__contains__
        masks.setdefault(index.segment, bytearray()).extend(map(is_kept, index.columns.offsets))
    slices = []
    for name, end in ends.items():
        if options.segments and name not in options.segments:
            continue
        mask = masks[name]
        slices.append(BlobSlice(folder=options.folder, name=name, descriptor=look.descriptor, records=len(mask),
                                size_bytes=end, kept=_packed(mask)))
    return slices


def read_slice(part: BlobSlice, options: BlobOptions) -> Iterator[pa.RecordBatch]:
    """The records of a segment, ascending by offset, each checked against its CRC if its content is read.

    Raises:
        CorruptData: a record is damaged and `options.errors` is off.
        Stale: the store was compacted since the slice was planned.
        Unsupported: a content of 2 GiB or more, which Spark's types cannot hold.
    """
    try:
        loaded = look_at_segment(part.folder, part.name, part.descriptor)
        file = _file_of(part, loaded.header)
    except NotFound as error:
        raise Stale(f"segment {part.name} of {part.folder} was compacted away after this read was planned; load the "
                    "store again to see it as it is now") from error
    rows = _Rows(file, part, options, schema_of(options.columns))
    start = 0
    for index in loaded.segment.index:
        stop = min(len(index), part.records - start)
        yield from rows.batches(index.columns, stop, start)
        start += stop


def _file_of(part: BlobSlice, header: SegmentHeader) -> SegmentFile:
    path = segment_path(part.folder, part.name)
    if path is None:
        raise NotFound(f"segment {part.name} of {part.folder} is gone")
    return SegmentFile(path, header)


@attrs.frozen(eq=False)
class _Rows:
    """Turns rows of one segment's index into batches."""

    file: SegmentFile
    part: BlobSlice
    options: BlobOptions
    schema: pa.Schema

    def batches(self, columns: EntryColumns, count: int, before: int) -> Iterator[pa.RecordBatch]:
        """The first `count` rows, of which the segment has `before` in front of them."""
        kept = _unpacked(self.part.kept, before, count)
        for first in range(0, count, MAX_BATCH_ROWS):
            end = min(first + MAX_BATCH_ROWS, count)
            # Once for many batches: making a column costs more than a batch's few values.
            made = self._of_the_index(columns, range(first, end), kept[first:end])
            start = first
            while start < end:
                stop = _within_bytes(columns, start, end) if self._reads else end
                batch = {name: column.slice(start - first, stop - start) for name, column in made.items()}
                if self._reads:
                    batch.update(self._checked(columns, range(start, stop)))
                yield pa.RecordBatch.from_arrays([batch[name] for name in self.schema.names], schema=self.schema)
                start = stop

    @property
    def _reads(self) -> bool:
        return self.options.payload or self.options.errors

    def _of_the_index(self, columns: EntryColumns, rows: range, kept: bytes) -> dict[str, pa.Array[Any]]:
        part = slice(rows.start, rows.stop)
        ids = [columns.ids[row] for row in rows]
        marks = columns.flags[part].tobytes()
        expiries: Any = numbers(columns.expiries[part], pa.int64())
        return {
            "segment": pa.repeat(pa.scalar(str(self.part.name)), len(rows)),
            "length": pa.array([size - OVERHEAD_BYTES - len(name)
                                for size, name in zip(columns.sizes[part], ids, strict=True)], pa.int64()),
            "id": binaries(map(len, ids), b"".join(ids)),
            "kind": chosen(_KINDS, columns.kinds[part].tobytes()),
            "expires_ms": pc.if_else(pc.less(expiries, pa.scalar(0)), pa.scalar(None, pa.int64()), expiries),
            "permanent": flags(marks.translate(_IS_TTL_UPDATED)), "erased": flags(marks.translate(_IS_ERASED)),
            "valid": flags(kept),
            **{name: numbers(column[part], self.schema.field(name).type) for name, column in (
                ("offset", columns.offsets), ("size", columns.sizes), ("sequence", columns.sequences),
                ("op_time_ms", columns.op_times), ("account", columns.accounts), ("container", columns.containers),
                ("life_version", columns.life_versions))},
        }

    def _checked(self, columns: EntryColumns, rows: range) -> dict[str, pa.Array[Any]]:
        contents = read_contents(self.file, columns, rows)
        if contents.damage and not self.options.errors:
            raise next(iter(contents.damage.values()))
        errors = [str(contents.damage[row]) if row in contents.damage else None for row in rows]
        return {"payload": binaries(contents.lengths, contents.values, contents.are_there),
                "error": pa.array(errors, pa.string())}


def _within_bytes(columns: EntryColumns, start: int, stop: int) -> int:
    """The end of the rows from `start` that fit into one read; at least one does."""
    limit = columns.offsets[start] + MAX_BATCH_BYTES
    return max(bisect_right(columns.offsets, limit, start, stop) - 1, start + 1) if (
        columns.offsets[stop - 1] + columns.sizes[stop - 1] > limit) else stop


def _packed(mask: bytearray) -> bytes:
    """One bit for each byte that is 0 or 1, the first the lowest of the first byte."""
    digits = mask[::-1].translate(_DIGITS)
    return int(digits or b"0", 2).to_bytes(-(-len(mask) // 8), "little")


def _unpacked(packed: bytes, start: int, count: int) -> bytes:
    """The inverse of `_packed`, of a part."""
    bits = (int.from_bytes(packed, "little") >> start) & ((1 << count) - 1)
    return f"{bits:0{count}b}".encode().translate(_BYTES)[::-1] if count else b""


class BlobStoreSource(PlannedSource):
    """A store's records as rows, partitioned by segments; see `compactlib.spark.register` for columns and options."""

    format_name: ClassVar[str] = "compactlib.blobstore"
    steps: ClassVar[SourceSteps] = SourceSteps(BlobOptions.parse, plan_slices, read_slice)
