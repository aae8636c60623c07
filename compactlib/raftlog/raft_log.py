# SPDX-License-Identifier: Apache-2.0
"""`RaftLog`: one replicated log as a host uses it: append, sync, read, snapshot, compact, receive a snapshot.

An append adds entries to the WAL's queue and to the memtable, in the same order, under the log's lock. A flush writes
the memtable to segments. A truncation (`reset`, a conflict in `append_entries`) changes memory, the WAL and the
segments before the call returns. Reads take no lock (`LogReading`).

Invariant: above the snapshot no index is missing. An append follows the last index, and a received snapshot rolls
forward: (1) its state and its live entries are written to the folder of snapshots, durably; (2) the row is replaced,
which is the switch; (3) the log truncates the entries that contradict the snapshot and adds the live entries
(`_take_received`). After a crash, opening repeats (3) as long as the file of the live entries exists.

Locks, in this order: the snapshot's, that of flushes and cuts, the log's, the WAL's, the segments' (the guard's).
"""

from __future__ import annotations

import contextlib
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby
from operator import index as whole
from typing import TYPE_CHECKING, Protocol

import attrs

from compactlib._arguments import own_bytes
from compactlib.budget import Budget
from compactlib.errors import (
    Busy,
    Closed,
    CompactlibError,
    Conflict,
    CorruptData,
    InvalidInput,
    NotFound,
    Stale,
    StorageError,
    Unsupported,
)
from compactlib.guard import Guard, is_mine
from compactlib.indexset import IndexSet
from compactlib.raftlog.errors import GapDetected, Overwriting, SnapshotLost
from compactlib.raftlog.hard_state import HardState, hard_state_in
from compactlib.raftlog.log.folder import Examination
from compactlib.raftlog.log.owned_log import OwnedLog
from compactlib.raftlog.memtable import Memtable, replay
from compactlib.raftlog.options import StoreOptions
from compactlib.raftlog.pins import Pin
from compactlib.raftlog.segment.segments import OpenFiles, Segments
from compactlib.raftlog.snapshot_meta import NO_SNAPSHOT, SnapshotManifest, SnapshotMeta, live_set
from compactlib.raftlog.snapshots import Incoming, Snapshots, StateReader, is_half_installed, read_sealed
from compactlib.raftlog.status import LogStatus, error_text
from compactlib.raftlog.values import MAX_INDEX, AppendAnswer, AppendEntries, Entry
from compactlib.raftlog.wal.frames import Frame, cut_frame, run_frame
from compactlib.raftlog.wal.wal import Wal
from compactlib.service import PeriodicService

if TYPE_CHECKING:
    from typing_extensions import Buffer

MAX_APPEND_ENTRIES = 1 << 14


class OwnStore(Protocol):
    """The members of `RaftLogStore` that its logs call."""

    options: StoreOptions
    open_files: OpenFiles

    def settle(self) -> None: ...

    def flush_closed(self) -> None: ...

    def flush(self) -> None: ...

    def close(self) -> None: ...


