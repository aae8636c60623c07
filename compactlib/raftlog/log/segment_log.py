# SPDX-License-Identifier: Apache-2.0
"""`SegmentLog`: a Raft log in a folder of segments, without a WAL. `OwnedLog` has the parts shared with `RaftLog`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from operator import index as whole
from typing import TYPE_CHECKING, TypeAlias

from compactlib._arguments import own_bytes
from compactlib.errors import InvalidInput
from compactlib.files.disk import StrPath, local_path
from compactlib.indexset import IndexSet
from compactlib.raftlog.log.folder import require_no_store
from compactlib.raftlog.log.owned_log import OwnedLog
from compactlib.raftlog.options import LogOptions
from compactlib.raftlog.snapshot_meta import SnapshotMeta, live_set
from compactlib.raftlog.status import LogStatus
from compactlib.raftlog.values import MAX_INDEX, MAX_PAYLOAD_BYTES, Entry

if TYPE_CHECKING:
    from typing_extensions import Buffer

_Run: TypeAlias = tuple[int, int, Sequence[bytes]]
"""First index, term and payloads of entries with consecutive indexes."""


class SegmentLog(OwnedLog):
    """A log open for writing: append, sync, record snapshots, compact. A single process owns it.

    Threads may share it: appends and reads exclude each other only on the newest segment, and compactions exclude
    neither. Opening finishes or undoes the changes that a crash interrupted, and seals a torn tail; see `recovery` and
    `torn_entries`.

    A log that fails in the middle of a change (a disk error, a Ctrl-C) closes itself. Every later call raises `Closed`
    with the reason; after opening it again, all synced entries are readable.

    Args:
        folder: the log's folder.
        options: the log's settings.
        create: whether a missing log is created. If not, a folder without a log is `NotALog`, and is not changed.

    Raises:
        Busy: another process, or another object in this one, has it open for writing.
        NotALog: the folder holds other things; or no log, and `create` is not set.
        CorruptData: a segment's index or the snapshot state is damaged; nothing was changed.
        Unsupported: a file was written by a later release, or the folder is that of a log of a `RaftLogStore`.
        StorageError: the disk refused; `ReadOnly` where this process may not write (a `LogReader` can read it).
    """

    def __init__(self, folder: StrPath, options: LogOptions | None = None, *, create: bool = True) -> None:
        path = local_path(folder)
        require_no_store(path)
        super().__init__(path, LogOptions() if options is None else options, create=create)

    # -- writing

    def append(self, entries: Iterable[Entry | tuple[int, int, Buffer]]) -> int:
        """Append entries, in order; all are checked before the first is appended. Returns the last index.

        Durable after `sync`; visible to reads at once. Gaps are allowed. An index at or below the last index truncates
        the log there first, durably, whatever its term; a crash in between leaves a prefix of the old log that has at
        least the entries below the index. A follower of a Raft group uses `RaftLog.append_entries` instead.

        Args:
            entries: `Entry` values or (index, term, payload) tuples.

        Raises:
            InvalidInput: an index is at or below the snapshot, or is no 64-bit number, or a payload is too large.
            StorageError: the disk refused. Entries that were not synced are lost, and the log is closed. If it only
                had no room to begin a truncation, the log stays open, without that entry and those behind it.
            Closed: the log was closed, or closed itself.
        """
        if type(entries) is list and len(entries) == 1:
            # Half the time of a run.
            index, term, payload = whole(entries[0][0]), whole(entries[0][1]), own_bytes(entries[0][2])
            _require_storable(index, term, 1, len(payload))
            with self._guard.lock:
                self._require_above_snapshot(index)
                self._own.append(index, term, payload)
            return index
        self._append_runs(_runs_of(entries))
        return self.last_index

    def append_run(self, first: int, term: int, payloads: Sequence[Buffer]) -> None:
        """Append entries of consecutive indexes and one term; a few calls for any number. Raises as `append`."""
        self._append_runs([run for run in [_checked(first, term, payloads)] if run[2]])

    def _append_runs(self, runs: Sequence[_Run]) -> None:
        with self._guard.lock:
            self._guard.require_open()
            for first, _, _ in runs:
                self._require_above_snapshot(first)
            for run in runs:
                self._own.append_run(*run)

    def _require_above_snapshot(self, index: int) -> None:
        row = self._own.row
        if row is not None and index <= row.index:
            raise InvalidInput(f"index {index} lies at or below the snapshot {row.index}; what a snapshot covers is "
                               f"committed and cannot be written again, append from {row.index + 1}")

    def sync(self) -> None:
        """Make all appended entries durable: one fsync, none without new entries.

        Raises:
            StorageError, Closed: as `append`.
        """
        self._own.sync()

    def snapshot(self, index: int, live: IndexSet | Iterable[int]) -> None:
        """Record a snapshot of everything up to `index`, durably. Its entries are dead then, except those of `live`.

        Syncs the log first. The host stores the state.

        Args:
            index: the snapshot's index, not below the last snapshot's.
            live: indexes <= `index` that the log must keep; a set, or strictly ascending numbers; `()` for none.

        Raises:
            Stale: a later snapshot was recorded.
            LiveAboveSnapshot: a live index is above `index`.
            Unsorted: the live indexes do not ascend.
            LiveIndexMissing: a live index is in no segment, or was dead before.
            StorageError: the disk refused. The snapshot before is in force; or the log is closed, and opening it again
                shows the outcome.
        """
        row = SnapshotMeta(index, live=live_set(live))
        if row.index < 0:
            raise InvalidInput(f"snapshot index {row.index}; it must be between 0 and {MAX_INDEX}")
        with self._guard.lock:
            self._own.sync()
            self._require_no_older(row)
            self._require_held(row)
            self._record_state(row)

    @property
    def last_index(self) -> int:
        return max(self._own.last_index, self.state.index)

    def status(self) -> LogStatus:
        """The log's counters."""
        with self._guard.lock:
            self._guard.require_open()
            segments, refs, row = self._own, self.refs, self.state
            return LogStatus(
                log_id=os.path.basename(self._folder), first_index=self.first_index,
                last_index=self.last_index, last_term=segments.last_term,
                durable_index=segments.durable_index, snapshot_index=row.index, live=len(row.live), memtable_entries=0,
                segments=len(refs), pins=len(segments.pins), is_busy=self.is_compacting)

    def audit(self) -> None:
        """Check the log's invariants.

        Raises:
            AuditFailed: an invariant is broken; the message has the numbers.
        """
        self._guard.require_open()
        self._own.audit()

    # -- ending

    def close(self) -> None:
        """Sync and close the log. Idempotent. A running compaction is cancelled and waited for.

        A log that has closed itself, and in a forked child the parent's log, is closed without a sync.

        Raises:
            Busy: called from within a compaction, by an observer for example; nothing was done.
            StorageError: the disk refused the last sync; the log is closed nevertheless.
        """
        self._guard.require_outside()
        try:
            self._own.end()
        finally:
            # Waits for a compaction: no other process may own the folder while groups are committed in it.
            self._guard.release()


