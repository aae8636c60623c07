# SPDX-License-Identifier: Apache-2.0
"""All records of one segment file, dead records included, for tables and tools."""

from __future__ import annotations

import errno
import os
import zlib
from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

import attrs

from compactlib.blobstore.folder import load_segment
from compactlib.blobstore.index import IndexPart
from compactlib.blobstore.names import SegmentName
from compactlib.blobstore.records import IndexEntry, RecordFlag, RecordKind, check_record
from compactlib.blobstore.segment import Descriptor, SegmentFile
from compactlib.errors import CorruptData, Stale, StorageError

_READ_BYTES = 2 << 20
"""The bytes of one read, unless a record is larger."""
_KINDS = {int(kind): kind.name.lower() for kind in RecordKind}
_PUT, _TTL_UPDATED = int(RecordKind.PUT), int(RecordFlag.TTL_UPDATED)


class StoredRecord(NamedTuple):
    """A record as its segment holds it.

    Attributes:
        segment: the segment's name.
        offset: the record's offset in it.
        size: bytes of the whole record.
        length: bytes of its content.
        id: the blob's id.
        kind: the name of a `RecordKind`, in small letters.
        sequence: the record's number.
        op_time_ms: when the operation was made.
        expires_ms: when the blob expires; `None`: never.
        account: account number of the blob.
        container: container number of the blob.
        life_version: how often the blob was undeleted before.
        permanent: whether the blob had been made permanent before.
        erased: whether a hard delete has overwritten the content.
        valid: whether a compaction of the segment would keep it.
        payload: the content of a put; `None` if it is damaged, or with `payloads=False`.
        error: the damage of the record; `None` if it is whole.
    """

    segment: str
    offset: int
    size: int
    length: int
    id: bytes
    kind: str
    sequence: int
    op_time_ms: int
    expires_ms: int | None
    account: int
    container: int
    life_version: int
    permanent: bool
    erased: bool
    valid: bool
    payload: bytes | None
    error: CorruptData | None


@attrs.frozen(kw_only=True)
class SegmentRecords:
    """The records of one segment as a `BlobReader` saw them. Picklable: any process that sees the folder reads them.

    Attributes:
        folder: the store's folder, absolute.
        name: the segment's name.
        count: the number of records.
        size_bytes: the offset after the last record.
    """

    folder: str
    name: SegmentName
    count: int
    size_bytes: int
    _descriptor: Descriptor
    _kept: bytes = attrs.field(repr=False)

    @classmethod
    def of(cls, folder: str, name: SegmentName, descriptor: Descriptor, kept: bytes, size_bytes: int) -> SegmentRecords:
        """Return the records of a segment; `kept` has a byte for each, 1 if a compaction would keep it."""
        return cls(folder=folder, name=name, count=len(kept), size_bytes=size_bytes, descriptor=descriptor,
                   kept=zlib.compress(kept, 1))

    def read(self, *, payloads: bool = True) -> Iterator[StoredRecord]:
        """Yield the records, ascending by offset; with `payloads`, each is checked against its CRC. Memory: 2 MiB, or
        one record if that is larger.

        Raises:
            Stale: a compaction has removed the segment since the store was read.
            CorruptData: its last records are missing; the others were yielded.
            Unsupported, StorageError: the segment cannot be read.
        """
        path = os.path.join(self.folder, self.name.log_file)
        try:
            loaded = load_segment(self.folder, self.name, self._descriptor)
            file = SegmentFile(path, loaded.header)
        except StorageError as error:
            if error.errno != errno.ENOENT:
                raise
            raise Stale(f"segment {self.name} of {self.folder} was compacted away after this read was planned; load "
                        "the store again to see it as it is now") from error
        kept, before = zlib.decompress(self._kept), 0
        for part in loaded.segment.parts:
            count = min(len(part), self.count - before)
            for rows in _within_bytes(part, range(count)):
                base = part.offsets[rows.start]
                data = memoryview(file.read(base, part.offsets[rows[-1]] + part.sizes[rows[-1]] - base)
                                  if payloads else b"")
                for row, entry in zip(rows, part.entries(rows.start, rows.stop), strict=True):
                    payload, damage = _content(file, entry, data, base) if payloads else (None, None)
                    yield _record(entry, bool(kept[before + row]), payload, damage)
            before += count
        if before < self.count:
            raise CorruptData(path=path, offset=self.size_bytes, expected=f"{self.count} records", found=f"{before}")


def _content(file: SegmentFile, entry: IndexEntry, data: memoryview, base: int
             ) -> tuple[bytes | None, CorruptData | None]:
    record = data[entry.offset - base:entry.end - base]
    found = check_record(record, entry.size, file.header.salt, entry.sequence)
    if found is not None:
        return None, CorruptData(path=file.path, offset=entry.offset, index=entry.sequence, found=found,
                                 expected=f"record {entry.sequence} of {entry.size} bytes")
    start = entry.content_offset - base
    return bytes(data[start:start + entry.content_bytes]) if entry.kind == _PUT else None, None


def _record(entry: IndexEntry, valid: bool, payload: bytes | None, error: CorruptData | None) -> StoredRecord:
    return StoredRecord(
        str(entry.segment), entry.offset, entry.size, entry.content_bytes, entry.id, _KINDS[entry.kind],
        entry.sequence, entry.op_time_ms, None if entry.expires_ms < 0 else entry.expires_ms, entry.account,
        entry.container, entry.life_version, bool(entry.flags & _TTL_UPDATED),
        entry.is_erased, valid, payload, error)


def _within_bytes(part: IndexPart, rows: range) -> Iterator[range]:
    """Yield ranges of rows that fit into one read; at least one row each."""
    start, stop = rows.start, rows.stop
    while start < stop:
        limit = part.offsets[start] + _READ_BYTES
        fits = part.offsets[stop - 1] + part.sizes[stop - 1] <= limit
        end = stop if fits else max(bisect_right(part.offsets, limit, start, stop) - 1, start + 1)
        yield range(start, end)
        start = end
