# SPDX-License-Identifier: Apache-2.0
"""No call changes a file of a folder after `close` or `remove`: the next owner, of a store or of a log, owns it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from compactlib.errors import (
    BudgetSpent,
    Busy,
    Closed,
    CompactionFailed,
    CompactlibError,
    NotFound,
    StorageError,
)
from compactlib.raftlog import Entry, LogOptions, RaftLog, RaftLogStore, SeedPolicy, StoreOptions
from compactlib.testing import FilesInFront, Request
from tests.harness.closing import Closing, close_everywhere
from tests.harness.effort import Effort
from tests.harness.snapshot_line import transfer
from tests.promises.raftlog.test_raftlog_received_snapshots import leader
from tests.promises.raftlog.test_raftlog_store_failures import refused

CALLS: dict[str, Callable[[RaftLog, RaftLogStore, Path], object]] = {
    "log": lambda log, store, _: store.log("new"),
    "remove": lambda log, store, _: store.remove("log"),
    "flush": lambda log, store, _: store.flush(),
    "append": lambda log, store, _: appended(log),
    "reset": lambda log, store, _: log.reset(9),
    "append_entries": lambda log, store, _: log.append_entries(9, 1, [(10, 2, b"second")]),
    "snapshot": lambda log, store, _: log.snapshot(12, (3,), [b"state"]),
    "checkpoint": lambda log, store, _: log.checkpoint(12, (3,), [b"state"]),
    "promote": lambda log, store, _: log.promote(8),
    "checkpoints": lambda log, store, _: log.checkpoints,
    "record_hard_state": lambda log, store, _: log.record_hard_state(7, "me"),
    "compact": lambda log, store, _: log.compact(policy=SeedPolicy()),
    "receive": lambda log, store, scratch: received(log, scratch),
}


def appended(log: RaftLog) -> int:
    log.append([(log.last_index + 1, 5, b"next")])
    log.sync()
    return log.last_index


def next_store(store: RaftLogStore) -> RaftLogStore:
    return RaftLogStore(store.folder, StoreOptions(background=False))


def closed_store(store: RaftLogStore, _: Closing) -> RaftLogStore:
    store.close()
    return next_store(store)


def interrupted_store(store: RaftLogStore, closing: Closing) -> RaftLogStore:
    closing.interrupt(lambda: appended(store.log("b")))
    return next_store(store)


def closed_log(store: RaftLogStore, _: Closing) -> RaftLogStore:
    store.log("log").close()
    return store


def removed_log(store: RaftLogStore, _: Closing) -> RaftLogStore:
    with contextlib.suppress(NotFound):
        store.remove("log")
    return store


CLOSES = {"store": closed_store, "interrupt": interrupted_store, "log": closed_log, "remove": removed_log}
"""Each closes or removes, and returns a store with an open log."""


def received(log: RaftLog, scratch: Path) -> None:
    with leader(scratch) as of:
        ended = transfer(of, log, applied=7)
    if isinstance(ended.received, BaseException):
        raise ended.received


def prepared(folder: Path, files: FilesInFront) -> RaftLogStore:
    """A store with a log that has a snapshot, a checkpoint, segments, entries in memory, and dead entries."""
    store = RaftLogStore(folder, StoreOptions(log=LogOptions(files=files), background=False))
    store.log("b").append([(1, 1, b"entry")])
    log = store.log("log")
    log.append([(index, 1, b"entry") for index in range(1, 7)])
    store.flush()
    log.end_segment()
    log.append([(index, 1, b"entry") for index in range(7, 11)])
    store.flush()
    log.snapshot(7, (3,), [b"earlier"])
    log.checkpoint(8, (3,), [b"checkpoint"])
    log.append([(index, 1, b"entry") for index in range(11, 21)])
    store.sync()
    return store


def is_own(path: str) -> bool:
    """Whether it is a state: it has a name that no other owner uses, and its caller's iterator runs meanwhile."""
    return path.endswith((".state", "/snapshots")) and ".incoming." not in path


