# SPDX-License-Identifier: Apache-2.0
"""What an owner truncates or compacts while a reader of its folder works is no damage."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from compactlib.budget import Budget
from compactlib.clock import SystemClock
from compactlib.errors import Closed, NotFound
from compactlib.raftlog import (
    DeadEntry,
    Entry,
    EveryNMinors,
    LogOptions,
    LogReader,
    RaftLogStore,
    SeedPolicy,
    SegmentLimits,
    SegmentLog,
    SnapshotMeta,
    StoreOptions,
    open_segment,
)
from compactlib.raftlog.policy import SegmentRef


def options(keep_links_seconds: float = 0.0) -> LogOptions:
    return LogOptions(limits=SegmentLimits(max_entries=4), trigger=EveryNMinors(0),
                      keep_links_seconds=keep_links_seconds)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[SegmentLog]:
    with SegmentLog(tmp_path, options()) as log:
        log.append([Entry(index, 1, b"x") for index in range(1, 21)])
        log.snapshot(12, range(1, 13))
        yield log


class Meanwhile(SystemClock):
    """Does something the first time that a budget reads it."""

    def __init__(self, do: Callable[[], None]) -> None:
        self._waiting = [do]

    def now(self) -> float:
        while self._waiting:
            self._waiting.pop()()
        return super().now()

    @property
    def budget(self) -> Budget:
        return Budget(deadline=1e12, clock=self)


def keeping(log: SegmentLog, *live: int) -> None:
    log.snapshot(log.state.index, live)
    assert log.compact(policy=SeedPolicy()).done


def test_view_of_reader_has_no_damage_when_owner_has_compacted(log: SegmentLog) -> None:
    with LogReader(log.folder) as reader:
        keeping(log, 1, 5, 9)
        view = reader.view()
        assert not view.damaged
        assert view.segments == log.view().segments


def test_view_of_reader_has_no_damage_when_another_thread_refreshes(log: SegmentLog) -> None:
    steps: list[Callable[[], None]] = []

    class Shared(LogReader):
        @property
        def refs(self) -> tuple[SegmentRef, ...]:
            if steps:
                steps.pop()()
            return super().refs

    with Shared(log.folder) as reader:
        def refreshed() -> None:
            keeping(log, 1, 5, 9)
            reader.refresh()

        steps.append(refreshed)
        assert not reader.view().damaged
        assert not steps


def test_view_of_reader_has_no_damage_when_owner_has_truncated(log: SegmentLog) -> None:
    with LogReader(log.folder) as reader:
        log.append([Entry(14, 2, b"y")])
        log.sync()
        view = reader.view()
        assert not view.damaged
        assert [each.ref for each in view.segments] == list(log.refs)


def test_entry_that_dies_after_each_refresh_is_dead(log: SegmentLog) -> None:
    steps: list[Callable[[], None]] = []

    class Overtaken(LogReader):
        def refresh(self) -> None:
            super().refresh()
            if steps:
                steps.pop()()

    with Overtaken(log.folder) as reader:
        keeping(log, 1, 2, 5, 6, 9)
        steps.append(lambda: keeping(log, 1, 9))
        assert reader.read(5) == DeadEntry(5, 12)
        assert not steps


def test_link_that_is_removed_while_it_is_opened_is_not_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with SegmentLog(tmp_path, options(keep_links_seconds=1e6)) as log:
        log.append([Entry(index, 1, b"x") for index in range(1, 21)])
        log.snapshot(12, [1, 5, 9])
        keeping(log, 1, 5, 9)
    asked = 0

    def islink(path: str) -> bool:
        nonlocal asked
        asked += 1
        if asked == 2:
            os.unlink(path)
        return False

    monkeypatch.setattr(os.path, "islink", islink)
    with pytest.raises(NotFound):
        open_segment(tmp_path, 2)


def test_segment_read_by_an_older_list_leaves_no_removed_file_open(tmp_path: Path) -> None:
    with SegmentLog(tmp_path, options(keep_links_seconds=1e6)) as log:
        log.append([Entry(index, 1, b"x") for index in range(1, 21)])
        log.snapshot(12, range(1, 13))
        reading = log.read_many([1, 5, 9])
        next(reading)
        keeping(log, 1, 2, 5, 6, 9)
        assert [answer.index for answer in reading] == [5, 9]
        keeping(log, 1, 9)
        held = [os.path.realpath(each) for each in Path("/proc/self/fd").iterdir()]
        assert not [path for path in held if path.startswith(str(tmp_path)) and path.endswith("(deleted)")]


def test_segment_that_is_opened_during_a_refresh_leaves_no_removed_file_open(
        log: SegmentLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opening = os.open
    with LogReader(log.folder) as reader:
        def opened(path: str, flags: int) -> int:
            monkeypatch.undo()
            reader.refresh()
            return opening(path, flags)

        monkeypatch.setattr(os, "open", opened)
        assert reader.read(5) == Entry(5, 1, b"x")
        keeping(log, 1, 9)
        reader.refresh()
        held = [os.path.realpath(each) for each in Path("/proc/self/fd").iterdir()]
        assert not [path for path in held if path.startswith(str(tmp_path)) and path.endswith("(deleted)")]


def test_reader_that_is_closed_during_a_refresh_opens_no_file_later(
        log: SegmentLog, monkeypatch: pytest.MonkeyPatch) -> None:
    opening, reader = os.open, LogReader(log.folder)
    closing, entries = threading.Thread(target=reader.close), reader.scan()

    def opened(*given: Any) -> int:
        monkeypatch.undo()
        closing.start()
        closing.join(0.1)
        return opening(*given)

    next(entries)
    monkeypatch.setattr(os, "open", opened)
    with contextlib.suppress(Closed):
        reader.refresh()
    closing.join()
    with pytest.raises(Closed):
        list(entries)


def test_view_of_a_log_that_is_closed_meanwhile_has_no_damage(log: SegmentLog) -> None:
    with pytest.raises(Closed):
        log.view(budget=Meanwhile(log.close).budget)


def test_verify_of_a_store_leaves_out_a_log_that_is_removed_meanwhile(tmp_path: Path) -> None:
    with RaftLogStore(tmp_path, StoreOptions(background=False)) as store:
        for name in ("a", "b"):
            log = store.log(name)
            log.append([Entry(index, 1, b"x") for index in range(1, 21)])
            log.snapshot(12, [2, 4], [b"state"])
            store.flush()
        report = store.verify(budget=Meanwhile(lambda: store.remove("a")).budget)
        assert report.findings == ()
        assert report.records == store.verify().records > 0


def test_verify_of_a_log_that_is_removed_meanwhile_has_no_damage(tmp_path: Path) -> None:
    with RaftLogStore(tmp_path, StoreOptions(background=False)) as store:
        log = store.log("a")
        log.append([Entry(index, 1, b"x") for index in range(1, 21)])
        log.snapshot(12, [], [b"state"])
        with pytest.raises(Closed):
            log.verify(budget=Meanwhile(lambda: store.remove("a")).budget)


def test_verify_of_a_log_that_is_removed_before_its_folder_is_listed_raises_closed(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with RaftLogStore(tmp_path, StoreOptions(background=False)) as store:
        log, listdir = store.log("a"), os.listdir

        def listed(path: str) -> list[str]:
            monkeypatch.undo()
            store.remove("a")
            return listdir(path)

        monkeypatch.setattr(os, "listdir", listed)
        with pytest.raises(Closed):
            log.verify()


def test_verify_of_reader_has_no_damage_when_snapshots_are_recorded_meanwhile(tmp_path: Path) -> None:
    with RaftLogStore(tmp_path, StoreOptions(background=False)) as store:
        log, left = store.log("a"), [20, 12, 5]
        log.append([Entry(index, 1, b"x") for index in range(1, 21)])
        store.flush()

        class Overtaken(LogReader):
            @property
            def state(self) -> SnapshotMeta:
                if left:
                    log.snapshot(left.pop(), [])
                    self.refresh()
                return super().state

        with Overtaken(log.folder) as reader:
            assert reader.verify().is_sound
            assert 12 not in left


def test_verify_of_a_store_does_not_pass_a_closed_log_that_has_lost_a_live_entry(tmp_path: Path) -> None:
    with RaftLogStore(tmp_path, StoreOptions(background=False, log=options())) as store:
        log = store.log("a")
        log.append([Entry(index, 1, b"x") for index in range(1, 21)])
        store.flush()
        log.snapshot(12, [1, 6])
        os.unlink(Path(log.folder, f"{2:016d}.segment"))
        log.close()
        with pytest.raises(Closed):
            store.verify()
        store.log("a")
        assert not store.verify().is_sound


def test_state_that_is_replaced_by_an_equal_one_while_it_is_opened_is_not_lost(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with RaftLogStore(tmp_path, StoreOptions(background=False)) as store:
        log = store.log("a")
        log.append([Entry(index, 1, b"x") for index in range(1, 21)])
        log.snapshot(12, [], [b"state"])
        before, opening = log.state, os.open

        def opened(path: str, flags: int) -> int:
            monkeypatch.undo()
            log.snapshot(12, [], [b"state"])
            return opening(path, flags)

        monkeypatch.setattr(os, "open", opened)
        with log.open_state() as state:
            assert b"".join(state.pieces()) == b"state"
        with pytest.raises(NotFound):
            log.open_state(before)


def test_state_of_a_log_that_is_closed_and_opened_again_while_it_is_opened_is_not_lost(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with RaftLogStore(tmp_path, StoreOptions(background=False)) as store:
        log, opening = store.log("a"), os.open
        log.append([Entry(index, 1, b"x") for index in range(1, 21)])
        log.snapshot(12, [], [b"early"])

        def opened(path: str, flags: int) -> int:
            monkeypatch.undo()
            log.close()
            store.log("a").snapshot(20, [], [b"late"])
            return opening(path, flags)

        monkeypatch.setattr(os, "open", opened)
        with pytest.raises(Closed):
            log.open_state()


def test_state_of_a_checkpoint_that_was_replaced_since_is_not_found(tmp_path: Path) -> None:
    with RaftLogStore(tmp_path, StoreOptions(background=False)) as store:
        log = store.log("a")
        log.append([Entry(index, 1, b"x") for index in range(1, 21)])
        log.checkpoint(5, [], [b"early"])
        listed = log.checkpoints
        log.snapshot(12, [], [b"late"])
        with pytest.raises(NotFound):
            log.open_state(*listed)


def test_verify_during_which_flushes_remove_the_listed_files_of_the_wal(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with RaftLogStore(tmp_path, StoreOptions(background=False)) as store:
        log, left, listdir = store.log("a"), list(range(9)), os.listdir
        log.append([Entry(1, 1, b"x")])
        store.flush()

        def listed(path: str) -> list[str]:
            names = listdir(path)
            if path.endswith("wal") and left:
                left.pop()
                log.append([Entry(log.last_index + 1, 1, b"x")])
                store.flush()
            return names

        with LogReader(log.folder) as reader:
            monkeypatch.setattr(os, "listdir", listed)
            assert reader.verify().findings == ()
            assert not left
