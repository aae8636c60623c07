# SPDX-License-Identifier: Apache-2.0
"""Which entries of a segment are alive under a snapshot, and whether a live set is consistent. Pure.

One merge of two sorted sequences for each segment. A snapshot must not keep what the log does not hold.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from compactlib.errors import InvalidInput
from compactlib.indexset import IndexSet, merge_positions
from compactlib.raftlog.errors import LiveIndexMissing
from compactlib.raftlog.model.snapshot_meta import SnapshotMeta
from compactlib.raftlog.model.values import SegmentRef
from compactlib.raftlog.segment.index import SegmentIndex, is_uniform, picked
from compactlib.raftlog.segment.listing import refs_holding


def live_positions(index: SegmentIndex, live: IndexSet, ref: SegmentRef) -> Sequence[int]:
    """Positions in `index` of the live entries within the segment's range, ascending.

    Raises:
        LiveIndexMissing: a live index within the range is not in the segment.
    """
    here = live.between(ref.first, ref.last)
    if not here:
        return range(0)
    if here.run_count == 1:
        between = index.positions_between(here.first, here.last)
        if len(between) == len(here):
            return between
    try:
        return merge_positions(index.columns.indexes, here.members())
    except InvalidInput:
        held = index.index_set()
        missing = here - held
        raise LiveIndexMissing(
            f"segment {ref.number} holds {len(held.between(ref.first, ref.last))} entries from {ref.first} to "
            f"{ref.last}, but not {len(missing)} that are live, the first of them {missing.first}; restore the segment "
            f"from a copy", missing=len(missing), first=missing.first) from None


def kept_positions(index: SegmentIndex, ref: SegmentRef, state: SnapshotMeta | None) -> Sequence[int]:
    """Positions of the entries that a read may return: live ones, and everything above the snapshot.

    Raises:
        LiveIndexMissing: a live index within the range is not in the segment.
    """
    if state is None or ref.first > state.index:
        return index.positions_between(ref.first, ref.last)
    live = live_positions(index, state.live, SegmentRef(ref.number, ref.first, min(ref.last, state.index)))
    above = index.positions_between(state.index + 1, ref.last)
    return [*live, *above] if len(above) else live


def kept_of(index: SegmentIndex, ref: SegmentRef, state: SnapshotMeta | None) -> tuple[int, int]:
    """How many entries of a segment a compaction keeps, and their payload bytes. Raises as `kept_positions`."""
    lengths = index.columns.lengths
    if index.is_dense and is_uniform(lengths) and index.first <= ref.first and ref.last <= index.last:
        # Nothing can be missing, and no position has to be found.
        covered = ref.first - 1 if state is None else min(max(state.index, ref.first - 1), ref.last)
        kept = ref.last - covered + (0 if state is None else len(state.live.between(ref.first, covered)))
        return kept, kept * lengths[0]
    positions = kept_positions(index, ref, state)
    return len(positions), sum(picked(lengths, positions))


def require_live(live: IndexSet, before: SnapshotMeta | None, refs: Sequence[SegmentRef],
                 held: Callable[[SegmentRef], IndexSet], elsewhere: IndexSet) -> None:
    """Check that every live index is in a segment (or elsewhere), and was not dead already.

    O(live runs log segments), by merges, and what `held` takes.

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
    found = [here & held(ref) for ref, here in refs_holding(refs, live)]
    missing = risen | (live - IndexSet().union(*found) - elsewhere)
    if missing:
        raise LiveIndexMissing(f"{len(missing)} of {len(live)} live indexes are in no segment or died before, the "
                               f"first of them {missing.first}; the live set must come from this log's own state",
                               missing=len(missing), first=missing.first)
