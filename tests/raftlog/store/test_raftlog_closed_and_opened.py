# SPDX-License-Identifier: Apache-2.0
"""A log that is closed in the middle of a call, and opened again: the call in the closed log changes nothing in it."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from compactlib.errors import Closed, StorageError, Unsupported
from compactlib.raftlog import Entry, LogOptions, RaftLog, RaftLogStore, SegmentLog, StoreOptions
from compactlib.raftlog.memtable import Memtable
from compactlib.testing import FilesInFront, Interrupted, Request
from tests.harness.interruptions import interruptions
from tests.promises.raftlog.test_raftlog_store_failures import refused


def test_interrupted_truncation_leaves_a_log_that_can_be_opened(tmp_path: Path,
                                                                monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the WAL's queue and memory, too: what is appended next follows what the WAL has."""
    store = RaftLogStore(tmp_path, StoreOptions(background=False))
    log = store.log("a")
    log.append([(index, 1, b"first") for index in range(1, 11)])
    log.sync()

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Memtable, "insert", interrupted)
        with pytest.raises(KeyboardInterrupt):
            log.append_entries(4, 1, [(5, 2, b"second")])
    with contextlib.suppress(Closed):
        again = store.log("a")
        again.append([(again.last_index + 1, 2, b"third")])
        again.sync()
    store.close()
    with RaftLogStore(tmp_path, StoreOptions(background=False)) as store:
        found = list(store.log("a").entries())
        assert [entry.index for entry in found] == list(range(1, len(found) + 1))
        assert len(found) >= 4


def test_log_is_opened_again_behind_an_append_to_the_closed_one(tmp_path: Path,
                                                                monkeypatch: pytest.MonkeyPatch) -> None:
    """Both have the same memory: the two appends do not get the same index."""
    begun, goes_on, appends = threading.Event(), threading.Event(), list[Future[int]]()
    insert, refuses = Memtable.insert, [False]

    def late(self: Memtable, first: int, term: int, payloads: Sequence[bytes]) -> None:
        if payloads == [b"late"]:
            begun.set()
            assert goes_on.wait(60)
        insert(self, first, term, payloads)

    def step(request: Request, act: Callable[[], Any]) -> Any:
        if refuses[0] and request.path.endswith(".segment") and request.kind in ("write", "truncate", "unlink"):
            if not appends:
                appends.append(other.submit(log.append, [(6, 1, b"late")]))
                assert begun.wait(60)
            raise refused(request)
        return act()

    monkeypatch.setattr(Memtable, "insert", late)
    options = StoreOptions(log=LogOptions(files=FilesInFront(step)), background=False)
    with ThreadPoolExecutor(1) as other, RaftLogStore(tmp_path, options) as store:
        log = store.log("a")
        log.append([(index, 1, b"first") for index in range(1, 6)])
        log.sync()
        refuses[0] = True
        with pytest.raises(StorageError):
            store.flush()
        refuses[0] = False
        assert log.is_closed
        timer = threading.Timer(0.2, goes_on.set)
        timer.start()
        again = store.log("a")
        again.append([(again.last_index + 1, 1, b"next")])
        again.sync()
        timer.join()
        appends[0].exception(60)
        shown = list(again.entries())
        assert Entry(shown[-1].index, 1, b"next") == shown[-1]
    with RaftLogStore(tmp_path, StoreOptions(background=False)) as store:
        assert list(store.log("a").entries()) == shown


def test_log_that_closes_itself_during_its_removal_is_not_removed(tmp_path: Path) -> None:
    """The flush of the removal opens it again, and another thread may append to it."""
    removing, other = list[RaftLog](), ThreadPoolExecutor(1)

    def step(request: Request, act: Callable[[], Any]) -> Any:
        if removing and "/wal/" in request.path:
            with pytest.raises(StorageError):
                other.submit(removing[0].end_segment).result(60)
            removing.clear()
        if removing and request.kind == "create":
            raise refused(request)
        return act()

    options = StoreOptions(log=LogOptions(files=FilesInFront(step)), background=False)
    with other, RaftLogStore(tmp_path, options) as store:
        store.log("a").append([(1, 1, b"entry")])
        store.flush()
        removing.append(store.log("a"))
        with pytest.raises(Closed):
            store.remove("a")
        assert store.log("a").last_index == 1
        store.remove("a")
        assert not store.log_ids


def test_checkpoint_behind_an_interrupted_snapshot_keeps_the_state_of_the_snapshot(tmp_path: Path) -> None:
    begins, interrupted = list[int](), Interrupted()

    def step(request: Request, act: Callable[[], Any]) -> Any:
        if request.target.endswith("/SNAPSHOT"):
            begins.append(interrupted.places)
        return act()

    for after in range(40):
        folder = tmp_path / str(after)
        files = LogOptions(files=FilesInFront(step)) if not after else LogOptions()
        with RaftLogStore(folder, StoreOptions(log=files, background=False)) as store:
            log = store.log("a")
            log.append([(index, 1, b"entry") for index in range(1, 4)])
            log.snapshot(1, (), [b"earlier"])
            with contextlib.suppress(KeyboardInterrupt), interrupted:
                log.snapshot(2, (), [b"later"])
            with contextlib.suppress(Closed):
                log.checkpoint(3, (), [b"checkpoint"])
        with RaftLogStore(folder, StoreOptions(background=False)) as store:
            store.log("a").open_state().close()
        interrupted = Interrupted(begins[-1] + after)


# An interrupt between `open` and its `with` closes the file, with this warning.
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
def test_interrupt_at_any_place_of_an_opening_leaves_the_folders_free(tmp_path: Path) -> None:
    stores, kept = list[RaftLogStore](), list[BaseException]()

    def opened() -> None:
        stores.append(RaftLogStore(tmp_path, StoreOptions(background=False)))

    opened()
    stores[0].log("a").append([(1, 1, b"entry")])
    stores.pop().close()
    for interrupted in interruptions(opened, 150):
        while stores:
            stores.pop().close()
        try:
            with interrupted:
                opened()
        except KeyboardInterrupt as error:
            # A kept traceback keeps what was opened.
            kept.append(error)
    assert len(kept) > 100
    while stores:
        # The last place may not have come.
        stores.pop().close()
    with RaftLogStore(tmp_path) as store:
        assert store.log("a").last_index == 1


@pytest.mark.parametrize("call", ["link", "symlink"])
def test_file_system_without_links_is_named_when_a_log_is_made(call: str, tmp_path: Path,
                                                               monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **options: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, call, refused)
    with pytest.raises(Unsupported, match="has no hard or no symbolic links"):
        SegmentLog(tmp_path / "log")
    with RaftLogStore(tmp_path / "store") as store, pytest.raises(Unsupported):
        store.log("a")
    monkeypatch.undo()
    with SegmentLog(tmp_path / "log") as log:
        log.append([(1, 1, b"entry")])
