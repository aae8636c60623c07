"""The records of a blob store as Arrow batches: which segments are read, and what each gives.

Planning happens once, in one process, and says of each record whether a compaction would keep it, since that takes the
index of the whole store; a segment is then read in any process that sees the folder. Bytes go from the file into the
batch's buffers without work per row but the check of the CRC.
"""

from __future__ import annotations

import os
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import attrs

from compactlib.blobstore.descriptor import Descriptor
from compactlib.blobstore.entry_columns import EntryColumns
from compactlib.blobstore.model import RecordFlag, RecordKind
from compactlib.blobstore.names import SegmentName
from compactlib.blobstore.records import HEADER_BYTES, OVERHEAD_BYTES, TRAILER_BYTES
from compactlib.blobstore.rewrite import _check_record
from compactlib.blobstore.segment import SegmentFile
from compactlib.blobstore.store_reader import kept_offsets, look_at_segment, look_at_store
from compactlib.clock import Clock, SystemClock
from compactlib.errors import CorruptData, InvalidInput, NotFound, Stale, StorageError, Unsupported
from compactlib.spark.source_options import folder_of, given_options, one_of, seconds_of

if TYPE_CHECKING:
    import pyarrow as pa

MAX_BATCH_ROWS = 16_384
MAX_BATCH_BYTES = 1 << 20
"""A batch ends at so many rows, or bytes of records if they are read; one larger record is a batch of its own."""

_PUT = int(RecordKind.PUT)
_TTL_UPDATED, _ERASED = int(RecordFlag.TTL_UPDATED), int(RecordFlag.ERASED)
_LARGEST_BINARY = (1 << 31) - 1
_OPTIONS = frozenset({"path", "payload", "damaged", "now", "reference_time", "segments"})
_KINDS = {int(kind): kind.name.lower() for kind in RecordKind}
_DIGITS = bytes(b"01"[value & 1] for value in range(256))
_BYTES = bytes(value & 1 for value in range(256))
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
    """

    folder: str
    payload: bool = True
    errors: bool = False
    now: float | None = None
    reference_time: float | None = None
    segments: tuple[SegmentName, ...] = ()

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
                   reference_time=seconds_of(given, "reference_time"), segments=names)

    @property
    def columns(self) -> tuple[tuple[str, str], ...]:
        """Names and Spark SQL types of the columns, in order."""
        payload = (("payload", "binary"),) if self.payload else ()
        error = (("error", "string"),) if self.errors else ()
        return (*_COLUMNS, *payload, *error)


@attrs.frozen(kw_only=True)
class BlobSlice:
    """What one partition reads: one segment, as it was found.

    Attributes:
        folder: the store's folder.
        name: the segment.
        descriptor: of the store.
        records: how many records it had.
        kept: one bit a record, the first the lowest of the first byte: whether a compaction would keep it.
    """

    folder: str
    name: SegmentName
    descriptor: Descriptor
    records: int
    kept: bytes


def plan_slices(options: BlobOptions, clock: Clock | None = None) -> list[BlobSlice]:
    """The segments to read, oldest first. Reads the index of the whole store.

    Raises:
        NotAStore, Busy, CorruptData, Unsupported, StorageError: as for `look_at_store`.
        InvalidInput: a segment was named that is not there.
    """
    now = (SystemClock() if clock is None else clock).now() if options.now is None else options.now
    look = look_at_store(options.folder)
    if look.damage and not options.errors:
        raise look.damage[0]
    kept = kept_offsets(look.snapshot, now if options.reference_time is None else options.reference_time, now)
    known = [info.name for info in look.snapshot.segments if info.records]
    missing = set(options.segments).difference(info.name for info in look.snapshot.segments)
    if missing:
        raise InvalidInput(f"the store in {options.folder} has no segment {min(missing)}; it has "
                           f"{', '.join(map(str, known))}")
    masks: dict[SegmentName, bytearray] = {}
    for index in look.snapshot.index_parts():
        is_kept = kept[index.segment].__contains__
        masks.setdefault(index.segment, bytearray()).extend(map(is_kept, index.columns.offsets))
    slices = []
    for name in known:
        if options.segments and name not in options.segments:
            continue
        mask = masks[name]
        slices.append(BlobSlice(folder=options.folder, name=name, descriptor=look.descriptor, records=len(mask),
                                kept=_packed(mask)))
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
        file = SegmentFile(os.path.join(part.folder, part.name.log_file), loaded.header)
    except NotFound as error:
        raise Stale(f"segment {part.name} of {part.folder} was compacted away after this read was planned; load the "
                    "store again to see it as it is now") from error
    rows = _Rows(file, part, options)
    start = 0
    for index in loaded.segment.index:
        stop = min(len(index), part.records - start)
        yield from rows.batches(index.columns, stop, start)
        start += stop


@attrs.define(eq=False)
class _Rows:
    """Turns rows of one segment's index into batches."""

    file: SegmentFile
    part: BlobSlice
    options: BlobOptions
    scratch: bytearray = attrs.field(factory=bytearray)

    def batches(self, columns: EntryColumns, count: int, before: int) -> Iterator[pa.RecordBatch]:
        """The first `count` rows, of which the segment has `before` in front of them."""
        kept = _unpacked(self.part.kept, before, count)
        reads = self.options.payload or self.options.errors
        start = 0
        while start < count:
            stop = min(start + MAX_BATCH_ROWS, count)
            if reads:
                stop = _within_bytes(columns, start, stop)
            contents, errors = self._read(columns, start, stop) if reads else ([], {})
            yield self._batch(columns, range(start, stop), kept[start:stop], contents, errors)
            start = stop

    def _read(self, columns: EntryColumns, start: int, stop: int) -> tuple[list[memoryview | None], dict[int, str]]:
        """The contents of the rows, which are good until the next call, and what is wrong with them."""
        first = columns.offsets[start]
        data = self._bytes(first, columns.offsets[stop - 1] + columns.sizes[stop - 1] - first)
        salt = self.file.header.salt
        contents: list[memoryview | None] = []
        errors: dict[int, str] = {}
        part = slice(start, stop)
        for row, offset, size, sequence, kind in zip(range(start, stop), columns.offsets[part], columns.sizes[part],
                                                     columns.sequences[part], columns.kinds[part], strict=True):
            record = data[offset - first:offset - first + size]
            found = _check_record(record, salt, sequence) if len(record) == size else f"{len(record)} bytes of it"
            if found is None:
                contents.append(self._content(row, columns, record) if kind == _PUT else None)
                continue
            error = CorruptData(path=self.file.path, offset=offset, index=sequence, found=found,
                                expected=f"record {sequence} of {size} bytes")
            if not self.options.errors:
                raise error
            errors[row] = str(error)
            contents.append(None)
        return contents, errors

    def _bytes(self, offset: int, length: int) -> memoryview:
        """Bytes of the file; fewer only where it ends. Fresh memory for each read would cost more than the reading."""
        if length > len(self.scratch):
            self.scratch = bytearray(length)
        view, got = memoryview(self.scratch)[:length], 0
        try:
            while got < length and (step := os.preadv(self.file.fileno(), [view[got:]], offset + got)):
                got += step
        except OSError as error:
            raise StorageError.from_os(error, "read", self.file.path) from error
        return view[:got]

    def _content(self, row: int, columns: EntryColumns, record: memoryview) -> memoryview:
        content = record[HEADER_BYTES + len(columns.ids[row]):-TRAILER_BYTES]
        if len(content) > _LARGEST_BINARY and self.options.payload:
            raise Unsupported(f"{self.file.path}: record {columns.sequences[row]} has {len(content)} bytes, "
                              f"more than Spark holds ({_LARGEST_BINARY}); read it with compactlib.blobstore, or "
                              "the others with payload=false")
        return content

    def _batch(self, columns: EntryColumns, rows: range, kept: bytes, contents: Sequence[memoryview | None],
               errors: Mapping[int, str]) -> pa.RecordBatch:
        import pyarrow as pa

        part = slice(rows.start, rows.stop)
        ids = [columns.ids[row] for row in rows]
        kinds, flags, sizes = columns.kinds[part], columns.flags[part], columns.sizes[part]
        values: dict[str, Sequence[object]] = {
            "id": ids, "kind": [_KINDS[kind] for kind in kinds],
            "segment": [str(self.part.name)] * len(rows),
            "length": [size - OVERHEAD_BYTES - len(name) for size, name in zip(sizes, ids, strict=True)],
            "expires_ms": [None if expires < 0 else expires for expires in columns.expiries[part]],
            "permanent": [bool(flag & _TTL_UPDATED) for flag in flags],
            "erased": [bool(flag & _ERASED) for flag in flags],
            "valid": list(map(bool, kept)),
            "error": [errors.get(row) for row in rows],
            "offset": columns.offsets[part], "size": sizes, "sequence": columns.sequences[part],
            "op_time_ms": columns.op_times[part], "account": columns.accounts[part],
            "container": columns.containers[part], "life_version": columns.life_versions[part],
        }
        schema = arrow_schema(self.options)
        arrays: list[pa.Array[Any]] = [
            _binaries(contents) if field.name == "payload" else pa.array(values[field.name], field.type)
            for field in schema]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)


