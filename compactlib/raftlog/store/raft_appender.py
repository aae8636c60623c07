"""The appending half of a `RaftLog`: into the WAL's queue and the memtable; synced for many at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from compactlib.errors import CompactlibError, InvalidInput
from compactlib.indexset.index_set import IndexSet
from compactlib.raftlog.arguments import listed, whole
from compactlib.raftlog.errors import LogStopped, Overwriting
from compactlib.raftlog.memtable.entry_runs import runs_of
from compactlib.raftlog.memtable.table import Memtable
from compactlib.raftlog.model.row import LogRows
from compactlib.raftlog.model.values import MAX_INDEX, Entry
from compactlib.raftlog.segment.format import MAX_PAYLOAD_BYTES
from compactlib.raftlog.store.log_segments import LogSegments
from compactlib.raftlog.store.pending import Pending
from compactlib.raftlog.store.raft_reader import RaftReader
from compactlib.raftlog.wal.batch import Confirmed
from compactlib.raftlog.wal.rules import Verdict, Write
from compactlib.raftlog.wal.wal import Wal
from compactlib.runtime import LaterCalls, tell

if TYPE_CHECKING:
    from typing_extensions import Buffer

MAX_APPEND_ENTRIES = 1 << 14


class RaftAppender(RaftReader):
    """Appends to one log; see `RaftLog`."""

    def __init__(self, log_id: str, segments: LogSegments, wal: Wal, rows: LogRows, memtable: Memtable, *,
                 make_room: Callable[[], object], catch_up: Callable[[], object], max_queued_bytes: int,
                 queued: Callable[[], object], owner: Callable[[], object], outbox: LaterCalls) -> None:
        super().__init__(log_id, segments, rows, memtable)
        self._wal = wal
        self._owner = owner
        self._outbox = outbox
        self._make_room = make_room
        self._catch_up = catch_up
        self._max_queued_bytes = max_queued_bytes
        self._queued = queued
        self._lock = threading.RLock()
        self._pending = Pending()
        self._ticket = 0
        self._on_confirmed: Callable[[Confirmed], object] | None = None
        self._failures = 0
        self._last_error: BaseException | None = None

    def append(self, entries: Iterable[Entry | tuple[int, int, Buffer]]) -> int:
        """Append entries of consecutive indexes; one that is there already takes back everything from it on.

        Returns the last index. Durable after `sync`.

        Args:
            entries: `Entry` values or (index, term, payload) tuples, ascending without gaps.

        Raises:
            GapDetected: the first does not follow the last index, or another the one before it.
            InvalidInput: an index lies at or below the snapshot, or is no 64-bit number.
            MemtableFull: too many entries at once.
            StorageError, CorruptData: too much waits for segments, and those cannot be written; nothing was appended.
            LogStopped: a sync has failed before; see `status`.
            Closed: the log was closed.
        """
        runs = list(runs_of(entries))
        # All before the first is taken.
        for first, term, payloads in runs[1:]:
            _require_numbers(first, first + len(payloads) - 1, term)
        for first, term, payloads in runs:
            self.append_run(first, term, payloads)
        return self.last_index

    def append_run(self, first: int, term: int, payloads: Sequence[Buffer]) -> None:
        """Append entries of consecutive indexes and one term: a few calls, however many. Raises what `append` does."""
        first = whole("the first index", first)
        if type(payloads) is not list:
            payloads = listed("the payloads", payloads)
        copied = payloads if set(map(type, payloads)) == {bytes} else list(map(_bytes_of, payloads))
        for start in range(0, len(copied), MAX_APPEND_ENTRIES):
            part: Sequence[bytes] = copied[start:start + MAX_APPEND_ENTRIES]
            self._append_part(first + start, term, part)

    def _append_part(self, first: int, term: int, payloads: Sequence[bytes]) -> None:
        last = first + len(payloads) - 1
        _require_numbers(first, last, term)
        _require_sizes(payloads)
        self._make_room_for(len(payloads))
        with self._lock:
            self._require_appendable(first)
            self._memtable.require_fit(first, len(payloads))
            verdict = self._wal.write_run(self._log_id, first - 1 if first else None, first, term, payloads)
            self._require_written(verdict)
            self._pending.cut(first - 1)
            self._memtable.insert_run(first, term, payloads)
            self._note_queued(first, last)
        self._after_append()

    def append_sparse(self, entries: Sequence[Entry], *, previous_index: int | None = None) -> None:
        """Append ascending entries with gaps between them, as a snapshot from elsewhere needs them.

        Args:
            entries: ascending by index, all above the snapshot.
            previous_index: the log's last index, as the caller knows it; `None` accepts whatever it is.

        Raises:
            GapDetected: the log's last index is another.
            Overwriting: an index is not above the one before it, or the last index of the log.
            InvalidInput, MemtableFull, LogStopped, Closed: as `append`.
        """
        if previous_index is not None:
            previous_index = whole("the previous index", previous_index)
        entries = list(map(_entry_of, listed("the entries", entries)))
        if not entries:
            return
        for entry in entries:
            _require_numbers(entry.index, entry.index, entry.term)
        _require_sizes([entry.payload for entry in entries])
        self._make_room_for(len(entries))
        with self._lock:
            self._require_appendable(entries[0].index)
            self._memtable.require_sparse_fit(entries[0].index, previous_index)
            for before, entry in pairwise(entries):
                if entry.index <= before.index:
                    raise Overwriting(index=entry.index, last=before.index)
            last = self._memtable.last
            verdict = self._wal.write_sparse(
                self._log_id, last if last >= 0 else None, [entry.index for entry in entries],
                [entry.term for entry in entries], [entry.payload for entry in entries])
            self._require_written(verdict)
            for entry in entries:
                self._memtable.insert_sparse(entry.index, entry.term, entry.payload, None)
                self._note_queued(entry.index, entry.index)
        self._after_append()

    def reset(self, last_index: int) -> None:
        """Take back everything above `last_index`, unconfirmed entries included. Durable with the next `sync`.

        Raises:
            InvalidInput: it lies below the snapshot.
            LogStopped, Closed: as `append`.
        """
        last_index = whole("the last index", last_index)
        with self._lock:
            self._require_open()
            if last_index < self.state.snapshot_index:
                raise InvalidInput(f"reset to {last_index} would take back what the snapshot "
                                   f"{self.state.snapshot_index} covers; reset to that index or above")
            if last_index >= self._memtable.last:
                return
            last = self._highest_held(last_index)
            self._wal.cut(self._log_id, last)
            self._ticket = self._wal.ticket
            self._pending.cut(last)
            self._memtable.cut(last)

    def _require_appendable(self, first: int) -> None:
        self._require_open()
        row = self.state
        if first <= row.snapshot_index:
            raise InvalidInput(f"index {first} lies at or below the snapshot {row.snapshot_index}; what a snapshot "
                               f"covers is committed and cannot be written again, append from {row.snapshot_index + 1}")

    def _require_written(self, verdict: Verdict) -> None:
        if not isinstance(verdict, Write) or verdict.first > verdict.state.last:
            raise CompactlibError(f"the WAL answered {verdict} to a write that fits log {self._log_id!r}, whose last "
                                  f"index is {self.last_index}; close the store and open it again")

    def _note_queued(self, first: int, last: int) -> None:
        self._ticket = self._wal.ticket
        self._pending.add(self._ticket, first, last)

    def _make_room_for(self, entries: int) -> None:
        self._catch_up()
        if not self._memtable.has_room(entries):
            self._make_room()

    def _after_append(self) -> None:
        self._queued()
        if self._wal.queued_bytes > self._max_queued_bytes:
            self.sync()

    def sync(self) -> None:
        """Return when everything appended before is durable: one fsync for what all threads and logs have queued.

        Raises:
            StorageError: the disk has no room; the entries stay queued, call again.
            LogStopped: a sync failed, now or before: nothing will be confirmed until the store is opened again.
            Closed: the log was closed.
        """
        self._require_open()
        self._wal.sync(self._ticket)

    def confirmed(self, found: Confirmed, ticket: int) -> None:
        """The store's: everything up to `ticket` is durable. Called with no lock held."""
        with self._lock:
            self._pending.confirm(ticket)
        if self._on_confirmed is not None:
            self._note(tell(self._on_confirmed, found))

    def _note(self, error: BaseException | None) -> None:
        """A listener was told; keep what it raised, if anything."""
        if error is not None:
            self._failures, self._last_error = self._failures + 1, error

    @property
    def unconfirmed(self) -> IndexSet:
        """What was appended and is not durable yet."""
        with self._lock:
            self._pending.confirm(self._wal.durable_ticket)
            return self._pending.indexes()

    @property
    def stopped(self) -> LogStopped | None:
        """Why nothing is confirmed any more, `None` if all is well."""
        return self._wal.stopped


def _require_numbers(first: object, last: object, term: object) -> None:
    for number in (first, last, term):
        if not isinstance(number, int) or not 0 <= number <= MAX_INDEX:
            raise InvalidInput(f"entries {first!r} to {last!r} in term {term!r}: index and term are 0 to {MAX_INDEX}")


def _require_sizes(payloads: Sequence[bytes]) -> None:
    longest = max(map(len, payloads))
    if longest > MAX_PAYLOAD_BYTES:
        raise InvalidInput(f"a payload has {longest} bytes, at most {MAX_PAYLOAD_BYTES} are taken")


def _entry_of(given: Any) -> Entry:
    try:
        index, term, payload = given
    except (TypeError, ValueError):
        raise InvalidInput(f"an entry is {given!r:.100}; give an Entry, or index, term, payload") from None
    return Entry(index, term, _bytes_of(payload))


def _bytes_of(payload: object) -> bytes:
    try:
        return bytes(memoryview(payload))  # type: ignore[arg-type]
    except TypeError:
        raise InvalidInput(f"a payload is a {type(payload).__name__}; give bytes, or what has the buffer of bytes"
                           ) from None
