# SPDX-License-Identifier: Apache-2.0
"""What lies around the branch protocol: clocks that jump, files of others, a power failure, values of every size."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest

from compactlib.clock import ManualClock
from compactlib.errors import CompactlibError, InvalidInput
from compactlib.files import Files
from compactlib.kv import MemoryStore, SqliteStore
from compactlib.objects import LocalObjects, MemoryObjects
from compactlib.outcome import Done, Failed
from compactlib.runtime import RecordingObserver
from compactlib.staging import CommittedRanges, Repository
from compactlib.staging.compaction.reclaim.cleanup import TokenCleaner
from compactlib.staging.compaction.reclaim.garbage import collect_garbage
from compactlib.testing import RecordingFiles, explore_crashes, record
from tests.staging.world import NOW, World

DAY = 86_400.0


# --- clocks


@pytest.mark.parametrize("jump", [-400 * DAY, -DAY, DAY, 400 * DAY])
def test_a_clock_that_jumps_once_takes_nothing_and_leaves_nothing_for_ever(jump: float) -> None:
    """Everything happens once under a clock that is wrong: tokens and marks are dated by it, cleaners judge by it."""
    observer = RecordingObserver()
    world = World(observer=observer)
    branch = world.branch({"a": "1"})
    branch.put(b"before", b"1")
    right = world.clock.now()
    world.clock.set_now(right + jump)
    cleaner = TokenCleaner(world.context)
    branch.put(b"during", b"1")
    assert not isinstance(world.repo.compact(), Failed)
    branch.commit("during")
    branch.put(b"staged", b"1")
    in_flight = world.context.tokens.issue("main")
    for outcome in (cleaner.run(), cleaner.sweep(), collect_garbage(world.context)):
        assert not isinstance(outcome, Failed), outcome
    world.clock.set_now(right + 1)
    assert branch.list().keys == (b"a", b"before", b"during", b"staged")
    assert world.repo.branch("main").head().get(b"during").data == b"1"
    world.repo.audit()
    # Nothing is stuck: a few days later all that was dropped is gone, the window is open, garbage is collected.
    for _ in range(4):
        world.clock.advance(2 * DAY)
        for outcome in (cleaner.sweep(), cleaner.run(), collect_garbage(world.context)):
            assert not isinstance(outcome, Failed), outcome
    assert not list(world.context.tokens.dropped())
    assert in_flight not in {mark.token for mark in world.context.tokens.registered()}
    assert isinstance(world.repo.compact(), Done)
    assert branch.list().keys == (b"a", b"before", b"during", b"staged")
    if jump == 400 * DAY:
        assert "staging_mark_dated_anew" in [name for name, _ in observer.events]


def test_a_collection_whose_clock_is_ahead_goes_by_the_clock_of_the_objects() -> None:
    clock, store = ManualClock(1000 * DAY), MemoryStore()
    objects = MemoryObjects(clock=clock)
    main = Repository(store, CommittedRanges(objects, clock=clock), clock=clock).create_branch("main")
    # A compaction has made its files and not yet named them.
    made = CommittedRanges(objects, clock=clock).apply(None, []).metarange_id
    main.put(b"k", b"v")
    ahead = ManualClock(1003 * DAY)
    outcome = collect_garbage(Repository(store, CommittedRanges(objects, clock=ahead), clock=ahead).context)
    assert not isinstance(outcome, Failed | Done), outcome
    assert list(CommittedRanges(objects).scan(made)) == []


def test_a_mark_of_a_token_in_use_is_taken_back() -> None:
    world = World()
    branch = world.branch({"a": "1"}, staged={"k": "1"})
    world.context.tokens.mark_dropped(dict.fromkeys(branch.record().tokens, "main"))
    with pytest.raises(AssertionError, match="dropped"):
        world.repo.audit()
    TokenCleaner(world.context, grace_seconds=0).run()
    world.repo.audit()
    assert branch.get(b"k").data == b"1"


# --- a power failure


def test_a_commit_that_uses_a_range_again_which_somebody_is_still_making(tmp_path: Path) -> None:
    """A compaction stands still between the link of its range and the sync of the folder; a commit makes the same."""

    class Interrupted:
        def __init__(self, files: Files) -> None:
            self.files, self.armed = files, False

        def sync_folder(self, path: str) -> None:
            if self.armed and str(path).endswith("/ranges"):
                self.armed = False
                commit.pop()()
            self.files.sync_folder(path)

        def __getattr__(self, name: str) -> object:
            return getattr(self.files, name)

    commit: list[Callable[[], None]] = []

    def work(folder: Path, files: RecordingFiles) -> None:
        store, names = MemoryStore(), itertools.count()

        def repo(disk: Files) -> Repository:
            objects = LocalObjects(folder / "o", files=disk, new_name=lambda: f"n{next(names)}")
            committed = CommittedRanges(objects, new_name=lambda: f"m{next(names)}")
            return Repository(store, committed, rng=Random(next(names)))

        def commits() -> None:
            again = repo(files)
            context = again.context
            again.branch("main").commit("acknowledged")
            files.acknowledge(context.commits.metarange_of(context.branches.read("main").record.commit_id))

        commit.append(commits)
        repo(files).create_branch("main").put(b"k", b"v")
        slow = Interrupted(files)
        compacting = repo(slow)  # type: ignore[arg-type]
        slow.armed = True
        compacting.compact()

    def check(folder: Path, acknowledged: Sequence[str]) -> None:
        for metarange_id in acknowledged:
            found = CommittedRanges(LocalObjects(folder / "o")).scan(metarange_id)  # type: ignore[arg-type]
            assert [key for key, _ in found] == [b"k"]

    assert explore_crashes(record(tmp_path, work), check) > 30


# --- files of others


def test_files_of_others_in_the_folders_stop_no_collection(tmp_path: Path) -> None:
    clock = ManualClock(1e10)
    repo = Repository(MemoryStore(), CommittedRanges(LocalObjects(tmp_path), clock=clock), clock=clock)
    main = repo.create_branch("main")
    for number in range(2):
        main.put(b"k", b"%d" % number)
        main.commit("c")
    repo.delete_branch("main")
    for path in [*tmp_path.glob("ranges/*"), *tmp_path.glob("metaranges/*")]:
        os.utime(path, (0, 0))
    for folder in ("ranges", "metaranges", "reused", "doomed", "incoming"):
        (tmp_path / folder).mkdir(exist_ok=True)
        for name in (".DS_Store", "Thumbs.db", "with a space~", "f" * 39, os.fsdecode(b"\xff"), "link"):
            path = tmp_path / folder / name
            if name == "link":
                os.symlink(tmp_path / ".incoming", path)
            else:
                path.write_bytes(b"\xff\x00")
            os.utime(path, (0, 0), follow_symlinks=False)
        (tmp_path / folder / "lost+found").mkdir()
        (tmp_path / folder / "lost+found" / "x").write_bytes(b"")
    outcome = collect_garbage(repo.context)
    assert isinstance(outcome, Done), outcome
    assert outcome.stats.metaranges_deleted == 2
    for folder in ("ranges", "metaranges"):
        assert {"Thumbs.db", "with a space~", "f" * 39, "link"} <= {*os.listdir(tmp_path / folder)}
    again = repo.create_branch("again")
    again.put(b"k", b"1")
    assert isinstance(again.commit("c"), Done)
    assert isinstance(repo.compact(branch="again", policy=NOW).to_dicts(), list)


# --- keys and values


def test_keys_of_every_character_and_values_of_every_size_work_or_are_named(tmp_path: Path) -> None:
    """Through a compaction, a commit, a merge, and opening again."""
    path = str(tmp_path / "state.sqlite")
    keys = [bytes([byte]) for byte in range(256)] + [character.encode() for character in map(chr, range(32, 0x250))]
    keys += [b"", b"k" * 65_536, b"k" * 65_537, b"a/../b", b"a\x00b", b"\xff" * 100]
    refused = []
    with contextlib.closing(SqliteStore(path)) as store:
        main = Repository(store, CommittedRanges(LocalObjects(tmp_path / "o"))).create_branch("main")
        unusual = [key for key in dict.fromkeys(keys) if not 0 < len(key) < 1000]
        for key in unusual:
            try:
                main.put(key, key[:100])
            except CompactlibError:
                refused.append(key)
        main.put_many({key: key for key in keys if key not in unusual})
        main.put(b"empty", b"")
        with pytest.raises(InvalidInput, match="100000000"):
            main.put(b"large", bytes(100_000_000))
    written = {key for key in keys if key not in refused}
    assert {b"", b"k" * 65_537} <= {*refused} <= {b"", b"k" * 65_536, b"k" * 65_537}
    for step in ("compact", "commit", "branch"):
        with contextlib.closing(SqliteStore(path)) as store:
            repo = Repository(store, CommittedRanges(LocalObjects(tmp_path / "o")))
            main = repo.branch("main")
            assert {entry.key for entry in main.entries() if entry.record is not None} == written | {b"empty"}
            assert main.get(b"empty").data == b""
            match step:
                case "compact":
                    assert isinstance(repo.compact(), Done)
                case "commit":
                    assert isinstance(main.commit("all of it", metadata={chr(c): chr(c) for c in range(0x250)}), Done)
                case _:
                    for name in map(chr, (*range(0x80), *range(0x80, 0x250, 40))):
                        try:
                            repo.create_branch(name, "main")
                        except CompactlibError:
                            assert ord(name) < 32 or ord(name) == 127, name
            repo.audit()


@pytest.mark.parametrize("value", [None, 5, ["list"], object()])
def test_wrong_types_are_named(value: object) -> None:
    world = World()
    branch, repo = cast("Any", world.branch({"a": "1"})), cast("Any", world.repo)
    attempts: list[Callable[[], object]] = [
        lambda: branch.put(value, b"1"), lambda: branch.get(value), lambda: branch.delete(value),
        lambda: branch.put(b"k", value), lambda: branch.get_many([value]), lambda: branch.delete_many([value]),
        lambda: branch.reset_key(value), lambda: branch.commit("x", metadata={"key": value}),
        lambda: branch.commit("x", metadata={value: "value"}) if isinstance(value, int) else branch.get(value)]
    branch.put(b"staged", b"1")
    attempts += [lambda: repo.branch(value), lambda: branch.merge(value), lambda: branch.commit(value),
                 lambda: branch.hard_reset(value),
                 lambda: Repository(world.store, world.committed, name=cast("Any", value))]
    for attempt in attempts:
        with pytest.raises(CompactlibError):
            attempt()
    assert branch.list().keys == (b"a", b"staged")
    world.repo.audit()
