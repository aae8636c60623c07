# SPDX-License-Identifier: Apache-2.0
"""The WAL's files: their format to the byte (`docs/formats/raftlog-wal.md`), and what of them counts at opening.

```
0    file header, 64 bytes: magic CLRAFWAL, version u16, zeros, number u64, previous_end u64, created_ns u64, CRC
64   frames, each a header of 64 bytes, a body, and zeros up to a multiple of 8
```

A frame is a batch of a log: a run (consecutive indexes of a term), sparse entries, or a truncation. Its `synced_end` is
the durable size of the file when it was written. With it, a reader that finds a whole frame behind a damaged frame
knows whether a crash may have torn the damaged frame (it was not synced then) or whether durable bytes have changed.

Files have consecutive numbers, and the header of each file has the durable size of its predecessor. So only the newest
file can have a torn end. Its last batch, which no later frame proves durable, is repeated in the next file.
"""

from __future__ import annotations

import enum
import os
import re
import struct
import sys
from array import array
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, chain, pairwise
from typing import NamedTuple

import attrs

from compactlib.errors import CorruptData, InvalidInput, StorageError
from compactlib.files.checksum import crc32
from compactlib.files.disk import StrPath, list_folder
from compactlib.files.record_frame import RecordFrame
from compactlib.raftlog.values import MAX_INDEX

WAL_TEMPORARY_SUFFIX = ".tmp"
FILE_HEADER_BYTES = 64
FRAME_HEADER_BYTES = 64
FRAME_MAGIC = b"CLWf"
ALIGNMENT = 8

FILE_HEADER = RecordFrame("WAL format", b"CLRAFWAL", 1, "<H6xQQQ20x")
"""Its fields: the file's number, as in its name; `previous_end`, the durable size of the file before, behind which
nothing is read, 0 in the first file; the time of its creation, in nanoseconds since the epoch."""
_FRAME = struct.Struct("<4sBBHIIQQQQQI")
_SYNCED_END, _BODY_BYTES = 9, 10  # places of these fields
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


def salt_of(header: bytes) -> int:
    """The start value of the CRCs of a file's frames, so that frames of other files fail their check."""
    # Without the header's own CRC: over both together it would be the same number for every header.
    return crc32(b"salt", crc32(header[:-_CRC.size], 0))


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
    return Frame(FrameKind.CUT, min(after + 1, MAX_INDEX), 0, after if after >= 0 else None, True, 0, b"", 0)


def log_frame(log_id: str, *, repeats: bool = False) -> Frame:
    """The name of a log. With `repeats`, the files before have no frame of the log that counts."""
    data = log_id.encode()
    return Frame(FrameKind.LOG, 0, 0, None, repeats, 0, data, crc32(data, 0))


MARK = Frame(FrameKind.MARK, 0, 0, None, False, 0, b"", 0)
"""Proves that everything before it in the file is durable."""


def whole_bytes(head: bytes, salt: int) -> int:
    """The size of the whole frame that begins with the header `head`; 0 if that is damaged."""
    fields = _head(head, 0, salt)
    return 0 if fields is None else FRAME_HEADER_BYTES + padded(fields[_BODY_BYTES])


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


# -- reading the files


@attrs.frozen
class RecoveredWal:
    """The content of a store's WAL files.

    Attributes:
        numbers: the numbers of the files, ascending.
        last_end: proven durable size of the newest file.
        frames: by log, every frame that counts, in the order of writing.
        unproven: the last frames, which are not proven durable, with the ids of their logs.
    """

    numbers: tuple[int, ...] = ()
    last_end: int = 0
    frames: Mapping[str, list[Frame]] = attrs.field(factory=dict)
    unproven: tuple[tuple[str, Frame], ...] = ()


