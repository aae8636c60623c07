# SPDX-License-Identifier: Apache-2.0
"""`SegmentWriter`: writes a segment file. Entries are appended, made durable by `sync`, and ended by a seal.

Payloads are written before their index records. A seal has the size that an fsync has covered, and is written after an
fsync that covered the last seal; `segment.format` has the places of the seals.

A sealed segment is never written again, with an exception: a truncation (`cut_segment`) writes one more seal, with
fewer entries. It overwrites no entry, so that a crash leaves all entries or those below the cut.
"""

from __future__ import annotations

import os
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

import attrs

from compactlib._closing import Closing, closed_on_failure
from compactlib.errors import Closed
from compactlib.files.checksum import crc32
from compactlib.files.disk import Files, OutFile, StrPath, read_exactly, write_durably
from compactlib.files.zeros_ahead import ZerosAhead
from compactlib.raftlog.names import TEMPORARY_SUFFIX, segment_name
from compactlib.raftlog.segment import format as native
from compactlib.raftlog.segment.format import SegmentIndex
from compactlib.raftlog.segment.reader import LoadedSegment, load_segment
from compactlib.raftlog.values import SegmentLimits

_FLUSH_ENTRIES = 1024
_FLUSH_BYTES = 1 << 20
_JOINED_BYTES = 4096


