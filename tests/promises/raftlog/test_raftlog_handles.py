# SPDX-License-Identifier: Apache-2.0
"""The file handles of a store do not grow with its logs, and nobody else writes to a log of a store."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from compactlib.errors import Busy, StorageError, Unsupported
from compactlib.files import LocalFiles, OutFile
from compactlib.raftlog import (
    LocalLog,
    LogOptions,
    LogReader,
    RaftLog,
    RaftLogStore,
    SeedPolicy,
    SegmentLimits,
    SegmentLog,
    StoreOptions,
    open_log,
)
from tests.harness.open_files import open_files

pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="lists the handles of a process")

LOGS = 40
READERS = 8
OPTIONS = StoreOptions(background=False, log=LogOptions(
    limits=SegmentLimits(max_entries=4), max_open_segments=READERS, keep_links_seconds=0))
OF_A_STORE = 3
"""The folder and the file of its lock, and the newest file of the WAL."""


def fill(store: RaftLogStore, first: int, last: int) -> None:
    for number in range(LOGS):
        store.log(f"log-{number}").append([(index, 1, b"entry %d" % index) for index in range(first, last + 1)])


def logs_of(store: RaftLogStore) -> Iterator[RaftLog]:
    return map(store.log, store.log_ids)


def test_handles_of_a_store_do_not_grow_with_its_logs(tmp_path: Path) -> None:
    with RaftLogStore(tmp_path, OPTIONS) as store:
        fill(store, 1, 18)
        store.sync()
        assert len(open_files(tmp_path)) <= OF_A_STORE, open_files(tmp_path)
        store.flush()
        assert len(open_files(tmp_path)) <= OF_A_STORE, open_files(tmp_path)
        for log in logs_of(store):
            assert [log.read(index).index for index in (1, 7, 18)] == [1, 7, 18]
        assert len(open_files(tmp_path)) <= OF_A_STORE + READERS, open_files(tmp_path)
    assert open_files(tmp_path) == []
    with RaftLogStore(tmp_path, OPTIONS) as store:
        assert len(open_files(tmp_path)) <= OF_A_STORE, open_files(tmp_path)
        for log in logs_of(store):
            log.reset(15)
        assert len(open_files(tmp_path)) <= OF_A_STORE + READERS, open_files(tmp_path)


def test_store_with_more_logs_than_handles_does_its_work(tmp_path: Path) -> None:
    with RaftLogStore(tmp_path, OPTIONS) as store:
        fill(store, 1, 18)
    with few_handles(READERS + 16), RaftLogStore(tmp_path, OPTIONS) as store:
        fill(store, 19, 26)
        store.flush()
        for log in logs_of(store):
            log.snapshot(20, live=[2, 7, 9])
            assert log.compact(policy=SeedPolicy()).dropped
            assert [entry.index for entry in log.entries()] == [2, 7, 9, *range(21, 27)]
            assert log.verify().is_sound
    with RaftLogStore(tmp_path, OPTIONS) as store:
        assert all(log.last_index == 26 for log in logs_of(store))


@contextmanager
def few_handles(count: int) -> Iterator[None]:
    """Limit the process to `count` more handles."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = max(map(int, os.listdir("/proc/self/fd")))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 1 + count, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class Handles(LocalFiles):
    """A disk whose segments cannot be opened while `are_used_up` is set."""

    are_used_up = False

    def open(self, path: str | os.PathLike[str]) -> OutFile:
        if self.are_used_up and os.fspath(path).endswith(".segment"):
            raise StorageError.from_os(OSError(errno.EMFILE, "Too many open files"), "open", path)
        return super().open(path)


def test_flush_without_handles_is_repeated(tmp_path: Path) -> None:
    files = Handles()
    options = StoreOptions(background=False, log=LogOptions(files=files))
    with RaftLogStore(tmp_path, options) as store:
        log = store.log("a")
        log.append([(1, 1, b"one"), (2, 1, b"two")])
        store.flush()
        log.append([(3, 1, b"three")])
        files.are_used_up = True
        with pytest.raises(StorageError, match="Too many open files"):
            store.flush()
        assert not log.is_closed
        assert [log.read(index) for index in (2, 3)] == [(2, 1, b"two"), (3, 1, b"three")]
        files.are_used_up = False
        log.append([(4, 1, b"four")])
        store.flush()
        assert len(log.refs) == 1
    with RaftLogStore(tmp_path, OPTIONS) as store:
        assert [entry.payload for entry in store.log("a").entries()] == [b"one", b"two", b"three", b"four"]


