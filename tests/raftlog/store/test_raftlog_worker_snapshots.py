# SPDX-License-Identifier: Apache-2.0
"""The worker of a `RaftLog` writes its snapshots and checkpoints, and carries out what the host asks to compact."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from compactlib.clock import ManualClock
from compactlib.errors import BudgetSpent, Busy, DiskFull, InvalidInput
from compactlib.files import Files, LocalFiles
from compactlib.outcome import Done, Failed, Skipped
from compactlib.raftlog import (
    DropDead,
    LogCompactionWorker,
    LogOptions,
    RaftLog,
    SegmentLimits,
    SnapshotFolder,
    StoreOptions,
    open_log,
)
from compactlib.raftlog.log.snapshot_writer import Applied, MachineCopy, SnapshotWriter, SnapshotWritten
from compactlib.raftlog.log.worker import SegmentChanges, SnapshotOutcome, WorkerOutcome
from compactlib.raftlog.model.values import SegmentRef
from compactlib.runtime import Budget, Observer, RecordingObserver
from compactlib.testing import RecordingFiles, explore_crashes, record
from tests.raftlog.raft_host import rows
from tests.raftlog.wrapped_files import WatchedFiles


class Unstarted(LogCompactionWorker):
    """A worker whose turns come when the test asks for them."""

    def start(self) -> None:
        """Not in a thread."""


class Host:
    """A machine that needs every tenth entry, its log, and the worker that writes its snapshots."""

    def __init__(self, folder: Path, files: Files | None = None, *,
                 worker: type[LogCompactionWorker] = Unstarted, server: Any = None, budget: Budget | None = None,
                 observer: Observer | None = None, **writer: Any) -> None:
        files = LocalFiles() if files is None else files
        self.clock = ManualClock(1000.0)
        if not (folder / "snapshots").exists():
            files.make_folder(folder / "snapshots")
            files.sync_folder(folder)
        self.folder = folder
        self.snapshots = SnapshotFolder(folder / "snapshots", files=files)
        self.log: RaftLog = open_log(folder / "log", StoreOptions(background=False, log=LogOptions(
            limits=SegmentLimits(max_entries=8), keep_links_seconds=0.0, files=files)))
        self.applied = self.log.state.index
        self.workers: list[LogCompactionWorker] = []
        chosen: dict[str, Any] = {"applied": lambda: self.applied, "copy": self.copy, "when": Applied(20),
                                  "look_seconds": 5.0, **writer}

        def made(log: Any) -> LogCompactionWorker:
            self.workers.append(worker(self.log.segments, server=server, clock=self.clock, budget=budget,
                                       observer=observer, snapshots=SnapshotWriter(self.log, **chosen)))
            return self.workers[-1]

        self.log.attach(self.snapshots, made)

    @property
    def worker(self) -> LogCompactionWorker:
        return self.workers[-1]

    def copy(self) -> MachineCopy:
        return MachineCopy(self.applied, range(10, self.applied + 1, 10), self.pieces(self.applied))

    def pieces(self, index: int) -> Iterator[bytes]:
        yield b"state at "
        yield b"%d" % index

    def apply(self, count: int) -> None:
        first = self.log.last_index + 1 or 1
        self.log.append(rows(first, first + count - 1))
        self.log.sync()
        self.applied = self.log.last_index

    def look(self) -> SnapshotOutcome:
        """The next turns; how the one for a snapshot ended."""
        self.clock.advance(5.0)
        self.worker.run_pending()
        return self.worker.last_snapshot

    def check(self) -> None:
        """The newest snapshot is whole, and the log's row names it."""
        found = self.snapshots.latest()
        assert found is not None
        assert found == self.log.state
        assert list(found.live) == list(range(10, found.index + 1, 10))
        with self.snapshots.open_state() as state:
            assert b"".join(state.pieces()) == b"state at %d" % found.index
        self.snapshots.audit()
        self.log.audit()


@contextmanager
def host(folder: Path, **options: Any) -> Iterator[Host]:
    made = Host(folder, **options)
    with made.log:
        yield made


