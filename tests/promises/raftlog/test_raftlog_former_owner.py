# SPDX-License-Identifier: Apache-2.0
"""What a store has begun before it was closed removes nothing of the next owner of its folder."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from compactlib.errors import Closed
from compactlib.raftlog import LogOptions, RaftLog, RaftLogStore, StoreOptions
from compactlib.service import PeriodicService
from compactlib.testing import FilesInFront, Request


class AtWake(PeriodicService):
    """A worker that calls the host when it is woken for the first time."""

    def __init__(self, call: Callable[[], object], log: RaftLog) -> None:
        super().__init__(lambda budget: None, name=f"a worker of {log.log_id}")
        self._calls = [call]

    def wake(self) -> None:
        while self._calls:
            self._calls.pop()()


def store_of(folder: Path, *log_ids: str) -> RaftLogStore:
    store = RaftLogStore(folder, StoreOptions(background=False))
    for log_id in log_ids:
        store.log(log_id).append([(index, 1, b"entry") for index in range(1, 21)])
    return store


def state_in(store: RaftLogStore) -> bytes:
    with store.log("a").open_state() as reader:
        return b"".join(reader.pieces())


def test_snapshot_that_ends_after_a_close_removes_no_later_state(tmp_path: Path) -> None:
    store, later = store_of(tmp_path, "a"), list[RaftLogStore]()

    def hand_over() -> None:
        store.close()
        later.append(store_of(tmp_path))
        later[0].log("a").snapshot(20, (), [b"later"])

    store.log("a").attach(partial(AtWake, hand_over))
    store.log("a").snapshot(10, (), [b"earlier"])
    with later[0]:
        assert state_in(later[0]) == b"later"


def test_snapshot_that_fails_after_a_close_removes_no_later_state(tmp_path: Path) -> None:
    store, later = store_of(tmp_path, "a"), list[RaftLogStore]()

    def state() -> Iterator[bytes]:
        yield b"earlier"
        store.close()
        later.append(store_of(tmp_path))
        later[0].log("a").snapshot(10, (), [b"later"])
        raise RuntimeError("the machine failed")

    with pytest.raises(RuntimeError, match="the machine failed"):
        store.log("a").snapshot(10, (), state())
    with later[0]:
        assert state_in(later[0]) == b"later"


def test_flush_that_outlives_a_close_removes_no_later_state(tmp_path: Path) -> None:
    store, later = store_of(tmp_path, "b", "a"), list[RaftLogStore]()
    is_written, has_flushed = threading.Event(), threading.Event()

    def step(request: Request, act: Callable[[], Any]) -> Any:
        if request.kind == "create" and request.path.endswith("SNAPSHOT.tmp") and list(tmp_path.rglob("*.state")):
            is_written.set()
            assert has_flushed.wait(60)
        return act()

    def take() -> None:
        later[0].log("a").snapshot(10, (), [b"later"])

    def hand_over() -> None:
        store.close()
        later.append(RaftLogStore(tmp_path, StoreOptions(log=LogOptions(files=FilesInFront(step)), background=False)))
        taking.start()
        assert is_written.wait(60)

    taking = threading.Thread(target=take)
    store.log("b").attach(partial(AtWake, hand_over))
    with pytest.raises(Closed):
        store.flush()
    has_flushed.set()
    taking.join()
    with later[0]:
        assert state_in(later[0]) == b"later"


class AtStop(PeriodicService):
    """A worker that calls the host when it is stopped for the second time."""

    def __init__(self, call: Callable[[], object], log: RaftLog) -> None:
        super().__init__(lambda budget: None, name=f"a worker of {log.log_id}")
        self._calls: list[Callable[[], object]] = [call, lambda: None]

    def stop(self, *, wait_seconds: float = 30.0) -> None:
        super().stop(wait_seconds=wait_seconds)
        if self._calls:
            self._calls.pop()()


def test_removal_that_a_close_overtakes_removes_no_log_of_the_next_owner(tmp_path: Path) -> None:
    store = store_of(tmp_path, "a")

    def hand_over() -> None:
        store.close()
        with store_of(tmp_path) as later:
            later.log("a").append([(21, 1, b"later")])

    store.log("a").attach(partial(AtStop, hand_over))
    with pytest.raises(Closed):
        store.remove("a")
    with store_of(tmp_path) as after:
        assert after.log("a").last_index == 21
