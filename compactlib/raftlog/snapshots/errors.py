"""What can be wrong with a snapshot: leaves under the tree of `compactlib.errors`."""

from __future__ import annotations

from compactlib.errors import CorruptData


class LiveSetLost(CorruptData):
    """A snapshot's live set is missing or damaged, and nobody here can rebuild it; it is never taken for empty.

    Give the store a `machine`, from whose state it is rebuilt, or restore the file from a copy.
    """
