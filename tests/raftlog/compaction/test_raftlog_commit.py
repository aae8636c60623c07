# SPDX-License-Identifier: Apache-2.0
"""A group is committed on real folders: the order of its steps, what it refuses, and what an error leaves."""

from __future__ import annotations

import errno
import os
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest

from compactlib.errors import Busy, CorruptData, DiskFull, StorageError
from compactlib.files import LocalFiles
from compactlib.indexset import IndexSet
from compactlib.raftlog import LogReader, SegmentLog
from compactlib.raftlog.compaction.commit import finish_group, place_leader
from compactlib.raftlog.compaction.recover import recover_folder
from compactlib.raftlog.model.names import compacting_members, compacting_name, segment_name
from compactlib.raftlog.model.values import SegmentRef
from compactlib.raftlog.segment.known import is_committed, superseded
from tests.raftlog.compaction_logs import (
    Expected,
    chained,
    commit_group,
    done,
    filled,
    flip_byte,
    links,
    options,
    picture,
    rewritten,
    strays,
    vector_45,
)
from tests.raftlog.wrapped_files import WatchedFiles
from tests.tools.faults.plan import FailingFiles

LIVE = [1, 2, 20, 40]
KEPT = [IndexSet.range(1, 2), IndexSet.range(20, 20), IndexSet.range(40, 40)]
FILES = LocalFiles()
ONE, TWO, THREE = segment_name(1), segment_name(2), segment_name(3)
GROUP = compacting_name([1, 2, 3])


def committed(folder: Path) -> Expected:
    """Three sparse segments become one; the commit is made by hand."""
    expected = vector_45(folder)
    commit_group(FILES, folder, [1, 2, 3], rewritten(folder, [1, 2, 3], LIVE))
    os.rmdir(folder / "rewrite-hand")
    return expected


def test_three_segments_become_one_and_two_relative_links(tmp_path: Path) -> None:
    expected = committed(tmp_path)
    assert links(tmp_path) == {2: ONE, 3: ONE}
    assert os.stat(tmp_path / ONE).st_nlink == 1
    assert strays(tmp_path) == []
    with LogReader(tmp_path) as reader:
        assert reader.refs == (SegmentRef(1, 1, 40), SegmentRef(4, 49, 49))
        expected.check(reader)


def test_a_folder_that_is_moved_still_reads(tmp_path: Path) -> None:
    """Ra's links are absolute and dangle when the folder moves."""
    (tmp_path / "here").mkdir()
    expected = committed(tmp_path / "here")
    os.rename(tmp_path / "here", tmp_path / "there")
    assert (tmp_path / "there" / THREE).read_bytes() == (tmp_path / "there" / ONE).read_bytes()
    with SegmentLog(tmp_path / "there", options()) as log:
        expected.check(log)


def test_the_steps_and_their_order(tmp_path: Path) -> None:
    vector_45(tmp_path)
    file = rewritten(tmp_path, [1, 2, 3], LIVE)
    steps: list[str] = []
    watched = WatchedFiles(lambda operation, path: steps.append(f"{operation} {os.path.basename(path)}"))
    commit_group(watched, tmp_path, [1, 2, 3], file)
    folder = tmp_path.name
    assert steps == [
        f"rename {GROUP}",
        f"link {ONE}.swap", f"rename {ONE}", f"sync folder {folder}",
        f"symlink {TWO}.link", f"rename {TWO}", f"symlink {THREE}.link", f"rename {THREE}", f"sync folder {folder}",
        f"unlink {GROUP}",
    ]


def test_a_single_segment_needs_no_links(tmp_path: Path) -> None:
    expected = filled(tmp_path, last=17, snapshot=16, live=[3])
    file = rewritten(tmp_path, [1], [3])
    steps: list[str] = []
    commit_group(WatchedFiles(lambda operation, path: steps.append(operation)), tmp_path, [1], file)
    assert steps == ["rename", "link", "rename", "sync folder", "unlink"]
    with LogReader(tmp_path) as reader:
        expected.check(reader)
        assert reader.refs[0] == SegmentRef(1, 3, 3)


def test_a_removal_between_the_members_is_made_durable_first(tmp_path: Path) -> None:
    filled(tmp_path, last=49, snapshot=48, live=[1, 40])
    file = rewritten(tmp_path, [1, 3], [1, 40])
    os.unlink(tmp_path / TWO)
    steps: list[str] = []
    commit_group(WatchedFiles(lambda operation, path: steps.append(operation)), tmp_path, [1, 3], file)
    assert steps[:2] == ["sync folder", "rename"]


