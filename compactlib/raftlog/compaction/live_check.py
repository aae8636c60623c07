"""Whether a live set can be believed: a snapshot must not keep what the log does not hold. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from compactlib.errors import LiveIndexMissing
from compactlib.indexset.index_set import IndexSet
from compactlib.raftlog.model.snapshot_state import SnapshotState
from compactlib.raftlog.model.values import SegmentRef


def require_live(live: IndexSet, before: SnapshotState | None, refs: Sequence[SegmentRef],
                 held: Callable[[SegmentRef], IndexSet], elsewhere: IndexSet | None = None) -> None:
    """Check that every live index is in a segment (or elsewhere), and was not dead already.

    O(live runs + records), by merges.

    Args:
        live: what the new snapshot keeps.
        before: the snapshot in force.
        refs: the segments.
        held: the indexes that a segment holds; asked only where something is live.
        elsewhere: indexes that need not be in a segment.

    Raises:
        LiveIndexMissing: some are missing; says how many, and the first.
    """
    risen = live.at_most(before.index) - before.live if before is not None else IndexSet()
    parts = [(live.between(ref.first, ref.last), ref) for ref in refs]
    uncovered = live - IndexSet().union(*(here for here, _ in parts))
    unheld = uncovered.union(*(here - held(ref) for here, ref in parts if here))
    missing = risen | (unheld - elsewhere if elsewhere else unheld)
    if missing:
        raise LiveIndexMissing(f"{len(missing)} of {len(live)} live indexes are in no segment or died before, the "
                               f"first of them {missing.first}; the live set must come from this log's own state",
                               missing=len(missing), first=missing.first)
