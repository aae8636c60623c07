# SPDX-License-Identifier: Apache-2.0
"""`RaftLog`: one replicated log as a host uses it: append, sync, read, snapshot, compact, install.

An append goes into the WAL's queue and into the memtable at once, in one order, under the log's lock. A flush writes
what the memtable holds to segments. A cut (an append over held entries, `reset`, a conflict in `append_entries`) is
made in memory, in the WAL and in the segments before the call returns. Reads take no lock (`LogReading`).

Locks, in this order: the snapshot's, that of flushes and cuts, the log's, the WAL's, the segments' (the guard's).
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol

import attrs

from compactlib.errors import (
    AuditFailed,
    Busy,
    Closed,
    CompactlibError,
    InvalidInput,
    NotFound,
    Stale,
    StorageError,
)
from compactlib.indexset import IndexSet
from compactlib.raftlog.arguments import bytes_of, index_set, listed, whole
from compactlib.raftlog.errors import GapDetected, LiveIndexMissing, Overwriting
from compactlib.raftlog.memtable import STALE_BYTES, Memtable, needed_slabs, replay, visible_slabs
from compactlib.raftlog.model.hard_state import HardState, KeptHardState
from compactlib.raftlog.model.snapshot_meta import SnapshotMeta
from compactlib.raftlog.model.status import LogStatus, told
from compactlib.raftlog.model.values import MAX_INDEX, AppendAnswer, AppendEntries, Entry
from compactlib.raftlog.segment.segment_list import OpenFiles
from compactlib.raftlog.store.append_rule import judge
from compactlib.raftlog.store.options import StoreOptions
from compactlib.raftlog.store.pins import Pin
from compactlib.raftlog.store.protocols import CheckpointStore, LogWorker, SnapshotStore
from compactlib.raftlog.store.raft_reading import RaftReading
from compactlib.raftlog.wal.frames import Frame, FrameKind, empty_body, run_body, sparse_body
from compactlib.raftlog.wal.wal import Confirmed, QueuedWrite, Wal

if TYPE_CHECKING:
    from typing_extensions import Buffer

_LOGGER = logging.getLogger("compactlib.raftlog")
MAX_APPEND_ENTRIES = 1 << 14
_RUN_ENTRIES = 1024
"""Flushed at a stretch, in about a millisecond, before a read of another thread has its turn."""


@attrs.define(eq=False)
class LogMemory:
    """What a store keeps of a log in memory; it outlives a `RaftLog` that has closed itself.

    Attributes:
        memtable: entries that are in no segment yet.
        waiting: what the WAL has not confirmed yet, in the order of appending: ticket, first and last index.
        ticket: of the last write.
    """

    memtable: Memtable
    waiting: deque[tuple[int, int, int]] = attrs.field(factory=deque)
    ticket: int = 0
    is_begun: bool = False  # knows where the segments end


class OwnStore(Protocol):
    """What a log uses of its `RaftLogStore`."""

    @property
    def options(self) -> StoreOptions:
        """Its settings."""

    @property
    def open_files(self) -> OpenFiles:
        """Bounds the segments that are kept open, of all its logs."""

    @property
    def syncs_by_itself(self) -> bool:
        """Whether its own thread syncs what was queued."""

    def wake_committer(self) -> None:
        """Something was queued, which that thread syncs."""

    def settle(self) -> None:
        """After a sync, with no lock held: notify of what became durable, and flush if WAL files were closed."""

    def flush_closed(self) -> None:
        """Write what the logs hold in memory to their segments, and remove the closed WAL files."""

    def flush(self) -> None:
        """Close the WAL file first, and do the same."""

    def close(self) -> None:
        """Sync, and let all logs go."""


class RaftLog(RaftReading):
    """One log of a `RaftLogStore`. Threads may share it; `open_log` makes one with a store of its own.

    What was appended is visible to reads at once, and durable after `sync`. Entries are in the WAL and in memory first,
    and move to segments in the background.

    Made by `RaftLogStore.log`.
    """

    _wal: Wal
    """Given by the store once all logs are open."""

    def __init__(self, store: OwnStore, log_id: str, folder: str, memory: LogMemory, *,
                 row_is_lost: bool = False) -> None:
        options = store.options
        super().__init__(folder, options.log, memory.memtable, open_files=store.open_files, row_is_lost=row_is_lost)
        self._store = store
        self._log_id = log_id
        self._pending = memory
        self._max_queued_bytes = options.max_queued_bytes
        self._max_closed_files = options.max_unflushed_files + 1
        self._keep_trailing = options.keep_trailing
        self._lock = threading.RLock()
        self._files_lock = threading.RLock()
        self._is_cutting = False
        # One snapshot or installation at a time.
        self._snapshotting = threading.RLock()
        self._changes_snapshot = False
        self.closes_store: bool = False
        self._on_confirmed: Callable[[Confirmed], object] | None = None
        self._failures = 0
        self._last_error: BaseException | None = None
        self._snapshots: SnapshotStore | None = None
        self._worker: LogWorker | None = None
        # A snapshot may be in the store and not in the row: a try that the disk has cut short.
        self._row_may_be_behind = False
        if not memory.is_begun:
            memory.memtable.skip_to(self._last_in_segments)
            memory.is_begun = True
        try:
            self._hard_state: KeptHardState = KeptHardState(self._files, folder)
        except BaseException:
            self._guard.release()
            raise

    def attach(self, snapshots: SnapshotStore | None = None, worker: Callable[[RaftLog], LogWorker] | None = None,
               on_confirmed: Callable[[Confirmed], object] | None = None, *, applied: int | None = None) -> None:
        """Give the log where its snapshots lie, the worker that compacts it, and the callback for what became durable.

        A snapshot store that is ahead of the log's row (a crash came between the two) brings the row up to it.

        Args:
            snapshots: where snapshots lie; without one the host keeps them, and `snapshot` only records the row.
            worker: makes the worker that compacts; it is started, and notified at once of the snapshot in force;
                without one `compact` runs when the host calls it.
            on_confirmed: called with what became durable, in order and with no lock held, by a thread that syncs. What
                it raises is kept for `status` and logged.
            applied: given by a host that starts anew: the last index that its machine has applied, -1 if none. What
                lies behind the first gap from there on is taken back durably: it is what a crash has left of a
                snapshot's transfer. A log of which nothing was applied begins at 0 or 1.

        Raises:
            CorruptData: the newest snapshot is damaged.
            LiveIndexMissing: the log does not hold what that snapshot needs.
            InvalidInput: the machine has applied more than the log holds without a gap.
            StorageError, Closed: as `sync`.
        """
        self._require_open()
        if applied is not None and whole("the last index applied", applied) < -1:
            raise InvalidInput(f"the last index applied is {applied}; give it, or -1 if none was")
        if snapshots is not None:
            with self._changing_snapshot():
                self._snapshots = snapshots
                self._follow_snapshots(snapshots)
                snapshots.remove_older()
        if applied is not None:
            self._take_back_behind_gap(applied)
        if on_confirmed is not None:
            self._on_confirmed = on_confirmed
        if worker is not None:
            self.stop_worker()
            self._worker = made = worker(self)
            try:
                made.start()
            except BaseException:
                # What it has begun does not go on.
                self.stop_worker()
                raise
            row = self.state
            if row.index >= 0:
                # What an earlier life had left dead does not wait for this one's first snapshot.
                made.snapshot_recorded(row)

    def _take_back_behind_gap(self, applied: int) -> None:
        through, first = self.contiguous_through, self.first_index
        if self.state.index < 0 and (first is None or first > applied):
            if first is not None and first > max(applied + 1, 1):
                # These follow nothing.
                through = applied
        elif applied > through:
            raise InvalidInput(f"the machine has applied {applied}, and the log holds everything up to {through} only; "
                               f"give the index of the last entry of this log that it has applied")
        if self.last_index > through:
            self.reset(through)
            self.sync()

    def _follow_snapshots(self, snapshots: SnapshotStore) -> SnapshotMeta | None:
        """Bring the row up to a snapshot store that is ahead of it; returns the snapshot that is in force there."""
        found = snapshots.latest()
        if found is not None and found.index > self.state.index:
            # Without a row nobody knows whether what lies below was dead.
            self._take_over(found, trails=self.state.index >= 0 or self._row_may_be_behind)
        self._row_may_be_behind = False
        return found

    @property
    def log_id(self) -> str:
        """The log's id in its store."""
        return self._log_id

    @property
    def is_closed(self) -> bool:
        """Whether the log was closed, or closed itself."""
        return not (self._guard.is_open and self._wal.guard.is_open)

    def _require_open(self) -> None:
        self._guard.require_open()
        self._wal.guard.require_open()

    @property
    def contiguous_through(self) -> int:
        """Up to here every index behind the snapshot is held, and follows the one before: the last, or that at a gap.

        In a log without a snapshot, from the first index that is held; -1 in an empty log. O(1), but for the first
        time and after a snapshot over gaps: O(segments).
        """
        self._require_open()
        with self._lock:
            return self._through()

    def entries_after(self, prev_index: int, *, max_bytes: int = 1 << 20) -> AppendEntries | None:
        """What a leader sends to a follower whose log is the leader's up to `prev_index`, as far as it is known.

        `None` if the log does not hold all that follows, or not the term before it: then the follower needs the
        snapshot. `StoreOptions.keep_trailing` says how far behind the snapshot a follower may be.

        Args:
            prev_index: `next_index` of the follower's last answer, less one.
            max_bytes: of payloads; one entry is given whatever its size.

        Raises:
            CorruptData: an entry is damaged.
            Closed: the log was closed.
        """
        prev_index, max_bytes = whole("the previous index", prev_index), whole("max_bytes", max_bytes)
        return self._entries_after(prev_index, self.contiguous_through, max_bytes)

    def next_index(self, answer: AppendAnswer) -> int:
        """What a leader sends next to a follower that has answered so: `answer.next_index`, or, if this log has entries
        of the term that conflicts, what is behind the last of them: those the follower has too. O(log entries).
        """
        return self._next_index(answer, self.contiguous_through)

    # -- appending

    def append(self, entries: Iterable[Entry | tuple[int, int, Buffer]]) -> int:
        """Append entries of consecutive indexes behind the last one, as a leader does with what it is asked to do.

        What the log holds is never taken back by this: a follower has `append_entries` for what its leader sends.
        Returns the last index. Durable after `sync`.

        Args:
            entries: `Entry` values or (index, term, payload) tuples, ascending without gaps.

        Raises:
            Overwriting: the log holds an entry of the first index already.
            GapDetected: the first does not follow the last index, or the one before the first gap, or another entry
                does not follow the one before it.
            InvalidInput: an index lies at or below the snapshot, or is no 64-bit number.
            MemtableFull: too many entries at once.
            StorageError, CorruptData: too much waits for a sync or for segments, and the disk refuses that; nothing was
                appended. (Of several terms, or more than 16,384 entries, the first may be: see `last_index`.)
            Closed: the log was closed, or closed itself.
        """
        if type(entries) is list and len(entries) == 1 and isinstance(entries[0], tuple) and len(entries[0]) == 3:
            first, term, payload = entries[0]
            if type(first) is int and type(term) is int and type(payload) is bytes:
                self._append(first, term, [payload])
                return self._memory.last
        for first, term, payloads in self._checked_runs(entries):
            self.append_run(first, term, payloads)
        return self._memory.last

    def _checked_runs(self, entries: Iterable[Entry | tuple[int, int, Buffer]]) -> list[tuple[int, int, list[Buffer]]]:
        """All are checked before the first is taken."""
        runs = list(runs_of(entries))
        for first, term, payloads in runs[1:]:
            require_numbers(first, first + len(payloads) - 1, term)
        return runs

    def append_run(self, first: int, term: int, payloads: Sequence[Buffer]) -> None:
        """Append entries of consecutive indexes and one term: a few calls, however many. Raises what `append` does."""
        for start, part in self._parts(first, term, payloads):
            self._append(start, term, part)

    def _append(self, first: int, term: int, payloads: Sequence[bytes]) -> None:
        """The path of every append: what memory and WAL take at once, or not at all."""
        if not 0 <= first <= MAX_INDEX + 1 - len(payloads) or not 0 <= term <= MAX_INDEX:
            raise _no_numbers(first, term)
        wal, memtable = self._wal, self._memory
        if (wal.closed_files > self._max_closed_files or wal.queued_bytes > self._max_queued_bytes
                or self._gap.after is not None or memtable.entries + len(payloads) > memtable.max_entries):
            self._make_room_for(first, len(payloads))
        self._guard.require_open()
        with self._lock:
            row = self._own.row
            if not (self._knows_gap and self._gap_after is None and first == memtable.last + 1
                    and (row is None or first > row.index)):
                self._require_next(first)
            overrules = first <= memtable.last
            if not overrules:
                self._put(first, term, payloads)
        if overrules:
            # What lies behind a gap goes.
            self._cut(first - 1, partial(self._put, first, term, payloads), partial(self._require_next, first))
        if wal.queued_bytes > self._max_queued_bytes or self._store.syncs_by_itself:
            self._after_append()

    def _require_next(self, first: int) -> None:
        """Entries from `first` on follow all that is held, but for what lies behind a gap. The caller locks."""
        self._require_appendable(first)
        through = self._through()
        if first <= through:
            raise Overwriting(index=first, last=through)
        if first > through + 1 and through < self._memory.last:
            raise GapDetected(previous=first - 1, last=through, highest=self._memory.last)
        # An empty log begins anywhere, one that everything was taken back of included.
        if 0 <= self._memory.last < first - 1:
            raise GapDetected(previous=first - 1, last=self._memory.last)

    def append_entries(self, prev_index: int, prev_term: int,
                       entries: Iterable[Entry | tuple[int, int, Buffer]] = ()) -> AppendAnswer:
        """Take what a leader sends, by Raft's rule; the answer is durable when this returns.

        A message that comes twice, late or out of order changes nothing: entries are taken back only from an index on
        at which the log has another term. What the snapshot covers counts as the leader's. The host has refused
        leaders of a lower term before it calls this. In a log without a snapshot whose first index is 1, `prev_index`
        and `prev_term` of the first entry are 0 (-1 and 0 where it is 0).

        Args:
            prev_index: the index before the first entry.
            prev_term: the term of the leader's entry there.
            entries: as of `append`, from `prev_index + 1` on; none asks whether the log is the leader's up to there.

        Raises:
            InvalidInput: the entries are not consecutive, or do not follow `prev_index`; or the log begins later, and
                has no snapshot of what lies before.
            MemtableFull, StorageError, CorruptData, Closed: as `append` and `sync`; the first entries may
                be in the log.
        """
        prev_index, prev_term = whole("the previous index", prev_index), whole("the previous term", prev_term)
        if prev_index < -1:
            raise InvalidInput(f"the previous index is {prev_index}; it is 0, or -1, if nothing comes before")
        runs = self._checked_runs(entries)
        if runs and runs[0][0] != prev_index + 1:
            raise InvalidInput(f"the first entry is {runs[0][0]}, and follows {prev_index}; give entries from "
                               f"{prev_index + 1} on")
        self._require_open()
        judged: AppendAnswer | int = 0 if runs else self._take_part(prev_index, prev_term, prev_term, [])
        for first, term, payloads in runs:
            for start, part in self._parts(first, term, payloads):
                if isinstance(judged, int):
                    judged = self._take_part(prev_index, prev_term, term, part)
                    prev_index, prev_term = start + len(part) - 1, term
        self.sync()
        if not isinstance(judged, int):
            return judged
        matched = max(prev_index, self.state.index)
        return AppendAnswer(True, matched, matched + 1)

    def _take_part(self, prev_index: int, prev_term: int, term: int, payloads: Sequence[bytes], *,
                   may_cut: bool = False) -> AppendAnswer | int:
        with self._lock:
            self._require_open()
            judged = judge(self, self._through(), prev_index, prev_term, term, len(payloads))
            if not isinstance(judged, int) or judged == len(payloads):
                return judged
            start = prev_index + 1 + judged
            overrules = start <= self._memory.last
            if not overrules:
                self._put(start, term, payloads[judged:])
        if overrules and not may_cut:
            # Judged again with the lock that keeps other cuts away.
            with self._switching():
                return self._take_part(prev_index, prev_term, term, payloads, may_cut=True)
        if overrules:
            self._cut(start - 1, partial(self._put, start, term, payloads[judged:]), self._require_open)
        self._after_append()
        return judged

    @contextlib.contextmanager
    def _switching(self) -> Iterator[None]:
        """Inside it no other flush or cut of this log runs."""
        self._require_open()
        with self._files_lock:
            if self._is_cutting:
                self._guard.close("was left in the middle of a cut by an error or an interrupt")
            self._guard.require_open()
            yield

    def _cut(self, after: int, write: Callable[[], object], check: Callable[[], object]) -> None:
        """Take back everything above `after` by what `write` queues; durable, also in segments, when this returns.

        The next segment is begun first, so that nothing but the first of these steps needs room. Then the cut becomes
        durable in the WAL; what follows is done again by opening the log after a crash. A flush writes nothing
        meanwhile, and the log closes itself if any but the first step fails: `RaftLogStore.log` opens it again.
        """
        with self._switching():
            if self._last_in_segments > after:
                self._own.prepare_truncation()
            with self._lock:
                check()
                self._is_cutting = True
                try:
                    write()
                except CompactlibError:
                    self._is_cutting = False
                    raise
            try:
                self._wal.sync(self._pending.ticket)
                self._own.truncate(after)
            except CompactlibError as error:
                # Queued: it is in memory, and nobody knows whether it is durable. Opening the log again makes it so.
                self._guard.fail(error)
                raise
            self._is_cutting = False

    @property
    def _last_in_segments(self) -> int:
        last = self._own.last_index
        return -1 if last is None else last

    def _parts(self, first: int, term: int, payloads: Sequence[Buffer]) -> Iterator[tuple[int, Sequence[bytes]]]:
        """Checked parts of a run, each with its first index, and room in memory for each."""
        first = whole("the first index", first)
        if type(payloads) is not list:
            payloads = listed("the payloads", payloads, bytes_of)
        copied = payloads if set(map(type, payloads)) == {bytes} else list(map(bytes_of, payloads))
        for start in range(0, len(copied), MAX_APPEND_ENTRIES):
            part: Sequence[bytes] = copied[start:start + MAX_APPEND_ENTRIES]
            require_numbers(first + start, first + start + len(part) - 1, term)
            self._make_room_for(first + start, len(part))
            yield first + start, part

    def _put(self, first: int, term: int, payloads: Sequence[bytes]) -> None:
        """Queue entries in the WAL, and put them into the memtable. The caller locks.

        An interrupt between the two leaves entries in the WAL of which memory does not know: the next write of the
        log begins at the same index, so that a replay overwrites them.
        """
        memtable, pending = self._memory, self._pending
        last, written = first + len(payloads) - 1, memtable.last
        cut_after = first - 1 if first <= written else None
        ticket = self._wal.queue(QueuedWrite(self._log_id, run_body(payloads), first - 1 if first else None, cut_after,
                                             first, last, term))
        memtable.insert(first, term, payloads)
        self._gap_after = None
        if cut_after is not None:
            self._forget_above(cut_after)
        pending.ticket = ticket
        waiting = pending.waiting
        waiting.append((ticket, first, last))
        if waiting[0][0] <= self._wal.durable_ticket:
            self._forget_confirmed()

    def _forget_above(self, after: int) -> None:
        """No caller waits any more for what was taken back. They ascend: what is appended lies above all that waits."""
        waiting = self._pending.waiting
        while waiting and waiting[-1][2] > after:
            ticket, first, _ = waiting.pop()
            if first <= after:
                waiting.append((ticket, first, after))

    def _forget_confirmed(self) -> None:
        waiting, durable = self._pending.waiting, self._wal.durable_ticket
        while waiting and waiting[0][0] <= durable:
            waiting.popleft()

    def append_sparse(self, entries: Sequence[Entry], *, previous_index: int | None = None,
                      apart: bool = False) -> None:
        """Append ascending entries with gaps between them, as a snapshot from elsewhere needs them.

        Args:
            entries: ascending by index, all above the snapshot.
            previous_index: the log's last index, as the caller knows it; `None` accepts whatever it is.
            apart: there is a gap before the first, after a crash too, even if no index is missing between: the entry
                before may be another leader's.

        Raises:
            GapDetected: the log's last index is another.
            Overwriting: an index is not above the one before it, or the last index of the log.
            InvalidInput, MemtableFull, StorageError, Closed: as `append`.
        """
        if previous_index is not None:
            previous_index = whole("the previous index", previous_index)
        entries = listed("the entries", entries, checked_entry)
        if not entries:
            return
        for entry in entries:
            require_numbers(entry.index, entry.index, entry.term)
        for before, entry in pairwise(entries):
            if entry.index <= before.index:
                raise Overwriting(index=entry.index, last=before.index)
        self._make_room_for(entries[0].index, len(entries))
        last = self.last_index
        if apart and 0 <= last == self.contiguous_through == entries[0].index - 1:
            # What was taken back above is gone by then.
            self.sync()
            self._gap.note(last)
        with self._lock:
            self._require_appendable(entries[0].index)
            last = self._memory.last
            self._memory.require_sparse_fit(entries[0].index, previous_index)
            self._memory.require_room(len(entries))
            indexes, terms = [entry.index for entry in entries], [entry.term for entry in entries]
            body = sparse_body(indexes, terms, [entry.payload for entry in entries])
            ticket = self._wal.queue(QueuedWrite(self._log_id, body, last if last >= 0 else None, None, indexes[0],
                                                 indexes[-1], terms[-1], indexes, terms))
            for entry in entries:
                self._memory.insert(entry.index, entry.term, [entry.payload])
                self._pending.waiting.append((ticket, entry.index, entry.index))
            self._pending.ticket = ticket
            if self._gap_after is None and (apart or not 0 <= last == entries[-1].index - len(entries)):
                self._knows_gap = False
        self._after_append()

    def reset(self, last_index: int) -> None:
        """Take back everything above `last_index`, unconfirmed entries included; durable when this returns.

        Raises:
            InvalidInput: it lies below the snapshot.
            StorageError: the disk refused. If the WAL was refused the cut, or segments were, the log is closed, and
                opening it again shows whether it has happened.
            Closed: as `append`.
        """
        self._reset(whole("the last index", last_index))
        self._store.settle()

    def _reset(self, last_index: int) -> None:
        with self._switching():
            with self._lock:
                self._require_open()
                if last_index < self.state.index:
                    raise InvalidInput(f"reset to {last_index} would take back what the snapshot "
                                       f"{self.state.index} covers; reset to that index or above")
                if last_index >= self._memory.last:
                    return
                after = self._highest_held(last_index)
            self._cut(after, partial(self._queue_cut, after), self._require_open)
        with self._lock:
            if self._gap_after is not None and self._memory.last <= self._gap_after:
                self._gap_after = None

    def _queue_cut(self, after: int) -> None:
        self._pending.ticket = self._wal.queue(QueuedWrite(self._log_id, empty_body(FrameKind.CUT), None, after,
                                                           after + 1, after, 0))
        self._forget_above(after)
        self._memory.cut(after)

    def _require_appendable(self, first: int) -> None:
        self._require_open()
        row = self.state
        if first <= row.index:
            raise InvalidInput(f"index {first} lies at or below the snapshot {row.index}; what a snapshot "
                               f"covers is committed and cannot be written again, append from {row.index + 1}")

    def _make_room_for(self, first: int, entries: int) -> None:
        """Before anything is appended, so that what the disk refuses was not."""
        self._require_open()
        if self._wal.closed_files > self._max_closed_files:
            # Flushes have failed so long that too many files wait.
            self._store.flush_closed()
        gap = self._gap.after
        if gap is not None and self.state.index <= gap and first <= gap + 1:
            self._end_gap(gap)
        if self._wal.queued_bytes > self._max_queued_bytes:
            self.sync()
        if self._memory.entries + entries > self._memory.max_entries:
            self._store.flush()
        self._memory.require_room(entries)

    def _end_gap(self, after: int) -> None:
        """What comes next follows the entries up to `after`: first nothing else may lie there, after a crash either."""
        self.reset(after)
        self.sync()
        self._gap.forget()

    def _after_append(self) -> None:
        self._store.wake_committer()
        if self._wal.queued_bytes > self._max_queued_bytes:
            # It is appended, and stays queued: a disk that is still full shows with the next.
            with contextlib.suppress(StorageError):
                self.sync()

    def sync(self) -> None:
        """Return when everything appended before is durable: one fsync for what all threads and logs have queued.

        Raises:
            StorageError: the disk has no room, and the entries stay queued; or a sync failed: it is unknown whether
                they are durable, and the store is closed.
            Closed: the log was closed, or closed itself.
        """
        self._require_open()
        self._wal.sync(self._pending.ticket)
        self._store.settle()

    def notify_confirmed(self, confirmed: Confirmed) -> None:
        """The store's: call the host's listener, with no lock held."""
        if self._on_confirmed is not None:
            try:
                self._on_confirmed(confirmed)
            except Exception as error:
                _LOGGER.warning("on_confirmed of the log %r failed; the log goes on", self._log_id, exc_info=error)
                self._note(error)

    def _note(self, error: BaseException) -> None:
        """Keep what a listener raised, or what nobody else is notified of."""
        self._failures, self._last_error = self._failures + 1, error

    @property
    def unconfirmed(self) -> IndexSet:
        """What was appended and is not durable yet. O(runs)."""
        self._require_open()
        with self._lock:
            self._forget_confirmed()
            return IndexSet.from_runs((first, last) for _, first, last in self._pending.waiting)

    # -- term and vote

    @property
    def hard_state(self) -> HardState:
        """The member's term, and whom it has voted for in it, as they were recorded last. Durable."""
        return self._hard_state.now

    def record_hard_state(self, term: int, voted_for: str | None = None) -> HardState:
        """Note a term, and a vote in it, durably; what is in force then. Call it before you answer for either.

        A term of which it knows the vote keeps that; the same again costs nothing, anything else two syncs of the disk.
        It lies beside the log (`HARD_STATE`), and goes with it when the log is removed.

        Args:
            term: the highest that the member knows.
            voted_for: the candidate's name, 1 to 255 bytes; `None` if it has not voted.

        Raises:
            Stale: a higher term was recorded.
            Conflict: the member has voted for another in this term.
            InvalidInput: there is no such term or name.
            StorageError: the disk refused; the one before counts, and a vote that was refused must not be given.
            Closed: the log was closed.
        """
        # Closing waits for it: the next owner of the folder must know of the vote.
        with self._guard.use():
            self._require_open()
            return self._hard_state.record(whole("the term", term), voted_for)

    # -- snapshots

    def snapshot(self, index: int, live: IndexSet | Iterable[int] = (), state: Iterable[Buffer] | None = None) -> None:
        """Take a snapshot: everything up to `index` is in it, except the entries of `live`, which stay in the log.

        Syncs first. The snapshot is durable before the log's row names it, and the older one goes after. What the disk
        has refused may be tried again, with the same arguments or for a later index.

        Args:
            index: at most the last index.
            live: indexes <= `index` that the log must keep; a set, or strictly ascending numbers.
            state: the machine's state, for the snapshot store; leave it out if the host keeps it elsewhere.

        Raises:
            Stale: a later snapshot is in force.
            InvalidInput: the log does not reach `index` or has a gap there, or a state was given and there is no
                snapshot store, or the other way round.
            LiveAboveSnapshot, LiveIndexMissing: nothing changed.
            StorageError: the disk refused; the row has not changed. Call again.
        """
        live_set = index_set("the live indexes", live)
        if (state is None) != (self._snapshots is None):
            raise InvalidInput("a state is given to a log that has a snapshot store, and only to such a log: see "
                               "RaftLog.attach")
        _require_index(index)
        with self._changing_snapshot():
            found = self._caught_up()
            meta = self._meta_at(index, live_set)
            if meta == found:
                # It is there already, and in the row by now.
                return
            self._wal.sync(self._pending.ticket)
            self._require_held(meta)
            if self._snapshots is not None and state is not None:
                self._row_may_be_behind = True
                self._snapshots.write(meta, state)
            self._record(self._with_trailing(meta))
            self._row_may_be_behind = False

    def checkpoint(self, index: int, live: IndexSet | Iterable[int], state: Iterable[Buffer]) -> None:
        """Write a checkpoint: the machine's state for a fast start, while the log forgets nothing; see `promote`.

        Args:
            index: at most the last index.
            live: as of a snapshot that would be taken there.
            state: the machine's state.

        Raises:
            Stale: a snapshot or checkpoint of the same or a higher index is there.
            InvalidInput: as `snapshot`, or the snapshot store that was attached keeps no checkpoints, or there is none.
            LiveAboveSnapshot, LiveIndexMissing, StorageError: nothing changed.
        """
        live_set = index_set("the live indexes", live)
        _require_index(index)
        with self._changing_snapshot():
            self._caught_up()
            store = self._checkpoint_store()
            meta = self._meta_at(index, live_set)
            self._wal.sync(self._pending.ticket)
            self._require_held(meta)
            store.write_checkpoint(meta, state)

    def promote(self, index: int) -> SnapshotMeta:
        """Make the newest checkpoint at or below `index` the snapshot in force, in its store and in the log's row.

        Returns the row.

        Raises:
            NotFound: there is none above the snapshot.
            Stale: the log has taken back the entry that it ends at; nothing was changed.
            InvalidInput: the snapshot store that was attached keeps no checkpoints, or there is none.
            CorruptData: the checkpoint is damaged.
            LiveIndexMissing: the log does not hold what it needs; nothing was changed.
            StorageError, Closed: as `snapshot`. Call again.
        """
        _require_index(index)
        with self._changing_snapshot():
            found = self._caught_up()
            store = self._checkpoint_store()
            meta = store.checkpoint_below(index)
            if meta is None and found is not None and found.index <= index:
                # The disk refused the rest of an earlier try.
                return found
            if meta is None:
                raise NotFound(f"no checkpoint at or below {index} that is above the snapshot {self.state.index}; "
                               f"write one with checkpoint(), or take a snapshot")
            held = self.term_of(meta.index)
            if held != meta.term:
                raise Stale(f"checkpoint {meta.index} is of term {meta.term}, and that entry was taken back since: the "
                            f"log holds {'none' if held is None else f'one of term {held}'} there; take a snapshot")
            self._wal.sync(self._pending.ticket)
            self._require_held(meta)
            self._row_may_be_behind = True
            store.promote(meta.index)
            self._record(self._with_trailing(meta))
            self._row_may_be_behind = False
            return self.state

    @contextlib.contextmanager
    def _changing_snapshot(self) -> Iterator[None]:
        """One change of the snapshot at a time: what gives the state of one can begin no other, on its thread either.

        Raises:
            Busy: it tries.
        """
        self._require_open()
        with self._snapshotting:
            if self._changes_snapshot:
                raise Busy(f"log {self._log_id!r} is taking a snapshot, whose state was being given when this was "
                           f"called; call it when that has returned")
            self._changes_snapshot = True
            try:
                yield
            finally:
                self._changes_snapshot = False
        self._store.settle()

    def _caught_up(self) -> SnapshotMeta | None:
        """Before a snapshot: bring the row up to what an earlier try has left in the store, and return that."""
        self._require_open()
        if self._row_may_be_behind and self._snapshots is not None:
            return self._follow_snapshots(self._snapshots)
        return None

    def _checkpoint_store(self) -> CheckpointStore:
        store: Any = self._snapshots
        if store is None or not callable(getattr(store, "write_checkpoint", None)):
            raise InvalidInput(f"checkpoints need a snapshot store that keeps them, such as a SnapshotFolder; attached "
                               f"is {store!r:.100}: see RaftLog.attach")
        found: CheckpointStore = store
        return found

    def _meta_at(self, index: int, live: IndexSet) -> SnapshotMeta:
        """A snapshot at `index`, which the log must reach without a gap."""
        if index < self.state.index:
            raise Stale(f"snapshot {index} is older than {self.state.index}, which is in force")
        if index > self.last_index:
            raise InvalidInput(f"snapshot {index} lies above the last index {self.last_index}; apply entries first")
        through = self.contiguous_through
        if index > through:
            raise InvalidInput(f"snapshot {index} lies behind a gap: the log holds everything up to {through} only, so "
                               f"no machine has applied what follows; take back what is behind the gap with "
                               f"reset({through})")
        term = self.term_of(index)
        if term is None and index != self.state.index:
            raise InvalidInput(f"the log does not hold index {index}, so its term is unknown; take the snapshot at the "
                               f"index that was applied last")
        return SnapshotMeta(index, self.state.term if term is None else term, live)

    def install(self, meta: SnapshotMeta) -> None:
        """Put the row of a snapshot in force that came from elsewhere and is in the snapshot store already.

        Its live entries must have been appended; they are made durable first. What the log holds above `meta.index`
        stays if the entry at `meta.index` has `meta.term`, and is taken back otherwise.

        Raises:
            Stale: the row is at or above it.
            LiveIndexMissing: the log does not hold a live entry; nothing was changed.
            StorageError, Closed: as `sync`.
        """
        with self._changing_snapshot():
            self._require_open()
            if meta.index <= self.state.index:
                raise Stale(f"snapshot {meta.index} is not newer than {self.state.index}, which is in force")
            self._row_may_be_behind = self._snapshots is not None
            self._take_over(meta)
            self._row_may_be_behind = False

    def _take_over(self, meta: SnapshotMeta, *, trails: bool = False) -> None:
        self._require_held(meta)
        term = self.term_of(meta.index)
        # Without a row it may be that one which was lost: then the entry may have been dropped, and what follows stays.
        if self.last_index > meta.index and term != meta.term and not (term is None and self.state.index < 0):
            self._reset(meta.index)
        self._wal.sync(self._pending.ticket)
        self._record(self._with_trailing(meta) if trails else meta)

    def _with_trailing(self, meta: SnapshotMeta) -> SnapshotMeta:
        """The row of a snapshot whose entries the machine has applied from this log: the last of them stay."""
        first = max(meta.index - self._keep_trailing + 1, self._kept_from, 0)
        if first > meta.index or meta.index > self.contiguous_through or self.term_of(meta.index) != meta.term:
            return meta
        return SnapshotMeta(meta.index, meta.term, meta.live | IndexSet.range(first, meta.index))

    def _record(self, meta: SnapshotMeta) -> None:
        self._record_state(meta)
        with self._lock:
            self._memory.skip_to(meta.index)
            self._wal.smallest_live[self._log_id] = meta.smallest_live_index
            # What the snapshot covers is no gap any more.
            self._knows_gap = self._knows_gap and self._gap_after is None
        gap = self._gap.after
        if gap is not None and gap < meta.index:
            # It means nothing any more, and does no harm if it stays.
            with contextlib.suppress(StorageError):
                self._gap.forget()
        self._notify_worker(lambda worker: worker.snapshot_recorded(meta))
        if self._snapshots is not None:
            try:
                self._snapshots.remove_older()
            except StorageError as error:
                # The new one is in force: they go with the next one, or when the store is attached again.
                self._note(error)

    def _notify_worker(self, notify: Callable[[LogWorker], object]) -> None:
        worker = self._worker
        if worker is not None:
            try:
                notify(worker)
            except Exception as error:
                _LOGGER.warning("the worker of the log %r failed; the log goes on", self._log_id, exc_info=error)
                self._note(error)

    def pin(self, indexes: IndexSet) -> Pin:
        """Hold entries readable until released, although a newer snapshot may leave them dead.

        Raises:
            LiveIndexMissing: the log does not hold one of them, or it is dead.
            Closed: the log was closed.
        """
        self._require_open()
        # No snapshot may come between reading the row and the pin.
        with self._snapshotting:
            base = self._memory.base
            in_memory = {index: entry for index in indexes.at_least(base)
                         if isinstance(entry := self.read(index), Entry)}
            pin = Pin(indexes, in_memory, self._pinned_files(indexes.at_most(base - 1)), self._own)
        try:
            self._require_found(pin)
        except BaseException:
            pin.release()
            raise
        return pin

    def _require_found(self, pin: Pin) -> None:
        dead = pin.indexes - self.state.needed(pin.indexes)
        missing = dead | (pin.indexes - pin.found)
        if missing:
            raise LiveIndexMissing(f"{len(missing)} of {len(pin.indexes)} indexes to be pinned are dead or not in the "
                                   f"log, the first of them {missing.first}; pin what a snapshot in force names",
                                   missing=len(missing), first=missing.first)

    # -- flushing

    def flush(self) -> None:
        """Write all that this store's logs hold in memory to segments now; see `RaftLogStore.flush`."""
        self._require_open()
        self._store.flush()

    def flush_memtable(self) -> None:
        """The store's: write to segments what is in memory now, durably. What they hold already is not written again.

        Raises:
            StorageError: the disk refused; what was written since the last sync is taken back, call again. If that is
                refused too, the log is closed.
            Closed: the log was closed, or a cut of it has failed.
        """
        # A cut of this log comes before or after all of it, so that what it takes back is never written.
        with self._switching():
            with self._lock:
                tables, row = self._memory.freeze(), self.state
            if not tables:
                return
            slabs = needed_slabs(visible_slabs(tables), row)
            newest = self._own.known_of(self._own.newest_number)
            if (slabs and newest is not None and newest.ref.last < row.smallest_live_index
                    and newest.data_bytes > STALE_BYTES):
                # It holds nothing alive, and only its place as the newest keeps compactions from it.
                self._undone_if_refused(self._own.end_segment)
            for slab in slabs:
                for start in range(max(self._last_in_segments + 1 - slab.first, 0), len(slab.payloads), _RUN_ENTRIES):
                    payloads = slab.payloads[start:start + _RUN_ENTRIES]
                    self._undone_if_refused(self._own.append_run, slab.first + start, slab.term, payloads)
            self._undone_if_refused(self._own.sync)
            with self._lock:
                self._memory.release(tables)
        self._notify_worker(lambda worker: worker.segments_flushed(self._own.last_index))

    def _undone_if_refused(self, change: Callable[..., object], *arguments: object) -> None:
        with self._guard.lock:
            try:
                change(*arguments)
            except StorageError:
                self._own.take_back()
                raise

    def replay(self, frame: Frame) -> None:
        """The store's: do again what the WAL says was written to the log, before `begin`."""
        replay(frame, self._memory, self.state, self._matching)

    def holds(self, row: SnapshotMeta) -> bool:
        """The store's: whether the log holds what a snapshot needs of it."""
        try:
            self._require_held(row)
        except LiveIndexMissing:
            return False
        return True

    @contextlib.contextmanager
    def unwritten(self) -> Iterator[None]:
        """The store's: inside it no other thread appends."""
        with self._files_lock, self._lock:
            yield

    def begin(self, wal: Wal) -> None:
        """The store's: make the cuts again that memory says and a crash or an error may have left half way; then the
        log can be used.

        What agrees with memory stays: a flush has written it since the cut. So does what the snapshot covers, which
        was recorded after the cuts below it were whole.
        """
        row = self.state
        cuts = [table.base - 1 for table in self._memory.tables if table.cuts]
        if cuts:
            self._own.truncate(self._agreeing_through(max(min(cuts), row.index)))
        self._memory.skip_to(row.index)
        self._wal = wal
        wal.smallest_live[self._log_id] = row.smallest_live_index

    # -- the log itself

    def status(self) -> LogStatus:
        """What the log says of itself.

        Raises:
            Closed: it was closed.
        """
        self._require_open()
        row, unconfirmed, pinned = self.state, self.unconfirmed, self._own.pinned
        return LogStatus(
            log_id=self._log_id, first_index=self.first_index, last_index=self.last_index,
            last_term=self.last_term, durable_index=unconfirmed.first - 1 if unconfirmed else self.last_index,
            unconfirmed=len(unconfirmed), snapshot_index=row.index, snapshot_term=row.term,
            smallest_live_index=row.smallest_live_index, live=len(row.live), memtable_entries=self._memory.entries,
            segments=len(self._own.refs), pinned=len(pinned), pins=len(self._own.pins),
            gap_after=through if (through := self.contiguous_through) < self.last_index else None,
            is_busy=self.is_compacting,
            failures=self._failures + getattr(self._worker, "failures", 0), last_error=told(self.last_error))

    @property
    def last_error(self) -> BaseException | None:
        """The last unexpected error: of the worker, else of a listener, or of the removal of an older snapshot."""
        return getattr(self._worker, "last_error", None) or self._last_error

    def audit(self) -> None:
        """Check the log's own invariants.

        Raises:
            AuditFailed: one is broken; says which, with the numbers.
            Closed: it was closed.
        """
        self._require_open()
        with self._snapshotting, self._lock:
            self._own.audit()
            waiting = self.unconfirmed
            if waiting and waiting.last > self.last_index:
                raise AuditFailed(f"log {self._log_id!r}: {waiting.last} waits to be confirmed above the last "
                                  f"index {self.last_index}")

    # -- ending

    def stop_worker(self) -> None:
        """Stop the worker, and let it go."""
        worker, self._worker = self._worker, None
        if worker is not None:
            try:
                worker.stop()
            except Busy:
                self._worker = worker
                raise

    def require_outside(self) -> None:
        """Return unless the calling thread is inside a compaction of this log.

        Raises:
            Busy: it is.
        """
        self._guard.require_outside()

    def close(self) -> None:
        """Sync, and let the log go (with its store, if `open_log` made both); closing again does nothing.

        `RaftLogStore.log` opens a log of a store again; until then, its entries wait in the WAL.

        Raises:
            Busy: called from within a compaction of the log; nothing was done. Or work on it goes on, and it is closed
                when that has ended: call again.
            StorageError: the last sync was refused; the log is closed all the same.
        """
        if self.closes_store:
            self._store.close()
        else:
            self.close_alone()

    def close_alone(self) -> None:
        """The store's: close the log and not its store."""
        self._guard.require_outside()
        self.stop_worker()
        try:
            if not self.is_closed:
                with contextlib.suppress(Closed):
                    self._wal.sync(self._pending.ticket)
        finally:
            self.end()
            self.let_go()

    def end(self) -> None:
        """The store's: refuse every later call; waits for who appends now."""
        with self._lock if self._guard.is_open else contextlib.nullcontext():
            self._guard.close()

    def let_go(self) -> None:
        """The store's: give up the files without a sync."""
        for pin in self._own.pins:
            pin.release()
        self._guard.release()

    def __repr__(self) -> str:
        return (f"<{type(self).__name__} {self._log_id!r}: {self.first_index} to {self.last_index}, snapshot "
                f"{self.state.index}>")


