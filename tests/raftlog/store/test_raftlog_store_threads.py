# SPDX-License-Identifier: Apache-2.0
"""The store's own threads, a log's worker and those they tell: nothing that is raised ends a thread or stays unsaid."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from compactlib.clock import ManualClock
from compactlib.errors import AuditFailed, Busy, Closed, DiskFull
from compactlib.executors import LocalExecutor, RewriteFailure, RewriteResult, RewriteTask
from compactlib.outcome import Done, Failed, Skipped
from compactlib.raftlog import (
    Entry,
    LogCompactionWorker,
    LogOptions,
    RaftLog,
    RaftLogStore,
    SegmentLimits,
    SegmentLog,
    SnapshotMeta,
    StoreOptions,
)
from compactlib.raftlog.errors import Overwriting
from compactlib.raftlog.log.worker import SegmentChanges
from compactlib.raftlog.wal.batch import Confirmed
from compactlib.raftlog.wal.wal import Wal
from compactlib.runtime import Budget, Observer, RecordingObserver
from compactlib.runtime.later import LaterCalls
from tests.raftlog.raft_host import indexes, rows
from tests.raftlog.wrapped_files import UnsyncedFiles, WatchedFiles


def small(files: Any = None, observer: Observer | None = None) -> LogOptions:
    return LogOptions(limits=SegmentLimits(max_entries=4), keep_links_seconds=0.0, observer=observer or Observer(),
                      files=UnsyncedFiles() if files is None else files)


@contextlib.contextmanager
def no_thread_dies() -> Iterator[None]:
    died: list[object] = []
    before, threading.excepthook = threading.excepthook, lambda args: died.append(args.exc_value)
    try:
        yield
    finally:
        threading.excepthook = before
    assert died == []


# -- the outbox


def test_calls_are_made_in_order_once_nobody_holds_a_lock() -> None:
    told: list[str] = []
    outbox = LaterCalls()

    def asking(name: str) -> None:
        told.append(name)
        if name == "first":
            outbox.put(told.append, "caused")
            outbox.deliver()
        raise KeyError(name)

    with outbox, outbox.held():
        with outbox, outbox.held():
            outbox.put(asking, "first")
            outbox.put(asking, "second")
        outbox.deliver()
        assert told == []
    assert told == ["first", "second", "caused"]
    assert (outbox.failures, repr(outbox.last_error)) == (2, "KeyError('second')")
    assert "0 calls wait, 2 failed" in repr(outbox)


def test_one_thread_delivers_for_all_and_nothing_is_left() -> None:
    told: list[int] = []
    outbox = LaterCalls()

    def put(start: int) -> None:
        for number in range(start, start + 200):
            with outbox, outbox.held():
                outbox.put(told.append, number)

    threads = [threading.Thread(target=put, args=[1000 * each]) for each in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(told) == 800
    for each in range(4):
        assert [number for number in told if number // 1000 == each] == list(range(1000 * each, 1000 * each + 200))


# -- the host's callback


def test_a_callback_that_raises_stops_no_sync_and_is_told(tmp_path: Path) -> None:
    seen = threading.Event()

    def told(confirmed: Confirmed) -> None:
        if 1 in confirmed.indexes:
            raise ValueError("bug in the host")
        seen.set()

    options = StoreOptions(log=small(), sync_by_itself=True)
    with no_thread_dies(), RaftLogStore(tmp_path, options) as store:
        log = store.log("a")
        log.attach(on_confirmed=told)
        log.append(rows(1, 1))
        log.sync()
        log.append(rows(2, 2))
        assert seen.wait(30)
        assert not log.unconfirmed
        assert (log.status().failures, log.status().last_error) == (1, "ValueError: bug in the host")
        store.audit()


def test_a_callback_may_use_the_log_and_wait_for_others_who_do(tmp_path: Path) -> None:
    """Nothing is held while it is called: another thread may append, sync and take snapshots meanwhile."""
    with RaftLogStore(tmp_path, StoreOptions(log=small(), background=False, max_wal_bytes=1)) as store:
        log = store.log("a")
        done: list[int] = []

        def go_on(last: int) -> None:
            log.append(rows(last + 1, last + 1))
            store.flush()
            log.snapshot(last)

        def use(confirmed: Confirmed) -> None:
            last = confirmed.indexes.last
            done.append(last)
            if last < 20:
                other = threading.Thread(target=go_on, args=[last])
                other.start()
                other.join(30)
                assert not other.is_alive()
                log.sync()

        log.attach(on_confirmed=use)
        log.append(rows(1, 1))
        log.snapshot(1)
        assert done == list(range(1, 21))
        assert log.status().failures == 0


class Broken:
    """A worker of the host's own that raises whenever it is told something."""

    def __init__(self, log: Any) -> None:
        self.told = 0

    def snapshot_recorded(self, row: SnapshotMeta) -> None:
        self.told += 1
        raise RuntimeError("a worker's bug")

    def segments_flushed(self, last_index: int | None) -> None:
        self.told += 1
        raise RuntimeError("a worker's bug")

    def start(self) -> None:
        """Nothing."""

    def carry_out(self, compact: Callable[[], Any]) -> Any:
        return compact()

    def stop(self, *, wait_seconds: float = 30.0) -> Done[str]:
        """Nothing."""
        return Done("nothing")


