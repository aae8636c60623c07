# SPDX-License-Identifier: Apache-2.0
"""Compactions are crashed after every operation, under every loss of what was not synced; nothing may be gone.

After each crash the store is opened, its answers are compared with those from before, it is verified, what was in
progress is resumed, and it ends with the same records as without a crash.
"""

from __future__ import annotations

import errno
import random
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest

from compactlib.blobstore import BlobPolicy, BlobStore
from compactlib.blobstore.compaction.plan.policies.declining_cost import DecliningCost
from compactlib.blobstore.errors import PlanDoesNotFit
from compactlib.blobstore.model.placement import ByEnd, Survivor, SurvivorPlacement
from compactlib.clock import ManualClock
from compactlib.errors import CorruptData, StorageError
from compactlib.files import Files, LocalFiles
from compactlib.outcome import Failed
from compactlib.testing import Recording, explore_crashes, explore_recovery, record, repeat_crash
from compactlib.testing.disk_model import KEPT, LOST, CrashModel
from tests.blobstore.compaction_stores import (
    EVERYTHING,
    START,
    answers,
    delete_some,
    done,
    fill,
    flip,
    open_store,
    plan_of,
    strays,
)
from tests.tools.faults.plan import FailingFiles

COUNT = 24
NOW = START + 100


@attrs.frozen
class BySize:
    """A scheme whose classes lie across each other in every source, so that records do not stay in the log's order."""

    name: str = "by_size"

    def place(self, record: Survivor, now_ms: int) -> int:
        return record.size % 3


@attrs.frozen
class Story:
    """A store and how it is compacted.

    Attributes:
        dead: which blobs are deleted.
        settings: of the store.
        spread: whether every other segment is compacted only.
        backward: whether the last segment is copied first.
        replaced: which blobs were put again, the last time for a while that is over.
        policy: chooses what is compacted; `None`: everything is.
        lives_seconds: the time to live of three blobs; it is over after 100.
    """

    dead: Callable[[int], bool]
    settings: dict[str, Any]
    spread: bool = False
    backward: bool = False
    replaced: Callable[[int], bool] = lambda number: False
    policy: BlobPolicy | None = None
    lives_seconds: float = 5

    def build(self, folder: Path) -> None:
        """Make the store."""
        clock = ManualClock(START)
        with open_store(folder, clock, **self.settings) as store:
            fill(store, COUNT, random.Random(7), largest=400)
            delete_some(store, filter(self.dead, range(COUNT)), clock)
            for number in range(COUNT, COUNT + 3):
                store.put(f"b{number}", b"expiring", ttl_seconds=self.lives_seconds)
            for number in filter(self.replaced, range(COUNT)):
                store.put(f"b{number}", b"again" * 20, replace=True)
                if number % 4 == 1:
                    store.put(f"b{number}", b"for a while" * 10, replace=True, ttl_seconds=5)
            fill(store, 8, random.Random(8), largest=400, first=COUNT + 3)

    def open(self, folder: Path, files: Files | None = None) -> BlobStore:
        """Open it, always at the same time."""
        return open_store(folder, ManualClock(NOW), files=files, **self.settings)

    def compact(self, folder: Path, files: Files) -> None:
        """What is crashed."""
        with self.open(folder / "store", files) as store:
            self.carry_out(store)

    def carry_out(self, store: BlobStore) -> None:
        """The whole compaction, on an open store."""
        if self.policy is not None:
            done(store.compact(policy=self.policy))
            return
        chosen = store.snapshot().eligible()[::2 if self.spread else 1]
        done(store.compact(plan_of(store, chosen[::-1] if self.backward else chosen)))

    def recover(self, folder: Path, files: Files) -> None:
        """What is crashed after that."""
        with self.open(folder / "store", files) as store:
            store.resume()

    def records(self, store: BlobStore) -> list[tuple[object, ...]]:
        """Every record, wherever it lies."""
        snapshot = store.snapshot()
        return [(entry.sequence, entry.id, entry.kind, entry.segment, entry.offset)
                for info in snapshot.segments for entry in snapshot.entries_of(info.name)]