def arrow_schema(options: BlobOptions) -> pa.Schema:
    """The one schema of all batches."""
    import pyarrow as pa

    types: dict[str, pa.DataType] = {
        "bigint": pa.int64(), "int": pa.int32(), "boolean": pa.bool_(), "binary": pa.binary(), "string": pa.string(),
    }
    return pa.schema([pa.field(name, types[kind]) for name, kind in options.columns])


def _within_bytes(columns: EntryColumns, start: int, stop: int) -> int:
    """The end of the rows from `start` that fit into one read; at least one does."""
    limit = columns.offsets[start] + MAX_BATCH_BYTES
    return max(bisect_right(columns.offsets, limit, start, stop) - 1, start + 1) if (
        columns.offsets[stop - 1] + columns.sizes[stop - 1] > limit) else stop


def _binaries(contents: Sequence[memoryview | None]) -> pa.Array[Any]:
    import pyarrow as pa

    # Never pa.array() of memoryviews: it keeps their buffers for good (notes, 8.2).
    there = bytearray(content is not None for content in contents)
    pieces = [b"" if content is None else content for content in contents]
    offsets = array("i", accumulate(map(len, pieces), initial=0))
    return pa.Array.from_buffers(pa.binary(), len(pieces), [
        pa.py_buffer(_packed(there)), pa.py_buffer(offsets), pa.py_buffer(b"".join(pieces))])


def _packed(mask: bytearray) -> bytes:
    """One bit for each byte that is 0 or 1, the first the lowest of the first byte."""
    digits = mask[::-1].translate(_DIGITS)
    return int(digits or b"0", 2).to_bytes(-(-len(mask) // 8), "little")


def _unpacked(packed: bytes, start: int, count: int) -> bytes:
    """The inverse of `_packed`, of a part."""
    bits = (int.from_bytes(packed, "little") >> start) & ((1 << count) - 1)
    return f"{bits:0{count}b}".encode().translate(_BYTES)[::-1] if count else b""
