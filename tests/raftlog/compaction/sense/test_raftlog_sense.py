# SPDX-License-Identifier: Apache-2.0
"""Statistics that are remembered: they are always those of a fresh look, and an unchanged segment is not read again."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from compactlib.errors import CompactlibError, StorageError
from compactlib.indexset import IndexSet
from compactlib.raftlog import SnapshotMeta
from compactlib.raftlog.compaction.copier import Copier
from compactlib.raftlog.compaction.sense.statistics import StatsCache
from compactlib.raftlog.errors import LiveIndexMissing
from compactlib.raftlog.model.names import segment_name
from compactlib.raftlog.model.values import SegmentRef, SegmentStats
from compactlib.raftlog.segment.known import KnownSegment, know_segment
from compactlib.raftlog.segment.reader import SegmentReader
from compactlib.raftlog.segment.segment_list import SegmentList
from tests.raftlog.reading import write_segment


class CountingSet(SegmentList):
    """Says which segments were opened."""

    opened: list[int]

    def reader(self, number: int) -> SegmentReader:
        self.opened.append(number)
        return super().reader(number)


def known_in(folder: Path, *numbers: int) -> list[KnownSegment]:
    found = []
    for number in numbers:
        with SegmentReader(folder / segment_name(number)) as reader:
            known = know_segment(number, reader)
            assert known is not None
            found.append(known)
    return found


@pytest.fixture
def segments(tmp_path: Path) -> Iterator[CountingSet]:
    """Segments 1, 2 and 3 with the indexes 1..10, 11..20 and 21..30, each entry as long as its index."""
    for number in (1, 2, 3):
        write_segment(tmp_path, number, ((index, 1, bytes(index)) for index in range(10 * number - 9, 10 * number + 1)))
    made = CountingSet(tmp_path, known_in(tmp_path, 1, 2, 3))
    made.opened = []
    yield made
    made.close()


def state(index: int, *live: int) -> SnapshotMeta:
    return SnapshotMeta(index, live=IndexSet.from_sorted(live))


def brief(stats: tuple[SegmentStats, ...]) -> list[tuple[int, int]]:
    return [(each.live_entries, each.live_bytes) for each in stats]


def test_statistics_are_those_of_a_fresh_look_whatever_came_before(segments: CountingSet) -> None:
    cache = StatsCache()
    for snapshot in (None, state(0), state(5, 2), state(10, 2), state(10), state(15, 2, 12), state(20, 2, 12),
                     state(25, 2, 12, 21), state(30, 2, 12, 21), state(30, 12), state(31, 12), state(40)):
        found = cache.gather(segments, snapshot)
        assert found == StatsCache().gather(segments, snapshot), snapshot
        for stats in found:
            counted = [index for index in range(stats.ref.first, stats.ref.last + 1)
                       if snapshot is None or not snapshot.is_dead(index)]
            assert (stats.live_entries, stats.live_bytes) == (len(counted), sum(counted))


def test_a_snapshot_that_moves_through_a_segment_is_noticed(segments: CountingSet) -> None:
    """The live indexes in segment 1 stay the same while the snapshot passes its end."""
    cache = StatsCache()
    assert brief(cache.gather(segments, state(5, 2)))[0] == (6, 2 + 6 + 7 + 8 + 9 + 10)
    assert brief(cache.gather(segments, state(8, 2)))[0] == (3, 2 + 9 + 10)
    assert brief(cache.gather(segments, state(12, 2)))[0] == (1, 2)


def test_an_unchanged_segment_is_not_read_again(segments: CountingSet) -> None:
    cache = StatsCache()
    cache.gather(segments, state(20, 2, 12))
    assert segments.opened == [1, 2, 3]
    cache.gather(segments, state(20, 2, 12))
    # Segment 1 has the same live indexes, 2 has not, 3 is reached by the snapshot now.
    cache.gather(segments, state(22, 2, 13, 21))
    assert segments.opened == [1, 2, 3, 2, 3]


def test_a_segment_without_anything_alive_is_never_read(segments: CountingSet) -> None:
    assert brief(StatsCache().gather(segments, state(30))) == [(0, 0)] * 3
    assert segments.opened == []


@pytest.fixture
def uniform(tmp_path: Path) -> Iterator[CountingSet]:
    """As `segments`, with entries of 7 bytes."""
    for number in (1, 2, 3):
        write_segment(tmp_path, number, ((index, 1, b"payload") for index in range(10 * number - 9, 10 * number + 1)))
    made = CountingSet(tmp_path, known_in(tmp_path, 1, 2, 3))
    made.opened = []
    yield made
    made.close()


@pytest.mark.parametrize("offset", [0, 24, 40, 200, 4096 - 1])
def test_damage_since_a_segment_was_learnt_is_found(uniform: CountingSet, tmp_path: Path, offset: int) -> None:
    """In the header, its number, the seals and the index: what its reader says is what is said."""
    path = tmp_path / segment_name(2)
    data = bytearray(path.read_bytes())
    data[offset % len(data)] ^= 0xFF
    path.write_bytes(data)
    try:
        with SegmentReader(path, tail="refuse", number=2):
            said = None
    except CompactlibError as error:
        said = type(error)
    damaged: dict[int, CompactlibError] = {}
    found = StatsCache().gather(uniform, state(20, 2, 12), damaged=damaged)
    assert ([] if said is None else [said]) == [type(error) for error in damaged.values()]
    assert (found[1].live_entries, found[1].live_bytes) == ((1, 7) if said is None else (10, 70))


def test_another_file_in_the_place_of_a_segment_is_read(uniform: CountingSet, tmp_path: Path) -> None:
    """Of the same number and as many entries, all whole, of which others are live."""
    (tmp_path / segment_name(2)).unlink()
    write_segment(tmp_path, 2, ((index, 1, b"payload") for index in range(12, 22)))
    damaged: dict[int, CompactlibError] = {}
    StatsCache().gather(uniform, state(20, 2, 11), damaged=damaged)
    assert [type(error) for error in damaged.values()] == [LiveIndexMissing]


def test_another_file_whose_payloads_have_other_sizes_is_read(uniform: CountingSet, tmp_path: Path) -> None:
    """Its indexes are the same ones."""
    for sizes in ([3] * 10, [7] * 4 + [8] + [7] * 5, [7] * 9 + [8], [8] + [7] * 9):
        (tmp_path / segment_name(2)).unlink()
        write_segment(tmp_path, 2, ((index, 1, bytes(size)) for index, size in enumerate(sizes, 11)))
        with closing(SegmentList(tmp_path, uniform.known())) as fresh:
            found = StatsCache().gather(fresh, state(14, 11))[1]
        assert (found.live_entries, found.live_bytes, found.data_bytes) == (7, sizes[0] + sum(sizes[4:]), sum(sizes))


def test_a_pipe_in_the_place_of_a_segment_is_not_waited_for(uniform: CountingSet, tmp_path: Path) -> None:
    (tmp_path / segment_name(2)).unlink()
    os.mkfifo(tmp_path / segment_name(2))
    damaged: dict[int, CompactlibError] = {}
    StatsCache().gather(uniform, state(20, 2, 12), damaged=damaged)
    assert [type(error) for error in damaged.values()] == [StorageError]
    with ExitStack() as stack, pytest.raises(StorageError, match=segment_name(2)):
        Copier().part(stack, str(tmp_path / segment_name(2)), IndexSet.from_sorted([12]), SegmentRef(2, 11, 20))
