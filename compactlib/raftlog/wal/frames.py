# SPDX-License-Identifier: Apache-2.0
"""The WAL format to the byte (`docs/formats/raftlog-wal.md`), and the names of its files. Pure functions.

```
0    file header, 64 bytes: magic CLRAFWAL, version u16, zeros, number u64, previous_end u64, created_ns u64, CRC
64   frames, each a header of 64 bytes, a body, and zeros up to a multiple of 8
```

A frame is a batch of a log: a run (consecutive indexes of a term), sparse entries, or a truncation. Its `synced_end` is
the durable size of the file when it was written. With it, a reader that finds a whole frame behind a damaged frame
knows whether a crash may have torn the damaged frame (it was not synced then) or whether durable bytes have changed.
"""

from __future__ import annotations

import enum
import re
import struct
import sys
from array import array
from collections.abc import Sequence
from itertools import accumulate, chain, pairwise
from typing import NamedTuple

import attrs

from compactlib.errors import InvalidInput
from compactlib.files.checksum import crc32
from compactlib.files.record_frame import RecordFrame

WAL_TEMPORARY_SUFFIX = ".tmp"
FILE_HEADER_BYTES = 64
FRAME_HEADER_BYTES = 64
FRAME_MAGIC = b"CLWf"
ALIGNMENT = 8

_FILE = RecordFrame("WAL format", b"CLRAFWAL", 1, "<H6xQQQ20x")
_FRAME = struct.Struct("<4sBBHIIQQQQQI")
_CRC = struct.Struct("<I")
_ONE_LENGTH = struct.Struct("<I4x")
_FEW_BYTES = 1 << 16
_CUTS, _HAS_PREVIOUS = 1, 2
_BIG_ENDIAN = sys.byteorder == "big"
_NAME = re.compile(r"([0-9]{16})\.wal")


def wal_name(number: int) -> str:
    """The name of WAL file `number`."""
    return f"{number:016d}.wal"


def wal_number(name: str) -> int | None:
    """The number in a WAL file's name, or `None` for any other name."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None


def is_wal_leftover(name: str) -> bool:
    """Whether a name is of an unfinished WAL file."""
    return name.endswith(WAL_TEMPORARY_SUFFIX) and wal_number(name.removesuffix(WAL_TEMPORARY_SUFFIX)) is not None


class FrameKind(enum.IntEnum):
    """The content of a frame."""

    RUN = 1
    """Entries of consecutive indexes and one term."""
    SPARSE = 2
    """Entries of ascending indexes, each with its term."""
    CUT = 3
    """No entry: the log is truncated above `previous`."""
    LOG = 4
    """No entry: the id of the log that later frames of this file name by number. `first` is its last index plus 1; if
    that is the highest possible index, `previous` is its last index."""
    MARK = 5
    """No entry: only `synced_end`."""


@attrs.frozen
class FileHeader:
    """The start of a WAL file.

    Attributes:
        number: the file's number, as in its name.
        previous_end: durable size of the file before; nothing behind it is read. 0 in the first file.
        created_ns: time of its creation, nanoseconds since the epoch; part of the salt of its frames.
    """

    number: int
    previous_end: int
    created_ns: int


@attrs.frozen
class Frame:
    """A checked frame.

    Attributes:
        kind: of its content.
        log: number of the log in this file.
        previous: the index of the first entry's predecessor, `None` if it was not given.
        cuts: whether the log is truncated above `previous` first.
        first: the first index.
        term: of all entries (RUN).
        indexes: of the entries (SPARSE), else empty.
        terms: of the entries (SPARSE), else empty.
        payloads: of the entries; the log's id in a LOG frame.
        synced_end: durable size of the file when the frame was written.
    """

    kind: FrameKind
    log: int
    previous: int | None
    cuts: bool
    first: int
    term: int
    indexes: Sequence[int]
    terms: Sequence[int]
    payloads: Sequence[bytes]
    synced_end: int


class Body(NamedTuple):
    """The body of a frame to write, with the fields of its header; made by the thread that appends."""

    kind: FrameKind
    data: bytes
    crc: int
    entries: int

    @property
    def frame_bytes(self) -> int:
        """The size of the whole frame in the file."""
        return FRAME_HEADER_BYTES + padded(len(self.data))


def padded(size: int) -> int:
    """`size` rounded up to a whole number of 8 bytes."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def encode_file_header(header: FileHeader) -> bytes:
    """The 64 bytes at the start of a file."""
    return _FILE.encode(header.number, header.previous_end, header.created_ns)


def decode_file_header(data: bytes, path: str) -> FileHeader:
    """The inverse of `encode_file_header`.

    Raises:
        CorruptData: a check fails.
        Unsupported: written by another release.
    """
    number, previous_end, created_ns = _FILE.decode_header(data, path)
    return FileHeader(number, previous_end, created_ns)


def salt_of(header: FileHeader) -> int:
    """The start value of the CRCs of a file's frames, so that frames of other files fail their check."""
    # Without the header's own CRC: over both together it would be the same number for every header.
    return crc32(b"salt", crc32(encode_file_header(header)[:-_CRC.size], 0))


def run_body(payloads: Sequence[bytes]) -> Body:
    """The body of entries with consecutive indexes and one term: lengths u32, padding, payloads. O(1) calls a batch.

    Raises:
        InvalidInput: a payload is too large.
    """
    if len(payloads) == 1 and len(payloads[0]) < _FEW_BYTES:
        # As below, in a third of the time.
        data = _ONE_LENGTH.pack(len(payloads[0])) + payloads[0]
        return Body(FrameKind.RUN, data, crc32(data, 0), 1)
    return _body(FrameKind.RUN, [_lengths(payloads)], payloads)


