"""What a store says of itself."""

from __future__ import annotations

from typing import Any

import attrs

from compactlib.blobstore.descriptor import Descriptor
from compactlib.blobstore.live_log import LiveLog
from compactlib.report import Table


@attrs.frozen(kw_only=True)
class StoreStatus:
    """A store in numbers.

    Attributes:
        name: the store's.
        capacity_bytes: capacity of the log.
        used_bytes: used capacity: whole segments before the active one, and that one up to its end.
        segments: how many log segments are in use.
        free_segments: how many more the log may have.
        eligible_segments: how many of them a compaction may take.
        active_segment: the name of the one that is appended to.
        records: index entries in all.
        index_segments: sealed index segments.
        index_memory_bytes: memory of the sealed index segments' columns, and of the directory of their hashes.
        journal_entries: records in the journal.
        unsynced: whether records were written that are not known to be durable.
        next_sequence: the number of the next record.
        stopped: why nothing can be written any more, `None` while it can.
    """

    name: str
    capacity_bytes: int
    used_bytes: int
    segments: int
    free_segments: int
    eligible_segments: int
    active_segment: str
    records: int
    index_segments: int
    index_memory_bytes: int
    journal_entries: int
    unsynced: bool
    next_sequence: int
    stopped: str | None

    @classmethod
    def of(cls, name: str, log: LiveLog, descriptor: Descriptor) -> StoreStatus:
        """The status of an open log; under its lock."""
        snapshot, state = log.snapshot(), log.state
        sealed = state.sealed
        return cls(name=name, capacity_bytes=descriptor.capacity_bytes, used_bytes=snapshot.used_bytes,
                   segments=len(state.segments), free_segments=descriptor.log_segments - len(state.segments),
                   eligible_segments=len(snapshot.eligible()), active_segment=str(state.active.name),
                   records=sum(map(len, sealed)) + len(state.open), index_segments=len(sealed),
                   index_memory_bytes=sum(index.memory_bytes() for index in sealed) + state.directory.memory_bytes(),
                   journal_entries=len(log.journal), unsynced=not log.writer.all_synced,
                   next_sequence=log.next_sequence,
                   stopped=str(log.writer.stopped) if log.writer.stopped is not None else None)

    def to_dicts(self) -> list[dict[str, Any]]:
        """One row with the fields."""
        return [attrs.asdict(self)]

    def _repr_html_(self) -> str:
        return Table.from_dicts(self.to_dicts(), title=f"Blob store {self.name}")._repr_html_()
