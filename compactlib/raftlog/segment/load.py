# SPDX-License-Identifier: Apache-2.0
"""Loads the header and the index of a segment file, and finds a torn tail.

The index records that a seal covers were durable: their CRC must hold. Behind the seal of an unsealed segment, entries
count up to the first incomplete entry, by their own CRCs: the rest is a tail that a crash has torn.
"""

from __future__ import annotations

import os
from typing import Literal

import attrs

from compactlib.errors import CorruptData, Unsupported
from compactlib.files.checksum import crc32
from compactlib.files.disk import read_exactly
from compactlib.raftlog.segment import format as native
from compactlib.raftlog.segment.index import SegmentIndex

TailRule = Literal["cut", "refuse"]

_CHUNK_BYTES = 1 << 20
_RA_MAGIC = b"RASG"


@attrs.frozen
class LoadedSegment:
    """The checked header, seal and index of a segment file.

    Attributes:
        index: of the entries that count.
        header: of the segment.
        seal: the newest whole seal.
        data_end: offset of the end of the last payload.
        index_crc: CRC-32 of the index records.
        torn_records: count of index records behind the whole entries, incomplete or with an incomplete payload.
        is_torn: whether there are bytes behind the whole entries; they were never acknowledged.
    """

    index: SegmentIndex
    header: native.Header
    seal: native.Seal
    data_end: int
    index_crc: int
    torn_records: int = 0
    is_torn: bool = False


def load_segment(descriptor: int, path: str, *, tail: TailRule = "cut", number: int | None = None) -> LoadedSegment:
    """Read and check a segment's header and index, without payloads behind the seal's place.

    Args:
        descriptor: the file, open for reading.
        path: its name, for messages.
        tail: an unsealed file may end in entries that were never acknowledged: `"cut"` leaves out incomplete entries,
            for the newest segment; `"refuse"` raises `CorruptData` for an unsealed file.
        number: the number in the file's name, which the header must have.

    Raises:
        CorruptData: the file is damaged; the message has the place.
        Unsupported: the format version is unknown, or it is a file of RabbitMQ Ra.
    """
    header, seal = _start_of(descriptor, path, number)
    if tail == "refuse":
        _require_sealed(seal, path)
    size = os.fstat(descriptor).st_size
    if seal is None:
        # No crash damages both seals, and without a seal the durable size is not known.
        if size > header.data_start or _records_from(descriptor, native.INDEX_START, header.data_start):
            raise CorruptData(path=path, offset=native.HEADER_BYTES, found="two damaged seals before entries",
                              expected="one that says how many entries were durable; a crash damages one at most")
        seal = native.Seal(0, header.data_start, 0, sealed=False)
    region = _durable_region(descriptor, path, header, seal)
    if not seal.sealed:
        return _with_tail(descriptor, header, seal, region, size)
    index = SegmentIndex.of(native.decode_records(region))
    # In a truncated segment, the truncated payloads take room until it is rewritten.
    index.data_bytes = max(index.data_bytes, size - header.data_start)
    return LoadedSegment(index, header, seal, seal.data_end, seal.index_crc)


def sealed_records(descriptor: int, path: str) -> bytes:
    """The bytes of the index records of a sealed segment.

    Raises:
        CorruptData, Unsupported: as `load_segment` with `tail="refuse"`.
    """
    header, seal = _start_of(descriptor, path, None)
    return _durable_region(descriptor, path, header, _require_sealed(seal, path))


def _require_sealed(seal: native.Seal | None, path: str) -> native.Seal:
    if seal is None or not seal.sealed:
        raise CorruptData(path=path, offset=native.HEADER_BYTES, expected="a sealed segment, since newer ones exist",
                          found="two damaged seals" if seal is None else "one left open, by the seal that is whole")
    return seal


def _start_of(descriptor: int, path: str, number: int | None) -> tuple[native.Header, native.Seal | None]:
    start = read_exactly(descriptor, native.INDEX_START, 0)
    if start[:len(_RA_MAGIC)] == _RA_MAGIC:
        raise Unsupported(f"{path} is a segment of RabbitMQ Ra; copy its log into a new one: import_ra(folder, log)")
    header = native.decode_header(start, path)
    if len(start) < native.INDEX_START:
        raise CorruptData(path=path, offset=len(start), found="the end of the file",
                          expected=f"a header and seals of {native.INDEX_START} bytes, which a segment begins as")
    if number is not None and header.number != number:
        raise CorruptData(path=path, offset=24, expected=f"segment number {number} as in the file name",
                          found=str(header.number))
    return header, native.decode_seal(start)


def _durable_region(descriptor: int, path: str, header: native.Header, seal: native.Seal) -> bytes:
    if seal.entries > header.limits.max_entries or seal.data_end < header.data_start:
        raise CorruptData(path=path, offset=native.HEADER_BYTES, found=f"{seal}",
                          expected=f"at most {header.limits.max_entries} entries, ending from {header.data_start}")
    wanted = seal.entries * native.RECORD_BYTES
    region = read_exactly(descriptor, wanted, native.INDEX_START)
    size = os.fstat(descriptor).st_size
    # Entries without payload leave the file shorter than where payloads would begin.
    if len(region) < wanted or header.data_start < seal.data_end > size:
        raise CorruptData(path=path, offset=size, expected=f"{seal.entries} entries ending at {seal.data_end}",
                          found=f"the end of the file at {size}")
    found = crc32(region, 0)
    if found != seal.index_crc:
        raise CorruptData(path=path, offset=native.INDEX_START, found=f"{found:#010x}",
                          expected=f"index CRC {seal.index_crc:#010x} over {seal.entries} records")
    return region


def _with_tail(descriptor: int, header: native.Header, seal: native.Seal, durable: bytes, size: int) -> LoadedSegment:
    behind = _records_from(descriptor, native.INDEX_START + len(durable), header.data_start)
    records = native.decode_records(behind)
    # A record may end in zeros: one that the end of the file cuts short would look whole, and be missed by a seal.
    complete = min(len(records), (size - native.INDEX_START) // native.RECORD_BYTES - seal.entries)
    whole, data_end = 0, seal.data_end
    last = int(native.indexes_of(durable[-native.RECORD_BYTES:])[0]) if durable else -1
    while whole < complete and records.indexes[whole] > last and _is_whole(descriptor, records, whole, data_end):
        last = records.indexes[whole]
        data_end += records.lengths[whole]
        whole += 1
    kept = durable + behind[:whole * native.RECORD_BYTES]
    torn = len(records) - whole
    return LoadedSegment(SegmentIndex.of(native.decode_records(kept)), header, seal, data_end, crc32(kept, 0), torn,
                         is_torn=torn > 0 or size > max(data_end, header.data_start))


def _records_from(descriptor: int, start: int, end: int) -> bytes:
    """The index region from `start` to the last record before a MiB of zeros. A crash may leave zeros in between."""
    found = bytearray()
    while chunk := read_exactly(descriptor, min(_CHUNK_BYTES, end - start - len(found)), start + len(found)):
        found += chunk
        if not chunk.rstrip(b"\0"):
            break
    region = found.rstrip(b"\0")
    return bytes(region) + bytes(-len(region) % native.RECORD_BYTES)


def _is_whole(descriptor: int, records: native.Columns, position: int, expected_offset: int) -> bool:
    length, head = records.lengths[position], records.heads[position]
    if records.offsets[position] != expected_offset or native.head_crc(
            records.indexes[position], records.terms[position], length) != head:
        return False
    payload = read_exactly(descriptor, length, expected_offset)
    return len(payload) == length and crc32(payload, head) == records.crcs[position]
