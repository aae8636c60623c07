# SPDX-License-Identifier: Apache-2.0
"""`Pin`: keeps entries readable although a snapshot leaves them dead, for a transfer for example."""

from __future__ import annotations

from compactlib.errors import NotFound
from compactlib.indexset import IndexSet
from compactlib.raftlog.log.reading import LogReading
from compactlib.raftlog.values import Entry


class Pin:
    """Pinned entries: compactions and flushes keep them as if they were live. A context manager.

    A truncation removes pinned entries: they were never committed.
    """

    def __init__(self, log: LogReading, indexes: IndexSet) -> None:
        self._log = log
        self.indexes: IndexSet = indexes
        log._segments.pins[self] = indexes

    def read(self, index: int) -> Entry:
        """A pinned entry.

        Raises:
            NotFound: the entry was not pinned, or was truncated, or the pin was released.
            CorruptData: the entry is damaged.
        """
        found = self._log._retried(lambda: self._log._find(index)) if index in self.indexes else None
        if found is None:
            raise NotFound(f"index {index} is not pinned, or was truncated; pin it while it is live")
        return found

    def release(self) -> None:
        """Release the entries; idempotent."""
        self._log._segments.pins.pop(self, None)
        self.indexes = IndexSet()

    def __enter__(self) -> Pin:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
