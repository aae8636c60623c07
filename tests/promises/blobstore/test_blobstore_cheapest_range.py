# SPDX-License-Identifier: Apache-2.0
"""`StatsBased` takes the cheapest of all ranges of neighbours, found here by trying each."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given, strategies as st

from compactlib.blobstore import BlobView, StatsBased
from compactlib.blobstore.policy import SegmentName, SegmentView


def ranges(view: BlobView, least: int) -> list[tuple[Fraction, int, int]]:
    """The price, the start and the negative length of each range that frees `least` segments."""
    found = []
    for start in range(len(view.segments)):
        valid = 0
        for end in range(start, len(view.segments)):
            if not view.segments[end].eligible:
                break
            valid += view.segments[end].valid_bytes
            freed = view.benefit(end + 1 - start, valid)
            if freed >= least:
                found.append((Fraction(valid, freed), start, start - end - 1))
    return found


def view_of(sealed: list[int | None]) -> BlobView:
    """Return a store with these tenths of valid bytes in its sealed segments; `None`: a segment not to be compacted."""
    segments = [SegmentView(name=SegmentName(place, 0), used_bytes=10, valid_bytes=valid or 0,
                            eligible=valid is not None) for place, valid in enumerate(sealed)]
    newest = SegmentView(name=SegmentName(len(sealed), 0), used_bytes=0, valid_bytes=0, eligible=False)
    return BlobView(store="store", capacity_bytes=10 * (len(sealed) + 1), segment_bytes=10, header_bytes=0,
                    max_blob_bytes=0, used_bytes=10 * len(sealed), reference_time=0.0, retention_seconds=0.0,
                    segments=(*segments, newest), last_full_at=0.0)


@given(sealed=st.lists(st.integers(0, 10) | st.sampled_from([0, 0, 3, 5, None]), max_size=30), least=st.integers(1, 8))
def test_choice_is_the_first_and_longest_of_the_cheapest_ranges(sealed: list[int | None], least: int) -> None:
    view = view_of(sealed)
    choice = StatsBased(min_used_fraction=0.0, min_reclaimed_segments=least).choose(view, 0.0)
    found = ranges(view, least)
    if not found:
        assert choice.is_empty
        assert choice.why
        return
    _, start, length = min(found)
    assert choice.victims == tuple(each.name for each in view.segments[start:start - length])
