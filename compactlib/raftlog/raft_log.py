# SPDX-License-Identifier: Apache-2.0
"""`RaftLog`: one replicated log as a host uses it: append, sync, read, snapshot, compact, receive a snapshot.

An append goes into the WAL's queue and into the memtable at once, in one order, under the log's lock. A flush writes
what the memtable holds to segments. A cut (`reset`, a conflict in `append_entries`) is made in memory, in the WAL and
in the segments before the call returns. Reads take no lock (`LogReading`).

Above the snapshot no index is missing: an append follows the last index, and a received snapshot rolls forward. Its
state and its live entries are put beside the log, durably; then the row is replaced, which is the switch; then the log
cuts what contradicts the snapshot and takes the live entries (`_take_received`). After a crash, opening does the last
part again, as long as the file with the entries is there.

Locks, in this order: the snapshot's, that of flushes and cuts, the log's, the WAL's, the segments' (the guard's).
"""

from __future__ import annotations

import contextlib
import logging
import threading
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import attrs

from compactlib.budget import Budget
from compactlib.errors import (
    AuditFailed,
    Busy,
    Closed,
    CompactlibError,
    CorruptData,
    InvalidInput,
    NotFound,
    Stale,
    StorageError,
    Unsupported,
)
from compactlib.files.disk import may_be_there
from compactlib.indexset import IndexSet
from compactlib.raftlog.arguments import bytes_of, index_set
from compactlib.raftlog.errors import GapDetected, Overwriting, SnapshotLost
from compactlib.raftlog.log.folder import Examination
from compactlib.raftlog.log.owned_log import OwnedLog
from compactlib.raftlog.memtable import STALE_BYTES, Memtable, needed_slabs, replay, visible_slabs
from compactlib.raftlog.model.hard_state import HardState, KeptHardState
from compactlib.raftlog.model.snapshot_meta import SnapshotManifest, SnapshotMeta
from compactlib.raftlog.model.status import LogStatus, told
from compactlib.raftlog.model.values import MAX_INDEX, AppendAnswer, AppendEntries, Entry
from compactlib.raftlog.options import StoreOptions
from compactlib.raftlog.pins import Pin
from compactlib.raftlog.segment.segment_list import OpenFiles
from compactlib.raftlog.snapshots.folder import Snapshots
from compactlib.raftlog.snapshots.incoming import Incoming, read_sealed
from compactlib.raftlog.snapshots.state_reader import StateReader
from compactlib.raftlog.wal.frames import Frame, FrameKind, empty_body, run_body, sparse_body
from compactlib.raftlog.wal.wal import Confirmed, QueuedWrite, Wal

if TYPE_CHECKING:
    from typing_extensions import Buffer

_LOGGER = logging.getLogger("compactlib.raftlog")
MAX_APPEND_ENTRIES = 1 << 14
_RUN_ENTRIES = 1024
"""Flushed at a stretch, in about a millisecond, before a read of another thread has its turn."""


class LogWorker(Protocol):
    """Who compacts a log, off the threads that append. `LogCompactionWorker` is one.

    The log starts it, notifies it of changes without ever waiting for it, and stops it before it closes.
    """

    def start(self) -> None:
        """Begin; starting again does nothing."""

    def snapshot_recorded(self, row: SnapshotMeta) -> None:
        """A snapshot was taken or installed. Called with the log's lock held: must not block."""

    def segments_flushed(self, last_index: int) -> None:
        """Entries came to segments. Called with the log's lock held: must not block."""

    def stop(self, *, wait_seconds: float = 30.0) -> None:
        """See `PeriodicService.stop`. Called without any lock held."""


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

    options: StoreOptions
    open_files: OpenFiles
    syncs_by_itself: bool

    def wake_committer(self) -> None:
        """Something was queued, which the store's own thread syncs."""

    def settle(self) -> None:
        """After a sync, with no lock held: notify of what became durable, and flush if WAL files were closed."""

    def flush_closed(self) -> None:
        """Write what the logs hold in memory to their segments, and remove the closed WAL files."""

    def flush(self) -> None:
        """Close the WAL file first, and do the same."""

    def close(self) -> None:
        """Sync, and let all logs go."""


