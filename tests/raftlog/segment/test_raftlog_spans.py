# SPDX-License-Identifier: Apache-2.0
"""How reads are joined: what each span holds, and that nothing is read in vain."""

from __future__ import annotations

from itertools import accumulate

from hypothesis import given, strategies as st

from compactlib.raftlog.segment.spans import MAX_GAP_BYTES, MAX_SPAN_BYTES, adjacent_runs, read_spans


@st.composite
def ranges(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """Ascending, disjoint byte ranges: empty ones, touching ones, small and wide gaps."""
    steps = draw(st.lists(st.tuples(st.sampled_from([0, 0, 1, 9, 40]), st.sampled_from([0, 1, 7, 30])), max_size=20))
    edges = list(accumulate((step for pair in steps for step in pair), initial=draw(st.integers(0, 5))))[1:]
    return edges[0::2], edges[1::2]


@given(ranges(), st.sampled_from([0, 1, 9]))
def test_runs_cover_everything_and_are_cut_at_wide_gaps_only(given_ranges: tuple[list[int], list[int]],
                                                             max_gap: int) -> None:
    starts, ends = given_ranges
    runs = adjacent_runs(starts, ends, max_gap)
    assert [position for first, stop in runs for position in range(first, stop)] == list(range(len(starts)))
    cuts = {stop for _, stop in runs[:-1]}
    for position in range(1, len(starts)):
        assert (starts[position] - ends[position - 1] > max_gap) == (position in cuts)


@given(ranges(), st.sampled_from([0, 9]), st.sampled_from([1, 20, 60]))
def test_spans_are_short_enough_and_as_long_as_they_can_be(given_ranges: tuple[list[int], list[int]], max_gap: int,
                                                           max_bytes: int) -> None:
    starts, ends = given_ranges
    spans = list(read_spans(starts, ends, max_gap=max_gap, max_bytes=max_bytes))
    assert [position for first, stop in spans for position in range(first, stop)] == list(range(len(starts)))
    for first, stop in spans:
        assert ends[stop - 1] - starts[first] <= max_bytes or stop == first + 1
        if stop < len(starts):
            # Why it ends here: the next entry lies too far away, or would make it too long.
            assert starts[stop] - ends[stop - 1] > max_gap or ends[stop] - starts[first] > max_bytes


def test_neighbours_in_the_file_are_one_span_whatever_their_size() -> None:
    lengths = [1024] * 100
    starts = list(accumulate(lengths[:-1], initial=64))
    assert list(read_spans(starts, [start + 1024 for start in starts])) == [(0, 100)]


def test_a_small_gap_is_read_over_and_a_wide_one_is_not() -> None:
    assert list(read_spans([0, 10 + MAX_GAP_BYTES], [10, 20 + MAX_GAP_BYTES])) == [(0, 2)]
    assert list(read_spans([0, 11 + MAX_GAP_BYTES], [10, 20 + MAX_GAP_BYTES])) == [(0, 1), (1, 2)]


def test_one_entry_larger_than_a_span_is_read_alone() -> None:
    large = 3 * MAX_SPAN_BYTES
    assert list(read_spans([0, 5, 5 + large], [5, 5 + large, 9 + large])) == [(0, 1), (1, 2), (2, 3)]
    assert list(read_spans([], [])) == []
