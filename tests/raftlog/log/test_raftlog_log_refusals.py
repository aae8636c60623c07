# SPDX-License-Identifier: Apache-2.0
"""A `SegmentLog` whose disk refuses one step of anything, by whomever: what `sync` has said is durable is there."""

from __future__ import annotations

import contextlib
import errno
import random
import tempfile
from collections.abc import Callable
from pathlib import Path

from compactlib.clock import ManualClock
from compactlib.errors import StorageError
from compactlib.raftlog import DropDead, Entry, LogOptions, SegmentLimits, SegmentLog
from compactlib.testing.faults.plan import FailingFiles
from tests.effort import Effort
from tests.raftlog.wrapped_files import UnsyncedFiles


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