class RaftLog(OwnedLog):
    """One log of a `RaftLogStore`. `RaftLogStore.log` returns it; `open_log` opens a store for a single log.

    Threads may share it. Appended entries are visible to reads at once, and durable after `sync`. They are in the WAL
    and in memory first, and move to segments in the background.
    """

    def __init__(self, store: OwnStore, wal: Wal, log_id: str, folder: str, before: RaftLog | None,
                 frames: Iterable[Frame]) -> None:
        if before is not None:
            # Both logs have the same memory: an append to the closed log ends first.
            with before._lock:
                pass
        options = store.options
        machine_of = options.machine_of
        self._store = store
        self._wal = wal
        self._log_id = log_id
        self._snapshots = Snapshots(options.log.files, folder,
                                    None if machine_of is None else partial(machine_of, log_id))
        self._memory: Memtable = Memtable() if before is None else before._memory
        self._unreplayed: Iterable[Frame] = frames
        # Set by `_begin`: a log that an interrupt leaves before counts as closed.
        self._is_begun = False
        self._lock: threading.RLock = threading.RLock()
        self._files_lock = threading.RLock()
        # One snapshot or installation at a time.
        self._snapshotting = threading.RLock()
        self._voting = threading.RLock()
        # Segments have entries above this index that were truncated; a full disk could not make that durable.
        self._overruled_above: int | None = None
        self._incoming: Incoming | None = None
        self.closes_store: bool = False
        self._workers: list[PeriodicService] = []
        # Last: an interrupt behind it would leave the folder locked.
        super().__init__(folder, options.log, memtable=self._memory, open_files=store.open_files)

    def _opened(self, folder: str, guard: Guard) -> Segments:
        segments = super()._opened(folder, guard)
        self._hard_states = hard_state_in(self._files, folder)
        self._hard_state: HardState = self._hard_states.read() or HardState()
        # Removed here: a compaction, which runs beside a write of this file, does not remove its leftover.
        self._hard_states.clear_leftover()
        memory, row = self._memory, segments.row or NO_SNAPSHOT
        if memory.table.is_unused and memory.last < 0:
            memory.skip_to(segments.last_index)
        replay(self._unreplayed, memory, row, segments.matching)
        self._unreplayed = ()
        if is_half_installed(folder, row):
            # Read once, so that damage is found before anything is truncated for them.
            for _ in read_sealed(self._snapshots.entries_path(row))[1]:
                pass
        return segments

    def _found_row(self) -> SnapshotMeta | None:
        return self._snapshots.recover()

    def attach(self, *workers: Callable[[RaftLog], PeriodicService]) -> None:
        """Set the workers of the log, in the place of earlier ones; without any, the host compacts the log.

        Args:
            workers: each makes a worker, such as a `LogCompactionWorker` or a `SnapshotWriter`. It is started, woken by
                each snapshot and flush, and stopped with the log.

        Raises:
            Busy: called from an earlier worker; or that has not ended in 30 seconds, call again.
        """
        self._require_open()
        self._require_outside()
        self._stop_workers()
        self._workers.clear()
        for make in workers:
            self._workers.append(make(self))
            self._workers[-1].start()

    @property
    def log_id(self) -> str:
        """The log's id in its store."""
        return self._log_id

    @property
    def is_closed(self) -> bool:
        """Whether the log was closed, or closed itself."""
        return not (self._is_begun and self._guard.is_open and self._wal.guard.is_open)

    def _require_open(self) -> None:
        self._guard.require_open()
        self._wal.guard.require_open()

    # -- indexes and terms

    @property
    def last_index(self) -> int:
        return self._memory.last

    @property
    def last_term(self) -> int | None:
        """The term of the last index, `None` in an empty log."""
        return self.term_of(self.last_index)

    def term_of(self, index: int) -> int | None:
        """The term of a readable entry, or of the snapshot's last entry; `None` for any other index."""
        row = self.state
        if index == row.index and row.term:
            return row.term
        if row.is_dead(index):
            return None
        table = self._memory.table
        if index < table.base:
            return self._retried(lambda: self._own.term_of(index))
        entry = table.find(index)
        return None if entry is None else entry.term

    @property
    def _kept_from(self) -> int:
        """The first index from which on every entry is readable; 1 in an empty log."""
        row = self.state
        if row.index >= 0:
            return row.kept_from
        begins = self.first_index
        return 1 if begins is None else begins

    # -- the leader's calls

    def entries_after(self, prev_index: int, *, max_bytes: int = 1 << 20) -> AppendEntries | None:
        """The message for a follower whose log is known to match the leader's up to `prev_index`.

        `None` if the log lacks one of the entries that follow, or the term at `prev_index`: then the follower needs the
        snapshot (see `StoreOptions.keep_trailing`).

        Args:
            prev_index: `next_index` of the follower's last answer, minus 1.
            max_bytes: of payloads; the first entry is sent whatever its size.

        Raises:
            CorruptData: an entry is damaged.
        """
        self._require_open()
        row, first, last = self.state, self._kept_from, self.last_index
        if row.index < 0:
            prev_index = max(prev_index, first - 1)
        prev_index = min(prev_index, max(last, first - 1))
        prev_term = 0 if prev_index < first and row.index < 0 else self.term_of(prev_index)
        if prev_index < first - 1 or prev_term is None:
            return None
        entries: list[Entry] = []
        if prev_index < last:
            for entry in self.entries(prev_index + 1, last):
                max_bytes -= len(entry.payload)
                # A newer snapshot may leave some of them dead during this scan: nothing behind such a gap is sent.
                if entry.index != prev_index + 1 + len(entries) or (entries and max_bytes < 0):
                    break
                entries.append(entry)
        return AppendEntries(prev_index, prev_term, tuple(entries))

    def next_index(self, answer: AppendAnswer) -> int:
        """The index from which a leader sends next, after a follower's answer. O(log entries).

        That is `answer.next_index`; or, if this log has entries of the conflicting term, the index behind the last of
        them, since the follower has those too.
        """
        self._require_open()
        wanted, first, last = answer.conflict_term, max(self._kept_from, answer.next_index), self.last_index
        if wanted is None or first > last:
            return answer.next_index
        # Entries of one term are adjacent.
        after = first + bisect_right(range(first, last + 1), wanted, key=lambda index: self.term_of(index) or 0)
        return after if self.term_of(after - 1) == wanted else answer.next_index

    # -- appending

    def append(self, entries: Iterable[Entry | tuple[int, int, Buffer]]) -> int:
        """Append entries of consecutive indexes behind the last index, as a leader does. Returns the last index.

        Durable after `sync`. Never truncates: a follower calls `append_entries` with its leader's entries.

        Args:
            entries: `Entry` values or (index, term, payload) tuples, ascending without gaps.

        Raises:
            Overwriting, GapDetected: the first index does not follow the last index.
            InvalidInput: an index is at or below the snapshot, is no 64-bit number, or does not follow its predecessor.
            StorageError, CorruptData: the queue or the memory is full, and the disk refused the sync, the flush or the
                next WAL file. Nothing of the last run of 16,384 entries of a term was appended; see `last_index`.
            Closed: the log was closed, or closed itself.
        """
        if type(entries) is list and len(entries) == 1 and type(entries[0][2]) is bytes:
            first, term, payload = entries[0]
            runs = _parts(first, term, [payload])
        else:
            runs = _runs_of(entries)
        for run in runs:
            self._append(*run)
        return self._memory.last

    def append_run(self, first: int, term: int, payloads: Sequence[Buffer]) -> None:
        """Append entries of consecutive indexes and one term; a few calls for any number. Raises as `append`."""
        # A host may pass all payloads in the same buffer.
        is_own = type(payloads) is list and set(map(type, payloads)) == {bytes}
        for run in _parts(first, term, payloads if is_own else list(map(own_bytes, payloads))):  # type: ignore[arg-type]
            self._append(*run)

    def _append(self, first: int, term: int, payloads: Sequence[bytes]) -> None:
        """Append a run to the memtable and the WAL's queue, or to neither."""
        self._make_room()
        with self._lock:
            self._guard.require_open()
            if first != self._memory.last + 1:
                self._require_next(first)
            self._put(_following(first, term, payloads), payloads)

    def _require_next(self, first: int) -> None:
        row, last = self.state, self._memory.last
        if first <= row.index:
            raise InvalidInput(f"index {first} lies at or below the snapshot {row.index}; what a snapshot covers is "
                               f"committed and cannot be written again, append from {row.index + 1}")
        if first <= last:
            raise Overwriting(f"entry {first} is not above the last index {last}; a follower appends its leader's "
                              f"entries with append_entries(); to truncate on purpose, call reset({first - 1}) first")
        # An empty log begins at any index, also after a truncation to nothing.
        if 0 <= last < first - 1:
            raise GapDetected(f"entry {first} was given to a log that ends at {last}; append from {last + 1} on")

    def append_entries(self, prev_index: int, prev_term: int,
                       entries: Iterable[Entry | tuple[int, int, Buffer]] = ()) -> AppendAnswer:
        """Append a leader's entries by Raft's rule; the answer is durable when this returns.

        A duplicate, late or reordered message changes nothing: the log is truncated only from an index on at which it
        has another term. Entries that the snapshot covers count as matching. The host refuses leaders of a lower term
        before it calls this. In a log without a snapshot whose first index is 1, `prev_index` and `prev_term` of the
        first entry are 0 (-1 and 0 if the first index is 0).

        Args:
            prev_index: the index before the first entry.
            prev_term: the term of the leader's entry at `prev_index`.
            entries: as of `append`, from `prev_index + 1` on; empty for a heartbeat.

        Raises:
            InvalidInput: the entries are not consecutive, or do not follow `prev_index`; or the log begins above
                `prev_index`, and has no snapshot that covers the indexes below.
            StorageError, CorruptData, Closed: as `append` and `sync`; the first entries may be in the log.
        """
        prev_index, prev_term = whole(prev_index), whole(prev_term)
        if prev_index < -1:
            raise InvalidInput(f"the previous index is {prev_index}; it is 0, or -1, if nothing comes before")
        runs = _runs_of(entries)
        if runs and runs[0][0] != prev_index + 1:
            raise InvalidInput(f"the first entry is {runs[0][0]}, and follows {prev_index}; give entries from "
                               f"{prev_index + 1} on")
        refusal: AppendAnswer | None = None
        for first, term, payloads in runs or [(prev_index + 1, prev_term, [])]:
            self._make_room()
            refusal = self._take(prev_index, prev_term, term, payloads)
            if refusal is not None:
                break
            prev_index, prev_term = first + len(payloads) - 1, term
        self.sync()
        matched = max(prev_index, self.state.index)
        return refusal or AppendAnswer(True, matched, matched + 1)

    def _take(self, prev_index: int, prev_term: int, term: int, payloads: Sequence[bytes], *,
              may_cut: bool = False) -> AppendAnswer | None:
        """Add the entries of a leader's run that the log lacks; return the refusal if the run does not fit."""
        with self._lock:
            self._require_open()
            held = self._judged(prev_index, prev_term, term, len(payloads))
            if isinstance(held, AppendAnswer):
                return held
            start, lacking = prev_index + 1 + held, payloads[held:]
            overrules = bool(lacking) and start <= self._memory.last
            if lacking and not overrules:
                self._put(_following(start, term, lacking), lacking)
        if overrules and not may_cut:
            # Compared again under the lock that excludes other truncations.
            with self._files_lock:
                return self._take(prev_index, prev_term, term, payloads, may_cut=True)
        if overrules:
            self._cut(_following(start, term, lacking, cuts=True), lacking)
        return None

    def _judged(self, prev_index: int, prev_term: int, term: int, count: int) -> AppendAnswer | int:
        """The count of the leader's first entries that the log has already, or the refusal of all.

        This is the consistency check of Raft's AppendEntries (section 5.3 of https://raft.github.io/raft.pdf). An
        entry conflicts with the log's entry of the same index if their terms differ. Entries that the snapshot covers
        count as matching.

        A refusal's `next_index` is the first index of the term that the log has at `prev_index`, or the index behind
        the log's end, so that each conflicting term costs a single message. Reads O(log entries) terms, and the term of
        each entry that the log has already.
        """
        row, held, last = self.state, self._memory.last, prev_index + count
        begins = self.first_index if row.index < 0 else None
        if prev_index <= row.index <= last and row.term not in (0, prev_term if prev_index == row.index else term):
            # From a deposed leader, or from another group: a leader has all committed entries.
            return AppendAnswer(False, -1, row.index, row.term)
        if row.index < 0 and begins is None:
            if prev_index > 0 or prev_term:
                return AppendAnswer(False, -1, 0)
        elif begins is not None and prev_index < begins:
            if prev_term or prev_index + 1 != begins or begins > 1:
                raise InvalidInput(f"the log begins at {begins} and has no snapshot of the entries below, so entries "
                                   f"after {prev_index} in term {prev_term} cannot be compared; have the leader send "
                                   f"its snapshot")
        elif prev_index > held:
            return AppendAnswer(False, -1, held + 1)
        elif prev_index > row.index and (found := self.term_of(prev_index)) not in (None, prev_term):
            lowest = max(row.index + 1, begins or 0)
            place = bisect_left(range(lowest, prev_index), found or 0, key=lambda index: self.term_of(index) or 0)
            return AppendAnswer(False, -1, lowest + place, found)
        index = max(prev_index, row.index) + 1
        stop = min(last, held)
        # An entry without a term is dead by a snapshot that is about to replace `row`.
        while index <= stop and self.term_of(index) in (None, term):
            index += 1
        return min(index - prev_index - 1, count)

    def _put(self, frame: Frame, payloads: Sequence[bytes] | None = None) -> None:
        """Queue a frame in the WAL, and change the memtable as it says. The caller holds the log's lock.

        An interrupt between the two leaves entries in the WAL that the memtable lacks. The next write of the log begins
        at the same index, so that a replay overwrites them.

        Args:
            frame: entries, a truncation, or both.
            payloads: those of a run; other entries are decoded.
        """
        self._memory.ticket = self._wal.queue(self._log_id, frame)
        if frame.cuts:
            self._memory.cut(-1 if frame.previous is None else frame.previous)
        for run in frame.runs() if payloads is None else [(frame.first, frame.term, payloads)]:
            self._memory.insert(*run)

    def _make_room(self) -> None:
        """Sync and flush what is needed before an append, so that a disk error leaves nothing appended."""
        wal, options = self._wal, self._store.options
        if wal.closed_files > options.max_unflushed_files + 1:
            # Flushes keep failing: too many WAL files wait for them.
            self._require_open()
            self._store.flush_closed()
        if wal.is_overfull:
            self._require_open()
            wal.roll_over()
        if wal.queued_bytes > options.max_queued_bytes:
            self._require_open()
            # The whole queue: this log may have nothing in it.
            wal.sync()
            self._store.settle()

    def sync(self) -> None:
        """Make all appended entries durable: one fsync for the queued writes of all threads and logs.

        Raises:
            StorageError: the disk is full, and the entries stay queued; or an fsync failed: the store is closed, and
                the outcome is unknown until it is opened again.
            Closed: the log was closed, or closed itself.
        """
        self._require_open()
        self._wal.sync(self._memory.ticket)
        self._store.settle()

    @property
    def unconfirmed(self) -> IndexSet:
        """Indexes of the appended entries that are not durable yet. O(entries of all logs that wait for a sync)."""
        self._require_open()
        return self._wal.unconfirmed(self._log_id)

    # -- truncation

    def _cut(self, frame: Frame, payloads: Sequence[bytes] | None = None) -> None:
        """Truncate, as a frame says, and append the frame's entries. The truncation is durable when this returns.

        (1) Create the next segment: only this step needs room. (2) Make the truncation durable in the WAL; from here on
        opening the log repeats it after a crash. (3) Truncate the segments. No flush of the log runs in between. A
        failure of (2) or (3) closes the log; `RaftLogStore.log` opens it again. An interrupt of (2) closes the store.
        """
        after = -1 if frame.previous is None else frame.previous
        with self._files_lock:
            self._require_truncated()
            if self._own.last_index > after:
                self._own.prepare_truncation()
            try:
                with self._lock:
                    # Not in memory that belongs to the next log already.
                    self._require_open()
                    try:
                        self._put(frame, payloads)
                    except BaseException as error:
                        if not isinstance(error, CompactlibError):
                            # An interrupt: memory, which outlives this log, may lack what the WAL's queue has.
                            self._wal.guard.fail(error)
                        raise
                self._wal.sync(self._memory.ticket)
                self._own.truncate(after)
            except BaseException as error:
                # Perhaps queued, so that its outcome is unknown. Opening the log again makes it durable.
                self._guard.fail(error)
                raise

    def _require_truncated(self) -> None:
        """Check that the log is open, and truncate segments as far as opening could not, because the disk was full."""
        self._require_open()
        if self._overruled_above is not None:
            self._wal.sync(self._memory.ticket)
            self._own.truncate(self._overruled_above)
            self._overruled_above = None

    def reset(self, last_index: int) -> None:
        """Truncate everything above `last_index`, unconfirmed entries included; durable when this returns.

        Raises:
            InvalidInput: it is below the snapshot.
            StorageError: the disk refused. If it refused the WAL or a segment, the log is closed, and opening it again
                shows the outcome.
        """
        last_index = whole(last_index)
        with self._files_lock:
            with self._lock:
                self._require_open()
                row, begins = self.state, self.first_index
                if last_index < row.index:
                    raise InvalidInput(f"reset to {last_index} would truncate entries that the snapshot {row.index} "
                                       f"covers; reset to that index or above")
                if last_index >= self._memory.last:
                    return
                after = last_index if row.index >= 0 or (begins or 0) <= last_index else -1
            self._cut(cut_frame(after))

    # -- term and vote

    @property
    def hard_state(self) -> HardState:
        """The member's term and its vote in that term, durable."""
        return self._hard_state

    def record_hard_state(self, term: int, voted_for: str | None = None) -> HardState:
        """Record a term, and a vote in it, durably. Returns the hard state. Call it before the member answers.

        The vote of a term is kept. Recording the same values again costs nothing, other values two fsyncs. The file
        (`HARD_STATE`) is in the log's folder, and is removed with the log.

        Args:
            term: the highest term that the member knows.
            voted_for: the candidate's name, 1 to 255 bytes; `None` for no vote.

        Raises:
            Stale: a higher term was recorded.
            Conflict: the member has voted for another candidate in this term.
            InvalidInput: a term or a name out of range.
            StorageError: the disk refused; the state before counts, and the member must not give the vote.
        """
        wanted = HardState(term, voted_for)
        # `close` waits for this use: the next owner of the folder must read the vote.
        with self._guard.use(), self._voting:
            self._require_open()
            before = self._hard_state
            if term < before.term:
                raise Stale(f"term {term} is over: this member knows term {before.term}; answer with that")
            if term > before.term or voted_for not in (None, before.voted_for):
                if term == before.term and before.voted_for is not None:
                    raise Conflict(f"this member has voted for {before.voted_for!r} in term {term}, and cannot vote "
                                   f"for {voted_for!r} too; refuse the vote")
                self._hard_states.write(wanted)
                self._hard_state = wanted
            return self._hard_state

    # -- snapshots

    def snapshot(self, index: int, live: IndexSet | Iterable[int], state: Iterable[Buffer] | None = None, *,
                 machine_version: int = 0) -> None:
        """Take a snapshot of everything up to `index`. Its entries are dead from then on, except those of `live`.

        Syncs first. The state is durable before the log's row names it; then the older state is removed.

        Args:
            index: at most the last index.
            live: indexes <= `index` that the log must keep; a set, or strictly ascending numbers; `()` for none.
            state: the machine's state in pieces; `None` if the host stores it itself. Buffers 1 MiB in memory.
            machine_version: the machine version of the state, see `SnapshotManifest`.

        Raises:
            Stale: a later snapshot is in force.
            InvalidInput: the log does not reach `index`.
            LiveAboveSnapshot, LiveIndexMissing: nothing changed.
            StorageError: the disk refused. The snapshot before is in force; or the log is closed, and opening it again
                shows which one is.
        """
        alive = live_set(live)
        with self._changing_snapshot():
            row = self._with_trailing(self._held_at(index, alive))
            if state is not None:
                row = self._written(row, state, machine_version)
            self._switch_to(row)

    def checkpoint(self, index: int, live: IndexSet | Iterable[int], state: Iterable[Buffer], *,
                   machine_version: int = 0) -> None:
        """Write a checkpoint: the machine's state for a fast start; no entry dies by it. See `promote`.

        The newest ten are kept. Arguments and errors as `snapshot`.

        Raises:
            Stale: the log has a snapshot or checkpoint of the same or a higher index.
        """
        alive = live_set(live)
        with self._changing_snapshot():
            self._snapshots.require_above(index, self.state.index)
            row = self._written(self._held_at(index, alive), state, machine_version)
            with self._guard.use():
                self._require_open()
                self._snapshots.write_checkpoint(row)

    def promote(self, index: int) -> SnapshotMeta:
        """Make the newest checkpoint at or below `index` the snapshot in force. Returns the row.

        Raises:
            NotFound: no checkpoint is above the snapshot.
            Stale: the checkpoint's last entry was truncated; nothing was changed.
            CorruptData: the checkpoint is damaged.
            LiveIndexMissing: the log lacks a live entry of the checkpoint; nothing was changed.
            StorageError, Closed: as `snapshot`.
        """
        with self._changing_snapshot():
            found = self._snapshots.checkpoint_below(index, self.state.index)
            if found is None:
                raise NotFound(f"no checkpoint at or below {index} that is above the snapshot {self.state.index}; "
                               f"write one with checkpoint(), or take a snapshot")
            held = self.term_of(found.index)
            if held != found.term:
                raise Stale(f"checkpoint {found.index} is of term {found.term}, and that entry was truncated since: "
                            f"the log has {'no entry' if held is None else f'an entry of term {held}'} there; take a "
                            f"snapshot")
            self._snapshots.open_state(found).close()
            self._held_at(found.index, found.live)
            self._switch_to(self._with_trailing(found))
            return self.state

    @property
    def checkpoints(self) -> tuple[SnapshotMeta, ...]:
        """The checkpoints above the snapshot, oldest first.

        Raises:
            CorruptData: a checkpoint is damaged.
        """
        self._require_open()
        with self._snapshotting:
            try:
                return self._snapshots.checkpoints(self.state.index)
            except CorruptData:
                # No damage, if the log was closed: see `_changing_snapshot`.
                self._require_open()
                raise

    def open_state(self, row: SnapshotMeta | None = None) -> StateReader:
        """Open the state of the snapshot in force, or of a checkpoint; a newer snapshot leaves the reader readable.

        Args:
            row: of `checkpoints`; default the snapshot in force.

        Raises:
            NotFound: there is no snapshot yet, or its host stores the state itself; or `row` was replaced.
            SnapshotLost: the state is missing or has another size than was written.
            StorageError: the disk refused.
        """
        while True:
            self._require_open()
            wanted = self.state if row is None else row
            if wanted.manifest is None:
                raise NotFound(f"the log {self._log_id!r} has no snapshot with a state yet; take one first")
            try:
                return self._snapshots.open_state(wanted)
            except SnapshotLost:
                self._require_open()
                # A newer snapshot may have replaced it.
                if self._snapshots.is_kept(wanted, self.state):
                    raise
                if row is not None:
                    raise NotFound(f"snapshot {row.index} was replaced by a newer one; see `checkpoints`") from None

    @contextlib.contextmanager
    def _changing_snapshot(self) -> Iterator[None]:
        """Exclude other changes of the snapshot; an iterator of a state that starts another change raises `Busy`."""
        self._require_open()
        if is_mine(self._snapshotting):
            raise Busy(f"log {self._log_id!r} is taking a snapshot, and its state iterator made this call; call again "
                       f"when the snapshot has returned")
        with self._snapshotting:
            self._require_open()
            if self._overruled_above is not None:
                with self._files_lock:
                    self._require_truncated()
            try:
                yield
            except (CorruptData, NotFound):
                # No damage, if the log was closed: its next owner, or its removal, has removed the files.
                self._require_open()
                raise
            except StorageError:
                self._tidy()
                raise
            self._tidy()

    def _held_at(self, index: int, live: IndexSet) -> SnapshotMeta:
        """The row of a snapshot at `index`; the log has that entry and all live entries, durably."""
        row = self.state
        if index < row.index:
            raise Stale(f"snapshot {index} is older than {row.index}, which is in force")
        if index > self.last_index:
            raise InvalidInput(f"snapshot {index} lies above the last index {self.last_index}; apply entries first")
        term = self.term_of(index)
        if term is None and index != row.index:
            raise InvalidInput(f"the log does not hold index {index}, so its term is unknown; take the snapshot at the "
                               f"index that was applied last")
        found = SnapshotMeta(index, row.term if term is None else term, live)
        self._wal.sync(self._memory.ticket)
        self._require_held(found)
        return found

    def _with_trailing(self, row: SnapshotMeta) -> SnapshotMeta:
        """The row with the last `keep_trailing` entries added to its live set."""
        first = max(row.index - self._store.options.keep_trailing + 1, self._kept_from, 0)
        if first > row.index or self.term_of(row.index) != row.term:
            return row
        live = row.live | IndexSet.range(first, row.index)
        return attrs.evolve(row, live=live, manifest=row.manifest and row.manifest.with_live(live))

    def _written(self, row: SnapshotMeta, state: Iterable[Buffer], machine_version: int) -> SnapshotMeta:
        # A compaction removes leftovers under this lock: not the temporary file of the first row.
        with self._guard.lock:
            self._guard.require_open()
            self._snapshots.make_folder()
        return self._snapshots.write(row, state, machine_version)

    def _switch_to(self, row: SnapshotMeta) -> None:
        """Make a row the log's row; its state is durable."""
        with self._guard.use():
            self._require_open()
            self._record_state(row)
            self._shown(row)

    def _shown(self, row: SnapshotMeta) -> None:
        with self._lock:
            # An entry may have been truncated since the check.
            self._memory.skip_to(row.index)
            self._wal.smallest_live[self._log_id] = row.smallest_live_index
        self._wake_workers()

    def _tidy(self) -> None:
        try:
            with self._guard.use():
                if self._guard.is_open:
                    self._snapshots.tidy(self._own.row)
        except StorageError as error:
            # The next snapshot, or the next opening, removes them.
            self._observer.event("raftlog_unreclaimed", error=str(error))

    def _wake_workers(self) -> None:
        for worker in self._workers:
            worker.wake()

    # -- a received snapshot

    def _begin_receiving(self, manifest: SnapshotManifest) -> Incoming:
        """Start to receive a snapshot; `Busy` while another is being received, `Stale` for one that is not newer."""
        # No snapshot removes the new files as leftovers.
        with self._snapshotting, self._guard.lock:
            self._guard.require_open()
            if self._incoming is not None and self._incoming.is_open:
                raise Busy(f"snapshot {self._incoming.manifest.index} of the log {self._log_id!r} is being received; "
                           f"close its stream, or wait for its end")
            if manifest.index <= self.state.index:
                # Another stream has installed it since the offer was judged; its files may still be staged.
                raise _not_newer(manifest.index, self.state.index)
            self._snapshots.make_folder()
            self._incoming = self._snapshots.receive(manifest)
            return self._incoming

    def _install(self, incoming: Incoming, live: IndexSet) -> None:
        """Install a received snapshot, durably.

        As in Raft, an entry of the same index and term as the leader's stays, with all entries below it. The entries
        above the snapshot stay too, if the log has the snapshot's last entry.

        Raises:
            Stale: the log's row is at or above the snapshot.
            LiveIndexMissing: the log lacks a live entry that was not sent.
            CorruptData: the state does not match the manifest.
            StorageError, Closed: nothing was changed; or the log is closed, and opening it finishes the installation.
        """
        row = attrs.evolve(incoming.row, live=live)
        with self._changing_snapshot(), self._guard.use():
            self._require_open()
            if row.index <= self.state.index:
                raise _not_newer(row.index, self.state.index)
            self._wal.sync(self._memory.ticket)
            sent = IndexSet.from_sorted(index for frame in incoming.frames() for index, _, _ in frame.runs())
            self._require_held(attrs.evolve(row, live=live - sent))
            incoming.finish()
            with self._files_lock:
                self._require_truncated()
                after = self._agreed_with(incoming)
                if self._own.last_index > after:
                    self._own.prepare_truncation()
                # The state that has arrived keeps its name for the next transfer.
                self._require_open()
                incoming.seal(after)
                try:
                    self._write_row(row, shows=False)
                    incoming.close()
                    self._take_received(row)
                    with self._lock:
                        self._own.row = row
                        self._memory.skip_to(row.index)
                except BaseException as error:
                    # A refused row changed nothing.
                    if not (isinstance(error, StorageError) and incoming.is_open):
                        self._guard.fail(error)
                    raise
            self._shown(row)

    def _agreed_with(self, incoming: Incoming) -> int:
        """The last index up to which the log agrees with a received snapshot."""
        of, last = incoming.manifest, self.last_index
        for frame in incoming.frames():
            for index, term, _ in frame.runs():
                if self.term_of(index) != term:
                    return min(last, index - 1)
        return last if last <= of.index or self.term_of(of.index) == of.term else of.index

    def _take_received(self, row: SnapshotMeta) -> None:
        """Truncate what contradicts a received snapshot, and add its live entries; durable when this returns.

        Idempotent: repeated after a crash as long as the file of the entries exists. Nothing is appended before.
        """
        after, frames = read_sealed(self._snapshots.entries_path(row))
        with self._lock:
            self._require_open()
            self._put(cut_frame(after))
        self._wal.sync(self._memory.ticket)
        self._own.truncate(after)
        put_bytes = 0
        for frame in frames:
            if put_bytes > self._store.options.max_queued_bytes:
                # So the queue is bounded, and the memtable too.
                self._wal.sync(self._memory.ticket)
                self._flush_tables()
                put_bytes = 0
            put_bytes += frame.frame_bytes
            with self._lock:
                self._require_open()
                last = self._memory.last
                self._put(frame._replace(previous=last if last >= 0 else None))
        self._wal.sync(self._memory.ticket)
        self._snapshots.taken(row)

    def pin(self, indexes: IndexSet) -> Pin:
        """Keep entries readable until the pin is released, also if a newer snapshot leaves them dead.

        Raises:
            LiveIndexMissing: the log lacks an entry, or it is dead.
        """
        self._require_open()
        # No snapshot is taken between the check and the pin.
        with self._snapshotting:
            if indexes:
                self._require_held(SnapshotMeta(indexes.last, live=indexes))
            return Pin(self, indexes)

    # -- flushing

    def flush(self) -> None:
        """Write the memtables of all logs of the store to segments; see `RaftLogStore.flush`."""
        self._require_open()
        self._store.flush()

    def _flush_memtable(self) -> None:
        """Write the memtable's entries to segments, durably, except those that segments have already.

        What was written before the disk refused is truncated again, so that the flush can be retried.
        """
        # A truncation comes before or after the whole flush: no truncated entry is written.
        with self._files_lock:
            self._require_truncated()
            is_written = self._flush_tables()
        if is_written:
            self._wake_workers()

    def _flush_tables(self) -> bool:
        with self._lock:
            table, row, last = self._memory.table, self.state, self._memory.last
            slabs = table.through(last)
        if table.is_unused:
            # Segments have all entries of the WAL; opening on a full disk could not make them durable.
            with self._guard.lock:
                self._own.settle()
            return False
        held = self.unflushed
        needed = row.needed(held) | (held & self._own.pinned)
        for slab in slabs:
            for first, last_needed in needed.between(slab.first, slab.last).runs():
                first = max(first, self._own.last_index + 1)
                if first <= last_needed:
                    part = slab.part(first, last_needed)
                    self._undone_if_refused(self._own.append_run, first, slab.term, part.payloads)
        self._undone_if_refused(self._own.sync)
        with self._lock:
            self._memory.release(last)
        return True

    def _undone_if_refused(self, change: Callable[..., object], *arguments: object) -> None:
        with self._guard.lock:
            try:
                change(*arguments)
            except StorageError:
                self._own.take_back()
                raise

    # -- the store's calls

    def _begin(self) -> None:
        """Roll forward the received snapshot or the truncations that a crash interrupted; then the log can be used.

        Entries in segments that agree with the memtable stay: a flush has written them since the truncation. So do the
        entries that the snapshot covers: it was recorded after the truncations below it had ended.
        """
        row = self.state
        try:
            if is_half_installed(self._folder, row):
                self._take_received(row)
            after = max(self._memory.table.base - 1, row.index)
            for slab in self._memory.table.slabs:
                if slab.first <= after + 1 <= slab.last:
                    after += self._own.matching(after + 1, slab.last, slab.term)
            self._overruled_above = after if after < self._own.last_index else None
            if self._wal.is_begun:
                self._require_truncated()
        except BaseException:
            self._let_go()
            raise
        self._memory.skip_to(row.index)
        self._wal.smallest_live[self._log_id] = row.smallest_live_index
        self._is_begun = True

    # -- status and checks

    def status(self) -> LogStatus:
        """The log's counters and its last error."""
        self._require_open()
        with self._lock:
            # No entry is appended in between.
            row, last, unconfirmed = self.state, self.last_index, self.unconfirmed
        return LogStatus(
            log_id=self._log_id, first_index=self.first_index, last_index=last,
            last_term=self.last_term, durable_index=unconfirmed.first - 1 if unconfirmed else last,
            snapshot_index=row.index, live=len(row.live), memtable_entries=self._memory.entries,
            segments=len(self._own.refs), pins=len(self._own.pins), is_busy=self.is_compacting,
            failures=sum(worker.failures for worker in self._workers),
            last_error=next((error_text(worker.last_error) for worker in self._workers if worker.last_error), ""))

    def audit(self) -> None:
        """Check the log's invariants; raise `AuditFailed` with the numbers of a broken one."""
        self._require_open()
        with self._snapshotting, self._lock:
            self._own.audit()

    def examine(self, seen: Examination, *, budget: Budget | None = None) -> None:
        super().examine(seen, budget=budget)
        try:
            with self._snapshotting:
                self._snapshots.read_all(self._own.row)
        except (CorruptData, Unsupported) as error:
            seen.note(error)

    # -- ending

    def _require_outside(self) -> None:
        """Raise `Busy` within a compaction or a worker of the log, for whose end the call would wait."""
        self._guard.require_outside()
        if any(worker.is_own_thread for worker in self._workers):
            raise Busy(f"log {self._log_id!r} cannot be closed, and its workers cannot be stopped, from a worker's own "
                       f"thread; do it from another")

    def _stop_workers(self) -> None:
        for worker in self._workers:
            worker.cancel()
        for worker in self._workers:
            worker.stop()

    def close(self) -> None:
        """Sync and close the log, with its store if `open_log` opened both. Idempotent.

        Raises:
            Busy: called from within a compaction or a worker of the log; nothing was done. Or one of them has not ended
                in time: the log is closed when it ends, call again.
            StorageError: the disk refused the last sync; the log is closed nevertheless.
        """
        if self.closes_store:
            self._store.close()
        else:
            self._close_alone()

    def _close_alone(self) -> None:
        """Close the log and not its store."""
        self._require_outside()
        self._stop_workers()
        try:
            if not self.is_closed and self._wal.durable_ticket < self._memory.ticket:
                with contextlib.suppress(Closed):
                    self._wal.sync(self._memory.ticket)
        finally:
            self._end()
            self._let_go()

    def _end(self) -> None:
        """Refuse every later call; waits for a running append."""
        with self._lock if self._guard.is_open else contextlib.nullcontext():
            self._guard.close()

    def _let_go(self) -> None:
        """Release pins and files without a sync."""
        for pin in list(self._own.pins):
            pin.release()
        self._guard.release()

    def __repr__(self) -> str:
        return (f"<{type(self).__name__} {self._log_id!r}: {self.first_index} to {self.last_index}, snapshot "
                f"{self.state.index}>")


