# SPDX-License-Identifier: Apache-2.0
"""Writing a segment file: entries are appended, made durable by `sync`, and ended by a seal.

Payloads are written before the index records that name them, and a seal says how much an fsync has covered. A seal is
written to the place of the one before the last, after an fsync that covered the last: so a crash tears one at most.

A segment is never written again once it was sealed, with one exception: a cut (`cut_segment`) writes one more seal,
with fewer entries. Nothing is overwritten by it, so a crash leaves all entries or those that were kept.
"""

from __future__ import annotations

import os
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

import attrs

from compactlib._closing import Closing
from compactlib.errors import Closed, InvalidInput
from compactlib.files.checksum import crc32
from compactlib.files.disk import Files, OutFile, StrPath, write_durably
from compactlib.files.zeros_ahead import ZerosAhead
from compactlib.raftlog.model.names import TEMPORARY_SUFFIX, segment_name
from compactlib.raftlog.model.values import SegmentLimits
from compactlib.raftlog.segment import format as native
from compactlib.raftlog.segment.index import SegmentIndex
from compactlib.raftlog.segment.load import LoadedSegment, load_segment

_FLUSH_ENTRIES = 1024
_FLUSH_BYTES = 1 << 20
_JOINED_BYTES = 4096


class SegmentWriter(Closing):
    """The one writer of a segment. Used by one thread at a time. Make one with `create` or `open`.

    Entries wait in memory until 1024 of them or 1 MiB have gathered, or `flush`, `sync` or `seal` is called; only
    `sync` and `seal` make them durable. After a `StorageError` the file holds what the last sync covered and perhaps
    more: it is opened again, or ended there with `take_back`.

    Attributes:
        index: everything appended so far, flushed or not.
        header: of the segment.
        torn_records: index records that `open` cut off.
    """

    def __init__(self, out: OutFile, loaded: LoadedSegment) -> None:
        self.index: SegmentIndex = loaded.index
        self.header: native.Header = loaded.header
        self.torn_records: int = loaded.torn_records
        self._out = out
        self._data_end = self._flushed_end = loaded.data_end
        self._flushed_entries = len(loaded.index)
        self._index_crc = loaded.index_crc
        self._payloads: list[bytes] = []
        self._records: list[bytes] = []
        # What the last sync covered, as a seal says it; an entry found when the file was opened is not part of it.
        self._synced = native.Seal(0, loaded.header.data_start, 0, sealed=False, sequence=loaded.seal.sequence)
        self._is_open = True
        start = loaded.header.data_start
        self._full_beyond = start + loaded.header.limits.max_bytes
        records_end = native.INDEX_START + len(loaded.index) * native.RECORD_BYTES
        self._ahead_of_records = ZerosAhead(native.INDEX_START, records_end, start)
        self._ahead_of_payloads = ZerosAhead(start, self._data_end, self._full_beyond)

    @classmethod
    def create(cls, files: Files, folder: StrPath, number: int, limits: SegmentLimits | None = None) -> SegmentWriter:
        """Create the empty segment `number`, durable before this returns.

        Raises:
            StorageError: the disk refused.
        """
        path = os.path.join(folder, segment_name(number))
        header = native.Header(number, SegmentLimits() if limits is None else limits)
        seal = native.Seal(0, header.data_start, 0, sealed=False)
        write_durably(files, path, [native.encode_start(header, seal)], temporary_suffix=TEMPORARY_SUFFIX)
        index = SegmentIndex.of(native.decode_records(b""))
        return cls(files.open(path), LoadedSegment(index, header, seal, header.data_start, 0))

    @classmethod
    def open(cls, files: Files, folder: StrPath, number: int) -> SegmentWriter:
        """Go on with segment `number`; a torn tail is cut back to the last whole entry, and that cut is made durable.

        Its limits are those it was created with.

        Raises:
            InvalidInput: the segment is sealed.
            CorruptData: it is damaged in what was known to be durable.
            StorageError: the disk refused.
        """
        path = os.path.join(folder, segment_name(number))
        out = files.open(path)
        try:
            loaded = load_segment(out.fileno(), path, number=number)
            if loaded.seal.sealed:
                raise InvalidInput(f"{path} is sealed and takes no more entries; append to a new segment")
            writer = cls(out, loaded)
            writer._clear_tail(loaded)
        except BaseException:
            out.close()
            raise
        return writer

    def _clear_tail(self, loaded: LoadedSegment) -> None:
        if loaded.torn_records:
            # They may look whole again once entries of the same length are put before them.
            place = native.INDEX_START + len(self.index) * native.RECORD_BYTES
            self._out.write_at(place, [bytes(loaded.torn_records * native.RECORD_BYTES)])
        if loaded.is_torn:
            self._out.truncate(max(loaded.data_end, native.INDEX_START))
        if loaded.is_torn or len(self.index):
            self._out.sync()
        if loaded.is_torn or loaded.seal.entries < len(self.index):
            self._write_seal(sealed=False)
        else:
            self._synced = self._seal_now(loaded.seal.sequence)

    @property
    def number(self) -> int:
        """The segment's number."""
        return self.header.number

    @property
    def path(self) -> str:
        """The segment's file."""
        return self._out.path

    @property
    def is_full(self) -> bool:
        """Whether the next entry belongs in a new segment: the index is used up, or the payloads exceed `max_bytes`."""
        return len(self.index) >= self.header.limits.max_entries or self._data_end > self._full_beyond

    @property
    def synced_entries(self) -> int:
        """Entries that are durable."""
        return self._synced.entries

    def unflushed(self, position: int) -> bytes | None:
        """The payload at a position of the index that only memory holds yet; `None` if the file holds it."""
        place = position - self._flushed_entries
        return self._payloads[place] if place >= 0 else None

    def append(self, index: int, term: int, payload: bytes) -> None:
        """Add one entry above all others; it is valid, and the segment is not full. Gaps are allowed.

        Raises:
            StorageError: the disk refused a flush.
            Closed: the writer is closed or sealed.
        """
        if not self._is_open:
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
        """Add entries of consecutive indexes and one term, until the segment is full; returns how many it took.

        As `append` for each, with a few calls for all.
        """
        if len(payloads) <= 1:
            # Arrays of one cost twice as much.
            for payload in payloads:
                self.append(first, term, payload)
            return len(payloads)
        if not self._is_open:
            self._refuse()
        room = self.header.limits.max_entries - len(self.index)
        fitting = payloads if len(payloads) <= room else payloads[:room]
        lengths = list(map(len, fitting))
        offsets = list(accumulate(lengths, initial=self._data_end))
        if offsets[-2] > self._full_beyond:
            # An entry fits as long as those before it do not exceed the limit.
            count = bisect_right(offsets, self._full_beyond)
            fitting, lengths, offsets = fitting[:count], lengths[:count], offsets[:count + 1]
        end, heads = offsets.pop(), list(native.head_crcs(first, term, lengths))
        # As arrays, once: what follows copies memory.
        columns = native.Columns(
            indexes=array("Q", range(first, first + len(lengths))), terms=array("Q", [term]) * len(lengths),
            offsets=array("Q", offsets), lengths=array("I", lengths),
            heads=array("I", heads), crcs=array("I", list(map(crc32, fitting, heads))))
        self._records.append(native.encode_records(columns))
        self._payloads += fitting
        self.index.extend(columns)
        self._data_end = end
        if len(self._payloads) >= _FLUSH_ENTRIES or self._data_end - self._flushed_end >= _FLUSH_BYTES:
            self.flush()
        return len(lengths)

    def flush(self) -> None:
        """Hand everything to the operating system, payloads before index records; not durable yet.

        Raises:
            StorageError: the disk refused.
        """
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

    def sync(self) -> None:
        """Make everything appended so far durable: one fsync, none if there is nothing new.

        Raises:
            StorageError: the disk refused.
            Closed: the writer is closed or sealed.
        """
        if not self._is_open:
            self._refuse()
        self.flush()
        if self._synced.entries < self._flushed_entries:
            self._ahead_of_records.follow(self._out, native.INDEX_START + self._flushed_entries * native.RECORD_BYTES)
            self._ahead_of_payloads.follow(self._out, self._flushed_end)
            self._out.sync()
            # Not synced in turn: an older seal only means that more is checked when the segment is opened.
            self._write_seal(sealed=False)

    def seal(self) -> None:
        """Make everything durable and end the segment: nothing can be appended any more.

        Raises:
            StorageError: the disk refused.
            Closed: the writer is closed or sealed.
        """
        if not self._is_open:
            self._refuse()
        self.flush()
        self._cut_zeros()
        self._out.sync()
        # From here on nothing may be appended, whatever the disk says of the rest.
        self._is_open = False
        self._write_seal(sealed=True)
        self._out.sync()

    def take_back(self) -> None:
        """End the segment with the entries that the last sync covered, durably. Needs no room.

        What was written but not synced may read back whole and be lost in a crash all the same, because a sync that
        failed promises nothing. It may have lost the last seal, too: that one is written again in its own place.

        Raises:
            StorageError: the disk refused.
        """
        self._is_open = False
        self._out.truncate(max(self._synced.data_end, native.INDEX_START))
        self._out.write_at(self._synced.place, [native.encode_seal(attrs.evolve(self._synced, sealed=True))])
        self._out.sync()

    def _cut_zeros(self) -> None:
        """A file that is left has nothing behind its payloads; what a crash leaves there is a torn tail."""
        if self._ahead_of_payloads.filled > self._flushed_end:
            self._out.truncate(self._flushed_end)

    def _write_seal(self, *, sealed: bool) -> None:
        """Write the next seal, after an fsync that has covered the last one."""
        self._synced = self._seal_now(self._synced.sequence + 1)
        self._out.write_at(self._synced.place, [native.encode_seal(attrs.evolve(self._synced, sealed=sealed))])

    def _seal_now(self, sequence: int) -> native.Seal:
        return native.Seal(self._flushed_entries, self._flushed_end, self._index_crc, False, sequence)

    def close(self) -> None:
        """Sync what can be synced and give up the file; closing again does nothing.

        Raises:
            StorageError: the disk refused the last sync; the file is closed all the same.
        """
        try:
            if self._is_open:
                self.sync()
                self._cut_zeros()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Give up the file without another write; what was not synced may be lost."""
        self._is_open = False
        self._out.close()

    def _refuse(self) -> None:
        raise Closed(f"the writer of {self.path} is closed; append to the next segment, or open this one again")

    def __repr__(self) -> str:
        return f"SegmentWriter({self.path!r}, {len(self.index)} entries, {'open' if self._is_open else 'closed'})"


def cut_segment(files: Files, folder: StrPath, number: int, after: int) -> None:
    """End a segment, sealed or not, behind its last entry up to `after`, durably: by one more seal. Needs no room.

    What lies behind the seal is ignored, and given back when the segment is next rewritten.

    Raises:
        CorruptData: the segment is damaged.
        StorageError: the disk refused; the segment has all its entries, or those up to `after`.
    """
    path = os.path.join(folder, segment_name(number))
    out = files.open(path)
    try:
        loaded = load_segment(out.fileno(), path, number=number)
        kept = loaded.index.head(bisect_right(loaded.index.columns.indexes, after))
        end = kept.columns.offsets[-1] + kept.columns.lengths[-1] if len(kept) else loaded.header.data_start
        seal = native.Seal(len(kept), end, crc32(native.encode_records(kept.columns), 0), sealed=True,
                           sequence=loaded.seal.sequence + 1)
        # Covers the last seal, and the entries of a segment that was not sealed.
        out.sync()
        out.write_at(seal.place, [native.encode_seal(seal)])
        out.sync()
    finally:
        out.close()