def runs_of(entries: Iterable[Entry | tuple[int, int, Buffer]]) -> Iterator[tuple[int, int, list[Buffer]]]:
    """Cut entries into runs of consecutive indexes and one term: first index, term, payloads.

    Raises:
        InvalidInput: the indexes are not consecutive, or something is no entry.
    """
    rows = entries if type(entries) is list else listed("the entries", entries, _with_own_bytes)
    if not rows:
        return
    try:
        indexes, terms, payloads = zip(*rows, strict=True)
        range(rows[0][0])
    except (TypeError, ValueError):
        raise InvalidInput("an entry is an Entry, or a tuple of index (int), term (int) and payload (bytes); the first "
                           f"that was given is a {type(rows[0]).__name__}") from None
    first = indexes[0]
    if indexes != tuple(range(first, first + len(rows))):
        place = next(place for place, index in enumerate(indexes) if index != first + place)
        raise InvalidInput(f"index {indexes[place]} follows {indexes[place - 1]} in one call; give consecutive "
                           f"indexes, or use append_sparse")
    start = 0
    while start < len(rows):
        term = terms[start]
        stop = len(rows) if terms.count(term) == len(rows) else start + 1
        while stop < len(rows) and terms[stop] == term:
            stop += 1
        yield first + start, term, list(payloads[start:stop])
        start = stop


