# SPDX-License-Identifier: Apache-2.0
"""A `SegmentLog` whose disk refuses one step of anything, by whomever: what `sync` has said is durable is there."""

from __future__ import annotations

import contextlib
import errno
import random
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from compactlib.clock import ManualClock
from compactlib.errors import StorageError
from compactlib.raftlog import DropDead, Entry, LogOptions, SegmentLimits, SegmentLog
from compactlib.raftlog.log import tail
from compactlib.raftlog.log.folder import read_folder
from compactlib.raftlog.model.names import segment_name
from compactlib.runtime import Budget
from tests.harness.effort import Effort
from tests.raftlog.wrapped_files import UnsyncedFiles, WatchedFiles
from tests.tools.faults.plan import FailingFiles


class Life:
    """A log, and what has to be in it.

    Args:
        folder: the log's.
        rng: chooses everything.
        files: the disk.
    """

    def __init__(self, folder: Path, rng: random.Random, files: FailingFiles) -> None:
        self._folder, self._rng, self._files = folder, rng, files
        self.appended: dict[int, Entry] = {}
        self.synced = 0
        self.snapshot = 0
        self.perhaps_dead: set[int] = set()
        self.open()

    def open(self) -> None:
        limits = SegmentLimits(max_entries=self._rng.choice((2, 4, 9)))
        self.log = SegmentLog(self._folder, LogOptions(limits=limits, files=self._files, clock=ManualClock(1.0),
                                                       keep_links_seconds=0.0))

    def write(self) -> None:
        """As the one who appends, who is told what becomes of it."""
        last = max(self.appended, default=0)
        try:
            if self._rng.random() < 0.4:
                self.log.sync()
                self.synced = last
                return
            entries = [Entry(index, 1, b"%d" % index) for index in range(last + 1, last + self._rng.choice((2, 4, 12)))]
            self.log.extend(entries)
            self.appended.update((entry.index, entry) for entry in entries)
        except StorageError:
            last = max(self.log.last_index or 0, self.snapshot)
            assert last >= self.synced
            self.appended = {index: entry for index, entry in self.appended.items() if index <= last}

    def do_something_else(self) -> None:
        """As somebody else, who may be told or not."""
        index = self._rng.randint(0, max(self.appended, default=0))
        acts: list[Callable[[], object]] = [
            lambda: self.log.read(index), lambda: list(self.log.entries(index)), self.log.view, self.log.verify,
            self.log.audit, self.log.reclaim, lambda: self.log.compact(policy=DropDead()),
            lambda: self.log.compact(policy=self.log.policy), self.take_snapshot]
        with contextlib.suppress(StorageError):
            self._rng.choice(acts)()

    def take_snapshot(self) -> None:
        if self.synced <= self.snapshot:
            return
        below = [index for index in self.appended if index <= self.synced and index not in self.perhaps_dead]
        live = [index for index in below if self._rng.random() < 0.6]
        self.perhaps_dead |= set(below) - set(live)
        self.snapshot = self.synced
        self.log.record_snapshot(self.synced, live)

    def open_again(self) -> None:
        """With other settings; what was not synced may be lost if the disk says so."""
        with contextlib.suppress(StorageError):
            self.log.close()
            self.synced = max(self.appended, default=0)
        try:
            self.open()
        except StorageError:
            self.open()
        last = max(self.log.last_index or 0, self.snapshot)
        assert last >= self.synced
        self.appended = {index: entry for index, entry in self.appended.items() if index <= last}

    def check(self) -> None:
        """What was synced is there."""
        for index, entry in self.appended.items():
            if index <= self.synced:
                found = self.log.read(index)
                assert found == entry or index in self.perhaps_dead, f"{found}, where sync has said {entry} is durable"


def live(seed: int, files: FailingFiles) -> tuple[int, int]:
    """One life; how often the disk was changed before the first step, and until the last."""
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        life = Life(Path(folder) / "log", rng, files)
        before = files.count
        for _ in range(30):
            chance = rng.random()
            (life.write if chance < 0.6 else life.do_something_else if chance < 0.95 else life.open_again)()
        with contextlib.suppress(StorageError):
            life.check()
        life.open_again()
        life.check()
        life.log.close()
    return before, files.count


def test_what_sync_has_called_durable_is_there_whomever_the_disk_refuses_then(effort: Effort) -> None:
    for seed in range(effort(6, 1_000)):
        (before, changes), rng = live(seed, FailingFiles(UnsyncedFiles())), random.Random(seed)
        for _ in range(effort(4, 20)):
            number, half = rng.choice((errno.ENOSPC, errno.EIO)), rng.random() < 0.5
            live(seed, FailingFiles(UnsyncedFiles(), fail_at=rng.randint(before + 1, changes), errno=number,
                                    short_write=half))


