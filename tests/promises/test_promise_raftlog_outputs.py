# SPDX-License-Identifier: Apache-2.0
"""A compaction of a log gives its segments up only when what takes their place has been read and checked."""

from __future__ import annotations

import contextlib
import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from compactlib.errors import CompactionFailed, CorruptData
from compactlib.raftlog import Entry, LogOptions, SeedPolicy, SegmentLimits, SegmentLog
from tests.harness.failing_files import FailingFiles
from tests.promises.damage import (
    Damage,
    DamagingExecutor,
    cut_the_tail,
    damage_file,
    every_damage,
    flip_a_bit,
    zero_the_head,
)

LIMITS = SegmentLimits(max_entries=16)
LIVE = range(1, 161, 4)


def payload(index: int) -> bytes:
    return b"%d" % index * 100


def half_dead(folder: Path) -> SegmentLog:
    """A log of ten segments, a quarter of whose entries are live."""
    log = SegmentLog(folder, LogOptions(limits=LIMITS))
    for index in range(1, 161):
        log.append([(index, 1, payload(index))])
    log.sync()
    log.snapshot(160, LIVE)
    return log


def assert_all_live(log: SegmentLog) -> None:
    for index in LIVE:
        found = log.read(index)
        assert isinstance(found, Entry)
        assert found.payload == payload(index)


@every_damage
def test_log_compaction_fails_by_name_when_outputs_are_damaged(tmp_path: Path, damage: Damage) -> None:
    with half_dead(tmp_path / "log") as log:
        with pytest.raises(CompactionFailed) as caught:
            log.compact(policy=SeedPolicy(), executor=DamagingExecutor(damage))
        assert set(map(type, caught.value.failures.values())) == {CorruptData}
        assert_all_live(log)
        assert not log.compact(policy=SeedPolicy()).is_empty
        assert_all_live(log)
        assert log.verify().is_sound
    with SegmentLog(tmp_path / "log", LogOptions(limits=LIMITS)) as log:
        assert_all_live(log)


def test_other_groups_of_a_log_are_rewritten_after_a_damaged_output(tmp_path: Path) -> None:
    with half_dead(tmp_path / "log") as log:
        with pytest.raises(CompactionFailed) as caught:
            log.compact(policy=SeedPolicy(), executor=DamagingExecutor(flip_a_bit, frozenset({0})))
        assert set(map(type, caught.value.failures.values())) == {CorruptData}
        assert caught.value.report.done
        assert_all_live(log)
        assert log.verify().is_sound


@pytest.mark.parametrize("damage", [flip_a_bit, cut_the_tail, zero_the_head])
def test_log_entries_stay_when_outputs_are_damaged_in_a_crash(tmp_path: Path, damage: Damage) -> None:
    """The system loses bytes of new segments, at any step before they are in force."""
    half_dead(tmp_path / "begun").close()
    before = own_files(tmp_path / "begun")
    damaged = 0
    for folder in crashed(tmp_path):
        in_force = set(own_files(folder).values())
        if before.keys() == own_files(folder).keys():
            for path in folder.rglob("*"):
                if path.is_file() and not path.is_symlink() and path.stat().st_ino not in in_force and (
                        path.stat().st_size > 1000):
                    damaged += 1
                    damage_file(path, damage)
        with SegmentLog(folder, LogOptions(limits=LIMITS)) as log:
            assert_all_live(log)
            log.compact(policy=SeedPolicy())
            assert_all_live(log)
            assert log.verify().is_sound
    assert damaged > 5


@pytest.mark.parametrize("damage", [flip_a_bit, cut_the_tail, zero_the_head])
def test_log_takes_no_source_away_for_a_damaged_output_after_a_crash(tmp_path: Path, damage: Damage) -> None:
    """A new segment is in force, and its other sources still have their files: opening says so, and takes none."""
    half_dead(tmp_path / "begun").close()
    damaged = 0
    for folder in crashed(tmp_path):
        files = own_files(folder)
        kept: dict[str, int] = {}
        for group in folder.glob("*.compacting"):
            leader, *others = (f"{number}.segment" for number in group.stem.split("-"))
            if files.get(leader) == group.stat().st_ino and any(name in files for name in others):
                damage_file(group, damage)
                kept.update((name, files[name]) for name in (leader, *others) if name in files)
        if kept:
            damaged += 1
            with pytest.raises(CorruptData, match="segment"):
                SegmentLog(folder, LogOptions(limits=LIMITS)).close()
            assert kept.items() <= own_files(folder).items()
    assert damaged > 1


def own_files(folder: Path) -> dict[str, int]:
    """The segments that have a file of their own, and which one that is."""
    return {path.name: path.stat().st_ino for path in folder.glob("*.segment") if not path.is_symlink()}


def crashed(folder: Path) -> Iterator[Path]:
    """Copies of the log in `begun`, each compacted by a process that dies one change of the disk later."""
    for step in itertools.count(1):
        copy = Path(shutil.copytree(folder / "begun", folder / f"crash-{step}"))
        files = FailingFiles(killed_at=step)
        log = None
        try:
            log = SegmentLog(copy, LogOptions(limits=LIMITS, files=files))
            log.compact(policy=SeedPolicy())
            if files.count < step:
                return
        except BaseException as crash:
            if type(crash).__name__ != "Killed":
                raise
        finally:
            if log is not None:
                with contextlib.suppress(BaseException):
                    log.close()
        yield copy
        shutil.rmtree(copy)
