# SPDX-License-Identifier: Apache-2.0
"""Crash-safe overwriting of records in place (hard delete): the redo file `HARD_DELETE`, and its replay.

```
0   magic b"CLBLOBHD"      12  CRC of the body (u32)    24  body:
8   version 1 (u16)        16  length of the body       0   incarnation (16 bytes)
10  0 (u16)                                             16  sequence reached (u64), 24 records (u32), then each:
        position, generation, offset, content length (u64 each), length of the head (u16), head
```

The head of a record is its header and id as they will be. All numbers are little-endian.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from operator import attrgetter

import attrs

from compactlib.blobstore.model.names import SegmentName, place_of_index_file
from compactlib.blobstore.segment.records import HEADER_BYTES
from compactlib.errors import CorruptData
from compactlib.files.checksum import crc32
from compactlib.files.disk import Files, StrPath, list_folder, look_at, read_if_there, write_durably
from compactlib.files.record_frame import BodyFrame

STATE_NAME = "HARD_DELETE"
_FRAME = BodyFrame("hard delete state", b"CLBLOBHD", 1)
_FIXED = struct.Struct("<16sQI")
_ERASURE = struct.Struct("<QQQQH")
_CRC = struct.Struct("<I")
_ZEROS = bytes(1 << 20)


@attrs.frozen
class Erasure:
    """A record to overwrite.

    Attributes:
        segment: its log segment.
        offset: where it begins.
        content_bytes: how many zeros its content becomes.
        head: its new header and id, with their CRC.
    """

    segment: SegmentName
    offset: int
    content_bytes: int
    head: bytes


@attrs.frozen
class HardDeleteState:
    """How far the hard delete of a store has come.

    Attributes:
        incarnation: of the store.
        sequence: every delete up to this one has been looked at; those in effect then are carried out.
        erasures: records that are being overwritten right now.
    """

    incarnation: bytes
    sequence: int = 0
    erasures: tuple[Erasure, ...] = ()


def encode_state(state: HardDeleteState) -> bytes:
    """The bytes of the file."""
    parts = [_FIXED.pack(state.incarnation, state.sequence, len(state.erasures))]
    for each in state.erasures:
        parts += (_ERASURE.pack(*each.segment, each.offset, each.content_bytes, len(each.head)), each.head)
    return _FRAME.encode(b"".join(parts))


def decode_state(data: bytes, path: str) -> HardDeleteState:
    """The inverse of `encode_state`.

    Raises:
        CorruptData: any check fails.
        Unsupported: another release wrote it.
    """
    body, _ = _FRAME.decode(data, path)
    if _FRAME.header_bytes + len(body) != len(data):
        raise CorruptData(path=path, offset=_FRAME.header_bytes + len(body), expected="the end of the file",
                          found=f"{len(data)} bytes")
    incarnation, sequence, count = _FIXED.unpack_from(body)
    at, erasures = _FIXED.size, []
    for _ in range(count):
        position, generation, offset, content, head = _ERASURE.unpack_from(body, at)
        at += _ERASURE.size + head
        erasures.append(Erasure(SegmentName(position, generation), offset, content, body[at - head:at]))
    return HardDeleteState(incarnation, sequence, tuple(erasures))


def read_state(folder: StrPath) -> HardDeleteState | None:
    """The state in a store's folder; `None` if hard delete never ran.

    Raises:
        CorruptData: the file is damaged.
        Unsupported: another release wrote it.
        StorageError: it cannot be read.
    """
    path = os.path.join(folder, STATE_NAME)
    data = read_if_there(path)
    return None if data is None else decode_state(data, path)


def write_state(files: Files, folder: StrPath, state: HardDeleteState) -> None:
    """Make the state durable.

    Raises:
        StorageError: the disk refused; what was there before still is.
    """
    write_durably(files, os.path.join(folder, STATE_NAME), [encode_state(state)])


def erase_records(files: Files, folder: StrPath, erasures: Sequence[Erasure]) -> int:
    """Overwrite records, segment by segment, and sync; returns the bytes written. Doing it again changes nothing.

    Segments that are gone are left out: a compaction has dropped or copied their records.

    Raises:
        StorageError: the disk refused; call again.
    """
    written = 0
    for segment, group in groupby(sorted(erasures, key=attrgetter("segment", "offset")), key=attrgetter("segment")):
        path = os.path.join(folder, segment.log_file)
        if look_at(path) is None:
            continue
        with contextlib.closing(files.open(path)) as out:
            written += sum(out.write_at(each.offset, _record(each)) for each in group)
            out.sync()
    return written


def _record(erasure: Erasure) -> list[bytes]:
    (crc,) = _CRC.unpack_from(erasure.head, HEADER_BYTES - 4)
    left, pieces = erasure.content_bytes, [erasure.head]
    while left:
        piece = _ZEROS[:min(left, len(_ZEROS))]
        crc = crc32(piece, crc)
        pieces.append(piece)
        left -= len(piece)
    return [*pieces, _CRC.pack(crc)]


def redo_erasures(files: Files, folder: StrPath, mark: Callable[[Sequence[Erasure]], object]) -> tuple[Erasure, ...]:
    """Finish what a crash interrupted; returns what was overwritten again. The caller holds the store's lock.

    The crash may have come before the index said that these contents are gone; then a store with a longer retention
    would let such a delete be undone. So `mark` sees to that first.

    A damaged state file stays for the hard delete to find: without it, at most the records of one batch are torn, and
    they are deleted ones.

    Raises:
        StorageError: the disk refused; call again.
        Unsupported: another release wrote the state.
    """
    try:
        state = read_state(folder)
    except CorruptData:
        return ()
    if state is None or not state.erasures:
        return ()
    mark(state.erasures)
    erase_records(files, folder, state.erasures)
    write_state(files, folder, attrs.evolve(state, erasures=()))
    return state.erasures


def pending_erasures(folder: StrPath, incarnation: bytes) -> dict[SegmentName, set[int]]:
    """Offsets of the records whose contents are being overwritten, or were when a crash came, by segment.

    Their contents count as gone: whatever is still there, the next opening that can overwrites it.

    Raises:
        Unsupported: another release wrote the state.
    """
    try:
        state = read_state(folder)
    except CorruptData:
        state = None
    found: dict[SegmentName, set[int]] = {}
    for erasure in state.erasures if state is not None and state.incarnation == incarnation else ():
        found.setdefault(erasure.segment, set()).add(erasure.offset)
    return found


def drop_index_files(files: Files, folder: StrPath, erasures: Sequence[Erasure]) -> None:
    """Remove the index files of the segments concerned, so that opening builds them anew from the overwritten records.

    Raises:
        StorageError: the disk refused; call again.
    """
    touched = {erasure.segment for erasure in erasures}
    places = {name: place_of_index_file(name) for name in list_folder(folder)}
    stale = [name for name, place in places.items() if place is not None and place.segment in touched]
    for name in stale:
        files.unlink(os.path.join(folder, name))
    if stale:
        files.sync_folder(folder)


def total_bytes(erasures: Iterable[Erasure]) -> int:
    """What overwriting them writes."""
    return sum(len(each.head) + each.content_bytes + _CRC.size for each in erasures)
