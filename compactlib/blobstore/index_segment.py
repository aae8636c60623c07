# SPDX-License-Identifier: Apache-2.0
"""A sealed index segment: the entries of one stretch of one log segment, immutable, searched by hash.

Its sorted column of 64-bit hashes is the filter for misses: a search in C over 8 bytes an entry, with a false answer
once in 2**64 / n ids, where a Bloom filter of 10 bits an entry has one in a hundred.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import repeat
from operator import add, gt, lt

from compactlib.blobstore.columns import EntryColumns, hash_id
from compactlib.blobstore.names import LogPosition, SegmentName
from compactlib.blobstore.values import IndexEntry, RecordKind
from compactlib.errors import AuditFailed, CompactlibError, InvalidInput

ENDS_OR_REVIVES = frozenset((int(RecordKind.DELETE), int(RecordKind.UNDELETE)))
"""Of these, only the newest says how a blob stands."""
OFTEN = 16
"""What an id of more records than these comes to is remembered."""


class IndexSegment:
    """Entries of the records from offset `start` to `end` of a log segment; nothing changes it. Threads may share one.

    Args:
        columns: the entries, packed.
        start: the offset at which its stretch of the log begins.
        end: the offset at which it ends.
        hashes: the ids' hashes, ascending.
        rows: the row of each hash; ascending among equal hashes.
    """

    def __init__(self, columns: EntryColumns, start: int, end: int, hashes: array[int], rows: array[int]) -> None:
        self.columns: EntryColumns = columns
        self.start: int = start
        self.end: int = end
        self.hashes: array[int] = hashes
        self.rows: array[int] = rows
        self.first_sequence: int = min(columns.sequences, default=0)
        self.last_sequence: int = max(columns.sequences, default=0)
        self.last_modified_ms: int = max(columns.op_times, default=0)
        self._since_put: dict[bytes, Sequence[IndexEntry]] = {}

    @classmethod
    def of_columns(cls, columns: EntryColumns, start: int, end: int, key: bytes) -> IndexSegment:
        """Seal these columns; `key` is the store's incarnation. O(n log n)."""
        return cls.of_hashed(columns, start, end, list(map(hash_id, columns.ids, repeat(key))))

    @classmethod
    def of_hashed(cls, columns: EntryColumns, start: int, end: int, hashed: Sequence[int]) -> IndexSegment:
        """Seal these columns, given the hash of each id. O(n log n)."""
        packed = columns.packed()
        order = sorted(range(len(hashed)), key=hashed.__getitem__)
        return cls(packed, start, end, array("Q", map(hashed.__getitem__, order)), array("I", order))

    @classmethod
    def of_entries(cls, segment: SegmentName, entries: Sequence[IndexEntry], start: int, end: int,
                   key: bytes) -> IndexSegment:
        """Seal these entries, which ascend by offset.

        Raises:
            InvalidInput: they do not ascend, overlap, or lie outside of the stretch.
        """
        index = cls.of_columns(EntryColumns.of(segment, entries), start, end, key)
        try:
            index.audit()
        except CompactlibError as error:
            raise InvalidInput(f"these entries make no index segment: {error}") from error
        return index

    @property
    def segment(self) -> SegmentName:
        """The log segment."""
        return self.columns.segment

    @property
    def place(self) -> LogPosition:
        """Where its stretch of the log begins."""
        return LogPosition(self.segment, self.start)

    def rows_of(self, blob_id: bytes, hashed: int) -> list[int]:
        """The rows of an id, ascending. O(log n) for a miss."""
        hashes = self.hashes
        place = bisect_left(hashes, hashed)
        found = []
        while place < len(hashes) and hashes[place] == hashed:
            row = self.rows[place]
            if self.columns.ids[row] == blob_id:
                found.append(row)
            place += 1
        return found

    def since_put(self, blob_id: bytes, hashed: int) -> Sequence[IndexEntry]:
        """The entries of an id that say how it stands, descending by sequence, back to its newest PUT here; of DELETEs
        and UNDELETEs that follow each other, the last one. O(log n), and O(1) for each; the first time, of each record.
        """
        if (known := self._since_put.get(blob_id)) is not None:
            return known
        first = bisect_left(self.hashes, hashed)
        rows: Sequence[int] = self.rows[first:bisect_right(self.hashes, hashed, first)]
        if len(rows) > 1 and not self._ascends:
            rows = sorted(rows, key=self.columns.sequences.__getitem__)
        found: list[IndexEntry] = []
        kinds, ids = self.columns.kinds, self.columns.ids
        for row in reversed(rows):
            kind = kinds[row]
            if ids[row] == blob_id and not (kind in ENDS_OR_REVIVES and found and found[-1].kind in ENDS_OR_REVIVES):
                found.append(self.columns.entry(row))
                if kind == RecordKind.PUT:
                    break
        if len(rows) > OFTEN:
            self._since_put[blob_id] = found
        return found

    @cached_property
    def record_bytes(self) -> int:
        """How long the records are together."""
        return sum(self.columns.sizes)

    @cached_property
    def _ascends(self) -> bool:
        """Whether later rows have higher sequences; a compaction may copy them in another order."""
        return all(map(lt, self.columns.sequences, self.columns.sequences[1:]))

    def rows_at(self, offsets: Sequence[int]) -> list[int]:
        """The rows of the records at those of these offsets, which ascend, that lie in its stretch."""
        mine = offsets[bisect_left(offsets, self.start):bisect_left(offsets, self.end)]
        row_of = dict(zip(self.columns.offsets, range(len(self.columns)), strict=True)) if mine else {}
        return list(map(row_of.__getitem__, mine))

    def hash_of_rows(self) -> array[int]:
        """The hash of each row's id. O(n)."""
        found = array("Q", bytes(8 * len(self.rows)))
        for hashed, row in zip(self.hashes, self.rows, strict=True):
            found[row] = hashed
        return found

    def entries(self, start: int = 0) -> Iterator[IndexEntry]:
        """The entries in order, those that begin at offset `start` or later."""
        return self.columns.entries(bisect_left(self.columns.offsets, start))

    def memory_bytes(self) -> int:
        """How much memory the packed columns take."""
        ids = self.columns.ids
        packed = [*self.columns._arrays, self.hashes, self.rows, ids.ends]  # type: ignore[union-attr]
        own = len(ids.blob) if isinstance(ids.blob, bytes) else 0  # type: ignore[union-attr]
        return own + sum(len(column) * column.itemsize for column in packed if isinstance(column, array))

    def audit(self) -> None:
        """Check order and bounds.

        Raises:
            AuditFailed: entries overlap or lie outside the stretch, or the hashes are out of order.
        """
        offsets = self.columns.offsets
        ends = [self.start, *map(add, offsets, self.columns.sizes)]
        if any(map(gt, ends, offsets)):
            row = next(row for row, offset in enumerate(offsets) if offset < ends[row])
            raise AuditFailed(f"entry {row} of index {self.place} begins at {offsets[row]}, before {ends[row]}")
        if ends[-1] > self.end:
            raise AuditFailed(f"the entries of index {self.place} end at {ends[-1]}, behind its end {self.end}")
        hashes = self.hashes
        if len(hashes) != len(self.columns) or sorted(self.rows) != list(range(len(hashes))) or any(
                map(int.__gt__, hashes, hashes[1:])):
            raise AuditFailed(f"the hashes of index {self.place} are out of order")

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        return f"IndexSegment({self.place}..{self.end}, {len(self)} entries)"