class SegmentWriter(Closing):
    """The writer of a segment, made by `create` or `open`. Not thread-safe.

    Entries are buffered in memory up to 1024 entries or 1 MiB, or until `flush`, `sync` or `seal`; only `sync` and
    `seal` make them durable. Once it is closed or sealed, these and the appends raise `Closed`.

    Any method raises `StorageError` if the disk refuses. Then the file has the synced entries and perhaps more: open it
    again, or truncate it to the synced entries with `take_back`.

    Attributes:
        index: of all appended entries, flushed or not.
        header, number, path: of the segment.
        torn_records: count of index records that `open` has found behind the whole entries.
        synced: what the last sync of this writer has covered, as a seal.
        is_open: whether it takes entries: it is neither sealed nor closed.
    """

    def __init__(self, files: Files, out: OutFile, loaded: LoadedSegment) -> None:
        self.index: SegmentIndex = loaded.index
        self.header: native.Header = loaded.header
        self.number: int = loaded.header.number
        self.path: str = out.path
        self.torn_records: int = loaded.torn_records
        self._files = files
        self._file: OutFile | None = out
        self._data_end = self._flushed_end = loaded.data_end
        self._flushed_entries = len(loaded.index)
        self._index_crc = loaded.index_crc
        self._payloads: list[bytes] = []
        self._records: list[bytes] = []
        self.synced: native.Seal = native.Seal(
            0, loaded.header.data_start, 0, sealed=False, sequence=loaded.seal.sequence)
        self.is_open: bool = True
        self._full_beyond = loaded.header.data_start + loaded.header.limits.max_bytes
        self._zeros = ZerosAhead(loaded.header.data_start, self._data_end, self._full_beyond)

    @classmethod
    def create(cls, files: Files, folder: StrPath, number: int, limits: SegmentLimits | None = None) -> SegmentWriter:
        """Create the empty segment `number`, durable before this returns."""
        path = os.path.join(folder, segment_name(number))
        header = native.Header(number, SegmentLimits() if limits is None else limits)
        seal = native.Seal(0, header.data_start, 0, sealed=False)
        write_durably(files, path, [native.encode_start(header, seal)], temporary_suffix=TEMPORARY_SUFFIX)
        index = native.decode_records(b"")
        return cls(files, files.open(path), LoadedSegment(index, header, seal, header.data_start, 0))

    @classmethod
    def open(cls, files: Files, folder: StrPath, number: int, *, is_last: bool = True) -> SegmentWriter:
        """Take over segment `number` from an earlier owner. All entries that count are durable then.

        A segment takes no more entries (`is_open`) if it is or was sealed: because its tail is torn, or because it is
        not the last of its log. Zeros in place of a torn tail would not do: after a failed fsync they can be read, and
        yet a power failure brings the torn records back behind new entries.
        """
        path = os.path.join(folder, segment_name(number))
        out = files.open(path)
        with closed_on_failure(out):
            loaded = load_segment(out.fileno(), path, number=number)
            writer = cls(files, out, loaded)
            writer._write_again(loaded)
            if not loaded.seal.sealed and (loaded.is_torn or not is_last):
                writer._end_at(loaded.data_end, is_alone=is_last)
        return writer

    def _write_again(self, loaded: LoadedSegment) -> None:
        """Write the newest seal and the entries that it does not cover again, and sync them.

        They may be in the page cache alone: after a failed fsync they can be read, and the next fsync does not write
        them. A seal that covers all entries of an unsealed segment waits for the next sync, so before another seal is
        written to the other place.
        """
        seal, descriptor = loaded.seal, self._out.fileno()
        if len(self.index) or seal.sealed:
            self._out.write_at(seal.place, [native.encode_seal(seal)])
        self.synced = self._seal_now(seal.sequence)
        if seal.sealed:
            self.is_open = False
            self._out.sync()
        elif seal.entries < len(self.index):
            place = native.INDEX_START + seal.entries * native.RECORD_BYTES
            records = read_exactly(descriptor, (len(self.index) - seal.entries) * native.RECORD_BYTES, place)
            self._out.write_at(place, [records])
            for place in range(seal.data_end, loaded.data_end, _FLUSH_BYTES):
                self._out.write_at(place, [read_exactly(descriptor, min(_FLUSH_BYTES, loaded.data_end - place), place)])
            self._out.sync()
            self._write_seal(sealed=False)

    def _end_at(self, data_end: int, *, is_alone: bool) -> None:
        """Seal the segment without its torn tail; an empty segment stays open."""
        if len(self.index):
            self._out.truncate(data_end)
            # To the other place: the seal that was found there may be torn.
            self.seal(is_alone=is_alone)
        else:
            self.take_back()

    @property
    def _out(self) -> OutFile:
        """The open file; `rest` has closed it."""
        if self._file is None:
            self._file = self._files.open(self.path)
        return self._file

    @property
    def is_full(self) -> bool:
        """Whether the next entry needs a new segment: the index is full, or the payloads exceed `max_bytes`."""
        return len(self.index) >= self.header.limits.max_entries or self._data_end > self._full_beyond

    def unflushed(self, position: int) -> bytes | None:
        """The buffered payload at a position of the index; `None` if it is in the file."""
        place = position - self._flushed_entries
        return self._payloads[place] if place >= 0 else None

    def append(self, index: int, term: int, payload: bytes) -> None:
        """Append a checked entry above the last index; the segment is not full. Gaps are allowed."""
        if not self.is_open:
            self._refuse()
        length = len(payload)
        head = native.head_crc(index, term, length)
        crc = crc32(payload, head)
        offset = self._data_end
        self._records.append(native.encode_record(index, term, length, head, offset, crc))
        self._payloads.append(payload)
        self.index.append(index, term, offset, length, head, crc)
        self._data_end = offset + length
        if len(self._payloads) >= _FLUSH_ENTRIES or self._data_end - self._flushed_end >= _FLUSH_BYTES:
            self.flush()

    def append_run(self, first: int, term: int, payloads: Sequence[bytes]) -> int:
        """Append entries of consecutive indexes and one term, until the segment is full; return their count.

        As `append` for each entry, with a few calls for all.
        """
        if len(payloads) <= 1:
            # Arrays of a single element cost twice as much.
            for payload in payloads:
                self.append(first, term, payload)
            return len(payloads)
        if not self.is_open:
            self._refuse()
        room = self.header.limits.max_entries - len(self.index)
        fitting = payloads if len(payloads) <= room else payloads[:room]
        lengths = list(map(len, fitting))
        offsets = list(accumulate(lengths, initial=self._data_end))
        if offsets[-2] > self._full_beyond:
            # An entry fits if its predecessors do not exceed the limit.
            count = bisect_right(offsets, self._full_beyond)
            fitting, lengths, offsets = fitting[:count], lengths[:count], offsets[:count + 1]
        end, heads = offsets.pop(), list(native.head_crcs(first, term, lengths))
        # As arrays: the following calls copy memory.
        records = SegmentIndex(
            indexes=array("Q", range(first, first + len(lengths))), terms=array("Q", [term]) * len(lengths),
            offsets=array("Q", offsets), lengths=array("I", lengths),
            heads=array("I", heads), crcs=array("I", list(map(crc32, fitting, heads))))
        self._records.append(native.encode_records(records))
        self._payloads += fitting
        self.index.extend(records)
        self._data_end = end
        if len(self._payloads) >= _FLUSH_ENTRIES or self._data_end - self._flushed_end >= _FLUSH_BYTES:
            self.flush()
        return len(lengths)

    def flush(self) -> None:
        """Hand everything to the operating system, payloads before index records; not durable yet."""
        if not self._payloads:
            return
        records = b"".join(self._records)
        # Copying small pieces together costs less than the system takes to gather them.
        small = self._data_end - self._flushed_end < len(self._payloads) * _JOINED_BYTES
        self._out.write_at(self._flushed_end, [b"".join(self._payloads)] if small else self._payloads)
        self._out.write_at(native.INDEX_START + self._flushed_entries * native.RECORD_BYTES, [records])
        self._index_crc = crc32(records, self._index_crc)
        self._flushed_entries, self._flushed_end = len(self.index), self._data_end
        self._records, self._payloads = [], []

    def sync(self, *, rests: bool = False) -> None:
        """Make everything appended so far durable: one fsync, none if there is nothing new; `rests`: then `rest`."""
        if not self.is_open:
            self._refuse()
        self.flush()
        if self.synced.entries < self._flushed_entries:
            if not rests:
                self._zeros.follow(self._out, self._flushed_end)
            self._out.sync()
            # Not synced: with an older seal, opening the segment checks more entries.
            self._write_seal(sealed=False)
        if rests:
            self.rest()

    def seal(self, *, is_alone: bool = False) -> None:
        """Make everything durable and seal the segment: nothing is appended later. The next segment is there already.

        Args:
            is_alone: it need not be there, see `Seal`.
        """
        if not self.is_open:
            self._refuse()
        self.flush()
        self.cut_zeros()
        self._out.sync()
        # From here on nothing is appended, also if the disk refuses the rest.
        self.is_open = False
        self._write_seal(sealed=True, is_alone=is_alone)
        self._out.sync()

    def take_back(self) -> None:
        """Truncate the segment to the synced entries and seal it, durably; an empty segment stays open. Needs no room.

        After a failed fsync, written entries may be readable and yet be lost in a crash. The last seal may be lost,
        too: it is written again to the same place. A file that was not opened since `rest` has the synced entries
        alone, and stays open for more.
        """
        synced = self.synced
        if self._file is None:
            self.index, self._payloads, self._records = self.index.head(synced.entries), [], []
            self._data_end = self._flushed_end
            return
        self.is_open = False
        if synced.entries:
            self._out.truncate(synced.data_end)
            self._out.write_at(synced.place, [native.encode_seal(attrs.evolve(synced, sealed=True, is_alone=True))])
            self._out.sync()
            return
        # No record may stay: the record of an empty payload would count again.
        self._out.truncate(native.INDEX_START)
        self._out.sync()
        self.index, self._payloads, self._records = self.index.head(0), [], []
        self._data_end = self._flushed_end = synced.data_end
        self._flushed_entries, self._index_crc, self.is_open = 0, 0, True

    def cut_zeros(self) -> None:
        """Truncate the zeros behind the payloads, which the next opening would take for a torn tail."""
        if self._zeros.filled > self._flushed_end:
            self._out.truncate(self._flushed_end)

    def _write_seal(self, *, sealed: bool, is_alone: bool = False) -> None:
        """Write the next seal, after an fsync that has covered the last seal."""
        self.synced = self._seal_now(self.synced.sequence + 1)
        seal = attrs.evolve(self.synced, sealed=sealed, is_alone=is_alone)
        self._out.write_at(seal.place, [native.encode_seal(seal)])

    def _seal_now(self, sequence: int) -> native.Seal:
        return native.Seal(self._flushed_entries, self._flushed_end, self._index_crc, False, sequence)

    def close(self) -> None:
        """Sync and close the file, also if the sync is refused. Idempotent."""
        try:
            if self.is_open:
                self.sync()
                self.cut_zeros()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close the file without another write; entries that were not synced may be lost."""
        self.is_open = False
        if self._file is not None:
            self._file.close()

    def rest(self) -> None:
        """Close the file until the next write opens it again. All entries are synced, and the last seal need not be."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _refuse(self) -> None:
        raise Closed(f"the writer of {self.path} is closed; append to the next segment, or open this one again")


