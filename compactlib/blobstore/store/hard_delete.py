# SPDX-License-Identifier: Apache-2.0
"""Reclaim, and the hard delete that may be a part of it: the content of deleted blobs is overwritten with zeros where
it lies.

A hard delete follows the deletes in effect in the order of their sequences, and remembers durably below which none is
left; since compactions keep sequences, it never has to begin anew because of one. A delete that is not in effect, by a
clock far ahead say, holds up no other: those behind it are looked at again after the store was opened, which changes
nothing. It works in small batches, each a run of the store like a compaction, and yields to compactions: while one
runs, or waits to be finished, nothing is overwritten.

A host that has other work to do on the disk gives it a budget with a deadline, time after time: each call goes on from
where the last one ended. A `CompactionManager` does so.

A batch: what is to be overwritten is written down durably (`erasure`), then the index says that the contents are gone,
then the records are overwritten and synced, then the note is cleared. A crash in between is made good when the store
is opened: `recover_compaction` calls `redo_erasures`.
"""

from __future__ import annotations

import contextlib
import heapq
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from operator import attrgetter

import attrs

from compactlib.blobstore.compaction.commit.publish import bytes_of, remove_file
from compactlib.blobstore.compaction.run.events import CONTENTS_ERASED, HARD_DELETE_RESET, StoreEvents
from compactlib.blobstore.compaction.run.report import (
    BlobReclaimReport,
    HardDeleteReport,
)
from compactlib.blobstore.compaction.run.store_compactions import OwnedStore
from compactlib.blobstore.compaction.swap import Snapshot
from compactlib.blobstore.index.index_file import write_index
from compactlib.blobstore.index.index_segment import OFTEN, IndexSegment
from compactlib.blobstore.model.names import SegmentName
from compactlib.blobstore.model.values import IndexEntry, RecordFlag, RecordKind, milliseconds
from compactlib.blobstore.segment.erasure import (
    Erasure,
    HardDeleteState,
    erase_records,
    redo_erasures,
    state_in,
    total_bytes,
)
from compactlib.blobstore.segment.open_segments import OpenSegments
from compactlib.blobstore.segment.reader import salt_of
from compactlib.blobstore.segment.records import HEADER_BYTES, content_range, decode_head, encode_head
from compactlib.blobstore.validity.verdicts import FOREVER, BlobEnd
from compactlib.errors import AuditFailed, CompactlibError, CorruptData, StorageError
from compactlib.outcome import Done, Failed, Outcome, Skipped
from compactlib.runtime.breather import Breather
from compactlib.runtime.budget import Budget

MAX_BATCH_RECORDS = 64
MAX_BATCH_BYTES = 8 << 20
MAX_WAITING_DELETES = 10_000
"""How many of the next deletes are remembered, so that not each batch looks at the whole index."""
_MAX_OPEN = 16
_WHO = "hard delete"
_BY_SEQUENCE = attrgetter("sequence")


def reclaim(store: OwnedStore, budget: Budget | None, *, erases: bool) -> Outcome[BlobReclaimReport]:
    """See `BlobStore.reclaim`; `erases` is whether the hard delete is a part of it."""
    compactions = store.compactions
    with compactions.running(budget, is_brief=True) as run:
        if run is None:
            return compactions.busy()
        gone: list[str] = []
        try:
            run.budget.check()
            names = compactions.reclaimable()
            freed = bytes_of(store.folder, names)
            for name in names:
                remove_file(store.files, store.folder, name)
                gone.append(name)
            if names:
                store.files.sync_folder(store.folder)
        except CompactlibError as error:
            return Failed(error, "partly") if gone else Failed(error)
        removed = tuple(gone)
    erased: HardDeleteReport | None = None
    if erases:
        limit = Budget(clock=store.clock) if budget is None else budget
        own = limit.child(bytes_per_second=None if limit.remaining.bytes_per_second
                          else store.config.hard_delete_bytes_per_second)
        outcome = hard_delete(store, own)
        match outcome:
            case Done(stats):
                erased = stats
            case Failed():
                return attrs.evolve(outcome, changed="partly") if removed else outcome
            case Skipped() if not removed:
                return outcome
    if not removed and (erased is None or not erased.records):
        waits = "" if erased is None else ", and no delete came into effect since the last time"
        return Skipped(f"store {store.name} has nothing to reclaim: no attempt has left a file{waits}")
    return Done(BlobReclaimReport(store=store.name, removed=removed, bytes_freed=freed, erased=erased))


