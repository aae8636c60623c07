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
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import attrs

from compactlib.errors import CorruptData, InvalidInput
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


class Frame(NamedTuple):
    """A frame, as it is queued and as it is read, without the fields that depend on its file.

    Attributes:
        kind: the kind of its content.
        first: the first index.
        term: the term of the entries; of the last entry if they differ.
        previous: the index of the first entry's predecessor, `None` without a predecessor.
        cuts: whether the log is truncated above `previous` first; of a LOG frame, whether the file repeats all frames
            of the log.
        entries: their count.
        data: the body.
        crc: the CRC of the body.
    """

    kind: FrameKind
    first: int
    term: int
    previous: int | None
    cuts: bool
    entries: int
    data: bytes
    crc: int

    @property
    def is_sparse(self) -> bool:
        """Whether the indexes are not consecutive."""
        return self.kind == FrameKind.SPARSE

    @property
    def last(self) -> int:
        """The last index; below `first` without entries."""
        if self.is_sparse:
            return int.from_bytes(self.data[8 * self.entries - 8:8 * self.entries], "little")
        return self.first + self.entries - 1

    @property
    def frame_bytes(self) -> int:
        """The size of the whole frame in the file."""
        return FRAME_HEADER_BYTES + padded(len(self.data))

    def runs(self) -> Iterator[tuple[int, int, list[bytes]]]:
        """The entries, as first index, term and payloads of each run of consecutive indexes.

        Raises:
            CorruptData: the lengths of the payloads do not fit the body.
        """
        count, place = self.entries, 16 * self.entries if self.is_sparse else 0
        if not count:
            return
        lengths = _numbers("I", self.data[place:place + 4 * count])
        ends = list(accumulate(lengths, initial=padded(place + 4 * count)))
        if len(lengths) != count or ends[-1] != len(self.data):
            raise CorruptData(path="<a frame of the WAL>", offset=place, expected=f"the lengths of {count} payloads in "
                              f"{len(self.data)} bytes", found=f"{len(lengths)} lengths, up to {ends[-1]}")
        payloads = [self.data[begin:end] for begin, end in pairwise(ends)]
        if not self.is_sparse:
            yield self.first, self.term, payloads
            return
        indexes, terms = _numbers("Q", self.data[:8 * count]), _numbers("Q", self.data[8 * count:place])
        for index, term, payload in zip(indexes, terms, payloads, strict=True):
            yield index, term, [payload]

    def encode(self, log: int, synced_end: int, salt: int) -> list[bytes]:
        """The pieces of the frame of log number `log` in a file, together `frame_bytes` long."""
        flags = (_CUTS if self.cuts else 0) | (_HAS_PREVIOUS if self.previous is not None else 0)
        head = _FRAME.pack(FRAME_MAGIC, self.kind, flags, 0, log, self.entries, self.previous or 0, self.first,
                           self.term, synced_end, len(self.data), self.crc)
        head += _CRC.pack(crc32(head, salt))
        pad = -len(self.data) % ALIGNMENT
        return [head, self.data, bytes(pad)] if pad else [head, self.data]


def padded(size: int) -> int:
    """`size` rounded up to a whole number of 8 bytes."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def run_frame(first: int, term: int, payloads: Sequence[bytes], previous: int | None, cuts: bool = False) -> Frame:
    """Entries with consecutive indexes and one term. Body: lengths u32, padding, payloads. O(1) calls a batch.

    Raises:
        InvalidInput: a payload is too large.
    """
    if len(payloads) == 1 and len(payloads[0]) < _FEW_BYTES:
        # As below, in a third of the time.
        data = _ONE_LENGTH.pack(len(payloads[0])) + payloads[0]
    else:
        lengths = _lengths(payloads)
        data = b"".join((lengths, bytes(-len(lengths) % ALIGNMENT), *payloads))
    return Frame(FrameKind.RUN, first, term, previous, cuts, len(payloads), data, crc32(data, 0))


def sparse_frame(indexes: Sequence[int], terms: Sequence[int], payloads: Sequence[bytes],
                 previous: int | None) -> Frame:
    """Sparse entries. Body: indexes u64, terms u64, lengths u32, padding, payloads. Raises as `run_frame`."""
    columns = _column("Q", indexes) + _column("Q", terms) + _lengths(payloads)
    data = b"".join((columns, bytes(-len(columns) % ALIGNMENT), *payloads))
    return Frame(FrameKind.SPARSE, indexes[0], terms[-1], previous, False, len(payloads), data, crc32(data, 0))


def cut_frame(after: int) -> Frame:
    """A truncation of everything above `after`; -1 for all."""
    return Frame(FrameKind.CUT, after + 1, 0, after if after >= 0 else None, True, 0, b"", 0)


def log_frame(log_id: str, *, repeats: bool = False) -> Frame:
    """The name of a log. With `repeats`, the files before have no frame of the log that counts."""
    data = log_id.encode()
    return Frame(FrameKind.LOG, 0, 0, None, repeats, 0, data, crc32(data, 0))


MARK = Frame(FrameKind.MARK, 0, 0, None, False, 0, b"", 0)
"""Proves that everything before it in the file is durable."""


def whole_bytes(head: bytes, salt: int) -> int:
    """The size of the whole frame that begins with the header `head`; 0 if that is damaged."""
    fields = _head(head, 0, salt)
    return 0 if fields is None else FRAME_HEADER_BYTES + padded(fields[10])


def synced_end_at(data: bytes, offset: int, salt: int) -> int | None:
    """The `synced_end` of the frame at `offset` of `data`; `None` if the frame has no whole header."""
    head = _head(data, offset, salt)
    return None if head is None else int(head[9])


def decode_frame(data: bytes, offset: int, salt: int) -> tuple[Frame, int, int] | None:
    """The frame at `offset` of `data`, the number of its log, and its `synced_end`; `None` if it is not whole."""
    head = _head(data, offset, salt)
    if head is None:
        return None
    _, kind, flags, _, log, count, before, first, term, synced_end, body_bytes, body_crc = head
    start = offset + FRAME_HEADER_BYTES
    body = data[start:start + body_bytes]
    if len(data) < start + padded(body_bytes) or crc32(body, 0) != body_crc:
        return None
    previous = before if flags & _HAS_PREVIOUS else None
    frame = Frame(FrameKind(kind), first, term, previous, bool(flags & _CUTS), count, body, body_crc)
    return frame, log, synced_end


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


def _numbers(code: str, data: bytes) -> array[int]:
    column = array(code)
    column.frombytes(data[:len(data) // column.itemsize * column.itemsize])
    if _BIG_ENDIAN:
        column.byteswap()
    return column
