# SPDX-License-Identifier: Apache-2.0
"""Logs of one store, each with an appending thread, during reads and compactions, on a disk that refuses one step."""

from __future__ import annotations

import contextlib
import errno
import random
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

from compactlib.errors import Busy, Closed, CompactionFailed, NotFound, StorageError
from compactlib.raftlog import (
    DropDead,
    Entry,
    LogOptions,
    RaftLog,
    RaftLogStore,
    SeedPolicy,
    SegmentLimits,
    StoreOptions,
)
from tests.harness.effort import Effort
from tests.harness.failing_files import FailingFiles

NAMES = "abc"
REFUSALS = (StorageError, Busy, Closed)
STEPS = 40


def options_of(rng: random.Random, files: FailingFiles) -> StoreOptions:
    choose = rng.choice
    limits = SegmentLimits(max_entries=choose((1, 2, 4, 9)), max_bytes=choose((60, 300, 5000)))
    return StoreOptions(
        log=LogOptions(limits=limits, files=files, keep_links_seconds=choose((0.0, 5.0))),
        background=choose((False, True)), max_wal_bytes=choose((200, 900, 5000)),
        keep_trailing=choose((0, 1, 3)), max_unflushed_files=choose((0, 1, 4)),
        max_queued_bytes=choose((0, 100, 1 << 20)), max_wal_entries=choose((20, 1000)))


class Appender:
    """One thread, its log, and the acknowledged entries.

    Args:
        store: the store.
        log: the log.
        seed: of its operations.
    """

    def __init__(self, store: RaftLogStore, log: RaftLog, seed: str) -> None:
        self._store, self._log, self._rng = store, log, random.Random(seed)
        self._last, self._snapshot, self._term = -1, -1, 1
        self._waiting: dict[int, Entry] = {}
        self.acknowledged: dict[int, Entry] = {}

    def run(self) -> None:
        acts: tuple[Callable[[], object], ...] = (
            *(self._append,) * 10, *(self._sync,) * 5, *(self._take_back,) * 2, self._record, self._record, self._flush)
        for _ in range(STEPS):
            try:
                self._act(self._rng.choice(acts))
            except Closed:
                return

    def _act(self, act: Callable[[], object]) -> None:
        try:
            act()
        except (StorageError, Busy):
            self._term += 1
            # Another thread's failure may have closed the log.
            self._last = min(self._last, self._log.last_index)

    def _append(self) -> None:
        first = self._last + 1
        entries = [Entry(index, self._term, f"{self._log.log_id}{index}".encode() * self._rng.randrange(5))
                   for index in range(first, first + self._rng.choice((1, 3, 6)))]
        self._log.append((entry.index, entry.term, entry.payload) for entry in entries)
        self._waiting.update((entry.index, entry) for entry in entries)
        self._last = entries[-1].index

    def _sync(self) -> None:
        self._log.sync()
        self._promise()

    def _flush(self) -> None:
        self._store.flush()
        self._promise()

    def _promise(self) -> None:
        self.acknowledged.update(self._waiting)
        self._waiting = {}

    def _take_back(self) -> None:
        to = self._rng.randint(max(self._snapshot, 0), max(self._last, 0))
        if self._last <= self._snapshot or to > self._last:
            return
        # Before: it may be done although it is refused.
        for entries in (self.acknowledged, self._waiting):
            for index in [index for index in entries if index > to]:
                del entries[index]
        self._term += 1
        self._log.reset(to)
        self._last = to

    def _record(self) -> None:
        if self._last < 0:
            return
        self._sync()
        to = self._rng.randint(max(self._snapshot, 0), self._last)
        live = [index for index in self.acknowledged if index <= to and self._rng.random() < 0.5]
        for index in [index for index in self.acknowledged if index <= to and index not in live]:
            del self.acknowledged[index]
        self._snapshot = to
        self._log.snapshot(to, sorted(live))


def do_other_things(store: RaftLogStore, logs: list[RaftLog], rng: random.Random, ended: threading.Event) -> None:
    """Read and compact until it has ended."""
    def compact(log: RaftLog) -> None:
        try:
            log.compact(policy=rng.choice((None, DropDead(), SeedPolicy())))
        except CompactionFailed as error:
            assert all(isinstance(each, (*REFUSALS, NotFound)) for each in error.failures.values()), repr(error)

    acts: list[Callable[[RaftLog], object]] = [
        compact, compact, lambda log: list(log.entries()), RaftLog.reclaim, RaftLog.audit, lambda log: store.verify()]
    while not ended.wait(0.001):
        with contextlib.suppress(*REFUSALS):
            rng.choice(acts)(rng.choice(logs))


def live(seed: int, files: FailingFiles) -> int:
    """One life; how often the disk was changed."""
    rng, problems = random.Random(seed), list[BaseException]()

    def noting(work: Callable[[], object]) -> Callable[[], None]:
        def noted() -> None:
            try:
                work()
            except BaseException as error:  # for the thread that started this one
                problems.append(error)

        return noted

    with tempfile.TemporaryDirectory() as folder:
        try:
            store = RaftLogStore(Path(folder), options_of(rng, files))
            with contextlib.ExitStack() as undo:
                undo.callback(store.close)
                logs = [store.log(name) for name in NAMES]
                undo.pop_all()
        except StorageError:
            return files.count
        appenders = [Appender(store, log, f"{seed}{log.log_id}") for log in logs]
        ended = threading.Event()
        others = threading.Thread(target=noting(lambda: do_other_things(store, logs, rng, ended)))
        threads = [threading.Thread(target=noting(appender.run)) for appender in appenders]
        for thread in (others, *threads):
            thread.start()
        for thread in threads:
            thread.join()
        ended.set()
        others.join()
        with contextlib.suppress(StorageError, Closed):
            store.close()
        assert not problems, problems
        with RaftLogStore(Path(folder), StoreOptions(background=False)) as store:
            for name, appender in zip(NAMES, appenders, strict=True):
                for index, entry in appender.acknowledged.items():
                    assert store.log(name).read(index) == entry
            store.audit()
            assert not store.verify().findings
    return files.count


def test_acknowledged_entries_survive_any_refused_step(effort: Effort) -> None:
    for seed in range(effort(1, 400)):
        changes, rng = live(seed, FailingFiles()), random.Random(seed)
        for _ in range(3):
            number, half = rng.choice((errno.ENOSPC, errno.EIO)), rng.random() < 0.5
            live(seed, FailingFiles(fail_at=rng.randint(1, changes), errno=number, short_write=half))
