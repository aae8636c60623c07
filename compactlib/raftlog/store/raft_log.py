# SPDX-License-Identifier: Apache-2.0
"""`RaftLog`: one replicated log as a host uses it: append, sync, read, snapshot, compact, install.

One class for all that a host calls, and much of it says what a call does and raises: entries are written and read by
`write_path.py` and `read_path.py`, flushed and looked up in segments by `log_segments.py`. What is left here is the
order of things: which lock, what must be durable before what, which listener is called.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from compactlib._closing import Closing
from compactlib.contract import CommitFence
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
from compactlib.indexset.index_set import IndexSet
from compactlib.raftlog.arguments import bytes_of, index_set, listed, whole
from compactlib.raftlog.compaction.plan.plan import LogPlan
from compactlib.raftlog.compaction.plan.policy import LogPolicy
from compactlib.raftlog.compaction.plan.view import LogView
from compactlib.raftlog.compaction.report import LogCompactionReport, LogReclaimReport
from compactlib.raftlog.errors import GapDetected, LiveIndexMissing, LogStopped, Overwriting
from compactlib.raftlog.log.segment_log import SegmentLog
from compactlib.raftlog.memtable.flush import FlushPlan, plan_flush
from compactlib.raftlog.memtable.table import Memtable, base_of
from compactlib.raftlog.model.hard_state import HardState
from compactlib.raftlog.model.row import LogRows
from compactlib.raftlog.model.snapshot_meta import NO_SNAPSHOT, SnapshotMeta
from compactlib.raftlog.model.status import LogStatus, told
from compactlib.raftlog.model.values import (
    MAX_INDEX,
    Answer,
    AppendAnswer,
    AppendEntries,
    DeadEntry,
    Entry,
    MissingEntry,
)
from compactlib.raftlog.store.append_rule import judge
from compactlib.raftlog.store.log_segments import LogSegments
from compactlib.raftlog.store.pins import Pin
from compactlib.raftlog.store.protocols import CheckpointStore, LogWorker, SnapshotStore
from compactlib.raftlog.store.read_path import RaftReadPath
from compactlib.raftlog.store.write_path import (
    RaftWritePath,
    checked_entry,
    require_numbers,
    runs_of,
)
from compactlib.raftlog.wal.batch import Confirmed
from compactlib.raftlog.wal.wal import Wal
from compactlib.report import VerifyReport
from compactlib.rewrite import Executor
from compactlib.runtime.budget import Budget
from compactlib.runtime.later import LaterCalls
from compactlib.runtime.observe import Observer, tell
from compactlib.runtime.owned_lock import OwnedLock

if TYPE_CHECKING:
    from typing_extensions import Buffer

MAX_APPEND_ENTRIES = 1 << 14


class RaftLog(Closing):
    """One log of a `RaftLogStore`. Threads may share it; `open_log` makes one with a store of its own.

    What was appended is visible to reads at once, and durable after `sync`. Entries are in the WAL and in memory first,
    and move to segments in the background.

    Made by `RaftLogStore.log`.
    """

    def __init__(self, log_id: str, segments: LogSegments, wal: Wal, rows: LogRows, memtable: Memtable, *,
                 make_room: Callable[[], object], catch_up: Callable[[], object], queued: Callable[[], object],
                 max_queued_bytes: int, keep_trailing: int, owner: Callable[[], object], outbox: LaterCalls) -> None:
        self._log_id = log_id
        self._segments = segments
        self._log = segments.log
        self._wal = wal
        self._rows = rows
        self._memtable = memtable
        self._make_room = make_room
        self._catch_up = catch_up
        self._queued = queued
        self._max_queued_bytes = max_queued_bytes
        self._keep_trailing = keep_trailing
        self._owner = owner
        self._outbox = outbox
        self._reads = RaftReadPath(segments, memtable, partial(rows.get, log_id))
        self._writes = RaftWritePath(log_id, wal, memtable)
        self._lock = OwnedLock(f"the log {log_id!r}")
        self._pins: dict[Pin, None] = {}  # of this object, which releases them when it is closed
        self._closed = False
        self._on_confirmed: Callable[[Confirmed], object] | None = None
        self._failures = 0
        self._last_error: BaseException | None = None
        # One snapshot or installation at a time; taken before any other lock.
        self._snapshotting = OwnedLock(f"the log {log_id!r}")
        self._changes_snapshot = False
        self._close_store: Callable[[], object] | None = None
        self._snapshots: SnapshotStore | None = None
        self._worker: LogWorker | None = None
        # A snapshot may be in the store and not in the row: a try that the disk has cut short.
        self._row_may_be_behind = False
        # Up to where nothing is missing, while entries behind that are; looked up when it is first asked for.
        self._gap_after: int | None = None
        self._knows_gap = False

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
            StorageError, LogStopped, Closed: as `sync`.
        """
        self._require_open()
        if applied is not None and whole("the last index applied", applied) < -1:
            raise InvalidInput(f"the last index applied is {applied}; give it, or -1 if none was")
        if snapshots is not None:
            with self._changing_snapshot():
                self._owner()
                self._snapshots = snapshots
                self._follow_snapshots(snapshots)
                snapshots.remove_older()
        if applied is not None:
            self._take_back_behind_gap(applied)
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
                self._tell_worker(lambda who: who.snapshot_recorded(row))

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

    def owns(self, close_store: Callable[[], object]) -> None:
        """The store's: closing this log closes the store."""
        self._close_store = close_store

    @property
    def log_id(self) -> str:
        """The log's id in its store."""
        return self._log_id

    @property
    def folder(self) -> str:
        """Where its segments are, as an absolute path."""
        return self._log.folder

    @property
    def state(self) -> SnapshotMeta:
        """The row: what the last snapshot left, as one value."""
        return self._rows.get(self._log_id)

    @property
    def segments(self) -> SegmentLog:
        """The log's segments: for those who compact it."""
        return self._log

    @property
    def is_closed(self) -> bool:
        """Whether the log was closed."""
        return self._closed

    @property
    def last_index(self) -> int:
        """The highest index held, or the snapshot's if that is higher; -1 in an empty log. O(1).

        While a snapshot is received, and after a crash in the middle of that, entries below it are missing: what a
        host says of its log in a vote is `contiguous_through`, and the term of that index.
        """
        return self._memtable.last

    @property
    def contiguous_through(self) -> int:
        """Up to here every index behind the snapshot is held, and follows the one before: the last, or that at a gap.

        In a log without a snapshot, from the first index that is held; -1 in an empty log. O(1), but for the first
        time and after a snapshot over gaps: O(segments).
        """
        with self._lock:
            self._require_open()
            return self._through()

    def _through(self) -> int:
        """The same, for a caller that locks."""
        gap = self._find_gap()
        return self._memtable.last if gap is None else gap

    @property
    def last_term(self) -> int | None:
        """The term of the last index, `None` in an empty log."""
        return self.term_of(self.last_index) if self.last_index >= 0 else None

    @property
    def first_index(self) -> int | None:
        """The lowest index that can be read, `None` if none can."""
        return self._reads.first_index

    # -- reading

    def term_of(self, index: int) -> int | None:
        """The term of an entry that can be read, or of the one at which the snapshot ends; `None` for any other index.
        """
        return self._reads.term_of(index)

    def read(self, index: int) -> Entry | DeadEntry | MissingEntry:
        """The entry of `index`, or that it is dead, or that the log does not hold it.

        From memory, or with one bisection and one `pread`.

        Raises:
            CorruptData: the entry is damaged, or it is live and nothing holds it.
            Closed: the log was closed.
        """
        self._require_open()
        return self._reads.read(index)

    def read_many(self, indexes: Sequence[int]) -> Iterator[Answer]:
        """One answer for each of `indexes` (strictly ascending), in order; physical neighbours are read together.

        Damage to one entry is its answer, `DamagedEntry`; a dead or missing index hides none behind it.

        Raises:
            Unsorted: the indexes do not ascend strictly.
            CorruptData: a whole segment is damaged.
        """
        self._require_open()
        yield from self._reads.read_many(indexes)

    def entries(self, first: int = 0, last: int = MAX_INDEX) -> Iterator[Entry]:
        """Every entry from `first` to `last` that is not dead, ascending.

        What is appended meanwhile is left out.

        Raises:
            CorruptData: an entry is damaged; those before it have been given.
            Closed: the log was closed.
        """
        self._require_open()
        yield from self._reads.entries(first, last)

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
        return self._reads.after(prev_index, self.contiguous_through, max_bytes)

    def next_index(self, answer: AppendAnswer) -> int:
        """What a leader sends next to a follower that has answered so: `answer.next_index`, or, if this log has entries
        of the term that conflicts, what is behind the last of them: those the follower has too. O(log entries).
        """
        return self._reads.next_index(answer, self.contiguous_through)

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
            LogStopped: a sync has failed before; see `status`.
            Closed: the log was closed.
        """
        for first, term, payloads in self._checked_runs(entries):
            self.append_run(first, term, payloads)
        return self.last_index

    def _checked_runs(self, entries: Iterable[Entry | tuple[int, int, Buffer]]) -> list[tuple[int, int, list[Buffer]]]:
        """All are checked before the first is taken."""
        runs = list(runs_of(entries))
        for first, term, payloads in runs[1:]:
            require_numbers(first, first + len(payloads) - 1, term)
        return runs

    def append_run(self, first: int, term: int, payloads: Sequence[Buffer]) -> None:
        """Append entries of consecutive indexes and one term: a few calls, however many. Raises what `append` does."""
        for start, part in self._parts(first, term, payloads):
            with self._lock:
                self._require_next(start)
                overrules = start <= self._memtable.last
                if not overrules:
                    self._put(start, term, part)
            if overrules:
                # What lies behind a gap goes.
                self._cut(start - 1, partial(self._put, start, term, part), partial(self._require_next, start))
            self._after_append()

    def _require_next(self, first: int) -> None:
        """Entries from `first` on follow all that is held, but for what lies behind a gap. The caller locks."""
        self._require_appendable(first)
        through = self._through()
        if first <= through:
            raise Overwriting(index=first, last=through)
        if first > through + 1 and through < self._memtable.last:
            raise GapDetected(previous=first - 1, last=through, highest=self._memtable.last)

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
            MemtableFull, StorageError, CorruptData, LogStopped, Closed: as `append` and `sync`; the first entries may
                be in the log.
        """
        prev_index, prev_term = whole("the previous index", prev_index), whole("the previous term", prev_term)
        if prev_index < -1:
            raise InvalidInput(f"the previous index is {prev_index}; it is 0, or -1, if nothing comes before")
        runs = self._checked_runs(entries)
        if runs and runs[0][0] != prev_index + 1:
            raise InvalidInput(f"the first entry is {runs[0][0]}, and follows {prev_index}; give entries from "
                               f"{prev_index + 1} on")
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
            judged = judge(self._reads, self._through(), prev_index, prev_term, term, len(payloads))
            if not isinstance(judged, int) or judged == len(payloads):
                return judged
            start = prev_index + 1 + judged
            overrules = start <= self._memtable.last
            if not overrules:
                self._put(start, term, payloads[judged:])
        if overrules and not may_cut:
            # Judged again with the lock that keeps other cuts away.
            with self._outbox, self._outbox.held(), self._segments.guard.lock:
                return self._take_part(prev_index, prev_term, term, payloads, may_cut=True)
        if overrules:
            self._cut(start - 1, partial(self._put, start, term, payloads[judged:]), self._require_open)
        self._after_append()
        return judged

    def _cut(self, after: int, write: Callable[[], object], check: Callable[[], object]) -> None:
        """Take back everything above `after` by what `write` queues; durable, also in segments, when this returns.

        The next segment is begun first, so that nothing but the first of these steps needs room. Then the cut becomes
        durable in the WAL; what follows is done again by opening the log after a crash. A flush writes nothing
        meanwhile, and the log closes itself if any but the first step fails: `RaftLogStore.log` opens it again.
        """
        guard = self._segments.guard
        with self._outbox, self._outbox.held(), guard.lock:
            guard.require_open()
            self._segments.prepare_cut(after)
            with self._lock:
                check()
                guard.begin("a cut")
                try:
                    write()
                except CompactlibError:
                    guard.undone()
                    raise
            try:
                self._writes.sync()
            except CompactlibError as error:
                # Queued: it is in memory, and nobody knows whether it is durable. Opening the log again makes it so.
                self._log.guard.fail(error)
                guard.done()
                raise
            guard.done()
            self._segments.cut(after)

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
        self._writes.put_run(first, term, payloads)
        self._gap_after = None

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
            InvalidInput, MemtableFull, StorageError, LogStopped, Closed: as `append`.
        """
        if previous_index is not None:
            previous_index = whole("the previous index", previous_index)
        entries = listed("the entries", entries, checked_entry)
        if not entries:
            return
        for entry in entries:
            require_numbers(entry.index, entry.index, entry.term)
        self._make_room_for(entries[0].index, len(entries))
        last = self.last_index
        if apart and 0 <= last == self.contiguous_through == entries[0].index - 1:
            # What was taken back above is gone by then.
            self.sync()
            self._segments.gap.note(last)
        with self._lock:
            self._require_appendable(entries[0].index)
            before = self._memtable.last
            self._writes.put_sparse(entries, previous_index)
            if self._gap_after is None and (apart or not 0 <= before == entries[-1].index - len(entries)):
                self._knows_gap = False
        self._after_append()

    def reset(self, last_index: int) -> None:
        """Take back everything above `last_index`, unconfirmed entries included; durable when this returns.

        Raises:
            InvalidInput: it lies below the snapshot.
            StorageError: the disk refused. If the WAL was refused the cut, or segments were, the log is closed, and
                opening the store again shows whether it has happened.
            LogStopped, Closed: as `append`.
        """
        last_index = whole("the last index", last_index)
        with self._outbox, self._outbox.held(), self._segments.guard.lock:
            with self._lock:
                self._require_open()
                if last_index < self.state.index:
                    raise InvalidInput(f"reset to {last_index} would take back what the snapshot "
                                       f"{self.state.index} covers; reset to that index or above")
                if last_index >= self._memtable.last:
                    return
                after = self._reads.highest_held(last_index)
            self._cut(after, partial(self._writes.cut, after), self._require_open)
        with self._lock:
            if self._gap_after is not None and self._memtable.last <= self._gap_after:
                self._gap_after = None

    def _find_gap(self) -> int | None:
        """The index before the first gap, `None` if there is no gap. The caller locks."""
        if not self._knows_gap:
            through = self._reads.contiguous_through()
            self._gap_after = through if through < self._memtable.last else None
            self._knows_gap = True
        return self._gap_after

    def _require_appendable(self, first: int) -> None:
        self._require_open()
        row = self.state
        if first <= row.index:
            raise InvalidInput(f"index {first} lies at or below the snapshot {row.index}; what a snapshot "
                               f"covers is committed and cannot be written again, append from {row.index + 1}")

    def _make_room_for(self, first: int, entries: int) -> None:
        """Before anything is appended, so that what the disk refuses was not."""
        self._catch_up()
        gap = self._segments.gap.after
        if gap is not None and self.state.index <= gap and first <= gap + 1:
            self._end_gap(gap)
        if self._wal.queued_bytes > self._max_queued_bytes:
            self.sync()
        if not self._memtable.has_room(entries):
            self._make_room()

    def _end_gap(self, after: int) -> None:
        """What comes next follows the entries up to `after`: first nothing else may lie there, after a crash either."""
        self.reset(after)
        self.sync()
        self._segments.gap.forget()

    def _after_append(self) -> None:
        self._queued()
        if self._wal.queued_bytes > self._max_queued_bytes:
            # It is appended, and stays queued: a disk that is still full shows with the next.
            with contextlib.suppress(StorageError):
                self.sync()

    def sync(self) -> None:
        """Return when everything appended before is durable: one fsync for what all threads and logs have queued.

        Raises:
            StorageError: the disk has no room; the entries stay queued, call again.
            LogStopped: a sync failed, now or before: nothing will be confirmed until the store is opened again.
            Closed: the log was closed.
        """
        self._require_open()
        self._writes.sync()

    def confirmed(self, found: Confirmed, ticket: int) -> None:
        """The store's: everything up to `ticket` is durable. Called with no lock held."""
        with self._lock:
            self._writes.confirm(ticket)
        if self._on_confirmed is not None:
            self._note(tell(self._on_confirmed, found))

    def _note(self, error: BaseException | None) -> None:
        """Keep what a listener that was called has raised, if anything, or what nobody else is told."""
        if error is not None:
            self._failures, self._last_error = self._failures + 1, error

    @property
    def unconfirmed(self) -> IndexSet:
        """What was appended and is not durable yet."""
        with self._lock:
            return self._writes.unconfirmed

    @property
    def stopped(self) -> LogStopped | None:
        """Why nothing is confirmed any more, `None` if all is well."""
        return self._wal.stopped

    # -- term and vote

    @property
    def hard_state(self) -> HardState:
        """The member's term, and whom it has voted for in it, as they were recorded last. Durable."""
        return self._segments.hard_state.now

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
        with self._segments.hard_state.lock:
            self._require_open()
            self._owner()
            return self._segments.hard_state.record(whole("the term", term), voted_for)

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
            self.sync()
            self._log.require_held(meta)
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
            self.sync()
            self._log.require_held(meta)
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
            StorageError, LogStopped, Closed: as `snapshot`. Call again.
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
            self.sync()
            self._log.require_held(meta)
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
        with self._outbox, self._outbox.held(), self._snapshotting:
            if self._changes_snapshot:
                raise Busy(f"log {self._log_id!r} is taking a snapshot, whose state was being given when this was "
                           f"called; call it when that has returned")
            self._changes_snapshot = True
            try:
                yield
            finally:
                self._changes_snapshot = False

    def _caught_up(self) -> SnapshotMeta | None:
        """Before a snapshot: bring the row up to what an earlier try has left in the store, and return that."""
        self._require_open()
        self._owner()
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
        """Put the row of a snapshot in force that came from elsewhere; see `ReplicatedLog.install`.

        Raises:
            Stale: the row is at or above it.
            LiveIndexMissing: the log does not hold a live entry; nothing was changed.
            StorageError, LogStopped, Closed: as `sync`.
        """
        with self._changing_snapshot():
            self._require_open()
            self._owner()
            if meta.index <= self.state.index:
                raise Stale(f"snapshot {meta.index} is not newer than {self.state.index}, which is in force")
            self._row_may_be_behind = self._snapshots is not None
            self._take_over(meta)
            self._row_may_be_behind = False

    def _take_over(self, meta: SnapshotMeta, *, trails: bool = False) -> None:
        self._log.require_held(meta)
        term = self.term_of(meta.index)
        # Without a row it may be that one which was lost: then the entry may have been dropped, and what follows stays.
        if self.last_index > meta.index and term != meta.term and not (term is None and self.state.index < 0):
            self.reset(meta.index)
        self.sync()
        self._record(self._with_trailing(meta) if trails else meta)

    def _with_trailing(self, meta: SnapshotMeta) -> SnapshotMeta:
        """The row of a snapshot whose entries the machine has applied from this log: the last of them stay."""
        first = max(meta.index - self._keep_trailing + 1, self._reads.kept_from, 0)
        if first > meta.index or meta.index > self.contiguous_through or self.term_of(meta.index) != meta.term:
            return meta
        return SnapshotMeta(meta.index, meta.term, meta.live | IndexSet.range(first, meta.index))

    def _record(self, meta: SnapshotMeta) -> None:
        self._log.record_state(meta)
        with self._lock:
            self._rows.put(self._log_id, meta)
            self._memtable.skip_to(meta.index)
            # What the snapshot covers is no gap any more.
            self._knows_gap = self._knows_gap and self._gap_after is None
        gap = self._segments.gap.after
        if gap is not None and gap < meta.index:
            # It means nothing any more, and does no harm if it stays.
            with contextlib.suppress(StorageError):
                self._segments.gap.forget()
        self._outbox.put(self._tell_worker, lambda worker: worker.snapshot_recorded(meta))
        if self._snapshots is not None:
            try:
                self._snapshots.remove_older()
            except StorageError as error:
                # The new one is in force: they go with the next one, or when the store is attached again.
                self._note(error)

    def _tell_worker(self, what: Callable[[LogWorker], object]) -> None:
        worker = self._worker
        if worker is not None:
            self._note(tell(what, worker))

    def pin(self, indexes: IndexSet) -> Pin:
        """Hold entries readable until released, although a newer snapshot may leave them dead.

        Raises:
            LiveIndexMissing: the log does not hold one of them, or it is dead.
            Closed: the log was closed.
        """
        self._require_open()
        # No snapshot may come between the look at the row and the pin.
        with self._snapshotting:
            pin = self._reads.pin(indexes, self._unpin)
            with self._lock:
                self._pins[pin] = None
                self._log.segments.pin(pin, pin.indexes)
        try:
            self._require_found(pin)
        except BaseException:
            pin.release()
            raise
        return pin

    def _unpin(self, pin: Pin) -> None:
        with self._lock:
            del self._pins[pin]
            self._log.segments.unpin(pin)

    def _require_found(self, pin: Pin) -> None:
        dead = pin.indexes - self.state.needed(pin.indexes)
        missing = dead | (pin.indexes - pin.found)
        if missing:
            raise LiveIndexMissing(f"{len(missing)} of {len(pin.indexes)} indexes to be pinned are dead or not in the "
                                   f"log, the first of them {missing.first}; pin what a snapshot in force names",
                                   missing=len(missing), first=missing.first)

    # -- flushing and compacting

    def flush(self) -> None:
        """Write all that this store's logs hold in memory to segments now; see `RaftLogStore.flush`."""
        self._require_open()
        self._make_room()

    @property
    def policy(self) -> LogPolicy:
        """The log's own policy; see `SegmentLog.policy`."""
        return self._log.policy

    def view(self, *, budget: Budget | None = None) -> LogView:
        """The log's segments as a policy sees them now. What is pinned counts as alive. See `SegmentLog.view`."""
        self._require_open()
        return self._log.view(budget=budget)

    def plan(self, policy: LogPolicy | None = None, *, view: LogView | None = None) -> LogPlan:
        """What `compact` would do now, and why: a dry run that changes nothing. See `SegmentLog.plan`."""
        self._require_open()
        return self._log.plan(policy, view=view)

    def compact(self, plan: LogPlan | None = None, *, policy: LogPolicy | None = None,
                executor: Executor | None = None, budget: Budget | None = None, observer: Observer | None = None,
                fence: CommitFence | None = None) -> LogCompactionReport:
        """Free what the last snapshot left dead, in this thread; appends and reads go on. See `SegmentLog.compact`."""
        self._require_open()
        return self._log.compact(plan, policy=policy, executor=executor, budget=budget, observer=observer, fence=fence)

    def reclaim(self, *, budget: Budget | None = None) -> LogReclaimReport:
        """Remove what leases or `keep_links_seconds` held back; see `SegmentLog.reclaim`."""
        self._require_open()
        return self._log.reclaim(budget=budget)

    def verify(self, *, budget: Budget | None = None) -> VerifyReport:
        """Read every entry, those in the WAL included, and list what is damaged or missing.

        Args:
            budget: asked before each segment.

        Raises:
            BudgetSpent: the budget refused.
            StorageError: something cannot be read.
            Closed: the log was closed.
        """
        self._require_open()
        return self._log.verify(budget=budget)

    def freeze(self, file_number: int) -> None:
        """The store's: what the memtable holds waits for segments, with this WAL file."""
        with self._lock:
            self._memtable.freeze(file_number)

    def flush_through(self, file_number: int) -> FlushPlan | None:
        """The store's: write to segments what waits with WAL files up to this one; `None` if nothing does.

        Raises:
            StorageError: see `LogSegments.write`; call again.
            Closed: a cut of the log has failed.
        """
        # A cut of this log comes before or after all of it, so that what it takes back is never written.
        with self._segments.guard.lock:
            self._segments.guard.require_open()
            with self._lock:
                tables, row = self._memtable.frozen(file_number), self.state
                below = base_of(self._memtable.tables[len(tables):])
            if not tables:
                return None
            plan = plan_flush(tables, row, self._segments.newest_stats(), below=below)
            self._segments.write(plan)
            with self._lock:
                self._memtable.release(tables)
        self._outbox.put(self._tell_worker, lambda worker: worker.segments_flushed(self._log.last_index))
        return plan

    # -- the log itself

    def status(self) -> LogStatus:
        """What the log says of itself.

        Raises:
            Closed: it was closed.
        """
        self._require_open()
        row = self.state
        stopped = self._wal.stopped
        unconfirmed = self.unconfirmed
        pinned = self._log.segments.pinned
        return LogStatus(
            log_id=self._log_id, first_index=self.first_index, last_index=self.last_index,
            last_term=self.last_term, durable_index=unconfirmed.first - 1 if unconfirmed else self.last_index,
            unconfirmed=len(unconfirmed), snapshot_index=row.index, snapshot_term=row.term,
            smallest_live_index=row.smallest_live_index, live=len(row.live), memtable_entries=self._memtable.entries,
            segments=len(self._log.refs), pinned=len(pinned), pins=len(self._pins),
            stopped=None if stopped is None else str(stopped),
            gap_after=through if (through := self.contiguous_through) < self.last_index else None,
            is_busy=self._log.is_compacting,
            failures=self._failures + getattr(self._worker, "failures", 0), last_error=told(self.last_error))

    @property
    def last_error(self) -> BaseException | None:
        """The last unexpected error, of the worker or of the server that it notifies, else of a listener or of the
        removal of a snapshot that another has outdone; or `None`."""
        return getattr(self._worker, "last_error", None) or self._last_error

    def audit(self) -> None:
        """Check the log's own invariants.

        Raises:
            AuditFailed: one is broken; says which, with the numbers.
            Closed: it was closed.
        """
        self._require_open()
        self.audit_kept()

    def audit_kept(self) -> None:
        """The store's: the same, also of a log that was closed, whose entries the store keeps.

        Raises:
            AuditFailed: as `audit`.
        """
        with self._snapshotting, self._lock:
            self._memtable.audit()
            self._log.audit()
            row, recorded = self.state, self._log.snapshot or NO_SNAPSHOT
            if row != recorded:
                raise AuditFailed(f"log {self._log_id!r}: the row is {row}, the segments have {recorded}")
            waiting = self.unconfirmed
            if waiting and waiting.last > self.last_index:
                raise AuditFailed(f"log {self._log_id!r}: {waiting.last} waits to be confirmed above the last "
                                      f"index {self.last_index}")

    def _stop_worker(self) -> None:
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
        self._log.guard.require_outside()

    @property
    def has_failed(self) -> bool:
        """The store's: whether its segments have closed themselves, and can be opened again."""
        return self._segments.guard.is_open and not self._log.guard.is_open

    def roll_forward(self) -> None:
        """The store's: make the cuts again that memory says, after its segments were opened again."""
        self._segments.roll_forward(self._memtable.tables, self.state.index)

    def reopened(self, segments: LogSegments | None = None) -> RaftLog:
        """The store's: another object for this log once this one is closed; it goes on with what is not durable yet.

        Args:
            segments: if they were opened again.
        """
        again = RaftLog(self._log_id, segments or self._segments, self._wal, self._rows, self._memtable,
                        make_room=self._make_room, catch_up=self._catch_up, queued=self._queued,
                        max_queued_bytes=self._max_queued_bytes, keep_trailing=self._keep_trailing, owner=self._owner,
                        outbox=self._outbox)
        again._writes = self._writes
        # A snapshot that is being taken ends first.
        again._snapshotting = self._snapshotting
        return again

    def _require_open(self) -> None:
        self._lock.require_mine()
        if self._closed:
            raise Closed(f"the log {self._log_id!r} in {os.path.dirname(self._log.folder)} is closed; open it "
                         f"again")
        self._segments.guard.require_open()
        self._log.guard.require_open()

    def close(self) -> None:
        """Sync, and let the log go (with its store, if `open_log` made both); closing again does nothing.

        In a fork of the process that opened it, it only lets the fork's files go.

        Raises:
            Busy: called from within a compaction of the log, by an observer or the server for example; nothing was
                done.
            StorageError, LogStopped: the last sync was refused; the log is closed all the same.
        """
        if self._closed:
            # Perhaps by another thread, which still waits for a compaction.
            self._log.guard.wait_idle()
            return
        if self._lock.is_inherited:
            # Without another lock: a thread that held one when the process was forked does not exist to release it.
            self._closed = True
            if self._close_store is not None:
                self._close_store()
            return
        self.require_outside()
        self._stop_worker()
        try:
            with contextlib.suppress(Closed) if self._wal.stopped is None else contextlib.nullcontext():
                self.sync()
        finally:
            # Not while a vote is being recorded: the next owner of the folder would not know of it. Nor while anything
            # is appended: `reopened` has another lock for that.
            with self._segments.hard_state.lock, self._lock:
                self._closed = True
            for pin in list(self._pins):
                pin.release()
            if self._close_store is not None:
                self._close_store()
            self._log.guard.wait_idle()

    def __repr__(self) -> str:
        return (f"<{type(self).__name__} {self._log_id!r}: {self.first_index} to {self.last_index}, snapshot "
                f"{self.state.index}>")


def _require_index(index: object) -> None:
    if not isinstance(index, int) or not 0 <= index <= MAX_INDEX:
        raise InvalidInput(f"snapshot index {index!r}; give a whole number from 0 to {MAX_INDEX}")