def test_a_trigger_wants_one_after_entries_or_after_a_time_with_any() -> None:
    both = Applied(20, 60.0)
    assert [both.wants_snapshot(*each) is not None for each in ((19, 59.0), (20, 0.0), (1, 60.0))] == [
        False, True, True]
    assert Applied(20).wants_snapshot(19, 1e9) is None
    for wrong in ({"entries": 0}, {"entries": "x"}, {"seconds": 0}, {"seconds": "x"}, {"seconds": True}):
        with pytest.raises(InvalidInput):
            Applied(**wrong)


def test_a_snapshot_is_written_once_enough_was_applied_and_the_log_shrinks_by_it(tmp_path: Path) -> None:
    observer = RecordingObserver()
    with host(tmp_path, observer=observer) as member:
        assert isinstance(member.look(), Skipped)
        member.apply(18)
        answer = member.look()
        assert isinstance(answer, Skipped)
        assert "19 entries were applied and 5 seconds passed since none" in answer.reason
        member.apply(2)
        written = SnapshotWritten(kind="snapshot", index=20, live=2, state_bytes=11,
                                  why="21 entries were applied, at least 20")
        assert member.look() == Done(written)
        assert [fields for name, fields in observer.events if name == "raftlog_snapshot_written"] == [
            {"kind": "snapshot", "index": 20, "live": 2, "state_bytes": 11, "why": written.why}]
        member.check()
        assert member.look() == Skipped("the machine has applied 20, and the snapshot 20 is in force")
        # The next one is told of by a flush, and what both leave dead goes in the same turns.
        member.apply(60)
        member.log.flush()
        before = len(member.log.segments.refs)
        member.worker.run_pending()
        member.check()
        assert member.log.state.index == 80
        assert len(member.log.segments.refs) < before


def test_time_brings_one_if_anything_was_applied_and_a_restart_goes_on_from_the_last(tmp_path: Path) -> None:
    with host(tmp_path, when=Applied(1000, 60.0)) as member:
        for _ in range(30):
            assert isinstance(member.look(), Skipped)
        member.apply(3)
        assert isinstance(member.look(), Done)
        member.apply(1)
        outcomes = [type(member.look()) for _ in range(12)]
        assert outcomes == [Skipped] * 11 + [Done]
    with host(tmp_path, when=Applied(10)) as member:
        member.check()
        member.apply(9)
        assert isinstance(member.look(), Skipped)
        member.apply(1)
        assert isinstance(member.look(), Done)
        member.check()


def test_checkpoints_have_a_trigger_of_their_own_and_snapshots_come_first(tmp_path: Path) -> None:
    with host(tmp_path, when=Applied(100), checkpoint_when=Applied(30)) as member:
        kinds = []
        for _ in range(14):
            member.apply(10)
            answer = member.look()
            if isinstance(answer, Done):
                kinds.append((answer.stats.kind, answer.stats.index))
        assert kinds == [("checkpoint", 30), ("checkpoint", 60), ("checkpoint", 90), ("snapshot", 100),
                         ("checkpoint", 130)]
        member.check()
        assert [each.index for each in member.snapshots.checkpoints] == [130]
        # A promoted one is a snapshot like any other.
        member.log.promote(130)
        member.apply(10)
        assert isinstance(member.look(), Skipped)
    # What an earlier life has written is not known any more, and refused by the store: nothing fails.
    with host(tmp_path, when=None, checkpoint_when=Applied(15)) as member:
        member.applied = 150
        assert isinstance(member.look(), Done)
    with host(tmp_path, when=None, checkpoint_when=Applied(15)) as member:
        member.applied = 150
        answer = member.look()
        assert isinstance(answer, Skipped)
        assert "checkpoint 150 is not above 150" in answer.reason
        assert member.worker.failures == 0


