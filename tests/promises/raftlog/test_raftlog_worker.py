# SPDX-License-Identifier: Apache-2.0
"""The worker of a log compacts when it is due and writes snapshots, and notifies a host before files are removed."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import attrs
import pytest

from compactlib.budget import Budget
from compactlib.clock import ManualClock
from compactlib.errors import Busy, Closed, DiskFull, StorageError, TaskFailed
from compactlib.executors import LocalExecutor, RewriteFailure, RewriteResult, RewriteTask
from compactlib.observer import Observer
from compactlib.raftlog import (
    DeadRatio,
    Entry,
    EveryNMinors,
    LogChoice,
    LogCompactionWorker,
    LogOptions,
    LogView,
    MachineCopy,
    RaftLog,
    RaftLogStore,
    SeedPolicy,
    SegmentChanges,
    SegmentLimits,
    SegmentLog,
    SnapshotWriter,
    StoreOptions,
    open_log,
)
from compactlib.testing import FilesInFront, Request

LIVE = range(1, 97, 8)


def half_dead(folder: Path, **options: Any) -> SegmentLog:
    log = SegmentLog(folder, LogOptions(limits=SegmentLimits(max_entries=8), **options))
    log.append((index, 1, b"%d" % index) for index in range(1, 101))
    log.snapshot(96, LIVE)
    return log


def files_of(log: SegmentLog) -> set[int]:
    return {int(path.stem) for path in Path(log.folder).glob("*.segment") if not path.is_symlink()}


def test_request_during_a_compaction_is_carried_out_after_it(tmp_path: Path) -> None:
    with half_dead(tmp_path, trigger=EveryNMinors(0)) as log:
        worker = LogCompactionWorker(log, every_seconds=None)
        worker.request()
        assert worker.run_pending()
        assert worker.last_report is not None
        assert worker.last_report.done
        assert not worker.run_pending()
        log.snapshot(96, ())
        worker.request(SeedPolicy())
        assert worker.run_pending()
        assert worker.last_report.dropped


def test_worker_calls_the_trigger_once_in_a_period(tmp_path: Path) -> None:
    clock = ManualClock(1e9)
    with half_dead(tmp_path, trigger=DeadRatio(2.0), clock=clock) as log:
        worker = LogCompactionWorker(log, every_seconds=60.0)
        assert worker.run_pending()
        assert worker.last_report is not None
        assert worker.last_report.done
        clock.advance(59.0)
        assert not worker.run_pending()
        clock.advance(2.0)
        assert worker.run_pending()
        assert all(log.read(index) == Entry(index, 1, b"%d" % index) for index in LIVE)


@pytest.mark.parametrize(("measure", "is_due"), [("bytes", False), ("entries", True)])
def test_dead_ratio_counts_bytes_or_entries(measure: Literal["bytes", "entries"], is_due: bool,
                                            tmp_path: Path) -> None:
    options = LogOptions(limits=SegmentLimits(max_entries=10), policy=SeedPolicy(reclaim_fraction=0.0),
                         trigger=DeadRatio(1.0, measure))
    with SegmentLog(tmp_path, options) as log:
        log.append([(1, 1, bytes(10_000)), *((index, 1, b"x") for index in range(2, 21))])
        log.snapshot(10, [1])
        assert bool(log.plan().groups) == is_due


def test_compaction_that_found_no_room_is_tried_again(tmp_path: Path) -> None:
    full = [True]

    def step(request: Request, act: Any) -> Any:
        if full[0] and "rewrite-" in request.path and request.kind == "create":
            raise DiskFull(operation="create", path=request.path, errno=28)
        return act()

    clock = ManualClock(1e9)
    with half_dead(tmp_path, files=FilesInFront(step), clock=clock) as log:
        worker = LogCompactionWorker(log, every_seconds=None)
        worker.request(SeedPolicy())
        assert worker.run_pending()
        assert worker.failures == 1
        full[0] = False
        clock.advance(2.0)
        assert worker.run_pending()
        assert worker.last_report is not None
        assert worker.last_report.done


def test_worker_of_a_closed_log_rests(tmp_path: Path) -> None:
    log = half_dead(tmp_path)
    worker = LogCompactionWorker(log)
    log.close()
    worker.request(SeedPolicy())
    for _ in range(3):
        worker.run_pending()
    assert worker.failures == 0


def test_host_is_notified_of_changes_before_files_are_removed(tmp_path: Path) -> None:
    heard: list[SegmentChanges] = []
    listed: dict[int, Any] = {}

    def on_changes(changes: SegmentChanges) -> None:
        heard.append(changes)
        assert set(changes.removed) <= {int(path.stem) for path in tmp_path.glob("*.segment")}
        for number in changes.removed:
            del listed[number]
        listed.update((ref.number, ref) for ref in (*changes.new, *changes.merged))

    with half_dead(tmp_path, on_changes=on_changes, keep_links_seconds=0.0) as log:
        log.compact(policy=SeedPolicy())
        assert heard
        assert sorted(listed.values()) == list(log.refs)
        log.append((index, 1, b"%d" % index) for index in range(101, 120))
        log.snapshot(110, [1, 9])
        log.compact(policy=SeedPolicy())
        log.reclaim()
        assert sorted(listed.values()) == list(log.refs)
        assert files_of(log) >= set(listed)


def test_files_stay_until_the_host_was_notified(tmp_path: Path) -> None:
    broken = [True]

    def on_changes(changes: SegmentChanges) -> None:
        if broken[0]:
            raise ValueError("the host's mistake")

    with half_dead(tmp_path, on_changes=on_changes, keep_links_seconds=0.0) as log:
        log.snapshot(96, ())
        before = files_of(log)
        report = log.compact(policy=SeedPolicy())
        assert report.dropped
        assert isinstance(report.unreclaimed, TaskFailed)
        assert files_of(log) == before
        with pytest.raises(TaskFailed):
            log.reclaim()
        assert files_of(log) == before
        broken[0] = False
        assert set(log.reclaim().segments) == set(report.dropped)
        assert files_of(log) == before - set(report.dropped)


def test_writer_of_a_closed_log_rests(machine_log: RaftLog) -> None:
    def applied() -> int:
        raise AssertionError("the machine of a closed log is not asked")

    writer = SnapshotWriter(machine_log, applied=applied, copy=lambda: MachineCopy(-1, (), ()))
    machine_log.close()
    writer.request()
    for _ in range(3):
        writer.run_pending()
    assert writer.failures == 0


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1e9)


@pytest.fixture
def machine_log(clock: ManualClock, tmp_path: Path) -> Iterator[RaftLog]:
    with open_log(tmp_path / "log", StoreOptions(log=LogOptions(clock=clock), background=False)) as log:
        yield log


def test_snapshot_is_written_once_enough_was_applied(machine_log: RaftLog) -> None:
    log = machine_log
    writer = SnapshotWriter(log, applied=lambda: log.last_index, when=5, every_seconds=None,
                            copy=lambda: MachineCopy(log.last_index, [1], [b"st", b"ate"]))
    log.append([(index, 1, b"x") for index in range(1, 4)])
    writer.run_pending()
    assert log.state.index == -1
    assert writer.why == "no snapshot is due: 4 entries were applied since snapshot -1, when=5"
    log.append([(index, 1, b"x") for index in range(4, 7)])
    writer.wake()
    writer.run_pending()
    assert (log.state.index, writer.why) == (6, "7 entries were applied since snapshot -1, when=5")
    assert log.state.manifest is not None
    assert log.state.manifest.state_bytes == 5
    assert (log.state.index, list(log.state.live)) == (6, [1])
    log.append([(7, 1, b"x")])
    writer.request()
    writer.run_pending()
    assert log.state.index == 7


def test_snapshot_is_written_during_a_compaction(tmp_path: Path) -> None:
    """A compaction at a low rate takes hours; the machine's state does not wait for it."""
    options = StoreOptions(log=LogOptions(limits=SegmentLimits(max_entries=8)), background=False)
    with open_log(tmp_path / "log", options) as log:
        log.append([(index, 1, b"x") for index in range(1, 101)])
        log.flush()
        log.snapshot(90, range(1, 91, 9))
        indexes: list[int] = []

        class Slow:
            def run(self, tasks: Iterable[RewriteTask], *, budget: Budget | None = None,
                    observer: Observer | None = None) -> Iterator[RewriteResult | RewriteFailure]:
                with ThreadPoolExecutor(1) as other:
                    other.submit(writer.run_pending).result(60)
                indexes.append(log.state.index)
                return LocalExecutor().run(tasks, budget=budget, observer=observer)

        writer = SnapshotWriter(log, applied=lambda: 95, copy=lambda: MachineCopy(95, range(1, 91, 9), [b"state"]),
                                when=1, every_seconds=None)
        worker = LogCompactionWorker(log, executor=Slow(), every_seconds=None)
        worker.request(SeedPolicy())
        assert worker.run_pending()
        assert indexes == [95]
        assert worker.last_report is not None
        assert worker.last_report.done