def cut_segment(files: Files, folder: StrPath, number: int, after: int) -> None:
    """Truncate a segment, sealed or not, above `after`, durably: by one more seal. Needs no room.

    The bytes of the truncated entries are ignored, and freed when the segment is rewritten or removed. If the disk
    refuses, the segment has all its entries, or those up to `after`.
    """
    path = os.path.join(folder, segment_name(number))
    out = files.open(path)
    try:
        loaded = load_segment(out.fileno(), path, number=number)
        kept = loaded.index.head(bisect_right(loaded.index.indexes, after))
        end = kept.end if len(kept) else loaded.header.data_start
        seal = native.Seal(len(kept), end, crc32(native.encode_records(kept), 0), sealed=True,
                           sequence=loaded.seal.sequence + 1)
        # Covers the last seal, and the entries of a segment that was not sealed.
        out.sync()
        out.write_at(seal.place, [native.encode_seal(seal)])
        out.sync()
    finally:
        out.close()


def empty_segment(files: Files, folder: StrPath, number: int, limits: SegmentLimits) -> None:
    """Replace a segment's file by that of a sealed segment without entries, durably; who has it open can read it."""
    header = native.Header(number, limits)
    start = native.encode_start(header, native.Seal(0, header.data_start, 0, sealed=True))
    write_durably(files, os.path.join(folder, segment_name(number)), [start], temporary_suffix=TEMPORARY_SUFFIX)
