# SPDX-License-Identifier: Apache-2.0
"""Which segments a store answers from: one immutable value, replaced as a whole by each change of the log."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import chain
from operator import attrgetter

import attrs

from compactlib.blobstore.columns import hash_id
from compactlib.blobstore.directory import IndexDirectory
from compactlib.blobstore.index_segment import ENDS_OR_REVIVES, OFTEN, IndexSegment
from compactlib.blobstore.names import SegmentName
from compactlib.blobstore.open_index import OpenIndex
from compactlib.blobstore.segment import SEGMENT_HEADER_BYTES
from compactlib.blobstore.values import IndexEntry, RecordFlag, RecordKind
from compactlib.errors import AuditFailed

_BY_SEQUENCE = attrgetter("sequence")
_BY_LAST_SEQUENCE = attrgetter("last_sequence")
_BY_NAME, _BY_FILLED, _BY_INFO = attrgetter("name"), attrgetter("filled"), attrgetter("info")


@attrs.frozen(kw_only=True)
class SegmentInfo:
    """One log segment of a snapshot.

    Attributes:
        name: its name.
        end: offset behind its last record; the header's size if it is empty.
        records: how many index entries it has.
        last_modified_ms: `op_time_ms` of its newest record, 0 if it is empty.
        first_sequence: the smallest sequence of its records, 0 if it is empty.
        last_sequence: the largest, 0 if it is empty.
    """

    name: SegmentName
    end: int
    records: int
    last_modified_ms: int
    first_sequence: int
    last_sequence: int


@attrs.frozen
class LogSegment:
    """A log segment and the parts of its index.

    Attributes:
        name: its name.
        end: offset behind its last record, as far as it is in a part of the index.
        index: the parts, ascending.
        is_lost: whether its log file is not there: what the index knows of it is damaged.
    """

    name: SegmentName
    end: int
    index: tuple[IndexSegment, ...] = ()
    is_lost: bool = False

    def without_contents(self, offsets: Collection[int], key: bytes) -> LogSegment:
        """Return the segment, its index saying of the records at these offsets that their contents are gone.

        Args:
            offsets: where the records begin.
            key: the store's incarnation.
        """
        def marked(part: IndexSegment) -> IndexSegment:
            if not any(part.start <= offset < part.end for offset in offsets):
                return part
            entries = [entry._replace(flags=entry.flags | RecordFlag.ERASED) if entry.offset in offsets else entry
                       for entry in part.entries()]
            return IndexSegment.of_entries(part.segment, entries, part.start, part.end, key)

        return attrs.evolve(self, index=tuple(map(marked, self.index))) if offsets else self

    @cached_property
    def filled(self) -> tuple[IndexSegment, ...]:
        """The parts that hold anything."""
        return tuple(index for index in self.index if len(index))

    @cached_property
    def info(self) -> SegmentInfo:
        """What a snapshot says of it."""
        filled = self.filled
        return SegmentInfo(
            name=self.name, end=self.end, records=sum(map(len, filled)),
            last_modified_ms=max((index.last_modified_ms for index in filled), default=0),
            first_sequence=min((index.first_sequence for index in filled), default=0),
            last_sequence=max(map(_BY_LAST_SEQUENCE, filled), default=0))


@attrs.frozen(eq=False)
class LogContents:
    """Every log segment with its sealed index, and the open index of the last one.

    Attributes:
        key: the store's incarnation, from which ids are hashed.
        segments: in log order; the last is the active one.
        open: the index of what was appended to the active segment last.
        directory: leads from a hash to the sealed index segments that hold it.
        last_sequence: no record of a sealed index segment is newer.
    """

    key: bytes
    segments: tuple[LogSegment, ...]
    open: OpenIndex
    directory: IndexDirectory = attrs.field(repr=False)
    last_sequence: int

    @classmethod
    def of(cls, key: bytes, segments: Sequence[LogSegment], opened: OpenIndex,
           before: IndexDirectory | None = None) -> LogContents:
        """The contents of these segments, which may share much with the directory of others. O(index segments)."""
        indexes = chain.from_iterable(map(_BY_FILLED, segments))
        directory = (IndexDirectory() if before is None else before).updated(indexes)
        newest = max((each.info.last_sequence for each in segments), default=0)
        return cls(key, tuple(segments), opened, directory, newest)

    def _with(self, opened: OpenIndex, gone: Sequence[LogSegment], new: Sequence[LogSegment]) -> LogContents:
        """The contents with some segments instead of others. Copies the list of all; the rest is O(gone and new)."""
        segments = list(self.segments)
        for segment in gone:
            del segments[bisect_left(segments, segment.name, key=_BY_NAME)]
        for segment in new:
            insort(segments, segment, key=_BY_NAME)
        before, after = (dict.fromkeys(chain.from_iterable(map(_BY_FILLED, each))) for each in (gone, new))
        directory = self.directory.changed(before.keys() - after.keys(), [each for each in after if each not in before])
        newest = max((each.info.last_sequence for each in new), default=0)
        return LogContents(self.key, tuple(segments), opened, directory, max(self.last_sequence, newest))

    @cached_property
    def sealed(self) -> tuple[IndexSegment, ...]:
        """All sealed index segments that hold anything, in log order."""
        return tuple(chain.from_iterable(map(_BY_FILLED, self.segments)))

    @cached_property
    def infos(self) -> tuple[SegmentInfo, ...]:
        """What a snapshot says of each segment, without the open index."""
        return tuple(map(_BY_INFO, self.segments))

    def segment(self, name: SegmentName) -> LogSegment | None:
        """The segment of this name, if it is there. O(log n)."""
        place = bisect_left(self.segments, name, key=_BY_NAME)
        found = self.segments[place] if place < len(self.segments) else None
        return found if found is not None and found.name == name else None

    @property
    def active(self) -> LogSegment:
        """The segment that is appended to."""
        return self.segments[-1]

    def find(self, blob_id: bytes) -> list[IndexEntry]:
        """The entries of an id that say how it stands, ascending by sequence: its newest PUT, its newest DELETE or
        UNDELETE, and each TTL_UPDATE since that PUT; some of the DELETEs and UNDELETEs between may be among them.

        O(log n) for each index segment that holds the id.
        """
        found = self.open.since_put(blob_id)
        if not found or found[-1].kind != RecordKind.PUT:
            self._add_sealed(found, blob_id)
        found.reverse()
        return found

    def _add_sealed(self, found: list[IndexEntry], blob_id: bytes) -> None:
        """Add the entries of an id in the sealed index segments, back to its newest PUT, descending by sequence."""
        hashed = hash_id(blob_id, self.key)
        owners = self.directory.owners(hashed)
        if len(owners) == 1:
            found += owners[0].since_put(blob_id, hashed)
            return
        entries: list[IndexEntry] = []
        put = -1
        # Compactions leave index segments whose records are older and newer than another's.
        for index in sorted(owners, key=_BY_LAST_SEQUENCE, reverse=True):
            if index.last_sequence < put:
                break
            since = index.since_put(blob_id, hashed)
            entries += since
            if since and since[-1].kind == RecordKind.PUT:
                put = max(put, since[-1].sequence)
        found += sorted((entry for entry in entries if entry.sequence >= put), key=_BY_SEQUENCE, reverse=True)

    def history(self, blob_id: bytes, open_rows: int) -> list[IndexEntry]:
        """Every entry of an id, ascending by sequence; of the open index, only those of the first `open_rows`."""
        return [*self._sealed_entries(blob_id), *self._open_entries(blob_id, open_rows)]

    def histories_of(self, index: IndexSegment, start: int, open_rows: int, check: Callable[[], None],
                     outdone: dict[bytes, tuple[int, int]]) -> Iterator[tuple[IndexEntry, list[IndexEntry]]]:
        """The entries of a sealed index segment from offset `start` on, each with the `history` of its id, or with none
        if `outdone`, which takes the ids of many records, has a newer PUT or newer deciding record of it."""
        shared = self.directory.shared(index, check)
        first = bisect_left(index.columns.offsets, start)
        for row, entry in enumerate(index.columns.entries(first), first):
            if outdone and entry.sequence < outdone.get(entry.id, (0, 0))[entry.kind in ENDS_OR_REVIVES]:
                yield entry, []
                continue
            history = [entry]
            if row in shared:
                hashed, owners = shared[row]
                history += [owner.columns.entry(other) for owner in owners
                            for other in owner.rows_of(entry.id, hashed) if owner is not index or other != row]
                history.sort(key=_BY_SEQUENCE)
            if open_rows:
                history += self._open_entries(entry.id, open_rows)
            if len(history) > OFTEN:
                outdone[entry.id] = (
                    max((each.sequence for each in history if each.kind == RecordKind.PUT), default=0),
                    max((each.sequence for each in history if each.kind != RecordKind.TTL_UPDATE), default=0))
            yield entry, history

    def _open_entries(self, blob_id: bytes, open_rows: int) -> list[IndexEntry]:
        return [self.open.columns.entry(row) for row in self.open.rows_of(blob_id) if row < open_rows]

    def _sealed_entries(self, blob_id: bytes) -> list[IndexEntry]:
        hashed = hash_id(blob_id, self.key)
        entries = [index.columns.entry(row) for index in self.directory.owners(hashed)
                   for row in index.rows_of(blob_id, hashed)]
        if len(entries) > 1:
            entries.sort(key=_BY_SEQUENCE)
        return entries

    def sealed_open(self, index: IndexSegment) -> LogContents:
        """The contents after the open index was sealed as `index`: it is empty, and begins where that one ends."""
        active = self.active
        kept = tuple(other for other in active.index if other.start != index.start)
        grown = LogSegment(active.name, index.end, (*kept, index))
        return self._with(OpenIndex(active.name, index.end), [active], [grown])

    def with_segment(self, name: SegmentName) -> LogContents:
        """The contents after a new active segment was created. The open index has to be empty."""
        assert not len(self.open)
        return self._with(OpenIndex(name, SEGMENT_HEADER_BYTES), [], [LogSegment(name, SEGMENT_HEADER_BYTES)])

    def replaced(self, remove: Iterable[SegmentName], add: Sequence[LogSegment]) -> LogContents:
        """The contents after a compaction: `add` instead of `remove`. The open index stays the same object."""
        return self._with(self.open, [found for found in map(self.segment, {*remove}) if found is not None], add)

    def snapshot(self, journal_floor: SegmentName | None, segment_bytes: int) -> LogSnapshot:
        """A frozen look at these contents."""
        return LogSnapshot(self, len(self.open), self.open.end, journal_floor, segment_bytes)

    def audit(self) -> None:
        """Check order, positions and the chain of index segments.

        Raises:
            AuditFailed: a position is taken twice, or an index does not continue the one before.
        """
        positions = [segment.name.position for segment in self.segments]
        if positions != sorted(set(positions)):
            raise AuditFailed(f"the positions of the log do not ascend: {positions}")
        for segment in self.segments:
            at = SEGMENT_HEADER_BYTES
            for index in segment.index:
                index.audit()
                if index.segment != segment.name or index.start != at:
                    raise AuditFailed(f"{index} does not continue segment {segment.name} at {at}")
                at = index.end
            if at != segment.end:
                raise AuditFailed(f"the index of segment {segment.name} ends at {at}, the segment at {segment.end}")
        if self.open.segment != self.active.name or self.open.start != self.active.end:
            raise AuditFailed(f"{self.open} does not continue the active segment {self.active}")
        self.open.audit()
        self.directory.audit(self.sealed)
        for index in self.sealed:
            newest = max((entry.sequence for entry in index.entries()), default=0)
            if not newest <= index.last_sequence <= self.last_sequence:
                raise AuditFailed(f"{index} holds a newer record than it says")


@attrs.frozen(eq=False)
class LogSnapshot:
    """A frozen view of log and index. Cheap to take, and any thread may use it; later appends are not in it.

    Attributes:
        contents: those it was taken of.
        open_rows: how many entries of the open index belong to it.
        open_end: the offset behind them.
        journal_floor: the log segment of the journal's oldest entry.
        segment_bytes: capacity of a segment.
    """

    contents: LogContents
    open_rows: int
    open_end: int
    journal_floor: SegmentName | None
    segment_bytes: int
    _outdone: dict[bytes, tuple[int, int]] = attrs.field(factory=dict, init=False, repr=False)

    @property
    def segments(self) -> tuple[SegmentInfo, ...]:
        """Every log segment in log order; the last one is the active segment."""
        *sealed, info = self.contents.infos
        if self.open_rows:
            columns = self.contents.open.columns
            newest = max(columns.op_times[:self.open_rows])
            info = attrs.evolve(info, end=self.open_end, records=info.records + self.open_rows,
                                last_modified_ms=max(info.last_modified_ms, newest),
                                first_sequence=info.first_sequence or columns.sequences[0],
                                last_sequence=columns.sequences[self.open_rows - 1])
        return (*sealed, info)

    @property
    def last_sequence(self) -> int:
        """No record is newer."""
        columns = self.contents.open.columns
        return max(self.contents.last_sequence, columns.sequences[self.open_rows - 1] if self.open_rows else 0)

    def has(self, segment: SegmentName) -> bool:
        """Whether the log has a segment of this name. O(log segments)."""
        return self.contents.segment(segment) is not None

    @property
    def used_bytes(self) -> int:
        """Used capacity: whole segments before the last one, and the last one up to its end."""
        return (len(self.contents.segments) - 1) * self.segment_bytes + self.open_end

    def eligible(self) -> tuple[SegmentName, ...]:
        """The segments that may be compacted: never the last one, and none that the journal reaches."""
        floor = self.contents.active.name if self.journal_floor is None else self.journal_floor
        found = self.contents.segments[:bisect_left(self.contents.segments, floor, key=_BY_NAME)]
        return tuple(segment.name for segment in found if not segment.is_lost)

    def entries_of(self, segment: SegmentName, *, start: int = 0) -> Iterator[IndexEntry]:
        """The index entries of a log segment in the order of their offsets, from offset `start` on; none if the
        snapshot does not have the segment."""
        known = self.contents.segment(segment)
        for index in known.index if known else ():
            if index.end > start:
                yield from index.entries(start)
        if segment == self.contents.open.segment:
            yield from self.contents.open.entries(start, self.open_rows)

    def history(self, blob_id: bytes) -> list[IndexEntry]:
        """Every index entry of an id in the whole store, ascending by sequence."""
        return self.contents.history(blob_id, self.open_rows)

    def histories_of(self, segment: SegmentName, *, start: int = 0, check: Callable[[], None],
                     ) -> Iterator[tuple[IndexEntry, list[IndexEntry]]]:
        """Yield the index entries of a log segment but the last, as `entries_of`, each with the `history` of its id.

        Much faster than asking for each. `check` is called with each piece of work.

        Of an id of many records, superseded entries may come with an empty history.
        """
        for index in self.sealed_parts(segment):
            if index.end > start:
                yield from self.contents.histories_of(index, start, self.open_rows, check, self._outdone)

    def sealed_parts(self, segment: SegmentName) -> tuple[IndexSegment, ...]:
        """The sealed index segments of a log segment; none if the snapshot does not have it. O(log segments)."""
        known = self.contents.segment(segment)
        return () if known is None else known.filled

    def index_parts(self) -> tuple[IndexSegment, ...]:
        """Every index segment, the open one sealed as it was; empty ones left out."""
        if not self.open_rows:
            return self.contents.sealed
        opened = self.contents.open
        entries = tuple(opened.entries(0, self.open_rows))
        return (*self.contents.sealed, IndexSegment.of_entries(opened.segment, entries, opened.start, self.open_end,
                                                               self.contents.key))