STORIES = {
    "one swap segment": Story(lambda number: number % 2 == 0, {"swap_segments": 1}),
    "three swap segments": Story(lambda number: number % 2 == 0, {"swap_segments": 3}),
    "nothing is kept": Story(lambda number: True, {"swap_segments": 1, "purge_tombstones": True}),
    "every other segment": Story(lambda number: number % 4 != 0, {"swap_segments": 2}, spread=True),
    "survivors by class": Story(
        lambda number: number % 5 == 0, {"swap_segments": 3, "placement": BySize()}, backward=True),
    "victims and survivors by their ends": Story(
        lambda number: number % 3 != 0, lives_seconds=5_000,
        settings={"swap_segments": 3, "placement": ByEnd(), "stats_bucket_seconds": 1.0, "max_blob_bytes": 0},
        policy=DecliningCost(min_used_fraction=0.0, min_reclaimed_segments=2)),
    "the last segment first": Story(lambda number: number % 3 == 0, {"swap_segments": 1, "purge_tombstones": True},
                                    backward=True),
    "blobs that were put again": Story(lambda number: number % 4 == 0, {"swap_segments": 1}, spread=True,
                                       replaced=lambda number: number % 4 < 2),
}


@attrs.frozen
class Expected:
    """What a crash must not change.

    Attributes:
        story: the store.
        plain: the answers of plain gets.
        final: every record after the compaction.
    """

    story: Story
    plain: list[Any]
    final: list[tuple[object, ...]]

    def check(self, folder: Path, _: Sequence[Any]) -> None:
        """After a crash: everything is as before or as after, and resuming ends as without a crash."""
        folder = folder / "store"
        with self.story.open(folder) as store:
            self.same_answers(store)
            assert not store.recovery.damage, store.recovery.damage
            report = store.verify()
            assert report.is_sound, str(report)
            store.audit()
            outcome = store.resume()
            assert not isinstance(outcome, Failed), outcome
            if self.story.records(store) != self.final:
                # The crash came before the compaction was noted.
                self.story.carry_out(store)
            assert self.story.records(store) == self.final
            self.same_answers(store)
            store.audit()
        assert strays(folder) == []
        with self.story.open(folder) as store:
            assert not store.compaction_recovery
            assert self.story.records(store) == self.final

    def same_answers(self, store: BlobStore) -> None:
        found = answers(store, COUNT + 11)
        for number, (before, now) in enumerate(zip(self.plain, found, strict=True)):
            # An expired blob may have turned into a missing one, and so may a deleted one if tombstones are purged.
            assert now == before or (before in ("Expired", "Deleted") and now == "Missing"), (number, before, now)


def recorded(story: Story, folder: Path) -> tuple[Recording, Expected]:
    folder.mkdir(exist_ok=True)
    story.build(folder / "store")
    with story.open(folder / "store") as store:
        plain = answers(store, COUNT + 11)
    recording = record(folder, story.compact)
    with story.open(folder / "store") as store:
        final = story.records(store)
        assert answers(store, COUNT + 11, EVERYTHING) != []
    return recording, Expected(story, plain, final)


def crash_everywhere(story: Story, folder: Path, *, seed: int = 0, limit_per_point: int) -> int:
    recording, expected = recorded(story, folder)
    return explore_crashes(recording, expected.check, seed=seed, limit_per_point=limit_per_point)


@pytest.mark.parametrize("name", STORIES)
def test_a_crash_at_any_operation_loses_nothing(name: str, tmp_path: Path) -> None:
    assert crash_everywhere(STORIES[name], tmp_path, limit_per_point=2) > 20


@pytest.mark.parametrize("name", STORIES)
def test_a_crash_of_the_recovery_loses_nothing(name: str, tmp_path: Path) -> None:
    story = STORIES[name]
    recording, expected = recorded(story, tmp_path)
    assert explore_recovery(recording, story.recover, expected.check, seed=1, recoveries=2, limit_per_point=3) > 2


