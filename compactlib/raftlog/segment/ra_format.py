# SPDX-License-Identifier: Apache-2.0
"""Segment files of RabbitMQ Ra (`RASG`, versions 1 and 2), for reading only.

```
0        magic RASG, version u16, max_count u16
8        max_count records: index u64, term u64, offset u32 (v1) or u64 (v2), length u32, CRC-32 u32; zeros end it
data     payloads, from 8 + max_count * record size
```

All numbers are big-endian. The CRC covers the payload alone, and 0 means that it was not computed: damage to an
index, term or length in such a file cannot be distinguished from a genuine one. Pure functions.
"""

from __future__ import annotations

import struct
from array import array

from compactlib.errors import CorruptData, Unsupported
from compactlib.raftlog.segment.format import Columns

MAGIC = b"RASG"
HEADER_BYTES = 8

_HEADER = struct.Struct(">4sHH")
_RECORDS = {1: struct.Struct(">QQIII"), 2: struct.Struct(">QQQII")}


def decode_header(data: bytes, path: str) -> tuple[int, int]:
    """The version and max_count in the first 8 bytes of `data`.

    Raises:
        CorruptData: too short or wrong magic.
        Unsupported: neither version 1 nor 2.
    """
    if len(data) < HEADER_BYTES:
        raise CorruptData(path=path, offset=0, expected=f"a header of {HEADER_BYTES} bytes", found=f"{len(data)} bytes")
    magic, version, max_count = _HEADER.unpack_from(data)
    if magic != MAGIC:
        raise CorruptData(path=path, offset=0, expected=f"magic {MAGIC!r}", found=repr(magic))
    if version not in _RECORDS:
        raise Unsupported(f"{path}: Ra segment version {version}; this release reads versions 1 and 2")
    # The field has 16 bits: Ra writes 65536 as 0, and a segment for no entries cannot be.
    return version, max_count or 1 << 16


def data_start(version: int, max_count: int) -> int:
    """Offset of the first payload."""
    return HEADER_BYTES + max_count * _RECORDS[version].size


def decode_records(region: bytes, version: int, path: str, start: int) -> Columns:
    """The index records up to the first all-zero one, as columns; `heads` are zeros.

    Args:
        region: the index region, or as much of it as there is.
        version: 1 or 2.
        path: the file, for messages.
        start: where the payloads begin.

    Raises:
        CorruptData: the payloads do not lie in the order of the records behind the index region, a record is cut
            off, or one follows on zeros.
    """
    record = _RECORDS[version]
    if len(region) % record.size:
        raise CorruptData(path=path, offset=HEADER_BYTES + len(region), found="the end of the file",
                          expected=f"whole index records of {record.size} bytes")
    rows = list(record.iter_unpack(region))
    zero = (0,) * 5
    count = rows.index(zero) if zero in rows else len(rows)
    later = next((place for place in range(count, len(rows)) if rows[place] != zero), None)
    if later is not None:
        raise CorruptData(path=path, offset=HEADER_BYTES + count * record.size, found=f"a record at place {later}",
                          expected=f"zeros to the end of the index, as at place {count}")
    indexes, terms, offsets, lengths, crcs = zip(*rows[:count], strict=True) if count else ((),) * 5
    end = start
    for position, offset in enumerate(offsets):
        if offset < end:
            raise CorruptData(path=path, offset=HEADER_BYTES + position * record.size, index=indexes[position],
                              expected=f"a payload offset from {end}", found=str(offset))
        end = offset + lengths[position]
    return Columns(array("Q", indexes), array("Q", terms), array("Q", offsets), array("I", lengths),
                   array("I", bytes(4 * count)), array("I", crcs))
