# SPDX-License-Identifier: Apache-2.0
"""Appending to a `RaftLog`: what a host gives is checked, and goes into the WAL's queue and the memtable at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import attrs

from compactlib.errors import CompactlibError, InvalidInput
from compactlib.indexset.index_set import IndexSet
from compactlib.raftlog.arguments import bytes_of, listed
from compactlib.raftlog.errors import Overwriting
from compactlib.raftlog.memtable.table import Memtable
from compactlib.raftlog.model.values import MAX_INDEX, Entry
from compactlib.raftlog.wal.rules import Verdict, Write
from compactlib.raftlog.wal.wal import Wal

if TYPE_CHECKING:
    from typing_extensions import Buffer


@attrs.frozen(slots=True)
class _Waiting:
    ticket: int
    first: int
    last: int


class RaftWritePath:
    """Writes of one log, and which of them the WAL has not confirmed yet. The caller locks.

    Args:
        log_id: the log's.
        wal: where they become durable.
        memtable: where they are read from meanwhile.
    """

    def __init__(self, log_id: str, wal: Wal, memtable: Memtable) -> None:
        self._log_id = log_id
        self._wal = wal
        self._memtable = memtable
        # What waits for the WAL, in the order of appending.
        self._waiting: deque[_Waiting] = deque()
        self._ticket = 0

    def put_run(self, first: int, term: int, payloads: Sequence[bytes]) -> None:
        """Append entries of consecutive indexes and one term.

        Raises:
            InvalidInput, GapDetected, MemtableFull, LogStopped, Closed: nothing was appended.
        """
        self._memtable.require_fit(first, len(payloads))
        verdict = self._wal.write_run(self._log_id, first - 1 if first else None, first, term, payloads)
        self._require_written(verdict)
        self._take_back(first - 1)
        self._memtable.insert_run(first, term, payloads)
        self._note_queued(first, first + len(payloads) - 1)

    def put_sparse(self, entries: Sequence[Entry], previous_index: int | None) -> None:
        """Append ascending entries with gaps between them; see `RaftLog.append_sparse`.

        Raises:
            InvalidInput, GapDetected, Overwriting, MemtableFull, LogStopped, Closed: nothing was appended.
        """
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

    def cut(self, after: int) -> None:
        """Take back everything above `after`.

        Raises:
            LogStopped, Closed: nothing was taken back.
        """
        self._wal.cut(self._log_id, after)
        self._ticket = self._wal.ticket
        self._take_back(after)
        self._memtable.cut(after)

    def _take_back(self, after: int) -> None:
        """What lies above `after` was taken back: no caller waits for it any more."""
        # They ascend: what is appended lies above all that waits.
        while self._waiting and self._waiting[-1].last > after:
            highest = self._waiting.pop()
            if highest.first <= after:
                self._waiting.append(attrs.evolve(highest, last=after))

    def _note_queued(self, first: int, last: int) -> None:
        self._ticket = self._wal.ticket
        self._waiting.append(_Waiting(self._ticket, first, last))

    def _require_written(self, verdict: Verdict) -> None:
        if not isinstance(verdict, Write) or verdict.first > verdict.state.last:
            raise CompactlibError(f"the WAL answered {verdict} to a write that fits log {self._log_id!r}, whose last "
                                  f"index is {self._memtable.last}; close the store and open it again")

    def sync(self) -> None:
        """Return when everything is durable; needs no lock. See `RaftLog.sync`."""
        self._wal.sync(self._ticket)

    def confirm(self, ticket: int) -> None:
        """Everything up to `ticket` is durable. Amortized O(1) a run."""
        while self._waiting and self._waiting[0].ticket <= ticket:
            self._waiting.popleft()

    @property
    def unconfirmed(self) -> IndexSet:
        """What was appended and is not durable yet. O(runs)."""
        self.confirm(self._wal.durable_ticket)
        return IndexSet.from_runs((each.first, each.last) for each in self._waiting)


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
            raise InvalidInput(f"entries {first!r} to {last!r} in term {term!r}: index and term are 0 to {MAX_INDEX}")


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
