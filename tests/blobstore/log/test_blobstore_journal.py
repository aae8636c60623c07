# SPDX-License-Identifier: Apache-2.0
"""The journal: which segments the newest records lie in."""

from __future__ import annotations

from collections import deque

from hypothesis import given, strategies as st

from compactlib.blobstore.log.journal import Journal
from compactlib.blobstore.model.names import SegmentName


def test_the_eleventh_entry_of_a_journal_of_ten_evicts_the_oldest() -> None:
    journal = Journal(10, 100)
    assert not len(journal)
    journal.append(SegmentName(0, 0))
    journal.append(SegmentName(1, 0), 9)
    assert (journal.floor, len(journal)) == (SegmentName(0, 0), 10)
    journal.append(SegmentName(1, 0))
    assert (journal.floor, len(journal)) == (SegmentName(1, 0), 10)


@given(st.integers(0, 7), st.lists(st.tuples(st.booleans(), st.integers(1, 9)), max_size=30))
def test_the_floor_is_the_segment_of_the_oldest_entry_that_is_left(most: int, steps: list[tuple[bool, int]]) -> None:
    journal, plain = Journal(most, 100), deque[SegmentName](maxlen=most)
    segment = SegmentName(0, 0)
    for rolls, count in steps:
        segment = segment.next_position if rolls else segment
        journal.append(segment, count)
        plain.extend([segment] * count)
        journal.audit()
        assert len(journal) == len(plain)
        assert journal.floor == (plain[0] if plain else None)


@given(st.integers(1, 5), st.integers(0, 20), st.lists(st.tuples(st.booleans(), st.integers(1, 9)), max_size=30))
def test_it_never_reaches_back_over_more_segments_than_it_may(segments: int, most: int,
                                                              steps: list[tuple[bool, int]]) -> None:
    journal = Journal(most, segments)
    segment = SegmentName(0, 0)
    for rolls, count in steps:
        segment = segment.next_position if rolls else segment
        journal.append(segment, count)
        journal.audit()
        floor = journal.floor
        assert floor is None or floor.position > segment.position - segments
