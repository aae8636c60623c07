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
from itertools import accumulate, pairwise
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


class FrameKind(enum.IntEnum):
    """The content of a frame."""

    RUN = 1
    """Entries of consecutive indexes and one term."""
    SPARSE = 2
    """Entries of ascending indexes, each with its term."""
    CUT = 3
    """No entry: the log is truncated above `previous`."""
    LOG = 4
    """No entry: the id of the log that later frames of this file name by number."""
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

    def encode(self) -> bytes:
        """The 64 bytes at the start of the file."""
        return _FILE.encode(self.number, self.previous_end, self.created_ns)

    @classmethod
    def decode(cls, data: bytes, path: str) -> FileHeader:
        """The inverse of `encode`; raises `CorruptData`, or `Unsupported` for another release."""
        return cls(*_FILE.decode_header(data, path))

    @property
    def salt(self) -> int:
        """The start value of the CRCs of the file's frames, so that frames of other files fail their check."""
        # Without the header's own CRC: over both together it would be the same number for every header.
        return crc32(b"salt", crc32(self.encode()[:-_CRC.size], 0))


class Write(NamedTuple):
    """A frame to write, without the fields that depend on its file. Made by the thread that appends.

    Attributes:
        kind: of its content.
        log_id: of the log.
        first: the first index.
        last: the last index; below `first` without entries.
        term: of the entries; of the last entry if they differ.
        previous: the index of the first entry's predecessor, `None` or -1 without a predecessor.
        cuts: whether the log is truncated above `previous` first.
        entries: their count.
        data: the body.
        crc: of the body.
    """

    kind: FrameKind
    log_id: str
    first: int
    last: int
    term: int
    previous: int | None
    cuts: bool
    entries: int
    data: bytes
    crc: int

    @property
    def frame_bytes(self) -> int:
        """The size of the whole frame in the file."""
        return FRAME_HEADER_BYTES + padded(len(self.data))

    def encode(self, log: int, synced_end: int, salt: int) -> list[bytes]:
        """The pieces of the frame, together `frame_bytes` long; `log` is the number of the log in the file."""
        has_previous = self.previous is not None and self.previous >= 0
        flags = (_CUTS if self.cuts else 0) | (_HAS_PREVIOUS if has_previous else 0)
        head = _FRAME.pack(FRAME_MAGIC, self.kind, flags, 0, log, self.entries,
                           self.previous if has_previous else 0, self.first, self.term, synced_end, len(self.data),
                           self.crc)
        head += _CRC.pack(crc32(head, salt))
        pad = -len(self.data) % ALIGNMENT
        return [head, self.data, bytes(pad)] if pad else [head, self.data]


