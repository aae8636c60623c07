# SPDX-License-Identifier: Apache-2.0
"""Hard delete: the content of deleted blobs is overwritten with zeros where it lies, as a part of `reclaim`.

It follows the deletes in effect in the order of their sequences, and remembers durably up to which none is left; since
compactions keep sequences, it never begins anew because of one. A delete dated in the future does not block later ones:
they are found again by the next run, which is harmless, since erasing is idempotent.

A batch, of one segment:

1. the deletes are made durable; what is to be overwritten is noted durably in a redo file (`erasure`);
2. under the lock: whatever was revived meanwhile is left out, and the index says that the contents are gone;
3. the index file is replaced, the records are overwritten and synced, and the note is cleared.

A crash in between is made good when the store is opened; a disk that refuses in between, by the next reclaim or
compaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import attrs

from compactlib.blobstore.contents import LogSnapshot
from compactlib.blobstore.erasure import (
    Erasure,
    HardDeleteState,
    erase_records,
    state_in,
    total_bytes,
)
from compactlib.blobstore.index_file import replace_parts
from compactlib.blobstore.log import Log, is_without_room
from compactlib.blobstore.names import SegmentName
from compactlib.blobstore.records import content_range, encode_head
from compactlib.blobstore.segment import salt_of
from compactlib.blobstore.validity import BlobEnd
from compactlib.blobstore.values import IndexEntry, RecordFlag, RecordKind, milliseconds
from compactlib.budget import Budget
from compactlib.errors import BudgetSpent, CorruptData, StorageError

MAX_BATCH_RECORDS = 64
MAX_BATCH_BYTES = 8 << 20


@attrs.define
class Erased:
    """What a run has done.

    Attributes:
        records: records overwritten.
        bytes_written: bytes written over them.
        sequence: every delete up to this one was carried out.
        why: why it has not come to its end.
        was_reset: what was wrong with the file that says how far it had come.
    """

    records: int = 0
    bytes_written: int = 0
    sequence: int = 0
    why: str = ""
    was_reset: str = ""


def erase_deleted(log: Log, budget: Budget) -> Erased:
    """Carry out every delete that is in effect by now; one run at a time, and none beside a compaction.

    Args:
        log: the log.
        budget: what it may use up; where it ends, the next run goes on.

    Raises:
        StorageError: the disk refused, for another reason than want of room.
    """
    done = Erased()
    try:
        finish_erasures(log)
        state = _state(log, done)
        done.sequence = state.sequence
        before_ms = milliseconds(log.clock.now() - log.config.deleted_retention_seconds)
        snapshot = log.snapshot()
        found, reached = _doomed_records(snapshot, state.sequence, before_ms, budget)
        for segment in sorted(found):
            for batch in _batches(found[segment]):
                budget.spend(total_bytes(_erasures(batch, log)))
                count, size = _erase(log, batch, before_ms)
                done.records += count
                done.bytes_written += size
        if reached > state.sequence:
            _write(log, reached)
            done.sequence = reached
    except BudgetSpent as error:
        done.why = str(error)
    except StorageError as error:
        if not is_without_room(error):
            raise
        done.why = f"there is no room on the disk to note what is overwritten: {error}"
    return done


def finish_erasures(log: Log) -> None:
    """Overwrite what an earlier batch has noted, and the disk kept from being overwritten.

    Raises:
        StorageError: the disk refused.
    """
    state = _state(log, Erased())
    if not state.erasures:
        return
    snapshot, before_ms = log.snapshot(), milliseconds(log.clock.now() - log.config.deleted_retention_seconds)
    noted = {(each.segment, each.offset): each for each in state.erasures}
    # A run that was interrupted before the index said so counts for nothing if the blob was revived since.
    still = [noted[put.segment, put.offset] for segment in {each.segment for each in state.erasures}
             for put in snapshot.entries_of(segment) if (put.segment, put.offset) in noted
             and (put.flags & RecordFlag.ERASED or _is_doomed(snapshot, put, before_ms))]
    _overwrite(log, still)
    _write(log, state.sequence)


def _doomed_records(snapshot: LogSnapshot, sequence: int, before_ms: int, budget: Budget,
                    ) -> tuple[dict[SegmentName, list[IndexEntry]], int]:
    """Return the PUTs to overwrite, by segment, and up to which sequence every delete is carried out with them."""
    deletes = [entry for info in snapshot.segments if info.last_sequence > sequence
               for entry in snapshot.entries_of(info.name)
               if entry.kind == RecordKind.DELETE and entry.sequence > sequence]
    active, eligible = snapshot.segments[-1].name, snapshot.contents.segment
    found: dict[SegmentName, dict[int, IndexEntry]] = {}
    reached = snapshot.last_sequence
    for delete in sorted(deletes, key=lambda each: each.sequence):
        budget.check()
        if delete.op_time_ms >= before_ms:
            reached = min(reached, delete.sequence - 1)
            continue
        for put in doomed(snapshot.history(delete.id), delete.sequence, before_ms):
            known = eligible(put.segment)
            if put.segment == active:
                # Still being written to: its turn comes when the segment is sealed.
                reached = min(reached, delete.sequence - 1)
            elif known is not None and not known.is_lost and not put.flags & RecordFlag.ERASED:
                found.setdefault(put.segment, {})[put.offset] = put
    return {segment: [each[offset] for offset in sorted(each)] for segment, each in found.items()}, reached


def doomed(history: Sequence[IndexEntry], delete: int, before_ms: int) -> list[IndexEntry]:
    """Return the PUTs whose content goes because of a delete.

    None if the blob lives again, or was deleted again and that may be undone; if it was put again, those before.
    """
    end = BlobEnd.of(history)
    if end.put is not None and end.put.sequence > delete:
        history = [entry for entry in history if entry.sequence < delete]
    elif end.deleted_ms >= before_ms:
        return []
    return [put for put in history if put.kind == RecordKind.PUT]


def _batches(puts: Sequence[IndexEntry]) -> Iterable[list[IndexEntry]]:
    batch: list[IndexEntry] = []
    size = 0
    for put in puts:
        if batch and (len(batch) >= MAX_BATCH_RECORDS or size + put.size > MAX_BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(put)
        size += put.size
    if batch:
        yield batch


def _erase(log: Log, batch: Sequence[IndexEntry], before_ms: int) -> tuple[int, int]:
    """Overwrite the records of one batch; return how many, and the bytes written."""
    # A delete that a crash takes must not be why content goes.
    log.sync()
    state = _state(log, Erased())
    state_in(log.folder, log.files).write(attrs.evolve(state, erasures=tuple(_erasures(batch, log))))
    with log.guard.lock:
        log.guard.require_open()
        snapshot = log.snapshot()
        still = [put for put in batch if _is_doomed(snapshot, put, before_ms)]
        if len(still) == len(batch):
            log.mark_erased({batch[0].segment: {put.offset for put in batch}})
    if len(still) < len(batch):
        # Something was revived between the choice and the lock: the note goes first, then the rest is tried.
        _write(log, state.sequence)
        return _erase(log, still, before_ms) if still else (0, 0)
    size = _overwrite(log, _erasures(batch, log))
    _write(log, state.sequence)
    return len(batch), size


def _is_doomed(snapshot: LogSnapshot, put: IndexEntry, before_ms: int) -> bool:
    history = snapshot.history(put.id)
    return any(each.kind == RecordKind.DELETE and each.sequence > put.sequence and each.op_time_ms < before_ms
               and put in doomed(history, each.sequence, before_ms) for each in history)


def _overwrite(log: Log, erasures: Sequence[Erasure]) -> int:
    """Have index files say that the contents are gone, and overwrite them."""
    offsets: dict[SegmentName, set[int]] = {}
    for each in erasures:
        if log.has(each.segment):
            offsets.setdefault(each.segment, set()).add(each.offset)
    with log.guard.lock:
        marked = log.mark_erased(offsets)
    for segment in marked:
        replace_parts(log.files, log.folder, segment.index, log.descriptor.incarnation)
    return erase_records(log.files, log.folder, erasures)


def _erasures(puts: Iterable[IndexEntry], log: Log) -> list[Erasure]:
    salt = salt_of(log.descriptor.incarnation)
    return [Erasure(put.segment, put.offset, content_range(put)[1],
                    encode_head(put._replace(flags=put.flags | RecordFlag.ERASED), salt)[0]) for put in puts]


def _state(log: Log, done: Erased) -> HardDeleteState:
    state = None
    try:
        state = state_in(log.folder).read()
    except CorruptData as error:
        done.was_reset = str(error)
    if state is None or state.incarnation != log.descriptor.incarnation:
        return HardDeleteState(log.descriptor.incarnation)
    return state


def _write(log: Log, sequence: int) -> None:
    state_in(log.folder, log.files).write(HardDeleteState(log.descriptor.incarnation, sequence))
