# SPDX-License-Identifier: Apache-2.0
"""What `compactlib.raftlog` offers to the contract: a log by itself, a log of a store, and the policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from compactlib.clock import ManualClock
from compactlib.files import Files
from compactlib.raftlog import (
    CostPolicy,
    DropDead,
    Entry,
    EveryNMinors,
    LogCompactionWorker,
    LogOptions,
    LogReader,
    RaftLog,
    RaftLogStore,
    RaPolicy,
    SeedPolicy,
    SegmentLimits,
    SegmentLog,
    StoreOptions,
)
from compactlib.testing import CompactionFactory
from compactlib.testing.views import log_views

_EACH = 10
"""Entries that one filling appends."""


def _payload(index: int) -> bytes:
    return b"entry %d " % index * 3


def _options(files: Files) -> LogOptions:
    # Every compaction rewrites, and old names go at once.
    return LogOptions(limits=SegmentLimits(max_entries=4), trigger=EveryNMinors(0), keep_links_seconds=0.0,
                      clock=ManualClock(1_700_000_000.0), files=files)


def _live_after(first: int, last: int, snapshot: Sequence[int]) -> list[int]:
    """What is alive of everything up to `last`: what was, and every fourth of the new entries, the last one too."""
    return sorted({*snapshot, *range(first, last + 1, 4), last})


class _Logs(CompactionFactory):
    def policy(self) -> Any:
        return SeedPolicy()

    def check(self, store: Any, acknowledged: Sequence[Mapping[int, bytes]]) -> None:
        for entries in acknowledged:
            for index, payload in entries.items():
                found = store.read(index)
                assert isinstance(found, Entry), (index, found)
                assert found.payload == payload, index

    def damage(self, folder: Path) -> bool:
        for path in sorted(folder.rglob("*.segment")):
            if path.is_file() and not path.is_symlink() and path.name.endswith(".segment"):
                data = bytearray(path.read_bytes())
                if len(data) > 104 + 4 * 40:
                    data[-1] ^= 0xFF
                    path.write_bytes(data)
                    return True
        return False


class SegmentLogs(_Logs):
    """A log in segments alone."""

    def open(self, folder: Path, *, files: Files) -> SegmentLog:
        return SegmentLog(folder, _options(files))

    def reader(self, folder: Path) -> LogReader:
        return LogReader(folder)

    def fill(self, store: SegmentLog, number: int) -> Mapping[int, bytes]:
        last = store.last_index or 0
        new = range(last + 1, last + _EACH + 1)
        store.extend((index, 1, _payload(index)) for index in new)
        store.sync()
        before = store.snapshot
        live = _live_after(new[0], new[-1], [] if before is None else list(before.live))
        store.record_snapshot(new[-1], live)
        return {index: _payload(index) for index in new if index in live}


class RaftLogs(_Logs):
    """A log of a store, with what it holds in memory and in the write-ahead log."""

    def __init__(self) -> None:
        self._stores: dict[int, RaftLogStore] = {}

    def open(self, folder: Path, *, files: Files) -> RaftLog:
        store = RaftLogStore(folder, StoreOptions(log=_options(files), background=False))
        try:
            log = store.log("log")
        except BaseException:
            store.close()
            raise
        log.owns(store.close)
        return log

    def fill(self, store: RaftLog, number: int) -> Mapping[int, bytes]:
        last = max(store.last_index, 0)
        new = range(last + 1, last + _EACH + 1)
        store.append((index, 1, _payload(index)) for index in new)
        # Before the snapshot: what is dead by then never comes to segments.
        store.flush()
        live = _live_after(new[0], new[-1], list(store.state.live))
        store.snapshot(new[-1], live)
        return {index: _payload(index) for index in new if index in live}


class WorkedRaftLogs(RaftLogs):
    """A log of a store that a worker looks after: what is asked of the log goes through it."""

    def open(self, folder: Path, *, files: Files) -> RaftLog:
        log = super().open(folder, files=files)
        # Nobody but the kit is to begin anything.
        log.attach(worker=lambda _: _Unstarted(log.segments))
        return log


class _Unstarted(LogCompactionWorker):
    def start(self) -> None:
        """Not in a thread."""


COMPACTIONS = [SegmentLogs(), RaftLogs(), WorkedRaftLogs()]
POLICIES = [(policy, log_views()) for policy in (DropDead(), SeedPolicy(), RaPolicy(), CostPolicy())]
