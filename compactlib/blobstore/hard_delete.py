# SPDX-License-Identifier: Apache-2.0
"""Hard delete: `reclaim` overwrites the content of deleted blobs with zeros, in place.

A run follows the deletes in effect in the order of their sequences, and stores durably the sequence up to which all are
carried out. Compactions keep sequences, so a run never restarts because of a compaction. A delete dated in the future
does not block later deletes: the next run visits them again, which is harmless, since erasing is idempotent.

A batch of records of one segment:

1. under the lock: the log is synced, revived blobs are left out, a durable note (`erasure`) names the records, and the
   index marks their contents as erased;
2. the index file is replaced, the records are overwritten and synced, and the note is cleared.

After a crash or a full disk, the next opening, reclaim or compaction does 2 again: the loaded index marks the records
that the note names.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate

import attrs

from compactlib.blobstore.blobs import blob_state
from compactlib.blobstore.contents import LogContents, records_after
from compactlib.blobstore.erasure import Erasure, HardDeleteState, erase_records, read_state, state_in
from compactlib.blobstore.index import replace_parts
from compactlib.blobstore.log import Log
from compactlib.blobstore.names import SegmentName
from compactlib.blobstore.records import IndexEntry, RecordFlag, RecordKind, encode_head, milliseconds
from compactlib.blobstore.report import BlobReclaimReport
from compactlib.budget import Budget
from compactlib.errors import BudgetSpent, DiskFull

_MAX_BATCH_RECORDS = 64
_MAX_BATCH_BYTES = 8 << 20


def reclaim(log: Log, name: str, budget: Budget) -> BlobReclaimReport:
    """Remove leftovers, and carry out every delete in effect, as configured; not during a compaction.

    The budget limits the run; the next run continues.
    """
    removed, size = log.remove_leftovers()
    if removed:
        log.files.sync_folder(log.folder)
    records = written = sequence = 0
    reset = why = ""
    if log.config.hard_delete:
        try:
            finish_erasures(log)
            state, reset = read_state(log.folder, log.descriptor.incarnation)
            sequence = state.sequence
            before_ms = milliseconds(log.clock.now() - log.config.deleted_retention_seconds)
            found, reached = _doomed_records(log.snapshot(), sequence, before_ms, budget)
            for segment in sorted(found):
                for batch in _batches(found[segment]):
                    budget.spend(sum(put.size for put in batch))
                    erased = _erase(log, state, batch, before_ms)
                    written += _overwrite(log, erased)
                    records += len(erased.erasures)
            if reached > sequence:
                state_in(log.folder, log.files).write(attrs.evolve(state, sequence=reached))
                sequence = reached
        except BudgetSpent as error:
            why = str(error)
        except DiskFull as error:
            why = f"there is no room on the disk for the note of the hard delete: {error}"
    is_partial = bool(why)
    if not removed and not records and not why:
        why = f"store {name} has nothing to reclaim: no attempt has left a file" + (
            ", and no delete came into effect since the last time" if log.config.hard_delete else "")
    return BlobReclaimReport(store=name, removed=tuple(removed), bytes_freed=size, erased_records=records,
                             erased_bytes=written, sequence=sequence, was_reset=reset, why=why, is_partial=is_partial)


def finish_erasures(log: Log) -> None:
    """Overwrite the records of the note, which a crash or a full disk has left."""
    state, _ = read_state(log.folder, log.descriptor.incarnation)
    if state.erasures:
        _overwrite(log, state)


def _doomed_records(contents: LogContents, sequence: int, before_ms: int, budget: Budget,
                    ) -> tuple[dict[SegmentName, list[IndexEntry]], int]:
    """Return the PUTs to overwrite, by segment, and the sequence up to which this carries out every delete."""
    found: dict[SegmentName, dict[int, IndexEntry]] = {}
    reached = contents.last_sequence
    for delete in records_after(contents, sequence):
        budget.check()
        if delete.kind != RecordKind.DELETE:
            continue
        if delete.op_time_ms >= before_ms:
            reached = min(reached, delete.sequence - 1)
            continue
        for put in _doomed(contents.history(delete.id), before_ms):
            known = contents.segment(put.segment)
            if put.segment == contents.active.name:
                # The active segment is not changed in place: a run after its sealing does this.
                reached = min(reached, delete.sequence - 1)
            elif known is not None and not known.is_lost and not put.is_erased:
                found.setdefault(put.segment, {})[put.offset] = put
    return {segment: [each[offset] for offset in sorted(each)] for segment, each in found.items()}, reached


def _doomed(history: Sequence[IndexEntry], before_ms: int) -> list[IndexEntry]:
    """Return the PUTs of a blob whose content a delete in effect ends: the blob is still deleted, or was put again."""
    state = blob_state(history)
    if state is None:
        return []
    is_over, last_put = state.deleted_ms < before_ms, -1 if state.put is None else state.put.sequence
    end = max((entry.sequence for entry in history if entry.kind == RecordKind.DELETE and entry.op_time_ms < before_ms
               and (is_over or entry.sequence < last_put)), default=-1)
    return [entry for entry in history if entry.kind == RecordKind.PUT and entry.sequence < end]


def _batches(puts: Sequence[IndexEntry]) -> Iterable[Sequence[IndexEntry]]:
    start = 0
    while start < len(puts):
        sizes = accumulate(put.size for put in puts[start:start + _MAX_BATCH_RECORDS])
        count = max(sum(size <= _MAX_BATCH_BYTES for size in sizes), 1)
        yield puts[start:start + count]
        start += count


def _erase(log: Log, state: HardDeleteState, batch: Sequence[IndexEntry], before_ms: int) -> HardDeleteState:
    """Write the note of one batch, mark its records as erased, and return the note."""
    with log.guard.lock:
        # A delete that a crash may lose must not justify erasing.
        log.sync()
        noted = attrs.evolve(state, erasures=tuple(
            Erasure(put.segment, put.offset, put.content_bytes,
                    encode_head(put._replace(flags=put.flags | RecordFlag.ERASED), log.descriptor.salt)[0])
            for put in batch if put in _doomed(log.contents.history(put.id), before_ms)))
        note = state_in(log.folder, log.files)
        log.guard.begin("a hard delete")
        try:
            note.write(noted)
        except DiskFull:
            if note.read() == noted:
                # Only the sync of the folder was refused: the note counts, and the next run overwrites its records.
                log.mark_erased(noted.offsets)
            log.guard.undone()
            raise
        log.mark_erased(noted.offsets)
        log.guard.done()
    return noted


def _overwrite(log: Log, state: HardDeleteState) -> int:
    """Overwrite the records of the note, which the index marks as erased, and clear it; return the bytes written."""
    for name in sorted(state.offsets):
        segment = log.contents.segment(name)
        if segment is not None and segment.parts:
            replace_parts(log.files, log.folder, segment.parts, log.descriptor.incarnation)
    written = erase_records(log.files, log.folder, state.erasures)
    state_in(log.folder, log.files).write(attrs.evolve(state, erasures=()))
    return written
