# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C anywhere in the work of a store of logs: it can be closed and opened again, and has what it acknowledged."""

from __future__ import annotations

import contextlib
import gc
import itertools
from pathlib import Path

import pytest

from compactlib.errors import Closed, CompactlibError
from compactlib.raftlog import Entry, LogOptions, RaftLogStore, SeedPolicy, SegmentLimits, StoreOptions
from compactlib.testing.interrupts import interruptions
from tests.harness.effort import Effort

OPTIONS = StoreOptions(log=LogOptions(limits=SegmentLimits(max_entries=4), keep_links_seconds=0.0), max_wal_bytes=300,
                       background=False)
LIVE = (2, 3, 9)


def entry_of(index: int) -> Entry:
    """What is appended."""
    return Entry(index, 1, b"%d" % index * 5)


def work(store: RaftLogStore, synced: list[int], may_be_dead: list[int]) -> None:
    """A new log, appends over many WAL files, a flush, a snapshot, a compaction."""
    log = store.log("a")
    for index in range(1, 15):
        log.append([entry_of(index)])
        if index % 3 == 0:
            store.sync()
            synced.append(index)
    store.flush()
    may_be_dead.append(10)
    log.snapshot(10, LIVE)
    log.compact(policy=SeedPolicy())
    log.reclaim()


def check(store: RaftLogStore, synced: list[int], may_be_dead: list[int]) -> None:
    """It holds what was synced, and nobody else has the log open."""
    assert store.verify().is_sound
    log = store.log("a")
    for index in range(1, max(synced, default=0) + 1):
        if index in LIVE or index > max(may_be_dead, default=0):
            assert log.read(index) == entry_of(index)


def test_an_interrupt_anywhere_leaves_a_store_that_can_be_opened_again(tmp_path: Path, effort: Effort) -> None:
    numbers = itertools.count()

    def opened() -> RaftLogStore:
        return RaftLogStore(tmp_path / str(next(numbers)), OPTIONS)

    with opened() as store:
        plan = list(interruptions(lambda: work(store, [], []), effort(120, 4_000)))
    for interrupt in plan:
        synced: list[int] = []
        may_be_dead: list[int] = []
        store = opened()
        with contextlib.suppress(KeyboardInterrupt), interrupt:
            work(store, synced, may_be_dead)
        # Between the call that opened a log and the place where that is kept nobody can close it.
        gc.collect()
        with contextlib.suppress(Closed):
            check(store, synced, may_be_dead)
        # A sync that was interrupted has stopped the log.
        with contextlib.suppress(CompactlibError):
            store.close()
        with RaftLogStore(store.folder, OPTIONS) as again:
            again.audit()
            check(again, synced, may_be_dead)
            log = again.log("a")
            log.append([entry_of(log.last_index + 1)])
            again.flush()
            log.compact(policy=SeedPolicy())


def test_a_log_whose_making_was_interrupted_is_made_at_once_when_it_is_asked_for_again(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with RaftLogStore(tmp_path, OPTIONS) as store:
        with monkeypatch.context() as patch:
            patch.setattr(RaftLogStore, "_make_log", interrupted)
            with pytest.raises(KeyboardInterrupt) as kept:
                store.log("a")
        store.log("a").append([entry_of(1)])
        assert kept.traceback, "which would keep what was open"
    with RaftLogStore(tmp_path, OPTIONS) as store:
        assert store.log("a").read(1) == entry_of(1)
