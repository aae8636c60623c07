# SPDX-License-Identifier: Apache-2.0
"""A log that lacks a segment in its middle says so, and no other does; a segment can be ended before it is full."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import attrs
import pytest

from compactlib.errors import CorruptData
from compactlib.raftlog import (
    LogOptions,
    LogReader,
    MissingEntry,
    RaftLogStore,
    SeedPolicy,
    SegmentLimits,
    SegmentLog,
    StoreOptions,
    verify_log,
)
from compactlib.testing import FilesInFront, Request

OPTIONS = StoreOptions(log=LogOptions(limits=SegmentLimits(max_entries=4)))


@pytest.mark.parametrize("snapshot", [None, 4])
def test_missing_segment_is_named_by_verify_and_stops_the_entries(snapshot: int | None, tmp_path: Path) -> None:
    with RaftLogStore(tmp_path, OPTIONS) as store:
        log = store.log("a")
        log.append([(index, 1, b"entry") for index in range(1, 17)])
        if snapshot is not None:
            log.snapshot(snapshot, live=[2])
        store.flush()
        middle = next(ref for ref in log.refs if ref.first <= 9 <= ref.last)
        assert log.verify().is_sound
    [path] = (tmp_path / "logs" / "a").glob(f"*{middle.number}.segment")
    path.unlink()
    with LogReader(tmp_path / "logs" / "a") as reader:
        [finding] = reader.verify().findings
        assert (finding.kind, getattr(finding.error, "index", None)) == ("missing", middle.first)
    with RaftLogStore(tmp_path, OPTIONS) as store:
        log = store.log("a")
        assert not log.verify().is_sound
        given: list[int] = []
        with pytest.raises(CorruptData) as caught:
            given.extend(entry.index for entry in log.entries())
        assert caught.value.index == middle.first
        assert given[-1] == middle.first - 1
        assert next(entry.index for entry in log.entries(middle.last + 1)) == middle.last + 1


@pytest.mark.parametrize("opened", [SegmentLog, LogReader])
def test_lost_first_segment_without_a_snapshot_is_named_at_opening(opened: Callable[[Path], SegmentLog | LogReader],
                                                                   tmp_path: Path) -> None:
    with SegmentLog(tmp_path, OPTIONS.log) as log:
        log.append([(index, 1, b"entry") for index in range(1, 13)])
    first = tmp_path / f"{1:016d}.segment"
    first.rename(tmp_path.parent / f"{tmp_path.name}-first")
    with pytest.raises(CorruptData, match="segment 1 before segment 2"):
        opened(tmp_path)
    [finding] = verify_log(tmp_path).findings
    assert finding.kind == "damage"
    (tmp_path.parent / f"{tmp_path.name}-first").rename(first)
    with opened(tmp_path) as log_again:
        assert [entry.index for entry in log_again.entries()] == list(range(1, 13))


def test_log_of_a_store_without_its_first_segment_is_damaged_alone(tmp_path: Path) -> None:
    with RaftLogStore(tmp_path, OPTIONS) as store:
        for name in "ab":
            store.log(name).append([(index, 1, b"entry") for index in range(1, 13)])
        store.flush()
    (tmp_path / "logs" / "a" / f"{1:016d}.segment").unlink()
    with RaftLogStore(tmp_path, OPTIONS) as store:
        assert store.status().damaged == ("a",)
        with pytest.raises(CorruptData, match="segment 1"):
            store.log("a")
        assert len(list(store.log("b").entries())) == 12


@pytest.mark.parametrize("opened", [SegmentLog, LogReader])
def test_lost_newest_segment_is_named_at_opening(opened: Callable[[Path], SegmentLog | LogReader],
                                                 tmp_path: Path) -> None:
    with SegmentLog(tmp_path, OPTIONS.log) as log:
        log.append([(index, 1, b"entry") for index in range(1, 15)])
        log.snapshot(7, live=[2, 7])
        log.compact(policy=SeedPolicy())
    max(tmp_path.glob("*.segment")).unlink()
    with pytest.raises(CorruptData, match="which was ended"):
        opened(tmp_path)


def test_log_of_a_store_without_its_newest_segment_is_damaged(tmp_path: Path) -> None:
    with RaftLogStore(tmp_path, OPTIONS) as store:
        store.log("a").append([(index, 1, b"entry") for index in range(1, 15)])
        store.flush()
    max((tmp_path / "logs" / "a").glob("*.segment")).unlink()
    with RaftLogStore(tmp_path, OPTIONS) as store:
        assert store.status().damaged == ("a",)


def test_lost_row_of_a_log_that_has_dropped_segments_is_named(tmp_path: Path) -> None:
    with SegmentLog(tmp_path, OPTIONS.log) as log:
        log.append([(index, 1, b"entry") for index in range(1, 13)])
        log.snapshot(8, live=())
        assert log.compact().dropped
    (tmp_path / "SNAPSHOT").unlink()
    with pytest.raises(CorruptData, match="never had a snapshot"):
        SegmentLog(tmp_path)


def test_log_without_its_only_segment_and_with_a_snapshot_is_damaged(tmp_path: Path) -> None:
    with SegmentLog(tmp_path) as log:
        log.append([(1, 1, b"entry"), (2, 1, b"entry")])
        log.snapshot(1, live=())
    (tmp_path / f"{1:016d}.segment").unlink()
    with pytest.raises(CorruptData, match="no segment"):
        SegmentLog(tmp_path)


def test_log_without_its_only_segment_and_with_a_vote_is_damaged(tmp_path: Path) -> None:
    with RaftLogStore(tmp_path, OPTIONS) as store:
        store.log("a").record_hard_state(3, "member-1")
    (tmp_path / "logs" / "a" / f"{1:016d}.segment").unlink()
    with RaftLogStore(tmp_path, OPTIONS) as store:
        assert store.status().damaged == ("a",)


def test_log_that_was_truncated_to_nothing_keeps_an_empty_first_segment(tmp_path: Path) -> None:
    payload = b"an entry that was taken back" * 1000
    with SegmentLog(tmp_path, OPTIONS.log) as log:
        log.append([(index, 1, payload) for index in range(1, 13)])
        log.sync()
        log.append([(1, 2, b"another")])
        log.sync()
    assert sum(path.read_bytes().count(b"taken back") for path in tmp_path.iterdir()) == 0
    for _ in range(2):
        with SegmentLog(tmp_path, OPTIONS.log) as log, LogReader(tmp_path) as reader:
            assert list(log.entries()) == list(reader.entries()) == [(1, 2, b"another")]
            assert log.verify().is_sound
            assert len(log.refs) == 1
    with SegmentLog(tmp_path, OPTIONS.log) as log:
        log.snapshot(1, live=())
    with SegmentLog(tmp_path, OPTIONS.log) as log:
        assert not (tmp_path / f"{1:016d}.segment").exists()
        log.append([(index, 2, b"another") for index in range(2, 10)])
        log.snapshot(8, live=())
        assert log.compact().dropped


def test_log_of_a_store_is_reset_to_nothing_and_opened(tmp_path: Path) -> None:
    with RaftLogStore(tmp_path, OPTIONS) as store:
        log = store.log("a")
        log.append([(index, 1, b"entry") for index in range(1, 13)])
        store.flush()
        log.reset(0)
        log.append([(1, 2, b"another")])
        store.flush()
    with RaftLogStore(tmp_path, OPTIONS) as store:
        assert list(store.log("a").entries()) == [(1, 2, b"another")]


def test_file_that_is_removed_under_an_open_log_is_named_by_its_verify(tmp_path: Path) -> None:
    with SegmentLog(tmp_path, OPTIONS.log) as log:
        log.append([(index, 1, b"entry") for index in range(1, 10)])
        log.snapshot(8, live=range(1, 9))
    with SegmentLog(tmp_path, OPTIONS.log) as log:
        (tmp_path / f"{2:016d}.segment").unlink()
        findings = log.verify().findings
        assert [(each.kind, getattr(each.error, "index", None)) for each in findings] == [
            ("missing", index) for index in range(5, 9)]


def test_ended_segment_can_be_removed(tmp_path: Path) -> None:
    with SegmentLog(tmp_path) as log:
        log.append([(index, 1, b"entry") for index in range(1, 9)])
        log.end_segment()
        log.append([(9, 1, b"entry")])
        log.snapshot(8, live=())
        assert log.compact().dropped
        assert [entry.index for entry in log.entries()] == [9]


def test_copy_by_a_tool_that_follows_links_is_opened_as_the_log(tmp_path: Path) -> None:
    options = LogOptions(limits=SegmentLimits(max_entries=10))
    with SegmentLog(tmp_path / "log", options) as log:
        log.append([(index, 1, b"entry %d" % index) for index in range(1, 101)])
        log.snapshot(90, live=range(3, 91, 7))
        log.compact(policy=SeedPolicy())
        entries = list(log.entries())
    links = [path.name for path in (tmp_path / "log").iterdir() if path.is_symlink()]
    assert links
    shutil.copytree(tmp_path / "log", tmp_path / "copy", symlinks=False)
    shutil.copytree(tmp_path / "copy", tmp_path / "part")
    (tmp_path / "part" / os.readlink(tmp_path / "log" / links[0])).unlink()
    names = sorted(os.listdir(tmp_path / "part"))
    with pytest.raises(CorruptData, match="as in the file name"):
        SegmentLog(tmp_path / "part", options)
    assert sorted(os.listdir(tmp_path / "part")) == names, "the only copies stay"
    with LogReader(tmp_path / "copy") as reader:
        assert list(reader.entries()) == entries
        assert reader.verify().is_sound
    with SegmentLog(tmp_path / "copy", options) as log:
        assert not any((tmp_path / "copy" / name).exists() for name in links)
        log.append([(101, 1, b"another")])
        log.sync()
        assert not log.compact(policy=SeedPolicy()).failed
        assert list(log.entries())[:-1] == entries
        assert log.verify().is_sound


def test_copy_of_a_merged_segment_beside_an_older_file_of_it_is_named(tmp_path: Path) -> None:
    options = LogOptions(limits=SegmentLimits(max_entries=10))
    with SegmentLog(tmp_path / "log", options) as log:
        log.append([(index, 1, b"entry %d" % index) for index in range(1, 101)])
        log.snapshot(90, live=range(3, 91, 7))
        shutil.copytree(tmp_path / "log", tmp_path / "backup")
        log.compact(policy=SeedPolicy())
    # The next run of a backup that follows links was interrupted, before it came to the merged segments' own names.
    for link in (tmp_path / "log").iterdir():
        if link.is_symlink():
            shutil.copy(link, tmp_path / "backup" / link.name)
    names = sorted(os.listdir(tmp_path / "backup"))
    for opened in (SegmentLog, LogReader):
        with pytest.raises(CorruptData, match="as in the file name"):
            opened(tmp_path / "backup")
    assert sorted(os.listdir(tmp_path / "backup")) == names, "the only copies stay"


def test_segment_of_another_format_is_a_finding(tmp_path: Path) -> None:
    options = LogOptions(limits=SegmentLimits(max_entries=10))
    with SegmentLog(tmp_path, options) as log:
        log.append([(index, 1, b"entry") for index in range(1, 41)])
    with LogReader(tmp_path) as reader:
        paths = [Path(reader.path_of(ref.number)) for ref in reader.refs[:2]]
        paths[0].write_bytes(b"damage")
        later = bytearray(paths[1].read_bytes())
        struct.pack_into("<H", later, 8, 3)
        struct.pack_into("<I", later, 36, zlib.crc32(later[:36]))
        paths[1].write_bytes(later)
        assert [finding.kind for finding in reader.verify().findings] == ["damage", "format"]


@pytest.mark.parametrize("name", ["nonsense.compacting", "SNAPSHOT.tmp", f"rewrite-run-{1:016d}.segment.attempt"])
def test_opening_removes_what_an_interrupted_step_left(name: str, tmp_path: Path) -> None:
    with SegmentLog(tmp_path) as log:
        log.append([(1, 1, b"entry")])
    (tmp_path / name).write_bytes(b"garbage")
    with SegmentLog(tmp_path) as log:
        assert log.recovery.removed == (name,)


def test_compaction_that_copies_nothing_does_not_load_numpy(tmp_path: Path) -> None:
    script = """if True:
        import sys
        from compactlib.raftlog import SegmentLog
        with SegmentLog(sys.argv[1]) as log:
            log.append([(1, 1, b"entry")])
            log.end_segment()
            log.append([(2, 1, b"entry")])
            log.snapshot(1, live=())
            assert log.compact().dropped
        assert "numpy" not in sys.modules
    """
    subprocess.run([sys.executable, "-c", script, os.fspath(tmp_path / "log")], check=True)


@pytest.mark.parametrize("name", ["old.compacting", "SNAPSHOT.tmp", f"rewrite-my-{1:016d}.segment.drafts"])
def test_folder_of_others_with_the_name_of_a_leftover_stays(name: str, tmp_path: Path) -> None:
    with SegmentLog(tmp_path) as log:
        log.append([(1, 1, b"entry")])
    (tmp_path / name).mkdir()
    (tmp_path / name / "thesis.txt").write_text("do not delete")
    with SegmentLog(tmp_path) as log:
        assert log.last_index == 1
        assert log.reclaim().is_empty
    assert (tmp_path / name / "thesis.txt").read_text() == "do not delete"


@pytest.mark.parametrize("ended", [False, True])
def test_index_above_all_numbers_is_missing(ended: bool, tmp_path: Path) -> None:
    with SegmentLog(tmp_path) as log:
        log.append([(1, 1, b"entry")])
        if ended:
            log.end_segment()
        assert log.read(1 << 64) == MissingEntry(1 << 64)
        with LogReader(tmp_path) as reader:
            assert reader.read(1 << 64) == MissingEntry(1 << 64)


def test_live_entry_is_read_beside_the_commit_of_its_rewrite(tmp_path: Path) -> None:
    reads: list[Future[Any]] = []
    commits = threading.Event()

    def step(request: Request, act: Callable[[], Any]) -> Any:
        if commits.is_set() and request.kind == "sync folder" and not reads:
            # The new file has the segment's name, and the list is the old one.
            reads.append(pool.submit(log.read, 1))
            wait(reads, timeout=0.3)
        return act()

    options = attrs.evolve(OPTIONS.log, max_open_segments=1, files=FilesInFront(step))
    with ThreadPoolExecutor(1) as pool, SegmentLog(tmp_path, options) as log:
        log.append([(index, 1, b"entry") for index in range(1, 15)])
        log.snapshot(8, live=[1, *range(5, 9)])
        assert log.read(12).index == 12
        commits.set()
        assert log.compact(policy=SeedPolicy()).done
        assert [each.result() for each in reads] == [(1, 1, b"entry")]
