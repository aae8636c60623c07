# SPDX-License-Identifier: Apache-2.0
"""One row per log: what its last snapshot left, read as one value by the WAL, the segment writer and the compactor.

A row is an immutable value that is replaced as a whole, so no reader ever sees the index of one snapshot with the live
set of another. On the disk it is the log's `SNAPSHOT` file; the table is filled from those before the WAL
is replayed, so that recovery leaves out what is dead.
"""

from __future__ import annotations

from collections.abc import Iterator

from compactlib.errors import AuditFailed
from compactlib.raftlog.model.snapshot_meta import NO_SNAPSHOT, SnapshotMeta


class LogRows:
    """The rows of all logs of a store, by log id. Threads may read while one replaces a row: each is one assignment."""

    def __init__(self) -> None:
        self._rows: dict[str, SnapshotMeta] = {}

    def get(self, log_id: str) -> SnapshotMeta:
        """The row of a log; that of a log without a snapshot if it is not listed. O(1)."""
        return self._rows.get(log_id) or NO_SNAPSHOT

    def put(self, log_id: str, row: SnapshotMeta) -> None:
        """Replace a row. Rows only move forward: the caller has made it durable, and refuses older ones."""
        self._rows[log_id] = row

    def remove(self, log_id: str) -> None:
        """Forget a log; one that is not listed is no error."""
        self._rows.pop(log_id, None)

    def __iter__(self) -> Iterator[tuple[str, SnapshotMeta]]:
        return iter(tuple(self._rows.items()))

    def audit(self) -> None:
        """Check each row.

        Raises:
            AuditFailed: a smallest live index does not fit its row.
        """
        for log_id, row in self:
            expected = row.live.first if row.live else row.index + 1
            if row.smallest_live_index != expected:
                raise AuditFailed(f"log {log_id!r}: smallest live index {row.smallest_live_index} in {row}, "
                                      f"expected {expected}")
