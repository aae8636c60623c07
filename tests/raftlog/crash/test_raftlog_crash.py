# SPDX-License-Identifier: Apache-2.0
"""Compactions are crashed after every operation, under every loss of what was not synced; nothing may be gone.

Each story is checked in five ways after each crash: a reader of the folder as the crash left it, the log opened for
writing, no stray files, a further major compaction that ends as it would have without a crash, and opening again.
"""

from __future__ import annotations

import copy
import errno
import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest

from compactlib.errors import Closed, StorageError
from compactlib.files import Files
from compactlib.outcome import Failed, Skipped
from compactlib.raftlog import DropDead, LogPolicy, LogReader, SeedPolicy, SegmentLog
from compactlib.raftlog.model.names import CADENCE_NAME, segment_name
from compactlib.testing import Recording, RecordingFiles, explore_crashes, explore_recovery, record, repeat_crash
from tests.raftlog.compaction_logs import (
    Expected,
    chained,
    compact_to_rest,
    dead_leader,
    done,
    entries_of,
    entry_of,
    filled,
    links,
    options,
    overwritten,
    ra_log,
    resolved,
    strays,
    vector_45,
)
from tests.raftlog.crash.journal import Journal, Life
from tests.tools.faults.plan import FailingFiles

PAIRS = SeedPolicy(max_sources=2)


@attrs.frozen
class Story:
    """A log, and the compaction that is crashed on it.

    Attributes:
        build: makes the log in an empty folder and says what must stay readable.
        by: whose compaction is crashed; default the log's policy.
        policy: of the log, also when it is opened after the crash.
    """

    build: Callable[[Path], Expected]
    by: LogPolicy | None = None
    policy: SeedPolicy = attrs.field(factory=SeedPolicy)

    def compact(self, folder: Path, files: Files) -> None:
        """What is crashed."""
        with SegmentLog(folder, options(files, policy=self.policy)) as log:
            done(log.compact(policy=self.by or log.policy))

    def recover(self, folder: Path, files: Files) -> None:
        """What is crashed after that: opening the log, and compacting again."""
        with SegmentLog(folder, options(files, policy=self.policy)) as log:
            log.compact(policy=log.policy)

    def finish(self, folder: Path, expected: Expected) -> dict[str, bytes | str]:
        """Open the log, see that all is well, and compact it; what the folder holds then."""
        with SegmentLog(folder, options(policy=self.policy)) as log:
            assert strays(folder) == []
            expected.check(log)
            compact_to_rest(log)
            expected.check_live(log)
        assert strays(folder) == []
        with SegmentLog(folder, options(policy=self.policy)) as log:
            assert not log.recovery
            expected.check_live(log)
        # A crash may cost what was counted towards the next major.
        return {name: content for name, content in resolved(folder).items() if name != CADENCE_NAME}


def two_groups_and_a_drop(folder: Path) -> Expected:
    """Segments 1 and 3 merge across 2, which holds nothing alive; 4 and 5 merge; 6 is the newest."""
    return filled(folder, last=81, snapshot=80, live=[1, 2, 40, 50, 51, 70], policy=PAIRS)


def one_sparse(folder: Path) -> Expected:
    """One segment of which most is dead, and the newest."""
    return filled(folder, last=17, snapshot=16, live=[3, 4, 11])


def drops_behind_a_gap(folder: Path) -> Expected:
    """Entry 45 is taken back, and the log has a gap in its place; what is on both sides of it has died."""
    kept = [*entries_of(1, 19), *entries_of(20, 35, term=2), *entries_of(50, 51, term=2)]
    with SegmentLog(folder, options()) as log:
        log.extend([*entries_of(1, 31), entry_of(45)])
        log.extend(kept[19:])
        log.sync()
        log.record_snapshot(35, [3])
        assert [(ref.first, ref.last) for ref in log.refs] == [(1, 16), (17, 19), (20, 35), (50, 51)]
    return Expected.of(kept, 35, [3])


STORIES = {
    "three segments": Story(vector_45),
    "two groups and a drop": Story(two_groups_and_a_drop, policy=PAIRS),
    "one segment": Story(one_sparse),
    "chained links": Story(chained),
    "overwritten tails": Story(overwritten),
    "drops and dangling links": Story(dead_leader, by=DropDead()),
    "drops, links and a group": Story(dead_leader),
    "drops behind a gap": Story(drops_behind_a_gap),
    "ra's format": Story(ra_log),
}