class ClosedOnce(LocalFiles):
    """A disk that refuses to close the next segment that is opened, after its descriptor is gone."""

    refuses = False

    def open(self, path: str | os.PathLike[str]) -> OutFile:
        out = super().open(path)
        if self.refuses and os.fspath(path).endswith(".segment"):
            self.refuses, close = False, out.close

            def refused() -> None:
                close()
                raise StorageError.from_os(OSError(errno.EIO, os.strerror(errno.EIO)), "close", path)

            out.close = refused  # type: ignore[method-assign]
        return out


def test_flush_whose_segment_does_not_close_is_repeated(tmp_path: Path) -> None:
    files = ClosedOnce()
    with RaftLogStore(tmp_path, StoreOptions(background=False, log=LogOptions(files=files))) as store:
        log = store.log("a")
        log.append([(1, 1, b"one")])
        store.flush()
        log.append([(2, 1, b"two")])
        files.refuses = True
        with pytest.raises(StorageError, match="close"):
            store.flush()
        assert not log.is_closed
        log.append([(3, 1, b"three")])
        store.flush()
        assert len(log.refs) == 1
    with RaftLogStore(tmp_path, OPTIONS) as store:
        assert [entry.payload for entry in store.log("a").entries()] == [b"one", b"two", b"three"]


@pytest.mark.parametrize("is_open", [True, False])
@pytest.mark.parametrize("opened", [SegmentLog, LocalLog, RaftLogStore, open_log])
def test_folder_of_a_log_of_a_store_is_refused_by_name(opened: Callable[[Path], object], is_open: bool,
                                                       tmp_path: Path) -> None:
    store = RaftLogStore(tmp_path, OPTIONS)
    log = store.log("a")
    log.append([(1, 1, b"one")])
    log.sync()
    if not is_open:
        store.close()
    folder = tmp_path / "logs" / "a"
    names = sorted(os.listdir(folder))
    with pytest.raises(Unsupported, match="log of a store"):
        opened(folder)
    assert sorted(os.listdir(folder)) == names
    with LogReader(folder) as reader:
        assert reader.last_index == 1
    store.close()


@pytest.mark.parametrize("moved", ["logs", "logs/a"])
def test_log_of_a_store_that_is_reached_by_a_link_has_one_writer(moved: str, tmp_path: Path) -> None:
    """Its logs may be on another disk, where nothing beside them tells of the store."""
    folder = tmp_path / "store" / moved
    with RaftLogStore(tmp_path / "store", OPTIONS) as store:
        store.log("a").append([(1, 1, b"one")])
        store.flush()
    elsewhere = folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(elsewhere)
    log = elsewhere / "a" if moved == "logs" else elsewhere
    with RaftLogStore(tmp_path / "store", OPTIONS) as store:
        with pytest.raises(Busy):
            SegmentLog(log)
        store.log("a").append([(2, 1, b"two")])
        store.flush()
    with SegmentLog(log), pytest.raises(Busy):
        RaftLogStore(tmp_path / "store", OPTIONS)


def test_two_logs_of_a_store_do_not_write_to_one_folder(tmp_path: Path) -> None:
    """As on a file system whose names ignore case; here by a link."""
    with RaftLogStore(tmp_path, OPTIONS) as store:
        for name in "ab":
            store.log(name).append([(1, 1, b"one")])
        store.flush()
        (tmp_path / "logs" / "c").symlink_to("a")
        with pytest.raises(Unsupported, match="the folder of log 'a'"):
            store.log("c")
        store.remove("b")
        for name in "bd":
            store.log(name).append([(1, 1, b"two")])
    with RaftLogStore(tmp_path, OPTIONS) as store:
        assert store.status().damaged == ("c",)
        assert [(name, store.log(name).read(1)) for name in "abd"] == [
            ("a", (1, 1, b"one")), ("b", (1, 1, b"two")), ("d", (1, 1, b"two"))]
        store.remove("c")
    with RaftLogStore(tmp_path, OPTIONS) as store:
        assert store.status().damaged == ()
        assert store.log("a").read(1) == (1, 1, b"one")
