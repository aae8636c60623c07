# SPDX-License-Identifier: Apache-2.0
"""Crash-safe overwriting of records in place (hard delete): the redo file `HARD_DELETE`, and its replay.

The file is a `DurableRecord` of a `HardDeleteState` (`docs/formats/blobstore-hard-delete.md`).
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from operator import attrgetter

import attrs

from compactlib.blobstore.names import SegmentName
from compactlib.blobstore.records import HEADER_BYTES
from compactlib.errors import CorruptData
from compactlib.files.checksum import crc32
from compactlib.files.disk import Files, LocalFiles, StrPath, look_at
from compactlib.files.durable_record import DurableRecord, JsonRecord

STATE_NAME = "HARD_DELETE"
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


_STATE: JsonRecord[HardDeleteState] = JsonRecord("hard delete state", b"CLBLOBHD", 2, HardDeleteState)


def state_in(folder: StrPath, files: Files | None = None) -> DurableRecord[HardDeleteState]:
    """Return the state in a store's folder; it has no value if hard delete never ran."""
    return DurableRecord(LocalFiles() if files is None else files, os.path.join(folder, STATE_NAME), _STATE)


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
        state = state_in(folder).read()
    except CorruptData:
        return ()
    if state is None or not state.erasures:
        return ()
    mark(state.erasures)
    erase_records(files, folder, state.erasures)
    state_in(folder, files).write(attrs.evolve(state, erasures=()))
    return state.erasures


def pending_erasures(folder: StrPath, incarnation: bytes) -> dict[SegmentName, set[int]]:
    """Offsets of the records whose contents are being overwritten, or were when a crash came, by segment.

    Their contents count as gone: whatever is still there, the next opening that can overwrites it.

    Raises:
        Unsupported: another release wrote the state.
    """
    try:
        state = state_in(folder).read()
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
    stale = [path for segment in {erasure.segment for erasure in erasures}
             if look_at(path := os.path.join(folder, segment.index_file)) is not None]
    for path in stale:
        files.unlink(path)
    if stale:
        files.sync_folder(folder)


def total_bytes(erasures: Iterable[Erasure]) -> int:
    """What overwriting them writes."""
    return sum(len(each.head) + each.content_bytes + _CRC.size for each in erasures)