def test_a_worker_of_the_hosts_that_raises_breaks_neither_snapshots_nor_flushes(tmp_path: Path) -> None:
    with RaftLogStore(tmp_path, StoreOptions(log=small(), background=False)) as store:
        log = store.log("a")
        log.attach(worker=Broken)
        log.append(rows(1, 9))
        log.snapshot(5)
        store.flush()
        assert log.state.index == 5
        assert log.status().failures == 2
        store.audit()


# -- the store's threads


class Raising(Observer):
    """Raises whatever it is told."""

    def event(self, name: str, fields: Mapping[str, Any]) -> None:
        raise RuntimeError(name)

    def count(self, name: str, value: int = 1, labels: Mapping[str, str] | None = None) -> None:
        raise RuntimeError(name)

    def progress(self, progress: object) -> None:
        raise RuntimeError("progress")


def test_an_observer_that_always_raises_changes_nothing(tmp_path: Path) -> None:
    def life(folder: Path, observer: Observer) -> list[int]:
        options = StoreOptions(log=small(observer=observer), max_wal_bytes=200, background=False)
        with RaftLogStore(folder, options) as store:
            log = store.log("a")
            for index in range(1, 30):
                log.append(rows(index, index))
                log.sync()
            log.snapshot(20, [3])
            log.compact(policy=log.policy)
        with RaftLogStore(folder, options) as store:
            store.audit()
            return indexes(store.log("a"))

    assert life(tmp_path / "a", Raising()) == life(tmp_path / "b", Observer()) == [3, *range(21, 30)]


def test_a_sync_in_the_background_that_is_refused_is_told_and_tried_again(tmp_path: Path) -> None:
    # The write, the cut of what it may have left, and that cut once more.
    refusals = iter([True] * 3)
    armed = threading.Event()

    def look(operation: str, path: str) -> None:
        if armed.is_set() and operation == "write" and path.endswith(".wal") and next(refusals, False):
            raise DiskFull(operation=operation, path=path, errno=errno.ENOSPC)

    told = RecordingObserver()
    confirmed = threading.Event()
    options = StoreOptions(log=small(WatchedFiles(look, UnsyncedFiles()), told), sync_by_itself=True)
    with no_thread_dies(), RaftLogStore(tmp_path, options) as store:
        log = store.log("a")
        log.attach(on_confirmed=lambda found: confirmed.set())
        armed.set()
        log.append(rows(1, 1))
        # Nobody asks again: the thread does by itself.
        assert confirmed.wait(30)
        failed = [fields for name, fields in told.events if name == "raftlog_sync_failed"]
        assert [fields["failures"] for fields in failed] == [1, 2]
        assert store.status().failures == 2
        assert "DiskFull" in str(store.status().last_error)
        store.audit()


def test_a_flush_that_raises_what_nobody_expects_is_shown_until_one_goes_well(tmp_path: Path) -> None:
    broken = [False]

    def look(operation: str, path: str) -> None:
        if broken[0] and operation == "sync" and path.endswith(".segment"):
            raise ZeroDivisionError("a bug in somebody's Files")

    options = StoreOptions(log=small(WatchedFiles(look, UnsyncedFiles())), background=False, max_wal_bytes=1)
    with RaftLogStore(tmp_path, options) as store:
        log = store.log("a")
        broken[0] = True
        log.append(rows(1, 2))
        log.sync()
        assert store.status().failures == 1
        assert store.status().last_error == "ZeroDivisionError: a bug in somebody's Files"
        with pytest.raises(AuditFailed, match="ZeroDivisionError"):
            store.audit()
        broken[0] = False
        log = store.log("a")
        log.append(rows(3, 3))
        log.sync()
        store.audit()
        assert store.status().failures == 1
        assert indexes(log) == [1, 2, 3]