def test_the_host_may_ask_for_one_and_may_still_take_one_itself(tmp_path: Path) -> None:
    with host(tmp_path, when=None) as member:
        member.apply(25)
        assert isinstance(member.look(), Skipped)
        member.worker.request_snapshot()
        answer = member.look()
        assert isinstance(answer, Done)
        assert (answer.stats.index, answer.stats.why) == (25, "the host asked for it")
        member.apply(5)
        member.log.snapshot(28, [10, 20], [b"by hand"])
        assert member.log.state.index == 28
        member.worker.request_snapshot()
        assert isinstance(member.look(), Done)
        member.check()
    with open_log(tmp_path / "other") as log:
        worker = LogCompactionWorker(log.segments)
        with pytest.raises(InvalidInput, match="SnapshotWriter"):
            worker.request_snapshot()


def test_a_host_that_raises_is_asked_again_after_a_growing_delay_and_everything_else_goes_on(tmp_path: Path) -> None:
    observer = RecordingObserver()
    wrong = [KeyError("the host's bug"), KeyError("again"), InvalidInput("the host's own")]

    def copy() -> MachineCopy:
        if wrong:
            raise wrong.pop(0)
        return member.copy()

    with host(tmp_path, observer=observer, copy=copy) as member:
        member.apply(30)
        for failures in (1, 2, 3):
            answer = member.look()
            assert isinstance(answer, Failed)
            assert member.log.state.index == -1
            events = [fields for name, fields in observer.events if name == "raftlog_worker_failed"]
            assert (len(events), events[-1]["work"], events[-1]["failures"]) == (failures, "snapshot", failures)
        assert [fields["retry_in_seconds"] for fields in events] == [pytest.approx(0.1 * 2 ** n) for n in range(3)]
        assert isinstance(member.worker.last_error, KeyError)
        assert isinstance(member.log.last_error, KeyError)
        assert isinstance(member.look(), Done)
        member.check()


@pytest.mark.parametrize("place", range(1, 12, 2))
def test_a_full_disk_leaves_nothing_and_the_snapshot_is_written_once_there_is_room(place: int, tmp_path: Path) -> None:
    steps: list[str] = []
    full: list[int] = []

    def look(operation: str, path: str) -> None:
        if full and "snapshots" in path:
            steps.append(path)
            if len(steps) >= full[0]:
                raise DiskFull.from_os(OSError(errno.ENOSPC, "full"), operation, path)

    with host(tmp_path, files=WatchedFiles(look)) as member:
        member.apply(30)
        full.append(place)
        answer = member.look()
        if isinstance(answer, Failed):
            assert isinstance(answer.error, DiskFull)
            assert isinstance(member.look(), Failed | Skipped)
        full.clear()
        for _ in range(4):
            member.look()
        member.check()
        assert member.log.state.index == 30


def test_two_are_never_written_at_once_and_the_later_one_is_in_force(tmp_path: Path) -> None:
    begun, by_hand = threading.Event(), threading.Event()
    seen: list[bool] = []

    def pieces() -> Iterator[bytes]:
        begun.set()
        assert by_hand.wait(30)
        seen.append(other.is_alive() and member.log.state.index == -1)
        yield b"state at 30"

    with host(tmp_path, worker=LogCompactionWorker, when=None,
              copy=lambda: MachineCopy(30, [10, 20, 30], pieces())) as member:
        member.apply(40)

        def take() -> None:
            by_hand.set()
            member.log.snapshot(40, [10, 20, 30, 40], [b"state at 40"])

        other = threading.Thread(target=take)
        member.worker.request_snapshot()
        assert begun.wait(30)
        other.start()
        other.join(30)
        member.worker.wait_until_idle()
        assert seen == [True]
        assert isinstance(member.worker.last_snapshot, Done)
        assert member.log.state.index == 40
        member.check()