def recorded(story: Story, folder: Path) -> tuple[Recording, Expected, dict[str, bytes | str]]:
    """The compaction of a story, what must be readable, and the folder after it and one more compaction."""
    expected = story.build(folder)
    recording = record(folder, story.compact)
    return recording, expected, story.finish(folder, expected)


def checker(story: Story, expected: Expected, final: dict[str, bytes | str]) -> Callable[[Path, Sequence[Any]], None]:
    """What must hold after each crash."""
    def check(folder: Path, _: Sequence[Any]) -> None:
        with LogReader(folder) as reader:
            expected.check(reader)
        # A member whose old name was not a link yet is not given one.
        assert files_of(story.finish(folder, expected)) == files_of(final)
    return check


def files_of(picture: dict[str, bytes | str]) -> dict[str, bytes]:
    return {name: content for name, content in picture.items() if isinstance(content, bytes)}


def crash_everywhere(story: Story, folder: Path, *, seed: int = 0, limit_per_point: int = 128) -> int:
    """Crash the compaction of a story at every point."""
    recording, expected, final = recorded(story, folder)
    return explore_crashes(recording, checker(story, expected, final), seed=seed,
                   limit_per_point=limit_per_point)


@pytest.mark.parametrize("name", STORIES)
def test_a_crash_at_any_operation_loses_nothing(name: str, tmp_path: Path) -> None:
    checked = crash_everywhere(STORIES[name], tmp_path, limit_per_point=10)
    assert checked > 10


@pytest.mark.parametrize("name", STORIES)
def test_a_crash_of_the_recovery_loses_nothing(name: str, tmp_path: Path) -> None:
    story = STORIES[name]
    recording, expected, final = recorded(story, tmp_path)
    checked = explore_recovery(recording, story.recover, checker(story, expected, final), seed=1,
                              recoveries=4, limit_per_point=6)
    assert checked > 4


def test_a_campaign_that_is_held_up_ends_as_any_other(tmp_path: Path) -> None:
    """It was stopped for longer than old names stay, and they were gone where the folder was compacted once more."""
    story = STORIES["overwritten tails"]
    crashed = tmp_path / "crashed"
    recording, expected, final = recorded(story, tmp_path / "log")
    repeat_crash(recording, {0: len(recording.operations)}, crashed)
    for number in links(crashed):
        os.utime(crashed / segment_name(number), (0.0, 0.0), follow_symlinks=False)
    checker(story, expected, final)(crashed, ())


def leased(folder: Path, files: Files) -> None:
    """Compactions while somebody reads, so that dropped files stay; then what they had to leave."""
    with SegmentLog(folder, options(files)) as log:
        with log.lease():
            done(log.compact(policy=log.policy))
            log.compact(policy=log.policy)
        compact_to_rest(log)


def test_a_crash_while_a_lease_keeps_dropped_files_loses_nothing(tmp_path: Path) -> None:
    """The files of dropped segments lie between those that are to be merged, and are there again after the crash."""
    expected = two_groups_and_a_drop(tmp_path)
    recording = record(tmp_path, leased)
    story = STORIES["three segments"]
    explore_crashes(recording, checker(story, expected, story.finish(tmp_path, expected)), limit_per_point=24)


def test_entries_not_yet_durable_do_not_make_a_segment_compactable(tmp_path: Path) -> None:
    """They cut its range down to the snapshot; after a crash they were gone, and so was what they had taken back."""
    with SegmentLog(tmp_path, options()) as log:
        log.extend(entries_of(1, 60))
        log.record_snapshot(44, [1, 40, 44])
        before = Journal.of(log)

    def work(folder: Path, files: RecordingFiles) -> None:
        with SegmentLog(folder, options(files)) as log:
            files.acknowledge("append 45 2")
            log.append(45, 2, entry_of(45, 2).payload)
            done(log.compact(policy=log.policy))

    def check(folder: Path, lines: Sequence[str]) -> None:
        journal = copy.deepcopy(before)
        for line in lines:
            journal.note(line)
        with SegmentLog(folder, options()) as log:
            journal.judge(log)

    explore_crashes(record(tmp_path, work), check)


