# SPDX-License-Identifier: Apache-2.0
"""The crash tests can fail: each wall of the commit protocol is taken down in turn, and the harness must find it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from compactlib.errors import CompactlibError
from compactlib.executors import RewrittenFile
from compactlib.files import Files
from compactlib.files.disk import StrPath, replace_with_link, replace_with_symlink
from compactlib.indexset import IndexSet
from compactlib.raftlog import SegmentLog
from compactlib.raftlog.compaction import commit, recover, run as compaction
from compactlib.raftlog.model.names import LINK_SUFFIX, SWAP_SUFFIX, compacting_members, compacting_name, segment_name
from compactlib.raftlog.segment import segment_set
from compactlib.raftlog.segment.known import KnownSegment
from compactlib.testing import RecordingFiles, explore_crashes, record
from tests.raftlog.compaction_logs import done, options
from tests.raftlog.crash.test_raftlog_crash import STORIES, Story, checker, crash_everywhere
from tests.raftlog.wrapped_files import SwallowSync

THREE = STORIES["three segments"]
GAP = STORIES["two groups and a drop"]


WRONG = (AssertionError, CompactlibError)
"""What a check raises that finds an entry lost, or a folder that cannot be opened."""


def find(story: Story, folder: Path) -> BaseException:
    """What the check said to the crash that the harness must find."""
    with pytest.raises(WRONG) as caught:
        crash_everywhere(story, folder)
    return caught.value


@pytest.mark.parametrize(("story", "left_out"), [
    (THREE, {"file": 1}),
    # Counted behind the two by which opening makes durable what it finds.
    (THREE, {"folder": 3}),
    (THREE, {"folder": 4}),
    (GAP, {"folder": 3}),
], ids=["the new file", "leader before links", "links before the end", "drop before leader"])
def test_each_sync_of_the_commit_is_needed(story: Story, left_out: dict[str, int], tmp_path: Path) -> None:
    expected = story.build(tmp_path)

    def compact(folder: Path, files: RecordingFiles) -> None:
        swallow = SwallowSync(files=files, **left_out)
        with SegmentLog(folder, options(swallow, policy=story.policy)) as log:
            done(log.compact(policy=log.policy))
        assert swallow.left_out == 1

    recording = record(tmp_path, compact)
    final = story.finish(tmp_path, expected)
    with pytest.raises(WRONG, match=r"live entry|damaged|corrupt data"):
        explore_crashes(recording, checker(story, expected, final), seed=0)


def test_it_is_found_that_links_come_before_the_leader(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As in Ra before 83d0154c: readers of 2 and 3 were led to a leader that did not hold their entries yet."""
    def place_leader(files: Files, folder: StrPath, members: Sequence[int], rewritten: RewrittenFile,
                     live: Sequence[IndexSet]) -> KnownSegment:
        merged = commit._check_rewritten(rewritten, members, live)  # noqa: SLF001 - the patched copy of a private step
        compacting = os.path.join(folder, compacting_name(members))
        files.rename(rewritten.path, compacting)
        for member in members[1:]:
            replace_with_symlink(files, segment_name(members[0]), os.path.join(folder, segment_name(member)),
                                 temporary_suffix=LINK_SUFFIX)
        replace_with_link(files, compacting, os.path.join(folder, segment_name(members[0])),
                          temporary_suffix=SWAP_SUFFIX)
        files.sync_folder(folder)
        return merged

    monkeypatch.setattr(compaction, "place_leader", place_leader)
    assert "live entry" in str(find(THREE, tmp_path))


def test_it_is_found_that_the_compacting_name_goes_before_the_links_are_durable(
        monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def finish(compactor: compaction.Compactor, *leaders: int) -> None:
        for leader in leaders:
            members = compactor._unfinished.pop(leader)  # noqa: SLF001 - the patched copy of a private step
            commit.finish_group(compactor._files, compactor._folder, members)  # noqa: SLF001 - likewise

    monkeypatch.setattr(compaction.Compactor, "_finish", finish)
    assert "live entry" in str(find(THREE, tmp_path))


def test_it_is_found_that_the_link_count_alone_decides(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The seed's own rule: the second name may be the swap name, with the leader still the old one."""
    def is_committed(folder: StrPath, compacting: str) -> bool:
        if compacting_members(compacting) is None:
            return False
        with contextlib.suppress(FileNotFoundError):
            return os.lstat(os.path.join(folder, compacting)).st_nlink > 1
        return False

    for module in (commit, compaction, recover):
        monkeypatch.setattr(module, "is_committed", is_committed)
    find(THREE, tmp_path)


@pytest.mark.parametrize(("story", "break_it"), [
    (THREE, lambda patch: patch.setattr(recover, "is_committed", lambda folder, name: False)),
    (THREE, lambda patch: patch.setattr(recover, "is_committed", lambda folder, name: True)),
    (THREE, lambda patch: patch.setattr(segment_set, "superseded", lambda folder, names: set())),
    (THREE, lambda patch: patch.setattr(recover, "is_leftover", lambda name: False)),
    (THREE, lambda patch: patch.setattr(recover, "is_private_folder", lambda name: False)),
], ids=["never roll forward", "always roll forward", "members that are still files count", "temporary names stay",
        "private folders stay"])
def test_each_part_of_recovery_is_needed(story: Story, break_it: Callable[[pytest.MonkeyPatch], None],
                                         monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    expected = story.build(tmp_path)
    recording = record(tmp_path, story.compact)
    final = story.finish(tmp_path, expected)
    break_it(monkeypatch)
    with pytest.raises(WRONG):
        explore_crashes(recording, checker(story, expected, final))