@pytest.mark.parametrize(("before", "after"), [(BySize(), None), (None, BySize()), (BySize(), ByEnd(step=1.01))])
def test_a_crash_before_a_life_with_another_placement_and_a_delete_loses_nothing(
        before: SurvivorPlacement | None, after: SurvivorPlacement | None, tmp_path: Path) -> None:
    """What is resumed is decided anew, and what an earlier life has copied is used only where it still fits."""
    story = STORIES["survivors by class"]
    recording, expected = recorded(attrs.evolve(story, settings={"swap_segments": 3, "placement": before}), tmp_path)
    changed = attrs.evolve(story, settings={"swap_segments": 3, "placement": after})
    resumed = list[Counter[int]]()

    def check(folder: Path, _: Sequence[Any]) -> None:
        wanted = ["Deleted" if number == 1 else answer for number, answer in enumerate(expected.plain)]
        with changed.open(folder / "store") as store:
            expected.same_answers(store)
            store.delete("b1")
            if store.compaction:
                resumed.append(Counter(done(store.resume()).classes))
            attrs.evolve(expected, plain=wanted).same_answers(store)
            assert store.verify().is_sound
            store.audit()
        assert strays(folder / "store") == []
        with changed.open(folder / "store") as store:
            assert not store.compaction_recovery
            attrs.evolve(expected, plain=wanted).same_answers(store)
            assert store.verify().is_sound

    explore_crashes(recording, check, seed=3, limit_per_point=2)
    assert any(resumed) is (after is not None)
    assert len(resumed) > 10


def test_the_story_of_classes_places_records_elsewhere(tmp_path: Path) -> None:
    """Else its crashes would say nothing of placements."""
    story = STORIES["survivors by class"]
    placed, plain = (recorded(each, tmp_path / name)[1].final for name, each in (
        ("placed", story), ("plain", attrs.evolve(story, settings={"swap_segments": 3}))))
    assert placed != plain
    assert sorted(record[:3] for record in placed) == sorted(record[:3] for record in plain)


def stubborn(story: Story) -> Callable[[Path, Files], None]:
    """Compact until it has worked, whatever the disk refuses on the way, in one process."""
    def work(folder: Path, files: Files) -> None:
        with opened(folder, files) as store:
            for _ in range(6):
                try:
                    outcome = store.resume() if store.compaction else store.compact(plan_of(store))
                except StorageError:
                    continue
                if not isinstance(outcome, Failed):
                    return
        raise AssertionError(f"the disk refused once, but six tries failed: {outcome}")

    def opened(folder: Path, files: Files) -> BlobStore:
        try:
            return story.open(folder / "store", files)
        except StorageError:
            return story.open(folder / "store", files)

    return work


def crash_after_failure(folder: Path, fail_at: int, *, limit_per_point: int, points: int | None = None) -> int:
    """Let the disk refuse one operation, go on in the same process, and crash that everywhere."""
    story = STORIES["one swap segment"]
    (folder / "clean").mkdir()
    story.build(folder / "clean" / "store")
    story.compact(folder / "clean", LocalFiles())
    with story.open(folder / "clean" / "store") as store:
        final = story.records(store)
    (folder / "work").mkdir()
    story.build(folder / "work" / "store")
    with story.open(folder / "work" / "store") as store:
        plain = answers(store, COUNT + 11)
    files = FailingFiles(fail_at=fail_at, errno=errno.EIO)
    recording = record(folder / "work", stubborn(story), files=files)
    every = range(len(recording.operations) + 1)
    chosen = None if points is None else random.Random(fail_at).sample(every, points)
    explore_crashes(recording, Expected(story, plain, final).check, limit_per_point=limit_per_point, points=chosen)
    return files.count


@pytest.mark.parametrize("fail_at", [5, 16, 23, 31, 40])
def test_a_crash_after_a_failure_and_a_second_try_loses_nothing(fail_at: int, tmp_path: Path) -> None:
    assert crash_after_failure(tmp_path, fail_at, limit_per_point=2, points=6) >= fail_at


