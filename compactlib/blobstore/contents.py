# SPDX-License-Identifier: Apache-2.0
"""The segments of the log with their index: one immutable value, replaced as a whole by each change of the log.

Readers use the current contents and never wait. `LogContents.frozen` excludes later appends.

Views and compactions pass over the records blob by blob: the parts of the index are sorted by the hash of the id. The
space of hashes is cut into slices, and in each slice the parts are merged, so that the records of a blob are
neighbours. No search is needed, and the slice bounds the memory.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import chain, groupby
from operator import attrgetter

import attrs

from compactlib.blobstore.directory import IndexDirectory
from compactlib.blobstore.index import IndexPart, OpenIndex, hash_id, since_put
from compactlib.blobstore.names import SegmentName
from compactlib.blobstore.records import IndexEntry, RecordKind
from compactlib.blobstore.segment import SEGMENT_HEADER_BYTES
from compactlib.errors import AuditFailed

_BY_SEQUENCE, _BY_FIRST_SEQUENCE, _BY_NAME, _BY_ID = map(attrgetter, ("sequence", "first_sequence", "name", "id"))
_PUT = int(RecordKind.PUT)
_BY_ID_AND_SEQUENCE = attrgetter("id", "sequence")
_SLICE_ENTRIES = 10_000
"""About how many entries a slice of the index has. A call in C takes half a millisecond for as many."""
_ROW_BITS = _PART_BITS = 32
_ROW_MASK = _PART_MASK = (1 << 32) - 1
_HASH_BITS = 64


@attrs.frozen(eq=False)
class LogSegment:
    """A log segment and its index."""

    name: SegmentName
    parts: tuple[IndexPart, ...] = ()  # the sealed parts of its index, ascending and contiguous
    open: OpenIndex | None = None  # the index of its last records; only the active segment has one
    is_lost: bool = False  # whether its log file is missing: every record that the index names is damaged

    @property
    def sealed_end(self) -> int:
        """The offset after the last record in a sealed part."""
        return self.parts[-1].end if self.parts else SEGMENT_HEADER_BYTES

    @property
    def end(self) -> int:
        """The offset after its last record; the size of the header if it is empty."""
        return self.sealed_end if self.open is None else self.open.end

    @property
    def records(self) -> int:
        """The number of its index entries."""
        return sum(map(len, self.parts)) + (0 if self.open is None else len(self.open.entries))

    @property
    def last_sequence(self) -> int:
        """The largest number of its records, 0 if it is empty."""
        return max([0 if self.open is None else self.open.last_sequence, *(part.last_sequence for part in self.parts)])

    @property
    def last_modified_ms(self) -> int:
        """The time of its newest operation, 0 if it is empty."""
        return max(chain((part.last_modified_ms for part in self.parts if len(part)),
                         () if self.open is None else (entry.op_time_ms for entry in self.open.entries)), default=0)

    def entries(self) -> Iterator[IndexEntry]:
        """Yield its index entries in the order of their offsets."""
        return chain(chain.from_iterable(part.entries() for part in self.parts),
                     () if self.open is None else self.open.entries)


@attrs.frozen(eq=False)
class LogContents:
    """Every log segment with its index."""

    key: bytes  # the store's incarnation, the key of the hash of ids
    segments: tuple[LogSegment, ...]  # in log order; the last segment is the active one
    directory: IndexDirectory = attrs.field(repr=False)  # finds the sealed parts that hold a hash

    @classmethod
    def of(cls, key: bytes, segments: Iterable[LogSegment], before: IndexDirectory | None = None) -> LogContents:
        """Return the contents of these segments; the directory is made from an earlier one. O(parts)."""
        ordered = tuple(sorted(segments, key=_BY_NAME))
        parts = chain.from_iterable(segment.parts for segment in ordered)
        return cls(key, ordered, (before or IndexDirectory()).updated(part for part in parts if part.rows))

    @property
    def active(self) -> LogSegment:
        """The active segment, to which records are appended."""
        return self.segments[-1]

    @property
    def open(self) -> OpenIndex:
        """The index of the last records of the active segment."""
        found = self.segments[-1].open
        return OpenIndex(self.active.name, self.active.sealed_end) if found is None else found

    @property
    def last_sequence(self) -> int:
        """The number of the newest record. O(segments)."""
        return max(segment.last_sequence for segment in self.segments)

    def segment(self, name: SegmentName) -> LogSegment | None:
        """Return the segment of this name; `None` if it is not in the log. O(log n)."""
        place = bisect_left(self.segments, name, key=_BY_NAME)
        found = self.segments[place] if place < len(self.segments) else None
        return found if found is not None and found.name == name else None

    def has(self, name: SegmentName) -> bool:
        """Whether a segment of this name is in the log. O(log n)."""
        return self.segment(name) is not None

    def used_bytes(self, segment_bytes: int) -> int:
        """Return the used capacity: every segment before the active one counts whole, the active one up to its end."""
        return (len(self.segments) - 1) * segment_bytes + self.active.end

    def eligible(self, journal_entries: int, log_segments: int) -> tuple[SegmentName, ...]:
        """Return the segments that may be compacted: all but the active segment and the segments of the journal.

        The journal has so many newest entries, in at most a quarter of the segments that the log may have.
        """
        kept = 1
        records = self.active.records
        # Outputs of a compaction hold old records, and are not part of the journal.
        while records < journal_entries and kept < log_segments // 4 and kept < len(self.segments) and (
                self.segments[-1 - kept].name.generation == 0):
            records += self.segments[-1 - kept].records
            kept += 1
        return tuple(segment.name for segment in self.segments[:-kept] if not segment.is_lost)

    # -- the records of a blob

    def find(self, blob_id: bytes) -> list[IndexEntry]:
        """Return the entries of an id that decide its state, ascending by sequence: its newest PUT, its newest DELETE
        or UNDELETE, and each TTL_UPDATE since that PUT; earlier DELETEs and UNDELETEs since the PUT may be included.

        O(log n) for each part that holds the id.
        """
        open_index = self.segments[-1].open
        found = [] if open_index is None else since_put(open_index.newest_first(blob_id))
        if not found or found[-1].kind != RecordKind.PUT:
            found += self._since_put(blob_id)
        found.reverse()
        return found

    def _since_put(self, blob_id: bytes) -> list[IndexEntry]:
        """Return the entries of an id in sealed parts, descending by sequence, back to its newest PUT."""
        entries: list[IndexEntry] = []
        put, hashed = -1, hash_id(blob_id, self.key)
        # After compactions the sequences of parts may overlap.
        for group in self.directory.owners(hashed):
            for part in group:
                if part.last_sequence < put:
                    break
                since = since_put(part.newest_first(blob_id, hashed))
                entries += since
                if since and since[-1].kind == _PUT:
                    put = max(put, since[-1].sequence)
        if len(entries) > 1:
            entries = sorted((entry for entry in entries if entry.sequence >= put), key=_BY_SEQUENCE, reverse=True)
        return entries

    def history(self, blob_id: bytes) -> list[IndexEntry]:
        """Return every entry of an id, ascending by sequence."""
        hashed = hash_id(blob_id, self.key)
        found = [entry for part in chain.from_iterable(self.directory.owners(hashed))
                 for entry in part.newest_first(blob_id, hashed)]
        return sorted([*found, *self.open.newest_first(blob_id)], key=_BY_SEQUENCE)

    # -- all records

    @cached_property
    def all_parts(self) -> tuple[IndexPart, ...]:
        """Every part of the index that has entries, a sealed copy of the open index included. For frozen contents."""
        sealed = tuple(part for segment in self.segments for part in segment.parts if part.rows)
        return (*sealed, self.open.sealed(self.key)) if self.open.entries else sealed

    # -- changes

    def with_segments(self, gone: Collection[SegmentName], new: Iterable[LogSegment]) -> LogContents:
        """Return the contents without some segments and with new ones. O(segments)."""
        return LogContents.of(self.key, [*(each for each in self.segments if each.name not in gone), *new],
                              self.directory)

    def sealed_open(self, part: IndexPart) -> LogContents:
        """Return the contents after the open index was sealed as a part; the new open index begins at its end."""
        active = self.active
        grown = LogSegment(active.name, (*active.parts, part), OpenIndex(active.name, part.end))
        return LogContents(self.key, (*self.segments[:-1], grown), self.directory.with_part(part))

    def with_next(self, name: SegmentName) -> LogContents:
        """Return the contents after a new active segment was created; the open index has to be empty."""
        assert not self.open.entries
        begun = LogSegment(name, open=OpenIndex(name, SEGMENT_HEADER_BYTES))
        return LogContents(self.key, (*self.segments[:-1], attrs.evolve(self.active, open=None), begun), self.directory)

    def frozen(self) -> LogContents:
        """Return the contents without later appends."""
        active = self.active
        if active.open is None:
            return self
        return LogContents(self.key, (*self.segments[:-1], attrs.evolve(active, open=active.open.frozen())),
                           self.directory)

    def audit(self) -> None:
        """Check that each index covers its segment, and that the directory has every part."""
        for segment in self.segments:
            at = SEGMENT_HEADER_BYTES
            stretches: list[IndexPart | OpenIndex] = [*segment.parts, *filter(None, [segment.open])]
            for each in stretches:
                if (each.segment, each.start) != (segment.name, at):
                    raise AuditFailed(f"{each} does not continue segment {segment.name} at {at}")
                at = each.end
        parts = {part for segment in self.segments for part in segment.parts if len(part)}
        if (held := set(self.directory.parts())) != parts:
            raise AuditFailed(f"the directory covers {len(held)} parts, and the log has {len(parts)}")


def records_after(snapshot: LogContents, sequence: int) -> Iterator[IndexEntry]:
    """Yield the index entries newer than a record, ascending by sequence, after any compactions.

    A part is read when its first record is reached: in most logs one part after the other.
    """
    waiting = sorted((part for segment in snapshot.segments for part in segment.parts if part.last_sequence > sequence),
                     key=_BY_FIRST_SEQUENCE, reverse=True)
    heads: list[tuple[int, int, Iterator[IndexEntry], IndexEntry]] = []

    def push(number: int, entries: Iterator[IndexEntry]) -> None:
        entry = next(entries, None)
        if entry is not None:
            heapq.heappush(heads, (entry.sequence, number, entries, entry))

    while waiting or heads:
        while waiting and (not heads or waiting[-1].first_sequence <= heads[0][0]):
            part = waiting.pop()
            push(len(waiting), _newer_in(part, sequence))
        if heads:
            _, number, rest, entry = heapq.heappop(heads)
            yield entry
            push(number, rest)
    # The records of the open index are newer than every sealed part.
    entries = snapshot.open.entries
    yield from entries[bisect_right(entries, sequence, key=_BY_SEQUENCE):]


def _newer_in(part: IndexPart, sequence: int) -> Iterator[IndexEntry]:
    if part.ascends:
        return part.entries(bisect_right(part.sequences, sequence))
    rows = [row for row in range(len(part)) if part.sequences[row] > sequence]
    return map(part.entry, sorted(rows, key=part.sequences.__getitem__))


def histories_in(parts: Sequence[IndexPart], of: Collection[SegmentName] | None = None) -> Iterator[list[IndexEntry]]:
    """Yield the records of each blob, ascending by sequence; blobs in no particular order. Memory is bounded.

    Given some segments, only of blobs with a record in one of them, and perhaps of blobs with the hash of such a blob.
    """
    return chain.from_iterable(map(histories_of, rows_by_hash(parts, of)))


def histories_of(rows: Iterable[tuple[IndexPart, int]]) -> Iterable[list[IndexEntry]]:
    """Return the records of each blob with a hash, given the rows of the hash."""
    entries = [part.entry(row) for part, row in rows]
    if len(entries) == 1:
        return (entries,)
    entries.sort(key=_BY_ID_AND_SEQUENCE)
    return [list(group) for _, group in groupby(entries, _BY_ID)]


def rows_by_hash(parts: Sequence[IndexPart], of: Collection[SegmentName] | None = None,
                 ) -> Iterator[list[tuple[IndexPart, int]]]:
    """Yield the rows of each hash; `of` as in `histories_in`."""
    wanted = [of is None or part.segment in of for part in parts]
    slices = max(-(-sum(len(part.rows) for part, is_wanted in zip(parts, wanted, strict=True) if is_wanted)
                   // _SLICE_ENTRIES), 1)
    ends = [0] * len(parts)
    for number in range(1, slices + 1):
        bound, starts = (1 << _HASH_BITS) * number // slices, ends
        ends = [len(part.rows) if number == slices else bisect_left(part.hashes, bound, start)
                for part, start in zip(parts, starts, strict=True)]
        own = set[int]()
        if of is not None:
            own.update(*(part.hashes[start:end] for part, start, end, is_wanted in
                         zip(parts, starts, ends, wanted, strict=True) if is_wanted))
        merged: list[int] = []
        for place, part in enumerate(parts):
            tail = place << _ROW_BITS
            # In pieces: the slice may have many more entries of segments that are not wanted.
            for first in range(starts[place], ends[place], _SLICE_ENTRIES):
                last = min(first + _SLICE_ENTRIES, ends[place])
                hashes = part.hashes[first:last]
                if not wanted[place] and own.isdisjoint(hashes):
                    continue
                merged.extend((hashed << _PART_BITS + _ROW_BITS) | tail | row for hashed, row in zip(
                    hashes, part.rows[first:last], strict=True) if wanted[place] or hashed in own)
        # The sort merges the pieces, which are sorted.
        merged.sort()
        start, count = 0, len(merged)
        while start < count:
            hashed, end = merged[start] >> _PART_BITS + _ROW_BITS, start + 1
            while end < count and merged[end] >> _PART_BITS + _ROW_BITS == hashed:
                end += 1
            yield [(parts[each >> _ROW_BITS & _PART_MASK], each & _ROW_MASK) for each in merged[start:end]]
            start = end
