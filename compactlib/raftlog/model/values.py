# SPDX-License-Identifier: Apache-2.0
"""The frozen values of a Raft log: entries, the answers to a read, segment references and statistics."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeAlias

import attrs

from compactlib.errors import CorruptData, InvalidInput

MAX_INDEX = (1 << 64) - 1
MAX_PAYLOAD_BYTES = (1 << 32) - 1
DEFAULT_MAX_ENTRIES = 4096
DEFAULT_MAX_BYTES = 64_000_000
INDEX_RECORD_BYTES = 40
"""What a native segment stores for an entry besides its payload."""
HEAD_BYTES = 104
"""What a native segment stores before its index: the header and two seals."""


class Entry(NamedTuple):
    """One log entry, its checksum verified; equal to the tuple (index, term, payload).

    A named tuple and no attrs class, because reads and scans make one for each entry: it takes a third of the time.

    Attributes:
        index: its place in the log, 0 .. 2**64 - 1.
        term: the term it was written in, 0 .. 2**64 - 1.
        payload: the command's bytes, possibly empty.
    """

    index: int  # type: ignore[assignment]  # It hides `tuple.index`, which no caller needs.
    term: int
    payload: bytes


entry_of: Callable[[tuple[int, int, bytes]], Entry] = partial(tuple.__new__, Entry)
"""The entry of (index, term, payload), made without a call into Python."""


@attrs.frozen
class DeadEntry:
    """The index lies at or below the snapshot and is not live: its entry is gone or may go at any time."""

    index: int
    snapshot_index: int


@attrs.frozen
class MissingEntry:
    """No segment ever held the index, as far as this log knows: above its end, or in a gap of a sparse log."""

    index: int


@attrs.frozen
class DamagedEntry:
    """The entry is there, but its bytes fail their checksum; `error` says where."""

    index: int
    error: CorruptData


Answer: TypeAlias = Entry | DeadEntry | MissingEntry | DamagedEntry
"""What a read of one index can answer; never one for the other."""


class AppendEntries(NamedTuple):
    """What a leader sends to a follower, as Raft's message of this name has it; the arguments of
    `RaftLog.append_entries`.

    Attributes:
        prev_index: the index before the first entry.
        prev_term: the term of the entry there; 0 if the log begins behind it.
        entries: consecutive from `prev_index + 1` on; none is a heartbeat, which asks whether the log is the leader's
            up to `prev_index`.
    """

    prev_index: int
    prev_term: int
    entries: tuple[Entry, ...]


@attrs.frozen
class AppendAnswer:
    """What a follower answers to `AppendEntries`, once it is durable: see `RaftLog.append_entries`.

    Attributes:
        success: whether the log has the entry before the leader's entries, and by now all of them.
        match_index: up to here the log is the leader's; -1 if it was refused.
        next_index: what the leader sends next: from behind `match_index`, or, refused, from the first index of
            `conflict_term` (`RaftLog.next_index` may know better), or from behind the end of the log.
        conflict_term: the term that the log has in the place of the entry before; `None` if it was not refused, or if
            the log does not reach there.
    """

    success: bool
    match_index: int
    next_index: int
    conflict_term: int | None = None


@attrs.frozen(order=True)
class SegmentRef:
    """One segment and the range of indexes for which it is asked.

    The range is a hull: a sparse segment has gaps.

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
    """What a policy may know about a segment.

    Attributes:
        ref: which segment, and its range.
        entries: index records in the file.
        data_bytes: payload bytes in the file, those behind a cut included.
        live_entries: entries that a compaction would keep.
        live_bytes: their payload bytes.
        file_bytes: the size of the file; if it is not given, that of a native segment with no room for more entries.
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
    """The size of the file that a compaction writes for so many entries and payload bytes."""
    return HEAD_BYTES + INDEX_RECORD_BYTES * entries + data_bytes


@attrs.frozen(kw_only=True)
class SegmentLimits:
    """How large a segment may become.

    Attributes:
        max_entries: index records, 1 .. 2**32 - 1.
        max_bytes: payload bytes; an appended segment is full once it exceeds them, a compacted one never does,
            unless one segment alone held more.
    """

    max_entries: int = DEFAULT_MAX_ENTRIES
    max_bytes: int = DEFAULT_MAX_BYTES

    def __attrs_post_init__(self) -> None:
        for name, value in (("max_entries", self.max_entries), ("max_bytes", self.max_bytes)):
            if not isinstance(value, int):
                raise InvalidInput(f"{name} is {value!r:.100}; give a whole number")
        if not 1 <= self.max_entries < 1 << 32:
            raise InvalidInput(f"max_entries is {self.max_entries}; a segment holds 1 to {(1 << 32) - 1} entries")
        if not 1 <= self.max_bytes < 1 << 63:
            raise InvalidInput(f"max_bytes is {self.max_bytes}; it must be between 1 and {(1 << 63) - 1}")
