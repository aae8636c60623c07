# SPDX-License-Identifier: Apache-2.0
"""Shared by the tests of reading: small segments, the same read by every method, and a plain model."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from struct import pack

from compactlib.errors import CorruptData
from compactlib.files import LocalFiles
from compactlib.raftlog import MissingEntry, SegmentLimits
from compactlib.raftlog.names import segment_name
from compactlib.raftlog.segment.reader import SegmentReader
from compactlib.raftlog.segment.writer import SegmentWriter
from tests.harness.plain_log import Told, told


def write_segment(folder: Path, number: int, entries: Iterable[tuple[int, int, bytes]], *, max_entries: int = 16,
                  max_bytes: int = 64_000_000, sealed: bool = True) -> Path:
    """A segment with these entries, sealed or left open after a sync."""
    limits = SegmentLimits(max_entries=max_entries, max_bytes=max_bytes)
    with SegmentWriter.create(LocalFiles(), folder, number, limits) as writer:
        for entry in entries:
            writer.append(*entry)
        if sealed:
            writer.seal(is_alone=True)
    return folder / segment_name(number)


def native_record(index: int, term: int, payload: bytes, offset: int) -> bytes:
    """An index record, from the format's page and not from the code."""
    first = pack("<QQI", index, term, len(payload))
    head = zlib.crc32(first)
    return first + pack("<IQII", head, offset, zlib.crc32(payload, head), 0)


def segment_answers(reader: SegmentReader, indexes: Sequence[int]) -> dict[int, Told]:
    """Return a segment's answer for each of `indexes` (ascending); all methods must agree."""
    single: dict[int, Told] = {}
    for index in indexes:
        try:
            single[index] = reader.read(index) or MissingEntry(index)
        except CorruptData as error:
            assert error.index == index
            single[index] = "damaged"
    first, last = indexes[0], indexes[-1]
    wanted = set(indexes)
    scanned = {index: answer for index, answer in told(reader.scan(first, last)) if index in wanted}
    assert scanned == {index: answer for index, answer in single.items() if not isinstance(answer, MissingEntry)}
    found_damaged = {error.index for error in reader.damaged_entries()}
    assert found_damaged & wanted == {index for index, answer in single.items() if answer == "damaged"}
    return single


def flipped(data: bytes, place: int, mask: int) -> bytes:
    """A copy with some bits of one byte changed."""
    changed = bytearray(data)
    changed[place] ^= mask
    return bytes(changed)


def copy_folder(folder: Path, target: Path) -> Path:
    """A copy of a log's folder, as another process would find it if the writer ended now."""
    target.mkdir()
    for name in sorted(os.listdir(folder)):
        if os.path.islink(folder / name):
            (target / name).symlink_to(os.readlink(folder / name))
        else:
            (target / name).write_bytes((folder / name).read_bytes())
    return target