def hard_delete(store: OwnedStore, budget: Budget | None) -> Outcome[HardDeleteReport]:
    """See `BlobStore.hard_delete`."""
    store.require_mine()
    try:
        return HardDeleter(store).run(budget=budget)
    except CompactlibError as error:
        # How far it has come cannot be read.
        return Failed(error)


@attrs.frozen
class _Round:
    """The next deletes that are in effect, and what the progress must not pass.

    Attributes:
        in_effect_ms: deletes made before it are in effect.
        not_yet: the lowest sequence of a delete that is not.
        waiting: the next that are, by sequence.
        put_off: the lowest sequence of one whose content is in the segment that is written to.
    """

    in_effect_ms: int
    not_yet: int
    waiting: Sequence[IndexEntry]
    put_off: int = FOREVER


@attrs.frozen
class _Batch:
    """Records to overwrite.

    Attributes:
        erasures: these.
        looked_at: the sequence of the last delete that was looked at for them.
        reached: up to this one, every delete was carried out before, or is with them.
        then: what is left of the round after them.
    """

    erasures: list[Erasure]
    looked_at: int
    reached: int
    then: _Round


class HardDeleter:
    """Overwrites the content of deleted blobs of one store. Several for one store take turns.

    Args:
        store: the store.
    """

    def __init__(self, store: OwnedStore) -> None:
        self._store = store
        self._events = StoreEvents(store.name, store.observer)
        self._state = self._stored(tells_damage=True)
        self._round: _Round | None = None
        # Deletes made before that time, up to that sequence, were looked at.
        self._looked_at = (0, 0)

    @property
    def sequence(self) -> int:
        """Every delete up to this one has been looked at."""
        return self._state.sequence

    def run(self, *, budget: Budget | None = None, most_batches: int | None = None) -> Outcome[HardDeleteReport]:
        """Carry out every delete that is in effect by now and was not looked at before.

        `Skipped` if the store is busy, or a compaction waits to be finished; `Failed` with `BudgetSpent` if the budget
        ended or the store is being closed. What was done stays, and the next run goes on from there.

        Args:
            budget: what it may use up; the configured rate if not given.
            most_batches: end after so many.
        """
        store, compactions = self._store, self._store.compactions
        limit = Budget(bytes_per_second=store.config.hard_delete_bytes_per_second,
                       clock=store.clock) if budget is None else budget
        records = written = batches = 0
        is_unsure = False
        lent = limit.child()
        try:
            store.require_mine()
            with compactions.ownership.cancels(lent):
                while (batch := self._next_batch(Breather(store.clock, lent))) is not None:
                    if batches == most_batches:
                        return Done(HardDeleteReport(records, written, self._state.sequence, is_whole=False))
                    batches += 1
                    erasures = batch.erasures
                    lent.spend(total_bytes(erasures))
                    with compactions.running(lent, is_brief=True) as run:
                        refused = compactions.busy() if run is None else compactions.in_the_way()
                        if refused is not None:
                            before = f"; {records} records were overwritten before" if records else ""
                            return attrs.evolve(refused, reason=refused.reason + before)
                        # What was found may have moved, or another one have been here, while the budget let us wait.
                        is_unsure = True
                        if self._stored().sequence == self._state.sequence and self._may_go(erasures):
                            written += self._carry_out(batch)
                            records += len(erasures)
                        is_unsure = False
        except CompactlibError as error:
            return Failed(error, "partly" if records else "unknown" if is_unsure else "no")
        finally:
            if records:
                self._events.tell(CONTENTS_ERASED, records=records, bytes_written=written)
        return Done(HardDeleteReport(records, written, self._state.sequence))

    def audit(self) -> None:
        """Check that what is in memory is what is on the disk, or was before another one went on from there.

        Raises:
            AuditFailed: it is not.
        """
        stored = state_in(self._store.folder).read()
        if stored is not None and stored.sequence < self._state.sequence:
            raise AuditFailed(f"hard delete has reached {self._state.sequence}, its file says {stored.sequence}")

    def _stored(self, *, tells_damage: bool = False) -> HardDeleteState:
        state = None
        try:
            state = state_in(self._store.folder).read()
        except CorruptData as error:
            if tells_damage:
                self._events.tell(HARD_DELETE_RESET, error=str(error))
        if state is None or state.incarnation != self._store.incarnation:
            return HardDeleteState(self._store.incarnation)
        return state

    def _next_batch(self, breather: Breather) -> _Batch | None:
        """The next records to overwrite; `None` if there is nothing new, and the next call looks again at what was put
        off."""
        store, snapshot = self._store, self._store.snapshot()
        self._state = self._stored()
        in_effect_ms = milliseconds(store.clock.now() - store.config.deleted_retention_seconds)
        with contextlib.closing(OpenSegments(store.folder, store.segment_header, _MAX_OPEN)) as files:
            while (current := self._waiting(snapshot, in_effect_ms, breather)) is not None:
                batch = self._batch(snapshot, current, files, breather)
                if batch.erasures or batch.reached > self._state.sequence:
                    return batch
                self._went(batch)
        return None

    def _waiting(self, snapshot: Snapshot, in_effect_ms: int, breather: Breather) -> _Round | None:
        """The round as far as it was not looked at, or the next one; `None` if there is none."""
        current, put_off = self._round, FOREVER
        if current is not None:
            put_off = current.put_off
            # A clock that was set back leaves fewer in effect.
            if current.in_effect_ms <= in_effect_ms and current.waiting:
                return current
        not_yet = FOREVER

        def in_effect() -> Iterator[IndexEntry]:
            nonlocal not_yet
            for delete in self._not_looked_at(snapshot, breather):
                if delete.op_time_ms < in_effect_ms:
                    yield delete
                elif delete.sequence < not_yet:
                    not_yet = delete.sequence

        waiting = heapq.nsmallest(MAX_WAITING_DELETES, in_effect(), key=_BY_SEQUENCE)
        self._round = _Round(in_effect_ms, not_yet, waiting, put_off) if waiting else None
        if not waiting and put_off < FOREVER:
            before_ms, sequence = self._looked_at
            self._looked_at = before_ms, min(sequence, put_off - 1)
        return self._round

    def _not_looked_at(self, snapshot: Snapshot, breather: Breather) -> Iterator[IndexEntry]:
        """The DELETE entries that were not looked at, in no order. Segments that are older are not looked at."""
        reached = self._state.sequence
        before_ms, sequence = self._looked_at
        for info in snapshot.segments:
            if info.last_sequence > reached:
                for entry in snapshot.entries_of(info.name):
                    breather.breathe()
                    if entry.kind == RecordKind.DELETE and entry.sequence > reached and (
                            entry.sequence > sequence or entry.op_time_ms >= before_ms):
                        yield entry

    def _batch(self, snapshot: Snapshot, current: _Round, files: OpenSegments, breather: Breather) -> _Batch:
        # Several deletes may be why the same content goes.
        found: dict[tuple[SegmentName, int], Erasure] = {}
        size = looked_at = 0
        put_off = current.put_off
        often: dict[bytes, list[IndexEntry]] = {}
        for delete in current.waiting:
            breather.breathe()
            history = often.get(delete.id) or snapshot.history(delete.id)
            if len(history) > OFTEN:
                # Looked at once: what decides is the same for each of its deletes.
                newest = BlobEnd.of(history).newest
                often[delete.id] = history = [each for each in history if each.kind == RecordKind.PUT or each is newest]
            doomed = [put for put in _doomed(history, delete, current.in_effect_ms)
                      if not self._is_erased(put, snapshot, files)]
            looked_at = delete.sequence
            if any(put.segment == snapshot.segments[-1].name for put in doomed):
                # Still being written to: its turn comes when the segment is sealed.
                put_off = min(put_off, looked_at)
                continue
            for put in doomed:
                if (put.segment, put.offset) not in found:
                    found[put.segment, put.offset] = self._erasure(put)
                    size += content_range(put)[1]
            if len(found) >= MAX_BATCH_RECORDS or size >= MAX_BATCH_BYTES:
                break
        left = current.waiting[bisect_right(current.waiting, looked_at, key=_BY_SEQUENCE):]
        reached = min(looked_at, current.not_yet - 1, put_off - 1)
        return _Batch([*found.values()], looked_at, reached, attrs.evolve(current, waiting=left, put_off=put_off))

    def _went(self, batch: _Batch) -> None:
        """A batch is over: go on from there."""
        self._round = batch.then
        if not batch.then.waiting:
            self._looked_at = batch.then.in_effect_ms, batch.looked_at

    def _is_erased(self, put: IndexEntry, snapshot: Snapshot, files: OpenSegments) -> bool:
        """Whether the record itself says that its content was overwritten: the index says so before, and a compaction
        may have copied the record in between."""
        if put.flags & RecordFlag.ERASED:
            # One that has moved meanwhile is looked at again before anything is overwritten.
            with contextlib.suppress(StorageError):
                data = files.get(put.segment, snapshot.has).read(put.offset, HEADER_BYTES + len(put.id))
                head = decode_head(data, 0, salt_of(self._store.incarnation))
                return not isinstance(head, str) and bool(head.flags & RecordFlag.ERASED)
        return False

    def _erasure(self, put: IndexEntry) -> Erasure:
        head, _ = encode_head(put._replace(flags=put.flags | RecordFlag.ERASED), salt_of(self._store.incarnation))
        return Erasure(put.segment, put.offset, content_range(put)[1], head)

    def _may_go(self, erasures: Sequence[Erasure]) -> bool:
        """Give these contents up; `False` if one has moved, or a peer has brought its blob back meanwhile."""
        store = self._store
        # A batch that the disk refused half-way is finished first.
        redo_erasures(store.files, store.folder, self._mark_all)
        places = {(erasure.segment, erasure.offset) for erasure in erasures}
        store.give_up(_WHO, lambda put: (put.segment, put.offset) in places)
        snapshot = store.snapshot()
        again = self._next_batch(Breather(store.clock))
        if all(snapshot.has(segment) for segment, _ in places) and again is not None and places <= {
                (erasure.segment, erasure.offset) for erasure in again.erasures}:
            return True
        store.give_up(_WHO, None)
        return False

    def _carry_out(self, batch: _Batch) -> int:
        store, written = self._store, 0
        # A delete that a crash takes must not be why content goes, nor count as looked at.
        store.make_durable()
        if batch.erasures:
            state_in(store.folder, store.files).write(attrs.evolve(self._state, erasures=tuple(batch.erasures)))
            self._mark_all(batch.erasures)
            written = erase_records(store.files, store.folder, batch.erasures)
        state = HardDeleteState(store.incarnation, max(batch.reached, self._state.sequence))
        state_in(store.folder, store.files).write(state)
        store.give_up(_WHO, None)
        self._state = state
        self._went(batch)
        return written

    def _mark_all(self, erasures: Sequence[Erasure]) -> None:
        snapshot = self._store.snapshot()
        offsets: dict[SegmentName, set[int]] = {}
        for erasure in erasures:
            offsets.setdefault(erasure.segment, set()).add(erasure.offset)
        for segment in sorted(filter(snapshot.has, offsets)):
            self._mark(segment, offsets[segment])

    def _mark(self, segment: SegmentName, offsets: set[int]) -> None:
        """Let the index of a segment say that these contents are gone, before they are: no reader finds half of it."""
        store = self._store
        key = store.incarnation
        for part in store.snapshot().sealed_parts(segment):
            if any(entry.offset in offsets for entry in part.entries()):
                marked = [entry._replace(flags=entry.flags | RecordFlag.ERASED) if entry.offset in offsets else entry
                          for entry in part.entries()]
                index = IndexSegment.of_entries(segment, marked, part.start, part.end, key)
                write_index(store.files, store.folder, index, key)
        store.reload_index(segment)


def _doomed(history: Sequence[IndexEntry], delete: IndexEntry, in_effect_ms: int) -> list[IndexEntry]:
    """The PUTs whose content goes: none if the blob lives again, or was deleted again and that may be undone; if it was
    put again, those that were deleted before."""
    end = BlobEnd.of(history)
    if end.put is not None and end.put.sequence > delete.sequence:
        history = [entry for entry in history if entry.sequence < delete.sequence]
    elif end.deleted_ms >= in_effect_ms:
        return []
    return [put for put in history if put.kind == RecordKind.PUT]