def test_a_file_between_the_members_is_refused(tmp_path: Path) -> None:
    """Its range would hide what the leader holds from behind it."""
    expected = vector_45(tmp_path)
    file = rewritten(tmp_path, [1, 3], [1, 2, 40])
    before = picture(tmp_path)
    with pytest.raises(Busy, match="segment 2 lies between"):
        commit_group(FILES, tmp_path, [1, 3], file)
    assert picture(tmp_path) == before
    with LogReader(tmp_path) as reader:
        expected.check(reader)


def test_a_link_between_the_members_is_no_hindrance(tmp_path: Path) -> None:
    expected = chained(tmp_path)
    assert links(tmp_path) == {2: ONE, 4: THREE}
    live = [index for index in expected.entries if index <= 80]
    file = rewritten(tmp_path, [1, 3, 5], live)
    commit_group(FILES, tmp_path, [1, 3, 5], file)
    assert links(tmp_path) == {2: ONE, 3: ONE, 4: THREE, 5: ONE}
    assert (tmp_path / segment_name(4)).read_bytes() == (tmp_path / ONE).read_bytes()
    os.rmdir(tmp_path / "rewrite-hand")
    with LogReader(tmp_path) as reader:
        expected.check(reader)


@pytest.mark.parametrize("lie", [{"size_bytes": 1}, {"entries": 5}, {"crc32": 7}])
def test_a_report_that_is_not_true_is_refused(lie: dict[str, Any], tmp_path: Path) -> None:
    vector_45(tmp_path)
    file = rewritten(tmp_path, [1, 2, 3], LIVE)
    before = picture(tmp_path)
    with pytest.raises(CorruptData, match="as reported"):
        commit_group(FILES, tmp_path, [1, 2, 3], attrs.evolve(file, **lie))
    assert picture(tmp_path) == before


@pytest.mark.parametrize("harm", ["cut", "longer", "flipped", "another number"])
def test_a_file_that_is_not_what_was_written_is_refused(harm: str, tmp_path: Path) -> None:
    vector_45(tmp_path)
    members = [2, 3] if harm == "another number" else [1, 2, 3]
    file = rewritten(tmp_path, members, [20, 40] if harm == "another number" else LIVE)
    path = Path(file.path)
    if harm == "cut":
        path.write_bytes(path.read_bytes()[:-1])
    elif harm == "longer":
        path.write_bytes(path.read_bytes() + b"x")
    elif harm == "flipped":
        flip_byte(path, 104 + 8)
    before = picture(tmp_path)
    with pytest.raises(CorruptData):
        commit_group(FILES, tmp_path, [1, 2, 3], file)
    assert picture(tmp_path) == before


@pytest.mark.parametrize("fail_at", range(1, 11))
def test_an_error_at_any_step_leaves_a_log_that_reads_and_recovers(fail_at: int, tmp_path: Path) -> None:
    expected = vector_45(tmp_path)
    file = rewritten(tmp_path, [1, 2, 3], LIVE)
    old = (tmp_path / ONE).read_bytes()
    with pytest.raises(StorageError):
        commit_group(FailingFiles(fail_at=fail_at, errno=errno.EIO), tmp_path, [1, 2, 3], file)
    # Link, then rename: at the third step the leader was replaced, or not; nothing in between.
    assert ((tmp_path / ONE).read_bytes() == old) == (fail_at <= 3)
    assert (tmp_path / GROUP).exists() == (fail_at > 3)
    with LogReader(tmp_path) as reader:
        expected.check(reader)
    with SegmentLog(tmp_path, options()) as log:
        expected.check(log)
        assert strays(tmp_path) == []
        assert bool(log.recovery.finished) == (fail_at > 3)
        assert len(log.refs) == (2 if fail_at > 3 else 4)


def test_on_a_full_disk_merged_segments_lose_their_names_instead_of_keeping_their_space(tmp_path: Path) -> None:
    expected = vector_45(tmp_path)
    place_leader(FILES, tmp_path, [1, 2, 3], rewritten(tmp_path, [1, 2, 3], LIVE), KEPT)
    full = FailingFiles(fail_at=1, sticky=True)
    finish_group(full, tmp_path, [1, 2, 3])
    assert not os.path.lexists(tmp_path / TWO)
    assert not os.path.lexists(tmp_path / THREE)
    assert not os.path.lexists(tmp_path / GROUP)
    with LogReader(tmp_path) as reader:
        expected.check(reader)