def _runs_of(entries: Iterable[Entry | tuple[int, int, Buffer]]) -> list[tuple[int, int, list[bytes]]]:
    """Split entries into runs of consecutive indexes and one term, of a limited size: first index, term, payloads."""
    # A generator may reuse its buffer for the next row.
    rows = entries if type(entries) is list else [(index, term, own_bytes(payload)) for index, term, payload in entries]
    if not rows:
        return []
    indexes, terms, given = zip(*rows, strict=True)
    payloads = list(given) if set(map(type, given)) == {bytes} else list(map(own_bytes, given))
    first = indexes[0]
    if indexes != tuple(range(first, first + len(rows))):
        place = next(place for place, index in enumerate(indexes) if index != first + place)
        raise InvalidInput(f"index {indexes[place]} follows {indexes[place - 1]} in one call; give consecutive indexes")
    if terms.count(terms[0]) == len(terms):
        return _parts(first, terms[0], payloads)
    runs: list[tuple[int, int, list[bytes]]] = []
    for term, group in groupby(range(len(rows)), terms.__getitem__):
        places = list(group)
        runs += _parts(first + places[0], term, payloads[places[0]:places[-1] + 1])
    return runs


def _parts(first: int, term: int, payloads: list[bytes]) -> list[tuple[int, int, list[bytes]]]:
    """Split a run into runs of a limited size; check the numbers, which are stored."""
    first, term = whole(first), whole(term)
    if not 0 <= first <= MAX_INDEX + 1 - len(payloads) or not 0 <= term <= MAX_INDEX:
        raise InvalidInput(f"entries from {first} on in term {term}: index and term are 0 to {MAX_INDEX}")
    return [(first + start, term, payloads[start:start + MAX_APPEND_ENTRIES])
            for start in range(0, len(payloads), MAX_APPEND_ENTRIES)]


def _following(first: int, term: int, payloads: Sequence[bytes], *, cuts: bool = False) -> Frame:
    """The frame of a run that follows its predecessor."""
    return run_frame(first, term, payloads, first - 1 if first else None, cuts)


def _not_newer(index: int, in_force: int) -> Stale:
    return Stale(f"snapshot {index} is not newer than {in_force}, which is in force")
