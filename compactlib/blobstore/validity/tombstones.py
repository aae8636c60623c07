"""Which PUTs the cycles of one compaction have dropped, so that their tombstones stay until the next compaction.

A tombstone outlives its PUT by one compaction at least (notes 1.4, T6), however many cycles that takes.
"""

from __future__ import annotations

from compactlib.blobstore.index.entry_columns import hash_id
from compactlib.blobstore.model.values import IndexEntry

MAX_REMEMBERED = 1_000_000
"""Beyond so many, no tombstone is purged in the rest of the compaction; the next one does it."""


class DroppedPuts:
    """Remembers 8 bytes of each id; a chance hit keeps a tombstone one compaction longer.

    Args:
        key: the store's incarnation.
        complete: whether it will have seen every cycle; not so in a compaction that an earlier process began.
    """

    def __init__(self, key: bytes, *, complete: bool) -> None:
        self._key = key
        self._complete = complete
        self._hashes: set[int] = set()

    def note(self, put: IndexEntry) -> None:
        """A PUT is dropped whose delete stays."""
        if len(self._hashes) >= MAX_REMEMBERED:
            self._complete = False
        if self._complete:
            self._hashes.add(hash_id(put.id, self._key))

    def had_put(self, tombstone: IndexEntry) -> bool:
        """Whether the PUT of this tombstone may have been there when the compaction began."""
        return not self._complete or hash_id(tombstone.id, self._key) in self._hashes
