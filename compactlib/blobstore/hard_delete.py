# SPDX-License-Identifier: Apache-2.0
"""Hard delete: the content of deleted blobs is overwritten with zeros where it lies, as a part of `reclaim`.

It follows the deletes in effect in the order of their sequences, and remembers durably up to which none is left. Since
compactions keep sequences, it never begins anew because of one. A delete dated in the future does not block later ones:
the next run finds them again, which is harmless, since erasing is idempotent.

A batch, of one segment:

1. under the lock: the deletes are made durable, whatever was revived is left out, the records are named in a durable
   note (`erasure`), and the index says that their contents are gone;
2. the index file is replaced, the records are overwritten and synced, and the note is cleared.

Opening finishes a batch that a crash has interrupted; the next reclaim or compaction one that a full disk has.
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
        done.why = f"there is no room on the disk to note what is overwritten: {error}"
    return done


def finish_erasures(log: Log) -> None:
    """Overwrite what the note names: an earlier batch, or opening, had no room on the disk for all of it."""
    state, _ = read_state(log.folder, log.descriptor.incarnation)
    if state.erasures:
        _overwrite(log, state)


def _doomed_records(contents: LogContents, sequence: int, before_ms: int, budget: Budget,
                    ) -> tuple[dict[SegmentName, list[IndexEntry]], int]:
    """Return the PUTs to overwrite, by segment, and up to which sequence every delete is carried out with them."""
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
                # Still being written to: its turn comes when the segment is sealed.
                reached = min(reached, delete.sequence - 1)
            elif known is not None and not known.is_lost and not put.is_erased:
                found.setdefault(put.segment, {})[put.offset] = put
    return {segment: [each[offset] for offset in sorted(each)] for segment, each in found.items()}, reached


def _doomed(history: Sequence[IndexEntry], delete: int, before_ms: int) -> list[IndexEntry]:
    """Return the PUTs whose content goes because of a delete.

    None if the blob lives again, or was deleted again and that may be undone; if it was put again, those before.
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
    """Overwrite the records of one batch; return how many, and the bytes written."""
    with log.guard.lock:
        # A delete that a crash takes must not be why content goes.
        log.sync()
        noted = attrs.evolve(state, erasures=tuple(
            Erasure(put.segment, put.offset, put.content_bytes,
                    encode_head(put._replace(flags=put.flags | RecordFlag.ERASED), log.descriptor.salt)[0])
            for put in batch if _is_doomed(log.contents, put, before_ms)))
        log.guard.begin("a hard delete")
        try:
            state_in(log.folder, log.files).write(noted)
        except StorageError as error:
            if is_without_room(error):
                log.guard.undone()
            raise
        log.mark_erased(noted.erasures)
        log.guard.done()
    return len(noted.erasures), _overwrite(log, noted)


def _overwrite(log: Log, state: HardDeleteState) -> int:
    """Overwrite what the note names, and clear it; return the bytes written. The index says already that it is gone."""
    for name in sorted({each.segment for each in state.erasures}):
        segment = log.contents.segment(name)
        if segment is not None and segment.parts:
            replace_parts(log.files, log.folder, segment.parts, log.descriptor.incarnation)
    written = erase_records(log.files, log.folder, state.erasures)
    state_in(log.folder, log.files).write(attrs.evolve(state, erasures=()))
    return written
