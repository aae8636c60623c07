# SPDX-License-Identifier: Apache-2.0
"""What the compactor needs of a store, and nothing else: a frozen look at log and index, and the switch.

The compactor changes files itself (through `Files`); the store only swaps, in memory and in one step, which segments
it answers from. The order on disk that makes this safe is the compactor's (`compaction/commit/publish.py`,
`compaction/commit/recover.py`):

1. COPY: new log segments and their index files are built under names that no loader takes for its own.
2. COMMIT: the compaction log records the commit durably; then each file gets its final name; then `swap_segments`.
3. CLEANUP: the sources' names are removed.

A reader that looked up a record before the switch either still holds the source's file, whose bytes stay readable
when the name is gone, or finds the name gone and looks the record up again, in the new segments. So no reader waits,
and none gets a wrong answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

import attrs

from compactlib.blobstore.config import BlobStoreConfig
from compactlib.blobstore.index.index_segment import IndexSegment
from compactlib.blobstore.model.names import SegmentName
from compactlib.blobstore.model.values import IndexEntry
from compactlib.blobstore.segment.reader import SegmentHeader
from compactlib.clock import Clock
from compactlib.files.disk import Files
from compactlib.runtime.breather import unhurried
from compactlib.runtime.observe import Observer


@attrs.frozen(kw_only=True)
class SegmentInfo:
    """One log segment of a snapshot.

    Attributes:
        name: its name; its file is `folder / name.log_file`.
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


class Snapshot(Protocol):
    """A frozen look at a store's log and index. Cheap to take; never changes; any thread may use it.

    Entries appended after it was taken are not in it.
    """

    @property
    def segments(self) -> tuple[SegmentInfo, ...]:
        """Every log segment in log order; the last one is the active segment."""

    @property
    def last_sequence(self) -> int:
        """No record is newer."""

    def has(self, segment: SegmentName) -> bool:
        """Whether the log has a segment of this name. O(log segments)."""

    @property
    def journal_floor(self) -> SegmentName | None:
        """The log segment of the journal's oldest entry; it and everything behind it is not eligible."""

    @property
    def used_bytes(self) -> int:
        """Used capacity: whole segments before the last one, and the last one up to its end."""

    def eligible(self) -> tuple[SegmentName, ...]:
        """The segments that may be compacted, in log order."""

    def entries_of(self, segment: SegmentName, *, start: int = 0) -> Iterator[IndexEntry]:
        """The index entries of a log segment in the order of their offsets, from offset `start` on."""

    def history(self, blob_id: bytes) -> list[IndexEntry]:
        """Every index entry of an id in the whole store, ascending by sequence. A miss costs one look at a filter
        per index segment."""

    def histories_of(self, segment: SegmentName, *, start: int = 0, breathe: Callable[[], None] = unhurried,
                     ) -> Iterator[tuple[IndexEntry, list[IndexEntry]]]:
        """The index entries of a log segment but the last, as `entries_of`, each with the `history` of its id; much
        faster than asking for each. `breathe` is called after each piece of work. Of an id of many records, a PUT or
        TTL_UPDATE before the newest PUT, and a DELETE or UNDELETE before what decides, may come with none."""

    def sealed_parts(self, segment: SegmentName) -> tuple[IndexSegment, ...]:
        """The sealed index segments of a log segment; none if the snapshot does not have it. O(log segments)."""

    def index_parts(self) -> tuple[IndexSegment, ...]:
        """Every index segment, the open one sealed as it was: for looking at all entries at once, sorted by hash of
        id."""


class Shown(Protocol):
    """What a policy is shown of a store beside its log, whether it is open (`BlobStore`) or read (`BlobReader`)."""

    @property
    def name(self) -> str:
        """What the store is called in messages and events."""

    @property
    def incarnation(self) -> bytes:
        """16 bytes that are the store's own; part of each segment's header and of replication tokens."""

    @property
    def segment_bytes(self) -> int:
        """Capacity of each segment, as fixed when the store was created."""

    @property
    def capacity_bytes(self) -> int:
        """Capacity of the log, as fixed when the store was created."""

    @property
    def config(self) -> BlobStoreConfig:
        """The store's configuration."""


class CompactableStore(Shown, Protocol):
    """The store as the steps of a compaction see it (`BlobStore` is one), which lie below it and do not import it; what
    runs them is given an `OwnedStore`."""

    @property
    def folder(self) -> str:
        """The store's folder, absolute; all its files lie directly in it."""

    @property
    def created_at(self) -> float:
        """When the store was created, seconds since the epoch; 0 if that was lost."""

    @property
    def files(self) -> Files:
        """The disk."""

    @property
    def clock(self) -> Clock:
        """Where time comes from."""

    @property
    def observer(self) -> Observer:
        """Notified of progress, counters and events."""

    def require_mine(self) -> None:
        """Return if the folder is this store's to change; asked before each change of a compaction.

        Raises:
            Closed: the store is closed, or this process is a fork of the one that has it open.
        """

    def segment_header(self, name: SegmentName) -> SegmentHeader:
        """The header of a segment of this store with that name, for one that a compaction builds."""

    def snapshot(self) -> Snapshot:
        """A frozen look at log and index."""

    def make_durable(self) -> None:
        """Sync what was written, if anything is not durable yet: what removes older records because of it, or tells a
        peer its number, does so first.

        Raises:
            StorageError: the disk refused, now or before.
        """

    def give_up(self, who: str, is_going: Callable[[IndexEntry], bool] | None) -> None:
        """From now on take the content of these PUTs for gone, whoever brings their blobs back: a peer's record of a
        later life comes with its content. In force until the same one gives up others, or none (`None`).

        What was written before, the next snapshot shows; so who looks there for blobs that live again misses none.
        """

    def swap_segments(self, remove: Sequence[SegmentName], add: Sequence[SegmentName],
                      index_starts: Mapping[SegmentName, Sequence[int]] | None = None) -> None:
        """Answer from the segments `add` instead of `remove`, in one step. Changes nothing on the disk.

        The files of `add` and their index files lie in the folder under their final names, durable. Their index is
        loaded (and rebuilt from the log if it is missing or damaged) before the lock is taken. `index_starts` says
        where the index files of each begin; without it the folder is listed.

        Raises:
            PlanDoesNotFit: a segment to remove is unknown or not eligible, or one to add does not take a position
                of a removed one with a higher generation.
            CorruptData: a segment to add is not readable; nothing was switched.
        """