@pytest.mark.parametrize("closer", ["log", "worker"])
def test_closing_ends_a_snapshot_half_way_and_waits_for_that(closer: str, tmp_path: Path) -> None:
    begun = threading.Event()
    pieces_given: list[int] = []

    def pieces() -> Iterator[bytes]:
        for number in range(40):
            pieces_given.append(number)
            yield bytes(1 << 16)
        begun.set()
        # There is always more of it.
        while True:
            pieces_given.append(40)
            yield b"x"
            threading.Event().wait(0.001)

    with host(tmp_path, worker=LogCompactionWorker, when=None,
              copy=lambda: MachineCopy(30, [], pieces())) as member:
        member.apply(30)
        member.worker.request_snapshot()
        assert begun.wait(30)
        if closer == "log":
            member.log.close()
        else:
            assert isinstance(member.worker.stop(), Done)
        answer = member.worker.last_snapshot
        assert isinstance(answer, Failed)
        assert isinstance(answer.error, BudgetSpent)
        given = len(pieces_given)
        assert os.listdir(tmp_path / "snapshots") == []
        assert member.worker.failures == 0
    assert len(pieces_given) == given
    with host(tmp_path) as member:
        assert member.log.state.index == -1
        assert member.log.last_index == 30


def test_from_inside_a_copy_the_log_cannot_be_closed(tmp_path: Path) -> None:
    answers: list[type[BaseException]] = []

    def copy() -> MachineCopy:
        for close in (member.log.close, member.worker.stop):
            with pytest.raises(Busy) as caught:
                close()
            answers.append(caught.type)
        return member.copy()

    with host(tmp_path, worker=LogCompactionWorker, copy=copy) as member:
        member.apply(30)
        member.worker.request_snapshot()
        while not answers:
            threading.Event().wait(0.001)
    assert answers[:2] == [Busy, Busy]


def test_a_rate_of_the_budget_holds_for_the_pieces_too(tmp_path: Path) -> None:
    with host(tmp_path, budget=Budget(total_bytes=10)) as member:
        member.apply(30)
        answer = member.look()
        assert isinstance(answer, Failed)
        assert isinstance(answer.error, BudgetSpent)
        assert member.log.state.index == -1


def test_a_crash_at_any_step_of_what_the_worker_writes_leaves_one_whole_snapshot(tmp_path: Path) -> None:
    def act(folder: Path, files: RecordingFiles) -> None:
        member = Host(folder, files, checkpoint_when=Applied(10))
        for _ in range(4):
            member.apply(11)
            member.look()
            files.acknowledge((member.applied, member.log.state.index))
        member.log.close()

    def check(folder: Path, acknowledged: Sequence[tuple[int, int]]) -> None:
        with host(folder, files=LocalFiles()) as member:
            applied, row = max(acknowledged, default=(-1, -1))
            assert member.log.state.index >= row
            assert member.log.contiguous_through >= applied
            if member.log.state.index >= 0:
                member.check()
            member.applied = member.log.contiguous_through
            member.apply(30)
            assert isinstance(member.look(), Done)
            member.check()

    explore_crashes(record(tmp_path, act), check, limit_per_point=2)


# -- what the host asks to compact goes through the worker


class Listed:
    """A server that keeps the list of segments as it is told of it."""

    def __init__(self) -> None:
        self.refs: Sequence[SegmentRef] = ()
        self.told: list[tuple[SegmentChanges, WorkerOutcome]] = []
        self.during: Callable[[], object] = int

    def __call__(self, changes: SegmentChanges, outcome: WorkerOutcome) -> None:
        self.told.append((changes, outcome))
        self.refs = changes.applied_to(self.refs)
        during, self.during = self.during, int
        during()

    def note(self, log: RaftLog) -> None:
        before = self.refs[-1].number if self.refs else 0
        newer = [each for each in log.segments.refs if each.number >= before]
        self.refs = (*(each for each in self.refs if each.number < before), *newer)


def test_what_the_host_compacts_beside_a_worker_its_server_hears_too(tmp_path: Path) -> None:
    server = Listed()
    with host(tmp_path, server=server, when=None) as member:
        member.apply(100)
        member.log.flush()
        server.note(member.log)
        member.log.snapshot(95, [5, 15, 25, 35], [b"state"])
        member.worker.run_pending()
        assert server.refs == member.log.segments.refs
        del server.told[:]
        # The outcome is the caller's, and the server's.
        outcome = member.log.compact(policy=member.log.policy)
        assert isinstance(outcome, Done)
        assert server.told == [(SegmentChanges.of(outcome.stats, member.log.segments.refs), outcome)]
        assert server.refs == member.log.segments.refs
        # What a lease for the server kept apart is taken up by the worker.
        member.worker.run_pending()
        assert server.refs == member.log.segments.refs
        assert isinstance(member.log.compact(policy=member.log.policy), Skipped)


