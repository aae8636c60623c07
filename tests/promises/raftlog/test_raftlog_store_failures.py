# SPDX-License-Identifier: Apache-2.0
"""What fails in one log of a store closes that log; what fails in the write-ahead log closes the store."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from compactlib.errors import Closed, CorruptData, NotFound, StorageError
from compactlib.raftlog import Entry, LogOptions, LogReader, RaftLog, RaftLogStore, SegmentLimits, StoreOptions
from compactlib.testing import FilesInFront, Request
from tests.harness.failing_files import FailingFiles


def refused(request: Request) -> StorageError:
    return StorageError.from_os(OSError(errno.EIO, os.strerror(errno.EIO)), request.kind, request.path)


def test_store_of_many_logs_works_when_one_log_fails(tmp_path: Path) -> None:
    failing = [False]

    def step(request: Request, act: Callable[[], Any]) -> Any:
        if failing[0] and "/logs/log-7/" in request.path and request.kind == "unlink":
            raise refused(request)
        return act()

    names = [f"log-{number}" for number in range(1000)]
    options = LogOptions(limits=SegmentLimits(max_entries=4), files=FilesInFront(step))
    with RaftLogStore(tmp_path, StoreOptions(log=options, background=False)) as store:
        for name in names:
            store.log(name).append([(index, 1, name.encode()) for index in range(1, 7)])
        store.flush()
        failed = store.log("log-7")
        failing[0] = True
        with pytest.raises(StorageError):
            failed.append_entries(2, 1, [(3, 2, b"another")])
        failing[0] = False
        with pytest.raises(Closed, match="open it again"):
            failed.read(1)
        for name in names:
            if name != "log-7":
                store.log(name).append([(7, 1, b"later")])
        store.sync()
        again = store.log("log-7")
        assert [entry.term for entry in again.entries()] == [1, 1, 2]
        again.append([(4, 2, b"later")])
        store.flush()
    with RaftLogStore(tmp_path, StoreOptions(background=False)) as store:
        assert store.log("log-7").last_index == 4
        assert store.log(names[-1]).read(7) == Entry(7, 1, b"later")


def test_sync_that_fails_closes_all_logs(tmp_path: Path) -> None:
    failing = [False]

    def step(request: Request, act: Callable[[], Any]) -> Any:
        if failing[0] and request.kind == "sync" and request.path.endswith(".wal"):
            raise refused(request)
        return act()

    options = StoreOptions(log=LogOptions(files=FilesInFront(step)), background=False)
    with RaftLogStore(tmp_path, options) as store:
        one, other = store.log("one"), store.log("other")
        one.append([(1, 1, b"durable")])
        store.sync()
        failing[0] = True
        one.append([(2, 1, b"perhaps")])
        with pytest.raises(StorageError):
            one.sync()
        for call in (one.sync, one.status, lambda: one.read(1), lambda: other.append([(1, 1, b"x")]), other.flush,
                     store.sync, store.status, lambda: store.log("new")):
            with pytest.raises(Closed, match="open it again"):
                call()
        failing[0] = False
        # In the same process, while the failed object still exists.
        with RaftLogStore(tmp_path, options) as again:
            assert again.log("one").read(1) == Entry(1, 1, b"durable")
            assert again.log("one").last_index in (1, 2)


def test_log_opens_again_after_its_first_flush_is_refused(tmp_path: Path) -> None:
    """At each change of the flush, from there on without room or for once; the entries are in the write-ahead log."""
    entries = [(index, 1, bytes(50)) for index in range(1, 10)]

    def flushed(folder: Path, files: FailingFiles) -> int:
        options = StoreOptions(log=LogOptions(limits=SegmentLimits(max_entries=4), files=files), background=False)
        with contextlib.suppress(StorageError, Closed), RaftLogStore(folder, options) as store:
            log = store.log("a")
            log.append(entries)
            log.sync()
            before = files.count
            files.fail_at = before + refused_at
            store.flush()
        return files.count - before

    refused_at, count = 1 << 30, 0
    count = flushed(tmp_path / "whole", FailingFiles())
    assert count > 5
    for refused_at in range(1, count + 1):
        for sticky in (False, True):
            folder = tmp_path / f"{refused_at}-{sticky}"
            flushed(folder, FailingFiles(sticky=sticky))
            with RaftLogStore(folder, StoreOptions(background=False)) as store:
                assert [entry.index for entry in store.log("a", create=False).entries()] == list(range(1, 10)), folder


@pytest.mark.parametrize("payload", [b"", b"payload"])
def test_entries_of_a_flush_whose_sync_is_refused_are_in_no_segment(tmp_path: Path, payload: bytes) -> None:
    """A power failure may take what such a sync covered, so the next flush must write it again."""
    failing = [False]

    def step(request: Request, act: Callable[[], Any]) -> Any:
        if failing[0] and request.kind == "sync" and request.path.endswith(".segment"):
            failing[0] = False
            raise refused(request)
        return act()

    options = StoreOptions(log=LogOptions(files=FilesInFront(step)), background=False)
    with RaftLogStore(tmp_path, options) as store:
        log = store.log("a")
        log.append([(index, 1, payload) for index in range(1, 6)])
        log.sync()
        failing[0] = True
        with pytest.raises(StorageError):
            store.flush()
        assert not log.refs
        with LogReader(tmp_path / "logs" / "a") as reader:
            assert not reader.refs
        store.flush()
        assert [(ref.first, ref.last) for ref in log.refs] == [(1, 5)]
        assert log.read(5) == Entry(5, 1, payload)


def test_store_opens_on_a_full_disk(tmp_path: Path) -> None:
    """It reads and reclaims; what opening has found is durable after the first sync that has room."""
    full = [False]

    def step(request: Request, act: Callable[[], Any]) -> Any:
        if full[0] and request.needs_room:
            raise StorageError.from_os(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), request.kind, request.path)
        return act()

    options = StoreOptions(log=LogOptions(files=FilesInFront(step)), background=False)
    with RaftLogStore(tmp_path, options) as store:
        store.log("a").append([(index, 1, b"entry") for index in range(1, 9)])
        store.log("a").append_entries(5, 1, [(6, 2, b"another")])
    full[0] = True
    with RaftLogStore(tmp_path, options) as store:
        log = store.log("a", create=False)
        assert [entry.term for entry in log.entries()] == [1, 1, 1, 1, 1, 2]
        log.reclaim()
        assert store.verify().is_sound
        with pytest.raises(StorageError):
            log.sync()
        with pytest.raises(StorageError):
            store.flush()
    with RaftLogStore(tmp_path, options) as store:
        log = store.log("a", create=False)
        full[0] = False
        log.append([(7, 2, b"entry")])
        log.sync()
        store.flush()
    with RaftLogStore(tmp_path, options) as store:
        assert store.log("a", create=False).last_index == 7


def test_refused_write_whose_cut_is_refused_too_closes_the_store(tmp_path: Path) -> None:
    failing = [False]

    def step(request: Request, act: Callable[[], Any]) -> Any:
        if failing[0] and request.path.endswith(".wal") and request.kind in ("write", "truncate"):
            act()
            raise refused(request)
        return act()

    options = StoreOptions(log=LogOptions(files=FilesInFront(step)), background=False)
    with RaftLogStore(tmp_path, options) as store:
        log = store.log("a")
        log.append([(1, 1, b"durable")])
        log.sync()
        log.append([(2, 1, b"perhaps")])
        failing[0] = True
        with pytest.raises(StorageError):
            log.sync()
        failing[0] = False
        with pytest.raises(Closed, match="open it again"):
            log.sync()
    with RaftLogStore(tmp_path, options) as store:
        assert store.log("a").read(1) == Entry(1, 1, b"durable")
        assert store.log("a").last_index in (1, 2)


def test_missing_wal_files_are_named(tmp_path: Path) -> None:
    """A store that has logs has a file of its write-ahead log."""
    with RaftLogStore(tmp_path, StoreOptions(background=False)) as store:
        store.log("a").append([(1, 1, b"durable")])
        store.flush()
        store.log("a").append([(2, 1, b"durable")])
    for path in (tmp_path / "wal").iterdir():
        path.unlink()
    with pytest.raises(CorruptData, match="found no file"):
        RaftLogStore(tmp_path)


def test_snapshot_after_a_full_disk_covers_no_truncated_entry(tmp_path: Path) -> None:
    """The killed owner has truncated entries in its write-ahead log alone; segments are cut before the snapshot."""
    full, cuts, is_cut = [False], [False], [False]

    def step(request: Request, act: Callable[[], Any]) -> Any:
        if (full[0] and request.needs_room) or (is_cut[0] and "/logs/" in request.path):
            raise StorageError.from_os(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), request.kind, request.path)
        answer = act()
        is_cut[0] = is_cut[0] or (cuts[0] and request.kind == "sync" and request.path.endswith(".wal"))
        return answer

    options = StoreOptions(log=LogOptions(limits=SegmentLimits(max_entries=4), files=FilesInFront(step)),
                           background=False)
    with RaftLogStore(tmp_path, options) as store:
        log = store.log("a")
        log.append([(index, 1, b"first") for index in range(1, 9)])
        store.flush()
        log.end_segment()
        cuts[0] = True
        with pytest.raises(StorageError):
            log.append_entries(2, 1, [(3, 2, b"second"), (4, 2, b"second"), (5, 2, b"second")])
    full[0], cuts[0], is_cut[0] = True, False, False
    with RaftLogStore(tmp_path, options) as store:
        log = store.log("a", create=False)
        assert log.last_index == 5
        full[0] = False
        log.snapshot(5, [3])
    with RaftLogStore(tmp_path, options) as store:
        assert store.log("a").read(3) == Entry(3, 2, b"second")


def test_log_created_in_a_store_that_opened_on_a_full_disk_is_there(tmp_path: Path) -> None:
    """A store with logs has a WAL file, although nothing was appended."""
    is_full = [True]

    def step(request: Request, act: Callable[[], Any]) -> Any:
        if is_full[0] and request.kind == "create" and "/wal/" in request.path:
            raise StorageError.from_os(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), request.kind, request.path)
        return act()

    options = StoreOptions(log=LogOptions(files=FilesInFront(step)), background=False)
    with RaftLogStore(tmp_path, options) as store:
        with pytest.raises(StorageError):
            store.log("a")
        is_full[0] = False
        store.log("a")
    with RaftLogStore(tmp_path, options) as store:
        assert store.log_ids == ("a",)


@pytest.mark.parametrize("closes", ["the log", "the store"])
def test_close_during_a_batch_that_is_refused_syncs_again(tmp_path: Path, closes: str) -> None:
    begun, goes_on, refuses = threading.Event(), threading.Event(), [False]

    def step(request: Request, act: Callable[[], Any]) -> Any:
        if refuses[0] and request.kind == "write" and request.path.endswith(".wal"):
            refuses[0] = False
            begun.set()
            assert goes_on.wait(60)
            raise StorageError.from_os(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), request.kind, request.path)
        return act()

    options = StoreOptions(log=LogOptions(files=FilesInFront(step)), background=False)
    store = RaftLogStore(tmp_path / "store", options)
    log = store.log("a")
    log.append([(1, 1, b"appended")])
    refuses[0] = True
    with ThreadPoolExecutor(1) as other:
        synced = other.submit(log.sync)
        assert begun.wait(60)
        timer = threading.Timer(0.2, goes_on.set)
        timer.start()
        (log if closes == "the log" else store).close()
        assert isinstance(synced.exception(60), StorageError)
        timer.join()
    shutil.copytree(tmp_path / "store", tmp_path / "copy")
    store.close()
    with RaftLogStore(tmp_path / "copy", StoreOptions(background=False)) as found:
        assert found.log("a").last_index == 1


def test_log_is_gone_after_an_interrupt_behind_its_removal(tmp_path: Path) -> None:
    interrupts = [False]

    def step(request: Request, act: Callable[[], Any]) -> Any:
        done = act()
        if interrupts[0] and request.kind == "rename" and os.path.dirname(request.path) == str(tmp_path / "logs"):
            raise KeyboardInterrupt
        return done

    options = StoreOptions(log=LogOptions(files=FilesInFront(step)), background=False)
    with RaftLogStore(tmp_path, options) as store:
        store.log("a").append([(index, 1, b"first") for index in range(1, 11)])
        interrupts[0] = True
        with pytest.raises(KeyboardInterrupt):
            store.remove("a")
        interrupts[0] = False
        assert store.log_ids == ()
        with pytest.raises(NotFound):
            store.log("a", create=False)
        again = store.log("a")
        assert again.last_index == -1
        again.append([(1, 1, b"second")])
        again.sync()
    with RaftLogStore(tmp_path, StoreOptions(background=False)) as store:
        assert list(store.log("a").entries()) == [Entry(1, 1, b"second")]


def test_leftover_of_a_removed_log_keeps_no_other_log(tmp_path: Path) -> None:
    def step(request: Request, act: Callable[[], Any]) -> Any:
        if request.kind == "unlink" and "/.removed-a/" in request.path:
            raise refused(request)
        return act()

    options = StoreOptions(log=LogOptions(files=FilesInFront(step)), background=False)
    with RaftLogStore(tmp_path, options) as store:
        for name in ("a", "b"):
            store.log(name).append([(1, 1, b"entry")])
        for name in ("a", "b"):
            with pytest.raises(StorageError):
                store.remove(name)
        assert store.log_ids == ()
    with RaftLogStore(tmp_path, StoreOptions(background=False)) as store:
        assert store.log_ids == ()
        assert not os.listdir(tmp_path / "logs")


def test_wal_file_whose_name_a_full_disk_has_not_synced_is_begun_again(tmp_path: Path) -> None:
    with RaftLogStore(tmp_path, StoreOptions(background=False)) as store:
        store.log("a").append([(1, 1, b"first")])
    full = [True]

    def step(request: Request, act: Callable[[], Any]) -> Any:
        name = os.path.join(tmp_path, "wal", "0000000000000002.wal")
        if full[0] and request.kind == "sync folder" and request.path == str(tmp_path / "wal") and os.path.exists(name):
            raise StorageError.from_os(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), request.kind, request.path)
        return act()

    options = StoreOptions(log=LogOptions(files=FilesInFront(step)), background=False)
    with RaftLogStore(tmp_path, options) as store:
        log = store.log("a")
        assert list(log.entries()) == [Entry(1, 1, b"first")]
        log.append([(2, 1, b"second")])
        with pytest.raises(StorageError):
            log.sync()
        full[0] = False
        log.sync()
    with RaftLogStore(tmp_path, options) as store:
        assert [entry.payload for entry in store.log("a").entries()] == [b"first", b"second"]


@pytest.mark.parametrize("call", [
    lambda log: log.append([(4.0, 1, b"x")]), lambda log: log.append([(4, 1.0, b"x")]),
    lambda log: log.append([(4.0, 1, b"x"), (5.0, 1, b"x")]), lambda log: log.append_run(4.0, 1, [b"x"]),
    lambda log: log.append_entries(3.0, 1, [(4, 1, b"x")]), lambda log: log.append_entries(3, 1, [(4, 1.0, b"x")]),
    lambda log: log.reset(2.0), lambda log: log.snapshot(3.0, ()),
    lambda log: log.snapshot(3, (), [b""], machine_version=1.0)])
def test_value_that_cannot_be_stored_is_refused_by_the_call(tmp_path: Path, call: Callable[[Any], object]) -> None:
    with RaftLogStore(tmp_path, StoreOptions(background=False)) as store:
        log = store.log("a")
        log.append([(index, 1, b"entry") for index in range(1, 4)])
        log.sync()
        with pytest.raises(TypeError):
            call(log)
        assert log.last_index == 3
        log.append([(4, 1, b"entry")])
        log.snapshot(4, ())
        log.sync()


def test_damaged_log_takes_the_same_room_in_the_wal_however_often_the_store_is_opened(tmp_path: Path) -> None:
    with RaftLogStore(tmp_path, StoreOptions(background=False)) as store:
        store.log("a").append([(index, 1, b"entry") for index in range(1, 100)])
        store.log("b")
    row = tmp_path / "logs" / "a" / "SNAPSHOT"
    row.write_bytes(b"damage")
    sizes = []
    for index in range(1, 5):
        with RaftLogStore(tmp_path, StoreOptions(background=False, max_unflushed_files=100)) as store:
            assert store.status().damaged == ("a",)
            store.log("b").append([(index, 1, b"entry")])
        newest = max((tmp_path / "wal").glob("*.wal"))
        sizes.append(newest.stat().st_size)
    assert max(sizes) < 2 * min(sizes)
    row.unlink()
    with RaftLogStore(tmp_path, StoreOptions(background=False)) as store:
        assert store.log("a").last_index == 99
        assert store.log("b").last_index == 4
        assert len(list(store.log("a").entries())) == 99


def test_damaged_log_keeps_its_entries_when_the_store_is_opened_on_a_full_disk(tmp_path: Path) -> None:
    """They are in an older file of the WAL alone, until the disk takes a file that repeats them."""
    with RaftLogStore(tmp_path, StoreOptions(background=False)) as store:
        store.log("a").append([(index, 1, b"entry") for index in range(1, 4)])
        store.log("b")
    with RaftLogStore(tmp_path, StoreOptions(background=False)) as store:
        assert store.status().wal_files == 2
    row = tmp_path / "logs" / "a" / "SNAPSHOT"
    row.write_bytes(b"damage")

    def step(request: Request, act: Callable[[], Any]) -> Any:
        if request.needs_room:
            raise StorageError.from_os(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), request.kind, request.path)
        return act()

    options = StoreOptions(log=LogOptions(files=FilesInFront(step)), background=False, max_unflushed_files=0)
    with RaftLogStore(tmp_path, options) as store:
        assert store.status().damaged == ("a",)
        with pytest.raises(StorageError):
            store.flush_closed()
    row.unlink()
    with RaftLogStore(tmp_path, StoreOptions(background=False)) as store:
        assert len(list(store.log("a").entries())) == 3


@pytest.mark.parametrize("flushes", [False, True])
def test_damage_to_what_a_wal_file_repeats_is_no_torn_end(flushes: bool, tmp_path: Path) -> None:
    """The file is whole when it gets its name."""
    with RaftLogStore(tmp_path, StoreOptions(background=False)) as store:
        for index in range(1, 4):
            store.log("a").append([(index, 1, b"entry")])
            store.sync()
    row = tmp_path / "logs" / "a" / "SNAPSHOT"
    row.write_bytes(b"damage")
    with RaftLogStore(tmp_path, StoreOptions(background=False)) as store:
        if flushes:
            store.flush()
    row.unlink()
    newest = max((tmp_path / "wal").glob("*.wal"))
    data = newest.read_bytes()
    newest.write_bytes(b"ENTRY".join(data.rsplit(b"entry", 1)))
    with pytest.raises(CorruptData, match=newest.name):
        RaftLogStore(tmp_path, StoreOptions(background=False))
    newest.write_bytes(data)
    with RaftLogStore(tmp_path, StoreOptions(background=False)) as store:
        assert len(list(store.log("a").entries())) == 3


def fill(log: RaftLog) -> None:
    for index in range(1, 1000):
        log.append([(index, 1, b"entry")])
        log.sync()


def test_memory_is_bounded_on_a_disk_that_takes_no_new_wal_file(tmp_path: Path) -> None:
    """All inodes are used; the files that exist still grow."""
    full = [False]

    def step(request: Request, act: Callable[[], Any]) -> Any:
        if full[0] and request.kind == "create":
            raise StorageError.from_os(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), request.kind, request.path)
        return act()

    options = StoreOptions(log=LogOptions(files=FilesInFront(step)), background=False, max_wal_entries=10)
    with RaftLogStore(tmp_path, options) as store:
        log = store.log("a")
        full[0] = True
        with pytest.raises(StorageError, match="create"):
            fill(log)
        assert log.status().memtable_entries == log.last_index < 100
        full[0] = False
        log.append([(log.last_index + 1, 1, b"entry")])
        log.sync()
        store.flush()
        assert log.status().memtable_entries == 0
        assert len(list(log.entries())) == log.last_index


def test_full_queue_is_synced_by_an_append_to_any_log(tmp_path: Path) -> None:
    with RaftLogStore(tmp_path, StoreOptions(background=False, max_queued_bytes=1000)) as store:
        for number in range(20):
            store.log(f"log-{number}").append([(1, 1, bytes(900))])
            assert store.status().queued_bytes < 3000


class InterruptedAt:
    """An observer that is interrupted at the first event of a name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def event(self, name: str, /, **fields: Any) -> None:
        if name == self._name:
            raise KeyboardInterrupt(name)


