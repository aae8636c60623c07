# SPDX-License-Identifier: Apache-2.0
"""Removals and their times: dropped segments, links of merged ones, and files held by a lease."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from compactlib.clock import ManualClock
from compactlib.errors import StorageError
from compactlib.raftlog import DeadEntry, DropDead, RaftLogStore, SegmentLog, StoreOptions
from compactlib.raftlog.names import segment_name
from compactlib.raftlog.segment.segments import Segments
from tests.raftlog.compaction_logs import (
    chained,
    compact_to_rest,
    done,
    entry_of,
    filled,
    links,
    options,
    strays,
    vector_45,
)
from tests.raftlog.wrapped_files import WatchedFiles

ONE, TWO, THREE = segment_name(1), segment_name(2), segment_name(3)


def now_clock() -> ManualClock:
    """A clock that begins now, since links are as old as the file system says."""
    return ManualClock(time.time())


def names(folder: Path) -> set[str]:
    """The segment files and links in a folder."""
    return {name for name in os.listdir(folder) if name.endswith(".segment")}


def reclaimed(log: SegmentLog) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The segments and the old names that go when the log is asked to reclaim."""
    report = log.reclaim()
    return report.segments, report.links


def test_old_names_stay_for_a_minute_until_the_next_call(tmp_path: Path) -> None:
    expected = vector_45(tmp_path)
    clock = now_clock()
    with SegmentLog(tmp_path, options(clock=clock, keep_links_seconds=60.0)) as log:
        done(log.compact(policy=log.policy))
        clock.advance(59.0)
        assert reclaimed(log) == ((), ())
        waits = log.reclaim()
        assert waits.is_empty
        assert waits.why.startswith("2 old names of merged segments are kept for keep_links_seconds=60")
        assert links(tmp_path) == {2: ONE, 3: ONE}
        clock.advance(3600.0)
        assert reclaimed(log) == ((), (2, 3))
        assert log.reclaim().why == "nothing waits to be removed"
        assert names(tmp_path) == {ONE, segment_name(4)}
        expected.check(log)


def test_chained_links_lead_to_the_end_until_their_removal(tmp_path: Path) -> None:
    expected = chained(tmp_path)
    clock = now_clock()
    with SegmentLog(tmp_path, options(clock=clock, keep_links_seconds=60.0)) as log:
        compact_to_rest(log)
        assert log.refs[0].number == 1
        assert {os.path.realpath(tmp_path / segment_name(number)) for number in links(tmp_path)} == {
            os.path.realpath(tmp_path / ONE)}
        assert links(tmp_path)[4] == THREE
        assert links(tmp_path)[3] == ONE
        expected.check(log)
        clock.advance(61.0)
        log.reclaim()
        assert links(tmp_path) == {}
        expected.check(log)


def test_a_lease_keeps_what_is_read_after_compactions(tmp_path: Path) -> None:
    expected = vector_45(tmp_path)
    with SegmentLog(tmp_path, options(keep_links_seconds=0.0)) as log:
        with log.lease():
            done(log.compact(policy=log.policy))
            assert list(log.read_many(range(1, 50))) == [expected.answer(index) for index in range(1, 50)]
            log.snapshot(49, [2, 40])
            log.compact(policy=log.policy)
            assert list(log.read_many(range(1, 50))) == [entry_of(index) if index in (2, 40) else DeadEntry(index, 49)
                                            for index in range(1, 50)]
        log.reclaim()
        assert links(tmp_path) == {}


def test_an_earlier_scan_continues_through_compactions(tmp_path: Path) -> None:
    filled(tmp_path, last=81, snapshot=80, live=range(1, 81, 4), keep_links_seconds=0.0)
    with SegmentLog(tmp_path, options(keep_links_seconds=0.0)) as log:
        scan = log.entries()
        first = [next(scan) for _ in range(6)]
        log.snapshot(80, [1, 21, 53, 57, 77])
        compact_to_rest(log)
        log.append([entry_of(82)])
        # The entries alive when the scan reached their segment: without earlier deaths, and without later entries.
        assert [entry.index for entry in first] == [1, 5, 9, 13, 17, 21]
        rest = [entry.index for entry in scan]
        assert {53, 57, 77, 81} <= set(rest)
        assert rest == sorted(rest)
        assert 82 not in rest


def test_the_list_is_switched_before_any_file_goes(tmp_path: Path) -> None:
    """A segment is unlisted at the moment it loses its file, and all live entries can be read."""
    expected = filled(tmp_path, last=81, snapshot=80, live=[1, 2, 40, 50, 51, 70])
    seen: list[str] = []

    def look(operation: str, path: str) -> None:
        name = os.path.basename(path)
        if operation in ("unlink", "rename") and name.endswith(".segment") and os.path.exists(path):
            listed = {segment_name(ref.number) for ref in log.refs}
            # The leader's own name is replaced, too: by a file that holds all that was alive in the old one.
            if name != ONE:
                assert name not in listed, (operation, name)
                expected.check_live(log)
            seen.append(f"{operation} {name}")

    watched = WatchedFiles(lambda operation, path: None)
    with SegmentLog(tmp_path, options(watched, keep_links_seconds=0.0)) as log:
        watched.look = look
        done(log.compact(policy=log.policy))
        watched.look = lambda operation, path: None
    assert f"unlink {TWO}" in seen
    assert f"rename {ONE}" in seen
    assert f"rename {THREE}" in seen
    assert f"unlink {THREE}" in seen


def test_a_refused_removal_is_reported_and_retried(tmp_path: Path) -> None:
    expected = filled(tmp_path, last=49, snapshot=48, live=[40])

    def refuse(operation: str, path: str) -> None:
        if operation == "unlink" and path.endswith(TWO):
            raise StorageError(operation=operation, path=path, errno=5)

    watched = WatchedFiles(lambda operation, path: None)
    with SegmentLog(tmp_path, options(watched)) as log:
        watched.look = refuse
        outcome = log.compact(policy=DropDead())
        assert not outcome.is_empty
        assert isinstance(outcome.unreclaimed, StorageError)
        assert "files left to be removed" in repr(outcome)
        assert names(tmp_path) == {TWO, THREE, segment_name(4)}
        with pytest.raises(StorageError):
            log.reclaim()
        watched.look = lambda operation, path: None
        log.reclaim()
        assert names(tmp_path) == {THREE, segment_name(4)}
        expected.check(log)
        assert strays(tmp_path) == []


def test_last_segment_with_entries_can_be_dropped(tmp_path: Path) -> None:
    """When the compaction began it was not the last: then a flush was refused, and its entries were truncated."""
    class TakesBack:
        @contextlib.contextmanager
        def guard(self) -> Iterator[None]:
            if segments.last_index == 3:
                segments.take_back()
            yield

    with RaftLogStore(tmp_path, StoreOptions(background=False)) as store:
        log = store.log("a")
        for index in (1, 2):
            log.append([(index, 1, b"entry")])
            store.flush()
            log.end_segment()
        log.snapshot(2, live=[1])
        segments: Segments = vars(log)["_own"]
        segments.append_run(3, 1, [b"entry of a flush"])
        assert log.compact(policy=DropDead(), fence=TakesBack()).drops
        log.audit()
        log.append([(3, 1, b"entry")])
        store.flush()
        assert [entry.index for entry in log.entries()] == [1, 3]