def test_a_store_is_not_closed_by_what_its_own_threads_call(tmp_path: Path) -> None:
    answers: list[object] = []
    asked = threading.Event()

    def close(confirmed: Confirmed) -> None:
        try:
            store.close()
        except Busy as error:
            answers.append(error)
        asked.set()

    with RaftLogStore(tmp_path, StoreOptions(log=small(), sync_by_itself=True)) as store:
        store.log("a").attach(on_confirmed=close)
        store.log("a").append(rows(1, 1))
        assert asked.wait(30)
        assert len(answers) == 1
        store.log("a").append(rows(2, 2))
        assert indexes(store.log("a")) == [1, 2]


# -- the worker


def dying(folder: Path, observer: Observer | None = None) -> SegmentLog:
    log = SegmentLog(folder, small(observer=observer))
    log.extend((index, 1, b"x" * 100) for index in range(1, 40))
    log.record_snapshot(30, live=[2, 6, 10, 14])
    return log


class Fails:
    """An executor that raises so many times, and copies in its own thread then."""

    def __init__(self, *errors: BaseException) -> None:
        self.errors = list(errors)

    def run(self, tasks: Iterable[RewriteTask], *, budget: Budget | None = None, observer: Observer | None = None
            ) -> Iterator[RewriteResult | RewriteFailure]:
        if self.errors:
            raise self.errors.pop(0)
        yield from LocalExecutor().run(tasks, budget=budget, observer=observer)


def test_an_executor_that_raises_leaves_the_worker_at_work_and_no_lease_behind(tmp_path: Path) -> None:
    told = RecordingObserver()
    with no_thread_dies(), dying(tmp_path) as log, \
            LogCompactionWorker(log, executor=Fails(*[RuntimeError("py4j went away")] * 2), observer=told) as worker:
        worker.request(log.policy)
        outcome = worker.wait_until_idle(30)
        assert isinstance(outcome, Failed)
        assert "py4j went away" in str(worker.last_error)
        assert worker.failures >= 1
        # It is tried again by itself, and by whoever asks.
        worker.request(log.policy)
        worker.wait_until_idle(30)
        worker.request(log.policy)
        outcome = worker.wait_until_idle(30)
        assert isinstance(outcome, Done | Skipped)
        names = {path.name for path in tmp_path.glob("*.segment") if not path.is_symlink()}
        assert len(names) == len(log.refs)
        assert [entry.index for entry in log.entries()] == [2, 6, 10, 14, *range(31, 40)]
        assert worker.failures == 2
    assert {name for name, _ in told.events} == {"raftlog_worker_failed"}


def test_what_an_executor_raised_is_tried_again_without_being_asked(tmp_path: Path) -> None:
    merged = threading.Event()

    def server(changes: SegmentChanges, outcome: object) -> None:
        if changes.merged:
            merged.set()

    # The first time it drops what is dead and looks again at once, the second time there is nothing left but to wait.
    with dying(tmp_path) as log, LogCompactionWorker(log, executor=Fails(*[RuntimeError("twice")] * 2),
                                                  server=server) as worker:
        worker.request(log.policy)
        assert merged.wait(30)
        assert worker.failures == 2


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_an_exit_lets_go_what_the_worker_held_and_is_shown(kind: type[BaseException], tmp_path: Path) -> None:
    with dying(tmp_path) as log:
        worker = LogCompactionWorker(log, executor=Fails(kind()))
        worker.start()
        worker.request(log.policy)
        with pytest.raises(AuditFailed, match=kind.__name__):
            worker.wait_until_idle(30)
        assert isinstance(worker.last_error, kind)
        assert isinstance(worker.stop(), Done)
        assert isinstance(log.compact(policy=log.policy), Done)
        names = {path.name for path in tmp_path.glob("*.segment") if not path.is_symlink()}
        assert len(names) == len(log.refs), "no lease keeps what was dropped"


def opened(folder: Path, observer: Observer | None = None) -> tuple[RaftLogStore, RaftLog]:
    store = RaftLogStore(folder, StoreOptions(log=small(observer=observer), background=False))
    log = store.log("a")
    log.append(rows(1, 40))
    store.flush()
    return store, log


