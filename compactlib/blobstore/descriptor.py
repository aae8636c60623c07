# SPDX-License-Identifier: Apache-2.0
"""The file `STORE`: what a store is, fixed when it is created (`docs/formats/blobstore-log.md`).

```
0   magic b"CLBLOBST"    12  segments of the log (u32)    24  created_ms (i64)           48  0 (12 bytes)
8   version 1 (u16)      16  capacity of a segment (u64)  32  incarnation (16 bytes)     60  CRC of bytes 0..59
10  size 64 (u16)
```

Every segment's header says the same, so that a lost or damaged descriptor is made again from the segments.
"""

from __future__ import annotations

import os

import attrs

from compactlib.blobstore.names import MAX_NUMBER, MIN_SEGMENT_BYTES, SegmentName
from compactlib.blobstore.segment import SegmentHeader
from compactlib.errors import CorruptData
from compactlib.files.disk import Files, StrPath, read_if_there, write_durably
from compactlib.files.record_frame import RecordFrame

DESCRIPTOR_FILE = "STORE"
DESCRIPTOR_BYTES = 64

_FRAME = RecordFrame("store format", b"CLBLOBST", 1, "<HHIQq16s12x")


def is_blob_store(folder: StrPath) -> bool:
    """Whether a folder holds a blob store; reads nothing."""
    return os.path.isfile(os.path.join(folder, DESCRIPTOR_FILE))


@attrs.frozen
class Descriptor:
    """What a store is.

    Attributes:
        incarnation: 16 bytes that are the store's own; another store in the same folder would have others.
        segment_bytes: capacity of each segment.
        log_segments: how many segments the log may have.
        created_ms: when it was created; 0 if that was lost.
    """

    incarnation: bytes
    segment_bytes: int
    log_segments: int
    created_ms: int

    @property
    def capacity_bytes(self) -> int:
        """Capacity of the whole log."""
        return self.segment_bytes * self.log_segments

    def header(self, name: SegmentName, first_sequence: int = 0) -> SegmentHeader:
        """The header of a segment of this store."""
        return SegmentHeader(name, self.segment_bytes, self.incarnation, self.log_segments, first_sequence)

    @classmethod
    def of_header(cls, header: SegmentHeader) -> Descriptor:
        """What a segment says of its store."""
        return cls(header.incarnation, header.capacity_bytes, header.log_segments, 0)


def encode_descriptor(descriptor: Descriptor) -> bytes:
    """The 64 bytes."""
    return _FRAME.encode(DESCRIPTOR_BYTES, descriptor.log_segments, descriptor.segment_bytes, descriptor.created_ms,
                         descriptor.incarnation)


def decode_descriptor(data: bytes, path: str) -> Descriptor:
    """The descriptor in the bytes of a file."""
    size, segments, segment_bytes, created_ms, incarnation, behind = _FRAME.decode(data, path)
    if (size != DESCRIPTOR_BYTES or behind or not segments
            or not MIN_SEGMENT_BYTES <= segment_bytes <= MAX_NUMBER):
        raise CorruptData(path=path, offset=10, expected="the fields of a descriptor",
                          found=f"size {size}, {segments} segments of {segment_bytes} bytes")
    return Descriptor(incarnation, segment_bytes, segments, created_ms)


def read_descriptor(folder: StrPath) -> Descriptor | None:
    """The descriptor in a folder, `None` if there is none."""
    path = os.path.join(folder, DESCRIPTOR_FILE)
    data = read_if_there(path, DESCRIPTOR_BYTES + 1)
    return None if data is None else decode_descriptor(data, path)


def write_descriptor(files: Files, folder: StrPath, descriptor: Descriptor) -> None:
    """Put the descriptor in place, durably."""
    write_durably(files, os.path.join(folder, DESCRIPTOR_FILE), [encode_descriptor(descriptor)])
