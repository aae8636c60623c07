# SPDX-License-Identifier: Apache-2.0
"""All records of one segment file, dead records included, for tables and tools."""

from __future__ import annotations

import errno
import os
import zlib
from collections.abc import Iterator
from typing import NamedTuple

import attrs

from compactlib.blobstore.copying_task import runs
from compactlib.blobstore.folder import load_segment
from compactlib.blobstore.names import SegmentName
from compactlib.blobstore.records import IndexEntry, RecordKind, check_record
from compactlib.blobstore.segment import Descriptor, SegmentFile
from compactlib.errors import CorruptData, Stale, StorageError

_READ_BYTES = 2 << 20
"""The bytes of one read, unless a record is larger."""
_PUT = int(RecordKind.PUT)


class StoredRecord(NamedTuple):
    """A record as its segment holds it.

    Attributes:
        entry: its index entry: every field of the record but the content.
        valid: whether a compaction of the segment would keep it.
        payload: the content of a put; `None` if it is damaged, or with `payloads=False`.
        error: the damage of the record; `None` if it is whole.
    """

    entry: IndexEntry
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
            for first, last in runs(part.offsets[:count], part.sizes[:count], _READ_BYTES):
                base = part.offsets[first]
                data = memoryview(file.read(base, part.offsets[last - 1] + part.sizes[last - 1] - base)
                                  if payloads else b"")
                for row, entry in enumerate(part.entries(first, last), before + first):
                    yield StoredRecord(entry, bool(kept[row]), *(
                        _content(file, entry, data, base) if payloads else (None, None)))
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
