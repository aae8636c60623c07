# SPDX-License-Identifier: Apache-2.0
"""The status values of a store."""

from __future__ import annotations

import attrs

from compactlib.blobstore.compact import Compactor
from compactlib.blobstore.errors import UNMANAGED
from compactlib.blobstore.log import Log
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
        damaged_segments: how many segments are lost, or were left out by compactions because of damage.
        active_segment: the name of the one that is appended to.
        records: index entries in all.
        index_memory_bytes: memory of their columns, and of the directory of their hashes.
        unsynced: whether records were written that are not known to be durable.
        next_sequence: the number of the next record.
        is_busy: whether a compaction or a reclaim is under way.
        is_managed: whether a `CompactionManager` compacts it; if not, nothing does but a call.
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
    index_memory_bytes: int
    unsynced: bool
    next_sequence: int
    is_busy: bool
    is_managed: bool
    last_error: str
    failures: int

    @classmethod
    def of(cls, name: str, log: Log, compactor: Compactor) -> BlobStoreStatus:
        """Return the status of an open store."""
        contents, error = log.snapshot(), compactor.last_error
        parts = [part for segment in contents.segments for part in segment.parts]
        lost = sum(segment.is_lost for segment in contents.segments)
        return cls(name=name, capacity_bytes=log.descriptor.capacity_bytes, used_bytes=log.used_bytes,
                   segments=len(contents.segments), free_segments=log.free_segments,
                   eligible_segments=len(log.eligible()), damaged_segments=len(compactor.damaged) + lost,
                   active_segment=str(contents.active.name),
                   records=sum(segment.records for segment in contents.segments),
                   index_memory_bytes=contents.directory.memory_bytes() + sum(part.memory_bytes() for part in parts),
                   unsynced=not log.writer.is_synced, next_sequence=log.next_sequence,
                   is_busy=bool(log.guard.running), is_managed=log.is_managed,
                   last_error="" if error is None else f"{type(error).__name__}: {error}", failures=compactor.failures)

    def _summary(self) -> str:
        state = "busy" if self.is_busy else "open"
        damaged = f" ({self.damaged_segments} damaged)" if self.damaged_segments else ""
        unmanaged = "" if self.is_managed else f"; {UNMANAGED}"
        return (f"blob store {self.name}: {self.used_bytes:,} of {self.capacity_bytes:,} bytes used in {self.segments} "
                f"segments{damaged}, {self.records:,} records, {state}{unmanaged}")
