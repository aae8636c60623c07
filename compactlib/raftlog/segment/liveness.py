# SPDX-License-Identifier: Apache-2.0
"""Which entries of a segment are kept by a compaction, and whether a live set is consistent. Pure.

One merge of two sorted sequences per segment. A snapshot must not keep what the log does not hold.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from compactlib.indexset import IndexSet, merge_positions
from compactlib.raftlog.errors import LiveIndexMissing
from compactlib.raftlog.model.refs import asked_refs
from compactlib.raftlog.model.snapshot_meta import SnapshotMeta
from compactlib.raftlog.model.values import SegmentRef, SegmentStats
from compactlib.raftlog.segment.index import SegmentIndex, is_dense, is_uniform, picked


def live_positions(index: SegmentIndex, live: IndexSet, ref: SegmentRef) -> Sequence[int]:
    """Positions in `index` of the live entries within the segment's range, ascending.

    Raises:
        LiveIndexMissing: a live index within the range is not in the segment.
    """
    here = live.between(ref.first, ref.last)
    if not here:
        return range(0)
    indexes = index.columns.indexes
    inside = index.positions_between(ref.first, ref.last)
    if is_dense(indexes, inside) and indexes[inside[0]] <= here.first and here.last <= indexes[inside[-1]]:
        shift = inside.start - indexes[inside[0]]
        if here.run_count == 1:
            return range(here.first + shift, here.last + shift + 1)
        return list(map(shift.__add__, here.members()))
    if len(here) == len(inside) and here.members() == indexes[inside.start:inside.stop].tolist():
        # Nothing has died since it was rewritten.
        return inside
    held = IndexSet.from_sorted(picked(indexes, inside))
    missing = here - held
    if missing:
        raise LiveIndexMissing(
            f"segment {ref.number} holds {len(held)} entries from {ref.first} to {ref.last}, but not {len(missing)} "
            f"that are live, the first of them {missing.first}; restore the segment from a copy",
            missing=len(missing), first=missing.first)
    members = here.members()
    column = list(picked(indexes, inside))
    return [position + inside.start for position in merge_positions(column, members)]


def kept_positions(index: SegmentIndex, ref: SegmentRef, state: SnapshotMeta | None) -> Sequence[int]:
    """Positions of the entries that a read may return: live ones, and everything above the snapshot.

    Raises:
        LiveIndexMissing: a live index within the range is not in the segment.
    """
    if state is None or ref.first > state.index:
        return index.positions_between(ref.first, ref.last)
    below = SegmentRef(ref.number, ref.first, min(ref.last, state.index))
    above = index.positions_between(state.index + 1, ref.last)
    live = live_positions(index, state.live, below)
    return [*live, *above] if len(above) else live


def require_live(live: IndexSet, before: SnapshotMeta | None, refs: Sequence[SegmentRef],
                 held: Callable[[SegmentRef], IndexSet], elsewhere: IndexSet | None = None) -> None:
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
    parts = list(asked_refs(refs, live))
    uncovered = live - IndexSet().union(*(here for _, here in parts))
    unheld = uncovered.union(*(here - held(ref) for ref, here in parts))
    missing = risen | (unheld - elsewhere if elsewhere else unheld)
    if missing:
        raise LiveIndexMissing(f"{len(missing)} of {len(live)} live indexes are in no segment or died before, the "
                               f"first of them {missing.first}; the live set must come from this log's own state",
                               missing=len(missing), first=missing.first)


def segment_stats(index: SegmentIndex, ref: SegmentRef, state: SnapshotMeta | None) -> SegmentStats:
    """What a policy may know about a segment. O(entries + live runs), in C.

    Args:
        index: of the segment.
        ref: the range that counts.
        state: which entries are alive.

    Raises:
        LiveIndexMissing: a live index within the range is not in the segment.
    """
    lengths = index.columns.lengths
    if index.is_dense and index.first <= ref.first and ref.last <= index.last and is_uniform(lengths):
        # Counted without their positions: nothing can be missing.
        covered = ref.first - 1 if state is None else min(max(state.index, ref.first - 1), ref.last)
        kept = ref.last - covered + (0 if state is None else len(state.live.between(ref.first, covered)))
        kept_bytes = kept * lengths[0]
    else:
        positions = kept_positions(index, ref, state)
        kept, kept_bytes = len(positions), sum(picked(lengths, positions))
    return SegmentStats(ref=ref, entries=index.entries, data_bytes=index.data_bytes, live_entries=kept,
                        live_bytes=kept_bytes)
