# SPDX-License-Identifier: Apache-2.0
"""The frozen values of a Raft log: entries, the results of a read, segment references and statistics."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeAlias

import attrs

from compactlib._arguments import is_whole
from compactlib.errors import CorruptData

MAX_INDEX = (1 << 64) - 1
MAX_PAYLOAD_BYTES = (1 << 32) - 1
DEFAULT_MAX_ENTRIES = 4096
MAX_ENTRIES = 1 << 20
DEFAULT_MAX_BYTES = 64_000_000
INDEX_RECORD_BYTES = 40
"""Size of an entry in a native segment, without its payload."""
HEAD_BYTES = 104
"""Size of the header and the two seals of a native segment."""


class Entry(NamedTuple):
    """A log entry with a verified checksum; equal to the tuple (index, term, payload).

    A named tuple instead of an attrs class: it takes a third of the time, which counts for reads and scans.

    Attributes:
        index: its place in the log, 0 .. 2**64 - 1.
        term: the term of the leader that wrote it, 0 .. 2**64 - 1.
        payload: the command's bytes, possibly empty.
    """

    index: int  # type: ignore[assignment]  # It hides `tuple.index`, which no caller needs.
    term: int
    payload: bytes


entry_of: Callable[[tuple[int, int, bytes]], Entry] = partial(tuple.__new__, Entry)
"""The entry of (index, term, payload), made without a call into Python."""


@attrs.frozen
class DeadEntry:
    """The index is at or below the snapshot and is not live: its entry was removed, or may be at any time."""

    index: int
    snapshot_index: int


@attrs.frozen
class MissingEntry:
    """The log never had an entry of this index: it is above the last index, or in a gap of a sparse log."""

    index: int


@attrs.frozen
class DamagedEntry:
    """The entry's bytes fail their checksum; `error` has the place."""

    index: int
    error: CorruptData


Answer: TypeAlias = Entry | DeadEntry | MissingEntry | DamagedEntry
"""The result of reading an index: dead, missing and damaged are distinct."""


class AppendEntries(NamedTuple):
    """Raft's message of this name from a leader to a follower; the arguments of `RaftLog.append_entries`.

    Attributes:
        prev_index: the index before the first entry.
        prev_term: the term of the entry at `prev_index`; 0 if the log begins behind it.
        entries: consecutive from `prev_index + 1` on; empty for a heartbeat.
    """

    prev_index: int
    prev_term: int
    entries: tuple[Entry, ...]


@attrs.frozen
class AppendAnswer:
    """A follower's answer to `AppendEntries`; the entries are durable. See `RaftLog.append_entries`.

    Attributes:
        success: whether the log matches at `prev_index`, and has all of the message's entries now.
        match_index: the log matches the leader's up to here; -1 after a refusal.
        next_index: the index from which the leader sends next: behind `match_index`; after a refusal the first index of
            `conflict_term` (`RaftLog.next_index` may find a higher index), or the index behind the log's end.
        conflict_term: the term that the log has at `prev_index`; `None` after a success, or if the log ends before.
    """

    success: bool
    match_index: int
    next_index: int
    conflict_term: int | None = None


@attrs.frozen(order=True)
class SegmentRef:
    """A segment and the range of its indexes; a sparse segment has gaps in that range.

    Attributes:
        number: the segment's place in the order of writes, >= 1; its file is `<16 digits>.segment`.
        first: lowest index.
        last: highest index (inclusive), >= first.
    """

    number: int
    first: int
    last: int


@attrs.frozen(kw_only=True)
class SegmentStats:
    """The statistics of a segment, which policies read.

    Attributes:
        ref: which segment, and its range.
        entries: index records in the file.
        data_bytes: payload bytes in the file, those behind a cut included.
        live_entries: entries that a compaction would keep.
        live_bytes: their payload bytes.
        file_bytes: size of the file; default the size of a native segment without room for more entries.
    """

    ref: SegmentRef
    entries: int
    data_bytes: int
    live_entries: int
    live_bytes: int
    file_bytes: int = attrs.field(
        default=attrs.Factory(lambda self: segment_bytes(self.entries, self.data_bytes), takes_self=True))

    @property
    def number(self) -> int:
        """The segment's number."""
        return self.ref.number

    @property
    def dead_bytes(self) -> int:
        """Payload bytes that a compaction would free."""
        return self.data_bytes - self.live_bytes


def segment_bytes(entries: int, data_bytes: int) -> int:
    """The size of a file that a compaction writes, from its entries and payload bytes."""
    return HEAD_BYTES + INDEX_RECORD_BYTES * entries + data_bytes


@attrs.frozen(kw_only=True)
class SegmentLimits:
    """The limits of a segment.

    Attributes:
        max_entries: index records, 1 .. 2**20.
        max_bytes: payload bytes. A segment is full once it exceeds them; a compaction's output does not exceed them,
            unless a single source does.
    """

    max_entries: int = attrs.field(default=DEFAULT_MAX_ENTRIES, validator=is_whole(1, MAX_ENTRIES))
    max_bytes: int = attrs.field(default=DEFAULT_MAX_BYTES, validator=is_whole(1, (1 << 63) - 1))