def _with_own_bytes(row: Any) -> Any:
    """A row of a generator, which may give the next one in the same buffer."""
    try:
        index, term, payload = row
    except (TypeError, ValueError):
        return row  # refused with the others
    return row if type(payload) is bytes else (index, term, bytes_of(payload))


def require_numbers(first: object, last: object, term: object) -> None:
    """Check the indexes and the term of a run.

    Raises:
        InvalidInput: one of them is no number that an entry can have.
    """
    for number in (first, last, term):
        if not isinstance(number, int) or not 0 <= number <= MAX_INDEX:
            raise _no_numbers(first, term)


def checked_entry(given: Any) -> Entry:
    """An entry as a host gives it.

    Raises:
        InvalidInput: it is none.
    """
    try:
        index, term, payload = given
    except (TypeError, ValueError):
        raise InvalidInput(f"an entry is {given!r:.100}; give an Entry, or index, term, payload") from None
    return Entry(index, term, bytes_of(payload))


def _no_numbers(first: object, term: object) -> InvalidInput:
    return InvalidInput(f"entries from {first!r} on in term {term!r}: index and term are 0 to {MAX_INDEX}")


def _require_index(index: object) -> None:
    if not isinstance(index, int) or not 0 <= index <= MAX_INDEX:
        raise InvalidInput(f"snapshot index {index!r}; give a whole number from 0 to {MAX_INDEX}")
