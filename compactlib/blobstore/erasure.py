# SPDX-License-Identifier: Apache-2.0
"""The note `HARD_DELETE`: the progress of the hard delete, and the records that it overwrites.

The note is a `DurableRecord` of a `HardDeleteState` (`docs/formats/blobstore-hard-delete.md`). The contents of the
records that it names count as erased, for the owner and for every reader. Overwriting is idempotent.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter

import attrs

from compactlib.blobstore.names import SegmentName
from compactlib.blobstore.records import HEADER_BYTES
from compactlib.errors import CorruptData
from compactlib.files.checksum import crc32
from compactlib.files.disk import Files, LocalFiles, StrPath, look_at
from compactlib.files.durable_record import DurableRecord, JsonRecord

STATE_FILE = "HARD_DELETE"
_CRC = struct.Struct("<I")
_ZEROS = bytes(1 << 20)
_BY_SEGMENT, _BY_PLACE = attrgetter("segment"), attrgetter("segment", "offset")


@attrs.frozen
class Erasure:
    """A record to overwrite."""

    segment: SegmentName  # the record's log segment
    offset: int  # the record's offset
    content_bytes: int  # the length of its content, which becomes zeros
    head: bytes  # its new header and id, with their CRC

    def pieces(self) -> list[bytes]:
        """Return the new bytes of the record: header, zeros, and checksum."""
        (crc,) = _CRC.unpack_from(self.head, HEADER_BYTES - 4)
        whole, rest = divmod(self.content_bytes, len(_ZEROS))
        zeros = [*[_ZEROS] * whole, _ZEROS[:rest]]
        for piece in zeros:
            crc = crc32(piece, crc)
        return [self.head, *zeros, _CRC.pack(crc)]


@attrs.frozen
class HardDeleteState:
    """The progress of the hard delete of a store."""

    incarnation: bytes  # the store's incarnation
    sequence: int = 0  # every delete in effect up to this one is carried out
    erasures: tuple[Erasure, ...] = ()  # the records of the current batch

    @property
    def offsets(self) -> dict[SegmentName, set[int]]:
        """The offsets of the records of the batch, by segment."""
        found: dict[SegmentName, set[int]] = {}
        for each in self.erasures:
            found.setdefault(each.segment, set()).add(each.offset)
        return found


_STATE: JsonRecord[HardDeleteState] = JsonRecord("hard delete state", b"CLBLOBHD", 1, HardDeleteState)


def state_in(folder: StrPath, files: Files | None = None) -> DurableRecord[HardDeleteState]:
    """Return the state in a store's folder; it has no value before the first hard delete."""
    return DurableRecord(LocalFiles() if files is None else files, os.path.join(folder, STATE_FILE), _STATE)


def read_state(folder: StrPath, incarnation: bytes) -> tuple[HardDeleteState, str]:
    """Return the state of a store, and the damage of its file: then hard delete restarts at the first record.

    Without the note, the records of one batch may be torn; they are records of deleted blobs.
    """
    state, damage = None, ""
    try:
        state = state_in(folder).read()
    except CorruptData as error:
        damage = str(error)
    return (HardDeleteState(incarnation) if state is None or state.incarnation != incarnation else state), damage


def erase_records(files: Files, folder: StrPath, erasures: Sequence[Erasure]) -> int:
    """Overwrite records, segment by segment, and sync; return the bytes written. Idempotent.

    Missing segments are skipped: a compaction has dropped or copied their records.
    """
    written = 0
    for segment, group in groupby(sorted(erasures, key=_BY_PLACE), key=_BY_SEGMENT):
        path = os.path.join(folder, segment.log_file)
        if look_at(path) is None:
            continue
        with contextlib.closing(files.open(path)) as out:
            written += sum(out.write_at(each.offset, each.pieces()) for each in group)
            out.sync()
    return written