def read_wal(folder: StrPath) -> RecoveredWal:
    """Read the WAL files in `folder`. O(bytes); the CRC of each frame is checked.

    Raises:
        CorruptData: a file is missing between two others, or damaged in its durable part.
        Unsupported: a file was written by a later release.
        StorageError: the disk refused.
    """
    numbers = sorted(number for name in list_folder(folder) if (number := wal_number(name)) is not None)
    for before, after in pairwise(numbers):
        if after != before + 1:
            raise CorruptData(path=os.path.join(folder, wal_name(before + 1)), offset=0, expected="a WAL file, since "
                              f"{wal_name(before)} and {wal_name(after)} exist", found="no file")
    paths = [os.path.join(folder, wal_name(number)) for number in numbers]
    headers = [_header(path, number) for path, number in zip(paths, numbers, strict=True)]
    frames: dict[str, list[Frame]] = {}
    unproven: list[tuple[str, Frame]] = []
    end = 0
    counts = [*(previous_end for previous_end, _ in headers[1:]), None]
    for path, (_, salt), counts_to in zip(paths, headers, counts, strict=False):
        placed, end = _scan(_read(path), salt, path, counts_to)
        ids: dict[int, str] = {}
        at = FILE_HEADER_BYTES
        for frame, log in placed:
            if frame.kind == FrameKind.LOG:
                ids[log] = frame.data.decode()
                if frame.cuts:
                    frames.pop(ids[log], None)
            elif log not in ids:
                raise CorruptData(path=path, offset=at, expected="a frame of a log that the file names",
                                  found=f"a frame of log number {log}")
            else:
                frames.setdefault(ids[log], []).append(frame)
                if at >= end:
                    unproven.append((ids[log], frame))
            at += frame.frame_bytes
    return RecoveredWal(tuple(numbers), end, frames, tuple(unproven))


def read_frames(wal: str, log_id: str | None) -> tuple[Frame, ...]:
    """The frames of a log (`None`: of all) in a WAL, which may have a writer. Reads all files.

    Raises:
        CorruptData: a file is damaged in its durable part.
        Unsupported: a file was written by another release.
        StorageError: a file cannot be read.
    """
    seen: object = None
    while True:
        before = wal_files(wal)
        try:
            frames = read_wal(wal).frames
            return tuple(chain.from_iterable(frames.values()) if log_id is None else frames.get(log_id, ()))
        except (CorruptData, StorageError):
            # A flush may have removed a file, or a batch was being written: only a repeated failure is damage.
            if seen == before == wal_files(wal):
                raise
            seen = before


def wal_files(wal: str) -> list[tuple[str, int, int]]:
    """Names, sizes and times of change of the files; the times because frames may overwrite zeros.

    A file that is removed meanwhile is listed too: without it, two lists of different files may be equal.
    """
    listed = []
    for name in list_folder(wal):
        try:
            found = os.stat(os.path.join(wal, name))
            listed.append((name, found.st_size, found.st_mtime_ns))
        except OSError:
            listed.append((name, 0, -1))
    return listed


def _scan(data: bytes, salt: int, path: str, counts_to: int | None) -> tuple[list[tuple[Frame, int]], int]:
    """The frames of a file that count, without marks; see the head of this file.

    Args:
        data: the whole file.
        salt: the salt of the file.
        path: its name, for messages.
        counts_to: its durable size, from its successor; `None` for the newest file.

    Returns:
        The frames, with the numbers of their logs; the end of those that are proven durable.
    """
    found: list[tuple[Frame, int]] = []
    proven_end = offset = FILE_HEADER_BYTES
    limit = len(data) if counts_to is None else counts_to
    while offset < limit and (decoded := decode_frame(data, offset, salt)) is not None:
        frame, log, synced_end = decoded
        proven_end = max(proven_end, synced_end)
        if frame.kind == FrameKind.MARK:
            break
        offset += frame.frame_bytes
        found.append((frame, log))
    if counts_to is not None:
        if offset != counts_to:
            raise CorruptData(path=path, offset=offset, expected=f"whole frames up to {counts_to}, the size in the "
                              f"next file", found="a damaged frame" if offset < len(data) else "the end of the file")
        return found, offset
    place = data.find(FRAME_MAGIC, offset)
    while place >= 0:
        head = _head(data, place, salt) if place % ALIGNMENT == 0 else None
        if head is not None and head[_SYNCED_END] > offset:
            raise CorruptData(path=path, offset=offset, found="a damaged frame", expected=f"a whole frame, since "
                              f"everything up to {head[_SYNCED_END]} was durable")
        place = data.find(FRAME_MAGIC, place + 1)
    return found, proven_end


def _header(path: str, number: int) -> tuple[int, int]:
    """The `previous_end` of a file, and its salt."""
    data = _read(path, FILE_HEADER_BYTES)
    found, previous_end, _ = FILE_HEADER.decode_header(data, path)
    if found != number:
        raise CorruptData(path=path, offset=16, expected=f"number {number} as in the file name", found=str(found))
    return previous_end, salt_of(data)


def _read(path: str, size: int = -1) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(size)
    except OSError as error:
        raise StorageError.from_os(error, "read", path) from error