def test_a_record_that_ends_in_zeros_and_is_cut_by_the_end_of_the_file_is_torn(tmp_path: Path) -> None:
    """It looked whole, and the seal that was then written over it counted a record that the file does not hold."""
    with SegmentLog(tmp_path, options()):
        pass

    def work(folder: Path, files: RecordingFiles) -> None:
        with SegmentLog(folder, options(files)) as log:
            files.acknowledge("append 5 1")
            log.append(5, 1, b"")
            log.sync()
            files.acknowledge("synced")

    def check(folder: Path, lines: Sequence[str]) -> None:
        for _ in range(2):
            judged(folder, lines)

    recording = record(tmp_path, work)
    assert any(operation.kind == "write" and len(operation.data) == 40 for operation in recording.operations)
    explore_crashes(recording, check)


def stubborn(folder: Path, files: Files) -> None:
    """Open the log and compact until it has worked, whatever the disk refuses on the way."""
    for _ in range(5):
        try:
            with SegmentLog(folder, options(files)) as log:
                for _ in range(4):
                    if isinstance(log.compact(policy=log.policy), Skipped):
                        return
        except (StorageError, Closed):
            continue
    raise AssertionError("the disk refused once, but five tries failed")


def crash_after_failure(folder: Path, fail_at: int, *, limit_per_point: int) -> int:
    """Let the disk refuse one operation, try again in the same process, and crash that everywhere."""
    expected = vector_45(folder)
    files = FailingFiles(fail_at=fail_at, errno=errno.EIO)
    recording = record(folder, stubborn, files=files)
    story = STORIES["three segments"]
    explore_crashes(recording, checker(story, expected, story.finish(folder, expected)),
                    limit_per_point=limit_per_point)
    return files.count


@pytest.mark.parametrize("fail_at", range(1, 21))
def test_a_crash_after_a_failure_and_a_second_try_loses_nothing(fail_at: int, tmp_path: Path) -> None:
    assert crash_after_failure(tmp_path, fail_at, limit_per_point=3) >= fail_at


def live_a_life(seed: int, count: int) -> Callable[[Path, RecordingFiles], None]:
    """What `record` is given: a log that lives through `count` random steps."""
    def work(folder: Path, files: RecordingFiles) -> None:
        with SegmentLog(folder, options(files, keep_links_seconds=0.0)) as log:
            life = Life(log, random.Random(seed), files.acknowledge)
            for _ in life.steps(count):
                pass
    return work


def judged(folder: Path, lines: Sequence[Any]) -> None:
    """The judgement of a crashed life: before recovery, after it, and after a compaction."""
    journal = Journal.read(lines)
    with LogReader(folder) as reader:
        journal.judge(reader)
    with SegmentLog(folder, options()) as log:
        assert strays(folder) == []
        journal.judge(log)
        outcome = log.compact(policy=log.policy)
        assert not isinstance(outcome, Failed), outcome
        journal.judge(log)


def crash_a_life(folder: Path, seed: int, *, steps: int, points: int, limit_per_point: int) -> None:
    """Crash a random life at some points."""
    SegmentLog(folder, options()).close()
    recording = record(folder, live_a_life(seed, steps))
    every = range(len(recording.operations) + 1)
    explore_crashes(recording, judged, seed=seed, limit_per_point=limit_per_point,
                    points=random.Random(seed).sample(every, min(points, len(every))))


@pytest.mark.parametrize("seed", range(3))
def test_a_random_life_survives_a_crash(seed: int, tmp_path: Path) -> None:
    crash_a_life(tmp_path, seed, steps=40, points=16, limit_per_point=6)


@pytest.mark.soak
@pytest.mark.parametrize("name", STORIES)
def test_soak_every_loss_at_every_operation(name: str, tmp_path: Path) -> None:
    crash_everywhere(STORIES[name], tmp_path, seed=2, limit_per_point=1 << 14)


@pytest.mark.soak
@pytest.mark.parametrize("name", STORIES)
def test_soak_every_crash_of_every_recovery(name: str, tmp_path: Path) -> None:
    story = STORIES[name]
    recording, expected, final = recorded(story, tmp_path)
    explore_recovery(recording, story.recover, checker(story, expected, final), seed=3,
                     recoveries=None, limit_per_point=24)


@pytest.mark.soak
@pytest.mark.parametrize("fail_at", range(1, 24))
def test_soak_crashes_after_a_failure(fail_at: int, tmp_path: Path) -> None:
    crash_after_failure(tmp_path, fail_at, limit_per_point=512)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(1000, 1040))
def test_soak_random_lives(seed: int, tmp_path: Path) -> None:
    crash_a_life(tmp_path, seed, steps=60, points=60, limit_per_point=16)