def test_a_logs_status_shows_what_its_worker_met(tmp_path: Path) -> None:
    store, log = opened(tmp_path)
    with store:
        worker = LogCompactionWorker(log.segments, executor=Fails(*[RuntimeError("py4j went away")] * 100))
        log.attach(worker=lambda made: worker)
        log.snapshot(30, [2, 6])
        worker.request(log.policy)
        worker.wait_until_idle(30)
        assert log.status().failures >= 1
        assert "py4j went away" in str(log.status().last_error)
        assert log.last_error is not None


def test_what_an_earlier_life_left_dead_is_freed_without_another_snapshot(tmp_path: Path) -> None:
    store, log = opened(tmp_path)
    with store:
        log.snapshot(30, [2])
        assert len(log.segments.refs) == 10
    with RaftLogStore(tmp_path, StoreOptions(log=small(), background=False)) as store:
        log = store.log("a")
        worker = LogCompactionWorker(log.segments)
        log.attach(worker=lambda made: worker)
        # By its first look, or because it is notified of the snapshot in force: whichever comes first.
        worker.wait_until_idle(30)
        assert len(log.segments.refs) == 4


CLOSERS: dict[str, Callable[[RaftLogStore, RaftLog], object]] = {
    "log": lambda store, log: log.close(), "store": lambda store, log: store.close(),
    "remove": lambda store, log: store.remove("a")}


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("by", ["worker", "caller"])
@pytest.mark.parametrize("closer", list(CLOSERS))
def test_closing_from_inside_a_compaction_is_busy_on_any_thread(closer: str, by: str, workers: int,
                                                                tmp_path: Path) -> None:
    answers: list[str] = []

    class Closing(Observer):
        def progress(self, progress: object) -> None:
            if threading.current_thread() is not main or by == "caller":
                try:
                    CLOSERS[closer](store, log)
                except Busy:
                    answers.append("Busy")
                else:
                    answers.append("closed")

    main = threading.main_thread()
    store, log = opened(tmp_path, Closing())
    with store:
        if by == "worker":
            worker = LogCompactionWorker(log.segments, executor=LocalExecutor(workers))
            log.attach(worker=lambda made: worker)
            log.snapshot(30, [2, 6])
            worker.request(log.policy)
            worker.wait_until_idle(30)
        else:
            log.attach(worker=Quiet)
            log.snapshot(30, [2, 6])
            assert isinstance(log.compact(policy=log.policy, executor=LocalExecutor(workers)), Done)
        assert set(answers) == {"Busy"}
        log.append(rows(41, 41))
        assert log.last_index == 41
    assert log.is_closed


class Quiet(Broken):
    """A worker that does nothing."""

    def snapshot_recorded(self, row: SnapshotMeta) -> None:
        """Nothing."""

    def segments_flushed(self, last_index: int | None) -> None:
        """Nothing."""


def test_the_server_that_a_worker_tells_cannot_close_it_or_the_log(tmp_path: Path) -> None:
    answers: list[type[BaseException] | None] = []
    told = threading.Event()

    def server(changes: object, outcome: object) -> None:
        for close in (log.close, store.close):
            try:
                close()
            except Busy as error:
                answers.append(type(error))
        told.set()

    store = RaftLogStore(tmp_path, StoreOptions(log=small(), background=False))
    with store:
        log = store.log("a")
        log.attach(worker=lambda made: LogCompactionWorker(log.segments, server=server))
        log.append(rows(1, 40))
        store.flush()
        log.snapshot(30, [2])
        assert told.wait(30)
        assert answers == [Busy, Busy]
        assert not log.is_closed
        log.append(rows(41, 41))


def test_a_flush_by_a_clock_that_stands_still_goes_on(tmp_path: Path) -> None:
    options = StoreOptions(log=LogOptions(limits=SegmentLimits(max_entries=4), clock=ManualClock(5.0),
                                          files=UnsyncedFiles()), max_wal_bytes=1)
    with RaftLogStore(tmp_path, options) as store:
        for index in range(1, 20):
            store.log("a").append(rows(index, index))
            store.sync()
        store.flush()
        assert store.status().unflushed_files == 0