def test_snapshot_that_the_disk_refused_is_written_later(clock: ManualClock, machine_log: RaftLog) -> None:
    log, full = machine_log, [True]

    def pieces() -> Iterator[bytes]:
        if full[0]:
            raise DiskFull(operation="write", path="state", errno=28)
        yield b"state"

    writer = SnapshotWriter(log, applied=lambda: log.last_index, when=1, every_seconds=None,
                            copy=lambda: MachineCopy(log.last_index, [], pieces()))
    log.append([(1, 1, b"x")])
    writer.run_pending()
    assert isinstance(writer.last_error, StorageError)
    assert log.state.index == -1
    full[0] = False
    clock.advance(2.0)
    writer.run_pending()
    assert log.state.index == 1


def test_workers_are_stopped_with_their_log(tmp_path: Path) -> None:
    workers: list[LogCompactionWorker | SnapshotWriter] = []

    def compacts(log: RaftLog) -> LogCompactionWorker:
        workers.append(worker := LogCompactionWorker(log))
        return worker

    def writes(log: RaftLog) -> SnapshotWriter:
        workers.append(writer := SnapshotWriter(log, applied=lambda: -1, copy=lambda: MachineCopy(-1, (), ())))
        return writer

    with open_log(tmp_path / "log") as log:
        log.attach(compacts, writes)
        assert all(worker.is_running for worker in workers)
        log.append([(index, 1, b"x") for index in range(1, 100)])
        log.flush()
        log.snapshot(90, [7])
        log.flush()
    assert [(worker.failures, worker.is_running) for worker in workers] == [(0, False)] * 2


