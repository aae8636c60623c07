"""One row per log: what its last snapshot left, read as one value by the WAL, the segment writer and the compactor.

A row is an immutable value that is replaced as a whole, so no reader ever sees the index of one snapshot with the live
set of another. On the disk it is the log's `SNAPSHOT` file; the table is filled from those before the WAL
is replayed, so that recovery leaves out what is dead.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from compactlib.errors import AuditFailed
from compactlib.indexset.index_set import IndexSet
from compactlib.raftlog.model.snapshot_state import SnapshotState


@attrs.frozen
class LogRow:
    """What a log's last snapshot left in it. `LogRow()` is that of a log without a snapshot.

    Attributes:
        snapshot_index: everything up to here is in the snapshot; -1 if there is none.
        snapshot_term: the term of the entry at that index; 0 if there is none, or the host did not say.
        live: indexes <= `snapshot_index` whose entries must stay in the log.
        smallest_live_index: everything below it is dead: the lowest live index, or `snapshot_index + 1` with none.
    """

    snapshot_index: int = -1
    snapshot_term: int = 0
    live: IndexSet = attrs.field(factory=IndexSet)
    smallest_live_index: int = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        if self.snapshot_index >= 0 or self.live:
            SnapshotState(self.snapshot_index, self.live, self.snapshot_term)
        smallest = self.live.first if self.live else self.snapshot_index + 1
        object.__setattr__(self, "smallest_live_index", smallest)

    @classmethod
    def of(cls, snapshot: SnapshotState | None) -> LogRow:
        """The row of a log whose `SNAPSHOT` file holds this."""
        return cls() if snapshot is None else cls(snapshot.index, snapshot.term, snapshot.live)

    def is_dead(self, index: int) -> bool:
        """Whether the entry of `index` may be gone. O(log live runs)."""
        return index <= self.snapshot_index and index not in self.live

    def needed(self, indexes: IndexSet) -> IndexSet:
        """Those of `indexes` that are not dead: everything above the snapshot, only the live ones below. O(runs)."""
        return indexes.at_least(self.snapshot_index + 1) | (indexes.at_most(self.snapshot_index) & self.live)


class LogRows:
    """The rows of all logs of a store, by log id. Threads may read while one replaces a row: each is one assignment."""

    def __init__(self) -> None:
        self._rows: dict[str, LogRow] = {}

    def get(self, log_id: str) -> LogRow:
        """The row of a log; that of a log without a snapshot if it is not listed. O(1)."""
        return self._rows.get(log_id) or _NOTHING

    def put(self, log_id: str, row: LogRow) -> None:
        """Replace a row. Rows only move forward: the caller has made it durable, and refuses older ones."""
        self._rows[log_id] = row

    def remove(self, log_id: str) -> None:
        """Forget a log; one that is not listed is no error."""
        self._rows.pop(log_id, None)

    def __iter__(self) -> Iterator[tuple[str, LogRow]]:
        return iter(tuple(self._rows.items()))

    def audit(self) -> None:
        """Check each row.

        Raises:
            AuditFailed: a smallest live index does not fit its row.
        """
        for log_id, row in self:
            expected = row.live.first if row.live else row.snapshot_index + 1
            if row.smallest_live_index != expected:
                raise AuditFailed(f"log {log_id!r}: smallest live index {row.smallest_live_index} in {row}, "
                                      f"expected {expected}")


_NOTHING = LogRow()