def test_a_server_that_raises_leaves_the_caller_its_outcome(tmp_path: Path) -> None:
    def server(changes: SegmentChanges, outcome: WorkerOutcome) -> None:
        raise KeyError("the host's bug")

    with host(tmp_path, server=server, when=None) as member:
        member.apply(100)
        member.log.flush()
        member.log.snapshot(95, [5, 15], [b"state"])
        assert isinstance(member.log.compact(policy=DropDead()), Done)
        assert isinstance(member.log.last_error, KeyError)
        assert member.log.status().failures == 1


def test_one_makes_rewrites_at_a_time_until_the_server_knows(tmp_path: Path) -> None:
    server = Listed()
    inside: list[Any] = []
    with host(tmp_path, server=server, when=None) as member:
        member.apply(100)
        member.log.flush()
        server.note(member.log)

        def during() -> None:
            inside.append(member.log.compact())
            inside.append(member.worker.run_pending())

        server.during = during
        member.log.snapshot(60, [5, 15], [b"state"])
        member.worker.run_pending()
        # From inside the worker's own turn nothing else is begun; the outcome says so.
        busy, _ = inside
        assert isinstance(busy, Skipped)
        assert busy.is_busy
        del inside[:]
        server.during = during
        member.log.snapshot(95, [5, 15], [b"state"])
        assert isinstance(member.log.compact(policy=member.log.policy), Done)
        # From inside the caller's: a second call is turned away, and the worker's turn comes again later.
        busy, turns = inside
        assert isinstance(busy, Skipped)
        assert busy.is_busy
        assert any(isinstance(turn, Skipped) and turn.is_busy for turn in turns)
        member.look()
        assert server.refs == member.log.segments.refs
        assert member.worker.failures == 0


def test_a_fence_that_raises_half_way_leaves_the_servers_list_right(tmp_path: Path) -> None:
    server = Listed()

    class Fence:
        def __init__(self) -> None:
            self.left = 1

        @contextmanager
        def guard(self) -> Iterator[None]:
            self.left -= 1
            if self.left < 0:
                raise KeyError("no library's error")
            yield

    with host(tmp_path, server=server, when=None) as member:
        member.apply(100)
        member.log.flush()
        server.note(member.log)
        member.log.snapshot(95, [1, 9, *range(17, 25), 41, 49], [b"state"])
        with pytest.raises(KeyError):
            member.log.compact(policy=member.log.policy, fence=Fence())
        [(changes, outcome)] = server.told
        assert changes.dropped
        assert isinstance(outcome, Failed)
        assert server.refs == member.log.segments.refs
        member.worker.request(member.log.policy)
        member.worker.run_pending()
        assert server.refs == member.log.segments.refs


def test_many_threads_compact_and_take_snapshots_beside_a_worker(tmp_path: Path) -> None:
    server = Listed()
    with host(tmp_path, worker=LogCompactionWorker, server=server, when=Applied(20), look_seconds=None) as member:
        stop = threading.Event()
        raised: list[BaseException] = []

        def ask() -> None:
            try:
                while not stop.is_set():
                    member.log.compact(policy=member.log.policy)
                    member.log.compact(policy=DropDead())
            except BaseException as error:
                raised.append(error)

        threads = [threading.Thread(target=ask) for _ in range(2)]
        for thread in threads:
            thread.start()
        for _ in range(8):
            member.apply(20)
            member.log.flush()
            member.worker.request_snapshot()
        stop.set()
        for thread in threads:
            thread.join()
        member.worker.wait_until_idle()
        member.worker.request_snapshot()
        member.worker.wait_until_idle()
        assert raised == []
        assert member.worker.failures == 0
        assert member.log.state.index == 160
        member.check()
