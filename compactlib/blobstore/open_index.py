# SPDX-License-Identifier: Apache-2.0
"""The one index segment that is still being appended to, in memory."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from compactlib.blobstore.columns import EntryColumns
from compactlib.blobstore.index_segment import ENDS_OR_REVIVES, IndexSegment
from compactlib.blobstore.names import LogPosition, SegmentName
from compactlib.blobstore.values import IndexEntry, RecordKind
from compactlib.errors import AuditFailed


class OpenIndex:
    """Entries of the records appended to the active segment since `start`, found by id in a dictionary.

    One thread appends; others may read. A reader sees an entry when it is whole.

    Args:
        segment: the active log segment.
        start: the offset from which on its records are indexed here.
    """

    __slots__ = ("_rows", "columns", "end", "ids_bytes", "last_sequence", "start")

    def __init__(self, segment: SegmentName, start: int) -> None:
        self.columns: EntryColumns = EntryColumns.empty(segment)
        self.start: int = start
        self.end: int = start
        self.ids_bytes: int = 0
        self.last_sequence: int = 0
        # An id has one record far more often than several: a number, and only then all rows, and those that count.
        self._rows: dict[bytes, int | tuple[list[int], tuple[int, ...]]] = {}

    @classmethod
    def reopened(cls, sealed: IndexSegment) -> OpenIndex:
        """An open index with the entries of a sealed one, to be sealed again under the same name when it has grown."""
        index = cls(sealed.segment, sealed.start)
        for entry in sealed.entries():
            index.append(entry)
        index.end = sealed.end
        return index

    def cut(self, end: int) -> OpenIndex:
        """The same without the entries that end behind offset `end`; readers of this one keep what they see."""
        index = OpenIndex(self.segment, self.start)
        for entry in self.entries():
            if entry.end <= end:
                index.append(entry)
        index.end = end
        return index

    @property
    def segment(self) -> SegmentName:
        """The active log segment."""
        return self.columns.segment

    def append(self, entry: IndexEntry) -> None:
        """Add the entry of a record that was written; readers find it from now on. O(1)."""
        row = self.columns.append(entry)
        self.end = entry.end
        self.ids_bytes += len(entry.id)
        self.last_sequence = entry.sequence
        known = self._rows.get(entry.id)
        if known is None:
            self._rows[entry.id] = row
            return
        rows, before = ([known], (known,)) if isinstance(known, int) else known
        rows.append(row)
        kinds = self.columns.kinds
        if entry.kind == RecordKind.PUT:
            before = ()
        elif entry.kind in ENDS_OR_REVIVES and kinds[before[-1]] in ENDS_OR_REVIVES:
            before = before[:-1]
        self._rows[entry.id] = rows, (*before, row)

    def rows_of(self, blob_id: bytes) -> Sequence[int]:
        """The rows of an id, ascending."""
        known = self._rows.get(blob_id, ((),))
        return (known,) if isinstance(known, int) else known[0]

    def since_put(self, blob_id: bytes) -> list[IndexEntry]:
        """See `IndexSegment.since_put`. O(1) for each."""
        known = self._rows.get(blob_id, ((), ()))
        return [self.columns.entry(row) for row in reversed((known,) if isinstance(known, int) else known[1])]

    def entries(self, start: int = 0, stop: int | None = None) -> Iterator[IndexEntry]:
        """The entries that begin at offset `start` or later, of the first `stop` rows."""
        count = len(self.columns) if stop is None else stop
        return self.columns.entries(bisect_left(self.columns.offsets, start, 0, count), count)

    def sealed(self, key: bytes) -> IndexSegment:
        """The same entries as an immutable index segment."""
        return IndexSegment.of_columns(self.columns, self.start, self.end, key)

    def file_bytes(self) -> int:
        """About how large the file of the index segment will be."""
        return len(self.columns) * 68 + self.ids_bytes

    def audit(self) -> None:
        """Check that the dictionary and the columns agree.

        Raises:
            AuditFailed: they do not, or entries overlap.
        """
        count = 0
        for blob_id in self._rows:
            rows = self.rows_of(blob_id)
            count += len(rows)
            if any(self.columns.ids[row] != blob_id for row in rows) or list(rows) != sorted(rows):
                raise AuditFailed(f"the open index of {self.segment} leads from {blob_id!r} to rows {rows}")
        if count != len(self.columns):
            raise AuditFailed(f"the open index of {self.segment} has {len(self.columns)} rows, {count} known by id")
        at = self.start
        for entry in self.entries():
            if entry.offset < at:
                raise AuditFailed(f"record {LogPosition(self.segment, entry.offset)} begins before {at}")
            at = entry.end
        if at != self.end and len(self.columns):
            raise AuditFailed(f"the open index of {self.segment} ends at {self.end}, its last record at {at}")

    def __len__(self) -> int:
        return len(self.columns)

    def __repr__(self) -> str:
        return f"OpenIndex({self.segment}:{self.start}..{self.end}, {len(self)} entries)"
