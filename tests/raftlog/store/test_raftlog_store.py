# SPDX-License-Identifier: Apache-2.0
"""`RaftLogStore`: many logs and threads on one WAL, its limits, and disks that refuse."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from compactlib.errors import (
    Busy,
    Closed,
    CorruptData,
    DiskFull,
    InvalidInput,
    NotFound,
    StorageError,
)
from compactlib.files import LocalFiles
from compactlib.raftlog import LogOptions, RaftLogStore, SegmentLimits, StoreOptions, open_log
from compactlib.testing import RecordingFiles, explore_crashes, record
from tests.harness.failing_files import FailingFiles
from tests.harness.open_files import open_files
from tests.harness.plain_log import PlainLog
from tests.harness.raft_world import check_log
from tests.raftlog.raft_host import SMALL, indexes, rows
from tests.raftlog.wrapped_files import LocksAsideFiles, WatchedFiles


def test_many_logs_share_one_wal(tmp_path: Path) -> None:
    with RaftLogStore(tmp_path, SMALL) as store:
        for number in range(20):
            store.log(f"log-{number}").append(rows(1, number + 1))
        store.sync()
        assert store.status().wal_files == 1
        assert store.log_ids == tuple(sorted(f"log-{number}" for number in range(20)))
        assert store.log("log-3") is store.log("log-3")
        store.audit()
    with RaftLogStore(tmp_path, SMALL) as store:
        assert [store.log(f"log-{number}").last_index for number in range(20)] == list(range(1, 21))
        with pytest.raises(NotFound):
            store.log("log-20", create=False)
        for wrong in ("", "..", "a/b", "x" * 101, "-a"):
            with pytest.raises(InvalidInput):
                store.log(wrong)
        with pytest.raises(Busy):
            RaftLogStore(tmp_path, SMALL)
        assert repr(store).startswith("<RaftLogStore of ")
    with pytest.raises(Closed):
        store.log("log-3")
    with pytest.raises(Closed):
        store.sync()


def test_a_log_that_was_closed_is_opened_again_by_its_store(tmp_path: Path) -> None:
    with RaftLogStore(tmp_path, SMALL) as store:
        with store.log("a") as log:
            log.append(rows(1, 3))
        with pytest.raises(Closed):
            log.read(1)
        with pytest.raises(Closed):
            log.append(rows(4, 4))
        again = store.log("a")
        again.append(rows(4, 4))
        store.flush()
        check_log(again, PlainLog.of(rows(1, 4)))


def test_a_store_audits_and_verifies_a_log_that_its_host_has_closed(tmp_path: Path) -> None:
    with RaftLogStore(tmp_path) as store:
        log = store.log("a")
        log.append(rows(1, 3))
        log.close()
        store.audit()
        assert store.verify().is_sound
        store.flush()
        store.audit()
        assert indexes(store.log("a")) == [1, 2, 3]
        with pytest.raises(Closed):
            log.audit()


def test_a_log_can_be_removed_and_created_again(tmp_path: Path) -> None:
    with RaftLogStore(tmp_path, SMALL) as store:
        store.log("a").append(rows(1, 30))
        store.log("b").append(rows(1, 5))
        store.log("a").snapshot(20, [3])
        store.remove("a")
        assert store.log_ids == ("b",)
        assert os.listdir(tmp_path / "logs") == ["b"]
        with pytest.raises(NotFound):
            store.remove("a")
        store.audit()
    with RaftLogStore(tmp_path, SMALL) as store:
        assert store.log_ids == ("b",)
        check_log(store.log("b"), PlainLog.of(rows(1, 5)))
        again = store.log("a")
        again.append(rows(1, 3, 7))
        store.remove("b")
        check_log(again, PlainLog.of(rows(1, 3, 7)))
        store.log("b").append(rows(4, 6))
        store.audit()
    with RaftLogStore(tmp_path, SMALL) as store:
        check_log(store.log("a"), PlainLog.of(rows(1, 3, 7)))
        check_log(store.log("b"), PlainLog.of(rows(4, 6)))


def test_a_log_is_removed_with_all_files_in_its_folder(tmp_path: Path) -> None:
    """An interrupted compaction leaves a folder of its own there, and a host may keep its snapshots there."""
    with RaftLogStore(tmp_path, SMALL) as store:
        store.log("a").append(rows(1, 30))
        store.flush()
        for name in ("rewrite-1", "snapshots"):
            inner = tmp_path / "logs" / "a" / name
            inner.mkdir()
            (inner / "file").write_bytes(b"x")
        store.remove("a")
        assert os.listdir(tmp_path / "logs") == []
        assert store.log_ids == ()


def test_a_refused_step_of_a_removal_leaves_the_log_whole_or_absent(tmp_path: Path) -> None:
    def remove(folder: Path, files: FailingFiles) -> None:
        with RaftLogStore(folder, StoreOptions(background=False, log=LogOptions(files=files))) as store:
            store.log("a").append(rows(1, 5))
            store.log("b").append(rows(1, 5))
            store.remove("a")

    counting = FailingFiles()
    remove(tmp_path / "count", counting)
    outcomes = set()
    for fail_at in range(15, counting.count + 1):
        with contextlib.suppress(StorageError, Closed):
            remove(tmp_path / str(fail_at), FailingFiles(fail_at=fail_at, sticky=True, errno=errno.EIO))
        with RaftLogStore(tmp_path / str(fail_at), SMALL) as store:
            for name in store.log_ids:
                assert indexes(store.log(name)) in ([], [1, 2, 3, 4, 5])
            outcomes.add("a" in store.log_ids)
    assert outcomes == {True, False}


def test_a_crash_in_a_removal_leaves_the_log_whole_or_absent(tmp_path: Path) -> None:
    """And the other log whole; after an acknowledged removal no entry returns in a new log of the same id."""
    old, anew = (1, 2, 3, 4, 5), (1, 2, 3)
    seen: set[tuple[object, tuple[int, ...] | None, tuple[int, ...]]] = set()

    def live(folder: Path, files: RecordingFiles) -> None:
        options = StoreOptions(background=False, log=LogOptions(files=LocksAsideFiles(files)))
        with RaftLogStore(folder / "store", options) as store:
            for name in ("a", "b"):
                store.log(name).append(rows(1, 5))
            store.sync()
            files.acknowledge("written")
            store.remove("a")
            files.acknowledge("removed")
            store.log("a").append(rows(1, 3, 7))
            store.sync()
            files.acknowledge("begun anew")

    def check(folder: Path, acknowledged: Sequence[object]) -> None:
        if not acknowledged:
            return
        with RaftLogStore(folder / "store", SMALL) as store:
            check_log(store.log("b", create=False), PlainLog.of(rows(1, 5)))
            entries = list(store.log("a").entries()) if "a" in store.log_ids else None
            found = None if entries is None else tuple(entry.index for entry in entries)
            seen.add((acknowledged[-1], found, tuple({entry.term for entry in entries or ()})))
            store.audit()

    explore_crashes(record(tmp_path, live), check, seed=1, limit_per_point=20)
    assert seen == {("written", old, (1,)), ("written", None, ()), ("removed", None, ()), ("removed", (), ()),
                    ("removed", anew, (7,)), ("begun anew", anew, (7,))}


@pytest.mark.parametrize("background", [False, True])
def test_opening_again_and_again_does_not_pile_up_wal_files(background: bool, tmp_path: Path) -> None:
    for number in range(12):
        with RaftLogStore(tmp_path, StoreOptions(background=background)) as store:
            store.log("a").append(rows(number + 1, number + 1))
            assert store.status().wal_files <= 6
    with RaftLogStore(tmp_path, SMALL) as store:
        check_log(store.log("a"), PlainLog.of(rows(1, 12)))


def test_threads_append_read_and_compact_at_once(tmp_path: Path) -> None:
    options = StoreOptions(log=LogOptions(limits=SegmentLimits(max_entries=16), keep_links_seconds=0.0),
                           max_wal_bytes=4000)
    problems: list[BaseException] = []
    with RaftLogStore(tmp_path, options) as store:
        done = threading.Event()

        def write(name: str) -> None:
            log = store.log(name)
            for index in range(1, 301):
                log.append([(index, 1, b"%d" % index)])
                if index % 7 == 0:
                    log.sync()
                if index % 60 == 0:
                    log.snapshot(index - 5, range(10, index - 5, 10))

        def read() -> None:
            while not done.is_set():
                for log in (store.log("a"), store.log("b")):
                    for entry in log.entries():
                        assert entry.payload == b"%d" % entry.index
                    log.compact(policy=log.policy)
                    log.read(50)

        def guarded(work: object, *arguments: object) -> threading.Thread:
            def run() -> None:
                try:
                    work(*arguments)  # type: ignore[operator]
                except BaseException as error:
                    problems.append(error)
            return threading.Thread(target=run)

        writers = [guarded(write, "a"), guarded(write, "b")]
        reader = guarded(read)
        for thread in (*writers, reader):
            thread.start()
        for thread in writers:
            thread.join()
        done.set()
        reader.join()
        assert not problems, problems
        store.flush()
        store.audit()
    with RaftLogStore(tmp_path, options) as store:
        for name in ("a", "b"):
            assert indexes(store.log(name)) == [*range(10, 295, 10), *range(296, 301)]


def test_memory_is_bounded_by_flushing(tmp_path: Path) -> None:
    options = StoreOptions(background=False, max_wal_entries=100, max_queued_bytes=500)
    with open_log(tmp_path, options) as log:
        for first in range(1, 1000, 10):
            log.append(rows(first, first + 9))
            assert log.status().memtable_entries <= 200
        check_log(log, PlainLog.of(rows(1, 1000)))


@pytest.mark.parametrize("limit", [{"max_wal_bytes": 2000}, {"max_wal_entries": 3}])
def test_entries_that_cannot_be_flushed_are_bounded(limit: dict[str, Any], tmp_path: Path) -> None:
    """The disk under the segments is full, that under the WAL is not."""
    full = threading.Event()

    def look(operation: str, path: str) -> None:
        if full.is_set() and path.endswith(".segment") and operation in ("write", "create"):
            raise DiskFull(operation=operation, path=path, errno=errno.ENOSPC)

    options = StoreOptions(background=False, max_unflushed_files=3, log=LogOptions(files=WatchedFiles(look)), **limit)
    with RaftLogStore(tmp_path / "store", options) as store:
        log = store.log("a")
        full.set()
        last = 0

        def fill() -> None:
            nonlocal last
            while last < 1000:
                log.append([(last + 1, 1, bytes(500))])
                log.sync()
                last += 1

        with pytest.raises((DiskFull, Closed)):
            fill()
        assert last < 40
        assert store.status().wal_files <= 6
        full.clear()
        log = store.log("a")
        log.append([(last + 1, 1, b"room again")])
        store.sync()
        assert store.status().wal_files <= 2
        assert [entry.index for entry in log.entries()] == list(range(1, last + 2))


def test_a_failed_sync_closes_the_store_with_its_reason(tmp_path: Path) -> None:
    probe = FailingFiles()
    with RaftLogStore(tmp_path / "probe", StoreOptions(background=False, log=LogOptions(files=probe))) as store:
        store.log("a").append(rows(1, 5))
        store.sync()
        before = probe.count
    files = FailingFiles(fail_at=before + 2, errno=errno.EIO)
    with RaftLogStore(tmp_path / "store", StoreOptions(background=False, log=LogOptions(files=files))) as store:
        log = store.log("a")
        log.append(rows(1, 5))
        log.sync()
        log.append(rows(6, 9))
        with pytest.raises(StorageError):
            log.sync()
        for refused in (log.sync, lambda: log.append(rows(10, 10)), lambda: log.snapshot(3, ()), log.flush, log.status,
                        lambda: log.read(5), lambda: store.log("b"), store.sync):
            with pytest.raises(Closed, match="open it again"):
                refused()
    with RaftLogStore(tmp_path / "store") as store:
        assert store.log("a").last_index in (5, 9)


def test_a_refused_step_of_opening_changes_nothing(tmp_path: Path) -> None:
    expected = PlainLog.of(rows(1, 30))
    with RaftLogStore(tmp_path / "store", SMALL) as store:
        store.log("a").append(rows(1, 20))
        store.flush()
        store.log("a").append(rows(21, 30))
    for fail_at in range(1, 12):
        files = FailingFiles(LocalFiles(), fail_at=fail_at, errno=errno.ENOSPC)
        with contextlib.suppress(StorageError):
            RaftLogStore(tmp_path / "store", StoreOptions(background=False, log=LogOptions(files=files))).close()
        with RaftLogStore(tmp_path / "store", SMALL) as store:
            check_log(store.log("a"), expected)


def test_a_missing_log_in_the_wal_is_named(tmp_path: Path) -> None:
    with RaftLogStore(tmp_path, SMALL) as store:
        store.log("a").append(rows(1, 3))
    for name in os.listdir(tmp_path / "logs" / "a"):
        os.unlink(tmp_path / "logs" / "a" / name)
    os.rmdir(tmp_path / "logs" / "a")
    with RaftLogStore(tmp_path, SMALL) as store:
        with pytest.raises(CorruptData, match="expected the segments of log 'a', which the WAL names"):
            store.log("a")
        assert store.status().damaged == ("a",)


def test_an_error_of_a_damaged_log_keeps_no_file_open(tmp_path: Path) -> None:
    with RaftLogStore(tmp_path, SMALL) as store:
        store.log("a").append(rows(1, 30))
    for path in (tmp_path / "logs" / "a").glob("*.segment"):
        data = bytearray(path.read_bytes())
        data[10] ^= 1
        path.write_bytes(bytes(data))
    gc.disable()
    try:
        with RaftLogStore(tmp_path, SMALL) as store:
            assert store.status().damaged == ("a",)
            assert open_files(tmp_path / "logs" / "a") == []
    finally:
        gc.enable()
