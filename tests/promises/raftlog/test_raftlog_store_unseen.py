# SPDX-License-Identifier: Apache-2.0
"""A disk that refuses one `stat` or listing to a store of logs: nothing is lost, at work or at opening."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

from compactlib.errors import CompactlibError, StorageError
from compactlib.raftlog import Entry, LogOptions, RaftLogStore, SegmentLimits, StoreOptions
from tests.harness.effort import Effort
from tests.harness.unseen import Unseen

OPTIONS = StoreOptions(log=LogOptions(limits=SegmentLimits(max_entries=8), keep_links_seconds=0.0), max_wal_bytes=400,
                       background=False)
IDS = ("a", "b")


def payload_of(log_id: str, index: int) -> bytes:
    """What these tests write."""
    return f"{log_id}{index}".encode() * 8


def work(store: RaftLogStore, acknowledged: dict[str, int]) -> None:
    """Appends over many WAL files, flushes, compactions; a refused step is repeated by a later operation."""
    for turn in range(24):
        log_id, number = IDS[turn % 2], turn // 2
        with contextlib.suppress(CompactlibError):
            log = store.log(log_id)
            if max(log.last_index, 0) <= acknowledged.get(log_id, 0):
                last = acknowledged.get(log_id, 0) + 1
                log.append([Entry(last, 1, payload_of(log_id, last))])
            store.sync()
            acknowledged[log_id] = max(log.last_index, 0)
        with contextlib.suppress(CompactlibError):
            if number == 5:
                store.flush()
            if number == 8:
                store.log(log_id).compact()
    with contextlib.suppress(CompactlibError):
        store.flush()


def check(store: RaftLogStore, acknowledged: dict[str, int]) -> None:
    """It holds all that it has acknowledged, and is whole."""
    store.audit()
    assert store.verify().is_sound
    assert not store.status().damaged
    for log_id, last in acknowledged.items():
        log = store.log(log_id, create=False)
        assert list(log.entries(1, last)) == [Entry(index, 1, payload_of(log_id, index))
                                              for index in range(1, last + 1)]


def test_a_refused_stat_during_work_loses_nothing(tmp_path: Path, effort: Effort) -> None:
    looks = 1
    number = 0
    while number <= looks:
        folder, acknowledged = tmp_path / str(number), dict[str, int]()
        with RaftLogStore(folder, OPTIONS) as store:
            unseen = Unseen(folder, number)
            with unseen.in_force():
                work(store, acknowledged)
            check(store, acknowledged)
        with RaftLogStore(folder, OPTIONS) as store:
            check(store, acknowledged)
        if number == 0:
            looks = unseen.looks
            assert acknowledged == {"a": 12, "b": 12}
        number += effort(3, 1)
    assert looks > 20


def test_a_refused_stat_at_opening_is_no_damage(tmp_path: Path, effort: Effort) -> None:
    acknowledged: dict[str, int] = {}
    with RaftLogStore(tmp_path / "made", OPTIONS) as store:
        work(store, acknowledged)
    looks = 1
    number = 0
    while number <= looks:
        folder = tmp_path / str(number)
        shutil.copytree(tmp_path / "made", folder)
        unseen = Unseen(folder, number)
        with contextlib.suppress(StorageError), unseen.in_force(), RaftLogStore(folder, OPTIONS) as store:
            check(store, acknowledged)
        with RaftLogStore(folder, OPTIONS) as store:
            check(store, acknowledged)
        if number == 0:
            looks = unseen.looks
        number += effort(3, 1)
    assert looks > 20
