# SPDX-License-Identifier: Apache-2.0
"""What a stream of compactions is told of, without Spark: thresholds, offsets, batches that are repeated."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from compactlib.errors import InvalidInput
from compactlib.executors import LocalExecutor
from compactlib.raftlog import LogOptions, SegmentLimits, SegmentLog
from compactlib.spark.sources.covered import (
    CoveredReader,
    CoveredSegment,
    LogLook,
    StreamOptions,
    between,
    crossed,
    look_at_log,
)

LIMITS = LogOptions(limits=SegmentLimits(max_entries=10))


def looks(**covered: list[int]) -> dict[str, LogLook]:
    """Logs by name, with these covered segments of 100 bytes, and one more that is being written."""
    return {name: LogLook(max(numbers, default=0) + 1, tuple(CoveredSegment(n, 10 * n, 10 * n + 9, 100, 999)
                                                             for n in numbers)) for name, numbers in covered.items()}


def numbers_of(start: Mapping[str, int], end: Mapping[str, int], found: dict[str, LogLook]) -> dict[str, list[int]]:
    told: dict[str, list[int]] = {}
    for folder, segment, *_ in between(start, end, found):
        told.setdefault(folder, []).append(segment)
    return told


def test_a_log_is_told_of_when_it_crosses_a_threshold_and_not_again() -> None:
    options = StreamOptions(("a", "b"), min_segments=3)
    found = looks(a=[1, 2, 3, 4], b=[1, 2])
    end = crossed({}, found, options)
    assert end == {"a": 4}
    assert numbers_of({}, end, found) == {"a": [1, 2, 3, 4]}
    assert crossed(end, found, options) == end
    later = looks(a=[1, 2, 3, 4, 5, 6], b=[1, 2, 3])
    assert crossed(end, later, options) == {"a": 4, "b": 3}
    assert numbers_of(end, {"a": 4, "b": 3}, later) == {"b": [1, 2, 3]}


def test_bytes_count_as_well() -> None:
    found = looks(a=[1, 2])
    assert crossed({}, found, StreamOptions(("a",), 10, 200)) == {"a": 2}
    assert crossed({}, found, StreamOptions(("a",), 10, 201)) == {}


def test_a_compaction_that_merges_told_segments_makes_nothing_new() -> None:
    merged = {"a": LogLook(9, looks(a=[1, 5])["a"].covered)}
    assert crossed({"a": 8}, merged, StreamOptions(("a",), 1)) == {"a": 8}


def test_a_log_that_was_begun_anew_is_counted_from_its_beginning() -> None:
    found = looks(a=[1, 2])
    end = crossed({"a": 50}, found, StreamOptions(("a",), 2))
    assert end == {"a": 2}
    assert numbers_of({"a": 50}, end, found) == {"a": [1, 2]}


@given(st.lists(st.dictionaries(st.sampled_from("abc"), st.integers(0, 4)), max_size=12), st.integers(1, 5))
def test_over_any_history_each_segment_is_told_once_and_repeats_are_the_same(growth: list[dict[str, int]],
                                                                           least: int) -> None:
    options = StreamOptions(("a", "b", "c"), least)
    sizes = dict.fromkeys("abc", 0)
    offset: dict[str, int] = {}
    told: dict[str, list[int]] = {}
    for step in growth:
        for name, more in step.items():
            sizes[name] += more
        found = looks(**{name: list(range(1, size + 1)) for name, size in sizes.items()})
        end = crossed(offset, found, options)
        batch = numbers_of(offset, end, found)
        # Grown meanwhile, the batch is repeated: it ends where it ended.
        grown = looks(**{name: list(range(1, size + 3)) for name, size in sizes.items()})
        assert numbers_of(offset, end, grown) == batch
        assert all(len(numbers) >= least for numbers in batch.values())
        for name, numbers in batch.items():
            told.setdefault(name, []).extend(numbers)
        offset = end
        assert all(size - offset.get(name, 0) < least for name, size in sizes.items())
    assert told == {name: list(range(1, last + 1)) for name, last in offset.items()}


def test_what_a_snapshot_covers_of_a_real_log(tmp_path: Path) -> None:
    folder = str(tmp_path / "log")
    assert look_at_log(folder) == LogLook()
    looking = CoveredReader(StreamOptions((folder,)))
    assert looking.look() == {folder: LogLook()}
    with SegmentLog(folder, LIMITS) as log:
        log.extend((index, 1, b"x" * 10) for index in range(1, 56))
        log.sync()
        assert look_at_log(folder) == LogLook(6)
        log.record_snapshot(34, live=[3])
        # The fourth segment goes on above the snapshot.
        assert [(each.segment, each.first, each.last, each.snapshot) for each in looking.look()[folder].covered] == [
            (1, 1, 10, 34), (2, 11, 20, 34), (3, 21, 30, 34)]
        assert looking.look()[folder].covered[0].size_bytes == (tmp_path / "log" / f"{1:016d}.segment").stat().st_size
        log.record_snapshot(55, live=[3])
        assert [each.segment for each in looking.look()[folder].covered] == [1, 2, 3, 4, 5]
        log.compact(policy=log.policy, executor=LocalExecutor())
        offset = {folder: 5}
        assert crossed(offset, {folder: look_at_log(folder)}, StreamOptions((folder,), 1)) == offset


def test_options_travel_as_text() -> None:
    given = {"folders": '["/a b", "/\\u00f6"]', "min_segments": "3", "min_bytes": str(1 << 40)}
    assert StreamOptions.parse(given) == StreamOptions(("/a b", "/ö"), 3, 1 << 40)
    assert StreamOptions.parse({"path": "/a"}) == StreamOptions(("/a",))


@pytest.mark.parametrize("options", [
    {}, {"folders": "[]"}, {"folders": "[1]"}, {"folders": "no json"}, {"path": "/a", "min_segments": "0"},
    {"path": "/a", "min_bytes": "many"}, {"path": "/a", "unknown": "1"},
    {"folders": '"/a/log"'}, {"folders": '{"/a": 1}'}, {"folders": "[" * 100_000}, {"folders": '["/a"]', "path": "/b"}])
def test_bad_options(options: dict[str, str]) -> None:
    with pytest.raises(InvalidInput):
        StreamOptions.parse(options)
