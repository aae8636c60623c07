# SPDX-License-Identifier: Apache-2.0
"""The list of segments and the open files behind it: lookups, what is kept open, leases, what hides what."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from compactlib.errors import AuditFailed, CorruptData, NotFound
from compactlib.raftlog import Entry
from compactlib.raftlog.model.names import segment_name
from compactlib.raftlog.model.refs import merge_refs
from compactlib.raftlog.model.values import SegmentRef
from compactlib.raftlog.segment.known import KnownSegment, know_segment
from compactlib.raftlog.segment.reader import SegmentReader
from compactlib.raftlog.segment.segment_set import SegmentSet, list_segments, open_segment
from tests.raftlog.reading import write_segment
from tests.tools.index_strategies import written_refs


def known(number: int, first: int, last: int) -> KnownSegment:
    return KnownSegment(SegmentRef(number, first, last), last - first + 1, 100, "native")


def known_in(folder: Path, number: int) -> KnownSegment:
    with SegmentReader(folder / segment_name(number)) as reader:
        found = know_segment(number, reader)
    assert found is not None
    return found


def rows(first: int, last: int, term: int = 1) -> list[tuple[int, int, bytes]]:
    return [(index, term, b"%d in %d" % (index, term)) for index in range(first, last + 1)]


@pytest.fixture
def segments(tmp_path: Path) -> Iterator[SegmentSet]:
    """Segments 1 to 4 with ten entries each; the last one is not sealed."""
    for number in range(1, 5):
        write_segment(tmp_path, number, rows(10 * number - 9, 10 * number), sealed=number < 4)
    made = SegmentSet(tmp_path, [known_in(tmp_path, number) for number in range(1, 5)], max_open=2)
    yield made
    made.audit()
    made.close()


def opened(segments: SegmentSet) -> list[int]:
    """The segments of which a reader is open."""
    return [ref.number for ref in segments.refs if segments.open_entries(ref.number) >= 0]


def test_each_index_is_answered_by_its_segment(segments: SegmentSet) -> None:
    for index in range(1, 41):
        assert segments.read(index) == Entry(*rows(index, index)[0])
    assert segments.read(0) is None
    assert segments.read(41) is None
    assert segments.find(20) == SegmentRef(2, 11, 20)
    assert segments.refs == tuple(SegmentRef(number, 10 * number - 9, 10 * number) for number in range(1, 5))


@pytest.mark.parametrize(("merged", "expected"), [
    (SegmentRef(2, 11, 20), (SegmentRef(2, 11, 19), SegmentRef(3, 20, 30))),
    (SegmentRef(2, 15, 17), (SegmentRef(2, 15, 17), SegmentRef(3, 20, 30))),
])
def test_what_was_cut_while_it_was_copied_stays_cut(merged: SegmentRef, expected: tuple[SegmentRef, ...],
                                                    tmp_path: Path) -> None:
    """After a reset the highest entry that is left is written again, and a snapshot may cover it already."""
    listed = SegmentSet(tmp_path, [known(1, 1, 10), known(2, 11, 20), known(3, 20, 30)])
    assert listed.refs[1] == SegmentRef(2, 11, 19)
    assert listed.merge((2,), KnownSegment(merged, 5, 100, "native")) == ()
    listed.audit()
    assert listed.put(known(4, 31, 32)) == ()
    assert listed.refs == (SegmentRef(1, 1, 10), *expected, SegmentRef(4, 31, 32))
    listed.audit()


def test_what_was_taken_back_whole_while_it_was_copied_is_not_listed(tmp_path: Path) -> None:
    listed = SegmentSet(tmp_path, [known(1, 1, 10), known(2, 11, 20), known(3, 21, 30), known(4, 31, 40)])
    assert listed.put(known(5, 15, 35)) == (3, 4)
    assert listed.merge((3, 4), KnownSegment(SegmentRef(3, 22, 33), 5, 100, "native")) == (3,)
    assert listed.refs == (SegmentRef(1, 1, 10), SegmentRef(2, 11, 14), SegmentRef(5, 15, 35))
    listed.audit()
    for index in range(15, 36):
        assert listed.find(index) == SegmentRef(5, 15, 35)


def test_readers_stay_open_and_the_oldest_one_goes(segments: SegmentSet) -> None:
    first = segments.reader(1)
    assert segments.reader(1) is first
    segments.reader(2)
    assert (opened(segments), segments.reader(1)) == ([1, 2], first)
    segments.reader(3)
    assert opened(segments) == [2, 3]
    assert segments.reader(1) is not first
    # Whoever holds it may go on reading.
    assert first.read(5) == Entry(*rows(5, 5)[0])


def test_a_newest_segment_that_is_not_sealed_can_be_opened_again(segments: SegmentSet) -> None:
    """Once its reader has left the cache."""
    for number in (4, 1, 2, 3, 4):
        assert segments.reader(number).index.entries == 10
    segments.drop([4])
    with pytest.raises(NotFound, match="holds nothing any more"):
        # As any other that is listed, it would have to be sealed.
        segments.reader(4)


def test_a_cache_of_nothing_works(segments: SegmentSet, tmp_path: Path) -> None:
    made = SegmentSet(tmp_path, segments.known(), max_open=0)
    assert made.read(11) == Entry(*rows(11, 11)[0])
    assert opened(made) == []


def test_random_reads_over_many_segments_open_each_once(tmp_path: Path) -> None:
    for number in range(1, 41):
        write_segment(tmp_path, number, rows(10 * number - 9, 10 * number))
    made = SegmentSet(tmp_path, [known_in(tmp_path, number) for number in range(1, 41)])
    readers = {number: made.reader(number) for number in range(1, 41)}
    for step in range(400):
        index = (step * 7919) % 400 + 1
        assert made.read(index) == Entry(*rows(index, index)[0])
    assert all(made.reader(number) is reader for number, reader in readers.items())
    assert len(opened(made)) == 40


def test_putting_a_newer_segment_cuts_and_covers(segments: SegmentSet, tmp_path: Path) -> None:
    write_segment(tmp_path, 5, rows(15, 16, term=2))
    assert segments.put(known_in(tmp_path, 5)) == (3, 4)
    assert segments.refs == (SegmentRef(1, 1, 10), SegmentRef(2, 11, 14), SegmentRef(5, 15, 16))
    assert [each.ref for each in segments.known()] == list(segments.refs)
    assert segments.read(15) == Entry(15, 2, b"15 in 2")
    assert segments.read(17) is None
    # What was remembered of the file stays: 2 was cut, its file still ends at 20.
    found = segments.known_of(2)
    assert found is not None
    assert found.ref.last == 20
    assert segments.known_of(3) is None


def test_putting_a_segment_again_forgets_what_its_reader_knew(segments: SegmentSet, tmp_path: Path) -> None:
    assert segments.reader(4).index.last == 40
    (tmp_path / segment_name(4)).unlink()
    write_segment(tmp_path, 4, rows(31, 45), sealed=False)
    assert segments.open_entries(4) == 10
    segments.put(known_in(tmp_path, 4))
    assert segments.open_entries(4) == -1
    assert segments.read(45) == Entry(*rows(45, 45)[0])


def test_a_merged_segment_takes_the_place_of_its_members(segments: SegmentSet, tmp_path: Path) -> None:
    old = segments.reader(1)
    (tmp_path / segment_name(1)).unlink()
    write_segment(tmp_path, 1, [*rows(2, 2), *rows(12, 12)])
    segments.merge([1, 2], known_in(tmp_path, 1))
    assert segments.refs == (SegmentRef(1, 2, 12), SegmentRef(3, 21, 30), SegmentRef(4, 31, 40))
    assert segments.reader(1) is not old
    assert segments.read(12) == Entry(*rows(12, 12)[0])
    assert segments.read(11) is None


def test_starting_over_keeps_leases(segments: SegmentSet) -> None:
    with segments.lease():
        segments.drop([1])
        dropped = segments.epoch
        segments.reset(segments.known())
        assert segments.is_leased(dropped)
    assert not segments.is_leased(dropped)
    assert segments.covered == ()


def test_what_is_covered_when_the_set_is_made_is_said(tmp_path: Path) -> None:
    made = SegmentSet(tmp_path, [known(3, 5, 5), known(1, 1, 10), known(2, 11, 20)])
    assert made.refs == (SegmentRef(1, 1, 4), SegmentRef(3, 5, 5))
    assert made.covered == (2,)


def test_a_lease_holds_what_was_listed_when_it_was_taken(segments: SegmentSet) -> None:
    early = segments.lease()
    segments.drop([1])
    at = segments.epoch
    late = segments.lease()
    assert segments.is_leased(at)
    late.release()
    assert segments.is_leased(at)
    early.release()
    early.release()
    assert not segments.is_leased(at)
    assert "Lease(epoch=" in repr(early)


def test_a_segment_that_is_gone_or_merged(segments: SegmentSet, tmp_path: Path) -> None:
    (tmp_path / segment_name(2)).unlink()
    with pytest.raises(NotFound, match="is gone; look the index up again"):
        open_segment(tmp_path, 2)
    (tmp_path / segment_name(2)).symlink_to(segment_name(1))
    with open_segment(tmp_path, 2) as reader:
        assert reader.index.first == 1
    assert list_segments(tmp_path) == [1, 3, 4]
    (tmp_path / segment_name(1)).unlink()
    with pytest.raises(NotFound):
        open_segment(tmp_path, 2)


def test_a_segment_under_a_wrong_number_is_damage(tmp_path: Path) -> None:
    os.rename(write_segment(tmp_path, 3, rows(1, 2)), tmp_path / segment_name(4))
    with pytest.raises(CorruptData, match="expected segment number 4 as in the file name, found 3"):
        open_segment(tmp_path, 4)


def test_other_names_in_the_folder_are_no_segments(tmp_path: Path) -> None:
    for name in ("SNAPSHOT", "1.segment", "0000000000000001.segment.tmp", "00000000000000010.segment"):
        (tmp_path / name).touch()
    write_segment(tmp_path, 12, [])
    assert list_segments(tmp_path) == [12]


def test_an_empty_segment_is_known_as_nothing(tmp_path: Path) -> None:
    with SegmentReader(write_segment(tmp_path, 1, [])) as reader:
        assert know_segment(1, reader) is None


def test_audit_finds_a_list_that_contradicts_itself(tmp_path: Path) -> None:
    made = SegmentSet(tmp_path, [known(1, 1, 10)])
    made.audit()
    # Only the newest may be put; one below an older number breaks the order.
    made.put(known(3, 20, 30))
    made.put(known(2, 40, 50))
    with pytest.raises(AuditFailed, match="out of order"):
        made.audit()


# -- what hides entries that were taken back


@given(written_refs(max_segments=7, max_span=16).filter(bool), st.data())
def test_dropping_what_hides_nothing_uncovers_nothing(written: list[SegmentRef], data: st.DataObject) -> None:
    """Opened anew, the files that are left give the same answers above the snapshot as the list did."""
    history = [known(ref.number, ref.first, ref.last) for ref in written]
    made = SegmentSet("/nowhere", history)
    numbers = [ref.number for ref in made.refs[:-1]]
    # What may be dropped lies at or below the snapshot.
    drops = data.draw(st.sets(st.sampled_from(numbers))) if numbers else set()
    snapshot = max([ref.last for ref in made.refs if ref.number in drops], default=-1) + data.draw(st.integers(0, 5))
    before = answers(made.refs)
    needed = made.hiding(drops, snapshot)
    assert needed <= drops
    files = {each.ref.number: each.ref for each in history}
    left = [files[ref.number] for ref in made.refs if ref.number not in drops - needed]
    after = answers(merge_refs(left).refs)
    assert {index: number for index, number in after.items() if index > snapshot} == {
        index: number for index, number in before.items() if index > snapshot}
    for number in needed:
        uncovered = answers(merge_refs([ref for ref in left if ref.number != number]).refs)
        assert any(index > snapshot and before.get(index) != owner for index, owner in uncovered.items())


def answers(refs: tuple[SegmentRef, ...]) -> dict[int, int]:
    return {index: ref.number for ref in refs for index in range(ref.first, ref.last + 1)}