def test_writer_that_closes_its_log_is_refused_and_all_threads_go_on(tmp_path: Path) -> None:
    def copy() -> MachineCopy:
        for call in (log.close, log.attach):
            with pytest.raises(Busy):
                call()
        return MachineCopy(1, (), [b"state"])

    with open_log(tmp_path) as log:
        log.append([(1, 1, b"x")])
        log.attach(LogCompactionWorker, lambda log: SnapshotWriter(log, applied=lambda: 1, copy=copy, when=1))
        end = time.monotonic() + 20
        while log.state.index < 1 and time.monotonic() < end:
            time.sleep(0.01)
        assert log.state.index == 1
        assert sum(str(tmp_path) in thread.name for thread in threading.enumerate()) == 3


def test_failed_log_is_opened_while_its_writer_flushes_the_store(tmp_path: Path) -> None:
    """The writer's thread ends before the lock is taken that the flush waits for."""
    fails, copies, goes_on = [False], threading.Event(), threading.Event()

    def step(request: Request, act: Any) -> Any:
        if fails[0] and request.kind == "unlink" and request.path.endswith(".segment"):
            raise StorageError.from_os(OSError(5, "Input/output error"), request.kind, request.path)
        return act()

    def copy() -> MachineCopy:
        copies.set()
        goes_on.wait(20)
        store.flush()
        return MachineCopy(1, (), [b"state"])

    files = LogOptions(files=FilesInFront(step), limits=SegmentLimits(max_entries=1))
    with RaftLogStore(tmp_path, StoreOptions(log=files, background=False)) as store:
        log = store.log("a")
        log.append([(index, 1, b"x") for index in range(1, 5)])
        store.flush()
        log.attach(lambda log: SnapshotWriter(log, applied=lambda: 1, copy=copy, when=1))
        assert copies.wait(20)
        fails[0] = True
        with pytest.raises(StorageError):
            log.reset(2)
        fails[0] = False
        with pytest.raises(Closed):
            log.status()
        threading.Timer(0.2, goes_on.set).start()
        began = time.monotonic()
        assert store.log("a").last_index == 2
        assert time.monotonic() - began < 20


@attrs.frozen
class Seen(SeedPolicy):
    """Records that it was called."""

    calls: list[int] = attrs.field(factory=list)

    def choose(self, view: LogView, now: float) -> LogChoice:
        self.calls.append(len(view.segments))
        return super().choose(view, now)


@pytest.mark.parametrize("compacts", [True, False])
def test_requests_beside_any_step_of_a_turn_are_carried_out(compacts: bool, machine_log: RaftLog) -> None:
    log = machine_log
    log.append([(1, 1, b"x")])
    log.snapshot(1, ())
    policy = Seen()
    writer = SnapshotWriter(log, applied=lambda: log.last_index, when=None, every_seconds=None,
                            copy=lambda: MachineCopy(log.last_index, (), [b"state"]))
    compactor = LogCompactionWorker(log, every_seconds=None)
    worker = compactor if compacts else writer
    places = iter(range(10_000))
    left = 0

    def request_once(frame: FrameType, event: str, _: object) -> Any:
        """As another thread that gets its turn before a byte code."""
        nonlocal left
        if Path(frame.f_code.co_filename).name != "worker.py":
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            left -= 1
            if left == 0:
                if compacts:
                    compactor.request(policy)
                else:
                    writer.request()
        return request_once

    while left <= 0:
        policy.calls.clear()
        log.append([(log.last_index + 1, 1, b"x")])
        left = place = next(places) + 1
        worker.wake()
        sys.settrace(request_once)
        try:
            worker.run_pending()
        finally:
            sys.settrace(None)
        while worker.run_pending():
            pass
        if left <= 0:
            assert len(policy.calls) == 1 if compacts else log.state.index == log.last_index, (
                f"requested before byte code {place}")
    assert place > 50