def test_removals_that_were_lost_are_durable_before_the_log_that_tells_of_them_goes(tmp_path: Path) -> None:
    """A crash after the last step was noted, but before the removals were synced; then a crash of the recovery."""
    recording, expected = recorded(STORIES["three swap segments"], tmp_path / "first")
    texts = [str(operation) for operation in recording.operations]
    point = max(place for place, text in enumerate(texts) if text.startswith("sync ") and "COMPACTION" in text) + 1
    model = CrashModel(recording)
    model.advance_to(point)
    fates = {change: LOST if change.operation.kind == "unlink" else KEPT for change in model.pending}
    assert LOST in fates.values()
    repeat_crash(recording, model.picks(fates), tmp_path / "second")
    again = record(tmp_path / "second", expected.story.recover)
    explore_crashes(again, expected.check, limit_per_point=10)


@pytest.mark.parametrize("name", ["one swap segment", "every other segment"])
def test_a_last_step_that_is_damaged_at_any_moment_loses_nothing(name: str, tmp_path: Path) -> None:
    """Most steps are simply done again; a commit of which the names were given already is taken back, and said."""
    recording, expected = recorded(STORIES[name], tmp_path / "first")
    undone = refused = 0
    for point in range(len(recording.operations) + 1):
        copy = tmp_path / str(point)
        repeat_crash(recording, {0: point}, copy)
        log = copy / "store" / "COMPACTION"
        if not log.exists():
            continue
        flip(log, log.stat().st_size - 1)
        try:
            with expected.story.open(copy / "store") as store:
                expected.same_answers(store)
                assert store.verify().is_sound
                damage = store.compaction_recovery.damage
                undone += damage is not None and "has its name" in damage.found
                assert not isinstance(store.resume(), Failed)
                expected.same_answers(store)
        except CorruptData:
            # The file is damaged as a whole, and two generations of a segment are there.
            refused += 1
    assert undone >= 1
    assert refused == 0


def test_a_compaction_log_that_has_lost_whole_cycles_is_dropped_and_nothing_is_lost(tmp_path: Path) -> None:
    recording, expected = recorded(STORIES["one swap segment"], tmp_path / "first")
    texts = [str(operation) for operation in recording.operations]
    begun = next(place for place, text in enumerate(texts) if text.startswith("rename") and "COMPACTION.tmp" in text)
    swapped = [place for place, text in enumerate(texts) if text.startswith("unlink ") and ".log" in text]
    repeat_crash(recording, {0: begun + 1}, tmp_path / "begun")
    whole = (tmp_path / "begun" / "store" / "COMPACTION").read_bytes()
    repeat_crash(recording, {0: swapped[-1] + 1}, tmp_path / "second")
    (tmp_path / "second" / "store" / "COMPACTION").write_bytes(whole)
    with expected.story.open(tmp_path / "second" / "store") as store:
        expected.same_answers(store)
        outcome = store.resume()
        assert isinstance(outcome, Failed)
        assert isinstance(outcome.error, PlanDoesNotFit)
        assert "drop" in str(outcome.error)
        done(store.drop_compaction())
        expected.story.carry_out(store)
        expected.same_answers(store)


@pytest.mark.soak
@pytest.mark.parametrize("name", STORIES)
def test_soak_every_loss_at_every_operation(name: str, tmp_path: Path) -> None:
    crash_everywhere(STORIES[name], tmp_path, seed=2, limit_per_point=64)


PARTS = 12


@pytest.mark.soak
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("name", STORIES)
def test_soak_crashes_of_recoveries_from_every_operation(name: str, part: int, tmp_path: Path) -> None:
    """The parts together crash after each operation; of the states that a crash leaves there, a sample is recovered.

    Each recovery is crashed at each of its own operations. Work is linear in recoveries: all states of a point times
    all of each recovery's own would be hundreds of thousands of stores, of which each takes some 40 ms to check.
    """
    story = STORIES[name]
    recording, expected = recorded(story, tmp_path)
    points = range(part, len(recording.operations) + 1, PARTS)
    assert explore_recovery(recording, story.recover, expected.check, seed=part, recoveries=8, limit_per_point=4,
                            points=points) >= min(8, len(points))


@pytest.mark.soak
@pytest.mark.parametrize("fail_at", range(1, 96))
def test_soak_crashes_after_a_failure(fail_at: int, tmp_path: Path) -> None:
    crash_after_failure(tmp_path, fail_at, limit_per_point=4)
