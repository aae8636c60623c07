# SPDX-License-Identifier: Apache-2.0
"""The ordered references: how newer segments cut older ones."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from compactlib.errors import AuditFailed
from compactlib.indexset import IndexSet
from compactlib.raftlog.model.refs import asked_refs, audit_refs, merge_refs, next_ref, overlapping_refs
from compactlib.raftlog.model.values import SegmentRef
from tests.tools.index_strategies import written_refs


def refs(*triples: tuple[int, int, int]) -> tuple[SegmentRef, ...]:
    return tuple(SegmentRef(*triple) for triple in triples)


def test_a_newer_range_cuts_older_ones_and_removes_the_covered() -> None:
    merged = merge_refs(refs((1, 1, 4), (2, 5, 10)), refs((3, 2, 7)))
    assert merged.refs == refs((1, 1, 1), (3, 2, 7))
    assert merged.covered == (2,)


def test_a_whole_list_at_once() -> None:
    merged = merge_refs((), refs((50, 50, 59), (60, 60, 69), (70, 70, 85), (71, 56, 79), (80, 80, 89)))
    assert merged.refs == refs((50, 50, 55), (71, 56, 79), (80, 80, 89))
    assert merged.covered == (60, 70)


def test_only_what_is_covered_wholly_is_reported() -> None:
    merged = merge_refs(refs((10, 10, 19), (20, 20, 29)), refs((30, 30, 39), (40, 30, 55), (50, 50, 59)))
    assert merged.refs == refs((10, 10, 19), (20, 20, 29), (40, 30, 49), (50, 50, 59))
    assert merged.covered == (30,)


def test_the_notes_own_examples() -> None:
    older = refs((1, 1, 10), (2, 11, 20), (3, 21, 30))
    assert merge_refs(older, refs((4, 25, 40))).refs == refs((1, 1, 10), (2, 11, 20), (3, 21, 24), (4, 25, 40))
    merged = merge_refs(older, refs((4, 5, 40)))
    assert merged.refs == refs((1, 1, 4), (4, 5, 40))
    assert merged.covered == (2, 3)


def test_a_reference_that_comes_again_replaces_its_old_range() -> None:
    assert merge_refs(refs((1, 1, 10), (2, 11, 12)), refs((2, 11, 15))).refs == refs((1, 1, 10), (2, 11, 15))
    merged = merge_refs(refs((1, 1, 10), (2, 11, 15)), refs((2, 4, 4)))
    assert merged.refs == refs((1, 1, 3), (2, 4, 4))
    assert merged.covered == ()


def owners(history: list[SegmentRef]) -> dict[int, int]:
    """Which segment answers for which index: a newer one takes back all that lies at or above its start."""
    owner: dict[int, int] = {}
    for ref in history:
        owner = {index: number for index, number in owner.items() if index < ref.first}
        owner.update(dict.fromkeys(range(ref.first, ref.last + 1), ref.number))
    return owner


@given(written_refs(), st.integers(0, 10))
def test_merging_is_what_appending_would_have_given(history: list[SegmentRef], split: int) -> None:
    expected = owners(history)
    merged = merge_refs(history)
    audit_refs(merged.refs)
    assert {index: ref.number for ref in merged.refs for index in range(ref.first, ref.last + 1)} == expected
    kept = {ref.number for ref in merged.refs}
    # Reported is exactly what no longer answers for anything: a segment that only became shorter never is.
    assert set(merged.covered) == {ref.number for ref in history} - kept == {
        ref.number for ref in history} - set(expected.values())
    first = merge_refs(history[:split])
    assert merge_refs(first.refs, history[split:]).refs == merged.refs


@given(written_refs(), st.integers(-1, 60), st.integers(-1, 60))
def test_lookups_bisect_to_the_right_segment(history: list[SegmentRef], first: int, last: int) -> None:
    merged = merge_refs(history).refs
    low, high = min(first, last), max(first, last)
    assert list(overlapping_refs(merged, low, high)) == [ref for ref in merged if ref.first <= high and ref.last >= low]
    reaching = [ref for ref in merged if ref.last >= first]
    assert next_ref(merged, first) == (reaching[0] if reaching else None)


@given(written_refs(), st.sets(st.integers(0, 60)))
def test_each_segment_is_asked_for_what_lies_in_its_range(history: list[SegmentRef], wanted: set[int]) -> None:
    merged = merge_refs(history).refs
    expected = [(ref, {index for index in wanted if ref.first <= index <= ref.last}) for ref in merged]
    asked = [(ref, set(here)) for ref, here in asked_refs(merged, IndexSet.from_iterable(wanted))]
    assert asked == [(ref, here) for ref, here in expected if here]


@pytest.mark.parametrize("listed", [
    refs((1, 1, 5), (2, 5, 9)),
    refs((2, 1, 5), (1, 6, 9)),
    refs((1, 6, 9), (2, 1, 5)),
    refs((1, 3, 2), (2, 4, 5)),
])
def test_audit_finds_what_is_out_of_order(listed: tuple[SegmentRef, ...]) -> None:
    older, newer = next(pairwise(listed))
    with pytest.raises(AuditFailed, match="out of order") as raised:
        audit_refs(listed)
    assert str(older) in str(raised.value)
    assert str(newer) in str(raised.value)