class RaftLog(OwnedLog):
    """One log of a `RaftLogStore`. Threads may share it; `open_log` makes one with a store of its own.

    What was appended is visible to reads at once, and durable after `sync`. Entries are in the WAL and in memory first,
    and move to segments in the background.

    Made by `RaftLogStore.log`.
    """

    _wal: Wal
    """Given by the store once all logs are open."""

    def __init__(self, store: OwnStore, log_id: str, folder: str, memory: LogMemory) -> None:
        options = store.options
        machine_of = options.machine_of
        self._snapshots = Snapshots(options.log.files, folder,
                                    None if machine_of is None else partial(machine_of, log_id))
        super().__init__(folder, options.log, memtable=memory.memtable, open_files=store.open_files)
        self._store = store
        self._log_id = log_id
        self._memory = memory.memtable
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
        self._incoming: Incoming | None = None
        self.closes_store: bool = False
        self._on_confirmed: Callable[[Confirmed], object] | None = None
        self._failures = 0
        self._last_error: BaseException | None = None
        self._worker: LogWorker | None = None
        if not memory.is_begun:
            memory.memtable.skip_to(self._own.last_index)
            memory.is_begun = True
        try:
            self._hard_state: KeptHardState = KeptHardState(self._files, folder)
        except BaseException:
            self._guard.release()
            raise

    def _found_row(self) -> SnapshotMeta | None:
        return self._snapshots.recover()

    def attach(self, worker: Callable[[RaftLog], LogWorker] | None = None,
               on_confirmed: Callable[[Confirmed], object] | None = None) -> None:
        """Give the log the worker that compacts it, and the callback for what became durable.

        Args:
            worker: makes the worker that compacts; it is started, and notified at once of the snapshot in force;
                without one `compact` runs when the host calls it.
            on_confirmed: called with what became durable, in order and with no lock held, by a thread that syncs. What
                it raises is kept for `status` and logged.

        Raises:
            Closed: as `sync`.
        """
        self._require_open()
        if on_confirmed is not None:
            self._on_confirmed = on_confirmed
        if worker is not None:
            self._stop_worker()
            self._worker = made = worker(self)
            try:
                made.start()
            except BaseException:
                # What it has begun does not go on.
                self._stop_worker()
                raise
            row = self.state
            if row.index >= 0:
                # What an earlier life had left dead does not wait for this one's first snapshot.
                made.snapshot_recorded(row)

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

    # -- what it holds

    @property
    def last_index(self) -> int:
        return self._memory.last

    @property
    def last_term(self) -> int | None:
        """The term of the last index, `None` in an empty log."""
        return self.term_of(self.last_index) if self.last_index >= 0 else None

    def term_of(self, index: int) -> int | None:
        """The term of an entry that can be read, or of the one at which the snapshot ends; `None` for any other index.
        """
        row = self.state
        if index == row.index and row.term:
            return row.term
        if row.is_dead(index):
            return None
        for table in reversed(self._memory.tables):
            if index >= table.base:
                return table.term_of(index)
        return self._asked(lambda: self._own.term_of(index))

    @property
    def _kept_from(self) -> int:
        """From here on every index can be read; 1 in an empty log."""
        row = self.state
        if row.index >= 0:
            return row.kept_from
        begins = self.first_index
        return 1 if begins is None else begins

    # -- what a leader sends

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
                # A snapshot may leave some of them dead meanwhile: what is behind such a gap is not sent.
                if entry.index != prev_index + 1 + len(entries) or (entries and max_bytes < 0):
                    break
                entries.append(entry)
        return AppendEntries(prev_index, prev_term, tuple(entries))

    def next_index(self, answer: AppendAnswer) -> int:
        """What a leader sends next to a follower that has answered so: `answer.next_index`, or, if this log has entries
        of the term that conflicts, what is behind the last of them: those the follower has too. O(log entries).
        """
        self._require_open()
        wanted, first, last = answer.conflict_term, max(self._kept_from, answer.next_index), self.last_index
        if wanted is None or first > last:
            return answer.next_index
        # What it holds of that term, if anything, lies together.
        after = first + bisect_right(range(first, last + 1), wanted, key=lambda index: self.term_of(index) or 0)
        return after if self.term_of(after - 1) == wanted else answer.next_index

    # -- appending

    def append(self, entries: Iterable[Entry | tuple[int, int, Buffer]]) -> int:
        """Append entries of consecutive indexes behind the last one, as a leader does with what it is asked to do.

        What the log holds is never taken back by this: a follower has `append_entries` for what its leader sends.
        Returns the last index. Durable after `sync`.

        Args:
            entries: `Entry` values or (index, term, payload) tuples, ascending without gaps.

        Raises:
            Overwriting: the log holds an entry of the first index already.
            GapDetected: the first does not follow the last index.
            InvalidInput: an index lies at or below the snapshot, is no 64-bit number, or does not follow the one before
                it.
            MemtableFull: too many entries at once.
            StorageError, CorruptData: too much waits for a sync or for segments, and the disk refuses that; nothing was
                appended. (Of several terms, or more than 16,384 entries, the first may be: see `last_index`.)
            Closed: the log was closed, or closed itself.
        """
        if type(entries) is list and len(entries) == 1 and type(entries[0][2]) is bytes:
            first, term, payload = entries[0]
            self._append(first, term, [payload])
            return self._memory.last
        for first, term, payloads in _checked_runs(entries):
            self.append_run(first, term, payloads)
        return self._memory.last

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
                or memtable.entries + len(payloads) > memtable.max_entries):
            self._make_room_for(len(payloads))
        self._guard.require_open()
        with self._lock:
            if first != memtable.last + 1:
                self._require_next(first)
            self._put(first, term, payloads)
        if wal.queued_bytes > self._max_queued_bytes or self._store.syncs_by_itself:
            self._after_append()

    def _require_next(self, first: int) -> None:
        row, last = self.state, self._memory.last
        if first <= row.index:
            raise InvalidInput(f"index {first} lies at or below the snapshot {row.index}; what a snapshot covers is "
                               f"committed and cannot be written again, append from {row.index + 1}")
        if first <= last:
            raise Overwriting(index=first, last=last)
        # An empty log begins anywhere, one that everything was taken back of included.
        if 0 <= last < first - 1:
            raise GapDetected(previous=first - 1, last=last)

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
        if prev_index < -1:
            raise InvalidInput(f"the previous index is {prev_index}; it is 0, or -1, if nothing comes before")
        runs = _checked_runs(entries)
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
            judged = self._judged(prev_index, prev_term, term, len(payloads))
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
            self._cut(start - 1, partial(self._put, start, term, payloads[judged:]))
        self._after_append()
        return judged

    def _judged(self, prev_index: int, prev_term: int, term: int, count: int) -> AppendAnswer | int:
        """How many of a leader's entries are held already, the first ones, or why all are refused.

        Raft's rule for what a leader sends (section 5.3 of the paper, https://raft.github.io/raft.pdf). An entry
        conflicts with one of the same index only if their terms differ: then it and all behind it are taken back. What
        is held already stays as it is, and so does all behind it. What a snapshot covers is taken as matching.

        A refusal says where the leader should go on: at the first index of the term that the log has in the place of
        the entry before, or behind the log's end, so that each term costs one message.

        O(log entries) looks at terms, and one for each entry that came before.

        Raises:
            InvalidInput: the log begins later, and has no snapshot of what lies before.
        """
        row, held, last = self.state, self._memory.last, prev_index + count
        begins = self.first_index if row.index < 0 else None
        if prev_index <= row.index <= last and row.term not in (0, prev_term if prev_index == row.index else term):
            # Of a leader that was deposed, or of another group: a leader has what is committed.
            return AppendAnswer(False, -1, row.index, row.term)
        if row.index < 0 and begins is None:
            if prev_index > 0 or prev_term:
                return AppendAnswer(False, -1, 0)
        elif begins is not None and prev_index < begins:
            if prev_term or prev_index + 1 != begins or begins > 1:
                raise InvalidInput(f"the log begins at {begins}, and no snapshot says what lies before, so what "
                                   f"follows {prev_index} in term {prev_term} cannot be judged; have the leader send "
                                   f"its snapshot")
        elif prev_index > held:
            return AppendAnswer(False, -1, held + 1)
        elif prev_index > row.index and (found := self.term_of(prev_index)) not in (None, prev_term):
            lowest = max(row.index + 1, begins or 0)
            place = bisect_left(range(lowest, prev_index), found or 0, key=lambda index: self.term_of(index) or 0)
            return AppendAnswer(False, -1, lowest + place, found)
        index = max(prev_index, row.index) + 1
        stop = min(last, held)
        # One without a term is dead already by a snapshot that the log's row names in a moment.
        while index <= stop and self.term_of(index) in (None, term):
            index += 1
        return min(index - prev_index - 1, count)

    def _parts(self, first: int, term: int, payloads: Sequence[Buffer]) -> Iterator[tuple[int, Sequence[bytes]]]:
        """Checked parts of a run, each with its first index, and room in memory for each."""
        # A host may give each payload in the same buffer.
        is_own = type(payloads) is list and set(map(type, payloads)) == {bytes}
        copied = payloads if is_own else list(map(bytes_of, payloads))
        for start in range(0, len(copied), MAX_APPEND_ENTRIES):
            part: Sequence[bytes] = copied[start:start + MAX_APPEND_ENTRIES]  # type: ignore[assignment]  # all bytes
            _require_numbers(first + start, first + start + len(part) - 1, term)
            self._make_room_for(len(part))
            yield first + start, part

    def _put(self, first: int, term: int, payloads: Sequence[bytes]) -> None:
        """Queue entries in the WAL, and put them into the memtable. The caller locks.

        An interrupt between the two leaves entries in the WAL of which memory does not know: the next write of the
        log begins at the same index, so that a replay overwrites them.
        """
        memtable = self._memory
        last, written = first + len(payloads) - 1, memtable.last
        cut_after = first - 1 if first <= written else None
        ticket = self._wal.queue(QueuedWrite(self._log_id, run_body(payloads), first - 1 if first else None, cut_after,
                                             first, last, term))
        memtable.insert(first, term, payloads)
        if cut_after is not None:
            self._forget_above(cut_after)
        self._wait_for(ticket, first, last)

    def _put_sparse(self, entries: Sequence[Entry]) -> None:
        """As `_put`, with gaps between them: the live entries of a received snapshot, each with the index before."""
        last = self._memory.last
        indexes, terms = [entry.index for entry in entries], [entry.term for entry in entries]
        body = sparse_body(indexes, terms, [entry.payload for entry in entries])
        ticket = self._wal.queue(QueuedWrite(self._log_id, body, last if last >= 0 else None, None, indexes[0],
                                             indexes[-1], terms[-1], indexes, terms))
        for entry in entries:
            self._memory.insert(entry.index, entry.term, [entry.payload])
            self._wait_for(ticket, entry.index, entry.index)

    def _wait_for(self, ticket: int, first: int, last: int) -> None:
        pending = self._pending
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

    def _make_room_for(self, entries: int) -> None:
        """Before anything is appended, so that what the disk refuses was not."""
        self._require_open()
        if self._wal.closed_files > self._max_closed_files:
            # Flushes have failed so long that too many files wait.
            self._store.flush_closed()
        if self._wal.queued_bytes > self._max_queued_bytes:
            self.sync()
        if self._memory.entries + entries > self._memory.max_entries:
            self._store.flush()
        self._memory.require_room(entries)

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

    def _notify_confirmed(self, confirmed: Confirmed) -> None:
        """Call the host's listener, with no lock held."""
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

    # -- cutting

    @contextlib.contextmanager
    def _switching(self) -> Iterator[None]:
        """Inside it no other flush or cut of this log runs."""
        self._require_open()
        with self._files_lock:
            if self._is_cutting:
                self._guard.close("was left in the middle of a cut by an error or an interrupt")
            self._guard.require_open()
            yield

    def _cut(self, after: int, write: Callable[[], object]) -> None:
        """Take back everything above `after` by what `write` queues; durable, also in segments, when this returns.

        The next segment is begun first, so that nothing but the first of these steps needs room. Then the cut becomes
        durable in the WAL; what follows is done again by opening the log after a crash. A flush writes nothing
        meanwhile, and the log closes itself if any but the first step fails: `RaftLogStore.log` opens it again.
        """
        with self._switching():
            if self._own.last_index > after:
                self._own.prepare_truncation()
            with self._lock:
                self._require_open()
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

    def reset(self, last_index: int) -> None:
        """Take back everything above `last_index`, unconfirmed entries included; durable when this returns.

        Raises:
            InvalidInput: it lies below the snapshot.
            StorageError: the disk refused. If the WAL was refused the cut, or segments were, the log is closed, and
                opening it again shows whether it has happened.
            Closed: as `append`.
        """
        with self._switching():
            with self._lock:
                self._require_open()
                row, begins = self.state, self.first_index
                if last_index < row.index:
                    raise InvalidInput(f"reset to {last_index} would take back what the snapshot {row.index} covers; "
                                       f"reset to that index or above")
                if last_index >= self._memory.last:
                    return
                after = last_index if row.index >= 0 or (begins or 0) <= last_index else -1
            self._cut(after, partial(self._queue_cut, after))
        self._store.settle()

    def _queue_cut(self, after: int) -> None:
        self._pending.ticket = self._wal.queue(QueuedWrite(self._log_id, empty_body(FrameKind.CUT), None, after,
                                                           after + 1, after, 0))
        self._forget_above(after)
        self._memory.cut(after)

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
            return self._hard_state.record(term, voted_for)

    # -- snapshots

    def snapshot(self, index: int, live: IndexSet | Iterable[int], state: Iterable[Buffer] | None = None, *,
                 machine_version: int = 0, cluster: bytes = b"") -> None:
        """Take a snapshot: everything up to `index` is in it, except the entries of `live`, which stay in the log.

        Syncs first. The state is durable before the log's row names it, and the older one goes after.

        Args:
            index: at most the last index.
            live: indexes <= `index` that the log must keep; a set, or strictly ascending numbers. Say `()` for none.
            state: the machine's state in pieces; `None` if the host keeps it elsewhere. 1 MiB of it is held in memory.
            machine_version: see `SnapshotManifest`; so is `cluster`.
            cluster: the host's own bytes.

        Raises:
            Stale: a later snapshot is in force.
            InvalidInput: the log does not reach `index`.
            LiveAboveSnapshot, LiveIndexMissing: nothing changed.
            StorageError: the disk refused. The snapshot before is in force; or the log is closed, and opening it again
                shows which one is.
        """
        live_set = index_set("the live indexes", live)
        with self._changing_snapshot():
            row = self._with_trailing(self._held_at(index, live_set))
            if state is not None:
                row = self._written(row, state, machine_version, cluster)
            self._switch_to(row)

    def checkpoint(self, index: int, live: IndexSet | Iterable[int], state: Iterable[Buffer], *,
                   machine_version: int = 0, cluster: bytes = b"") -> None:
        """Write a checkpoint: the machine's state for a fast start, while the log forgets nothing; see `promote`.

        The newest ten are kept. Arguments and errors are those of `snapshot`.

        Raises:
            Stale: a snapshot or checkpoint of the same or a higher index is there.
        """
        live_set = index_set("the live indexes", live)
        with self._changing_snapshot():
            self._snapshots.require_above(index, self.state.index)
            row = self._written(self._held_at(index, live_set), state, machine_version, cluster)
            self._snapshots.write_checkpoint(row)
            self._tidy()

    def promote(self, index: int) -> SnapshotMeta:
        """Make the newest checkpoint at or below `index` the snapshot in force. Returns the row.

        Raises:
            NotFound: there is none above the snapshot.
            Stale: the log has taken back the entry that it ends at; nothing was changed.
            CorruptData: the checkpoint is damaged.
            LiveIndexMissing: the log does not hold what it needs; nothing was changed.
            StorageError, Closed: as `snapshot`.
        """
        with self._changing_snapshot():
            found = self._snapshots.checkpoint_below(index, self.state.index)
            if found is None:
                raise NotFound(f"no checkpoint at or below {index} that is above the snapshot {self.state.index}; "
                               f"write one with checkpoint(), or take a snapshot")
            held = self.term_of(found.index)
            if held != found.term:
                raise Stale(f"checkpoint {found.index} is of term {found.term}, and that entry was taken back since: "
                            f"the log holds {'none' if held is None else f'one of term {held}'} there; take a snapshot")
            self._snapshots.open_state(found).close()
            self._held_at(found.index, found.live)
            self._switch_to(self._with_trailing(found))
            return self.state

    @property
    def checkpoints(self) -> tuple[SnapshotMeta, ...]:
        """The checkpoints above the snapshot, oldest first.

        Raises:
            CorruptData: one is damaged.
        """
        self._require_open()
        with self._snapshotting:
            return self._snapshots.checkpoints(self.state.index)

    def open_state(self, row: SnapshotMeta | None = None) -> StateReader:
        """The state of the snapshot in force, or of one of the `checkpoints`; stays readable when a newer one comes.

        Raises:
            NotFound: there is no snapshot yet, or its host keeps its state elsewhere.
            SnapshotLost: the state is missing or not of the size that was written.
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
                # A newer one may have taken its place meanwhile.
                if row is not None or self.state is wanted:
                    raise

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
                self._require_open()
                yield
            finally:
                self._changes_snapshot = False
        self._store.settle()

    def _held_at(self, index: int, live: IndexSet) -> SnapshotMeta:
        """A snapshot at `index`, which the log must reach, and whose live entries it holds durably."""
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
        self._wal.sync(self._pending.ticket)
        self._require_held(found)
        return found

    def _with_trailing(self, row: SnapshotMeta) -> SnapshotMeta:
        """The row of a snapshot whose entries the machine has applied from this log: the last of them stay."""
        first = max(row.index - self._keep_trailing + 1, self._kept_from, 0)
        if first > row.index or self.term_of(row.index) != row.term:
            return row
        live, of = row.live | IndexSet.range(first, row.index), row.manifest
        return attrs.evolve(row, live=live, manifest=of and SnapshotManifest.of(
            of.index, of.term, live, state_bytes=of.state_bytes, state_crc=of.state_crc,
            machine_version=of.machine_version, cluster=of.cluster))

    def _written(self, row: SnapshotMeta, state: Iterable[Buffer], machine_version: int,
                 cluster: bytes) -> SnapshotMeta:
        with self._guard.lock:
            self._guard.require_open()
            self._snapshots.begin()
        return self._snapshots.write(row, state, machine_version, cluster)

    def _switch_to(self, row: SnapshotMeta) -> None:
        """Put a row in force whose state is durable."""
        try:
            self._record_state(row)
        except StorageError:
            if self._guard.is_open:
                self._tidy()
            raise
        self._shown(row)

    def _shown(self, row: SnapshotMeta) -> None:
        with self._lock:
            self._memory.skip_to(row.index)
            self._wal.smallest_live[self._log_id] = row.smallest_live_index
        self._notify_worker(lambda worker: worker.snapshot_recorded(row))
        self._tidy()

    def _tidy(self) -> None:
        try:
            self._snapshots.tidy(self._own.row, receives=self._incoming is not None and self._incoming.is_open)
        except StorageError as error:
            # They go with the next one, or when the log is opened again.
            self._note(error)

    def _notify_worker(self, notify: Callable[[LogWorker], object]) -> None:
        worker = self._worker
        if worker is not None:
            try:
                notify(worker)
            except Exception as error:
                _LOGGER.warning("the worker of the log %r failed; the log goes on", self._log_id, exc_info=error)
                self._note(error)

    # -- a snapshot from elsewhere

    def _begin_receiving(self, manifest: SnapshotManifest) -> Incoming:
        """Make room for a snapshot that comes from elsewhere.

        Raises:
            Busy: another is being received.
            StorageError: the disk refused.
        """
        with self._guard.lock:
            self._guard.require_open()
            if self._incoming is not None and self._incoming.is_open:
                raise Busy(f"snapshot {self._incoming.manifest.index} of the log {self._log_id!r} is being received; "
                           f"close its stream, or wait for its end")
            self._snapshots.begin()
            self._incoming = self._snapshots.receive(manifest)
            return self._incoming

    def _install(self, incoming: Incoming, live: IndexSet) -> None:
        """Put a snapshot in force that has arrived whole, durably.

        As in Raft, an entry that the log holds with the same index and term is the leader's, as is everything below it,
        and stays; so does whatever lies above the snapshot, if the log holds the snapshot's last entry.

        Raises:
            Stale: the row is at or above it.
            LiveIndexMissing: the log lacks a live entry that was not sent; nothing was changed.
            CorruptData: the state is not what the manifest says; nothing was changed.
            StorageError, Closed: nothing was changed; or the log is closed, and opening it does the rest.
        """
        manifest = incoming.manifest
        row = SnapshotMeta(manifest.index, manifest.term, live)
        with self._changing_snapshot():
            if row.index <= self.state.index:
                raise Stale(f"snapshot {row.index} is not newer than {self.state.index}, which is in force")
            self._wal.sync(self._pending.ticket)
            sent = IndexSet.from_sorted(entry.index for group in incoming.groups() for entry in group.entries)
            self._require_held(attrs.evolve(row, live=live - sent))
            incoming.finish()
            with self._switching():
                after = self._agreed_with(incoming)
                takes = after < self.last_index or bool(sent.at_least(after + 1))
                if self._own.last_index > after:
                    self._own.prepare_truncation()
                row = self._snapshots.place(incoming, row, after if takes else None)
                self._is_cutting = True
                try:
                    self._write_row(row)
                except StorageError:
                    self._is_cutting = False
                    raise
                try:
                    if takes:
                        self._take_received(row)
                except CompactlibError as error:
                    self._guard.fail(error)
                    raise
                with self._lock:
                    self._own.row = row
                    self._memory.skip_to(row.index)
                self._is_cutting = False
            incoming.close()
            self._shown(row)

    def _agreed_with(self, incoming: Incoming) -> int:
        """Up to where the log stays as it is under a received snapshot."""
        of, last = incoming.manifest, self.last_index
        for group in incoming.groups():
            for entry in group.entries:
                if self.term_of(entry.index) != entry.term:
                    return min(last, entry.index - 1)
        return last if last <= of.index or self.term_of(of.index) == of.term else of.index

    def _take_received(self, row: SnapshotMeta) -> None:
        """Cut what contradicts a received snapshot, and take its live entries; durable when this returns.

        Done again from its start after a crash, until the file with the entries is gone. Nothing is appended before.
        """
        after, groups = read_sealed(self._snapshots.entries_path(row))
        with self._lock:
            self._queue_cut(after)
        self._wal.sync(self._pending.ticket)
        self._own.truncate(after)
        for group in groups:
            if self._memory.entries + len(group.entries) > self._memory.max_entries:
                self._wal.sync(self._pending.ticket)
                self._flush_tables()
            elif self._wal.queued_bytes > self._max_queued_bytes:
                self._wal.sync(self._pending.ticket)
            with self._lock:
                self._put_sparse(group.entries)
        self._wal.sync(self._pending.ticket)
        self._snapshots.taken(row)

    def pin(self, indexes: IndexSet) -> Pin:
        """Hold entries readable until released, although a newer snapshot may leave them dead.

        Raises:
            LiveIndexMissing: the log does not hold one of them, or it is dead.
            Closed: the log was closed.
        """
        self._require_open()
        # No snapshot may come between.
        with self._snapshotting:
            if indexes:
                self._require_held(SnapshotMeta(indexes.last, live=indexes))
            return Pin(self, indexes)

    # -- flushing

    def flush(self) -> None:
        """Write all that this store's logs hold in memory to segments now; see `RaftLogStore.flush`."""
        self._require_open()
        self._store.flush()

    def _flush_memtable(self) -> None:
        """Write to segments what is in memory now, durably. What they hold already is not written again.

        Raises:
            StorageError: the disk refused; what was written since the last sync is taken back, call again. If that is
                refused too, the log is closed.
            Closed: the log was closed, or a cut of it has failed.
        """
        # A cut of this log comes before or after all of it, so that what it takes back is never written.
        with self._switching():
            is_written = self._flush_tables()
        if is_written:
            self._notify_worker(lambda worker: worker.segments_flushed(self._own.last_index))

    def _flush_tables(self) -> bool:
        with self._lock:
            tables, row = self._memory.freeze(), self.state
        if not tables:
            return False
        live = row.live | self._own.pinned.at_most(row.index)
        slabs = needed_slabs(visible_slabs(tables), row.index, live)
        newest = self._own.known_of(self._own.newest_number)
        if (slabs and newest is not None and newest.ref.last < row.smallest_live_index
                and newest.data_bytes > STALE_BYTES):
            # It holds nothing alive, and only its place as the newest keeps compactions from it.
            self._undone_if_refused(self._own.end_segment)
        for slab in slabs:
            for start in range(max(self._own.last_index + 1 - slab.first, 0), len(slab.payloads), _RUN_ENTRIES):
                payloads = slab.payloads[start:start + _RUN_ENTRIES]
                self._undone_if_refused(self._own.append_run, slab.first + start, slab.term, payloads)
        self._undone_if_refused(self._own.sync)
        with self._lock:
            self._memory.release(tables)
        return True

    def _undone_if_refused(self, change: Callable[..., object], *arguments: object) -> None:
        with self._guard.lock:
            try:
                change(*arguments)
            except StorageError:
                self._own.take_back()
                raise

    # -- what its store calls

    def _replay(self, frame: Frame) -> None:
        """Do again what the WAL says was written to the log, before `begin`."""
        replay(frame, self._memory, self.state, self._matching)

    def _matching(self, first: int, last: int, term: int) -> int:
        """How many entries from `first` on, up to `last`, segments hold with this term: for a replay."""
        return self._asked(lambda: self._own.matching(first, last, term))

    def _require_whole_received(self) -> None:
        """Raise `CorruptData` if live entries that the log has yet to take are damaged."""
        row = self.state
        if row.index >= 0 and may_be_there(self._snapshots.entries_path(row)):
            for _ in read_sealed(self._snapshots.entries_path(row))[1]:
                pass

    def _begin(self, wal: Wal) -> None:
        """Finish what a crash or an error may have left half way; then the log can be used.

        That is a received snapshot, or the cuts that memory says. What agrees with memory stays: a flush has written it
        since the cut. So does what the snapshot covers, which was recorded after the cuts below it were whole.

        Raises:
            CorruptData: the log does not hold what its snapshot needs.
            StorageError: the disk refused.
        """
        row = self.state
        self._wal = wal
        if row.index >= 0 and may_be_there(self._snapshots.entries_path(row)):
            self._take_received(row)
        cuts = [table.base - 1 for table in self._memory.tables if table.cuts]
        if cuts:
            self._own.truncate(self._agreeing_through(max(min(cuts), row.index)))
        self._memory.skip_to(row.index)
        wal.smallest_live[self._log_id] = row.smallest_live_index

    def _agreeing_through(self, after: int) -> int:
        """Up to where segments hold, above `after`, exactly what memory says, or a beginning of it."""
        for slab in visible_slabs(self._memory.tables):
            if slab.last <= after:
                continue
            first = max(slab.first, after + 1)
            above = after + 1
            held = self._asked(lambda above=above: self._own.next_index(above))  # type: ignore[misc]
            if held is None or held < first:
                break
            count = self._matching(first, slab.last, slab.term)
            after = first + count - 1 if count else after
            if after < slab.last:
                break
        return after

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
            segments=len(self._own.refs), pinned=len(pinned), pins=len(self._own.pins), is_busy=self.is_compacting,
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
                raise AuditFailed(f"log {self._log_id!r}: {waiting.last} waits to be confirmed above the last index "
                                  f"{self.last_index}")

    def examine(self, seen: Examination, *, budget: Budget | None = None) -> None:
        super().examine(seen, budget=budget)
        try:
            with self._snapshotting:
                self._snapshots.read_all(self._own.row)
        except (CorruptData, Unsupported) as error:
            seen.note(error)

    # -- ending

    def _stop_worker(self) -> None:
        """Stop the worker, and let it go."""
        worker, self._worker = self._worker, None
        if worker is not None:
            try:
                worker.stop()
            except Busy:
                self._worker = worker
                raise

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
            self._close_alone()

    def _close_alone(self) -> None:
        """Close the log and not its store."""
        self._guard.require_outside()
        self._stop_worker()
        try:
            if not self.is_closed:
                with contextlib.suppress(Closed):
                    self._wal.sync(self._pending.ticket)
        finally:
            self._end()
            self._let_go()

    def _end(self) -> None:
        """Refuse every later call; waits for who appends now."""
        with self._lock if self._guard.is_open else contextlib.nullcontext():
            self._guard.close()

    def _let_go(self) -> None:
        """Give up the files without a sync."""
        for pin in self._own.pins:
            pin.release()
        self._guard.release()

    def __repr__(self) -> str:
        return (f"<{type(self).__name__} {self._log_id!r}: {self.first_index} to {self.last_index}, snapshot "
                f"{self.state.index}>")


