# SPDX-License-Identifier: Apache-2.0
"""Power failures at chosen places, where the hazards draw theirs: after a kill in a change, and within a write.

Writes of a killed process without a sync are in the page cache: its successor reads them, builds on them, and may lose
them. The rest of a torn write must not return after a shorter write over it.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest

from compactlib.files import Files
from compactlib.testing import (
    Bench,
    Driver,
    Effort,
    FilesInFront,
    Journal,
    RecordingFiles,
    Request,
    World,
    explore_crashes,
    explore_kills,
    record,
)
from tests.harness import effort as efforts
from tests.promises.drivers.blob_store import POLICIES, RETENTION, BlobStoreDriver
from tests.promises.drivers.drawn import LAST, Drawn
from tests.promises.drivers.local_log import LocalLogDriver
from tests.promises.drivers.local_objects import LocalObjectsDriver
from tests.promises.drivers.raft_log_store import RaftLogStoreDriver
from tests.promises.drivers.segment_log import SegmentLogDriver


@attrs.frozen
class Story:
    """Acts before, the killed act, and an act of the successor; each as its first choices.

    Attributes:
        driver: of the store.
        before: done, and durable. If none, the process that is killed is also the first that opens the store.
        killed: the act that is killed.
        after: the successor's acts.
        seed: of the successor's choices.
        losses: combinations of lost changes at each point of a power failure.
    """

    driver: Driver[Any]
    before: Sequence[tuple[Any, ...]]
    killed: tuple[Any, ...]
    after: Sequence[tuple[Any, ...]] = ()
    seed: int = 20
    losses: int = 1


STORIES = {
    "blob_store-compaction": Story(BlobStoreDriver(), [("write",)] * 5, ("compact", RETENTION + 1.0, POLICIES[0]),
                                   losses=3),
    "blob_store-writes": Story(BlobStoreDriver(), [("write",)], ("write",), [("write",)]),
    "segment_log-compaction": Story(SegmentLogDriver(), [("append",), ("append",), ("snapshot",)], ("compact",),
                                    [("append",)]),
    "raft_log_store-opening": Story(RaftLogStoreDriver(), [], ("append",), [("append",)]),
    "raft_log_store-compaction": Story(RaftLogStoreDriver(), [("snapshot",), ("append",), ("snapshot",)],
                                       ("upkeep", "compact"), [("append",)]),
    "local_objects-offers": Story(LocalObjectsDriver(), [], ("offer",), [("offer",)] * 2, seed=23),
    "raft_log_store-removal": Story(RaftLogStoreDriver(), [("append",), ("snapshot",)], ("remove",), [("append",)]),
}


@pytest.mark.parametrize("name", STORIES)
def test_successor_builds_on_durable_state(name: str, tmp_path: Path, effort: efforts.Effort) -> None:
    """Both lives' acknowledged state is kept, for any lost changes of the first life."""
    story = STORIES[name]
    driver, bench = story.driver, Bench(story.driver, tmp_path / "after", Effort())
    prepared, before = tmp_path / "before", Journal()
    prepared.mkdir()

    def live(folder: Path, files: Files | None, journal: Journal, acts: Sequence[tuple[Any, ...]],
             seed: int) -> None:
        with bench.opened(World(folder, behind=files)) as store:
            for number, act in enumerate(acts, seed):
                driver.act(store, Drawn(number, act), journal)

    def first(folder: Path, files: RecordingFiles) -> None:
        live(folder, files, Journal(files.acknowledge), [story.killed], 10)

    def successor(folder: Path, files: RecordingFiles) -> None:
        live(folder, files, Journal(files.acknowledge), story.after, story.seed)

    def check(folder: Path, notes: Sequence[Any]) -> None:
        world, journal = bench.after_power(folder, notes)
        journal.changes[:0] = before.changes
        bench.inspect(world, journal)

    if story.before:
        live(prepared, None, before, story.before, 0)
    syncs = list[int]()
    changes = itertools.count(1)

    def note(request: Request, act: Callable[[], Any]) -> Any:
        if request.changes and (number := next(changes)) and request.kind.startswith("sync"):
            syncs.append(number)
        return act()

    live(shutil.copytree(prepared, tmp_path / "whole"), FilesInFront(note), Journal(), [story.killed], 10)

    def fill(folder: Path) -> None:
        shutil.copytree(prepared, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("LOCK"))

    syncs = syncs[::1 if effort.full else max(len(syncs) // 8, 1)]
    states = explore_kills(first, successor, check, points=syncs, limit_per_point=story.losses, prepare=fill,
                           power_failures=effort(8, 1000))
    assert states > len(syncs), "the successor has changed nothing"


LOSSES = {
    "segment_log-compaction": Story(
        SegmentLogDriver(), [("append",), ("append",), ("append",), ("overwrite",), ("append",), ("snapshot", LAST)],
        ("compact",), losses=4),
    "blob_store-compaction": Story(BlobStoreDriver(), [("write",)] * 5, ("compact", RETENTION + 1.0, POLICIES[0]),
                                   losses=3),
}


@pytest.mark.parametrize("name", LOSSES)
def test_change_survives_any_loss(name: str, tmp_path: Path) -> None:
    """The power fails at each point of one act, and any part of the undurable changes is kept."""
    story = LOSSES[name]
    driver, bench, before = story.driver, Bench(story.driver, tmp_path, Effort()), Journal()
    folder = tmp_path / "life"
    folder.mkdir()
    with bench.opened(World(folder)) as store:
        for number, act in enumerate(story.before):
            driver.act(store, Drawn(number, act), before)

    def live(folder: Path, files: RecordingFiles) -> None:
        with bench.opened(bench.recorded(folder, files)) as store:
            driver.act(store, Drawn(10, story.killed), Journal(files.acknowledge))

    def check(folder: Path, notes: Sequence[Any]) -> None:
        world, journal = bench.after_power(folder, notes)
        journal.changes[:0] = before.changes
        bench.inspect(world, journal)

    recording = record(folder, live)
    assert explore_crashes(recording, check, limit_per_point=story.losses) > len(recording.operations)


TORN: dict[str, tuple[Driver[Any], Sequence[str], Sequence[tuple[Any, ...]]]] = {
    "blob_store": (BlobStoreDriver(), ["write"], [("erase", 0.0), ("write",)]),
    "segment_log": (SegmentLogDriver(), ["append"], [("append",), ("compact",)]),
    "raft_log_store": (RaftLogStoreDriver(), ["append"], [("append",), ("upkeep", "compact")]),
    "local_log": (LocalLogDriver(), ["propose"], [("propose",), ("compact",)]),
}


@pytest.mark.parametrize("name", TORN)
def test_torn_write_stays_away(name: str, tmp_path: Path) -> None:
    """A torn tail is neither found again nor called damage, after later writes and a compaction."""
    driver, before, after = TORN[name]
    bench = Bench(driver, tmp_path, Effort())

    def live(folder: Path, files: RecordingFiles) -> None:
        journal = Journal(files.acknowledge)
        with bench.opened(bench.recorded(folder, files)) as store:
            for number, kind in enumerate(before):
                driver.act(store, Drawn(number, [kind]), journal)

    def check(folder: Path, notes: Sequence[Any]) -> None:
        world, journal = bench.after_power(folder, notes)
        with bench.opened(world) as store:
            for number, act in enumerate(after, len(before)):
                driver.check(store, journal, damage="")
                driver.act(store, Drawn(number, act), journal)
        bench.inspect(world, journal)

    folder = tmp_path / "life"
    folder.mkdir()
    recording = record(folder, live)
    written = [number for number, operation in enumerate(recording.operations, 1) if operation.kind == "write"]
    assert explore_crashes(recording, check, points=written, limit_per_point=8) > len(written)