def test_on_a_full_disk_an_unfinished_output_gives_its_space_back_at_once(tmp_path: Path) -> None:
    expected = vector_45(tmp_path)
    file = rewritten(tmp_path, [1, 2, 3], LIVE)
    with pytest.raises(DiskFull):
        place_leader(FailingFiles(fail_at=2, sticky=True), tmp_path, [1, 2, 3], file, KEPT)
    assert not os.path.lexists(tmp_path / GROUP)
    assert not os.path.lexists(file.path)
    with LogReader(tmp_path) as reader:
        expected.check(reader)


def test_between_leader_and_links_the_members_own_files_do_not_count(tmp_path: Path) -> None:
    expected = vector_45(tmp_path)
    place_leader(FILES, tmp_path, [1, 2, 3], rewritten(tmp_path, [1, 2, 3], LIVE), KEPT)
    names = os.listdir(tmp_path)
    assert is_committed(tmp_path, GROUP)
    assert superseded(tmp_path, names) == {2, 3}
    assert os.stat(tmp_path / GROUP).st_nlink == 2
    # As a crash may leave it: the link of 3 is there, that of 2 is not.
    os.unlink(tmp_path / THREE)
    os.symlink(ONE, tmp_path / THREE)
    with LogReader(tmp_path) as reader:
        expected.check(reader)
        assert reader.refs == (SegmentRef(1, 1, 40), SegmentRef(4, 49, 49))
    finish_group(FILES, tmp_path, [1, 2, 3])
    assert links(tmp_path) == {2: ONE, 3: ONE}


def test_finishing_does_not_do_again_what_is_done(tmp_path: Path) -> None:
    vector_45(tmp_path)
    place_leader(FILES, tmp_path, [1, 2, 3], rewritten(tmp_path, [1, 2, 3], LIVE), KEPT)
    for member in (TWO, THREE):
        os.unlink(tmp_path / member)
        os.symlink(ONE, tmp_path / member)
    steps: list[str] = []
    finish_group(WatchedFiles(lambda operation, path: steps.append(operation)), tmp_path, [1, 2, 3])
    assert steps == ["unlink"]


def test_names_of_groups() -> None:
    assert compacting_name([1, 2, 30]) == "0000000000000001-0000000000000002-0000000000000030.compacting"
    assert compacting_members(compacting_name([1, 2, 30])) == (1, 2, 30)
    assert compacting_members(compacting_name([7])) == (7,)
    for garbage in ("1-2.compacting", compacting_name([2, 1]), compacting_name([1, 1]), GROUP + "x", "x" + GROUP,
                    ".compacting", GROUP.replace("-", "_"), GROUP.upper()):
        assert compacting_members(garbage) is None, garbage


def note(steps: list[str], operation: str, _: str) -> None:
    """Note an operation."""
    steps.append(operation)


def test_through_the_log_it_is_one_sync_per_output_whatever_the_number_of_sources(tmp_path: Path) -> None:
    """Ra syncs once a source and three times more."""
    counts: dict[int, int] = {}
    for sources in (2, 6):
        folder = tmp_path / str(sources)
        folder.mkdir()
        filled(folder, last=16 * sources + 1, snapshot=16 * sources, live=range(1, 16 * sources, 16))
        syncs: list[str] = []
        files = WatchedFiles(partial(note, syncs))
        with SegmentLog(folder, options(files)) as log:
            syncs.clear()
            done(log.compact(policy=log.policy))
            assert len(log.refs) == 2
        counts[sources] = syncs.count("sync")
        assert syncs.count("sync folder") == 2
    assert counts == {2: 1, 6: 1}


def test_recovery_finishes_what_commit_began(tmp_path: Path) -> None:
    expected = vector_45(tmp_path)
    place_leader(FILES, tmp_path, [1, 2, 3], rewritten(tmp_path, [1, 2, 3], LIVE), KEPT)
    report = recover_folder(FILES, tmp_path)
    assert report.finished == ((1, 2, 3),)
    assert report.removed == ("rewrite-hand",)
    assert not recover_folder(FILES, tmp_path)
    with LogReader(tmp_path) as reader:
        expected.check(reader)