class Writer:
    """A thread that appends to a log which others append to as well.

    Args:
        log: the log.
        name: what it writes.
    """

    def __init__(self, log: SegmentLog, name: bytes) -> None:
        self._log, self._name, self._thread = log, name, ThreadPoolExecutor(1)
        self._waiting: list[Entry] = []
        self.acknowledged: list[Entry] = []

    def perform(self, act: Callable[[], object]) -> None:
        """Do something in this thread; a disk that refuses ends what waits for a sync."""
        try:
            self._thread.submit(act).result()
        except StorageError:
            self.forget()

    def forget(self) -> None:
        """What waits for a sync may be lost."""
        self._waiting = []

    def append(self) -> None:
        entry = Entry((self._log.last_index or 0) + 1, 1, self._name)
        self._log.append(*entry)
        self._waiting.append(entry)

    def extend(self) -> None:
        first = (self._log.last_index or 0) + 1
        entries = [Entry(index, 1, self._name) for index in range(first, first + 12)]
        self._log.extend(entries)
        self._waiting += entries

    def sync(self) -> None:
        self._log.sync()
        self.acknowledge()

    def acknowledge(self) -> None:
        """What waits is durable."""
        self.acknowledged += self._waiting
        self._waiting = []

    def end(self) -> None:
        self._thread.shutdown()


def life_of_two(seed: int, files: FailingFiles) -> tuple[int, int]:
    """Two threads append to one log; each syncs what is its own, or a third one does that for both, as `close` does."""
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        options = LogOptions(limits=SegmentLimits(max_entries=rng.choice((2, 9, 40))), files=files)
        log = SegmentLog(folder + "/log", options)
        before = files.count
        writers = Writer(log, b"one"), Writer(log, b"other")

        def all_told(act: Callable[[], object]) -> None:
            try:
                act()
            except StorageError:
                for writer in writers:
                    writer.forget()
            else:
                for writer in writers:
                    writer.acknowledge()

        syncs_apart = rng.random() < 0.5
        for _ in range(30):
            writer = rng.choice(writers)
            act = rng.choice((writer.append, writer.append, writer.extend, writer.sync, writer.sync))
            if syncs_apart and act == writer.sync:
                all_told(log.sync)
            else:
                writer.perform(act)
        for writer in writers:
            if not syncs_apart:
                writer.perform(writer.sync)
            writer.end()
        all_told(log.close)
        with SegmentLog(folder + "/log") as log:
            for entry in (entry for writer in writers for entry in writer.acknowledged):
                assert log.read(entry.index) == entry, f"{entry} was called durable"
    return before, files.count


def test_a_thread_is_told_what_the_disk_has_refused_another_one_that_appends(effort: Effort) -> None:
    for seed in range(effort(5, 1_000)):
        (before, changes), rng = life_of_two(seed, FailingFiles(UnsyncedFiles())), random.Random(seed)
        for _ in range(effort(6, 20)):
            life_of_two(seed, FailingFiles(UnsyncedFiles(), fail_at=rng.randint(before + 1, changes), errno=errno.EIO))


class Meanwhile(Budget):
    """Does something the first time that it is asked.

    Args:
        act: what.
    """

    def __init__(self, act: Callable[[], object]) -> None:
        super().__init__()
        self._act: Callable[[], object] | None = act

    def check(self) -> None:
        act, self._act = self._act, None
        if act is not None:
            act()
        super().check()


def test_what_a_disk_that_refuses_has_left_empty_while_a_plan_looks_is_no_damage(tmp_path: Path) -> None:
    refuses = threading.Event()

    def look(operation: str, path: str) -> None:
        if operation == "sync" and refuses.is_set():
            refuses.clear()
            raise StorageError(operation=operation, path=path, errno=errno.EIO)

    def lose() -> None:
        refuses.set()
        with pytest.raises(StorageError):
            log.sync()

    with SegmentLog(tmp_path, LogOptions(limits=SegmentLimits(max_entries=2), files=WatchedFiles(look))) as log:
        log.extend([Entry(index, 1, b"x") for index in (1, 2, 3)])
        view = log.view(budget=Meanwhile(lose))
        assert not view.damaged
        assert [segment.number for segment in view.segments] == [1]


def test_what_a_compaction_removes_is_not_listed_again_by_a_recovery_from_what_the_disk_refused(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuses, was_read = threading.Event(), threading.Event()
    threads: list[threading.Thread] = []

    def recover() -> None:
        refuses.set()
        with contextlib.suppress(StorageError):
            log.sync()

    def look(operation: str, path: str) -> None:
        if operation == "sync" and refuses.is_set():
            refuses.clear()
            raise StorageError(operation=operation, path=path, errno=errno.EIO)
        if operation == "unlink" and path.endswith(segment_name(1)):
            threads.append(threading.Thread(target=recover))
            threads[0].start()
            was_read.wait(0.3)

    def read(*arguments: Any) -> Any:
        found = read_folder(*arguments)
        was_read.set()
        return found

    options = LogOptions(limits=SegmentLimits(max_entries=2), files=WatchedFiles(look), keep_links_seconds=0.0)
    with SegmentLog(tmp_path, options) as log:
        log.extend([Entry(index, 1, b"x") for index in range(1, 6)])
        log.record_snapshot(2)
        log.append(6, 1, b"x")
        monkeypatch.setattr(tail, "read_folder", read)
        log.compact(policy=DropDead())
        threads[0].join()
        with pytest.raises(StorageError, match="not synced are lost"):
            log.sync()
        assert [ref.number for ref in log.refs] == [2, 3]
        assert [entry.index for entry in log.entries()] == [3, 4, 5]
