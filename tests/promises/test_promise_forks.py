# SPDX-License-Identifier: Apache-2.0
"""A forked child uses no open object of its parent: each call refuses, and the parent continues."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from compactlib.blobstore import Blob, BlobStore
from compactlib.errors import Closed
from compactlib.kv import SqliteStore
from compactlib.objects import MemoryObjects
from compactlib.raftlog import RaftLogStore, SegmentLog
from tests.harness.forks import in_a_fork

Opened = tuple[Any, list[Callable[[], object]], Callable[[], object]]


def segment_log(folder: Path) -> Opened:
    log = SegmentLog(folder)
    log.append([(1, 1, b"one")])
    log.sync()
    return log, [lambda: log.read(1), lambda: log.append([(2, 1, b"two")]), log.sync, log.compact], lambda: log.read(1)


def raft_log_store(folder: Path) -> Opened:
    store = RaftLogStore(folder)
    log = store.log("a")
    log.append([(1, 1, b"one")])
    log.sync()
    return store, [lambda: log.read(1), lambda: list(log.entries()), lambda: log.append([(2, 1, b"two")]), log.sync,
                   log.compact, store.sync, lambda: store.log("b")], lambda: log.read(1)


def blob_store(folder: Path) -> Opened:
    store = BlobStore(folder)
    store.put(b"a", b"1")

    def read() -> None:
        assert isinstance(store.get(b"a"), Blob)

    return store, [read, lambda: store.info(b"a"), lambda: store.put(b"b", b"2"), lambda: store.delete(b"a"),
                   store.flush, store.compact, store.entries_since, store.status], read


def sqlite_store(folder: Path) -> Opened:
    store = SqliteStore(folder / "file")
    store.set(b"p", b"a", b"1")
    return store, [lambda: store.get(b"p", b"a"), lambda: store.set(b"p", b"b", b"2")], lambda: store.get(b"p", b"a")


@pytest.mark.parametrize("opener", [segment_log, raft_log_store, blob_store, sqlite_store])
def test_fork_is_refused_by_every_call_and_its_parent_works(opener: Callable[[Path], Opened], tmp_path: Path) -> None:
    store, calls, read = opener(tmp_path)

    def refused() -> list[str]:
        answers = []
        for call in calls:
            try:
                answers.append(repr(call()))
            except Closed as error:
                answers.append("refused" if "fork" in str(error) else str(error))
        store.close()
        return answers

    with ExitStack() as stack:
        stack.callback(store.close)
        assert in_a_fork(refused) == ["refused"] * len(calls)
        read()


def test_fork_of_a_fork_is_refused_by_objects_of_both(tmp_path: Path) -> None:
    def refused(log: SegmentLog) -> bool:
        with pytest.raises(Closed, match="fork"):
            log.read(1)
        return True

    def forks_again(log: SegmentLog) -> tuple[int, int | None]:
        with SegmentLog(tmp_path / "child") as own:
            own.append([(1, 1, b"one")])
            grandchild = os.fork()
            if not grandchild:
                try:
                    os._exit(0 if refused(log) and refused(own) else 1)
                finally:
                    os._exit(2)
            _, status = os.waitpid(grandchild, 0)
            own.append([(2, 1, b"two")])
            return status, own.last_index

    with SegmentLog(tmp_path / "parent") as log:
        log.append([(1, 1, b"one")])
        assert in_a_fork(lambda: forks_again(log)) == (0, 2)


@pytest.mark.parametrize("frozen", [False, True])
def test_fork_is_refused_by_each_of_two_equal_stores_of_a_host(frozen: bool) -> None:
    """A host's class may be a dataclass, which is compared by its fields, and may have no hash."""
    @dataclass(eq=True, unsafe_hash=frozen)
    class Own(MemoryObjects):
        bucket: str

        def __post_init__(self) -> None:
            super().__init__()

    stores = [Own("a"), Own("a")]

    def refused() -> int:
        for store in stores:
            with pytest.raises(Closed, match="fork"):
                list(store.list())
        return len(stores)

    assert in_a_fork(refused) == 2