def padded(size: int) -> int:
    """`size` rounded up to a whole number of 8 bytes."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def run_write(log_id: str, first: int, term: int, payloads: Sequence[bytes], previous: int | None,
              cuts: bool = False) -> Write:
    """Entries with consecutive indexes and one term. Body: lengths u32, padding, payloads. O(1) calls a batch.

    Raises:
        InvalidInput: a payload is too large.
    """
    count = len(payloads)
    if count == 1 and len(payloads[0]) < _FEW_BYTES:
        # As below, in a third of the time.
        data = _ONE_LENGTH.pack(len(payloads[0])) + payloads[0]
    else:
        lengths = _lengths(payloads)
        data = b"".join((lengths, bytes(-len(lengths) % ALIGNMENT), *payloads))
    return Write(FrameKind.RUN, log_id, first, first + count - 1, term, previous, cuts, count, data, crc32(data, 0))


def sparse_write(log_id: str, indexes: Sequence[int], terms: Sequence[int], payloads: Sequence[bytes],
                 previous: int | None) -> Write:
    """Sparse entries. Body: indexes u64, terms u64, lengths u32, padding, payloads. Raises as `run_write`."""
    columns = _column("Q", indexes) + _column("Q", terms) + _lengths(payloads)
    data = b"".join((columns, bytes(-len(columns) % ALIGNMENT), *payloads))
    return Write(FrameKind.SPARSE, log_id, indexes[0], indexes[-1], terms[-1], previous, False, len(payloads), data,
                 crc32(data, 0))


def cut_write(log_id: str, after: int) -> Write:
    """A truncation of everything above `after`."""
    return Write(FrameKind.CUT, log_id, after + 1, after, 0, after, True, 0, b"", 0)


def log_write(log_id: str) -> Write:
    """The name of a log."""
    data = log_id.encode()
    return Write(FrameKind.LOG, log_id, 0, -1, 0, None, False, 0, data, crc32(data, 0))


MARK = Write(FrameKind.MARK, "", 0, -1, 0, None, False, 0, b"", 0)
"""Proves that everything before it in the file is durable."""


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
        frame_bytes: size of the whole frame in the file.
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
    frame_bytes: int

    def rewritten(self, log_id: str) -> Write:
        """The frame, to be written to another file."""
        if self.kind == FrameKind.SPARSE:
            return sparse_write(log_id, self.indexes, self.terms, self.payloads, self.previous)
        if self.kind == FrameKind.CUT:
            return cut_write(log_id, -1 if self.previous is None else self.previous)
        return run_write(log_id, self.first, self.term, self.payloads, self.previous, self.cuts)


def synced_end_at(data: bytes, offset: int, salt: int) -> int | None:
    """The `synced_end` of the frame at `offset` of `data`; `None` if the frame has no whole header."""
    head = _head(data, offset, salt)
    return None if head is None else int(head[9])


def decode_frame(data: bytes, offset: int, salt: int) -> Frame | None:
    """The frame at `offset` of `data`, or `None` if it is not whole."""
    head = _head(data, offset, salt)
    if head is None:
        return None
    _, number, flags, _, log, count, before, first, term, synced_end, body_bytes, body_crc = head
    start = offset + FRAME_HEADER_BYTES
    body = memoryview(data)[start:start + body_bytes]
    frame_bytes = FRAME_HEADER_BYTES + padded(body_bytes)
    if len(body) < body_bytes or crc32(body, 0) != body_crc or len(data) < offset + frame_bytes:
        return None
    kind = FrameKind(number)
    indexes: Sequence[int] = ()
    terms: Sequence[int] = ()
    payloads: Sequence[bytes] = ()
    place = 0
    if kind == FrameKind.SPARSE:
        indexes, terms = _numbers("Q", body[:8 * count]), _numbers("Q", body[8 * count:16 * count])
        place = 16 * count
    if kind in (FrameKind.RUN, FrameKind.SPARSE):
        lengths = _numbers("I", body[place:place + 4 * count])
        ends = list(accumulate(lengths, initial=padded(place + 4 * count)))
        if len(lengths) != count or not count or ends[-1] != body_bytes:
            return None
        whole = body.tobytes()
        payloads = [whole[begin:end] for begin, end in pairwise(ends)]
    elif kind == FrameKind.LOG:
        payloads = [body.tobytes()]
    previous = before if flags & _HAS_PREVIOUS else None
    return Frame(kind, log, previous, bool(flags & _CUTS), first, term, indexes, terms, payloads, synced_end,
                 frame_bytes)


def _head(data: bytes, offset: int, salt: int) -> tuple[int, ...] | None:
    """The fields of the frame header at `offset` of `data`, or `None` if it is not whole."""
    if len(data) - offset < FRAME_HEADER_BYTES:
        return None
    (stored,) = _CRC.unpack_from(data, offset + FRAME_HEADER_BYTES - 4)
    if stored != crc32(data[offset:offset + FRAME_HEADER_BYTES - 4], salt):
        return None
    head = _FRAME.unpack_from(data, offset)
    magic, kind, flags, zero = head[:4]
    if magic != FRAME_MAGIC or not 1 <= kind <= FrameKind.MARK or flags & ~(_CUTS | _HAS_PREVIOUS) or zero:
        return None
    return head


def _lengths(payloads: Sequence[bytes]) -> bytes:
    lengths = list(map(len, payloads))
    try:
        return _column("I", lengths)
    except OverflowError:
        raise InvalidInput(f"a payload has {max(lengths)} bytes, at most {(1 << 32) - 1} are taken; split it") from None


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
