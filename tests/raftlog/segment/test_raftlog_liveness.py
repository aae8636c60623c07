# SPDX-License-Identifier: Apache-2.0
"""Which entries of a segment are kept, against a plain check of each one."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, strategies as st

from compactlib.indexset import IndexSet
from compactlib.raftlog import SnapshotMeta
from compactlib.raftlog.errors import LiveIndexMissing
from compactlib.raftlog.model.values import SegmentRef
from compactlib.raftlog.segment.index import SegmentIndex
from compactlib.raftlog.segment.liveness import kept_positions, live_positions, segment_stats
from tests.harness.index_strategies import live_sets


def index_of(lengths: dict[int, int]) -> SegmentIndex:
    index = SegmentIndex.empty()
    for position, (each, length) in enumerate(lengths.items()):
        index.append(each, 1, 100 * position, length, 0, 0)
    return index


@st.composite
def segments(draw: st.DrawFn) -> tuple[dict[int, int], SegmentRef]:
    """Entries with their lengths (dense or not, of one size or not), and the range that counts."""
    first, dense = draw(st.integers(0, 5)), draw(st.booleans())
    count = draw(st.integers(1, 25))
    steps = [1] * count if dense else draw(st.lists(st.integers(1, 3), min_size=count, max_size=count))
    indexes = [first]
    for step in steps[1:]:
        indexes.append(indexes[-1] + step)
    same = draw(st.booleans())
    lengths = [7] * count if same else draw(st.lists(st.integers(0, 9), min_size=count, max_size=count))
    ref = SegmentRef(1, indexes[0], draw(st.integers(indexes[0], indexes[-1])))
    return dict(zip(indexes, lengths, strict=True)), ref


@given(segments(), live_sets(0, 60), st.none() | st.integers(0, 60))
def test_kept_is_what_is_live_or_above_the_snapshot(segment: tuple[dict[int, int], SegmentRef], wanted: IndexSet,
                                                    snapshot: int | None) -> None:
    lengths, ref = segment
    index = index_of(lengths)
    live = IndexSet() if snapshot is None else wanted.at_most(snapshot)
    state = None if snapshot is None else SnapshotMeta(snapshot, live=live)
    here = live.between(ref.first, ref.last)
    if not set(here) <= lengths.keys():
        lost = sorted(set(here) - lengths.keys())
        with pytest.raises(LiveIndexMissing, match="but not") as raised:
            kept_positions(index, ref, state)
        assert (raised.value.missing, raised.value.first) == (len(lost), lost[0])
        with pytest.raises(LiveIndexMissing):
            live_positions(index, live, ref)
        with pytest.raises(LiveIndexMissing):
            segment_stats(index, ref, state)
        return
    counts = [each for each in lengths if ref.first <= each <= ref.last]
    kept = [each for each in counts if snapshot is None or each > snapshot or each in live]
    assert [index.columns.indexes[position] for position in kept_positions(index, ref, state)] == kept
    stats = segment_stats(index, ref, state)
    assert (stats.live_entries, stats.live_bytes) == (len(kept), sum(lengths[each] for each in kept))
    assert (stats.entries, stats.data_bytes) == (len(lengths), sum(lengths.values()))
    assert [index.columns.indexes[position] for position in live_positions(index, live, ref)] == list(here)


@given(st.sets(st.integers(0, 20), min_size=1), st.sets(st.integers(0, 20), min_size=1))
def test_a_live_index_that_is_not_there_is_never_taken_for_one_that_is(held: set[int], wanted: set[int]) -> None:
    """As many entries as live indexes, and in one run: still not the same."""
    assume(not wanted <= held)
    index = index_of(dict.fromkeys(sorted(held), 1))
    with pytest.raises(LiveIndexMissing):
        live_positions(index, IndexSet.from_iterable(wanted), SegmentRef(1, 0, 20))


def test_statistics_of_two_entries_of_four_bytes() -> None:
    index = index_of({1: 4, 2: 4})
    ref = SegmentRef(1, 1, 2)
    stats = segment_stats(index, ref, SnapshotMeta(2, live=IndexSet.range(1, 1)))
    assert (stats.entries, stats.live_entries, stats.live_bytes, stats.dead_bytes) == (2, 1, 4, 4)
    # Without a snapshot nothing is dead.
    stats = segment_stats(index, ref, None)
    assert (stats.live_entries, stats.live_bytes) == (2, 8)


def test_where_all_is_alive_the_positions_are_a_range_whatever_gaps_there_are() -> None:
    held = [3, 4, 9, 12, 13]
    index = index_of(dict.fromkeys(held, 1))
    assert live_positions(index, IndexSet.from_sorted([1, *held[:-1], 20]), SegmentRef(1, 3, 12)) == range(4)