def _checked(first: int, term: int, payloads: Sequence[Buffer]) -> _Run:
    """A run of the host's entries, of consecutive indexes and one term, with bytes of its own."""
    first, term, owned = whole(first), whole(term), list(map(own_bytes, payloads))
    _require_storable(first, term, len(owned), max(map(len, owned), default=0))
    return first, term, owned


def _require_storable(first: int, term: int, count: int, longest: int) -> None:
    if not 0 <= first <= MAX_INDEX + 1 - count or not 0 <= term <= MAX_INDEX or longest > MAX_PAYLOAD_BYTES:
        raise InvalidInput(f"entry {first} in term {term} with {longest} bytes: index and term are 0 to "
                           f"{MAX_INDEX}, a payload at most {MAX_PAYLOAD_BYTES} bytes")


def _runs_of(entries: Iterable[Entry | tuple[int, int, Buffer]]) -> list[_Run]:
    """The checked entries as one run, or each as a run of its own."""
    # A generator may reuse its buffer for the next row.
    rows = entries if type(entries) is list else [(index, term, own_bytes(payload)) for index, term, payload in entries]
    if not rows:
        return []
    indexes, terms, payloads = zip(*rows, strict=True)
    if indexes == tuple(range(indexes[0], indexes[0] + len(rows))) and terms.count(terms[0]) == len(rows):
        return [_checked(indexes[0], terms[0], payloads)]
    return [_checked(index, term, [payload]) for index, term, payload in rows]
