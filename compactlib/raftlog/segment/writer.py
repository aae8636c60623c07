# SPDX-License-Identifier: Apache-2.0
"""Appending to the newest segment: payload first, then the index record, durable on `sync`."""

from __future__ import annotations

import os
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

import attrs

from compactlib._closing import Closing
from compactlib.errors import Busy, Closed, InvalidInput
from compactlib.files.checksum import crc32
from compactlib.files.disk import Files, OutFile, StrPath, write_durably
from compactlib.files.zeros_ahead import ZerosAhead
from compactlib.raftlog.arguments import bytes_of, whole
from compactlib.raftlog.model.names import TEMPORARY_SUFFIX, segment_name
from compactlib.raftlog.model.values import MAX_INDEX, SegmentLimits
from compactlib.raftlog.segment import format as native
from compactlib.raftlog.segment.index import SegmentIndex
from compactlib.raftlog.segment.load import TornTail, load_segment

if TYPE_CHECKING:
    from typing_extensions import Buffer

_FLUSH_ENTRIES = 1024
_FLUSH_BYTES = 1 << 20
_JOINED_BYTES = 4096


class SegmentWriter(Closing):
    """The one writer of a segment that is not full. Used by one thread at a time.

    Entries wait in memory until 1024 of them or 1 MiB have gathered, or `flush`, `sync` or `seal` is called; only
    `sync` and `seal` make them durable. After an error the writer refuses to go on, since it cannot know what the disk
    holds: open the segment again.

    Make one with `create` or `open`.
    """

    def __init__(self, out: OutFile, header: native.Header, index: SegmentIndex, *, data_end: int,
                 index_crc: int, torn_tail: TornTail | None, seal_sequence: int = 0) -> None:
        self._out = out
        self._header = header
        self._index = index
        self._data_end = data_end
        self._flushed_end = data_end
        self._flushed_entries = index.entries
        self._index_crc = index_crc
        self._torn_tail = torn_tail
        self._payloads: list[bytes] = []
        self._records: list[bytes] = []
        self._record_count = 0
        # What the last sync covered, as a seal would say it; an entry found when the file was opened is not part of it.
        self._synced = native.Seal(0, header.data_start, 0, sealed=False, ascending=True)
        # The seal written last, and the last one known to be durable, which is never written over.
        self._sequence = self._proven = seal_sequence
        self._state = "open"
        self._most_entries = header.limits.max_entries
        self._full_beyond = header.data_start + header.limits.max_bytes
        records_end = native.INDEX_START + index.entries * native.RECORD_BYTES
        self._ahead_of_records = ZerosAhead(native.INDEX_START, records_end, header.data_start)
        self._ahead_of_payloads = ZerosAhead(header.data_start, data_end, self._full_beyond)

    @classmethod
    def create(cls, files: Files, folder: StrPath, number: int, limits: SegmentLimits | None = None) -> SegmentWriter:
        """Create the empty segment `number`, durable before this returns.

        Raises:
            Busy: the file exists.
            StorageError: the disk refused; nothing was created.
        """
        path = os.path.join(folder, segment_name(number))
        if os.path.lexists(path):
            raise Busy(f"{path} exists already; segments are created once, use the next number")
        header = native.Header(number, SegmentLimits() if limits is None else limits)
        seal = native.Seal(0, header.data_start, 0, sealed=False, ascending=True)
        write_durably(files, path, [native.encode_start(header, seal)], temporary_suffix=TEMPORARY_SUFFIX)
        return cls(files.open(path), header, SegmentIndex.empty(), data_end=header.data_start, index_crc=0,
                   torn_tail=None)

    @classmethod
    def open(cls, files: Files, folder: StrPath, number: int) -> SegmentWriter:
        """Go on with segment `number`; a torn tail is cut back to the last whole entry, and that cut is made durable.

        Its limits are those it was created with.

        Raises:
            InvalidInput: the segment is sealed, or not in the native format.
            CorruptData: it is damaged in what was known to be durable.
            StorageError: the disk refused.
        """
        path = os.path.join(folder, segment_name(number))
        out = files.open(path)
        try:
            loaded = load_segment(out.fileno(), path, number=number)
            if loaded.header is None or loaded.sealed:
                raise InvalidInput(f"{path} is {'sealed' if loaded.sealed else 'of format ' + loaded.format} and takes "
                                   f"no more entries; append to a new segment")
            writer = cls(out, loaded.header, loaded.index, data_end=loaded.data_end, index_crc=loaded.index_crc,
                         torn_tail=loaded.torn_tail, seal_sequence=loaded.seal_sequence)
            writer._clear_tail(loaded.torn_tail, loaded.durable_entries)
        except BaseException:
            out.close()
            raise
        return writer

    @classmethod
    def reopen(cls, files: Files, folder: StrPath, failed: SegmentWriter) -> SegmentWriter:
        """Go on after `failed` met an error, from what it had made durable; all that came later is taken back.

        What was written but not synced may read back whole and be lost in a crash all the same, because a sync that
        failed promises nothing: so it is removed, durably, and so is a seal whose sync failed.

        Raises:
            StorageError: the disk refused; call again.
        """
        failed.abandon()
        synced = attrs.evolve(failed._synced, sequence=failed._next_sequence())
        out = files.open(failed.path)
        try:
            out.truncate(max(synced.data_end, native.INDEX_START))
            behind = (failed._index_records - synced.entries) * native.RECORD_BYTES
            out.write_at(native.INDEX_START + synced.entries * native.RECORD_BYTES, [bytes(behind)])
            out.write_at(synced.place, [native.encode_seal(synced)])
            out.sync()
        finally:
            out.close()
        return cls.open(files, folder, failed.number)

    def _clear_tail(self, torn: TornTail | None, sealed_entries: int) -> None:
        if torn is not None:
            # Records behind the cut may look whole again once entries of the same length are put before them.
            if torn.records:
                place = native.INDEX_START + torn.entries * native.RECORD_BYTES
                self._out.write_at(place, [bytes(torn.records * native.RECORD_BYTES)])
            self._out.truncate(max(torn.data_end, native.INDEX_START))
        if torn is not None or self._index.entries:
            self._sync_out()
        if torn is not None or sealed_entries < self._index.entries:
            self._write_seal(sealed=False)
        else:
            self._synced = self._new_seal(sealed=False, sequence=self._sequence)

    @property
    def number(self) -> int:
        """The segment's number."""
        return self._header.number

    @property
    def path(self) -> str:
        """The segment's file."""
        return self._out.path

    @property
    def limits(self) -> SegmentLimits:
        """How large it may become."""
        return self._header.limits

    @property
    def index(self) -> SegmentIndex:
        """Everything appended so far, flushed or not."""
        return self._index

    @property
    def torn_tail(self) -> TornTail | None:
        """What `open` cut off, if anything."""
        return self._torn_tail

    @property
    def is_full(self) -> bool:
        """Whether the next entry belongs in a new segment: the index is used up, or the payloads exceed `max_bytes`."""
        return self._index.entries >= self._most_entries or self._data_end > self._full_beyond

    @property
    def unsynced_entries(self) -> int:
        """Entries that are not durable yet, in memory or only written."""
        return self._index_records - self._synced.entries

    @property
    def _index_records(self) -> int:
        return self._flushed_entries + self._record_count

    def append(self, index: int, term: int, payload: Buffer) -> None:
        """Add one entry; one with the same or a lower index takes everything from there on back (overwrite).

        Gaps are allowed.

        Raises:
            InvalidInput: index or term is no 64-bit number, or the payload is not bytes, or exceeds 4 GiB - 1.
            Busy: the segment is full; seal it and create the next.
            Closed: the writer is closed, sealed, or has failed.
        """
        if self._state != "open":
            self._refuse()
        payload = payload if isinstance(payload, bytes) else bytes_of(payload)
        length = len(payload)
        if type(index) is not int or type(term) is not int:
            index, term = whole("the index", index), whole("the term", term)
        if not 0 <= index <= MAX_INDEX or not 0 <= term <= MAX_INDEX or length > native.MAX_PAYLOAD_BYTES:
            raise InvalidInput(f"entry {index} in term {term} with {length} bytes: index and term are 0 to "
                               f"{MAX_INDEX}, a payload at most {native.MAX_PAYLOAD_BYTES} bytes")
        if self._index.entries >= self._most_entries or self._data_end > self._full_beyond:
            self._refuse_more()
        head = native.head_crc(index, term, length)
        crc = crc32(payload, head)
        offset = self._data_end
        record = native.encode_record(index, term, length, head, offset, crc)
        # An interrupt in between leaves it half done.
        self._state = "failed"
        self._records.append(record)
        self._record_count += 1
        self._payloads.append(payload)
        self._index.append(index, term, offset, length, head, crc)
        self._data_end = offset + length
        self._state = "open"
        if self._record_count >= _FLUSH_ENTRIES or self._data_end - self._flushed_end >= _FLUSH_BYTES:
            self.flush()

    def append_run(self, first: int, term: int, payloads: Sequence[bytes]) -> int:
        """Add entries of consecutive indexes and one term, until the segment is full; returns how many it took.

        As `append` for each, with a few calls for all.

        Raises:
            InvalidInput, Busy, Closed: as `append`; nothing was added.
        """
        if self._state != "open":
            self._refuse()
        if len(payloads) <= 1:
            # Arrays of one cost twice as much.
            for payload in payloads:
                self.append(first, term, payload)
            return len(payloads)
        if self.is_full:
            self._refuse_more()
        room = self._most_entries - self._index.entries
        fitting = payloads if len(payloads) <= room else payloads[:room]
        lengths = list(map(len, fitting))
        offsets = list(accumulate(lengths, initial=self._data_end))
        if offsets[-2] > self._full_beyond:
            # An entry fits as long as those before it do not exceed the limit.
            count = bisect_right(offsets, self._full_beyond)
            fitting, lengths, offsets = fitting[:count], lengths[:count], offsets[:count + 1]
        if not 0 <= first <= MAX_INDEX + 1 - len(lengths) or not 0 <= term <= MAX_INDEX or (
                max(lengths) > native.MAX_PAYLOAD_BYTES):
            raise InvalidInput(f"entries {first} to {first + len(lengths) - 1} in term {term}: index and term are 0 to "
                               f"{MAX_INDEX}, a payload at most {native.MAX_PAYLOAD_BYTES} bytes")
        end, heads = offsets.pop(), list(native.head_crcs(first, term, lengths))
        # As arrays, once: what follows copies memory.
        columns = native.Columns(
            indexes=array("Q", range(first, first + len(lengths))), terms=array("Q", [term]) * len(lengths),
            offsets=array("Q", offsets), lengths=array("I", lengths),
            heads=array("I", heads), crcs=array("I", list(map(crc32, fitting, heads))))
        records = native.encode_records(columns)
        self._state = "failed"
        self._records.append(records)
        self._record_count += len(lengths)
        self._payloads += fitting
        self._index.extend(columns)
        self._data_end = end
        self._state = "open"
        if self._record_count >= _FLUSH_ENTRIES or self._data_end - self._flushed_end >= _FLUSH_BYTES:
            self.flush()
        return len(lengths)

    def _refuse_more(self) -> None:
        raise Busy(f"{self.path} is full ({self._index.entries} entries); seal it and append to segment "
                   f"{self.number + 1}")

    def flush(self) -> None:
        """Hand everything to the operating system, payloads before index records; not durable yet.

        Raises:
            StorageError: the disk refused; the writer is done for, nothing durable is lost.
        """
        if not self._records:
            return
        if self._state != "open":
            self._refuse()
        records = b"".join(self._records)
        self._state = "failed"
        # Copying small pieces together costs less than the system takes to gather them.
        small = self._data_end - self._flushed_end < len(self._payloads) * _JOINED_BYTES
        self._out.write_at(self._flushed_end, [b"".join(self._payloads)] if small else self._payloads)
        self._out.write_at(native.INDEX_START + self._flushed_entries * native.RECORD_BYTES, [records])
        self._index_crc = crc32(records, self._index_crc)
        self._flushed_entries += self._record_count
        self._flushed_end = self._data_end
        self._record_count = 0
        self._records.clear()
        self._payloads.clear()
        self._state = "open"

    def sync(self) -> None:
        """Make everything appended so far durable: one fsync, none if there is nothing new.

        Raises:
            StorageError: the disk refused; the writer is done for.
            Closed: the writer is closed, sealed, or has failed.
        """
        if self._state != "open":
            self._refuse()
        self.flush()
        if self._synced.entries < self._flushed_entries:
            self._state = "failed"
            self._ahead_of_records.follow(self._out, native.INDEX_START + self._flushed_entries * native.RECORD_BYTES)
            self._ahead_of_payloads.follow(self._out, self._flushed_end)
            self._sync_out()
            # Not synced in turn: an older seal only means that more is checked when the segment is opened.
            self._write_seal(sealed=False)
            self._state = "open"

    def seal(self) -> None:
        """Make everything durable and end the segment: nothing can be appended any more.

        Raises:
            StorageError: the disk refused; the writer is done for.
            Closed: the writer is closed or has failed.
        """
        if self._state == "sealed":
            return
        self.sync()
        self._state = "failed"
        self._cut_zeros()
        self._write_seal(sealed=True)
        self._sync_out()
        self._state = "sealed"

    def _cut_zeros(self) -> None:
        """A file that is left has nothing behind its payloads; what a crash leaves there is a torn tail."""
        if self._ahead_of_payloads.filled > self._flushed_end:
            self._out.truncate(self._flushed_end)

    def _sync_out(self) -> None:
        self._out.sync()
        self._proven = self._sequence

    def _next_sequence(self) -> int:
        """Of the next seal: its place is not that of the last one known to be durable, lest a crash damage both."""
        following = self._sequence + 1
        return following + ((following - self._proven) % native.SEALS == 0)

    def _write_seal(self, *, sealed: bool) -> None:
        self._sequence = self._next_sequence()
        seal = self._new_seal(sealed=sealed, sequence=self._sequence)
        self._synced = attrs.evolve(seal, sealed=False) if sealed else seal
        self._out.write_at(seal.place, [native.encode_seal(seal)])

    def _new_seal(self, *, sealed: bool, sequence: int) -> native.Seal:
        ascending = len(self._index) == self._index.entries
        return native.Seal(self._flushed_entries, self._flushed_end, self._index_crc, sealed, ascending, sequence)

    def close(self) -> None:
        """Sync what can be synced and give up the file; closing again does nothing.

        Raises:
            StorageError: the disk refused the last sync; the file is closed all the same.
        """
        if self._state == "closed":
            return
        try:
            if self._state == "open":
                self.sync()
                self._cut_zeros()
        finally:
            self._state = "closed"
            self._out.close()

    def abandon(self) -> None:
        """Give up the file without another write; what was not synced may be lost."""
        self._state = "closed"
        self._out.close()

    def _refuse(self) -> None:
        advice = {"failed": "an earlier write failed; open the log again", "sealed": "append to the next segment"}
        raise Closed(f"the writer of {self.path} is {self._state}: {advice.get(self._state, 'open the segment again')}")

    def __repr__(self) -> str:
        return f"SegmentWriter({self.path!r}, {self._index.entries} entries, {self._state})"
