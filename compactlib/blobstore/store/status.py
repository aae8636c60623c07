# SPDX-License-Identifier: Apache-2.0
"""The status values of a store."""

from __future__ import annotations

import attrs

from compactlib.blobstore.compaction.run.store_compactions import StoreCompactions
from compactlib.blobstore.errors import UNMANAGED
from compactlib.blobstore.log.live_log import LiveLog
from compactlib.blobstore.segment.descriptor import Descriptor
from compactlib.report import Printed


@attrs.frozen(kw_only=True, repr=False)
class BlobStoreStatus(Printed):
    """A store in numbers.

    Attributes:
        name: the store's.
        capacity_bytes: capacity of the log.
        used_bytes: used capacity: whole segments before the active one, and that one up to its end.
        segments: how many log segments are in use.
        free_segments: how many more the log may have.
        eligible_segments: how many of them a compaction may take.
        damaged_segments: how many segments compactions have left out because of damage, as of the last look.
        active_segment: the name of the one that is appended to.
        records: index entries in all.
        index_segments: sealed index segments.
        index_memory_bytes: memory of the sealed index segments' columns, and of the directory of their hashes.
        journal_entries: records in the journal.
        unsynced: whether records were written that are not known to be durable.
        next_sequence: the number of the next record.
        stopped: why nothing can be written any more, `None` while it can.
        is_busy: whether a compaction, a reclaim or a batch of a hard delete is under way.
        is_managed: whether a `CompactionManager` compacts it; if not, nothing does but a call.
        compaction: the phase of the compaction in progress, that waits to be finished or is under way; `None` if none.
        last_error: what an executor, a task or a question of the host's raised last in a compaction that is none of the
            library's errors, as `Kind: message`; empty if nothing.
        failures: how often that was.
    """

    name: str
    capacity_bytes: int
    used_bytes: int
    segments: int
    free_segments: int
    eligible_segments: int
    damaged_segments: int
    active_segment: str
    records: int
    index_segments: int
    index_memory_bytes: int
    journal_entries: int
    unsynced: bool
    next_sequence: int
    stopped: str | None
    is_busy: bool
    is_managed: bool
    compaction: str | None
    last_error: str
    failures: int

    @classmethod
    def of(cls, name: str, log: LiveLog, descriptor: Descriptor, compactions: StoreCompactions) -> BlobStoreStatus:
        """The status of an open log; under its lock."""
        in_progress, error = compactions.log, compactions.last_error
        snapshot, contents = log.snapshot(), log.contents
        sealed = contents.sealed
        return cls(name=name, capacity_bytes=descriptor.capacity_bytes, used_bytes=snapshot.used_bytes,
                   segments=len(contents.segments), free_segments=descriptor.log_segments - len(contents.segments),
                   eligible_segments=len(snapshot.eligible()),
                   damaged_segments=compactions.sensor.damaged_segments, active_segment=str(contents.active.name),
                   records=sum(map(len, sealed)) + len(contents.open), index_segments=len(sealed),
                   index_memory_bytes=sum(index.memory_bytes() for index in sealed) + contents.directory.memory_bytes(),
                   journal_entries=len(log.journal), unsynced=not log.writer.all_synced,
                   next_sequence=log.next_sequence,
                   stopped=str(log.writer.stopped) if log.writer.stopped is not None else None,
                   is_busy=compactions.ownership.is_running, is_managed=log.is_managed,
                   compaction=None if in_progress is None else in_progress.phase.value,
                   last_error="" if error is None else f"{type(error).__name__}: {error}",
                   failures=compactions.failures)

    def _summary(self) -> str:
        state = "writing has stopped" if self.stopped is not None else "busy" if self.is_busy else "open"
        damaged = f" ({self.damaged_segments} damaged)" if self.damaged_segments else ""
        unmanaged = "" if self.is_managed else f"; {UNMANAGED}"
        return (f"blob store {self.name}: {self.used_bytes:,} of {self.capacity_bytes:,} bytes used in {self.segments} "
                f"segments{damaged}, {self.records:,} records, {state}{unmanaged}")