def test_interrupt_while_an_opening_reports_damage_leaves_no_thread_and_no_lock(tmp_path: Path) -> None:
    with RaftLogStore(tmp_path, StoreOptions(background=False)) as store:
        store.log("a").append([(1, 1, b"entry")])
    (tmp_path / "logs" / "a" / "SNAPSHOT").write_bytes(b"damage")
    threads = threading.active_count()
    options = LogOptions(observer=InterruptedAt("raftlog_log_damaged"))
    with pytest.raises(KeyboardInterrupt, match="raftlog_log_damaged"):
        RaftLogStore(tmp_path, StoreOptions(log=options))
    assert threading.active_count() == threads
    with RaftLogStore(tmp_path, StoreOptions(background=False)) as store:
        assert store.status().damaged == ("a",)


def test_interrupt_while_the_opening_of_a_log_reports_a_repair_leaves_no_lock(tmp_path: Path) -> None:
    """Also while the exception, and with it what was being opened, is kept."""
    with RaftLogStore(tmp_path, StoreOptions(background=False)) as store:
        store.log("a").append([(1, 1, b"entry")])
    (tmp_path / "logs" / "a" / "0000000000000001.segment.swap").write_bytes(b"left by a crash")
    options = LogOptions(observer=InterruptedAt("raftlog_recovered"))
    with pytest.raises(KeyboardInterrupt, match="raftlog_recovered") as interrupted:
        RaftLogStore(tmp_path, StoreOptions(log=options))
    with RaftLogStore(tmp_path, StoreOptions(background=False)) as store:
        assert len(list(store.log("a").entries())) == 1
        assert interrupted.tb is not None
