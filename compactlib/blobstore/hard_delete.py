# SPDX-License-Identifier: Apache-2.0
"""Hard delete: `reclaim` overwrites the content of deleted blobs with zeros, in place.

A run follows the deletes in effect in the order of their sequences, and stores durably the sequence up to which all are
carried out. Compactions keep sequences, so a run never restarts because of a compaction. A delete dated in the future
does not block later deletes: the next run visits them again, which is harmless, since erasing is idempotent.

A batch of records of one segment:

1. under the lock: the log is synced, revived blobs are left out, a durable note (`erasure`) names the records, and the
   index marks their contents as erased;
2. the index file is replaced, the records are overwritten and synced, and the note is cleared.

Opening finishes a batch after a crash; the next reclaim or compaction finishes a batch after a full disk.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import attrs

from compactlib.blobstore.contents import LogContents
from compactlib.blobstore.erasure import Erasure, HardDeleteState, erase_records, read_state, state_in
from compactlib.blobstore.index_file import replace_parts
from compactlib.blobstore.log import Log, is_without_room
from compactlib.blobstore.names import SegmentName
from compactlib.blobstore.records import IndexEntry, RecordFlag, RecordKind, encode_head, milliseconds
from compactlib.blobstore.validity import BlobEnd
from compactlib.budget import Budget
from compactlib.errors import BudgetSpent, StorageError

_MAX_BATCH_RECORDS = 64
_MAX_BATCH_BYTES = 8 << 20


@attrs.define
class Erased:
    """The result of a run.

    Attributes:
        records: records overwritten.
        bytes_written: bytes written over them.
        sequence: every delete up to this one was carried out.
        why: why the run is not complete; empty if it is.
        was_reset: the damage of the state file, because of which the run began at the first record; empty if none.
    """

    records: int = 0
    bytes_written: int = 0
    sequence: int = 0
    why: str = ""
    was_reset: str = ""


def erase_deleted(log: Log, budget: Budget) -> Erased:
    """Carry out every delete in effect; one run at a time, and not during a compaction.

    Args:
        log: the log.
        budget: limits the run; the next run continues.
    """
    done = Erased()
    try:
        finish_erasures(log)
        state, done.was_reset = read_state(log.folder, log.descriptor.incarnation)
        done.sequence = state.sequence
        before_ms = milliseconds(log.clock.now() - log.config.deleted_retention_seconds)
        found, reached = _doomed_records(log.snapshot(), state.sequence, before_ms, budget)
        for segment in sorted(found):
            for batch in _batches(found[segment]):
                budget.spend(sum(put.size for put in batch))
                count, size = _erase(log, state, batch, before_ms)
                done.records += count
                done.bytes_written += size
        if reached > state.sequence:
            state_in(log.folder, log.files).write(attrs.evolve(state, sequence=reached))
            done.sequence = reached
    except BudgetSpent as error:
        done.why = str(error)
    except StorageError as error:
        if not is_without_room(error):
            raise
        done.why = f"there is no room on the disk for the note of the hard delete: {error}"
    return done


def finish_erasures(log: Log) -> None:
    """Overwrite the records of the note: an earlier batch, or opening, was ended by a full disk."""
    state, _ = read_state(log.folder, log.descriptor.incarnation)
    if state.erasures:
        _overwrite(log, state)


def _doomed_records(contents: LogContents, sequence: int, before_ms: int, budget: Budget,
                    ) -> tuple[dict[SegmentName, list[IndexEntry]], int]:
    """Return the PUTs to overwrite, by segment, and the sequence up to which this carries out every delete."""
    deletes = [entry for segment in contents.segments if segment.last_sequence > sequence
               for entry in segment.entries() if entry.kind == RecordKind.DELETE and entry.sequence > sequence]
    found: dict[SegmentName, dict[int, IndexEntry]] = {}
    reached = contents.last_sequence
    for delete in sorted(deletes, key=lambda each: each.sequence):
        budget.check()
        if delete.op_time_ms >= before_ms:
            reached = min(reached, delete.sequence - 1)
            continue
        for put in _doomed(contents.history(delete.id), delete.sequence, before_ms):
            known = contents.segment(put.segment)
            if put.segment == contents.active.name:
                # The active segment is not changed in place: a run after its sealing does this.
                reached = min(reached, delete.sequence - 1)
            elif known is not None and not known.is_lost and not put.is_erased:
                found.setdefault(put.segment, {})[put.offset] = put
    return {segment: [each[offset] for offset in sorted(each)] for segment, each in found.items()}, reached


def _doomed(history: Sequence[IndexEntry], delete: int, before_ms: int) -> list[IndexEntry]:
    """Return the PUTs whose content a delete ends.

    Empty if the blob was undeleted, or if a later delete can still be undone. After a new PUT, the PUTs before the
    delete.
    """
    end = BlobEnd.of(history)
    if end.put is not None and end.put.sequence > delete:
        history = [entry for entry in history if entry.sequence < delete]
    elif end.deleted_ms >= before_ms:
        return []
    return [put for put in history if put.kind == RecordKind.PUT]


def _is_doomed(contents: LogContents, put: IndexEntry, before_ms: int) -> bool:
    history = contents.history(put.id)
    return any(each.kind == RecordKind.DELETE and each.sequence > put.sequence and each.op_time_ms < before_ms
               and put in _doomed(history, each.sequence, before_ms) for each in history)


def _batches(puts: Sequence[IndexEntry]) -> Iterable[list[IndexEntry]]:
    batch: list[IndexEntry] = []
    size = 0
    for put in puts:
        if batch and (len(batch) >= _MAX_BATCH_RECORDS or size + put.size > _MAX_BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(put)
        size += put.size
    if batch:
        yield batch


def _erase(log: Log, state: HardDeleteState, batch: Sequence[IndexEntry], before_ms: int) -> tuple[int, int]:
    """Overwrite the records of one batch; return their number and the bytes written."""
    with log.guard.lock:
        # A delete that a crash may lose must not justify erasing.
        log.sync()
        noted = attrs.evolve(state, erasures=tuple(
            Erasure(put.segment, put.offset, put.content_bytes,
                    encode_head(put._replace(flags=put.flags | RecordFlag.ERASED), log.descriptor.salt)[0])
            for put in batch if _is_doomed(log.contents, put, before_ms)))
        note = state_in(log.folder, log.files)
        log.guard.begin("a hard delete")
        try:
            note.write(noted)
        except StorageError as error:
            if is_without_room(error):
                if note.read() == noted:
                    # Only the sync of the folder was refused: the note counts, and the next run overwrites its records.
                    log.mark_erased(noted.erasures)
                log.guard.undone()
            raise
        log.mark_erased(noted.erasures)
        log.guard.done()
    return len(noted.erasures), _overwrite(log, noted)


def _overwrite(log: Log, state: HardDeleteState) -> int:
    """Overwrite the records of the note, which the index marks as erased, and clear it; return the bytes written."""
    for name in sorted({each.segment for each in state.erasures}):
        segment = log.contents.segment(name)
        if segment is not None and segment.parts:
            replace_parts(log.files, log.folder, segment.parts, log.descriptor.incarnation)
    written = erase_records(log.files, log.folder, state.erasures)
    state_in(log.folder, log.files).write(attrs.evolve(state, erasures=()))
    return written
