# SPDX-License-Identifier: Apache-2.0
"""`RaftLog` with a `SnapshotFolder` and a `LogCompactionWorker`: both halves of a snapshot under crashes."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from compactlib.errors import Busy, DiskFull, InvalidInput, NotFound, Stale
from compactlib.files import Files, LocalFiles
from compactlib.indexset import IndexSet
from compactlib.raftlog import DeadEntry, Entry, LogCompactionWorker, RaftLog, SnapshotFolder, SnapshotMeta, open_log
from compactlib.testing import RecordingFiles, explore_crashes, record
from tests.harness.raft_world import RaftModel, check_log, found_state, install_plain, store_options
from tests.raftlog.raft_host import held
from tests.raftlog.wrapped_files import WatchedFiles

LIVE = {9: [2, 5], 14: [5, 12], 30: [5, 17, 22]}


def opened(folder: Path, files: Files) -> tuple[RaftLog, SnapshotFolder]:
    """A log whose snapshots lie beside it."""
    if not (folder / "snapshots").exists():
        files.make_folder(folder / "snapshots")
        files.sync_folder(folder)
    snapshots = SnapshotFolder(folder / "snapshots", files=files)
    log = open_log(folder / "log", store_options(files))
    log.attach(snapshots)
    return log, snapshots


def rows(first: int, last: int, term: int) -> list[tuple[int, int, bytes]]:
    return [(index, term, b"%d in %d" % (index, term)) for index in range(first, last + 1)]


def live_through_snapshots(model: RaftModel, folder: Path, files: RecordingFiles) -> None:
    """Two snapshots, a flush and a major between them, and one that is installed from elsewhere."""
    log, snapshots = opened(folder, files)

    def put(first: int, last: int, term: int) -> None:
        log.append(rows(first, last, term))
        for row in rows(first, last, term):
            model.change(lambda state, row=row: state.append(*row))  # type: ignore[misc]
        log.sync()
        files.acknowledge(len(model.history.states) - 1)

    def snapshot(index: int) -> None:
        model.change(lambda state: state.record_snapshot(index, LIVE[index]))
        log.snapshot(index, LIVE[index], [b"state at %d" % index])
        files.acknowledge(len(model.history.states) - 1)

    put(1, 10, 1)
    snapshot(9)
    log.flush()
    put(11, 16, 1)
    snapshot(14)
    log.compact(policy=log.policy)
    sent = [Entry(17, 2, b"17 from elsewhere"), Entry(22, 2, b"22 from elsewhere")]
    log.append_sparse(sent)
    model.change(lambda state: state.entries.update({entry.index: entry for entry in sent}))
    # As the receiver does: durable, put in the store, then in force.
    log.sync()
    meta = SnapshotMeta(30, 2, IndexSet.from_sorted(LIVE[30]))
    model.change(lambda state: install_plain(state, meta))
    snapshots.write(meta, [b"state at 30"])
    log.install(meta)
    files.acknowledge(len(model.history.states) - 1)
    log.close()


def test_a_crash_between_any_two_steps_of_a_snapshot_leaves_one_snapshot_and_all_it_needs(tmp_path: Path) -> None:
    model = RaftModel()

    def check(folder: Path, acknowledged: Sequence[Any]) -> None:
        log, snapshots = opened(folder, LocalFiles())
        with log:
            state = found_state(log, model.history, max(acknowledged, default=0))
            check_log(log, state)
            found = snapshots.latest()
            assert log.state.index == (-1 if found is None else found.index)
            if found is not None:
                assert found.live == log.state.live
                with snapshots.open_state() as reader:
                    assert b"".join(reader.pieces()) == b"state at %d" % found.index
            snapshots.audit()
            # The machine is restored from its snapshot; the rest of a transfer that was cut short goes.
            log.attach(applied=-1 if found is None else found.index)
            assert log.last_index == log.contiguous_through
            log.append(rows(log.last_index + 1, log.last_index + 2, 9))
            log.flush()

    recording = record(tmp_path, lambda folder, files: live_through_snapshots(model, folder, files))
    explore_crashes(recording, check, limit_per_point=2)


def test_a_worker_compacts_after_snapshots_while_entries_come_in(tmp_path: Path) -> None:
    log, _ = opened(tmp_path, LocalFiles())
    workers: list[LogCompactionWorker] = []

    def make(_: object) -> LogCompactionWorker:
        workers.append(LogCompactionWorker(log))
        return workers[-1]

    with log:
        log.attach(worker=make)
        for round_number in range(6):
            first = log.last_index + 1
            log.append(rows(max(first, 1), max(first, 1) + 39, 1))
            log.flush()
            log.snapshot(log.last_index - 5, [7, 19], [b"state %d" % round_number])
        workers[0].wait_until_idle()
        log.audit()
        # Only the segments in which they lie are left.
        assert held(log).between(1, 100).issubset(IndexSet.from_runs([(5, 8), (17, 20)]))
        assert [log.read(index) for index in (7, 19)] == [Entry(7, 1, b"7 in 1"), Entry(19, 1, b"19 in 1")]
    assert log.is_closed


def promoted_through_checkpoints(folder: Path, files: RecordingFiles) -> None:
    """Two checkpoints, of which one becomes the snapshot; a compaction after it."""
    log, _ = opened(folder, files)
    log.append(rows(1, 30, 1))
    log.flush()
    log.checkpoint(10, [2, 5], [b"state at 10"])
    log.checkpoint(20, [5, 17], [b"state at 20"])
    files.acknowledge("checkpoints")
    assert log.state.index == -1
    assert log.promote(25) == SnapshotMeta(20, 1, IndexSet.from_sorted([5, 17]))
    files.acknowledge("promoted")
    log.compact(policy=log.policy)
    log.close()


def test_a_crash_at_any_step_of_a_promotion_leaves_row_and_store_together(tmp_path: Path) -> None:
    def check(folder: Path, acknowledged: Sequence[Any]) -> None:
        log, snapshots = opened(folder, LocalFiles())
        with log:
            found = snapshots.latest()
            if "promoted" in acknowledged:
                assert found is not None
            if found is None:
                assert log.state.index == -1
                if "checkpoints" in acknowledged:
                    assert [each.index for each in snapshots.checkpoints] == [10, 20]
                    log.promote(20)
                    found = snapshots.latest()
            if found is not None:
                assert log.state == found == SnapshotMeta(20, 1, IndexSet.from_sorted([5, 17]))
                assert [log.read(index).term for index in (5, 17)] == [1, 1]  # type: ignore[union-attr]
                assert snapshots.checkpoints == ()
            snapshots.audit()
            log.audit()

    explore_crashes(record(tmp_path, promoted_through_checkpoints), check, limit_per_point=2)


def test_a_checkpoint_that_is_promoted_frees_what_it_leaves_dead(tmp_path: Path) -> None:
    log, snapshots = opened(tmp_path, LocalFiles())
    with log:
        log.append(rows(1, 40, 1))
        log.flush()
        with pytest.raises(NotFound, match="no checkpoint at or below 40"):
            log.promote(40)
        log.checkpoint(30, [7], [b"thirty"])
        assert log.compact().is_empty
        assert log.read(8) == Entry(8, 1, b"8 in 1")
        with pytest.raises(Stale, match="checkpoint 30 is not above 30"):
            log.checkpoint(30, [7], [b"again"])
        with pytest.raises(InvalidInput, match="above the last index 40"):
            log.checkpoint(41, [7], [b"too far"])
        log.promote(40)
        assert log.read(8) == DeadEntry(8, 30)
        assert not log.compact().is_empty
        # The row goes on from there, and so do snapshots.
        log.snapshot(40, [7], [b"forty"])
        assert (log.state.index, [each.index for each in snapshots.checkpoints]) == (40, [])
        with pytest.raises(NotFound, match="above the snapshot 40"):
            log.promote(40)


def test_a_promotion_that_the_disk_refused_half_way_is_done_when_it_is_asked_for_again(tmp_path: Path) -> None:
    refused: list[str] = []

    def refuse(operation: str, path: str) -> None:
        if refused and path.endswith("SNAPSHOT.tmp"):
            raise DiskFull.from_os(OSError(errno.ENOSPC, refused.pop()), "write", path)

    log, snapshots = opened(tmp_path, WatchedFiles(refuse))
    with log:
        log.append(rows(1, 40, 1))
        log.checkpoint(30, [7], [b"thirty"])
        refused.append("no room")
        with pytest.raises(DiskFull):
            log.promote(30)
        assert log.state.index == -1
        assert log.promote(30) == log.state == snapshots.latest()


@pytest.mark.parametrize("how", ["snapshot", "promote", "install"])
def test_a_snapshot_is_taken_although_the_disk_does_not_let_go_of_the_older_one(how: str, tmp_path: Path) -> None:
    def refuse(operation: str, path: str) -> None:
        if operation == "unlink" and refused and path.endswith(".snapshot"):
            raise DiskFull.from_os(OSError(errno.ENOSPC, "no room"), "unlink", path)

    refused: list[str] = []
    log, snapshots = opened(tmp_path, WatchedFiles(refuse))
    with log:
        log.append(rows(1, 40, 1))
        log.snapshot(10, [7], [b"ten"])
        if how == "promote":
            log.checkpoint(30, [7], [b"thirty"])
        elif how == "install":
            snapshots.write(SnapshotMeta(30, 1, IndexSet.from_sorted([7])), [b"thirty"])
        refused.append("all")
        if how == "snapshot":
            log.snapshot(30, [7], [b"thirty"])
        elif how == "promote":
            log.promote(30)
        else:
            log.install(SnapshotMeta(30, 1, IndexSet.from_sorted([7])))
        assert log.state == snapshots.latest() == SnapshotMeta(30, 1, IndexSet.from_sorted([7]))
        assert isinstance(log.last_error, DiskFull)
        refused.clear()
        log.snapshot(40, [7], [b"forty"])
        assert len([each for each in (tmp_path / "snapshots").iterdir() if each.suffix == ".snapshot"]) == 1
        log.audit()
        snapshots.audit()


def test_checkpoints_need_a_store_that_keeps_them(tmp_path: Path) -> None:
    with open_log(tmp_path, store_options(LocalFiles())) as log:
        log.append(rows(1, 4, 1))
        for call in (lambda: log.checkpoint(4, [], [b""]), lambda: log.promote(4)):
            with pytest.raises(InvalidInput, match="attached is None"):
                call()


INNER: dict[str, Callable[[RaftLog, SnapshotFolder], object]] = {
    "snapshot below": lambda log, _: log.snapshot(3, [], [b"another"]),
    "snapshot there": lambda log, _: log.snapshot(5, [], [b"another, and longer"]),
    "snapshot above": lambda log, _: log.snapshot(6, [], [b"another"]),
    "checkpoint": lambda log, _: log.checkpoint(5, [], [b"another"]),
    "promote": lambda log, _: log.promote(4),
    "install": lambda log, _: log.install(SnapshotMeta(6, 1, IndexSet())),
    "attach": lambda log, snapshots: log.attach(snapshots),
}


@pytest.mark.parametrize("name", INNER)
def test_what_gives_a_state_begins_no_other_snapshot(name: str, tmp_path: Path) -> None:
    log, snapshots = opened(tmp_path, LocalFiles())
    log.append(rows(1, 8, 1))
    log.flush()
    log.checkpoint(4, [2], [b"a checkpoint"])

    def pieces() -> Iterator[bytes]:
        yield b"one"
        with pytest.raises(Busy, match="is taking a snapshot"):
            INNER[name](log, snapshots)
        log.compact()
        yield b"two"

    with log:
        log.snapshot(5, [2], pieces())
        assert snapshots.latest() == log.state == SnapshotMeta(5, 1, IndexSet.from_sorted([2]))
        with snapshots.open_state() as state:
            assert b"".join(state.pieces()) == b"onetwo"
        log.compact()
        assert [entry.index for entry in log.entries()] == [2, 6, 7, 8]
        assert log.verify().is_sound
        INNER["snapshot above"](log, snapshots)


@pytest.mark.parametrize("again", [0, 2, 6])
def test_a_checkpoint_of_entries_that_were_taken_back_is_not_promoted(again: int, tmp_path: Path) -> None:
    log, snapshots = opened(tmp_path, LocalFiles())
    with log:
        log.append(rows(1, 8, 1))
        log.checkpoint(6, [2], [b"a checkpoint"])
        log.reset(4)
        log.append(rows(5, 4 + again, 2))
        with pytest.raises(Stale, match="checkpoint 6 is of term 1, and that entry was taken back"):
            log.promote(10)
        assert log.state.index == -1
        assert snapshots.latest() is None
        log.snapshot(4, [2], [b"a snapshot"])
        assert log.read(2) == Entry(2, 1, b"2 in 1")
        log.audit()