class Meeting:
    """A flush in the background whose last step waits for a roll, which waits for the flush that comes next.

    Args:
        monkeypatch: puts the two meetings into the logs.
        rolling: the log that is to learn of a closed file when the next flush begins.
        flushing: the log before whose flush that one waits until all logs have learnt of it.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, rolling: str, flushing: str) -> None:
        self.is_on = threading.Event()
        self._goes_on, self._begun, self._rolled = (threading.Event() for _ in range(3))
        freeze, flush_through = RaftLog.freeze, RaftLog.flush_through

        def frozen(log: RaftLog, file_number: int) -> None:
            if self.is_on.is_set() and log.log_id == rolling:
                self._goes_on.set()
                assert self._begun.wait(30)
            freeze(log, file_number)

        def flushed(log: RaftLog, file_number: int) -> Any:
            if self._goes_on.is_set() and log.log_id == flushing:
                self._begun.set()
                assert self._rolled.wait(30)
            return flush_through(log, file_number)

        monkeypatch.setattr(RaftLog, "freeze", frozen)
        monkeypatch.setattr(RaftLog, "flush_through", flushed)

    def wait(self) -> None:
        """As the flush: until the roll has come."""
        assert self._goes_on.wait(30)

    def end(self) -> None:
        """As the roll, once it has ended."""
        self._rolled.set()


@pytest.mark.parametrize("flushing", "abc")
@pytest.mark.parametrize("rolling", "abc")
def test_a_file_of_the_wal_goes_only_once_every_log_was_asked_for_what_it_holds(
        rolling: str, flushing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    meeting = Meeting(monkeypatch, rolling, flushing)
    lost: list[tuple[str, str, int]] = []
    synced = 0

    def look(operation: str, path: str) -> None:
        if operation != "unlink" or not path.endswith(".wal"):
            return
        if not meeting.is_on.is_set():
            reached.set()
            meeting.wait()
        copy = tmp_path / f"without {os.path.basename(path)}"
        shutil.copytree(tmp_path / "store", copy)
        os.unlink(copy / "wal" / os.path.basename(path))
        with RaftLogStore(copy, StoreOptions(background=False)) as left:
            lost.extend((copy.name, name, index) for name in "abc" for index in range(1, synced + 1)
                        if not isinstance(left.log(name).read(index), Entry))

    reached = threading.Event()
    options = StoreOptions(log=small(WatchedFiles(look)), max_wal_bytes=1)
    with RaftLogStore(tmp_path / "store", options) as store:
        for index in (1, 2, 3):
            for name in "abc":
                store.log(name).append(rows(index, index))
            if index == 2:
                # From here on the flush that runs is one of the first file alone, and another is due behind it.
                assert reached.wait(30)
            elif index == 3:
                meeting.is_on.set()
            store.sync()
            synced = index
        meeting.end()
    assert lost == []


def test_a_log_is_closed_and_opened_again_only_once_an_append_under_way_has_ended(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    queued, goes_on = threading.Event(), threading.Event()
    write_run = Wal.write_run

    def written(wal: Wal, *arguments: Any) -> Any:
        verdict = write_run(wal, *arguments)
        if threading.current_thread() is appends:
            queued.set()
            assert goes_on.wait(30)
        return verdict

    def go_on_anew() -> None:
        log.close()
        with contextlib.suppress(Overwriting):
            store.log("a").append([(2, 2, b"anew")])

    with RaftLogStore(tmp_path, StoreOptions(log=small(), background=False)) as store:
        log = store.log("a")
        log.append(rows(1, 1))
        log.sync()
        monkeypatch.setattr(Wal, "write_run", written)
        appends = threading.Thread(target=lambda: log.append([(2, 1, b"under way")]))
        appends.start()
        assert queued.wait(30)
        reopens = threading.Thread(target=go_on_anew)
        reopens.start()
        reopens.join(0.2)
        goes_on.set()
        appends.join()
        reopens.join()
        store.sync()
        found = store.log("a").read(2)
    with RaftLogStore(tmp_path) as store:
        assert store.log("a").read(2) == found


def test_a_closed_log_takes_no_worker(tmp_path: Path) -> None:
    with RaftLogStore(tmp_path, StoreOptions(log=small(), background=False)) as store:
        log = store.log("a")
        log.close()
        with pytest.raises(Closed):
            log.attach(worker=lambda made: LogCompactionWorker(made.segments))
        assert not [thread for thread in threading.enumerate() if "worker of the log" in thread.name]