def _checked_runs(entries: Iterable[Entry | tuple[int, int, Buffer]]) -> list[tuple[int, int, list[Buffer]]]:
    """Cut entries into runs of consecutive indexes and one term: first index, term, payloads.

    Raises:
        InvalidInput: the indexes are not consecutive, or something is no entry.
    """
    rows: list[Any] = entries if type(entries) is list else list(map(_with_own_bytes, entries))
    if not rows:
        return []
    try:
        indexes, terms, payloads = zip(*rows, strict=True)
    except (TypeError, ValueError):
        raise InvalidInput("an entry is an Entry, or a tuple of index (int), term (int) and payload (bytes); the first "
                           f"that was given is a {type(rows[0]).__name__}") from None
    first = indexes[0]
    if indexes != tuple(range(first, first + len(rows))):
        place = next(place for place, index in enumerate(indexes) if index != first + place)
        raise InvalidInput(f"index {indexes[place]} follows {indexes[place - 1]} in one call; give consecutive indexes")
    runs: list[tuple[int, int, list[Buffer]]] = []
    start = 0
    while start < len(rows):
        term = terms[start]
        stop = len(rows) if terms.count(term) == len(rows) else start + 1
        while stop < len(rows) and terms[stop] == term:
            stop += 1
        runs.append((first + start, term, list(payloads[start:stop])))
        _require_numbers(first + start, first + stop - 1, term)
        start = stop
    return runs


def _with_own_bytes(row: Any) -> Any:
    """A row of a generator, which may give the next one in the same buffer."""
    index, term, payload = row
    return row if type(payload) is bytes else (index, term, bytes_of(payload))


def _require_numbers(first: int, last: int, term: int) -> None:
    if not 0 <= first <= last <= MAX_INDEX or not 0 <= term <= MAX_INDEX:
        raise _no_numbers(first, term)


def _no_numbers(first: int, term: int) -> InvalidInput:
    return InvalidInput(f"entries from {first!r} on in term {term!r}: index and term are 0 to {MAX_INDEX}")
