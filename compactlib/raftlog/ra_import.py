# SPDX-License-Identifier: Apache-2.0
"""`import_ra`: copy a log of RabbitMQ Ra into one of ours. Its segment files (`RASG`, versions 1 and 2) are read only.

```
0        magic RASG, version u16, max_count u16
8        max_count records: index u64, term u64, offset u32 (v1) or u64 (v2), length u32, CRC-32 u32; zeros end it
data     payloads, from 8 + max_count * record size
```

All numbers are big-endian. The CRC covers the payload alone, and 0 means that it was not computed: damage to an
index, term or length in such a file cannot be distinguished from a genuine one. A record takes back those before it
with the same or a higher index, in older files too.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import closing

from compactlib.errors import CorruptData, InvalidInput, StorageError, Unsupported
from compactlib.files.checksum import crc32
from compactlib.files.disk import StrPath, list_folder, read_exactly
from compactlib.raftlog.log.segment_log import SegmentLog
from compactlib.raftlog.values import Entry

MAGIC = b"RASG"
_HEADER = struct.Struct(">4sHH")
_RECORDS = {1: struct.Struct(">QQIII"), 2: struct.Struct(">QQQII")}


def import_ra(folder: StrPath, log: SegmentLog) -> int:
    """Append the entries of Ra's segments to a log, and return how many were read; `log.sync()` makes them durable.

    Payloads are checked against their CRCs where Ra has computed them. Ra's snapshots are not read: record one with its
    live indexes afterwards.

    Args:
        folder: with Ra's `*.segment` files.
        log: an empty one, in another folder.

    Raises:
        InvalidInput: there is no segment of Ra in the folder, or the log is not empty.
        CorruptData: a segment is damaged; the log holds what came before.
        Unsupported: a segment is of another version.
        StorageError: a segment cannot be read, or the log was refused a write.
    """
    if log.last_index >= 0:
        raise InvalidInput(f"{log!r} is not empty; import into a new log")
    names = [name for name in list_folder(folder) if name.endswith(".segment")]
    if not names:
        raise InvalidInput(f"{os.fspath(folder)} holds no *.segment file of Ra")
    count = 0
    for name in names:
        for entry in ra_entries(os.path.join(folder, name)):
            log.append([entry])
            count += 1
    return count


def ra_entries(path: StrPath) -> Iterator[Entry]:
    """Read the entries of one file of Ra in the order of its records.

    Raises:
        CorruptData, Unsupported, StorageError: as `import_ra`.
    """
    path = os.fspath(path)
    try:
        with closing(os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC), "rb")) as file:
            descriptor = file.fileno()
            for index, term, offset, length, crc in _records(descriptor, path):
                payload = read_exactly(descriptor, length, offset)
                found = crc32(payload, 0)
                if len(payload) < length or (crc and found != crc):
                    raise CorruptData(path=path, offset=offset, index=index,
                                      expected=f"CRC {crc:#010x} over {length} bytes",
                                      found=f"CRC {found:#010x} over {len(payload)} bytes")
                yield Entry(index, term, payload)
    except OSError as error:
        if isinstance(error, StorageError):
            raise
        raise StorageError.from_os(error, "read", path) from error


def _records(descriptor: int, path: str) -> list[tuple[int, int, int, int, int]]:
    data = read_exactly(descriptor, _HEADER.size, 0)
    if len(data) < _HEADER.size or data[:len(MAGIC)] != MAGIC:
        raise CorruptData(path=path, offset=0, expected=f"a header with magic {MAGIC!r}", found=repr(data[:4]))
    _, version, most = _HEADER.unpack(data)
    record = _RECORDS.get(version)
    if record is None:
        raise Unsupported(f"{path}: Ra segment version {version}; this release reads versions 1 and 2")
    # The field has 16 bits: Ra writes 65536 as 0, and a segment for no entries cannot be.
    region = read_exactly(descriptor, (most or 1 << 16) * record.size, _HEADER.size)
    start = end = _HEADER.size + (most or 1 << 16) * record.size
    found: list[tuple[int, int, int, int, int]] = []
    for place in range(0, len(region) - record.size + 1, record.size):
        if not any(region[place:place + record.size]):
            if any(region[place:]):
                raise CorruptData(path=path, offset=_HEADER.size + place, expected="zeros to the end of the index",
                                  found="a record behind an empty one")
            break
        index, term, offset, length, crc = record.unpack_from(region, place)
        if offset < end:
            raise CorruptData(path=path, offset=_HEADER.size + place, index=index, expected=f"an offset from {end} on",
                              found=str(offset))
        end = offset + length
        found.append((index, term, offset, length, crc))
    size = os.fstat(descriptor).st_size
    # Entries without payload leave the file shorter than where payloads would begin.
    if not found and size > start:
        raise CorruptData(path=path, offset=_HEADER.size, expected="an index of what lies behind it",
                          found=f"no record, and {size - start} bytes of payloads")
    return found