@pytest.mark.parametrize("closes", CLOSES)
@pytest.mark.parametrize("call", CALLS)
def test_no_call_changes_a_log_after_a_close(call: str, closes: str, tmp_path: Path, effort: Effort) -> None:
    def closed_before(line: int) -> Closing:
        folder, closing = tmp_path / str(line), Closing(is_own)
        store = prepared(folder, closing.files)
        log = store.log("log")

        def work(later: RaftLogStore) -> int:
            with contextlib.nullcontext() if later is store else later:
                return appended(later.log("log"))

        with (closing.before(line, lambda: CLOSES[closes](store, closing), work),
              contextlib.suppress(Closed, BudgetSpent, CompactionFailed,
                                  *[StorageError] if closes == "remove" else [])):
            CALLS[call](log, store, tmp_path / f"leader-{line}")
        closed = closing.closed
        index = None if closed is None else closed.result(60)
        store.close()
        assert closes in ("log", "remove") or not closing.late, f"closed before line {line}"
        with RaftLogStore(folder, StoreOptions(background=False)) as later:
            later.audit()
            found = list(later.log("log").entries())
            if index is not None and (found or call != "remove"):
                assert found[-1] == Entry(index, 5, b"next"), f"closed before line {line}"
            begins = later.log("log").state.index + 1
            whole = [entry.index for entry in found if entry.index >= begins]
            assert whole == list(range(begins, begins + len(whole))), f"closed before line {line}"
            assert later.log("b").last_index >= 1
        return closing

    close_everywhere(closed_before, effort(20, 200))


def test_snapshot_that_fails_after_a_close_removes_no_later_state(tmp_path: Path) -> None:
    store, later = prepared(tmp_path, FilesInFront(lambda request, act: act())), list[RaftLogStore]()

    def state() -> Iterator[bytes]:
        yield b"earlier"
        store.close()
        later.append(RaftLogStore(tmp_path, StoreOptions(background=False)))
        later[0].log("log").snapshot(12, (), [b"later"])
        raise RuntimeError("the machine failed")

    with pytest.raises(RuntimeError, match="the machine failed"):
        store.log("log").snapshot(12, (), state())
    with later[0], later[0].log("log").open_state() as reader:
        assert b"".join(reader.pieces()) == b"later"


def test_close_from_within_a_flush_is_refused(tmp_path: Path) -> None:
    stores, refusals = list[RaftLogStore](), list[CompactlibError]()

    def step(request: Request, act: Callable[[], Any]) -> Any:
        if stores and request.kind == "unlink" and request.path.endswith(".wal"):
            with pytest.raises(Busy, match="from within its own work") as caught:
                stores[0].close()
            refusals.append(caught.value)
        return act()

    with prepared(tmp_path, FilesInFront(step)) as store:
        stores.append(store)
        store.flush()
        assert refusals
        assert store.log("log").last_index == 20


def test_observer_of_a_snapshot_closes_the_log(tmp_path: Path) -> None:
    closed = list[RaftLog]()

    class Closes:
        def event(self, name: str, /, **_: object) -> None:
            if name == "raftlog_unreclaimed":
                log.close()
                closed.append(log)

    def step(request: Request, act: Callable[[], Any]) -> Any:
        if not closed and request.kind == "unlink" and request.path.endswith(".state"):
            raise refused(request)
        return act()

    options = LogOptions(files=FilesInFront(step), observer=Closes())
    with RaftLogStore(tmp_path, StoreOptions(log=options, background=False)) as store:
        log = store.log("log")
        log.append([(1, 1, b"entry"), (2, 1, b"entry")])
        log.snapshot(1, (), [b"earlier"])
        log.snapshot(2, (), [b"later"])
        assert closed
        assert store.log("log").state.index == 2
