# SPDX-License-Identifier: Apache-2.0
"""Kill, successor, power failure: planted mistakes are found, sound stores pass, a failure can be run alone."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from compactlib.errors import InvalidInput
from compactlib.files import sync_names, write_durably
from compactlib.raftlog import LogOptions, SegmentLimits, SegmentLog
from compactlib.testing import explore_kills
from compactlib.testing.crash.kills import KillFailure, KillReport, LifeFiles


def numbered(folder: Path) -> list[int]:
    """The numbers of the entries in a folder of one file an entry."""
    return sorted(int(name.name) for name in folder.iterdir() if name.name.isdigit())


def add_entry(folder: Path, files: LifeFiles, *, syncs_found: bool) -> None:
    """A log of one file an entry, whose acknowledged entries follow each other."""
    folder = folder / "log"
    if not folder.exists():
        files.make_folder(folder)
        files.sync_folder(folder.parent)
    if syncs_found:
        sync_names(files, folder)
    for number in range(len(numbered(folder)), len(numbered(folder)) + 2):
        write_durably(files, folder / str(number), [b"entry"])
        files.acknowledge(number)


def life(*, syncs_found: bool) -> Callable[[Path, LifeFiles], None]:
    return lambda folder, files: add_entry(folder, files, syncs_found=syncs_found)


def entries_follow(folder: Path, acknowledged: Sequence[Any]) -> None:
    found = numbered(folder / "log") if (folder / "log").exists() else []
    assert found == list(range(len(found)))
    assert len(found) >= max(acknowledged, default=-1) + 1


def test_what_an_opening_finds_without_a_sync_is_lost() -> None:
    sound = life(syncs_found=True)
    report = explore_kills(sound, sound, entries_follow)
    assert report.kills == 15
    assert report.distinct > 30
    with pytest.raises(KillFailure) as caught:
        explore_kills(life(syncs_found=False), life(syncs_found=False), entries_follow)
    # Before the sync of the parent: the log's folder is there for the successor alone.
    assert caught.value.killed_at == 2
    assert "the successor begins with change 1" in str(caught.value)
    with pytest.raises(KillFailure) as alone:
        explore_kills(life(syncs_found=False), life(syncs_found=False), entries_follow, points=[caught.value.killed_at])
    assert alone.value.state == caught.value.state


def test_what_a_killed_life_acknowledged_counts() -> None:
    def forgetful(folder: Path, files: LifeFiles) -> None:
        for name in (folder / "log").glob("*"):
            files.unlink(name)
        files.sync_folder(folder / "log")

    with pytest.raises(KillFailure):
        explore_kills(life(syncs_found=True), forgetful, entries_follow,
                      prepare=lambda folder: (folder / "log").mkdir())


def test_a_real_log_is_killed_and_goes_on() -> None:
    """The one store that every host has; those of each package are in its own tests."""
    def append(folder: Path, files: LifeFiles) -> None:
        with SegmentLog(folder / "s", LogOptions(files=files, limits=SegmentLimits(max_entries=2))) as log:
            for _ in range(3):
                log.append((log.last_index or 0) + 1, 1, b"entry")
            log.sync()
            files.acknowledge(log.last_index)

    def check(folder: Path, acknowledged: Sequence[Any]) -> None:
        if acknowledged:
            with SegmentLog(folder / "s") as log:
                assert (log.last_index or 0) >= acknowledged[-1]

    assert explore_kills(append, append, check, limit_per_point=4, max_states=100).distinct == 100


def test_lives_that_swallow_the_kill_or_go_past_their_files_are_refused() -> None:
    def swallows(folder: Path, files: LifeFiles) -> None:
        try:
            files.make_folder(folder / "a")
            files.make_folder(folder / "b")
        except BaseException:
            return

    with pytest.raises(InvalidInput, match="catches `BaseException`"):
        explore_kills(swallows, lambda folder, files: None, lambda folder, acknowledged: None)
    with pytest.raises(InvalidInput, match="was changed without the Files"):
        explore_kills(lambda folder, files: (folder / "x").mkdir(), lambda folder, files: None,
                      lambda folder, acknowledged: None)


def test_the_report_shows_itself_and_samples_repeat() -> None:
    sound = life(syncs_found=True)
    one, two = (explore_kills(sound, sound, entries_follow, max_states=20, rng=random.Random(3)) for _ in range(2))
    assert one == two
    assert isinstance(one, KillReport)
    assert one.distinct == 20
    assert one.to_dicts() == [{"kills": one.kills, "points": one.points, "states_checked": one.states_checked,
                               "distinct": 20}]
    assert "<table" in one._repr_html_()