def sparse_body(indexes: Sequence[int], terms: Sequence[int], payloads: Sequence[bytes]) -> Body:
    """The body of sparse entries: indexes u64, terms u64, lengths u32, padding, payloads. Raises as `run_body`."""
    columns = [_column("Q", indexes), _column("Q", terms), _lengths(payloads)]
    return _body(FrameKind.SPARSE, columns, payloads)


def log_body(log_id: str) -> Body:
    """The body that names a log."""
    return _finished(FrameKind.LOG, log_id.encode(), 0)


def empty_body(kind: FrameKind) -> Body:
    """The body of a CUT or a MARK."""
    return _finished(kind, b"", 0)


def _body(kind: FrameKind, columns: Sequence[bytes], payloads: Sequence[bytes]) -> Body:
    pad = -sum(map(len, columns)) % ALIGNMENT
    return _finished(kind, b"".join(chain(columns, (bytes(pad),), payloads)), len(payloads))


def _lengths(payloads: Sequence[bytes]) -> bytes:
    lengths = list(map(len, payloads))
    try:
        return _column("I", lengths)
    except OverflowError:
        raise InvalidInput(f"a payload has {max(lengths)} bytes, at most {(1 << 32) - 1} are taken; split it") from None


def _finished(kind: FrameKind, data: bytes, count: int) -> Body:
    return Body(kind, data, crc32(data, 0), count)


def encode_frame(body: Body, *, log: int, previous: int | None, cuts: bool, first: int, term: int, synced_end: int,
                 salt: int) -> list[bytes]:
    """The pieces of a frame, together `body.frame_bytes` long. `previous` is -1 or `None` without a predecessor."""
    previous = None if previous is None or previous < 0 else previous
    flags = (_CUTS if cuts else 0) | (0 if previous is None else _HAS_PREVIOUS)
    head = _FRAME.pack(FRAME_MAGIC, body.kind, flags, 0, log, body.entries, previous or 0, first, term, synced_end,
                       len(body.data), body.crc)
    head += _CRC.pack(crc32(head, salt))
    pad = -len(body.data) % ALIGNMENT
    return [head, body.data, bytes(pad)] if pad else [head, body.data]


@attrs.frozen
class FrameHead:
    """The checked header of a frame, whose body is not checked."""

    kind: FrameKind
    flags: int
    log: int
    count: int
    previous: int
    first: int
    term: int
    synced_end: int
    body_bytes: int
    body_crc: int

    @property
    def frame_bytes(self) -> int:
        """The size of the whole frame."""
        return FRAME_HEADER_BYTES + padded(self.body_bytes)


def decode_head(data: bytes | memoryview, offset: int, salt: int) -> FrameHead | None:
    """The frame header at `offset` of `data`, or `None` if it is not whole."""
    if len(data) - offset < FRAME_HEADER_BYTES:
        return None
    (stored,) = _CRC.unpack_from(data, offset + FRAME_HEADER_BYTES - 4)
    if stored != crc32(data[offset:offset + FRAME_HEADER_BYTES - 4], salt):
        return None
    magic, kind, flags, zero, log, count, previous, first, term, synced_end, body_bytes, body_crc = _FRAME.unpack_from(
        data, offset)
    if magic != FRAME_MAGIC or not 1 <= kind <= FrameKind.MARK or flags & ~(_CUTS | _HAS_PREVIOUS) or zero:
        return None
    return FrameHead(FrameKind(kind), flags, log, count, previous, first, term, synced_end, body_bytes, body_crc)


def decode_body(head: FrameHead, data: bytes | memoryview, offset: int) -> Frame | None:
    """The frame with its header at `offset` of `data`, or `None` if its body is not whole."""
    start = offset + FRAME_HEADER_BYTES
    body = memoryview(data)[start:start + head.body_bytes]
    if len(body) < head.body_bytes or crc32(body, 0) != head.body_crc or len(data) < offset + head.frame_bytes:
        return None
    indexes: Sequence[int] = ()
    terms: Sequence[int] = ()
    payloads: Sequence[bytes] = ()
    count = head.count
    place = 0
    if head.kind == FrameKind.SPARSE:
        indexes, terms = _numbers("Q", body[:8 * count]), _numbers("Q", body[8 * count:16 * count])
        place = 16 * count
    if head.kind in (FrameKind.RUN, FrameKind.SPARSE):
        lengths = _numbers("I", body[place:place + 4 * count])
        ends = list(accumulate(lengths, initial=padded(place + 4 * count)))
        if len(lengths) != count or not count or ends[-1] != head.body_bytes:
            return None
        whole = body.tobytes()
        payloads = [whole[begin:end] for begin, end in pairwise(ends)]
    elif head.kind == FrameKind.LOG:
        payloads = [body.tobytes()]
    previous = head.previous if head.flags & _HAS_PREVIOUS else None
    return Frame(head.kind, head.log, previous, bool(head.flags & _CUTS), head.first, head.term, indexes, terms,
                 payloads, head.synced_end)


def _column(code: str, values: Sequence[int]) -> bytes:
    column = array(code, values)
    if _BIG_ENDIAN:
        column.byteswap()
    return column.tobytes()


def _numbers(code: str, data: memoryview) -> array[int]:
    column = array(code)
    column.frombytes(data[:len(data) // column.itemsize * column.itemsize])
    if _BIG_ENDIAN:
        column.byteswap()
    return column
